// internal.h - data structures and functions shared by the files of the interpreter.
#ifndef LM_EVAL_INTERNAL_H
#define LM_EVAL_INTERNAL_H
#include "compiler/eval/eval.h"

enum {
  LM_NEST_AXES = 2 * LM_RANK,
  LM_NEST_OPERANDS = 4
};

struct lm_eval {
  lm_module *m;
  int64_t extent[LM_EXTENTS]; // 0: the size of the axis
  bool round;
  lm_tensor *global, *gradient;
  uint32_t n_globals;
  lm_tensor *env;   // by value id; v is NULL if the value is not computed
  lm_status failed; // the first failure
};

// A nest of loops over axes; operand k moves by step[k][i] elements along axis i, from start[k].
typedef struct nest {
  int rank;
  lm_axis axis[LM_NEST_AXES];
  int64_t size[LM_NEST_AXES], step[LM_NEST_OPERANDS][LM_NEST_AXES], start[LM_NEST_OPERANDS];
} nest;

int64_t lm_eval_size(const lm_eval *e, lm_axis a);
// A nest over n axes.
nest nest_over(const lm_eval *e, const lm_axis *axes, int n);
void nest_add(const lm_eval *e, nest *n, lm_axis a);
// Operand k is a dense tensor of type t; its stride along axes that t lacks is 0.
void nest_operand(const lm_eval *e, nest *n, int k, lm_type t);
// The same for a tensor stored at capacity.
void nest_operand_capacity(const lm_eval *e, nest *n, int k, lm_type t);
int64_t stride_of(const lm_eval *e, lm_type t, lm_axis a);
// inner(user, count, at, step) runs `count` iterations of the last axis, with operand k at at[k],
// at[k] + step[k], …
typedef void nest_inner(void *user, int64_t count, const int64_t *at, const int64_t *step);
void nest_run(const nest *n, nest_inner *inner, void *user);

// tensor.c
lm_tensor lm_tensor_create(lm_type t, int64_t n); // n elements, zeros
lm_tensor lm_tensor_copy(const lm_tensor *t);

// attend.c: attend and attend_vjp, between the runs of their region by eval.c
// Sets the arguments of the region. cotangent: of the score, for attend_vjp; NULL: zero.
void lm_eval_attend_bind(lm_eval *e, const lm_op *op, const lm_tensor *cotangent);
// Computes the results of attend from the values that the region yields.
void lm_eval_attend(lm_eval *e, const lm_op *op);
// Computes the cotangent of v, the first result of attend_vjp. Returns the cotangent of the score,
// which the caller frees.
lm_tensor lm_eval_attend_vjp(lm_eval *e, const lm_op *op);
// The other results of attend_vjp, from the region that was run with that cotangent.
void lm_eval_attend_vjp_results(lm_eval *e, const lm_op *op);

// mesh.c: the results of a collective on all ranks
void lm_eval_collective(lm_eval *const *rank, int n, const lm_op *op);

// math.c: operations that compute one result from whole operands
void lm_eval_math(lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// out += the dot of in[0] and in[1] over op's axes
void lm_eval_dot(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// route.c: the same for the operations of routing
void lm_eval_route(const lm_eval *e, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// dst[…] = src[…] (or +=) over the nest; operand 0 is dst, operand 1 is src
void lm_eval_copy(const nest *n, double *dst, const double *src, bool add);
#endif
