// attend_strides.c - where the operands of attention are in memory: dense, or the views of a larger
// tensor, such as queries, keys and values that are columns of one GEMM's result.
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"

const int64_t **cuda_attend_strides(const lm_module *m, const lm_op *op, lm_arena *arena) {
  const int64_t **out = LM_NEW_N(arena, const int64_t *, op->n_in + 1);
  for (uint32_t k = 0; k < op->n_in; k++) {
    int64_t *stride = LM_NEW_N(arena, int64_t, LM_RANK);
    int64_t offsets;
    cuda_dense_strides(m, op->in[k]->type, stride);
    if (cuda_attend_reads_strided(op, k))
      lm_plan_strides(m, op->in[k], stride, &offsets);
    out[k] = stride;
  }
  return out;
}

// The axes from..to - 1 are one axis in memory, with elements *unit apart; 0 if there is one
// element.
static bool are_one(const lm_module *m, lm_type t, const int64_t *stride, int from, int to,
                    int64_t *unit) {
  int64_t n = 1;
  *unit = 0;
  for (int i = to - 1; i >= from; i--) {
    int64_t size = lm_axis_size(m, t.axis[i]);
    if (size == 1)
      continue;
    if (*unit && stride[i] != *unit * n)
      return false;
    *unit = *unit ? *unit : stride[i];
    n *= size;
  }
  return true;
}

int64_t cuda_attend_unit(const cuda_attend *e, uint32_t k, int from, int to) {
  int64_t unit;
  are_one(e->f.m, e->f.op->in[k]->type, e->stride[k], from, to, &unit);
  return unit;
}

// The channels are contiguous, positions begin at multiples of 8 elements, and the axes before and
// behind the axis of positions are one axis each, of which each stride is a multiple of the one
// inside it, as a tensor map needs them.
static bool strides_fit(const lm_attend_spec *f, uint32_t k, const lm_attend_axes *channels) {
  int64_t stride[LM_RANK];
  int64_t bits;
  int64_t channel;
  int64_t within;
  int64_t around;
  lm_type t = f->op->in[k]->type;
  int at = lm_type_find(t, lm_type_find(t, f->t) >= 0 ? f->t : f->s);
  int inner = t.rank - channels->n;
  if (!cuda_attend_in_runs(t, channels, 8) || at < 0 || at >= inner)
    return false;
  if (!lm_plan_strides(f->m, f->op->in[k], stride, &bits) || !stride[at])
    return false;
  if (!are_one(f->m, t, stride, inner, t.rank, &channel) ||
      !are_one(f->m, t, stride, at + 1, inner, &within) ||
      !are_one(f->m, t, stride, 0, at, &around))
    return false;
  bits |= stride[at] | within | around;
  return channel == 1 && bits % 8 == 0 && (!within || stride[at] % within == 0) &&
         around % stride[at] == 0;
}

bool cuda_attend_reads_strided(const lm_op *op, uint32_t k) {
  const lm_module *m = lm_op_module(op);
  lm_attend_spec f;
  lm_buf why = {0};
  if (!lm_op_attends(op) || !op->in[k]->def || !(lm_op_info_of(op->in[k]->def)->traits & LM_T_VIEW))
    return false;
  bool fits = lm_attend_spec_make(m, op, &f, &why);
  lm_buf_free(&why);
  if (!fits)
    return false;
  if (k == LM_ATTEND_V)
    return strides_fit(&f, k, &f.v_channels);
  for (int i = 0; i < f.n_dots && k >= lm_attend_rest(op); i++)
    if (f.dots[i].row == k || f.dots[i].col == k)
      return strides_fit(&f, k, &f.dots[i].over);
  return false;
}

void cuda_attend_operands_add(const lm_op *op, cuda_code *c) {
  for (uint32_t i = 0; i < op->n_in; i++)
    cuda_operand_add(c, (lm_dtype)op->in[i]->type.dtype, false,
                     lm_arena_printf(c->arena, "a%u", i));
}
