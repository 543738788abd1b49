// draw.c - the stream of random numbers of each random call.
//
// The stream, its site, is a function of the program's structure: of the path of the instance whose
// method draws, and of how many draws of this instance come before it in the function. Locations in
// the text and other instances do not count. Each iteration of a loop starts from the counts before
// the loop, since its number is part of the counter (ops.def); after the loop the counts are the
// highest of all iterations, so no two draws share a site and an iteration.
#include <string.h>

#include "dsl/elab/elab.h"

// The counts of a function, as a list of changes, of which the last one of a path is valid.
struct el_draws {
  lm_sym path;
  uint32_t n;
  const el_draws *before;
};

static uint32_t draws_of(const el_draws *d, lm_sym path) {
  while (d && d->path != path)
    d = d->before;
  return d ? d->n : 0;
}

static const el_draws *draws_set(lm_elab *e, const el_draws *d, lm_sym path, uint32_t n) {
  el_draws *x = LM_NEW(e->a, el_draws);
  *x = (el_draws){path, n, d};
  return x;
}

const el_draws *el_draws_join(lm_elab *e, const el_draws *a, const el_draws *b) {
  for (const el_draws *shared = a; b && b != shared; b = b->before)
    if (b->n > draws_of(a, b->path))
      a = draws_set(e, a, b->path, b->n);
  return a;
}

// The path of the instance whose method runs; "" in the model itself. Functions belong to the
// method that calls them.
static lm_sym path_of(lm_elab *e) {
  const el_frame *f = e->frame;
  while (f && !f->self)
    f = f->up;
  return f ? f->self->inst->path : LM_SYM(e->c, "");
}

uint64_t el_draw(lm_elab *e) {
  lm_sym path = path_of(e);
  uint32_t n = draws_of(e->draws, path);
  e->draws = draws_set(e, e->draws, path, n + 1);
  return lm_hash(path, strlen(path), 1 + (uint64_t)n) >> 1;
}
