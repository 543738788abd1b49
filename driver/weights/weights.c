// weights.c - parameters of a running plan by name.
#include "driver/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "driver/weights/peft.h"
#include "runtime/base/diag_code.h"
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/hal/tensor.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/checkpoint_sum.h"
#include "runtime/train/init.h"

static const lm_plan_param *param_at(const lm_plan *plan, int i) {
  return i < plan->n_params ? &plan->params[i] : &plan->frozen[i - plan->n_params];
}

static int params_count(const lm_plan *plan, lm_weights w) {
  return plan->n_params + (w.trained_only ? 0 : plan->n_frozen);
}

static const lm_lowered_source *source_find(const lm_lowered *l, const char *path) {
  for (int i = 0; i < l->n_sources; i++)
    if (!strncmp(path, l->sources[i].prefix, strlen(l->sources[i].prefix)))
      return &l->sources[i];
  return NULL;
}

static bool has_param(const lm_plan *plan, lm_weights w, int i) {
  const lm_plan_param *p = param_at(plan, i);
  if (w.source && source_find(w.lowered, p->path) != w.source)
    return false;
  return !w.base || !p->added;
}

// The name of a parameter in the file that w is read from.
static const char *name_in_file(lm_weights w, const lm_plan_param *p) {
  return p->path + (w.source ? strlen(w.source->prefix) : 0);
}

int64_t lm_weights_bytes(const lm_plan *plan, bool trained_only) {
  int n = params_count(plan, (lm_weights){.trained_only = trained_only});
  int64_t bytes = 0;
  for (int i = 0; i < n; i++) {
    const lm_plan_param *p = param_at(plan, i);
    int64_t own;
    if (__builtin_mul_overflow(p->elements, lm_dtype_table[p->dtype].bits / 8, &own) ||
        __builtin_add_overflow(bytes, own, &bytes))
      return INT64_MAX;
  }
  return bytes;
}

lm_weights lm_weights_alloc(const lm_plan *plan, bool trained_only) {
  lm_weights w = {.trained_only = trained_only};
  w.n_host = params_count(plan, w);
  w.host = lm_calloc((size_t)w.n_host + 1, sizeof *w.host);
  for (int i = 0; i < w.n_host; i++) {
    const lm_plan_param *p = param_at(plan, i);
    const lm_dtype_info *type = &lm_dtype_table[p->dtype];
    w.host[i] = (lm_foreign_native){p->path, lm_calloc((size_t)p->elements, (size_t)type->bits / 8),
                                    p->elements, type->stored};
  }
  return w;
}

void lm_weights_free(lm_weights w) {
  for (int i = 0; i < w.n_host; i++)
    lm_free(w.host[i].data);
  lm_free(w.host);
}

lm_status lm_weights_take(lm_exec *e, const lm_plan *plan, lm_weights w) {
  float *values = NULL;
  lm_status s = NULL;
  for (int i = 0; !s && i < w.n_host; i++) {
    values = lm_realloc(values, (size_t)w.host[i].elements * sizeof *values);
    s = lm_tensor_get(e, plan, (lm_plan_tensor){param_at(plan, i), LM_ROLE_PARAM}, 0,
                      w.host[i].elements, values);
    if (!s)
      lm_st_from_f32(w.host[i].dtype, values, w.host[i].elements, w.host[i].data);
  }
  lm_free(values);
  return s;
}

// Elements first … first + n - 1 of parameter i, rounded to its type.
static lm_status elements_put(const lm_plan *plan, lm_weights w, int i, int64_t first, int64_t n,
                              const float *from) {
  if (w.exec)
    return lm_tensor_set(w.exec, plan, (lm_plan_tensor){param_at(plan, i), LM_ROLE_PARAM}, first, n,
                         from);
  const lm_foreign_native *to = &w.host[i];
  lm_st_from_f32(to->dtype, from, n, (char *)to->data + first * lm_st_dtype_bytes(to->dtype));
  return NULL;
}

// Fills parameter i in parts that `make` computes or reads.
typedef lm_status maker(const void *user, int64_t first, int64_t n, float *out);
static lm_status param_fill(const lm_plan *plan, lm_weights w, int i, maker *make,
                            const void *user) {
  int64_t elements = param_at(plan, i)->elements;
  int64_t room = elements < LM_TENSOR_CHUNK ? elements : LM_TENSOR_CHUNK;
  float *buffer = lm_alloc((size_t)room * sizeof *buffer);
  lm_status s = NULL;
  for (int64_t at = 0; !s && at < elements; at += LM_TENSOR_CHUNK) {
    int64_t n = elements - at < LM_TENSOR_CHUNK ? elements - at : LM_TENSOR_CHUNK;
    s = make(user, at, n, buffer);
    if (!s)
      s = elements_put(plan, w, i, at, n, buffer);
  }
  lm_free(buffer);
  return s;
}

typedef struct initial {
  const lm_plan_param *p;
  uint64_t seed;
} initial;

static lm_status initial_make(const void *user, int64_t first, int64_t n, float *out) {
  const initial *x = user;
  lm_init init = {x->p->init, x->p->init_a, x->p->init_b};
  lm_init_fill(init, x->seed, x->p->path, first, n, out);
  return NULL;
}

static lm_status param_init(const lm_plan *plan, lm_weights w, int i, uint64_t seed) {
  return param_fill(plan, w, i, initial_make, &(initial){param_at(plan, i), seed});
}

static lm_status native_read(const void *user, int64_t first, int64_t n, float *out) {
  const lm_foreign_native *x = user;
  lm_st_to_f32(x->dtype, x->data, first, n, out);
  return NULL;
}

lm_status lm_weights_put(const lm_plan *plan, lm_weights w, lm_exec *e) {
  for (int i = 0; i < w.n_host; i++)
    if (has_param(plan, w, i))
      LM_TRY(param_fill(plan, lm_weights_in(e), i, native_read, &w.host[i]));
  return NULL;
}

// ---- native names

static bool shape_fits(const lm_st_tensor *t, const lm_plan_param *p) {
  return t->rank == p->rank && !memcmp(t->shape, p->shape, sizeof *t->shape * (size_t)t->rank);
}

static void tensor_check(const lm_st_tensor *t, const lm_plan_param *p, const char *name,
                         lm_buf *faults) {
  if (!t) {
    lm_buf_printf(faults, "\n  missing: %s ", name);
    lm_st_shape_print(faults, p->shape, p->rank);
  } else if (!shape_fits(t, p)) {
    lm_buf_printf(faults, "\n  shape: %s is ", name);
    lm_st_shape_print(faults, t->shape, t->rank);
    lm_buf_puts(faults, ", should be ");
    lm_st_shape_print(faults, p->shape, p->rank);
  } else if (!lm_st_dtype_is_float(t->dtype)) {
    lm_buf_printf(faults, "\n  type: %s is %s, should be a float", name,
                  lm_st_dtype_name(t->dtype));
  }
}

static int by_path(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// True if the file of a source holds a parameter that a replaced sub had.
static bool is_former(lm_weights w, const char *name) {
  const lm_lowered *l = w.base ? w.lowered : NULL;
  for (uint32_t i = 0; l && i < l->n_former; i++) {
    size_t prefix = strlen(w.source->prefix);
    if (!strncmp(l->former[i], w.source->prefix, prefix) && !strcmp(l->former[i] + prefix, name))
      return true;
  }
  return false;
}

static void extra_check(const lm_st *st, const lm_plan *plan, lm_weights w, lm_buf *faults) {
  size_t n = 0;
  const char **paths = lm_calloc((size_t)params_count(plan, w) + 1, sizeof *paths);
  for (int i = 0; i < params_count(plan, w); i++)
    if (has_param(plan, w, i))
      paths[n++] = name_in_file(w, param_at(plan, i));
  qsort(paths, n, sizeof *paths, by_path);
  for (size_t i = 0; i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    if (bsearch(&name, paths, n, sizeof *paths, by_path) || is_former(w, name))
      continue;
    lm_buf_puts(faults, "\n  extra: ");
    lm_buf_puts_shown(faults, name, strlen(name));
  }
  lm_free(paths);
}

static lm_status tensor_read(const void *user, int64_t first, int64_t n, float *out) {
  return lm_st_read_f32(user, first, n, out);
}

static lm_status tensors_load(const lm_plan *plan, const lm_st *st, lm_weights w) {
  lm_buf faults = {0};
  for (int i = 0; i < params_count(plan, w); i++) {
    const lm_plan_param *p = param_at(plan, i);
    if (has_param(plan, w, i))
      tensor_check(lm_st_find(st, name_in_file(w, p)), p, name_in_file(w, p), &faults);
  }
  extra_check(st, plan, w, &faults);
  lm_status status =
      faults.n ? lm_fail(LM_USER, "the tensors do not match the model:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  for (int i = 0; !status && i < params_count(plan, w); i++)
    if (has_param(plan, w, i))
      status =
          param_fill(plan, w, i, tensor_read, lm_st_find(st, name_in_file(w, param_at(plan, i))));
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
  lm_status status = lm_annotate(tensors_load(c->plan, st, w), "%s", path);
  lm_st_close(st);
  return status;
}

lm_status lm_weights_from(const lm_compiled *c, const lm_lowered_source *x, const char **out) {
  *out = x->path;
  return x->from_hf ? NULL : checkpoint_find(c->project, true, out);
}

const lm_lowered_source *lm_weights_source_of(const lm_compiled *c, const char *path) {
  return source_find(c->lowered, path);
}

lm_status lm_weights_from_check(const lm_compiled *c) {
  for (int i = 0; i < c->lowered->n_sources; i++) {
    const lm_lowered_source *x = &c->lowered->sources[i];
    if (access(x->path, F_OK))
      LM_REPORT(c->project->ctx, x->at, E215, x->path);
  }
  const lm_recipe *r = c->project->recipe;
  if (r->peft && access(r->peft, F_OK))
    LM_REPORT(c->project->ctx, r->peft_loc, E215, r->peft);
  return lm_verdict(c->project->ctx);
}

// Gives their initial values to the parameters that edits add, or that no weights are for.
static lm_status others_init(const lm_compiled *c, lm_weights w) {
  const lm_plan *plan = c->plan;
  for (int i = 0; i < params_count(plan, w); i++)
    if (param_at(plan, i)->added || !source_find(c->lowered, param_at(plan, i)->path))
      LM_TRY(param_init(plan, w, i, c->project->recipe->seed));
  return NULL;
}

// Fills the parameters that edits add from a folder of PEFT.
static lm_status peft_load(const lm_compiled *c, lm_weights w) {
  lm_weights host = w.exec ? lm_weights_alloc(c->plan, w.trained_only) : w;
  lm_status status = lm_peft_load(c, c->project->recipe->peft, host);
  for (int i = 0; !status && w.exec && i < host.n_host; i++)
    if (param_at(c->plan, i)->added)
      status = param_fill(c->plan, w, i, native_read, &host.host[i]);
  if (w.exec)
    lm_weights_free(host);
  return status;
}

static lm_status source_load(const lm_compiled *c, const lm_lowered_source *x, lm_weights w) {
  const char *path = x->path;
  w.base = true;
  w.source = x;
  w.lowered = c->lowered;
  if (x->from_hf)
    return lm_weights_import(c, path, w);
  LM_TRY(checkpoint_find(c->project, false, &path));
  return lm_weights_load(c, path, w);
}

static lm_status value_read(const void *user, int64_t first, int64_t n, float *out) {
  memcpy(out, (const float *)user + first, (size_t)n * sizeof *out);
  return NULL;
}

// Computes the initial values that depend on other parameters, and that no file has.
static lm_status begin(const lm_compiled *c, lm_weights w) {
  const lm_plan *plan = c->plan;
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_BEGIN, 0);
  lm_arena *a = c->project->ctx->arena;
  if (!f || !w.exec)
    return NULL;
  LM_TRY(lm_exec_call(w.exec, f, NULL));
  for (int i = 0; i < params_count(plan, w); i++) {
    const lm_plan_param *p = param_at(plan, i);
    const lm_plan_port *port = lm_plan_port_find(f, lm_arena_printf(a, "begin.%s", p->path), true);
    bool read = p->added ? c->project->recipe->peft != NULL : !!source_find(c->lowered, p->path);
    if (port && !read)
      LM_TRY(param_fill(plan, w, i, value_read, lm_exec_port(w.exec, port)));
  }
  return NULL;
}

lm_status lm_weights_load_from(const lm_compiled *c, lm_weights w) {
  LM_TRY(lm_weights_from_check(c));
  LM_TRY(others_init(c, w));
  if (c->project->recipe->peft)
    LM_TRY(peft_load(c, w));
  for (int i = 0; i < c->lowered->n_sources; i++)
    LM_TRY(source_load(c, &c->lowered->sources[i], w));
  return begin(c, w);
}

static lm_status tensors_list(const lm_plan *plan, lm_arena *a, lm_weights w, lm_st_tensor **out) {
  *out = LM_NEW_N(a, lm_st_tensor, w.n_host + 1);
  for (int i = 0; i < w.n_host; i++) {
    const lm_plan_param *p = param_at(plan, i);
    if (p->rank > LM_ST_RANK)
      return lm_fail(LM_USER, "%s has %d axes, a file's tensors at most %d", p->path, p->rank,
                     LM_ST_RANK);
    (*out)[i] = (lm_st_tensor){.name = p->path,
                               .dtype = w.host[i].dtype,
                               .rank = p->rank,
                               .elements = p->elements,
                               .data = w.host[i].data};
    for (int k = 0; k < p->rank; k++)
      (*out)[i].shape[k] = p->shape[k];
  }
  return NULL;
}

lm_status lm_weights_save(const lm_compiled *c, const char *path, lm_weights w) {
  lm_arena *a = lm_arena_create();
  lm_st_tensor *list;
  lm_status status = tensors_list(c->plan, a, w, &list);
  if (!status)
    status = lm_st_write(path, list, (size_t)w.n_host);
  lm_arena_destroy(a);
  return status;
}

// ---- foreign names

static lm_status no_map(const char *model) {
  return lm_fail(
      LM_USER,
      "model %s has no `map hf { … }`, which says what its parameters are called elsewhere", model);
}

lm_status lm_weights_no_map(const lm_compiled *c) {
  return no_map(c->project->recipe->model.target.decl->name.text);
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

// True if some parameters need no mapping: added ones, those of subs with separate weights, and
// states that the map omits.
static bool any_unmapped(const lm_compiled *c) {
  const lm_plan *plan = c->plan;
  for (int i = 0; i < plan->n_params + plan->n_frozen; i++)
    if (param_at(plan, i)->added)
      return true;
  return c->lowered->n_omitted || c->lowered->n_sources > (c->project->recipe->from != NULL);
}

lm_status lm_weights_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, lm_foreign **out) {
  const lm_lowered *l = c->lowered;
  size_t n = (size_t)w.n_host;
  if (!l->n_maps)
    return lm_weights_no_map(c);
  if ((!w.trained_only || !c->plan->n_frozen) && !any_unmapped(c))
    return lm_foreign_create(l->maps, l->n_maps, w.host, n, LM_FOREIGN_ONCE, out);
  lm_foreign_native *views = LM_NEW_N(a, lm_foreign_native, n + 1);
  memcpy(views, w.host, n * sizeof *views);
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
  return lm_foreign_create(maps, n_maps, views, kept, LM_FOREIGN_ONCE, out);
}

// The mappings of the parameters that w has, whose foreign names lack the prefix of its source.
typedef struct foreign_maps {
  lm_foreign_map *v;
  size_t n;
} foreign_maps;

static foreign_maps maps_of(const lm_compiled *c, lm_arena *a, lm_weights w) {
  const lm_lowered *l = c->lowered;
  foreign_maps out = {LM_NEW_N(a, lm_foreign_map, l->n_maps + 1), 0};
  size_t skip = w.source ? strlen(w.source->prefix) : 0;
  for (uint32_t i = 0; i < l->n_maps; i++) {
    const lm_foreign_map *x = &l->maps[i];
    if (w.source && source_find(l, x->native) != w.source)
      continue;
    out.v[out.n] = *x;
    if (skip && !strncmp(x->foreign, w.source->prefix, skip))
      out.v[out.n].foreign += skip;
    out.n++;
  }
  return out;
}

// Checkpoints of one architecture come with and without the name of its inner model in front of
// every tensor ("transformer.wte.weight", "wte.weight"). Finds the prefix with which every mapped
// tensor exists, "" if there is none.
static bool prefix_fits(const foreign_maps *m, const lm_st *st, lm_arena *a, const char *prefix) {
  for (size_t i = 0; i < m->n; i++)
    if (!lm_st_find(st, lm_arena_printf(a, "%s%s", prefix, m->v[i].foreign)))
      return false;
  return true;
}

static const char *prefix_find(const foreign_maps *m, const lm_st *st, lm_arena *a) {
  const char *first = m->n ? m->v[0].foreign : "";
  size_t tail = strlen(first);
  for (size_t i = 0; tail && !lm_st_find(st, first) && i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    size_t n = strlen(name);
    if (n <= tail + 1 || strcmp(name + n - tail, first) || name[n - tail - 1] != '.')
      continue;
    const char *prefix = lm_arena_strndup(a, name, n - tail);
    if (prefix_fits(m, st, a, prefix))
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

static bool is_omitted(const lm_lowered *l, const char *path) {
  for (uint32_t i = 0; i < l->n_omitted; i++)
    if (!strcmp(l->omitted[i], path))
      return true;
  return false;
}

// The states that the foreign format does not have begin with their initial values.
static lm_status omitted_init(const lm_compiled *c, lm_weights w) {
  for (int i = 0; i < w.n_host; i++)
    if (has_param(c->plan, w, i) && is_omitted(c->lowered, param_at(c->plan, i)->path))
      LM_TRY(param_init(c->plan, w, i, c->project->recipe->seed));
  return NULL;
}

static lm_status import(const lm_compiled *c, lm_arena *a, foreign_maps maps, lm_weights w,
                        const lm_st *st) {
  lm_foreign *foreign;
  const char *prefix = prefix_find(&maps, st, a);
  for (size_t i = 0; i < maps.n; i++)
    maps.v[i].foreign = lm_arena_printf(a, "%s%s", prefix, maps.v[i].foreign);
  lm_foreign_native *views = LM_NEW_N(a, lm_foreign_native, w.n_host + 1);
  size_t n_views = 0;
  for (int i = 0; i < w.n_host; i++)
    if (has_param(c->plan, w, i) && !is_omitted(c->lowered, param_at(c->plan, i)->path))
      views[n_views++] = w.host[i];
  LM_TRY(lm_foreign_create(maps.v, maps.n, views, n_views, LM_FOREIGN_ONCE, &foreign));
  ignoring x = {c, strlen(prefix)};
  lm_status status = lm_foreign_import(foreign, st, is_ignored, &x);
  lm_foreign_destroy(foreign);
  return status ? status : omitted_init(c, w);
}

static lm_status import_file(const lm_compiled *c, lm_arena *a, const char *path, lm_weights w) {
  foreign_maps maps = maps_of(c, a, w);
  lm_st *st;
  if (!maps.n)
    return w.source ? no_map(w.source->model) : lm_weights_no_map(c);
  LM_TRY(lm_st_open(path, &st));
  lm_weights host = w;
  if (w.exec) {
    host = lm_weights_alloc(c->plan, w.trained_only);
    host.base = w.base;
    host.source = w.source;
    host.lowered = w.lowered;
  }
  lm_status status = lm_annotate(import(c, a, maps, host, st), "%s", path);
  if (!status && w.exec)
    status = lm_weights_put(c->plan, host, w.exec);
  if (w.exec)
    lm_weights_free(host);
  lm_st_close(st);
  return status;
}

lm_status lm_weights_import(const lm_compiled *c, const char *path, lm_weights w) {
  lm_arena *a = lm_arena_create();
  lm_status status = import_file(c, a, path, w);
  lm_arena_destroy(a);
  return status;
}
