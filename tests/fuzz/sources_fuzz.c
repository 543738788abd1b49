// sources_fuzz.c - text, JSON lines, packed files and files of the cache. The first byte chooses
// which. The reader's text must be well-formed, without NUL, and its line numbers must not
// decrease. A megabyte is read: a small file unpacks to hundreds.
#include <jansson.h>

#include "runtime/base/utf8.h"
#include "runtime/data/read/reader.h"
#include "runtime/data/read/store.h"
#include "tests/fuzz/fuzz.h"

static void span_read(const lm_data_source *source, const lm_text_span *s) {
  json_t *owner;
  char fault[300];
  size_t n;
  uint64_t line = 0;
  const char *p = lm_text_span_read(s, source, true, &n, &owner, fault, sizeof fault, &line);
  LM_ASSERT(p ? lm_utf8_valid(p, n) == n && !memchr(p, 0, n) : *fault && line);
  json_decref(owner);
}

static lm_status source_read(const lm_data_source *source, lm_doc_reader *r) {
  const lm_text_span *s;
  uint64_t line = 0;
  for (size_t n = 1; n;) {
    LM_TRY(lm_doc_reader_next(r, &s, &n));
    for (size_t i = 0; i < n; i++) {
      LM_ASSERT(s[i].line >= line);
      line = s[i].line;
      span_read(source, &s[i]);
    }
  }
  return NULL;
}

static void source_open(lm_source_kind kind, const char *path, const char *split) {
  lm_data_source source = {kind, "fuzz", path, split};
  lm_file_list files;
  lm_status s = lm_file_list_make(&source, 1, &files);
  LM_ASSERT(!s);
  lm_doc_reader *r = lm_doc_reader_create(&files, 1 << 20);
  lm_status_free(source_read(&source, r)); // a compressed file that is malformed
  lm_doc_reader_destroy(r);
  lm_file_list_free(&files);
}

static void store_open(const char *path) {
  lm_store *s;
  lm_status_free(lm_store_open(path, 1, &s));
  if (s)
    lm_status_free(lm_store_check(s, 0, s->n));
  lm_store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n)
    return 0;
  int what = data[0] % 5;
  const char *path = fuzz_file(what == 3 ? "zst" : "any", data + 1, n - 1);
  if (what == 4)
    store_open(path);
  else
    source_open(what ? LM_SOURCE_JSONL : LM_SOURCE_TEXT, path, what ? NULL : "ab");
  return 0;
}
