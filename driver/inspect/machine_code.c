// machine_code.c - see machine_code.h.
#include "driver/inspect/machine_code.h"

int64_t lm_machine_code_bytes(const lm_cuda_code *c) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < c->n_images; i++)
    bytes += (int64_t)c->images[i].n;
  return bytes;
}

static long long shared_bytes(const lm_plan_kernel *k, const lm_cuda_kernel *x) {
  return (long long)x->shared + k->launch.shared;
}

static void flaw_print(const lm_plan *plan, const lm_cuda_code *c, int i, lm_buf *out) {
  lm_buf why = {0};
  if (lm_cuda_kernel_flaw(&c->kernels[i], &why))
    lm_buf_printf(out, "%s: warning: %s\n", plan->kernels[i].name, why.p);
  lm_buf_free(&why);
}

void lm_machine_code_table(const lm_plan *plan, const lm_cuda_code *c, lm_buf *out) {
  lm_buf_puts(out, "kernel             threads  registers  spilled  shared  source\n");
  for (int i = 0; i < plan->n_kernels; i++) {
    const lm_plan_kernel *k = &plan->kernels[i];
    const lm_cuda_kernel *x = &c->kernels[i];
    lm_buf_printf(out, "%-18s %7d %10d %8d %7lld  %s\n", k->name, k->launch.threads, x->registers,
                  x->spilled, shared_bytes(k, x), k->origin ? k->origin : "");
  }
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].launch.note)
      lm_buf_printf(out, "%s: %s\n", plan->kernels[i].name, plan->kernels[i].launch.note);
  for (int i = 0; i < plan->n_kernels; i++)
    flaw_print(plan, c, i, out);
}

void lm_machine_code_json(const lm_plan *plan, const lm_cuda_code *c, lm_buf *out) {
  lm_buf_puts(out, "[");
  for (int i = 0; i < plan->n_kernels; i++) {
    const lm_plan_kernel *k = &plan->kernels[i];
    const lm_cuda_kernel *x = &c->kernels[i];
    lm_buf_printf(out,
                  "%s{\"kernel\": \"%s\", \"threads\": %d, \"registers\": %d, \"spilled\": %d, "
                  "\"shared\": %lld, \"serialized\": %s, \"source\": ",
                  i ? ", " : "", k->name, k->launch.threads, x->registers, x->spilled,
                  shared_bytes(k, x), x->hindered ? "true" : "false");
    lm_buf_json(out, k->origin ? k->origin : "");
    if (k->launch.note)
      lm_buf_puts(out, ", \"note\": ");
    if (k->launch.note)
      lm_buf_json(out, k->launch.note);
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]");
}

lm_status lm_machine_code_write(const lm_plan *plan, const lm_cuda_code *c, const char *dir) {
  lm_arena *a = lm_arena_create();
  lm_buf table = {0};
  lm_machine_code_table(plan, c, &table);
  lm_status s = lm_file_write_atomic(lm_path_join(a, dir, "kernels.txt"), table.p, table.n);
  for (uint32_t i = 0; !s && i < c->n_images; i++)
    s = lm_file_write_atomic(lm_path_join(a, dir, lm_arena_printf(a, "kernels/%u.cubin", i)),
                             c->images[i].bytes, c->images[i].n);
  lm_buf_free(&table);
  lm_arena_destroy(a);
  return s;
}
