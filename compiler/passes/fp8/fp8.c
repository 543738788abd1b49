// fp8.c - pass `fp8`: multiplies 8-bit floats in the GEMMs of weights and in those of their
// gradients.
//
// before: %w = param @w[%i] : f32[d, f]
//         %y = dot %x, %w over(d) : f32[b, f]
// after:  %y1 = dot (rounded %x), (rounded %w) over(d)
//         %y2 = dot %x, (rounded %w) over(d)      %y3 = round_cotangent %y2 [5, 2]
//         %y4 = dot (rounded %x), %w over(d)      %y5 = round_cotangent %y4 [5, 2]
//         %y = straight %y1, %y3 + %y5
//
// The value of y is that of y1. Its cotangent goes through y3 to x, as the rounded cotangent times
// the rounded weight, and through y5 to w, as the rounded activation times the rounded cotangent:
// pass `grad` derives the two GEMMs, and y2 and y4 are never computed. Rounding is the chain of
// operations that compiler/ops/fp8.h describes, whose result is exact in f32 and bf16, so the GEMM
// is one of f32 or bf16. A weight is rounded from the f32 parameter; as its scale depends on
// parameters alone, pass hoist_params rounds it once per update. Ranks that gather it (ZeRO) round
// their parts and gather the codes.
//
// Scales are those of the tensor (current); or of the last steps, from histories (delayed), which
// are states of the run: one for each activation and for each cotangent of a GEMM, entered in
// @micro and moved on by @update, unless it skips the step, after a maximum over the ranks; or of
// blocks along the axis that a GEMM sums (blocks, mx), so that the activation and the cotangent are
// rounded twice, for each of the two GEMMs that read them, and in the blocks of mx, which are rows,
// also the weight. Scales of tensors are those of all ranks
// that have parts of the tensor: on the stages of a pipeline, not of other stages, and around them
// of the stages' ranks too (fp8_stages.c).
//
// Declines: without lm_pass_env.fp8; the GEMMs that fp8_choice.c names; losses that are only
// evaluated. Cost: the rounded operands, in the type of the computation, and for current scales a
// pass over each operand, and a collective along each axis of a mesh.
#include "compiler/passes/fp8/fp8.h"

#include "compiler/ir/dot.h"
#include "compiler/ops/fp8.h"
#include "compiler/passes/params_only.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

// An activation that is rounded, for the other GEMMs of the region that read it.
typedef struct operand {
  const lm_value *x;
  const lm_region *region;
  lm_fp8_axes along; // of blocks that have a scale each; none: x has one
  lm_value *rounded;
} operand;

typedef struct caster {
  const lm_fp8 *o;
  lm_builder b;
  operand *done;
  uint32_t n_done, cap_done;
  lm_axis slots; // of histories
  const lm_fp8_gemms *all;
  lm_fp8_stages stages;
  lm_fp8_phase phase; // of the present GEMM
} caster;

// ---- histories

static void history_make(caster *c, const char *kind, const lm_op *param, lm_sym name) {
  lm_module *m = c->b.m;
  const lm_global *of = lm_global_find(m, param->attr.sym);
  lm_sym *paths = of->paths;
  lm_type t = lm_type_make(LM_F32, of->type.axis, of->n_stack);
  t.axis[t.rank++] = c->slots;
  lm_global *g = lm_global_add(m, LM_GLOBAL_STATE, name, t, of->n_stack);
  for (int64_t i = 0; i < g->n_paths; i++) {
    const char *path = lm_arena_printf(m->arena, "fp8.%s.%s", kind, paths[i]);
    g->paths[i] = LM_SYM(m->ctx, path);
  }
}

// Where the history of a GEMM's activation ("x") or of its cotangent ("dy") is.
static lm_attr history_at(caster *c, const char *kind, const lm_op *param) {
  lm_module *m = c->b.m;
  const char *name = lm_arena_printf(m->arena, "fp8.%s/%s", kind, param->attr.sym);
  lm_attr at = param->attr;
  at.sym = LM_SYM(m->ctx, name);
  if (!lm_global_find(m, at.sym))
    history_make(c, kind, param, at.sym);
  return at;
}

static bool is_indexed_by(const lm_op *param, const lm_op *loop) {
  bool found = false;
  for (uint32_t i = 0; i < param->n_in; i++)
    found |= param->in[i]->region == loop->body;
  return found;
}

// The past steps of a history are the same in all tiles of rows: read in front of their loop, whose
// two halves, forward and backward, then have no state in common (pass fuse_loops).
static lm_value *delayed_scale(const lm_builder *b, const lm_attr *at, const lm_op *param,
                               lm_dtype format) {
  lm_builder front = *b;
  for (lm_op *loop = b->at->owner; loop && loop->code == LM_OP_LOOP && !loop->n_in;
       loop = loop->parent->owner) {
    if (is_indexed_by(param, loop))
      break;
    front.at = loop->parent;
    front.before = loop;
  }
  lm_value *history = lm_emit_history(&front, at, param->in, param->n_in);
  lm_value *magnitude = lm_emit_history_magnitude(&front, history);
  return lm_emit_fp8_scale(&front, magnitude, format);
}

// ---- rounding

// others: along these axes of the mesh, ranks have other tensors.
static lm_value *rounded_whole(lm_builder *b, lm_value *x, lm_mesh_set others, lm_dtype format) {
  lm_value *magnitude = lm_emit_magnitude(b, x, lm_mesh_axes(b->m, others));
  lm_value *scale = lm_emit_fp8_scale(b, magnitude, format);
  return lm_emit_fp8(b, x, scale, format);
}

// Of the parameters whose GEMMs read x in this region, the one that is declared first: passes
// change the order of GEMMs.
static const lm_op *first_param(const caster *c, const lm_value *x) {
  const lm_op *first = NULL;
  for (uint32_t i = 0; i < c->all->n; i++) {
    const lm_fp8_gemm *g = &c->all->v[i];
    bool reads = !g->stays && g->dot->in[1 - g->weight] == x && g->dot->parent == c->b.at;
    if (reads && (!first || lm_global_find(c->b.m, g->param->attr.sym) <
                                lm_global_find(c->b.m, first->attr.sym)))
      first = g->param;
  }
  return first;
}

static lm_value *rounded_by_history(caster *c, lm_value *x) {
  lm_builder *b = &c->b;
  const lm_op *param = first_param(c, x);
  lm_dtype format = c->o->forward;
  lm_attr at = history_at(c, "x", param);
  lm_value *scale = delayed_scale(b, &at, param, format);
  lm_value *rounded = lm_emit_fp8(b, x, scale, format);
  lm_value *valid = lm_fp8_has_micro(b, &c->stages, c->phase);
  lm_emit_observation(b, &at, param->in, param->n_in, x, valid);
  return rounded;
}

static bool axes_equal(const lm_fp8_axes *a, const lm_fp8_axes *b) {
  bool equal = a->n == b->n;
  for (int i = 0; equal && i < a->n; i++)
    equal = a->v[i] == b->v[i];
  return equal;
}

// x as an earlier GEMM of the region rounded it; NULL if none did.
static lm_value *rounded_before(const caster *c, const lm_value *x, const lm_fp8_axes *along) {
  for (uint32_t i = 0; i < c->n_done; i++) {
    const operand *o = &c->done[i];
    if (o->x == x && o->region == c->b.at && axes_equal(&o->along, along))
      return o->rounded;
  }
  return NULL;
}

static lm_value *rounded_note(caster *c, const lm_value *x, const lm_fp8_axes *along,
                              lm_value *rounded) {
  LM_PUSH(c->b.m->arena, c->done, c->n_done, c->cap_done) = (operand){
      .x = x,
      .region = c->b.at,
      .along = *along,
      .rounded = rounded,
  };
  return rounded;
}

static lm_value *rounded_activation(caster *c, lm_value *x) {
  bool delayed = c->o->scaling == LM_FP8_DELAYED;
  lm_fp8_axes none = {.n = 0};
  lm_value *now = rounded_before(c, x, &none);
  if (now)
    return now;
  now = delayed ? rounded_by_history(c, x)
                : rounded_whole(&c->b, x, lm_fp8_others(&c->stages, c->phase), c->o->forward);
  return rounded_note(c, x, &none, now);
}

static lm_value *rounded_blocks(caster *c, lm_value *x, const lm_fp8_axes *along) {
  lm_value *now = rounded_before(c, x, along);
  if (now)
    return now;
  lm_fp8_blocks of = {lm_fp8_block(c->o->scaling), {*along}, 1};
  now = lm_emit_fp8_blocks(&c->b, x, &of, c->o->forward);
  return rounded_note(c, x, along, now);
}

// ---- weights

// What op, a movement of axes, makes of another operand.
static lm_value *moved(lm_builder *b, const lm_op *op, lm_value *from) {
  lm_type t = op->out[0]->type;
  t.dtype = from->type.dtype;
  return lm_emit(b, op->code, &from, 1, &op->attr, &t);
}

// The weight in f32, before it was cast. Ranks that have parts of it gather f32 (ZeRO).
static lm_value *master_of(lm_builder *b, lm_value *v) {
  lm_op *op = v->def;
  if (op->code == LM_OP_PARAM || lm_param_is_gathered(op))
    return v;
  lm_value *from = master_of(b, op->in[0]);
  return op->code == LM_OP_CAST ? from : moved(b, op, from);
}

// What gathers the weight, if v has its axes; NULL: ranks have the whole, or v is a view of it.
static const lm_op *gather_under(const lm_value *v) {
  while (lm_op_is(v, LM_OP_CAST) || lm_op_is(v, LM_OP_PERMUTE))
    v = v->def->in[0];
  return v->def && lm_param_is_gathered(v->def) ? v->def : NULL;
}

// The weight, rounded from f32 with a scale for each block.
static lm_value *weight_in_blocks(lm_builder *b, lm_value *v, const lm_fp8_blocks *of,
                                  lm_dtype format) {
  const lm_op *gather = gather_under(v);
  if (!gather || !lm_fp8_blocks_fit_parts(b->m, gather, of))
    return lm_emit_fp8_blocks(b, master_of(b, v), of, format);
  lm_value *w = lm_emit_fp8_blocks_gathered(b, gather, of, format);
  lm_type t = v->type;
  t.dtype = w->type.dtype;
  return lm_type_equal(w->type, t) ? w : lm_emit(b, LM_OP_PERMUTE, &w, 1, NULL, &t);
}

// The weight, rounded from f32 with one scale. Where ranks have parts of it (ZeRO), each rounds its
// own, with the scale of the whole, and they gather the codes.
static lm_value *rounded_weight(caster *c, lm_value *v) {
  lm_builder *b = &c->b;
  lm_op *op = v->def;
  bool gathered = lm_param_is_gathered(op);
  if (op->code != LM_OP_PARAM && !gathered) {
    lm_value *from = rounded_weight(c, op->in[0]);
    return op->code == LM_OP_CAST ? from : moved(b, op, from);
  }
  lm_value *own = gathered ? op->in[0] : v;
  lm_dtype format = c->o->forward;
  lm_value *magnitude = lm_emit_magnitude(b, own, lm_type_divided_by(b->m, own->type));
  lm_value *scale = lm_emit_fp8_scale(b, magnitude, format);
  lm_value *code = lm_emit_fp8_code(b, own, scale, format);
  if (gathered)
    code = lm_emit(b, op->code, &code, 1, &op->attr, NULL);
  return lm_emit_fp8_number(b, code, scale, (lm_dtype)v->type.dtype);
}

// ---- a GEMM

// An activation and a weight, whatever their order.
typedef struct operands {
  lm_value *x, *w;
} operands;

// The operands as the GEMM of the result reads them, x as that of the weight's gradient does, and w
// as that of the activation's gradient does.
typedef struct roundings {
  lm_value *x, *w, *x_back, *w_back;
} roundings;

static operands operands_of(const lm_fp8_gemm *g) {
  lm_value **in = g->dot->in;
  return (operands){
      .x = in[1 - g->weight],
      .w = in[g->weight],
  };
}

// A dot of two operands in the order of the original.
static lm_value *dot(lm_builder *b, const lm_fp8_gemm *g, lm_value *x, lm_value *w) {
  const lm_op *op = g->dot;
  lm_value *in[2] = {x, w};
  if (!g->weight) {
    in[0] = w;
    in[1] = x;
  }
  return lm_emit(b, LM_OP_DOT, in, 2, &op->attr, &op->out[0]->type);
}

static roundings rounded_in_blocks(caster *c, const lm_fp8_gemm *g, operands v) {
  lm_builder *b = &c->b;
  lm_dtype format = c->o->forward;
  lm_fp8_along at = lm_fp8_along_of(c->o, b->m, g);
  int64_t size = lm_fp8_block(c->o->scaling);
  lm_fp8_blocks of_w = {size, {at.summed, at.columns}, c->o->scaling == LM_FP8_BLOCKS ? 2 : 1};
  lm_fp8_blocks back = {size, {at.columns}, 1};
  roundings r;
  r.w = r.w_back = weight_in_blocks(b, v.w, &of_w, format);
  if (of_w.n == 1)
    r.w_back = weight_in_blocks(b, v.w, &back, format);
  r.x = rounded_blocks(c, v.x, &at.summed);
  r.x_back = rounded_blocks(c, v.x, &at.rows);
  return r;
}

static roundings rounded(caster *c, const lm_fp8_gemm *g, operands v) {
  lm_builder *b = &c->b;
  roundings r;
  if (lm_fp8_block(c->o->scaling)) {
    r = rounded_in_blocks(c, g, v);
  } else {
    r.w = r.w_back = rounded_weight(c, v.w);
    r.x = rounded_activation(c, v.x);
    r.x_back = r.x;
  }
  r.w = lm_emit_cast(b, r.w, (lm_dtype)v.w->type.dtype);
  r.w_back = lm_emit_cast(b, r.w_back, (lm_dtype)v.w->type.dtype);
  return r;
}

// How a cotangent is rounded, with a scale for blocks along these axes, if there are any.
static lm_fp8_rounding cotangent_rounding(const caster *c, const lm_fp8_axes *along,
                                          lm_value *scale) {
  return (lm_fp8_rounding){
      .format = c->o->backward,
      .scale = scale,
      .others = along->n || scale ? 0 : lm_fp8_others(&c->stages, c->phase),
      .along = *along,
      .size = lm_fp8_block(c->o->scaling),
  };
}

// Values whose cotangents are those of the GEMM, rounded for x along the axes of w that the GEMM
// does not sum, and for w along those of x.
static lm_value *cotangents_rounded(caster *c, const lm_fp8_gemm *g, operands v, lm_value *scale,
                                    const roundings *r) {
  lm_builder *b = &c->b;
  lm_fp8_along at = lm_fp8_along_of(c->o, b->m, g);
  lm_fp8_rounding for_x = cotangent_rounding(c, &at.columns, scale);
  lm_fp8_rounding for_w = cotangent_rounding(c, &at.rows, scale);
  lm_value *w = lm_emit1(b, LM_OP_STOP, r->w_back);
  lm_value *x = lm_emit1(b, LM_OP_STOP, r->x_back);
  lm_value *to_x = dot(b, g, v.x, w);
  lm_value *to_w = dot(b, g, x, v.w);
  to_x = lm_emit_round_cotangent(b, to_x, &for_x);
  to_w = lm_emit_round_cotangent(b, to_w, &for_w);
  return lm_emit2(b, LM_OP_ADD, to_x, to_w);
}

static lm_value *cotangent_observed(lm_builder *b, const lm_attr *at, const lm_op *param,
                                    lm_value *v) {
  uint32_t n = param->n_in;
  lm_value **in = LM_NEW_N(b->m->arena, lm_value *, n + 1);
  for (uint32_t i = 0; i < n; i++)
    in[i] = param->in[i];
  in[n] = v;
  return lm_emit(b, LM_OP_OBSERVE_COTANGENT, in, n + 1, at, NULL);
}

static lm_value *gemm_cast(caster *c, const lm_fp8_gemm *g) {
  lm_op *op = g->dot;
  lm_builder *b = &c->b;
  bool delayed = c->o->scaling == LM_FP8_DELAYED;
  *b = (lm_builder){b->m, op->parent, op, op->loc, op->remat};
  c->phase = lm_fp8_phase_of(&c->stages, g);
  if (c->stages.ticks && c->phase == LM_FP8_OUTSIDE && lm_fp8_follows_micro(c->o))
    LM_BUG("a scale of a micro-batch outside of the ticks of a pipeline");
  operands v = operands_of(g);
  roundings r = rounded(c, g, v);
  lm_attr at = {0};
  lm_value *scale = NULL;
  if (delayed) {
    at = history_at(c, "dy", g->param);
    scale = delayed_scale(b, &at, g->param, c->o->backward);
  }
  lm_value *back = cotangents_rounded(c, g, v, scale, &r);
  if (delayed)
    back = cotangent_observed(b, &at, g->param, back);
  lm_value *y = dot(b, g, r.x, r.w);
  return lm_emit2(b, LM_OP_STRAIGHT, y, back);
}

static bool func_cast(caster *c, lm_func *f) {
  lm_module *m = f->module;
  lm_fp8_gemms all = lm_fp8_choose(c->o, f);
  lm_value **now = LM_NEW_N(m->arena, lm_value *, all.n + 1);
  c->all = &all;
  c->stages = lm_fp8_stages_of(f);
  if (!lm_fp8_check(c->o, m->ctx, &all))
    return false;
  for (uint32_t i = 0; i < all.n; i++)
    if (!all.v[i].stays)
      now[i] = gemm_cast(c, &all.v[i]);
  lm_value **map = lm_calloc(m->n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < all.n; i++)
    map[all.v[i].dot->out[0]->id] = now[i];
  lm_func_substitute(f, map, m->n_values);
  lm_free(map);
  for (uint32_t i = 0; i < all.n; i++)
    if (now[i])
      lm_op_remove(all.v[i].dot);
  return true;
}

// ---- the end of a step

// The history with 0 in front, and without its last step.
static lm_value *shifted(lm_builder *b, lm_value *history) {
  lm_axis slots = history->type.axis[0];
  lm_axis past = lm_fp8_history_axis(b->m);
  lm_attr newest = {
      .axes = {slots},
      .n_axes = 1,
      .to = {past},
      .n_to = 1,
      .imm = {0, 1},
      .n_imm = 2,
  };
  lm_attr behind = {
      .axes = {past},
      .n_axes = 1,
      .to = {slots},
      .n_to = 1,
      .imm = {1, 1},
      .n_imm = 2,
  };
  lm_value *kept = lm_emit(b, LM_OP_SLICE, &history, 1, &newest, NULL);
  return lm_emit(b, LM_OP_PAD, &kept, 1, &behind, NULL);
}

// The history of the next step: that of this step, shifted, unless the step was skipped, for which
// grad_scale is NaN.
static lm_value *moved_on(lm_builder *b, lm_value *history, lm_value *grad_scale,
                          lm_mesh_set others) {
  lm_type number = lm_type_make(LM_F32, NULL, 0);
  history = lm_emit_all_max(b, history, lm_mesh_axes(b->m, others));
  lm_value *next = shifted(b, history);
  lm_value *zero = lm_emit_const(b, number, 0);
  lm_value *first = lm_emit_history_first(b, history);
  lm_value *skipped = lm_emit_select(b, first, zero, history);
  lm_value *good = lm_emit2(b, LM_OP_EQ, grad_scale, grad_scale);
  return lm_emit_select(b, good, next, skipped);
}

// A loop nest over the stacked axes from `level` on.
static void history_move(lm_builder *b, lm_sym name, lm_value *grad_scale, lm_value **index,
                         int level) {
  const lm_global *g = lm_global_find(b->m, name);
  if (level < g->n_stack) {
    int64_t size = lm_axis_size(b->m, g->type.axis[level]);
    lm_op *loop = lm_loop_begin(b, size, 0, NULL, 0);
    index[level] = loop->body->args[0];
    history_move(b, name, grad_scale, index, level + 1);
    lm_loop_end(b, loop, NULL, 0, NULL, 0);
    return;
  }
  uint32_t n = (uint32_t)level;
  lm_attr at = {
      .sym = name,
      .n_imm = (uint8_t)(2 * n),
  };
  for (uint32_t i = 0; i < n; i++)
    at.imm[2 * i + 1] = 1;
  lm_value *history = lm_emit_history(b, &at, index, n);
  index[n] = moved_on(b, history, grad_scale, lm_fp8_stacks(b->m, g));
  lm_emit_op(b, LM_OP_RETAIN, index, n + 1, &at, NULL);
}

static lm_value *grad_scale_of(const lm_func *f) {
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_value *v = f->body->args[i];
    if (v->name && lm_port_find(v->name) == LM_PORT_GRAD_SCALE)
      return v;
  }
  return NULL;
}

static void histories_move(lm_module *m) {
  lm_func *f = lm_func_get(m, LM_FUNC_UPDATE, 0);
  lm_value *grad_scale = f ? grad_scale_of(f) : NULL;
  lm_value *index[LM_RANK + 1];
  for (uint32_t i = 0; grad_scale && i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    lm_op *end = f->body->last;
    lm_builder b = {m, f->body, end, end->loc};
    if (g->kind == LM_GLOBAL_STATE && !g->of)
      history_move(&b, g->name, grad_scale, index, 0);
  }
}

bool lm_pass_fp8(lm_module *m, const lm_pass_env *env) {
  const lm_fp8 *o = env->fp8;
  if (!o)
    return true;
  bool delayed = o->scaling == LM_FP8_DELAYED;
  caster c = {
      .o = o,
      .b = {.m = m},
  };
  if (delayed)
    c.slots = lm_axis_add(m, LM_SYM(m->ctx, "slot"), LM_FP8_HISTORY + 1, 0);
  for (lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS && !func_cast(&c, f))
      return false;
  if (delayed)
    histories_move(m);
  return true;
}
