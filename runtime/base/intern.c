// intern.c - interned strings: an open-addressing hash table in an arena, at most half full.
#include <string.h>

#include "runtime/base/base.h"

typedef struct {
  const char *text;
  uint64_t hash;
  size_t n;
} slot;

struct lm_intern {
  lm_arena *arena;
  const lm_intern *base;
  slot *slots;
  size_t n;
  size_t cap;
}; // cap: a power of two

lm_intern *lm_intern_create(lm_arena *a, const lm_intern *base) {
  lm_intern *t = LM_NEW(a, lm_intern);
  t->arena = a;
  t->base = base;
  t->cap = 256;
  t->slots = LM_NEW_N(a, slot, t->cap);
  return t;
}

// The slot that contains the text, or the free slot for it.
static slot *slot_find(slot *slots, size_t cap, const char *s, size_t n, uint64_t hash) {
  for (size_t i = hash & (cap - 1);; i = (i + 1) & (cap - 1)) {
    slot *x = &slots[i];
    if (!x->text || (x->hash == hash && x->n == n && !memcmp(x->text, s, n)))
      return x;
  }
}

static void grow(lm_intern *t) {
  size_t cap = t->cap * 2;
  slot *slots = LM_NEW_N(t->arena, slot, cap);
  for (size_t i = 0; i < t->cap; i++) {
    slot *x = &t->slots[i];
    if (x->text)
      *slot_find(slots, cap, x->text, x->n, x->hash) = *x;
  }
  t->slots = slots;
  t->cap = cap;
}

lm_sym lm_intern_n(lm_intern *t, const char *s, size_t n) {
  uint64_t hash = lm_hash(s, n, 0);
  for (const lm_intern *b = t->base; b; b = b->base) {
    const slot *x = slot_find(b->slots, b->cap, s, n, hash);
    if (x->text)
      return x->text;
  }
  slot *x = slot_find(t->slots, t->cap, s, n, hash);
  if (x->text)
    return x->text;
  if (2 * (t->n + 1) > t->cap) {
    grow(t);
    x = slot_find(t->slots, t->cap, s, n, hash);
  }
  t->n++;
  *x = (slot){lm_arena_strndup(t->arena, s, n), hash, n};
  return x->text;
}

lm_sym lm_intern_s(lm_intern *t, const char *s) {
  return lm_intern_n(t, s, strlen(s));
}
