// process.h - running another program.
#ifndef LM_CPU_PROCESS_H
#define LM_CPU_PROCESS_H
#include <sys/types.h>

#include "runtime/base/base.h"

// Starts argv[0], an absolute path, in the folder `dir` (a descriptor; -1: this one), in the C
// locale. Its standard output and error go to the descriptor `output`, its input is empty.
lm_status lm_process_start(const char *const *argv, int dir, int output, pid_t *out);
// A file in memory for `output`, and what was written to it.
lm_status lm_process_output(int *out_fd);
lm_status lm_process_output_read(int fd, size_t max_bytes, lm_buf *out);
enum {
  LM_PROCESS_SIGNAL = 128
};
// Waits; *out_exit is the exit status, or LM_PROCESS_SIGNAL + the signal that ended it.
lm_status lm_process_wait(pid_t pid, int *out_exit);
// The absolute path of a program as the shell finds it; false if there is none.
bool lm_executable_find(const char *name, char *out, size_t n);
#endif
