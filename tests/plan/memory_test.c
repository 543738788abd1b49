// memory_test.c - plans of whole modules: every function runs on shadow memory, and the text of
// each plan parses.
//   memory_test -r             writes that order
//   memory_test [FILE.lmir…]   modules of any stage; without one, a small model, an update
//                              of states in the host's memory, stashes there, large GEMMs,
//                              collectives beside the computation, whose order is in the file
#include <stdlib.h>

#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

// disabled: passes, or NULL.
static lm_plan *plan_make(lm_module *m, lm_arena_id on_host, const char *disabled) {
  lm_plan_options target = lm_cpu_options();
  target.states_on_host = on_host == LM_ARENA_STATE;
  target.params_on_host = on_host == LM_ARENA_PARAM;
  lm_pass_env env = {.target = &target.target, .codegen = target.codegen};
  if (disabled)
    CHECK_OK(lm_pass_disable(m->arena, disabled, &env));
  if (m->stage != LM_STAGE_KERNEL && !lm_pipeline_run(m, LM_STAGE_KERNEL, &env))
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

static bool is_transfer(const lm_plan_step *s, bool copies) {
  bool transfers = s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT;
  return transfers && lm_plan_step_copies(s) == copies;
}

static bool is_rejected(const lm_plan *p, const lm_plan_func *f) {
  lm_buf faults = {0};
  bool found = !lm_plan_check(p, f, &faults);
  lm_buf_free(&faults);
  return found;
}

// A plan that lacks one step of a copy, or of a collective, is rejected.
static bool steps_needed(const lm_plan *p, lm_plan_func *f, bool copies, int *n, lm_buf *why) {
  for (int i = 0; i < f->n_steps; i++) {
    lm_plan_step *s = &f->steps[i];
    int64_t from = s->from;
    if (!is_transfer(s, copies))
      continue;
    ++*n;
    s->from = INT32_MAX; // it does not run
    bool found = is_rejected(p, f);
    s->from = from;
    if (!found)
      lm_buf_printf(why, "step %d can be left out\n", i);
    if (!found)
      return false;
  }
  return true;
}

static const lm_plan_step *loop_around(const lm_plan_func *f, int step) {
  int depth = 0;
  while (step-- > 0 && (depth || f->steps[step].kind != LM_STEP_LOOP))
    depth += (f->steps[step].kind == LM_STEP_END) - (f->steps[step].kind == LM_STEP_LOOP);
  return step >= 0 ? &f->steps[step] : NULL;
}

// The wait of a copy to the host, in the same iteration or an earlier one of its loop.
static lm_plan_step *wait_of(const lm_plan_func *f, int start) {
  const lm_plan_step *loop = loop_around(f, start);
  for (int i = start; loop && &f->steps[i] > loop; i--) {
    lm_plan_step *s = &f->steps[i];
    if (s->kind == LM_STEP_WAIT && s->comm->handle == f->steps[start].comm->handle)
      return s;
  }
  return NULL;
}

// Stashes whose loops are in a loop over micro-batches. Rejected are a plan that waits for the last
// copy of a micro-batch in the next one only, whose copies use the same slot, and a plan in which
// the backward loop reads what an earlier micro-batch has copied.
static void micro_batches_check(const lm_plan *p, lm_plan_func *f) {
  int n = 0;
  for (int i = 0; i < f->n_steps; i++) {
    lm_plan_step *s = &f->steps[i], *wait = NULL;
    bool copies = is_transfer(s, true);
    if (copies && s->kind == LM_STEP_WAIT) {
      s->end = loop_around(f, i)->count - 1;
      CHECK(is_rejected(p, f));
      s->end = 0;
    }
    if (copies && s->kind == LM_STEP_START && s->comm->lane == 1)
      wait = wait_of(f, i);
    if (!wait)
      continue;
    lm_plan_step start = *s, end = *wait;
    s->from = wait->from = INT32_MAX; // they do not run
    CHECK(is_rejected(p, f));
    *s = start;
    *wait = end;
    n++;
  }
  CHECK(n == 3 && lm_plan_check(p, f, &(lm_buf){0}));
}

// Copies of the arena, which alone is in the host's memory.
static bool offload_check(const lm_plan *p, lm_arena_id arena, lm_buf *why) {
  int copies = 0;
  bool good = true;
  for (int i = 0; i < p->n_funcs; i++)
    good &= steps_needed(p, &p->funcs[i], true, &copies, why);
  bool any = copies && p->arena_bytes[arena] && lm_plan_arenas(p, true) == p->arena_bytes[arena];
  if (!any)
    lm_buf_puts(why, "no copies");
  return good && any;
}

// ---- the order of collectives

// The length of a step's line up to the memory of its buffers, or to the comment.
static int step_length(const char *step) {
  size_t n = strcspn(step, "[/");
  bool computes = !strncmp(step, "kernel", 6) || !strncmp(step, "gemm", 4);
  if (computes)
    return (int)strcspn(step, " ");
  while (n && step[n] != ' ')
    n--;
  while (n && step[n - 1] == ' ')
    n--;
  return (int)n;
}

// The steps of a function without their numbers, buffers and kernels.
static void order_print(const lm_plan *p, const lm_plan_func *f, lm_buf *out) {
  lm_buf text = {0};
  char begin[2 * LM_FUNC_NAME];
  lm_plan_print(p, &text);
  snprintf(begin, sizeof begin, "\nfunc %s work", f->name);
  char *line = strchr(strstr(text.p, begin) + 1, '\n') + 1;
  for (char *next; strncmp(line, "  live", 6) != 0; line = next) {
    next = strchr(line, '\n') + 1;
    next[-1] = 0;
    const char *step = line + strspn(line, " 0123456789");
    bool is_inside = step - line > 7;
    if (step - line > 5)
      lm_buf_printf(out, "%s%.*s\n", is_inside ? "  " : "", step_length(step), step);
  }
  lm_buf_free(&text);
}

static void order_check(const char *path, const char *func, const char *disabled, bool rewrite) {
  static const char mark[] = "// gives:\n";
  lm_buf text = {0}, out = {0}, faults = {0};
  int n = 0;
  CHECK_OK(lm_file_read(path, 1 << 20, &text));
  char *want = strstr(text.p, mark) + strlen(mark);
  lm_ctx *c = lm_ctx_create();
  lm_module *m =
      lm_module_parse(c, lm_source_add(c, path, text.p, (size_t)(want - text.p) - strlen(mark)));
  CHECK(m);
  lm_plan *p = plan_make(m, LM_ARENAS, disabled);
  lm_plan_func *f = p ? (lm_plan_func *)lm_plan_func_find(p, func) : NULL;
  CHECK(f && lm_plan_check(p, f, &faults) && text_check(c, p, &faults));
  order_print(p, f, &out);
  CHECK(steps_needed(p, f, false, &n, &faults) && n > 0);
  if (rewrite) {
    lm_buf all = {0};
    lm_buf_printf(&all, "%.*s%s", (int)(want - text.p), text.p, out.p);
    CHECK_OK(lm_file_write_atomic(path, all.p, all.n));
    lm_buf_free(&all);
  } else if (strcmp(want, out.p) != 0) {
    fprintf(stderr, "%s: the steps are\n%s", path, out.p);
    exit(1);
  }
  lm_ctx_destroy(c);
  lm_buf_free(&text);
  lm_buf_free(&out);
  lm_buf_free(&faults);
}

// on_host: an arena in the host's memory; LM_ARENAS: none. in_loops: see micro_batches_check.
static void module_check(const char *path, lm_arena_id on_host, bool in_loops) {
  lm_buf text = {0}, out = {0};
  CHECK_OK(lm_file_read(path, 1 << 28, &text));
  lm_ctx *c = lm_ctx_create();
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text.p, text.n));
  lm_plan *p = m ? plan_make(m, on_host, NULL) : NULL;
  lm_diag_render(c, &out, 0);
  bool good = p != NULL;
  for (int i = 0; p && i < p->n_funcs; i++)
    good &= lm_plan_check(p, &p->funcs[i], &out);
  if (good)
    good = text_check(c, p, &out);
  if (good && on_host < LM_ARENAS)
    good = offload_check(p, on_host, &out);
  if (good && in_loops)
    micro_batches_check(p, &p->funcs[0]);
  if (!good) {
    fprintf(stderr, "%s: %s\n", path, out.p ? out.p : "");
    exit(1);
  }
  lm_ctx_destroy(c);
  lm_buf_free(&text);
  lm_buf_free(&out);
}

static void orders_check(bool rewrite) {
  order_check("tests/plan/overlap.lmir", "f", "bucket", rewrite);
  order_check("tests/plan/bucket.lmir", "f", NULL, rewrite);
  order_check("tests/plan/bucket_gathers.lmir", "f", NULL, rewrite);
  order_check("tests/plan/last.lmir", "micro_last", "bucket", rewrite);
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "-r")) {
    orders_check(true);
    return 0;
  }
  for (int i = 1; i < argc; i++)
    module_check(argv[i], LM_ARENAS, false);
  if (argc > 1)
    return 0;
  module_check("tests/ir/llama.lmir", LM_ARENAS, false);
  module_check("tests/plan/update.lmir", LM_ARENA_STATE, false);
  module_check("tests/plan/update.lmir", LM_ARENA_PARAM, false);
  module_check("tests/plan/gathers_ahead.lmir", LM_ARENA_PARAM, false);
  module_check("tests/plan/stash.lmir", LM_ARENA_STASH, false);
  module_check("tests/plan/stash_ticks.lmir", LM_ARENA_STASH, true);
  module_check("tests/plan/large.lmir", LM_ARENAS, false);
  orders_check(false);
}
