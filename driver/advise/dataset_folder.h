// dataset_folder.h - the kinds of files in folders: by extension, each judged by the content of its
// files.
#ifndef LM_DRIVER_DATASET_FOLDER_H
#define LM_DRIVER_DATASET_FOLDER_H
#include "driver/advise/dataset.h"

// A kind is the files of one extension (".py", ".txt.zst", "" for none). why: the reason for not
// reading it; NULL: it is text.
typedef struct lm_file_kind {
  const char *extension, *why;
  uint64_t files, bytes, unusable; // unusable: files that are not UTF-8 text
  bool lines;                      // the first line of the first file is a JSON object
} lm_file_kind;
typedef struct lm_file_kinds {
  lm_file_kind *v;
  uint32_t n, cap;
} lm_file_kinds;

// Adds the regular files of a folder except hidden ones, which patterns do not match either. False
// with errno if the folder cannot be read.
bool lm_file_kinds_add(lm_arena *a, const char *folder, lm_file_kinds *out);
// Sorts by extension and decides which kinds are read.
void lm_file_kinds_judge(lm_arena *a, lm_file_kinds *kinds);
bool lm_file_is_text(const char *path); // by its beginning
bool lm_is_jsonl(const char *path);     // by its name
#endif
