// eval.c - see eval.h.
#include "runtime/train/eval.h"

#include <math.h>

#include "runtime/train/rank_sums.h"

const char *const LM_EVAL_NAMES[LM_EVAL_METRICS] = {[LM_EVAL_LOSS] = "loss",
                                                    [LM_EVAL_BITS_PER_BYTE] = "bits_per_byte",
                                                    [LM_EVAL_PERPLEXITY] = "perplexity"};

enum {
  LOSS,
  WEIGHT,
  XENT,
  XENT_WEIGHT,
  SUMS
};
static const lm_port_id PORTS[SUMS] = {
    LM_PORT_SUM,
    LM_PORT_WEIGHT,
    LM_PORT_XENT_SUM,
    LM_PORT_XENT_WEIGHT,
};

// Each call is on the rows of all ranks, of which this one has a part.
static lm_status rows_run(lm_exec *e, const lm_plan *plan, const lm_plan_func *f,
                          const lm_batch_ports *in, const lm_data *data, int part, int64_t rows,
                          const lm_eval_watch *watch, double *out) {
  int own, parts = lm_plan_parts(plan, &own);
  for (int64_t first = 0, end; first < rows; first = end) {
    end = first + parts * in->rows;
    LM_TRY(lm_data_fill_part(data, part, first + own * in->rows, in->rows, &in->batch));
    lm_batch_ports_cut(in);
    lm_port_set(e, f, LM_PORT_ROW, (double)first);
    LM_TRY(lm_exec_call(e, f, NULL));
    for (int i = 0; i < SUMS; i++)
      out[i] += lm_port_get(e, f, PORTS[i], i < XENT ? 0 : NAN);
    if (watch)
      watch->rows(watch->user, end < rows ? end : rows, rows);
  }
  return NULL;
}

static lm_status ranks_add(lm_comm *comm, const lm_plan *plan, const lm_plan_func *f, double *x) {
  lm_mesh_set partial[SUMS] = {0};
  for (int i = 0; i < SUMS; i++) {
    const lm_plan_port *p = lm_plan_port_get(f, PORTS[i], true);
    partial[i] = p ? p->partial : 0;
  }
  return lm_rank_numbers_add(comm, "the sums of an evaluation", plan, partial, SUMS, x);
}

lm_status lm_eval_run(lm_exec *e, const lm_plan *plan, const lm_data *data, int part, lm_comm *comm,
                      const lm_eval_watch *watch, lm_eval_result *out) {
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_EVAL, 0);
  double x[SUMS] = {0};
  lm_batch_ports in;
  if (!f)
    return lm_fail(LM_BUG_STATUS, "the plan has no function eval");
  lm_data_part_info info = lm_data_part(data, part);
  LM_TRY(lm_batch_ports_open(e, plan, f, &in));
  lm_status s = rows_run(e, plan, f, &in, data, part, info.rows, watch, x);
  lm_batch_ports_close(&in);
  if (s)
    return s;
  LM_TRY(ranks_add(comm, plan, f, x));
  if (x[WEIGHT] <= 0) {
    *out = (lm_eval_result){{NAN, NAN, NAN}, x[WEIGHT], x[XENT_WEIGHT], info.rows};
    return NULL;
  }
  int64_t bytes = lm_data_predicted_bytes(data, part);
  *out = (lm_eval_result){
      .value = {x[LOSS] / x[WEIGHT], bytes ? x[XENT] / log(2) / (double)bytes : NAN,
                exp(x[XENT] / x[XENT_WEIGHT])},
      .weight = x[WEIGHT],
      .tokens = x[XENT_WEIGHT],
      .rows = info.rows,
  };
  return NULL;
}
