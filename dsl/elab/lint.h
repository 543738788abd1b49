// lint.h - warnings about valid declarations that are probably mistakes: unused names and
// unreachable statements. A name that begins with '_' is exempt.
#ifndef LM_LINT_H
#define LM_LINT_H
#include "dsl/syntax/program.h"

// Checks all files of the program except the library.
void lm_lint(lm_ctx *c, const lm_program *p);
#endif
