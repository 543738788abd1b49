// evaluate.c - a trained model evaluated on parts of its data.
#include "driver/evaluate.h"

#include "driver/ranks.h"
#include "driver/text.h"
#include "driver/trained.h"

// ---- parts of the data

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
    return lm_fail(LM_USER, "data %s has no part '%s'; did you mean '%s'?",
                   s->project.recipe->data.name, name, near);
  lm_buf all = {0};
  for (int i = 0; i < n; i++)
    lm_buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
  lm_status none = lm_fail(LM_USER, "data %s has no part '%s', only %s",
                           s->project.recipe->data.name, name, all.p);
  lm_buf_free(&all);
  return none;
}

static lm_status parts_find(const lm_session *s, const char *const *names, int n, int **out,
                            int *out_n) {
  int parts = lm_data_info_of(s->data).n_parts;
  *out = LM_NEW_N(s->project.ctx->arena, int, n + parts);
  *out_n = 0;
  for (int i = 0; i < n; i++)
    LM_TRY(part_named(s, names[i], &(*out)[(*out_n)++]));
  for (int i = 1; !n && i < parts; i++)
    (*out)[(*out_n)++] = i;
  if (*out_n)
    return NULL;
  return lm_fail(LM_USER,
                 "data %s has no holdout: holdout dev = tail(1%%) declares one, --on train "
                 "evaluates the training rows",
                 s->project.recipe->data.name);
}

// ---- progress

enum {
  SHOWN_EVERY = 1, // seconds, on a terminal
  NOTED_EVERY = 30 // seconds, where a line cannot replace the previous one
};

typedef struct watcher {
  const lm_events *events;
  lm_data_part_info part;
  double start, shown; // times; shown: of the last report, 0 before the first
  bool replaces;       // whether a report replaces the previous one
} watcher;

static watcher watcher_make(const lm_events *events, lm_data_part_info part) {
  bool replaces = events && events->progress;
  double now = lm_now();
  return (watcher){events, part, now, replaces ? 0 : now, replaces};
}

static void progress_text(const watcher *w, int64_t done, int64_t all, lm_buf *b) {
  double share = (double)done / (double)all;
  lm_buf_printf(b, "%s: ", w->part.name);
  lm_show_count(b, share * (double)w->part.tokens);
  lm_buf_puts(b, " of ");
  lm_show_count(b, (double)w->part.tokens);
  lm_buf_puts(b, " tokens  ETA ");
  lm_show_seconds(b, (lm_now() - w->start) * (1 / share - 1));
}

static void rows_report(void *user, int64_t done, int64_t all) {
  watcher *w = user;
  double now = lm_now();
  if (done == all) {
    if (w->replaces && w->shown > 0)
      lm_event_progress_end(w->events);
    return;
  }
  if (now - w->shown < (w->replaces ? SHOWN_EVERY : NOTED_EVERY))
    return;
  lm_buf text = {0};
  w->shown = now;
  progress_text(w, done, all, &text);
  (w->replaces ? lm_event_progress : lm_event_note)(w->events, "%s", text.p);
  lm_buf_free(&text);
}

// *empty: receives an error if the part has nothing to predict; the first one is kept.
static lm_status part_evaluate(const lm_session *s, const lm_evaluation_options *o, int part,
                               lm_status *empty) {
  lm_eval_result x;
  lm_data_part_info info = lm_data_part(s->data, part);
  const char *name = info.name;
  watcher w = watcher_make(s->project.events, info);
  LM_TRY(lm_eval_run(s->execution.exec, s->compiled.plan, s->data, part, s->comm,
                     &(lm_eval_watch){rows_report, &w}, &x));
  o->result(o->user, name, &x);
  if (!(x.weight > 0) && !*empty)
    *empty = lm_fail(
        LM_USER,
        "part %s of the data has nothing to predict: the weights of its %lld rows sum to %g", name,
        (long long)x.rows, x.weight);
  return NULL;
}

lm_status lm_evaluation_run(lm_session *s, const lm_evaluation_options *o) {
  int *parts, n;
  LM_TRY(lm_ranks_data(s));
  if (s->project.recipe->data.replays)
    return lm_fail(LM_USER, "finished batches have no holdout to evaluate");
  LM_TRY(parts_find(s, o->parts, o->n_parts, &parts, &n));
  LM_TRY(lm_session_compile(s, LM_LOWER_EVAL, 0));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_ranks_session_start(s, NULL));
  LM_TRY(lm_trained_load(s, o->weights, lm_weights_in(s->execution.exec)));
  lm_status failed = NULL, empty = NULL;
  for (int i = 0; i < n && !failed; i++)
    failed = part_evaluate(s, o, parts[i], &empty);
  if (failed)
    lm_status_free(empty);
  return failed ? failed : empty;
}
