// internal.h - what the interpreter's files share.
#ifndef LM_EVAL_INTERNAL_H
#define LM_EVAL_INTERNAL_H
#include "compiler/eval/eval.h"

enum {
  LM_NEST_AXES = 2 * LM_RANK,
  LM_NEST_OPERANDS = 4,
  LM_EXTENTS = 8
};

struct lm_eval {
  lm_module *m;
  int64_t extent[LM_EXTENTS]; // 0: the axis' size
  bool round;
  lm_tensor *global, *gradient;
  uint32_t n_globals;
  lm_tensor *env;   // by value id; v is NULL where nothing is known
  lm_status failed; // the first failure
};

// A nest of loops over axes; operand k moves by step[k][i] elements along axis i, from start[k].
typedef struct nest {
  int rank;
  lm_axis axis[LM_NEST_AXES];
  int64_t size[LM_NEST_AXES], step[LM_NEST_OPERANDS][LM_NEST_AXES], start[LM_NEST_OPERANDS];
} nest;

int64_t lm_eval_size(const lm_eval *e, lm_axis a);
// A nest over the axes given.
nest nest_over(const lm_eval *e, const lm_axis *axes, int n);
void nest_add(const lm_eval *e, nest *n, lm_axis a);
// Operand k is a dense tensor of type t: axes that it has not do not move it.
void nest_operand(const lm_eval *e, nest *n, int k, lm_type t);
// The same for storage at capacity.
void nest_operand_capacity(const lm_eval *e, nest *n, int k, lm_type t);
int64_t stride_of(const lm_eval *e, lm_type t, lm_axis a);
// inner(user, count, at, step): `count` turns of the last axis, operand k at at[k], at[k] +
// step[k], …
typedef void nest_inner(void *user, int64_t count, const int64_t *at, const int64_t *step);
void nest_run(const nest *n, nest_inner *inner, void *user);

// attend.c; eval.c gives it its region
void lm_eval_attend(lm_eval *e, const lm_op *op);
void lm_eval_region(lm_eval *e, const lm_region *r); // runs it; its arguments are set
void lm_eval_forget(lm_eval *e, const lm_region *r); // frees what it left in the environment

// math.c: everything that computes elements of one result from whole operands
void lm_eval_math(lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// out += the sum over op's axes of in[0] * in[1]
void lm_eval_dot(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// dst[…] = src[…] (or +=) over the nest, operand 0 being dst and 1 src
void lm_eval_copy(const nest *n, double *dst, const double *src, bool add);
#endif
