// paired_timing_test.c - a plan replaces another only if it wins every comparison by the margin,
// for either order of the two.
#include "driver/tune/paired_timing.h"
#include "tests/runtime/check.h"

typedef struct plan {
  double ms, drift;
  int calls, *order, me;
} plan; // drift: milliseconds that each call adds

static lm_status call(void *user, double *out_ms) {
  plan *p = user;
  *p->order = *p->order * 2 + p->me;
  *out_ms = p->ms + p->drift * p->calls++;
  return NULL;
}

static double gain_of(plan a, plan b, int *out_order) {
  double gain = -1;
  *out_order = 1;
  a.order = b.order = out_order;
  b.me = 1;
  CHECK_OK(lm_pair_compare(call, &a, &b, &gain));
  return gain;
}

static lm_status broken(void *user, double *out_ms) {
  return lm_fail(LM_ENV, "no memory");
}

int main(void) {
  int order;
  double gain = gain_of((plan){.ms = 12}, (plan){.ms = 10}, &order);
  CHECK(gain > 1.19 && gain < 1.21 && order == 1433); // 1, then 01 10 01 10 01
  CHECK(gain_of((plan){.ms = 10}, (plan){.ms = 10}, &order) == 0 &&
        order == 5); // one comparison is enough to lose
  CHECK(gain_of((plan){.ms = 10.2}, (plan){.ms = 10}, &order) == 0);
  CHECK(gain_of((plan){.ms = 12}, (plan){.ms = 10, .drift = 1}, &order) == 0 &&
        order == 89); // the third is lost
  CHECK_FAILS(lm_pair_compare(broken, NULL, NULL, &gain), LM_ENV, "no memory");
  CHECK(gain == 0);
}
