// files.h - the files that the globs of all sources match.
#ifndef LM_DATA_READ_FILES_H
#define LM_DATA_READ_FILES_H
#include "runtime/base/base.h"
#include "runtime/data/read/source.h"

typedef struct lm_file_entry {
  char *path;
  int source; // index into the list's sources
  uint64_t size;
  int64_t changed[2]; // modification time: seconds, nanoseconds
  uint64_t id[2];     // device and inode
} lm_file_entry;

typedef struct lm_file_list {
  const lm_data_source *sources; // borrowed
  int n_sources;
  lm_file_entry *files; // sorted by source, then by path
  uint32_t n, cap;
  uint32_t skipped, skipped_folders; // matches that are not files; how many of them are folders
  uint64_t bytes;                    // sum of the sizes on disk
  unsigned umask;                    // see lm_data_info
  uint64_t key[2];                   // hash of sources, paths, sizes and modification times
} lm_file_list;

// Lists the files of all sources. A file that several paths of one source reach through links is
// listed once. Matches of a glob that are not regular files are skipped. LM_USER: a glob matches no
// regular file, or a path without a pattern is not one.
// s, if it is an error: with "source NAME" in front, and the source attached (lm_status_about).
lm_status lm_source_status(lm_status s, const lm_data_source *source);
lm_status lm_file_list_make(const lm_data_source *sources, int n, lm_file_list *out);
void lm_file_list_free(lm_file_list *l);
#endif
