// tensor.h - the parameters of an executor's plan, their gradients and optimizer states, as dense
// row-major tensors in the host's memory, wherever their pieces are (plan.h).
#ifndef LM_HAL_TENSOR_H
#define LM_HAL_TENSOR_H
#include "runtime/hal/exec.h"

enum {
  LM_TENSOR_CHUNK = 1 << 22 // elements that callers transfer at a time, to bound their memory
};

// The elements of the largest such transfer of the plan's tensors.
int64_t lm_tensor_room(const lm_plan *p);

// Copies n elements, the first at the row-major index `first`, as f32. Waits for previous runs,
// whose error is returned. Bits of f32 are kept; a tensor of another type is converted, to the
// nearest number. Elements that only other ranks have are left as they are.
lm_status lm_tensor_get(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        float *out);
lm_status lm_tensor_set(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                        const float *from);
// The same in the tensor's own type (lm_plan_tensor_dtype).
lm_status lm_tensor_read(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                         void *out);
lm_status lm_tensor_write(lm_exec *e, const lm_plan *p, lm_plan_tensor t, int64_t first, int64_t n,
                          const void *from);
#endif
