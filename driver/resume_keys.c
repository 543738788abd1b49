// resume_keys.c - the values of a recipe that a run may not be resumed with changed.
#include "driver/resume_keys.h"

#include <string.h>

#include "dsl/recipe/schema.h"
#include "dsl/recipe/settings.h"

// ---- collecting

// line: the path of a key, alone or with its value. The row of a key in the schema applies to its
// arguments too.
static bool may_change(lm_arena *a, const char *line) {
  const char *path = lm_arena_printf(a, "recipe.%.*s", (int)strcspn(line, " ."), line);
  const lm_schema_key *key = lm_schema_find(path);
  return key && key->resumable;
}

static const char *written(lm_arena *a, const ast_expr *e) {
  lm_buf b = {0};
  lm_expr_write(e, &b);
  const char *text = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// The instance with its arguments, which the recipe may only name.
static const char *model_text(const lm_session *s) {
  const lm_recipe_call *call = &s->project.recipe->model;
  lm_buf b = {0};
  lm_buf_printf(&b, "%s(", call->target.decl->name.text);
  for (uint32_t i = 0; i < call->n_args; i++) {
    lm_buf_printf(&b, "%s%s%s", i ? ", " : "", call->args[i].name ? call->args[i].name : "",
                  call->args[i].name ? " = " : "");
    lm_expr_write(call->args[i].expr, &b);
  }
  const char *text = lm_arena_printf(s->project.ctx->arena, "%s)", b.p);
  lm_buf_free(&b);
  return text;
}

// "key = value", or "key value" where a value is called: "data.pack best_fit(seq = 128 tokens)".
static lm_train_key train_key_of(const lm_session *s, const char *line, size_t n) {
  lm_arena *a = s->project.ctx->arena;
  const char *assigned = strstr(line, " = ");
  size_t call = strcspn(line, "("); // an assignment inside of it is an argument
  size_t key = assigned && assigned < line + (call < n ? call : n) ? (size_t)(assigned - line)
                                                                   : strcspn(line, " \n");
  size_t value = key + (assigned == line + key ? strlen(" = ") : strlen(" "));
  lm_train_key k = {lm_arena_strndup(a, line, key),
                    value < n ? lm_arena_strndup(a, line + value, n - value) : ""};
  if (!strcmp(k.key, "model"))
    k.value = model_text(s);
  return k;
}

lm_recipe_keys lm_recipe_keys_of(const lm_session *s) {
  lm_arena *a = s->project.ctx->arena;
  lm_buf text = {0};
  lm_recipe_keys k = {0};
  lm_recipe_print(s->project.recipe, false, &text);
  for (const char *line = text.p; line && *line; line += strcspn(line, "\n"), line += *line == '\n')
    if (!may_change(a, line))
      LM_PUSH(a, k.v, k.n, k.cap) = train_key_of(s, line, strcspn(line, "\n"));
  lm_buf_free(&text);
  if (s->variant.off)
    LM_PUSH(a, k.v, k.n, k.cap) = (lm_train_key){"--disable-pass", s->variant.off};
  if (s->variant.on)
    LM_PUSH(a, k.v, k.n, k.cap) = (lm_train_key){"--enable-pass", s->variant.on};
  if (s->load_dir)
    LM_PUSH(a, k.v, k.n, k.cap) = (lm_train_key){"--load-dir", s->load_dir};
  return k;
}

// ---- comparing

typedef struct comparison {
  const lm_session *s;
  lm_recipe_changes out;
} comparison;

static void change_add(comparison *c, const char *key, const char *was, const char *is) {
  LM_PUSH(c->s->project.ctx->arena, c->out.v, c->out.n, c->out.cap) =
      (lm_recipe_change){key, was, is};
}

// A value as it was printed; NULL if it is not an expression, as the value of an option.
static const ast_expr *resume_keys_parse(const lm_session *s, const char *text) {
  lm_diag_mark before = lm_diag_mark_of(s->project.ctx);
  const ast_item *item = lm_parse_item(s->project.ctx, "value",
                                       lm_arena_printf(s->project.ctx->arena, "x = %s", text));
  bool failed = s->project.ctx->n_errors > before.n_errors;
  lm_diag_return(s->project.ctx, before);
  return failed || !item ? NULL : item->expr;
}

// The parameter that a positional argument stands for: "argument 2" if the callee is not declared
// in the language.
static const char *position_name(const lm_session *s, const ast_expr *call, uint32_t i) {
  const lm_recipe *r = s->project.recipe;
  const lm_recipe_call *calls[] = {&r->optimizer, &r->model};
  lm_sym callee = call->kind == EX_CALL ? lm_callee(call) : NULL;
  for (size_t k = 0; callee && k < LM_COUNT(calls); k++) {
    const ast_decl *d = calls[k]->target.decl;
    if (d && d->name.text == callee && i < d->sig.n_params)
      return d->sig.params[i].name.text;
  }
  return lm_arena_printf(s->project.ctx->arena, "argument %u", i + 1);
}

static const char *arg_name(const lm_session *s, const ast_expr *call, uint32_t i) {
  return call->args[i].kind == ARG_NAMED ? call->args[i].name : position_name(s, call, i);
}

static const ast_expr *arg_find(const lm_session *s, const ast_expr *call, const char *name) {
  for (uint32_t i = 0; i < call->n_args; i++)
    if (!strcmp(arg_name(s, call, i), name))
      return call->args[i].expr;
  return NULL;
}

// True if both expressions have the same value, such as 2e-3 and 0.002.
static bool same_value(const lm_session *s, const ast_expr *x, const ast_expr *y) {
  bool numbers = x->kind == y->kind && (x->kind == EX_NUMBER || x->kind == EX_QUANTITY);
  if (numbers)
    return x->num == y->num && (x->kind == EX_NUMBER || !strcmp(x->unit, y->unit));
  return !strcmp(written(s->project.ctx->arena, x), written(s->project.ctx->arena, y));
}

static bool has_arguments(const ast_expr *e) {
  return e->kind == EX_CALL || (e->kind == EX_TUPLE && e->n_args && e->args[0].kind == ARG_NAMED);
}

static bool same_callee(const ast_expr *x, const ast_expr *y) {
  if (!has_arguments(x) || x->kind != y->kind || !has_arguments(y))
    return false;
  return x->kind == EX_TUPLE || (lm_callee(x) && lm_callee(x) == lm_callee(y));
}

static void args_compare(comparison *c, const char *key, const ast_expr *was, const ast_expr *is) {
  lm_arena *a = c->s->project.ctx->arena;
  for (uint32_t i = 0; i < is->n_args; i++) {
    const char *name = arg_name(c->s, is, i);
    const ast_expr *old = arg_find(c->s, was, name);
    const ast_expr *now = is->args[i].expr;
    if (!old || !same_value(c->s, old, now))
      change_add(c, lm_arena_printf(a, "%s.%s", key, name), old ? written(a, old) : "not given",
                 written(a, now));
  }
  for (uint32_t i = 0; i < was->n_args; i++) {
    const char *name = arg_name(c->s, was, i);
    if (!arg_find(c->s, is, name))
      change_add(c, lm_arena_printf(a, "%s.%s", key, name), written(a, was->args[i].expr),
                 "not given");
  }
}

static void values_compare(comparison *c, const char *key, const char *was, const char *is) {
  if (!strcmp(was, is))
    return;
  const ast_expr *old = resume_keys_parse(c->s, was);
  const ast_expr *now = resume_keys_parse(c->s, is);
  if (old && now && same_callee(old, now))
    args_compare(c, key, old, now);
  else if (!old || !now || !same_value(c->s, old, now))
    change_add(c, key, was, is);
}

static const char *value_find(const lm_train_key *v, uint32_t n, const char *key) {
  for (uint32_t i = 0; i < n; i++)
    if (!strcmp(v[i].key, key))
      return v[i].value;
  return NULL;
}

lm_recipe_changes lm_recipe_keys_compare(const lm_session *s, const lm_train_key *was, int n_was,
                                         const lm_recipe_keys *is) {
  comparison c = {.s = s};
  for (uint32_t i = 0; i < is->n; i++) {
    const char *old = value_find(was, (uint32_t)n_was, is->v[i].key);
    if (old)
      values_compare(&c, is->v[i].key, old, is->v[i].value);
    else
      change_add(&c, is->v[i].key, "absent", is->v[i].value);
  }
  for (int i = 0; i < n_was; i++)
    if (!value_find(is->v, is->n, was[i].key))
      change_add(&c, was[i].key, was[i].value, "absent");
  return c.out;
}

// ---- the paths of --change

bool lm_recipe_key_under(const char *key, const char *path) {
  size_t n = strlen(path);
  return !strncmp(key, path, n) && (!key[n] || key[n] == '.' || key[n] == ' ');
}

typedef struct key_names {
  const char **v;
  uint32_t n, cap;
} key_names;

// The parameters of the callee, whether they are given or not.
static void params_add(lm_arena *a, const char *key, const lm_recipe_call *call, uint32_t skip,
                       key_names *out) {
  const ast_decl *d = call->target.decl;
  for (uint32_t i = skip; d && i < d->sig.n_params; i++)
    LM_PUSH(a, out->v, out->n, out->cap) =
        lm_arena_printf(a, "%s.%s", key, d->sig.params[i].name.text);
}

static void args_add(const lm_session *s, const lm_train_key *k, key_names *out) {
  lm_arena *a = s->project.ctx->arena;
  const ast_expr *e = resume_keys_parse(s, k->value);
  for (uint32_t i = 0; e && has_arguments(e) && i < e->n_args; i++)
    LM_PUSH(a, out->v, out->n, out->cap) = lm_arena_printf(a, "%s.%s", k->key, arg_name(s, e, i));
}

static key_names names_of(const lm_session *s, const lm_recipe_keys *keys) {
  lm_arena *a = s->project.ctx->arena;
  key_names n = {0};
  for (uint32_t i = 0; i < keys->n; i++) {
    LM_PUSH(a, n.v, n.n, n.cap) = keys->v[i].key;
    args_add(s, &keys->v[i], &n);
  }
  params_add(a, "optimizer", &s->project.recipe->optimizer, 0, &n);
  params_add(a, "schedule", &s->project.recipe->schedule, 2, &n);
  params_add(a, "model", &s->project.recipe->model, 0, &n);
  return n;
}

// The key whose last part is `path`, such as optimizer.lr for lr, or one of a similar name.
static const char *key_meant(const key_names *names, const char *path) {
  for (uint32_t i = 0; i < names->n; i++) {
    const char *dot = strrchr(names->v[i], '.');
    if (dot && !strcmp(dot + 1, path))
      return names->v[i];
  }
  return lm_nearest(path, names->v, (int)names->n);
}

lm_status lm_recipe_key_check(const lm_session *s, const lm_recipe_keys *keys, const char *path) {
  key_names names = names_of(s, keys);
  for (uint32_t i = 0; i < names.n; i++)
    if (lm_recipe_key_under(names.v[i], path))
      return NULL;
  if (may_change(s->project.ctx->arena, path))
    return lm_fail(
        LM_USER, "--change %s: this value may differ when a run is resumed; --change is not needed",
        path);
  const char *near = key_meant(&names, path);
  if (near)
    return lm_fail(LM_USER, "--change %s: the recipe has no such value; did you mean %s?", path,
                   near);
  return lm_fail(LM_USER, "--change %s: the recipe has no such value; `lmc check` lists them",
                 path);
}
