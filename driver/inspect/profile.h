// profile.h - a timeline as a trace file for chrome://tracing and ui.perfetto.dev.
#ifndef LMC_PROFILE_H
#define LMC_PROFILE_H
#include "runtime/base/timeline.h"
#include "runtime/cpu/roofline.h"
#include "runtime/plan/plan.h"

// A row for each lm_timeline_row; kernels with what they move and compute, and the time below which
// they can't be done.
lm_status lm_profile_write(const lm_plan *plan, const lm_timeline *t, const lm_roofline *r,
                           const char *path);
#endif
