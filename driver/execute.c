// execute.c - a planned session in memory: kernels, parameters, the trainer.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/session.h"
#include "driver/tune/tune_gemm_cuda.h"
#include "driver/weights/weights.h"
#include "runtime/base/diag_code.h"
#include "runtime/train/init.h"

lm_exec_options lm_session_exec_options(const lm_session *s) {
  return (lm_exec_options){.threads = s->threads,
                           .tf32 = s->recipe->precision.tf32,
                           .tilings = s->tuned.tilings.n ? &s->tuned.tilings : NULL,
                           .choices = s->tuned.choices};
}

lm_status lm_session_weights(lm_session *s) {
  const lm_recipe *r = s->recipe;
  float *params = lm_exec_arena(s->exec, LM_ARENA_PARAM);
  lm_init_params(s->plan, r->seed, params);
  if (!r->from)
    return NULL;
  if (access(r->from, F_OK)) {
    LM_REPORT(s->ctx, r->from_loc, E215, r->from);
    return lm_verdict(s->ctx);
  }
  return r->from_hf ? lm_weights_import(s, r->from, params) : lm_weights_load(s, r->from, params);
}

static void slow_kernel_report(void *session, const char *text) {
  const lm_session *s = session;
  lm_event_warning(s->events, "%s", text);
}

lm_status lm_session_start(lm_session *s, const lm_exec_options *o) {
  lm_exec_options all = lm_session_exec_options(s);
  all.timeline = o ? o->timeline : NULL;
  all.dump_dir = s->dump_dir ? s->dump_dir : o ? o->dump_dir : NULL;
  all.load_dir = s->load_dir;
  all.warning = slow_kernel_report;
  all.warning_user = s;
  LM_TRY(lm_target_start(&s->target, s->plan, &all, &s->exec));
  return s->tuned.choices ? lm_tuned_gpu_keep(s) : NULL;
}

// Other processes may slow some runs down, so the shortest one counts; the first one faults pages
// in and does not.
lm_status lm_session_func_time(const lm_session *s, lm_func_id id, int64_t seq, double about,
                               double *out) {
  const lm_plan_func *f = lm_plan_func_get(s->plan, id, seq);
  double begin = lm_now(), best = 1e30;
  for (int i = 0; f && (i < 3 || lm_now() - begin < about); i++) {
    double start = lm_now();
    LM_TRY(lm_exec_call(s->exec, f, NULL));
    double took = lm_now() - start;
    if (i && took < best)
      best = took;
  }
  *out = f ? best : 0;
  return NULL;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const lm_lowered_path *)a)->path, ((const lm_lowered_path *)b)->path);
}

// The input `group` of @update: the parameter group of each block.
static int32_t *groups_of_blocks(const lm_session *s) {
  const lm_plan *plan = s->plan;
  const lm_lowered *l = s->lowered;
  int32_t *group = LM_NEW_N(s->ctx->arena, int32_t, plan->n_blocks + 1);
  lm_lowered_path *paths = LM_NEW_N(s->ctx->arena, lm_lowered_path, l->n_paths + 1);
  if (l->n_paths)
    memcpy(paths, l->paths, sizeof *paths * l->n_paths);
  qsort(paths, l->n_paths, sizeof *paths, by_path);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    const lm_lowered_path *found =
        bsearch(&(lm_lowered_path){p->path, 0}, paths, l->n_paths, sizeof *paths, by_path);
    if (!found)
      LM_BUG("parameter %s is in no group", p->path);
    int64_t first = p->offset / LM_BLOCK;
    int64_t last = (p->offset + p->elements - 1) / LM_BLOCK;
    for (int64_t b = first; b <= last; b++)
      group[b] = found->group;
  }
  return group;
}

lm_status lm_session_train(lm_session *s) {
  const lm_lowered *l = s->lowered;
  lm_arena *a = s->ctx->arena;
  lm_train_state *states = LM_NEW_N(a, lm_train_state, l->n_states + 1);
  for (int i = 0; i < l->n_states; i++)
    states[i] = (lm_train_state){l->states[i].name, l->states[i].is_param, l->states[i].value};
  lm_train_table *group = LM_NEW(a, lm_train_table);
  *group = (lm_train_table){LM_PORT_GROUP, groups_of_blocks(s),
                            sizeof(int32_t) * (size_t)s->plan->n_blocks};
  lm_trainer_options o = {.plan = s->plan,
                          .exec = s->exec,
                          .data = s->data,
                          .steps = s->run.steps,
                          .last = s->last_step,
                          .n_micro = s->run.n_micro,
                          .timeline = s->timeline,
                          .clip = s->recipe->clip,
                          .tables = group,
                          .n_tables = 1,
                          .states = states};
  LM_TRY(lm_trainer_create(&o, &s->trainer));
  LM_TRY(lm_session_weights(s));
  lm_trainer_init_states(s->trainer);
  return NULL;
}
