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
#include <string.h>

#include "codegen/cuda/gemm.h"

enum {
  DEPTH = 64,
  STAGES = 4,
  BOX = 64,
  GROUP = 128,
  CONSUMERS = 256,
  BAND = 16,    // tiles along m of which blocks that run together compute all columns
  UNITS = 132,  // multiprocessors of a GPU that is not known
  SYSTEM = 2048 // bytes of shared memory that a block cannot have, or declares
};
#define STAGE_BYTES ((CUDA_GEMM_ROWS + CUDA_GEMM_COLUMNS) * DEPTH * 2)

// ---- the kernel

static int64_t pieces(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

static int64_t tiles_of(const cuda_gemm *x) {
  return pieces(x->g.m.fixed, CUDA_GEMM_ROWS) * pieces(x->columns, x->panel);
}

// The loop over the tiles of a block: row0, and col0 of the first part.
static void put_tiles(const cuda_gemm *x, lm_buf *b) {
  int64_t m = pieces(x->g.m.fixed, CUDA_GEMM_ROWS), n = pieces(x->columns, x->panel);
  lm_buf_printf(b,
                "for (int32_t tile = (int32_t)block; tile < %lld; tile += (int32_t)grid) "
                "{\nconst int32_t band = tile / %lld * %d, in_band = tile %% %lld;\n",
                (long long)(m * n), (long long)n * BAND, BAND, (long long)n * BAND);
  lm_buf_printf(b,
                "const int32_t along = %lld - band < %d ? %lld - band : %d;\nconst int32_t row0 "
                "= (band + in_band %% along) * %d, col0 = in_band / along * %d;\n",
                (long long)m, BAND, (long long)m, BAND, CUDA_GEMM_ROWS, x->panel);
}

static const char *const NEXT = "if (++stage == 4) {\nstage = 0;\nparity ^= 1;\n}\n";

static void put_producer(const cuda_gemm *x, lm_buf *b) {
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
                CUDA_GEMM_ROWS, BOX, CUDA_GEMM_ROWS, DEPTH);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i += %d) {\nconst int32_t col = col0 + i "
                "%% %d + i / %d * %lld;\nlm_box_copy(tile_b, (stage * %d + i) * %d, &m1, %s, 0, "
                "%s, 0, ready, stage);\n}\n",
                CUDA_GEMM_COLUMNS, BOX, x->panel, x->panel, (long long)x->columns,
                CUDA_GEMM_COLUMNS, DEPTH, x->by_k ? "k" : "col", x->by_k ? "col" : "k");
  lm_buf_printf(b, "lm_phase_arrive(ready, stage);\n%s}\n}\n}\n", NEXT);
}

// Releases the stage of the step before, which the wait for its GEMM says that the warp has read.
static const char *const RELEASE = "if (lane == 0) lm_phase_arrive(done, (stage + 3) % 4);\n";

static void put_consumer(const cuda_gemm *x, const char *rest, lm_buf *b) {
  int64_t steps = pieces(x->g.k.fixed, DEPTH);
  int64_t ahead = (steps < STAGES ? steps : STAGES) - 1;
  lm_buf_printf(b,
                "lm_registers_more(240);\nconst int32_t group = lm_thread() / %d, lane = "
                "lm_thread() %% 32;\nfloat x[%d][4];\nint32_t stage = 0;\nuint32_t parity = "
                "0;\nif (group == 1) lm_pingpong_wait(1);\n",
                GROUP, CUDA_GEMM_COLUMNS / 8);
  put_tiles(x, b);
  lm_buf_printf(b,
                "for (int32_t k = 0; k < %lld; k += %d) {\nlm_phase_wait(ready, stage, "
                "parity);\nLM_GROUP_STEP(x, %d, %s, %d, tile_a + (stage * %d + group * 64) * %d, "
                "tile_b + stage * %d, k > 0)\n",
                (long long)x->g.k.fixed, DEPTH, CUDA_GEMM_COLUMNS,
                x->by_k ? "shared" : "shared_transposed", x->by_k ? 32 : 2048, CUDA_GEMM_ROWS,
                DEPTH, CUDA_GEMM_COLUMNS * DEPTH);
  lm_buf_printf(b, "lm_wgmma_wait(1);\nif (k > 0) {\n%s}\n", RELEASE);
  lm_buf_printf(b, "if (group == 0 && k == %lld && tile == block) lm_pingpong_arrive(1);\n%s}\n",
                (long long)ahead * DEPTH, NEXT);
  lm_buf_printf(b, "lm_wgmma_wait(0);\nlm_wgmma_settle(x, %d);\n%s%s}\n", CUDA_GEMM_COLUMNS / 8,
                RELEASE, rest);
}

static void put_body(cuda_emit *e, const cuda_gemm *x, const char *rest, lm_buf *b) {
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
                STAGES * CUDA_GEMM_ROWS * DEPTH, STAGES * CUDA_GEMM_ROWS * DEPTH * 2,
                STAGES * CUDA_GEMM_COLUMNS * DEPTH);
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

static void launch_of(const cuda_gemm *x, const lm_target *t, lm_arena *arena,
                      lm_kernel_code *out) {
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

static void emit_free(cuda_emit *e, lm_arena *temporary) {
  cuda_flat_free(e);
  lm_gen_free(&e->g);
  lm_arena_destroy(temporary);
}

bool cuda_gemm_is_supported(const lm_target *t, const lm_op *kernel) {
  cuda_gemm x;
  if (!t->warpgroups || t->shared < STAGES * STAGE_BYTES + SYSTEM || !lm_kernel_dot(kernel) ||
      !cuda_gemm_make(lm_op_module(kernel), kernel, &x))
    return false;
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  cuda_shape_begin(e, lm_op_module(kernel), kernel, temporary);
  bool written = cuda_gemm_epilogue(e, &x);
  emit_free(e, temporary);
  return written;
}

void cuda_gemm_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                    lm_kernel_code *out) {
  const lm_module *m = lm_op_module(kernel);
  lm_arena *temporary = lm_arena_create();
  cuda_emit *e = LM_NEW(temporary, cuda_emit);
  cuda_code *c = cuda_code_make(arena, CONSUMERS + GROUP);
  lm_buf body = {0};
  cuda_gemm x;
  if (!cuda_gemm_make(m, kernel, &x))
    LM_BUG("a kernel that begins with a dot of an unsupported form");
  cuda_shape_begin(e, m, kernel, temporary);
  const char *epilogue = cuda_gemm_epilogue(e, &x);
  LM_ASSERT(epilogue);
  // The epilogue reads operands in many loads, which are in flight together if they are constants.
  c->read_only = kernel->n_in > 2;
  cuda_params(&e->g, NULL, NULL, c);
  c->last_params = ", LM_CONSTANT lm_map m0, LM_CONSTANT lm_map m1";
  c->whole_block = true;
  put_body(e, &x, epilogue, &body);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.instructions = e->g.instructions};
  launch_of(&x, &o->target, arena, out);
  cuda_code_render(c, "g", arena, out);
  emit_free(e, temporary);
}
