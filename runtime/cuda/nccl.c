// nccl.c - see nccl.h.
#include "runtime/cuda/nccl.h"

#include "runtime/comm/exchange.h"
#include "runtime/cuda/library.h"

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

enum {
  GROUPS = 1 + LM_MESH_AXES
};

struct lm_nccl {
  nccl_library l;
  lm_comm *ranks;
  const lm_cuda_builtins *builtins;
  void *comm[GROUPS]; // ncclComm_t of each group; NULL: it has one rank
  lm_cuda_address workspace;
  lm_message *messages; // of a phase
  const void **from;    // slices to add
};

// ---- results

static lm_status check(const lm_nccl *n, int group, int result, const char *what) {
  if (!result || result == LM_NCCL_IN_PROGRESS)
    return NULL;
  void *comm = n->comm[group];
  const char *last = comm ? n->l.ncclGetLastError(comm) : NULL;
  lm_status s = lm_fail(LM_ENV, "%s: NCCL says: %s%s%s", what, n->l.ncclGetErrorString(result),
                        last && *last ? "; " : "", last ? last : "");
  return lm_comm_fail(n->ranks, s);
}

// Waits until NCCL has finished the call that returned `result` for the communicator.
static lm_status settle(const lm_nccl *n, int group, int result, const char *what) {
  for (int times = 0; result == LM_NCCL_IN_PROGRESS; times++) {
    LM_TRY(lm_comm_check(n->ranks));
    lm_pause(times);
    LM_TRY(check(n, group, n->l.ncclCommGetAsyncError(n->comm[group], &result), what));
  }
  return check(n, group, result, what);
}

lm_status lm_nccl_check(lm_nccl *n) {
  for (int g = 0; g < GROUPS; g++) {
    int result = 0;
    if (n->comm[g])
      LM_TRY(check(n, g, n->l.ncclCommGetAsyncError(n->comm[g], &result), "a collective"));
    LM_TRY(check(n, g, result, "a collective"));
  }
  return NULL;
}

lm_status lm_nccl_wait(lm_nccl *n, int *result) {
  const lm_cuda_builtins *b = n->builtins;
  for (int times = 0; (*result = b->driver->cuStreamQuery(b->stream)) == LM_CU_NOT_READY; times++) {
    LM_TRY(lm_comm_check(n->ranks));
    LM_TRY(lm_nccl_check(n));
    lm_pause(times);
  }
  return NULL;
}

// ---- opening and closing

static lm_status library_open(nccl_library *out) {
  static const char *const files[] = {"libnccl.so.2", NULL};
  int version = 0;
  LM_TRY(lm_library_open("NCCL, which several GPUs need,", files, &out->library));
  LM_TRY(lm_library_resolve(out->library, "NCCL", names, LM_COUNT(names), out->functions));
  if (out->ncclGetVersion(&version) || version < LM_NCCL_OLDEST)
    return lm_fail(LM_ENV, "NCCL %d.%d.%d is too old; 2.18 is the oldest supported",
                   version / 10000, version / 100 % 100, version % 100);
  return NULL;
}

// Every rank makes an id; a group uses that of its first rank.
static lm_status group_connect(lm_nccl *n, int group) {
  lm_comm *c = n->ranks;
  int size = lm_comm_group_size(c, group), all = lm_comm_self_of(c).size;
  lm_nccl_id own = {{0}}, *ids = lm_calloc((size_t)all, sizeof *ids);
  lm_nccl_config config = {sizeof config,     LM_NCCL_MAGIC,     LM_NCCL_OLDEST,    0,
                           LM_NCCL_UNDEFINED, LM_NCCL_UNDEFINED, LM_NCCL_UNDEFINED, NULL,
                           LM_NCCL_UNDEFINED};
  lm_status s = NULL;
  if (size > 1 && lm_comm_group_rank(c, group) == 0)
    s = check(n, group, n->l.ncclGetUniqueId(&own), "connecting the GPUs");
  s = lm_comm_settle(c, "connecting the GPUs", s);
  if (!s)
    s = lm_comm_agree(c, "connecting the GPUs", &own, sizeof own, ids);
  if (!s && size > 1)
    s = settle(n, group,
               n->l.ncclCommInitRankConfig(&n->comm[group], size,
                                           ids[lm_comm_group_member(c, group, 0)],
                                           lm_comm_group_rank(c, group), &config),
               "connecting the GPUs");
  lm_free(ids);
  return s;
}

static lm_status nccl_make(lm_nccl *n) {
  const lm_cuda_driver *d = n->builtins->driver;
  LM_TRY(lm_comm_settle(n->ranks, "NCCL", library_open(&n->l)));
  for (int g = 0; g < lm_comm_group_count(n->ranks); g++)
    LM_TRY(group_connect(n, g));
  return lm_cuda_check(d, d->cuMemAlloc_v2(&n->workspace, LM_NCCL_WORKSPACE),
                       "%d MB for sums over the ranks", LM_NCCL_WORKSPACE >> 20);
}

lm_status lm_nccl_open(lm_comm *c, const lm_cuda_builtins *b, lm_nccl **out) {
  size_t ranks = (size_t)lm_comm_self_of(c).size;
  lm_nccl *n = lm_alloc(sizeof *n);
  *n = (lm_nccl){.ranks = c,
                 .builtins = b,
                 .messages = lm_calloc(2 * ranks * LM_COLL_BUCKET, sizeof *n->messages),
                 .from = lm_calloc(ranks, sizeof *n->from)};
  lm_status s = nccl_make(n);
  if (s)
    lm_nccl_close(n, true);
  *out = s ? NULL : n;
  return s;
}

static void comm_close(lm_nccl *n, int group, bool failed) {
  if (!n->comm[group])
    return;
  if (failed) {
    n->l.ncclCommAbort(n->comm[group]);
    return;
  }
  int result = n->l.ncclCommFinalize(n->comm[group]);
  lm_status s = settle(n, group, result, "disconnecting the GPUs");
  if (s)
    n->l.ncclCommAbort(n->comm[group]);
  else
    n->l.ncclCommDestroy(n->comm[group]);
  lm_status_free(s);
}

// Collectives that were queued before an abort end without an effect, but still use the workspace.
void lm_nccl_close(lm_nccl *n, bool failed) {
  if (!n)
    return;
  const lm_cuda_driver *d = n->builtins->driver;
  for (int g = 0; g < GROUPS; g++)
    comm_close(n, g, failed);
  d->cuStreamSynchronize(n->builtins->stream);
  if (n->workspace)
    d->cuMemFree_v2(n->workspace);
  lm_free(n->messages);
  lm_free(n->from);
  lm_free(n);
}

// ---- collectives

static lm_cuda_address address_of(const void *p) {
  return (lm_cuda_address)(uintptr_t)p;
}

static lm_status messages_queue(lm_nccl *n, const lm_coll *coll, int count) {
  int group = coll->group, result = n->l.ncclGroupStart();
  void *stream = n->builtins->stream, *comm = n->comm[group];
  for (int i = 0; i < count && (!result || result == LM_NCCL_IN_PROGRESS); i++) {
    const lm_message *m = &n->messages[i];
    result = m->sends ? n->l.ncclSend(m->data, m->bytes, LM_NCCL_INT8, m->peer, comm, stream)
                      : n->l.ncclRecv(m->data, m->bytes, LM_NCCL_INT8, m->peer, comm, stream);
  }
  int end = n->l.ncclGroupEnd();
  LM_TRY(check(n, group, result, coll->label));
  return settle(n, group, end, coll->label);
}

static lm_status slices_add(lm_nccl *n, const lm_exchange *x) {
  void *to;
  int64_t elements = lm_exchange_sum(x, n->from, &to);
  if (elements <= 0)
    return NULL;
  lm_cuda_ordered_sum sum = {.n = elements,
                             .slice = (int64_t)lm_exchange_workspace(x) / x->ranks,
                             .ranks = x->ranks,
                             .me = x->me};
  return lm_cuda_ordered_reduce(n->builtins, &sum, x->coll.dtype, x->coll.op == LM_COLL_MAX,
                                address_of(n->from[x->me]), address_of(x->workspace),
                                address_of(to));
}

static lm_status phase_queue(lm_nccl *n, lm_exchanges *g) {
  lm_exchanges_place(g, (uint8_t *)(uintptr_t)n->workspace);
  int count = lm_exchanges_messages(g, n->messages);
  if (count)
    LM_TRY(messages_queue(n, &g->v[0].coll, count));
  for (int i = 0; i < g->n; i++)
    LM_TRY(slices_add(n, &g->v[i]));
  return NULL;
}

static lm_status rest_clear(const lm_nccl *n, const lm_exchange *x) {
  const lm_cuda_driver *d = n->builtins->driver;
  void *to;
  size_t bytes = lm_exchange_rest(x, &to);
  if (!bytes)
    return NULL;
  return lm_cuda_check(d, d->cuMemsetD8Async(address_of(to), 0, bytes, n->builtins->stream), "%s",
                       x->coll.label);
}

static lm_status own_copy(const lm_nccl *n, const lm_exchange *x) {
  const lm_cuda_driver *d = n->builtins->driver;
  const void *from;
  void *to;
  if (x->coll.kind == LM_COLL_EXCHANGE_ROWS && !lm_exchange_rows_fit(x))
    return lm_fail(LM_BUG_STATUS, "%s: more rows than the plan has", x->coll.label);
  LM_TRY(rest_clear(n, x));
  size_t bytes = lm_exchange_own(x, &from, &to);
  if (!bytes)
    return NULL;
  return lm_cuda_check(
      d, d->cuMemcpyDtoDAsync_v2(address_of(to), address_of(from), bytes, n->builtins->stream),
      "%s", x->coll.label);
}

lm_status lm_nccl_enqueue(lm_nccl *n, const lm_coll *x, int count) {
  lm_exchanges g;
  lm_exchanges_make(&g, x, count, lm_comm_group_size(n->ranks, x->group),
                    lm_comm_group_rank(n->ranks, x->group), LM_NCCL_WORKSPACE / (size_t)count);
  for (int i = 0; i < count; i++)
    LM_TRY(own_copy(n, &g.v[i]));
  do
    LM_TRY(phase_queue(n, &g));
  while (lm_exchanges_next(&g));
  return NULL;
}
