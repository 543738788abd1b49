// run_folder.c - see run_folder.h.
#include "runtime/train/run_folder.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

static void size_print(lm_buf *b, double bytes) {
  if (bytes < 1e6)
    lm_buf_printf(b, "%.1f kB", bytes / 1e3);
  else
    lm_buf_printf(b, "%.1f MB", bytes / 1e6);
}

lm_status lm_run_folder_space(const char *dir, int64_t checkpoint, int64_t kept, lm_progress *p) {
  struct statvfs v;
  lm_buf need = {0};
  lm_buf all = {0};
  lm_buf available = {0};
  if (statvfs(dir, &v))
    return lm_fail_errno("cannot read the free space of %s", dir);
  double bytes = (double)checkpoint;
  double free = (double)v.f_bavail * (double)v.f_frsize;
  double max = bytes * (double)(kept + 1); // including one that is being written
  size_print(&need, bytes);
  size_print(&all, max);
  size_print(&available, free);
  lm_status s = NULL;
  if (free < bytes)
    s = lm_fail(LM_ENV, "%s has %s free, a checkpoint needs %s", dir, available.p, need.p);
  else if (free < max)
    lm_progress_say(p,
                    "note: %s has %s free; all checkpoints of this run need up to %s (`keep` of "
                    "save limits their number)",
                    dir, available.p, all.p);
  lm_buf_free(&need);
  lm_buf_free(&all);
  lm_buf_free(&available);
  return s;
}

bool lm_run_folder_same(const char *x, const char *y) {
  struct stat a, b;
  return !stat(x, &a) && !stat(y, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
