// reduce.c - @reduce, which adds the gradients of the ranks at the end of a step.
//
//   func reduce work 0
//     0 start all_reduce sum f32 27648 over dp lane 0 as 0 grad[0 : 110592] -> grad[0 : 110592]
//     1 wait 0 grad[0 : 110592] -> grad[0 : 110592]
//
// With `mesh dp = 2 rows reduce bf16` ranks send half of the bytes, and add in f32:
//
//   func reduce work 55296
//     0 kernel k8 over 27648 grad[0 : 110592] -> work[0 : 55296]
//     1 start all_reduce sum bf16 27648 over dp lane 0 as 0 work[0 : 55296] -> work[0 : 55296]
//     2 wait 0 work[0 : 55296] -> work[0 : 55296]
//     3 kernel k9 over 27648 work[0 : 55296] -> grad[0 : 110592]
//
// A region of the gradients is added along each axis of the mesh along which it is partial, behind
// what pass reduce_once has moved there. For @micro_last (last.c) a region is added in parts, the
// layers of a stack and the parameters between stacks:
//
//     0 loop i0 < 24
//     1   start all_reduce sum f32 1024 over dp lane 0 as 0 grad[8192+4096*i0 : 4096] -> grad[…]
//     2   wait 0 …
//     3 end
//     4 start all_reduce sum f32 2048 over dp lane 0 as 0 grad[0 : 8192] -> grad[0 : 8192]
//
// With the flag `bucket` a part that is a layer has at least LM_COLL_BUCKET_BYTES. A plan without
// gradients, or of one process, has no such function. Cost of bf16: the work memory of the largest
// part in bf16, which other functions use at other times.
#include "compiler/plan/internal.h"

static const int64_t BLOCK_BYTES = LM_BLOCK * (int64_t)sizeof(float);

// A function that is not in the module, for what no pass has made.
static lm_func *func_new(planner *p) {
  lm_func *f = LM_NEW(p->arena, lm_func);
  f->name = lm_func_table[LM_FUNC_REDUCE].name;
  f->key = (lm_func_key){.id = LM_FUNC_REDUCE};
  f->module = p->m;
  f->body = LM_NEW(p->arena, lm_region);
  f->body->func = f;
  lm_builder b = {
      .m = p->m,
      .at = f->body,
  };
  lm_emit_op(&b, LM_OP_RETURN, NULL, 0, NULL, NULL);
  return f;
}

lm_func *lm_reduce_func(planner *p) {
  bool partial = false;
  for (int i = 0; i < p->layout.n_regions; i++)
    partial |= p->layout.regions[i].partial != 0;
  bool missing = !lm_func_get(p->m, LM_FUNC_REDUCE, 0);
  return missing && partial && p->has_gradients ? func_new(p) : NULL;
}

// ---- casts

static int64_t elements_of(const region_part *x) {
  return x->bytes / (int64_t)sizeof(float);
}

static lm_op *cast_kernel(lm_builder *b, lm_value *x, lm_dtype to) {
  lm_op *kernel = lm_kernel_begin(b, NULL, &x, 1);
  lm_value *y = lm_emit_cast(b, kernel->body->args[0], to);
  lm_kernel_end(b, kernel, &y, 1);
  return kernel;
}

static lm_axis axis_of(planner *p, const char *name, int64_t size) {
  lm_type none = {0};
  return lm_axis_shared(p->m, LM_SYM(p->m->ctx, name), size, none);
}

// The casts are in a region without a parent: their operand is memory, which no operation defines.
static void casts_make(planner *p, lm_func *f, region_sum *s) {
  lm_region *r = LM_NEW(p->arena, lm_region);
  r->func = f;
  lm_builder b = {
      .m = p->m,
      .at = r,
  };
  lm_axis axes[2];
  axes[0] = axis_of(p, "region", s->part.bytes / BLOCK_BYTES);
  axes[1] = axis_of(p, "el", LM_BLOCK);
  lm_type blocks = lm_type_make(LM_F32, axes, LM_COUNT(axes));
  lm_sym name = LM_SYM(p->m->ctx, "gradients");
  lm_value *own = lm_arg_add(p->m, r, blocks, name);
  s->narrow = cast_kernel(&b, own, LM_BF16);
  s->widen = cast_kernel(&b, s->narrow->out[0], LM_F32);
}

static void sum_add(planner *p, lm_func *f, region_part part, int axis) {
  region_sum *s = &LM_PUSH(p->arena, p->sums, p->n_sums, p->cap_sums);
  *s = (region_sum){
      .part = part,
      .axis = axis,
  };
  if (p->m->mesh.axis[axis].reduce_bf16)
    casts_make(p, f, s);
}

// ---- parts

static void part_add(planner *p, lm_func *f, const lm_layout_region *r, region_part part) {
  for (int axis = 0; axis < p->m->mesh.n && part.bytes; axis++)
    if (r->partial >> axis & 1)
      sum_add(p, f, part, axis);
}

// Every axis of the mesh along which the region is added has the flag `bucket`.
static bool in_buckets(const planner *p, const lm_layout_region *r) {
  for (int axis = 0; axis < p->m->mesh.n; axis++)
    if (r->partial >> axis & 1 && !p->m->mesh.axis[axis].bucket)
      return false;
  return true;
}

// The first stack of the region from byte `from` on whose layers are added apart; count 0: none.
static region_part stack_find(const planner *p, const lm_layout_region *r, int64_t from) {
  int64_t end = (r->first + r->n) * BLOCK_BYTES;
  int64_t least = in_buckets(p, r) ? LM_COLL_BUCKET_BYTES : 0;
  region_part found = {.offset = end};
  for (uint32_t i = 0; i < p->m->n_globals; i++) {
    const lm_global *g = &p->m->globals[i];
    const lm_layout_location *at = &p->layout.globals[i].grad;
    bool stacked = g->kind == LM_GLOBAL_PARAM && g->n_stack && at->stride[0] >= least;
    if (stacked && at->offset >= from && at->offset < found.offset)
      found = (region_part){at->offset, at->stride[0], lm_axis_size(p->m, g->type.axis[0])};
  }
  return found;
}

static void region_cut(planner *p, lm_func *f, const lm_layout_region *r) {
  int64_t at = r->first * BLOCK_BYTES;
  int64_t end = at + r->n * BLOCK_BYTES;
  while (at < end) {
    region_part stack = stack_find(p, r, at);
    part_add(p, f, r, (region_part){at, stack.offset - at, 1});
    part_add(p, f, r, stack);
    at = stack.offset + stack.bytes * stack.count;
  }
}

void lm_reduce_begin(planner *p, lm_func *f) {
  int n = p->has_gradients ? p->layout.n_regions : 0;
  p->n_sums = 0;
  for (int i = 0; i < n; i++) {
    const lm_layout_region *r = &p->layout.regions[i];
    if (p->cuts)
      region_cut(p, f, r);
    else
      part_add(p, f, r, (region_part){r->first * BLOCK_BYTES, r->n * BLOCK_BYTES, 1});
  }
}

// ---- steps

static void comm_step(planner *p, lm_step_kind kind, const region_sum *s, lm_dtype dtype,
                      const ref *at) {
  pstep *step = lm_step_add(p, kind, p->f->body->last, 2);
  step->step.comm = LM_NEW(p->arena, lm_plan_comm);
  *step->step.comm = (lm_plan_comm){
      .kind = LM_COLL_ALL_REDUCE,
      .op = lm_sum_kind(p, s->axis, dtype),
      .dtype = dtype,
      .count = elements_of(&s->part),
      .group = 1 + s->axis,
  };
  step->step.label =
      lm_arena_printf(p->arena, "the sum of the gradients over %s", p->m->mesh.axis[s->axis].name);
  step->step.n_read = 1;
  step->step.n_write = 1;
  step->refs[0] = *at;
  step->refs[1] = *at;
  step->step.moved = kind == LM_STEP_START ? 2 * at->bytes : 0;
}

static void sum_steps(planner *p, const region_sum *s, lm_dtype dtype, const ref *at) {
  comm_step(p, LM_STEP_START, s, dtype, at);
  comm_step(p, LM_STEP_WAIT, s, dtype, at);
}

// False: the kernel cannot be generated.
static bool cast_step(planner *p, lm_op *kernel) {
  lm_step_kernel(p, kernel);
  if (!p->failed)
    p->steps[p->n_steps - 1].step.label = "kernel cast of the gradients";
  return !p->failed;
}

static void sum_in_bf16(planner *p, const region_sum *s, const ref *grad) {
  lm_value *own = s->narrow->in[0];
  lm_value *sent = s->narrow->out[0];
  location from = lm_location_dense(p, grad->at, own->type);
  from.offset = grad->offset;
  from.loop[0] = grad->loop[0];
  lm_location_set(p, own, from);
  if (!cast_step(p, s->narrow))
    return;
  ref at = lm_location_ref(p, lm_value_location(p, sent), sent->type);
  sum_steps(p, s, LM_BF16, &at);
  if (!cast_step(p, s->widen))
    return;
  pstep *stores = &p->steps[p->n_steps - 1];
  stores->refs[stores->step.n_read] = *grad;
}

static void sum_make(planner *p, const region_sum *s) {
  ref grad = {
      .at = p->fixed[LM_ARENA_GRAD],
      .offset = s->part.offset,
      .loop = {s->part.count > 1 ? s->part.bytes : 0},
      .bytes = s->part.bytes,
  };
  if (s->narrow)
    sum_in_bf16(p, s, &grad);
  else
    sum_steps(p, s, LM_F32, &grad);
}

// The sums of one part are beside each other.
void lm_reduce_steps(planner *p) {
  const region_sum *s = p->sums, *end = s + p->n_sums;
  while (s < end && !p->failed) {
    const region_part *part = &s->part;
    if (part->count > 1)
      lm_step_loop_begin(p, p->f->body->last, part->count);
    for (; s < end && s->part.offset == part->offset && !p->failed; s++)
      sum_make(p, s);
    if (part->count > 1)
      lm_step_loop_end(p, p->f->body->last);
  }
}
