// collective.c - collectives as messages of an engine, and sums in the order of the ranks.
//
// A sum is made where its slice belongs: every rank sends each other rank that rank's slice, adds
// the received slices (ordered.h) and, for an all_reduce, sends the sum to all. A rank sends
// (size - 1) / size of the tensor in each of the two exchanges, as a ring does. The order of the
// sums depends on the ranks alone, not on the workspace.
#include <sched.h>
#include <string.h>
#include <time.h>

#include "runtime/comm/comm_state.h"
#include "runtime/comm/ordered.h"

// ---- groups

lm_status lm_comm_groups(lm_comm *c, const lm_comm_mesh *m) {
  char error[LM_ENGINE_TEXT] = "";
  int stride = 1;
  if (!c)
    return NULL;
  if (!c->n_groups) {
    c->groups[0] = (lm_comm_group){.rank = c->rank, .size = c->size};
    if (!c->engine->split(c->state, 0, &c->groups[0].lane, error))
      return lm_control_fail(c->control, lm_comm_engine_failed("a group of ranks", error));
  }
  c->n_groups = 1 + m->n;
  for (int a = m->n - 1; a >= 0; stride *= m->size[a--]) {
    int own = c->rank / stride % m->size[a];
    lm_comm_group *g = &c->groups[1 + a];
    *g = (lm_comm_group){.rank = own, .size = m->size[a]};
    if (!c->engine->split(c->state, c->rank - own * stride, &g->lane, error))
      return lm_control_fail(c->control, lm_comm_engine_failed("a group of ranks", error));
  }
  return m->n && stride != c->size
             ? lm_fail(LM_BUG_STATUS, "a mesh of %d ranks for %d", stride, c->size)
             : NULL;
}

int lm_comm_group_size(const lm_comm *c, int group) {
  return c ? c->groups[group].size : 1;
}

int lm_comm_group_rank(const lm_comm *c, int group) {
  return c ? c->groups[group].rank : 0;
}

// ---- slices

static size_t bytes_of(const lm_coll_state *r, int64_t elements) {
  return (size_t)elements * (size_t)lm_dtype_bytes(r->x.dtype);
}

static uint8_t *from_at(const lm_coll_state *r, int64_t element) {
  return (uint8_t *)r->x.from + bytes_of(r, element);
}

static uint8_t *to_at(const lm_coll_state *r, int64_t element) {
  return (uint8_t *)r->x.to + bytes_of(r, element);
}

// Slice i of the elements that an all_reduce works on: whole except for the last ones.
static int64_t slice_size(const lm_coll_state *r, int ranks) {
  return (r->n + ranks - 1) / ranks;
}

static int64_t slice_first(const lm_coll_state *r, int ranks, int i) {
  int64_t first = slice_size(r, ranks) * i;
  return first < r->n ? first : r->n;
}

static int64_t slice_n(const lm_coll_state *r, int ranks, int i) {
  return slice_first(r, ranks, i + 1) - slice_first(r, ranks, i);
}

static uint8_t *received_at(const lm_coll_state *r, int64_t slice, int i) {
  return r->workspace + bytes_of(r, slice * i);
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

// The messages between this rank and another one, in this phase.
static void peer_messages(const lm_coll_state *r, int ranks, int me, int peer, messages *m) {
  const lm_coll *x = &r->x;
  int64_t n = x->count;
  switch (x->kind) {
  case LM_COLL_ALL_REDUCE: {
    int64_t theirs = r->at + slice_first(r, ranks, peer);
    int64_t mine = r->at + slice_first(r, ranks, me);
    size_t their_bytes = bytes_of(r, slice_n(r, ranks, peer));
    size_t my_bytes = bytes_of(r, slice_n(r, ranks, me));
    if (r->phase == LM_COMM_EXCHANGES) {
      message_add(m, peer, false, received_at(r, slice_size(r, ranks), peer), my_bytes);
      message_add(m, peer, true, from_at(r, theirs), their_bytes);
    } else {
      message_add(m, peer, false, to_at(r, theirs), their_bytes);
      message_add(m, peer, true, to_at(r, mine), my_bytes);
    }
    return;
  }
  case LM_COLL_REDUCE_SCATTER:
    message_add(m, peer, false, received_at(r, r->n, peer), bytes_of(r, r->n));
    message_add(m, peer, true, from_at(r, peer * n + r->at), bytes_of(r, r->n));
    return;
  case LM_COLL_ALL_GATHER:
    message_add(m, peer, false, to_at(r, peer * n), bytes_of(r, n));
    message_add(m, peer, true, from_at(r, 0), bytes_of(r, n));
    return;
  case LM_COLL_ALL_TO_ALL:
    message_add(m, peer, false, to_at(r, peer * n), bytes_of(r, n));
    message_add(m, peer, true, from_at(r, peer * n), bytes_of(r, n));
    return;
  case LM_COLL_SEND:
    if (peer == x->peer)
      message_add(m, peer, true, from_at(r, 0), bytes_of(r, n));
    return;
  case LM_COLL_RECEIVE:
    if (peer == x->peer)
      message_add(m, peer, false, to_at(r, 0), bytes_of(r, n));
    return;
  default: LM_BUG("collective %d", x->kind);
  }
}

// Each rank begins with the next one, so that not all send to the same.
static lm_status messages_start(lm_comm *c, lm_coll_state *r) {
  const lm_comm_group *g = &c->groups[r->x.group];
  messages m = {lm_calloc(2 * (size_t)g->size, sizeof *m.v), 0};
  char error[LM_ENGINE_TEXT] = "";
  bool good = true;
  for (int i = 1; i < g->size; i++)
    peer_messages(r, g->size, g->rank, (g->rank + i) % g->size, &m);
  r->request = -1;
  if (m.n)
    good = c->engine->start(c->state, g->lane, r->tag, m.v, m.n, &r->request, error);
  lm_free(m.v);
  return good ? NULL : lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
}

// ---- phases

static bool is_reduction(lm_coll_kind k) {
  return k == LM_COLL_ALL_REDUCE || k == LM_COLL_REDUCE_SCATTER;
}

static bool is_between_two(lm_coll_kind k) {
  return k == LM_COLL_SEND || k == LM_COLL_RECEIVE;
}

// Elements that are exchanged at a time: as many as the workspace takes from all ranks.
static int64_t part_max(const lm_coll_state *r, int ranks) {
  int64_t all = LM_COMM_WORKSPACE / lm_dtype_bytes(r->x.dtype);
  int64_t n = r->x.kind == LM_COLL_ALL_REDUCE ? all : all / ranks;
  return n > 0 ? n : 1;
}

static void workspace_grow(lm_coll_state *r, size_t bytes) {
  if (bytes <= r->bytes)
    return;
  lm_free(r->workspace);
  r->workspace = lm_calloc(bytes, 1);
  r->bytes = bytes;
}

// Begins with the elements behind `at`. A rank's own slice needs no message.
static lm_status part_start(lm_comm *c, lm_coll_state *r) {
  const lm_comm_group *g = &c->groups[r->x.group];
  r->phase = LM_COMM_EXCHANGES;
  r->n = r->x.count - r->at;
  if (is_reduction(r->x.kind)) {
    int64_t most = part_max(r, g->size);
    r->n = r->n < most ? r->n : most;
    int64_t slice = r->x.kind == LM_COLL_ALL_REDUCE ? slice_size(r, g->size) : r->n;
    workspace_grow(r, bytes_of(r, slice * g->size));
  }
  return messages_start(c, r);
}

static void part_reduce(const lm_comm *c, const lm_coll_state *r) {
  const lm_comm_group *g = &c->groups[r->x.group];
  bool all = r->x.kind == LM_COLL_ALL_REDUCE;
  int64_t slice = all ? slice_size(r, g->size) : r->n;
  int64_t first = r->at + (all ? slice_first(r, g->size, g->rank) : 0);
  int64_t own = all ? first : g->rank * r->x.count + r->at;
  const void **from = lm_calloc((size_t)g->size, sizeof *from);
  for (int i = 0; i < g->size; i++)
    from[i] = i == g->rank ? from_at(r, own) : received_at(r, slice, i);
  lm_ordered_reduce(r->x.dtype, r->x.op, from, g->size, all ? slice_n(r, g->size, g->rank) : r->n,
                    to_at(r, first));
  lm_free(from);
}

static void idle(int times) {
  if (times < 256)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static lm_status messages_wait(lm_comm *c, lm_coll_state *r) {
  char error[LM_ENGINE_TEXT] = "";
  int left = 0, before = -1;
  for (int times = 0; r->request >= 0; times++) {
    if (!c->engine->test(c->state, r->request, &left, error))
      return lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
    if (!left)
      break;
    LM_TRY(lm_control_check(c->control));
    if (left != before)
      lm_control_progress(c->control);
    before = left;
    idle(times);
  }
  r->request = -1;
  lm_control_progress(c->control);
  return NULL;
}

// Waits for the messages and starts those of the next phase. *done: there is none.
static lm_status phase_next(lm_comm *c, lm_coll_state *r, bool *done) {
  LM_TRY(messages_wait(c, r));
  if (is_reduction(r->x.kind) && r->phase == LM_COMM_EXCHANGES)
    part_reduce(c, r);
  if (r->x.kind == LM_COLL_ALL_REDUCE && r->phase == LM_COMM_EXCHANGES) {
    r->phase = LM_COMM_GATHERS;
    return messages_start(c, r);
  }
  r->at += r->n;
  *done = r->at >= r->x.count;
  return *done ? NULL : part_start(c, r);
}

// ---- the interface

// What a rank gives itself.
static void own_copy(const lm_coll *x, int ranks, int me) {
  size_t bytes = (size_t)x->count * (size_t)lm_dtype_bytes(x->dtype);
  const uint8_t *from = x->from;
  uint8_t *to = x->to;
  if (x->kind == LM_COLL_ALL_GATHER || x->kind == LM_COLL_ALL_TO_ALL)
    to += (size_t)me * bytes;
  if (x->kind == LM_COLL_ALL_TO_ALL)
    from += (size_t)me * bytes;
  bool copies = x->kind == LM_COLL_ALL_GATHER || x->kind == LM_COLL_ALL_TO_ALL || ranks == 1;
  if (copies && x->from && to && bytes && from != to)
    memmove(to, from, bytes);
}

static void coll_check(const lm_comm *c, const lm_coll *x) {
  LM_ASSERT(x->count >= 0 && (unsigned)x->kind < LM_COLLS);
  LM_ASSERT(!is_reduction(x->kind) || lm_ordered_knows(x->dtype));
  LM_ASSERT(!c || (x->group >= 0 && x->group < c->n_groups));
  LM_ASSERT(!is_between_two(x->kind) || (c && x->peer != c->groups[x->group].rank && x->peer >= 0 &&
                                         x->peer < c->groups[x->group].size));
}

lm_status lm_comm_start(lm_comm *c, const lm_coll *x, int *handle) {
  enum {
    TAGS = (1 << 15) - 1 // of collectives; the last tag is that of messages between two ranks
  };
  *handle = 0;
  coll_check(c, x);
  own_copy(x, lm_comm_group_size(c, x->group), lm_comm_group_rank(c, x->group));
  if (!c)
    return NULL;
  while (*handle < LM_COMM_HANDLES && c->colls[*handle].used)
    ++*handle;
  LM_ASSERT(*handle < LM_COMM_HANDLES);
  lm_comm_group *g = &c->groups[x->group];
  lm_coll_state *r = &c->colls[*handle];
  r->used = true;
  r->x = *x;
  r->at = 0;
  r->tag = is_between_two(x->kind) ? TAGS : (int)(g->tag++ % TAGS);
  LM_TRY(lm_control_check(c->control));
  return part_start(c, r);
}

lm_status lm_comm_wait(lm_comm *c, int handle) {
  bool done = false;
  lm_status s = NULL;
  if (!c)
    return NULL;
  lm_coll_state *r = &c->colls[handle];
  lm_control_waits(c->control, r->x.label);
  while (!done && !s)
    s = phase_next(c, r, &done);
  lm_control_waits(c->control, NULL);
  r->used = false;
  return s;
}

lm_status lm_comm_run(lm_comm *c, const lm_coll *x) {
  int handle;
  LM_TRY(lm_comm_start(c, x, &handle));
  return lm_comm_wait(c, handle);
}
