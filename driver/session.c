// session.c - from a file to a model ready to run.
#include "driver/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/passes/pass.h"
#include "driver/bundle.h"
#include "driver/data.h"
#include "driver/weights/weights.h"
#include "driver/tune/tune_gemm_cuda.h"
#include "runtime/cpu/detect.h"
#include "runtime/train/init.h"

enum {
  CHUNK = 64,
  CAPACITY_LEAST = 256
}; // places that prefill takes at a time; smallest cache

// ---- program and recipe

lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from) {
  s->ctx = ctx;
  s->events = events;
  s->program = lm_program_load(ctx, from->path);
  LM_TRY(lm_verdict(ctx));
  if (s->bundle)
    lm_bundle_restore(s->program, s->bundle);
  s->recipe = lm_recipe_resolve(ctx, s->program, from->recipe, from->sets, from->n_sets);
  LM_TRY(lm_verdict(ctx));
  lm_recipe_report_unsupported(s->recipe);
  return lm_verdict(ctx);
}

// ---- data

// Finished batches say how long rows are and how many a step takes, where the recipe does not.
static lm_status sizes_settle(lm_session *s, const lm_data_info *info) {
  lm_recipe *r = s->recipe;
  if (info)
    r->data.seq = info->seq;
  if (info && !r->batch)
    r->batch = info->batch_rows * info->seq;
  if (!r->micro) {
    r->micro = r->batch;
    r->micro_auto = true;
  }
  if (!lm_recipe_check_batches(r))
    return lm_verdict(s->ctx);
  s->seq = r->data.seq;
  s->rows = r->micro / s->seq;
  s->n_micro = r->batch / r->micro;
  return NULL;
}

lm_status lm_session_data(lm_session *s) {
  if (s->data)
    return NULL;
  LM_TRY(lm_session_tokenizer(s));
  LM_TRY(lm_session_sources(s));
  lm_data_info info = lm_data_info_of(s->data);
  s->epoch_tokens = info.steps ? (double)info.steps * (double)info.batch_rows * (double)info.seq
                               : (double)lm_data_part(s->data, 0).rows * (double)info.seq;
  return sizes_settle(s, s->recipe->data.replays ? &info : NULL);
}

void lm_session_micro(lm_session *s, int64_t micro) {
  s->recipe->micro = micro;
  s->rows = micro / s->seq;
  s->n_micro = s->recipe->batch / micro;
}

lm_status lm_session_sizes(lm_session *s) {
  return s->recipe->data.replays ? lm_session_data(s) : sizes_settle(s, NULL);
}

// ---- compilation

static void watch(void *user, const char *pass, bool after, const lm_module *m) {
  lm_session *s = user;
  if (after)
    lm_dump_pass(&s->dump, pass, m);
}

static void flops_take(lm_session *s) {
  const lm_module *m = s->lowered->m;
  s->model_flops = lm_analysis_flops(m, "loss");
  for (int i = 0; i < s->stages.n; i++) {
    lm_run_stage *stage = &s->stages.v[i];
    stage->flops = lm_analysis_flops(m, stage->loss);
  }
}

// Those of the stages, but for the last one's, which is the session's.
static const int64_t *lengths_of(const lm_session *s, int *out_n) {
  const lm_recipe_data *d = &s->recipe->data;
  int64_t *lengths = LM_NEW_N(s->ctx->arena, int64_t, d->n_stages + 1);
  *out_n = 0;
  for (uint32_t i = 0; i < d->n_stages; i++) {
    bool known = d->stages[i].seq == s->seq;
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
                        .rows = s->rows,
                        .seq = s->seq,
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
  s->steps = lm_recipe_steps(s->recipe, (double)s->params, s->epoch_tokens);
  s->stages = lm_stages_find(s->ctx->arena, s->recipe, s->steps, s->seq, s->rows * s->n_micro);
  bool known = s->recipe->run.unit != LM_RECIPE_UNIT_EPOCHS || s->epoch_tokens > 0;
  if (what & LM_LOWER_TRAIN && known)
    lm_lower_schedule_check(s->ctx, s->program, s->recipe, s->steps);
  return lm_verdict(s->ctx);
}

lm_status lm_session_lower_run(lm_session *s, int64_t places) {
  const lm_recipe *r = s->recipe;
  for (uint32_t i = 0; i < r->n_samples; i++) {
    int64_t most = (int64_t)strlen(r->samples[i].prompt) + r->samples[i].n;
    if (most > places)
      places = most;
  }
  uint32_t what =
      LM_LOWER_TRAIN | (r->n_evals ? LM_LOWER_EVAL : 0) | (r->n_samples ? LM_LOWER_DECODE : 0);
  return lm_session_lower(s, what, lm_session_capacity(places));
}

// lm_generate knows extents by name; the axes are named as the model's author likes.
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
  s->meeting = lm_analysis_of(s->lowered->m)->rows;
}

void lm_session_rows_warn(const lm_session *s) {
  const lm_recipe *r = s->recipe;
  if (s->meeting.kind == LM_ROWS_APART || s->n_micro < 2)
    return;
  bool meet = s->meeting.kind == LM_ROWS_MEET;
  lm_diag *d = lm_warn(s->ctx, s->meeting.loc, "W216", "%s, so `micro` is part of what is computed",
                       meet ? "rows of a micro-batch meet here otherwise than in a sum"
                            : "this is added once for each micro-batch, whatever its weight");
  lm_diag_note(s->ctx, d, r->micro_loc, "a step of %lld tokens is %lld micro-batches of %lld",
               (long long)r->batch, (long long)s->n_micro, (long long)r->micro);
  if (meet)
    lm_diag_help(s->ctx, d, "micro = %lld tokens takes it of all rows of a step",
                 (long long)r->batch);
  else
    lm_diag_help(s->ctx, d,
                 "multiplied by the weight (sum(bt.w)) it counts as often as the tokens");
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
    return lm_fail(LM_BUG_STATUS, "no plan, and no word why");
  extents_name(s->plan);
  return NULL;
}

int64_t lm_session_capacity(int64_t places) {
  int64_t n = CAPACITY_LEAST;
  while (n < places)
    n *= 2;
  return n;
}

// What runs the plan, but for what `start` adds to it.
static lm_exec_options exec_options(const lm_session *s) {
  return (lm_exec_options){.threads = s->threads,
                           .tf32 = s->recipe->precision.tf32,
                           .cuts = s->tuned.cuts.n ? &s->tuned.cuts : NULL,
                           .choices = s->tuned.choices};
}

int64_t lm_session_workspace(const lm_session *s) {
  lm_exec_options o = exec_options(s);
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

// ---- running

lm_status lm_session_weights(lm_session *s) {
  const lm_recipe *r = s->recipe;
  float *params = lm_exec_arena(s->exec, LM_ARENA_PARAM);
  lm_init_params(s->plan, r->seed, params);
  if (!r->from)
    return NULL;
  if (access(r->from, F_OK)) {
    lm_error(s->ctx, r->from_loc, "E215", "there is nothing at %s", r->from);
    return lm_verdict(s->ctx);
  }
  return r->from_hf ? lm_weights_import(s, r->from, params) : lm_weights_load(s, r->from, params);
}

lm_status lm_session_start(lm_session *s, const lm_exec_options *o) {
  lm_exec_options all = exec_options(s);
  all.timeline = o ? o->timeline : NULL;
  all.dump_dir = s->dump_dir ? s->dump_dir : o ? o->dump_dir : NULL;
  all.load_dir = s->load_dir;
  LM_TRY(lm_target_start(&s->target, s->plan, &all, &s->exec));
  return s->tuned.choices ? lm_tuned_gpu_keep(s) : NULL;
}

// Others may use the machine now that will not later, so the best counts; the first one touches
// memory anew.
lm_status lm_session_func_time(const lm_session *s, const char *name, double about, double *out) {
  const lm_plan_func *f = lm_plan_func_find(s->plan, name);
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

// @update's `group`: for each block, the group of the parameter that it belongs to.
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
  *group =
      (lm_train_table){"group", groups_of_blocks(s), sizeof(int32_t) * (size_t)s->plan->n_blocks};
  lm_trainer_options o = {.plan = s->plan,
                          .exec = s->exec,
                          .data = s->data,
                          .steps = s->steps,
                          .last = s->last_step,
                          .n_micro = s->n_micro,
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

static int64_t vocabulary_of(const lm_session *s) {
  return s->limits.tok < s->limits.next ? s->limits.tok : s->limits.next;
}

static void ids_check(lm_session *s, int64_t max_id, int64_t max_pos) {
  const lm_recipe *r = s->recipe;
  int64_t ids = vocabulary_of(s);
  if (max_id >= ids) {
    lm_diag *d =
        lm_error(s->ctx, r->model.loc, "E211",
                 "the model's vocabulary has %lld tokens, the data's numbers go up to %lld",
                 (long long)ids, (long long)max_id);
    lm_diag_note(s->ctx, d, r->data.loc, "data %s", r->data.name);
    lm_diag_help(s->ctx, d, "vocab = %lld", (long long)max_id + 1);
  }
  if (max_pos >= s->limits.pos) {
    lm_diag *d = lm_error(s->ctx, r->model.loc, "E211",
                          "the model knows %lld positions, the data's go up to %lld",
                          (long long)s->limits.pos, (long long)max_pos);
    lm_diag_note(s->ctx, d, r->data.loc, "data %s", r->data.name);
  }
}

lm_status lm_session_check_ids(lm_session *s) {
  lm_data_info info = lm_data_info_of(s->data);
  ids_check(s, info.max_id, info.max_pos);
  return lm_verdict(s->ctx);
}

lm_status lm_session_check_ids_of_recipe(lm_session *s) {
  const lm_recipe_data *d = &s->recipe->data;
  int64_t longest = d->seq;
  if (d->replays)
    return NULL;
  for (uint32_t i = 0; i < d->n_stages; i++)
    if (d->stages[i].seq > longest)
      longest = d->stages[i].seq;
  ids_check(s, d->tokenizer.kind == LM_RECIPE_TOKENIZER_BYTES ? UINT8_MAX : -1, longest - 1);
  for (uint32_t i = 0; i < s->recipe->n_samples; i++) {
    const lm_recipe_sample *x = &s->recipe->samples[i];
    if (x->n >= s->limits.pos)
      lm_error(s->ctx, x->loc, "E211",
               "the model knows %lld positions; a prompt and %lld tokens to make are more",
               (long long)s->limits.pos, (long long)x->n);
  }
  if (d->tokenizer.train > vocabulary_of(s))
    lm_warn(s->ctx, d->tokenizer.loc, "W211",
            "this learns up to %lld tokens, the model's vocabulary has %lld",
            (long long)d->tokenizer.train, (long long)vocabulary_of(s));
  return lm_verdict(s->ctx);
}

void lm_session_close(lm_session *s) {
  lm_trainer_destroy(s->trainer);
  lm_exec_destroy(s->exec);
  lm_data_close(s->data);
  lm_tokenizer_destroy(s->tokenizer);
  for (int i = 0; i < s->n_tokenizer_files; i++)
    lm_buf_free(&s->tokenizer_files[i].text);
  lm_buf_free(&s->tokenizer_config.text);
}
