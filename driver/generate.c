// generate.c - text from a started session. Text is written as soon as it can no longer be the
// beginning of a stop text.
#define _GNU_SOURCE
#include "driver/generate.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "driver/ranks.h"
#include "driver/trained.h"

typedef struct {
  const lm_tokenizer *tokenizer;
  const lm_sample_options *o;
  lm_sample_result *result;
  size_t shown; // bytes of the text
} maker;

// ---- stops

// Where in the text, from `from` on, the first of the complete stops begins; the text's end if
// there is none.
static size_t stop_find(const lm_sample_options *o, const lm_buf *text, size_t from) {
  size_t first = text->n;
  for (int i = 0; i < o->n_stops; i++) {
    const char *at = memmem(text->p + from, text->n - from, o->stops[i], strlen(o->stops[i]));
    if (at && (size_t)(at - text->p) < first)
      first = (size_t)(at - text->p);
  }
  return first;
}

// Bytes at the end of the text that a stop may begin with.
static size_t stop_begun(const lm_sample_options *o, const lm_buf *text) {
  size_t most = 0;
  for (int i = 0; i < o->n_stops; i++) {
    size_t n = strlen(o->stops[i]) - 1;
    for (n = n < text->n ? n : text->n; n > most; n--)
      if (!memcmp(text->p + text->n - n, o->stops[i], n))
        most = n;
  }
  return most;
}

static size_t stop_longest(const lm_sample_options *o) {
  size_t most = 0;
  for (int i = 0; i < o->n_stops; i++)
    if (strlen(o->stops[i]) > most)
      most = strlen(o->stops[i]);
  return most;
}

// ---- output token by token

static void text_show(maker *m, size_t until) {
  const lm_sample_options *o = m->o;
  if (!o->write || o->ids || until <= m->shown)
    return;
  o->write(o->user, m->result->text.p + m->shown, until - m->shown);
  m->shown = until;
}

static void id_show(const maker *m, int32_t id) {
  char text[16];
  if (!m->o->write || !m->o->ids)
    return;
  int n = snprintf(text, sizeof text, "%s%d", m->result->ids.n > 1 ? " " : "", id);
  m->o->write(m->o->user, text, (size_t)n);
}

// False: the piece completes a stop, in front of which the text ends now.
static bool text_grow(maker *m, const char *piece, size_t n) {
  lm_buf *text = &m->result->text;
  size_t longest = stop_longest(m->o);
  size_t from = text->n < longest ? 0 : text->n - longest;
  lm_buf_add(text, piece, n);
  size_t end = stop_find(m->o, text, from);
  bool stopped = end < text->n;
  text->n = end;
  text->p[end] = 0;
  text_show(m, stopped ? end : end - stop_begun(m->o, text));
  return !stopped;
}

static bool token_made(void *user, int32_t id) {
  maker *m = user;
  size_t n = 0;
  lm_tokens_add(&m->result->ids, id);
  id_show(m, id);
  bool ends = id == m->tokenizer->eos || (m->o->has_end && id == m->o->end_id);
  if (!m->o->ids && ends) {
    m->result->end = LM_SAMPLE_EOS;
    return false;
  }
  const char *piece = id < m->tokenizer->vocab ? lm_tokenizer_piece(m->tokenizer, id, &n) : NULL;
  if (!piece || text_grow(m, piece, n))
    return true;
  m->result->end = LM_SAMPLE_STOP;
  return false;
}

// An import without a tokenizer declares bytes(), which the weights were not trained with.
static lm_status tokenizer_check(const lm_session *s, const char *weights) {
  const lm_bundle *b = s->project.bundle;
  const lm_recipe *r = s->project.recipe;
  if (weights || !b || !r->from || r->data.tokenizer.kind != LM_TOKENIZER_BYTES)
    return NULL;
  const char *dir = lm_path_dir(s->project.ctx->arena, b->root);
  if (access(lm_path_join(s->project.ctx->arena, dir, "imported.lm"), F_OK))
    return NULL;
  return lm_fail(LM_USER,
                 "%s was imported without a tokenizer, so text cannot be encoded: give "
                 "--prompt-ids 1,2,3 and --ids, or import a folder with a tokenizer.json",
                 dir);
}

lm_status lm_sample_encode(const lm_session *s, const char *weights, const char *text,
                           lm_tokens *out) {
  LM_TRY(tokenizer_check(s, weights));
  return lm_tokenizer_encode(s->tokenizer, text, strlen(text), out);
}

lm_status lm_sample_encode_source(const lm_session *s, const char *weights, const char *text,
                                  lm_tokens *out) {
  const lm_tokenizer *t = s->tokenizer;
  LM_TRY(tokenizer_check(s, weights));
  if (*text)
    LM_TRY(lm_tokenizer_encode_framed(t, text, strlen(text), out));
  if (out->n && t->eos >= 0 && out->ids[out->n - 1] != t->eos)
    lm_tokens_add(out, t->eos);
  return NULL;
}

int64_t lm_sample_tokens(const lm_session *s, int64_t n_prompt, int64_t asked, int64_t usual) {
  int64_t room = s->compiled.limits.pos - n_prompt;
  if (asked)
    return asked;
  return room < 1 ? 1 : room < usual ? room : usual;
}

lm_status lm_sample_check(const lm_session *s, int64_t n_prompt, int64_t n) {
  if (n_prompt <= s->compiled.limits.pos - n)
    return NULL;
  return lm_fail(LM_USER,
                 "the model has %lld positions; a prompt of %lld tokens and %lld more exceed them",
                 (long long)s->compiled.limits.pos, (long long)n_prompt, (long long)n);
}

bool lm_sample_exchanges(const lm_session *s) {
  const lm_plan_func *f = lm_plan_func_get(s->compiled.plan, LM_FUNC_DECODE, 0);
  return s->comm && f && lm_plan_exchanges(f);
}

// All ranks continue with the token of rank 0.
static lm_status token_agree(void *comm, int32_t *id) {
  return lm_comm_decide(comm, "a token", id, sizeof *id);
}

lm_status lm_sample_make(const lm_session *s, const lm_sample_options *o, lm_sample_result *out) {
  *out = (lm_sample_result){0};
  maker m = {
      .tokenizer = s->tokenizer,
      .o = o,
      .result = out,
  };
  LM_TRY(lm_sample_check(s, o->n_prompt, o->n));
  lm_generate_options g = {.plan = s->compiled.plan,
                           .exec = s->execution.exec,
                           .sampler = o->sampler,
                           .prompt = o->prompt,
                           .n_prompt = o->n_prompt,
                           .n_marked = o->n_marked ? o->n_marked : o->n_prompt,
                           .columns = o->request ? o->request->columns : NULL,
                           .n_columns = o->request ? o->request->n : 0,
                           .n = o->n,
                           .eos = -1,
                           .agree = lm_sample_exchanges(s) ? token_agree : NULL,
                           .comm = s->comm,
                           .token = token_made,
                           .user = &m};
  lm_status status = lm_generate(&g);
  text_show(&m, out->text.n); // text that could have become a stop
  return status;
}

void lm_sample_free(lm_sample_result *r) {
  lm_tokens_free(&r->ids);
  lm_buf_free(&r->text);
}

static lm_status prompt_print(const lm_session *s, const lm_sample_options *o) {
  lm_buf text = {0};
  lm_status status = lm_tokenizer_decode(s->tokenizer, o->prompt, (size_t)o->n_prompt, &text);
  if (!status && text.n)
    o->write(o->user, text.p, text.n);
  lm_buf_free(&text);
  return status;
}

lm_status lm_sample_print(const lm_session *s, const lm_sample_options *o) {
  lm_sample_result result;
  LM_TRY(lm_sample_check(s, o->n_prompt, o->n));
  if (!o->ids && !o->bare)
    LM_TRY(prompt_print(s, o));
  lm_status status = lm_sample_make(s, o, &result);
  if (result.ids.n || !o->ids)
    o->write(o->user, "\n", 1);
  lm_sample_free(&result);
  return status;
}

lm_status lm_sample_start(lm_session *s, int64_t positions, const lm_request *request,
                          const char *weights) {
  s->run.rows = 1;
  s->run.seq = 1;
  s->run.divides = s->divides;
  s->run.pp = s->divides ? lm_recipe_mesh_size(s->project.recipe, "pp") : 1;
  s->run.pipeline = s->run.pp > 1 ? s->run.pp : 0;
  s->request = request != NULL;
  if (request)
    s->run.columns = lm_request_shapes(s, request);
  LM_TRY(lm_session_compile(s, LM_LOWER_DECODE, lm_cache_capacity(positions)));
  if (request)
    LM_TRY(lm_request_check(s, request));
  LM_TRY(lm_ranks_session_start(s, NULL));
  return lm_trained_load(s, weights, lm_weights_in(s->execution.exec));
}
