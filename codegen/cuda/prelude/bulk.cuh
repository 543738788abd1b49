// bulk.cuh - sm_90a: phases of mbarriers, and the copy engine, which brings boxes of a tensor and counts their bytes into a phase.

LM_INLINE void lm_phase_make(uint64_t *b, int32_t i, int32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(lm_shared_address(b + i)), "r"(count) : "memory");
}
LM_INLINE void lm_phase_arrive(uint64_t *b, int32_t i) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(lm_shared_address(b + i)) : "memory");
}
// Until the phase of that parity is over; before the first, those of parity 1 are.
LM_INLINE void lm_phase_wait(uint64_t *b, int32_t i, uint32_t parity) {
  uint32_t over;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(lm_shared_address(b + i)), "r"(parity)
                 : "memory");
  } while (!over);
}
// The phase also waits for so many bytes of boxes: to be called before they are asked for, and before this thread arrives.
LM_INLINE void lm_phase_expect(uint64_t *b, int32_t i, int32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(lm_shared_address(b + i)), "r"(bytes) : "memory");
}
// What this thread wrote to shared memory, the tensor cores and the copy engine will see.
LM_INLINE void lm_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// As the driver makes it: where a tensor lies, and how large a box is (plan.h).
typedef struct LM_ALIGN(64) lm_map { uint64_t word[16]; } lm_map;

// The box from (k, inner, place, outer) on to tile[at], a multiple of 1024 bytes: lines of 64 elements, swizzled as group.cuh says.
LM_INLINE void lm_box_copy(uint16_t *tile, int32_t at, const lm_map *map, int32_t k, int32_t inner, int32_t place, int32_t outer, uint64_t *b, int32_t i) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                   lm_shared_address(tile + at)),
               "l"(map), "r"(k), "r"(inner), "r"(place), "r"(outer), "r"(lm_shared_address(b + i))
               : "memory");
}
