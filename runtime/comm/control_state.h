// control_state.h - the state of a control channel, for the files that implement control.h.
#ifndef LM_COMM_CONTROL_STATE_H
#define LM_COMM_CONTROL_STATE_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>

#include "runtime/comm/control.h"
#include "runtime/comm/wire.h"

typedef struct lm_hello {
  uint8_t cookie[32];
  int32_t rank, size, pid;
  char host[LM_CONTROL_HOST];
  uint64_t machine;    // hash of what identifies its machine
  uint64_t processors; // hash of the set of processors that it may use
} lm_hello;

typedef struct lm_beat {
  char label[LM_CONTROL_LABEL]; // of the last collective
  int32_t waits;                // for others, in it
  uint64_t progress;            // changes with everything that this rank finishes
  double limit;                 // seconds that it may wait without progress, if more than usual
} lm_beat;

// The other end of a connection: at rank 0 every other rank, elsewhere rank 0 alone.
typedef struct lm_peer {
  lm_wire wire;
  lm_hello hello;
  lm_beat beat; // the last one
  double heard; // when anything arrived last
  lm_buf given; // value of a GATHER that is not complete yet
  bool gave;    // there is one
  uint64_t seq; // its number
  char label[LM_CONTROL_LABEL];
} lm_peer;

// A RESULT that has arrived before the caller asks for it.
typedef struct lm_result {
  struct lm_result *next;
  uint64_t seq;
  char label[LM_CONTROL_LABEL];
  lm_buf values;
} lm_result;

struct lm_control {
  lm_comm_options o;
  lm_control_limits limits;
  int rank, size;
  lm_control_member *members; // [size]
  int listener;               // rank 0's socket; -1
  uint8_t cookie[32];
  int wake; // eventfd that interrupts the thread's poll
  pthread_t thread;
  bool has_thread;
  pthread_mutex_t lock; // protects everything below
  pthread_cond_t changed;
  const char *siblings;          // lm_control_create
  pid_t launcher;                // the parent then: an orphan has another one
  bool joined, leaving, closing; // calls that have returned or, of `closing`, begun
  double begun;
  double woke;    // when this process continued that others have reported as stopped; 0: never
  lm_peer *peers; // [size] at rank 0, else one; peers[0] of rank 0 is itself
  int n_peers;
  lm_beat own;
  double waited, waits_since; // seconds of all waits, and when this one began
  double reported;            // the time of the last message that reported a change of `own`
  uint64_t seq;               // of the last call
  lm_result *results;
  bool ended; // all ranks have reached the end
  _Atomic bool failed;
  lm_kind kind; // of the failure
  char *why;
  double failed_at;
  bool lost_first; // rank 0 is lost
  // of rank 0, to find ranks that all wait
  uint64_t progress;
  bool all_wait; // at the last visit
  double moved;  // when they last did not, or one progressed
};

#define LM_CONTROL_END "the end of the run" // the last call

static inline bool lm_control_is_first(const lm_control *c) {
  return c->rank == 0;
}

static inline void lm_label_copy(char *to, const char *from) {
  snprintf(to, LM_CONTROL_LABEL, "%s", from);
}

// Ends the process if the engine opens, or closes, for too long. With the lock held. Returns when
// the ranks have joined, or the control closes.
void lm_control_engine_watch(lm_control *c);

// With the lock held.
void lm_control_failed(lm_control *c, lm_kind kind, const char *text);
void lm_control_wake(lm_control *c); // makes the thread look for frames to send
// Rank 0's own value of call c->seq.
void lm_control_give(lm_control *c, const char *label, const void *own, size_t bytes);
// Sends the values of a call to all other ranks.
void lm_control_result_send(lm_control *c, uint64_t seq, const char *label, const lm_buf *values);
#endif
