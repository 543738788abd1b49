// parse.h - what lexer.l, layout.c and parser.y share. Private to them.
//
// Three layers: flex knows regular expressions (words, numbers, newlines); layout.c knows layout
// (where statements end, which words are keywords here, how to go on after an error); bison knows
// the grammar and builds the tree.
#ifndef LM_PARSE_H
#define LM_PARSE_H
#include "dsl/syntax/ast.h"

enum {
  LM_MAX_FILE_BYTES = 4 << 20,
  LM_MAX_NESTING = 200, // of parentheses, brackets and braces together
  LM_MAX_HEIGHT = 1000, // of an expression's tree
};

typedef struct ast_args {
  ast_arg *v;
  uint32_t n, cap;
  bool trailing_comma;
} ast_args;
typedef struct ast_params {
  ast_param *v;
  uint32_t n, cap;
} ast_params;
typedef struct ast_types {
  ast_type **v;
  uint32_t n, cap;
} ast_types;
typedef struct ast_dims {
  ast_dim *v;
  uint32_t n, cap;
} ast_dims;
typedef struct ast_inst {
  ast_expr *expr, *from;
} ast_inst;
typedef struct ast_pat {
  ast_names names;
  bool is_tuple;
} ast_pat;

// What a token or a rule stands for.
union lm_dsl_value {
  ast_name name;   // NAME, and keywords with their text
  const char *doc; // keywords of declarations: the comment above
  ast_names names;
  ast_expr *expr;
  ast_exprs exprs;
  ast_arg arg;
  ast_args args;
  ast_param param;
  ast_params params;
  ast_type *type;
  ast_types types;
  ast_dim dim;
  ast_dims dims;
  ast_inst inst;
  ast_pat pat;
  ast_sig sig;
  ast_stmt *stmt;
  ast_body body;
  ast_item *item;
  ast_items items;
  ast_member *member;
  ast_members members;
  ast_decl *decl;
};

// Where flex stands in the text.
typedef struct lm_scan {
  lm_ctx *ctx;
  uint16_t file;
  size_t offset;
  uint32_t line, col;
} lm_scan;

// What flex returns besides the grammar's tokens: the end of a line; text that is no token, already
// reported.
enum {
  LM_SCAN_NEWLINE = 1,
  LM_SCAN_BAD = 2
};

typedef struct lm_parser {
  lm_ctx *ctx;
  uint16_t source;
  struct lm_layout *layout;
  ast_file *file; // result for a file
  ast_item *item; // result for one item of --set
} lm_parser;

// ---- layout.c
struct lm_layout *lm_layout_create(lm_ctx *c, uint16_t source, bool is_item);
void lm_layout_destroy(struct lm_layout *t);
int lm_dsl_lex(union lm_dsl_value *value, lm_loc *loc, lm_parser *ps);
// For a syntax error at the token given last: skip to the end of the statement, member, item or
// declaration.
void lm_layout_recover(struct lm_layout *t);
void lm_layout_stop(struct lm_layout *t); // nothing more but the end of the file
bool lm_layout_stopped(const struct lm_layout *t);
void lm_layout_found(const struct lm_layout *t,
                     lm_buf *out);                // the last token in the user's terms: "name 'x'"
lm_sym lm_layout_name(const struct lm_layout *t); // the last token's text if it is a name
lm_sym lm_layout_word_before(const struct lm_layout *t,
                             lm_loc *out_at); // the word before it on its line; NULL if none
lm_loc lm_layout_unclosed(const struct lm_layout *t,
                          char *out_which); // innermost open ( or [; file 0 if none

// ---- ast.c
ast_expr *lm_expr_new(lm_parser *ps, ast_expr_kind kind, lm_loc at);
ast_expr *lm_expr_binary(lm_parser *ps, ast_op op, lm_loc at, ast_expr *a, ast_expr *b);
ast_expr *lm_expr_postfix(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_expr *a, ast_args args);
void lm_args_check_order(lm_parser *ps, const ast_args *args);
ast_expr *lm_expr_group(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_args args); // (…) or […]
ast_expr *lm_expr_seal(lm_parser *ps,
                       ast_expr *e); // computes the height and refuses trees that are too high
ast_item *lm_item_new(lm_parser *ps, ast_item_kind kind, ast_name key);

// ---- lexer.l
int lm_number_read(const char *s, size_t n,
                   ast_expr *out); // digits and magnitude; returns bytes read; inf: too large
#endif
