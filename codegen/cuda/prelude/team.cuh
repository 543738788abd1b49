// team.cuh - reductions over teams of threads: part of a warp, a warp, a block. Every thread gets
// the same bits, which depend only on the values.

// The mask of the n lanes, a power of two, that share a point with this thread.
LM_INLINE uint32_t lm_team_mask(int32_t n) {
  return n == 32 ? ~0u : ((1u << n) - 1u) << (lm_thread() % 32 / n * n);
}

#define LM_ADD(a, b) ((a) + (b))
#define LM_MAX(a, b) ((a) > (b) ? (a) : (b))
// partials: 32 elements, in use from the first barrier to the next reduction's first barrier.
#define LM_TEAM_REDUCE(OP, EXPR, KIND, T)                                                          \
  LM_INLINE T lm_team_##OP##_##KIND(T x, uint32_t mask, int32_t n) {                               \
    LM_UNROLL                                                                                      \
    for (int32_t other = 16; other > 0; other /= 2)                                                \
      if (other < n) {                                                                             \
        T y = lm_shuffle_xor_##KIND(mask, x, other);                                               \
        x = EXPR(x, y);                                                                            \
      }                                                                                            \
    return x;                                                                                      \
  }                                                                                                \
  LM_INLINE T lm_block_##OP##_##KIND(T x, double *partials) {                                      \
    x = lm_team_##OP##_##KIND(x, ~0u, 32);                                                         \
    lm_barrier();                                                                                  \
    if (lm_thread() % 32 == 0)                                                                     \
      lm_put(partials, lm_thread() / 32, (double)x);                                               \
    lm_barrier();                                                                                  \
    T all = (T)lm_get(partials, 0);                                                                \
    for (int32_t w = 1; w < lm_threads() / 32; w++) {                                              \
      T y = (T)lm_get(partials, w);                                                                \
      all = EXPR(all, y);                                                                          \
    }                                                                                              \
    return all;                                                                                    \
  }
LM_TEAM_REDUCE(sum, LM_ADD, f32, float)
LM_TEAM_REDUCE(sum, LM_ADD, f64, double)
LM_TEAM_REDUCE(sum, lm_iadd, int, int32_t)
LM_TEAM_REDUCE(max, LM_MAX, f32, float)
LM_TEAM_REDUCE(max, LM_MAX, f64, double)
LM_TEAM_REDUCE(max, LM_MAX, int, int32_t)
