// tcp_connect.h - a connection between each two ranks.
#ifndef LM_COMM_TCP_CONNECT_H
#define LM_COMM_TCP_CONNECT_H
#include "runtime/comm/socket.h"

// all: [size], where each rank listens (rendezvous.h); listener: this rank's own. fds: [size], the
// connection to each rank, which does not block; -1 for this rank and for missing ones. A
// connection is accepted only with the cookie of the own address. `until`: as of lm_now().
lm_status lm_tcp_connect(int rank, int size, const lm_address *all, int listener, double until,
                         int *fds);
#endif
