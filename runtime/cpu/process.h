// process.h - runs other programs.
#ifndef LM_CPU_PROCESS_H
#define LM_CPU_PROCESS_H
#include <sys/types.h>

#include "runtime/base/base.h"

// Starts argv[0], an absolute path, in the C locale. dir: descriptor of its working folder, -1 for
// the current one. Standard output and error go to the descriptor `output`; standard input is
// empty.
lm_status lm_process_start(const char *const *argv, int dir, int output, pid_t *out);
// Creates a file in memory for `output`.
lm_status lm_process_output(int *out_fd);
// Reads the output of the program from it.
lm_status lm_process_output_read(int fd, size_t max_bytes, lm_buf *out);
enum {
  LM_PROCESS_SIGNAL = 128
};
// Waits; *out_exit is the exit status, or LM_PROCESS_SIGNAL + the signal that ended it.
lm_status lm_process_wait(pid_t pid, int *out_exit);
// The absolute path of a program, found as the shell does; false if there is none.
bool lm_executable_find(const char *name, char *out, size_t n);
#endif
