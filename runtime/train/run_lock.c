// run_lock.c - the lock of a run's folder; see run.h.
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/train/run.h"

lm_status lm_run_folder_lock(const char *dir, int *out) {
  *out = 0;
  int lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0)
    return errno == ENOENT || errno == ENOTDIR
               ? NULL
               : lm_fail_errno("cannot open the run's folder %s", dir);
  // other errors mean that the file system has no locks
  if (!flock(lock, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) {
    *out = lock;
    return NULL;
  }
  close(lock);
  return lm_fail(LM_USER, "another run is using %s; choose another folder with --out", dir);
}
