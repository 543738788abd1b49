// tcp.h - the engine over TCP (engine.h), for CPU ranks that no MPI launcher has started. Each rank
// has a connection to each other one.
#ifndef LM_COMM_TCP_H
#define LM_COMM_TCP_H
#include "runtime/comm/engine.h"
#include "runtime/comm/launch.h"

const lm_engine_ops *lm_tcp_engine(void); // without `open`
// Finds the other ranks and connects to them. Errors and *reported as in rendezvous.h.
lm_status lm_tcp_open(const lm_launch *l, double seconds, void **out, bool *reported);
#endif
