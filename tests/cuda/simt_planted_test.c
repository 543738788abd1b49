// simt_planted_test.c - attention kernels with one line taken out: a barrier, a fence, a wait. Under some schedule the shim must
// say what is wrong; that it says nothing with the line in place is simt_attend_test's.
#include "tests/codegen/cache.h"   // asks the system for nftw, so before all others
#include "tests/cuda/simt_run.h"
#include "tests/cuda/attend_case.h"

typedef struct plant { const char *arch, *line; bool backward; } plant;
static const plant plants[] = {
  {NULL, "lm_barrier();\n"},                             // tiles are overwritten while others still read them
  {NULL, "lm_copies_wait(0);\n"},
  {"sm_90a", "lm_proxy_fence();\n"},                   // in the loop over tiles
  {"sm_90a", "lm_phase_wait(done, stage, parity);\n"},
  {"sm_90a", "lm_phase_wait(ready, stage, parity);\n"},
  {"sm_90a", "lm_copies_wait(1);\n"},
  {"sm_90a", "lm_phase_wait(done, stage, parity);\n", true},
};
static const attend_case shape = {"planted", "bf16", "b = 1, t = 390, s = 390, g = 1, h = 1, e = 64", "", PLAIN, CAUSAL};

// Forward comes first.
static int attention_of(const lm_plan *plan, int skip) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a' && !skip--) return i;
  LM_BUG("no attention");
}

// The text with the first `from` in it replaced.
static const char *replaced(const char *text, const char *from, const char *to, lm_arena *a) {
  const char *at = strstr(text, from);
  CHECK(at);
  return lm_arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void line_remove(lm_plan_kernel *k, const char *line, lm_arena *a) {
  const char *name = lm_arena_printf(a, "%s_planted", k->name);
  k->source = replaced(replaced(k->source, line, "\n", a), k->name, name, a);
  k->name = name;
}

// What the shim says of it under the schedules, NULL for nothing.
static char *run(const plant *p) {
  lm_buf text = {0};
  text_make(&shape, &text);
  lm_ctx *ctx = lm_ctx_create();
  lm_module *m = module_make(ctx, text.p, true);
  lm_plan_target target = simt_target_of(m, p->arch);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  lm_plan_kernel *k = &plan->kernels[attention_of(plan, p->backward)];
  line_remove(k, p->line, m->arena);
  simt_prepare(plan, m->arena);
  lm_exec *e;
  CHECK_OK(lm_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  char *found = NULL;
  for (int s = SIMT_SCHEDULES - 1; s >= 0 && !found; s--) {
    simt_schedule_set((simt_schedule)s);
    CHECK_OK(lm_exec_run(e, lm_plan_func_find(plan, "micro"), NULL));
    found = simt_report_take();
  }
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
  return found;
}

int main(void) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(plants); i++) {
    char *found = run(&plants[i]);
    if (!found) fprintf(stderr, "%s without %s: nothing was found\n", plants[i].arch ? plants[i].arch : "any", plants[i].line);
    CHECK(found);
    printf("%s without %s  %.*s\n", plants[i].arch ? plants[i].arch : "any", plants[i].line, (int)strcspn(found, "\n"), found);
    lm_free(found);
  }
}
