// causal.c - refuses a model in which a position sees positions that come after it, or another
// document; looks at
// @probe and removes it.
//
// @probe is @apply over one row of packed documents (lookahead_row.c). What follows from its
// integer columns is computed: positions, documents, masks. Of every other value that has an axis
// t, each cell (t, s) with a position s of the history is either unknown or a constant, as a mask
// makes it (lookahead_cells.c):
//   %m = ge %pos_t, %pos_s                known
//   %a = select %m, %scores, -1e30        cells where %m is false: -1e30
//   %e = exp(%a - %max)                   cells where %m is false: 0; but 1 in a row that %m hides
//   whole, where the
//                                         maximum is -1e30 as well
// Reductions over s must find a constant in every cell with s after t, and products over s a zero.
// Where @decode exists, an operation that joins positions in any other way (a sum over t, a shift
// along t, numbers of positions) is an error too, as one position at a time it would give something
// else.
#include "compiler/passes/lookahead.h"

#include <math.h>

bool lm_probe_has(const bool *set, lm_type t, lm_axis *out) {
  for (int i = 0; i < t.rank; i++)
    if (set[t.axis[i]]) {
      *out = t.axis[i];
      return true;
    }
  return false;
}

bool lm_probe_gridded(const probe *p, lm_type t) {
  lm_axis a, b;
  return lm_probe_has(p->is_place, t, &a) && lm_probe_has(p->is_past, t, &b);
}

bool lm_probe_over(const lm_op *op, const bool *set) {
  for (int i = 0; i < op->attr.n_axes; i++)
    if (set[op->attr.axes[i]])
      return true;
  return false;
}

// ---- what is refused
static const char ahead[] =
    "the model looks ahead: a position takes in positions that come after it";
static const char mask_help[] =
    "mask what is reduced: select(expand(pos, s) >= ps & expand(seg, s) == ss, scores, -1e30)";

static lm_diag *refuse(probe *p, const lm_op *op, const char *code, const char *text) {
  p->ok = false;
  lm_diag *d = lm_error(p->c, op->loc, code, "%s", text);
  return d;
}

// A cell that is not masked though s comes after t; t -1: the value has no axis t.
typedef struct leak {
  int64_t t, s;
  bool same_document;
} leak;

static void refuse_all(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, op, "E0D0", ahead);
  lm_diag_note(p->c, d, (lm_loc){0}, "this takes in all positions of the history at once");
  lm_diag_help(p->c, d, "%s", mask_help);
}

static void refuse_hidden(probe *p, const lm_op *op, const leak *at) {
  lm_diag *d = refuse(p, op, "E0D0", ahead);
  lm_diag_note(p->c, d, (lm_loc){0},
               "the mask hides all positions from position %.0f of a document, so a softmax weighs "
               "all of them alike",
               p->pos[at->t]);
  lm_diag_help(p->c, d, "let a position see itself: expand(pos, s) >= ps");
}

static void refuse_mixed(probe *p, const lm_op *op, const leak *at) {
  lm_diag *d =
      refuse(p, op, "E0D4",
             "the model mixes documents: a position takes in positions of another document");
  lm_diag_note(
      p->c, d, (lm_loc){0},
      "in a row of packed documents position %.0f of one sees position %.0f of a later one",
      p->pos[at->t], p->pos[at->s]);
  lm_diag_help(p->c, d,
               "keep documents apart in the mask: … & expand(seg, s) == ss, where ss is "
               "history(seg, t -> s)");
}

static void refuse_later(probe *p, const lm_op *op, const leak *at) {
  lm_diag *d = refuse(p, op, "E0D0", ahead);
  lm_diag_note(p->c, d, (lm_loc){0}, "position %.0f of a document sees position %.0f of it",
               p->pos[at->t], p->pos[at->s]);
  lm_diag_help(p->c, d, "%s", mask_help);
}

static void refuse_leak(probe *p, const lm_op *op, const lm_value *v, const leak *at) {
  const bool *hidden = lm_fact(p, v)->hidden;
  if (at->t < 0)
    refuse_all(p, op);
  else if (hidden && hidden[at->t])
    refuse_hidden(p, op, at);
  else if (at->same_document)
    refuse_later(p, op, at);
  else
    refuse_mixed(p, op, at);
}

static void refuse_joined(probe *p, const lm_op *op) {
  lm_diag *d =
      refuse(p, op, "E0D0", "what stands beside the places of a history has no place of its own");
  lm_diag_note(p->c, d, (lm_loc){0}, "behind this no place has the number that it had");
  lm_diag_help(p->c, d,
               "a sink goes into the sum: let most = stop_grad(maximum(max(a, s), sink)); let x = "
               "exp(a - most); x / (sum(x, s) + exp(sink - most))");
}

static void refuse_by_number(probe *p, const lm_op *op) {
  lm_diag *d = refuse(p, op, "E0D0", ahead);
  lm_diag_note(p->c, d, (lm_loc){0}, "positions of the history are picked by their number here");
  lm_diag_help(
      p->c, d,
      "pick by a mask: sum(select(expand(pos, s) - ps == 1 & expand(seg, s) == ss, x, 0), s)");
}

static bool leaks(const probe *p, const lm_op *op, const lm_value *v, int64_t t, int64_t s) {
  double c = lm_fact_cell(p, v, t, s);
  return op->code == LM_OP_DOT ? c != 0 : isnan(c);
}

// One within a document before one between two.
static bool leak_find(const probe *p, const lm_op *op, const lm_value *v, leak *out) {
  *out = (leak){-1, -1, false};
  for (int64_t t = 0; t < p->places && !out->same_document; t++)
    for (int64_t s = t + 1; s < p->places && !out->same_document; s++) {
      bool same = p->seg[t] == p->seg[s];
      if ((same || out->t < 0) && leaks(p, op, v, t, s))
        *out = (leak){t, s, same};
    }
  return out->t >= 0;
}

// Of a product one of both has to be zero where s comes after t.
static void check_past(probe *p, const lm_op *op) {
  bool product = op->code == LM_OP_DOT;
  leak at = {-1, -1, false};
  const lm_value *from = op->in[0];
  if (lm_fact(p, op->in[0])->known.v && !lm_probe_gridded(p, op->in[0]->type) && !product)
    return;
  for (uint32_t i = 0; i < (product ? 2 : 1); i++) {
    if (!lm_probe_gridded(p, op->in[i]->type))
      continue;
    from = op->in[i];
    if (!leak_find(p, op, from, &at) || lm_fact(p, from)->refused)
      return;
  }
  refuse_leak(p, op, from, &at);
  if (!product)
    lm_fact(p, op->in[0])->refused = true;
}

static void check_op(probe *p, const lm_op *op) {
  switch (op->code) {
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_ARGMAX:
  case LM_OP_DOT:
    if (lm_probe_over(op, p->is_past)) {
      check_past(p, op);
      return;
    }
    break;
  case LM_OP_IOTA: {
    lm_axis t;
    if (p->decoded && lm_probe_has(p->is_place, op->out[0]->type, &t))
      lm_diag_help(
          p->c,
          refuse(p, op, "E0D2",
                 "iota numbers the places of one call, so it cannot be decoded place by place"),
          "use pos, a place's number in its document");
    return;
  }
  case LM_OP_SLICE:
  case LM_OP_PAD:
  case LM_OP_CONCAT:
  case LM_OP_VIEW:
  case LM_OP_GATHER:
  case LM_OP_SCATTER: break;
  default: return;
  }
  if (lm_probe_over(op, p->is_past)) {
    op->code == LM_OP_CONCAT ? refuse_joined(p, op) : refuse_by_number(p, op);
    return;
  }
  if (!lm_probe_over(op, p->is_place) || !p->decoded)
    return;
  lm_diag_help(
      p->c,
      refuse(p, op, "E0D1",
             "positions meet outside of history, so this cannot be decoded place by place"),
      "history(x, t -> s) gives all places so far under an axis of their own");
}

// ---- the walk
static void mark_axes(probe *p, const lm_op *op) {
  if (op->code != LM_OP_RENAME && op->code != LM_OP_HISTORY)
    return;
  for (int i = 0; i < op->attr.n_axes; i++) {
    lm_axis from = op->attr.axes[i];
    lm_axis to = op->attr.to[i];
    if (op->code == LM_OP_HISTORY && p->is_place[from])
      p->is_past[to] = true;
    else if (p->is_place[from])
      p->is_place[to] = true;
    if (p->is_past[from])
      p->is_past[to] = true;
  }
}

// One mistake in a mask makes one message: the products of a softmax that was refused stay silent.
static void spread_refusal(probe *p, const lm_op *op) {
  if (op->n_out != 1 || !lm_probe_gridded(p, op->out[0]->type))
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (lm_fact(p, op->in[i])->refused)
      lm_fact(p, op->out[0])->refused = true;
}

// Facts of large values go with their last use.
static void forget_used(probe *p, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (--p->uses[op->in[i]->id] == 0)
      lm_fact_free(lm_fact(p, op->in[i]));
}

static void visit(lm_op *op, void *user) {
  probe *p = user;
  mark_axes(p, op);
  check_op(p, op);
  spread_refusal(p, op);
  lm_fact_find(p, op);
  forget_used(p, op);
}

static void probe_free(probe *p) {
  for (uint32_t i = 0; i < p->m->n_values; i++) {
    lm_fact_free(&p->facts[i]);
    if (p->facts[i].owns_hidden)
      lm_free(p->facts[i].hidden);
  }
  lm_free(p->facts);
  lm_free(p->uses);
  lm_free(p->is_place);
  lm_free(p->is_past);
  lm_free(p->pos);
  lm_free(p->seg);
}

bool lm_pass_causal(lm_module *m, const lm_pass_env *env) {
  lm_func *f = lm_func_find(m, "probe");
  if (!f || f->body->n_args == 0 || f->body->args[0]->type.rank != 2)
    return true;
  lm_axis t = f->body->args[0]->type.axis[1];
  probe p = {.m = m,
             .c = m->ctx,
             .places = lm_axis_size(m, t),
             .ok = true,
             .decoded = lm_func_find(m, "decode") != NULL};
  p.facts = lm_calloc(m->n_values, sizeof *p.facts);
  p.uses = lm_func_uses(f);
  p.is_place = lm_calloc(m->n_axes, sizeof *p.is_place);
  p.is_past = lm_calloc(m->n_axes, sizeof *p.is_past);
  p.pos = lm_calloc((size_t)p.places, sizeof *p.pos);
  p.seg = lm_calloc((size_t)p.places, sizeof *p.seg);
  p.is_place[t] = true;
  lm_probe_row(&p, f);
  lm_region_walk(f->body, visit, &p);
  probe_free(&p);
  lm_func_remove(m, f);
  return p.ok;
}
