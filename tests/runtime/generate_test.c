// Sampling; generation on a hand-made plan: the prompt in chunks, greedy and drawn continuations,
// refusals.
#include "runtime/infer/generate.h"
#include "tests/runtime/bigram.h"

static lm_candidate candidates[VOCAB];

static int32_t draw(lm_sampler s, const float *z, int32_t n, int64_t position) {
  lm_draw_rule rule = lm_sample_rule(&s, n, position);
  return lm_sample(&rule, z, n, candidates);
}

static void test_sample(void) {
  float z[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)}, ties[3] = {1, 2, 2},
        bad[2] = {1, NAN}, wide[2] = {1000, -1000};
  CHECK(draw((lm_sampler){.temperature = 0}, z, 4, 0) == 1 &&
        draw((lm_sampler){.temperature = 0}, ties, 3, 0) == 1);
  CHECK(draw((lm_sampler){.temperature = 1}, wide, 2, 0) == 0);
  CHECK_FAILS(lm_sample_id_check(draw((lm_sampler){.temperature = 1}, bad, 2, 0)), LM_USER,
              "logits are NaN");
  int all[4] = {0}, k2[4] = {0}, p[4] = {0}, hot[4] = {0};
  for (int i = 0; i < 20000; i++) {
    all[draw((lm_sampler){.temperature = 1, .seed = 5}, z, 4, i)]++;
    k2[draw((lm_sampler){.temperature = 1, .top_k = 2, .seed = 5}, z, 4, i)]++;
    p[draw((lm_sampler){.temperature = 1, .top_p = 0.75, .seed = 5}, z, 4, i)]++;
    hot[draw((lm_sampler){.temperature = 1e9, .top_p = 1, .seed = 6}, z, 4, i)]++;
  }
  for (int i = 0; i < 4; i++)
    CHECK(abs(all[i] - (int)(20000 * expf(z[i]))) < 400 && abs(hot[i] - 5000) < 300);
  CHECK(!k2[0] && !k2[2] && abs(k2[1] - 20000 * 4 / 7) < 400);
  CHECK(!p[0] && p[2] &&
        abs(p[1] - 20000 * 4 / 9) < 400); // 0.4 + 0.3 < 0.75: the third is taken too
}

typedef struct {
  int32_t ids[100];
  int n, most;
} output;
static bool collect(void *user, int32_t id) {
  output *o = user;
  o->ids[o->n++] = id;
  return !o->most || o->n < o->most;
}

static void test_generate(void) {
  lm_arena *a = lm_arena_create();
  lm_plan *plan = bigram_plan(a);
  lm_exec *e = bigram_exec(a, plan);
  for (int i = 0; i < VOCAB; i++)
    floats(e, LM_ARENA_PARAM)[i * VOCAB + (i + 3) % VOCAB] = 4; // after i comes i + 3
  int32_t prompt[] = {9, 9, 9, 9, 1};
  output out = {0};
  lm_generate_options o = {.plan = plan,
                           .exec = e,
                           .prompt = prompt,
                           .n_prompt = 5,
                           .n = 6,
                           .eos = -1,
                           .token = collect,
                           .user = &out};
  CHECK_OK(lm_generate(&o));
  CHECK(out.n == 6);
  for (int i = 0; i < 6; i++)
    CHECK(out.ids[i] == (4 + 3 * i) % VOCAB);
  output again = {0};
  o.user = &again;
  plan->funcs[5].key.id = LM_FUNCS; // without prefill
  CHECK_OK(lm_generate(&o));
  CHECK(!memcmp(&out, &again, sizeof out));
  o.eos = 10;
  again = (output){0};
  CHECK_OK(lm_generate(&o));
  CHECK(again.n == 3 && again.ids[2] == 10);
  again = (output){.most = 2};
  CHECK_OK(lm_generate(&o));
  CHECK(again.n == 2);
  o.n = 96;
  CHECK_FAILS(lm_generate(&o), LM_USER, "exceed the 100 positions");
  o.n = 0;
  CHECK_OK(lm_generate(&o));
  prompt[2] = VOCAB;
  CHECK_FAILS(lm_generate(&o), LM_USER, "prompt token id 16");
  o.n_prompt = 0;
  CHECK_FAILS(lm_generate(&o), LM_USER, "empty");
  plan->funcs[6].key.id = LM_FUNCS;
  CHECK_FAILS(lm_generate(&o), LM_USER, "not compiled for generation");
  lm_arena_destroy(a);
}

int main(void) {
  test_sample();
  test_generate();
  return 0;
}
