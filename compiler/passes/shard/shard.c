// shard.c - pass `shard`: divides a model among the ranks of a mesh.
//
// before: mesh dp = 2 rows, tp = 2 shard(ff)
//         func @loss(%x: f32[b, d]) -> … {
//           %u = param @u : f32[d, ff]   %y = dot %x, %u over(d) : f32[b, ff]
//           %v = param @v : f32[ff, d]   %z = dot %y, %v over(ff) : f32[b, d]
//           %q = mul %z, %z   %s = sum %q over(b, d) }
// after:  mesh dp = 2 rows, tp = 2
//         func @loss(%x: f32[b@dp, d]) -> … {
//           %f = fan %x over(tp)
//           %u = param @u : f32[d, ff@tp]   %y = dot %f, %u over(d) : f32[b@dp, ff@tp]
//           %v = param @v : f32[ff@tp, d]   %z = dot %y, %v over(ff@tp) : f32[b@dp, d]
//           %r = all_reduce %z over(tp)
//           %q = mul %r, %r   %s = sum %q over(b@dp, d) }       (partial over dp)
//
// A divided axis is another axis, so the module is from here on the program of one rank, and later
// passes see smaller tensors. The axes of the mesh are divided one after the other, those that
// divide the data first: tp then divides each part of the positions further. shard_choice.c chooses
// how each value is spread; this file rewrites the operations and inserts collectives where an
// operation needs its operand in another form, once for all its uses. The sums of @loss and @eval
// stay partial over the axes of the mesh that divide rows or positions. Pass `grad` derives the
// backward collectives (compiler/ops/mesh_vjp.c).
//
// Declines: without a mesh. An axis that does not divide, or that is the axis of a repetition, is
// an error. Cost: what the collectives exchange, and operations along axes that cannot stay
// divided, which every rank computes whole.
#include "compiler/passes/shard/shard.h"
#include "compiler/analysis/row_mix.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"
#include <string.h>

static void axes_divide(const lm_shard *s, lm_axis *axes, int n, lm_axis along) {
  for (int i = 0; along && i < n; i++)
    if (axes[i] == along)
      axes[i] = lm_shard_part(s, along);
}

static void need_spread(lm_shard *s, lm_op *op, uint32_t i, lm_spread spread, lm_axis along) {
  lm_shard_need(s, op, i, spread == LM_SPREAD_PARTS ? LM_FORM_PARTS : LM_FORM_WHOLE, along);
}

// ---- operations

static void after(lm_shard *s, const lm_op *op) {
  s->b.at = op->parent;
  s->b.before = op->next;
  s->b.loc = op->loc;
}

static void replace_result(lm_shard *s, lm_value *old, lm_value *now) {
  now->name = old->name;
  if (old->def && now->def)
    now->def->remat = old->def->remat;
  lm_shard_of(s, old)->now = now;
}

// The rows of other ranks: index - first, clamped by the operation itself, and a mask of own rows.
typedef struct own_rows {
  lm_value *index, *mask;
} own_rows;

static own_rows rows_of(lm_shard *s, lm_value *index, lm_axis table) {
  lm_builder *b = &s->b;
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  lm_value *all = lm_emit_clamp(b, index, lm_axis_size(s->m, table));
  lm_value *i = lm_emit2(b, LM_OP_SUB, all, lm_shard_first(s, table));
  lm_value *end = lm_emit_const(b, number, (double)lm_axis_size(s->m, lm_shard_part(s, table)));
  lm_value *low = lm_emit2(b, LM_OP_GE, i, lm_emit_const(b, number, 0));
  return (own_rows){i, lm_emit2(b, LM_OP_AND, low, lm_emit2(b, LM_OP_LT, i, end))};
}

static lm_value *masked(lm_shard *s, lm_value *mask, lm_value *x) {
  lm_value *zero = lm_emit_const(&s->b, lm_type_make((lm_dtype)x->type.dtype, NULL, 0), 0);
  return lm_emit_select(&s->b, mask, x, zero);
}

// Each rank reads the rows of the part of the table that it has; the others' are 0.
static void gather_own(lm_shard *s, lm_op *op) {
  lm_axis table = op->attr.axes[0];
  lm_shard_need(s, op, 0, LM_FORM_PARTS, table);
  lm_shard_need(s, op, 1, LM_FORM_TERMS, 0);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  own_rows own = rows_of(s, op->in[1], table);
  op->in[1] = own.index;
  axes_divide(s, op->attr.axes, 1, table);
  after(s, op);
  replace_result(s, op->out[0], masked(s, own.mask, op->out[0]));
}

static void scatter_own(lm_shard *s, lm_op *op) {
  lm_axis table = op->attr.axes[0];
  lm_shard_need(s, op, 0, LM_FORM_TERMS, 0);
  lm_shard_need(s, op, 1, LM_FORM_TERMS, 0);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  own_rows own = rows_of(s, op->in[1], table);
  op->in[0] = masked(s, own.mask, op->in[0]);
  op->in[1] = own.index;
  axes_divide(s, op->attr.axes, 1, table);
  op->out[0]->type = lm_shard_divided(s, op->out[0]->type, table);
}

// Random numbers are functions of the row's number, which operand 1 holds, and of the column, which
// begins at operand 2.
static void rng_rows(lm_shard *s, lm_op *op, lm_axis along) {
  lm_type t = lm_shard_of(s, op->out[0])->type;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool has = lm_type_find(lm_shard_of(s, op->in[i])->type, along) >= 0;
    lm_shard_need(s, op, i, has ? LM_FORM_PARTS : LM_FORM_WHOLE, has ? along : 0);
  }
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  if (t.axis[t.rank - 1] == along)
    op->in[2] = lm_emit2(&s->b, LM_OP_ADD, op->in[2], lm_shard_first(s, along));
  op->out[0]->type = lm_shard_divided(s, t, along);
}

static lm_axis operand_axis(const lm_shard *s, const lm_op *op, uint32_t i, lm_axis factor) {
  return lm_type_find(lm_shard_of(s, op->in[i])->type, factor) >= 0 ? factor : 0;
}

// The region of a scan has the types of its operands.
static void scan_divide(lm_shard *s, lm_op *op, lm_axis factor) {
  for (uint32_t i = 0; i < op->n_in; i++)
    op->body->args[i]->type = lm_shard_divided(s, op->body->args[i]->type, factor);
  for (lm_op *o = op->body->first; o; o = o->next)
    for (uint32_t i = 0; i < o->n_out; i++)
      o->out[i]->type = lm_shard_divided(s, o->out[i]->type, factor);
}

static void op_divide(lm_shard *s, lm_op *op, lm_axis factor) {
  lm_factor kind = lm_op_info_of(op)->factor;
  lm_axis along = lm_shard_along(s, op, factor, 0);
  if (kind == LM_FACTOR_INDEX && factor == op->attr.axes[0]) {
    (op->code == LM_OP_GATHER ? gather_own : scatter_own)(s, op);
    return;
  }
  if (kind == LM_FACTOR_ROWS) {
    rng_rows(s, op, along);
    return;
  }
  if (kind == LM_FACTOR_ROUTE) {
    lm_shard_route(s, op, factor);
    return;
  }
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_axis a = operand_axis(s, op, i, factor);
    lm_shard_need(s, op, i, a ? LM_FORM_PARTS : LM_FORM_TERMS, a);
  }
  axes_divide(s, op->attr.axes, op->attr.n_axes, factor);
  axes_divide(s, op->attr.to, op->attr.n_to, along);
  if (kind == LM_FACTOR_SCAN)
    scan_divide(s, op, factor);
  for (uint32_t i = 0; i < op->n_out; i++)
    op->out[i]->type = lm_shard_divided(s, op->out[i]->type, along);
  if (kind == LM_FACTOR_MAX && !along) {
    after(s, op);
    replace_result(s, op->out[0], lm_shard_collective(s, LM_OP_ALL_MAX, op->out[0], 0, 0));
  }
}

static void op_whole(lm_shard *s, lm_op *op) {
  lm_shard_value *out = op->n_out ? lm_shard_of(s, op->out[0]) : NULL;
  bool with_terms = out && out->active && out->spread == LM_SPREAD_WHOLE && lm_shard_has_terms(out);
  bool any = !out || !out->active; // without a gradient: in either form of whole values
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->in[i]);
    if (any && v->spread == LM_SPREAD_WHOLE)
      op->in[i] = v->now;
    else
      lm_shard_need(s, op, i, with_terms ? LM_FORM_TERMS : LM_FORM_WHOLE, 0);
  }
  if (!out || !lm_shard_parts_result(s, op))
    return;
  after(s, op);
  lm_axis a = out->along;
  replace_result(s, op->out[0],
                 lm_shard_collective(s, LM_OP_PART, op->out[0], a, lm_shard_part(s, a)));
}

static void op_partial(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->in[i]);
    if (v->spread == LM_SPREAD_PARTIAL || !v->active)
      op->in[i] = v->spread == LM_SPREAD_PARTS ? lm_shard_terms(s, op->in[i], op) : v->now;
    else
      lm_shard_need(s, op, i, LM_FORM_TERMS, 0);
  }
}

static lm_mesh_set set_of(const lm_shard *s) {
  return (lm_mesh_set)(1 << (s->mesh - 1));
}

// The axis along which op_state's operand i is divided: a value that is written is spread as the
// global is, an index is whole. `along`: of the global.
static lm_axis written_along(const lm_shard *s, const lm_op *op, uint32_t i, lm_axis along) {
  bool last = i + 1 == op->n_in;
  if (op->code == LM_OP_APPEND)
    return last ? along : 0; // x lacks the axis of the cache's positions
  bool writes = op->code == LM_OP_RETAIN || op->code == LM_OP_ASSIGN || op->code == LM_OP_ACCUM;
  const lm_global *g = writes ? lm_global_find(s->m, op->attr.sym) : NULL;
  return writes && i >= op->attr.n_imm / 2u
             ? lm_shard_axis_of_global(s, g, lm_shard_of(s, op->in[i])->type)
             : 0;
}

// The sum over rows that is added to a state may stay partial: the ranks' sums are added once a
// step. With a second addition to the same state both are whole.
static bool adds_partial(lm_shard *s, const lm_op *op, uint32_t i) {
  if (op->code != LM_OP_ACCUM || i + 1 < op->n_in || !s->batch ||
      lm_shard_of(s, op->in[i])->spread != LM_SPREAD_PARTIAL)
    return false;
  return lm_region_count(s->f->body, LM_OP_ACCUM, op->attr.sym) == 1;
}

// Reads and writes of globals. The gradient of a whole parameter whose cotangent has terms is
// partial.
static void op_state(lm_shard *s, lm_op *op) {
  const lm_shard_value *v = op->n_out ? lm_shard_of(s, op->out[0]) : NULL;
  lm_axis along = v && v->spread == LM_SPREAD_PARTS ? v->along : 0;
  if (v && s->f->key.id == LM_FUNC_LOSS && v->active && !along && lm_shard_has_terms(v))
    lm_global_find(s->m, op->attr.sym)->partial |= set_of(s);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_axis own = written_along(s, op, i, along);
    const lm_shard_value *x = lm_shard_of(s, op->in[i]);
    if (!own && adds_partial(s, op, i)) {
      op->in[i] = x->now;
      lm_global_find(s->m, op->attr.sym)->partial |= set_of(s);
    } else if (!own && !v && x->spread == LM_SPREAD_WHOLE)
      op->in[i] = x->now; // a value that is written has no gradient: in either form
    else
      lm_shard_need(s, op, i, own ? LM_FORM_PARTS : LM_FORM_WHOLE, own);
  }
  if (v)
    op->out[0]->type = lm_shard_divided(s, op->out[0]->type, along);
}

// ---- control

static void region_divide(lm_shard *s, lm_region *r);

static void loop_divide(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->body->args[i + 1]);
    need_spread(s, op, i, (lm_spread)v->spread, v->along);
    op->body->args[i + 1]->type = op->out[i]->type = lm_shard_divided(s, v->type, v->along);
  }
  region_divide(s, op->body);
  for (uint32_t i = op->n_in; i < op->n_out; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->out[i]);
    op->out[i]->type = lm_shard_divided(s, v->type, v->along);
  }
}

static void yield_divide(lm_shard *s, lm_op *op) {
  const lm_op *loop = op->parent->owner;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, loop->out[i]);
    need_spread(s, op, i, (lm_spread)v->spread, v->along);
  }
}

static void result_is_partial(lm_shard *s, uint32_t i) {
  if (!s->f->out_partial)
    s->f->out_partial = LM_NEW_N(s->m->arena, lm_mesh_set, s->f->n_out);
  s->f->out_partial[i] |= set_of(s);
}

// A result that is no sum over this axis of the mesh is one on the first rank alone.
static void return_divide(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_shard_value *v = lm_shard_of(s, op->in[i]);
    if (!lm_shard_returns_partial(s, i)) {
      lm_shard_need(s, op, i, LM_FORM_WHOLE, 0);
      continue;
    }
    result_is_partial(s, i);
    if (v->spread == LM_SPREAD_PARTIAL)
      op->in[i] = v->now;
    else {
      lm_value *x = lm_shard_terms(s, op->in[i], op);
      s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
      op->in[i] = lm_shard_collective(s, LM_OP_FIRST, x, 0, 0);
    }
  }
}

static void region_divide(lm_shard *s, lm_region *r) {
  for (lm_op *op = r->first, *next; op && !s->failed; op = next) {
    next = op->next;
    lm_axis factor;
    if (lm_shard_is_pipeline(s, op))
      lm_shard_pipeline(s, op);
    else if (op->code == LM_OP_LOOP)
      loop_divide(s, op);
    else if (op->code == LM_OP_YIELD)
      yield_divide(s, op);
    else if (op->code == LM_OP_RETURN)
      return_divide(s, op);
    else if (lm_op_info_of(op)->factor == LM_FACTOR_STATE)
      op_state(s, op);
    else if (op->n_out && lm_shard_keeps_partial(s, op))
      op_partial(s, op);
    else if (op->n_out && (factor = lm_shard_factor(s, op)))
      op_divide(s, op, factor);
    else
      op_whole(s, op);
  }
}

// ---- functions and globals

// The data is divided by every axis of the mesh but tp, whose ranks see the same rows.
static bool divides_batch(const lm_mesh_axis *by) {
  return by->rows || by->positions || strcmp(by->name, "tp") != 0;
}

// The order in which the axes of the mesh are divided: rows that are sorted by expert are divided
// by points before they are divided by experts, and a micro-batch of a pipeline has rows of both.
enum {
  DATA,
  DATA_AND_EXPERTS,
  STAGES,
  LAST
};

static int order_of(const lm_mesh_axis *by) {
  bool data = divides_batch(by) && !by->pipeline;
  return by->pipeline                               ? STAGES
         : !data                                    ? LAST
         : by->rows && (by->n_shard || by->experts) ? DATA_AND_EXPERTS
                                                    : DATA;
}

static void choose(lm_shard *s, lm_func *f) {
  s->f = f;
  s->n_values = s->m->n_values;
  s->value = lm_calloc((size_t)s->n_values + 1, sizeof *s->value);
  lm_shard_choose(s);
}

// The parameters of which a use in some loss needs the whole cotangent.
static void params_choose(lm_shard *s) {
  uint8_t *before = lm_calloc((size_t)s->m->n_globals + 1, 1);
  do {
    memcpy(before, s->whole_params, s->m->n_globals);
    for (lm_func *f = s->m->funcs; f; f = f->next)
      if (f->key.id == LM_FUNC_LOSS) {
        choose(s, f);
        lm_free(s->value);
      }
  } while (memcmp(before, s->whole_params, s->m->n_globals));
  lm_free(before);
}

static void func_divide(lm_shard *s, lm_func *f) {
  s->b = (lm_builder){.m = s->m};
  choose(s, f);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_value *v = f->body->args[i];
    v->type = lm_shard_divided(s, v->type, lm_shard_of(s, v)->along);
  }
  region_divide(s, f->body);
  lm_free(s->value);
}

static bool funcs_divide(lm_shard *s) {
  uint8_t *params = lm_calloc((size_t)s->m->n_globals + 1, 1);
  uint8_t *others = lm_calloc((size_t)s->m->n_globals + 1, 1); // of functions without gradients
  bool ok = true;
  bool ticks = lm_mesh_axis_ticks(s->by);
  s->whole_params = params;
  if (!ticks)
    params_choose(s);
  for (lm_func *f = s->m->funcs; f && ok; f = f->next) {
    s->whole_params = f->key.id == LM_FUNC_LOSS ? params : others;
    if (s->by->pipeline && f->key.id == LM_FUNC_BEGIN)
      ok = lm_shard_begin(s, f);
    else if (s->by->pipeline && (f->key.id == LM_FUNC_PREFILL || f->key.id == LM_FUNC_DECODE))
      ok = lm_shard_decode(s, f);
    else if (s->by->pipeline && !lm_shard_runs_pipeline(f))
      ok = lm_shard_instances_divide(s, f);
    else if (ticks)
      ok = lm_shard_ticks(s, f);
    else if (!s->by->positions || lm_shard_takes_batch(f))
      func_divide(s, f);
  }
  lm_free(others);
  lm_free(params);
  return ok;
}

// True if a trained parameter is divided.
static bool globals_divide(lm_shard *s) {
  bool any = false;
  for (uint32_t i = 0; i < s->m->n_globals; i++) {
    lm_global *g = &s->m->globals[i];
    lm_axis along = lm_shard_axis_of_global(s, g, g->type);
    for (int k = 0; k < g->n_stack; k++)
      along = s->stacks[g->type.axis[k]] ? g->type.axis[k] : along;
    g->type = lm_shard_divided(s, g->type, along);
    any |= along && g->kind == LM_GLOBAL_PARAM;
  }
  return any;
}

static bool axis_divide(lm_module *m, int mesh, bool mixes) {
  lm_mesh_axis *by = &m->mesh.axis[mesh - 1];
  lm_shard s = {
      .m = m,
      .mesh = mesh,
      .by = by,
      .batch = divides_batch(by),
      .positions = by->positions,
      .mixes = mixes,
  };
  s.order = lm_calloc((size_t)m->n_axes * 2 + 1, sizeof *s.order);
  s.stacks = lm_calloc((size_t)m->n_axes * 2 + 1, 1);
  s.n_axes = m->n_axes;
  s.rows = lm_calloc((size_t)m->n_axes * 2 + 1, 1);
  s.experts = lm_calloc((size_t)m->n_axes * 2 + 1, 1);
  s.all_rows = lm_calloc((size_t)m->n_axes * 2 + 1, sizeof *s.all_rows);
  s.received = lm_calloc((size_t)m->n_axes * 2 + 1, sizeof *s.received);
  s.expert_weights = lm_calloc((size_t)m->n_globals + 1, 1);
  bool ok = lm_shard_list(m, by, s.order);
  if (ok && by->size > 1) {
    lm_shard_route_find(&s);
    ok = !s.failed && (!by->pipeline || (lm_shard_repetitions_find(&s) && lm_shard_chunks(&s))) &&
         funcs_divide(&s) && !s.failed;
    if (ok && globals_divide(&s))
      lm_shard_norm(m, mesh);
  }
  by->n_shard = 0;
  by->experts = false;
  lm_free(s.order);
  lm_free(s.stacks);
  lm_free(s.rows);
  lm_free(s.experts);
  lm_free(s.all_rows);
  lm_free(s.received);
  lm_free(s.expert_weights);
  return ok;
}

static void note_undivided(lm_op *op, void *user) {
  const lm_op **first = user;
  if (!*first && lm_op_info_of(op)->factor == LM_FACTOR_NONE)
    *first = op;
}

// Calls are inlined before this pass, and attention is recognized after it.
static bool can_run(const lm_module *m) {
  const lm_op *found = NULL;
  for (const lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, note_undivided, &found);
  if (found)
    LM_REPORT(m->ctx, found->loc, E914, lm_op_info_of(found)->name);
  return !found;
}

static lm_builder builder_at_end(const lm_func *f) {
  lm_op *end = f->body->last;
  return (lm_builder){
      .m = f->module,
      .at = f->body,
      .before = end,
      .loc = end->loc,
  };
}

// Metrics are means over the micro-batches. Where a call computes those of all its rows, they are
// sums, and divided by the number of micro-batches.
static void metrics_divide(const lm_module *m) {
  const lm_mesh_axis *by = lm_shard_stages_axis(m);
  for (lm_func *f = by && by->rows ? m->funcs : NULL; f; f = f->next) {
    lm_op *end = f->body->last;
    lm_builder b = builder_at_end(f);
    for (uint32_t i = 2; f->key.id == LM_FUNC_LOSS && i < end->n_in; i++)
      if (lm_row_mix_result(f, i) == LM_ROWS_SUM)
        end->in[i] =
            lm_emit2(&b, LM_OP_DIV, end->in[i], lm_emit_const(&b, end->in[i]->type, by->pipeline));
  }
}

// A call has the losses of all micro-batches, so a weight that depends on no row counts once for
// each.
static void weights_count(const lm_module *m) {
  const lm_mesh_axis *by = lm_shard_stages_axis(m);
  for (lm_func *f = by ? m->funcs : NULL; f; f = f->next) {
    bool is_loss = f->key.id == LM_FUNC_LOSS || f->key.id == LM_FUNC_EVAL;
    lm_op *end = f->body->last;
    lm_builder b = builder_at_end(f);
    if (!is_loss || lm_row_mix_result(f, 1) != LM_ROWS_NONE)
      continue;
    lm_value *n = lm_emit_const(&b, end->in[1]->type, by->pipeline);
    end->in[1] = lm_emit2(&b, LM_OP_MUL, end->in[1], n);
  }
}

// True if axis k of the mesh has not divided yet.
static bool divides_now(const lm_module *m, int k) {
  const lm_mesh_axis *by = &m->mesh.axis[k - 1];
  return by->n_shard || by->pipeline || by->experts || lm_shard_batch(m, k);
}

bool lm_pass_shard(lm_module *m, const lm_pass_env *env) {
  const lm_fp8 *fp8 = env ? env->fp8 : NULL;
  bool ok = !m->mesh.n || (can_run(m) && lm_shard_rows_choose(m, fp8));
  if (ok) {
    metrics_divide(m);
    weights_count(m);
  }
  bool mixes = ok && lm_shard_stages_axis(m) && lm_shard_mixes(m, fp8);
  for (int k = 1; k <= m->mesh.n && ok; k++)
    if (m->mesh.axis[k - 1].balanced)
      lm_shard_balance(m, k);
  for (int order = DATA; order <= LAST; order++)
    for (int k = 1; k <= m->mesh.n && ok; k++) {
      const lm_mesh_axis *by = &m->mesh.axis[k - 1];
      if (order_of(by) == order && divides_now(m, k))
        ok = axis_divide(m, k, mixes);
    }
  for (int k = 1; k <= m->mesh.n && ok; k++)
    if (m->mesh.axis[k - 1].zero && m->mesh.axis[k - 1].size > 1)
      lm_shard_zero(m, k);
  return ok;
}
