// recompute.c - recomputes stashes of loops in the backward pass instead of keeping them, and marks
// those that are in the host's memory.
//
// before: %y, %xs, %hs = loop 24 … %i carry(%x) {
//           %w = param @w[%i]   %d = dot %x, %w   %h = kernel (%d) { … }   …   yield %x2, %x, %h }
//         loop 24 … %j { %x1 = at %xs, %j [23, -1]   %h1 = at %hs, %j [23, -1]   … }
// after:  %y, %xs = loop 24 … : …, bf16[l, b, t, d] on_host
//         loop 24 … %j { %x1 = at %xs, %j [23, -1]   %w1 = param @w[%j * -1 + 23]
//           %d1 = dot %x1, %w1   %h1 = kernel (%d1) { … }   … }
//
// A recomputed value is computed from the remaining stashes, carries (which are stashed for this),
// parameters and outer values. The pass runs after fusion and repeats kernels whole: the same code
// reads the same bits and rounds in the same operations, and no other kernel changes. Losses and
// gradients are therefore bit-identical, and no new kernel is compiled.
//
// A stash in the host's memory is copied there after its last use in the forward loop, and back for
// the iteration of the backward loop that reads it (compiler/plan/offload.c).
//
// Recomputed are the values marked `recompute`, in the host's memory those marked `offload`, and
// more of both as the memory limit requires (recompute_choice.c). Declines: to recompute carries,
// and values inside an inner loop that are indexed by the index of this one; to offload stashes
// that are not read in the reverse order. Cost: the recomputed operations, in each iteration of the
// backward loop.
#include "compiler/passes/grad/recompute.h"

#include <string.h>

#include "compiler/passes/rewrite.h"
#include "compiler/plan/cost.h"

// ---- recomputing

typedef struct writer {
  const lm_stashes *p;
  const lm_stash *s;
  lm_value **map; // by value id: its value in the reader
  lm_builder b;   // in the reader, before the first use
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
  lm_value **map = w->map;
  lm_value *index = w->s->loop->body->args[0];
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!(lm_recompute_is_index(op, i) && op->in[i] == index))
      recompute(w, op->in[i]);
  if (op->body && !lm_op_isolated(op))
    lm_region_walk(op->body, recompute_captured, w);
  lm_op *copy = lm_op_clone(&w->b, op, map);
  // Index first + step * i, where i = the reader's first + step * j.
  for (uint32_t i = 0, k = 0; i < op->n_in; i++) {
    if (!lm_recompute_is_index(op, i))
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
  lm_value **map = w->map;
  if (v->region != w->s->loop->body)
    return v;
  if (map[v->id])
    return map[v->id];
  const lm_stash *kept = lm_stash_kept(w->p, w->s, v);
  if (v == w->s->loop->body->args[0])
    return map[v->id] = forward_index(w);
  if (kept || !v->def)
    return map[v->id] = stash_read(w, kept ? kept->stacked : lm_loop_stack(w->p->m, w->s->loop, v));
  recompute_op(w, v->def);
  return map[v->id];
}

// Visits the reader's operations in order, so that the operations recomputed for one read precede
// the next. map: by value id, the value that replaces it.
static void rewrite_reader(lm_stashes *p, lm_op *reader, lm_value **map, uint32_t n_values) {
  lm_value **copies = lm_calloc((size_t)n_values + 1, sizeof *copies);
  for (lm_op *op = reader->body->first, *next; op; op = next) {
    next = op->next;
    uint32_t k = op->code == LM_OP_AT ? p->of[op->in[0]->id] : 0;
    lm_stash *s = k ? &p->all[k - 1] : NULL;
    if (!s || !s->recomputed)
      continue;
    writer w = {p, s, copies, {p->m, reader->body, op, op->loc}};
    map[op->out[0]->id] = recompute(&w, s->v);
    lm_op_remove(op);
  }
  lm_free(copies);
}

// True if a stash of a reader that no earlier stash has is recomputed.
static bool is_first_of_reader(const lm_stashes *p, uint32_t i) {
  bool first = p->all[i].recomputed;
  for (uint32_t k = 0; k < i; k++)
    first &= !(p->all[k].recomputed && p->all[k].reader == p->all[i].reader);
  return first;
}

static void rewrite_readers(lm_stashes *p) {
  uint32_t n_values = p->m->n_values;
  lm_value **map = lm_calloc((size_t)n_values + 1, sizeof *map);
  for (uint32_t i = 0; i < p->n; i++)
    if (is_first_of_reader(p, i))
      rewrite_reader(p, p->all[i].reader, map, n_values);
  lm_func_substitute(p->f, map, n_values);
  lm_free(map);
}

// Recomputation may have stashed carries that the recipe marks.
static void offload(lm_stashes *p) {
  for (uint32_t i = 0; i < p->n; i++)
    p->all[i].stacked->on_host |= p->all[i].on_host;
  lm_stashes_free(p);
  lm_stashes_find(p);
  lm_stashes_choose_marked(p);
  for (uint32_t i = 0; i < p->n; i++)
    p->all[i].stacked->on_host |= p->all[i].on_host;
}

static void recompute_func(lm_module *m, lm_func *f, const lm_target *machine, lm_recompute *ask) {
  lm_stashes p = {
      .m = m,
      .f = f,
      .machine = machine,
  };
  lm_stashes_find(&p);
  lm_stashes_choose_marked(&p);
  lm_stashes_choose(&p, ask);
  rewrite_readers(&p);
  offload(&p);
  lm_stashes_free(&p);
}

// The machine whose figures the cost model has.
static const lm_target *machine_of(const lm_pass_env *env) {
  const lm_target *t = env->target;
  bool known = t && t->kind == LM_TARGET_CUDA && lm_target_bandwidth(t) > 0;
  return known && lm_cost_peak(t, LM_BF16) > 0 ? t : NULL;
}

bool lm_pass_recompute(lm_module *m, const lm_pass_env *env) {
  lm_recompute ask = {0};
  if (env->recompute)
    ask = *env->recompute;
  ask.chosen = ask.offloaded = 0;
  for (lm_func *f = m->funcs; f; f = f->next)
    recompute_func(m, f, machine_of(env), &ask);
  if (env->recompute)
    *env->recompute = ask;
  return true;
}
