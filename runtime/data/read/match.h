// match.h - the paths that a pattern matches.
#ifndef LM_DATA_READ_MATCH_H
#define LM_DATA_READ_MATCH_H
#include "runtime/base/base.h"
#include <glob.h>

// As glob(), with the component `**` for any number of folders: texts/**/*.txt matches files in
// `texts` and in all folders below, except hidden ones and symbolic links to folders; texts/** is
// texts/**/*. With several `**` a path may occur more than once. Sorts *found, which globfree()
// frees after success. Fails if nothing matches, or a folder cannot be read.
lm_status lm_match(const char *pattern, glob_t *found);
// Adds the pattern that matches only this path.
void lm_match_escape(const char *path, lm_buf *out);
#endif
