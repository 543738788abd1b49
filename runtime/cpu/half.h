// half.h - rows of f16, converted by the instructions of the processor where it has them. The bits
// are those of contract/floats.h.
#ifndef LM_CPU_HALF_H
#define LM_CPU_HALF_H
#include <stdint.h>

// Element i of n is from[i * stride].
void lm_f16_widen(const uint16_t *from, int64_t stride, int64_t n, float *to);
// Element i of n becomes to[i * stride].
void lm_f16_narrow(const float *from, int64_t n, int64_t stride, uint16_t *to);
#endif
