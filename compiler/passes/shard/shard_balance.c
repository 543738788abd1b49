// shard_balance.c - equal work of ranks that divide the positions of causal attention.
//
// before: mesh cp = 2 positions balanced
//         func @loss(%tok: int[b, t], …) {            t = 8: positions 0, 1, 2, 3, 4, 5, 6, 7
//           %i = iota : int[t]
// after:  func @loss(%tok: int[b, t], …) {            t = 8: positions 0, 1, 6, 7, 2, 3, 4, 5
//           %i = view %positions (rank, half, chunk) -> (t) : int[t]
//
// Of n ranks rank r computes the chunks r and 2 n - 1 - r of the 2 n of a row: with a mask that
// looks back, an early and a late one, so that all have the same number of unmasked pairs (Brandon
// et al. 2023, Striped Attention; the Llama 3 report, section 3.3.2). The trainer gives each rank
// these positions of every column (runtime/train/ports.c). So the elements along t are in another
// order than the positions, here as behind every collective. Masks see positions and documents
// alone, which are columns; sums over positions do not depend on their order; and the index of a
// position is computed from that of the element.
//
// Declines, and removes `balanced`: operations that depend on the order of elements along t (a
// slice, a shift, a scan, random numbers along keys), rows that 2 n does not divide. Then the parts
// are consecutive. Cost: a few operations on int[t].
#include "compiler/analysis/activity.h"
#include "compiler/passes/shard/shard.h"

typedef struct balance {
  lm_module *m;
  int ranks;
  int64_t size;       // positions
  uint8_t *positions; // by axis: its elements are the positions of a row
  uint8_t *merged;    // by axis: one element for each of several rows' positions
  const uint8_t *active;
  bool fits;
} balance;

// ---- operations that depend on the order

static bool ordered(const balance *x, lm_axis a) {
  return x->positions[a] || x->merged[a];
}

static bool any_ordered(const balance *x, const lm_axis *axes, int n) {
  for (int i = 0; i < n; i++)
    if (ordered(x, axes[i]))
      return true;
  return false;
}

// A view that merges the positions with other axes, or splits them again.
static bool view_fits(balance *x, const lm_attr *a) {
  bool merges = any_ordered(x, a->axes, a->n_axes);
  if (a->n_to == 1) {
    x->merged[a->to[0]] |= merges;
    return true;
  }
  return !merges || (a->n_axes == 1 && x->merged[a->axes[0]] && any_ordered(x, a->to, a->n_to));
}

static bool rename_fits(balance *x, const lm_attr *a) {
  for (int i = 0; i < a->n_axes; i++) {
    x->positions[a->to[i]] |= x->positions[a->axes[i]];
    x->merged[a->to[i]] |= x->merged[a->axes[i]];
  }
  return true;
}

// True if no gradient reaches v, which softmax subtracts behind a stop_grad.
static bool is_stopped(const balance *x, const lm_region *r, const lm_value *v) {
  bool stopped = true;
  for (const lm_op *op = r->first; op && stopped; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      stopped &= op->in[i] != v || op->code == LM_OP_STOP;
    if (op->body)
      stopped &= is_stopped(x, op->body, v);
  }
  return stopped || !x->active[v->id];
}

// True if the value of each position is the same in any order. Of equal elements the derivative of
// `max` chooses the first.
static bool op_fits(balance *x, const lm_op *op) {
  const lm_attr *a = &op->attr;
  bool over = any_ordered(x, a->axes, a->n_axes) || any_ordered(x, a->to, a->n_to);
  lm_type t = op->n_out ? op->out[0]->type : (lm_type){0};
  switch (op->code) {
  case LM_OP_VIEW: return view_fits(x, a);
  case LM_OP_RENAME:
  case LM_OP_HISTORY: return rename_fits(x, a);
  case LM_OP_IOTA: return !x->merged[t.axis[0]];
  case LM_OP_RNG: return !t.rank || !ordered(x, t.axis[t.rank - 1]);
  case LM_OP_AT: return !ordered(x, op->in[0]->type.axis[0]);
  case LM_OP_SUM:
  case LM_OP_DOT: return true;
  case LM_OP_MAX: return !over || is_stopped(x, op->parent, op->out[0]);
  default: return !over || lm_op_info_of(op)->factor == LM_FACTOR_ROUTE;
  }
}

static void region_check(balance *x, const lm_region *r) {
  for (const lm_op *op = r->first; op && x->fits; op = op->next) {
    x->fits = op_fits(x, op);
    if (op->body)
      region_check(x, op->body);
  }
}

// ---- the index of a position

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n);
}

// int over axis `of` of three, expanded to all of them.
static lm_value *index_of(lm_builder *b, lm_type all, int of) {
  lm_type own = lm_type_make(LM_INT, &all.axis[of], 1);
  return lm_emit_expand(b, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &own), all);
}

// The position of each element along t. Half 0 of rank r is chunk r of the positions, half 1 is
// chunk 2 ranks - 1 - r.
static lm_value *positions_emit(const balance *x, lm_builder *b, lm_axis t) {
  lm_module *m = x->m;
  int64_t chunk = x->size / (2 * x->ranks);
  lm_axis axes[3];
  axes[0] = lm_axis_add(m, LM_SYM(m->ctx, "rank"), x->ranks, 0);
  axes[1] = lm_axis_add(m, LM_SYM(m->ctx, "half"), 2, 0);
  axes[2] = lm_axis_add(m, LM_SYM(m->ctx, "chunk"), chunk, 0);
  lm_type all = lm_type_make(LM_INT, axes, LM_COUNT(axes));
  lm_value *rank = index_of(b, all, 0);
  lm_value *late = lm_emit2(b, LM_OP_SUB, number(b, 2 * x->ranks - 1), rank);
  lm_value *zero = number(b, 0);
  lm_value *is_early = lm_emit2(b, LM_OP_EQ, index_of(b, all, 1), zero);
  lm_value *size = number(b, chunk);
  lm_value *first = lm_emit2(b, LM_OP_MUL, lm_emit_select(b, is_early, rank, late), size);
  lm_value *each = lm_emit2(b, LM_OP_ADD, first, index_of(b, all, 2));
  lm_attr join = {
      .axes = {axes[0], axes[1], axes[2]},
      .n_axes = 3,
      .to = {t},
      .n_to = 1,
  };
  return lm_emit(b, LM_OP_VIEW, &each, 1, &join, NULL);
}

static void region_replace(const balance *x, lm_region *r, lm_value **map) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->body)
      region_replace(x, op->body, map);
    if (op->code != LM_OP_IOTA || !x->positions[op->out[0]->type.axis[0]])
      continue;
    lm_builder b = {
        .m = x->m,
        .at = r,
        .before = next,
        .loc = op->loc,
    };
    map[op->out[0]->id] = positions_emit(x, &b, op->out[0]->type.axis[0]);
  }
}

static void indices_replace(const balance *x, lm_func *f) {
  uint32_t n = x->m->n_values;
  lm_value **map = lm_calloc((size_t)n + 1, sizeof *map);
  region_replace(x, f->body, map);
  lm_func_substitute(f, map, n);
  lm_free(map);
}

// ---- the module

static lm_axis positions_of(const lm_func *f) {
  const lm_region *r = f->body;
  return r->n_args && r->args[0]->type.rank > 1 ? r->args[0]->type.axis[1] : 0;
}

static bool func_fits(balance *x, const lm_func *f) {
  lm_axis t = positions_of(f);
  if (!t || x->m->axes[t].dyn)
    return false;
  x->size = lm_axis_size(x->m, t);
  x->fits = x->size % (2 * x->ranks) == 0;
  x->positions[t] = 1;
  uint8_t *active = lm_activity_of_func(f);
  x->active = active;
  region_check(x, f->body);
  lm_free(active);
  return x->fits;
}

void lm_shard_balance(lm_module *m, int mesh) {
  lm_mesh_axis *by = &m->mesh.axis[mesh - 1];
  balance x = {
      .m = m,
      .ranks = by->size,
      .positions = lm_calloc((size_t)m->n_axes + 1, 1),
      .merged = lm_calloc((size_t)m->n_axes + 1, 1),
  };
  for (const lm_func *f = m->funcs; f; f = f->next)
    by->balanced &= !lm_shard_takes_batch(f) || func_fits(&x, f);
  for (lm_func *f = m->funcs; f && by->balanced; f = f->next) {
    if (!lm_shard_takes_batch(f))
      continue;
    x.size = lm_axis_size(m, positions_of(f));
    indices_replace(&x, f);
  }
  lm_free(x.positions);
  lm_free(x.merged);
}
