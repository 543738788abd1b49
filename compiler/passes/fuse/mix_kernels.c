// mix_kernels.c - makes one kernel of a GEMM and of the kernel that computes one of its factors.
//
// before: %w = kernel (j, i, b, h) -> () (%z, %c) { … exp … cast … } : bf16[b, h, i, j]
//         %y = dot %w, %u over(j) : bf16[b, h, i, p]
// after:  %y = kernel (b, part) -> () (%z, %c, %u) {
//           … %w = cast … : bf16[b, part, head, i, j]
//           %y = dot %w, %u over(j)   yield %y
//         } : bf16[b, part, head, i, p]
//
// The weights w of the chunks of a linear recurrence (pass chunk_scan) are the larger part of the
// bytes that it moves; in the kernel they stay in registers. The backward pass multiplies them,
// too, and reads a GEMM of the same axes:
//
// before: %d = dot %dy, %u over(p) : bf16[b, h, i, j]
//         %w, %dc, %s = kernel … (%z, %c, %d) { … sum … over(h) … sum … over(i) }
//         %du = dot %w, %dy over(i)
//         … kernel … (%d, %w, %s) { … sum … over(j) … }
// after:  one kernel with both dots and all sums
//
// The first GEMM is f32 in the kernel, since nothing rounds it to store it. A block of the
// kernel walks along the axis h that some operand of the weights lacks. Where there are fewer
// points than multiprocessors, the axis is divided into parts, (part, head), of a block each; a
// kernel behind adds the parts of a sum over h.
//
// Declines: forms that lm_codegen.mixes rejects; weights that have another use; results that are
// parts of a concatenation.
#include <string.h>
#include "compiler/ir/dot.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

enum {
  KERNELS = 8,
  OPERANDS = 32
};
static const double FULL = 0.85; // share of the multiprocessors that are busy on average

typedef struct mixer {
  const lm_replacement *r;
  lm_op *mix, *scores; // scores: NULL: none
  lm_op *kernel[KERNELS];
  int n;
  lm_type weights;
  lm_axis row, col, heads;
  lm_axis part, head; // of heads; 0: not divided
  lm_value *in[OPERANDS];
  uint32_t n_in;
  lm_builder b;   // in front of the kernel
  lm_op *op;      // the kernel
  lm_value **map; // by id of the values in the kernels and outside: those in the new one
} mixer;

// ---- matching

static lm_value *unpermuted(lm_value *v) {
  while (lm_op_is(v, LM_OP_PERMUTE))
    v = v->def->in[0];
  return v;
}

static bool is_plain(const lm_op *op) {
  return op && op->code == LM_OP_KERNEL && !op->attr.n_to && !lm_kernel_dot(op) &&
         !lm_kernel_mix(op);
}

// The only axis of t that `other` lacks, except `but`; 0 if there is none, or several.
static lm_axis lone_axis(lm_type t, lm_type other, lm_axis but) {
  lm_axis found = 0;
  for (int i = 0; i < t.rank; i++) {
    if (t.axis[i] == but || lm_type_find(other, t.axis[i]) >= 0)
      continue;
    if (found)
      return 0;
    found = t.axis[i];
  }
  return found;
}

static bool has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

// The weights, and the axes along which they mix.
static bool weights_find(mixer *x, lm_op *dot) {
  if (dot->code != LM_OP_DOT || dot->attr.n_axes != 1 || dot->out[0]->type.dtype != LM_BF16)
    return false;
  for (int i = 0; i < 2; i++) {
    lm_op *def = dot->in[i]->def;
    lm_type of = dot->in[1 - i]->type;
    if (!is_plain(def) || def->parent != dot->parent || of.dtype != LM_BF16)
      continue;
    x->mix = dot;
    x->weights = dot->in[i]->type;
    x->kernel[0] = def;
    x->n = 1;
    x->col = dot->attr.axes[0];
    x->row = lone_axis(x->weights, of, 0);
    if (x->row && lone_axis(of, x->weights, 0) && x->weights.dtype == LM_BF16)
      return true;
  }
  return false;
}

static bool is_tile(const mixer *x, lm_type t) {
  return has(t, x->row) && has(t, x->col);
}

// The axis that an operand of the weights lacks: (row, col) and all other axes.
static bool heads_find(mixer *x) {
  const lm_op *k = x->kernel[0];
  x->heads = 0;
  for (uint32_t i = 0; i < k->n_in && !x->heads; i++)
    if (is_tile(x, k->in[i]->type))
      x->heads = lone_axis(x->weights, k->in[i]->type, 0);
  return x->heads;
}

static void scores_find(mixer *x) {
  const lm_op *k = x->kernel[0];
  x->scores = NULL;
  for (uint32_t i = 0; i < k->n_in; i++) {
    lm_op *def = k->in[i]->def;
    bool whole = is_tile(x, k->in[i]->type) && has(k->in[i]->type, x->heads);
    if (whole && def && def->code == LM_OP_DOT && def->attr.n_axes == 1 && def->parent == k->parent)
      x->scores = def;
  }
}

static bool reads(const lm_op *op, const lm_value *v) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i] == v)
      return true;
  for (const lm_op *in = op->body && op->code != LM_OP_KERNEL ? op->body->first : NULL; in;
       in = in->next)
    if (reads(in, v))
      return true;
  return false;
}

static bool is_member(const mixer *x, const lm_op *op) {
  bool found = op == x->mix || op == x->scores;
  for (int i = 0; i < x->n; i++)
    found |= op == x->kernel[i];
  return found;
}

// Values of all rows, columns and heads stay in the kernel.
static bool is_inside(const mixer *x, const lm_value *v) {
  return is_tile(x, v->type) && has(v->type, x->heads);
}

static bool reads_inside(const mixer *x, const lm_op *op) {
  bool found = x->scores && reads(op, x->scores->out[0]);
  for (int k = 0; k < x->n; k++)
    for (uint32_t i = 0; i < x->kernel[k]->n_out; i++)
      found |= is_inside(x, x->kernel[k]->out[i]) && reads(op, x->kernel[k]->out[i]);
  return found;
}

// Adds the kernels that read such values. False if another operation does.
static bool members_find(mixer *x) {
  const lm_op *first = x->scores ? x->scores : x->kernel[0];
  for (lm_op *op = first->next; op; op = op->next) {
    if (is_member(x, op) || !reads_inside(x, op))
      continue;
    if (!is_plain(op) || x->n == KERNELS)
      return false;
    x->kernel[x->n++] = op;
  }
  return true;
}

// ---- operands

static lm_op *owner_in(const lm_region *r, lm_op *op) {
  while (op && op->parent != r)
    op = op->parent->owner;
  return op;
}

static bool operand_add(mixer *x, lm_value *v, bool multiplied) {
  v = multiplied ? unpermuted(v) : v;
  if (v->def && is_member(x, v->def))
    return true;
  for (uint32_t i = 0; i < x->n_in; i++)
    if (x->in[i] == v)
      return true;
  if (x->n_in == OPERANDS)
    return false;
  x->in[x->n_in++] = v;
  return true;
}

static bool operands_find(mixer *x) {
  const lm_op *dots[] = {x->scores, x->mix};
  x->n_in = 0;
  for (int d = 0; d < 2; d++)
    for (uint32_t i = 0; dots[d] && i < 2; i++)
      if (!operand_add(x, dots[d]->in[i], true))
        return false;
  for (int k = 0; k < x->n; k++)
    for (uint32_t i = 0; i < x->kernel[k]->n_in; i++)
      if (!operand_add(x, x->kernel[k]->in[i], false))
        return false;
  return true;
}

static bool reads_result(const mixer *x, const lm_op *op) {
  bool found = reads(op, x->mix->out[0]);
  for (int k = 0; k < x->n; k++)
    for (uint32_t i = 0; i < x->kernel[k]->n_out; i++)
      found |= reads(op, x->kernel[k]->out[i]);
  return found;
}

// The first operation behind all operands; NULL if it is behind a reader of a result.
static lm_op *front_find(mixer *x) {
  lm_region *r = x->mix->parent;
  lm_op *last = NULL;
  uint32_t mark = 0;
  for (lm_op *op = r->first; op; op = op->next)
    op->mark = ++mark;
  for (uint32_t i = 0; i < x->n_in; i++) {
    lm_op *def = owner_in(r, x->in[i]->def);
    last = def && (!last || def->mark > last->mark) ? def : last;
  }
  lm_op *front = last ? last->next : r->first;
  for (const lm_op *op = r->first; op != front; op = op->next)
    if (!is_member(x, op) && reads_result(x, op))
      return NULL;
  while (is_member(x, front))
    front = front->next;
  return front;
}

// ---- parts of the heads

static int64_t parts_of(const mixer *x) {
  const lm_module *m = x->r->m;
  int64_t heads = lm_axis_size(m, x->heads);
  double points = (double)lm_type_elements(m, x->weights) / (double)heads /
                  (double)(lm_axis_size(m, x->row) * lm_axis_size(m, x->col));
  double units = x->r->env->target->units ? x->r->env->target->units : 1;
  int64_t best = 1;
  double most = 0;
  for (int64_t n = 1; n <= heads && most < FULL; n++) {
    double blocks = points * (double)n;
    double rounds = (double)(int64_t)((blocks + units - 1) / units);
    if (heads % n || blocks / rounds / units <= most)
      continue;
    most = blocks / rounds / units;
    best = n;
  }
  return best;
}

static void heads_divide(mixer *x) {
  lm_module *m = x->r->m;
  int64_t parts = parts_of(x);
  x->part = x->head = 0;
  if (parts == 1)
    return;
  x->part = lm_axis_add(m, LM_SYM(m->ctx, "part"), parts, 0);
  x->head = lm_axis_add(m, LM_SYM(m->ctx, "head"), lm_axis_size(m, x->heads) / parts, 0);
}

// t with (part, head) for heads.
static lm_type divided(const mixer *x, lm_type t) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++) {
    bool divides = x->part && t.axis[i] == x->heads;
    if (divides)
      out.axis[out.rank++] = x->part;
    out.axis[out.rank++] = divides ? x->head : t.axis[i];
  }
  return out;
}

static lm_value *view_divided(mixer *x, lm_value *v) {
  bool divides = x->part && has(v->type, x->heads);
  return divides ? lm_emit_split(&x->b, v, x->heads, x->part, x->head) : v;
}

static lm_value *view_merged(mixer *x, lm_value *v) {
  return x->part ? lm_emit_join(&x->b, v, x->part, x->head, x->heads) : v;
}

// ---- the sums over heads

// The sum that v is, behind permutations and casts; NULL: v is not such a sum.
static const lm_op *sum_of_heads(const mixer *x, const lm_value *v) {
  const lm_op *op = v->def;
  while (op && (op->code == LM_OP_PERMUTE || op->code == LM_OP_CAST))
    op = op->in[0]->def;
  bool sums = op && op->code == LM_OP_SUM && op->attr.n_axes == 1;
  return sums && op->attr.axes[0] == x->heads ? op : NULL;
}

// True if the operation computes v from a sum over heads whose parts another kernel adds.
static bool is_behind_parts(const mixer *x, const lm_op *op) {
  return x->part && op->n_out == 1 && sum_of_heads(x, op->out[0]) && op->code != LM_OP_SUM;
}

// Adds the parts of v, and computes `as`, a result of the kernel before.
static lm_value *parts_add(mixer *x, lm_value *v, const lm_value *as) {
  const lm_op *sum = sum_of_heads(x, as);
  lm_attr points = {.n_axes = as->type.rank};
  memcpy(points.axes, as->type.axis, as->type.rank * sizeof *points.axes);
  lm_op *k = lm_kernel_begin(&x->b, &points, &v, 1);
  lm_value *y = lm_emit_reduce(&x->b, LM_OP_SUM, k->body->args[0], &x->part, 1);
  x->map[sum->out[0]->id] = y;
  for (const lm_op *op = sum; op->out[0] != as; y = x->map[op->out[0]->id])
    do
      op = op->next;
    while (op->n_out != 1 || sum_of_heads(x, op->out[0]) != sum || !lm_op_clone(&x->b, op, x->map));
  lm_kernel_end(&x->b, k, &y, 1);
  return k->out[0];
}

// ---- the kernel

static lm_attr points_of(const mixer *x) {
  lm_attr a = {0};
  for (int i = 0; i < x->weights.rank; i++) {
    lm_axis axis = x->weights.axis[i];
    if (axis != x->row && axis != x->col && axis != x->heads)
      a.axes[a.n_axes++] = axis;
    else if (axis == x->heads && x->part)
      a.axes[a.n_axes++] = x->part;
  }
  return a;
}

// The indices of an axis of parts or heads: [part, head].
static lm_value *indices(mixer *x, lm_axis axis) {
  lm_axis all[] = {x->part, x->head};
  lm_type line = lm_type_make(LM_INT, &axis, 1);
  lm_type both = lm_type_make(LM_INT, all, 2);
  lm_value *v = lm_emit(&x->b, LM_OP_IOTA, NULL, 0, NULL, &line);
  return lm_emit_expand(&x->b, v, both);
}

// The indices of the heads, from those of the parts and within them.
static lm_value *indices_of_heads(mixer *x) {
  lm_type scalar = lm_type_make(LM_INT, NULL, 0);
  int64_t heads = lm_axis_size(x->r->m, x->head);
  lm_value *n = lm_emit_const(&x->b, scalar, heads);
  lm_value *first = lm_emit2(&x->b, LM_OP_MUL, indices(x, x->part), n);
  return lm_emit2(&x->b, LM_OP_ADD, first, indices(x, x->head));
}

static lm_op *copied(mixer *x, const lm_op *op) {
  lm_op *copy = lm_op_clone(&x->b, op, x->map);
  for (uint32_t i = 0; i < copy->n_out; i++)
    copy->out[i]->type = divided(x, copy->out[i]->type);
  bool sums = copy->code == LM_OP_SUM && x->part && copy->attr.axes[0] == x->heads;
  if (!sums)
    return copy;
  lm_type t = {.dtype = LM_F32}, of = copy->in[0]->type;
  for (int i = 0; i < of.rank; i++)
    if (of.axis[i] != x->head)
      t.axis[t.rank++] = of.axis[i];
  copy->attr.axes[0] = x->head;
  copy->out[0]->type = t;
  return copy;
}

static void permutations_copy(mixer *x, lm_value *v) {
  if (x->map[v->id] || !lm_op_is(v, LM_OP_PERMUTE))
    return;
  permutations_copy(x, v->def->in[0]);
  copied(x, v->def);
}

static void dot_copy(mixer *x, const lm_op *dot, lm_dtype dtype) {
  for (uint32_t i = 0; i < 2; i++)
    permutations_copy(x, dot->in[i]);
  copied(x, dot)->out[0]->type.dtype = (uint8_t)dtype;
}

// True if all operations of the body that read v are casts to f32.
static bool is_cast(const lm_region *body, const lm_value *v) {
  bool all = true;
  for (const lm_op *op = body->first; op; op = op->next)
    if (reads(op, v))
      all &= op->code == LM_OP_CAST && op->out[0]->type.dtype == LM_F32;
  return all;
}

static bool scores_are_cast(const mixer *x) {
  const lm_value *v = x->scores->out[0];
  bool all = true;
  for (int k = 0; k < x->n; k++) {
    const lm_op *kernel = x->kernel[k];
    for (uint32_t i = 0; i < kernel->n_in; i++)
      all &= kernel->in[i] != v || is_cast(kernel->body, kernel->body->args[i]);
  }
  return all;
}

// In f32, and cast for operations whose operands have the type of the scores.
static void scores_copy(mixer *x) {
  const lm_value *v = x->scores->out[0];
  lm_value **copy = &x->map[v->id];
  dot_copy(x, x->scores, LM_F32);
  if (!scores_are_cast(x))
    *copy = lm_emit_cast(&x->b, *copy, (lm_dtype)v->type.dtype);
}

static void body_copy(mixer *x, const lm_op *kernel) {
  const lm_op *yield = kernel->body->last;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    x->map[kernel->body->args[i]->id] = x->map[kernel->in[i]->id];
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    if (x->part && op->code == LM_OP_IOTA && has(op->out[0]->type, x->heads))
      x->map[op->out[0]->id] = indices_of_heads(x);
    else if (!is_behind_parts(x, op))
      copied(x, op);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    x->map[kernel->out[i]->id] = x->map[yield->in[i]->id];
}

typedef struct outcome {
  lm_value *old;      // outside
  const lm_value *as; // in the old kernel; NULL: the mix
  const lm_op *sum;   // whose parts are added; NULL: none
} outcome;

// The results that something outside reads.
static uint32_t outcomes_of(const mixer *x, outcome *out) {
  uint32_t n = 0;
  out[n++] = (outcome){.old = x->mix->out[0]};
  for (int k = 0; k < x->n; k++)
    for (uint32_t i = 0; i < x->kernel[k]->n_out; i++) {
      lm_value *v = x->kernel[k]->out[i];
      uint32_t inside = 0;
      for (int j = 0; j < x->n; j++)
        for (uint32_t a = 0; a < x->kernel[j]->n_in; a++)
          inside += x->kernel[j]->in[a] == v;
      inside += is_inside(x, v) ? x->r->uses[v->id] : 0;
      if (x->r->uses[v->id] <= inside || n == OPERANDS)
        continue;
      const lm_value *as = x->kernel[k]->body->last->in[i];
      out[n++] = (outcome){v, as, x->part ? sum_of_heads(x, as) : NULL};
    }
  return n;
}

static void kernel_make(mixer *x, const outcome *results, uint32_t n) {
  lm_value *values[OPERANDS];
  lm_attr points = points_of(x);
  for (uint32_t i = 0; i < x->n_in; i++)
    values[i] = view_divided(x, x->in[i]);
  x->op = lm_kernel_begin(&x->b, &points, values, x->n_in);
  for (uint32_t i = 0; i < x->n_in; i++)
    x->map[x->in[i]->id] = x->op->body->args[i];
  for (const lm_op *op = x->mix->parent->first; op; op = op->next)
    if (op == x->scores)
      scores_copy(x);
    else if (op == x->mix)
      dot_copy(x, op, LM_BF16);
    else if (is_member(x, op))
      body_copy(x, op);
  for (uint32_t i = 0; i < n; i++)
    values[i] = x->map[results[i].sum ? results[i].sum->out[0]->id : results[i].old->id];
  lm_kernel_end(&x->b, x->op, values, n);
}

static void results_replace(mixer *x, const outcome *results, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    lm_value *v = x->op->out[i];
    if (results[i].sum)
      v = parts_add(x, v, results[i].as);
    else if (has(results[i].old->type, x->heads))
      v = view_merged(x, v);
    v->name = results[i].old->name;
    x->r->map[results[i].old->id] = v;
  }
}

static const lm_region *region_of(const lm_value *v) {
  return v->def ? v->def->parent : v->region;
}

// True if no operation of the kernel reads a value that was not copied into it.
static bool is_closed(const lm_op *kernel) {
  const lm_region *body = kernel->body;
  bool closed = true;
  for (const lm_op *op = body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++)
      closed &= region_of(op->in[i]) == body;
  return closed;
}

static bool has_parts_of_concat(const mixer *x) {
  lm_plan_part part;
  for (int k = 0; k < x->n; k++)
    for (uint32_t i = 0; i < x->kernel[k]->n_out; i++)
      if (lm_plan_part_of(x->r->m, x->kernel[k]->out[i], &part))
        return true;
  return lm_plan_part_of(x->r->m, x->mix->out[0], &part);
}

static bool fuse(mixer *x, lm_op *front) {
  outcome results[OPERANDS];
  lm_module *m = x->r->m;
  heads_divide(x);
  uint32_t n = outcomes_of(x, results);
  x->map = lm_calloc(m->n_values + 1, sizeof *x->map);
  x->b = (lm_builder){m, x->mix->parent, front, x->mix->loc, x->mix->remat};
  kernel_make(x, results, n);
  const lm_pass_env *env = x->r->env;
  bool fits = is_closed(x->op) && env->codegen->mixes(env->target, x->op);
  if (fits)
    results_replace(x, results, n);
  else
    lm_op_remove(x->op);
  lm_free(x->map);
  if (!fits)
    return false;
  for (int k = 0; k < x->n; k++)
    lm_op_remove(x->kernel[k]);
  if (x->scores)
    lm_op_remove(x->scores);
  lm_op_remove(x->mix);
  return true;
}

static bool visit(const lm_replacement *r, lm_op *dot) {
  mixer x = {.r = r};
  if (!weights_find(&x, dot) || !heads_find(&x))
    return false;
  scores_find(&x);
  if (!members_find(&x) || !operands_find(&x) || has_parts_of_concat(&x))
    return false;
  lm_op *front = front_find(&x);
  return front && fuse(&x, front);
}

typedef struct dots {
  lm_arena *arena;
  lm_op **at;
  uint32_t n, cap;
} dots;

static void dots_find(dots *d, lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next)
    if (op->code == LM_OP_LOOP)
      dots_find(d, op->body);
    else if (op->code == LM_OP_DOT)
      LM_PUSH(d->arena, d->at, d->n, d->cap) = op;
}

// Visits the dots from `from` on until one is in a kernel, whose results replace the old ones
// before the next is visited. Returns the number of the next; d->n: there is none.
static uint32_t visit_until_one(lm_func *f, const lm_pass_env *env, const dots *d, uint32_t from) {
  lm_module *m = f->module;
  uint32_t n = m->n_values, i = from;
  uint32_t *uses = lm_func_uses(f);
  lm_value **map = lm_calloc(n + 1, sizeof *map);
  lm_replacement r = {
      m, env, uses, n, map,
  };
  bool found = false;
  while (i < d->n && !found) {
    lm_op *dot = d->at[i++];
    found = dot->parent && visit(&r, dot); // without a parent: it is in a kernel
  }
  lm_func_substitute(f, map, n);
  lm_free(map);
  lm_free(uses);
  return i;
}

bool lm_pass_mix_kernels(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->mixes || !env->target)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next) {
    dots d = {.arena = m->arena};
    dots_find(&d, f->body);
    for (uint32_t i = 0; i < d.n;)
      i = visit_until_one(f, env, &d, i);
  }
  return true;
}
