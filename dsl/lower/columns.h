// columns.h - further columns of the data: the parameters of `loss` beside the batch, and those of
// `apply` behind tok, pos and seg, and of `encode` beside them.
//
//   loss(bt: Batch[b, t], reward: f32[b, t], logits: f32[b, t, k]) -> (f32, f32)
//   apply(tok: int[b, t], pos: int[b, t], seg: int[b, t], prompt: int[b, t]) -> real[b, t, vocab]
//
// Each is one value for each row of a batch and each index of its other axes. Those of the batch
// and of the model have their sizes; the extent of any other axis follows from the data.
#ifndef LM_LOWER_COLUMNS_H
#define LM_LOWER_COLUMNS_H
#include "contract/port.h"
#include "dsl/elab/elab.h"

enum {
  LM_COLUMN_AXES = 6 // behind that of rows
};

typedef struct lm_model_column {
  lm_sym name;
  lm_dtype dtype; // LM_INT or LM_F32
  lm_column_of of;
  lm_loc loc;
} lm_model_column;
typedef struct lm_model_columns {
  lm_model_column *v;
  uint32_t n, cap;
} lm_model_columns;
// Of `loss`, `apply` and `encode`, each name once. Reports nothing: parameters that are no columns
// are left out.
lm_model_columns lm_model_columns_of(lm_ctx *c, const ast_decl *model);
// True if the model has `apply`, the logits of the next token.
bool lm_model_has_apply(lm_ctx *c, const ast_decl *model);
// True if the model reads the column `prompt`. Decoding then has to compute a whole prompt in one
// call, since its positions depend on each other.
bool lm_model_takes_prompt(lm_ctx *c, const ast_decl *model);
// True if `apply` reads a column without an axis of positions, such as the input of an encoder.
// Decoding computes what depends on it once for each request.
bool lm_model_takes_request(lm_ctx *c, const ast_decl *model);

// The extents of a column in the data, behind that of rows. 0: the axis has another size that is
// known, or none yet.
typedef struct lm_column_shape {
  const char *name;
  int rank;
  int64_t extent[LM_COLUMN_AXES];
} lm_column_shape;
typedef struct lm_column_shapes {
  const lm_column_shape *v;
  int n;
} lm_column_shapes;

typedef struct lm_column_call {
  lm_func *f;
  const ast_member *method; // `loss`, `apply` or `encode`
  el_axis *b, *t;
  const el_val *first; // the arguments that are no further columns: the batch, or tok, pos and seg
  uint32_t n_first;
  lm_column_shapes shapes; // those that are known
  const ast_param *grid;   // set by the call: whose type names the axes of rows and positions
} lm_column_call;
// Fills args [sig.n_params of the method] and adds arguments to f, one for each column. *n: their
// number, without parameters of `apply` that have defaults. False: reported.
bool lm_column_args(lm_elab *e, el_inst *model, const lm_column_call *x, el_val *args, uint32_t *n);
#endif
