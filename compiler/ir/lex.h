// lex.h - tokens of .lmir text.
#ifndef LM_IR_LEX_H
#define LM_IR_LEX_H
#include "runtime/base/diag.h"

typedef enum {
  TK_END,
  TK_NAME,   // sym: stage, f32, t.1, g@tp, "quoted text"
  TK_VALUE,  // %x.12: sym is the spelling, name is "x" or NULL, id is 12 or -1
  TK_SYM,    // @layers.wq, @"quoted": sym without the @
  TK_NUMBER, // num; is_int and inum if it is a 64-bit integer
  TK_PUNCT,  // one of ( ) [ ] { } , : = * +
  TK_ARROW,  // ->
  TK_BAD,    // anything else
} lm_token_kind;

typedef struct lm_token {
  lm_token_kind kind;
  lm_loc loc;
  lm_sym sym, name;
  char punct;
  bool is_int, quoted;
  int64_t inum, id;
  double num;
} lm_token;

typedef struct lm_lexer {
  lm_ctx *c;
  const char *p, *end, *line_start;
  uint32_t line;
  uint16_t source;
} lm_lexer;

void lm_lexer_init(lm_lexer *x, lm_ctx *c, uint16_t source);
lm_token lm_lex(lm_lexer *x);
#endif
