// lookahead.c - refuses a model in which a place sees places that come after it; looks at @probe and removes it.
//
// @probe is @apply over one packed row of PLACES places. Whatever follows from its integer columns is computed (positions,
// documents, masks). Of every other value that has a place t, each cell (t, s) with a place s of the history is either
// unknown or a constant, as a mask makes it:
//   %m = ge %pos_t, %pos_s                known
//   %a = select %m, %scores, -1e30        cells where %m is false: -1e30
//   %e = exp(%a - %max)                   … : 0, but 1 in a row of which all cells are: its maximum is -1e30 as well
// Reductions over s must find a constant in every cell with s after t, and products over s a zero. Where @decode exists,
// what joins places in any other way (a sum over t, a shift along t, numbers of places) is an error too, as one place
// at a time it would give something else.
#include <math.h>
#include <string.h>
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

enum { MOST_KNOWN = 1 << 20 };
#define NEVER (-1e29)   // what a masked score is at most

// known.v, cell: NULL where nothing is known. refused: made of what a reduction over s was refused for.
typedef struct fact { lm_tensor known; double *cell; bool refused; } fact;

typedef struct probe {
  lm_module *m;
  lm_ctx *c;
  fact *facts; uint32_t n_facts;
  bool *is_place, *is_past;        // by axis: t and its other names; s
  int64_t places;
  bool decoded, ok;
} probe;

static bool has(const bool *set, lm_type t, lm_axis *out) {
  for (int i = 0; i < t.rank; i++)
    if (set[t.axis[i]]) return *out = t.axis[i], true;
  return false;
}

static bool gridded(const probe *p, lm_type t) {
  lm_axis a, b;
  return has(p->is_place, t, &a) && has(p->is_past, t, &b);
}

static fact *fact_of(probe *p, const lm_value *v) {
  static fact nothing;
  return v->id < p->n_facts ? &p->facts[v->id] : &nothing;
}

static bool over(const lm_op *op, const bool *set) {
  for (int i = 0; i < op->attr.n_axes; i++)
    if (set[op->attr.axes[i]]) return true;
  return false;
}

// ---- cells
static int64_t stride(const probe *p, lm_type t, int at) {
  int64_t s = 1;
  for (int i = at + 1; i < t.rank; i++) s *= lm_axis_size(p->m, t.axis[i]);
  return s;
}

// The constant of a known tensor at (t, s): NAN if it differs along other axes.
static double known_cell(const probe *p, const lm_tensor *x, int64_t t, int64_t s) {
  int64_t index[LM_RANK] = {0};
  double first = NAN;
  for (;;) {
    int64_t at = 0;
    for (int i = 0; i < x->type.rank; i++) {
      lm_axis a = x->type.axis[i];
      at += stride(p, x->type, i) * (p->is_place[a] ? t : p->is_past[a] ? s : index[i]);
    }
    if (isnan(first)) first = x->v[at];
    else if (x->v[at] != first) return NAN;
    int i = x->type.rank - 1;
    for (; i >= 0; i--) {
      lm_axis a = x->type.axis[i];
      if (p->is_place[a] || p->is_past[a]) continue;
      if (++index[i] < lm_axis_size(p->m, a)) break;
      index[i] = 0;
    }
    if (i < 0) return first;
  }
}

static double cell(probe *p, const lm_value *v, int64_t t, int64_t s) {
  fact *f = fact_of(p, v);
  if (f->known.v) return known_cell(p, &f->known, t, s);
  return f->cell ? f->cell[t * p->places + s] : NAN;
}

static double select_cell(const double *x) {
  if (!isnan(x[0])) return x[0] != 0 ? x[1] : x[2];
  return x[1] == x[2] ? x[1] : NAN;
}

// What an elementwise operation gives where only some of its operands are known.
static double combine(const lm_op *op, const double *x) {
  bool all = true;
  for (uint32_t i = 0; i < op->n_in; i++) all = all && !isnan(x[i]);
  switch (op->code) {
  case LM_OP_SELECT: return select_cell(x);
  case LM_OP_EXPAND: case LM_OP_STOP: case LM_OP_CAST: return x[0];
  case LM_OP_EXP: return x[0] <= NEVER ? 0 : all ? exp(x[0]) : NAN;
  case LM_OP_MUL: return x[0] == 0 || x[1] == 0 ? 0 : all ? x[0] * x[1] : NAN;
  case LM_OP_DIV: return x[0] == 0 ? 0 : all ? x[0] / x[1] : NAN;
  case LM_OP_ADD: return x[0] <= NEVER || x[1] <= NEVER ? 10 * NEVER : all ? x[0] + x[1] : NAN;
  case LM_OP_SUB: return x[0] <= NEVER && x[1] <= NEVER ? 0 : x[0] <= NEVER || x[1] >= -NEVER ? 10 * NEVER : all ? x[0] - x[1] : NAN;
  case LM_OP_AND: return x[0] == 0 || x[1] == 0 ? 0 : all ? 1 : NAN;
  case LM_OP_OR: return x[0] == 1 || x[1] == 1 ? 1 : all ? 0 : NAN;
  default: return all && op->n_in ? lm_eval_scalar(op, x) : NAN;
  }
}

// Operations that keep t and s where they are: a cell is its operands' common constant; of a product, zero if one's is.
static double moved(probe *p, const lm_op *op, int64_t t, int64_t s) {
  double x = cell(p, op->in[0], t, s);
  if (op->code == LM_OP_DOT) return x == 0 || cell(p, op->in[1], t, s) == 0 ? 0 : NAN;   // heads that are mixed
  for (uint32_t i = 1; i < op->n_in; i++)
    if (cell(p, op->in[i], t, s) != x) return NAN;
  if (op->code == LM_OP_PAD || op->code == LM_OP_SUM) return x == 0 ? 0 : NAN;
  return x;
}

static bool keeps_grid(const probe *p, const lm_op *op) {
  switch (op->code) {
  case LM_OP_VIEW: case LM_OP_PERMUTE: case LM_OP_RENAME: case LM_OP_SLICE: case LM_OP_PAD: case LM_OP_CONCAT: case LM_OP_SUM: case LM_OP_MAX: case LM_OP_DOT: break;
  default: return false;
  }
  if (op->code == LM_OP_RENAME) return true;
  for (int i = 0; i < op->attr.n_axes; i++)
    if (p->is_place[op->attr.axes[i]] || p->is_past[op->attr.axes[i]]) return false;
  return true;
}

// The maximum over the history of a row that a mask hides whole.
static double row_max(probe *p, const lm_op *op, int64_t t) {
  for (int64_t s = 0; s < p->places; s++)
    if (!(cell(p, op->in[0], t, s) <= NEVER)) return NAN;
  return 10 * NEVER;
}

static void find_cells(probe *p, const lm_op *op) {
  bool elementwise = lm_op_info_of(op)->traits & LM_T_ELEMENTWISE, of_rows = op->code == LM_OP_MAX && over(op, p->is_past);
  lm_axis place;
  if (op->n_out != 1 || !has(p->is_place, op->out[0]->type, &place) || op->n_in > 16 || (!elementwise && !of_rows && !keeps_grid(p, op))) return;
  fact *f = fact_of(p, op->out[0]);
  double *out = lm_calloc((size_t)(p->places * p->places), sizeof *out);
  for (int64_t t = 0; t < p->places; t++)
    for (int64_t s = 0; s < p->places; s++) {
      double x[16];
      for (uint32_t i = 0; elementwise && i < op->n_in; i++) x[i] = cell(p, op->in[i], t, s);
      out[t * p->places + s] = elementwise ? combine(op, x) : of_rows ? row_max(p, op, t) : moved(p, op, t, s);
    }
  f->cell = out;
}

// ---- values that follow from the columns
static void find_known(probe *p, const lm_op *op) {
  lm_tensor in[LM_RANK];
  if (op->n_out != 1 || op->n_in > LM_RANK || op->body || !lm_op_pure(op) || lm_type_elements(p->m, op->out[0]->type) > MOST_KNOWN) return;
  if (op->code == LM_OP_PARAM || op->code == LM_OP_RNG || op->code == LM_OP_DOT || op->code == LM_OP_AT) return;
  for (uint32_t i = 0; i < op->n_in; i++) {
    in[i] = fact_of(p, op->in[i])->known;
    if (!in[i].v) return;
  }
  lm_eval_known(p->m, op, in, &fact_of(p, op->out[0])->known);
}

// ---- what is refused
static lm_diag *refuse(probe *p, const lm_op *op, const char *code, const char *text) {
  p->ok = false;
  lm_diag *d = lm_error(p->c, op->loc, code, "%s", text);
  return d;
}

static void refuse_ahead(probe *p, const lm_op *op, int64_t t, int64_t s) {
  lm_diag *d = refuse(p, op, "E0D0", "the model looks ahead: a place takes in places that come after it");
  if (t >= 0) lm_diag_note(p->c, d, (lm_loc){0}, "in a row of packed documents place %lld sees place %lld", (long long)t, (long long)s);
  else lm_diag_note(p->c, d, (lm_loc){0}, "this takes in all places of the history at once");
  lm_diag_help(p->c, d, "mask what is reduced: select(expand(pos, s) >= ps & expand(seg, s) == ss, scores, -1e30)");
}

static void refuse_joined(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, op, "E0D0", "what stands beside the places of a history has no place of its own");
  lm_diag_note(p->c, d, (lm_loc){0}, "behind this no place has the number that it had");
  lm_diag_help(p->c, d, "a sink goes into the sum: let most = stop_grad(maximum(max(a, s), sink)); let x = exp(a - most); x / (sum(x, s) + exp(sink - most))");
}

static void refuse_by_number(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, op, "E0D0", "the model looks ahead: a place takes in places that come after it");
  lm_diag_note(p->c, d, (lm_loc){0}, "places of the history are picked by their number here");
  lm_diag_help(p->c, d, "pick by a mask: sum(select(expand(pos, s) - ps == 1 & expand(seg, s) == ss, x, 0), s)");
}

static void check_past(probe *p, const lm_op *op) {
  bool product = op->code == LM_OP_DOT;
  lm_axis t;
  uint32_t n = product ? 2 : 1;
  if (fact_of(p, op->in[0])->known.v && !gridded(p, op->in[0]->type) && !product) return;
  int64_t at = -1, as = -1;
  for (uint32_t i = 0; i < n; i++) {
    if (!has(p->is_place, op->in[i]->type, &t) || !gridded(p, op->in[i]->type)) continue;
    at = as = -1;
    for (int64_t x = 0; x < p->places && at < 0; x++)
      for (int64_t y = x + 1; y < p->places && at < 0; y++) {
        double c = cell(p, op->in[i], x, y);
        if (product ? c != 0 : isnan(c)) at = x, as = y;
      }
    if (at < 0 || fact_of(p, op->in[i])->refused) return;
  }
  refuse_ahead(p, op, at, as);
  if (!product) fact_of(p, op->in[0])->refused = true;
}

static void check_op(probe *p, const lm_op *op) {
  switch (op->code) {
  case LM_OP_SUM: case LM_OP_MAX: case LM_OP_ARGMAX: case LM_OP_DOT:
    if (over(op, p->is_past)) { check_past(p, op); return; }
    break;
  case LM_OP_IOTA: {
    lm_axis t;
    if (p->decoded && has(p->is_place, op->out[0]->type, &t))
      lm_diag_help(p->c, refuse(p, op, "E0D2", "iota numbers the places of one call, so it cannot be decoded place by place"), "use pos, a place's number in its document");
    return;
  }
  case LM_OP_SLICE: case LM_OP_PAD: case LM_OP_CONCAT: case LM_OP_VIEW: case LM_OP_GATHER: case LM_OP_SCATTER: break;
  default: return;
  }
  if (over(op, p->is_past)) { op->code == LM_OP_CONCAT ? refuse_joined(p, op) : refuse_by_number(p, op); return; }
  if (!over(op, p->is_place) || !p->decoded) return;
  lm_diag_help(p->c, refuse(p, op, "E0D1", "positions meet outside of history, so this cannot be decoded place by place"),
               "history(x, t -> s) gives all places so far under an axis of their own");
}

// ---- the walk
static void mark_axes(probe *p, const lm_op *op) {
  if (op->code != LM_OP_RENAME && op->code != LM_OP_HISTORY) return;
  for (int i = 0; i < op->attr.n_axes; i++) {
    lm_axis from = op->attr.axes[i], to = op->attr.to[i];
    if (op->code == LM_OP_HISTORY && p->is_place[from]) p->is_past[to] = true;
    else if (p->is_place[from]) p->is_place[to] = true;
    if (p->is_past[from]) p->is_past[to] = true;
  }
}

// One mistake in a mask makes one message: the products of a softmax that was refused stay silent.
static void spread_refusal(probe *p, const lm_op *op) {
  if (op->n_out != 1 || !gridded(p, op->out[0]->type)) return;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (fact_of(p, op->in[i])->refused) fact_of(p, op->out[0])->refused = true;
}

static void visit(lm_op *op, void *user) {
  probe *p = user;
  mark_axes(p, op);
  check_op(p, op);
  spread_refusal(p, op);
  find_known(p, op);
  if (op->n_out == 1 && !fact_of(p, op->out[0])->known.v) find_cells(p, op);
}

// Documents of 5, 7 and the remaining places.
static double column(const char *name, int64_t i) {
  int64_t doc = i < 5 ? 0 : i < 12 ? 1 : 2;
  if (!strcmp(name, "seg")) return (double)doc;
  if (!strcmp(name, "pos")) return (double)(i - (doc == 0 ? 0 : doc == 1 ? 5 : 12));
  return 1;
}

static void fill_columns(probe *p, const lm_func *f) {
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const lm_value *a = f->body->args[i];
    bool followed = a->name && (!strcmp(a->name, "pos") || !strcmp(a->name, "seg"));
    if (a->type.rank != 2 || !followed) continue;
    lm_tensor *x = &fact_of(p, a)->known;
    *x = (lm_tensor){a->type, p->places, lm_calloc((size_t)p->places, sizeof *x->v)};
    for (int64_t k = 0; k < p->places; k++) x->v[k] = column(a->name, k);
  }
}

bool lm_pass_lookahead(lm_module *m, const lm_pass_env *env) {
  lm_func *f = lm_func_find(m, "probe");
  if (!f || f->body->n_args == 0 || f->body->args[0]->type.rank != 2) return true;
  lm_axis t = f->body->args[0]->type.axis[1];
  probe p = {.m = m, .c = m->ctx, .n_facts = m->n_values, .places = lm_axis_size(m, t), .ok = true, .decoded = lm_func_find(m, "decode") != NULL};
  p.facts = lm_calloc(p.n_facts, sizeof *p.facts);
  p.is_place = lm_calloc(m->n_axes, sizeof *p.is_place), p.is_past = lm_calloc(m->n_axes, sizeof *p.is_past);
  p.is_place[t] = true;
  fill_columns(&p, f);
  lm_region_walk(f->body, visit, &p);
  for (uint32_t i = 0; i < p.n_facts; i++) lm_free(p.facts[i].cell), lm_tensor_free(&p.facts[i].known);
  lm_free(p.facts), lm_free(p.is_place), lm_free(p.is_past);
  lm_func_remove(m, f);
  return p.ok;
}
