// driver.h - the CUDA driver and the GPU that this process uses: the first that
// CUDA_VISIBLE_DEVICES leaves.
#ifndef LM_CUDA_DRIVER_H
#define LM_CUDA_DRIVER_H
#include "runtime/base/base.h"

// Numbers of NVIDIA's cuda.h; tests/cuda/headers_test.c compares them where the toolkit is
// installed.
enum {
  LM_CU_OUT_OF_MEMORY = 2,
  LM_CU_CLOCK_RATE = 13,
  LM_CU_MULTIPROCESSORS = 16,
  LM_CU_MEMORY_CLOCK = 36,
  LM_CU_MEMORY_BITS = 37,
  LM_CU_MAJOR = 75,
  LM_CU_MINOR = 76,         // attributes of devices
  LM_CU_DYNAMIC_SHARED = 8, // of functions: the most bytes of it
  LM_CU_STREAM_NON_BLOCKING = 1,
  LM_CU_EVENT_NO_TIMES = 2,
  LM_CU_CAPTURE_RELAXED = 2,
  LM_CU_MAP_BF16 = 9,
  LM_CU_MAP_SWIZZLE_128 = 3,
  LM_CU_MAP_PROMOTE_128 = 2,
};

typedef struct lm_cuda_driver {
  void *library;
  union {
    struct {
#define SYM(result, name, parameters) result(*name) parameters;
#include "runtime/cuda/driver_syms.def"
#undef SYM
    };
    void *functions[1];
  };
} lm_cuda_driver;

typedef struct lm_cuda_device {
  int number;
  char name[128];   // "NVIDIA H100 80GB HBM3"
  int major, minor; // compute capability
  const char *arch; // of lm_cuda_archs, whose code runs here; NULL: none does
  int64_t memory;   // bytes
  int multiprocessors;
  double peak_flops; // multiplications and additions of bf16 products a second; 0 if not known
  double bandwidth;  // bytes a second
  int driver;        // version of CUDA that the driver knows: 13000
} lm_cuda_device;

// LM_ENV without a driver or a GPU. The driver stays loaded for the process.
lm_status lm_cuda_device_find(lm_cuda_driver *out_driver, lm_cuda_device *out);
// NULL for 0; else LM_ENV: what was being done, then the driver's words for `result`.
lm_status lm_cuda_check(const lm_cuda_driver *d, int result, const char *fmt, ...) LM_PRINTF(3, 4);
#endif
