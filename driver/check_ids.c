// check_ids.c - whether token ids and positions of the data are within the tables of the model.
#include "driver/session.h"

#include <string.h>
#include <unistd.h>

#include "driver/weights/weights.h"
#include "runtime/base/diag_code.h"

static int64_t vocabulary_of(const lm_session *s) {
  return s->compiled.limits.tok < s->compiled.limits.next ? s->compiled.limits.tok
                                                          : s->compiled.limits.next;
}

static void ids_check(lm_session *s, int64_t max_id, int64_t max_pos) {
  const lm_recipe *r = s->project.recipe;
  int64_t ids = vocabulary_of(s);
  if (max_id >= ids) {
    lm_diag *d = LM_REPORT(s->project.ctx, r->model.loc, E211, (long long)ids, (long long)max_id);
    lm_diag_note(s->project.ctx, d, r->data.loc, "data %s", r->data.name);
    lm_diag_help(s->project.ctx, d, "vocab = %lld", (long long)max_id + 1);
  }
  if (max_pos >= s->compiled.limits.pos) {
    lm_diag *d = LM_REPORT(s->project.ctx, r->model.loc, E217, (long long)s->compiled.limits.pos,
                           (long long)max_pos);
    lm_diag_note(s->project.ctx, d, r->data.loc, "data %s", r->data.name);
  }
}

// Values of a further column that index a table of the model.
static void columns_check(lm_session *s, const lm_data_info *info) {
  const lm_recipe *r = s->project.recipe;
  const lm_limits *l = &s->compiled.limits;
  for (uint32_t i = 0; i < l->n_more; i++)
    for (int k = 0; k < info->n_columns; k++) {
      const lm_data_column_info *x = &info->columns[k];
      if (strcmp(l->more[i].name, x->name) || (x->min >= 0 && x->max < l->more[i].limit))
        continue;
      lm_diag *d = LM_REPORT(s->project.ctx, r->model.loc, E270, x->name,
                             (long long)l->more[i].limit, x->min < 0 ? x->min : x->max);
      lm_diag_note(s->project.ctx, d, r->data.loc, "data %s", r->data.name);
      if (x->min < 0)
        lm_diag_help(s->project.ctx, d,
                     "to leave out %d, read select(%s >= 0, %s, 0) and multiply by f32(%s >= 0)",
                     x->min, x->name, x->name, x->name);
    }
}

// ---- the tokens that the model starts from

// Of the folder of the weights, or of the run that this checkpoint is of; NULL: it has none.
static const char *vocabulary_file(lm_session *s, const lm_lowered_source *x) {
  lm_arena *a = s->project.ctx->arena;
  const char *path = x->path;
  lm_status_free(lm_weights_from(&s->compiled, x, &path)); // reported where weights are loaded
  for (int level = 0; level < 3; level++, path = lm_path_dir(a, path)) {
    const char *file = lm_path_join(a, path, "tokenizer.json");
    if (!access(file, R_OK))
      return file;
  }
  return NULL;
}

// The first id that is another token in `t` than in `base`, or none; -1: there is none.
static int32_t difference(const lm_tokenizer *base, const lm_tokenizer *t) {
  for (int32_t i = 0; i < base->vocab; i++) {
    size_t n = 0, m = 0;
    const char *was = lm_tokenizer_piece(base, i, &n);
    const char *is = i < t->vocab ? lm_tokenizer_piece(t, i, &m) : NULL;
    if (was && (!is || n != m || memcmp(was, is, n)))
      return i;
  }
  return -1;
}

// An embedding is that of the tokens it was trained with, of which the tokenizer may add more.
static void vocabulary_check(lm_session *s, const lm_lowered_source *x) {
  const lm_recipe_tokenizer *named = &s->project.recipe->data.tokenizer;
  const char *file = vocabulary_file(s, x);
  lm_tokenizer *base = NULL;
  lm_status fault = file ? lm_tokenizer_open(file, NULL, &base) : NULL;
  lm_status_free(fault); // one that lmc does not know cannot be compared
  if (!base)
    return;
  int32_t at = difference(base, s->tokenizer);
  const char *kind = lm_tokenizer_names[base->kind];
  lm_tokenizer_destroy(base);
  if (at < 0)
    return;
  lm_loc loc = named->loc.line ? named->loc : s->project.recipe->data.loc;
  lm_diag *d = LM_REPORT(s->project.ctx, loc, E265, x->path, (int)at);
  lm_diag_note(s->project.ctx, d, x->at, "the model starts from these weights");
  lm_diag_help(s->project.ctx, d, "tokenizer = %s(\"%s\")", kind, file);
}

lm_status lm_session_check_vocabulary(lm_session *s) {
  const lm_lowered *l = s->compiled.lowered;
  for (int i = 0; s->tokenizer && !s->resumes && i < l->n_sources; i++)
    if (!*l->sources[i].prefix)
      vocabulary_check(s, &l->sources[i]);
  return lm_verdict(s->project.ctx);
}

// ---- ids

lm_status lm_session_check_ids(lm_session *s) {
  lm_data_info info = lm_data_info_of(s->data);
  columns_check(s, &info);
  ids_check(s, info.max_id, info.max_pos);
  return lm_verdict(s->project.ctx);
}

lm_status lm_session_check_ids_of_recipe(lm_session *s) {
  const lm_recipe_data *d = &s->project.recipe->data;
  int64_t longest = d->seq;
  if (d->replays)
    return NULL;
  for (uint32_t i = 0; i < d->n_stages; i++)
    if (d->stages[i].seq > longest)
      longest = d->stages[i].seq;
  ids_check(s, d->tokenizer.kind == LM_TOKENIZER_BYTES ? UINT8_MAX : -1, longest - 1);
  for (uint32_t i = 0; i < s->project.recipe->n_samples; i++) {
    const lm_recipe_sample *x = &s->project.recipe->samples[i];
    if (x->n >= s->compiled.limits.pos)
      LM_REPORT(s->project.ctx, x->loc, E218, (long long)s->compiled.limits.pos, (long long)x->n);
  }
  if (d->tokenizer.train > vocabulary_of(s))
    LM_REPORT(s->project.ctx, d->tokenizer.loc, W211, (long long)d->tokenizer.train,
              (long long)vocabulary_of(s));
  return lm_verdict(s->project.ctx);
}
