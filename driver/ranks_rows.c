// ranks_rows.c - whether a mesh divides the rows of a micro-batch.
#include "driver/ranks.h"

#include <string.h>

#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

// Names the numbers of ranks near x that divide n.
static void divisors_help(const lm_session *s, lm_diag *d, const char *name, int64_t n, int64_t x) {
  lm_buf legal = {0};
  lm_shard_divisors(n, x, &legal);
  lm_diag_help(s->project.ctx, d, "of the numbers for %s, %s", name, legal.p);
  lm_buf_free(&legal);
}

// Whether the loss, a scale of 8-bit floats around the blocks, or a value that blocks carry, is
// computed from all rows of a micro-batch. False if it cannot be lowered, which the compilation of
// the run reports.
static bool loss_mixes(lm_session *s) {
  lm_ctx *c = s->project.ctx;
  lm_diag_mark before = lm_diag_mark_of(c);
  if (!*s->target.name)
    lm_target_find_cpu(&s->target);
  lm_compile_spec spec = {
      .what = LM_LOWER_TRAIN,
      .run = s->run,
      .target = s->target,
  };
  lm_compiled x = {0};
  bool ok = false;
  spec.run.rows = 2;
  lm_status status = lm_compile_lower(&s->project, &spec, &x);
  lm_pass_env env = {.compute = x.compute};
  if (!status)
    status = lm_pass_run_list(x.lowered->m, "precision,inline,analyze,simplify,cse,dce", &env, &ok);
  lm_func *loss = ok && !c->n_errors ? lm_func_get(x.lowered->m, LM_FUNC_LOSS, 0) : NULL;
  bool mixes = loss && (!lm_shard_sums_rows(loss) || lm_fp8_follows_outside(x.fp8, loss));
  lm_status_free(status);
  lm_diag_return(c, before);
  return mixes;
}

int lm_ranks_row_parts(lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  s->run.stages_divide = s->run.pp > 1 && (r->parallel.ticks || loss_mixes(s));
  return lm_recipe_row_ranks(r) * (s->run.stages_divide ? s->run.pp : 1);
}

// "dp * fsdp": the axes of the mesh that divide the rows of a micro-batch.
static const char *axes_of_parts(const lm_session *s) {
  static const char *const axes[] = {"dp", "fsdp", "pp", "ep"};
  const lm_recipe *r = s->project.recipe;
  const char *out = NULL;
  for (size_t k = 0; k < LM_COUNT(axes); k++) {
    bool divides = strcmp(axes[k], "pp") != 0 || s->run.stages_divide;
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
  if (s->run.stages_divide && !r->parallel.ticks)
    lm_diag_note(s->project.ctx, d, (lm_loc){0},
                 "the loss, a scale of 8-bit floats, or a value that blocks carry, is computed "
                 "from all rows of a micro-batch, so pp divides them too");
  divisors_help(s, d, name, rows, s->run.parts);
  return false;
}

// The largest micro-batch whose number in a step pp divides; 0 if there is none.
static int64_t micro_for_stages(const lm_session *s) {
  int64_t batch = s->project.recipe->batch, seq = s->run.seq;
  for (int64_t micro = batch / s->run.pp / seq * seq; micro > 0; micro -= seq)
    if (batch % micro == 0 && batch / micro % s->run.multiple == 0 &&
        micro / seq % s->run.parts == 0)
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
  divisors_help(s, d, "pp", s->run.pipeline, s->run.pp);
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
