// fingerprint.h - hashes of the parts of a program that training depends on. Two programs that
// compute the same have the same fingerprint.
//
//   loss, eval, optimizer     a hash of the functions (compiler/ir/digest.c)
//   parameter NAME            its type and initial values: "f32[256, 64] normal(0.02)"
//
// tokenizer_files.h adds parts for the files of the tokenizer, base.h one for frozen parameters.
// It does not depend on the target, precision, micro-batches, memory rules or the seed.
#ifndef LM_DRIVER_FINGERPRINT_H
#define LM_DRIVER_FINGERPRINT_H
#include "driver/session.h"
#include "runtime/train/checkpoint.h"

typedef struct lm_fingerprint {
  lm_train_key *v;
  uint32_t n, cap;
} lm_fingerprint;

// The fingerprint of a resolved recipe. n is 0 if the program has errors, which are not reported.
lm_fingerprint lm_fingerprint_of(lm_ctx *c, lm_program *p, const lm_recipe *r);
// f->v is in `a`; the texts are borrowed.
void lm_fingerprint_add(lm_arena *a, lm_fingerprint *f, const char *part, const char *value);
// The fingerprint of the program that a checkpoint was trained with; it borrows from `was`.
lm_fingerprint lm_fingerprint_saved(const lm_checkpoint *was);
// The value of a part; NULL: it has none of that name.
const char *lm_fingerprint_part(const lm_fingerprint *f, const char *part);
// The parts of `was` and `is` that differ, by name; a part that only one of them has counts if it
// is a parameter.
typedef struct lm_fingerprint_change {
  const char *part, *was, *is;
} lm_fingerprint_change; // NULL: absent
typedef struct lm_fingerprint_changes {
  lm_fingerprint_change *v;
  uint32_t n, cap;
} lm_fingerprint_changes;
lm_fingerprint_changes lm_fingerprint_compare(lm_arena *a, const lm_fingerprint *was,
                                              const lm_fingerprint *is);
// False if a parameter or the states of the optimizer have other shapes or are absent, so that a
// checkpoint does not fit.
bool lm_fingerprint_change_fits(const lm_fingerprint_change *c);
// A line of a message: "\n  parameter wg was f32[16, 24] …, is f32[16, 32] …".
void lm_fingerprint_change_print(const lm_fingerprint_change *c, lm_buf *out);
#endif
