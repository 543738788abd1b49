// exec_part.c - the CUDA executor records parts of its work as graphs, and launches them.
#include "runtime/cuda/exec_state.h"

lm_status cuda_exec_part_launch(cuda_exec *e, void *part) {
  if (e->nccl)
    LM_TRY(lm_nccl_join(e->nccl));
  e->recording.within = true;
  return lm_cuda_check(&e->d, e->d.cuGraphLaunch(part, e->stream), "%s", e->func->name);
}

static lm_status part_begin(cuda_exec *e) {
  const lm_cuda_driver *d = &e->d;
  if (e->nccl)
    LM_TRY(lm_nccl_join(e->nccl));
  LM_TRY(lm_cuda_check(d, d->cuStreamBeginCapture_v2(e->stream, LM_CU_CAPTURE_RELAXED),
                       "recording %s", e->func->name));
  e->recording.within = true;
  e->behind_kernel = false;
  return NULL;
}

lm_status cuda_exec_part_end(cuda_exec *e, lm_status failed) {
  const lm_cuda_driver *d = &e->d;
  const char *name = e->func->name;
  cuda_graph *g = e->recording.graph;
  void *graph = NULL, *part = NULL;
  int result = d->cuStreamEndCapture(e->stream, &graph);
  e->recording.within = false;
  e->behind_kernel = false;
  if (e->nccl)
    lm_nccl_joined(e->nccl);
  lm_status s = failed ? failed : lm_cuda_check(d, result, "recording %s", name);
  if (!s)
    s = lm_cuda_check(d, d->cuGraphInstantiateWithFlags(&part, graph, 0), "a graph of %s", name);
  if (graph)
    d->cuGraphDestroy(graph);
  if (s)
    return s;
  LM_PUSH(e->arena, g->parts, g->n_parts, g->cap_parts) = part;
  return lm_cuda_check(d, d->cuGraphLaunch(part, e->stream), "%s", name);
}

lm_status cuda_exec_part(cuda_exec *e, bool apart, bool *enqueues) {
  cuda_recording *r = &e->recording;
  *enqueues = apart || r->mode != CUDA_REPLAYS;
  if (r->mode == CUDA_ENQUEUES || apart != r->within)
    return NULL;
  if (r->mode == CUDA_RECORDS)
    return apart ? cuda_exec_part_end(e, NULL) : part_begin(e);
  r->within = false;
  return apart ? NULL : cuda_exec_part_launch(e, r->graph->parts[r->part++]);
}
