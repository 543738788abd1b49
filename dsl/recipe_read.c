// recipe_read.c - from checked settings to lm_recipe: names are resolved, amounts become numbers in base units, and what
// concerns several keys at once is checked.
#include "dsl/settings.h"
#include <math.h>
#include <string.h>

typedef struct reader {
  lm_resolver *R;
  lm_recipe *r;
  const lm_settings *s;          // of the section being read
} reader;

// ---- values

static lm_setting *setting(const reader *d, const char *path) { return lm_settings_find(d->s, path); }

static const lm_file *file_of(const reader *d, const lm_setting *s) { return s ? s->file : d->R->p->files[0]; }

// The value of a key, or its default; NULL if it has neither.
static const ast_expr *value(const reader *d, const char *path) {
  const lm_setting *s = setting(d, path);
  return s ? s->value : lm_value_default(d->R, lm_schema_find(path));
}

static double number(const reader *d, const char *path, double otherwise) {
  const ast_expr *e = value(d, path);
  return e ? lm_number_eval(d->R, file_of(d, setting(d, path)), e) : otherwise;
}

// A whole number exactly, also beyond 2^53 where it is written out.
static int64_t whole(const reader *d, const char *path, int64_t otherwise) {
  const ast_expr *e = value(d, path);
  return e && e->kind == EX_NUMBER && e->is_int ? e->inum : (int64_t)number(d, path, (double)otherwise);
}

static lm_recipe_unit unit_of(lm_sym unit) {
  static const struct { const char *name; lm_recipe_unit unit; } units[] = {
    {"steps", LM_RECIPE_UNIT_STEPS}, {"tokens", LM_RECIPE_UNIT_TOKENS}, {"epochs", LM_RECIPE_UNIT_EPOCHS},
    {"s", LM_RECIPE_UNIT_SECONDS}, {"seqs", LM_RECIPE_UNIT_SEQS},
  };
  for (size_t i = 0; unit && i < LM_COUNT(units); i++)
    if (!strcmp(units[i].name, unit)) return units[i].unit;
  return LM_RECIPE_UNIT_NONE;
}

static lm_recipe_every every_of(const reader *d, const lm_file *file, const ast_expr *e) {
  lm_amount a;
  if (!e || !lm_amount_eval(d->R, file, e, false, &a)) return (lm_recipe_every){0};
  return (lm_recipe_every){unit_of(a.unit), a.value};
}

// Paths are relative to the file that names them; --set and defaults to the working directory.
static const char *path_at(const reader *d, const char *path, lm_loc at) {
  for (uint32_t i = 0; i < d->R->p->n_files; i++)
    if (d->R->p->files[i]->tree->source == at.file) return lm_path_join(d->R->c->arena, d->R->p->files[i]->dir, path);
  return path;
}

static const ast_expr *arg(const reader *d, const char *path, const ast_expr *call, const char *name) {
  return lm_form_arg(d->R, lm_schema_find(path), call, name);
}
static const char *arg_path(const reader *d, const char *path, const ast_expr *call, const char *name) {
  const ast_expr *e = arg(d, path, call, name);
  return e ? path_at(d, e->text, e->loc) : NULL;
}
static const char *arg_text(const reader *d, const char *path, const ast_expr *call, const char *name) {
  const ast_expr *e = arg(d, path, call, name);
  return e ? e->text : NULL;
}
static double arg_number(const reader *d, const char *path, const ast_expr *call, const char *name, const lm_file *file) {
  const ast_expr *e = arg(d, path, call, name);
  return e ? lm_number_eval(d->R, file, e) : 0;
}

static bool is_word(const ast_expr *e, const char *word) { return e && e->kind == EX_NAME && !strcmp(e->text, word); }

static void suggest(const reader *d, lm_diag *at, const char *near) {
  if (near) lm_diag_help(d->R->c, at, "did you mean '%s'?", near);
}

// Reports a key that must be given and is not.
static bool given(const reader *d, const char *path, lm_loc at, const char *where) {
  if (value(d, path)) return true;
  const lm_schema_key *k = lm_schema_find(path);
  lm_diag *e = lm_error(d->R->c, at, "E204", "%s has no '%s'", where, lm_schema_name(k));
  lm_diag_help(d->R->c, e, "write %s  # %s", lm_schema_usage(d->R->c, k), k->help);
  return false;
}

// ---- declarations

lm_decl_ref lm_callable_find(lm_resolver *R, const lm_file *file, lm_sym name) {
  lm_decl_ref ref = lm_program_find(R->p, file, name);
  return ref.decl || !R->p->optim ? ref : lm_program_find(R->p, R->p->optim, name);
}

uint32_t lm_call_implied(const lm_schema_key *key) { return !strcmp(key->path, "recipe.schedule") ? 2 : 0; }

static const char *kind_name(ast_decl_kind kind) {
  return kind == DC_MODEL ? "model" : kind == DC_OPTIMIZER ? "optimizer" : kind == DC_DATA ? "data section" : kind == DC_RECIPE ? "recipe" : "function";
}

static const char *nearest_decl(lm_resolver *R, const lm_file *file, ast_decl_kind kind, const char *name) {
  int n, k;
  const char *const *own = lm_program_names(R->p, file, kind, &n);
  const char *near = lm_nearest(name, own, n);
  if (near || !R->p->optim) return near;
  const char *const *library = lm_program_names(R->p, R->p->optim, kind, &k);
  return lm_nearest(name, library, k);
}

static lm_decl_ref find_kind(const reader *d, const lm_file *file, ast_decl_kind kind, lm_sym name, lm_loc at) {
  lm_decl_ref ref = lm_callable_find(d->R, file, name);
  if (ref.decl && ref.decl->kind == kind) return ref;
  lm_diag *e = lm_error(d->R->c, at, "E207", ref.decl ? "'%s' is no %s" : "there is no '%s' of the kind %s", name, kind_name(kind));
  if (ref.decl) lm_diag_note(d->R->c, e, ref.decl->loc, "it is declared here");
  else suggest(d, e, nearest_decl(d->R, file, kind, name));
  return (lm_decl_ref){0};
}

// ---- calls of declared things

static bool holds_quantity(const ast_expr *e) {
  if (!e) return false;
  if (e->kind == EX_QUANTITY) return true;
  for (uint32_t i = 0; i < e->n_args; i++)
    if (holds_quantity(e->args[i].expr)) return true;
  return holds_quantity(e->a) || holds_quantity(e->b) || holds_quantity(e->c);
}

static ast_expr *number_expr(const reader *d, const ast_expr *from, double x) {
  ast_expr *e = LM_NEW(d->R->c->arena, ast_expr);
  bool is_int = x == floor(x) && fabs(x) < 0x1p53;
  *e = (ast_expr){.kind = EX_NUMBER, .loc = from->loc, .num = x, .is_int = is_int, .inum = is_int ? (int64_t)x : 0, .height = 1};
  e->spelling = LM_SYM(d->R->c, lm_arena_printf(d->R->c->arena, "%.17g", x));
  return e;
}

static const ast_expr *plain_quantity(const reader *d, const ast_expr *e) {
  if (!strcmp(e->unit, "%")) return number_expr(d, e, e->num / 100);
  if (!strcmp(e->unit, "steps")) return number_expr(d, e, e->num);
  if (!strcmp(e->unit, "tokens") && d->r->batch) return number_expr(d, e, e->num / (double)d->r->batch);
  lm_error(d->R->c, e->loc, "E202", "an argument in %s has no meaning here; steps and percent have", e->unit);
  return number_expr(d, e, e->num);
}

// The expression with its quantities as plain numbers; itself if it has none.
static const ast_expr *plain(const reader *d, const ast_expr *e) {
  if (!holds_quantity(e)) return e;
  if (e->kind == EX_QUANTITY) return plain_quantity(d, e);
  ast_expr *copy = LM_NEW(d->R->c->arena, ast_expr);
  *copy = *e;
  copy->a = (ast_expr *)plain(d, e->a);
  copy->b = (ast_expr *)plain(d, e->b);
  copy->c = (ast_expr *)plain(d, e->c);
  copy->args = LM_NEW_N(d->R->c->arena, ast_arg, e->n_args + 1);
  for (uint32_t i = 0; i < e->n_args; i++) {
    copy->args[i] = e->args[i];
    copy->args[i].expr = (ast_expr *)plain(d, e->args[i].expr);
  }
  return copy;
}

static int param_find(const ast_sig *sig, const char *name) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (!strcmp(sig->params[i].name.text, name)) return (int)i;
  return -1;
}

static void report_unknown_arg(const reader *d, const ast_decl *decl, uint32_t skip, const ast_arg *a) {
  const char *names[64];
  int n = 0;
  for (uint32_t i = skip; i < decl->sig.n_params && n < (int)LM_COUNT(names); i++) names[n++] = decl->sig.params[i].name.text;
  lm_diag *e = lm_error(d->R->c, a->name_loc, "E203", "%s has no argument '%s'", decl->name.text, a->name);
  lm_diag_note(d->R->c, e, decl->name.loc, "%s is declared here", decl->name.text);
  suggest(d, e, lm_nearest(a->name, names, n));
}

// Which parameter argument i is for, -1 after a report. The first `skip` parameters are not the caller's to give.
static int param_of(const reader *d, const ast_decl *decl, uint32_t skip, const ast_arg *a, uint32_t i) {
  int at = a->kind == ARG_POS ? (int)(skip + i) : a->kind == ARG_NAMED ? param_find(&decl->sig, a->name) : -1;
  if (a->kind == ARG_NAMED && at < (int)skip) {
    report_unknown_arg(d, decl, skip, a);
    return -1;
  }
  if (at >= 0 && at < (int)decl->sig.n_params) return at;
  lm_error(d->R->c, a->loc, "E203", "%s takes %u arguments at the most", decl->name.text, decl->sig.n_params - skip);
  return -1;
}

static void check_args(const reader *d, const lm_recipe_call *call, uint32_t skip) {
  const ast_decl *decl = call->target.decl;
  bool *seen = LM_NEW_N(d->R->c->arena, bool, decl->sig.n_params + 1);
  for (uint32_t i = 0; i < call->n_args; i++) {
    int at = param_of(d, decl, skip, &call->args[i], i);
    if (at < 0) return;
    if (seen[at]) lm_error(d->R->c, call->args[i].loc, "E203", "'%s' is given twice", decl->sig.params[at].name.text);
    seen[at] = true;
  }
  for (uint32_t i = skip; i < decl->sig.n_params; i++) {
    if (seen[i] || decl->sig.params[i].init) continue;
    lm_diag *e = lm_error(d->R->c, call->loc, "E204", "%s needs '%s'", call->name, decl->sig.params[i].name.text);
    lm_diag_note(d->R->c, e, decl->sig.params[i].name.loc, "it has no default");
  }
}

static const ast_arg *plain_args(const reader *d, const ast_arg *args, uint32_t n) {
  ast_arg *copy = LM_NEW_N(d->R->c->arena, ast_arg, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    copy[i] = args[i];
    copy[i].expr = (ast_expr *)plain(d, args[i].expr);
  }
  return copy;
}

static lm_recipe_call call_of(const reader *d, const ast_expr *e, const lm_file *file, ast_decl_kind kind, uint32_t skip) {
  lm_recipe_call call = {.name = lm_callee(e), .loc = e->loc, .file = file};
  call.target = find_kind(d, file, kind, call.name, e->loc);
  call.args = plain_args(d, e->args, e->n_args);
  call.n_args = e->n_args;
  if (call.target.decl) check_args(d, &call, skip);
  return call;
}

// ---- the model

static void read_weights(const reader *d, const lm_decl_ref *named) {
  const ast_expr *from = named->decl->from;
  lm_recipe *r = d->r;
  if (!from) return;
  if (from->kind != EX_STRING) {
    lm_error(d->R->c, from->loc, "E202", "weights come from a path in quotes");
    return;
  }
  r->from_hf = !strncmp(from->text, "hf:", 3);
  r->from = path_at(d, from->text + (r->from_hf ? 3 : 0), from->loc);
  r->from_loc = from->loc;
}

static const ast_expr *read_named_model(const reader *d, const ast_expr *e, const lm_file **file) {
  lm_decl_ref ref = lm_program_find(d->R->p, *file, e->text);
  if (ref.decl && ref.decl->kind == DC_MODEL) {
    lm_diag *x = lm_error(d->R->c, e->loc, "E207", "'%s' is a model, not an instance of one", e->text);
    lm_diag_help(d->R->c, x, "write %s()", e->text);
    return NULL;
  }
  if (!ref.decl || ref.decl->kind != DC_MODEL_INST) {
    lm_diag *x = lm_error(d->R->c, e->loc, "E207", "there is no model '%s'", e->text);
    const char *near = nearest_decl(d->R, *file, DC_MODEL_INST, e->text);
    suggest(d, x, near ? near : nearest_decl(d->R, *file, DC_MODEL, e->text));
    return NULL;
  }
  read_weights(d, &ref);
  if (ref.decl->items.n) {
    d->r->surgery = &ref.decl->items;
    d->r->surgery_file = ref.file;
    lm_unsupported_add(d->R, ref.decl->items.v[0]->loc, "changing a model by 'with'");
  }
  d->r->model_decl = ref;
  *file = ref.file;
  if (lm_callee(ref.decl->inst)) return ref.decl->inst;
  lm_error(d->R->c, ref.decl->inst->loc, "E207", "an instance is a call of a model, such as Llama()");
  return NULL;
}

static void read_model(const reader *d) {
  if (!given(d, "recipe.model", d->r->loc, "the recipe")) return;
  const ast_expr *e = value(d, "recipe.model");
  const lm_file *file = file_of(d, setting(d, "recipe.model"));
  if (e->kind == EX_NAME) e = read_named_model(d, e, &file);
  if (!e) return;
  d->r->model = call_of(d, e, file, DC_MODEL, 0);
  if (!d->r->model_decl.decl) d->r->model_decl = d->r->model.target;
}

// ---- data

static void read_tokenizer(const reader *d, lm_recipe_data *out) {
  static const char key[] = "data.tokenizer";
  const ast_expr *e = value(d, key);
  out->tokenizer = (lm_recipe_tokenizer){.kind = LM_RECIPE_TOKENIZER_BYTES, .loc = e->loc};
  if (strcmp(lm_callee(e), "bpe")) return;
  const ast_expr *train = arg(d, key, e, "train");
  out->tokenizer = (lm_recipe_tokenizer){LM_RECIPE_TOKENIZER_BPE, arg_path(d, key, e, "file"), arg_path(d, key, e, "merges"), 0, e->loc};
  if (train) out->tokenizer.train = (int64_t)lm_number_eval(d->R, file_of(d, setting(d, key)), train);
  if (!out->tokenizer.file == !train) lm_error(d->R->c, e->loc, "E204", "bpe is either of a file or trained: bpe(\"tokenizer.json\"), bpe(train = 4096)");
}

static void read_source(const reader *d, const lm_setting *s, lm_recipe_data *out) {
  static const char key[] = "data.source";
  const ast_expr *e = s->value;
  lm_sym form = lm_callee(e);
  lm_recipe_source x = {.name = s->sel->text, .loc = s->loc, .path = arg_path(d, key, e, "path")};
  x.kind = !strcmp(form, "text") ? LM_RECIPE_SOURCE_TEXT : !strcmp(form, "jsonl") ? LM_RECIPE_SOURCE_JSONL : LM_RECIPE_SOURCE_BATCHES;
  if (x.kind == LM_RECIPE_SOURCE_TEXT) x.split = arg_text(d, key, e, "split");
  if (x.kind == LM_RECIPE_SOURCE_JSONL) x.field = arg_text(d, key, e, "field");
  if (x.split && !*x.split) lm_error(d->R->c, e->loc, "E202", "documents cannot be split at an empty string");
  out->replays |= x.kind == LM_RECIPE_SOURCE_BATCHES;
  LM_PUSH(d->R->c->arena, out->sources, out->n_sources, out->cap_sources) = x;
}

static void read_holdout(const reader *d, const lm_setting *s, lm_recipe_data *out) {
  static const char key[] = "data.holdout";
  bool sample = !strcmp(lm_callee(s->value), "sample");
  lm_recipe_holdout x = {.name = s->sel->text, .loc = s->loc, .kind = sample ? LM_RECIPE_HOLDOUT_SAMPLE : LM_RECIPE_HOLDOUT_TAIL};
  if (sample) x.docs = (int64_t)arg_number(d, key, s->value, "docs", s->file);
  else x.fraction = arg_number(d, key, s->value, "share", s->file);
  LM_PUSH(d->R->c->arena, out->holdouts, out->n_holdouts, out->cap_holdouts) = x;
}

static void read_mix(const reader *d, const lm_setting *mix, double from, lm_recipe_data *out) {
  lm_recipe_weight *w = LM_NEW_N(d->R->c->arena, lm_recipe_weight, mix->value->n_args);
  for (uint32_t i = 0; i < mix->value->n_args; i++) {
    const ast_arg *a = &mix->value->args[i];
    bool found = false;
    for (uint32_t k = 0; k < out->n_sources; k++) found |= out->sources[k].name == a->name;
    if (!found) lm_error(d->R->c, a->name_loc, "E207", "the data has no source '%s'", a->name);
    w[i] = (lm_recipe_weight){a->name, lm_number_eval(d->R, mix->file, a->expr), a->name_loc};
  }
  LM_PUSH(d->R->c->arena, out->stages, out->n_stages, out->cap_stages) = (lm_recipe_stage){from, w, mix->value->n_args, mix->loc};
}

static void read_stages(const reader *d, lm_recipe_data *out) {
  if (setting(d, "data.mix")) read_mix(d, setting(d, "data.mix"), 0, out);
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i], *mix = lm_settings_find(&s->children, "data.stage.mix");
    double from = s->sel && s->sel->kind == EX_QUANTITY ? s->sel->num / 100 : 0;
    if (!mix) continue;
    if (out->n_stages && from <= out->stages[out->n_stages - 1].from && from > 0)
      lm_error(d->R->c, s->loc, "E202", "stages stand in the order in which they come");
    read_mix(d, mix, from, out);
  }
}

static void check_sources(const reader *d, const lm_recipe_data *x) {
  if (!x->n_sources) lm_error(d->R->c, x->loc, "E204", "data section '%s' has no 'source'", x->name);
  for (uint32_t i = 0; x->replays && x->n_sources > 1 && i < x->n_sources; i++)
    if (x->sources[i].kind == LM_RECIPE_SOURCE_BATCHES)
      lm_error(d->R->c, x->sources[i].loc, "E202", "finished batches are the only source of their data section");
  for (uint32_t i = 0; x->replays && i < x->n_holdouts; i++)
    lm_error(d->R->c, x->holdouts[i].loc, "E202", "nothing can be held out of finished batches");
}

static void read_data(const reader *recipe) {
  if (!given(recipe, "recipe.data", recipe->r->loc, "the recipe")) return;
  const ast_expr *e = value(recipe, "recipe.data");
  if (e->kind != EX_NAME) {
    lm_error(recipe->R->c, e->loc, "E202", "data is the name of a data section");
    return;
  }
  lm_decl_ref ref = find_kind(recipe, file_of(recipe, setting(recipe, "recipe.data")), DC_DATA, e->text, e->loc);
  if (!ref.decl) return;
  lm_settings s = {0};
  lm_settings_of(recipe->R, ref, "data", &s);
  lm_recipe_data *out = &recipe->r->data;
  reader d = {recipe->R, recipe->r, &s};
  out->name = e->text;
  out->loc = ref.decl->name.loc;
  read_tokenizer(&d, out);
  for (uint32_t i = 0; i < s.n; i++) {
    if (!strcmp(s.v[i]->key->path, "data.source")) read_source(&d, s.v[i], out);
    if (!strcmp(s.v[i]->key->path, "data.holdout")) read_holdout(&d, s.v[i], out);
  }
  read_stages(&d, out);
  check_sources(&d, out);
  out->shuffle_docs = whole(&d, "data.shuffle", 0);
  if (!out->replays) out->seq = (int64_t)arg_number(&d, "data.pack", value(&d, "data.pack"), "seq", file_of(&d, setting(&d, "data.pack")));
  for (uint32_t i = 0; i < s.n; i++) LM_PUSH(d.R->c->arena, recipe->r->settings->v, recipe->r->settings->n, recipe->r->settings->cap) = s.v[i];
}

// ---- sizes of steps

// batch or micro in tokens; 0 if only the data's file knows.
static int64_t tokens_of(const reader *d, const char *path) {
  const ast_expr *e = value(d, path);
  lm_amount a;
  if (is_word(e, "auto") || !lm_amount_eval(d->R, file_of(d, setting(d, path)), e, false, &a)) return 0;
  if (unit_of(a.unit) != LM_RECIPE_UNIT_SEQS) return (int64_t)a.value;
  if (!d->r->data.seq) lm_error(d->R->c, e->loc, "E202", "%s in sequences needs the length of a row", lm_schema_name(lm_schema_find(path)));
  return (int64_t)(a.value * (double)d->r->data.seq);
}

static void read_batches(const reader *d) {
  lm_recipe *r = d->r;
  const lm_setting *batch = setting(d, "recipe.batch"), *micro = setting(d, "recipe.micro");
  r->batch_loc = batch ? batch->value->loc : r->loc;
  r->micro_loc = micro ? micro->value->loc : r->batch_loc;
  r->micro = tokens_of(d, "recipe.micro");
  r->batch = batch || r->data.seq ? tokens_of(d, "recipe.batch") : 0;
  int64_t unit = r->micro ? r->micro : r->data.seq;
  if (!batch && unit && r->batch) r->batch = (r->batch + unit - 1) / unit * unit;   // the default gives way
  if (!r->micro) r->micro = r->batch;
  lm_recipe_check_batches(r);
}

static void read_run(const reader *d) {
  lm_amount a;
  if (!given(d, "recipe.run", d->r->loc, "the recipe")) return;
  const ast_expr *e = value(d, "recipe.run");
  if (!lm_amount_eval(d->R, file_of(d, setting(d, "recipe.run")), e, true, &a)) return;
  d->r->run = (lm_recipe_run){unit_of(a.unit), a.value, a.per_param};
  d->r->run_loc = e->loc;
}

// ---- optimizer

static void read_group(const reader *d, const lm_setting *s) {
  const ast_decl *optimizer = d->r->optimizer.target.decl;
  lm_recipe_group g = {.pattern = s->sel->text, .loc = s->sel->loc, .file = s->file};
  g.args = plain_args(d, s->value->args, s->value->n_args);
  g.n_args = s->value->n_args;
  for (uint32_t i = 0; optimizer && i < g.n_args; i++)
    if (param_find(&optimizer->sig, g.args[i].name) < 0) report_unknown_arg(d, optimizer, 0, &g.args[i]);
  LM_PUSH(d->R->c->arena, d->r->groups, d->r->n_groups, d->r->cap_groups) = g;
}

static void read_optimizer(const reader *d) {
  const lm_file *file = file_of(d, setting(d, "recipe.optimizer"));
  d->r->optimizer = call_of(d, value(d, "recipe.optimizer"), file, DC_OPTIMIZER, 0);
  const ast_expr *schedule = value(d, "recipe.schedule"), *clip = value(d, "recipe.clip");
  const lm_schema_key *key = lm_schema_find("recipe.schedule");
  if (!is_word(schedule, "none"))
    d->r->schedule = call_of(d, schedule, file_of(d, setting(d, "recipe.schedule")), DC_FN, lm_call_implied(key));
  if (!is_word(clip, "none")) d->r->clip = arg_number(d, "recipe.clip", clip, "max", file_of(d, setting(d, "recipe.clip")));
  for (uint32_t i = 0; i < d->s->n; i++)
    if (!strcmp(d->s->v[i]->key->path, "recipe.group")) read_group(d, d->s->v[i]);
}

// ---- precision and memory

static reader inside(const reader *d, const char *section, lm_settings *none) {
  const lm_setting *s = setting(d, section);
  return (reader){d->R, d->r, s ? &s->children : none};
}

static void read_precision(const reader *recipe) {
  lm_settings none = {0};
  reader d = inside(recipe, "recipe.precision", &none);
  lm_recipe_precision *p = &d.r->precision;
  const ast_expr *compute = value(&d, "recipe.precision.compute");
  p->compute = is_word(compute, "f32") ? LM_RECIPE_COMPUTE_F32 : is_word(compute, "bf16") ? LM_RECIPE_COMPUTE_BF16 : LM_RECIPE_COMPUTE_AUTO;
  p->compute_loc = compute->loc;
  for (uint32_t i = 0; i < d.s->n; i++) {
    const lm_setting *s = d.s->v[i];
    if (strcmp(s->key->path, "recipe.precision.keep")) continue;
    bool list = s->value->kind == EX_LIST;
    for (uint32_t k = 0; k < (list ? s->value->n_args : 1); k++) {
      const ast_expr *pattern = list ? s->value->args[k].expr : s->value;
      LM_PUSH(d.R->c->arena, p->keep, p->n_keep, p->cap_keep) = (lm_recipe_keep){s->sel->text, pattern->text, pattern->loc};
    }
  }
}

static void read_memory(const reader *recipe) {
  lm_settings none = {0};
  reader d = inside(recipe, "recipe.memory", &none);
  lm_recipe_memory *m = &d.r->memory;
  const ast_expr *budget = value(&d, "recipe.memory.budget");
  m->budget = (int64_t)number(&d, "recipe.memory.budget", 0);
  if (budget) m->budget_loc = budget->loc;
  static const struct { const char *path; lm_recipe_memory_kind kind; } rules[] = {
    {"recipe.memory.recompute", LM_RECIPE_MEMORY_RECOMPUTE}, {"recipe.memory.save", LM_RECIPE_MEMORY_SAVE}, {"recipe.memory.offload", LM_RECIPE_MEMORY_OFFLOAD},
  };
  for (uint32_t i = 0; i < d.s->n; i++)
    for (size_t k = 0; k < LM_COUNT(rules); k++)
      if (!strcmp(d.s->v[i]->key->path, rules[k].path))
        LM_PUSH(d.R->c->arena, m->rules, m->n_rules, m->cap_rules) = (lm_recipe_memory_rule){rules[k].kind, d.s->v[i]->sel->text, d.s->v[i]->sel->loc};
}

// ---- evaluation, checkpoints, samples

static const char *const METRICS[] = {
  [LM_RECIPE_METRIC_LOSS] = "loss", [LM_RECIPE_METRIC_BITS_PER_BYTE] = "bits_per_byte", [LM_RECIPE_METRIC_PERPLEXITY] = "perplexity",
};

static int metric_find(lm_sym name) {
  for (int i = 0; i < (int)LM_COUNT(METRICS); i++)
    if (!strcmp(METRICS[i], name)) return i;
  return -1;
}

// DATA.HOLDOUT as an index, -1 for the training part.
static int read_holdout_ref(const reader *d, const ast_expr *e) {
  const lm_recipe_data *data = &d->r->data;
  const ast_expr *base = e->kind == EX_FIELD ? e->a : e;
  if (!data->name) return -1;                                      // no data: reported
  if (base->kind != EX_NAME || base->text != data->name) {
    lm_diag *x = lm_error(d->R->c, e->loc, "E207", "evaluation is on the recipe's own data");
    lm_diag_help(d->R->c, x, "write %s.HOLDOUT", data->name);
    return -1;
  }
  const char **names = LM_NEW_N(d->R->c->arena, const char *, data->n_holdouts + 1);
  for (uint32_t i = 0; i < data->n_holdouts; i++) names[i] = data->holdouts[i].name;
  for (uint32_t i = 0; e->kind == EX_FIELD && i < data->n_holdouts; i++)
    if (data->holdouts[i].name == e->text) return (int)i;
  if (e->kind == EX_FIELD) {
    lm_diag *x = lm_error(d->R->c, e->loc, "E207", "data section '%s' has no holdout '%s'", data->name, e->text);
    lm_diag_note(d->R->c, x, data->loc, "declared here");
    suggest(d, x, lm_nearest(e->text, names, (int)data->n_holdouts));
  }
  return -1;
}

static void read_eval(const reader *recipe, const lm_setting *s) {
  reader d = {recipe->R, recipe->r, &s->children};
  lm_recipe_eval x = {.name = s->sel->text, .loc = s->loc, .holdout = -1};
  const char *where = lm_arena_printf(d.R->c->arena, "eval %s", x.name);
  if (given(&d, "recipe.eval.data", s->loc, where)) x.holdout = read_holdout_ref(&d, value(&d, "recipe.eval.data"));
  if (given(&d, "recipe.eval.every", s->loc, where))
    x.every = every_of(&d, file_of(&d, setting(&d, "recipe.eval.every")), value(&d, "recipe.eval.every"));
  const ast_expr *metrics = value(&d, "recipe.eval.metrics");
  for (uint32_t i = 0; i < metrics->n_args; i++) x.metrics[metric_find(metrics->args[i].expr->text)] = true;
  LM_PUSH(d.R->c->arena, d.r->evals, d.r->n_evals, d.r->cap_evals) = x;
}

// EVAL.METRIC
static lm_recipe_watch read_watch(const reader *d, const ast_expr *e) {
  lm_recipe_watch none = {-1, LM_RECIPE_METRIC_LOSS};
  if (!e) return none;
  int metric = e->kind == EX_FIELD ? metric_find(e->text) : -1;
  if (e->kind != EX_FIELD || e->a->kind != EX_NAME || metric < 0) {
    lm_error(d->R->c, e->loc, "E202", "this is EVAL.METRIC, such as dev.loss; metrics are loss, bits_per_byte and perplexity");
    return none;
  }
  const char **names = LM_NEW_N(d->R->c->arena, const char *, d->r->n_evals + 1);
  for (uint32_t i = 0; i < d->r->n_evals; i++) {
    names[i] = d->r->evals[i].name;
    if (names[i] != e->a->text) continue;
    d->r->evals[i].metrics[metric] = true;
    return (lm_recipe_watch){(int)i, metric};
  }
  suggest(d, lm_error(d->R->c, e->a->loc, "E207", "the recipe has no 'eval %s'", e->a->text), lm_nearest(e->a->text, names, (int)d->r->n_evals));
  return none;
}

static void read_stop(const reader *d) {
  static const char key[] = "recipe.stop";
  const ast_expr *e = value(d, key);
  const lm_file *file = file_of(d, setting(d, key));
  d->r->stop.on.eval = -1;
  if (is_word(e, "none")) return;
  d->r->stop = (lm_recipe_stop){read_watch(d, arg(d, key, e, "on")), (int64_t)arg_number(d, key, e, "patience", file), arg_number(d, key, e, "min_delta", file)};
}

static void read_save(const reader *d) {
  static const char key[] = "recipe.save";
  const ast_expr *e = value(d, key);
  const lm_file *file = file_of(d, setting(d, key));
  lm_recipe_save *s = &d->r->save;
  s->best.eval = -1;
  if (is_word(e, "none")) return;
  *s = (lm_recipe_save){.dir = arg_path(d, key, e, "dir"), .loc = e->loc, .every = every_of(d, file, arg(d, key, e, "every"))};
  s->keep = (int64_t)arg_number(d, key, e, "keep", file);
  s->best = read_watch(d, arg(d, key, e, "best"));
  s->resume = is_word(arg(d, key, e, "resume"), "never") ? LM_RECIPE_RESUME_NEVER : LM_RECIPE_RESUME_AUTO;
}

static void read_compile(const reader *d) {
  static const char key[] = "recipe.compile";
  const ast_expr *e = value(d, key);
  const char *name = arg_text(d, key, e, "name");
  d->r->compile = !strcmp(name, "max-autotune") ? LM_RECIPE_COMPILE_MAX_AUTOTUNE : !strcmp(name, "reduce-overhead") ? LM_RECIPE_COMPILE_REDUCE_OVERHEAD : LM_RECIPE_COMPILE_DEFAULT;
  d->r->compile_budget = arg_number(d, key, e, "budget", file_of(d, setting(d, key)));
}

static void read_sample(const reader *recipe, const lm_setting *s) {
  reader d = {recipe->R, recipe->r, &s->children};
  lm_recipe_sample x = {.name = s->sel ? s->sel->text : NULL, .loc = s->loc};
  if (given(&d, "recipe.sample.every", s->loc, "sample"))
    x.every = every_of(&d, file_of(&d, setting(&d, "recipe.sample.every")), value(&d, "recipe.sample.every"));
  x.prompt = value(&d, "recipe.sample.prompt")->text;
  x.n = whole(&d, "recipe.sample.n", 0);
  x.temperature = number(&d, "recipe.sample.temperature", 1);
  x.top_k = whole(&d, "recipe.sample.top_k", 0);
  x.top_p = number(&d, "recipe.sample.top_p", 1);
  x.seed = (uint64_t)whole(&d, "recipe.sample.seed", 0);
  LM_PUSH(d.R->c->arena, d.r->samples, d.r->n_samples, d.r->cap_samples) = x;
}

// ---- all of it

static void collect_unsupported(lm_resolver *R, const lm_settings *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    const lm_setting *x = s->v[i];
    lm_value_collect_unsupported(R, x->key, x->value, x->loc);
    if (!x->key->later) collect_unsupported(R, &x->children);
  }
}

void lm_recipe_read(lm_resolver *R, const lm_settings *s) {
  reader d = {R, R->r, s};
  R->r->seed = (uint64_t)whole(&d, "recipe.seed", 0);
  read_data(&d);
  read_batches(&d);
  read_run(&d);
  read_model(&d);
  read_optimizer(&d);
  read_precision(&d);
  read_memory(&d);
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, "recipe.eval")) read_eval(&d, s->v[i]);
  read_stop(&d);
  read_save(&d);
  read_compile(&d);
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, "recipe.sample")) read_sample(&d, s->v[i]);
  collect_unsupported(R, R->r->settings);
}
