// simt_chain_test.c - kernels that read and update a carry by GEMMs, under the shim against the
// interpreter: the states of a delta rule and their cotangents, blocks of several widths, operands
// that are read through views; forms beside the pattern, which stay loops.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/cuda/chain_case.h"
#include "tests/cuda/literals.h"

static const chain_case *current;

static void count_check(const lm_module *m, int units, int expected) {
  int chains = 0, loops = 0;
  chain_kernels_make(m, "sm_90a", units);
  for (const lm_op *op = m->funcs->body->first; op; op = op->next) {
    chains += lm_op_chains(op);
    loops += op->code == LM_OP_LOOP;
  }
  CHECK(chains == expected && loops == !expected);
}

static void one_kernel(const lm_module *m) {
  count_check(m, current->units, 1);
}

static void a_loop(const lm_module *m) {
  count_check(m, 1, 0);
}

static void chain_run(const chain_case *c, uint64_t seed) {
  lm_buf text = {0};
  current = c;
  chain_text(c, &text);
  run_both(
      text.p,
      &(run_options){
          .name = c->name, .tolerance = 1e-3, .rounds = true, .seed = seed, .kernels = one_kernel});
  lm_buf_free(&text);
}

// A form beside the pattern: `from` in the text of a case is `to`.
typedef struct near_case {
  const char *name, *from, *to;
} near_case;

static const near_case near_cases[] = {
    {"the state behind each position", "yield %n, %xb, %rb",
     "%nb = cast %n : bf16[b, h, k, v]\n    yield %n, %nb, %rb"},
    {"a value of the rows beside r", "yield %n, %xb, %rb", "%nr = neg %rb\n    yield %n, %xb, %nr"},
    {"an operand without the loop's axis", "%n = add %d, %u1",
     "%m = add %d, %u1\n    %n = add %m, %k0"},
    {"positions in another order", "at %own, %i [0, 1]", "at %own, %i [2, -1]"},
    {"an update by an operand", "dot %rb, %q1 over(j)", "dot %o1, %q1 over(j)"},
};

static const near_case mixed_near_cases[] = {
    {"factors of two values", "%w = dot %l1, %e over(i)",
     "%nf = neg %ef\n    %ne = cast %nf : bf16[b, h, i, v]\n    %w = dot %l1, %ne over(i)"},
    {"factors of a value that is rounded twice", "%w = dot %l1, %e over(i)",
     "%hf = cast %ef : f16[b, h, i, v]\n    %he = cast %hf : bf16[b, h, i, v]\n"
     "    %w = dot %l1, %he over(i)"},
    {"three factors", "%rf = add %z, %w1",
     "%l2 = at %l0, %n [0, 1]\n    %y2 = dot %l2, %e over(i) : f32[b, h, j, v]\n"
     "    %r2 = add %z, %y2\n    %rf = add %r2, %w1"},
    {"a factor with the points innermost", "%l: bf16[c, j, b, h, i]", "%l: bf16[c, j, i, b, h]"},
};
static const chain_case mixed_near = {"", "b = 2, h = 2, c = 3, i = 16, j = 16, k = 32, v = 32",
                                      CHAIN_MIXED, 1};
// The factor is not square.
static const chain_case oblong = {"", "b = 2, h = 2, c = 3, i = 32, j = 16, k = 32, v = 32",
                                  CHAIN_MIXED, 1};

static void near_text_run(const char *text, const char *name, uint64_t seed) {
  run_both(text,
           &(run_options){
               .name = name, .tolerance = 1e-3, .rounds = true, .seed = seed, .kernels = a_loop});
}

static void near_run(const chain_case *of, const near_case *c, uint64_t seed) {
  lm_buf text = {0}, more = {0}, changed = {0};
  chain_text(of, &text);
  const char *argument = strstr(text.p, ") -> (");
  lm_buf_add(&more, text.p, (size_t)(argument - text.p));
  lm_buf_printf(&more, ", %%k0: f32[b, h, k, v]%s%s",
                of == &mixed_near ? ", %l0: bf16[c, b, h, j, i]" : "", argument);
  const char *at = strstr(more.p, c->from);
  CHECK(at);
  lm_buf_add(&changed, more.p, (size_t)(at - more.p));
  lm_buf_printf(&changed, "%s%s", c->to, at + strlen(c->from));
  near_text_run(changed.p, c->name, seed);
  lm_buf_free(&text);
  lm_buf_free(&more);
  lm_buf_free(&changed);
}

static void oblong_run(uint64_t seed) {
  lm_buf text = {0};
  chain_text(&oblong, &text);
  near_text_run(text.p, "a factor that is not square", seed);
  lm_buf_free(&text);
}

// Operands have 3 * 2^30 elements, so their indices need 64 bits.
static void wide_check(const char *text) {
  lm_buf all = {0};
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = RUN_OPTIONS();
  lm_buf_printf(&all, "stage step\naxis b = 65536, h = 4, c = 3, j = 64, k = 64, v = 64\n%s", text);
  lm_module *m = parse_and_run_for(ctx, all.p, "decompose,cse,dce,fuse", &target.target);
  chain_kernels_make(m, "sm_90a", 132);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels && plan->kernels[0].name[0] == 's');
  CHECK(strstr(plan->kernels[0].source, "typedef int64_t lm_at"));
  literals_check(plan->kernels[0].source);
  lm_ctx_destroy(ctx);
  lm_buf_free(&all);
}

// A kernel of a GPU with 99 KB of shared memory, whose tiles take so many bytes.
static void small_memory_check(const char *case_text, int64_t least, int64_t most, bool ahead) {
  lm_buf text = {0};
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = RUN_OPTIONS();
  const chain_case c = {"", "b = 4, h = 4, c = 3, i = 64, j = 64, k = 128, v = 128", case_text, 4};
  chain_text(&c, &text);
  lm_module *m = parse_and_run_for(ctx, text.p, "decompose,cse,dce,fuse", &target.target);
  chain_kernels_make(m, "sm_120", c.units);
  target = lm_cuda_options("sm_120", false);
  target.target.units = c.units;
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels && plan->kernels[0].name[0] == 's');
  int64_t shared = plan->kernels[0].launch.shared;
  CHECK(shared > least << 10 && shared <= most << 10);
  CHECK(ahead == !!strstr(plan->kernels[0].source, "(1 - stage)"));
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
}

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : NULL;
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(chain_cases); i++)
    if (case_is_chosen(chain_cases[i].name, only))
      chain_run(&chain_cases[i], i);
  for (size_t i = 0; i < LM_COUNT(near_cases); i++)
    if (case_is_chosen(near_cases[i].name, only))
      near_run(&chain_cases[0], &near_cases[i], i);
  for (size_t i = 0; i < LM_COUNT(mixed_near_cases); i++)
    if (case_is_chosen(mixed_near_cases[i].name, only))
      near_run(&mixed_near, &mixed_near_cases[i], i);
  if (only)
    return 0;
  // With 64 columns these take 116 KB, with 32 they fit.
  small_memory_check(CHAIN_FORWARD, 64, 99, true);
  // These fit with the tiles of one position alone.
  small_memory_check(CHAIN_MIXED, 64, 99, false);
  small_memory_check(CHAIN_MIXED_BACKWARD, 64, 99, false);
  oblong_run(1);
  wide_check(CHAIN_FORWARD);
  wide_check(CHAIN_BACKWARD);
}
