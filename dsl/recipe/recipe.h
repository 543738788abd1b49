// recipe.h - a recipe and its data section, resolved and checked against schema.def: plain data for
// compiler and runtime.
//
// Values come from the schema's defaults, then along the `extends` chain from the base on (a
// section replaces a section whole, a dotted path one field), then from --set in order. Each keeps
// where it came from and what it replaced. Quantities are in base units: tokens, steps, documents,
// bytes, seconds; percent is a fraction. Paths are joined to the folder of the file that names them
// (--set: the working directory).
#ifndef LM_RECIPE_H
#define LM_RECIPE_H
#include "dsl/syntax/program.h"

typedef struct lm_recipe lm_recipe;

// ---- amounts, calls, places of origin

typedef enum {
  LM_RECIPE_UNIT_NONE,
  LM_RECIPE_UNIT_STEPS,
  LM_RECIPE_UNIT_TOKENS,
  LM_RECIPE_UNIT_EPOCHS,
  LM_RECIPE_UNIT_SECONDS,
  LM_RECIPE_UNIT_SEQS
} lm_recipe_unit;
typedef struct lm_recipe_every {
  lm_recipe_unit unit;
  double n;
} lm_recipe_every; // NONE: never
typedef struct lm_recipe_run {
  lm_recipe_unit unit;
  double n, per_param;
} lm_recipe_run; // n + per_param * parameters

// A call of a declared function, optimizer or model. Quantities among the arguments have become
// numbers: percent a fraction; a duration (a parameter of type `steps`) a count of steps, or a
// share of LM_SCHEDULE_RUN, the name to which the caller of a schedule binds the steps of the run.
// What else they are is the evaluator's business.
#define LM_SCHEDULE_STEP "step'"
#define LM_SCHEDULE_RUN "run'"
typedef struct lm_recipe_call {
  lm_sym name; // NULL: none
  lm_loc loc;
  const lm_file *file; // whose names its arguments mean
  lm_decl_ref target;
  const ast_arg *args;
  uint32_t n_args;
} lm_recipe_call;

typedef struct lm_recipe_origin {
  lm_loc loc;                            // file 0: a default
  const char *who;                       // "default", "recipe Small", "--set"
  const char *text;                      // the value as written
  const struct lm_recipe_origin *before; // what this replaced, NULL if nothing
} lm_recipe_origin;

// What is written in the language but cannot run yet.
typedef struct lm_recipe_unsupported {
  lm_loc loc;
  const char *feature;
} lm_recipe_unsupported;

// ---- data

typedef enum {
  LM_RECIPE_TOKENIZER_BYTES,
  LM_RECIPE_TOKENIZER_BPE
} lm_tokenizer_kind;
typedef struct lm_recipe_tokenizer {
  lm_tokenizer_kind kind;
  const char *file,
      *merges;   // BPE: tokenizer.json alone, or encoder.json and vocab.bpe; NULL if absent
  int64_t train; // BPE: train one of so many tokens on the data; 0: no
  lm_loc loc, file_loc;
} lm_recipe_tokenizer;

typedef enum {
  LM_RECIPE_SOURCE_TEXT,
  LM_RECIPE_SOURCE_JSONL,
  LM_RECIPE_SOURCE_BATCHES
} lm_recipe_source_kind;
typedef struct lm_recipe_source {
  lm_sym name;
  lm_loc loc;
  lm_recipe_source_kind kind;
  const char *path;
  lm_loc path_loc;   // text, jsonl: a glob
  const char *split; // text: what separates documents; NULL: a file is one
  const char *field; // jsonl
} lm_recipe_source;

typedef enum {
  LM_RECIPE_HOLDOUT_SAMPLE,
  LM_RECIPE_HOLDOUT_TAIL
} lm_recipe_holdout_kind;
typedef struct lm_recipe_holdout {
  lm_sym name;
  lm_loc loc;
  lm_recipe_holdout_kind kind;
  int64_t docs;
  double fraction; // sample: documents; tail: of the rows
} lm_recipe_holdout;

typedef struct lm_recipe_weight {
  lm_sym source;
  double weight;
  lm_loc loc;
} lm_recipe_weight;
typedef struct lm_recipe_stage {
  double from;
  const lm_recipe_weight *mix; // NULL: rows of all sources are one set
  uint32_t n_mix;
  int64_t seq; // places in a row
  lm_loc loc;
} lm_recipe_stage;

typedef struct lm_recipe_data {
  lm_sym name;
  lm_loc loc;
  lm_recipe_tokenizer tokenizer;
  lm_recipe_source *sources;
  uint32_t n_sources, cap_sources;
  lm_recipe_holdout *holdouts;
  uint32_t n_holdouts, cap_holdouts;
  lm_recipe_stage *stages;
  uint32_t n_stages,
      cap_stages; // if there are any, the first is from 0; each with all that holds in it
  int64_t shuffle_docs;
  double bad;   // greatest share of unusable documents
  int64_t seq;  // places in a row, at the end of the run; 0: as the batches' file has it
  bool replays; // its one source is finished batches
} lm_recipe_data;

// ---- the rest

typedef enum {
  LM_RECIPE_COMPUTE_AUTO,
  LM_RECIPE_COMPUTE_F32,
  LM_RECIPE_COMPUTE_BF16
} lm_recipe_compute;
typedef struct lm_recipe_keep {
  lm_sym type;
  const char *pattern;
  lm_loc loc;
} lm_recipe_keep;
typedef struct lm_recipe_precision {
  lm_recipe_compute compute;
  lm_loc compute_loc;
  bool tf32; // products of f32 round their operands on a GPU
  lm_recipe_keep *keep;
  uint32_t n_keep, cap_keep;
} lm_recipe_precision;

typedef enum {
  LM_RECIPE_MEMORY_RECOMPUTE,
  LM_RECIPE_MEMORY_SAVE,
  LM_RECIPE_MEMORY_OFFLOAD
} lm_recipe_memory_kind;
// later ones win
typedef struct lm_recipe_memory_rule {
  lm_recipe_memory_kind kind;
  const char *pattern;
  lm_loc loc;
} lm_recipe_memory_rule;
typedef struct lm_recipe_memory {
  int64_t budget;
  lm_loc budget_loc; // bytes; 0: none
  lm_recipe_memory_rule *rules;
  uint32_t n_rules, cap_rules;
} lm_recipe_memory;

// optimizer arguments of the parameters that match; later groups win
typedef struct lm_recipe_group {
  const char *pattern;
  lm_loc loc;
  const lm_file *file;
  const ast_arg *args;
  uint32_t n_args; // all named
} lm_recipe_group;

typedef enum {
  LM_RECIPE_METRIC_LOSS,
  LM_RECIPE_METRIC_BITS_PER_BYTE,
  LM_RECIPE_METRIC_PERPLEXITY
} lm_recipe_metric;
typedef struct lm_recipe_eval {
  lm_sym name;
  lm_loc loc;
  int holdout; // index into data.holdouts; -1: all of the training part
  lm_recipe_every every;
  bool metrics[LM_RECIPE_METRIC_PERPLEXITY + 1];
} lm_recipe_eval;
typedef struct lm_recipe_watch {
  int eval;
  lm_recipe_metric metric;
} lm_recipe_watch; // eval -1: none

typedef struct lm_recipe_guard {
  int64_t skip, rollback;
  double spike;
} lm_recipe_guard; // spike 0: none
typedef struct lm_recipe_stop {
  lm_recipe_watch on;
  int64_t patience;
  double min_delta;
} lm_recipe_stop; // on.eval -1: none
typedef enum {
  LM_RECIPE_RESUME_AUTO,
  LM_RECIPE_RESUME_NEVER
} lm_recipe_resume;
typedef struct lm_recipe_save {
  const char *dir; // NULL: nothing is saved
  lm_loc loc;
  lm_recipe_every every;
  int64_t keep; // 0: all
  lm_recipe_watch best;
  lm_recipe_resume resume;
} lm_recipe_save;

typedef enum {
  LM_RECIPE_COMPILE_DEFAULT,
  LM_RECIPE_COMPILE_REDUCE_OVERHEAD,
  LM_RECIPE_COMPILE_MAX_AUTOTUNE
} lm_recipe_compile_mode;

typedef struct lm_recipe_sample {
  lm_sym name;
  lm_loc loc; // name NULL: the one without a name
  lm_recipe_every every;
  const char *prompt;
  int64_t n, top_k;
  double temperature, top_p;
  uint64_t seed;
} lm_recipe_sample;

struct lm_recipe {
  lm_ctx *c;
  const lm_program *program;
  lm_sym name;
  lm_loc loc;
  lm_decl_ref model_decl; // DC_MODEL, or the DC_MODEL_INST that `model` names
  lm_recipe_call model;   // the instance: its target is a DC_MODEL
  const char *from;       // weights to begin with; NULL: none. The target's own `from "…"`
  bool from_hf;           // through `map hf`
  lm_loc from_loc;
  const ast_items *surgery;
  const lm_file *surgery_file; // `with { … }`, NULL if none
  lm_recipe_data data;
  uint64_t seed;
  lm_recipe_run run;
  lm_loc run_loc;
  bool micro_auto;      // micro is the batch, unless a plan of that does not fit
  int64_t batch, micro; // tokens of a step and of a micro-batch; 0: as the batches' file has it
  lm_loc batch_loc, micro_loc;
  lm_recipe_call optimizer, schedule; // schedule.name NULL: constant
  double clip;                        // greatest gradient norm; 0: none
  lm_recipe_group *groups;
  uint32_t n_groups, cap_groups;
  lm_recipe_precision precision;
  lm_recipe_memory memory;
  lm_recipe_eval *evals;
  uint32_t n_evals, cap_evals;
  lm_recipe_guard guard;
  lm_recipe_stop stop;
  lm_recipe_save save;
  lm_recipe_compile_mode compile;
  double compile_budget;
  lm_loc compile_loc; // budget: seconds that max-autotune may take
  lm_recipe_sample *samples;
  uint32_t n_samples, cap_samples;
  lm_recipe_unsupported *unsupported;
  uint32_t n_unsupported, cap_unsupported;
  struct lm_settings *settings; // every value with its origin, for explain and print
};

// The recipe `name` (NULL: the only one of the first file), with the `--set` texts applied. NULL or
// errors in the context if it does not resolve; what it returns is complete as far as it could be
// read.
lm_recipe *lm_recipe_resolve(lm_ctx *c, const lm_program *p, const char *name,
                             const char *const *sets, int n_sets);

// Reports what is wrong with a data section by itself; one that others extend may lack what they
// add.
void lm_recipe_check_data(lm_ctx *c, const lm_program *p, lm_decl_ref ref);
// The call in `model NAME = CALL`; its target is NULL if it is none of a model, which is reported.
lm_recipe_call lm_recipe_model_of(lm_ctx *c, const lm_program *p, lm_decl_ref ref);

// Reports what cannot run yet.
void lm_recipe_report_unsupported(const lm_recipe *r);

// batch a multiple of micro, micro of seq: reported with the nearest legal value. resolve does
// this; call it again after filling in what only the data knows (replayed batches).
bool lm_recipe_check_batches(lm_recipe *r);

// Steps of the run, given the number of parameters and the tokens of an epoch; at least 1.
int64_t lm_recipe_steps(const lm_recipe *r, double params, double epoch_tokens);
// An `every` in steps (at least 1), 0 for never; seconds are the caller's.
int64_t lm_recipe_every_steps(const lm_recipe *r, lm_recipe_every every, double epoch_tokens);

// Every value, one a line: "optimizer.lr = 3e-4", with where it came from behind it.
void lm_recipe_print(const lm_recipe *r, bool with_origins, lm_buf *out);
// The origins of one value, or of all under it: newest first. NULL if there is no such key
// (lm_nearest in *out_near).
const lm_recipe_origin *lm_recipe_origin_find(const lm_recipe *r, const char *key,
                                              const char **out_near);
// The reference of all keys, from the schema, as Markdown.
void lm_schema_write_reference(lm_buf *out);
#endif
