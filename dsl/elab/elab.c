// elab.c - creates the evaluator of a program.
#include "dsl/elab/elab.h"

lm_elab *lm_elab_create(lm_ctx *c, lm_program *prog, lm_module *m) {
  lm_elab *e = LM_NEW(c->arena, lm_elab);
  *e = (lm_elab){
      .c = c,
      .a = c->arena,
      .prog = prog,
      .m = m,
      .budget = EL_EXPRESSIONS,
  };
  return e;
}
