// ast_print.c - prints the tree as s-expressions, one line for each declaration, member, statement
// and item, without locations. Two files have the same text exactly if their trees are equal.
#include "dsl/syntax/ast.h"
#include <string.h>

typedef struct printer {
  lm_buf *out;
  int depth;
} printer;

static void line(printer *p) {
  lm_buf_printf(p->out, "\n%*s", 2 * p->depth, "");
}
static void put(printer *p, const char *s) {
  lm_buf_puts(p->out, s);
}
static void print_expr(printer *p, const ast_expr *e);
static void print_body(printer *p, const ast_body *b);
static void print_items(printer *p, const ast_items *items);

// ---- expressions and types

static void print_arg(printer *p, const ast_arg *a) {
  switch (a->kind) {
  case ARG_POS: print_expr(p, a->expr); break;
  case ARG_NAMED:
    lm_buf_printf(p->out, "(= %s ", a->name);
    print_expr(p, a->expr);
    put(p, ")");
    break;
  case ARG_ARROW:
    put(p, "(-> ");
    print_expr(p, a->expr);
    put(p, " ");
    print_expr(p, a->to);
    put(p, ")");
    break;
  case ARG_ROW: lm_buf_printf(p->out, "..%s", a->name); break;
  }
}

static void print_args(printer *p, const char *head, const ast_expr *first, const ast_arg *args,
                       uint32_t n) {
  lm_buf_printf(p->out, "(%s", head);
  if (first) {
    put(p, " ");
    print_expr(p, first);
  }
  for (uint32_t i = 0; i < n; i++) {
    put(p, " ");
    print_arg(p, &args[i]);
  }
  put(p, ")");
}

static void print_operands(printer *p, const char *head, const ast_expr *a, const ast_expr *b,
                           const ast_expr *c) {
  const ast_expr *const v[] = {a, b, c};
  lm_buf_printf(p->out, "(%s", head);
  for (int i = 0; i < 3 && v[i]; i++) {
    put(p, " ");
    print_expr(p, v[i]);
  }
  put(p, ")");
}

static void print_expr(printer *p, const ast_expr *e) {
  switch (e->kind) {
  case EX_NAME:
  case EX_PATTERN: put(p, e->text); break;
  case EX_NUMBER:
    if (e->is_int)
      lm_buf_printf(p->out, "%lld", (long long)e->inum);
    else
      lm_buf_printf(p->out, "%.17g", e->num);
    break;
  case EX_QUANTITY: lm_buf_printf(p->out, "(%s %.17g)", e->unit, e->num); break;
  case EX_STRING: lm_buf_json(p->out, e->text); break;
  case EX_TUPLE:
    print_args(p, e->trailing_comma && e->n_args == 1 ? "tuple1" : "tuple", NULL, e->args,
               e->n_args);
    break;
  case EX_LIST: print_args(p, "list", NULL, e->args, e->n_args); break;
  case EX_CALL: print_args(p, "call", e->a, e->args, e->n_args); break;
  case EX_INDEX: print_args(p, "index", e->a, e->args, e->n_args); break;
  case EX_FIELD:
    put(p, "(. ");
    print_expr(p, e->a);
    lm_buf_printf(p->out, " %s)", e->text);
    break;
  case EX_NEG: print_operands(p, "neg", e->a, NULL, NULL); break;
  case EX_BINARY: print_operands(p, lm_op_text(e->op), e->a, e->b, NULL); break;
  case EX_IF: print_operands(p, "if", e->c, e->a, e->b); break;
  case EX_ERROR: put(p, "(error)"); break;
  }
}

static void print_type(printer *p, const ast_type *t) {
  if (t->name && !t->has_dims) {
    put(p, t->name);
    return;
  }
  lm_buf_printf(p->out, "(%s", t->name ? t->name : "tuple");
  for (uint32_t i = 0; i < t->n_dims; i++)
    if (t->dims[i].row)
      lm_buf_printf(p->out, " ..%s", t->dims[i].row);
    else {
      put(p, " ");
      print_expr(p, t->dims[i].expr);
    }
  for (uint32_t i = 0; i < t->n_tuple; i++) {
    put(p, " ");
    print_type(p, t->tuple[i]);
  }
  put(p, ")");
}

static void print_names(printer *p, const ast_names *names) {
  put(p, "(");
  for (uint32_t i = 0; i < names->n; i++)
    lm_buf_printf(p->out, "%s%s", i ? " " : "", names->v[i].text);
  put(p, ")");
}

static void print_sig(printer *p, const ast_sig *s) {
  put(p, " (params");
  for (uint32_t i = 0; i < s->n_params; i++) {
    const ast_param *x = &s->params[i];
    lm_buf_printf(p->out, " (%s", x->name.text);
    if (x->type) {
      put(p, " ");
      print_type(p, x->type);
    }
    if (x->init) {
      put(p, " = ");
      print_expr(p, x->init);
    }
    put(p, ")");
  }
  put(p, ")");
  if (s->ret) {
    put(p, " -> ");
    print_type(p, s->ret);
  }
  for (uint32_t i = 0; i < s->where.n; i++) {
    put(p, i ? " " : " where ");
    print_expr(p, s->where.v[i]);
  }
}

// ---- statements, items, members

static void print_stmt(printer *p, const ast_stmt *s) {
  static const char *const heads[] = {"let", "set", "return", "emit", "add", "for", "error"};
  lm_buf_printf(p->out, "(%s", heads[s->kind]);
  if (s->is_tuple) {
    put(p, " ");
    print_names(p, &s->names);
  } else if (s->names.n)
    lm_buf_printf(p->out, " %s", s->names.v[0].text);
  if (s->expr) {
    put(p, " ");
    print_expr(p, s->expr);
  }
  if (s->kind == ST_FOR) {
    put(p, " carry ");
    print_names(p, &s->carry);
    print_body(p, &s->body);
  }
  put(p, ")");
}

static void print_body(printer *p, const ast_body *b) {
  p->depth++;
  for (uint32_t i = 0; i < b->n; i++) {
    line(p);
    print_stmt(p, b->v[i]);
  }
  p->depth--;
}

static void print_item(printer *p, const ast_item *it) {
  static const char *const heads[] = {"set",     "set-sel",     "do",  "call",
                                      "section", "section-sel", "map", "error"};
  lm_buf_printf(p->out, "(%s ", heads[it->kind]);
  for (uint32_t i = 0; i < it->path.n; i++)
    lm_buf_printf(p->out, "%s%s", i ? "." : "", it->path.v[i].text);
  if (it->sel) {
    put(p, " ");
    print_expr(p, it->sel);
  }
  if (it->kind == IT_CALL) {
    put(p, " ");
    print_args(p, "args", NULL, it->args, it->n_args);
  }
  if (it->expr) {
    put(p, " ");
    print_expr(p, it->expr);
  }
  print_items(p, &it->items);
  put(p, ")");
}

static void print_items(printer *p, const ast_items *items) {
  p->depth++;
  for (uint32_t i = 0; i < items->n; i++) {
    line(p);
    print_item(p, items->v[i]);
  }
  p->depth--;
}

static void print_dims(printer *p, const ast_member *m) {
  for (uint32_t i = 0; i < m->names.n; i++) {
    lm_buf_printf(p->out, " (%s ", m->names.v[i].text);
    print_expr(p, m->exprs.v[i]);
    put(p, ")");
  }
}

static void print_member(printer *p, const ast_member *m) {
  static const char *const heads[] = {"dim",    "param", "state", "sub",  "map",
                                      "method", "after", "extra", "error"};
  lm_buf_printf(p->out, "(%s", heads[m->kind]);
  if (m->kind == MB_DIM)
    print_dims(p, m);
  else {
    put(p, " ");
    print_names(p, &m->names);
  }
  if (m->type) {
    put(p, " ");
    print_type(p, m->type);
  }
  if (m->count) {
    lm_buf_printf(p->out, " [%s < ", m->index.text);
    print_expr(p, m->count);
    put(p, "]");
  }
  if (m->init) {
    put(p, " ");
    print_expr(p, m->init);
  }
  if (m->from) {
    put(p, " from ");
    print_expr(p, m->from);
  }
  if (m->kind == MB_METHOD)
    print_sig(p, &m->sig);
  if (m->kind == MB_METHOD || m->kind == MB_AFTER)
    print_body(p, &m->body);
  print_items(p, &m->items);
  put(p, ")");
}

// ---- declarations

static void print_import(printer *p, const ast_decl *d) {
  put(p, " ");
  if (d->import_file)
    lm_buf_json(p->out, d->import_file);
  for (uint32_t i = 0; i < d->import_path.n; i++)
    lm_buf_printf(p->out, "%s%s", i ? "." : "", d->import_path.v[i].text);
  put(p, " ");
  print_names(p, &d->names);
}

static void print_decl(printer *p, const ast_decl *d) {
  static const char *const heads[] = {"import", "fn",   "block",  "model", "instance", "optimizer",
                                      "format", "data", "recipe", "let",   "error"};
  lm_buf_printf(p->out, "(%s", heads[d->kind]);
  if (d->kind == DC_IMPORT)
    print_import(p, d);
  else if (d->let_tuple) {
    put(p, " ");
    print_names(p, &d->let_names);
  } else if (d->name.text)
    lm_buf_printf(p->out, " %s", d->name.text);
  if (d->base.text)
    lm_buf_printf(p->out, " extends %s", d->base.text);
  if (d->kind == DC_FN || d->kind == DC_BLOCK || d->kind == DC_MODEL || d->kind == DC_OPTIMIZER ||
      d->kind == DC_FORMAT)
    print_sig(p, &d->sig);
  if (d->inst) {
    put(p, " ");
    print_expr(p, d->inst);
  }
  if (d->from) {
    put(p, " from ");
    print_expr(p, d->from);
  }
  if (d->let_expr) {
    put(p, " ");
    print_expr(p, d->let_expr);
  }
  print_body(p, &d->body);
  p->depth++;
  for (uint32_t i = 0; i < d->members.n; i++) {
    line(p);
    print_member(p, d->members.v[i]);
  }
  p->depth--;
  print_items(p, &d->items);
  put(p, ")\n");
}

void lm_ast_print(const ast_file *f, lm_buf *out) {
  printer p = {out, 0};
  for (uint32_t i = 0; i < f->n; i++)
    print_decl(&p, f->v[i]);
}
