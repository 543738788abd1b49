// device.cuh - threads, barriers, shared memory and shuffles of the hardware. simt.h is the same
// for a host.
//
// LM_KERNEL asks for one block for each multiprocessor, LM_KERNEL_PAIRED for two; otherwise the
// compiler spills registers to reach a higher occupancy.
//
// From sm_90 on a kernel may begin before the kernel in front of it has ended (lm_grid_begin).
// The results of that one are then no constants, so in front of such a kernel LM_RESTRICT is
// defined as nothing: the compiler would read operands by ld.global.nc, which is outside of the
// memory model. (It also does if only results are restrict.) For all others it is LM_READ_ONLY.
#define LM_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define LM_KERNEL_PAIRED(threads) extern "C" __global__ void __launch_bounds__(threads, 2)
#define LM_READ_ONLY __restrict__
#define LM_CONSTANT const __grid_constant__
#define LM_UNROLL _Pragma("unroll")
#define LM_UNROLL_1 _Pragma("unroll 1")
#define LM_UNROLL_2 _Pragma("unroll 2")
#define LM_UNROLL_4 _Pragma("unroll 4")
#define LM_UNROLL_8 _Pragma("unroll 8")
#define LM_ALIGN(n) __align__(n)
// The i-th word of type W from p on.
#define lm_word_get(W, to, p, i) ((void)((to) = ((const W *)(p))[i]))
#define lm_word_put(W, p, i, x) ((void)(((W *)(p))[i] = (x)))
#define LM_SHARED(T, name, n) __shared__ __align__(16) T name[n]
// Arrays in one pool whose size the launch gives; `at` is an offset in bytes.
#define LM_POOL_DECLARE() extern __shared__ __align__(1024) uint8_t lm_pool[]
#define LM_POOL(T, name, at, n) T *const name = (T *)(lm_pool + (at))
// In global memory, 0 when the kernel is loaded and at the end of each launch.
#define LM_QUEUE(name) static uint32_t name
#define lm_get(a, i) ((a)[i])
#define lm_put(a, i, x) ((void)((a)[i] = (x)))

LM_INLINE int32_t lm_thread() {
  return (int32_t)threadIdx.x;
}
LM_INLINE int64_t lm_block() {
  return (int64_t)blockIdx.x;
}
LM_INLINE int64_t lm_grid() {
  return (int64_t)gridDim.x;
}
LM_INLINE int32_t lm_threads() {
  return (int32_t)blockDim.x;
}
// The first statement of every kernel, for all its threads: waits until the kernel in front has
// ended, and so all before it; then the next one may begin.
LM_INLINE void lm_grid_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
LM_INLINE void lm_barrier() {
  __syncthreads();
}
// Values that are loaded behind this are not those of an earlier load, in registers.
LM_INLINE void lm_loads_again() {
  asm volatile("" ::: "memory");
}
LM_INLINE void lm_warp_sync(uint32_t mask) {
  __syncwarp(mask);
}

LM_INLINE float lm_shuffle_xor_f32(uint32_t mask, float x, int32_t other) {
  return __shfl_xor_sync(mask, x, other);
}
LM_INLINE double lm_shuffle_xor_f64(uint32_t mask, double x, int32_t other) {
  return __shfl_xor_sync(mask, x, other);
}
LM_INLINE int32_t lm_shuffle_xor_int(uint32_t mask, int32_t x, int32_t other) {
  return __shfl_xor_sync(mask, x, other);
}
LM_INLINE float lm_shuffle_f32(uint32_t mask, float x, int32_t from) {
  return __shfl_sync(mask, x, from);
}
LM_INLINE uint32_t lm_ballot(bool x) {
  return __ballot_sync(~0u, x);
}
// Adds to an element of shared memory, in any order with other threads; returns its value before.
LM_INLINE uint32_t lm_shared_add(uint32_t *a, int32_t i, uint32_t x) {
  return atomicAdd(a + i, x);
}
LM_INLINE int32_t lm_bits_count(uint32_t bits) {
  return __popc(bits);
}
// For a warp: the next of n items that no block has begun, n or more if there is none. Blocks, at
// most n, begin with items 0, 1, 2 and so on, and take others until there is none: n times in all,
// after which the counter has wrapped to 0.
LM_INLINE int32_t lm_item_take(uint32_t *taken, int32_t n) {
  uint32_t i = 0;
  if (lm_thread() % 32 == 0)
    i = atomicInc(taken, (uint32_t)n - 1);
  return (int32_t)__shfl_sync(~0u, i, 0) + (int32_t)gridDim.x;
}

// Two bf16 or f16 in a word, the first in the lower half.
LM_INLINE uint32_t lm_bf16_pair(float low, float high) {
  uint32_t u;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
  return u;
}
LM_INLINE uint32_t lm_f16_pair(float low, float high) {
  uint32_t u;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
  return u;
}

// Approximations, with the bounds of the PTX manual for their relative errors. Results and operands
// below 2^-126 count as 0, except where noted.
LM_INLINE float lm_exp2_approx(float x) { // 2^-22; 2^0 is 1
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LM_INLINE float lm_reciprocal_approx(float x) { // 2^-23
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LM_INLINE float lm_rsqrt_approx(float x) { // 2^-22.9; also for operands below 2^-126
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LM_INLINE float lm_divide_approx(float x, float y) { // 2^-22, for all finite y
  float q;
  asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(x), "f"(y));
  return q;
}
LM_INLINE float lm_fma(float x, float y, float z) {
  return __fmaf_rn(x, y, z);
}
LM_INLINE float lm_fma_down(float x, float y, float z) { // rounded down
  return __fmaf_rd(x, y, z);
}
LM_INLINE float lm_saturate(float x) { // to [0, 1]; 0 for NaN
  return __saturatef(x);
}
LM_INLINE float lm_max_f32(float x, float y) {
  return fmaxf(x, y);
}
