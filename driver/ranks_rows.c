// ranks_rows.c - whether a mesh divides the rows of a micro-batch.
#include "driver/ranks.h"
#include <string.h>
#include "runtime/base/diag_code.h"

// The largest divisor of n that is at most x.
static int64_t divisor_below(int64_t n, int64_t x) {
  while (x > 1 && n % x)
    x--;
  return x;
}

// "dp * fsdp": the axes of the mesh that divide the rows of a micro-batch.
static const char *axes_of_parts(const lm_session *s) {
  static const char *const axes[] = {"dp", "fsdp", "pp", "ep"};
  const lm_recipe *r = s->project.recipe;
  const char *out = NULL;
  for (size_t k = 0; k < LM_COUNT(axes); k++) {
    bool divides = strcmp(axes[k], "pp") != 0 || r->parallel.ticks;
    if (divides && lm_recipe_mesh_size(r, axes[k]) > 1)
      out = out ? lm_arena_printf(s->project.ctx->arena, "%s * %s", out, axes[k]) : axes[k];
  }
  return out;
}

static bool rows_divide(const lm_session *s, int64_t seq) {
  const lm_recipe *r = s->project.recipe;
  int64_t rows = lm_run_micro(&s->run) / seq;
  if (rows % s->run.parts == 0)
    return true;
  const char *name = axes_of_parts(s);
  lm_diag *d = LM_REPORT(s->project.ctx, r->parallel.loc, E255, name, s->run.parts, (long long)rows,
                         (long long)seq);
  lm_diag_note(s->project.ctx, d, r->micro_loc, "a micro-batch of the whole mesh has %lld tokens",
               (long long)lm_run_micro(&s->run));
  int64_t nearest = divisor_below(rows, s->run.parts);
  if (nearest > 1)
    lm_diag_help(s->project.ctx, d, "%s = %lld does", name, (long long)nearest);
  return false;
}

// The largest micro-batch whose number in a step pp divides; 0 if there is none.
static int64_t micro_for_stages(const lm_session *s) {
  int64_t batch = s->project.recipe->batch, seq = s->run.seq;
  for (int64_t micro = batch / s->run.pp / seq * seq; micro > 0; micro -= seq)
    if (batch % micro == 0 && batch / micro % s->run.multiple == 0)
      return micro;
  return 0;
}

static lm_status pipeline_refuse(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  lm_diag *d = LM_REPORT(s->project.ctx, r->parallel.loc, E25D, s->run.pp, s->run.pipeline);
  lm_diag_note(s->project.ctx, d, r->micro_loc, "a step has %lld tokens, a micro-batch %lld",
               (long long)r->batch, (long long)lm_run_micro(&s->run));
  int64_t micro = micro_for_stages(s);
  if (micro)
    lm_diag_help(s->project.ctx, d, "micro = %lld tokens does", (long long)micro);
  return lm_verdict(s->project.ctx);
}

lm_status lm_ranks_rows_check(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  if (s->run.pipeline && s->run.pipeline % s->run.multiple)
    return pipeline_refuse(s);
  if (s->run.parts < 2)
    return NULL;
  bool divides = rows_divide(s, s->run.seq);
  for (uint32_t i = 0; i < r->data.n_stages && divides; i++)
    divides = rows_divide(s, r->data.stages[i].seq);
  return divides ? NULL : lm_verdict(s->project.ctx);
}
