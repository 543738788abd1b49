// simt_planted_test.c - kernels of attention and of GEMMs with one mistake each: a removed barrier,
// fence or wait, a wrong number of bytes, a wrong location. Under some schedule the shim must
// report it, or the results must differ. simt_attend_test and simt_gemm_test check that kernels
// without a mistake cause no report.
// And small kernels that race in global memory, each beside one that does not.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "tests/cuda/simt_run.h"
#include <math.h>
#include "codegen/cuda/cuda.h"
#include "runtime/hal/tensor.h"
#include "tests/cuda/attend_case.h"
#include "tests/cuda/chain_case.h"
#include "tests/cuda/gemm_case.h"
#include "tests/cuda/grouped_case.h"
#include "tests/cuda/joined_case.h"
#include "tests/cuda/mix_case.h"
#include "tests/cuda/states_case.h"
#include "tests/runtime/arena.h"

typedef struct plant {
  const char *arch, *line, *instead;
  bool backward;
} plant;
static const plant plants[] = {
    {NULL, "lm_barrier();\n", "\n"}, // tiles are overwritten while other threads read them
    {NULL, "lm_copies_wait(0);\n", "\n"},
    {"sm_90a", "lm_proxy_fence();\n", "\n"}, // the mbarriers that boxes count in
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n"},
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n", true},
    {"sm_90a", "lm_phase_wait(ready, stage, parity);\n", "\n"},
    {"sm_90a", "lm_phase_wait(ready, 4 + slot, slot_parity);\n", "\n"}, // an item's rows
    {"sm_90a", "if (++slot == 2)", "if (++slot == 1)"},
    {"sm_90a", "if (++v == 2)", "if (++v == 1)"},
    {"sm_90a", "n_items = 3", "n_items = 4"},   // an item that is none
    {"sm_90a", "item - 3;", "item - 2;", true}, // another item of the second section
    // a section begins while consumers are in the one before; over values of its columns
    {"sm_90a", "lm_roles_barrier();\n", "\n", true},
    {"sm_90a", "lm_proxy_fence();\n      lm_roles", "lm_roles", true},
    {"sm_90a", "lm_phase_expect(ready, stage, 16384);\n",
     "lm_phase_expect(ready, stage, 16368);\n"},
    {"sm_90a", "lm_phase_expect(ready, stage, 16384);\n",
     "lm_phase_expect(ready, stage, 32768);\n"},
    {"sm_90a", "lm_wgmma_wait(1);\n", "\n"}, // reads the next scores while they are computed
    {"sm_90a", "lm_pingpong_arrive(1 - group);\n", "\n"},
    // lanes of a warp differ, the first of which has the right number
    {"sm_90a", "lm_warp_uniform(lm_thread() / 128)", "lm_warp_uniform((lm_thread() + 16) / 128)"},
    {"sm_90a", "lm_warp_uniform(lm_get(tiles, stage))", "lm_get(tiles, 0)"},
    {"sm_90a", "LM_GROUP_FETCH(b3 + stage",
     "LM_GROUP_FETCH(b3 + 512 + stage"},  // half a pattern off
    {"sm_90a", "col0, 0", "col0 + 1, 0"}, // one position off: no race, but other bits
};
static const attend_case shape = {
    "planted", "bf16", "b = 1, t = 260, s = 260, g = 1, h = 1, e = 64", "", PLAIN, CAUSAL};

// Wide heads: the rows of all items have the same address.
static const plant wide_plants[] = {
    {"sm_90a", "lm_phase_wait(done, 4, slot_parity);\n", "\n", true},
};
static const attend_case wide_shape = {
    "planted", "bf16", "b = 1, t = 260, s = 260, g = 1, h = 1, e = 128", "", PLAIN, CAUSAL};

// The derivatives of norm and rotary embedding in the epilogue.
static const plant epilogue_plants[] = {
    {"sm_90a", "lm_group_barrier();\n", "\n", true}, // sums that other threads have not stored
    // the sums of the next item
    {"sm_90a", "lines2, 64, 72);\n            lm_group_barrier();\n", "lines2, 64, 72);\n", true},
    {"sm_90a", "lm_proxy_fence();\n    lm_roles", "lm_roles", true}, // boxes over sums
    {"sm_90a", "LM_GROUP_LINES_PUT(lines2, w1, 64, 8)", "LM_GROUP_LINES_PUT(lines2, w1, 64, 0)",
     true},                                                 // lines that overlap
    {"sm_90a", "if (row < row_end) {", "{", true},          // rows of the next batch
    {"sm_90a", "r1[chunk * 64", "r1[chunk / 2 * 64", true}, // two blocks on one chunk
};
static const attend_case epilogue_shape = {
    "planted",      "bf16", "b = 2, t = 70, s = 70, g = 2, h = 2, e = 64" HALVES(32),
    NORMS,          PLAIN,  CAUSAL,
    .rotated = true};

// The kernel of the forward pass comes first.
static int attention_of(const lm_plan *plan, int skip) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a' && !skip--)
      return i;
  LM_BUG("no attention");
}

// The text with its first `from` replaced.
static const char *replaced(const char *text, const char *from, const char *to, lm_arena *a) {
  const char *at = strstr(text, from);
  CHECK(at);
  return lm_arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void mistake_plant(lm_plan_kernel *k, const plant *p, lm_arena *a) {
  const char *name = lm_arena_printf(a, "%s_planted", k->name);
  k->source = replaced(replaced(k->source, p->line, p->instead, a), k->name, name, a);
  k->name = name;
}

static void inputs_fill(const lm_plan *plan, lm_exec *e) {
  uint64_t state = 5;
  for (int i = 0; i < plan->n_params; i++)
    for (int64_t k = 0; k < plan->params[i].elements; k++) {
      float v = bf16_value((float)draw(&state));
      CHECK_OK(lm_tensor_set(e, plan, (lm_plan_tensor){&plan->params[i], LM_ROLE_PARAM}, k, 1, &v));
    }
  const lm_plan_port *w = &lm_plan_func_find(plan, "micro")->in[1];
  for (int64_t k = 0; k < w->buf.bytes / 4; k++)
    ((float *)lm_exec_port(e, w))[k] = (float)draw(&state);
}

// The reports about a plan under the schedules, NULL if there are none; and a hash of the
// gradients' bits under all schedules.
static char *run(const attend_case *c, const plant *p, bool planted, uint64_t *out_bits) {
  lm_buf text = {0};
  text_make(c, &text);
  lm_ctx *ctx = lm_ctx_create();
  lm_module *m = module_make(ctx, text.p, c->rotated ? WITH_EPILOGUE : WITH_DELTA);
  lm_plan_options target = simt_options_of(p->arch, false);
  target.target.units = 2; // blocks that take the items
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  if (planted)
    mistake_plant(&plan->kernels[attention_of(plan, p->backward)], p, m->arena);
  simt_prepare(plan, m->arena);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  inputs_fill(plan, e);
  char *found = NULL;
  *out_bits = 0;
  for (int s = SIMT_SCHEDULES - 1; s >= 0 && !found; s--) {
    simt_schedule_set((simt_schedule)s);
    CHECK_OK(lm_exec_run_first(e, lm_plan_func_find(plan, "micro"), NULL));
    found = simt_report_take();
    void *grad = arena_read(e, plan, LM_ARENA_GRAD);
    *out_bits = lm_hash(grad, (size_t)plan->arena_bytes[LM_ARENA_GRAD], *out_bits);
    lm_free(grad);
  }
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
  return found;
}

// ---- GEMMs

static const plant gemm_plants[] = {
    {"sm_90a", "lm_grid_begin();\n", "\n"}, // the producer copies boxes of operands
    {"sm_90a", "lm_proxy_fence();\n", "\n"},
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n"},  // of the producer
    {"sm_90a", "lm_phase_wait(ready, stage, parity);\n", "\n"}, // of the consumers
    {"sm_90a", "lm_phase_expect(ready, stage, 49152);\n",
     "lm_phase_expect(ready, stage, 40960);\n"},
    {"sm_90a", "lm_wgmma_wait(1);\n", "\n"}, // a stage is released while it is multiplied
    {"sm_90a", "lm_wgmma_wait(0);\n", "\n"}, // the epilogue reads sums while they are computed
    {"sm_90a", "(stage + 3) % 4", "stage"},  // releases the stage that is being multiplied
    {"sm_90a", "lm_pingpong_arrive(1);\n", ";\n"},
    {"sm_90a", "stage * 256 + i", "stage * 256 + i + 4"}, // half a pattern off
    {"sm_90a", "&m1, col,", "&m1, col + 1,"},
};
static const gemm_case gemm_shape = {
    "planted", "b = 1, t = 90, d = 392, n = 144, f = 72", false, "", SWIGLU_RESULTS, SWIGLU(72)};

static const plant heads_plants[] = {
    {"sm_90a", "lm_team_sum_f32(s5, lm_team_mask(4), 4)", "s5"}, // a thread's part of a sum
    {"sm_90a", "if (lane % 4 == 0) {\n", "{\n"},                 // the quad stores to one address
    {"sm_90a", "lm_team_mask(4), 4)", "~0u, 4)"}, // lanes of rows beyond the last do not arrive
    {"sm_90a", "hh * 8 + i", "hh * 4 + i"},       // columns of another head
};
static const gemm_case heads_shape = {
    "planted", "b = 1, t = 90, d = 72, g = 2, h = 1, e = 64", true, DELTA_IN, DELTA_RESULTS, DELTA,
    "g, h, e"};

static const plant sections_plants[] = {
    {"sm_90a", "head < 6)", "head < 7)"},                      // a key as a query
    {"sm_90a", "hh - 6;", "hh - 5;"},                          // another head of keys
    {"sm_90a", "if (head >= 0 && head < 2)", "if (head < 2)"}, // queries as keys
};
static const gemm_case sections_shape = {
    "planted",
    "b = 1, t = 90, d = 72, g = 2, h = 3, e = 64, two = 2, c = 32, one = 1, nq = 384, nk = 128, "
    "n = 640",
    false,
    QKV_IN,
    QKV_RESULTS,
    QKV(0, 384)};

// ---- grouped GEMMs

// `backward`: in the sums over the rows of a group, else in the forward pass.
static const plant grouped_plants[] = {
    {"sm_90a", "lm_phase_wait(copied, 0, cut);\n", "\n", true}, // rows that have not come yet
    {"sm_90a", "lm_warp_sync(~0u);\n", "\n", true}, // other lanes have not written their zeros
    {"sm_90a", "lm_proxy_fence();\n            lm_warp_sync", "lm_warp_sync", true},
    {"sm_90a", "k_end = (int32_t)walk.rows;", "k_end = (int32_t)walk.rows + 1;",
     true},                                                                // of the next
    {"sm_90a", "lm_group_cut(tile_b", "if (0) lm_group_cut(tile_a", true}, // NaN of the next group
    {"sm_90a", "walk.from + k, 0, copied", "k, 0, copied", true},
    {"sm_90a", "row < row_end", "row < row_end + 1"}, // stores a row of the next group
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n"},
    {"sm_90a", "lm_wgmma_wait(0);\n", "\n"},
    {"sm_90a", "(int32_t)walk.from + (band", "(band"},
    {"sm_90a", "k0 ? 1 :", "k0 ? 0 :"}, // rows of no group have the sums of the tile before
};
static const grouped_case grouped_shape = {
    "planted", "b = 1, t = 131, c = 1, n = 131, g = 2, d = 264, f = 136", "g, d, f", SOME_ROWS};

// ---- GEMMs in one launch

static const plant joined_plants[] = {
    {"sm_90a", "lm_grid_begin();\n", "\n"},
    {"sm_90a", "lm_phase_wait(done, stage, parity);\n", "\n"},
    {"sm_90a", "lm_phase_wait(ready, stage, parity);\n", "\n"},
    {"sm_90a", "lm_wgmma_wait(0);\n", "\n"},
    {"sm_90a", "both_transposed, 2048", "both_transposed, 1024"}, // other rows of k
    {"sm_90a", "map_b = &m3;", "map_b = &m1;"},                   // an operand of another GEMM
    {"sm_90a", "line = to + ", "line = c0 + "},                   // the result of another one
    {"sm_90a", "row < row_end", "row + 1 < row_end"},
    {"sm_90a", "if (adds)", "if (!adds)"},
    {"sm_90a", "gemm == 1 && at", "gemm <= 1 && at"}, // a GEMM is left out
};
static const joined_case joined_shape = {"planted", "t = 130, d = 136, f = 72, h = 72", JOINED, 3};

// Integers are from 0 to 4. The last three eighths of `h` are NaN, in rows of no group.
static void port_fill(lm_exec *e, const lm_plan_port *in, uint64_t *state) {
  lm_dtype t = (lm_dtype)in->dtype;
  int64_t n = in->buf.bytes / lm_dtype_bytes(t);
  for (int64_t k = 0; k < n; k++) {
    double x = t == LM_INT ? floor(2.5 * (1 + draw(state))) : draw(state);
    bool is_nan = !strcmp(in->name, "h") && k >= n / 8 * 5;
    element_store(lm_exec_port(e, in), t, k, is_nan ? NAN : x);
  }
}

// As `run`, of function f of a plan whose arguments are bf16 or int; destroys the context.
static char *plan_run(lm_ctx *ctx, lm_plan *plan, uint64_t *out_bits) {
  simt_prepare(plan, ctx->arena);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  const lm_plan_func *f = lm_plan_func_find(plan, "f");
  uint64_t state = 5;
  for (int i = 0; i < f->n_in; i++)
    port_fill(e, &f->in[i], &state);
  char *found = NULL;
  *out_bits = 0;
  for (int s = SIMT_SCHEDULES - 1; s >= 0 && !found; s--) {
    simt_schedule_set((simt_schedule)s);
    CHECK_OK(lm_exec_run(e, f, NULL));
    found = simt_report_take();
    for (int i = 0; i < f->n_out; i++)
      *out_bits = lm_hash(lm_exec_port(e, &f->out[i]), (size_t)f->out[i].buf.bytes, *out_bits);
    void *grad = arena_read(e, plan, LM_ARENA_GRAD);
    *out_bits = lm_hash(grad, (size_t)plan->arena_bytes[LM_ARENA_GRAD], *out_bits);
    lm_free(grad);
  }
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx);
  return found;
}

// p is NULL for the kernel without a mistake.
static char *gemm_run(const void *shape, const plant *p, uint64_t *out_bits) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = simt_options_of("sm_90a", false);
  lm_plan *plan = gemm_plan(ctx, shape, &target);
  if (p)
    mistake_plant(&plan->kernels[gemm_kernel_of(plan)], p, ctx->arena);
  return plan_run(ctx, plan, out_bits);
}

static char *grouped_run(const void *shape, const plant *p, uint64_t *out_bits) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = simt_options_of("sm_90a", false);
  target.target.units = 2;
  lm_plan *plan = grouped_plan(ctx, shape, &target);
  if (p)
    mistake_plant(&plan->kernels[grouped_kernel_of(plan, p->backward)], p, ctx->arena);
  return plan_run(ctx, plan, out_bits);
}

static char *joined_run(const void *shape, const plant *p, uint64_t *out_bits) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = simt_options_of("sm_90a", false);
  target.target.units = 2;
  lm_plan *plan = joined_plan(ctx, shape, &target);
  if (p)
    mistake_plant(&plan->kernels[joined_kernel_of(plan)], p, ctx->arena);
  return plan_run(ctx, plan, out_bits);
}

// Three heads of two points.
#define MIX_SIZES "b = 2, c = 1, g = 1, h = 3, i = 32, j = 32, p = 16"
static const mix_case mix_shape = {"planted", MIX_SIZES, MIX_FORWARD, 1, 1};
static const mix_case mix_vjp_shape = {"planted", MIX_SIZES, MIX_BACKWARD, 1, 1};
static const plant mix_plants[] = {
    // the next head's tiles are copied while other warps multiply those before them
    {NULL, "lm_barrier();\n    if (head + 1 < 3)", "if (head + 1 < 3)"},
    {NULL, "lm_copies_wait(1);\n", "\n"},
    {NULL, "(1 - stage)", "stage"},
    {NULL, "lm_grid_begin();\n", "\n"},
};
static const plant mix_vjp_plants[] = {
    {NULL, "lm_thread() / 32 * 32 + col", "col"}, // two warps at one sum
    {NULL, "lm_copies_wait(1);\n    lm_barrier();\n", "lm_copies_wait(1);\n"},
    // sums of rows and columns that other warps have not stored
    {NULL, "lm_barrier();\n    if (lm_thread() < 32)", "if (lm_thread() < 32)"},
};

// Runs the plan of the only kernel in a module, which is compiled after `pass` has made it.
static char *only_run(const char *text, const char *pass, int units, const plant *p,
                      uint64_t *out_bits) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = simt_options_of("sm_90a", false);
  lm_module *m = parse_and_run(ctx, text, "decompose,cse,dce,fuse");
  target.target.units = units;
  cuda_pass_run(m, pass, "sm_90a", units);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels == 1);
  if (p)
    mistake_plant(&plan->kernels[0], p, ctx->arena);
  return plan_run(ctx, plan, out_bits);
}

static char *mix_run(const void *shape, const plant *p, uint64_t *out_bits) {
  const mix_case *c = shape;
  lm_buf text = {0};
  mix_text(c, &text);
  char *found = only_run(text.p, "mix_kernels", c->units, p, out_bits);
  lm_buf_free(&text);
  return found;
}

static const chain_case chain_shape = {"planted", "b = 1, h = 1, c = 3, j = 16, k = 32, v = 32",
                                       CHAIN_FORWARD, 1};
static const plant chain_plants[] = {
    {NULL, "lm_copies_wait(0);\n", "\n"},
    {NULL, "(1 - stage)", "stage"}, // the next tiles are copied over those that are multiplied
    {NULL, "lm_grid_begin();\n", "\n"},
    // reads the state that other warps have not stored; then their rows
    {NULL, "lm_copies_wait(0);\n    lm_barrier();\n", "lm_copies_wait(0);\n"},
    {NULL, "}\n    lm_barrier();\n", "}\n"},
    {NULL, "+ t * ", "+ 0 * "}, // results of all positions at that of the first
};

static const chain_case mixed_shape = {
    "planted", "b = 1, h = 1, c = 3, i = 32, j = 32, k = 32, v = 32", CHAIN_MIXED, 1};
static const plant mixed_plants[] = {
    {NULL, "lm_copies_wait(0);\n", "\n"},
    {NULL, "(1 - stage)", "stage"},
    // e of other warps is multiplied before they have stored it; then r
    {NULL, "}\n    lm_barrier();\n    {\n      float o0", "}\n    {\n      float o0"},
    {NULL, "}\n    lm_barrier();\n    float o0", "}\n    float o0"},
};

static const chain_case one_stage_shape = {
    "planted", "b = 1, h = 1, c = 3, i = 64, j = 64, k = 256, v = 64", CHAIN_MIXED, 1};
static const plant one_stage_plants[] = {
    // the next tiles are copied over those that other warps multiply
    {NULL, "lm_barrier();\n    {\n      LM_UNROLL_4", "{\n      LM_UNROLL_4"},
    {NULL, "lm_copies_wait(0);\n", "\n"},
};

static char *chain_run(const void *shape, const plant *p, uint64_t *out_bits) {
  const chain_case *c = shape;
  lm_buf text = {0};
  chain_text(c, &text);
  char *found = only_run(text.p, "chain_kernels", c->units, p, out_bits);
  lm_buf_free(&text);
  return found;
}

// Three positions of two states, in warps beside each other and below each other.
static const states_case states_shape = {
    "planted", "c = 3, i = 32, j = 32, b = 1, g = 1, h = 2, p = 32, n = 32",
    STATES_ALL(STATES_FORWARD), 2, 2};
static const plant states_plants[] = {
    // the next tiles are copied while other warps multiply those before them
    {NULL, "lm_barrier();\n    if (step < 2)", "if (step < 2)"},
    {NULL, "lm_copies_wait(0);\n", "\n"},
    {NULL, "(1 - stage)", "stage"},
    {NULL, "lm_grid_begin();\n", "\n"},
    // the state of other warps is read that is not stored; then two warps store one
    {NULL, "lm_barrier();\n    LM_UNROLL", "LM_UNROLL"},
    {NULL, "/ 32 % 2 * 16", "/ 32 % 1 * 16"},
    {NULL, "factor = after;", "\n"},                    // other bits
    {NULL, "at % 2;\n", "at % 1;\n"},                   // two blocks on one state
    {NULL, "(1 - stage) * 1280", "(1 - stage) * 1320"}, // a tile beside the next one
};

static char *states_run(const void *shape, const plant *p, uint64_t *out_bits) {
  lm_buf text = {0};
  states_text(shape, &text);
  char *found = only_run(text.p, "scan_gemms", 2, p, out_bits);
  lm_buf_free(&text);
  return found;
}

static const plant few_rows_plants[] = {
    {NULL, "lm_barrier();\n", "\n"},         // reads sums of other warps that are not written yet
    {NULL, "* 2 + m) * 16", "* 2 + m) * 8"}, // sums of two rows at one index
    {NULL, "other >= 2", "other > 2"},       // leaves out a thread's sum
    {NULL, "lm_grid_begin();\n", "\n"},      // reads what the kernel in front still writes
};
static const plant split_plants[] = {
    {NULL, "lm_barrier();\n", "\n"},           // weights of scores that are not written yet
    {NULL, "lm_barrier();\n  const", "const"}, // values times weights that are not written yet
    {NULL, "* 2 + h) * 16", "* 2 + h) * 8"},   // sums of two heads at one index
    {NULL, "chunk = block % 2", "chunk = block % 1"}, // two blocks write the parts of one chunk
};
static const plant merge_plants[] = {
    {NULL, "block < 1", "block < 2"},           // the second part has no blocks
    {NULL, "lm_block() - 1", "lm_block() - 0"}, // nor points
    {NULL, "a0 = p1;", "a0 = p2;"},             // reads what the first part writes
};
static const plant prologue_plants[] = {
    {NULL, "lm_barrier();\n    }\n  }\n", "}\n}\n"}, // A is not complete
    {NULL, "m * 264 + (k", "m * 256 + (k"},          // another row's elements
};
static const plant transpose_plants[] = {
    {NULL, "lm_barrier();\n", "\n"},            // reads codes that are not in the tile yet
    {NULL, "<< (i_0_l_l * 8)", "<< (i_0_l_l)"}, // codes of other rows in one byte
    {NULL, "i_0_h * 128", "i_0_h * 64"},        // two blocks write one tile
};
// Codes, and their copy with the other order of axes.
static const char transpose_shape[] =
    "stage step\naxis t = 256, e = 64\nfunc @f(%x: bf16[t, e]) -> (y: e4m3[t, e], z: e4m3[e, t]) "
    "{\n  %y = cast %x : e4m3[t, e]\n  %y1 = permute %y : e4m3[e, t]\n  %z = cast %y1 : e4m3[e, "
    "t]\n  return %y, %z\n}\n";
// A norm in its GEMM.
static const char prologue_shape[] =
    "stage step\naxis t = 2, d = 264, n = 40\nfunc @f(%x: bf16[t, d], %w: bf16[d, n]) -> (y: "
    "bf16[t, n]) {\n  %x2 = mul %x, %x\n  %s = sum %x2 over(d)\n  %a = mul %x, %s\n  %y = dot %a, "
    "%w over(d)\n  return %y\n}\n";
// Two norms, of other points.
static const char merge_shape[] =
    "stage step\naxis t = 2, g = 3, e = 16\nfunc @f(%x: bf16[t, e], %z: bf16[g, e, t]) -> (y: "
    "bf16[t, e], w: bf16[g, e, t]) {\n  %x2 = mul %x, %x\n  %xs = sum %x2 over(e)\n  %y = mul %x, "
    "%xs\n  %z2 = mul %z, %z\n  %zs = sum %z2 over(e)\n  %w = mul %z, %zs\n  return %y, %w\n}\n";
static const char split_shape[] =
    "stage step\naxis b = 1, t = 1, s = 300, g = 1, h = 2, e = 16\nfunc @f(%q: bf16[b, t, g, h, "
    "e], "
    "%k: bf16[b, s, g, e]) -> (o: bf16[b, t, g, h, e], l: f32[b, t, g, h]) {\n  %o, %l = attend "
    "over(t, s) (%v1 = %k, %q1 = %q, %k1 = %k) {\n    %a = dot %q1, %k1 over(e) : f32[b, t, g, h, "
    "s]\n    %m = const 1 : bool\n    %one = const 1 : f32\n    yield %a, %m, %one\n  } : bf16[b, "
    "t, "
    "g, h, e], f32[b, t, g, h]\n  return %o, %l\n}\n";
static const char few_rows_shape[] =
    "stage step\naxis t = 2, d = 264, n = 40\nfunc @f(%x: bf16[t, d], %w: bf16[d, n]) -> (y: "
    "bf16[t, n]) {\n  %y = dot %x, %w over(d)\n  return %y\n}\n";

// The same of the first kernel of a module.
static char *first_run(const void *text, const plant *p, uint64_t *out_bits) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = simt_options_of("sm_90a", false);
  lm_plan *plan = lm_plan_build(parse_and_run(ctx, text, "fuse"), &target);
  CHECK(plan);
  if (p)
    mistake_plant(plan->kernels, p, ctx->arena);
  return plan_run(ctx, plan, out_bits);
}

// ---- races in global memory

// `text`: the body of a kernel of 64 threads a block and 3 blocks. `found`: part of the report,
// NULL if there must be none.
typedef struct race {
  const char *name, *text, *found;
} race;
static const race races[] = {
    {"own", "r0[(lm_block() * 64 + lm_thread()) % 5000] += a0[0];", NULL},
    {"warps", "if (lm_thread() % 32 == 0) r0[lm_block()] += a0[0];",
     "line 2, block 0, thread 32: writes r0 at byte 0"},
    {"warps_at_line", "if (lm_thread() % 32 == 0) r0[lm_block()] = a0[0];",
     "which thread 0 of block 0 wrote at line 2 with no barrier since"},
    {"lanes", "r0[lm_block() * 32 + lm_thread() / 2] = a0[0];", "with no barrier since"},
    {"barrier",
     "if (lm_thread() == 5) r0[lm_block()] = a0[0];\nlm_barrier();\n"
     "if (lm_thread() == 40) r0[lm_block()] += a0[0];",
     NULL},
    {"read",
     "if (lm_thread() == 40) r0[lm_block()] = a0[0];\n"
     "r0[3 + lm_block() * 64 + lm_thread()] = r0[lm_block()];",
     "reads r0 at byte"},
    {"blocks", "if (lm_thread() == lm_block()) r0[4] = a0[0];",
     "which thread 0 of block 0 wrote at line 2 in the same launch"},
    {"blocks_read",
     "if (lm_thread() == 0 && lm_block() == 2) r0[4] = a0[0];\n"
     "else if (lm_thread() == 0) r0[5 + lm_block()] = r0[4];",
     "in the same launch"},
    {"halves", "uint16_t *h = (uint16_t *)r0;\nh[lm_block() * 64 + lm_thread()] = 1;", NULL},
    {"bytes", "uint8_t *h = (uint8_t *)r0;\nh[lm_block() * 64 + lm_thread()] = 1;", NULL},
    {"halves_shared", "uint16_t *h = (uint16_t *)r0;\nh[lm_block() * 64 + lm_thread() / 2] = 1;",
     "with no barrier since"},
    {"vectors",
     "float x[4] = {1, 2, 3, 4};\nlm_store4_f32(r0 + 4 * (lm_thread() / 2 + 32 * lm_block()), x);",
     "writes r0 at byte"},
    {"early_read", "float x = a0[0];\nlm_grid_begin();\nr0[lm_block() * 64 + lm_thread()] = x;",
     "before lm_grid_begin"},
    {"early_write", "r0[lm_block() * 64 + lm_thread()] = 1;\nlm_grid_begin();",
     "before lm_grid_begin"},
    {"early_end", "if (lm_thread() == 9) return;\nlm_grid_begin();",
     "thread 9: ends without lm_grid_begin"},
};

static const char *race_text(const race *r, lm_arena *a) {
  const char *begin = strstr(r->text, "lm_grid_begin") ? "" : "lm_grid_begin(); ";
  return lm_arena_printf(a, "LM_KERNEL(64) %s(const float *a0, float *r0) {\n%s%s\n}\n", r->name,
                         begin, r->text);
}

// A plan of one launch of that kernel.
static void race_run(const race *r) {
  lm_arena *a = lm_arena_create();
  lm_plan_kernel kernel = {.name = r->name,
                           .source = race_text(r, a),
                           .origin = "planted",
                           .launch = {.threads = 64, .per_block = 1}};
  lm_plan_buf bufs[] = {{.arena = LM_ARENA_WORK, .bytes = 16},
                        {.arena = LM_ARENA_WORK, .offset = 64, .bytes = 1 << 16}};
  lm_plan_step step = {.kind = LM_STEP_KERNEL, .bufs = bufs, .n_bufs = 2, .space = {.fixed = 3}};
  lm_plan_func func = {.name = "f", .steps = &step, .n_steps = 1};
  lm_plan plan = {.prelude = lm_cuda_prelude_simt_text(a),
                  .kernels = &kernel,
                  .n_kernels = 1,
                  .funcs = &func,
                  .n_funcs = 1};
  plan.arena_bytes[LM_ARENA_WORK] = 64 + (1 << 16);
  simt_compiler_set();
  simt_prepare(&plan, a);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(&plan, &(lm_exec_options){.threads = 1}, &e));
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    simt_schedule_set((simt_schedule)s);
    CHECK_OK(lm_exec_run(e, &func, NULL));
    char *found = simt_report_take();
    bool right = r->found ? found && (s || strstr(found, r->found)) : !found;
    if (!right)
      fprintf(stderr, "%s, schedule %d: %s\n", r->name, s, found ? found : "nothing was found");
    CHECK(right);
    lm_free(found);
  }
  lm_exec_destroy(e);
  lm_arena_destroy(a);
}

static void found_check(const plant *p, char *found, bool other_bits) {
  printf("%s, %.*s -> %.*s: %.*s\n", p->arch ? p->arch : "any", (int)strcspn(p->line, "\n"),
         p->line, (int)strcspn(p->instead, "\n"), p->instead,
         found ? (int)strcspn(found, "\n") : 11, found ? found : "other bits");
  CHECK(found || other_bits);
  lm_free(found);
}

// Every third mistake of a list, all at night: each takes a compilation.
static size_t plants_step(void) {
  return getenv("LM_TEST_NIGHTLY") ? 1 : 3;
}

// Reports of a run of `shape`, NULL if there are none. p: a mistake, or NULL.
typedef char *planted_run(const void *shape, const plant *p, uint64_t *out_bits);

// Each mistake is reported or changes bits; without one nothing is reported.
static void plants_run(planted_run *run, const void *shape, const plant *p, size_t n) {
  uint64_t right, bits;
  CHECK(!run(shape, NULL, &right));
  for (size_t i = 0; i < n; i += plants_step()) {
    char *found = run(shape, &p[i], &bits);
    found_check(&p[i], found, bits != right);
  }
}

static void attention_run(const attend_case *c, const plant *p, size_t n) {
  uint64_t right, bits;
  CHECK(!run(c, &(plant){"sm_90a"}, false, &right));
  for (size_t i = 0; i < n; i += plants_step()) {
    char *found = run(c, &p[i], true, &bits);
    found_check(&p[i], found, p[i].arch && bits != right);
  }
}

int main(void) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(races); i++)
    race_run(&races[i]);
  attention_run(&shape, plants, LM_COUNT(plants));
  attention_run(&wide_shape, wide_plants, LM_COUNT(wide_plants));
  attention_run(&epilogue_shape, epilogue_plants, LM_COUNT(epilogue_plants));
  plants_run(gemm_run, &gemm_shape, gemm_plants, LM_COUNT(gemm_plants));
  plants_run(gemm_run, &heads_shape, heads_plants, LM_COUNT(heads_plants));
  plants_run(gemm_run, &sections_shape, sections_plants, LM_COUNT(sections_plants));
  plants_run(grouped_run, &grouped_shape, grouped_plants, LM_COUNT(grouped_plants));
  plants_run(joined_run, &joined_shape, joined_plants, LM_COUNT(joined_plants));
  plants_run(mix_run, &mix_shape, mix_plants, LM_COUNT(mix_plants));
  plants_run(mix_run, &mix_vjp_shape, mix_vjp_plants, LM_COUNT(mix_vjp_plants));
  plants_run(chain_run, &chain_shape, chain_plants, LM_COUNT(chain_plants));
  plants_run(chain_run, &mixed_shape, mixed_plants, LM_COUNT(mixed_plants));
  plants_run(chain_run, &one_stage_shape, one_stage_plants, LM_COUNT(one_stage_plants));
  plants_run(states_run, &states_shape, states_plants, LM_COUNT(states_plants));
  plants_run(first_run, few_rows_shape, few_rows_plants, LM_COUNT(few_rows_plants));
  plants_run(first_run, split_shape, split_plants, LM_COUNT(split_plants));
  plants_run(first_run, merge_shape, merge_plants, LM_COUNT(merge_plants));
  plants_run(first_run, prologue_shape, prologue_plants, LM_COUNT(prologue_plants));
  plants_run(first_run, transpose_shape, transpose_plants, LM_COUNT(transpose_plants));
}
