// search.c - the shape of a kernel whose accesses use parts of sectors, or that instructions bound.
//
// The rules of shape.c and order.c look at one axis at a time. Where an operand lacks an axis of
// the result, or has its axes in another order, the sectors that a block moves depend on which
// points it has. Kernels for which sectors count are therefore generated for several shapes, and
// the one with the least time by the cost model stays. So are kernels with sums over points, of
// which a multiprocessor has two blocks: more threads of fewer elements hide more of each other's
// waits, and have fewer registers.
//
//   elementwise    the grid's loops with each loop next to the one along which threads are
//                  neighbours, so that a block has a tile of points
//   reductions     a thread for each point, with each parallel axis as the one along which threads
//                  are neighbours
//   sums of points a block for each point, of 512 threads with vectors of 4 or 2 elements
//
// The machine of the model is always the same one: shapes do not depend on the target.
#include "codegen/cuda/emit.h"
#include "compiler/plan/cost.h"

enum {
  SMALL = 8 // a part of the bytes that is not searched for
};
// Of the time of sums of points, by which another shape must be faster.
static const double CLEARLY = 0.97;

static double bytes_of(const cuda_emit *e, const lm_op *kernel) {
  double n = 0;
  for (uint32_t i = 0; i < kernel->n_in; i++)
    n += lm_type_traffic(e->g.m, kernel->in[i]->type);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    n += lm_type_traffic(e->g.m, kernel->out[i]->type);
  return n;
}

static double threads_of(const cuda_emit *e, const lm_op *kernel) {
  if (kernel->attr.n_to)
    return (double)lm_axis_size(e->g.m, kernel->attr.to[0]) * e->team * e->teams;
  return (double)cuda_points(e) * e->team * (e->team == 1 ? CUDA_UNROLLED : 1);
}

static double seconds_of(const cuda_emit *e, const lm_op *kernel) {
  lm_target t;
  if (!lm_target_known("h100", &t))
    LM_BUG("no H100 is known");
  double threads = threads_of(e, kernel);
  lm_cost_kernel k = {
      .bytes = bytes_of(e, kernel),
      .again = e->partial,
      .instructions = e->g.instructions,
      .threads = e->form == CUDA_TEAM ? threads : 0,
  };
  return lm_cost_of_kernel(&t, &k).seconds;
}

static bool may_search(const cuda_emit *e, const lm_op *kernel) {
  const lm_schedule *s = e->g.s;
  if (e->rows || kernel->code != LM_OP_KERNEL || e->g.extents)
    return false;
  if (kernel->attr.n_to)
    return true;
  for (uint32_t i = 0; i < s->n_nodes; i++)
    if (s->nodes[i].op->code == LM_OP_SCATTER)
      return false;
  if (e->form == CUDA_FLAT && (s->n_passes > 1 || e->n_tiles))
    return false;
  return e->partial * SMALL > bytes_of(e, kernel);
}

static int sum_wishes(cuda_wish *out) {
  int n = 0;
  for (int width = 4; width >= 2; width /= 2)
    out[n++] = (cuda_wish){
        .threads = CUDA_ROWS_THREADS,
        .width = width,
    };
  return n;
}

static int wishes(const cuda_emit *e, const lm_op *kernel, cuda_wish *out) {
  int n = 0;
  if (kernel->attr.n_to)
    return sum_wishes(out);
  if (e->form == CUDA_FLAT) {
    for (int i = 0; i + 1 < e->g.domains[0].n; i++)
      out[n++] = (cuda_wish){
          .next = i + 1,
      };
    return n;
  }
  for (int i = 0; i < kernel->attr.n_axes; i++)
    if (lm_axis_size(e->g.m, kernel->attr.axes[i]) >= CUDA_WARP)
      out[n++] = (cuda_wish){
          .alone = true,
          .fastest = i,
      };
  return n;
}

cuda_emit *cuda_emit_make(const lm_plan_options *o, const lm_op *kernel, const char *rows,
                          lm_arena *arena) {
  cuda_wish none = {0};
  cuda_wish wish[LM_GEN_LOOPS + LM_RANK];
  cuda_emit *best = cuda_emit_shaped(o, kernel, rows, &none, arena);
  if (!may_search(best, kernel))
    return best;
  double least = seconds_of(best, kernel);
  int n = wishes(best, kernel, wish);
  for (int i = 0; i < n; i++) {
    cuda_emit *e = cuda_emit_shaped(o, kernel, rows, &wish[i], arena);
    double seconds = seconds_of(e, kernel);
    bool fits = !wish[i].threads || cuda_is_paired(e);
    bool better = fits && seconds < (wish[i].threads ? CLEARLY : 1) * least;
    cuda_emit *worse = better ? best : e;
    cuda_flat_free(worse);
    lm_gen_free(&worse->g);
    best = better ? e : best;
    least = better ? seconds : least;
  }
  return best;
}
