// recipe_data.c - reads the data section of a recipe: tokenizer, sources, holdouts and stages.
#define _GNU_SOURCE
#include "dsl/recipe/recipe_read.h"
#include <math.h>
#include <string.h>
#include <time.h>

// A kind that can be trained is read from files, or trained to a size of its vocabulary.
static void read_trained(const lm_reader *d, const ast_expr *e, lm_recipe_tokenizer *out) {
  static const char key[] = "data.tokenizer";
  const ast_expr *train = lm_read_arg(d, key, e, "train");
  bool pair = out->kind == LM_TOKENIZER_BPE;
  const ast_expr *merges = pair ? lm_read_arg(d, key, e, "merges") : NULL;
  const char *name = lm_tokenizer_names[out->kind];
  if (merges)
    out->merges = lm_read_arg_path(d, key, e, "merges");
  if (train)
    out->train = (int64_t)lm_number_eval(d->R, lm_read_file(d, lm_read_setting(d, key)), train);
  if (!out->file == !train)
    LM_REPORT(d->R->c, e->loc, E243, name, name, name);
  else if (train && merges)
    LM_REPORT(d->R->c, merges->loc, E250);
}

static void read_tokenizer(const lm_reader *d, lm_recipe_data *out) {
  static const char key[] = "data.tokenizer";
  const ast_expr *e = lm_read_value(d, key);
  lm_recipe_tokenizer *t = &out->tokenizer;
  lm_tokenizer_kind kind = lm_tokenizer_kind_find(lm_callee(e));
  *t = (lm_recipe_tokenizer){
      .kind = kind,
      .loc = e->loc,
      .file_loc = e->loc,
  };
  if (kind == LM_TOKENIZERS) // not a call of a form, which was reported
    t->kind = LM_TOKENIZER_BYTES;
  if (t->kind == LM_TOKENIZER_BYTES)
    return;
  const ast_expr *file = lm_read_arg(d, key, e, "file");
  t->file = lm_read_arg_path(d, key, e, "file");
  if (file)
    t->file_loc = file->loc;
  if (kind == LM_TOKENIZER_BPE || kind == LM_TOKENIZER_UNIGRAM)
    read_trained(d, e, t);
}

// ---- conversations

// Seconds since 1970 of "2025-07-26".
static int64_t read_date(const lm_reader *d, const char *key, const ast_expr *call) {
  const ast_expr *e = lm_read_arg(d, key, call, "date");
  struct tm t = {0};
  const char *end = e ? strptime(e->text, "%Y-%m-%d", &t) : NULL;
  int64_t seconds = end && !*end ? (int64_t)timegm(&t) : 0;
  if (e && seconds <= 0)
    LM_REPORT(d->R->c, e->loc, E260, e->text);
  return seconds;
}

static void read_template(const lm_reader *d, const char *key, const ast_expr *call,
                          lm_recipe_source *x) {
  const ast_expr *e = lm_read_arg(d, key, call, "template");
  x->template_loc = e ? e->loc : call->loc;
  x->template = e ? e->text : NULL;
  x->template_path = lm_read_arg_path(d, key, call, "template");
  x->date = read_date(d, key, call);
}

static void read_chat(const lm_reader *d, const ast_expr *call, lm_recipe_source *x) {
  static const char key[] = "data.source";
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  if (x->kind == LM_RECIPE_SOURCE_PAIRS) {
    x->prompt = lm_read_arg_text(d, key, call, "prompt");
    x->chosen = lm_read_arg_text(d, key, call, "chosen");
    x->rejected = lm_read_arg_text(d, key, call, "rejected");
    return;
  }
  if (x->kind == LM_RECIPE_SOURCE_SEQ2SEQ) {
    x->prompt = lm_read_arg_text(d, key, call, "source");
    x->completion = lm_read_arg_text(d, key, call, "target");
    x->start = lm_read_arg_text(d, key, call, "start");
    x->start_loc = lm_read_arg(d, key, call, "start")->loc;
    return;
  }
  if (x->kind == LM_RECIPE_SOURCE_PROMPT) {
    x->prompt = lm_read_arg_text(d, key, call, "prompt");
    x->completion = lm_read_arg_text(d, key, call, "completion");
    return;
  }
  const ast_expr *words = lm_read_arg(d, key, call, "train_on");
  for (uint32_t i = 0; i < words->n_args; i++)
    for (unsigned k = 0; k < LM_COUNT(roles); k++)
      if (!strcmp(words->args[i].expr->text, roles[k]))
        x->train_on |= 1u << k;
  if (!x->train_on)
    LM_REPORT(d->R->c, words->loc, E261);
  x->field = lm_read_arg_text(d, key, call, "field");
}

static lm_recipe_source_kind source_kind(lm_sym form) {
  static const struct {
    const char *name;
    lm_recipe_source_kind kind;
  } kinds[] = {{"text", LM_RECIPE_SOURCE_TEXT},   {"jsonl", LM_RECIPE_SOURCE_JSONL},
               {"chat", LM_RECIPE_SOURCE_CHAT},   {"prompt", LM_RECIPE_SOURCE_PROMPT},
               {"pairs", LM_RECIPE_SOURCE_PAIRS}, {"seq2seq", LM_RECIPE_SOURCE_SEQ2SEQ}};
  for (size_t i = 0; i < LM_COUNT(kinds); i++)
    if (!strcmp(form, kinds[i].name))
      return kinds[i].kind;
  return LM_RECIPE_SOURCE_BATCHES;
}

static bool is_chat(const lm_recipe_source *x) {
  return x->kind == LM_RECIPE_SOURCE_CHAT || x->kind == LM_RECIPE_SOURCE_PROMPT ||
         x->kind == LM_RECIPE_SOURCE_PAIRS || x->kind == LM_RECIPE_SOURCE_SEQ2SEQ;
}

// Warns of a file of JSON objects that is read as text.
static void warn_of_json(const lm_reader *d, const lm_recipe_source *x, const char *path) {
  static const char *const suffixes[] = {".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson"};
  size_t n = strlen(path);
  for (size_t i = 0; i < LM_COUNT(suffixes); i++) {
    size_t m = strlen(suffixes[i]);
    if (n < m || strcmp(path + n - m, suffixes[i]))
      continue;
    lm_diag *g = LM_REPORT(d->R->c, x->path_loc, W215, x->name, path);
    lm_diag_help(d->R->c, g, "source %s = jsonl(\"%s\", field = \"text\") reads a field", x->name,
                 path);
  }
}

static void read_source(const lm_reader *d, const lm_setting *s, lm_recipe_data *out) {
  static const char key[] = "data.source";
  const ast_expr *e = s->value;
  lm_sym form = lm_callee(e);
  lm_recipe_source x = {.name = s->sel->text,
                        .loc = s->loc,
                        .path = lm_read_arg_path(d, key, e, "path"),
                        .path_loc = lm_read_arg(d, key, e, "path")->loc};
  x.kind = source_kind(form);
  if (is_chat(&x) && x.kind != LM_RECIPE_SOURCE_SEQ2SEQ)
    read_template(d, key, e, &x);
  if (is_chat(&x))
    read_chat(d, e, &x);
  if (x.kind == LM_RECIPE_SOURCE_TEXT) {
    x.split = lm_read_arg_text(d, key, e, "split");
    warn_of_json(d, &x, lm_read_arg_text(d, key, e, "path"));
  }
  if (x.kind == LM_RECIPE_SOURCE_JSONL)
    x.field = lm_read_arg_text(d, key, e, "field");
  if (x.split && !*x.split)
    LM_REPORT(d->R->c, e->loc, E225);
  out->chats |= is_chat(&x);
  out->seq2seq = (out->seq2seq || !out->n_sources) && x.kind == LM_RECIPE_SOURCE_SEQ2SEQ;
  out->pairs = (out->pairs || !out->n_sources) && x.kind == LM_RECIPE_SOURCE_PAIRS;
  out->plain |= x.kind == LM_RECIPE_SOURCE_TEXT;
  out->replays |= x.kind == LM_RECIPE_SOURCE_BATCHES;
  LM_PUSH(d->R->c->arena, out->sources, out->n_sources, out->cap_sources) = x;
}

static void read_holdout(const lm_reader *d, const lm_setting *s, lm_recipe_data *out) {
  static const char key[] = "data.holdout";
  bool sample = !s->broken && !strcmp(lm_callee(s->value), "sample");
  lm_recipe_holdout x = {.name = s->sel->text,
                         .loc = s->loc,
                         .kind = sample ? LM_RECIPE_HOLDOUT_SAMPLE : LM_RECIPE_HOLDOUT_TAIL};
  if (s->broken)
    x.fraction = 0; // reported; the name is kept for references to it
  else if (sample)
    x.docs = (int64_t)lm_read_arg_number(d, key, s->value, "docs", s->file);
  else
    x.fraction = lm_read_arg_number(d, key, s->value, "share", s->file);
  LM_PUSH(d->R->c->arena, out->holdouts, out->n_holdouts, out->cap_holdouts) = x;
}

// ---- stages

// Every source must have a share, so that none is left out by mistake.
static bool mix_names_all(const lm_reader *d, const lm_setting *mix, const lm_recipe_data *out) {
  bool all = true;
  for (uint32_t k = 0; k < out->n_sources; k++) {
    lm_sym name = out->sources[k].name;
    bool named = false;
    for (uint32_t i = 0; i < mix->value->n_args; i++)
      named |= mix->value->args[i].name == name;
    if (named)
      continue;
    lm_diag *e = LM_REPORT(d->R->c, mix->value->loc, E244, name);
    lm_diag_note(d->R->c, e, out->sources[k].loc, "'%s' is declared here", name);
    lm_diag_help(d->R->c, e, "to leave it out, write %s = 0", name);
    all = false;
  }
  return all;
}

static bool is_percent(const lm_reader *d, const lm_setting *mix, uint32_t i) {
  lm_amount a;
  return lm_amount_eval(d->R, mix->file, mix->value->args[i].expr, false, &a) && a.unit;
}

// The shares are either all proportions or all percent with the sum 100%.
static bool mix_is_consistent(const lm_reader *d, const lm_setting *mix,
                              const lm_recipe_weight *w) {
  uint32_t n = mix->value->n_args, percent = 0, plain = 0;
  double sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    bool is = is_percent(d, mix, i);
    percent += is;
    plain += !is && w[i].weight > 0;
    sum += w[i].weight;
  }
  if (percent && plain) {
    lm_diag *e = LM_REPORT(d->R->c, mix->value->loc, E226);
    lm_diag_help(d->R->c, e,
                 "use percent for all shares, or plain numbers for all, such as (a = 3, b = 1)");
    return false;
  }
  if (percent && !(fabs(sum - 1) <= 1e-6)) {
    lm_diag *e = LM_REPORT(d->R->c, mix->value->loc, E227, 100 * sum);
    lm_diag_help(d->R->c, e, "plain numbers are proportions and may have any sum: (a = 3, b = 1)");
    return false;
  }
  if (!(sum > 0))
    LM_REPORT(d->R->c, mix->value->loc, E228);
  return sum > 0;
}

// True if the section has a source of that name whose error has been reported.
static bool is_broken_source(const lm_reader *d, lm_sym name) {
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i];
    if (s->broken && !strcmp(s->key->path, "data.source") && s->sel->text == name)
      return true;
  }
  return false;
}

static void report_no_source(const lm_reader *d, const ast_arg *a, const lm_recipe_data *data) {
  const char **names = LM_NEW_N(d->R->c->arena, const char *, data->n_sources + 1);
  for (uint32_t k = 0; k < data->n_sources; k++)
    names[k] = data->sources[k].name;
  lm_read_suggest(d, LM_REPORT(d->R->c, a->name_loc, E20C, a->name),
                  lm_nearest(a->name, names, (int)data->n_sources));
}

static void read_mix(const lm_reader *d, const lm_setting *mix, lm_recipe_stage *stage,
                     const lm_recipe_data *out) {
  if (!mix || mix->broken)
    return;
  bool known = true;
  lm_recipe_weight *w = LM_NEW_N(d->R->c->arena, lm_recipe_weight, mix->value->n_args);
  for (uint32_t i = 0; i < mix->value->n_args; i++) {
    const ast_arg *a = &mix->value->args[i];
    bool found = false;
    for (uint32_t k = 0; k < out->n_sources; k++)
      found |= out->sources[k].name == a->name;
    if (!found && !is_broken_source(d, a->name))
      report_no_source(d, a, out);
    known &= found;
    w[i] = (lm_recipe_weight){a->name, lm_number_eval(d->R, mix->file, a->expr), a->name_loc};
  }
  if (known && mix_names_all(d, mix, out))
    mix_is_consistent(d, mix, w);
  stage->mix = w;
  stage->n_mix = mix->value->n_args;
}

static int64_t read_seq(const lm_reader *d, const char *key, const ast_expr *e,
                        const lm_setting *pack) {
  return (int64_t)lm_read_arg_number(d, key, e, "seq", lm_read_file(d, pack));
}

// What a row holds beside its tokens.
static void read_row(const lm_reader *d, lm_recipe_data *out) {
  const ast_expr *pack = lm_read_value(d, "data.pack");
  const lm_file *file = lm_read_file(d, lm_read_setting(d, "data.pack"));
  const ast_expr *source = lm_read_arg(d, "data.pack", pack, "source");
  out->source = out->seq2seq ? out->seq : 0;
  if (source && !out->seq2seq && out->n_sources)
    LM_REPORT(d->R->c, source->loc, E276);
  else if (source)
    out->source = (int64_t)lm_read_arg_number(d, "data.pack", pack, "source", file);
  if (lm_read_arg(d, "data.pack", pack, "docs"))
    out->docs = (int64_t)lm_read_arg_number(d, "data.pack", pack, "docs", file);
}

static void stage_add(const lm_reader *d, const lm_recipe_stage *stage, lm_recipe_data *out) {
  lm_recipe_stage *last = out->n_stages ? &out->stages[out->n_stages - 1] : NULL;
  if (last && stage->from <= last->from && stage->from > 0)
    LM_REPORT(d->R->c, stage->loc, E229);
  if (last && stage->mix && !last->mix) {
    lm_diag *e = LM_REPORT(d->R->c, stage->loc, E245);
    lm_diag_help(d->R->c, e, "add mix = (...) outside of the stages");
  }
  if (last && stage->from <= last->from)
    *last = *stage; // both begin at 0
  else
    LM_PUSH(d->R->c->arena, out->stages, out->n_stages, out->cap_stages) = *stage;
}

// A stage inherits the settings that it does not name from the stage before it, the first stage
// from the settings outside of stages.
static void read_stages(const lm_reader *d, lm_recipe_data *out) {
  const lm_setting *mix = lm_read_setting(d, "data.mix");
  lm_recipe_stage stage = {
      .seq = out->seq,
      .loc = mix ? mix->loc : out->loc,
  };
  read_mix(d, mix, &stage, out);
  bool any = stage.mix;
  for (uint32_t i = 0; i < d->s->n; i++)
    any |= !strcmp(d->s->v[i]->key->path, "data.stage");
  if (any)
    stage_add(d, &stage, out);
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i];
    const lm_setting *pack = lm_settings_find(&s->children, "data.stage.pack");
    if (strcmp(s->key->path, "data.stage"))
      continue;
    stage.from = s->sel && s->sel->kind == EX_QUANTITY ? s->sel->num / 100 : 0;
    stage.loc = s->loc;
    read_mix(d, lm_settings_find(&s->children, "data.stage.mix"), &stage, out);
    if (pack && !pack->broken)
      stage.seq = read_seq(d, "data.stage.pack", pack->value, pack);
    stage_add(d, &stage, out);
  }
  if (any)
    out->seq = stage.seq;
}

static bool has_source(const lm_settings *s) { // also a source with an error
  for (uint32_t i = 0; i < s->n; i++)
    if (!strcmp(s->v[i]->key->path, "data.source"))
      return true;
  return false;
}

static void check_sources(const lm_reader *d, const lm_recipe_data *x) {
  for (uint32_t i = 0; x->replays && x->n_sources > 1 && i < x->n_sources; i++)
    if (x->sources[i].kind == LM_RECIPE_SOURCE_BATCHES)
      LM_REPORT(d->R->c, x->sources[i].loc, E22A);
  for (uint32_t i = 0; x->replays && i < x->n_holdouts; i++)
    LM_REPORT(d->R->c, x->holdouts[i].loc, E22B);
}

// The two texts of each pair are in one row, which holds pairs only; the same of a source and its
// target.
static void check_pairs(const lm_reader *d, const lm_recipe_data *x, lm_recipe_source_kind kind) {
  const ast_expr *pack = lm_read_value(d, "data.pack");
  const ast_expr *docs = x->docs ? lm_read_arg(d, "data.pack", pack, "docs") : NULL;
  const lm_recipe_source *pairs = NULL;
  for (uint32_t i = 0; i < x->n_sources; i++)
    if (x->sources[i].kind == kind)
      pairs = &x->sources[i];
  if (!pairs)
    return;
  for (uint32_t i = 0; i < x->n_sources; i++)
    if (x->sources[i].kind != kind)
      lm_diag_note(d->R->c, LM_REPORT(d->R->c, x->sources[i].loc, E271, x->sources[i].name),
                   pairs->loc, "source '%s' holds pairs", pairs->name);
  if (x->long_documents == LM_RECIPE_LONG_SPLIT)
    LM_REPORT(d->R->c, lm_read_value(d, "data.long")->loc, E272);
  if (docs && x->docs % 2 && kind == LM_RECIPE_SOURCE_PAIRS)
    LM_REPORT(d->R->c, docs->loc, E273, (long long)x->docs);
}

// The sources of one data section have one template, which the run keeps.
static void check_templates(const lm_reader *d, const lm_recipe_data *x) {
  const lm_recipe_source *first = NULL;
  for (uint32_t i = 0; i < x->n_sources; i++) {
    const lm_recipe_source *s = &x->sources[i];
    bool has = s->template || s->kind == LM_RECIPE_SOURCE_CHAT;
    if (!has)
      continue;
    bool same = !first || !s->template == !first->template;
    if (first && same && s->template)
      same = !strcmp(s->template, first->template);
    if (!same)
      lm_diag_note(d->R->c, LM_REPORT(d->R->c, s->template_loc, E262, s->name, first->name),
                   first->template_loc, "'%s' is declared here", first->name);
    first = first ? first : s;
  }
}

// The help names the command that trains on texts of the same files. Messages have no field of
// text.
static void check_trained(const lm_reader *d, const lm_recipe_data *x) {
  const lm_recipe_source *s = x->sources;
  if (!x->chats || !x->tokenizer.train)
    return;
  while (!is_chat(s))
    s++;
  const char *form = x->tokenizer.kind == LM_TOKENIZER_BPE ? "bpe" : "unigram";
  const char *field = s->kind == LM_RECIPE_SOURCE_PAIRS ? s->chosen : s->completion;
  const char *of = field ? lm_arena_printf(d->R->c->arena, "--field %s ", field) : "";
  lm_diag_help(d->R->c, LM_REPORT(d->R->c, x->tokenizer.loc, E263, s->name),
               "train one on text: lmc tokenizer train --kind %s --vocab %lld %s-o tokenizer.json "
               "%s; then name it: %s(\"tokenizer.json\"). bytes() needs none",
               form, (long long)x->tokenizer.train, of, field ? s->path : "FILE…", form);
}

static void read_long(const lm_reader *d, lm_recipe_data *out) {
  static const char *const words[] = {"split", "drop", "cut", "error"};
  const ast_expr *e = lm_read_value(d, "data.long");
  out->long_documents = out->chats ? LM_RECIPE_LONG_ERROR : LM_RECIPE_LONG_SPLIT;
  for (int i = 0; i < (int)LM_COUNT(words); i++)
    if (lm_read_is_word(e, words[i]))
      out->long_documents = (lm_recipe_long)i;
}

// Reads and checks the keys and values that are set. Required keys are checked elsewhere.
static void read_section(const lm_reader *d, lm_recipe_data *out) {
  const lm_settings *s = d->s;
  read_tokenizer(d, out);
  for (uint32_t i = 0; i < s->n; i++) {
    if (!s->v[i]->broken && !strcmp(s->v[i]->key->path, "data.source"))
      read_source(d, s->v[i], out);
    if (!strcmp(s->v[i]->key->path, "data.holdout"))
      read_holdout(d, s->v[i], out);
  }
  if (!out->replays) {
    const lm_setting *pack = lm_read_setting(d, "data.pack");
    if (!pack || !pack->broken) // else the length is unknown, 0
      out->seq = read_seq(d, "data.pack", lm_read_value(d, "data.pack"), pack);
    read_row(d, out);
    read_stages(d, out);
  }
  check_sources(d, out);
  check_templates(d, out);
  check_trained(d, out);
  read_long(d, out);
  check_pairs(d, out, LM_RECIPE_SOURCE_PAIRS);
  check_pairs(d, out, LM_RECIPE_SOURCE_SEQ2SEQ);
}

void lm_recipe_check_data(lm_ctx *c, const lm_program *p, lm_decl_ref ref) {
  lm_resolver R = lm_resolver_new(c, p, ref.decl);
  lm_settings s = {0};
  lm_settings_of(&R, ref, "data", &s);
  if (has_source(&s))
    read_section(&(lm_reader){&R, R.r, &s}, &R.r->data);
}

void lm_read_data(const lm_reader *recipe) {
  const ast_expr *e = lm_read_value(recipe, "recipe.data");
  if (!e)
    return;
  if (e->kind != EX_NAME) {
    lm_recipe_help_files(recipe->R->c, LM_REPORT(recipe->R->c, e->loc, E22C));
    return;
  }
  lm_decl_ref ref =
      lm_read_decl(recipe, lm_read_file(recipe, lm_read_setting(recipe, "recipe.data")), DC_DATA,
                   e->text, e->loc);
  if (!ref.decl)
    return;
  lm_settings s = {0};
  lm_settings_of(recipe->R, ref, "data", &s);
  lm_settings_set(recipe->R, &s, "data", &recipe->R->data_sets);
  lm_recipe_data *out = &recipe->r->data;
  lm_reader d = {recipe->R, recipe->r, &s};
  out->name = e->text;
  out->loc = ref.decl->name.loc;
  read_section(&d, out);
  if (!has_source(&s) && !recipe->R->incomplete)
    LM_REPORT(d.R->c, out->loc, E246, out->name);
  out->shuffle_docs = lm_read_whole(&d, "data.shuffle", 0);
  out->bad = lm_read_number(&d, "data.bad", 0);
  for (uint32_t i = 0; i < s.n; i++)
    LM_PUSH(d.R->c->arena, recipe->r->settings->v, recipe->r->settings->n,
            recipe->r->settings->cap) = s.v[i];
}
