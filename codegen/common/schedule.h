// schedule.h - the computation of a kernel's body at one point of its parallel axes, as a sequence
// of passes, each a loop nest over inner axes.
//
// A value is either evaluated at each use (its expression is pulled into the loop that needs it) or
// it is a root: computed once, in a pass over its own inner axes, and held for later passes. Roots
// are reductions, the kernel's results, and values that are expensive to recompute. Roots over
// equal inner axes share a pass unless one needs the other complete (after a reduction) or at other
// indices (through a slice, a view or a gather).
//
//   softmax over s:   pass over s: max          held in a scalar
//                     pass over s: exp, sum     exp held in a row
//                     pass over s: the result
#ifndef LM_CODEGEN_SCHEDULE_H
#define LM_CODEGEN_SCHEDULE_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_HELD_NOT,
  LM_HELD_SCALAR, // a variable
  LM_HELD_ROW,    // a local buffer over the value's inner axes
  LM_HELD_RESULT, // read back from the kernel's result
} lm_held;

// The node of operation number op->mark of the body.
typedef struct lm_node {
  const lm_op *op;
  bool root;
  lm_held held;
  int slot; // number of the row buffer or of the result
  int pass;
  double cost; // of computing one element from held values
  int phase;   // number of reductions between it and the operands
} lm_node;

// A value and the action of a pass on it: the pass computes it and stores it to its holder and to
// the results that it defines; or (`copy`) it copies a reduction that is held elsewhere to those
// results.
typedef struct lm_root {
  const lm_value *v;
  bool copy;
} lm_root;

typedef struct lm_sched_pass {
  lm_type space; // the loops: inner axes in order (dtype is unused)
  int depth;
  lm_root *roots;
  uint32_t n_roots, cap_roots;
} lm_sched_pass;

typedef struct lm_schedule {
  const lm_module *m;
  const lm_op *kernel;
  lm_arena *arena;
  lm_node *nodes;
  uint32_t n_nodes;
  lm_sched_pass *passes;
  uint32_t n_passes, cap_passes; // ordered by depth
  int n_rows;                    // number of row buffers
} lm_schedule;

// Numbers the operations of the body (op->mark). If `keep` is set, values that are expensive to
// recompute are held in rows.
lm_schedule *lm_schedule_make(const lm_module *m, const lm_op *kernel, bool keep, lm_arena *arena);

bool lm_op_is_reduction(const lm_op *op); // sum, max, scatter_add
// True if the operand and the result have the same memory, perhaps as views of it.
bool lm_kernel_fits(const lm_module *m, const lm_op *kernel, uint32_t operand, uint32_t result);
lm_type lm_kernel_inner(const lm_op *kernel, lm_type t); // t without its parallel axes
const lm_node *lm_schedule_node(const lm_schedule *s, const lm_value *v); // NULL for an operand
// True if the pass that computes r.v, or copies it, writes result i of the kernel.
bool lm_schedule_writes(const lm_schedule *s, lm_root r, uint32_t i);
bool lm_schedule_pass_writes(const lm_schedule *s, int pass, uint32_t i);
const lm_op *lm_kernel_yield(const lm_op *kernel);
bool lm_kernel_result_summed(const lm_op *kernel, uint32_t i);
#endif
