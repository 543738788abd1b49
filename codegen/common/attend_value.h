// attend_value.h - the values of an attend's region as text, each written once, at the level of
// the axes that it depends on.
#ifndef LM_CODEGEN_ATTEND_VALUE_H
#define LM_CODEGEN_ATTEND_VALUE_H
#include "codegen/common/attend.h"
#include "codegen/common/gen.h"

// Where a value of a tile is computed: once, for each row, for each column, for each element.
typedef enum lm_attend_level {
  LM_ATTEND_ONCE,
  LM_ATTEND_ROW,
  LM_ATTEND_COL,
  LM_ATTEND_ELEMENT
} lm_attend_level;

typedef struct lm_attend_values {
  lm_gen *g;
  const lm_attend_spec *f;
  lm_axis row, col;            // the axes of the rows and columns of a tile
  const char *at_row, *at_col; // the text of the indices along them
  // By value id: the text that stands for a value that is already written, else NULL.
  const char **text;
  const lm_value **local;
  uint32_t n_local, cap_local; // values whose text is valid only inside the loops over a tile
  int n_names;
  // Of the target, with `user`.
  void *user;
  // Assigns `text`, of type t, to a variable of that level; returns the variable's text.
  const char *(*statement)(void *user, lm_attend_level at, lm_dtype t, const char *text);
  const char *(*dot)(void *user, int k); // the element of the k-th dot
  // Writes the load of an element of an operand, which `arg` stands for; returns its text.
  const char *(*operand)(void *user, const lm_value *arg, lm_attend_level at);
} lm_attend_values;

// The text of an element of v at the current indices; the target gets the statements that it needs.
const char *lm_attend_value(lm_attend_values *x, const lm_value *v);
// The loop variable of a parallel axis.
const char *lm_attend_coordinate(const lm_attend_values *x, lm_axis a);
// Forgets the values that are local to the loops over a tile.
void lm_attend_values_end(lm_attend_values *x);
#endif
