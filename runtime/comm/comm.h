// comm.h - this process among the ranks of a run: their machines, agreements of the host, and
// collectives over tensors.
//
// A NULL lm_comm is one process: every function then works for one rank, and no communication
// library is loaded. Otherwise each function is called by all ranks (of the group, for collectives)
// in the same order.
//
// Two channels connect the ranks. Tensors travel through an engine (engine.h): MPI or TCP. A
// control channel of TCP connections to rank 0 (control.h) carries small values of the host, and
// notices within seconds when a rank has ended, is stopped or cannot be reached. Every function
// then returns the same LM_ENV status on all ranks that are left, which names that rank, its host
// and the collectives in which it and the others were.
//
// Sums are made in the order of the ranks, so they have the same bits in every run: the ranks are
// added in blocks of eight, and the sums of the blocks then in order. bf16 is added in f32 and
// rounded once. An engine that is a library of sums makes those of LM_COLL_LIBRARY_SUM, in its own
// order.
//
// Threads: one thread uses an lm_comm, which starts others.
#ifndef LM_COMM_COMM_H
#define LM_COMM_COMM_H
#include "contract/collective.h"
#include "contract/dtype.h"
#include "contract/mesh.h"
#include "runtime/base/base.h"

typedef struct lm_comm lm_comm;

// ---- opening and closing

typedef struct lm_comm_options {
  // Ends the process; must not return. Called by another thread if the run has failed and the
  // caller has not closed the comm some seconds later: it may be in the middle of a long
  // computation. Also called by lm_comm_open if rank 0 reports why the ranks do not find each
  // other. `speaks`: this rank reports the failure.
  void (*end)(void *user, lm_kind kind, const char *text, bool speaks);
  void *user;
} lm_comm_options;

// Joins the processes that a launcher has started with this one (launch.h); NULL without one.
// LM_ENV: the engine's plugin is missing, or the ranks do not find each other.
lm_status lm_comm_open(const lm_comm_options *o, lm_comm **out);
// failed: why this rank ends before the others, which then end too; NULL: it waits until all ranks
// close their comms. A failure that rank 0 has too is reported by rank 0 alone. c may be NULL.
void lm_comm_close(lm_comm *c, lm_status failed);
// Ends the thread of collectives that were started `apart`, so that their memory may be freed.
// Those under way are never complete, so they may be only of a run that has failed. c may be NULL.
void lm_comm_stop(lm_comm *c);
// True if this rank reports to the user: rank 0, or one rank of each host if rank 0 is lost.
bool lm_comm_speaks(const lm_comm *c);

typedef struct lm_comm_self {
  int rank, size;
  int local_rank, local_size; // among the ranks of this host
  int sharing;                // ranks that may use the processors that this rank may use
  const char *host;           // name of this rank's machine
} lm_comm_self;
lm_comm_self lm_comm_self_of(const lm_comm *c);
static inline bool lm_comm_is_first(const lm_comm *c) { // rank 0 decides and writes
  return !c || lm_comm_self_of(c).rank == 0;
}

// ---- decisions of the host. `what` names the call in messages: "the step's totals".

// Gathers `bytes` of every rank: all[rank * bytes]. For small values.
lm_status lm_comm_agree(lm_comm *c, const char *what, const void *own, size_t bytes, void *all);
// Sets *value to rank 0's.
lm_status lm_comm_decide(lm_comm *c, const char *what, void *value, size_t bytes);
// Sets *value to that of the first rank where it is not 0; 0: it is 0 on all ranks.
lm_status lm_comm_any(lm_comm *c, const char *what, int *value);
// NULL while the run has not failed, else why. Cheap enough to be called while a device computes.
lm_status lm_comm_check(lm_comm *c);
// The device of this rank waits for others, in a collective of that label, while the host waits for
// the device; NULL: no more. If all ranks wait, and none has moved for some time, the run fails.
// bytes: of the messages until the rank moves, whose time at the slowest rate is added to the
// limit.
void lm_comm_waits(lm_comm *c, const char *label, int64_t bytes);
// Seconds for which this rank has waited for others since the ranks have joined.
double lm_comm_waited(const lm_comm *c);
void lm_comm_moved(lm_comm *c); // the device has completed a collective, or a part of one
// This rank is in a call by which devices find each other, for which there is another limit. The
// label names the call, or the others for which it waits.
void lm_comm_connects(lm_comm *c, const char *label);
// Reports a failure of this rank in the middle of a run: all ranks fail, and this process ends even
// if its cleanup hangs. Takes `own`. Returns the run's failure, which may be an earlier one.
lm_status lm_comm_fail(lm_comm *c, lm_status own);
// Returns `own`, unless another rank has failed where this one did not: then that failure, with the
// rank's name. So all ranks continue, or none.
lm_status lm_comm_settle(lm_comm *c, const char *what, lm_status own);
// LM_ENV with the name of `what` and of the first rank that differs, unless all ranks have the same
// hash.
lm_status lm_comm_equal(lm_comm *c, const char *what, uint64_t hash);
// The same among the ranks that give the same color.
lm_status lm_comm_equal_of_color(lm_comm *c, const char *what, int color, uint64_t hash);

// The engine that moves tensors between ranks on CPUs: "MPI", "TCP".
const char *lm_comm_engine(const lm_comm *c);
// True if the engine is a library of sums, which makes those of LM_COLL_LIBRARY_SUM.
bool lm_comm_sums(const lm_comm *c);

// ---- groups of ranks

typedef struct lm_comm_mesh {
  int n;
  int size[LM_MESH_AXES]; // outermost first: neighboring ranks differ in the last one
} lm_comm_mesh;
// Makes a group of each line of ranks along each axis. The sizes multiply to the number of
// ranks. Group 0 is all ranks, group 1 + a the ranks that differ from this one in axis a alone.
lm_status lm_comm_groups(lm_comm *c, const lm_comm_mesh *m);
int lm_comm_group_size(const lm_comm *c, int group);
int lm_comm_group_rank(const lm_comm *c, int group); // this rank's index in the group
// The rank, among all, of member i of a group.
int lm_comm_group_member(const lm_comm *c, int group, int i);

// ---- collectives

// from and to of each kind: contract/collectives.def.
typedef struct lm_coll {
  lm_coll_kind kind;
  lm_dtype dtype; // f32, bf16, f16, f64 or int for sums and maxima; any otherwise
  lm_coll_op op;
  int group;
  int64_t count; // elements, see contract/collectives.def
  const void *from;
  void *to; // may be `from` of an all_reduce; of an all_gather, `from` may be the own slice of it
  int peer;
  const char *label; // names the tensors in messages; must outlive the comm
  // The rank computes between start and wait: a thread of the comm advances the collective.
  bool apart;
  // Of an exchange of rows: how many this rank sends to each rank of the group, and receives, and
  // how many `from` and `to` have.
  const int32_t *send, *receive;
  int64_t from_rows, to_rows;
} lm_coll;

// Starts a collective, whose memory must remain untouched until lm_comm_wait(handle) returns.
// Ranks may run apart between the two. The ranks of a group start its collectives in one order;
// sends to a rank and its receives from there are matched in the order in which they start.
lm_status lm_comm_start(lm_comm *c, const lm_coll *x, int *handle);
// The same of n collectives, at most LM_COLL_BUCKET, of one kind, dtype and group, which advance
// together: of those that sum, each may use a workspace of 8 MiB.
lm_status lm_comm_start_bucket(lm_comm *c, const lm_coll *x, int n, int *handle);
lm_status lm_comm_wait(lm_comm *c, int handle);
lm_status lm_comm_run(lm_comm *c, const lm_coll *x); // both
// Notes the status that this process ends with, if --ranks has started it. Returns it.
int lm_rank_ends(int status);
#endif
