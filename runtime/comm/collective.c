// collective.c - collectives as messages of an engine (exchange.h), and sums in the order of the
// ranks (ordered.h).
#include <string.h>

#include "runtime/comm/comm_state.h"
#include "runtime/comm/ordered.h"

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

int lm_comm_group_count(const lm_comm *c) {
  return c ? c->n_groups : 1;
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

// ---- messages

static lm_status messages_start(lm_comm *c, lm_coll_state *r) {
  const lm_comm_group *g = &c->groups[r->x.coll.group];
  lm_message *m = lm_calloc(2 * (size_t)g->size, sizeof *m);
  int n = lm_exchange_messages(&r->x, m);
  char error[LM_ENGINE_TEXT] = "";
  r->request = -1;
  bool good = !n || c->engine->start(c->state, g->lane, r->tag, m, n, &r->request, error);
  lm_free(m);
  return good ? NULL : lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
}

// ---- phases

static void workspace_grow(lm_coll_state *r) {
  size_t bytes = lm_exchange_workspace(&r->x);
  if (bytes > r->bytes) {
    lm_free(r->workspace);
    r->workspace = lm_calloc(bytes, 1);
    r->bytes = bytes;
  }
  r->x.workspace = r->workspace;
}

static void slices_add(const lm_coll_state *r) {
  const void **from = lm_calloc((size_t)r->x.ranks, sizeof *from);
  void *to;
  int64_t n = lm_exchange_sum(&r->x, from, &to);
  if (n > 0)
    lm_ordered_reduce(r->x.coll.dtype, r->x.coll.op, from, r->x.ranks, n, to);
  lm_free(from);
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
    lm_pause(times);
  }
  r->request = -1;
  lm_control_progress(c->control);
  return NULL;
}

// Waits for the messages and starts those of the next phase. *done: there is none.
static lm_status phase_next(lm_comm *c, lm_coll_state *r, bool *done) {
  LM_TRY(messages_wait(c, r));
  slices_add(r);
  *done = !lm_exchange_next(&r->x);
  if (*done)
    return NULL;
  workspace_grow(r);
  return messages_start(c, r);
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

lm_status lm_comm_start(lm_comm *c, const lm_coll *x, int *handle) {
  enum {
    TAGS = (1 << 15) - 1 // of collectives; the last tag is that of messages between two ranks
  };
  lm_exchange exchange = {.coll = *x,
                          .ranks = lm_comm_group_size(c, x->group),
                          .me = lm_comm_group_rank(c, x->group),
                          .room = LM_EXCHANGE_ROOM};
  *handle = 0;
  coll_check(c, x);
  if (x->kind == LM_COLL_EXCHANGE_ROWS && !lm_exchange_rows_fit(&exchange))
    return lm_fail(LM_BUG_STATUS, "%s: more rows than the plan has", x->label);
  own_copy(&exchange);
  if (!c)
    return NULL;
  while (*handle < LM_COMM_HANDLES && c->colls[*handle].used)
    ++*handle;
  LM_ASSERT(*handle < LM_COMM_HANDLES);
  lm_comm_group *g = &c->groups[x->group];
  lm_coll_state *r = &c->colls[*handle];
  r->used = true;
  r->x = exchange;
  r->tag = is_between_two(x->kind) ? TAGS : (int)(g->tag++ % TAGS);
  LM_TRY(lm_control_check(c->control));
  lm_exchange_round(&r->x);
  workspace_grow(r);
  return messages_start(c, r);
}

lm_status lm_comm_wait(lm_comm *c, int handle) {
  bool done = false;
  lm_status s = NULL;
  if (!c)
    return NULL;
  lm_coll_state *r = &c->colls[handle];
  lm_control_waits(c->control, r->x.coll.label);
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
