// children_test.c - which children of a launcher count as stopped ranks.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm/children.h"
#include "tests/comm/expect.h"

#define RANK "LMC_TEST_RANK"

// A process that sleeps, with these variables.
static pid_t sleeper(char *const *variables) {
  pid_t pid = fork();
  if (!pid) {
    execve("/bin/sleep", (char *[]){"sleep", "60", NULL}, variables);
    _exit(1);
  }
  while (lm_process_number(pid, "LMC_TEST") < 0) // until execve
    usleep(1000);
  return pid;
}

static void stop(pid_t pid) {
  kill(pid, SIGSTOP);
  waitpid(pid, NULL, WUNTRACED);
}

static void end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

int main(void) {
  lm_children c = {0};
  pid_t other = sleeper((char *[]){"LMC_TEST=1", NULL});
  pid_t rank = sleeper((char *[]){"LMC_TEST=1", RANK "=7", NULL});
  stop(other);
  lm_children_look(&c, getpid(), RANK);
  expect(c.any && c.first == rank && !c.stopped, "a stopped process that is no rank", "");
  stop(rank);
  lm_children_look(&c, getpid(), RANK);
  expect(!c.first && c.stopped == rank, "a stopped rank", "");
  expect(lm_process_number(c.stopped, RANK) == 7, "its number", "");
  lm_children_look(&c, rank, RANK);
  expect(!c.any && !c.stopped, "a launcher that has ended has no children", "");
  end(other);
  end(rank);
  printf("children_test: %d errors\n", errors);
  return errors != 0;
}
