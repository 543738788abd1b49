// emit.h - what the parts of the CUDA generator share while one kernel is written.
#ifndef LM_CODEGEN_CUDA_EMIT_H
#define LM_CODEGEN_CUDA_EMIT_H
#include "codegen/common/gen.h"
#include "codegen/cuda/cuda.h"

enum {
  CUDA_WARP = 32,
  CUDA_THREADS = 256, // of a block, unless a place needs more
  CUDA_THREADS_MOST = 1024,
  CUDA_SHARED_MOST =
      40 << 10, // bytes of rows and of sums in shared memory; what is larger lies elsewhere
  CUDA_LOCAL_MOST = 128, // elements of a row that a thread keeps to itself
};

typedef enum {
  CUDA_FLAT,
  CUDA_TEAM
} cuda_form;
typedef enum {
  CUDA_ROW_LOCAL,
  CUDA_ROW_SHARED,
  CUDA_ROW_SCRATCH
} cuda_row_kind;

// A root of the pass that is being written.
typedef struct cuda_root {
  const lm_value *v;
  bool copy, reduces;
  const char *acc; // of a reduction: the name of its scalar
} cuda_root;

// A stage is some of a pass's loops run as one; level k is the body of stage k - 1. Strided: over
// the threads of a team, or over the grid. Vector: unrolled, the elements of a vector.
typedef struct cuda_stage {
  bool strided, vector;
} cuda_stage;

typedef struct cuda_emit {
  lm_gen g;
  lm_op flat; // CUDA_FLAT: the kernel with all axes inside
  cuda_form form;
  int team, teams;           // threads that share a place; teams of a block
  int *width;                // by pass: elements of a vector, 1: none
  bool outer_merge[LM_RANK]; // outer axis i is one with the next
  // the pass being written
  cuda_root roots[64];
  int n_roots;
  cuda_stage stages[3];
  int n_stages;
  int stage_of[LM_GEN_ATOMS];
  uint16_t vector; // variable of the vector loop, 0: none
  // of the whole kernel
  int *sum_width; // by result: the order in which its sums lie in shared memory
  int64_t shared; // bytes
  int64_t scratch[LM_KERNEL_WORKSPACES];
  int n_scratch;
} cuda_emit;

// What kernels are for: lm_plan_target.user.
typedef struct cuda_target {
  const lm_module *m;
  bool groups; // warpgroups' products may be used, which sm_90a has
  bool tf32;
} cuda_target;

// ---- attend.c
bool cuda_attend_emit(const cuda_target *t, const lm_op *attend, lm_arena *arena,
                      lm_kernel_code *out);

// ---- shape.c: form, team, vectors
void cuda_shape_begin(cuda_emit *e, const lm_module *m, const lm_op *kernel,
                      lm_arena *arena);  // before the first attempt
void cuda_shape_choose(cuda_emit *e);    // from the accesses of the first attempts
void cuda_shape_merge(cuda_emit *e);     // from those of the attempt after that
int64_t cuda_places(const cuda_emit *e); // of the outer axes, at capacity

// ---- nest.c: one pass
void cuda_pass_emit(cuda_emit *e, int pass);
bool cuda_load(lm_gen *g, const char *base, lm_type t, const lm_ix *at,
               lm_gen_text *out); // for lm_gen_target
// Declares variables whose values together number the places up to the product of the extents; the
// last varies fastest.
typedef struct cuda_axis {
  uint16_t var;
  const char *extent;
} cuda_axis;
void cuda_decode(cuda_emit *e, const cuda_axis *axes, int n, const char *from, lm_buf *b);
void cuda_team_sync(const cuda_emit *e, lm_buf *b);

// ---- rows.c: rows that passes hold, and sums over places
lm_gen_text cuda_held(lm_gen *g, const lm_value *v, const lm_ix *ix); // for lm_gen_target
void cuda_row_put(cuda_emit *e, int level, const lm_value *v, const lm_ix *ix, const char *x);
void cuda_sum_add(cuda_emit *e, int level, uint32_t result, lm_type t, const lm_ix *ix,
                  const char *x);
bool cuda_holds_rows(const cuda_emit *e);
void cuda_rows_declare(cuda_emit *e, lm_buf *head, lm_buf *in_place);
void cuda_sums_begin(cuda_emit *e, lm_buf *b);
void cuda_sums_finish(cuda_emit *e, lm_buf *b);

// ---- scatter.c: a sum of rows into the places of a table that an index names
bool cuda_scatter_fits(const lm_module *m, const lm_op *kernel);
void cuda_scatter_emit(const lm_module *m, const lm_op *kernel, lm_arena *arena, lm_buf *text,
                       lm_kernel_code *out);

// ---- product.c
bool lm_cuda_epilogue_is_supported(const lm_plan_gemm *g); // for lm_plan_target

// ---- kernel.c
cuda_emit *cuda_emit_make(const lm_module *m, const lm_op *kernel,
                          lm_arena *arena); // with all passes written
const lm_gen_target *cuda_gen_target(const lm_module *m, const lm_op *kernel);
void cuda_params(lm_gen *e, bool (*may_alias)(void *user, uint32_t operand), void *user, lm_buf *b);
#endif
