// causal.c - rejects a model in which a position depends on later positions, or on another
// document. It analyzes @probe and removes it.
//
// @probe is @apply and @loss on one row of packed documents (causal_row.c). Values that depend only
// on its integer columns are computed: positions, document indices, masks. For every other value
// with axis t, each cell (t, s), where s is a position of the history, is either unknown or a
// constant that a mask determines (causal_cells.c):
//   %m = ge %pos_t, %pos_s                known
//   %a = select %m, %scores, -1e30        cells where %m is false: -1e30
//   %e = exp(%a - %max)                   cells where %m is false: 0, but 1 in a fully masked row,
//                                         whose maximum is -1e30 as well
// causal_mask.c proves masks for every position; masks without a proof are checked on the row
// alone. A reduction over s must have a constant in every cell with s after t, and a dot over s
// must have zero there. causal_reach.c follows all other operations along the positions. If @decode
// exists, an operation of the logits that combines positions in another way (a sum over t, a shift
// along t, an iota along t) is an error too, because one position at a time gives another result.
#include "compiler/passes/causal/causal.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

#include <math.h>
#include <string.h>

// ---- errors
static const char mask_help[] = "mask the operand of the reduction: select(expand(pos, s) >= ps & "
                                "expand(seg, s) == ss, scores, -1e30)";

static lm_diag *refuse(probe *p, lm_diag *d) {
  p->ok = false;
  return d;
}

static lm_diag *refuse_ahead(probe *p, const lm_op *op) {
  return refuse(p, LM_REPORT(p->c, op->loc, E0D0));
}

// A cell that is not masked although s comes after t or is in another document; t is -1 if the
// value has no axis t.
typedef struct leak {
  int64_t t;
  int64_t s;
  bool same_document;
} leak;

static void refuse_all(probe *p, const lm_op *op) {
  lm_diag *d = refuse_ahead(p, op);
  lm_diag_note(p->c, d, (lm_loc){0},
               "this reduces over all positions of the history without a mask");
  lm_diag_help(p->c, d, "%s", mask_help);
}

static void refuse_hidden(probe *p, const lm_op *op, const leak *at) {
  lm_diag *d = refuse(p, LM_REPORT(p->c, op->loc, E0D7));
  lm_diag_note(
      p->c, d, (lm_loc){0},
      "the mask hides every position from position %.0f of a document, so its softmax gives "
      "all of them the same weight",
      p->pos[at->t]);
  lm_diag_help(p->c, d, "let each position attend to itself: expand(pos, s) >= ps");
}

// True for weights 1/n over the n positions of the row, to which `simplify` folds the softmax of
// equal scores: those that a mask leaves which is a constant.
static bool is_uniform(const probe *p, const lm_value *v) {
  const double TOLERANCE = 1e-6;
  return v->def && v->def->code == LM_OP_CONST &&
         fabs(v->def->attr.num * (double)p->n_positions - 1) < TOLERANCE;
}

static void refuse_uniform(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, LM_REPORT(p->c, op->loc, E0D7));
  lm_diag_note(p->c, d, (lm_loc){0},
               "the mask is false for all pairs of positions, or the scores are one constant, so "
               "the softmax is uniform over all positions of the row");
  lm_diag_help(p->c, d,
               "comparisons bind more tightly than & and |, so a & b == c means "
               "a & (b == c)");
}

static void refuse_mixed(probe *p, const lm_op *op, const leak *at) {
  lm_diag *d = refuse(p, LM_REPORT(p->c, op->loc, E0D4));
  if (p->seg[at->s] < 0)
    lm_diag_note(p->c, d, (lm_loc){0},
                 "position %.0f of a document depends on the padding at the end of its row",
                 p->pos[at->t]);
  else
    lm_diag_note(p->c, d, (lm_loc){0},
                 "in a row of packed documents, position %.0f of document %.0f depends on position "
                 "%.0f of document %.0f",
                 p->pos[at->t], p->seg[at->t], p->pos[at->s], p->seg[at->s]);
  lm_diag_help(p->c, d,
               "separate the documents in the mask: … & expand(seg, s) == ss, where ss is "
               "history(seg, t -> s)");
}

static bool constant_of(const lm_value *x, double *out) {
  while (lm_op_is(x, LM_OP_EXPAND) || lm_op_is(x, LM_OP_CAST))
    x = x->def->in[0];
  return lm_const_of(x, out);
}

// The constant with which a select hides scores, but that a score may be below; 0: there is none.
static double weak_mask(const lm_value *v, int depth) {
  const double LEAST = -100; // constants above this are scores
  const lm_op *op = v->def;
  double c = 0;
  if (!op || !depth || !lm_op_has(op, LM_T_ELEMENTWISE))
    return 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *x = op->in[i];
    while (lm_op_is(x, LM_OP_EXPAND) || lm_op_is(x, LM_OP_CAST))
      x = x->def->in[0];
    if (op->code == LM_OP_SELECT && lm_const_of(x, &c) && c > LM_NEVER && c < LEAST)
      return c;
    c = weak_mask(x, depth - 1);
    if (c != 0)
      return c;
  }
  return 0;
}

static void note_weak_mask(probe *p, lm_diag *d, const lm_value *v) {
  enum {
    MAX_DEPTH = 6
  };
  double c = weak_mask(v, MAX_DEPTH);
  if (d && c != 0)
    lm_diag_note(p->c, d, (lm_loc){0}, "the scores are masked with %g, but a score may be less", c);
}

// True if an int of `largest` times a constant exceeds 32 bits.
static bool wraps(const lm_value *v, double largest, int depth) {
  const lm_op *op = v->def;
  double c;
  if (!op || !depth)
    return false;
  if (op->code == LM_OP_MUL && v->type.dtype == LM_INT)
    for (int i = 0; i < 2; i++)
      if (constant_of(op->in[i], &c) && fabs(c) * largest > INT32_MAX)
        return true;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (wraps(op->in[i], largest, depth - 1))
      return true;
  return false;
}

static void note_wrapping(probe *p, lm_diag *d, const lm_value *v, const leak *at) {
  enum {
    MAX_DEPTH = 10
  };
  if (d && wraps(v, fmax(p->pos[at->t], p->pos[at->s]), MAX_DEPTH))
    lm_diag_note(p->c, d, (lm_loc){0},
                 "an int has 32 bits, and that position times a constant exceeds them");
}

static void refuse_later(probe *p, const lm_op *op, const lm_value *v, const leak *at) {
  lm_diag *d = refuse_ahead(p, op);
  lm_diag_note(p->c, d, (lm_loc){0}, "position %.0f of a document depends on its position %.0f",
               p->pos[at->t], p->pos[at->s]);
  note_weak_mask(p, d, v);
  note_wrapping(p, d, v, at);
  lm_diag_help(p->c, d, "%s", mask_help);
}

static void refuse_leak(probe *p, const lm_op *op, const lm_value *v, const leak *at) {
  const bool *hidden = lm_fact(p, v)->hidden;
  if (is_uniform(p, v))
    refuse_uniform(p, op);
  else if (at->t < 0)
    refuse_all(p, op);
  else if (hidden && hidden[at->t])
    refuse_hidden(p, op, at);
  else if (at->same_document)
    refuse_later(p, op, v, at);
  else
    refuse_mixed(p, op, at);
}

static void refuse_joined(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, LM_REPORT(p->c, op->loc, E0D6));
  lm_diag_note(p->c, d, (lm_loc){0},
               "after this concatenation the indices of the positions differ");
  lm_diag_help(p->c, d,
               "add an attention sink to the softmax sum instead: let most = "
               "stop_grad(maximum(max(a, s), sink)); let x = "
               "exp(a - most); x / (sum(x, s) + exp(sink - most))");
}

static void refuse_by_number(probe *p, const lm_op *op) {
  lm_diag *d = refuse_ahead(p, op);
  lm_diag_note(p->c, d, (lm_loc){0}, "this selects positions of the history by index");
  lm_diag_help(p->c, d,
               "select them by a mask: sum(select(expand(pos, s) - ps == 1 & expand(seg, s) == ss, "
               "x, 0), s)");
}

// The maximum of row t over the positions that t may depend on; NAN if one of these cells is not a
// known constant.
static double visible_max(const probe *p, const lm_value *v, int64_t t) {
  double most = -INFINITY;
  for (int64_t s = 0; s <= p->last[t]; s++) {
    double c = lm_fact_cell(p, v, t, s);
    if (lm_probe_hides(p, t, s))
      continue;
    if (isnan(c))
      return NAN;
    most = c > most ? c : most;
  }
  return most;
}

// Whether the constant c of a hidden cell changes the maximum of row t. In a row of constants it
// does if it is larger than the visible ones, because its position may exist or not. In other rows
// it is the value that a mask fills in: a masked score, or the same number in all hidden cells.
static bool changes_max(const probe *p, const lm_value *v, int64_t t, double c) {
  double most = visible_max(p, v, t);
  if (!isnan(most))
    return c > most;
  for (int64_t s = 0; s < p->n_positions; s++)
    if (lm_probe_hides(p, t, s))
      return c != lm_fact_cell(p, v, t, s);
  return false;
}

// Whether the cell can change the result of the reduction. Only 0 adds nothing to a sum.
static bool leaks(const probe *p, const lm_op *op, const lm_value *v, int64_t t, int64_t s) {
  double c = lm_fact_cell(p, v, t, s);
  if (op->code == LM_OP_DOT || op->code == LM_OP_SUM)
    return c != 0;
  return isnan(c) || (c > LM_NEVER && changes_max(p, v, t, c));
}

// Leaks are reported from the most to the least obvious: later positions of the document, other
// documents, padding.
static int leak_rank(const probe *p, int64_t t, int64_t s) {
  return p->seg[s] == p->seg[t] ? 3 : p->seg[s] >= 0 ? 2 : 1;
}

static bool leak_find(const probe *p, const lm_op *op, const lm_value *v, leak *out) {
  int found = 0;
  *out = (leak){-1, -1, false};
  for (int64_t t = 0; t < p->n_positions && p->seg[t] >= 0; t++)
    for (int64_t s = 0; s < p->n_positions && found < 3; s++) {
      int rank = lm_probe_hides(p, t, s) ? leak_rank(p, t, s) : 0;
      if (rank <= found || !leaks(p, op, v, t, s))
        continue;
      found = rank;
      *out = (leak){t, s, rank == 3};
    }
  return found > 0;
}

// A dot over s needs an operand that is zero wherever s comes after t. proved: by causal_mask.c.
static void check_past(probe *p, const lm_op *op, bool proved) {
  bool is_dot = op->code == LM_OP_DOT;
  leak at = {-1, -1, false};
  const lm_value *from = op->in[0];
  for (uint32_t i = 0; i < (is_dot ? 2 : 1); i++) {
    if (!lm_probe_gridded(p, op->in[i]->type))
      continue;
    from = op->in[i];
    if (!leak_find(p, op, from, &at) || lm_fact(p, from)->refused)
      return;
  }
  LM_ASSERT(!proved);
  if (!p->lost)
    refuse_leak(p, op, from, &at);
  if (!is_dot)
    lm_fact(p, op->in[0])->refused = true;
}

static void undecodable_add(probe *p, const lm_op *op) {
  if (p->decoded)
    LM_PUSH(p->a, p->undecodable, p->n_undecodable, p->cap_undecodable) = op;
}

static void refuse_undecodable(probe *p) {
  for (uint32_t i = 0; i < p->n_undecodable; i++) {
    const lm_op *op = p->undecodable[i];
    if (op->code == LM_OP_IOTA)
      lm_diag_help(p->c, refuse(p, LM_REPORT(p->c, op->loc, E0D2)),
                   "use pos, the position within the document");
    else
      lm_diag_help(p->c, refuse(p, LM_REPORT(p->c, op->loc, E0D1)),
                   "history(x, t -> s) gives all positions so far along axis s");
  }
}

// ---- operations that are proved for every position, and others

static void relation_add(probe *p, const lm_op *op, bool proved) {
  lm_causality *out = &p->m->causality;
  out->relations++;
  out->proved += proved;
  if (!proved && !out->checked.file)
    out->checked = op->loc;
}

// True for a window whose last tap is the position itself, which decoding keeps as a cache.
static bool looks_back(const probe *p, const lm_op *window) {
  const lm_attr *a = &window->attr;
  return a->imm[1] == 1 && a->imm[0] == a->imm[2] * (lm_axis_size(p->m, a->to[1]) - 1) &&
         lm_axis_size(p->m, a->to[0]) == lm_axis_size(p->m, a->axes[0]);
}

// True if the elements move to later positions, by less than the consecutive positions at the start
// of a document on the row. Whether a document can be left is then known at these.
static bool moves_later(const probe *p, const lm_op *op) {
  const int64_t *by = op->attr.imm;
  return (op->code == LM_OP_SLICE && by[0] == 0 && by[1] == 1) ||
         (op->code == LM_OP_PAD && by[0] >= 0 && by[0] < LM_PROBE_FILLED && by[1] == 1) ||
         (op->code == LM_OP_WINDOW && looks_back(p, op) && by[0] < LM_PROBE_FILLED);
}

// A scan can leave a document at position 0 only.
static bool begins_by_position(const probe *p, const lm_op *scan) {
  for (uint32_t i = 0; i < scan->n_in; i++)
    if (p->sketches[scan->in[i]->id].by_document)
      return false;
  return true;
}

static void relation_count(probe *p, const lm_op *op) {
  if (op->code == LM_OP_SCAN)
    relation_add(p, op, begins_by_position(p, op));
  else if (op->code == LM_OP_HISTORY || op->code == LM_OP_RENAME)
    return;
  else if (lm_probe_over(op, p->is_position) && moves_later(p, op))
    LM_PUSH(p->a, p->shifts, p->n_shifts, p->cap_shifts) = op;
  else if (lm_probe_over(op, p->is_position))
    relation_add(p, op, false);
}

static void check_op(probe *p, const lm_op *op) {
  lm_best best = lm_probe_best_check(p, op);
  if (best == LM_BEST_PROVED)
    relation_add(p, op, true);
  if (best != LM_BEST_NONE)
    return;
  switch (op->code) {
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_ARGMAX:
  case LM_OP_DOT:
    if (lm_probe_over(op, p->is_history)) {
      bool proved = lm_mask_prove(p, op);
      check_past(p, op, proved);
      relation_add(p, op, proved);
      return;
    }
    break;
  case LM_OP_IOTA: {
    lm_axis t;
    if (lm_probe_has(p->is_position, op->out[0]->type, &t))
      undecodable_add(p, op);
    return;
  }
  case LM_OP_WINDOW:
  case LM_OP_SLICE:
  case LM_OP_PAD:
  case LM_OP_CONCAT:
  case LM_OP_VIEW:
  case LM_OP_TOP_K:
  case LM_OP_GATHER:
  case LM_OP_SCATTER: break;
  default: return;
  }
  if (lm_probe_over(op, p->is_history)) {
    op->code == LM_OP_CONCAT ? refuse_joined(p, op) : refuse_by_number(p, op);
    p->lost = true;
    return;
  }
  if (lm_probe_over(op, p->is_position) && !(op->code == LM_OP_WINDOW && looks_back(p, op)))
    undecodable_add(p, op);
}

// ---- the operations that the logits depend on

static void need_region(probe *p, const lm_region *r);

static void need_inputs(probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    p->needed[op->in[i]->id] = true;
}

static bool is_needed(const probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    if (p->needed[op->out[i]->id])
      return true;
  return false;
}

// A carry is needed if its result is, or if a later iteration needs it.
static void need_loop(probe *p, const lm_op *op) {
  const lm_region *body = op->body;
  for (bool grown = true; grown;) {
    grown = false;
    for (uint32_t i = 0; i < op->n_out; i++)
      if (p->needed[op->out[i]->id])
        p->needed[body->last->in[i]->id] = true;
    need_region(p, body);
    for (uint32_t i = 0; i < op->n_in; i++) {
      bool *result = &p->needed[op->out[i]->id];
      grown |= p->needed[body->args[1 + i]->id] && !*result;
      *result |= p->needed[body->args[1 + i]->id];
    }
  }
  for (uint32_t i = 0; i < op->n_in; i++)
    if (p->needed[op->out[i]->id])
      p->needed[op->in[i]->id] = true;
}

static void need_region(probe *p, const lm_region *r) {
  for (const lm_op *op = r->last; op; op = op->prev) {
    if (!is_needed(p, op))
      continue;
    if (op->code == LM_OP_LOOP)
      need_loop(p, op);
    else
      need_inputs(p, op);
  }
}

// The logits are the result with an axis of positions; the results of the loss are scalars.
static void need_logits(probe *p, const lm_func *f) {
  const lm_op *end = f->body->last;
  p->needed = LM_NEW_N(p->a, bool, p->m->n_values + 1);
  for (uint32_t i = 0; i < end->n_in; i++)
    p->needed[end->in[i]->id] |= end->in[i]->type.rank > 0;
  need_region(p, f->body);
}

// ---- the walk
static void mark_axes(probe *p, const lm_op *op) {
  if (op->code == LM_OP_WINDOW && looks_back(p, op) && p->is_position[op->attr.axes[0]])
    p->is_position[op->attr.to[0]] = true;
  if (op->code != LM_OP_RENAME && op->code != LM_OP_HISTORY)
    return;
  for (int i = 0; i < op->attr.n_axes; i++) {
    lm_axis from = op->attr.axes[i];
    lm_axis to = op->attr.to[i];
    if (op->code == LM_OP_HISTORY && p->is_position[from])
      p->is_history[to] = true;
    else if (p->is_position[from])
      p->is_position[to] = true;
    if (p->is_history[from])
      p->is_history[to] = true;
  }
}

// Suppresses follow-up errors: values computed from a rejected softmax are not reported.
static void spread_refusal(probe *p, const lm_op *op) {
  if (op->n_out != 1 || !lm_probe_gridded(p, op->out[0]->type))
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (lm_fact(p, op->in[i])->refused)
      lm_fact(p, op->out[0])->refused = true;
}

// Frees the facts of a value after its last use.
static void forget_used(probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (--p->uses[op->in[i]->id] == 0)
      lm_fact_free(p, lm_fact(p, op->in[i]));
}

static void causal_visit(lm_op *op, void *user) {
  probe *p = user;
  mark_axes(p, op);
  if (op->code == LM_OP_YIELD)
    lm_probe_best_check(p, op);
  if (is_needed(p, op)) {
    check_op(p, op);
    relation_count(p, op);
  }
  spread_refusal(p, op);
  lm_fact_find(p, op);
  lm_mask_note(p, op);
  if (op->code == LM_OP_SCAN)
    lm_scan_prove(p, op);
  else
    lm_fact_prove(p, op);
  forget_used(p, op);
}

static void probe_free(probe *p) {
  for (uint32_t i = 0; i < p->m->n_values; i++) {
    lm_fact_free(p, &p->facts[i]);
    if (p->facts[i].owns_hidden)
      lm_free(p->facts[i].hidden);
  }
  for (uint32_t i = 0; i < p->n_spare; i++)
    lm_free(p->spare[i]);
  lm_free(p->facts);
  lm_free(p->uses);
  lm_free(p->is_position);
  lm_free(p->is_history);
  lm_free(p->pos);
  lm_free(p->seg);
  lm_free(p->prompt);
  lm_free(p->last);
  lm_arena_destroy(p->a);
}

// Analyzes @probe on rows of the size that axis t has now. from: see the probe.
static bool analyze(lm_module *m, lm_func *f, lm_axis t, int64_t from) {
  probe p = {.m = m,
             .from = from,
             .c = m->ctx,
             .a = lm_arena_create(),
             .n_positions = lm_axis_size(m, t),
             .ok = true,
             .decoded = lm_func_get(m, LM_FUNC_DECODE, 0) != NULL};
  p.facts = lm_calloc(m->n_values, sizeof *p.facts);
  p.uses = lm_func_uses(f);
  p.is_position = lm_calloc(m->n_axes, sizeof *p.is_position);
  p.is_history = lm_calloc(m->n_axes, sizeof *p.is_history);
  p.pos = lm_calloc((size_t)p.n_positions, sizeof *p.pos);
  p.seg = lm_calloc((size_t)p.n_positions, sizeof *p.seg);
  p.last = lm_calloc((size_t)p.n_positions, sizeof *p.last);
  p.is_position[t] = true;
  p.whole = f->n_out && !strcmp(f->out_names[0], LM_PROBE_ENCODED);
  lm_probe_row(&p, f);
  p.proofs = LM_NEW_N(p.a, proof, m->n_values + 1);
  p.sketches = LM_NEW_N(p.a, sketch, m->n_values + 1);
  p.reads_prompt = LM_NEW_N(p.a, bool, m->n_values + 1);
  p.reads_next = LM_NEW_N(p.a, bool, m->n_values + 1);
  m->causality = (lm_causality){.positions = p.n_positions};
  need_logits(&p, f);
  lm_region_walk(f->body, causal_visit, &p);
  for (uint32_t i = 0; i < p.n_shifts; i++)
    relation_add(&p, p.shifts[i], !p.selects_document);
  if (p.ok)
    lm_probe_reach(&p, f);
  if (p.ok)
    refuse_undecodable(&p);
  lm_probe_row_warn(&p);
  probe_free(&p);
  return p.ok;
}

enum {
  SHORT_ROW = 64,
  MOST_POSITIONS = 4096
};

static void axes_resize(lm_module *m, const bool *axes, int64_t n) {
  for (uint32_t i = 0; i < m->n_axes; i++)
    if (axes[i])
      m->axes[i].size = n;
}

// True if a row of a few positions is enough, because everything is proved for every position. The
// long row takes most of the time of a compilation, and decides only relations without a proof.
static bool passes_short(lm_module *m, lm_func *f, lm_axis t) {
  int64_t n = lm_axis_size(m, t);
  bool *axes = n > SHORT_ROW ? lm_probe_axes(m, f, t) : NULL;
  if (!axes)
    return false;
  lm_diag_mark mark = lm_diag_mark_of(m->ctx);
  axes_resize(m, axes, SHORT_ROW);
  bool ok = analyze(m, f, t, 0) && m->causality.proved == m->causality.relations;
  axes_resize(m, axes, n);
  m->causality.positions = n;
  if (!ok)
    lm_diag_return(m->ctx, mark);
  lm_free(axes);
  return ok;
}

// Analyzes the long row and, for relations without a proof, further ones with the positions up to
// MOST_POSITIONS.
static bool passes_long(lm_module *m, lm_func *f, lm_axis t) {
  int64_t n = lm_axis_size(m, t);
  int64_t from = LM_PROBE_FILLED;
  bool ok = analyze(m, f, t, 0);
  if (m->causality.proved == m->causality.relations || n < LM_PROBE_FILLED)
    return ok; // rows of tests are short
  for (; ok && from < MOST_POSITIONS; from += LM_PROBE_FILLED)
    ok = analyze(m, f, t, from);
  m->causality.positions = n + from - LM_PROBE_FILLED;
  return ok;
}

bool lm_pass_causal(lm_module *m, const lm_pass_env *env) {
  lm_func *f = lm_func_get(m, LM_FUNC_PROBE, 0);
  if (!f || f->body->n_args == 0 || f->body->args[0]->type.rank != 2)
    return true;
  lm_axis t = f->body->args[0]->type.axis[1];
  bool ok = passes_short(m, f, t) || passes_long(m, f, t);
  lm_func_remove(m, f);
  return ok;
}
