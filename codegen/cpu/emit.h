// emit.h - what the parts of the C generator share while one kernel is written.
#ifndef LM_CODEGEN_CPU_EMIT_H
#define LM_CODEGEN_CPU_EMIT_H
#include "codegen/common/gen.h"
#include "codegen/cpu/cpu.h"

// A maximal run of outer axes that memory and indices see as one: first..last.
typedef struct cpu_group {
  int first, last;
  int64_t size;
  int dyn;
} cpu_group;

// A root of the pass that is being written.
typedef struct cpu_root {
  const lm_value *v;
  bool copy;
  int level;       // reductions: loops outside of it are kept axes, its scalar lives there
  bool memory;     // reductions: accumulates in memory, since kept loops lie inside reduced ones
  const char *acc; // name of the scalar
} cpu_root;

typedef struct cpu_emit {
  lm_gen g;
  cpu_group groups[LM_RANK];
  int n_groups;
  int n_lane_groups; // the last so many groups are innermost loops
  int64_t block;     // elements of the first lane group a place; 0: all of it
  // the pass being written
  cpu_root *roots;
  int n_roots;
  int n_levels; // loops of the pass, lanes included
  bool ordered; // the innermost loop may not run in vectors
  bool wide;    // the innermost loop is a long sum: blocks of it are added in double
  // of the whole kernel
  int64_t scratch[LM_KERNEL_WORKSPACES];
  int n_scratch;
} cpu_emit;

// ---- nest.c: loops
void cpu_pass_emit(cpu_emit *e, int pass);
lm_gen_text cpu_held(lm_gen *g, const lm_value *v, const lm_ix *ix); // for lm_gen_target
int64_t cpu_lanes(const cpu_emit *e); // elements of lanes a place, 1 if there are none
bool cpu_held_in_row(const cpu_emit *e, const lm_node *n);
int64_t cpu_row_elements(const cpu_emit *e, const lm_node *n);
uint16_t cpu_group_var(const cpu_emit *e, int group);

// ---- shape.c: what becomes one loop, and which loops are innermost
void cpu_groups_reset(cpu_emit *e); // every outer axis by itself
void cpu_shape_choose(cpu_emit *e); // from the accesses of a first attempt

// ---- kernel.c
cpu_emit *cpu_emit_make(const lm_module *m, const lm_op *kernel,
                        lm_arena *arena); // with all passes written
#endif
