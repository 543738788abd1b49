// fuse.h - what the parts of the pass `fuse` share: one node for each operation of a function.
#ifndef LM_FUSE_H
#define LM_FUSE_H
#include "compiler/ir/ir.h"
#include "compiler/passes/pass.h"

enum {
  LM_FUSE_MIN_POINTS = 32,    // places that keep a machine busy, where its target says no other
  LM_FUSE_LAUNCH = 4096,      // elements that take as long as starting a kernel
  LM_FUSE_MAX_SERIAL = 16384, // elements that one place can sum up
  LM_FUSE_ROW = 64,           // elements that make a loop worth running
  LM_FUSE_MAX_CHUNKED_SUMS = 65536, // results of a sum that is done in chunks
  LM_FUSE_CHUNKS = 64,              // of a sum over places, likewise
  LM_FUSE_OPS = 48,                 // operations of a kernel that are not recomputed anyway
};

typedef enum {
  LM_FUSE_UNFUSED, // stays outside of kernels
  LM_FUSE_REMAT,   // computed again in every kernel that uses it; views
  LM_FUSE_FUSED,   // computed once, in the kernel of its group
} lm_fuse_kind;

typedef struct lm_fuse_edge {
  uint32_t from;
  lm_type touched;
} lm_fuse_edge; // touched: axes along which it reads elsewhere

typedef struct lm_fuse_node {
  lm_op *op;
  lm_fuse_kind kind;
  double flops, bytes; // FREE: of recomputing all of it from what is in memory
  uint32_t group;      // OWN: node that stands for the group; itself at first
  uint32_t next;       // next node of the group, 0 at the end
  uint32_t visit;      // of the last search that came by
  lm_type allowed;     // OWN: axes that may be outer; of a group: for all its nodes
  lm_axis chunk;       // a sum over places: the axis of its chunks
  uint32_t n_group;    // of a group: nodes
  double work;         // elements of its loops; of a group: of all its nodes
  double widest;
  lm_axis
      innermost; // elements of its largest operand or result, the last axis of that; of a group too
  bool needed;   // outside of its kernel
  bool placed;
  lm_fuse_edge *deps;
  uint32_t n_deps, cap_deps; // operations of the same region that it waits for
} lm_fuse_node;

typedef struct lm_fuse_machine {
  int places, chunks;
} lm_fuse_machine;
lm_fuse_machine lm_fuse_machine_of(const lm_pass_env *env);

typedef struct lm_fuse {
  lm_module *m;
  lm_func *f;
  lm_fuse_machine machine;
  lm_arena *arena;
  lm_fuse_node *nodes;
  uint32_t n; // by op->mark, from 1
  uint32_t visits;
} lm_fuse;

// fuse_node.c: nodes, what is recomputed, dependences
void lm_fuse_nodes_make(lm_fuse *s);
void lm_fuse_walk(lm_region *r, void (*fn)(lm_op *op, void *user),
                  void *user); // operations of r and of the loops in it
lm_fuse_node *lm_fuse_node_of(const lm_fuse *s, const lm_value *v); // NULL for arguments
bool lm_fuse_is_column_sum(const lm_fuse_node *n);
bool lm_fuse_is_view(const lm_op *op);
bool lm_fuse_stays(const lm_op *op); // outside of kernels
typedef void lm_fuse_leaf(void *user, lm_value *v, lm_type touched);
// Visits what the kernel of an operation reads: through what is recomputed, down to values in
// memory.
void lm_fuse_leaves(const lm_fuse *s, const lm_op *op, lm_fuse_leaf *fn, void *user);

// fuse_group.c: which operations share a kernel, and what of it is needed outside
void lm_fuse_group(lm_fuse *s);
void lm_fuse_needs(lm_fuse *s);
lm_type lm_fuse_parallel_axes(const lm_fuse *s,
                              uint32_t group); // outer axes of its kernel, in order
#endif
