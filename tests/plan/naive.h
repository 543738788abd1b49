// naive.h - a minimal lowering from stage step to a target: each operation is a kernel, and each
// kernel is plain loops over dense arrays. It tests the planner and the executor against the
// interpreter without the passes and code generators.
#ifndef LM_TESTS_NAIVE_H
#define LM_TESTS_NAIVE_H
#include <stdio.h>
#include <string.h>

#include "compiler/plan/planner.h"

// ---- kernels of one operation

static bool stays(const lm_op *op) {
  switch (op->code) {
  case LM_OP_DOT:
  case LM_OP_PARAM:
  case LM_OP_AT:
  case LM_OP_ACCUM:
  case LM_OP_APPEND:
  case LM_OP_CONST:
  case LM_OP_LOOP:
  case LM_OP_YIELD:
  case LM_OP_RETURN:
  case LM_OP_VIEW:
  case LM_OP_PERMUTE:
  case LM_OP_RENAME:
  case LM_OP_SLICE: return true;
  case LM_OP_PAD: return lm_plan_pads_in_place(op);
  default: return false;
  }
}

static void op_wrap(lm_module *m, lm_op *op, lm_value **map) {
  lm_builder b = {m, op->parent, op, op->loc};
  lm_attr none = {0};
  lm_op *kernel = lm_kernel_begin(&b, &none, op->in, op->n_in);
  lm_value **inner = lm_calloc(m->n_values + 1, sizeof *inner);
  for (uint32_t i = 0; i < op->n_in; i++)
    inner[op->in[i]->id] = kernel->body->args[i];
  lm_op *copy = lm_op_clone(&b, op, inner);
  lm_kernel_end(&b, kernel, copy->out, copy->n_out);
  for (uint32_t i = 0; i < op->n_out; i++)
    map[op->out[i]->id] = kernel->out[i];
  lm_free(inner);
}

static void region_wrap(lm_module *m, lm_region *r, lm_value **map) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      region_wrap(m, op->body, map);
    if (!stays(op))
      op_wrap(m, op, map);
  }
}

static void wrapped_remove(lm_region *r) {
  for (lm_op *op = r->last, *prev; op; op = prev) {
    prev = op->prev;
    if (op->code == LM_OP_LOOP)
      wrapped_remove(op->body);
    if (!stays(op) && op->code != LM_OP_KERNEL)
      lm_op_remove(op);
  }
}

// Brings a module of stage step to stage kernel.
static void naive_kernels_make(lm_module *m) {
  for (lm_func *f = m->funcs; f; f = f->next) {
    uint32_t n = m->n_values;
    lm_value **map = lm_calloc(n + 1, sizeof *map);
    region_wrap(m, f->body, map);
    lm_func_substitute(f, map, n);
    wrapped_remove(f->body);
    lm_free(map);
  }
  m->stage = LM_STAGE_KERNEL;
}

// ---- C text. Arrays are a0, a1, … (operands) and r (the result); loop variables i<axis number>.

typedef struct emitter {
  const lm_module *m;
  const lm_op *op;
  lm_buf *out;
} emitter;

static const char *c_type(lm_type t) {
  static const char *const names[LM_DTYPES] = {[LM_F32] = "float",
                                               [LM_BF16] = "unsigned short",
                                               [LM_F64] = "double",
                                               [LM_INT] = "int",
                                               [LM_BOOL] = "unsigned char"};
  return names[t.dtype];
}

static void loops_open(emitter *e, lm_type t) {
  for (int i = 0; i < t.rank; i++) {
    const lm_axis_info *a = &e->m->axes[t.axis[i]];
    lm_buf_printf(e->out, "for (long i%d = 0; i%d < ", t.axis[i], t.axis[i]);
    if (a->dyn)
      lm_buf_printf(e->out, "var[%d]", a->dyn - 1);
    else
      lm_buf_printf(e->out, "%lld", (long long)a->size);
    lm_buf_printf(e->out, "; i%d++) ", t.axis[i]);
  }
}

// name[index], where the loop variable of axis `from` is replaced by `with`
static void element(emitter *e, const char *name, lm_type t, lm_axis from, const char *with) {
  lm_buf_printf(e->out, "%s[0", name);
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    if (from && t.axis[i] == from)
      lm_buf_printf(e->out, " + (%s) * %lld", with, (long long)stride);
    else
      lm_buf_printf(e->out, " + i%d * %lld", t.axis[i], (long long)stride);
    stride *= lm_axis_size(e->m, t.axis[i]);
  }
  lm_buf_puts(e->out, "]");
}

static lm_type operand(const emitter *e, int i) {
  return e->op->in[i]->type;
}
static lm_type result(const emitter *e) {
  return e->op->out[0]->type;
}

static const char *operand_name(int i) {
  static const char *const names[] = {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"};
  LM_ASSERT(i < 8);
  return names[i];
}

static void zero(emitter *e) {
  lm_buf_printf(e->out, "  for (long k = 0; k < %lld; k++) r[k] = 0;\n  ",
                (long long)lm_type_elements(e->m, result(e)));
}

// In the formulas x, y and z are the operands' elements.
static const char *formula(lm_opcode code) {
  switch (code) {
  case LM_OP_NEG: return "-x";
  case LM_OP_EXP: return "expf(x)";
  case LM_OP_LOG: return "logf(x)";
  case LM_OP_LOG1P: return "log1pf(x)";
  case LM_OP_SQRT: return "sqrtf(x)";
  case LM_OP_RSQRT: return "1 / sqrtf(x)";
  case LM_OP_SIN: return "sinf(x)";
  case LM_OP_COS: return "cosf(x)";
  case LM_OP_TANH: return "tanhf(x)";
  case LM_OP_LOGISTIC: return "1 / (1 + expf(-x))";
  case LM_OP_ERF: return "erff(x)";
  case LM_OP_FLOOR: return "floorf(x)";
  case LM_OP_ROUND: return "rintf(x)";
  case LM_OP_BINADE: return "ldexpf(1, ilogbf(x))";
  case LM_OP_NOT: return "!x";
  case LM_OP_CAST:
  case LM_OP_REDUCE_PRECISION:
  case LM_OP_UNROUNDED:
  case LM_OP_EDITED:
  case LM_OP_STOP:
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return "x";
  case LM_OP_ADD: return "x + y";
  case LM_OP_SUB: return "x - y";
  case LM_OP_MUL: return "x * y";
  case LM_OP_DIV: return "x / y";
  case LM_OP_POW: return "powf(x, y)";
  case LM_OP_EQ: return "x == y";
  case LM_OP_NE: return "x != y";
  case LM_OP_LT: return "x < y";
  case LM_OP_LE: return "x <= y";
  case LM_OP_GT: return "x > y";
  case LM_OP_GE: return "x >= y";
  case LM_OP_AND: return "x && y";
  case LM_OP_OR: return "x || y";
  case LM_OP_SELECT: return "x ? y : z";
  default: return NULL;
  }
}

static void elementwise_emit(emitter *e) {
  static const char names[] = "xyz";
  lm_buf_puts(e->out, "  ");
  loops_open(e, result(e));
  lm_buf_puts(e->out, "{ ");
  for (uint32_t i = 0; i < e->op->n_in; i++) {
    lm_buf_printf(e->out, "%s %c = ", c_type(operand(e, (int)i)), names[i]);
    element(e, operand_name((int)i), operand(e, (int)i), 0, NULL);
    lm_buf_puts(e->out, "; ");
  }
  element(e, "r", result(e), 0, NULL);
  lm_buf_printf(e->out, " = %s; }\n", formula(e->op->code));
}

static void reduce_emit(emitter *e) {
  bool sum = e->op->code == LM_OP_SUM;
  lm_buf_puts(e->out, "  ");
  loops_open(e, result(e));
  element(e, "r", result(e), 0, NULL);
  lm_buf_printf(e->out, " = %s;\n  ", sum ? "0" : "-1.0f / 0.0f");
  loops_open(e, operand(e, 0));
  lm_buf_puts(e->out, "{ float x = ");
  element(e, "a0", operand(e, 0), 0, NULL);
  lm_buf_puts(e->out, ", y = ");
  element(e, "r", result(e), 0, NULL);
  lm_buf_puts(e->out, "; ");
  element(e, "r", result(e), 0, NULL);
  lm_buf_printf(e->out, " = %s; }\n", sum ? "x + y" : "x > y ? x : y");
}

static void pad_emit(emitter *e) {
  const lm_attr *a = &e->op->attr;
  char index[96];
  if (a->n_axes)
    snprintf(index, sizeof index, "%lld + i%d * %lld", (long long)a->imm[0], a->axes[0],
             (long long)a->imm[1]);
  else
    snprintf(index, sizeof index, "%lld", (long long)a->imm[0]);
  zero(e);
  loops_open(e, operand(e, 0));
  element(e, "r", result(e), a->to[0], index);
  lm_buf_puts(e->out, " = ");
  element(e, "a0", operand(e, 0), 0, NULL);
  lm_buf_puts(e->out, ";\n");
}

static void concat_emit(emitter *e) {
  int64_t first = 0;
  for (uint32_t i = 0; i < e->op->n_in; i++) {
    lm_axis from = e->op->attr.axes[i];
    char index[96];
    snprintf(index, sizeof index, "%lld + i%d", (long long)first, from);
    lm_buf_puts(e->out, "  ");
    loops_open(e, operand(e, (int)i));
    element(e, "r", result(e), e->op->attr.to[0], index);
    lm_buf_puts(e->out, " = ");
    element(e, operand_name((int)i), operand(e, (int)i), 0, NULL);
    lm_buf_puts(e->out, ";\n");
    first += lm_axis_size(e->m, from);
  }
}

// gather: r = a0 at a1; scatter: r at a1 += a0
static void gather_emit(emitter *e) {
  bool gather = e->op->code == LM_OP_GATHER;
  long long size = lm_axis_size(e->m, e->op->attr.axes[0]);
  if (gather)
    lm_buf_puts(e->out, "  ");
  else
    zero(e);
  loops_open(e, gather ? result(e) : operand(e, 0));
  lm_buf_puts(e->out, "{ long at = ");
  element(e, "a1", operand(e, 1), 0, NULL);
  if (gather)
    lm_buf_printf(e->out, "; at = at < 0 ? 0 : at >= %lld ? %lld - 1 : at; ", size, size);
  else
    lm_buf_printf(e->out, "; if (at < 0 || at >= %lld) continue; ", size);
  if (gather)
    element(e, "r", result(e), 0, NULL);
  else
    element(e, "r", result(e), e->op->attr.axes[0], "at");
  lm_buf_puts(e->out, gather ? " = " : " += ");
  if (gather)
    element(e, "a0", operand(e, 0), e->op->attr.axes[0], "at");
  else
    element(e, "a0", operand(e, 0), 0, NULL);
  lm_buf_puts(e->out, "; }\n");
}

static void op_emit(emitter *e) {
  switch (e->op->code) {
  case LM_OP_SUM:
  case LM_OP_MAX: reduce_emit(e); break;
  case LM_OP_PAD: pad_emit(e); break;
  case LM_OP_CONCAT: concat_emit(e); break;
  case LM_OP_GATHER:
  case LM_OP_SCATTER: gather_emit(e); break;
  case LM_OP_IOTA:
    lm_buf_puts(e->out, "  ");
    loops_open(e, result(e));
    lm_buf_printf(e->out, "r[i%d] = i%d;\n", result(e).axis[0], result(e).axis[0]);
    break;
  default:
    if (!formula(e->op->code))
      LM_BUG("no naive kernel for %s", lm_op_info_of(e->op)->name);
    elementwise_emit(e);
  }
}

static bool kernel_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                        lm_kernel_code *out) {
  lm_buf body = {0}, text = {0};
  emitter e = {lm_op_module(kernel), kernel->body->first, &body};
  int n = (int)e.op->n_in;
  lm_buf_puts(&body, "(char *const *buf, const long *var, long lo, long hi) {\n");
  for (int i = 0; i < n; i++)
    lm_buf_printf(&body, "  const %s *a%d = (const %s *)buf[%d];\n", c_type(operand(&e, i)), i,
                  c_type(operand(&e, i)), i);
  lm_buf_printf(&body, "  %s *r = (%s *)buf[%d];\n", c_type(result(&e)), c_type(result(&e)), n);
  op_emit(&e);
  lm_buf_puts(&body, "}\n");
  out->name = lm_arena_printf(arena, "k%016llx", (unsigned long long)lm_hash(body.p, body.n, 0));
  lm_buf_printf(&text, "void %s%s", out->name, body.p);
  out->source = lm_arena_strndup(arena, text.p, text.n);
  out->space = (lm_plan_extent){.fixed = 1};
  lm_buf_free(&body);
  lm_buf_free(&text);
  return true;
}

static const char *naive_prelude(lm_arena *arena) {
  return "float expf(float), logf(float), sqrtf(float), sinf(float), cosf(float), "
         "tanhf(float), erff(float), powf(float, float);\n";
}

// Its kernels have one point.
static const lm_codegen naive_codegen = {.kernel = kernel_emit, .prelude = naive_prelude};
#endif
