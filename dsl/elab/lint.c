// lint.c - unused names and unreachable statements, found in the syntax tree.
//
// A body is walked from its end to its beginning with the set of names that later statements use,
// so that a `let` is distinguished from another one of the same name that shadows it. Members and
// parameters of a declaration are used if any of its bodies, types or constraints names them.
// Members are also used if any file of the program selects a field of that name.
#include "dsl/elab/lint.h"
#include "runtime/base/diag_code.h"
#include <string.h>

// ---- a set of names

typedef struct name_slot {
  lm_sym name;
  bool in;
} name_slot;
typedef struct name_set {
  lm_arena *a;
  name_slot *v;
  uint32_t n, cap;
} name_set;

static name_slot *slot_of(const name_set *s, lm_sym name) {
  uint32_t i = (uint32_t)(((uintptr_t)name >> 4) * 0x9e3779b1u) & (s->cap - 1);
  while (s->v[i].name && s->v[i].name != name)
    i = (i + 1) & (s->cap - 1);
  return &s->v[i];
}

static void grow(name_set *s) {
  name_set larger = {
      .a = s->a,
      .n = s->n,
      .cap = s->cap ? 2 * s->cap : 32,
  };
  larger.v = LM_NEW_N(s->a, name_slot, larger.cap);
  for (uint32_t i = 0; i < s->cap; i++)
    if (s->v[i].name)
      *slot_of(&larger, s->v[i].name) = s->v[i];
  *s = larger;
}

static void set_put(name_set *s, lm_sym name, bool in) {
  if (2 * (s->n + 1) > s->cap)
    grow(s);
  name_slot *slot = slot_of(s, name);
  s->n += !slot->name;
  *slot = (name_slot){name, in};
}

static bool set_has(const name_set *s, lm_sym name) {
  return s->cap && slot_of(s, name)->in;
}

// ---- uses

typedef struct lint {
  lm_ctx *c;
  name_set fields; // selected anywhere in the program: x.NAME
  name_set used;   // by the current declaration
} lint;

typedef struct uses {
  lint *l;
  name_set *later; // names that later statements use; NULL outside of bodies
} uses;

static void use(const uses *u, lm_sym name) {
  set_put(&u->l->used, name, true);
  if (u->later)
    set_put(u->later, name, true);
}

static void use_expr(const uses *u, const ast_expr *e) {
  if (!e)
    return;
  if (e->kind == EX_NAME)
    use(u, e->text);
  use_expr(u, e->a);
  use_expr(u, e->b);
  use_expr(u, e->c);
  for (uint32_t i = 0; i < e->n_args; i++) {
    const ast_arg *a = &e->args[i];
    if (a->kind == ARG_ROW)
      use(u, a->name);
    if (a->kind == ARG_NAMED)
      use(u, a->name); // expand(x, c = n) names an axis
    use_expr(u, a->expr);
    use_expr(u, a->to);
  }
}

static void use_type(const uses *u, const ast_type *t) {
  if (!t)
    return;
  for (uint32_t i = 0; i < t->n_dims; i++) {
    if (t->dims[i].row)
      use(u, t->dims[i].row);
    else
      use_expr(u, t->dims[i].expr);
  }
  for (uint32_t i = 0; i < t->n_tuple; i++)
    use_type(u, t->tuple[i]);
}

static void use_sig(const uses *u, const ast_sig *sig) {
  for (uint32_t i = 0; i < sig->n_params; i++) {
    use_type(u, sig->params[i].type);
    use_expr(u, sig->params[i].init);
  }
  use_type(u, sig->ret);
  for (uint32_t i = 0; i < sig->where.n; i++)
    use_expr(u, sig->where.v[i]);
}

// ---- bodies

static bool is_exempt(lm_sym name) {
  return name[0] == '_';
}

static void warn_let(lint *l, const ast_name *name) {
  lm_diag *d = LM_REPORT(l->c, name->loc, W001, name->text);
  lm_diag_help(l->c, d, "delete it, or rename it to _%s", name->text);
}

static void body_walk(lint *l, const ast_body *body, name_set *later);

static void let_walk(lint *l, const ast_stmt *st, name_set *later) {
  uses u = {l, later};
  for (uint32_t i = 0; i < st->names.n; i++) {
    const ast_name *name = &st->names.v[i];
    if (!set_has(later, name->text) && !is_exempt(name->text))
      warn_let(l, name);
    set_put(later, name->text, false);
  }
  use_expr(&u, st->expr);
}

// The carries are used after the body, as results of the loop, and before it, as its inputs.
static void for_walk(lint *l, const ast_stmt *st, name_set *later) {
  uses u = {l, later};
  for (uint32_t i = 0; i < st->carry.n; i++)
    use(&u, st->carry.v[i].text);
  body_walk(l, &st->body, later);
  for (uint32_t i = 0; i < st->carry.n; i++)
    use(&u, st->carry.v[i].text);
  use_expr(&u, st->expr);
}

static void stmt_walk(lint *l, const ast_stmt *st, name_set *later) {
  uses u = {l, later};
  if (st->kind == ST_LET)
    let_walk(l, st, later);
  else if (st->kind == ST_FOR)
    for_walk(l, st, later);
  else
    use_expr(&u, st->expr);
}

static void warn_unreachable(lint *l, const ast_body *body) {
  for (uint32_t i = 0; i + 1 < body->n; i++) {
    if (body->v[i]->kind != ST_RETURN)
      continue;
    lm_diag *d = LM_REPORT(l->c, body->v[i + 1]->loc, W004);
    lm_diag_note(l->c, d, body->v[i]->loc, "the function returns here");
    return;
  }
}

static void body_walk(lint *l, const ast_body *body, name_set *later) {
  warn_unreachable(l, body);
  for (uint32_t i = body->n; i-- > 0;)
    stmt_walk(l, body->v[i], later);
}

// A statement that could not be parsed may use any name.
static bool is_whole(const ast_body *body) {
  for (uint32_t i = 0; i < body->n; i++)
    if (body->v[i]->kind == ST_ERROR ||
        (body->v[i]->kind == ST_FOR && !is_whole(&body->v[i]->body)))
      return false;
  return true;
}

// ---- declarations

// The first two parameters of a schedule are given by the caller.
static bool is_schedule(const ast_sig *sig) {
  return sig->n_params >= 2 && !strcmp(sig->params[0].name.text, "step") &&
         !strcmp(sig->params[1].name.text, "run");
}

static void params_check(lint *l, const ast_decl *d) {
  for (uint32_t i = d->kind == DC_FN && is_schedule(&d->sig) ? 2 : 0; i < d->sig.n_params; i++) {
    const ast_name *name = &d->sig.params[i].name;
    if (set_has(&l->used, name->text) || is_exempt(name->text))
      continue;
    lm_diag *g = LM_REPORT(l->c, name->loc, W002, name->text, d->name.text);
    lm_diag_help(l->c, g, "delete it, or rename it to _%s", name->text);
  }
}

static const char *member_word(ast_member_kind kind) {
  return kind == MB_DIM ? "dim" : kind == MB_PARAM ? "param" : kind == MB_STATE ? "state" : "sub";
}

static bool is_assigned(const ast_body *body, lm_sym name) {
  for (uint32_t i = 0; i < body->n; i++) {
    const ast_stmt *st = body->v[i];
    if ((st->kind == ST_SET || st->kind == ST_ADD) && st->names.v[0].text == name)
      return true;
    if (st->kind == ST_FOR && is_assigned(&st->body, name))
      return true;
  }
  return false;
}

static void state_check(lint *l, const ast_decl *d, const ast_name *name) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (is_assigned(&d->members.v[i]->body, name->text))
      return;
  lm_diag *g = LM_REPORT(l->c, name->loc, W007, name->text, d->name.text);
  lm_diag_help(l->c, g, "assign its new value in %s: %s = …",
               d->kind == DC_OPTIMIZER ? "update" : "after_step", name->text);
}

static void member_check(lint *l, const ast_decl *d, const ast_member *m) {
  if (m->kind != MB_DIM && m->kind != MB_PARAM && m->kind != MB_STATE && m->kind != MB_SUB)
    return;
  for (uint32_t i = 0; i < m->names.n; i++) {
    const ast_name *name = &m->names.v[i];
    bool used = set_has(&l->used, name->text) || set_has(&l->fields, name->text);
    if (used && m->kind == MB_STATE)
      state_check(l, d, name);
    if (used || is_exempt(name->text))
      continue;
    lm_diag *g = LM_REPORT(l->c, name->loc, W003, member_word(m->kind), name->text, d->name.text);
    lm_diag_help(l->c, g, "delete it, or rename it to _%s", name->text);
  }
}

// The parameters of a model's apply and loss, of an optimizer's update, of a format's methods and
// of an adapter's use are given by the caller.
static bool is_interface(const ast_decl *d, const ast_member *m) {
  return d->kind != DC_BLOCK || !strcmp(m->names.v[0].text, "use");
}

static void method_check(lint *l, const ast_decl *d, const ast_member *m, name_set *later) {
  uses u = {l, later};
  body_walk(l, &m->body, later);
  use_sig(&u, &m->sig);
  for (uint32_t i = 0; i < m->sig.n_params && !is_interface(d, m); i++) {
    const ast_name *name = &m->sig.params[i].name;
    if (set_has(later, name->text) || is_exempt(name->text))
      continue;
    lm_diag *g = LM_REPORT(l->c, name->loc, W006, name->text, d->name.text, m->names.v[0].text);
    lm_diag_help(l->c, g, "delete it, or rename it to _%s", name->text);
  }
}

static bool members_walk(lint *l, const ast_decl *d) {
  bool whole = true;
  uses u = {l, NULL};
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    name_set later = {.a = l->c->arena};
    for (uint32_t k = 0; k < m->exprs.n; k++)
      use_expr(&u, m->exprs.v[k]);
    use_type(&u, m->type);
    use_expr(&u, m->init);
    use_expr(&u, m->count);
    use_sig(&u, &m->sig);
    whole &= m->kind != MB_ERROR && is_whole(&m->body);
    if (m->kind == MB_METHOD && is_whole(&m->body))
      method_check(l, d, m, &later);
    if (m->kind == MB_AFTER && is_whole(&m->body))
      body_walk(l, &m->body, &later);
    for (uint32_t k = 0; k < m->items.n; k++)
      use_expr(&u, m->items.v[k]->expr);
    for (uint32_t k = 0; k < m->items.n; k++) // config { key = value }
      for (uint32_t j = 0; j < m->items.v[k]->items.n; j++)
        use_expr(&u, m->items.v[k]->items.v[j]->expr);
  }
  return whole;
}

static void decl_check(lint *l, const ast_decl *d) {
  l->used = (name_set){.a = l->c->arena};
  name_set later = {.a = l->c->arena};
  uses u = {l, NULL};
  bool block =
      d->kind == DC_BLOCK || d->kind == DC_MODEL || d->kind == DC_OPTIMIZER || d->kind == DC_FORMAT;
  if (d->kind != DC_FN && !block)
    return;
  use_sig(&u, &d->sig);
  if (d->kind == DC_FORMAT) // `qcast` reads it
    set_put(&l->used, LM_SYM(l->c, "block"), true);
  bool whole = members_walk(l, d) && is_whole(&d->body);
  if (whole && d->kind == DC_FN)
    body_walk(l, &d->body, &later);
  if (whole)
    params_check(l, d);
  for (uint32_t i = 0; whole && i < d->members.n; i++)
    member_check(l, d, d->members.v[i]);
}

// ---- fields that the program selects

static void fields_of(lint *l, const ast_expr *e) {
  if (!e)
    return;
  if (e->kind == EX_FIELD)
    set_put(&l->fields, e->text, true);
  fields_of(l, e->a);
  fields_of(l, e->b);
  fields_of(l, e->c);
  for (uint32_t i = 0; i < e->n_args; i++) {
    fields_of(l, e->args[i].expr);
    fields_of(l, e->args[i].to);
  }
}

static void fields_of_body(lint *l, const ast_body *body) {
  for (uint32_t i = 0; i < body->n; i++) {
    fields_of(l, body->v[i]->expr);
    fields_of_body(l, &body->v[i]->body);
  }
}

static void fields_of_decl(lint *l, const ast_decl *d) {
  fields_of_body(l, &d->body);
  for (uint32_t i = 0; i < d->members.n; i++)
    fields_of_body(l, &d->members.v[i]->body);
}

void lm_lint(lm_ctx *c, const lm_program *p) {
  lint l = {.c = c, .fields = {.a = c->arena}};
  for (uint32_t i = 0; i < p->n_files; i++)
    for (uint32_t k = 0; k < p->files[i]->tree->n; k++)
      fields_of_decl(&l, p->files[i]->tree->v[k]);
  for (uint32_t i = 0; i < p->n_files; i++)
    for (uint32_t k = 0; !p->files[i]->is_std && k < p->files[i]->tree->n; k++)
      decl_check(&l, p->files[i]->tree->v[k]);
}
