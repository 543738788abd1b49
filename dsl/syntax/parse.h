// parse.h - private interface of lexer.l, layout.c and parser.y.
//
// The parser has three layers: flex splits the text into words, numbers and newlines; layout.c
// decides where statements end, which words are keywords in their context and which tokens are
// skipped after an error; bison applies the grammar and builds the tree.
#ifndef LM_PARSE_H
#define LM_PARSE_H
#include "dsl/syntax/ast.h"
#include "runtime/base/diag_code.h"

enum {
  LM_MAX_FILE_BYTES = 4 << 20,
  LM_MAX_NESTING = 200, // total of open parentheses, brackets and braces
  LM_MAX_TOKENS = 128,  // kinds of tokens of the grammar
  LM_MAX_HEIGHT = 1000, // height of the tree of an expression
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

// The semantic value of a token or a rule.
union lm_dsl_value {
  ast_name name;   // NAME, and keywords with their text
  const char *doc; // keywords of declarations: the comment lines above
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

// The position of flex in the text.
typedef struct lm_scan {
  lm_ctx *ctx;
  uint16_t file;
  size_t offset;
  uint32_t line, col;
  bool string_unclosed; // an error was reported
  bool skipping;        // the rest of a line with an error is skipped
  lm_sym invalid;       // the last invalid text; a line repeats no report of it, as for 'text'
} lm_scan;

// Tokens of flex that the grammar does not have: the end of a line, and invalid text that is
// already reported.
enum {
  LM_SCAN_NEWLINE = 1,
  LM_SCAN_BAD = 2
};

typedef struct lm_parser {
  lm_ctx *ctx;
  uint16_t source;
  struct lm_layout *layout;
  ast_file *file; // the result for a file
  ast_item *item; // the result for one item of --set
} lm_parser;

// ---- layout.c
struct lm_layout *lm_layout_create(lm_ctx *c, uint16_t source, bool is_item);
void lm_layout_destroy(struct lm_layout *t);
int lm_dsl_lex(union lm_dsl_value *value, lm_loc *loc, lm_parser *ps);
// After a syntax error at the current token: skips to the end of the statement, member, item or
// declaration.
void lm_layout_recover(struct lm_layout *t);
// Makes the next token the end of the file.
void lm_layout_stop(struct lm_layout *t);
bool lm_layout_stopped(const struct lm_layout *t);
// Writes the current token for messages: "name 'x'".
void lm_layout_found(const struct lm_layout *t, lm_buf *out);
// The text of the current token if it is a name, else NULL.
lm_sym lm_layout_name(const struct lm_layout *t);
// The word before the current token on its line; NULL if there is none.
lm_sym lm_layout_word_before(const struct lm_layout *t, lm_loc *out_at);
const char *lm_layout_text_after(const struct lm_layout *t); // the text after the current token
// True if the word that ends before the current token, on its line, begins a statement or item.
bool lm_layout_begins_statement(const struct lm_layout *t, lm_loc word);
// The innermost open ( or [; file 0 if there is none.
lm_loc lm_layout_unclosed(const struct lm_layout *t, char *out_which);
// True, once, if a brace of the declaration that was read last is never closed.
bool lm_layout_take_unclosed(struct lm_layout *t);

// ---- ast.c
ast_expr *lm_expr_new(lm_parser *ps, ast_expr_kind kind, lm_loc at);
ast_expr *lm_expr_binary(lm_parser *ps, ast_op op, lm_loc at, ast_expr *a, ast_expr *b);
ast_expr *lm_expr_postfix(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_expr *a, ast_args args);
// What to write for a number with a comma, such as 1,5 or 1,024: the text up to the comma, and
// the text behind it.
const char *lm_number_comma_help(lm_ctx *c, const char *before, const char *after);
void lm_args_check_order(lm_parser *ps, const ast_args *args);
// An expression in parentheses, a tuple or a list.
ast_expr *lm_expr_group(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_args args);
// Computes the height of a new node; a tree that is too high is an error.
ast_expr *lm_expr_seal(lm_parser *ps, ast_expr *e);
ast_item *lm_item_new(lm_parser *ps, ast_item_kind kind, ast_name key);

// ---- syntax_error.c
// The names of the tokens that the grammar accepts at a syntax error.
typedef struct lm_expected {
  const char *v[2 * LM_MAX_TOKENS];
  int n;
} lm_expected;
// Reports a syntax error at the current token, whose name in the grammar is `token`. Changes
// *expected.
void lm_syntax_error(lm_parser *ps, lm_loc at, const char *token, lm_expected *expected);

// ---- lexer.l
// Reads digits and a magnitude such as 2Ki; returns the number of bytes read. num is infinite if
// the number is too large.
int lm_number_read(const char *s, size_t n, ast_expr *out);
#endif
