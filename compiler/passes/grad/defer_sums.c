// defer_sums.c - finishes column sums, such as the gradients of norms and biases, after the loop
// over layers: the loop stacks the partial sums of all its iterations, and one kernel behind it
// adds them.
//
// before: %y = loop 24 … %j {
//           %x, %c = kernel (b, t) -> (chunk) … : bf16[b, t, d], f32[chunk, d]
//           %s = kernel (d) (%c) { sum %c over(chunk) }   accum @layers.n[%j * -1 + 23], %s   … }
// after:  %y, %cs = loop 24 reversed … %j {
//           %x, %c = kernel (b, t) -> (chunk) …   …   yield …, %c }
//         %s = kernel (layers, d) (%cs) {
//           %1 = slice %cs (trip) -> (layers) [0, 1]   sum %1 over(chunk) } : f32[layers, d]
//         accum @layers.n, %s
//
// Each element is the sum of the same terms in the same order, so gradients keep their bits. Gain:
// two launches of a few microseconds for each iteration. Declines: targets without launch cost,
// unless the pass is forced; sums with other users; accums that do not visit each index of the
// stacked axis once; terms that depend on the loop otherwise; sums whose chunks of all iterations
// take more than MOST bytes: attention's backward pass has a chunk for each block, so that their
// number grows with that of positions. Cost: these chunks in memory, as many of each sum as its
// kernel has: lm_target_choices.chunks, or those of attention.
#include <string.h>

#include "compiler/passes/grad/defer.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

static const int64_t MOST = 256 << 20;

typedef struct deferral {
  lm_module *m;
  uint32_t *uses;
  uint32_t n_uses; // values with a higher id are new
  lm_op *loop;
} deferral;

static bool used_once(const deferral *d, const lm_value *v) {
  return v->id < d->n_uses && d->uses[v->id] == 1;
}

// The chunks that `v` is the sum of, computed by another kernel, or by attention, of the loop's
// body; NULL if it is not such a sum.
static lm_value *chunks_of(const deferral *d, const lm_value *v) {
  const lm_op *kernel = v->def;
  if (!lm_op_is(v, LM_OP_KERNEL) || kernel->parent != d->loop->body || kernel->n_in != 1 ||
      kernel->n_out != 1 || kernel->attr.n_to || !used_once(d, v))
    return NULL;
  const lm_op *sum = kernel->body->first;
  lm_value *c = kernel->in[0];
  if (sum->code != LM_OP_SUM || sum->next != kernel->body->last || sum->attr.n_axes != 1 ||
      sum->attr.axes[0] != c->type.axis[0])
    return NULL;
  bool fits = c->type.dtype == LM_F32 && c->type.rank < LM_RANK;
  bool computed = c->def && (c->def->code == LM_OP_KERNEL || lm_op_attends(c->def));
  return fits && computed && c->def->parent == d->loop->body && used_once(d, c) ? c : NULL;
}

static bool is_small(const deferral *d, const lm_value *chunks) {
  int64_t bytes = lm_type_elements(d->m, chunks->type) * lm_dtype_bytes(LM_F32);
  return bytes <= MOST / d->loop->attr.imm[0];
}

// The sum behind the loop, with the stacked axis that the accum no longer indexes.
static lm_value *sum_all(const deferral *d, lm_builder *b, const lm_op *accum, lm_value *chunks) {
  const lm_value *one = accum->in[accum->n_in - 1];
  lm_axis axis = lm_defer_axis(d->m, accum);
  lm_attr points = {.n_axes = (uint8_t)(one->type.rank + 1), .axes = {axis}};
  memcpy(points.axes + 1, one->type.axis, one->type.rank * sizeof *points.axes);
  lm_attr over = {.axes = {chunks->type.axis[0]}, .n_axes = 1};
  lm_defer_order(d->loop, accum);
  lm_value *stacked = lm_loop_stack(d->m, d->loop, chunks);
  bool in_order = lm_defer_in_order(d->loop, accum);
  lm_attr order = {.axes = {stacked->type.axis[0]},
                   .n_axes = 1,
                   .to = {axis},
                   .n_to = 1,
                   .imm = {in_order ? 0 : d->loop->attr.imm[0] - 1, in_order ? 1 : -1},
                   .n_imm = 2};
  lm_op *kernel = lm_kernel_begin(b, &points, &stacked, 1);
  lm_value *v = kernel->body->args[0];
  if (stacked->type.axis[0] != axis || order.imm[1] != 1)
    v = lm_emit(b, LM_OP_SLICE, &v, 1, &order, NULL);
  v = lm_emit(b, LM_OP_SUM, &v, 1, &over, NULL);
  lm_kernel_end(b, kernel, &v, 1);
  return kernel->out[0];
}

static void defer(const deferral *d, lm_op *accum, lm_value *chunks) {
  lm_op *sum = accum->in[accum->n_in - 1]->def;
  lm_builder b = {d->m, d->loop->parent, d->loop->next, accum->loc};
  lm_defer_accum(&b, accum, sum_all(d, &b, accum, chunks));
  lm_op_remove(accum);
  lm_op_remove(sum);
}

// Kernels are isolated, and sums of inner loops have moved behind these by the time that the loop
// around them is visited.
static void loop_visit(lm_op *loop, void *user) {
  deferral *d = user;
  d->loop = loop;
  for (lm_op *op = loop->body->first, *next; op; op = next) {
    next = op->next;
    bool all = op->code == LM_OP_ACCUM && lm_defer_visits_all(d->m, loop, op);
    lm_value *chunks = all ? chunks_of(d, op->in[op->n_in - 1]) : NULL;
    if (chunks && is_small(d, chunks))
      defer(d, op, chunks);
  }
}

static bool is_enabled(const lm_pass_env *env) {
  return !env->target || env->target->choices.launch > 0 || lm_pass_is_forced(env, "defer_sums");
}

bool lm_pass_defer_sums(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f && is_enabled(env); f = f->next) {
    deferral d = {
        .m = m,
        .uses = lm_func_uses(f),
        .n_uses = m->n_values,
    };
    lm_loops_visit(f->body, loop_visit, &d);
    lm_free(d.uses);
  }
  return true;
}
