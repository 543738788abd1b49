// reader.h - reads words of a plan's text, for the files that implement lm_plan_parse. A function
// sets `failed` if the text is another one.
#ifndef LM_PLAN_READER_H
#define LM_PLAN_READER_H
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/plan.h"

enum {
  MAX_ITEMS = 1 << 20
};

typedef struct reader {
  lm_arena *a;
  lm_plan *p;
  const char *at, *end; // of the line
  int line;
  lm_plan_func *f; // the function being read
  uint32_t cap_params, cap_frozen, cap_states;
  uint32_t cap_kernels, cap_funcs, cap_steps, cap_in, cap_out, cap_live;
  int open[LM_PLAN_DEPTH], depth; // LOOP steps without their END
  lm_plan_param *param;           // being read
  lm_plan_piece *pieces;          // of it
  uint32_t cap_pieces;
  bool failed;
} reader;

// ---- words of a line

static inline void blanks(reader *r) {
  while (r->at < r->end && *r->at == ' ')
    r->at++;
}

static inline bool take(reader *r, const char *text) {
  size_t n = strlen(text);
  blanks(r);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n))
    return false;
  r->at += n;
  return true;
}

static inline void expect(reader *r, const char *text) {
  if (!take(r, text))
    r->failed = true;
}

static inline const char *word(reader *r, const char *stop) {
  blanks(r);
  const char *from = r->at;
  while (r->at < r->end && !strchr(stop, *r->at))
    r->at++;
  if (r->at == from)
    r->failed = true;
  return lm_arena_strndup(r->a, from, (size_t)(r->at - from));
}

static inline const char *rest(reader *r) {
  blanks(r);
  const char *s = lm_arena_strndup(r->a, r->at, (size_t)(r->end - r->at));
  r->at = r->end;
  return s;
}

static inline int64_t number(reader *r) {
  char text[24] = {0};
  size_t n = 0;
  blanks(r);
  while (r->at < r->end && n < sizeof text - 1 && strchr(n ? "0123456789" : "+-0123456789", *r->at))
    text[n++] = *r->at++;
  if (!n || !strpbrk(text, "0123456789"))
    r->failed = true;
  return strtoll(text, NULL, 10);
}

static inline int choice(reader *r, const char *const *names, int n) {
  const char *w = word(r, " [:");
  for (int i = 0; i < n; i++)
    if (!strcmp(names[i], w))
      return i;
  r->failed = true;
  return 0;
}

// Appends to an array whose count is an int.
#define ADD(r, items, n, cap)                                                                      \
  (*(void **)&(items) = lm_grow((r)->a, (items), (uint32_t)(n), &(cap), sizeof *(items)),          \
   &(items)[(n)++])

// The group of a mesh's axis by its name (lm_plan_comm), which ends at a character of `stop`.
static inline int group_named(reader *r, const char *stop) {
  const char *name = word(r, stop);
  int k = r->p->mesh.n;
  while (k && strcmp(r->p->mesh.axis[k - 1].name, name))
    k--;
  if (!k && strcmp(name, "all"))
    r->failed = true;
  return k;
}

// ---- parse_param.c

// Read the rest of the line of a parameter, and of a piece of the one that was read last.
void lm_plan_param_read(reader *r, lm_plan_param *x, lm_arena_id arena);
void lm_plan_piece_read(reader *r);
#endif
