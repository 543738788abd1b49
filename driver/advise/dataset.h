// dataset.h - the text at a path, judged by a sample of it.
#ifndef LM_DRIVER_DATASET_H
#define LM_DRIVER_DATASET_H
#include "runtime/data/feed/data.h"

typedef struct lm_dataset {
  lm_data_source *sources;
  int n_sources; // as a data section would name them: patterns, fields, what parts documents
  uint64_t files;
  double bytes, docs; // of text, unpacked
  bool estimated;     // bytes and docs: from the sample
  struct lm_file_kind *kinds;
  uint32_t n_kinds, cap_kinds; // of a folder: what was found there, read or not (dataset_folder.h)
  uint64_t folders_below;      // folders of its folders, which are not looked at
  uint64_t irregular;          // entries that a source's pattern matches, but that are no files
  double unusable;             // share of the sources' files that are not UTF-8 text
  uint64_t unusable_files;     // their number
  lm_buf sample;               // text of the first documents of every source, a newline behind each
} lm_dataset;

// path: a file, a folder (with the folders in it), or a glob; text, JSON lines, either as .zst or
// .gz. What is text in a folder is judged by content. LM_USER: there is nothing to train on, and
// why.
lm_status lm_dataset_inspect(lm_arena *a, const char *path, lm_dataset *out);
// What a folder holds or a pattern matches that is not read, and why; nothing if all is read.
void lm_dataset_skipped(const lm_dataset *s, lm_buf *b);
void lm_dataset_free(lm_dataset *s);
#endif
