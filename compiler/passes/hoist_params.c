// hoist_params.c - computes values derived from parameters once per update instead of at every use:
// bf16 copies of f32 parameters, weights that are concatenated (pass fuse_gemms) or laid out in
// another order (pass prepack), which end in a concat or in a cast to their own type, and values
// that need a reduction or a dot of parameters alone (params_only.c).
//
// before: %w = param @w[%i] : f32[d, f]   %h = cast %w : bf16[d, f]   %y = dot %x, %h over(d)
//         %g = param @g[%i] : f32[d, f]   %u = param @u[%i] : f32[d, f]
//         %c = concat %g, %u (f, f) -> (pack)
// after:  %h = param @w[%i] : bf16[d, f]   %y = dot %x, %h over(d)
//         %c = param @derived.0[%i] : f32[d, pack]
//         derived @derived.0 : f32[layers, d, pack] stacked 1
//         func @copies(%p: f32[blk, el])
//             -> (copies: bf16[blk, el], derived.0: f32[layers, d, pack]) {
//           %c = cast %p
//           %m = loop 24 over(layers) %i {
//             %g = param @g[%i]   %u = param @u[%i]   %c1 = concat %g, %u   yield %c1 }
//           return %c, %m }
//
// Where ranks divide parameters (`zero`), copies in the layout of the parameters would have room
// for those that are gathered too, and so each cast of one that is whole is a `derived` global.
//
// Such a param reads the arena of copies: the `derived` globals, then the bf16 copies in the layout
// of the parameters. @update writes the bf16 copies with the parameters, and @packs computes the
// `derived` globals from them. The runtime runs @packs before a function that reads the arena after
// an update, and @copies if the parameters have changed otherwise. Declines: casts to other types;
// values that depend on anything other than casts and views of parameters at one index of the same
// stacked axes; modules without such values. Cost: two bytes per parameter that is cast, and one
// pass over all of them per update instead of 2 n in a step of n micro-batches; the same for the
// `derived` globals.
#include <string.h>

#include "compiler/passes/params_only.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

// A parameter that ranks gather is cast before, so that they exchange half of the bytes.
static lm_value *gathered_cast(lm_rewrite *r, const lm_op *gather, lm_dtype t) {
  lm_value *part = lm_emit_cast(&r->b, gather->in[0], t);
  return lm_emit(&r->b, gather->code, &part, 1, &gather->attr, NULL);
}

static lm_value *cast_rule(lm_rewrite *r, lm_op *op) {
  const lm_op *def = op->in && op->n_in == 1 ? op->in[0]->def : NULL;
  if (op->code != LM_OP_CAST || !lm_dtype_is_half(op->out[0]->type.dtype) || !def)
    return NULL;
  if (lm_param_is_gathered(def))
    return gathered_cast(r, def, op->out[0]->type.dtype);
  if (def->code != LM_OP_PARAM || lm_param_has_zero(r->b.m, def))
    return NULL;
  if (op->in[0]->type.dtype != LM_F32 || !lm_value_is_weight(op->in[0]))
    return NULL;
  return lm_emit(&r->b, LM_OP_PARAM, def->in, def->n_in, &def->attr, &op->out[0]->type);
}

// ---- concatenated and prepacked weights

typedef struct derived {
  lm_sym name;
  const lm_op *like; // one of the operations that the global replaces
  bool frozen;       // of frozen parameters: an update does not change it
} derived;
typedef struct making {
  derived *all;
  uint32_t n, cap;
} making;

static const lm_op *param_under(const lm_value *v) {
  while (v->def->code != LM_OP_PARAM)
    v = v->def->in[0];
  return v->def;
}

static bool same_stack(lm_module *m, lm_sym a, lm_sym b) {
  const lm_global *x = lm_global_find(m, a);
  const lm_global *y = lm_global_find(m, b);
  return x->kind != LM_GLOBAL_DERIVED && x->kind == y->kind && x->n_stack == y->n_stack &&
         !memcmp(x->type.axis, y->type.axis, (size_t)x->n_stack * sizeof *x->type.axis);
}

static bool of_parameters(lm_module *m, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (!lm_value_is_weight(op->in[i]))
      return false;
    const lm_op *first = param_under(op->in[0]);
    const lm_op *p = param_under(op->in[i]);
    if (!lm_params_same_indices(first, p) || !same_stack(m, first->attr.sym, p->attr.sym))
      return false;
  }
  return op->n_in > 0;
}

// True if op is a concat, or the copy to a new layout (pass prepack).
static bool is_copy(const lm_op *op) {
  return op->code == LM_OP_CONCAT ||
         (op->code == LM_OP_CAST && lm_type_equal(op->in[0]->type, op->out[0]->type));
}

// True if both apply the same movements to the same parameters; the indices of the parameters may
// differ.
static bool is_equal_copy(const lm_value *a, const lm_value *b) {
  const lm_op *x = a->def;
  const lm_op *y = b->def;
  if (x->code != y->code || !lm_type_equal(a->type, b->type))
    return false;
  if (x->code == LM_OP_PARAM)
    return x->attr.sym == y->attr.sym;
  if (memcmp(x->attr.axes, y->attr.axes, sizeof x->attr.axes) ||
      memcmp(x->attr.to, y->attr.to, sizeof x->attr.to) ||
      memcmp(x->attr.imm, y->attr.imm, sizeof x->attr.imm) || x->n_in != y->n_in)
    return false;
  for (uint32_t i = 0; i < x->n_in; i++)
    if (!is_equal_copy(x->in[i], y->in[i]))
      return false;
  return true;
}

static lm_sym made_add(lm_module *m, making *k, const lm_op *op) {
  for (uint32_t i = 0; i < k->n; i++)
    if (is_equal_copy(k->all[i].like->out[0], op->out[0]))
      return k->all[i].name;
  const lm_global *g = lm_global_find(m, param_under(op->out[0])->attr.sym);
  bool frozen = g->kind == LM_GLOBAL_FIXED;
  lm_type t = op->out[0]->type, whole = {
                                    .dtype = t.dtype,
                                    .rank = (uint8_t)(g->n_stack + t.rank),
                                };
  if (whole.rank > LM_RANK)
    return NULL;
  memcpy(whole.axis, g->type.axis, (size_t)g->n_stack * sizeof *whole.axis);
  memcpy(whole.axis + g->n_stack, t.axis, t.rank * sizeof *whole.axis);
  lm_sym name = LM_SYM(m->ctx, lm_arena_printf(m->arena, "derived.%u", k->n));
  lm_global_add(m, LM_GLOBAL_DERIVED, name, whole, g->n_stack);
  LM_PUSH(m->arena, k->all, k->n, k->cap) = (derived){name, op, frozen};
  return name;
}

// Replaces op, whose operands are of the parameter that p reads.
static lm_value *made_read(lm_rewrite *r, const lm_op *op, const lm_op *p) {
  lm_attr a = p->attr;
  a.sym = made_add(r->b.m, r->user, op);
  return a.sym ? lm_emit(&r->b, LM_OP_PARAM, p->in, p->n_in, &a, NULL) : NULL;
}

static lm_value *made_rule(lm_rewrite *r, lm_op *op) {
  if (!is_copy(op) || !of_parameters(r->b.m, op))
    return NULL;
  return made_read(r, op, param_under(op->in[0]));
}

// The type of the copies, if op reads them. Parameters that are stored in this type have none.
static lm_dtype copies_read(const lm_op *op) {
  lm_dtype t = op->code == LM_OP_PARAM ? (lm_dtype)op->out[0]->type.dtype : LM_F32;
  if (!lm_dtype_is_half(t))
    return LM_F32;
  const lm_global *g = lm_global_find(op->parent->func->module, op->attr.sym);
  return lm_global_is_trained(g) && g->type.dtype != t ? t : LM_F32;
}

static lm_value *whole_rule(lm_rewrite *r, lm_op *op) {
  return copies_read(op) == LM_F32 ? NULL : made_read(r, op, op);
}

// ---- @copies

// copied: from the copies.
static lm_value *recomputed(lm_builder *b, const lm_value *v, bool copied, lm_value *const *index,
                            uint32_t n) {
  const lm_op *op = v->def;
  lm_value *in[LM_RANK];
  if (op->code != LM_OP_PARAM) {
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = recomputed(b, op->in[i], copied, index, n);
    return lm_emit(b, op->code, in, op->n_in, &op->attr, &v->type);
  }
  lm_attr a = {
      .sym = op->attr.sym,
      .n_imm = (uint8_t)(2 * n),
  };
  for (uint32_t i = 0; i < n; i++)
    a.imm[2 * i + 1] = 1;
  bool half = copied && lm_dtype_is_half(v->type.dtype);
  lm_value *p = lm_emit(b, LM_OP_PARAM, index, n, &a, half ? &v->type : NULL);
  return lm_emit_cast(b, p, (lm_dtype)v->type.dtype);
}

// A loop nest over the stacked axes from `level` on.
static lm_value *derived_whole(lm_builder *b, const derived *x, bool copied, lm_value **index,
                               uint32_t level) {
  const lm_global *g = lm_global_find(b->m, x->name);
  if (level == (uint32_t)g->n_stack)
    return recomputed(b, x->like->out[0], copied, index, level);
  lm_axis axis = g->type.axis[level];
  lm_op *loop = lm_loop_begin(b, lm_axis_size(b->m, axis), axis, NULL, 0);
  index[level] = loop->body->args[0];
  lm_value *v = derived_whole(b, x, copied, index, level + 1);
  lm_loop_end(b, loop, NULL, 0, &v, 1);
  return loop->out[0];
}

static lm_value *copies_cast(lm_builder *b, lm_dtype half) {
  lm_module *m = b->m;
  lm_sym p = LM_SYM(m->ctx, lm_port_table[LM_PORT_P].name);
  return lm_emit_cast(b, lm_arg_add(m, b->at, lm_type_blocks(m, LM_F32), p), half);
}

// id: LM_FUNC_COPIES, or LM_FUNC_PACKS, which reads the copies and leaves out globals that are
// derived from frozen parameters.
// half: the type of the copies; LM_F32: the function makes none.
static void func_make(lm_module *m, lm_func_id id, lm_dtype half, const making *k,
                      const lm_hoisting *h) {
  lm_func *f = lm_func_add_key(m, (lm_func_key){id});
  lm_builder b = {
      .m = m,
      .at = f->body,
  };
  lm_value **out = LM_NEW_N(m->arena, lm_value *, k->n + h->n + 1), *index[LM_RANK];
  lm_value **hoisted = LM_NEW_N(m->arena, lm_value *, h->n + 1);
  f->out_names = LM_NEW_N(m->arena, lm_sym, k->n + h->n + 1);
  if (half != LM_F32) {
    f->out_names[f->n_out] = LM_SYM(m->ctx, lm_port_table[LM_PORT_COPIES].name);
    out[f->n_out++] = copies_cast(&b, half);
  }
  for (uint32_t i = 0; i < k->n; i++) {
    if (k->all[i].frozen && id == LM_FUNC_PACKS)
      continue;
    f->out_names[f->n_out] = k->all[i].name;
    out[f->n_out++] = derived_whole(&b, &k->all[i], id == LM_FUNC_PACKS, index, 0);
  }
  lm_hoisting_emit(&b, h, id == LM_FUNC_PACKS, id == LM_FUNC_PACKS, hoisted);
  for (uint32_t i = 0; i < h->n; i++) {
    if (!hoisted[i])
      continue;
    f->out_names[f->n_out] = h->v[i].name;
    out[f->n_out++] = hoisted[i];
  }
  lm_emit_op(&b, LM_OP_RETURN, out, f->n_out, NULL, NULL);
}

static void result_add(lm_func *f, const char *name, lm_value *v) {
  lm_module *m = f->module;
  lm_op *ret = f->body->last;
  lm_value **in = LM_NEW_N(m->arena, lm_value *, ret->n_in + 1);
  lm_sym *names = LM_NEW_N(m->arena, lm_sym, ret->n_in + 1);
  for (uint32_t i = 0; i < ret->n_in; i++) {
    in[i] = ret->in[i];
    names[i] = f->out_names[i];
  }
  in[ret->n_in] = v;
  names[f->n_out++] = LM_SYM(m->ctx, name);
  ret->n_in++;
  ret->in = in;
  f->out_names = names;
}

// The update also gives its new parameters in the type of the copies. False if the module has none.
static bool update_cast(lm_module *m, lm_dtype half) {
  lm_func *f = lm_func_get(m, LM_FUNC_UPDATE, 0);
  uint32_t p = 0;
  while (f && p < f->n_out && strcmp(f->out_names[p], lm_port_table[LM_PORT_P].name))
    p++;
  if (!f || p == f->n_out)
    return false;
  lm_op *ret = f->body->last;
  lm_builder b = {m, f->body, ret, ret->loc};
  result_add(f, lm_port_table[LM_PORT_COPIES].name, lm_emit_cast(&b, ret->in[p], half));
  return true;
}

static bool any_trained(const making *k, const lm_hoisting *h) {
  for (uint32_t i = 0; i < k->n; i++)
    if (!k->all[i].frozen)
      return true;
  for (uint32_t i = 0; i < h->n; i++)
    if (!h->v[i].frozen)
      return true;
  return false;
}

static void copies_make(lm_module *m, lm_dtype half, const making *k, const lm_hoisting *h) {
  func_make(m, LM_FUNC_COPIES, half, k, h);
  if (half != LM_F32 && update_cast(m, half) && any_trained(k, h))
    func_make(m, LM_FUNC_PACKS, LM_F32, k, h);
}

// *user: the type of the copies that some function reads. `real` is of one type, so the copies are.
static void is_read(lm_op *op, void *user) {
  lm_dtype t = copies_read(op);
  if (t != LM_F32)
    *(lm_dtype *)user = t;
}

static bool divides_parameters(const lm_module *m) {
  for (int k = 0; k < m->mesh.n; k++)
    if (m->mesh.axis[k].zero)
      return true;
  return false;
}

static lm_func *copies_func(lm_module *m) {
  lm_func *f = lm_func_get(m, LM_FUNC_COPIES, 0);
  if (f)
    return f;
  f = lm_func_add_key(m, (lm_func_key){LM_FUNC_COPIES});
  lm_builder b = {
      .m = m,
      .at = f->body,
  };
  lm_emit_op(&b, LM_OP_RETURN, NULL, 0, NULL, NULL);
  return f;
}

// Makes each cast that is left a `derived` global, behind those of k.
static void wholes_make(lm_module *m, const lm_pass_env *env, making *k) {
  uint32_t first = k->n;
  lm_value *index[LM_RANK];
  lm_pass_dce(m, env); // what only the hoisted values used
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, whole_rule, k);
  if (k->n == first)
    return;
  lm_func *f = copies_func(m);
  for (uint32_t i = first; i < k->n; i++) {
    lm_builder b = {m, f->body, f->body->last, f->body->last->loc};
    result_add(f, k->all[i].name, derived_whole(&b, &k->all[i], false, index, 0));
  }
}

bool lm_pass_hoist_params(lm_module *m, const lm_pass_env *env) {
  making k = {0};
  lm_dtype half = LM_F32;
  for (lm_func *f = m->funcs; f; f = f->next) {
    lm_rewrite_func(f, cast_rule, NULL);
    lm_rewrite_func(f, made_rule, &k);
  }
  if (k.n)
    lm_pass_dce(m, env); // removes operations that only the hoisted values used
  lm_hoisting h = lm_hoisting_find(m);
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, is_read, &half);
  bool wholes = half != LM_F32 && divides_parameters(m);
  half = wholes ? LM_F32 : half;
  if (half != LM_F32 || k.n || h.n)
    copies_make(m, half, &k, &h);
  lm_hoisting_apply(m, &h);
  if (wholes)
    wholes_make(m, env, &k);
  return true;
}
