// lookahead.h - what is known of the values of @probe; shared by lookahead.c and lookahead_cells.c.
#ifndef LM_LOOKAHEAD_H
#define LM_LOOKAHEAD_H
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"

#define LM_NEVER (-1e29) // what a masked score is at most

// A value is known as a whole (`known`), or some of its cells are. A cell is the constant that the
// value holds at one position t and one position s of the history, whatever the other axes; NAN: no
// constant. Of a value without an axis of the history there is one cell for each t (`width` 1),
// else one for each (t, s).
typedef struct fact {
  lm_tensor known;
  double *cell;
  int64_t width;
  bool *hidden; // by t, where a softmax found all of its scores masked; owned by the maximum
  bool owns_hidden;
  bool refused; // made of what a reduction over s was refused for
} fact;

typedef struct probe {
  lm_module *m;
  lm_ctx *c;
  fact *facts;              // by value id
  uint32_t *uses;           // by value id: uses that are yet to come
  bool *is_place, *is_past; // by axis: t and its other names; s
  int64_t places;
  double *pos, *seg; // the columns, by t
  bool decoded, ok;
} probe;

static inline fact *lm_fact(const probe *p, const lm_value *v) {
  return &p->facts[v->id];
}
bool lm_probe_has(const bool *set, lm_type t,
                  lm_axis *out);                  // the first of its axes that is in the set
bool lm_probe_gridded(const probe *p, lm_type t); // has an axis of positions and one of the history
bool lm_probe_over(const lm_op *op, const bool *set); // the operation names an axis of the set

// ---- lookahead_cells.c
void lm_fact_find(probe *p, const lm_op *op); // of the operation's result, from its operands'
void lm_fact_free(fact *f);
double lm_fact_cell(const probe *p, const lm_value *v, int64_t t, int64_t s);

// ---- lookahead_row.c: the row that is probed
enum {
  LM_PROBE_FILLED = 512
};                                             // positions of one document without a gap
void lm_probe_row(probe *p, const lm_func *f); // fills the columns
#endif
