// fingerprint.h - what a program trains, part by part: the same for two programs that compute the
// same.
//
//   loss, eval, optimizer     a hash of the functions (compiler/ir/digest.c)
//   parameter NAME            its type and initial values: "f32[256, 64] normal(0.02)"
//
// It does not depend on the target, on precision, on micro-batches, on rules of memory, or on the
// seed.
#ifndef LMC_FINGERPRINT_H
#define LMC_FINGERPRINT_H
#include "driver/session.h"
#include "runtime/train/checkpoint.h"

typedef struct lm_fingerprint {
  lm_train_key *v;
  uint32_t n, cap;
} lm_fingerprint;

// Of a resolved recipe. n is 0 if the program has errors; they are not reported.
lm_fingerprint lm_fingerprint_of(lm_ctx *c, lm_program *p, const lm_recipe *r);
// The parts of `was` and `is` that differ, by name; a part that only one of them has counts if it
// is a parameter.
typedef struct lm_fingerprint_change {
  const char *part, *was, *is;
} lm_fingerprint_change; // NULL: it is not there
typedef struct lm_fingerprint_changes {
  lm_fingerprint_change *v;
  uint32_t n, cap;
} lm_fingerprint_changes;
lm_fingerprint_changes lm_fingerprint_compare(lm_arena *a, const lm_fingerprint *was,
                                              const lm_fingerprint *is);
#endif
