// tune_variant.c - the variant of a run's steps as text and as JSON.
#include "driver/tune/tune_variant.h"

#include "compiler/passes/pass.h"
#include "runtime/io/json.h"

enum {
  MAX_NUMBER = 1 << 20 // of rows and of points of a kernel
};

static void variant_print(const lm_session *s, lm_buf *out) {
  const lm_variant *v = &s->tuning.step;
  lm_buf_puts(out, "{\"off\": ");
  lm_buf_json(out, v->off ? v->off : "");
  lm_buf_puts(out, ", \"on\": ");
  lm_buf_json(out, v->on ? v->on : "");
  lm_buf_printf(out, ", \"rows\": %d, \"points\": %d, \"gain\": %.3f", v->rows, v->points,
                s->tuning.step_gain);
}

void lm_tune_step_json(const lm_session *s, lm_buf *out) {
  variant_print(s, out);
  lm_buf_puts(out, "}");
}

void lm_tune_step_report(const lm_session *s, lm_buf *out) {
  variant_print(s, out);
  lm_buf_printf(out, ", \"places\": %d}", s->tuning.step.points);
}

void lm_tune_step_pin(const lm_session *s, lm_buf *out) {
  lm_buf_puts(out, ", \"step\": ");
  lm_tune_step_json(s, out);
}

const char *lm_variant_text(lm_arena *a, const lm_variant *v) {
  const char *parts[] = {v->off ? lm_arena_printf(a, "without %s", v->off) : NULL,
                         v->on ? lm_arena_printf(a, "with %s", v->on) : NULL,
                         v->rows ? lm_arena_printf(a, "%d rows at a time", v->rows) : NULL,
                         v->points ? lm_arena_printf(a, "%d points a kernel", v->points) : NULL};
  const char *text = "";
  for (size_t i = 0; i < LM_COUNT(parts); i++)
    if (parts[i])
      text = lm_arena_printf(a, "%s%s%s", text, *text ? ", " : "", parts[i]);
  return text;
}

const char *lm_tune_step_text(const lm_session *s) {
  if (s->tuning.step_gain <= 1)
    return NULL;
  return lm_arena_printf(s->project.ctx->arena, "%s, %.2f times as fast as by default",
                         lm_variant_text(s->project.ctx->arena, &s->tuning.step),
                         s->tuning.step_gain);
}

static const char *names_or_null(lm_arena *a, const char *names) {
  return *names ? lm_arena_printf(a, "%s", names) : NULL;
}

bool lm_variant_read(lm_arena *a, json_t *j, lm_variant *out, double *out_gain) {
  const char *off;
  const char *on;
  json_int_t rows, points;
  lm_json_rename(j, "places", "points");
  if (json_unpack_ex(j, NULL, JSON_STRICT, "{s:s, s:s, s:I, s:I, s:F}", "off", &off, "on", &on,
                     "rows", &rows, "points", &points, "gain", out_gain))
    return false;
  if (rows < 0 || rows > MAX_NUMBER || points < 0 || points > MAX_NUMBER)
    return false;
  lm_pass_env env = {0};
  *out = (lm_variant){names_or_null(a, off), names_or_null(a, on), (int)rows, (int)points};
  lm_status none = out->off ? lm_pass_disable(a, out->off, &env) : NULL;
  if (!none && out->on)
    none = lm_pass_force(a, out->on, &env);
  lm_status_free(none);
  return !none && *out_gain >= 0;
}

void lm_tune_step_set(lm_session *s, const lm_variant *v, double gain) {
  s->tuning.step = *v;
  s->tuning.step_gain = gain;
  s->variant = *v;
}

bool lm_variant_is_given(const lm_session *s) {
  return s->variant.off || s->variant.on || s->load_dir;
}

bool lm_tune_step_recall(lm_session *s, json_t *step) {
  lm_variant v;
  double gain;
  if (!step)
    return true;
  if (!lm_variant_read(s->project.ctx->arena, step, &v, &gain))
    return false;
  if (!lm_variant_is_given(s))
    lm_tune_step_set(s, &v, gain);
  return true;
}
