// generate.h - generates tokens with a KV cache.
//
// Functions of the plan, for one sequence:
//   prefill  tok pos seg [1, t] int, optionally data.prompt, 1 for a position of the prompt, at:
//   int, index in the cache of the first position
//            -> logits [1, t, vocab], or [1, 1, vocab] of the last position of the call (pass
//            narrow); the prompt is split into chunks of at most t positions
//   decode   the same with t = 1
//   request  optionally: columns "data.NAME" without positions, such as the input of an encoder.
//            It is called once, before the prompt, and fills caches that the others read
// If the plan has extents of these names, t is the number of positions of the call and s the number
// of cache positions in use after it. Without prefill, decode also processes the prompt. With
// data.prompt, prefill has to take the prompt in one call; otherwise its calls begin at multiples
// of t, as ring caches require (pass ring_cache). Tokens have pos 0, 1, 2, … in segment 0.
#ifndef LM_INFER_GENERATE_H
#define LM_INFER_GENERATE_H
#include "runtime/hal/exec.h"
#include "runtime/infer/sample.h"

// A column of a request: `elements` values of its type.
typedef struct lm_request_column {
  const char *name;
  void *data;
  int64_t elements;
} lm_request_column;

typedef struct lm_generate_options {
  const lm_plan *plan;
  lm_exec *exec;
  lm_sampler sampler;
  const int32_t *prompt;
  int64_t n_prompt;                 // at least one token
  int64_t n_marked;                 // of them, those that data.prompt marks
  const lm_request_column *columns; // those that `request` takes
  int n_columns;
  int64_t n;   // maximum number of tokens to generate
  int32_t eos; // generation ends after this token; -1: none
  // With several ranks: sets *id to the token of rank 0. Optional.
  lm_status (*agree)(void *comm, int32_t *id);
  void *comm;
  // Called with every generated token; false ends the generation.
  bool (*token)(void *user, int32_t id);
  void *user;
} lm_generate_options;

// LM_USER: the plan has no function decode, a column of `request` is missing, a prompt token is not
// in the vocabulary, or prompt and n exceed the capacity of the cache.
lm_status lm_generate(const lm_generate_options *o);
int64_t lm_generate_capacity(const lm_plan *plan); // positions of the cache; INT64_MAX: no limit
#endif
