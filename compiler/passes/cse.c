// cse.c - common subexpression elimination: replaces an operation by an equal earlier one.
//
// before: %a = mul %x, %y   %r = loop 8 … { %b = mul %y, %x   … %b … }
// after:  %a = mul %x, %y   %r = loop 8 … { … %a … }
//
// Operations are equal if opcode, operands (in any order if the operation commutes and the operands
// have one type), attributes and result type are. An operation of an outer region replaces
// operations of the regions inside it, except in kernels, which can use their arguments only.
// Declines: operations with effects or regions. Cost: linear; a value may live longer.
#include <string.h>
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

typedef struct entry {
  struct entry *next;
  uint64_t hash;
  lm_op *op;
} entry;
typedef struct table {
  lm_arena *arena;
  entry **bucket;
  uint32_t n_buckets;
} table;

static bool swapped(const lm_op *op) {
  return lm_op_info_of(op)->traits & LM_T_COMMUTE && op->in[0]->id > op->in[1]->id;
}

static uint64_t attr_hash(const lm_attr *a, uint64_t h) {
  h = lm_hash(a->axes, sizeof a->axes, h);
  h = lm_hash(a->to, sizeof a->to, h);
  h = lm_hash(a->imm, sizeof a->imm, h);
  h = lm_hash(&a->num, sizeof a->num, h);
  h = lm_hash(&a->mesh, sizeof a->mesh, h);
  return lm_hash(&a->sym, sizeof a->sym, h);
}

static bool attr_equal(const lm_attr *a, const lm_attr *b) {
  return a->n_axes == b->n_axes && a->n_to == b->n_to && a->n_imm == b->n_imm && a->sym == b->sym &&
         a->mesh == b->mesh && !memcmp(a->axes, b->axes, sizeof a->axes) &&
         !memcmp(a->to, b->to, sizeof a->to) && !memcmp(a->imm, b->imm, sizeof a->imm) &&
         !memcmp(&a->num, &b->num, sizeof a->num);
}

static uint64_t op_hash(const lm_op *op) {
  uint64_t h = attr_hash(&op->attr, (uint64_t)op->code);
  bool swap = swapped(op);
  for (uint32_t i = 0; i < op->n_in; i++)
    h = lm_hash(&op->in[swap ? 1 - i : i]->id, sizeof op->in[i]->id, h);
  return lm_hash(&op->out[0]->type, sizeof op->out[0]->type, h);
}

static bool op_equal(const lm_op *a, const lm_op *b) {
  if (a->code != b->code || a->n_in != b->n_in || !lm_type_equal(a->out[0]->type, b->out[0]->type))
    return false;
  bool swap = a->n_in == 2 && swapped(a) != swapped(b);
  for (uint32_t i = 0; i < a->n_in; i++)
    if (a->in[i] != b->in[swap ? 1 - i : i])
      return false;
  return attr_equal(&a->attr, &b->attr);
}

static bool reaches(const lm_op *earlier, const lm_region *r) {
  for (; r != earlier->parent; r = r->owner->parent)
    if (!r->owner || lm_op_isolated(r->owner))
      return false;
  return true;
}

static lm_value *cse_rule(lm_rewrite *r, lm_op *op) {
  table *t = r->user;
  if (!lm_op_pure(op))
    return NULL;
  uint64_t h = op_hash(op);
  entry **at = &t->bucket[h & (t->n_buckets - 1)];
  for (entry *e = *at; e; e = e->next)
    if (e->hash == h && op_equal(e->op, op) && reaches(e->op, op->parent))
      return e->op->out[0];
  entry *e = LM_NEW(t->arena, entry);
  *e = (entry){*at, h, op};
  *at = e;
  return NULL;
}

bool lm_pass_cse(lm_module *m, const lm_pass_env *env) {
  table t = {lm_arena_create(), NULL, 64};
  while (t.n_buckets < m->n_values)
    t.n_buckets *= 2;
  for (lm_func *f = m->funcs; f; f = f->next) {
    t.bucket = LM_NEW_N(t.arena, entry *, t.n_buckets);
    lm_rewrite_func(f, cse_rule, &t);
  }
  lm_arena_destroy(t.arena);
  return true;
}
