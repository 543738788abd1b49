// eval.c - see eval.h.
#include "runtime/train/eval.h"

#include <math.h>

const char *const LM_EVAL_NAMES[LM_EVAL_METRICS] = {[LM_EVAL_LOSS] = "loss",
                                                    [LM_EVAL_BITS_PER_BYTE] = "bits_per_byte",
                                                    [LM_EVAL_PERPLEXITY] = "perplexity"};

typedef struct sums {
  double loss, weight, xent, xent_weight;
} sums;

static lm_status rows_run(lm_exec *e, const lm_plan_func *f, const lm_batch_ports *in,
                          const lm_data *data, int part, int64_t rows, lm_comm_self self,
                          const int64_t *extents, const lm_eval_watch *watch, sums *out) {
  for (int64_t first = self.rank * in->rows; first < rows; first += self.size * in->rows) {
    LM_TRY(lm_data_fill_part(data, part, first, in->rows, &in->batch));
    lm_port_set(e, f, LM_PORT_ROW, (double)first);
    LM_TRY(lm_exec_call(e, f, extents));
    out->loss += lm_port_get(e, f, LM_PORT_SUM, 0);
    out->weight += lm_port_get(e, f, LM_PORT_WEIGHT, 0);
    out->xent += lm_port_get(e, f, LM_PORT_XENT_SUM, NAN);
    out->xent_weight += lm_port_get(e, f, LM_PORT_XENT_WEIGHT, NAN);
    if (watch)
      watch->rows(watch->user, first + in->rows < rows ? first + in->rows : rows, rows);
  }
  return NULL;
}

static lm_status ranks_add(lm_comm *comm, sums *x) {
  lm_comm_self self = lm_comm_self_of(comm);
  sums *all = lm_calloc((size_t)self.size, sizeof *all);
  lm_status s = lm_comm_agree(comm, "the sums of an evaluation", x, sizeof *x, all);
  *x = (sums){0};
  for (int r = 0; r < self.size && !s; r++) {
    x->loss += all[r].loss;
    x->weight += all[r].weight;
    x->xent += all[r].xent;
    x->xent_weight += all[r].xent_weight;
  }
  lm_free(all);
  return s;
}

lm_status lm_eval_run(lm_exec *e, const lm_plan *plan, const lm_data *data, int part, lm_comm *comm,
                      const lm_eval_watch *watch, lm_eval_result *out) {
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_EVAL, 0);
  int64_t extents[LM_COUNT(plan->extents)];
  sums x = {0};
  lm_batch_ports in;
  if (!f)
    return lm_fail(LM_BUG_STATUS, "the plan has no function eval");
  for (int i = 0; i < plan->n_extents; i++)
    extents[i] = plan->extents[i].capacity;
  lm_data_part_info info = lm_data_part(data, part);
  LM_TRY(lm_batch_ports_open(e, f, &in));
  lm_status s =
      rows_run(e, f, &in, data, part, info.rows, lm_comm_self_of(comm), extents, watch, &x);
  lm_batch_ports_close(&in);
  if (s)
    return s;
  LM_TRY(ranks_add(comm, &x));
  if (x.weight <= 0) {
    *out = (lm_eval_result){{NAN, NAN, NAN}, x.weight, info.rows};
    return NULL;
  }
  int64_t bytes = lm_data_predicted_bytes(data, part);
  *out = (lm_eval_result){{x.loss / x.weight, bytes ? x.xent / log(2) / (double)bytes : NAN,
                           exp(x.xent / x.xent_weight)},
                          x.weight,
                          info.rows};
  return NULL;
}
