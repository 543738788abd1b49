// recipe.h - a recipe and its data section, resolved and checked against schema.def.
//
// Values come from the defaults of the schema, then from the chain of `extends`, base first (a
// section replaces the whole section, a dotted path replaces one field), then from --set in order.
// Each value records its origin and the value that it replaced. Quantities are in base units:
// tokens, steps, documents, bytes, seconds; percent is a fraction. A relative path is joined to the
// folder of the file that contains it; a path of --set is relative to the working directory.
// Everything lives in the arena of the context.
#ifndef LM_RECIPE_H
#define LM_RECIPE_H
#include "contract/mesh.h"
#include "contract/tokenizer.h"
#include "dsl/syntax/program.h"

typedef struct lm_recipe lm_recipe;

// ---- amounts, calls, origins

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
} lm_recipe_every; // unit NONE: never

// n + per_param * (number of parameters)
typedef struct lm_recipe_run {
  lm_recipe_unit unit;
  double n, per_param;
} lm_recipe_run;

// Names to which the caller of a schedule binds the step and the number of steps of the run. A
// program cannot contain them.
#define LM_SCHEDULE_STEP "step'"
#define LM_SCHEDULE_RUN "run'"

// A call of a declared function, optimizer or model. Quantities in the arguments are converted to
// numbers: percent to a fraction, a duration (a parameter of type `steps`) to a number of steps or
// to a multiple of LM_SCHEDULE_RUN. All other expressions are evaluated by dsl/elab.
typedef struct lm_recipe_call {
  lm_sym name; // NULL: none
  lm_loc loc;
  const lm_file *file; // the scope of the arguments
  lm_decl_ref target;
  const ast_arg *args;
  uint32_t n_args;
  // Of an optimizer, by parameter: the call that is its argument, if it has the type `optimizer`.
  const struct lm_recipe_call *inner;
} lm_recipe_call;

// True if a parameter has the type `optimizer`.
bool lm_is_optimizer_param(const ast_param *p);

typedef struct lm_recipe_origin {
  lm_loc loc;                            // file 0: a default
  const char *who;                       // "default", "recipe Small", "--set", "--steps"
  const char *text;                      // the value in the syntax of the language
  const struct lm_recipe_origin *before; // the origin of the replaced value; NULL if there was none
} lm_recipe_origin;

// A feature that the language names and that is not available yet.
typedef struct lm_recipe_unsupported {
  lm_loc loc;
  const char *feature;
} lm_recipe_unsupported;

// ---- data

typedef struct lm_recipe_tokenizer {
  lm_tokenizer_kind kind;
  const char *file,
      *merges;   // tokenizer.json or tokenizer.model; BPE: or encoder.json and vocab.bpe
  int64_t train; // BPE, UNIGRAM: vocabulary size to train on the data; 0: read from files
  lm_loc loc, file_loc;
} lm_recipe_tokenizer;

typedef enum {
  LM_RECIPE_SOURCE_TEXT,
  LM_RECIPE_SOURCE_JSONL,
  LM_RECIPE_SOURCE_BATCHES,
  LM_RECIPE_SOURCE_CHAT,
  LM_RECIPE_SOURCE_PROMPT,
  LM_RECIPE_SOURCE_PAIRS,
  LM_RECIPE_SOURCE_SEQ2SEQ
} lm_recipe_source_kind;
typedef struct lm_recipe_source {
  lm_sym name;
  lm_loc loc;
  lm_recipe_source_kind kind;
  const char *path; // text, jsonl: a glob
  lm_loc path_loc;
  const char *split; // text: the separator of documents; NULL: a file is one document
  const char
      *field; // jsonl: the field that holds the text; chat: the messages; NULL: the usual one
  // chat, prompt: a name or the path of a file, as written and joined; NULL: none is named
  const char *template, *template_path;
  lm_loc template_loc;
  unsigned train_on;               // chat: bits of the roles in the order of the schema
  const char *prompt, *completion; // prompt, seq2seq: fields; pairs: prompt
  const char *start;               // seq2seq: the text of the first token
  lm_loc start_loc;
  const char *chosen, *rejected; // pairs: fields
  int64_t date;                  // chat, prompt: seconds since 1970; 0: none
} lm_recipe_source;
typedef enum {
  LM_RECIPE_LONG_SPLIT,
  LM_RECIPE_LONG_DROP,
  LM_RECIPE_LONG_CUT,
  LM_RECIPE_LONG_ERROR
} lm_recipe_long;

typedef enum {
  LM_RECIPE_HOLDOUT_SAMPLE,
  LM_RECIPE_HOLDOUT_TAIL
} lm_recipe_holdout_kind;
typedef struct lm_recipe_holdout {
  lm_sym name;
  lm_loc loc;
  lm_recipe_holdout_kind kind;
  int64_t docs;    // sample: number of documents
  double fraction; // tail: share of the rows
} lm_recipe_holdout;

typedef struct lm_recipe_weight {
  lm_sym source;
  double weight;
  lm_loc loc;
} lm_recipe_weight;
typedef struct lm_recipe_stage {
  double from;                 // begin, as a fraction of the run
  const lm_recipe_weight *mix; // NULL: the rows of all sources are one set
  uint32_t n_mix;
  int64_t seq; // sequence length in tokens
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
  // The first stage begins at 0. Each stage is complete: settings that it does not name are copied
  // from the stage before.
  lm_recipe_stage *stages;
  uint32_t n_stages, cap_stages;
  int64_t shuffle_docs;
  double bad;     // maximum share of unusable documents
  int64_t seq;    // sequence length in tokens at the end of the run; 0: from the file of batches
  bool replays;   // the only source is prepared batches
  bool chats;     // some source is a chat, a prompt, pairs or seq2seq
  bool seq2seq;   // all sources are seq2seq
  int64_t source; // of these: tokens of the sources of a row
  bool pairs;     // all sources are pairs
  bool plain;     // some source is plain text, whose documents have no fields
  int64_t docs;   // documents of a row at most; 0: any number
  lm_recipe_long long_documents;
} lm_recipe_data;

// ---- the rest

typedef enum {
  LM_RECIPE_COMPUTE_AUTO,
  LM_RECIPE_COMPUTE_F32,
  LM_RECIPE_COMPUTE_BF16,
  LM_RECIPE_COMPUTE_F16
} lm_recipe_compute;
typedef enum {
  LM_RECIPE_SCALE_DELAYED,
  LM_RECIPE_SCALE_CURRENT,
  LM_RECIPE_SCALE_BLOCK,
  LM_RECIPE_SCALE_MX
} lm_recipe_scale;
// matmul = fp8(…)
typedef struct lm_recipe_fp8 {
  bool on;
  bool narrow_forward, narrow_backward; // e4m3; else e5m2
  lm_recipe_scale scale;
  bool head; // GEMMs of the vocabulary are cast too
  lm_loc loc;
} lm_recipe_fp8;
typedef enum {
  LM_RECIPE_MOMENTS_F32,
  LM_RECIPE_MOMENTS_BF16,
  LM_RECIPE_MOMENTS_DYN8,
  LM_RECIPE_MOMENTS_E4M3
} lm_recipe_moments;
typedef struct lm_recipe_keep {
  lm_sym type;
  const char *pattern;
  lm_loc loc;
} lm_recipe_keep;
typedef struct lm_recipe_precision {
  lm_recipe_compute compute;
  lm_loc compute_loc;
  bool tf32; // GEMMs of f32 round their operands to TF32 on a GPU
  lm_recipe_fp8 fp8;
  bool attend_fp8; // attention of 8-bit floats
  lm_loc attend_loc;
  bool reduce_bf16; // ranks send gradients in bf16
  bool library;     // MPI or NCCL adds the terms of ranks, in its own order
  lm_loc order_loc;
  bool master_bf16; // trained parameters of type `real` are stored in bf16
  lm_recipe_moments moments;
  int64_t moments_block; // elements with a common scale; 0: there are no scales
  lm_recipe_keep *keep;
  uint32_t n_keep, cap_keep;
} lm_recipe_precision;

typedef enum {
  LM_RECIPE_MEMORY_RECOMPUTE,
  LM_RECIPE_MEMORY_SAVE,
  LM_RECIPE_MEMORY_OFFLOAD
} lm_recipe_memory_kind;
// Later rules override earlier ones.
typedef struct lm_recipe_memory_rule {
  lm_recipe_memory_kind kind;
  const char *pattern;
  lm_loc loc;
} lm_recipe_memory_rule;
typedef struct lm_recipe_memory {
  int64_t budget; // bytes; 0: no limit
  lm_loc budget_loc;
  bool states_on_host;      // `offload states`
  bool masters_on_host;     // `offload masters`
  bool activations_on_host; // `offload activations`: as the limit requires
  lm_loc offload_loc;       // of the first `offload`
  lm_loc masters_loc;       // of `offload masters`
  lm_loc pattern_loc;       // of the first `offload @pattern`
  const char *pattern;      // its text
  lm_recipe_memory_rule *rules;
  uint32_t n_rules, cap_rules;
} lm_recipe_memory;

// A tensor axis that the mesh divides.
typedef struct lm_recipe_shard {
  const char *name;
  lm_loc loc;
} lm_recipe_shard;
typedef struct lm_recipe_pattern {
  const char *text;
  lm_loc loc;
} lm_recipe_pattern;
// The axes of the mesh that have several ranks, outermost first, whatever the order in the recipe.
typedef struct lm_recipe_parallel {
  struct {
    const char *name; // "dp"
    int size;
    lm_recipe_shard *shard;
    uint32_t n_shard;
    bool sequence; // divides the positions, behind the other axes
    int zero;      // the stage of ZeRO along this axis; 0: none
  } axis[LM_MESH_AXES];
  int n;      // 0: one process
  int ranks;  // the sizes multiplied
  bool heads; // cp divides attention by heads
  // The schedule of the pipeline computes the backward pass of a micro-batch as soon as its loss is
  // known; GPipe's, if not set.
  bool ticks;
  int chunks;               // stages of a rank, with the schedule `interleaved`; else 0
  bool ring;                // ranks along cp pass keys and values on
  lm_recipe_pattern *whole; // parameters that ZeRO does not divide
  uint32_t n_whole, cap_whole;
  lm_loc loc;
} lm_recipe_parallel;
int lm_recipe_mesh_size(const lm_recipe *r, const char *axis); // 1: the mesh has no such axis
int lm_recipe_row_ranks(
    const lm_recipe *r); // ranks that compute other rows, of which ZeRO has parts
// The axis of which a mesh may have fewer ranks: dp, or fsdp in a mesh without dp.
const char *lm_recipe_rows_axis(const lm_recipe *r);
// The recipe's mesh with as many ranks along that axis as make `ranks` ranks in all, "(dp = 1, tp =
// 2)"; NULL: no number does.
const char *lm_recipe_mesh_of(lm_arena *a, const lm_recipe *r, int ranks);

// The optimizer of the parameters that match, and arguments of it. Later groups override earlier
// ones.
typedef struct lm_recipe_group {
  const char *pattern;
  lm_loc loc;
  const lm_file *file;
  const ast_arg *args;
  uint32_t n_args;          // all named
  lm_recipe_call optimizer; // name NULL: the group has none
} lm_recipe_group;

typedef enum {
  LM_RECIPE_METRIC_LOSS,
  LM_RECIPE_METRIC_BITS_PER_BYTE,
  LM_RECIPE_METRIC_PERPLEXITY
} lm_recipe_metric;
typedef struct lm_recipe_eval {
  lm_sym name;
  lm_loc loc;
  int holdout; // index into data.holdouts; -1: all training data
  lm_recipe_every every;
  bool metrics[LM_RECIPE_METRIC_PERPLEXITY + 1];
} lm_recipe_eval;
typedef struct lm_recipe_watch {
  int eval;
  lm_recipe_metric metric;
} lm_recipe_watch; // eval: index into evals; -1: none

typedef struct lm_recipe_guard {
  int64_t skip, rollback;
  double spike;
} lm_recipe_guard; // spike 0: no limit
typedef struct lm_recipe_stop {
  lm_recipe_watch on;
  int64_t patience;
  double min_delta;
} lm_recipe_stop; // on.eval -1: no early stopping
typedef enum {
  LM_RECIPE_RESUME_AUTO,
  LM_RECIPE_RESUME_NEVER
} lm_recipe_resume;
typedef enum {
  LM_RECIPE_BACKGROUND_AUTO,
  LM_RECIPE_BACKGROUND_ON,
  LM_RECIPE_BACKGROUND_OFF
} lm_recipe_background;
typedef struct lm_recipe_save {
  const char *dir; // NULL: nothing is saved
  lm_loc loc;
  lm_recipe_every every;
  int64_t keep; // number of checkpoints; 0: all
  lm_recipe_watch best;
  lm_recipe_resume resume;
  int64_t max_file; // bytes of tensors in a file
  lm_recipe_background background;
} lm_recipe_save;

typedef enum {
  LM_RECIPE_COMPILE_DEFAULT,
  LM_RECIPE_COMPILE_REDUCE_OVERHEAD,
  LM_RECIPE_COMPILE_MAX_AUTOTUNE
} lm_recipe_compile_mode;

typedef struct lm_recipe_sample {
  lm_sym name; // NULL: a section without a name
  lm_loc loc;
  lm_recipe_every every;
  const char *prompt;
  const char *source; // the text that the model encodes; NULL: none
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
  const char *from;       // initial weights, `from "PATH"` of the instance; NULL: none
  bool from_hf;           // the weights have the names and layouts of `map hf`
  lm_loc from_loc;
  const char *peft; // a folder of PEFT: initial values of the adapters; NULL: none
  lm_loc peft_loc;
  const ast_items *edits; // `with { ... }` of the instance; NULL if none
  const lm_file *edits_file;
  lm_recipe_data data;
  uint64_t seed;
  lm_recipe_run run;
  lm_loc run_loc;
  bool micro_auto;      // micro is the batch if its plan fits in memory, else smaller
  int64_t batch, micro; // tokens in a step and in a micro-batch; 0: from the file of batches
  lm_loc batch_loc, micro_loc;
  lm_recipe_call optimizer, schedule; // schedule.name NULL: a constant learning rate
  double clip;                        // maximum gradient norm; 0: no clipping
  lm_recipe_group *groups;
  uint32_t n_groups, cap_groups;
  lm_recipe_precision precision;
  lm_recipe_memory memory;
  lm_recipe_parallel parallel;
  lm_recipe_eval *evals;
  uint32_t n_evals, cap_evals;
  lm_recipe_guard guard;
  lm_recipe_stop stop;
  lm_recipe_save save;
  lm_recipe_compile_mode compile;
  double compile_budget; // time limit of max-autotune in seconds
  lm_loc compile_loc;
  lm_recipe_sample *samples;
  uint32_t n_samples, cap_samples;
  lm_recipe_unsupported *unsupported;
  uint32_t n_unsupported, cap_unsupported;
  struct lm_settings *settings; // every value with its origin
};

// Values of options that replace values of a recipe.
typedef struct lm_recipe_overrides {
  const char *const *sets; // of --set: "KEY = VALUE", applied in order
  int n_sets;
  int64_t steps;    // of --steps: the length of the run; 0: the recipe's
  const char *mode; // of --mode: the name in `compile = mode(NAME)`; NULL: the recipe's
  int ranks; // processes of the run: a recipe without a mesh has one of them along dp; 0: unknown
} lm_recipe_overrides;
lm_status lm_recipe_mode_check(const char *mode); // LM_USER unless it is a value of --mode

// Resolves the recipe `name` of the first file (NULL: the only recipe) with overrides (NULL: none).
// Returns NULL if there is no such recipe. All other mistakes are errors in the context, and the
// recipe that is returned then holds the values that could be read.
lm_recipe *lm_recipe_resolve(lm_ctx *c, const lm_program *p, const char *name,
                             const lm_recipe_overrides *overrides);

// Reports the errors of every recipe of the first file, where a syntax error elsewhere keeps them
// from being used. Keys that could not be parsed are not reported as missing.
void lm_recipe_check_all(lm_ctx *c, const lm_program *p);
// Checks a data section that no recipe uses. A section without a source is not an error, because
// another section may extend it.
void lm_recipe_check_data(lm_ctx *c, const lm_program *p, lm_decl_ref ref);
// The call in `model NAME = CALL`. Its target is NULL after an error.
lm_recipe_call lm_recipe_model_of(lm_ctx *c, const lm_program *p, lm_decl_ref ref);

// Reports each of r->unsupported as an error.
void lm_recipe_report_unsupported(const lm_recipe *r);

// Checks that batch is a multiple of micro and micro of the sequence length; an error names the
// nearest multiple. lm_recipe_resolve calls it; call it again after sizes are filled in from a file
// of batches.
bool lm_recipe_check_batches(const lm_recipe *r);

// The steps of the run, at least 1, given the number of parameters and the tokens in an epoch.
int64_t lm_recipe_steps(const lm_recipe *r, double params, double epoch_tokens);
// An interval in steps, at least 1; 0 for never and for seconds, which the caller measures.
int64_t lm_recipe_every_steps(const lm_recipe *r, lm_recipe_every every, double epoch_tokens);

// Prints every value on a line, such as "optimizer = adamw(lr = 3e-4)", optionally with its origin.
void lm_recipe_print(const lm_recipe *r, bool with_origins, lm_buf *out);
// The origins of the value of `key`, the newest first. NULL if there is no such key; then *out_near
// is a similar key, or NULL.
const lm_recipe_origin *lm_recipe_origin_find(const lm_recipe *r, const char *key,
                                              const char **out_near);
// Writes docs/recipe.md, the reference of all keys.
void lm_schema_write_reference(lm_buf *out);
#endif
