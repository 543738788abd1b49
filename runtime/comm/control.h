// control.h - the control channel: TCP connections of all ranks to rank 0, and a thread at each
// end.
//
// It carries small values of the host, and a beat from both ends. A rank whose connection closes,
// that is silent for some seconds or that reports a failure makes the run fail: rank 0 tells the
// others why, and each of their calls returns that status. A rank that loses rank 0 finds out for
// itself. The same if all ranks wait and none progresses.
//
// A connection is accepted only with the cookie that the engine has carried to all ranks.
#ifndef LM_COMM_CONTROL_H
#define LM_COMM_CONTROL_H
#include "runtime/comm/comm.h"
#include "runtime/comm/socket.h"

enum {
  LM_CONTROL_HOST = 64, // bytes of a host's name, with its end
  LM_CONTROL_LABEL = 96 // of what a rank is doing
};

// A rank as rank 0 knows it, and tells it to all.
typedef struct lm_control_member {
  char host[LM_CONTROL_HOST];
  int pid, local_rank, local_size, sharing; // as lm_comm_self
} lm_control_member;

// Seconds, from the environment.
#define LM_MPI_START_S 120.0 // mpirun may copy programs to machines first

typedef struct lm_control_limits {
  double start;   // LMC_COMM_START or the default of the launcher: until all ranks have joined
  double silence; // LMC_COMM_SILENCE: until a rank that sends nothing is lost
  double stuck;   // LMC_COMM_STUCK: until ranks that all wait are declared stuck
  double connect; // LMC_COMM_CONNECT: the same while devices connect
  double grace;   // from a failure until the process is ended
} lm_control_limits;
lm_control_limits lm_control_limits_of_environment(double start);

typedef struct lm_control lm_control;
// Starts the thread, which ends the process (options as in comm.h, copied) if `join` has not
// returned when the limit has passed. rank: of this process, as its launcher says. siblings: the
// variable that has the rank of each process with the same parent, which then also ends it if one
// of them is stopped; NULL: the parent may have other processes.
lm_control *lm_control_create(const lm_comm_options *o, lm_control_limits limits, int rank,
                              const char *siblings);
lm_status lm_control_listen(lm_control *c, lm_address *out); // rank 0
// Connects to rank 0 or, at rank 0, waits for all.
lm_status lm_control_join(lm_control *c, int rank, int size, const lm_address *a);
lm_status lm_control_end(lm_control *c); // waits until all ranks call it
// Behind lm_control_end, before the engine is closed: the thread ends the process as before `join`
// if that takes longer than LMC_COMM_STUCK.
void lm_control_leave(lm_control *c);
const lm_control_member *lm_control_members(const lm_control *c); // [size]
// See lm_comm_close. Frees c.
void lm_control_close(lm_control *c, lm_status failed);
bool lm_control_speaks(lm_control *c);

// See comm.h.
lm_status lm_control_agree(lm_control *c, const char *what, const void *own, size_t bytes,
                           void *all);
lm_status lm_control_decide(lm_control *c, const char *what, void *value, size_t bytes);

// NULL while the run has not failed, else why. Cheap enough to be called while waiting.
lm_status lm_control_check(lm_control *c);
// This rank waits for others, in a collective of that label; NULL: it computes. Also shown when
// another rank is lost. bytes: as lm_comm_waits.
void lm_control_waits(lm_control *c, const char *label, int64_t bytes);
double lm_control_waited(lm_control *c);                    // see lm_comm_waited
void lm_control_connects(lm_control *c, const char *label); // see lm_comm_connects
// Something that this rank waits for has happened.
void lm_control_progress(lm_control *c);
// A failure of the engine: all ranks fail. Returns the run's failure, which may be an earlier one.
lm_status lm_control_fail(lm_control *c, lm_status own);
#endif
