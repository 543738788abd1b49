// epilogue.c - fuses a residual, a bias and gelu into GEMMs where the target's library supports it.
//
// before: %o = dot %a, %w over(e) : bf16[b, t, d]   %y = add %o, %c   %h = add %x, %y
//         (%c : bf16[d])
//         %p = dot %n, %u over(d) : bf16[b, t, ff]  %v = add %p, %b
//         %g = 0.5 * %v * (1 + tanh(0.79788 * (%v + 0.044715 * %v^3)))
// after:  %h = dot_add %a, %w, %x, %c over(e)       %g, %v = dot_gelu %n, %u, %b over(d)
//
// Memory traffic before and after, in tensors of the size of the result. Before, the kernel that
// computes the sum stores it if it has other readers:
//   residual   before: %o written, %o and %x read: 3 (4)   after: %x read, %h written, %h read: 3
//   bias       before: %p written and read: 2 (3)          after: 2
//   gelu       before: 3                                   after: 1, or 2 if backward needs %v
// A sum that only one kernel reads costs the same either way. It is fused too: rounding must not
// depend on which readers a value has, as training, evaluation and frozen layers differ in them. A
// sum with an addend that would have to be stored first is not fused. If a GEMM produces a sum,
// pass grad stashes the sum instead of the dot, which takes the same memory; the backward pass then
// reads one tensor instead of recomputing the sum of two or three.
//
// An edit in the sum (operation `edited`) changes no bit of a model whose edits are identities:
//   adds       %y = dot + %d, %h = %x + %y, where use of LoRA adds %d: dot_add %a, %w, %x + %d
//   others     %y = f(dot), %h = %x + %y: the dot is f32, and a kernel adds, in the order of the
//              library, and rounds as the GEMM would
//
// Declines: GEMMs that lm_codegen.epilogue rejects or that take several calls, a bias shorter
// than a row, and other functions than gelu (a formula is compared by its values, so its spelling
// does not matter). Not fused: relu, because cuBLASLt maps NaN to 0, which would hide a bad step;
// the derivative of gelu and the sums for bias gradients, because the kernel that computes both
// also recomputes gelu for the weight gradient: of the 5 tensors that the kernel and its GEMM move,
// fusion would save one and need a second kernel. Effect on numerics: one rounding to bf16 less.
#include "compiler/passes/fuse/epilogue.h"
#include <math.h>
#include <string.h>
#include "compiler/eval/eval.h"
#include "compiler/ir/dot.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/fuse/fuse.h"
#include "compiler/passes/rewrite.h"
#include "compiler/plan/planner.h"

typedef struct sums {
  uint32_t *uses;    // by value id, like the tables below
  lm_op **user;      // one of the users
  lm_value **after;  // what an edit computes from the value; else NULL
  lm_value **before; // the value from which an edit computes it; else NULL
  uint8_t *taken;    // sums that a GEMM computes, or would without edits
  lm_value **map;    // replacements; NULL if the IR is only analyzed
  uint32_t n;
} sums;

enum {
  TERMS = 12, // of a sum, and edits
  MORE = 4
};
// dot + residual + bias, where residual and bias are optional; end is the result.
typedef struct sum {
  lm_op *dot;
  lm_value *residual, *bias, *end;
  lm_value *more[MORE]; // addends of edits
  int n_more;
  lm_value *start;     // the value that the edit changes; end, if the sum is in none
  lm_value *edited;    // the result of the edit that the sum is in; else NULL
  lm_value *from, *to; // the last edit that does not only add; no epilogue computes the sum
  bool after_edit;     // the last step was that edit
} sum;

// The value that a marked one is.
static lm_value *plain(lm_value *v) {
  while (lm_op_is(v, LM_OP_EDITED))
    v = v->def->in[0];
  return v;
}

static void note_edit(sums *s, const lm_op *op) {
  lm_value *x = plain(op->in[1]);
  lm_value *y = plain(op->in[0]);
  if (x == y)
    return;
  s->after[x->id] = y;
  s->before[y->id] = x;
}

static void note_users(lm_op *op, void *user) {
  sums *s = user;
  if (op->code == LM_OP_EDITED) {
    note_edit(s, op);
    return;
  }
  for (uint32_t i = 0; i < op->n_in; i++) {
    uint32_t id = plain(op->in[i])->id;
    s->uses[id]++;
    s->user[id] = op;
  }
}

static sums sums_create(lm_func *f) {
  uint32_t n = f->module->n_values;
  sums s = {.uses = lm_calloc(n + 1, sizeof *s.uses),
            .user = lm_calloc(n + 1, sizeof *s.user),
            .after = lm_calloc(n + 1, sizeof *s.after),
            .before = lm_calloc(n + 1, sizeof *s.before),
            .taken = lm_calloc(n + 1, 1),
            .n = n};
  lm_region_walk(f->body, note_users, &s);
  return s;
}

static void sums_free(sums *s) {
  lm_free(s->uses);
  lm_free(s->user);
  lm_free(s->after);
  lm_free(s->before);
  lm_free(s->taken);
  lm_free(s->map);
}

// ---- values in memory

// What the model without edits has instead of v.
static lm_value *unedited(const sums *s, lm_value *v) {
  for (v = plain(v); s->before[v->id];)
    v = s->before[v->id];
  return v;
}

// True if v, in the model without edits, is dense and stored in memory for every reader.
static bool stored(const sums *s, lm_value *v) {
  v = unedited(s, v);
  while (!s->taken[v->id] && v->def && lm_op_has(v->def, LM_T_ORDERED))
    v = unedited(s, v->def->in[0]);
  return s->taken[v->id] || !v->def || lm_fuse_stays(v->def);
}

static lm_value *other_operand(const lm_op *op, const lm_value *v) {
  lm_value *x = plain(op->in[0]);
  return x == v ? plain(op->in[1]) : x;
}

// ---- sums

// Adds an addend of an edit.
static bool more_add(sum *x, lm_value *other) {
  if (x->n_more == MORE || !lm_type_equal(other->type, x->end->type))
    return false;
  x->more[x->n_more++] = other;
  return true;
}

// True if v is a dot that an edit changes. The model without edits may round it only as a part of a
// sum, so no sum of the edit rounds it before.
static bool in_sum(const sums *s, const lm_value *v) {
  return s->after[v->id] && lm_op_is(v, LM_OP_DOT);
}

static bool term_add(const sums *s, sum *x, lm_value *other) {
  lm_type t = x->end->type;
  if (x->edited)
    return more_add(x, other);
  bool bias = lm_type_is_bias(other->type, t) && (lm_value_is_weight(other) || stored(s, other));
  bool residual = lm_type_equal(other->type, t) && stored(s, other) && !in_sum(s, other);
  if (bias && !x->bias)
    x->bias = other;
  else if (residual && !x->residual)
    x->residual = other;
  else
    return false;
  return true;
}

static bool add_follows(const sums *s, sum *x) {
  lm_value *v = x->end;
  lm_op *op = s->uses[v->id] == 1 ? s->user[v->id] : NULL;
  if (!op || op->code != LM_OP_ADD || op->parent != x->dot->parent ||
      !lm_type_equal(op->out[0]->type, v->type) || !term_add(s, x, other_operand(op, v)))
    return false;
  x->end = op->out[0];
  x->after_edit = false;
  if (!x->edited || x->end == x->edited) {
    x->start = x->end;
    x->edited = s->after[x->end->id];
  }
  return true;
}

// Of an edit that adds, the addends are some of the sum. Behind another one the sum continues.
static bool sum_extend(const sums *s, sum *x) {
  if (add_follows(s, x))
    return true;
  if (!x->edited || !x->edited->def || x->edited->def->parent != x->dot->parent)
    return false;
  x->from = x->start;
  x->end = x->start = x->to = x->edited;
  x->edited = s->after[x->end->id];
  x->after_edit = true;
  return true;
}

// The sums that begin with the dot and are not fused yet, longest first; the last is the dot alone.
static int sums_of(const sums *s, lm_op *dot, sum *out) {
  sum x =
          {
              .dot = dot,
              .end = dot->out[0],
              .start = dot->out[0],
              .edited = s->after[dot->out[0]->id],
          },
      all[TERMS + 1];
  int n = 0, n_out = 0;
  if (!lm_dtype_is_float(dot->out[0]->type.dtype) ||
      (dot->parent->owner && lm_op_isolated(dot->parent->owner)))
    return 0;
  do
    all[n++] = x;
  while (n <= TERMS && sum_extend(s, &x));
  while (n--)
    if (!s->taken[all[n].end->id] && all[n].end == all[n].start && !all[n].after_edit)
      out[n_out++] = all[n];
  return n_out;
}

static bool has_addends(const sums *s, const sum *x) {
  return x->residual || x->bias || (!x->to && x->n_more == 1 && stored(s, x->more[0]));
}

static void note_sum(lm_op *op, void *user) {
  sums *s = user;
  sum x[TERMS + 1];
  int n = op->code == LM_OP_DOT ? sums_of(s, op, x) : 0;
  for (int i = 0; i < n; i++)
    if (has_addends(s, &x[i])) {
      s->taken[x[i].end->id] = 1;
      return;
    }
}

bool lm_epilogue_is_enabled(const lm_pass_env *env) {
  return env->codegen && env->codegen->epilogue && !lm_pass_is_off(env, "epilogue");
}

uint8_t *lm_epilogue_sums(lm_func *f) {
  sums s = sums_create(f);
  lm_region_walk(f->body, note_sum, &s);
  uint8_t *taken = s.taken;
  s.taken = NULL;
  sums_free(&s);
  return taken;
}

// ---- gelu

// Evaluates v, a formula in %u only, at %u = x. False if it has more than `budget` operations or is
// not such a formula.
static bool formula(const lm_value *v, const lm_value *u, double x, int *budget, double *out) {
  if (v == u) {
    *out = x;
    return true;
  }
  const lm_op *op = v->def;
  double in[2];
  if (!op || --*budget < 0 || !lm_dtype_is_float(v->type.dtype))
    return false;
  if (op->code == LM_OP_CONST) {
    *out = op->attr.num;
    return true;
  }
  if (!(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE) || !op->n_in || op->n_in > LM_COUNT(in))
    return false;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!formula(op->in[i], u, x, budget, &in[i]))
      return false;
  *out = lm_eval_scalar(op, in);
  return true;
}

static bool is_gelu(const lm_value *v, const lm_value *u) {
  static const double points[] = {-20, -7.5, -3.1, -1.9, -1,  -0.6, -0.25, -1e-3,
                                  0,   2e-2, 0.3,  0.7,  1.3, 2.2,  4.5,   11};
  for (size_t i = 0; i < LM_COUNT(points); i++) {
    int budget = 64;
    double y;
    if (!formula(v, u, points[i], &budget, &y) || !(fabs(y - lm_eval_gelu(points[i])) < 1e-6))
      return false;
  }
  return true;
}

static lm_value *gelu_find(const lm_value *u) {
  for (lm_op *op = u->def->next; op; op = op->next)
    if (op->n_out == 1 && lm_type_equal(op->out[0]->type, u->type) && is_gelu(op->out[0], u))
      return op->out[0];
  return NULL;
}

// ---- the IR

typedef struct epilogue {
  lm_module *m;
  const lm_codegen *codegen;
  sums s;
} epilogue;

// The residual and the addends of edits, which are 0 in the first step. NULL: none.
static lm_value *addends(lm_builder *b, const sum *x) {
  lm_value *v = x->residual;
  for (int i = 0; i < x->n_more && !x->to; i++)
    v = v ? lm_emit2(b, LM_OP_ADD, v, x->more[i]) : x->more[i];
  return v;
}

// Emits the fused GEMM for x before the operation of the sum; NULL if the target does not support
// it.
static lm_op *gemm_emit(const epilogue *e, const sum *x, lm_opcode code) {
  lm_op *at = x->end->def;
  lm_value *in[LM_DOT_ADDENDS + TERMS] = {x->dot->in[LM_DOT_X], x->dot->in[LM_DOT_W]};
  uint32_t n = LM_DOT_ADDENDS;
  uint8_t of_sum = at->remat & LM_REMAT_OFFLOAD;
  uint8_t remat = lm_remat_choice(x->dot->remat) ? x->dot->remat | of_sum : at->remat;
  lm_builder b = {e->m, at->parent, at, x->dot->loc, remat};
  lm_value *residual = addends(&b, x);
  if (residual)
    in[n++] = residual;
  if (x->bias)
    in[n++] = x->bias;
  lm_op *op = lm_emit_op(&b, code, in, n, &x->dot->attr, &x->dot->out[0]->type);
  lm_plan_gemm form;
  if (lm_plan_gemm_from_epilogue(e->m, op, &form) && e->codegen->epilogue(&form))
    return op;
  lm_op_remove(op);
  return NULL;
}

static void replace(epilogue *e, lm_value *old, lm_value *v) {
  e->s.map[old->id] = v;
  e->s.taken[old->id] = 1;
  v->name = old->name;
}

// The dot's result, which kernels read before it is rounded.
static lm_value *exact_dot(epilogue *e, lm_op *dot) {
  lm_type t = dot->out[0]->type;
  lm_dtype half = (lm_dtype)t.dtype;
  if (!lm_dtype_is_half(half))
    return dot->out[0];
  t.dtype = LM_F32;
  lm_builder b = {e->m, dot->parent, dot, dot->loc, dot->remat};
  lm_value *v = lm_emit(&b, LM_OP_DOT, dot->in, dot->n_in, &dot->attr, &t);
  v = lm_emit_cast(&b, lm_emit1(&b, LM_OP_UNROUNDED, v), half);
  e->s.map[dot->out[0]->id] = v;
  return v;
}

static lm_value *exact(lm_builder *b, lm_value *v) {
  lm_dtype half = (lm_dtype)v->type.dtype;
  for (lm_op *op = v->def->next; op; op = op->next)
    if (op->code == LM_OP_UNROUNDED && op->in[0] == v)
      return lm_emit_cast(b, op->out[0], half);
  return v;
}

// The sum in the order of the GEMM's library, and what the edit changes, which is 0 if it is an
// identity.
static lm_value *sum_in_order(const sum *x, lm_builder *b, lm_value *dot) {
  lm_value *from = x->from == x->dot->out[0] ? dot : exact(b, x->from);
  lm_value *v = lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_ADD, dot, x->residual), x->bias);
  return lm_emit2(b, LM_OP_ADD, v, lm_emit2(b, LM_OP_SUB, x->to, from));
}

// Kernels compute the sum, and round it if the GEMM would: not before.
static void compute_apart(epilogue *e, const sum *x, bool rounds) {
  lm_op *last = x->end->def;
  lm_builder b = {e->m, last->parent, last, last->loc, last->remat};
  lm_type t = x->end->type;
  lm_value *dot = exact_dot(e, x->dot);
  lm_value *v = x->residual && x->bias
                    ? sum_in_order(x, &b, dot)
                    : lm_emit(&b, last->code, last->in, last->n_in, &last->attr, &t);
  if (rounds && lm_dtype_is_half((lm_dtype)t.dtype))
    v = lm_emit1(&b, LM_OP_REDUCE_PRECISION, v);
  replace(e, x->end, v);
}

static bool fuse_gelu(epilogue *e, const sum *x) {
  lm_value *gelu = gelu_find(x->end);
  lm_op *op = gelu ? gemm_emit(e, x, LM_OP_DOT_GELU) : NULL;
  if (!op)
    return false;
  if (x->to) {
    lm_op_remove(op);
    compute_apart(e, x, false);
    return true;
  }
  replace(e, gelu, op->out[0]);
  replace(e, x->end, op->out[LM_GELU_OF]);
  return true;
}

static bool fuse_sum(epilogue *e, const sum *x) {
  lm_op *op = has_addends(&e->s, x) ? gemm_emit(e, x, LM_OP_DOT_ADD) : NULL;
  if (!op)
    return false;
  if (x->to) {
    lm_op_remove(op);
    compute_apart(e, x, true);
    return true;
  }
  replace(e, x->end, op->out[0]);
  return true;
}

static void epilogue_visit(lm_op *op, void *user) {
  epilogue *e = user;
  sum x[TERMS + 1];
  int n = op->code == LM_OP_DOT && op->out[0]->id < e->s.n ? sums_of(&e->s, op, x) : 0;
  for (int i = 0; i < n; i++)
    if (fuse_gelu(e, &x[i]) || fuse_sum(e, &x[i]))
      return;
}

static lm_value *unmarked(lm_rewrite *r, lm_op *op) {
  return op->code == LM_OP_EDITED ? op->in[0] : NULL;
}

bool lm_pass_epilogue(lm_module *m, const lm_pass_env *env) {
  if (!lm_epilogue_is_enabled(env))
    return true;
  for (lm_func *f = m->funcs; f; f = f->next) {
    epilogue e = {m, env->codegen, sums_create(f)};
    lm_rewrite_func(f, unmarked, NULL);
    e.s.map = lm_calloc(e.s.n + 1, sizeof *e.s.map);
    lm_region_walk(f->body, epilogue_visit, &e);
    lm_func_substitute(f, e.s.map, e.s.n);
    sums_free(&e.s);
  }
  return true;
}
