// roofline.h - a lower bound of the time that work takes on this machine, by its measured peak
// FLOP/s and its bandwidth. Bandwidth is measured by working-set size, since caches are faster than
// memory.
#ifndef LM_CPU_ROOFLINE_H
#define LM_CPU_ROOFLINE_H
#include "runtime/base/base.h"
#include "runtime/base/dtype.h"

// Working-set sizes: 128 KiB to 128 MiB, by factors of four.
enum {
  LM_ROOFLINE_SIZES = 6,
  LM_ROOFLINE_MIN_BYTES = 128 << 10
};

typedef struct lm_roofline {
  double peak;                         // FLOP/s
  double bandwidth[LM_ROOFLINE_SIZES]; // bytes read and written per second
} lm_roofline;

// Measures for some tenths of a second. threads 0: all cores. dtype: of the operands for the peak.
void lm_cpu_roofline(int threads, lm_dtype dtype, lm_roofline *out);
// A lower bound in seconds. *out_memory (optional): true if bandwidth is the limit.
double lm_roofline_seconds(const lm_roofline *r, double flops, double bytes, bool *out_memory);
#endif
