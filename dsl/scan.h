// scan.h - flex's interface, for tokens.c and fmt.c.
#ifndef LM_SCAN_H
#define LM_SCAN_H
#include "dsl/parse.h"
#include "dsl/parser.tab.h"
#define YYSTYPE union lm_value
#define YYLTYPE lm_loc
#include "dsl/lexer.h"
#endif
