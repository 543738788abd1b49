// advance.c - collectives as messages of an engine (exchange.h), and sums in the order of the ranks
// (ordered.h).
#include "runtime/comm/comm_state.h"
#include "runtime/comm/ordered.h"

static lm_engine_sum sum_of(const lm_coll *x) {
  static const int types[LM_DTYPES] = {
      [LM_F32] = LM_ENGINE_F32,
      [LM_F64] = LM_ENGINE_F64,
      [LM_BF16] = LM_ENGINE_BF16,
      [LM_F16] = LM_ENGINE_F16,
  };
  LM_ASSERT(lm_dtype_is_float(x->dtype) && lm_ordered_knows(x->dtype));
  return (lm_engine_sum){
      .scatters = x->kind == LM_COLL_REDUCE_SCATTER,
      .type = types[x->dtype],
      .from = x->from,
      .to = x->to,
      .count = (size_t)x->count,
  };
}

// The sums of a bucket are all made by the engine, or none is.
static lm_status sums_start(lm_comm *c, lm_coll_state *r) {
  lm_engine_sum sums[LM_COLL_BUCKET];
  char error[LM_ENGINE_TEXT] = "";
  int n = 0;
  if (!c->engine->sum)
    return lm_fail(LM_BUG_STATUS, "%s makes no sums", c->engine->name);
  for (int i = 0; i < r->x.n; i++)
    if (r->x.v[i].coll.count)
      sums[n++] = sum_of(&r->x.v[i].coll);
  r->request = -1;
  r->left = n;
  int lane = c->groups[r->x.v[0].coll.group].lane;
  bool good = !n || c->engine->sum(c->state, lane, sums, n, &r->request, error);
  return good ? NULL : lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
}

static lm_status messages_start(lm_comm *c, lm_coll_state *r) {
  const lm_comm_group *g = &c->groups[r->x.v[0].coll.group];
  lm_message *m = lm_calloc(2 * (size_t)g->size * (size_t)r->x.n, sizeof *m);
  int n = lm_exchanges_messages(&r->x, m);
  char error[LM_ENGINE_TEXT] = "";
  r->request = -1;
  r->left = n;
  bool good = !n || c->engine->start(c->state, g->lane, r->tag, m, n, &r->request, error);
  lm_free(m);
  return good ? NULL : lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
}

static void workspace_grow(lm_coll_state *r) {
  size_t bytes = lm_exchanges_workspace(&r->x);
  if (bytes > r->bytes) {
    lm_free(r->workspace);
    r->workspace = lm_calloc(bytes, 1);
    r->bytes = bytes;
  }
  lm_exchanges_place(&r->x, r->workspace);
}

static void slices_add(const lm_exchange *x) {
  const void **from = lm_calloc((size_t)x->ranks, sizeof *from);
  void *to;
  int64_t n = lm_exchange_sum(x, from, &to);
  if (n > 0)
    lm_ordered_reduce(x->coll.dtype, x->coll.op, from, x->ranks, n, to);
  lm_free(from);
}

static lm_status messages_test(lm_comm *c, lm_coll_state *r, bool *moved) {
  char error[LM_ENGINE_TEXT] = "";
  int left = 0;
  if (r->request >= 0 && !c->engine->test(c->state, r->request, &left, error))
    return lm_control_fail(c->control, lm_comm_engine_failed(c->engine->name, error));
  *moved = left != r->left || !left;
  r->left = left;
  if (*moved)
    lm_control_progress(c->control);
  return NULL;
}

lm_status lm_coll_begin(lm_comm *c, lm_coll_state *r) {
  if (lm_exchange_by_library(&r->x.v[0]))
    return sums_start(c, r);
  workspace_grow(r);
  return messages_start(c, r);
}

lm_status lm_coll_advance(lm_comm *c, lm_coll_state *r, bool *moved) {
  LM_TRY(messages_test(c, r, moved));
  if (r->left)
    return NULL;
  r->request = -1;
  for (int i = 0; i < r->x.n; i++)
    slices_add(&r->x.v[i]);
  r->done = !lm_exchanges_next(&r->x);
  if (r->done)
    return NULL;
  workspace_grow(r);
  return messages_start(c, r);
}
