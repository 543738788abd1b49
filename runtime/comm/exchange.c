// exchange.c - see exchange.h.
#include "runtime/comm/exchange.h"

// ---- slices

static size_t bytes_of(const lm_exchange *x, int64_t elements) {
  return (size_t)elements * (size_t)lm_dtype_bytes(x->coll.dtype);
}

static uint8_t *from_at(const lm_exchange *x, int64_t element) {
  return (uint8_t *)x->coll.from + bytes_of(x, element);
}

static uint8_t *to_at(const lm_exchange *x, int64_t element) {
  return (uint8_t *)x->coll.to + bytes_of(x, element);
}

// Slice i of the elements of a round of an all_reduce: whole except for the last ones.
static int64_t slice_size(const lm_exchange *x) {
  return (x->n + x->ranks - 1) / x->ranks;
}

static int64_t slice_first(const lm_exchange *x, int i) {
  int64_t first = slice_size(x) * i;
  return first < x->n ? first : x->n;
}

static int64_t slice_n(const lm_exchange *x, int i) {
  return slice_first(x, i + 1) - slice_first(x, i);
}

static uint8_t *received_at(const lm_exchange *x, int64_t slice, int i) {
  return x->workspace ? x->workspace + bytes_of(x, slice * i) : NULL;
}

// ---- rounds

bool lm_exchange_reduces(lm_coll_kind k) {
  return k == LM_COLL_ALL_REDUCE || k == LM_COLL_REDUCE_SCATTER;
}

bool lm_exchange_by_library(const lm_exchange *x) {
  return lm_exchange_reduces(x->coll.kind) && x->coll.op == LM_COLL_LIBRARY_SUM && x->ranks > 1;
}

// True if this rank adds or compares elements.
static bool reduces(const lm_exchange *x) {
  return lm_exchange_reduces(x->coll.kind) && !lm_exchange_by_library(x);
}

// Elements of a round: as many as the workspace takes from all ranks.
static int64_t round_max(const lm_exchange *x) {
  int64_t all = (int64_t)x->room / lm_dtype_bytes(x->coll.dtype);
  int64_t n = x->coll.kind == LM_COLL_ALL_REDUCE ? all : all / x->ranks;
  return n > 0 ? n : 1;
}

// Begins a round with the elements behind x->at.
static void round_begin(lm_exchange *x) {
  int64_t most = round_max(x);
  x->phase = LM_EXCHANGE_SLICES;
  x->n = x->coll.count - x->at;
  if (reduces(x) && x->n > most)
    x->n = most;
}

// Elements that the workspace has of each rank.
static int64_t received_n(const lm_exchange *x) {
  return x->coll.kind == LM_COLL_ALL_REDUCE ? slice_size(x) : x->n;
}

size_t lm_exchange_workspace(const lm_exchange *x) {
  return reduces(x) ? bytes_of(x, received_n(x) * x->ranks) : 0;
}

// Continues with the next phase or the next round. False: done.
static bool next(lm_exchange *x) {
  bool sums = x->coll.kind == LM_COLL_ALL_REDUCE && reduces(x);
  if (sums && x->phase == LM_EXCHANGE_SLICES) {
    x->phase = LM_EXCHANGE_SUMS;
    return true;
  }
  x->at += x->n;
  if (x->at >= x->coll.count)
    return false;
  round_begin(x);
  return true;
}

// ---- messages

typedef struct messages {
  lm_message *v;
  int n;
} messages;

static void message_add(messages *m, int peer, bool sends, void *data, size_t bytes) {
  if (bytes)
    m->v[m->n++] = (lm_message){peer, sends, data, bytes};
}

static void all_reduce_messages(const lm_exchange *x, int peer, messages *m) {
  int64_t theirs = x->at + slice_first(x, peer);
  int64_t mine = x->at + slice_first(x, x->me);
  size_t their_bytes = bytes_of(x, slice_n(x, peer));
  size_t my_bytes = bytes_of(x, slice_n(x, x->me));
  if (x->phase == LM_EXCHANGE_SLICES) {
    message_add(m, peer, false, received_at(x, slice_size(x), peer), my_bytes);
    message_add(m, peer, true, from_at(x, theirs), their_bytes);
  } else {
    message_add(m, peer, false, to_at(x, theirs), their_bytes);
    message_add(m, peer, true, to_at(x, mine), my_bytes);
  }
}

// The first row of an exchange of rows that is for, or of, rank i.
static int64_t rows_before(const int32_t *rows, int i) {
  int64_t n = 0;
  for (int k = 0; k < i; k++)
    n += rows[k];
  return n;
}

bool lm_exchange_rows_fit(const lm_exchange *x) {
  const lm_coll *c = &x->coll;
  for (int i = 0; i < x->ranks; i++)
    if (c->send[i] < 0 || c->receive[i] < 0)
      return false;
  return rows_before(c->send, x->ranks) <= c->from_rows &&
         rows_before(c->receive, x->ranks) <= c->to_rows;
}

size_t lm_exchange_rest(const lm_exchange *x, void **to) {
  const lm_coll *c = &x->coll;
  if (c->kind != LM_COLL_EXCHANGE_ROWS)
    return 0;
  int64_t n = rows_before(c->receive, x->ranks);
  *to = to_at(x, n * c->count);
  return bytes_of(x, (c->to_rows - n) * c->count);
}

// The rank `by` behind this one in the ring.
static int shifted(const lm_exchange *x, int by) {
  return ((x->me + by) % x->ranks + x->ranks) % x->ranks;
}

// The messages between this rank and another one, in this phase.
static void peer_messages(const lm_exchange *x, int peer, messages *m) {
  int64_t n = x->coll.count;
  switch (x->coll.kind) {
  case LM_COLL_ALL_REDUCE: all_reduce_messages(x, peer, m); return;
  case LM_COLL_REDUCE_SCATTER:
    message_add(m, peer, false, received_at(x, x->n, peer), bytes_of(x, x->n));
    message_add(m, peer, true, from_at(x, peer * n + x->at), bytes_of(x, x->n));
    return;
  case LM_COLL_ALL_GATHER:
    message_add(m, peer, false, to_at(x, peer * n), bytes_of(x, n));
    message_add(m, peer, true, from_at(x, 0), bytes_of(x, n));
    return;
  case LM_COLL_ALL_TO_ALL:
    message_add(m, peer, false, to_at(x, peer * n), bytes_of(x, n));
    message_add(m, peer, true, from_at(x, peer * n), bytes_of(x, n));
    return;
  case LM_COLL_EXCHANGE_ROWS:
    message_add(m, peer, false, to_at(x, rows_before(x->coll.receive, peer) * n),
                bytes_of(x, x->coll.receive[peer] * n));
    message_add(m, peer, true, from_at(x, rows_before(x->coll.send, peer) * n),
                bytes_of(x, x->coll.send[peer] * n));
    return;
  case LM_COLL_RING_SHIFT:
    if (peer == shifted(x, -x->coll.peer))
      message_add(m, peer, false, to_at(x, 0), bytes_of(x, n));
    if (peer == shifted(x, x->coll.peer))
      message_add(m, peer, true, from_at(x, 0), bytes_of(x, n));
    return;
  case LM_COLL_SEND:
    if (peer == x->coll.peer)
      message_add(m, peer, true, from_at(x, 0), bytes_of(x, n));
    return;
  case LM_COLL_RECEIVE:
    if (peer == x->coll.peer)
      message_add(m, peer, false, to_at(x, 0), bytes_of(x, n));
    return;
  default: LM_BUG("collective %d", x->coll.kind);
  }
}

static int messages_of(const lm_exchange *x, lm_message *out) {
  messages m = {out, 0};
  for (int i = 1; i < x->ranks && !lm_exchange_by_library(x); i++)
    peer_messages(x, (x->me + i) % x->ranks, &m);
  return m.n;
}

// ---- what stays on the rank

int64_t lm_exchange_sum(const lm_exchange *x, const void **from, void **to) {
  if (!reduces(x) || x->phase != LM_EXCHANGE_SLICES)
    return -1;
  bool all = x->coll.kind == LM_COLL_ALL_REDUCE;
  int64_t first = x->at + (all ? slice_first(x, x->me) : 0);
  int64_t own = all ? first : x->me * x->coll.count + x->at;
  for (int i = 0; i < x->ranks; i++)
    from[i] = i == x->me ? from_at(x, own) : received_at(x, received_n(x), i);
  *to = to_at(x, first);
  return all ? slice_n(x, x->me) : x->n;
}

size_t lm_exchange_own(const lm_exchange *x, const void **from, void **to) {
  lm_coll_kind k = x->coll.kind;
  int64_t slice = x->me * x->coll.count;
  bool stays = k == LM_COLL_RING_SHIFT && shifted(x, x->coll.peer) == x->me;
  bool copies = k == LM_COLL_ALL_GATHER || k == LM_COLL_ALL_TO_ALL || x->ranks == 1 || stays;
  if (k == LM_COLL_EXCHANGE_ROWS) {
    *from = from_at(x, rows_before(x->coll.send, x->me) * x->coll.count);
    *to = to_at(x, rows_before(x->coll.receive, x->me) * x->coll.count);
    return bytes_of(x, x->coll.send[x->me] * x->coll.count);
  }
  if (!copies || !x->coll.from || !x->coll.to)
    return 0;
  *from = from_at(x, k == LM_COLL_ALL_TO_ALL ? slice : 0);
  *to = to_at(x, k == LM_COLL_ALL_GATHER || k == LM_COLL_ALL_TO_ALL ? slice : 0);
  return *from == *to ? 0 : bytes_of(x, x->coll.count);
}

// ---- buckets

void lm_exchanges_make(lm_exchanges *g, const lm_coll *x, int n, int ranks, int me, size_t room) {
  LM_ASSERT(n >= 1 && n <= LM_COLL_BUCKET);
  g->n = n;
  for (int i = 0; i < n; i++) {
    g->v[i] = (lm_exchange){
        .coll = x[i],
        .ranks = ranks,
        .me = me,
        .room = room,
    };
    round_begin(&g->v[i]);
  }
}

static size_t workspace_aligned(const lm_exchange *x) {
  enum {
    ALIGN = 64
  };
  return (lm_exchange_workspace(x) + ALIGN - 1) / ALIGN * ALIGN;
}

size_t lm_exchanges_workspace(const lm_exchanges *g) {
  size_t bytes = 0;
  for (int i = 0; i < g->n; i++)
    bytes += workspace_aligned(&g->v[i]);
  return bytes;
}

void lm_exchanges_place(lm_exchanges *g, uint8_t *workspace) {
  for (int i = 0; i < g->n; i++) {
    size_t bytes = workspace_aligned(&g->v[i]);
    g->v[i].workspace = workspace;
    workspace = workspace ? workspace + bytes : NULL;
  }
}

int lm_exchanges_messages(const lm_exchanges *g, lm_message *out) {
  int n = 0;
  for (int i = 0; i < g->n; i++)
    n += messages_of(&g->v[i], out + n);
  return n;
}

bool lm_exchanges_next(lm_exchanges *g) {
  int n = 0;
  for (int i = 0; i < g->n; i++)
    if (next(&g->v[i]))
      g->v[n++] = g->v[i];
  g->n = n;
  return n > 0;
}
