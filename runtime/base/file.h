// file.h - opening files in folders that other users may write to, where a FIFO, a device or a link
// may be found instead of a regular file; temporary files and folders that are cleaned up after a
// crash.
#ifndef LM_BASE_FILE_H
#define LM_BASE_FILE_H
#include <sys/stat.h>

#include "runtime/base/base.h"

// Opens a regular file for reading. Never blocks: for a FIFO, a device, a socket or a folder it
// fails with the type in the message. On failure errno is set: EISDIR for a folder, EINVAL for
// other files that are not regular.
lm_status lm_open_regular(const char *path, int *out_fd);
// The same for a name in the folder `dir` (a descriptor), without following links; LM_ENV with
// errno EPERM too if another user could have written the file. `path` appears in messages only.
lm_status lm_open_trusted_at(int dir, const char *name, const char *path, int *out_fd);
// Opens or creates a regular file to append to, without following a link: LM_ENV if the path is a
// link or anything but a regular file.
lm_status lm_open_append(const char *path, int *out_fd);
// True if an errno from opening a path is due to the path (no such file, no permission), false if
// it is due to the machine.
bool lm_errno_is_path(int error);
// True if only this user and root could have written the file or changed the folder.
bool lm_is_trusted(const struct stat *st);
// True if one file has the same size and times in both, so that nothing has written to it between.
bool lm_file_is_same(const struct stat *before, const struct stat *now);

// Opens `path` empty for writing and locks it; closing unlocks. Waits while another process holds
// the lock. Reuses a file that a dead process left behind; removes anything else of that name
// (a link, a FIFO, another user's file) first.
lm_status lm_temp_open(const char *path, int *out_fd);
// Removes the files DIR/KEY*.tmp that no process has locked; KEY is 16 hexadecimal digits or more.
void lm_temps_clean(const char *dir);
// Before a file of the cache gets its name, a path with a '/': an empty folder of that name is
// removed, one with contents is renamed to foreign-NAME.
lm_status lm_folder_set_aside(const char *path);

const char *lm_temp_parent(void); // TMPDIR; /tmp if it is unset or empty
// A folder with mode 0700 and an unpredictable name, locked while it is in use. path NULL: none.
typedef struct lm_temp_dir {
  char *path;
  int fd;
} lm_temp_dir;
lm_status lm_temp_dir_make(const char *parent, const char *prefix, lm_temp_dir *out);
void lm_temp_dir_remove(lm_temp_dir *d); // with its contents
// Removes this user's temporary folders that no process has locked.
void lm_temp_dirs_clean(const char *parent, const char *prefix);

// As lm_dir_make, but folders that it creates have mode 0700.
lm_status lm_dir_make_private(const char *path);
#endif
