// model_grad_test.c - a hand-written model like Llama (tests/ir/llama.lmir): its gradients against
// finite differences, after each group of clean-up passes.
#include "tests/numeric/grad_check.h"

static double check(const char *passes) {
  lm_buf text = {0};
  lm_ctx *c = lm_ctx_create();
  CHECK_OK(lm_file_read("tests/ir/llama.lmir", 1 << 20, &text));
  lm_module *m = must_parse(c, "llama.lmir", text.p, text.n);
  must_run(m, passes);
  if (getenv("SHOW")) {
    lm_buf b = {0};
    lm_module_print(m, &b);
    puts(b.p);
    lm_buf_free(&b);
  }
  lm_eval *e = lm_eval_create(m);
  uint64_t rng = 7;
  for (uint32_t i = 0; i < m->n_globals; i++)
    fill_real(lm_eval_global(e, m->globals[i].name), -0.7, 0.9, &rng);
  const lm_func *loss = lm_func_find(m, "loss");
  lm_tensor args[5];
  for (int i = 0; i < 5; i++)
    args[i] = lm_eval_tensor(e, loss->body->args[i]->type);
  fill_int(&args[0], 11, &rng);
  for (int64_t i = 0; i < args[1].n; i++) {
    args[1].v[i] = (double)(i % 5);
    args[2].v[i] = i / 5;
  }
  fill_int(&args[3], 11, &rng);
  fill_real(&args[4], 0, 1, &rng);
  CHECK(grad_check(m, e, args, 3, 1e-8) > 150);
  double value = first_result(e, lm_func_find(m, "loss"), args);
  for (int i = 0; i < 5; i++)
    lm_tensor_free(&args[i]);
  lm_eval_destroy(e);
  lm_ctx_destroy(c);
  lm_buf_free(&text);
  return value;
}

int main(void) {
  double plain = check("inline,grad");
  CHECK(fabs(plain - check("inline,simplify,cse,licm,dce,grad")) < 1e-12 * fabs(plain));
  CHECK(fabs(plain - check("inline,simplify,cse,licm,dce,grad,simplify,cse,licm,dce")) <
        1e-12 * fabs(plain));
}
