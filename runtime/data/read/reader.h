// reader.h - reads the documents of all files in order, in rounds of bounded memory.
//
// A document is one span, or, if it is long text, several spans that are split by lm_tokenizer_cut.
// Memory: one round (8 MiB) and the longest line (at most 32 MiB; longer lines are skipped and
// reported as faults).
#ifndef LM_DATA_READ_READER_H
#define LM_DATA_READ_READER_H
#include "runtime/data/read/files.h"

enum {
  LM_DOC_LINE_MAX = 32 << 20
};

typedef struct lm_text_span {
  const char *p;     // text, or one line of JSON
  size_t n;          // bytes
  uint32_t file;     // index into the file list
  uint64_t line;     // line number of p, from 1
  bool begins, ends; // holds the beginning, the end of its document
  const char *fault; // why the span has no text; NULL if it has
} lm_text_span;

typedef struct lm_doc_reader lm_doc_reader;
// `files` must outlive the reader. max_bytes limits the text of all files together (UINT64_MAX: no
// limit): the reader takes the first part of each file, in proportion to its size.
lm_doc_reader *lm_doc_reader_create(const lm_file_list *files, uint64_t max_bytes);
void lm_doc_reader_destroy(lm_doc_reader *r); // r may be NULL
// The next spans, valid until the next call; *out_n = 0 at the end. LM_USER: a file cannot be read,
// is damaged, or changed while it was read.
lm_status lm_doc_reader_next(lm_doc_reader *r, const lm_text_span **out, size_t *out_n);
uint64_t lm_doc_reader_consumed(const lm_doc_reader *r); // bytes read from the files on disk

// The text of a span: the span itself, or the field of its JSON object. *owner keeps that object
// alive; the caller calls json_decref on it. check: whether plain text must be valid UTF-8 without
// NUL (JSON always must). NULL if the text is unusable: out_fault says why, *out_line where.
// The kind of the source is not LM_SOURCE_CHAT.
struct json_t;
const char *lm_text_span_read(const lm_text_span *s, const lm_data_source *source, bool check,
                              size_t *out_n, struct json_t **owner, char *out_fault, size_t n_fault,
                              uint64_t *out_line);
#endif
