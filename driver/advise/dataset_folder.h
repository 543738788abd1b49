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

// A walk through folders, which reports its progress and ends at a number of files and folders.
typedef struct lm_folder_walk {
  lm_walk_progress progress;
  uint64_t files, folders; // that were seen
  double shown;            // when progress was reported last
} lm_folder_walk;

enum {
  LM_WALK_MOST = 100000 // limit on the number of files, and on that of folders
};

// Reports the progress, at most a few times a second. False if the walk has seen too much.
bool lm_folder_walk_on(lm_folder_walk *w);

// Adds the regular files of a folder except hidden ones, which patterns do not match either, until
// the walk ends. False with errno if the folder cannot be read.
bool lm_file_kinds_add(lm_arena *a, const char *folder, lm_folder_walk *w, lm_file_kinds *out);
// Adds a file to the kind of its extension. False if the file is not text.
bool lm_file_kinds_look(lm_arena *a, const char *path, uint64_t size, lm_file_kinds *out);
// Sorts by extension and decides which kinds are read.
void lm_file_kinds_judge(lm_arena *a, lm_file_kinds *kinds);
bool lm_file_is_text(const char *path); // by its beginning
bool lm_is_jsonl(const char *path);     // by its name
#endif
