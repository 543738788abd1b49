// rates.c - moves the operations of @update that depend on no element to @rates.
//
// The body of the optimizer is emitted into @update. A scalar operation is on the host side if its
// operands are constants, arguments of @rates or results of such operations, and its result is f64,
// int or bool. It moves to @rates, which runs once per step. A host value that an operation of
// @update reads becomes a result of @rates and an argument of @update:
//   %3 = gt %step, 1 : bool        -> @rates, a result of it
//   %4 = cast %double : f32        -> %double is a result of @rates, %4 an argument f32 of @update
//   %5 = select %3, %g, %zero      reads an argument bool of @update
// Constants are copied to the side that reads them. Of equal operations, as the updates of several
// parameters have, one is kept.
#include "dsl/lower/internal.h"
#include <string.h>

typedef enum {
  SIDE_ELEMENT,
  SIDE_CONST,
  SIDE_HOST
} side;

// An argument of @update that receives a value of @rates; `next` has another type.
typedef struct passed {
  lm_value *as;
  struct passed *next;
} passed;

typedef struct mover {
  lm_elab *e;
  lm_region *rates, *update;
  uint32_t n_values;   // of the module before the move
  side *sides;         // by value id
  lm_value **on_host;  // by value id: the copy of a constant in @rates
  lm_value **argument; // by value id: the argument of @update that replaces it
  lm_value **same;     // by value id: the result of an equal operation that is in @rates already
  lm_value **out;
  uint32_t n_out, cap_out;
  lm_sym *names;
  uint32_t n_names, cap_names;
  passed **passed; // by value id
  lm_op **ops;     // of @rates, by hash: linear probing
  uint32_t n_slots;
} mover;

static side side_of(const mover *m, const lm_value *v) {
  return v->id < m->n_values ? m->sides[v->id] : SIDE_ELEMENT;
}

static bool is_host_type(lm_type t) {
  return t.rank == 0 && (t.dtype == LM_F64 || t.dtype == LM_INT || t.dtype == LM_BOOL);
}

static side side_find(const mover *m, const lm_op *op) {
  if (op->n_out != 1 || op->body || !is_host_type(op->out[0]->type))
    return SIDE_ELEMENT;
  if (op->code == LM_OP_CONST)
    return SIDE_CONST;
  if (!(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE))
    return SIDE_ELEMENT;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (side_of(m, op->in[i]) == SIDE_ELEMENT)
      return SIDE_ELEMENT;
  return SIDE_HOST;
}

static void op_side(lm_op *op, void *user) {
  mover *m = user;
  side s = side_find(m, op);
  for (uint32_t i = 0; i < op->n_out; i++)
    m->sides[op->out[i]->id] = s;
}

// ---- to @rates

static void append(lm_region *r, lm_op *op) {
  op->prev = r->last;
  op->next = NULL;
  op->parent = r;
  *(r->last ? &r->last->next : &r->first) = op;
  r->last = op;
  for (uint32_t i = 0; i < op->n_out; i++)
    op->out[i]->region = r;
}

static bool is_equal(const lm_op *x, const lm_op *y) {
  if (x->code != y->code || x->n_in != y->n_in || x->n_out != 1 ||
      !lm_type_equal(x->out[0]->type, y->out[0]->type) ||
      memcmp(&x->attr.num, &y->attr.num, sizeof x->attr.num))
    return false;
  for (uint32_t i = 0; i < x->n_in; i++)
    if (x->in[i] != y->in[i])
      return false;
  return true;
}

// The result of an equal operation of @rates, or of op itself, which is then the first of its kind.
static lm_value *first_equal(mover *m, lm_op *op) {
  uint64_t h = lm_hash(&op->attr.num, sizeof op->attr.num, (uint64_t)op->code);
  for (uint32_t i = 0; i < op->n_in; i++)
    h = lm_hash(&op->in[i]->id, sizeof op->in[i]->id, h);
  lm_op **slot = &m->ops[h % m->n_slots];
  while (*slot && !is_equal(*slot, op))
    slot = slot + 1 == m->ops + m->n_slots ? m->ops : slot + 1;
  if (!*slot)
    *slot = op;
  return (*slot)->out[0];
}

static lm_value *const_on_host(mover *m, const lm_value *v) {
  lm_builder b = {
      .m = m->e->m,
      .at = m->rates,
      .loc = v->def->loc,
  };
  lm_value *first = first_equal(m, v->def);
  if (!m->on_host[first->id])
    m->on_host[first->id] = lm_emit_const(&b, v->type, v->def->attr.num);
  return m->on_host[first->id];
}

static void op_move(lm_op *op, void *user) {
  mover *m = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->id < m->n_values && m->same[op->in[i]->id])
      op->in[i] = m->same[op->in[i]->id];
  if (op->n_out != 1 || side_of(m, op->out[0]) != SIDE_HOST)
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (side_of(m, op->in[i]) == SIDE_CONST)
      op->in[i] = const_on_host(m, op->in[i]);
  lm_op_remove(op);
  lm_value *first = first_equal(m, op);
  if (first == op->out[0])
    append(m->rates, op);
  else
    m->same[op->out[0]->id] = first;
}

// ---- back to @update, as arguments

static lm_value *result_add(mover *m, lm_value *v, lm_type type) {
  for (const passed *p = m->passed[v->id]; p; p = p->next)
    if (lm_type_equal(p->as->type, type))
      return p->as;
  lm_sym name = LM_SYM(m->e->c, lm_arena_printf(m->e->a, "rate.%u", m->n_out));
  LM_PUSH(m->e->a, m->out, m->n_out, m->cap_out) = v;
  LM_PUSH(m->e->a, m->names, m->n_names, m->cap_names) = name;
  lm_value *as = lm_arg_add(m->e->m, m->update, type, name);
  passed *p = LM_NEW(m->e->a, passed);
  *p = (passed){as, m->passed[v->id]};
  m->passed[v->id] = p;
  return as;
}

static bool is_cast_to_f32(const mover *m, const lm_op *op) {
  return op->code == LM_OP_CAST && op->out[0]->type.dtype == LM_F32 &&
         side_of(m, op->in[0]) == SIDE_HOST;
}

static void op_read(lm_op *op, void *user) {
  mover *m = user;
  if (is_cast_to_f32(m, op)) {
    m->argument[op->out[0]->id] = result_add(m, op->in[0], op->out[0]->type);
    lm_op_remove(op);
    return;
  }
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *v = op->in[i];
    if (side_of(m, v) == SIDE_HOST && !m->argument[v->id])
      m->argument[v->id] = result_add(m, v, v->type);
  }
}

static void rates_return(mover *m, lm_func *rates) {
  lm_builder b = {
      .m = m->e->m,
      .at = m->rates,
  };
  lm_emit_op(&b, LM_OP_RETURN, m->out, m->n_out, NULL, NULL);
  rates->out_names = m->names;
  rates->n_out = m->n_out;
}

void lm_lower_rates(lm_elab *e, lm_func *rates, lm_func *update, lm_value *lr) {
  uint32_t n = e->m->n_values;
  mover m = {
      .e = e,
      .rates = rates->body,
      .update = update->body,
      .n_values = n,
  };
  m.sides = LM_NEW_N(e->a, side, n + 1);
  m.on_host = LM_NEW_N(e->a, lm_value *, n + 1);
  m.argument = LM_NEW_N(e->a, lm_value *, n + 1);
  m.same = LM_NEW_N(e->a, lm_value *, n + 1);
  m.passed = LM_NEW_N(e->a, passed *, n + 1);
  m.n_slots = 2 * n + 1;
  m.ops = LM_NEW_N(e->a, lm_op *, m.n_slots);
  for (uint32_t i = 0; i < rates->body->n_args; i++)
    m.sides[rates->body->args[i]->id] = SIDE_HOST;
  lm_region_walk(update->body, op_side, &m);
  lm_region_walk(update->body, op_move, &m);
  if (lr && m.same[lr->id])
    lr = m.same[lr->id];
  if (lr && side_of(&m, lr) == SIDE_CONST)
    lr = const_on_host(&m, lr);
  if (lr)
    LM_PUSH(e->a, m.out, m.n_out, m.cap_out) = lr;
  if (lr)
    LM_PUSH(e->a, m.names, m.n_names, m.cap_names) = lm_port_name(e, LM_PORT_LR);
  lm_region_walk(update->body, op_read, &m);
  lm_func_substitute(update, m.argument, n);
  rates_return(&m, rates);
}
