// mesh.c - see mesh.h.
#include "driver/mesh.h"

#include <string.h>

#include "runtime/base/diag_code.h"

// The axes of parameters that are not repetitions, without suffixes: "d, g and ff".
static const char *axes_text(const lm_module *m) {
  const char *seen[64];
  int n = 0;
  lm_buf b = {0};
  for (uint32_t i = 0; i < m->n_globals; i++)
    for (int k = m->globals[i].n_stack;
         lm_global_is_weight(&m->globals[i]) && k < m->globals[i].type.rank; k++) {
      const char *name = m->axes[m->globals[i].type.axis[k]].name;
      const char *base = lm_arena_strndup(m->arena, name, lm_axis_base_length(name));
      int at = 0;
      while (at < n && strcmp(seen[at], base) != 0)
        at++;
      if (at < n || n == (int)LM_COUNT(seen))
        continue;
      lm_buf_printf(&b, "%s%s", n ? ", " : "", base);
      seen[n++] = base;
    }
  const char *text = lm_arena_strndup(m->arena, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return text;
}

// The name of the axis of positions of the loss; NULL without one.
static const char *positions_of(const lm_module *m) {
  const lm_func *loss = lm_func_get(m, LM_FUNC_LOSS, 0);
  bool has = loss && loss->body->n_args && loss->body->args[0]->type.rank > 1;
  const char *name = has ? m->axes[loss->body->args[0]->type.axis[1]].name : NULL;
  return name ? lm_arena_strndup(m->arena, name, lm_axis_base_length(name)) : NULL;
}

// True if the ranks along the axis get other rows of a call.
static bool divides_rows(const lm_recipe_parallel *p, const char *axis) {
  return !strcmp(axis, "dp") || !strcmp(axis, "fsdp") || !strcmp(axis, "ep") ||
         (!strcmp(axis, "pp") && !p->ticks);
}

static lm_pipe_schedule schedule_of(const lm_recipe_parallel *p) {
  return p->chunks  ? LM_SCHEDULE_INTERLEAVED
         : p->ticks ? LM_SCHEDULE_ONE_F_ONE_B
                    : LM_SCHEDULE_GPIPE;
}

static lm_mesh_axis axis_make(const lm_compiled *c, int k) {
  const lm_recipe_parallel *p = &c->project->recipe->parallel;
  lm_ctx *ctx = c->project->ctx;
  const char *positions = p->axis[k].sequence ? positions_of(c->lowered->m) : NULL;
  bool stages = !strcmp(p->axis[k].name, "pp");
  lm_mesh_axis a = {
      .name = LM_SYM(ctx, p->axis[k].name),
      .size = p->axis[k].size,
      .rows = divides_rows(p, p->axis[k].name),
      .pipeline = stages ? c->spec.run.pipeline : 0,
      .schedule = stages ? schedule_of(p) : LM_SCHEDULE_GPIPE,
      .chunks = stages ? p->chunks : 0,
      .positions = !strcmp(p->axis[k].name, "cp"),
      .experts = !strcmp(p->axis[k].name, "ep"),
      .balanced = !p->heads && !strcmp(p->axis[k].name, "cp"),
      .ring = p->ring && !strcmp(p->axis[k].name, "cp"),
      .zero = p->axis[k].zero,
      .reduce_bf16 = c->project->recipe->precision.reduce_bf16,
      .library = c->project->recipe->precision.library,
      .loc = p->loc,
  };
  uint32_t cap = 0;
  for (uint32_t i = 0; i < p->axis[k].n_shard; i++)
    LM_PUSH(ctx->arena, a.shard, a.n_shard, cap) =
        (struct lm_mesh_shard){LM_SYM(ctx, p->axis[k].shard[i].name), p->axis[k].shard[i].loc};
  if (positions)
    LM_PUSH(ctx->arena, a.shard, a.n_shard, cap) =
        (struct lm_mesh_shard){LM_SYM(ctx, positions), p->loc};
  return a;
}

static bool shards(const lm_mesh_axis *a, const char *name) {
  for (uint32_t i = 0; i < a->n_shard; i++)
    if (!strcmp(a->shard[i].name, name))
      return true;
  return false;
}

// What divides attention if positions are divided along `cp`.
static void context_check(const lm_compiled *c, const lm_mesh_axis *cp) {
  const lm_recipe_parallel *p = &c->project->recipe->parallel;
  const lm_mesh *mesh = &c->lowered->m->mesh;
  lm_ctx *ctx = c->project->ctx;
  if (p->heads != (cp->n_shard > 0)) {
    lm_diag *d = LM_REPORT(ctx, p->heads ? p->loc : cp->shard->loc, E259,
                           p->heads ? "context = heads" : "shard cp",
                           p->heads ? "shard cp = [...], the axes of heads" : "context = heads");
    if (p->heads)
      lm_diag_note(ctx, d, (lm_loc){0}, "the axes of the parameters are %s",
                   axes_text(c->lowered->m));
  }
  for (uint32_t i = 0; i < cp->n_shard; i++)
    for (int k = 0; k < mesh->n; k++)
      if (&mesh->axis[k] != cp && shards(&mesh->axis[k], cp->shard[i].name))
        LM_REPORT(ctx, cp->shard[i].loc, E25A, cp->shard[i].name, mesh->axis[k].name);
}

static int64_t blocks_of(int64_t elements) {
  return (elements + LM_BLOCK - 1) / LM_BLOCK;
}

// True if the axis of the mesh divides parameters along one of the axes of t.
static bool divides(const lm_module *m, const lm_mesh_axis *by, lm_type t) {
  for (int i = 0; i < t.rank && !by->positions; i++) {
    const char *name = m->axes[t.axis[i]].name;
    size_t n = lm_axis_base_length(name);
    for (uint32_t k = 0; k < by->n_shard; k++)
      if (strlen(by->shard[k].name) == n && !memcmp(by->shard[k].name, name, n))
        return true;
  }
  return false;
}

// The elements of an instance that a rank has without `zero`.
static int64_t elements_of(const lm_module *m, const lm_global *g) {
  int64_t n = lm_type_elements(m, g->type) / g->n_paths;
  for (int k = 0; k < m->mesh.n; k++)
    if (divides(m, &m->mesh.axis[k], g->type))
      n /= m->mesh.axis[k].size;
  return n;
}

// Keeps parameters whole of which a part would take as many blocks.
static void small_keep(lm_module *m, int ranks) {
  for (uint32_t i = 0; i < m->n_globals; i++) {
    lm_global *g = &m->globals[i];
    if (!lm_global_is_weight(g))
      continue;
    int64_t n = elements_of(m, g);
    g->whole |= blocks_of(n) == blocks_of(n / ranks);
  }
}

lm_status lm_mesh_make(const lm_compiled *c) {
  const lm_recipe_parallel *p = &c->project->recipe->parallel;
  lm_module *m = c->lowered->m;
  for (m->mesh.n = 0; c->spec.run.divides && m->mesh.n < p->n; m->mesh.n++) {
    lm_mesh_axis *a = &m->mesh.axis[m->mesh.n];
    *a = axis_make(c, m->mesh.n);
    if (a->rows || a->positions || a->pipeline || a->n_shard)
      continue;
    lm_diag *d = LM_REPORT(c->project->ctx, p->loc, E258, a->name, a->size, a->name);
    lm_diag_note(c->project->ctx, d, (lm_loc){0}, "the axes of the parameters are %s",
                 axes_text(m));
  }
  for (int k = 0; k < m->mesh.n; k++) {
    if (m->mesh.axis[k].zero)
      small_keep(m, m->mesh.axis[k].size);
    if (m->mesh.axis[k].positions)
      context_check(c, &m->mesh.axis[k]);
  }
  return lm_verdict(c->project->ctx);
}
