// lower.h - a resolved program as graph IR, with what the runtime needs beside it.
//
// One declaration gives every function of the run:
//   loss     tok pos seg next [b, t] int, w [b, t] f32, step, row -> sum, weight, emitted scalars
//   (training: dropout) loss.N   the same over rows of N places, as many in all eval     the same
//   without dropout; and xent.sum, xent.weight: the cross-entropy of apply's logits at next, if
//   there is one apply    tok pos seg [b, t] -> logits [b, t, vocab], of the first step's length
//   prefill  tok pos seg [1, t], at -> logits, through caches of `capacity` places; t is known at
//   run time, at most `chunk` decode   the same with t = 1 probe    apply over one row, for the
//   pass that refuses models that look ahead norm     g -> norm, the root of the sum of squares of
//   all gradients rates    step, run (f64) -> every number of the optimizer that does not depend on
//   an element update   p, g, states [blk, el] f32, grad_scale, group [blk] int, results of rates
//   -> p, states: as they were if grad_scale is NaN
#ifndef LM_LOWER_H
#define LM_LOWER_H
#include "compiler/ir/ir.h"
#include "dsl/recipe/recipe.h"
#include "runtime/weights/foreign.h"

// Extents (`dyn`) of axes in prefill and decode: places of the cache in use after the call, places
// of the call.
enum {
  LM_EXTENT_CONTEXT = 1,
  LM_EXTENT_CHUNK = 2
};

enum {
  LM_LOWER_TRAIN = 1,
  LM_LOWER_EVAL = 2,
  LM_LOWER_APPLY = 4,
  LM_LOWER_DECODE = 8,
  LM_LOWER_MAPS = 16,
  LM_LOWER_PROBE = 32
};

typedef struct lm_lower_options {
  uint32_t what;
  int64_t rows, seq; // of one micro-batch
  const int64_t *lengths;
  int n_lengths;           // further lengths of rows that are trained on
  int64_t first;           // the length of the first step; 0: seq
  int64_t capacity, chunk; // of decoding
  bool bf16;               // the target multiplies bf16 in hardware: what `compute = auto` asks
} lm_lower_options;

typedef struct lm_lowered_state {
  lm_sym name;
  bool is_param;
  double value;
} lm_lowered_state;

typedef struct lm_lowered_path {
  lm_sym path;
  int group;
} lm_lowered_path;

// key: "key" or "table.key".
typedef struct lm_lowered_config {
  lm_sym key;
  const char *json;
} lm_lowered_config;
typedef struct lm_lowered_arg {
  lm_sym name;
  double value;
} lm_lowered_arg;

typedef struct lm_lowered {
  lm_module *m;
  lm_dtype compute;
  int64_t vocab; // size of the last axis of the logits, 0 if not known
  lm_lowered_state *states;
  int n_states;
  lm_lowered_path *paths;
  uint32_t n_paths, cap_paths; // every parameter with its value of @update's `group`
  lm_foreign_map *maps;
  uint32_t n_maps, cap_maps; // `map hf`
  const char **ignored;
  uint32_t n_ignored, cap_ignored;
  lm_lowered_config *config;
  uint32_t n_config, cap_config; // of `map hf`: keys of config.json
  lm_lowered_arg *args;
  uint32_t n_args, cap_args; // of the model, those that are numbers; with LM_LOWER_MAPS
  struct {
    lm_sym pattern;
    const char *what;
    uint32_t n;
  } * resolved;
  uint32_t n_resolved, cap_resolved; // for lmc check
} lm_lowered;

// Positions in the row of @probe: some documents, one of 512 and more; far ones are a sample
// (compiler/passes/lookahead_row.c).
enum {
  LM_PROBE_POSITIONS = 768
};

// Elaborates the recipe's model and emits what is asked for. NULL after errors; they are in the
// context.
lm_lowered *lm_lower(lm_ctx *c, lm_program *prog, const lm_recipe *r, const lm_lower_options *o);

// Everything that needs neither weights nor data: the recipe's model if there is one, and every
// definition of the file that it does not reach.
void lm_check(lm_ctx *c, lm_program *prog, const lm_recipe *r);

// Constraints of the schedule that are about the run, of which so many steps are known by now.
void lm_lower_schedule_check(lm_ctx *c, lm_program *prog, const lm_recipe *r, int64_t steps);

// Keys of `config { … }` (a key in a table as "table.key") whose value can be inverted to a
// parameter of the model: what import sets it from. absent: the text of the value that stands for
// null, NULL if there is none.
typedef struct lm_config_param {
  lm_sym key, param;
  const char *absent;
} lm_config_param;
typedef struct lm_config_params {
  lm_config_param *v;
  uint32_t n, cap;
} lm_config_params;
lm_config_params lm_config_params_of(lm_ctx *c, const ast_decl *model);

// Blocks of LM_BLOCK elements that the parameters take, each tensor of each layer beginning a
// block.
int64_t lm_lowered_blocks(const lm_lowered *l);
// Logical elements of all parameters.
int64_t lm_lowered_params(const lm_lowered *l);
#endif
