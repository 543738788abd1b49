// collective.c - implements the groups of ranks and the collectives that comm.h declares.
#include <string.h>

#include "runtime/comm/ordered.h"
#include "runtime/comm/progress.h"

// ---- groups

lm_status lm_comm_groups(lm_comm *c, const lm_comm_mesh *m) {
  char error[LM_ENGINE_TEXT] = "";
  int stride = 1;
  if (!c)
    return NULL;
  if (!c->n_groups) {
    c->groups[0] = (lm_comm_group){
        .rank = c->rank,
        .size = c->size,
        .stride = 1,
    };
    if (!c->engine->split(c->state, 0, &c->groups[0].lane, error))
      return lm_control_fail(c->control, lm_comm_engine_failed("a group of ranks", error));
  }
  c->n_groups = 1 + m->n;
  for (int a = m->n - 1; a >= 0; stride *= m->size[a--]) {
    int own = c->rank / stride % m->size[a];
    lm_comm_group *g = &c->groups[1 + a];
    int first = c->rank - own * stride;
    *g = (lm_comm_group){
        .rank = own,
        .size = m->size[a],
        .first = first,
        .stride = stride,
    };
    if (!c->engine->split(c->state, first, &g->lane, error))
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

int lm_comm_group_member(const lm_comm *c, int group, int i) {
  return c ? c->groups[group].first + i * c->groups[group].stride : 0;
}

// ---- the interface

static bool is_between_two(lm_coll_kind k) {
  return k == LM_COLL_SEND || k == LM_COLL_RECEIVE;
}

static void own_copy(const lm_exchange *x) {
  const void *from;
  void *to;
  size_t rest = lm_exchange_rest(x, &to);
  if (rest)
    memset(to, 0, rest);
  size_t bytes = lm_exchange_own(x, &from, &to);
  if (bytes)
    memmove(to, from, bytes);
}

static void coll_check(const lm_comm *c, const lm_coll *x) {
  LM_ASSERT(x->count >= 0 && (unsigned)x->kind < LM_COLL_COPY);
  LM_ASSERT(!lm_exchange_reduces(x->kind) || lm_ordered_knows(x->dtype));
  LM_ASSERT(!c || (x->group >= 0 && x->group < c->n_groups));
  LM_ASSERT(!is_between_two(x->kind) || (c && x->peer != c->groups[x->group].rank && x->peer >= 0 &&
                                         x->peer < c->groups[x->group].size));
}

// A collective that needs no workspace leaves those that have grown to others.
static int handle_free(const lm_comm *c, bool reduces) {
  int found = -1;
  for (int i = 0; i < LM_COMM_HANDLES; i++) {
    const lm_coll_state *r = &c->colls[i];
    if (!r->used && (found < 0 || (r->bytes > 0) == reduces))
      found = i;
    if (found >= 0 && (c->colls[found].bytes > 0) == reduces)
      break;
  }
  LM_ASSERT(found >= 0);
  return found;
}

// Copies what the rank gives itself.
static lm_status owns_copy(const lm_exchanges *g) {
  for (int i = 0; i < g->n; i++) {
    const lm_exchange *x = &g->v[i];
    if (x->coll.kind == LM_COLL_EXCHANGE_ROWS && !lm_exchange_rows_fit(x))
      return lm_fail(LM_BUG_STATUS, "%s: more rows than the plan has", x->coll.label);
    own_copy(x);
  }
  return NULL;
}

lm_status lm_comm_start_bucket(lm_comm *c, const lm_coll *x, int n, int *handle) {
  enum {
    TAGS = (1 << 15) - 1 // of collectives; the last tag is that of messages between two ranks
  };
  lm_exchanges own;
  for (int i = 0; i < n; i++)
    coll_check(c, &x[i]);
  lm_exchanges_make(&own, x, n, lm_comm_group_size(c, x->group), lm_comm_group_rank(c, x->group),
                    LM_EXCHANGE_ROOM);
  *handle = 0;
  LM_TRY(owns_copy(&own));
  if (!c)
    return NULL;
  LM_TRY(lm_control_check(c->control));
  if (x->apart)
    lm_comm_progress_begin(c);
  lm_comm_progress_lock(c);
  *handle = handle_free(c, lm_exchanges_workspace(&own) > 0);
  lm_comm_group *g = &c->groups[x->group];
  lm_coll_state *r = &c->colls[*handle];
  r->done = false;
  r->failed = NULL;
  r->x = own;
  r->label = x->label;
  r->tag = is_between_two(x->kind) ? TAGS : (int)(g->tag++ % TAGS);
  lm_status s = lm_coll_begin(c, r);
  r->used = !s;
  if (!s && x->apart)
    lm_comm_progress_add(c, r);
  lm_comm_progress_unlock(c);
  return s;
}

// With the lock.
static void coll_end(lm_comm *c, lm_coll_state *r) {
  lm_comm_progress_remove(c, r);
  r->used = false;
}

static lm_status coll_visit(lm_comm *c, lm_coll_state *r, bool *moved, bool *done) {
  lm_status s = NULL;
  *moved = false;
  lm_comm_progress_lock(c);
  if (!r->done && !r->failed)
    s = lm_coll_advance(c, r, moved);
  s = s ? s : r->failed;
  r->failed = NULL;
  *done = r->done || s;
  if (!*done)
    s = lm_control_check(c->control);
  *done |= s != NULL;
  if (*done)
    coll_end(c, r);
  lm_comm_progress_unlock(c);
  return s;
}

// What a rank sends before the library's sums are complete, which it does not report meanwhile.
static int64_t library_bytes(const lm_exchanges *g) {
  int64_t bytes = 0;
  for (int i = 0; i < g->n; i++) {
    const lm_coll *x = &g->v[i].coll;
    int64_t parts = x->kind == LM_COLL_REDUCE_SCATTER ? g->v[i].ranks : 2;
    if (lm_exchange_by_library(&g->v[i]))
      bytes += parts * x->count * lm_dtype_bytes(x->dtype);
  }
  return bytes;
}

lm_status lm_comm_wait(lm_comm *c, int handle) {
  bool done = false, moved;
  lm_status s = NULL;
  if (!c)
    return NULL;
  lm_coll_state *r = &c->colls[handle];
  lm_control_waits(c->control, r->label, library_bytes(&r->x));
  for (int times = 0; !done; times++) {
    s = coll_visit(c, r, &moved, &done);
    if (moved)
      times = 0;
    else if (!done)
      lm_pause(times);
  }
  lm_control_waits(c->control, NULL, 0);
  return s;
}

lm_status lm_comm_start(lm_comm *c, const lm_coll *x, int *handle) {
  return lm_comm_start_bucket(c, x, 1, handle);
}

lm_status lm_comm_run(lm_comm *c, const lm_coll *x) {
  int handle;
  LM_TRY(lm_comm_start(c, x, &handle));
  return lm_comm_wait(c, handle);
}
