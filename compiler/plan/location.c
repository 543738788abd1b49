// location.c - locations of values: the storage, the offset and the strides.
#include <string.h>

#include "compiler/plan/internal.h"

void lm_plan_error(planner *p, const lm_op *op, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_vreport(p->m->ctx, op ? op->loc : (lm_loc){0}, id, fmt, ap);
  va_end(ap);
  p->failed = true;
}

location *lm_value_location(planner *p, lm_value *v) {
  location *at = &p->locations[v->id];
  if (!at->at)
    LM_BUG("value %%%u has no location", v->id);
  return at;
}

int64_t lm_type_bytes(const planner *p, lm_type t) {
  return lm_type_elements(p->m, t) * lm_dtype_bytes(t.dtype);
}

location lm_location_dense(const planner *p, storage *at, lm_type t) {
  location out = {.at = at};
  lm_strides_dense(p->m, t, out.stride);
  return out;
}

static lm_plan_ring ring_of(const lm_op *cycle) {
  const int64_t *imm = cycle->attr.imm;
  return (lm_plan_ring){
      .ahead = (int)imm[0],
      .by = (int)imm[1],
      .by_rank = (int)imm[2],
      .slots = (int)imm[3],
      .per = (int)imm[4],
      .mesh = cycle->attr.mesh,
  };
}

// Elements at negative strides are not counted.
ref lm_location_ref(const planner *p, const location *at, lm_type t) {
  ref r = {
      .at = at->at,
      .offset = at->offset,
      .bytes = lm_dtype_bytes(t.dtype),
  };
  memcpy(r.loop, at->loop, sizeof r.loop);
  if (at->cycle)
    r.ring[at->cycle_depth] = ring_of(at->cycle);
  for (int i = 0; i < t.rank; i++)
    if (at->stride[i] > 0)
      r.bytes += (lm_axis_size(p->m, t.axis[i]) - 1) * at->stride[i] * lm_dtype_bytes(t.dtype);
  return r;
}

// ---- locations of operations

void lm_location_set(planner *p, lm_value *v, location at) {
  p->locations[v->id] = at;
  if (at.at->last_use < p->last_use[v->id])
    at.at->last_use = p->last_use[v->id];
}

void lm_location_index(planner *p, lm_op *op, lm_value *i, const int64_t *imm, int64_t size,
                       int64_t stride, location *at) {
  int64_t first = imm[0];
  int64_t step = imm[1];
  int64_t last;
  int depth = p->depth - 1;
  const lm_op *cycle = i->def && i->def->code == LM_OP_CYCLE ? i->def : NULL;
  const lm_value *iteration = cycle ? cycle->in[0] : i;
  if (i->def && i->def->code == LM_OP_CONST) {
    first += step * (int64_t)i->def->attr.num;
    last = first;
  } else {
    while (depth >= 0 && p->frames[depth].op->body->args[0] != iteration)
      depth--;
    if (depth < 0) {
      LM_PLAN_ERROR(p, op, E706, lm_op_info_of(op)->name);
      return;
    }
    int64_t n = cycle ? lm_cycle_count(cycle) : p->frames[depth].op->attr.imm[0];
    last = first + step * (n - 1);
    if (cycle ? at->loop[depth] : at->cycle && at->cycle_depth == depth)
      LM_BUG("two indices of @%s follow one loop", op->attr.sym);
    at->loop[depth] += step * stride;
    at->cycle = cycle ? cycle : at->cycle;
    at->cycle_depth = cycle ? depth : at->cycle_depth;
  }
  at->offset += first * stride;
  if (first < 0 || first >= size || last < 0 || last >= size)
    LM_PLAN_ERROR(p, op, E707, lm_op_info_of(op)->name, (long long)first, (long long)last,
                  (long long)size);
}

location lm_location_of_state(planner *p, lm_op *op, const lm_global *state, lm_type t) {
  const lm_layout_location *whole = &p->layout.globals[state - p->m->globals].value;
  location out = lm_location_dense(p, p->fixed[whole->arena], t);
  out.offset = whole->offset;
  for (int s = 0; s < state->n_stack; s++) {
    int64_t imm[] = {op->attr.imm[2 * s] - (s + 1 == state->n_stack ? state->first : 0),
                     op->attr.imm[2 * s + 1]};
    lm_location_index(p, op, op->in[s], imm, lm_axis_size(p->m, state->type.axis[s]),
                      whole->stride[s], &out);
  }
  return out;
}

location lm_location_of_global(planner *p, lm_op *op, const lm_layout_location *whole, lm_type t) {
  const lm_global *g = lm_global_find(p->m, op->attr.sym);
  location out = lm_location_dense(p, p->fixed[whole->arena], t);
  out.offset = whole->offset;
  int indices = op->attr.n_imm / 2;
  if (g->kind == LM_GLOBAL_PARAM)
    lm_global_strides(p->m, g, out.stride + g->n_stack - indices);
  for (int s = indices; s < g->n_stack; s++)
    out.stride[s - indices] = whole->stride[s] / lm_dtype_bytes(whole->dtype);
  for (int s = 0; s < indices; s++)
    lm_location_index(p, op, op->in[s], &op->attr.imm[2 * s], lm_axis_size(p->m, g->type.axis[s]),
                      whole->stride[s], &out);
  return out;
}

// ---- caches

bool lm_cache_is_written(const planner *p, lm_sym cache) {
  return lm_region_count(p->f->body, LM_OP_RETAIN, cache) > 0;
}
