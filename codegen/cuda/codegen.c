// codegen.c - the function table for the planner, the prelude, the choices of the target.
#include <string.h>
#include "codegen/cuda/emit.h"
#include "compiler/plan/cost.h"

enum {
  LOGITS = 32, // of a GPU's memory, the part that a tile of logits and its cotangent may have
  // Of a GPU whose bandwidth is unknown: bytes that an H100 moves in 2.5 µs.
  LAUNCH = 8 << 20
};

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_cuda_prelude[], lm_common_prelude[];

// ---- prelude

static void add_file(const struct lm_embedded *files, const char *name, lm_buf *b) {
  for (const struct lm_embedded *f = files; f->path; f++) {
    const char *slash = strrchr(f->path, '/');
    if (!strcmp(slash ? slash + 1 : f->path, name)) {
      lm_buf_printf(b, "#line 1 \"%s\"\n%s", f->path, f->text);
      return;
    }
  }
  LM_BUG("no prelude file %s", name);
}

static const char *prelude(lm_arena *arena, bool device) {
  lm_buf b = {0};
  if (device)
    add_file(lm_cuda_prelude, "builtin.cuh", &b);
  add_file(lm_common_prelude, "inline.h", &b);
  add_file(lm_common_prelude, "types.h", &b);
  if (device)
    add_file(lm_cuda_prelude, "codes.cuh", &b);
  add_file(lm_common_prelude, "floats.h", &b);
  add_file(lm_common_prelude, "math.h", &b);
  add_file(lm_common_prelude, "random.h", &b);
  add_file(lm_cuda_prelude, device ? "device.cuh" : "simt.h", &b);
  add_file(lm_cuda_prelude, "approx.cuh", &b);
  add_file(lm_cuda_prelude, "team.cuh", &b);
  add_file(lm_cuda_prelude, "vector.cuh", &b);
  add_file(lm_cuda_prelude, "transpose.cuh", &b);
  if (device)
    add_file(lm_cuda_prelude, "mma.cuh", &b);
  if (device)
    add_file(lm_cuda_prelude, "bulk.cuh", &b);
  if (device)
    add_file(lm_cuda_prelude, "wgmma.cuh", &b);
  add_file(lm_cuda_prelude, "tile.cuh", &b);
  add_file(lm_cuda_prelude, "gemm.cuh", &b);
  add_file(lm_cuda_prelude, "route.cuh", &b);
  add_file(lm_cuda_prelude, "group.cuh", &b);
  const char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

const char *lm_cuda_prelude_text(lm_arena *arena) {
  return prelude(arena, true);
}
const char *lm_cuda_prelude_simt_text(lm_arena *arena) {
  return prelude(arena, false);
}

// Sets the dynamic shared memory of a block: its maximum less one KB for declared arrays and one KB
// that the system takes.
static void choices_set(lm_target *t) {
  t->choices.points = 1024;
  t->choices.chunks = 256;
  t->choices.rows = 4096;
  t->choices.logits = t->memory / LOGITS;
  t->choices.launch = lm_target_bandwidth(t) > 0 ? (int64_t)lm_cost_launch_bytes(t) : LAUNCH;
  t->choices.pads_gemms = true;
  t->choices.attend_tile = 32;
  t->choices.attends_one = true;
}

static bool reads_strided(const lm_op *kernel, uint32_t i) {
  return cuda_attend_reads_strided(kernel, i) || cuda_mix_reads_strided(kernel, i) ||
         cuda_chain_reads_strided(kernel, i) || cuda_states_reads_strided(kernel, i);
}

const lm_codegen lm_cuda_codegen = {.choose = choices_set,
                                    .prelude = lm_cuda_prelude_text,
                                    .kernel = cuda_kernel_emit,
                                    .in_place = cuda_kernel_in_place,
                                    .gemm_is_profitable = lm_cuda_gemm_is_profitable,
                                    .gemm = lm_cuda_gemm_emit,
                                    .gemm_of = lm_cuda_gemm_of_emit,
                                    .omits = cuda_scan_omits,
                                    .reads_strided = reads_strided,
                                    .writes_strided = cuda_writes_strided,
                                    .adds = cuda_scatter_adds,
                                    .attends = cuda_attends,
                                    .attend_delta = true,
                                    .attend_chunks = cuda_attend_chunks,
                                    .batches_apart = true,
                                    .multiplies = cuda_gemm_is_supported,
                                    .mixes = cuda_mix_is_supported,
                                    .mixes_sizes = cuda_mix_sizes,
                                    .chains = cuda_chain_is_supported,
                                    .scan_multiplies = cuda_states_is_supported,
                                    .epilogue = lm_cuda_epilogue_is_supported,
                                    .scales = lm_cuda_scales,
                                    .may_merge = cuda_may_merge,
                                    .merge = cuda_merge,
                                    .joins = cuda_joins,
                                    .join = cuda_join};

lm_plan_options lm_cuda_options(const char *arch, bool tf32) {
  lm_plan_options o = {
      .target = lm_target_any(LM_TARGET_CUDA), .codegen = &lm_cuda_codegen, .tf32 = tf32};
  if (arch && !lm_target_known(arch, &o.target))
    LM_BUG("no machine of architecture %s is known", arch);
  choices_set(&o.target);
  return o;
}
