// data.c - the tokenizer and the data of a session.
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "driver/data.h"
#include "driver/stages.h"
#include "driver/template.h"
#include "driver/tokenize.h"
#include "runtime/base/diag_code.h"
#include "runtime/data/read/files.h"
#include "runtime/data/rows/vocab.h"

enum {
  SHOWN = 4
}; // bad rows that a run names which leaves them out

// ---- sources

static lm_source_kind kind_of(lm_recipe_source_kind k) {
  switch (k) {
  case LM_RECIPE_SOURCE_BATCHES: return LM_SOURCE_BATCHES;
  case LM_RECIPE_SOURCE_JSONL: return LM_SOURCE_JSONL;
  case LM_RECIPE_SOURCE_CHAT:
  case LM_RECIPE_SOURCE_PROMPT:
  case LM_RECIPE_SOURCE_PAIRS:
  case LM_RECIPE_SOURCE_SEQ2SEQ: return LM_SOURCE_CHAT;
  default: return LM_SOURCE_TEXT;
  }
}

static void sources_fill(const lm_session *s, lm_data_options *o) {
  const lm_recipe_data *d = &s->project.recipe->data;
  lm_arena *a = s->project.ctx->arena;
  lm_data_source *sources = LM_NEW_N(a, lm_data_source, d->n_sources);
  lm_data_holdout *holdouts = LM_NEW_N(a, lm_data_holdout, d->n_holdouts + 1);
  for (uint32_t i = 0; i < d->n_sources; i++) {
    const lm_recipe_source *x = &d->sources[i];
    sources[i] = (lm_data_source){.kind = kind_of(x->kind),
                                  .name = x->name,
                                  .path = x->path,
                                  .split = x->split,
                                  .field = x->field};
    if (sources[i].kind == LM_SOURCE_CHAT)
      sources[i].chat = lm_session_source_chat(s, x);
  }
  for (uint32_t i = 0; i < d->n_holdouts; i++) {
    const lm_recipe_holdout *x = &d->holdouts[i];
    lm_holdout_kind kind = x->kind == LM_RECIPE_HOLDOUT_TAIL ? LM_HOLDOUT_TAIL : LM_HOLDOUT_SAMPLE;
    holdouts[i] = (lm_data_holdout){
        .name = x->name,
        .kind = kind,
        .fraction = x->fraction,
        .docs = x->docs,
    };
  }
  o->sources = sources;
  o->n_sources = (int)d->n_sources;
  o->holdouts = holdouts;
  o->n_holdouts = (int)d->n_holdouts;
}

static void tokenizer_look(const lm_session *s) {
  const lm_recipe_tokenizer *t = &s->project.recipe->data.tokenizer;
  const char *files[] = {t->file, t->merges};
  for (size_t i = 0; i < LM_COUNT(files); i++)
    if (files[i] && access(files[i], F_OK))
      LM_REPORT(s->project.ctx, t->file_loc, W213,
                lm_arena_printf(s->project.ctx->arena, "there is no file %s", files[i]));
}

void lm_session_look_for_files(const lm_session *s) {
  const lm_recipe_data *d = &s->project.recipe->data;
  for (uint32_t i = 0; i < d->n_sources; i++) {
    const lm_recipe_source *x = &d->sources[i];
    lm_data_source source = {
        .kind = kind_of(x->kind),
        .name = x->name,
        .path = x->path,
    };
    lm_file_list files;
    lm_status missing = lm_file_list_make(&source, 1, &files);
    if (missing)
      LM_REPORT(s->project.ctx, x->path_loc, W213, missing->text);
    else
      lm_file_list_free(&files);
    lm_status_free(missing);
  }
  tokenizer_look(s);
}

// The recipe was refused if it has stages and the length of the run is not known
// (dsl/recipe/recipe_read.c).
static void stages_fill(const lm_session *s, lm_data_options *o) {
  const lm_recipe *r = s->project.recipe;
  const lm_recipe_data *d = &r->data;
  lm_data_stage *stages = LM_NEW_N(s->project.ctx->arena, lm_data_stage, d->n_stages + 1);
  for (uint32_t i = 0; i < d->n_stages; i++) {
    const lm_recipe_stage *x = &d->stages[i];
    bool known = (r->run.unit == LM_RECIPE_UNIT_STEPS || r->run.unit == LM_RECIPE_UNIT_TOKENS) &&
                 !r->run.per_param;
    double *weights = x->mix ? LM_NEW_N(s->project.ctx->arena, double, d->n_sources + 1) : NULL;
    for (uint32_t k = 0; k < x->n_mix; k++)
      for (uint32_t j = 0; j < d->n_sources; j++)
        if (d->sources[j].name == x->mix[k].source)
          weights[j] = x->mix[k].weight;
    int64_t first = known ? lm_stage_first(x->from, lm_recipe_steps(r, 0, 0)) : 0;
    stages[i] = (lm_data_stage){
        .first_step = first,
        .weights = weights,
        .seq = x->seq,
    };
  }
  o->stages = stages;
  o->n_stages = (int)d->n_stages;
}

static void column_check(lm_ctx *c, const lm_recipe_data *d, const lm_model_column *x) {
  bool known = d->pairs && !strcmp(x->name, "prefer");
  known |= lm_column_is_prompt(x->name);
  known |= !d->plain;
  known &= x->of != LM_COLUMN_OF_ROWS;
  if (d->seq2seq && lm_source_column_find(x->name) < LM_SOURCE_COLUMNS && x->dtype == LM_INT &&
      x->of == LM_COLUMN_OF_DOCUMENTS)
    return;
  bool sized = d->docs || x->of != LM_COLUMN_OF_DOCUMENTS;
  if (known && sized)
    return;
  lm_diag *g = known ? LM_REPORT(c, x->loc, E274, x->name) : LM_REPORT(c, x->loc, E275, x->name);
  lm_diag_note(c, g, d->loc, "data %s", d->name);
  const char *type = x->dtype == LM_INT ? "int" : "f32";
  if (known)
    lm_diag_help(c, g, "pack best_fit(seq = %lld tokens, docs = 16)", (long long)d->seq);
  else if (!d->plain)
    lm_diag_help(c, g,
                 "of lines of JSON, `%s: %s[b, t]` is the number for each position and `%s: %s[b, "
                 "n]` that for each document of a row",
                 x->name, type, x->name, type);
}

// Without source_seg, documents would read the sources of others, and padding.
static void sources_check(lm_ctx *c, const lm_recipe_data *d, const lm_model_columns *all) {
  const lm_model_column *of[LM_SOURCE_COLUMNS + 1] = {0};
  for (uint32_t i = 0; i < all->n; i++)
    of[lm_source_column_find(all->v[i].name)] = &all->v[i];
  if (!of[LM_SOURCE_COLUMN_IDS] || of[LM_SOURCE_COLUMN_SEG])
    return;
  lm_diag *g = LM_REPORT(c, of[LM_SOURCE_COLUMN_IDS]->loc, E278);
  lm_diag_note(c, g, d->loc, "data %s", d->name);
}

lm_status lm_session_check_columns(const lm_session *s) {
  lm_ctx *c = s->project.ctx;
  const lm_recipe_data *d = &s->project.recipe->data;
  lm_model_columns all = lm_model_columns_of(c, s->project.recipe->model.target.decl);
  for (uint32_t i = 0; i < all.n && !d->replays; i++)
    column_check(c, d, &all.v[i]);
  if (d->seq2seq)
    sources_check(c, d, &all);
  return lm_verdict(c);
}

static void columns_fill(const lm_session *s, lm_data_options *o) {
  lm_ctx *c = s->project.ctx;
  lm_model_columns all = lm_model_columns_of(c, s->project.recipe->model.target.decl);
  lm_data_column *columns = LM_NEW_N(c->arena, lm_data_column, all.n + 1);
  for (uint32_t i = 0; i < all.n; i++)
    columns[i] = (lm_data_column){all.v[i].name, all.v[i].dtype, all.v[i].of};
  o->columns = columns;
  o->n_columns = (int)all.n;
}

static void progress(void *user, uint64_t done, uint64_t total) {
  const lm_session *s = user;
  if (done >= total)
    lm_event_progress_end(s->project.events);
  else
    lm_event_progress(s->project.events, "reading text: %3d %%",
                      (int)(100.0 * (double)done / (double)total));
}

static lm_status data_options(lm_session *s, lm_data_options *out) {
  lm_data_options o = {.tokenizer = s->tokenizer,
                       .seq = s->project.recipe->data.seq,
                       .seed = s->project.recipe->seed,
                       .bad = s->project.recipe->data.bad,
                       .shuffle = s->project.recipe->data.shuffle_docs,
                       .long_documents = (lm_long_documents)s->project.recipe->data.long_documents,
                       .docs = s->project.recipe->data.docs,
                       .source = s->project.recipe->data.source,
                       .prefetch = true,
                       .progress = progress,
                       .user = s};
  LM_TRY(lm_data_cache_dir(s->project.ctx->arena, &o.cache));
  columns_fill(s, &o);
  sources_fill(s, &o);
  *out = o;
  return NULL;
}

// The source or holdout of the recipe that an error of the data is about; else the data
// section.
static lm_loc location_of(const lm_recipe_data *d, const lm_data_options *o, const void *subject) {
  for (int i = 0; i < o->n_sources; i++)
    if (subject == &o->sources[i])
      return d->sources[i].path_loc;
  for (int i = 0; i < o->n_holdouts; i++)
    if (subject == &o->holdouts[i])
      return d->holdouts[i].loc;
  return d->loc;
}

// How a command that is given a run's folder, whose program stays as it is, takes other files.
static void help_other_files(const lm_session *s, const lm_data_options *o, const void *subject,
                             lm_diag *d) {
  for (int i = 0; s->project.bundle && i < o->n_sources; i++)
    if (subject == &o->sources[i])
      lm_diag_help(s->project.ctx, d, "--set data.source.%s.path=FILE names another file",
                   o->sources[i].name);
}

// Notes of the first `most` lines of a list.
static void list_note(const lm_session *s, lm_diag *d, const char *list, int most) {
  for (int n; *list && most--; list += n + (list[n] == '\n')) {
    n = (int)strcspn(list, "\n");
    lm_diag_note(s->project.ctx, d, (lm_loc){0}, "%.*s", n, list);
  }
}

// list: the bad documents, the first of which begins "FILE:LINE: no field …" if the field is wrong.
static void help_bad_documents(const lm_session *s, const char *list, lm_diag *d) {
  const lm_recipe_data *data = &s->project.recipe->data;
  size_t first = strcspn(list, "\n");
  const char *fields = strstr(list, ": no field \"");
  bool renamed = data->n_sources == 1 && data->sources[0].kind == LM_RECIPE_SOURCE_JSONL;
  if (renamed && fields && fields < list + first)
    lm_diag_help(s->project.ctx, d, "name the field that holds the text: jsonl(…, field = \"…\")");
  else
    lm_diag_help(s->project.ctx, d,
                 "fix those documents, or let data %s leave out more of them: bad = …", data->name);
}

// A user error becomes a diagnostic with a location; the list of bad documents below its headline
// becomes notes.
static lm_status located(const lm_session *s, const lm_data_options *o, lm_status fault) {
  const lm_recipe_data *d = &s->project.recipe->data;
  if (!fault || fault->kind != LM_USER)
    return lm_annotate(fault, "data %s", d->name);
  const char *list = strchr(fault->text, '\n');
  int headline = (int)strcspn(fault->text, "\n");
  lm_loc at =
      list && d->n_sources == 1 ? d->sources[0].path_loc : location_of(d, o, fault->subject);
  lm_diag *diag = LM_REPORT(s->project.ctx, at, E214, headline, fault->text);
  help_other_files(s, o, fault->subject, diag);
  if (list) {
    list_note(s, diag, list + 1, INT_MAX);
    help_bad_documents(s, list + 1, diag);
  }
  lm_status_free(fault);
  return lm_verdict(s->project.ctx);
}

// Documents that are longer than a row.
static void long_note(const lm_session *s, const lm_data_info *info) {
  const lm_recipe_data *d = &s->project.recipe->data;
  const lm_events *to = s->project.events;
  char source[64] = "";
  if (d->seq2seq)
    snprintf(source, sizeof source, ", or with a source of more than %lld,", (long long)d->source);
  if (info->dropped)
    lm_event_note(to, "%lld documents of more than %lld tokens%s are left out (long = %s)",
                  (long long)info->dropped, (long long)info->seq, source,
                  d->long_documents == LM_RECIPE_LONG_CUT
                      ? "cut: nothing of their beginning is trained"
                      : "drop");
  if (info->cut)
    lm_event_note(to, "%lld documents of more than %lld tokens%s are cut (long = cut)",
                  (long long)info->cut, (long long)info->seq, source);
}

lm_status lm_session_sources(lm_session *s) {
  lm_data_options o;
  LM_TRY(lm_session_check_columns(s));
  LM_TRY(data_options(s, &o));
  stages_fill(s, &o);
  LM_TRY(lm_verdict(s->project.ctx));
  LM_TRY(located(s, &o, lm_data_open(&o, &s->data)));
  lm_data_info info = lm_data_info_of(s->data);
  lm_umask_add(info.umask); // files made from private text must be private too
  long_note(s, &info);
  if (info.bad) {
    lm_diag *d = LM_REPORT(s->project.ctx, s->project.recipe->data.loc, W212, (long long)info.bad,
                           (long long)info.read);
    list_note(s, d, info.bad_list, SHOWN);
    if (info.bad > SHOWN)
      lm_diag_note(s->project.ctx, d, (lm_loc){0}, "… and %lld more", (long long)info.bad - SHOWN);
  }
  return NULL;
}

// ---- tokenizer

static lm_status file_keep(lm_session_file *f, const char *name, const char *path) {
  f->name = name;
  return lm_file_read(path, (size_t)1 << 30, &f->text);
}

// The companions in `dir`. Only an import writes the special ids; without them, a
// generation_config.json is of another model than the one that uses the tokenizer.
static lm_status companions_open(lm_session *s, const char *dir) {
  lm_arena *a = s->project.ctx->arena;
  bool imported = !access(lm_path_join(a, dir, LM_COMPANION_NAMES[LM_COMPANION_TOKEN_IDS]), R_OK);
  for (int i = 0; i < LM_COMPANIONS; i++) {
    const char *path = lm_path_join(a, dir, LM_COMPANION_NAMES[i]);
    bool own = i == LM_COMPANION_TOKENIZER_CONFIG || i == LM_COMPANION_CHAT_TEMPLATE;
    if ((imported || own) && !access(path, R_OK))
      LM_TRY(file_keep(&s->companions[i], LM_COMPANION_NAMES[i], path));
  }
  return NULL;
}

// The names of a tokenizer's files in the folder of a run.
static const char JSON[] = "tokenizer.json";
static const char SENTENCEPIECE[] = "tokenizer.model";
static const char ENCODER[] = "encoder.json";
static const char MERGES[] = "vocab.bpe";

static lm_status open_files(lm_session *s, const char *path, const char *merges) {
  LM_TRY(lm_tokenizer_open(path, merges, &s->tokenizer));
  LM_TRY(lm_tokenizer_kind_check(s->tokenizer, s->project.recipe->data.tokenizer.kind, path));
  LM_TRY(companions_open(s, lm_path_dir(s->project.ctx->arena, path)));
  lm_session_file *f = &s->tokenizer_files[s->n_tokenizer_files++];
  LM_TRY(file_keep(f, merges ? ENCODER : JSON, path));
  if (!merges && lm_tokenizer_is_sentencepiece(f->text.p, f->text.n))
    f->name = SENTENCEPIECE;
  return merges ? file_keep(&s->tokenizer_files[s->n_tokenizer_files++], MERGES, merges) : NULL;
}

static lm_status train(lm_session *s) {
  const lm_recipe_tokenizer *t = &s->project.recipe->data.tokenizer;
  lm_session_file *f = &s->tokenizer_files[s->n_tokenizer_files++];
  lm_data_options o;
  LM_TRY(data_options(s, &o));
  f->name = JSON;
  LM_TRY(located(s, &o, lm_data_tokenizer_train(&o, t->kind, t->train, &f->text, NULL)));
  LM_TRY(lm_tokenizer_parse(f->text.p, f->text.n, "the trained tokenizer", &s->tokenizer));
  lm_vocabulary_note(s->project.events, s->tokenizer->vocab, t->train, "train");
  return NULL;
}

// Opens the tokenizer that the run keeps in its folder.
static lm_status open_kept(lm_session *s, const char *run, bool *out_found) {
  lm_arena *a = s->project.ctx->arena;
  static const char *const files[][2] = {{JSON}, {SENTENCEPIECE}, {ENCODER, MERGES}};
  for (size_t i = 0; i < LM_COUNT(files); i++) {
    const char *path = lm_path_join(a, run, files[i][0]);
    *out_found = access(path, R_OK) == 0;
    if (*out_found)
      return open_files(s, path, files[i][1] ? lm_path_join(a, run, files[i][1]) : NULL);
  }
  return NULL;
}

// The vocabulary is not trained again: the text may have changed, and then the token ids that the
// weights were trained with would mean other tokens.
static lm_status learned_missing(const lm_session *s, const char *run) {
  return lm_fail(LM_USER,
                 "%s is missing: the vocabulary that this run learned when it began; it is not "
                 "learned again, as its tokens might be others",
                 lm_path_join(s->project.ctx->arena, run, JSON));
}

// Opens the files that the recipe names. Their errors are reported at the recipe, with the folder
// in which they were looked for.
static lm_status open_named(lm_session *s) {
  const lm_recipe_tokenizer *t = &s->project.recipe->data.tokenizer;
  lm_status fault = open_files(s, t->file, t->merges);
  if (!fault || fault->kind != LM_USER)
    return fault;
  char here[PATH_MAX];
  const char *dir = lm_path_dir(s->project.ctx->arena, t->file);
  if (getcwd(here, sizeof here) && !strcmp(dir, "."))
    dir = here;
  else if (getcwd(here, sizeof here))
    dir = lm_path_join(s->project.ctx->arena, here, dir); // an absolute folder stays as it is
  lm_diag *d = LM_REPORT(s->project.ctx, t->file_loc, E216, fault->text);
  lm_diag_note(s->project.ctx, d, (lm_loc){0},
               "looked for in %s; a path is relative to the folder of the file that names it", dir);
  lm_status_free(fault);
  return lm_verdict(s->project.ctx);
}

static lm_status tokenizer_open(lm_session *s) {
  const lm_recipe_tokenizer *t = &s->project.recipe->data.tokenizer;
  bool found = false;
  if (t->kind == LM_TOKENIZER_BYTES) {
    s->tokenizer = lm_tokenizer_bytes_create();
    return s->project.bundle
               ? companions_open(s, lm_path_dir(s->project.ctx->arena, s->project.bundle->root))
               : NULL;
  }
  const char *run = s->project.bundle ? lm_path_dir(s->project.ctx->arena, s->project.bundle->root)
                    : t->file         ? NULL
                                      : s->resumed_run;
  if (run)
    LM_TRY(open_kept(s, run, &found));
  if (found)
    return NULL;
  if (run && !t->file)
    return learned_missing(s, run);
  return t->file ? open_named(s) : train(s);
}

lm_status lm_session_tokenizer(lm_session *s) {
  if (s->tokenizer)
    return NULL;
  LM_TRY(tokenizer_open(s));
  return lm_session_has_messages(s) ? lm_session_template(s) : NULL;
}

static bool has_files(const lm_recipe_tokenizer *t) {
  return t->file && !access(t->file, F_OK) && (!t->merges || !access(t->merges, F_OK));
}

lm_status lm_session_check_tokenizer(lm_session *s) {
  const lm_recipe_data *d = &s->project.recipe->data;
  if (d->replays || (d->tokenizer.kind != LM_TOKENIZER_BYTES && !has_files(&d->tokenizer)))
    return NULL;
  LM_TRY(lm_session_tokenizer(s));
  for (uint32_t i = 0; i < d->n_sources; i++)
    if (d->sources[i].start)
      lm_session_source_start(s, &d->sources[i]);
  return lm_verdict(s->project.ctx);
}

static lm_status file_put(const lm_session *s, const char *dir, const lm_session_file *f) {
  return lm_file_write_atomic(lm_path_join(s->project.ctx->arena, dir, f->name), f->text.p,
                              f->text.n);
}

lm_status lm_session_tokenizer_write(const lm_session *s, const char *dir) {
  for (int i = 0; i < s->n_tokenizer_files; i++)
    LM_TRY(file_put(s, dir, &s->tokenizer_files[i]));
  for (int i = 0; i < LM_COMPANIONS; i++)
    if (s->companions[i].name)
      LM_TRY(file_put(s, dir, &s->companions[i]));
  return NULL;
}
