// parse.h - what the files of the parser of .lmir text share: the state of a parser, tokens, values
// and types. Every function returns false after an error, which is reported once.
#ifndef LM_IR_PARSE_H
#define LM_IR_PARSE_H
#include "compiler/ir/internal.h"
#include "compiler/ir/lex.h"

typedef struct named {
  lm_sym key;
  lm_value *value;
} named;
typedef struct made {
  lm_value *value;
  int64_t id;
} made;
typedef struct operands {
  lm_value **v;
  uint32_t n, cap;
} operands;
typedef struct parser {
  lm_lexer lex;
  lm_token t; // the next token
  lm_ctx *c;
  lm_module *m;
  lm_func *f;
  bool failed;
  int depth;
  named *table;
  uint32_t n_table, cap_table; // names of the current function: open addressing
  made *values;
  uint32_t n_values, cap_values; // all values, with their explicit numbers
  uint8_t *ids;
  uint32_t n_ids; // used numbers
  uint16_t *files;
  uint32_t n_files, cap_files;
} parser;

// ---- parse_token.c: tokens
bool lmir_fail(parser *p, lm_loc at, const char *fmt, ...) LM_PRINTF(3, 4); // always false
bool lmir_next(parser *p);
bool lmir_at(const parser *p, char c);
bool lmir_at_word(const parser *p, const char *w);
// Skips the token if it is next. False also after an error: check p->failed.
bool lmir_opt(parser *p, char c);
bool lmir_opt_word(parser *p, const char *w);
// Skips the token, which must be next.
bool lmir_want(parser *p, char c);
bool lmir_want_kind(parser *p, lm_token_kind kind, const char *what, lm_token *out);
bool lmir_integer(parser *p, int64_t *out);
bool lmir_real(parser *p, double *out);

// ---- parse_token.c: values, types, locations
// Names a value. The name must be new in the function, an explicit number new in the module.
bool lmir_define(parser *p, const lm_token *t, lm_value *v);
// Appends the value that the next token names; it must be visible in r.
bool lmir_use(parser *p, lm_region *r, operands *o);
void lmir_number_values(parser *p); // at the end: numbers for the values without one
bool lmir_axis_list(parser *p, char close, lm_axis *out, uint8_t *n);
bool lmir_type(parser *p, lm_type *out);
bool lmir_mesh_axis(parser *p, uint8_t *out);   // the name of an axis of the mesh: from 1
bool lmir_partial(parser *p, lm_mesh_set *out); // partial(dp, tp), or nothing
bool lmir_location(parser *p, lm_loc *out);     // loc(file:line:column), or nothing

// ---- parse_op.c
bool lmir_function(parser *p); // after the word `func`
#endif
