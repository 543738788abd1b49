// team.h - threads that run one function together and wait for each other at barriers.
//
// A thread that waits spins for a short time, then sleeps in the kernel (futex) until it is woken.
// Spinning saves the cost of sleeping and waking when the other threads arrive soon; it wastes
// processor time when one of them is not running because other processes use its processor. Each
// thread therefore adapts how long it spins: see team.c.
#ifndef LM_TEAM_H
#define LM_TEAM_H
#include <stdbool.h>

typedef struct lm_team lm_team;
typedef void (*lm_team_body)(void *user, int me);

// The calling thread and threads - 1 new ones, which sleep between runs. If the system refuses to
// create a thread, the team is smaller.
lm_team *lm_team_create(int threads);
void lm_team_destroy(lm_team *t); // no run is in progress; NULL is ignored
int lm_team_size(const lm_team *t);

// Calls body(user, me) once on each thread, me = 0 on the calling thread. Returns when every call
// has returned; everything that the calls have written is then visible to the caller. One run at a
// time: a body must not run its own team again, but may run another one.
void lm_team_run(lm_team *t, lm_team_body body, void *user);

// Called in a body: returns when every thread of the team has called it. Everything that the
// threads wrote before is then visible to all of them.
void lm_team_barrier(lm_team *t, int me);

// The longest spin in seconds for a team of `threads`: 0 if OMP_WAIT_POLICY is passive or there are
// more threads than processors, a second if it is active.
double lm_team_spin_max(int threads);
#endif
