// scan.c - builds scans. See scan.h.
#include "compiler/ir/scan.h"
#include <string.h>
#include "compiler/ir/internal.h"
#include "compiler/ops/interface.h"

lm_op *lm_scan_begin(lm_builder *b, lm_axis t, bool backward, lm_value *const *carry,
                     uint32_t n_carry) {
  lm_attr a = {.axes = {t}, .n_axes = 1, .imm = {n_carry, 0, backward}, .n_imm = 3};
  return lm_isolated_begin(b, LM_OP_SCAN, &a, carry, n_carry, NULL);
}

static lm_value *operand_add(lm_module *m, lm_op *scan, lm_value *v, lm_type t) {
  lm_value **in = LM_NEW_N(m->arena, lm_value *, scan->n_in + 1);
  if (scan->n_in)
    memcpy(in, scan->in, scan->n_in * sizeof *in);
  in[scan->n_in++] = v;
  scan->in = in;
  return lm_arg_add(m, scan->body, t, v->name);
}

lm_value *lm_scan_slice(lm_module *m, lm_op *scan, lm_value *v) {
  lm_type t = v->type;
  if (!t.rank || t.axis[0] != lm_scan_axis(scan) ||
      scan->n_in != lm_scan_carries(scan) + lm_scan_slices(scan))
    LM_BUG("a slice of a scan needs its axis in front, and comes before whole operands");
  scan->attr.imm[1]++;
  return operand_add(m, scan, v, lm_type_inner(t, 1));
}

lm_value *lm_scan_whole(lm_module *m, lm_op *scan, lm_value *v) {
  return operand_add(m, scan, v, v->type);
}

// ---- what does not depend on the position moves before the scan

static bool is_inside(const lm_op *scan, const lm_value *v) {
  return v->region == scan->body;
}

static bool is_source(const lm_value *v) {
  return v->def && (v->def->code == LM_OP_CONST || v->def->code == LM_OP_IOTA);
}

static bool is_invariant(const lm_op *scan, const lm_op *op) {
  bool calls = op->code == LM_OP_CALL;
  if (!calls && lm_op_info_of(op)->traits & (LM_T_EFFECT | LM_T_STRUCT))
    return false;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (is_inside(scan, op->in[i]) && !is_source(op->in[i]))
      return false;
  return op->n_in || op->code == LM_OP_PARAM;
}

// Constants stay in the region, and are copied for operations that leave it.
static void hoist(lm_module *m, lm_op *scan) {
  lm_builder b = {m, scan->parent, scan, scan->loc};
  for (lm_op *op = scan->body->first, *next; op; op = next) {
    next = op->next;
    if (!is_invariant(scan, op))
      continue;
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_op *source = op->in[i]->def;
      if (is_inside(scan, op->in[i]))
        op->in[i] = lm_emit(&b, source->code, NULL, 0, &source->attr, &source->out[0]->type);
    }
    lm_op_remove(op);
    lm_op_insert_before(scan, op);
  }
}

static void capture(lm_module *m, lm_op *scan) {
  uint32_t first = scan->n_in;
  for (lm_op *op = scan->body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++) {
      uint32_t k = first;
      if (is_inside(scan, op->in[i]))
        continue;
      while (k < scan->n_in && scan->in[k] != op->in[i])
        k++;
      if (k == scan->n_in)
        lm_scan_whole(m, scan, op->in[i]);
      op->in[i] = scan->body->args[k];
    }
}

// ---- what nothing uses is removed

static void prune_ops(lm_module *m, lm_op *scan, uint8_t *used) {
  for (lm_op *op = scan->body->last, *before; op; op = before) {
    before = op->prev;
    bool live = op->code == LM_OP_YIELD;
    for (uint32_t i = 0; i < op->n_out; i++)
      live |= used[op->out[i]->id];
    if (!live)
      lm_op_remove(op);
    for (uint32_t i = 0; live && i < op->n_in; i++)
      used[op->in[i]->id] = 1;
  }
}

static void prune_operands(lm_op *scan, const uint8_t *used) {
  lm_region *r = scan->body;
  uint32_t n = lm_scan_carries(scan), slices = lm_scan_slices(scan);
  for (uint32_t i = n; i < scan->n_in; i++) {
    bool slice = i < lm_scan_carries(scan) + slices;
    if (!used[r->args[i]->id]) {
      scan->attr.imm[1] -= slice;
      continue;
    }
    scan->in[n] = scan->in[i];
    r->args[n] = r->args[i];
    r->args[n]->index = n;
    n++;
  }
  scan->n_in = r->n_args = n;
}

void lm_scan_end(lm_builder *b, lm_op *scan, lm_value *const *next, lm_value *const *stacked,
                 uint32_t n_stacked) {
  uint32_t n = lm_scan_carries(scan);
  lm_value **all = LM_NEW_N(b->m->arena, lm_value *, n + n_stacked + 1);
  for (uint32_t i = 0; i < n + n_stacked; i++)
    all[i] = i < n ? next[i] : stacked[i - n];
  b->at = scan->body;
  b->before = NULL;
  lm_op *yield = lm_emit_op(b, LM_OP_YIELD, all, n + n_stacked, NULL, NULL);
  hoist(b->m, scan);
  capture(b->m, scan);
  lm_op_remove(yield); // the builder emits it again, with the results
  uint8_t *used = lm_calloc((size_t)b->m->n_values + 1, 1);
  for (uint32_t i = 0; i < yield->n_in; i++)
    used[yield->in[i]->id] = 1;
  prune_ops(b->m, scan, used);
  prune_operands(scan, used);
  lm_free(used);
  lm_region_end(b, scan, yield->in, yield->n_in);
}

// ---- carries of all positions

lm_value *lm_scan_before(lm_builder *b, lm_value *x, lm_axis t, lm_value *first) {
  lm_module *m = b->m;
  lm_axis but_last = lm_axis_add(m, m->axes[t].name, lm_axis_size(m, t) - 1, 0);
  lm_attr early = {
      .axes = {t}, .n_axes = 1, .to = {but_last}, .n_to = 1, .imm = {0, 1}, .n_imm = 2};
  lm_value *kept = lm_emit(b, LM_OP_SLICE, &x, 1, &early, NULL);
  if (first->def && first->def->code == LM_OP_CONST && first->def->attr.num == 0) {
    lm_attr late = {
        .axes = {but_last}, .n_axes = 1, .to = {t}, .n_to = 1, .imm = {1, 1}, .n_imm = 2};
    return lm_emit(b, LM_OP_PAD, &kept, 1, &late, NULL);
  }
  lm_axis one = lm_axis_add(m, m->axes[t].name, 1, 0);
  lm_type front = x->type;
  front.axis[0] = one;
  lm_attr join = {.axes = {one, but_last}, .n_axes = 2, .to = {t}, .n_to = 1};
  return lm_emit(b, LM_OP_CONCAT, (lm_value *[]){lm_emit_expand(b, first, front), kept}, 2, &join,
                 NULL);
}

bool lm_scan_stacks_carry(const lm_op *scan, uint32_t carry, uint32_t *out, bool *out_before) {
  const lm_op *yield = scan->body->last;
  for (uint32_t i = lm_scan_carries(scan); i < yield->n_in; i++) {
    *out_before = yield->in[i] == scan->body->args[carry];
    *out = i;
    if (*out_before || yield->in[i] == yield->in[carry])
      return true;
  }
  return false;
}

// ---- parallel axes

static void keep_axes(lm_type *t, lm_type of) {
  int n = 0;
  for (int i = 0; i < t->rank; i++)
    if (lm_type_find(of, t->axis[i]) >= 0)
      t->axis[n++] = t->axis[i];
  t->rank = (uint8_t)n;
}

static void drop_axes(lm_type *t, const lm_axis *axes, int n_axes) {
  lm_type dropped = lm_type_make(LM_INT, axes, n_axes);
  int n = 0;
  for (int i = 0; i < t->rank; i++)
    if (lm_type_find(dropped, t->axis[i]) < 0)
      t->axis[n++] = t->axis[i];
  t->rank = (uint8_t)n;
}

lm_type lm_scan_parallel(const lm_op *scan) {
  const lm_op *yield = scan->body->last;
  lm_type t = yield->in[0]->type;
  for (uint32_t i = 1; i < yield->n_in; i++)
    keep_axes(&t, yield->in[i]->type);
  for (const lm_op *op = scan->body->first; op != yield; op = op->next) {
    if (lm_op_accumulates(op))
      keep_axes(&t, op->out[0]->type);
    drop_axes(&t, op->attr.axes, op->attr.n_axes);
    drop_axes(&t, op->attr.to, op->attr.n_to);
  }
  for (int i = t.rank; i < LM_RANK; i++)
    t.axis[i] = 0;
  return t;
}
