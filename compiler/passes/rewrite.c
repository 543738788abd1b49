// rewrite.c - replacing values while walking a function.
#include "compiler/passes/rewrite.h"
#include <string.h>

#include "compiler/ir/internal.h"
#include "compiler/passes/pass.h"

void *lm_idmap_get(const lm_idmap *m, const lm_value *v) {
  return v->id < m->n ? m->at[v->id] : NULL;
}

void lm_idmap_set(lm_idmap *m, const lm_value *v, void *to) {
  if (v->id >= m->n) {
    uint32_t n = v->id + 1 > 2 * m->n ? v->id + 1 : 2 * m->n;
    m->at = lm_realloc(m->at, n * sizeof *m->at);
    memset(m->at + m->n, 0, (n - m->n) * sizeof *m->at);
    m->n = n;
  }
  m->at[v->id] = to;
}

void lm_idmap_free(lm_idmap *m) {
  lm_free(m->at);
  *m = (lm_idmap){0};
}

static lm_value *replacement_of(const lm_idmap *m, lm_value *v) {
  for (lm_value *to; (to = lm_idmap_get(m, v));)
    v = to;
  return v;
}

static void rewrite_region(lm_rewrite *r, lm_region *region) {
  for (lm_op *op = region->first, *next; op; op = next) {
    next = op->next;
    for (uint32_t i = 0; i < op->n_in; i++)
      op->in[i] = replacement_of(&r->map, op->in[i]);
    if (op->body)
      rewrite_region(r, op->body);
    if (op->n_out != 1)
      continue;
    r->b.at = region;
    r->b.before = op;
    r->b.loc = op->loc;
    r->b.remat = op->remat;
    lm_value *to = r->rule(r, op);
    if (!to)
      continue;
    if (to->def && !to->name)
      to->name = op->out[0]->name;
    if (to->def && lm_remat_choice(op->remat) == LM_REMAT_SAVE)
      to->def->remat = op->remat;
    lm_idmap_set(&r->map, op->out[0], to);
    lm_op_remove(op);
    r->changes++;
  }
}

int lm_rewrite_func(lm_func *f, lm_value *(*rule)(lm_rewrite *r, lm_op *op), void *user) {
  lm_rewrite r = {.b = {.m = f->module}, .rule = rule, .user = user};
  rewrite_region(&r, f->body);
  lm_idmap_free(&r.map);
  return r.changes;
}

bool lm_op_pure(const lm_op *op) {
  return !(lm_op_info_of(op)->traits & (LM_T_EFFECT | LM_T_STRUCT));
}
bool lm_op_is(const lm_value *v, lm_opcode code) {
  return v->def && v->def->code == code;
}

bool lm_params_same_indices(const lm_op *a, const lm_op *b) {
  if (a->n_in != b->n_in || memcmp(a->attr.imm, b->attr.imm, sizeof a->attr.imm))
    return false;
  for (uint32_t i = 0; i < a->n_in; i++)
    if (a->in[i] != b->in[i])
      return false;
  return true;
}

void lm_ops_sink(lm_op *from, lm_op *to, uint32_t mark) {
  lm_op *last = to->prev; // moved operations are inserted after it
  for (lm_op *op = from->next, *next; from != last && op != to; op = next) {
    next = op == last ? to : op->next;
    if (op->mark != mark)
      continue;
    lm_op_remove(op);
    lm_op_insert_before(to, op);
  }
}

bool lm_const_of(const lm_value *v, double *out) {
  if (!lm_op_is(v, LM_OP_CONST))
    return false;
  *out = v->def->attr.num;
  return true;
}

lm_value *lm_cast_to(lm_rewrite *r, lm_value *x, lm_type t) {
  lm_axis order[LM_RANK];
  int n = 0;
  for (int i = 0; i < t.rank; i++)
    if (lm_type_find(x->type, t.axis[i]) >= 0)
      order[n++] = t.axis[i];
  return lm_emit_expand(&r->b, lm_emit_permute(&r->b, x, order, n), t);
}

void lm_operands_skip(lm_rewrite *r, lm_op *op, lm_opcode code) {
  lm_buf why = {0};
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *x = op->in[i];
    lm_type t = op->out[0]->type;
    if (!lm_op_is(x, code))
      continue;
    op->in[i] = x->def->in[0];
    if (lm_op_infer(r->b.m, op, &t, &why) && lm_type_equal(t, op->out[0]->type))
      r->changes++;
    else
      op->in[i] = x;
  }
  lm_buf_free(&why);
}

void lm_loops_visit(lm_region *r, void (*visit)(lm_op *loop, void *user), void *user) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code != LM_OP_LOOP)
      continue;
    lm_loops_visit(op->body, visit, user);
    visit(op, user);
  }
}

static void region_visit(const lm_replacement *r, lm_region *region,
                         void (*visit)(const lm_replacement *r, lm_op *op)) {
  for (lm_op *op = region->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      region_visit(r, op->body, visit);
    else
      visit(r, op);
  }
}

void lm_replace_each(lm_module *m, const lm_pass_env *env,
                     void (*visit)(const lm_replacement *r, lm_op *op)) {
  for (lm_func *f = m->funcs; f; f = f->next) {
    uint32_t n = m->n_values;
    uint32_t *uses = lm_func_uses(f);
    lm_value **map = lm_calloc(n + 1, sizeof *map);
    region_visit(&(lm_replacement){m, env, uses, n, map}, f->body, visit);
    lm_func_substitute(f, map, n);
    lm_free(map);
    lm_free(uses);
  }
}
