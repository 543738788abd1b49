// link.c - see link.h.
#include "target/link.h"

#include <string.h>

static const struct {
  lm_link link;
  const char *targets;
} links[] = {
#define LINK(NAME, TITLE, GB_PER_S, MICROSECONDS, TARGETS)                                         \
  {{NAME, TITLE, 1e9 * (GB_PER_S), 1e-6 * (MICROSECONDS)}, TARGETS},
#include "target/links.def"
};
enum {
  LINKS = sizeof links / sizeof *links
};

const char *lm_link_name(int i) {
  return i < LINKS ? links[i].link.name : NULL;
}

const lm_link *lm_link_find(const char *name) {
  for (int i = 0; i < LINKS; i++)
    if (!strcmp(links[i].link.name, name))
      return &links[i].link;
  return NULL;
}

// The machine of known.def that the target is, whatever its name: "sm_90a" is an "h100".
static const char *machine_name(const lm_target *t) {
  for (int i = 0; lm_target_name(i); i++) {
    lm_target known;
    if (lm_target_known(lm_target_name(i), &known) && !strcmp(known.title, t->title))
      return lm_target_name(i);
  }
  return "";
}

static bool has_word(const char *words, const char *word) {
  size_t n = strlen(word);
  for (const char *at = n ? strstr(words, word) : NULL; at; at = strstr(at + 1, word)) {
    bool begins = at == words || at[-1] == ' ';
    if (begins && (!at[n] || at[n] == ' '))
      return true;
  }
  return false;
}

const lm_link *lm_link_of(const lm_target *t) {
  const char *name = t->kind == LM_TARGET_CPU ? "cpu" : machine_name(t);
  for (int i = 0; i < LINKS; i++)
    if (has_word(links[i].targets, name))
      return &links[i].link;
  return NULL;
}
