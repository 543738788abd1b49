// tuned_gpu.c - see tuned_gpu.h.
#include "lmc/tuned_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/cache.h"
#include "runtime/cuda/gemm.h"
#include "runtime/io/json.h"

enum { VERSION = 2, MOST_BYTES = 16 << 20 };

// ---- text

static void choice_print(const lm_cuda_choice *c, lm_buf *b) {
  lm_buf_printf(b, "  {\"product\": \"%016llx\", \"algorithm\": \"", (unsigned long long)c->product);
  for (size_t i = 0; i < LM_COUNT(c->algo.data); i++) lm_buf_printf(b, "%016llx", (unsigned long long)c->algo.data[i]);
  lm_buf_printf(b, "\", \"workspace\": %llu, \"gain\": %.3f}", (unsigned long long)c->workspace, c->gain);
}

// only_measured: for the cache, which others read.
static lm_status choices_write(const lm_cuda_choices *c, bool only_measured, const char *path) {
  lm_buf b = {0};
  const char *between = "\n";
  lm_buf_printf(&b, "{\"version\": %d, \"gpu\": ", VERSION);
  lm_buf_json(&b, c->device);
  lm_buf_printf(&b, ", \"cublaslt\": %llu, \"products\": [", (unsigned long long)c->version);
  for (uint32_t i = 0; i < c->n; i++) {
    if (only_measured && !c->v[i].gain) continue;
    lm_buf_puts(&b, between);
    choice_print(&c->v[i], &b);
    between = ",\n";
  }
  lm_buf_puts(&b, "\n]}\n");
  lm_status s = lm_file_write_atomic(path, b.p, b.n);
  lm_buf_free(&b);
  return s;
}

static bool words_read(const char *text, uint64_t *out, size_t n) {
  if (strlen(text) != 16 * n || strspn(text, "0123456789abcdef") != 16 * n) return false;
  for (size_t i = 0; i < n; i++) {
    char word[17] = {0};
    memcpy(word, text + 16 * i, 16);
    out[i] = strtoull(word, NULL, 16);
  }
  return true;
}

static bool choice_read(json_t *j, lm_cuda_choice *out) {
  const char *product, *algorithm;
  json_int_t workspace;
  if (json_unpack_ex(j, NULL, JSON_STRICT, "{s:s, s:s, s:I, s:F}", "product", &product, "algorithm", &algorithm, "workspace", &workspace, "gain", &out->gain)) return false;
  out->workspace = (uint64_t)workspace;
  return workspace >= 0 && workspace <= LM_CUDA_WORKSPACE && out->gain >= 0 && words_read(product, &out->product, 1) &&
         words_read(algorithm, out->algo.data, LM_COUNT(out->algo.data));
}

static lm_status choices_parse(json_t *j, const char *path, lm_cuda_choices *out) {
  const char *gpu;
  json_int_t cublaslt;
  int version;
  json_t *products;
  if (json_unpack(j, "{s:i, s:s, s:I, s:o}", "version", &version, "gpu", &gpu, "cublaslt", &cublaslt, "products", &products) || version != VERSION || !json_is_array(products))
    return lm_fail(LM_USER, "%s: not how products are computed on a GPU; without it they are measured anew", path);
  out->device = lm_arena_printf(out->arena, "%s", gpu);
  out->version = (uint64_t)cublaslt;
  for (size_t i = 0; i < json_array_size(products); i++) {
    lm_cuda_choice c;
    if (!choice_read(json_array_get(products, i), &c)) return lm_fail(LM_USER, "%s: product %zu is none; without the file they are measured anew", path, i + 1);
    LM_PUSH(out->arena, out->v, out->n, out->cap) = c;
  }
  return NULL;
}

static lm_status choices_read(const char *path, lm_cuda_choices *out) {
  json_t *j;
  LM_TRY(lm_json_read(path, MOST_BYTES, &j));
  lm_status s = choices_parse(j, path, out);
  json_decref(j);
  return s;
}

// ---- the cache

static lm_status cache_path(const lm_session *s, const char **out) {
  lm_arena *a = s->ctx->arena;
  const char *dir, *parts[] = {"gpu", s->target.arch};
  LM_TRY(lm_cache_open(a, &dir));
  *out = lm_arena_printf(a, "%s/tuned-%s.json", dir, lm_cache_key_make(parts, LM_COUNT(parts)).text);
  return NULL;
}

// ---- finding

static lm_cuda_choices choices_none(const lm_session *s) { return (lm_cuda_choices){.arena = s->ctx->arena, .budget = s->recipe->compile_budget}; }

lm_status lm_tuned_gpu_find(lm_session *s, const char *lock) {
  lm_cuda_choices *c = s->tuned.choices = LM_NEW(s->ctx->arena, lm_cuda_choices);
  const char *path;
  *c = choices_none(s);
  c->locked = lock != NULL;
  if (lock) return choices_read(lock, c);
  LM_TRY(cache_path(s, &path));
  lm_status status = access(path, R_OK) ? NULL : choices_read(path, c);
  if (status) *c = choices_none(s);    // what can't be read is as good as absent
  lm_status_free(status);
  return NULL;
}

lm_status lm_tuned_gpu_keep(lm_session *s) {
  const lm_cuda_choices *c = s->tuned.choices;
  const char *path;
  s->tuned.products = (int)c->n;
  s->tuned.measured = c->measured;
  for (uint32_t i = 0; i < c->n; i++) s->tuned.chosen += c->v[i].gain > 1;
  if (!c->measured) return NULL;
  LM_TRY(cache_path(s, &path));
  return choices_write(c, true, path);
}

lm_status lm_tuned_gpu_write(const lm_session *s, const char *path) { return choices_write(s->tuned.choices, false, path); }
