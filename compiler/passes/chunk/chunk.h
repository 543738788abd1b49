// chunk.h - what the files of pass chunk_scan share.
//
// t is divided into chunks, t = (chunk, i); j also counts the positions of a chunk. Values of all
// positions have the axes chunk and i, or chunk and j, and those of the batch, p or n, in any
// order: operations find them by name.
#ifndef LM_CHUNK_H
#define LM_CHUNK_H
#include "compiler/passes/chunk/chunk_match.h"
#include "target/target.h"

typedef struct lm_chunked {
  lm_builder *b;
  lm_chunk *of;
  lm_axis t, chunk, i, j;
  // The chunks before which there is a state: `chunk`; without the first one, if the scan starts
  // with 0 and nothing uses its last state; 0: none.
  lm_axis later;
  lm_value *u, *k, *w; // at j; w: NULL unless the match has it
  // Decays: a multiplied from the beginning of the chunk through each position i, or through the
  // one before it; through the whole chunk; behind each position j to the end of the chunk.
  lm_value *now, *before, *whole, *rest;
  lm_value *to_now, *to_before; // unless keyed: from j through i, and through the position before i
  // 1, whose cotangent is that of the logarithm of to_before, and of to_now; NULL: of these
  // themselves.
  lm_value *one[2];
  // The weights of the update at j in the reads at i, [chunk, batch, i, j]: sums over n of c, k
  // (or w) and the decay from j to i. of_w: NULL without w.
  lm_value *of_k[LM_CHUNK_READS], *of_w[LM_CHUNK_READS];
  lm_value *states; // before these chunks: [later, batch, p, n], of the match's type; NULL: none
  lm_value *delta;  // the read of the delta rule, at j; NULL: none
  bool keeps;       // weights and reads that round, for the backward pass
  bool mixes;       // weights are computed where they are multiplied (pass mix_kernels)
  // On a GPU, values are multiplied by decays along t, and chunks are views of the results: one
  // kernel can compute them with what the model computes at each position.
  bool by_position;
} lm_chunked;

// ---- values (chunk.c)

// An elementwise operation on operands with any axes.
lm_value *lm_chunk_emit2(lm_builder *b, lm_opcode code, lm_value *v, lm_value *w);
// A lifted value by chunks, with chunk and i in front. A value that is the same at each position is
// repeated.
lm_value *lm_chunk_of(lm_chunked *x, lm_value *v);
lm_value *lm_chunk_rename(lm_chunked *x, lm_value *v, lm_axis from, lm_axis to);
lm_value *lm_chunk_at_j(lm_chunked *x, lm_value *v); // i becomes j
lm_value *lm_chunk_rows(lm_chunked *x, lm_value *v); // by chunks, with i in front
// A value by chunks, for all positions, with t in front.
lm_value *lm_chunk_merged(lm_chunked *x, lm_value *v);
// v for all positions, times a decay by chunks.
lm_value *lm_chunk_decayed(lm_chunked *x, lm_value *v, lm_value *decay);
lm_value *lm_chunk_positions(lm_chunked *x, lm_axis i); // the indices along i or j
// 1 where the index along j is `index`.
lm_value *lm_chunk_unit(lm_builder *b, lm_axis j, lm_value *index);
// A GEMM of v and w, which are rounded to the match's type. wide: the result is f32.
lm_value *lm_chunk_dot(lm_chunked *x, lm_value *v, lm_value *w, lm_type over, bool wide);
lm_value *lm_chunk_f32(lm_chunked *x, lm_value *v);
// Marks v, if x->keeps and the recipe does not ask to recompute it.
void lm_chunk_keep(const lm_chunked *x, lm_value *v);
lm_value *lm_chunk_front(lm_chunked *x, lm_value *v, const lm_axis *first, int n);
// v with i and j behind the other axes: the rows of a chunk side by side.
lm_value *lm_chunk_rows_last(lm_chunked *x, lm_value *v);
// v, which has chunk, at the chunks of x->later, or at those before them.
lm_value *lm_chunk_later(lm_chunked *x, lm_value *v);
lm_value *lm_chunk_earlier(lm_chunked *x, lm_value *v);
// What each chunk before those of x->later adds to the state, with the state's axes behind later
// and the match's type.
lm_value *lm_chunk_added(lm_chunked *x);

// ---- decays (chunk_decay.c) and weights (chunk_weights.c)

void lm_chunk_decays(lm_chunked *x);
enum {
  LM_CHUNK_DEPTH = 16 // of operations that an exponent is looked for in
};
// a = kept ? exp(z) : 0, up to the order and number of axes.
typedef struct lm_chunk_exponent {
  lm_value *z, *kept; // kept: NULL: everywhere
} lm_chunk_exponent;
// False if a has no such form.
bool lm_chunk_exponent_of(lm_chunked *x, const lm_value *a, lm_chunk_exponent *out);
// The sums of v, which has t, through each position of a chunk.
lm_value *lm_chunk_running_sum(lm_chunked *x, lm_value *v);
lm_value *lm_chunk_where(lm_chunked *x, lm_value *condition);      // 1, else 0
lm_value *lm_chunk_number_of_zeros(lm_chunked *x, lm_value *kept); // 0, else 1
void lm_chunk_weights(lm_chunked *x);                              // of_k and of_w

// The most positions of a chunk whose weights lm_chunk_weights_bounded can compute; 0: none.
int64_t lm_chunk_bounded(const lm_chunk *c);
void lm_chunk_weights_bounded(lm_chunked *x);

// ---- the delta rule (chunk_delta.c, chunk_inverse.c)

// (1 - a)^-1 of a strictly lower triangular a over i, j, which are behind the other axes.
lm_value *lm_chunk_inverse(lm_chunked *x, lm_value *a);

// Sets states and delta, and adds the latter to u. Returns the state after the last chunk.
lm_value *lm_chunk_delta(lm_chunked *x);

// ---- the cost model (chunk_cost.c)

// True if chunks of `of_chunk` positions take less time than the loop. target may be NULL: a CPU.
bool lm_chunk_is_profitable(const lm_target *target, const lm_chunk *c, int64_t of_chunk);
#endif
