// check_mesh.c - lm_plan_check_mesh: the collectives of all ranks together.
//
// First the sequences are compared that the ranks of each group start, and the sends of a rank with
// the receives of its peer: the engine matches them in this order, and the tensors of a bucket in
// theirs. All ranks have one plan, so a tensor of a collective has the same size and the same
// address on each of them, apart from slots that depend on the rank. Then the ranks run in turn,
// each up to a wait that is not met: a wait is met when all ranks of the group, or the peer, have
// started their counterpart. If none can continue, they wait for each other.
#include <string.h>

#include "runtime/plan/walk.h"

typedef struct event {
  const lm_plan_comm *comm;
  int handle;
  bool starts;
} event;

// A START step in an iteration.
typedef struct begun {
  const lm_plan_step *step;
  const int64_t *at; // the offset of each buffer, as on rank 0
} begun;

// What a rank starts in a group, or sends to or receives from a peer: a sequence.
typedef struct channel {
  int group, peer;   // peer -1: collectives of all ranks of the group
  lm_coll_kind kind; // of messages between two ranks
  begun *v;
  uint32_t n, cap;
  uint32_t started; // by the simulation
} channel;

// A collective that is under way.
typedef struct pending {
  channel *of;
  uint32_t number; // in its sequence, from 1
} pending;

typedef struct rank {
  const lm_plan *plan;
  event *v;
  uint32_t n, cap, at;
  channel *channels;
  uint32_t n_channels, cap_channels;
  pending *open; // by handle
  int n_open;
} rank;

typedef struct checker {
  lm_arena *arena;
  rank *r;
  int ranks;
  const char *func;
  lm_plan_walk walk;
  lm_plan_mesh first; // as rank 0 has it
  rank *collected;    // by the walk
  lm_buf *why;
} checker;

// ---- groups

static int stride_of(const lm_plan *p, int group) {
  int stride = 1;
  for (int k = group; group && k < p->mesh.n; k++)
    stride *= p->mesh.axis[k].size;
  return stride;
}

static int size_of(const lm_plan *p, int group) {
  return group ? p->mesh.axis[group - 1].size : lm_plan_mesh_ranks(p);
}

// The coordinate of a rank in its group, and the number of another member among all ranks.
static int own_of(const checker *c, int r, int group) {
  const lm_plan *p = c->r[r].plan;
  return r / stride_of(p, group) % size_of(p, group);
}

static int member_of(const checker *c, int r, int group, int member) {
  return r + (member - own_of(c, r, group)) * stride_of(c->r[r].plan, group);
}

// ---- sequences

static bool is_message(const lm_plan_comm *c) {
  return c->kind == LM_COLL_SEND || c->kind == LM_COLL_RECEIVE;
}

static channel *channel_find(rank *r, int group, int peer, lm_coll_kind kind) {
  for (uint32_t i = 0; i < r->n_channels; i++) {
    channel *x = &r->channels[i];
    if (x->group == group && x->peer == peer && (peer < 0 || x->kind == kind))
      return x;
  }
  return NULL;
}

static channel *channel_of(const checker *c, rank *r, const lm_plan_comm *x) {
  int peer = is_message(x) ? x->peer : -1;
  channel *found = channel_find(r, x->group, peer, x->kind);
  if (!found) {
    LM_PUSH(c->arena, r->channels, r->n_channels, r->cap_channels) = (channel){
        .group = x->group,
        .peer = peer,
        .kind = x->kind,
    };
    found = &r->channels[r->n_channels - 1];
  }
  return found;
}

static begun begun_make(const checker *c, const lm_plan_step *s) {
  int64_t *at = LM_NEW_N(c->arena, int64_t, s->n_bufs + 1);
  const int64_t *index = c->walk.var + c->walk.plan->n_extents;
  for (int i = 0; i < s->n_bufs; i++)
    at[i] = lm_plan_buf_offset(&s->bufs[i], &c->first, index);
  return (begun){s, at};
}

static lm_status step_note(void *user, const lm_plan_step *s) {
  checker *c = user;
  rank *r = c->collected;
  if ((s->kind != LM_STEP_START && s->kind != LM_STEP_WAIT) || lm_plan_step_copies(s))
    return NULL;
  event e = {
      .comm = s->comm,
      .handle = lm_plan_comm_handle(s->comm, c->walk.iteration),
      .starts = s->kind == LM_STEP_START,
  };
  LM_PUSH(c->arena, r->v, r->n, r->cap) = e;
  r->n_open = e.handle >= r->n_open ? e.handle + 1 : r->n_open;
  if (e.starts) {
    channel *x = channel_of(c, r, s->comm);
    LM_PUSH(c->arena, x->v, x->n, x->cap) = begun_make(c, s);
  }
  return NULL;
}

static void comm_print(const lm_plan_comm *c, lm_buf *out) {
  bool reduces = c->kind == LM_COLL_ALL_REDUCE || c->kind == LM_COLL_REDUCE_SCATTER;
  lm_buf_printf(out, "%s%s%s %s %lld", lm_coll_names[c->kind], reduces ? " " : "",
                reduces ? lm_coll_op_names[c->op] : "", lm_dtype_name(c->dtype),
                (long long)c->count);
  if (c->tensors > 1)
    lm_buf_printf(out, " of %d", c->tensors);
  if (c->kind == LM_COLL_RING_SHIFT)
    lm_buf_printf(out, " peer %d", c->peer);
}

static bool comms_fit(const channel *x, const lm_plan_comm *a, const lm_plan_comm *b) {
  if (a->dtype != b->dtype || a->count != b->count || a->tensors != b->tensors)
    return false;
  return x->peer >= 0 || (a->kind == b->kind && a->op == b->op && a->peer == b->peer);
}

static bool bufs_fit(const begun *a, const begun *b, int i) {
  const lm_plan_buf *x = &a->step->bufs[i];
  const lm_plan_buf *y = &b->step->bufs[i];
  return x->arena == y->arena && a->at[i] == b->at[i];
}

// The first tensor of a collective that is another one on the other rank; -1: none.
static int tensor_that_differs(const begun *a, const begun *b) {
  int n = lm_plan_comm_tensors(a->step->comm);
  for (int i = 0; i < a->step->n_bufs; i++) {
    int tensor = i % n;
    int64_t mine = lm_plan_comm_count(a->step, tensor);
    int64_t theirs = lm_plan_comm_count(b->step, tensor);
    if (mine != theirs || !bufs_fit(a, b, i))
      return tensor;
  }
  return -1;
}

static void buf_print(const begun *x, int i, lm_buf *out) {
  lm_arena_id arena = x->step->bufs[i].arena;
  lm_buf_puts(out, lm_arena_names[arena]);
  lm_buf_printf(out, "[%lld]", (long long)x->at[i]);
}

// tensor: -1: none in particular.
static void begun_print(const begun *x, int rank, int tensor, lm_buf *out) {
  const lm_plan_step *s = x->step;
  lm_buf_printf(out, "rank %d has ", rank);
  comm_print(s->comm, out);
  if (tensor < 0)
    return;
  lm_buf_printf(out, ", tensor %d of which has ", tensor);
  lm_buf_printf(out, "%lld", (long long)lm_plan_comm_count(s, tensor));
  lm_buf_puts(out, " elements from ");
  buf_print(x, tensor, out);
  lm_buf_puts(out, " to ");
  buf_print(x, s->n_read + tensor, out);
}

static bool begun_fit(const checker *c, int r, const channel *x, int other, const channel *theirs,
                      uint32_t i) {
  const begun *a = &x->v[i];
  const begun *b = &theirs->v[i];
  const char *over = lm_plan_group_name(c->r[r].plan, x->group);
  bool same = comms_fit(x, a->step->comm, b->step->comm);
  int tensor = -1;
  if (same && x->peer < 0)
    tensor = tensor_that_differs(a, b);
  if (same && tensor < 0)
    return true;
  lm_buf_printf(c->why, "%s: number %u over %s: ", c->func, i + 1, over);
  begun_print(a, r, tensor, c->why);
  lm_buf_puts(c->why, ", ");
  begun_print(b, other, tensor, c->why);
  lm_buf_puts(c->why, "\n");
  return false;
}

// The counterpart of the channel x of rank r, in another rank of the group.
static bool channels_fit(const checker *c, int r, const channel *x, int other,
                         const channel *theirs) {
  const char *over = lm_plan_group_name(c->r[r].plan, x->group);
  uint32_t n = theirs ? theirs->n : 0;
  for (uint32_t i = 0; i < x->n && i < n; i++)
    if (!begun_fit(c, r, x, other, theirs, i))
      return false;
  if (x->n != n)
    lm_buf_printf(c->why, "%s: over %s rank %d starts %u %s, rank %d %u\n", c->func, over, r, x->n,
                  x->peer < 0 ? "collectives" : lm_coll_names[x->kind], other, n);
  return x->n == n;
}

static channel *counterpart(const checker *c, int r, const channel *x, int other) {
  if (x->peer < 0)
    return channel_find(&c->r[other], x->group, -1, x->kind);
  lm_coll_kind kind = x->kind == LM_COLL_SEND ? LM_COLL_RECEIVE : LM_COLL_SEND;
  return channel_find(&c->r[other], x->group, own_of(c, r, x->group), kind);
}

static bool peer_exists(const checker *c, int r, const channel *x) {
  bool exists = x->peer < size_of(c->r[r].plan, x->group) && x->peer != own_of(c, r, x->group);
  if (!exists)
    lm_buf_printf(c->why, "%s: rank %d has a message to or from %d over %s\n", c->func, r, x->peer,
                  lm_plan_group_name(c->r[r].plan, x->group));
  return exists;
}

static bool sequences_check(const checker *c) {
  bool ok = true;
  for (int r = 0; r < c->ranks; r++)
    for (uint32_t i = 0; i < c->r[r].n_channels && ok; i++) {
      const channel *x = &c->r[r].channels[i];
      int first = x->peer < 0 ? 0 : x->peer;
      int end = x->peer < 0 ? size_of(c->r[r].plan, x->group) : x->peer + 1;
      ok = x->peer < 0 || peer_exists(c, r, x);
      for (int m = first; m < end && ok; m++) {
        int other = member_of(c, r, x->group, m);
        ok = other == r || channels_fit(c, r, x, other, counterpart(c, r, x, other));
      }
    }
  return ok;
}

// ---- waits

static bool is_met(const checker *c, int r, const channel *x, uint32_t number) {
  int first = x->peer < 0 ? 0 : x->peer;
  int end = x->peer < 0 ? size_of(c->r[r].plan, x->group) : x->peer + 1;
  for (int m = first; m < end; m++) {
    int other = member_of(c, r, x->group, m);
    if (counterpart(c, r, x, other)->started < number)
      return false;
  }
  return true;
}

// Runs rank r up to a wait that is not met. True if it has made progress.
static bool rank_advance(checker *c, int r) {
  rank *x = &c->r[r];
  uint32_t before = x->at;
  for (; x->at < x->n; x->at++) {
    const event *e = &x->v[x->at];
    if (e->starts) {
      channel *of = channel_of(c, x, e->comm);
      x->open[e->handle] = (pending){of, ++of->started};
    } else if (!x->open[e->handle].of) {
      lm_buf_printf(c->why, "%s: rank %d waits for handle %d, which no step has started\n", c->func,
                    r, e->handle);
      x->n = x->at;
    } else if (!is_met(c, r, x->open[e->handle].of, x->open[e->handle].number)) {
      break;
    } else {
      x->open[e->handle].of = NULL;
    }
  }
  return x->at != before;
}

static bool waits_check(checker *c) {
  bool moves = true, ended = true;
  while (moves && !c->why->n) {
    moves = false;
    for (int r = 0; r < c->ranks; r++)
      moves |= rank_advance(c, r);
  }
  for (int r = 0; r < c->ranks && !c->why->n; r++)
    ended &= c->r[r].at == c->r[r].n;
  for (int r = 0; r < c->ranks && !ended; r++) {
    const rank *x = &c->r[r];
    if (x->at == x->n)
      continue;
    const pending *p = &x->open[x->v[x->at].handle];
    lm_buf_printf(c->why, "%s: the ranks wait for each other: rank %d in ", c->func, r);
    comm_print(p->of->v[p->number - 1].step->comm, c->why);
    lm_buf_printf(c->why, " over %s\n", lm_plan_group_name(x->plan, p->of->group));
  }
  return ended;
}

// ---- the check

bool lm_plan_check_mesh(const lm_plan *const *plans, const char *func, lm_buf *why) {
  lm_buf found = {0};
  checker c = {
      .arena = lm_arena_create(),
      .ranks = lm_plan_mesh_ranks(plans[0]),
      .func = func,
      .why = &found,
  };
  c.r = LM_NEW_N(c.arena, rank, c.ranks);
  c.first = plans[0]->mesh;
  for (int k = 0; k < c.first.n; k++)
    c.first.axis[k].at = 0;
  for (int r = 0; r < c.ranks; r++) {
    const lm_plan_func *f = lm_plan_func_find(plans[r], func);
    c.collected = &c.r[r];
    c.r[r].plan = plans[r];
    lm_plan_walk_open(plans[r], &c.walk);
    lm_status s = f ? lm_plan_walk_run(&c.walk, f, NULL, step_note, &c) : NULL;
    LM_ASSERT(!s);
    lm_plan_walk_close(&c.walk);
    c.r[r].open = LM_NEW_N(c.arena, pending, c.r[r].n_open + 1);
  }
  if (sequences_check(&c))
    waits_check(&c);
  bool ok = !found.n;
  if (!ok)
    lm_buf_puts(why, found.p);
  lm_buf_free(&found);
  lm_arena_destroy(c.arena);
  return ok;
}
