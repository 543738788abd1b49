// draw.cu - kernels of the runtime that draw a token from a row of logits by the rule of
// hal/draw.h. The text follows builtin.cu and draw.h.
//
// Each slice of the row has a block that finds its greatest logit (lm_draw_greatest), then one that
// sorts its candidates into bins (lm_draw_sort). One block (lm_draw_pick) finds the bin in which a
// running sum over all candidates reaches a limit, and in it the candidate, by one byte of the
// candidates' ranks after the other. Sums are of integers and all ranks are different, so that the
// token depends neither on the order of additions nor on the number of slices and threads.
typedef struct lm_draw_row {
  const void *x;
  int32_t n, of_16_bits;
  bool sorted;        // candidates are in order of logits, else of ids alone
  int32_t bits, wide; // of a rank; of the ids of a bin, if candidates are in order of ids
  float top, scale;
} lm_draw_row;

enum {
  LM_DRAW_ID_BITS = 24,
  LM_DRAW_LANE_BINS = LM_DRAW_BINS / 32,
  LM_DRAW_LOADS = 4 // of a thread, in flight
};

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

LM_INLINE lm_draw_row lm_draw_row_of(const void *x, int32_t n, const lm_draw_rule *rule,
                                     uint32_t top) {
  lm_draw_row r = {x, n, rule->of_16_bits, false, LM_DRAW_ID_BITS, 0, 0.0f, rule->scale};
  r.sorted = rule->top_k || rule->top_p < 1;
  r.top = lm_draw_logit_of(top);
  if (r.sorted)
    r.bits += r.of_16_bits ? 16 : 32;
  while ((n - 1) >> r.wide >= LM_DRAW_BINS)
    r.wide++;
  return r;
}

// ---- slices

typedef struct lm_draw_range {
  int32_t from, to;
} lm_draw_range;

LM_INLINE lm_draw_range lm_draw_slice(int32_t n) {
  const int32_t slices = (int32_t)lm_grid(), of_slice = (n + slices - 1) / slices;
  const int32_t from = (int32_t)lm_block() * of_slice;
  const lm_draw_range slice = {from, from + of_slice < n ? from + of_slice : n};
  return slice;
}

// The orders of the next logits of this thread, from `at` on; 0, which is none's, after the last.
LM_INLINE void lm_draw_orders(const lm_draw_row *r, int32_t at, int32_t to, uint32_t *order) {
  LM_UNROLL
  for (int32_t k = 0; k < LM_DRAW_LOADS; k++) {
    const int32_t i = at + k * lm_threads();
    order[k] = i < to ? lm_draw_order(r, i) : 0u;
  }
}
LM_INLINE int32_t lm_draw_step() {
  return LM_DRAW_LOADS * lm_threads();
}

LM_KERNEL(1024)
lm_draw_greatest(const void *x, lm_draw_work *work, int32_t n, lm_draw_rule rule) {
  LM_SHARED(double, partials, 32);
  const lm_draw_row r = lm_draw_row_of(x, n, &rule, 0);
  const lm_draw_range slice = lm_draw_slice(n);
  lm_draw_top own = {0, n};
  for (int32_t at = slice.from + lm_thread(); at < slice.to; at += lm_draw_step()) {
    uint32_t order[LM_DRAW_LOADS];
    lm_draw_orders(&r, at, slice.to, order);
    LM_UNROLL
    for (int32_t k = 0; k < LM_DRAW_LOADS; k++) {
      own.id = order[k] > own.order ? at + k * lm_threads() : own.id;
      own.order = order[k] > own.order ? order[k] : own.order;
    }
  }
  lm_draw_top all;
  all.order = (uint32_t)lm_block_max_f64((double)own.order, partials);
  all.id = -lm_block_max_int(own.order == all.order ? -own.id : -n, partials);
  if (lm_thread() == 0)
    lm_word_put(lm_draw_top, work->top, lm_block(), all);
}

// That of the row, for all threads of a warp.
LM_INLINE lm_draw_top lm_draw_top_of(const lm_draw_work *work, int32_t n) {
  lm_draw_top own = {0, n}, all;
  if (lm_thread() % 32 < lm_draw_slices(n))
    lm_word_get(lm_draw_top, own, work->top, lm_thread() % 32);
  all.order = (uint32_t)lm_team_max_f64((double)own.order, ~0u, 32);
  all.id = -lm_team_max_int(own.order == all.order ? -own.id : -n, ~0u, 32);
  return all;
}

// ---- bins: the number of their candidates, and the sum of the weights in two words

LM_INLINE void lm_draw_bins_clear(uint32_t *bins) {
  for (int32_t i = lm_thread(); i < 3 * LM_DRAW_BINS; i += lm_threads())
    lm_put(bins, i, 0u);
  lm_barrier();
}

LM_INLINE void lm_draw_bins_add(uint32_t *bins, int32_t bin, uint32_t count, uint64_t weight) {
  const uint32_t low = (uint32_t)weight;
  const uint32_t before = lm_shared_add(bins, LM_DRAW_BINS + bin, low);
  const uint32_t high = (uint32_t)(weight >> 32) + (before + low < before);
  lm_shared_add(bins, bin, count);
  if (high)
    lm_shared_add(bins, 2 * LM_DRAW_BINS + bin, high);
}

typedef struct lm_draw_sum {
  uint32_t count;
  uint64_t weight;
} lm_draw_sum;

LM_INLINE lm_draw_sum lm_draw_bins_get(const uint32_t *bins, int32_t bin) {
  const uint64_t low = lm_get(bins, LM_DRAW_BINS + bin);
  const uint64_t high = lm_get(bins, 2 * LM_DRAW_BINS + bin);
  const lm_draw_sum sum = {lm_get(bins, bin), high << 32 | low};
  return sum;
}
LM_INLINE lm_draw_sum lm_draw_plus(lm_draw_sum a, lm_draw_sum b) {
  a.count += b.count;
  a.weight += b.weight;
  return a;
}

// The bins of a lane of a warp that has all of them.
LM_INLINE lm_draw_sum lm_draw_lane_sum(const uint32_t *bins) {
  lm_draw_sum sum = {0, 0};
  LM_UNROLL
  for (int32_t k = 0; k < LM_DRAW_LANE_BINS; k++)
    sum = lm_draw_plus(sum, lm_draw_bins_get(bins, lm_thread() % 32 * LM_DRAW_LANE_BINS + k));
  return sum;
}

LM_INLINE lm_draw_sum lm_draw_shuffle(lm_draw_sum a, int32_t other) {
  const uint32_t low = (uint32_t)lm_shuffle_xor_int(~0u, (int32_t)(uint32_t)a.weight, other);
  const uint32_t high = (uint32_t)lm_shuffle_xor_int(~0u, (int32_t)(a.weight >> 32), other);
  a.count = (uint32_t)lm_shuffle_xor_int(~0u, (int32_t)a.count, other);
  a.weight = (uint64_t)high << 32 | low;
  return a;
}

// The sum over the lanes before this one of a warp.
LM_INLINE lm_draw_sum lm_draw_lanes_before(lm_draw_sum own) {
  lm_draw_sum before = {0, 0};
  LM_UNROLL
  for (int32_t other = 1; other < 32; other *= 2) {
    const lm_draw_sum theirs = lm_draw_shuffle(own, other);
    if (lm_thread() & other)
      before = lm_draw_plus(before, theirs);
    own = lm_draw_plus(own, theirs);
  }
  return before;
}

// ---- candidates

// LM_DRAW_BINS for those without a bin, whose weight is 0, and so are the weights of all after them
// in order of logits; and for order 0.
LM_INLINE int32_t lm_draw_bin_of(const lm_draw_row *r, int32_t i, uint32_t order) {
  if (!order)
    return LM_DRAW_BINS;
  if (!r->sorted)
    return i >> r->wide;
  const float y = (r->top - lm_draw_logit_of(order)) * r->scale;
  return y < 32.0f ? (int32_t)(y * (LM_DRAW_BINS / 32)) : LM_DRAW_BINS;
}

// Candidates are in order of their ranks.
LM_INLINE uint64_t lm_draw_rank(const lm_draw_row *r, int32_t i, uint32_t order) {
  const uint64_t down = r->of_16_bits ? ~order >> 16 : ~order;
  return (r->sorted ? down << LM_DRAW_ID_BITS : 0) | (uint64_t)i;
}

LM_INLINE uint64_t lm_draw_weight_of(const lm_draw_row *r, uint32_t order) {
  return lm_draw_weight(r->top - lm_draw_logit_of(order), r->scale);
}

// By one warp: where the ids of each bin begin, for this block and for lm_draw_pick.
LM_INLINE void lm_draw_bins_store(const uint32_t *bins, int32_t from, uint32_t *next,
                                  lm_draw_bin *out) {
  uint32_t first = (uint32_t)from + lm_draw_lanes_before(lm_draw_lane_sum(bins)).count;
  LM_UNROLL_1
  for (int32_t k = 0; k < LM_DRAW_LANE_BINS; k++) {
    const int32_t bin = lm_thread() % 32 * LM_DRAW_LANE_BINS + k;
    const lm_draw_sum sum = lm_draw_bins_get(bins, bin);
    const lm_draw_bin stored = {sum.weight, sum.count, first};
    lm_put(next, bin, first);
    lm_word_put(lm_draw_bin, out, bin, stored);
    first += sum.count;
  }
}

LM_KERNEL(1024)
lm_draw_sort(const void *x, lm_draw_work *work, int32_t *ids, int32_t n, lm_draw_rule rule) {
  LM_SHARED(uint32_t, bins, 3 * LM_DRAW_BINS);
  LM_SHARED(uint32_t, next, LM_DRAW_BINS);
  const lm_draw_row r = lm_draw_row_of(x, n, &rule, lm_draw_top_of(work, n).order);
  const lm_draw_range slice = lm_draw_slice(n);
  lm_draw_bins_clear(bins);
  for (int32_t at = slice.from + lm_thread(); at < slice.to; at += lm_draw_step()) {
    uint32_t order[LM_DRAW_LOADS];
    lm_draw_orders(&r, at, slice.to, order);
    LM_UNROLL
    for (int32_t k = 0; k < LM_DRAW_LOADS; k++) {
      const int32_t bin = lm_draw_bin_of(&r, at + k * lm_threads(), order[k]);
      if (bin < LM_DRAW_BINS)
        lm_draw_bins_add(bins, bin, 1, lm_draw_weight_of(&r, order[k]));
    }
  }
  lm_barrier();
  if (lm_thread() < 32)
    lm_draw_bins_store(bins, slice.from, next, work->bin[lm_block()]);
  lm_barrier();
  for (int32_t at = slice.from + lm_thread(); at < slice.to; at += lm_draw_step()) {
    uint32_t order[LM_DRAW_LOADS];
    lm_draw_orders(&r, at, slice.to, order);
    LM_UNROLL
    for (int32_t k = 0; k < LM_DRAW_LOADS; k++) {
      const int32_t i = at + k * lm_threads(), bin = lm_draw_bin_of(&r, i, order[k]);
      if (bin < LM_DRAW_BINS)
        lm_word_put(int32_t, ids, lm_shared_add(next, bin, 1u), i);
    }
  }
}

// ---- searches

// What a search sums: 1 for each candidate, or its weight.
LM_INLINE uint64_t lm_draw_amount(lm_draw_sum sum, bool count) {
  return count ? sum.count : sum.weight;
}

// The bin in which a running sum reaches a limit, and the sums before it and in it. If the sum over
// all bins is below the limit, all of them are before.
typedef struct lm_draw_found {
  int32_t bin;
  lm_draw_sum before, in;
} lm_draw_found;

enum {
  LM_DRAW_FOUND = 5
};

LM_INLINE void lm_draw_found_put(uint64_t *found, int32_t bin, lm_draw_sum before, lm_draw_sum in) {
  lm_put(found, 0, (uint64_t)bin);
  lm_put(found, 1, (uint64_t)before.count);
  lm_put(found, 2, before.weight);
  lm_put(found, 3, (uint64_t)in.count);
  lm_put(found, 4, in.weight);
}

// By one warp. The lane whose bins reach the limit takes those before it.
LM_INLINE void lm_draw_bins_search(const uint32_t *bins, uint64_t limit, bool count,
                                   uint64_t *found) {
  const lm_draw_sum own = lm_draw_lane_sum(bins), nothing = {0, 0};
  int32_t bin = lm_thread() % 32 * LM_DRAW_LANE_BINS;
  lm_draw_sum before = lm_draw_lanes_before(own), to = lm_draw_plus(before, own);
  if (lm_thread() % 32 == 31 && lm_draw_amount(to, count) < limit)
    lm_draw_found_put(found, LM_DRAW_BINS, to, nothing);
  if (lm_draw_amount(before, count) >= limit || lm_draw_amount(to, count) < limit)
    return;
  to = before;
  LM_UNROLL
  for (int32_t k = 0; k < LM_DRAW_LANE_BINS - 1; k++) {
    to = lm_draw_plus(to, lm_draw_bins_get(bins, lm_thread() % 32 * LM_DRAW_LANE_BINS + k));
    const bool passed = lm_draw_amount(to, count) < limit;
    before = passed ? to : before;
    bin += passed;
  }
  lm_draw_found_put(found, bin, before, lm_draw_bins_get(bins, bin));
}

// After the additions to the bins, for all threads.
LM_INLINE lm_draw_found lm_draw_bins_find(const uint32_t *bins, uint64_t limit, bool count,
                                          uint64_t *found) {
  lm_barrier();
  if (lm_thread() < 32)
    lm_draw_bins_search(bins, limit, count, found);
  lm_barrier();
  const lm_draw_found out = {(int32_t)lm_get(found, 0),
                             {(uint32_t)lm_get(found, 1), lm_get(found, 2)},
                             {(uint32_t)lm_get(found, 3), lm_get(found, 4)}};
  return out;
}

// A search by a block. In shared memory: all candidates by bins, those of one bin by a byte of
// their ranks, and the result. A thread has every step-th candidate from `at` on of a slice.
typedef struct lm_draw_search {
  lm_draw_row r;
  const lm_draw_work *work;
  const int32_t *ids;
  uint32_t *all, *some;
  uint64_t *found;
  int32_t slice, at, step;
} lm_draw_search;

LM_INLINE void lm_draw_all_load(const lm_draw_search *s) {
  const int32_t bin = lm_thread() % LM_DRAW_BINS, at_a_time = lm_threads() / LM_DRAW_BINS;
  lm_draw_sum sum = {0, 0};
  LM_UNROLL_8
  for (int32_t i = lm_thread() / LM_DRAW_BINS; i < lm_draw_slices(s->r.n); i += at_a_time) {
    lm_draw_bin b;
    lm_word_get(lm_draw_bin, b, s->work->bin[i], bin);
    sum.count += b.count;
    sum.weight += b.weight;
  }
  lm_draw_bins_clear(s->all);
  lm_draw_bins_add(s->all, bin, sum.count, sum.weight);
}

// Candidates of one bin whose ranks begin with the same bits: rank >> shift = high. The last of
// them reaches the limit, with the sum of weights of all candidates up to it.
typedef struct lm_draw_end {
  int32_t bin, shift;
  uint64_t high, sum;
} lm_draw_end;

LM_INLINE void lm_draw_some_load(const lm_draw_search *s, const lm_draw_end *end) {
  lm_draw_bin b;
  lm_word_get(lm_draw_bin, b, s->work->bin[s->slice], end->bin);
  lm_draw_bins_clear(s->some);
  LM_UNROLL_1
  for (uint32_t at = (uint32_t)s->at; at < b.count; at += (uint32_t)s->step) {
    int32_t i;
    lm_word_get(int32_t, i, s->ids, b.first + at);
    const uint32_t order = lm_draw_order(&s->r, i);
    const uint64_t rank = lm_draw_rank(&s->r, i, order);
    if (rank >> end->shift == end->high)
      lm_draw_bins_add(s->some, (int32_t)(rank >> (end->shift - 8) & 255), 1,
                       lm_draw_weight_of(&s->r, order));
  }
}

LM_INLINE lm_draw_end lm_draw_find(const lm_draw_search *s, uint64_t limit, bool count) {
  lm_draw_found f = lm_draw_bins_find(s->all, limit, count, s->found);
  lm_draw_end end = {f.bin, s->r.bits, 0, f.before.weight};
  LM_UNROLL_1
  while (f.in.count > 1 && end.shift > 0) {
    limit -= lm_draw_amount(f.before, count);
    lm_draw_some_load(s, &end);
    f = lm_draw_bins_find(s->some, limit, count, s->found);
    end.shift -= 8;
    end.high = end.high << 8 | (uint64_t)f.bin;
    end.sum += f.before.weight;
  }
  end.sum += f.in.weight;
  return end;
}

// What the kernel does one after another: the first k candidates, the share p of their weights, and
// the share that the random number is of those. Without top_k the first sum reaches no limit.
enum {
  LM_DRAW_TOP_K,
  LM_DRAW_TOP_P,
  LM_DRAW_UNIT,
  LM_DRAW_STAGES
};

LM_INLINE uint64_t lm_draw_limit_of(const lm_draw_rule *rule, int32_t stage, uint64_t sum) {
  if (stage == LM_DRAW_TOP_K)
    return rule->top_k ? (uint64_t)rule->top_k : LM_DRAW_MAX + 1;
  return stage == LM_DRAW_TOP_P ? lm_draw_limit(rule->top_p, sum) : lm_draw_mark(rule->unit, sum);
}

LM_INLINE void lm_draw_candidate(const lm_draw_search *s, const lm_draw_rule *rule, int32_t *out) {
  lm_draw_end end = {0, 0, 0, 0};
  lm_draw_bin b;
  lm_draw_all_load(s);
  LM_UNROLL_1
  for (int32_t stage = 0; stage < LM_DRAW_STAGES; stage++) {
    if (stage == LM_DRAW_TOP_P && rule->top_p >= 1)
      continue;
    const uint64_t limit = lm_draw_limit_of(rule, stage, end.sum);
    end = lm_draw_find(s, limit, stage == LM_DRAW_TOP_K);
  }
  lm_word_get(lm_draw_bin, b, s->work->bin[s->slice], end.bin);
  LM_UNROLL_1
  for (uint32_t at = (uint32_t)s->at; at < b.count; at += (uint32_t)s->step) {
    int32_t i;
    lm_word_get(int32_t, i, s->ids, b.first + at);
    if (lm_draw_rank(&s->r, i, lm_draw_order(&s->r, i)) >> end.shift == end.high)
      lm_word_put(int32_t, out, 0, i);
  }
}

// One block; the number of its threads is a multiple of LM_DRAW_BINS.
LM_KERNEL(512)
lm_draw_pick(const void *x, lm_draw_work *work, const int32_t *ids, int32_t n, lm_draw_rule rule) {
  LM_SHARED(uint32_t, all, 3 * LM_DRAW_BINS);
  LM_SHARED(uint32_t, some, 3 * LM_DRAW_BINS);
  LM_SHARED(uint64_t, found, LM_DRAW_FOUND);
  const int32_t step = lm_threads() / lm_draw_slices(n);
  const lm_draw_top top = lm_draw_top_of(work, n);
  const lm_draw_search s = {lm_draw_row_of(x, n, &rule, top.order),
                            work,
                            ids,
                            all,
                            some,
                            found,
                            lm_thread() / step,
                            lm_thread() % step,
                            step};
  const int32_t known = top.order == ~0u ? -1 : top.id;
  if (rule.scale > 0 && s.r.top - s.r.top == 0)
    lm_draw_candidate(&s, &rule, &work->token);
  else if (lm_thread() == 0)
    lm_word_put(int32_t, &work->token, 0, known);
}
