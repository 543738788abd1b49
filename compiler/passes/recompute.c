// recompute.c - recomputes stashes of loops in the backward pass instead of keeping them.
//
// before: %y, %xs, %hs = loop 24 … %i carry(%x) {
//           %w = param @w[%i]   %d = dot %x, %w   %h = kernel (%d) { … }   …   yield %x2, %x, %h }
//         loop 24 … %j { %x1 = at %xs, %j [23, -1]   %h1 = at %hs, %j [23, -1]   … }
// after:  %y, %xs = loop 24 …
//         loop 24 … %j { %x1 = at %xs, %j [23, -1]   %w1 = param @w[%j * -1 + 23]
//           %d1 = dot %x1, %w1   %h1 = kernel (%d1) { … }   … }
//
// A stash is a stacked result that one later loop reads, each iteration the element of one forward
// iteration. A recomputed value is computed from the remaining stashes, carries (which are stashed
// for this), parameters and outer values. The pass runs after fusion and repeats kernels whole: the
// same code reads the same bits and rounds in the same operations, and no other kernel changes.
// Losses and gradients are therefore bit-identical, and no new kernel is compiled.
//
// Recomputed are the values marked `recompute`, and more until env->recompute->bytes of stashes are
// freed: of up to 12 candidates those that take the least time together, of more the cheapest per
// byte first. On a GPU the cost model predicts the time of an operation (compiler/plan/cost.h);
// elsewhere it is the larger of the bytes that it moves and its FLOPs / 16. Values marked `save`
// stay. The cost of a stash depends on the others, because they may share operations. Declines:
// carries, and values inside an inner loop that are indexed by the index of this one. Cost: the
// recomputed operations, in each iteration of the backward loop.
#include <string.h>
#include "compiler/ir/dot.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/planner.h"

enum {
  SUBSETS = 12 // candidates of which every subset is considered
};
static const double FLOPS_PER_BYTE = 16; // flops in the time that one byte is moved

typedef struct stash {
  lm_op *loop;
  lm_op *reader;
  lm_value *stacked, *v; // v: the value in the loop's body
  int64_t first, step;   // the reader's iteration j reads element first + step * j
  bool fits;
  bool recomputed;
} stash;

typedef struct pass {
  lm_module *m;
  lm_func *f;
  const lm_target *machine; // NULL: without a cost model
  stash *all;
  uint32_t n;
  uint32_t cap;
  uint32_t *of;     // by value id: the number of its stash, from 1
  uint8_t *in_cone; // by value id
  lm_value **map;   // by value id: its value in the reader
} pass;

// ---- stashes

static void find_loops(lm_op *op, void *user) {
  pass *p = user;
  if (op->code != LM_OP_LOOP || lm_loop_is_reversed(op))
    return;
  for (uint32_t i = op->n_in; i < op->n_out; i++)
    LM_PUSH(p->m->arena, p->all, p->n, p->cap) = (stash){
        .loop = op,
        .stacked = op->out[i],
        .v = op->body->last->in[i],
        .fits = true,
    };
}

// True if the read is in a loop of equal trip count and at its own iteration, in either order, as
// in the derivative of the loop.
static bool read_by(const stash *s, const lm_op *at) {
  const lm_op *r = at->parent->owner;
  if (at->code != LM_OP_AT || !r || r->code != LM_OP_LOOP || r->parent != s->loop->parent ||
      at->in[1] != r->body->args[0])
    return false;
  int64_t n = s->loop->attr.imm[0];
  int64_t first = at->attr.imm[0];
  int64_t step = at->attr.imm[1];
  bool all = r->attr.imm[0] == n && ((first == 0 && step == 1) || (first == n - 1 && step == -1));
  return all && (!s->reader || (s->reader == r && s->first == first));
}

static void find_reads(lm_op *op, void *user) {
  pass *p = user;
  for (uint32_t i = 0; i < op->n_in; i++) {
    uint32_t k = p->of[op->in[i]->id];
    stash *s = k ? &p->all[k - 1] : NULL;
    if (!s)
      continue;
    if (i == 0 && read_by(s, op)) {
      s->reader = op->parent->owner;
      s->first = op->attr.imm[0];
      s->step = op->attr.imm[1];
    } else
      s->fits = false;
  }
}

// The stash of v, a value of s's loop, that is kept; NULL if there is none.
static const stash *kept_stash(const pass *p, const stash *s, const lm_value *v) {
  for (uint32_t i = 0; i < p->n; i++)
    if (p->all[i].v == v && p->all[i].loop == s->loop && !p->all[i].recomputed)
      return &p->all[i];
  return NULL;
}

// ---- the cost

static bool is_index(const lm_op *op, uint32_t i) {
  return (op->code == LM_OP_AT && i == 1) || op->code == LM_OP_PARAM;
}

typedef struct cone {
  pass *p;
  const stash *s;
  bool possible;
  double seconds;
} cone;

// The time without a cost model, as the bytes that could be moved in it.
static double bytes_of(const lm_module *m, const lm_op *op) {
  double flops = 0;
  const lm_op_info *info = lm_op_info_of(op);
  bool memory = lm_op_multiplies(op) || op->code == LM_OP_GATHER ||
                op->body; // others run in the kernels of these
  double bytes = memory ? lm_op_traffic(m, op) : 0;
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_type t = info->traits & LM_T_REDUCE ? op->in[0]->type : op->out[i]->type;
    flops += info->flops * (double)lm_type_elements(m, t);
  }
  for (int i = 0; lm_op_multiplies(op) && i < op->attr.n_axes; i++)
    flops *= (double)lm_axis_size(m, op->attr.axes[i]);
  for (const lm_op *o = op->body ? op->body->first : NULL; o; o = o->next)
    flops += bytes_of(m, o) * FLOPS_PER_BYTE;
  return flops / FLOPS_PER_BYTE > bytes ? flops / FLOPS_PER_BYTE : bytes;
}

static double gemm_seconds(const lm_target *t, const lm_module *m, const lm_op *dot) {
  lm_type x = dot->in[LM_DOT_X]->type;
  lm_type w = dot->in[LM_DOT_W]->type;
  lm_cost_gemm g = {.m = 1,
                    .n = 1,
                    .k = 1,
                    .batch = 1,
                    .ab = (lm_dtype)x.dtype,
                    .bytes = lm_op_traffic(m, dot),
                    .alignment = 16};
  for (int i = 0; i < x.rank; i++) {
    double size = (double)lm_axis_size(m, x.axis[i]);
    bool summed = lm_attr_has_axis(&dot->attr, x.axis[i]);
    *(summed ? &g.k : lm_type_find(w, x.axis[i]) < 0 ? &g.m : &g.batch) *= size;
  }
  for (int i = 0; i < w.rank; i++)
    if (lm_type_find(x, w.axis[i]) < 0)
      g.n *= (double)lm_axis_size(m, w.axis[i]);
  return lm_cost_of_gemm(t, &g).seconds;
}

static double seconds_of(const pass *p, const lm_op *op) {
  const lm_target *t = p->machine;
  if (!t)
    return bytes_of(p->m, op);
  if (lm_op_multiplies(op))
    return gemm_seconds(t, p->m, op);
  if (lm_op_attends(op)) {
    lm_plan_attend a = lm_plan_attend_sizes(p->m, op);
    return lm_cost_of_attend(t, &a, lm_op_traffic(p->m, op), true).seconds;
  }
  if (op->code == LM_OP_KERNEL)
    return lm_cost_of_kernel(t, &(lm_cost_kernel){.bytes = lm_op_traffic(p->m, op)}).seconds;
  return 0;
}

static void cone_add(cone *c, lm_value *v);

static void cone_captured(lm_op *op, void *user) {
  cone *c = user;
  for (uint32_t i = 0; i < op->n_in; i++) {
    if (is_index(op, i) && op->in[i] == c->s->loop->body->args[0])
      c->possible = false;
    else if (op->in[i]->region == c->s->loop->body)
      cone_add(c, op->in[i]);
  }
  c->possible &= !(lm_op_info_of(op)->traits & LM_T_EFFECT);
}

static void cone_add(cone *c, lm_value *v) {
  pass *p = c->p;
  if (v->region != c->s->loop->body || !v->def || p->in_cone[v->id] || kept_stash(p, c->s, v))
    return;
  lm_op *op = v->def;
  for (uint32_t i = 0; i < op->n_out; i++)
    p->in_cone[op->out[i]->id] = 1;
  c->seconds += seconds_of(p, op) * (double)c->s->loop->attr.imm[0];
  c->possible &= !(lm_op_info_of(op)->traits & LM_T_EFFECT);
  for (uint32_t i = 0; i < op->n_in; i++)
    cone_add(c, op->in[i]);
  if (op->body && !lm_op_isolated(op))
    lm_region_walk(op->body, cone_captured, c);
}

// The time of all chosen stashes; -1 if one of them cannot be recomputed.
static double seconds_chosen(pass *p) {
  double seconds = 0;
  bool possible = true;
  memset(p->in_cone, 0, p->m->n_values + 1);
  for (uint32_t i = 0; i < p->n; i++) {
    if (!p->all[i].recomputed)
      continue;
    cone c = {p, &p->all[i], true, 0};
    cone_add(&c, p->all[i].v);
    seconds += c.seconds;
    possible &= c.possible;
  }
  return possible ? seconds : -1;
}

// The time of all chosen stashes and s; -1 if one of them cannot be recomputed.
static double seconds_with(pass *p, stash *s) {
  bool was = s->recomputed;
  s->recomputed = true;
  double seconds = seconds_chosen(p);
  s->recomputed = was;
  return seconds;
}

// ---- the choice

static lm_remat keep_of(const lm_value *v) {
  if (lm_op_is(v, LM_OP_KERNEL))
    v = v->def->body->last->in[v->index];
  if (!v->def)
    return LM_REMAT_AUTO;
  if (lm_op_is(v, LM_OP_RENAME) && !v->def->remat && v->def->in[0]->def)
    v = v->def->in[0]; // stacked under another axis name
  return (lm_remat)v->def->remat;
}

static void choose_marked(pass *p) {
  for (uint32_t i = 0; i < p->n; i++) {
    stash *s = &p->all[i];
    s->fits &= s->reader && s->v->def && s->v->def->parent == s->loop->body;
    s->recomputed = s->fits && keep_of(s->v) == LM_REMAT_RECOMPUTE && seconds_with(p, s) >= 0;
  }
}

// The time of all chosen stashes and s; -1 if s cannot be chosen as well.
static double seconds_of_candidate(pass *p, stash *s) {
  bool may_be = !s->recomputed && s->fits && keep_of(s->v) != LM_REMAT_SAVE;
  return may_be ? seconds_with(p, s) : -1;
}

static double bytes_of_stash(const pass *p, const stash *s) {
  return lm_type_traffic(p->m, s->stacked->type);
}

// The candidate that adds the least time per byte to the chosen stashes; NULL if there is none.
static stash *cheapest(pass *p) {
  double now = seconds_chosen(p);
  double best_rate = 0;
  stash *best = NULL;
  for (uint32_t i = 0; i < p->n; i++) {
    stash *s = &p->all[i];
    double seconds = seconds_of_candidate(p, s);
    double rate = (seconds - now) / bytes_of_stash(p, s);
    if (seconds < 0 || (best && rate >= best_rate))
      continue;
    best = s;
    best_rate = rate;
  }
  return best;
}

// Chooses stashes of at least `bytes`, the cheapest per byte first; returns their number.
static int choose_cheapest(pass *p, double bytes) {
  int n = 0;
  for (double freed = 0; freed < bytes; n++) {
    stash *s = cheapest(p);
    if (!s)
      break;
    s->recomputed = true;
    freed += bytes_of_stash(p, s);
  }
  return n;
}

// Marks the candidates of a subset; returns their bytes.
static double subset_mark(const pass *p, stash *const *of, int n, uint32_t subset) {
  double bytes = 0;
  for (int i = 0; i < n; i++) {
    of[i]->recomputed = subset >> i & 1;
    bytes += of[i]->recomputed ? bytes_of_stash(p, of[i]) : 0;
  }
  return bytes;
}

// Chooses the subset of the candidates that frees `bytes` in the least time; returns their number,
// 0 if none frees as many.
static int choose_subset(pass *p, stash *const *of, int n, double bytes) {
  uint32_t best = 0;
  double least = 0;
  int chosen = 0;
  for (uint32_t subset = 1; subset < 1u << n; subset++) {
    if (subset_mark(p, of, n, subset) < bytes)
      continue;
    double seconds = seconds_chosen(p);
    if (seconds < 0 || (best && seconds >= least))
      continue;
    best = subset;
    least = seconds;
  }
  subset_mark(p, of, n, best);
  for (int i = 0; i < n; i++)
    chosen += of[i]->recomputed;
  return chosen;
}

// Chooses stashes of at least `bytes`, or all if they have fewer; returns their number.
static int choose(pass *p, int64_t bytes) {
  stash *of[SUBSETS];
  int n = 0;
  for (uint32_t i = 0; bytes > 0 && i < p->n; i++) {
    if (seconds_of_candidate(p, &p->all[i]) < 0)
      continue;
    if (n < SUBSETS)
      of[n] = &p->all[i];
    n++;
  }
  int chosen = n <= SUBSETS ? choose_subset(p, of, n, (double)bytes) : 0;
  return chosen ? chosen : choose_cheapest(p, (double)bytes);
}

// ---- recomputing

typedef struct writer {
  pass *p;
  const stash *s;
  lm_builder b; // in the reader, before the first use
} writer;

static lm_value *recompute(writer *w, lm_value *v);

static lm_value *stash_read(writer *w, lm_value *stacked) {
  lm_attr a = {.imm = {w->s->first, w->s->step}, .n_imm = 2};
  return lm_emit(&w->b, LM_OP_AT, (lm_value *[]){stacked, w->s->reader->body->args[0]}, 2, &a,
                 NULL);
}

static lm_value *forward_index(writer *w) {
  lm_value *j = w->s->reader->body->args[0];
  if (w->s->step == 1)
    return j;
  lm_op *kernel = lm_kernel_begin(&w->b, &(lm_attr){0}, &j, 1);
  lm_value *i = lm_emit2(&w->b, LM_OP_SUB, lm_emit_const(&w->b, j->type, (double)w->s->first),
                         kernel->body->args[0]);
  lm_kernel_end(&w->b, kernel, &i, 1);
  return kernel->out[0];
}

static void recompute_captured(lm_op *op, void *user) {
  writer *w = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->region == w->s->loop->body)
      recompute(w, op->in[i]);
}

static lm_op *recompute_op(writer *w, lm_op *op) {
  lm_value **map = w->p->map;
  lm_value *index = w->s->loop->body->args[0];
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!(is_index(op, i) && op->in[i] == index))
      recompute(w, op->in[i]);
  if (op->body && !lm_op_isolated(op))
    lm_region_walk(op->body, recompute_captured, w);
  lm_op *copy = lm_op_clone(&w->b, op, map);
  // Index first + step * i, where i = the reader's first + step * j.
  for (uint32_t i = 0, k = 0; i < op->n_in; i++) {
    if (!is_index(op, i))
      continue;
    int64_t *imm = &copy->attr.imm[2 * k++];
    if (op->in[i] != index)
      continue;
    copy->in[i] = w->s->reader->body->args[0];
    imm[0] += imm[1] * w->s->first;
    imm[1] *= w->s->step;
  }
  return copy;
}

// The reader's copy of v, a value of the forward loop's body.
static lm_value *recompute(writer *w, lm_value *v) {
  lm_value **map = w->p->map;
  if (v->region != w->s->loop->body)
    return v;
  if (map[v->id])
    return map[v->id];
  const stash *kept = kept_stash(w->p, w->s, v);
  if (v == w->s->loop->body->args[0])
    return map[v->id] = forward_index(w);
  if (kept || !v->def)
    return map[v->id] = stash_read(w, kept ? kept->stacked : lm_loop_stack(w->p->m, w->s->loop, v));
  recompute_op(w, v->def);
  return map[v->id];
}

// Visits the reader's operations in order, so that the operations recomputed for one read precede
// the next.
static void rewrite_reader(pass *p, lm_op *reader, lm_value **map, uint32_t n_values) {
  memset(p->map, 0, (n_values + 1) * sizeof *p->map);
  for (lm_op *op = reader->body->first, *next; op; op = next) {
    next = op->next;
    uint32_t k = op->code == LM_OP_AT ? p->of[op->in[0]->id] : 0;
    stash *s = k ? &p->all[k - 1] : NULL;
    if (!s || !s->recomputed)
      continue;
    writer w = {p, s, {p->m, reader->body, op, op->loc}};
    map[op->out[0]->id] = recompute(&w, s->v);
    lm_op_remove(op);
  }
}

static void rewrite_readers(pass *p, uint32_t n_values) {
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < p->n; i++) {
    bool first = p->all[i].recomputed;
    for (uint32_t k = 0; k < i; k++)
      first &= !(p->all[k].recomputed && p->all[k].reader == p->all[i].reader);
    if (first)
      rewrite_reader(p, p->all[i].reader, map, n_values);
  }
  lm_func_substitute(p->f, map, n_values);
  lm_free(map);
}

static int recompute_func(lm_module *m, lm_func *f, const lm_target *machine, int64_t bytes) {
  uint32_t n_values = m->n_values;
  pass p = {.m = m,
            .f = f,
            .machine = machine,
            .of = lm_calloc((size_t)n_values + 1, sizeof *p.of),
            .in_cone = lm_calloc((size_t)n_values + 1, 1),
            .map = lm_calloc((size_t)n_values + 1, sizeof *p.map)};
  lm_region_walk(f->body, find_loops, &p);
  for (uint32_t i = 0; i < p.n; i++)
    p.of[p.all[i].stacked->id] = i + 1;
  lm_region_walk(f->body, find_reads, &p);
  choose_marked(&p);
  int chosen = choose(&p, bytes);
  rewrite_readers(&p, n_values);
  lm_free(p.of);
  lm_free(p.in_cone);
  lm_free(p.map);
  return chosen;
}

// The machine whose figures the cost model has.
static const lm_target *machine_of(const lm_pass_env *env) {
  const lm_target *t = env->target;
  bool known = t && t->kind == LM_TARGET_CUDA && lm_target_bandwidth(t) > 0;
  return known && lm_cost_peak(t, LM_BF16) > 0 ? t : NULL;
}

bool lm_pass_recompute(lm_module *m, const lm_pass_env *env) {
  int64_t bytes = env->recompute ? env->recompute->bytes : 0;
  int chosen = 0;
  for (lm_func *f = m->funcs; f; f = f->next)
    chosen += recompute_func(m, f, machine_of(env), bytes);
  if (env->recompute)
    env->recompute->chosen = chosen;
  return true;
}
