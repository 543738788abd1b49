// session.h - from a file to a model ready to run: the steps that commands share, each building on
// those before.
//
//   open   the program and its recipe
//   data   tokenizer, rows; what of the recipe only the data knows
//   lower  graph IR of the functions that are asked for
//   plan   passes, code of kernels, memory
//   start  compiled kernels, memory
//   train  the trainer, with parameters and states of step 0
//
// Each returns a status; faults of the program are diagnostics in the context and a status without
// text.
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

// How the plan came to fit (fit.c).
typedef struct lm_fit {
  uint32_t what;
  int64_t capacity; // of the last lm_session_lower
  bool fresh;       // which has not been planned yet
  int recomputed,
      candidates;  // values computed again to fit a budget, of how many; 0: none had to be
  int64_t natural; // bytes without that
  double slowdown; // predicted, of a step's time without that
} lm_fit;

typedef struct lm_variant { // what a plan is made with that is not the default
  const char *off,
      *on; // passes left out and passes asked for (--disable-pass, --enable-pass); NULL: none
  // of a large product at a time (pass chunk), that a kernel has to have (pass fuse); 0: as the
  // target says
  int rows, places;
} lm_variant;

typedef struct lm_tuned { // how steps are planned and products computed (tuned.h)
  lm_variant step;
  // what the plan is a variant by, times as fast as the default; 0: none was looked for
  double step_gain;
  bool recalled;                   // all of it is that of the run that goes on
  double spent;                    // seconds, of the budget
  lm_gemm_tilings cuts;            // on the CPU; none: by default
  struct lm_cuda_choices *choices; // on a GPU; NULL: by default
  int products, measured,
      chosen; // all; measured for this session; computed otherwise than by default
} lm_tuned;

typedef struct lm_session {
  lm_ctx *ctx;
  const lm_events *events; // optional
  lm_target target;        // set before it is planned; the CPU if not
  int threads;             // the same; 0: as many as there are cores
  lm_dump dump;
  lm_timeline *timeline; // what a run is watched by; NULL: nobody looks
  lm_variant variant;
  const char *dump_dir, *load_dir; // of --dump-dir and --load-dir, NULL: none
  const struct lm_bundle
      *bundle; // set before it is opened: the program of a run folder; NULL: the user's file
  // set before there is data: the folder of the run that goes on, whose learned vocabulary holds;
  // NULL: none does
  const char *goes_on;
  lm_program *program;
  const lm_recipe *recipe;
  lm_tokenizer *tokenizer;
  lm_session_file tokenizer_files[2];
  int n_tokenizer_files; // what it was made from
  lm_session_file
      tokenizer_config; // which says what ends a document; name NULL: none stood beside them
  lm_data *data;        // NULL until it is opened
  lm_run_spec run;
  lm_lowered *lowered;
  lm_limits limits;
  lm_rows meeting;    // whether rows of a micro-batch meet in the loss
  int64_t params;     // elements of all parameters
  int64_t last_step;  // of the steps that are executed; 0: all of the run
  double model_flops; // of a micro-batch, at the end of the run
  lm_plan *plan;
  lm_fit fit;
  lm_tuned tuned;
  lm_exec *exec;
  lm_trainer *trainer;
} lm_session;

// A recipe and its overrides, "KEY = VALUE" each.
typedef struct lm_recipe_choice {
  const char *path;   // of the program's main file
  const char *recipe; // its name; NULL: the file has one
  const char *const *sets;
  int n_sets;
} lm_recipe_choice;

// Loads the program and resolves the recipe. `ctx` and `events` must outlive the session.
lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from);
lm_status lm_session_tokenizer(lm_session *s);
lm_status lm_session_data(lm_session *s);
// Sizes of batches without reading text: opens the data only if they stand in its file.
lm_status lm_session_sizes(lm_session *s);
// what: LM_LOWER_…; capacity: places of the cache, for decoding.
lm_status lm_session_lower(lm_session *s, uint32_t what, int64_t capacity);
// All that a run of the recipe calls: steps, evaluations, samples of at least so many places. A
// prompt counts as many tokens as it has bytes, as text need not be read to know that.
lm_status lm_session_lower_run(lm_session *s, int64_t places);
// What only passes can refuse in a module that was lowered: a model that looks ahead. For `check`,
// which goes no further.
lm_status lm_session_probe(const lm_session *s, lm_module *m);
// Takes the results of pass analyze from the lowered module.
void lm_session_analyzed(lm_session *s);
// Warns of a loss that depends on how rows are dealt to micro-batches, where a step has several.
void lm_session_rows_warn(const lm_session *s);
// Fits the plan into the budget (fit.c): may lower again, with another micro-batch, and so change
// sizes.
lm_status lm_session_plan(lm_session *s);
struct lm_recompute;
lm_status lm_session_plan_once(lm_session *s, struct lm_recompute *recompute);
lm_exec_options lm_session_exec_options(const lm_session *s); // but for what `start` adds
lm_status lm_session_start(lm_session *s,
                           const lm_exec_options *o); // o: its timeline and dump_dir; may be NULL
// Seconds of one run of a function of the plan: the best of some, at least two after the first, for
// about so long; 0: there is none.
lm_status lm_session_func_time(const lm_session *s, const char *name, double about, double *out);
lm_status lm_session_weights(lm_session *s); // first values, or those that the model is `from`
lm_status lm_session_train(lm_session *s);   // with weights and states at step 0
void lm_session_close(lm_session *s);

// Token and position numbers of the data against what the model's tables hold.
lm_status lm_session_check_ids(lm_session *s);
lm_status lm_session_check_ids_of_recipe(
    lm_session *s); // as far as the recipe tells, for `check`, which reads no text
// Places to plan the cache for, so that nearby lengths share kernels.
int64_t lm_session_capacity(int64_t places);
int64_t lm_session_arenas(const lm_session *s); // bytes of all arenas
int64_t lm_session_workspace(
    const lm_session *s); // bytes beside them: scratch of products, which are made to be asked
int64_t lm_session_memory(const lm_session *s);      // both
const char *lm_session_compute(const lm_session *s); // what `real` is: "f32", "bf16"
#endif
