// fuse_gemms.c - merges GEMMs with a common input into one GEMM with concatenated weights.
//
// before: %q = dot %x, %wq over(d) : f32[b, t, g, h, e]
//         %k = dot %x, %wk over(d) : f32[b, t, g, e]
// after:  %1 = view %wq (g, h, e) -> (side)   %2 = view %wk (g, e) -> (side.1)
//         %w = concat %1, %2 (side, side.1) -> (pack) : f32[d, pack]
//         %y = dot %x, %w over(d) : f32[b, t, pack]
//         %3 = slice %y (pack) -> (side) [0, 1]        %q = view %3 (side) -> (g, h, e)
//         %4 = slice %y (pack) -> (side.1) [24, 1]     %k = view %4 (side.1) -> (g, e)
//
// or, if the weights can be side by side in memory:
//         packed @packed.0 : f32[layers, d, pack] stacked 1 along (pack) (@wq, @wk)
//         %w = param @packed.0[%i] : f32[d, pack]
//
// The usual cases are the query, key and value projections, and the gate and up projections of a
// gated MLP. The GEMMs must read the same input, and the free axes of each weight must be adjacent,
// at the same index. The pass runs before `grad`, which concatenates the cotangents of the slices:
// the gradient of x is one GEMM over the joined axis instead of a sum of one GEMM per weight, and
// so is the gradient of a packed weight. The gradient of each concatenated weight stays a GEMM
// (vjp_concat), which reads its slice through strides and adds to the gradient in memory.
// Parameters keep their names, shapes, checkpoints and groups.
//
// Weights are packed if they are the parameters themselves, or casts of them, with whole blocks of
// elements (the arena of parameters consists of blocks) and one group of the optimizer.
//
// Gain for n GEMMs: x is read once instead of n times, its cotangent is written and read once, and
// 2 (n - 1) launches are saved, 3 (n - 1) for packed weights. Cost: weights that cannot be packed
// are concatenated once per update (pass hoist_params); a slice that attention reads is copied, and
// again in the backward pass, unless the target's kernels read strided operands (other kernels read
// slices in place); if separate kernels compute the cotangents, after a norm or attention, one more
// kernel concatenates them. The cost model counts bytes; lm_target_choices.launch is the cost of a
// launch.
//
// So are grouped_dots with the same counts, such as gate and up of experts, if their weights can be
// packed and no mesh divides them.
//
// Declines: unprofitable merges, unless the pass is forced; targets without launch cost (on a CPU
// without matrix unit the merged GEMM took 0.82 to 1.07 of the separate time forward, and 1.00 to
// 1.49 for the gradient of x); weights that differ in layout, in the axes shared with x, or in
// their rematerialization mark; trained with frozen weights; axes with dynamic extent; weights that
// depend on more than parameters; GEMMs that pass fp8 casts, since a scale is that of one
// parameter, and in a module with such GEMMs, functions without a loss. Cost in memory: one more
// copy of concatenated weights. Compile time is linear, except for pairs of GEMMs in one region.
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/ir/internal.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct member {
  lm_op *dot;
  int at, n;    // the free axes of its weight: n axes from index `at`
  lm_axis side; // the axis that replaces them
} member;

typedef struct pack {
  lm_module *m;
  lm_func *f;
  member of[LM_RANK];
  int n;
  lm_sym packed; // the global that has the weights as members; NULL: they are concatenated
  const lm_fp8_gemms *weighted; // of a module with casts to 8-bit floats, all GEMMs of weights
} pack;

// ---- matching

static bool is_cast(const pack *p, const lm_op *dot) {
  for (uint32_t i = 0; p->weighted && i < p->weighted->n; i++)
    if (p->weighted->v[i].dot == dot)
      return !p->weighted->v[i].stays;
  return false;
}

// The axis of the groups of a grouped_dot; 0: of a dot.
static lm_axis group_of(const lm_op *dot) {
  return dot->code == LM_OP_GROUPED_DOT ? dot->in[LM_GROUPED_COUNTS]->type.axis[0] : 0;
}

// True if x and the weight share the reduction axes only, and the free axes of the weight are
// adjacent.
static bool member_of(const pack *p, lm_op *op, member *out) {
  const lm_module *m = p->m;
  if (!lm_op_multiplies_rows(op) || lm_value_is_weight(op->in[0]) ||
      !lm_value_is_weight(op->in[1]) || is_cast(p, op))
    return false;
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  *out = (member){
      .dot = op,
      .at = -1,
  };
  for (int i = 0; i < w.rank; i++) {
    if (lm_attr_has_axis(&op->attr, w.axis[i]) || w.axis[i] == group_of(op))
      continue;
    if (lm_type_find(x, w.axis[i]) >= 0 || m->axes[w.axis[i]].dyn)
      return false;
    if (out->at < 0)
      out->at = i;
    if (i != out->at + out->n++)
      return false;
  }
  return out->n > 0 && op->out[0]->type.dtype == x.dtype;
}

// Returns the type of the weight with axis `side` instead of its free axes.
static lm_type sided(const member *a, lm_axis side) {
  lm_type w = a->dot->in[1]->type;
  lm_type t = {.dtype = w.dtype};
  for (int i = 0; i < w.rank; i++) {
    if (i < a->at || i >= a->at + a->n)
      t.axis[t.rank++] = w.axis[i];
    else if (i == a->at)
      t.axis[t.rank++] = side;
  }
  return t;
}

// Whether the parameter under a weight is frozen. A weight derived from a trained one is made again
// after each update.
static bool is_frozen(const lm_module *m, const lm_value *w) {
  while (!lm_op_is(w, LM_OP_PARAM))
    w = w->def->in[0];
  return lm_global_find((lm_module *)m, w->def->attr.sym)->kind == LM_GLOBAL_FIXED;
}

static bool fits(const lm_module *m, const member *a, const member *b) {
  const lm_op *x = a->dot;
  const lm_op *y = b->dot;
  if (is_frozen(m, x->in[1]) != is_frozen(m, y->in[1]))
    return false;
  if (group_of(x) && x->in[LM_GROUPED_COUNTS] != y->in[LM_GROUPED_COUNTS])
    return false;
  if (x->in[0] != y->in[0] || lm_remat_choice(x->remat) != lm_remat_choice(y->remat) ||
      x->attr.n_axes != y->attr.n_axes)
    return false;
  for (int i = 0; i < x->attr.n_axes; i++)
    if (!lm_attr_has_axis(&y->attr, x->attr.axes[i]))
      return false;
  return lm_type_equal(sided(a, 0), sided(b, 0));
}

// Collects the first GEMM and the later GEMMs that match it, in order.
static bool pack_find(pack *p, lm_op *first) {
  p->n = 0;
  if (!member_of(p, first, &p->of[0]))
    return false;
  p->n = 1;
  for (lm_op *op = first->next; op && p->n < LM_RANK; op = op->next)
    if (op->code == first->code && op->in[0] == first->in[0] && member_of(p, op, &p->of[p->n]))
      p->n += fits(p->m, &p->of[0], &p->of[p->n]);
  return p->n > 1;
}

// ---- weights that are side by side in memory

// The parameter that a weight is, or is a cast of; NULL for other weights.
static const lm_op *param_of(const lm_value *w) {
  const lm_op *op = w->def;
  if (op->code == LM_OP_CAST)
    op = op->in[0]->def;
  return op->code == LM_OP_PARAM ? op : NULL;
}

static const lm_global *global_of(const pack *p, int i) {
  const lm_op *param = param_of(p->of[i].dot->in[1]);
  return param ? lm_global_find(p->m, param->attr.sym) : NULL;
}

// True if the weight can be beside the first: the same iteration of the same stack, whole blocks
// without padding, one group of the optimizer, and gradients partial over the same axes.
static bool is_packable(const pack *p, int i, const lm_pass_env *env) {
  const lm_global *first = global_of(p, 0);
  const lm_global *g = global_of(p, i);
  if (!first || !g || !lm_global_is_updated(g) || g->type.dtype != first->type.dtype ||
      p->of[i].dot->in[1]->type.dtype != p->of[0].dot->in[1]->type.dtype ||
      lm_global_stored_elements(p->m, g) % LM_BLOCK ||
      lm_global_stored_rows(p->m, g) != lm_axis_size(p->m, g->type.axis[g->n_stack]))
    return false;
  if (g->n_stack != first->n_stack || g->partial != first->partial ||
      memcmp(g->type.axis, first->type.axis, (size_t)g->n_stack * sizeof *g->type.axis) ||
      !lm_params_same_indices(param_of(p->of[0].dot->in[1]), param_of(p->of[i].dot->in[1])))
    return false;
  for (int64_t k = 0; env && env->updates_alike && k < g->n_paths; k++)
    if (!env->updates_alike(env->lowered, first->paths[k], g->paths[k]))
      return false;
  for (int k = 0; k < i; k++)
    if (global_of(p, k) == g)
      return false;
  return true;
}

// The packed global that has exactly these members; *out_taken: a member is in another one.
static const lm_global *packed_find(const pack *p, bool *out_taken) {
  int64_t at;
  const lm_global *found = lm_global_pack(p->m, global_of(p, 0), &at);
  *out_taken = false;
  for (int i = 0; i < p->n; i++)
    *out_taken |= lm_global_pack(p->m, global_of(p, i), &at) != found;
  *out_taken |= found && found->n_members != (uint32_t)p->n;
  for (int i = 0; found && !*out_taken && i < p->n; i++)
    *out_taken |= found->members[i] != global_of(p, i)->name;
  return found;
}

// True if the weights can be side by side in memory.
static bool packable(const pack *p, const lm_pass_env *env) {
  bool taken = false;
  for (int i = 0; i < p->n; i++)
    if (!is_packable(p, i, env))
      return false;
  packed_find(p, &taken);
  return !taken;
}

// ---- the cost model

// op->mark: a view of the GEMM's result; computed from the result elementwise.
enum {
  VIEWED = 1,
  FOLLOWS = 2
};
// Attention reads the result; the kernel that computes its cotangent also has other reductions.
enum {
  COPIED = 1,
  APART = 2
};

static int fate_of(const lm_op *dot) {
  int fate = 0;
  for (lm_op *op = dot->parent->first; op != dot; op = op->next)
    op->mark = 0;
  for (lm_op *op = dot->next; op; op = op->next) {
    uint32_t traits = lm_op_info_of(op)->traits;
    uint32_t in = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_op *def = op->in[i]->def;
      if (def && def->parent == op->parent)
        in |= def == dot ? VIEWED | FOLLOWS : def->mark;
    }
    if (lm_op_attends(op) && in & VIEWED)
      fate |= COPIED;
    if ((lm_op_attends(op) || traits & LM_T_REDUCE) && in & FOLLOWS)
      fate |= APART;
    bool moves = traits & LM_T_VIEW;
    op->mark = moves ? in : traits & LM_T_ELEMENTWISE ? in & FOLLOWS : 0;
  }
  return fate;
}

typedef struct costs {
  double launch; // in bytes
  bool once;     // hoist_params is enabled
  bool copies;   // attention needs dense operands
  bool packs;    // the weights are side by side in memory
} costs;

// True if the bytes saved exceed the bytes of the cost. In a differentiated function the forward
// traffic occurs in the backward pass as well; cotangents from separate kernels are concatenated by
// one more kernel. Weights that are not side by side in memory are concatenated once per update
// (pass hoist_params), which counts where parameters change; the gradients of those that are take
// one GEMM.
static bool is_profitable(const pack *p, const costs *c) {
  double x = lm_type_traffic(p->m, p->of[0].dot->in[0]->type);
  double w = c->launch;
  double y = 0;
  double gain;
  int trains = p->f->key.id == LM_FUNC_LOSS;
  int ways = 1 + trains;
  int fates = 0;
  gain = (p->n - 1) * (x + c->launch) + trains * (p->n - 1) * (2 * x + c->launch);
  if (trains && c->packs)
    gain += (p->n - 1) * (x + c->launch);
  for (int i = 0; i < p->n; i++) {
    const lm_op *dot = p->of[i].dot;
    int fate = fate_of(dot);
    if (c->copies && fate & COPIED)
      gain -= ways * (2 * lm_type_traffic(p->m, dot->out[0]->type) + c->launch);
    w += 2 * lm_type_traffic(p->m, dot->in[1]->type);
    y += lm_type_traffic(p->m, dot->out[0]->type);
    fates |= fate;
  }
  if (trains && fates & APART)
    gain -= 2 * y + c->launch;
  return gain > (c->packs ? 0 : w * (c->once ? trains : ways));
}

static bool is_enabled(const pack *p, const lm_pass_env *env, bool packs) {
  const lm_target *target = env ? env->target : NULL;
  if (!target || lm_pass_is_forced(env, "fuse_gemms"))
    return true;
  costs c = {.launch = (double)target->choices.launch,
             .once = !lm_pass_is_off(env, "hoist_params"),
             .copies = !env->codegen || !env->codegen->reads_strided,
             .packs = packs};
  return target->choices.launch > 0 && is_profitable(p, &c);
}

// ---- rewriting

// Moves the operations that compute v before `at`, if they follow it in the same region.
static void raise(lm_op *at, lm_value *v) {
  lm_op *op = v->def;
  if (!op || op->parent != at->parent)
    return;
  for (const lm_op *before = at->prev; before; before = before->prev)
    if (before == op)
      return;
  for (uint32_t i = 0; i < op->n_in; i++)
    raise(at, op->in[i]);
  lm_op_remove(op);
  lm_op_insert_before(at, op);
}

static lm_value *side_of(pack *p, lm_builder *b, member *a) {
  lm_value *w = a->dot->in[1];
  lm_attr v = {
      .n_axes = (uint8_t)a->n,
      .n_to = 1,
  };
  int64_t size = 1;
  memcpy(v.axes, w->type.axis + a->at, (size_t)a->n * sizeof *v.axes);
  for (int i = 0; i < a->n; i++)
    size *= lm_axis_size(p->m, v.axes[i]);
  if (a->n == 1) {
    a->side = v.axes[0];
    return w;
  }
  a->side = v.to[0] = lm_axis_add(p->m, LM_SYM(p->m->ctx, "side"), size, 0);
  return lm_emit(b, LM_OP_VIEW, &w, 1, &v, NULL);
}

// The replacement of a's result: the slice of y that begins at index `first` of the merged axis.
static lm_value *part_of(lm_builder *b, const member *a, lm_value *y, lm_axis axis, int64_t first) {
  lm_attr slice = {
      .axes = {axis}, .n_axes = 1, .to = {a->side}, .n_to = 1, .imm = {first, 1}, .n_imm = 2};
  lm_attr v = {.axes = {a->side}, .n_axes = 1, .n_to = (uint8_t)a->n};
  memcpy(v.to, a->dot->in[1]->type.axis + a->at, (size_t)a->n * sizeof *v.to);
  b->loc = a->dot->loc;
  lm_value *z = lm_emit(b, LM_OP_SLICE, &y, 1, &slice, NULL);
  if (a->n > 1)
    z = lm_emit(b, LM_OP_VIEW, &z, 1, &v, NULL);
  z->name = a->dot->out[0]->name;
  return z;
}

static lm_sym packed_add(pack *p) {
  lm_module *m = p->m;
  const lm_global *first = global_of(p, 0);
  lm_type side = sided(&p->of[0], 0);
  lm_type t = {
      .dtype = first->type.dtype,
      .rank = (uint8_t)first->n_stack,
  };
  lm_sym *members = LM_NEW_N(m->arena, lm_sym, p->n);
  int64_t size = 0;
  uint32_t n = 0;
  for (int i = 0; i < p->n; i++) {
    lm_type w = p->of[i].dot->in[1]->type;
    int64_t columns = 1;
    for (int k = p->of[i].at; k < p->of[i].at + p->of[i].n; k++)
      columns *= lm_axis_size(m, w.axis[k]);
    size += columns;
    members[i] = global_of(p, i)->name;
  }
  for (uint32_t i = 0; i < m->n_globals; i++)
    n += m->globals[i].kind == LM_GLOBAL_PACKED;
  if (t.rank + side.rank > LM_RANK)
    return NULL;
  lm_axis along = lm_axis_add(m, LM_SYM(m->ctx, "pack"), size, 0);
  memcpy(t.axis, first->type.axis, t.rank * sizeof *t.axis);
  for (int i = 0; i < side.rank; i++)
    t.axis[t.rank++] = side.axis[i] ? side.axis[i] : along;
  int n_stack = first->n_stack;
  lm_mesh_set partial = first->partial; // of all members
  lm_sym name = LM_SYM(m->ctx, lm_arena_printf(m->arena, "packed.%u", n));
  lm_global *g = lm_global_add(m, LM_GLOBAL_PACKED, name, t, n_stack);
  g->members = members;
  g->n_members = (uint32_t)p->n;
  g->along = along;
  g->partial = partial;
  return name;
}

static lm_sym packed_of(pack *p) {
  bool taken;
  const lm_global *found = packed_find(p, &taken);
  return found ? found->name : packed_add(p);
}

static lm_value *packed_read(pack *p, lm_builder *b) {
  const lm_value *w = p->of[0].dot->in[1];
  const lm_op *param = param_of(w);
  lm_attr a = param->attr;
  a.sym = p->packed;
  lm_value *v = lm_emit(b, LM_OP_PARAM, param->in, param->n_in, &a, NULL);
  return lm_emit_cast(b, v, (lm_dtype)w->type.dtype);
}

static void pack_write(pack *p) {
  lm_module *m = p->m;
  lm_op *first = p->of[0].dot;
  lm_builder b = {m, first->parent, first, first->loc};
  lm_value *side[LM_RANK];
  lm_attr join = {
      .n_axes = (uint8_t)p->n,
      .n_to = 1,
  };
  int64_t size = 0;
  uint32_t n_values = m->n_values;
  lm_value **stand = lm_calloc((size_t)n_values + 1, sizeof *stand);
  for (int i = 0; i < p->n; i++)
    raise(first, p->of[i].dot->in[1]);
  for (int i = 0; i < p->n; i++) {
    side[i] = side_of(p, &b, &p->of[i]);
    join.axes[i] = p->of[i].side;
    size += lm_axis_size(m, p->of[i].side);
  }
  join.to[0] = p->packed ? lm_global_find(m, p->packed)->along
                         : lm_axis_add(m, LM_SYM(m->ctx, "pack"), size, 0);
  lm_value *w =
      p->packed ? packed_read(p, &b) : lm_emit(&b, LM_OP_CONCAT, side, (uint32_t)p->n, &join, NULL);
  for (int i = 0; i < p->n; i++)
    b.remat |= p->of[i].dot->remat;
  lm_value *in[] = {first->in[0], w, group_of(first) ? first->in[LM_GROUPED_COUNTS] : NULL};
  lm_attr over = {.n_axes = first->attr.n_axes};
  memcpy(over.axes, first->attr.axes, sizeof over.axes);
  lm_value *y = lm_emit(&b, first->code, in, first->n_in, &over, NULL);
  b.remat = LM_REMAT_AUTO;
  for (int64_t i = 0, at = 0; i < p->n; at += lm_axis_size(m, p->of[i++].side))
    stand[p->of[i].dot->out[0]->id] = part_of(&b, &p->of[i], y, join.to[0], at);
  for (int i = 0; i < p->n; i++)
    lm_op_remove(p->of[i].dot);
  lm_func_substitute(p->f, stand, n_values);
  lm_free(stand);
}

static void pack_region(pack *p, lm_region *r, const lm_pass_env *env) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      pack_region(p, op->body, env);
    if (!pack_find(p, op))
      continue;
    bool packs = packable(p, env);
    if (group_of(op) && (!packs || p->m->mesh.n))
      continue;
    if (!is_enabled(p, env, packs))
      continue;
    lm_op *before = op->prev;
    p->packed = packs ? packed_of(p) : NULL;
    pack_write(p);
    next = before ? before->next : r->first;
  }
}

// False, after a diagnostic, if no GEMM is cast to 8-bit floats: here, where each has its own
// reason.
static bool pack_func(lm_module *m, lm_func *f, const lm_pass_env *env) {
  const lm_fp8 *fp8 = env ? env->fp8 : NULL;
  lm_fp8_gemms weighted;
  pack p = {
      .m = m,
      .f = f,
  };
  if (fp8 && f->key.id != LM_FUNC_LOSS)
    return true;
  if (fp8) {
    weighted = lm_fp8_choose(fp8, f);
    p.weighted = &weighted;
  }
  if (fp8 && !lm_fp8_check(fp8, m->ctx, &weighted))
    return false;
  pack_region(&p, f->body, env);
  return true;
}

bool lm_pass_fuse_gemms(lm_module *m, const lm_pass_env *env) {
  bool ok = true;
  for (lm_func *f = m->funcs; f && ok; f = f->next)
    ok = pack_func(m, f, env);
  return ok;
}
