// load_test.c - a busy machine is reported by one line, and the least time of each call counts.
#include "driver/inspect/cost_rows.h"
#include "driver/advise/load.h"
#include "tests/runtime/check.h"

static void test_line(void) {
  lm_buf b = {0};
  lm_load l = {.cores = 4, .average = 2};
  CHECK(!lm_load_is_busy(&l));
  lm_load_line(&l, &b);
  CHECK(b.n == 0);
  lm_load_json(&l, &b);
  CHECK(!strcmp(b.p, "\"cores\": 4, \"load\": 2.00, \"busy\": false"));
  lm_buf_free(&b);
  l.average = 2.1;
  CHECK(lm_load_is_busy(&l));
  lm_load_line(&l, &b);
  CHECK(!strcmp(b.p, "busy: load average 2.1 on 4 cores; the least of several timings counts\n"));
  lm_buf_free(&b);
}

// Two calls of one kernel, each of which is disturbed in another step.
static void test_least(void) {
  lm_arena *a = lm_arena_create();
  lm_plan_step step = {.kind = LM_STEP_KERNEL};
  lm_plan_func func = {.steps = &step, .n_steps = 1};
  lm_cost_row row = {.step = &step};
  uint32_t index = 0;
  lm_cost_rows rows = {
      .v = &row, .n = 1, .calls = {{.func = &func}}, .n_calls = 1, .row = {&index}};
  static const double seconds[3][2] = {{9, 2}, {3, 8}, {4, 4}};
  for (int i = 0; i < 3; i++) {
    lm_span spans[3] = {{.what = &step, .end = seconds[i][0]},
                        {.what = NULL, .end = 1},
                        {.what = &step, .start = 10, .end = 10 + seconds[i][1]}};
    lm_cost_rows_measure(a, &rows, &(lm_timeline){.spans = spans, .n_spans = 3});
  }
  CHECK(row.seconds == 5 && rows.seconds == 5);
  lm_arena_destroy(a);
}

int main(void) {
  test_line();
  test_least();
}
