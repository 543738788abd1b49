// weights.c - parameters of a running plan by name.
#include "driver/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/diag.h"
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/train/checkpoint.h"
#include "runtime/train/checkpoint_sum.h"

lm_foreign_native *lm_weights_views(lm_arena *a, const lm_plan *plan, float *arena) {
  lm_foreign_native *views = LM_NEW_N(a, lm_foreign_native, plan->n_params);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    views[i] = (lm_foreign_native){p->path, arena + p->offset, p->elements};
  }
  return views;
}

// ---- native names

static bool shape_fits(const lm_st_tensor *t, const lm_plan_param *p) {
  return t->rank == p->rank && !memcmp(t->shape, p->shape, sizeof *t->shape * (size_t)t->rank);
}

static void tensor_check(const lm_st_tensor *t, const lm_plan_param *p, lm_buf *faults) {
  if (!t) {
    lm_buf_printf(faults, "\n  missing: %s ", p->path);
    lm_st_shape_print(faults, p->shape, p->rank);
  } else if (!shape_fits(t, p)) {
    lm_buf_printf(faults, "\n  shape: %s is ", p->path);
    lm_st_shape_print(faults, t->shape, t->rank);
    lm_buf_puts(faults, ", should be ");
    lm_st_shape_print(faults, p->shape, p->rank);
  } else if (!lm_st_dtype_is_float(t->dtype)) {
    lm_buf_printf(faults, "\n  type: %s is %s, should be a float", p->path,
                  lm_st_dtype_name(t->dtype));
  }
}

static int by_path(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void extra_check(const lm_st *st, const lm_plan *plan, lm_buf *faults) {
  const char **paths = lm_calloc((size_t)plan->n_params, sizeof *paths);
  for (int i = 0; i < plan->n_params; i++)
    paths[i] = plan->params[i].path;
  qsort(paths, (size_t)plan->n_params, sizeof *paths, by_path);
  for (size_t i = 0; i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    if (bsearch(&name, paths, (size_t)plan->n_params, sizeof *paths, by_path))
      continue;
    lm_buf_puts(faults, "\n  extra: ");
    lm_buf_puts_shown(faults, name, strlen(name));
  }
  lm_free(paths);
}

static lm_status arena_load(const lm_compiled *c, const lm_st *st, float *arena) {
  const lm_plan *plan = c->plan;
  lm_buf faults = {0};
  for (int i = 0; i < plan->n_params; i++)
    tensor_check(lm_st_find(st, plan->params[i].path), &plan->params[i], &faults);
  extra_check(st, plan, &faults);
  lm_status status =
      faults.n ? lm_fail(LM_USER, "the tensors do not match the model:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  for (int i = 0; !status && i < plan->n_params; i++) {
    const lm_st_tensor *t = lm_st_find(st, plan->params[i].path);
    status = lm_st_read_f32(t, 0, t->elements, arena + plan->params[i].offset);
  }
  return status;
}

static bool is_folder(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// Replaces the folder of a run by its newest undamaged checkpoint. A checkpoint, or the weights
// file of one, must be undamaged. Other files and folders, such as an imported model, are returned
// unchanged.
static lm_status checkpoint_find(const lm_project *p, const char **path) {
  lm_arena *a = p->ctx->arena;
  lm_checkpoint_choice found;
  bool folder = is_folder(*path);
  const char *in = folder ? *path : lm_path_dir(a, *path);
  if (!folder && access(lm_path_join(a, in, LM_CHECKPOINT_SUMS), F_OK))
    return NULL;
  LM_TRY(lm_checkpoint_choose(a, in, "last", LM_CHECKPOINT_WEIGHTS, &found));
  if (!found.folder || !folder)
    return NULL;
  if (found.damage)
    lm_event_warning(p->events, "%s\n  the newest complete checkpoint, of step %lld, is loaded",
                     found.damage, (long long)found.step);
  if (strcmp(found.folder, in))
    lm_event_note(p->events, "the weights are loaded from %s", found.folder);
  *path = lm_path_join(a, found.folder, "model.safetensors");
  return NULL;
}

lm_status lm_weights_load(const lm_compiled *c, const char *path, float *arena) {
  lm_st *st;
  LM_TRY(lm_st_open(path, &st));
  lm_status status = lm_annotate(arena_load(c, st, arena), "%s", path);
  lm_st_close(st);
  return status;
}

lm_status lm_weights_load_from(const lm_compiled *c, float *arena) {
  const lm_recipe *r = c->project->recipe;
  const char *path = r->from;
  if (r->from_hf)
    return lm_weights_import(c, path, arena);
  LM_TRY(checkpoint_find(c->project, &path));
  return lm_weights_load(c, path, arena);
}

lm_status lm_weights_save(const lm_compiled *c, const char *path, const float *arena) {
  const lm_plan *plan = c->plan;
  lm_st_tensor *list = lm_calloc((size_t)plan->n_params, sizeof *list);
  lm_status status = NULL;
  for (int i = 0; !status && i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    if (p->rank > LM_ST_RANK)
      status = lm_fail(LM_USER, "%s has %d axes, a file's tensors at most %d", p->path, p->rank,
                       LM_ST_RANK);
    list[i] = (lm_st_tensor){.name = p->path,
                             .dtype = LM_ST_F32,
                             .rank = p->rank,
                             .elements = p->elements,
                             .data = arena + p->offset};
    for (int k = 0; !status && k < p->rank; k++)
      list[i].shape[k] = p->shape[k];
  }
  if (!status)
    status = lm_st_write(path, list, (size_t)plan->n_params);
  lm_free(list);
  return status;
}

// ---- foreign names

lm_status lm_weights_no_map(const lm_compiled *c) {
  return lm_fail(
      LM_USER,
      "model %s has no `map hf { … }`, which says what its parameters are called elsewhere",
      c->project->recipe->model.target.decl->name.text);
}

lm_status lm_weights_foreign(const lm_compiled *c, const lm_foreign_native *views,
                             lm_foreign **out) {
  const lm_lowered *l = c->lowered;
  if (!l->n_maps)
    return lm_weights_no_map(c);
  return lm_foreign_create(l->maps, l->n_maps, views, (size_t)c->plan->n_params, out);
}

// Checkpoints of one architecture come with and without the name of its inner model in front of
// every tensor
// ("transformer.wte.weight", "wte.weight"). Finds the prefix with which every mapped tensor exists,
// "" if there is none.
static bool prefix_fits(const lm_compiled *c, const lm_st *st, lm_arena *a, const char *prefix) {
  for (uint32_t i = 0; i < c->lowered->n_maps; i++)
    if (!lm_st_find(st, lm_arena_printf(a, "%s%s", prefix, c->lowered->maps[i].foreign)))
      return false;
  return true;
}

static const char *prefix_find(const lm_compiled *c, const lm_st *st, lm_arena *a) {
  const char *first = c->lowered->n_maps ? c->lowered->maps[0].foreign : "";
  size_t tail = strlen(first);
  for (size_t i = 0; tail && !lm_st_find(st, first) && i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    size_t n = strlen(name);
    if (n <= tail + 1 || strcmp(name + n - tail, first) || name[n - tail - 1] != '.')
      continue;
    const char *prefix = lm_arena_strndup(a, name, n - tail);
    if (prefix_fits(c, st, a, prefix))
      return prefix;
  }
  return "";
}

typedef struct {
  const lm_compiled *c;
  size_t prefix;
} ignoring; // prefix: bytes of it

static bool is_ignored(void *user, const char *name) {
  const ignoring *x = user;
  const lm_lowered *l = x->c->lowered;
  for (uint32_t i = 0; i < l->n_ignored; i++)
    if (lm_pattern_match(x->c->project->ctx, l->ignored[i], name, NULL) ||
        (strlen(name) > x->prefix &&
         lm_pattern_match(x->c->project->ctx, l->ignored[i], name + x->prefix, NULL)))
      return true;
  return false;
}

static lm_status import(const lm_compiled *c, lm_arena *a, const lm_foreign_native *views,
                        const lm_st *st) {
  const lm_lowered *l = c->lowered;
  const char *prefix = prefix_find(c, st, a);
  lm_foreign_map *maps = LM_NEW_N(a, lm_foreign_map, l->n_maps + 1);
  lm_foreign *foreign;
  for (uint32_t i = 0; i < l->n_maps; i++) {
    maps[i] = l->maps[i];
    maps[i].foreign = lm_arena_printf(a, "%s%s", prefix, l->maps[i].foreign);
  }
  LM_TRY(lm_foreign_create(maps, l->n_maps, views, (size_t)c->plan->n_params, &foreign));
  ignoring x = {c, strlen(prefix)};
  lm_status status = lm_foreign_import(foreign, st, is_ignored, &x);
  lm_foreign_destroy(foreign);
  return status;
}

lm_status lm_weights_import(const lm_compiled *c, const char *path, float *arena) {
  lm_st *st;
  if (!c->lowered->n_maps)
    return lm_weights_no_map(c);
  LM_TRY(lm_st_open(path, &st));
  lm_arena *a = lm_arena_create();
  lm_status status = lm_annotate(import(c, a, lm_weights_views(a, c->plan, arena), st), "%s", path);
  lm_arena_destroy(a);
  lm_st_close(st);
  return status;
}
