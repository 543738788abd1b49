// pull.c - the value of one element as C: operands are evaluated recursively ("pulled") through
// index maps down to values that are held in memory.
//
// Each expression becomes a statement in the outermost loop that defines everything it depends on,
// and is written once for equal indices. Views, slices and similar operations only change indices.
#include <string.h>
#include "codegen/common/gen.h"
#include "compiler/ops/interface.h"

// ---- statements and names

// Counts as one instruction, to which lm_gen_temp adds.
void lm_gen_statement(lm_gen *e, int level, const char *fmt, ...) {
  va_list ap;
  lm_gen_count(e, level, 1, NULL);
  lm_buf *b = &e->level[level].before;
  va_start(ap, fmt);
  lm_buf_vprintf(b, fmt, ap);
  va_end(ap);
  lm_buf_puts(b, "\n");
}

const char *lm_gen_temp_name(lm_gen *e, const char *prefix) {
  return lm_arena_printf(e->arena, "%s%d", prefix, e->n_temps++);
}

const char *lm_gen_index(lm_gen *e, const lm_ix *ix, bool memory) {
  LM_PUSH(e->arena, e->accesses, e->n_accesses, e->cap_accesses) =
      (lm_gen_access){*ix, e->pass, memory, false, -1};
  lm_buf b = {0};
  lm_ix_print(&e->vars, ix, &b);
  const char *text = lm_arena_strndup(e->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

uint16_t lm_gen_temp_index(lm_gen *e, const char *text, int level, int64_t size, int dyn) {
  const char *name = lm_gen_temp_name(e, "j");
  lm_gen_statement(e, level, "const %s %s = %s;", e->target->index, name, text);
  return lm_var_add(
      &e->vars,
      (lm_var){
          .kind = LM_VAR_TEMP, .name = name, .size = size, .dyn = dyn, .hi = size, .level = level});
}

static int deeper(int a, int b) {
  return a > b ? a : b;
}

lm_gen_text lm_gen_temp(lm_gen *e, lm_dtype t, int level, const char *text, const lm_op *op,
                        lm_type type) {
  const char *name = lm_gen_temp_name(e, "v");
  lm_buf note = {0};
  lm_gen_type_print(e, type, &note);
  lm_gen_count(e, level, lm_gen_op_instructions(e, op) - 1, op);
  lm_gen_statement(e, level, "const %s %s = %s;  // %s : %s", lm_gen_register_type(t), name, text,
                   op ? lm_op_info_of(op)->name : "load", note.p);
  lm_buf_free(&note);
  return (lm_gen_text){name, level};
}

// ---- memory

lm_ix lm_gen_dense_index(const lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted) {
  lm_ix at = lm_ix_const(0);
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    if (lm_type_find(counted, t.axis[i]) < 0)
      continue;
    at = lm_ix_add(at, lm_ix_scale(ix[i], stride));
    stride *= lm_axis_size(e->m, t.axis[i]);
  }
  return at;
}

const char *lm_gen_dense_offset(lm_gen *e, lm_type t, const lm_ix *ix, lm_type counted) {
  lm_ix at = lm_gen_dense_index(e, t, ix, counted);
  return lm_gen_index(e, &at, true);
}

lm_ix lm_gen_result_index(const lm_gen *e, uint32_t r, lm_type t, const lm_ix *ix) {
  if (!e->result_stride || !e->result_stride[r])
    return lm_gen_dense_index(e, t, ix, t);
  lm_ix at = lm_ix_const(0);
  for (int i = t.rank - 1; i >= 0; i--)
    at = lm_ix_add(at, lm_ix_scale(ix[i], e->result_stride[r][i]));
  return at;
}

static lm_gen_text load(lm_gen *e, const char *base, lm_type t, const lm_ix *at) {
  const char *index = lm_gen_index(e, at, true);
  const char *location = lm_arena_printf(e->arena, "%s[%s]", base, index);
  lm_gen_text own;
  if (e->target->load && e->target->load(e, base, t, at, &own))
    return own;
  return lm_gen_temp(e, t.dtype, lm_ix_level(&e->vars, at),
                     lm_gen_load_text(e->arena, t.dtype, location), NULL, t);
}

static lm_gen_text load_operand(lm_gen *e, const lm_value *arg, lm_type t, const lm_ix *ix) {
  lm_ix at = lm_gen_dense_index(e, t, ix, t);
  lm_gen_text x = load(e, lm_arena_printf(e->arena, "a%u", arg->index), t, &at);
  lm_gen_access *access = &e->accesses[e->n_accesses - 1];
  access->operand = (int)arg->index;
  access->type = t;
  access->same = true;
  for (int i = 0; i < t.rank; i++) {
    lm_ix here = lm_gen_axis_index(e, t.axis[i]);
    access->same &= lm_ix_equal(&here, &ix[i]);
  }
  return x;
}

// ---- requests to split and partition loops

static int loop_of(const lm_gen *e, uint16_t var) {
  const lm_gen_domain *d = &e->domains[e->pass];
  for (int i = 0; i < d->n; i++)
    if (d->loop[i].var == var)
      return i;
  return -1;
}

static bool request(lm_gen *e, lm_gen_request kind, uint16_t var, int64_t at) {
  int loop = var ? loop_of(e, var) : -1;
  if (loop < 0)
    return false;
  if (e->request.kind == LM_GEN_REQUEST_NONE) {
    e->request.kind = kind;
    e->request.pass = e->pass;
    e->request.loop = loop;
    e->request.at = at;
  }
  return true;
}

// Computes ix = n * quotient + rest: while generating code if a split of a loop allows it, else at
// run time.
static void divide(lm_gen *e, lm_ix ix, int64_t n, int64_t size, lm_ix *quotient, lm_ix *rest) {
  int64_t by = 0;
  if (lm_ix_divide(&e->vars, &ix, n, quotient, rest))
    return;
  uint16_t var = lm_ix_split_find(&e->vars, &ix, n, &by);
  request(e, LM_GEN_REQUEST_SPLIT, var, by);
  int level = lm_ix_level(&e->vars, &ix);
  const char *text = lm_gen_index(e, &ix, false);
  *quotient = lm_ix_var(
      &e->vars, lm_gen_temp_index(e, lm_arena_printf(e->arena, "(%s) / %lld", text, (long long)n),
                                  level, (size + n - 1) / n, 0));
  *rest = lm_ix_var(
      &e->vars, lm_gen_temp_index(e, lm_arena_printf(e->arena, "(%s) %% %lld", text, (long long)n),
                                  level, n, 0));
}

typedef enum {
  BELOW,
  ABOVE,
  UNDECIDED
} side;

// Compares ix with the bound over the current ranges of the loops; if that is undecided, requests a
// partition that decides it.
static side side_of(lm_gen *e, const lm_ix *ix, int64_t bound) {
  int64_t min;
  int64_t max;
  int64_t at = 0;
  lm_ix_range(&e->vars, ix, &min, &max);
  if (max < bound)
    return BELOW;
  if (min >= bound)
    return ABOVE;
  uint16_t var = lm_ix_partition_find(&e->vars, ix, bound, &at);
  request(e, LM_GEN_REQUEST_PARTITION, var, at);
  return UNDECIDED;
}

// ---- indices of operands

static void copy_shared(const lm_op *op, const lm_ix *ix, lm_type from, lm_ix *out) {
  lm_type t = op->out[0]->type;
  for (int i = 0; i < from.rank; i++) {
    int at = lm_type_find(t, from.axis[i]);
    out[i] = at >= 0 ? ix[at] : lm_ix_const(0);
  }
}

static lm_gen_text pull_renamed(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  return lm_gen_pull(e, op->in[0], ix);
}

static lm_gen_text pull_view(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type;
  lm_ix in[LM_RANK];
  lm_ix flat = lm_ix_const(0);
  lm_ix rest;
  int first = lm_type_find(from, op->attr.axes[0]);
  int n = op->attr.n_axes;
  int n_to = op->attr.n_to;
  int64_t size = 1;
  for (int i = 0; i < n_to; i++) {
    int64_t extent = lm_axis_size(e->m, op->attr.to[i]);
    flat = lm_ix_add(lm_ix_scale(flat, extent), ix[first + i]);
    size *= extent;
  }
  memcpy(in, ix, (size_t)first * sizeof *in);
  for (int i = from.rank - 1; i >= first + n; i--)
    in[i] = ix[i - n + n_to];
  for (int i = n - 1; i > 0; i--) {
    int64_t extent = lm_axis_size(e->m, op->attr.axes[i]);
    divide(e, flat, extent, size, &flat, &rest);
    in[first + i] = rest;
    size /= extent;
  }
  in[first] = flat;
  return lm_gen_pull(e, op->in[0], in);
}

static lm_gen_text pull_slice(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type;
  lm_ix in[LM_RANK];
  int at = lm_type_find(from, op->attr.axes[0]);
  int gone = !op->attr.n_to;
  for (int i = 0; i < from.rank; i++)
    in[i] = ix[i - (gone && i > at)];
  lm_ix first = lm_ix_const(op->attr.imm[0]);
  in[at] = gone ? first : lm_ix_add(first, lm_ix_scale(ix[at], op->attr.imm[1]));
  return lm_gen_pull(e, op->in[0], in);
}

// ix clamped to [0, n) or to a run-time extent of capacity n, and a condition that is true if it
// was inside.
static lm_ix clamped(lm_gen *e, lm_ix ix, int64_t n, int dyn, const char **out_inside,
                     int *out_level) {
  int level = lm_ix_level(&e->vars, &ix);
  const char *text = lm_gen_index(e, &ix, false);
  const char *size = lm_gen_extent(e, n, dyn, 1);
  *out_inside = lm_arena_printf(e->arena, "(%s >= 0 && %s < %s)", text, text, size);
  *out_level = level;
  text = lm_arena_printf(e->arena, "lm_clamp(%s, %s)", text, size);
  return lm_ix_var(&e->vars, lm_gen_temp_index(e, text, level, n, 0));
}

static lm_gen_text select_text(lm_gen *e, const lm_op *op, const char *cond, int level,
                               lm_gen_text yes, lm_gen_text no) {
  const char *text = lm_arena_printf(e->arena, "%s ? %s : %s", cond, yes.text, no.text);
  return lm_gen_temp(e, op->out[0]->type.dtype, deeper(level, deeper(yes.level, no.level)), text,
                     op, op->out[0]->type);
}

static lm_gen_text pull_concat(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  int at = lm_type_find(op->out[0]->type, op->attr.to[0]);
  int64_t begin = 0;
  lm_gen_text sum = {0};
  lm_ix in[LM_RANK];
  memcpy(in, ix, sizeof in);
  for (uint32_t i = 0; i < op->n_in; i++) {
    int64_t size = lm_axis_size(e->m, op->attr.axes[i]);
    lm_ix local = lm_ix_add(ix[at], lm_ix_const(-begin));
    side low = side_of(e, &local, 0);
    side high = side_of(e, &local, size);
    begin += size;
    if (low == BELOW || high == ABOVE)
      continue;
    in[at] = local;
    if (low == ABOVE && high == BELOW)
      return lm_gen_pull(e, op->in[i], in);
    const char *inside;
    int level;
    in[at] = clamped(e, local, size, 0, &inside, &level);
    lm_gen_text part = lm_gen_pull(e, op->in[i], in);
    sum = sum.text ? select_text(e, op, inside, level, part, sum) : part;
  }
  return sum;
}

// The operand of op at index j of its axis number `at`, where local = step * j; 0 if there is no
// such j below the axis' extent. Steps other than 1 are decided at run time. at: -1 if the operand
// has no such axis, only one element.
static lm_gen_text pull_inside(lm_gen *e, const lm_op *op, lm_ix *in, int at, lm_ix local,
                               int64_t step) {
  const lm_axis_info *axis = at < 0 ? NULL : &e->m->axes[op->in[0]->type.axis[at]];
  int64_t n = axis ? axis->size : 1;
  lm_gen_text zero = {lm_gen_const_text(e->arena, op->out[0]->type.dtype, 0), 0};
  const char *inside;
  const char *divisible = NULL;
  int level;
  if (step != 1) {
    const char *text = lm_gen_index(e, &local, false);
    level = lm_ix_level(&e->vars, &local);
    divisible = lm_arena_printf(e->arena, "(%s) %% %lld == 0", text, (long long)step);
    local = (lm_ix){
        .n = 1,
        .t = {{lm_gen_temp_index(e, lm_arena_printf(e->arena, "(%s) / %lld", text, (long long)step),
                                 level, INT32_MAX, 0),
               1}}};
    e->vars.v[local.t[0].var].lo = INT32_MIN;
  }
  side low = side_of(e, &local, 0);
  side high = axis && axis->dyn ? UNDECIDED : side_of(e, &local, n);
  if (low == BELOW || high == ABOVE)
    return zero;
  bool decided = low == ABOVE && high == BELOW && !divisible;
  lm_ix j = decided ? local : clamped(e, local, n, axis ? axis->dyn : 0, &inside, &level);
  if (axis)
    in[at] = j;
  lm_gen_text x = lm_gen_pull(e, op->in[0], in);
  if (decided)
    return x;
  return select_text(e, op,
                     divisible ? lm_arena_printf(e->arena, "%s & (%s)", inside, divisible) : inside,
                     level, x, zero);
}

// Element ix of the result is element j with ix = first + step * j.
static lm_gen_text pull_pad(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type;
  int at = lm_type_find(op->out[0]->type, op->attr.to[0]);
  int added = !op->attr.n_axes;
  lm_ix in[LM_RANK];
  lm_ix local = lm_ix_add(ix[at], lm_ix_const(-op->attr.imm[0]));
  for (int i = 0; i < from.rank; i++)
    in[i] = ix[i + (added && i >= at)];
  return pull_inside(e, op, in, added ? -1 : at, local, added ? 1 : op->attr.imm[1]);
}

// The index of a window's operand along its axis, by the indices of the result along (u, k):
// u * stride + k * dilate - before. Of an unwindow: (t - k * dilate + before) / stride.
static lm_gen_text pull_window(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  bool back = op->code == LM_OP_UNWINDOW;
  const lm_attr *a = &op->attr;
  lm_type from = op->in[0]->type;
  lm_type to = op->out[0]->type;
  lm_ix in[LM_RANK];
  copy_shared(op, ix, from, in);
  lm_ix tap = lm_ix_scale(ix[lm_type_find(to, a->to[1])], back ? -a->imm[2] : a->imm[2]);
  lm_ix at = lm_ix_scale(ix[lm_type_find(to, a->to[0])], back ? 1 : a->imm[1]);
  at = lm_ix_add(lm_ix_add(at, tap), lm_ix_const(back ? a->imm[0] : -a->imm[0]));
  return pull_inside(e, op, in, lm_type_find(from, a->axes[0]), at, back ? a->imm[1] : 1);
}

// A variable that holds the index, clamped to the extent of the table's axis.
static lm_ix gathered_index(lm_gen *e, const lm_value *index, lm_axis axis, const lm_ix *ix) {
  lm_gen_text i = lm_gen_pull(e, index, ix);
  const lm_axis_info *a = &e->m->axes[axis];
  const char *n = lm_gen_extent(e, a->size, a->dyn, 1);
  return lm_ix_var(&e->vars,
                   lm_gen_temp_index(e, lm_arena_printf(e->arena, "lm_clamp(%s, %s)", i.text, n),
                                     i.level, a->size, 0));
}

static lm_gen_text pull_gather(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_type table = op->in[0]->type;
  lm_type index = op->in[1]->type;
  lm_ix at[LM_RANK];
  lm_ix in[LM_RANK];
  copy_shared(op, ix, index, at);
  copy_shared(op, ix, table, in);
  in[lm_type_find(table, op->attr.axes[0])] = gathered_index(e, op->in[1], op->attr.axes[0], at);
  return lm_gen_pull(e, op->in[0], in);
}

// ---- values computed from indices

static lm_gen_text pull_iota(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  return lm_gen_temp(e, LM_INT, lm_ix_level(&e->vars, ix),
                     lm_arena_printf(e->arena, "(int32_t)(%s)", lm_gen_index(e, ix, false)), op,
                     op->out[0]->type);
}

static lm_gen_text pull_rng(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_type t = op->out[0]->type;
  lm_ix column = t.rank ? ix[t.rank - 1] : lm_ix_const(0);
  lm_ix at[LM_RANK];
  const char *in[4];
  int level = lm_ix_level(&e->vars, &column);
  for (int i = 0; i < 4; i++) {
    copy_shared(op, ix, op->in[i]->type, at);
    lm_gen_text x = lm_gen_pull(e, op->in[i], at);
    in[i] = x.text;
    level = deeper(level, x.level);
  }
  const char *text = lm_gen_rng_text(e->arena, op, lm_gen_index(e, &column, false), in);
  return lm_gen_temp(e, t.dtype, level, text, op, t);
}

// x / y where y is invariant in an inner loop: the reciprocal of y is computed outside of that
// loop. Its product differs from a division, which computes the value where both are variant.
static lm_gen_text divide_outside(lm_gen *e, const lm_op *op, lm_gen_text x, lm_gen_text y) {
  const char *one = lm_gen_const_text(e->arena, LM_F32, 1);
  lm_gen_text r = lm_gen_temp(e, LM_F32, y.level, lm_arena_printf(e->arena, "%s / %s", one, y.text),
                              op, op->in[1]->type);
  return lm_gen_temp(e, LM_F32, x.level, lm_arena_printf(e->arena, "%s * %s", x.text, r.text), op,
                     op->out[0]->type);
}

// One of two products is contracted with their sum.
static void count_sum(lm_gen *e, const lm_op *op, const lm_gen_text *x, int level) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (lm_gen_count_addition(e, x[i].text, level))
      return;
}

static lm_gen_text pull_elementwise(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  const char *text[3];
  lm_gen_text x[3];
  lm_ix in[LM_RANK];
  int level = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    copy_shared(op, ix, op->in[i]->type, in);
    x[i] = lm_gen_pull(e, op->in[i], in);
    text[i] = x[i].text;
    level = deeper(level, x[i].level);
  }
  bool single = op->out[0]->type.dtype != LM_F64;
  if (op->code == LM_OP_DIV && single && !e->compares && x[1].level < x[0].level)
    return divide_outside(e, op, x[0], x[1]);
  const char *c = lm_gen_op_text(e, op, text);
  if (c == text[0])
    return (lm_gen_text){c, level};
  lm_gen_text y = lm_gen_temp(e, op->out[0]->type.dtype, level, c, op, op->out[0]->type);
  lm_gen_count_product(e, op, y);
  if (op->code == LM_OP_ADD || op->code == LM_OP_SUB)
    count_sum(e, op, x, level);
  return y;
}

static lm_gen_text pull_shared(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_ix in[LM_RANK];
  copy_shared(op, ix, op->in[0]->type, in);
  return lm_gen_pull(e, op->in[0], in);
}

static lm_gen_text pull_op(lm_gen *e, const lm_op *op, const lm_ix *ix) {
  lm_gen_text own;
  if (e->target->value && e->target->value(e, op, ix, &own))
    return own;
  switch (op->code) {
  case LM_OP_CONST:
    return (lm_gen_text){lm_gen_const_text(e->arena, op->out[0]->type.dtype, op->attr.num), 0};
  case LM_OP_IOTA: return pull_iota(e, op, ix);
  case LM_OP_RNG: return pull_rng(e, op, ix);
  case LM_OP_EXPAND:
  case LM_OP_PERMUTE: return pull_shared(e, op, ix);
  case LM_OP_RENAME: return pull_renamed(e, op, ix);
  case LM_OP_VIEW: return pull_view(e, op, ix);
  case LM_OP_SLICE: return pull_slice(e, op, ix);
  case LM_OP_PAD: return pull_pad(e, op, ix);
  case LM_OP_CONCAT: return pull_concat(e, op, ix);
  case LM_OP_WINDOW:
  case LM_OP_UNWINDOW: return pull_window(e, op, ix);
  case LM_OP_GATHER: return pull_gather(e, op, ix);
  default: return pull_elementwise(e, op, ix);
  }
}

// ---- evaluation

static lm_gen_memo *remembered(lm_gen *e, const lm_value *v, const lm_ix *ix) {
  for (lm_gen_memo *m = e->memo; m; m = m->next) {
    bool same = m->v == v;
    for (int i = 0; same && i < v->type.rank; i++)
      same = lm_ix_equal(&m->ix[i], &ix[i]);
    if (same)
      return m;
  }
  return NULL;
}

// The operand that v is a view of, or NULL: views are other types of the same dense memory.
static const lm_value *base_of(const lm_value *v) {
  while (v->def && lm_op_has(v->def, LM_T_ORDERED))
    v = v->def->in[0];
  return v->def ? NULL : v;
}

static lm_gen_text produce(lm_gen *e, const lm_value *v, const lm_ix *ix) {
  const lm_node *n = lm_schedule_node(e->s, v);
  const lm_value *base = base_of(v);
  if (base)
    return load_operand(e, base, v->type, ix);
  if (n->held == LM_HELD_NOT || !e->done[n->pass])
    return pull_op(e, v->def, ix);
  if (n->held != LM_HELD_RESULT)
    return e->target->held(e, v, ix);
  lm_ix at = lm_gen_result_index(e, (uint32_t)n->slot, v->type, ix);
  return load(e, lm_arena_printf(e->arena, "r%d", n->slot), v->type, &at);
}

lm_gen_text lm_gen_pull(lm_gen *e, const lm_value *v, const lm_ix *ix) {
  lm_gen_memo *found = remembered(e, v, ix);
  if (found)
    return found->text;
  lm_gen_text text = produce(e, v, ix);
  lm_gen_memo *m = LM_NEW(e->arena, lm_gen_memo);
  *m = (lm_gen_memo){
      .v = v,
      .text = text,
      .scope = text.level,
      .next = e->memo,
  };
  for (int i = 0; i < v->type.rank; i++)
    m->scope = deeper(m->scope, lm_ix_level(&e->vars, &ix[i]));
  m->ix = LM_NEW_N(e->arena, lm_ix, v->type.rank + 1);
  if (v->type.rank)
    memcpy(m->ix, ix, v->type.rank * sizeof *ix);
  e->memo = m;
  return text;
}
