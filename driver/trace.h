// trace.h - the values of a few steps, to compare with another framework.
#ifndef LM_DRIVER_TRACE_H
#define LM_DRIVER_TRACE_H
#include "driver/session.h"
#include "runtime/weights/safetensors.h"

enum {
  LM_TRACE_LOSS = 1,
  LM_TRACE_GRAD_NORM = 2,
  LM_TRACE_LR = 4,
  LM_TRACE_LOGITS = 8,
  LM_TRACE_GRADS = 16,
  LM_TRACE_PARAMS = 32,
  LM_TRACE_VALUES = 6,
  LM_TRACE_CURVES = 3 // the first of them have one number for each step
};
extern const char *const LM_TRACE_NAMES[LM_TRACE_VALUES];

typedef struct lm_trace_options {
  lm_session *s;    // open; last_step: the steps to run, 0 for all
  const char *path; // of the safetensors file to write
  unsigned values;  // LM_TRACE_… bits
  bool foreign;     // tensors have the names of `map hf`
} lm_trace_options;

typedef struct lm_trace {
  lm_trace_options o;
  lm_arena *arena; // of everything below
  int64_t steps;
  lm_st_tensor *tensors;
  uint32_t n_tensors, cap_tensors;
  float *curves[LM_TRACE_CURVES]; // [steps]; NULL: not among the values
} lm_trace;

// Free *t in any case.
lm_status lm_trace_run(const lm_trace_options *o, lm_trace *t);
void lm_trace_free(lm_trace *t);
#endif
