// file.h - opening files that somebody else may have put there: FIFOs, devices and links where a
// regular file is expected, and temporary files and folders that outlive the process that made
// them.
#ifndef LM_BASE_FILE_H
#define LM_BASE_FILE_H
#include <sys/stat.h>

#include "runtime/base/base.h"

// Opens a regular file for reading. Never blocks: a FIFO, a device, a socket or a folder is an
// error that names what it is. On failure errno says why: EISDIR for a folder, EINVAL for another
// file that is not regular.
lm_status lm_open_regular(const char *path, int *out_fd);
// The same below the folder `dir` (a descriptor), without following a link. `path` is for the
// message.
lm_status lm_open_regular_at(int dir, const char *name, const char *path, int *out_fd);
// Whether an error of opening a path lies in the path (no such file, no permission) and not in the
// machine.
bool lm_errno_is_path(int error);
// Whether nobody but this user and root could have written the file or changed the folder.
bool lm_is_trusted(const struct stat *st);

// Opens `path` empty for writing, and locks it. A file that another process holds is waited for;
// one that was left behind is reused; anything else of that name (a link, a FIFO, the file of
// another user) is removed first. Closing unlocks.
lm_status lm_temp_open(const char *path, int *out_fd);
// Removes the files DIR/*.tmp that no process holds.
void lm_temps_clean(const char *dir);

// A folder of mode 0700 with an unpredictable name, locked as long as it is in use.
typedef struct lm_temp_dir {
  char *path;
  int fd;
} lm_temp_dir; // path NULL: none
lm_status lm_temp_dir_make(const char *parent, const char *prefix, lm_temp_dir *out);
void lm_temp_dir_remove(lm_temp_dir *d); // with all in it
// Removes those of this user that no process holds.
void lm_temp_dirs_clean(const char *parent, const char *prefix);

lm_status
lm_dir_make_private(const char *path); // as lm_dir_make; folders that it makes have mode 0700
#endif
