// scan.c - a scan as the loop of a thread over the positions of its point.
//
//   float carry0 = in0[point], next0;
//   LM_UNROLL_8
//   for (int64_t step = 0; step < 2048; step++) {
//     … one position: reads carry0 and slices, writes next0 and stacked results …
//     carry0 = next0;
//   }
//   out0[point] = carry0;
//
// So a position does not wait for a carry in memory, and the loads of eight positions are in flight
// at a time; of a small region those of 16 or 32, which are loaded before the first of them is
// computed. A constant that a carry starts with is part of the text, and a last carry that nothing
// uses is not written: neither has memory. If a point has several elements of a carry, as where the
// body sums over an axis, its carries are in memory.
#include "codegen/common/scan.h"

#include <string.h>

#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"

static const char *carry_offset(cuda_emit *e, uint32_t i) {
  lm_type t = e->scan->in[i]->type;
  lm_ix ix[LM_RANK];
  lm_gen_loop_indices(&e->g, t, ix);
  return lm_gen_dense_offset(&e->g, t, ix, t);
}

static bool is_used(const lm_value *v) {
  uint32_t *uses = lm_func_uses(v->def->parent->func);
  bool used = uses[v->id] > 0;
  lm_free(uses);
  return used;
}

static bool is_const(const lm_value *v) {
  return v->def && v->def->code == LM_OP_CONST;
}

bool cuda_scan_omits(const lm_op *op, uint32_t buffer) {
  bool result = buffer >= op->n_in;
  uint32_t i = result ? buffer - op->n_in : buffer;
  if (op->code != LM_OP_SCAN || i >= lm_scan_carries(op) ||
      !(lm_gen_scan_is_pointwise(op) || lm_op_chains(op)))
    return false;
  return result ? !is_used(op->out[i]) : is_const(op->in[i]);
}

// Slices and operands that are the same at each position are only read, so they are restrict;
// carries alternate with the results and the workspace.
void cuda_scan_params(const lm_op *s, cuda_code *c) {
  for (uint32_t i = 0; i < s->n_in; i++)
    if (!cuda_scan_omits(s, i))
      cuda_operand_add(c, (lm_dtype)s->in[i]->type.dtype, i < lm_scan_carries(s),
                       lm_gen_scan_operand(c->arena, s, i));
  for (uint32_t i = 0; i < s->n_out; i++)
    if (!cuda_scan_omits(s, s->n_in + i))
      cuda_result_add(c, (lm_dtype)s->out[i]->type.dtype, lm_arena_printf(c->arena, "out%u", i));
}

// What carry i starts with, as memory has it: a half as its bits.
static const char *carry_start(cuda_emit *e, uint32_t i) {
  const lm_value *start = e->scan->in[i];
  lm_dtype t = (lm_dtype)start->type.dtype;
  if (!cuda_scan_omits(e->scan, i))
    return lm_arena_printf(e->g.arena, "in%u[%s]", i, carry_offset(e, i));
  if (lm_dtype_is_half(t))
    return lm_arena_printf(e->g.arena, "%llu",
                           (unsigned long long)lm_dtype_bits(t, start->def->attr.num));
  return lm_gen_const_text(e->g.arena, t, start->def->attr.num);
}

// ---- slices of several positions

// Numbers that a thread has from its loads, and operations of a position whose loop is unrolled.
enum {
  AHEAD = 64,
  FEW = 12
};

// The positions whose slices are loaded before the first of them is computed: of a small region, as
// many as a thread has registers for. Stores of one position would otherwise be in front of the
// loads of the next. 0: the loads are in the loop over positions.
static int64_t ahead(const cuda_emit *e) {
  const lm_axis_info *axis = &e->g.m->axes[lm_scan_axis(e->scan)];
  int64_t slices = lm_scan_slices(e->scan), n = CUDA_SCAN_AHEAD;
  int ops = 0;
  for (const lm_op *op = e->scan->body->first; op; op = op->next)
    ops++;
  if (!e->carries_in_registers || axis->dyn || !slices || ops > FEW)
    return 0;
  while (n > CUDA_UNROLLED && (n * slices > AHEAD || axis->size % n))
    n /= 2;
  return n > CUDA_UNROLLED ? n : 0;
}

int64_t cuda_scan_waits(const cuda_emit *e) {
  int64_t positions = lm_axis_size(e->g.m, lm_scan_axis(e->scan));
  int64_t n = ahead(e);
  if (!e->carries_in_registers)
    return positions;
  return positions / (n ? n : CUDA_UNROLLED);
}

static bool is_ahead(const cuda_emit *e, uint32_t i) {
  return ahead(e) && lm_scan_operand_is_slice(e->scan, i);
}

static void position_put(const cuda_emit *e, int64_t n, lm_buf *b) {
  long long last = lm_axis_size(e->g.m, lm_scan_axis(e->scan)) - 1;
  lm_buf_printf(
      b, "LM_UNROLL\nfor (int32_t u = 0; u < %lld; u++) {\nconst int64_t t = ", (long long)n);
  if (lm_scan_is_backward(e->scan))
    lm_buf_printf(b, "%lld - from - u;\n", last);
  else
    lm_buf_puts(b, "from + u;\n");
}

static void slices_load(cuda_emit *e, int64_t n, lm_buf *b) {
  const lm_op *s = e->scan;
  uint32_t first = lm_scan_carries(s), end = first + lm_scan_slices(s);
  for (uint32_t i = first; i < end; i++)
    lm_buf_printf(b, "%s slice%u[%lld];\n", lm_gen_memory_type(s->in[i]->type.dtype), i,
                  (long long)n);
  position_put(e, n, b);
  for (uint32_t i = first; i < end; i++) {
    lm_type t = s->body->args[i]->type;
    lm_ix ix[LM_RANK];
    lm_gen_loop_indices(&e->g, t, ix);
    lm_buf_printf(b, "slice%u[u] = in%u[t * %lld + %s];\n", i, i,
                  (long long)lm_type_elements(e->g.m, t), lm_gen_dense_offset(&e->g, t, ix, t));
  }
  lm_buf_puts(b, "}\n");
}

// The loop over the positions, n at a time.
static void loop_put(cuda_emit *e, int64_t n, lm_buf *b) {
  const lm_op *s = e->scan;
  lm_buf_printf(b, "LM_UNROLL_1\nfor (int64_t from = 0; from < %lld; from += %lld) {\n",
                (long long)lm_axis_size(e->g.m, lm_scan_axis(s)), (long long)n);
  slices_load(e, n, b);
  position_put(e, n, b);
  for (uint32_t i = lm_scan_carries(s); i < s->n_out; i++) {
    lm_type t = s->body->last->in[i]->type;
    lm_buf_printf(b, "%s *r%u = out%u + t * %lld;\n", lm_gen_memory_type(t.dtype), i, i,
                  (long long)lm_type_elements(e->g.m, t));
  }
  lm_buf_add(b, e->g.body.p, e->g.body.n);
  for (uint32_t i = 0; i < lm_scan_carries(s); i++)
    lm_buf_printf(b, "carry%u = next%u;\n", i, i);
  lm_buf_puts(b, "}\n}\n");
}

// ---- the scan

void cuda_scan_put(cuda_emit *e, lm_buf *b) {
  if (!e->carries_in_registers) {
    lm_gen_scan_put_carries(&e->g, e->scan, "w0", b);
    lm_gen_scan_put_loop(&e->g, e->scan, false, &e->g.body, b);
    return;
  }
  uint32_t n = lm_scan_carries(e->scan);
  for (uint32_t i = 0; i < n; i++)
    lm_buf_printf(b, "%s carry%u = %s, next%u;\n", lm_gen_memory_type(e->scan->in[i]->type.dtype),
                  i, carry_start(e, i), i);
  if (ahead(e)) {
    loop_put(e, ahead(e), b);
  } else {
    lm_buf_printf(b, "LM_UNROLL_%d\n", CUDA_UNROLLED);
    lm_gen_scan_put_loop(&e->g, e->scan, true, &e->g.body, b);
  }
  for (uint32_t i = 0; i < n; i++)
    if (!cuda_scan_omits(e->scan, e->scan->n_in + i))
      lm_buf_printf(b, "out%u[%s] = carry%u;\n", i, carry_offset(e, i), i);
}

bool cuda_carry_is(const cuda_emit *e, uint32_t i) {
  return e->carries_in_registers && i < lm_scan_carries(e->scan);
}

bool cuda_carry_load(cuda_emit *e, const char *base, lm_type t, const lm_ix *at, lm_gen_text *out) {
  uint32_t i = 0;
  if (!e->carries_in_registers)
    return false;
  while (i < e->scan->n_in && strcmp(base, lm_arena_printf(e->g.arena, "a%u", i)) != 0)
    i++;
  bool slice = is_ahead(e, i);
  if (!slice && !cuda_carry_is(e, i))
    return false;
  const char *name = lm_arena_printf(e->g.arena, slice ? "slice%u[u]" : "carry%u", i);
  if (slice)
    cuda_count_sectors(e, (lm_dtype)t.dtype, at, lm_ix_level(&e->g.vars, at), false);
  *out = lm_gen_temp(&e->g, t.dtype, lm_ix_level(&e->g.vars, at),
                     lm_gen_load_text(e->g.arena, t.dtype, name), NULL, t);
  return true;
}
