// session.c - see session.h: the steps that commands share.
#include "driver/session.h"

#include <string.h>

#include "driver/data.h"
#include "driver/ranks.h"
#include "driver/text.h"
#include "driver/tune/tune_gemm_cuda.h"
#include "runtime/base/diag_code.h"

lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from) {
  LM_TRY(lm_project_open(ctx, events, from, &s->project));
  s->run.recipe = s->project.recipe;
  s->comm = from->comm;
  return s->comm ? lm_ranks_join(s) : NULL;
}

// ---- data

static lm_status sizes_settle(lm_session *s, const lm_data_info *info) {
  const lm_project *p = &s->project;
  s->run.columns = lm_run_columns(p->ctx, p->recipe);
  s->run.seq = info ? info->seq : p->recipe->data.seq;
  s->run.pp = s->divides ? lm_recipe_mesh_size(p->recipe, "pp") : 1;
  s->run.parts = s->divides ? lm_ranks_row_parts(s) : 1;
  s->run.chunks = p->recipe->parallel.chunks;
  s->run.multiple = p->recipe->parallel.ticks && !s->run.chunks ? 1 : s->run.pp;
  if (!lm_run_spec_size(p->ctx->arena, p->recipe, info, &s->run))
    return lm_verdict(p->ctx);
  s->run.divides = s->divides;
  return lm_ranks_rows_check(s);
}

lm_status lm_session_data(lm_session *s) {
  if (s->data)
    return NULL;
  LM_TRY(lm_session_tokenizer(s));
  LM_TRY(lm_session_sources(s));
  lm_data_info info = lm_data_info_of(s->data);
  int64_t rows = info.steps ? info.steps * info.batch_rows : lm_data_part(s->data, 0).rows;
  s->run.epoch_tokens = (double)rows * (double)info.seq;
  return sizes_settle(s, s->project.recipe->data.replays ? &info : NULL);
}

lm_status lm_session_sizes(lm_session *s) {
  return s->project.recipe->data.replays ? lm_session_data(s) : sizes_settle(s, NULL);
}

// ---- compilation

static void slow_kernel_report(void *events, const char *text) {
  lm_event_warning(events, "%s", text);
}

static void *tuning_of(const lm_session *s) {
  if (s->target.kind == LM_TARGET_CUDA)
    return s->tuning.choices;
  return s->tuning.tilings.n ? (void *)&s->tuning.tilings : NULL;
}

static lm_exec_options exec_options(const lm_session *s) {
  return (lm_exec_options){.threads = s->threads,
                           .tf32 = s->project.recipe->precision.tf32,
                           .tuning = tuning_of(s),
                           .comm = s->comm,
                           .warning = slow_kernel_report,
                           .warning_user = (void *)s->project.events};
}

lm_compile_spec lm_session_spec(lm_session *s, uint32_t what, int64_t capacity) {
  if (!*s->target.name)
    lm_target_find_cpu(&s->target);
  return (lm_compile_spec){.what = what,
                           .capacity = capacity,
                           .request = s->request,
                           .run = s->run,
                           .target = s->target,
                           .rank = lm_comm_self_of(s->comm).rank,
                           .memory = s->memory,
                           .host_memory = s->host_memory,
                           .less_memory = s->less_memory,
                           .small_tiles = s->small_tiles,
                           .by_layer = s->by_layer,
                           .variant = s->variant,
                           .exec = exec_options(s),
                           .dump = &s->dump};
}

lm_status lm_session_compile(lm_session *s, uint32_t what, int64_t capacity) {
  lm_compile_spec spec = lm_session_spec(s, what, capacity);
  LM_TRY(lm_fit_find(&s->project, &spec, 0, &s->fit, &s->compiled));
  s->run = s->compiled.run;
  if (what & LM_LOWER_TRAIN)
    lm_row_mix_warn(&s->compiled);
  return NULL;
}

bool lm_session_requests(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  for (uint32_t i = 0; i < r->n_samples; i++)
    if (!r->samples[i].source)
      return false;
  return true;
}

lm_status lm_session_compile_run(lm_session *s, int64_t positions) {
  const lm_recipe *r = s->project.recipe;
  for (uint32_t i = 0; i < r->n_samples; i++) {
    int64_t needed = (int64_t)strlen(r->samples[i].prompt) + r->samples[i].n;
    if (needed > positions)
      positions = needed;
  }
  s->request = lm_session_requests(s);
  uint32_t what =
      LM_LOWER_TRAIN | (r->n_evals ? LM_LOWER_EVAL : 0) | (r->n_samples ? LM_LOWER_DECODE : 0);
  return lm_session_compile(s, what, lm_cache_capacity(positions));
}

// The tilings of GEMMs that tuning chooses after compilation change the workspace.
int64_t lm_session_memory(const lm_session *s) {
  lm_exec_options o = exec_options(s);
  return lm_compiled_arenas(&s->compiled) +
         lm_target_runtime(&s->target)->workspace(s->compiled.plan, &o) +
         (s->target.kind == LM_TARGET_CUDA ? 0 : s->compiled.saving);
}

const char *lm_session_compute(const lm_session *s) {
  return lm_dtype_name(s->compiled.compute);
}

// ---- execution

// Pinned memory cannot be swapped.
static lm_status host_memory_check(const lm_session *s) {
  lm_arena *a = s->project.ctx->arena;
  int64_t need = lm_compiled_host_memory(&s->compiled);
  int64_t memory = s->host_memory ? s->host_memory : lm_memory_of_machine();
  bool offloads = lm_plan_arenas(s->compiled.plan, true) > 0;
  if (s->target.kind != LM_TARGET_CUDA || !offloads || need <= memory)
    return NULL;
  LM_REPORT(s->project.ctx, s->project.recipe->model.loc, E253,
            lm_arena_printf(a, "%s of the host's memory", lm_bytes_text(a, need)), "this machine",
            lm_bytes_text(a, memory));
  return lm_verdict(s->project.ctx);
}

// A CPU's system grants more memory than there is, and ends the process when it is used; a GPU's
// driver refuses after the kernels are compiled.
static lm_status memory_check(const lm_session *s) {
  lm_arena *a = s->project.ctx->arena;
  int64_t need = lm_session_memory(s);
  int64_t memory = s->fit.memory ? s->fit.memory : s->memory;
  if (!memory)
    memory = lm_target_runtime(&s->target)->memory(&s->target);
  if (!memory || need <= memory)
    return host_memory_check(s);
  LM_REPORT(s->project.ctx, s->project.recipe->model.loc, E253, lm_bytes_text(a, need),
            s->target.kind == LM_TARGET_CPU ? "this machine" : s->target.title,
            lm_bytes_text(a, memory));
  return lm_verdict(s->project.ctx);
}

#define LESS 0.05 // of the arenas that could not be allocated

// Replaces a plan whose memory could not be allocated by one that takes less; *out: there is one.
static lm_status plan_shrink(lm_session *s, bool *out) {
  lm_compile_spec spec = lm_session_spec(s, s->compiled.spec.what, s->compiled.spec.capacity);
  lm_arena *a = s->project.ctx->arena;
  int64_t need = lm_session_memory(s);
  int64_t most = need - (int64_t)(LESS * (double)lm_compiled_arenas(&s->compiled));
  lm_fit fit;
  lm_compiled less;
  *out = false;
  if (s->project.recipe->memory.budget || !(spec.what & LM_LOWER_TRAIN))
    return NULL;
  LM_TRY(lm_fit_find(&s->project, &spec, most, &fit, &less));
  if (lm_compiled_memory(&less) > most)
    return NULL;
  lm_event_warning(s->project.events, "%s could not allocate %s; a plan of %s is used instead",
                   s->target.title, lm_bytes_text(a, need),
                   lm_bytes_text(a, lm_compiled_memory(&less)));
  s->fit = fit;
  s->compiled = less;
  s->run = less.run;
  *out = true;
  return NULL;
}

// Memory that a driver reports as free may be in pieces, or taken by another process meanwhile.
static lm_status execution_start(lm_session *s, const lm_exec_options *o) {
  for (;;) {
    bool shrunk;
    lm_status failed = lm_execution_start(&s->compiled, o, &s->execution);
    if (!failed || failed->subject != s->compiled.plan)
      return failed;
    lm_status stop = plan_shrink(s, &shrunk);
    if (!stop && !shrunk)
      return failed;
    lm_status_free(failed);
    LM_TRY(stop);
  }
}

lm_status lm_session_start(lm_session *s, const lm_exec_options *o) {
  lm_exec_options all = exec_options(s);
  bool executes = !o || !o->dump_dir; // a plan that is only read may be for a larger machine
  if (executes)
    LM_TRY(memory_check(s));
  all.timeline = o ? o->timeline : NULL;
  all.dump_dir = s->dump_dir ? s->dump_dir : o ? o->dump_dir : NULL;
  all.load_dir = s->load_dir;
  LM_TRY(execution_start(s, &all));
  return s->tuning.choices ? lm_tune_gpu_keep(s) : NULL;
}

lm_status lm_session_train(lm_session *s) {
  return lm_execution_train(&s->execution, &(lm_execution_training){.data = s->data,
                                                                    .comm = s->comm,
                                                                    .last = s->last_step,
                                                                    .timeline = s->timeline,
                                                                    .resumes = s->resumes});
}

void lm_session_close(lm_session *s) {
  lm_execution_close(&s->execution);
  lm_data_close(s->data);
  lm_tokenizer_destroy(s->tokenizer);
  for (int i = 0; i < s->n_tokenizer_files; i++)
    lm_buf_free(&s->tokenizer_files[i].text);
  lm_template_destroy(s->template);
  for (int i = 0; i < LM_COMPANIONS; i++)
    lm_buf_free(&s->companions[i].text);
}
