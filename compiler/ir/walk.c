// walk.c - visits, substitutes, clones and counts uses in whole regions.
#include <string.h>
#include "compiler/ir/internal.h"

void lm_region_walk(lm_region *r, void (*fn)(lm_op *op, void *user), void *user) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    fn(op, user);
    if (op->parent && op->body)
      lm_region_walk(op->body, fn, user);
  }
}

int lm_region_count(const lm_region *r, lm_opcode code, lm_sym sym) {
  int n = 0;
  for (const lm_op *op = r->first; op; op = op->next) {
    n += op->code == code && op->attr.sym == sym;
    if (op->body)
      n += lm_region_count(op->body, code, sym);
  }
  return n;
}

typedef struct subst {
  lm_value *const *map;
  uint32_t n;
} subst;

static void op_substitute(lm_op *op, void *user) {
  const subst *s = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    while (op->in[i]->id < s->n && s->map[op->in[i]->id])
      op->in[i] = s->map[op->in[i]->id];
}

void lm_func_substitute(lm_func *f, lm_value *const *map, uint32_t n_map) {
  lm_region_walk(f->body, op_substitute, &(subst){map, n_map});
}

static lm_value *mapped(lm_value *const *map, lm_value *v) {
  return map[v->id] ? map[v->id] : v;
}

static void region_clone(lm_builder *b, lm_op *copy, const lm_op *op, lm_value **map) {
  copy->body = lm_region_new(b->m, b->at->func, copy);
  for (uint32_t i = 0; i < op->body->n_args; i++) {
    lm_value *a = op->body->args[i];
    map[a->id] = lm_arg_add(b->m, copy->body, a->type, a->name);
  }
  lm_builder inside = {b->m, copy->body, NULL, b->loc};
  for (const lm_op *o = op->body->first; o; o = o->next)
    lm_op_clone(&inside, o, map);
}

lm_op *lm_op_clone(lm_builder *b, const lm_op *op, lm_value **map) {
  lm_op *copy = lm_op_new(b->m, op->code, op->in, op->n_in, &op->attr, op->loc);
  copy->remat = op->remat;
  for (uint32_t i = 0; i < op->n_in; i++)
    copy->in[i] = mapped(map, op->in[i]);
  lm_op_link(b->at, b->before, copy);
  if (op->body)
    region_clone(b, copy, op, map);
  copy->n_out = op->n_out;
  copy->out = LM_NEW_N(b->m->arena, lm_value *, op->n_out);
  for (uint32_t i = 0; i < op->n_out; i++)
    map[op->out[i]->id] = copy->out[i] =
        lm_value_new(b->m, op->out[i]->type, copy, b->at, i, op->out[i]->name);
  return copy;
}

lm_func *lm_func_clone(const lm_func *f, lm_sym name) {
  lm_module *m = f->module;
  lm_func *copy = lm_func_add(m, name);
  lm_value **map = lm_calloc(m->n_values ? m->n_values : 1, sizeof *map);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_value *a = f->body->args[i];
    map[a->id] = lm_arg_add(m, copy->body, a->type, a->name);
  }
  lm_builder b = {m, copy->body, NULL, {0}};
  for (const lm_op *op = f->body->first; op; op = op->next)
    lm_op_clone(&b, op, map);
  copy->n_out = f->n_out;
  copy->out_names = f->out_names;
  copy->out_partial = f->out_partial;
  lm_free(map);
  return copy;
}

static void op_count_uses(lm_op *op, void *user) {
  for (uint32_t i = 0; i < op->n_in; i++)
    ((uint32_t *)user)[op->in[i]->id]++;
}

uint32_t *lm_func_uses(const lm_func *f) {
  uint32_t *uses = lm_calloc(f->module->n_values ? f->module->n_values : 1, sizeof *uses);
  lm_region_walk(f->body, op_count_uses, uses);
  return uses;
}
