// fuse_again.c - values that a GPU computes again in each kernel that uses them, because that moves
// fewer bytes. fuse_node.c decides before there are groups, by a bound that holds wherever a value
// is used; the logistic of a gate exceeds it. Here the kernels that use the value and their other
// operands are known. The derivative of a gate reads the gate's operand too, so that the logistic
// need not be written and read.
//
// A value is computed again if it is elementwise, all of its users are in kernels of its region,
// and the instructions take less time than the bytes that are not moved. The choice for one
// value changes what the kernels read, so rounds repeat while there is a gain. Compile time is
// linear: each round lists the users of all values once.
//
// The choice depends on all kernels, and memory rounds 16-bit floats, registers do not. A model
// whose edit has no effect yet must have the loss of its base, in the same bits. So a 16-bit float
// is only computed again if no result of the function depends on it: in the backward pass.
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/fuse/fuse.h"
#include "compiler/passes/rewrite.h"

enum {
  PER_BYTE = 8, // instructions in the time of a byte: 7 on an A100, 10 on an H100
  ROUNDS = 4,
  USERS = 16
};

// The nodes that read a value from memory.
typedef struct users {
  uint32_t node[USERS];
  int n; // USERS + 1: too many
} users;

typedef struct again {
  lm_fuse *s;
  uint32_t node;
  users u;
  bool fails;
} again;

// Elements of the largest operand or result.
static double elements_of(const lm_module *m, const lm_op *op) {
  double n = op->n_out ? (double)lm_type_elements(m, op->out[0]->type) : 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    double x = (double)lm_type_elements(m, op->in[i]->type);
    n = x > n ? x : n;
  }
  return n;
}

// ---- users

typedef struct user_index {
  lm_fuse *s;
  users *of;         // by node
  uint32_t visiting; // a node whose leaves are visited
} user_index;

static void user_add(void *user, lm_value *v, lm_type touched) {
  user_index *x = user;
  if (!v->def)
    return;
  users *u = &x->of[v->def->mark];
  for (int i = 0; i < u->n && i < USERS; i++)
    if (u->node[i] == x->visiting)
      return;
  if (u->n < USERS)
    u->node[u->n] = x->visiting;
  u->n += u->n <= USERS;
}

static void users_of(user_index *x, uint32_t node) {
  x->visiting = node;
  if (x->s->nodes[node].kind != LM_FUSE_REMAT)
    lm_fuse_leaves(x->s, x->s->nodes[node].op, user_add, x);
}

static void index_make(user_index *x) {
  memset(x->of, 0, x->s->n * sizeof *x->of);
  for (uint32_t i = 1; i < x->s->n; i++)
    users_of(x, i);
}

// The users of the node that are not themselves computed again.
static void users_find(again *a, const users *known) {
  const lm_fuse *s = a->s;
  a->fails = known->n > USERS;
  for (int i = 0; i < known->n && !a->fails; i++) {
    const lm_fuse_node *u = &s->nodes[known->node[i]];
    bool apart = u->kind != LM_FUSE_FUSED || u->op->parent != s->nodes[a->node].op->parent;
    if (u->kind == LM_FUSE_REMAT)
      continue;
    a->fails = apart || lm_fuse_unrounded(s, u->op);
    a->u.node[a->u.n++] = known->node[i];
  }
}

// ---- gain

typedef struct reading {
  lm_fuse *s;
  const lm_value *v; // a value that the group may read
  bool reads;
} reading;

static void is_read(void *user, lm_value *v, lm_type touched) {
  reading *r = user;
  r->reads |= v == r->v;
}

static bool group_reads(lm_fuse *s, uint32_t group, const lm_value *v) {
  reading r = {
      .s = s,
      .v = v,
  };
  for (uint32_t n = group; n && !r.reads; n = s->nodes[n].next)
    if (s->nodes[n].kind == LM_FUSE_FUSED)
      lm_fuse_leaves(s, s->nodes[n].op, is_read, &r);
  return r.reads;
}

typedef struct leaves {
  lm_fuse *s;
  const lm_op *op;
  uint32_t group;
  double bytes; // that the group reads besides
  bool fails;
} leaves;

static void leaf_add(void *user, lm_value *v, lm_type touched) {
  leaves *l = user;
  const lm_fuse_node *n = lm_fuse_node_of(l->s, v);
  bool inside = n && n->kind == LM_FUSE_FUSED && n->group == l->group;
  bool stored = !n || n->kind == LM_FUSE_UNFUSED || n->needed;
  l->fails |= inside ? touched.rank > 0 : !stored;
  if (!inside && !group_reads(l->s, l->group, v))
    l->bytes += lm_fuse_bytes_read(l->s->m, l->op->out[0]->type, v);
}

static double cone_flops(const lm_fuse *s, const lm_op *op) {
  double n = lm_op_info_of(op)->flops;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_fuse_node *from = lm_fuse_node_of(s, op->in[i]);
    if (from && from->kind == LM_FUSE_REMAT)
      n += cone_flops(s, from->op);
  }
  return n;
}

// The elements that the kernel of user i computes again; 0 if an earlier user is in it.
static double elements_of_group(const again *a, int i) {
  const lm_fuse_node *nodes = a->s->nodes;
  uint32_t group = nodes[a->u.node[i]].group;
  double elements = elements_of(a->s->m, nodes[a->node].op);
  for (int k = 0; k < a->u.n; k++) {
    const lm_fuse_node *u = &nodes[a->u.node[k]];
    if (u->group != group)
      continue;
    if (k < i)
      return 0;
    double n = elements_of(a->s->m, u->op);
    elements = n > elements ? n : elements;
  }
  return elements;
}

// The bytes that are not moved, less those that take the time of the instructions.
static double gain(again *a) {
  lm_fuse *s = a->s;
  const lm_fuse_node *n = &s->nodes[a->node];
  double own = lm_type_traffic(s->m, n->op->out[0]->type), bytes = own;
  double flops = cone_flops(s, n->op);
  for (int i = 0; i < a->u.n; i++) {
    leaves l = {
        .s = s,
        .op = n->op,
        .group = s->nodes[a->u.node[i]].group,
    };
    double elements = elements_of_group(a, i);
    if (l.group == n->group || !elements)
      continue;
    lm_fuse_leaves(s, n->op, leaf_add, &l);
    a->fails |= l.fails;
    bytes += own - l.bytes - flops * elements / PER_BYTE;
  }
  return a->fails ? 0 : bytes;
}

// ---- changing the kind

static bool may_be(const lm_fuse *s, const lm_fuse_node *n) {
  return n->kind == LM_FUSE_FUSED && n->needed && !n->chunk && n->op->n_out == 1 &&
         lm_op_has(n->op, LM_T_ELEMENTWISE) && n->op->n_in &&
         !(n->in_result && lm_dtype_is_half((lm_dtype)n->op->out[0]->type.dtype)) &&
         lm_remat_choice(n->op->remat) == LM_REMAT_AUTO && !lm_fuse_unrounded(s, n->op);
}

// True if the kernels of all users may be parallel over the same axes as before.
static bool axes_stay(again *a) {
  lm_fuse *s = a->s;
  for (int i = 0; i < a->u.n; i++) {
    const lm_fuse_node *u = &s->nodes[a->u.node[i]];
    if (!lm_type_subset(s->nodes[u->group].allowed, lm_fuse_allowed_axes(s, u)))
      return false;
  }
  return true;
}

static bool compute_again(user_index *x, uint32_t node) {
  lm_fuse *s = x->s;
  again a = {
      .s = s,
      .node = node,
  };
  lm_fuse_node *n = &s->nodes[node];
  users_find(&a, &x->of[node]);
  if (a.fails || gain(&a) <= 0)
    return false;
  n->kind = LM_FUSE_REMAT;
  if (!axes_stay(&a)) {
    n->kind = LM_FUSE_FUSED;
    return false;
  }
  for (int i = 0; i < a.u.n; i++) {
    lm_fuse_deps_find(s, &s->nodes[a.u.node[i]]);
    users_of(x, a.u.node[i]);
  }
  return true;
}

static bool mark(lm_fuse *s, const lm_op *op) {
  bool changed = false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_fuse_node *from = lm_fuse_node_of(s, op->in[i]);
    changed |= from && !from->in_result;
    if (from)
      from->in_result = true;
  }
  return changed;
}

// Marks what the results of the function depend on. The operations of a loop have larger numbers
// than the loop.
static void mark_results(lm_fuse *s) {
  bool changed = mark(s, s->f->body->last);
  while (changed) {
    changed = false;
    for (uint32_t i = s->n - 1; i > 0; i--) {
      const lm_op *op = s->nodes[i].op;
      if (!s->nodes[i].in_result)
        continue;
      changed |= mark(s, op);
      if (op->code == LM_OP_LOOP)
        changed |= mark(s, op->body->last);
    }
  }
}

void lm_fuse_again(lm_fuse *s) {
  bool changed = s->target && s->target->kind == LM_TARGET_CUDA;
  user_index x = {
      .s = s,
      .of = changed ? LM_NEW_N(s->arena, users, s->n) : NULL,
  };
  if (changed)
    mark_results(s);
  for (int round = 0; changed && round < ROUNDS; round++) {
    changed = false;
    lm_fuse_needs(s);
    index_make(&x);
    for (uint32_t i = 1; i < s->n; i++)
      changed |= may_be(s, &s->nodes[i]) && compute_again(&x, i);
  }
}
