// exchange.h - a collective as messages between the ranks of a group: which slices a rank sends,
// where it receives, and which slices it adds. It holds no communication, so that the ranks of CPUs
// (collective.c) and of GPUs (runtime/cuda/nccl.c) exchange and add the same slices.
//
// A sum is made where its slice belongs: every rank sends each other rank that rank's slice, adds
// the received slices in the order of the ranks, and, for an all_reduce, sends the sum to all. A
// rank sends (size - 1) / size of the tensor in each of the two exchanges, as a ring does. The
// workspace holds some elements of each rank, so a reduction works in rounds; the order of the sums
// does not depend on it.
//
//   lm_exchanges_make(&g, colls, n, ranks, me, bytes of the workspace of each);
//   do {
//     lm_exchanges_place(&g, lm_exchanges_workspace(&g) bytes);
//     run lm_exchanges_messages(&g, …); add what lm_exchange_sum(&g.v[i], …) names;
//   } while (lm_exchanges_next(&g));
#ifndef LM_COMM_EXCHANGE_H
#define LM_COMM_EXCHANGE_H
#include "runtime/comm/comm.h"
#include "runtime/comm/engine.h"

enum {
  LM_EXCHANGE_ROOM = 8 << 20 // bytes of the workspace of a rank, for each collective under way
};

typedef struct lm_exchange {
  lm_coll coll;
  int ranks, me; // of the group
  size_t room;   // maximum of lm_exchange_workspace
  enum {
    LM_EXCHANGE_SLICES, // sends from coll.from, receives in the workspace or in coll.to
    LM_EXCHANGE_SUMS    // of an all_reduce: sends and receives sums in coll.to
  } phase;
  int64_t at, n;      // the round works on the elements at … at + n - 1
  uint8_t *workspace; // set by the caller; may be an address that the host cannot access
} lm_exchange;

// True if the kind adds or compares elements.
bool lm_exchange_reduces(lm_coll_kind k);
// True if a library makes the sum: an exchange of it has no messages, and needs no workspace.
bool lm_exchange_by_library(const lm_exchange *x);
size_t lm_exchange_workspace(const lm_exchange *x); // bytes of this round; 0: none
// If the phase has received slices: fills from[ranks] with the slices to add, in the order of the
// ranks, and returns the number of their elements, which may be 0. Otherwise -1.
int64_t lm_exchange_sum(const lm_exchange *x, const void **from, void **to);
// For an exchange of rows: true if `from` and `to` have space for as many rows as the counts say.
bool lm_exchange_rows_fit(const lm_exchange *x);
// For an exchange of rows: *to is the part of the result behind the last received row, which the
// caller clears. Returns its bytes; 0: nothing is left.
size_t lm_exchange_rest(const lm_exchange *x, void **to);
// What a rank gives itself. Returns the bytes to copy; 0: nothing.
size_t lm_exchange_own(const lm_exchange *x, const void **from, void **to);

// The collectives of a bucket that are not complete, in the same order on all ranks. A phase has
// the messages of all.
typedef struct lm_exchanges {
  lm_exchange v[LM_COLL_BUCKET];
  int n;
} lm_exchanges;
void lm_exchanges_make(lm_exchanges *g, const lm_coll *x, int n, int ranks, int me, size_t room);
// The bytes of this round; lm_exchanges_place gives them to the collectives. NULL, if only the
// sizes of messages are read: the messages to it then have no data.
size_t lm_exchanges_workspace(const lm_exchanges *g);
void lm_exchanges_place(lm_exchanges *g, uint8_t *workspace);
// Fills `out`, which has space for 2 * ranks * g->n, with the messages of the phase. Returns their
// number. Each rank begins with the next one, so that not all send to the same.
int lm_exchanges_messages(const lm_exchanges *g, lm_message *out);
// Continues each with its next phase or round, which may need more workspace. False: all are
// complete.
bool lm_exchanges_next(lm_exchanges *g);
#endif
