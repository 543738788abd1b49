// matrix.h - a parameter as the matrices that an optimizer sees (update.c, tensors.c).
#ifndef LM_LOWER_MATRIX_H
#define LM_LOWER_MATRIX_H
#include "dsl/lower/internal.h"

// The axes of a parameter by role: batch, in, out; each merged into one axis of the matrices, or 0.
enum {
  LM_MATRIX_BATCH,
  LM_MATRIX_IN,
  LM_MATRIX_OUT,
  LM_MATRIX_ROLES
};
// Behind these merged axes: second axes of the sizes of i and o, or 0.
typedef struct lm_matrix {
  lm_axis of[LM_MATRIX_ROLES][LM_RANK], merged[LM_MATRIX_ROLES + 2];
  int n[LM_MATRIX_ROLES];
} lm_matrix;

// The matrices of a parameter for the optimizer of a call, whose `update` has the type t. False:
// reported.
bool lm_matrix_find(lm_elab *e, const lm_recipe_call *by, const lm_global *g,
                    const lm_update_type *t, lm_matrix *out);
// A value of the parameter's axes as [matrices, i, o], and back, of type `to`.
lm_value *lm_matrix_view(lm_elab *e, const lm_matrix *m, lm_value *v);
lm_value *lm_matrix_unview(lm_elab *e, const lm_matrix *m, lm_value *v, lm_type to);
// The axes of one matrix, by lm_update_type; NULL for names that are not declared.
void lm_matrix_axes(lm_elab *e, const lm_matrix *m, const lm_update_type *t, el_axis **out);
// The axes of the parameter, which are not stacked.
el_axes lm_tensor_axes(lm_elab *e, const lm_global *g);
#endif
