// sources_fuzz.c - text, JSON lines, packed files and files of the cache. The first byte chooses which.
#include "runtime/data/data.h"
#include "runtime/data/store.h"
#include "tests/fuzz/fuzz.h"

enum { SEQ = 8 };

static void data_read(const lm_data *d) {
  int32_t column[4][SEQ];
  float w[SEQ];
  lm_batch b = {column[0], column[1], column[2], column[3], w};
  for (int64_t q = 0; q < lm_data_part(d, 0).rows; q++) lm_status_free(lm_data_fill(d, q, 0, 1, 1, &b));
}

static void source_open(lm_source_kind kind, const char *path, const char *split) {
  lm_tokenizer *t = lm_tokenizer_bytes_create();
  lm_data_source s = {kind, "fuzz", path, split};
  lm_data_options o = {.sources = &s, .n_sources = 1, .tokenizer = t, .seq = SEQ, .bad = 1, .threads = 1};
  lm_data *d;
  lm_status status = lm_data_open(&o, &d);
  if (!status) data_read(d);
  lm_data_close(d);
  lm_status_free(status);
  lm_tokenizer_destroy(t);
}

static void store_open(const char *path) {
  lm_store *s;
  lm_status_free(lm_store_open(path, 1, &s));
  if (s) lm_status_free(lm_store_check(s, 0, s->n));
  lm_store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n) return 0;
  int what = data[0] % 5;
  const char *path = fuzz_file(what == 3 ? "zst" : "any", data + 1, n - 1);
  if (what == 4) store_open(path);
  else source_open(what ? LM_SOURCE_JSONL : LM_SOURCE_TEXT, path, what ? NULL : "ab");
  return 0;
}
