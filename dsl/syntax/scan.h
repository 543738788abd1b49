// scan.h - the interface that flex generates, for layout.c and fmt.c.
#ifndef LM_SCAN_H
#define LM_SCAN_H
#include "dsl/syntax/parse.h"
#include "dsl/parser.tab.h"
#define YYSTYPE union lm_dsl_value
#define YYLTYPE lm_loc
#include "dsl/lexer.h"

// True if an operand of an expression may end with a token of this kind.
bool lm_ends_operand(int kind);
#endif
