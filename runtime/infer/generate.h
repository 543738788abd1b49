// generate.h - cached decoding: a prompt in, tokens out one by one.
//
// Functions of the plan, one row at a time:
//   prefill  tok pos seg [1, t] int, at: int, the first place in the cache -> logits [1, t, vocab];
//   in chunks of at most t decode   the same with t = 1
// Extents, where the plan has ones of these names: t, the places of the call; s, the places of the
// cache in use after it. Without prefill, decode takes the prompt too. Tokens stand at pos 0, 1, 2,
// … of segment 0.
#ifndef LM_INFER_GENERATE_H
#define LM_INFER_GENERATE_H
#include "runtime/hal/exec.h"
#include "runtime/infer/sample.h"

typedef struct lm_generate_options {
  const lm_plan *plan;
  lm_exec *exec;
  lm_sampler sampler;
  const int32_t *prompt;
  int64_t n_prompt; // at least one token
  int64_t n;        // tokens to make
  int32_t eos;      // ends after this one; -1: none
  // Called with every token made; false stops.
  bool (*token)(void *user, int32_t id);
  void *user;
} lm_generate_options;

// LM_USER: the model cannot generate, a prompt token is none of its vocabulary, prompt and n exceed
// the planned capacity.
lm_status lm_generate(const lm_generate_options *o);
int64_t lm_generate_capacity(const lm_plan *plan); // places of the cache; INT64_MAX: no limit
#endif
