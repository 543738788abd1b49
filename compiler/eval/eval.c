// eval.c - the interpreter's environment, control flow and state.
#include "compiler/eval/eval.h"
#include <string.h>
#include "compiler/eval/internal.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"

// ---- the environment

lm_eval *lm_eval_create(lm_module *m) {
  lm_eval *e = lm_alloc(sizeof *e);
  e->m = m;
  e->n_globals = m->n_globals;
  e->global = lm_calloc(m->n_globals + 1, sizeof *e->global);
  e->gradient = lm_calloc(m->n_globals + 1, sizeof *e->gradient);
  for (uint32_t i = 0; i < m->n_globals; i++) {
    lm_type t = m->globals[i].type;
    e->global[i] = lm_tensor_create(t, lm_type_elements(m, t));
    if (m->globals[i].kind == LM_GLOBAL_PARAM)
      e->gradient[i] = lm_tensor_create(t, lm_type_elements(m, t));
  }
  return e;
}

void lm_eval_destroy(lm_eval *e) {
  for (uint32_t i = 0; i < e->n_globals; i++) {
    lm_tensor_free(&e->global[i]);
    lm_tensor_free(&e->gradient[i]);
  }
  lm_free(e->global);
  lm_free(e->gradient);
  lm_free(e);
}

void lm_eval_extent_set(lm_eval *e, int k, int64_t extent) {
  e->extent[k - 1] = extent;
}
void lm_eval_round_set(lm_eval *e, bool round) {
  e->round = round;
}

static uint32_t global_index(const lm_eval *e, const char *name) {
  for (uint32_t i = 0; i < e->n_globals; i++)
    if (!strcmp(e->m->globals[i].name, name))
      return i;
  LM_BUG("there is no global @%s", name);
}

lm_tensor *lm_eval_global(lm_eval *e, const char *name) {
  return &e->global[global_index(e, name)];
}
lm_tensor *lm_eval_gradient(lm_eval *e, const char *name) {
  return &e->gradient[global_index(e, name)];
}

static lm_tensor *of(lm_eval *e, const lm_value *v) {
  return &e->env[v->id];
}

static void round_to_type(lm_tensor *t) {
  for (int64_t i = 0; i < t->n; i++)
    t->v[i] = lm_dtype_round(t->type.dtype, t->v[i]);
}

// ---- indices

// Index first + step * i of the k-th index of op along axis a; -1 after recording a failure.
static int64_t index_of(lm_eval *e, const lm_op *op, const lm_value *index, const int64_t *imm,
                        int64_t size) {
  int64_t p = imm[0] + imm[1] * (int64_t)of(e, index)->v[0];
  if (p >= 0 && p < size)
    return p;
  if (!e->failed)
    e->failed = lm_fail(LM_BUG_STATUS, "%s: index %lld, size %lld", lm_op_info_of(op)->name,
                        (long long)p, (long long)size);
  return -1;
}

// The offset of the part of a global that op's indices select, in elements; -1 on failure.
static int64_t part(lm_eval *e, const lm_op *op, const lm_global *g) {
  int64_t at = 0;
  int indices = op->attr.n_imm / 2;
  for (int i = 0; i < indices; i++) {
    int64_t p =
        index_of(e, op, op->in[i], &op->attr.imm[2 * i], lm_axis_size(e->m, g->type.axis[i]));
    if (p < 0)
      return -1;
    at = at * lm_axis_size(e->m, g->type.axis[i]) + p;
  }
  for (int i = indices; i < g->type.rank; i++)
    at *= lm_axis_size(e->m, g->type.axis[i]);
  return at;
}

static lm_type part_type(const lm_global *g) {
  return lm_type_make(g->type.dtype, g->type.axis + g->n_stack, g->type.rank - g->n_stack);
}

static const lm_global *global_of(lm_eval *e, const lm_op *op, uint32_t *k) {
  *k = global_index(e, op->attr.sym);
  return &e->m->globals[*k];
}

// ---- operations with state

// The elements of a packed global are those of its members: adds t, a part of it, to their
// gradients, or reads it from their values.
static void packed_visit(lm_eval *e, const lm_op *op, const lm_global *packed, lm_tensor *t,
                         bool accumulates) {
  int64_t first = 0;
  int64_t inner = 1;
  int64_t sum = lm_axis_size(e->m, packed->along);
  int at = lm_type_find(packed->type, packed->along);
  for (int i = at + 1; i < packed->type.rank; i++)
    inner *= lm_axis_size(e->m, packed->type.axis[i]);
  for (uint32_t k = 0; k < packed->n_members; k++) {
    uint32_t index = global_index(e, packed->members[k]);
    const lm_global *g = &e->m->globals[index];
    int64_t size = lm_global_packed_size(e->m, packed, g);
    int64_t from = part(e, op, g);
    for (int64_t i = 0; from >= 0 && i < t->n; i++) {
      int64_t outer = i / inner / sum;
      int64_t along = i / inner % sum - first;
      if (along < 0 || along >= size)
        continue;
      int64_t j = from + (outer * size + along) * inner + i % inner;
      if (accumulates)
        e->gradient[index].v[j] += t->v[i];
      else
        t->v[i] = e->global[index].v[j];
    }
    first += size;
  }
}

static void eval_param(lm_eval *e, const lm_op *op) {
  uint32_t k;
  const lm_global *g = global_of(e, op, &k);
  if (g->kind == LM_GLOBAL_PACKED) {
    *of(e, op->out[0]) = lm_eval_tensor(e, op->out[0]->type);
    packed_visit(e, op, g, of(e, op->out[0]), false);
    return;
  }
  int64_t at = part(e, op, g);
  lm_tensor *t = of(e, op->out[0]);
  *t = lm_eval_tensor(e, op->out[0]->type);
  if (at >= 0)
    memcpy(t->v, e->global[k].v + at, (size_t)t->n * sizeof *t->v);
}

static void eval_accum(lm_eval *e, const lm_op *op) {
  uint32_t k;
  const lm_global *g = global_of(e, op, &k);
  lm_tensor *t = of(e, op->in[op->n_in - 1]);
  if (g->kind == LM_GLOBAL_PACKED) {
    packed_visit(e, op, g, t, true);
    return;
  }
  int64_t at = part(e, op, g);
  for (int64_t i = 0; at >= 0 && i < t->n; i++)
    e->gradient[k].v[at + i] += t->v[i];
}

static void eval_gradient(lm_eval *e, const lm_op *op) {
  uint32_t k;
  const lm_global *g = global_of(e, op, &k);
  int64_t at = part(e, op, g);
  lm_tensor *t = of(e, op->out[0]);
  *t = lm_eval_tensor(e, op->out[0]->type);
  if (at >= 0)
    memcpy(t->v, e->gradient[k].v + at, (size_t)t->n * sizeof *t->v);
}

static void eval_assign(lm_eval *e, const lm_op *op) {
  uint32_t k;
  uint32_t indices = op->attr.n_imm / 2u;
  const lm_global *p = global_of(e, op, &k);
  const lm_global **states = lm_calloc(e->m->n_globals + 1, sizeof *states);
  uint32_t n = lm_global_states(e->m, p, &op->attr, states);
  for (uint32_t i = 0; i <= n; i++) {
    const lm_global *g = i ? states[i - 1] : p;
    lm_op shifted = *op;
    if (i && indices)
      shifted.attr.imm[2 * indices - 2] -= g->first;
    int64_t at = part(e, &shifted, g);
    const lm_tensor *t = of(e, op->in[indices + i]);
    if (at >= 0)
      memcpy(e->global[g - e->m->globals].v + at, t->v, (size_t)t->n * sizeof *t->v);
  }
  lm_free(states);
}

static void eval_retain(lm_eval *e, const lm_op *op) {
  uint32_t k;
  const lm_global *g = global_of(e, op, &k);
  int64_t at = part(e, op, g);
  const lm_tensor *t = of(e, op->in[op->n_in - 1]);
  if (at >= 0)
    memcpy(e->global[k].v + at, t->v, (size_t)t->n * sizeof *t->v);
}

static void eval_append(lm_eval *e, const lm_op *op) {
  uint32_t k;
  const lm_global *g = global_of(e, op, &k);
  int64_t base = part(e, op, g);
  const lm_tensor *x = of(e, op->in[op->n_in - 1]);
  lm_axis t = op->attr.axes[0];
  lm_axis s = op->attr.to[0];
  const lm_value *at = op->in[op->n_in - 2];
  int64_t room = lm_axis_size(e->m, s) - lm_eval_size(e, t) + 1;
  int64_t first = room > 0 ? index_of(e, op, at, (int64_t[]){0, 1}, room) : -1;
  if (first < 0 && !e->failed)
    e->failed = lm_fail(LM_BUG_STATUS, "append: cache @%s is full", g->name);
  *of(e, op->out[0]) = lm_eval_tensor(e, op->out[0]->type);
  if (e->failed)
    return;
  lm_type whole = part_type(g);
  nest in = nest_over(e, x->type.axis, x->type.rank);
  nest out = nest_over(e, whole.axis, whole.rank);
  nest_operand_capacity(e, &in, 0, whole);
  nest_operand(e, &in, 1, x->type);
  nest line = nest_over(e, &s, 1);
  nest_operand_capacity(e, &line, 0, whole);
  in.step[0][lm_type_find(x->type, t)] = line.step[0][0];
  in.start[0] = base + first * line.step[0][0];
  lm_eval_copy(&in, e->global[k].v, x->v, false);
  nest_operand(e, &out, 0, whole);
  nest_operand_capacity(e, &out, 1, whole);
  out.start[1] = base;
  lm_eval_copy(&out, of(e, op->out[0])->v, e->global[k].v, false);
}

// The last operand.
static void eval_same(lm_eval *e, const lm_op *op) {
  lm_tensor *t = of(e, op->out[0]);
  *t = lm_eval_tensor(e, op->out[0]->type);
  memcpy(t->v, of(e, op->in[op->n_in - 1])->v, (size_t)t->n * sizeof *t->v);
}

static void eval_at(lm_eval *e, const lm_op *op) {
  const lm_tensor *x = of(e, op->in[0]);
  lm_tensor *t = of(e, op->out[0]);
  int64_t p = index_of(e, op, op->in[1], op->attr.imm, lm_eval_size(e, x->type.axis[0]));
  *t = lm_eval_tensor(e, op->out[0]->type);
  if (p >= 0)
    memcpy(t->v, x->v + p * t->n, (size_t)t->n * sizeof *t->v);
}

// ---- control

// The ranks run each operation in lockstep: collectives are operations on the tensors of all.
struct lm_eval_mesh {
  lm_eval **rank;
  int n;
};
typedef struct lm_eval_mesh ranks;

static void ranks_op(ranks all, const lm_op *op);

static const lm_op *ranks_run(ranks all, const lm_region *r) {
  for (const lm_op *op = r->first; op != r->last; op = op->next)
    ranks_op(all, op);
  return r->last;
}

static const lm_op *run_region(lm_eval *e, const lm_region *r) {
  return ranks_run((ranks){&e, 1}, r);
}

static void region_forget(lm_eval *e, const lm_region *r) {
  for (uint32_t i = 0; i < r->n_args; i++)
    lm_tensor_free(of(e, r->args[i]));
  for (const lm_op *op = r->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_out; i++)
      lm_tensor_free(of(e, op->out[i]));
}

static void loop_begin(lm_eval *e, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    *of(e, op->out[i]) =
        i < op->n_in ? lm_tensor_copy(of(e, op->in[i])) : lm_eval_tensor(e, op->out[i]->type);
}

static void iteration_begin(lm_eval *e, const lm_op *op, int64_t iteration) {
  lm_region *r = op->body;
  *of(e, r->args[0]) = lm_tensor_create(r->args[0]->type, 1);
  of(e, r->args[0])->v[0] = (double)iteration;
  for (uint32_t i = 0; i < op->n_in; i++)
    *of(e, r->args[i + 1]) = lm_tensor_copy(of(e, op->out[i]));
}

static void iteration_end(lm_eval *e, const lm_op *op, int64_t iteration) {
  const lm_op *yield = op->body->last;
  int64_t slot = lm_loop_is_reversed(op) ? op->attr.imm[0] - 1 - iteration : iteration;
  for (uint32_t i = 0; i < op->n_out; i++) {
    const lm_tensor *y = of(e, yield->in[i]);
    memcpy(of(e, op->out[i])->v + (i < op->n_in ? 0 : slot * y->n), y->v,
           (size_t)y->n * sizeof *y->v);
  }
  region_forget(e, op->body);
}

static void ranks_loop(ranks all, const lm_op *op) {
  for (int k = 0; k < all.n; k++)
    loop_begin(all.rank[k], op);
  for (int64_t iteration = 0; iteration < op->attr.imm[0]; iteration++) {
    for (int k = 0; k < all.n; k++)
      iteration_begin(all.rank[k], op, iteration);
    ranks_run(all, op->body);
    for (int k = 0; k < all.n; k++)
      iteration_end(all.rank[k], op, iteration);
  }
}

// One position of a scan: binds the arguments, runs the region, stores its yields.
static void run_position(lm_eval *e, const lm_op *op, int64_t at) {
  lm_region *r = op->body;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool carry = i < lm_scan_carries(op);
    const lm_tensor *x = of(e, carry ? op->out[i] : op->in[i]);
    lm_tensor *arg = of(e, r->args[i]);
    if (!lm_scan_operand_is_slice(op, i)) {
      *arg = lm_tensor_copy(x);
      continue;
    }
    *arg = lm_eval_tensor(e, r->args[i]->type);
    memcpy(arg->v, x->v + at * arg->n, (size_t)arg->n * sizeof *arg->v);
  }
  const lm_op *yield = run_region(e, r);
  for (uint32_t i = 0; i < op->n_out; i++) {
    const lm_tensor *y = of(e, yield->in[i]);
    memcpy(of(e, op->out[i])->v + (i < lm_scan_carries(op) ? 0 : at * y->n), y->v,
           (size_t)y->n * sizeof *y->v);
  }
  region_forget(e, r);
}

static void eval_scan(lm_eval *e, const lm_op *op) {
  int64_t n = lm_eval_size(e, lm_scan_axis(op));
  for (uint32_t i = 0; i < op->n_out; i++)
    *of(e, op->out[i]) = i < lm_scan_carries(op) ? lm_tensor_copy(of(e, op->in[i]))
                                                 : lm_eval_tensor(e, op->out[i]->type);
  for (int64_t i = 0; i < n; i++)
    run_position(e, op, lm_scan_is_backward(op) ? n - 1 - i : i);
}

// Results from imm[0] on are column sums over the parallel axes in chunks. The interpreter stores
// the whole sum in the first chunk.
static void eval_kernel(lm_eval *e, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    *of(e, op->body->args[i]) = lm_tensor_copy(of(e, op->in[i]));
  const lm_op *yield = run_region(e, op->body);
  for (uint32_t i = 0; i < op->n_out; i++) {
    const lm_tensor *y = of(e, yield->in[i]);
    lm_tensor *t = of(e, op->out[i]);
    *t = lm_eval_tensor(e, op->out[i]->type);
    nest n = nest_over(e, y->type.axis, y->type.rank);
    nest_operand(e, &n, 0, t->type);
    nest_operand(e, &n, 1, y->type);
    lm_eval_copy(&n, t->v, y->v, true);
  }
  region_forget(e, op->body);
}

// The region of a backward pass runs twice: for the scores only, then with their cotangent.
static void eval_attend(lm_eval *e, const lm_op *op) {
  lm_eval_attend_bind(e, op, NULL);
  run_region(e, op->body);
  if (op->code == LM_OP_ATTEND)
    lm_eval_attend(e, op);
  else {
    lm_tensor g = lm_eval_attend_vjp(e, op);
    region_forget(e, op->body);
    lm_eval_attend_bind(e, op, &g);
    run_region(e, op->body);
    lm_eval_attend_vjp_results(e, op);
    lm_tensor_free(&g);
  }
  region_forget(e, op->body);
}

static void ranks_call(ranks all, const lm_op *op) {
  const lm_func *f = lm_func_find(all.rank[0]->m, op->attr.sym);
  for (int k = 0; k < all.n; k++)
    for (uint32_t i = 0; i < op->n_in; i++)
      *of(all.rank[k], f->body->args[i]) = lm_tensor_copy(of(all.rank[k], op->in[i]));
  const lm_op *ret = ranks_run(all, f->body);
  for (int k = 0; k < all.n; k++) {
    for (uint32_t i = 0; i < op->n_out; i++)
      *of(all.rank[k], op->out[i]) = lm_tensor_copy(of(all.rank[k], ret->in[i]));
    region_forget(all.rank[k], f->body);
  }
}

static void eval_math(lm_eval *e, const lm_op *op) {
  lm_tensor few[4];
  lm_tensor *in = op->n_in <= 4 ? few : lm_calloc(op->n_in, sizeof *in);
  lm_tensor *out = of(e, op->out[0]);
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = *of(e, op->in[i]);
  *out = lm_eval_tensor(e, op->out[0]->type);
  lm_eval_math(e, op, in, out);
  if (in != few)
    lm_free(in);
}

// The dot, then the addends, then gelu, whose argument is the second result.
static void eval_epilogue(lm_eval *e, const lm_op *op) {
  lm_tensor in[2] = {*of(e, op->in[LM_DOT_X]), *of(e, op->in[LM_DOT_W])};
  lm_tensor sum = lm_eval_tensor(e, op->out[0]->type);
  lm_eval_dot(e, op, in, &sum);
  for (uint32_t i = LM_DOT_ADDENDS; i < op->n_in; i++) {
    nest n = nest_over(e, sum.type.axis, sum.type.rank);
    nest_operand(e, &n, 0, sum.type);
    nest_operand(e, &n, 1, op->in[i]->type);
    lm_eval_copy(&n, sum.v, of(e, op->in[i])->v, true);
  }
  *of(e, op->out[op->n_out - 1]) = sum;
  if (op->code != LM_OP_DOT_GELU)
    return;
  lm_tensor *out = of(e, op->out[0]);
  *out = lm_eval_tensor(e, sum.type);
  for (int64_t i = 0; i < sum.n; i++)
    out->v[i] = lm_eval_gelu(sum.v[i]);
}

void lm_eval_known(lm_module *m, const lm_op *op, const lm_tensor *in, lm_tensor *out) {
  lm_eval e = {.m = m};
  *out = lm_eval_tensor(&e, op->out[0]->type);
  lm_eval_math(&e, op, in, out);
}

static void eval_op(lm_eval *e, const lm_op *op) {
  switch (op->code) {
  case LM_OP_SCAN: eval_scan(e, op); break;
  case LM_OP_KERNEL: eval_kernel(e, op); break;
  case LM_OP_ATTEND:
  case LM_OP_ATTEND_VJP: eval_attend(e, op); break;
  case LM_OP_PARAM:
  case LM_OP_RECALL: eval_param(e, op); break;
  case LM_OP_ACCUM: eval_accum(e, op); break;
  case LM_OP_APPEND: eval_append(e, op); break;
  case LM_OP_RETAIN: eval_retain(e, op); break;
  case LM_OP_OBSERVE_COTANGENT: eval_same(e, op); break;
  case LM_OP_GRADIENT: eval_gradient(e, op); break;
  case LM_OP_ASSIGN: eval_assign(e, op); break;
  case LM_OP_AT: eval_at(e, op); break;
  case LM_OP_DOT_ADD:
  case LM_OP_DOT_GELU: eval_epilogue(e, op); break;
  default: eval_math(e, op); break;
  }
}

static void ranks_op(ranks all, const lm_op *op) {
  if (op->code == LM_OP_LOOP)
    ranks_loop(all, op);
  else if (op->code == LM_OP_CALL)
    ranks_call(all, op);
  else if (lm_op_info_of(op)->attrs & LM_A_MESH)
    lm_eval_collective(all.rank, all.n, op);
  else
    for (int k = 0; k < all.n; k++)
      eval_op(all.rank[k], op);
  for (int k = 0; k < all.n; k++)
    for (uint32_t i = 0; all.rank[k]->round && i < op->n_out; i++)
      round_to_type(of(all.rank[k], op->out[i]));
}

// The `derived` globals are computed again for each call.
static lm_status made_fill(lm_eval *e, const lm_func *copies) {
  lm_tensor *args = lm_calloc(copies->body->n_args + 1, sizeof *args);
  lm_tensor *out = lm_calloc(copies->n_out + 1, sizeof *out);
  for (uint32_t i = 0; i < copies->body->n_args; i++)
    args[i] = lm_eval_tensor(e, copies->body->args[i]->type);
  lm_status s = lm_eval_call(e, copies, args, out);
  for (uint32_t i = 0; i < e->n_globals && !s; i++)
    for (uint32_t k = 0; k < copies->n_out && e->m->globals[i].kind == LM_GLOBAL_DERIVED; k++)
      if (copies->out_names[k] == e->m->globals[i].name)
        memcpy(e->global[i].v, out[k].v, (size_t)out[k].n * sizeof *out[k].v);
  for (uint32_t k = 0; k < copies->n_out; k++)
    lm_tensor_free(&out[k]);
  for (uint32_t i = 0; i < copies->body->n_args; i++)
    lm_tensor_free(&args[i]);
  lm_free(out);
  lm_free(args);
  return s;
}

static bool has_made(const lm_eval *e) {
  for (uint32_t i = 0; i < e->n_globals; i++)
    if (e->m->globals[i].kind == LM_GLOBAL_DERIVED)
      return true;
  return false;
}

static lm_status call_begin(lm_eval *e, const lm_func *f, const lm_tensor *args) {
  const lm_func *copies = has_made(e) ? lm_func_get(e->m, LM_FUNC_COPIES, 0) : NULL;
  if (copies && f != copies)
    LM_TRY(made_fill(e, copies));
  e->env = lm_calloc((size_t)e->m->n_values + 1, sizeof *e->env);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    if (!lm_type_equal(args[i].type, f->body->args[i]->type))
      e->failed = lm_fail(LM_BUG_STATUS, "argument %u of @%s has another type", i, f->name);
    *of(e, f->body->args[i]) = lm_tensor_copy(&args[i]);
  }
  return e->failed;
}

static void call_end(lm_eval *e, const lm_func *f, bool ok, lm_tensor *out) {
  if (!e->env)
    return;
  for (uint32_t i = 0; i < f->n_out && ok; i++)
    out[i] = lm_tensor_copy(of(e, f->body->last->in[i]));
  region_forget(e, f->body);
  lm_free(e->env);
  e->env = NULL;
  e->failed = NULL;
}

static lm_status ranks_failed(ranks all) {
  for (int k = 0; k < all.n; k++)
    if (all.rank[k]->failed)
      return all.rank[k]->failed;
  return NULL;
}

static lm_status call(ranks all, const lm_func *f, const lm_tensor *args, lm_tensor *out) {
  lm_status s = NULL;
  for (int k = 0; k < all.n && !s; k++)
    s = call_begin(all.rank[k], f, args + (size_t)k * f->body->n_args);
  if (!s) {
    ranks_run(all, f->body);
    s = ranks_failed(all);
  }
  for (int k = 0; k < all.n; k++)
    call_end(all.rank[k], f, !s, out + (size_t)k * f->n_out);
  return s;
}

lm_status lm_eval_call(lm_eval *e, const lm_func *f, const lm_tensor *args, lm_tensor *out) {
  return call((ranks){&e, 1}, f, args, out);
}

// ---- the ranks of a mesh

lm_eval_mesh *lm_eval_mesh_create(lm_module *m) {
  lm_eval_mesh *e = lm_alloc(sizeof *e);
  e->n = lm_mesh_ranks(m);
  e->rank = lm_calloc((size_t)e->n, sizeof(lm_eval *));
  for (int k = 0; k < e->n; k++)
    e->rank[k] = lm_eval_create(m);
  return e;
}

void lm_eval_mesh_destroy(lm_eval_mesh *e) {
  for (int k = 0; k < e->n; k++)
    lm_eval_destroy(e->rank[k]);
  lm_free(e->rank);
  lm_free(e);
}

lm_eval *lm_eval_mesh_rank(lm_eval_mesh *e, int rank) {
  return e->rank[rank];
}

lm_status lm_eval_mesh_call(lm_eval_mesh *e, const lm_func *f, const lm_tensor *args,
                            lm_tensor *out) {
  return call(*e, f, args, out);
}
