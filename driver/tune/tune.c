// tune.c - tilings of GEMMs on the CPU, in run folders and in the cache.
#include "driver/tune/tune.h"

#include <string.h>
#include <unistd.h>

#include "driver/tune/tune_gemm_cuda.h"
#include "driver/tune/tune_machine.h"
#include "driver/tune/tune_store.h"
#include "driver/tune/tune_variant.h"
#include "runtime/base/cache.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/tune.h"

static void tiling_print(const lm_gemm_tiling *c, lm_buf *b) {
  const lm_gemm_key *k = &c->key;
  lm_buf_printf(b,
                "{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"a\": [%lld, %lld], \"b\": [%lld, %lld], "
                "\"c\": [%lld, %lld], ",
                (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->a_m,
                (long long)k->a_k, (long long)k->b_k, (long long)k->b_n, (long long)k->c_m,
                (long long)k->c_n);
  lm_buf_printf(
      b, "\"batch\": %lld, \"sum\": %lld, \"add\": %s, \"type\": \"%s\", \"result\": \"%s\", ",
      (long long)k->batches, (long long)k->sums, k->accumulate ? "true" : "false",
      lm_dtype_name((lm_dtype)k->ab), lm_dtype_name((lm_dtype)k->cc));
  lm_buf_printf(b, "\"tile\": [%lld, %lld], \"code\": %s, \"gain\": %.3f}", (long long)c->tile.m,
                (long long)c->tile.n, c->tile.code ? "true" : "false", c->gain);
}

typedef struct written {
  const lm_gemm_tilings *tilings;
  bool only_measured;
} written;

static bool written_print(const void *user, uint32_t i, lm_buf *b) {
  const written *x = user;
  if (x->only_measured && !x->tilings->v[i].gain)
    return false;
  tiling_print(&x->tilings->v[i], b);
  return true;
}

// pinned_by: the session whose run pins them; NULL: for the cache, which others read, only measured
// tilings.
static lm_status tilings_write(lm_arena *a, const lm_cpu_info *cpu, const lm_gemm_tilings *tilings,
                               const lm_session *pinned_by, const char *path) {
  lm_buf head = {0};
  lm_buf_puts(&head, "\"processor\": ");
  lm_buf_json(&head, lm_tune_processor(a, cpu));
  lm_buf_puts(&head, ", \"onednn\": ");
  lm_buf_json(&head, cpu->onednn);
  if (pinned_by)
    lm_tune_step_pin(pinned_by, &head);
  lm_status s = lm_tune_list_write(path, pinned_by, head.p, tilings->n, written_print,
                                   &(written){tilings, !pinned_by});
  lm_buf_free(&head);
  return s;
}

static bool dtype_read(const char *name, int64_t *out) {
  static const lm_dtype types[] = {LM_F32, LM_BF16};
  for (size_t i = 0; i < LM_COUNT(types); i++) {
    if (strcmp(name, lm_dtype_name(types[i])))
      continue;
    *out = types[i];
    return true;
  }
  return false;
}

static bool tiling_read(json_t *j, lm_gemm_tiling *out) {
  json_int_t m, n, k, a[2], b[2], c[2], batch, sum, tile[2];
  const char *type;
  const char *result;
  int add;
  int code;
  if (json_unpack_ex(
          j, NULL, JSON_STRICT,
          "{s:I, s:I, s:I, s:[II], s:[II], s:[II], s:I, s:I, s:b, s:s, s:s, s:[II], s:b, s:F}", "m",
          &m, "n", &n, "k", &k, "a", &a[0], &a[1], "b", &b[0], &b[1], "c", &c[0], &c[1], "batch",
          &batch, "sum", &sum, "add", &add, "type", &type, "result", &result, "tile", &tile[0],
          &tile[1], "code", &code, "gain", &out->gain))
    return false;
  out->key = (lm_gemm_key){.m = m,
                           .n = n,
                           .k = k,
                           .a_m = a[0],
                           .a_k = a[1],
                           .b_k = b[0],
                           .b_n = b[1],
                           .c_m = c[0],
                           .c_n = c[1],
                           .batches = batch,
                           .sums = sum,
                           .accumulate = add};
  out->tile = (lm_tile){tile[0], tile[1], code};
  bool valid = tile[0] > 0 && tile[0] <= INT32_MAX && tile[1] > 0 && tile[1] <= INT32_MAX;
  return valid && dtype_read(type, &out->key.ab) && dtype_read(result, &out->key.cc) &&
         out->gain >= 0;
}

typedef struct reading {
  lm_arena *a;
  const lm_cpu_info *cpu;
  lm_gemm_tilings *out;
  const char *processor;
  const char *onednn;
} reading;

static bool head_read(void *user, json_t *list) {
  reading *r = user;
  return !json_unpack(list, "{s:s, s:s}", "processor", &r->processor, "onednn", &r->onednn);
}

static lm_status head_fits(void *user, const char *path) {
  const reading *r = user;
  const char *here = lm_tune_processor(r->a, r->cpu);
  if (!strcmp(r->processor, here) && !strcmp(r->onednn, r->cpu->onednn))
    return NULL;
  return lm_fail(LM_USER,
                 "%s: made on %s with oneDNN %s, not %s with oneDNN %s; without it GEMMs are "
                 "measured again, and the run continues with other rounding",
                 path, r->processor, r->onednn, here, r->cpu->onednn);
}

static bool gemm_read(void *user, json_t *gemm) {
  const reading *r = user;
  lm_gemm_tiling tiling;
  if (!tiling_read(gemm, &tiling))
    return false;
  LM_PUSH(r->a, r->out->v, r->out->n, r->out->cap) = tiling;
  return true;
}

static lm_status tilings_read(lm_arena *a, const lm_cpu_info *cpu, lm_session *pinned_by,
                              const char *path, lm_gemm_tilings *out) {
  reading r = {
      .a = a,
      .cpu = cpu,
      .out = out,
  };
  return lm_tune_list_read(
      path, &(lm_tune_reader){"tilings of GEMMs", head_read, head_fits, gemm_read, &r, pinned_by});
}

// ---- the cache

static lm_status cache_path(lm_arena *a, const lm_cpu_info *cpu, int threads, const char **out) {
  const char *dir;
  LM_TRY(lm_cache_dir(a, &dir));
  const char *parts[] = {lm_tune_processor(a, cpu),
                         lm_arena_printf(a, "%016llx", (unsigned long long)cpu->features),
                         cpu->onednn, lm_arena_printf(a, "%d", threads)};
  *out =
      lm_arena_printf(a, "%s/tuned-%s.json", dir, lm_cache_key_make(parts, LM_COUNT(parts)).text);
  return NULL;
}

// A file that cannot be read or trusted counts as absent.
static lm_gemm_tilings cache_read(lm_arena *a, const lm_cpu_info *cpu, const char *path) {
  lm_gemm_tilings tilings = {0};
  lm_status s = tilings_read(a, cpu, NULL, path, &tilings);
  if (s)
    tilings = (lm_gemm_tilings){0};
  lm_status_free(s);
  return tilings;
}

static void merge(lm_arena *a, lm_gemm_tilings *known, const lm_gemm_tilings *found) {
  for (uint32_t i = 0; i < found->n; i++)
    if (!lm_gemm_tilings_find(known, &found->v[i].key))
      LM_PUSH(a, known->v, known->n, known->cap) = found->v[i];
}

// ---- finding

static void progress(void *user, int done, int all, double left) {
  const lm_session *s = user;
  if (done == all)
    lm_event_progress_end(s->project.events);
  else
    lm_event_progress(s->project.events, "measuring GEMMs: %d of %d, at most %.0f s left", done,
                      all, left);
}

static lm_status measure(lm_session *s, const lm_cpu_info *cpu, int threads) {
  lm_arena *a = s->project.ctx->arena;
  lm_tuning *t = &s->tuning;
  const char *path;
  lm_kernels kernels;
  LM_TRY(cache_path(a, cpu, threads, &path));
  lm_gemm_tilings known = cache_read(a, cpu, path);
  lm_status status = lm_kernels_load(s->compiled.plan, &(lm_exec_options){.load_dir = s->load_dir},
                                     threads, &kernels);
  lm_tune_options o = {.threads = threads,
                       .kernels = kernels.fn,
                       .budget = lm_tune_budget(s),
                       .progress = progress,
                       .user = s};
  if (!status)
    lm_cpu_tune(a, s->compiled.plan, &o, &known, &t->tilings, &t->measured);
  lm_kernels_unload(&kernels);
  if (status)
    return status;
  if (!t->measured)
    return NULL;
  merge(a, &known, &t->tilings);
  return tilings_write(a, cpu, &known, NULL, path);
}

lm_status lm_tune_recall(lm_session *s, const char *run) {
  const char *path = lm_path_join(s->project.ctx->arena, run, "tuned.json");
  lm_cpu_info cpu;
  if (!lm_tune_is_requested(s))
    return NULL;
  s->tuning.recalled = !access(path, F_OK);
  if (!s->tuning.recalled)
    return NULL;
  if (s->target.kind == LM_TARGET_CUDA)
    return lm_tune_gpu_recall(s, path);
  lm_cpu_detect(&cpu);
  return tilings_read(s->project.ctx->arena, &cpu, s, path, &s->tuning.tilings);
}

lm_status lm_tune_find(lm_session *s, int threads) {
  lm_tuning *t = &s->tuning;
  lm_cpu_info cpu;
  if (!lm_tune_is_requested(s))
    return NULL;
  if (s->target.kind == LM_TARGET_CUDA)
    return t->recalled ? NULL : lm_tune_gpu_find(s);
  lm_cpu_detect(&cpu);
  if (!t->recalled)
    LM_TRY(measure(s, &cpu, threads > 0 ? threads : cpu.cores));
  t->gemms = (int)t->tilings.n;
  for (uint32_t i = 0; i < t->tilings.n; i++)
    t->chosen += t->tilings.v[i].gain > 1;
  return NULL;
}

lm_status lm_tune_write(const lm_session *s, const char *dir) {
  lm_arena *a = s->project.ctx->arena;
  lm_cpu_info cpu;
  if (!lm_tune_is_requested(s))
    return NULL;
  const char *path = lm_path_join(a, dir, "tuned.json");
  if (s->target.kind == LM_TARGET_CUDA)
    return lm_tune_gpu_write(s, path);
  lm_cpu_detect(&cpu);
  return tilings_write(a, &cpu, &s->tuning.tilings, s, path);
}
