// gpu_models_test.c - every recipe of every model of the tree has a plan for GPUs of each
// generation, whose functions have the ports of contract/functions.def. Kernels are written but not
// compiled, so this needs neither a GPU nor NVRTC.
// Build: plain
#include <glob.h>
#include <string.h>

#include "driver/session.h"
#include "tests/runtime/check.h"

static const char *const models[] = {"examples/*.lm", "tests/models/*/*.lm",
                                     "tests/reference/*/*.lm"};
static const char *const archs[] = {"sm_80", "sm_90a", "sm_100a", "sm_120"};

static void test_ports(const lm_plan_func *f, const lm_plan_port *ports, int n, uint32_t listed) {
  for (int i = 0; i < n; i++) {
    lm_port_id id = ports[i].id;
    bool known = id < LM_PORTS && listed & LM_PORT_BIT(id);
    if (known ? ports[i].buf.arena == lm_role_arena(lm_port_table[id].role)
              : lm_func_table[f->key.id].form & LM_FUNC_OPEN)
      continue;
    fprintf(stderr, "functions.def does not list port %s of %s\n", ports[i].name, f->name);
    exit(1);
  }
}

static void test_functions(const lm_plan *plan) {
  for (int i = 0; i < plan->n_funcs; i++) {
    const lm_plan_func *f = &plan->funcs[i];
    CHECK(f->key.id < LM_FUNCS);
    test_ports(f, f->in, f->n_in, lm_func_table[f->key.id].takes);
    test_ports(f, f->out, f->n_out, lm_func_table[f->key.id].gives);
  }
}

static void test_recipe(const char *path, const char *recipe, const char *arch) {
  lm_ctx *c = lm_ctx_create();
  lm_session s = {0};
  CHECK_OK(lm_target_find(arch, &s.target));
  lm_recipe_choice choice = {.path = path, .recipe = recipe};
  lm_status failed = lm_session_open(&s, c, NULL, &choice);
  if (!failed)
    failed = lm_session_sizes(&s);
  if (!failed)
    failed = lm_session_compile_run(&s, 0);
  if (failed || !s.compiled.plan->n_kernels) {
    lm_buf why = {0};
    lm_diag_render(c, &why, 0);
    fprintf(stderr, "%s, recipe %s, %s: no plan\n%s%s\n", path, recipe, arch, why.n ? why.p : "",
            failed && failed->text ? failed->text : "");
    exit(1);
  }
  test_functions(s.compiled.plan);
  lm_session_close(&s);
  lm_ctx_destroy(c);
}

static int test_model(const char *path) {
  lm_ctx *c = lm_ctx_create();
  lm_program *p = lm_program_load(c, path);
  CHECK(p && !c->n_errors);
  const ast_file *tree = p->files[0]->tree;
  int n = 0;
  for (uint32_t i = 0; i < tree->n; i++)
    for (size_t k = 0; tree->v[i]->kind == DC_RECIPE && k < LM_COUNT(archs); k++, n++)
      test_recipe(path, tree->v[i]->name.text, archs[k]);
  lm_ctx_destroy(c);
  return n;
}

int main(void) {
  int plans = 0;
  for (size_t i = 0; i < LM_COUNT(models); i++) {
    glob_t found;
    CHECK(!glob(models[i], 0, NULL, &found));
    for (size_t k = 0; k < found.gl_pathc; k++)
      plans += test_model(found.gl_pathv[k]);
    globfree(&found);
  }
  printf("%d plans\n", plans);
  CHECK(plans > 100);
}
