// eval_test.c - the reference interpreter: indices, extents, integers, random numbers, rounding.
// op_grad_test.c checks derivatives against its finite differences.
#include "runtime/base/philox.h"
#include "tests/numeric/grad_check.h"

static const char text[] =
    "stage step\n"
    "axis b = 2, t = 4 dyn 1, s = 6 dyn 2, v = 3, k = 5\n"
    "param @w : f32[v, b] stacked 1 as @w.# = zeros\n"
    "cache @c : f32[v, b, s] stacked 1\n"
    "func @ints(%a: int[k], %d: int[k]) -> (q: int[k], r: int[k], p: int[k], n: int[k]) {\n"
    "  %q = idiv %a, %d  %r = mod %a, %d  %p = mul %a, %d  %n = neg %a  return %q, %r, %p, %n\n}\n"
    "func @gather(%x: f32[v], %i: int[k]) -> (g: f32[k], s: f32[v]) {\n"
    "  %g = gather %x, %i over(v)  %s = scatter_add %g, %i over(v) : f32[v]  return %g, %s\n}\n"
    "func @append(%x: f32[b, t], %at: int, %i: int) -> (c: f32[b, s]) {\n"
    "  %c = append @c[%i * -1 + 2], %at, %x (t) -> (s)  return %c\n}\n"
    "func @rng(%step: int, %row: int) -> (u: f32[b, k]) {\n"
    "  %layer = const 3 : int  %i = iota : int[b]  %r = add %i, %row  %first = const 2 : int\n"
    "  %u = rng %step, %r, %first, %layer [1337, 42, 9] : f32[b, k]  return %u\n}\n"
    "func @round(%x: f32[b]) -> (y: bf16[b], z: f32[b]) {\n"
    "  %y = cast %x : bf16[b]  %c = const 0.1 : f32  %z = add %x, %c  return %y, %z\n}\n"
    "func @part(%i: int) -> (w: f32[b]) {\n  %w = param @w[%i]  return %w\n}\n"
    "func @argmax(%x: f32[b, k]) -> (i: int, m: f32[b], a: int[b]) {\n"
    "  %i = argmax %x over(b, k)  %m = max %x over(k)  %a = argmax %x over(k)  return %i, %m, "
    "%a\n}\n";

static lm_tensor given(lm_eval *e, const lm_func *f, int arg, const double *v) {
  lm_tensor t = lm_eval_tensor(e, f->body->args[arg]->type);
  for (int64_t i = 0; i < t.n; i++)
    t.v[i] = v[i];
  return t;
}

static void free_all(lm_tensor *t, int n) {
  while (n--)
    lm_tensor_free(&t[n]);
}

static void expect(const lm_tensor *t, const double *want) {
  for (int64_t i = 0; i < t->n; i++)
    if (t->v[i] != want[i]) {
      fprintf(stderr, "[%lld] is %.17g, not %.17g\n", (long long)i, t->v[i], want[i]);
      exit(1);
    }
}

static void run(lm_eval *e, lm_module *m, const char *name, const double *const *args,
                lm_tensor *out) {
  const lm_func *f = lm_func_find(m, name);
  lm_tensor in[4];
  for (uint32_t i = 0; i < f->body->n_args; i++)
    in[i] = given(e, f, (int)i, args[i]);
  CHECK_OK(lm_eval_call(e, f, in, out));
  free_all(in, (int)f->body->n_args);
}

static void check_ints(lm_eval *e, lm_module *m) {
  const double a[] = {7, -7, 5, 2000000000, -2147483648.0}, d[] = {3, 3, 0, 2000000001, 1};
  lm_tensor out[4];
  run(e, m, "ints", (const double *[]){a, d}, out);
  expect(&out[0], (double[]){2, -3, 0, 0, -2147483648.0});
  expect(&out[1], (double[]){1, 2, 0, 2000000000, 0});
  expect(&out[2], (double[]){21, -21, 0, (double)(int32_t)(uint32_t)(2000000000ll * 2000000001ll),
                             -2147483648.0});
  expect(&out[3], (double[]){-7, 7, -5, -2000000000, -2147483648.0});
  free_all(out, 4);
}

// An index out of bounds reads the nearest row, and adds to the nearest row.
static void check_gather(lm_eval *e, lm_module *m) {
  lm_tensor out[2];
  run(e, m, "gather", (const double *[]){(double[]){10, 20, 30}, (double[]){2, -1, 0, 2, 9}}, out);
  expect(&out[0], (double[]){30, 10, 10, 30, 30});
  expect(&out[1], (double[]){20, 0, 90});
  free_all(out, 2);
}

// Appends two positions, then one. The result has the current extent, the cache its capacity.
static void check_append(lm_eval *e, lm_module *m) {
  lm_tensor out;
  lm_eval_extent_set(e, 1, 2);
  lm_eval_extent_set(e, 2, 2);
  run(e, m, "append", (const double *[]){(double[]){1, 2, 3, 4}, (double[]){0}, (double[]){1}},
      &out);
  expect(&out, (double[]){1, 2, 3, 4});
  lm_tensor_free(&out);
  lm_eval_extent_set(e, 1, 1);
  lm_eval_extent_set(e, 2, 3);
  run(e, m, "append", (const double *[]){(double[]){5, 6}, (double[]){2}, (double[]){1}}, &out);
  expect(&out, (double[]){1, 2, 5, 3, 4, 6});
  expect(&(lm_tensor){.n = 12, .v = lm_eval_global(e, "c")->v + 12},
         (double[]){1, 2, 5, 0, 0, 0, 3, 4, 6, 0, 0, 0});
  lm_tensor_free(&out);
}

static void check_rng(lm_eval *e, lm_module *m) {
  lm_tensor out;
  run(e, m, "rng", (const double *[]){(double[]){7}, (double[]){10}}, &out);
  for (uint32_t i = 0; i < 10; i++) {
    uint32_t element = (10 + i / 5) * 9 + 2 + i % 5; // rows from 10, columns 2 to 6 of 9
    lm_philox4 w = lm_philox((lm_philox4){{element / 4, 0, 3, 7}}, lm_philox_key(1337, 42));
    CHECK(out.v[i] == lm_philox_unit(w.v[element % 4]));
  }
  lm_tensor_free(&out);
  run(e, m, "rng", (const double *[]){(double[]){7}, (double[]){-2}}, &out);
  uint64_t element = (uint64_t)UINT32_MAX * 9 + 2; // the number of a row is unsigned
  lm_philox4 w =
      lm_philox((lm_philox4){{(uint32_t)(element / 4), (uint32_t)(element / 4 >> 32), 3, 7}},
                lm_philox_key(1337, 42));
  CHECK(out.v[5] == lm_philox_unit(w.v[element % 4]));
  lm_tensor_free(&out);
}

static void check_round(lm_eval *e, lm_module *m) {
  lm_tensor out[2];
  lm_eval_round_set(e, true);
  run(e, m, "round", (const double *[]){(double[]){1.00390625, 1.01171875}}, out);
  expect(&out[0], (double[]){1, 1.015625}); // ties round to even
  expect(&out[1], (double[]){(double)(float)(1.00390625 + (double)0.1f),
                             (double)(float)(1.01171875 + (double)0.1f)});
  lm_eval_round_set(e, false);
  free_all(out, 2);
}

static void check_place(lm_eval *e, lm_module *m) {
  const lm_func *f = lm_func_find(m, "part");
  lm_tensor in = given(e, f, 0, (double[]){3}), out;
  CHECK_FAILS(lm_eval_call(e, f, &in, &out), LM_BUG_STATUS, "param: index 3, size 3");
  in.v[0] = 2;
  CHECK_OK(lm_eval_call(e, f, &in, &out));
  lm_tensor_free(&out);
  lm_tensor_free(&in);
}

static void check_argmax(lm_eval *e, lm_module *m) {
  lm_tensor out[3];
  run(e, m, "argmax", (const double *[]){(double[]){1, 5, 2, 5, 0, 9, 9, 1, 9, 2}}, out);
  expect(&out[0], (double[]){5});
  expect(&out[1], (double[]){5, 9});
  expect(&out[2], (double[]){1, 0});
  free_all(out, 3);
}

int main(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = must_parse(c, "eval.lmir", text, strlen(text));
  lm_eval *e = lm_eval_create(m);
  check_ints(e, m);
  check_gather(e, m);
  check_append(e, m);
  check_rng(e, m);
  check_round(e, m);
  check_place(e, m);
  check_argmax(e, m);
  lm_eval_destroy(e);
  lm_ctx_destroy(c);
}
