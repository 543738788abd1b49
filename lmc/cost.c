// cost.c - what a plan's functions cost, and the products of a model with its weights.
#include "lmc/cost.h"

#include "compiler/plan/planner.h"

lm_cost lm_cost_of(const lm_plan_func *f) {
  lm_cost c = {0};
  double times = 1;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (s->kind == LM_STEP_LOOP) times *= (double)s->count;
    else if (s->kind == LM_STEP_END) times /= (double)f->steps[s->match].count;
    else {
      c.flops += times * (double)s->flops;
      c.bytes += times * (double)s->moved;
      c.launches += (int64_t)times;
    }
  }
  return c;
}

static void cost_add(const lm_plan *p, const char *name, double times, lm_cost *sum) {
  const lm_plan_func *f = lm_plan_func_find(p, name);
  if (!f) return;
  lm_cost c = lm_cost_of(f);
  sum->flops += times * c.flops;
  sum->bytes += times * c.bytes;
  sum->launches += (int64_t)times * c.launches;
}

lm_cost lm_cost_of_step(const lm_plan *p, int64_t n_micro) {
  lm_cost sum = {0};
  cost_add(p, "micro", (double)n_micro, &sum);
  cost_add(p, "norm", 1, &sum);
  cost_add(p, "update", 1, &sum);
  cost_add(p, "copies", 1, &sum);
  return sum;
}

// ---- products with parameters

typedef struct { lm_arena *a; lm_module *m; lm_projections *out; } finder;

// Product of the sizes of the axes of `of` that are (or are not) axes of `in`, those summed over aside.
static int64_t elements_of(const finder *f, const lm_op *dot, lm_type of, lm_type in, bool shared) {
  int64_t n = 1;
  for (int i = 0; i < of.rank; i++) {
    if (lm_attr_has_axis(&dot->attr, of.axis[i])) continue;
    if ((lm_type_find(in, of.axis[i]) >= 0) == shared) n *= lm_axis_size(f->m, of.axis[i]);
  }
  return n;
}

static int64_t turns_around(const lm_op *op) {
  int64_t n = 1;
  for (const lm_op *owner = op->parent->owner; owner; owner = owner->parent->owner)
    if (owner->code == LM_OP_LOOP) n *= owner->attr.imm[0];
  return n;
}

typedef struct { const lm_module *m; double flops; } counter;

static void count(lm_op *op, void *user) {
  counter *c = user;
  const lm_op *owner = op->parent->owner;
  bool product = op->code == LM_OP_DOT || op->code == LM_OP_ATTEND;
  if (product && !(owner && owner->code == LM_OP_ATTEND)) c->flops += (double)turns_around(op) * lm_plan_flops(c->m, op);
}

double lm_cost_of_model(lm_module *m, const char *loss) {
  counter c = {.m = m};
  lm_func *f = lm_func_find(m, loss);
  if (f) lm_region_walk(f->body, count, &c);
  return 3 * c.flops;
}

static void visit(lm_op *op, void *user) {
  finder *f = user;
  if (op->code != LM_OP_DOT || lm_value_is_weight(op->in[0]) == lm_value_is_weight(op->in[1])) return;
  bool swapped = lm_value_is_weight(op->in[0]);
  lm_type x = op->in[swapped]->type, w = op->in[!swapped]->type;
  lm_cpu_projection p = {.m = elements_of(f, op, x, w, false), .k = 1, .n = elements_of(f, op, w, x, false)};
  for (int i = 0; i < op->attr.n_axes; i++) p.k *= lm_axis_size(f->m, op->attr.axes[i]);
  p.count = (int)(turns_around(op) * elements_of(f, op, x, w, true));
  LM_PUSH(f->a, f->out->v, f->out->n, f->out->cap) = p;
}

lm_projections lm_projections_find(lm_arena *a, lm_module *m) {
  lm_projections out = {0};
  lm_func *loss = lm_func_find(m, "loss");
  if (loss) lm_region_walk(loss->body, visit, &(finder){a, m, &out});
  return out;
}
