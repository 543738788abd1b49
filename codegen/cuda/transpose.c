// transpose.c - passes that write codes along another axis than the one along which they read: the
// copies of codes that a GEMM wants with the summed axes last.
//
// Threads compute along x, the axis that is contiguous in the operands, and store results that are
// contiguous along it. Bytes that are contiguous along y go through a tile in shared memory
// (prelude/transpose.cuh), so that each access to memory is one of whole sectors. Thread groups are
// not needed: a block has the threads of a tile, whose loops are the last ones of the pass.
//
//   for each tile: strided over the grid, as (…, y / Y, x / X, y % Y / 4, x % X / 8)
//     for 4 neighbours along y
//       for a vector of 8 along x: load, compute; store results along x
//     put the bytes of the others into the tile; barrier; store rows of the tile; barrier
#include <string.h>

#include "codegen/cuda/emit.h"

enum {
  BYTES = 8192, // of a tile, LM_TILE_BYTES of the prelude
  ROWS = 4,     // along y, of a thread
  WIDTH = 8,    // along x, of a thread
  LOOPS = 4,    // of a tile
  TILES = 4     // limit for a kernel
};

// Loops of a pass, by their numbers.
typedef struct axes {
  int x, y;
  int size_x, size_y; // of a tile
  int tiles;
} axes;

static bool is_dense(const cuda_emit *e, uint32_t r) {
  return !e->g.result_stride || !e->g.result_stride[r];
}

static bool is_byte(lm_type t) {
  return lm_dtype_bytes((lm_dtype)t.dtype) == 1 && t.dtype != LM_BOOL;
}

// The loop along which an access is contiguous; -1: none.
static int contiguous(const lm_gen_domain *d, const lm_ix *at) {
  for (int i = 0; i < d->n; i++)
    if (lm_ix_coef(at, d->loop[i].var) == 1)
      return i;
  return -1;
}

// The loop along which the greatest number of operand bytes is contiguous; -1 if there is none.
static int loop_of_loads(const cuda_emit *e, int pass) {
  const lm_gen_domain *d = &e->g.domains[pass];
  double bytes[LM_GEN_LOOPS] = {0};
  int best = -1;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    int at = a->pass == pass && a->operand >= 0 ? contiguous(d, &a->ix) : -1;
    if (at < 0)
      continue;
    double elements = (double)lm_type_elements(e->g.m, a->type);
    bytes[at] += elements * lm_dtype_bytes((lm_dtype)a->type.dtype);
    best = best < 0 || bytes[at] > bytes[best] ? at : best;
  }
  return best;
}

// The loop along which result r, which the pass writes, is contiguous.
static int loop_of_result(cuda_emit *e, int pass, uint32_t r) {
  lm_ix at = cuda_result_index(e, pass, r);
  return contiguous(&e->g.domains[pass], &at);
}

// Sets out->y. False if no result is contiguous along another axis than x, or one along a third.
static bool result_axes_find(cuda_emit *e, int pass, axes *out) {
  for (uint32_t r = 0; r < e->g.kernel->n_out; r++) {
    if (!lm_schedule_pass_writes(e->g.s, pass, r))
      continue;
    int at = loop_of_result(e, pass, r);
    if (at == out->x)
      continue;
    if (at < 0 || (out->y >= 0 && at != out->y) || !is_byte(e->g.kernel->out[r]->type) ||
        !is_dense(e, r))
      return false;
    out->y = at;
    out->tiles++;
  }
  return out->y >= 0;
}

static bool is_plain(const lm_gen_loop *l) {
  return !l->dyn && !l->n_partitions;
}

static bool size_choose(const lm_gen_domain *d, axes *out) {
  static const int sizes[] = {64, 128, 32, 256};
  const lm_gen_loop *x = &d->loop[out->x], *y = &d->loop[out->y];
  for (size_t i = 0; i < LM_COUNT(sizes); i++) {
    out->size_x = sizes[i];
    out->size_y = BYTES / sizes[i];
    if (x->size % out->size_x == 0 && y->size % out->size_y == 0)
      return is_plain(x) && is_plain(y);
  }
  return false;
}

static int loop_find(const lm_gen_domain *d, lm_axis axis, int64_t stride) {
  for (int i = 0; i < d->n; i++)
    if (d->loop[i].axis == axis && d->loop[i].stride == stride)
      return i;
  LM_BUG("a loop of a tile is missing");
}

static void loop_move_last(lm_gen_domain *d, int at) {
  lm_gen_loop l = d->loop[at];
  memmove(&d->loop[at], &d->loop[at + 1], (size_t)(d->n - 1 - at) * sizeof l);
  d->loop[d->n - 1] = l;
}

// Splits the loop of that axis and stride into one over tiles, one over threads and one of `each`.
static void loop_split(cuda_emit *e, lm_gen_domain *d, lm_axis axis, int64_t stride, int tile,
                       int each) {
  lm_gen_loop_split(&e->g, d, loop_find(d, axis, stride), tile);
  lm_gen_loop_split(&e->g, d, loop_find(d, axis, stride), each);
}

static void loops_split(cuda_emit *e, lm_gen_domain *d, const axes *a) {
  lm_gen_loop x = d->loop[a->x], y = d->loop[a->y];
  loop_split(e, d, y.axis, y.stride, a->size_y, ROWS);
  loop_split(e, d, x.axis, x.stride, a->size_x, WIDTH);
  loop_move_last(d, loop_find(d, y.axis, y.stride * ROWS));
  loop_move_last(d, loop_find(d, x.axis, x.stride * WIDTH));
  loop_move_last(d, loop_find(d, y.axis, y.stride));
  loop_move_last(d, loop_find(d, x.axis, x.stride));
}

bool cuda_transpose_choose(cuda_emit *e, int pass) {
  lm_gen_domain *d = &e->g.domains[pass];
  axes a = {.y = -1};
  if (e->form != CUDA_FLAT || e->rows || d->n + LOOPS > LM_GEN_LOOPS)
    return false;
  a.x = loop_of_loads(e, pass);
  if (a.x < 0 || !result_axes_find(e, pass, &a) || !size_choose(d, &a) ||
      e->n_tiles + a.tiles > TILES)
    return false;
  loops_split(e, d, &a);
  e->width[pass] = WIDTH;
  e->tile[pass] = a.size_y;
  e->n_tiles += a.tiles;
  return true;
}

bool cuda_transpose_merges(const cuda_emit *e, int pass, int loop) {
  return !e->tile[pass] || loop + 1 < e->g.domains[pass].n - LOOPS;
}

bool cuda_transpose_stages(cuda_emit *e) {
  if (!e->tile[e->g.pass])
    return false;
  int n = e->g.domains[e->g.pass].n;
  e->stage_of[n - 2] = 1;
  e->stage_of[n - 1] = 2;
  e->stages[1] = (cuda_stage){.unrolled = true};
  e->stages[2] = (cuda_stage){.vector = true};
  e->n_stages = 3;
  return true;
}

// The part of an offset that is the same for all threads of a tile.
static lm_ix tile_begin(const lm_gen_domain *d, const lm_ix *at) {
  lm_ix out = {.c = at->c};
  for (int i = 0; i < at->n; i++) {
    bool inside = false;
    for (int k = d->n - LOOPS; k < d->n; k++)
      inside |= d->loop[k].var == at->t[i].var;
    if (!inside)
      out.t[out.n++] = at->t[i];
  }
  return out;
}

bool cuda_transpose_store(cuda_emit *e, uint32_t r, const lm_ix *at, const char *x) {
  enum {
    PACK = 2,
    PUT = 8 * 3,
    STORE = 2 * 12
  };
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int y = e->tile[e->g.pass];
  if (!y || lm_ix_coef(at, e->vector) == 1)
    return false;
  const lm_var *row = &e->g.vars.v[d->loop[d->n - 2].var], *column = &e->g.vars.v[e->vector];
  const char *words = lm_gen_temp_name(&e->g, "y");
  lm_ix begin = tile_begin(d, at);
  lm_gen_statement(&e->g, 1, "uint32_t %s[%d] = {0};", words, WIDTH);
  lm_gen_statement(&e->g, e->n_stages, "%s[%s] |= (uint32_t)(uint8_t)%s << (%s * 8);", words,
                   column->name, x, row->name);
  lm_buf *b = &e->g.level[1].after;
  lm_buf_printf(b, "lm_tile_put(tile%u, %d, %s);\nlm_barrier();\n", r, y, words);
  lm_buf_printf(b, "lm_tile_store((uint8_t *)r%u + (", r);
  lm_ix_print(&e->g.vars, &begin, b);
  lm_buf_printf(b, "), %lld, tile%u, %d);\nlm_barrier();\n", (long long)lm_ix_coef(at, e->vector),
                r, y);
  lm_gen_count(&e->g, e->n_stages, PACK - 1, NULL);
  lm_gen_count(&e->g, 1, PUT + STORE, NULL);
  e->transposed[r] = true;
  return true;
}

void cuda_transpose_declare(cuda_emit *e, lm_buf *b) {
  for (uint32_t r = 0; r < e->g.kernel->n_out; r++)
    if (e->transposed[r]) {
      e->shared += BYTES;
      lm_buf_printf(b, "LM_SHARED(uint32_t, tile%u, %d);\n", r, BYTES / 4);
    }
}
