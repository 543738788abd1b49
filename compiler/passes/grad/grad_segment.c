// grad_segment.c - copies of parts of a loop over ticks, each differentiated alone: a part is
// copied into a function, whose arguments stand for the values that other parts give it, and its
// operations and their derivative are moved back.
#include "compiler/analysis/activity.h"
#include "compiler/passes/fuse/epilogue.h"
#include "compiler/passes/grad/grad_ticks.h"
#include "compiler/passes/params_only.h"

// ---- copies of forward operations

lm_copier lm_copier_make(const lm_ticks *t, lm_builder *b, lm_value *tick) {
  lm_copier c = {t, b, lm_calloc((size_t)t->n_values + 1, sizeof(lm_value *)), false};
  c.map[t->loop->body->args[0]->id] = tick;
  return c;
}

static void captured_copy(lm_copier *c, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i]->region == c->t->loop->body || op->in[i]->region == c->t->f->body)
        lm_copier_copy(c, op->in[i]);
    if (op->body)
      captured_copy(c, op->body);
  }
}

static void additions_remove(lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->body)
      additions_remove(op->body);
    if (op->code == LM_OP_ACCUM)
      lm_op_remove(op);
  }
}

lm_value *lm_copier_copy(lm_copier *c, lm_value *v) {
  const lm_ticks *t = c->t;
  bool outer = v->region == t->f->body;
  if (c->map[v->id])
    return c->map[v->id];
  if (!v->def || (outer && !t->active[v->id]))
    return v;
  for (uint32_t i = 0; i < v->def->n_in; i++)
    lm_copier_copy(c, v->def->in[i]);
  if (v->def->body)
    captured_copy(c, v->def->body);
  const lm_op *op = lm_op_clone(c->b, v->def, c->map);
  if (c->again && op->body)
    additions_remove(op->body);
  return c->map[v->id];
}

void lm_copier_effects(lm_copier *c, bool late) {
  const lm_region *r = c->t->loop->body;
  for (lm_op *op = r->first; op; op = op->next) {
    bool writes = !op->n_out && op != r->last;
    if (!writes || lm_gradient_ticks_is_late(op, c->t->late) != late)
      continue;
    for (uint32_t i = 0; i < op->n_in; i++)
      lm_copier_copy(c, op->in[i]);
    lm_op_clone(c->b, op, c->map);
  }
}

// ---- the derivative of a part

lm_value *lm_segment_argument(lm_segment *s, lm_value *given) {
  lm_value *arg = lm_arg_add(s->t->m, s->f->body, given->type, given->name);
  lm_value **all = LM_NEW_N(s->t->m->arena, lm_value *, s->f->body->n_args);
  for (uint32_t i = 0; i + 1 < s->f->body->n_args; i++)
    all[i] = s->given[i];
  all[s->f->body->n_args - 1] = given;
  s->given = all;
  return arg;
}

void lm_segment_open(lm_segment *s, lm_ticks *t, lm_value *tick) {
  *s = (lm_segment){.t = t, .f = lm_func_add(t->m, LM_SYM(t->m->ctx, "part"))};
  s->b = (lm_builder){
      .m = t->m,
      .at = s->f->body,
      .loc = t->loop->loc,
  };
  s->c = lm_copier_make(t, &s->b, lm_segment_argument(s, tick));
}

void lm_segment_reverse(lm_segment *s, lm_value *const *of, lm_value *const *by, uint32_t n,
                        lm_value *const *wrt, uint32_t n_wrt, lm_value **out) {
  lm_module *m = s->t->m;
  gradient g = {.base.methods = s->t->methods,
                .m = m,
                .active = lm_activity_of_region(m, s->f->body, wrt, n_wrt),
                .n_active = m->n_values,
                .sums = s->t->sums ? lm_epilogue_sums(s->f) : NULL,
                .of_params = lm_params_only(s->f)};
  frame outer =
            {
                .forward = s->t->f->body,
                .b = s->b,
            },
        own = {
            .forward = s->f->body,
            .b = s->b,
        };
  lm_gradient_enter(&g, &outer);
  lm_gradient_enter(&g, &own);
  for (uint32_t i = 0; i < n; i++)
    lm_gradient_add(&g.base, s->c.map[of[i]->id], by[i]);
  lm_gradient_reverse(&g);
  for (uint32_t i = 0; i < n_wrt; i++) {
    out[i] = lm_gradient_cotangent(&g.base, wrt[i]);
    if (!out[i])
      out[i] = lm_emit_const(&own.b, wrt[i]->type, 0);
  }
  lm_gradient_leave(&g);
  lm_gradient_leave(&g);
  lm_free(g.active);
  lm_free(g.sums);
  lm_free(g.of_params);
}

static void given_replace(const lm_segment *s, lm_region *r, lm_op *from, const lm_op *to) {
  for (lm_op *op = from; op != to; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      for (uint32_t k = 0; k < s->f->body->n_args; k++)
        if (op->in[i] == s->f->body->args[k])
          op->in[i] = s->given[k];
    if (op->body)
      given_replace(s, op->body, op->body->first, NULL);
  }
}

void lm_segment_close(lm_segment *s, lm_builder *b, lm_value **of, uint32_t n) {
  lm_op *end = lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), 0)->def, *first = NULL;
  for (lm_op *op = s->f->body->first, *next; op; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(end, op);
    first = first ? first : op;
  }
  if (first)
    given_replace(s, b->at, first, end);
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t k = 0; k < s->f->body->n_args; k++)
      if (of[i] == s->f->body->args[k])
        of[i] = s->given[k];
  lm_op_remove(end);
  lm_func_remove(s->t->m, s->f);
  lm_free(s->c.map);
}
