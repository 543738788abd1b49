// bulk.cuh - sm_90a: phases of mbarriers, and the tensor memory accelerator (TMA), which copies
// boxes of a tensor to shared memory and counts their bytes in a phase.

LM_INLINE void lm_phase_make(uint64_t *b, int32_t i, int32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(lm_shared_address(b + i)), "r"(count)
               : "memory");
}
LM_INLINE void lm_phase_arrive(uint64_t *b, int32_t i) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(lm_shared_address(b + i))
               : "memory");
}
// Waits until the phase of that parity is complete; before the first phase, parity 1 counts as
// complete.
LM_INLINE uint32_t lm_phase_is_over(uint64_t *b, int32_t i, uint32_t parity) {
  uint32_t over;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 "
               "%0, 1, 0, p;\n}"
               : "=r"(over)
               : "r"(lm_shared_address(b + i)), "r"(parity)
               : "memory");
  return over;
}
#ifndef LM_CHECK_WAITS
LM_INLINE void lm_phase_wait(uint64_t *b, int32_t i, uint32_t parity) {
  while (!lm_phase_is_over(b, i, parity))
    ;
}
#else
// For debugging: after many tries, which take seconds, the kernel stops, and the driver prints the
// file, line, kernel, block and thread. NVRTC serializes warpgroup GEMMs around the call.
extern "C" __device__ void __assertfail(const char *message, const char *file, unsigned line,
                                        const char *function, size_t bytes);
#define lm_phase_wait(b, i, parity)                                                                \
  for (uint32_t tries_ = 0; !lm_phase_is_over(b, i, parity);)                                      \
    if (++tries_ == 1u << 22)                                                                      \
  __assertfail("a wait for mbarrier " #b "[" #i "] ends", __FILE__, __LINE__, __func__, 1)
#endif
// Makes the phase wait for `bytes` bytes of boxes as well. Call it before the copies start and
// before this thread arrives.
LM_INLINE void lm_phase_expect(uint64_t *b, int32_t i, int32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(lm_shared_address(b + i)),
      "r"(bytes)
      : "memory");
}
// Makes this thread's writes to shared memory visible to tensor cores and to TMA.
LM_INLINE void lm_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The descriptor of a tensor and of a box, as the driver encodes it (plan.h).
typedef struct LM_ALIGN(64) lm_map {
  uint64_t word[16];
} lm_map;

// Copies the box from (k, inner, position, batch) on to tile[at], a multiple of 1024 bytes: rows of
// 64 elements, swizzled as in group.cuh.
LM_INLINE void lm_box_copy(uint16_t *tile, int32_t at, const lm_map *map, int32_t k, int32_t inner,
                           int32_t position, int32_t batch, uint64_t *b, int32_t i) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(lm_shared_address(tile + at)),
               "l"(map), "r"(k), "r"(inner), "r"(position), "r"(batch),
               "r"(lm_shared_address(b + i))
               : "memory");
}
