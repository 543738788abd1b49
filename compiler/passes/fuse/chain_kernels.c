// chain_kernels.c - makes one kernel of a loop in which GEMMs read and update the carry.
//
// before: %h, %s, %r = loop 16 over(chunk) %i carry(%c = %h0) {
//           %k = at %keys, %i [0, 1]   %m = at %ms, %i [0, 1]   %w = at %ws, %i [0, 1]   …
//           %cb = kernel … (%c) { … cast … }
//           %y = dot %k, %cb over(n)
//           %eb = kernel … (%y, %own) { … add … cast … }
//           %z = dot %m, %eb over(i)   %rb = kernel … (%z) { … cast … }
//           %u = dot %rb, %w over(j)
//           %next = kernel … (%c, %whole, %u) { … mul … add … }
//           yield %next, %cb, %rb
//         }
// after:  %h, %s, %r = scan over(chunk) [1, 4, 0] (%c = %h0, %k = %keys, %w = %ws, …) {
//           %cb = cast …   %y = dot %k, %cb over(n)   …   yield %next, %cb, %rb
//         }
//
// The state of a delta rule (pass chunk_scan) is passed from chunk to chunk by such a loop, and its
// cotangent by a reversed one. In the kernel a block has some columns of the state in registers,
// all chunks long, instead of six kernels for each chunk that move it through memory.
//
// Declines: loops with other operations, or operands that do not have the loop's axis in front;
// forms that lm_codegen.chains rejects. Cost: none.
#include "compiler/ir/scan.h"
#include "compiler/ir/dot.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

static bool is_reversed(const lm_op *loop) {
  return loop->attr.n_imm > 1 && loop->attr.imm[1];
}

// True if op reads the element of an outer value at the loop's position, along the loop's axis.
static bool is_slice(const lm_op *loop, const lm_op *op) {
  bool reversed = is_reversed(loop);
  int64_t first = reversed ? loop->attr.imm[0] - 1 : 0;
  int64_t step = reversed ? -1 : 1;
  if (op->code != LM_OP_AT || op->in[1] != loop->body->args[0])
    return false;
  lm_type t = op->in[0]->type;
  if (op->in[0]->region == loop->body || !t.rank)
    return false;
  if (t.axis[0] != loop->attr.axes[0])
    return false;
  return op->attr.imm[0] == first && op->attr.imm[1] == step;
}

static bool is_plain(const lm_op *op) {
  return op->code == LM_OP_KERNEL && !op->attr.n_to && !lm_kernel_dot(op) && !lm_kernel_mix(op);
}

static bool op_fits(const lm_op *loop, const lm_op *op) {
  bool inside = op->code == LM_OP_DOT || op->code == LM_OP_PERMUTE || is_plain(op);
  for (uint32_t i = 0; inside && i < op->n_in; i++)
    inside = op->in[i]->region == loop->body && op->in[i] != loop->body->args[0];
  return inside || is_slice(loop, op);
}

static bool body_fits(const lm_op *loop) {
  const lm_op *yield = loop->body->last;
  int dots = 0;
  for (const lm_op *op = loop->body->first; op != yield; op = op->next) {
    if (!op_fits(loop, op))
      return false;
    dots += op->code == LM_OP_DOT;
  }
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (yield->in[i]->region != loop->body)
      return false;
  return dots >= 2;
}

static void kernel_copy(lm_builder *b, const lm_op *kernel, lm_value **map) {
  const lm_op *yield = kernel->body->last;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    map[kernel->body->args[i]->id] = map[kernel->in[i]->id];
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next)
    lm_op_clone(b, op, map);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    map[kernel->out[i]->id] = map[yield->in[i]->id];
}

static void body_copy(lm_builder *b, lm_op *scan, const lm_op *loop, lm_value **map) {
  const lm_op *yield = loop->body->last;
  for (const lm_op *op = loop->body->first; op != yield; op = op->next)
    if (op->code == LM_OP_AT)
      map[op->out[0]->id] = lm_scan_slice(b->m, scan, op->in[0]);
  for (const lm_op *op = loop->body->first; op != yield; op = op->next)
    if (op->code == LM_OP_KERNEL)
      kernel_copy(b, op, map);
    else if (op->code != LM_OP_AT)
      lm_op_clone(b, op, map);
}

static lm_op *scan_of(lm_module *m, lm_op *loop) {
  lm_builder b = {m, loop->parent, loop, loop->loc, loop->remat};
  const lm_op *yield = loop->body->last;
  lm_value **map = lm_calloc((size_t)m->n_values + 1, sizeof *map);
  lm_value **out = LM_NEW_N(m->arena, lm_value *, yield->n_in + 1);
  lm_op *scan = lm_scan_begin(&b, loop->attr.axes[0], is_reversed(loop), loop->in, 1);
  map[loop->body->args[1]->id] = scan->body->args[0];
  body_copy(&b, scan, loop, map);
  for (uint32_t i = 0; i < yield->n_in; i++)
    out[i] = map[yield->in[i]->id];
  lm_free(map);
  lm_scan_end(&b, scan, out, out + 1, yield->n_in - 1);
  return scan;
}

typedef struct chainer {
  lm_module *m;
  const lm_pass_env *env;
  lm_value **map; // by value id: the replacements
} chainer;

static void loop_visit(lm_op *loop, void *user) {
  const chainer *c = user;
  if (loop->n_in != 1 || loop->attr.n_axes != 1 || !body_fits(loop))
    return;
  lm_op *scan = scan_of(c->m, loop);
  if (!c->env->codegen->chains(c->env->target, scan)) {
    lm_op_remove(scan);
    return;
  }
  for (uint32_t i = 0; i < loop->n_out; i++)
    c->map[loop->out[i]->id] = scan->out[i];
  lm_op_remove(loop);
}

bool lm_pass_chain_kernels(lm_module *m, const lm_pass_env *env) {
  if (!env->codegen || !env->codegen->chains || !env->target)
    return true;
  for (lm_func *f = m->funcs; f; f = f->next) {
    uint32_t n = m->n_values;
    lm_value **map = lm_calloc((size_t)n + 1, sizeof *map);
    chainer c = {
        .m = m,
        .env = env,
        .map = map,
    };
    lm_loops_visit(f->body, loop_visit, &c);
    lm_func_substitute(f, map, n);
    lm_free(map);
  }
  return true;
}
