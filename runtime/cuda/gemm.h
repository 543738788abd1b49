// gemm.h - the GEMMs of a plan on a GPU, by cuBLASLt.
//
// The library's matrices are column-major, so a GEMM is expressed by transposing operands or the
// entire GEMM. The longest batch axis becomes the library's batch, the others are loops of calls.
// Summed batch axes are calls that accumulate, in a separate f32 buffer if the result is bf16. A
// GEMM whose strides no layout of the library expresses, or for which it has no algorithm, is
// computed by a builtin kernel, a loop; a warning names each large one. The
// algorithm is chosen when a GEMM is first run, by the library's heuristic, for its shape, strides
// and alignment alone, within LM_CUDA_WORKSPACE.
//
// Codes (e4m3, e5m2) are multiplied by the library alone, with the scales of each operand that the
// descriptor points to, one or those of blocks; its rules are those of lm_codegen.scales.
//
// A residual is passed as the library's C, with the result as its D; bias and gelu are epilogues of
// the library. If it has no algorithm with the epilogue for these sizes and addresses, the GEMM is
// computed without it and a builtin kernel applies the epilogue afterwards.
#ifndef LM_CUDA_GEMM_H
#define LM_CUDA_GEMM_H
#include "runtime/cuda/builtin.h"
#include "runtime/hal/exec.h"

// Bytes of the library's workspace (as NVIDIA recommends for Hopper), and of the f32 buffer for
// sums that are rounded when they are complete. They are adjacent.
enum {
  LM_CUDA_WORKSPACE = 32 << 20,
  LM_CUDA_SUMS = 8 << 20
};

// Constants of NVIDIA's headers; tests/cuda/headers_test.c compares them with the headers if the
// toolkit is installed.
enum {
  LM_LT_COMPUTE_32F = 68,
  LM_LT_COMPUTE_64F = 70,
  LM_LT_COMPUTE_TF32 = 77,
  LM_LT_OP_T = 1,
  LM_LT_REDUCTION_COMPUTE_TYPE = 2,
  LM_LT_NOT_SUPPORTED = 15, // a status
  LM_LT_CANDIDATES = 8,     // our own: how many algorithms are measured
  LM_LT_DESC_TRANSA = 3,
  LM_LT_DESC_TRANSB = 4,
  LM_LT_DESC_EPILOGUE = 7,
  LM_LT_DESC_BIAS = 8,
  LM_LT_DESC_AUX = 11,
  LM_LT_DESC_AUX_LD = 12,
  LM_LT_DESC_SCALE_A = 17,
  LM_LT_DESC_SCALE_B = 18,
  LM_LT_DESC_FAST_ACCUM = 25, // int8_t
  LM_LT_DESC_SCALE_MODE_A = 31,
  LM_LT_DESC_SCALE_MODE_B = 32,
  LM_LT_EPILOGUE_NONE = 1,
  LM_LT_EPILOGUE_BIAS = 4,
  LM_LT_EPILOGUE_GELU = 32,
  LM_LT_EPILOGUE_AUX = 128, // a flag
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

// The algorithm of a GEMM, among those that the library's heuristic proposes. Choices are stored so
// that nothing is measured twice and a resumed run computes the same bits. An algorithm is
// meaningful for one version of the library only.
typedef struct lm_cuda_choice {
  uint64_t gemm; // hash of everything that the choice depends on
  lm_lt_algo algo;
  uint64_t workspace;
  double gain; // time of the heuristic's first algorithm / time of this one; 0: not measured
} lm_cuda_choice;
typedef struct lm_cuda_choices {
  lm_arena *arena;
  const char *device;
  uint64_t version; // of the library; `device` NULL: there are no choices yet
  lm_cuda_choice *v;
  uint32_t n, cap;
  bool pinned;   // read-only: LM_USER if they are for another device or version
  double budget; // seconds for measuring missing choices
  int measured;  // number of choices that were measured
} lm_cuda_choices;

typedef struct lm_cuda_gemms lm_cuda_gemms;
// The builtins, the device and the choices (tuning, optional) must outlive the result. The CUDA
// context must be current.
lm_status lm_cuda_gemms_create(const lm_cuda_builtins *b, const lm_cuda_device *device,
                               const lm_exec_options *o, lm_cuda_gemms **out);
void lm_cuda_gemms_destroy(lm_cuda_gemms *g);
// Between a call with `on` and one without, lm_cuda_gemm measures algorithms and computes nothing.
// Operands must be zeros.
lm_status lm_cuda_gemms_measure(lm_cuda_gemms *g, bool on);
// Enqueues a GEMM step on the builtins' stream. overwrites: one that accumulates takes C as zeros.
// at: addresses of the step's buffers.
lm_status lm_cuda_gemm(lm_cuda_gemms *g, const lm_plan_step *s, bool overwrites, const int64_t *var,
                       const lm_cuda_address *at, lm_cuda_address workspace);
#endif
