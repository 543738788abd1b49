// optimizer.h - the optimizer of a recipe's call, with those that its arguments give.
#ifndef LM_LOWER_OPTIMIZER_H
#define LM_LOWER_OPTIMIZER_H
#include "dsl/lower/matrix.h"

// ---- update.c: the declaration, in a frame of the optimizer (optimizer.c)

// Checks all members; returns the method `update`. NULL: reported.
const ast_member *lm_optimizer_members(lm_elab *e, const ast_decl *d);

typedef struct lm_lowered_states {
  lm_lowered_state *v;
  uint32_t n, cap;
} lm_lowered_states;
// Appends the states. prefix: of their names.
void lm_optimizer_states(lm_elab *e, const ast_decl *d, const char *prefix, lm_lowered_states *all);

// The method `eval`, or NULL.
const ast_member *lm_optimizer_eval(const ast_decl *d);
// The member `extra NAME = (every = …)`, or NULL; the expression of `every`, NULL if the member has
// another form; and the method NAME.
const ast_member *lm_optimizer_extra(const ast_decl *d);
const ast_expr *lm_optimizer_extra_every(const ast_member *extra);
const ast_member *lm_optimizer_extra_method(const ast_decl *d);
// The axes of a state: those of p, or the ones of a matrix that its type has, from the axes of
// lm_update_type.
el_axes lm_optimizer_state_axes(lm_elab *e, const lm_lowered_state *s, const el_axes *of_p,
                                el_axis *const *matrix);

// ---- optimizer.c

// An optimizer of a tree: that of a call, which is the root, and those that its arguments give.
typedef struct lm_optimizer {
  const lm_recipe_call *call;
  struct lm_optimizer *up;   // whose argument it is, or NULL
  el_inst *inst, *eval_inst; // with its arguments; for `eval` with lr as it is given
  const ast_member *update;  // NULL: an argument that is unknown (lm_optimizer_check)
  const ast_member *eval;    // or NULL
  const ast_member *extra;   // the method of an extra gradient, or NULL
  lm_update_type type;
  lm_update_type merged;       // `type`, whose i and o are those of the outermost one of matrices
  const char *prefix;          // of the names of its states: "inner."
  uint32_t id;                 // in the order of the tree
  uint32_t first, own, n;      // its states, `own` from `first` on, and behind them, of n in all,
                               // those of its arguments
  struct lm_optimizer **inner; // by parameter; NULL: it has another type
} lm_optimizer;

typedef struct lm_optimizers {
  lm_optimizer **v; // the root first, each before its arguments
  uint32_t n, cap;
  lm_lowered_states states;
  lm_optimizer *view;  // whose `eval` gives the weights of evaluations; NULL: the trained ones
  lm_optimizer *extra; // that takes an extra gradient, or NULL
} lm_optimizers;

// The tree of a call, whose arguments are not bound. False: reported.
bool lm_optimizers_make(lm_elab *e, const lm_recipe_call *call, lm_optimizers *out);
// The optimizer that has the state k.
lm_optimizer *lm_optimizer_of_state(const lm_optimizers *all, uint32_t k);
// The `eval` that gives the weights of evaluations, of o or of an argument of it, or NULL.
lm_optimizer *lm_optimizer_view(lm_optimizer *o);
// The frame of a body, without a caller.
el_frame lm_optimizer_frame(el_inst *inst, el_ref *self);

// ---- groups.c
// Binds the parameters of an optimizer and of its arguments: numbers, or one number for each block
// if groups set different ones. `rate` scales lr, unless for_eval. *out_lr: the first lr of the
// tree, for sets[0]; V_ERROR if no optimizer has it. False: reported.
bool lm_groups_bind(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, bool for_eval,
                    const lm_group_sets *c, lm_value *group, const el_axes *blk, const el_val *rate,
                    el_val *out_lr);

// ---- update_run.c
typedef enum {
  LM_METHOD_UPDATE,
  LM_METHOD_EXTRA,
  LM_METHOD_EVAL
} lm_optimizer_method;

typedef struct lm_optimizer_values {
  const lm_optimizers *all;
  lm_optimizer *o; // whose method runs
  lm_optimizer_method method;
  el_val args[5];         // p, g, k; of an extra gradient also norm and weight
  lm_value **state;       // of the tree; then the new values
  lm_matrix *const *m;    // by optimizer: of those of matrices; NULL: there are none
  el_axis *const *matrix; // the axes of the matrix that p is, by lm_update_type; NULL: it is none
} lm_optimizer_values;
// Evaluates the body, for each matrix of p if it sees matrices. *out: the new p, over its axes; of
// an extra gradient whose method has no result p. False: reported.
bool lm_optimizer_run(lm_elab *e, const lm_optimizer_values *in, el_val *out);
// Checks an optimizer that the recipe does not use.
void lm_optimizer_check(lm_elab *e, const lm_file *file, ast_decl *d);
#endif
