// run_report.c - what `lmc run` prints: the plan, the profile, and how the run ended.
#include "lmc/run_report.h"

#include <math.h>

#include "driver/inspect/profile.h"
#include "driver/tune/tune_step.h"
#include "driver/outputs.h"
#include "runtime/base/terminal.h"
#include "runtime/io/json.h"
#include "runtime/train/checkpoint_folder.h"

// ---- the plan

enum {
  INDENT = 8
}; // of what follows their first words

static void memory_line(const lm_session *s, lm_buf *b) {
  int64_t scratch = lm_session_workspace(s);
  lm_show_bytes(b, (double)(lm_session_arenas(s) + scratch));
  for (int i = 0; i < LM_ARENAS; i++) {
    if (!s->plan->arena_bytes[i] || i == LM_ARENA_IO) // which is small
      continue;
    lm_buf_printf(b, "%s%s ", i ? ", " : ": ", lm_arena_titles[i]);
    lm_show_bytes(b, (double)s->plan->arena_bytes[i]);
  }
  if (!scratch)
    return;
  lm_buf_puts(b, ", GEMM workspace ");
  lm_show_bytes(b, (double)scratch);
}

// Nothing for a run that is finished.
static lm_status time_print(const lm_training *x) {
  int64_t left;
  double seconds;
  lm_buf time = {0};
  LM_TRY(lm_training_time(x, &left, &seconds));
  if (left <= 0)
    return NULL;
  lm_show_seconds(&time, seconds);
  lm_print_wrapped(x->options.to, INDENT,
                   "time    about %s: %lld %sstep%s of %lld tokens, measured on one micro-batch\n",
                   time.p, (long long)left, x->resumption.was.step ? "further " : "",
                   left == 1 ? "" : "s", (long long)x->s.recipe->batch);
  lm_buf_free(&time);
  return NULL;
}

lm_status lm_run_plan_print(const lm_training *x) {
  const lm_session *s = &x->s;
  FILE *to = x->options.to;
  lm_buf params = {0}, memory = {0};
  lm_show_count(&params, (double)s->params);
  memory_line(s, &memory);
  lm_print_wrapped(to, INDENT, "model   %s: %s parameters in %d tensors, computed in %s\n",
                   s->recipe->model.name, params.p, s->plan->n_params, lm_session_compute(s));
  lm_print_wrapped(to, INDENT, "memory  %s\n", memory.p);
  if (s->run.micro_auto && s->run.n_micro > 1)
    lm_print_wrapped(to, INDENT, "micro   %lld tokens, the most that fit\n",
                     (long long)lm_run_micro(&s->run));
  if (s->fit.recomputed)
    lm_print_wrapped(
        to, INDENT,
        "        %d of %d kept values are computed again to fit, about %.2f times the time\n",
        s->fit.recomputed, s->fit.candidates, s->fit.slowdown);
  if (lm_tuned_step_text(s))
    lm_print_wrapped(to, INDENT, "tuned   the step is %s\n", lm_tuned_step_text(s));
  if (s->tuned.gemms)
    lm_print_wrapped(to, INDENT,
                     "tuned   %d of %d GEMMs differ from the default; %d measured now\n",
                     s->tuned.chosen, s->tuned.gemms, s->tuned.measured);
  lm_buf_free(&params);
  lm_buf_free(&memory);
  LM_TRY(time_print(x));
  fflush(to);
  return NULL;
}

// ---- the profile

enum {
  MAX_SPANS = 1 << 18 // some tens of MB as text
};

// A file that cannot be written is reported before the training.
lm_status lm_run_profile_begin(lm_cli *cli, lm_training *x) {
  const char *path = lm_args_text(&cli->args, "profile", NULL);
  if (!lm_args_given(&cli->args, "profile"))
    return NULL;
  LM_TRY(lm_output_check_recipe(x->s.recipe, path));
  if (path)
    LM_TRY(lm_file_write_atomic(path, "", 0));
  x->s.timeline = LM_NEW(cli->ctx->arena, lm_timeline);
  *x->s.timeline = (lm_timeline){.arena = cli->ctx->arena, .max = MAX_SPANS, .threads = true};
  return NULL;
}

lm_status lm_run_profile_end(lm_cli *cli, lm_training *x) {
  const lm_timeline *t = x->s.timeline;
  if (!t)
    return NULL;
  lm_arena *a = cli->ctx->arena;
  const char *path =
      lm_args_text(&cli->args, "profile", lm_path_join(a, x->dir ? x->dir : ".", "profile.json"));
  lm_roofline roofline;
  lm_target_roofline(&x->s.target, lm_exec_threads(x->s.exec), x->s.lowered->compute, &roofline);
  LM_TRY(lm_profile_write(x->s.plan, t, &roofline, path));
  if (!x->options.to)
    return NULL;
  fprintf(x->options.to, "profile: %s", lm_show_path(a, path));
  fprintf(x->options.to, t->left_out ? ", the first %.0f%% of the run\n" : "\n",
          100.0 * t->n_spans / (t->n_spans + (double)t->left_out));
  return NULL;
}

// ---- the outcome

void lm_run_outcome_json(const lm_training *x, const lm_run_outcome *out) {
  lm_arena *a = x->s.ctx->arena;
  lm_buf b = {0};
  lm_buf_printf(&b, "{\"step\": %lld, \"resumed\": %lld, \"loss\": ", (long long)out->step,
                (long long)out->resumed);
  lm_json_number(&b, out->step > out->resumed ? out->last.loss : NAN);
  lm_buf_printf(&b, ", \"skipped\": %lld, \"empty\": %lld", (long long)out->skipped,
                (long long)out->empty);
  lm_buf_printf(&b, ", \"interrupted\": %s, \"stopped_early\": %s",
                out->interrupted ? "true" : "false", out->stopped_early ? "true" : "false");
  lm_buf_printf(&b,
                ", \"peak_bytes\": %lld, \"checkpoint\": ", (long long)lm_session_memory(&x->s));
  if (x->dir)
    lm_buf_json(&b, lm_checkpoint_path(a, x->dir, out->step));
  else
    lm_buf_puts(&b, "null");
  lm_buf_printf(&b, ", \"tuned\": %d, \"measured\": %d, \"tuned_step\": ", x->s.tuned.chosen,
                x->s.tuned.measured);
  lm_tuned_step_json(&x->s, &b);
  lm_cli_print("%s}\n", b.p);
  lm_buf_free(&b);
}

void lm_run_outcome_print(const lm_training *x, const lm_run_outcome *out) {
  FILE *to = x->options.to;
  const char *prompt = x->s.recipe->n_samples ? x->s.recipe->samples[0].prompt : "...";
  if (!x->dir) {
    fprintf(to, "done; nothing was saved, as the recipe has no `save`\n");
    return;
  }
  lm_arena *a = x->s.ctx->arena;
  const char *dir = lm_show_path(a, x->dir);
  if (out->interrupted)
    fprintf(to, "the same command resumes from %s\n", dir);
  else
    fprintf(to, "done: %s/step-%06lld; next: lmc generate %s --prompt %s\n", dir,
            (long long)out->step, lm_show_word(a, dir), lm_show_quoted(a, prompt));
}
