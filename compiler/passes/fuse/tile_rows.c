// tile_rows.c - tiles the rows of each half of a transformer block: rowwise operations around
// weight GEMMs run on one tile of rows at a time, so that intermediate tensors stay in the L2
// cache.
//
// before: %n = mul %x, %r : f32[b, t, d]     %g = dot %n, %wg over(d) : f32[b, t, ff]
//         %a = tanh %g   %y = dot %a, %wd over(ff) : f32[b, t, d]   %z = add %x, %y
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %zs = loop 16 over(part) %i {
//           %x1 = at %xs, %i   %n1 = mul %x1, %r1 : f32[row, d]
//           %g1 = dot %n1, %wg over(d) : f32[row, ff]   …   yield %z1
//         } : f32[part, row, d]
//         %z = view %zs (part, row) -> (b, t) : f32[b, t, d]
//
// Rows are the axes of a GEMM that its weight lacks. Operations along the rows (attention, sums
// over tokens) divide a region into levels. One loop covers one level: the GEMMs of the level, the
// rowwise operations that they depend on, and the rowwise operations that depend on them. A
// transformer layer has two: from the norm and the query, key and value GEMMs up to attention, and
// from the output GEMM to the end of the layer. After the last GEMM, operations stay inside unless
// their result is as large and has to be stashed in addition to their operand (queries with a norm
// per head: the result of the GEMM leaves the loop once). The derivative of the loop is a loop over
// tiles (pass grad): it reads stashes per tile and accumulates the gradients of weights per tile.
//
// Gain, in bytes that do not go through memory: for the result of a GEMM that is used inside, one
// read, and in the backward pass one write of its cotangent and two reads (weight gradient and data
// gradient), 4 times its bytes; for an operand that is computed inside, one write, again in the
// backward pass, and for each GEMM that reads it both reads and the accesses of its cotangent, 2
// times its bytes plus 4 times per GEMM. Cost, for each tile but the first: weights are read again
// (forward and data gradient), their f32 gradients are read and written again, and three launches
// per GEMM; and the cotangent of an outer value is stacked and added to its other contributions, 2
// times its bytes. The tiling is profitable only if a tile fits the caches and memory bandwidth
// limits the step: in bf16 on processors with AMX and few cores (lm_target_choices.cached_bytes),
// by estimate. In f32 with AVX2 it makes no difference whether tensors between GEMMs take 2 or 32
// MB, so the pass runs there only if forced. Declines: GEMMs of 8-bit floats, whose scales are
// those of whole tensors; unprofitable tilings; functions that are not differentiated; dynamic
// extents; too few rows for two tiles; loops without carries (made by pass tile_vocab). Compile
// time: linear in the operations of a region, per loop.
#include <string.h>

#include "compiler/ops/interface.h"
#include "compiler/passes/fuse/row_tiling.h"
#include "compiler/analysis/activity.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

// Elements of the widest GEMM result for which a tile is profitable.
enum {
  ELEMENTS = 1 << 16
};

// An operation of the region, indexed by its mark.
typedef struct node {
  lm_op *op;
  uint32_t level, until; // until: the minimum level of its users
  bool rowwise, gemm;    // gemm: rowwise, and one operand of the dot has no rows
  bool feeds, follows;   // within the level: a GEMM depends on it; it depends on a GEMM
  bool nonlinear;        // after the last GEMM: its derivative reads values of this size
  bool narrows;          // after the last GEMM: it ends in one number per row
  bool inside, read;     // read: by an operation inside
} node;

typedef struct tiling {
  lm_row_tiling rows;
  const lm_region *region;
  node *nodes;
  uint32_t n;      // [0] unused
  uint8_t *active; // by value id: depends on a parameter
  uint32_t n_active;
  uint32_t level; // of the root
} tiling;

// ---- operands, including the operands of nested regions

typedef void operand_fn(tiling *s, node *user, node *of, const lm_value *v);
typedef struct visit {
  tiling *s;
  node *user;
  operand_fn *fn;
} visit;

static void visit_op(lm_op *op, void *user) {
  visit *v = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->def && op->in[i]->region == v->s->region)
      v->fn(v->s, v->user, &v->s->nodes[op->in[i]->def->mark], op->in[i]);
}

static void operands(tiling *s, node *n, operand_fn *fn) {
  visit v = {s, n, fn};
  visit_op(n->op, &v);
  if (n->op->body)
    lm_region_walk(n->op->body, visit_op, &v);
}

static void forward(tiling *s, operand_fn *fn) {
  for (uint32_t i = 1; i <= s->n; i++)
    operands(s, &s->nodes[i], fn);
}

static void backward(tiling *s, operand_fn *fn) {
  for (uint32_t i = s->n; i; i--)
    operands(s, &s->nodes[i], fn);
}

// ---- rows and rowwise operations

// The operand of a GEMM that has its leading rows, which the other operand lacks; -1 if op is not
// such a GEMM.
static int side_of_rows(const lm_op *op) {
  if (op->code != LM_OP_DOT)
    return -1;
  for (int side = 0; side < 2; side++) {
    lm_type own = lm_dot_free_axes(op, side);
    if (own.rank && own.rank < op->out[0]->type.rank && op->out[0]->type.axis[0] == own.axis[0])
      return side;
  }
  return -1;
}

// The free axes of the operand, as far as they are leading axes of the result.
static lm_type rows_of(const lm_op *op, int side) {
  lm_type own = lm_dot_free_axes(op, side);
  lm_type z = op->out[0]->type;
  for (int i = 0; i < own.rank; i++)
    if (z.axis[i] != own.axis[i])
      own.rank = (uint8_t)i;
  memset(own.axis + own.rank, 0, (LM_RANK - own.rank) * sizeof *own.axis);
  return own;
}

static bool has_prefix(lm_type t, lm_type with) {
  return t.rank >= with.rank && !memcmp(t.axis, with.axis, with.rank * sizeof *t.axis);
}

static bool is_rowwise(const lm_row_tiling *r, const lm_op *op) {
  if (op->body || op->n_out != 1 || lm_type_dynamic(r->m, op->out[0]->type) ||
      !has_prefix(op->out[0]->type, r->rows))
    return false;
  if (op->code == LM_OP_GATHER)
    return lm_row_tiling_is_contiguous(r, op->in[0]->type) &&
           lm_row_tiling_is_rowwise(r, op); // excludes tables, whose gradients are large
  if (op->code != LM_OP_DOT)
    return lm_row_tiling_is_rowwise(r, op);
  for (int i = 0; i < 2; i++)
    if (lm_type_intersects(op->in[i]->type, r->rows) &&
        !lm_row_tiling_is_contiguous(r, op->in[i]->type))
      return false;
  return true;
}

static bool is_gemm(const lm_row_tiling *r, const lm_op *op) {
  return op->code == LM_OP_DOT && (!lm_type_intersects(op->in[0]->type, r->rows) ||
                                   !lm_type_intersects(op->in[1]->type, r->rows));
}

// Chooses the rows per tile: as many as fit the target's caches, with the widest GEMM result and
// its operand; the target's own number for large GEMMs if it has one; without a target LM_ROWS, or
// as many as make a loop profitable.
static bool divides(lm_row_tiling *r, const lm_region *region, const lm_target *target) {
  double rows = (double)lm_type_elements(r->m, r->rows);
  double widest = 1;
  double room = 1;
  for (const lm_op *op = region->first; op; op = op->next) {
    int side = side_of_rows(op);
    if (side < 0 || !has_prefix(op->out[0]->type, r->rows))
      continue;
    lm_type z = op->out[0]->type;
    double width = (double)lm_type_elements(r->m, z) / rows;
    double bytes = (lm_type_traffic(r->m, z) + lm_type_traffic(r->m, op->in[side]->type)) / rows;
    if (width > widest)
      widest = width;
    if (bytes > room)
      room = bytes;
  }
  double max_rows = ELEMENTS / widest > LM_ROWS ? ELEMENTS / widest : LM_ROWS;
  if (target && target->choices.cached_bytes)
    max_rows = (double)target->choices.cached_bytes / room;
  if (target && target->choices.rows)
    max_rows = target->choices.rows;
  return !lm_type_dynamic(r->m, r->rows) && max_rows >= 1 &&
         lm_row_tiling_divide(r, (int64_t)max_rows, 1);
}

// Among GEMMs with a common prefix of rows, chooses the fewest axes, which are rows of all.
static bool rows_choose(lm_row_tiling *r, const lm_op *root, const lm_target *target) {
  int side = side_of_rows(root);
  if (side < 0)
    return false;
  r->rows = rows_of(root, side);
  if (!divides(r, root->parent, target))
    return false;
  for (const lm_op *op = root->parent->first; op; op = op->next) {
    if ((side = side_of_rows(op)) < 0)
      continue;
    lm_row_tiling fewer = *r;
    fewer.rows = rows_of(op, side);
    if (fewer.rows.rank < r->rows.rank && has_prefix(r->rows, fewer.rows) &&
        divides(&fewer, root->parent, target))
      *r = fewer;
  }
  return true;
}

// ---- levels

static void level_rise(tiling *s, node *user, node *of, const lm_value *v) {
  (void)s;
  (void)v;
  uint32_t level = of->level + (user->rowwise && !of->rowwise);
  if (level > user->level)
    user->level = level;
}

// A rowwise operation that is not a GEMM may move to the level of its users.
static void level_settle(node *n) {
  if (n->rowwise && !n->gemm && n->until != UINT32_MAX && n->until > n->level)
    n->level = n->until;
}

static void until_lower(tiling *s, node *user, node *of, const lm_value *v) {
  (void)s;
  (void)v;
  if (user->level < of->until)
    of->until = user->level;
}

static void levels_make(tiling *s) {
  forward(s, level_rise);
  for (uint32_t i = s->n; i; i--) {
    level_settle(&s->nodes[i]);
    operands(s, &s->nodes[i], until_lower);
  }
}

// ---- operations inside

static bool at_level(const tiling *s, const node *n) {
  return n->rowwise && n->level == s->level;
}
static bool is_tail(const tiling *s, const node *n) {
  return at_level(s, n) && n->follows && !n->feeds && !n->gemm;
}

static void follow(tiling *s, node *user, node *of, const lm_value *v) {
  (void)v;
  user->follows |= at_level(s, user) && at_level(s, of) && (of->gemm || of->follows);
}

static void feed(tiling *s, node *user, node *of, const lm_value *v) {
  (void)v;
  of->feeds |= at_level(s, user) && at_level(s, of) && (user->gemm || user->feeds);
}

static bool is_active(const void *user, const lm_value *v) {
  const tiling *s = user;
  return v->id < s->n_active && s->active[v->id];
}

static void mark_nonlinear(tiling *s, node *user, node *of, const lm_value *v) {
  (void)v;
  if (is_tail(s, user))
    user->nonlinear |=
        !lm_op_is_linear(user->op, is_active, s) || (is_tail(s, of) && of->nonlinear);
}

static void narrow(tiling *s, node *user, node *of, const lm_value *v) {
  if (is_tail(s, of))
    of->narrows &=
        is_tail(s, user) ? user->narrows : lm_row_tiling_has_only_rows(&s->rows, v->type);
}

static void leave(tiling *s, node *user, node *of, const lm_value *v) {
  (void)v;
  if (is_tail(s, user) && is_tail(s, of))
    user->inside &= of->inside;
}

// Operands of operations inside are inside too, except operations at the end that only move or
// widen values.
static void node_keep(tiling *s, node *user, node *of, const lm_value *v) {
  (void)v;
  if (!user->inside || !at_level(s, of))
    return;
  of->inside = of->read = true;
}

static bool only_moves(const lm_op *op) {
  bool widens = op->code == LM_OP_CAST && lm_dtype_bytes((lm_dtype)op->out[0]->type.dtype) >
                                              lm_dtype_bytes((lm_dtype)op->in[0]->type.dtype);
  return widens || lm_op_has(op, LM_T_MOVE);
}

static void members_find(tiling *s) {
  forward(s, follow);
  backward(s, feed);
  forward(s, mark_nonlinear);
  for (uint32_t i = 1; i <= s->n; i++)
    s->nodes[i].narrows = true;
  backward(s, narrow);
  for (uint32_t i = 1; i <= s->n; i++) {
    node *n = &s->nodes[i];
    n->inside =
        at_level(s, n) && (n->gemm || n->feeds || (n->follows && (!n->nonlinear || n->narrows)));
  }
  forward(s, leave);
  for (uint32_t i = s->n; i; i--) {
    node *n = &s->nodes[i];
    if (!n->read && only_moves(n->op))
      n->inside = false;
    operands(s, n, node_keep);
  }
}

// ---- the cost model

static node *inside_of(tiling *s, const lm_value *v) {
  node *n = v->def && v->region == s->region ? &s->nodes[v->def->mark] : NULL;
  return n && n->inside ? n : NULL;
}

typedef struct bytes {
  double kept;     // saved: stays in caches
  double once;     // paid once
  double per_tile; // paid for each tile but the first
  double tile;     // size of the widest GEMM result and its operand, for all rows
  uint8_t *seen;   // by value id
} bytes;

static bool see(bytes *sum, const lm_value *v) {
  bool first = !sum->seen[v->id];
  sum->seen[v->id] = 1;
  return first;
}

static void operand_count(tiling *s, const node *user, const lm_value *x, bytes *sum,
                          double *room) {
  double n = lm_type_traffic(s->rows.m, x->type);
  bool rows = lm_type_intersects(x->type, s->rows.rows);
  bool made = inside_of(s, x) != NULL;
  if (rows && !made && is_active(s, x) && see(sum, x))
    sum->once += 2 * n;
  if (!user->gemm)
    return;
  if (rows)
    *room += n;
  else
    sum->per_tile +=
        2 * n + 2.0 * lm_dtype_bytes(LM_F32) * (double)lm_type_elements(s->rows.m, x->type);
  if (made)
    sum->kept += see(sum, x) ? 6 * n : 4 * n;
}

static bytes bytes_count(tiling *s, double launch) {
  bytes sum = {.seen = lm_calloc((size_t)s->rows.m->n_values + 1, 1)};
  for (uint32_t i = 1; i <= s->n; i++) {
    node *n = &s->nodes[i];
    if (!n->inside)
      continue;
    double result = lm_type_traffic(s->rows.m, n->op->out[0]->type);
    double room = result;
    for (uint32_t k = 0; k < n->op->n_in; k++)
      operand_count(s, n, n->op->in[k], &sum, &room);
    if (!n->gemm)
      continue;
    if (n->read)
      sum.kept += 4 * result;
    sum.per_tile += 3 * launch;
    if (room > sum.tile)
      sum.tile = room;
  }
  lm_free(sum.seen);
  return sum;
}

static bool is_profitable(tiling *s, const lm_op *root, const lm_pass_env *env) {
  const lm_target *target = env ? env->target : NULL;
  bytes n = bytes_count(s, target ? (double)target->choices.launch : 0);
  if (!n.kept || !target || lm_pass_is_forced(env, "tile_rows"))
    return n.kept > 0;
  double n_tiles = (double)s->rows.n_tiles;
  return root->in[0]->type.dtype == LM_BF16 &&
         n.tile / n_tiles <= (double)target->choices.cached_bytes &&
         n.kept > n.once + (n_tiles - 1) * n.per_tile;
}

// ---- the loop around a GEMM

static void nodes_make(tiling *s, lm_op *root) {
  const lm_row_tiling *r = &s->rows;
  for (lm_op *op = s->region->first; op; op = op->next)
    op->mark = ++s->n;
  s->nodes = lm_calloc(s->n + 1, sizeof *s->nodes);
  for (lm_op *op = s->region->first; op; op = op->next) {
    bool rowwise = is_rowwise(r, op);
    s->nodes[op->mark] = (node){.op = op,
                                .level = rowwise,
                                .until = UINT32_MAX,
                                .rowwise = rowwise,
                                .gemm = rowwise && is_gemm(r, op)};
  }
  levels_make(s);
  s->level = s->nodes[root->mark].level;
  members_find(s);
}

static void reaches(lm_op *op, void *user) {
  const visit *v = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    v->user->follows |= op->in[i]->region == v->s->region && op->in[i]->def && op->in[i]->def->mark;
}

// Marks the operations that are inside and those that depend on them. False if one of the latter
// has an effect.
static bool marks_make(tiling *s) {
  for (uint32_t i = 1; i <= s->n; i++)
    s->nodes[i].op->mark = 0;
  for (uint32_t i = 1; i <= s->n; i++) {
    node *n = &s->nodes[i];
    visit v = {s, n, NULL};
    n->follows = false;
    reaches(n->op, &v);
    if (n->op->body)
      lm_region_walk(n->op->body, reaches, &v);
    n->op->mark = n->inside    ? LM_ROW_TILE_FOLLOWS | LM_ROW_TILE_INSIDE
                  : n->follows ? LM_ROW_TILE_FOLLOWS
                               : 0;
    if (!n->inside)
      continue;
    if (!s->rows.first)
      s->rows.first = n->op;
    s->rows.last = n->op;
  }
  for (const lm_op *op = s->rows.first; op != s->rows.last; op = op->next)
    if (op->mark == LM_ROW_TILE_FOLLOWS && lm_op_info_of(op)->traits & LM_T_EFFECT)
      return false;
  return true;
}

// Tiles the operations around the GEMM if profitable. *out_next is the first operation, from the
// beginning of the loop's operations, that was not moved.
static bool tile_around(tiling *s, lm_op *root, const lm_pass_env *env, lm_op **out_next) {
  s->n_active = s->rows.m->n_values;
  s->active = lm_activity_of_func(root->parent->func);
  nodes_make(s, root);
  bool ok = is_profitable(s, root, env) && marks_make(s);
  if (ok) {
    lm_op *before = s->rows.first->prev;
    lm_row_tiling_apply(&s->rows);
    *out_next = before ? before->next : s->region->first;
  }
  lm_free(s->nodes);
  lm_free(s->active);
  return ok;
}

// ---- the pass

typedef struct last {
  int64_t n_tiles;
  int64_t row_count;
  lm_axis tile;
  lm_axis row;
} last; // the previous tiling of the function: equal tilings share its axes

static void tile_region(lm_func *f, const lm_region *r, int depth, const lm_pass_env *env,
                        last *was) {
  const lm_target *target = env ? env->target : NULL;
  for (lm_op *op = r->first, *next; op; op = next) {
    tiling s = {
        .rows.m = f->module,
        .region = r,
    };
    next = op->next;
    if (op->code == LM_OP_LOOP && op->n_in)
      tile_region(f, op->body, depth + 1, env, was);
    if (depth == LM_PLAN_DEPTH || !rows_choose(&s.rows, op, target))
      continue;
    if (s.rows.n_tiles == was->n_tiles && s.rows.row_count == was->row_count) {
      s.rows.tile = was->tile;
      s.rows.row = was->row;
    }
    if (tile_around(&s, op, env, &next))
      *was = (last){s.rows.n_tiles, s.rows.row_count, s.rows.tile, s.rows.row};
  }
}

bool lm_pass_tile_rows(lm_module *m, const lm_pass_env *env) {
  const lm_target *target = env ? env->target : NULL;
  if (env && env->fp8)
    return true; // a scale is that of a whole tensor
  if (target && !target->choices.cached_bytes && !lm_pass_is_forced(env, "tile_rows"))
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS)
      tile_region(f, f->body, 0, env, &(last){0});
  return true;
}
