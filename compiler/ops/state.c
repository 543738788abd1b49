// state.c - operations that read and write at indices: table rows, parameters, gradients, caches,
// stacked values.
//
// The element along an axis is first + step * i of an index i. `param`, `accum` and `append` have
// one index, and one (first, step) pair, for each stacked axis of their global; an `accum` may have
// fewer, and then adds to all elements of the remaining stacked axes.
#include "compiler/ops/ops.h"

// ---- gather and scatter_add

// The axes of gather(table, index): the index's, then the other axes of the table.
static bool gathered(const lm_module *m, lm_type table, lm_type index, const lm_attr *a,
                     lm_type *out, lm_buf *why) {
  if (index.dtype != LM_INT)
    return lm_why_type(why, m, "the index is ", index, ", not int");
  if (a->n_axes != 1)
    return lm_why(why, "needs exactly one axis");
  const char *v = lm_axis_name(m, a->axes[0]);
  if (lm_type_find(table, a->axes[0]) < 0) {
    lm_why_type(why, m, "", table, " has no axis ");
    return lm_why(why, "%s", v);
  }
  if (lm_type_find(index, a->axes[0]) >= 0)
    return lm_why(why, "the index has axis %s, which it selects from", v);
  *out = index;
  out->dtype = table.dtype;
  int shared = 0;
  for (int i = 0; i < table.rank; i++) {
    if (table.axis[i] == a->axes[0])
      continue;
    if (lm_type_find(index, table.axis[i]) >= 0) {
      shared++;
      continue;
    }
    if (out->rank == LM_RANK)
      return lm_why(why, "the result has more than %d axes", LM_RANK);
    out->axis[out->rank++] = table.axis[i];
  }
  if (!shared || shared == table.rank - 1)
    return true;
  return lm_why_type(why, m, "the index has some axes of ", table, " but not all others");
}

bool shape_gather(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  return gathered(m, op->in[0]->type, op->in[1]->type, &op->attr, out, why);
}

bool shape_scatter(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type t;
  if (!gathered(m, *out, op->in[1]->type, &op->attr, &t, why))
    return false;
  if (!lm_dtype_is_float(out->dtype))
    return lm_why(why, "the result is not floating");
  return lm_type_equal(t, op->in[0]->type) || lm_why_type(why, m, "the updates are not ", t, "");
}

// The magnitude of (first, step) pairs is bounded, so that arithmetic on them does not overflow 64
// bits.
static bool pairs_fit(const lm_attr *a, lm_buf *why) {
  for (int i = 0; i < a->n_imm; i++)
    if (a->imm[i] > UINT32_MAX || a->imm[i] < -(int64_t)UINT32_MAX)
      return lm_why(why, "index %lld is out of bounds", (long long)a->imm[i]);
  return true;
}

// ---- globals

// A global of this kind; for a param also a `derived`, `fixed` or `state` one, for a param or an
// accum a `packed` one, for an accum or a gradient a `terms` one. A state of no parameter is read
// and written like a cache.
static const lm_global *global(const lm_module *m, const lm_op *op, lm_global_kind kind,
                               uint32_t extra, lm_buf *why) {
  const char *kinds[] = {"parameter", "cache"};
  const lm_global *g = op->attr.sym ? lm_global_find((lm_module *)m, op->attr.sym) : NULL;
  bool read =
      g && op->code == LM_OP_PARAM &&
      (g->kind == LM_GLOBAL_DERIVED || g->kind == LM_GLOBAL_FIXED || g->kind == LM_GLOBAL_STATE);
  read |= g && g->kind == LM_GLOBAL_PACKED && kind == LM_GLOBAL_PARAM;
  read |= g && g->kind == LM_GLOBAL_STATE && !g->of && op->code != LM_OP_APPEND &&
          kind == LM_GLOBAL_CACHE;
  read |=
      g && g->kind == LM_GLOBAL_TERMS && (op->code == LM_OP_ACCUM || op->code == LM_OP_GRADIENT);
  if (!g || (g->kind != kind && !read)) {
    lm_why(why, "there is no %s @%s", kinds[kind], op->attr.sym ? op->attr.sym : "");
    return NULL;
  }
  int indices = op->attr.n_imm / 2;
  bool enough = indices == g->n_stack || (indices < g->n_stack && op->code == LM_OP_ACCUM);
  if (!enough || op->attr.n_imm != 2 * indices || op->n_in != (uint32_t)indices + extra) {
    lm_why(why, "@%s needs %d indices", g->name, g->n_stack);
    return NULL;
  }
  if (!pairs_fit(&op->attr, why))
    return NULL;
  for (int i = 0; i < indices; i++)
    if (op->in[i]->type.dtype != LM_INT || op->in[i]->type.rank) {
      lm_why(why, "index %d is not a scalar int", i);
      return NULL;
    }
  return g;
}

bool shape_recall(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *c = global(m, op, LM_GLOBAL_CACHE, 0, why);
  if (c)
    *out = lm_type_inner(c->type, c->n_stack);
  return c != NULL;
}

bool shape_retain(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *c = global(m, op, LM_GLOBAL_CACHE, 1, why);
  if (!c)
    return false;
  lm_type want = lm_type_inner(c->type, c->n_stack);
  return lm_type_equal(want, op->in[op->n_in - 1]->type) ||
         lm_why_type(why, m, "the value is not ", want, "");
}

bool shape_observe_cotangent(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *h = global(m, op, LM_GLOBAL_CACHE, 1, why);
  if (!h)
    return false;
  *out = op->in[op->n_in - 1]->type;
  if (h->type.rank != h->n_stack + 1 || h->type.dtype != LM_F32)
    return lm_why_type(why, m, "", h->type, " is no history");
  return lm_dtype_is_float(out->dtype) || lm_why_type(why, m, "", *out, " is not floating");
}

// A param of a trained f32 global may be f16 or bf16: it reads the copy. The dtype is LM_DTYPES
// where no type is given.
bool shape_param(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *p = global(m, op, LM_GLOBAL_PARAM, 0, why);
  bool copy = p && p->kind != LM_GLOBAL_FIXED && p->kind != LM_GLOBAL_STATE &&
              p->type.dtype == LM_F32 && out->dtype < LM_DTYPES && lm_dtype_is_half(out->dtype);
  uint8_t half = out->dtype;
  if (p)
    *out = lm_type_inner(p->type, p->n_stack);
  if (copy)
    out->dtype = half;
  return p != NULL;
}

// The gradient of a parameter that is stored in 16 bits is f32.
static lm_type gradient_type(const lm_global *p, int n_indices) {
  lm_type t = lm_type_inner(p->type, n_indices);
  t.dtype = (uint8_t)lm_global_gradient_dtype(p);
  return t;
}

bool shape_gradient(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *p = global(m, op, LM_GLOBAL_PARAM, 0, why);
  if (p)
    *out = gradient_type(p, p->n_stack);
  return p != NULL;
}

bool shape_assign(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *p = op->attr.sym ? lm_global_find((lm_module *)m, op->attr.sym) : NULL;
  uint32_t n = p ? lm_global_states(m, p, &op->attr, NULL) : 0;
  const lm_global **states = LM_NEW_N(m->arena, const lm_global *, m->n_globals + 1);
  (void)out;
  p = global(m, op, LM_GLOBAL_PARAM, 1 + n, why);
  if (!p)
    return false;
  lm_global_states(m, p, &op->attr, states);
  for (uint32_t i = 0; i <= n; i++) {
    const lm_global *g = i ? states[i - 1] : p;
    lm_type want = lm_type_inner(g->type, g->n_stack);
    if (!lm_type_equal(want, op->in[op->n_in - n - 1 + i]->type))
      return lm_why_type(why, m, "a value is not ", want, "");
  }
  return true;
}

bool shape_accum(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *p = global(m, op, LM_GLOBAL_PARAM, 1, why);
  if (!p)
    return false;
  lm_type want = gradient_type(p, op->attr.n_imm / 2);
  lm_type got = op->in[op->n_in - 1]->type;
  return lm_type_equal(want, got) || lm_why_type(why, m, "the gradient is not ", want, "");
}

// append @cache[indices], %at, %x (t) -> (s): x with s for t has the cache's type.
bool shape_append(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_global *c = global(m, op, LM_GLOBAL_CACHE, 2, why);
  if (!c)
    return false;
  lm_type at = op->in[c->n_stack]->type;
  lm_type x = op->in[c->n_stack + 1]->type;
  if (at.dtype != LM_INT || at.rank)
    return lm_why(why, "the position is not a scalar int");
  if (op->attr.n_axes != 1 || op->attr.n_to != 1)
    return lm_why(why, "needs (t) -> (s)");
  *out = lm_type_inner(c->type, c->n_stack);
  int k = lm_type_find(x, op->attr.axes[0]);
  if (k >= 0)
    x.axis[k] = op->attr.to[0];
  return (k >= 0 && lm_type_equal(x, *out)) ||
         lm_why_type(why, m, "the appended value does not fit ", *out, "");
}

// ---- stacked values

bool shape_at(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  if (!x.rank)
    return lm_why(why, "the operand is a scalar");
  if (op->in[1]->type.dtype != LM_INT || op->in[1]->type.rank)
    return lm_why(why, "the index is not a scalar int");
  if (op->attr.n_imm != 2)
    return lm_why(why, "needs [first, step]");
  *out = lm_type_inner(x, 1);
  return pairs_fit(&op->attr, why);
}
