// fp8.h - which GEMMs of a loss multiply 8-bit floats (fp8_choice.c), and how (pass fp8).
#ifndef LM_PASSES_FP8_H
#define LM_PASSES_FP8_H
#include "compiler/ir/ir.h"
#include "compiler/ops/fp8.h"
#include "target/target.h"

typedef enum {
  LM_FP8_CURRENT, // one scale for a tensor, from the tensor
  LM_FP8_DELAYED, // one scale for a tensor, from the last steps; weights have a current one
  LM_FP8_BLOCKS,  // one scale for LM_FP8_BLOCK elements along the axes that are summed
  LM_FP8_MX,      // one scale for LM_FP8_MX_BLOCK elements along it, of weights too
} lm_fp8_scaling;

// A parameter, by its global, that a pattern of the recipe exempts.
typedef struct lm_fp8_kept {
  lm_sym param;
  const char *pattern;
} lm_fp8_kept;

typedef struct lm_fp8 {
  lm_dtype forward, backward; // LM_E4M3, LM_E5M2: of activations and weights, of cotangents
  lm_fp8_scaling scaling;
  bool head;            // also GEMMs of weights with an axis of the vocabulary
  lm_target target;     // the rules of a GPU's library hold
  bool all;             // also GEMMs that a GPU is predicted to compute faster without codes
  double margin;        // codes must save this share of the time without them, if not `all`
  double micro_batches; // of a step
  double tokens;        // of a micro-batch, by those of the module; 0: 1
  const lm_fp8_kept *kept;
  uint32_t n_kept;
  lm_loc loc; // of the setting
} lm_fp8;

// A GEMM of an activation with a weight.
typedef struct lm_fp8_gemm {
  lm_op *dot;
  int weight;         // which operand is the weight
  const lm_op *param; // the parameter under it
  int64_t count;      // instances of the parameter
  const char *stays;  // why it is not cast; NULL: it is
  double m, n, k;     // rows of the activation, columns of the weight, the summed size
  // Of a GPU, predicted seconds of a micro-batch: of the three GEMMs, with codes and the kernels
  // that write them, and without; 0: unknown.
  double codes, plain;
} lm_fp8_gemm;
// Axes along which there are blocks that have a scale each: of the rows of the activation, of the
// sum, of the columns of the weight. With a scale for a tensor: none.
typedef struct lm_fp8_along {
  lm_fp8_axes rows, summed, columns;
} lm_fp8_along;
// One of these, of which axis number `divided` is a part that has no whole blocks of `block`.
typedef struct lm_fp8_part {
  lm_fp8_axes along;
  int divided;
  int64_t block;
} lm_fp8_part;
typedef struct lm_fp8_gemms {
  lm_fp8_gemm *v;
  uint32_t n, cap;
} lm_fp8_gemms;

// The GEMMs of weights in a function without calls, in order, allocated in the module's arena.
// Pass `analyze` must have run.
lm_fp8_gemms lm_fp8_choose(const lm_fp8 *o, lm_func *f);
// Of n GEMMs that read one activation and sum the same axes, at most LM_FP8_GROUP: the set of those
// in `may` that are cast where the group takes the least time on o->target. Sets their `codes` and
// `plain`: the difference that each of them makes.
enum {
  LM_FP8_GROUP = 8
};
uint32_t lm_fp8_fastest(const lm_fp8 *o, lm_fp8_gemm *const *of, int n, uint32_t may);
// False, after a diagnostic, if none of these GEMMs is cast, or one would have other blocks than in
// one process.
bool lm_fp8_check(const lm_fp8 *o, lm_ctx *c, const lm_fp8_gemms *all);
// True if a scale is that of a micro-batch, so that the step depends on which rows are in one. o
// may be NULL.
bool lm_fp8_follows_micro(const lm_fp8 *o);
// True if the same holds of a GEMM of the loss that is in no loop, whether or not a target
// multiplies codes there. Pass `analyze` must have run.
bool lm_fp8_follows_outside(const lm_fp8 *o, lm_func *loss);
// The number of which the rows of a tile are a multiple, where a loop computes a GEMM of a loss in
// tiles of the rows of its first operand: the tiles are then rounded as the whole is. 0: no tiles
// are. last: the last axis of the rows. o may be NULL. Pass `analyze` must have run.
int64_t lm_fp8_tile_multiple(const lm_fp8 *o, const lm_op *dot, lm_axis last);

// The stages of a pipeline; without one, all zero.
typedef struct lm_fp8_stages {
  lm_op *ticks;    // the loop in whose iteration k stage r computes micro-batch k - r
  int mesh;        // the axis of the mesh, from 1
  bool model;      // an iteration computes the operations around the blocks too
  uint8_t *behind; // by id: depends on what a stage has received
} lm_fp8_stages;
lm_fp8_stages lm_fp8_stages_of(const lm_func *f);

// In which part of a tick a GEMM is computed.
typedef enum {
  LM_FP8_OUTSIDE,  // in none: outside of the loop over ticks, if there is one
  LM_FP8_IN_STAGE, // ranks along the axis of stages have other tensors
  LM_FP8_IN_FRONT, // of the stages: the ranks have parts of the same micro-batch
  LM_FP8_BEHIND,   // the stages: the same, in ticks in which the last stage has a micro-batch
} lm_fp8_phase;
lm_fp8_phase lm_fp8_phase_of(const lm_fp8_stages *s, const lm_fp8_gemm *g);
// The axes of the mesh along which ranks have other tensors there.
lm_mesh_set lm_fp8_others(const lm_fp8_stages *s, lm_fp8_phase at);
// The axes of the mesh along which ranks have other instances of a global.
lm_mesh_set lm_fp8_stacks(const lm_module *m, const lm_global *g);
// Whether a micro-batch is computed there in this iteration, a scalar bool; NULL: one always is.
lm_value *lm_fp8_has_micro(lm_builder *b, const lm_fp8_stages *s, lm_fp8_phase at);
// The elements of a block that has a scale; 0: a tensor has one.
static inline int64_t lm_fp8_block(lm_fp8_scaling scaling) {
  int64_t of_mx = scaling == LM_FP8_MX ? LM_FP8_MX_BLOCK : 0;
  return scaling == LM_FP8_BLOCKS ? LM_FP8_BLOCK : of_mx;
}
lm_fp8_along lm_fp8_along_of(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g);
// Why a GEMM has no whole blocks, whatever its rows are; why its rows have none; why they are not
// those of a GPU's library, of 128 elements along all axes of the rows. NULL: it does.
const char *lm_fp8_not_in_blocks(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g);
const char *lm_fp8_rows_not_in_blocks(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g);
const char *lm_fp8_not_blocks_of_gpu(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g);
// True if ranks have parts of axes whose blocks would not be those of one process.
bool lm_fp8_parts_break(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g,
                        lm_fp8_part *out);
void lm_fp8_part_report(lm_ctx *c, const lm_fp8_gemm *g, const lm_fp8_part *part);
// The last axis of t among those that a GEMM sums, or among the others; 0 if there is none.
lm_axis lm_fp8_last_axis(lm_type t, const lm_attr *over, bool summed);
#endif
