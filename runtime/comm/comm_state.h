// comm_state.h - the state of an lm_comm, for the files that implement comm.h.
#ifndef LM_COMM_COMM_STATE_H
#define LM_COMM_COMM_STATE_H
#include "runtime/comm/comm.h"
#include "runtime/comm/control.h"
#include "runtime/comm/engine.h"
#include "runtime/comm/exchange.h"

enum {
  LM_COMM_HANDLES = 16, // collectives that are under way at a time
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
  lm_exchange x;
  int tag;
  int request; // of the engine; -1: none is needed
  uint8_t *workspace;
  size_t bytes; // of the workspace
} lm_coll_state;

struct lm_comm {
  int rank, size;
  bool joined; // the control channel
  const lm_engine_ops *engine;
  void *state; // of the engine
  lm_control *control;
  lm_comm_group groups[LM_COMM_GROUPS];
  int n_groups;
  lm_coll_state colls[LM_COMM_HANDLES];
};

static inline lm_status lm_comm_engine_failed(const char *what, const char *error) {
  return lm_fail(LM_ENV, "%s: %s", what, error);
}
#endif
