// exec_graph.c - records deferred work of the CUDA executor as CUDA graphs, and launches them.
//
// A function with collectives of several ranks is alone in its list, with the sums of its totals: a
// launch of a graph with operations of NCCL is itself a collective, and what else a rank has
// deferred may depend on what its host has read.
//
// Some collectives cannot be recorded, since the host waits for their sizes. Work with such steps
// is recorded as several graphs, the parts between them. Each part is launched as soon as it is
// recorded, because the host reads its results. Later runs walk through the steps again, enqueue
// those that are apart and launch the parts between them.
#include "runtime/cuda/exec_state.h"
#include "runtime/cuda/nvtx.h"

static func_state *state_of(const cuda_exec *e, const cuda_work *w) {
  return &e->funcs[w->f - e->plan->funcs];
}

// ---- lists

static bool is_same(const cuda_work *a, const cuda_work *b) {
  bool rule = a->norm == b->norm && a->scale == b->scale;
  rule = rule && a->sum == b->sum && a->weight == b->weight;
  return a->f == b->f && a->adds == b->adds && a->first == b->first && rule;
}

static bool is_same_list(const cuda_graph *a, const cuda_graph *b) {
  bool same = a->n == b->n;
  for (int i = 0; same && i < a->n; i++)
    same = is_same(&a->work[i], &b->work[i]);
  return same;
}

static cuda_graph *seen_find(cuda_exec *e, const cuda_graph *list) {
  for (uint32_t i = 0; i < e->n_seen; i++)
    if (is_same_list(&e->seen[i], list))
      return &e->seen[i];
  LM_PUSH(e->arena, e->seen, e->n_seen, e->cap_seen) = *list;
  cuda_graph *g = &e->seen[e->n_seen - 1];
  for (int i = 0; i < g->n; i++)
    g->apart |= !g->work[i].adds && state_of(e, &g->work[i])->apart;
  return g;
}

static lm_status list_run(cuda_exec *e, const cuda_graph *g) {
  lm_status s = NULL;
  for (int i = 0; !s && i < g->n; i++) {
    const cuda_work *w = &g->work[i];
    bool shown = !w->adds && e->recording.mode == CUDA_ENQUEUES; // a graph is one range
    if (shown)
      lm_nvtx_push(w->f->name);
    s = cuda_exec_work(e, w, NULL);
    if (shown)
      lm_nvtx_pop();
    state_of(e, w)->has_run |= !w->adds;
  }
  return s;
}

// The first run of a function asks the library for its GEMMs, and NCCL for its connections, which
// is no part of a graph.
static bool can_record(const cuda_exec *e, const cuda_graph *g) {
  bool can = e->graphs;
  for (int i = 0; i < g->n; i++) {
    const func_state *x = state_of(e, &g->work[i]);
    can = can && (g->work[i].adds || x->has_run);
    can = can && (!x->exchanges || e->graphs_of_ranks);
  }
  return can;
}

// ---- graphs

static lm_status list_record(cuda_exec *e, cuda_graph *g) {
  cuda_recording *r = &e->recording;
  *r = (cuda_recording){
      .mode = CUDA_RECORDS,
      .graph = g,
  };
  lm_status s = list_run(e, g);
  if (r->within)
    s = cuda_exec_part_end(e, s);
  *r = (cuda_recording){0};
  return s;
}

static lm_status list_replay(cuda_exec *e, cuda_graph *g) {
  if (!g->apart)
    return cuda_exec_part_launch(e, g->parts[0]);
  e->recording = (cuda_recording){
      .mode = CUDA_REPLAYS,
      .graph = g,
  };
  lm_status s = list_run(e, g);
  e->recording = (cuda_recording){0};
  return s;
}

// The last function of the list is the current one afterwards, as without a graph.
static lm_status graph_run(cuda_exec *e, cuda_graph *g) {
  const lm_plan_func *first = g->work[0].f;
  const lm_plan_func *last = g->work[g->n - 1].f;
  lm_buf name = {0};
  lm_buf_puts(&name, first->name);
  if (last != first)
    lm_buf_printf(&name, " … %s", last->name);
  lm_nvtx_push(name.p);
  lm_status s = g->n_parts ? list_replay(e, g) : list_record(e, g);
  lm_nvtx_pop();
  lm_buf_free(&name);
  e->recording.within = false;
  e->func = last;
  return s;
}

void cuda_exec_graphs_free(cuda_exec *e) {
  for (uint32_t i = 0; i < e->n_seen; i++)
    for (uint32_t k = 0; k < e->seen[i].n_parts; k++)
      e->d.cuGraphExecDestroy(e->seen[i].parts[k]);
  e->n_seen = 0;
}

// ---- deferred work

lm_status cuda_exec_flush(cuda_exec *e) {
  cuda_graph list = e->deferred;
  e->deferred.n = 0;
  if (!list.n)
    return NULL;
  return can_record(e, &list) ? graph_run(e, seen_find(e, &list)) : list_run(e, &list);
}

// The copies of arguments of a run are enqueued when it is deferred. They can come before the other
// deferred work, since no two functions share arguments or results.
bool cuda_exec_conflicts(const cuda_exec *e, const lm_plan_func *f) {
  bool conflicts = e->deferred.n == CUDA_DEFERRED || e->funcs[f - e->plan->funcs].exchanges;
  for (int i = 0; i < e->deferred.n; i++) {
    const cuda_work *w = &e->deferred.work[i];
    conflicts |= !w->adds && (w->f == f || state_of(e, w)->exchanges);
  }
  return conflicts;
}

lm_status cuda_exec_add(cuda_exec *e, const cuda_work *w) {
  if (e->deferred.n == CUDA_DEFERRED)
    LM_TRY(cuda_exec_flush(e));
  e->deferred.work[e->deferred.n++] = *w;
  return e->deferring ? NULL : cuda_exec_flush(e);
}
