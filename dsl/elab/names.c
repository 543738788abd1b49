// names.c - the names of a scope. A short list is searched linearly; from INDEX_FROM names on, a
// hash index holds the last binding of each name.
#include "dsl/elab/elab.h"

enum {
  INDEX_FROM = 16
};

static uint32_t slot_of(const el_names *s, lm_sym name) {
  // names are interned, so equal names are equal pointers
  uint64_t h = (uint64_t)(uintptr_t)name * 0x9e3779b97f4a7c15u;
  uint32_t at = (uint32_t)(h >> 32) & (s->cap - 1);
  while (s->index[at].name && s->index[at].name != name)
    at = (at + 1) & (s->cap - 1);
  return at;
}

static void index_put(el_names *s, el_bind *b) {
  el_slot *slot = &s->index[slot_of(s, b->name)];
  s->used += !slot->name;
  *slot = (el_slot){b->name, b};
}

// The index holds the last binding of each name; earlier ones are linked by `hides`.
static void index_grow(lm_elab *e, el_names *s) {
  const el_slot *old = s->index;
  uint32_t n = s->cap;
  if (s->n < INDEX_FROM || 2 * (s->used + 1) <= s->cap)
    return;
  s->cap = n ? 2 * n : 4 * INDEX_FROM;
  s->index = LM_NEW_N(e->a, el_slot, s->cap);
  s->used = 0;
  for (uint32_t i = 0; i < n; i++)
    if (old[i].last)
      index_put(s, old[i].last);
  for (el_bind *b = n ? NULL : s->last; b; b = b->up)
    if (!s->index[slot_of(s, b->name)].name)
      index_put(s, b);
}

el_bind *el_names_find(const el_names *s, lm_sym name) {
  if (s->cap)
    return s->index[slot_of(s, name)].last;
  for (el_bind *b = s->last; b; b = b->up)
    if (b->name == name)
      return b;
  return NULL;
}

void el_names_add(lm_elab *e, el_names *s, lm_sym name, el_val v, bool settable) {
  el_bind *b = LM_NEW(e->a, el_bind);
  *b = (el_bind){name, v, settable, s->last, el_names_find(s, name)};
  s->last = b;
  s->n++;
  index_grow(e, s);
  if (s->cap)
    index_put(s, b);
}

void el_names_truncate(el_names *s, const el_bind *last) {
  for (; s->last != last; s->last = s->last->up, s->n--)
    if (s->cap)
      s->index[slot_of(s, s->last->name)].last = s->last->hides;
}
