// attend_epilogue.c - the kernel of an attend_vjp's region that reads one of its sums, on the sums
// of a block in registers (wgmma): the derivatives of norm and rotary embedding.
//
// It is an epilogue as those of GEMMs (gemm_epilogue.c): the rows are positions, numbered along all
// axes up to that of positions; the columns are those of all heads, of which a block has one.
//
// What the kernel sums over its points, as the gradient of a norm's weight, each block sums over
// its rows: a thread has sums of its two rows in registers, then the threads of a column are added
// in shared memory, in order. Each block is a chunk of the result.
#include "codegen/cuda/attend.h"
#include "codegen/cuda/gemm.h"

enum {
  CONSUMERS = 256,       // threads that have sums
  LINES = 64,            // of their sums in shared memory: eight of each warp
  PAD = 8,               // lines begin in different banks
  MOST = 2 * (128 + PAD) // elements of a line of all sums: registers and shared memory of a block
};

// The number of axes up to that of positions.
static int rows_of(const cuda_attend *e, lm_type t) {
  int at = lm_type_find(t, e->f.t);
  return 1 + (at < 0 ? lm_type_find(t, e->f.s) : at);
}

static lm_type type_of(const lm_attend_sum *s) {
  return s->epilogue->body->first->out[0]->type;
}

// True if each sum over points has one number for each column of a head, as the sums of a block,
// and a block has room for all of them.
static bool chunks_fit(const cuda_attend *e, const lm_attend_sum *s) {
  const lm_op *kernel = s->epilogue;
  int64_t head = s->channels.size;
  int64_t elements = 0;
  for (uint32_t i = 0; i < kernel->n_out; i++) {
    if (!lm_kernel_result_summed(kernel, i))
      continue;
    elements += head + PAD;
    if (cuda_gemm_size(e->f.m, lm_type_inner(kernel->out[i]->type, 1)) != head)
      return false;
  }
  return elements <= MOST;
}

// The epilogue of sum s, whose array is `sums`. False if it has another form.
static bool form(cuda_attend *e, const lm_attend_sum *s, const char *sums, const char *factor,
                 cuda_gemm *out) {
  lm_type t = type_of(s);
  int rows = rows_of(e, t);
  if (t.dtype != LM_BF16 || !rows)
    return false;
  if (!cuda_gemm_of_sums(e->f.m, s->epilogue, rows, out))
    return false;
  out->registers = sums;
  out->factor = factor;
  int64_t positions = lm_axis_size(e->f.m, t.axis[rows - 1]);
  out->ends = positions % e->rows != 0;
  if (out->head != s->channels.size || !chunks_fit(e, s))
    return false;
  return cuda_attend_in_runs(t, &s->channels, 8);
}

// The generator of the epilogue, with its text; NULL if it has none.
static cuda_emit *written(cuda_attend *e, const lm_attend_sum *s, const cuda_gemm *x,
                          const int64_t **result_stride, const char **text) {
  cuda_emit *g = LM_NEW(e->g.arena, cuda_emit);
  g->gemm = x;
  cuda_shape_begin(g, e->target, e->f.m, s->epilogue, e->g.arena);
  g->g.result_stride = result_stride;
  *text = cuda_gemm_epilogue(g, x);
  return g;
}

static void emit_free(cuda_emit *g) {
  cuda_flat_free(g);
  lm_gen_free(&g->g);
}

// ---- text

// The number of the block's point among the axes from..to - 1 of t.
static const char *number_among(cuda_attend *e, lm_type t, int from, int to) {
  const char *text = "0";
  for (int i = from; i < to; i++)
    text = lm_arena_printf(e->g.arena, "(%s) * %lld + %s", text,
                           (long long)lm_axis_size(e->f.m, t.axis[i]),
                           lm_attend_coordinate(&e->values, t.axis[i]));
  return text;
}

// Declares the operands and results of the epilogue by its own numbers: `from` and a number, as
// `to` and a number. The operands of attention have other numbers.
static void names_put(const cuda_attend *e, const lm_attend_sum *s, bool outer, lm_buf *b) {
  const lm_op *kernel = s->epilogue;
  for (uint32_t i = 1; i < kernel->n_in; i++)
    lm_buf_printf(b, "const %s *const LM_RESTRICT %s%u = %s%d;\n",
                  lm_gen_memory_type((lm_dtype)kernel->in[i]->type.dtype), outer ? "ea" : "a", i,
                  outer ? "a" : "ea", outer ? lm_attend_operand(&e->f, kernel->in[i]) : (int)i);
  for (uint32_t i = 0; i < kernel->n_out; i++)
    lm_buf_printf(b, "%s *const %s%u = %s%u;\n",
                  lm_gen_memory_type((lm_dtype)kernel->out[i]->type.dtype), outer ? "er" : "r", i,
                  outer ? "r" : "er", outer ? s->result + i : i);
}

static void sums_put(cuda_attend *e, const lm_attend_sum *s, const cuda_gemm *x, lm_buf *b) {
  for (uint32_t i = 0; i < s->epilogue->n_out; i++) {
    if (!lm_kernel_result_summed(s->epilogue, i))
      continue;
    long long head = x->head;
    const char *lines =
        cuda_attend_pool(e, "float", 4, "lines", (int)(s->result + i), LINES * (x->head + PAD));
    lm_buf_printf(b,
                  "LM_GROUP_LINES_PUT(%s, w%u, %lld, %d)\nlm_group_barrier();\n"
                  "if (lm_thread() < %lld) r%u[chunk * %lld + lm_thread()] = "
                  "lm_lines_sum(%s, %d, %lld);\nlm_group_barrier();\n",
                  lines, i, head, PAD, head, i, head, lines, LINES, head + PAD);
  }
}

void cuda_attend_epilogue(cuda_attend *e, lm_buf *b, const lm_attend_sum *s, const char *sums,
                          const char *factor) {
  cuda_gemm x;
  const char *text = NULL;
  lm_type t = type_of(s);
  int rows = rows_of(e, t);
  if (!form(e, s, sums, factor, &x))
    LM_BUG("attention with an unsupported epilogue");
  cuda_emit *g = written(e, s, &x, e->result_stride + s->result, &text);
  LM_ASSERT(text);
  e->instructions += g->g.instructions;
  const char *index = g->g.target->index;
  const char *before = number_among(e, t, 0, rows - 1);
  long long positions = lm_axis_size(e->f.m, t.axis[rows - 1]);
  lm_buf_printf(b, "{\nconst %s position = row0;\n", index);
  names_put(e, s, true, b);
  lm_buf_printf(b,
                "{\nconst int32_t lane = lm_thread() %% 32;\n"
                "const %s base = (%s) * %lld, row0 = base + position, row_end = base + %lld;\n"
                "const %s col0 = (%s) * %lld;\n(void)row_end;\n",
                index, before, positions, positions, index,
                number_among(e, t, rows, t.rank - s->channels.n), (long long)x.head);
  names_put(e, s, false, b);
  cuda_gemm_sums_declare(&x, s->epilogue, b);
  lm_buf_puts(b, text);
  sums_put(e, s, &x, b);
  lm_buf_puts(b, "}\n}\n");
  emit_free(g);
}

bool cuda_attend_sums_points(const lm_attend_sum *s) {
  return s->epilogue && s->epilogue->attr.n_to;
}

// ---- chunks

// The blocks of the section that has the sum.
static int64_t blocks_of(const cuda_attend *e, const lm_attend_sum *s) {
  lm_type t = type_of(s);
  int64_t points = 1;
  for (int i = 0; i < e->f.parallel.n; i++) {
    lm_axis a = e->f.parallel.axis[i];
    if (cuda_attend_has(t, a))
      points *= lm_axis_size(e->f.m, a);
  }
  int64_t positions = lm_axis_size(e->f.m, t.axis[rows_of(e, t) - 1]);
  return points * ((positions + e->rows - 1) / e->rows);
}

int64_t cuda_attend_epilogue_chunks(cuda_attend *e, const lm_op *kernel) {
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *s = &e->f.sums[i];
    cuda_gemm x;
    const char *text = NULL;
    if (s->epilogue != kernel)
      continue;
    if (!form(e, s, "x", "", &x))
      return 0;
    emit_free(written(e, s, &x, NULL, &text));
    return text ? blocks_of(e, s) : 0;
  }
  return 0;
}
