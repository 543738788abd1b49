// leaders.cu - a kernel of the runtime: the greatest elements of a row, from which the next token
// is sampled. The text follows builtin.cu.
typedef struct lm_leader_out {
  float value;
  int32_t index;
} lm_leader_out;

LM_INLINE float lm_leader_value(const void *x, int32_t i, int32_t is_bf16) {
  return is_bf16 ? lm_bf16_load(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

// Greater for greater floats. Zeros of both signs are equal.
LM_INLINE uint32_t lm_leader_order(float x) {
  const uint32_t u = lm_bits(x == 0.0f ? 0.0f : x);
  return u >> 31 ? ~u : u | 0x80000000u;
}

// The elements of a block's threads whose order is at least `least`.
LM_INLINE int32_t lm_leaders_count(const void *x, int32_t n, int32_t is_bf16, uint32_t least,
                                   double *partials) {
  int32_t count = 0;
  for (int32_t i = lm_thread(); i < n; i += 256)
    count += lm_leader_order(lm_leader_value(x, i, is_bf16)) >= least;
  return lm_block_sum_int(count, partials);
}

// One block. The order of the k-th greatest element is found bit by bit: it is the greatest number
// that at least k elements reach. The elements above it are then listed by index, and behind them
// as many of those that equal it as are missing. No float has the greatest order.
LM_KERNEL(256)
lm_leaders(const void *x, lm_leader_out *out, int32_t n, int32_t k, int32_t is_bf16) {
  LM_SHARED(double, partials, 32);
  LM_SHARED(int32_t, above, 8);
  LM_SHARED(int32_t, equal, 8);
  const int32_t lane = lm_thread() % 32, warp = lm_thread() / 32;
  const uint32_t before = (1u << lane) - 1u;
  int32_t bad = 0;
  for (int32_t i = lm_thread(); i < n; i += 256) {
    const float v = lm_leader_value(x, i, is_bf16);
    bad += v != v;
  }
  if (lm_block_sum_int(bad, partials)) {
    if (lm_thread() == 0)
      out[0].index = -1;
    return;
  }
  uint32_t least = 0;
  for (int32_t bit = 31; bit >= 0; bit--) {
    const uint32_t next = least | 1u << bit;
    if (lm_leaders_count(x, n, is_bf16, next, partials) >= k)
      least = next;
  }
  const int32_t greater = lm_leaders_count(x, n, is_bf16, least + 1, partials);
  int32_t listed = 0, ties = 0;
  for (int32_t from = 0; from < n; from += 256) {
    const int32_t i = from + lm_thread();
    const float value = i < n ? lm_leader_value(x, i, is_bf16) : 0.0f;
    const uint32_t order = lm_leader_order(value);
    const uint32_t over = lm_ballot(i < n && order > least);
    const uint32_t same = lm_ballot(i < n && order == least);
    if (lane == 0) {
      lm_put(above, warp, lm_bits_count(over));
      lm_put(equal, warp, lm_bits_count(same));
    }
    lm_barrier();
    int32_t at = listed + lm_bits_count(over & before);
    int32_t tie = greater + ties + lm_bits_count(same & before);
    for (int32_t w = 0; w < 8; w++) {
      at += w < warp ? lm_get(above, w) : 0;
      tie += w < warp ? lm_get(equal, w) : 0;
      listed += lm_get(above, w);
      ties += lm_get(equal, w);
    }
    lm_barrier();
    const int32_t to = over >> lane & 1 ? at : same >> lane & 1 ? tie : k;
    if (to < k) {
      out[to].value = value;
      out[to].index = i;
    }
  }
}
