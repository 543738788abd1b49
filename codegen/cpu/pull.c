// pull.c - the value of one element as C: operands are pulled along maps of indices until something is held in memory.
//
// Every expression is a statement of its own in the outermost loop that sets all it depends on, and is written once for
// equal indices. Views, slices and the like are nothing but other indices.
#include <string.h>
#include "codegen/cpu/emit.h"
#include "runtime/base/philox.h"

// ---- statements and names

void cpu_statement(cpu_emit *e, int level, const char *fmt, ...) {
  va_list ap;
  lm_buf *b = &e->level[level].before;
  va_start(ap, fmt);
  lm_buf_vprintf(b, fmt, ap);
  va_end(ap);
  lm_buf_puts(b, "\n");
}

const char *cpu_temp_name(cpu_emit *e, const char *prefix) { return lm_arena_printf(e->arena, "%s%d", prefix, e->n_temps++); }

const char *cpu_index(cpu_emit *e, const lm_ix *ix, bool memory) {
  LM_PUSH(e->arena, e->accesses, e->n_accesses, e->cap_accesses) = (cpu_access){*ix, e->pass, memory, false, -1};
  lm_buf b = {0};
  lm_ix_print(&e->vars, ix, &b);
  const char *text = lm_arena_strndup(e->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

uint16_t cpu_temp_index(cpu_emit *e, const char *text, int level, int64_t size, int dyn) {
  const char *name = cpu_temp_name(e, "j");
  cpu_statement(e, level, "const int64_t %s = %s;", name, text);
  return lm_var_add(&e->vars, (lm_var){.kind = LM_VAR_TEMP, .name = name, .size = size, .dyn = dyn, .hi = size, .level = level});
}

static int deeper(int a, int b) { return a > b ? a : b; }

static cpu_text temp(cpu_emit *e, lm_dtype t, int level, const char *text, const lm_op *op, lm_type type) {
  const char *name = cpu_temp_name(e, "v");
  lm_buf note = {0};
  lm_type_print(e->m, type, &note);
  cpu_statement(e, level, "const %s %s = %s;  // %s : %s", cpu_register_type(t), name, text, op ? lm_op_info_of(op)->name : "load", note.p);
  lm_buf_free(&note);
  return (cpu_text){name, level};
}

// ---- memory

// Row-major offset, by capacities, of an element of t; only axes of `along` count if that has any.
static lm_ix dense_index(const cpu_emit *e, lm_type t, const lm_ix *ix, lm_type counted) {
  lm_ix at = lm_ix_const(0);
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; i--) {
    if (lm_type_find(counted, t.axis[i]) < 0) continue;
    at = lm_ix_add(at, lm_ix_scale(ix[i], stride));
    stride *= lm_axis_size(e->m, t.axis[i]);
  }
  return at;
}

const char *cpu_dense_offset(cpu_emit *e, lm_type t, const lm_ix *ix, lm_type counted) {
  lm_ix at = dense_index(e, t, ix, counted);
  return cpu_index(e, &at, true);
}

// Lanes are innermost in a row; the first lane group counts from the block's beginning.
static lm_ix row_index(const cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  lm_type inner = lm_kernel_inner(e->kernel, v->type);
  lm_ix at = lm_ix_scale(dense_index(e, v->type, ix, inner), cpu_lanes(e));
  int64_t stride = cpu_lanes(e);
  for (int g = e->n_groups - e->n_lane_groups; g < e->n_groups; g++) {
    bool blocked = e->block && g == e->n_groups - e->n_lane_groups;
    uint16_t var = e->outer[e->groups[g].last];
    stride /= blocked ? e->block : e->groups[g].size;
    lm_ix lane = {.n = 1, .t = {{var, 1}}};
    at = lm_ix_add(at, lm_ix_scale(lane, stride));
  }
  return at;
}

const char *cpu_row_offset(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  lm_ix at = row_index(e, v, ix);
  const char *text = cpu_index(e, &at, true);
  if (!e->n_lane_groups || !e->block) return text;
  int64_t stride = cpu_lanes(e) / e->block;
  return lm_arena_printf(e->arena, stride == 1 ? "%s - first" : "%s - first * %lld", text, (long long)stride);
}

static cpu_text load_dense(cpu_emit *e, const char *base, lm_type t, const lm_ix *ix) {
  lm_ix at = dense_index(e, t, ix, t);
  const char *place = lm_arena_printf(e->arena, "%s[%s]", base, cpu_index(e, &at, true));
  return temp(e, t.dtype, lm_ix_level(&e->vars, &at), cpu_load_text(e->arena, t.dtype, place), NULL, t);
}

static cpu_text load_operand(cpu_emit *e, const lm_value *arg, lm_type t, const lm_ix *ix) {
  cpu_text x = load_dense(e, lm_arena_printf(e->arena, "a%u", arg->index), t, ix);
  cpu_access *access = &e->accesses[e->n_accesses - 1];
  access->operand = (int)arg->index;
  access->same = lm_type_equal(t, arg->type);
  for (int i = 0; i < t.rank; i++) {
    lm_ix here = cpu_axis_index(e, t.axis[i]);
    access->same &= lm_ix_equal(&here, &ix[i]);
  }
  return x;
}

static cpu_text load_held(cpu_emit *e, const lm_value *v, const lm_node *n, const lm_ix *ix) {
  if (n->held == LM_HELD_RESULT) return load_dense(e, lm_arena_printf(e->arena, "r%d", n->slot), v->type, ix);
  if (n->held == LM_HELD_SCALAR && !e->n_lane_groups) return (cpu_text){lm_arena_printf(e->arena, "h%d", n->op->mark), 0};
  lm_ix at = row_index(e, v, ix);
  const char *place = lm_arena_printf(e->arena, "h%d[%s]", n->op->mark, cpu_row_offset(e, v, ix));
  return temp(e, v->type.dtype, lm_ix_level(&e->vars, &at), place, NULL, v->type);
}

// ---- the shape of loops

static int atom_of(const cpu_emit *e, uint16_t var) {
  const cpu_domain *d = &e->domains[e->pass];
  for (int i = 0; i < d->n; i++)
    if (d->atom[i].var == var) return i;
  return -1;
}

static bool ask(cpu_emit *e, cpu_ask_kind kind, uint16_t var, int64_t at) {
  int atom = var ? atom_of(e, var) : -1;
  if (atom < 0) return false;
  if (e->ask.kind == CPU_ASK_NOTHING) {
    e->ask.kind = kind;
    e->ask.pass = e->pass;
    e->ask.atom = atom;
    e->ask.at = at;
  }
  return true;
}

// ix = n * quotient + rest; at run time if no split of a loop makes it plain.
static void divide(cpu_emit *e, lm_ix ix, int64_t n, int64_t size, lm_ix *quotient, lm_ix *rest) {
  int64_t by;
  if (lm_ix_divide(&e->vars, &ix, n, quotient, rest)) return;
  ask(e, CPU_ASK_SPLIT, lm_ix_split_find(&e->vars, &ix, n, &by), by);
  int level = lm_ix_level(&e->vars, &ix);
  const char *text = cpu_index(e, &ix, false);
  *quotient = lm_ix_var(&e->vars, cpu_temp_index(e, lm_arena_printf(e->arena, "(%s) / %lld", text, (long long)n), level, (size + n - 1) / n, 0));
  *rest = lm_ix_var(&e->vars, cpu_temp_index(e, lm_arena_printf(e->arena, "(%s) %% %lld", text, (long long)n), level, n, 0));
}

typedef enum { BELOW, ABOVE, UNDECIDED } side;

// On which side of the bound ix lies throughout the loops as they stand; asks for a cut that would decide it.
static side side_of(cpu_emit *e, const lm_ix *ix, int64_t bound) {
  int64_t min, max, at;
  lm_ix_range(&e->vars, ix, &min, &max);
  if (max < bound) return BELOW;
  if (min >= bound) return ABOVE;
  ask(e, CPU_ASK_CUT, lm_ix_cut_find(&e->vars, ix, bound, &at), at);
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

static cpu_text pull_renamed(cpu_emit *e, const lm_op *op, const lm_ix *ix) { return cpu_pull(e, op->in[0], ix); }

static cpu_text pull_view(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type;
  lm_ix in[LM_RANK], flat = lm_ix_const(0), rest;
  int first = lm_type_find(from, op->attr.axes[0]), n = op->attr.n_axes, n_to = op->attr.n_to;
  int64_t size = 1;
  for (int i = 0; i < n_to; i++) {
    int64_t extent = lm_axis_size(e->m, op->attr.to[i]);
    flat = lm_ix_add(lm_ix_scale(flat, extent), ix[first + i]);
    size *= extent;
  }
  memcpy(in, ix, (size_t)first * sizeof *in);
  for (int i = from.rank - 1; i >= first + n; i--) in[i] = ix[i - n + n_to];
  for (int i = n - 1; i > 0; i--) {
    int64_t extent = lm_axis_size(e->m, op->attr.axes[i]);
    divide(e, flat, extent, size, &flat, &rest);
    in[first + i] = rest;
    size /= extent;
  }
  in[first] = flat;
  return cpu_pull(e, op->in[0], in);
}

static cpu_text pull_slice(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type;
  lm_ix in[LM_RANK];
  int at = lm_type_find(from, op->attr.axes[0]), gone = !op->attr.n_to;
  for (int i = 0; i < from.rank; i++) in[i] = ix[i - (gone && i > at)];
  lm_ix first = lm_ix_const(op->attr.imm[0]);
  in[at] = gone ? first : lm_ix_add(first, lm_ix_scale(ix[at], op->attr.imm[1]));
  return cpu_pull(e, op->in[0], in);
}

// ix clamped into [0, n), with a condition that says whether it lay there
static lm_ix clamped(cpu_emit *e, lm_ix ix, int64_t n, const char **out_inside, int *out_level) {
  int level = lm_ix_level(&e->vars, &ix);
  const char *text = cpu_index(e, &ix, false);
  *out_inside = lm_arena_printf(e->arena, "(%s >= 0 && %s < %lld)", text, text, (long long)n);
  *out_level = level;
  return lm_ix_var(&e->vars, cpu_temp_index(e, lm_arena_printf(e->arena, "lm_clamp(%s, %lld)", text, (long long)n), level, n, 0));
}

static cpu_text choose(cpu_emit *e, const lm_op *op, const char *cond, int level, cpu_text yes, cpu_text no) {
  const char *text = lm_arena_printf(e->arena, "%s ? %s : %s", cond, yes.text, no.text);
  return temp(e, op->out[0]->type.dtype, deeper(level, deeper(yes.level, no.level)), text, op, op->out[0]->type);
}

static cpu_text pull_concat(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  int at = lm_type_find(op->out[0]->type, op->attr.to[0]);
  int64_t begin = 0;
  cpu_text sum = {0};
  lm_ix in[LM_RANK];
  memcpy(in, ix, sizeof in);
  for (uint32_t i = 0; i < op->n_in; i++) {
    int64_t size = lm_axis_size(e->m, op->attr.axes[i]);
    lm_ix local = lm_ix_add(ix[at], lm_ix_const(-begin));
    side low = side_of(e, &local, 0), high = side_of(e, &local, size);
    begin += size;
    if (low == BELOW || high == ABOVE) continue;
    in[at] = local;
    if (low == ABOVE && high == BELOW) return cpu_pull(e, op->in[i], in);
    const char *inside;
    int level;
    in[at] = clamped(e, local, size, &inside, &level);
    cpu_text part = cpu_pull(e, op->in[i], in);
    sum = sum.text ? choose(e, op, inside, level, part, sum) : part;
  }
  return sum;
}

// j with ix = first + step * j, and whether there is one below n; steps other than 1 are decided at run time.
static cpu_text pull_pad(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_type from = op->in[0]->type, to = op->out[0]->type;
  int at = lm_type_find(to, op->attr.to[0]), added = !op->attr.n_axes;
  int64_t first = op->attr.imm[0], step = op->attr.imm[1], n = added ? 1 : lm_axis_size(e->m, op->attr.axes[0]);
  cpu_text zero = {cpu_const_text(e->arena, to.dtype, 0), 0};
  lm_ix in[LM_RANK], local = lm_ix_add(ix[at], lm_ix_const(-first));
  if (added) step = 1;
  for (int i = 0; i < from.rank; i++) in[i] = ix[i + (added && i >= at)];
  const char *inside, *whole = NULL;
  int level;
  if (step != 1) {
    const char *text = cpu_index(e, &local, false);
    level = lm_ix_level(&e->vars, &local);
    whole = lm_arena_printf(e->arena, "(%s) %% %lld == 0", text, (long long)step);
    local = (lm_ix){.n = 1, .t = {{cpu_temp_index(e, lm_arena_printf(e->arena, "(%s) / %lld", text, (long long)step), level, INT32_MAX, 0), 1}}};
    e->vars.v[local.t[0].var].lo = INT32_MIN;
  }
  side low = side_of(e, &local, 0), high = side_of(e, &local, n);
  if (low == BELOW || high == ABOVE) return zero;
  bool decided = low == ABOVE && high == BELOW && !whole;
  lm_ix j = decided ? local : clamped(e, local, n, &inside, &level);
  if (!added) in[at] = j;
  cpu_text x = cpu_pull(e, op->in[0], in);
  if (decided) return x;
  return choose(e, op, whole ? lm_arena_printf(e->arena, "%s & (%s)", inside, whole) : inside, level, x, zero);
}

// Variable that holds the index, clamped into the table's axis.
static lm_ix pull_place(cpu_emit *e, const lm_value *index, lm_axis axis, const lm_ix *ix) {
  cpu_text i = cpu_pull(e, index, ix);
  const lm_axis_info *a = &e->m->axes[axis];
  const char *n = cpu_extent(e, a->size, a->dyn, 1);
  return lm_ix_var(&e->vars, cpu_temp_index(e, lm_arena_printf(e->arena, "lm_clamp(%s, %s)", i.text, n), i.level, a->size, 0));
}

static cpu_text pull_gather(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_type table = op->in[0]->type, index = op->in[1]->type;
  lm_ix at[LM_RANK], in[LM_RANK];
  copy_shared(op, ix, index, at);
  copy_shared(op, ix, table, in);
  in[lm_type_find(table, op->attr.axes[0])] = pull_place(e, op->in[1], op->attr.axes[0], at);
  return cpu_pull(e, op->in[0], in);
}

// ---- numbers made from indices

static cpu_text pull_iota(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  return temp(e, LM_INT, lm_ix_level(&e->vars, ix), lm_arena_printf(e->arena, "(int32_t)(%s)", cpu_index(e, ix, false)), op, op->out[0]->type);
}

// The element's number counts the row, %1, along the first axis.
static cpu_text pull_rng(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_type t = op->out[0]->type;
  lm_philox_key2 key = lm_philox_key((uint64_t)op->attr.imm[0], (uint64_t)op->attr.imm[1]);
  lm_ix at = dense_index(e, t, ix, t);
  int64_t row = t.rank ? lm_type_elements(e->m, t) / lm_axis_size(e->m, t.axis[0]) : 0;
  cpu_text in[3];
  int level = lm_ix_level(&e->vars, &at);
  for (int i = 0; i < 3; i++) {
    in[i] = cpu_pull(e, op->in[i], ix);
    level = deeper(level, in[i].level);
  }
  const char *text = lm_arena_printf(e->arena, "lm_uniform(%uu, %uu, (uint64_t)(%s + (int64_t)%s * %lld), %s, %s)", key.v[0], key.v[1],
                                     cpu_index(e, &at, false), in[1].text, (long long)row, in[2].text, in[0].text);
  return temp(e, t.dtype, level, text, op, t);
}

static cpu_text pull_elementwise(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  const char *text[3];
  lm_ix in[LM_RANK];
  int level = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    copy_shared(op, ix, op->in[i]->type, in);
    cpu_text x = cpu_pull(e, op->in[i], in);
    text[i] = x.text;
    level = deeper(level, x.level);
  }
  const char *c = cpu_op_text(e, op, text);
  return c == text[0] ? (cpu_text){c, level} : temp(e, op->out[0]->type.dtype, level, c, op, op->out[0]->type);
}

static cpu_text pull_shared(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  lm_ix in[LM_RANK];
  copy_shared(op, ix, op->in[0]->type, in);
  return cpu_pull(e, op->in[0], in);
}

static cpu_text pull_op(cpu_emit *e, const lm_op *op, const lm_ix *ix) {
  switch (op->code) {
    case LM_OP_CONST: return (cpu_text){cpu_const_text(e->arena, op->out[0]->type.dtype, op->attr.num), 0};
    case LM_OP_IOTA: return pull_iota(e, op, ix);
    case LM_OP_RNG: return pull_rng(e, op, ix);
    case LM_OP_EXPAND: case LM_OP_PERMUTE: return pull_shared(e, op, ix);
    case LM_OP_RENAME: return pull_renamed(e, op, ix);
    case LM_OP_VIEW: return pull_view(e, op, ix);
    case LM_OP_SLICE: return pull_slice(e, op, ix);
    case LM_OP_PAD: return pull_pad(e, op, ix);
    case LM_OP_CONCAT: return pull_concat(e, op, ix);
    case LM_OP_GATHER: return pull_gather(e, op, ix);
    default: return pull_elementwise(e, op, ix);
  }
}

// ---- pulling

static cpu_memo *remembered(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  for (cpu_memo *m = e->memo; m; m = m->next) {
    bool same = m->v == v;
    for (int i = 0; same && i < v->type.rank; i++) same = lm_ix_equal(&m->ix[i], &ix[i]);
    if (same) return m;
  }
  return NULL;
}

// Views of an operand are other types of the same dense memory.
static const lm_value *base_of(const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_VIEW || v->def->code == LM_OP_RENAME)) v = v->def->in[0];
  return v->def ? NULL : v;
}

static cpu_text produce(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  const lm_node *n = lm_schedule_node(e->s, v);
  const lm_value *base = base_of(v);
  if (base) return load_operand(e, base, v->type, ix);
  if (n->held != LM_HELD_NOT && e->done[n->pass]) return load_held(e, v, n, ix);
  return pull_op(e, v->def, ix);
}

cpu_text cpu_pull(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  cpu_memo *found = remembered(e, v, ix);
  if (found) return found->text;
  cpu_text text = produce(e, v, ix);
  cpu_memo *m = LM_NEW(e->arena, cpu_memo);
  *m = (cpu_memo){.v = v, .text = text, .scope = text.level, .next = e->memo};
  for (int i = 0; i < v->type.rank; i++) m->scope = deeper(m->scope, lm_ix_level(&e->vars, &ix[i]));
  if (v->type.rank) memcpy(m->ix, ix, v->type.rank * sizeof *ix);
  e->memo = m;
  return text;
}
