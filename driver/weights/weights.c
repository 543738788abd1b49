// weights.c - parameters of a running plan by name.
#include "driver/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/diag.h"
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/hal/exec.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/checkpoint_sum.h"

lm_weights lm_weights_in(lm_exec *e) {
  return (lm_weights){lm_exec_arena(e, LM_ARENA_PARAM), lm_exec_arena(e, LM_ARENA_FIXED)};
}

lm_weights lm_weights_alloc(const lm_plan *plan) {
  return (lm_weights){lm_alloc((size_t)plan->arena_bytes[LM_ARENA_PARAM]),
                      lm_alloc((size_t)plan->arena_bytes[LM_ARENA_FIXED])};
}

void lm_weights_free(lm_weights w) {
  lm_free(w.trained);
  lm_free(w.frozen);
}

static lm_foreign_native frozen_view(const lm_plan_param *p, lm_weights w) {
  const lm_dtype_info *type = &lm_dtype_table[p->dtype];
  return (lm_foreign_native){p->path, (char *)w.frozen + p->offset * (type->bits / 8), p->elements,
                             type->stored};
}

lm_foreign_native *lm_weights_views(lm_arena *a, const lm_plan *plan, lm_weights w, size_t *out_n) {
  int n_frozen = w.frozen ? plan->n_frozen : 0;
  lm_foreign_native *views = LM_NEW_N(a, lm_foreign_native, plan->n_params + n_frozen + 1);
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    views[i] = (lm_foreign_native){p->path, w.trained + p->offset, p->elements, LM_ST_F32};
  }
  for (int i = 0; i < n_frozen; i++)
    views[plan->n_params + i] = frozen_view(&plan->frozen[i], w);
  *out_n = (size_t)(plan->n_params + n_frozen);
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

static void extra_check(const lm_st *st, const lm_foreign_native *views, size_t n, lm_buf *faults) {
  const char **paths = lm_calloc(n + 1, sizeof *paths);
  for (size_t i = 0; i < n; i++)
    paths[i] = views[i].name;
  qsort(paths, n, sizeof *paths, by_path);
  for (size_t i = 0; i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    if (bsearch(&name, paths, n, sizeof *paths, by_path))
      continue;
    lm_buf_puts(faults, "\n  extra: ");
    lm_buf_puts_shown(faults, name, strlen(name));
  }
  lm_free(paths);
}

static void tensors_check(const lm_plan *plan, const lm_st *st, lm_weights w, lm_buf *faults) {
  for (int i = 0; i < plan->n_params; i++)
    tensor_check(lm_st_find(st, plan->params[i].path), &plan->params[i], faults);
  for (int i = 0; w.frozen && i < plan->n_frozen; i++)
    tensor_check(lm_st_find(st, plan->frozen[i].path), &plan->frozen[i], faults);
}

// Reads a tensor to the memory of a parameter, which may be bf16, in pieces.
static lm_status tensor_read(const lm_st_tensor *t, const lm_foreign_native *to) {
  enum {
    PIECE = 1 << 16 // elements
  };
  if (to->dtype == LM_ST_F32)
    return lm_st_read_f32(t, 0, t->elements, to->data);
  float *piece = lm_alloc(PIECE * sizeof *piece);
  lm_status status = NULL;
  for (int64_t at = 0; !status && at < t->elements; at += PIECE) {
    int64_t n = t->elements - at < PIECE ? t->elements - at : PIECE;
    status = lm_st_read_f32(t, at, n, piece);
    if (!status)
      lm_st_from_f32(to->dtype, piece, n, (char *)to->data + at * lm_st_dtype_bytes(to->dtype));
  }
  lm_free(piece);
  return status;
}

static lm_status views_load(const lm_compiled *c, const lm_st *st, lm_arena *a, lm_weights w) {
  lm_buf faults = {0};
  size_t n;
  const lm_foreign_native *views = lm_weights_views(a, c->plan, w, &n);
  tensors_check(c->plan, st, w, &faults);
  extra_check(st, views, n, &faults);
  lm_status status =
      faults.n ? lm_fail(LM_USER, "the tensors do not match the model:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  for (size_t i = 0; !status && i < n; i++)
    status = tensor_read(lm_st_find(st, views[i].name), &views[i]);
  return status;
}

static bool is_folder(const char *path) {
  struct stat st;
  return !stat(path, &st) && S_ISDIR(st.st_mode);
}

// Replaces the folder of a run by its newest undamaged checkpoint. A checkpoint, or the weights
// file of one, must be undamaged. Other files and folders, such as an imported model, are returned
// unchanged. quiet: without a note.
static lm_status checkpoint_find(const lm_project *p, bool quiet, const char **path) {
  lm_arena *a = p->ctx->arena;
  lm_checkpoint_choice found;
  bool folder = is_folder(*path);
  const char *in = folder ? *path : lm_path_dir(a, *path);
  if (!folder && access(lm_path_join(a, in, LM_CHECKPOINT_SUMS), F_OK))
    return NULL;
  LM_TRY(lm_checkpoint_choose(a, in, "last", LM_CHECKPOINT_WEIGHTS, &found));
  if (!found.folder || !folder)
    return NULL;
  if (found.damage && !quiet)
    lm_event_warning(p->events, "%s\n  the newest complete checkpoint, of step %lld, is loaded",
                     found.damage, (long long)found.step);
  if (strcmp(found.folder, in) && !quiet)
    lm_event_note(p->events, "the weights are loaded from %s", found.folder);
  *path = lm_path_join(a, found.folder, "model.safetensors");
  return NULL;
}

lm_status lm_weights_load(const lm_compiled *c, const char *path, lm_weights w) {
  lm_st *st;
  LM_TRY(lm_st_open(path, &st));
  lm_arena *a = lm_arena_create();
  lm_status status = lm_annotate(views_load(c, st, a, w), "%s", path);
  lm_arena_destroy(a);
  lm_st_close(st);
  return status;
}

lm_status lm_weights_from(const lm_compiled *c, const char **out) {
  const lm_recipe *r = c->project->recipe;
  *out = r->from;
  return r->from_hf ? NULL : checkpoint_find(c->project, true, out);
}

lm_status lm_weights_load_from(const lm_compiled *c, lm_weights w) {
  const lm_recipe *r = c->project->recipe;
  const char *path = r->from;
  if (r->from_hf)
    return lm_weights_import(c, path, w);
  LM_TRY(checkpoint_find(c->project, false, &path));
  return lm_weights_load(c, path, w);
}

static lm_status tensors_list(const lm_plan *plan, lm_arena *a, lm_weights w, lm_st_tensor **out,
                              size_t *out_n) {
  const lm_foreign_native *views = lm_weights_views(a, plan, w, out_n);
  *out = LM_NEW_N(a, lm_st_tensor, *out_n + 1);
  for (size_t i = 0; i < *out_n; i++) {
    const lm_plan_param *p =
        i < (size_t)plan->n_params ? &plan->params[i] : &plan->frozen[i - (size_t)plan->n_params];
    if (p->rank > LM_ST_RANK)
      return lm_fail(LM_USER, "%s has %d axes, a file's tensors at most %d", p->path, p->rank,
                     LM_ST_RANK);
    (*out)[i] = (lm_st_tensor){.name = p->path,
                               .dtype = views[i].dtype,
                               .rank = p->rank,
                               .elements = p->elements,
                               .data = views[i].data};
    for (int k = 0; k < p->rank; k++)
      (*out)[i].shape[k] = p->shape[k];
  }
  return NULL;
}

lm_status lm_weights_save(const lm_compiled *c, const char *path, lm_weights w) {
  lm_arena *a = lm_arena_create();
  lm_st_tensor *list;
  size_t n;
  lm_status status = tensors_list(c->plan, a, w, &list, &n);
  if (!status)
    status = lm_st_write(path, list, n);
  lm_arena_destroy(a);
  return status;
}

// ---- foreign names

lm_status lm_weights_no_map(const lm_compiled *c) {
  return lm_fail(
      LM_USER,
      "model %s has no `map hf { … }`, which says what its parameters are called elsewhere",
      c->project->recipe->model.target.decl->name.text);
}

static int by_view(const void *a, const void *b) {
  return strcmp(((const lm_foreign_native *)a)->name, ((const lm_foreign_native *)b)->name);
}

// The mappings of foreign tensors all of whose elements the views have. Views are sorted.
static size_t maps_select(const lm_lowered *l, const lm_foreign_native *views, size_t n,
                          lm_foreign_map *out) {
  const char **lacking = lm_calloc(l->n_maps + 1, sizeof *lacking);
  size_t n_lacking = 0, n_out = 0;
  for (uint32_t i = 0; i < l->n_maps; i++) {
    lm_foreign_native key = {.name = l->maps[i].native};
    if (!bsearch(&key, views, n, sizeof key, by_view))
      lacking[n_lacking++] = l->maps[i].foreign;
  }
  qsort(lacking, n_lacking, sizeof *lacking, by_path);
  for (uint32_t i = 0; i < l->n_maps; i++)
    if (!bsearch(&l->maps[i].foreign, lacking, n_lacking, sizeof *lacking, by_path))
      out[n_out++] = l->maps[i];
  lm_free(lacking);
  return n_out;
}

lm_status lm_weights_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, lm_foreign **out) {
  const lm_lowered *l = c->lowered;
  size_t n;
  if (!l->n_maps)
    return lm_weights_no_map(c);
  lm_foreign_native *views = lm_weights_views(a, c->plan, w, &n);
  if (w.frozen || !c->plan->n_frozen)
    return lm_foreign_create(l->maps, l->n_maps, views, n, out);
  lm_foreign_map *maps = LM_NEW_N(a, lm_foreign_map, l->n_maps);
  qsort(views, n, sizeof *views, by_view);
  size_t n_maps = maps_select(l, views, n, maps);
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) // views that a mapping uses
    for (size_t k = 0; k < n_maps; k++)
      if (!strcmp(maps[k].native, views[i].name)) {
        views[kept++] = views[i];
        break;
      }
  return lm_foreign_create(maps, n_maps, views, kept, out);
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

static lm_status import(const lm_compiled *c, lm_arena *a, lm_weights w, const lm_st *st) {
  const lm_lowered *l = c->lowered;
  size_t n;
  const lm_foreign_native *views = lm_weights_views(a, c->plan, w, &n);
  const char *prefix = prefix_find(c, st, a);
  lm_foreign_map *maps = LM_NEW_N(a, lm_foreign_map, l->n_maps + 1);
  lm_foreign *foreign;
  for (uint32_t i = 0; i < l->n_maps; i++) {
    maps[i] = l->maps[i];
    maps[i].foreign = lm_arena_printf(a, "%s%s", prefix, l->maps[i].foreign);
  }
  LM_TRY(lm_foreign_create(maps, l->n_maps, views, n, &foreign));
  ignoring x = {c, strlen(prefix)};
  lm_status status = lm_foreign_import(foreign, st, is_ignored, &x);
  lm_foreign_destroy(foreign);
  return status;
}

lm_status lm_weights_import(const lm_compiled *c, const char *path, lm_weights w) {
  lm_st *st;
  if (!c->lowered->n_maps)
    return lm_weights_no_map(c);
  LM_TRY(lm_st_open(path, &st));
  lm_arena *a = lm_arena_create();
  lm_status status = lm_annotate(import(c, a, w, st), "%s", path);
  lm_arena_destroy(a);
  lm_st_close(st);
  return status;
}
