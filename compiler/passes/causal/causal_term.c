// causal_term.c - operations on sets of positions (causal_reach.h).
#include <string.h>

#include "compiler/passes/causal/causal_reach.h"
#include "compiler/passes/rewrite.h"

enum {
  MAX_ELEMENTS = 1 << 20 // of a term; a larger one is replaced by one interval
};

static int64_t elements(const reacher *r, lm_type t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; i++) {
    n *= lm_axis_size(r->p->m, t.axis[i]);
    if (n > MAX_ELEMENTS)
      return n;
  }
  return n;
}

static term term_new(const reacher *r, lm_type t) {
  size_t n = (size_t)elements(r, t);
  return (term){t, LM_NEW_N(r->a, int32_t, n), LM_NEW_N(r->a, int32_t, n)};
}

// The offset in a tensor of type `from` of element i of a tensor of type `of`, whose axes include
// the axes of `from`.
static int64_t offset_in(const reacher *r, lm_type from, lm_type of, int64_t i) {
  int64_t index[LM_RANK];
  int64_t at = 0;
  for (int k = of.rank - 1; k >= 0; k--) {
    int64_t size = lm_axis_size(r->p->m, of.axis[k]);
    index[k] = i % size;
    i /= size;
  }
  for (int k = 0; k < from.rank; k++)
    at = at * lm_axis_size(r->p->m, from.axis[k]) + index[lm_type_find(of, from.axis[k])];
  return at;
}

static void include(term *out, int64_t at, const term *x, int64_t from) {
  if (x->before[from] > out->before[at])
    out->before[at] = x->before[from];
  if (x->after[from] > out->after[at])
    out->after[at] = x->after[from];
}

static lm_type without(lm_type t, const lm_axis *axes, int n) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++) {
    bool dropped = false;
    for (int k = 0; k < n; k++)
      dropped |= axes[k] == t.axis[i];
    if (!dropped)
      out.axis[out.rank++] = t.axis[i];
  }
  return out;
}

static lm_type with(lm_type t, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    t.axis[t.rank++] = axes[i];
  return t;
}

bool lm_term_has(const term *x, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (lm_type_find(x->type, axes[i]) >= 0)
      return true;
  return false;
}

term lm_term_identity(const reacher *r, lm_axis t, int64_t offset) {
  term x = term_new(r, lm_type_make(LM_INT, &t, 1));
  int64_t n = r->p->n_positions;
  for (int64_t i = 0; i < n; i++) {
    x.before[i] = (int32_t)(n + 1 - i - offset);
    x.after[i] = (int32_t)(i + offset + 1);
  }
  return x;
}

static term whole(const reacher *r, const term *x) {
  term out = term_new(r, (lm_type){0});
  for (int64_t i = 0; i < elements(r, x->type); i++)
    include(&out, 0, x, i);
  return out;
}

term lm_term_spread(const reacher *r, const term *x, lm_type to) {
  if (lm_type_equal(x->type, to))
    return *x;
  if (elements(r, to) > MAX_ELEMENTS || to.rank > LM_RANK)
    return whole(r, x);
  term out = term_new(r, to);
  for (int64_t i = 0; i < elements(r, to); i++)
    include(&out, i, x, offset_in(r, x->type, to, i));
  return out;
}

term lm_term_reduced(const reacher *r, const term *x, const lm_axis *over, int n) {
  if (!lm_term_has(x, over, n))
    return *x;
  term out = term_new(r, without(x->type, over, n));
  for (int64_t i = 0; i < elements(r, x->type); i++)
    include(&out, offset_in(r, out.type, x->type, i), x, i);
  return out;
}

// x with `axes` as its last axes, in their order; a scalar if it would be too large.
static term with_last(const reacher *r, const term *x, const lm_axis *axes, int n) {
  return lm_term_spread(r, x, with(without(x->type, axes, n), axes, n));
}

term lm_term_slice(const reacher *r, const term *x, const lm_attr *a) {
  term in = with_last(r, x, a->axes, 1);
  int64_t size = lm_axis_size(r->p->m, a->axes[0]);
  int64_t n = a->n_to ? lm_axis_size(r->p->m, a->to[0]) : 1;
  if (!in.type.rank)
    return in;
  term out = term_new(r, with(without(in.type, a->axes, 1), a->to, a->n_to));
  for (int64_t i = 0; i < elements(r, out.type); i++)
    include(&out, i, &in, i / n * size + a->imm[0] + a->imm[1] * (i % n));
  return out;
}

term lm_term_pad(const reacher *r, const term *x, lm_axis from, lm_axis to, int64_t first,
                 int64_t step) {
  term in = with_last(r, x, &from, 1);
  lm_type type = with(without(in.type, &from, 1), &to, 1);
  int64_t n = lm_axis_size(r->p->m, from);
  if (!in.type.rank || elements(r, type) > MAX_ELEMENTS)
    return whole(r, x);
  term out = term_new(r, type);
  for (int64_t i = 0; i < elements(r, in.type); i++)
    include(&out, i / n * lm_axis_size(r->p->m, to) + first + step * (i % n), &in, i);
  return out;
}

term lm_term_view(const reacher *r, const term *x, const lm_attr *a) {
  term in = with_last(r, x, a->axes, a->n_axes);
  if (in.type.rank)
    in.type = with(without(in.type, a->axes, a->n_axes), a->to, a->n_to);
  return in;
}

term lm_term_taps(const reacher *r, const term *x, const lm_attr *a) {
  term in = with_last(r, x, a->axes, 1);
  lm_type type = with(without(in.type, a->axes, 1), a->to, 2);
  int64_t size = lm_axis_size(r->p->m, a->axes[0]);
  int64_t taps = lm_axis_size(r->p->m, a->to[1]);
  int64_t n = lm_axis_size(r->p->m, a->to[0]) * taps;
  if (!in.type.rank || elements(r, type) > MAX_ELEMENTS)
    return whole(r, x);
  term out = term_new(r, type);
  for (int64_t i = 0; i < elements(r, type); i++) {
    int64_t at = i % n / taps * a->imm[1] + i % taps * a->imm[2] - a->imm[0];
    if (at >= 0 && at < size)
      include(&out, i, &in, i / n * size + at);
  }
  return out;
}

term lm_term_window(const reacher *r, const term *x, lm_axis s, lm_axis t, const int64_t *first,
                    const int64_t *last) {
  term in = with_last(r, x, &s, 1);
  if (!in.type.rank || lm_type_find(in.type, t) >= 0)
    return lm_term_reduced(r, &in, &s, 1);
  int64_t n = lm_axis_size(r->p->m, t);
  int64_t size = lm_axis_size(r->p->m, s);
  term out = term_new(r, with(without(in.type, &s, 1), &t, 1));
  for (int64_t i = 0; i < elements(r, out.type); i++)
    for (int64_t at = first[i % n]; at <= last[i % n]; at++)
      include(&out, i, &in, i / n * size + at);
  return out;
}

// ---- unions

static bool is_within(const term *x, const term *y, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (x->before[i] > y->before[i] || x->after[i] > y->after[i])
      return false;
  return true;
}

static term joined(const reacher *r, const term *x, const term *y) {
  int64_t n = elements(r, x->type);
  term same = lm_term_spread(r, y, x->type);
  if (is_within(&same, x, n))
    return *x;
  if (is_within(x, &same, n))
    return same;
  term out = term_new(r, x->type);
  for (int64_t i = 0; i < n; i++) {
    include(&out, i, x, i);
    include(&out, i, &same, i);
  }
  return out;
}

static int term_find(const reach *x, lm_type t) {
  for (int i = 0; i < x->n; i++)
    if (lm_type_same_axes(x->v[i].type, t))
      return i;
  return -1;
}

void lm_reach_add(const reacher *r, reach *x, term t) {
  int i = term_find(x, t.type);
  if (i < 0 && x->n == MAX_TERMS) {
    reach all = {
        .n = 0,
        .tokens = x->tokens,
        .targets = x->targets,
        .cause = x->cause,
    };
    for (int k = 0; k < x->n; k++)
      lm_reach_add(r, &all, whole(r, &x->v[k]));
    *x = all;
    t = whole(r, &t);
    i = term_find(x, t.type);
  }
  if (i < 0)
    x->v[x->n++] = t;
  else
    x->v[i] = joined(r, &x->v[i], &t);
}

void lm_reach_join(const reacher *r, reach *x, const reach *y) {
  for (int i = 0; i < y->n; i++)
    lm_reach_add(r, x, y->v[i]);
  x->tokens |= y->tokens;
  x->targets |= y->targets;
  if (!x->cause)
    x->cause = y->cause;
}

// x with the axes of the grid that it lacks.
static term on_grid(const reacher *r, const term *x, lm_type grid) {
  lm_type all = x->type;
  for (int i = 0; i < grid.rank; i++)
    if (lm_type_find(all, grid.axis[i]) < 0 && all.rank < LM_RANK)
      all.axis[all.rank++] = grid.axis[i];
  return lm_term_spread(r, x, all);
}

static bool is_masked(const term *x, lm_type grid, lm_axis t) {
  bool other = false;
  for (int i = 0; i < grid.rank; i++)
    other |= grid.axis[i] != t && lm_type_find(x->type, grid.axis[i]) >= 0;
  return other && lm_type_find(x->type, t) >= 0;
}

void lm_reach_mask(const reacher *r, reach *x, const proof *known, lm_axis t, bool nonzero) {
  reach out = {
      .n = 0,
      .tokens = x->tokens,
      .targets = x->targets,
      .cause = x->cause,
  };
  if (!known->zero || lm_type_find(known->grid_type, t) < 0)
    return;
  for (int i = 0; i < x->n; i++) {
    term in = x->v[i];
    term kept = in;
    if (is_masked(&in, known->grid_type, t))
      in = on_grid(r, &in, known->grid_type);
    if (lm_type_subset(known->grid_type, in.type) && in.type.rank) {
      kept = term_new(r, in.type);
      for (int64_t k = 0; k < elements(r, in.type); k++)
        if (known->zero[offset_in(r, known->grid_type, in.type, k)] != nonzero)
          include(&kept, k, &in, k);
    }
    lm_reach_add(r, &out, kept);
  }
  *x = out;
}

static int64_t least_of(const int64_t *steps, int n, int64_t x) {
  int i = 0;
  while (i + 1 < n && steps[i] < x)
    i++;
  return steps[i];
}

// The next larger interval that a loop may reach at position t: from the start of the document, or
// of the row; up to t, to the end of its prompt, of the document, or of the row.
static void widen_at(const reacher *r, term *x, int64_t t) {
  int64_t n = r->p->n_positions;
  int64_t end = t;
  while (end + 1 < n && r->start[end + 1] == r->start[t])
    end++;
  const int64_t before[] = {n + 1 - r->start[t], n + 1};
  const int64_t after[] = {t + 1, r->p->last[t] + 1, end + 1, n};
  x->before[t] = (int32_t)least_of(before, LM_COUNT(before), x->before[t]);
  x->after[t] = (int32_t)least_of(after, LM_COUNT(after), x->after[t]);
}

static bool is_along_positions(const reacher *r, lm_type t) {
  return t.rank == 1 && (r->p->is_position[t.axis[0]] || r->p->is_history[t.axis[0]]);
}

// Widens the intervals of `now` that are larger than before.
static void widen_changed(const reacher *r, const term *old, term *now) {
  term out = term_new(r, now->type);
  bool along = is_along_positions(r, now->type);
  for (int64_t i = 0; i < elements(r, now->type); i++) {
    bool grown = now->before[i] > old->before[i] || now->after[i] > old->after[i];
    include(&out, i, now, i);
    if (grown && along)
      widen_at(r, &out, i);
    else if (grown) {
      out.before[i] = (int32_t)r->p->n_positions + 1;
      out.after[i] = (int32_t)r->p->n_positions;
    }
  }
  *now = out;
}

bool lm_reach_grow(const reacher *r, reach *x, const reach *y, bool widen) {
  reach old = *x;
  bool changed = false;
  lm_reach_join(r, x, y);
  for (int i = 0; i < x->n; i++) {
    int k = term_find(&old, x->v[i].type);
    if (k >= 0 && is_within(&x->v[i], &old.v[k], elements(r, x->v[i].type)))
      continue;
    changed = true;
    if (widen && k >= 0)
      widen_changed(r, &old.v[k], &x->v[i]);
  }
  return changed || old.tokens != x->tokens || old.targets != x->targets;
}

// ---- along one axis

term lm_reach_along(const reacher *r, const reach *x, lm_axis t) {
  reach all = {.n = 0};
  lm_type one = lm_type_make(LM_INT, &t, 1);
  lm_reach_add(r, &all, term_new(r, one));
  for (int i = 0; i < x->n; i++) {
    lm_type others = without(x->v[i].type, &t, 1);
    term along = lm_term_reduced(r, &x->v[i], others.axis, others.rank);
    lm_reach_add(r, &all, lm_term_spread(r, &along, one));
  }
  return all.v[0];
}

static term kept(const reacher *r, const term *x, lm_axis t, const bool *keep) {
  term in = with_last(r, x, &t, 1);
  if (!in.type.rank)
    return in;
  int64_t n = lm_axis_size(r->p->m, t);
  term out = term_new(r, in.type);
  for (int64_t i = 0; i < elements(r, in.type); i++)
    if (keep[i % n])
      include(&out, i, &in, i);
  return out;
}

void lm_reach_keep(const reacher *r, reach *x, lm_axis t, const bool *keep) {
  reach out = {
      .n = 0,
      .tokens = x->tokens,
      .targets = x->targets,
      .cause = x->cause,
  };
  for (int i = 0; i < x->n; i++) {
    bool limited = !x->v[i].type.rank || lm_type_find(x->v[i].type, t) >= 0;
    lm_reach_add(r, &out, limited ? kept(r, &x->v[i], t, keep) : x->v[i]);
  }
  *x = out;
}

// v in another layout and, if `cast`, of any type, which may round it but not to 0. In f32 and f64
// indices of taps are exact.
static const lm_value *bare(const lm_value *v, bool cast) {
  for (;;) {
    bool wide = v->type.dtype == LM_F32 || v->type.dtype == LM_F64 || v->type.dtype == LM_INT;
    bool layout = lm_op_is(v, LM_OP_EXPAND) || lm_op_is(v, LM_OP_PERMUTE);
    if (!layout && !(lm_op_is(v, LM_OP_CAST) && (cast || wide)))
      return v;
    v = v->def->in[0];
  }
}

void lm_reach_index(const reacher *r, reach *x, const lm_value *v, bool nonzero) {
  double at = 0;
  v = bare(v, true);
  bool equal = lm_op_is(v, LM_OP_EQ) && lm_const_of(bare(v->def->in[1], false), &at);
  if (equal)
    v = bare(v->def->in[0], false);
  lm_axis m = lm_op_is(v, LM_OP_IOTA) ? v->type.axis[0] : 0;
  if (!m || r->p->is_position[m] || r->p->is_history[m])
    return;
  int64_t n = lm_axis_size(r->p->m, m);
  bool *keep = LM_NEW_N(r->a, bool, n);
  for (int64_t i = 0; i < n; i++)
    keep[i] = (equal == ((double)i == at)) == nonzero;
  lm_reach_keep(r, x, m, keep);
}
