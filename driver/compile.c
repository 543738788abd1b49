// compile.c - a project from the recipe to a plan: lowering, passes, planning.
#include "driver/compile.h"

#include <string.h>

#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/pass.h"
#include "driver/fp8.h"
#include "driver/mesh.h"
#include "runtime/base/diag_code.h"
#include "runtime/train/checkpoint_files.h"

enum {
  MIN_CAPACITY = 256
};

// ---- lowering

// The sequence lengths of the stages that differ from the one at the end of the run.
static const int64_t *lengths_of(const lm_project *p, const lm_run_spec *run, int *out_n) {
  const lm_recipe_data *d = &p->recipe->data;
  int64_t *lengths = LM_NEW_N(p->ctx->arena, int64_t, d->n_stages + 1);
  *out_n = 0;
  for (uint32_t i = 0; i < d->n_stages; i++) {
    bool known = d->stages[i].seq == run->seq;
    for (int k = 0; k < *out_n; k++)
      known |= lengths[k] == d->stages[i].seq;
    if (!known)
      lengths[(*out_n)++] = d->stages[i].seq;
  }
  return lengths;
}

static lm_dtype compute_asked(const lm_recipe *r) {
  static const lm_dtype asked[] = {[LM_RECIPE_COMPUTE_AUTO] = LM_REAL,
                                   [LM_RECIPE_COMPUTE_F32] = LM_F32,
                                   [LM_RECIPE_COMPUTE_BF16] = LM_BF16,
                                   [LM_RECIPE_COMPUTE_F16] = LM_F16};
  return asked[r->precision.compute];
}

static lm_lower_options lower_options(const lm_project *p, const lm_compile_spec *spec) {
  lm_lower_options o = {.what = spec->what | LM_LOWER_PROBE,
                        .rows = spec->run.rows,
                        .micro_batches = spec->run.pipeline,
                        .seq = spec->run.seq,
                        .capacity = spec->capacity,
                        .chunk = LM_PREFILL_CHUNK,
                        .request = spec->request,
                        .columns = spec->run.columns};
  if (p->recipe->peft)
    o.what |= LM_LOWER_MAPS;
  if (o.what & LM_LOWER_TRAIN)
    o.lengths = lengths_of(p, &spec->run, &o.n_lengths);
  if (p->recipe->data.n_stages)
    o.first = p->recipe->data.stages[0].seq;
  return o;
}

static const char *count_text(lm_arena *a, void (*show)(lm_buf *, double), double n) {
  lm_buf b = {0};
  show(&b, n);
  const char *text = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static const lm_global *largest_parameter(const lm_module *m) {
  const lm_global *largest = NULL;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    bool larger = !largest || lm_type_elements(m, g->type) > lm_type_elements(m, largest->type);
    if (g->kind == LM_GLOBAL_PARAM && larger)
      largest = g;
  }
  return largest;
}

static lm_status size_check(const lm_project *p, const lm_compiled *c) {
  static const double MAX_PARAMS = 0x1p40;
  const lm_module *m = c->lowered->m;
  lm_arena *a = p->ctx->arena;
  double params = (double)c->params;
  if (params < MAX_PARAMS)
    return NULL;
  const lm_global *g = largest_parameter(m);
  lm_diag *d = LM_REPORT(p->ctx, p->recipe->model.loc, E252, count_text(a, lm_show_count, params),
                         count_text(a, lm_show_bytes, params * sizeof(float)));
  lm_diag_note(p->ctx, d, g->loc, "the largest parameter, %s: %s", g->name,
               count_text(a, lm_show_bytes, lm_type_traffic(m, g->type)));
  return lm_verdict(p->ctx);
}

static lm_status offload_check(const lm_project *p, const lm_compile_spec *spec) {
  bool offloads = spec->what & LM_LOWER_TRAIN && p->recipe->memory.offload_loc.line;
  if (offloads && spec->target.kind == LM_TARGET_CPU)
    LM_REPORT(p->ctx, p->recipe->memory.offload_loc, E256);
  return lm_verdict(p->ctx);
}

static lm_status masters_check(const lm_compiled *c) {
  const lm_recipe *r = c->project->recipe;
  lm_dtype stored = r->precision.master_bf16 ? LM_BF16 : LM_F32;
  bool copied = c->compute != LM_F32 && stored == LM_F32;
  if (c->spec.what & LM_LOWER_TRAIN && r->memory.masters_on_host && !copied)
    LM_REPORT(c->project->ctx, r->memory.masters_loc, E25F, lm_dtype_name(stored));
  return lm_verdict(c->project->ctx);
}

lm_status lm_compile_lower(const lm_project *p, const lm_compile_spec *spec, lm_compiled *out) {
  lm_lower_options o = lower_options(p, spec);
  LM_TRY(offload_check(p, spec));
  *out = (lm_compiled){
      .project = p,
      .spec = *spec,
      .run = spec->run,
  };
  const uint32_t of_files = LM_LOWER_MAPS | LM_LOWER_MERGED | LM_LOWER_PEFT;
  bool files = !(spec->what & ~of_files); // rounds no parameter
  out->compute = files ? LM_F32 : lm_precision_of(compute_asked(p->recipe), &spec->target);
  out->lowered = lm_lower(p->ctx, p->program, p->recipe, &o);
  LM_TRY(lm_verdict(p->ctx));
  lm_event_module(p->events, out->lowered->m);
  out->params = lm_lowered_params(out->lowered);
  LM_TRY(size_check(p, out));
  LM_TRY(masters_check(out));
  LM_TRY(lm_fp8_make(out));
  lm_run_spec_set_steps(p->ctx->arena, &out->run, (double)out->params);
  bool known = p->recipe->run.unit != LM_RECIPE_UNIT_EPOCHS || out->run.epoch_tokens > 0;
  if (o.what & LM_LOWER_TRAIN && known)
    lm_lower_schedule_check(p->ctx, p->program, p->recipe, out->run.steps);
  if (spec->dump && spec->dump->dir)
    LM_TRY(lm_dump_stage(spec->dump->dir, out->lowered->m));
  return lm_verdict(p->ctx);
}

static void analyses_take(lm_compiled *c) {
  c->limits = lm_analysis_of(c->lowered->m)->limits;
  c->row_mix = lm_analysis_of(c->lowered->m)->row_mix;
}

// Of attend = fp8; NULL without it.
static const lm_loc *attention_loc(const lm_compiled *c) {
  const lm_recipe *r = c->project->recipe;
  bool rounds = r && r->precision.attend_fp8 && c->spec.what & LM_LOWER_TRAIN;
  return rounds ? &r->precision.attend_loc : NULL;
}

lm_status lm_compile_probe(lm_compiled *c) {
  lm_pass_env env = {
      .compute = c->compute,
      .fp8 = c->fp8,
      .fp8_attention = attention_loc(c),
  };
  bool ok;
  LM_TRY(lm_mesh_make(c));
  LM_TRY(lm_pass_run_list(
      c->lowered->m, "precision,inline,analyze,simplify,cse,dce,causal,shard,mesh", &env, &ok));
  LM_TRY(lm_verdict(c->project->ctx));
  analyses_take(c);
  lm_func *loss = lm_func_get(c->lowered->m, LM_FUNC_LOSS, 0);
  if (c->fp8 && loss) {
    lm_fp8_gemms gemms = lm_fp8_choose(c->fp8, loss);
    lm_fp8_check(c->fp8, c->project->ctx, &gemms);
  }
  if (env.fp8_attention)
    LM_TRY(lm_pass_run_list(c->lowered->m, "attend,fp8_attention", &env, &ok));
  return lm_verdict(c->project->ctx);
}

void lm_row_mix_warn(const lm_compiled *c) {
  const lm_run_spec *run = &c->run;
  const lm_row_mix *mix = &c->row_mix;
  const lm_recipe *r = run->recipe;
  if (mix->kind == LM_ROW_MIX_INDEPENDENT || run->n_micro < 2)
    return;
  bool mixed = mix->kind == LM_ROW_MIX_MIXED;
  bool unweighted = mix->kind == LM_ROW_MIX_UNWEIGHTED;
  lm_diag *d = mixed        ? LM_REPORT(c->project->ctx, mix->loc, W216)
               : unweighted ? LM_REPORT(c->project->ctx, mix->loc, W218)
                            : LM_REPORT(c->project->ctx, mix->loc, W217);
  lm_diag_note(c->project->ctx, d, r->micro_loc,
               "a step of %lld tokens is %lld micro-batches of %lld", (long long)r->batch,
               (long long)run->n_micro, (long long)(r->batch / run->n_micro));
  if (mixed)
    lm_diag_help(c->project->ctx, d, "micro = %lld tokens computes it over all rows of a step",
                 (long long)r->batch);
  else if (unweighted)
    lm_diag_help(c->project->ctx, d, "return the weight of the sum, sum(bt.w), or a mean over b");
  else
    lm_diag_help(c->project->ctx, d, "multiply the term by the weight, sum(bt.w)");
}

// ---- passes

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

static void watch(void *user, const char *pass, bool after, const lm_module *m) {
  if (after)
    lm_dump_pass(user, pass, m);
  else if (lm_pass_changes_stage(lm_pass_find(pass)))
    lm_dump_stage_end(user, m);
}

static lm_status variant_apply(const lm_project *p, const lm_variant *v, lm_target *target,
                               lm_pass_env *env) {
  if (v->rows) {
    target->choices.rows = v->rows;
    target->choices.logits = 0;
  }
  if (v->points)
    target->choices.points = v->points;
  if (v->off)
    LM_TRY(lm_pass_disable(p->ctx->arena, v->off, env));
  return v->on ? lm_pass_force(p->ctx->arena, v->on, env) : NULL;
}

static int group_of(const lm_lowered *l, lm_sym path) {
  for (uint32_t i = 0; i < l->n_paths; i++)
    if (l->paths[i].path == path)
      return l->paths[i].group;
  return 0;
}

static bool updates_alike(const void *lowered, lm_sym path, lm_sym other) {
  const lm_lowered *l = lowered;
  return !l->by_tensor && group_of(l, path) == group_of(l, other);
}

static lm_status passes_run(const lm_project *p, lm_plan_options *o, lm_compiled *c) {
  lm_dump *dump = c->spec.dump;
  lm_recompute recompute = {.bytes = c->spec.recompute,
                            .offloads = c->spec.stash_room > 0,
                            .host_bytes = c->spec.stash_room};
  lm_pass_env env = {.target = &o->target,
                     .codegen = o->codegen,
                     .compute = c->compute,
                     .fp8 = c->fp8,
                     .fp8_attention = attention_loc(c),
                     .recompute = &recompute,
                     .less_memory = c->spec.less_memory,
                     .small_tiles = c->spec.small_tiles,
                     .by_layer = c->spec.by_layer,
                     .gradients_alone = true,
                     .updates_alike = updates_alike,
                     .lowered = c->lowered,
                     .verify_each = dump && dump->after,
                     .watch = dump ? watch : NULL,
                     .user = dump};
  LM_TRY(variant_apply(p, &c->spec.variant, &o->target, &env));
  LM_TRY(lm_mesh_make(c));
  bool ok = lm_pipeline_run(c->lowered->m, LM_STAGE_KERNEL, &env);
  LM_TRY(lm_verdict(p->ctx));
  if (!ok)
    return lm_fail(LM_BUG_STATUS, "a pass failed without saying why");
  if (dump)
    lm_dump_stage_end(dump, c->lowered->m);
  c->recomputed = recompute.chosen;
  c->offloaded = recompute.offloaded;
  analyses_take(c);
  return dump ? dump->failed : NULL;
}

// ---- the plan

static void flops_take(lm_compiled *c) {
  const lm_module *m = c->lowered->m;
  int ranks = lm_mesh_ranks(m); // the module computes the part of one
  c->model_flops = ranks * lm_analysis_flops(m, LM_FUNC_LOSS, 0);
  for (int i = 0; i < c->run.stages.n; i++) {
    lm_run_stage *stage = &c->run.stages.v[i];
    stage->flops = ranks * lm_analysis_flops(m, LM_FUNC_LOSS, stage->func_seq);
  }
}

// lm_generate finds extents by these names; the model's author names the axes.
static void extents_name(lm_plan *p) {
  static const char *const names[] = {[LM_EXTENT_CONTEXT - 1] = "s", [LM_EXTENT_CHUNK - 1] = "t"};
  for (int i = 0; i < p->n_extents && i < (int)LM_COUNT(names); i++)
    if (p->extents[i].capacity)
      p->extents[i].name = names[i]; // 0: no axis has this extent
}

bool lm_compiled_saves_in_background(const lm_compiled *c) {
  lm_recipe_background how = c->project->recipe->save.background;
  bool gpu = c->spec.target.kind == LM_TARGET_CUDA;
  return how == LM_RECIPE_BACKGROUND_ON || (how == LM_RECIPE_BACKGROUND_AUTO && gpu);
}

static int64_t saving_bytes(const lm_compiled *c) {
  const lm_recipe_save *s = &c->project->recipe->save;
  bool saves = c->spec.what & LM_LOWER_TRAIN && s->dir && lm_compiled_saves_in_background(c);
  return saves ? lm_checkpoint_most_bytes(c->plan, s->max_file) : 0;
}

lm_status lm_compile(const lm_project *p, const lm_compile_spec *spec, lm_compiled *out) {
  LM_TRY(lm_compile_lower(p, spec, out));
  lm_plan_options o = lm_target_options(&spec->target, spec->exec.tf32);
  o.less_memory = spec->less_memory;
  bool trains = spec->what & LM_LOWER_TRAIN;
  o.states_on_host = trains && p->recipe->memory.states_on_host;
  o.params_on_host = trains && p->recipe->memory.masters_on_host;
  o.extra_every = out->lowered->extra.every;
  LM_TRY(passes_run(p, &o, out));
  flops_take(out);
  out->plan = lm_plan_build(out->lowered->m, &o);
  LM_TRY(lm_verdict(p->ctx));
  if (!out->plan)
    return lm_fail(LM_BUG_STATUS, "the planner returned no plan and no diagnostic");
  extents_name(out->plan);
  lm_plan_mesh_place(out->plan, spec->rank);
  out->workspace = lm_target_runtime(&spec->target)->workspace(out->plan, &spec->exec);
  out->saving = saving_bytes(out);
  return NULL;
}

int64_t lm_cache_capacity(int64_t positions) {
  int64_t n = MIN_CAPACITY;
  while (n < positions)
    n *= 2;
  return n;
}

int64_t lm_compiled_arenas(const lm_compiled *c) {
  return lm_plan_arenas(c->plan, false);
}

int64_t lm_compiled_host_memory(const lm_compiled *c) {
  return lm_plan_arenas(c->plan, true) + c->saving;
}

int64_t lm_compiled_memory(const lm_compiled *c) {
  bool gpu = c->spec.target.kind == LM_TARGET_CUDA;
  return lm_compiled_arenas(c) + c->workspace + (gpu ? 0 : c->saving);
}

lm_target lm_compiled_machine(const lm_compiled *c, int threads) {
  return lm_target_measured(&c->spec.target, threads, c->compute, c->spec.exec.tf32);
}

double lm_compiled_peak(const lm_compiled *c, int threads) {
  return lm_target_peak(&c->spec.target, threads, c->compute, c->spec.exec.tf32);
}
