// target.c - see target.h.
#include "target/target.h"

#include <stdio.h>
#include <string.h>

typedef struct gpu {
  const char *name, *title, *device, *arch;
  int multiprocessors;
  double gb, gb_per_s, l2_mb, l2_gb_per_s, shared_kb, host_gb_per_s, bf16, tf32, f32, f64;
} gpu;

static const gpu known[] = {
#define GPU(NAME, TITLE, DEVICE, ARCH, MULTIPROCESSORS, GB, GB_PER_S, L2_MB, L2_GB_PER_S,          \
            SHARED_KB, HOST_GB_PER_S, BF16, TF32, F32, F64)                                        \
  {NAME,     TITLE, DEVICE,      ARCH,      MULTIPROCESSORS, GB,                                   \
   GB_PER_S, L2_MB, L2_GB_PER_S, SHARED_KB, HOST_GB_PER_S,   BF16,                                 \
   TF32,     F32,   F64},
#include "target/known.def"
};

// In percent.
typedef struct rates {
  const char *arch;
  double memory, host, math, mma_sync, clock;
} rates;

static const rates reached[] = {
#define RATES(ARCH, BANDWIDTH, HOST, GEMM, MMA_SYNC, CLOCK)                                        \
  {ARCH, BANDWIDTH, HOST, GEMM, MMA_SYNC, CLOCK},
#include "target/rates.def"
};
enum {
  KNOWN = sizeof known / sizeof *known
};

void lm_target_set_bandwidth(lm_target *t, double bytes_per_second) {
  for (int i = 0; i < LM_TARGET_SIZES; i++)
    t->bandwidth[i] = bytes_per_second;
}

// A GPU runs kernels as a graph: a kernel that does nothing takes LAUNCH, the next one starts GAP
// later, and the host starts the next graph after CALL. A step of 1,041 launches in five graphs has
// 1.0 to 1.3 ms of such gaps on an H100.
static lm_target_rates rates_of(lm_target_kind kind) {
  static const double LAUNCH = 2.5e-6;
  static const double GAP = 0.85e-6;
  static const double CALL = 50e-6;
  // Of a CPU: threads that wake up and meet again; GEMMs of the library.
  static const double TEAM = 3e-6, LIBRARY = 0.85;
  if (kind == LM_TARGET_CUDA)
    return (lm_target_rates){.launch = LAUNCH,
                             .gap = GAP,
                             .call = CALL,
                             .memory = 1,
                             .host = 1,
                             .math = 1,
                             .mma_sync = 1};
  return (lm_target_rates){
      .launch = TEAM,
      .memory = 1,
      .math = LIBRARY,
  };
}

static bool is_narrow(lm_dtype t) {
  return lm_dtype_is_half(t) || lm_dtype_is_code(t);
}

static bool is_native(lm_dtype t, lm_target_kind kind) {
  return !lm_dtype_is_code(t) && (t != LM_BF16 || kind == LM_TARGET_CUDA);
}

lm_target lm_target_any(lm_target_kind kind) {
  lm_target t = {
      .kind = kind,
      .rates = rates_of(kind),
  };
  for (int i = 0; i < LM_DTYPES; i++)
    t.math[i] = (lm_target_math){.native = is_native((lm_dtype)i, kind),
                                 .accumulate = is_narrow((lm_dtype)i) ? LM_F32 : (lm_dtype)i};
  return t;
}

void lm_target_set_rates(lm_target *t, double lanes, double cache) {
  for (size_t i = 0; i < sizeof reached / sizeof *reached; i++) {
    const rates *r = &reached[i];
    if (strcmp(r->arch, t->arch))
      continue;
    t->rates.memory = r->memory / 100;
    t->rates.host = r->host / 100;
    t->rates.math = r->math / 100;
    t->rates.mma_sync = r->mma_sync / 100;
    lanes *= r->clock / 100;
  }
  t->rates.cache = cache;
  t->rates.lanes = lanes;
}

// What cuBLASLt's GEMMs of 8-bit floats are, as its manual states in "cublasLtMatmul()".
typedef struct codes_row {
  const char *arch;
  bool by_k, fast, mx, blocks;
} codes_row;

static const codes_row codes[] = {
    {"sm_89", .by_k = true, .fast = true},
    {"sm_90a", .by_k = true, .fast = true, .blocks = true},
    {"sm_100a", .mx = true},
    {"sm_103", .mx = true},
    {"sm_120", .by_k = true},
};

void lm_target_set_codes(lm_target *t) {
  bool native = false;
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    const codes_row *c = &codes[i];
    if (strcmp(c->arch, t->arch))
      continue;
    native = true;
    t->codes_by_k = c->by_k;
    t->codes_fast = c->fast;
    t->codes_mx = c->mx;
    t->codes_blocks = c->blocks;
  }
  for (int i = LM_E4M3; i <= LM_E5M2; i++) {
    t->math[i].native = native;
    t->math[i].peak = native ? 2 * t->math[LM_BF16].peak : 0;
  }
}

static lm_target target_of(const gpu *g) {
  lm_target t = lm_target_any(LM_TARGET_CUDA);
  snprintf(t.name, sizeof t.name, "%s", g->name);
  snprintf(t.title, sizeof t.title, "%s", g->title);
  snprintf(t.arch, sizeof t.arch, "%s", g->arch);
  t.units = g->multiprocessors;
  t.memory = (int64_t)(g->gb * 1e9);
  t.cache = (int64_t)(g->l2_mb * 1e6);
  t.shared = (int64_t)g->shared_kb << 10;
  t.warpgroups = !strcmp(g->arch, "sm_90a");
  t.math[LM_BF16].peak = 1e12 * g->bf16;
  t.math[LM_F16].peak = t.math[LM_BF16].peak;
  t.math[LM_F32].peak = 1e12 * g->f32;
  t.math[LM_F64].peak = 1e12 * g->f64;
  t.peak_tf32 = 1e12 * g->tf32;
  lm_target_set_codes(&t);
  t.host = 1e9 * g->host_gb_per_s;
  lm_target_set_bandwidth(&t, 1e9 * g->gb_per_s);
  // A lane is a multiply-add in f32, of two FLOPs, in each cycle.
  lm_target_set_rates(&t, 0.5e12 * g->f32, 1e9 * g->l2_gb_per_s);
  return t;
}

static bool found(const gpu *g, lm_target *out) {
  if (g)
    *out = target_of(g);
  return g != NULL;
}

bool lm_target_known(const char *name, lm_target *out) {
  const gpu *g = NULL;
  for (int i = KNOWN - 1; i >= 0; i--)
    if (!strcmp(known[i].arch, name) || !strcmp(known[i].name, name))
      g = &known[i];
  return found(g, out);
}

bool lm_target_known_device(const char *device, lm_target *out) {
  const gpu *g = NULL;
  for (int i = 0; i < KNOWN; i++)
    if (!strcmp(known[i].device, device))
      g = &known[i];
  return found(g, out);
}

const char *lm_target_name(int i) {
  return i < KNOWN ? known[i].name : NULL;
}

double lm_target_bandwidth_of(const lm_target *t, double bytes) {
  int i = 0;
  while (i + 1 < LM_TARGET_SIZES && bytes >= (double)((int64_t)LM_TARGET_MIN_BYTES << 2 * (i + 1)))
    i++;
  return t->bandwidth[i];
}

double lm_target_seconds(const lm_target *t, lm_dtype dtype, double flops, double bytes,
                         bool *out_memory) {
  double arithmetic = flops / t->math[dtype].peak;
  double memory = bytes / lm_target_bandwidth_of(t, bytes);
  if (out_memory)
    *out_memory = memory > arithmetic;
  return memory > arithmetic ? memory : arithmetic;
}
