// attend_match.h - softmax attention as plain operations: the parts of one match.
#ifndef LM_ATTEND_MATCH_H
#define LM_ATTEND_MATCH_H
#include "compiler/passes/rewrite.h"

typedef struct tile_axes {
  lm_axis axis, tiles, inside;
  struct tile_axes *next;
} tile_axes;

// log(sum) + centre equals lse; centre is NULL if nothing was subtracted from the scores.
typedef struct known_lse {
  const lm_value *sum, *centre;
  lm_value *lse;
  struct known_lse *next;
} known_lse;

typedef struct attend_pass {
  lm_module *m;
  lm_func *f;
  int64_t tile;      // side of the tiles of the map
  bool one;          // the target has kernels for one query, without a backward pass
  uint32_t n_values; // size of the two tables below
  uint32_t *uses;    // by value id
  uint8_t *active;   // by value id: depends on a parameter; NULL without differentiation
  tile_axes *tiles;
  known_lse *known;
} attend_pass;

// weights = e / sum(e, s), or with an attention sink e / (sum(e, s) + exp(sink))
typedef struct attend_softmax {
  lm_value *weights, *sum, *sink;
} attend_softmax;

// The parts of one match.
typedef struct attend_match {
  attend_pass *p;
  const lm_op *dot;
  lm_value *v, *weights, *weighted;
  lm_value *scores, *score; // the input of the softmax, with and without its masks
  lm_value *mask;           // optional
  lm_value *visible;        // the mask and the masks that are added to the score; optional
  lm_value *sum, *sink;     // of the softmax
  const lm_value *centre;   // subtracted in e^(scores - centre)
  lm_axis t, s;
  lm_value **leaves; // values that the region reads
  uint32_t n_leaves, cap_leaves;
  lm_op **ops; // operations of the region, in order
  uint32_t n_ops, cap_ops;
  lm_idmap seen;
} attend_match;

// Matches the dot x->dot, whose operand `side` is the weights, and fills x. It may emit the
// conjunction of nested masks at b. False if the dot is not attention, or attention that the pass
// declines.
bool lm_attend_match(attend_match *x, int side, lm_builder *b);

// Follows v, the weights' operand of a dot over s, down to the softmax: through casts,
// multiplications by a factor and select(kept, …, 0). False if there is none.
bool lm_attend_softmax_below(const attend_pass *p, lm_value *v, lm_axis s, attend_softmax *out);
// The operand through which the weights reach an operation between the softmax and the dot.
uint32_t lm_attend_chain_operand(const lm_op *op);
// True if v has axis t and axis s.
bool lm_attend_is_tiled(const attend_match *x, const lm_value *v);
// True if v has an axis that the scores lack, which a cotangent of lse requires.
bool lm_attend_lse_fits(const attend_match *x);
#endif
