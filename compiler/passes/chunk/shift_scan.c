// shift_scan.c - replaces carries of a scan that are earlier inputs by shifted tensors.
//
// before: %h, %y = scan over(t) [1, 2, 0] (%c = %h0, %x.1 = %x, %p = %pos) {
//           %k = select %p, %c, %zero   %n = sub %x.1, %k   yield %x.1, %n
//         }
// after:  %1 = slice %x (t) -> (t.1) [0, 1]   %2 = pad %1 (t.1) -> (t) [1, 1]
//         %k = select %pos, %2, %zero   %y = sub %x, %k
//
// A carry is an earlier input if its next value depends on no carry, or only on such carries: the
// last inputs of a short convolution are. Its values before each position are then known without a
// loop: its next values, moved by one position. A scan of which no carry is left becomes operations
// on all positions, which kernels compute in parallel and in one pass over memory; other scans have
// fewer carries. Declines: scans of one position or of a length that is known at run time only;
// carries with more elements than every slice has. Cost: none.
#include "compiler/passes/pass.h"
#include "compiler/passes/chunk/scan_lift.h"

static bool is_larger_than_slices(const lm_op *scan, lm_type t) {
  const lm_module *m = scan->parent->func->module;
  for (uint32_t i = 0; i < scan->n_in; i++)
    if (lm_scan_operand_is_slice(scan, i) &&
        lm_type_elements(m, scan->body->args[i]->type) >= lm_type_elements(m, t))
      return false;
  return true;
}

// The next values of the carries that are earlier inputs, for all positions; returns their number.
static uint32_t carries_lift(lm_scan_lift *l, lm_value **next) {
  const lm_op *scan = l->scan;
  uint32_t n = lm_scan_carries(scan), found = 0;
  for (uint32_t i = 0; i < n; i++) {
    lm_value *v = scan->body->last->in[i];
    if (next[i] || !lm_scan_lift_may(l, v) || is_larger_than_slices(scan, v->type))
      continue;
    next[i] = lm_scan_lift_stacked(l, v);
    lm_scan_lift_carry(l, i, lm_scan_before(&l->b, next[i], lm_scan_axis(scan), scan->in[i]));
    found++;
    i = UINT32_MAX; // others may depend on it
  }
  return found;
}

// The scan without the carries that have a `next`; NULL if none is left. out: by result of the old
// scan, the new value or NULL.
static void scan_rebuild(lm_scan_lift *l, lm_value *const *next, lm_value **out) {
  lm_op *old = l->scan;
  lm_module *m = l->b.m;
  const lm_op *yield = old->body->last;
  uint32_t n = lm_scan_carries(old), kept = 0;
  lm_value **start = LM_NEW_N(m->arena, lm_value *, n + 1);
  lm_value **yields = LM_NEW_N(m->arena, lm_value *, yield->n_in + 1);
  for (uint32_t i = 0; i < n; i++)
    if (!next[i])
      start[kept++] = old->in[i];
  lm_value **map = lm_calloc((size_t)m->n_values + 1, sizeof *map);
  lm_builder b = l->b;
  lm_op *scan = lm_scan_begin(&b, lm_scan_axis(old), false, start, kept);
  for (uint32_t i = 0, k = 0; i < n; i++)
    if (!next[i])
      map[old->body->args[i]->id] = scan->body->args[k++];
  for (uint32_t i = 0; i < n; i++)
    if (next[i])
      map[old->body->args[i]->id] = lm_scan_slice(m, scan, l->map[old->body->args[i]->id]);
  for (uint32_t i = n; i < old->n_in; i++)
    map[old->body->args[i]->id] = lm_scan_operand_is_slice(old, i)
                                      ? lm_scan_slice(m, scan, old->in[i])
                                      : lm_scan_whole(m, scan, old->in[i]);
  for (const lm_op *op = old->body->first; op != yield; op = op->next)
    lm_op_clone(&b, op, map);
  uint32_t count = 0;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (i >= n || !next[i])
      yields[count++] = map[yield->in[i]->id];
  lm_free(map);
  lm_scan_end(&b, scan, yields, yields + kept, count - kept);
  count = 0;
  for (uint32_t i = 0; i < old->n_out; i++)
    if (i >= n || !next[i])
      out[i] = scan->out[count++];
}

static void shift(lm_op *scan) {
  lm_scan_lift l;
  lm_module *m = scan->parent->func->module;
  uint32_t n = lm_scan_carries(scan), n_values = m->n_values;
  lm_scan_lift_begin(&l, scan);
  lm_value **next = LM_NEW_N(m->arena, lm_value *, n + 1);
  lm_value **out = LM_NEW_N(m->arena, lm_value *, scan->n_out + 1);
  uint32_t found = carries_lift(&l, next);
  lm_attr last = {.axes = {lm_scan_axis(scan)},
                  .n_axes = 1,
                  .imm = {lm_axis_size(m, lm_scan_axis(scan)) - 1, 1},
                  .n_imm = 2};
  l.b.loc = scan->loc;
  if (found && found < n)
    scan_rebuild(&l, next, out);
  for (uint32_t i = 0; found && i < scan->n_out; i++)
    if (i < n && next[i])
      out[i] = lm_emit(&l.b, LM_OP_SLICE, &next[i], 1, &last, NULL);
    else if (found == n)
      out[i] = lm_scan_lift_stacked(&l, scan->body->last->in[i]);
  lm_scan_lift_end(&l);
  if (!found)
    return;
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < scan->n_out; i++)
    map[scan->out[i]->id] = out[i];
  lm_func_substitute(scan->parent->func, map, n_values);
  lm_free(map);
  lm_op_remove(scan);
}

static void shift_visit(lm_module *m, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      shift_visit(m, op->body);
    if (op->code != LM_OP_SCAN || lm_scan_is_backward(op))
      continue;
    const lm_axis_info *t = &m->axes[lm_scan_axis(op)];
    if (!t->dyn && t->size > 1)
      shift(op);
  }
}

bool lm_pass_shift_scan(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    shift_visit(m, f->body);
  return true;
}
