// comm_state.h - the state of an lm_comm, for the files that implement comm.h.
#ifndef LM_COMM_COMM_STATE_H
#define LM_COMM_COMM_STATE_H
#include <pthread.h>

#include "runtime/comm/comm.h"
#include "runtime/comm/control.h"
#include "runtime/comm/engine.h"
#include "runtime/comm/exchange.h"

enum {
  LM_COMM_HANDLES = 64, // collectives that are under way at a time
  LM_COMM_GROUPS = 1 + LM_MESH_AXES
};

typedef struct lm_comm_group {
  int rank, size;
  int first, stride; // member i is the rank first + i * stride
  int lane;          // of the engine
  uint32_t tag;      // of the next collective
} lm_comm_group;

// A collective in progress.
typedef struct lm_coll_state {
  bool used;
  bool apart;       // progress.h advances it
  bool done;        // all messages have arrived
  lm_status failed; // of an advance in the background
  lm_exchanges x;
  const char *label;
  int tag;
  int request; // of the engine; -1: none is needed
  int left;    // messages that are not complete
  uint8_t *workspace;
  size_t bytes; // of the workspace
} lm_coll_state;

// The thread of progress.h.
typedef struct lm_comm_progress {
  bool runs, ends;
  int apart; // collectives that it advances
  pthread_t thread;
  pthread_mutex_t lock; // of the engine and the collectives, while the thread runs
  pthread_cond_t wake;
} lm_comm_progress;

struct lm_comm {
  int rank, size;
  bool joined; // the control channel
  const lm_engine_ops *engine;
  void *state; // of the engine
  lm_control *control;
  lm_comm_group groups[LM_COMM_GROUPS];
  int n_groups;
  lm_coll_state colls[LM_COMM_HANDLES];
  lm_comm_progress progress;
};

// ---- advance.c

// Starts the first messages of a collective.
lm_status lm_coll_begin(lm_comm *c, lm_coll_state *r);
// Advances a collective as far as it can without waiting, and sets `done`. *moved: messages have
// arrived since the last call.
lm_status lm_coll_advance(lm_comm *c, lm_coll_state *r, bool *moved);

static inline lm_status lm_comm_engine_failed(const char *what, const char *error) {
  return lm_fail(LM_ENV, "%s: %s", what, error);
}
#endif
