// states.c - a scan that passes states on and multiplies at each position, as CUDA C (see
// states.h).
//
// The tiles of the next position are copied to shared memory while this one is computed. At each
// position
//
//   h += the rows of x, transposed, times key: in fragments, a warp has 16 rows of the state
//   s = h, rounded: to shared memory, from where it is stored in vectors
//   y = query times the rows of s
//
// A block has as many rows of a state as fill the multiprocessors.
#include "codegen/cuda/states.h"
#include "compiler/ir/scan.h"

enum {
  WARP_ROWS = 16,
  WARPS = 8,
  PAD = 8,   // elements between the rows of tiles, so that eight of them begin in different banks
  VECTOR = 8 // elements
};
// Instructions, as in the machine code for sm_90a: of the GEMM of a tile for each of its elements
// and 64 terms; of a vector that is copied, or stored, with its address; of a result that is
// rounded and stored; of the loop.
static const double GEMM = 1.62, COPY = 6, STORE = 10, RESULT = 1.5, LOOP = 24;

typedef struct text {
  const cuda_states *x;
  lm_gen g;                              // for its arena and names
  int64_t width, warps, across, columns; // rows of a block; warps beside each other, columns of one
  int64_t pool;
  lm_buf declare;
  double counted; // instructions of a block at a position
} text;

// A tile in shared memory, two stages of it.
typedef struct tile {
  const cuda_states_tile *of;
  const char *name;
  int64_t columns;
} tile;

static int64_t pitch(int64_t columns) {
  return columns + PAD;
}

static const char *coordinate(text *e, lm_axis a) {
  return lm_arena_printf(e->g.arena, "i_%s", lm_gen_axis_name(&e->g, a));
}

// ---- the shape of a block

// How many rows of a state a block computes. The number is halved while there would be fewer blocks
// than multiprocessors.
static int64_t width_of(const cuda_states *x, int units) {
  int64_t width = CUDA_STATES_WIDTH;
  while (x->rows % width)
    width -= WARP_ROWS;
  while (width % (2 * WARP_ROWS) == 0 && x->points * (x->rows / width) < units)
    width /= 2;
  return width;
}

// Warps share the columns of 16 rows, in multiples of 16.
static void warps_choose(text *e) {
  int64_t down = e->width / WARP_ROWS;
  for (e->across = WARPS; e->across > 1; e->across--)
    if (e->across * down <= WARPS && e->x->columns % (e->across * WARP_ROWS) == 0)
      break;
  e->columns = e->x->columns / e->across;
  e->warps = e->across * down;
}

static text text_begin(const cuda_states *x, const lm_target *t, lm_arena *arena) {
  text e = {
      .x = x,
      .g =
          {
              .target = cuda_gen_target(t, x->m, x->scan),
              .arena = arena,
              .m = x->m,
              .kernel = x->scan,
          },
      .width = width_of(x, t->units),
  };
  warps_choose(&e);
  return e;
}

// ---- memory

// "0 + at * 64 + …": the offset of an element of t, which has the axis of positions in front.
static const char *offset(text *e, lm_type t, const int64_t *stride, lm_axis row,
                          const char *position) {
  lm_buf b = {0};
  int64_t dense = 1;
  lm_buf_puts(&b, "0");
  for (int i = t.rank - 1; i >= 0; i--) {
    lm_axis a = t.axis[i];
    int64_t size = lm_axis_size(e->x->m, a);
    const char *at = a == lm_scan_axis(e->x->scan) ? position
                     : a == e->x->p                ? (a == row ? "(first + row)" : "(first + col)")
                     : a == row                    ? "row"
                     : a == e->x->n                ? "col"
                                                   : coordinate(e, a);
    if (size > 1)
      lm_buf_printf(&b, " + %s * %lld", at, (long long)(stride ? stride[i] : dense));
    dense *= size;
  }
  return lm_gen_take(&e->g, &b);
}

static void pool_add(text *e, const char *name, int64_t n) {
  lm_buf_printf(&e->declare, "LM_POOL(uint16_t, %s, %lld, %lld);\n", name, (long long)e->pool,
                (long long)n);
  e->pool += (n * 2 + 127) / 128 * 128;
}

static int tiles_of(text *e, tile *out) {
  const cuda_states *x = e->x;
  int n = 0;
  out[n++] = (tile){
      &x->x,
      "xs",
      e->width,
  };
  out[n++] = (tile){
      &x->key,
      "keys",
      x->columns,
  };
  if (x->read)
    out[n++] = (tile){&x->query, "queries", x->columns};
  for (int i = 0; i < n; i++)
    pool_add(e, out[i].name, 2 * out[i].of->rows * pitch(out[i].columns));
  pool_add(e, "state", e->width * pitch(x->columns));
  return n;
}

// The loop over the vectors of a tile: of the same columns for each thread, so that the addresses
// of all of them differ by constants, if the threads are so many.
static void vectors_put(const text *e, int64_t rows, int64_t vectors, lm_buf *b) {
  int64_t threads = e->warps * CUDA_WARP;
  if (threads % vectors == 0)
    lm_buf_printf(b,
                  "LM_UNROLL\nfor (int32_t u = 0; u < %lld; u++) {\n"
                  "const lm_at row = lm_thread() / %lld + u * %lld, col = lm_thread() %% %lld * "
                  "%d;\n%s",
                  (long long)((rows * vectors + threads - 1) / threads), (long long)vectors,
                  (long long)(threads / vectors), (long long)vectors, VECTOR,
                  rows * vectors % threads
                      ? lm_arena_printf(e->g.arena, "if (row < %lld) ", (long long)rows)
                      : "");
  else
    lm_buf_printf(b,
                  "LM_UNROLL_4\nfor (int32_t i = lm_thread(); i < %lld; i += %lld) {\n"
                  "const lm_at row = i / %lld, col = i %% %lld * %d;\n",
                  (long long)(rows * vectors), (long long)threads, (long long)vectors,
                  (long long)vectors, VECTOR);
}

// Writes the asynchronous copies of the tiles of a position to a stage.
static void fetch(text *e, const tile *all, int n, const char *position, const char *stage,
                  lm_buf *b) {
  for (int i = 0; i < n; i++) {
    const tile *t = &all[i];
    int64_t stride[LM_RANK];
    cuda_states_strides(e->x, t->of->operand, stride);
    const char *from =
        offset(e, e->x->scan->in[t->of->operand]->type, stride, t->of->row, position);
    vectors_put(e, t->of->rows, t->columns / VECTOR, b);
    lm_buf_printf(b,
                  "lm_copy_async(%s, %s * %lld + (int32_t)(row * %lld + col), in%u + (%s), true);\n"
                  "}\n",
                  t->name, stage, (long long)(t->of->rows * pitch(t->columns)),
                  (long long)pitch(t->columns), t->of->operand, from);
  }
  lm_buf_puts(b, "lm_copies_commit();\n");
}

// ---- a position

static const char *factor_at(text *e, const char *position) {
  const lm_value *f = e->x->scan->in[e->x->factor];
  return lm_arena_printf(e->g.arena, "in%u[%s]", e->x->factor,
                         offset(e, f->type, NULL, 0, position));
}

static void multiply(text *e, lm_buf *b) {
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t n = 0; n < %lld; n++) {\n"
                "LM_UNROLL\nfor (int32_t i = 0; i < 4; i++) h[n][i] *= factor;\n}\n",
                (long long)e->columns / 8);
  e->counted += (double)(e->width * e->x->columns);
}

static void add(text *e, lm_buf *b) {
  const cuda_states *x = e->x;
  long long wide = pitch(e->width), tall = pitch(x->columns);
  lm_buf_printf(b,
                "LM_TILE_OUTER_BF16(h, %lld, (xs + stage * %lld), down, %lld, (keys + stage * "
                "%lld), across, %lld, %lld)\n",
                (long long)e->columns / 8, (long long)(x->x.rows * wide), wide,
                (long long)(x->key.rows * tall), tall, (long long)x->x.rows);
  e->counted += GEMM * (double)x->x.rows / 64 * (double)(e->width * x->columns);
}

// The rounded state to shared memory, and from there to the stack.
static void state_put(text *e, lm_buf *b) {
  const cuda_states *x = e->x;
  long long tall = pitch(x->columns);
  const char *to = offset(e, x->scan->out[x->stack]->type, NULL, x->p, "position");
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t n = 0; n < %lld; n++) {\n"
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) lm_put((uint32_t *)state, (down + "
                "lane / 4 + 8 * r) * %lld + (across + n * 8) / 2 + lane %% 4, "
                "lm_bf16_pair(h[n][2 * r], h[n][2 * r + 1]));\n}\nlm_barrier();\n",
                (long long)e->columns / 8, tall / 2);
  vectors_put(e, e->width, x->columns / VECTOR, b);
  lm_buf_printf(b,
                "{\nconst lm_w4 y = lm_get((lm_w4 *)state, (row * %lld + col) / %d);\n"
                "lm_word_put(lm_w4, out%u + (%s), 0, y);\n}\n}\n",
                tall, VECTOR, x->stack, to);
  double elements = (double)(e->width * x->columns);
  e->counted += elements + STORE / VECTOR * elements;
}

static void read(text *e, lm_buf *b) {
  const cuda_states *x = e->x;
  long long tall = pitch(x->columns), rows = x->query.rows;
  const char *to = offset(e, x->scan->out[x->read]->type, NULL, x->query.row, "position");
  lm_buf_printf(b,
                "LM_UNROLL_1\nfor (int32_t from = lm_thread() / 32 * %d; from < %lld; from += "
                "%lld) {\nfloat o[%lld][4] = {{0}};\n"
                "LM_TILE_READ_BF16(o, %lld, (queries + stage * %lld), from, state, %lld, %lld)\n",
                WARP_ROWS, rows, (long long)e->warps * WARP_ROWS, (long long)e->width / 8,
                (long long)e->width / 8, rows * tall, (long long)x->columns, tall);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                "const lm_at row = from + lane / 4 + 8 * r;\n"
                "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++) {\n"
                "const lm_at col = i * 8 + lane %% 4 * 2;\n"
                "const float y[2] = {o[i][2 * r], o[i][2 * r + 1]};\n"
                "lm_store2_bf16(out%u + (%s), y);\n}\n}\n}\n",
                (long long)e->width / 8, x->read, to);
  double results = (double)(rows * e->width);
  e->counted += GEMM * (double)x->columns / 64 * results + RESULT * results;
}

// ---- the kernel

static void point_decode(text *e, lm_buf *b) {
  const cuda_states *x = e->x;
  lm_type t = x->scan->in[0]->type;
  long long parts = x->rows / e->width;
  lm_buf_printf(b,
                "lm_at at = (lm_at)block;\nconst lm_at first = at %% %lld * %lld;\nat /= %lld;\n",
                parts, (long long)e->width, parts);
  for (int i = t.rank - 3; i >= 0; i--) {
    long long size = lm_axis_size(x->m, t.axis[i]);
    const char *name = coordinate(e, t.axis[i]);
    lm_buf_printf(b, "const lm_at %s = at %% %lld;\n(void)%s;\nat /= %lld;\n", name, size, name,
                  size);
  }
  lm_buf_printf(b,
                "const int32_t lane = lm_thread() %% 32;\n"
                "const int32_t down = lm_thread() / 32 / %lld * %d, across = lm_thread() / 32 %% "
                "%lld * %lld;\nfloat h[%lld][4] = {{0}};\n",
                (long long)e->across, WARP_ROWS, (long long)e->across, (long long)e->columns,
                (long long)e->columns / 8);
}

static int64_t positions(const text *e) {
  return lm_axis_size(e->x->m, lm_scan_axis(e->x->scan));
}

static void body_put(text *e, lm_buf *b) {
  tile all[3];
  bool back = lm_scan_is_backward(e->x->scan);
  long long last = positions(e) - 1;
  int n = tiles_of(e, all);
  const char *begin = lm_arena_printf(e->g.arena, "(lm_at)%lld", back ? last : 0);
  lm_buf_add(b, e->declare.p, e->declare.n);
  point_decode(e, b);
  fetch(e, all, n, begin, "0", b);
  lm_buf_printf(b,
                "float factor = %s;\nLM_UNROLL_1\nfor (int32_t step = 0; step < %lld; step++) {\n"
                "const int32_t stage = step %% 2;\nconst lm_at position = %s;\n"
                "float after = 0;\nlm_copies_wait(0);\nlm_barrier();\nif (step < %lld) {\n"
                "const lm_at next = %s;\nafter = %s;\n",
                factor_at(e, begin), last + 1,
                back ? lm_arena_printf(e->g.arena, "%lld - step", last) : "step", last,
                back ? "position - 1" : "position + 1", factor_at(e, "next"));
  fetch(e, all, n, "next", "(1 - stage)", b);
  lm_buf_puts(b, "}\n");
  e->counted += LOOP * (double)(e->warps * CUDA_WARP);
  for (int i = 0; i < n; i++)
    e->counted += COPY / VECTOR * (double)(all[i].of->rows * all[i].columns);
  if (e->x->first)
    multiply(e, b);
  add(e, b);
  state_put(e, b);
  if (e->x->read)
    read(e, b);
  if (!e->x->first)
    multiply(e, b);
  lm_buf_puts(b, "factor = after;\n}\n");
}

bool cuda_states_is_supported(const lm_target *t, const lm_op *scan) {
  cuda_states x;
  tile all[3];
  if (!cuda_states_make(lm_op_module(scan), scan, &x))
    return false;
  lm_arena *temporary = lm_arena_create();
  text e = text_begin(&x, t, temporary);
  tiles_of(&e, all);
  lm_buf_free(&e.declare);
  lm_arena_destroy(temporary);
  return e.pool <= cuda_max_pool(t);
}

void cuda_states_emit(const lm_plan_options *o, const lm_op *scan, lm_arena *arena,
                      lm_kernel_code *out) {
  cuda_states x;
  if (!cuda_states_make(lm_op_module(scan), scan, &x))
    LM_BUG("a scan of states of an unsupported form");
  lm_arena *temporary = lm_arena_create();
  text e = text_begin(&x, &o->target, temporary);
  cuda_code *c = cuda_code_make(arena, (int)e.warps * CUDA_WARP);
  lm_buf body = {0};
  cuda_scan_params(scan, c);
  c->whole_block = true;
  lm_buf_printf(&body, "typedef %s lm_at;\nLM_POOL_DECLARE();\n", e.g.target->index);
  body_put(&e, &body);
  cuda_code_body(c, NULL, &body);
  double blocks = (double)(x.points * (x.rows / e.width));
  *out = (lm_kernel_code){
      .space =
          {
              .fixed = (int64_t)blocks,
          },
      .launch =
          {
              .per_block = 1,
              .shared = e.pool,
              .waits = positions(&e),
          },
      .instructions = blocks * (double)positions(&e) * e.counted,
  };
  out->launch.note = "GEMMs by mma.sync at each position of a scan";
  cuda_code_render(c, "s", arena, out);
  lm_buf_free(&e.declare);
  lm_arena_destroy(temporary);
}
