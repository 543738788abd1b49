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

#include "compiler/passes/causal/causal.h"
#include "runtime/base/diag_code.h"

// What an unweighted value depends on.
typedef struct source {
  const lm_op *from; // a gather; NULL: none
  bool combined;     // of several positions
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

static bool gives_weight(const tracker *x, const lm_op *op) {
  switch (op->code) {
  case LM_OP_CAST:
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return is_weight(x, op->in[0]);
  case LM_OP_AND:
  case LM_OP_MUL: return is_weight(x, op->in[0]) || is_weight(x, op->in[1]);
  case LM_OP_SELECT: return is_weight(x, op->in[1]) && is_weight(x, op->in[2]);
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

// True if an element of the result depends on other positions than its own, or on other rows.
static bool combines(const tracker *x, const lm_op *op) {
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE)
    return false;
  return !(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE) && lm_probe_over(op, x->of_weight);
}

// True if the operation leaves out what its other inputs are at positions of weight 0.
static bool weighs(const tracker *x, const lm_op *op) {
  if (op->code == LM_OP_SELECT)
    return x->from && is_weight(x, op->in[0]);
  bool multiplies = op->code == LM_OP_MUL || op->code == LM_OP_DOT;
  return multiplies && (is_weight(x, op->in[0]) || is_weight(x, op->in[1]));
}

static source found(const tracker *x, const lm_op *op) {
  if (op->n_out == 1 && x->reads[op->out[0]->id])
    return (source){op, false};
  source s = joined(x, op->in, op->n_in);
  s.combined &= !x->from;
  if (!s.combined && weighs(x, op))
    return (source){0};
  s.combined |= s.from && combines(x, op);
  return s;
}

static void region_visit(const tracker *x, const lm_region *r);

// A carry of a loop has the origin that its values have in all iterations. The arguments of other
// regions count as learned.
static void carries_enter(const tracker *x, const lm_op *loop) {
  x->from[loop->body->args[0]->id] = FIXED;
  for (uint32_t i = 0; i < loop->n_in; i++)
    x->from[loop->body->args[i + 1]->id] = x->from[loop->in[i]->id];
}

// True if an iteration gives a carry another origin.
static bool carries_change(const tracker *x, const lm_op *loop) {
  bool changed = false;
  for (uint32_t i = 0; i < loop->n_in; i++) {
    origin *of = &x->from[loop->body->args[i + 1]->id];
    origin next = x->from[loop->body->last->in[i]->id];
    changed |= next < *of;
    *of = next < *of ? next : *of;
  }
  return changed;
}

static void carries_leave(const tracker *x, const lm_op *loop) {
  for (uint32_t i = 0; i < loop->n_in; i++)
    x->from[loop->out[i]->id] = x->from[loop->body->args[i + 1]->id];
}

// Values of any iteration count for all of them.
static void body_visit(const tracker *x, const lm_op *op) {
  const lm_op *yield = op->body->last;
  bool origins = x->from && op->code == LM_OP_LOOP;
  source s = joined(x, op->in, op->n_in);
  s.combined |= s.from && combines(x, op);
  if (origins)
    carries_enter(x, op);
  bool changed = true;
  for (int visits = 0; visits < 2 || changed; visits++) {
    for (uint32_t i = 0; i < op->body->n_args; i++)
      x->of[op->body->args[i]->id] = s;
    region_visit(x, op->body);
    source next = joined(x, yield->in, yield->n_in);
    s = s.combined || !next.from ? s : next;
    changed = origins && carries_change(x, op);
  }
  if (origins)
    carries_leave(x, op);
  for (uint32_t i = 0; i < op->n_out; i++)
    x->of[op->out[i]->id] = joined(x, yield->in, yield->n_in);
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
