// prologue.c - lets the kernel of a GEMM of few rows compute the operand A that a kernel before it
// computed: the norm, gate times up, or the sums over the chunks of attention, of a token of
// decoding.
//
// before: 2 kernel k1 x gain -> y         3 gemm y w -> z
// after:  2 kernel p1 x gain w -> z
//
// Each block of the GEMM computes all of A. Declines: A that something else reads, operands that a
// step between changes or that the GEMM's result overwrites, and what the cost model expects to be
// slower. Numerics: a sum over a row may have another order.
#include "compiler/ir/dot.h"
#include "compiler/plan/cost.h"
#include "compiler/plan/internal.h"

// True if no step reads a result of `s` behind the first one.
static bool others_are_unused(const planner *p, const pstep *s) {
  for (int i = s->step.n_read + 1; i < s->step.n_read + s->step.n_write; i++) {
    const storage *at = s->refs[i].at;
    if (at->arena != LM_ARENA_WORK || at->into || lm_storage_uses(p, at) != 1)
      return false;
  }
  return true;
}

// True if the first result of the kernel is A, and the only one that is used.
static bool computes(const planner *p, const pstep *s, const ref *a) {
  const ref *r = &s->refs[s->step.n_read];
  return s->step.n_bufs == s->step.n_read + s->step.n_write && r->offset == a->offset &&
         r->bytes == a->bytes && (s->op->code == LM_OP_KERNEL || lm_op_attends(s->op)) &&
         others_are_unused(p, s);
}

// The step that computes the operand A of step `gemm`; NULL if there is none.
static pstep *kernel_of(const planner *p, int gemm) {
  const pstep *g = &p->steps[gemm];
  const ref *a = &g->refs[LM_DOT_X];
  if (a->at->arena != LM_ARENA_WORK || a->at->into || lm_storage_uses(p, a->at) != 2)
    return NULL;
  for (int i = gemm - 1; i >= 0 && p->steps[i].loop == g->loop; i--) {
    pstep *s = &p->steps[i];
    if (s->step.kind == LM_STEP_LOOP || s->step.kind == LM_STEP_END)
      return NULL;
    if (s->step.kind == LM_STEP_KERNEL && s->step.n_write && s->refs[s->step.n_read].at == a->at)
      return computes(p, s, a) ? s : NULL;
  }
  return NULL;
}

// True if a step behind the kernel, up to the GEMM, writes an operand of the kernel.
static bool operands_change(const planner *p, const pstep *kernel, const pstep *gemm) {
  for (const pstep *s = kernel + 1; s <= gemm; s++)
    for (int i = s->step.n_read; i < s->step.n_bufs; i++)
      for (int k = 0; k < kernel->step.n_read; k++)
        if (lm_refs_meet(p, gemm->loop, &s->refs[i], &kernel->refs[k]))
          return true;
  return false;
}

static double threads_of(const lm_plan_launch *l) {
  return (double)l->blocks * l->threads * (l->unroll ? l->unroll : 1);
}

// The bytes of the kernel's operands that all blocks but the first one read again.
static double again(const pstep *kernel, const pstep *gemm, const lm_kernel_code *code) {
  double operands = (double)(kernel->step.moved - gemm->refs[LM_DOT_X].bytes);
  return operands > 0 ? operands * (double)(code->launch.blocks - 1) : 0;
}

static double seconds(const planner *p, const lm_cost_kernel *k) {
  return lm_cost_of_kernel(&p->o->target, k).seconds;
}

// A is in a cache.
static bool is_profitable(const planner *p, const pstep *kernel, const pstep *gemm,
                          const lm_kernel_code *code) {
  const lm_plan_step *g = &gemm->step;
  const lm_plan_step *k = &kernel->step;
  const lm_target *t = &p->o->target;
  if (!(lm_target_bandwidth(t) > 0) || !t->units)
    return false;
  double bytes = (double)g->moved;
  double threads = threads_of(&code->launch);
  lm_cost_kernel alone =
                     {
                         .bytes = bytes,
                         .instructions = g->instructions,
                         .threads = threads,
                     },
                 before = {.bytes = (double)k->moved, .instructions = k->instructions},
                 both = {.bytes = bytes + (double)k->moved,
                         .again = again(kernel, gemm, code),
                         .instructions = code->instructions,
                         .threads = threads};
  return seconds(p, &both) < seconds(p, &alone) + t->rates.gap + seconds(p, &before);
}

static void step_fuse(planner *p, const pstep *kernel, pstep *gemm, const lm_kernel_code *code) {
  const lm_plan_step *k = &kernel->step;
  const lm_plan_step *g = &gemm->step;
  int n = 0;
  pstep s = *gemm;
  s.step = (lm_plan_step){
      .kind = LM_STEP_KERNEL,
      .kernel = lm_kernel_find(p, gemm->op, code),
      .space.fixed = code->launch.blocks,
      .n_bufs = k->n_read + g->n_bufs - 1,
      .n_read = k->n_read + g->n_read - 1,
      .n_write = g->n_write,
      .flops = k->flops + g->flops,
      .moved = k->moved + g->moved - 2 * gemm->refs[LM_DOT_X].bytes,
      .instructions = code->instructions,
      .again = again(kernel, gemm, code),
      .label = lm_arena_printf(p->arena, "%s of %s", g->label, k->label),
  };
  s.refs = LM_NEW_N(p->arena, ref, s.step.n_bufs + 1);
  for (int i = 0; i < k->n_read; i++)
    s.refs[n++] = kernel->refs[i];
  for (int i = LM_DOT_W; i < g->n_bufs; i++)
    s.refs[n++] = gemm->refs[i];
  *gemm = s;
}

void lm_steps_prologues(planner *p) {
  if (!p->codegen->gemm_of)
    return;
  bool *gone = LM_NEW_N(p->arena, bool, p->n_steps + 1);
  for (int i = 0; i < (int)p->n_steps; i++) {
    pstep *g = &p->steps[i];
    bool coded = g->step.kind == LM_STEP_GEMM && g->step.gemm->code && g->step.instructions > 0;
    pstep *kernel = coded ? kernel_of(p, i) : NULL;
    lm_kernel_code code = {0};
    if (!kernel || kernel->accum || kernel->step.space.n_dyn || operands_change(p, kernel, g))
      continue;
    if (!p->codegen->gemm_of(p->o, g->step.gemm, kernel->op, p->arena, &code) ||
        !is_profitable(p, kernel, g, &code))
      continue;
    step_fuse(p, kernel, g, &code);
    gone[kernel - p->steps] = true;
  }
  lm_steps_remove(p, gone);
}
