// lint.h - warnings about declarations that are right but hardly meant: names that nothing uses,
// statements that nothing reaches. A name that begins with '_' is exempt.
#ifndef LM_LINT_H
#define LM_LINT_H
#include "dsl/syntax/program.h"

// Of all files of the program but the library's.
void lm_lint(lm_ctx *c, const lm_program *p);
#endif
