// cost.h - the cost model: the time that the steps of a plan take on a machine.
//
// A machine is plain data (target/target.h), so it need not be here. A step takes a launch and
// the time of up to three terms, which overlap but not perfectly (lm_cost_overlap): moving bytes,
// issuing instructions, multiplying matrices. docs/cost.md has the formulas and where their
// constants come from.
//
// The parts (a kernel, a GEMM, an attention) are functions of plain sizes, so passes use them
// before there is a plan.
#ifndef LM_COMPILER_COST_H
#define LM_COMPILER_COST_H
#include "runtime/plan/plan.h"
#include "target/target.h"

// What most of a step's time is spent on.
typedef enum {
  LM_COST_LAUNCH,
  LM_COST_MEMORY,
  LM_COST_INSTRUCTIONS, // of generated code
  LM_COST_ARITHMETIC,   // GEMMs
  LM_COST_BOUNDS
} lm_cost_bound;
extern const char *const lm_cost_bound_names[LM_COST_BOUNDS];

typedef struct lm_cost {
  double seconds; // predicted
  lm_cost_bound bound;
} lm_cost;

// ---- cost_kernel.c

// The time of two terms that overlap: (a^3 + b^3)^(1/3), which is more than the longer one, because
// each slows the other.
double lm_cost_overlap(double a, double b);
double lm_cost_memory(const lm_target *t, double bytes);
// The bytes that a long kernel moves in the time that one more launch takes.
double lm_cost_launch_bytes(const lm_target *t);
// FLOP/s of GEMMs that are large enough; of another dtype where none is known.
double lm_cost_peak(const lm_target *t, lm_dtype dtype);

// A kernel of generated code. cold: of the bytes, those that no cache holds. again: bytes that pass
// through a cache besides: read again, or of sectors of which accesses use a part. threads: of all
// blocks of a GPU's launch, times the iterations that each runs at a time; 0: enough. waits: how
// often a thread waits for loads before it issues more.
typedef struct lm_cost_kernel {
  double bytes, instructions, threads, cold, again, waits;
} lm_cost_kernel;
lm_cost lm_cost_of_kernel(const lm_target *t, const lm_cost_kernel *k);

// ---- cost_draw.c

typedef enum lm_draw_kind {
  LM_DRAW_GREEDY,
  LM_DRAW_TEMPERATURE,
  LM_DRAW_TOP_P,
  LM_DRAW_TOP_K,
  LM_DRAW_TOP_K_AND_P,
  LM_DRAW_KINDS
} lm_draw_kind;
// A token that a GPU draws from a row of so many logits.
lm_cost lm_cost_of_draw(const lm_target *t, lm_draw_kind kind, double logits);

// ---- cost_gemm.c

typedef struct lm_cost_gemm {
  double m, n, k, batch;
  lm_dtype ab;   // of the operands
  double bytes;  // of the operands and the result
  int alignment; // bytes to which the rows of all three are aligned, at most 16
  // Of groups of rows, 0: none. m has the rows of all groups, or k if each group has a sum.
  double groups;
  bool sums, warpgroups; // instructions of warpgroups multiply, else those of warps
  bool adds;             // to the result that is in memory
} lm_cost_gemm;
lm_cost lm_cost_of_gemm(const lm_target *t, const lm_cost_gemm *g);
lm_cost_gemm lm_cost_gemm_of(const lm_plan *p, const lm_plan_step *s);

// A generated kernel of a GPU that computes a GEMM and, from the tiles of its result, further
// operations. gemm.bytes: all that the kernel moves; instructions: those of these operations.
typedef struct lm_cost_gemm_kernel {
  lm_cost_gemm gemm;
  lm_dtype c;  // of the GEMM's result
  bool stored; // which is written, too
  double instructions;
} lm_cost_gemm_kernel;
lm_cost lm_cost_of_gemm_kernel(const lm_target *t, const lm_cost_gemm_kernel *k);
lm_cost_gemm_kernel lm_cost_gemm_kernel_of(const lm_plan *p, const lm_plan_step *s);
// The seconds of the library's GEMM, the gap, and a kernel for the operations.
double lm_cost_of_gemm_apart(const lm_target *t, const lm_cost_gemm_kernel *k);

// GEMMs of equal k that one launch computes and adds to memory (codegen/cuda/joined.c), with tiles
// of as many columns as is fastest. *out_width: that number; NULL: not wanted.
lm_cost lm_cost_of_joined(const lm_target *t, const lm_cost_gemm *g, int n, int *out_width);
// The GEMM number i of a step that computes several.
lm_cost_gemm lm_cost_gemm_at(const lm_plan *p, const lm_plan_step *s, int i);

// ---- cost_attend.c

// warpgroups: its GEMMs are instructions of warpgroups, else of warps.
lm_cost lm_cost_of_attend(const lm_target *t, const lm_plan_attend *a, double bytes,
                          bool warpgroups);

// A kernel of `blocks` blocks that computes a factor of its GEMMs (pass mix_kernels), or its carry
// by GEMMs at `positions` positions (chain_kernels).
typedef struct lm_cost_mix {
  double bytes, flops, instructions, blocks, positions;
  lm_dtype dtype; // of the factors
} lm_cost_mix;
lm_cost lm_cost_of_mix(const lm_target *t, const lm_cost_mix *x);

// ---- cost_step.c

lm_cost lm_cost_of_step(const lm_target *t, const lm_plan *p, const lm_plan_step *s);
// Of the bytes that the step moves, those of parameters and KV caches that it reads: between two
// steps that read one, a function reads all others, so that no cache holds it.
double lm_cost_cold(const lm_plan_step *s);
bool lm_cost_launches(const lm_plan_step *s); // it is a launch: no loop, and no copy on a lane

// ---- cost_lanes.c

// The time of a copy between host and device, in one direction; 0 if its speed is unknown.
double lm_cost_copy(const lm_target *t, double bytes);
// The time in which a call of the function waits for such copies. out_steps: optional, the same of
// each of its WAIT steps.
double lm_cost_exposed(const lm_target *t, const lm_plan *p, const lm_plan_func *f,
                       double *out_steps);

// ---- cost.c

// A function, or a whole training step, with the iterations of all loops. seconds include the gaps
// between kernels, and `exposed`, in which kernels wait for copies between host and device of
// `copied` bytes; 0 without a machine. cold: of the bytes (lm_cost_cold).
typedef struct lm_cost_sum {
  double flops, bytes, cold, seconds, exposed, copied;
  int64_t launches;
} lm_cost_sum;
lm_cost_sum lm_cost_of_func(const lm_target *t, const lm_plan *p, const lm_plan_func *f);

// The functions that a training step calls. calls: of each in a step, on average; those of an extra
// gradient run in every n-th step. joins: a GPU starts it as a part of the graph of a micro-batch.
typedef struct lm_cost_call {
  const lm_plan_func *func;
  double calls;
  bool joins;
} lm_cost_call;
enum {
  LM_COST_CALLS = 11
};
lm_cost_sum lm_cost_of_call(const lm_target *t, const lm_plan *p, const lm_cost_call *c); // of one
int lm_cost_calls(const lm_plan *p, int64_t n_micro, lm_cost_call out[LM_COST_CALLS]);
// Of a whole step: n_micro micro-batches, of which the first one overwrites the gradients, norm,
// rates, update and copies. t may be NULL.
lm_cost_sum lm_cost_of_training(const lm_target *t, const lm_plan *p, int64_t n_micro);

#endif
