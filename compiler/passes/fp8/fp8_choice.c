// fp8_choice.c - which GEMMs of a loss are cast to 8-bit floats.
//
// A GEMM qualifies if one of its operands is a parameter, possibly cast or moved. On a CPU each of
// them is cast, except those of the vocabulary (embedding and head), whose weights have the axis
// that token ids index, and those of parameters that the recipe exempts. On a GPU its library must
// multiply them, and the cost model expect the three GEMMs of a weight to take less time with
// codes, including the kernels that write the codes (fp8_time.c).
#include <math.h>

#include "compiler/analysis/analysis.h"
#include "compiler/ir/dot.h"
#include "compiler/ops/fp8.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/params_only.h"
#include "runtime/base/diag_code.h"

typedef struct chooser {
  const lm_fp8 *o;
  lm_module *m;
  lm_fp8_gemms *out;
} chooser;

static const lm_op *param_under(const lm_value *v) {
  while (v->def->code != LM_OP_PARAM)
    v = v->def->in[0];
  return v->def;
}

// True also of a parameter that ranks gather (ZeRO).
static bool is_weight(const lm_value *v) {
  const lm_op *op = v->def;
  while (op && op->n_in && !lm_param_is_gathered(op) &&
         (op->code == LM_OP_CAST || lm_op_has(op, LM_T_VIEW)))
    op = op->in[0]->def;
  return op && lm_value_is_weight(lm_param_is_gathered(op) ? op->in[0] : op->out[0]);
}

static const lm_value *activation_of(const lm_fp8_gemm *g) {
  return g->dot->in[1 - g->weight];
}

static bool is_of_gpu(const lm_fp8 *o) {
  return o->target.kind == LM_TARGET_CUDA;
}

static lm_dtype weight_dtype(const lm_fp8_gemm *g) {
  return (lm_dtype)g->dot->in[g->weight]->type.dtype;
}

static bool is_of_vocabulary(const chooser *c, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (lm_limits_index(&lm_analysis_of(c->m)->limits, c->m, t.axis[i]))
      return true;
  return false;
}

static bool is_member(const lm_global *g, lm_sym name) {
  bool found = g->name == name;
  for (uint32_t i = 0; i < g->n_members; i++)
    found |= g->members[i] == name;
  return found;
}

static const char *kept_by(const chooser *c, const lm_global *g) {
  for (uint32_t i = 0; i < c->o->n_kept; i++)
    if (is_member(g, c->o->kept[i].param))
      return lm_arena_printf(c->m->arena, "kept by %s", c->o->kept[i].pattern);
  return NULL;
}

// The elements of t along the axes of the sum, or along the others.
static double size_of(const chooser *c, lm_type t, const lm_attr *over, bool summed) {
  double n = 1;
  for (int i = 0; i < t.rank; i++)
    if (lm_attr_has_axis(over, t.axis[i]) == summed)
      n *= (double)lm_axis_size(c->m, t.axis[i]);
  return n;
}

// The rules of a GPU's library (lm_codegen.scales), which hold for all three GEMMs.
static const char *not_on_gpu(const chooser *c, const lm_fp8_gemm *g) {
  const lm_attr *over = &g->dot->attr;
  lm_type w = g->dot->in[g->weight]->type, x = g->dot->in[1 - g->weight]->type;
  for (int i = 0; i < w.rank; i++)
    if (!lm_attr_has_axis(over, w.axis[i]) && lm_type_find(x, w.axis[i]) >= 0)
      return lm_arena_printf(c->m->arena, "a GEMM for each index of %s",
                             c->m->axes[w.axis[i]].name);
  const char *blocks = lm_fp8_not_blocks_of_gpu(c->o, c->m, g);
  if (blocks)
    return blocks;
  const double sizes[] = {g->k, g->n, g->m};
  for (size_t i = 0; i < LM_COUNT(sizes); i++)
    if (fmod(sizes[i], LM_CODES_MULTIPLE) != 0)
      return lm_arena_printf(c->m->arena, "%.0f is no multiple of %d", sizes[i], LM_CODES_MULTIPLE);
  return NULL;
}

// Why a GEMM is not cast, whatever its rows are.
static const char *why_for_any_rows(const chooser *c, const lm_fp8_gemm *g) {
  const lm_global *param = lm_global_find(c->m, g->param->attr.sym);
  const lm_op *around = g->dot->parent->owner;
  lm_type w = g->dot->in[g->weight]->type;
  if (lm_op_is_grouped(g->dot))
    return "a grouped GEMM";
  if (param->kind == LM_GLOBAL_PACKED)
    return "merged by pass fuse_gemms"; // of GEMMs that stay
  if (around && around->code != LM_OP_LOOP)
    return "inside of a loop over positions";
  if (w.dtype != LM_F32 && w.dtype != LM_BF16)
    return lm_arena_printf(c->m->arena, "computed in %s", lm_dtype_name((lm_dtype)w.dtype));
  const char *kept = kept_by(c, param);
  if (kept)
    return kept;
  if (!c->o->head && is_of_vocabulary(c, w))
    return "of the vocabulary";
  return lm_fp8_block(c->o->scaling) ? lm_fp8_not_in_blocks(c->o, c->m, g) : NULL;
}

static const char *why_it_stays(const chooser *c, const lm_fp8_gemm *g) {
  const char *why = why_for_any_rows(c, g);
  if (!why && lm_fp8_block(c->o->scaling))
    why = lm_fp8_rows_not_in_blocks(c->o, c->m, g);
  return !why && is_of_gpu(c->o) ? not_on_gpu(c, g) : why;
}

static void visit(lm_op *op, void *user) {
  chooser *c = user;
  if (op->code != LM_OP_DOT && op->code != LM_OP_GROUPED_DOT)
    return;
  bool x = is_weight(op->in[0]), w = is_weight(op->in[1]);
  if (x == w)
    return;
  lm_fp8_gemm g = {
      .dot = op,
      .weight = w,
      .param = param_under(op->in[w]),
  };
  g.count = lm_global_instances(c->m, lm_global_find(c->m, g.param->attr.sym));
  const lm_attr *over = &op->attr;
  g.m = size_of(c, op->in[1 - g.weight]->type, over, false);
  g.m *= c->o->tokens > 0 ? c->o->tokens : 1;
  g.n = size_of(c, op->in[g.weight]->type, over, false);
  g.k = size_of(c, op->in[g.weight]->type, over, true);
  g.stays = why_it_stays(c, &g);
  LM_PUSH(c->m->arena, c->out->v, c->out->n, c->out->cap) = g;
}

static int readers_of(const lm_fp8_gemms *all, const lm_fp8_gemm *g) {
  int n = 0;
  for (uint32_t i = 0; i < all->n; i++)
    n += !all->v[i].stays && activation_of(&all->v[i]) == activation_of(g);
  return n;
}

static bool reads_alike(const lm_fp8_gemm *a, const lm_fp8_gemm *b) {
  return activation_of(a) == activation_of(b) && a->dot->parent == b->dot->parent &&
         a->weight == b->weight && a->k == b->k;
}

// The GEMMs from number `first` on that read its activation.
static int group_find(lm_fp8_gemms *all, uint32_t first, const bool *done, lm_fp8_gemm **out) {
  int n = 0;
  for (uint32_t i = first; i < all->n && n < LM_FP8_GROUP; i++)
    if (!done[i] && reads_alike(&all->v[first], &all->v[i]))
      out[n++] = &all->v[i];
  return n;
}

static const char *slower(const chooser *c, const lm_fp8_gemm *g) {
  bool alone = g->codes < g->plain;
  return lm_arena_printf(c->m->arena, "%.3g ms in %s, %.3g ms in 8-bit floats, as predicted%s",
                         1e3 * g->plain, lm_dtype_name(weight_dtype(g)), 1e3 * g->codes,
                         alone ? ", but the step takes longer" : "");
}

// Those of which codes take longer stay.
static void slower_stay(const chooser *c, lm_fp8_gemms *all) {
  bool *done = LM_NEW_N(c->m->arena, bool, all->n + 1);
  lm_fp8_gemm *of[LM_FP8_GROUP];
  for (uint32_t i = 0; i < all->n; i++) {
    uint32_t may = 0, cast;
    int n = done[i] ? 0 : group_find(all, i, done, of);
    for (int k = 0; k < n; k++) {
      done[of[k] - all->v] = true;
      may |= of[k]->stays ? 0 : 1u << k;
    }
    cast = may ? lm_fp8_fastest(c->o, of, n, may) : 0;
    for (int k = 0; k < n; k++)
      if ((may & ~cast) >> k & 1)
        of[k]->stays = slower(c, of[k]);
  }
}

lm_fp8_gemms lm_fp8_choose(const lm_fp8 *o, lm_func *f) {
  lm_fp8_gemms out = {0};
  chooser c = {o, f->module, &out};
  lm_region_walk(f->body, visit, &c);
  bool predicts = is_of_gpu(o) && o->target.math[LM_BF16].peak > 0;
  if (predicts)
    slower_stay(&c, &out);
  return out;
}

bool lm_fp8_follows_micro(const lm_fp8 *o) {
  return o && o->scaling == LM_FP8_CURRENT;
}

// The rules that hold on any target.
static lm_fp8 on_any_target(const lm_fp8 *o) {
  lm_fp8 any = *o;
  any.target = (lm_target){.kind = LM_TARGET_CPU};
  return any;
}

bool lm_fp8_follows_outside(const lm_fp8 *o, lm_func *loss) {
  if (!lm_fp8_follows_micro(o))
    return false;
  lm_fp8 any = on_any_target(o);
  lm_fp8_gemms all = lm_fp8_choose(&any, loss);
  for (uint32_t i = 0; i < all.n; i++)
    if (!all.v[i].stays && all.v[i].dot->parent == loss->body)
      return true;
  return false;
}

static int64_t blocks_multiple(const chooser *c, const lm_fp8_gemm *g, lm_axis last) {
  int64_t block = lm_fp8_block(c->o->scaling);
  bool along = last == lm_fp8_last_axis(activation_of(g)->type, &g->dot->attr, false);
  return along && lm_axis_size(c->m, last) % block == 0 ? block : 0;
}

// A GPU's library multiplies tiles where it multiplies the whole.
static int64_t library_multiple(const chooser *c, const lm_fp8_gemm *g) {
  return is_of_gpu(c->o) && fmod(g->m, LM_CODES_MULTIPLE) == 0 ? LM_CODES_MULTIPLE : 1;
}

// The scale of `current` is that of all rows. In a loop over tiles the history of an activation is
// that of this GEMM alone, and not the one that all its readers share.
static int64_t tile_multiple(const chooser *c, const lm_fp8_gemms *all, const lm_fp8_gemm *g,
                             lm_axis last) {
  if (why_for_any_rows(c, g))
    return 1;
  if (!g->weight || lm_fp8_follows_micro(c->o))
    return 0;
  if (lm_fp8_block(c->o->scaling))
    return blocks_multiple(c, g, last);
  return readers_of(all, g) == 1 ? library_multiple(c, g) : 0;
}

int64_t lm_fp8_tile_multiple(const lm_fp8 *o, const lm_op *dot, lm_axis last) {
  if (!o)
    return 1;
  lm_func *f = dot->parent->func;
  lm_fp8 any = on_any_target(o);
  lm_fp8_gemms all = lm_fp8_choose(&any, f);
  chooser c = {o, f->module, &all};
  for (uint32_t i = 0; i < all.n; i++)
    if (all.v[i].dot == dot)
      return tile_multiple(&c, &all, &all.v[i], last);
  return 1;
}

// Reports each division of an axis once.
static bool parts_check(const lm_fp8 *o, lm_ctx *c, const lm_fp8_gemms *all) {
  bool fit = true;
  lm_axis last = 0;
  for (uint32_t i = 0; lm_fp8_block(o->scaling) && i < all->n; i++) {
    const lm_fp8_gemm *g = &all->v[i];
    lm_fp8_part part;
    if (g->stays || !lm_fp8_parts_break(o, g->dot->parent->func->module, g, &part))
      continue;
    if (last != part.along.v[part.divided])
      lm_fp8_part_report(c, g, &part);
    last = part.along.v[part.divided];
    fit = false;
  }
  return fit;
}

bool lm_fp8_check(const lm_fp8 *o, lm_ctx *c, const lm_fp8_gemms *all) {
  for (uint32_t i = 0; i < all->n; i++)
    if (!all->v[i].stays)
      return parts_check(o, c, all);
  lm_diag *d = LM_REPORT(c, o->loc, E2F4);
  for (uint32_t i = 0; i < all->n; i++)
    lm_diag_note(c, d, all->v[i].dot->loc, "@%s: %s", all->v[i].param->attr.sym, all->v[i].stays);
  return false;
}
