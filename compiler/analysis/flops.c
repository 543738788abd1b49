// flops.c - see flops.h.
#include "compiler/analysis/flops.h"

#include "compiler/analysis/activity.h"
#include "compiler/ir/attend.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"

// Of groups: of all rows, each with the weights of one group.
static double dot_flops(const lm_module *m, const lm_op *dot) {
  lm_type x = dot->in[0]->type;
  lm_type w = dot->in[1]->type;
  if (dot->code == LM_OP_GROUPED_OUTER)
    return 2 * (double)lm_type_elements(m, x) * (double)lm_type_elements(m, w) /
           (double)lm_axis_size(m, dot->attr.axes[0]);
  double n = 2 * (double)lm_type_elements(m, dot->out[0]->type);
  for (int i = 0; i < dot->attr.n_axes; i++)
    n *= (double)lm_axis_size(m, dot->attr.axes[i]);
  return n;
}

// An operand of a mask's comparison: an argument of the region, possibly moved.
static lm_type compared(const lm_value *v) {
  while (v->def && lm_op_info_of(v->def)->traits & LM_T_MOVE)
    v = v->def->in[0];
  return v->type;
}

// True if the mask is `t >= s` in any equivalent form, alone or in a conjunction.
static bool mask_is_causal(const lm_op *attend, const lm_value *mask) {
  const lm_op *op = mask->def;
  if (!op)
    return false;
  if (op->code == LM_OP_AND)
    return mask_is_causal(attend, op->in[0]) || mask_is_causal(attend, op->in[1]);
  if (op->code != LM_OP_GE && op->code != LM_OP_GT && op->code != LM_OP_LE && op->code != LM_OP_LT)
    return false;
  lm_type a = compared(op->in[0]);
  lm_type b = compared(op->in[1]);
  lm_axis t = lm_attend_t(attend);
  lm_axis s = lm_attend_s(attend);
  bool straight = lm_type_find(a, t) >= 0 && lm_type_find(b, s) >= 0;
  bool crossed = lm_type_find(a, s) >= 0 && lm_type_find(b, t) >= 0;
  return straight != crossed;
}

bool lm_attend_is_causal(const lm_op *attend) {
  return mask_is_causal(attend, lm_attend_yield(attend, LM_ATTEND_MASK));
}

// The dots with v (one forward; those with do and for dv backward) and the operations of the
// region. A causal mask halves the pairs; the number of pairs that packed documents mask is not
// known statically.
static double attend_flops(const lm_module *m, const lm_op *op) {
  lm_type space = lm_attend_space(op);
  lm_type v = op->in[LM_ATTEND_V]->type;
  double own = 1;
  double n = 0;
  for (int i = 0; i < v.rank; i++)
    if (lm_type_find(space, v.axis[i]) < 0)
      own *= (double)lm_axis_size(m, v.axis[i]);
  n += (op->code == LM_OP_ATTEND ? 2 : 4) * own * (double)lm_type_elements(m, space);
  for (const lm_op *o = op->body->first; o; o = o->next)
    n += lm_flops_of(m, o);
  return lm_attend_is_causal(op) ? n / 2 : n;
}

double lm_flops_of(const lm_module *m, const lm_op *op) {
  const lm_op_info *info = lm_op_info_of(op);
  if (lm_op_multiplies(op) || lm_op_is_grouped(op))
    return dot_flops(m, op);
  if (op->code == LM_OP_ATTEND || op->code == LM_OP_ATTEND_VJP)
    return attend_flops(m, op);
  if (info->traits & LM_T_REDUCE)
    return info->flops * (double)lm_type_elements(m, op->in[0]->type);
  double n = op->n_out ? info->flops * (double)lm_type_elements(m, op->out[0]->type) : 0;
  bool scans = op->code == LM_OP_SCAN;
  double times = scans ? (double)lm_axis_size(m, lm_scan_axis(op)) : 1;
  for (const lm_op *o = scans || op->code == LM_OP_KERNEL ? op->body->first : NULL; o; o = o->next)
    n += times * lm_flops_of(m, o);
  return n;
}

// ---- models

// Of a loop over the ticks of a pipeline, in which each stage sends to the next one: the ticks in
// which a stage has no micro-batch.
static int64_t bubble_of(const lm_module *m, const lm_op *loop) {
  for (const lm_op *op = loop->body->first; op; op = op->next) {
    bool sends = op->code == LM_OP_RING_SHIFT && m->mesh.axis[op->attr.mesh - 1].pipeline;
    if (sends)
      return m->mesh.axis[op->attr.mesh - 1].size - 1;
  }
  return 0;
}

static bool reads_chunk(const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->def && op->in[i]->def->code == LM_OP_CYCLE)
      return true;
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    if (reads_chunk(in))
      return true;
  return false;
}

// Of an operation in such a loop, where a rank has several stages: each micro-batch takes as many
// ticks, and operations outside of the stages belong to one of them.
static int64_t chunks_of(const lm_module *m, const lm_op *loop, const lm_op *inside) {
  for (const lm_op *op = loop->body->first; op; op = op->next)
    if (op->code == LM_OP_CYCLE && !reads_chunk(inside))
      return lm_mesh_axis_chunks(&m->mesh.axis[op->attr.mesh - 1]);
  return 1;
}

static int64_t trips_around(const lm_module *m, const lm_op *op) {
  int64_t n = 1;
  for (const lm_op *owner = op->parent->owner; owner; op = owner, owner = owner->parent->owner)
    if (owner->code == LM_OP_LOOP)
      n *= (owner->attr.imm[0] - bubble_of(m, owner)) / chunks_of(m, owner, op);
    else if (owner->code == LM_OP_SCAN)
      n *= lm_axis_size(m, lm_scan_axis(owner));
  return n;
}

typedef struct counter {
  const lm_module *m;
  const uint8_t *active; // by value id: it has a gradient (activity.h)
  double flops;
} counter;

// True if operand i has a gradient; in a scan, if a result of the scan has one.
static bool is_active(const counter *c, const lm_op *op, uint32_t i) {
  const lm_op *owner = op->parent->owner;
  bool any = c->active[op->in[i]->id];
  for (uint32_t k = 0; owner && owner->code == LM_OP_SCAN && k < owner->n_out; k++)
    any |= c->active[owner->out[k]->id];
  return any;
}

// A dot takes as long again for the gradient of each operand that has one, an attention twice as
// long for those of all its operands.
static int gemms_of(const counter *c, const lm_op *op) {
  int n = 0;
  for (uint32_t i = 0; i < op->n_in; i++)
    n += is_active(c, op, i);
  return op->code != LM_OP_ATTEND ? 1 + n : n ? 3 : 1;
}

static void count(lm_op *op, void *user) {
  counter *c = user;
  const lm_op *owner = op->parent->owner;
  bool multiplies =
      op->code == LM_OP_DOT || op->code == LM_OP_GROUPED_DOT || op->code == LM_OP_ATTEND;
  if (!multiplies || (owner && owner->code == LM_OP_ATTEND))
    return;
  c->flops += (double)(trips_around(c->m, op) * gemms_of(c, op)) * lm_flops_of(c->m, op);
}

lm_model_flops lm_model_flops_of(const lm_func *f) {
  uint8_t *active = lm_activity_of_func(f);
  counter c = {
      .m = f->module,
      .active = active,
  };
  lm_region_walk(f->body, count, &c);
  lm_free(active);
  return (lm_model_flops){f->key, c.flops};
}

// ---- weight GEMMs

typedef struct finder {
  lm_arena *a;
  lm_module *m;
  lm_weight_gemms *out;
} finder;

// The number of elements of `of` along the axes that are (or are not) axes of `in` and are not
// reduced.
static int64_t elements_of(const finder *f, const lm_op *dot, lm_type of, lm_type in, bool shared) {
  int64_t n = 1;
  for (int i = 0; i < of.rank; i++) {
    if (lm_attr_has_axis(&dot->attr, of.axis[i]))
      continue;
    if ((lm_type_find(in, of.axis[i]) >= 0) == shared)
      n *= lm_axis_size(f->m, of.axis[i]);
  }
  return n;
}

static void flops_visit(lm_op *op, void *user) {
  finder *f = user;
  if (op->code != LM_OP_DOT)
    return;
  bool swapped = lm_value_is_weight(op->in[0]);
  if (swapped == lm_value_is_weight(op->in[1]))
    return;
  lm_type x = op->in[swapped]->type;
  lm_type w = op->in[!swapped]->type;
  lm_weight_gemm p = {.k = 1};
  p.m = elements_of(f, op, x, w, false);
  p.n = elements_of(f, op, w, x, false);
  for (int i = 0; i < op->attr.n_axes; i++)
    p.k *= lm_axis_size(f->m, op->attr.axes[i]);
  p.count = (int)(trips_around(f->m, op) * elements_of(f, op, x, w, true));
  LM_PUSH(f->a, f->out->v, f->out->n, f->out->cap) = p;
}

lm_weight_gemms lm_weight_gemms_find(lm_arena *a, lm_module *m) {
  lm_weight_gemms out = {0};
  lm_func *loss = lm_func_get(m, LM_FUNC_LOSS, 0);
  if (loss)
    lm_region_walk(loss->body, flops_visit, &(finder){a, m, &out});
  return out;
}
