// children.h - the processes that a launcher has started on this machine, as /proc shows them.
#ifndef LM_COMM_CHILDREN_H
#define LM_COMM_CHILDREN_H
#include <sys/types.h>

#include "runtime/base/base.h"

typedef struct lm_children {
  bool any;      // there is one that has not ended, or /proc cannot be read
  pid_t first;   // the lowest rank that is not stopped, at `since` if one is; 0: none
  pid_t stopped; // a rank that is stopped (SIGSTOP); 0: none
  double since;  // when it was first seen so
  double looked; // when `lm_children_look` was last called
} lm_children;

// Looks at the children of a process. Those whose environment has no number in `variable` are no
// ranks: a launcher has others, and orphans of other programs are children of init. `stopped`
// remains the same process while it is stopped, and `since` is now if the caller has not looked for
// some seconds: it may have been stopped too.
void lm_children_look(lm_children *c, pid_t parent, const char *variable);
// Seconds for which `stopped` has been stopped; 0: there is none.
double lm_children_stopped(const lm_children *c);
void lm_children_kill(pid_t parent);
// The number that the environment of a process gives to `variable`; -1: it has none.
int lm_process_number(pid_t pid, const char *variable);
#endif
