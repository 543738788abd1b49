// rank_tensors.c - see rank_tensors.h.
#include "runtime/train/rank_tensors.h"

#include <string.h>

#include "runtime/hal/tensor.h"
#include "runtime/weights/safetensors.h"

static int64_t bytes_of(lm_plan_tensor x, int64_t n) {
  return n * lm_dtype_bytes(lm_plan_tensor_dtype(x));
}

static int64_t words_of(lm_plan_tensor x, int64_t n) {
  return (bytes_of(x, n) + (int64_t)sizeof(int32_t) - 1) / (int64_t)sizeof(int32_t);
}

// Adds the bits of the ranks as integers: all but one rank have zeros for an element.
static lm_status chunk_add(lm_rank_tensors *t, lm_plan_tensor x, int64_t n, void *v) {
  return lm_comm_run(t->comm, &(lm_coll){
                                  .kind = LM_COLL_ALL_REDUCE,
                                  .dtype = LM_INT,
                                  .count = words_of(x, n),
                                  .from = v,
                                  .to = v,
                                  .label = x.param->path,
                              });
}

static lm_status chunk_get(lm_rank_tensors *t, lm_plan_tensor x, int64_t first, int64_t n,
                           void *out) {
  lm_mesh_set set = lm_plan_param_set(x.param);
  bool shared = t->comm && set;
  bool counts = !shared || lm_plan_mesh_counts(t->plan, lm_comm_self_of(t->comm).rank, set);
  memset(out, 0, (size_t)words_of(x, n) * sizeof(int32_t));
  if (counts)
    LM_TRY(lm_tensor_read(t->exec, t->plan, x, first, n, out));
  return shared ? chunk_add(t, x, n, out) : NULL;
}

lm_status lm_rank_tensors_take(lm_rank_tensors *t, const lm_plan_tensor *x, int64_t first,
                               int64_t n, void *out) {
  LM_ASSERT(x->param == t->v[t->tensor].param && first == t->at);
  t->at += n;
  if (t->at >= x->param->elements) {
    t->tensor++;
    t->at = 0;
  }
  return chunk_get(t, *x, first, n, out);
}

lm_status lm_rank_tensors_finish(lm_rank_tensors *t) {
  if (!t->comm || !lm_plan_divided(t->plan))
    return NULL;
  char *chunk = lm_alloc(LM_ST_CHUNK);
  lm_status s = NULL;
  while (!s && t->tensor < t->n) {
    const lm_plan_tensor *x = &t->v[t->tensor];
    int64_t left = x->param->elements - t->at, most = LM_ST_CHUNK / bytes_of(*x, 1);
    s = lm_rank_tensors_take(t, x, t->at, left < most ? left : most, chunk);
  }
  lm_free(chunk);
  return s;
}
