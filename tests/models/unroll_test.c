// unroll_test.c - a loop means the same however it is lowered: as one loop, in segments, or
// unrolled because a condition depends on its index; a row draws the same random numbers in a
// micro-batch of any size.
#include <math.h>
#include "compiler/eval/eval.h"
#include "dsl/lower/lower.h"
#include "tests/runtime/check.h"

// RATE: an expression of i, the number of a layer, and j, of a step in it
static const char text[] =
    "import std.nn: xent\n"
    "block Step(d, i, j, rate) {\n"
    "  param w: real[d] = normal(1)\n"
    "  apply(x: real[b, t, d]) -> real[b, t, d] { return x + dropout(tanh(x * w) / (i + j + 1), "
    "rate) }\n"
    "}\n"
    "block Layer(d, i, n) {\n"
    "  param w: real[d] = normal(1)\n"
    "  sub steps[j < n] = Step(d, i, j, %s)\n"
    "  apply(x: real[b, t, d]) -> real[b, t, d] {\n"
    "    let y = dropout(x * w, 0.1 * (i + 1))\n"
    "    for s in steps carry y { y = s(y) }\n"
    "    return x + y\n"
    "  }\n"
    "}\n"
    "model M(depth = %d, n = %d, d = 4, vocab = 8) {\n"
    "  param embed: real[vocab, d] = normal(1)\n"
    "  sub layers[i < depth] = Layer(d, i, n)\n"
    "  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {\n"
    "    let x = gather(embed, tok, vocab)\n"
    "    for l in layers carry x { x = l(x) }\n"
    "    for k in 3 carry x { x = dropout(x * (k + 1), %s) }\n"
    "    return dot(x, embed, d)\n"
    "  }\n"
    "  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), "
    "bt.next) * bt.w), sum(bt.w)) }\n"
    "}\n"
    "data D { source s = batches(\"b.safetensors\") }\n"
    "recipe R { model = M(); data = D; run = 1 steps; seed = 3; batch = 64 tokens; micro = 64 "
    "tokens; optimizer = adamw(lr = 1) }\n";

typedef struct {
  const char *rate, *again;
  int depth, steps, loops;
} variant; // loops: in the IR of the loss

static int count_loops(const lm_region *r) {
  int n = 0;
  for (const lm_op *op = r->first; op; op = op->next)
    n += op->code == LM_OP_LOOP ? 1 + count_loops(op->body) : 0;
  return n;
}

static double element(const char *name, int64_t row, int64_t position) {
  if (!strcmp(name, "w"))
    return 1;
  if (!strcmp(name, "pos"))
    return (double)position;
  return strcmp(name, "seg") ? (double)((row * 5 + position * 3) % 8) : 0;
}

static void fill(const lm_func *f, lm_tensor *args, int64_t first_row, int64_t seq) {
  for (uint32_t k = 0; k < 5; k++)
    for (int64_t i = 0; i < args[k].n; i++)
      args[k].v[i] = element(f->body->args[k]->name, first_row + i / seq, i % seq);
  args[5].v[0] = 7;
  args[6].v[0] = (double)first_row;
}

static lm_lowered *lower(lm_ctx *c, const variant *v, int64_t rows) {
  char path[] = "/tmp/lmc-unroll-test-XXXXXX";
  int fd = mkstemp(path);
  FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
  CHECK(out && fprintf(out, text, v->rate, v->depth, v->steps, v->again) > 0 && !fclose(out));
  lm_program *p = lm_program_load(c, path);
  lm_recipe *r = lm_recipe_resolve(c, p, NULL, NULL);
  lm_lowered *l =
      r && !c->n_errors
          ? lm_lower(c, p, r, &(lm_lower_options){.what = LM_LOWER_TRAIN, .rows = rows, .seq = 8})
          : NULL;
  remove(path);
  lm_buf b = {0};
  lm_diag_render(c, &b, 0);
  if (b.n)
    fputs(b.p, stderr);
  CHECK(l);
  return l;
}

// The loss of eight rows, in micro-batches of `rows`, with parameters that depend on their index
// alone.
static double loss_of(const variant *v, int64_t rows) {
  lm_ctx *c = lm_ctx_create();
  lm_lowered *l = lower(c, v, rows);
  const lm_func *f = lm_func_find(l->m, "loss");
  lm_eval *e = lm_eval_create(l->m);
  double total = 0;
  CHECK(count_loops(f->body) == v->loops);
  for (uint32_t i = 0; i < l->m->n_globals; i++) {
    lm_tensor *t = lm_eval_global(e, l->m->globals[i].name);
    for (int64_t k = 0; k < t->n; k++)
      t->v[k] = sin((double)(k * 7 + 1));
  }
  for (int64_t row = 0; row < 8; row += rows) {
    lm_tensor args[7], out[2];
    CHECK(f->body->n_args == 7 && f->n_out == 2);
    for (int i = 0; i < 7; i++)
      args[i] = lm_eval_tensor(e, f->body->args[i]->type);
    fill(f, args, row, 8);
    CHECK_OK(lm_eval_call(e, f, args, out));
    total += out[0].v[0];
    for (int i = 0; i < 7; i++)
      lm_tensor_free(&args[i]);
    for (int i = 0; i < 2; i++)
      lm_tensor_free(&out[i]);
  }
  lm_eval_destroy(e);
  lm_ctx_destroy(c);
  return total;
}

static void same(const variant *x, const variant *y) {
  double a = loss_of(x, 8);
  double b = loss_of(y, 8);
  double rows = loss_of(y, 2);
  printf("%.12g %.12g %.12g\n", a, b, rows);
  CHECK(a > 0 && fabs(a - b) <= 1e-12 * a && fabs(b - rows) <= 1e-12 * a);
}

int main(void) {
  // layers and their steps as loops; unrolled because a rate decides by both numbers, by one of
  // them, by the repetition's
  variant loop = {"0.02 * (i + j)", "0.1 * k", 6, 5, 3};
  same(&loop,
       &(variant){"if i * j > 3 then 0.02 * (i + j) else 0.02 * (i + j)", "0.1 * k", 6, 5, 1});
  same(&loop, &(variant){"if i > 3 then 0.02 * (i + j) else 0.02 * (i + j)", "0.1 * k", 6, 5, 7});
  same(&loop, &(variant){"if j > 3 then 0.02 * (i + j) else 0.02 * (i + j)", "0.1 * k", 6, 5, 2});
  same(&loop, &(variant){"0.02 * (i + j)", "if k == 1 then 0.1 else 0.1 * k", 6, 5, 2});
  // few values make segments; once layers are unrolled, the steps of each have separate numbers and
  // are one segment again
  same(&(variant){"0.1 * (i mod 2 + j)", "0", 6, 2, 3},
       &(variant){"if (i + j) mod 2 == 0 then 0.1 * (i mod 2 + j) else 0.1 * (i mod 2 + j)", "0", 6,
                  2, 6});
  return 0;
}
