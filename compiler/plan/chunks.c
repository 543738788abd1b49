// chunks.c - @update and @copies in chunks of blocks, if the states of the optimizer or the
// parameters are in the host's memory.
//
// before: kernel k0 over 175669248 grad[0 : 702676992] state[0 : 702676992] … -> state[0 :
// 702676992] after:  loop i0 < 42
//           kernel k1 over 4194304 grad[0+16777216*i0 : 16777216] state[0+16777216*i0 : 16777216] …
//             -> state[0+16777216*i0 : 16777216]
//         end
//
// One chunk is then in the device's memory at a time (offload.c). In the body of the loop the axis
// of blocks has the size of a chunk, so that one kernel computes every chunk. Arenas of blocks are
// padded to whole chunks; these functions alone compute the padding, and nothing reads it. In
// @copies the loop is around the kernels of the copies; what derives other globals is outside.
// Declines: an @update that updates each parameter by itself, whose loops over layers are streamed
// instead. Cost: a launch for each chunk.
#include "compiler/plan/internal.h"

enum {
  CHUNK = 4096, // blocks: 16 MiB of each state, with which a copy reaches its full speed
  CHUNKS = 16,  // at least, so that a ring of chunks is a small part of the states
  MULTIPLE = 16 // numbers of one block each are aligned, too
};

static bool reads_other_blocks(const lm_module *m, const lm_op *op) {
  if (op->code == LM_OP_IOTA)
    return lm_type_find(op->out[0]->type, m->blocks) >= 0;
  bool fits = (lm_op_info_of(op)->traits & LM_T_ELEMENTWISE) || op->code == LM_OP_CONST ||
              op->code == LM_OP_EXPAND || op->code == LM_OP_YIELD;
  return !fits;
}

static bool kernel_fits(const lm_module *m, const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    if (reads_other_blocks(m, op))
      return false;
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (!kernel->out[i]->type.rank || kernel->out[i]->type.axis[0] != m->blocks)
      return false;
  return true;
}

bool lm_chunks_has(const lm_module *m, const lm_op *op) {
  return op->code == LM_OP_KERNEL && kernel_fits(m, op);
}

uint32_t lm_chunks_results(const planner *p) {
  const lm_region *body = p->f->body;
  bool copies = p->f->key.id == LM_FUNC_COPIES && p->o->params_on_host;
  uint32_t n = 0;
  if (!p->layout.chunk || !(copies || p->f->key.id == LM_FUNC_UPDATE))
    return 0;
  while (n < body->last->n_in && lm_type_is_blocks(p->m, body->last->in[n]->type))
    n++;
  return n;
}

bool lm_chunks_fit(const lm_module *m) {
  const lm_func *f = lm_func_get((lm_module *)m, LM_FUNC_UPDATE, 0);
  if (!f || !m->blocks || f->body->last == f->body->first)
    return false;
  for (const lm_op *op = f->body->first; op != f->body->last; op = op->next)
    if (!lm_chunks_has(m, op))
      return false;
  return true;
}

void lm_chunks_divide(lm_layout *out) {
  int64_t n = (out->used + CHUNK - 1) / CHUNK;
  if (n < CHUNKS)
    n = CHUNKS;
  out->chunk = ((out->used + n - 1) / n + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
  out->blocks = (out->used + out->chunk - 1) / out->chunk * out->chunk;
}

// In iteration i, the location is that of chunk i.
static void location_chunk(const planner *p, lm_type t, location *at) {
  if (t.rank && t.axis[0] == p->m->blocks)
    at->loop[0] = p->layout.chunk * at->stride[0] * lm_dtype_bytes(t.dtype);
}

void lm_chunks_begin(planner *p, location *const *results, uint32_t n) {
  lm_region *body = p->f->body;
  for (uint32_t i = 0; i < body->n_args; i++)
    location_chunk(p, body->args[i]->type, &p->locations[body->args[i]->id]);
  for (uint32_t i = 0; i < n; i++)
    location_chunk(p, body->last->in[i]->type, results[i]);
  lm_step_loop_begin(p, body->first, p->layout.blocks / p->layout.chunk);
  p->m->axes[p->m->blocks].size = p->layout.chunk;
}

void lm_chunks_end(planner *p) {
  lm_step_loop_end(p, p->f->body->first);
  p->m->axes[p->m->blocks].size = p->layout.used;
}
