// chain.c - a scan that reads and updates its carry by GEMMs, as CUDA C (see chain.h).
//
// The tiles of the next position are copied to shared memory while this one is computed, if there
// is room for the tiles of two positions. For each position
//
//   s is rounded to shared memory, and stored
//   e = h(the tile of p times s, …) is rounded to shared memory
//   r = g(the tiles of m times e, …) is rounded to shared memory, and stored
//   s = f(s, the transposed tile of q times r, …), in registers
#include "codegen/common/scan.h"
#include "codegen/cuda/chain.h"
#include "compiler/ir/dot.h"

enum {
  WARP_ROWS = 16,
  PAD = 8,   // elements between the rows of tiles, so that eight of them begin in different banks
  STAGES = 2 // of tiles in shared memory, at most
};
// Instructions: of a GEMM for each element of its result and 64 elements of the sum; of a vector
// that is copied; of an element that is rounded and stored.
static const double GEMM = 1.5, COPY = 8, ROUND = 1.5;

typedef enum tile {
  STATE, // of s
  ENTRY, // of e, if it is not r
  ROWS   // of r
} tile;
static const char *const TILE[] = {"s_tile", "e_tile", "r_tile"};

typedef struct memo {
  const lm_value *v;
  const char *text;
  struct memo *next;
} memo;

typedef struct chain_text {
  const cuda_chain *x;
  lm_gen g; // for its arena and names
  int64_t slice, pool;
  int stages;
  int n_names;
  memo *memo;
  lm_buf declare, once, element; // statements: of the block, of a position, of an element
  double counted;                // instructions of all lanes for a position
  double *per_element;           // of the tile that is being written
} chain_text;

static bool has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

static int64_t warps(const cuda_chain *x) {
  return x->depth / WARP_ROWS;
}

// Warps that share 16 rows of r.
static int64_t parts(const cuda_chain *x) {
  return x->depth / x->rows;
}

static lm_type region_type(const cuda_chain *x, uint32_t i) {
  return x->scan->body->args[i]->type;
}

// ---- tiles in shared memory

static int64_t tile_rows(const cuda_chain *x, uint32_t i) {
  return cuda_chain_row_axis(x, region_type(x, i)) == x->k ? x->depth : x->rows;
}

static int64_t tile_width(const chain_text *e, uint32_t i) {
  const cuda_chain *x = e->x;
  if (i == x->p || i == x->q)
    return x->depth;
  return cuda_chain_is_factor(x, i) ? x->rows : e->slice;
}

static int64_t tile_size(const chain_text *e, uint32_t i) {
  return tile_rows(e->x, i) * (tile_width(e, i) + PAD);
}

static void pool_add(chain_text *e, const char *type, const char *name, int64_t bytes, int64_t n) {
  lm_buf_printf(&e->declare, "LM_POOL(%s, %s, %lld, %lld);\n", type, name, (long long)e->pool,
                (long long)n);
  e->pool += (bytes * n + 127) / 128 * 128;
}

static void tiles_declare(chain_text *e) {
  const cuda_chain *x = e->x;
  int64_t pairs = (e->slice + PAD) / 2;
  pool_add(e, "uint32_t", "s_tile", 4, x->depth * pairs);
  pool_add(e, "uint32_t", "r_tile", 4, x->rows * pairs);
  if (x->mixes)
    pool_add(e, "uint32_t", "e_tile", 4, x->rows * pairs);
  for (uint32_t i = 1; i < x->scan->n_in; i++)
    if (cuda_chain_copies(x, i))
      pool_add(e, "uint16_t", lm_arena_printf(e->g.arena, "b%u", i), 2,
               e->stages * tile_size(e, i));
}

// ---- memory

// " + i_b * 64 + …": the offset of the points' axes and of a position.
static void offset_put(chain_text *e, uint32_t i, const char *position, lm_buf *b) {
  const cuda_chain *x = e->x;
  lm_type t = x->scan->in[i]->type;
  int64_t stride[LM_RANK];
  cuda_chain_strides(x, i, stride);
  lm_buf_puts(b, "0");
  for (int k = 0; k < t.rank; k++) {
    lm_axis a = t.axis[k];
    bool inner = a == x->i || a == x->j || a == x->k || a == x->v;
    if (a == lm_scan_axis(x->scan))
      lm_buf_printf(b, " + %s * %lld", position, (long long)stride[k]);
    else if (!inner && lm_axis_size(x->m, a) > 1)
      lm_buf_printf(b, " + i_%s * %lld", lm_gen_axis_name(&e->g, a), (long long)stride[k]);
  }
}

static int64_t stride_of(const cuda_chain *x, uint32_t i, lm_axis a) {
  lm_type t = x->scan->in[i]->type;
  int64_t stride[LM_RANK];
  int at = lm_type_find(t, a);
  cuda_chain_strides(x, i, stride);
  return at < 0 ? 0 : stride[at];
}

// Writes the asynchronous copies of the tiles of a position to a stage of shared memory.
static void fetch(chain_text *e, const char *position, const char *stage, bool counted, lm_buf *b) {
  const cuda_chain *x = e->x;
  lm_buf_puts(b, "{\n");
  for (uint32_t i = 1; i < x->scan->n_in; i++) {
    if (!cuda_chain_copies(x, i))
      continue;
    bool factor = cuda_chain_is_factor(x, i);
    long long vectors = tile_width(e, i) / 8;
    long long n = tile_rows(x, i) * vectors;
    lm_axis row = cuda_chain_row_axis(x, region_type(x, i));
    lm_buf at = {0};
    offset_put(e, i, position, &at);
    lm_buf_printf(b,
                  "LM_UNROLL_4\nfor (int32_t i = lm_thread(); i < %lld; i += %lld) {\n"
                  "const lm_at at = i / %lld;\nconst int32_t k = i %% %lld * 8;\n"
                  "lm_copy_async(b%u, %s * %lld + (int32_t)at * %lld + k, "
                  "%s + (%s + at * %lld + k%s), true);\n}\n",
                  n, (long long)(32 * warps(x)), vectors, vectors, i, stage,
                  (long long)tile_size(e, i), (long long)(tile_width(e, i) + PAD),
                  lm_gen_scan_operand(e->g.arena, x->scan, i), lm_gen_take(&e->g, &at),
                  (long long)stride_of(x, i, row), factor ? "" : " + first");
    e->counted += counted ? COPY * (double)n : 0;
  }
  lm_buf_puts(b, "}\nlm_copies_commit();\n");
}

// ---- values

static const char *statement(chain_text *e, lm_buf *to, const char *text) {
  const char *name = lm_arena_printf(e->g.arena, "e%d", e->n_names++);
  lm_buf_printf(to, "const float %s = %s;\n", name, text);
  return name;
}

static const char *tile_element(chain_text *e, uint32_t i) {
  const char *at = lm_arena_printf(e->g.arena, "lm_get(b%u, stage * %lld + row * %lld + col)", i,
                                   (long long)tile_size(e, i), (long long)(e->slice + PAD));
  return lm_gen_load_text(e->g.arena, LM_BF16, at);
}

// Numbers of the points are loaded at the beginning of a position.
static const char *operand(chain_text *e, const lm_value *arg) {
  const cuda_chain *x = e->x;
  lm_type t = arg->type;
  uint32_t i = arg->index;
  bool of_rows = has(t, x->i) || has(t, x->j) || has(t, x->k);
  bool of_points = !of_rows && !has(t, x->v);
  lm_buf at = {0};
  if (cuda_chain_copies(x, i))
    return statement(e, &e->element, tile_element(e, i));
  offset_put(e, i, "t", &at);
  if (of_rows)
    lm_buf_printf(&at, " + row * %lld", (long long)stride_of(x, i, cuda_chain_row_axis(x, t)));
  if (has(t, x->v))
    lm_buf_printf(&at, " + (first + col) * %lld", (long long)stride_of(x, i, x->v));
  const char *from = lm_arena_printf(
      e->g.arena, "%s[%s]", lm_gen_scan_operand(e->g.arena, x->scan, i), lm_gen_take(&e->g, &at));
  *e->per_element += !of_points;
  return statement(e, of_points ? &e->once : &e->element,
                   lm_gen_load_text(e->g.arena, (lm_dtype)t.dtype, from));
}

static const char *value(chain_text *e, const lm_value *v);

static const char *computed(chain_text *e, const lm_op *op) {
  const char *in[LM_RANK];
  if (op->code == LM_OP_CONST)
    return lm_gen_const_text(e->g.arena, (lm_dtype)op->out[0]->type.dtype, op->attr.num);
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = value(e, op->in[i]);
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE)
    return in[0];
  const char *text = lm_gen_op_text(&e->g, op, in);
  *e->per_element += lm_gen_op_instructions(&e->g, op);
  return text == in[0] ? text : statement(e, &e->element, text);
}

static const char *written(chain_text *e, const lm_value *v) {
  const cuda_chain *x = e->x;
  if (v == x->scan->body->args[0])
    return "s[n][2 * r + c]";
  if (!v->def)
    return operand(e, v);
  if (v->def == x->read || v->def == x->update || v->def == x->mix[0])
    return "o0[n][2 * r + c]";
  if (x->mixes > 1 && v->def == x->mix[1])
    return "o1[n][2 * r + c]";
  return computed(e, v->def);
}

static const char *value(chain_text *e, const lm_value *v) {
  for (const memo *k = e->memo; k; k = k->next)
    if (k->v == v)
      return k->text;
  const char *text = written(e, v);
  memo *k = LM_NEW(e->g.arena, memo);
  *k = (memo){
      .v = v,
      .text = text,
      .next = e->memo,
  };
  e->memo = k;
  return text;
}

// ---- loops over the elements of a tile

static int64_t fragments(const chain_text *e, tile of) {
  return e->slice / 8 / (of != STATE ? parts(e->x) : 1);
}

// The loops over fragments and rows of a thread; the caller writes their end, two braces.
static void rows_begin(const chain_text *e, tile of, lm_buf *b) {
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t n = 0; n < %lld; n++) {\n"
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst lm_at row = %s;\n(void)row;\n",
                (long long)fragments(e, of),
                of != STATE ? "down + lm_thread() % 32 / 4 + 8 * r" : "lm_frag_row(r)");
}

// Each element's statements, and then what `last` says, which reads its `text`.
static void elements_put(chain_text *e, tile of, const lm_value *v, const char *last, lm_buf *b) {
  double count = 0;
  e->memo = NULL;
  e->per_element = &count;
  const char *text = value(e, v);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\n"
                "const lm_at col = %slm_frag_col(n, c);\n(void)col;\n",
                of != STATE ? "across + " : "");
  lm_buf_add(b, e->element.p, e->element.n);
  e->element.n = 0;
  lm_buf_printf(b, "%s = %s;\n}\n", last, text);
  e->counted += count * (double)(e->slice * (of != STATE ? e->x->rows : e->x->depth));
}

// Rounds two neighbouring elements y to a tile, and to the results that are v.
static void pairs_put(chain_text *e, tile of, lm_buf *b) {
  const cuda_chain *x = e->x;
  const lm_op *yield = x->scan->body->last;
  const char *col = of != STATE ? "across + lm_frag_col(n, 0)" : "lm_frag_col(n, 0)";
  lm_buf_printf(b, "lm_put(%s, ((int32_t)row * %lld + %s) / 2, lm_bf16_pair(y[0], y[1]));\n",
                TILE[of], (long long)(e->slice + PAD), col);
  for (uint32_t i = 1; i < yield->n_in; i++) {
    lm_type t = x->scan->out[i]->type;
    int64_t stride = 1;
    if (of == ENTRY || cuda_chain_is_state(x, yield->in[i]) != (of == STATE))
      continue;
    lm_buf_printf(b, "lm_store2_bf16(out%u + (0", i);
    for (int k = t.rank - 1; k >= 0; k--) {
      lm_axis a = t.axis[k];
      if (a == x->v)
        lm_buf_printf(b, " + first + %s", col);
      else if (a == lm_scan_axis(x->scan))
        lm_buf_printf(b, " + t * %lld", (long long)stride);
      else if (a == x->j || a == x->k)
        lm_buf_printf(b, " + row * %lld", (long long)stride);
      else if (lm_axis_size(x->m, a) > 1)
        lm_buf_printf(b, " + i_%s * %lld", lm_gen_axis_name(&e->g, a), (long long)stride);
      stride *= lm_axis_size(x->m, a);
    }
    lm_buf_puts(b, "), y);\n");
  }
  e->counted += ROUND * (double)(e->slice * (of != STATE ? x->rows : x->depth));
}

// ---- a position

static void state_put(chain_text *e, lm_buf *b) {
  rows_begin(e, STATE, b);
  lm_buf_puts(b, "const float y[2] = {s[n][2 * r], s[n][2 * r + 1]};\n");
  pairs_put(e, STATE, b);
  lm_buf_puts(b, "}\n}\n");
}

// A product of 16 rows of an operand's tile and a tile.
typedef struct product {
  uint32_t factor;
  bool transposed; // the sum is over the rows of the operand's tile
  tile by, of;     // of: the tile that has the result's rows
} product;

// o<n> = the product.
static void multiply(chain_text *e, int n, product p, lm_buf *b) {
  const cuda_chain *x = e->x;
  bool of_state = p.of == STATE;
  long long sums = fragments(e, p.of), depth = p.by == STATE ? x->depth : x->rows;
  lm_buf_printf(b, "float o%d[%lld][4] = {{0}};\n", n, sums);
  lm_buf_printf(
      b, "LM_TILE_TIMES_BF16(%s, o%d, %lld, (b%u + stage * %lld), %s, %lld, %s, %s, %lld, %lld)\n",
      p.transposed ? "lm_columns_load" : "lm_rows_load", n, sums, p.factor,
      (long long)tile_size(e, p.factor), of_state ? "lm_thread() / 32 * 16" : "down",
      (long long)(tile_width(e, p.factor) + PAD), TILE[p.by], of_state ? "0" : "across",
      (long long)(e->slice + PAD), depth);
  e->counted += GEMM / 64 * (double)(depth * (of_state ? x->depth : x->rows) * e->slice);
}

static void read_put(chain_text *e, tile of, lm_buf *b) {
  multiply(e, 0, (product){e->x->p, false, STATE, of}, b);
}

static void mixes_put(chain_text *e, lm_buf *b) {
  const cuda_chain *x = e->x;
  for (int n = 0; n < x->mixes; n++) {
    lm_type t = region_type(x, x->m_of[n]);
    bool transposed = cuda_chain_row_axis(x, t) == x->i;
    multiply(e, n, (product){x->m_of[n], transposed, ENTRY, ROWS}, b);
  }
}

// The elements of e or r, behind the products that they are computed of.
static void row_put(chain_text *e, tile of, const lm_value *v, lm_buf *b) {
  lm_buf_puts(b, "{\n");
  if (of == ROWS && e->x->mixes)
    mixes_put(e, b);
  else
    read_put(e, of, b);
  rows_begin(e, of, b);
  lm_buf_puts(b, "float y[2];\n");
  elements_put(e, of, v, "y[c]", b);
  pairs_put(e, of, b);
  lm_buf_puts(b, "}\n}\n}\n");
}

static void rows_put(chain_text *e, lm_buf *b) {
  if (e->x->mixes) {
    row_put(e, ENTRY, e->x->entry, b);
    lm_buf_puts(b, "lm_barrier();\n");
  }
  row_put(e, ROWS, e->x->row, b);
}

static void update_put(chain_text *e, lm_buf *b) {
  multiply(e, 0, (product){e->x->q, true, ROWS, STATE}, b);
  rows_begin(e, STATE, b);
  elements_put(e, STATE, e->x->scan->body->last->in[0], "s[n][2 * r + c]", b);
  lm_buf_puts(b, "}\n}\n");
}

static const char *last_position(const chain_text *e) {
  return lm_arena_printf(e->g.arena, "%lld", (long long)e->x->steps - 1);
}

// Statements behind which the tiles of this position are in shared memory.
static void tiles_put(chain_text *e, lm_buf *b) {
  bool backward = lm_scan_is_backward(e->x->scan);
  if (e->stages == 1) {
    lm_buf_puts(b, "lm_barrier();\n");
    fetch(e, "t", "stage", true, b);
  }
  lm_buf_puts(b, "lm_copies_wait(0);\nlm_barrier();\n");
  if (e->stages > 1) {
    lm_buf_printf(b, "if (step < %lld) ", (long long)e->x->steps - 1);
    fetch(e, backward ? "(t - 1)" : "(t + 1)", "(1 - stage)", true, b);
  }
}

static void position_put(chain_text *e, lm_buf *b) {
  bool backward = lm_scan_is_backward(e->x->scan);
  lm_buf body = {0};
  state_put(e, &body);
  tiles_put(e, &body);
  rows_put(e, &body);
  lm_buf_puts(&body, "lm_barrier();\n");
  update_put(e, &body);
  lm_buf_printf(b,
                "LM_UNROLL_1\nfor (int32_t step = 0; step < %lld; step++) {\n"
                "const int32_t stage = step %% %d;\nconst lm_at t = %s%sstep;\n",
                (long long)e->x->steps, e->stages, backward ? last_position(e) : "",
                backward ? " - " : "");
  lm_buf_add(b, e->once.p, e->once.n);
  lm_buf_add(b, body.p, body.n);
  lm_buf_puts(b, "}\n");
  lm_buf_free(&body);
}

// ---- the kernel

// The index of an element of the carry in memory, dense.
static const char *carry_index(chain_text *e) {
  const cuda_chain *x = e->x;
  lm_type t = region_type(x, 0);
  lm_buf b = {0};
  int64_t stride = 1;
  lm_buf_puts(&b, "0");
  for (int k = t.rank - 1; k >= 0; k--) {
    lm_axis a = t.axis[k];
    if (a == x->v)
      lm_buf_printf(&b, " + (first + col) * %lld", (long long)stride);
    else if (a == x->k)
      lm_buf_printf(&b, " + row * %lld", (long long)stride);
    else if (lm_axis_size(x->m, a) > 1)
      lm_buf_printf(&b, " + i_%s * %lld", lm_gen_axis_name(&e->g, a), (long long)stride);
    stride *= lm_axis_size(x->m, a);
  }
  return lm_gen_take(&e->g, &b);
}

// A statement for each element of the carry.
static void carry_put(chain_text *e, const char *text, lm_buf *b) {
  rows_begin(e, STATE, b);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\nconst lm_at col = "
                "lm_frag_col(n, c);\n(void)col;\n%s\n}\n}\n}\n",
                text);
}

static void begin_put(chain_text *e, lm_buf *b) {
  const cuda_chain *x = e->x;
  lm_type t = region_type(x, 0);
  double start = 0;
  long long slices = x->cols / e->slice;
  lm_buf_printf(
      b, "const lm_at first = (lm_at)block %% %lld * %lld;\nlm_at at = (lm_at)block / %lld;\n",
      slices, (long long)e->slice, slices);
  for (int k = t.rank - 1; k >= 0; k--) {
    if (t.axis[k] == x->k || t.axis[k] == x->v)
      continue;
    long long size = lm_axis_size(x->m, t.axis[k]);
    const char *name = lm_gen_axis_name(&e->g, t.axis[k]);
    lm_buf_printf(b, "const lm_at i_%s = at %% %lld;\n(void)i_%s;\nat /= %lld;\n", name, size, name,
                  size);
  }
  lm_buf_printf(b,
                "const int32_t down = lm_thread() / 32 / %lld * 16, across = lm_thread() / 32 %% "
                "%lld * %lld;\n",
                (long long)parts(x), (long long)parts(x), (long long)(e->slice / parts(x)));
  lm_buf_printf(b, "float s[%lld][4];\n", (long long)fragments(e, STATE));
  const lm_value *init = x->scan->in[0];
  start = init->def && init->def->code == LM_OP_CONST ? init->def->attr.num : 0;
  const char *from = cuda_scan_omits(x->scan, 0)
                         ? lm_gen_const_text(e->g.arena, LM_F32, start)
                         : lm_arena_printf(e->g.arena, "in0[%s]", carry_index(e));
  carry_put(e, lm_arena_printf(e->g.arena, "s[n][2 * r + c] = %s;", from), b);
}

static void body_put(chain_text *e, lm_buf *b) {
  const cuda_chain *x = e->x;
  lm_buf position = {0};
  position_put(e, &position);
  lm_buf_add(b, e->declare.p, e->declare.n);
  begin_put(e, b);
  const char *begin = lm_scan_is_backward(x->scan) ? last_position(e) : "0";
  if (e->stages > 1)
    fetch(e, lm_arena_printf(e->g.arena, "(lm_at)%s", begin), "0", false, b);
  lm_buf_add(b, position.p, position.n);
  if (!cuda_scan_omits(x->scan, x->scan->n_in))
    carry_put(e, lm_arena_printf(e->g.arena, "out0[%s] = s[n][2 * r + c];", carry_index(e)), b);
  lm_buf_free(&position);
}

static void tiles_place(chain_text *e, int64_t slice, int stages) {
  e->declare.n = 0;
  e->pool = 0;
  e->slice = slice;
  e->stages = stages;
  tiles_declare(e);
}

// With the tiles of a slice: of the widest one that shared memory has room for, if any has.
static chain_text text_begin(const cuda_chain *x, const lm_target *t, lm_arena *arena) {
  chain_text e = {
      .x = x,
      .g =
          {
              .target = cuda_gen_target(t, x->m, x->scan),
              .arena = arena,
              .m = x->m,
              .kernel = x->scan,
          },
  };
  int64_t widest = cuda_chain_slice(x, t);
  for (int stages = STAGES; stages; stages--)
    for (int64_t n = widest; n == widest || cuda_chain_may_slice(x, n); n /= 2) {
      tiles_place(&e, n, stages);
      if (e.pool <= cuda_max_pool(t))
        return e;
    }
  return e;
}

static void text_end(chain_text *e) {
  lm_buf_free(&e->declare);
  lm_buf_free(&e->once);
  lm_buf_free(&e->element);
}

bool cuda_chain_is_supported(const lm_target *t, const lm_op *scan) {
  cuda_chain x;
  if (!cuda_chain_make(lm_op_module(scan), scan, &x) || !cuda_chain_slice(&x, t))
    return false;
  lm_arena *temporary = lm_arena_create();
  chain_text e = text_begin(&x, t, temporary);
  bool fits = e.pool <= cuda_max_pool(t);
  text_end(&e);
  lm_arena_destroy(temporary);
  return fits;
}

void cuda_chain_emit(const lm_plan_options *o, const lm_op *scan, lm_arena *arena,
                     lm_kernel_code *out) {
  cuda_chain x;
  if (!cuda_chain_make(lm_op_module(scan), scan, &x))
    LM_BUG("a scan with GEMMs of an unsupported form");
  lm_arena *temporary = lm_arena_create();
  chain_text e = text_begin(&x, &o->target, temporary);
  cuda_code *c = cuda_code_make(arena, (int)(32 * warps(&x)));
  lm_buf body = {0};
  cuda_scan_params(scan, c);
  c->whole_block = true;
  lm_buf_printf(&body, "typedef %s lm_at;\nLM_POOL_DECLARE();\n", e.g.target->index);
  body_put(&e, &body);
  cuda_code_body(c, NULL, &body);
  int64_t blocks = x.points * (x.cols / e.slice);
  *out = (lm_kernel_code){
      .space =
          {
              .fixed = blocks,
          },
      .launch =
          {
              .per_block = 1,
              .shared = e.pool,
              .waits = x.mixes ? x.steps + x.steps / 2 : x.steps,
          },
      .instructions = (double)(blocks * x.steps) * e.counted,
  };
  out->launch.note = "a scan with GEMMs by mma.sync, with the carry in registers";
  cuda_code_render(c, "s", arena, out);
  text_end(&e);
  lm_arena_destroy(temporary);
}
