// profile.h - a timeline as a trace file for chrome://tracing and ui.perfetto.dev.
#ifndef LM_DRIVER_PROFILE_H
#define LM_DRIVER_PROFILE_H
#include "runtime/base/timeline.h"
#include "target/target.h"
#include "runtime/plan/plan.h"

// One row for each lm_timeline_row. Kernels carry their bytes and FLOPs and the minimum time by the
// roofline.
lm_status lm_profile_write(const lm_plan *plan, const lm_timeline *t, const lm_target *machine,
                           lm_dtype dtype, const char *path);
#endif
