// checkpoint.c - see checkpoint.h.
#include "runtime/train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/hal/tensor.h"
#include "runtime/weights/safetensors.h"
#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/checkpoint_state.h"
#include "runtime/train/checkpoint_sum.h"
#include "runtime/train/rank_tensors.h"

static const char STATE[] = "state.json", MODEL[] = "model.safetensors",
                  OPTIMIZER[] = "optimizer.safetensors";
// An lm_checkpoint_part is the number of files, from the first, that it reads.
static const char *const FILES[] = {STATE, MODEL, OPTIMIZER};

// ---- tensors

// The tensors of a file, with their memory in the plan.
typedef struct tensor_list {
  const lm_trainer *t;
  lm_st_tensor *of;
  lm_plan_tensor *planned;
  size_t n;
  lm_rank_tensors *ranks; // of a list that is saved
} tensor_list;

typedef enum {
  OF_MODEL,    // the parameters
  OF_OPTIMIZER // the states, one after the other
} content;

static lm_status tensor_add(tensor_list *l, char *name, lm_plan_tensor x) {
  const lm_plan_param *p = x.param;
  lm_st_tensor *to = &l->of[l->n];
  if (p->rank > LM_ST_RANK)
    return lm_fail(LM_USER, "parameter %s has %d axes; a checkpoint supports at most %d", p->path,
                   p->rank, LM_ST_RANK);
  *to = (lm_st_tensor){
      .name = name,
      .dtype = lm_dtype_table[lm_plan_tensor_dtype(x)].stored,
      .rank = p->rank,
      .elements = p->elements,
  };
  for (int k = 0; k < p->rank; k++)
    to->shape[k] = p->shape[k];
  l->planned[l->n++] = x;
  return NULL;
}

static lm_status tensors_list(lm_arena *a, const lm_trainer *t, content what, tensor_list *out) {
  const lm_trainer_options *o = lm_trainer_options_of(t);
  const lm_plan *plan = o->plan;
  size_t most = (size_t)plan->n_params * (1 + (size_t)plan->n_states) + (size_t)plan->n_own_states;
  *out = (tensor_list){
      .t = t,
      .of = LM_NEW_N(a, lm_st_tensor, most + 1),
      .planned = LM_NEW_N(a, lm_plan_tensor, most + 1),
  };
  for (int i = 0; what == OF_MODEL && i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    LM_TRY(tensor_add(out, (char *)p->path, (lm_plan_tensor){p, LM_ROLE_PARAM}));
  }
  for (int k = 0; what == OF_OPTIMIZER && k < plan->n_states; k++)
    for (int i = 0; i < plan->n_params; i++) {
      const lm_plan_param *p = &plan->params[i];
      char *name = lm_arena_printf(a, "%s.%s", o->states[k].name, p->path);
      LM_TRY(tensor_add(out, name, (lm_plan_tensor){p, LM_ROLE_STATE, k}));
    }
  for (int i = 0; what == OF_OPTIMIZER && i < plan->n_own_states; i++) {
    const lm_plan_param *p = &plan->states[i];
    LM_TRY(tensor_add(out, (char *)p->path, (lm_plan_tensor){p, LM_ROLE_PARAM}));
  }
  return NULL;
}

static lm_status tensor_read(void *user, size_t i, int64_t first, int64_t n, void *out) {
  const tensor_list *l = user;
  return lm_rank_tensors_take(l->ranks, &l->planned[i], first, n, out);
}

static lm_status tensors_save(const tensor_list *list, const char *path, lm_rank_tensors *ranks,
                              lm_sum *out_sum) {
  tensor_list l = *list;
  l.ranks = ranks;
  return lm_st_write_from(path, l.of, l.n, tensor_read, &l, out_sum);
}

static lm_status tensor_check(const lm_st *st, const char *path, const lm_st_tensor *want) {
  const lm_st_tensor *x = lm_st_find(st, want->name);
  if (!x)
    return lm_fail(LM_USER, "%s has no tensor %s", path, want->name);
  size_t shape_bytes = sizeof *x->shape * (size_t)x->rank;
  if (x->dtype != want->dtype || x->rank != want->rank ||
      memcmp(x->shape, want->shape, shape_bytes))
    return lm_fail(LM_USER, "%s: tensor %s has another type or shape than in the model", path,
                   x->name);
  return NULL;
}

static lm_status tensor_load(const tensor_list *l, size_t i, const lm_st *st, void *buffer) {
  const lm_trainer_options *o = lm_trainer_options_of(l->t);
  const lm_st_tensor *x = lm_st_find(st, l->of[i].name);
  for (int64_t at = 0; at < x->elements; at += LM_TENSOR_CHUNK) {
    int64_t n = x->elements - at < LM_TENSOR_CHUNK ? x->elements - at : LM_TENSOR_CHUNK;
    LM_TRY(lm_st_read(x, at, n, buffer));
    LM_TRY(lm_tensor_write(o->exec, o->plan, l->planned[i], at, n, buffer));
  }
  return NULL;
}

static lm_status tensors_copy(const tensor_list *l, const lm_st *st, const char *path) {
  if (lm_st_count(st) != l->n)
    return lm_fail(LM_USER, "%s has %zu tensors, the model has %zu", path, lm_st_count(st), l->n);
  for (size_t i = 0; i < l->n; i++)
    LM_TRY(tensor_check(st, path, &l->of[i]));
  float *buffer = lm_alloc(LM_TENSOR_CHUNK * sizeof *buffer);
  lm_status s = NULL;
  for (size_t i = 0; i < l->n && !s; i++)
    s = tensor_load(l, i, st, buffer);
  lm_free(buffer);
  return s;
}

static lm_status tensors_load(lm_arena *a, lm_trainer *t, content what, const char *path) {
  tensor_list l;
  LM_TRY(tensors_list(a, t, what, &l));
  lm_st *st;
  LM_TRY(lm_st_open(path, &st));
  lm_status s = tensors_copy(&l, st, path);
  lm_st_close(st);
  return s;
}

// ---- saving

// The tensors of both files; ranks: all of them, in the order in which rank 0 writes.
typedef struct saving {
  tensor_list model, optimizer;
  lm_rank_tensors ranks;
} saving;

static lm_status saving_begin(lm_arena *a, const lm_trainer *t, saving *out) {
  const lm_trainer_options *o = lm_trainer_options_of(t);
  LM_TRY(tensors_list(a, t, OF_MODEL, &out->model));
  LM_TRY(tensors_list(a, t, OF_OPTIMIZER, &out->optimizer));
  size_t n = out->model.n + out->optimizer.n;
  lm_plan_tensor *all = LM_NEW_N(a, lm_plan_tensor, n + 1);
  for (size_t i = 0; i < n; i++)
    all[i] = i < out->model.n ? out->model.planned[i] : out->optimizer.planned[i - out->model.n];
  out->ranks = (lm_rank_tensors){
      .comm = o->comm,
      .exec = o->exec,
      .plan = o->plan,
      .v = all,
      .n = n,
  };
  return NULL;
}

static lm_status folder_write(lm_arena *a, saving *x, const char *folder, const lm_checkpoint *c) {
  LM_TRY(lm_path_remove(folder));
  LM_TRY(lm_dir_make(folder));
  lm_sum sums[LM_COUNT(FILES)];
  LM_TRY(tensors_save(&x->model, lm_path_join(a, folder, MODEL), &x->ranks, &sums[1]));
  LM_TRY(tensors_save(&x->optimizer, lm_path_join(a, folder, OPTIMIZER), &x->ranks, &sums[2]));
  lm_buf text = {0};
  lm_checkpoint_state_print(&text, c);
  sums[0] = lm_sum_of(text.p, text.n);
  lm_status s = lm_file_write_atomic(lm_path_join(a, folder, STATE), text.p, text.n);
  lm_buf_free(&text);
  if (!s)
    s = lm_checkpoint_sums_write(a, folder, FILES, sums, LM_COUNT(FILES));
  return s;
}

static lm_status save(lm_arena *a, saving *x, const char *dir, const lm_checkpoint *c, int keep,
                      int64_t also) {
  char *written = lm_path_join(a, dir, ".writing");
  LM_TRY(lm_dir_make(dir));
  lm_status s = folder_write(a, x, written, c);
  if (s) {
    lm_status_free(lm_path_remove(written)); // report only the first failure
    return s;
  }
  LM_TRY(lm_checkpoint_folder_publish(a, written, lm_checkpoint_path(a, dir, c->step)));
  LM_TRY(lm_dir_sync(dir));
  return lm_checkpoint_steps_prune(a, dir, c->step, keep, also);
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

lm_status lm_checkpoint_save(const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep,
                             int64_t also) {
  const char *bad;
  LM_TRY(lm_trainer_not_finite(t, &bad));
  if (bad)
    return lm_fail(LM_USER, "step %lld: parameter %s is no longer finite; this state is not saved",
                   (long long)c->step, bad);
  saving x;
  lm_arena *a = lm_arena_create();
  lm_status s = saving_begin(a, t, &x);
  if (!s)
    s = lm_trainer_eval_begin(t);
  if (!s && lm_comm_is_first(x.ranks.comm))
    s = save(a, &x, dir, c, keep, also);
  lm_status rest = lm_rank_tensors_finish(&x.ranks);
  if (!s && !rest)
    rest = lm_trainer_eval_end(t);
  lm_arena_destroy(a);
  if (s && rest)
    lm_status_free(rest);
  return lm_annotate(s ? s : rest, "checkpoint of step %lld", (long long)c->step);
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
                 "%s: no evaluation selects the best checkpoint; declare one with save = "
                 "checkpoint(…, best = EVAL.METRIC)",
                 path);
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
  bool best = !strcmp(which, "best"), last = !strcmp(which, "last");
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
  LM_TRY(tensors_load(a, t, OF_MODEL, lm_path_join(a, folder, MODEL)));
  LM_TRY(tensors_load(a, t, OF_OPTIMIZER, lm_path_join(a, folder, OPTIMIZER)));
  return lm_trainer_eval_end(t);
}

lm_status lm_checkpoint_load(lm_arena *a, lm_trainer *t, const char *path, lm_checkpoint *c,
                             lm_checkpoint_choice *out) {
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_ALL, out));
  return out->folder ? folder_load(a, t, out->folder, c) : NULL;
}
