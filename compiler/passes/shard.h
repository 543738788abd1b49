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

// The loop of a function over the instances of a block that are the stages of a pipeline.
typedef struct lm_shard_repetition {
  struct lm_shard_repetition *next;
  lm_func *f;
  lm_op *loop;
  lm_axis rows; // the axis of rows, whole
  lm_op *own;   // the operations of its body before this one depend on the rows alone
} lm_shard_repetition;

typedef struct lm_shard {
  lm_module *m;
  lm_func *f;
  int mesh;               // from 1
  const lm_mesh_axis *by; // the axis of the mesh
  bool batch;             // divides the data: the sums of a loss may stay partial
  bool positions;         // divides the positions; the other axes of the list are those of heads
  uint32_t *order;        // by axis: its position in the list of axes to divide, from 1; 0: whole
  lm_shard_value *value;  // by id
  uint8_t *whole_params;  // by global: a use needs the whole cotangent
  uint8_t *stacks;        // by axis: counts instances that are the stages of a pipeline
  lm_shard_repetition *repetitions;
  uint32_t n_values; // ids from here on are those of values that the pass has emitted
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
// Chooses the spread of every value of the function. Sets s->whole_params, initially zeros.
void lm_shard_choose(lm_shard *s);

// ---- shard_form.c
typedef enum {
  LM_FORM_WHOLE, // with the whole cotangent on every rank
  LM_FORM_TERMS, // whole, with terms of the cotangent
  LM_FORM_PARTS, // divided along an axis
} lm_shard_form;
lm_axis lm_shard_part(const lm_shard *s, lm_axis whole); // the axis of one rank's part
lm_type lm_shard_divided(const lm_shard *s, lm_type t, lm_axis along); // along 0: t
// True if a whole value has terms of its cotangent.
bool lm_shard_has_terms(const lm_shard_value *v);
// The following emit at the builder's position: a collective, with axis `from` as `to` unless from
// is 0, and the number of the first element of this rank's part of an axis.
lm_value *lm_shard_collective(lm_shard *s, lm_opcode code, lm_value *x, lm_axis from, lm_axis to);
lm_value *lm_shard_first(lm_shard *s, lm_axis whole);
// Replaces operand i of op by the given form.
void lm_shard_need(lm_shard *s, lm_op *op, uint32_t i, lm_shard_form f, lm_axis along);
// The value that is now x, whole, for use by `user`: with terms of its cotangent on each rank if it
// has one.
lm_value *lm_shard_terms(lm_shard *s, const lm_value *x, lm_op *user);

// ---- shard_repetition.c
// True for functions whose repetition is a pipeline: they compute rows of a batch.
bool lm_shard_runs_pipeline(const lm_func *f);
// Finds the loops over instances and the stacked axes that the stages of a pipeline divide. False
// if errors were reported.
bool lm_shard_repetitions_find(lm_shard *s);
// That of a function, or NULL.
const lm_shard_repetition *lm_shard_repetition_of(const lm_shard *s, const lm_func *f);
static inline bool lm_shard_is_pipeline(const lm_shard *s, const lm_op *loop) {
  const lm_shard_repetition *r = lm_shard_repetition_of(s, s->f);
  return r && r->loop == loop;
}
// The operand of op that is `index` and chooses an element along a stacked axis of a global: its
// number among the indices. -1: none is.
int lm_shard_indexed(const lm_op *op, const lm_value *index);
// Makes the loops over instances of a function that takes no batch, such as @update, loops over
// those of a rank. False if errors were reported.
bool lm_shard_instances_divide(lm_shard *s, lm_func *f);
// Makes a loop over instances one over those of this rank, whose coordinate is `rank`. Where the
// index accesses no global, it becomes that of the instance among all.
void lm_shard_loop_shorten(lm_shard *s, lm_op *loop, lm_value *rank);

// ---- shard_pipeline.c
// Computes the repetition `loop` as a pipeline.
void lm_shard_pipeline(lm_shard *s, lm_op *loop);

// ---- shard_zero.c
// Divides parameters, gradients and optimizer states among the ranks along an axis of the mesh
// (from 1) that divides rows.
void lm_shard_zero(lm_module *m, int mesh);

// ---- shard_norm.c
// Adds the norms of the ranks along an axis of the mesh (from 1) that divides parameters.
void lm_shard_norm(lm_module *m, int mesh);

// ---- shard_list.c
void lm_shard_divisors(int64_t n, lm_buf *out); // "1, 2 and 4 do"
// True for functions whose arguments are the rows of a batch.
bool lm_shard_takes_batch(const lm_func *f);
// True if an axis of the mesh divides rows or positions that it has not divided yet.
bool lm_shard_batch(const lm_module *m, int mesh);
// Sets the order of the axes that `by` divides (lm_shard.order): rows and positions first. False if
// errors were reported.
bool lm_shard_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order);
#endif
