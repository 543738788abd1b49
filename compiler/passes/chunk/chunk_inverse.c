// chunk_inverse.c - the inverse of a chunk's matrix in the delta rule of pass chunk_scan.
//
// (1 - a)^-1, where a is strictly lower triangular, is computed by substitution in blocks of up to
// BLOCK rows on the diagonal. Two neighbouring blocks of inverses p and q make one of twice the
// size, in which a has r below p:
//   | p      0 |
//   | q r p  q |
// Powers of a, whose factors 1 + a^(2^i) also give the inverse, can exceed it by orders of
// magnitude where keys repeat; here no number is larger than in substitution.
#include <string.h>
#include "compiler/ops/widen.h"
#include "compiler/passes/chunk/chunk.h"

enum {
  BLOCK = 16
};

static lm_axis axis_of(const lm_chunked *x, int64_t size) {
  lm_module *m = x->b->m;
  return lm_axis_add(m, m->axes[x->i].name, size, 0);
}

// By substitution, row by row, of all matrices over i, j. The result has i in front.
static lm_value *substituted(lm_chunked *x, lm_value *a, lm_axis i, lm_axis j) {
  lm_builder b = *x->b;
  lm_axis m = axis_of(x, lm_axis_size(b.m, i));
  lm_type row = lm_type_make(LM_INT, &i, 1);
  a = lm_chunk_front(x, lm_chunk_rename(x, a, j, m), &i, 1);
  lm_value *index = lm_emit(&b, LM_OP_IOTA, NULL, 0, NULL, &row);
  lm_type t = lm_type_make(LM_F32, a->type.axis + 1, a->type.rank - 1);
  t.axis[t.rank++] = j;
  lm_value *start = lm_emit_const(&b, t, 0);
  lm_op *scan = lm_scan_begin(&b, i, false, &start, 1);
  a = lm_scan_slice(b.m, scan, a);
  index = lm_scan_slice(b.m, scan, index);
  lm_value *done = scan->body->args[0]; // the rows before i, along m
  lm_value *next = lm_emit_dot(&b, a, done, &m, 1);
  next = lm_emit2(&b, LM_OP_ADD, next, lm_chunk_unit(&b, j, index));
  lm_value *put = lm_chunk_emit2(&b, LM_OP_MUL, next, lm_chunk_unit(&b, m, index));
  lm_value *rows = lm_emit2(&b, LM_OP_ADD, done, lm_widen_to(&b, put, t));
  lm_scan_end(&b, scan, &rows, &next, 1);
  return scan->out[1];
}

// ---- blocks

// The matrices over (p, i), (p, j) on the diagonal of one over `rows`, `cols`.
typedef struct blocks {
  lm_value *m;
  lm_axis p, i, j;
  int64_t size; // of i and j
} blocks;

// n blocks of `size` rows.
static blocks blocks_make(const lm_chunked *x, int64_t n, int64_t size) {
  blocks out = {.size = size};
  out.p = axis_of(x, n);
  out.i = axis_of(x, size);
  out.j = axis_of(x, size);
  return out;
}

static lm_value *element(lm_chunked *x, lm_value *v, lm_axis of, int64_t index) {
  lm_attr a = {
      .axes = {of},
      .n_axes = 1,
      .imm = {index, 1},
      .n_imm = 2,
  };
  return lm_emit(x->b, LM_OP_SLICE, &v, 1, &a, NULL);
}

// The elements of v where the indices along p and q are equal, without q.
static lm_value *diagonal(lm_chunked *x, lm_value *v, lm_axis p, lm_axis q) {
  if (lm_axis_size(x->b->m, p) == 1)
    return element(x, v, q, 0);
  lm_value *at_p = lm_chunk_positions(x, p);
  lm_value *at_q = lm_chunk_positions(x, q);
  lm_value *same = lm_chunk_emit2(x->b, LM_OP_EQ, at_p, at_q);
  same = lm_chunk_where(x, same);
  v = lm_chunk_emit2(x->b, LM_OP_MUL, v, same);
  return lm_emit_reduce(x->b, LM_OP_SUM, v, &q, 1);
}

// a in blocks of `size` on its diagonal.
static blocks blocks_of(lm_chunked *x, lm_value *a, int64_t size) {
  int64_t n = lm_axis_size(x->b->m, x->i) / size;
  lm_axis q = axis_of(x, n);
  blocks out = blocks_make(x, n, size);
  a = lm_emit_split(x->b, a, x->i, out.p, out.i);
  a = lm_emit_split(x->b, a, x->j, q, out.j);
  out.m = diagonal(x, a, out.p, q);
  return out;
}

// The blocks of a below those in front of each pair: over (pair, i, j).
static lm_value *below(lm_chunked *x, lm_value *a, lm_axis pair, const blocks *of) {
  int64_t n = lm_axis_size(x->b->m, pair);
  lm_axis other = axis_of(x, n);
  lm_axis half[2];
  lm_axis both[2];
  for (int k = 0; k < 2; k++) {
    half[k] = axis_of(x, 2);
    both[k] = axis_of(x, 2 * of->size);
  }
  a = lm_emit_split(x->b, a, x->i, pair, both[0]);
  a = lm_emit_split(x->b, a, x->j, other, both[1]);
  a = lm_emit_split(x->b, a, both[0], half[0], of->i);
  a = element(x, a, half[0], 1);
  a = lm_emit_split(x->b, a, both[1], half[1], of->j);
  a = element(x, a, half[1], 0);
  return diagonal(x, a, pair, other);
}

// One behind the other along an axis `to` instead of `from`. v: NULL: zeros.
static lm_value *joined(lm_chunked *x, lm_value *u, lm_value *v, lm_axis from, lm_axis to) {
  lm_attr a = {
      .axes = {from, from},
      .n_axes = v ? 2 : 1,
      .to = {to},
      .n_to = 1,
      .imm = {0, 1},
      .n_imm = v ? 0 : 2,
  };
  if (!v)
    return lm_emit(x->b, LM_OP_PAD, &u, 1, &a, NULL);
  v = lm_widen_to(x->b, v, u->type);
  return lm_emit(x->b, LM_OP_CONCAT, (lm_value *[]){u, v}, 2, &a, NULL);
}

// m, over i and j, times v, over the same.
static lm_value *times(lm_chunked *x, lm_value *m, lm_value *v, const blocks *of) {
  lm_axis k = axis_of(x, of->size);
  m = lm_chunk_rename(x, m, of->j, k);
  v = lm_chunk_rename(x, v, of->i, k);
  return lm_emit_dot(x->b, m, v, &k, 1);
}

// The inverses of blocks of twice the size.
static blocks merged(lm_chunked *x, lm_value *a, const blocks *of) {
  int64_t n = lm_axis_size(x->b->m, of->p) / 2;
  lm_axis half = axis_of(x, 2);
  blocks out = blocks_make(x, n, 2 * of->size);
  lm_value *pairs = lm_emit_split(x->b, of->m, of->p, out.p, half);
  lm_value *p = element(x, pairs, half, 0);
  lm_value *q = element(x, pairs, half, 1);
  lm_value *r = below(x, a, out.p, of);
  r = times(x, q, r, of);
  r = times(x, r, p, of);
  lm_value *top = joined(x, p, NULL, of->j, out.j);
  lm_value *bottom = joined(x, r, q, of->j, out.j);
  out.m = joined(x, top, bottom, of->i, out.i);
  return out;
}

static bool in_blocks(int64_t size) {
  while (size > BLOCK && size % 2 == 0)
    size /= 2;
  return size == BLOCK;
}

static lm_value *inverted(lm_chunked *x, lm_value *a) {
  int64_t size = lm_axis_size(x->b->m, x->i);
  if (size <= BLOCK || !in_blocks(size))
    return substituted(x, a, x->i, x->j);
  blocks all = blocks_of(x, a, BLOCK);
  all.m = substituted(x, all.m, all.i, all.j);
  while (all.size < size)
    all = merged(x, a, &all);
  lm_value *m = element(x, all.m, all.p, 0);
  return lm_chunk_rename(x, lm_chunk_rename(x, m, all.i, x->i), all.j, x->j);
}

lm_value *lm_chunk_inverse(lm_chunked *x, lm_value *a) {
  return lm_emit1(x->b, LM_OP_STOP, lm_chunk_rows_last(x, inverted(x, a)));
}
