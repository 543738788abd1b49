// added.c - see added.h. A trie over bytes: nodes have a first child and a next sibling; the root
// has a table of children.
#include "runtime/tokenizer/added.h"

#include <string.h>

#include "runtime/base/utf8.h"

typedef struct {
  unsigned char byte;
  uint32_t child, sibling;
  uint32_t token;
} node; // 0: none; token: 1 + index

struct lm_added {
  node *nodes;
  uint32_t n_nodes, cap_nodes; // [0] is unused
  lm_added_token *tokens;
  uint32_t n, cap;
  uint32_t root[256];
  lm_regex *word; // matches one word character; NULL: not needed
};

lm_added *lm_added_create(void) {
  lm_added *a = lm_alloc(sizeof *a);
  a->n_nodes = 1;
  return a;
}

void lm_added_destroy(lm_added *a) {
  if (!a)
    return;
  lm_regex_destroy(a->word);
  lm_free(a->nodes);
  lm_free(a->tokens);
  lm_free(a);
}

bool lm_added_is_empty(const lm_added *a) {
  return !a->n;
}

static uint32_t node_add(lm_added *a, unsigned char byte) {
  if (a->n_nodes >= a->cap_nodes) {
    a->cap_nodes = a->cap_nodes ? 2 * a->cap_nodes : 64;
    a->nodes = lm_realloc(a->nodes, a->cap_nodes * sizeof *a->nodes);
  }
  a->nodes[a->n_nodes] = (node){.byte = byte};
  return a->n_nodes++;
}

static uint32_t child_find(const lm_added *a, uint32_t first, unsigned char byte) {
  while (first && a->nodes[first].byte != byte)
    first = a->nodes[first].sibling;
  return first;
}

// The child of `parent` (0: the root) for a byte; creates it if necessary.
static uint32_t child_make(lm_added *a, uint32_t parent, unsigned char byte) {
  uint32_t found = parent ? child_find(a, a->nodes[parent].child, byte) : a->root[byte];
  if (found)
    return found;
  found = node_add(a, byte);
  if (!parent)
    return a->root[byte] = found;
  a->nodes[found].sibling = a->nodes[parent].child;
  return a->nodes[parent].child = found;
}

void lm_added_token_add(lm_added *a, const lm_added_token *t) {
  if (!t->n)
    return;
  if (t->single_word && !a->word) {
    const char *w = "[\\w\\x{200c}\\x{200d}]";
    lm_status s = lm_regex_create(w, strlen(w), false, &a->word);
    LM_ASSERT(!s);
  }
  if (a->n == a->cap) {
    a->cap = a->cap ? 2 * a->cap : 16;
    a->tokens = lm_realloc(a->tokens, a->cap * sizeof *a->tokens);
  }
  a->tokens[a->n++] = *t;
  uint32_t at = 0;
  for (size_t i = 0; i < t->n; i++)
    at = child_make(a, at, (unsigned char)t->text[i]);
  a->nodes[at].token = a->n;
}

static const lm_added_token *longest_at(const lm_added *a, const char *text, size_t n) {
  uint32_t best = 0;
  size_t i = 1;
  for (uint32_t at = a->root[(unsigned char)*text]; at;
       at = i < n ? child_find(a, a->nodes[at].child, (unsigned char)text[i++]) : 0)
    if (a->nodes[at].token)
      best = a->nodes[at].token;
  return best ? &a->tokens[best - 1] : NULL;
}

// ---- characters adjacent to a token

static size_t char_before(const char *text, size_t at) {
  do
    at--;
  while (at && ((unsigned char)text[at] & 0xc0) == 0x80);
  return at;
}

static lm_status is_word(const lm_added *a, lm_regex_room *m, const char *text, size_t n, size_t at,
                         bool *out) {
  uint32_t point;
  size_t start, end;
  int len = lm_utf8_decode(text + at, n - at, &point);
  LM_TRY(lm_regex_find(a->word, m, text + at, (size_t)len, 0, &start, &end));
  *out = end > start;
  return NULL;
}

static lm_status stands_alone(const lm_added *a, lm_regex_room *m, const char *text, size_t n,
                              size_t start, size_t end, bool *out) {
  bool before = false, behind = false;
  if (start)
    LM_TRY(is_word(a, m, text, n, char_before(text, start), &before));
  if (end < n)
    LM_TRY(is_word(a, m, text, n, end, &behind));
  *out = !before && !behind;
  return NULL;
}

static bool is_space(uint32_t c) { // White_Space
  return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

static size_t strip_left(const char *text, size_t start, size_t least) {
  for (uint32_t c; start > least;) {
    size_t before = char_before(text, start);
    if (!lm_utf8_decode(text + before, start - before, &c) || !is_space(c))
      break;
    start = before;
  }
  return start < least ? least : start;
}

static size_t strip_right(const char *text, size_t n, size_t end) {
  uint32_t c;
  for (int len; (len = lm_utf8_decode(text + end, n - end, &c)) && is_space(c);)
    end += (size_t)len;
  return end;
}

lm_status lm_added_find(const lm_added *a, lm_regex_room *m, const char *text, size_t n,
                        size_t done, size_t *at, size_t *out_start, size_t *out_end,
                        const lm_added_token **out) {
  *out = NULL;
  for (size_t i = *at; i < n;) {
    const lm_added_token *t =
        a->root[(unsigned char)text[i]] ? longest_at(a, text + i, n - i) : NULL;
    bool taken = t != NULL;
    if (t && t->single_word)
      LM_TRY(stands_alone(a, m, text, n, i, i + t->n, &taken));
    *at = i + (t ? t->n : 1);
    if (taken) {
      *out_start = t->strip_left ? strip_left(text, i, done) : i;
      *out_end = t->strip_right ? strip_right(text, n, *at) : *at;
      *out = t;
      return NULL;
    }
    i = *at;
  }
  return NULL;
}
