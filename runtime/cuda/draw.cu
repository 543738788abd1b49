// draw.cu - a kernel of the runtime: draws a token from a row of logits by the rule of hal/draw.h.
// One block, of any number of warps: the sums are exact, so that the token does not depend on it.
// The text follows builtin.cu.
typedef struct lm_draw_row {
  const void *x;
  int32_t n, of_16_bits;
  float top, scale;
} lm_draw_row;

// Greater for greater floats. Zeros of both signs are equal; NaN is above all, at ~0.
LM_INLINE uint32_t lm_draw_order_of(float x) {
  const uint32_t u = lm_bits(x == 0.0f ? 0.0f : x);
  return x != x ? ~0u : u >> 31 ? ~u : u | 0x80000000u;
}
LM_INLINE float lm_draw_logit_of(uint32_t order) {
  return lm_of_bits(order >> 31 ? order & 0x7fffffffu : ~order);
}

LM_INLINE uint32_t lm_draw_order(const lm_draw_row *r, int32_t i) {
  const float x =
      r->of_16_bits ? lm_bf16_load(((const uint16_t *)r->x)[i]) : ((const float *)r->x)[i];
  return lm_draw_order_of(x);
}

// What an element of this order adds to a sum: 1 if elements are counted, else its weight.
LM_INLINE uint64_t lm_draw_amount(const lm_draw_row *r, uint32_t order, bool count) {
  return count ? 1 : lm_draw_weight(r->top - lm_draw_logit_of(order), r->scale);
}

// A double holds a sum below 2^53.
LM_INLINE uint64_t lm_draw_block_sum(uint64_t own, double *partials) {
  return (uint64_t)lm_block_sum_f64((double)own, partials);
}

// The sum over the elements whose order is at least `least`.
LM_INLINE uint64_t lm_draw_sum(const lm_draw_row *r, uint32_t least, bool count, double *partials) {
  uint64_t own = 0;
  for (int32_t i = lm_thread(); i < r->n; i += lm_threads()) {
    const uint32_t order = lm_draw_order(r, i);
    if (order >= least)
      own += lm_draw_amount(r, order, count);
  }
  return lm_draw_block_sum(own, partials);
}

// The order of the last of the shortest prefix of the sorted elements whose sum reaches a limit:
// the greatest number from which on the sum reaches it. It is found two bits at a time, by the sums
// from each of the three numbers that the bits can add.
LM_INLINE uint32_t lm_draw_search(const lm_draw_row *r, uint64_t limit, bool count,
                                  double *partials) {
  uint32_t least = 0;
  LM_UNROLL_1
  for (int32_t shift = 30; shift >= 0; shift -= 2) {
    const uint32_t first = least + (1u << shift);
    const uint32_t second = first + (1u << shift), third = second + (1u << shift);
    uint64_t one = 0, two = 0, three = 0;
    for (int32_t i = lm_thread(); i < r->n; i += lm_threads()) {
      const uint32_t order = lm_draw_order(r, i);
      if (order < first)
        continue;
      const uint64_t amount = lm_draw_amount(r, order, count);
      one += amount;
      two += order >= second ? amount : 0;
      three += order >= third ? amount : 0;
    }
    uint32_t bits = lm_draw_block_sum(one, partials) >= limit;
    bits += lm_draw_block_sum(two, partials) >= limit;
    bits += lm_draw_block_sum(three, partials) >= limit;
    least += bits << shift;
  }
  return least;
}

// Stores the first index at which a running sum reaches `mark`: over the elements of one order,
// each of which counts 1, or, if `order` is 0, of all weights. Each thread sums successive
// elements.
LM_INLINE void lm_draw_walk(const lm_draw_row *r, uint32_t order, uint64_t mark, double *sums,
                            double *partials, int32_t *out) {
  const int32_t of_thread = (r->n + lm_threads() - 1) / lm_threads();
  const int32_t from = lm_thread() * of_thread;
  const int32_t to = from + of_thread < r->n ? from + of_thread : r->n, warp = lm_thread() / 32;
  uint64_t own = 0;
  for (int32_t i = from; i < to; i++) {
    const uint32_t x = lm_draw_order(r, i);
    own += order ? x == order : lm_draw_amount(r, x, false);
  }
  const double of_warp = lm_team_sum_f64((double)own, ~0u, 32);
  lm_barrier();
  lm_put(sums, lm_thread(), (double)own);
  if (lm_thread() % 32 == 0)
    lm_put(partials, warp, of_warp);
  lm_barrier();
  double before = 0;
  for (int32_t w = 0; w < warp; w++)
    before += lm_get(partials, w);
  for (int32_t t = warp * 32; t < lm_thread(); t++)
    before += lm_get(sums, t);
  uint64_t sum = (uint64_t)before;
  if (sum >= mark || sum + own < mark)
    return;
  for (int32_t i = from; sum < mark; i++) {
    const uint32_t x = lm_draw_order(r, i);
    sum += order ? x == order : lm_draw_amount(r, x, false);
    if (sum >= mark)
      *out = i;
  }
}

// What the kernel does one after another: the first k elements, the share p of their weights, and
// the share that the random number is of those.
enum {
  LM_DRAW_TOP_K,
  LM_DRAW_TOP_P,
  LM_DRAW_UNIT,
  LM_DRAW_STAGES
};

// The prefix of the sorted elements that ends at the token: its last order, of which it has `ties`.
typedef struct lm_draw_prefix {
  uint32_t order;
  uint64_t ties;
} lm_draw_prefix;

// Without top_k and top_p elements are not sorted: order 0, and the sum that a walk must reach.
LM_INLINE lm_draw_prefix lm_draw_end(const lm_draw_row *r, const lm_draw_rule *rule,
                                     double *partials) {
  const bool sorted = rule->top_k || rule->top_p < 1;
  lm_draw_prefix end = {0, 0};
  uint64_t sum = lm_draw_sum(r, 0, false, partials);
  LM_UNROLL_1
  for (int32_t stage = 0; stage < LM_DRAW_STAGES; stage++) {
    const bool count = stage == LM_DRAW_TOP_K;
    const uint64_t mark = lm_draw_mark(rule->unit, sum);
    const uint64_t limit = count                    ? (uint64_t)rule->top_k
                           : stage == LM_DRAW_TOP_P ? lm_draw_limit(rule->top_p, sum)
                                                    : mark;
    const bool used = count ? rule->top_k > 0 : stage == LM_DRAW_TOP_P ? rule->top_p < 1 : sorted;
    end.ties = limit;
    if (!used)
      continue;
    end.order = lm_draw_search(r, limit, count, partials);
    const uint64_t each = lm_draw_amount(r, end.order, count);
    const uint64_t above = lm_draw_sum(r, end.order + 1, count, partials);
    end.ties = (limit - above + each - 1) / each;
    sum = count ? lm_draw_sum(r, end.order + 1, false, partials) : above;
    sum += end.ties * lm_draw_amount(r, end.order, false);
  }
  return end;
}

LM_KERNEL(1024) lm_draw(const void *x, int32_t *out, int32_t n, lm_draw_rule rule) {
  LM_SHARED(double, partials, 32);
  LM_SHARED(double, sums, 1024);
  lm_draw_row r = {x, n, rule.of_16_bits, 0, rule.scale};
  uint32_t own = 0;
  for (int32_t i = lm_thread(); i < n; i += lm_threads()) {
    const uint32_t order = lm_draw_order(&r, i);
    own = order > own ? order : own;
  }
  const uint32_t most = (uint32_t)lm_block_max_f64((double)own, partials);
  r.top = lm_draw_logit_of(most);
  if (most == ~0u) {
    if (lm_thread() == 0)
      *out = -1;
    return;
  }
  lm_draw_prefix end = {most, 1};
  if (rule.scale > 0 && r.top - r.top == 0)
    end = lm_draw_end(&r, &rule, partials);
  lm_draw_walk(&r, end.order, end.ties, sums, partials, out);
}
