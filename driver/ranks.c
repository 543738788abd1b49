// ranks.c - see ranks.h.
#include "driver/ranks.h"

#include <string.h>

#include "driver/text.h"
#include "runtime/base/diag_code.h"
#include "runtime/base/processors.h"

void lm_ranks_unsupported_report(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  if (r->parallel.ranks > 1 && r->compile == LM_RECIPE_COMPILE_MAX_AUTOTUNE)
    LM_REPORT(s->project.ctx, r->compile_loc, E257, "compile = mode(\"max-autotune\")");
}

static lm_status mesh_check(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  lm_ctx *c = s->project.ctx;
  int ranks = lm_comm_self_of(s->comm).size;
  int mesh = r->parallel.ranks;
  if (mesh != ranks) {
    const char *fitting = lm_recipe_mesh_of(c->arena, r, ranks);
    lm_diag *d = LM_REPORT(c, r->parallel.loc, E254, mesh, mesh == 1 ? "" : "s", ranks,
                           ranks == 1 ? "" : "s");
    if (ranks > 1)
      lm_diag_help(c, d, "--set 'parallel.mesh=%s' fits the ranks, also of a run that is resumed",
                   fitting ? fitting : lm_arena_printf(c->arena, "(dp = %d)", ranks));
    else
      lm_diag_help(c, d,
                   "--ranks %d starts as many; --set 'parallel.mesh=(dp = 1)' computes the "
                   "run as one process",
                   mesh);
  }
  lm_ranks_unsupported_report(s);
  return lm_verdict(c);
}

lm_status lm_ranks_need(const lm_session *s) {
  return s->comm ? NULL : mesh_check(s);
}

static lm_status groups_make(const lm_session *s) {
  const lm_recipe *r = s->project.recipe;
  lm_comm_mesh groups = {.n = r->parallel.n};
  for (int k = 0; k < groups.n; k++)
    groups.size[k] = r->parallel.axis[k].size;
  return lm_comm_groups(s->comm, &groups);
}

// The least that a rank has; LM_ENV if a rank does not answer.
static lm_status least_of(const lm_session *s, const char *what, int64_t own, int64_t *out) {
  int size = lm_comm_self_of(s->comm).size;
  int64_t *all = LM_NEW_N(s->project.ctx->arena, int64_t, size);
  LM_TRY(lm_comm_agree(s->comm, what, &own, sizeof own, all));
  *out = all[0];
  for (int i = 1; i < size; i++)
    *out = all[i] < *out ? all[i] : *out;
  return NULL;
}

// The least share counts, so that all ranks choose the same plan.
static lm_status machine_share(lm_session *s) {
  lm_comm_self self = lm_comm_self_of(s->comm);
  int threads = lm_processors() / self.sharing;
  int most = lm_threads(s->threads);
  s->threads = threads < 1 ? 1 : threads < most ? threads : most;
  if (!*s->target.name)
    lm_target_find_cpu(&s->target);
  bool gpu = s->target.kind == LM_TARGET_CUDA;
  s->target.device = gpu ? self.local_rank : 0;
  int64_t own = lm_target_runtime(&s->target)->memory(&s->target);
  own = gpu ? own : own / self.local_size;
  LM_TRY(least_of(s, "the memory of the machines", own, &s->memory));
  int64_t host = lm_memory_of_machine() / self.local_size;
  return gpu ? least_of(s, "the memory of the hosts", host, &s->host_memory) : NULL;
}

// GPUs add by NCCL.
static lm_status order_check(const lm_session *s) {
  const lm_recipe_precision *p = &s->project.recipe->precision;
  if (p->library && s->target.kind != LM_TARGET_CUDA && !lm_comm_sums(s->comm))
    LM_REPORT(s->project.ctx, p->order_loc, E266, lm_comm_engine(s->comm));
  return lm_verdict(s->project.ctx);
}

// Commands that differ, or the files that they read. No plan has values such as `save`.
static lm_status recipes_compare(const lm_session *s) {
  lm_buf text = {0};
  lm_recipe_print(s->project.recipe, false, &text);
  uint64_t hash = lm_hash(text.p, text.n, 0);
  lm_buf_free(&text);
  return lm_comm_equal(s->comm, "the recipe", hash);
}

lm_status lm_ranks_join(lm_session *s) {
  s->divides = true;
  LM_TRY(mesh_check(s));
  LM_TRY(recipes_compare(s));
  LM_TRY(order_check(s));
  LM_TRY(groups_make(s));
  return machine_share(s);
}
