// shard.h - data structures of pass `shard`.
//
// The pass handles one axis of the mesh at a time, and one function at a time: first it chooses for
// each value how it is spread (shard_choice.c), then it rewrites the operations and inserts the
// collectives (shard.c).
#ifndef LM_SHARD_H
#define LM_SHARD_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_SPREAD_WHOLE,   // equal on all ranks
  LM_SPREAD_PARTS,   // divided along one axis
  LM_SPREAD_PARTIAL, // the sum of the ranks' values
} lm_spread;

// What a value was converted to, by its first user.
typedef struct lm_shard_copy {
  struct lm_shard_copy *next;
  lm_opcode code; // the collective
  lm_axis along;
  lm_value *v;
} lm_shard_copy;

typedef struct lm_shard_value {
  lm_type type;    // before the division
  uint8_t spread;  // lm_spread
  lm_axis along;   // PARTS: the whole axis
  bool active;     // has a gradient
  bool movable;    // whole: may be computed on each rank for a part of its users
  bool whole_use;  // a use needs the whole cotangent on every rank
  lm_value *now;   // after the operation was rewritten
  lm_value *again; // parts: the whole value, computed from whole operands; NULL
  lm_shard_copy *copies;
} lm_shard_value;

typedef struct lm_shard {
  lm_module *m;
  lm_func *f;
  int mesh;              // from 1
  bool batch;            // divides the data: the sums of a loss may stay partial
  bool positions;        // divides the positions; the other axes of the list are those of heads
  uint32_t *order;       // by axis: its position in the list of axes to divide, from 1; 0: whole
  lm_shard_value *value; // by id
  uint32_t n_values;     // ids from here on are those of values that the pass has emitted
  lm_builder b;
} lm_shard;

static inline lm_shard_value *lm_shard_of(const lm_shard *s, const lm_value *v) {
  return &s->value[v->id];
}
// An axis of heads: attention is divided along it, from `history` to the first sum over it. Where
// the positions are divided, no other value is.
static inline bool lm_shard_is_heads(const lm_shard *s, lm_axis a) {
  return s->positions && s->order[a] > 1;
}
// The first axis of t in the list that is none of heads; 0 if there is none.
lm_axis lm_shard_axis(const lm_shard *s, lm_type t);
// The axis along which op is divided, by the spread of its operands; 0: computed whole.
lm_axis lm_shard_factor(const lm_shard *s, const lm_op *op);
// The axis of result i along which it is divided if op is divided along `factor`; 0 if the result
// lacks it.
lm_axis lm_shard_along(const lm_shard *s, const lm_op *op, lm_axis factor, uint32_t i);
// True if op maps partial operands to a partial result.
bool lm_shard_keeps_partial(const lm_shard *s, const lm_op *op);
// True if a whole result of op is divided at once.
bool lm_shard_parts_result(const lm_shard *s, const lm_op *op);
// True if result i of a function may be a partial sum.
bool lm_shard_returns_partial(const lm_shard *s, uint32_t i);
// Chooses the spread of every value of the function. `whole_params` by global, initially zeros: set
// for parameters of which a use needs the whole cotangent.
void lm_shard_choose(lm_shard *s, uint8_t *whole_params);

// ---- shard_zero.c
// Divides parameters, gradients and optimizer states among the ranks along an axis of the mesh
// (from 1) that divides rows.
void lm_shard_zero(lm_module *m, int mesh);

// ---- shard_norm.c
// Adds the norms of the ranks along an axis of the mesh (from 1) that divides parameters.
void lm_shard_norm(lm_module *m, int mesh);

// ---- shard_list.c
// True for functions whose arguments are the rows of a batch.
bool lm_shard_takes_batch(const lm_func *f);
// True if an axis of the mesh divides rows or positions that it has not divided yet.
bool lm_shard_batch(const lm_module *m, int mesh);
// Sets the order of the axes that `by` divides (lm_shard.order): rows and positions first. False if
// errors were reported.
bool lm_shard_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order);
#endif
