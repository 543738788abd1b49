// mpirun.h - for a test program that starts itself as several ranks.
#ifndef LM_TESTS_COMM_MPIRUN_H
#define LM_TESTS_COMM_MPIRUN_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/base.h"

static inline void self_find(char *self, size_t n) {
  ssize_t found = readlink("/proc/self/exe", self, n - 1);
  self[found > 0 ? found : 0] = 0;
}

// True if the plugin is beside the program, and there is an mpirun.
static inline bool ranks_can_run(void) {
  char self[4096];
  lm_buf path = {0};
  self_find(self, sizeof self);
  *strrchr(self, '/') = 0;
  lm_buf_printf(&path, "%s/liblm_mpi.so", self);
  bool found = !access(path.p, F_OK) && !system("command -v mpirun >/dev/null 2>&1");
  lm_buf_free(&path);
  return found;
}

// Runs this program with the argument `what` on so many ranks and appends their output. Returns
// the exit status. Leaks are not looked for in them, because MPI keeps memory to its end. The
// folder of the session is not the one that other starts share, which one may remove while another
// enters.
static inline int ranks_run(int ranks, const char *what, lm_buf *out) {
  char self[4096], piece[4096];
  lm_buf command = {0};
  self_find(self, sizeof self);
  lm_buf_printf(&command,
                "session=$(mktemp -d); OMPI_MCA_orte_tmpdir_base=$session "
                "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                "OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0 "
                "timeout -k 5 300 "
                "mpirun -q --oversubscribe --bind-to none --mca odls_base_sigkill_timeout 2 "
                "-n %d %s %s 2>&1 </dev/null; status=$?; rm -rf \"$session\"; exit $status",
                ranks, self, what);
  FILE *f = popen(command.p, "r");
  lm_buf_puts(out, "ranks: ");
  for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
    lm_buf_add(out, piece, n);
  int status = pclose(f);
  lm_buf_free(&command);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
#endif
