// causal_row.c - the row of packed documents on which @probe is analyzed.
//
// The row holds two short documents, a long one whose first 512 positions are consecutive, a short
// one, and documents of two positions; one position of padding ends it. The third and the fourth
// document continue with a sample of later positions at which masks may change: around the
// constants that the model compares positions with (a window of 4096 ends between 4095 and 4096),
// around twice these constants, two at each power of two, where a factor such as 1.001 makes a
// difference, and around the sums, differences, products, quotients and roots of constants, where
// `ps + 1000 == 4000` changes. Gaps do not matter, because a mask depends on the value of a
// position only. On a further row of a mask without a proof, the sample of the third document is
// the next 512 consecutive positions instead. The documents of two positions have the indices 4, 5,
// …, and those around the constants.
//
// If the model takes the column `prompt`, the first documents have a prompt of 3, 0 and 40
// positions, one is a prompt as a whole, the next one begins with a prompt of 1, and so on.
#include "compiler/passes/causal/causal.h"
#include "runtime/base/diag_code.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  FIRST = 5,
  SECOND = 7,
  LAST = 8,
  SAMPLE = 112,
  DOCUMENTS = 48, // of two positions
  CONSECUTIVE = 6,
  PADDING = 1,
  MIN_CONSTANT = LM_PROBE_FILLED / 2,
  MAX_CONSTANTS = 12,
  SMALL = 3 * MAX_CONSTANTS, // sampled positions of the fourth document
  LONG_ROW = FIRST + SECOND + LM_PROBE_FILLED + 2 * SAMPLE + LAST + SMALL + 2 * DOCUMENTS + PADDING
};
// Positions are 32-bit integers, and so are doubled constants.
static const double LARGEST = 1 << 30;

typedef struct list {
  double v[MAX_CONSTANTS];
  int n;
  bool full; // a further constant was left out
} list;
// The consecutive positions cover the small constants and their doubles.
typedef struct numbers {
  list small, large;
} numbers;
typedef struct finder {
  const probe *p;
  bool *follows; // by value id: depends on pos or seg
  numbers found;
} finder;

static void list_add(list *s, double c) {
  for (int i = 0; i < s->n; i++)
    if (s->v[i] == c)
      return;
  if (s->n == MAX_CONSTANTS)
    s->full = true;
  else
    s->v[s->n++] = c;
}

static void number_add(numbers *s, double c) {
  c = floor(fabs(c));
  if (c > MIN_CONSTANT && c <= LARGEST)
    list_add(&s->large, c);
  else if (c > 1 && c <= MIN_CONSTANT)
    list_add(&s->small, c);
}

static const lm_op *constant(const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_EXPAND || v->def->code == LM_OP_CAST))
    v = v->def->in[0];
  return v->def && v->def->code == LM_OP_CONST ? v->def : NULL;
}

static void causal_row_visit(lm_op *op, void *user) {
  finder *f = user;
  bool follows = false;
  for (uint32_t i = 0; op->code == LM_OP_SCAN && i < op->n_in; i++)
    f->follows[op->body->args[i]->id] = f->follows[op->in[i]->id];
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

bool lm_is_prompt(const lm_value *v) {
  const char *name = v->name ? lm_column_name_of(v->name) : NULL;
  return !v->def && name && lm_column_is_prompt(name);
}

static const double *column_of(const probe *p, const lm_value *arg) {
  if (!arg->name || arg->type.rank != 2)
    return NULL;
  if (lm_is_prompt(arg))
    return p->prompt;
  switch (lm_column_find(arg->name)) {
  case LM_COLUMN_POS: return p->pos;
  case LM_COLUMN_SEG: return p->seg;
  default: return NULL;
  }
}

static numbers constants(const probe *p, const lm_func *f) {
  finder x = {
      .p = p,
      .follows = lm_calloc(p->m->n_values + 1, sizeof *x.follows),
  };
  for (uint32_t i = 0; i < f->body->n_args; i++)
    x.follows[f->body->args[i]->id] = column_of(p, f->body->args[i]);
  lm_region_walk(f->body, causal_row_visit, &x);
  lm_free(x.follows);
  return x.found;
}

// ---- the sample

static int compare(const void *x, const void *y) {
  double a = *(const double *)x;
  double b = *(const double *)y;
  return (a > b) - (a < b);
}

enum {
  LAST_DOCUMENT = 3 // index of the last document of the fixed ones
};

typedef struct picked {
  double *v;
  int64_t n;
  int64_t max;
} picked;

static void pick(picked *p, double x) {
  if (p->n < p->max)
    p->v[p->n++] = x;
}

static void pick_around(picked *p, double x) {
  for (int k = -1; k <= 1; k++)
    pick(p, floor(x) + k);
}

static void pick_derived(picked *p, double x) {
  if (x > MIN_CONSTANT && x <= LARGEST)
    pick_around(p, x);
}

static void pick_pair(picked *p, double a, double b) {
  pick_derived(p, a + b);
  pick_derived(p, fabs(a - b));
  pick_derived(p, a * b);
  pick_derived(p, a / b);
}

// Adds the sum, difference, product, quotient and root of each pair of constants.
static void pick_pairs(picked *p, const numbers *c) {
  for (int i = 0; i < c->large.n; i++) {
    double a = c->large.v[i];
    pick_derived(p, sqrt(a));
    for (int k = 0; k < i; k++)
      pick_pair(p, fmax(a, c->large.v[k]), fmin(a, c->large.v[k]));
    for (int k = 0; k < c->small.n; k++)
      pick_pair(p, a, c->small.v[k]);
  }
}

// Sorts, and leaves only distinct values; returns their number.
static int64_t distinct(picked *p) {
  int64_t kept = 0;
  qsort(p->v, (size_t)p->n, sizeof *p->v, compare);
  for (int64_t i = 0; i < p->n; i++)
    if (!kept || p->v[i] > p->v[kept - 1])
      p->v[kept++] = p->v[i];
  return kept;
}

// Later positions, ascending and distinct, at most `max` of them.
static int64_t sample(const numbers *c, int64_t max, double *out) {
  picked p = {out, 0, max};
  for (int i = 0; i < c->large.n; i++) {
    pick_around(&p, c->large.v[i]);
    pick_around(&p, 2 * c->large.v[i]);
  }
  for (double at = 2 * LM_PROBE_FILLED; at < LARGEST; at *= 2) {
    pick(&p, at);
    pick(&p, at + 1);
  }
  pick_pairs(&p, c);
  return distinct(&p);
}

// Those of the fourth document: `later`, and before these the positions around small constants.
static int64_t sample_last(const numbers *c, const double *later, int64_t n_later, double *out) {
  picked p = {out, 0, SMALL};
  for (int i = 0; i < c->small.n; i++)
    pick_around(&p, c->small.v[i]);
  p.max += n_later;
  for (int64_t i = 0; i < n_later; i++)
    pick(&p, later[i]);
  return distinct(&p);
}

// Indices of the documents of two positions, ascending and distinct.
static int64_t sample_documents(const numbers *c, double *out) {
  picked p = {out, 0, DOCUMENTS};
  double some[DOCUMENTS];
  picked around = {some, 0, DOCUMENTS};
  for (int i = 0; i < CONSECUTIVE; i++)
    pick(&p, LAST_DOCUMENT + 1 + i);
  for (int i = 0; i < c->small.n; i++)
    pick_around(&around, c->small.v[i]);
  for (int i = 0; i < c->large.n; i++)
    pick_around(&around, c->large.v[i]);
  for (int64_t i = 0; i < around.n; i++)
    if (some[i] > LAST_DOCUMENT)
      pick(&p, some[i]);
  return distinct(&p);
}

// The positions of a document of n tokens: 0, 1, 2, …, then the sampled positions after these.
static void fill_long(const double *later, int64_t found, int64_t n, double *out) {
  int64_t first = 0;
  int64_t filled = n - found;
  for (; first < found && later[first] < (double)filled; filled = n - (found - first))
    first++;
  for (int64_t i = 0; i < filled; i++)
    out[i] = (double)i;
  for (int64_t i = first; i < found; i++)
    out[filled + i - first] = later[i];
}

static int64_t document(probe *p, int64_t at, int64_t n, double index) {
  for (int64_t i = 0; i < n && at + i < p->n_positions; i++) {
    p->pos[at + i] = (double)i;
    p->seg[at + i] = index;
  }
  return at + n < p->n_positions ? at + n : p->n_positions;
}

// The long document ends at `end`.
static void row_fill(probe *p, int64_t end) {
  int64_t at = document(p, document(p, 0, FIRST, 0), SECOND, 1);
  document(p, at, end - at, LAST_DOCUMENT - 1);
}

// The sampled positions of a row, ascending and distinct; of a further row the positions from
// p->from on.
static int64_t later_positions(const probe *p, const numbers *c, double *out) {
  if (!p->from)
    return sample(c, SAMPLE, out);
  for (int64_t i = 0; i < LM_PROBE_FILLED; i++)
    out[i] = (double)(p->from + i);
  return LM_PROBE_FILLED;
}

static void row_sample(probe *p, const numbers *c) {
  double later[LM_PROBE_FILLED];
  double last_ones[SMALL + SAMPLE];
  double indices[DOCUMENTS];
  int64_t n_later = later_positions(p, c, later);
  int64_t n_last = sample_last(c, later, p->from ? 0 : n_later, last_ones);
  int64_t n_documents = sample_documents(c, indices);
  int64_t last = p->n_positions - PADDING - 2 * n_documents - LAST - n_last;
  row_fill(p, last);
  fill_long(later, n_later, last - FIRST - SECOND, p->pos + FIRST + SECOND);
  int64_t at = document(p, last, LAST + n_last, LAST_DOCUMENT);
  fill_long(last_ones, n_last, LAST + n_last, p->pos + last);
  for (int64_t i = 0; i < n_documents; i++)
    at = document(p, at, 2, indices[i]);
  document(p, at, PADDING, lm_column_table[LM_COLUMN_SEG].min);
}

static lm_tensor column(const probe *p, const lm_value *arg, const double *v) {
  lm_tensor x = {arg->type, p->n_positions, lm_calloc((size_t)p->n_positions, sizeof *x.v)};
  memcpy(x.v, v, (size_t)p->n_positions * sizeof *x.v);
  return x;
}

// ---- prompts

static bool takes_prompt(const lm_func *f) {
  for (uint32_t i = 0; i < f->body->n_args; i++)
    if (lm_is_prompt(f->body->args[i]))
      return true;
  return false;
}

// The positions of the prompt of a document of n positions: none, all of them, or some.
static int64_t prompt_of(int64_t document, int64_t n) {
  enum {
    SOME = 40
  };
  static const int64_t some[] = {3, 0, SOME, INT64_MAX, 1};
  int64_t k = some[document % (int64_t)LM_COUNT(some)];
  return k < n ? k : n;
}

static void prompts_fill(probe *p) {
  int64_t documents = 0;
  int64_t n;
  for (int64_t first = 0; first < p->n_positions; first += n, documents++) {
    for (n = 1; first + n < p->n_positions && p->seg[first + n] == p->seg[first];)
      n++;
    int64_t inside = p->prompt && p->seg[first] >= 0 ? prompt_of(documents, n) : 0;
    for (int64_t i = 0; i < n; i++) {
      p->last[first + i] = first + (p->whole ? n - 1 : i < inside ? inside - 1 : i);
      if (i < inside)
        p->prompt[first + i] = 1;
    }
  }
}

void lm_probe_row(probe *p, const lm_func *f) {
  if (takes_prompt(f))
    p->prompt = lm_calloc((size_t)p->n_positions, sizeof *p->prompt);
  numbers c = constants(p, f);
  if (p->n_positions < LONG_ROW)
    row_fill(p, p->n_positions); // rows of tests are short
  else
    row_sample(p, &c);
  prompts_fill(p);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const double *v = column_of(p, f->body->args[i]);
    if (v)
      lm_fact(p, f->body->args[i])->known = column(p, f->body->args[i], v);
  }
  p->left_out = c.large.full;
}

void lm_probe_row_warn(const probe *p) {
  const lm_causality *found = &p->m->causality;
  if (p->left_out && found->proved < found->relations)
    LM_REPORT(p->c, (lm_loc){0}, W0D7, MAX_CONSTANTS, MIN_CONSTANT);
}
