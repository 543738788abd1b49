// session.h - the state of a command: the project, its data, the choices of a micro-batch and of
// tuning, the compiled plan, and the loaded kernels and arenas. The parts are independent of each
// other: a project never changes (project.h), lm_compile is a function of a project and a spec
// (compile.h), and several sessions may be used alternately in one process.
//
//   open      the program and its recipe
//   data      the tokenizer, the rows, and sizes that only the data determines
//   compile   the plan of the wanted functions, within the memory limit
//   start     compiled kernels, allocated memory
//   train     the trainer, with parameters and optimizer state of step 0
//
// Each step needs the ones before it. Errors in the program are diagnostics in the context and an
// LM_USER status without text.
#ifndef LM_DRIVER_SESSION_H
#define LM_DRIVER_SESSION_H
#include "driver/execute.h"
#include "driver/fit.h"
#include "driver/rank_rows.h"
#include "compiler/plan/cost.h"
#include "runtime/comm/comm.h"
#include "runtime/cpu/gemm.h"
#include "runtime/template/template.h"

// Files that are copied with a tokenizer's own files, from an imported model to its runs and their
// exports.
typedef enum {
  LM_COMPANION_TOKENIZER_CONFIG,  // names the end-of-document token
  LM_COMPANION_GENERATION_CONFIG, // of an imported model
  LM_COMPANION_TOKEN_IDS,         // the special ids of its config.json: {"bos_token_id": 1, …}
  LM_COMPANION_CHAT_TEMPLATE,
  LM_COMPANIONS
} lm_companion;
extern const char *const LM_COMPANION_NAMES[LM_COMPANIONS];

typedef struct lm_session_file {
  const char *name;
  lm_buf text;
} lm_session_file;

// The results of max-autotune (tune/tune.h).
typedef struct lm_tuning {
  lm_variant step;
  double step_gain;                // speedup of that variant; 0: none was searched for
  bool recalled;                   // all of it is read from the run that is resumed
  double spent;                    // seconds of the budget
  lm_gemm_tilings tilings;         // of GEMMs on the CPU; empty: the default ones
  struct lm_cuda_choices *choices; // of algorithms on a GPU; NULL: the default ones
  int gemms;                       // all of the plan
  int measured;                    // by this session
  int chosen;                      // with another tiling or algorithm than the default
} lm_tuning;

// Bytes of the caches of decoding, of one row.
typedef struct lm_decode_bytes {
  double position;   // of KV caches, for each position
  double constant;   // of ring caches, windows and carries, for any number of positions
  int64_t positions; // of the cache that was considered; 0: the model does not decode
} lm_decode_bytes;

typedef struct lm_session {
  // Set by the caller before the session is compiled.
  lm_target target;      // zero: this CPU, which lm_session_spec fills in
  int threads;           // 0: one for each core
  lm_variant variant;    // zero: the default plan
  lm_dump dump;          // IR to print after passes
  lm_timeline *timeline; // records kernels; optional
  const char *dump_dir;  // folder that receives the sources of kernels; optional
  const char *load_dir;  // folder of kernel sources to use; optional
  int64_t last_step;     // of the steps that are executed; 0: the last step of the run
  bool less_memory;      // without stashes of pass stash_operands, as this run began
  bool small_tiles;      // tiles of logits are small, as this run began
  bool by_layer;         // gradients of weights are computed layer by layer, as this run began
  bool resumes;          // the parameters come from a checkpoint, not from the model's `from`
  // Compiles the part of one rank, if the recipe has a mesh.
  bool divides;
  bool request; // decoding has the columns of a request (driver/request.h)
  // Bytes that this rank may take of its machine's memory, and of the host's; 0: all that it has.
  int64_t memory, host_memory;

  lm_project project;
  lm_comm *comm; // the ranks of this run; NULL: one process

  // Data of the recipe.
  const char *resumed_run; // set before the data is opened: a folder with its vocabulary
  lm_tokenizer *tokenizer;
  lm_session_file tokenizer_files[2]; // the files that it was made from
  int n_tokenizer_files;
  lm_session_file companions[LM_COMPANIONS]; // files beside those; name NULL: there is none
  lm_template *template;                     // of chats; NULL: none is needed, or not opened yet
  lm_data *data;                             // NULL until it is opened

  // Choices.
  lm_run_spec run;
  lm_fit fit;
  lm_tuning tuning;

  lm_compiled compiled;
  lm_execution execution;
  lm_rank_rows ranks;           // of lm_check_run, if the recipe has a mesh
  double bubble;                // the same (lm_run_bubble)
  lm_decode_bytes decode_bytes; // of lm_check_run
} lm_session;

// `ctx` and `events` must outlive the session.
lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from);
lm_status lm_session_tokenizer(lm_session *s);
lm_status lm_session_data(lm_session *s);
// Sets the sizes of batches. Opens the data only if prepared batches determine the sizes; reads no
// text.
lm_status lm_session_sizes(lm_session *s);
// The spec for the present choices. what: LM_LOWER_… bits; capacity: positions of the KV cache, for
// decoding.
lm_compile_spec lm_session_spec(lm_session *s, uint32_t what, int64_t capacity);
// Compiles within the memory limit (fit.h) and takes over the micro-batch that was chosen.
lm_status lm_session_compile(lm_session *s, uint32_t what, int64_t capacity);
// Compiles the functions of a run: steps, evaluations, and samples of at least `positions`. A
// prompt counts one token for each byte, an upper bound that needs no tokenizer.
lm_status lm_session_compile_run(lm_session *s, int64_t positions);
// o: only timeline and dump_dir are used; optional.
// True if every sample of the recipe has a source, or it has none: decoding may have the columns of
// a request.
bool lm_session_requests(const lm_session *s);
lm_status lm_session_start(lm_session *s, const lm_exec_options *o);
lm_status lm_session_train(lm_session *s);
void lm_session_close(lm_session *s);

// Reports token ids and positions of the data that exceed the model's tables.
lm_status lm_session_check_ids(lm_session *s);
// The same as far as the recipe alone determines it; reads no text.
lm_status lm_session_check_ids_of_recipe(lm_session *s);
// Reports a tokenizer whose first tokens are not those of the run or model that the weights are
// from; nothing if that has no tokenizer.json.
lm_status lm_session_check_vocabulary(lm_session *s);
// Bytes of arenas, of the workspace of GEMMs and, on a CPU, of the copy of a checkpoint.
int64_t lm_session_memory(const lm_session *s);
const char *lm_session_compute(const lm_session *s); // the type of `real`: "f32", "bf16"
#endif
