// ops.c - the scalar operations as C. Registers hold f32, bf16 and f16 as float, f64 as double,
// int, bool (0 or 1) and the bits of a code as int32_t; bf16 and f16 are rounded when they are
// stored, and where a number that is stored is cast.
#include <math.h>
#include <string.h>
#include "codegen/common/gen.h"
#include "codegen/common/schedule.h"
#include "runtime/base/dtype.h"
#include "runtime/base/philox.h"

// $0, $1, $2 stand for the operands. The type of the last operand selects the column. instructions:
// that an element takes in f32, or in integers if there is no f32, as compiled for sm_90a
// (tests/cuda/nvrtc_count_test.c); a vector of a CPU takes about as many.
typedef struct lm_op_row {
  const char *f32;
  const char *f64;
  const char *integer;
  int instructions;
} lm_op_row;
static const lm_op_row table[LM_OPS] = {
    [LM_OP_NEG] = {"-$0", "-$0", "lm_isub(0, $0)", 1},
    [LM_OP_EXP] = {"lm_exp($0)", "lm_exp64($0)", NULL, 18},
    [LM_OP_LOG] = {"lm_log($0)", "lm_log64($0)", NULL, 32},
    [LM_OP_LOG1P] = {"lm_log1p($0)", "lm_log1p64($0)", NULL, 50},
    [LM_OP_SQRT] = {"lm_sqrt($0)", "lm_sqrt64($0)", NULL, 11},
    [LM_OP_RSQRT] = {"lm_rsqrt($0)", "lm_rsqrt64($0)", NULL, 22},
    [LM_OP_SIN] = {"lm_sin($0)", "lm_sin64($0)", NULL, 26},
    [LM_OP_COS] = {"lm_cos($0)", "lm_cos64($0)", NULL, 26},
    [LM_OP_TANH] = {"lm_tanh($0)", "lm_tanh64($0)", NULL, 35},
    [LM_OP_LOGISTIC] = {"lm_logistic($0)", "lm_logistic64($0)", NULL, 29},
    [LM_OP_ERF] = {"lm_erf($0)", "lm_erf64($0)", NULL, 34},
    [LM_OP_FLOOR] = {"lm_floor($0)", "lm_floor64($0)", NULL, 1},
    [LM_OP_ROUND] = {"lm_round($0)", "lm_round64($0)", NULL, 1},
    [LM_OP_BINADE] = {"lm_binade($0)", "lm_binade64($0)", NULL, 1},
    [LM_OP_REDUCE_PRECISION] = {"$0", "$0", NULL, 2},
    [LM_OP_NOT] = {NULL, NULL, "!$0", 1},
    [LM_OP_UNROUNDED] = {"$0", "$0", NULL, 1},
    [LM_OP_EDITED] = {"$0", "$0", NULL, 1},
    [LM_OP_ADD] = {"$0 + $1", "$0 + $1", "lm_iadd($0, $1)", 1},
    [LM_OP_SUB] = {"$0 - $1", "$0 - $1", "lm_isub($0, $1)", 1},
    [LM_OP_MUL] = {"$0 * $1", "$0 * $1", "lm_imul($0, $1)", 1},
    [LM_OP_DIV] = {"$0 / $1", "$0 / $1", NULL, 10},
    [LM_OP_POW] = {"lm_pow($0, $1)", "lm_pow64($0, $1)", NULL, 150},
    [LM_OP_IDIV] = {NULL, NULL, "lm_idiv($0, $1)", 20},
    [LM_OP_MOD] = {"lm_mod($0, $1)", "lm_mod64($0, $1)", "lm_imod($0, $1)", 20},
    [LM_OP_EQ] = {"$0 == $1", "$0 == $1", "$0 == $1", 1},
    [LM_OP_NE] = {"$0 != $1", "$0 != $1", "$0 != $1", 1},
    [LM_OP_LT] = {"$0 < $1", "$0 < $1", "$0 < $1", 1},
    [LM_OP_LE] = {"$0 <= $1", "$0 <= $1", "$0 <= $1", 1},
    [LM_OP_GT] = {"$0 > $1", "$0 > $1", "$0 > $1", 1},
    [LM_OP_GE] = {"$0 >= $1", "$0 >= $1", "$0 >= $1", 1},
    [LM_OP_AND] = {NULL, NULL, "$0 & $1", 1},
    [LM_OP_OR] = {NULL, NULL, "$0 | $1", 1},
    [LM_OP_SELECT] = {"$0 ? $1 : $2", "$0 ? $1 : $2", "$0 ? $1 : $2", 1},
};

const char *lm_gen_register_type(lm_dtype t) {
  return lm_dtype_table[t].register_type;
}

const char *lm_gen_memory_type(lm_dtype t) {
  return lm_dtype_table[t].memory_type;
}

const char *lm_gen_held_type(lm_dtype t) {
  return lm_gen_register_type(t);
}

const char *lm_gen_rng_text(lm_arena *a, const lm_op *rng, const char *column,
                            const char *const *in) {
  const int64_t *imm = rng->attr.imm;
  lm_philox_key2 key = lm_philox_key((uint64_t)imm[0], (uint64_t)imm[1]);
  return lm_arena_printf(
      a, "lm_uniform(%uu, %uu, (uint64_t)(uint32_t)%s * %lldu + (uint64_t)(%s + %s), %s, %s)",
      key.v[0], key.v[1], in[1], (long long)imm[2], column, in[2], in[3], in[0]);
}

const char *lm_gen_load_text(lm_arena *a, lm_dtype t, const char *location) {
  return lm_dtype_is_half(t) ? lm_arena_printf(a, "lm_%s_load(%s)", lm_dtype_name(t), location)
                             : location;
}

const char *lm_gen_store_text(lm_arena *a, lm_dtype t, const char *value) {
  if (lm_dtype_is_half(t))
    return lm_arena_printf(a, "lm_%s_round(%s)", lm_dtype_name(t), value);
  return lm_dtype_bytes(t) == 1 ? lm_arena_printf(a, "(%s)%s", lm_gen_memory_type(t), value)
                                : value;
}

const char *lm_gen_const_text(lm_arena *a, lm_dtype t, double v) {
  if (lm_dtype_is_code(t))
    v = lm_dtype_bits(t, v);
  if (!lm_dtype_is_float(t))
    return lm_arena_printf(a, v == INT32_MIN ? "(-2147483647 - 1)" : v < 0 ? "(%.0f)" : "%.0f", v);
  const char *f = t == LM_F64 ? "" : "f";
  if (t != LM_F64)
    v = (float)v;
  if (isnan(v))
    return lm_arena_printf(a, "__builtin_nan%s(\"\")", f);
  if (isinf(v))
    return lm_arena_printf(a, v < 0 ? "(-__builtin_inf%s())" : "__builtin_inf%s()", f);
  const char *digits = lm_arena_printf(a, t == LM_F64 ? "%.17g" : "%.9g", v);
  const char *point = strpbrk(digits, ".e") ? "" : ".0";
  return lm_arena_printf(a, signbit(v) ? "(%s%s%s)" : "%s%s%s", digits, point, f);
}

// True of codes of numbers that are no ints.
static bool is_float_code(lm_dtype t) {
  return t == LM_E4M3 || t == LM_E5M2 || t == LM_E8M0 || t == LM_DYN8 || t == LM_UDYN8;
}

static const char *cast_text(lm_arena *a, lm_dtype from, lm_dtype to, const char *x);

// A code is decoded to f32 or int and encoded from these.
static const char *code_text(lm_arena *a, lm_dtype from, lm_dtype to, const char *x) {
  if (lm_dtype_is_code(from)) {
    const char *load = lm_arena_printf(a, "lm_%s_load(%s)", lm_dtype_name(from),
                                       lm_arena_printf(a, "(uint8_t)%s", x));
    return is_float_code(from) ? cast_text(a, LM_F32, to, load) : cast_text(a, LM_INT, to, x);
  }
  const char *y = cast_text(a, from, is_float_code(to) ? LM_F32 : LM_INT, x);
  return lm_arena_printf(a, "lm_%s_%s(%s)", lm_dtype_name(to),
                         is_float_code(to) ? "round" : "clamp", y);
}

static const char *cast_text(lm_arena *a, lm_dtype from, lm_dtype to, const char *x) {
  if (to == from ||
      (lm_dtype_is_float(from) && lm_dtype_is_float(to) && from != LM_F64 && to != LM_F64))
    return x;
  if (lm_dtype_is_code(from) || lm_dtype_is_code(to))
    return code_text(a, from, to, x);
  if (to == LM_BOOL)
    return lm_arena_printf(a, "%s != 0", x);
  if (to != LM_INT)
    return lm_arena_printf(a, "(%s)%s", lm_gen_register_type(to), x);
  if (from == LM_BOOL)
    return x;
  return lm_arena_printf(a, "lm_int_%s(%s)", from == LM_F64 ? "f64" : "f32", x);
}

// True if the kernel computes the value and also stores it, so that other kernels have it rounded.
static bool is_stored(const lm_gen *e, const lm_value *v) {
  if (!e->kernel || e->kernel->code != LM_OP_KERNEL || !v->def)
    return false;
  const lm_op *yield = lm_kernel_yield(e->kernel);
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (yield->in[i] == v)
      return true;
  return false;
}

// An operand of the kernel was rounded when it was stored.
static const char *reduced_text(lm_gen *e, const lm_value *v, const char *x) {
  lm_dtype t = v->type.dtype;
  if (!v->def)
    return x;
  if (t == LM_BF16)
    return lm_arena_printf(e->arena, "lm_bf16_rounded(%s)", x);
  return lm_gen_load_text(e->arena, t, lm_gen_store_text(e->arena, t, x));
}

// A half float that is stored is rounded for the operations of the same kernel, too.
static const char *widened_text(lm_gen *e, const lm_value *v, const char *x) {
  bool rounds = lm_dtype_is_half((lm_dtype)v->type.dtype) && is_stored(e, v);
  return rounds ? reduced_text(e, v, x) : x;
}

static const char *substitute(lm_arena *a, const char *form, const char *const *in) {
  lm_buf b = {0};
  for (; *form; form++) {
    if (*form == '$')
      lm_buf_puts(&b, in[*++form - '0']);
    else
      lm_buf_add(&b, form, 1);
  }
  const char *text = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// Attention of the CPU has no target.
static lm_gen_form own_form(const lm_gen *e, const lm_op *op) {
  return e->target && e->target->form ? e->target->form(op) : (lm_gen_form){0};
}

static const char *form_of(const lm_gen *e, const lm_op *op, lm_dtype t) {
  const lm_op_row *row = &table[op->code];
  if (!lm_dtype_is_float(t))
    return row->integer;
  if (t == LM_F64)
    return row->f64;
  const char *own = own_form(e, op).text;
  return own ? own : row->f32;
}

double lm_gen_op_instructions(const lm_gen *e, const lm_op *op) {
  enum {
    LOAD = 4,    // an address, the load, a conversion
    RANDOM = 80, // ten rounds of Philox
    OTHER = 1
  };
  if (!op)
    return LOAD;
  if (op->code == LM_OP_RNG)
    return RANDOM;
  int own = own_form(e, op).instructions;
  int usual = table[op->code].instructions;
  return own ? own : usual ? usual : OTHER;
}

const char *lm_gen_op_text(lm_gen *e, const lm_op *op, const char *const *in) {
  lm_dtype t = op->in[op->n_in - 1]->type.dtype;
  if (op->code == LM_OP_CAST)
    return cast_text(e->arena, t, op->out[0]->type.dtype, widened_text(e, op->in[0], in[0]));
  if (op->code == LM_OP_REDUCE_PRECISION)
    return reduced_text(e, op->in[0], in[0]);
  const char *form = form_of(e, op, t);
  if (!form)
    LM_BUG("no C for %s of %s", lm_op_info_of(op)->name, lm_dtype_name(t));
  return substitute(e->arena, form, in);
}

const char *lm_gen_identity(lm_arena *a, const lm_value *v) {
  lm_dtype t = v->type.dtype;
  double minimum = t == LM_INT ? INT32_MIN : -__builtin_inf();
  return lm_gen_const_text(a, t, v->def->code == LM_OP_MAX ? minimum : 0);
}
