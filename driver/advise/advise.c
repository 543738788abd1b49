// advise.c - chooses a model and a number of steps for a text, a machine and a time.
#include "driver/advise/advise.h"

#include <math.h>

#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"

static const int widths[LM_MACHINE_WIDTHS] = {64, 128, 256, 512};

// The speed of a training step relative to its GEMMs alone. Measured on whole runs, in processor
// time with AVX2: 0.53 with 0.4M parameters, 0.71 with 1.4M, 0.65 with 5.8M (quickstart).
#define EFFICIENCY 0.65
#define VOCAB_SHARE_MOST (2.0 / 3) // of the parameters
#define FLOPS_MEASURED 3e9         // of each width
enum {
  ROWS = 512,           // of the GEMMs that are measured
  BYTES_PER_PARAM = 16, // weight, gradient, two moments, all f32
  LOGITS_MOST = 256 << 20,
  MICRO_MOST = 8192, // bytes of a micro-batch's logits, its tokens
  DEV_ROWS = 16,     // minimum number of rows held out
  VOCAB_LEAST = 1024,
  VOCAB_MOST = 32768,
  PARAMS_PER_TOKEN = 10,
  PARAMS_LEAST = 4000000,
};

// ---- the machine

void lm_machine_measure(lm_machine *out) {
  out->load = lm_load_measure();
  out->memory = (double)lm_memory_of_machine();
  for (int i = 0; i < LM_MACHINE_WIDTHS; i++) {
    lm_cpu_linear p = {
        .m = ROWS,
        .k = widths[i],
        .n = 3 * widths[i],
        .count = 1,
    };
    double flops = 6.0 * (double)p.m * (double)p.k * (double)p.n;
    lm_cpu_gemm_times t = lm_cpu_gemm_bench(&p, 1, lm_cpu_has_bf16() ? LM_BF16 : LM_F32,
                                            out->load.cores, 2 + (int)(FLOPS_MEASURED / flops));
    out->flops[i] = flops / (t.forward + t.data + t.weight);
  }
}

static double flops_at(const lm_machine *m, int64_t d) {
  int i = 0;
  while (i + 1 < LM_MACHINE_WIDTHS && widths[i] < d)
    i++;
  return m->flops[i];
}

// ---- the text

static int64_t power_of_two(double x, int64_t least, int64_t most) {
  int64_t n = (int64_t)exp2(round(log2(x > 1 ? x : 1)));
  return n < least ? least : n > most ? most : n;
}

// About one token per kilobyte of text, so that each token is frequent enough to be learned. Below
// 300 kB the tokens are bytes, unless files that are not text are to be left out: a tokenizer of
// bytes takes them.
int64_t lm_advise_vocab(double bytes, bool text_alone) {
  return bytes < 3e5 && !text_alone ? 256 : power_of_two(bytes / 1000, VOCAB_LEAST, VOCAB_MOST);
}

// ---- the model

static const struct {
  int depth;
  int d;
} ladder[] = {{2, 32},   {2, 64},    {3, 96},    {4, 128},   {4, 192},  {6, 256},
              {6, 320},  {6, 384},   {8, 448},   {8, 512},   {10, 640}, {12, 768},
              {14, 896}, {16, 1024}, {20, 1280}, {24, 1536}, {24, 2048}};

bool lm_advice_balanced(const lm_advice *a) {
  return a->vocab <= VOCAB_LEAST || (double)(a->vocab * a->d) <= a->params * VOCAB_SHARE_MOST;
}

int64_t lm_advise_depth(int64_t d) {
  enum {
    WIDE = 2048,
    WIDTH_PER_LAYER = 256
  };
  int64_t depth = ladder[0].depth;
  for (size_t i = 0; i < LM_COUNT(ladder); i++)
    if (ladder[i].d <= d)
      depth = ladder[i].depth;
  return d > WIDE ? depth + (d - WIDE) / WIDTH_PER_LAYER : depth;
}

static void shape_set(lm_advice *a, int64_t depth, int64_t d, const lm_text_facts *text) {
  a->depth = depth;
  a->d = d;
  a->ff = 3 * a->d;
  a->heads = a->d / (a->d < 512 ? 32 : 64);
  a->vocab = text->vocab;
  a->params = (double)a->vocab * (double)a->d +
              (double)a->depth * (double)(a->d * (4 * a->d + 3 * a->ff + 2)) + (double)a->d;
  int64_t most = a->d < 256 ? 128 : a->d < 512 ? 256 : a->d < 1024 ? 512 : 1024;
  a->seq = power_of_two(text->tokens / 64, 32, text->vocab == 256 ? 2 * most : most);
}

static double token_seconds(const lm_advice *a, const lm_machine *m) {
  double flops = 6 * a->params + 12 * (double)(a->depth * a->seq * a->d);
  return flops / (flops_at(m, a->d) * EFFICIENCY);
}

double lm_advice_memory(const lm_advice *a) {
  double position = 8.0 * (double)a->vocab + 4.0 * (double)(a->depth * (12 * a->d + 3 * a->ff));
  return BYTES_PER_PARAM * a->params + position * MICRO_MOST;
}

static double loss_expected(double params, double tokens) {
  return 1.69 + 406.4 / pow(params, 0.34) + 410.7 / pow(tokens, 0.28);
}

// Sets tokens of a step to about the square root of the tokens of the run: some hundred steps for a
// short run, ten thousand for a long one.
static void batch_set(lm_advice *a, double tokens) {
  a->batch = power_of_two(sqrt(tokens), a->seq > 512 ? a->seq : 512, 1 << 20);
  int64_t most = power_of_two((double)LOGITS_MOST / 4 / (double)a->vocab, a->seq, MICRO_MOST);
  a->micro = a->batch < most ? a->batch : most;
  a->lr = fmin(4e-3, fmax(2e-4, 0.5 / (double)a->d));
}

static void speed_set(lm_advice *a, const lm_machine *m, double tokens) {
  a->flops = flops_at(m, a->d);
  a->tokens_per_s = 1 / token_seconds(a, m);
  batch_set(a, tokens);
}

void lm_advise_shape(const lm_machine *m, const lm_text_facts *text, double seconds, int64_t depth,
                     int64_t d, double params, lm_advice *out) {
  *out = (lm_advice){.bound = LM_BOUND_ASKED};
  shape_set(out, depth, d, text);
  out->params = params;
  speed_set(out, m, fmin(seconds / token_seconds(out, m), LM_ADVICE_EPOCHS * text->tokens));
  lm_advise_steps(out, text, seconds, (double)out->batch / out->tokens_per_s);
}

void lm_advise(const lm_machine *m, const lm_text_facts *text, double seconds, int64_t least,
               lm_advice *out) {
  double best = INFINITY;
  double most = LM_ADVICE_EPOCHS * text->tokens;
  bool by_memory = false;
  double params_most = fmax(PARAMS_PER_TOKEN * text->tokens, PARAMS_LEAST);
  for (int i = 0; i < (int)LM_COUNT(ladder); i++) {
    lm_advice a = {0};
    int64_t depth = ladder[i].depth;
    shape_set(&a, depth > least ? depth : least, ladder[i].d, text);
    if (i && a.params > params_most)
      break;
    double fit = seconds / token_seconds(&a, m);
    double tokens = fmin(fit, most);
    double loss = loss_expected(a.params, tokens);
    bool fits = lm_advice_memory(&a) <= m->memory / 2;
    by_memory = by_memory || (!fits && loss < best);
    if (i && (!fits || loss >= best))
      continue;
    best = loss;
    *out = a;
    speed_set(out, m, tokens);
  }
  if (by_memory)
    out->bound = LM_BOUND_MEMORY;
  lm_advise_steps(out, text, seconds, (double)out->batch / out->tokens_per_s);
}

// ---- the run

// Rounds down to two digits.
static int64_t rounded(double n) {
  double unit = fmax(1, pow(10, floor(log10(fmax(n, 1))) - 1));
  int64_t r = (int64_t)(floor(n / unit) * unit);
  return r < 1 ? 1 : r;
}

// Evaluations read the held-out part at a third of a step's cost; together they should take at most
// about 2 % of the run.
static void holdout_set(lm_advice *a, const lm_text_facts *text) {
  double run = (double)(a->steps * a->batch);
  double dev = fmax(fmin(0.01 * text->tokens, 0.02 * 3 / LM_ADVICE_REPORTS * run),
                    (double)(DEV_ROWS * a->seq));
  double digits = pow(10, floor(log10(dev / text->tokens)));
  a->holdout = fmin(0.2, ceil(dev / text->tokens / digits) * digits);
}

void lm_advise_steps(lm_advice *a, const lm_text_facts *text, double seconds, double step_seconds) {
  double by_time = seconds / step_seconds;
  double by_text = LM_ADVICE_EPOCHS * text->tokens / (double)a->batch;
  a->text_ends = by_text < by_time;
  if (a->bound != LM_BOUND_MEMORY && a->bound != LM_BOUND_ASKED)
    a->bound = a->text_ends ? LM_BOUND_TEXT : LM_BOUND_TIME;
  a->every = rounded(fmin(by_time, by_text) / LM_ADVICE_REPORTS);
  a->steps = LM_ADVICE_REPORTS * a->every; // the last one is evaluated, saved and sampled too
  a->warmup = a->steps < 20 ? 1 : a->steps < 3000 ? a->steps / 10 : 300;
  a->tokens_per_s = (double)a->batch / step_seconds;
  holdout_set(a, text);
}
