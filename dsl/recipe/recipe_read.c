// recipe_read.c - fills in lm_recipe from checked settings: resolves names, converts amounts to
// base units, and checks conditions between several keys.
#include "dsl/recipe/recipe_read.h"
#include <math.h>
#include <string.h>

// ---- batch sizes

// Rows of the sequence length in tokens; 0 after an error.
static int64_t tokens_of_rows(const lm_reader *d, const lm_schema_key *key, double rows,
                              lm_loc at) {
  double tokens = rows * (double)d->r->data.seq;
  if (tokens <= key->max)
    return (int64_t)tokens;
  const char *most = lm_arena_printf(d->R->c->arena, "at most %g tokens; got %g rows of %lld",
                                     key->max, rows, (long long)d->r->data.seq);
  LM_REPORT(d->R->c, at, E202, lm_schema_name(key), most);
  return 0;
}

// batch or micro in tokens; 0 for auto, if only a file of batches determines it, or after an error.
static int64_t tokens_of(const lm_reader *d, const char *path) {
  const ast_expr *e = lm_read_value(d, path);
  lm_amount a;
  if (lm_read_is_word(e, "auto") ||
      !lm_amount_eval(d->R, lm_read_file(d, lm_read_setting(d, path)), e, false, &a))
    return 0;
  if (lm_read_unit(a.unit) != LM_RECIPE_UNIT_SEQS)
    return (int64_t)a.value;
  const lm_recipe_data *data = &d->r->data;
  const char *needed =
      data->replays ? "a sequence length, which prepared batches do not give" : NULL;
  for (uint32_t i = 0; i < data->n_stages; i++) {
    bool known = data->seq && data->stages[i].seq;
    if (known && data->stages[i].seq != data->seq)
      needed = "one sequence length, but stages change it";
  }
  if (needed) {
    LM_REPORT(d->R->c, e->loc, E22E, lm_schema_name(lm_schema_find(path)), needed);
    return 0;
  }
  return tokens_of_rows(d, lm_schema_find(path), a.value, e->loc);
}

static bool check_multiple(const lm_recipe *r, const char *name, int64_t n, lm_loc at,
                           const char *of, int64_t unit) {
  if (!n || !unit || n % unit == 0)
    return true;
  int64_t near = (n / unit + (n % unit * 2 >= unit)) * unit;
  lm_diag *d = LM_REPORT(r->c, at, E206, name, (long long)n, of, (long long)unit);
  if (near)
    lm_diag_help(r->c, d, "the nearest multiple is %lld tokens", (long long)near);
  else
    lm_diag_help(r->c, d, "the smallest multiple is %lld tokens; or make %s at most %lld tokens",
                 (long long)unit, of, (long long)n);
  return false;
}

// Checks that `value` consists of whole rows. If no micro-batch is given, this is called for the
// batch.
static bool check_rows(const lm_recipe *r, const char *of, int64_t seq) {
  bool whole = r->micro_auto && r->micro == r->batch;
  return check_multiple(r, whole ? "batch" : "micro", r->micro, whole ? r->batch_loc : r->micro_loc,
                        of, seq);
}

bool lm_recipe_check_batches(const lm_recipe *r) {
  bool of_seq = check_rows(r, "the sequence length", r->data.seq);
  for (uint32_t i = 0; i < r->data.n_stages && of_seq; i++)
    of_seq = check_rows(r, "the sequence length of a stage", r->data.stages[i].seq);
  if (r->micro == r->batch)
    return of_seq;
  return check_multiple(r, "batch", r->batch, r->batch_loc, "micro", r->micro) && of_seq;
}

static void read_batches(const lm_reader *d) {
  lm_recipe *r = d->r;
  const lm_setting *batch = lm_read_setting(d, "recipe.batch");
  const lm_setting *micro = lm_read_setting(d, "recipe.micro");
  r->batch_loc = batch ? batch->value->loc : r->loc;
  r->micro_loc = micro ? micro->value->loc : r->batch_loc;
  r->micro = tokens_of(d, "recipe.micro");
  r->batch = batch || r->data.seq ? tokens_of(d, "recipe.batch") : 0;
  int64_t unit = r->micro ? r->micro : r->data.seq;
  if (!batch && unit && r->batch)
    r->batch = (r->batch + unit - 1) / unit * unit; // round the default up
  r->micro_auto = !r->micro;
  if (!r->micro)
    r->micro = r->batch;
  if (!(batch && batch->broken) && !(micro && micro->broken)) // their defaults may not fit
    lm_recipe_check_batches(r);
}

static void read_run(const lm_reader *d) {
  lm_amount a;
  const ast_expr *e = lm_read_value(d, "recipe.run");
  if (!e || !lm_amount_eval(d->R, lm_read_file(d, lm_read_setting(d, "recipe.run")), e, true, &a))
    return;
  d->r->run = (lm_recipe_run){lm_read_unit(a.unit), a.value, a.per_param};
  d->r->run_loc = e->loc;
}

// A stage begins at a share of the run, so the length of the run must not depend on the number of
// parameters or on the data.
static void check_stages(const lm_reader *d) {
  const lm_recipe *r = d->r;
  lm_recipe_unit unit = r->run.unit;
  bool plain = unit == LM_RECIPE_UNIT_STEPS || unit == LM_RECIPE_UNIT_TOKENS;
  if (!unit || (plain && !r->run.per_param))
    return;
  for (uint32_t i = 0; i < r->data.n_stages; i++) {
    const lm_recipe_stage *s = &r->data.stages[i];
    if (s->from > 0)
      lm_unsupported_add(d->R, s->loc, "stages in a run whose length is not in steps or tokens");
  }
}

// ---- optimizer

static const ast_arg *group_optimizer(const lm_setting *s) {
  for (uint32_t i = 0; i < s->value->n_args; i++)
    if (!strcmp(s->value->args[i].name, "optimizer"))
      return &s->value->args[i];
  return NULL;
}

// The group with its optimizer and without arguments, which may be of the optimizer of any group.
static void read_group(const lm_reader *d, const lm_setting *s) {
  lm_recipe_group g = {
      .pattern = s->sel->text,
      .loc = s->sel->loc,
      .file = s->file,
  };
  const ast_arg *own = group_optimizer(s);
  if (own && own->expr->kind == EX_CALL)
    g.optimizer = lm_read_call(d, own->expr, s->file, DC_OPTIMIZER, 0);
  else if (own)
    LM_REPORT(d->R->c, own->expr->loc, E23B, "optimizer of a group", "a call of an optimizer",
              "a value of another form");
  LM_PUSH(d->R->c->arena, d->r->groups, d->r->n_groups, d->r->cap_groups) = g;
}

// The optimizer of the call, or one that it wraps, that has the parameter; or NULL.
static const ast_decl *having(const lm_recipe_call *call, const char *param) {
  const ast_decl *decl = call->target.decl, *found = NULL;
  if (decl && lm_read_param(&decl->sig, param) >= 0)
    return decl;
  for (uint32_t i = 0; decl && call->inner && i < decl->sig.n_params && !found; i++)
    found = having(&call->inner[i], param);
  return found;
}

// The optimizer that an argument of group k is of: its own, the recipe's, or that of another group.
static const ast_decl *optimizer_of_arg(const lm_reader *d, uint32_t k, const char *param) {
  const ast_decl *decl = having(&d->r->groups[k].optimizer, param);
  if (!decl)
    decl = having(&d->r->optimizer, param);
  for (uint32_t i = 0; !decl && i < d->r->n_groups; i++)
    decl = having(&d->r->groups[i].optimizer, param);
  return decl;
}

static void read_group_args(const lm_reader *d, uint32_t k, const lm_setting *s) {
  lm_recipe_group *g = &d->r->groups[k];
  const ast_decl *main = g->optimizer.name ? g->optimizer.target.decl : d->r->optimizer.target.decl;
  ast_arg *args = LM_NEW_N(d->R->c->arena, ast_arg, s->value->n_args + 1);
  for (uint32_t i = 0; i < s->value->n_args; i++) {
    const ast_arg *a = &s->value->args[i];
    if (a == group_optimizer(s))
      continue;
    const ast_decl *decl = optimizer_of_arg(d, k, a->name);
    if (!decl && main) {
      lm_read_unknown_arg(d, main, 0, a);
      continue;
    }
    if (decl && lm_is_optimizer_param(&decl->sig.params[lm_read_param(&decl->sig, a->name)])) {
      LM_REPORT(d->R->c, a->loc, E33A, a->name, decl->name.text, decl->name.text);
      continue;
    }
    args[g->n_args++] = decl ? *lm_read_args(d, decl, 0, a, 1, s->file) : *a;
  }
  g->args = args;
}

static void read_groups(const lm_reader *d) {
  for (int args = 0; args < 2; args++)
    for (uint32_t i = 0, k = 0; i < d->s->n; i++) {
      const lm_setting *s = d->s->v[i];
      if (strcmp(s->key->path, "recipe.group") || !s->value)
        continue;
      if (args)
        read_group_args(d, k++, s);
      else
        read_group(d, s);
    }
}

static void read_optimizer(const lm_reader *d) {
  const lm_file *file = lm_read_file(d, lm_read_setting(d, "recipe.optimizer"));
  d->r->optimizer = lm_read_call(d, lm_read_value(d, "recipe.optimizer"), file, DC_OPTIMIZER, 0);
  const ast_expr *schedule = lm_read_value(d, "recipe.schedule");
  const ast_expr *clip = lm_read_value(d, "recipe.clip");
  const lm_schema_key *key = lm_schema_find("recipe.schedule");
  if (!lm_read_is_word(schedule, "none"))
    d->r->schedule =
        lm_read_call(d, schedule, lm_read_file(d, lm_read_setting(d, "recipe.schedule")), DC_FN,
                     lm_call_implied(key));
  if (!lm_read_is_word(clip, "none"))
    d->r->clip = lm_read_arg_number(d, "recipe.clip", clip, "max",
                                    lm_read_file(d, lm_read_setting(d, "recipe.clip")));
  read_groups(d);
}

// ---- memory

static void read_memory_rule(const lm_reader *d, lm_recipe_memory_kind kind, const ast_expr *sel) {
  lm_recipe_memory *m = &d->r->memory;
  bool offloads = kind == LM_RECIPE_MEMORY_OFFLOAD;
  if (offloads && !m->offload_loc.line)
    m->offload_loc = sel->loc;
  if (sel->kind == EX_NAME) {
    m->states_on_host |= !strcmp(sel->text, "states");
    m->activations_on_host |= !strcmp(sel->text, "activations");
    m->masters_on_host |= !strcmp(sel->text, "masters");
    if (m->masters_on_host && !m->masters_loc.line)
      m->masters_loc = sel->loc;
    return;
  }
  LM_PUSH(d->R->c->arena, m->rules, m->n_rules, m->cap_rules) =
      (lm_recipe_memory_rule){kind, sel->text, sel->loc};
  if (!offloads || m->pattern)
    return;
  m->pattern = sel->text;
  m->pattern_loc = sel->loc;
}

static void read_memory(const lm_reader *recipe) {
  lm_settings none = {0};
  lm_reader d = lm_read_inside(recipe, "recipe.memory", &none);
  lm_recipe_memory *m = &d.r->memory;
  const ast_expr *budget = lm_read_value(&d, "recipe.memory.budget");
  m->budget = (int64_t)lm_read_number(&d, "recipe.memory.budget", 0);
  if (budget)
    m->budget_loc = budget->loc;
  static const struct {
    const char *path;
    lm_recipe_memory_kind kind;
  } rules[] = {
      {"recipe.memory.recompute", LM_RECIPE_MEMORY_RECOMPUTE},
      {"recipe.memory.save", LM_RECIPE_MEMORY_SAVE},
      {"recipe.memory.offload", LM_RECIPE_MEMORY_OFFLOAD},
  };
  for (uint32_t i = 0; i < d.s->n; i++)
    for (size_t k = 0; k < LM_COUNT(rules); k++)
      if (!strcmp(d.s->v[i]->key->path, rules[k].path))
        read_memory_rule(&d, rules[k].kind, d.s->v[i]->sel);
}

// ---- evaluation, checkpoints, samples

static const char *const METRICS[] = {
    [LM_RECIPE_METRIC_LOSS] = "loss",
    [LM_RECIPE_METRIC_BITS_PER_BYTE] = "bits_per_byte",
    [LM_RECIPE_METRIC_PERPLEXITY] = "perplexity",
};

static int metric_find(lm_sym name) {
  for (int i = 0; i < (int)LM_COUNT(METRICS); i++)
    if (!strcmp(METRICS[i], name))
      return i;
  return -1;
}

// The index of DATA.HOLDOUT; -1 after an error.
static int read_holdout_ref(const lm_reader *d, const ast_expr *e) {
  const lm_recipe_data *data = &d->r->data;
  const ast_expr *base = e->kind == EX_FIELD ? e->a : e;
  if (!data->name)
    return -1; // reported: there is no data
  if (base->kind != EX_NAME || base->text != data->name) {
    lm_diag *x = LM_REPORT(d->R->c, e->loc, E21B);
    lm_diag_help(d->R->c, x, "write %s.HOLDOUT", data->name);
    return -1;
  }
  if (e->kind == EX_NAME) {
    const char *name = data->n_holdouts ? data->holdouts[0].name : "dev";
    lm_diag *x = LM_REPORT(d->R->c, e->loc, E21A, data->name);
    lm_diag_help(d->R->c, x, "write %s.%s%s", data->name, name,
                 data->n_holdouts ? "" : ", and holdout dev = tail(1%) in the data section");
    return -1;
  }
  const char **names = LM_NEW_N(d->R->c->arena, const char *, data->n_holdouts + 1);
  for (uint32_t i = 0; i < data->n_holdouts; i++)
    names[i] = data->holdouts[i].name;
  for (uint32_t i = 0; i < data->n_holdouts; i++)
    if (data->holdouts[i].name == e->text)
      return (int)i;
  lm_diag *x = LM_REPORT(d->R->c, e->loc, E21C, data->name, e->text);
  lm_diag_note(d->R->c, x, data->loc, "declared here");
  lm_read_suggest(d, x, lm_nearest(e->text, names, (int)data->n_holdouts));
  return -1;
}

static void read_eval(const lm_reader *recipe, const lm_setting *s) {
  lm_reader d = {recipe->R, recipe->r, &s->children};
  lm_recipe_eval x = {
      .name = s->sel->text,
      .loc = s->loc,
      .holdout = -1,
  };
  const char *where = lm_arena_printf(d.R->c->arena, "eval %s", x.name);
  const ast_expr *data = lm_read_value(&d, "recipe.eval.data");
  lm_read_check_complete(&d, "recipe.eval", s->loc, where);
  if (data)
    x.holdout = read_holdout_ref(&d, data);
  x.every = lm_read_every(&d, lm_read_file(&d, lm_read_setting(&d, "recipe.eval.every")),
                          lm_read_value(&d, "recipe.eval.every"));
  const ast_expr *metrics = lm_read_value(&d, "recipe.eval.metrics");
  for (uint32_t i = 0; i < metrics->n_args; i++)
    x.metrics[metric_find(metrics->args[i].expr->text)] = true;
  LM_PUSH(d.R->c->arena, d.r->evals, d.r->n_evals, d.r->cap_evals) = x;
}

// EVAL.METRIC
static lm_recipe_watch read_watch(const lm_reader *d, const ast_expr *e) {
  lm_recipe_watch none = {-1, LM_RECIPE_METRIC_LOSS};
  if (!e)
    return none;
  int metric = e->kind == EX_FIELD ? metric_find(e->text) : -1;
  if (e->kind != EX_FIELD || e->a->kind != EX_NAME || metric < 0) {
    LM_REPORT(d->R->c, e->loc, E230);
    return none;
  }
  const char **names = LM_NEW_N(d->R->c->arena, const char *, d->r->n_evals + 1);
  for (uint32_t i = 0; i < d->r->n_evals; i++) {
    names[i] = d->r->evals[i].name;
    if (names[i] != e->a->text)
      continue;
    d->r->evals[i].metrics[metric] = true;
    return (lm_recipe_watch){(int)i, metric};
  }
  lm_read_suggest(d, LM_REPORT(d->R->c, e->a->loc, E21D, e->a->text),
                  lm_nearest(e->a->text, names, (int)d->r->n_evals));
  return none;
}

static void read_guard(const lm_reader *recipe) {
  lm_settings none = {0};
  lm_reader d = lm_read_inside(recipe, "recipe.guard", &none);
  d.r->guard = (lm_recipe_guard){lm_read_whole(&d, "recipe.guard.skip", 0),
                                 lm_read_whole(&d, "recipe.guard.rollback", 0),
                                 lm_read_number(&d, "recipe.guard.spike", 0)};
  if (d.r->guard.spike > 0 && d.r->guard.spike <= 1)
    LM_REPORT(d.R->c, lm_read_value(&d, "recipe.guard.spike")->loc, E231, d.r->guard.spike);
}

static void read_stop(const lm_reader *d) {
  static const char key[] = "recipe.stop";
  const ast_expr *e = lm_read_value(d, key);
  const lm_file *file = lm_read_file(d, lm_read_setting(d, key));
  d->r->stop.on.eval = -1;
  if (lm_read_is_word(e, "none"))
    return;
  d->r->stop = (lm_recipe_stop){read_watch(d, lm_read_arg(d, key, e, "on")),
                                (int64_t)lm_read_arg_number(d, key, e, "patience", file),
                                lm_read_arg_number(d, key, e, "min_delta", file)};
}

static lm_recipe_background read_background(const ast_expr *e) {
  return lm_read_is_word(e, "on")    ? LM_RECIPE_BACKGROUND_ON
         : lm_read_is_word(e, "off") ? LM_RECIPE_BACKGROUND_OFF
                                     : LM_RECIPE_BACKGROUND_AUTO;
}

static void read_save(const lm_reader *d) {
  static const char key[] = "recipe.save";
  const ast_expr *e = lm_read_value(d, key);
  const lm_file *file = lm_read_file(d, lm_read_setting(d, key));
  lm_recipe_save *s = &d->r->save;
  s->best.eval = -1;
  if (lm_read_is_word(e, "none"))
    return;
  *s = (lm_recipe_save){
      .dir = lm_read_arg_path(d, key, e, "dir"),
      .loc = e->loc,
      .every = lm_read_every(d, file, lm_read_arg(d, key, e, "every")),
  };
  if (!lm_read_is_word(lm_read_arg(d, key, e, "keep"), "all"))
    s->keep = (int64_t)lm_read_arg_number(d, key, e, "keep", file);
  s->best = read_watch(d, lm_read_arg(d, key, e, "best"));
  s->resume = lm_read_is_word(lm_read_arg(d, key, e, "resume"), "never") ? LM_RECIPE_RESUME_NEVER
                                                                         : LM_RECIPE_RESUME_AUTO;
  s->max_file = (int64_t)lm_read_arg_number(d, key, e, "max_file", file);
  s->background = read_background(lm_read_arg(d, key, e, "background"));
}

static void read_compile(const lm_reader *d) {
  static const char key[] = "recipe.compile";
  const ast_expr *e = lm_read_value(d, key);
  const char *name = lm_read_arg_text(d, key, e, "name");
  d->r->compile = !strcmp(name, "max-autotune")      ? LM_RECIPE_COMPILE_MAX_AUTOTUNE
                  : !strcmp(name, "reduce-overhead") ? LM_RECIPE_COMPILE_REDUCE_OVERHEAD
                                                     : LM_RECIPE_COMPILE_DEFAULT;
  d->r->compile_loc = e->loc;
  d->r->compile_budget =
      lm_read_arg_number(d, key, e, "budget", lm_read_file(d, lm_read_setting(d, key)));
}

// Without a prompt a sample of sources with targets begins as their targets do.
static const char *read_prompt(const lm_reader *d, lm_loc sample) {
  const ast_expr *e = lm_read_value(d, "recipe.sample.prompt");
  const lm_recipe_data *data = &d->r->data;
  if (e && !*e->text)
    LM_REPORT(d->R->c, e->loc, E213);
  if (e)
    return e->text;
  if (data->seq2seq && data->sources[0].start)
    return data->sources[0].start;
  bool known = !d->R->incomplete && data->n_sources; // else a source has an error
  if (known && !lm_read_setting(d, "recipe.sample.prompt"))
    lm_diag_help(d->R->c, LM_REPORT(d->R->c, sample, E247, "sample", "'prompt'"),
                 "add prompt = \"...\"  # the text to continue; at least one token");
  return "";
}

static void read_sample(const lm_reader *recipe, const lm_setting *s) {
  lm_reader d = {recipe->R, recipe->r, &s->children};
  lm_recipe_sample x = {
      .name = s->sel ? s->sel->text : NULL,
      .loc = s->loc,
  };
  lm_read_check_complete(&d, "recipe.sample", s->loc, "sample");
  x.every = lm_read_every(&d, lm_read_file(&d, lm_read_setting(&d, "recipe.sample.every")),
                          lm_read_value(&d, "recipe.sample.every"));
  x.prompt = read_prompt(&d, s->loc);
  const ast_expr *source = lm_read_value(&d, "recipe.sample.source");
  x.source = source ? source->text : NULL;
  x.n = lm_read_whole(&d, "recipe.sample.n", 0);
  x.temperature = lm_read_number(&d, "recipe.sample.temperature", 1);
  x.top_k = lm_read_whole(&d, "recipe.sample.top_k", 0);
  x.top_p = lm_read_number(&d, "recipe.sample.top_p", 1);
  x.seed = (uint64_t)lm_read_whole(&d, "recipe.sample.seed", 0);
  LM_PUSH(d.R->c->arena, d.r->samples, d.r->n_samples, d.r->cap_samples) = x;
}

// ---- the whole recipe

static void collect_unsupported(lm_resolver *R, const lm_settings *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    const lm_setting *x = s->v[i];
    lm_value_collect_unsupported(R, x->key, x->value, x->loc);
    if (!x->key->planned)
      collect_unsupported(R, &x->children);
  }
}

void lm_recipe_read(lm_resolver *R, const lm_settings *s) {
  lm_reader d = {R, R->r, s};
  lm_read_check_complete(&d, "recipe", R->r->loc,
                         lm_arena_printf(R->c->arena, "recipe '%s'", R->r->name));
  R->r->seed = (uint64_t)lm_read_whole(&d, "recipe.seed", 0);
  lm_read_data(&d);
  read_batches(&d);
  read_run(&d);
  check_stages(&d);
  lm_read_model(&d);
  read_optimizer(&d);
  lm_read_precision(&d);
  read_memory(&d);
  lm_read_parallel(&d);
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, "recipe.eval"))
      read_eval(&d, s->v[i]);
  read_guard(&d);
  read_stop(&d);
  read_save(&d);
  read_compile(&d);
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, "recipe.sample"))
      read_sample(&d, s->v[i]);
  collect_unsupported(R, R->r->settings);
}
