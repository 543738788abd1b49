// run_report.c - the output of lmc run: the plan before the training, and how the run ended.
#include <math.h>
#include <string.h>

#include "driver/report/report.h"
#include "driver/text.h"
#include "driver/tune/tune_variant.h"
#include "dsl/lower/columns.h"
#include "runtime/base/terminal.h"
#include "runtime/io/json.h"
#include "runtime/train/checkpoint_folder.h"

enum {
  INDENT = 8 // of continuation lines
};

// ---- the plan

static void memory_line(const lm_session *s, lm_buf *b) {
  int64_t workspace = s->compiled.workspace, saving = s->compiled.saving;
  const lm_plan *plan = s->compiled.plan;
  lm_show_bytes(b, (double)lm_compiled_memory(&s->compiled));
  for (int i = 0; i < LM_ARENAS; i++) {
    if (!plan->arena_bytes[i] || plan->on_host[i] || i == LM_ARENA_IO) // which is small
      continue;
    lm_buf_printf(b, "%s%s ", i ? ", " : ": ", lm_arena_titles[i]);
    lm_show_bytes(b, (double)plan->arena_bytes[i]);
  }
  if (workspace) {
    lm_buf_puts(b, ", GEMM workspace ");
    lm_show_bytes(b, (double)workspace);
  }
  for (int i = 0; i < LM_ARENAS; i++) {
    if (!plan->arena_bytes[i] || !plan->on_host[i])
      continue;
    lm_buf_printf(b, "; in the host's memory: %s ", lm_arena_titles[i]);
    lm_show_bytes(b, (double)plan->arena_bytes[i]);
  }
  if (!saving)
    return;
  lm_buf_puts(b, s->target.kind == LM_TARGET_CUDA
                     ? "; in the host's memory the copy of a checkpoint, "
                     : ", copy of a checkpoint ");
  lm_show_bytes(b, (double)saving);
}

// Prints nothing for a finished run.
static lm_status time_print(const lm_training *x) {
  int64_t left;
  double seconds;
  lm_buf time = {0};
  if (x->options.to)
    fflush(x->options.to); // a large micro-batch takes minutes
  LM_TRY(lm_training_time(x, &left, &seconds));
  if (left <= 0)
    return NULL;
  if (seconds > 0)
    lm_buf_puts(&time, "about ");
  if (seconds > 0)
    lm_show_seconds(&time, seconds);
  lm_print_wrapped(x->options.to, INDENT, "time    %s%s%lld %sstep%s of %lld tokens%s\n",
                   time.n ? time.p : "", time.n ? ": " : "", (long long)left,
                   x->resumption.was.step ? "further " : "", left == 1 ? "" : "s",
                   (long long)x->s.run.recipe->batch,
                   time.n ? ", measured on one micro-batch" : "");
  lm_buf_free(&time);
  return NULL;
}

lm_status lm_report_run_plan(const lm_training *x) {
  const lm_session *s = &x->s;
  FILE *to = x->options.to;
  const lm_plan *plan = s->compiled.plan;
  lm_buf params = {0}, trained = {0}, memory = {0};
  lm_show_count(&params, (double)s->compiled.params);
  if (plan->n_frozen) {
    lm_buf_puts(&trained, ", of which ");
    lm_show_count(&trained, (double)lm_lowered_trained(s->compiled.lowered));
    lm_buf_printf(&trained, " in %d are trained", plan->n_params);
  }
  lm_print_wrapped(to, INDENT, "model   %s: %s parameters in %d tensors%s, computed in %s\n",
                   s->project.recipe->model.name, params.p, plan->n_params + plan->n_frozen,
                   trained.n ? trained.p : "", lm_session_compute(s));
  if (plan->mesh.n)
    lm_print_wrapped(to, INDENT, "mesh    %s; memory is that of one rank\n",
                     lm_plan_mesh_text(s->project.ctx->arena, plan));
  memory_line(s, &memory);
  lm_print_wrapped(to, INDENT, "memory  %s\n", memory.p);
  if (s->run.micro_auto && s->run.n_micro > 1)
    lm_print_wrapped(to, INDENT, "micro   %lld tokens, the most that fit\n",
                     (long long)lm_run_micro(&s->run));
  const char *fit = lm_fit_text(s->project.ctx->arena, &s->fit);
  if (fit)
    lm_print_wrapped(to, INDENT, "        %s to fit, about %.2f times the time\n", fit,
                     s->fit.slowdown);
  if (lm_tune_step_text(s))
    lm_print_wrapped(to, INDENT, "tuned   the step is %s\n", lm_tune_step_text(s));
  if (s->tuning.gemms)
    lm_print_wrapped(to, INDENT,
                     "tuned   %d of %d GEMMs differ from the default; %d measured now\n",
                     s->tuning.chosen, s->tuning.gemms, s->tuning.measured);
  lm_buf_free(&params);
  lm_buf_free(&trained);
  lm_buf_free(&memory);
  LM_TRY(time_print(x));
  fflush(to);
  return NULL;
}

// ---- the outcome

void lm_report_run_json(const lm_training *x, const lm_run_outcome *r, lm_buf *out) {
  lm_arena *a = x->s.project.ctx->arena;
  lm_buf_printf(out, "{\"step\": %lld, \"resumed\": %lld, \"loss\": ", (long long)r->step,
                (long long)r->resumed);
  lm_json_number(out, r->step > r->resumed ? r->last.loss : NAN);
  lm_buf_printf(out, ", \"skipped\": %lld, \"empty\": %lld, \"overflows\": %lld",
                (long long)r->skipped, (long long)r->empty, (long long)r->overflows);
  lm_buf_printf(out, ", \"interrupted\": %s, \"stopped_early\": %s",
                r->interrupted ? "true" : "false", r->stopped_early ? "true" : "false");
  lm_buf_printf(out, ", \"peak_bytes\": %lld, \"host_bytes\": %lld, \"checkpoint\": ",
                (long long)lm_session_memory(&x->s),
                (long long)lm_plan_arenas(x->s.compiled.plan, true));
  if (x->dir)
    lm_buf_json(out, lm_checkpoint_path(a, x->dir, r->step));
  else
    lm_buf_puts(out, "null");
  lm_buf_printf(out, ", \"tuned\": %d, \"measured\": %d, \"tuned_step\": ", x->s.tuning.chosen,
                x->s.tuning.measured);
  lm_tune_step_report(&x->s, out);
  lm_buf_puts(out, "}\n");
}

// The command that shows what the model learned.
static const char *next_command(const lm_training *x, const char *dir) {
  lm_arena *a = x->s.project.ctx->arena;
  const lm_recipe *r = x->s.project.recipe;
  const char *run = lm_show_word(a, dir);
  if (!lm_model_has_apply(x->s.project.ctx, r->model.target.decl))
    return lm_arena_printf(a, "lmc %s %s", r->data.n_holdouts ? "eval" : "export", run);
  for (uint32_t i = 0; i < r->data.n_sources; i++)
    if (r->data.sources[i].kind == LM_RECIPE_SOURCE_CHAT)
      return lm_arena_printf(a, "lmc chat %s", run);
  const lm_recipe_sample *sample = r->n_samples ? &r->samples[0] : NULL;
  const char *prompt = sample ? sample->prompt : "...";
  const char *source = sample ? sample->source : r->data.seq2seq ? "..." : NULL;
  bool starts = r->data.seq2seq && (!sample || !strcmp(prompt, r->data.sources[0].start));
  return lm_arena_printf(a, "lmc generate %s%s%s%s%s", run, source ? " --source " : "",
                         source ? lm_show_quoted(a, source) : "", starts ? "" : " --prompt ",
                         starts ? "" : lm_show_quoted(a, prompt));
}

void lm_report_run(const lm_training *x, const lm_run_outcome *r, lm_buf *out) {
  if (!x->dir) {
    lm_buf_printf(out, "done; nothing was saved, as the recipe has no `save`\n");
    return;
  }
  lm_arena *a = x->s.project.ctx->arena;
  const char *dir = lm_show_path(a, x->dir);
  if (r->interrupted)
    lm_buf_printf(out, "the same command resumes from %s\n", dir);
  else
    lm_buf_printf(out, "done: %s/step-%06lld; next: %s\n", dir, (long long)r->step,
                  next_command(x, dir));
}
