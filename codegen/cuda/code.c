// code.c - a kernel as a structure, and its renderings: a function, or statements within
// another kernel.
//
// A body refers to its block by the variables `block` and `grid`, its number and how many there
// are, which the rendering declares. So a few blocks of another kernel can be the blocks of the
// body (merge.c), and one block can be all of them, one after another (prologue.c).
#include <string.h>

#include "codegen/cuda/emit.h"

cuda_code *cuda_code_make(lm_arena *arena, int threads) {
  cuda_code *c = LM_NEW(arena, cuda_code);
  c->arena = arena;
  c->threads = threads;
  return c;
}

void cuda_code_param(cuda_code *c, const char *type, const char *name) {
  LM_PUSH(c->arena, c->params, c->n_params, c->cap_params) = (cuda_param){type, name};
}

void cuda_operand_add(cuda_code *c, lm_dtype t, bool may_alias, const char *name) {
  const char *only = may_alias ? "" : "LM_RESTRICT ";
  cuda_code_param(c, lm_arena_printf(c->arena, "const %s *%s", lm_gen_memory_type(t), only), name);
}

void cuda_result_add(cuda_code *c, lm_dtype t, const char *name) {
  cuda_code_param(c, lm_arena_printf(c->arena, "%s *", lm_gen_memory_type(t)), name);
}

void cuda_code_body(cuda_code *c, lm_buf *arrays, lm_buf *body) {
  c->arrays = arrays && arrays->n ? lm_arena_strndup(c->arena, arrays->p, arrays->n) : "";
  c->body = lm_arena_strndup(c->arena, body->p, body->n);
  if (arrays)
    lm_buf_free(arrays);
  lm_buf_free(body);
}

static void put_block(const char *block, const char *grid, lm_buf *b) {
  lm_buf_printf(b, "const int64_t block = %s, grid = %s;\n(void)block;\n(void)grid;\n", block,
                grid);
}

void cuda_code_put(const cuda_code *c, const char *const *args, const cuda_blocks *at, lm_buf *b) {
  lm_buf_puts(b, "{\n");
  for (uint32_t i = 0; i < c->n_params; i++)
    lm_buf_printf(b, "%s%s = %s;\n", c->params[i].type, c->params[i].name, args[i]);
  lm_buf_puts(b, c->arrays);
  if (at->all)
    lm_buf_printf(b, "for (int32_t number = 0; number < %s; number++) {\n", at->grid);
  put_block(at->all ? "number" : at->block, at->grid, b);
  lm_buf_puts(b, c->body);
  lm_buf_puts(b, at->all ? "lm_barrier();\n}\n}\n" : "}\n");
}

// The addresses of the run-time extents of a mask, extent0, …, and their values, n0, n1, …
static void put_extents(uint32_t mask, lm_buf *b) {
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1)
      lm_buf_printf(b, ", const int64_t *LM_RESTRICT extent%d", i);
}

static void load_extents(uint32_t mask, lm_buf *b) {
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1)
      lm_buf_printf(b, "const int64_t n%d = *extent%d;\n", i, i);
}

static void put_params(const cuda_code *c, lm_buf *b) {
  lm_buf_puts(b, "(");
  for (uint32_t i = 0; i < c->n_params; i++)
    lm_buf_printf(b, "%s%s%s", i ? ", " : "", c->params[i].type, c->params[i].name);
  put_extents(c->extents, b);
  lm_buf_puts(b, c->last_params ? c->last_params : "");
  lm_buf_puts(b, ") {\nlm_grid_begin();\n");
  load_extents(c->extents, b);
}

void cuda_code_render(const cuda_code *c, const char *prefix, lm_arena *arena,
                      lm_kernel_code *out) {
  lm_buf raw = {0}, text = {0};
  put_params(c, &raw);
  put_block("lm_block()", "lm_grid()", &raw);
  lm_buf_puts(&raw, c->arrays);
  lm_buf_puts(&raw, c->body);
  lm_buf_puts(&raw, "}\n");
  lm_gen_indent(raw.p, &text);
  out->body = c;
  out->launch.threads = c->threads;
  out->launch.extents = c->extents;
  out->launch.early = !c->read_only;
  out->name = lm_arena_printf(arena, "%s%016llx", prefix,
                              (unsigned long long)lm_hash(text.p, text.n, (uint64_t)c->threads));
  out->source = lm_arena_printf(arena, "%s(%d) %s%s", c->paired ? "LM_KERNEL_PAIRED" : "LM_KERNEL",
                                c->threads, out->name, text.p);
  lm_buf_free(&raw);
  lm_buf_free(&text);
}
