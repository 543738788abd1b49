// codes.cuh - e4m3 and e5m2 by instructions, which GPUs have from sm_89 on; the codes and numbers
// are those of floats.h. The other element of a pair is 0.
#if __CUDA_ARCH__ >= 890
#define LM_HARDWARE_CODES
#define LM_HARDWARE_CODE(NAME)                                                                     \
  LM_INLINE uint8_t lm_##NAME##_round(float x) {                                                   \
    uint16_t pair;                                                                                 \
    asm("cvt.rn.satfinite." #NAME "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));          \
    return (uint8_t)pair;                                                                          \
  }                                                                                                \
  LM_INLINE float lm_##NAME##_load(uint8_t code) {                                                 \
    uint32_t pair;                                                                                 \
    float x;                                                                                       \
    asm("cvt.rn.f16x2." #NAME "x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)code));                    \
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)pair));                                    \
    return x;                                                                                      \
  }
LM_HARDWARE_CODE(e4m3)
LM_HARDWARE_CODE(e5m2)
#endif
