// eval.h - scopes, expressions and statements of one rendering. Private to runtime/template.
#ifndef LM_TEMPLATE_EVAL_H
#define LM_TEMPLATE_EVAL_H
#include "runtime/template/ast.h"

typedef struct jt_variable {
  jt_string name;
  jt_value value;
} jt_variable;
typedef struct jt_scope jt_scope;
struct jt_scope {
  jt_scope *outer;
  jt_variable *v;
  uint32_t n, cap;
};

struct jt_loop {
  const jt_list *list;
  uint32_t index;
};

typedef enum {
  JT_RUNS,
  JT_BREAKS,
  JT_CONTINUES
} jt_flow;

jt_scope *jt_scope_new(jt_run *r, jt_scope *outer);
void jt_scope_set(jt_run *r, jt_scope *s, jt_string name, jt_value v);
jt_value jt_evaluate(jt_run *r, jt_scope *s, const jt_node *x); // x NULL: undefined
jt_value jt_macro_call(jt_run *r, const jt_macro *m, const jt_args *a);
jt_value jt_loop_attribute(jt_run *r, const jt_loop *l, jt_string name);
#endif
