// tile_rows.c - operations that compute each row by itself, around products with weights, run some
// rows at a time: a slab of rows goes through half a block, so that what lies between the
// operations stays in the second-level caches.
//
// before: %n = mul %x, %r : f32[b, t, d]     %g = dot %n, %wg over(d) : f32[b, t, ff]   %a = tanh
// %g
//         %y = dot %a, %wd over(ff) : f32[b, t, d]   %z = add %x, %y
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %zs = loop 16 over(part) %i {
//           %x1 = at %xs, %i   %n1 = mul %x1, %r1 : f32[row, d]   %g1 = dot %n1, %wg over(d) :
//           f32[row, ff]   …   yield %z1
//         } : f32[part, row, d]
//         %z = view %zs (part, row) -> (b, t) : f32[b, t, d]
//
// Rows are the axes of a product that its weight has not. Operations that work along rows
// (attention, sums over tokens) part a region into levels: a slab is of one level, all that the
// products of the level are made of and all that is made of them, so a transformer has two in a
// layer: norm and projections up to attention, and from the projection behind it to the end of the
// layer. Behind its last product a slab goes on, unless that leaves as much and has to be kept for
// the derivative beside what it is made of (queries normed by head: the product leaves, once). The
// derivative of the slab is a loop over slabs again (pass grad): it reads stashes turn by turn, and
// adds to the gradients of weights once a turn.
//
// Gained, in bytes that no longer go through memory: of a product's result that is used inside its
// reading, and backward the writing of its cotangent and two readings (the gradients of weight and
// of data), 4 times its bytes; of an operand made inside the writing, again backward, and for each
// product that reads it both readings and those of its cotangent: 2 times its bytes, and 4 times
// for each product. Paid, for each turn but the first: the weights are read again (forward and for
// the gradient of data), their gradients, f32, are read and written again; three launches a
// product. And the cotangent of what comes from outside is stacked, to be added to what others make
// of it: 2 times its bytes. Gained only where a slab finds room in the caches and memory is what a
// step waits for: in bf16 on processors that multiply it (lm_plan_target.slab), by estimate. In f32
// with AVX2 it is not: whether tensors between products are 2 or 32 MB makes no difference, so
// there it is only done if asked for. Declines: where that does not pay; functions without
// derivative; sizes known only at run time; rows too few for two turns; loops that carry nothing
// (pass chunk's). Cost: linear in the operations of a region, for each slab.
#include <string.h>

#include "compiler/ops/interface.h"
#include "compiler/passes/row_tiling.h"
#include "compiler/passes/grad.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"

enum {
  ELEMENTS = 1 << 16
}; // of the widest product, that are worth a turn

typedef struct node { // an operation of the region, by its mark
  lm_op *op;
  uint32_t level, until; // until: the least level of what uses it
  bool alone, product;   // computes each row by itself; is a product of rows and something without
  bool feeds, follows;   // of the slab's level: a product is made of it; it is made of one
  // behind the last product: its derivative reads values as large; it ends in one number a row
  bool bent, narrows;
  bool inside, read; // read: by something inside
} node;

typedef struct slab {
  lm_row_tiling by;
  const lm_region *region;
  node *nodes;
  uint32_t n; // [0] unused
  uint8_t *active;
  uint32_t n_active; // by value id: depends on a parameter
  uint32_t level;    // of the root
} slab;

// ---- operands, those of regions inside too

typedef void operand_fn(slab *s, node *user, node *of, const lm_value *v);
typedef struct visit {
  slab *s;
  node *user;
  operand_fn *fn;
} visit;

static void visit_op(lm_op *op, void *user) {
  visit *v = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->def && op->in[i]->region == v->s->region)
      v->fn(v->s, v->user, &v->s->nodes[op->in[i]->def->mark], op->in[i]);
}

static void operands(slab *s, node *n, operand_fn *fn) {
  visit v = {s, n, fn};
  visit_op(n->op, &v);
  if (n->op->body)
    lm_region_walk(n->op->body, visit_op, &v);
}

static void forward(slab *s, operand_fn *fn) {
  for (uint32_t i = 1; i <= s->n; i++)
    operands(s, &s->nodes[i], fn);
}

static void backward(slab *s, operand_fn *fn) {
  for (uint32_t i = s->n; i; i--)
    operands(s, &s->nodes[i], fn);
}

// ---- which rows, and what computes each by itself

// The operand of a product that has its rows in front; the other one has none. -1: no such product.
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

// The rows of op, as far as they lie in front of the product.
static lm_type rows_of(const lm_op *op, int side) {
  lm_type own = lm_dot_free_axes(op, side);
  lm_type z = op->out[0]->type;
  for (int i = 0; i < own.rank; i++)
    if (z.axis[i] != own.axis[i])
      own.rank = (uint8_t)i;
  memset(own.axis + own.rank, 0, (LM_RANK - own.rank) * sizeof *own.axis);
  return own;
}

static bool begins(lm_type t, lm_type with) {
  return t.rank >= with.rank && !memcmp(t.axis, with.axis, with.rank * sizeof *t.axis);
}

static bool is_alone(const lm_row_tiling *r, const lm_op *op) {
  if (op->body || op->n_out != 1 || lm_type_dynamic(r->m, op->out[0]->type) ||
      !begins(op->out[0]->type, r->rows))
    return false;
  if (op->code == LM_OP_GATHER)
    return lm_row_tiling_is_contiguous(r, op->in[0]->type) &&
           lm_row_tiling_is_rowwise(r, op); // a table's gradient is large
  if (op->code != LM_OP_DOT)
    return lm_row_tiling_is_rowwise(r, op);
  for (int i = 0; i < 2; i++)
    if (lm_type_intersects(op->in[i]->type, r->rows) &&
        !lm_row_tiling_is_contiguous(r, op->in[i]->type))
      return false;
  return true;
}

static bool is_product(const lm_row_tiling *r, const lm_op *op) {
  return op->code == LM_OP_DOT && (!lm_type_intersects(op->in[0]->type, r->rows) ||
                                   !lm_type_intersects(op->in[1]->type, r->rows));
}

// As many rows as find room in the target's caches, with the widest product that has them and its
// operand; as the target says of large products, if it does; where nothing is known of caches
// LM_ROWS, or as many as make a tensor worth a loop.
static bool divides(lm_row_tiling *r, const lm_region *region, const lm_plan_target *target) {
  double rows = (double)lm_type_elements(r->m, r->rows), widest = 1, room = 1;
  for (const lm_op *op = region->first; op; op = op->next) {
    int side = side_of_rows(op);
    if (side < 0 || !begins(op->out[0]->type, r->rows))
      continue;
    lm_type z = op->out[0]->type;
    double width = (double)lm_type_elements(r->m, z) / rows;
    double bytes = (lm_type_traffic(r->m, z) + lm_type_traffic(r->m, op->in[side]->type)) / rows;
    if (width > widest)
      widest = width;
    if (bytes > room)
      room = bytes;
  }
  double most = ELEMENTS / widest > LM_ROWS ? ELEMENTS / widest : LM_ROWS;
  if (target && target->slab)
    most = (double)target->slab / room;
  if (target && target->rows)
    most = target->rows;
  return !lm_type_dynamic(r->m, r->rows) && most >= 1 && lm_row_tiling_divide(r, (int64_t)most);
}

// Of products whose rows begin alike the fewest axes are rows to all.
static bool rows_choose(lm_row_tiling *r, const lm_op *root, const lm_plan_target *target) {
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
    if (fewer.rows.rank < r->rows.rank && begins(r->rows, fewer.rows) &&
        divides(&fewer, root->parent, target))
      *r = fewer;
  }
  return true;
}

// ---- levels

static void level_rise(slab *s, node *user, node *of, const lm_value *v) {
  (void)s;
  (void)v;
  uint32_t least = of->level + (user->alone && !of->alone);
  if (least > user->level)
    user->level = least;
}

// An operation without product may wait for those that use it.
static void level_settle(node *n) {
  if (n->alone && !n->product && n->until != UINT32_MAX && n->until > n->level)
    n->level = n->until;
}

static void until_lower(slab *s, node *user, node *of, const lm_value *v) {
  (void)s;
  (void)v;
  if (user->level < of->until)
    of->until = user->level;
}

static void levels_make(slab *s) {
  forward(s, level_rise);
  for (uint32_t i = s->n; i; i--) {
    level_settle(&s->nodes[i]);
    operands(s, &s->nodes[i], until_lower);
  }
}

// ---- what is inside

static bool at_level(const slab *s, const node *n) {
  return n->alone && n->level == s->level;
}
static bool is_tail(const slab *s, const node *n) {
  return at_level(s, n) && n->follows && !n->feeds && !n->product;
}

static void follow(slab *s, node *user, node *of, const lm_value *v) {
  (void)v;
  user->follows |= at_level(s, user) && at_level(s, of) && (of->product || of->follows);
}

static void feed(slab *s, node *user, node *of, const lm_value *v) {
  (void)v;
  of->feeds |= at_level(s, user) && at_level(s, of) && (user->product || user->feeds);
}

static bool is_active(const void *user, const lm_value *v) {
  const slab *s = user;
  return v->id < s->n_active && s->active[v->id];
}

static void bend(slab *s, node *user, node *of, const lm_value *v) {
  (void)v;
  if (is_tail(s, user))
    user->bent |= !lm_op_is_linear(user->op, is_active, s) || (is_tail(s, of) && of->bent);
}

static void narrow(slab *s, node *user, node *of, const lm_value *v) {
  if (is_tail(s, of))
    of->narrows &= is_tail(s, user) ? user->narrows : lm_row_tiling_has_only_rows(&s->by, v->type);
}

static void leave(slab *s, node *user, node *of, const lm_value *v) {
  (void)v;
  if (is_tail(s, user) && is_tail(s, of))
    user->inside &= of->inside;
}

// What something inside is made of is inside too; what only moves or widens values on their way out
// is not.
static void keep(slab *s, node *user, node *of, const lm_value *v) {
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

static void members_find(slab *s) {
  forward(s, follow);
  backward(s, feed);
  forward(s, bend);
  for (uint32_t i = 1; i <= s->n; i++)
    s->nodes[i].narrows = true;
  backward(s, narrow);
  for (uint32_t i = 1; i <= s->n; i++) {
    node *n = &s->nodes[i];
    n->inside =
        at_level(s, n) && (n->product || n->feeds || (n->follows && (!n->bent || n->narrows)));
  }
  forward(s, leave);
  for (uint32_t i = s->n; i; i--) {
    node *n = &s->nodes[i];
    if (!n->read && only_moves(n->op))
      n->inside = false;
    operands(s, n, keep);
  }
}

// ---- whether it pays

static node *inside_of(slab *s, const lm_value *v) {
  node *n = v->def && v->region == s->region ? &s->nodes[v->def->mark] : NULL;
  return n && n->inside ? n : NULL;
}

typedef struct bytes {
  // that stay in caches; that are paid once, for each turn but the first; of the widest product and
  // its operand
  double kept, once, turn, room;
  uint8_t *seen; // by value id
} bytes;

static bool see(bytes *sum, const lm_value *v) {
  bool first = !sum->seen[v->id];
  sum->seen[v->id] = 1;
  return first;
}

static void operand_count(slab *s, const node *user, const lm_value *x, bytes *sum, double *room) {
  double n = lm_type_traffic(s->by.m, x->type);
  bool rows = lm_type_intersects(x->type, s->by.rows);
  bool made = inside_of(s, x) != NULL;
  if (rows && !made && is_active(s, x) && see(sum, x))
    sum->once += 2 * n;
  if (!user->product)
    return;
  if (rows)
    *room += n;
  else
    sum->turn += 2 * n + 2.0 * lm_dtype_bytes(LM_F32) * (double)lm_type_elements(s->by.m, x->type);
  if (made)
    sum->kept += see(sum, x) ? 6 * n : 4 * n;
}

static bytes bytes_count(slab *s, double launch) {
  bytes sum = {.seen = lm_calloc((size_t)s->by.m->n_values + 1, 1)};
  for (uint32_t i = 1; i <= s->n; i++) {
    node *n = &s->nodes[i];
    if (!n->inside)
      continue;
    double result = lm_type_traffic(s->by.m, n->op->out[0]->type), room = result;
    for (uint32_t k = 0; k < n->op->n_in; k++)
      operand_count(s, n, n->op->in[k], &sum, &room);
    if (!n->product)
      continue;
    if (n->read)
      sum.kept += 4 * result;
    sum.turn += 3 * launch;
    if (room > sum.room)
      sum.room = room;
  }
  lm_free(sum.seen);
  return sum;
}

static bool wanted(slab *s, const lm_op *root, const lm_pass_env *env) {
  const lm_plan_target *target = env ? env->target : NULL;
  bytes n = bytes_count(s, target ? (double)target->launch : 0);
  if (!n.kept || !target || lm_pass_is_forced(env, "tile_rows"))
    return n.kept > 0;
  double turns = (double)s->by.turns;
  return root->in[0]->type.dtype == LM_BF16 && n.room / turns <= (double)target->slab &&
         n.kept > n.once + (turns - 1) * n.turn;
}

// ---- the slab around a product

static void nodes_make(slab *s, lm_op *root) {
  const lm_row_tiling *r = &s->by;
  for (lm_op *op = s->region->first; op; op = op->next)
    op->mark = ++s->n;
  s->nodes = lm_calloc(s->n + 1, sizeof *s->nodes);
  for (lm_op *op = s->region->first; op; op = op->next) {
    bool alone = is_alone(r, op);
    s->nodes[op->mark] = (node){.op = op,
                                .level = alone,
                                .until = UINT32_MAX,
                                .alone = alone,
                                .product = alone && is_product(r, op)};
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

// For the loop: what is inside, and what only follows. False if the latter has an effect.
static bool marks_make(slab *s) {
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
    if (!s->by.first)
      s->by.first = n->op;
    s->by.last = n->op;
  }
  for (const lm_op *op = s->by.first; op != s->by.last; op = op->next)
    if (op->mark == LM_ROW_TILE_FOLLOWS && lm_op_info_of(op)->traits & LM_T_EFFECT)
      return false;
  return true;
}

// Whether there is a loop around the product now; *out_next: the first operation that was not
// inside, from where the slab began.
static bool slab_write(slab *s, lm_op *root, const lm_pass_env *env, lm_op **out_next) {
  s->n_active = s->by.m->n_values;
  s->active = lm_gradient_activity(root->parent->func);
  nodes_make(s, root);
  bool ok = wanted(s, root, env) && marks_make(s);
  if (ok) {
    lm_op *before = s->by.first->prev;
    lm_row_tiling_apply(&s->by);
    *out_next = before ? before->next : s->region->first;
  }
  lm_free(s->nodes);
  lm_free(s->active);
  return ok;
}

// ---- the pass

typedef struct last {
  int64_t turns, row_count;
  lm_axis turn, row;
} last; // slab of the function: one of as many rows has its axes

static void slab_region(lm_func *f, const lm_region *r, int depth, const lm_pass_env *env,
                        last *was) {
  const lm_plan_target *target = env ? env->target : NULL;
  for (lm_op *op = r->first, *next; op; op = next) {
    slab s = {.by.m = f->module, .region = r};
    next = op->next;
    if (op->code == LM_OP_LOOP && op->n_in)
      slab_region(f, op->body, depth + 1, env, was);
    if (depth == LM_PLAN_DEPTH || !rows_choose(&s.by, op, target))
      continue;
    if (s.by.turns == was->turns && s.by.row_count == was->row_count) {
      s.by.turn = was->turn;
      s.by.row = was->row;
    }
    if (slab_write(&s, op, env, &next))
      *was = (last){s.by.turns, s.by.row_count, s.by.turn, s.by.row};
  }
}

bool lm_pass_tile_rows(lm_module *m, const lm_pass_env *env) {
  const lm_plan_target *target = env ? env->target : NULL;
  if (target && !target->slab && !lm_pass_is_forced(env, "tile_rows"))
    return true;
  for (lm_func *f = m->funcs; f; f = f->next)
    if (lm_func_is_loss(f))
      slab_region(f, f->body, 0, env, &(last){0});
  return true;
}
