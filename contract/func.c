// func.c - see func.h.
#include "contract/func.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define P(ID) LM_PORT_BIT(LM_PORT_##ID)
#define BY_LENGTH LM_FUNC_BY_LENGTH
#define OPEN LM_FUNC_OPEN
#define EXTRA LM_FUNC_EXTRA
const lm_func_info lm_func_table[LM_FUNCS] = {
#define FUNC(ID, NAME, TAKES, GIVES, FORM) {NAME, TAKES, GIVES, FORM},
#include "contract/functions.def"
};

// The number after "micro." as it is printed; 0: none.
static int64_t length_of(const char *text) {
  char *end;
  if (*text < '1' || *text > '9')
    return 0;
  long long n = strtoll(text, &end, 10);
  return *end ? 0 : n;
}

static const char EXTRA_SUFFIX[] = ".extra";

// False: `rest`, the text behind the name of function id, is no suffix of it.
static bool suffix_parse(const char *rest, lm_func_id id, lm_func_key *out) {
  size_t n = strlen(EXTRA_SUFFIX);
  *out = (lm_func_key){.id = id};
  if (lm_func_table[id].form & LM_FUNC_EXTRA && !strncmp(rest, EXTRA_SUFFIX, n)) {
    out->extra = true;
    rest += n;
  }
  if (!*rest)
    return true;
  bool by_length = lm_func_table[id].form & LM_FUNC_BY_LENGTH;
  out->seq = *rest == '.' && by_length ? length_of(rest + 1) : 0;
  return out->seq != 0;
}

lm_func_key lm_func_key_parse(const char *name) {
  lm_func_key key;
  for (int i = 0; i < LM_FUNCS; i++) {
    size_t n = strlen(lm_func_table[i].name);
    if (!strncmp(name, lm_func_table[i].name, n) && suffix_parse(name + n, (lm_func_id)i, &key))
      return key;
  }
  return (lm_func_key){.id = LM_FUNCS};
}

const char *lm_func_key_print(lm_func_key k, char out[LM_FUNC_NAME]) {
  int n =
      snprintf(out, LM_FUNC_NAME, "%s%s", lm_func_table[k.id].name, k.extra ? EXTRA_SUFFIX : "");
  if (k.seq)
    snprintf(out + n, LM_FUNC_NAME - (size_t)n, ".%lld", (long long)k.seq);
  return out;
}
