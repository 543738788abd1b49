// ast.h - the tree of one .lm file. The parser builds it and does nothing else; it lives in the
// context's arena.
#ifndef LM_AST_H
#define LM_AST_H
#include "runtime/base/diag.h"

typedef struct ast_expr ast_expr;
typedef struct ast_type ast_type;
typedef struct ast_stmt ast_stmt;
typedef struct ast_item ast_item;
typedef struct ast_decl ast_decl;

typedef enum {
  EX_NAME,     // text
  EX_NUMBER,   // num, is_int, (inum when is_int); magnitude already applied: 2Ki -> 2048
  EX_QUANTITY, // num, unit ("tokens", "steps", "epochs", "docs", "seqs", "bytes", "s", "%"): bytes
               // and time are
               //   already scaled (72GB -> 72e9 bytes; 10 min -> 600 s; ms likewise), percent is
               //   num = 10, unit "%"
  EX_STRING,   // text, escapes resolved
  EX_PATTERN,  // text, with the leading @
  EX_TUPLE,    // args; "()" and "(a, b)" and "(a = 1)" and "(t -> s)"; "(a)" alone is a itself
  EX_LIST,     // args; [a, b]
  EX_CALL,     // a = callee, args
  EX_INDEX,    // a, args
  EX_FIELD,    // a, text
  EX_NEG,      // a
  EX_BINARY,   // op, a, b
  EX_IF,       // c, a, b:  if c then a else b
  EX_ERROR,
} ast_expr_kind;

typedef enum {
  OP_ADD,
  OP_SUB,
  OP_MUL,
  OP_DIV,
  OP_MOD,
  OP_POW,
  OP_AND,
  OP_OR,
  OP_EQ,
  OP_NE,
  OP_LT,
  OP_GT,
  OP_LE,
  OP_GE,
  OP_IN,
  OP_DIVIDES
} ast_op;

typedef enum {
  ARG_POS,
  ARG_NAMED /* name = expr */,
  ARG_ARROW /* expr -> to */,
  ARG_ROW /* ..name */
} ast_arg_kind;
typedef struct ast_arg {
  ast_arg_kind kind;
  lm_loc loc;
  lm_sym name;
  lm_loc name_loc;
  ast_expr *expr, *to;
} ast_arg;

struct ast_expr {
  ast_expr_kind kind;
  lm_loc loc;  // the token that names it (an operator for EX_BINARY, the callee's name for EX_CALL)
  lm_sym text; // see the kinds
  lm_sym unit;
  double num;
  int64_t inum;
  bool is_int;
  lm_sym spelling; // as written (numbers, quantities): for fmt and messages
  ast_op op;
  ast_expr *a, *b, *c;
  ast_arg *args;
  uint32_t n_args, cap_args;
  bool trailing_comma;
  uint16_t height; // of this tree; bounded by the parser, so that walks may recurse
};

typedef struct ast_dim {
  lm_loc loc;
  lm_sym row;
  ast_expr *expr;
} ast_dim;        // row != NULL: ..row
struct ast_type { // NAME | NAME[dims] | (types)
  lm_loc loc;
  lm_sym name;   // NULL for a tuple
  bool has_dims; // f32[] and f32 differ only in spelling
  ast_dim *dims;
  uint32_t n_dims, cap_dims;
  ast_type **tuple;
  uint32_t n_tuple, cap_tuple;
};

typedef struct ast_name {
  lm_sym text;
  lm_loc loc;
} ast_name;
typedef struct ast_names {
  ast_name *v;
  uint32_t n, cap;
} ast_names;

typedef struct ast_param {
  ast_name name;
  ast_type *type;
  ast_expr *init;
} ast_param;
typedef struct ast_exprs {
  ast_expr **v;
  uint32_t n, cap;
} ast_exprs;

typedef enum {
  ST_LET,
  ST_SET,
  ST_RETURN,
  ST_EMIT,
  ST_FOR,
  ST_ERROR
} ast_stmt_kind;
typedef struct ast_body {
  ast_stmt **v;
  uint32_t n, cap;
  lm_loc open, close;
} ast_body;
struct ast_stmt {
  ast_stmt_kind kind;
  lm_loc loc;
  ast_names names; // LET: one or a tuple (is_tuple); SET, EMIT: one; FOR: the loop variable
  bool is_tuple;
  ast_expr *expr;  // value; FOR: what is iterated
  ast_names carry; // FOR
  ast_body body;   // FOR
};

typedef struct ast_sig {
  ast_param *params;
  uint32_t n_params, cap_params;
  ast_type *ret;
  ast_exprs where;
} ast_sig;

typedef enum {
  MB_DIM,
  MB_PARAM,
  MB_STATE,
  MB_SUB,
  MB_MAP,
  MB_METHOD,
  MB_ERROR
} ast_member_kind;
typedef struct ast_items {
  ast_item **v;
  uint32_t n, cap;
} ast_items;
typedef struct ast_member {
  ast_member_kind kind;
  lm_loc loc;
  // DIM: one each with exprs.v[i]; PARAM, STATE: names sharing type and init; SUB, MAP, METHOD: one
  ast_names names;
  ast_exprs exprs; // DIM: values
  ast_type *type;  // PARAM, STATE
  ast_expr *init;  // PARAM, STATE: initialiser; SUB: the instance
  ast_expr *from;  // SUB: `from "..."` or NULL
  ast_name index;
  ast_expr *count; // SUB xs[index < count]; count NULL when single
  ast_items items; // MAP
  ast_sig sig;
  ast_body body; // METHOD
} ast_member;
typedef struct ast_members {
  ast_member **v;
  uint32_t n, cap;
} ast_members;

// A line of a data or recipe section.
typedef enum {
  IT_SET, // path = expr                       model = Llama();   optimizer.lr = 1e-3
  // NAME sel = expr                   source web = jsonl(...);  keep bf16 = [...]; group @x =
  // (decay = 0)
  IT_SET_SEL,
  IT_DO, // NAME sel                          recompute @layers.**;  freeze @**
  // NAME sel(args)                    filter lang(keep = ...); pack best_fit(seq = 2Ki tokens)
  IT_CALL,
  IT_SECTION,     // NAME { items }                    precision { ... }
  IT_SECTION_SEL, // NAME sel { items }              eval dev { ... }; stage 80% { ... }
  IT_MAP,         // PATTERN = expr                    in `map`
  IT_ERROR,
} ast_item_kind;
struct ast_item {
  ast_item_kind kind;
  lm_loc loc;
  ast_names path; // the key; more than one name only for IT_SET with a dotted path
  ast_expr *sel;  // EX_NAME, EX_PATTERN or EX_QUANTITY; IT_MAP: the pattern
  ast_expr *expr; // value
  ast_arg *args;
  uint32_t n_args, cap_args; // IT_CALL
  ast_items items;           // sections
};

typedef enum {
  DC_IMPORT,
  DC_FN,
  DC_BLOCK,
  DC_MODEL,
  DC_MODEL_INST,
  DC_OPTIMIZER,
  DC_DATA,
  DC_RECIPE,
  DC_LET,
  DC_ERROR
} ast_decl_kind;
struct ast_decl {
  ast_decl_kind kind;
  lm_loc loc; // of the keyword
  ast_name name;
  const char *doc; // comment lines that stand directly above, NULL if none
  // IMPORT: either a quoted path or dotted names; `names` is what is taken (empty: everything)
  lm_sym import_file;
  ast_names import_path;
  ast_names names;
  ast_sig sig;           // FN: all; BLOCK, MODEL, OPTIMIZER: params and where
  ast_body body;         // FN
  ast_members members;   // BLOCK, MODEL, OPTIMIZER
  ast_expr *inst, *from; // MODEL_INST: model X = inst from from
  ast_items items;       // DATA, RECIPE; MODEL_INST: `with` items
  ast_name base;         // DATA, RECIPE extends
  ast_names let_names;
  bool let_tuple;
  ast_expr *let_expr; // LET
};

typedef struct ast_file {
  const char *path;
  uint16_t source;
  ast_decl **v;
  uint32_t n, cap;
} ast_file;

// Parse text already added as a source. Errors go to the context; always returns a tree (with
// *_ERROR nodes where it recovered). Depth of nesting and size of the file are bounded (an error,
// not a crash, beyond).
ast_file *lm_parse_file(lm_ctx *c, uint16_t source);
// Reads and parses; NULL with a diagnostic if it can't be read.
ast_file *lm_parse_path(lm_ctx *c, const char *path, lm_loc wanted_at);
// One `key = value` of --set: an IT_SET/IT_SET_SEL item, or a section item such as `precision {
// compute = bf16 }`.
ast_item *lm_parse_set(lm_ctx *c, const char *text);
ast_item *lm_parse_item(lm_ctx *c, const char *path,
                        const char *text); // the same, `path` standing in messages

// Canonical layout. Idempotent; keeps comments. Only for files that parse without errors.
void lm_fmt(lm_ctx *c, uint16_t source, lm_buf *out);
void lm_ast_print(const ast_file *f, lm_buf *out); // --emit ast: an s-expression a line
const char *lm_op_text(ast_op op);
const char *lm_sig_names(lm_ctx *c, const ast_sig *sig,
                         uint32_t from); // "lr, betas, eps": parameters from that one on
void lm_expr_write(const ast_expr *e,
                   lm_buf *out); // in the language, canonical layout, on one line

// ---- path patterns: @layers.*.attn.{wq,wk}, ** (any depth, `**.` may stand for nothing), # and *
// (one component).
// `#` matches a number. captures: the text that each # or * stood for, in order.
#define LM_PATTERN_CAPTURES 8
typedef struct lm_match {
  lm_sym cap[LM_PATTERN_CAPTURES];
  int n_cap;
  int alt[LM_PATTERN_CAPTURES];
  int n_alt;
} lm_match;
bool lm_pattern_match(lm_ctx *c, const char *pattern, const char *path,
                      lm_match *out /* may be NULL */);
// What is wrong with the form of a pattern, NULL if nothing. The parser lets no other pattern
// through without an error.
const char *lm_pattern_check(const char *pattern);
// Expands the braces of a pattern: n patterns in order, each without braces.
const char **lm_pattern_expand(lm_ctx *c, const char *pattern, int *n);
#endif
