// scatter.c - scatter-add of rows into a table: the gradient of an embedding.
//
//   %z = scatter_add %u : f32[b, t, d], %i : int[b, t] over(v) : f32[v, d]
//
// A block owns some rows of v and all columns of d, or 1024 of them. It reads all indices, CHUNK at
// a time, and lists those of its rows: each warp reads a part of the chunk, and the counts of the
// warps before it say where its part of the list begins, so the list has the order of the indices.
// Then a thread adds the listed updates of its columns to the sums of their rows, several loads at
// a time and one addition after the other. A sum is therefore computed in the order of the indices
// by one thread, without atomic operations, and then stored or added to the gradient. Declined if
// the table has further axes, or if the index and the table share axes.
#include <string.h>
#include "codegen/cuda/emit.h"

enum {
  THREADS = 256,
  WARPS = THREADS / CUDA_WARP,
  MAX_COLUMNS = 1024,
  MAX_ROWS = 64,
  SUM_BYTES = 48 << 10, // three blocks of a multiprocessor have room for their sums and lists
  BLOCKS_ENOUGH = 264,  // two for each multiprocessor
  ROUNDS = 16,          // indices that a thread reads of a chunk
  CHUNK = THREADS * ROUNDS,
  LOADS = 8, // updates that a thread loads at a time
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

bool cuda_scatter_adds(const lm_op *kernel, uint32_t r) {
  lm_module *m = kernel->parent->func->module;
  return r == 0 && kernel->code == LM_OP_KERNEL && scatter_of(kernel) &&
         cuda_scatter_fits(m, kernel) && lm_plan_accum_of(m, kernel->out[0]);
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
    n.var[i] = lm_var_add(&e->g.vars, (lm_var){
                                          .kind = LM_VAR_TEMP,
                                          .name = name,
                                          .size = size,
                                          .hi = size,
                                          .level = level,
                                      });
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
  int own_rows, own_columns; // of a block
  bool adds;                 // to a gradient, unless the last parameter is 0
  numbering at_column, at_index, at_row;
} scatter;

static int own_columns(int64_t columns) {
  return columns < MAX_COLUMNS ? (int)columns : MAX_COLUMNS;
}

static int64_t column_blocks(int64_t columns) {
  return (columns + MAX_COLUMNS - 1) / MAX_COLUMNS;
}

static int own_rows(int64_t rows, int64_t columns) {
  int64_t fit = SUM_BYTES / (4 * own_columns(columns));
  int64_t shared_out = rows * column_blocks(columns) / BLOCKS_ENOUGH;
  int64_t n = fit < MAX_ROWS ? fit : MAX_ROWS;
  n = shared_out < n ? shared_out : n;
  return n > 1 ? (int)n : 1;
}

static scatter scatter_make(cuda_emit *e, const lm_op *op, bool adds) {
  scatter s = {.e = e,
               .op = op,
               .table = op->out[0]->type,
               .index = op->in[1]->type,
               .update = op->in[0]->type,
               .v = op->attr.axes[0],
               .adds = adds,
               .type = e->g.target->index};
  s.rows = lm_axis_size(e->g.m, s.v);
  s.columns = lm_type_elements(e->g.m, s.table) / s.rows;
  s.n = lm_type_elements(e->g.m, s.index);
  s.own_columns = own_columns(s.columns);
  s.own_rows = own_rows(s.rows, s.columns);
  s.at_column = number(e, s.table, s.v, "i_", 0);
  s.at_index = number(e, s.index, 0, "i_", 0);
  s.at_row = number(e, s.index, 0, "i_", 0);
  return s;
}

static void put_begin(const scatter *s, lm_buf *b) {
  long long blocks = column_blocks(s->columns);
  int sums = s->own_rows * s->own_columns;
  lm_buf_printf(b, "LM_POOL_DECLARE();\nLM_POOL(float, sum, 0, %d);  // [%d rows][%d columns]\n",
                sums, s->own_rows, s->own_columns);
  lm_buf_printf(b, "LM_SHARED(int32_t, list, %d);\nLM_SHARED(int32_t, counts, %d);\n", CHUNK,
                WARPS);
  lm_buf_printf(b,
                "const int32_t lane = lm_thread() %% 32, warp = lm_thread() / 32;\n"
                "const int32_t first = block / %lld * %d, column0 = block %% %lld * %d;\n",
                blocks, s->own_rows, blocks, s->own_columns);
  lm_buf_printf(b,
                "for (int32_t z = lm_thread(); z < %d; z += %d) lm_put(sum, z, 0.0f);\n"
                "for (%s from = 0; from < %lld; from += %d) {\n",
                sums, THREADS, s->type, s->n, CHUNK);
}

// Finds the block's rows (slots) that the indices of a thread name: those of a warp are neighbours.
static void put_search(const scatter *s, lm_buf *b) {
  lm_ix ix[LM_RANK];
  lm_buf_printf(b,
                "const %s part = from + warp * %d + lane;\nint32_t slot[%d], count = 0;\n"
                "uint32_t found[%d];\nLM_UNROLL\nfor (int32_t k = 0; k < %d; k++) {\n"
                "slot[k] = -1;\nif (part + k * 32 < %lld) {\nconst %s p = part + k * 32;\n",
                s->type, CHUNK / WARPS, ROUNDS, ROUNDS, ROUNDS, s->n, s->type);
  decode(s->e, s->index, 0, &s->at_index, "p", b);
  along(s->e, s->index, s->index, &s->at_index, ix);
  lm_gen_text i = pull(s->e, s->op->in[1], ix, 0, b);
  lm_buf_printf(b,
                "const int32_t at = (int32_t)lm_clamp(%s, %lld) - first;\n"
                "if (at >= 0 && at < %d) slot[k] = at;\n}\n",
                i.text, s->rows, s->own_rows);
  lm_buf_puts(b, "found[k] = lm_ballot(slot[k] >= 0);\ncount += lm_bits_count(found[k]);\n}\n");
}

// Lists them: the number of the index in its chunk, and the slot in the upper half.
static void put_list(lm_buf *b) {
  lm_buf_printf(b,
                "if (lane == 0) lm_put(counts, warp, count);\nlm_barrier();\n"
                "int32_t start = 0, total = 0;\nfor (int32_t w = 0; w < %d; w++) {\n"
                "if (w == warp) start = total;\ntotal += lm_get(counts, w);\n}\n",
                WARPS);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t k = 0; k < %d; k++) {\n"
                "const int32_t before = lm_bits_count(found[k] & ((1u << lane) - 1u));\n"
                "const int32_t p = warp * %d + k * 32 + lane;\n"
                "if (slot[k] >= 0) lm_put(list, start + before, p | slot[k] << 16);\n"
                "start += lm_bits_count(found[k]);\n}\nlm_barrier();\n",
                ROUNDS, CHUNK / WARPS);
}

static void put_column_loop(const scatter *s, lm_buf *b) {
  lm_buf_printf(b,
                "for (int32_t z = lm_thread(); z < %d && column0 + z < %lld; z += %d) {\nconst "
                "int32_t column = column0 + z;\n",
                s->own_columns, s->columns, THREADS);
  decode(s->e, s->table, s->v, &s->at_column, "column", b);
}

// Adds the listed updates, in order, and closes the loop over chunks.
static void put_updates(const scatter *s, lm_buf *b) {
  lm_ix ix[LM_RANK];
  put_column_loop(s, b);
  lm_buf_printf(b,
                "for (int32_t j = 0; j < total; j += %d) {\nfloat x[%d];\nint32_t row[%d];\n"
                "LM_UNROLL\nfor (int32_t k = 0; k < %d; k++) {\n"
                "const int32_t entry = lm_get(list, j + k < total ? j + k : j);\n"
                "row[k] = entry >> 16;\nconst %s p = from + (entry & 0xffff);\n",
                LOADS, LOADS, LOADS, LOADS, s->type);
  decode(s->e, s->index, 0, &s->at_row, "p", b);
  along(s->e, s->update, s->index, &s->at_row, ix);
  along(s->e, s->update, s->table, &s->at_column, ix);
  lm_gen_text x = pull(s->e, s->op->in[0], ix, 0, b);
  lm_buf_printf(b,
                "x[k] = %s;\n}\nLM_UNROLL\nfor (int32_t k = 0; k < %d; k++) {\n"
                "const int32_t at = row[k] * %d + z;\n"
                "if (j + k < total) lm_put(sum, at, lm_get(sum, at) + x[k]);\n}\n}\n}\n"
                "lm_barrier();\n}\n",
                x.text, LOADS, s->own_columns);
}

static void put_results(const scatter *s, lm_buf *b) {
  cuda_emit *e = s->e;
  lm_ix to[LM_RANK];
  put_column_loop(s, b);
  along(e, s->table, s->table, &s->at_column, to);
  uint16_t j = lm_var_add(&e->g.vars, (lm_var){
                                          .kind = LM_VAR_TEMP,
                                          .name = "slot",
                                          .size = s->rows,
                                          .hi = s->rows,
                                      });
  to[lm_type_find(s->table, s->v)] = lm_ix_var(&e->g.vars, j);
  lm_buf_printf(
      b, "for (int32_t j = 0; j < %d && first + j < %lld; j++) {\nconst %s slot = first + j;\n",
      s->own_rows, s->rows, s->type);
  lm_buf_printf(b, "const %s to = %s;\nconst float x = lm_get(sum, j * %d + z);\n", s->type,
                lm_gen_dense_offset(&e->g, s->table, to, s->table), s->own_columns);
  if (s->adds) // sums of 0 change nothing
    lm_buf_puts(b, "if (adds && x != 0.0f) r0[to] += x;\nif (!adds) r0[to] = x;\n}\n}\n");
  else
    lm_buf_puts(b, "r0[to] = x;\n}\n}\n");
}

static void emit_body(cuda_emit *e, const lm_op *op, bool adds, lm_buf *b) {
  scatter s = scatter_make(e, op, adds);
  put_begin(&s, b);
  put_search(&s, b);
  put_list(b);
  put_updates(&s, b);
  put_results(&s, b);
}

// Estimates: a block reads each index once and counts it, then adds the updates of its rows.
static double instructions(double blocks, int64_t indices, int64_t updates) {
  enum {
    SEARCH = 24,
    ADD = 8
  };
  return blocks * (double)indices * SEARCH + (double)updates * ADD;
}

cuda_code *cuda_scatter_emit(const lm_target *t, const lm_op *kernel, lm_arena *temporary,
                             lm_arena *arena, lm_kernel_code *out) {
  const lm_module *m = lm_op_module(kernel);
  const lm_op *op = scatter_of(kernel);
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  lm_buf b = {0};
  e->flat = *kernel;
  e->flat.attr.n_axes = 0;
  e->form = CUDA_FLAT;
  lm_gen_init(&e->g, cuda_gen_target(t, m, kernel), m, &e->flat,
              lm_schedule_make(m, &e->flat, false, temporary), temporary);
  e->width = LM_NEW_N(temporary, int, e->g.s->n_passes + 1);
  lm_gen_attempt(&e->g);
  bool adds = cuda_scatter_adds(kernel, 0);
  cuda_code *c = cuda_code_make(arena, THREADS);
  cuda_params(&e->g, NULL, NULL, c);
  c->last_params = adds ? ", int32_t adds" : NULL;
  c->whole_block = true;
  emit_body(e, op, adds, &b);
  int64_t rows = lm_axis_size(m, op->attr.axes[0]);
  int64_t columns = lm_type_elements(m, op->out[0]->type) / rows;
  int own = own_rows(rows, columns);
  out->launch = (lm_plan_launch){
      .per_block = 1,
      .adds = adds,
      .shared = 4 * own * own_columns(columns),
  };
  out->space = (lm_plan_extent){.fixed = (rows + own - 1) / own * column_blocks(columns)};
  out->instructions = instructions((double)out->space.fixed, lm_type_elements(m, op->in[1]->type),
                                   lm_type_elements(m, op->in[0]->type));
  cuda_code_body(c, NULL, &b);
  lm_gen_free(&e->g);
  return c;
}
