// dtype.c - see dtype.h.
#include "contract/dtype.h"

const lm_dtype_info lm_dtype_table[LM_DTYPES] = {
#define DTYPE(ID, NAME, BITS, KIND, MEMORY, REGISTER, FILE, ...)                                   \
  {.name = NAME,                                                                                   \
   .bits = BITS,                                                                                   \
   .kind = LM_DTYPE_##KIND,                                                                        \
   .memory_type = #MEMORY,                                                                         \
   .register_type = #REGISTER,                                                                     \
   .stored = LM_ST_##FILE,                                                                         \
   .onednn = LM_ONEDNN_##ID,                                                                       \
   .cublaslt = LM_CUBLASLT_##ID},
#define ABSTRACT(ID, NAME, KIND)                                                                   \
  {.name = NAME, .kind = LM_DTYPE_##KIND, .onednn = LM_DTYPE_NO_CODE, .cublaslt = LM_DTYPE_NO_CODE},
#include "contract/dtypes.def"
};

const char *const lm_dtype_names[LM_DTYPES] = {
#define DTYPE(ID, NAME, ...) NAME,
#define ABSTRACT(ID, NAME, ...) NAME,
#include "contract/dtypes.def"
};

const lm_st_dtype_info lm_st_dtype_table[LM_ST_DTYPES] = {
#define DTYPE(ID, NAME, BITS, KIND, MEMORY, REGISTER, FILE, ...)                                   \
  {#FILE, BITS / 8, LM_DTYPE_##KIND == LM_DTYPE_FLOAT},
#define BYTES(...)
#define STORED(ID, BITS, IS_FLOAT) {#ID, BITS / 8, IS_FLOAT},
#include "contract/dtypes.def"
};

#define DTYPE(ID, NAME, BITS, KIND, MEMORY, ...)                                                   \
  _Static_assert(BITS % 8 == 0 && BITS == 8 * sizeof(MEMORY), "the size of " NAME " in memory");
#include "contract/dtypes.def"
