// check_mesh.c - lm_plan_check_mesh: the collectives of all ranks together.
//
// First the sequences are compared that the ranks of each group start, and the sends of a rank with
// the receives of its peer: the engine matches them in this order. Then the ranks run in turn, each
// up to a wait that is not met: a wait is met when all ranks of the group, or the peer, have
// started their counterpart. If none can continue, they wait for each other.
#include <string.h>

#include "runtime/plan/walk.h"

typedef struct event {
  const lm_plan_comm *comm;
  int handle;
  bool starts;
} event;

// What a rank starts in a group, or sends to or receives from a peer: a sequence.
typedef struct channel {
  int group, peer;   // peer -1: collectives of all ranks of the group
  lm_coll_kind kind; // of messages between two ranks
  const lm_plan_comm **v;
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
  rank *collected; // by the walk
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

static lm_status step_note(void *user, const lm_plan_step *s) {
  checker *c = user;
  rank *r = c->collected;
  if ((s->kind != LM_STEP_START && s->kind != LM_STEP_WAIT) || lm_plan_step_copies(s))
    return NULL;
  event e = {s->comm, lm_plan_comm_handle(s->comm, c->walk.iteration), s->kind == LM_STEP_START};
  LM_PUSH(c->arena, r->v, r->n, r->cap) = e;
  r->n_open = e.handle >= r->n_open ? e.handle + 1 : r->n_open;
  if (e.starts) {
    channel *x = channel_of(c, r, s->comm);
    LM_PUSH(c->arena, x->v, x->n, x->cap) = s->comm;
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

// The counterpart of the channel x of rank r, in another rank of the group.
static bool channels_fit(const checker *c, int r, const channel *x, int other,
                         const channel *theirs) {
  const char *over = lm_plan_group_name(c->r[r].plan, x->group);
  uint32_t n = theirs ? theirs->n : 0;
  for (uint32_t i = 0; i < x->n && i < n; i++) {
    const lm_plan_comm *a = x->v[i], *b = theirs->v[i];
    bool same = a->dtype == b->dtype && a->count == b->count && a->tensors == b->tensors;
    if (same && (x->peer >= 0 || (a->kind == b->kind && a->op == b->op && a->peer == b->peer)))
      continue;
    lm_buf_printf(c->why, "%s: number %u over %s: rank %d has ", c->func, i + 1, over, r);
    comm_print(a, c->why);
    lm_buf_printf(c->why, ", rank %d has ", other);
    comm_print(b, c->why);
    lm_buf_puts(c->why, "\n");
    return false;
  }
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
    comm_print(p->of->v[p->number - 1], c->why);
    lm_buf_printf(c->why, " over %s\n", lm_plan_group_name(x->plan, p->of->group));
  }
  return ended;
}

// ---- the check

bool lm_plan_check_mesh(const lm_plan *const *plans, const char *func, lm_buf *why) {
  checker c = {.arena = lm_arena_create(),
               .ranks = lm_plan_mesh_ranks(plans[0]),
               .func = func,
               .why = &(lm_buf){0}};
  c.r = LM_NEW_N(c.arena, rank, c.ranks);
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
  bool ok = !c.why->n;
  if (!ok)
    lm_buf_puts(why, c.why->p);
  lm_buf_free(c.why);
  lm_arena_destroy(c.arena);
  return ok;
}
