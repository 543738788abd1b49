// bigram.h - a model small enough to be written by hand as a plan and its executor, so that
// training and generation are tested without the compiler: logits = table[tok] + bias, AdamW
// without decay, one block for each parameter.
#ifndef LM_TESTS_BIGRAM_H
#define LM_TESTS_BIGRAM_H
#include <math.h>

#include "runtime/base/dtype.h"
#include "runtime/hal/exec.h"
#include "tests/runtime/check.h"

enum {
  VOCAB = 16,
  ROWS = 2,
  SEQ = 8,
  BLOCKS = 2,
  BIAS = LM_BLOCK
};

typedef struct bigram {
  lm_exec hal;
  const lm_plan *plan;
  char *arena[LM_ARENAS];
  double poison;
} bigram; // poison: added to every loss

static inline bigram *bigram_of(lm_exec *e) {
  return (bigram *)e;
}
static inline float *floats(lm_exec *e, lm_arena_id id) {
  return (float *)bigram_of(e)->arena[id];
}
static lm_status bigram_read(lm_exec *e, lm_arena_id id, int64_t offset, int64_t n, void *to) {
  memcpy(to, bigram_of(e)->arena[id] + offset, (size_t)n);
  return NULL;
}
static lm_status bigram_write(lm_exec *e, lm_arena_id id, int64_t offset, int64_t n,
                              const void *from) {
  memcpy(bigram_of(e)->arena[id] + offset, from, (size_t)n);
  return NULL;
}
static void bigram_clear(lm_exec *e, lm_arena_id id) {
  memset(bigram_of(e)->arena[id], 0, (size_t)bigram_of(e)->plan->arena_bytes[id]);
}
static void *bigram_at(lm_exec *e, const lm_plan_port *p) {
  return bigram_of(e)->arena[p->buf.arena] + p->buf.offset;
}

static inline void *port(lm_exec *e, const lm_plan_func *f, const char *name, bool result) {
  return lm_exec_port(e, lm_plan_port_find(f, name, result));
}

static inline void bigram_logits(lm_exec *e, int tok, float *out) {
  float *p = floats(e, LM_ARENA_PARAM);
  for (int v = 0; v < VOCAB; v++)
    out[v] = p[tok * VOCAB + v] + p[BIAS + v];
}

static inline void bigram_loss(lm_exec *e, const lm_plan_func *f, float *grad) {
  const int32_t *tok = port(e, f, "tok", false);
  const int32_t *next = port(e, f, "next", false);
  const float *w = port(e, f, "w", false);
  float sum = (float)bigram_of(e)->poison, weight = 0;
  for (int i = 0; i < ROWS * SEQ; i++) {
    float z[VOCAB], total = 0;
    bigram_logits(e, tok[i], z);
    for (int v = 0; v < VOCAB; v++)
      total += expf(z[v]);
    sum += w[i] * (logf(total) - z[next[i]]);
    weight += w[i];
    for (int v = 0; v < VOCAB && grad; v++) {
      float g = w[i] * (expf(z[v]) / total - (v == next[i]));
      grad[tok[i] * VOCAB + v] += g;
      grad[BIAS + v] += g;
    }
  }
  *(float *)port(e, f, "sum", true) = sum;
  *(float *)port(e, f, "weight", true) = weight;
  if (grad)
    return;
  *(float *)port(e, f, "xent.sum", true) = sum;
  *(float *)port(e, f, "xent.weight", true) = weight;
}

static inline void bigram_update(lm_exec *e, const lm_plan_func *f) {
  float *p = floats(e, LM_ARENA_PARAM);
  float *g = floats(e, LM_ARENA_GRAD);
  float *m = floats(e, LM_ARENA_STATE);
  float *v = m + BLOCKS * LM_BLOCK;
  float scale = *(float *)port(e, f, "grad_scale", false);
  float lr = *(float *)port(e, f, "lr", false);
  double k = *(int32_t *)port(e, f, "step", false);
  double c1 = 1 - pow(0.9, k);
  double c2 = 1 - pow(0.95, k);
  const float *rate = port(e, f, "group", false);
  if (scale != scale)
    return;
  for (int i = 0; i < BLOCKS * LM_BLOCK; i++) {
    float x = g[i] * scale;
    m[i] = 0.9f * m[i] + 0.1f * x;
    v[i] = 0.95f * v[i] + 0.05f * x * x;
    p[i] -= rate[i / LM_BLOCK] * lr * (float)(m[i] / c1 / (sqrt(v[i] / c2) + 1e-8));
  }
}

static lm_status bigram_run(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  if (!strcmp(f->name, "micro"))
    bigram_loss(e, f, floats(e, LM_ARENA_GRAD));
  if (!strcmp(f->name, "eval"))
    bigram_loss(e, f, NULL);
  if (!strcmp(f->name, "update"))
    bigram_update(e, f);
  if (!strcmp(f->name, "rates"))
    *(double *)port(e, f, "lr", true) = 0.1 / *(int32_t *)port(e, f, "step", false);
  if (!strcmp(f->name, "norm")) {
    double s = 0;
    for (int i = 0; i < BLOCKS * LM_BLOCK; i++)
      s += (double)floats(e, LM_ARENA_GRAD)[i] * floats(e, LM_ARENA_GRAD)[i];
    *(float *)port(e, f, "norm", true) = (float)sqrt(s);
  }
  if (!strcmp(f->name, "prefill") || !strcmp(f->name, "decode"))
    for (int i = 0; i < extents[0]; i++)
      bigram_logits(e, ((int32_t *)port(e, f, "tok", false))[i],
                    (float *)port(e, f, "logits", true) + i * VOCAB);
  return NULL;
}

static inline lm_plan_port bigram_port(lm_plan *p, const char *name, uint8_t dtype, int rank,
                                       int64_t rows, int64_t columns) {
  static const int bytes[] = {4, 2, 8, 4, 1};
  int64_t n = (rank > 0 ? rows : 1) * (rank > 1 ? columns : 1) * bytes[dtype];
  lm_plan_port x = {
      .name = name,
      .id = name ? lm_port_find(name) : LM_PORTS,
      .buf = {.arena = LM_ARENA_IO, .offset = p->arena_bytes[LM_ARENA_IO], .bytes = n},
      .dtype = dtype,
      .rank = rank,
      .shape = {rows, columns}};
  p->arena_bytes[LM_ARENA_IO] += (n + 63) / 64 * 64;
  return x;
}

typedef struct {
  const char *name;
  uint8_t dtype;
  int rank;
  int64_t rows, columns;
} bigram_spec;

static inline lm_plan_port *bigram_ports(lm_plan *p, lm_arena *a, const bigram_spec *s, int n) {
  lm_plan_port *out = LM_NEW_N(a, lm_plan_port, n);
  for (int i = 0; i < n; i++)
    out[i] = bigram_port(p, s[i].name, s[i].dtype, s[i].rank, s[i].rows, s[i].columns);
  return out;
}

#define BATCH(r, t)                                                                                \
  {"tok", LM_INT, 2, r, t}, {"seg", LM_INT, 2, r, t}, {"next", LM_INT, 2, r, t}, {                 \
    "w", LM_F32, 2, r, t                                                                           \
  }
#define FUNC(func_name, ins, outs)                                                                 \
  p->funcs[p->n_funcs++] = (lm_plan_func) {                                                        \
    .name = func_name, .key = lm_func_key_parse(func_name),                                        \
    .in = bigram_ports(p, a, ins, LM_COUNT(ins)), .n_in = LM_COUNT(ins),                           \
    .out = bigram_ports(p, a, outs, LM_COUNT(outs)), .n_out = LM_COUNT(outs)                       \
  }

static inline lm_plan *bigram_plan(lm_arena *a) {
  static const bigram_spec loss_in[] = {BATCH(ROWS, SEQ), {"step", LM_INT}},
                           loss_out[] = {{"sum", LM_F32}, {"weight", LM_F32}, {"aux", LM_F32}};
  static const bigram_spec eval_out[] = {
      {"sum", LM_F32}, {"weight", LM_F32}, {"xent.sum", LM_F32}, {"xent.weight", LM_F32}};
  static const bigram_spec norm_out[] = {{"norm", LM_F32}}, rates_in[] = {{"step", LM_INT}},
                           rates_out[] = {{"lr", LM_F64}};
  static const bigram_spec update_in[] = {{"grad_scale", LM_F32},
                                          {"lr", LM_F32},
                                          {"step", LM_INT},
                                          {"group", LM_F32, 1, BLOCKS}},
                           none[1];
  static const bigram_spec decode_in[] = {BATCH(1, 1), {"at", LM_INT}},
                           prefill_in[] = {BATCH(1, 3), {"at", LM_INT}};
  static const bigram_spec decode_out[] = {{"logits", LM_F32, 2, 1, VOCAB}},
                           prefill_out[] = {{"logits", LM_F32, 2, 3, VOCAB}};
  lm_plan *p = LM_NEW(a, lm_plan);
  p->funcs = LM_NEW_N(a, lm_plan_func, 8);
  FUNC("micro", loss_in, loss_out);
  FUNC("eval", loss_in, eval_out);
  FUNC("norm", rates_in, norm_out);
  FUNC("rates", rates_in, rates_out);
  FUNC("update", update_in, none);
  FUNC("prefill", prefill_in, prefill_out);
  FUNC("decode", decode_in, decode_out);
  p->funcs[4].n_out = 0;
  p->n_blocks = BLOCKS;
  p->n_states = 2;
  p->n_params = 2;
  p->params = LM_NEW_N(a, lm_plan_param, 2);
  static const lm_plan_piece table = {.size = {VOCAB, VOCAB}, .stride = {VOCAB, 1}};
  static const lm_plan_piece bias = {.offset = BIAS, .size = {VOCAB}, .stride = {1}};
  p->params[0] = (lm_plan_param){.path = "table",
                                 .elements = VOCAB * VOCAB,
                                 .rank = 2,
                                 .shape = {VOCAB, VOCAB},
                                 .pieces = &table,
                                 .n_pieces = 1,
                                 .init = LM_INIT_NORMAL,
                                 .init_a = 0.02};
  p->params[1] = (lm_plan_param){.path = "bias",
                                 .elements = VOCAB,
                                 .rank = 1,
                                 .shape = {VOCAB},
                                 .pieces = &bias,
                                 .n_pieces = 1,
                                 .init = LM_INIT_ZEROS};
  p->n_extents = 2;
  p->extents[0].name = "t";
  p->extents[0].capacity = 3;
  p->extents[1].name = "s";
  p->extents[1].capacity = 100;
  p->arena_bytes[LM_ARENA_PARAM] = p->arena_bytes[LM_ARENA_GRAD] = 4 * BLOCKS * LM_BLOCK;
  p->arena_bytes[LM_ARENA_STATE] = 2 * p->arena_bytes[LM_ARENA_PARAM];
  return p;
}

static inline lm_exec *bigram_exec(lm_arena *a, const lm_plan *p) {
  static const lm_exec_ops ops = {.run = bigram_run,
                                  .read = bigram_read,
                                  .write = bigram_write,
                                  .arena_clear = bigram_clear,
                                  .port = bigram_at};
  bigram *e = LM_NEW(a, bigram);
  e->hal.ops = &ops;
  e->plan = p;
  for (int i = 0; i < LM_ARENAS; i++)
    e->arena[i] = lm_arena_alloc(a, (size_t)p->arena_bytes[i]);
  return &e->hal;
}
#endif
