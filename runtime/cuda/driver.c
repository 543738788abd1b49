// driver.c - see driver.h.
#include "runtime/cuda/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/compile.h"
#include "runtime/cuda/library.h"

static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/driver_syms.def"
#undef SYM
};

lm_status lm_cuda_check(const lm_cuda_driver *d, int result, const char *fmt, ...) {
  if (!result)
    return NULL;
  const char *name = NULL, *text = NULL;
  d->cuGetErrorName(result, &name);
  d->cuGetErrorString(result, &text);
  lm_buf what = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&what, fmt, ap);
  va_end(ap);
  lm_status s =
      lm_fail(LM_ENV, "%s: %s (%s)", what.p, text ? text : "an unknown error", name ? name : "?");
  lm_buf_free(&what);
  return s;
}

lm_status lm_cuda_kernel_launch(const lm_cuda_driver *d, void *stream, void *function,
                                const lm_cuda_launch *l, void **params) {
  lm_cu_attribute early = {
      .id = LM_CU_LAUNCH_EARLY,
      .value = 1,
  };
  lm_cu_launch launch = {
      .blocks = {l->blocks, 1, 1},
      .threads = {l->threads, 1, 1},
      .shared = l->shared,
      .stream = stream,
      .attributes = &early,
      .n_attributes = l->early,
  };
  return lm_cuda_check(d, d->cuLaunchKernelEx(&launch, function, params, NULL), "launch");
}

static lm_status driver_open(lm_cuda_driver *out) {
  static const char *const files[] = {"libcuda.so.1", NULL};
  LM_TRY(lm_library_open("the NVIDIA driver", files, &out->library));
  LM_TRY(lm_library_resolve(out->library, "the NVIDIA driver", names, LM_COUNT(names),
                            out->functions));
  return lm_cuda_check(out, out->cuInit(0), "the NVIDIA driver does not start");
}

// flops, lanes: per multiprocessor and cycle; shared: KB that a block can have. Code runs on later
// minor versions of its major version, but that of an architecture with the suffix `a` on no other.
static const struct {
  int major, minor;
  const char *arch;
  int flops, lanes, shared;
} generations[] = {{8, 0, "sm_80", 2048, 64, 163},    {8, 6, "sm_80", 1024, 128, 99},
                   {8, 7, "sm_80", 1024, 128, 163},   {8, 9, "sm_89", 1024, 128, 99},
                   {9, 0, "sm_90a", 4096, 128, 227},  {10, 0, "sm_100a", 8192, 128, 227},
                   {10, 3, "sm_103", 8192, 128, 227}, {12, 0, "sm_120", 1024, 128, 99},
                   {12, 1, "sm_120", 1024, 128, 99}};

lm_status lm_cuda_device_check(const lm_cuda_device *x) {
  lm_buf known = {0};
  if (*x->target.arch)
    return NULL;
  for (size_t i = 0; i < LM_COUNT(generations); i++)
    lm_buf_printf(&known, "%s%d.%d", i ? ", " : "", generations[i].major, generations[i].minor);
  lm_status s = lm_fail(LM_ENV, "%s has compute capability %d.%d; there is code for %s", x->name,
                        x->major, x->minor, known.p);
  lm_buf_free(&known);
  return s;
}

// A GPU that target/known.def does not have, from its clocks.
static lm_target target_guess(const lm_cuda_device *x, double hertz, double bandwidth) {
  lm_target t = lm_target_any(LM_TARGET_CUDA);
  for (size_t i = 0; i < LM_COUNT(generations); i++) {
    if (generations[i].major != x->major || generations[i].minor != x->minor)
      continue;
    snprintf(t.arch, sizeof t.arch, "%s", generations[i].arch);
    t.warpgroups = generations[i].major == 9;
    t.shared = generations[i].shared << 10;
    t.math[LM_BF16].peak = generations[i].flops * hertz * x->target.units;
    t.math[LM_F16].peak = t.math[LM_BF16].peak;
    t.math[LM_F32].peak = t.math[LM_BF16].peak;
    lm_target_set_codes(&t);
    t.host = generations[i].major < 9 ? 32e9 : 64e9; // PCI Express 4.0 or 5.0
    // The cache is taken to be as fast as memory.
    lm_target_set_rates(&t, generations[i].lanes * hertz * x->target.units, bandwidth);
  }
  lm_target_set_bandwidth(&t, bandwidth);
  return t;
}

// The clocks that a driver reports are not those at which published peaks are reached.
static void target_find(lm_cuda_device *x, double hertz, double bandwidth, int64_t memory) {
  int units = x->target.units;
  if (!lm_target_known_device(x->name, &x->target))
    x->target = target_guess(x, hertz, bandwidth);
  snprintf(x->target.name, sizeof x->target.name, "cuda");
  snprintf(x->target.title, sizeof x->target.title, "%.*s", (int)sizeof x->target.title - 1,
           x->name);
  x->target.units = units;
  x->target.memory = memory;
  x->target.is_here = true;
}

static lm_status device_describe(const lm_cuda_driver *d, lm_cuda_device *x) {
  int kilohertz = 0, memory_kilohertz = 0, bits = 0, handle;
  size_t bytes = 0;
  LM_TRY(lm_cuda_check(d, d->cuDeviceGet(&handle, x->number), "the GPU cannot be used"));
  const struct {
    int attribute, *value;
  } wanted[] = {{LM_CU_MAJOR, &x->major},
                {LM_CU_MINOR, &x->minor},
                {LM_CU_MULTIPROCESSORS, &x->target.units},
                {LM_CU_CLOCK_RATE, &kilohertz},
                {LM_CU_MEMORY_CLOCK, &memory_kilohertz},
                {LM_CU_MEMORY_BITS, &bits}};
  LM_TRY(lm_cuda_check(d, d->cuDeviceGetName(x->name, sizeof x->name, handle), "the GPU's name"));
  LM_TRY(lm_cuda_check(d, d->cuDeviceTotalMem_v2(&bytes, handle), "the GPU's memory"));
  for (size_t i = 0; i < LM_COUNT(wanted); i++)
    LM_TRY(lm_cuda_check(d, d->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, handle),
                         "the GPU's properties"));
  LM_TRY(lm_cuda_check(d, d->cuDriverGetVersion(&x->driver), "the driver's version"));
  x->number = handle;
  double bandwidth = 2.0 * memory_kilohertz * 1e3 * bits / 8; // two transfers per cycle
  target_find(x, kilohertz * 1e3, bandwidth, (int64_t)bytes);
  return NULL;
}

// NCCL 2.30 can connect several ranks on one GPU, as tests on a machine with one GPU need.
static bool may_share(void) {
  const char *text = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text && !strcmp(text, "1");
}

lm_status lm_cuda_device_find(int number, lm_cuda_driver *out_driver, lm_cuda_device *out) {
  int n = 0;
  LM_TRY(driver_open(out_driver));
  LM_TRY(lm_cuda_check(out_driver, out_driver->cuDeviceGetCount(&n), "counting GPUs"));
  if (!n)
    return lm_fail(LM_ENV, "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it");
  if (may_share())
    number %= n;
  *out = (lm_cuda_device){.number = number};
  if (number >= n)
    return lm_fail(LM_ENV,
                   "each rank needs a GPU, and this is rank %d of its machine, which has "
                   "%d, or CUDA_VISIBLE_DEVICES hides others",
                   number, n);
  return device_describe(out_driver, out);
}
