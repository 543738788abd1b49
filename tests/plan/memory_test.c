// memory_test.c - plans of whole modules: every function runs on shadow memory, and the text of
// each plan parses.
//   memory_test [FILE.lmir…]   modules of any stage; without one, a small model, an update
//                              of states in the host's memory, large GEMMs
#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

static lm_plan *plan_make(lm_module *m, bool states_on_host) {
  lm_plan_options target = lm_cpu_options();
  target.states_on_host = states_on_host;
  if (m->stage != LM_STAGE_KERNEL &&
      !lm_pipeline_run(m, LM_STAGE_KERNEL,
                       &(lm_pass_env){.target = &target.target, .codegen = target.codegen}))
    return NULL;
  return lm_plan_build(m, &target);
}

// The text of a plan parses to a plan with the same text, whose memory is correct too.
static bool text_check(lm_ctx *c, const lm_plan *p, lm_buf *why) {
  lm_buf once = {0}, again = {0};
  lm_plan *q;
  lm_plan_print(p, &once);
  lm_status s = lm_plan_parse(c->arena, once.p, once.n, &q);
  bool same = false;
  if (s)
    lm_buf_puts(why, s->text);
  else {
    lm_plan_print(q, &again);
    same = once.n == again.n && !memcmp(once.p, again.p, once.n);
  }
  if (!s && !same)
    lm_buf_puts(why, "the text of the plan does not come back");
  for (int i = 0; same && i < q->n_funcs; i++)
    same &= lm_plan_check(q, &q->funcs[i], why);
  for (size_t cut = 0; same && cut < once.n;
       cut += 997) { // truncated text is read or rejected, without a crash
    lm_status broken = lm_plan_parse(c->arena, once.p + cut / 2, once.n - cut, &q);
    lm_status_free(broken);
  }
  lm_status_free(s);
  lm_buf_free(&once);
  lm_buf_free(&again);
  return same;
}

// A plan that lacks one step of a copy is rejected.
static bool copies_needed(lm_plan *p, lm_buf *why) {
  lm_plan_func *f = (lm_plan_func *)lm_plan_func_get(p, LM_FUNC_UPDATE, 0);
  int copies = 0;
  for (int i = 0; f && i < f->n_steps; i++) {
    lm_plan_step *s = &f->steps[i];
    lm_buf faults = {0};
    int64_t from = s->from;
    if (!lm_plan_step_copies(s))
      continue;
    copies++;
    s->from = INT32_MAX; // it does not run
    bool found = !lm_plan_check(p, f, &faults);
    s->from = from;
    lm_buf_free(&faults);
    if (!found)
      lm_buf_printf(why, "step %d can be left out\n", i);
    if (!found)
      return false;
  }
  if (!copies || lm_plan_arenas(p, true) != p->arena_bytes[LM_ARENA_STATE])
    lm_buf_puts(why, "no copies");
  return copies && lm_plan_arenas(p, true) == p->arena_bytes[LM_ARENA_STATE];
}

static void module_check(const char *path, bool states_on_host) {
  lm_buf text = {0}, out = {0};
  CHECK_OK(lm_file_read(path, 1 << 28, &text));
  lm_ctx *c = lm_ctx_create();
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text.p, text.n));
  lm_plan *p = m ? plan_make(m, states_on_host) : NULL;
  lm_diag_render(c, &out, false);
  bool good = p != NULL;
  for (int i = 0; p && i < p->n_funcs; i++)
    good &= lm_plan_check(p, &p->funcs[i], &out);
  if (good)
    good = text_check(c, p, &out);
  if (good && states_on_host)
    good = copies_needed(p, &out);
  if (!good) {
    fprintf(stderr, "%s: %s\n", path, out.p ? out.p : "");
    exit(1);
  }
  lm_ctx_destroy(c);
  lm_buf_free(&text);
  lm_buf_free(&out);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    module_check(argv[i], false);
  if (argc > 1)
    return 0;
  module_check("tests/ir/llama.lmir", false);
  module_check("tests/plan/update.lmir", true);
  module_check("tests/plan/large.lmir", false);
}
