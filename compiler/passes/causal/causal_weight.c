// causal_weight.c - rejects losses that read the logits of a prompt at the tokens that they
// contain, and warns of losses that read others without a weight.
//
// Within a prompt the logits depend on the tokens that they predict. The weight `w` is 0 there, so
// what the loss reads of them has to be multiplied by it: sum(xent(z, bt.next) * bt.w). A value
// that combines several positions first, such as sum(xent(z, bt.next), t) * bt.w, is not: its
// weight is that of another position.
//
// Elsewhere a loss whose values at `next`, or at a column of labels, no weight multiplies counts
// padding, and the text that a chat template or a prompt leaves untrained. Any number that is
// computed of the batch alone, and not of `tok`, `pos` and `next` alone, may be that weight.
#include <string.h>

#include "compiler/ir/scan.h"
#include "compiler/passes/causal/causal.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

// What an unweighted value depends on.
typedef struct source {
  const lm_op *from; // a gather; NULL: none
  bool combined;     // of several positions; without prompts: by a sum or maximum
} source;

typedef enum {
  LEARNED, // depends on parameters
  FIXED,   // constants, tok, pos, next
  CHOSEN,  // w, seg, and further columns
} origin;

typedef struct tracker {
  const probe *p;
  const bool *reads;     // by value id: p->reads_prompt or p->reads_next
  origin *from;          // by value id; NULL: only `w` is a weight
  source *of;            // by value id
  const bool *of_weight; // the axes of `w`
  bool *zero;            // by value id: computed of weights, and 0 where they are
} tracker;

static bool is_column(const lm_value *v) {
  return !v->def && v->name && lm_column_find(v->name) == LM_COLUMN_W;
}

static bool is_fixed(const lm_value *v) {
  lm_column_id column = lm_column_find(v->name);
  return column == LM_COLUMN_TOK || column == LM_COLUMN_POS || column == LM_COLUMN_NEXT;
}

static origin origin_of(const tracker *x, const lm_op *op) {
  if (op->code == LM_OP_PARAM || op->body)
    return LEARNED;
  origin from = FIXED;
  for (uint32_t i = 0; i < op->n_in; i++) {
    origin of = x->from[op->in[i]->id];
    if (of == LEARNED)
      return LEARNED;
    from = of == CHOSEN ? CHOSEN : from;
  }
  return from;
}

// True if the value is 0 (false) wherever `w` is, or may be.
static bool is_weight(const tracker *x, const lm_value *v) {
  bool given = x->from ? x->from[v->id] == CHOSEN : is_column(v);
  return given || x->zero[v->id];
}

static bool all_weights(const tracker *x, const lm_op *op, uint32_t first) {
  for (uint32_t i = first; i < op->n_in; i++)
    if (!is_weight(x, op->in[i]))
      return false;
  return true;
}

// True if the result is 0 (false) wherever `w` is.
static bool gives_weight(const tracker *x, const lm_op *op) {
  bool moves = lm_probe_over(op, x->of_weight);
  switch (op->code) {
  case LM_OP_CONST: return op->attr.num == 0;
  case LM_OP_CAST:
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE:
  case LM_OP_STOP:
  case LM_OP_NEG:
  case LM_OP_SQRT:
  case LM_OP_DIV: return is_weight(x, op->in[0]);
  case LM_OP_AND:
  case LM_OP_MUL: return is_weight(x, op->in[0]) || is_weight(x, op->in[1]);
  case LM_OP_SELECT: return all_weights(x, op, 1);
  case LM_OP_ADD:
  case LM_OP_SUB: return all_weights(x, op, 0);
  case LM_OP_SUM:
  case LM_OP_MAX: return !moves && all_weights(x, op, 0);
  case LM_OP_SLICE:
  case LM_OP_PAD:
  case LM_OP_VIEW:
  case LM_OP_RENAME:
  case LM_OP_WINDOW: return (x->from || !moves) && all_weights(x, op, 0);
  default: return false;
  }
}

static source joined(const tracker *x, lm_value *const *v, uint32_t n) {
  source out = {0};
  for (uint32_t i = 0; i < n; i++) {
    const source *s = &x->of[v[i]->id];
    if (s->from && (!out.from || s->combined))
      out = *s;
  }
  return out;
}

// True if an element of the result depends on other positions than its own, or on other rows. What
// `next` is read for may be moved together with its weight, but not summed before.
static bool combines(const tracker *x, const lm_op *op) {
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE || !lm_probe_over(op, x->of_weight))
    return false;
  if (x->from)
    return op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_DOT;
  return !(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE);
}

// True if the weight lacks the positions of v, as the number of trained tokens does.
static bool lacks_positions(const tracker *x, const lm_value *weight, const lm_value *v) {
  while (lm_op_is(weight, LM_OP_EXPAND) || lm_op_is(weight, LM_OP_CAST))
    weight = weight->def->in[0];
  for (int i = 0; x->from && i < v->type.rank; i++)
    if (x->of_weight[v->type.axis[i]] && lm_type_find(weight->type, v->type.axis[i]) < 0)
      return true;
  return false;
}

static bool weighs_by(const tracker *x, const lm_op *op, uint32_t which, const lm_value *v) {
  return is_weight(x, op->in[which]) && !lacks_positions(x, op->in[which], v);
}

// True if the operation leaves out what its other inputs are at positions of weight 0.
static bool weighs(const tracker *x, const lm_op *op) {
  if (op->code == LM_OP_SELECT)
    return x->from && weighs_by(x, op, 0, op->out[0]);
  if (op->code == LM_OP_DIV)
    return weighs_by(x, op, 0, op->in[1]);
  bool multiplies = op->code == LM_OP_MUL || op->code == LM_OP_DOT;
  return multiplies && (weighs_by(x, op, 0, op->in[1]) || weighs_by(x, op, 1, op->in[0]));
}

static source found(const tracker *x, const lm_op *op) {
  if (op->n_out == 1 && x->reads[op->out[0]->id])
    return (source){op, false};
  source s = joined(x, op->in, op->n_in);
  if (!s.combined && weighs(x, op))
    return (source){0};
  s.combined |= s.from && combines(x, op);
  return s;
}

static void region_visit(const tracker *x, const lm_region *r);

// ---- loops and scans

static uint32_t carries_of(const lm_op *op) {
  return op->code == LM_OP_SCAN ? lm_scan_carries(op) : op->n_in;
}

// The argument of the region for operand i.
static const lm_value *argument_of(const lm_op *op, uint32_t i) {
  return op->body->args[i + (op->code == LM_OP_LOOP)];
}

// Includes in the argument for operand i what v is, its value in some iteration. True if that
// changes it.
static bool argument_join(const tracker *x, const lm_op *op, uint32_t i, const lm_value *v) {
  const lm_value *arg = argument_of(op, i);
  source *s = &x->of[arg->id];
  source now = joined(x, (lm_value *[]){(lm_value *)arg, (lm_value *)v}, 2);
  bool changed = now.from && (!s->from || now.combined != s->combined);
  if (changed)
    *s = now;
  if (x->from && x->from[v->id] < x->from[arg->id]) {
    x->from[arg->id] = x->from[v->id];
    changed = true;
  }
  return changed;
}

static void arguments_begin(const tracker *x, const lm_op *op) {
  for (uint32_t i = 0; i < op->body->n_args; i++)
    x->of[op->body->args[i]->id] = (source){0};
  if (x->from && op->code == LM_OP_LOOP)
    x->from[op->body->args[0]->id] = FIXED;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *arg = argument_of(op, i);
    if (x->from)
      x->from[arg->id] = x->from[op->in[i]->id];
    argument_join(x, op, i, op->in[i]);
    x->of[arg->id].combined |= x->of[arg->id].from && combines(x, op);
    x->zero[arg->id] = i >= carries_of(op) && x->zero[op->in[i]->id];
  }
}

// A carry has the origin that its values have in all iterations, and what any iteration reads.
static void body_visit(const tracker *x, const lm_op *op) {
  const lm_op *yield = op->body->last;
  arguments_begin(x, op);
  for (bool changed = true; changed;) {
    changed = false;
    region_visit(x, op->body);
    for (uint32_t i = 0; i < carries_of(op); i++)
      changed |= argument_join(x, op, i, yield->in[i]);
  }
  for (uint32_t i = 0; i < op->n_out; i++) {
    bool carry = i < carries_of(op);
    const lm_value *v = carry ? argument_of(op, i) : yield->in[i];
    source *s = &x->of[op->out[i]->id];
    *s = x->of[v->id];
    s->combined |= s->from && carry && op->code == LM_OP_SCAN;
    if (x->from)
      x->from[op->out[i]->id] = x->from[v->id];
    x->zero[op->out[i]->id] = !carry && x->zero[v->id];
  }
}

static void region_visit(const tracker *x, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    source s = found(x, op);
    for (uint32_t i = 0; !op->body && i < op->n_out; i++) {
      x->of[op->out[i]->id] = s;
      x->zero[op->out[i]->id] = gives_weight(x, op);
      if (x->from)
        x->from[op->out[i]->id] = origin_of(x, op);
    }
    if (op->body)
      body_visit(x, op);
  }
}

// The axes of `w`, and those that are made of the positions.
static bool *weight_axes(const probe *p, const lm_func *f) {
  bool *axes = LM_NEW_N(p->a, bool, p->m->n_axes);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const lm_value *v = f->body->args[i];
    for (int k = 0; is_column(v) && k < v->type.rank; k++)
      axes[v->type.axis[k]] = true;
  }
  for (uint32_t i = 0; i < p->m->n_axes; i++)
    axes[i] |= p->is_position[i] || p->is_history[i];
  return axes;
}

// The operation that reads what no weight multiplies before the function returns; NULL: none.
static const lm_op *unweighted(const tracker *x, const lm_func *f) {
  const lm_op *end = f->body->last;
  region_visit(x, f->body);
  return joined(x, end->in, end->n_in).from;
}

static tracker tracker_make(const probe *p, const lm_func *f, const bool *reads) {
  uint32_t n = p->m->n_values + 1;
  return (tracker){
      .p = p,
      .reads = reads,
      .of = LM_NEW_N(p->a, source, n),
      .of_weight = weight_axes(p, f),
      .zero = LM_NEW_N(p->a, bool, n),
  };
}

// `next`, or a further column such as data.label, as the loss names it.
static const char *index_name(const lm_value *v) {
  const char *dot = v->name && lm_column_find(v->name) == LM_COLUMNS ? strchr(v->name, '.') : NULL;
  return dot ? dot + 1 : "bt.next";
}

// True if v is an argument of the loss, or one in another layout or type.
static bool is_argument(const lm_func *f, const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_CAST || v->def->code == LM_OP_PERMUTE))
    v = v->def->in[0];
  for (uint32_t i = 0; i < f->body->n_args; i++)
    if (f->body->args[i] == v)
      return true;
  return false;
}

static void unweighted_report(const probe *p, const lm_func *f, const lm_op *from) {
  lm_diag *d = LM_REPORT(p->c, from->loc, W219);
  if (is_argument(f, from->in[1]))
    lm_diag_help(p->c, d, "sum(xent(z, %s) * bt.w)", index_name(from->in[1]));
  else
    lm_diag_help(p->c, d,
                 "the targets are computed, such as tokens further on: multiply by "
                 "weights that are computed of bt.w in the same way");
}

static void unweighted_warn(const probe *p, const lm_func *f) {
  tracker x = tracker_make(p, f, p->reads_next);
  x.from = LM_NEW_N(p->a, origin, p->m->n_values + 1);
  for (uint32_t i = 0; i < f->body->n_args; i++)
    x.from[f->body->args[i]->id] = is_fixed(f->body->args[i]) ? FIXED : CHOSEN;
  const lm_op *from = unweighted(&x, f);
  if (from)
    unweighted_report(p, f, from);
  if (p->reads_tok)
    lm_diag_help(p->c, LM_REPORT(p->c, p->reads_tok->loc, W21A), "sum(xent(z, bt.next) * bt.w)");
}

void lm_probe_weights(probe *p, const lm_func *f) {
  tracker x = tracker_make(p, f, p->reads_prompt);
  const lm_op *from = unweighted(&x, f);
  if (!from) {
    unweighted_warn(p, f);
    return;
  }
  p->ok = false;
  lm_diag *d = LM_REPORT(p->c, from->loc, E0FF);
  lm_diag_help(p->c, d, "sum(xent(z, bt.next) * bt.w)");
}
