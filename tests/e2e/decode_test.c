// decode_test.c - cached decoding against the full forward pass: the logits of every position of a
// row, through @prefill in chunks and then @decode one token at a time, equal the logits of @apply
// by the interpreter in float64.
//
// Over the models of tests/models and tests/reference, with fresh parameters, f32, 1e-5 norm-wise,
// compiled for this processor: weights are in panels. The kernels of most models are those of
// `lmc generate`, with which tests share them in the cache. A Llama also in bf16; tokens that are
// generated in bf16 against the forward pass in float64. Every GEMM of a position with a weight
// that fits panels is one call of the plan's kernel. @prefill gives the logits of the last position
// of a call; without pass narrow those of each, in f32 with the same bits.
//
// Attention with a window has its keys in a ring (pass ring_cache), which rows of many times the
// ring's size pass around: memory and bits are the same for each capacity. A window of 10 and calls
// of 8 leave no index of the ring to spare: 10 + 8 - 1 is one more than a multiple of 8.
// Build: plain
#include <glob.h>
#include <math.h>
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "dsl/lower/lower.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"
#include "runtime/cpu/kernels.h"
#include "runtime/hal/tensor.h"
#include "runtime/train/init.h"
#include "runtime/train/ports.h"
#include "tests/models/routed.h"
#include "tests/runtime/check.h"

enum {
  SEQ = 24,
  PROMPT = 13,
  CHUNK = 8,
  CAPACITY = 32,
  GENERATED = 256 // capacity and chunk of `lmc generate` for a short text
};

// The limit on the difference of logits in bf16 from float64. A forward pass in bf16 differs by up
// to 1.5e-2, which half_row_check compares.
static const double HALF_ERROR = 2e-2;

// A model, and how it is compiled.
typedef struct {
  const char *path, *set, *off; // a value of --set and a pass that is disabled; NULL: none
  lm_dtype compute;
  int64_t seq, capacity, chunk; // 0: SEQ, CAPACITY, CHUNK
  int64_t document;             // positions of each; 0: all are in one
} source;

// Two modules of a model: @prefill and @decode as kernels, @apply for the interpreter, with the
// same parameters.
typedef struct {
  source from;
  lm_ctx *c;
  lm_plan *plan;
  lm_exec *exec;
  lm_module *reference;
  lm_eval *eval;
  int64_t vocab, seq, document;
  lm_target_panel panel[LM_DTYPES];
} model;

static lm_lowered *lowered(lm_ctx *c, const source *from, uint32_t what, int64_t seq) {
  lm_program *p = lm_program_load(c, from->path);
  lm_recipe_overrides sets = {.sets = &from->set, .n_sets = from->set != NULL};
  lm_recipe *r = p ? lm_recipe_resolve(c, p, "Reference", &sets) : NULL;
  lm_lower_options o = {.what = what,
                        .rows = 1,
                        .seq = seq,
                        .capacity = from->capacity ? from->capacity : CAPACITY,
                        .chunk = from->chunk ? from->chunk : CHUNK};
  lm_lowered *l = r && !c->n_errors ? lm_lower(c, p, r, &o) : NULL;
  lm_buf why = {0};
  lm_diag_render(c, &why, 0);
  if (!l)
    printf("%s", why.p ? why.p : "");
  lm_buf_free(&why);
  CHECK(l);
  return l;
}

static model planned(const source *from) {
  model m = {.from = *from, .c = lm_ctx_create(), .seq = from->seq ? from->seq : SEQ};
  m.document = from->document ? from->document : m.seq;
  lm_lowered *l = lowered(m.c, from, LM_LOWER_DECODE, m.seq);
  m.vocab = l->vocab;
  lm_plan_options target = {.codegen = &lm_cpu_codegen};
  lm_cpu_target_find(&target.target);
  target.codegen->choose(&target.target);
  memcpy(m.panel, target.target.choices.panel, sizeof m.panel);
  lm_pass_env env = {.target = &target.target, .codegen = target.codegen, .compute = from->compute};
  if (from->off)
    CHECK_OK(lm_pass_disable(m.c->arena, from->off, &env));
  CHECK(lm_pipeline_run(l->m, LM_STAGE_KERNEL, &env));
  m.plan = lm_plan_build(l->m, &target);
  CHECK(m.plan);
  return m;
}

static const lm_plan_param *param_find(const lm_plan *p, const char *path) {
  const lm_plan_param *x = p->params;
  while (x < p->params + p->n_params && strcmp(x->path, path))
    x++;
  CHECK(x < p->params + p->n_params);
  return x;
}

// Copies the values of the executor's parameters to the interpreter.
static void reference_params_set(const model *m) {
  for (uint32_t i = 0; i < m->reference->n_globals; i++) {
    const lm_global *g = &m->reference->globals[i];
    const lm_tensor *all = g->kind == LM_GLOBAL_PARAM ? lm_eval_global(m->eval, g->name) : NULL;
    for (int64_t k = 0; all && k < g->n_paths; k++) {
      const lm_plan_param *p = param_find(m->plan, g->paths[k]);
      double *to = all->v + k * p->elements;
      CHECK(all->n == g->n_paths * p->elements);
      float *v = lm_alloc((size_t)p->elements * sizeof *v);
      CHECK_OK(
          lm_tensor_get(m->exec, m->plan, (lm_plan_tensor){p, LM_ROLE_PARAM}, 0, p->elements, v));
      for (int64_t j = 0; j < p->elements; j++)
        to[j] = v[j];
      lm_free(v);
    }
  }
}

static void model_open(model *m) {
  lm_pass_env env = {.compute = m->from.compute};
  CHECK_OK(lm_cpu_exec_create(m->plan, NULL, &m->exec));
  CHECK_OK(lm_init_params(m->exec, m->plan, 5));
  m->reference = lowered(m->c, &m->from, LM_LOWER_APPLY, m->seq)->m;
  CHECK(lm_pipeline_run(m->reference, LM_STAGE_STEP, &env));
  m->eval = lm_eval_create(m->reference);
  reference_params_set(m);
}

static void model_close(model *m) {
  lm_eval_destroy(m->eval);
  lm_exec_destroy(m->exec);
  lm_ctx_destroy(m->c);
}

// ---- kernels of all models, compiled together

enum {
  MODELS = 128,
  UNITS = 8 // GCC takes more than proportional time for larger units
};
static model models[MODELS];
static int n_models;

static model *add(source from) {
  CHECK(n_models < MODELS);
  models[n_models] = planned(&from);
  return &models[n_models++];
}

static bool has_kernel(const lm_plan *p, const char *name) {
  for (int i = 0; i < p->n_kernels; i++)
    if (!strcmp(p->kernels[i].name, name))
      return true;
  return false;
}

// Compiles the kernels of all models to the cache, where their executors find them: in fewer
// translation units, each of which parses the prelude, than if each executor compiled its own.
static void kernels_compile(void) {
  lm_plan all = {.prelude = models->plan->prelude};
  int most = 0;
  for (int i = 0; i < n_models; i++)
    most += models[i].plan->n_kernels;
  all.kernels = lm_calloc((size_t)most, sizeof *all.kernels);
  for (int i = 0; i < n_models; i++) {
    const lm_plan *p = models[i].plan;
    CHECK(!strcmp(p->prelude, all.prelude));
    for (int k = 0; k < p->n_kernels; k++)
      if (!has_kernel(&all, p->kernels[k].name))
        all.kernels[all.n_kernels++] = p->kernels[k];
  }
  lm_kernels loaded;
  CHECK_OK(lm_kernels_load(&all, &(lm_exec_options){0}, UNITS, &loaded));
  lm_kernels_unload(&loaded);
  lm_free(all.kernels);
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
  CHECK_OK(lm_exec_run(m->exec, f, extents));
  int64_t rows = logits->shape[1] == 1 ? 1 : n;
  int64_t first = at + n - rows;
  memcpy(out->v + first * m->vocab, lm_exec_port(m->exec, logits),
         sizeof *out->v * (size_t)(rows * m->vocab));
  memset(out->computed + first, true, (size_t)rows);
  lm_batch_ports_close(&in);
}

// Element i of the argument `name` of @apply.
static double column(const model *m, const char *name, const int32_t *ids, int64_t i) {
  if (!strcmp(name, "tok"))
    return ids[i];
  if (!strcmp(name, "pos"))
    return (double)i;
  CHECK(!strcmp(name, "seg"));
  return (double)(i / m->document);
}

// The logits of a row, of @apply in float64, or with each result rounded to its type.
static row_logits whole_row(const model *m, const int32_t *ids, bool round) {
  const lm_func *f = lm_func_find(m->reference, "apply");
  row_logits out = logits_new(m);
  lm_tensor args[8], logits;
  CHECK(f->n_out == 1 && f->body->n_args <= LM_COUNT(args));
  for (uint32_t k = 0; k < f->body->n_args; k++) {
    args[k] = lm_eval_tensor(m->eval, f->body->args[k]->type);
    for (int64_t i = 0; i < args[k].n; i++)
      args[k].v[i] = column(m, f->body->args[k]->name, ids, i);
  }
  lm_eval_round_set(m->eval, round);
  CHECK_OK(lm_eval_call(m->eval, f, args, &logits));
  CHECK(logits.n == m->seq * m->vocab);
  for (int64_t i = 0; i < logits.n; i++)
    out.v[i] = (float)logits.v[i];
  memset(out.computed, true, (size_t)m->seq);
  lm_tensor_free(&logits);
  for (uint32_t k = 0; k < f->body->n_args; k++)
    lm_tensor_free(&args[k]);
  return out;
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

// The first tokens differ: a model that attends to the best positions chooses by rounding between
// those of equal tokens, whose scores are equal.
static void ids_fill(const model *m, int32_t *ids) {
  for (int64_t i = 0; i < m->seq; i++)
    ids[i] = (int32_t)((i * 7 + 3) * 5 % m->vocab);
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

// Closes m.
static row_logits decode_check(model *m, double limit, int panels) {
  int32_t ids[SEQ];
  printf("%s\n", m->from.path);
  model_open(m);
  if (m->panel[m->from.compute].columns)
    CHECK(panels_count(m) >= panels);
  if (panels) // of the last layer: q, o, gate, up, down; and the logits
    CHECK(narrowed_count(m) == (m->from.off ? 0 : 6));
  ids_fill(m, ids);
  row_logits whole = whole_row(m, ids, false);
  row_logits cached = decoded(m, ids, PROMPT);
  agree(&cached, &whole, limit);
  logits_free(&whole);
  model_close(m);
  return cached;
}

// Two models, without and with pass narrow, which computes the last position alone of each call of
// @prefill, in f32 with the same bits. In bf16, kernels round stored values only, and those of the
// last layer store others.
static void narrow_check(model *without, model *with) {
  // of a layer: q, k, v, o, gate, up, down; and the logits
  enum {
    PANELS = 8
  };
  lm_dtype compute = with->from.compute;
  double limit = compute == LM_BF16 ? HALF_ERROR : 1e-5;
  row_logits all = decode_check(without, limit, PANELS);
  row_logits last = decode_check(with, limit, PANELS);
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
  source from = *of;
  from.capacity = capacity;
  model m = planned(&from);
  int64_t bytes = m.plan->arena_bytes[LM_ARENA_CACHE];
  lm_ctx_destroy(m.c);
  return bytes;
}

// As in decode_check. Returns the logits of calls of CHUNK positions and single ones.
static row_logits ring_check(model *m, double limit) {
  int32_t ids[512];
  printf("%s, %s\n", m->from.path, m->from.set);
  CHECK(m->seq <= (int64_t)LM_COUNT(ids) && rings_of(m->plan) == 1);
  model_open(m);
  ids_fill(m, ids);
  row_logits whole = whole_row(m, ids, false);
  row_logits mixed = decoded(m, ids, m->seq / 2), single = decoded(m, ids, 0);
  agree(&mixed, &whole, limit);
  agree(&single, &whole, limit);
  logits_free(&whole);
  logits_free(&single);
  model_close(m);
  return mixed;
}

enum {
  RING = 24, // 10 + 8 - 1 positions are 3 calls
  LONG = 8 * RING - 3
};

static source ring_of(int64_t capacity, lm_dtype compute) {
  return (source){.path = "tests/models/mistral/reference.lm",
                  .set = "model = Mistral(near = 10)",
                  .off = "narrow",
                  .seq = LONG,
                  .capacity = capacity,
                  .compute = compute};
}

static void ring_bytes_check(void) {
  // 3 layers: keys and values of 8 elements, position and document, in four caches
  enum {
    POSITION = 3 * (2 * 8 + 2) * 4,
    PADDING = 4 * 512
  };
  source mistral = ring_of(0, LM_F32);
  int64_t bytes = cache_bytes(&mistral, 64);
  CHECK(bytes >= RING * POSITION && bytes < RING * POSITION + PADDING);
  CHECK(cache_bytes(&mistral, 1 << 20) == bytes);
  CHECK(cache_bytes(&mistral, RING) == bytes && cache_bytes(&mistral, RING - CHUNK) < bytes);
}

static void windows_check(model *small, model *large, model *half) {
  row_logits some = ring_check(small, 1e-5), more = ring_check(large, 1e-5);
  CHECK(!memcmp(some.v, more.v, sizeof *some.v * (size_t)(some.seq * some.vocab)));
  logits_free(&some);
  logits_free(&more);
  row_logits x = ring_check(half, HALF_ERROR);
  logits_free(&x);
  ring_bytes_check();
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

// Tokens that are generated in bf16 are those of the forward pass, with results rounded to bf16 and
// in float64, up to their errors; logits are as close to those of float64 as those with rounding.
static void half_row_check(const model *half, int32_t first) {
  int32_t ids[512];
  int64_t prompt = half->seq / 4;
  for (int64_t i = 0; i < half->seq; i++)
    ids[i] = (int32_t)((i * i + i * 7 + first) * 5 % half->vocab);
  row_logits cached = greedy(half, ids, prompt);
  row_logits whole = whole_row(half, ids, true), exact = whole_row(half, ids, false);
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
static void half_check(model *half) {
  printf("%s, documents of %d\n", half->from.path, (int)half->document);
  CHECK(half->seq <= 512);
  model_open(half);
  half_row_check(half, 3);
  half_row_check(half, 8);
  model_close(half);
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
enum {
  TILE = 32,
  TOKENS = 2 * TILE + 6
};

static source tiles_of(const char *path, lm_dtype compute) {
  return (source){.path = path,
                  .compute = compute,
                  .off = "narrow",
                  .seq = TOKENS,
                  .capacity = 3 * TILE,
                  .chunk = TOKENS};
}

static void hidden_check(model *m) {
  int32_t ids[TOKENS];
  model_open(m);
  token_spoil(m);
  for (int i = 0; i < TOKENS; i++)
    ids[i] = 1 + i * 7 % (int32_t)(m->vocab - 1);
  row_logits all = logits_new(m), spoiled = logits_new(m);
  row_logits whole = whole_row(m, ids, false);
  feed(m, "prefill", ids, TOKENS, 0, &all);
  for (int i = 0; i < TOKENS; i++) // the logit of token 0
    whole.v[i * m->vocab] = all.v[i * m->vocab] = 0;
  agree(&all, &whole, m->from.compute == LM_BF16 ? HALF_ERROR : 1e-5);
  ids[TOKENS - 1] = 0;
  feed(m, "prefill", ids, TOKENS, 0, &spoiled);
  for (int i = 0; i < TOKENS; i++)
    spoiled.v[i * m->vocab] = 0;
  CHECK(isnan(spoiled.v[TOKENS * m->vocab - 1]));
  CHECK(!memcmp(all.v, spoiled.v, sizeof *all.v * (size_t)(2 * TILE * m->vocab)));
  logits_free(&whole);
  logits_free(&all);
  logits_free(&spoiled);
  model_close(m);
}

int main(void) {
  static const char llama[] = "tests/reference/llama-tiny/reference.lm";
  static const char mistral[] = "tests/models/mistral/reference.lm";
  model *narrow[2][2], *hidden[2];
  for (int i = 0; i < 2; i++) {
    lm_dtype compute = i ? LM_BF16 : LM_F32;
    narrow[i][0] = add((source){.path = llama, .compute = compute, .off = "narrow"});
    narrow[i][1] = add((source){.path = llama, .compute = compute});
    hidden[i] = add(tiles_of(llama, compute));
  }
  model *ring[] = {add(ring_of(256, LM_F32)), add(ring_of(512, LM_F32)),
                   add(ring_of(512, LM_BF16))};
  // grouped queries, several documents, a window in a ring
  model *half[] = {
      add((source){.path = llama, .compute = LM_BF16, .seq = 70, .capacity = 96}),
      add((source){.path = llama, .compute = LM_BF16, .seq = 50, .capacity = 64, .document = 17}),
      add((source){.path = mistral,
                   .set = "model = Mistral(near = 10)",
                   .compute = LM_BF16,
                   .seq = 120,
                   .capacity = 128,
                   .document = 43})};
  int others = n_models;
  glob_t all = {0};
  CHECK(!glob("tests/reference/*/reference.lm", 0, NULL, &all));
  CHECK(!glob("tests/models/*/reference.lm", GLOB_APPEND, NULL, &all));
  for (size_t i = 0; i < all.gl_pathc; i++)
    if (!model_is_routed(all.gl_pathv[i]))
      add((source){
          .path = all.gl_pathv[i], .compute = LM_F32, .capacity = GENERATED, .chunk = GENERATED});
  kernels_compile();
  for (int i = 0; i < 2; i++) {
    narrow_check(narrow[i][0], narrow[i][1]);
    hidden_check(hidden[i]);
  }
  windows_check(ring[0], ring[1], ring[2]);
  for (size_t i = 0; i < LM_COUNT(half); i++)
    half_check(half[i]);
  for (int i = others; i < n_models; i++) {
    row_logits x = decode_check(&models[i], 1e-5, 0);
    logits_free(&x);
  }
  globfree(&all);
  return 0;
}
