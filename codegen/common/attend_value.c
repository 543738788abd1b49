// attend_value.c - see attend_value.h.
#include "codegen/common/attend_value.h"

static lm_attend_level level_of(const lm_attend_values *x, lm_type t) {
  bool row = lm_type_find(t, x->row) >= 0;
  bool col = lm_type_find(t, x->col) >= 0;
  return row ? (col ? LM_ATTEND_ELEMENT : LM_ATTEND_ROW) : col ? LM_ATTEND_COL : LM_ATTEND_ONCE;
}

const char *lm_attend_coordinate(const lm_attend_values *x, lm_axis a) {
  return lm_arena_printf(x->g->arena, "i_%s", lm_gen_axis_name(x->g, a));
}

static const char *iota(const lm_attend_values *x, lm_axis a) {
  const char *at = a == x->row ? x->at_row : a == x->col ? x->at_col : lm_attend_coordinate(x, a);
  return lm_arena_printf(x->g->arena, "(int32_t)(%s)", at);
}

static const char *random_number(lm_attend_values *x, const lm_op *op) {
  lm_type t = op->out[0]->type;
  const char *in[4];
  for (int i = 0; i < 4; i++)
    in[i] = lm_attend_value(x, op->in[i]);
  return lm_gen_rng_text(x->g->arena, op, t.rank ? iota(x, t.axis[t.rank - 1]) : "0", in);
}

// For a sum of cotangents over parallel axes the term is returned: everything after it is linear,
// and the target accumulates its results over these axes.
static const char *computed(lm_attend_values *x, const lm_op *op, lm_attend_level at) {
  const char *in[3];
  lm_dtype t = (lm_dtype)op->out[0]->type.dtype;
  if (op->code == LM_OP_CONST)
    return lm_gen_const_text(x->g->arena, t, op->attr.num);
  if (op->code == LM_OP_IOTA)
    return x->statement(x->user, at, t, iota(x, op->out[0]->type.axis[0]));
  if (op->code == LM_OP_RNG)
    return x->statement(x->user, at, t, random_number(x, op));
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = lm_attend_value(x, op->in[i]);
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE || op->code == LM_OP_SUM)
    return in[0];
  const char *text = lm_gen_op_text(x->g, op, in);
  return text == in[0] ? text : x->statement(x->user, at, t, text);
}

static const char *written(lm_attend_values *x, const lm_value *v, lm_attend_level at) {
  const lm_attend_dot *p = lm_attend_dot_of(x->f, v);
  if (p)
    return x->dot(x->user, (int)(p - x->f->dots));
  return v->def ? computed(x, v->def, at) : x->operand(x->user, v, at);
}

const char *lm_attend_value(lm_attend_values *x, const lm_value *v) {
  if (x->text[v->id])
    return x->text[v->id];
  lm_attend_level at = level_of(x, v->type);
  const char *text = written(x, v, at);
  if (at >= LM_ATTEND_COL)
    LM_PUSH(x->g->arena, x->local, x->n_local, x->cap_local) = v;
  return x->text[v->id] = text;
}

void lm_attend_values_end(lm_attend_values *x) {
  for (uint32_t i = 0; i < x->n_local; i++)
    x->text[x->local[i]->id] = NULL;
  x->n_local = 0;
}
