// fuse.h - the data structures of pass `fuse`: one node per operation of a function.
#ifndef LM_FUSE_H
#define LM_FUSE_H
#include "compiler/ir/ir.h"
#include "compiler/passes/pass.h"

enum {
  LM_FUSE_MIN_POINTS = 32,          // points that occupy a machine; default of the target's
  LM_FUSE_LAUNCH = 4096,            // cost of a kernel launch, in elements
  LM_FUSE_MAX_SERIAL = 16384,       // maximum elements that one point sums
  LM_FUSE_ROW = 64,                 // minimum elements of a profitable inner loop
  LM_FUSE_MAX_CHUNKED_SUMS = 65536, // maximum results of a chunked column sum
  LM_FUSE_CHUNKS = 64,              // chunks of a column sum; default of the target's
  LM_FUSE_OPS = 48,                 // maximum operations of a kernel, recomputed ones excluded
};

typedef enum {
  LM_FUSE_UNFUSED, // stays outside of kernels
  LM_FUSE_REMAT,   // recomputed in every kernel that uses it; views
  LM_FUSE_FUSED,   // computed once, in the kernel of its group
} lm_fuse_kind;

typedef struct lm_fuse_edge {
  uint32_t from;
  lm_type touched; // axes along which the user reads other points than its own
} lm_fuse_edge;

typedef struct lm_fuse_node {
  lm_op *op;
  lm_fuse_kind kind;
  double flops, bytes; // REMAT: cost of recomputing all of it from values in memory
  uint32_t group;      // FUSED: representative of the group; initially the node itself
  uint32_t next;       // next node of the group, 0 at the end
  uint32_t visit;      // number of the last search that visited the node
  lm_type allowed;     // FUSED: axes that may be parallel; representative: for the whole group
  lm_axis chunk;       // column sum: the axis of its chunks; else 0
  uint32_t n_group;    // representative: number of nodes
  double work;         // elements of its loops; representative: of the whole group
  double widest; // elements of its largest operand or result; representative: of the whole group
  lm_axis
      innermost;  // last axis of the largest operand or result; representative: of the whole group
  bool needed;    // used outside of its kernel
  bool in_result; // lm_fuse_again: a result of the function depends on it
  bool placed;
  lm_fuse_edge *deps; // operations of the same region that it depends on
  uint32_t n_deps, cap_deps;
} lm_fuse_node;

// The target's choice, or the default; t may be NULL.
static inline int lm_fuse_points(const lm_target *t) {
  return t && t->choices.points ? t->choices.points : LM_FUSE_MIN_POINTS;
}
static inline int lm_fuse_chunks(const lm_target *t) {
  return t && t->choices.chunks ? t->choices.chunks : LM_FUSE_CHUNKS;
}

typedef struct lm_fuse {
  lm_module *m;
  lm_func *f;
  const lm_target *target; // may be NULL
  lm_arena *arena;
  lm_fuse_node *nodes;
  uint32_t n; // nodes are indexed by op->mark, from 1
  uint32_t visits;
} lm_fuse;

// fuse_node.c: nodes, the choice of recomputed operations, dependences
void lm_fuse_nodes_make(lm_fuse *s);
// Visits the operations of r and of the loops in it.
void lm_fuse_walk(lm_region *r, void (*fn)(lm_op *op, void *user), void *user);
lm_fuse_node *lm_fuse_node_of(const lm_fuse *s, const lm_value *v); // NULL for arguments
bool lm_fuse_is_view(const lm_op *op);
// True if v is `cast (unrounded x)`: each kernel that reads v computes it from the f32 in memory.
bool lm_fuse_rounds(const lm_value *v);
bool lm_fuse_stays(const lm_op *op); // true: remains outside of kernels
typedef void lm_fuse_leaf(void *user, lm_value *v, lm_type touched);
// Visits the values that the kernel of an operation reads: through recomputed operations, up to
// values in memory.
void lm_fuse_leaves(const lm_fuse *s, const lm_op *op, lm_fuse_leaf *fn, void *user);

// Bytes of v that a recomputation of a value of type t reads: all of v, or fewer if t is smaller.
double lm_fuse_bytes_read(const lm_module *m, lm_type t, const lm_value *v);
// The axes that the kernel of a node may be parallel over.
lm_type lm_fuse_allowed_axes(const lm_fuse *s, const lm_fuse_node *n);
// Sets the dependences of a node, again after one of them is recomputed.
void lm_fuse_deps_find(lm_fuse *s, lm_fuse_node *n);
// True if op, or an operation that is recomputed for it, reads an unrounded number.
bool lm_fuse_unrounded(const lm_fuse *s, const lm_op *op);

// fuse_again.c: values that kernels compute again instead of reading them
void lm_fuse_again(lm_fuse *s);

// fuse_group.c: assignment of operations to kernels, and values used outside of their kernel
void lm_fuse_group(lm_fuse *s);
void lm_fuse_needs(lm_fuse *s);
// The parallel axes of the kernel of a group, in order.
lm_type lm_fuse_parallel_axes(const lm_fuse *s, uint32_t group);
#endif
