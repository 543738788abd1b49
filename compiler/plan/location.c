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

// Elements at negative strides are not counted.
ref lm_location_ref(const planner *p, const location *at, lm_type t) {
  ref r = {.at = at->at, .offset = at->offset, .bytes = lm_dtype_bytes(t.dtype)};
  memcpy(r.loop, at->loop, sizeof r.loop);
  for (int i = 0; i < t.rank; i++)
    if (at->stride[i] > 0)
      r.bytes += (lm_axis_size(p->m, t.axis[i]) - 1) * at->stride[i] * lm_dtype_bytes(t.dtype);
  return r;
}
