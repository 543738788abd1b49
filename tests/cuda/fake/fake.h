// fake.h - NVIDIA's libraries as far as lmc uses them, on a host: libcuda.so.1, libnvrtc.so.13,
// libcublasLt.so.13 for tests of the runtime on machines without a GPU. LD_LIBRARY_PATH=build/fake
// lmc run … --target cuda
//
// What the hardware leaves to chance is done in the way that hurts most:
//   memory      not allocated with zeros; an address on the device is none on the host; copies and
//   kernels' pointers must lie
//               in what was allocated; what is left at the end of the process is reported
//   streams     nothing happens before someone waits, so that what is read too early is old, and
//   pinned memory that is
//               written to too early changes what is copied
//   kernels     run under the SIMT shim, which reports races and accesses out of bounds
//   products    by loops, after checking everything that the library would
// What is wrong is said on standard error, and the process ends with status 99.
//
// FAKE_CUDA in the environment, words parted by commas: none (no GPU), cc=80 (compute capability),
// alloc=N, launch=N (the N-th allocation or launch fails), fault=N (the N-th kernel to run faults;
// from then on everything fails), driver=12040 (the CUDA that the driver knows), plain (cuBLASLt
// has no algorithm for a product with an epilogue), eager (every stream but the first does what it
// may at once)
#ifndef FAKE_H
#define FAKE_H
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default"), used))

// An image that the fake NVRTC makes is this, then a shared object. For each kernel NAME it has
//   const fake_param fake_params_NAME[], bytes 0 at the end; const int fake_threads_NAME; void
//   fake_call_NAME(void **params)
typedef struct fake_image {
  char magic[8];
  uint64_t bytes;
} fake_image;
#define FAKE_MAGIC "FAKECUBN"
typedef struct fake_param {
  uint64_t bytes;
  int pointer;
} fake_param;

// Of the fake driver, for the fake cuBLASLt. The host's address of bytes on the device.
typedef char *fake_memory_fn(unsigned long long address, size_t bytes, const char *what);
// `fn` is called with a copy of the arguments when it is the stream's turn. A CUresult.
typedef int fake_enqueue_fn(void *stream, void (*fn)(void *args), const void *args, size_t bytes);
typedef int fake_recording_fn(void); // streams that record a graph
#endif
