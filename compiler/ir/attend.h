// attend.h - the operands of attend and attend_vjp by role.
//
//   attend     %v, [%map,] rest…
//   attend_vjp %v, %o, %lse, %do, [%map,] rest…
//
// o and lse are the results of the attend, do is the cotangent of o. The operand %o is only read
// for delta, the sum of do * o over the axes that only v has. It may be delta itself, which has the
// type of lse. The immediates are none; or the tile sizes along t and s, 0 if there is no map; or
// these and 1, if attend rounds its weights to e4m3 (compiler/passes/fp8/fp8_attention.c).
#ifndef LM_IR_ATTEND_H
#define LM_IR_ATTEND_H
#include "compiler/ir/ir.h"

// Operands; O, LSE and DO of attend_vjp only.
enum {
  LM_ATTEND_V,
  LM_ATTEND_O,
  LM_ATTEND_LSE,
  LM_ATTEND_DO
};
// The operands of the region's yield.
enum {
  LM_ATTEND_SCORE,
  LM_ATTEND_MASK,
  LM_ATTEND_FACTOR,
  LM_ATTEND_COTANGENTS
};

static inline uint32_t lm_attend_fixed(const lm_op *op) {
  return op->code == LM_OP_ATTEND ? 1 : 4;
}
static inline bool lm_attend_has_map(const lm_op *op) {
  return op->attr.n_imm >= 2 && op->attr.imm[0];
}
static inline bool lm_attend_rounds(const lm_op *op) {
  return op->attr.n_imm == 3;
}
static inline void lm_attend_round(lm_op *op) {
  op->attr.n_imm = 3;
  op->attr.imm[2] = 1;
}
static inline bool lm_attend_has_delta(const lm_op *vjp) {
  return vjp->in[LM_ATTEND_O]->type.rank < vjp->in[LM_ATTEND_DO]->type.rank;
}
static inline uint32_t lm_attend_map(const lm_op *op) {
  return lm_attend_fixed(op);
}
// The first operand that only the region reads.
static inline uint32_t lm_attend_rest(const lm_op *op) {
  return lm_attend_fixed(op) + lm_attend_has_map(op);
}
static inline lm_value *lm_attend_arg(const lm_op *op, uint32_t operand) {
  return op->body->args[operand + (op->code == LM_OP_ATTEND_VJP)];
}
static inline lm_value *lm_attend_yield(const lm_op *op, uint32_t i) {
  return op->body->last->in[i];
}
static inline lm_axis lm_attend_t(const lm_op *op) {
  return op->attr.axes[0];
}
static inline lm_axis lm_attend_s(const lm_op *op) {
  return op->attr.axes[1];
}
// The axes of the scores, including t and s.
static inline lm_type lm_attend_space(const lm_op *op) {
  return lm_attend_yield(op, LM_ATTEND_SCORE)->type;
}
// Has both t and s, so only tiles of it are computed.
static inline bool lm_attend_tiled(const lm_op *op, lm_type t) {
  return lm_type_find(t, lm_attend_t(op)) >= 0 && lm_type_find(t, lm_attend_s(op)) >= 0;
}
#endif
