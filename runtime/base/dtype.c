// dtype.c - see dtype.h.
#include "runtime/base/dtype.h"

const char *const lm_dtype_names[LM_DTYPES] = {
    [LM_F32] = "f32", [LM_BF16] = "bf16", [LM_F64] = "f64", [LM_INT] = "int", [LM_BOOL] = "bool"};

int lm_dtype_bytes(lm_dtype t) {
  static const int bytes[LM_DTYPES] = {
      [LM_F32] = 4, [LM_BF16] = 2, [LM_F64] = 8, [LM_INT] = 4, [LM_BOOL] = 1};
  return bytes[t];
}
