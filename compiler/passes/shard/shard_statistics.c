// shard_statistics.c - what the blocks of a stage compute of all rows of a micro-batch.
//
// A balance loss is a statistic of the rows of one micro-batch, and in a tick each stage has
// another one. So these values are parts along an axis of stages, of which a rank has one element.
//   before: %s = sum %p over(b.2@pp, t) : f32[E]                         b.2@pp = 2
//           %z = mul %s, %s   %n = add %carry, %z                        %carry: f32
//   after:  %v = view %p (b.2@pp) -> (stage@pp, b.3)                     stage@pp = 1, b.3 = 2
//           %s = sum %v over(b.3, t) : f32[stage@pp, E]
//           %z = mul %s, %s   %n = add %carry, %z                        %carry: f32[stage@pp]
//
// Counts of routing become the sums of comparisons; those by which rows are sorted stay as they
// are. Declines: a value of all rows that a row, a state or an inner loop depends on is an error.
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

typedef struct statistics {
  lm_shard *s;
  const lm_shard_stages *axes;
  lm_op *loop;
  lm_value **map; // by id: the value with the axis of stages, or NULL
  bool failed;
} statistics;

bool lm_shard_is_statistic(const lm_op *op, lm_axis rows) {
  bool sums = op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_DOT;
  bool lacks = op->n_out == 1 && lm_type_find(op->out[0]->type, rows) < 0;
  return (sums && lacks && lm_attr_has_axis(&op->attr, rows)) || op->code == LM_OP_GROUP_COUNTS;
}

lm_type lm_shard_stages_type(const lm_shard_stages *x, lm_type t) {
  lm_axis axes[LM_RANK] = {x->stage};
  if (t.rank == LM_RANK)
    LM_BUG("a value of all rows with %d axes", t.rank);
  memcpy(axes + 1, t.axis, t.rank * sizeof *axes);
  return lm_type_make((lm_dtype)t.dtype, axes, t.rank + 1);
}

static void refuse(statistics *x, const lm_op *op) {
  lm_loc at = op->loc.line ? op->loc : x->s->by->loc;
  if (!x->failed)
    LM_REPORT(x->s->m->ctx, at, E915, x->s->by->name, "blocks that combine rows");
  x->failed = true;
}

static lm_value *now(const statistics *x, lm_value *v) {
  return x->map[v->id] ? x->map[v->id] : v;
}

static bool has_rows(const statistics *x, lm_type t) {
  return lm_type_find(t, x->axes->lane) >= 0;
}

static lm_builder before(const statistics *x, lm_op *op) {
  return (lm_builder){
      .m = x->s->m,
      .at = x->loop->body,
      .before = op,
      .loc = op->loc,
      .remat = op->remat,
  };
}

// v replaces the result of op; the axis of stages comes first.
static void replace(statistics *x, lm_builder *b, lm_op *op, lm_value *v) {
  lm_type to = lm_shard_stages_type(x->axes, op->out[0]->type);
  v->name = op->out[0]->name;
  x->map[op->out[0]->id] = lm_emit_permute(b, v, to.axis, to.rank);
}

// ---- statistics of rows

static lm_value *rows_split(const statistics *x, lm_builder *b, lm_value *v) {
  const lm_shard_stages *axes = x->axes;
  bool splits = has_rows(x, v->type);
  return splits ? lm_emit_split(b, v, axes->lane, axes->stage, axes->micro) : v;
}

static void rows_reduce(statistics *x, lm_op *op) {
  lm_builder b = before(x, op);
  lm_attr over = op->attr;
  lm_value *in[2];
  for (int i = 0; i < over.n_axes; i++)
    over.axes[i] = over.axes[i] == x->axes->lane ? x->axes->micro : over.axes[i];
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = rows_split(x, &b, op->in[i]);
  replace(x, &b, op, lm_emit(&b, op->code, in, op->n_in, &over, NULL));
}

// The number of ids that equal each index.
static void rows_count(statistics *x, lm_op *op) {
  lm_builder b = before(x, op);
  lm_axis to = op->attr.to[0], over[LM_RANK];
  lm_value *ids = rows_split(x, &b, op->in[0]);
  lm_type each = ids->type, index = lm_type_make(LM_INT, &to, 1);
  int n = 0;
  each.axis[each.rank++] = to;
  for (int i = 0; i + 1 < each.rank; i++)
    if (each.axis[i] != x->axes->stage)
      over[n++] = each.axis[i];
  lm_value *own = lm_emit_expand(&b, lm_emit(&b, LM_OP_IOTA, NULL, 0, NULL, &index), each);
  lm_value *same = lm_emit2(&b, LM_OP_EQ, lm_emit_expand(&b, ids, each), own);
  lm_value *sum = lm_emit_reduce(&b, LM_OP_SUM, lm_emit_cast(&b, same, LM_INT), over, n);
  replace(x, &b, op, sum);
}

// ---- what depends on them

static bool reads_any(const statistics *x, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (x->map[op->in[i]->id])
      return true;
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    if (reads_any(x, in))
      return true;
  return false;
}

// Counts that sort rows or that a state adds stay those of the rank.
static bool counts_only(const lm_op *op) {
  bool sorts = lm_op_info_of(op)->factor == LM_FACTOR_ROUTE || op->code == LM_OP_EXCHANGE_ROWS ||
               op->code == LM_OP_ACCUM;
  bool count = op->n_out == 1 && (op->out[0]->type.dtype == LM_INT || op->code == LM_OP_CAST);
  return sorts || (count && lm_shard_count_is_added(op->parent, op->out[0]));
}

static void op_enter(statistics *x, lm_op *op) {
  const lm_op_info *info = lm_op_info_of(op);
  lm_builder b = before(x, op);
  lm_value **in = LM_NEW_N(x->s->m->arena, lm_value *, op->n_in);
  bool elementwise = (info->traits & LM_T_ELEMENTWISE) && op->code != LM_OP_EXPAND;
  if (op->body || op->n_out != 1 || lm_op_has(op, LM_T_EFFECT) || has_rows(x, op->out[0]->type)) {
    refuse(x, op);
    return;
  }
  lm_type to = lm_shard_stages_type(x->axes, op->out[0]->type);
  for (uint32_t i = 0; i < op->n_in; i++) {
    in[i] = now(x, op->in[i]);
    lm_type whole = to;
    whole.dtype = in[i]->type.dtype;
    if (elementwise && in[i] != op->in[i])
      in[i] = lm_emit_expand(&b, in[i], whole);
  }
  bool typed = info->traits & LM_T_TYPED;
  lm_value *v = lm_emit(&b, op->code, in, op->n_in, &op->attr, typed ? &to : NULL);
  if (v->type.rank != to.rank || lm_type_find(v->type, x->axes->stage) < 0)
    refuse(x, op);
  else
    replace(x, &b, op, v);
}

static void op_rewrite(statistics *x, lm_op *op) {
  bool statistic = lm_shard_is_statistic(op, x->axes->lane);
  bool counts = op->code == LM_OP_GROUP_COUNTS;
  if (counts && (!has_rows(x, op->in[0]->type) || lm_shard_routes_rows(op)))
    return;
  if (!statistic && (!reads_any(x, op) || counts_only(op)))
    return;
  if (statistic && reads_any(x, op))
    refuse(x, op);
  else if (counts)
    rows_count(x, op);
  else if (statistic)
    rows_reduce(x, op);
  else
    op_enter(x, op);
  if (!counts && !x->failed)
    lm_op_remove(op);
}

// ---- the loop

static void carries_open(statistics *x) {
  lm_region *r = x->loop->body;
  for (uint32_t i = 0; i < x->loop->n_in; i++) {
    lm_type t = r->args[i + 1]->type;
    if (has_rows(x, t))
      continue;
    r->args[i + 1]->type = x->loop->out[i]->type = lm_shard_stages_type(x->axes, t);
    x->map[r->args[i + 1]->id] = r->args[i + 1];
  }
}

static void carries_close(statistics *x) {
  lm_op *yield = x->loop->body->last;
  lm_builder b = before(x, yield);
  for (uint32_t i = 0; i < x->loop->n_in; i++) {
    yield->in[i] = now(x, yield->in[i]);
    if (!has_rows(x, x->loop->out[i]->type))
      yield->in[i] = lm_emit_expand(&b, yield->in[i], x->loop->out[i]->type);
  }
}

bool lm_shard_statistics(lm_shard *s, const lm_shard_stages *axes, lm_op *loop) {
  statistics x = {
      .s = s,
      .axes = axes,
      .loop = loop,
  };
  uint32_t n = s->m->n_values;
  x.map = lm_calloc((size_t)n + 1, sizeof *x.map);
  carries_open(&x);
  for (lm_op *op = loop->body->first, *next; op != loop->body->last && !x.failed; op = next) {
    next = op->next;
    op_rewrite(&x, op);
  }
  if (!x.failed)
    carries_close(&x);
  lm_free(x.map);
  return !x.failed;
}
