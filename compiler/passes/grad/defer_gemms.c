// defer_gemms.c - computes the gradients of a weight of all layers by one GEMM behind the loop.
//
// before: %g = loop 24 … %j carry(%dy) {
//           %x = at %xs, %j [23, -1]   %d = dot %x, %dy over(b, t) : f32[f, d]
//           accum @layers.w[%j * -1 + 23], %d   … }
// after:  %g, %dys = loop 24 reversed … %j carry(%dy) { …   yield …, %dy }
//         %d = dot %xs, %dys over(b, t) : f32[layers, f, d]   accum @layers.w, %d
//
// The tiles of one layer's GEMM leave multiprocessors idle in the last of few rounds; those of all
// layers fill nearly all rounds. The loop stacks one operand, the cotangent, in the order in which
// the other one has been stashed. Gain: by the cost model, against the library's GEMMs in the loop
// and those in one launch (compiler/plan/join.c), for all weights of a loop or for none.
// Numerics: the library may choose another algorithm, which adds in another order.
// Declines: targets other than GPUs, unless the pass is forced; plans that must fit less memory;
// operands that are not stashed, or are in the host's memory; gradients that ranks add while the
// loop computes others; accums that do not visit each index of the stacked axis once.
// Cost: the memory of the cotangents of all layers.
#include <math.h>
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/grad/defer.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/planner.h"

enum {
  MOST = 32 // GEMMs of a loop
};

typedef struct match {
  lm_op *accum, *dot;
  lm_plan_gemm gemm; // of an iteration
} match;

typedef struct deferral {
  lm_module *m;
  const lm_pass_env *env;
  const uint32_t *uses;
  uint32_t n_uses; // values with a higher id are new
  lm_op *loop;
  match match[MOST];
  int n;
} deferral;

// ---- which GEMMs

static bool in_body(const deferral *d, const lm_op *op) {
  return op && op->parent == d->loop->body;
}

// True for an operation of the body of which the result has all elements of the operand.
static bool moves(const deferral *d, const lm_op *op) {
  return in_body(d, op) &&
         (op->code == LM_OP_VIEW || op->code == LM_OP_PERMUTE || op->code == LM_OP_RENAME);
}

static bool used_once(const deferral *d, const lm_value *v) {
  return v->id < d->n_uses && d->uses[v->id] == 1;
}

// The dot of the body that the accum adds, through views; NULL: there is none without other users.
static lm_op *dot_of(const deferral *d, const lm_op *accum) {
  lm_value *v = accum->in[accum->n_in - 1];
  while (moves(d, v->def) && used_once(d, v))
    v = v->def->in[0];
  bool own = in_body(d, v->def) && used_once(d, v);
  bool is = own && v->def->code == LM_OP_DOT;
  return is ? v->def : NULL;
}

typedef enum {
  OTHER,
  STASHED,  // the element of a stack that the accum has the gradient of
  COMPUTED, // in the body, or carried
} operand_kind;

static operand_kind stashed(const deferral *d, const lm_op *accum, const lm_op *at) {
  const lm_value *stack = at->in[0];
  const lm_region *body = d->loop->body;
  const int64_t *imm = &accum->attr.imm[2 * (accum->n_in - 2)];
  int64_t layers = d->loop->attr.imm[0];
  bool own = at->in[1] == body->args[0];
  bool same = !memcmp(at->attr.imm, imm, 2 * sizeof *imm);
  bool outside = stack->region != body && !stack->on_host;
  bool whole = lm_axis_size(d->m, stack->type.axis[0]) == layers;
  return own && same && outside && whole ? STASHED : OTHER;
}

static operand_kind kind_of(const deferral *d, const lm_op *accum, const lm_value *v) {
  while (v->type.rank < LM_RANK && moves(d, v->def))
    v = v->def->in[0];
  if (v->type.rank == LM_RANK)
    return OTHER;
  if (lm_op_is(v, LM_OP_AT))
    return stashed(d, accum, v->def);
  const lm_region *body = d->loop->body;
  bool carried = !v->def && v->region == body && v != body->args[0];
  bool moved = v->def && lm_op_has(v->def, LM_T_VIEW | LM_T_SOURCE);
  bool computed = in_body(d, v->def) && !moved;
  return carried || computed ? COMPUTED : OTHER;
}

// True if ranks add the gradient while the loop computes others (passes overlap and bucket).
static bool added_meanwhile(const deferral *d, const lm_op *accum) {
  const lm_global *g = lm_global_find(d->m, accum->attr.sym);
  if (g->kind == LM_GLOBAL_PACKED)
    g = lm_global_find(d->m, g->members[0]);
  bool overlaps = false;
  for (int k = 0; k < d->m->mesh.n; k++)
    overlaps |= d->m->mesh.axis[k].overlap;
  return overlaps && (g->partial || g->kind == LM_GLOBAL_TERMS);
}

static bool is_plain(const lm_plan_gemm *g) {
  return !g->n_batch && !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
}

static bool find(const deferral *d, lm_op *accum, match *out) {
  if (accum->code != LM_OP_ACCUM)
    return false;
  if (!lm_defer_visits_all(d->m, d->loop, accum))
    return false;
  lm_op *dot = dot_of(d, accum);
  if (!dot || added_meanwhile(d, accum))
    return false;
  *out = (match){
      .accum = accum,
      .dot = dot,
  };
  operand_kind x = kind_of(d, accum, dot->in[LM_DOT_X]);
  operand_kind w = kind_of(d, accum, dot->in[LM_DOT_W]);
  bool kept = x == STASHED || w == STASHED;
  bool fits = x && w && kept && dot->out[0]->type.rank < LM_RANK;
  if (!fits || !lm_plan_gemm_from_dot(d->m, dot, &out->gemm))
    return false;
  return is_plain(&out->gemm);
}

// True if the loop can stack in the order of the accum's axis, as it does for the others.
static bool order_fits(const deferral *d, const lm_op *accum) {
  bool free = d->loop->n_out == d->loop->n_in;
  bool fits = lm_defer_in_order(d->loop, accum);
  if (free && d->n)
    return fits == lm_defer_in_order(d->loop, d->match[0].accum);
  return free || fits;
}

static void find_all(deferral *d) {
  d->n = 0;
  for (lm_op *op = d->loop->body->first; op && d->n < MOST; op = op->next) {
    match *x = &d->match[d->n];
    d->n += find(d, op, x) && order_fits(d, op);
  }
}

// ---- profit

// The GEMMs of `layers` layers.
static lm_cost_gemm sizes_of(const match *x, double layers) {
  const lm_plan_gemm *g = &x->gemm;
  double m = (double)g->m.fixed;
  double n = (double)g->n.fixed;
  double k = (double)g->k.fixed;
  double operands = (m + n) * k * lm_dtype_bytes((lm_dtype)g->dtype_ab);
  return (lm_cost_gemm){
      .m = m,
      .n = n,
      .k = k,
      .batch = layers,
      .ab = (lm_dtype)g->dtype_ab,
      .bytes = layers * (operands + 2 * sizeof(float) * m * n), // the result is read and written
      .alignment = 16,
      .adds = true,
  };
}

static bool joins(const deferral *d, const match *x) {
  const lm_codegen *codegen = d->env->codegen;
  lm_plan_gemm g = x->gemm;
  g.accumulate = true;
  g.aligned = true;
  g.dtype_c = LM_F32;
  return codegen && codegen->joins && codegen->joins(d->env->target, &g);
}

// Of an iteration, if one launch computes as many GEMMs of equal k as it can.
static double joined_seconds(const deferral *d) {
  const lm_target *t = d->env->target;
  double seconds = 0;
  for (int i = 0; i < d->n;) {
    lm_cost_gemm all[LM_JOINED];
    int n = 0;
    for (; i < d->n && n < LM_JOINED; i++) {
      if (!joins(d, &d->match[i]))
        return INFINITY;
      all[n++] = sizes_of(&d->match[i], 1);
      if (all[n - 1].k != all[0].k)
        return INFINITY;
    }
    seconds += lm_cost_of_joined(t, all, n, NULL).seconds + t->rates.gap;
  }
  return seconds;
}

// Of the library's GEMMs.
static double library_seconds(const deferral *d, double layers) {
  const lm_target *t = d->env->target;
  double seconds = 0;
  for (int i = 0; i < d->n; i++) {
    lm_cost_gemm g = sizes_of(&d->match[i], layers);
    seconds += lm_cost_of_gemm(t, &g).seconds + t->rates.gap;
  }
  return seconds;
}

static bool is_profitable(const deferral *d) {
  double layers = (double)d->loop->attr.imm[0];
  if (lm_pass_is_forced(d->env, "defer_gemms"))
    return true;
  double in_loop = layers * fmin(library_seconds(d, 1), joined_seconds(d));
  return library_seconds(d, layers) < in_loop;
}

// ---- rewriting

// v of all iterations, as the loop stacks it.
static lm_value *stack_of(const deferral *d, lm_value *v) {
  const lm_op *yield = d->loop->body->last;
  for (uint32_t i = d->loop->n_in; i < d->loop->n_out; i++)
    if (yield->in[i] == v)
      return d->loop->out[i];
  return lm_loop_stack(d->m, d->loop, v);
}

// v of all layers: `axis` in front. whole: the same of a value that v is a view of, or NULL.
static lm_value *lift(const deferral *d, lm_builder *b, lm_axis axis, lm_value *v,
                      const lm_value *of, lm_value *whole) {
  if (v == of)
    return whole;
  if (moves(d, v->def)) {
    lm_value *x = lift(d, b, axis, v->def->in[0], of, whole);
    lm_type t = lm_type_stacked(axis, v->type);
    bool typed = lm_op_has(v->def, LM_T_TYPED);
    return lm_emit(b, v->def->code, &x, 1, &v->def->attr, typed ? &t : NULL);
  }
  lm_value *stack = lm_op_is(v, LM_OP_AT) ? v->def->in[0] : stack_of(d, v);
  lm_attr a = {
      .axes = {stack->type.axis[0]},
      .n_axes = 1,
      .to = {axis},
      .n_to = 1,
  };
  if (a.axes[0] == axis)
    return stack;
  return lm_emit(b, LM_OP_RENAME, &stack, 1, &a, NULL);
}

static void defer(const deferral *d, const match *x, lm_builder *b) {
  lm_axis axis = lm_defer_axis(d->m, x->accum);
  lm_value *in[2], *one = x->dot->out[0];
  lm_type t = lm_type_stacked(axis, one->type);
  b->loc = x->accum->loc;
  for (int i = 0; i < 2; i++)
    in[i] = lift(d, b, axis, x->dot->in[i], NULL, NULL);
  lm_value *all = lm_emit(b, LM_OP_DOT, in, 2, &x->dot->attr, &t);
  all->name = one->name;
  lm_value *added = x->accum->in[x->accum->n_in - 1];
  lm_defer_accum(b, x->accum, lift(d, b, axis, added, one, all));
  lm_op_remove(x->accum); // pass dce removes the dot
}

static void loop_visit(lm_op *loop, void *user) {
  deferral *d = user;
  d->loop = loop;
  find_all(d);
  if (!d->n || !is_profitable(d))
    return;
  lm_builder b = {
      .m = d->m,
      .at = loop->parent,
      .before = loop->next,
  };
  lm_defer_order(loop, d->match[0].accum);
  for (int i = 0; i < d->n; i++)
    defer(d, &d->match[i], &b);
}

static bool is_enabled(const lm_pass_env *env) {
  const lm_target *t = env->target;
  bool frees = env->recompute && env->recompute->bytes;
  bool keeps = !env->less_memory && !env->by_layer && !frees;
  bool gpu = t && t->kind == LM_TARGET_CUDA;
  bool known = gpu && lm_target_bandwidth(t) > 0 && lm_cost_peak(t, LM_BF16) > 0;
  return lm_pass_is_forced(env, "defer_gemms") || (known && keeps);
}

bool lm_pass_defer_gemms(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f && is_enabled(env); f = f->next) {
    uint32_t *uses = lm_func_uses(f);
    deferral d = {
        .m = m,
        .env = env,
        .uses = uses,
        .n_uses = m->n_values,
    };
    lm_loops_visit(f->body, loop_visit, &d);
    lm_free(uses);
  }
  return true;
}
