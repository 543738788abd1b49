// mix_value.c - the values of a kernel that mixes as text, each written once, at the level of the
// axes that it depends on.
//
// Values of columns that elements read are computed by a thread for each column and are in shared
// memory; values of rows are in registers.
#include "codegen/cuda/mix.h"

typedef enum level {
  ONCE,
  ROW,
  COL,
  ELEMENT,
  THREAD
} level;

static cuda_mix_at at_of(const cuda_mix *x, lm_type t, lm_axis axis, cuda_mix_at at) {
  return cuda_mix_has(t, axis) ? at : CUDA_MIX_NONE;
}

static level level_of(cuda_mix_at row, cuda_mix_at col) {
  bool r = row == CUDA_MIX_ROW || col == CUDA_MIX_ROW;
  bool c = row == CUDA_MIX_COL || col == CUDA_MIX_COL;
  if (row == CUDA_MIX_THREAD || col == CUDA_MIX_THREAD)
    return THREAD;
  return r ? (c ? ELEMENT : ROW) : c ? COL : ONCE;
}

static bool is_of_head(const cuda_mix_text *e, lm_type t) {
  return cuda_mix_has(t, e->x->head);
}

// ---- memory

const char *cuda_mix_coordinate(cuda_mix_text *e, lm_axis a) {
  return lm_arena_printf(e->g.arena, "i_%s", lm_gen_axis_name(&e->g, a));
}

void cuda_mix_offset(cuda_mix_text *e, lm_buf *b, lm_type t, const int64_t *stride,
                     const char *at_row, const char *at_col) {
  int64_t dense = 1;
  lm_buf_puts(b, "0");
  for (int i = t.rank - 1; i >= 0; i--) {
    lm_axis a = t.axis[i];
    int64_t size = lm_axis_size(e->x->m, a);
    const char *at = a == e->x->row ? at_row : a == e->x->col ? at_col : cuda_mix_coordinate(e, a);
    if (size > 1 && cuda_mix_is_of_block(e->x, a))
      lm_buf_printf(b, " + %s * %lld", at, (long long)(stride ? stride[i] : dense));
    dense *= size;
  }
}

const char *cuda_mix_pool(cuda_mix_text *e, const char *type, int bytes, const char *name,
                          int64_t n) {
  lm_buf_printf(&e->declare, "LM_POOL(%s, %s, %lld, %lld);\n", type, name, (long long)e->pool,
                (long long)n);
  e->pool += (n * bytes + 127) / 128 * 128;
  return name;
}

static const char *position(cuda_mix_at at) {
  static const char *const names[] = {
      "0",
      "row",
      "col",
      "at",
  };
  return names[at];
}

// ---- statements

// Lanes of a block that execute a statement of a level.
static double lanes(const cuda_mix_text *e, level l) {
  const cuda_mix *x = e->x;
  double threads = 2 * (double)x->rows;
  switch (l) {
  case ROW: return 2 * threads; // the four threads that share a row
  case COL: return (double)(x->rows * x->cols) / 2;
  case ELEMENT: return (double)(x->rows * x->cols);
  default: return threads;
  }
}

static void count(cuda_mix_text *e, level l, bool heads, double n) {
  *(heads ? &e->counted_heads : &e->counted) += n * lanes(e, l);
}

// Elements are in the loop over heads unless they depend on no head.
static const char *statement(cuda_mix_text *e, level l, lm_type t, const char *text) {
  const char *type = lm_gen_register_type((lm_dtype)t.dtype);
  const char *name = lm_arena_printf(e->g.arena, "%c%d", "uhkve"[l], e -> n_names++);
  bool heads = is_of_head(e, t);
  lm_buf *to[] = {heads ? &e->head : &e->point, heads ? &e->head_rows : &e->rows, &e->column,
                  &e->element, &e->thread};
  if (l != ROW) {
    lm_buf_printf(to[l], "const %s %s = %s;\n", type, name, text);
    return name;
  }
  lm_buf_printf(heads ? &e->head : &e->point, "%s %s[2];\n", type, name);
  lm_buf_printf(to[l], "%s[r] = %s;\n", name, text);
  return lm_arena_printf(e->g.arena, "%s[r]", name);
}

// ---- operands

// Two neighbouring columns of each of a thread's rows.
static const char *pairs_load(cuda_mix_text *e, const lm_value *arg) {
  const char *name = lm_arena_printf(e->g.arena, "k%d", e->n_names++);
  const char *kind = lm_dtype_name((lm_dtype)arg->type.dtype);
  lm_buf at = {0};
  cuda_mix_offset(e, &at, arg->type, NULL, "lm_frag_row(r)", "lm_frag_col(n0 + n, 0)");
  lm_buf_printf(&e->pair,
                "%s %s[2][2];\nLM_UNROLL\nfor (int32_t r = 0; r < 2; r++)\n"
                "lm_load2_%s(%s[r], a%u + (%s));\n",
                lm_gen_register_type((lm_dtype)arg->type.dtype), name, kind, name, arg->index,
                lm_gen_take(&e->g, &at));
  count(e, ELEMENT, true, 1);
  return lm_arena_printf(e->g.arena, "%s[r][c]", name);
}

static const char *operand(cuda_mix_text *e, const lm_value *arg, cuda_mix_at row, cuda_mix_at col,
                           level l) {
  lm_type t = arg->type;
  bool pairs =
      l == ELEMENT && t.dtype == LM_F32 && col == CUDA_MIX_COL && t.axis[t.rank - 1] == e->x->col;
  if (pairs)
    return pairs_load(e, arg);
  lm_buf at = {0};
  cuda_mix_offset(e, &at, t, NULL, position(row), position(col));
  const char *from = lm_arena_printf(e->g.arena, "a%u[%s]", arg->index, lm_gen_take(&e->g, &at));
  count(e, l, l == ELEMENT || is_of_head(e, t), lm_gen_op_instructions(&e->g, NULL));
  return statement(e, l, t, lm_gen_load_text(e->g.arena, (lm_dtype)t.dtype, from));
}

// ---- operations

int cuda_mix_sum_of(const cuda_mix *x, const lm_op *op) {
  for (int i = 0; i < x->n_sums; i++)
    if (x->sum[i].op == op)
      return i;
  return -1;
}

static const char *sum_text(cuda_mix_text *e, int i) {
  static const char *const forms[] = {
      "lm_get(s%d, at)",
      "t%d",
      "t%d[n0 + n][2 * r + c]",
  };
  return lm_arena_printf(e->g.arena, forms[e->x->sum[i].kind], i);
}

// A value of columns that elements read: a thread for each column puts it in shared memory.
static const char *staged(cuda_mix_text *e, const lm_value *v, cuda_mix_at row, cuda_mix_at col) {
  bool heads = is_of_head(e, v->type);
  lm_dtype t = (lm_dtype)v->type.dtype;
  const char *name = lm_arena_printf(e->g.arena, "c%d", e->n_names++);
  const char *type = t == LM_INT || t == LM_BOOL ? "int32_t" : "float";
  lm_buf outer = e->thread;
  int scope = e->scope;
  e->thread = (lm_buf){0};
  e->scope = -1 - heads;
  const char *text = cuda_mix_value(e, v, row ? CUDA_MIX_THREAD : 0, col ? CUDA_MIX_THREAD : 0);
  lm_buf_add(heads ? &e->head_fill : &e->fill, e->thread.p, e->thread.n);
  lm_buf_printf(heads ? &e->head_fill : &e->fill, "lm_put(%s, at, %s);\n", name, text);
  lm_buf_free(&e->thread);
  e->thread = outer;
  e->scope = scope;
  cuda_mix_pool(e, type, 4, name, e->x->cols);
  count(e, THREAD, heads, 1);
  count(e, COL, true, 1);
  return statement(e, COL, v->type, lm_arena_printf(e->g.arena, "lm_get(%s, col)", name));
}

static const char *computed(cuda_mix_text *e, const lm_op *op, cuda_mix_at row, cuda_mix_at col,
                            level l) {
  const char *in[3];
  lm_type t = op->out[0]->type;
  if (op->code == LM_OP_CONST)
    return lm_gen_const_text(e->g.arena, (lm_dtype)t.dtype, op->attr.num);
  if (op->code == LM_OP_IOTA)
    return lm_arena_printf(e->g.arena, "(int32_t)(%s)",
                           cuda_mix_has(t, e->x->row)   ? position(row)
                           : cuda_mix_has(t, e->x->col) ? position(col)
                                                        : cuda_mix_coordinate(e, t.axis[0]));
  bool renames = op->code == LM_OP_RENAME;
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = cuda_mix_value(e, op->in[i], renames ? col : row, renames ? row : col);
  if (renames || op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE)
    return in[0];
  const char *text = lm_gen_op_text(&e->g, op, in);
  if (text == in[0])
    return text;
  count(e, l, l == ELEMENT || is_of_head(e, t), lm_gen_op_instructions(&e->g, op));
  return statement(e, l, t, text);
}

static bool is_position(const lm_value *v) {
  const lm_op *op = v->def;
  while (op && (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE || op->code == LM_OP_RENAME))
    op = op->in[0]->def;
  return op && (op->code == LM_OP_IOTA || op->code == LM_OP_CONST);
}

static const char *written(cuda_mix_text *e, const lm_value *v, cuda_mix_at row, cuda_mix_at col) {
  level l = level_of(row, col);
  int sum = v->def ? cuda_mix_sum_of(e->x, v->def) : -1;
  if (e->x->scores && v == e->x->scores->out[0])
    return "p[n][2 * r + c]";
  if (sum >= 0)
    return sum_text(e, sum);
  if (l == COL && !is_position(v))
    return staged(e, v, row, col);
  return v->def ? computed(e, v->def, row, col, l) : operand(e, v, row, col, l);
}

const char *cuda_mix_value(cuda_mix_text *e, const lm_value *v, cuda_mix_at row, cuda_mix_at col) {
  row = at_of(e->x, v->type, e->x->row, row);
  col = at_of(e->x, v->type, e->x->col, col);
  level l = level_of(row, col);
  int scope = l == ONCE || l == ROW ? 0 : e->scope;
  for (const cuda_mix_memo *k = e->memo; k; k = k->next)
    if (k->v == v && k->row == row && k->col == col && k->scope == scope)
      return k->text;
  const char *text = written(e, v, row, col);
  cuda_mix_memo *k = LM_NEW(e->g.arena, cuda_mix_memo);
  *k = (cuda_mix_memo){
      v, row, col, text, scope, e->memo,
  };
  e->memo = k;
  return text;
}
