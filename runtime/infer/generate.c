// generate.c - see generate.h.
#include "runtime/infer/generate.h"

#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/weights/safetensors.h"
#include "runtime/train/ports.h"

typedef struct {
  const lm_plan_func *f;
  const lm_plan_port *logits;
  lm_batch_ports in;
} stage;

typedef struct {
  const lm_generate_options *o;
  stage prefill, decode; // prefill.f NULL: no prefill
  int32_t vocab;
  const stage *last; // that has computed the logits of the last position
  int64_t last_row;  // of them
  void *stored;      // [vocab]: this row, as it is stored and as floats
  float *row;
  lm_candidate *workspace; // [vocab]
} generator;

int64_t lm_generate_capacity(const lm_plan *plan) {
  for (int i = 0; i < plan->n_extents; i++)
    if (!strcmp(plan->extents[i].name, "s") && plan->extents[i].capacity)
      return plan->extents[i].capacity; // capacity 0: no KV cache
  return INT64_MAX;
}

static lm_status stage_open(const lm_generate_options *o, lm_func_id id, stage *out) {
  out->f = lm_plan_func_get(o->plan, id, 0);
  if (!out->f)
    return NULL;
  out->logits = lm_plan_port_get(out->f, LM_PORT_LOGITS, true);
  if (!out->logits || out->logits->rank < 1)
    return lm_fail(LM_BUG_STATUS, "%s has no result logits", out->f->name);
  return lm_batch_ports_open(o->exec, o->plan, out->f, &out->in);
}

static lm_status prompt_check(const lm_generate_options *o, int32_t vocab) {
  if (o->n_prompt < 1)
    return lm_fail(LM_USER, "the prompt is empty");
  for (int64_t i = 0; i < o->n_prompt; i++)
    if (o->prompt[i] < 0 || o->prompt[i] >= vocab)
      return lm_fail(LM_USER, "prompt token id %d is outside the vocabulary of %d tokens",
                     o->prompt[i], vocab);
  int64_t capacity = lm_generate_capacity(o->plan);
  if (o->n > capacity || o->n_prompt > capacity - o->n)
    return lm_fail(
        LM_USER,
        "a prompt of %lld tokens and %lld new tokens exceed the %lld positions of the KV cache",
        (long long)o->n_prompt, (long long)o->n, (long long)capacity);
  return NULL;
}

static lm_status generator_open(generator *g) {
  const lm_generate_options *o = g->o;
  LM_TRY(stage_open(o, LM_FUNC_DECODE, &g->decode));
  LM_TRY(stage_open(o, LM_FUNC_PREFILL, &g->prefill));
  if (!g->decode.f)
    return lm_fail(LM_USER, "this model was not compiled for generation");
  g->vocab = (int32_t)g->decode.logits->shape[g->decode.logits->rank - 1];
  LM_TRY(prompt_check(o, g->vocab));
  g->stored = lm_calloc((size_t)g->vocab, sizeof(double));
  g->row = lm_calloc((size_t)g->vocab, sizeof *g->row);
  g->workspace = lm_calloc((size_t)g->vocab, sizeof *g->workspace);
  return NULL;
}

static void generator_close(generator *g) {
  lm_batch_ports_close(&g->decode.in);
  lm_batch_ports_close(&g->prefill.in);
  lm_free(g->stored);
  lm_free(g->row);
  lm_free(g->workspace);
}

static void extents_set(const lm_plan *plan, int64_t t, int64_t s, int64_t *out) {
  for (int i = 0; i < plan->n_extents; i++) {
    const char *name = plan->extents[i].name;
    int64_t capacity = plan->extents[i].capacity;
    out[i] = !strcmp(name, "t") ? t : !strcmp(name, "s") && capacity ? s : capacity;
  }
}

// 1: those of the last position of a call (pass narrow); else those of each.
static int64_t logits_rows(const lm_plan_port *logits) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < logits->rank; i++)
    rows *= logits->shape[i];
  return rows;
}

// Runs n tokens at positions at … at + n - 1.
static lm_status feed(generator *g, const stage *x, const int32_t *ids, int64_t n, int64_t at) {
  lm_exec *e = g->o->exec;
  const lm_batch *b = &x->in.batch;
  for (int64_t i = 0; i < x->in.rows * x->in.seq; i++) {
    bool used = i < n;
    b->tok[i] = used ? ids[i] : 0;
    b->pos[i] = used ? (int32_t)(at + i) : 0;
    b->seg[i] = used ? 0 : -1;
  }
  for (int k = 0; k < b->n_more; k++)
    for (int64_t i = 0; i < x->in.rows * x->in.seq; i++)
      ((int32_t *)b->more[k].data)[i] = i < n && at + i < g->o->n_marked; // `prompt` alone
  int64_t extents[LM_COUNT(g->o->plan->extents)];
  extents_set(g->o->plan, n, at + n, extents);
  lm_port_set(e, x->f, LM_PORT_AT, (double)at);
  g->last = x;
  g->last_row = logits_rows(x->logits) == 1 ? 0 : n - 1;
  return lm_exec_run(e, x->f, extents);
}

// Draws token number i, on the device where the logits are, or on the host if it cannot.
static lm_status sample(generator *g, int64_t i, int32_t *out) {
  const lm_plan_port *p = g->last->logits;
  lm_draw_rule rule = lm_sample_rule(&g->o->sampler, g->vocab, i);
  if (lm_exec_draws(g->o->exec, p)) {
    LM_TRY(lm_exec_draw(g->o->exec, p, g->last_row, &rule, out));
    return lm_sample_id_check(*out);
  }
  int64_t bytes = (int64_t)g->vocab * lm_dtype_bytes((lm_dtype)p->dtype);
  LM_TRY(lm_exec_read(g->o->exec, (lm_arena_id)p->buf.arena, p->buf.offset + g->last_row * bytes,
                      bytes, g->stored));
  lm_st_to_f32(lm_dtype_table[p->dtype].stored, g->stored, 0, g->vocab, g->row);
  *out = lm_sample(&rule, g->row, g->vocab, g->workspace);
  return lm_sample_id_check(*out);
}

// ---- what the columns of the request determine

static lm_status column_feed(const lm_generate_options *o, const lm_plan_port *p) {
  const char *name = lm_column_name_of(p->name);
  int64_t elements = 1;
  for (int i = 0; i < p->rank; i++)
    elements *= p->shape[i];
  for (int i = 0; name && i < o->n_columns; i++)
    if (!strcmp(o->columns[i].name, name) && o->columns[i].elements == elements) {
      memcpy(lm_exec_port(o->exec, p), o->columns[i].data, (size_t)elements * LM_COLUMN_BYTES);
      return NULL;
    }
  return name ? lm_fail(LM_USER, "the request has no column '%s', which `apply` takes", name)
              : NULL;
}

static lm_status request_feed(const lm_generate_options *o) {
  const lm_plan_func *f = lm_plan_func_get(o->plan, LM_FUNC_REQUEST, 0);
  int64_t extents[LM_COUNT(o->plan->extents)];
  for (int i = 0; f && i < f->n_in; i++)
    LM_TRY(column_feed(o, &f->in[i]));
  extents_set(o->plan, 1, 1, extents);
  return f ? lm_exec_run(o->exec, f, extents) : NULL;
}

static lm_status prompt_feed(generator *g) {
  const stage *x = g->prefill.f ? &g->prefill : &g->decode;
  for (int64_t at = 0, n; at < g->o->n_prompt; at += n) {
    n = g->o->n_prompt - at < x->in.seq ? g->o->n_prompt - at : x->in.seq;
    LM_TRY(feed(g, x, g->o->prompt + at, n, at));
  }
  return NULL;
}

static lm_status continue_prompt(generator *g) {
  const lm_generate_options *o = g->o;
  for (int64_t i = 0; i < o->n; i++) {
    int32_t id;
    LM_TRY(sample(g, i, &id));
    if (o->agree)
      LM_TRY(o->agree(o->comm, &id));
    bool more = o->token(o->user, id) && id != o->eos;
    if (!more || i + 1 == o->n)
      return NULL;
    LM_TRY(feed(g, &g->decode, &id, 1, o->n_prompt + i));
  }
  return NULL;
}

lm_status lm_generate(const lm_generate_options *o) {
  generator g = {.o = o};
  lm_status s = generator_open(&g);
  if (!s)
    s = request_feed(o);
  if (!s)
    s = prompt_feed(&g);
  if (!s)
    s = continue_prompt(&g);
  generator_close(&g);
  return s;
}
