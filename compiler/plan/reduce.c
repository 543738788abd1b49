// reduce.c - @reduce, which adds the gradients of the ranks at the end of a step.
//
//   func reduce work 0
//     0 start all_reduce sum f32 27648 over dp lane 0 as 0 grad[0 : 110592] -> grad[0 : 110592]
//     1 wait 0 grad[0 : 110592] -> grad[0 : 110592]
//
// A region of the gradients is added along each axis of the mesh along which it is partial, behind
// what pass reduce_once has moved there. A plan without gradients, or of one process, has no such
// function.
#include "compiler/plan/internal.h"

static lm_plan_step step_make(const planner *p, lm_step_kind kind, const lm_layout_region *r,
                              int axis) {
  int64_t elements = r->n * LM_BLOCK, bytes = elements * (int64_t)sizeof(float);
  lm_plan_buf grad = {
      .arena = LM_ARENA_GRAD,
      .live = -1,
      .offset = r->first * LM_BLOCK * 4,
      .bytes = bytes,
  };
  lm_plan_step s = {
      .kind = kind,
      .comm = LM_NEW(p->arena, lm_plan_comm),
      .bufs = LM_NEW_N(p->arena, lm_plan_buf, 2),
      .n_bufs = 2,
      .n_read = 1,
      .n_write = 1,
      .label = lm_arena_printf(p->arena, "the sum of the gradients over %s",
                               p->plan->mesh.axis[axis].name),
  };
  *s.comm = (lm_plan_comm){
      .kind = LM_COLL_ALL_REDUCE,
      .dtype = LM_F32,
      .count = elements,
      .group = 1 + axis,
  };
  s.bufs[0] = s.bufs[1] = grad;
  s.moved = kind == LM_STEP_START ? 2 * bytes : 0;
  return s;
}

// The function that the module has (pass reduce_once), or a new one.
static lm_plan_func *func_of(planner *p) {
  lm_func_key key = {.id = LM_FUNC_REDUCE};
  for (int i = 0; i < p->plan->n_funcs; i++)
    if (lm_func_key_equal(p->plan->funcs[i].key, key))
      return &p->plan->funcs[i];
  lm_plan_func *f = &p->plan->funcs[p->plan->n_funcs];
  *f = (lm_plan_func){.name = lm_func_table[LM_FUNC_REDUCE].name, .key = key};
  return f;
}

void lm_reduce_plan(planner *p) {
  lm_plan_func *f = func_of(p);
  bool is_new = f == &p->plan->funcs[p->plan->n_funcs];
  uint32_t n = (uint32_t)f->n_steps, cap = n;
  for (int i = 0; i < p->layout.n_regions && p->has_gradients; i++) {
    const lm_layout_region *r = &p->layout.regions[i];
    for (int axis = 0; axis < p->plan->mesh.n; axis++) {
      if (!(r->partial >> axis & 1))
        continue;
      for (int kind = LM_STEP_START; kind <= LM_STEP_WAIT; kind++)
        LM_PUSH(p->arena, f->steps, n, cap) = step_make(p, (lm_step_kind)kind, r, axis);
    }
  }
  f->n_steps = (int)n;
  p->plan->n_funcs += is_new && n > 0;
}
