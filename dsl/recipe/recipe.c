// recipe.c - the public functions of recipes: choosing a recipe and resolving it, its durations in
// steps, and printing values with their origins.
#include "dsl/recipe/recipe.h"
#include "dsl/recipe/settings.h"
#include <math.h>
#include <string.h>

// A value that begins like a path cannot be an expression. The shell removes quotes, so this adds
// them.
static const char *with_quotes(lm_resolver *R, const char *text) {
  const char *value = strchr(text, '=');
  if (!value)
    return text;
  value += 1 + strspn(value + 1, " \t");
  if ((*value != '/' && *value != '.' && *value != '~') || strpbrk(value, "\"\\\n"))
    return text;
  return lm_arena_printf(R->c->arena, "%.*s\"%s\"", (int)(value - text), text, value);
}

// Adds a help for a value that does not parse, such as the glob data/*.txt.
static void help_quotes(lm_resolver *R, lm_diag *d, const char *text) {
  const char *value = strchr(text, '=');
  if (!d || d->help || !value || strchr(value, '"') || !strpbrk(value, "/.*"))
    return;
  value += 1 + strspn(value + 1, " \t");
  lm_diag_help(R->c, d,
               "strings need quotes, and the shell needs quotes around them: --set '%.*s\"%s\"'",
               (int)(value - text), text, value);
}

static void apply_set(lm_resolver *R, lm_settings *s, const char *text) {
  lm_diag **first_new = R->c->diags_tail;
  ast_item *item = lm_parse_set(R->c, with_quotes(R, text));
  help_quotes(R, *first_new, text);
  if (item->path.n > 1 && !strcmp(item->path.v[0].text, "data")) {
    item->path.v++;
    item->path.n--;
    LM_PUSH(R->c->arena, R->data_sets.v, R->data_sets.n, R->data_sets.cap) = item;
    return;
  }
  lm_settings_set(R, s, "recipe", &(ast_items){&item, 1, 1});
}

// Applies one value of an option as a separate layer.
static void apply_value(lm_resolver *R, lm_settings *s, const char *option, const char *key,
                        ast_expr *value) {
  ast_name name = {LM_SYM(R->c, key), {0}};
  ast_item *item = LM_NEW(R->c->arena, ast_item);
  lm_settings_layer layer = {R->set_file, option, false};
  *item = (ast_item){
      .kind = IT_SET,
      .expr = value,
  };
  LM_PUSH(R->c->arena, item->path.v, item->path.n, item->path.cap) = name;
  lm_settings_apply(R, s, "recipe", &(ast_items){&item, 1, 1}, &layer);
}

static ast_expr *expr_new(lm_resolver *R, ast_expr e) {
  ast_expr *out = LM_NEW(R->c->arena, ast_expr);
  *out = e;
  return out;
}

static ast_expr *steps_expr(lm_resolver *R, int64_t steps) {
  return expr_new(R, (ast_expr){.kind = EX_QUANTITY,
                                .unit = LM_SYM(R->c, "steps"),
                                .num = (double)steps,
                                .inum = steps,
                                .is_int = true,
                                .spelling = lm_arena_printf(R->c->arena, "%lld", (long long)steps),
                                .height = 1});
}

// reduce-overhead is accepted and is the default: a function is one parallel region or one graph.
lm_status lm_recipe_mode_check(const char *mode) {
  static const char *const modes[] = {"default", "reduce-overhead", "max-autotune"};
  for (size_t i = 0; i < LM_COUNT(modes); i++)
    if (!strcmp(mode, modes[i]))
      return NULL;
  return lm_fail(LM_USER, "--mode %s: there are default, reduce-overhead and max-autotune", mode);
}

static ast_expr *mode_expr(lm_resolver *R, const char *mode) {
  ast_expr *callee = expr_new(R, (ast_expr){
                                     .kind = EX_NAME,
                                     .text = LM_SYM(R->c, "mode"),
                                     .height = 1,
                                 });
  ast_expr *name = expr_new(R, (ast_expr){
                                   .kind = EX_STRING,
                                   .text = LM_SYM(R->c, mode),
                                   .height = 1,
                               });
  ast_expr *call = expr_new(R, (ast_expr){
                                   .kind = EX_CALL,
                                   .a = callee,
                                   .height = 2,
                               });
  LM_PUSH(R->c->arena, call->args, call->n_args, call->cap_args) = (ast_arg){
      .kind = ARG_POS,
      .expr = name,
  };
  return call;
}

static bool has_mesh(const lm_settings *s) {
  const lm_setting *parallel = lm_settings_find(s, "recipe.parallel");
  return parallel && lm_settings_find(&parallel->children, "recipe.parallel.mesh");
}

// The ranks of a run compute different rows, unless the recipe says more.
static void apply_ranks(lm_resolver *R, lm_settings *s, int ranks) {
  static const char source[] = "--ranks";
  const char *text = lm_arena_printf(R->c->arena, "parallel.mesh = (dp = %d)", ranks);
  lm_settings_layer layer = {R->set_file, source, false};
  ast_item *item = lm_parse_item(R->c, source, text);
  lm_settings_apply(R, s, "recipe", &(ast_items){&item, 1, 1}, &layer);
}

static void apply_overrides(lm_resolver *R, lm_settings *s, const lm_recipe_overrides *o) {
  for (int i = 0; i < o->n_sets; i++)
    apply_set(R, s, o->sets[i]);
  if (o->mode)
    apply_value(R, s, "--mode", "compile", mode_expr(R, o->mode));
  if (o->steps)
    apply_value(R, s, "--steps", "run", steps_expr(R, o->steps));
  if (o->ranks > 1 && !has_mesh(s))
    apply_ranks(R, s, o->ranks);
}

// ---- choosing

static lm_decl_ref report_choice(lm_ctx *c, const lm_program *p, const char *wanted) {
  const lm_file *f = p->files[0];
  lm_loc nowhere = {0}, first = {0};
  const char *names[32];
  int n = 0;
  lm_buf list = {0};
  for (uint32_t i = 0; i < f->tree->n && n < (int)LM_COUNT(names); i++)
    if (f->tree->v[i]->kind == DC_RECIPE) {
      if (!n)
        first = f->tree->v[i]->name.loc;
      names[n++] = f->tree->v[i]->name.text;
    }
  for (int i = 0; i < n; i++)
    lm_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
  if (!n)
    LM_REPORT(c, nowhere, E208, f->path);
  else if (!wanted)
    lm_diag_help(c, LM_REPORT(c, first, E21F, f->path, list.p), "choose one: --recipe %s",
                 names[0]);
  else {
    lm_diag *d = LM_REPORT(c, nowhere, E220, f->path, wanted, list.p);
    const char *near = lm_nearest(wanted, names, n);
    if (near)
      lm_diag_help(c, d, "did you mean '%s'?", near);
  }
  lm_buf_free(&list);
  return (lm_decl_ref){0};
}

static lm_decl_ref recipe_choose(lm_ctx *c, const lm_program *p, const char *wanted) {
  const lm_file *f = p->files[0];
  lm_decl_ref found = {0};
  int n = 0;
  for (uint32_t i = 0; i < f->tree->n; i++) {
    ast_decl *d = f->tree->v[i];
    if (d->kind != DC_RECIPE || (wanted && strcmp(d->name.text, wanted)))
      continue;
    found = (lm_decl_ref){d, f};
    n++;
  }
  return n == 1 || (n && wanted) ? found : report_choice(c, p, wanted);
}

lm_recipe *lm_recipe_resolve(lm_ctx *c, const lm_program *p, const char *name,
                             const lm_recipe_overrides *overrides) {
  lm_decl_ref ref = recipe_choose(c, p, name);
  if (!ref.decl)
    return NULL;
  lm_resolver R = lm_resolver_new(c, p, ref.decl);
  lm_recipe *r = R.r;
  lm_settings s = {0};
  lm_settings_of(&R, ref, "recipe", &s);
  if (overrides)
    apply_overrides(&R, &s, overrides);
  for (uint32_t i = 0; i < s.n; i++)
    LM_PUSH(c->arena, r->settings->v, r->settings->n, r->settings->cap) = s.v[i];
  lm_recipe_read(&R, &s);
  return r;
}

void lm_recipe_check_all(lm_ctx *c, const lm_program *p) {
  const ast_file *f = p->files[0]->tree;
  for (uint32_t i = 0; i < f->n; i++)
    if (f->v[i]->kind == DC_RECIPE)
      lm_recipe_resolve(c, p, f->v[i]->name.text, NULL);
}

void lm_recipe_report_unsupported(const lm_recipe *r) {
  for (uint32_t i = 0; i < r->n_unsupported; i++) {
    const lm_recipe_unsupported *u = &r->unsupported[i];
    LM_REPORT(r->c, u->loc, E900, u->feature);
  }
}

// ---- durations

static double tokens_as_steps(const lm_recipe *r, double tokens) {
  return r->batch ? tokens / (double)r->batch : 0;
}

static int64_t at_least_one(double steps) {
  return steps < 1 ? 1 : steps > 0x1p62 ? INT64_C(1) << 62 : (int64_t)ceil(steps);
}

int64_t lm_recipe_steps(const lm_recipe *r, double params, double epoch_tokens) {
  double n = r->run.n + r->run.per_param * params;
  if (r->run.unit == LM_RECIPE_UNIT_TOKENS)
    n = tokens_as_steps(r, n);
  if (r->run.unit == LM_RECIPE_UNIT_EPOCHS)
    n = tokens_as_steps(r, n * epoch_tokens);
  return at_least_one(n);
}

int64_t lm_recipe_every_steps(const lm_recipe *r, lm_recipe_every every, double epoch_tokens) {
  switch (every.unit) {
  case LM_RECIPE_UNIT_STEPS: return at_least_one(every.n);
  case LM_RECIPE_UNIT_TOKENS: return at_least_one(tokens_as_steps(r, every.n));
  case LM_RECIPE_UNIT_EPOCHS: return at_least_one(tokens_as_steps(r, every.n * epoch_tokens));
  default: return 0;
  }
}

// ---- print and explain

static void add_selector(const lm_setting *s, const char *separator, lm_buf *out) {
  if (!s->sel)
    return;
  lm_buf_puts(out, separator);
  lm_expr_write(s->sel, out);
}

static void add_where(const lm_recipe *r, const lm_recipe_origin *o, lm_buf *out) {
  lm_buf_printf(out, "  # %s", o->who);
  if (o->loc.file && strcmp(r->c->sources[o->loc.file].path, "--set"))
    lm_buf_printf(out, ", %s:%u", r->c->sources[o->loc.file].path, o->loc.line);
}

// The value of a setting; the call of a model or optimizer with a name for each argument.
static const ast_expr *with_names(const lm_recipe *r, const lm_setting *s) {
  const ast_expr *value = s->value;
  bool is_model = !strcmp(s->key->path, "recipe.model");
  const lm_recipe_call *call = is_model ? &r->model : &r->optimizer;
  const ast_decl *decl = lm_callee(value) == call->name ? call->target.decl : NULL;
  if (!decl || (!is_model && strcmp(s->key->path, "recipe.optimizer")))
    return value;
  ast_expr *copy = LM_NEW(r->c->arena, ast_expr);
  *copy = *value;
  copy->args = LM_NEW_N(r->c->arena, ast_arg, value->n_args + 1);
  for (uint32_t i = 0; i < value->n_args; i++) {
    copy->args[i] = value->args[i];
    if (copy->args[i].kind == ARG_POS) {
      copy->args[i].kind = ARG_NAMED;
      copy->args[i].name = decl->sig.params[i].name.text;
    }
  }
  return copy;
}

static void print_setting(const lm_recipe *r, const lm_setting *s, const char *prefix,
                          bool with_origins, lm_buf *out) {
  lm_buf key = {0};
  lm_buf_printf(&key, "%s%s", prefix, lm_schema_name(s->key));
  if (s->key->form == LM_FORM_SECTION || s->key->form == LM_FORM_SECTIONS) {
    add_selector(s, ".", &key);
    lm_buf_puts(&key, ".");
    for (uint32_t i = 0; i < s->children.n; i++)
      print_setting(r, s->children.v[i], key.p, with_origins, out);
  } else {
    bool called = s->key->form == LM_FORM_CALLED || s->key->form == LM_FORM_LISTED;
    if (!called)
      add_selector(s, " ", &key);
    lm_buf_printf(out, "%s%s", key.p, called ? " " : s->value ? " = " : "");
    if (s->value)
      lm_expr_write(with_origins ? with_names(r, s) : s->value, out);
    if (with_origins)
      add_where(r, s->origin, out);
    lm_buf_puts(out, "\n");
  }
  lm_buf_free(&key);
}

static bool is_of(const lm_setting *s, const char *section) {
  return !strncmp(s->key->path, section, strlen(section));
}

// Prints the defaults of values that are not set.
static void print_defaults(const lm_recipe *r, const char *section, const lm_settings *given,
                           const char *prefix, bool with_origins, lm_buf *out) {
  for (const lm_schema_key *k = NULL; (k = lm_schema_next(section, '.', k));) {
    const lm_setting *s = lm_settings_find(given, k->path);
    lm_settings none = {0};
    if (k->form == LM_FORM_SECTION)
      print_defaults(r, k->path, s ? &s->children : &none,
                     lm_arena_printf(r->c->arena, "%s%s.", prefix, lm_schema_name(k)), with_origins,
                     out);
    else if (!s && lm_schema_has_default(k))
      lm_buf_printf(out, "%s%s%s%s%s\n", prefix, lm_schema_name(k),
                    k->form == LM_FORM_CALLED ? " " : " = ", k->default_text,
                    with_origins ? "  # default" : "");
  }
}

void lm_recipe_print(const lm_recipe *r, bool with_origins, lm_buf *out) {
  static const char *const sections[] = {"recipe", "data"}, *const prefixes[] = {"", "data."};
  for (size_t k = 0; k < LM_COUNT(sections); k++) {
    for (uint32_t i = 0; i < r->settings->n; i++)
      if (is_of(r->settings->v[i], sections[k]))
        print_setting(r, r->settings->v[i], prefixes[k], with_origins, out);
    print_defaults(r, sections[k], r->settings, prefixes[k], with_origins, out);
  }
}

static const lm_recipe_origin *default_origin(const lm_recipe *r, const char *who, const char *text,
                                              lm_loc at) {
  lm_recipe_origin *o = LM_NEW(r->c->arena, lm_recipe_origin);
  *o = (lm_recipe_origin){at, who, text, NULL};
  return o;
}

static const char *written(const lm_recipe *r, const ast_expr *e) {
  lm_buf b = {0};
  lm_expr_write(e, &b);
  const char *text = lm_arena_strndup(r->c->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// The origin of an argument of a value: the given argument, else the default of the callee.
static const lm_recipe_origin *arg_origin_find(const lm_recipe *r, const lm_setting *s,
                                               const char *name) {
  for (uint32_t i = 0; i < s->n_args; i++)
    if (!strcmp(s->args[i].name, name))
      return s->args[i].origin;
  const lm_recipe_call *calls[] = {&r->optimizer, &r->schedule, &r->model};
  lm_sym callee = s->value ? lm_callee(s->value) : NULL;
  const lm_schema_key *form = callee ? lm_schema_child(s->key->path, ':', callee) : NULL;
  const lm_schema_key *param = form ? lm_schema_child(form->path, '.', name) : NULL;
  const char *who = callee ? lm_arena_printf(r->c->arena, "default of %s", callee) : NULL;
  if (param && lm_schema_has_default(param))
    return default_origin(r, who, param->default_text, (lm_loc){0});
  for (size_t k = 0; callee && k < LM_COUNT(calls); k++) {
    const ast_decl *decl = calls[k]->name == callee ? calls[k]->target.decl : NULL;
    for (uint32_t i = 0; decl && i < decl->sig.n_params; i++) {
      const ast_param *p = &decl->sig.params[i];
      if (p->init && !strcmp(p->name.text, name))
        return default_origin(r, who, written(r, p->init), p->name.loc);
    }
  }
  return NULL;
}

// The default of a key as a setting.
static lm_setting default_setting(const lm_recipe *r, const lm_schema_key *key) {
  const ast_expr *value =
      lm_parse_item(r->c, "default", lm_arena_printf(r->c->arena, "x = %s", key->default_text))
          ->expr;
  lm_setting s = {
      .key = key,
      .value = value,
  };
  for (uint32_t i = 0; value->kind == EX_CALL && i < value->n_args; i++) {
    const ast_arg *a = &value->args[i];
    const char *name = a->kind == ARG_NAMED ? a->name : lm_form_param(key, value, i);
    LM_PUSH(r->c->arena, s.args, s.n_args, s.cap_args) = (lm_arg_origin){
        LM_SYM(r->c, name), default_origin(r, "default", written(r, a->expr), (lm_loc){0})};
  }
  return s;
}

static const lm_recipe_origin *origin_in(const lm_recipe *r, const lm_settings *s,
                                         const char *section, const char *key);

// `rest`: the part of the key after the setting; "" for the setting itself.
static const lm_recipe_origin *origin_under(const lm_recipe *r, const lm_setting *s,
                                            const char *rest) {
  if (!*rest)
    return s->origin;
  if (s->key->form == LM_FORM_SECTION || s->key->form == LM_FORM_SECTIONS)
    return origin_in(r, &s->children, s->key->path, rest);
  return arg_origin_find(r, s, rest);
}

static const lm_recipe_origin *origin_in(const lm_recipe *r, const lm_settings *s,
                                         const char *section, const char *key) {
  for (uint32_t i = 0; i < s->n; i++) {
    lm_buf own = {0};
    if (!is_of(s->v[i], section))
      continue;
    lm_buf_puts(&own, lm_schema_name(s->v[i]->key));
    add_selector(s->v[i], ".", &own);
    bool mine = !strncmp(key, own.p, own.n) && (!key[own.n] || key[own.n] == '.');
    const char *rest = mine ? key + own.n + (key[own.n] == '.') : NULL;
    lm_buf_free(&own);
    const lm_recipe_origin *o = mine ? origin_under(r, s->v[i], rest) : NULL;
    if (o)
      return o;
  }
  size_t first = strcspn(key, ".");
  const lm_schema_key *k = lm_schema_child(section, '.', lm_arena_strndup(r->c->arena, key, first));
  if (!k)
    return NULL;
  lm_settings none = {0};
  if (k->form == LM_FORM_SECTION && key[first])
    return origin_in(r, &none, k->path, key + first + 1);
  if (!lm_schema_has_default(k))
    return NULL;
  if (!key[first])
    return default_origin(r, "default", k->default_text, (lm_loc){0});
  lm_setting unset = default_setting(r, k);
  return arg_origin_find(r, &unset, key + first + 1);
}

static const lm_recipe_origin *origin_of(const lm_recipe *r, const char *key) {
  bool data = !strncmp(key, "data.", 5);
  return origin_in(r, r->settings, data ? "data" : "recipe", data ? key + 5 : key);
}

// The key that `key` was probably meant to be: one of a similar name, an argument of a value, or
// the same part of a similar key. NULL if there is none.
static const char *near_key(const lm_recipe *r, const char *key) {
  const char **names = LM_NEW_N(r->c->arena, const char *, LM_SCHEMA_COUNT);
  int n = 0;
  for (int i = 0; i < LM_SCHEMA_COUNT; i++)
    if (!strchr(LM_SCHEMA[i].path, ':'))
      names[n++] = LM_SCHEMA[i].path + (strncmp(LM_SCHEMA[i].path, "recipe.", 7) ? 0 : 7);
  size_t first = strcspn(key, ".");
  const char *near = lm_nearest(key, names, n);
  for (int i = 0; i < n && !near; i++) {
    const char *arg = lm_arena_printf(r->c->arena, "%s.%s", names[i], key);
    near = origin_of(r, arg) ? arg : NULL;
  }
  const char *head = near ? NULL : lm_nearest(lm_arena_strndup(r->c->arena, key, first), names, n);
  return head ? lm_arena_printf(r->c->arena, "%s%s", head, key + first) : near;
}

const lm_recipe_origin *lm_recipe_origin_find(const lm_recipe *r, const char *key,
                                              const char **out_near) {
  const lm_recipe_origin *o = origin_of(r, key);
  const char *near = o ? NULL : near_key(r, key);
  bool exists = near && origin_of(r, near);
  *out_near = exists ? near : NULL;
  return o;
}
