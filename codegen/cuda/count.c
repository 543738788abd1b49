// count.c - the instructions of a kernel, which the generator counts while it writes statements
// (lm_gen_count): the lanes that execute a loop, and what its iterations take besides statements.
#include <math.h>

#include "codegen/cuda/emit.h"

double cuda_trips(const cuda_emit *e, int k) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  double n = 1;
  for (int i = 0; i < d->n; i++) {
    const lm_var *v = &e->g.vars.v[d->loop[i].var];
    if (e->stage_of[i] == k)
      n *= (double)(v->hi - v->lo);
  }
  return n;
}

int cuda_stage_lanes(const cuda_emit *e, int k) {
  return e->stages[k].lanes ? e->stages[k].lanes : e->team;
}

// The lanes for which a team issues the n iterations of a loop. Beyond the end of the last round
// the lanes of a warp are idle, and warps that have none of its iterations skip it.
static double issued_lanes(const cuda_emit *e, int k, double n) {
  double lanes = cuda_stage_lanes(e, k);
  double rounds = floor(n / lanes);
  double rest = n - rounds * lanes;
  if (e->stages[k].lanes)
    return e->team * ceil(n / lanes);
  double last = CUDA_WARP * ceil(rest / CUDA_WARP);
  return rounds * lanes + (last < lanes ? last : rest > 0 ? lanes : 0);
}

// All lanes of a team execute the statements outside of its strided loops.
double cuda_lanes(const lm_gen *g, int level) {
  const cuda_emit *e = (const cuda_emit *)g;
  if (e->form == CUDA_FLAT)
    return 1;
  double lanes = e->team;
  for (int k = 0; k < level && k < e->n_stages; k++) {
    if (!e->stages[k].strided)
      continue;
    double n = cuda_trips(e, k);
    lanes *= issued_lanes(e, k, n) / (e->team * n);
  }
  return lanes;
}

const char *cuda_axes_product(cuda_emit *e, const cuda_axis *axes, int n) {
  lm_buf b = {0};
  for (int i = 0; i < n; i++)
    lm_buf_printf(&b, "%s%s", i ? " * " : "", axes[i].extent);
  const char *text = n ? lm_arena_strndup(e->g.arena, b.p, b.n) : "1";
  lm_buf_free(&b);
  return text;
}

void cuda_count_shared(cuda_emit *e, cuda_flat_loop *l) {
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++) {
    double here = e->g.counted[i];
    e->g.instructions -= here < l->counted[i] ? here : l->counted[i];
    l->counted[i] = here > l->counted[i] ? here : l->counted[i];
  }
  lm_gen_count_reset(&e->g);
}

void cuda_count_loop(cuda_emit *e, int k, int axes, int unrolled) {
  enum {
    LOOP = 3,
    DIVISION = 6 // of an index, by a constant
  };
  lm_gen_count(&e->g, k + 1, LOOP / (double)unrolled + DIVISION * (axes > 1 ? axes - 1 : 0), NULL);
}

bool cuda_kept_are_many(const cuda_emit *e, double kept, double summed) {
  static const double APART = 4, REDUCTION = 20;
  double by_thread = APART * summed * ceil(kept / e->team);
  double by_team = kept * (ceil(summed / e->team) + REDUCTION);
  return kept >= e->team / 2.0 || (e->team > CUDA_WARP && by_thread < by_team);
}
