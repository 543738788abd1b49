// tensor.c - see tensor.h.
#include "runtime/hal/tensor.h"

#include "runtime/base/dtype.h"

typedef struct transfer {
  lm_exec *e;
  int64_t first;
  float *out; // NULL: writes `from`
  const float *from;
} transfer;

static lm_status floats_copy(void *user, const lm_tensor_run *r) {
  const transfer *x = user;
  int64_t at = r->first - x->first, bytes = r->n * (int64_t)sizeof(float);
  return x->out ? lm_exec_read(x->e, r->arena, r->offset, bytes, x->out + at)
                : lm_exec_write(x->e, r->arena, r->offset, bytes, x->from + at);
}

static lm_status bf16_copy(void *user, const lm_tensor_run *r) {
  const transfer *x = user;
  int64_t at = r->first - x->first, bytes = r->n * (int64_t)sizeof(uint16_t);
  uint16_t *v = lm_alloc((size_t)bytes);
  for (int64_t i = 0; x->from && i < r->n; i++)
    v[i] = lm_bf16_from_f32(x->from[at + i]);
  lm_status s = x->out ? lm_exec_read(x->e, r->arena, r->offset, bytes, v)
                       : lm_exec_write(x->e, r->arena, r->offset, bytes, v);
  for (int64_t i = 0; !s && x->out && i < r->n; i++)
    x->out[at + i] = lm_bf16_to_f32(v[i]);
  lm_free(v);
  return s;
}

static lm_status copy(const lm_plan *p, lm_plan_tensor t, int64_t n, transfer *x) {
  lm_dtype dtype = t.role == LM_ROLE_PARAM ? (lm_dtype)t.param->dtype : LM_F32;
  if (dtype != LM_F32 && dtype != LM_BF16)
    LM_BUG("parameter %s of type %s", t.param->path, lm_dtype_name(dtype));
  return lm_tensor_runs(p, t, x->first, n, dtype == LM_F32 ? floats_copy : bf16_copy, x);
}

lm_status lm_tensor_get(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        float *out) {
  return copy(p, t, n, &(transfer){e, first, out, NULL});
}

lm_status lm_tensor_set(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        const float *from) {
  return copy(p, t, n, &(transfer){e, first, NULL, from});
}
