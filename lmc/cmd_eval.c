// eval.c - lmc eval: the loss of a trained model on held-out data.
#include <math.h>
#include <string.h>

#include "driver/trained.h"
#include "lmc/open.h"
#include "runtime/train/eval.h"

static const lm_opt options[] = {
    {.name = "on",
     .kind = LM_OPT_LIST,
     .value = "HOLDOUT",
     .help = "a held-out part of the data, or train; may be repeated (all held-out ones)"},
    LM_OPT_STEP,
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

// ---- which parts

static lm_status part_named(const lm_session *s, const char *name, int *out) {
  const char *names[64];
  lm_data_info info = lm_data_info_of(s->data);
  *out = lm_data_part_find(s->data, name);
  if (*out >= 0)
    return NULL;
  int n = info.n_parts < (int)LM_COUNT(names) ? info.n_parts : (int)LM_COUNT(names);
  for (int i = 0; i < n; i++)
    names[i] = lm_data_part(s->data, i).name;
  const char *near = lm_nearest(name, names, n);
  if (near)
    return lm_fail(LM_USER, "data %s has no part '%s'; did you mean '%s'?", s->recipe->data.name,
                   name, near);
  lm_buf all = {0};
  for (int i = 0; i < n; i++)
    lm_buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
  lm_status none =
      lm_fail(LM_USER, "data %s has no part '%s', only %s", s->recipe->data.name, name, all.p);
  lm_buf_free(&all);
  return none;
}

static lm_status parts_find(const lm_session *s, const lm_args *args, int **out, int *out_n) {
  int n, parts = lm_data_info_of(s->data).n_parts;
  const char *const *names = lm_args_list(args, "on", &n);
  *out = LM_NEW_N(s->ctx->arena, int, n + parts);
  *out_n = 0;
  for (int i = 0; i < n; i++)
    LM_TRY(part_named(s, names[i], &(*out)[(*out_n)++]));
  for (int i = 1; !n && i < parts; i++)
    (*out)[(*out_n)++] = i;
  if (*out_n)
    return NULL;
  return lm_fail(LM_USER,
                 "data %s holds nothing out: holdout dev = tail(1%%) does, --on train evaluates "
                 "what was trained on",
                 s->recipe->data.name);
}

// ---- results

static void result_text(const char *name, const lm_eval_result *x) {
  lm_cli_print("%-12s loss %.4f", name, x->value[LM_EVAL_LOSS]);
  if (!isnan(x->value[LM_EVAL_PERPLEXITY]))
    lm_cli_print("  perplexity %.3f", x->value[LM_EVAL_PERPLEXITY]);
  if (!isnan(x->value[LM_EVAL_BITS_PER_BYTE]))
    lm_cli_print("  bits/byte %.4f", x->value[LM_EVAL_BITS_PER_BYTE]);
  lm_cli_print("  (%.0f tokens)\n", x->weight);
}

static void result_json(const char *name, const lm_eval_result *x, bool first) {
  lm_buf b = {0};
  lm_buf_puts(&b, first ? "" : ", ");
  lm_buf_json(&b, name);
  lm_buf_printf(&b, ": {\"tokens\": %.0f", x->weight);
  for (int k = 0; k < LM_EVAL_METRICS; k++)
    if (isfinite(x->value[k]))
      lm_buf_printf(&b, ", \"%s\": %.17g", LM_EVAL_NAMES[k], x->value[k]);
    else
      lm_buf_printf(&b, ", \"%s\": null", LM_EVAL_NAMES[k]);
  lm_cli_print("%s}", b.p);
  lm_buf_free(&b);
}

// ---- a part that takes long, for people

typedef struct watcher {
  const char *part;
  double start, shown;
} watcher;

static void rows_show(void *user, int64_t done, int64_t all) {
  watcher *w = user;
  double now = lm_now();
  if (done < all && now - w->shown < 1)
    return;
  bool was = w->shown > w->start;
  w->shown = now;
  lm_buf left = {0};
  lm_show_seconds(&left, (now - w->start) / (double)done * (double)(all - done));
  if (done < all)
    fprintf(stderr, "\r%s: %lld of %lld rows, about %s left\033[K", w->part, (long long)done,
            (long long)all, left.p);
  else if (was)
    fprintf(stderr, "\r\033[K");
  lm_buf_free(&left);
}

static lm_status nothing_to_predict(const char *part, const lm_eval_result *x) {
  return lm_fail(
      LM_USER, "part %s of the data has nothing to predict: the weights of its %lld rows sum to %g",
      part, (long long)x->rows, x->weight);
}

static lm_status parts_eval(const lm_session *s, const lm_cli *cli, const int *parts, int n) {
  bool json = cli->json;
  if (json)
    lm_cli_print("{");
  for (int i = 0; i < n; i++) {
    lm_eval_result x;
    const char *name = lm_data_part(s->data, parts[i]).name;
    double now = lm_now();
    watcher w = {name, now, now};
    LM_TRY(lm_eval_run(s->exec, s->plan, s->data, parts[i],
                       cli->color ? &(lm_eval_watch){rows_show, &w} : NULL, &x));
    if (!(x.weight > 0))
      return nothing_to_predict(name, &x);
    if (json)
      result_json(name, &x, !i);
    else
      result_text(name, &x);
  }
  if (json)
    lm_cli_print("}\n");
  return NULL;
}

static lm_status eval(lm_session *s, lm_cli *cli) {
  const char *weights;
  int *parts, n;
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open_trained(cli, s, &weights));
  LM_TRY(lm_session_data(s));
  if (s->recipe->data.replays)
    return lm_fail(LM_USER, "finished batches hold nothing out to evaluate on");
  LM_TRY(parts_find(s, &cli->args, &parts, &n));
  LM_TRY(lm_session_lower(s, LM_LOWER_EVAL, 0));
  LM_TRY(lm_session_plan(s));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_session_start(s, NULL));
  LM_TRY(lm_trained_load(s, weights, lm_exec_arena(s->exec, LM_ARENA_PARAM)));
  return parts_eval(s, cli, parts, n);
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = eval(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_eval = {.name = "eval",
                                .usage = "RUN|FILE [options]",
                                .summary = "loss, perplexity and bits per byte on held-out data",
                                .options = options,
                                .least = 1,
                                .most = 1,
                                .run = run,
                                .help =
                                    "RUN is the folder of a run; its data is read where it was "
                                    "when the run was made. Given a FILE, the weights are those\n"
                                    "that its model is `from`.\n\n"
                                    "  lmc eval runs/quickstart --step best --json\n"};
