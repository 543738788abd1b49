// fp8_time.c - the time that the cost model predicts for the GEMMs of a weight on a GPU, of codes
// and without: y = x w, dx = dy w and dw = x dy.
//
// Codes cost kernels besides: one that writes the codes of an operand, one that writes their copy
// with the other order of axes, where the library needs it, and two short ones for the magnitude,
// which the kernel that computes the operand begins. Those of an activation are shared by the GEMMs
// that read it; those of a weight run once per update. With scales of blocks an operand is rounded
// for each of the two GEMMs that read it, by kernels that find the magnitudes themselves, and
// further ones write the scales in the library's layout; the blocks of a weight may be those of
// both GEMMs.
//
// A GEMM of e5m2 with e5m2 is one of the rounded numbers, which other kernels write.
#include <math.h>

#include "compiler/ops/fp8.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/plan/cost.h"

enum {
  SHORT_KERNELS = 2,
  VECTOR = 16 // bytes to which rows are aligned
};

static double gemm_seconds(const lm_fp8 *o, double m, double n, double k, lm_dtype ab,
                           double result) {
  double bytes = lm_dtype_bytes(ab) * k * (m + n) + result * m * n;
  lm_cost_gemm g = {
      .m = m,
      .n = n,
      .k = k,
      .batch = 1,
      .ab = ab,
      .bytes = bytes,
      .alignment = VECTOR,
  };
  return lm_cost_of_gemm(&o->target, &g).seconds + o->target.rates.gap;
}

// dw is added to f32. forward: of the operands of the result.
static double gemms_seconds(const lm_fp8 *o, const lm_fp8_gemm *g, lm_dtype forward, lm_dtype ab,
                            double y) {
  return gemm_seconds(o, g->m, g->n, g->k, forward, y) + gemm_seconds(o, g->m, g->k, g->n, ab, y) +
         gemm_seconds(o, g->k, g->n, g->m, ab, 2 * sizeof(float));
}

static double kernel_seconds(const lm_fp8 *o, double bytes) {
  lm_cost_kernel k = {
      .bytes = bytes,
      .cold = 0,
  };
  return lm_cost_of_kernel(&o->target, &k).seconds + o->target.rates.gap;
}

// The codes of n elements of `bytes` each, in blocks, and the scales.
static double blocks_seconds(const lm_fp8 *o, double n, double bytes) {
  double scales = n / (double)lm_fp8_block(o->scaling);
  return kernel_seconds(o, n * (bytes + 1) + scales * sizeof(float)) +
         kernel_seconds(o, scales * (sizeof(float) + 1));
}

// The codes of n elements of `bytes` each, and their copy, or those in blocks along another axis.
static double codes_seconds(const lm_fp8 *o, double n, double bytes) {
  double copy = kernel_seconds(o, 2 * n);
  if (lm_fp8_block(o->scaling))
    return 2 * blocks_seconds(o, n, bytes) + (o->target.codes_by_k ? copy : 0);
  int writes = o->target.codes_by_k ? 2 : 1;
  return writes * kernel_seconds(o, n * (bytes + 1)) + SHORT_KERNELS * kernel_seconds(o, 0);
}

static double weight_seconds(const lm_fp8 *o, double n) {
  double bytes = sizeof(float);
  if (o->scaling == LM_FP8_BLOCKS)
    return blocks_seconds(o, n, bytes) + kernel_seconds(o, n * bytes) + kernel_seconds(o, 2 * n);
  double magnitude = o->scaling == LM_FP8_MX ? 0 : kernel_seconds(o, n * bytes);
  return codes_seconds(o, n, bytes) + magnitude;
}

void lm_fp8_predict(const lm_fp8 *o, lm_fp8_gemm *g, double readers) {
  lm_dtype plain = (lm_dtype)g->dot->in[g->weight]->type.dtype;
  double element = lm_dtype_bytes(plain);
  double x = codes_seconds(o, g->m * g->k, element) / readers;
  double dy = codes_seconds(o, g->m * g->n, element);
  double w = weight_seconds(o, g->k * g->n);
  bool wide = o->forward == LM_E5M2;
  if (wide) {
    x += kernel_seconds(o, g->m * g->k * (1 + element)) / readers;
    w += kernel_seconds(o, g->k * g->n * (1 + element));
  }
  g->plain = gemms_seconds(o, g, plain, plain, element);
  g->codes = gemms_seconds(o, g, wide ? plain : LM_E4M3, LM_E4M3, element);
  g->codes += x + dy + w / o->micro_batches;
}
