// loss_scale_test.c - the rule of PyTorch's GradScaler (backoff 1/2, growth 2 after 2,000 steps in
// a row without an overflow), its limits, and scales in the state of a checkpoint.
#include <math.h>
#include <stdlib.h>

#include "runtime/train/checkpoint_state.h"
#include "tests/runtime/check.h"

static void rule_check(void) {
  lm_loss_scale s = lm_loss_scale_first();
  CHECK(s.scale == 32768 && s.good == 0 && lm_loss_scale_is_valid(&s));
  for (int i = 0; i < 1999; i++)
    lm_loss_scale_move(&s, false);
  CHECK(s.scale == 32768);
  lm_loss_scale_move(&s, true); // begins the count again
  CHECK(s.scale == 16384 && s.good == 0);
  for (int i = 0; i < 1999; i++)
    lm_loss_scale_move(&s, false);
  CHECK(s.scale == 16384 && lm_loss_scale_is_valid(&s));
  lm_loss_scale_move(&s, false);
  CHECK(s.scale == 32768 && s.good == 0);
}

static void limits_check(void) {
  lm_loss_scale s = lm_loss_scale_first();
  for (int i = 0; lm_loss_scale_can_halve(&s); i++) {
    CHECK(i < 100);
    lm_loss_scale_move(&s, true);
  }
  CHECK(s.scale == 0x1p-14 && lm_loss_scale_is_valid(&s));
  for (int i = 0; i < 200 * 2000; i++)
    lm_loss_scale_move(&s, false);
  CHECK(s.scale == 0x1p120 && lm_loss_scale_is_valid(&s));
}

static void validity_check(void) {
  static const lm_loss_scale wrong[] = {{3, 0},       {0, 0},        {-2, 0},
                                        {0x1p-15, 0}, {0x1p121, 0},  {1, -1},
                                        {1, 2000},    {INFINITY, 0}, {(double)NAN, 0}};
  for (size_t i = 0; i < LM_COUNT(wrong); i++)
    CHECK(!lm_loss_scale_is_valid(&wrong[i]));
}

// Writes a state with this scale and reads it.
static lm_status state_read(lm_arena *a, const char *folder, lm_loss_scale s, lm_checkpoint *out) {
  lm_checkpoint c = {.step = 7, .loss_scale = s, .guard = {.overflows = 5}};
  lm_buf text = {0};
  lm_checkpoint_state_print(&text, &c);
  CHECK_OK(lm_file_write_atomic(lm_path_join(a, folder, "state.json"), text.p, text.n));
  lm_buf_free(&text);
  *out = (lm_checkpoint){.loss_scale = {1, 1}};
  return lm_checkpoint_state_read(a, folder, out);
}

static void states_check(lm_arena *a) {
  char folder[] = "/tmp/loss_scale_test.XXXXXX";
  lm_checkpoint c;
  CHECK(mkdtemp(folder));
  CHECK_OK(state_read(a, folder, (lm_loss_scale){1024, 12}, &c));
  CHECK(c.loss_scale.scale == 1024 && c.loss_scale.good == 12 && c.guard.overflows == 5);
  CHECK_OK(state_read(a, folder, (lm_loss_scale){0}, &c));
  CHECK(c.loss_scale.scale == 0);
  CHECK_FAILS(state_read(a, folder, (lm_loss_scale){1000, 0}, &c), LM_USER, "not the state");
  remove(lm_path_join(a, folder, "state.json"));
  remove(folder);
}

int main(void) {
  lm_arena *a = lm_arena_create();
  rule_check();
  limits_check();
  validity_check();
  states_check(a);
  lm_arena_destroy(a);
}
