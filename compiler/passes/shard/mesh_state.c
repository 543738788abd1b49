// mesh_state.c - see mesh_state.h. A forward analysis; loops are repeated until the states of their
// carries no longer change.
#include "compiler/passes/shard/mesh_state.h"
#include "compiler/ir/dot.h"
#include "compiler/ops/interface.h"
#include "compiler/analysis/activity.h"
#include <string.h>

typedef struct analysis {
  const lm_func *f;
  const lm_module *m;
  int mesh;
  bool graph; // values have cotangents
  uint8_t *state, *active;
  lm_buf *why; // NULL: the states are not final, mistakes are not reported
} analysis;

static lm_mesh_state of(const analysis *a, const lm_value *v) {
  return (lm_mesh_state)a->state[v->id];
}

static lm_mesh_state mistake(analysis *a, const lm_op *op, const char *what) {
  if (a->why) {
    lm_buf_printf(a->why, "%s@%s: ", a->why->n ? "\n" : "", a->f->name);
    lm_op_print(op, a->why);
    lm_buf_printf(a->why, ": %s (along %s)", what, a->m->mesh.axis[a->mesh - 1].name);
  }
  return LM_MESH_UNKNOWN;
}

// ---- types

static bool is_divided(const analysis *a, lm_axis axis) {
  return lm_axis_divided_by(a->m, axis) >> (a->mesh - 1) & 1;
}

static lm_axis divided_axis(const analysis *a, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (is_divided(a, t.axis[i]))
      return t.axis[i];
  return 0;
}

static bool reduces(const lm_op *op, lm_axis axis) {
  return axis && lm_attr_has_axis(&op->attr, axis);
}

// ---- what the operands of an operation are

typedef struct operands {
  uint32_t zero, equal, whole, terms, parts, partial, own, maxima, rows, local, unknown, n;
  lm_axis axis; // of the divided operands
  bool two_axes;
} operands;

static operands operands_of(const analysis *a, const lm_op *op) {
  operands x = {.n = op->n_in};
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_mesh_state s = of(a, op->in[i]);
    x.zero += s == LM_MESH_ZERO;
    x.equal += s == LM_MESH_EQUAL;
    x.whole += s == LM_MESH_WHOLE;
    x.terms += s == LM_MESH_TERMS;
    x.parts += s == LM_MESH_PARTS;
    x.partial += s == LM_MESH_PARTIAL;
    x.own += s == LM_MESH_OWN;
    x.maxima += s == LM_MESH_MAXIMA;
    x.rows += s == LM_MESH_ROWS;
    x.local += s == LM_MESH_LOCAL;
    x.unknown += s == LM_MESH_UNKNOWN;
    lm_axis own = s == LM_MESH_PARTS ? divided_axis(a, op->in[i]->type) : 0;
    x.two_axes |= own && x.axis && own != x.axis;
    x.axis = own ? own : x.axis;
  }
  return x;
}

// ---- rules

// A value without a gradient mixes both forms: none of them gets a cotangent from it.
static lm_mesh_state equal_form(analysis *a, const lm_op *op, operands x) {
  if (a->graph && x.whole && x.terms && a->active[op->out[0]->id])
    return mistake(a, op,
                   "mixes a value that entered the divided computation with one that did "
                   "not: `fan` is missing");
  if (x.zero == x.n && x.n)
    return LM_MESH_ZERO;
  if (!a->graph)
    return LM_MESH_EQUAL;
  return x.whole ? LM_MESH_WHOLE : x.terms ? LM_MESH_TERMS : LM_MESH_EQUAL;
}

static lm_mesh_state of_parts(analysis *a, const lm_op *op, operands x) {
  if (a->graph && x.whole)
    return mistake(a, op,
                   "mixes parts with a value that did not enter the divided computation: "
                   "`fan` is missing");
  if (lm_op_has(op, LM_T_ASSEMBLE) && !divided_axis(a, op->out[0]->type))
    return LM_MESH_UNKNOWN; // weights of GEMMs that are merged
  if (x.two_axes && lm_op_info_of(op)->factor != LM_FACTOR_MOVE)
    return mistake(a, op, "mixes parts along two axes");
  if (op->code == LM_OP_SCATTER && !divided_axis(a, op->out[0]->type))
    return LM_MESH_PARTIAL; // rows are summed
  if (!reduces(op, x.axis) || lm_op_info_of(op)->factor == LM_FACTOR_MOVE)
    return divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : LM_MESH_UNKNOWN;
  switch (lm_op_info_of(op)->factor) {
  case LM_FACTOR_SUM: return LM_MESH_PARTIAL;
  case LM_FACTOR_MAX: return LM_MESH_MAXIMA;
  case LM_FACTOR_INDEX: return LM_MESH_UNKNOWN;
  default: // the derivative of `max` asks for the local index of a maximum
    return a->graph ? mistake(a, op, "needs the whole of an axis that is divided") : LM_MESH_LOCAL;
  }
}

static bool sums(lm_mesh_state s) {
  return s == LM_MESH_PARTIAL || s == LM_MESH_OWN;
}

static bool is_partial(const void *user, const lm_value *v) {
  return sums(of(user, v));
}

static lm_mesh_state of_partial(analysis *a, const lm_op *op, operands x) {
  uint32_t n = x.partial + x.own;
  if (x.parts)
    return x.partial ? mistake(a, op, "mixes a partial sum with parts") : of_parts(a, op, x);
  if (!lm_op_is_linear(op, is_partial, a))
    return mistake(a, op, "uses a partial sum before it is reduced");
  bool bilinear = lm_op_has(op, LM_T_BILINEAR | LM_T_LINEAR_FIRST);
  bool select = op->code == LM_OP_SELECT;
  if (!bilinear && n + x.zero + (select && !sums(of(a, op->in[0]))) < x.n)
    return mistake(a, op, "adds a partial sum to a value that is none");
  if (a->graph && bilinear && x.whole)
    return mistake(a, op,
                   "mixes a partial sum with a value that did not enter the divided "
                   "computation: `fan` is missing");
  return LM_MESH_PARTIAL;
}

// Values that depend on the rank: own rows of a table are valid where a mask says so, and zero
// elsewhere behind a select. Other such values are not followed.
static lm_mesh_state of_local(analysis *a, const lm_op *op, operands x) {
  bool table = lm_op_info_of(op)->factor == LM_FACTOR_INDEX && op->n_in == 2;
  if (op->code == LM_OP_GATHER && reduces(op, divided_axis(a, op->in[0]->type)))
    return LM_MESH_ROWS;
  if (table && op->code == LM_OP_SCATTER && divided_axis(a, op->out[0]->type)) {
    lm_mesh_state updates = of(a, op->in[0]);
    bool fits = updates == LM_MESH_OWN || updates == LM_MESH_ZERO || updates == LM_MESH_LOCAL;
    return fits ? LM_MESH_PARTS : mistake(a, op, "scatters rows that are not the rank's own");
  }
  if (op->code == LM_OP_SELECT && of(a, op->in[0]) == LM_MESH_LOCAL && x.zero &&
      lm_dtype_is_float(op->out[0]->type.dtype) && !x.parts && !x.maxima) {
    if (a->graph && x.whole)
      return mistake(a, op,
                     "masks a value that did not enter the divided computation: `fan` is "
                     "missing");
    return x.partial ? mistake(a, op, "masks a partial sum") : LM_MESH_OWN;
  }
  return divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : LM_MESH_LOCAL;
}

static lm_mesh_state of_maxima(analysis *a, const lm_op *op) {
  lm_mesh_state s = divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : LM_MESH_LOCAL;
  return a->graph ? mistake(a, op, "uses the ranks' maxima before `all_max`") : s;
}

// Members of a packed weight that are divided are side by side along an axis that is not.
static bool packs_parts(const analysis *a, const lm_op *op) {
  lm_module *m = (lm_module *)a->m;
  const lm_global *g = op->code == LM_OP_PARAM ? lm_global_find(m, op->attr.sym) : NULL;
  for (uint32_t i = 0; g && i < g->n_members; i++)
    if (divided_axis(a, lm_global_find(m, g->members[i])->type))
      return true;
  return false;
}

static lm_mesh_state source(analysis *a, const lm_op *op) {
  bool divided = divided_axis(a, op->out[0]->type) != 0;
  if (!divided && packs_parts(a, op))
    return LM_MESH_UNKNOWN;
  if (op->code == LM_OP_CONST)
    return !op->attr.num ? LM_MESH_ZERO : divided ? LM_MESH_PARTS : LM_MESH_EQUAL;
  if (op->code == LM_OP_IOTA)
    return divided ? LM_MESH_LOCAL : LM_MESH_EQUAL;
  if (op->code == LM_OP_RNG) {
    bool rows = of(a, op->in[1]) == LM_MESH_PARTS;
    bool column = of(a, op->in[2]) == LM_MESH_LOCAL;
    bool equal = of(a, op->in[1]) <= LM_MESH_EQUAL && of(a, op->in[2]) <= LM_MESH_EQUAL;
    return divided && (rows || column) ? LM_MESH_PARTS
           : !divided && equal         ? LM_MESH_EQUAL
                                       : LM_MESH_UNKNOWN;
  }
  return divided ? LM_MESH_PARTS : LM_MESH_EQUAL;
}

// ---- collectives along this axis of the mesh

static lm_mesh_state received(analysis *a, const lm_op *op) {
  return a->graph && a->active[op->out[0]->id] ? LM_MESH_WHOLE : LM_MESH_EQUAL;
}

static lm_mesh_state entered(analysis *a, const lm_op *op) {
  return a->graph && a->active[op->out[0]->id] ? LM_MESH_TERMS : LM_MESH_EQUAL;
}

static lm_mesh_state collective(analysis *a, const lm_op *op) {
  lm_mesh_state s = op->n_in ? of(a, op->in[0]) : LM_MESH_EQUAL;
  bool any = s == LM_MESH_ZERO || s == LM_MESH_LOCAL || s == LM_MESH_UNKNOWN;
  bool equal = any || s == LM_MESH_EQUAL;
  switch (op->code) {
  case LM_OP_RANK:
  case LM_OP_CYCLE:
  case LM_OP_EXCHANGE_COUNTS: return LM_MESH_LOCAL;
  case LM_OP_FAN:
    return equal || s == LM_MESH_WHOLE ? entered(a, op)
                                       : mistake(a, op, "needs a value that is equal on all ranks");
  case LM_OP_FIRST:
    return equal || s == LM_MESH_TERMS ? LM_MESH_PARTIAL
                                       : mistake(a, op,
                                                 "needs a value that is equal on all ranks "
                                                 "and entered the divided computation");
  case LM_OP_PART:
    return equal || s == LM_MESH_WHOLE ? LM_MESH_PARTS
                                       : mistake(a, op, "needs a value that is equal on all ranks");
  case LM_OP_ALL_REDUCE:
    return any || sums(s)
               ? received(a, op)
               : mistake(a, op, "reduces a value that is no partial sum: a reduction too many");
  case LM_OP_REDUCE_SCATTER:
    return any || sums(s)
               ? LM_MESH_PARTS
               : mistake(a, op, "reduces a value that is no partial sum: a reduction too many");
  case LM_OP_ALL_MAX:
    return any || s == LM_MESH_MAXIMA || s == LM_MESH_EQUAL
               ? received(a, op)
               : mistake(a, op, "needs the ranks' maxima");
  case LM_OP_ALL_GATHER:
  case LM_OP_COLLECT:
    if (!any && s != LM_MESH_PARTS)
      return mistake(a, op, "needs parts");
    return op->code == LM_OP_COLLECT ? received(a, op) : entered(a, op);
  default: return any || s == LM_MESH_PARTS ? LM_MESH_PARTS : mistake(a, op, "needs parts");
  }
}

// ---- control

static lm_mesh_state joined(lm_mesh_state x, lm_mesh_state y) {
  if (x == y || y == LM_MESH_ZERO)
    return x;
  if (x == LM_MESH_ZERO)
    return y;
  if (sums(x) && sums(y))
    return LM_MESH_PARTIAL;
  if ((x == LM_MESH_LOCAL && y == LM_MESH_EQUAL) || (x == LM_MESH_EQUAL && y == LM_MESH_LOCAL))
    return LM_MESH_LOCAL;
  bool equal = x <= LM_MESH_TERMS && y <= LM_MESH_TERMS;
  if (equal && (x == LM_MESH_EQUAL || y == LM_MESH_EQUAL))
    return x == LM_MESH_EQUAL ? y : x;
  return LM_MESH_UNKNOWN;
}

static void region_run(analysis *a, const lm_region *r);

static void loop_run(analysis *a, const lm_op *op) {
  const lm_op *yield = op->body->last;
  lm_buf *why = a->why;
  a->state[op->body->args[0]->id] = LM_MESH_EQUAL;
  for (uint32_t i = 0; i < op->n_in; i++)
    a->state[op->body->args[i + 1]->id] = a->state[op->in[i]->id];
  a->why = NULL;
  for (bool changed = true; changed;) {
    changed = false;
    region_run(a, op->body);
    for (uint32_t i = 0; i < op->n_in; i++) {
      uint8_t *arg = &a->state[op->body->args[i + 1]->id];
      lm_mesh_state now = joined((lm_mesh_state)*arg, of(a, yield->in[i]));
      changed |= now != *arg;
      *arg = (uint8_t)now;
    }
  }
  a->why = why;
  region_run(a, op->body);
  for (uint32_t i = 0; i < op->n_out; i++)
    a->state[op->out[i]->id] =
        i < op->n_in ? a->state[op->body->args[i + 1]->id] : a->state[yield->in[i]->id];
  for (uint32_t i = 0; i < op->n_in; i++)
    if (of(a, op->out[i]) == LM_MESH_UNKNOWN && of(a, op->in[i]) != LM_MESH_UNKNOWN &&
        of(a, yield->in[i]) != LM_MESH_UNKNOWN)
      mistake(a, yield, "a carry begins and continues in different forms");
}

// Attention is divided along the axes that its operands share; the cotangent of an operand that
// lacks a divided axis is a sum over it.
static lm_mesh_state of_attention(analysis *a, const lm_op *op, operands x, uint32_t i) {
  bool back = op->code == LM_OP_ATTEND_VJP;
  bool divided = divided_axis(a, op->out[i]->type) != 0;
  if (x.unknown || x.local || x.rows || x.maxima)
    return divided ? LM_MESH_PARTS : LM_MESH_UNKNOWN;
  if (x.partial + x.own && (!back || x.parts))
    return mistake(a, op, "uses a partial sum before it is reduced");
  if (a->graph && x.parts && x.whole)
    return mistake(a, op,
                   "mixes parts with a value that did not enter the divided computation: "
                   "`fan` is missing");
  if (x.parts)
    return divided ? LM_MESH_PARTS : back ? LM_MESH_PARTIAL : LM_MESH_UNKNOWN;
  return x.partial + x.own ? LM_MESH_PARTIAL : equal_form(a, op, x);
}

// ---- routing (shard_route.c)

static lm_mesh_state sorted_ids(analysis *a, const lm_op *op) {
  lm_mesh_state id = of(a, op->in[0]);
  bool own = id == LM_MESH_PARTS || id == LM_MESH_LOCAL;
  if (op->code == LM_OP_GROUP_COUNTS)
    return id == LM_MESH_PARTS ? LM_MESH_PARTIAL : id;
  lm_mesh_state counts = of(a, op->in[1]);
  if (id == LM_MESH_PARTS && counts == LM_MESH_EQUAL)
    return mistake(a, op, "sorts the rows of a rank by the counts of all ranks");
  if (!own && counts == LM_MESH_PARTIAL)
    return mistake(a, op, "sorts the rows of all ranks by the counts of one");
  return divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : id;
}

// group_rows and ungroup_rows. Rows that a rank has sorted by its own experts are those of all
// points: back at these they are terms of a sum.
static lm_mesh_state moved_rows(analysis *a, const lm_op *op) {
  lm_mesh_state x = of(a, op->in[0]);
  lm_mesh_state order = of(a, op->in[1]);
  lm_mesh_state inverse = of(a, op->in[2]);
  bool own = order >= LM_MESH_PARTS || inverse >= LM_MESH_PARTS;
  bool divided = divided_axis(a, op->out[0]->type) != 0;
  if (own && x == LM_MESH_WHOLE && a->graph)
    return mistake(a, op,
                   "sorts a value that did not enter the divided computation: `fan` is missing");
  if (own && sums(x))
    return mistake(a, op, "sorts a partial sum by the ids of one rank");
  if (own)
    return divided ? LM_MESH_PARTS : LM_MESH_PARTIAL;
  return divided ? LM_MESH_PARTS : x;
}

static lm_mesh_state of_groups(analysis *a, const lm_op *op) {
  lm_mesh_state x = of(a, op->in[0]);
  lm_mesh_state w = of(a, op->in[1]);
  lm_mesh_state counts = of(a, op->in[2]);
  bool outer = op->code == LM_OP_GROUPED_OUTER;
  bool own = is_divided(a, lm_grouped_rows(op));
  bool divided = divided_axis(a, op->out[0]->type) != 0;
  if (own && counts == LM_MESH_EQUAL)
    return mistake(a, op, "multiplies the rows of a rank by the counts of all ranks");
  if (!own && (counts == LM_MESH_PARTIAL || counts == LM_MESH_PARTS))
    return mistake(a, op, "multiplies the rows of all ranks by the counts of one");
  if (a->graph && (own || x == LM_MESH_PARTS || w == LM_MESH_PARTS) &&
      (x == LM_MESH_WHOLE || w == LM_MESH_WHOLE))
    return mistake(a, op,
                   "mixes parts with a value that did not enter the divided computation: "
                   "`fan` is missing");
  if (own && (sums(x) || sums(w)))
    return mistake(a, op, "mixes a partial sum with parts");
  if (own)
    return !outer || divided ? LM_MESH_PARTS : LM_MESH_PARTIAL;
  operands both = operands_of(a, op);
  if (both.partial + both.own)
    return LM_MESH_PARTIAL;
  if (x == LM_MESH_PARTS || w == LM_MESH_PARTS)
    return divided ? LM_MESH_PARTS : LM_MESH_PARTIAL;
  return equal_form(a, op, both);
}

static lm_mesh_state of_routing(analysis *a, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (of(a, op->in[i]) == LM_MESH_UNKNOWN)
      return divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : LM_MESH_UNKNOWN;
  if (lm_op_is_grouped(op))
    return of_groups(a, op);
  return lm_op_sorts(op) ? sorted_ids(a, op) : moved_rows(a, op);
}

static lm_mesh_state op_state(analysis *a, const lm_op *op, uint32_t i) {
  if (lm_op_info_of(op)->attrs & LM_A_MESH) {
    if (op->attr.mesh == a->mesh)
      return collective(a, op);
    return op->n_in ? of(a, op->in[0]) : LM_MESH_EQUAL;
  }
  if (lm_op_has(op, LM_T_SOURCE) || op->code == LM_OP_APPEND)
    return source(a, op);
  if (lm_op_info_of(op)->factor == LM_FACTOR_ROUTE)
    return of_routing(a, op);
  operands x = operands_of(a, op);
  if (lm_op_attends(op))
    return of_attention(a, op, x, i);
  if (op->body) // a scan, whose parts are independent
    return divided_axis(a, op->out[i]->type) ? LM_MESH_PARTS : LM_MESH_UNKNOWN;
  if (x.unknown)
    return divided_axis(a, op->out[0]->type) ? LM_MESH_PARTS : LM_MESH_UNKNOWN;
  if (x.local || x.rows)
    return of_local(a, op, x);
  if (x.maxima)
    return of_maxima(a, op);
  if (x.partial || x.own)
    return of_partial(a, op, x);
  if (x.parts)
    return of_parts(a, op, x);
  if (divided_axis(a, op->out[0]->type)) // expand, or a move of undivided elements
    return op->code == LM_OP_EXPAND && !x.whole ? LM_MESH_PARTS : of_parts(a, op, x);
  return equal_form(a, op, x);
}

static void region_run(analysis *a, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->code == LM_OP_LOOP) {
      loop_run(a, op);
      continue;
    }
    for (uint32_t i = 0; i < op->n_out; i++)
      a->state[op->out[i]->id] = (uint8_t)op_state(a, op, i);
    bool inactive = op->n_out && a->graph && !a->active[op->out[0]->id];
    if (inactive && (of(a, op->out[0]) == LM_MESH_WHOLE || of(a, op->out[0]) == LM_MESH_TERMS))
      a->state[op->out[0]->id] = LM_MESH_EQUAL;
  }
}

uint8_t *lm_mesh_states(const lm_func *f, int mesh, lm_buf *why) {
  const lm_module *m = f->module;
  analysis a = {.f = f,
                .m = m,
                .mesh = mesh,
                .graph = m->stage == LM_STAGE_GRAPH && f->key.id == LM_FUNC_LOSS,
                .state = lm_calloc((size_t)m->n_values + 1, 1),
                .active = lm_activity_of_func(f),
                .why = why};
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    const lm_value *v = f->body->args[i];
    bool own = v->name && lm_port_find(v->name) == LM_PORT_OWN;
    a.state[v->id] = divided_axis(&a, v->type) ? LM_MESH_PARTS
                     : own                     ? LM_MESH_LOCAL
                                               : LM_MESH_EQUAL;
  }
  region_run(&a, f->body);
  lm_free(a.active);
  return a.state;
}
