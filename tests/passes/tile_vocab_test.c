// tile_vocab_test.c - the GEMM with the vocabulary and its loss in tiles of rows: the numbers equal
// the untiled model's, forward and backward passes are one loop, and no tensor has the logits of
// all rows. With padded logits (pass pad_gemms) the numbers are equal too.
// Build: plain
#include "tests/numeric/grad_check.h"

// 1024 rows of 4104 logits: two iterations of 512 rows. Tied embeddings, a bias of the logits, soft
// capping, label smoothing and a z-loss.
static const char head[] =
    "stage graph\naxis b = 4, t = 256, d = 2, v = 4104\n"
    "param @embed : f32[v, d]\nparam @head : f32[v, d]\nparam @bias : f32[v]\nparam @scale : "
    "f32[d]\n"
    "func @loss(%tok: int[b, t], %next: int[b, t], %w: f32[b, t]) -> (sum: f32, weight: f32) {\n"
    "  %e = param @embed : f32[v, d]\n  %s = param @scale : f32[d]\n"
    "  %x0 = gather %e, %tok over(v)\n  %x1 = mul %x0, %s\n  %x = tanh %x1\n";
static const char tied[] = "  %z = dot %x, %e over(d)\n";
static const char untied[] = "  %h = param @head : f32[v, d]\n  %bias = param @bias : f32[v]\n  "
                             "%z0 = dot %x, %h over(d)\n  %z = add %z0, %bias\n";
static const char direct[] = "  %zero = const 0 : f32\n  %one = const 1 : f32\n  %c = mul %z, "
                             "%one\n";
static const char plain[] = "  %c = mul %z, %z\n  %zero = const 0.125 : f32\n";
static const char capped[] = "  %cap = const 3 : f32\n  %z1 = div %z, %cap\n  %z2 = tanh %z1\n  %c "
                             "= mul %z2, %cap\n  %zero = const 0.1 : f32\n";
static const char tail[] = "  %m0 = max %c over(v)\n  %m = stop_grad %m0\n  %y = sub %c, %m\n  %x2 "
                           "= exp %y\n  %n = sum %x2 over(v)\n  %l = log %n\n"
                           "  %g = gather %y, %next over(v)\n  %nll = sub %l, %g\n  %all = sum %y "
                           "over(v)\n  %eps = const 0.001 : f32\n"
                           "  %smooth = mul %all, %eps\n  %a = sub %nll, %smooth\n  %lse = add %l, "
                           "%m\n  %sq = mul %lse, %lse\n  %zl = mul %sq, %zero\n"
                           "  %rows = add %a, %zl\n  %r = mul %rows, %w\n  %total = sum %r over(b, "
                           "t)\n  %weight = sum %w over(b, t)\n"
                           "  return %total, %weight\n}\n";

typedef struct shape {
  lm_module *m;
  int loops;
  int64_t largest;
} shape; // of @micro: its loops, elements of its largest GEMM result

static void look(lm_op *op, void *user) {
  shape *s = user;
  s->loops += op->code == LM_OP_LOOP;
  for (uint32_t i = 0; op->code == LM_OP_DOT && i < op->n_out; i++)
    if (lm_type_elements(s->m, op->out[i]->type) > s->largest)
      s->largest = lm_type_elements(s->m, op->out[i]->type);
}

static shape shape_of(const micro_run *r) {
  shape s = {.m = r->m};
  lm_region_walk(lm_func_find(r->m, "micro")->body, look, &s);
  return s;
}

static void fill(lm_tensor *args, uint64_t *state) {
  fill_int(&args[0], 4104, state);
  fill_int(&args[1], 4104, state);
  fill_real(&args[2], 0, 1, state);
}

static void compare(const char *projection, const char *logits) {
  lm_buf text = {0};
  const char *parts_of[] = {head, projection, logits, tail};
  for (size_t i = 0; i < LM_COUNT(parts_of); i++)
    lm_buf_puts(&text, parts_of[i]);
  micro_run whole = micro_run_make("tile_vocab", text.p, "grad,simplify,cse,dce", fill);
  micro_run parts = micro_run_make(
      "tile_vocab", text.p,
      "simplify,cse,dce,tile_vocab,dce,grad,simplify,cse,dce,fuse_loops,cse,dce", fill);
  micro_run padded = micro_run_make("pad_gemms", text.p,
                                    "simplify,cse,dce,pad_gemms,dce,grad,simplify,cse,dce", fill);
  shape before = shape_of(&whole);
  shape after = shape_of(&parts);
  lm_buf_free(&text);
  CHECK(before.loops == 0 && before.largest == 1024 * 4104);
  CHECK(after.loops == 1 && after.largest == 512 * 4104);
  CHECK(micro_runs_agree(&whole, &parts) >= 2);
  CHECK(shape_of(&padded).largest == 1024 * 4160);
  CHECK(micro_runs_agree(&whole, &padded) >= 2);
  micro_run_free(&whole);
  micro_run_free(&parts);
  micro_run_free(&padded);
}

int main(void) {
  compare(tied, plain);
  compare(untied, capped);
  compare(tied, capped);
  compare(tied, direct);
  return 0;
}
