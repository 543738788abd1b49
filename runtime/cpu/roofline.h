// roofline.h - a lower bound of the time that work takes on this machine, by its measured peak
// FLOP/s and its bandwidth. Bandwidth is measured by working-set size, since caches are faster than
// memory.
#ifndef LM_CPU_ROOFLINE_H
#define LM_CPU_ROOFLINE_H
#include "runtime/base/base.h"
#include "target/target.h"

// Measures for some tenths of a second. threads 0: all cores. dtype: of the operands for the peak.
void lm_cpu_measure(lm_target *t, int threads, lm_dtype dtype);
#endif
