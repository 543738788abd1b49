// parts.c - results that kernels write at strides, as parts of a concatenation: the gradients of
// queries, keys and values beside each other, which one GEMM reads.
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

bool cuda_part_of(const lm_op *op, uint32_t r, lm_plan_part *out) {
  const lm_value *v = op->out[r];
  return op->parent && v->def == op && lm_plan_part_of(lm_op_module(op), v, out);
}

// The last axis is contiguous, and the elements at its beginning are aligned to 16 bytes.
static bool is_aligned(const lm_module *m, lm_type t, const lm_plan_part *part) {
  int64_t vector = 16 / lm_dtype_bytes((lm_dtype)t.dtype);
  int64_t bits = part->offset;
  for (int i = 0; i + 1 < t.rank; i++)
    bits |= lm_axis_size(m, t.axis[i]) > 1 ? part->stride[i] : 0;
  return t.rank && part->stride[t.rank - 1] == 1 && bits % vector == 0;
}

static bool scatters(const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    if (op->code == LM_OP_SCATTER)
      return true;
  return false;
}

// The channels of result r, which are its last axes; NULL if it has none.
static const lm_attend_axes *channels_of(const lm_attend_spec *f, uint32_t r) {
  if (!f->vjp)
    return r == 0 ? &f->v_channels : NULL;
  for (int i = 0; i < f->n_sums; i++)
    if (f->sums[i].result == r && f->sums[i].other >= 0)
      return &f->sums[i].channels;
  return NULL;
}

static bool are_dense(const lm_module *m, lm_type t, const int64_t *stride, int from, int to) {
  for (int i = from; i + 1 < to; i++)
    if (stride[i] != stride[i + 1] * lm_axis_size(m, t.axis[i + 1]))
      return false;
  return true;
}

// True if result r is not of an epilogue, or if its rows and its heads are as far apart as in a
// dense tensor: an epilogue numbers both along all of their axes.
static bool epilogue_writes(const lm_attend_spec *f, uint32_t r, const lm_plan_part *part) {
  lm_type t = f->op->out[r]->type;
  for (int i = 0; i < f->n_sums; i++) {
    const lm_attend_sum *s = &f->sums[i];
    if (s->result != r || !s->epilogue)
      continue;
    int at = lm_type_find(t, f->t);
    int rows = 1 + (at < 0 ? lm_type_find(t, f->s) : at);
    return are_dense(f->m, t, part->stride, 0, rows) &&
           are_dense(f->m, t, part->stride, rows, t.rank - s->channels.n);
  }
  return true;
}

static bool attend_writes(const lm_op *op, uint32_t r, const lm_plan_part *part) {
  lm_attend_spec f;
  lm_buf why = {0};
  bool ok = lm_attend_spec_make(lm_op_module(op), op, &f, &why);
  const lm_attend_axes *channels = ok ? channels_of(&f, r) : NULL;
  lm_type t = op->out[r]->type;
  lm_buf_free(&why);
  if (!channels || !cuda_attend_in_runs(t, channels, 2) || !epilogue_writes(&f, r, part))
    return false;
  int64_t n = 1;
  for (int i = t.rank - 1; i >= t.rank - channels->n; i--) {
    if (part->stride[i] != n)
      return false;
    n *= lm_axis_size(f.m, t.axis[i]);
  }
  return true;
}

bool cuda_writes_strided(const lm_op *op, uint32_t r) {
  lm_plan_part part;
  if (!cuda_part_of(op, r, &part) || !is_aligned(lm_op_module(op), op->out[r]->type, &part))
    return false;
  if (lm_op_attends(op))
    return attend_writes(op, r, &part);
  return op->code == LM_OP_KERNEL && !lm_kernel_result_summed(op, r) && !scatters(op) &&
         !lm_kernel_dot(op) && !lm_kernel_mix(op);
}

const int64_t **cuda_part_strides(const lm_op *op, lm_arena *arena) {
  const int64_t **out = LM_NEW_N(arena, const int64_t *, op->n_out + 1);
  for (uint32_t r = 0; r < op->n_out; r++) {
    lm_plan_part *part = LM_NEW(arena, lm_plan_part);
    out[r] = cuda_part_of(op, r, part) ? part->stride : NULL;
  }
  return out;
}

int64_t cuda_result_span(const lm_module *m, const lm_op *op, uint32_t r) {
  lm_plan_part part;
  bool is_part = cuda_part_of(op, r, &part);
  return lm_type_elements(m, is_part ? part.concat->out[0]->type : op->out[r]->type);
}
