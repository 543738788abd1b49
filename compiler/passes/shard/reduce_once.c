// reduce_once.c - adds the gradients of ranks once per step instead of in each micro-batch (ZeRO,
// stage 1).
//
// before: mesh dp = 2 rows zero 1
//         param @w : f32[layers, d@dp, f] stacked 1
//         func @micro(…) { … loop 24 over(layers) %j {
//             %s = reduce_scatter %x over(dp) (d) -> (d@dp)   accum @w[%j * -1 + 23], %s } … }
// after:  terms @terms.w : f32[layers, d, f] stacked 1
//         func @micro(…) { … loop 24 over(layers) %j {
//             accum @terms.w[%j * -1 + 23], %x } … }
//         func @reduce() { loop 24 over(layers) %i {
//             %t = gradient @terms.w[%i]   %s = reduce_scatter %t over(dp) (d) -> (d@dp)
//             accum @w[%i], %s } }
//
// A sum over ranks is linear, so it may be taken of the sum over micro-batches. The trainer runs
// @reduce behind the last micro-batch of a step; the first one clears both gradients. Declines: an
// accum of another value than what a reduce_scatter along such an axis gives. Cost: the memory of
// the whole gradient; in return its bytes are sent once per step.
#include <string.h>

#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

typedef struct reducer {
  lm_module *m;
  uint32_t n_globals;    // without `terms`
  lm_sym *terms;         // by global: its `terms`; NULL: none
  const lm_op **scatter; // by global: one of its reduce_scatters
} reducer;

static const lm_op *scatter_of(const reducer *r, const lm_op *accum) {
  const lm_value *v = accum->in[accum->n_in - 1];
  const lm_global *g = lm_global_find(r->m, accum->attr.sym);
  bool of_param = g->kind == LM_GLOBAL_PARAM && accum->attr.n_imm == 2 * g->n_stack;
  if (!of_param || !lm_op_is(v, LM_OP_REDUCE_SCATTER))
    return NULL;
  int stage = r->m->mesh.axis[v->def->attr.mesh - 1].zero;
  return stage == 1 ? v->def : NULL;
}

static lm_sym terms_of(reducer *r, const lm_op *accum, const lm_op *scatter) {
  const lm_global *g = lm_global_find(r->m, accum->attr.sym);
  uint32_t k = (uint32_t)(g - r->m->globals);
  if (r->terms[k])
    return r->terms[k];
  lm_type t = g->type;
  int at = lm_type_find(t, scatter->attr.to[0]);
  t.axis[at] = scatter->attr.axes[0];
  t.dtype = (uint8_t)lm_global_gradient_dtype(g);
  const char *name = lm_arena_printf(r->m->arena, "terms.%s", g->name);
  r->terms[k] = LM_SYM(r->m->ctx, name);
  r->scatter[k] = scatter;
  lm_global_add(r->m, LM_GLOBAL_TERMS, r->terms[k], t, g->n_stack);
  return r->terms[k];
}

static void accum_visit(lm_op *op, void *user) {
  reducer *r = user;
  const lm_op *scatter = op->code == LM_OP_ACCUM ? scatter_of(r, op) : NULL;
  if (!scatter)
    return;
  op->attr.sym = terms_of(r, op, scatter);
  op->in[op->n_in - 1] = scatter->in[0];
}

// The gradient of global k, at the indices of its stacked axes.
static void sum_emit(const reducer *r, lm_builder *b, uint32_t k, lm_value **index) {
  const lm_global *g = &r->m->globals[k];
  uint32_t level = (uint32_t)g->n_stack;
  lm_attr a = {
      .sym = r->terms[k],
      .n_imm = (uint8_t)(2 * level),
  };
  for (uint32_t i = 0; i < level; i++)
    a.imm[2 * i + 1] = 1;
  b->loc = r->scatter[k]->loc;
  lm_value *all = lm_emit(b, LM_OP_GRADIENT, index, level, &a, NULL);
  index[level] = lm_emit(b, LM_OP_REDUCE_SCATTER, &all, 1, &r->scatter[k]->attr, NULL);
  a.sym = g->name;
  lm_emit_op(b, LM_OP_ACCUM, index, level + 1, &a, NULL);
}

static bool same_stack(const lm_global *a, const lm_global *b) {
  return a->n_stack == b->n_stack &&
         !memcmp(a->type.axis, b->type.axis, (size_t)a->n_stack * sizeof *a->type.axis);
}

// A loop nest over the stacked axes of global k from `level` on, for all globals that have them.
static void nest_emit(const reducer *r, lm_builder *b, uint32_t k, lm_value **index, int level) {
  const lm_global *g = &r->m->globals[k];
  if (level < g->n_stack) {
    lm_region *parent = b->at;
    lm_axis axis = g->type.axis[level];
    lm_op *loop = lm_loop_begin(b, lm_axis_size(r->m, axis), axis, NULL, 0);
    index[level] = loop->body->args[0];
    nest_emit(r, b, k, index, level + 1);
    lm_loop_end(b, loop, NULL, 0, NULL, 0);
    b->at = parent;
    b->before = NULL;
    return;
  }
  for (uint32_t i = k; i < r->n_globals; i++)
    if (r->terms[i] && same_stack(g, &r->m->globals[i]))
      sum_emit(r, b, i, index);
}

// The first global with the stack of global k.
static uint32_t first_of(const reducer *r, uint32_t k) {
  uint32_t i = 0;
  while (!r->terms[i] || !same_stack(&r->m->globals[i], &r->m->globals[k]))
    i++;
  return i;
}

static void reduce_make(const reducer *r) {
  lm_func *f = lm_func_add_key(r->m, (lm_func_key){LM_FUNC_REDUCE});
  lm_builder b = {
      .m = r->m,
      .at = f->body,
  };
  lm_value *index[LM_RANK + 1];
  for (uint32_t k = 0; k < r->n_globals; k++)
    if (r->terms[k] && first_of(r, k) == k)
      nest_emit(r, &b, k, index, 0);
  lm_emit_op(&b, LM_OP_RETURN, NULL, 0, NULL, NULL);
}

bool lm_pass_reduce_once(lm_module *m, const lm_pass_env *env) {
  uint32_t n = m->n_globals;
  reducer r = {
      .m = m,
      .n_globals = n,
      .terms = LM_NEW_N(m->arena, lm_sym, n + 1),
      .scatter = LM_NEW_N(m->arena, const lm_op *, n + 1),
  };
  for (lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_MICRO)
      lm_region_walk(f->body, accum_visit, &r);
  if (m->n_globals > n)
    reduce_make(&r);
  return true;
}
