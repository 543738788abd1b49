// attend_tile.c - the elements of an attend's region as C: each operation is written at the level
// of the axes that it depends on.
#include "codegen/cpu/attend.h"
#include <string.h>

typedef enum {
  UNIFORM,
  ROW,
  COL,
  TILE
} level;

static level level_of(const cpu_attend *e, lm_type t) {
  bool row = lm_type_find(t, e->f.t) >= 0;
  bool col = lm_type_find(t, e->f.s) >= 0;
  return row ? (col ? TILE : ROW) : col ? COL : UNIFORM;
}

const char *cpu_attend_coordinate(cpu_attend *e, lm_axis a) {
  return lm_arena_printf(e->g.arena, "i_%s", lm_gen_axis_name(&e->g, a));
}

void cpu_attend_offset(cpu_attend *e, lm_buf *b, lm_type t, const char *at_t, const char *at_s) {
  int64_t stride = lm_type_elements(e->f.m, t);
  lm_buf_puts(b, "0");
  for (int i = 0; i < t.rank; i++) {
    lm_axis a = t.axis[i];
    stride /= lm_axis_size(e->f.m, a);
    if (lm_type_find(e->f.space, a) < 0)
      continue;
    const char *at = a == e->f.t ? at_t : a == e->f.s ? at_s : cpu_attend_coordinate(e, a);
    lm_buf_printf(b, " + (%s) * %lld", at, (long long)stride);
  }
}

// ---- statements

static const char *fresh(cpu_attend *e, char kind) {
  return lm_arena_printf(e->g.arena, "%c%d", kind, e->n_names++);
}

// Assigns `text`, of type t, to a variable at its level; returns the name.
static const char *statement(cpu_attend *e, level at, lm_dtype t, const char *text) {
  const char *type = lm_gen_register_type(t);
  const char *name = fresh(e, "uhke"[at]);
  if (at == ROW) {
    lm_buf_printf(&e->buffers, "%s %s[%lld] __attribute__((aligned(64))) = {0};\n", type, name,
                  (long long)e->rows);
    lm_buf_printf(&e->row, "%s[m] = %s;\n", name, text);
    return lm_arena_printf(e->g.arena, "%s[m]", name);
  }
  lm_buf_printf(at == UNIFORM ? &e->point
                : at == COL   ? &e->col
                              : &e->tile,
                "const %s %s = %s;\n", type, name, text);
  return name;
}

static const char *variable_keep(cpu_attend *e, const lm_value *v, level at, const char *text) {
  if (at >= COL)
    LM_PUSH(e->g.arena, e->local, e->n_local, e->cap_local) = v;
  return e->name[v->id] = text;
}

void cpu_attend_loops_end(cpu_attend *e) {
  for (uint32_t i = 0; i < e->n_local; i++)
    e->name[e->local[i]->id] = NULL;
  e->n_local = 0;
  e->col.n = e->tile.n = 0;
}

// ---- values

static const char *operand_load(cpu_attend *e, const lm_value *arg, level at) {
  lm_buf b = {0};
  lm_buf_printf(&b, "a%d[", lm_attend_operand(&e->f, arg));
  cpu_attend_offset(e, &b, arg->type, "t0 + m", "s0 + n");
  lm_buf_puts(&b, "]");
  const char *text = lm_gen_load_text(e->g.arena, (lm_dtype)arg->type.dtype,
                                      lm_arena_strndup(e->g.arena, b.p, b.n));
  lm_buf_free(&b);
  return statement(e, at, (lm_dtype)arg->type.dtype, text);
}

static const char *iota(cpu_attend *e, lm_axis a) {
  const char *at = a == e->f.t ? "t0 + m" : a == e->f.s ? "s0 + n" : cpu_attend_coordinate(e, a);
  return lm_arena_printf(e->g.arena, "(int32_t)(%s)", at);
}

static const char *random_number(cpu_attend *e, const lm_op *op) {
  lm_type t = op->out[0]->type;
  const char *in[4];
  for (int i = 0; i < 4; i++)
    in[i] = cpu_attend_value(e, op->in[i]);
  return lm_gen_rng_text(e->g.arena, op, t.rank ? iota(e, t.axis[t.rank - 1]) : "0", in);
}

// For a sum of cotangents over parallel axes the term is returned: everything after it is linear,
// and the loops over these axes accumulate into the results.
static const char *computed(cpu_attend *e, const lm_op *op, level at) {
  const char *in[3];
  lm_dtype t = (lm_dtype)op->out[0]->type.dtype;
  if (op->code == LM_OP_CONST)
    return lm_gen_const_text(e->g.arena, t, op->attr.num);
  if (op->code == LM_OP_IOTA)
    return statement(e, at, t, iota(e, op->out[0]->type.axis[0]));
  if (op->code == LM_OP_RNG)
    return statement(e, at, t, random_number(e, op));
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = cpu_attend_value(e, op->in[i]);
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE || op->code == LM_OP_SUM)
    return in[0];
  const char *text = lm_gen_op_text(&e->g, op, in);
  return text == in[0] ? text : statement(e, at, t, text);
}

const char *cpu_attend_value(cpu_attend *e, const lm_value *v) {
  if (e->name[v->id])
    return e->name[v->id];
  level at = level_of(e, v->type);
  const lm_attend_dot *p = lm_attend_dot_of(&e->f, v);
  if (p)
    return variable_keep(
        e, v, at,
        lm_arena_printf(e->g.arena, "p%d[n * %lld + m]", (int)(p - e->f.dots), (long long)e->rows));
  return variable_keep(e, v, at, v->def ? computed(e, v->def, at) : operand_load(e, v, at));
}
