// simt.h - device.cuh for a host: each thread of a block is a fiber, and every access to shared
// memory is checked. The functions belong to the host program that runs the kernel; see
// tests/cuda/simt.h.
#define LM_KERNEL(threads) void
#define LM_KERNEL_PAIRED(threads) void
#define LM_RESTRICT
#define LM_READ_ONLY
#define LM_CONSTANT const
#define LM_UNROLL
#define LM_UNROLL_1
#define LM_UNROLL_2
#define LM_UNROLL_4
#define LM_UNROLL_8
#define LM_ALIGN(n) __attribute__((aligned(n)))
#ifndef __bool_true_false_are_defined
#define __bool_true_false_are_defined 1
#define bool _Bool
#define true 1
#define false 0
#endif

extern void *lm_simt_shared(const char *name, int64_t bytes);
extern void *lm_simt_pool(const char *name, int64_t at, int64_t bytes);
extern uint32_t lm_simt_address(const void *p);
extern void *lm_simt_access(const void *base, int64_t offset, int64_t bytes, int write, int line);
extern uint32_t lm_simt_add(uint32_t *base, int64_t i, uint32_t x, int line);
extern int32_t lm_simt_take(uint32_t *taken, int32_t n, int line);
extern void *lm_simt_word(const void *p, int64_t bytes, int write);
extern int32_t lm_simt_thread(void), lm_simt_threads(void);
extern int64_t lm_simt_block(void), lm_simt_grid(void);
extern void lm_simt_grid_begin(void);
extern void lm_simt_barrier(int line);
extern void lm_simt_warp_sync(uint32_t mask, int line);
extern uint64_t lm_simt_exchange(uint32_t mask, uint64_t x, int32_t from, int line);
extern int32_t lm_simt_warp_uniform(int32_t x, int line);
extern uint32_t lm_simt_vote(bool x, int line);

#define LM_SHARED(T, name, n) T *name = (T *)lm_simt_shared(#name, (int64_t)sizeof(T) * (n))
#define LM_POOL_DECLARE() ((void)0)
#define LM_POOL(T, name, at, n) T *name = (T *)lm_simt_pool(#name, at, (int64_t)sizeof(T) * (n))
#define lm_get(a, i)                                                                               \
  (*(__typeof__(&(a)[0]))lm_simt_access((a), (int64_t)(i) * (int64_t)sizeof(a)[0], sizeof(a)[0],   \
                                        0, __LINE__))
#define lm_put(a, i, x)                                                                            \
  do {                                                                                             \
    __typeof__((a)[0]) lm_value = (x);                                                             \
    *(__typeof__(&(a)[0]))lm_simt_access((a), (int64_t)(i) * (int64_t)sizeof(a)[0], sizeof(a)[0],  \
                                         1, __LINE__) = lm_value;                                  \
  } while (0)
#define lm_shared_add(a, i, x) lm_simt_add(a, i, x, __LINE__)
#define LM_QUEUE(name) static uint32_t name
#define lm_word_get(W, to, p, i)                                                                   \
  ((void)__builtin_memcpy(                                                                         \
      &(to), lm_simt_word((const char *)(p) + (i) * (int64_t)sizeof(W), sizeof(W), 0), sizeof(W)))
#define lm_word_put(W, p, i, x)                                                                    \
  ((void)__builtin_memcpy(                                                                         \
      lm_simt_word((const char *)(p) + (i) * (int64_t)sizeof(W), sizeof(W), 1), &(x), sizeof(W)))
#define lm_thread lm_simt_thread
#define lm_threads lm_simt_threads
#define lm_block lm_simt_block
#define lm_grid lm_simt_grid
#define lm_grid_begin() lm_simt_grid_begin()
#define lm_barrier() lm_simt_barrier(__LINE__)
#define lm_warp_sync(mask) lm_simt_warp_sync(mask, __LINE__)
#define lm_ballot(x) lm_simt_vote(x, __LINE__)

LM_INLINE int32_t lm_lane(void) {
  return lm_thread() % 32;
}
#define LM_SHUFFLE(KIND, T)                                                                        \
  LM_INLINE T lm_shuffle_##KIND(uint32_t mask, T x, int32_t from) {                                \
    uint64_t u = 0;                                                                                \
    __builtin_memcpy(&u, &x, sizeof x);                                                            \
    u = lm_simt_exchange(mask, u, from, __LINE__);                                                 \
    __builtin_memcpy(&x, &u, sizeof x);                                                            \
    return x;                                                                                      \
  }                                                                                                \
  LM_INLINE T lm_shuffle_xor_##KIND(uint32_t mask, T x, int32_t other) {                           \
    return lm_shuffle_##KIND(mask, x, lm_lane() ^ other);                                          \
  }
LM_SHUFFLE(f32, float)
LM_SHUFFLE(f64, double)
LM_SHUFFLE(int, int32_t)
#define lm_item_take(taken, n)                                                                     \
  lm_shuffle_int(~0u, lm_lane() ? 0 : lm_simt_take(taken, n, __LINE__), 0)

// Approximations are wrong by the bounds in device.cuh, in a direction that the bits of the operand
// decide: a test that passes does not rely on a better unit.
LM_INLINE float lm_simt_approx(double exact, double bound, float x) {
  double error = (lm_bits(x) * 2654435769u) >> 31 ? bound - 0x1p-24 : 0x1p-24 - bound;
  float y = (float)(exact * (1.0 + error));
  return __builtin_fabsf(y) < 0x1p-126f ? 0.0f : y;
}
LM_INLINE float lm_exp2_approx(float x) {
  return x == 0.0f ? 1.0f : lm_simt_approx(__builtin_exp2((double)x), 0x1p-22, x);
}
LM_INLINE float lm_reciprocal_approx(float x) {
  float operand = __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
  return lm_simt_approx(1.0 / (double)operand, 0x1p-23, x);
}
LM_INLINE float lm_rsqrt_approx(float x) {
  return lm_simt_approx(1.0 / __builtin_sqrt((double)x), 0x1.125fbfp-23, x);
}
LM_INLINE float lm_divide_approx(float x, float y) {
  return lm_simt_approx((double)x / (double)y, 0x1p-22, x);
}
LM_INLINE float lm_fma(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}
LM_INLINE float lm_fma_down(float x, float y, float z) {
  double exact = (double)x * (double)y + (double)z;
  float near = (float)exact;
  return (double)near > exact ? lm_of_bits(lm_bits(near) - 1u) : near; // of positive numbers
}
LM_INLINE float lm_saturate(float x) {
  return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f;
}
LM_INLINE float lm_max_f32(float x, float y) {
  return x > y ? x : y;
}
LM_INLINE int32_t lm_bits_count(uint32_t bits) {
  // by halves: __builtin_popcount is a call of libgcc on processors without an instruction for it
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return (int)(((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
LM_INLINE uint32_t lm_bf16_pair(float low, float high) {
  return lm_bf16_round(low) | (uint32_t)lm_bf16_round(high) << 16;
}
LM_INLINE uint32_t lm_f16_pair(float low, float high) {
  return lm_f16_round(low) | (uint32_t)lm_f16_round(high) << 16;
}

// d += a b and loads of four matrices from shared memory, executed by all lanes of a warp together;
// copies that may complete at any time until they are waited for.
extern void lm_simt_mma_bf16(float *d, const uint32_t *a, const uint32_t *b, int line);
extern void lm_simt_mma_f16(float *d, const uint32_t *a, const uint32_t *b, int line);
extern void lm_simt_matrices(uint32_t *r, const void *tile, int64_t byte, int transposed, int line);
extern void lm_simt_copy(void *tile, int64_t byte, const void *from, int valid, int line);
extern void lm_simt_copies_commit(void);
extern void lm_simt_copies_wait(int left);
extern void lm_simt_mma_tf32(float *d, const uint32_t *a, const uint32_t *b, int line);
#define lm_mma_tf32(d, a, b) lm_simt_mma_tf32(d, a, b, __LINE__)
LM_INLINE uint32_t lm_tf32(float x) {
  return (lm_bits(x) + 0x1000u) & ~0x1fffu;
  // Rounds ties away from zero.
}
#define lm_mma_bf16(d, a, b) lm_simt_mma_bf16(d, a, b, __LINE__)
#define lm_mma_f16(d, a, b) lm_simt_mma_f16(d, a, b, __LINE__)
#define lm_matrices_load(r, tile, at) lm_simt_matrices(r, tile, (int64_t)(at)*2, 0, __LINE__)
#define lm_matrices_load_transposed(r, tile, at)                                                   \
  lm_simt_matrices(r, tile, (int64_t)(at)*2, 1, __LINE__)
#define lm_copy_async(tile, at, from, valid)                                                       \
  lm_simt_copy(tile, (int64_t)(at)*2, from, valid, __LINE__)
#define lm_copies_commit() lm_simt_copies_commit()
#define lm_copies_wait(left) lm_simt_copies_wait(left)

// Phases of mbarriers and boxes (bulk.cuh), and GEMMs of warpgroups (wgmma.cuh).
typedef struct lm_map {
  uint64_t word[16];
} lm_map;
extern void lm_simt_map(void *out, const void *base, const int64_t *size, const int64_t *stride,
                        const int *box);
extern void lm_simt_phase_expect(void *base, int i, int bytes, int line);
extern void lm_simt_box(void *tile, int64_t byte, const void *map, int k, int inner, int position,
                        int batch, void *base, int i, int line);
extern void lm_simt_phase_make(void *base, int i, int count, int line);
extern void lm_simt_phase_arrive(void *base, int i, int line);
extern void lm_simt_phase_wait(void *base, int i, uint32_t parity, int line);
extern void lm_simt_proxy_fence(void);
extern void lm_simt_wgmma(float *d, int n, const uint32_t *a, uint64_t a_at, uint64_t b_at,
                          int transposed, int add, int line); // 1: b, 2: both
extern void lm_simt_wgmma_commit(void);
extern void lm_simt_wgmma_wait(int left, int line);
#define lm_shared_address(p) lm_simt_address(p)
#define lm_phase_make(b, i, count) lm_simt_phase_make(b, i, count, __LINE__)
#define lm_phase_arrive(b, i) lm_simt_phase_arrive(b, i, __LINE__)
#define lm_phase_wait(b, i, parity) lm_simt_phase_wait(b, i, parity, __LINE__)
#define lm_phase_expect(b, i, bytes) lm_simt_phase_expect(b, i, bytes, __LINE__)
#define lm_box_copy(tile, at, map, k, inner, position, batch, b, i)                                \
  lm_simt_box(tile, (int64_t)(at)*2, map, k, inner, position, batch, b, i, __LINE__)
#define lm_proxy_fence() lm_simt_proxy_fence()
extern void lm_simt_pingpong(int i, int count, int wait, int line);
#define lm_pingpong_wait(i) lm_simt_pingpong(i, 256, 1, __LINE__)
#define lm_pingpong_arrive(i) lm_simt_pingpong(i, 256, 0, __LINE__)
#define lm_warp_uniform(x) lm_simt_warp_uniform(x, __LINE__)
#define lm_group_barrier() lm_simt_pingpong(2, 256, 1, __LINE__)
#define lm_roles_barrier() lm_simt_pingpong(3, 288, 1, __LINE__)
#define lm_registers_fewer(n) ((void)0)
#define lm_registers_more(n) ((void)0)
#define lm_wgmma_fence() ((void)0)
#define lm_wgmma_commit() lm_simt_wgmma_commit()
#define lm_wgmma_wait(left) lm_simt_wgmma_wait(left, __LINE__)
#define lm_wgmma_settle(d, n) ((void)0)
#define lm_order_after(x) ((void)(x))
#define lm_loads_again() ((void)0)
#define lm_wgmma_64_shared(d, a, b, add) lm_simt_wgmma(&(d)[0][0], 64, 0, a, b, 0, add, __LINE__)
#define lm_wgmma_128_shared(d, a, b, add) lm_simt_wgmma(&(d)[0][0], 128, 0, a, b, 0, add, __LINE__)
#define lm_wgmma_64_held(d, a, b, add) lm_simt_wgmma(&(d)[0][0], 64, a, 0, b, 0, add, __LINE__)
#define lm_wgmma_128_held(d, a, b, add) lm_simt_wgmma(&(d)[0][0], 128, a, 0, b, 0, add, __LINE__)
#define lm_wgmma_64_held_transposed(d, a, b, add)                                                  \
  lm_simt_wgmma(&(d)[0][0], 64, a, 0, b, 1, add, __LINE__)
#define lm_wgmma_128_held_transposed(d, a, b, add)                                                 \
  lm_simt_wgmma(&(d)[0][0], 128, a, 0, b, 1, add, __LINE__)
#define lm_wgmma_128_both_transposed(d, a, b, add)                                                 \
  lm_simt_wgmma(&(d)[0][0], 128, 0, a, b, 2, add, __LINE__)
#define lm_wgmma_192_both_transposed(d, a, b, add)                                                 \
  lm_simt_wgmma(&(d)[0][0], 192, 0, a, b, 2, add, __LINE__)
#define lm_wgmma_256_shared(d, a, b, add) lm_simt_wgmma(&(d)[0][0], 256, 0, a, b, 0, add, __LINE__)
#define lm_wgmma_256_shared_transposed(d, a, b, add)                                               \
  lm_simt_wgmma(&(d)[0][0], 256, 0, a, b, 1, add, __LINE__)
#define lm_wgmma_256_both_transposed(d, a, b, add)                                                 \
  lm_simt_wgmma(&(d)[0][0], 256, 0, a, b, 2, add, __LINE__)
