// compile.h - a project compiled: its IR, its analyses and its plan. lm_compile depends on its
// arguments alone and can be repeated: the same project and spec give the same plan.
#ifndef LM_DRIVER_COMPILE_H
#define LM_DRIVER_COMPILE_H
#include "compiler/analysis/analysis.h"
#include "driver/inspect/ir_dump.h"
#include "driver/project.h"
#include "driver/run_spec.h"
#include "driver/target.h"
#include "dsl/lower/lower.h"

// Deviations of a plan from the default.
typedef struct lm_variant {
  const char *off, *on; // passes, joined by commas, that are disabled and forced; NULL: none
  int rows;             // rows of a large GEMM that are computed at a time; 0: the target's
  int points;           // points that a kernel must have to be fused; 0: the target's
} lm_variant;

typedef struct lm_compile_spec {
  uint32_t what;    // LM_LOWER_… bits: the functions
  int64_t capacity; // positions of the KV cache, for decoding
  bool request;     // decoding has the columns of a request (driver/request.h)
  lm_run_spec run;  // sizes of batches
  int rank;         // of the mesh, whose part the plan is used for
  lm_target target;
  lm_variant variant;
  int64_t recompute;    // bytes of stashes that are recomputed in addition to the profitable ones
  int64_t stash_room;   // bytes of the host's memory to which stashes may be offloaded for that
  bool less_memory;     // passes stash_operands and chunk_scan keep nothing
  bool small_tiles;     // of logits
  bool by_layer;        // lm_pass_env.by_layer
  bool no_fp8;          // no GEMM is cast to 8-bit floats, whatever the recipe says
  double fp8_margin;    // lm_fp8.margin
  int64_t memory;       // bytes that the machine has for the plan; 0: all that it has
  int64_t host_memory;  // the same of the host of a GPU
  lm_exec_options exec; // how the plan will be executed, which decides the workspace of GEMMs
  lm_dump *dump;        // receives IR; optional
} lm_compile_spec;

typedef struct lm_compiled {
  const lm_project *project;
  lm_compile_spec spec;
  lm_run_spec run; // of the spec, with steps and stages
  lm_lowered *lowered;
  lm_dtype compute;         // the type that replaces `real`
  lm_limits limits;         // of token ids and positions
  lm_row_mix row_mix;       // whether the loss mixes the rows of a micro-batch
  int64_t params;           // elements of all parameters
  const struct lm_fp8 *fp8; // GEMMs of 8-bit floats (compiler/passes/fp8/fp8.h); NULL: none
  double model_flops;       // of a micro-batch, at the sequence length of the run's end
  lm_plan *plan;
  int recomputed;    // stashes that spec.recompute has added
  int offloaded;     // the same to the host's memory
  int64_t workspace; // bytes of GEMMs, beyond the arenas
  int64_t saving;    // bytes of the copy of a checkpoint in the background, in the host's memory
} lm_compiled;

// Lowers the functions to graph IR, with their parameters.
lm_status lm_compile_lower(const lm_project *p, const lm_compile_spec *spec, lm_compiled *out);
// Runs the passes on lowered functions that report errors of a model, such as one that is not
// causal, and the analyses.
lm_status lm_compile_probe(lm_compiled *c);
// Compiles the recipe to a plan. `p` must outlive *out.
lm_status lm_compile(const lm_project *p, const lm_compile_spec *spec, lm_compiled *out);

// The target with its figures for the type of `real` (driver/target.h), and its FLOP/s alone.
lm_target lm_compiled_machine(const lm_compiled *c, int threads);
double lm_compiled_peak(const lm_compiled *c, int threads);
int64_t lm_compiled_arenas(const lm_compiled *c); // bytes of the arenas that are not on the host
// Bytes that a GPU's plan takes of the host's memory.
int64_t lm_compiled_host_memory(const lm_compiled *c);
// With the workspace and, on a CPU, the copy of a checkpoint.
int64_t lm_compiled_memory(const lm_compiled *c);
// True if checkpoints of the recipe are written in the background.
bool lm_compiled_saves_in_background(const lm_compiled *c);
enum {
  LM_PREFILL_CHUNK = 256 // positions that @prefill computes in a call
};
// The capacity of a KV cache for `positions`: rounded up, so that nearby lengths share kernels.
int64_t lm_cache_capacity(int64_t positions);
// Warns if the loss depends on the division of a step's rows into micro-batches.
void lm_row_mix_warn(const lm_compiled *c);
// Notes the former names of passes in `names`, a list joined by commas; NULL: none. option: whose
// value it is.
void lm_pass_names_note(const lm_events *e, const char *option, const char *names);
#endif
