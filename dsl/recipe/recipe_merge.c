// recipe_merge.c - merges layers of items into one tree of settings. A section replaces the whole
// section, a dotted path replaces one field or one argument of a call, and `key @pattern` adds a
// rule. Each value records the value that it replaced.
#include "dsl/recipe/settings.h"
#include <string.h>

typedef struct merge {
  lm_resolver *R;
  const lm_settings_layer *layer;
} merge;

static void apply(merge *m, lm_settings *s, const char *section, const ast_items *items);

// ---- origins

static const char *value_text(lm_resolver *R, const ast_expr *value) {
  if (!value)
    return "";
  lm_buf b = {0};
  lm_expr_write(value, &b);
  const char *text = lm_arena_strndup(R->c->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

lm_recipe_origin *lm_recipe_origin_new(lm_resolver *R, lm_loc at, const char *who,
                                       const ast_expr *value) {
  lm_recipe_origin *o = LM_NEW(R->c->arena, lm_recipe_origin);
  *o = (lm_recipe_origin){at, who, value_text(R, value), NULL};
  return o;
}

static const lm_recipe_origin *arg_origin(const lm_setting *s, const char *name) {
  for (uint32_t i = 0; i < s->n_args; i++)
    if (!strcmp(s->args[i].name, name))
      return s->args[i].origin;
  return NULL;
}

static void arg_origin_set(merge *m, lm_setting *s, const char *name,
                           const lm_recipe_origin *origin) {
  for (uint32_t i = 0; i < s->n_args; i++)
    if (!strcmp(s->args[i].name, name)) {
      s->args[i].origin = origin;
      return;
    }
  LM_PUSH(m->R->c->arena, s->args, s->n_args, s->cap_args) =
      (lm_arg_origin){LM_SYM(m->R->c, name), origin};
}

static void note_args(merge *m, lm_setting *s, const lm_setting *old) {
  if (!s->value || s->value->kind != EX_CALL)
    return;
  for (uint32_t i = 0; i < s->value->n_args; i++) {
    const ast_arg *a = &s->value->args[i];
    const char *name =
        a->kind == ARG_NAMED ? a->name : lm_call_param(m->R, s->key, s->value, s->file, i);
    if (!name || !a->expr)
      continue;
    lm_recipe_origin *o = lm_recipe_origin_new(m->R, a->loc, m->layer->who, a->expr);
    if (old)
      o->before = arg_origin(old, name);
    arg_origin_set(m, s, name, o);
  }
}

// ---- finding and inserting

static bool same_selector(const ast_expr *a, const ast_expr *b) {
  if (!a || !b)
    return a == b;
  if (a->kind != b->kind)
    return false;
  return a->kind == EX_QUANTITY ? a->num == b->num && a->unit == b->unit : a->text == b->text;
}

static lm_setting **setting_find(const lm_settings *s, const lm_schema_key *key,
                                 const ast_expr *sel) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->v[i]->key == key && same_selector(s->v[i]->sel, sel))
      return &s->v[i];
  return NULL;
}

lm_setting *lm_settings_find(const lm_settings *s, const char *path) {
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, path) && !s->v[i]->sel)
      return s->v[i];
  return NULL;
}

static lm_setting *setting_new(merge *m, const lm_schema_key *key, const ast_item *it,
                               const ast_expr *sel, const ast_expr *value) {
  lm_setting *s = LM_NEW(m->R->c->arena, lm_setting);
  *s = (lm_setting){
      .key = key,
      .sel = sel,
      .value = value,
      .loc = it->loc,
      .file = m->layer->file,
  };
  s->origin = lm_recipe_origin_new(m->R, it->loc, m->layer->who, value);
  return s;
}

static void chain_children(const lm_settings *fresh, const lm_settings *old) {
  for (uint32_t i = 0; i < fresh->n; i++) {
    lm_setting **same = setting_find(old, fresh->v[i]->key, fresh->v[i]->sel);
    if (same && fresh->v[i]->key->form != LM_FORM_RULES)
      fresh->v[i]->origin->before = (*same)->origin;
  }
}

static void report_twice(merge *m, const lm_setting *again, const lm_setting *first) {
  const char *name = lm_schema_name(again->key);
  if (again->sel)
    name = lm_arena_printf(m->R->c->arena, "%s %s", name,
                           again->sel->kind == EX_NAME ? again->sel->text : again->sel->spelling);
  lm_diag *d = LM_REPORT(m->R->c, again->loc, E205, name);
  lm_diag_note(m->R->c, d, first->loc, "first here");
}

static void insert(merge *m, lm_settings *s, lm_setting *fresh) {
  lm_setting **old =
      fresh->key->form == LM_FORM_RULES ? NULL : setting_find(s, fresh->key, fresh->sel);
  note_args(m, fresh, old ? *old : NULL);
  if (!old) {
    LM_PUSH(m->R->c->arena, s->v, s->n, s->cap) = fresh;
    return;
  }
  if (m->layer->once && (*old)->origin->who == m->layer->who)
    report_twice(m, fresh, *old);
  fresh->origin->before = (*old)->origin;
  chain_children(&fresh->children, &(*old)->children);
  *old = fresh;
}

// ---- keys

static const lm_schema_key *key_find(merge *m, const lm_settings *s, const char *section,
                                     const ast_name *name) {
  const lm_schema_key *key = lm_schema_child(section, '.', name->text);
  if (!key)
    lm_unknown_key(m->R, s, section, name, m->layer->once);
  return key;
}

// The key of the section that takes the word `value`: compute of precision = bf16. NULL if none
// does.
static const lm_schema_key *key_of_word(const lm_schema_key *section, const ast_expr *value) {
  const lm_schema_key *k = NULL;
  bool planned, named = value && value->kind == EX_NAME && section->form == LM_FORM_SECTION;
  while (named && (k = lm_schema_next(section->path, '.', k)))
    if (k->types & T_WORD && lm_schema_has_word(k->words, value->text, &planned))
      return k;
  return NULL;
}

// value: NULL if there is none.
static bool wrong_form(merge *m, const lm_schema_key *key, lm_loc at, const ast_expr *value) {
  lm_diag *d = LM_REPORT(m->R->c, at, E249, lm_schema_name(key));
  const lm_schema_key *inner = key_of_word(key, value);
  if (inner)
    lm_diag_help(m->R->c, d, "write %s { %s = %s }", lm_schema_name(key), lm_schema_name(inner),
                 value->text);
  else
    lm_diag_help(m->R->c, d, "write %s", lm_schema_usage(m->R->c, key));
  return false;
}

// `pack best_fit(seq = 2Ki tokens)` is a call of best_fit.
static ast_expr *call_of(merge *m, const ast_item *it) {
  ast_expr *call = LM_NEW(m->R->c->arena, ast_expr);
  *call = (ast_expr){.kind = EX_CALL,
                     .loc = it->sel->loc,
                     .a = it->sel,
                     .args = it->args,
                     .n_args = it->n_args,
                     .height = it->sel->height};
  return call;
}

static bool selector_fits(const lm_schema_key *key, const ast_expr *sel) {
  if (!sel)
    return key->types & T_OPTIONAL;
  if (key->form == LM_FORM_RULES)
    return sel->kind == EX_PATTERN || (*key->words && sel->kind == EX_NAME);
  return sel->kind == (key->types & T_QTY ? EX_QUANTITY : EX_NAME);
}

static bool form_fits(const lm_schema_key *key, ast_item_kind kind) {
  switch (key->form) {
  case LM_FORM_VALUE: return kind == IT_SET;
  case LM_FORM_NAMED: return kind == IT_SET_SEL;
  case LM_FORM_RULES: return kind == (key->types ? IT_SET_SEL : IT_DO);
  case LM_FORM_CALLED:
  case LM_FORM_LISTED: return kind == IT_CALL || kind == IT_DO;
  case LM_FORM_SECTION: return kind == IT_SECTION;
  case LM_FORM_SECTIONS:
    return kind == IT_SECTION_SEL || (kind == IT_SECTION && key->types & T_OPTIONAL);
  default: return false;
  }
}

static bool check_selector_word(merge *m, const lm_schema_key *key, const ast_expr *sel) {
  bool planned;
  if (sel->kind != EX_NAME || !*key->words || lm_schema_has_word(key->words, sel->text, &planned))
    return true;
  lm_diag *d = LM_REPORT(m->R->c, sel->loc, E240, lm_schema_name(key), sel->text,
                         lm_schema_list(m->R->c, key->words));
  const char *near = lm_schema_nearest_word(m->R->c, key->words, sel->text);
  if (near)
    lm_diag_help(m->R->c, d, "did you mean '%s'?", near);
  return false;
}

static void apply_plain(merge *m, lm_settings *s, const lm_schema_key *key, const ast_item *it) {
  bool called = key->form == LM_FORM_CALLED || key->form == LM_FORM_LISTED;
  bool section = key->form == LM_FORM_SECTION || key->form == LM_FORM_SECTIONS;
  bool selects =
      key->form == LM_FORM_NAMED || key->form == LM_FORM_RULES || key->form == LM_FORM_SECTIONS;
  if (!form_fits(key, it->kind) || (selects && !selector_fits(key, it->sel)) ||
      (called && it->sel->kind != EX_NAME)) {
    wrong_form(m, key, it->loc, it->expr);
    return;
  }
  if (it->sel && selects && !check_selector_word(m, key, it->sel))
    return;
  const ast_expr *value = called ? call_of(m, it) : it->expr;
  bool broken = value && !lm_value_check(m->R, key, value, m->layer->file);
  if (broken)
    value = lm_value_default(m->R, key);
  const ast_expr *sel = selects || key->form == LM_FORM_LISTED ? it->sel : NULL;
  if (sel && sel->kind == EX_QUANTITY && !lm_value_check(m->R, key, sel, m->layer->file))
    return;
  lm_setting *fresh = setting_new(m, key, it, sel, value);
  fresh->broken = broken;
  if (section)
    apply(m, &fresh->children, key->path, &it->items);
  insert(m, s, fresh);
}

// ---- dotted paths

typedef struct dotted {
  const ast_item *item;
  uint32_t at;
} dotted; // the names of the path from index `at` on

static const ast_name *name_at(const dotted *d) {
  return &d->item->path.v[d->at];
}
static bool is_last(const dotted *d) {
  return d->at + 1 == d->item->path.n;
}

static const char *params_of(merge *m, const lm_setting *s) {
  lm_buf b = {0};
  for (uint32_t i = 0;; i++) {
    const char *name = lm_call_param(m->R, s->key, s->value, s->file, i);
    if (!name)
      break;
    lm_buf_printf(&b, "%s%s", b.n ? ", " : "", name);
  }
  const char *text = lm_arena_strndup(m->R->c->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

static int arg_index(merge *m, const lm_setting *s, lm_sym name) {
  for (uint32_t i = 0; i < s->value->n_args; i++) {
    const ast_arg *a = &s->value->args[i];
    const char *own =
        a->kind == ARG_NAMED ? a->name : lm_call_param(m->R, s->key, s->value, s->file, i);
    if (own && !strcmp(own, name))
      return (int)i;
  }
  return -1;
}

static bool takes_arg(merge *m, const lm_setting *s, const ast_name *name) {
  const char *names[64];
  int n = 0;
  for (const char *p; n < (int)LM_COUNT(names) &&
                      (p = lm_call_param(m->R, s->key, s->value, s->file, (uint32_t)n));
       n++) {
    names[n] = p;
    if (!strcmp(p, name->text))
      return true;
  }
  lm_sym callee = lm_callee(s->value);
  if (!n)
    return true; // recipe_read.c reports an unknown callee
  lm_diag *d = LM_REPORT(m->R->c, name->loc, E203, callee, name->text);
  const lm_schema_key *form = lm_schema_child(s->key->path, ':', callee);
  const char *path = form ? form->path : s->key->path;
  if (!lm_recipe_help(m->R->c, d, path, name->text, names, n))
    lm_diag_help(m->R->c, d, "it has %s", params_of(m, s));
  return false;
}

// A copy of the call in which one argument is added or replaced. The tree of the base is shared and
// must not change.
static ast_expr *call_with(merge *m, const lm_setting *s, const ast_item *it,
                           const ast_name *name) {
  ast_expr *call = LM_NEW(m->R->c->arena, ast_expr);
  *call = *s->value;
  call->args = LM_NEW_N(m->R->c->arena, ast_arg, call->n_args + 1);
  if (call->n_args)
    memcpy(call->args, s->value->args, sizeof *call->args * call->n_args);
  int i = arg_index(m, s, name->text);
  if (i < 0)
    i = (int)call->n_args++;
  ast_arg_kind kind = i < (int)s->value->n_args ? call->args[i].kind : ARG_NAMED;
  call->args[i] =
      (ast_arg){kind, name->loc, kind == ARG_NAMED ? name->text : NULL, name->loc, it->expr, NULL};
  return call;
}

// A value of --set for a key that expects a string. The shell removes quotes, so a value without
// quotes is taken as the string.
static ast_expr *bare_text(merge *m, const lm_schema_key *key, ast_expr *e) {
  const lm_source *s = &m->R->c->sources[e->loc.file];
  if (!key || !(key->types & (T_STR | T_PATH)) || e->kind == EX_STRING || strcmp(s->path, "--set"))
    return e;
  const char *from = strchr(s->text, '=') + 1;
  const char *end = s->text + s->n;
  while (*from == ' ' || *from == '\t')
    from++;
  while (end > from && (end[-1] == ' ' || end[-1] == '\t'))
    end--;
  ast_expr *text = LM_NEW(m->R->c->arena, ast_expr);
  size_t n = (size_t)(end - from);
  lm_loc at = {e->loc.file, (uint16_t)(n < UINT16_MAX ? n : UINT16_MAX), 1,
               (uint32_t)(from - s->text) + 1};
  *text = (ast_expr){
      .kind = EX_STRING, .loc = at, .height = 1, .text = lm_intern_n(m->R->c->intern, from, n)};
  text->spelling = text->text;
  return text;
}

static const lm_schema_key *form_param(const lm_setting *s, const ast_name *name) {
  lm_sym callee = s->value && s->value->kind == EX_CALL ? lm_callee(s->value) : NULL;
  const lm_schema_key *form = callee ? lm_schema_child(s->key->path, ':', callee) : NULL;
  return form ? lm_schema_child(form->path, '.', name->text) : NULL;
}

static void set_argument(merge *m, lm_setting *s, const dotted *d) {
  ast_item *it = LM_NEW(m->R->c->arena, ast_item);
  *it = *d->item;
  it->expr = bare_text(m, form_param(s, name_at(d)), it->expr);
  const ast_name *name = name_at(d);
  const char *of = it->path.v[d->at - 1].text;
  if (!s->value || s->value->kind != EX_CALL || !is_last(d)) {
    lm_diag *e = LM_REPORT(m->R->c, name->loc, E24B, of);
    if (s->value)
      lm_diag_note(m->R->c, e, s->loc, "the value is %s", value_text(m->R, s->value));
    if (s->value && s->value->kind == EX_CALL)
      lm_diag_help(m->R->c, e, "set the whole argument: \"%s.%s=…\"", of, name->text);
    return;
  }
  if (!takes_arg(m, s, name))
    return;
  const ast_expr *call = call_with(m, s, it, name);
  if (!lm_value_check(m->R, s->key, call, m->layer->file))
    return;
  lm_recipe_origin *o = lm_recipe_origin_new(m->R, it->loc, m->layer->who, it->expr);
  lm_recipe_origin *whole = lm_recipe_origin_new(m->R, it->loc, m->layer->who, call);
  o->before = arg_origin(s, name->text);
  whole->before = s->origin;
  s->value = call;
  s->origin = whole;
  arg_origin_set(m, s, name->text, o);
}

static lm_setting *section_make(merge *m, lm_settings *s, const lm_schema_key *key,
                                const ast_item *it) {
  lm_setting **old = setting_find(s, key, NULL);
  if (old)
    return *old;
  lm_setting *fresh = setting_new(m, key, it, NULL, NULL);
  LM_PUSH(m->R->c->arena, s->v, s->n, s->cap) = fresh;
  return fresh;
}

static void apply_dotted(merge *m, lm_settings *s, const char *section, dotted d);

static void set_whole(merge *m, lm_settings *s, const lm_schema_key *key, const ast_expr *sel,
                      const ast_item *it) {
  ast_item *plain = LM_NEW(m->R->c->arena, ast_item);
  *plain = (ast_item){.kind = sel ? IT_SET_SEL : IT_SET,
                      .loc = it->loc,
                      .sel = (ast_expr *)sel,
                      .expr = bare_text(m, key, it->expr)};
  if (key->form == LM_FORM_CALLED && it->expr->kind == EX_CALL)
    *plain = (ast_item){.kind = IT_CALL,
                        .loc = it->loc,
                        .sel = it->expr->a,
                        .args = it->expr->args,
                        .n_args = it->expr->n_args};
  apply_plain(m, s, key, plain);
}

static void apply_in_named(merge *m, lm_setting *s, dotted d) {
  if (s->key->form == LM_FORM_SECTIONS)
    apply_dotted(m, &s->children, s->key->path, d);
  else
    set_argument(m, s, &d);
}

// An entry whose name is a word of the schema: shard.cp.
static void entry_add(merge *m, lm_settings *s, const lm_schema_key *key, const ast_name *name,
                      const ast_item *it) {
  ast_expr *sel = LM_NEW(m->R->c->arena, ast_expr);
  *sel = (ast_expr){
      .kind = EX_NAME,
      .loc = name->loc,
      .text = name->text,
      .height = 1,
  };
  set_whole(m, s, key, sel, it);
}

// Reports a name that no setting of the key has, with the one probably meant or all that there are.
static void unknown_name(const merge *m, const lm_settings *s, const lm_schema_key *key,
                         const ast_name *name) {
  const char **names = LM_NEW_N(m->R->c->arena, const char *, s->n + 1);
  const char *list = "";
  int n = 0;
  for (uint32_t i = 0; i < s->n; i++) {
    const ast_expr *sel = s->v[i]->key == key ? s->v[i]->sel : NULL;
    if (!sel || sel->kind != EX_NAME)
      continue;
    list = lm_arena_printf(m->R->c->arena, "%s%s%s", list, n ? ", " : "", sel->text);
    names[n++] = sel->text;
  }
  const char *what = lm_schema_name(key), *near = lm_nearest(name->text, names, n);
  lm_diag *d = LM_REPORT(m->R->c, name->loc, E207, what, name->text);
  if (near)
    lm_diag_help(m->R->c, d, "did you mean '%s'?", near);
  else if (n)
    lm_diag_note(m->R->c, d, (lm_loc){0}, "%s of the recipe: %s", what, list);
}

// Paths such as eval.dev.every, source.web.path and source.web. sample.n sets a key of the section
// without a name.
static void apply_named(merge *m, lm_settings *s, const lm_schema_key *key, dotted d) {
  const ast_name *name = name_at(&d);
  for (uint32_t i = 0; i < s->n; i++) {
    lm_setting *x = s->v[i];
    if (x->key != key || !x->sel || x->sel->kind != EX_NAME || x->sel->text != name->text)
      continue;
    if (is_last(&d) && key->form == LM_FORM_NAMED)
      set_whole(m, s, key, x->sel, d.item);
    else if (is_last(&d))
      wrong_form(m, key, name->loc, d.item->expr);
    else
      apply_in_named(m, x, (dotted){d.item, d.at + 1});
    return;
  }
  bool nameless =
      setting_find(s, key, NULL) || is_last(&d) || lm_schema_child(key->path, '.', name->text);
  if (key->types & T_OPTIONAL && nameless)
    apply_dotted(m, &section_make(m, s, key, d.item)->children, key->path, d);
  else if (is_last(&d) && key->form == LM_FORM_NAMED && *key->words)
    entry_add(m, s, key, name, d.item);
  else
    unknown_name(m, s, key, name);
}

static void apply_value_field(merge *m, lm_settings *s, const lm_schema_key *key, const dotted *d) {
  lm_setting **old = setting_find(s, key, NULL);
  if (!old && lm_schema_has_default(key)) {
    lm_setting *fresh = setting_new(m, key, d->item, NULL, lm_value_default(m->R, key));
    fresh->loc = (lm_loc){0};
    fresh->origin = lm_recipe_origin_new(m->R, fresh->loc, "default", fresh->value);
    LM_PUSH(m->R->c->arena, s->v, s->n, s->cap) = fresh;
    old = setting_find(s, key, NULL);
  }
  if (old)
    set_argument(m, *old, d);
  else
    LM_REPORT(m->R->c, d->item->loc, E24D, lm_schema_name(key));
}

static void apply_dotted(merge *m, lm_settings *s, const char *section, dotted d) {
  const lm_schema_key *key = key_find(m, s, section, name_at(&d));
  if (!key)
    return;
  if (is_last(&d)) {
    set_whole(m, s, key, NULL, d.item);
    return;
  }
  d.at++;
  switch (key->form) {
  case LM_FORM_SECTION:
    apply_dotted(m, &section_make(m, s, key, d.item)->children, key->path, d);
    break;
  case LM_FORM_NAMED:
  case LM_FORM_SECTIONS: apply_named(m, s, key, d); break;
  case LM_FORM_VALUE:
  case LM_FORM_CALLED: apply_value_field(m, s, key, &d); break;
  default: wrong_form(m, key, d.item->loc, NULL); break;
  }
}

// ---- items

static bool is_broken(const ast_expr *x) {
  bool broken = x && (x->kind == EX_ERROR || is_broken(x->a) || is_broken(x->b) || is_broken(x->c));
  for (uint32_t i = 0; x && i < x->n_args && !broken; i++)
    broken = is_broken(x->args[i].expr) || is_broken(x->args[i].to);
  return broken;
}

static bool has_parse_error(const ast_item *it) {
  bool broken = it->kind == IT_ERROR || is_broken(it->sel) || is_broken(it->expr);
  for (uint32_t i = 0; i < it->n_args && !broken; i++)
    broken = is_broken(it->args[i].expr) || is_broken(it->args[i].to);
  return broken;
}

static void apply_item(merge *m, lm_settings *s, const char *section, const ast_item *it) {
  if (has_parse_error(it)) {
    m->R->incomplete = true;
    return;
  }
  if (it->kind == IT_MAP) {
    LM_REPORT(m->R->c, it->loc, E24E);
    return;
  }
  if (it->path.n > 1) {
    apply_dotted(m, s, section, (dotted){it, 0});
    return;
  }
  const lm_schema_key *key = key_find(m, s, section, &it->path.v[0]);
  if (!key)
    return;
  if (it->kind == IT_SET && !m->layer->once)
    set_whole(m, s, key, NULL, it); // --set writes all keys as KEY=VALUE
  else
    apply_plain(m, s, key, it);
}

static void apply(merge *m, lm_settings *s, const char *section, const ast_items *items) {
  for (uint32_t i = 0; i < items->n; i++)
    apply_item(m, s, section, items->v[i]);
}

void lm_settings_apply(lm_resolver *R, lm_settings *s, const char *section, const ast_items *items,
                       const lm_settings_layer *layer) {
  merge m = {R, layer};
  apply(&m, s, section, items);
}
