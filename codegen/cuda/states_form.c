// states_form.c - the scans that states.c can write.
#include "codegen/cuda/states.h"
#include "compiler/ir/dot.h"
#include "compiler/ir/scan.h"

enum {
  STEP = 16 // rows and columns of tiles are multiples
};

static bool has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

static bool size_fits(int64_t n) {
  return n >= STEP && n <= CUDA_STATES_MOST && n % STEP == 0;
}

static lm_type state_of(const cuda_states *x) {
  return x->scan->in[0]->type;
}

// True if the axis is one of the points: of the state, beside its rows and columns.
static bool is_of_points(const cuda_states *x, lm_axis a) {
  return has(state_of(x), a) && a != x->p && a != x->n;
}

// ---- operands

// A slice of the scan, by its argument of the region; 0: it is none.
static uint32_t slice_of(const cuda_states *x, const lm_value *v) {
  const lm_op *s = x->scan;
  bool argument = !v->def && v->region == s->body;
  return argument && lm_scan_operand_is_slice(s, v->index) ? v->index : 0;
}

// The axis of t that is neither of the points nor its last one; 0 if there is none, or several.
static lm_axis row_of(const cuda_states *x, lm_type t) {
  lm_axis row = 0;
  for (int i = 0; i < t.rank - 1; i++) {
    if (is_of_points(x, t.axis[i]))
      continue;
    if (row)
      return 0;
    row = t.axis[i];
  }
  return row;
}

static bool tile_find(const cuda_states *x, const lm_value *v, cuda_states_tile *out) {
  lm_type t = v->type;
  *out = (cuda_states_tile){
      .operand = slice_of(x, v),
  };
  if (!out->operand || t.dtype != LM_BF16 || t.rank < 2)
    return false;
  out->row = row_of(x, t);
  out->columns = lm_axis_size(x->m, t.axis[t.rank - 1]);
  out->rows = out->row ? lm_axis_size(x->m, out->row) : 0;
  return size_fits(out->rows) && size_fits(out->columns);
}

static bool ends_with(const lm_value *v, lm_axis a) {
  return v->type.rank && v->type.axis[v->type.rank - 1] == a;
}

// ---- the region

// The only operation of the region that reads v, or of this code; NULL: there is none, or another.
static lm_op *reader_of(const cuda_states *x, const lm_value *v, lm_opcode code) {
  lm_op *found = NULL;
  int n = 0;
  for (lm_op *op = x->scan->body->first; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i] == v && op->code == code) {
        found = op;
        n++;
      }
  return n == 1 ? found : NULL;
}

static const lm_value *other_operand(const lm_op *op, const lm_value *v) {
  return op->in[op->in[0] == v];
}

static bool factor_find(cuda_states *x, const lm_op *mul, const lm_value *h) {
  const lm_value *f = other_operand(mul, h);
  x->factor = slice_of(x, f);
  bool fits = x->factor && f->type.dtype == LM_F32;
  for (int i = 0; i < f->type.rank; i++)
    fits = fits && is_of_points(x, f->type.axis[i]);
  return fits;
}

static bool added_find(cuda_states *x, const lm_op *dot) {
  if (dot->code != LM_OP_DOT || dot->attr.n_axes != 1 || dot->out[0]->type.dtype != LM_F32)
    return false;
  for (int i = 0; i < 2; i++)
    if (ends_with(dot->in[i], x->p) && ends_with(dot->in[1 - i], x->n))
      return tile_find(x, dot->in[i], &x->x) && tile_find(x, dot->in[1 - i], &x->key) &&
             x->x.row == dot->attr.axes[0] && x->key.row == x->x.row;
  return false;
}

// The operations on the carry, up to the value that is stacked before it is rounded.
static const lm_value *sum_find(cuda_states *x) {
  const lm_value *carry = x->scan->body->args[0];
  const lm_value *next = x->scan->body->last->in[0];
  const lm_op *mul = reader_of(x, carry, LM_OP_MUL);
  x->first = mul;
  const lm_value *h = mul ? mul->out[0] : carry;
  const lm_op *add = reader_of(x, h, LM_OP_ADD);
  if (!add || !other_operand(add, h)->def || !added_find(x, other_operand(add, h)->def))
    return NULL;
  const lm_value *sum = add->out[0];
  if (mul)
    return next == sum && factor_find(x, mul, carry) ? sum : NULL;
  const lm_op *last = next->def;
  bool fits = last && last->code == LM_OP_MUL && (last->in[0] == sum || last->in[1] == sum);
  return fits && factor_find(x, last, sum) ? sum : NULL;
}

static bool read_fits(cuda_states *x, const lm_op *dot, const lm_value *rounded) {
  bool over_n = dot->attr.n_axes == 1 && dot->attr.axes[0] == x->n;
  const lm_value *query = other_operand(dot, rounded), *y = dot->out[0];
  return over_n && ends_with(query, x->n) && tile_find(x, query, &x->query) &&
         y->type.dtype == LM_BF16 && ends_with(y, x->p) && row_of(x, y->type) == x->query.row;
}

// Results: the last carry, the stacked state and the read.
static bool results_find(cuda_states *x, const lm_value *rounded) {
  const lm_op *yield = x->scan->body->last;
  x->stack = x->read = 0;
  for (uint32_t i = 1; i < yield->n_in; i++) {
    const lm_op *def = yield->in[i]->def;
    if (yield->in[i] == rounded && !x->stack)
      x->stack = i;
    else if (def && def->code == LM_OP_DOT && !x->read && read_fits(x, def, rounded))
      x->read = i;
    else
      return false;
  }
  return x->stack;
}

static bool region_fits(cuda_states *x) {
  enum {
    LEAST = 5 // dot, add, cast, mul, yield
  };
  const lm_value *sum = sum_find(x);
  const lm_op *cast = sum ? reader_of(x, sum, LM_OP_CAST) : NULL;
  int n = 0;
  for (const lm_op *op = x->scan->body->first; op; op = op->next)
    n++;
  return cast && cast->out[0]->type.dtype == LM_BF16 && results_find(x, cast->out[0]) &&
         n == LEAST + (x->read != 0);
}

// ---- the scan

static bool carry_fits(cuda_states *x) {
  const lm_op *s = x->scan;
  lm_type t = state_of(x);
  if (lm_scan_carries(s) != 1 || s->n_in != 1 + lm_scan_slices(s) || t.rank < 2)
    return false;
  const lm_op *first = s->in[0]->def;
  bool zero = first && first->code == LM_OP_CONST && first->attr.num == 0;
  x->p = t.axis[t.rank - 2];
  x->n = t.axis[t.rank - 1];
  x->rows = lm_axis_size(x->m, x->p);
  x->columns = lm_axis_size(x->m, x->n);
  x->points = lm_type_elements(x->m, t) / (x->rows * x->columns);
  return zero && t.dtype == LM_F32 && size_fits(x->columns) && x->rows % STEP == 0;
}

static bool is_used(const lm_value *v) {
  uint32_t *uses = lm_func_uses(v->def->parent->func);
  bool used = uses[v->id] > 0;
  lm_free(uses);
  return used;
}

bool cuda_states_make(const lm_module *m, const lm_op *scan, cuda_states *out) {
  *out = (cuda_states){
      .m = m,
      .scan = scan,
  };
  if (!lm_op_chains(scan) || !carry_fits(out) || !region_fits(out) || is_used(scan->out[0]))
    return false;
  return cuda_sizes_known(m, scan);
}

bool cuda_states_fits(const lm_op *scan) {
  cuda_states x;
  return cuda_states_make(lm_op_module(scan), scan, &x);
}

// ---- operands in memory

static bool multiplies(const cuda_states *x, uint32_t k) {
  return k && (k == x->x.operand || k == x->key.operand || k == x->query.operand);
}

void cuda_states_strides(const cuda_states *x, uint32_t k, int64_t *out) {
  cuda_tile_strides(x->m, x->scan->in[k], multiplies(x, k), out);
}

bool cuda_states_reads_strided(const lm_op *op, uint32_t k) {
  int64_t strides[LM_RANK];
  cuda_states x;
  return lm_op_chains(op) && cuda_states_make(lm_op_module(op), op, &x) && multiplies(&x, k) &&
         cuda_tile_views(x.m, op->in[k], strides);
}
