// scan_lift.h - values of a scan's region, for all positions at once and before the scan.
//
//   %h, %y = scan over(t) [1, 1, 0] (%c = %h0, %x.1 = %x) { %e = exp %x.1 … }
// gives, for %e:
//   %e.2 = exp %x : f32[t, b, d]
//
// A lifted value has t in front, then its axes in the region in their order; or these alone if it
// is the same at each position.
#ifndef LM_SCAN_LIFT_H
#define LM_SCAN_LIFT_H
#include "compiler/ir/scan.h"

typedef struct lm_scan_lift {
  lm_op *scan;
  lm_builder b;   // before the scan
  lm_value **map; // by id of the region's values: the lifted value, NULL: none yet
  bool *ready;    // by the same id: it depends on no carry that is not lifted
  uint32_t n;     // values of the module at the beginning
} lm_scan_lift;

void lm_scan_lift_begin(lm_scan_lift *l, lm_op *scan);
void lm_scan_lift_end(lm_scan_lift *l);
// Gives a carry its values before all positions.
void lm_scan_lift_carry(lm_scan_lift *l, uint32_t carry, lm_value *before);
// True if v can be lifted.
static inline bool lm_scan_lift_may(const lm_scan_lift *l, const lm_value *v) {
  return l->ready[v->id];
}
lm_value *lm_scan_lift_of(lm_scan_lift *l, lm_value *v);
// The same, with t in front also if it is the same at each position.
lm_value *lm_scan_lift_stacked(lm_scan_lift *l, lm_value *v);
#endif
