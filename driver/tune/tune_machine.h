// tune_machine.h - whether a session is tuned, for how long, and the machine that is measured.
#ifndef LM_DRIVER_TUNE_MACHINE_H
#define LM_DRIVER_TUNE_MACHINE_H
#include "driver/session.h"
#include "runtime/cpu/detect.h"

bool lm_tune_is_requested(const lm_session *s); // the recipe asks for max-autotune
double lm_tune_budget(const lm_session *s);     // remaining seconds
// "MODEL ISA MARCH" of the processor.
const char *lm_tune_processor(lm_arena *a, const lm_cpu_info *cpu);
// The machine whose times are kept: a part of cache keys.
const char *lm_tune_machine(const lm_session *s);
#endif
