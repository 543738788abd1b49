// shard.h - data structures of pass `shard`.
//
// The pass handles one axis of the mesh at a time, and one function at a time: first it chooses for
// each value how it is spread (shard_choice.c), then it rewrites the operations and inserts the
// collectives (shard.c).
#ifndef LM_SHARD_H
#define LM_SHARD_H
#include "compiler/ir/ir.h"
#include "compiler/passes/fp8/fp8.h"

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
  const lm_op *user; // the one operation that uses it; NULL: there are several, or none
  uint32_t n_uses;
  // Parts along rows that are sorted by expert: the result of the group_order that sorts them.
  const lm_value *sorted;
  struct lm_shard_own *own; // of a group_order by experts (shard_route.c)
} lm_shard_value;

// The rows of a rank's own experts, in a function.
typedef struct lm_shard_own {
  lm_value *order;   // int[rows@ep]
  lm_value *inverse; // int, with the axes of the points, or of the received rows
  lm_value *counts;  // the rows of each expert: int[E@ep]
  // Where ranks have different points: the rows that this rank sends to each rank, and receives.
  lm_value *send, *receive;
} lm_shard_own;

// The loop of a function over the instances of a block that are the stages of a pipeline.
typedef struct lm_shard_repetition {
  struct lm_shard_repetition *next;
  lm_func *f;
  lm_op *loop;
  lm_axis rows; // the axis of rows, whole
  lm_op *own;   // the operations of its body before this one depend on the rows alone
  // Of several lists (shard_chunks.c), the number of that of the loop, as an index of accesses and
  // elsewhere; NULL.
  lm_value *chunk, *list;
} lm_shard_repetition;

typedef struct lm_shard {
  lm_module *m;
  lm_func *f;
  uint32_t n_axes;        // of the module before the pass
  int mesh;               // from 1
  const lm_mesh_axis *by; // the axis of the mesh
  bool batch;             // divides the data: the sums of a loss may stay partial
  bool positions;         // divides the positions; the other axes of the list are those of heads
  uint32_t *order;        // by axis: its position in the list of axes to divide, from 1; 0: whole
  lm_shard_value *value;  // by id
  uint8_t *whole_params;  // by global: a use needs the whole cotangent
  uint8_t *stacks;        // by axis: counts instances that are the stages of a pipeline
  // Of routing (shard_route.c), by axis: how rows that group_order sorts are divided, 0 if they are
  // not; it is divided and counts experts; of rows that are divided by experts, the axis whose part
  // a rank has, sorted, and as it receives them. By global: matrices of experts that are divided.
  uint8_t *rows, *experts;
  lm_axis *all_rows, *received;
  uint8_t *expert_weights;
  bool failed; // an error was reported
  bool mixes;  // the result depends on which rows are in a micro-batch
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
  return s->positions && s->order[a] > 1 && !s->rows[a];
}
// The first axis of t in the list along which a division may begin: none of heads, of experts, or
// of rows that are sorted by expert. 0 if there is none.
lm_axis lm_shard_axis(const lm_shard *s, lm_type t);
// The axis along which a value t of a global is divided; 0 if it is not.
lm_axis lm_shard_axis_of_global(const lm_shard *s, const lm_global *g, lm_type t);
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
// True if the blocks of a function carry a value without rows, as a balance loss.
bool lm_shard_carries_statistic(const lm_func *f);
// Finds the loops over instances and the stacked axes that the stages of a pipeline divide. False
// if errors were reported.
bool lm_shard_repetitions_find(lm_shard *s);
// The loop over instances of a function that takes no batch, and notes the axes that it divides;
// NULL if errors were reported.
lm_op *lm_shard_repetition_find(lm_shard *s, const lm_func *f);
// That of a function, or NULL.
lm_shard_repetition *lm_shard_repetition_of(const lm_shard *s, const lm_func *f);
// Makes values with a gradient that blocks read carries, which every block passes on.
void lm_shard_repetition_carry(lm_shard *s, lm_shard_repetition *r);
// True if op takes this rank's part of the rows, along an axis of the mesh that divided them
// before.
bool lm_shard_takes_part(const lm_op *op, lm_axis rows);
static inline bool lm_shard_is_pipeline(const lm_shard *s, const lm_op *loop) {
  const lm_shard_repetition *r = lm_shard_repetition_of(s, s->f);
  return r && r->loop == loop;
}
// The operand of op that is `index` and chooses an element along a stacked axis of a global: its
// number among the indices. -1: none is.
int lm_shard_indexed(const lm_op *op, const lm_value *index);
// False if errors were reported: an access that a function has to instances, in a loop over them
// all or otherwise, cannot be divided.
bool lm_shard_instances_check(lm_shard *s, lm_func *f);
// Replaces an index by the number of the instance, where it accesses no global.
void lm_shard_index_replace(lm_region *r, const lm_value *index, lm_value *instance);
// Makes the loops over instances of a function that takes no batch, such as @update, loops over
// those of a rank. False if errors were reported.
bool lm_shard_instances_divide(lm_shard *s, lm_func *f);
// Makes a loop over instances one over those of this rank, whose coordinate is `rank`. Where the
// index accesses no global, it becomes that of the instance among all.
void lm_shard_loop_shorten(lm_shard *s, lm_op *loop, lm_value *rank);

// ---- shard_route.c
// Finds the rows and experts that are divided.
void lm_shard_route_find(lm_shard *s);
// Of an operation of routing: whether it may be divided along a, by points or features, and the
// axis of its result that a becomes, 0 if the result lacks it.
bool lm_shard_route_divides(const lm_shard *s, const lm_op *op, lm_axis a);
lm_axis lm_shard_route_along(const lm_op *op, lm_axis a);
// True if ranks with different points exchange the rows that op sorts or moves, by experts.
bool lm_shard_route_exchanges(const lm_shard *s, const lm_op *op);
// The axis of rows along which the result of an operation of routing is divided, by experts; 0:
// none.
lm_axis lm_shard_route_experts(const lm_shard *s, const lm_op *op);
// True if an operation that is none of routing may be divided along the rows n.
bool lm_shard_rows_divide(const lm_shard *s, const lm_op *op, lm_axis n);
// Notes by which group_order the results of op are sorted.
void lm_shard_rows_sorted(lm_shard *s, const lm_op *op);
// Reports that `user` needs rows in the order of all ranks.
void lm_shard_rows_refuse(lm_shard *s, const lm_op *user);
// The axis of rows of an operation of routing; 0: it has none (group_counts, group_inverse).
lm_axis lm_shard_rows_of(const lm_op *op);
// True if an operation of routing has the axis a of points, which group_rows sorts.
bool lm_shard_has_point(const lm_op *op, lm_axis a);

// ---- shard_experts.c
// Divides an operation of routing.
void lm_shard_route(lm_shard *s, lm_op *op, lm_axis factor);

// ---- shard_lane.c
// The axes that stand for the rows of a call, and for those that routing sorts, where a stage
// computes one micro-batch.
typedef struct lm_shard_lane {
  lm_shard *s;
  lm_axis rows, part; // of a call; that a rank has of the micro-batch
  lm_axis *of;        // by axis; 0: the same
  uint32_t n;
} lm_shard_lane;
// part: divided by s->mesh. lm_free(of) ends it.
lm_shard_lane lm_shard_lane_open(lm_shard *s, lm_func *f, lm_axis rows, lm_axis part);
// Replaces the axes of op, of its results and of its body.
void lm_shard_lane_enter(const lm_shard_lane *l, lm_op *op);
// True if op, which has these axes, computes a value of several rows, unless it routes them.
bool lm_shard_lane_is_over(const lm_shard_lane *l, const lm_op *op);
// True if op routes the rows of a micro-batch by themselves: its counts, if it gives them, only
// sort rows or are added to a state.
bool lm_shard_routes_rows(const lm_op *op);
// Multiplies what the operations of a region add to states by 1 where there is a micro-batch of
// this number, by 0 elsewhere.
void lm_shard_additions_scale(lm_builder *b, lm_region *r, lm_value *micro, int64_t n_micro);

// Whether the users in the region of v, a count of the rows of one micro-batch or its float, sort
// by it or add it to a state.
bool lm_shard_count_is_added(const lm_region *r, const lm_value *v);

// ---- shard_statistics.c
// True if op computes a value of all rows, which lacks them: a sum, a maximum, or counts of
// routing.
bool lm_shard_is_statistic(const lm_op *op, lm_axis rows);
// The axes of what the blocks compute of all rows of a micro-batch, which differs from stage to
// stage: its values have an axis `stage`, of which each rank has one element.
typedef struct lm_shard_stages {
  lm_axis lane;  // the rows of a rank, in the blocks
  lm_axis stage; // one rank's part
  lm_axis micro; // the rows of a micro-batch
} lm_shard_stages;
// The type with the axis of stages in front.
lm_type lm_shard_stages_type(const lm_shard_stages *x, lm_type t);
// Lets the loop over the instances of a stage compute its values without rows with that axis. False
// if errors were reported.
bool lm_shard_statistics(lm_shard *s, const lm_shard_stages *axes, lm_op *loop);

// ---- shard_pipeline.c
// Computes the repetition `loop` as a pipeline.
void lm_shard_pipeline(lm_shard *s, lm_op *loop);

// ---- shard_order.c
// The order of n_micro micro-batches on so many ranks with `chunks` stages each. Pass u of rank r
// is in tick u + r.
typedef struct lm_shard_order {
  int64_t ranks, chunks, n_micro;
} lm_shard_order;
int64_t lm_shard_order_ticks(const lm_shard_order *o);
// Of a pass: the micro-batch, which is none if it is negative or n_micro or more, and the stage, of
// those of the rank.
lm_value *lm_shard_order_micro(const lm_shard_order *o, lm_builder *b, lm_value *pass);
lm_value *lm_shard_order_chunk(const lm_shard_order *o, lm_builder *b, lm_value *pass);
// True in a pass of the first of all stages, or of no micro-batch.
lm_value *lm_shard_order_takes(const lm_shard_order *o, lm_builder *b, lm_value *pass,
                               lm_value *rank);
// True in a tick in which the last of all stages computes a micro-batch.
lm_value *lm_shard_order_ends(const lm_shard_order *o, lm_builder *b, lm_value *tick);
// Of values of all ticks, the leading axis, those of these ticks: with the axis `micro` instead.
lm_value *lm_shard_order_last(const lm_shard_order *o, lm_builder *b, lm_value *all, lm_axis micro);

// ---- shard_chunks.c
// Makes several lists of the instances of repetitions if a rank has several stages. False if errors
// were reported.
bool lm_shard_chunks(lm_shard *s);
// Lets a copy of the repetition compute the list of this pass, in a tick of this number.
void lm_shard_chunk_set(lm_shard *s, const lm_shard_order *o, lm_builder *b, lm_op *loop,
                        lm_value *tick, lm_value *pass);

// ---- shard_ticks.c
// Makes a function of a batch a loop over micro-batches, of which each stage computes another at a
// time. False if errors were reported.
bool lm_shard_ticks(lm_shard *s, lm_func *f);

// ---- shard_balance.c
// Removes `balanced` from an axis of the mesh (from 1) that divides positions if the model depends
// on the order of elements along them; otherwise computes the indices of positions in it.
void lm_shard_balance(lm_module *m, int mesh);

// ---- shard_stage.c
// The operand of the first stage on every rank, from the ranks' parts x of its rows.
lm_value *lm_shard_stage_operand(const lm_shard *s, lm_builder *b, const lm_shard_stages *axes,
                                 lm_value *x);
// This rank's part of the rows of y, the result of the last stage; on every rank, if it is a value
// of all rows.
lm_value *lm_shard_stage_result(const lm_shard *s, lm_builder *b, const lm_shard_stages *axes,
                                lm_value *y);

// ---- shard_micro.c
// The axis of the mesh whose ranks are stages; NULL: none has several.
const lm_mesh_axis *lm_shard_stages_axis(const lm_module *m);
// True if every result of the loss is a sum over rows, and blocks carry rows alone.
bool lm_shard_sums_rows(const lm_func *loss);
// GPipe divides the rows of all micro-batches outside of the stages, if lm_shard_sums_rows and no
// scale of 8-bit floats (fp8, may be NULL) follows a micro-batch there. Otherwise a tick computes
// the whole model for one micro-batch, and `rows` of the axis becomes false. False: its ranks do
// not divide the rows of a micro-batch, which is reported.
bool lm_shard_rows_choose(lm_module *m, const lm_fp8 *fp8);
// True if a loss or a metric is no sum over rows, or a scale is that of a micro-batch, in a module
// that is not divided.
bool lm_shard_mixes(const lm_module *m, const lm_fp8 *fp8);
// The axis of the rows of all ranks.
lm_axis lm_shard_rows_axis(const lm_module *m, lm_axis rows);
// A new axis of which a rank has `size` elements, divided as `rows` is.
lm_axis lm_shard_rows_like(lm_module *m, lm_axis rows, int64_t size);
// x, which has the axis `rows` of a rank's rows, for those of all ranks; and which part of them, of
// equal parts, the rank has.
lm_value *lm_shard_rows_collect(lm_builder *b, lm_value *x, lm_axis rows);
lm_value *lm_shard_rows_part(lm_builder *b, lm_axis rows);

// ---- shard_begin.c
// Lets each stage compute @begin, the initial values that depend on other parameters, from those
// that it has. False if errors were reported.
bool lm_shard_begin(lm_shard *s, lm_func *f);

// ---- shard_decode.c
// Computes the repetition of a function that continues texts by one stage after the other. False if
// errors were reported.
bool lm_shard_decode(lm_shard *s, lm_func *f);

// ---- shard_zero.c
// Divides parameters, gradients and optimizer states among the ranks along an axis of the mesh
// (from 1) that divides rows.
void lm_shard_zero(lm_module *m, int mesh);

// ---- shard_norm.c
// Adds the norms of the ranks along an axis of the mesh (from 1) that divides parameters.
void lm_shard_norm(lm_module *m, int mesh);

// ---- shard_list.c
// "1, 2 and 4 do": the divisors of n that a mesh may have, of many those nearest to `near`.
void lm_shard_divisors(int64_t n, int64_t near, lm_buf *out);
// True for functions whose arguments are the rows of a batch.
bool lm_shard_takes_batch(const lm_func *f);
// True if an axis of the mesh divides rows or positions that it has not divided yet.
bool lm_shard_batch(const lm_module *m, int mesh);
// Sets the order of the axes that `by` divides (lm_shard.order): rows and positions first. False if
// errors were reported.
bool lm_shard_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order);
#endif
