// roofline.h - the least time that work can take on this machine: the most FLOP/s, and the most
// bytes a second by size of what is worked on, as caches are faster than memory.
#ifndef LM_CPU_ROOFLINE_H
#define LM_CPU_ROOFLINE_H
#include "runtime/base/base.h"
#include "runtime/base/dtype.h"

enum {
  LM_ROOFLINE_SIZES = 6,
  LM_ROOFLINE_MIN_BYTES = 128 << 10
}; // 128 KiB, each four times the one before: to 128 MiB

typedef struct lm_roofline {
  double peak;                         // FLOP/s
  double bandwidth[LM_ROOFLINE_SIZES]; // bytes/s, read and written
} lm_roofline;

// Measures for some tenths of a second; peak: of operands of a type. 0 threads: all cores.
void lm_cpu_roofline(int threads, lm_dtype dtype, lm_roofline *out);
// Seconds below which it can't be done. *out_memory: since bytes take that long, not arithmetic;
// may be NULL.
double lm_roofline_seconds(const lm_roofline *r, double flops, double bytes, bool *out_memory);
#endif
