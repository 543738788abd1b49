// corpus.c - text sources: files found by a glob, cut into documents, tokenised.
#define _GNU_SOURCE
#include "runtime/data/corpus.h"

#include <glob.h>
#include <string.h>

static void ids_add(lm_corpus *c, const int32_t *ids, size_t n) {
  size_t width = c->wide ? 4 : 2;
  if (c->n + n > c->cap) {
    c->cap = c->n + n > 2 * c->cap ? c->n + n : 2 * c->cap;
    c->ids = lm_realloc(c->ids, c->cap * width);
  }
  for (size_t i = 0; i < n; i++)
    if (c->wide) ((uint32_t *)c->ids)[c->n++] = (uint32_t)ids[i];
    else ((uint16_t *)c->ids)[c->n++] = (uint16_t)ids[i];
}

static void doc_end(lm_corpus *c) {
  if (c->n_docs + 1 >= c->cap_docs) {
    c->cap_docs = c->cap_docs ? 2 * c->cap_docs : 256;
    c->starts = lm_realloc(c->starts, c->cap_docs * sizeof *c->starts);
  }
  if (!c->n_docs) c->starts[0] = 0;
  c->starts[++c->n_docs] = c->n;
}

static lm_status doc_add(lm_corpus *c, const lm_tokenizer *t, const char *text, size_t n, lm_tokens *scratch) {
  scratch->n = 0;
  LM_TRY(lm_tokenizer_encode(t, text, n, scratch));
  if (!scratch->n) return NULL;
  if (t->eos >= 0) lm_tokens_add(scratch, t->eos);
  ids_add(c, scratch->ids, scratch->n);
  doc_end(c);
  return NULL;
}

static lm_status text_add(lm_corpus *c, const lm_tokenizer *t, const char *text, size_t n, const char *split) {
  lm_tokens scratch = {0};
  lm_status s = NULL;
  size_t gap = split ? strlen(split) : 0;
  for (const char *at = text, *end = text + n; at < end && !s; ) {
    const char *cut = gap ? memmem(at, (size_t)(end - at), split, gap) : NULL;
    s = doc_add(c, t, at, (size_t)((cut ? cut : end) - at), &scratch);
    at = cut ? cut + gap : end;
  }
  lm_tokens_free(&scratch);
  return s;
}

static lm_status file_add(lm_corpus *c, const char *path, const lm_data_source *source, const lm_tokenizer *t) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, SIZE_MAX, &text);
  if (!s) s = text_add(c, t, text.p, text.n, source->split);
  lm_buf_free(&text);
  return s;
}

lm_status lm_corpus_read(lm_corpus *c, const lm_data_source *source, const lm_tokenizer *t) {
  c->wide = t->vocab > 65536;
  glob_t found;
  int rc = glob(source->path, GLOB_ERR, NULL, &found);   // sorted
  if (rc == GLOB_NOMATCH) return lm_fail(LM_USER, "source %s: no file matches %s", source->name, source->path);
  if (rc) return lm_fail(LM_ENV, "source %s: cannot search for %s", source->name, source->path);
  lm_status s = NULL;
  for (size_t i = 0; i < found.gl_pathc && !s; i++) s = file_add(c, found.gl_pathv[i], source, t);
  globfree(&found);
  return lm_annotate(s, "source %s", source->name);
}

void lm_corpus_free(lm_corpus *c) {
  lm_free(c->ids);
  lm_free(c->starts);
  *c = (lm_corpus){0};
}
