// row_mix.c - see row_mix.h.
//
// Each value has a kind:
//   ZERO    0                             ONE    independent of the rows (parameters, constants)
//   EACH    has an axis of rows; each row depends on that row of the batch only
//   SUM     a sum over rows of EACH       BOTH   SUM + ONE
//   MIXED   anything else: depends on the set of rows
// A loss does not depend on the micro-batches if its sum and its weight are SUM, or if its weight
// is ONE and its sum BOTH, of which the SUM is divided by the number of rows, as a mean is. Cost: a
// few visits of each operation; loops are visited until the kinds of their carries are stable.
#include "compiler/analysis/row_mix.h"

#include "compiler/ir/scan.h"
#include "compiler/ops/interface.h"

#include <math.h>

typedef enum {
  ZERO,
  ONE,
  EACH,
  SUM,
  BOTH,
  MIXED
} kind;
typedef struct {
  kind kind;
  lm_loc loc; // of BOTH and MIXED, the operation that caused it
  bool grows; // SUM and BOTH: with the number of rows
} fact;

typedef struct {
  const lm_module *m;
  fact *of;
  bool *is_row;
  int64_t n_rows;
  bool carries_constant; // what loops over instances carry without rows counts as ONE
} finder;                // tables are by value and by axis

static int row_axes(const finder *f, lm_type t) {
  int n = 0;
  for (int i = 0; i < t.rank; i++)
    n += f->is_row[t.axis[i]];
  return n;
}

static bool any_row(const finder *f, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (f->is_row[axes[i]])
      return true;
  return false;
}

static fact in_of(const finder *f, const lm_op *op, uint32_t i) {
  return f->of[op->in[i]->id];
}

static fact made(const lm_op *op, kind k) {
  return (fact){k, op->loc};
}

static fact sum_of_rows(void) {
  return (fact){SUM, .grows = true};
}

// The kind of a value that is one of two: a carry, a select.
static fact join(fact a, fact b) {
  a.grows |= b.grows;
  b.grows = a.grows;
  if (a.kind == b.kind || b.kind == ZERO || a.kind == MIXED)
    return a;
  if (a.kind == ZERO || b.kind == MIXED)
    return b;
  if ((a.kind == ONE && b.kind == EACH) || (a.kind == EACH && b.kind == ONE))
    return a.kind == EACH ? a : b;
  if (a.kind == EACH || b.kind == EACH)
    return (fact){MIXED, b.loc};
  return (fact){BOTH, a.kind == BOTH ? a.loc : b.loc, a.grows};
}

static fact added(const lm_op *op, fact a, fact b) {
  fact r = join(a, b);
  bool first = (r.kind == BOTH && a.kind != BOTH && b.kind != BOTH) ||
               (r.kind == MIXED && a.kind != MIXED && b.kind != MIXED);
  return first ? (fact){r.kind, op->loc, r.grows} : r;
}

static bool is_alike(fact x) {
  return x.kind == ZERO || x.kind == ONE;
}

// A nonlinear elementwise function: of a SUM it is MIXED.
static fact any_function(const finder *f, const lm_op *op) {
  fact r = {ZERO};
  for (uint32_t i = 0; i < op->n_in; i++) {
    fact x = in_of(f, op, i);
    if (x.kind == MIXED)
      return x;
    if (x.kind == SUM || x.kind == BOTH)
      return made(op, MIXED);
    if (x.kind > r.kind)
      r = x;
  }
  return r.kind == ZERO ? (fact){ONE} : r;
}

static fact dot_mix(const finder *f, const lm_op *op) {
  fact a = in_of(f, op, 0);
  fact b = in_of(f, op, 1);
  if (a.kind == MIXED || b.kind == MIXED)
    return a.kind == MIXED ? a : b;
  if (a.kind == ZERO || b.kind == ZERO)
    return (fact){ZERO};
  if (is_alike(a) || is_alike(b))
    return is_alike(a) ? b : a;
  return a.kind == EACH && b.kind == EACH ? a : made(op, MIXED);
}

// A dot over axes of rows of two operands that have them is a sum over rows.
static fact contraction(const finder *f, const lm_op *op, fact x) {
  if (!any_row(f, op->attr.axes, op->attr.n_axes))
    return x;
  return x.kind == EACH && !row_axes(f, op->out[0]->type) ? sum_of_rows()
         : x.kind == MIXED                                ? x
                                                          : made(op, MIXED);
}

static fact reduction(const finder *f, const lm_op *op) {
  fact x = in_of(f, op, 0);
  if (lm_op_has(op, LM_T_LINEAR))
    return is_alike(x) ? x : contraction(f, op, x);
  return any_row(f, op->attr.axes, op->attr.n_axes) && x.kind != MIXED ? made(op, MIXED)
                                                                       : any_function(f, op);
}

static fact expansion(const finder *f, const lm_op *op) {
  fact x = in_of(f, op, 0);
  if (row_axes(f, op->out[0]->type) == row_axes(f, op->in[0]->type))
    return x;
  return is_alike(x) ? (fact){EACH} : x.kind == MIXED ? x : made(op, MIXED);
}

static fact source(const finder *f, const lm_op *op) {
  bool rows = row_axes(f, op->out[0]->type);
  if (op->code == LM_OP_IOTA && rows)
    return made(op, MIXED); // the index of a row in the micro-batch
  if (op->code == LM_OP_CONST && op->attr.num == 0)
    return (fact){ZERO};
  return (fact){rows ? EACH : ONE};
}

static fact selection(const finder *f, const lm_op *op) {
  return is_alike(in_of(f, op, 0)) ? added(op, in_of(f, op, 1), in_of(f, op, 2))
                                   : any_function(f, op);
}

static fact scattering(const finder *f, const lm_op *op) {
  fact x = any_function(f, op);
  return x.kind == EACH && !row_axes(f, op->out[0]->type) ? sum_of_rows() : x;
}

static fact joined_parts(const finder *f, const lm_op *op) {
  fact r = {ZERO};
  for (uint32_t i = 0; i < op->n_in; i++)
    r = added(op, r, in_of(f, op, i));
  return any_row(f, op->attr.axes, op->attr.n_axes) && r.kind != MIXED ? made(op, MIXED) : r;
}

// x divided by what does not depend on the rows. The number of elements of a mean is a constant, a
// multiple of the number of rows.
static fact quotient(const finder *f, const lm_op *op) {
  const lm_op *by = op->in[1]->def;
  fact x = in_of(f, op, 0);
  bool counts = op->code == LM_OP_DIV && by && by->code == LM_OP_CONST && by->attr.num > 0;
  x.grows &= !counts || fmod(by->attr.num, (double)f->n_rows) != 0;
  return x;
}

// Each element depends on the elements of the operands at the same position, and is linear in some
// operands.
static fact elementwise(const finder *f, const lm_op *op) {
  bool rounds = op->code == LM_OP_CAST && !lm_dtype_is_float(op->out[0]->type.dtype);
  if (op->code == LM_OP_SELECT)
    return selection(f, op);
  if (lm_op_has(op, LM_T_BILINEAR))
    return dot_mix(f, op);
  if (lm_op_has(op, LM_T_LINEAR_FIRST) && is_alike(in_of(f, op, 1)))
    return quotient(f, op);
  if (!lm_op_has(op, LM_T_LINEAR) || rounds)
    return any_function(f, op);
  return op->n_in == 1 ? in_of(f, op, 0) : added(op, in_of(f, op, 0), in_of(f, op, 1));
}

static fact table_read(const finder *f, const lm_op *op) {
  return any_row(f, op->attr.axes, op->attr.n_axes) ? made(op, MIXED) : any_function(f, op);
}

// Rows that are sorted by group, with their ids: one row of the result for each row of an operand.
static fact grouping(const finder *f, const lm_op *op) {
  fact x = in_of(f, op, 0);
  if (op->code == LM_OP_GROUP_COUNTS)
    return x.kind == EACH ? sum_of_rows() : x;
  if (lm_op_has(op, LM_T_GROUPED) || x.kind == MIXED)
    return x;
  if (x.kind == SUM || x.kind == BOTH)
    return made(op, MIXED);
  fact order = in_of(f, op, 1);
  return order.kind > x.kind ? order : x;
}

static fact row_fact(const finder *f, const lm_op *op) {
  if (lm_op_has(op, LM_T_SOURCE))
    return source(f, op);
  if (op->code == LM_OP_GROUPED_DOT)
    return dot_mix(f, op);
  if (lm_op_has(op, LM_T_GROUPED) || op->code == LM_OP_GROUP_ROWS || op->code == LM_OP_UNGROUP_ROWS)
    return grouping(f, op);
  if (op->code == LM_OP_EXPAND)
    return expansion(f, op);
  if (op->code == LM_OP_SLICE || lm_op_has(op, LM_T_ASSEMBLE))
    return joined_parts(f, op);
  if (lm_op_has(op, LM_T_MOVE))
    return in_of(f, op, 0);
  if (lm_op_has(op, LM_T_REDUCE))
    return reduction(f, op);
  if (lm_op_has(op, LM_T_DOT))
    return contraction(f, op, dot_mix(f, op));
  if (op->code == LM_OP_SCATTER)
    return scattering(f, op);
  if (op->code == LM_OP_GATHER)
    return table_read(f, op);
  return lm_op_has(op, LM_T_ELEMENTWISE) ? elementwise(f, op) : any_function(f, op);
}

// Renaming or splitting an axis of rows gives axes of rows.
static void axes_follow(finder *f, const lm_op *op) {
  if (op->code == LM_OP_GROUP_ORDER && any_row(f, op->attr.axes, op->attr.n_axes))
    f->is_row[op->attr.to[0]] = true;
  if (!lm_op_has(op, LM_T_ORDERED) || !any_row(f, op->attr.axes, op->attr.n_axes))
    return;
  for (int i = 0; i < op->attr.n_to; i++)
    if (op->code == LM_OP_VIEW || f->is_row[op->attr.axes[i]])
      f->is_row[op->attr.to[i]] = true;
}

// True if the result has two axes of rows that no single operand has, so its elements are pairs of
// rows.
static bool makes_pairs(const finder *f, const lm_op *op) {
  int most = 1;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (row_axes(f, op->in[i]->type) > most)
      most = row_axes(f, op->in[i]->type);
  return op->code != LM_OP_VIEW && op->n_out == 1 && row_axes(f, op->out[0]->type) > most;
}

static void region_visit(finder *f, const lm_region *r);

// Visits the body until the kinds of its n carries, which begin with those of the initial values,
// are stable.
static void carries_settle(finder *f, const lm_region *body, lm_value *const *carries, uint32_t n) {
  for (bool changed = true; changed;) {
    changed = false;
    region_visit(f, body);
    for (uint32_t i = 0; i < n; i++) {
      fact *carried = &f->of[carries[i]->id];
      fact next = join(*carried, f->of[body->last->in[i]->id]);
      bool differs = next.kind != carried->kind || next.grows != carried->grows;
      changed |= differs;
      if (differs)
        *carried = next;
    }
  }
}

// True if the region accesses a global by the index of the loop.
static bool repeats(const lm_op *loop, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    bool indexed = lm_op_info_indexed(lm_op_info_of(op));
    for (int i = 0; indexed && i < op->attr.n_imm / 2; i++)
      if (op->in[i] == loop->body->args[0])
        return true;
    if (op->body && repeats(loop, op->body))
      return true;
  }
  return false;
}

static void loop_visit(finder *f, const lm_op *op) {
  const lm_region *body = op->body;
  const lm_op *yield = body->last;
  f->of[body->args[0]->id] = (fact){ONE};
  for (uint32_t i = 0; i < op->n_in; i++)
    f->of[body->args[1 + i]->id] = in_of(f, op, i);
  carries_settle(f, body, body->args + 1, op->n_in);
  for (uint32_t i = 0; i < op->n_out; i++)
    f->of[op->out[i]->id] = i < op->n_in ? f->of[body->args[1 + i]->id] : f->of[yield->in[i]->id];
  for (uint32_t i = 0; f->carries_constant && i < op->n_in; i++)
    if (!row_axes(f, op->out[i]->type) && repeats(op, body))
      f->of[op->out[i]->id] = (fact){ONE};
}

// The arguments of a scan's region have the kinds of its operands; those of carries are joined with
// the next carries.
static void scan_visit(finder *f, const lm_op *op) {
  const lm_region *body = op->body;
  for (uint32_t i = 0; i < op->n_in; i++)
    f->of[body->args[i]->id] = in_of(f, op, i);
  carries_settle(f, body, body->args, lm_scan_carries(op));
  for (uint32_t i = 0; i < op->n_out; i++)
    f->of[op->out[i]->id] =
        f->of[i < lm_scan_carries(op) ? body->args[i]->id : body->last->in[i]->id];
}

static void region_visit(finder *f, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    axes_follow(f, op);
    if (op->code == LM_OP_LOOP)
      loop_visit(f, op);
    else if (op->code == LM_OP_SCAN)
      scan_visit(f, op);
    else if (op->n_out == 1) {
      fact x = row_fact(f, op);
      f->of[op->out[0]->id] = x.kind != MIXED && makes_pairs(f, op) ? made(op, MIXED) : x;
    }
  }
}

// end: the operation that returns both.
static lm_row_mix verdict(fact sum, fact weight, lm_loc end) {
  if (sum.kind == MIXED || weight.kind == MIXED)
    return (lm_row_mix){LM_ROW_MIX_MIXED, sum.kind == MIXED ? sum.loc : weight.loc};
  if (weight.kind == BOTH)
    return (lm_row_mix){LM_ROW_MIX_PER_MICRO_BATCH, weight.loc};
  if (is_alike(weight) && sum.grows)
    return (lm_row_mix){LM_ROW_MIX_UNWEIGHTED, end};
  bool once = sum.kind == BOTH && weight.kind == SUM;
  return (lm_row_mix){once ? LM_ROW_MIX_PER_MICRO_BATCH : LM_ROW_MIX_INDEPENDENT, sum.loc};
}

static finder function_visit(lm_arena *a, const lm_func *loss, bool carries_constant) {
  const lm_module *m = loss->module;
  finder f = {
      .m = m,
      .of = LM_NEW_N(a, fact, m->n_values + 1),
      .is_row = LM_NEW_N(a, bool, m->n_axes + 1),
      .n_rows = lm_axis_size(m, loss->body->args[0]->type.axis[0]),
      .carries_constant = carries_constant,
  };
  f.is_row[loss->body->args[0]->type.axis[0]] = true;
  for (uint32_t i = 0; i < loss->body->n_args; i++)
    f.of[loss->body->args[i]->id] = (fact){loss->body->args[i]->type.rank ? EACH : ONE};
  region_visit(&f, loss->body);
  return f;
}

lm_row_mix lm_row_mix_find(lm_module *m) {
  const lm_func *loss = lm_func_get(m, LM_FUNC_LOSS, 0);
  if (!loss || !loss->body->last || loss->body->last->n_in < 2)
    return (lm_row_mix){LM_ROW_MIX_INDEPENDENT};
  lm_arena *a = lm_arena_create();
  const lm_op *end = loss->body->last;
  finder f = function_visit(a, loss, true);
  lm_row_mix constant = verdict(f.of[end->in[0]->id], f.of[end->in[1]->id], end->loc);
  f = function_visit(a, loss, false);
  lm_row_mix r = verdict(f.of[end->in[0]->id], f.of[end->in[1]->id], end->loc);
  r.by_blocks = r.kind != LM_ROW_MIX_INDEPENDENT && constant.kind != LM_ROW_MIX_MIXED;
  lm_arena_destroy(a);
  return r;
}

lm_rows_kind lm_row_mix_result(const lm_func *loss, uint32_t i) {
  static const lm_rows_kind kinds[] = {
      [ZERO] = LM_ROWS_NONE, [ONE] = LM_ROWS_NONE,  [EACH] = LM_ROWS_MIXED,
      [SUM] = LM_ROWS_SUM,   [BOTH] = LM_ROWS_BOTH, [MIXED] = LM_ROWS_MIXED,
  };
  lm_arena *a = lm_arena_create();
  finder f = function_visit(a, loss, false);
  kind k = f.of[loss->body->last->in[i]->id].kind;
  lm_arena_destroy(a);
  return kinds[k];
}
