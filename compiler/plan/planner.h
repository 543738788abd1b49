// planner.h - lowers a module at stage kernel to a plan: the layout of parameters, the locations of
// values, the order of steps.
//
// Values are dense and row-major unless they are views. A view costs nothing if its consumer
// supports strides (dot, loop, return, accum, append); kernels require dense operands. A value that
// is written once and then yielded, stacked, returned or accumulated is written to its final
// location directly if that is safe, else copied.
//
// A kernel result may share the address of an operand only if lm_plan_target.in_place allows it.
#ifndef LM_COMPILER_PLANNER_H
#define LM_COMPILER_PLANNER_H
#include "compiler/ir/ir.h"
#include "runtime/plan/plan.h"

enum {
  LM_KERNEL_WORKSPACES = 8
};
typedef struct lm_kernel_code {
  const char *name, *source; // equal sources have equal names
  lm_plan_extent space;
  int64_t scratch[LM_KERNEL_WORKSPACES]; // bytes of each workspace, at capacity
  int n_scratch;
  lm_plan_launch launch;
} lm_kernel_code;

// The packed layout in which a target's GEMM kernel reads a weight: panels of `lines` columns, in
// which `group` elements along k are adjacent; N and K must be multiples of n and k. lines 0: not
// packed. usual: such kernels are known to be profitable despite the extra memory.
typedef struct lm_plan_panel {
  int lines, group, n, k;
  bool usual;
} lm_plan_panel;

// The planner's view of a target. `kernel` generates the code of a kernel, attend or attend_vjp in
// `arena`; false after a diagnostic. `in_place`: result r may have the address of operand o,
// because the kernel reads each element of o before it writes the same element of r and never reads
// it afterwards; NULL: lm_plan_in_place decides.
typedef struct lm_plan_target {
  void *user;
  const char *prelude;
  bool (*kernel)(void *user, const lm_op *kernel, lm_arena *arena, lm_kernel_code *out);
  bool (*in_place)(void *user, const lm_op *kernel, uint32_t o, uint32_t r);
  // product_is_worth: a generated kernel is profitable for the GEMM (see plan.h). product:
  // generates it; false if unsupported. Other GEMMs use the target's library. Both are NULL if all
  // do.
  bool (*product_is_worth)(const lm_plan_gemm *g);
  bool (*product)(const lm_plan_gemm *g, lm_arena *arena, lm_kernel_code *out);
  int places;     // points of a kernel that occupy the machine; 0: the default of fuse.h
  int chunks;     // chunks of a column sum; 0: the default of fuse.h
  int64_t launch; // cost of a kernel launch, in bytes moved; 0: free
  int rows;       // rows per tile of a large GEMM (pass tile_vocab); 0: the default of row_tiling.h
  // Bytes that stay in the cores' caches between steps, if memory bandwidth limits bf16 GEMMs; else
  // 0.
  int64_t slab;
  // `kernel` supports this attend or attend_vjp; NULL: it supports all.
  bool (*attends)(const lm_module *m, const lm_op *op);
  // The target's library supports this GEMM with its residual, bias or gelu; NULL: none.
  bool (*epilogue)(const lm_plan_gemm *g);
  lm_plan_panel panel[LM_DTYPES]; // by dtype of the operands
  int attend_tile; // side of the tiles of attention's map; 0: attention is unsupported
} lm_plan_target;

// Builds the plan in the module's arena. NULL after diagnostics in the module's context.
lm_plan *lm_plan_build(lm_module *kernel_stage, const lm_plan_target *target);

// Every operation of the kernel is elementwise and operand o has the type of result r.
bool lm_plan_in_place(const lm_op *kernel, uint32_t o, uint32_t r);

// The number of blocks of LM_BLOCK elements of the module's parameters: the first axis of the
// arguments of @update.
int64_t lm_plan_layout_blocks(const lm_module *m);

// lm_plan_origin: the source lines of an operation, such as "llama.lm:10,12", or "". lm_plan_label:
// its name and lines, such as "kernel exp+sum llama.lm:10,12".
const char *lm_plan_origin(lm_arena *a, const lm_module *m, const lm_op *op);
const char *lm_plan_label(lm_arena *a, const lm_module *m, const lm_op *op);

// The dot can read its operands in GEMM calls through the views that define them (permute, rename,
// view, slice, at, down to a dense value). If not, the caller makes the operand `out_operand` dense
// in a kernel and calls again.
bool lm_plan_dot_strides_ok(const lm_module *m, const lm_op *dot, int *out_operand);

// Describes a dot whose operands are read through views. False if an operand must be copied first.
bool lm_plan_gemm_from_dot(const lm_module *m, const lm_op *dot, lm_plan_gemm *out);
// Describes a dot with an epilogue. False if it takes several GEMM calls, an operand must be copied
// first, or the bias has another length than the rows of the result.
bool lm_plan_gemm_from_epilogue(const lm_module *m, const lm_op *product, lm_plan_gemm *out);
#endif
