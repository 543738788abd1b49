// charsmap.c - see charsmap.h. A unit of the double array holds the label of the edge that leads to
// it, whether its node ends a string, and the offset from it to its children; the unit at the
// offset itself (label 0) holds the value.
#include "runtime/tokenizer/charsmap.h"

#include <string.h>

#include "runtime/base/utf8.h"

struct lm_charsmap {
  uint32_t *units;
  size_t n_units;
  char *text; // the replacements; the last byte is 0
  size_t n_text;
};

static uint32_t u32_read(const char *p) {
  const unsigned char *b = (const unsigned char *)p;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

lm_status lm_charsmap_create(const char *map, size_t n, lm_charsmap **out) {
  *out = NULL;
  size_t trie = n >= 4 ? u32_read(map) : 0;
  if (trie < 4 || trie % 4 || trie > n - 4 || (n > 4 + trie && map[n - 1]))
    return lm_fail(LM_USER, "the character map of %zu bytes is malformed", n);
  lm_charsmap *c = lm_alloc(sizeof *c);
  c->n_units = trie / 4;
  c->units = lm_calloc(c->n_units, sizeof *c->units);
  for (size_t i = 0; i < c->n_units; i++)
    c->units[i] = u32_read(map + 4 + 4 * i);
  c->n_text = n - 4 - trie;
  c->text = lm_alloc(c->n_text + 1);
  memcpy(c->text, map + 4 + trie, c->n_text);
  *out = c;
  return NULL;
}

void lm_charsmap_destroy(lm_charsmap *c) {
  if (!c)
    return;
  lm_free(c->units);
  lm_free(c->text);
  lm_free(c);
}

static uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}
static uint32_t label_of(uint32_t unit) { // units with values have labels over 255
  return unit & (1u << 31 | 0xff);
}
static bool ends_string(uint32_t unit) {
  return unit >> 8 & 1;
}

size_t lm_charsmap_find(const lm_charsmap *c, const char *text, size_t n, bool longest,
                        const char **out, size_t *out_n) {
  size_t found = 0;
  uint32_t at = offset_of(c->units[0]);
  for (size_t i = 0; i < n && (longest || !found); i++) {
    unsigned char byte = (unsigned char)text[i];
    at ^= byte;
    if (!byte || at >= c->n_units || label_of(c->units[at]) != byte)
      break;
    bool ends = ends_string(c->units[at]);
    at ^= offset_of(c->units[at]);
    if (!ends || at >= c->n_units)
      continue;
    size_t start = c->units[at] & ~(1u << 31);
    bool between = i + 1 == n || !lm_utf8_continues(text[i + 1]); // characters
    if (start >= c->n_text || !between)
      continue;
    const char *made = c->text + start;
    if (lm_utf8_valid(made, strlen(made)) != strlen(made))
      continue;
    *out = made;
    *out_n = strlen(made);
    found = i + 1;
  }
  return found;
}
