// session.h - a program on its way to a running model. Commands share these steps, each of which
// needs the ones before:
//
//   open   the program and its recipe
//   data   the tokenizer, the rows, and sizes that only the data knows
//   lower  the graph IR of the wanted functions
//   plan   passes, code of kernels, layout of memory
//   start  compiled kernels, allocated memory
//   train  the trainer, with parameters and optimizer state of step 0
//
// Each returns a status. Errors in the program are diagnostics in the context and an LM_USER status
// without text.
#ifndef LM_DRIVER_SESSION_H
#define LM_DRIVER_SESSION_H
#include "compiler/analysis/analysis.h"
#include "dsl/lower/lower.h"
#include "driver/events.h"
#include "driver/inspect/cost.h"
#include "driver/inspect/ir_dump.h"
#include "driver/run_spec.h"
#include "driver/target.h"
#include "runtime/cpu/gemm.h"
#include "runtime/train/trainer.h"

typedef struct lm_session_file {
  const char *name;
  lm_buf text;
} lm_session_file;

// How the plan was made to fit its memory limit (fit.c).
typedef struct lm_fit {
  uint32_t what; // with capacity: the arguments of the last lm_session_lower
  int64_t capacity;
  bool fresh;                 // that module has not been planned yet
  int recomputed, candidates; // stashes that are recomputed to fit, and how many could be
  int64_t natural;            // bytes of the plan that recomputes none of them
  double slowdown;            // predicted time of a step, relative to that plan
} lm_fit;

// Deviations of a plan from the default.
typedef struct lm_variant {
  const char *off,
      *on;    // names of passes, joined by commas, that are disabled and forced; NULL: none
  int rows;   // rows of a large GEMM that are computed at a time; 0: the target's
  int places; // points that a kernel must have to be fused; 0: the target's
} lm_variant;

// What max-autotune found (tune/tune.h).
typedef struct lm_tuned {
  lm_variant step;
  double step_gain;                // speedup of that variant; 0: none was searched for
  bool recalled;                   // all of it is read from the run that is resumed
  double spent;                    // seconds of the budget
  lm_gemm_tilings tilings;         // of GEMMs on the CPU; empty: the default ones
  struct lm_cuda_choices *choices; // of algorithms on a GPU; NULL: the default ones
  int gemms;                       // all of the plan
  int measured;                    // by this session
  int chosen;                      // with another tiling or algorithm than the default
} lm_tuned;

typedef struct lm_session {
  lm_ctx *ctx;
  const lm_events *events; // optional

  // Set by the caller before the session is planned.
  lm_target target;      // zero: the CPU
  int threads;           // 0: one for each core
  lm_variant variant;    // zero: the default plan
  lm_dump dump;          // IR to print after passes
  lm_timeline *timeline; // records kernels; optional
  const char *dump_dir;  // folder that receives the sources of kernels; optional
  const char *load_dir;  // folder of kernel sources to use; optional

  // The program, its recipe and its data.
  const struct lm_bundle *bundle; // set before it is opened: the program is in a run folder
  const char *resumed_run;        // set before the data is opened: a folder with its vocabulary
  lm_program *program;
  const lm_recipe *recipe;
  lm_tokenizer *tokenizer;
  lm_session_file tokenizer_files[2]; // the files that it was made from
  int n_tokenizer_files;
  lm_session_file tokenizer_config; // names the end of a document; name NULL: there is none
  lm_data *data;                    // NULL until it is opened
  lm_run_spec run;

  // Compilation.
  lm_lowered *lowered;
  lm_limits limits;   // of token ids and positions
  lm_rows row_mix;    // whether the loss mixes the rows of a micro-batch
  int64_t params;     // elements of all parameters
  double model_flops; // of a micro-batch, at the sequence length of the run's end
  lm_plan *plan;
  lm_fit fit;
  lm_tuned tuned;

  // Execution.
  int64_t last_step; // of the steps that are executed; 0: the last step of the run
  lm_exec *exec;
  lm_trainer *trainer;
} lm_session;

// A recipe of a file, and its overrides.
typedef struct lm_recipe_choice {
  const char *path;   // of the program's main file
  const char *recipe; // its name; NULL: the file has one
  lm_recipe_overrides overrides;
} lm_recipe_choice;

lm_status lm_mode_check(const char *mode); // LM_USER unless it is a value of --mode
// Loads the program and resolves the recipe. `ctx` and `events` must outlive the session.
lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from);
lm_status lm_session_tokenizer(lm_session *s);
lm_status lm_session_data(lm_session *s);
// Sizes of batches. Opens the data only if finished batches fix the sizes; reads no text.
lm_status lm_session_sizes(lm_session *s);
// what: LM_LOWER_… bits; capacity: positions of the KV cache, for decoding.
lm_status lm_session_lower(lm_session *s, uint32_t what, int64_t capacity);
// Lowers the functions of a run: steps, evaluations, and samples of at least `positions`. A prompt
// counts one token for each byte, an upper bound that needs no tokenizer.
lm_status lm_session_lower_run(lm_session *s, int64_t positions);
// Runs the passes on `m` that report errors of a model, such as a model that is not causal. For
// `lmc check`, which does not plan.
lm_status lm_session_probe(const lm_session *s, lm_module *m);
// Takes the results of pass analyze from the lowered module.
void lm_session_analyzed(lm_session *s);
// Warns if the loss depends on the division of a step's rows into micro-batches.
void lm_session_rows_warn(const lm_session *s);
// Notes the former names of passes in `names`, a list joined by commas; NULL: none. option: whose
// value it is.
void lm_pass_names_note(const lm_events *e, const char *option, const char *names);
// Plans within the memory limit (fit.c). May lower again with another micro-batch, which changes
// `run`.
lm_status lm_session_plan(lm_session *s);
struct lm_recompute;
lm_status lm_session_plan_once(lm_session *s, struct lm_recompute *recompute);
lm_exec_options lm_session_exec_options(const lm_session *s); // without timeline and folders
// o: only timeline and dump_dir are used; optional.
lm_status lm_session_start(lm_session *s, const lm_exec_options *o);
// Seconds of one call of a plan's function: the shortest of the calls made in about `about`
// seconds, at least two after a first one that does not count. 0 if the plan has no such function.
lm_status lm_session_func_time(const lm_session *s, lm_func_id id, int64_t seq, double about,
                               double *out);
// Initial parameters, or those of the model's `from`.
lm_status lm_session_weights(lm_session *s);
lm_status lm_session_train(lm_session *s);
void lm_session_close(lm_session *s);

// Reports token ids and positions of the data that exceed the model's tables.
lm_status lm_session_check_ids(lm_session *s);
// The same as far as the recipe alone determines it; reads no text.
lm_status lm_session_check_ids_of_recipe(lm_session *s);
// Positions to plan a KV cache for: rounded up, so that nearby lengths share kernels.
int64_t lm_session_capacity(int64_t positions);
int64_t lm_session_arenas(const lm_session *s);      // bytes of all arenas
int64_t lm_session_workspace(const lm_session *s);   // bytes of workspace of GEMMs
int64_t lm_session_memory(const lm_session *s);      // the sum of both
const char *lm_session_compute(const lm_session *s); // the type of `real`: "f32", "bf16"
#endif
