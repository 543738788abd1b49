// session.c - opening a program, its recipe and its data.
#include "driver/session.h"

#include <string.h>

#include "driver/bundle.h"
#include "driver/data.h"

// reduce-overhead is accepted and is the default: a function is one parallel region or one graph.
lm_status lm_mode_check(const char *mode) {
  static const char *const modes[] = {"default", "reduce-overhead", "max-autotune"};
  for (size_t i = 0; i < LM_COUNT(modes); i++)
    if (!strcmp(mode, modes[i]))
      return NULL;
  return lm_fail(LM_USER, "--mode %s: there are default, reduce-overhead and max-autotune", mode);
}

lm_status lm_session_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *from) {
  s->ctx = ctx;
  s->events = events;
  s->program = lm_program_load(ctx, from->path);
  LM_TRY(lm_verdict(ctx));
  if (s->bundle)
    lm_bundle_restore(s->program, s->bundle);
  s->recipe = lm_recipe_resolve(ctx, s->program, from->recipe, &from->overrides);
  LM_TRY(lm_verdict(ctx));
  lm_recipe_report_unsupported(s->recipe);
  return lm_verdict(ctx);
}

// ---- data

static lm_status sizes_settle(lm_session *s, const lm_data_info *info) {
  const lm_recipe *sized;
  if (!lm_run_spec_size(s->ctx->arena, s->recipe, info, &s->run, &sized))
    return lm_verdict(s->ctx);
  s->recipe = sized;
  return NULL;
}

lm_status lm_session_data(lm_session *s) {
  if (s->data)
    return NULL;
  LM_TRY(lm_session_tokenizer(s));
  LM_TRY(lm_session_sources(s));
  lm_data_info info = lm_data_info_of(s->data);
  int64_t rows = info.steps ? info.steps * info.batch_rows : lm_data_part(s->data, 0).rows;
  s->run.epoch_tokens = (double)rows * (double)info.seq;
  return sizes_settle(s, s->recipe->data.replays ? &info : NULL);
}

lm_status lm_session_sizes(lm_session *s) {
  return s->recipe->data.replays ? lm_session_data(s) : sizes_settle(s, NULL);
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
