// digest.c - a hash of the computation of a function.
//
// The digest of a value is a hash of its operation, attributes, type and the digests of its
// operands. It does not depend on names of values, on locations, or on the order of statements.
// Axes are numbered in the order in which a traversal from the results reaches them. Constants are
// hashed with 13 digits, because the last bits of folded constants differ between C libraries.
// Calls must be inlined. Operations with effects are reached through their results only.
#include <stdio.h>
#include <string.h>

#include "compiler/ir/internal.h"

typedef struct frame {
  const lm_op *op;
  uint32_t next;
} frame; // next: the operand that is hashed next

typedef struct digester {
  const lm_module *m;
  uint64_t *ops;          // by mark of the operation; 0: not known yet
  uint32_t *axes, n_axes; // by axis: its number, 0: none yet
  frame *stack;
  uint32_t n, cap;
  lm_arena *a;
} digester;

static uint64_t mix(uint64_t h, uint64_t x) {
  return lm_hash(&x, sizeof x, h);
}

static uint64_t mix_text(uint64_t h, const char *text) {
  return text ? lm_hash(text, strlen(text), h) : mix(h, 0);
}

static uint64_t axis_mix(digester *d, uint64_t h, lm_axis axis) {
  const lm_axis_info *info = &d->m->axes[axis];
  if (!d->axes[axis])
    d->axes[axis] = ++d->n_axes;
  h = mix(h, d->axes[axis]);
  h = mix(h, (uint64_t)info->size);
  if (info->mesh)
    h = axis_mix(d, mix(h, info->mesh), info->whole);
  const lm_extent_info *x = info->dyn ? &d->m->extents[info->dyn - 1] : NULL;
  if (x && x->of)
    h = mix(mix(mix(h, (uint64_t)x->of), (uint64_t)x->times), (uint64_t)x->most);
  return mix(h, (uint64_t)info->dyn);
}

static uint64_t type_mix(digester *d, uint64_t h, lm_type t) {
  h = mix(h, t.dtype);
  h = mix(h, t.rank);
  for (int i = 0; i < t.rank; i++)
    h = axis_mix(d, h, t.axis[i]);
  return h;
}

static uint64_t number_mix(uint64_t h, double x) {
  char text[40];
  snprintf(text, sizeof text, "%.13g", x);
  return mix_text(h, text);
}

static uint64_t attr_mix(digester *d, uint64_t h, const lm_op *op) {
  const lm_attr *a = &op->attr;
  uint32_t has = lm_op_info_of(op)->attrs;
  for (int i = 0; has & LM_A_AXES && i < a->n_axes; i++)
    h = axis_mix(d, h, a->axes[i]);
  for (int i = 0; has & LM_A_TO && i < a->n_to; i++)
    h = axis_mix(d, h, a->to[i]);
  for (int i = 0; has & LM_A_IMM && i < a->n_imm; i++)
    h = mix(h, (uint64_t)a->imm[i]);
  if (has & LM_A_NUM)
    h = number_mix(h, a->num);
  if (has & LM_A_MESH)
    h = mix(h, a->mesh);
  return has & LM_A_SYM ? mix_text(h, a->sym) : h;
}

static int depth_of(const lm_region *r) {
  int depth = 0;
  for (; r->owner; r = r->owner->parent)
    depth++;
  return depth;
}

// An argument of a region is identified by the depth of the region and by its index.
static uint64_t value_digest(digester *d, const lm_value *v) {
  if (v->def)
    return mix(d->ops[v->def->mark], v->index);
  return type_mix(d, mix(mix(0xa5, (uint64_t)depth_of(v->region)), v->index), v->type);
}

static bool has_effect(const lm_op *op) {
  bool any = lm_op_info_of(op)->traits & LM_T_EFFECT;
  for (const lm_op *in = op->code == LM_OP_LOOP ? op->body->first : NULL; in && !any; in = in->next)
    any = has_effect(in);
  return any;
}

// Operation number n of the region with an effect; NULL if it has no more.
static const lm_op *effect_of(const lm_region *r, uint32_t n) {
  for (const lm_op *op = r->first; op; op = op->next)
    if (has_effect(op) && n-- == 0)
      return op;
  return NULL;
}

// What op depends on, after `next` others: the operations that define its operands (NULL: an
// argument), the end of its body and, for the end of a region, the operations with an effect.
// False: there are no more.
static bool operand_of(const lm_op *op, uint32_t next, const lm_op **out) {
  *out = NULL;
  if (next < op->n_in) {
    *out = op->in[next]->def;
    return true;
  }
  if (op->body && next == op->n_in)
    *out = op->body->last;
  else if (lm_op_ends_region(op))
    *out = effect_of(op->parent, next - op->n_in);
  return *out != NULL;
}

static uint64_t op_digest(digester *d, const lm_op *op) {
  uint64_t h = mix_text(0, lm_op_info_of(op)->name), in[2];
  bool swap = lm_op_info_of(op)->traits & LM_T_COMMUTE && op->n_in == 2;
  for (uint32_t i = 0; swap && i < 2; i++)
    in[i] = value_digest(d, op->in[i]);
  if (swap)
    h = in[0] < in[1] ? mix(mix(h, in[0]), in[1]) : mix(mix(h, in[1]), in[0]);
  for (uint32_t i = 0; !swap && i < op->n_in; i++)
    h = mix(h, value_digest(d, op->in[i]));
  const lm_op *effect;
  for (uint32_t i = 0; lm_op_ends_region(op) && (effect = effect_of(op->parent, i)); i++)
    h = mix(h, d->ops[effect->mark]);
  h = attr_mix(d, h, op);
  for (uint32_t i = 0; i < op->n_out; i++)
    h = type_mix(d, h, op->out[i]->type);
  if (op->body)
    h = mix(h, d->ops[op->body->last->mark]);
  return h ? h : 1;
}

static void push(digester *d, const lm_op *op) {
  if (op && !d->ops[op->mark])
    LM_PUSH(d->a, d->stack, d->n, d->cap) = (frame){op, 0};
}

// A post-order traversal without recursion: programs may be chains of thousands of statements.
static uint64_t digest_from(digester *d, const lm_op *last) {
  push(d, last);
  while (d->n) {
    frame *f = &d->stack[d->n - 1];
    const lm_op *op = f->op, *operand;
    if (operand_of(op, f->next++, &operand)) {
      push(d, operand);
      continue;
    }
    d->ops[op->mark] = op_digest(d, op);
    d->n--;
  }
  return d->ops[last->mark];
}

static void op_number(lm_op *op, void *user) {
  op->mark = (*(uint32_t *)user)++;
}

uint64_t lm_func_digest(const lm_func *f) {
  const lm_module *m = f->module;
  uint32_t n_ops = 0;
  lm_region_walk(f->body, op_number, &n_ops);
  lm_arena *a = lm_arena_create();
  digester d = {.m = m,
                .a = a,
                .ops = LM_NEW_N(a, uint64_t, n_ops + 1),
                .axes = LM_NEW_N(a, uint32_t, m->n_axes + 1)};
  uint64_t h = mix_text(0, f->name);
  for (uint32_t i = 0; i < f->body->n_args; i++)
    h = mix_text(type_mix(&d, h, f->body->args[i]->type), f->body->args[i]->name);
  for (uint32_t i = 0; i < f->n_out; i++)
    h = mix_text(h, f->out_names[i]);
  h = mix(h, digest_from(&d, f->body->last));
  lm_arena_destroy(a);
  return h;
}
