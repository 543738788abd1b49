// log.c - see log.h.
#include "runtime/train/log.h"

#include <string.h>
#include <time.h>

#include "runtime/telemetry/chart.h"
#include "runtime/telemetry/tensorboard.h"

struct lm_run_log {
  lm_arena *arena;
  char *dir, *metrics_path;
  lm_metrics *metrics;
  lm_events *events;
};

static lm_status files_open(lm_run_log *l, int64_t step) {
  l->metrics_path = lm_path_join(l->arena, l->dir, "metrics.jsonl");
  LM_TRY(lm_metrics_open(l->metrics_path, step, &l->metrics));
  return lm_events_open(lm_path_join(l->arena, l->dir, "events.out.tfevents.lmc"), step,
                        &l->events);
}

lm_status lm_run_log_open(const char *dir, int64_t step, lm_run_log **out) {
  lm_arena *a = lm_arena_create();
  lm_run_log *l = LM_NEW(a, lm_run_log);
  *l = (lm_run_log){
      .arena = a,
      .dir = lm_arena_strndup(a, dir, strlen(dir)),
  };
  lm_status s = files_open(l, step);
  if (s)
    lm_run_log_close(l);
  *out = s ? NULL : l;
  return s;
}

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

lm_status lm_run_log_add(lm_run_log *l, int64_t step, const lm_metric *items, size_t n) {
  if (!l)
    return NULL;
  LM_TRY(lm_metrics_add(l->metrics, step, items, n));
  return lm_events_add(l->events, step, seconds_now(), items, n);
}

lm_status lm_run_log_draw(lm_run_log *l) {
  lm_curves curves;
  lm_buf picture = {0};
  if (!l)
    return NULL;
  LM_TRY(lm_curves_read(l->metrics_path, "loss", &curves));
  const char *name = strrchr(l->dir, '/');
  lm_chart_draw(&curves, name && name[1] ? name + 1 : l->dir, "loss", &picture);
  lm_status s =
      lm_file_write_atomic(lm_path_join(l->arena, l->dir, "loss.svg"), picture.p, picture.n);
  lm_buf_free(&picture);
  lm_curves_free(&curves);
  return s;
}

void lm_run_log_close(lm_run_log *l) {
  if (!l)
    return;
  lm_metrics_close(l->metrics);
  lm_events_close(l->events);
  lm_arena_destroy(l->arena);
}
