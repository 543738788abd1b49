// nest.c - one pass of a kernel as loops.
//
// Level 0 is the point, level k the body of the k-th loop. Each level has statements before its
// loops, the loops, and statements after them. Kept loops run over the axes of a reduction's
// result. A reduction accumulates in partial results of the last kept loop (prelude/partial.h) if
// all reduced loops are inside of it, else in memory that is first filled with the identity
// element.
//
//   sum over e of [g, e]            sum over g of [g, e]
//     for g                           for e: h[e] = 0
//       s[32] = 0                     for g
//       for e: s[e % 32] += v           for e: h[e] += v
//       h[g] = sum of s
//
// If each index of the loop around the innermost one has its own body, as the halves of rotary
// positions, the bodies are written side by side in the innermost loop, where they share loads.
#include <string.h>
#include "codegen/cpu/emit.h"

enum {
  // Elements that are added in float32 before the sum continues in double.
  LONG_SUM = 2048,
  // Bodies that are written side by side.
  BODIES = 4
};

// ---- locations of results

static const char *held_location(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  const lm_node *n = lm_schedule_node(e->g.s, v);
  if (n->held == LM_HELD_RESULT)
    return lm_arena_printf(e->g.arena, "r%d[%s]", n->slot,
                           lm_gen_dense_offset(&e->g, v->type, ix, v->type));
  return lm_arena_printf(e->g.arena, "h%d[%s]", n->op->mark, cpu_row_offset(e, v, ix));
}

// The variable of the innermost loop; 0 outside of loops.
static uint16_t innermost_var(const cpu_emit *e) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  if (e->n_lane_groups)
    return cpu_group_var(e, e->n_groups - 1);
  return d->n ? d->loop[d->n - 1].var : 0;
}

// Stores x to result i; bf16 results that are contiguous along the innermost loop by strips.
static void store_result(cpu_emit *e, uint32_t i, lm_type t, lm_gen_text x, const lm_ix *ix,
                         int level) {
  lm_ix at = lm_gen_dense_index(&e->g, t, ix, t);
  const char *to = lm_arena_printf(e->g.arena, "r%u[%s]", i, lm_gen_index(&e->g, &at, true));
  uint16_t var = innermost_var(e);
  if (t.dtype != LM_BF16 || !var || lm_ix_coef(&at, var) != 1) {
    lm_gen_statement(&e->g, level, "%s = %s;", to, lm_gen_store_text(e->g.arena, t.dtype, x.text));
    return;
  }
  cpu_strip_store s = {lm_gen_temp_name(&e->g, "o"), to};
  LM_PUSH(e->g.arena, e->stores, e->n_stores, e->cap_stores) = s;
  lm_gen_statement(&e->g, level, "LM_BF16_STORE(%s, %s, %s)", s.name, to, x.text);
}

// Stores x to the results that the root defines; a summed result adds it to the sum of its chunk.
static void store_results(cpu_emit *e, const cpu_root *r, lm_gen_text x, const lm_ix *ix,
                          int level) {
  const lm_op *yield = lm_kernel_yield(e->g.kernel);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    if (!lm_schedule_writes(e->g.s, (lm_root){r->v, r->copy}, i))
      continue;
    lm_type t = r->v->type;
    if (!lm_kernel_result_summed(e->g.kernel, i)) {
      store_result(e, i, t, x, ix, level);
      continue;
    }
    lm_type inner = lm_kernel_inner(e->g.kernel, t);
    lm_gen_statement(&e->g, level, "c%u[%s] += %s;", i, lm_gen_dense_offset(&e->g, t, ix, inner),
                     x.text);
  }
}

// ---- reductions

static void accumulate(cpu_emit *e, int level, const lm_value *v, const char *to, const char *x) {
  if (v->def->code == LM_OP_MAX)
    lm_gen_statement(&e->g, level, "%s = %s > %s ? %s : %s;", to, x, to, x, to);
  else if (v->type.dtype == LM_INT)
    lm_gen_statement(&e->g, level, "%s = lm_iadd(%s, %s);", to, to, x);
  else
    lm_gen_statement(&e->g, level, "%s += %s;", to, x);
}

static bool is_reduction(const cpu_root *r) {
  return r->v->def && !r->copy && lm_op_is_reduction(r->v->def);
}

static bool sums_float(const cpu_root *r) {
  return is_reduction(r) && r->v->def->code == LM_OP_SUM && lm_dtype_is_float(r->v->type.dtype) &&
         r->v->type.dtype != LM_F64;
}

// True if the innermost loop accumulates in partial results that are declared outside of it.
static bool in_partials(const cpu_emit *e, const cpu_root *r) {
  return is_reduction(r) && r->v->def->code != LM_OP_SCATTER && r->level < e->n_levels;
}

// True if the root accumulates blocks of a long innermost loop: in float in the partial results
// with suffix b, then in double.
static bool by_blocks(const cpu_emit *e, const cpu_root *r) {
  return e->long_sum && sums_float(r) && in_partials(e, r);
}

// True if the root has a scalar or partial results at level k.
static bool has_accumulator(const cpu_emit *e, const cpu_root *r, int k) {
  return is_reduction(r) && r->v->def->code != LM_OP_SCATTER && r->level == k &&
         !(r->memory && k == e->n_levels);
}

// The range of the loop over a lane group.
static void lane_range(cpu_emit *e, int g, const char **out_from, const char **out_to) {
  const cpu_group *group = &e->groups[g];
  int64_t front = lm_axis_size(e->g.m, e->g.kernel->attr.axes[group->first]);
  bool blocked = e->block && g == e->n_groups - e->n_lane_groups;
  *out_from = blocked ? "first" : "0";
  *out_to = blocked      ? "last"
            : group->dyn ? lm_gen_extent(&e->g, front, group->dyn, group->size / front)
                         : lm_gen_extent(&e->g, group->size, 0, 1);
}

// Fills the memory in which a reduction accumulates at this point with the identity element.
static void fill(cpu_emit *e, const cpu_root *r) {
  lm_type t = r->v->type;
  lm_type inner = lm_kernel_inner(e->g.kernel, t);
  lm_ix ix[LM_RANK];
  lm_buf *b = &e->g.level[0].before;
  int depth = e->n_lane_groups;
  for (int i = 0; i < t.rank; i++) {
    ix[i] = lm_gen_axis_index(&e->g, t.axis[i]);
    if (lm_type_find(inner, t.axis[i]) < 0)
      continue;
    const lm_axis_info *a = &e->g.m->axes[t.axis[i]];
    const char *z = lm_gen_temp_name(&e->g, "z");
    ix[i] = lm_ix_var(&e->g.vars, lm_var_add(&e->g.vars, (lm_var){.kind = LM_VAR_TEMP,
                                                                  .name = z,
                                                                  .size = a->size,
                                                                  .dyn = a->dyn,
                                                                  .hi = a->size}));
    lm_buf_printf(b, "for (int64_t %s = 0; %s < %s; %s++) {\n", z, z,
                  lm_gen_extent(&e->g, a->size, a->dyn, 1), z);
    depth++;
  }
  for (int g = e->n_groups - e->n_lane_groups; g < e->n_groups; g++) {
    const char *name = e->g.vars.v[cpu_group_var(e, g)].name;
    const char *from;
    const char *to;
    lane_range(e, g, &from, &to);
    lm_buf_printf(b, "for (int64_t %s = %s; %s < %s; %s++) {\n", name, from, name, to, name);
  }
  lm_gen_statement(&e->g, 0, "%s = %s;", held_location(e, r->v, ix),
                   lm_gen_identity(e->g.arena, r->v));
  while (depth--)
    lm_buf_puts(b, "}\n");
}

static bool axis_reduced(const cpu_root *r, lm_axis a) {
  return lm_type_find(r->v->type, a) < 0;
}

// Sets r->level to the last kept loop, and r->memory.
static void root_set_level(cpu_emit *e, cpu_root *r) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int first_reduced = LM_GEN_LEVELS + 1;
  r->level = 0;
  for (int i = 0; i < d->n; i++) {
    int level = e->g.vars.v[d->loop[i].var].level;
    if (!axis_reduced(r, d->loop[i].axis))
      r->level = level;
    else if (level < first_reduced)
      first_reduced = level;
  }
  if (e->n_lane_groups)
    r->level = e->n_levels;
  r->memory = first_reduced < r->level || r->v->def->code == LM_OP_SCATTER;
}

// Statements before (begin) and after (end) the loops inside level k.
static void reductions_begin(cpu_emit *e, int k) {
  for (int i = 0; i < e->n_roots; i++) {
    cpu_root *r = &e->roots[i];
    if (!has_accumulator(e, r, k))
      continue;
    r->acc = lm_gen_temp_name(&e->g, "s");
    const char *type = lm_gen_register_type(r->v->type.dtype);
    const char *identity = lm_gen_identity(e->g.arena, r->v);
    if (by_blocks(e, r))
      lm_gen_statement(&e->g, k, "double %s = 0;", r->acc);
    else if (in_partials(e, r))
      lm_gen_statement(&e->g, k, "LM_PARTIALS_OF(%s, %s, %s)", type, r->acc, identity);
    else
      lm_gen_statement(&e->g, k, "%s %s = %s;", type, r->acc, identity);
  }
}

// The accumulated result as an expression.
static const char *accumulated(cpu_emit *e, const cpu_root *r) {
  const char *type = lm_gen_register_type(r->v->type.dtype);
  if (by_blocks(e, r))
    return lm_arena_printf(e->g.arena, "(%s)%s", type, r->acc);
  if (!in_partials(e, r))
    return r->acc;
  const char *operation = r->v->def->code == LM_OP_MAX ? "max" : "sum";
  return lm_arena_printf(e->g.arena, "lm_%s_%s(%s)", operation, type, r->acc);
}

static void reductions_end(cpu_emit *e, int k) {
  for (int i = 0; i < e->n_roots; i++) {
    cpu_root *r = &e->roots[i];
    if (!has_accumulator(e, r, k))
      continue;
    lm_ix ix[LM_RANK];
    lm_gen_loop_indices(&e->g, r->v->type, ix);
    const lm_node *n = lm_schedule_node(e->g.s, r->v);
    lm_buf saved = e->g.level[k].before;
    e->g.level[k].before = e->g.level[k].after;
    const char *type = lm_gen_register_type(r->v->type.dtype);
    const char *x = accumulated(e, r);
    if (n->held == LM_HELD_SCALAR && !e->n_lane_groups)
      lm_gen_statement(&e->g, k, "const %s h%u = %s;", type, n->op->mark, x);
    else if (r->memory)
      accumulate(e, k, r->v, held_location(e, r->v, ix), x);
    else
      lm_gen_statement(&e->g, k, "%s = %s;", held_location(e, r->v, ix), x);
    e->g.level[k].after = e->g.level[k].before;
    e->g.level[k].before = saved;
  }
}

// ---- the innermost body

// An index outside of the axis adds to the nearest row.
static void leaf_scatter(cpu_emit *e, const cpu_root *r) {
  const lm_op *op = r->v->def;
  lm_type t = r->v->type;
  lm_ix ix[LM_RANK];
  lm_ix at[LM_RANK];
  lm_gen_loop_indices(&e->g, op->in[0]->type, at);
  lm_gen_text x = lm_gen_pull(&e->g, op->in[0], at);
  lm_gen_loop_indices(&e->g, op->in[1]->type, at);
  lm_gen_text i = lm_gen_pull(&e->g, op->in[1], at);
  lm_gen_loop_indices(&e->g, t, ix);
  const lm_axis_info *a = &e->g.m->axes[op->attr.axes[0]];
  const char *n = lm_gen_extent(&e->g, a->size, a->dyn, 1);
  const char *location = lm_arena_printf(e->g.arena, "lm_clamp(%s, %s)", i.text, n);
  ix[lm_type_find(t, op->attr.axes[0])] =
      lm_ix_var(&e->g.vars, lm_gen_temp_index(&e->g, location, i.level, a->size, 0));
  if (i.level == e->n_levels && e->n_levels)
    e->ordered = true;
  accumulate(e, e->n_levels, r->v, held_location(e, r->v, ix), x.text);
}

// The loop that is written as bodies in the innermost one.
static const lm_gen_loop *unrolled(const cpu_emit *e) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  if (e->n_lane_groups || d->n < 2)
    return NULL;
  const lm_gen_loop *a = &d->loop[d->n - 2];
  bool apart = a->size <= BODIES && a->n_partitions == a->size - 1 && !a->dyn;
  bool fits = !a->merge && !a[1].n_partitions &&
              lm_gen_reduced_together(&e->g, e->g.pass, a->axis, a[1].axis);
  return apart && fits ? a : NULL;
}

static void body(cpu_emit *e) {
  for (int i = 0; i < e->n_roots; i++) {
    cpu_root *r = &e->roots[i];
    lm_ix ix[LM_RANK];
    if (is_reduction(r) && r->v->def->code == LM_OP_SCATTER) {
      leaf_scatter(e, r);
      continue;
    }
    const lm_value *v = is_reduction(r) ? r->v->def->in[0] : r->v;
    lm_gen_loop_indices(&e->g, v->type, ix);
    lm_gen_text x = lm_gen_pull(&e->g, v, ix);
    lm_gen_loop_indices(&e->g, r->v->type, ix);
    if (is_reduction(r)) {
      const char *to = r->memory && r->level == e->n_levels ? held_location(e, r->v, ix)
                       : in_partials(e, r) ? lm_arena_printf(e->g.arena, "%s%s[lane]", r->acc,
                                                             by_blocks(e, r) ? "b" : "")
                                           : r->acc;
      accumulate(e, e->n_levels, r->v, to, x.text);
      continue;
    }
    const lm_node *n = lm_schedule_node(e->g.s, v);
    if (n && n->held == LM_HELD_ROW && !r->copy)
      lm_gen_statement(&e->g, e->n_levels, "%s = %s;", held_location(e, v, ix), x.text);
    store_results(e, r, x, ix, e->n_levels);
  }
}

// ---- loops

// A loop over [from, to) with a trip count; -1: known only at run time.
typedef struct loop {
  const char *name;
  const char *from;
  const char *to;
  int64_t count;
} loop;

// True if the innermost loop runs in strips.
static bool by_strips(const cpu_emit *e) {
  bool any = e->n_stores;
  for (int i = 0; i < e->n_roots; i++)
    any |= in_partials(e, &e->roots[i]);
  return any;
}

static void loop_strips(cpu_emit *e, lm_buf *out, const loop *l, const char *body) {
  cpu_strip_loop s = {.name = l->name,
                      .from = l->from,
                      .to = l->to,
                      .count = l->count,
                      .strip = lm_gen_temp_name(&e->g, "strip"),
                      .ordered = e->ordered,
                      .stores = e->stores,
                      .n_stores = (int)e->n_stores};
  cpu_strip_loop_put(e->g.arena, out, &s, body);
}

static void loop_plain(cpu_emit *e, lm_buf *out, const loop *l, bool innermost, const char *body) {
  if (innermost && !e->ordered)
    lm_buf_puts(out, "#pragma omp simd\n");
  lm_buf_printf(out, "for (int64_t %s = %s; %s < %s; %s++) {\n%s}\n", l->name, l->from, l->name,
                l->to, l->name, body);
}

static void loop_once(cpu_emit *e, lm_buf *out, const loop *l, bool innermost, const char *body) {
  lm_buf_printf(out, "{  // %s = %s\n", l->name, l->from);
  if (innermost && by_strips(e))
    lm_buf_puts(out, "const int64_t lane = 0;\n");
  lm_buf_printf(out, "%s}\n", body);
}

// A long sum: blocks are added in float32, the sums of blocks in double. If the block size divides
// the trip count, no remainder loop is needed.
static void loop_long_sum(cpu_emit *e, lm_buf *out, const loop *l, const char *body) {
  bool divides = l->count % LONG_SUM == 0;
  lm_buf_printf(out,
                "for (int64_t from = %s; from < %s; from += %d) {\nconst int64_t to = ", l->from,
                l->to, LONG_SUM);
  lm_buf_printf(out, divides ? "from + %d;\n" : "lm_min64(from + %d, %s);\n", LONG_SUM, l->to);
  for (int i = 0; i < e->n_roots; i++)
    if (by_blocks(e, &e->roots[i]))
      lm_buf_printf(out, "LM_PARTIALS_OF(float, %sb, 0.0f)\n", e->roots[i].acc);
  loop_strips(e, out, &(loop){l->name, "from", "to", divides ? LONG_SUM : -1}, body);
  for (int i = 0; i < e->n_roots; i++)
    if (by_blocks(e, &e->roots[i]))
      lm_buf_printf(out, "%s += lm_sum_float(%sb);\n", e->roots[i].acc, e->roots[i].acc);
  lm_buf_puts(out, "}\n");
}

static void level_open(cpu_emit *e, int k) {
  lm_gen_level_open(&e->g, k);
  reductions_begin(e, k);
}

// Closes level k and returns its text.
static const char *level_close(cpu_emit *e, int k) {
  reductions_end(e, k);
  return lm_gen_level_close(&e->g, k);
}

static void emit_level(cpu_emit *e, int k);

// One loop of level k.
static void emit_loop(cpu_emit *e, int k, const loop *l, bool once) {
  level_open(e, k);
  e->n_stores = 0;
  emit_level(e, k + 1);
  const char *body = level_close(e, k);
  lm_gen_forget(&e->g, k);
  lm_buf *out = &e->g.level[k - 1].loops;
  bool innermost = k == e->n_levels;
  if (once)
    loop_once(e, out, l, innermost, body);
  else if (innermost && e->long_sum)
    loop_long_sum(e, out, l, body);
  else if (innermost && by_strips(e))
    loop_strips(e, out, l, body);
  else
    loop_plain(e, out, l, innermost, body);
  if (innermost)
    e->ordered = false;
}

// Loop i together with the loops that are merged into it: `first` is the first of them, `size` the
// product of their trip counts.
typedef struct span {
  int first;
  int64_t times;
  int64_t size;
} span;
static span span_of(const lm_gen_domain *d, int i) {
  span s = {i, 1, 0};
  for (; s.first > 0 && d->loop[s.first - 1].merge; s.first--)
    s.times *= d->loop[s.first].size;
  s.size = s.times * d->loop[s.first].size;
  return s;
}

static void emit_atom(cpu_emit *e, int k, int i) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  const lm_gen_loop *a = &d->loop[i];
  span s = span_of(d, i);
  const char *name = e->g.vars.v[a->var].name;
  if (s.first < i || a->dyn) {
    const lm_gen_loop *first = &d->loop[s.first];
    const char *to = lm_gen_extent(&e->g, first->size, first->dyn, s.times);
    emit_loop(e, k, &(loop){name, "0", to, first->dyn ? -1 : s.size}, false);
    return;
  }
  for (int c = 0; c <= a->n_partitions; c++) {
    int64_t lo = c ? a->partition[c - 1] : 0;
    int64_t hi = c < a->n_partitions ? a->partition[c] : a->size;
    e->g.vars.v[a->var].lo = lo;
    e->g.vars.v[a->var].hi = hi;
    loop l = {name, lm_gen_extent(&e->g, lo, 0, 1), lm_gen_extent(&e->g, hi, 0, 1), hi - lo};
    emit_loop(e, k, &l, hi - lo == 1);
  }
  e->g.vars.v[a->var].lo = 0;
  e->g.vars.v[a->var].hi = a->size;
}

static void emit_lanes(cpu_emit *e, int k, int g) {
  const cpu_group *group = &e->groups[g];
  bool blocked = e->block && g == e->n_groups - e->n_lane_groups;
  loop l = {
      .name = e->g.vars.v[cpu_group_var(e, g)].name,
      .count = group->size,
  };
  lane_range(e, g, &l.from, &l.to);
  if (blocked)
    l.count = group->size % e->block ? -1 : e->block;
  if (group->dyn)
    l.count = -1;
  emit_loop(e, k, &l, false);
}

static void leaf(cpu_emit *e) {
  const lm_gen_loop *a = unrolled(e);
  if (!a) {
    body(e);
    return;
  }
  for (int64_t i = 0; i < a->size; i++) {
    e->g.vars.v[a->var].lo = i;
    e->g.vars.v[a->var].hi = i + 1;
    body(e);
  }
  e->g.vars.v[a->var].lo = 0;
  e->g.vars.v[a->var].hi = a->size;
}

static void emit_level(cpu_emit *e, int k) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  int loops = e->n_levels - e->n_lane_groups;
  if (k > e->n_levels) {
    leaf(e);
    return;
  }
  if (k > loops) {
    emit_lanes(e, k, e->n_groups - e->n_lane_groups + (k - loops - 1));
    return;
  }
  for (int i = 0; i < d->n; i++)
    if (!d->loop[i].merge && &d->loop[i] != unrolled(e) && e->g.vars.v[d->loop[i].var].level == k) {
      emit_atom(e, k, i);
      return;
    }
  LM_BUG("no loop of level %d", k);
}

// ---- passes

static void declare_vars(cpu_emit *e) {
  lm_gen_domain *d = &e->g.domains[e->g.pass];
  int level = 0;
  for (int i = 0; i < d->n; i++) {
    lm_gen_loop *a = &d->loop[i];
    const char *name = lm_arena_printf(e->g.arena, "i_%s", a->name);
    a->var = lm_var_add(&e->g.vars, (lm_var){.kind = LM_VAR_LOOP,
                                             .name = name,
                                             .size = a->size,
                                             .dyn = a->dyn,
                                             .hi = a->size,
                                             .level = level + 1});
    level += !a->merge && a != unrolled(e);
  }
  for (int i = d->n - 2; i >= 0; i--)
    if (d->loop[i].merge) {
      lm_var *to = &e->g.vars.v[d->loop[i + 1].var];
      e->g.vars.v[d->loop[i].var].into = to->into ? to->into : d->loop[i + 1].var;
    }
  e->n_levels = level + e->n_lane_groups;
  if (e->n_levels > LM_GEN_LEVELS)
    LM_BUG("a pass of %d nested loops", e->n_levels);
  for (int g = e->n_groups - e->n_lane_groups; g < e->n_groups; g++) {
    level++;
    for (int i = e->groups[g].first; i <= e->groups[g].last; i++)
      e->g.vars.v[e->g.parallel[i]].level = level;
  }
}

// True if the innermost loop adds more elements than a float32 accumulator should take in sequence.
static bool is_long(const cpu_emit *e) {
  const lm_gen_domain *d = &e->g.domains[e->g.pass];
  if (e->n_lane_groups || !d->n)
    return false;
  if (span_of(d, d->n - 1).size <= LONG_SUM || d->loop[d->n - 1].n_partitions)
    return false;
  for (int r = 0; r < e->n_roots; r++)
    if (sums_float(&e->roots[r]) && e->roots[r].level < e->n_levels)
      return true;
  return false;
}

void cpu_pass_emit(cpu_emit *e, int pass) {
  const lm_sched_pass *p = &e->g.s->passes[pass];
  e->g.pass = pass;
  e->n_roots = 0;
  e->roots = LM_NEW_N(e->g.arena, cpu_root, p->n_roots + 1);
  declare_vars(e);
  for (uint32_t i = 0; i < p->n_roots; i++) {
    cpu_root *r = &e->roots[e->n_roots++];
    *r = (cpu_root){
        .v = p->roots[i].v,
        .copy = p->roots[i].copy,
    };
    if (is_reduction(r))
      root_set_level(e, r);
  }
  e->long_sum = is_long(e);
  level_open(e, 0);
  for (int i = 0; i < e->n_roots; i++)
    if (is_reduction(&e->roots[i]) && e->roots[i].memory)
      fill(e, &e->roots[i]);
  emit_level(e, 1);
  lm_buf_puts(&e->g.body, level_close(e, 0));
  lm_gen_forget(&e->g, 1);
  e->g.done[pass] = true;
}
