// reader.c - see reader.h.
#define _GNU_SOURCE
#include "runtime/data/read/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/utf8.h"
#include "runtime/data/read/input.h"
#include "runtime/io/json.h"
#include "runtime/tokenizer/tokenizer.h"

enum {
  ROUND = 8 << 20,
  CHUNK = 1 << 20,
  SPAN_MAX = 1 << 20
};

struct lm_doc_reader {
  const lm_file_list *list;
  uint64_t max_bytes;
  uint32_t file;     // index of the open file, or of the next one
  lm_input *input;   // NULL: no file is open
  uint64_t left;     // bytes still to read from the open file
  uint64_t consumed; // bytes of the closed files
  char *buf;
  size_t n, cap, at; // buf[at … n - 1] is not split into spans yet
  uint64_t line;     // line number of `at`
  bool eof;          // buf ends with the last byte of the file
  bool in_document;  // text: `at` is inside a document
  bool skipping;     // jsonl: inside a line that is too long
  lm_text_span *out;
  size_t n_out;
  size_t cap_out;
  size_t *starts; // [n_out]: offsets of the spans in buf, which may move until the round ends
};

lm_doc_reader *lm_doc_reader_create(const lm_file_list *files, uint64_t max_bytes) {
  lm_doc_reader *r = lm_alloc(sizeof *r);
  r->list = files;
  r->max_bytes = max_bytes;
  return r;
}

void lm_doc_reader_destroy(lm_doc_reader *r) {
  if (!r)
    return;
  lm_input_close(r->input);
  lm_free(r->buf);
  lm_free(r->out);
  lm_free(r->starts);
  lm_free(r);
}

uint64_t lm_doc_reader_consumed(const lm_doc_reader *r) {
  return r->consumed + (r->input ? lm_input_consumed(r->input) : 0);
}

static uint64_t lines_count(const char *p, size_t n) {
  uint64_t lines = 0;
  for (const char *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++)
    lines++;
  return lines;
}

// Adds a span of n bytes at `at`, then skips `gap` bytes.
static void span_add(lm_doc_reader *r, size_t n, size_t gap, bool begins, bool ends,
                     const char *fault) {
  if (r->n_out == r->cap_out) {
    r->cap_out = r->cap_out ? 2 * r->cap_out : 1024;
    r->out = lm_realloc(r->out, r->cap_out * sizeof *r->out);
    r->starts = lm_realloc(r->starts, r->cap_out * sizeof *r->starts);
  }
  r->starts[r->n_out] = r->at;
  r->out[r->n_out++] = (lm_text_span){NULL, n, r->file, r->line, begins, ends, fault};
  r->line += lines_count(r->buf + r->at, n + gap);
  r->at += n + gap;
}

static bool is_blank(const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!memchr(" \t\r", p[i], 3))
      return false;
  return true;
}

static void rest_skip(lm_doc_reader *r, size_t n) {
  r->line += lines_count(r->buf + r->at, n);
  r->at += n;
}

static void lines_split(lm_doc_reader *r) {
  for (const char *p, *stop; r->at < r->n;) {
    p = r->buf + r->at;
    size_t left = r->n - r->at;
    stop = memchr(p, '\n', left);
    size_t n = stop ? (size_t)(stop - p) : left;
    if (r->skipping) {
      rest_skip(r, n + (stop != NULL));
      r->skipping = !stop;
    } else if (n > LM_DOC_LINE_MAX) {
      r->skipping = !stop;
      size_t all = n + (stop != NULL);
      span_add(r, 0, 0, true, true, "a line of more than 32 MiB");
      rest_skip(r, all);
    } else if (!stop && !r->eof) {
      return;
    } else if (is_blank(p, n)) {
      rest_skip(r, n + (stop != NULL));
    } else {
      span_add(r, n, stop != NULL, true, true, NULL);
    }
  }
}

// Splits n bytes of one document into spans. ends: the document ends there, and a separator of
// `gap` bytes follows; else the rest, which is too short for a span, stays in the buffer.
static void document_split(lm_doc_reader *r, size_t n, size_t gap, bool ends) {
  while (n > SPAN_MAX) {
    size_t part = lm_tokenizer_cut(r->buf + r->at, SPAN_MAX);
    span_add(r, part, 0, !r->in_document, false, NULL);
    r->in_document = true;
    n -= part;
  }
  if (!ends)
    return;
  span_add(r, n, gap, !r->in_document, true, NULL);
  r->in_document = false;
}

static void documents_split(lm_doc_reader *r, const char *split) {
  size_t gap = split ? strlen(split) : 0;
  while (r->at < r->n) {
    size_t left = r->n - r->at;
    const char *found = gap ? memmem(r->buf + r->at, left, split, gap) : NULL;
    if (found)
      document_split(r, (size_t)(found - r->buf) - r->at, gap, true);
    else if (r->eof)
      document_split(r, left, 0, true);
    else {
      // the buffer may end inside a separator
      if (left > gap)
        document_split(r, left - gap, 0, false);
      return;
    }
  }
  if (r->eof && r->in_document)
    document_split(r, 0, 0, true);
}

static void buffer_split(lm_doc_reader *r) {
  const lm_data_source *s = &r->list->sources[r->list->files[r->file].source];
  if (s->kind == LM_SOURCE_JSONL || s->kind == LM_SOURCE_CHAT)
    lines_split(r);
  else
    documents_split(r, s->split);
}

static lm_status file_open(lm_doc_reader *r) {
  const lm_file_entry *f = &r->list->files[r->file];
  LM_TRY(lm_source_status(lm_input_open(f->path, &r->input), &r->list->sources[f->source]));
  bool all = r->max_bytes == UINT64_MAX || !r->list->bytes;
  r->left = all ? UINT64_MAX
                : (uint64_t)((double)r->max_bytes * (double)f->size / (double)r->list->bytes) +
                      1; // decompressed bytes
  r->line = 1;
  r->eof = r->in_document = r->skipping = false;
  return NULL;
}

// The cache identifies a file by its size and modification time, so they must not change while the
// file is read.
static lm_status file_close(lm_doc_reader *r) {
  const lm_file_entry *f = &r->list->files[r->file++];
  struct stat st;
  r->consumed += f->size;
  lm_input_close(r->input);
  r->input = NULL;
  if (stat(f->path, &st))
    return lm_fail_errno("%s disappeared while it was read", f->path);
  bool same = (uint64_t)st.st_size == f->size && st.st_mtim.tv_sec == f->changed[0] &&
              st.st_mtim.tv_nsec == f->changed[1];
  if (same)
    return NULL;
  return lm_source_status(
      lm_fail(LM_USER, "%s was changed while it was read; run again when it is complete", f->path),
      &r->list->sources[f->source]);
}

// UTF-16 and UTF-32 begin with one of these marks, which no UTF-8 text does.
static bool begins_with_utf16(const char *p, size_t n) {
  return n >= 2 && (!memcmp(p, "\xff\xfe", 2) || !memcmp(p, "\xfe\xff", 2));
}

// The mark at the beginning of a file says how it is encoded and is no part of its text.
static lm_status byte_order_mark_skip(lm_doc_reader *r) {
  const lm_file_entry *f = &r->list->files[r->file];
  const char *p = r->buf + r->at;
  size_t n = r->n - r->at;
  if (begins_with_utf16(p, n))
    return lm_source_status(lm_fail(LM_USER,
                                    "%s is UTF-16 text, expected UTF-8: convert it, as with iconv "
                                    "-f UTF-16 -t UTF-8",
                                    f->path),
                            &r->list->sources[f->source]);
  if (n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3))
    r->at += 3;
  return NULL;
}

// Makes room for the next chunk and returns its size; a small file needs less than a full chunk.
static size_t room_make(lm_doc_reader *r) {
  uint64_t size = r->list->files[r->file].size;
  size_t needed = size < CHUNK / 2 ? 2 * (size_t)size + 4096 : CHUNK;
  if (r->cap - r->n < needed)
    r->buf = lm_realloc(r->buf, r->cap += r->cap + needed);
  return r->cap - r->n < CHUNK ? r->cap - r->n : CHUNK;
}

static lm_status chunk_read(lm_doc_reader *r) {
  bool first = !r->input;
  size_t got;
  size_t want;
  if (first)
    LM_TRY(file_open(r));
  want = room_make(r);
  if (r->left < want)
    want = (size_t)r->left;
  LM_TRY(lm_source_status(lm_input_read(r->input, r->buf + r->n, want, &got),
                          &r->list->sources[r->list->files[r->file].source]));
  r->n += got;
  r->left -= r->left == UINT64_MAX ? 0 : got;
  r->eof = !got || !r->left;
  if (first)
    LM_TRY(byte_order_mark_skip(r));
  buffer_split(r);
  return r->eof ? file_close(r) : NULL;
}

// Removes the bytes that were split into spans; these spans must not be used any more.
static void split_drop(lm_doc_reader *r) {
  if (r->at)
    memmove(r->buf, r->buf + r->at, r->n - r->at);
  r->n -= r->at;
  r->at = 0;
}

lm_status lm_doc_reader_next(lm_doc_reader *r, const lm_text_span **out, size_t *out_n) {
  r->n_out = 0;
  while ((r->at < ROUND || !r->n_out) && r->file < r->list->n) {
    if (!r->n_out)
      split_drop(r); // also while a long line is skipped
    LM_TRY(chunk_read(r));
  }
  for (size_t i = 0; i < r->n_out; i++)
    r->out[i].p = r->buf + r->starts[i];
  *out = r->out;
  *out_n = r->n_out;
  return NULL;
}

// ---- the text of a span

// For example: no field "text"; the fields are "id", "content"
static void fields_print(json_t *object, const char *field, char *fault, size_t n_fault) {
  const char *key;
  json_t *value;
  lm_buf b = {0};
  lm_buf_printf(&b, "no field \"%s\"", field);
  const char *before = "; the fields are ";
  json_object_foreach(object, key, value) {
    lm_buf_printf(&b, "%s\"%s\"", before, key);
    before = ", ";
  }
  snprintf(fault, n_fault, "%s", b.p);
  lm_buf_free(&b);
}

static const char *json_text(const lm_text_span *s, const char *field, size_t *out_n,
                             json_t **owner, char *fault, size_t n_fault) {
  json_error_t e;
  *owner =
      json_loadb(s->p, s->n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, &e);
  json_t *x = json_object_get(*owner, field);
  if (!*owner)
    snprintf(fault, n_fault, "not JSON: %s (column %d)", e.text, e.column);
  else if (!json_is_object(*owner))
    snprintf(fault, n_fault, "not a JSON object");
  else if (!x)
    fields_print(*owner, field, fault, n_fault);
  else if (!json_is_string(x))
    snprintf(fault, n_fault, "field \"%s\" is not a string", field);
  *out_n = json_string_length(x);
  return json_string_value(x);
}

// The length of the valid prefix of text.
static size_t text_check(const char *p, size_t n, char *fault, size_t n_fault) {
  size_t valid = lm_utf8_valid(p, n);
  const char *nul = memchr(p, 0, valid);
  if (nul)
    snprintf(fault, n_fault, "contains the character NUL (U+0000), which no text may contain");
  else if (valid < n)
    snprintf(fault, n_fault, "not UTF-8 (byte 0x%02x)", (unsigned char)p[valid]);
  return nul ? (size_t)(nul - p) : valid;
}

const char *lm_text_span_read(const lm_text_span *s, const lm_data_source *source, bool check,
                              size_t *out_n, struct json_t **owner, char *out_fault, size_t n_fault,
                              uint64_t *out_line) {
  const char *p = s->p;
  *owner = NULL;
  *out_n = s->n;
  *out_line = s->line;
  if (s->fault)
    snprintf(out_fault, n_fault, "%s", s->fault);
  if (s->fault)
    return NULL;
  bool jsonl = source->kind == LM_SOURCE_JSONL;
  if (jsonl) {
    size_t good = text_check(p, s->n, out_fault, n_fault);
    if (good < s->n)
      return NULL;
    p = json_text(s, source->field ? source->field : "text", out_n, owner, out_fault, n_fault);
    if (!p)
      return NULL;
  }
  if (!check && !jsonl)
    return p;
  size_t good = text_check(p, *out_n, out_fault, n_fault);
  if (good == *out_n)
    return p;
  if (!jsonl)
    *out_line += lines_count(p, good);
  return NULL;
}
