// build.c - builds a plan from a module: the layout, then for each function the walk, packing and
// the final addresses.
#include <string.h>

#include "compiler/plan/internal.h"

static void extents_collect(planner *p) {
  lm_plan *plan = p->plan;
  for (uint32_t i = 1; i < p->m->n_axes; i++) {
    const lm_axis_info *a = &p->m->axes[i];
    if (!a->dyn)
      continue;
    if (a->dyn > LM_EXTENTS) {
      LM_PLAN_ERROR(p, NULL, E701, LM_EXTENTS);
      return;
    }
    if (a->dyn > plan->n_extents)
      plan->n_extents = a->dyn;
    if (!plan->extents[a->dyn - 1].name)
      plan->extents[a->dyn - 1].name = a->name;
    if (a->size > plan->extents[a->dyn - 1].capacity)
      plan->extents[a->dyn - 1].capacity = a->size;
  }
  for (int i = 0; i < plan->n_extents; i++) {
    if (!plan->extents[i].name)
      plan->extents[i].name = "unused";
    plan->extents[i].of = p->m->extents[i].of;
    plan->extents[i].times = p->m->extents[i].times;
    plan->extents[i].capped = p->m->extents[i].most > 0;
  }
}

// The path of the parameter of a state, for index i of the stacked axes of the state.
static const char *param_of_state(const lm_module *m, const lm_global *state, int64_t i) {
  const lm_global *g = lm_global_find((lm_module *)m, state->of);
  int at = state->n_stack - 1;
  if (at < 0)
    return g->paths[0];
  int64_t inner = lm_axis_size(m, state->type.axis[at]);
  int64_t all = lm_axis_size(m, g->type.axis[at]);
  return g->paths[i / inner * all + state->first + i % inner];
}

static void dim_set(const planner *p, lm_axis axis, lm_plan_param *out, lm_plan_piece *piece,
                    int d) {
  const lm_axis_info *a = &p->m->axes[axis];
  piece->size[d] = a->size;
  if (a->whole && p->m->axes[a->whole].whole)
    LM_BUG("axis %s of %s is divided twice", a->name, out->path);
  out->by[d] = a->mesh;
  out->shape[d] = a->whole ? lm_axis_size(p->m, a->whole) : a->size;
  out->elements *= out->shape[d];
}

// The index along a stacked axis, on the rank that has it, of element *rest of the axes up to this
// one; *rest is reduced to that of the outer ones.
static int64_t instance_index(const lm_module *m, lm_axis axis, int64_t *rest, lm_plan_param *out) {
  const lm_axis_info *a = &m->axes[axis];
  int64_t size = a->whole ? lm_axis_size(m, a->whole) : a->size;
  int64_t i = *rest % size;
  *rest /= size;
  if (a->mesh)
    out->stages = a->mesh;
  if (a->mesh)
    out->stage = (int)(i / a->size);
  return i % a->size;
}

// One logical parameter per index of the stacked axes, of one piece, which is dense unless it is a
// member of a packed global. The offset of a trained one is that of its gradient.
static void params_of(planner *p, uint32_t index, lm_plan_param *list, int *n) {
  const lm_global *g = &p->m->globals[index];
  const lm_layout_global *where = &p->layout.globals[index];
  const lm_layout_location *at = g->kind == LM_GLOBAL_PARAM ? &where->grad : &where->value;
  int64_t unit = lm_dtype_bytes(at->dtype);
  for (int64_t i = 0; i < g->n_paths; i++) {
    lm_plan_param *out = &list[(*n)++];
    lm_plan_piece *piece = LM_NEW(p->arena, lm_plan_piece);
    *out = (lm_plan_param){
        .path = g->paths[i],
        .dtype = (uint8_t)where->value.dtype,
        .arena = (uint8_t)where->value.arena,
        .added = g->added,
        .value_of = g->is_param ? param_of_state(p->m, g, i) : NULL,
        .elements = 1,
        .pieces = piece,
        .n_pieces = 1,
        .rank = g->type.rank - g->n_stack,
        .init = (uint8_t)g->init[i].kind,
        .init_a = g->init[i].a,
        .init_b = g->init[i].b,
    };
    piece->offset = at->offset / unit;
    int64_t rest = i;
    for (int s = g->n_stack - 1; s >= 0; s--)
      piece->offset += instance_index(p->m, g->type.axis[s], &rest, out) * at->stride[s] / unit;
    lm_global_strides(p->m, g, piece->stride);
    for (int d = 0; d < out->rank; d++)
      dim_set(p, g->type.axis[g->n_stack + d], out, piece, d);
  }
}

static int64_t paths_count(const lm_module *m, lm_global_kind kind) {
  int64_t n = 0;
  for (uint32_t i = 0; i < m->n_globals; i++)
    n += m->globals[i].kind == kind ? m->globals[i].n_paths : 0;
  return n;
}

// The states of single parameters, and those of none, are behind the states of all blocks.
static void own_states_locate(planner *p) {
  const lm_func *f = lm_func_get(p->m, LM_FUNC_UPDATE, 0);
  int64_t offset = 0;
  for (uint32_t i = 0; f && i < f->body->n_args; i++) {
    const lm_value *v = f->body->args[i];
    bool is_state = lm_type_is_blocks(p->m, v->type) && lm_port_find(v->name) == LM_PORTS;
    offset += is_state ? p->layout.blocks * LM_BLOCK * (int64_t)sizeof(float) : 0;
  }
  for (uint32_t i = 0; i < p->m->n_globals; i++) {
    lm_layout_location *at = &p->layout.globals[i].value;
    if (p->m->globals[i].kind == LM_GLOBAL_STATE && at->arena == LM_ARENA_STATE)
      at->offset += offset;
  }
}

static void params_collect(planner *p) {
  lm_plan *plan = p->plan;
  plan->params = LM_NEW_N(p->arena, lm_plan_param, paths_count(p->m, LM_GLOBAL_PARAM));
  plan->frozen = LM_NEW_N(p->arena, lm_plan_param, paths_count(p->m, LM_GLOBAL_FIXED));
  plan->states = LM_NEW_N(p->arena, lm_plan_param, paths_count(p->m, LM_GLOBAL_STATE));
  for (uint32_t i = 0; i < p->m->n_globals; i++) {
    const lm_global *g = &p->m->globals[i];
    if (g->kind == LM_GLOBAL_FIXED)
      params_of(p, i, plan->frozen, &plan->n_frozen);
    if (g->kind == LM_GLOBAL_STATE)
      params_of(p, i, plan->states, &plan->n_own_states);
    if (g->kind != LM_GLOBAL_PARAM)
      continue;
    if (g->type.dtype != LM_F32 && g->type.dtype != LM_BF16)
      LM_PLAN_ERROR(p, NULL, E704, g->name, lm_dtype_name(g->type.dtype));
    params_of(p, i, plan->params, &plan->n_params);
  }
  p->plan->n_blocks = (int)p->layout.blocks;
}

static void mesh_collect(planner *p) {
  const lm_mesh *m = &p->m->mesh;
  p->plan->mesh.n = m->n;
  for (int k = 0; k < m->n; k++) {
    p->plan->mesh.axis[k].name = m->axis[k].name;
    p->plan->mesh.axis[k].size = m->axis[k].size;
    p->plan->mesh.axis[k].rows = m->axis[k].rows;
    p->plan->mesh.axis[k].positions = m->axis[k].positions;
    p->plan->mesh.axis[k].balanced = m->axis[k].balanced;
    p->plan->mesh.axis[k].rank = -1;
  }
}

static void fixed_make(planner *p) {
  for (int i = 0; i < LM_ARENAS; i++) {
    p->fixed[i] = LM_NEW(p->arena, storage);
    *p->fixed[i] = (storage){
        .arena = (uint8_t)i,
        .live = -1,
        .last = -1,
        .depth = 0,
    };
  }
}

static lm_plan_buf buf_make(const ref *r) {
  ref at = lm_storage_resolve(r->at);
  lm_plan_buf b = {
      .arena = at.at->arena,
      .live = at.at->live,
      .offset = at.at->offset + at.offset + r->offset,
      .bytes = r->bytes,
  };
  for (int d = 0; d < LM_PLAN_DEPTH; d++) {
    b.stride[d] = at.loop[d] + r->loop[d];
    b.ring[d] = r->ring[d];
  }
  return b;
}

static void steps_finish(planner *p, lm_plan_func *out) {
  out->steps = LM_NEW_N(p->arena, lm_plan_step, p->n_steps);
  out->n_steps = (int)p->n_steps;
  for (uint32_t i = 0; i < p->n_steps; i++) {
    lm_plan_step *s = &out->steps[i];
    *s = p->steps[i].step;
    s->bufs = LM_NEW_N(p->arena, lm_plan_buf, s->n_bufs);
    for (int b = 0; b < s->n_bufs; b++)
      s->bufs[b] = buf_make(&p->steps[i].refs[b]);
  }
}

// Makes the steps of a function, up to those that depend on others of the step.
static void func_walk(planner *p, lm_func *f) {
  bool reduces = f->key.id == LM_FUNC_REDUCE;
  if (reduces)
    lm_reduce_begin(p, f);
  uint32_t n = p->m->n_values + 1;
  p->f = f;
  p->locations = LM_NEW_N(p->arena, location, n);
  p->last_use = LM_NEW_N(p->arena, uint32_t, n);
  p->uses = LM_NEW_N(p->arena, uint32_t, n);
  p->in_memory = LM_NEW_N(p->arena, bool, n);
  p->steps = NULL;
  p->n_steps = p->cap_steps = 0;
  p->storages = NULL;
  p->depth = 0;
  lm_func_walk(p);
  if (reduces)
    lm_reduce_steps(p);
  if (p->failed)
    return;
  lm_steps_initialize(p);
  lm_steps_code(p);
  lm_steps_join(p);
  lm_steps_prologues(p);
  lm_steps_bucket(p);
  lm_steps_merge(p);
}

static void func_finish(planner *p) {
  lm_plan_func *out = &p->plan->funcs[p->plan->n_funcs - 1];
  lm_steps_offload(p);
  out->every = out->key.extra ? p->o->extra_every : 0;
  lm_storage_pack(p, out);
  steps_finish(p, out);
  if (out->work_bytes > p->plan->arena_bytes[LM_ARENA_WORK])
    p->plan->arena_bytes[LM_ARENA_WORK] = out->work_bytes;
  if (p->stash_bytes > p->plan->arena_bytes[LM_ARENA_STASH])
    p->plan->arena_bytes[LM_ARENA_STASH] = p->stash_bytes;
}

static void func_plan(planner *p, lm_func *f) {
  func_walk(p, f);
  if (p->failed)
    return;
  lm_steps_overlap(p);
  if (f->key.id == LM_FUNC_MICRO)
    lm_last_keep(p);
  func_finish(p);
}

// ---- @micro_last

// Its arguments and results are those of @micro.
static void last_describe(planner *p, const lm_plan_func *micro, lm_plan_func *out) {
  char name[LM_FUNC_NAME];
  out->key = micro->key;
  out->key.id = LM_FUNC_MICRO_LAST;
  out->name = lm_arena_printf(p->arena, "%s", lm_func_key_print(out->key, name));
  out->in = micro->in;
  out->n_in = micro->n_in;
  out->out = micro->out;
  out->n_out = micro->n_out;
}

// False: the function is not worth it, or cannot be made.
static bool last_plan(planner *p, const draft *d, lm_func *reduce) {
  func_walk(p, reduce);
  bool made = !p->failed && lm_last_join(p, d);
  if (made) {
    last_describe(p, d->micro, &p->plan->funcs[p->plan->n_funcs - 1]);
    func_finish(p);
  } else {
    p->plan->n_funcs--;
  }
  return made;
}

static void func_remove(lm_plan *plan, lm_func_id id) {
  int n = 0;
  for (int i = 0; i < plan->n_funcs; i++)
    if (plan->funcs[i].key.id != id)
      plan->funcs[n++] = plan->funcs[i];
  plan->n_funcs = n;
}

// Makes @micro_last of each @micro, and removes @reduce if all have one.
static void lasts_plan(planner *p, lm_func *reduce) {
  bool all = p->n_drafts != 0;
  p->cuts = true;
  for (uint32_t i = 0; i < p->n_drafts && !p->failed; i++)
    all &= last_plan(p, &p->drafts[i], reduce);
  if (all)
    func_remove(p->plan, LM_FUNC_REDUCE);
}

static void arenas_size(planner *p) {
  int64_t elements = p->layout.blocks * LM_BLOCK;
  int64_t all = elements * (int64_t)sizeof(float); // of gradients, or of a state
  int64_t *bytes = p->plan->arena_bytes;
  p->plan->n_states = (int)p->n_states;
  bytes[LM_ARENA_PARAM] = p->layout.param_bytes;
  bytes[LM_ARENA_GRAD] = p->has_gradients ? all + p->layout.terms_bytes : 0;
  bytes[LM_ARENA_STATE] = all * p->plan->n_states + p->layout.state_bytes;
  bytes[LM_ARENA_SMALL] = p->layout.small_bytes;
  bytes[LM_ARENA_IO] = p->io_bytes;
  bytes[LM_ARENA_CACHE] = p->layout.cache_bytes;
  bytes[LM_ARENA_FIXED] = p->layout.fixed_bytes;
  bytes[LM_ARENA_COPY] =
      p->layout.derived_bytes + (p->has_copies ? elements * lm_dtype_bytes(LM_BF16) : 0);
}

lm_plan *lm_plan_build(lm_module *m, const lm_plan_options *o) {
  planner p = {
      .m = m,
      .o = o,
      .codegen = o->codegen,
      .arena = m->arena,
      .plan = LM_NEW(m->arena, lm_plan),
  };
  p.plan->prelude = o->codegen->prelude(p.arena);
  p.plan->on_host[LM_ARENA_STATE] = o->states_on_host;
  p.plan->on_host[LM_ARENA_PARAM] = o->params_on_host;
  p.plan->on_host[LM_ARENA_STASH] = true;
  lm_layout_make(m, o, p.arena, &p.layout);
  if (m->blocks)
    m->axes[m->blocks].size = p.layout.used;
  own_states_locate(&p);
  fixed_make(&p);
  mesh_collect(&p);
  extents_collect(&p);
  params_collect(&p);
  int n = 0;
  for (lm_func *f = m->funcs; f; f = f->next)
    n++;
  p.plan->funcs = LM_NEW_N(p.arena, lm_plan_func, 2 * n + 1); // and @reduce, and each @micro_last
  for (lm_func *f = m->funcs; f && !p.failed; f = f->next)
    func_plan(&p, f);
  lm_func *reduce = p.failed ? NULL : lm_reduce_func(&p);
  if (reduce)
    func_plan(&p, reduce);
  else
    reduce = lm_func_get(m, LM_FUNC_REDUCE, 0);
  if (reduce && !p.failed)
    lasts_plan(&p, reduce);
  arenas_size(&p);
  lm_kernels_prune(p.plan);
  lm_plan_funcs_bind(p.plan);
  return p.failed ? NULL : p.plan;
}
