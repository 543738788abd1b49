// causal_reach.c - rejects models whose logits depend on later positions or on other documents.
//
// Each value has the interval of positions of the row that each of its elements depends on:
//   %u = slice %x (t) -> (u) [1, 1]       element j of u: position j + 1
//   %y = pad %u (u) -> (t) [0, 1]         element t: position t + 1
//   %z = add %x, %y                       element t: positions t … t + 1
// Operations that move elements move the intervals; reductions and dots take their unions. The
// facts of causal_cells.c remove what masks exclude (causal_proof.c). Loops are visited until the
// intervals of their carries are stable.
//
// The logits at t may depend on positions of t's document up to t, and within a prompt on all of
// it. A gather that reads values at `next`, as in the cross-entropy, may read values that depend on
// positions before that token only; within a prompt it may read others if the loss multiplies the
// result by `w`, which is 0 there (causal_weight.c).
// Sums over positions in the loss, after the logits, are not restricted.
#include "compiler/passes/causal/causal_reach.h"

#include "compiler/ops/interface.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

static reach of(const reacher *r, const lm_value *v) {
  return r->of[v->id];
}

// ---- intervals that exceed what an element may depend on

typedef struct excess {
  int64_t t;
  int64_t at;
  bool later;
  bool same_document;
} excess;

// True if t follows the position before it. After a gap of the sample, index and position differ;
// padding has no weight in the loss.
static bool is_consecutive(const reacher *r, int64_t t) {
  return r->p->pos[t] == (double)(t - r->start[t]) && r->p->seg[t] >= 0;
}

static bool excess_at(const reacher *r, const term *x, int64_t t, excess *out) {
  int64_t first = r->p->n_positions + 1 - x->before[t];
  int64_t last = x->after[t] - 1;
  int64_t most = r->p->last[t];
  if (!x->after[t] || !is_consecutive(r, t) || (last <= most && first >= r->start[t]))
    return false;
  bool later = last > most;
  // An interval that reaches another document includes `most` + 1 if that is in the same document.
  bool inside = later && most + 1 < r->p->n_positions && r->start[most + 1] == r->start[t];
  int64_t end = most + 1;
  while (inside && end < last && r->start[end + 1] == r->start[t])
    end++;
  *out = (excess){t, inside ? end : later ? last : first, later, inside};
  return true;
}

// Prefers a later position of the same document.
static bool exceeds(const reacher *r, const reach *x, lm_axis t, excess *out) {
  term along = lm_reach_along(r, x, t);
  bool found = false;
  for (int64_t i = 0; i < r->p->n_positions; i++) {
    excess one;
    if (!excess_at(r, &along, i, &one))
      continue;
    if (!found || (one.same_document && !out->same_document))
      *out = one;
    found = true;
    if (out->same_document)
      break;
  }
  return found;
}

// True if the value has one element per position, not one per pair of positions.
static bool is_by_position(const reacher *r, const lm_value *v, lm_axis *out_t) {
  return lm_probe_has(r->p->is_position, v->type, out_t) && !lm_probe_gridded(r->p, v->type);
}

static bool value_exceeds(const reacher *r, const lm_value *v, const reach *x) {
  lm_axis t;
  excess e;
  return is_by_position(r, v, &t) && x->n && exceeds(r, x, t, &e);
}

// ---- causes

static const cause *cause_new(const reacher *r, const lm_op *op, const cause *before) {
  cause *c = LM_NEW(r->a, cause);
  *c = (cause){op, before};
  return c;
}

// `moves`: the operation moves elements along positions or reduces over positions.
static void cause_find(const reacher *r, const lm_op *op, bool moves, reach *x) {
  lm_axis t;
  const cause *before = NULL;
  bool exceeded = value_exceeds(r, op->out[0], x);
  x->cause = NULL;
  if (!exceeded && is_by_position(r, op->out[0], &t))
    return;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reach in = of(r, op->in[i]);
    if (in.cause && !before)
      before = in.cause;
    if (in.cause && value_exceeds(r, op->in[i], &in)) {
      x->cause = in.cause;
      return;
    }
  }
  x->cause = moves || (exceeded && !before) ? cause_new(r, op, before) : before;
}

// ---- rules

static reach united(const reacher *r, const lm_op *op) {
  reach x = {.n = 0};
  for (uint32_t i = 0; i < op->n_in; i++) {
    reach in = of(r, op->in[i]);
    lm_reach_join(r, &x, &in);
  }
  return x;
}

static reach without_terms(const reach *x) {
  return (reach){
      .n = 0,
      .tokens = x->tokens,
      .targets = x->targets,
  };
}

static reach selected(const reacher *r, const lm_op *op) {
  const uint8_t *taken = r->p->proofs[op->out[0]->id].taken;
  const proof *condition = &r->p->proofs[op->in[0]->id];
  lm_axis t;
  bool known = taken && lm_probe_has(r->p->is_position, op->out[0]->type, &t);
  bool *keep = LM_NEW_N(r->a, bool, r->p->n_positions);
  reach x = of(r, op->in[0]);
  for (uint32_t i = 1; i < op->n_in; i++) {
    reach branch = of(r, op->in[i]);
    for (int64_t k = 0; known && k < r->p->n_positions; k++)
      keep[k] = taken[k] & (i == 1 ? TAKES_FIRST : TAKES_SECOND);
    if (known && branch.n)
      lm_reach_keep(r, &branch, t, keep);
    if (known)
      lm_reach_mask(r, &branch, condition, t, i == 1);
    lm_reach_index(r, &branch, op->in[0], i == 1);
    lm_reach_join(r, &x, &branch);
  }
  return x;
}

// A factor that is 0 removes what the other one depends on.
static reach multiplied(const reacher *r, const lm_op *op) {
  reach x = {.n = 0};
  lm_axis t;
  if (!lm_probe_has(r->p->is_position, op->out[0]->type, &t))
    return united(r, op);
  for (uint32_t i = 0; i < op->n_in; i++) {
    reach factor = of(r, op->in[i]);
    lm_reach_mask(r, &factor, &r->p->proofs[op->in[1 - i]->id], t, true);
    lm_reach_index(r, &factor, op->in[1 - i], true);
    lm_reach_join(r, &x, &factor);
  }
  return x;
}

// The terms of x that have one of the axes, changed by `change`; *out_moves: there is one.
typedef term change(const reacher *r, const term *x, const lm_op *op);
static reach changed(const reacher *r, const lm_op *op, change *fn, bool *out_moves) {
  reach in = united(r, op);
  reach x = without_terms(&in);
  for (int i = 0; i < in.n; i++) {
    bool touched = lm_term_has(&in.v[i], op->attr.axes, op->attr.n_axes);
    *out_moves |= touched;
    lm_reach_add(r, &x, touched ? fn(r, &in.v[i], op) : in.v[i]);
  }
  return x;
}

static term change_slice(const reacher *r, const term *x, const lm_op *op) {
  return lm_term_slice(r, x, &op->attr);
}
static term change_pad(const reacher *r, const term *x, const lm_op *op) {
  return lm_term_pad(r, x, op->attr.axes[0], op->attr.to[0], op->attr.imm[0], op->attr.imm[1]);
}
static term change_window(const reacher *r, const term *x, const lm_op *op) {
  return lm_term_taps(r, x, &op->attr);
}
static term change_view(const reacher *r, const term *x, const lm_op *op) {
  return lm_term_view(r, x, &op->attr);
}
static term change_sum(const reacher *r, const term *x, const lm_op *op) {
  return lm_term_reduced(r, x, op->attr.axes, op->attr.n_axes);
}
static term change_name(const reacher *r, const term *x, const lm_op *op) {
  term out = *x;
  for (int i = 0; i < op->attr.n_axes; i++) {
    int at = lm_type_find(x->type, op->attr.axes[i]);
    if (at >= 0)
      out.type.axis[at] = op->attr.to[i];
  }
  return out;
}

// A reduction over the history reads the positions that its masks leave.
static term change_history(const reacher *r, const term *x, const lm_op *op) {
  const proof *known = &r->p->proofs[op->out[0]->id];
  term out = *x;
  lm_axis t;
  for (int i = 0; i < op->attr.n_axes; i++)
    if (r->p->is_history[op->attr.axes[i]] && lm_term_has(&out, &op->attr.axes[i], 1) &&
        lm_probe_has(r->p->is_position, op->out[0]->type, &t))
      out = lm_term_window(r, &out, op->attr.axes[i], t, known->first, known->last);
  return lm_term_reduced(r, &out, op->attr.axes, op->attr.n_axes);
}

static reach concatenated(const reacher *r, const lm_op *op, bool *out_moves) {
  reach in = united(r, op);
  reach x = without_terms(&in);
  int64_t first = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    for (int k = 0; k < of(r, op->in[i]).n; k++)
      *out_moves |= lm_term_has(&r->of[op->in[i]->id].v[k], &op->attr.axes[i], 1);
  if (!*out_moves)
    return in;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reach part = of(r, op->in[i]);
    for (int k = 0; k < part.n; k++)
      lm_reach_add(r, &x, lm_term_pad(r, &part.v[k], op->attr.axes[i], op->attr.to[0], first, 1));
    first += lm_axis_size(r->p->m, op->attr.axes[i]);
  }
  return x;
}

static reach gathered(const reacher *r, const lm_op *op, bool *out_moves) {
  const int64_t *index = r->p->proofs[op->out[0]->id].index;
  lm_axis over = op->attr.axes[0];
  lm_axis t;
  reach table = of(r, op->in[0]);
  reach x = of(r, op->in[1]);
  bool read = index && lm_probe_has(r->p->is_position, op->in[1]->type, &t);
  x.tokens |= table.tokens;
  x.targets |= table.targets;
  for (int i = 0; i < table.n; i++) {
    bool touched = lm_term_has(&table.v[i], &over, 1);
    *out_moves |= touched;
    lm_reach_add(r, &x,
                 touched && read ? lm_term_window(r, &table.v[i], over, t, index, index)
                                 : lm_term_reduced(r, &table.v[i], &over, 1));
  }
  return x;
}

static reach collapsed(const reacher *r, const lm_op *op, bool *out_moves) {
  reach in = united(r, op);
  reach x = without_terms(&in);
  for (int i = 0; i < in.n; i++) {
    *out_moves |= in.v[i].type.rank > 0;
    lm_reach_add(r, &x, lm_term_reduced(r, &in.v[i], in.v[i].type.axis, in.v[i].type.rank));
  }
  return x;
}

// ---- rows that are sorted by group
//
// Which rows are beside a row depends on all positions, but an operation on each row does not. So
// rows keep the intervals that they had before they were sorted, until ungroup_rows puts them back.
// Whatever else moves rows, or combines rows of two orders, may depend on all positions.

// The operation without operands from number n on.
static lm_op first_operands(const lm_op *op, uint32_t n) {
  lm_op some = *op;
  some.n_in = n;
  return some;
}

// The rows of x depend on the ids that they are sorted by, since those choose their weights.
static reach grouped_rows(const reacher *r, const lm_op *op) {
  lm_op x = first_operands(op, 1);
  reach out = united(r, &x);
  if (lm_op_is(op->in[1], LM_OP_GROUP_ORDER)) {
    reach id = of(r, op->in[1]->def->in[0]);
    lm_reach_join(r, &out, &id);
  }
  return out;
}

static reach group_reach(const reacher *r, const lm_op *op, bool *out_moves) {
  lm_op factors = first_operands(op, 2);
  lm_op first = first_operands(op, 1);
  if (op->code == LM_OP_GROUP_ROWS)
    return grouped_rows(r, op);
  return op->code == LM_OP_GROUPED_DOT ? changed(r, &factors, change_sum, out_moves)
                                       : united(r, &first);
}

static bool names_axis(const lm_op *op, lm_axis a) {
  for (int i = 0; i < op->attr.n_to; i++)
    if (op->attr.to[i] == a)
      return true;
  return lm_attr_has_axis(&op->attr, a);
}

// True if op computes each row of this order from that row.
static bool keeps_rows(const lm_op *op, const lm_value *order) {
  switch (op->code) {
  case LM_OP_UNGROUP_ROWS: return op->in[2] == order;
  case LM_OP_GROUPED_DOT:
    return lm_op_is(order, LM_OP_GROUP_ORDER) && op->in[2] == order->def->in[1];
  default: return !names_axis(op, order->type.axis[0]);
  }
}

// Sets x->order, the order of the result's rows.
static void order_follow(const reacher *r, const lm_op *op, reach *x, bool *out_moves) {
  bool fits = true;
  bool sorts = op->code == LM_OP_GROUP_ROWS;
  const lm_value *order = NULL;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *own = of(r, op->in[i]).order;
    fits &= !own || ((!order || own == order) && !sorts && keeps_rows(op, own));
    order = own ? own : order;
  }
  fits &= order || (op->code != LM_OP_UNGROUP_ROWS && op->code != LM_OP_GROUPED_DOT) || !x->n;
  if (!fits)
    *x = collapsed(r, op, out_moves);
  x->order = sorts ? op->in[1] : op->code == LM_OP_UNGROUP_ROWS || !fits ? NULL : order;
}

static reach op_reach(const reacher *r, const lm_op *op, bool *out_moves) {
  bool ignored = false;
  switch (op->code) {
  case LM_OP_SELECT: return selected(r, op);
  case LM_OP_MUL: return multiplied(r, op);
  case LM_OP_PERMUTE:
  case LM_OP_EXPAND: return united(r, op);
  case LM_OP_RENAME:
  case LM_OP_HISTORY: return changed(r, op, change_name, &ignored);
  case LM_OP_SLICE: return changed(r, op, change_slice, out_moves);
  case LM_OP_PAD: return changed(r, op, change_pad, out_moves);
  case LM_OP_VIEW: return changed(r, op, change_view, out_moves);
  case LM_OP_WINDOW: return changed(r, op, change_window, out_moves);
  case LM_OP_CONCAT: return concatenated(r, op, out_moves);
  case LM_OP_GATHER:
    if (lm_probe_best(r->p, op))
      break;
    return gathered(r, op, out_moves);
  case LM_OP_AT: return united(r, op);
  case LM_OP_GROUP_ORDER:
  case LM_OP_GROUP_INVERSE:
  case LM_OP_GROUP_ROWS:
  case LM_OP_UNGROUP_ROWS:
  case LM_OP_GROUPED_DOT: return group_reach(r, op, out_moves);
  default: break;
  }
  if (lm_op_has(op, LM_T_SOURCE))
    return (reach){.n = 0};
  if (lm_op_has(op, LM_T_REDUCE | LM_T_DOT) || lm_probe_best(r->p, op))
    return changed(r, op, r->p->proofs[op->out[0]->id].first ? change_history : change_sum,
                   out_moves);
  return lm_op_has(op, LM_T_ELEMENTWISE) ? united(r, op) : collapsed(r, op, out_moves);
}

// A constant depends on nothing.
static void drop_constants(const reacher *r, const lm_op *op, reach *x) {
  const bool *constant = r->p->proofs[op->out[0]->id].constant;
  lm_axis t;
  if (!constant || !x->n || !lm_probe_has(r->p->is_position, op->out[0]->type, &t))
    return;
  bool *keep = LM_NEW_N(r->a, bool, r->p->n_positions);
  bool any = false;
  for (int64_t i = 0; i < r->p->n_positions; i++) {
    keep[i] = !constant[i];
    any |= constant[i];
  }
  if (any)
    lm_reach_keep(r, x, t, keep);
}

// ---- gathers at the tokens that are predicted

static bool is_tok(const lm_value *v) {
  return !v->def && v->name && lm_column_find(v->name) == LM_COLUMN_TOK;
}

// True if the value is a further column with an element for each position, such as a label.
static bool is_label(const reacher *r, const lm_value *v) {
  lm_axis t;
  bool further = !v->def && v->name && lm_column_find(v->name) == LM_COLUMNS;
  return further && lm_probe_has(r->p->is_position, v->type, &t);
}

// A gather of values at `next` along an axis that both have: cross-entropy.
static void pair_check(reacher *r, const lm_op *op) {
  reach index = of(r, op->in[1]);
  reach table = of(r, op->in[0]);
  if (is_tok(op->in[1]) && table.tokens && !r->p->needed[op->out[0]->id])
    r->p->reads_tok = op;
  if (is_label(r, op->in[1]) && table.tokens)
    r->p->reads_next[op->out[0]->id] = !r->p->needed[op->out[0]->id];
  if (r->paired || !index.targets || index.tokens || index.n != 1 ||
      !(table.tokens | table.targets))
    return;
  r->p->reads_next[op->out[0]->id] = table.tokens && !r->p->needed[op->out[0]->id];
  lm_type along = index.v[0].type;
  if (along.rank != 1 || lm_type_find(op->in[0]->type, along.axis[0]) < 0)
    return;
  term read = lm_reach_along(r, &table, along.axis[0]);
  for (int64_t t = 0; t < lm_axis_size(r->p->m, along.axis[0]); t++) {
    int64_t token = r->p->n_positions + 1 - index.v[0].before[t];
    if (!index.v[0].before[t] || read.after[t] - 1 < token)
      continue;
    if (r->p->prompt && t < r->p->n_positions && read.after[t] - 1 <= r->p->last[t]) {
      r->p->reads_prompt[op->out[0]->id] = true;
      continue;
    }
    r->paired = op;
    r->pair_cause = table.cause;
    r->pair_t = t;
    return;
  }
}

// ---- the walk

static void region_visit(reacher *r, const lm_region *x);

static void loop_visit(reacher *r, const lm_op *op) {
  enum {
    EXACT = 4 // visits before intervals that still grow are widened
  };
  const lm_region *body = op->body;
  const lm_op *yield = body->last;
  for (uint32_t i = 0; i < op->n_in; i++)
    r->of[body->args[1 + i]->id] = of(r, op->in[i]);
  bool changed = true;
  for (int64_t n = 0; changed && n < op->attr.imm[0]; n++) {
    changed = false;
    region_visit(r, body);
    for (uint32_t i = 0; i < op->n_in; i++)
      changed |= lm_reach_grow(r, &r->of[body->args[1 + i]->id], &r->of[yield->in[i]->id],
                               n >= EXACT && n + 1 < op->attr.imm[0]);
  }
  for (uint32_t i = 0; i < op->n_out; i++)
    r->of[op->out[i]->id] = i < op->n_in ? of(r, body->args[1 + i]) : of(r, yield->in[i]);
}

// The cause of a result: that of an operand that exceeds already, or the scan.
static void scan_visit(reacher *r, const lm_op *op) {
  const cause *before = NULL;
  const cause *excess = NULL;
  for (uint32_t i = 0; i < op->n_in; i++) {
    reach in = of(r, op->in[i]);
    before = before ? before : in.cause;
    if (!excess && in.cause && value_exceeds(r, op->in[i], &in))
      excess = in.cause;
  }
  lm_reach_scan(r, op);
  for (uint32_t i = 0; i < op->n_out; i++) {
    reach *x = &r->of[op->out[i]->id];
    lm_axis t;
    bool moves = !is_by_position(r, op->out[i], &t) || value_exceeds(r, op->out[i], x);
    x->cause = excess ? excess : moves ? cause_new(r, op, before) : before;
  }
}

static void region_visit(reacher *r, const lm_region *x) {
  for (const lm_op *op = x->first; op; op = op->next) {
    if (op->code == LM_OP_LOOP) {
      loop_visit(r, op);
      continue;
    }
    if (op->code == LM_OP_SCAN) {
      scan_visit(r, op);
      continue;
    }
    if (op->n_out != 1)
      continue;
    bool moves = false;
    if (op->code == LM_OP_GATHER)
      pair_check(r, op);
    reach out = op_reach(r, op, &moves);
    order_follow(r, op, &out, &moves);
    drop_constants(r, op, &out);
    cause_find(r, op, moves, &out);
    r->of[op->out[0]->id] = out;
  }
}

// ---- errors

static void path_note(const reacher *r, lm_diag *d, const cause *c) {
  enum {
    MAX_NOTES = 3
  };
  for (int i = 0; c && i < MAX_NOTES; c = c->before, i++)
    lm_diag_note(r->p->c, d, c->op->loc, "its operand comes from this operation on the positions");
}

static lm_diag *refuse_later(const reacher *r, const lm_op *op) {
  r->p->ok = false;
  return LM_REPORT(r->p->c, op->loc, E0D0);
}

static void explain_later(const reacher *r, lm_diag *d, const cause *c) {
  lm_diag_note(r->p->c, d, (lm_loc){0},
               "the logits contain the token that they predict, so their loss has no meaning");
  path_note(r, d, c ? c->before : NULL);
  lm_diag_help(r->p->c, d,
               "relate positions by history(x, t -> s) and a mask such as expand(pos, s) >= ps & "
               "expand(seg, s) == ss. A column `prompt` of `apply` marks positions that may depend "
               "on all of the prompt; a model that predicts no next token has no `apply`");
}

static void refuse_logits(const reacher *r, const lm_op *at, const cause *c, const excess *e) {
  const lm_op *op = c ? c->op : at;
  const probe *p = r->p;
  if (e->same_document) {
    lm_diag *d = refuse_later(r, op);
    lm_diag_note(p->c, d, (lm_loc){0}, "position %.0f of a document depends on its position %.0f",
                 p->pos[e->t], p->pos[e->at]);
    explain_later(r, d, c);
    return;
  }
  r->p->ok = false;
  lm_diag *d = LM_REPORT(p->c, op->loc, E0D4);
  lm_diag_note(p->c, d, (lm_loc){0},
               "in a row of packed documents, position %.0f of one depends on position %.0f of %s "
               "one",
               p->pos[e->t], p->pos[e->at], e->later ? "a later" : "an earlier");
  path_note(r, d, c ? c->before : NULL);
  lm_diag_help(p->c, d, "%s",
               op->code == LM_OP_SCAN
                   ? "begin each document without the carry: select(pos > 0, h, 0) instead of h"
               : op->code == LM_OP_WINDOW
                   ? "leave out the taps before the document: select(expand(pos, k) >= k - 1 - "
                     "iota(k), x, 0), as short_conv of std.nn does"
               : lm_probe_over(op, p->is_history)
                   ? "separate the documents in the mask: … & expand(seg, s) == ss, where ss is "
                     "history(seg, t -> s)"
                   : "exclude them by a condition on pos or seg, such as select(expand(pos >= 1, "
                     "d), x, 0) for a shift by one position");
}

static void refuse_pair(const reacher *r) {
  const cause *c = r->pair_cause;
  lm_diag *d = refuse_later(r, c ? c->op : r->paired);
  lm_diag_note(r->p->c, d, r->paired->loc, "the loss reads the result at the token that follows");
  explain_later(r, d, c);
}

static void args_begin(reacher *r, const lm_func *f, lm_axis t) {
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const lm_value *v = f->body->args[i];
    int column = v->name ? (int)lm_column_find(v->name) : -1;
    reach *x = &r->of[v->id];
    if (column != LM_COLUMN_TOK && column != LM_COLUMN_NEXT)
      continue;
    x->tokens = column == LM_COLUMN_TOK;
    x->targets = !x->tokens;
    lm_reach_add(r, x, lm_term_identity(r, t, x->targets));
  }
}

static void documents_begin(reacher *r) {
  const probe *p = r->p;
  r->start = LM_NEW_N(r->a, int64_t, p->n_positions);
  for (int64_t t = 1; t < p->n_positions; t++)
    r->start[t] = p->seg[t] == p->seg[t - 1] ? r->start[t - 1] : t;
}

void lm_probe_reach(probe *p, const lm_func *f) {
  reacher r = {
      .p = p,
      .a = p->a,
      .of = LM_NEW_N(p->a, reach, p->m->n_values + 1),
  };
  const lm_op *end = f->body->last;
  documents_begin(&r);
  args_begin(&r, f, f->body->args[0]->type.axis[1]);
  region_visit(&r, f->body);
  for (uint32_t i = 0; i < end->n_in && p->ok; i++) {
    const lm_value *v = end->in[i];
    reach x = of(&r, v);
    lm_axis t;
    excess e;
    if (lm_probe_has(p->is_position, v->type, &t) && x.n && exceeds(&r, &x, t, &e))
      refuse_logits(&r, v->def ? v->def : end, x.cause, &e);
  }
  if (p->ok && r.paired)
    refuse_pair(&r);
  if (p->ok)
    lm_probe_weights(p, f);
}
