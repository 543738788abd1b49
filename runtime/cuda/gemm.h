// gemm.h - matrix products of a plan on a GPU, by cuBLASLt.
//
// The library lays matrices out by columns; a product in other strides is its transpose, or takes
// transposed operands. Batch axes: the longest is the library's, the others are loops; sum axes are
// calls that add, in f32 memory of their own if the result is of bf16. What no layout of the
// library expresses a kernel of our own computes. Which algorithm computes a product is settled
// when it is first met, by the library's heuristic for its shape, strides and alignment alone,
// within LM_CUDA_WORKSPACE.
//
// A residual is the library's C, the result its D; biases and gelu are its epilogues. If it has no
// algorithm for a product with one, at these sizes and addresses, it computes the product without,
// which a kernel of our own then goes over.
#ifndef LM_CUDA_GEMM_H
#define LM_CUDA_GEMM_H
#include "runtime/cuda/builtin.h"

// Bytes: of the library's workspace, which NVIDIA recommends for Hopper; of sums that are rounded
// when they are complete. They lie one behind the other.
enum {
  LM_CUDA_WORKSPACE = 32 << 20,
  LM_CUDA_SUMS = 8 << 20
};

// Numbers of NVIDIA's headers; tests/cuda/headers_test.c compares them where the toolkit is
// installed.
enum {
  LM_LT_R_32F = 0,
  LM_LT_R_64F = 1,
  LM_LT_R_16BF = 14, // cudaDataType
  LM_LT_COMPUTE_32F = 68,
  LM_LT_COMPUTE_64F = 70,
  LM_LT_COMPUTE_TF32 = 77,
  LM_LT_OP_T = 1,
  LM_LT_REDUCTION_COMPUTE_TYPE = 2,
  LM_LT_NOT_SUPPORTED = 15, // a status
  LM_LT_ANSWERS = 8,        // of the heuristic, when they are compared
  LM_LT_DESC_TRANSA = 3,
  LM_LT_DESC_TRANSB = 4,
  LM_LT_DESC_EPILOGUE = 7,
  LM_LT_DESC_BIAS = 8,
  LM_LT_DESC_AUX = 11,
  LM_LT_DESC_AUX_LD = 12,
  LM_LT_EPILOGUE_NONE = 1,
  LM_LT_EPILOGUE_BIAS = 4,
  LM_LT_EPILOGUE_GELU = 32,
  LM_LT_EPILOGUE_AUX = 128, // to be combined
  LM_LT_LAYOUT_BATCH_COUNT = 5,
  LM_LT_LAYOUT_BATCH_STRIDE = 6,
  LM_LT_PREF_WORKSPACE = 1,
  LM_LT_PREF_REDUCTION = 3,
  LM_LT_PREF_ALIGN_A = 5,
  LM_LT_PREF_ALIGN_B = 6,
  LM_LT_PREF_ALIGN_C = 7,
  LM_LT_PREF_ALIGN_D = 8,
};
typedef struct lm_lt_algo {
  uint64_t data[8];
} lm_lt_algo;
typedef struct lm_lt_heuristic {
  lm_lt_algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} lm_lt_heuristic;

typedef struct lm_cublaslt {
  void *library;
  union {
    struct {
#define SYM(result, name, parameters) result(*name) parameters;
#include "runtime/cuda/cublaslt_syms.def"
#undef SYM
    };
    void *functions[1];
  };
} lm_cublaslt;

// Which algorithm computes a product, among those that the library's heuristic names: kept, so that
// nothing is measured twice and bits stay. An algorithm means something to one version of the
// library alone.
typedef struct lm_cuda_choice {
  uint64_t product; // hash of all that it depends on
  lm_lt_algo algo;
  uint64_t workspace;
  double gain; // time of the heuristic's first by this one's; 0: not measured
} lm_cuda_choice;
typedef struct lm_cuda_choices {
  lm_arena *arena;
  const char *device;
  uint64_t version; // whose they are; NULL: there are none yet
  lm_cuda_choice *v;
  uint32_t n, cap;
  bool locked;   // they hold: of another device or version they are LM_USER, and none is added
  double budget; // seconds for measuring those that are missing
  int measured;  // of them
} lm_cuda_choices;

typedef struct lm_cuda_gemms lm_cuda_gemms;
// The builtins and the choices, NULL for the heuristic's, must outlive it; its context is current.
// tf32: as lm_exec_options.
lm_status lm_cuda_gemms_create(const lm_cuda_builtins *b, const lm_cuda_device *device, bool tf32,
                               lm_cuda_choices *choices, lm_cuda_gemms **out);
void lm_cuda_gemms_destroy(lm_cuda_gemms *g);
// Between the two, products are not computed but measured, on operands that are zeros: nothing else
// is in memory yet.
lm_status lm_cuda_gemms_measure(lm_cuda_gemms *g, bool on);
// Enqueues a step's product on the builtins' stream; at: where its buffers are.
lm_status lm_cuda_gemm(lm_cuda_gemms *g, const lm_plan_step *s, const int64_t *var,
                       const lm_cuda_address *at, lm_cuda_address workspace);
#endif
