// nest.c - one pass of a kernel as loops over the threads of a team.
//
//   elementwise and full reductions   for each vector, strided: load, compute, store; s += x
//                                     h = reduction of s over the team
//   partial sums, many kept points    for each kept point, strided: s = 0
//                                       for each summed point: s += x
//                                       store s
//   partial sums, contiguous terms    for each kept point, strided over thread groups: s = 0
//                                       for each vector of summed points, strided in the group
//                                       store the reduction of s over the group
//   partial sums, few kept points     for each kept point: s = 0
//                                       for each summed point, strided: s += x
//                                       store the reduction of s over the team
//
// Partial sums keep axes; a kept point is a point of the kept axes.
#include <string.h>
#include "codegen/cuda/emit.h"

// ---- text after the loops of a level

static void after(cuda_emit *e, int level, const char *fmt, ...) LM_PRINTF(3, 4);
static void after(cuda_emit *e, int level, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&e->g.level[level].after, fmt, ap);
  va_end(ap);
  lm_buf_puts(&e->g.level[level].after, "\n");
}

void cuda_team_sync(const cuda_emit *e, lm_buf *b) {
  if (e->form == CUDA_FLAT || e->team == 1)
    return;
  lm_buf_puts(b, e->team > CUDA_WARP ? "lm_barrier();\n" : "lm_warp_sync(mask);\n");
}

// ---- results

void cuda_store(cuda_emit *e, uint32_t i, lm_type t, const lm_ix *ix, const char *x, int level) {
  lm_ix at = lm_gen_result_index(&e->g, i, t, ix), rest;
  const char *index = lm_gen_index(&e->g, &at, true);
  if (level == e->n_stages && cuda_transpose_store(e, i, &at, x))
    return;
  cuda_count_sectors(e, (lm_dtype)t.dtype, &at, level, true);
  if (e->rows || level != e->n_stages || !cuda_in_vectors(e, &at, &rest)) {
    cuda_element_put(e, i, index, lm_gen_store_text(e->g.arena, t.dtype, x), level);
    return;
  }
  const char *name = lm_gen_temp_name(&e->g, "y");
  int width = e->width[e->g.pass];
  lm_gen_statement(&e->g, level - 1, "%s %s[%d];", lm_gen_register_type(t.dtype), name, width);
  if (e->gemm) // a pair is rounded by one instruction and stored by another
    lm_gen_count(&e->g, level - 1, -1, NULL);
  lm_gen_statement(&e->g, level, "%s[%s] = %s;", name, e->g.vars.v[e->vector].name, x);
  after(e, level - 1, "lm_store%d_%s(r%u + (%s), %s);", width, lm_dtype_name(t.dtype), i,
        cuda_printed(e, &rest), name);
}

// Stores x to the results that the root defines; a summed result adds it to the sum of its chunk.
static void store_results(cuda_emit *e, const cuda_root *r, const char *x, const lm_ix *ix,
                          int level) {
  const lm_op *yield = lm_kernel_yield(e->g.kernel);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    if (!lm_schedule_writes(e->g.s, (lm_root){r->v, r->copy}, i))
      continue;
    if (lm_kernel_result_summed(e->g.kernel, i))
      cuda_sum_add(e, level, i, r->v->type, ix, x);
    else
      cuda_store(e, i, r->v->type, ix, x, level);
  }
}

// ---- reductions

static bool partial(const cuda_emit *e) {
  return e->roots[0].reduces && lm_kernel_inner(e->g.kernel, e->roots[0].v->type).rank;
}
static bool scattering(const cuda_root *r) {
  return r->reduces && r->v->def->code == LM_OP_SCATTER;
}

static void accumulate(cuda_emit *e, int level, const lm_value *v, const char *to, const char *x) {
  if (v->def->code == LM_OP_MAX)
    lm_gen_statement(&e->g, level, "%s = %s > %s ? %s : %s;", to, x, to, x, to);
  else if (v->type.dtype == LM_INT)
    lm_gen_statement(&e->g, level, "%s = lm_iadd(%s, %s);", to, to, x);
  else
    lm_gen_statement(&e->g, level, "%s += %s;", to, x);
  if (v->def->code == LM_OP_SUM)
    lm_gen_count_addition(&e->g, x, level);
}

static const char *team_reduced(cuda_emit *e, const cuda_root *r) {
  const char *op = r->v->def->code == LM_OP_MAX ? "max" : "sum";
  const char *type = lm_gen_register_type(r->v->type.dtype);
  const char *kind = !strcmp(type, "float") ? "f32" : !strcmp(type, "double") ? "f64" : "int";
  int lanes = partial(e) ? cuda_stage_lanes(e, 1) : e->team;
  if (lanes == 1)
    return r->acc;
  if (lanes > CUDA_WARP)
    return lm_arena_printf(e->g.arena, "lm_block_%s_%s(%s, partials)", op, kind, r->acc);
  const char *mask =
      lanes == e->team ? "mask" : lm_arena_printf(e->g.arena, "lm_team_mask(%d)", lanes);
  return lm_arena_printf(e->g.arena, "lm_team_%s_%s(%s, %s, %d)", op, kind, r->acc, mask, lanes);
}

static void scalars_begin(cuda_emit *e) {
  for (int i = 0; i < e->n_roots; i++) {
    cuda_root *r = &e->roots[i];
    if (!r->reduces || scattering(r))
      continue;
    r->acc = lm_gen_temp_name(&e->g, "s");
    lm_gen_statement(&e->g, e->g.open, "%s %s = %s;", lm_gen_register_type(r->v->type.dtype),
                     r->acc, lm_gen_identity(e->g.arena, r->v));
  }
}

// Ends a partial sum: one thread writes the reduction of a kept point to its row or result.
static void partial_end(cuda_emit *e) {
  const cuda_root *r = &e->roots[0];
  const lm_node *n = lm_schedule_node(e->g.s, r->v);
  lm_ix ix[LM_RANK];
  lm_gen_loop_indices(&e->g, r->v->type, ix);
  lm_buf saved = e->g.level[1].before;
  e->g.level[1].before = e->g.level[1].after;
  const char *x = r->acc;
  bool group = e->stages[1].lanes != 0;
  bool shared = group || (!e->stages[0].strided && e->team > 1);
  if (shared) {
    x = lm_gen_temp_name(&e->g, "v");
    lm_gen_statement(&e->g, 1, "const %s %s = %s;", lm_gen_register_type(r->v->type.dtype), x,
                     team_reduced(e, r));
    lm_gen_statement(&e->g, 1, "if (%s == 0) {", cuda_lane_of(e, 1));
  }
  if (n->held == LM_HELD_ROW)
    cuda_row_put(e, 1, r->v, ix, x);
  else
    cuda_store(e, (uint32_t)n->slot, r->v->type, ix, x, 1);
  if (shared)
    lm_gen_statement(&e->g, 1, "}");
  e->g.level[1].after = e->g.level[1].before;
  e->g.level[1].before = saved;
}

static void full_end(cuda_emit *e) {
  for (int i = 0; i < e->n_roots; i++) {
    cuda_root *r = &e->roots[i];
    if (e->online && i == 1)
      r->acc = cuda_online_sum(e);
    if (r->reduces && !scattering(r))
      after(e, 0, "const %s h%u = %s;", lm_gen_register_type(r->v->type.dtype), r->v->def->mark,
            team_reduced(e, r));
  }
}

// ---- the innermost body

// One thread owns the point, so it may add at any index.
static void leaf_scatter(cuda_emit *e, const cuda_root *r) {
  const lm_op *op = r->v->def;
  lm_ix ix[LM_RANK], at[LM_RANK];
  lm_gen_loop_indices(&e->g, op->in[0]->type, at);
  lm_gen_text x = lm_gen_pull(&e->g, op->in[0], at);
  lm_gen_loop_indices(&e->g, op->in[1]->type, at);
  lm_gen_text i = lm_gen_pull(&e->g, op->in[1], at);
  lm_gen_loop_indices(&e->g, r->v->type, ix);
  const lm_axis_info *a = &e->g.m->axes[op->attr.axes[0]];
  const char *n = lm_gen_extent(&e->g, a->size, a->dyn, 1);
  const char *clamped = lm_arena_printf(e->g.arena, "lm_clamp(%s, %s)", i.text, n);
  ix[lm_type_find(r->v->type, op->attr.axes[0])] =
      lm_ix_var(&e->g.vars, lm_gen_temp_index(&e->g, clamped, i.level, a->size, 0));
  const char *location = lm_gen_dense_offset(&e->g, r->v->type, ix, r->v->type);
  const lm_node *node = lm_schedule_node(e->g.s, r->v);
  lm_gen_statement(&e->g, e->n_stages, "r%d[%s] += %s;", node->slot, location, x.text);
}

static void leaf(cuda_emit *e) {
  for (int i = 0; i < e->n_roots; i++) {
    cuda_root *r = &e->roots[i];
    lm_ix ix[LM_RANK];
    if (scattering(r)) {
      leaf_scatter(e, r);
      continue;
    }
    const lm_value *v = r->reduces ? r->v->def->in[0] : r->v;
    lm_gen_loop_indices(&e->g, v->type, ix);
    lm_gen_text x = lm_gen_pull(&e->g, v, ix);
    if (r->reduces)
      accumulate(e, e->n_stages, r->v, r->acc, x.text);
    else
      store_results(e, r, x.text, ix, e->n_stages);
  }
}

// ---- loops

static void level_open(cuda_emit *e, int k) {
  lm_gen_level_open(&e->g, k);
  if (k == (partial(e) ? 1 : 0))
    scalars_begin(e);
}

// Closes level k and returns its text.
static const char *level_close(cuda_emit *e, int k) {
  bool scatter = scattering(&e->roots[0]);
  if (partial(e) && k == 1 && !scatter)
    partial_end(e);
  if (!partial(e) && k == 0)
    full_end(e);
  return lm_gen_level_close(&e->g, k);
}

void cuda_decode(cuda_emit *e, const cuda_axis *axes, int n, const char *from, lm_buf *b) {
  const char *type = e->g.target->index;
  if (n > 1)
    lm_buf_printf(b, "%s q = %s;\n", type, from);
  for (int i = n - 1; i >= 0; i--) {
    const lm_var *v = &e->g.vars.v[axes[i].var];
    lm_buf_printf(b, "const %s %s = ", type, v->name);
    if (v->lo)
      lm_buf_printf(b, "%lld + ", (long long)v->lo);
    if (i)
      lm_buf_printf(b, "q %% %s;\nq /= %s;\n", axes[i].extent, axes[i].extent);
    else
      lm_buf_printf(b, "%s;\n", n > 1 ? "q" : from);
  }
}

// The loops of stage k that are not merged into another and run more than once.
static int stage_axes(cuda_emit *e, int k, cuda_axis *out) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int n = 0;
  for (int i = 0; i < d->n; i++) {
    const lm_gen_loop *a = &d->loop[i];
    const lm_var *v = &e->g.vars.v[a->var];
    if (e->stage_of[i] != k || a->merge || (v->hi - v->lo == 1 && !a->dyn))
      continue;
    int64_t times = 1;
    int first = i;
    for (; first > 0 && d->loop[first - 1].merge; first--)
      times *= d->loop[first].size;
    bool complete = first < i || a->dyn;
    const lm_gen_loop *front = &d->loop[first];
    out[n].var = a->var;
    out[n++].extent = complete ? lm_gen_extent(&e->g, front->size, front->dyn, times)
                               : lm_gen_extent(&e->g, v->hi - v->lo, 0, 1);
  }
  return n;
}

// ---- loops over the grid

void cuda_flat_begin(cuda_emit *e) {
  cuda_flat_free(e);
  e->n_loops = 0;
}

void cuda_flat_free(cuda_emit *e) {
  for (uint32_t i = 0; i < e->n_loops; i++)
    lm_buf_free(&e->loops[i].bodies);
}

void cuda_flat_put(const cuda_emit *e, lm_buf *b) {
  for (uint32_t i = 0; i < e->n_loops; i++) {
    lm_buf_puts(b, e->loops[i].head);
    lm_buf_add(b, e->loops[i].bodies.p, e->loops[i].bodies.n);
    lm_buf_puts(b, "}\n");
  }
}

static cuda_flat_loop *flat_loop(cuda_emit *e, const char *head) {
  for (uint32_t i = 0; i < e->n_loops; i++)
    if (!strcmp(e->loops[i].head, head))
      return &e->loops[i];
  cuda_flat_loop *l = &LM_PUSH(e->g.arena, e->loops, e->n_loops, e->cap_loops);
  *l = (cuda_flat_loop){
      .head = head,
      .counted = LM_NEW_N(e->g.arena, double, e->g.s->n_nodes + 1),
  };
  return l;
}

// A strided loop of the flat form: over the grid.
static void write_flat(cuda_emit *e, int k, const cuda_axis *axes, int n, const char *body) {
  const char *type = e->g.target->index;
  const char *head = n ? lm_arena_printf(e->g.arena, "for (%s p = first; p < %s; p += step) {\n",
                                         type, cuda_axes_product(e, axes, n))
                       : "if (first == 0) {\n";
  cuda_flat_loop *l = flat_loop(e, head);
  cuda_count_shared(e, l);
  cuda_count_loop(e, k, n, 1);
  double elements = cuda_trips(e, k) * e->width[e->g.pass];
  if (elements > l->elements) {
    l->elements = elements;
    l->width = e->width[e->g.pass];
  }
  lm_buf_puts(&l->bodies, "{\n");
  if (n)
    cuda_decode(e, axes, n, "p", &l->bodies);
  lm_buf_printf(&l->bodies, "%s}\n", body);
}

// Of stage 0.
static cuda_rounds rounds_of(cuda_emit *e) {
  cuda_axis axes[LM_GEN_LOOPS];
  cuda_rounds none = {0};
  bool whole_team = e->stages[0].strided && !e->stages[0].lanes;
  int n_axes = stage_axes(e, 0, axes);
  if (e->form == CUDA_FLAT || e->team == 1 || !whole_team || !n_axes)
    return none;
  int n = cuda_team_rounds(e, 0);
  if (!n || (n_axes == 1 && e->g.vars.v[axes[0].var].lo))
    return none;
  const char *name = n_axes == 1 ? e->g.vars.v[axes[0].var].name : "p";
  lm_buf head = {0};
  if (e->g.kernel->attr.n_to)
    cuda_team_head(e, 0, name, cuda_axes_product(e, axes, n_axes), true, &head);
  if (e->g.kernel->attr.n_to && n_axes > 1)
    cuda_decode(e, axes, n_axes, "p", &head);
  return (cuda_rounds){
      .head = lm_gen_take(&e->g, &head),
      .index = name,
      .n = n,
  };
}

static void write_loop(cuda_emit *e, int k, const char *body) {
  cuda_axis axes[LM_GEN_LOOPS];
  int n = stage_axes(e, k, axes);
  lm_buf *out = &e->g.level[k].loops;
  const char *type = e->g.target->index;
  bool strided = e->stages[k].strided && (e->form == CUDA_FLAT || e->team > 1);
  if (strided && e->form == CUDA_FLAT) {
    write_flat(e, k, axes, n, body);
    return;
  }
  if (!n) {
    if (strided)
      lm_buf_printf(out, "if (%s == 0) {\n%s}\n", cuda_lane_of(e, k), body);
    else
      lm_buf_printf(out, "{\n%s}\n", body);
    return;
  }
  const lm_var *v = &e->g.vars.v[axes[0].var];
  bool direct = n == 1 && !v->lo;
  const char *name = direct ? v->name : "p";
  bool alone = e->form == CUDA_TEAM && e->team == 1 && k + 1 == e->n_stages;
  if (!e->stages[k].vector && !e->stages[k].unrolled)
    cuda_count_loop(e, k, n, alone ? CUDA_UNROLLED : 1);
  if (e->stages[k].vector || e->stages[k].unrolled)
    lm_buf_puts(out, "LM_UNROLL\n");
  else if (alone)
    // Unrolled, so that the loads of a thread do not wait for each other.
    lm_buf_printf(out, "LM_UNROLL_%d\n", CUDA_UNROLLED);
  if (strided)
    cuda_team_head(e, k, name, cuda_axes_product(e, axes, n), !k && e->rounds.indexed, out);
  else
    lm_buf_printf(out, "for (%s %s = 0; %s < %s; %s++) {\n", type, name, name,
                  cuda_axes_product(e, axes, n), name);
  if (!direct)
    cuda_decode(e, axes, n, "p", out);
  lm_buf_printf(out, "%s}\n", body);
}

static void emit_stage(cuda_emit *e, int k);

static void emit_run(cuda_emit *e, int k) {
  if (!k)
    e->rounds = rounds_of(e);
  level_open(e, k + 1);
  emit_stage(e, k + 1);
  const char *body = level_close(e, k + 1);
  lm_gen_forget(&e->g, k + 1);
  e->n_loaded = 0;
  write_loop(e, k, body);
}

// Writes stage k once for each combination of the ranges into which its loops are partitioned.
static void emit_pieces(cuda_emit *e, int k, int loop) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  while (loop < d->n && (e->stage_of[loop] != k || !d->loop[loop].n_partitions))
    loop++;
  if (loop == d->n) {
    emit_run(e, k);
    return;
  }
  const lm_gen_loop *a = &d->loop[loop];
  for (int c = 0; c <= a->n_partitions; c++) {
    lm_var *v = &e->g.vars.v[a->var];
    v->lo = c ? a->partition[c - 1] : 0;
    v->hi = c < a->n_partitions ? a->partition[c] : a->size;
    emit_pieces(e, k, loop + 1);
  }
  e->g.vars.v[a->var].lo = 0;
  e->g.vars.v[a->var].hi = a->size;
}

static void emit_stage(cuda_emit *e, int k) {
  if (k == e->n_stages)
    (e->online ? cuda_online_leaf : leaf)(e);
  else
    emit_pieces(e, k, 0);
}

// ---- passes

static void stages_plain(cuda_emit *e) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  bool vector = e->width[e->g.pass] > 1;
  for (int i = 0; i < d->n; i++)
    e->stage_of[i] = 0;
  e->stages[0] = (cuda_stage){.strided = true};
  e->n_stages = 1 + vector;
  if (cuda_transpose_stages(e) || !vector)
    return;
  e->stage_of[d->n - 1] = 1;
  e->stages[1] = (cuda_stage){.vector = true};
}

// Thread groups of the team have a kept point each.
static void stages_grouped(cuda_emit *e) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int group = e->group[e->g.pass];
  bool vector = e->width[e->g.pass] > 1;
  double kept = 1;
  for (int i = 0; i < d->n; i++) {
    e->stage_of[i] = lm_type_find(e->roots[0].v->type, d->loop[i].axis) < 0;
    kept *= e->stage_of[i] ? 1 : (double)d->loop[i].size;
  }
  while (group < CUDA_WARP && kept * group < e->team)
    group *= 2; // no kept point for some thread groups
  group = group < e->team ? group : e->team;
  if (vector)
    e->stage_of[d->n - 1] = 2;
  e->stages[0] = (cuda_stage){
      .strided = true,
      .lanes = e->team / group,
  };
  e->stages[1] = (cuda_stage){
      .strided = true,
      .lanes = group,
  };
  e->stages[2] = (cuda_stage){.vector = true};
  e->n_stages = 2 + vector;
}

static void stages_partial(cuda_emit *e) {
  if (e->group[e->g.pass] && e->team > 1) {
    stages_grouped(e);
    return;
  }
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  const cuda_root *r = &e->roots[0];
  double kept = 1, summed = 1;
  for (int i = 0; i < d->n; i++) {
    e->stage_of[i] = !scattering(r) && lm_type_find(r->v->type, d->loop[i].axis) < 0;
    *(e->stage_of[i] ? &summed : &kept) *= (double)d->loop[i].size;
  }
  bool many = cuda_kept_are_many(e, kept, summed);
  e->stages[0] = (cuda_stage){.strided = many};
  e->stages[1] = (cuda_stage){.strided = !many};
  e->n_stages = scattering(r) ? 1 : 2;
}

static void declare_vars(cuda_emit *e) {
  lm_gen_domain *d = &e->g.domains[e->g.pass];
  e->vector = 0;
  for (int i = 0; i < d->n; i++) {
    lm_gen_loop *a = &d->loop[i];
    const char *name = lm_arena_printf(e->g.arena, "i_%s", a->name);
    a->var = lm_var_add(&e->g.vars, (lm_var){.kind = LM_VAR_LOOP,
                                             .name = name,
                                             .size = a->size,
                                             .dyn = a->dyn,
                                             .hi = a->size,
                                             .level = e->stage_of[i] + 1});
    if (e->stages[e->stage_of[i]].vector)
      e->vector = a->var;
  }
  for (int i = d->n - 2; i >= 0; i--)
    if (d->loop[i].merge) {
      lm_var *to = &e->g.vars.v[d->loop[i + 1].var];
      e->g.vars.v[d->loop[i].var].into = to->into ? to->into : d->loop[i + 1].var;
    }
}

// The thread of a scatter first clears its part of the table.
static void scatter_clear(cuda_emit *e) {
  const lm_value *v = e->roots[0].v;
  lm_type inner = lm_kernel_inner(e->g.kernel, v->type);
  lm_ix ix[LM_RANK];
  lm_buf *b = &e->g.level[0].before;
  for (int i = 0; i < v->type.rank; i++) {
    ix[i] = lm_gen_axis_index(&e->g, v->type.axis[i]);
    if (lm_type_find(inner, v->type.axis[i]) < 0)
      continue;
    const lm_axis_info *a = &e->g.m->axes[v->type.axis[i]];
    const char *z = lm_gen_temp_name(&e->g, "z");
    ix[i] = lm_ix_var(&e->g.vars, lm_var_add(&e->g.vars, (lm_var){.kind = LM_VAR_TEMP,
                                                                  .name = z,
                                                                  .size = a->size,
                                                                  .dyn = a->dyn,
                                                                  .hi = a->size}));
    lm_buf_printf(b, "for (%s %s = 0; %s < %s; %s++) {\n", e->g.target->index, z, z,
                  lm_gen_extent(&e->g, a->size, a->dyn, 1), z);
  }
  lm_gen_statement(&e->g, 0, "r%d[%s] = 0;", lm_schedule_node(e->g.s, v)->slot,
                   lm_gen_dense_offset(&e->g, v->type, ix, v->type));
  for (int i = 0; i < inner.rank; i++)
    lm_buf_puts(b, "}\n");
}

static void roots_add(cuda_emit *e, const lm_sched_pass *p) {
  if (e->n_roots + p->n_roots > LM_COUNT(e->roots))
    LM_BUG("a pass of more than %d roots", (int)LM_COUNT(e->roots));
  for (uint32_t i = 0; i < p->n_roots; i++) {
    lm_root r = p->roots[i];
    e->roots[e->n_roots++] = (cuda_root){
        .v = r.v, .copy = r.copy, .reduces = r.v->def && !r.copy && lm_op_is_reduction(r.v->def)};
  }
}

void cuda_pass_emit(cuda_emit *e, int pass) {
  const lm_sched_pass *p = &e->g.s->passes[pass];
  if (cuda_online_is(e, pass))
    return;
  e->g.pass = pass;
  e->n_roots = 0;
  e->online = pass && cuda_online_is(e, pass - 1);
  if (e->online)
    roots_add(e, p - 1);
  roots_add(e, p);
  if (partial(e))
    stages_partial(e);
  else
    stages_plain(e);
  declare_vars(e);
  int before = pass - 1 - e->online;
  if (before >= 0 && e->form == CUDA_TEAM && p->depth > e->g.s->passes[before].depth)
    cuda_team_sync(e, &e->g.body);
  level_open(e, 0);
  if (scattering(&e->roots[0]))
    scatter_clear(e);
  emit_stage(e, 0);
  lm_buf_puts(&e->g.body, level_close(e, 0));
  lm_gen_forget(&e->g, 1);
  e->g.done[pass] = e->form == CUDA_TEAM;
  if (e->online)
    e->g.done[pass - 1] = true;
}
