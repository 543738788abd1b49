// execute.c - a compiled project in memory: kernels, parameters, the trainer.
#include "driver/execute.h"

#include <stdlib.h>
#include <string.h>

#include "driver/weights/weights.h"
#include "runtime/train/init.h"

lm_status lm_execution_start(const lm_compiled *c, const lm_exec_options *o, lm_execution *out) {
  *out = (lm_execution){.compiled = c};
  return lm_target_runtime(&c->spec.target)->create(c->plan, &c->spec.target, o, &out->exec);
}

void lm_execution_close(lm_execution *x) {
  lm_trainer_destroy(x->trainer);
  lm_exec_destroy(x->exec);
  *x = (lm_execution){0};
}

enum {
  RUNS_MIN = 2
};
#define CONFIRMED_AFTER 0.1 // of the time that the runs may take: processors raise their clock rate

// The first run faults pages in and does not count.
lm_status lm_execution_func_time(const lm_execution *x, lm_func_id id, int64_t seq, double most,
                                 double *out) {
  const lm_plan_func *f = lm_plan_func_get(x->compiled->plan, id, seq);
  lm_shortest best = {0};
  *out = 0;
  if (!f)
    return NULL;
  LM_TRY(lm_exec_call(x->exec, f, NULL));
  double begin = lm_now(), end = begin;
  for (int i = 0; i < RUNS_MIN || end - begin < most; i++) {
    if (lm_shortest_is_confirmed(&best) && end - begin > CONFIRMED_AFTER * most)
      break;
    double start = end;
    LM_TRY(lm_exec_call(x->exec, f, NULL));
    end = lm_now();
    lm_shortest_add(&best, end - start);
  }
  *out = best.seconds;
  return NULL;
}

// ---- training

static lm_status params_init(const lm_execution *x, bool resumes) {
  const lm_recipe *r = x->compiled->project->recipe;
  const lm_plan *plan = x->compiled->plan;
  LM_TRY(lm_init_params(x->exec, plan, r->seed));
  bool initial = !x->compiled->lowered->n_sources && !lm_plan_func_get(plan, LM_FUNC_BEGIN, 0);
  if (!plan->n_frozen && (resumes || initial))
    return NULL;
  return lm_weights_load_from(x->compiled, lm_weights_in(x->exec));
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const lm_lowered_path *)a)->path, ((const lm_lowered_path *)b)->path);
}

static int pieces_here(const lm_plan *plan, const lm_plan_param *p) {
  return lm_plan_param_is_here(plan, p) ? p->n_pieces : 0;
}

static void blocks_set(int32_t *group, const lm_plan_param *p, const lm_plan_piece *piece,
                       int32_t value) {
  int64_t last = (lm_piece_end(p, piece) - 1) / LM_BLOCK;
  for (int64_t b = piece->offset / LM_BLOCK; b <= last; b++)
    group[b] = value;
}

// The group of each parameter of the plan; -1: a state of a block.
static int32_t *groups_of_params(const lm_compiled *c) {
  const lm_plan *plan = c->plan;
  const lm_lowered *l = c->lowered;
  int32_t *group = LM_NEW_N(c->project->ctx->arena, int32_t, plan->n_params + 1);
  lm_lowered_path *paths = LM_NEW_N(c->project->ctx->arena, lm_lowered_path, l->n_paths + 1);
  if (l->n_paths)
    memcpy(paths, l->paths, sizeof *paths * l->n_paths);
  qsort(paths, l->n_paths, sizeof *paths, by_path);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    const lm_lowered_path *found =
        bsearch(&(lm_lowered_path){p->path, 0}, paths, l->n_paths, sizeof *paths, by_path);
    if (!found)
      LM_BUG("parameter %s is in no group", p->path);
    group[i] = found->group;
  }
  return group;
}

// The input `group` of @update: the parameter group of each block.
static int32_t *groups_of_blocks(const lm_compiled *c, const int32_t *of) {
  const lm_plan *plan = c->plan;
  int32_t *group = LM_NEW_N(c->project->ctx->arena, int32_t, plan->n_blocks + 1);
  for (int i = 0; i < plan->n_params; i++)
    for (int k = 0; k < pieces_here(plan, &plan->params[i]); k++)
      blocks_set(group, &plan->params[i], &plan->params[i].pieces[k], of[i]);
  return group;
}

// Elements first … end - 1 of the blocks are of a parameter.
static void blocks_extend(int32_t *elements, int64_t first, int64_t end) {
  for (int64_t b = first / LM_BLOCK; b * LM_BLOCK < end; b++) {
    int64_t of_block = end - b * LM_BLOCK < LM_BLOCK ? end - b * LM_BLOCK : LM_BLOCK;
    if (elements[b] < of_block)
      elements[b] = (int32_t)of_block;
  }
}

// The input `elements` of @update: the elements of each block before its padding.
static int32_t *elements_of_blocks(const lm_compiled *c) {
  const lm_plan *plan = c->plan;
  int32_t *elements = LM_NEW_N(c->project->ctx->arena, int32_t, plan->n_blocks + 1);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    for (int k = 0; k < pieces_here(plan, p); k++)
      blocks_extend(elements, p->pieces[k].offset, lm_piece_end(p, &p->pieces[k]));
  }
  return elements;
}

// True if no rank with a lower coordinate, along an axis of the mesh that divides other parameters,
// has the same gradient.
static bool rank_counts(const lm_plan *plan, lm_mesh_set divided, const lm_plan_param *p) {
  lm_mesh_set same = divided & (lm_mesh_set)~lm_plan_param_set(p);
  for (int k = 0; k < plan->mesh.n; k++)
    if (same >> k & 1 && plan->mesh.axis[k].at)
      return false;
  return true;
}

// The input `own` of @norm.
static float *own_blocks(const lm_compiled *c, const int32_t *group) {
  const lm_plan *plan = c->plan;
  float *own = LM_NEW_N(c->project->ctx->arena, float, plan->n_blocks + 1);
  lm_mesh_set divided = lm_plan_divided(plan);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    bool counts = group[i] >= 0 && rank_counts(plan, divided, p);
    for (int k = 0; k < pieces_here(plan, p); k++)
      for (int64_t b = p->pieces[k].offset / LM_BLOCK;
           b * LM_BLOCK < lm_piece_end(p, &p->pieces[k]); b++)
        own[b] = counts;
  }
  return own;
}

lm_status lm_execution_train(lm_execution *x, const lm_execution_training *t) {
  const lm_compiled *c = x->compiled;
  const lm_lowered *l = c->lowered;
  lm_arena *a = c->project->ctx->arena;
  lm_train_state *states = LM_NEW_N(a, lm_train_state, l->n_states + 1);
  for (int i = 0; i < l->n_states; i++)
    states[i] = (lm_train_state){l->states[i].name, l->states[i].is_param, l->states[i].value};
  size_t bytes = sizeof(int32_t) * (size_t)c->plan->n_blocks;
  lm_train_table *tables = LM_NEW_N(a, lm_train_table, 3); // outlives the trainer
  const int32_t *group = groups_of_params(c);
  tables[0] = (lm_train_table){LM_PORT_GROUP, groups_of_blocks(c, group), bytes};
  tables[1] = (lm_train_table){LM_PORT_ELEMENTS, elements_of_blocks(c), bytes};
  tables[2] = (lm_train_table){LM_PORT_OWN, own_blocks(c, group), bytes};
  lm_trainer_options o = {.plan = c->plan,
                          .exec = x->exec,
                          .data = t->data,
                          .steps = c->run.steps,
                          .last = t->last,
                          .n_micro = c->run.n_micro,
                          .pipeline = c->run.pipeline,
                          .comm = t->comm,
                          .timeline = t->timeline,
                          .clip = c->project->recipe->clip,
                          .tables = tables,
                          .n_tables = 3,
                          .states = states};
  LM_TRY(lm_trainer_create(&o, &x->trainer));
  LM_TRY(params_init(x, t->resumes));
  return lm_trainer_init_states(x->trainer);
}
