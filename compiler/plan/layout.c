// layout.c - the layout of parameters, caches, `derived` and `fixed` globals.
//
// Parameters without stacked axes are consecutive. At the first parameter of a stack all
// parameters of one iteration begin (including inner stacks), repeated for each iteration. Each
// tensor begins at a multiple of LM_BLOCK elements, except for members of a packed global, whose
// rows are side by side where its first member would be. Parameters whose gradients are sums along
// the same axes of the mesh form a region, so that they are added by one collective along each
// axis. Parameters that are stored in 16 bits have regions behind those of f32; their gradients are
// f32, in the same order.
#include <string.h>

#include "compiler/plan/internal.h"

typedef struct layer {
  const lm_module *m;
  lm_mesh_set partial; // of the region being laid out, as its dtype
  lm_dtype dtype;
  bool *done; // by global, at the level being laid out
  struct {
    int64_t offset, stride[LM_RANK];
  } * elements; // by global
} layer;

bool lm_plan_pads_in_place(const lm_op *op) {
  const lm_op *param = op->code == LM_OP_PAD ? op->in[0]->def : NULL;
  const lm_attr *a = &op->attr;
  if (!param || param->code != LM_OP_PARAM || !a->n_axes || a->imm[0] || a->imm[1] != 1)
    return false;
  lm_module *m = op->parent->func->module;
  const lm_global *g = lm_global_find(m, param->attr.sym);
  return lm_global_is_weight(g) && a->axes[0] == g->type.axis[g->n_stack] &&
         lm_axis_size(m, a->to[0]) == lm_global_stored_rows(m, g);
}

static bool in_iteration(const layer *l, const lm_global *g, const lm_axis *prefix, int level) {
  if (!lm_global_is_trained(g) || g->n_stack < level || g->partial != l->partial ||
      g->type.dtype != l->dtype)
    return false;
  for (int i = 0; i < level; i++)
    if (g->type.axis[i] != prefix[i])
      return false;
  return true;
}

// Lays out a parameter from element `base`, with all others of its packed global; returns their
// size.
static int64_t param_lay(layer *l, uint32_t i, int64_t base) {
  const lm_module *m = l->m;
  int64_t first, size = 0, stride[LM_RANK];
  const lm_global *packed = lm_global_pack(m, &m->globals[i], &first);
  l->done[i] = true;
  l->elements[i].offset = base;
  for (uint32_t k = 0; packed && k < packed->n_members; k++) {
    const lm_global *g = lm_global_find((lm_module *)m, packed->members[k]);
    l->done[g - m->globals] = true;
    l->elements[g - m->globals].offset = base + lm_global_strides(m, g, stride);
    size += lm_global_blocks(m, g) * LM_BLOCK;
  }
  if (!packed)
    return lm_global_blocks(m, &m->globals[i]) * LM_BLOCK;
  l->elements[packed - m->globals].offset = base;
  return size;
}

// Lays out one iteration of the stacks `prefix` from element `base`; returns its size.
static int64_t iteration_lay(layer *l, const lm_axis *prefix, int level, int64_t base) {
  int64_t size = 0;
  for (uint32_t i = 0; i < l->m->n_globals; i++) {
    const lm_global *g = &l->m->globals[i];
    if (l->done[i] || g->kind == LM_GLOBAL_PACKED || !in_iteration(l, g, prefix, level))
      continue;
    if (g->n_stack == level) {
      size += param_lay(l, i, base + size);
      continue;
    }
    lm_axis inner[LM_RANK];
    memcpy(inner, g->type.axis, sizeof inner);
    int64_t one = iteration_lay(l, inner, level + 1, base + size);
    for (uint32_t j = 0; j < l->m->n_globals; j++)
      if (in_iteration(l, &l->m->globals[j], inner, level + 1))
        l->elements[j].stride[level] = one;
    size += one * lm_axis_size(l->m, inner[level]);
  }
  return size;
}

// Lays out the globals of a kind consecutively and densely; returns their bytes.
static int64_t dense_lay(const lm_module *m, lm_layout *out, lm_global_kind kind,
                         lm_arena_id arena) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    if (g->kind != kind)
      continue;
    lm_layout_location *x = &out->globals[i].value;
    int64_t dense[LM_RANK], size = lm_dtype_bytes(g->type.dtype);
    lm_strides_dense(m, g->type, dense);
    *x = (lm_layout_location){
        .arena = arena,
        .dtype = g->type.dtype,
        .offset = bytes,
    };
    for (int j = 0; j < g->n_stack; j++)
      x->stride[j] = dense[j] * size;
    bytes += lm_plan_aligned(lm_type_elements(m, g->type) * size);
  }
  return bytes;
}

static int64_t tensor_bytes(const lm_module *m, const lm_global *g) {
  return lm_global_stored_elements(m, g) * lm_dtype_bytes((lm_dtype)g->type.dtype);
}

// Lays out global i from `bytes` on; returns its end. Each tensor of each iteration is dense and
// aligned; a frozen parameter has the zero rows of lm_global_stored_rows behind it.
static int64_t global_lay(const lm_module *m, lm_layout *out, uint32_t i, lm_arena_id arena,
                          int64_t bytes) {
  const lm_global *g = &m->globals[i];
  int64_t one = lm_plan_aligned(tensor_bytes(m, g));
  lm_layout_location *x = &out->globals[i].value;
  *x = (lm_layout_location){
      .arena = arena,
      .dtype = (lm_dtype)g->type.dtype,
      .offset = bytes,
  };
  for (int s = g->n_stack - 1; s >= 0; s--) {
    x->stride[s] = one;
    one *= lm_axis_size(m, g->type.axis[s]);
  }
  return bytes + one;
}

// Lays out the globals of a kind consecutively; returns their bytes.
static int64_t aligned_lay(const lm_module *m, lm_layout *out, lm_global_kind kind,
                           lm_arena_id arena) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (m->globals[i].kind == kind)
      bytes = global_lay(m, out, i, arena, bytes);
  return bytes;
}

static bool is_small(const lm_module *m, const lm_global *g) {
  int64_t block = LM_BLOCK * (int64_t)sizeof(float);
  return tensor_bytes(m, g) < block;
}

// apart: the states of less than a block have a separate arena, such as the histories of
// scales, which each micro-batch reads and writes.
static void states_lay(const lm_module *m, bool apart, lm_layout *out) {
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    if (g->kind != LM_GLOBAL_STATE)
      continue;
    lm_arena_id arena = LM_ARENA_STATE;
    int64_t *bytes = &out->state_bytes;
    if (apart && is_small(m, g)) {
      arena = LM_ARENA_SMALL;
      bytes = &out->small_bytes;
    }
    *bytes = global_lay(m, out, i, arena, *bytes);
  }
}

// The location of parameter i in an arena of blocks, whose first block is `base` bytes into the
// arena.
static lm_layout_location location_of(const layer *l, uint32_t i, lm_arena_id arena, lm_dtype dtype,
                                      int64_t base) {
  int64_t size = lm_dtype_bytes(dtype);
  lm_layout_location x = {
      .arena = arena, .dtype = dtype, .offset = base + l->elements[i].offset * size};
  for (int j = 0; j < l->m->globals[i].n_stack; j++)
    x.stride[j] = l->elements[i].stride[j] * size;
  return x;
}

// wide: the elements of f32, behind which the others begin.
static void params_locate(const layer *l, int64_t wide, lm_layout *out) {
  for (uint32_t i = 0; i < l->m->n_globals; i++) {
    if (!lm_global_is_trained(&l->m->globals[i]))
      continue;
    lm_dtype dtype = (lm_dtype)l->m->globals[i].type.dtype;
    int64_t base = wide * ((int64_t)sizeof(float) - lm_dtype_bytes(dtype));
    out->globals[i] = (lm_layout_global){
        .value = location_of(l, i, LM_ARENA_PARAM, dtype, base),
        .grad = location_of(l, i, LM_ARENA_GRAD, LM_F32, 0),
        .copy = location_of(l, i, LM_ARENA_COPY, LM_BF16, out->derived_bytes), // or f16
    };
  }
}

// Adds a region for each set of axes, in the order of their first parameters.
static void regions_lay(layer *l, lm_dtype dtype, lm_arena *arena, lm_layout *out) {
  uint32_t n = (uint32_t)out->n_regions, cap = n;
  l->dtype = dtype;
  for (uint32_t i = 0; i < l->m->n_globals; i++) {
    const lm_global *g = &l->m->globals[i];
    if (g->kind != LM_GLOBAL_PARAM || l->done[i] || g->type.dtype != dtype)
      continue;
    lm_layout_region *r = &LM_PUSH(arena, out->regions, n, cap);
    l->partial = g->partial;
    int64_t elements = iteration_lay(l, NULL, 0, out->blocks * LM_BLOCK);
    *r = (lm_layout_region){g->partial, out->blocks, elements / LM_BLOCK};
    out->blocks += r->n;
  }
  out->n_regions = (int)n;
}

// `terms` globals are behind the blocks of the gradients.
static int64_t terms_lay(const lm_module *m, lm_layout *out) {
  int64_t bytes = aligned_lay(m, out, LM_GLOBAL_TERMS, LM_ARENA_GRAD);
  for (uint32_t i = 0; i < m->n_globals; i++) {
    if (m->globals[i].kind != LM_GLOBAL_TERMS)
      continue;
    out->globals[i].grad = out->globals[i].value;
    out->globals[i].grad.offset += out->blocks * LM_BLOCK * (int64_t)sizeof(float);
  }
  return bytes;
}

void lm_layout_make(const lm_module *m, const lm_plan_options *o, lm_arena *arena, lm_layout *out) {
  bool streams = o->states_on_host || o->params_on_host;
  layer l = {
      .m = m,
      .done = LM_NEW_N(arena, bool, m->n_globals + 1),
  };
  l.elements = lm_arena_alloc(arena, sizeof *l.elements * (m->n_globals + 1));
  *out = (lm_layout){.globals = LM_NEW_N(arena, lm_layout_global, m->n_globals + 1)};
  regions_lay(&l, LM_F32, arena, out);
  int64_t wide = out->blocks * LM_BLOCK;
  regions_lay(&l, LM_BF16, arena, out);
  int64_t half = out->blocks * LM_BLOCK - wide;
  out->used = out->blocks;
  if (streams && lm_chunks_fit(m) && out->blocks)
    lm_chunks_divide(out);
  int64_t padding = (out->blocks - out->used) * LM_BLOCK; // without parameters in bf16
  out->param_bytes = (wide + padding) * (int64_t)sizeof(float) + half * lm_dtype_bytes(LM_BF16);
  out->cache_bytes = dense_lay(m, out, LM_GLOBAL_CACHE, LM_ARENA_CACHE);
  out->derived_bytes = dense_lay(m, out, LM_GLOBAL_DERIVED, LM_ARENA_COPY);
  out->fixed_bytes = aligned_lay(m, out, LM_GLOBAL_FIXED, LM_ARENA_FIXED);
  states_lay(m, o->states_on_host, out);
  out->terms_bytes = terms_lay(m, out);
  params_locate(&l, wide, out);
}
