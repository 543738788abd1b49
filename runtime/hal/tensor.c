// tensor.c - see tensor.h.
#include "runtime/hal/tensor.h"

#include "runtime/base/dtype.h"

typedef struct transfer {
  lm_exec *e;
  int64_t first;
  lm_dtype dtype;
  bool converts; // to and from f32
  char *out;     // NULL: writes `from`
  const char *from;
} transfer;

static lm_status elements_copy(void *user, const lm_tensor_run *r) {
  const transfer *x = user;
  int64_t unit = lm_dtype_bytes(x->dtype);
  int64_t at = (r->first - x->first) * unit;
  int64_t bytes = r->n * unit;
  return x->out ? lm_exec_read(x->e, r->arena, r->offset, bytes, x->out + at)
                : lm_exec_write(x->e, r->arena, r->offset, bytes, x->from + at);
}

// The bits of an element are in the first bytes of a uint32_t: the machine is little-endian.
static lm_status elements_convert(void *user, const lm_tensor_run *r) {
  const transfer *x = user;
  size_t unit = (size_t)lm_dtype_bytes(x->dtype);
  int64_t at = r->first - x->first;
  int64_t bytes = r->n * (int64_t)unit;
  const float *from = (const float *)(const void *)x->from;
  float *out = (float *)(void *)x->out;
  char *v = lm_alloc((size_t)bytes);
  for (int64_t i = 0; from && i < r->n; i++) {
    uint32_t bits = lm_dtype_bits(x->dtype, from[at + i]);
    memcpy(v + (size_t)i * unit, &bits, unit);
  }
  lm_status s = out ? lm_exec_read(x->e, r->arena, r->offset, bytes, v)
                    : lm_exec_write(x->e, r->arena, r->offset, bytes, v);
  for (int64_t i = 0; !s && out && i < r->n; i++) {
    uint32_t bits = 0;
    memcpy(&bits, v + (size_t)i * unit, unit);
    out[at + i] = (float)lm_dtype_value(x->dtype, bits);
  }
  lm_free(v);
  return s;
}

static lm_status copy(const lm_plan *p, lm_plan_tensor t, int64_t n, transfer x) {
  x.dtype = lm_plan_tensor_dtype(t);
  bool converts = x.converts && x.dtype != LM_F32;
  return lm_tensor_runs(p, t, x.first, n, converts ? elements_convert : elements_copy, &x);
}

static int64_t largest(const lm_plan_param *params, int n, int64_t most) {
  for (int i = 0; i < n; i++)
    if (params[i].elements > most)
      most = params[i].elements;
  return most;
}

int64_t lm_tensor_room(const lm_plan *p) {
  int64_t most = largest(p->params, p->n_params, (int64_t)p->n_blocks * LM_BLOCK);
  most = largest(p->states, p->n_own_states, most);
  return most < LM_TENSOR_CHUNK ? most : LM_TENSOR_CHUNK;
}

lm_status lm_tensor_read(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                         void *out) {
  return copy(p, t, n,
              (transfer){
                  .e = e,
                  .first = first,
                  .out = out,
              });
}

lm_status lm_tensor_write(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                          const void *from) {
  return copy(p, t, n,
              (transfer){
                  .e = e,
                  .first = first,
                  .from = from,
              });
}

lm_status lm_tensor_get(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        float *out) {
  return copy(p, t, n,
              (transfer){
                  .e = e,
                  .first = first,
                  .converts = true,
                  .out = (char *)out,
              });
}

lm_status lm_tensor_set(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        const float *from) {
  return copy(p, t, n,
              (transfer){
                  .e = e,
                  .first = first,
                  .converts = true,
                  .from = (const char *)from,
              });
}
