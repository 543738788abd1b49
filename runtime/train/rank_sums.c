// rank_sums.c - see rank_sums.h.
#include "runtime/train/rank_sums.h"

#include <string.h>

enum {
  SLICE = 8 << 20, // bytes of the gradients that are added at a time
  PIECE = LM_SUM_PIECE
};

static bool is_equal(const lm_rank_results *x, const char *result) {
  for (int i = 0; i < x->n_equal; i++)
    if (!strcmp(x->equal[i], result))
      return true;
  return false;
}

lm_status lm_rank_totals_add(lm_comm *c, lm_exec *e, const lm_rank_results *x, int64_t *tokens) {
  size_t results = (size_t)x->micro->n_out, n = results + 1;
  size_t ranks = (size_t)lm_comm_self_of(c).size;
  double *own = lm_calloc(n, sizeof *own), *all = lm_calloc(n * ranks, sizeof *all);
  memcpy(own, e->totals, sizeof *own * results);
  own[results] = (double)*tokens; // whole, and below 2^53
  lm_status s = lm_comm_agree(c, "the totals of the step", own, sizeof *own * n, all);
  for (size_t i = 0; i < n && !s; i++) {
    bool once = i < results && is_equal(x, x->micro->out[i].name);
    double sum = all[i];
    for (size_t r = 1; r < ranks && !once; r++)
      sum += all[r * n + i];
    if (i < results)
      e->totals[i] = sum;
    else
      *tokens = (int64_t)sum;
  }
  lm_free(own);
  lm_free(all);
  return s;
}

static int64_t rest(int64_t bytes, int64_t at, int64_t most) {
  return bytes - at < most ? bytes - at : most;
}

static lm_status slice_add(lm_comm *c, lm_exec *e, int64_t at, int64_t n, void *slice) {
  LM_TRY(lm_exec_read(e, LM_ARENA_GRAD, at, n, slice));
  LM_TRY(lm_comm_run(c, &(lm_coll){.kind = LM_COLL_ALL_REDUCE,
                                   .dtype = LM_F32,
                                   .count = n / (int64_t)sizeof(float),
                                   .from = slice,
                                   .to = slice,
                                   .label = "the sum of the gradients"}));
  return lm_exec_write(e, LM_ARENA_GRAD, at, n, slice);
}

lm_status lm_rank_gradients_add(lm_comm *c, lm_exec *e, const lm_plan *plan) {
  int64_t bytes = plan->arena_bytes[LM_ARENA_GRAD];
  void *slice = lm_calloc(SLICE, 1);
  lm_status s = NULL;
  for (int64_t at = 0; at < bytes && !s; at += SLICE)
    s = slice_add(c, e, at, rest(bytes, at, SLICE), slice);
  lm_free(slice);
  return s;
}

lm_status lm_rank_params_compare(lm_comm *c, lm_exec *e, const lm_plan *plan) {
  int64_t bytes = plan->arena_bytes[LM_ARENA_PARAM];
  lm_status s = NULL;
  lm_sum sum = {0};
  if (!c)
    return NULL;
  void *piece = lm_calloc(PIECE, 1);
  for (int64_t at = 0; at < bytes && !s; at += PIECE) {
    s = lm_exec_read(e, LM_ARENA_PARAM, at, rest(bytes, at, PIECE), piece);
    lm_sum_add(&sum, piece, (size_t)rest(bytes, at, PIECE));
  }
  lm_free(piece);
  return s ? s : lm_comm_equal(c, "the hash of the parameters", sum.hash);
}
