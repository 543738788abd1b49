// gemm_call.c - one call of cuBLASLt: its descriptors, the choice and the measuring of its
// algorithm, and what runs if the library does not support it; see gemm_call.h.
#include "runtime/cuda/gemm_call.h"

#include <math.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/cuda/gemm_key.h"
#include "runtime/cuda/library.h"

typedef struct entry {
  uint64_t hash;
  lm_cuda_key k;
  void *desc, *layout[3];
  lm_lt_algo algo;
  size_t workspace;
  bool supported;
} entry;

struct lm_cuda_gemms {
  lm_cublaslt lt;
  const lm_cuda_builtins *builtins;
  bool tf32;
  lm_cuda_choices *choices; // optional
  const lm_cuda_device *device;
  void (*warning)(void *user, const char *text); // optional
  void *warning_user;
  const lm_plan_step **slow; // that were reported
  uint32_t n_slow, cap_slow;
  bool measuring;
  double deadline; // lm_now() when the budget for measuring is exhausted
  void *from, *to; // events, while measuring
  lm_arena *arena;
  void *handle;
  entry *entries;
  uint32_t n_entries, cap_entries;
  // A hash table of entries: index + 1, or 0 for an empty slot. Its size is a power of two and at
  // least twice the number of entries.
  uint32_t *slots, n_slots;
};

static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/cublaslt_syms.def"
#undef SYM
};

static lm_status check(const lm_cuda_gemms *g, int status, const char *what) {
  return status
             ? lm_fail(LM_ENV, "%s: cuBLASLt says: %s", what, g->lt.cublasLtGetStatusString(status))
             : NULL;
}

static lm_status library_open(lm_cuda_gemms *g, int driver) {
  LM_TRY(
      lm_toolkit_open("cuBLASLt, CUDA's GEMM library,", "libcublasLt.so", driver, &g->lt.library));
  LM_TRY(lm_library_resolve(g->lt.library, "cuBLASLt", names, LM_COUNT(names), g->lt.functions));
  return check(g, g->lt.cublasLtCreate(&g->handle), "starting");
}

// Choices for another device or version are an error if they are pinned, else they are discarded.
static lm_status choices_check(lm_cuda_gemms *g, const lm_cuda_device *device) {
  lm_cuda_choices *c = g->choices;
  uint64_t version = g->lt.cublasLtGetVersion();
  bool same = c && c->device && !strcmp(c->device, device->name) && c->version == version;
  if (!c || same)
    return NULL;
  if (c->pinned)
    return lm_fail(LM_USER,
                   "GEMM algorithms were chosen on %s with cuBLASLt %llu, not on %s with %llu; "
                   "without tuned.json they are measured again, and the run continues with "
                   "different rounding",
                   c->device, (unsigned long long)c->version, device->name,
                   (unsigned long long)version);
  c->n = 0;
  c->device = lm_arena_printf(c->arena, "%s", device->name);
  c->version = version;
  return NULL;
}

lm_status lm_cuda_gemms_create(const lm_cuda_builtins *b, const lm_cuda_device *device,
                               const lm_exec_options *o, lm_cuda_gemms **out) {
  lm_cuda_gemms *g = lm_alloc(sizeof *g);
  g->builtins = b;
  g->device = device;
  g->tf32 = o->tf32;
  g->choices = o->tuning;
  g->warning = o->warning;
  g->warning_user = o->warning_user;
  g->arena = lm_arena_create();
  lm_status s = library_open(g, device->driver);
  if (!s)
    s = choices_check(g, device);
  if (s)
    lm_cuda_gemms_destroy(g);
  *out = s ? NULL : g;
  return s;
}

static void entry_free(const lm_cuda_gemms *g, entry *e) {
  if (e->desc)
    g->lt.cublasLtMatmulDescDestroy(e->desc);
  for (int i = 0; i < 3; i++)
    if (e->layout[i])
      g->lt.cublasLtMatrixLayoutDestroy(e->layout[i]);
}

// Does not unload the library, which keeps code on the device.
void lm_cuda_gemms_destroy(lm_cuda_gemms *g) {
  if (!g)
    return;
  for (uint32_t i = 0; i < g->n_entries; i++)
    entry_free(g, &g->entries[i]);
  if (g->handle)
    g->lt.cublasLtDestroy(g->handle);
  lm_arena_destroy(g->arena);
  lm_free(g);
}

// ---- descriptors, and the choice of the algorithm

static lm_status layout_make(const lm_cuda_gemms *g, const lm_cuda_key *k, int i, void **out) {
  const lm_cublaslt *lt = &g->lt;
  int64_t rows = i == 1 ? k->k : k->rows;
  int64_t cols = i == 0 ? k->k : k->cols;
  bool is_transposed = i < 2 && k->is_transposed[i];
  int32_t count = (int32_t)k->count;
  const int32_t types[] = {k->aa, k->bb, k->cc};
  LM_TRY(check(g,
               lt->cublasLtMatrixLayoutCreate(out, lm_dtype_table[types[i]].cublaslt,
                                              (uint64_t)(is_transposed ? cols : rows),
                                              (uint64_t)(is_transposed ? rows : cols), k->ld[i]),
               "a matrix layout"));
  if (count == 1)
    return NULL;
  LM_TRY(check(
      g, lt->cublasLtMatrixLayoutSetAttribute(*out, LM_LT_LAYOUT_BATCH_COUNT, &count, sizeof count),
      "the batch of a matrix layout"));
  return check(g,
               lt->cublasLtMatrixLayoutSetAttribute(*out, LM_LT_LAYOUT_BATCH_STRIDE, &k->batch[i],
                                                    sizeof k->batch[i]),
               "the batch of a matrix layout");
}

static lm_status desc_set(const lm_cuda_gemms *g, void *desc, int attribute, int32_t value) {
  int status = g->lt.cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
  return check(g, status, "a GEMM descriptor");
}

static lm_status desc_make(const lm_cuda_gemms *g, const lm_cuda_key *k, void **out) {
  const lm_cublaslt *lt = &g->lt;
  static const int attributes[2] = {LM_LT_DESC_TRANSA, LM_LT_DESC_TRANSB};
  bool wide = k->aa == LM_F64;
  bool rounds = g->tf32 && k->aa == LM_F32;
  LM_TRY(check(g,
               lt->cublasLtMatmulDescCreate(out,
                                            wide     ? LM_LT_COMPUTE_64F
                                            : rounds ? LM_LT_COMPUTE_TF32
                                                     : LM_LT_COMPUTE_32F,
                                            wide ? LM_CUBLASLT_F64 : LM_CUBLASLT_F32),
               "a GEMM descriptor"));
  for (int i = 0; i < 2; i++)
    if (k->is_transposed[i])
      LM_TRY(desc_set(g, *out, attributes[i], LM_LT_OP_T));
  for (int i = 0; i < 2; i++)
    if (k->scale_mode[i])
      LM_TRY(desc_set(g, *out, LM_LT_DESC_SCALE_MODE_A + i, k->scale_mode[i]));
  const int8_t fast = 1;
  if (k->fast)
    LM_TRY(check(
        g, lt->cublasLtMatmulDescSetAttribute(*out, LM_LT_DESC_FAST_ACCUM, &fast, sizeof fast),
        "a GEMM descriptor"));
  if (k->epilogue == LM_LT_EPILOGUE_NONE)
    return NULL;
  const uint32_t epilogue = (uint32_t)k->epilogue;
  LM_TRY(check(
      g, lt->cublasLtMatmulDescSetAttribute(*out, LM_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue),
      "an epilogue"));
  if (!(epilogue & LM_LT_EPILOGUE_AUX))
    return NULL;
  return check(
      g, lt->cublasLtMatmulDescSetAttribute(*out, LM_LT_DESC_AUX_LD, &k->ld[2], sizeof k->ld[2]),
      "an epilogue");
}

// The addresses of the bias, of the input of gelu and of scales are part of the descriptor; the
// heuristic derives the alignment of the first two from them.
static lm_status addresses_set(const lm_cuda_gemms *g, const lm_cuda_call *x, const entry *e) {
  const struct {
    int attribute;
    lm_cuda_address at;
  } of[] = {{LM_LT_DESC_BIAS, x->epi.bias},
            {LM_LT_DESC_AUX, x->epi.gelu_input},
            {LM_LT_DESC_SCALE_A, x->scale_a},
            {LM_LT_DESC_SCALE_B, x->scale_b}};
  for (size_t i = 0; i < LM_COUNT(of); i++) {
    void *at = (void *)(uintptr_t)of[i].at;
    if (at)
      LM_TRY(check(g,
                   g->lt.cublasLtMatmulDescSetAttribute(e->desc, of[i].attribute, &at, sizeof at),
                   "an address of a descriptor"));
  }
  return NULL;
}

// If several blocks compute partial sums, they must be added in the compute type by a separate
// step. The library's other schemes, which it uses by default, add them in the result's type, often
// bf16, or in the order in which blocks finish, which is not deterministic.
static lm_status preference_set(const lm_cuda_gemms *g, const entry *e, void *preference) {
  const lm_cublaslt *lt = &g->lt;
  static const int attributes[4] = {LM_LT_PREF_ALIGN_A, LM_LT_PREF_ALIGN_B, LM_LT_PREF_ALIGN_C,
                                    LM_LT_PREF_ALIGN_D};
  const size_t workspace = LM_CUDA_WORKSPACE;
  const uint32_t reduction = LM_LT_REDUCTION_COMPUTE_TYPE;
  LM_TRY(check(g,
               lt->cublasLtMatmulPreferenceSetAttribute(preference, LM_LT_PREF_WORKSPACE,
                                                        &workspace, sizeof workspace),
               "a preference"));
  LM_TRY(check(g,
               lt->cublasLtMatmulPreferenceSetAttribute(preference, LM_LT_PREF_REDUCTION,
                                                        &reduction, sizeof reduction),
               "a preference"));
  for (int i = 0; i < 4; i++) {
    uint32_t align = (uint32_t)e->k.align[i];
    LM_TRY(check(
        g,
        lt->cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &align, sizeof align),
        "a preference"));
  }
  return NULL;
}

// *out_n is 0 if the library has no algorithm. Must not be called while the stream is recorded into
// a graph (cuBLASLt 13.3 fails epi), and is not: a function ran gelu_input with the same addresses
// when its graph is recorded.
static lm_status algorithms_query(const lm_cuda_gemms *g, const entry *e, int max,
                                  lm_lt_heuristic *out, int *out_n) {
  void *preference = NULL;
  *out_n = 0;
  LM_TRY(check(g, g->lt.cublasLtMatmulPreferenceCreate(&preference), "a preference"));
  lm_status s = preference_set(g, e, preference);
  int status = s ? 0
                 : g->lt.cublasLtMatmulAlgoGetHeuristic(g->handle, e->desc, e->layout[0],
                                                        e->layout[1], e->layout[2], e->layout[2],
                                                        preference, max, out, out_n);
  g->lt.cublasLtMatmulPreferenceDestroy(preference);
  if (!s && status != LM_LT_NOT_SUPPORTED)
    s = check(g, status, "choosing a GEMM algorithm");
  return s;
}

static const lm_cuda_choice *choice_find(const lm_cuda_choices *c, uint64_t gemm) {
  for (uint32_t i = 0; c && i < c->n; i++)
    if (c->v[i].gemm == gemm)
      return &c->v[i];
  return NULL;
}

static void algorithm_set(entry *e, const lm_lt_algo *algo, uint64_t workspace) {
  e->supported = true;
  e->algo = *algo;
  e->workspace = workspace;
}

static lm_status algorithm_find(const lm_cuda_gemms *g, entry *e) {
  const lm_cuda_choice *known = choice_find(g->choices, e->hash);
  lm_lt_heuristic best = {0};
  int n;
  if (known && known->workspace <= LM_CUDA_WORKSPACE) {
    algorithm_set(e, &known->algo, known->workspace);
    return NULL;
  }
  LM_TRY(algorithms_query(g, e, 1, &best, &n));
  if (n && !best.state)
    algorithm_set(e, &best.algo, best.workspace);
  return NULL;
}

static lm_status scales_check(const lm_cuda_gemms *g, const lm_cuda_call *x) {
  size_t version = g->lt.cublasLtGetVersion();
  for (int i = 0; i < 2; i++) {
    lm_scales_row row = lm_scales_of(x->scales[i]);
    if (version < row.since)
      return lm_fail(LM_ENV,
                     "a scale for each %d elements of a GEMM of 8-bit floats needs cuBLASLt %u; "
                     "this is %zu",
                     row.elements, row.since, version);
  }
  return NULL;
}

static lm_status entry_fill(const lm_cuda_gemms *g, const lm_cuda_call *x, entry *e) {
  LM_TRY(scales_check(g, x));
  LM_TRY(desc_make(g, &e->k, &e->desc));
  LM_TRY(addresses_set(g, x, e));
  for (int i = 0; i < 3; i++)
    LM_TRY(layout_make(g, &e->k, i, &e->layout[i]));
  return algorithm_find(g, e);
}

// The slot of the key's entry, or the empty slot for it. Decoding adds new keys with every token,
// so there may be thousands.
static uint32_t slot_find(const lm_cuda_gemms *g, const lm_cuda_key *k, uint64_t hash) {
  uint32_t i = (uint32_t)hash & (g->n_slots - 1);
  for (; g->slots[i]; i = (i + 1) & (g->n_slots - 1)) {
    const entry *e = &g->entries[g->slots[i] - 1];
    if (e->hash == hash && !memcmp(&e->k, k, sizeof *k))
      break;
  }
  return i;
}

static void slots_grow(lm_cuda_gemms *g) {
  if (2 * (g->n_entries + 1) <= g->n_slots)
    return;
  g->n_slots = g->n_slots ? 2 * g->n_slots : 256;
  g->slots = LM_NEW_N(g->arena, uint32_t, g->n_slots);
  for (uint32_t i = 0; i < g->n_entries; i++)
    g->slots[slot_find(g, &g->entries[i].k, g->entries[i].hash)] = i + 1;
}

static lm_status entry_find(lm_cuda_gemms *g, const lm_cuda_call *x, const lm_cuda_key *k,
                            entry **out) {
  slots_grow(g);
  uint64_t hash = lm_hash(k, sizeof *k, 0);
  uint32_t slot = slot_find(g, k, hash);
  if (g->slots[slot]) {
    *out = &g->entries[g->slots[slot] - 1];
    return NULL;
  }
  entry e = {
      .hash = hash,
      .k = *k,
  };
  lm_status s = entry_fill(g, x, &e);
  if (s) {
    entry_free(g, &e);
    return s;
  }
  LM_PUSH(g->arena, g->entries, g->n_entries, g->cap_entries) = e;
  g->slots[slot] = g->n_entries;
  *out = &g->entries[g->n_entries - 1];
  return NULL;
}

// ---- the library's call

static int library_call(const lm_cuda_gemms *g, const lm_cuda_call *x, const entry *e,
                        lm_cuda_address workspace) {
  const double one_f64 = 1, zero_f64 = 0;
  const float one = 1, zero = 0;
  bool wide = x->aa == LM_F64;
  bool add = x->p.add || x->epi.residual;
  const void *alpha = wide ? (const void *)&one_f64 : &one;
  const void *beta =
      wide ? (add ? (const void *)&one_f64 : &zero_f64) : (add ? (const void *)&one : &zero);
  lm_cuda_address c = x->epi.residual ? x->epi.residual : x->c;
#define AT(address) ((void *)(uintptr_t)(address))
  return g->lt.cublasLtMatmul(g->handle, e->desc, alpha, AT(x->a), e->layout[0], AT(x->b),
                              e->layout[1], beta, AT(c), e->layout[2], AT(x->c), e->layout[2],
                              &e->algo, AT(workspace), e->workspace, g->builtins->stream);
#undef AT
}

// ---- measuring

// Seconds of one call, minimum of several measurements; HUGE_VAL if the library rejects the
// algorithm.
static lm_status algorithm_time(const lm_cuda_gemms *g, const lm_cuda_call *x, const entry *e,
                                lm_cuda_address workspace, double *out) {
  enum {
    TIMES = 4,
    CALLS = 5
  };
  const lm_cuda_driver *d = g->builtins->driver;
  *out = HUGE_VAL;
  for (int i = 0; i < TIMES; i++) { // the first iteration loads code
    float ms = 0;
    LM_TRY(lm_cuda_check(d, d->cuEventRecord(g->from, g->builtins->stream), "measuring GEMMs"));
    for (int k = 0; k < CALLS; k++)
      if (library_call(g, x, e, workspace))
        return NULL;
    LM_TRY(lm_cuda_check(d, d->cuEventRecord(g->to, g->builtins->stream), "measuring GEMMs"));
    LM_TRY(lm_cuda_check(d, d->cuEventSynchronize(g->to), "measuring GEMMs"));
    LM_TRY(lm_cuda_check(d, d->cuEventElapsedTime(&ms, g->from, g->to), "measuring GEMMs"));
    if (i && 1e-3 * ms / CALLS < *out)
      *out = 1e-3 * ms / CALLS;
  }
  return NULL;
}

// Measures the heuristic's candidates. Another than the first is taken only if it is clearly
// faster.
static lm_status entry_measure(lm_cuda_gemms *g, const lm_cuda_call *x, entry *e,
                               lm_cuda_address workspace) {
  static const double MARGIN = 1.02;
  lm_lt_heuristic candidates[LM_LT_CANDIDATES];
  entry best = *e;
  double first = HUGE_VAL, best_time = HUGE_VAL;
  int n;
  LM_TRY(addresses_set(g, x, e));
  LM_TRY(algorithms_query(g, e, LM_LT_CANDIDATES, candidates, &n));
  for (int i = 0; i < n; i++) {
    entry other = *e;
    double time;
    if (candidates[i].state || candidates[i].workspace > LM_CUDA_WORKSPACE)
      continue;
    algorithm_set(&other, &candidates[i].algo, candidates[i].workspace);
    LM_TRY(algorithm_time(g, x, &other, workspace, &time));
    if (!i)
      first = time;
    if (time * (i ? MARGIN : 1) >= best_time)
      continue;
    best_time = time;
    best = other;
  }
  *e = best;
  LM_PUSH(g->choices->arena, g->choices->v, g->choices->n, g->choices->cap) =
      (lm_cuda_choice){.gemm = e->hash,
                       .algo = e->algo,
                       .workspace = e->workspace,
                       .gain = best_time > 0 && first < HUGE_VAL ? first / best_time : 1};
  g->choices->measured++;
  return NULL;
}

// GEMMs beyond the budget get the heuristic's algorithm, recorded so that a resumed run uses it
// too.
static lm_status entry_choose(lm_cuda_gemms *g, const lm_cuda_call *x, entry *e,
                              lm_cuda_address workspace) {
  if (!e->supported || choice_find(g->choices, e->hash))
    return NULL;
  if (lm_now() < g->deadline)
    return entry_measure(g, x, e, workspace);
  LM_PUSH(g->choices->arena, g->choices->v, g->choices->n, g->choices->cap) = (lm_cuda_choice){
      .gemm = e->hash,
      .algo = e->algo,
      .workspace = e->workspace,
  };
  return NULL;
}

lm_status lm_cuda_gemms_measure(lm_cuda_gemms *g, bool on) {
  const lm_cuda_driver *d = g->builtins->driver;
  g->measuring = on;
  g->deadline = lm_now() + (on ? g->choices->budget : 0);
  if (on) {
    LM_TRY(lm_cuda_check(d, d->cuEventCreate(&g->from, 0), "an event"));
    return lm_cuda_check(d, d->cuEventCreate(&g->to, 0), "an event");
  }
  if (g->from)
    d->cuEventDestroy_v2(g->from);
  if (g->to)
    d->cuEventDestroy_v2(g->to);
  g->from = g->to = NULL;
  return NULL;
}

// ---- GEMMs that the library refuses

// Seconds of the builtin loop, at least: its instructions for each term of a sum are two loads, a
// multiplication, and the addresses and counter of the next term.
static double loop_seconds(const lm_target *t, const lm_plan_step *s) {
  static const double INSTRUCTIONS = 8;
  double terms = (double)s->flops / 2;
  return t->rates.lanes > 0 ? terms * INSTRUCTIONS / t->rates.lanes : 0;
}

static bool is_reported(const lm_cuda_gemms *g, const lm_plan_step *s) {
  for (uint32_t i = 0; i < g->n_slow; i++)
    if (g->slow[i] == s)
      return true;
  return false;
}

// Reports a GEMM, once, that takes much longer than by the library. known: the library takes its
// types and strides.
static void slow_report(lm_cuda_gemms *g, const lm_cuda_call *x, bool known) {
  static const double MUCH = 1e-4; // seconds
  const lm_target *t = &g->device->target;
  const lm_plan_step *s = x->step;
  double flops = (double)s->flops;
  double loop = loop_seconds(t, s);
  double usual = lm_target_seconds(t, (lm_dtype)x->aa, flops, (double)s->moved, NULL);
  if (!g->warning || loop - usual < MUCH || is_reported(g, s))
    return;
  lm_buf text = {0};
  lm_buf_printf(&text, "the GEMM of %s is slow on %s: ", s->label, g->device->name);
  lm_buf_printf(&text,
                known ? "cuBLASLt %llu has no algorithm for it (%s, m = %lld, n = %lld, "
                        "k = %lld)"
                      : "cuBLASLt %llu does not take its strides or types (%s, m = %lld, "
                        "n = %lld, k = %lld)",
                (unsigned long long)g->lt.cublasLtGetVersion(), lm_dtype_name((lm_dtype)x->aa),
                (long long)x->p.m, (long long)x->p.n, (long long)x->p.k);
  lm_buf_printf(&text, "; a loop without tensor cores computes it, in %.2g ms or more", 1e3 * loop);
  lm_buf_printf(&text, " instead of about %.2g ms", 1e3 * usual);
  g->warning(g->warning_user, text.p);
  lm_buf_free(&text);
  LM_PUSH(g->arena, g->slow, g->n_slow, g->cap_slow) = s;
}

// ---- calls

static lm_status loop_run(const lm_cuda_gemms *g, const lm_cuda_call *x) {
  if (x->scale_a)
    return lm_fail(LM_ENV,
                   "cuBLASLt %llu has no algorithm for a GEMM of %s with %s: m = %lld, n = %lld, "
                   "k = %lld; `precision { keep bf16 = [@NAME] }` exempts the parameter",
                   (unsigned long long)g->lt.cublasLtGetVersion(), lm_dtype_name((lm_dtype)x->aa),
                   lm_dtype_name((lm_dtype)x->bb), (long long)x->p.m, (long long)x->p.n,
                   (long long)x->p.k);
  int64_t ab = lm_dtype_bytes((lm_dtype)x->aa);
  int64_t cc = lm_dtype_bytes((lm_dtype)x->cc);
  for (int64_t i = 0; i < x->batch.size; i++)
    LM_TRY(lm_cuda_small_gemm_run(
        g->builtins, &x->p, x->aa, x->cc, x->a + (uint64_t)(i * x->batch.a * ab),
        x->b + (uint64_t)(i * x->batch.b * ab), x->c + (uint64_t)(i * x->batch.c * cc)));
  return NULL;
}

// Without the library's epilogue: the GEMM, added to the residual, and epi a builtin kernel that
// applies the rest of the epilogue to the dense result.
static lm_status parts_run(lm_cuda_gemms *g, const lm_cuda_call *x, lm_cuda_address workspace) {
  const lm_cuda_driver *d = g->builtins->driver;
  const lm_cuda_small_gemm *p = &x->p;
  lm_cuda_call plain = *x;
  plain.p.add = x->epi.residual != 0;
  plain.epi = (lm_cuda_epilogue){0};
  size_t bytes = (size_t)(p->m * p->n * lm_dtype_bytes((lm_dtype)x->cc));
  bool separate = x->epi.residual && x->epi.residual != x->c;
  if (separate && !g->measuring)
    LM_TRY(lm_cuda_check(
        d, d->cuMemcpyDtoDAsync_v2(x->c, x->epi.residual, bytes, g->builtins->stream), "copy"));
  LM_TRY(lm_cuda_call_run(g, &plain, workspace));
  if (g->measuring || (!x->epi.bias && !x->epi.gelu))
    return NULL;
  lm_cuda_finish f = {p->m * p->n, x->epi.row, x->epi.gelu, 0};
  return lm_cuda_finish_run(g->builtins, &f, x->cc, x->c, x->epi.bias, x->epi.gelu_input);
}

lm_status lm_cuda_call_run(lm_cuda_gemms *g, const lm_cuda_call *x, lm_cuda_address workspace) {
  lm_cuda_call other = lm_cuda_call_transposed(x);
  lm_cuda_key k;
  const lm_cuda_call *fit = lm_cuda_key_make(x, &k)        ? x
                            : lm_cuda_key_make(&other, &k) ? &other
                                                           : NULL;
  bool plain = lm_cuda_epilogue_number(&x->epi) == LM_LT_EPILOGUE_NONE && !x->epi.residual;
  entry *e = NULL;
  if (fit && lm_cuda_types_known(x))
    LM_TRY(entry_find(g, fit, &k, &e));
  if (!plain && !(e && e->supported))
    return parts_run(g, x, workspace);
  bool refused = !e || !e->supported;
  if (refused && !x->scale_a)
    slow_report(g, x, e);
  if (g->measuring)
    return e ? entry_choose(g, fit, e, workspace) : NULL;
  if (refused)
    return loop_run(g, x);
  LM_TRY(addresses_set(g, fit, e));
  return check(g, library_call(g, fit, e, workspace), "a GEMM");
}

const lm_cuda_builtins *lm_cuda_gemms_builtins(const lm_cuda_gemms *g) {
  return g->builtins;
}
