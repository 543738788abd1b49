// driver.h - the CUDA driver and the GPU that this process uses.
#ifndef LM_CUDA_DRIVER_H
#define LM_CUDA_DRIVER_H
#include "runtime/base/base.h"
#include "target/target.h"

// Constants of NVIDIA's cuda.h; tests/cuda/headers_test.c compares them with the header if the
// toolkit is installed.
enum {
  LM_CU_OUT_OF_MEMORY = 2,
  LM_CU_NOT_READY = 600,
  LM_CU_CLOCK_RATE = 13,
  LM_CU_MULTIPROCESSORS = 16,
  LM_CU_MEMORY_CLOCK = 36,
  LM_CU_MEMORY_BITS = 37,
  LM_CU_MAJOR = 75,
  LM_CU_MINOR = 76,         // the last of the device attributes
  LM_CU_DYNAMIC_SHARED = 8, // function attribute: maximum bytes of dynamic shared memory
  LM_CU_STREAM_NON_BLOCKING = 1,
  LM_CU_EVENT_NO_TIMES = 2,
  LM_CU_CAPTURE_RELAXED = 2,
  LM_CU_MAP_BF16 = 9,
  LM_CU_MAP_SWIZZLE_128 = 3,
  LM_CU_MAP_PROMOTE_128 = 2,
  LM_CU_LAUNCH_EARLY = 6, // launch attribute: programmatic stream serialization
};

// An attribute of a launch, and the arguments of cuLaunchKernelEx.
typedef struct lm_cu_attribute {
  int id, spare, value, rest[15];
} lm_cu_attribute;
typedef struct lm_cu_launch {
  unsigned blocks[3], threads[3], shared;
  void *stream;
  lm_cu_attribute *attributes;
  unsigned n_attributes;
} lm_cu_launch;

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
  int driver;       // CUDA version that the driver supports: 13000
  lm_target target; // arch "": unsupported
} lm_cuda_device;

// number: of the GPU, from 0, among those in CUDA_VISIBLE_DEVICES; with
// NCCL_MULTI_RANK_GPU_ENABLE=1 those behind the last one share GPUs. LM_ENV if there is no driver
// or no such GPU. The driver stays loaded until the process ends.
lm_status lm_cuda_device_find(int number, lm_cuda_driver *out_driver, lm_cuda_device *out);
// LM_ENV if there is no code for the GPU.
lm_status lm_cuda_device_check(const lm_cuda_device *x);
// NULL for result 0; else LM_ENV with the formatted text and the driver's message for `result`.
lm_status lm_cuda_check(const lm_cuda_driver *d, int result, const char *fmt, ...) LM_PRINTF(3, 4);
// Launches a kernel on the stream. early: it may begin before the kernel in front of it has ended;
// nothing but a kernel may be in front.
typedef struct lm_cuda_launch {
  unsigned blocks, threads, shared;
  bool early;
} lm_cuda_launch;
lm_status lm_cuda_kernel_launch(const lm_cuda_driver *d, void *stream, void *function,
                                const lm_cuda_launch *l, void **params);
#endif
