// ast.h - the syntax tree of one .lm file. It lives in the arena of the context. The parser checks
// only syntax: whether names exist and types agree is checked by dsl/elab and dsl/recipe.
#ifndef LM_AST_H
#define LM_AST_H
#include "runtime/base/diag.h"

typedef struct ast_expr ast_expr;
typedef struct ast_type ast_type;
typedef struct ast_stmt ast_stmt;
typedef struct ast_item ast_item;
typedef struct ast_decl ast_decl;

typedef enum {
  EX_NAME,   // text
  EX_NUMBER, // num, is_int, and inum if is_int; the magnitude is applied: 2Ki is 2048
  // num, unit: "tokens", "steps", "epochs", "docs", "seqs", "bytes", "s" or "%". Bytes and times
  // are in base units (72GB is 72e9 bytes, 10 min is 600 s); 10% has num = 10.
  EX_QUANTITY,
  EX_STRING,  // text, with escapes resolved
  EX_PATTERN, // text, with the leading @
  EX_TUPLE,   // args: "()", "(a, b)", "(a = 1)", "(t -> s)"; "(a)" is the expression a
  EX_LIST,    // args; [a, b]
  EX_CALL,    // a = callee, args
  EX_INDEX,   // a, args
  EX_FIELD,   // a, text
  EX_NEG,     // a
  EX_BINARY,  // op, a, b
  EX_IF,      // c, a, b:  if c then a else b
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
  ARG_POS,   // expr
  ARG_NAMED, // name = expr
  ARG_ARROW, // expr -> to
  ARG_ROW    // ..name
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
  lm_loc loc;  // the operator of EX_BINARY, the name of EX_FIELD, else the first token
  lm_sym text; // see ast_expr_kind
  lm_sym unit;
  double num;
  int64_t inum;
  bool is_int;
  lm_sym spelling; // the source text of numbers and quantities
  ast_op op;
  ast_expr *a, *b, *c;
  ast_arg *args;
  uint32_t n_args, cap_args;
  bool trailing_comma;
  uint16_t height; // height of this tree, bounded by the parser so that walks may recurse
};

// An axis of a type: an expression, or the row variable ..row.
typedef struct ast_dim {
  lm_loc loc;
  lm_sym row; // NULL for an expression
  ast_expr *expr;
} ast_dim;

// NAME, NAME[dims] or (types)
struct ast_type {
  lm_loc loc;
  lm_sym name;   // NULL for a tuple
  bool has_dims; // f32[] and f32 are the same type
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
  ST_ADD,
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
  ast_names
      names; // LET: one name, or several if is_tuple; SET, EMIT, ADD: one; FOR: the loop variable
  bool is_tuple;
  ast_expr *expr;  // the value; FOR: the list or trip count
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
  MB_AFTER, // after_step { … }
  MB_EXTRA, // extra NAME = (every = …), of an optimizer
  MB_ERROR
} ast_member_kind;
typedef struct ast_items {
  ast_item **v;
  uint32_t n, cap;
} ast_items;
typedef struct ast_member {
  ast_member_kind kind;
  lm_loc loc;
  // DIM: one for each of exprs; PARAM, STATE: all names of a type and init; SUB, MAP, METHOD: one
  ast_names names;
  ast_exprs exprs; // DIM: the sizes
  ast_type *type;  // PARAM, STATE
  ast_expr *init;  // PARAM, STATE: initialiser; SUB: the instance; EXTRA: its arguments
  ast_expr *from;  // SUB: `from "..."` or NULL
  ast_name index;
  ast_expr *count; // SUB xs[index < count]; NULL for a single instance
  ast_items items; // MAP
  ast_sig sig;
  ast_body body; // METHOD, AFTER
} ast_member;
typedef struct ast_members {
  ast_member **v;
  uint32_t n, cap;
} ast_members;

// A line of a data or recipe section.
typedef enum {
  IT_SET,         // path = expr       model = Llama(); optimizer.lr = 1e-3
  IT_SET_SEL,     // NAME sel = expr   source web = jsonl(...); group @x = (decay = 0)
  IT_DO,          // NAME sel          recompute @layers.**
  IT_CALL,        // NAME sel(args)    pack best_fit(seq = 2Ki tokens)
  IT_SECTION,     // NAME { items }    precision { ... }
  IT_SECTION_SEL, // NAME sel { items }    eval dev { ... }; stage 80% { ... }
  IT_MAP,         // PATTERN = expr    in `map`
  IT_ERROR,
} ast_item_kind;
struct ast_item {
  ast_item_kind kind;
  lm_loc loc;
  ast_names path; // the key; only IT_SET may have several names, a dotted path
  ast_expr *sel;  // EX_NAME, EX_PATTERN or EX_QUANTITY; IT_MAP: the pattern
  ast_expr *expr; // the value
  ast_arg *args;  // IT_CALL
  uint32_t n_args, cap_args;
  ast_items items; // IT_SECTION, IT_SECTION_SEL
};

typedef enum {
  DC_IMPORT,
  DC_FN,
  DC_BLOCK,
  DC_MODEL,
  DC_MODEL_INST,
  DC_OPTIMIZER,
  DC_FORMAT,
  DC_DATA,
  DC_RECIPE,
  DC_LET,
  DC_ERROR
} ast_decl_kind;
struct ast_decl {
  ast_decl_kind kind;
  lm_loc loc; // the keyword
  ast_name name;
  const char *doc; // the comment lines directly above, NULL if there are none
  // IMPORT: a quoted path or dotted names; `names` are imported, all if it is empty
  lm_sym import_file;
  ast_names import_path;
  ast_names names;
  ast_sig sig;           // FN: all; BLOCK, MODEL, OPTIMIZER, FORMAT: params and where
  ast_body body;         // FN
  ast_members members;   // BLOCK, MODEL, OPTIMIZER, FORMAT
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

// Parses the text of a source of the context. Errors go to the context. Always returns a tree, with
// *_ERROR nodes for the skipped parts. Too deep nesting and too large files are errors.
ast_file *lm_parse_file(lm_ctx *c, uint16_t source);
// Reads and parses a file; NULL after an error if it cannot be read. import_at: the location for
// that error.
ast_file *lm_parse_path(lm_ctx *c, const char *path, lm_loc import_at);
// Parses the text of one --set: an IT_SET or IT_SET_SEL item, or a section such as
// `precision { compute = bf16 }`. lm_parse_item names the source `path` in messages.
ast_item *lm_parse_set(lm_ctx *c, const char *text);
ast_item *lm_parse_item(lm_ctx *c, const char *path, const char *text);

// Formats a source that parses without errors. Idempotent; keeps comments.
void lm_fmt(lm_ctx *c, uint16_t source, lm_buf *out);
// Prints the tree as s-expressions, one for each declaration (--emit ast).
void lm_ast_print(const ast_file *f, lm_buf *out);
const char *lm_op_text(ast_op op);
// The names of the parameters from index `from` on: "lr, betas, eps".
const char *lm_sig_names(lm_ctx *c, const ast_sig *sig, uint32_t from);
// Writes an expression in the syntax of the language on one line.
void lm_expr_write(const ast_expr *e, lm_buf *out);

// ---- path patterns
//
// A pattern such as @layers.*.attn.{wq,wk} matches paths of parameters. `*` is any one component,
// `#` a number, `**` any number of components (`**.` also none).
#define LM_PATTERN_CAPTURES 8
typedef struct lm_match {
  lm_sym cap[LM_PATTERN_CAPTURES]; // the components that each # and * matched, in order
  int n_cap;
  int alt[LM_PATTERN_CAPTURES]; // the index of the alternative that each brace matched, in order
  int n_alt;
} lm_match;
// `out` is optional.
bool lm_pattern_match(lm_ctx *c, const char *pattern, const char *path, lm_match *out);
// Describes the syntax error of a pattern; NULL if there is none. The parser checks all patterns.
const char *lm_pattern_check(const char *pattern);
// Expands the braces of a pattern to *n patterns without braces, in order.
const char **lm_pattern_expand(lm_ctx *c, const char *pattern, int *n);
#endif
