// region.c - the module as a data structure: values, operations linked into regions, functions. It
// checks no types.
#include <string.h>
#include "compiler/ir/internal.h"

// ---- values, operations, regions

lm_region *lm_region_new(lm_module *m, lm_func *f, lm_op *owner) {
  lm_region *r = LM_NEW(m->arena, lm_region);
  r->func = f;
  r->owner = owner;
  return r;
}

lm_value *lm_value_new(lm_module *m, lm_type type, lm_op *def, lm_region *region, uint32_t index,
                       lm_sym name) {
  lm_value *v = LM_NEW(m->arena, lm_value);
  *v = (lm_value){type, def, region, index, m->n_values++, name};
  return v;
}

lm_op *lm_op_new(lm_module *m, lm_opcode code, lm_value *const *in, uint32_t n_in,
                 const lm_attr *attr, lm_loc loc) {
  lm_op *op = LM_NEW(m->arena, lm_op);
  op->code = code;
  op->loc = loc;
  op->n_in = n_in;
  op->in = LM_NEW_N(m->arena, lm_value *, n_in);
  for (uint32_t i = 0; i < n_in; i++)
    op->in[i] = in[i];
  if (attr)
    op->attr = *attr;
  return op;
}

void lm_op_results_make(lm_module *m, lm_op *op, const lm_type *types, uint32_t n) {
  op->n_out = n;
  op->out = LM_NEW_N(m->arena, lm_value *, n);
  for (uint32_t i = 0; i < n; i++)
    op->out[i] = lm_value_new(m, types[i], op, op->parent, i, NULL);
}

void lm_op_link(lm_region *r, lm_op *before, lm_op *op) {
  op->parent = r;
  op->next = before;
  op->prev = before ? before->prev : r->last;
  *(op->prev ? &op->prev->next : &r->first) = op;
  *(before ? &before->prev : &r->last) = op;
  for (uint32_t i = 0; i < op->n_out; i++)
    op->out[i]->region = r;
}

void lm_op_insert_before(lm_op *at, lm_op *op) {
  lm_op_link(at->parent, at, op);
}

void lm_op_remove(lm_op *op) {
  *(op->prev ? &op->prev->next : &op->parent->first) = op->next;
  *(op->next ? &op->next->prev : &op->parent->last) = op->prev;
  op->parent = NULL;
  op->prev = op->next = NULL;
}

// ---- functions

lm_func *lm_func_find(const lm_module *m, const char *name) {
  for (lm_func *f = m->funcs; f; f = f->next)
    if (!strcmp(f->name, name))
      return f;
  return NULL;
}

lm_func *lm_func_get_key(const lm_module *m, lm_func_key key) {
  for (lm_func *f = m->funcs; f; f = f->next)
    if (lm_func_key_equal(f->key, key))
      return f;
  return NULL;
}

lm_func *lm_func_get(const lm_module *m, lm_func_id id, int64_t seq) {
  return lm_func_get_key(m, (lm_func_key){.id = id, .seq = seq});
}

lm_func *lm_func_add_key(lm_module *m, lm_func_key key) {
  char name[LM_FUNC_NAME];
  return lm_func_add(m, LM_SYM(m->ctx, lm_func_key_print(key, name)));
}

lm_func *lm_func_add(lm_module *m, lm_sym name) {
  lm_func *f = LM_NEW(m->arena, lm_func);
  f->name = name;
  f->key = lm_func_key_parse(name);
  f->module = m;
  f->body = lm_region_new(m, f, NULL);
  *m->funcs_tail = f;
  m->funcs_tail = &f->next;
  return f;
}

void lm_func_remove(lm_module *m, lm_func *f) {
  lm_func **at = &m->funcs;
  while (*at != f)
    at = &(*at)->next;
  *at = f->next;
  if (m->funcs_tail == &f->next)
    m->funcs_tail = at;
}

// An array that grows one value at a time has room for the next power of two.
static lm_value **room_for_one(lm_module *m, lm_value **old, uint32_t n) {
  if (n & (n - 1))
    return old;
  lm_value **now = LM_NEW_N(m->arena, lm_value *, n ? 2 * (size_t)n : 1);
  if (n)
    memcpy(now, old, n * sizeof *now);
  return now;
}

lm_value *lm_arg_add(lm_module *m, lm_region *r, lm_type type, lm_sym name) {
  r->args = room_for_one(m, r->args, r->n_args);
  r->args[r->n_args] = lm_value_new(m, type, NULL, r, r->n_args, name);
  return r->args[r->n_args++];
}
