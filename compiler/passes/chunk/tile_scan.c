// tile_scan.c - tiles the positions of a scan, so that its derivative keeps few carries.
//
// before: %h, %y = scan over(t) [1, 1, 0] (%c = %h0, %x.1 = %x) { … }          t = 1024
// after:  %v = view %x (t) -> (tile, p)                                        tile = 32, p = 32
//         %h, %z = loop 32 over(tile) %i carry(%g = %h0) {
//           %e = at %v, %i
//           %g1, %y1 = scan over(p) [1, 1, 0] (%c = %g, %x.1 = %e) { … }
//           yield %g1, %y1
//         }
//         %y = view %z (tile, p) -> (t)
//
// The derivative of a scan recomputes the carries of all its positions and keeps them while it runs
// backwards (compiler/ops/scan_vjp.c). The derivative of the loop stashes one carry for each
// tile. Of n positions in tiles of c, the backward pass therefore keeps n / c + c carries; c is the
// divisor of n that makes this least. Declines: functions other than losses, which are the ones
// that are differentiated; scans whose results have all carries, or are constants of the derivative
// (`stop`); short scans, and lengths without a useful divisor. Cost: a launch per tile.
#include "compiler/ir/scan.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

enum {
  MIN_POSITIONS = 16
};

// The positions of a tile; n if the scan is not tiled.
static int64_t tile_of(int64_t n) {
  int64_t best = n;
  for (int64_t c = 2; c < n; c++)
    if (n % c == 0 && n / c + c < n / best + best)
      best = c;
  return n < MIN_POSITIONS ? n : best;
}

// The scan of one tile, at the builder's position in the loop.
static lm_op *tile_scan(lm_builder *b, const lm_op *scan, lm_value *const *carry,
                        lm_value *const *views, lm_axis p, lm_value *index) {
  lm_module *m = b->m;
  uint32_t n = lm_scan_carries(scan);
  lm_value **in = LM_NEW_N(m->arena, lm_value *, scan->n_in + 1);
  for (uint32_t i = n; i < scan->n_in; i++) {
    lm_attr element = {
        .imm = {0, 1},
        .n_imm = 2,
    };
    in[i] = !lm_scan_operand_is_slice(scan, i)
                ? scan->in[i]
                : lm_emit(b, LM_OP_AT, (lm_value *[]){views[i], index}, 2, &element, NULL);
  }
  lm_op *tile = lm_scan_begin(b, p, false, carry, n);
  for (uint32_t i = n; i < scan->n_in; i++)
    lm_scan_operand_is_slice(scan, i) ? lm_scan_slice(m, tile, in[i])
                                      : lm_scan_whole(m, tile, in[i]);
  lm_value **map = lm_calloc((size_t)m->n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < scan->n_in; i++)
    map[scan->body->args[i]->id] = tile->body->args[i];
  const lm_op *yield = scan->body->last;
  for (const lm_op *op = scan->body->first; op != yield; op = op->next)
    lm_op_clone(b, op, map);
  lm_value **out = LM_NEW_N(m->arena, lm_value *, yield->n_in + 1);
  for (uint32_t i = 0; i < yield->n_in; i++)
    out[i] = map[yield->in[i]->id];
  lm_free(map);
  lm_scan_end(b, tile, out, out + n, yield->n_in - n);
  return tile;
}

static void tile(lm_module *m, lm_op *scan, int64_t size) {
  lm_builder b = {m, scan->parent, scan, scan->loc, scan->remat};
  lm_axis t = lm_scan_axis(scan);
  int64_t n = lm_axis_size(m, t);
  uint32_t n_carry = lm_scan_carries(scan), n_values = m->n_values;
  lm_axis k = lm_axis_add(m, LM_SYM(m->ctx, "tile"), n / size, 0),
          p = lm_axis_add(m, m->axes[t].name, size, 0);
  lm_value **views = LM_NEW_N(m->arena, lm_value *, scan->n_in + 1);
  for (uint32_t i = 0; i < scan->n_in; i++)
    if (lm_scan_operand_is_slice(scan, i))
      views[i] = lm_emit_split(&b, scan->in[i], t, k, p);
  lm_op *loop = lm_loop_begin(&b, n / size, k, scan->in, n_carry);
  loop->loc = scan->loc;
  const lm_op *part = tile_scan(&b, scan, loop->body->args + 1, views, p, loop->body->args[0]);
  lm_loop_end(&b, loop, part->out, n_carry, part->out + n_carry, part->n_out - n_carry);
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < scan->n_out; i++)
    map[scan->out[i]->id] = i < n_carry ? loop->out[i] : lm_emit_join(&b, loop->out[i], k, p, t);
  lm_func_substitute(scan->parent->func, map, n_values);
  lm_free(map);
  lm_op_remove(scan);
}

static bool keeps_carries(const lm_op *scan) {
  uint32_t result;
  bool before;
  for (uint32_t i = 0; i < lm_scan_carries(scan); i++)
    if (!lm_scan_stacks_carry(scan, i, &result, &before))
      return false;
  return true;
}

typedef struct readers {
  const lm_op *scan;
  bool stop; // all of them are `stop`
} readers;

static void reader_visit(lm_op *op, void *user) {
  readers *r = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    r->stop &= op->in[i]->def != r->scan || op->code == LM_OP_STOP;
}

static bool is_constant(const lm_op *scan) {
  readers r = {
      .scan = scan,
      .stop = true,
  };
  lm_region_walk(scan->parent, reader_visit, &r);
  return r.stop;
}

static void tile_scan_visit(lm_module *m, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      tile_scan_visit(m, op->body);
    if (op->code != LM_OP_SCAN || m->axes[lm_scan_axis(op)].dyn || keeps_carries(op) ||
        is_constant(op))
      continue;
    int64_t n = lm_axis_size(m, lm_scan_axis(op)), size = tile_of(n);
    if (size < n)
      tile(m, op, size);
  }
}

bool lm_pass_tile_scan(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS)
      tile_scan_visit(m, f->body);
  return true;
}
