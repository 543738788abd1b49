// gemm_epilogue.c - the operations of a kernel on the sums of its GEMM, in registers.
//
//   for each row r of a thread
//     for each section: for each head hh of the tile, if it is of the section
//       s = 0
//       for each pair i: for each part of the head: for each element c of the pair: s += ...
//       s = the sum over the quad
//       for each pair i: for each part of the head: for each element c: compute, store
//       one thread of the quad stores the results that have a number for each head
//     for each head hh of the tile: for each pair: store the dot, if its columns are of several
//       sections, or of none
//
// Without heads it is the loop over the pairs of a row in the tile.
#include <string.h>

#include "codegen/cuda/gemm.h"

enum {
  ROW = 1, // the levels of its loops
  HEAD = 2,
  PAIR = 3,
  ELEMENT = 4
};

typedef struct cuda_gemm_loops {
  uint16_t row, head, pair, element; // variables
  const cuda_gemm_section *section;  // the current one, in which heads are counted
  cuda_flat_loop pairs;              // what loops over the pairs of its heads have counted
} cuda_gemm_loops;

// ---- indices

// The column, within a head if there are heads, of the current pair of a part.
static lm_ix column_of(const cuda_emit *e, int64_t part) {
  const cuda_gemm_loops *l = e->gemm_loops;
  lm_ix at = lm_ix_scale(lm_ix_var(&e->g.vars, l->pair), 2);
  at = lm_ix_add(at, lm_ix_var(&e->g.vars, l->element));
  return lm_ix_add(at, lm_ix_const(part * e->gemm->unit));
}

static lm_ix head_of(const cuda_emit *e) {
  return e->gemm->head ? lm_ix_var(&e->g.vars, e->gemm_loops->head) : lm_ix_const(0);
}

// The indices of an element of t at the current row and head of the section. Axes that t has of the
// rows, and of the heads, are dense: the last of them has the index of the row, or head.
static void index_of(const cuda_emit *e, lm_type t, lm_ix column, lm_ix *out) {
  const cuda_gemm *x = e->gemm;
  const cuda_gemm_section *s = e->gemm_loops->section;
  lm_type rest;
  cuda_gemm_rest(e->g.m, x, e->g.kernel, t, &rest);
  int rows = t.rank - rest.rank, heads = s->heads.rank;
  for (int i = 0; i < t.rank; i++)
    out[i] = lm_ix_const(0);
  if (rows)
    out[rows - 1] = lm_ix_var(&e->g.vars, e->gemm_loops->row);
  if (x->head && cuda_gemm_has_heads(x, s, rest)) {
    if (heads)
      out[rows + heads - 1] = head_of(e);
    if (rest.rank > heads)
      out[t.rank - 1] = column;
  } else if (rest.rank) {
    out[t.rank - 1] = lm_ix_add(lm_ix_scale(head_of(e), x->head), column);
  }
}

// ---- values

// An element of the dot. The epilogue fails if it is not one of the current row, head and pair.
static const char *register_of(cuda_emit *e, const lm_op *op, const lm_ix *ix) {
  const cuda_gemm *x = e->gemm;
  lm_type t = op->out[0]->type, rest;
  cuda_gemm_rest(e->g.m, x, e->g.kernel, t, &rest);
  lm_ix at = lm_gen_dense_index(&e->g, t, ix, rest);
  int64_t first = e->gemm_loops->section->first;
  int64_t part = (at.c - first) / x->columns, within = (at.c - first) % x->columns;
  lm_ix here = lm_ix_add(lm_ix_scale(head_of(e), x->head), column_of(e, 0));
  here.c = at.c;
  int64_t end = x->head ? x->head : 1;
  bool inside = within >= 0 && within < end;
  bool begins = within % x->unit == 0;
  e->gemm_fails |= !inside || !begins || !lm_ix_equal(&at, &here);
  const char *head =
      x->head ? lm_arena_printf(e->g.arena, " + hh * %lld", (long long)x->head / 8) : "";
  return lm_arena_printf(e->g.arena, "%s[%lld%s + i][2 * r + c]%s", x->registers,
                         (long long)(part * x->panel + within) / 8, head, x->factor);
}

// The operation, the first of the body, whose results are the sums.
static const lm_op *sums_of(const cuda_emit *e) {
  return e->g.kernel->body->first;
}

// True if op rounds the sums to bf16: of a dot behind it, of attention itself.
static bool rounds_sums(const cuda_emit *e, const lm_op *op) {
  bool first = op == sums_of(e) || op->in[0] == sums_of(e)->out[0];
  return op->code == LM_OP_REDUCE_PRECISION && first;
}

// Counts the rounding of the section's sums, if the kernel reads them rounded: once, although the
// text repeats it for the loop that adds squares.
static void rounding_count(cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s) {
  int64_t columns = x->head ? s->columns : x->g.n.fixed;
  double sums = (double)(x->g.m.fixed * columns);
  bool rounds = false;
  for (const lm_op *op = sums_of(e); op; op = op->next)
    rounds |= rounds_sums(e, op);
  if (rounds)
    e->g.instructions += sums;
}

// An element of the sums, rounded or not. It cannot be rounded where it is: the assembler
// serializes GEMMs whose sums other instructions write.
static const char *sum_text(cuda_emit *e, const lm_ix *ix, bool rounded) {
  const char *text = register_of(e, sums_of(e), ix);
  return rounded ? lm_arena_printf(e->g.arena, "lm_bf16_rounded(%s)", text) : text;
}

static bool value_of(lm_gen *g, const lm_op *op, const lm_ix *ix, lm_gen_text *out) {
  cuda_emit *e = (cuda_emit *)g;
  bool rounded = rounds_sums(e, op);
  bool sums = op == sums_of(e) || rounded;
  if (op->code == LM_OP_SUM)
    *out = (lm_gen_text){lm_arena_printf(g->arena, "s%u", op->mark), HEAD};
  else if (sums)
    *out = (lm_gen_text){sum_text(e, ix, rounded), ELEMENT};
  return op->code == LM_OP_SUM || sums;
}

// The lanes of a statement: outside of the loop over pairs all threads of a quad execute it, and
// outside of that over heads in each tile of the row.
static double lanes_of(const lm_gen *g, int level) {
  const cuda_gemm *x = ((const cuda_emit *)g)->gemm;
  double tiles = (double)(x->columns + x->panel - 1) / x->panel;
  if (level >= PAIR)
    return 1;
  return level == HEAD ? CUDA_GEMM_QUAD : CUDA_GEMM_QUAD * tiles;
}

// ---- loops

static uint16_t loop_add(cuda_emit *e, const char *name, int64_t size, int level) {
  lm_gen_domain *d = &e->g.domains[0];
  lm_var v = {
      .kind = LM_VAR_LOOP,
      .name = name,
      .size = size,
      .hi = size,
      .level = level,
  };
  uint16_t var = lm_var_add(&e->g.vars, v);
  d->loop[d->n++] = (lm_gen_loop){
      .name = name,
      .size = size,
      .stride = 1,
      .var = var,
  };
  return var;
}

static void level_clear(cuda_emit *e, int level) {
  e->g.level[level].before.n = 0;
  e->g.level[level].loops.n = 0;
  e->g.level[level].after.n = 0;
}

static void begin(cuda_emit *e, const cuda_gemm *x, cuda_gemm_loops *l) {
  lm_gen_attempt(&e->g);
  e->g.pass = 0;
  e->g.domains[0].n = 0;
  e->n_stages = ELEMENT;
  e->width[0] = 2;
  e->gemm = x;
  e->gemm_loops = l;
  e->gemm_fails = false;
  for (int i = 0; i <= ELEMENT; i++)
    level_clear(e, i);
  *l = (cuda_gemm_loops){.section = &x->section[0]};
  l->row = loop_add(e, "row", x->g.m.fixed, ROW);
  l->head = loop_add(e, "head", 1, HEAD);
  l->pair = loop_add(e, "pair", x->unit / 2, PAIR);
  l->element = e->vector = loop_add(e, "c", 2, ELEMENT);
  l->pairs.counted = LM_NEW_N(e->g.arena, double, e->g.s->n_nodes + 1);
}

// The text of a level with its loop around it.
static const char *loop_text(cuda_emit *e, int level, const char *head, const char *inner,
                             const char *end) {
  lm_buf b = {0};
  lm_buf_puts(&b, head);
  lm_buf_add(&b, e->g.level[level].before.p, e->g.level[level].before.n);
  lm_buf_puts(&b, inner);
  lm_buf_add(&b, e->g.level[level].after.p, e->g.level[level].after.n);
  lm_buf_puts(&b, end);
  return lm_gen_take(&e->g, &b);
}

// The pairs of a part of a head; without heads those of a row, of which columns beyond the end are
// left out.
static const char *pair_head(const cuda_emit *e, const cuda_gemm *x) {
  lm_arena *a = e->g.arena;
  const char *inside = "";
  if (!x->head && x->columns % x->panel)
    inside = lm_arena_printf(a, "if (pair < %lld) ", (long long)x->columns / 2);
  return lm_arena_printf(a,
                         "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++) {\n"
                         "const %s pair = %s;\n%s{\n",
                         (long long)(x->head ? x->unit : x->panel) / 8, e->g.target->index,
                         x->head ? "4 * i + lane % 4" : "col0 / 2 + 4 * i + lane % 4", inside);
}

// Wide heads take most registers, so the operands of a row are loaded for each of them again.
static const char *loads_again(const cuda_gemm *x) {
  enum {
    WIDE = 128
  };
  return x->head >= WIDE ? "lm_loads_again();\n" : "";
}

// The heads of a tile that are of the section.
static const char *head_head(const cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s) {
  lm_arena *a = e->g.arena;
  long long first = s->first / x->head;
  long long n = s->columns / x->head;
  bool begins = s->first;
  bool others = s->first + s->columns < x->columns;
  bool ends = others || x->columns % x->panel;
  const char *less = begins ? lm_arena_printf(a, " - %lld", first) : "";
  const char *inside = "";
  if (begins && ends)
    inside = lm_arena_printf(a, "if (head >= 0 && head < %lld) ", n);
  else if (begins)
    inside = "if (head >= 0) ";
  else if (ends)
    inside = lm_arena_printf(a, "if (head < %lld) ", n);
  return lm_arena_printf(a,
                         "LM_UNROLL\nfor (int32_t hh = 0; hh < %lld; hh++) {\n"
                         "const %s head = col0 / %lld + hh%s;\n%s%s{\n",
                         (long long)(x->panel / x->head), e->g.target->index, (long long)x->head,
                         less, loads_again(x), inside);
}

// True if a tile has rows that are not its own: beyond the last one, or of another group.
static bool rows_end_in_tile(const cuda_gemm *x) {
  return x->ends || x->g.groups.count || x->g.m.fixed % CUDA_GEMM_ROWS;
}

static const char *row_head(const cuda_emit *e, const cuda_gemm *x) {
  lm_arena *a = e->g.arena;
  const char *inside = "";
  if (x->ends || x->g.groups.count)
    inside = "if (row < row_end) ";
  else if (rows_end_in_tile(x))
    inside = lm_arena_printf(a, "if (row < %lld) ", (long long)x->g.m.fixed);
  return lm_arena_printf(a,
                         "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                         "const %s row = row0 + lm_thread() / 32 * 16 + lane / 4 + 8 * r;\n%s{\n",
                         e->g.target->index, inside);
}

// Ends a loop over the pairs: its text becomes a statement of the head. The loops of a head are
// unrolled, so the compiler keeps a value in registers if a later loop loads or computes it again.
static void pairs_end(cuda_emit *e, const cuda_gemm *x) {
  static const char element[] = "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\n";
  const char *text = loop_text(e, ELEMENT, element, "", "}\n");
  text = loop_text(e, PAIR, pair_head(e, x), text, "}\n}\n");
  lm_buf_puts(&e->g.level[HEAD].before, text);
  level_clear(e, PAIR);
  level_clear(e, ELEMENT);
  lm_gen_forget(&e->g, PAIR);
  cuda_count_shared(e, &e->gemm_loops->pairs);
}

// ---- sums and results

static int64_t parts_of_head(const cuda_gemm *x) {
  return x->head ? x->head / x->unit : 1;
}

static void sum_put(cuda_emit *e, const cuda_gemm *x, const lm_op *op) {
  const char *mask = rows_end_in_tile(x) ? "lm_team_mask(4)" : "~0u";
  lm_ix ix[LM_RANK];
  lm_gen_statement(&e->g, HEAD, "float s%u = 0;", op->mark);
  for (int64_t part = 0; part < parts_of_head(x); part++) {
    index_of(e, op->in[0]->type, column_of(e, part), ix);
    lm_gen_text text = lm_gen_pull(&e->g, op->in[0], ix);
    lm_gen_statement(&e->g, ELEMENT, "s%u += %s;", op->mark, text.text);
    lm_gen_count_addition(&e->g, text.text, ELEMENT);
  }
  pairs_end(e, x);
  lm_gen_statement(&e->g, HEAD, "s%u = lm_team_sum_f32(s%u, %s, 4);", op->mark, op->mark, mask);
  lm_gen_count(&e->g, HEAD, 3, NULL); // two shuffles and two additions
}

// True if the result has a number for each head.
static bool is_of_heads(const cuda_emit *e, const cuda_gemm *x, lm_type t) {
  const cuda_gemm_section *s = e->gemm_loops->section;
  lm_type rest;
  cuda_gemm_rest(e->g.m, x, e->g.kernel, t, &rest);
  return x->head && rest.rank == s->heads.rank && cuda_gemm_has_heads(x, s, rest);
}

// ---- sums over rows

void cuda_gemm_sums_declare(const cuda_gemm *x, const lm_op *kernel, lm_buf *b) {
  for (uint32_t i = 0; i < kernel->n_out; i++)
    if (lm_kernel_result_summed(kernel, i))
      lm_buf_printf(b, "float w%u[%lld][2] = {{0}};\n", i, (long long)x->head / 8);
}

// Adds the elements of result i to the thread's sums.
static void rows_sum(cuda_emit *e, const cuda_gemm *x, uint32_t i) {
  const lm_value *v = lm_kernel_yield(e->g.kernel)->in[i];
  lm_ix ix[LM_RANK];
  for (int64_t part = 0; part < parts_of_head(x); part++) {
    index_of(e, v->type, column_of(e, part), ix);
    lm_gen_text text = lm_gen_pull(&e->g, v, ix);
    lm_gen_statement(&e->g, ELEMENT, "w%u[%lld + i][c] += %s;", i, (long long)(part * x->unit / 8),
                     text.text);
    lm_gen_count(&e->g, ELEMENT, 1, NULL);
  }
}

// Result i, in parts of `columns` columns, and of `unit` within a head.
static void columns_put(cuda_emit *e, const cuda_gemm *x, uint32_t i) {
  const lm_value *v = lm_kernel_yield(e->g.kernel)->in[i];
  lm_ix ix[LM_RANK];
  lm_type rest;
  cuda_gemm_rest(e->g.m, x, e->g.kernel, v->type, &rest);
  for (int64_t at = 0; at < cuda_gemm_size(e->g.m, rest); at += x->columns)
    for (int64_t part = 0; part < parts_of_head(x); part++) {
      index_of(e, v->type, lm_ix_add(column_of(e, part), lm_ix_const(at)), ix);
      lm_gen_text text = lm_gen_pull(&e->g, v, ix);
      cuda_store(e, i, v->type, ix, text.text, ELEMENT);
    }
}

// One thread of the quad stores a number of a head.
static void head_put(cuda_emit *e, uint32_t i) {
  const lm_value *v = lm_kernel_yield(e->g.kernel)->in[i];
  lm_ix ix[LM_RANK];
  index_of(e, v->type, lm_ix_const(0), ix);
  lm_gen_text text = lm_gen_pull(&e->g, v, ix);
  lm_gen_statement(&e->g, HEAD, "if (lane %% 4 == 0) {");
  cuda_store(e, i, v->type, ix, text.text, HEAD);
  lm_gen_statement(&e->g, HEAD, "}");
}

// ---- sections

// Begins the loop over the heads of a section.
static void section_begin(cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s) {
  cuda_gemm_loops *l = e->gemm_loops;
  lm_gen_domain *d = &e->g.domains[0];
  lm_var *head = &e->g.vars.v[l->head];
  int64_t heads = x->head ? s->columns / x->head : 1;
  head->size = heads;
  head->hi = heads;
  d->loop[HEAD - 1].size = heads;
  l->section = s;
  lm_gen_count_reset(&e->g);
  memset(l->pairs.counted, 0, e->g.s->n_nodes * sizeof *l->pairs.counted);
  e->n_loaded = 0;
}

// Ends it: its text becomes a statement of the row.
static void section_end(cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s) {
  const char *head = x->head ? head_head(e, x, s) : "";
  const char *text = loop_text(e, HEAD, head, "", x->head ? "}\n}\n" : "");
  lm_buf_puts(&e->g.level[ROW].before, text);
  level_clear(e, HEAD);
  lm_gen_forget(&e->g, HEAD);
}

// Result i, if it has a number for each head (`of_heads`), or if it has columns.
static void result_put(cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s, uint32_t i,
                       bool of_heads) {
  const lm_op *kernel = e->g.kernel;
  const lm_value *v = lm_kernel_yield(kernel)->in[i];
  if (cuda_gemm_section_of(x, kernel, v) != s)
    return;
  if (is_of_heads(e, x, v->type) != of_heads)
    return;
  if (of_heads)
    head_put(e, i);
  else if (lm_kernel_result_summed(kernel, i))
    rows_sum(e, x, i);
  else
    columns_put(e, x, i);
}

// s: a section that is written with its sums and results; NULL: the results of no section.
static void section_put(cuda_emit *e, const cuda_gemm *x, const cuda_gemm_section *s) {
  const lm_op *kernel = e->g.kernel, *yield = lm_kernel_yield(kernel);
  const cuda_gemm_section whole = {
      .columns = x->columns,
  };
  section_begin(e, x, s ? s : &whole);
  for (const lm_op *op = kernel->body->first; op != yield; op = op->next) {
    if (op->code != LM_OP_SUM)
      continue;
    if (cuda_gemm_section_of(x, kernel, op->out[0]) == s)
      sum_put(e, x, op);
  }
  for (uint32_t i = 0; i < yield->n_in; i++)
    result_put(e, x, s, i, false);
  pairs_end(e, x);
  for (uint32_t i = 0; i < yield->n_in; i++)
    result_put(e, x, s, i, true);
  section_end(e, x, s ? s : &whole);
}

// True if results are of no section.
static bool has_others(const cuda_gemm *x, const lm_op *kernel) {
  const lm_op *yield = lm_kernel_yield(kernel);
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (!cuda_gemm_section_of(x, kernel, yield->in[i]))
      return true;
  return false;
}

const char *cuda_gemm_epilogue(cuda_emit *e, const cuda_gemm *x) {
  lm_gen_target target = *e->g.target;
  const lm_gen_target *plain = e->g.target;
  cuda_gemm_loops l;
  target.value = value_of;
  target.lanes = lanes_of;
  e->g.target = &target;
  begin(e, x, &l);
  for (int i = 0; i < x->n_sections; i++) {
    rounding_count(e, x, &x->section[i]);
    section_put(e, x, &x->section[i]);
  }
  if (has_others(x, e->g.kernel))
    section_put(e, x, NULL);
  const char *text = loop_text(e, ROW, row_head(e, x), "", "}\n}\n");
  text = loop_text(e, 0, "", text, "");
  e->g.target = plain;
  return e->gemm_fails || e->g.request.kind != LM_GEN_REQUEST_NONE ? NULL : text;
}
