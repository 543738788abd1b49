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
//
// GEMMs that read one activation are judged together. Those without codes are merged (pass
// fuse_gemms), and each other one has its own gradient of the activation, which is read to be
// added.
#include <math.h>

#include "compiler/ops/fp8.h"
#include "compiler/ops/interface.h"
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

static lm_dtype type_of(const lm_fp8_gemm *g) {
  return (lm_dtype)g->dot->in[g->weight]->type.dtype;
}

// The codes of the activation, for all GEMMs that read them.
static double activation_seconds(const lm_fp8 *o, const lm_fp8_gemm *g) {
  double element = lm_dtype_bytes(type_of(g)), n = g->m * g->k;
  double rounded = o->forward == LM_E5M2 ? kernel_seconds(o, n * (1 + element)) : 0;
  return codes_seconds(o, n, element) + rounded;
}

// True if the result is added to another value: the GEMM does it, except one of codes, whose result
// a kernel reads again (pass epilogue).
static bool is_added(const lm_op *dot) {
  const lm_value *v = dot->out[0];
  for (const lm_op *op = dot->next; op; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++) {
      if (op->in[i] != v)
        continue;
      if (op->code == LM_OP_ADD)
        return true;
      if (lm_op_has(op, LM_T_VIEW))
        v = op->out[0];
    }
  return false;
}

// The GEMMs with codes, and those of the cotangent and of the weight.
static double cast_seconds(const lm_fp8 *o, const lm_fp8_gemm *g) {
  lm_dtype plain = type_of(g);
  double element = lm_dtype_bytes(plain), n = g->k * g->n;
  double added = is_added(g->dot) ? kernel_seconds(o, 2 * g->m * g->n * element) : 0;
  bool wide = o->forward == LM_E5M2;
  double w = weight_seconds(o, n) + (wide ? kernel_seconds(o, n * (1 + element)) : 0);
  return gemms_seconds(o, g, wide ? plain : LM_E4M3, LM_E4M3, element) +
         codes_seconds(o, g->m * g->n, element) + added + w / o->micro_batches;
}

// Those of the group that are not in the set, merged.
static double merged_seconds(const lm_fp8 *o, lm_fp8_gemm *const *of, int n, uint32_t cast) {
  lm_dtype plain = type_of(of[0]);
  lm_fp8_gemm all = *of[0];
  all.n = 0;
  for (int i = 0; i < n; i++)
    all.n += cast >> i & 1 ? 0 : of[i]->n;
  return all.n > 0 ? gemms_seconds(o, &all, plain, plain, lm_dtype_bytes(plain)) : 0;
}

static double group_seconds(const lm_fp8 *o, lm_fp8_gemm *const *of, int n, uint32_t cast) {
  uint32_t whole = (1u << n) - 1;
  double bytes = of[0]->m * of[0]->k * lm_dtype_bytes(type_of(of[0]));
  double read = kernel_seconds(o, bytes) - kernel_seconds(o, 0);
  double seconds = merged_seconds(o, of, n, cast) + (cast ? activation_seconds(o, of[0]) : 0);
  double gradients = cast != whole;
  for (int i = 0; i < n; i++) {
    seconds += cast >> i & 1 ? cast_seconds(o, of[i]) : 0;
    gradients += cast >> i & 1;
  }
  return seconds + (gradients - 1) * read;
}

// What the codes of a set must save.
static double margin_seconds(const lm_fp8 *o, lm_fp8_gemm *const *of, int n, uint32_t set) {
  uint32_t whole = (1u << n) - 1;
  return o->margin > 0 ? o->margin * merged_seconds(o, of, n, whole & ~set) : 0;
}

uint32_t lm_fp8_fastest(const lm_fp8 *o, lm_fp8_gemm *const *of, int n, uint32_t may) {
  uint32_t best = o->all ? may : 0;
  double least = group_seconds(o, of, n, best);
  for (uint32_t set = 0; !o->all && set <= may; set++) {
    double seconds = set & ~may ? least : group_seconds(o, of, n, set);
    seconds += margin_seconds(o, of, n, set);
    if (seconds < least) {
      least = seconds;
      best = set;
    }
  }
  for (int i = 0; i < n; i++) {
    uint32_t with = best | 1u << i, without = best & ~(1u << i);
    of[i]->plain = merged_seconds(o, of, n, without) - merged_seconds(o, of, n, with);
    of[i]->codes = of[i]->plain + group_seconds(o, of, n, with) - group_seconds(o, of, n, without);
  }
  return best;
}
