// ast_write.c - writes expressions in the syntax of the language, with the parentheses that
// precedence requires.
#include "dsl/syntax/ast.h"
#include "runtime/base/utf8.h"
#include <string.h>

enum {
  LOWEST = 0,
  NEGATION = 6,
  POWER = 7,
  PRIMARY = 8
};

static const struct {
  int level;
  bool nonassoc;
} LEVELS[] = {
    [OP_OR] = {1},    [OP_AND] = {2},        [OP_EQ] = {3, 1}, [OP_NE] = {3, 1},
    [OP_LT] = {3, 1}, [OP_GT] = {3, 1},      [OP_LE] = {3, 1}, [OP_GE] = {3, 1},
    [OP_IN] = {3, 1}, [OP_DIVIDES] = {3, 1}, [OP_ADD] = {4},   [OP_SUB] = {4},
    [OP_MUL] = {5},   [OP_DIV] = {5},        [OP_MOD] = {5},   [OP_POW] = {POWER},
};

static void write_at(const ast_expr *e, int min_level, lm_buf *out);

static int level_of(const ast_expr *e) {
  switch (e->kind) {
  case EX_BINARY: return LEVELS[e->op].level;
  case EX_NEG: return NEGATION;
  case EX_IF: return LOWEST;
  default: return PRIMARY;
  }
}

static void write_args(const char *open, const ast_expr *e, const char *close, lm_buf *out) {
  lm_buf_puts(out, open);
  for (uint32_t i = 0; i < e->n_args; i++) {
    const ast_arg *a = &e->args[i];
    if (i)
      lm_buf_puts(out, ", ");
    if (a->kind == ARG_ROW)
      lm_buf_printf(out, "..%s", a->name);
    if (a->kind == ARG_NAMED)
      lm_buf_printf(out, "%s = ", a->name);
    if (a->expr)
      write_at(a->expr, LOWEST, out);
    if (a->kind == ARG_ARROW) {
      lm_buf_puts(out, " -> ");
      write_at(a->to, LOWEST, out);
    }
  }
  if (e->kind == EX_TUPLE && e->n_args == 1 && e->trailing_comma)
    lm_buf_puts(out, ",");
  lm_buf_puts(out, close);
}

static void write_string(const char *s, lm_buf *out) {
  lm_buf_puts(out, "\"");
  for (int n; *s; s += n) {
    static const char special[] = "\n\r\t\"\\", letters[] = "nrt\"\\";
    const char *at = strchr(special, *s);
    uint32_t v = (unsigned char)*s;
    n = lm_utf8_decode(s, strlen(s), &v);
    if (!n)
      n = 1;
    if (at)
      lm_buf_printf(out, "\\%c", letters[at - special]);
    else if (lm_utf8_is_hidden(v))
      lm_buf_printf(out, "\\u{%x}", v);
    else
      lm_buf_add(out, s, (size_t)n);
  }
  lm_buf_puts(out, "\"");
}

static void write_binary(const ast_expr *e, lm_buf *out) {
  int level = LEVELS[e->op].level;
  bool right = e->op == OP_POW;
  write_at(e->a, level + (right || LEVELS[e->op].nonassoc), out);
  lm_buf_printf(out, " %s ", lm_op_text(e->op));
  if (right && e->b->kind == EX_NEG)
    write_at(e->b, LOWEST, out); // 2 ^ -x needs no parentheses
  else
    write_at(e->b, level + !right, out);
}

static void write_plain(const ast_expr *e, lm_buf *out) {
  switch (e->kind) {
  case EX_NAME:
  case EX_PATTERN: lm_buf_puts(out, e->text); break;
  case EX_NUMBER:
  case EX_QUANTITY: lm_buf_puts(out, e->spelling); break;
  case EX_STRING: write_string(e->text, out); break;
  case EX_TUPLE: write_args("(", e, ")", out); break;
  case EX_LIST: write_args("[", e, "]", out); break;
  case EX_CALL:
    write_at(e->a, PRIMARY, out);
    write_args("(", e, ")", out);
    break;
  case EX_INDEX:
    write_at(e->a, PRIMARY, out);
    write_args("[", e, "]", out);
    break;
  case EX_FIELD:
    write_at(e->a, PRIMARY, out);
    lm_buf_printf(out, ".%s", e->text);
    break;
  case EX_NEG:
    lm_buf_puts(out, "-");
    write_at(e->a, NEGATION, out);
    break;
  case EX_BINARY: write_binary(e, out); break;
  case EX_IF:
    lm_buf_puts(out, "if ");
    write_at(e->c, LOWEST, out);
    lm_buf_puts(out, " then ");
    write_at(e->a, LOWEST, out);
    lm_buf_puts(out, " else ");
    write_at(e->b, LOWEST, out);
    break;
  case EX_ERROR: lm_buf_puts(out, "?"); break;
  }
}

static void write_at(const ast_expr *e, int min_level, lm_buf *out) {
  bool parens = level_of(e) < min_level;
  if (parens)
    lm_buf_puts(out, "(");
  write_plain(e, out);
  if (parens)
    lm_buf_puts(out, ")");
}

void lm_expr_write(const ast_expr *e, lm_buf *out) {
  write_at(e, LOWEST, out);
}
