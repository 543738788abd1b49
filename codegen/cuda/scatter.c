// scatter.c - scatter-add of rows into a table: the gradient of an embedding.
//
//   %z = scatter_add %u : f32[b, t, d], %i : int[b, t] over(v) : f32[v, d]
//
// A block owns some rows of v and some columns of d. Each of its warps reads all indices, 32 at a
// time, and for each index of a row of the block adds the update to the row's sum, with columns
// distributed over lanes. A sum is therefore computed in the order of the indices by one thread,
// without atomic operations. Declined if the table has further axes, or if the index and the table
// share axes.
#include <string.h>
#include "codegen/cuda/emit.h"

enum {
  ROWS = 16,
  COLUMNS = 256,
  THREADS = 128
};

static const lm_op *scatter_of(const lm_op *kernel) {
  for (const lm_op *op = kernel->body->first; op; op = op->next)
    if (op->code == LM_OP_SCATTER)
      return op;
  return NULL;
}

bool cuda_scatter_fits(const lm_module *m, const lm_op *kernel) {
  const lm_op *op = scatter_of(kernel);
  const lm_op *yield = lm_kernel_yield(kernel);
  if (!op || kernel->attr.n_to || yield->n_in != 1 || yield->in[0] != op->out[0] ||
      op->out[0]->type.dtype != LM_F32)
    return false;
  lm_type t = op->out[0]->type;
  lm_type index = op->in[1]->type;
  for (const lm_op *o = kernel->body->first; o; o = o->next)
    if (o != op && lm_op_is_reduction(o))
      return false;
  for (int i = 0; i < t.rank; i++) {
    if (m->axes[t.axis[i]].dyn || lm_type_find(index, t.axis[i]) >= 0)
      return false;
    if (t.axis[i] != op->attr.axes[0] && lm_type_find(op->in[0]->type, t.axis[i]) < 0)
      return false;
  }
  for (int i = 0; i < index.rank; i++)
    if (m->axes[index.axis[i]].dyn)
      return false;
  return lm_type_subset(index, op->in[0]->type) && index.rank + t.rank - 1 == op->in[0]->type.rank;
}

typedef struct numbering {
  uint16_t var[LM_RANK];
} numbering;

// Variables for the axes of t except one, named with a prefix, at a level.
static numbering number(cuda_emit *e, lm_type t, lm_axis except, const char *prefix, int level) {
  numbering n = {{0}};
  for (int i = 0; i < t.rank; i++) {
    if (t.axis[i] == except)
      continue;
    int64_t size = lm_axis_size(e->g.m, t.axis[i]);
    const char *name =
        lm_arena_printf(e->g.arena, "%s%s", prefix, lm_gen_axis_name(&e->g, t.axis[i]));
    n.var[i] = lm_var_add(
        &e->g.vars,
        (lm_var){.kind = LM_VAR_TEMP, .name = name, .size = size, .hi = size, .level = level});
  }
  return n;
}

static void decode(cuda_emit *e, lm_type t, lm_axis except, const numbering *n, const char *from,
                   lm_buf *b) {
  cuda_axis axes[LM_RANK];
  int count = 0;
  for (int i = 0; i < t.rank; i++)
    if (t.axis[i] != except && lm_axis_size(e->g.m, t.axis[i]) > 1)
      axes[count++] =
          (cuda_axis){n->var[i], lm_gen_extent(&e->g, lm_axis_size(e->g.m, t.axis[i]), 0, 1)};
  cuda_decode(e, axes, count, from, b);
}

static void along(const cuda_emit *e, lm_type t, lm_type names, const numbering *n, lm_ix *out) {
  for (int i = 0; i < t.rank; i++) {
    int at = lm_type_find(names, t.axis[i]);
    if (at >= 0)
      out[i] = lm_ix_var(&e->g.vars, n->var[at]);
  }
}

static lm_gen_text pull(cuda_emit *e, const lm_value *v, const lm_ix *ix, int level, lm_buf *to) {
  for (int k = 0; k <= level; k++)
    e->g.level[k].before.n = 0;
  lm_gen_text x = lm_gen_pull(&e->g, v, ix);
  for (int k = 0; k <= level; k++)
    if (e->g.level[k].before.n)
      lm_buf_add(to, e->g.level[k].before.p, e->g.level[k].before.n);
  e->g.memo = NULL;
  return x;
}

typedef struct scatter {
  cuda_emit *e;
  const lm_op *op;
  lm_type table, index, update;
  lm_axis v;
  const char *type; // of indices
  long long rows, columns, n;
  numbering at_column, at_index, at_row;
} scatter;

static scatter scatter_make(cuda_emit *e, const lm_op *op) {
  scatter s = {.e = e,
               .op = op,
               .table = op->out[0]->type,
               .index = op->in[1]->type,
               .update = op->in[0]->type,
               .v = op->attr.axes[0],
               .type = e->g.target->index};
  s.rows = lm_axis_size(e->g.m, s.v);
  s.columns = lm_type_elements(e->g.m, s.table) / s.rows;
  s.n = lm_type_elements(e->g.m, s.index);
  s.at_column = number(e, s.table, s.v, "i_", 0);
  s.at_index = number(e, s.index, 0, "i_", 0);
  s.at_row = number(e, s.index, 0, "i_", 0);
  return s;
}

static void put_begin(lm_buf *b, long long columns) {
  long long blocks = (columns + COLUMNS - 1) / COLUMNS;
  lm_buf_printf(b, "LM_SHARED(float, sum, %d);  // [%d rows][%d columns]\n", ROWS * COLUMNS, ROWS,
                COLUMNS);
  lm_buf_printf(b,
                "const int32_t lane = lm_thread() %% 32, first = lm_block() / %lld * %d, column0 = "
                "lm_block() %% %lld * %d;\n",
                blocks, ROWS, blocks, COLUMNS);
  lm_buf_printf(b,
                "for (int32_t z = lm_thread(); z < %d; z += %d)\nfor (int32_t j = 0; j < %d; j++) "
                "lm_put(sum, j * %d + z, 0.0f);\n",
                COLUMNS, THREADS, ROWS, COLUMNS);
}

// Opens the loop over indices, 32 at a time; slot: the block's row that this lane's index names.
static void put_search(const scatter *s, lm_buf *b) {
  lm_ix ix[LM_RANK];
  lm_buf_printf(b,
                "for (%s from = 0; from < %lld; from += 32) {\nint32_t slot = -1;\nif (from + "
                "lane < %lld) {\nconst %s p = from + lane;\n",
                s->type, s->n, s->n, s->type);
  decode(s->e, s->index, 0, &s->at_index, "p", b);
  along(s->e, s->index, s->index, &s->at_index, ix);
  lm_gen_text i = pull(s->e, s->op->in[1], ix, 0, b);
  lm_buf_printf(b, "const int32_t at = (int32_t)lm_clamp(%s, %lld);\n", i.text, s->rows);
  lm_buf_printf(b, "if (at >= first && at < first + %d) slot = at - first;\n}\n", ROWS);
}

static void put_column_loop(const scatter *s, lm_buf *b) {
  lm_buf_printf(b,
                "for (int32_t z = lm_thread(); z < %d && column0 + z < %lld; z += %d) {\nconst "
                "int32_t column = column0 + z;\n",
                COLUMNS, s->columns, THREADS);
  decode(s->e, s->table, s->v, &s->at_column, "column", b);
}

// Adds the updates that were found, in order, and closes the loop over indices.
static void put_updates(const scatter *s, lm_buf *b) {
  lm_ix ix[LM_RANK];
  lm_buf_puts(b, "for (uint32_t found = lm_ballot(slot >= 0); found; found &= found - 1) {\n");
  lm_buf_printf(b,
                "const int32_t j = lm_lowest_bit(found), row = lm_shuffle_int(~0u, slot, j);\n"
                "const %s p = from + j;\n",
                s->type);
  decode(s->e, s->index, 0, &s->at_row, "p", b);
  put_column_loop(s, b);
  along(s->e, s->update, s->index, &s->at_row, ix);
  along(s->e, s->update, s->table, &s->at_column, ix);
  lm_gen_text x = pull(s->e, s->op->in[0], ix, 0, b);
  lm_buf_printf(b, "lm_put(sum, row * %d + z, lm_get(sum, row * %d + z) + %s);\n}\n}\n}\n", COLUMNS,
                COLUMNS, x.text);
}

static void put_results(const scatter *s, lm_buf *b) {
  cuda_emit *e = s->e;
  lm_ix to[LM_RANK];
  put_column_loop(s, b);
  along(e, s->table, s->table, &s->at_column, to);
  uint16_t j = lm_var_add(
      &e->g.vars, (lm_var){.kind = LM_VAR_TEMP, .name = "slot", .size = s->rows, .hi = s->rows});
  to[lm_type_find(s->table, s->v)] = lm_ix_var(&e->g.vars, j);
  lm_buf_printf(
      b, "for (int32_t j = 0; j < %d && first + j < %lld; j++) {\nconst %s slot = first + j;\n",
      ROWS, s->rows, s->type);
  lm_buf_printf(b, "r0[%s] = lm_get(sum, j * %d + z);\n}\n}\n",
                lm_gen_dense_offset(&e->g, s->table, to, s->table), COLUMNS);
}

static void emit_body(cuda_emit *e, const lm_op *op, lm_buf *b) {
  scatter s = scatter_make(e, op);
  put_begin(b, s.columns);
  put_search(&s, b);
  put_updates(&s, b);
  put_results(&s, b);
}

void cuda_scatter_emit(const lm_module *m, const lm_op *kernel, lm_arena *arena, lm_buf *text,
                       lm_kernel_code *out) {
  const lm_op *op = scatter_of(kernel);
  cuda_emit *e = LM_NEW(arena, cuda_emit);
  lm_buf b = {0};
  e->flat = *kernel;
  e->flat.attr.n_axes = 0;
  e->form = CUDA_FLAT;
  lm_gen_init(&e->g, cuda_gen_target(m, kernel), m, &e->flat,
              lm_schedule_make(m, &e->flat, false, arena), arena);
  e->width = LM_NEW_N(arena, int, e->g.s->n_passes + 1);
  lm_gen_attempt(&e->g);
  lm_buf_puts(&b, "(");
  cuda_params(&e->g, NULL, NULL, &b);
  lm_buf_puts(&b, ") {\n");
  emit_body(e, op, &b);
  lm_buf_puts(&b, "}\n");
  lm_gen_indent(b.p, text);
  int64_t rows = lm_axis_size(m, op->attr.axes[0]);
  int64_t columns = lm_type_elements(m, op->out[0]->type) / rows;
  out->launch = (lm_plan_launch){.threads = THREADS, .per_block = 1};
  out->space =
      (lm_plan_extent){.fixed = ((rows + ROWS - 1) / ROWS) * ((columns + COLUMNS - 1) / COLUMNS)};
  lm_buf_free(&b);
  lm_gen_free(&e->g);
}
