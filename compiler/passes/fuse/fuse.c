// fuse.c - fuses tensor operations into kernels.
//
// before: %s = add %x, %y : f32[b, t, d]   %q = mul %s, %s   %m = sum %q over(d)   …
//         %z = dot %n, %w over(d)
// after:  %s, %n = kernel outer(b, t) (%x, %y, %g) { … the same operations … yield %s, %n }
//         %z = dot %n, %w over(d)
//
// 1. Cheap elementwise operations, constants and views are recomputed in every kernel that uses
//    them (fuse_node.c).
// 2. The other operations are grouped (fuse_group.c). A group becomes a kernel, with copies of the
//    recomputed operations.
// 3. A column sum, a sum of many rows, becomes a result of the kernel that computes the rows,
//    summed in chunks of points, and a small kernel that adds the chunks.
// 4. An operand of a GEMM that is a view without strides is copied first, and so is a number
//    rounded from an `unrounded` one, which kernels compute from the f32 in memory.
//
// Operations keep the order of the program, except that a kernel is placed right before the first
// operation that needs it. Declines: nothing; a single operation is a kernel too, and if the pass
// is disabled, each operation is one. Cost: the recomputed operations.
#include "compiler/passes/fuse/fuse.h"
#include <string.h>
#include "compiler/ir/internal.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

// ---- operands of GEMMs

// A dense copy of v. It is made below renames and permutations, which every GEMM can read through.
static lm_value *dense(lm_builder *b, lm_value *v) {
  lm_op *op = v->def;
  if (op && (op->code == LM_OP_RENAME || op->code == LM_OP_PERMUTE)) {
    lm_value *x = dense(b, op->in[0]);
    return lm_emit(b, op->code, &x, 1, &op->attr, &v->type);
  }
  return lm_emit(b, LM_OP_CAST, &v, 1, NULL, &v->type);
}

// A copy of v right behind it, one for all its users.
static lm_value *copy_behind(lm_module *m, lm_idmap *copies, lm_value *v) {
  lm_value *copy = lm_idmap_get(copies, v);
  if (copy)
    return copy;
  lm_op *op = v->def;
  lm_builder b = {m, op->parent, op->next, op->loc, op->remat};
  copy = lm_emit(&b, LM_OP_CAST, &v, 1, NULL, &v->type);
  lm_idmap_set(copies, v, copy);
  return copy;
}

// A slice of a scan that is a view of a permutation is read from a copy of the whole permutation,
// which the kernel that computes it can write in that order. Otherwise each tile of positions would
// be copied where it is read: forward, to recompute the carries, and backward.
static void dense_slices(lm_module *m, lm_idmap *copies, lm_op *scan) {
  for (uint32_t i = lm_scan_carries(scan); i < scan->n_in && lm_scan_operand_is_slice(scan, i);
       i++) {
    lm_value **v = &scan->in[i];
    while (lm_op_is(*v, LM_OP_AT) || lm_op_is(*v, LM_OP_VIEW) || lm_op_is(*v, LM_OP_RENAME))
      v = &(*v)->def->in[0];
    if (lm_op_is(*v, LM_OP_PERMUTE))
      *v = copy_behind(m, copies, *v);
  }
}

// An operand that rounds an `unrounded` number is read from a rounded copy. Kernels compute the
// operand from the f32 in memory.
static void round_operand(lm_module *m, lm_idmap *copies, lm_value **v) {
  while (!lm_fuse_rounds(*v) && (*v)->def && lm_fuse_is_view((*v)->def))
    v = &(*v)->def->in[0];
  if (!lm_fuse_rounds(*v))
    return;
  *v = copy_behind(m, copies, *v);
}

typedef struct copying {
  lm_module *m;
  lm_idmap copies; // by value id
} copying;

static void round_operands(lm_op *op, void *user) {
  copying *r = user;
  for (uint32_t i = 0; lm_fuse_stays(op) && i < op->n_in; i++)
    round_operand(r->m, &r->copies, &op->in[i]);
}

static void dense_operands(lm_op *op, void *user) {
  copying *c = user;
  lm_module *m = c->m;
  int k;
  if (op->code == LM_OP_SCAN)
    dense_slices(m, &c->copies, op);
  if (!lm_op_multiplies(op) && !lm_op_is_grouped(op))
    return;
  lm_builder b = {m, op->parent, op, op->loc};
  while (!lm_plan_dot_strides_ok(m, op, &k))
    op->in[k] = dense(&b, op->in[k]);
}

// ---- rebuilding a region

typedef struct writer {
  lm_fuse *s;
  lm_region *region;
  lm_builder b;
  lm_idmap map; // old value -> new value, outside of kernels
} writer;

// A kernel under construction: its operands are collected before its body is copied.
typedef struct body {
  writer *w;
  uint32_t group;
  lm_idmap map; // old value -> value inside the kernel
  lm_value **in;
  uint32_t n_in;
  uint32_t cap_in;
  lm_builder b;
} body;

static lm_value *new_value(writer *w, lm_value *v) {
  lm_value *to = lm_idmap_get(&w->map, v);
  return to ? to : v;
}

static void collect_operand(void *user, lm_value *v, lm_type touched) {
  body *k = user;
  lm_fuse_node *n = lm_fuse_node_of(k->w->s, v);
  if ((n && n->kind == LM_FUSE_FUSED && n->group == k->group) || lm_idmap_get(&k->map, v))
    return;
  lm_idmap_set(&k->map, v, v);
  LM_PUSH(k->w->s->arena, k->in, k->n_in, k->cap_in) = v;
}

static lm_value *copy_op(body *k, lm_op *op);

static lm_value *inside(body *k, lm_value *v) {
  lm_value *to = lm_idmap_get(&k->map, v);
  return to ? to : copy_op(k, v->def);
}

static lm_value *copy_op(body *k, lm_op *op) {
  lm_value **in = LM_NEW_N(k->w->s->arena, lm_value *, op->n_in + 1);
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = inside(k, op->in[i]);
  k->b.loc = op->loc;
  k->b.remat = op->remat;
  lm_value *v = lm_emit(&k->b, op->code, in, op->n_in, &op->attr, &op->out[0]->type);
  v->name = op->out[0]->name;
  lm_idmap_set(&k->map, op->out[0], v);
  return v;
}

// A kernel that adds the chunks of a column sum in order.
static lm_value *add_chunks(writer *w, lm_value *chunks, const lm_op *sum) {
  lm_type t = sum->out[0]->type;
  lm_attr a = {.n_axes = t.rank}, over = {.axes = {chunks->type.axis[0]}, .n_axes = 1};
  memcpy(a.axes, t.axis, sizeof a.axes);
  lm_op *kernel = lm_kernel_begin(&w->b, &a, &chunks, 1);
  lm_value *v = lm_emit(&w->b, LM_OP_SUM, &kernel->body->args[0], 1, &over, NULL);
  lm_kernel_end(&w->b, kernel, &v, 1);
  return kernel->out[0];
}

static lm_attr kernel_attr(const lm_fuse *s, uint32_t group, lm_axis chunk, uint32_t first) {
  lm_type parallel = lm_fuse_parallel_axes(s, group);
  lm_attr a = {.n_axes = parallel.rank,
               .to = {chunk},
               .n_to = chunk != 0,
               .imm = {first},
               .n_imm = chunk != 0};
  memcpy(a.axes, parallel.axis, sizeof a.axes);
  return a;
}

// The operations of a group that its kernel computes once; returns their number.
static uint32_t members_in_order(const lm_fuse *s, uint32_t group, uint32_t *list) {
  uint32_t n = 0;
  for (uint32_t i = group; i; i = s->nodes[i].next) {
    if (s->nodes[i].kind != LM_FUSE_FUSED)
      continue;
    uint32_t j = n++;
    for (; j > 0 && list[j - 1] > i; j--)
      list[j] = list[j - 1];
    list[j] = i;
  }
  return n;
}

// The column sums of one kernel share the axis of its chunks.
static lm_axis chunk_of(const lm_fuse *s, const uint32_t *members, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (s->nodes[members[i]].chunk)
      return s->nodes[members[i]].chunk;
  return 0;
}

static void write_kernel(writer *w, uint32_t group) {
  lm_fuse *s = w->s;
  uint32_t *members = LM_NEW_N(s->arena, uint32_t, s->nodes[group].n_group + 1);
  uint32_t n = members_in_order(s, group, members);
  uint32_t plain = 0;
  uint32_t n_out = 0;
  lm_op **sources = LM_NEW_N(s->arena, lm_op *, n + 1);
  lm_value **results = LM_NEW_N(s->arena, lm_value *, n + 1);
  body k = {
      .w = w,
      .group = group,
  };
  for (uint32_t i = 0; i < n; i++)
    lm_fuse_leaves(s, s->nodes[members[i]].op, collect_operand, &k);
  for (uint32_t i = 0; i < n; i++)
    plain += s->nodes[members[i]].needed && !s->nodes[members[i]].chunk;
  lm_attr a = kernel_attr(s, group, chunk_of(s, members, n), plain);
  lm_value **in = LM_NEW_N(s->arena, lm_value *, k.n_in + 1);
  for (uint32_t i = 0; i < k.n_in; i++)
    in[i] = new_value(w, k.in[i]);
  w->b.loc = s->nodes[members[0]].op->loc;
  lm_op *kernel = lm_kernel_begin(&w->b, &a, in, k.n_in);
  k.b = w->b;
  for (uint32_t i = 0; i < k.n_in; i++)
    lm_idmap_set(&k.map, k.in[i], kernel->body->args[i]);
  for (uint32_t i = 0; i < n; i++)
    if (!s->nodes[members[i]].chunk)
      copy_op(&k, s->nodes[members[i]].op);
  for (int sums = 0; sums < 2; sums++)
    for (uint32_t i = 0; i < n; i++) {
      lm_fuse_node *m = &s->nodes[members[i]];
      if (!m->needed || (m->chunk != 0) != sums)
        continue;
      sources[n_out] = m->op;
      results[n_out++] = inside(&k, m->chunk ? m->op->in[0] : m->op->out[0]);
    }
  lm_kernel_end(&w->b, kernel, results, n_out);
  for (uint32_t i = 0; i < n_out; i++) {
    kernel->out[i]->name = sources[i]->out[0]->name;
    lm_value *v = i < plain ? kernel->out[i] : add_chunks(w, kernel->out[i], sources[i]);
    lm_idmap_set(&w->map, sources[i]->out[0], v);
  }
  lm_idmap_free(&k.map);
}

static void write_op(writer *w, lm_op *op);
static void write_region(writer *w, lm_region *r);

static void write_deps(writer *w, const lm_fuse_node *n) {
  for (uint32_t i = 0; i < n->n_deps; i++)
    write_op(w, w->s->nodes[n->deps[i].from].op);
}

static void write_group(writer *w, uint32_t group) {
  lm_fuse *s = w->s;
  bool any = false;
  if (s->nodes[group].placed)
    return;
  s->nodes[group].placed = true;
  for (uint32_t n = group; n; n = s->nodes[n].next) {
    write_deps(w, &s->nodes[n]);
    any |= s->nodes[n].needed;
  }
  if (any)
    write_kernel(w, group);
}

// Emits a view or constant that stays outside of kernels before its first use.
static void write_views(writer *w, lm_value *v) {
  lm_fuse_node *n = lm_fuse_node_of(w->s, v);
  if (!n || n->kind != LM_FUSE_REMAT || n->placed || n->op->parent != w->region)
    return;
  n->placed = true;
  for (uint32_t i = 0; i < n->op->n_in; i++) {
    write_views(w, n->op->in[i]);
    n->op->in[i] = new_value(w, n->op->in[i]);
  }
  lm_op_link(w->region, NULL, n->op);
}

// Emits views of parallel values that a loop body uses directly before the loop.
static void views_of_body(writer *w, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->code == LM_OP_LOOP)
      views_of_body(w, op->body);
    if (w->s->nodes[op->mark].kind != LM_FUSE_UNFUSED)
      continue;
    for (uint32_t i = 0; i < op->n_in; i++) {
      lm_value *v = op->in[i];
      while (v->region != w->region && lm_fuse_node_of(w->s, v) &&
             lm_fuse_node_of(w->s, v)->kind == LM_FUSE_REMAT && v->def->n_in)
        v = v->def->in[0];
      write_views(w, v);
    }
  }
}

static void write_top(writer *w, lm_fuse_node *n) {
  lm_op *op = n->op;
  n->placed = true;
  write_deps(w, n);
  if (op->code == LM_OP_LOOP)
    views_of_body(w, op->body);
  for (uint32_t i = 0; i < op->n_in; i++) {
    write_views(w, op->in[i]);
    op->in[i] = new_value(w, op->in[i]);
  }
  lm_op_link(w->region, NULL, op);
  if (op->code != LM_OP_LOOP)
    return;
  lm_region *outside = w->region;
  write_region(w, op->body);
  w->region = w->b.at = outside;
  w->b.before = NULL;
}

static void write_op(writer *w, lm_op *op) {
  lm_fuse_node *n = &w->s->nodes[op->mark];
  if (n->kind == LM_FUSE_FUSED)
    write_group(w, n->group);
  else if (n->kind == LM_FUSE_UNFUSED && !n->placed)
    write_top(w, n);
}

static void write_region(writer *w, lm_region *r) {
  uint32_t n = 0;
  uint32_t count = 0;
  for (lm_op *op = r->first; op; op = op->next)
    count++;
  lm_op **ops = LM_NEW_N(w->s->arena, lm_op *, count + 1);
  for (lm_op *op = r->first; op; op = op->next)
    ops[n++] = op;
  r->first = r->last = NULL;
  w->region = w->b.at = r;
  w->b.before = NULL;
  for (uint32_t i = 0; i < n; i++) {
    if (w->s->nodes[ops[i]->mark].kind == LM_FUSE_UNFUSED)
      write_op(w, ops[i]);
  }
}

static void fuse_func(lm_module *m, lm_func *f, const lm_target *target, bool group) {
  lm_fuse s = {
      .m = m,
      .f = f,
      .target = target,
      .arena = lm_arena_create(),
  };
  copying r = {.m = m};
  lm_fuse_walk(f->body, round_operands, &r);
  lm_fuse_walk(f->body, dense_operands, &r);
  lm_idmap_free(&r.copies);
  lm_fuse_nodes_make(&s);
  if (group)
    lm_fuse_group(&s);
  if (group)
    lm_fuse_again(&s);
  lm_fuse_needs(&s);
  writer w = {.s = &s, .b = {.m = m}};
  write_region(&w, f->body);
  lm_idmap_free(&w.map);
  lm_arena_destroy(s.arena);
}

bool lm_pass_fuse(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next)
    fuse_func(m, f, env->target, !lm_pass_is_off(env, "fuse"));
  m->stage = LM_STAGE_KERNEL;
  return true;
}
