// simt_planted_test.c - attention kernels with one mistake each: a removed barrier, fence or wait,
// a wrong number of bytes, a wrong location. Under some schedule the shim must report it, or the
// results must differ. simt_attend_test checks that kernels without a mistake cause no report.
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "tests/cuda/simt_run.h"
#include "tests/cuda/attend_case.h"

typedef struct plant {
  const char *arch, *line, *instead;
  bool backward;
} plant;
static const plant plants[] = {
    {NULL, "lm_barrier();\n", "\n"}, // tiles are overwritten while other threads read them
    {NULL, "lm_copies_wait(0);\n", "\n"},
    {"sm_90a", "lm_proxy_fence();\n", "\n"}, // the mbarriers that boxes count in
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n"},
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n", true},
    {"sm_90a", "lm_phase_wait(ready, stage, parity);\n", "\n"},
    {"sm_90a", "lm_phase_wait(ready, 4, 0);\n", "\n"}, // the block's rows
    {"sm_90a", "lm_phase_expect(ready, stage, 16384);\n",
     "lm_phase_expect(ready, stage, 16368);\n"},
    {"sm_90a", "lm_phase_expect(ready, stage, 16384);\n",
     "lm_phase_expect(ready, stage, 32768);\n"},
    {"sm_90a", "lm_wgmma_wait(1);\n", "\n"}, // reads the next scores while they are computed
    {"sm_90a", "lm_pingpong_arrive(1 - group);\n", "\n"},
    {"sm_90a", "LM_GROUP_FETCH(b3 + stage",
     "LM_GROUP_FETCH(b3 + 512 + stage"},  // half a pattern off
    {"sm_90a", "col0, 0", "col0 + 1, 0"}, // one position off: no race, but other bits
};
static const attend_case shape = {
    "planted", "bf16", "b = 1, t = 390, s = 390, g = 1, h = 1, e = 64", "", PLAIN, CAUSAL};

// The kernel of the forward pass comes first.
static int attention_of(const lm_plan *plan, int skip) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a' && !skip--)
      return i;
  LM_BUG("no attention");
}

// The text with its first `from` replaced.
static const char *replaced(const char *text, const char *from, const char *to, lm_arena *a) {
  const char *at = strstr(text, from);
  CHECK(at);
  return lm_arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void mistake_plant(lm_plan_kernel *k, const plant *p, lm_arena *a) {
  const char *name = lm_arena_printf(a, "%s_planted", k->name);
  k->source = replaced(replaced(k->source, p->line, p->instead, a), k->name, name, a);
  k->name = name;
}

static void inputs_fill(const lm_plan *plan, lm_exec *e) {
  uint64_t state = 5;
  float *to = (float *)lm_exec_arena(e, LM_ARENA_PARAM);
  for (int i = 0; i < plan->n_params; i++)
    for (int64_t k = 0; k < plan->params[i].elements; k++)
      to[plan->params[i].offset + k] = bf16_value((float)draw(&state));
  const lm_plan_port *w = &lm_plan_func_find(plan, "micro")->in[1];
  for (int64_t k = 0; k < w->buf.bytes / 4; k++)
    ((float *)lm_exec_port(e, w))[k] = (float)draw(&state);
}

// The reports about a plan under the schedules, NULL if there are none; and a hash of the
// gradients' bits under all schedules.
static char *run(const plant *p, bool planted, uint64_t *out_bits) {
  lm_buf text = {0};
  text_make(&shape, &text);
  lm_ctx *ctx = lm_ctx_create();
  lm_module *m = module_make(ctx, text.p, true);
  lm_plan_target target = simt_target_of(m, p->arch, false);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  if (planted)
    mistake_plant(&plan->kernels[attention_of(plan, p->backward)], p, m->arena);
  simt_prepare(plan, m->arena);
  lm_exec *e;
  CHECK_OK(lm_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  inputs_fill(plan, e);
  char *found = NULL;
  *out_bits = 0;
  for (int s = SIMT_SCHEDULES - 1; s >= 0 && !found; s--) {
    simt_schedule_set((simt_schedule)s);
    lm_exec_arena_clear(e, LM_ARENA_GRAD);
    CHECK_OK(lm_exec_run(e, lm_plan_func_find(plan, "micro"), NULL));
    found = simt_report_take();
    *out_bits = lm_hash(lm_exec_arena_read(e, LM_ARENA_GRAD),
                        (size_t)plan->arena_bytes[LM_ARENA_GRAD], *out_bits);
  }
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
  return found;
}

int main(void) {
  cache_begin();
  uint64_t right, bits;
  CHECK(!run(&(plant){"sm_90a"}, false, &right));
  for (size_t i = 0; i < LM_COUNT(plants); i++) {
    const plant *p = &plants[i];
    char *found = run(p, true, &bits);
    printf("%s, %.*s -> %.*s: %.*s\n", p->arch ? p->arch : "any", (int)strcspn(p->line, "\n"),
           p->line, (int)strcspn(p->instead, "\n"), p->instead,
           found ? (int)strcspn(found, "\n") : 11, found ? found : "other bits");
    CHECK(found || (p->arch && bits != right));
    lm_free(found);
  }
}
