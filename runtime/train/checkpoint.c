// checkpoint.c - see checkpoint.h.
#include "runtime/train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/hal/tensor.h"
#include "runtime/weights/safetensors.h"
#include "runtime/train/checkpoint_files.h"
#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/checkpoint_state.h"
#include "runtime/train/checkpoint_sum.h"

static const char STATE[] = "state.json", MODEL[] = "model.safetensors",
                  OPTIMIZER[] = "optimizer.safetensors";
// An lm_checkpoint_part is the number of files, from the first, that it reads.
static const char *const FILES[] = {STATE, MODEL, OPTIMIZER};

// ---- tensors

static const char ADVICE[] = "\n  set back the changes of the recipe or the model since the "
                             "checkpoint, or begin another run: --out DIR";

static lm_status tensor_check(const lm_st *st, const char *path, const lm_st_tensor *want) {
  const lm_st_tensor *x = lm_st_find(st, want->name);
  if (!x)
    return lm_fail(LM_USER, "%s has no tensor %s, which this run has%s", path, want->name, ADVICE);
  size_t shape_bytes = sizeof *x->shape * (size_t)x->rank;
  if (x->dtype != want->dtype || x->rank != want->rank ||
      memcmp(x->shape, want->shape, shape_bytes))
    return lm_fail(LM_USER, "%s: tensor %s has another type or shape than in the model", path,
                   x->name);
  return NULL;
}

static lm_status tensor_load(const lm_trainer *t, const lm_checkpoint_tensors *l, size_t i,
                             const lm_st *st, void *buffer) {
  const lm_trainer_options *o = lm_trainer_options_of(t);
  const lm_st_tensor *x = lm_st_find(st, l->of[i].name);
  for (int64_t at = 0; at < x->elements; at += LM_TENSOR_CHUNK) {
    int64_t n = x->elements - at < LM_TENSOR_CHUNK ? x->elements - at : LM_TENSOR_CHUNK;
    LM_TRY(lm_st_read(x, at, n, buffer));
    LM_TRY(lm_tensor_write(o->exec, o->plan, l->planned[i], at, n, buffer));
  }
  return NULL;
}

// A tensor of the file that is not in the list; they have different counts.
static lm_status unknown_refuse(const lm_checkpoint_tensors *l, const lm_st *st, const char *path) {
  for (size_t i = 0; i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    size_t k = 0;
    while (k < l->n && strcmp(l->of[k].name, name))
      k++;
    if (k == l->n)
      return lm_fail(LM_USER, "%s has the tensor %s, which this run lacks%s", path, name, ADVICE);
  }
  LM_BUG("%s: no tensor is unknown", path);
}

static lm_status tensors_copy(const lm_trainer *t, const lm_checkpoint_tensors *l, const lm_st *st,
                              const char *path) {
  for (size_t i = 0; i < l->n; i++)
    LM_TRY(tensor_check(st, path, &l->of[i]));
  if (lm_st_count(st) != l->n)
    return unknown_refuse(l, st, path);
  int64_t room = lm_tensor_room(lm_trainer_options_of(t)->plan);
  float *buffer = lm_alloc((size_t)room * sizeof *buffer);
  lm_status s = NULL;
  for (size_t i = 0; i < l->n && !s; i++)
    s = tensor_load(t, l, i, st, buffer);
  lm_free(buffer);
  return s;
}

static lm_status tensors_load(lm_arena *a, const lm_trainer *t, lm_checkpoint_set set,
                              const char *folder) {
  const lm_trainer_options *o = lm_trainer_options_of(t);
  const char *path = lm_path_join(a, folder, lm_checkpoint_set_file(set));
  lm_checkpoint_tensors l;
  lm_st *st;
  LM_TRY(lm_checkpoint_tensors_list(a, o->plan, o->states, set, &l));
  LM_TRY(lm_st_open(path, &st));
  lm_status s = tensors_copy(t, &l, st, path);
  lm_st_close(st);
  return s;
}

int64_t lm_checkpoint_bytes(const lm_plan *plan) {
  int64_t bytes = 0;
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    int64_t each = lm_dtype_bytes((lm_dtype)p->dtype) + plan->n_states * (int64_t)sizeof(float);
    bytes += p->elements * each;
  }
  for (int i = 0; i < plan->n_own_states; i++)
    bytes += plan->states[i].elements * lm_dtype_bytes((lm_dtype)plan->states[i].dtype);
  return bytes;
}

// ---- choosing

// An imported model has only weights.
static bool is_checkpoint(lm_arena *a, const char *path) {
  static const char *const own[] = {STATE, OPTIMIZER, LM_CHECKPOINT_SUMS};
  for (size_t i = 0; i < LM_COUNT(own); i++)
    if (!access(lm_path_join(a, path, own[i]), F_OK))
      return true;
  return false;
}

static lm_status newest_undamaged(lm_arena *a, const char *path, lm_checkpoint_part part,
                                  lm_checkpoint_choice *out) {
  lm_checkpoint_steps all;
  lm_buf damage = {0};
  LM_TRY(lm_checkpoint_steps_list(a, path, &all));
  *out = (lm_checkpoint_choice){.newest = all.n ? all.v[0] : -1};
  lm_status s = NULL;
  for (uint32_t i = 0; i < all.n && !s && !out->folder; i++) {
    const char *folder = lm_checkpoint_path(a, path, all.v[i]), *bad;
    s = lm_checkpoint_sums_check(a, folder, FILES, (int)part, &bad);
    if (bad)
      lm_buf_printf(&damage, "%s%s", damage.n ? "\n  " : "", bad);
    else {
      out->folder = folder;
      out->step = all.v[i];
    }
  }
  if (damage.n)
    out->damage = lm_arena_strndup(a, damage.p, damage.n);
  lm_buf_free(&damage);
  return s || out->folder || !all.n
             ? s
             : lm_fail(LM_ENV,
                       "all checkpoints of %s are damaged:\n  %s\n  to restart in this folder, use "
                       "lmc run with --resume never; to use another folder, --out",
                       path, out->damage);
}

// Checks one checkpoint; no other checkpoint replaces it.
static lm_status undamaged_one(lm_arena *a, const char *folder, lm_checkpoint_part part,
                               lm_checkpoint_choice *out) {
  const char *bad;
  *out = (lm_checkpoint_choice){.folder = folder};
  LM_TRY(lm_checkpoint_sums_check(a, folder, FILES, (int)part, &bad));
  return bad ? lm_fail(LM_ENV, "this checkpoint is damaged: %s", bad) : NULL;
}

static lm_status best_find(lm_arena *a, const char *path, int64_t *out_step) {
  lm_checkpoint_choice last;
  lm_checkpoint state;
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_STATE, &last));
  if (!last.folder)
    return lm_fail(LM_USER, "%s has no checkpoint", path);
  LM_TRY(lm_checkpoint_state_read(a, last.folder, &state));
  *out_step = state.best_step;
  if (!isnan(state.best))
    return NULL;
  return lm_fail(LM_USER,
                 "%s: up to step %lld no evaluation has selected a best checkpoint; save = "
                 "checkpoint(…, best = EVAL.METRIC) declares which one does",
                 path, (long long)state.step);
}

static lm_status none_of_step(lm_arena *a, const char *path, int64_t step) {
  enum {
    SHOWN = 10
  };
  lm_checkpoint_steps all;
  lm_buf there = {0};
  LM_TRY(lm_checkpoint_steps_list(a, path, &all));
  for (uint32_t i = 0; i < all.n && i < SHOWN; i++)
    lm_buf_printf(&there, "%s %lld",
                  i            ? ","
                  : all.n == 1 ? ", only of step"
                               : ", only of steps",
                  (long long)all.v[i]);
  lm_status s = lm_fail(LM_USER, "%s has no checkpoint of step %lld%s%s", path, (long long)step,
                        there.n ? there.p : "", all.n > SHOWN ? ", …" : "");
  lm_buf_free(&there);
  return s;
}

lm_status lm_checkpoint_choose(lm_arena *a, const char *path, const char *which,
                               lm_checkpoint_part part, lm_checkpoint_choice *out) {
  bool best = !strcmp(which, "best");
  bool last = !strcmp(which, "last");
  char *end;
  int64_t step = strtoll(which, &end, 10);
  if (last)
    return is_checkpoint(a, path) ? undamaged_one(a, path, part, out)
                                  : newest_undamaged(a, path, part, out);
  if (!best && (!*which || *end || step < 0))
    return lm_fail(LM_USER, "a checkpoint is last, best or the number of a step, not '%s'", which);
  if (best)
    LM_TRY(best_find(a, path, &step));
  const char *folder = lm_checkpoint_path(a, path, step);
  if (access(folder, F_OK))
    return none_of_step(a, path, step);
  return undamaged_one(a, folder, part, out);
}

// ---- loading

static lm_status folder_load(lm_arena *a, lm_trainer *t, const char *folder, lm_checkpoint *c) {
  lm_checkpoint as_given = *c;
  LM_TRY(lm_checkpoint_state_read(a, folder, c));
  c->keys = as_given.keys;
  c->n_keys = as_given.n_keys;
  c->model = as_given.model;
  c->n_model = as_given.n_model;
  lm_trainer_set_loss_scale(t, c->loss_scale);
  LM_TRY(tensors_load(a, t, LM_CHECKPOINT_MODEL, folder));
  LM_TRY(tensors_load(a, t, LM_CHECKPOINT_OPTIMIZER, folder));
  return lm_trainer_eval_end(t);
}

lm_status lm_checkpoint_load(lm_arena *a, lm_trainer *t, const char *path, lm_checkpoint *c,
                             lm_checkpoint_choice *out) {
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_ALL, out));
  return out->folder ? folder_load(a, t, out->folder, c) : NULL;
}
