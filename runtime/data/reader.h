// reader.h - documents of all files of all sources, in order, in rounds that fit in memory.
//
// A document comes as one stretch, or if it is long text as several, cut where lm_tokenizer_cut
// says. Memory: a round (8 MiB), and the longest line (32 MiB; longer ones are skipped).
#ifndef LM_DATA_READER_H
#define LM_DATA_READER_H
#include "runtime/data/data.h"

enum {
  LM_READER_LINE_MAX = 32 << 20
};

// changed: seconds, nanoseconds; id: its file system and its number there
typedef struct lm_file_entry {
  char *path;
  int source;
  uint64_t size;
  int64_t changed[2];
  uint64_t id[2];
} lm_file_entry;
typedef struct lm_file_list {
  const lm_data_source *sources;
  int n_sources;
  lm_file_entry *files;
  uint32_t n, cap; // by source, then in the order of their names
  uint64_t bytes;
  unsigned unshared; // as lm_data_info
  uint64_t key[2];   // of sources, names, sizes, times of change
} lm_file_list;

lm_status lm_file_list_make(const lm_data_source *sources, int n, lm_file_list *out);
void lm_file_list_free(lm_file_list *l);

typedef struct lm_text_span {
  const char *p;
  size_t n;          // text, or a line of JSON
  uint32_t file;     // into the list
  uint64_t line;     // where p stands, from 1
  bool begins, ends; // its document
  const char *fault; // why there is nothing to read here, else NULL
} lm_text_span;

typedef struct lm_reader lm_reader;
// most: bytes of text of all files together (UINT64_MAX: all); of each file its first part is
// taken, in proportion.
lm_reader *lm_reader_create(const lm_file_list *files, uint64_t most);
void lm_reader_destroy(lm_reader *r); // NULL is fine
// The next stretches, valid until the next call; *out_n = 0 at the end.
lm_status lm_reader_next(lm_reader *r, const lm_text_span **out, size_t *out_n);
uint64_t lm_reader_consumed(const lm_reader *r); // bytes of files

// The text of a stretch: itself, or the field of its JSON, which `*owner` keeps (json_decref it).
// NULL: *out_fault is why it can't be used, and *out_line its place. check: whether text must be
// UTF-8 without NUL.
struct json_t;
const char *lm_text_span_read(const lm_text_span *s, const lm_data_source *source, bool check,
                              size_t *out_n, struct json_t **owner, char *out_fault, size_t n_fault,
                              uint64_t *out_line);
#endif
