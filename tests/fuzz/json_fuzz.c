// json_fuzz.c - JSON, metrics.jsonl and event files as a run finds them in its folder. The first
// byte chooses which.
#include "runtime/telemetry/chart.h"
#include "runtime/weights/hf_keys.h"
#include "runtime/io/json.h"
#include "runtime/telemetry/tensorboard.h"
#include "tests/fuzz/fuzz.h"

static void value_read(void *user, const char *key, const json_t *value) {
  if (json_is_number(value) && lm_hf_key_find(key).meaning != LM_HF_IGNORED)
    lm_json_number(user, json_number_value(value));
}

static void json_read(const char *text, size_t n) {
  json_t *j;
  lm_buf number = {0};
  lm_status s = lm_json_parse(text, n, "fuzz", &j);
  if (!s) {
    json_t *config = lm_hf_config_canonical(j);
    lm_hf_config_each(config, value_read, &number);
    json_decref(config);
    json_decref(j);
  }
  lm_buf_free(&number);
  lm_status_free(s);
}

static void metrics_read(const char *path) {
  lm_curves curves;
  lm_buf picture = {0};
  lm_metrics *m;
  lm_status s = lm_curves_read(path, "loss", &curves);
  if (!s) {
    lm_chart_draw(&curves, "a < b", "loss", &picture);
    lm_curves_free(&curves);
    s = lm_metrics_open(path, 5, &m);
    if (!s) {
      s = lm_metrics_add(m, 6, &(lm_metric){"loss", 1.5}, 1);
      lm_metrics_close(m);
    }
  }
  LM_ASSERT(!s);
  lm_buf_free(&picture);
}

static void events_read(const char *path) {
  lm_events *e;
  lm_status s = lm_events_open(path, 5, &e);
  if (!s) {
    s = lm_events_add(e, 6, 1e9, &(lm_metric){"loss", 1.5}, 1);
    lm_events_close(e);
  }
  LM_ASSERT(!s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n)
    return 0;
  if (data[0] % 3 == 0)
    json_read((const char *)data + 1, n - 1);
  else if (data[0] % 3 == 1)
    metrics_read(fuzz_file("jsonl", data + 1, n - 1));
  else
    events_read(fuzz_file("events", data + 1, n - 1));
  return 0;
}
