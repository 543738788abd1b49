// random.h - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011).
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

// Uniform in (0, 1), exact in float32: word `element` % 4 of the block with counter (element / 4,
// layer, step) under `key`.
LM_INLINE float lm_uniform(uint32_t key0, uint32_t key1, uint64_t element, int32_t layer,
                           int32_t step) {
  uint32_t c0 = (uint32_t)(element >> 2);
  uint32_t c1 = (uint32_t)(element >> 34);
  uint32_t c2 = (uint32_t)layer;
  uint32_t c3 = (uint32_t)step;
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xd2511f53u * c0;
    uint64_t p1 = (uint64_t)0xcd9e8d57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)p0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  uint32_t w01 = element & 1u ? c1 : c0;
  uint32_t w23 = element & 1u ? c3 : c2;
  uint32_t word = element & 2u ? w23 : w01;
  return ((float)(int32_t)(word >> 9) + 0.5f) * 0x1p-23f;
}
