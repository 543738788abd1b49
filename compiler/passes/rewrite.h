// rewrite.h - walking a function while replacing values; helpers of the passes.
#ifndef LM_REWRITE_H
#define LM_REWRITE_H
#include "compiler/ir/ir.h"

// A map from values to pointers, which grows with the module; NULL for values that are not set.
typedef struct lm_idmap {
  void **at;
  uint32_t n;
} lm_idmap;
void *lm_idmap_get(const lm_idmap *m, const lm_value *v);
void lm_idmap_set(lm_idmap *m, const lm_value *v, void *to);
void lm_idmap_free(lm_idmap *m);

// Visits the operations of f in order, nested regions before the operations after them. The
// operands of an operation are replaced before it is visited. `rule` returns the replacement of the
// operation's only result, and the operation is removed; or NULL, and it stays. It may emit
// operations before the operation, with r->b. Returns the number of replaced operations.
typedef struct lm_rewrite lm_rewrite;
struct lm_rewrite {
  lm_builder b;
  lm_idmap map;
  lm_value *(*rule)(lm_rewrite *r, lm_op *op);
  void *user;
  int changes;
};
int lm_rewrite_func(lm_func *f, lm_value *(*rule)(lm_rewrite *r, lm_op *op), void *user);

// A pass that replaces values of a function by results of new operations. `map`: the replacement of
// each value of the function; NULL: none.
typedef struct lm_replacement {
  lm_module *m;
  const struct lm_pass_env *env;
  const uint32_t *uses; // by value id
  uint32_t n_uses;      // values with a higher id are new
  lm_value **map;       // by value id, below n_uses
} lm_replacement;
// Calls `visit` for each operation of every function and of its loops, in order, then substitutes
// the values of `map`. `visit` may remove the operation.
void lm_replace_each(lm_module *m, const struct lm_pass_env *env,
                     void (*visit)(const lm_replacement *r, lm_op *op));

// Calls `visit` for each loop of a region, inner loops before the loop around them. `visit` may
// remove the loop, and emit operations in front of it and behind it.
void lm_loops_visit(lm_region *r, void (*visit)(lm_op *loop, void *user), void *user);

// True if op has no effects and no region, and does not end a region: it may be removed, moved or
// merged.
bool lm_op_pure(const lm_op *op);
// True if v is the result of an operation with this opcode.
bool lm_op_is(const lm_value *v, lm_opcode code);
// True if two `param` read the same element of the stacked axes.
bool lm_params_same_indices(const lm_op *a, const lm_op *b);
// True if v is a constant; sets *out to its number.
bool lm_const_of(const lm_value *v, double *out);
// x, whose axes are a subset of t's, permuted to t's order and broadcast along t's other axes.
lm_value *lm_cast_to(lm_rewrite *r, lm_value *x, lm_type t);
// Replaces each operand of op that is the result of an operation `code`, such as permute, by the
// operand of that operation, if op then has the same type.
void lm_operands_skip(lm_rewrite *r, lm_op *op, lm_opcode code);
// Moves the operations between `from` and `to`, of one region, whose mark is `mark` before `to`, in
// order.
void lm_ops_sink(lm_op *from, lm_op *to, uint32_t mark);
// Delta of an attend_vjp that does not have it (attend_delta.c): f32, of the type of lse.
lm_value *lm_attend_delta(lm_builder *b, const lm_op *vjp);
// Of pass decompose: an operation of routing as operations that kernels have (decompose_route.c).
lm_value *lm_decompose_route(lm_rewrite *r, lm_op *op);
// The same for the values of a top_k over the history in decoding; NULL: op is not these.
lm_value *lm_decompose_best(lm_rewrite *r, lm_op *op);
#endif
