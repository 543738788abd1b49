// draw.h - the rule by which a token is drawn from logits. The GPU's builtin kernels include this
// file too, so that both draw the same token; it must not include others.
//
// A weight is exp((logit - greatest) / temperature) in units of about 2^-32, rounded down to an
// integer. Sums of integers are exact in any order, and the function of one logit is computed in
// integers after one float32 subtraction and one multiplication, which no compiler can contract.
//
// The candidates are in order of decreasing logit, then of ids, if top_k or top_p restricts them,
// else in order of ids alone. The token is the first one at which the sum of weights reaches
// lm_draw_mark.
#ifndef LM_HAL_DRAW_H
#define LM_HAL_DRAW_H

enum {
  LM_DRAW_MAX = 1 << 21 // of candidates whose sum of weights is below 2^53
};

typedef struct lm_draw_rule {
  double top_p;       // the share of the sum of weights at which the candidates end; 1: all
  float scale;        // log2(e) / temperature; 0: the greatest logit, of equal ones the least id
  float unit;         // a random number in (0, 1)
  int32_t top_k;      // the number of candidates; 0: all
  int32_t of_16_bits; // the logits are bf16; 0: f32
} lm_draw_rule;

// 2^(-down scale), down = greatest - logit, within 2^-28 of the greatest weight; 0 for infinity.
static inline uint64_t lm_draw_weight(float down, float scale) {
  // ln(2)^k / k!, in units of 2^-31
  const uint32_t series[11] = {2147483648u, 1488522236u, 515882496u, 119194166u,
                               20654775u,   2863360u,    330788u,    32755u,
                               2838u,       219u,        15u};
  const float y = down * scale;
  if (!(y < 32.0f))
    return 0;
  const uint32_t t = (uint32_t)(y * 0x1p26f);
  const uint64_t up = 0x80000000u - ((t & 0x3ffffffu) << 5); // 1 - the fraction of y
  uint64_t sum = series[10];
  for (int k = 9; k >= 0; k--)
    sum = series[k] + (sum * up >> 31);
  return sum >> (t >> 26);
}

// The least sum of weights that is at least this share of all.
static inline uint64_t lm_draw_limit(double share, uint64_t all) {
  const double limit = share * (double)all;
  const uint64_t whole = (uint64_t)limit;
  return whole + ((double)whole < limit);
}

// The least sum of weights above this share of all.
static inline uint64_t lm_draw_mark(double share, uint64_t all) {
  return (uint64_t)(share * (double)all) + 1;
}
#endif
