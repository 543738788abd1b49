// fp8_blocks.c - along which axes the blocks of a GEMM are that have a scale each.
//
// The blocks of an activation's rows are along their last axis. Those of a weight, and of the
// values that have its axes, are along the last axes of its sum or of its columns, as many as are
// needed for whole blocks: 128 elements along (g, e), with heads of 64 along e, are two heads.
//
// Sizes are those before ranks divided axes, so that the blocks are those of one process. A rank
// whose part of them is not whole blocks is refused (E2FB).
#include "compiler/ops/fp8.h"
#include "compiler/passes/fp8/fp8.h"
#include "runtime/base/diag_code.h"

static lm_type weight_type(const lm_fp8_gemm *g) {
  return g->dot->in[g->weight]->type;
}

static lm_type activation_type(const lm_fp8_gemm *g) {
  return g->dot->in[1 - g->weight]->type;
}

// The axis before any was divided.
static lm_axis whole_of(const lm_module *m, lm_axis a) {
  while (m->axes[a].whole)
    a = m->axes[a].whole;
  return a;
}

static int64_t whole_size(const lm_module *m, const lm_fp8_axes *a) {
  int64_t size = 1;
  for (int i = 0; i < a->n; i++)
    size *= lm_axis_size(m, whole_of(m, a->v[i]));
  return size;
}

lm_axis lm_fp8_last_axis(lm_type t, const lm_attr *over, bool summed) {
  for (int i = t.rank - 1; i >= 0; i--)
    if (lm_attr_has_axis(over, t.axis[i]) == summed)
      return t.axis[i];
  return 0;
}

static void axes_prepend(lm_fp8_axes *a, lm_axis axis) {
  for (int i = a->n++; i > 0; i--)
    a->v[i] = a->v[i - 1];
  a->v[0] = axis;
}

// The last axes of t that are summed, or of the others, up to whole blocks.
static lm_fp8_axes joined(const lm_module *m, lm_type t, const lm_attr *over, bool summed,
                          int64_t block) {
  lm_fp8_axes a = {.n = 0};
  for (int i = t.rank - 1; i >= 0; i--) {
    if (lm_attr_has_axis(over, t.axis[i]) != summed) {
      if (a.n)
        break;
      continue;
    }
    axes_prepend(&a, t.axis[i]);
    if (whole_size(m, &a) % block == 0)
      break;
  }
  return a;
}

lm_fp8_along lm_fp8_along_of(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g) {
  const lm_attr *over = &g->dot->attr;
  int64_t block = lm_fp8_block(o->scaling);
  lm_axis row = lm_fp8_last_axis(activation_type(g), over, false);
  if (!block)
    return (lm_fp8_along){.rows = {.n = 0}};
  return (lm_fp8_along){
      .rows = {{row}, row != 0},
      .summed = joined(m, weight_type(g), over, true, block),
      .columns = joined(m, weight_type(g), over, false, block),
  };
}

// ---- why there are no whole blocks

// "ff", "(g, e)"
static const char *names_of(const lm_module *m, const lm_fp8_axes *a) {
  const char *text = m->axes[whole_of(m, a->v[0])].name;
  for (int i = 1; i < a->n; i++)
    text = lm_arena_printf(m->arena, "%s, %s", text, m->axes[whole_of(m, a->v[i])].name);
  return a->n > 1 ? lm_arena_printf(m->arena, "(%s)", text) : text;
}

static int axes_of_side(lm_type t, const lm_attr *over, bool summed) {
  int n = 0;
  for (int i = 0; i < t.rank; i++)
    n += lm_attr_has_axis(over, t.axis[i]) == summed;
  return n;
}

// all: of how many axes these are the last ones. Fewer elements than those of a block are one, if
// there are no other axes; those of mx have no fewer elements.
static const char *breaks(const lm_fp8 *o, const lm_module *m, const lm_fp8_axes *a, int all) {
  int64_t block = lm_fp8_block(o->scaling);
  int64_t size = a->n ? whole_size(m, a) : 0;
  bool one = o->scaling == LM_FP8_BLOCKS && size < block && a->n == all;
  if (!a->n)
    return "it has no axis for blocks";
  if (size % block == 0 || one)
    return NULL;
  return lm_arena_printf(m->arena, "%lld elements along %s are not whole blocks of %lld",
                         (long long)size, names_of(m, a), (long long)block);
}

static const char *apart(const lm_module *m, lm_type t, const lm_fp8_axes *a, const char *of) {
  if (lm_fp8_axes_adjacent(t, a))
    return NULL;
  return lm_arena_printf(m->arena, "the axes %s are not adjacent in %s", names_of(m, a), of);
}

const char *lm_fp8_not_in_blocks(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g) {
  lm_fp8_along at = lm_fp8_along_of(o, m, g);
  const lm_attr *over = &g->dot->attr;
  lm_type w = weight_type(g);
  const char *why = breaks(o, m, &at.summed, axes_of_side(w, over, true));
  why = why ? why : breaks(o, m, &at.columns, axes_of_side(w, over, false));
  why = why ? why : apart(m, activation_type(g), &at.summed, "the activation");
  return why ? why : apart(m, g->dot->out[0]->type, &at.columns, "the result");
}

const char *lm_fp8_rows_not_in_blocks(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g) {
  lm_fp8_along at = lm_fp8_along_of(o, m, g);
  return breaks(o, m, &at.rows, at.rows.n);
}

const char *lm_fp8_not_blocks_of_gpu(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g) {
  lm_fp8_axes rows = lm_fp8_along_of(o, m, g).rows;
  int64_t size = whole_size(m, &rows);
  int all = axes_of_side(activation_type(g), &g->dot->attr, false);
  if (o->scaling != LM_FP8_BLOCKS || size >= LM_FP8_BLOCK || all == 1)
    return NULL;
  return lm_arena_printf(m->arena, "blocks of %lld elements along %s, where the GPU has %d",
                         (long long)size, names_of(m, &rows), LM_FP8_BLOCK);
}

// ---- ranks

// The elements of a block's axes that one index of axis number i has.
static int64_t unit_of(const lm_module *m, const lm_fp8_axes *a, int i) {
  lm_fp8_axes inner = {.n = 0};
  for (int k = i + 1; k < a->n; k++)
    inner.v[inner.n++] = a->v[k];
  return whole_size(m, &inner);
}

// The axis of which ranks have parts that are no whole blocks; -1: none.
static int divided_in(const lm_module *m, const lm_fp8_axes *a, int64_t block) {
  for (int i = 0; i < a->n; i++)
    if (m->axes[a->v[i]].whole && lm_axis_size(m, a->v[i]) * unit_of(m, a, i) % block)
      return i;
  return -1;
}

bool lm_fp8_parts_break(const lm_fp8 *o, const lm_module *m, const lm_fp8_gemm *g,
                        lm_fp8_part *out) {
  lm_fp8_along at = lm_fp8_along_of(o, m, g);
  const lm_fp8_axes *all[] = {&at.summed, &at.columns, &at.rows};
  for (size_t k = 0; k < LM_COUNT(all); k++) {
    int i = divided_in(m, all[k], lm_fp8_block(o->scaling));
    if (i < 0)
      continue;
    *out = (lm_fp8_part){
        .along = *all[k],
        .divided = i,
        .block = lm_fp8_block(o->scaling),
    };
    return true;
  }
  return false;
}

typedef struct legal {
  int64_t whole, others, unit, block; // others: ranks along other axes of the mesh that divide it
} legal;

static bool is_legal(const legal *x, int64_t ranks) {
  return x->whole % (ranks * x->others) == 0 &&
         x->whole / (ranks * x->others) * x->unit % x->block == 0;
}

// The nearest number of ranks below n or above it that leaves whole blocks; 0: none.
static int64_t nearest_ranks(const legal *x, int64_t n, int step) {
  for (int64_t ranks = n + step; ranks > 0 && ranks <= x->whole; ranks += step)
    if (is_legal(x, ranks))
      return ranks;
  return 0;
}

static int64_t greatest_divisor(int64_t a, int64_t b) {
  return b ? greatest_divisor(b, a % b) : a;
}

// "tp = 2", "ff = 512 or 1024"
static const char *either(const lm_module *m, const char *name, int64_t below, int64_t above) {
  if (below && above)
    return lm_arena_printf(m->arena, "%s = %lld or %lld", name, (long long)below, (long long)above);
  return lm_arena_printf(m->arena, "%s = %lld", name, (long long)(below ? below : above));
}

static void legal_help(const lm_module *m, lm_diag *d, const lm_mesh_axis *by, const legal *x,
                       const char *axis) {
  int64_t below = nearest_ranks(x, by->size, -1), above = nearest_ranks(x, by->size, 1);
  int64_t step = x->block / greatest_divisor(x->unit, x->block) * by->size * x->others;
  int64_t less = x->whole / step * step;
  const char *sizes = either(m, axis, less, less + step);
  if (!below && !above)
    lm_diag_help(m->ctx, d, "%s = %d leaves whole blocks of %s", by->name, by->size, sizes);
  else
    lm_diag_help(m->ctx, d, "%s leaves whole blocks, or %s", either(m, by->name, below, above),
                 sizes);
}

void lm_fp8_part_report(lm_ctx *c, const lm_fp8_gemm *g, const lm_fp8_part *part) {
  const lm_module *m = g->dot->parent->func->module;
  lm_axis a = part->along.v[part->divided];
  const lm_mesh_axis *by = &m->mesh.axis[m->axes[a].mesh - 1];
  int64_t unit = unit_of(m, &part->along, part->divided), own = lm_axis_size(m, a) * unit;
  int64_t whole = lm_axis_size(m, whole_of(m, a));
  legal x = {whole, whole / lm_axis_size(m, a) / by->size, unit, part->block};
  const char *names = names_of(m, &part->along);
  lm_diag *d = LM_REPORT(c, by->loc, E2FB, by->name, by->size, (long long)own,
                         (long long)whole_size(m, &part->along), names, (long long)part->block);
  lm_diag_note(c, d, g->dot->loc, "of the GEMM of @%s", g->param->attr.sym);
  legal_help(m, d, by, &x, m->axes[whole_of(m, a)].name);
}
