// checkpoint.c - a run's state on disk.
#include "runtime/train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/io/json.h"
#include "runtime/io/safetensors.h"
#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/checkpoint_sum.h"

enum { FORMAT = 1 };
static const char STATE[] = "state.json", MODEL[] = "model.safetensors", OPTIMIZER[] = "optimizer.safetensors";
static const char *const FILES[] = {STATE, MODEL, OPTIMIZER};    // of which lm_checkpoint_part takes so many

// ---- tensors

// Parameters (state < 0) or one state's elements.
static float *arena_of(const lm_trainer *t, int state, bool change) {
  const lm_trainer_options *o = lm_trainer_options_of(t);
  lm_arena_id id = state < 0 ? LM_ARENA_PARAM : LM_ARENA_STATE;
  float *arena = change ? lm_exec_arena(o->exec, id) : (float *)lm_exec_arena_peek(o->exec, id);
  return state < 0 ? arena : arena + (int64_t)state * o->plan->n_blocks * LM_BLOCK;
}

static char *tensor_name(lm_arena *a, const lm_trainer *t, int state, const lm_plan_param *p) {
  return state < 0 ? (char *)p->path : lm_arena_printf(a, "%s.%s", lm_trainer_options_of(t)->states[state].name, p->path);
}

static lm_st_tensor tensor_of(lm_arena *a, const lm_trainer *t, int state, const lm_plan_param *p, bool change) {
  lm_st_tensor x = {.name = tensor_name(a, t, state, p), .dtype = LM_ST_F32, .rank = p->rank, .elements = p->elements,
                    .data = arena_of(t, state, change) + p->offset};
  for (int k = 0; k < p->rank; k++) x.shape[k] = p->shape[k];
  return x;
}

static lm_status tensors_list(lm_arena *a, const lm_trainer *t, int first, int last, bool change, lm_st_tensor **out, size_t *out_n) {
  const lm_plan *plan = lm_trainer_options_of(t)->plan;
  lm_st_tensor *list = LM_NEW_N(a, lm_st_tensor, (last - first) * plan->n_params);
  size_t n = 0;
  for (int state = first; state < last; state++)
    for (int i = 0; i < plan->n_params; i++) {
      if (plan->params[i].rank > LM_ST_RANK)
        return lm_fail(LM_USER, "parameter %s has %d axes; files hold at most %d", plan->params[i].path,
                       plan->params[i].rank, LM_ST_RANK);
      list[n++] = tensor_of(a, t, state, &plan->params[i], change);
    }
  *out = list;
  *out_n = n;
  return NULL;
}

static lm_status tensors_save(lm_arena *a, const lm_trainer *t, int first, int last, const char *path, lm_sum *out_sum) {
  lm_st_tensor *list;
  size_t n;
  LM_TRY(tensors_list(a, t, first, last, false, &list, &n));
  LM_TRY(lm_exec_wait(lm_trainer_options_of(t)->exec));
  return lm_st_write_summed(path, list, n, out_sum);
}

static lm_status tensors_copy(const lm_st *st, const char *path, const lm_st_tensor *list, size_t n) {
  if (lm_st_count(st) != n) return lm_fail(LM_USER, "%s has %zu tensors, the model %zu", path, lm_st_count(st), n);
  for (size_t i = 0; i < n; i++) {
    const lm_st_tensor *x = lm_st_find(st, list[i].name);
    if (!x) return lm_fail(LM_USER, "%s has no tensor %s", path, list[i].name);
    size_t shape_bytes = sizeof *x->shape * (size_t)x->rank;
    if (x->dtype != LM_ST_F32 || x->rank != list[i].rank || memcmp(x->shape, list[i].shape, shape_bytes))
      return lm_fail(LM_USER, "%s: tensor %s is of another type or shape", path, x->name);
  }
  for (size_t i = 0; i < n; i++)
    lm_st_to_f32(LM_ST_F32, lm_st_find(st, list[i].name)->data, 0, list[i].elements, (float *)list[i].data);
  return NULL;
}

static lm_status tensors_load(lm_arena *a, lm_trainer *t, int first, int last, const char *path) {
  lm_st_tensor *list;
  size_t n;
  LM_TRY(tensors_list(a, t, first, last, true, &list, &n));
  lm_st *st;
  LM_TRY(lm_st_open(path, &st));
  lm_status s = tensors_copy(st, path, list, n);
  lm_st_close(st);
  return s;
}

// ---- state.json

static void number_print(lm_buf *b, const char *key, double x) {
  lm_buf_printf(b, "  \"%s\": ", key);
  lm_json_number(b, x);
}

static void text_print(lm_buf *b, const char *key, const char *text) {
  lm_buf_printf(b, "  \"%s\": ", key);
  lm_buf_json(b, text ? text : "");
  lm_buf_puts(b, ",\n");
}

static double number_of(const json_t *j, const char *key) {
  const json_t *x = json_object_get(j, key);
  return json_is_number(x) ? json_number_value(x) : NAN;
}

static int64_t whole_of(const json_t *j, const char *key) { return json_integer_value(json_object_get(j, key)); }

static const char *text_of(lm_arena *a, const json_t *j, const char *key) {
  const char *text = json_string_value(json_object_get(j, key));
  return text ? lm_arena_strndup(a, text, strlen(text)) : "";
}

static void guard_print(lm_buf *b, const lm_guard *g) {
  number_print(b, "mean_loss", g->mean);
  lm_buf_printf(b, ",\n  \"mean_of\": %lld,\n  \"bad_steps\": %lld,\n  \"skipped\": %lld,\n  \"returns\": %lld,\n  \"shift\": %lld,\n",
                (long long)g->seen, (long long)g->bad, (long long)g->skipped, (long long)g->returns, (long long)g->shift);
}

static lm_guard guard_parse(const json_t *j) {
  double mean = number_of(j, "mean_loss");
  return (lm_guard){isnan(mean) ? 0 : mean, whole_of(j, "mean_of"), whole_of(j, "bad_steps"), whole_of(j, "skipped"), whole_of(j, "returns"), whole_of(j, "shift")};
}

static void state_print(lm_buf *b, const lm_checkpoint *c) {
  lm_buf_printf(b, "{\n  \"format\": %d,\n  \"step\": %lld,\n  \"tokens\": %lld,\n  \"seed\": \"%llu\",\n  \"data\": \"%016llx\",\n  \"n_micro\": %lld,\n", FORMAT,
                (long long)c->step, (long long)c->tokens, (unsigned long long)c->seed, (unsigned long long)c->data, (long long)c->n_micro);
  number_print(b, "best", c->best);
  lm_buf_printf(b, ",\n  \"best_step\": %lld,\n", (long long)c->best_step);
  number_print(b, "stop_best", c->stop_best);
  lm_buf_printf(b, ",\n  \"bad_evals\": %lld,\n", (long long)c->bad_evals);
  text_print(b, "stop_on", c->stop_on);
  text_print(b, "ended", c->ended);
  guard_print(b, &c->guard);
  lm_buf_puts(b, "  \"keys\": {");
  for (int i = 0; i < c->n_keys; i++) {
    lm_buf_puts(b, i ? ",\n    " : "\n    ");
    lm_buf_json(b, c->keys[i].key);
    lm_buf_puts(b, ": ");
    lm_buf_json(b, c->keys[i].value);
  }
  lm_buf_puts(b, c->n_keys ? "\n  }\n}\n" : "}\n}\n");
}

static bool has_key(const lm_checkpoint *c, const char *key) {
  for (int i = 0; i < c->n_keys; i++)
    if (!strcmp(c->keys[i].key, key)) return true;
  return false;
}

static lm_status keys_compare(json_t *keys, const char *path, const lm_checkpoint *c) {
  lm_buf changed = {0};
  const char *key;
  json_t *value;
  for (int i = 0; i < c->n_keys; i++) {
    const char *was = json_string_value(json_object_get(keys, c->keys[i].key));
    if (!was || strcmp(was, c->keys[i].value))
      lm_buf_printf(&changed, "\n  %s was %s, is %s", c->keys[i].key, was ? was : "absent", c->keys[i].value);
  }
  json_object_foreach(keys, key, value)
    if (!has_key(c, key)) lm_buf_printf(&changed, "\n  %s was %s, is absent", key, json_is_string(value) ? json_string_value(value) : "?");
  lm_status s = changed.n ? lm_fail(LM_USER, "%s cannot be resumed: these may not change:%s", path, changed.p) : NULL;
  lm_buf_free(&changed);
  return s;
}

static lm_status state_parse(lm_arena *a, const json_t *j, const char *path, lm_checkpoint *c) {
  const char *seed = json_string_value(json_object_get(j, "seed"));
  if (json_integer_value(json_object_get(j, "format")) != FORMAT || !json_is_integer(json_object_get(j, "step")) || !seed)
    return lm_fail(LM_USER, "%s: not the state of a run in this format", path);
  LM_TRY(keys_compare(json_object_get(j, "keys"), path, c));
  c->step = whole_of(j, "step");
  c->tokens = whole_of(j, "tokens");
  c->seed = strtoull(seed, NULL, 10);
  c->data = strtoull(text_of(a, j, "data"), NULL, 16);
  c->n_micro = whole_of(j, "n_micro");
  c->best = number_of(j, "best");
  c->best_step = whole_of(j, "best_step");
  c->stop_best = number_of(j, "stop_best");
  c->bad_evals = whole_of(j, "bad_evals");
  c->stop_on = text_of(a, j, "stop_on");
  c->ended = text_of(a, j, "ended");
  c->guard = guard_parse(j);
  if (c->step < 0 || c->guard.shift < 0 || c->guard.shift > INT64_MAX / 2) return lm_fail(LM_USER, "%s: not the state of a run", path);
  return NULL;
}

static lm_status state_load(lm_arena *a, const char *folder, lm_checkpoint *c) {
  char *path = lm_path_join(a, folder, STATE);
  json_t *j;
  LM_TRY(lm_json_read(path, 64 << 20, &j));
  lm_status s = state_parse(a, j, path, c);
  json_decref(j);
  return s;
}

// ---- saving

static lm_status folder_write(lm_arena *a, const lm_trainer *t, const char *folder, const lm_checkpoint *c) {
  LM_TRY(lm_path_remove(folder));
  LM_TRY(lm_dir_make(folder));
  lm_sum sums[LM_COUNT(FILES)];
  LM_TRY(tensors_save(a, t, -1, 0, lm_path_join(a, folder, MODEL), &sums[1]));
  LM_TRY(tensors_save(a, t, 0, lm_trainer_options_of(t)->plan->n_states, lm_path_join(a, folder, OPTIMIZER), &sums[2]));
  lm_buf text = {0};
  state_print(&text, c);
  sums[0] = lm_sum_of(text.p, text.n);
  lm_status s = lm_file_write_atomic(lm_path_join(a, folder, STATE), text.p, text.n);
  lm_buf_free(&text);
  if (!s) s = lm_checkpoint_sums_write(a, folder, FILES, sums, LM_COUNT(FILES));
  return s;
}

static lm_status save(lm_arena *a, const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep, int64_t also) {
  char *written = lm_path_join(a, dir, ".writing");
  LM_TRY(lm_dir_make(dir));
  lm_status s = folder_write(a, t, written, c);
  if (s) {
    lm_status_free(lm_path_remove(written));   // the first failure is the one to tell
    return s;
  }
  LM_TRY(lm_checkpoint_folder_publish(a, written, lm_checkpoint_path(a, dir, c->step)));
  LM_TRY(lm_dir_sync(dir));
  return lm_checkpoint_steps_prune(a, dir, c->step, keep, also);
}

int64_t lm_checkpoint_bytes(const lm_plan *plan) {
  int64_t elements = 0;
  for (int i = 0; i < plan->n_params; i++) elements += plan->params[i].elements;
  return elements * (1 + plan->n_states) * (int64_t)sizeof(float);
}

lm_status lm_checkpoint_save(const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep, int64_t also) {
  const char *bad = lm_trainer_not_finite(t);
  if (bad) return lm_fail(LM_USER, "step %lld: parameter %s is not finite any more; this state is not saved", (long long)c->step, bad);
  lm_arena *a = lm_arena_create();
  lm_status s = lm_annotate(save(a, t, dir, c, keep, also), "checkpoint of step %lld", (long long)c->step);
  lm_arena_destroy(a);
  return s;
}

// ---- choosing

// Weights alone are an imported model's.
static bool is_checkpoint(lm_arena *a, const char *path) {
  static const char *const own[] = {STATE, OPTIMIZER, LM_CHECKPOINT_SUMS};
  for (size_t i = 0; i < LM_COUNT(own); i++)
    if (!access(lm_path_join(a, path, own[i]), F_OK)) return true;
  return false;
}

lm_status lm_checkpoint_newest(lm_arena *a, const char *path, const char **out) {
  *out = path;
  if (is_checkpoint(a, path)) return NULL;
  lm_checkpoint_steps all;
  LM_TRY(lm_checkpoint_steps_list(a, path, &all));
  *out = all.n ? lm_checkpoint_path(a, path, all.v[0]) : NULL;
  return NULL;
}

static lm_status whole_newest(lm_arena *a, const char *path, lm_checkpoint_part part, lm_checkpoint_choice *out) {
  lm_checkpoint_steps all;
  lm_buf damage = {0};
  LM_TRY(lm_checkpoint_steps_list(a, path, &all));
  *out = (lm_checkpoint_choice){.newest = all.n ? all.v[0] : -1};
  lm_status s = NULL;
  for (uint32_t i = 0; i < all.n && !s && !out->folder; i++) {
    const char *folder = lm_checkpoint_path(a, path, all.v[i]), *bad;
    s = lm_checkpoint_sums_check(a, folder, FILES, (int)part, &bad);
    if (bad) lm_buf_printf(&damage, "%s%s", damage.n ? "\n  " : "", bad);
    else out->folder = folder, out->step = all.v[i];
  }
  if (damage.n) out->damage = lm_arena_strndup(a, damage.p, damage.n);
  lm_buf_free(&damage);
  return s || out->folder || !all.n ? s : lm_fail(LM_ENV, "no checkpoint of %s is whole:\n  %s\n  to begin anew in this folder: lmc run with --resume never; in another one: with --out", path, out->damage);
}

// The one that was asked for: nothing takes its place.
static lm_status whole_one(lm_arena *a, const char *folder, lm_checkpoint_part part, lm_checkpoint_choice *out) {
  const char *bad;
  *out = (lm_checkpoint_choice){.folder = folder};
  LM_TRY(lm_checkpoint_sums_check(a, folder, FILES, (int)part, &bad));
  return bad ? lm_fail(LM_ENV, "this checkpoint is damaged: %s", bad) : NULL;
}

static lm_status best_find(lm_arena *a, const char *path, int64_t *out_step) {
  lm_checkpoint_choice last;
  json_t *j;
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_STATE, &last));
  if (!last.folder) return lm_fail(LM_USER, "%s holds no checkpoint", path);
  LM_TRY(lm_json_read(lm_path_join(a, last.folder, STATE), 64 << 20, &j));
  bool known = json_is_number(json_object_get(j, "best"));
  *out_step = whole_of(j, "best_step");
  json_decref(j);
  return known ? NULL : lm_fail(LM_USER, "%s: no evaluation says which checkpoint is the best; save = checkpoint(…, best = EVAL.METRIC) does", path);
}

static lm_status none_of_step(lm_arena *a, const char *path, int64_t step) {
  enum { SHOWN = 10 };
  lm_checkpoint_steps all;
  lm_buf there = {0};
  LM_TRY(lm_checkpoint_steps_list(a, path, &all));
  for (uint32_t i = 0; i < all.n && i < SHOWN; i++) lm_buf_printf(&there, "%s %lld", i ? "," : all.n == 1 ? ", only of step" : ", only of steps", (long long)all.v[i]);
  lm_status s = lm_fail(LM_USER, "%s holds no checkpoint of step %lld%s%s", path, (long long)step, there.n ? there.p : "", all.n > SHOWN ? ", …" : "");
  lm_buf_free(&there);
  return s;
}

lm_status lm_checkpoint_choose(lm_arena *a, const char *path, const char *which, lm_checkpoint_part part, lm_checkpoint_choice *out) {
  bool best = !strcmp(which, "best"), last = !strcmp(which, "last");
  char *end;
  int64_t step = strtoll(which, &end, 10);
  if (last) return is_checkpoint(a, path) ? whole_one(a, path, part, out) : whole_newest(a, path, part, out);
  if (!best && (!*which || *end || step < 0)) return lm_fail(LM_USER, "a checkpoint is last, best or the number of a step, not '%s'", which);
  if (best) LM_TRY(best_find(a, path, &step));
  const char *folder = lm_checkpoint_path(a, path, step);
  if (access(folder, F_OK)) return none_of_step(a, path, step);
  return whole_one(a, folder, part, out);
}

// ---- loading

static lm_status folder_load(lm_arena *a, lm_trainer *t, const char *folder, lm_checkpoint *c) {
  LM_TRY(state_load(a, folder, c));
  LM_TRY(tensors_load(a, t, -1, 0, lm_path_join(a, folder, MODEL)));
  return tensors_load(a, t, 0, lm_trainer_options_of(t)->plan->n_states, lm_path_join(a, folder, OPTIMIZER));
}

lm_status lm_checkpoint_load(lm_arena *a, lm_trainer *t, const char *path, lm_checkpoint *c, lm_checkpoint_choice *out) {
  LM_TRY(lm_checkpoint_choose(a, path, "last", LM_CHECKPOINT_ALL, out));
  return out->folder ? folder_load(a, t, out->folder, c) : NULL;
}
