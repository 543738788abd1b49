// nccl.c - see nccl.h.
#include "runtime/cuda/nccl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/exchange.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/watch.h"

typedef struct nccl_library {
  void *library;
  union {
    struct {
#define SYM(result, name, parameters) result(*name) parameters;
#include "runtime/cuda/nccl_syms.def"
#undef SYM
    };
    void *functions[1];
  };
} nccl_library;

static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/nccl_syms.def"
#undef SYM
};

// The ranks of a group, for its collectives on a lane.
typedef struct link {
  int group, lane;
  void *comm; // ncclComm_t; NULL: the group has one rank, or is not connected
} link;

struct lm_nccl {
  nccl_library l;
  lm_comm *ranks;
  const lm_cuda_builtins *builtins;
  lm_cuda_lanes *lanes;
  link *links;
  uint32_t n_links, cap_links;
  lm_cuda_address workspace[LM_PLAN_LANES]; // of each lane
  lm_cuda_watch watch;
  bool serial;          // operations of several communicators must not be concurrent
  void *ordered;        // an event behind the last operation, if serial
  void *ordering;       // the stream of the last operation; NULL: the main stream waits for it
  lm_message *messages; // of a phase
  const void **from;    // slices to add
  lm_arena *arena;
};

// What a START enqueues its collectives with.
typedef struct lane_work {
  lm_nccl *n;
  const link *link;
  lm_cuda_builtins builtins; // launched on the stream of the lane
  const lm_plan_step *step;
  const char *label;
} lane_work;

// ---- results

static lm_status check(const lm_nccl *n, const link *x, int result, const char *what) {
  if (!result || result == LM_NCCL_IN_PROGRESS)
    return NULL;
  const char *last = x->comm ? n->l.ncclGetLastError(x->comm) : NULL;
  lm_status s = lm_fail(LM_ENV, "%s: NCCL says: %s%s%s", what, n->l.ncclGetErrorString(result),
                        last && *last ? "; " : "", last ? last : "");
  return lm_comm_fail(n->ranks, s);
}

// Waits until NCCL has finished the call that returned `result` for the communicator.
static lm_status settle(const lm_nccl *n, const link *x, int result, const char *what) {
  for (int times = 0; result == LM_NCCL_IN_PROGRESS; times++) {
    LM_TRY(lm_comm_check(n->ranks));
    lm_pause(times);
    LM_TRY(check(n, x, n->l.ncclCommGetAsyncError(x->comm, &result), what));
  }
  return check(n, x, result, what);
}

// The same of a call that other ranks take part in and that may take long.
static lm_status settle_all(const lm_nccl *n, const link *x, int result, const char *what) {
  lm_comm_connects(n->ranks, what);
  lm_status s = settle(n, x, result, what);
  lm_comm_waits(n->ranks, NULL, 0);
  return s;
}

// NULL, or the failure of a collective that was queued before.
static lm_status queued_check(lm_nccl *n) {
  for (uint32_t i = 0; i < n->n_links; i++) {
    const link *x = &n->links[i];
    int result = 0;
    if (x->comm)
      LM_TRY(check(n, x, n->l.ncclCommGetAsyncError(x->comm, &result), "a collective"));
    LM_TRY(check(n, x, result, "a collective"));
  }
  return NULL;
}

static int query(const lm_nccl *n, void *event) {
  const lm_cuda_driver *d = n->builtins->driver;
  return event ? d->cuEventQuery(event) : d->cuStreamQuery(n->builtins->stream);
}

// The bytes that a rank sends or receives between two marks of a collective, at most. A round of a
// sum fills no more than the workspace.
static int64_t bytes_of(const lm_nccl *n, const lm_plan_step *s) {
  const lm_plan_comm *c = s->comm;
  int64_t bytes = 0;
  if (c->kind == LM_COLL_ALL_GATHER || c->kind == LM_COLL_ALL_TO_ALL) {
    for (int i = 0; i < lm_plan_comm_tensors(c); i++)
      bytes += lm_plan_comm_count(s, i);
    return bytes * lm_dtype_bytes(c->dtype) * lm_comm_group_size(n->ranks, c->group);
  }
  for (int i = 0; i < s->n_bufs; i++)
    bytes = s->bufs[i].bytes > bytes ? s->bufs[i].bytes : bytes;
  if (!lm_exchange_reduces(c->kind) || bytes < LM_NCCL_WORKSPACE)
    return bytes;
  return c->op == LM_COLL_LIBRARY_SUM ? 2 * bytes : LM_NCCL_WORKSPACE;
}

static void collective_show(lm_nccl *n) {
  lm_cuda_watched x = lm_cuda_watch_find(&n->watch);
  lm_comm_waits(n->ranks, x.step ? x.step->label : NULL, x.step ? bytes_of(n, x.step) : 0);
  if (x.moved)
    lm_comm_moved(n->ranks);
}

lm_status lm_nccl_wait(lm_nccl *n, void *event, int *result) {
  for (int times = 0; (*result = query(n, event)) == LM_CU_NOT_READY; times++) {
    LM_TRY(lm_comm_check(n->ranks));
    LM_TRY(queued_check(n));
    collective_show(n);
    lm_pause(times);
  }
  collective_show(n);
  lm_comm_waits(n->ranks, NULL, 0);
  return NULL;
}

// ---- the collectives of a step

static lm_cuda_address address_of(const void *p) {
  return (lm_cuda_address)(uintptr_t)p;
}

static void *pointer_to(lm_cuda_address a) {
  return (void *)(uintptr_t)a;
}

// at: NULL, if only sizes are read; rows: as in lm_nccl_start.
static void exchanges_of(lm_exchanges *g, const lm_plan_step *s, const lm_cuda_address *at,
                         const lm_coll *rows, int ranks, int me) {
  const lm_plan_comm *c = s->comm;
  lm_coll x[LM_COLL_BUCKET];
  int n = lm_plan_comm_tensors(c);
  for (int i = 0; i < n; i++)
    x[i] = (lm_coll){
        .kind = c->kind,
        .dtype = c->dtype,
        .op = c->op,
        .group = c->group,
        .count = lm_plan_comm_count(s, i),
        .from = at && s->n_read ? pointer_to(at[i]) : NULL,
        .to = at && s->n_write ? pointer_to(at[s->n_read + i]) : NULL,
        .peer = c->peer,
        .send = rows ? rows->send : NULL,
        .receive = rows ? rows->receive : NULL,
        .from_rows = rows ? lm_plan_comm_rows(s, 0) : 0,
        .to_rows = rows ? lm_plan_comm_rows(s, s->n_read) : 0,
        .label = s->label,
    };
  lm_exchanges_make(g, x, n, ranks, me, LM_NCCL_WORKSPACE / (size_t)n);
}

static int group_size(const lm_plan_mesh *m, int group) {
  int size = 1;
  for (int k = 0; k < m->n; k++)
    size *= !group || group == k + 1 ? m->axis[k].size : 1;
  return size;
}

static bool is_start(const lm_plan_step *s) {
  return s->kind == LM_STEP_START && !lm_plan_step_copies(s);
}

// The first round of a collective has the most slices.
static void workspaces_measure(const lm_plan *plan, int64_t *bytes) {
  memset(bytes, 0, LM_PLAN_LANES * sizeof *bytes);
  for (int i = 0; i < plan->n_funcs; i++)
    for (int k = 0; k < plan->funcs[i].n_steps; k++) {
      const lm_plan_step *s = &plan->funcs[i].steps[k];
      lm_exchanges g;
      if (!is_start(s))
        continue;
      exchanges_of(&g, s, NULL, NULL, group_size(&plan->mesh, s->comm->group), 0);
      int64_t need = (int64_t)lm_exchanges_workspace(&g), *most = &bytes[s->comm->lane];
      *most = need > *most ? need : *most;
    }
}

int64_t lm_nccl_workspace(const lm_plan *plan) {
  int64_t bytes[LM_PLAN_LANES], all = 0;
  workspaces_measure(plan, bytes);
  for (int i = 0; i < LM_PLAN_LANES; i++)
    all += bytes[i];
  return all;
}

// ---- opening and closing

static bool is_set(const char *name) {
  const char *text = getenv(name);
  return text && !strcmp(text, "1");
}

// Before NCCL reads its environment: operations of several communicators on one GPU may block each
// other unless NCCL, from 2.26 on, orders them by their calls. NCCL 2.23 registers the buffers of
// recorded operations also where they are memory of cuMemAlloc, which 2.24 calls unsafe. Sums
// inside of a switch (NVLS) differ between runs of the same ranks; others of NCCL do not.
static void environment_set(lm_nccl *n, int version) {
  if (version >= LM_NCCL_ORDERS)
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (version / 100 == LM_NCCL_REGISTERS / 100)
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  n->serial = version < LM_NCCL_ORDERS || !is_set("NCCL_LAUNCH_ORDER_IMPLICIT");
}

static lm_status library_open(lm_nccl *n) {
  static const char *const files[] = {"libnccl.so.2", NULL};
  nccl_library *l = &n->l;
  int version = 0;
  LM_TRY(lm_library_open("NCCL, which several GPUs need,", files, &l->library));
  LM_TRY(lm_library_resolve(l->library, "NCCL", names, LM_COUNT(names), l->functions));
  if (l->ncclGetVersion(&version) || version < LM_NCCL_OLDEST)
    return lm_fail(LM_ENV, "NCCL %d.%d.%d is too old; 2.18 is the oldest supported",
                   version / 10000, version / 100 % 100, version % 100);
  environment_set(n, version);
  return NULL;
}

#define CONNECTING "connecting the GPUs"

// Every rank makes an id; a group uses that of its first rank.
static lm_status link_connect(lm_nccl *n, link *x) {
  lm_comm *c = n->ranks;
  int group = x->group, size = lm_comm_group_size(c, group), all = lm_comm_self_of(c).size;
  lm_nccl_id own = {{0}}, *ids = lm_calloc((size_t)all, sizeof *ids);
  lm_nccl_config config = {sizeof config,     LM_NCCL_MAGIC,     LM_NCCL_OLDEST,    0,
                           LM_NCCL_UNDEFINED, LM_NCCL_UNDEFINED, LM_NCCL_UNDEFINED, NULL,
                           LM_NCCL_UNDEFINED};
  lm_status s = NULL;
  lm_comm_connects(c, "a call of ncclGetUniqueId");
  if (size > 1 && lm_comm_group_rank(c, group) == 0)
    s = check(n, x, n->l.ncclGetUniqueId(&own), CONNECTING);
  s = lm_comm_settle(c, CONNECTING, s);
  if (!s)
    s = lm_comm_agree(c, CONNECTING, &own, sizeof own, ids);
  if (!s && size > 1) {
    lm_comm_connects(c, "a call of ncclCommInitRankConfig");
    s = settle_all(n, x,
                   n->l.ncclCommInitRankConfig(&x->comm, size,
                                               ids[lm_comm_group_member(c, group, 0)],
                                               lm_comm_group_rank(c, group), &config),
                   CONNECTING);
  }
  lm_free(ids);
  return s;
}

static link *link_find(const lm_nccl *n, const lm_plan_comm *c) {
  for (uint32_t i = 0; i < n->n_links; i++)
    if (n->links[i].group == c->group && n->links[i].lane == c->lane)
      return &n->links[i];
  return NULL;
}

static void links_find(lm_nccl *n, const lm_plan_func *f) {
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (!is_start(s) || link_find(n, s->comm))
      continue;
    LM_PUSH(n->arena, n->links, n->n_links, n->cap_links) = (link){
        .group = s->comm->group,
        .lane = s->comm->lane,
    };
  }
}

static lm_status nccl_make(lm_nccl *n, const lm_plan *plan) {
  const lm_cuda_driver *d = n->builtins->driver;
  int64_t bytes[LM_PLAN_LANES];
  LM_TRY(lm_comm_settle(n->ranks, "NCCL", library_open(n)));
  for (int i = 0; i < plan->n_funcs; i++)
    links_find(n, &plan->funcs[i]);
  for (uint32_t i = 0; i < n->n_links; i++)
    LM_TRY(link_connect(n, &n->links[i]));
  n->serial &= n->n_links > 1;
  LM_TRY(lm_cuda_watch_open(&n->watch, plan, n->builtins));
  if (n->serial)
    LM_TRY(lm_cuda_check(d, d->cuEventCreate(&n->ordered, LM_CU_EVENT_NO_TIMES), "an event"));
  workspaces_measure(plan, bytes);
  for (int i = 0; i < LM_PLAN_LANES; i++)
    if (bytes[i])
      LM_TRY(lm_cuda_check(d, d->cuMemAlloc_v2(&n->workspace[i], (size_t)bytes[i]),
                           "%.1f MB for sums over the ranks", (double)bytes[i] * 1e-6));
  return NULL;
}

lm_status lm_nccl_open(lm_comm *c, const lm_plan *plan, const lm_cuda_builtins *b,
                       lm_cuda_lanes *lanes, lm_nccl **out) {
  size_t ranks = (size_t)lm_comm_self_of(c).size;
  lm_nccl *n = lm_alloc(sizeof *n);
  *n = (lm_nccl){.ranks = c,
                 .builtins = b,
                 .lanes = lanes,
                 .messages = lm_calloc(2 * ranks * LM_COLL_BUCKET, sizeof *n->messages),
                 .from = lm_calloc(ranks, sizeof *n->from),
                 .arena = lm_arena_create()};
  lm_status s = nccl_make(n, plan);
  if (s)
    lm_nccl_close(n, true);
  *out = s ? NULL : n;
  return s;
}

// Of all communicators: none of them is closed if another one fails.
static lm_status links_finalize(const lm_nccl *n) {
  int *results = lm_calloc(n->n_links + 1, sizeof *results);
  lm_status s = NULL;
  for (uint32_t i = 0; i < n->n_links; i++)
    if (n->links[i].comm)
      results[i] = n->l.ncclCommFinalize(n->links[i].comm);
  for (uint32_t i = 0; i < n->n_links && !s; i++)
    if (n->links[i].comm)
      s = settle_all(n, &n->links[i], results[i], "disconnecting the GPUs");
  lm_free(results);
  return s;
}

typedef struct closing {
  const lm_nccl *n;
  void *comm;
  bool has_thread;
  pthread_t thread;
} closing;

static void *link_abort(void *user) {
  const closing *x = user;
  x->n->l.ncclCommAbort(x->comm);
  return NULL;
}

// ncclCommAbort waits until the GPU has completed the operations of the communicator, which may be
// behind a collective of another one. So all are aborted at the same time.
static void links_abort(const lm_nccl *n) {
  closing *v = lm_calloc(n->n_links + 1, sizeof *v);
  for (uint32_t i = 0; i < n->n_links; i++) {
    v[i].n = n;
    v[i].comm = n->links[i].comm;
    if (v[i].comm)
      v[i].has_thread = !pthread_create(&v[i].thread, NULL, link_abort, &v[i]);
  }
  for (uint32_t i = 0; i < n->n_links; i++)
    if (v[i].has_thread)
      pthread_join(v[i].thread, NULL);
    else if (v[i].comm)
      link_abort(&v[i]);
  lm_free(v);
}

static void links_close(const lm_nccl *n, bool failed) {
  lm_status s = failed ? NULL : links_finalize(n);
  if (failed || s)
    links_abort(n);
  for (uint32_t i = 0; i < n->n_links && !failed && !s; i++)
    if (n->links[i].comm)
      n->l.ncclCommDestroy(n->links[i].comm);
  lm_status_free(s);
}

// Collectives that were queued before an abort end without an effect, but still use the workspaces.
void lm_nccl_close(lm_nccl *n, bool failed) {
  if (!n)
    return;
  const lm_cuda_driver *d = n->builtins->driver;
  links_close(n, failed);
  d->cuStreamSynchronize(n->builtins->stream);
  lm_cuda_lanes_synchronize(n->lanes);
  lm_cuda_watch_close(&n->watch);
  if (n->ordered)
    d->cuEventDestroy_v2(n->ordered);
  for (int i = 0; i < LM_PLAN_LANES; i++)
    if (n->workspace[i])
      d->cuMemFree_v2(n->workspace[i]);
  lm_free(n->messages);
  lm_free(n->from);
  lm_arena_destroy(n->arena);
  lm_free(n);
}

// ---- the order of operations of several communicators

static lm_status order_wait(lm_nccl *n, void *stream) {
  const lm_cuda_driver *d = n->builtins->driver;
  if (!n->ordering || n->ordering == stream)
    return NULL;
  return lm_cuda_check(d, d->cuStreamWaitEvent(stream, n->ordered, 0), "an event");
}

static lm_status order_record(lm_nccl *n, void *stream) {
  const lm_cuda_driver *d = n->builtins->driver;
  if (!n->serial)
    return NULL;
  n->ordering = stream;
  return lm_cuda_check(d, d->cuEventRecord(n->ordered, stream), "an event");
}

lm_status lm_nccl_join(lm_nccl *n) {
  LM_TRY(order_wait(n, n->builtins->stream));
  lm_nccl_joined(n);
  return NULL;
}

void lm_nccl_joined(lm_nccl *n) {
  n->ordering = NULL;
}

// ---- collectives

static lm_status messages_enqueue(const lane_work *w, int count) {
  const lm_nccl *n = w->n;
  int result = n->l.ncclGroupStart();
  void *stream = w->builtins.stream, *comm = w->link->comm;
  for (int i = 0; i < count && (!result || result == LM_NCCL_IN_PROGRESS); i++) {
    const lm_message *m = &n->messages[i];
    result = m->sends ? n->l.ncclSend(m->data, m->bytes, LM_NCCL_INT8, m->peer, comm, stream)
                      : n->l.ncclRecv(m->data, m->bytes, LM_NCCL_INT8, m->peer, comm, stream);
  }
  int end = n->l.ncclGroupEnd();
  LM_TRY(check(n, w->link, result, w->label));
  return settle(n, w->link, end, w->label);
}

static lm_status messages_ordered(const lane_work *w, int count) {
  LM_TRY(order_wait(w->n, w->builtins.stream));
  LM_TRY(messages_enqueue(w, count));
  return order_record(w->n, w->builtins.stream);
}

static int sum_enqueue(const lane_work *w, const lm_coll *x) {
  static const int types[LM_DTYPES] = {
      [LM_F32] = LM_NCCL_F32,
      [LM_F64] = LM_NCCL_F64,
      [LM_BF16] = LM_NCCL_BF16,
      [LM_F16] = LM_NCCL_F16,
  };
  const nccl_library *l = &w->n->l;
  void *stream = w->builtins.stream, *comm = w->link->comm;
  size_t n = (size_t)x->count;
  int type = types[x->dtype];
  LM_ASSERT(type);
  return x->kind == LM_COLL_ALL_REDUCE
             ? l->ncclAllReduce(x->from, x->to, n, type, LM_NCCL_SUM, comm, stream)
             : l->ncclReduceScatter(x->from, x->to, n, type, LM_NCCL_SUM, comm, stream);
}

// The sums of a bucket by NCCL itself.
static lm_status sums_enqueue(const lane_work *w, const lm_exchanges *g) {
  const lm_nccl *n = w->n;
  int result = n->l.ncclGroupStart();
  for (int i = 0; i < g->n && (!result || result == LM_NCCL_IN_PROGRESS); i++)
    if (g->v[i].coll.count)
      result = sum_enqueue(w, &g->v[i].coll);
  int end = n->l.ncclGroupEnd();
  LM_TRY(check(n, w->link, result, w->label));
  return settle(n, w->link, end, w->label);
}

static lm_status sums_ordered(const lane_work *w, const lm_exchanges *g) {
  LM_TRY(order_wait(w->n, w->builtins.stream));
  LM_TRY(sums_enqueue(w, g));
  return order_record(w->n, w->builtins.stream);
}

static lm_status slices_add(const lane_work *w, const lm_exchange *x) {
  const void **from = w->n->from;
  void *to;
  int64_t elements = lm_exchange_sum(x, from, &to);
  if (elements <= 0)
    return NULL;
  lm_cuda_ordered_sum sum = {.n = elements,
                             .slice = (int64_t)lm_exchange_workspace(x) / x->ranks,
                             .ranks = x->ranks,
                             .me = x->me};
  return lm_cuda_ordered_reduce(&w->builtins, &sum, x->coll.dtype, x->coll.op == LM_COLL_MAX,
                                address_of(from[x->me]), address_of(x->workspace), address_of(to));
}

static lm_status phase_enqueue(const lane_work *w, lm_exchanges *g) {
  if (lm_exchange_by_library(&g->v[0]))
    return sums_ordered(w, g);
  lm_exchanges_place(g, pointer_to(w->n->workspace[w->link->lane]));
  int count = lm_exchanges_messages(g, w->n->messages);
  if (count)
    LM_TRY(messages_ordered(w, count));
  for (int i = 0; i < g->n; i++)
    LM_TRY(slices_add(w, &g->v[i]));
  return NULL;
}

static lm_status rest_clear(const lane_work *w, const lm_exchange *x) {
  const lm_cuda_driver *d = w->builtins.driver;
  void *to;
  size_t bytes = lm_exchange_rest(x, &to);
  if (!bytes)
    return NULL;
  return lm_cuda_check(d, d->cuMemsetD8Async(address_of(to), 0, bytes, w->builtins.stream), "%s",
                       w->label);
}

static lm_status own_copy(const lane_work *w, const lm_exchange *x) {
  const lm_cuda_driver *d = w->builtins.driver;
  const void *from;
  void *to;
  if (x->coll.kind == LM_COLL_EXCHANGE_ROWS && !lm_exchange_rows_fit(x))
    return lm_fail(LM_BUG_STATUS, "%s: more rows than the plan has", w->label);
  LM_TRY(rest_clear(w, x));
  size_t bytes = lm_exchange_own(x, &from, &to);
  if (!bytes)
    return NULL;
  return lm_cuda_check(
      d, d->cuMemcpyDtoDAsync_v2(address_of(to), address_of(from), bytes, w->builtins.stream), "%s",
      w->label);
}

static lm_status mark(const lane_work *w, bool within) {
  if (!w->link->comm)
    return NULL;
  return lm_cuda_watch_mark(&w->n->watch, w->step, w->builtins.stream, within);
}

static lm_status exchanges_enqueue(const lane_work *w, lm_exchanges *g) {
  for (int i = 0; i < g->n; i++)
    LM_TRY(own_copy(w, &g->v[i]));
  bool more = true;
  while (more) {
    LM_TRY(mark(w, true));
    LM_TRY(phase_enqueue(w, g));
    more = lm_exchanges_next(g);
  }
  return mark(w, false);
}

lm_status lm_nccl_start(lm_nccl *n, const lm_plan_step *s, int64_t iteration,
                        const lm_cuda_address *at, const lm_coll *rows) {
  lane_work w = {
      .n = n,
      .link = link_find(n, s->comm),
      .builtins = *n->builtins,
      .step = s,
      .label = s->label,
  };
  int group = s->comm->group, size = lm_comm_group_size(n->ranks, group);
  lm_exchanges g;
  exchanges_of(&g, s, at, rows, size, lm_comm_group_rank(n->ranks, group));
  LM_TRY(lm_cuda_lanes_begin(n->lanes, s, &w.builtins.stream));
  LM_TRY(exchanges_enqueue(&w, &g));
  return lm_cuda_lanes_end(n->lanes, s, iteration);
}
