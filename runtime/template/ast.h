// ast.h - the syntax tree of a template. Private to runtime/template.
#ifndef LM_TEMPLATE_AST_H
#define LM_TEMPLATE_AST_H
#include "runtime/template/value.h"

// ---- tokens

typedef enum {
  JT_DATA,
  JT_BEGIN_PRINT, // {{
  JT_END_PRINT,
  JT_BEGIN_TAG, // {%
  JT_END_TAG,
  JT_NAME,
  JT_TEXT, // a string, without quotes and escapes
  JT_WHOLE,
  JT_REAL,
  JT_SIGN, // an operator or a bracket
  JT_END
} jt_token_kind;
typedef struct jt_token {
  jt_token_kind kind;
  const char *p;
  uint32_t n, line;
} jt_token;

// ---- nodes

typedef enum {
  // expressions
  JN_CONST,  // value
  JN_LOOKUP, // text
  JN_LIST,
  JN_TUPLE,
  JN_PAIRS,     // of a dict: list = key, value, …
  JN_ATTRIBUTE, // a.text
  JN_ITEM,      // a[b]
  JN_SLICE,     // a[list[0]:list[1]:list[2]], each NULL if left out
  JN_CALL,      // a(list, names)
  JN_FILTER,    // a|text(list, names); a NULL: of a filter block
  JN_TEST,      // a is text(list)
  JN_NOT,
  JN_NEGATE,
  JN_AND,
  JN_OR,
  JN_CHOICE,  // a if b else c
  JN_BINARY,  // a text b
  JN_CONCAT,  // list[0] ~ list[1] …
  JN_COMPARE, // list[0] names[0] list[1] names[1] …
  // statements
  JN_OUTPUT, // a
  JN_IF,     // a, body, otherwise
  JN_FOR,    // target, a, b: the condition, body, otherwise
  JN_SET,    // target = a
  JN_SET_BLOCK,
  JN_FILTER_BLOCK, // a: the filters
  JN_DEFINE,       // a macro
  JN_BREAK,
  JN_CONTINUE,
  JN_GENERATION
} jt_node_kind;

typedef struct jt_node jt_node;
struct jt_node {
  jt_node_kind kind;
  uint32_t line;
  jt_string text;
  jt_value value;
  jt_node *a, *b, *c;
  jt_node **list; // operands, arguments; NULL members only in a slice
  uint32_t n_list, cap_list;
  jt_string *names; // of the last n_names of list; the operators of a comparison
  uint32_t n_names, cap_names;
  jt_node *target;
  jt_node *body, *otherwise; // first statement
  jt_node *next;             // statement
};

struct jt_macro {
  const jt_node *node;
  struct jt_scope *scope;
};

struct lm_template {
  lm_arena *a;
  const char *what;
  jt_node *body;
  bool generation; // it has {% generation %}
};

// An error of the user with the name of the template and the line.
lm_status jt_fault(const lm_template *t, uint32_t line, const char *fmt, va_list ap);

typedef struct jt_parser {
  lm_template *t;
  jt_token *tokens;
  uint32_t n_tokens, cap_tokens, at;
  int depth, loops;
  lm_status fault;
} jt_parser;

// Sets the fault at `line`, unless there is one; the parser then finds only the end.
void jt_refuse(jt_parser *p, uint32_t line, const char *fmt, ...) LM_PRINTF(3, 4);
void jt_lex(jt_parser *p, const char *text, size_t n);
// The value of a string between quotes.
jt_string jt_unescape(jt_parser *p, const jt_token *t);

const jt_token *jt_peek(const jt_parser *p);
const jt_token *jt_look(const jt_parser *p);                               // the token behind that
bool jt_token_is(const jt_token *t, jt_token_kind kind, const char *text); // text NULL: any
bool jt_at(const jt_parser *p, jt_token_kind kind, const char *text);      // of the next token
bool jt_skip(jt_parser *p, jt_token_kind kind, const char *text); // takes it if it is there
void jt_expect(jt_parser *p, jt_token_kind kind, const char *text);
const char *jt_token_text(jt_parser *p, const jt_token *t); // for messages
jt_string jt_take_name(jt_parser *p);                       // a fault if the next token is no name
jt_node *jt_node_new(jt_parser *p, jt_node_kind kind);
void jt_node_push(jt_parser *p, jt_node *to, jt_node *x);
jt_node *jt_parse_expression(jt_parser *p);
jt_node *jt_parse_tuple(jt_parser *p); // an expression, or several with commas between them
// What a loop iterates: an `if` behind it is the loop's.
jt_node *jt_parse_iterated(jt_parser *p);
jt_node *jt_parse_filters(jt_parser *p, jt_node *of, bool begun); // begun: the first has no `|`
#endif
