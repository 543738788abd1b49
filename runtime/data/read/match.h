// match.h - the paths that a pattern matches.
#ifndef LM_DATA_READ_MATCH_H
#define LM_DATA_READ_MATCH_H
#include "runtime/base/base.h"
#include <glob.h>

// As glob(), with the component `**` for any number of folders: texts/**/*.txt matches files in
// `texts` and in all folders below, except hidden ones and symbolic links to folders; texts/** is
// texts/**/*. With several `**` a path may occur more than once. Sorts *found, which globfree()
// frees. Returns 0, or a value of glob() other than 0. If a folder cannot be read, that is
// GLOB_ABORTED, errno says why, and the folder, or the pattern if it is unknown, is added to
// *out_unreadable.
int lm_match(const char *pattern, glob_t *found, lm_buf *out_unreadable);
// Adds the pattern that matches only this path.
void lm_match_escape(const char *path, lm_buf *out);
#endif
