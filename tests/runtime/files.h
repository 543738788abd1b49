// files.h - files that a test program leaves behind.
#ifndef LM_TESTS_FILES_H
#define LM_TESTS_FILES_H
#include <glob.h>
#include <unistd.h>

// Removes the files whose paths match the pattern, if there are any.
static inline void files_remove(const char *pattern) {
  glob_t found;
  if (glob(pattern, 0, NULL, &found))
    return;
  for (size_t i = 0; i < found.gl_pathc; i++)
    unlink(found.gl_pathv[i]);
  globfree(&found);
}
#endif
