// check_fuzz.c - the language after parsing, in the steps of `lmc check`: the text as a whole file,
// its imports, every recipe of it resolved, checked, lowered and probed. Lowered modules must pass
// the verifier.
#include "compiler/passes/pass.h"
#include "dsl/lower/lower.h"
#include "tests/fuzz/fuzz.h"

static void lower(lm_ctx *c, lm_program *p, lm_recipe *r) {
  lm_lower_options o = {.what = LM_LOWER_TRAIN | LM_LOWER_EVAL | LM_LOWER_DECODE | LM_LOWER_MAPS |
                                LM_LOWER_PROBE,
                        .rows = 2,
                        .seq = 16,
                        .capacity = 32,
                        .chunk = 8};
  lm_lowered *l = lm_lower(c, p, r, &o);
  bool ok;
  if (!l)
    return;
  lm_status_free(lm_pass_run_list(
      l->m, "precision,inline,analyze,simplify,cse,dce,causal,ring_cache", &(lm_pass_env){0}, &ok));
}

static void recipe_check(lm_ctx *c, lm_program *p, const char *name) {
  static const char *const sets[] = {"optimizer.lr = 1e-3", "precision.compute = f32"};
  lm_recipe *r =
      lm_recipe_resolve(c, p, name, &(lm_recipe_overrides){.sets = sets, .n_sets = LM_COUNT(sets)});
  lm_buf out = {0};
  lm_check(c, p, r);
  if (r)
    lm_recipe_print(r, true, &out);
  if (r && !c->n_errors)
    lower(c, p, r);
  lm_buf_free(&out);
}

static void program_check(lm_ctx *c, lm_program *p) {
  const ast_file *tree = p->files[0]->tree;
  int recipes = 0;
  for (uint32_t i = 0; i < tree->n; i++)
    if (tree->v[i]->kind == DC_RECIPE) {
      recipe_check(c, p, tree->v[i]->name.text);
      recipes++;
    }
  if (!recipes)
    lm_check(c, p, NULL);
}

// Parsed once, as no text can change it.
static const lm_program *library(void) {
  static lm_program *p;
  if (!p)
    p = lm_library_load(lm_ctx_create());
  return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lm_ctx *c = lm_ctx_create_on(library()->c);
  lm_program *p = lm_program_load_with(c, fuzz_file("lm", data, n), library());
  if (p)
    program_check(c, p);
  fuzz_render(c);
  lm_ctx_destroy(c);
  return 0;
}
