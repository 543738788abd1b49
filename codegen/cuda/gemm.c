// gemm.c - a kernel that begins with a dot, for sm_90a: two consumer warpgroups multiply, a third,
// the producer, starts the copies of tiles by TMA; the rest of the kernel is the epilogue.
//
//   thread 256       for each tile of the result and each 64 k: waits until a stage of the ring is
//                    free and starts the copies of 128 rows of A and 256 columns of B into it
//   to thread 255    64 rows for each group: waits for a stage, multiplies, arrives at `done`; at
//                    the end of k the operations of the kernel, on the sums in registers
//
// Blocks are as many as the GPU runs at a time, and each computes every n-th tile. The second group
// begins when the first one has multiplied all stages of the ring. It stays behind: while one group
// is in its epilogue, the other one multiplies the stages in the ring.
//
// The columns of a tile are those of one range of the kernel's columns, for each part of the dot's
// result that the kernel reads, so that a thread has all elements that it needs:
//
//   a dot of [16384, 4096], silu(columns to 2047) * columns from 2048 on: `columns` is 2048, the
//   dot has two parts of them, and the tile at column 384 has columns 384 to 511 and 2432 to 2559.
//   x[i] are columns 384 + 8 i on, x[16 + i] columns 2432 + 8 i on.
//
// A thread has two rows, r = 0 and 1, 8 apart, and of each 8 columns two neighbours, c = 0 and 1:
// the layout of accumulators (mma.cuh). Its loads and stores are pairs of elements.
#include <string.h>

#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

enum {
  ROWS = 128,
  COLUMNS = 256,
  DEPTH = 64,
  STAGES = 4,
  BOX = 64,
  GROUP = 128,
  CONSUMERS = 256,
  BAND = 16, // tiles along m of which blocks that run together compute all columns
  PARTS = 4,
  UNITS = 132,  // multiprocessors of a GPU that is not known
  SYSTEM = 2048 // bytes of shared memory that a block cannot have, or declares
};
#define STAGE_BYTES ((ROWS + COLUMNS) * DEPTH * 2)

typedef struct gemm {
  lm_plan_gemm g;
  int rows;        // axes of the rows
  int64_t columns; // that the epilogue loops over
  int parts;       // of the dot's columns
  int panel;       // columns of each part in a tile
  bool by_k;       // k is contiguous in B, else its columns
} gemm;

// ---- the form

static int64_t last_size(const lm_module *m, lm_type t) {
  return t.rank ? lm_axis_size(m, t.axis[t.rank - 1]) : 1;
}

static bool has_rows(const gemm *x, lm_type c, lm_type t) {
  bool same = t.rank >= x->rows;
  for (int i = 0; same && i < x->rows; i++)
    same = t.axis[i] == c.axis[i];
  return same;
}

// True if v has all axes of the rows or none, and columns that are parts as wide as the epilogue's.
static bool value_fits(const lm_module *m, const gemm *x, lm_type c, lm_type t) {
  int rest = t.rank - (has_rows(x, c, t) ? x->rows : 0);
  bool static_type = true;
  for (int i = 0; i < t.rank; i++)
    static_type = static_type && !m->axes[t.axis[i]].dyn;
  for (int i = t.rank - rest; i < t.rank; i++)
    for (int k = 0; k < x->rows; k++)
      if (t.axis[i] == c.axis[k])
        return false;
  return static_type && (!rest || (rest == 1 && last_size(m, t) % x->columns == 0));
}

static bool op_fits(const gemm *x, const lm_op *op) {
  lm_type out = op->out[0]->type;
  lm_axis from =
      op->n_in && op->in[0]->type.rank ? op->in[0]->type.axis[op->in[0]->type.rank - 1] : 0;
  switch (op->code) {
  case LM_OP_CONST: return true;
  case LM_OP_SLICE:
    return op->attr.n_to && op->attr.imm[1] == 1 && op->attr.axes[0] == from &&
           op->attr.imm[0] % x->columns == 0;
  case LM_OP_CONCAT: return out.rank && op->attr.to[0] == out.axis[out.rank - 1];
  default: return lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  }
}

static bool body_fits(const lm_module *m, const gemm *x, const lm_op *kernel) {
  const lm_op *dot = kernel->body->first;
  lm_type c = dot->out[0]->type;
  for (const lm_op *op = dot->next; op != kernel->body->last; op = op->next) {
    if (op->n_out != 1 || !op_fits(x, op) || !value_fits(m, x, c, op->out[0]->type))
      return false;
    for (uint32_t i = 0; i < op->n_in; i++)
      if (!value_fits(m, x, c, op->in[i]->type))
        return false;
  }
  return true;
}

// The narrowest of the dot and the results. False if a result lacks rows or columns.
static bool columns_choose(const lm_module *m, gemm *x, const lm_op *kernel) {
  lm_type c = kernel->body->first->out[0]->type;
  const lm_op *yield = kernel->body->last;
  x->columns = last_size(m, c);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_type t = yield->in[i]->type;
    if (t.rank != x->rows + 1 || !has_rows(x, c, t))
      return false;
    if (last_size(m, t) < x->columns)
      x->columns = last_size(m, t);
  }
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (last_size(m, yield->in[i]->type) % x->columns)
      return false;
  return last_size(m, c) % x->columns == 0 && x->columns % 8 == 0;
}

// TMA needs lines of multiples of 16 bytes; A's are along k.
static bool operands_fit(gemm *x) {
  const lm_plan_gemm *g = &x->g;
  int64_t n = g->n.fixed, k = g->k.fixed;
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
  x->by_k = g->b_k == 1 && g->b_n == k;
  return fixed && !lm_plan_gemm_any_rows(g) && g->dtype_ab == LM_BF16 &&
         (g->dtype_c == LM_BF16 || g->dtype_c == LM_F32) && g->a_k == 1 && g->a_m == k &&
         g->c_n == 1 && g->c_m == n && (x->by_k || (g->b_n == 1 && g->b_k == n)) && k % 8 == 0 &&
         n % 8 == 0 && g->m.fixed < (int64_t)1 << 30;
}

static bool gemm_make(const lm_module *m, const lm_op *kernel, gemm *out) {
  *out = (gemm){.rows = kernel->body->first->out[0]->type.rank - 1};
  if (!lm_plan_gemm_of_kernel(m, kernel, &out->g) || !operands_fit(out) || out->rows < 1 ||
      !columns_choose(m, out, kernel))
    return false;
  int64_t parts = out->g.n.fixed / out->columns;
  out->parts = (int)parts;
  out->panel = (int)(COLUMNS / parts);
  return parts <= PARTS && COLUMNS % parts == 0 && !kernel->attr.n_to && body_fits(m, out, kernel);
}

bool cuda_gemm_is_supported(const lm_target *t, const lm_op *kernel) {
  gemm x;
  return t->warpgroups && t->shared >= STAGES * STAGE_BYTES + SYSTEM && lm_kernel_dot(kernel) &&
         gemm_make(lm_op_module(kernel), kernel, &x);
}

// ---- the epilogue

enum {
  ROW = 1, // the levels of its loops
  PAIR = 2,
  ELEMENT = 3
};

// An element of the dot.
static bool sum_value(lm_gen *g, const lm_op *op, const lm_ix *ix, lm_gen_text *out) {
  if (op->code != LM_OP_DOT)
    return false;
  const cuda_emit *e = (const cuda_emit *)g;
  int64_t part = ix[op->out[0]->type.rank - 1].c / e->columns;
  *out = (lm_gen_text){
      lm_arena_printf(g->arena, "x[%lld + i][2 * r + c]", (long long)part * e->panel / 8), ELEMENT};
  return true;
}

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

// Result i, in parts of `columns` columns.
static void result_put(cuda_emit *e, const gemm *x, uint32_t i, uint16_t row, uint16_t pair,
                       uint16_t element) {
  const lm_value *v = lm_kernel_yield(e->g.kernel)->in[i];
  lm_vars *vars = &e->g.vars;
  lm_ix ix[LM_RANK];
  for (int k = 0; k < x->rows; k++)
    ix[k] = k + 1 == x->rows ? lm_ix_var(vars, row) : lm_ix_const(0);
  for (int64_t at = 0; at < last_size(e->g.m, v->type); at += x->columns) {
    lm_ix column = lm_ix_add(lm_ix_scale(lm_ix_var(vars, pair), 2), lm_ix_var(vars, element));
    ix[x->rows] = lm_ix_add(column, lm_ix_const(at));
    lm_gen_text text = lm_gen_pull(&e->g, v, ix);
    cuda_store(e, i, v->type, ix, text.text, ELEMENT);
  }
}

static void level_put(cuda_emit *e, int level, const char *inner, lm_buf *out) {
  lm_buf_add(out, e->g.level[level].before.p, e->g.level[level].before.n);
  lm_buf_puts(out, inner);
  lm_buf_add(out, e->g.level[level].after.p, e->g.level[level].after.n);
}

// The text of a level with its loop around it.
static const char *loop_text(cuda_emit *e, int level, const char *head, const char *inner,
                             const char *end) {
  lm_buf b = {0};
  lm_buf_puts(&b, head);
  level_put(e, level, inner, &b);
  lm_buf_puts(&b, end);
  return lm_gen_take(&e->g, &b);
}

// The loop over the pairs of columns of a row; columns beyond the end are left out.
static const char *pair_head(const cuda_emit *e, const gemm *x) {
  lm_arena *a = e->g.arena;
  const char *inside = "";
  if (x->columns % x->panel)
    inside = lm_arena_printf(a, "if (pair < %lld) ", (long long)x->columns / 2);
  return lm_arena_printf(a,
                         "LM_UNROLL\nfor (int32_t i = 0; i < %d; i++) {\n"
                         "const %s pair = col0 / 2 + 4 * i + lane %% 4;\n%s{\n",
                         x->panel / 8, e->g.target->index, inside);
}

static const char *row_head(const cuda_emit *e, const gemm *x) {
  return lm_arena_printf(e->g.arena,
                         "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                         "const %s row = row0 + lm_thread() / 32 * 16 + lane / 4 + 8 * r;\n"
                         "if (row < %lld) {\n",
                         e->g.target->index, (long long)x->g.m.fixed);
}

static void epilogue_begin(cuda_emit *e, const gemm *x) {
  lm_gen_attempt(&e->g);
  e->g.pass = 0;
  e->g.domains[0].n = 0;
  e->n_stages = ELEMENT;
  e->width[0] = 2;
  e->columns = x->columns;
  e->panel = x->panel;
  for (int i = 0; i <= ELEMENT; i++) {
    e->g.level[i].before.n = 0;
    e->g.level[i].loops.n = 0;
    e->g.level[i].after.n = 0;
  }
}

static const char *epilogue(cuda_emit *e, const gemm *x) {
  static const char element[] = "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\n";
  epilogue_begin(e, x);
  uint16_t row = loop_add(e, "row", x->g.m.fixed, ROW);
  uint16_t pair = loop_add(e, "pair", x->columns / 2, PAIR);
  e->vector = loop_add(e, "c", 2, ELEMENT);
  for (uint32_t i = 0; i < lm_kernel_yield(e->g.kernel)->n_in; i++)
    result_put(e, x, i, row, pair, e->vector);
  const char *text = loop_text(e, ELEMENT, element, "", "}\n");
  text = loop_text(e, PAIR, pair_head(e, x), text, "}\n}\n");
  text = loop_text(e, ROW, row_head(e, x), text, "}\n}\n");
  return loop_text(e, 0, "", text, "");
}

// ---- the kernel

static int64_t pieces(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

static int64_t tiles_of(const gemm *x) {
  return pieces(x->g.m.fixed, ROWS) * pieces(x->columns, x->panel);
}

// The loop over the tiles of a block: row0, and col0 of the first part.
static void put_tiles(const gemm *x, lm_buf *b) {
  int64_t m = pieces(x->g.m.fixed, ROWS), n = pieces(x->columns, x->panel);
  lm_buf_printf(b,
                "for (int32_t tile = (int32_t)block; tile < %lld; tile += (int32_t)grid) "
                "{\nconst int32_t band = tile / %lld * %d, in_band = tile %% %lld;\n",
                (long long)(m * n), (long long)n * BAND, BAND, (long long)n * BAND);
  lm_buf_printf(b,
                "const int32_t along = %lld - band < %d ? %lld - band : %d;\nconst int32_t row0 "
                "= (band + in_band %% along) * %d, col0 = in_band / along * %d;\n",
                (long long)m, BAND, (long long)m, BAND, ROWS, x->panel);
}

static const char *const NEXT = "if (++stage == 4) {\nstage = 0;\nparity ^= 1;\n}\n";

static void put_producer(const gemm *x, lm_buf *b) {
  lm_buf_printf(b,
                "lm_registers_fewer(24);\nif (lm_thread() == %d) {\nint32_t stage = 0;\nuint32_t "
                "parity = 1;\n",
                CONSUMERS);
  put_tiles(x, b);
  lm_buf_printf(b,
                "for (int32_t k = 0; k < %lld; k += %d) {\nlm_phase_wait(done, stage, "
                "parity);\nlm_phase_expect(ready, stage, %d);\n",
                (long long)x->g.k.fixed, DEPTH, STAGE_BYTES);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i += %d)\nlm_box_copy(tile_a, (stage * %d "
                "+ i) * %d, &m0, k, 0, row0 + i, 0, ready, stage);\n",
                ROWS, BOX, ROWS, DEPTH);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i += %d) {\nconst int32_t col = col0 + i "
                "%% %d + i / %d * %lld;\nlm_box_copy(tile_b, (stage * %d + i) * %d, &m1, %s, 0, "
                "%s, 0, ready, stage);\n}\n",
                COLUMNS, BOX, x->panel, x->panel, (long long)x->columns, COLUMNS, DEPTH,
                x->by_k ? "k" : "col", x->by_k ? "col" : "k");
  lm_buf_printf(b, "lm_phase_arrive(ready, stage);\n%s}\n}\n}\n", NEXT);
}

// Releases the stage of the step before, which the wait for its GEMM says that the warp has read.
static const char *const RELEASE = "if (lane == 0) lm_phase_arrive(done, (stage + 3) % 4);\n";

static void put_consumer(const gemm *x, const char *rest, lm_buf *b) {
  int64_t steps = pieces(x->g.k.fixed, DEPTH);
  int64_t ahead = (steps < STAGES ? steps : STAGES) - 1;
  lm_buf_printf(b,
                "lm_registers_more(240);\nconst int32_t group = lm_thread() / %d, lane = "
                "lm_thread() %% 32;\nfloat x[%d][4];\nint32_t stage = 0;\nuint32_t parity = "
                "0;\nif (group == 1) lm_pingpong_wait(1);\n",
                GROUP, COLUMNS / 8);
  put_tiles(x, b);
  lm_buf_printf(b,
                "for (int32_t k = 0; k < %lld; k += %d) {\nlm_phase_wait(ready, stage, "
                "parity);\nLM_GROUP_STEP(x, %d, %s, %d, tile_a + (stage * %d + group * 64) * %d, "
                "tile_b + stage * %d, k > 0)\n",
                (long long)x->g.k.fixed, DEPTH, COLUMNS, x->by_k ? "shared" : "shared_transposed",
                x->by_k ? 32 : 2048, ROWS, DEPTH, COLUMNS * DEPTH);
  lm_buf_printf(b, "lm_wgmma_wait(1);\nif (k > 0) {\n%s}\n", RELEASE);
  lm_buf_printf(b, "if (group == 0 && k == %lld && tile == block) lm_pingpong_arrive(1);\n%s}\n",
                (long long)ahead * DEPTH, NEXT);
  lm_buf_printf(b, "lm_wgmma_wait(0);\nlm_wgmma_settle(x, %d);\n%s%s}\n", COLUMNS / 8, RELEASE,
                rest);
}

static void put_body(cuda_emit *e, const gemm *x, const char *rest, lm_buf *b) {
  const lm_op *kernel = e->g.kernel;
  for (uint32_t i = 0; i < kernel->n_in + kernel->n_out; i++) {
    bool in = i < kernel->n_in;
    lm_buf_printf(b, "// %c%u: ", in ? 'a' : 'r', in ? i : i - kernel->n_in);
    lm_gen_type_print(&e->g, in ? kernel->in[i]->type : kernel->out[i - kernel->n_in]->type, b);
    lm_buf_puts(b, "\n");
  }
  lm_buf_printf(b,
                "LM_POOL_DECLARE();\nLM_POOL(uint16_t, tile_a, 0, %d);\nLM_POOL(uint16_t, tile_b, "
                "%d, %d);\n",
                STAGES * ROWS * DEPTH, STAGES * ROWS * DEPTH * 2, STAGES * COLUMNS * DEPTH);
  lm_buf_printf(b, "LM_POOL(uint64_t, ready, %d, %d);\nLM_POOL(uint64_t, done, %d, %d);\n",
                STAGES * STAGE_BYTES, STAGES, STAGES * STAGE_BYTES + 8 * STAGES, STAGES);
  lm_buf_printf(b,
                "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, "
                "i, 1);\nlm_phase_make(done, i, %d);\n}\nlm_proxy_fence();\n}\nlm_barrier();\n",
                STAGES, CONSUMERS / CUDA_WARP);
  lm_buf_printf(b, "if (lm_thread() >= %d) {\n", CONSUMERS);
  put_producer(x, b);
  lm_buf_puts(b, "} else {\n");
  put_consumer(x, rest, b);
  lm_buf_puts(b, "}\n");
}

// Boxes of 64 lines of 64 elements.
static lm_plan_map map_make(int buf, int64_t line, int64_t lines) {
  lm_plan_map m = {.buf = buf};
  int64_t size[LM_PLAN_MAP_RANK] = {line, 1, lines, 1};
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    m.dim[i].size.fixed = size[i];
    m.dim[i].stride = i ? 2 * line : 2;
    m.dim[i].box = i % 2 ? 1 : BOX;
  }
  return m;
}

static void launch_of(const gemm *x, const lm_target *t, lm_arena *arena, lm_kernel_code *out) {
  lm_plan_map *maps = LM_NEW_N(arena, lm_plan_map, 2);
  int64_t k = x->g.k.fixed, n = x->g.n.fixed;
  int64_t units = t->units ? t->units : UNITS;
  maps[0] = map_make(LM_DOT_X, k, x->g.m.fixed);
  maps[1] = x->by_k ? map_make(LM_DOT_W, k, n) : map_make(LM_DOT_W, n, k);
  out->space.fixed = tiles_of(x) < units ? tiles_of(x) : units;
  out->launch = (lm_plan_launch){
      .per_block = 1,
      .shared = STAGES * STAGE_BYTES + 16 * STAGES,
      .maps = maps,
      .n_maps = 2,
      .note = "a GEMM by wgmma on tiles that TMA copies, with the kernel in its epilogue"};
}

void cuda_gemm_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                    lm_kernel_code *out) {
  const lm_module *m = lm_op_module(kernel);
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  cuda_code *c = cuda_code_make(arena, CONSUMERS + GROUP);
  lm_buf body = {0};
  gemm x;
  if (!gemm_make(m, kernel, &x))
    LM_BUG("a kernel that begins with a dot of an unsupported form");
  cuda_shape_begin(e, m, kernel, temporary);
  lm_gen_target target = *e->g.target;
  target.value = sum_value;
  e->g.target = &target;
  // The epilogue reads operands in many loads, which are in flight together if they are constants.
  c->read_only = kernel->n_in > 2;
  cuda_params(&e->g, NULL, NULL, c);
  c->last_params = ", LM_CONSTANT lm_map m0, LM_CONSTANT lm_map m1";
  c->whole_block = true;
  put_body(e, &x, epilogue(e, &x), &body);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.instructions = e->g.instructions};
  launch_of(&x, &o->target, arena, out);
  cuda_code_render(c, "g", arena, out);
  cuda_flat_free(e);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
}
