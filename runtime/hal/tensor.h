// tensor.h - the parameters of an executor's plan, their gradients and optimizer states, as dense
// row-major tensors in the host's memory, wherever their pieces are (plan.h).
#ifndef LM_HAL_TENSOR_H
#define LM_HAL_TENSOR_H
#include "runtime/hal/exec.h"

enum {
  LM_TENSOR_CHUNK = 1 << 22 // elements that callers transfer at a time, to bound their memory
};

// Copies n elements, the first at the row-major index `first`. Waits for previous runs, whose error
// is returned. Bits of f32 are kept; a bf16 parameter is rounded to nearest even. Elements that
// only other ranks have are left as they are.
lm_status lm_tensor_get(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        float *out);
lm_status lm_tensor_set(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        const float *from);
#endif
