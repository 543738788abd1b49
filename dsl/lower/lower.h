// lower.h - lowers a resolved program to graph IR, with the data about it that the runtime needs.
//
// One declaration gives all functions of the run. b: rows, t: positions, "columns": tok, pos, seg.
//
//   loss     columns, next [b, t] int; w [b, t] f32; step, row; further columns "data.NAME"
//            -> sum, weight, metrics. Training, with dropout.
//   loss.N   the same over rows of N positions, with the same number of positions in all.
//   eval     the same without dropout, and also xent.sum and xent.weight: the cross-entropy of the
//            logits of `apply` at next, if the model has `apply`.
//   apply    columns -> logits [b, t, vocab], with the sequence length of the first step.
//   prefill  columns [1, t], at -> logits, with KV caches of `capacity` positions. t is known at
//            run time and at most `chunk`. Pass narrow leaves the logits of the last position.
//   decode   the same with t = 1.
//   request  the same, and the columns without an axis of positions, which prefill and decode take
//            too. Pass once makes it what depends on these alone.
//   merged   -> merged.PATH, f32, of each adapted parameter: with its adapters merged. For export.
//   probe    apply and loss over one row, for the pass that rejects models that are not causal.
//   norm     g -> norm, the 2-norm of all gradients.
//   rates    step, run (f64) -> every number of the optimizer that depends on no element.
//   update   either p, g, states [blk, el] f32; grad_scale; group [blk] int; results of rates -> p,
//   states.
//            They keep their values if grad_scale is NaN. Or, if an optimizer sees more than an
//            element, or there are several: only grad_scale and results of rates; it reads and
//            assigns each parameter and the `state` globals.
//   after_step  grad_scale; reads and assigns the states of blocks, after update.
//
// If an optimizer takes an extra gradient, of the model's method NAME:
//   loss.extra    the same as loss, of NAME; none if it is `loss` itself.
//   update.extra  grad_scale, norm, weight and results of rates.extra; reads and assigns what the
//                 optimizer's method NAME changes, before the gradient of the step is computed.
#ifndef LM_LOWER_H
#define LM_LOWER_H
#include "compiler/ir/ir.h"
#include "dsl/lower/columns.h"
#include "dsl/recipe/recipe.h"
#include "runtime/weights/foreign.h"

// Extents (`dyn`) of axes in prefill and decode.
enum {
  LM_EXTENT_CONTEXT = 1, // positions of the cache that are filled after the call
  LM_EXTENT_CHUNK = 2    // positions of the call
};

enum {
  LM_LOWER_TRAIN = 1,
  LM_LOWER_EVAL = 2,
  LM_LOWER_APPLY = 4,
  LM_LOWER_DECODE = 8,
  LM_LOWER_MAPS = 16,
  LM_LOWER_PROBE = 32,
  LM_LOWER_MERGED = 64,
  LM_LOWER_PEFT = 128
};

typedef struct lm_lower_options {
  uint32_t what;          // LM_LOWER_…: the functions to emit
  int64_t rows, seq;      // of a call
  int64_t micro_batches;  // > 1: a call has the rows of so many
  const int64_t *lengths; // further sequence lengths of the training
  int n_lengths;
  int64_t first;            // the sequence length of the first step; 0: seq
  int64_t capacity, chunk;  // of decoding, in positions
  bool request;             // the caller of decoding has the columns without an axis of positions
  lm_column_shapes columns; // of the data that are known
} lm_lower_options;

// A state of the optimizer. Its initial value is the parameter's, or a number.
typedef struct lm_lowered_state {
  lm_sym name;
  bool has_own_axes; // not those of the parameter, but of a matrix those that `axis` marks
  bool axis[4];      // i, o, and the second axes of their sizes (lm_update_type)
  bool is_param;
  double value;
} lm_lowered_state;

// A parameter and its value of the argument `group` of @update; -1: a state of a block, which keeps
// its value there.
typedef struct lm_lowered_path {
  lm_sym path;
  int group;
} lm_lowered_path;

// An entry of config.json. key: "key" or "table.key"; json: the value as JSON.
typedef struct lm_lowered_config {
  lm_sym key;
  const char *json;
} lm_lowered_config;
typedef struct lm_lowered_configs {
  lm_lowered_config *v;
  uint32_t n, cap;
} lm_lowered_configs;

// An adapter, or a block at a site, in PEFT's files, by `map peft` of its block.
typedef struct lm_lowered_adapter {
  lm_sym param;       // that it adapts; the path of a block
  const char *module; // that has the parameter as its weight, by `map hf`; NULL: a block
  bool transposed;    // the weight's matrix is [in, out]
  bool of_embeddings; // a block behind the rows of a parameter that the tokens select
  bool of_positions;  // a block behind the positions that the model's `apply` takes
  lm_loc at;          // the line of `with`
  lm_lowered_configs config;
} lm_lowered_adapter;

// A tensor of an adapter in PEFT's file. If several parameters are parts of one weight, their
// adapters follow each other in the file's tensors, whose other elements are 0; or they share one
// adapter of the whole weight, as PEFT makes it.
typedef struct lm_lowered_peft {
  bool of_block; // the tensor is of the whole model; its name has no module
  lm_foreign_map stacked, shared;
} lm_lowered_peft;

typedef struct lm_lowered_arg {
  lm_sym name;
  double value;
} lm_lowered_arg;

// Weights that parameters begin with: of the model, or of a sub, whose parameters are not among
// those of the model's.
typedef struct lm_lowered_source {
  const char *prefix; // of their names: "" or "teacher."; innermost first
  const char *path;
  bool from_hf;
  lm_loc at;
  lm_sym model; // the name of the declaration
} lm_lowered_source;

// The extra gradient that optimizers take, in the steps 1, 1 + every, ….
typedef struct lm_lowered_extra {
  lm_sym name; // of the model's method; NULL: none
  int64_t every;
  lm_loc at;      // the call of the optimizer
  const char *of; // the optimizer
} lm_lowered_extra;

// Allocated in the arena of the context.
typedef struct lm_lowered {
  lm_module *m;
  int64_t vocab;            // the size of the last axis of the logits; 0: unknown
  lm_lowered_state *states; // of all elements; not those that are globals
  int n_states;
  bool by_tensor; // @update updates one parameter after the other
  lm_lowered_extra extra;
  lm_lowered_path *paths; // of all parameters
  uint32_t n_paths, cap_paths;
  const lm_lowered_source *sources;
  int n_sources;
  lm_foreign_map *maps; // of `map hf`
  uint32_t n_maps, cap_maps;
  const char **ignored; // patterns of foreign names that `map hf` ignores
  uint32_t n_ignored, cap_ignored;
  lm_sym *omitted; // states of blocks that `map hf` leaves out: they keep their initial values
  uint32_t n_omitted, cap_omitted;
  lm_lowered_configs config; // of `map hf`
  const lm_sym *former;      // parameters that the model lacks since subs are replaced, by path
  uint32_t n_former;
  // An edit after which the model computes what its base cannot, with LM_LOWER_PEFT not even with
  // PEFT's files; no file: none.
  lm_loc changed;
  lm_lowered_adapter *adapters; // with LM_LOWER_PEFT
  uint32_t n_adapters, cap_adapters;
  lm_lowered_peft *peft; // their tensors
  uint32_t n_peft, cap_peft;
  const char *wholes;   // "a and b", of which each could be exported as a model; NULL: at most one
  lm_lowered_arg *args; // of the model, if they are numbers; with LM_LOWER_MAPS
  uint32_t n_args, cap_args;
  struct {
    lm_sym pattern;
    const char *what;
    uint32_t n;
  } * resolved; // the number of parameters that each pattern matches, for `lmc check`
  uint32_t n_resolved, cap_resolved;
} lm_lowered;

// Positions of the row of @probe. It holds several documents, one of them with at least 512
// consecutive positions (compiler/passes/causal/causal_row.c).
enum {
  LM_PROBE_POSITIONS = 900
};

// Elaborates the recipe's model and emits the functions of o->what. NULL: errors were reported to
// the context.
lm_lowered *lm_lower(lm_ctx *c, lm_program *prog, const lm_recipe *r, const lm_lower_options *o);

// Checks everything that needs neither weights nor data: the recipe's model if r is not NULL, and
// all definitions that it does not use.
void lm_check(lm_ctx *c, lm_program *prog, const lm_recipe *r);

// Checks the constraints of the schedule on the number of steps of the run.
void lm_lower_schedule_check(lm_ctx *c, lm_program *prog, const lm_recipe *r, int64_t steps);

// A key of `config { … }` whose value determines a parameter of the model, which import sets from
// it. key: "key" or "table.key". absent: the expression that null represents; NULL: none.
typedef struct lm_config_param {
  lm_sym key, param;
  const char *absent;
} lm_config_param;
typedef struct lm_config_params {
  lm_config_param *v;
  uint32_t n, cap;
} lm_config_params;
lm_config_params lm_config_params_of(lm_ctx *c, const ast_decl *model);
// True if the model itself has a `map hf`; its subs may have others.
bool lm_model_has_map(lm_ctx *c, const ast_decl *model);

// The number of elements of all parameters, and of the trained ones, without padding and without
// states of blocks.
int64_t lm_lowered_params(const lm_lowered *l);
int64_t lm_lowered_trained(const lm_lowered *l);
// True if the parameter of that path is a state of a block, which is not frozen.
bool lm_lowered_is_state(const lm_lowered *l, const char *path);
#endif
