// checkpoint_state.c - see checkpoint_state.h.
#include "runtime/train/checkpoint_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/io/json.h"

enum {
  FORMAT = 1,
  STATE_MAX = 64 << 20
};

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

static int64_t whole_of(const json_t *j, const char *key) {
  return json_integer_value(json_object_get(j, key));
}

static const char *text_of(lm_arena *a, const json_t *j, const char *key) {
  const char *text = json_string_value(json_object_get(j, key));
  return text ? lm_arena_strndup(a, text, strlen(text)) : "";
}

static void guard_print(lm_buf *b, const lm_guard *g) {
  number_print(b, "mean_loss", g->mean);
  lm_buf_printf(
      b,
      ",\n  \"mean_of\": %lld,\n  \"bad_steps\": %lld,\n  \"skipped\": %lld,\n  \"empty\": %lld,\n",
      (long long)g->seen, (long long)g->bad, (long long)g->skipped, (long long)g->empty);
  lm_buf_printf(b, "  \"returns\": %lld,\n  \"shift\": %lld,\n", (long long)g->rollbacks,
                (long long)g->shift);
}

static lm_guard guard_parse(const json_t *j) {
  double mean = number_of(j, "mean_loss");
  return (lm_guard){.mean = isnan(mean) ? 0 : mean,
                    .seen = whole_of(j, "mean_of"),
                    .bad = whole_of(j, "bad_steps"),
                    .skipped = whole_of(j, "skipped"),
                    .empty = whole_of(j, "empty"),
                    .rollbacks = whole_of(j, "returns"),
                    .shift = whole_of(j, "shift")};
}

static void loss_scale_print(lm_buf *b, const lm_checkpoint *c) {
  if (!(c->loss_scale.scale > 0))
    return;
  number_print(b, "loss_scale", c->loss_scale.scale);
  lm_buf_printf(b, ",\n  \"loss_scale_steps\": %lld,\n  \"overflows\": %lld,\n",
                (long long)c->loss_scale.good, (long long)c->guard.overflows);
}

static bool loss_scale_parse(const json_t *j, lm_checkpoint *c) {
  if (!json_object_get(j, "loss_scale"))
    return true;
  c->loss_scale.scale = number_of(j, "loss_scale");
  c->loss_scale.good = whole_of(j, "loss_scale_steps");
  c->guard.overflows = whole_of(j, "overflows");
  return lm_loss_scale_is_valid(&c->loss_scale);
}

static void texts_print(lm_buf *b, const char *name, const lm_train_key *v, int n) {
  lm_buf_printf(b, "  \"%s\": {", name);
  for (int i = 0; i < n; i++) {
    lm_buf_puts(b, i ? ",\n    " : "\n    ");
    lm_buf_json(b, v[i].key);
    lm_buf_puts(b, ": ");
    lm_buf_json(b, v[i].value);
  }
  lm_buf_puts(b, n ? "\n  }" : "}");
}

void lm_checkpoint_state_print(lm_buf *b, const lm_checkpoint *c) {
  lm_buf_printf(b,
                "{\n  \"format\": %d,\n  \"step\": %lld,\n  \"tokens\": %lld,\n  \"seed\": "
                "\"%llu\",\n  \"data\": \"%016llx\",\n  \"n_micro\": %lld,\n",
                FORMAT, (long long)c->step, (long long)c->tokens, (unsigned long long)c->seed,
                (unsigned long long)c->data, (long long)c->n_micro);
  if (c->mesh && *c->mesh)
    text_print(b, "mesh", c->mesh);
  number_print(b, "best", c->best);
  lm_buf_printf(b, ",\n  \"best_step\": %lld,\n", (long long)c->best_step);
  number_print(b, "stop_best", c->stop_best);
  lm_buf_printf(b, ",\n  \"bad_evals\": %lld,\n", (long long)c->bad_evals);
  text_print(b, "stop_on", c->stop_on);
  text_print(b, "ended", c->ended);
  guard_print(b, &c->guard);
  loss_scale_print(b, c);
  texts_print(b, "model", c->model, c->n_model);
  lm_buf_puts(b, ",\n");
  texts_print(b, "keys", c->keys, c->n_keys);
  lm_buf_puts(b, "\n}\n");
}

// The strings of an object, in order.
static lm_status texts_parse(lm_arena *a, json_t *object, const char *path,
                             const lm_train_key **out, int *out_n) {
  const char *key;
  json_t *value;
  lm_train_key *list = LM_NEW_N(a, lm_train_key, json_object_size(object) + 1);
  *out = list;
  *out_n = 0;
  json_object_foreach(object, key, value) {
    const char *text = json_string_value(value);
    if (!text)
      return lm_fail(LM_USER, "%s: '%s' is not a string", path, key);
    list[(*out_n)++] = (lm_train_key){lm_arena_strndup(a, key, strlen(key)),
                                      lm_arena_strndup(a, text, strlen(text))};
  }
  return NULL;
}

// Steps and counts: they are added to, so they are far from the largest number.
static lm_status counts_check(const json_t *j, const char *path) {
  static const char *const names[] = {"step",    "tokens",    "n_micro", "best_step",
                                      "skipped", "bad_evals", "mean_of", "bad_steps",
                                      "empty",   "overflows", "returns", "shift"};
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    const json_t *x = json_object_get(j, names[i]);
    int64_t n = json_integer_value(x);
    if (x && (!json_is_integer(x) || n < 0 || n > INT64_MAX / 2))
      return lm_fail(LM_USER, "%s: not the state of a run: '%s' is not a count", path, names[i]);
  }
  return NULL;
}

static lm_status state_parse(lm_arena *a, const json_t *j, const char *path, lm_checkpoint *c) {
  const char *seed = json_string_value(json_object_get(j, "seed"));
  if (json_integer_value(json_object_get(j, "format")) != FORMAT ||
      !json_is_integer(json_object_get(j, "step")) || !seed)
    return lm_fail(LM_USER, "%s: not the state of a run in this format", path);
  LM_TRY(counts_check(j, path));
  LM_TRY(texts_parse(a, json_object_get(j, "keys"), path, &c->keys, &c->n_keys));
  LM_TRY(texts_parse(a, json_object_get(j, "model"), path, &c->model, &c->n_model));
  c->step = whole_of(j, "step");
  c->tokens = whole_of(j, "tokens");
  c->seed = strtoull(seed, NULL, 10);
  c->data = strtoull(text_of(a, j, "data"), NULL, 16);
  c->n_micro = whole_of(j, "n_micro");
  c->mesh = text_of(a, j, "mesh");
  c->best = number_of(j, "best");
  c->best_step = whole_of(j, "best_step");
  c->stop_best = number_of(j, "stop_best");
  c->bad_evals = whole_of(j, "bad_evals");
  c->stop_on = text_of(a, j, "stop_on");
  c->ended = text_of(a, j, "ended");
  c->guard = guard_parse(j);
  c->loss_scale = (lm_loss_scale){0};
  return loss_scale_parse(j, c) ? NULL : lm_fail(LM_USER, "%s: not the state of a run", path);
}

lm_status lm_checkpoint_state_read(lm_arena *a, const char *folder, lm_checkpoint *c) {
  char *path = lm_path_join(a, folder, "state.json");
  json_t *j;
  LM_TRY(lm_json_read(path, STATE_MAX, &j));
  lm_status s = state_parse(a, j, path, c);
  json_decref(j);
  return s;
}
