// check.c - checks of recipes that need no weights, data or device.
#include "driver/check.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "driver/data.h"
#include "driver/ranks.h"
#include "driver/weights/weights.h"

#include <string.h>

// The positions along t of a cache that grows with them; 0: none.
static int64_t positions_of(const lm_module *m, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (m->axes[t.axis[i]].dyn == LM_EXTENT_CONTEXT)
      return lm_axis_size(m, t.axis[i]);
  return 0;
}

// Sums the caches of decoding.
static lm_status caches_sum(const lm_compiled *c, lm_decode_bytes *out) {
  lm_module *m = c->lowered->m;
  bool ok;
  lm_pass_env env = {.compute = c->compute};
  LM_TRY(lm_pass_run_list(m, "ring_cache", &env, &ok));
  *out = (lm_decode_bytes){.positions = c->spec.capacity};
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    double bytes = g->kind == LM_GLOBAL_CACHE ? lm_type_traffic(m, g->type) : 0;
    int64_t positions = positions_of(m, g->type);
    if (positions)
      out->position += bytes / (double)positions;
    else
      out->constant += bytes;
  }
  return NULL;
}

// Checks the requirements of generation. Without samples in the recipe its errors are warnings,
// because the model may have another purpose.
static void generation_check(lm_session *s) {
  enum {
    LEAST_CAPACITY = 64
  };
  lm_ctx *ctx = s->project.ctx;
  lm_diag **end = ctx->diags_tail;
  lm_compile_spec spec = s->compiled.spec;
  lm_compiled c;
  if (!s->compiled.lowered->vocab)
    return; // no apply
  spec.what = LM_LOWER_DECODE;
  spec.capacity = s->run.seq > LEAST_CAPACITY ? s->run.seq : LEAST_CAPACITY;
  spec.request = lm_session_requests(s);
  spec.run.rows = 1;
  spec.run.seq = 1;
  lm_status status = lm_compile_lower(&s->project, &spec, &c);
  if (!status)
    status = lm_compile_probe(&c);
  if (!status)
    status = caches_sum(&c, &s->decode_bytes);
  lm_status_free(status); // the errors are diagnostics
  if (!s->project.recipe->n_samples && *end)
    lm_diag_soften(ctx, *end, "lmc generate will refuse this model");
}

// Checks the sizes of batches; false if they are not known, or refused. Prepared batches have their
// sizes in their file. A file that cannot be read is no error of the recipe.
static bool sizes_find(lm_session *s) {
  lm_ctx *ctx = s->project.ctx;
  lm_diag_mark before = lm_diag_mark_of(ctx);
  lm_status status = lm_session_sizes(s);
  bool found = !status;
  if (!found && s->project.recipe->data.replays && !s->data)
    lm_diag_return(ctx, before);
  lm_status_free(status);
  return found;
}

// The report names the casts of the run, whose plan must not be slower than without them.
static void casts_take(lm_session *s, const lm_session *run) {
  if (!s->compiled.fp8 || !run->compiled.fp8)
    return;
  lm_fp8 *o = LM_NEW(s->project.ctx->arena, lm_fp8);
  *o = *s->compiled.fp8;
  o->margin = run->compiled.fp8->margin;
  s->compiled.fp8 = o;
}

// Compiles the run of a recipe with a budget, which its plan has to fit, with casts to 8-bit floats
// that are chosen by the time of its plan, or with a mesh, of which the report shows what a rank
// takes and sends.
static lm_status plan_check(lm_session *s, lm_session *run) {
  LM_TRY(lm_session_compile_run(run, 0));
  casts_take(s, run);
  if (s->project.recipe->parallel.ranks > 1)
    s->ranks = lm_rank_rows_find(s->project.ctx->arena, run->compiled.plan, run->run.n_micro);
  s->bubble = lm_run_bubble(&run->run);
  s->run.pipeline = run->run.pipeline;
  s->run.chunks = run->run.chunks;
  return lm_verdict(s->project.ctx);
}

// Any shape of batch shows the parameters. seq: tokens of a row; 0: not known.
static lm_status model_check(lm_session *s, int64_t seq) {
  enum {
    ROWS = 2,
    SEQ = 32
  };
  const lm_project *p = &s->project;
  const lm_recipe *r = p->recipe;
  lm_compiled *c = &s->compiled;
  s->run.divides = true;
  s->run.pp = lm_recipe_mesh_size(r, "pp");
  s->run.pipeline = s->run.pp > 1 ? s->run.pp : 0;
  s->run.rows = (int64_t)ROWS * lm_recipe_row_ranks(r) * s->run.pp * s->run.pp;
  s->run.seq = seq ? seq : r->data.seq ? r->data.seq : SEQ;
  s->run.n_micro = r->micro && !r->micro_auto ? r->batch / r->micro : 0;
  s->run.predicted = r->micro && !r->micro_auto ? r->micro : r->batch;
  s->run.columns = lm_run_columns(p->ctx, r);
  lm_compile_spec spec = lm_session_spec(s, LM_LOWER_TRAIN | LM_LOWER_MAPS, 0);
  LM_TRY(lm_session_check_columns(s));
  LM_TRY(lm_compile_lower(p, &spec, c));
  LM_TRY(lm_compile_probe(c));
  LM_TRY(lm_session_check_ids_of_recipe(s));
  lm_row_mix_warn(c);
  lm_session_look_for_files(s);
  LM_TRY(lm_session_check_tokenizer(s));
  generation_check(s);
  LM_TRY(lm_verdict(p->ctx));
  LM_TRY(lm_weights_from_check(c));
  return lm_session_check_vocabulary(s);
}

static lm_status recipe_check(lm_session *s) {
  const lm_project *p = &s->project;
  const lm_recipe *r = p->recipe;
  lm_session run = {.target = s->target, .project = *p, .run = {.recipe = r}, .divides = true};
  bool casts = r->precision.fp8.on && s->target.kind == LM_TARGET_CUDA;
  bool plans = r->memory.budget || r->parallel.ranks > 1 || casts;
  lm_recipe_report_unsupported(r);
  lm_ranks_unsupported_report(s);
  lm_check(p->ctx, p->program, r);
  LM_TRY(lm_verdict(p->ctx));
  bool sized = (plans || r->data.replays) && sizes_find(&run);
  lm_status status = lm_verdict(p->ctx);
  if (!status)
    status = model_check(s, sized ? run.run.seq : 0);
  if (!status && plans && sized)
    status = plan_check(s, &run);
  lm_session_close(&run);
  return status;
}

typedef struct checker {
  lm_ctx *ctx;
  const lm_events *events;
  const lm_check_options *o;
  lm_program *program;
  void (*checked)(void *user, const lm_session *s);
  void *user;
} checker;

static lm_status named_check(const checker *x, const char *name) {
  const lm_recipe_choice *from = &x->o->from;
  lm_session s = {.target = x->o->target,
                  .project = {
                      .ctx = x->ctx,
                      .events = x->events,
                      .program = x->program,
                  }};
  s.project.recipe = lm_recipe_resolve(x->ctx, x->program, name, &from->overrides);
  if (x->ctx->n_errors)
    lm_check(x->ctx, x->program, s.project.recipe);
  LM_TRY(lm_verdict(x->ctx));
  s.run.recipe = s.project.recipe;
  lm_status status = recipe_check(&s);
  if (!status)
    x->checked(x->user, &s);
  lm_session_close(&s);
  return status;
}

static bool is_wanted(const ast_decl *d, const char *name) {
  return d->kind == DC_RECIPE && (!name || !strcmp(d->name.text, name));
}

static lm_status recipes_check(const checker *x, int *out_n) {
  const lm_recipe_choice *from = &x->o->from;
  const ast_file *tree = x->program->files[0]->tree;
  for (uint32_t i = 0; i < tree->n; i++) {
    if (!is_wanted(tree->v[i], from->recipe))
      continue;
    (*out_n)++;
    LM_TRY(named_check(x, tree->v[i]->name.text));
  }
  if (!*out_n && (from->recipe || from->overrides.n_sets)) // reports the existing recipes
    lm_recipe_resolve(x->ctx, x->program, from->recipe, &from->overrides);
  else if (!*out_n)
    lm_check(x->ctx, x->program, NULL);
  return lm_verdict(x->ctx);
}

lm_status lm_check_run(lm_ctx *ctx, const lm_events *events, const lm_check_options *o,
                       void (*checked)(void *user, const lm_session *s), void *user, int *out_n) {
  checker x = {
      .ctx = ctx,
      .events = events,
      .o = o,
      .checked = checked,
      .user = user,
  };
  *out_n = 0;
  x.program = lm_program_load(ctx, o->from.path);
  if (!x.program)
    return lm_verdict(ctx);
  if (ctx->n_errors) {
    lm_recipe_check_all(ctx, x.program);
    lm_check(ctx, x.program, NULL);
  }
  LM_TRY(lm_verdict(ctx));
  return recipes_check(&x, out_n);
}
