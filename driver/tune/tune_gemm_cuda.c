// tune_gemm_cuda.c - algorithms of GEMMs on GPUs, in run folders and in the cache.
#include "driver/tune/tune_gemm_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/tune/tune_machine.h"
#include "driver/tune/tune_store.h"
#include "driver/tune/tune_variant.h"
#include "runtime/base/cache.h"
#include "runtime/cuda/gemm.h"
#include "runtime/io/json.h"

// ---- text

static void choice_print(const lm_cuda_choice *c, lm_buf *b) {
  lm_buf_printf(b, "{\"gemm\": \"%016llx\", \"algorithm\": \"", (unsigned long long)c->gemm);
  for (size_t i = 0; i < LM_COUNT(c->algo.data); i++)
    lm_buf_printf(b, "%016llx", (unsigned long long)c->algo.data[i]);
  lm_buf_printf(b, "\", \"workspace\": %llu, \"gain\": %.3f}", (unsigned long long)c->workspace,
                c->gain);
}

typedef struct written {
  const lm_cuda_choices *choices;
  bool only_measured;
} written;

static bool written_print(const void *user, uint32_t i, lm_buf *b) {
  const written *x = user;
  if (x->only_measured && !x->choices->v[i].gain)
    return false;
  choice_print(&x->choices->v[i], b);
  return true;
}

// pinned_by: the session whose run pins them; NULL: for the cache, which others read, only measured
// algorithms.
static lm_status choices_write(const lm_cuda_choices *c, const lm_session *pinned_by,
                               const char *path) {
  lm_buf head = {0};
  lm_buf_puts(&head, "\"gpu\": ");
  lm_buf_json(&head, c->device);
  lm_buf_printf(&head, ", \"cublaslt\": %llu", (unsigned long long)c->version);
  if (pinned_by)
    lm_tune_step_pin(pinned_by, &head);
  lm_status s =
      lm_tune_list_write(path, pinned_by, head.p, c->n, written_print, &(written){c, !pinned_by});
  lm_buf_free(&head);
  return s;
}

static bool words_read(const char *text, uint64_t *out, size_t n) {
  if (strlen(text) != 16 * n || strspn(text, "0123456789abcdef") != 16 * n)
    return false;
  for (size_t i = 0; i < n; i++) {
    char word[17] = {0};
    memcpy(word, text + 16 * i, 16);
    out[i] = strtoull(word, NULL, 16);
  }
  return true;
}

static bool choice_read(json_t *j, lm_cuda_choice *out) {
  const char *gemm;
  const char *algorithm;
  json_int_t workspace;
  lm_json_rename(j, "product", "gemm");
  if (json_unpack_ex(j, NULL, JSON_STRICT, "{s:s, s:s, s:I, s:F}", "gemm", &gemm, "algorithm",
                     &algorithm, "workspace", &workspace, "gain", &out->gain))
    return false;
  out->workspace = (uint64_t)workspace;
  return workspace >= 0 && workspace <= LM_CUDA_WORKSPACE && out->gain >= 0 &&
         words_read(gemm, &out->gemm, 1) &&
         words_read(algorithm, out->algo.data, LM_COUNT(out->algo.data));
}

static bool head_read(void *user, json_t *list) {
  lm_cuda_choices *out = user;
  const char *gpu;
  json_int_t cublaslt;
  if (json_unpack(list, "{s:s, s:I}", "gpu", &gpu, "cublaslt", &cublaslt))
    return false;
  out->device = lm_arena_printf(out->arena, "%s", gpu);
  out->version = (uint64_t)cublaslt;
  return true;
}

static bool gemm_read(void *user, json_t *gemm) {
  lm_cuda_choices *out = user;
  lm_cuda_choice c;
  if (!choice_read(gemm, &c))
    return false;
  LM_PUSH(out->arena, out->v, out->n, out->cap) = c;
  return true;
}

static lm_status choices_read(lm_session *pinned_by, const char *path, lm_cuda_choices *out) {
  return lm_tune_list_read(path, &(lm_tune_reader){"algorithms of GEMMs on a GPU", head_read, NULL,
                                                   gemm_read, out, pinned_by});
}

// ---- the cache

static lm_status cache_path(const lm_session *s, const char **out) {
  lm_arena *a = s->project.ctx->arena;
  const char *dir;
  const char *parts[] = {"gpu", s->target.arch};
  LM_TRY(lm_cache_dir(a, &dir));
  *out =
      lm_arena_printf(a, "%s/tuned-%s.json", dir, lm_cache_key_make(parts, LM_COUNT(parts)).text);
  return NULL;
}

// ---- finding

static lm_cuda_choices choices_none(const lm_session *s) {
  return (lm_cuda_choices){
      .arena = s->project.ctx->arena,
      .budget = lm_tune_budget(s),
  };
}

lm_status lm_tune_gpu_recall(lm_session *s, const char *path) {
  lm_cuda_choices *c = s->tuning.choices = LM_NEW(s->project.ctx->arena, lm_cuda_choices);
  *c = choices_none(s);
  c->pinned = true;
  return choices_read(s, path, c);
}

lm_status lm_tune_gpu_find(lm_session *s) {
  lm_cuda_choices *c = s->tuning.choices = LM_NEW(s->project.ctx->arena, lm_cuda_choices);
  const char *path;
  *c = choices_none(s);
  LM_TRY(cache_path(s, &path));
  lm_status status = choices_read(NULL, path, c);
  if (status)
    *c = choices_none(s); // a file that cannot be read or trusted counts as absent
  lm_status_free(status);
  return NULL;
}

lm_status lm_tune_gpu_keep(lm_session *s) {
  const lm_cuda_choices *c = s->tuning.choices;
  const char *path;
  s->tuning.gemms = (int)c->n;
  s->tuning.measured = c->measured;
  for (uint32_t i = 0; i < c->n; i++)
    s->tuning.chosen += c->v[i].gain > 1;
  if (!c->measured)
    return NULL;
  LM_TRY(cache_path(s, &path));
  return choices_write(c, NULL, path);
}

lm_status lm_tune_gpu_write(const lm_session *s, const char *path) {
  return choices_write(s->tuning.choices, s, path);
}
