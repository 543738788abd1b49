// emit.h - what the parts of the C generator share while one kernel is written.
#ifndef LM_CODEGEN_CPU_EMIT_H
#define LM_CODEGEN_CPU_EMIT_H
#include "codegen/common/index.h"
#include "codegen/common/schedule.h"
#include "codegen/cpu/cpu.h"

enum { CPU_LEVELS = 28, CPU_ATOMS = 24, CPU_CUTS = 8 };

// A loop of a pass: part of an inner axis, which an index along the axis holds times `stride`.
typedef struct cpu_atom {
  lm_axis axis;
  const char *name;
  int64_t size, stride;
  int dyn;
  int64_t cut[CPU_CUTS]; int n_cuts;   // ascending: where the loop is cut into several
  bool merge;                          // into the next loop
  uint16_t var;
} cpu_atom;
typedef struct cpu_domain { cpu_atom atom[CPU_ATOMS]; int n; } cpu_domain;

// A maximal run of outer axes that memory and indices see as one: first..last.
typedef struct cpu_group { int first, last; int64_t size; int dyn; } cpu_group;

typedef struct cpu_text { const char *text; int level; } cpu_text;      // an expression without side effects
// An expression already written. It holds while the loops of `scope` and those around them stand as they are: what it reads
// may depend on their ranges even if its text does not name their variables.
typedef struct cpu_memo { const lm_value *v; lm_ix ix[LM_RANK]; cpu_text text; int scope; struct cpu_memo *next; } cpu_memo;
// A printed index. `operand`: of an element of that operand, else -1; `same`: the element that the loops stand at.
typedef struct cpu_access { lm_ix ix; int pass; bool memory, same; int operand; } cpu_access;

typedef enum { CPU_ASK_NOTHING, CPU_ASK_SPLIT, CPU_ASK_CUT } cpu_ask_kind;

// A root of the pass that is being written.
typedef struct cpu_root {
  const lm_value *v;
  bool copy;
  int level;                           // reductions: loops outside of it are kept axes, its scalar lives there
  bool memory;                         // reductions: accumulates in memory, since kept loops lie inside reduced ones
  const char *acc;                     // name of the scalar
} cpu_root;

typedef struct cpu_emit {
  const lm_module *m;
  const lm_op *kernel;
  lm_arena *arena;                     // of this kernel alone
  lm_schedule *s;
  lm_vars vars;
  uint16_t outer[LM_RANK];             // variable of each outer axis
  cpu_group groups[LM_RANK]; int n_groups;
  int n_lane_groups;                   // the last so many groups are innermost loops
  int64_t block;                       // elements of the first lane group a place; 0: all of it
  cpu_domain *domains;                 // by pass
  // the pass being written
  int pass;
  cpu_root roots[64]; int n_roots;
  int n_levels;                        // loops of the pass, lanes included
  int open;                            // loops open now
  bool ordered;                        // the innermost loop may not run in vectors
  bool wide;                           // the innermost loop is a long sum: blocks of it are added in double
  struct { lm_buf before, loops, after; } level[CPU_LEVELS + 1];
  // of the whole kernel
  cpu_memo *memo;
  bool *done;                          // by pass
  int n_temps;
  cpu_access *accesses; uint32_t n_accesses, cap_accesses;
  struct { cpu_ask_kind kind; int pass, atom; int64_t at; } ask;   // the first wish for another shape of loops
  uint32_t extents;                    // run-time extents that are used, as bits
  lm_buf body;                         // of a place
  int64_t scratch[LM_KERNEL_SCRATCH]; int n_scratch;
} cpu_emit;

// ---- pull.c: expressions
cpu_text cpu_pull(cpu_emit *e, const lm_value *v, const lm_ix *ix);      // ix: along each axis of v
void cpu_statement(cpu_emit *e, int level, const char *fmt, ...) LM_PRINTF(3, 4);
const char *cpu_index(cpu_emit *e, const lm_ix *ix, bool memory);       // printed and recorded
// Offset of an element of a row buffer, of a result or of a chunk's sum, as C.
const char *cpu_row_offset(cpu_emit *e, const lm_value *v, const lm_ix *ix);
const char *cpu_dense_offset(cpu_emit *e, lm_type t, const lm_ix *ix, lm_type along);
uint16_t cpu_temp_index(cpu_emit *e, const char *text, int level, int64_t size, int dyn);
const char *cpu_temp_name(cpu_emit *e, const char *prefix);

// ---- ops.c: operations as C
const char *cpu_op_text(cpu_emit *e, const lm_op *op, const char *const *in);
const char *cpu_const_text(lm_arena *a, lm_dtype t, double v);
const char *cpu_load_text(lm_arena *a, lm_dtype t, const char *place);   // from memory to a register
const char *cpu_store_text(lm_arena *a, lm_dtype t, const char *value);
const char *cpu_register_type(lm_dtype t);
const char *cpu_memory_type(lm_dtype t);
const char *cpu_held_type(lm_dtype t);                                  // of row buffers: no rounding between passes

// ---- nest.c: loops
void cpu_pass_emit(cpu_emit *e, int pass);
void cpu_domain_init(const cpu_emit *e, const lm_sched_pass *p, cpu_domain *out);
lm_ix cpu_axis_index(const cpu_emit *e, lm_axis a);                     // where the open loops stand along it
const char *cpu_extent(cpu_emit *e, int64_t size, int dyn, int64_t times);
int64_t cpu_lanes(const cpu_emit *e);                                   // elements of lanes a place, 1 if there are none
bool cpu_held_in_row(const cpu_emit *e, const lm_node *n);
int64_t cpu_row_elements(const cpu_emit *e, const lm_node *n);
uint16_t cpu_group_var(const cpu_emit *e, int group);

// ---- shape.c: what becomes one loop, and which loops are innermost
void cpu_groups_reset(cpu_emit *e);                                     // every outer axis by itself
void cpu_shape_choose(cpu_emit *e);                                     // from the accesses of a first attempt
bool cpu_ask_apply(cpu_emit *e);                                        // false: the loops have the shape they need

// ---- kernel.c
cpu_emit *cpu_emit_make(const lm_module *m, const lm_op *kernel, lm_arena *arena);   // with all passes written
#endif
