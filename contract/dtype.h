// dtype.h - element types (dtypes.def).
#ifndef LM_CONTRACT_DTYPE_H
#define LM_CONTRACT_DTYPE_H
#include <stdbool.h>
#include <stdint.h>

typedef enum {
  LM_DTYPE_FLOAT,
  LM_DTYPE_INTEGER,
  LM_DTYPE_BOOLEAN,
  LM_DTYPE_CODE
} lm_dtype_kind;

typedef enum {
#define DTYPE(ID, ...) LM_##ID,
#define ABSTRACT(ID, ...) LM_##ID,
#include "contract/dtypes.def"
  LM_DTYPES
} lm_dtype;

// Types of the tensors in safetensors files: LM_ST_F32 and so on.
typedef enum {
#define DTYPE(ID, NAME, BITS, KIND, MEMORY, REGISTER, FILE, ...) LM_ST_##FILE,
#define BYTES(...)
#define STORED(ID, ...) LM_ST_##ID,
#include "contract/dtypes.def"
  LM_ST_DTYPES
} lm_st_dtype;

// lm_c_F32 and so on: an element in memory.
#define DTYPE(ID, NAME, BITS, KIND, MEMORY, ...) typedef MEMORY lm_c_##ID;
#include "contract/dtypes.def"

// The libraries' numbers of a type; -1: the library does not compute with it.
enum {
  LM_DTYPE_NO_CODE = -1,
#define NO_CODE LM_DTYPE_NO_CODE
#define DTYPE(ID, NAME, BITS, KIND, MEMORY, REGISTER, FILE, ONEDNN, CUBLASLT)                      \
  LM_ONEDNN_##ID = ONEDNN, LM_CUBLASLT_##ID = CUBLASLT,
#include "contract/dtypes.def"
#undef NO_CODE
};
typedef struct lm_dtype_info {
  const char *name; // "bf16"
  int bits;         // of an element in memory
  lm_dtype_kind kind;
  const char *memory_type, *register_type; // in C
  lm_st_dtype stored;
  int onednn, cublaslt; // LM_ONEDNN_…, LM_CUBLASLT_…
} lm_dtype_info;
extern const lm_dtype_info lm_dtype_table[LM_DTYPES];
extern const char *const lm_dtype_names[LM_DTYPES];

static inline const char *lm_dtype_name(lm_dtype t) {
  return lm_dtype_names[t];
}
static inline bool lm_dtype_is_float(lm_dtype t) {
  return lm_dtype_table[t].kind == LM_DTYPE_FLOAT;
}
static inline bool lm_dtype_is_code(lm_dtype t) {
  return lm_dtype_table[t].kind == LM_DTYPE_CODE;
}
// True of f16 and bf16, whose elements are f32 in registers.
static inline bool lm_dtype_is_half(lm_dtype t) {
  return lm_dtype_is_float(t) && lm_dtype_table[t].bits == 16;
}
static inline int lm_dtype_bytes(lm_dtype t) {
  return lm_dtype_table[t].bits / 8;
}

typedef struct lm_st_dtype_info {
  const char *name; // "BF16"
  int bytes;
  bool is_float;
} lm_st_dtype_info;
extern const lm_st_dtype_info lm_st_dtype_table[LM_ST_DTYPES];
#endif
