// rank_sums.c - see rank_sums.h.
#include "runtime/train/rank_sums.h"

#include <string.h>

#include "runtime/hal/totals.h"

enum {
  PIECE = LM_SUM_PIECE
};

typedef struct hashing {
  lm_exec *e;
  void *piece;
  int64_t unit; // bytes of an element
  lm_sum sum;
} hashing;

lm_status lm_rank_numbers_add(lm_comm *c, const char *what, const lm_plan *plan,
                              const lm_mesh_set *partial, size_t n, double *x) {
  size_t ranks = (size_t)lm_comm_self_of(c).size;
  if (ranks == 1)
    return NULL;
  double *all = lm_calloc(n * ranks, sizeof *all);
  lm_status s = lm_comm_agree(c, what, x, sizeof *x * n, all);
  for (size_t i = 0; i < n && !s; i++) {
    x[i] = all[i];
    for (size_t r = 1; r < ranks; r++)
      if (lm_plan_mesh_counts(plan, (int)r, partial[i]))
        x[i] += all[r * n + i];
  }
  lm_free(all);
  return s;
}

lm_status lm_rank_totals_add(lm_comm *c, lm_exec *e, const lm_plan *plan, const lm_plan_func *micro,
                             int64_t *tokens) {
  size_t n = (size_t)micro->n_out;
  const double *totals;
  LM_TRY(lm_totals_read(e, &totals));
  double *x = lm_calloc(n + 1, sizeof *x);
  lm_mesh_set *partial = lm_calloc(n + 1, sizeof *partial);
  memcpy(x, totals, sizeof *x * n);
  for (size_t i = 0; i < n; i++)
    partial[i] = micro->out[i].partial;
  x[n] = (double)*tokens; // whole, and below 2^53
  partial[n] = lm_plan_rows(plan);
  lm_status s = lm_rank_numbers_add(c, "the totals of the step", plan, partial, n + 1, x);
  *tokens = (int64_t)x[n];
  if (!s) {
    memcpy(e->totals, x, sizeof *x * n);
    s = lm_totals_write(e);
  }
  lm_free(partial);
  lm_free(x);
  return s;
}

// ---- parameters

static lm_status run_hash(void *user, const lm_tensor_run *r) {
  hashing *h = user;
  for (int64_t at = 0, n, all = r->n * h->unit; at < all; at += n) {
    n = all - at < PIECE ? all - at : PIECE;
    LM_TRY(lm_exec_read(h->e, r->arena, r->offset + at, n, h->piece));
    lm_sum_add(&h->sum, h->piece, (size_t)n);
  }
  return NULL;
}

// Hashes the parameters that are divided along `set`.
static lm_status params_hash(lm_exec *e, const lm_plan *plan, lm_mesh_set set, uint64_t *out) {
  hashing h = {
      .e = e,
      .piece = lm_alloc(PIECE),
  };
  lm_status s = NULL;
  for (int i = 0; i < plan->n_params && !s; i++) {
    const lm_plan_param *x = &plan->params[i];
    lm_plan_tensor value = {x, LM_ROLE_PARAM};
    h.unit = lm_dtype_bytes(lm_plan_tensor_dtype(value));
    if (lm_plan_param_set(x) == set)
      s = lm_tensor_runs(plan, value, 0, x->elements, run_hash, &h);
  }
  lm_free(h.piece);
  *out = h.sum.hash;
  return s;
}

// Equal for the ranks that have equal coordinates along the axes of `set`.
static int color_of(const lm_plan *plan, lm_mesh_set set) {
  int color = 0;
  for (int k = 0; k < plan->mesh.n; k++)
    if (set >> k & 1)
      color = color * plan->mesh.axis[k].size + plan->mesh.axis[k].at;
  return color;
}

lm_status lm_rank_params_compare(lm_comm *c, lm_exec *e, const lm_plan *plan) {
  lm_mesh_set all = lm_plan_divided(plan);
  for (int set = 0; c && set <= all; set++) {
    uint64_t hash;
    if (set & ~all)
      continue;
    LM_TRY(params_hash(e, plan, (lm_mesh_set)set, &hash));
    LM_TRY(lm_comm_equal_of_color(c, "the hash of the parameters", color_of(plan, (lm_mesh_set)set),
                                  hash));
  }
  return NULL;
}
