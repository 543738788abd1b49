// decode_bench.c - generation against the bandwidth of memory, and a prompt against a forward pass:
//   decode_bench [f32|bf16 [THREADS [FILE [RECIPE]]]]
// For a model with fresh parameters (examples/bench-124m.lm): milliseconds of a token through
// @decode, the bytes of weights that it reads per second, and the share of the rate at which the
// same threads read as much memory in a plain loop; tokens per second of a prompt of 512 through
// @prefill and of a row of 512 through @apply. The measurements alternate, and each is the least of
// several, so that they can be compared on a busy machine; on one thread they are processor time.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "driver/compile.h"
#include "dsl/lower/lower.h"
#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/exec.h"
#include "runtime/cpu/gemm.h"
#include "runtime/plan/walk.h"
#include "runtime/train/init.h"
#include "runtime/train/ports.h"
#include "tests/runtime/check.h"

enum {
  PROMPT = 512,
  CAPACITY = 1024,
  ROUNDS = 4,
  TOKENS = 12 // in each round
};

typedef struct bench {
  lm_ctx *c;
  lm_plan *plan;
  lm_exec *exec;
  lm_team *team;
  int64_t chunk, vocab;
  char *stream; // as many bytes, in huge pages too; NULL before the first use
  double least_token, least_stream, least_prompt, least_apply;
} bench;

static double now(const bench *b) {
  return lm_team_size(b->team) > 1 ? lm_now() : lm_thread_seconds();
}

static void bench_open(bench *b, const char *path, const char *recipe, lm_dtype compute,
                       int threads) {
  lm_ctx *c = b->c = lm_ctx_create();
  lm_program *p = lm_program_load(c, path);
  lm_recipe *r = p ? lm_recipe_resolve(c, p, recipe, NULL) : NULL;
  lm_lower_options o = {.what = LM_LOWER_APPLY | LM_LOWER_DECODE,
                        .rows = 1,
                        .seq = PROMPT,
                        .capacity = CAPACITY,
                        .chunk = LM_PREFILL_CHUNK};
  lm_lowered *l = r && !c->n_errors ? lm_lower(c, p, r, &o) : NULL;
  CHECK(l);
  lm_plan_options target = {.codegen = &lm_cpu_codegen};
  lm_cpu_target_find(&target.target);
  target.codegen->choose(&target.target);
  lm_pass_env env = {.target = &target.target, .codegen = target.codegen, .compute = compute};
  CHECK(lm_pipeline_run(l->m, LM_STAGE_KERNEL, &env));
  b->plan = lm_plan_build(l->m, &target);
  CHECK(b->plan);
  CHECK_OK(lm_cpu_exec_create(b->plan, &(lm_exec_options){.threads = threads}, &b->exec));
  b->team = lm_team_create(threads);
  b->chunk = LM_PREFILL_CHUNK;
  b->vocab = l->vocab;
  b->least_token = b->least_stream = b->least_prompt = b->least_apply = 1e30;
  CHECK_OK(lm_init_params(b->exec, b->plan, 5));
}

// ---- what decoding reads

// Bytes of B of all GEMMs of @decode on parameters or on copies of them.
static double weight_bytes(const bench *b) {
  const lm_plan_func *f = lm_plan_func_find(b->plan, "decode");
  double sum = 0;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (s->kind != LM_STEP_GEMM)
      continue;
    uint8_t arena = s->bufs[1].arena;
    if (arena != LM_ARENA_PARAM && arena != LM_ARENA_COPY)
      continue;
    sum += (double)(lm_plan_step_times(f, i) * s->bufs[1].bytes);
  }
  return sum;
}

// ---- the loop

typedef struct stream {
  const char *p;
  int64_t bytes;
  int threads;
  uint64_t sink[64];
} stream;
typedef uint64_t words __attribute__((vector_size(64), aligned(8)));

// Whole cache lines at a time: vectors of 16 bytes read at 0.88 of the rate.
#ifdef __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
stream_run(void *user, int me) {
  enum {
    STEP = 8
  };
  stream *s = user;
  int64_t n = s->bytes / (int64_t)sizeof(words) / s->threads / STEP * STEP;
  const words *p = (const words *)s->p + me * n;
  words sum[STEP] = {{0}};
  for (int64_t i = 0; i < n; i += STEP)
    _Pragma("GCC unroll 8") for (int j = 0; j < STEP; j++) sum[j] += p[i + j];
  for (int j = 1; j < STEP; j++)
    sum[0] += sum[j];
  s->sink[me % 64] = sum[0][0] + sum[0][1];
}

static double stream_time(bench *b, double bytes) {
  if (!b->stream)
    b->stream = lm_cpu_matrix_make((int64_t)bytes / 4, LM_F32);
  stream s = {b->stream, (int64_t)bytes, lm_team_size(b->team), {0}};
  double start = now(b);
  lm_team_run(b->team, stream_run, &s);
  return now(b) - start;
}

// ---- calls

static double call_time(const bench *b, const char *name, int64_t n, int64_t at) {
  const lm_plan_func *f = lm_plan_func_find(b->plan, name);
  bool cached = strcmp(name, "apply") != 0;
  lm_batch_ports in;
  CHECK_OK(lm_batch_ports_open(b->exec, b->plan, f, &in));
  for (int64_t i = 0; i < n; i++) {
    in.batch.tok[i] = (int32_t)((i * 7 + at * 3) % b->vocab);
    in.batch.pos[i] = (int32_t)(at + i);
    in.batch.seg[i] = 0;
  }
  int64_t extents[LM_COUNT(b->plan->extents)] = {[LM_EXTENT_CONTEXT - 1] = at + n,
                                                 [LM_EXTENT_CHUNK - 1] = n};
  if (cached)
    lm_port_set(b->exec, f, LM_PORT_AT, (double)at);
  double start = now(b);
  CHECK_OK(lm_exec_call(b->exec, f, cached ? extents : NULL));
  double took = now(b) - start;
  lm_batch_ports_close(&in);
  return took;
}

static double prompt_time(const bench *b) {
  double sum = 0;
  for (int64_t at = 0; at < PROMPT; at += b->chunk)
    sum += call_time(b, "prefill", b->chunk < PROMPT - at ? b->chunk : PROMPT - at, at);
  return sum;
}

static void round_run(bench *b, double bytes) {
  b->least_prompt = fmin(b->least_prompt, prompt_time(b));
  for (int i = 0; i < TOKENS; i++) {
    b->least_token = fmin(b->least_token, call_time(b, "decode", 1, PROMPT + i));
    b->least_stream = fmin(b->least_stream, stream_time(b, bytes));
  }
  b->least_apply = fmin(b->least_apply, call_time(b, "apply", PROMPT, 0));
}

int main(int argc, char **argv) {
  bench b = {0};
  lm_dtype compute = argc > 1 && !strcmp(argv[1], "bf16") ? LM_BF16 : LM_F32;
  int threads = argc > 2 ? atoi(argv[2]) : lm_processors();
  bench_open(&b, argc > 3 ? argv[3] : "examples/bench-124m.lm", argc > 4 ? argv[4] : "Bench",
             compute, threads);
  double bytes = weight_bytes(&b);
  for (int i = 0; i < ROUNDS; i++)
    round_run(&b, bytes);
  printf("%s, %d threads: %.0f MB of weights\n", lm_dtype_name(compute), threads, bytes * 1e-6);
  printf("token  %8.2f ms  %6.1f GB/s  %3.0f %% of the %.1f GB/s that a loop reads\n",
         b.least_token * 1e3, bytes / b.least_token * 1e-9, 100 * b.least_stream / b.least_token,
         bytes / b.least_stream * 1e-9);
  printf("prompt %8.1f tok/s  %.2f of a forward pass over a row, %.1f tok/s\n",
         PROMPT / b.least_prompt, b.least_apply / b.least_prompt, PROMPT / b.least_apply);
  lm_team_destroy(b.team);
  lm_exec_destroy(b.exec);
  lm_free(b.stream);
  lm_ctx_destroy(b.c);
}
