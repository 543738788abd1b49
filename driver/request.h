// request.h - the columns of a request: values that the model's `apply` takes for one row, and that
// have no axis of positions, such as the input of an encoder.
//
// Three columns of one axis are the tokens of a source text: `source: int[b, m]`, their ids;
// `source_pos`, the position in the text; and `source_seg`, 0, and -1 behind the end of the text.
// The row is as long as those of the data, if these are known. Else a model that takes `source_seg`
// gets a multiple of 32 tokens, so that texts of similar lengths share kernels, and others a row as
// long as the text.
#ifndef LM_DRIVER_REQUEST_H
#define LM_DRIVER_REQUEST_H
#include "driver/session.h"
#include "runtime/infer/generate.h"

typedef struct lm_request {
  lm_request_column *columns; // one row of each
  lm_column_shape *shapes;
  int n;
} lm_request;

// Both fill *out, which is zero and must be freed in any case. LM_USER: the model takes no column
// `source`, the source has no token or too many, or the file holds another column or type.
lm_status lm_request_source(const lm_session *s, const lm_tokens *source, lm_request *out);
// Tensors [1, …], of I32 for int and of any floating-point type for f32 and real.
lm_status lm_request_file(const lm_session *s, const char *path, lm_request *out);
void lm_request_free(lm_request *r);

// The option of `lmc generate` that gives the columns of a model: "source", "columns", or NULL if
// it takes none.
const char *lm_request_option(lm_ctx *c, const ast_decl *model);

// Appends the token with which a decoder begins: `start` of seq2seq data, else the value of
// `decoder_start_token_id` in `map hf { config { … } }` of a model that encodes a source. None if
// the program has neither.
lm_status lm_request_start(lm_session *s, lm_tokens *out);

lm_column_shapes lm_request_shapes(const lm_session *s, const lm_request *r);
// LM_USER: the compiled model takes a column that the request lacks, or an id is outside of its
// table.
lm_status lm_request_check(const lm_session *s, const lm_request *r);
#endif
