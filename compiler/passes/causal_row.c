// causal_row.c - the row of packed documents on which @probe is analyzed.
//
// The row holds two short documents, a long one whose first 512 positions are consecutive, and a
// short last one. The last two documents continue with a sample of later positions at which masks
// may change: around the constants that the model compares positions with (a window of 4096 ends
// between 4095 and 4096), around twice these constants, and two at each power of two, where a
// factor such as 1.001 makes a difference. Gaps do not matter, because a mask depends on the value
// of a position only.
#include "compiler/passes/causal.h"
#include "runtime/base/diag_code.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  FIRST = 5,
  SECOND = 7,
  LAST = 8,
  SAMPLE = 112,
  MIN_CONSTANT = LM_PROBE_FILLED / 2,
  MAX_CONSTANTS = 12
};
// Positions are 32-bit integers, and so are doubled constants.
static const double LARGEST = 1 << 30;

typedef struct numbers {
  double v[MAX_CONSTANTS];
  int n;
  bool many;
} numbers;
typedef struct finder {
  const probe *p;
  bool *follows; // by value id: depends on pos or seg
  numbers found;
} finder;

static void number_add(numbers *s, double c) {
  c = floor(fabs(c));
  if (!(c > MIN_CONSTANT) || c > LARGEST)
    return; // the consecutive positions cover smaller constants and their doubles
  for (int i = 0; i < s->n; i++)
    if (s->v[i] == c)
      return;
  if (s->n == MAX_CONSTANTS)
    s->many = true;
  else
    s->v[s->n++] = c;
}

static const lm_op *constant(const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_EXPAND || v->def->code == LM_OP_CAST))
    v = v->def->in[0];
  return v->def && v->def->code == LM_OP_CONST ? v->def : NULL;
}

static void visit(lm_op *op, void *user) {
  finder *f = user;
  bool follows = false;
  if (op->body)
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    follows |= f->follows[op->in[i]->id];
  for (uint32_t i = 0; i < op->n_out; i++)
    f->follows[op->out[i]->id] = follows;
  for (uint32_t i = 0; follows && i < op->n_in; i++) {
    const lm_op *c = constant(op->in[i]);
    if (c)
      number_add(&f->found, c->attr.num);
  }
}

static const double *column_of(const probe *p, const lm_value *arg) {
  if (!arg->name || arg->type.rank != 2)
    return NULL;
  switch (lm_column_find(arg->name)) {
  case LM_COLUMN_POS: return p->pos;
  case LM_COLUMN_SEG: return p->seg;
  default: return NULL;
  }
}

static numbers constants(const probe *p, const lm_func *f) {
  finder x = {.p = p, .follows = lm_calloc(p->m->n_values + 1, sizeof *x.follows)};
  for (uint32_t i = 0; i < f->body->n_args; i++)
    x.follows[f->body->args[i]->id] = column_of(p, f->body->args[i]);
  lm_region_walk(f->body, visit, &x);
  lm_free(x.follows);
  return x.found;
}

// ---- the sample

static int compare(const void *x, const void *y) {
  double a = *(const double *)x;
  double b = *(const double *)y;
  return (a > b) - (a < b);
}

// Later positions, ascending and distinct, at most `max` of them.
static int64_t sample(const numbers *c, int64_t max, double *out) {
  int64_t n = 0, kept = 0;
  for (int i = 0; i < c->n; i++)
    for (int k = -1; k <= 1 && n + 2 <= max; k++) {
      out[n++] = c->v[i] + k;
      out[n++] = 2 * c->v[i] + k;
    }
  for (double at = 2 * LM_PROBE_FILLED; at < LARGEST && n + 2 <= max; at *= 2) {
    out[n++] = at;
    out[n++] = at + 1;
  }
  qsort(out, (size_t)n, sizeof *out, compare);
  for (int64_t i = 0; i < n; i++)
    if (!kept || out[i] > out[kept - 1])
      out[kept++] = out[i];
  return kept;
}

// The positions of a document of n tokens: 0, 1, 2, …, then the sampled positions after these.
static void fill_long(const double *later, int64_t found, int64_t n, double *out) {
  int64_t first = 0, filled = n - found;
  for (; first < found && later[first] < (double)filled; filled = n - (found - first))
    first++;
  for (int64_t i = 0; i < filled; i++)
    out[i] = (double)i;
  for (int64_t i = first; i < found; i++)
    out[filled + i - first] = later[i];
}

static int64_t document(probe *p, int64_t at, int64_t n, int number) {
  for (int64_t i = 0; i < n && at + i < p->n_positions; i++) {
    p->pos[at + i] = (double)i;
    p->seg[at + i] = number;
  }
  return at + n < p->n_positions ? at + n : p->n_positions;
}

static lm_tensor column(const probe *p, const lm_value *arg, const double *v) {
  lm_tensor x = {arg->type, p->n_positions, lm_calloc((size_t)p->n_positions, sizeof *x.v)};
  memcpy(x.v, v, (size_t)p->n_positions * sizeof *x.v);
  return x;
}

void lm_probe_row(probe *p, const lm_func *f) {
  numbers c = constants(p, f);
  double later[SAMPLE];
  bool is_long = p->n_positions >= LM_PROBE_FILLED + 2 * SAMPLE; // rows of tests may be short
  int64_t found = is_long ? sample(&c, SAMPLE, later) : 0;
  int64_t at = document(p, document(p, 0, FIRST, 0), SECOND, 1);
  int64_t end = is_long ? p->n_positions - LAST - found : p->n_positions;
  document(p, at, end - at, 2);
  document(p, end, p->n_positions - end, 3);
  fill_long(later, found, end - at, p->pos + at);
  if (is_long)
    fill_long(later, found, p->n_positions - end, p->pos + end);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const double *v = column_of(p, f->body->args[i]);
    if (v)
      lm_fact(p, f->body->args[i])->known = column(p, f->body->args[i], v);
  }
  if (c.many)
    LM_REPORT(p->c, (lm_loc){0}, W0D7, MAX_CONSTANTS, MIN_CONSTANT);
}
