// progress.h - collectives that advance while this rank computes.
//
// Neither MPI nor TCP moves the messages of a started collective unless the process calls it, and
// sums are made between two phases of messages. A thread does both for collectives that are started
// `apart` (comm.h). It is created by the first of these. It sleeps while there is none, and pauses
// for up to 1.6 ms while no message arrives. A lock lets one thread at a time use the engine.
#ifndef LM_COMM_PROGRESS_H
#define LM_COMM_PROGRESS_H
#include "runtime/comm/comm_state.h"

void lm_comm_progress_lock(lm_comm *c);
void lm_comm_progress_unlock(lm_comm *c);
// Lets the thread advance r, which has been started; with the lock.
void lm_comm_progress_add(lm_comm *c, lm_coll_state *r);
// Without the thread, which cannot be created, collectives advance in lm_comm_wait.
void lm_comm_progress_begin(lm_comm *c);
void lm_comm_progress_remove(lm_comm *c, lm_coll_state *r); // with the lock
// Collectives under way do not advance any more; lm_comm_progress_begin starts a new thread.
void lm_comm_progress_end(lm_comm *c);
#endif
