// ranks_order.c - the preparations of the ranks of a run, first on one rank of each machine.
#include "driver/ranks.h"

lm_status lm_ranks_in_order(lm_comm *c, const char *what, lm_status (*call)(void *user),
                            void *user) {
  bool first = lm_comm_self_of(c).local_rank == 0;
  LM_TRY(lm_comm_settle(c, what, first ? call(user) : NULL));
  return first ? NULL : call(user);
}

static lm_status data_open(void *user) {
  return lm_session_data(user);
}

lm_status lm_ranks_data(lm_session *s) {
  return lm_ranks_in_order(s->comm, "the data", data_open, s);
}

static lm_status plans_compare(const lm_session *s) {
  lm_buf text = {0};
  uint64_t key;
  if (!s->comm)
    return NULL;
  lm_plan_print(s->compiled.plan, &text);
  uint64_t plan = lm_hash(text.p, text.n, (uint64_t)s->run.n_micro);
  lm_buf_free(&text);
  LM_TRY(lm_comm_equal(s->comm, "the plan", plan));
  if (!s->data)
    return NULL;
  LM_TRY(lm_data_key(s->data, s->run.steps, &key));
  return lm_comm_equal(s->comm, "the data", key);
}

typedef struct starting {
  lm_session *s;
  const lm_exec_options *o;
} starting;

static lm_status session_start(void *user) {
  starting *x = user;
  return lm_session_start(x->s, x->o);
}

lm_status lm_ranks_session_start(lm_session *s, const lm_exec_options *o) {
  LM_TRY(plans_compare(s));
  LM_TRY(lm_ranks_in_order(s->comm, "the kernels", session_start, &(starting){s, o}));
  return lm_exec_connect(s->execution.exec);
}
