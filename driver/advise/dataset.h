// dataset.h - the text at a path, judged by a sample of it.
#ifndef LM_DRIVER_DATASET_H
#define LM_DRIVER_DATASET_H
#include "runtime/data/feed/data.h"

// Called a few times a second while a folder is inspected, with the number of files so far.
typedef struct lm_walk_progress {
  void (*show)(void *user, uint64_t files); // optional
  void *user;
} lm_walk_progress;

typedef struct lm_dataset {
  lm_data_source *sources;
  int n_sources; // the sources for a data section: patterns, fields, document separators
  uint64_t files;
  double bytes, docs; // of text, unpacked
  bool estimated;     // bytes and docs: from the sample
  struct lm_file_kind *kinds;
  uint32_t n_kinds,
      cap_kinds;           // of a folder: the kinds of files in it, read or not (dataset_folder.h)
  uint64_t runs;           // folders of runs, which are not read
  uint64_t folders_below;  // folders two levels below, which are not inspected
  uint64_t irregular;      // entries that match a source's pattern and are not regular files
  double unusable;         // share of the sources' files that are not UTF-8 text
  uint64_t unusable_files; // their number
  lm_buf left_out;         // of a folder: sources that cannot be used, each with the reason
  lm_buf sample;           // text of the first documents of every source, a newline behind each
} lm_dataset;

// Inspects a file, a folder (with the folders in it), or a glob of text or JSON lines, also as .zst
// or .gz. Files of a folder are text if their content is. LM_USER: there is nothing to train on;
// the message says why.
// Of a folder, what cannot be used is left out, and listed by lm_dataset_skipped.
lm_status lm_dataset_inspect(lm_arena *a, lm_walk_progress progress, const char *path,
                             lm_dataset *out);
// Appends the files of a folder or pattern that are not read, and why; nothing if all are read.
void lm_dataset_skipped(const lm_dataset *s, lm_buf *b);
void lm_dataset_free(lm_dataset *s);
#endif
