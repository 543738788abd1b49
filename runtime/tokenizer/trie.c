// trie.c - a node has a list of children; if there are many, a table by their bytes.
#include "runtime/tokenizer/trie.h"

#include <string.h>

enum {
  LIST_MAX = 8 // children of a node without a table
};
typedef struct {
  unsigned char byte;
  unsigned char listed; // children in the list
  bool dense;
  uint32_t child, sibling; // 0: none; child: the first of the list, or the number of the table
  int32_t value;           // -1: no key ends here
} node;
typedef uint32_t table[256]; // children by byte; 0: none

struct lm_trie {
  node *nodes; // [0] is the root
  uint32_t n;
  uint32_t cap;
  table *tables;
  uint32_t n_tables;
  uint32_t cap_tables;
};

static uint32_t node_add(lm_trie *t, unsigned char byte) {
  if (t->n == t->cap) {
    t->cap = t->cap ? 2 * t->cap : 64;
    t->nodes = lm_realloc(t->nodes, t->cap * sizeof *t->nodes);
  }
  t->nodes[t->n] = (node){
      .byte = byte,
      .value = -1,
  };
  return t->n++;
}

lm_trie *lm_trie_create(void) {
  lm_trie *t = lm_alloc(sizeof *t);
  node_add(t, 0);
  return t;
}

void lm_trie_destroy(lm_trie *t) {
  if (!t)
    return;
  lm_free(t->nodes);
  lm_free(t->tables);
  lm_free(t);
}

// Moves the children of a node from its list to a table.
static void table_make(lm_trie *t, node *x) {
  if (t->n_tables == t->cap_tables) {
    t->cap_tables = t->cap_tables ? 2 * t->cap_tables : 16;
    t->tables = lm_realloc(t->tables, t->cap_tables * sizeof *t->tables);
  }
  uint32_t *to = t->tables[t->n_tables];
  memset(to, 0, sizeof(table));
  for (uint32_t at = x->child; at; at = t->nodes[at].sibling)
    to[t->nodes[at].byte] = at;
  x->child = t->n_tables++;
  x->dense = true;
}

static uint32_t child_make(lm_trie *t, uint32_t parent, unsigned char byte) {
  uint32_t found = lm_trie_step(t, parent, byte);
  if (found)
    return found;
  found = node_add(t, byte);
  node *x = &t->nodes[parent];
  if (!x->dense && x->listed == LIST_MAX)
    table_make(t, x);
  if (x->dense)
    return t->tables[x->child][byte] = found;
  t->nodes[found].sibling = x->child;
  x->listed++;
  return x->child = found;
}

void lm_trie_set(lm_trie *t, const char *key, size_t n, int32_t value) {
  LM_ASSERT(n && value >= 0);
  uint32_t at = LM_TRIE_ROOT;
  for (size_t i = 0; i < n; i++)
    at = child_make(t, at, (unsigned char)key[i]);
  t->nodes[at].value = value;
}

uint32_t lm_trie_step(const lm_trie *t, uint32_t parent, unsigned char byte) {
  const node *x = &t->nodes[parent];
  if (x->dense)
    return t->tables[x->child][byte];
  uint32_t at = x->child;
  while (at && t->nodes[at].byte != byte)
    at = t->nodes[at].sibling;
  return at;
}

int32_t lm_trie_value(const lm_trie *t, uint32_t at) {
  return t->nodes[at].value;
}

int32_t lm_trie_find(const lm_trie *t, const char *key, size_t n) {
  uint32_t at = LM_TRIE_ROOT;
  for (size_t i = 0; i < n; i++) {
    at = lm_trie_step(t, at, (unsigned char)key[i]);
    if (at == LM_TRIE_ROOT)
      return -1;
  }
  return lm_trie_value(t, at);
}

int32_t lm_trie_longest(const lm_trie *t, uint32_t from, const char *text, size_t n,
                        size_t *out_n) {
  int32_t best = -1;
  uint32_t at = from;
  *out_n = 0;
  for (size_t i = 0; i < n; i++) {
    at = lm_trie_step(t, at, (unsigned char)text[i]);
    if (at == LM_TRIE_ROOT)
      break;
    if (lm_trie_value(t, at) < 0)
      continue;
    best = lm_trie_value(t, at);
    *out_n = i + 1;
  }
  return best;
}
