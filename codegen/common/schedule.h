// schedule.h - how a kernel's body is computed at one place of its outer axes: as a sequence of
// passes, each one nest of loops over inner axes.
//
// A value is either computed wherever it is used (its expression is pulled into the loop that needs
// it) or it is a root: computed once, in a pass over its own inner axes, and held for the passes
// after it. Roots are reductions, the kernel's results, and what is too dear to compute again.
// Roots over equal inner axes share a pass unless one needs the other whole (after a reduction) or
// elsewhere (through a slice, a view, a gather).
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

typedef struct lm_node { // of operation number op->mark of the body
  const lm_op *op;
  bool root;
  lm_held held;
  int slot; // number of the row buffer or of the result
  int pass;
  double cost; // of computing one element from what is held
  int phase;   // reductions that lie between it and the operands
} lm_node;

// What a pass does for a value: computes it for where it is held and for the results that it is;
// or, for a reduction that is held apart, copies it to those results.
typedef struct lm_root {
  const lm_value *v;
  bool copy;
} lm_root;

typedef struct lm_sched_pass {
  lm_type space; // loops: inner axes in order (dtype unused)
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
  uint32_t n_passes, cap_passes; // in order of depth
  int n_rows;                    // row buffers
} lm_schedule;

// Numbers the body's operations (op->mark). `keep`: what is dear to compute again is kept in rows.
lm_schedule *lm_schedule_make(const lm_module *m, const lm_op *kernel, bool keep, lm_arena *arena);

bool lm_op_is_reduction(const lm_op *op); // sum, max, scatter_add
bool lm_kernel_axis_is_parallel(const lm_op *kernel, lm_axis a);
lm_type lm_kernel_inner(const lm_op *kernel, lm_type t); // without outer axes
lm_type lm_kernel_space(const lm_op *kernel, lm_root r); // inner axes that it loops over
const lm_node *lm_schedule_node(const lm_schedule *s, const lm_value *v); // NULL for an operand
// Result i of the kernel is written by the pass that computes v, or copies it.
bool lm_schedule_writes(const lm_schedule *s, lm_root r, uint32_t i);
const lm_op *lm_kernel_yield(const lm_op *kernel);
bool lm_kernel_result_summed(const lm_op *kernel, uint32_t i);
#endif
