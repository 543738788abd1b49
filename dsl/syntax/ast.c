// ast.c - constructors of tree nodes, and the entry points of the parser: a file, a path, one item
// of --set.
#include "dsl/syntax/parse.h"
#include "runtime/base/utf8.h"
#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

int lm_dsl_parse(lm_parser *ps); // bison's

static const char *const OP_TEXT[] = {
    [OP_ADD] = "+",   [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/",
    [OP_MOD] = "mod", [OP_POW] = "^", [OP_AND] = "&", [OP_OR] = "|",
    [OP_EQ] = "==",   [OP_NE] = "!=", [OP_LT] = "<",  [OP_GT] = ">",
    [OP_LE] = "<=",   [OP_GE] = ">=", [OP_IN] = "in", [OP_DIVIDES] = "divides",
};

const char *lm_op_text(ast_op op) {
  return OP_TEXT[op];
}

const char *lm_sig_names(lm_ctx *c, const ast_sig *sig, uint32_t from) {
  const char *list = "";
  for (uint32_t i = from; i < sig->n_params; i++)
    list =
        lm_arena_printf(c->arena, "%s%s%s", list, i > from ? ", " : "", sig->params[i].name.text);
  return *list ? list : "no arguments";
}

// ---- expressions

ast_expr *lm_expr_new(lm_parser *ps, ast_expr_kind kind, lm_loc at) {
  ast_expr *e = LM_NEW(ps->ctx->arena, ast_expr);
  e->kind = kind;
  e->loc = at;
  e->height = 1;
  return e;
}

static void raise_over(uint32_t *height, const ast_expr *child) {
  if (child && child->height >= *height)
    *height = child->height + 1u;
}

ast_expr *lm_expr_seal(lm_parser *ps, ast_expr *e) {
  uint32_t height = 1;
  raise_over(&height, e->a);
  raise_over(&height, e->b);
  raise_over(&height, e->c);
  for (uint32_t i = 0; i < e->n_args; i++) {
    raise_over(&height, e->args[i].expr);
    raise_over(&height, e->args[i].to);
  }
  e->height = (uint16_t)height;
  if (height <= LM_MAX_HEIGHT)
    return e;
  if (!lm_layout_stopped(ps->layout)) {
    lm_diag *d = LM_REPORT(ps->ctx, e->loc, E008, LM_MAX_HEIGHT);
    lm_diag_help(ps->ctx, d, "give names to parts of it with 'let'");
  }
  lm_layout_stop(ps->layout);
  return lm_expr_new(ps, EX_ERROR, e->loc);
}

ast_expr *lm_expr_binary(lm_parser *ps, ast_op op, lm_loc at, ast_expr *a, ast_expr *b) {
  ast_expr *e = lm_expr_new(ps, EX_BINARY, at);
  e->op = op;
  e->a = a;
  e->b = b;
  return lm_expr_seal(ps, e);
}

static void set_args(ast_expr *e, ast_args args) {
  e->args = args.v;
  e->n_args = args.n;
  e->cap_args = args.cap;
  e->trailing_comma = args.trailing_comma;
}

// True if the arguments are the two parts of a number with a comma: lr = 1,5 or seq = 1,024 tokens.
static bool has_comma(const ast_arg *a, const ast_arg *b) {
  bool numbers = a->expr && a->expr->kind == EX_NUMBER && b->expr &&
                 (b->expr->kind == EX_NUMBER || b->expr->kind == EX_QUANTITY);
  return numbers && b->loc.line == a->expr->loc.line &&
         b->loc.col == a->expr->loc.col + a->expr->loc.len + 1;
}

// Three digits after the comma group thousands, unless the number begins with 0.
const char *lm_number_comma_help(lm_ctx *c, const char *before, const char *after) {
  static const char digits[] = "0123456789";
  int n = (int)strspn(after, digits);
  bool more = before[strspn(before, digits)] || after[n] == '.' || isalpha((unsigned char)after[n]);
  if (!n || more)
    return "a number has no comma: write 1.5 or 1_000";
  if (n == 3 && *before != '0')
    return lm_arena_printf(c->arena, "write %s%.3s or %s_%.3s; a decimal comma is a point: %s.%.3s",
                           before, after, before, after, before, after);
  return lm_arena_printf(c->arena, "write %s.%.*s", before, n, after);
}

// As in Python: the index of a positional argument after a named one would not determine its
// parameter.
void lm_args_check_order(lm_parser *ps, const ast_args *args) {
  const ast_arg *named = NULL;
  for (uint32_t i = 0; i < args->n; i++) {
    const ast_arg *a = &args->v[i];
    if (a->kind == ARG_NAMED)
      named = a;
    if (a->kind != ARG_POS || !named)
      continue;
    lm_diag *d = LM_REPORT(ps->ctx, a->loc, E011, named->name);
    lm_diag_help(ps->ctx, d, "%s",
                 has_comma(named, a)
                     ? lm_number_comma_help(ps->ctx, named->expr->spelling, a->expr->spelling)
                     : "name this argument too, or move it before the named arguments");
    return;
  }
}

ast_expr *lm_expr_postfix(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_expr *a,
                          ast_args args) {
  ast_expr *e = lm_expr_new(ps, kind, at);
  if (kind == EX_CALL)
    lm_args_check_order(ps, &args);
  e->a = a;
  set_args(e, args);
  return lm_expr_seal(ps, e);
}

ast_expr *lm_expr_group(lm_parser *ps, ast_expr_kind kind, lm_loc at, ast_args args) {
  if (kind == EX_TUPLE && args.n == 1 && args.v[0].kind == ARG_POS && !args.trailing_comma)
    return args.v[0].expr;
  return lm_expr_postfix(ps, kind, at, NULL, args);
}

ast_item *lm_item_new(lm_parser *ps, ast_item_kind kind, ast_name key) {
  ast_item *i = LM_NEW(ps->ctx->arena, ast_item);
  i->kind = kind;
  i->loc = key.loc;
  if (key.text)
    LM_PUSH(ps->ctx->arena, i->path.v, i->path.n, i->path.cap) = key;
  return i;
}

// ---- entry points

static bool too_large(lm_ctx *c, uint16_t source) {
  lm_loc at = {source, 0, 1, 1};
  bool large = c->sources[source].n > LM_MAX_FILE_BYTES;
  if (large)
    LM_REPORT(c, at, E00D, c->sources[source].n, LM_MAX_FILE_BYTES);
  return large;
}

// The functions after this check may assume UTF-8 without NUL bytes.
static bool is_text(lm_ctx *c, uint16_t source) {
  const lm_source *s = &c->sources[source];
  uint32_t line = 1, v;
  for (size_t i = 0, start = 0; i < s->n;) {
    int len = lm_utf8_decode(s->text + i, s->n - i, &v);
    if (!len || !v) {
      lm_loc at = {source, 1, line, (uint32_t)(i - start + 1)};
      lm_diag *d =
          LM_REPORT(c, at, E00C, (unsigned char)s->text[i], len ? "not a character" : "not UTF-8");
      lm_diag_help(c, d, ".lm files are UTF-8");
      return false;
    }
    i += (size_t)len;
    if (v == '\n') {
      line++;
      start = i;
    }
  }
  return true;
}

static void ast_parse(lm_parser *ps, bool is_item) {
  if (too_large(ps->ctx, ps->source) || !is_text(ps->ctx, ps->source))
    return;
  ps->layout = lm_layout_create(ps->ctx, ps->source, is_item);
  lm_dsl_parse(ps);
  lm_layout_destroy(ps->layout);
}

ast_file *lm_parse_file(lm_ctx *c, uint16_t source) {
  lm_parser ps = {
      .ctx = c,
      .source = source,
      .file = LM_NEW(c->arena, ast_file),
  };
  ps.file->path = c->sources[source].path;
  ps.file->source = source;
  ast_parse(&ps, false);
  return ps.file;
}

static void help_unreadable(lm_ctx *c, lm_diag *d, const char *path) {
  struct stat st;
  const char *with_suffix = lm_arena_printf(c->arena, "%s.lm", path);
  bool exists = !stat(path, &st);
  if (exists && S_ISDIR(st.st_mode))
    lm_diag_help(
        c, d, "give the path of a .lm file; the program of a run is in its folder under program/");
  else if (!exists && !stat(with_suffix, &st))
    lm_diag_help(c, d, "did you mean %s?", with_suffix);
}

ast_file *lm_parse_path(lm_ctx *c, const char *path, lm_loc import_at) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, LM_MAX_FILE_BYTES, &text);
  if (s) {
    lm_diag *d = LM_REPORT(c, import_at, E001, s->text);
    help_unreadable(c, d, path);
    lm_status_free(s);
    lm_buf_free(&text);
    return NULL;
  }
  size_t bom = text.n >= 3 && !memcmp(text.p, "\xef\xbb\xbf", 3) ? 3 : 0;
  uint16_t source = lm_source_add(c, path, text.p ? text.p + bom : "", text.n - bom);
  lm_buf_free(&text);
  return lm_parse_file(c, source);
}

ast_item *lm_parse_item(lm_ctx *c, const char *path, const char *text) {
  lm_parser ps = {
      .ctx = c,
      .source = lm_source_add(c, path, text, strlen(text)),
  };
  ast_parse(&ps, true);
  return ps.item ? ps.item : lm_item_new(&ps, IT_ERROR, (ast_name){0});
}

ast_item *lm_parse_set(lm_ctx *c, const char *text) {
  return lm_parse_item(c, "--set", text);
}
