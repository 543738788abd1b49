// decode_test.c - cached decoding against the full forward pass: the logits of every position of a
// row, through @prefill in chunks and then @decode one token at a time, equal the logits of @apply.
//
// Over the models of tests/models and tests/reference, with fresh parameters, f32, 1e-5 norm-wise,
// compiled for this processor: weights are in panels. A Llama also in bf16, 1e-2; tokens that are
// generated in bf16 against the forward pass in f32. Every GEMM of a
// position with a weight that fits panels is one call of the plan's kernel. @prefill gives the
// logits of the last position of a call; without pass narrow those of each, in f32 with the same
// bits.
//
// Attention with a window has its keys in a ring (pass ring_cache), which rows of many times the
// ring's size pass around: memory and bits are the same for each capacity. A window of 10 and calls
// of 8 leave no index of the ring to spare: 10 + 8 - 1 is one more than a multiple of 8.
#include <glob.h>
#include <math.h>
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "dsl/lower/lower.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"
#include "runtime/train/init.h"
#include "runtime/train/ports.h"
#include "tests/models/routed.h"
#include "tests/runtime/check.h"

enum {
  SEQ = 24,
  PROMPT = 13,
  CHUNK = 8,
  CAPACITY = 32
};

// A model, and how it is compiled.
typedef struct {
  const char *path, *set, *off; // a value of --set and a pass that is disabled; NULL: none
  lm_dtype compute;
  int64_t seq, capacity, chunk; // 0: SEQ, CAPACITY, CHUNK
  int64_t document;             // positions of each; 0: all are in one
} source;

typedef struct {
  lm_ctx *c;
  lm_plan *plan;
  lm_exec *exec;
  int64_t vocab, seq, document;
  lm_target_panel panel[LM_DTYPES];
} model;

static bool model_open(const source *from, model *out) {
  lm_ctx *c = out->c = lm_ctx_create();
  lm_program *p = lm_program_load(c, from->path);
  lm_recipe_overrides sets = {.sets = &from->set, .n_sets = from->set != NULL};
  lm_recipe *r = p ? lm_recipe_resolve(c, p, "Reference", &sets) : NULL;
  out->seq = from->seq ? from->seq : SEQ;
  out->document = from->document ? from->document : out->seq;
  lm_lower_options o = {.what = LM_LOWER_APPLY | LM_LOWER_DECODE,
                        .rows = 1,
                        .seq = out->seq,
                        .capacity = from->capacity ? from->capacity : CAPACITY,
                        .chunk = from->chunk ? from->chunk : CHUNK};
  lm_lowered *l = r && !c->n_errors ? lm_lower(c, p, r, &o) : NULL;
  lm_buf why = {0};
  lm_diag_render(c, &why, 0);
  if (!l)
    printf("%s", why.p ? why.p : "");
  lm_buf_free(&why);
  if (!l)
    return false;
  lm_plan_options target = {.codegen = &lm_cpu_codegen};
  lm_cpu_target_find(&target.target);
  target.codegen->choose(&target.target);
  memcpy(out->panel, target.target.choices.panel, sizeof out->panel);
  lm_pass_env env = {.target = &target.target, .codegen = target.codegen, .compute = from->compute};
  if (from->off)
    CHECK_OK(lm_pass_disable(c->arena, from->off, &env));
  bool ok = lm_pipeline_run(l->m, LM_STAGE_KERNEL, &env);
  out->plan = ok ? lm_plan_build(l->m, &target) : NULL;
  out->vocab = l->vocab;
  return out->plan && !lm_cpu_exec_create(out->plan, NULL, &out->exec);
}

static void model_close(model *m) {
  lm_exec_destroy(m->exec);
  lm_ctx_destroy(m->c);
}

// The logits of the positions of a row.
typedef struct {
  float *v; // [seq, vocab]
  int64_t seq, vocab;
  bool *computed; // [seq]
} row_logits;

static row_logits logits_new(const model *m) {
  return (row_logits){.v = lm_calloc((size_t)(m->seq * m->vocab), sizeof(float)),
                      .seq = m->seq,
                      .vocab = m->vocab,
                      .computed = lm_calloc((size_t)m->seq, sizeof(bool))};
}

static void logits_free(row_logits *x) {
  lm_free(x->v);
  lm_free(x->computed);
}

// Calls f on n tokens at positions from `at` on; out receives their logits.
static void feed(const model *m, const char *name, const int32_t *ids, int64_t n, int64_t at,
                 row_logits *out) {
  const lm_plan_func *f = lm_plan_func_find(m->plan, name);
  const lm_plan_port *logits = lm_plan_port_find(f, "logits", true);
  lm_batch_ports in;
  CHECK_OK(lm_batch_ports_open(m->exec, m->plan, f, &in));
  for (int64_t i = 0; i < n; i++) {
    in.batch.tok[i] = ids[i];
    in.batch.pos[i] = (int32_t)(at + i);
    in.batch.seg[i] = (int32_t)((at + i) / m->document);
  }
  int64_t extents[16] = {[LM_EXTENT_CONTEXT - 1] = at + n, [LM_EXTENT_CHUNK - 1] = n};
  lm_port_set(m->exec, f, LM_PORT_AT, (double)at);
  for (int i = 0; i < m->plan->n_extents; i++)
    if (!m->plan->extents[i].capacity)
      extents[i] = 0; // the model has no such axis
  CHECK_OK(lm_exec_run(m->exec, f, strcmp(name, "apply") ? extents : NULL));
  int64_t rows = logits->shape[1] == 1 ? 1 : n;
  int64_t first = at + n - rows;
  memcpy(out->v + first * m->vocab, lm_exec_port(m->exec, logits),
         sizeof *out->v * (size_t)(rows * m->vocab));
  memset(out->computed + first, true, (size_t)rows);
  lm_batch_ports_close(&in);
}

// Of the positions of a that were computed.
static double distance(const row_logits *a, const row_logits *b) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < a->seq * a->vocab; i++) {
    if (!a->computed[i / a->vocab])
      continue;
    difference += pow(a->v[i] - b->v[i], 2);
    norm += pow(b->v[i], 2);
  }
  return sqrt(difference / (norm > 0 ? norm : 1));
}

static bool is_of_weight(const lm_plan_step *s) {
  bool weight = s->kind == LM_STEP_GEMM && s->bufs[1].arena != LM_ARENA_CACHE;
  return weight && !s->gemm->n.n_dyn && !s->gemm->k.n_dyn && s->bufs[1].arena != LM_ARENA_WORK;
}

// Returns the number of GEMMs that read panels.
static int panels_count(const model *m) {
  const lm_plan_func *f = lm_plan_func_find(m->plan, "decode");
  int n = 0;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_gemm *g = f->steps[i].gemm;
    if (!is_of_weight(&f->steps[i]) || !g->b_columns)
      continue;
    CHECK(g->code && !g->n_batch && g->m.fixed == 1 && !g->m.n_dyn);
    n++;
  }
  return n;
}

// Returns the number of GEMMs with a weight that @prefill computes for its last position alone.
static int narrowed_count(const model *m) {
  const lm_plan_func *f = lm_plan_func_find(m->plan, "prefill");
  int n = 0;
  for (int i = 0; i < f->n_steps; i++)
    n += is_of_weight(&f->steps[i]) && !f->steps[i].gemm->m.n_dyn;
  return n;
}

static void ids_fill(const model *m, int32_t *ids) {
  for (int64_t i = 0; i < m->seq; i++)
    ids[i] = (int32_t)((i * i + i * 7 + 3) * 5 % m->vocab);
}

// The first `prompt` positions in calls of CHUNK, the others one by one.
static row_logits decoded(const model *m, const int32_t *ids, int64_t prompt) {
  row_logits out = logits_new(m);
  for (int64_t at = 0, n; at < prompt; at += n) {
    n = prompt - at < CHUNK ? prompt - at : CHUNK;
    feed(m, "prefill", ids + at, n, at, &out);
  }
  for (int64_t at = prompt; at < m->seq; at++)
    feed(m, "decode", ids + at, 1, at, &out);
  return out;
}

static void agree(const row_logits *cached, const row_logits *whole, double limit) {
  double d = distance(cached, whole);
  printf("  %.2g\n", d);
  CHECK(d <= limit);
}

static row_logits decode_check(const source *from, double limit, int panels) {
  model m = {0};
  int32_t ids[SEQ];
  printf("%s\n", from->path);
  CHECK(model_open(from, &m));
  if (m.panel[from->compute].columns)
    CHECK(panels_count(&m) >= panels);
  if (panels) // of the last layer: q, o, gate, up, down; and the logits
    CHECK(narrowed_count(&m) == (from->off ? 0 : 6));
  CHECK_OK(lm_init_params(m.exec, m.plan, 5));
  ids_fill(&m, ids);
  row_logits whole = logits_new(&m);
  feed(&m, "apply", ids, SEQ, 0, &whole);
  row_logits cached = decoded(&m, ids, PROMPT);
  agree(&cached, &whole, limit);
  logits_free(&whole);
  model_close(&m);
  return cached;
}

// Of each call of @prefill, pass narrow computes the last position alone, in f32 with the same
// bits. In bf16, kernels round stored values only, and those of the last layer store others.
static void narrow_check(const char *path, lm_dtype compute, double limit, int panels) {
  source from = {.path = path, .compute = compute, .off = "narrow"};
  row_logits all = decode_check(&from, limit, panels);
  from.off = NULL;
  row_logits last = decode_check(&from, 2 * limit, panels); // of fewer positions
  int64_t vocab = all.vocab;
  for (int i = 0; i < SEQ; i++) {
    bool computed = i >= PROMPT - 1 || i % CHUNK == CHUNK - 1;
    CHECK(all.computed[i] && last.computed[i] == computed);
    const float *row = last.v + i * vocab;
    bool exact = computed && compute == LM_F32;
    CHECK(!exact || !memcmp(all.v + i * vocab, row, sizeof *row * (size_t)vocab));
  }
  logits_free(&all);
  logits_free(&last);
}

// ---- windows

static int rings_of(const lm_plan *p) {
  int n = 0;
  for (int i = 0; i < p->n_extents; i++)
    n += p->extents[i].capped;
  return n;
}

// The bytes of the caches of a model at this capacity.
static int64_t cache_bytes(const source *of, int64_t capacity) {
  model m = {0};
  source from = *of;
  from.capacity = capacity;
  CHECK(model_open(&from, &m));
  int64_t bytes = m.plan->arena_bytes[LM_ARENA_CACHE];
  model_close(&m);
  return bytes;
}

// As in decode_check. Returns the logits of calls of CHUNK positions and single ones.
static row_logits ring_check(const source *from, double limit) {
  model m = {0};
  int32_t ids[512];
  printf("%s, %s\n", from->path, from->set);
  CHECK(model_open(from, &m) && m.seq <= (int64_t)LM_COUNT(ids) && rings_of(m.plan) == 1);
  CHECK_OK(lm_init_params(m.exec, m.plan, 5));
  ids_fill(&m, ids);
  row_logits whole = logits_new(&m);
  feed(&m, "apply", ids, m.seq, 0, &whole);
  row_logits mixed = decoded(&m, ids, m.seq / 2), single = decoded(&m, ids, 0);
  agree(&mixed, &whole, limit);
  agree(&single, &whole, limit);
  logits_free(&whole);
  logits_free(&single);
  model_close(&m);
  return mixed;
}

static void windows_check(void) {
  enum {
    RING = 24, // 10 + 8 - 1 positions are 3 calls
    LONG = 8 * RING - 3
  };
  source mistral = {.path = "tests/models/mistral/reference.lm",
                    .set = "model = Mistral(near = 10)",
                    .off = "narrow",
                    .seq = LONG,
                    .capacity = 256,
                    .compute = LM_F32};
  row_logits some = ring_check(&mistral, 1e-5);
  mistral.capacity *= 2;
  row_logits more = ring_check(&mistral, 1e-5);
  CHECK(!memcmp(some.v, more.v, sizeof *some.v * (size_t)(some.seq * some.vocab)));
  logits_free(&some);
  logits_free(&more);
  // 3 layers: keys and values of 8 elements, position and document, in four caches
  enum {
    POSITION = 3 * (2 * 8 + 2) * 4,
    PADDING = 4 * 512
  };
  int64_t bytes = cache_bytes(&mistral, 64);
  CHECK(bytes >= RING * POSITION && bytes < RING * POSITION + PADDING);
  CHECK(cache_bytes(&mistral, 1 << 20) == bytes);
  CHECK(cache_bytes(&mistral, RING) == bytes && cache_bytes(&mistral, RING - CHUNK) < bytes);
  mistral.compute = LM_BF16;
  row_logits half = ring_check(&mistral, 2e-2);
  logits_free(&half);
}

// ---- bf16

static int32_t likeliest(const float *logits, int64_t vocab) {
  int32_t best = 0;
  for (int32_t i = 1; i < vocab; i++)
    best = logits[i] > logits[best] ? i : best;
  return best;
}

// Continues a row from position `prompt` on with its likeliest tokens, which are stored in ids.
static row_logits greedy(const model *m, int32_t *ids, int64_t prompt) {
  row_logits out = logits_new(m);
  for (int64_t at = 0; at < m->seq; at++) {
    feed(m, "decode", ids + at, 1, at, &out);
    if (at + 1 >= prompt && at + 1 < m->seq)
      ids[at + 1] = likeliest(out.v + at * m->vocab, m->vocab);
  }
  return out;
}

static model with_parameters(const source *from, lm_dtype compute) {
  model m = {0};
  source x = *from;
  x.compute = compute;
  CHECK(model_open(&x, &m));
  CHECK_OK(lm_init_params(m.exec, m.plan, 5));
  return m;
}

// The greatest amount by which the logit of a chosen token is below that of the likeliest one,
// in units of the norm of a position's logits ÷ the square root of their number.
static double regret(const row_logits *x, const int32_t *ids, int64_t prompt) {
  double worst = 0;
  for (int64_t i = prompt - 1; i + 1 < x->seq; i++) {
    const float *v = x->v + i * x->vocab;
    double norm = 0;
    for (int64_t j = 0; j < x->vocab; j++)
      norm += v[j] * v[j] / (double)x->vocab;
    worst = fmax(worst, (v[likeliest(v, x->vocab)] - v[ids[i + 1]]) / sqrt(norm));
  }
  return worst;
}

// Tokens that are generated in bf16 are those of the forward pass, of bf16 and f32, up to their
// errors; logits are as close to those of f32 as the forward pass in bf16 is.
static void half_row_check(const model *half, const model *full, int32_t first) {
  int32_t ids[512];
  int64_t prompt = half->seq / 4;
  for (int64_t i = 0; i < half->seq; i++)
    ids[i] = (int32_t)((i * i + i * 7 + first) * 5 % half->vocab);
  row_logits cached = greedy(half, ids, prompt);
  row_logits whole = logits_new(half), exact = logits_new(full);
  feed(half, "apply", ids, half->seq, 0, &whole);
  feed(full, "apply", ids, full->seq, 0, &exact);
  double error = distance(&cached, &exact), usual = distance(&whole, &exact);
  double below[] = {regret(&whole, ids, prompt), regret(&exact, ids, prompt)};
  printf("  error %.2g, of a row %.2g; tokens %.2g, %.2g below\n", error, usual, below[0],
         below[1]);
  CHECK(usual > 0 && usual < 2e-2 && error <= 1.5 * usual);
  CHECK(below[0] <= 6 * usual && below[1] <= 6 * usual);
  logits_free(&cached);
  logits_free(&whole);
  logits_free(&exact);
}

// Two rows, one after the other in the same caches.
static void half_check(const source *from) {
  model half = with_parameters(from, LM_BF16), full = with_parameters(from, LM_F32);
  printf("%s, documents of %d\n", from->path, (int)half.document);
  CHECK(half.seq <= 512);
  half_row_check(&half, &full, 3);
  half_row_check(&half, &full, 8);
  model_close(&half);
  model_close(&full);
}

// Grouped queries, several documents, a window in a ring.
static void half_checks(const char *llama) {
  half_check(&(source){.path = llama, .seq = 70, .capacity = 96});
  half_check(&(source){.path = llama, .seq = 50, .capacity = 64, .document = 17});
  half_check(&(source){.path = "tests/models/mistral/reference.lm",
                       .set = "model = Mistral(near = 10)",
                       .seq = 120,
                       .capacity = 128,
                       .document = 43});
}

// ---- tiles of keys

// The embedding of token 0 becomes NaN. A model ties it to the logits of that token.
static void token_spoil(const model *m) {
  const lm_plan_param *p = m->plan->params;
  while (p->rank != 2 || p->shape[0] != m->vocab)
    p++;
  float x[1024];
  CHECK(p->dtype == LM_F32 && p->shape[1] <= (int64_t)LM_COUNT(x));
  for (size_t i = 0; i < LM_COUNT(x); i++)
    x[i] = NAN;
  CHECK_OK(lm_exec_write(m->exec, (lm_arena_id)p->arena, p->pieces->offset,
                         p->shape[1] * (int64_t)sizeof *x, x));
}

// In a call of several tiles of queries, a tile of keys that none of its queries sees is skipped: a
// last token that is not a number does not reach the tiles before its own.
static void hidden_check(const char *path, lm_dtype compute) {
  enum {
    TILE = 32,
    TOKENS = 2 * TILE + 6
  };
  source from = {.path = path,
                 .compute = compute,
                 .off = "narrow",
                 .seq = TOKENS,
                 .capacity = 3 * TILE,
                 .chunk = TOKENS};
  model m = {0};
  int32_t ids[TOKENS];
  CHECK(model_open(&from, &m));
  CHECK_OK(lm_init_params(m.exec, m.plan, 5));
  token_spoil(&m);
  for (int i = 0; i < TOKENS; i++)
    ids[i] = 1 + i * 7 % (int32_t)(m.vocab - 1);
  row_logits whole = logits_new(&m), all = logits_new(&m), spoiled = logits_new(&m);
  feed(&m, "apply", ids, TOKENS, 0, &whole);
  feed(&m, "prefill", ids, TOKENS, 0, &all);
  for (int i = 0; i < TOKENS; i++) // the logit of token 0
    whole.v[i * m.vocab] = all.v[i * m.vocab] = 0;
  agree(&all, &whole, compute == LM_BF16 ? 1e-2 : 1e-5);
  ids[TOKENS - 1] = 0;
  feed(&m, "prefill", ids, TOKENS, 0, &spoiled);
  for (int i = 0; i < TOKENS; i++)
    spoiled.v[i * m.vocab] = 0;
  CHECK(isnan(spoiled.v[TOKENS * m.vocab - 1]));
  CHECK(!memcmp(all.v, spoiled.v, sizeof *all.v * (size_t)(2 * TILE * m.vocab)));
  logits_free(&whole);
  logits_free(&all);
  logits_free(&spoiled);
  model_close(&m);
}

static void model_check(const char *path) {
  row_logits x = decode_check(&(source){.path = path, .compute = LM_F32}, 1e-5, 0);
  logits_free(&x);
}

int main(void) {
  // of a layer: q, k, v, o, gate, up, down; and the logits
  static const char llama[] = "tests/reference/llama-tiny/reference.lm";
  narrow_check(llama, LM_F32, 1e-5, 8);
  narrow_check(llama, LM_BF16, 1e-2, 8);
  hidden_check(llama, LM_F32);
  hidden_check(llama, LM_BF16);
  windows_check();
  half_checks(llama);
  static const char *const patterns[] = {"tests/reference/*/reference.lm",
                                         "tests/models/*/reference.lm"};
  for (size_t k = 0; k < LM_COUNT(patterns); k++) {
    glob_t g = {0};
    glob(patterns[k], 0, NULL, &g);
    for (size_t i = 0; i < g.gl_pathc; i++)
      if (!model_is_routed(g.gl_pathv[i]))
        model_check(g.gl_pathv[i]);
    CHECK(g.gl_pathc > 0);
    globfree(&g);
  }
  return 0;
}
