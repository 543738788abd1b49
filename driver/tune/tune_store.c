// tune_store.c - lists of tuned GEMMs as JSON.
#include "driver/tune/tune_store.h"

#include "driver/tune/tune_variant.h"
#include "runtime/base/cache.h"
#include "runtime/io/json.h"

enum {
  VERSION = 3, // another one whenever what lm_cuda_key holds changes
  MOST_BYTES = 16 << 20
};

lm_status lm_tune_list_write(const char *path, const lm_session *pinned_by, const char *head,
                             uint32_t n, bool (*print)(const void *user, uint32_t i, lm_buf *b),
                             const void *user) {
  lm_buf b = {0};
  lm_buf gemm = {0};
  const char *between = "\n";
  lm_buf_printf(&b, "{\"version\": %d, %s, \"gemms\": [", VERSION, head);
  for (uint32_t i = 0; i < n; i++) {
    gemm.n = 0;
    if (!print(user, i, &gemm))
      continue;
    lm_buf_printf(&b, "%s  ", between);
    lm_buf_add(&b, gemm.p, gemm.n);
    between = ",\n";
  }
  lm_buf_puts(&b, "\n]}\n");
  lm_status s =
      pinned_by ? lm_file_write_atomic(path, b.p, b.n) : lm_cache_file_write(path, b.p, b.n);
  lm_buf_free(&gemm);
  lm_buf_free(&b);
  return s;
}

static lm_status tune_store_parse(const char *path, json_t *j, const lm_tune_reader *r) {
  int version;
  json_t *gemms;
  lm_json_rename(j, "products", "gemms");
  if (!json_unpack(j, "{s:i}", "version", &version) && version != VERSION)
    return lm_fail(LM_USER,
                   "%s: a list of %s from another version of lmc; without it they are measured "
                   "again",
                   path, r->what);
  if (json_unpack(j, "{s:i, s:o}", "version", &version, "gemms", &gemms) || !json_is_array(gemms) ||
      !r->head(r->user, j))
    return lm_fail(LM_USER, "%s: not a list of %s; without it they are measured again", path,
                   r->what);
  if (r->fits)
    LM_TRY(r->fits(r->user, path));
  if (r->pinned_by && !lm_tune_step_recall(r->pinned_by, json_object_get(j, "step")))
    return lm_fail(LM_USER, "%s: its step is malformed; without the file it is measured again",
                   path);
  for (size_t i = 0; i < json_array_size(gemms); i++)
    if (!r->gemm(r->user, json_array_get(gemms, i)))
      return lm_fail(LM_USER, "%s: GEMM %zu is malformed; without the file they are measured again",
                     path, i + 1);
  return NULL;
}

lm_status lm_tune_list_read(const char *path, const lm_tune_reader *r) {
  json_t *j = NULL;
  lm_buf text = {0};
  lm_status s = r->pinned_by ? lm_file_read(path, MOST_BYTES, &text)
                             : lm_cache_file_read(path, MOST_BYTES, &text);
  if (!s)
    s = lm_json_parse(text.p, text.n, path, &j);
  if (!s)
    s = tune_store_parse(path, j, r);
  json_decref(j);
  lm_buf_free(&text);
  return s;
}
