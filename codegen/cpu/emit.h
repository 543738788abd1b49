// emit.h - state of the C generator for one kernel.
#ifndef LM_CODEGEN_CPU_EMIT_H
#define LM_CODEGEN_CPU_EMIT_H
#include "codegen/common/gen.h"
#include "codegen/cpu/cpu.h"
#include "codegen/cpu/strip.h"

// A maximal run first..last of parallel axes that all indices treat as one axis.
typedef struct cpu_group {
  int first, last;
  int64_t size;
  int dyn;
} cpu_group;

// A root of the pass that is being written.
typedef struct cpu_root {
  const lm_value *v;
  bool copy;
  // Reductions only: the loops up to this level are over kept axes; the scalar is declared there.
  int level;
  // Reductions only: accumulates in memory, because kept loops are inside reduced loops.
  bool memory;
  const char *acc; // name of the scalar
} cpu_root;

typedef struct cpu_emit {
  lm_gen g;
  // A scan, or NULL. `g.kernel` is then one position of it.
  const lm_op *scan;
  cpu_group groups[LM_RANK];
  int n_groups;
  // This many of the last groups are innermost loops.
  int n_lane_groups;
  // Elements of the first lane group in a point; 0: all of it.
  int64_t block;
  // the pass that is being written
  cpu_root *roots;
  int n_roots;
  int n_levels; // loops of the pass, including lanes
  bool ordered; // the innermost loop must not be vectorised
  // bf16 results of the innermost loop that are stored by strips
  cpu_strip_store *stores;
  uint32_t n_stores, cap_stores;
  bool long_sum; // the innermost loop is a long sum: its blocks are added in double
  // state of the whole kernel
  int64_t workspace[LM_KERNEL_WORKSPACES];
  int n_workspaces;
  int64_t stack_bytes; // of arrays on the stack
  int64_t part_bytes;  // of the arrays of a point in the workspace
} cpu_emit;

// ---- nest.c: loops
void cpu_pass_emit(cpu_emit *e, int pass);

// ---- row.c: values that are held outside of the results
lm_gen_text cpu_held(lm_gen *g, const lm_value *v, const lm_ix *ix); // for lm_gen_target
bool cpu_held_in_row(const cpu_emit *e, const lm_node *n);
int64_t cpu_row_elements(const cpu_emit *e, const lm_node *n);
// True if the row accumulates a sum of f32 that is long enough to be added in double.
bool cpu_row_is_wide(const cpu_emit *e, const lm_node *n);
uint16_t cpu_group_var(const cpu_emit *e, int group);
// The index of an element in the row of v, as text.
const char *cpu_row_offset(cpu_emit *e, const lm_value *v, const lm_ix *ix);

// ---- shape.c: merging of loops, choice of the innermost loops
void cpu_groups_reset(cpu_emit *e); // makes every parallel axis a group
void cpu_shape_choose(cpu_emit *e); // uses the accesses of a first attempt
#endif
