// planner.h - from a module at stage kernel to a plan: layout of parameters, places of values,
// order of steps.
//
// Values are dense row-major unless they are views. A view costs nothing where its consumer takes
// strides (dot, loop, return, accum, append); kernels take dense operands. What is written once and
// then yielded, stacked, returned or accumulated is written straight to its final place; what can't
// be is copied.
//
// Kernels may be given a result at the address of an operand, but only where
// lm_plan_target.in_place allows it.
#ifndef LM_COMPILER_PLANNER_H
#define LM_COMPILER_PLANNER_H
#include "compiler/ir/ir.h"
#include "runtime/plan/plan.h"

enum {
  LM_KERNEL_WORKSPACES = 8
};
typedef struct lm_kernel_code {
  const char *name, *source; // equal text, equal name
  lm_plan_extent space;
  int64_t scratch[LM_KERNEL_WORKSPACES];
  int n_scratch; // bytes of each, at capacity
  lm_plan_launch launch;
} lm_kernel_code;

// How a target's code of products reads a weight: in panels of `lines` columns, in which `group`
// places of k lie together; n and k are multiples of these. lines 0: as it is. usual: such code is
// known to be worth the bytes of what it reads.
typedef struct lm_plan_panel {
  int lines, group, n, k;
  bool usual;
} lm_plan_panel;

// What the planner must know of a target. `kernel` generates a kernel's code (an attend's or
// attend_vjp's too) into `arena`; false after a diagnostic. `in_place`: result r may be written
// where operand o lies, since the kernel reads each element of o before it writes the same element
// of r and never reads it again; NULL stands for lm_plan_in_place.
typedef struct lm_plan_target {
  void *user;
  const char *prelude;
  bool (*kernel)(void *user, const lm_op *kernel, lm_arena *arena, lm_kernel_code *out);
  bool (*in_place)(void *user, const lm_op *kernel, uint32_t o, uint32_t r);
  // Whether a product is worth code for its tiles, as plan.h says, and that code, false if there
  // can be none; others are left to the target's library. Both NULL: every one is.
  bool (*product_is_worth)(const lm_plan_gemm *g);
  bool (*product)(const lm_plan_gemm *g, lm_arena *arena, lm_kernel_code *out);
  int places,
      chunks;     // of a kernel, to keep the machine busy; of a sum over places. 0: as fuse.h says
  int64_t launch; // bytes that take as long to move as a kernel to start; 0: no time at all
  int rows;       // at a time of a large product that is not kept whole; 0: as by_rows.h says
  // bytes that stay in the cores' caches from one step to the next, where products in bf16 wait for
  // memory; 0: they do not
  int64_t slab;
  bool (*attends)(
      const lm_module *m,
      const lm_op *op); // whether `kernel` knows this attend or attend_vjp; NULL: all of them
  // Whether the target's library computes this product with its residual, bias or gelu; NULL: it
  // does none.
  bool (*epilogue)(const lm_plan_gemm *g);
  lm_plan_panel panel[LM_DTYPES]; // by type of the operands
  int attend_tile; // side of the tiles of attention's map; 0: `kernel` knows no attention
} lm_plan_target;

// In the module's arena, as long as which it lives. NULL after diagnostics in the module's context.
lm_plan *lm_plan_build(lm_module *kernel_stage, const lm_plan_target *target);

// Every operation of the kernel is elementwise and operand o has the type of result r.
bool lm_plan_in_place(const lm_op *kernel, uint32_t o, uint32_t r);

// Blocks of LM_BLOCK elements that the module's parameters take: the size of the first axis of
// @update's arguments.
int64_t lm_plan_layout_blocks(const lm_module *m);

// The source lines of an operation, "llama.lm:10,12", or ""; what it is and those: "kernel exp+sum
// llama.lm:10,12".
const char *lm_plan_origin(lm_arena *a, const lm_module *m, const lm_op *op);
const char *lm_plan_label(lm_arena *a, const lm_module *m, const lm_op *op);

// Whether the dot can read its operands through the views they are made of (permute, rename, view,
// slice, at, down to a value that is dense) in GEMM calls. If not, the one that `out_operand` names
// is to be made dense by a kernel of its own, and the question asked again.
bool lm_plan_dot_strides_ok(const lm_module *m, const lm_op *dot, int *out_operand);

// The GEMM of a product whose operands are read through the views they are made of. False if one of
// them has to be copied first.
bool lm_plan_gemm_from_dot(const lm_module *m, const lm_op *dot, lm_plan_gemm *out);
// The one GEMM that a product with an epilogue is. False if it takes several, one of its operands
// has to be copied first, or its bias is not as long as the rows of the result.
bool lm_plan_gemm_from_epilogue(const lm_module *m, const lm_op *product, lm_plan_gemm *out);
#endif
