// compile.c - a session's program from the recipe to a plan: lowering, passes, planning.
#include <stdlib.h>
#include <string.h>

#include "compiler/passes/pass.h"
#include "driver/session.h"
#include "runtime/base/diag_code.h"
#include "runtime/cpu/detect.h"

enum {
  CHUNK = 64, // positions that prefill processes at a time
  MIN_CAPACITY = 256
};

// ---- lowering

static void watch(void *user, const char *pass, bool after, const lm_module *m) {
  lm_session *s = user;
  if (after)
    lm_dump_pass(&s->dump, pass, m);
}

static void flops_take(lm_session *s) {
  const lm_module *m = s->lowered->m;
  s->model_flops = lm_analysis_flops(m, LM_FUNC_LOSS, 0);
  for (int i = 0; i < s->run.stages.n; i++) {
    lm_run_stage *stage = &s->run.stages.v[i];
    stage->flops = lm_analysis_flops(m, LM_FUNC_LOSS, stage->func_seq);
  }
}

// The sequence lengths of the stages that differ from the one at the end of the run.
static const int64_t *lengths_of(const lm_session *s, int *out_n) {
  const lm_recipe_data *d = &s->recipe->data;
  int64_t *lengths = LM_NEW_N(s->ctx->arena, int64_t, d->n_stages + 1);
  *out_n = 0;
  for (uint32_t i = 0; i < d->n_stages; i++) {
    bool known = d->stages[i].seq == s->run.seq;
    for (int k = 0; k < *out_n; k++)
      known |= lengths[k] == d->stages[i].seq;
    if (!known)
      lengths[(*out_n)++] = d->stages[i].seq;
  }
  return lengths;
}

lm_status lm_session_lower(lm_session *s, uint32_t what, int64_t capacity) {
  s->fit.what = what;
  s->fit.capacity = capacity;
  s->fit.fresh = true;
  if (s->recipe->from_hf)
    what |= LM_LOWER_MAPS;
  what |= LM_LOWER_PROBE;
  lm_lower_options o = {.what = what,
                        .rows = s->run.rows,
                        .seq = s->run.seq,
                        .capacity = capacity,
                        .chunk = CHUNK,
                        .bf16 = s->target.arch || lm_cpu_has_bf16()};
  if (what & LM_LOWER_TRAIN)
    o.lengths = lengths_of(s, &o.n_lengths);
  if (s->recipe->data.n_stages)
    o.first = s->recipe->data.stages[0].seq;
  s->lowered = lm_lower(s->ctx, s->program, s->recipe, &o);
  LM_TRY(lm_verdict(s->ctx));
  lm_event_module(s->events, s->lowered->m);
  s->params = lm_lowered_params(s->lowered);
  lm_run_spec_set_steps(s->ctx->arena, &s->run, s->recipe, (double)s->params);
  bool known = s->recipe->run.unit != LM_RECIPE_UNIT_EPOCHS || s->run.epoch_tokens > 0;
  if (what & LM_LOWER_TRAIN && known)
    lm_lower_schedule_check(s->ctx, s->program, s->recipe, s->run.steps);
  return lm_verdict(s->ctx);
}

lm_status lm_session_lower_run(lm_session *s, int64_t positions) {
  const lm_recipe *r = s->recipe;
  for (uint32_t i = 0; i < r->n_samples; i++) {
    int64_t needed = (int64_t)strlen(r->samples[i].prompt) + r->samples[i].n;
    if (needed > positions)
      positions = needed;
  }
  uint32_t what =
      LM_LOWER_TRAIN | (r->n_evals ? LM_LOWER_EVAL : 0) | (r->n_samples ? LM_LOWER_DECODE : 0);
  return lm_session_lower(s, what, lm_session_capacity(positions));
}

// lm_generate finds extents by these names; the model's author names the axes.
static void extents_name(lm_plan *p) {
  static const char *const names[] = {[LM_EXTENT_CONTEXT - 1] = "s", [LM_EXTENT_CHUNK - 1] = "t"};
  for (int i = 0; i < p->n_extents && i < (int)LM_COUNT(names); i++)
    if (p->extents[i].capacity)
      p->extents[i].name = names[i]; // 0: no axis has this extent
}

lm_status lm_session_probe(const lm_session *s, lm_module *m) {
  lm_pass_env env = {0};
  bool ok;
  LM_TRY(lm_pass_run_list(m, "inline,analyze,simplify,cse,dce,causal", &env, &ok));
  return lm_verdict(s->ctx);
}

void lm_session_analyzed(lm_session *s) {
  s->limits = lm_analysis_of(s->lowered->m)->limits;
  s->row_mix = lm_analysis_of(s->lowered->m)->rows;
}

void lm_session_rows_warn(const lm_session *s) {
  const lm_recipe *r = s->recipe;
  if (s->row_mix.kind == LM_ROWS_APART || s->run.n_micro < 2)
    return;
  bool meet = s->row_mix.kind == LM_ROWS_MEET;
  lm_diag *d = LM_REPORT(s->ctx, s->row_mix.loc, W216,
                         meet ? "this operation mixes the rows of a micro-batch"
                              : "this is added once for each micro-batch, whatever its weight");
  lm_diag_note(s->ctx, d, r->micro_loc, "a step of %lld tokens is %lld micro-batches of %lld",
               (long long)r->batch, (long long)s->run.n_micro,
               (long long)(r->batch / s->run.n_micro));
  if (meet)
    lm_diag_help(s->ctx, d, "micro = %lld tokens computes it over all rows of a step",
                 (long long)r->batch);
  else
    lm_diag_help(s->ctx, d, "multiply the term by the weight, sum(bt.w)");
}

// ---- planning

void lm_pass_names_note(const lm_events *e, const char *option, const char *names) {
  while (names) {
    size_t n = strcspn(names, ",");
    const lm_pass *pass = lm_pass_former(names, n);
    if (pass)
      lm_event_note(e,
                    "pass %.*s is now called %s; --%s accepts the former name in this release only",
                    (int)n, names, pass->name, option);
    names = names[n] ? names + n + 1 : NULL;
  }
}

lm_status lm_session_plan_once(lm_session *s, struct lm_recompute *recompute) {
  lm_plan_target target = lm_target_plan(&s->target, s->recipe->precision.tf32, s->lowered->m);
  lm_pass_env env = {.target = &target,
                     .recompute = recompute,
                     .gradients_alone = true,
                     .watch = watch,
                     .user = s};
  if (s->variant.rows)
    target.rows = s->variant.rows;
  if (s->variant.places)
    target.places = s->variant.places;
  if (s->variant.off)
    LM_TRY(lm_pass_disable(s->ctx->arena, s->variant.off, &env));
  if (s->variant.on)
    LM_TRY(lm_pass_force(s->ctx->arena, s->variant.on, &env));
  bool ok = lm_pipeline_run(s->lowered->m, LM_STAGE_KERNEL, &env);
  LM_TRY(lm_verdict(s->ctx));
  if (!ok)
    return lm_fail(LM_BUG_STATUS, "a pass failed without saying why");
  lm_session_analyzed(s);
  flops_take(s);
  if (s->dump.failed)
    return s->dump.failed;
  s->plan = lm_plan_build(s->lowered->m, &target);
  LM_TRY(lm_verdict(s->ctx));
  if (!s->plan)
    return lm_fail(LM_BUG_STATUS, "the planner returned no plan and no diagnostic");
  extents_name(s->plan);
  return NULL;
}

int64_t lm_session_capacity(int64_t positions) {
  int64_t n = MIN_CAPACITY;
  while (n < positions)
    n *= 2;
  return n;
}

// ---- memory

int64_t lm_session_workspace(const lm_session *s) {
  lm_exec_options o = lm_session_exec_options(s);
  return lm_target_workspace(&s->target, s->plan, &o);
}

int64_t lm_session_arenas(const lm_session *s) {
  int64_t bytes = 0;
  for (int i = 0; i < LM_ARENAS; i++)
    bytes += s->plan->arena_bytes[i];
  return bytes;
}

int64_t lm_session_memory(const lm_session *s) {
  return lm_session_arenas(s) + lm_session_workspace(s);
}

const char *lm_session_compute(const lm_session *s) {
  return lm_dtype_name(s->lowered->compute);
}
