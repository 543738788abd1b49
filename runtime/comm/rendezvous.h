// rendezvous.h - how the ranks of torchrun, and of launchers that set the same variables, find each
// other: rank 0 listens at MASTER_PORT, the others connect, and each learns where all listen.
//
// A process of another launch, which has another lm_launch.job, is not let in, nor is one that does
// not speak the protocol. Who knows the job's variables is: as with torchrun, the network is
// trusted.
#ifndef LM_COMM_RENDEZVOUS_H
#define LM_COMM_RENDEZVOUS_H
#include "runtime/comm/launch.h"
#include "runtime/comm/socket.h"

// own: where this rank listens; all: [size], where each rank does. LM_ENV if ranks are missing
// after `seconds` or one has ended, LM_USER if the ranks' variables contradict each other; rank 0's
// message names them, and *reported is set at the others.
lm_status lm_rendezvous(const lm_launch *l, double seconds, const lm_address *own, lm_address *all,
                        bool *reported);
#endif
