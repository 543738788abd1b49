// in_place_test.c - if a kernel may write a result over an operand, doing so changes no bit; and
// kernels that must not are refused. The kernels run here on their own memory, without a plan.
#include "tests/codegen/cache.h"
#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "runtime/base/dtype.h"
#include "runtime/cpu/kernels.h"
#include "tests/runtime/check.h"

enum {
  BUFS = 16
};
typedef struct memory {
  char *buf[BUFS];
  size_t bytes[BUFS];
} memory;

static size_t bytes_of(const lm_module *m, lm_type t) {
  return (size_t)lm_type_elements(m, t) * (size_t)lm_dtype_bytes((lm_dtype)t.dtype);
}

static memory memory_make(const lm_module *m, const lm_op *k, const lm_kernel_code *code) {
  memory x = {0};
  uint32_t n = 0;
  CHECK(k->n_in + k->n_out + (uint32_t)code->n_workspaces <= BUFS);
  for (uint32_t i = 0; i < k->n_in; i++)
    x.bytes[n++] = bytes_of(m, k->in[i]->type);
  for (uint32_t i = 0; i < k->n_out; i++)
    x.bytes[n++] = bytes_of(m, k->out[i]->type);
  for (int i = 0; i < code->n_workspaces; i++)
    x.bytes[n++] = (size_t)code->workspace[i];
  for (uint32_t i = 0; i < n; i++) {
    x.buf[i] = lm_alloc(x.bytes[i]);
    bool whole = i < k->n_in && !lm_dtype_is_float((lm_dtype)k->in[i]->type.dtype);
    for (size_t j = 0; j < x.bytes[i] / 4; j++) {
      uint32_t r = (uint32_t)(i * 7919 + j) * 2654435761u;
      if (whole)
        ((int32_t *)x.buf[i])[j] = (int32_t)(r >> 30);
      else
        ((float *)x.buf[i])[j] = (float)(int32_t)r * 0x1p-31f;
    }
  }
  return x;
}

static void memory_free(memory *x) {
  for (int i = 0; i < BUFS; i++)
    lm_free(x->buf[i]);
}

// Compares result r of the kernel written over operand o with the same result in separate memory.
static bool same_bits(const lm_module *m, const lm_op *k, const lm_kernel_code *code,
                      lm_kernel_fn *fn, uint32_t o, uint32_t r) {
  memory apart = memory_make(m, k, code);
  memory over = memory_make(m, k, code);
  int64_t var[1] = {0};
  char *bufs[BUFS];
  fn(apart.buf, var, 0, code->space.fixed);
  memcpy(bufs, over.buf, sizeof bufs);
  bufs[k->n_in + r] = over.buf[o];
  fn(bufs, var, 0, code->space.fixed);
  bool same = !memcmp(apart.buf[k->n_in + r], over.buf[o], apart.bytes[o]);
  for (uint32_t i = 0; same && i < k->n_out; i++)
    same =
        i == r || !memcmp(apart.buf[k->n_in + i], over.buf[k->n_in + i], apart.bytes[k->n_in + i]);
  memory_free(&apart);
  memory_free(&over);
  return same;
}

typedef struct tally {
  lm_module *m;
  int allowed, refused;
} tally;

static void check_kernel(lm_op *k, void *user) {
  tally *t = user;
  if (k->code != LM_OP_KERNEL)
    return;
  lm_kernel_code code;
  lm_plan_options options = lm_cpu_options();
  CHECK(lm_cpu_kernel_emit(&options, k, t->m->arena, &code));
  lm_plan_kernel one = {.name = code.name, .source = code.source, .origin = ""};
  lm_plan plan = {.prelude = lm_cpu_prelude_text(t->m->arena), .kernels = &one, .n_kernels = 1};
  lm_kernels loaded = {0};
  CHECK_OK(lm_kernels_load(&plan, &(lm_exec_options){0}, 1, &loaded));
  for (uint32_t o = 0; o < k->n_in; o++)
    for (uint32_t r = 0; r < k->n_out; r++) {
      bool may = lm_cpu_kernel_in_place(&options, k, o, r);
      *(may ? &t->allowed : &t->refused) += 1;
      if (may && !same_bits(t->m, k, &code, loaded.fn[0], o, r)) {
        fprintf(stderr, "result %u over operand %u changes the result:\n%s", r, o, code.source);
        exit(1);
      }
    }
  lm_kernels_unload(&loaded);
}

static void check(const char *text, int allowed, int refused) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = lm_module_parse(c, lm_source_add(c, "case.lmir", text, strlen(text)));
  bool ok = false;
  CHECK(m);
  CHECK_OK(lm_pass_run_list(m, "decompose,fuse", &(lm_pass_env){0}, &ok));
  tally t = {.m = m};
  lm_region_walk(m->funcs->body, check_kernel, &t);
  if (t.allowed != allowed || t.refused != refused) {
    fprintf(stderr, "%sallowed %d, not %d; refused %d, not %d\n", text, t.allowed, allowed,
            t.refused, refused);
    exit(1);
  }
  lm_ctx_destroy(c);
}

#define HEAD "stage step\naxis b = 7, d = 130, e = 130, two = 2, three = 2, half = 65\n"

int main(void) {
  cache_begin();
  // each element at one point: both results over both operands
  check(HEAD "func @f(%x: f32[b, d], %y: f32[b, d]) -> (p: f32[b, d], q: f32[b, d]) {\n"
             "  %p = add %x, %y\n  %q = mul %x, %y\n  return %p, %q\n}\n",
        4, 0);
  // a row is read before it is written, and never after
  check(HEAD "func @f(%x: f32[b, d]) -> (p: f32[b, d]) {\n"
             "  %s = sum %x over(d)\n  %t = exp %x\n  %u = mul %t, %s\n  return %u\n}\n",
        1, 0);
  // the same through a view: the operand has the memory of the result, and other axes
  check(HEAD "axis r = 14, c = 65\n"
             "func @f(%x: f32[r, c]) -> (p: f32[b, d]) {\n  %v = view %x (r, c) -> (b, d)\n"
             "  %s = max %v over(d)\n  %u = mul %v, %s\n  return %u\n}\n",
        1, 0);
  check(HEAD "axis r = 14, c = 65\n"
             "func @f(%x: f32[r, c]) -> (p: f32[b, d]) {\n  %v = view %x (r, c) -> (b, d)\n"
             "  %w = slice %v (b) -> (b) [6, -1]\n  %u = exp %w\n  return %u\n}\n",
        0, 1);
  // the first result is written before the sum's pass reads its operand again
  check(HEAD "func @f(%x: f32[b, d]) -> (e: f32[b, d], n: f32[b, d]) {\n"
             "  %e = exp %x\n  %s = sum %e over(d)\n  %k = mul %x, %s\n  return %e, %k\n}\n",
        1, 1);
  // elements other than the one that is written
  check(HEAD "func @f(%x: f32[b, d], %y: f32[d]) -> (p: f32[b, d]) {\n"
             "  %v = view %x (d) -> (two, half)\n  %r = slice %v (two) -> (three) [1, -1]\n"
             "  %w = view %r (three, half) -> (d)\n  %p = add %w, %y\n  return %p\n}\n",
        0, 2);
  check(HEAD "func @f(%x: f32[d, e]) -> (p: f32[d, e]) {\n"
             "  %t = permute %x : f32[e, d]\n  %r = rename %t (e, d) -> (d, e)\n  %p = add %x, "
             "%r\n  return %p\n}\n",
        0, 1);
  // the sums of chunks are not rows of an operand
  check("stage step\naxis b = 300, d = 70\n"
        "func @f(%x: f32[b, d]) -> (s: f32[d]) {\n  %e = exp %x\n  %s = sum %e over(b)\n  return "
        "%s\n}\n",
        0, 2);
  return 0;
}
