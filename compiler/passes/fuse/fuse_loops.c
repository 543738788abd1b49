// fuse_loops.c - fuses two loops of equal trip count if each iteration of the second depends on the
// same iteration of the first only.
//
// before: %s, %z = loop 8 over(part) %i { … yield %s1, %z1 }   %t = sum %s over(part)
//         %g = loop 8 over(part) %j { %z2 = at %z, %j   %x1 = at %xs, %j   … yield %g1 }
// after:  %s, %g = loop 8 over(part) %j { … %s1 … %z1 …   %x1 = at %xs, %j   … yield %s1, %g1 }
//         %t = sum %s over(part)
//
// The first loop has no carries, and no effects but on states that neither the second loop nor the
// operations between the two read or write, such as a history of a scale (pass fp8). The second
// loop reads the results of the first at its own iteration, and these reads become the value
// itself: dce removes a stash with no other use, and cse merges what both loops computed. Other
// operations between the two that depend on the first loop move after the fused loop. This fuses
// the forward and the backward loop of a tiled GEMM (pass tile_vocab). Declines: loops with an
// operation in between that depends on the first and has an effect, or that the second depends on.
// Cost: none.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

// op->mark: depends on the first loop.
enum {
  FOLLOWS = 1
};

typedef struct search {
  const lm_op *first;
  const lm_op *second;
  bool found;
  bool effect;
} search;

static bool follows(const search *s, const lm_value *v) {
  return v->def && v->region == s->first->parent && v->def->mark == FOLLOWS;
}

static void visit_operands(lm_op *op, void *user) {
  search *s = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    s->found |= follows(s, op->in[i]);
  s->effect |= lm_op_info_of(op)->traits & LM_T_EFFECT;
}

static bool reads_own_iteration(const search *s, const lm_op *op) {
  return op->code == LM_OP_AT && op->in[0]->def == s->first &&
         op->in[1] == s->second->body->args[0] && op->attr.imm[0] == 0 && op->attr.imm[1] == 1;
}

static void visit_second(lm_op *op, void *user) {
  if (!reads_own_iteration(user, op))
    visit_operands(op, user);
}

// ---- effects

static bool accesses_state(const lm_op *op) {
  return op->code == LM_OP_RECALL || op->code == LM_OP_RETAIN;
}

typedef struct states {
  const lm_op *first, *second;
  lm_sym of;
  bool apart;
} states;

static void visit_state(lm_op *op, void *user) {
  states *s = user;
  s->apart &= !(lm_op_has(op, LM_T_EFFECT) && op->attr.sym == s->of);
}

// Of an operation of the first loop: nothing else up to the end of the second one accesses its
// state.
static void visit_effect(lm_op *op, void *user) {
  states *s = user;
  if (!lm_op_has(op, LM_T_EFFECT))
    return;
  s->of = op->attr.sym;
  s->apart &= accesses_state(op);
  for (lm_op *at = s->first->next; at != s->second->next; at = at->next) {
    visit_state(at, s);
    if (at->body)
      lm_region_walk(at->body, visit_state, s);
  }
}

static bool effects_are_apart(const lm_op *a, const lm_op *b) {
  states s = {
      .first = a,
      .second = b,
      .apart = true,
  };
  lm_region_walk(a->body, visit_effect, &s);
  return s.apart;
}

// Marks the operations between the loops that depend on the first. False if they cannot move after
// the second.
static bool can_fuse(lm_op *a, lm_op *b) {
  search whole = {
      .first = a,
      .second = b,
  };
  for (lm_op *op = a->parent->first; op; op = op->next)
    op->mark = op == a ? FOLLOWS : 0;
  for (lm_op *op = a->next; op != b; op = op->next) {
    search s = {
        .first = a,
        .second = b,
    };
    visit_operands(op, &s);
    if (op->body)
      lm_region_walk(op->body, visit_operands, &s);
    if (s.found && s.effect)
      return false;
    op->mark = s.found ? FOLLOWS : 0;
  }
  for (uint32_t i = 0; i < b->n_in; i++)
    whole.found |= follows(&whole, b->in[i]);
  lm_region_walk(b->body, visit_second, &whole);
  return !whole.found;
}

static bool axes_fit(const lm_op *a, const lm_op *b) {
  return !a->attr.n_axes || !b->attr.n_axes || a->attr.axes[0] == b->attr.axes[0];
}

typedef struct replacement {
  const search *s;
  lm_value **map;
} replacement;

static void replace_read(lm_op *op, void *user) {
  const replacement *p = user;
  if (!reads_own_iteration(p->s, op))
    return;
  p->map[op->out[0]->id] = p->s->first->body->last->in[op->in[0]->index];
  lm_op_remove(op);
}

static void fuse(lm_module *m, lm_op *a, lm_op *b) {
  uint32_t n_values = m->n_values;
  lm_op *yield = a->body->last;
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  search s = {
      .first = a,
      .second = b,
  };
  lm_region_walk(b->body, replace_read, &(replacement){&s, map});
  lm_op *first = b->body->first;
  map[a->body->args[0]->id] = b->body->args[0];
  for (lm_op *op = a->body->first, *next; op != yield; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(first, op);
  }
  if (!b->attr.n_axes) {
    b->attr.axes[0] = a->attr.axes[0];
    b->attr.n_axes = a->attr.n_axes;
  }
  for (uint32_t i = 0; i < a->n_out; i++)
    map[a->out[i]->id] = lm_loop_stack(m, b, yield->in[i]);
  lm_ops_sink(a, b->next, FOLLOWS);
  lm_op_remove(a);
  lm_func_substitute(b->parent->func, map, n_values);
  lm_free(map);
}

// The next loop of the region that a can be fused with; NULL if there is none.
static lm_op *partner(lm_op *a) {
  if (a->n_in)
    return NULL;
  for (lm_op *b = a->next; b; b = b->next) {
    bool fits = b->code == LM_OP_LOOP && b->attr.imm[0] == a->attr.imm[0] && axes_fit(a, b) &&
                !lm_loop_is_reversed(a) && !lm_loop_is_reversed(b);
    if (fits && effects_are_apart(a, b) && can_fuse(a, b))
      return b;
  }
  return NULL;
}

static void fuse_loops_visit(lm_module *m, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code != LM_OP_LOOP)
      continue;
    fuse_loops_visit(m, op->body);
    lm_op *b = partner(op);
    if (!b)
      continue;
    fuse(m, op, b);
    next = r->first; // operations between the loops may have moved
  }
}

bool lm_pass_fuse_loops(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    fuse_loops_visit(m, f->body);
  return true;
}
