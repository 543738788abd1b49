// fake.h - fakes on a host of the parts of NVIDIA's libraries that lmc uses: libcuda.so.1,
// libnvrtc.so.13, libcublasLt.so.13 and libnccl.so.2, for tests of the runtime on machines without
// a GPU:
//
//   LD_LIBRARY_PATH=build/fake lmc run ... --target cuda
//
// Behaviour that the hardware leaves undefined is implemented in the most harmful way:
//
//   memory      is not zeroed; a device address is not a host address; copies and pointers of
//               kernels must be inside allocations; leaks at the end of the process are reported
//   streams     do nothing before a wait, so that a premature read sees old data, and a premature
//               write to pinned memory changes the copied bytes; copies between host and device,
//               and messages of NCCL, that events do not order with other accesses of their bytes
//               are reported, recorded launches that may begin early behind anything but a kernel,
//               and events of a recording that are waited for or queried outside of it
//   NCCL        operations that are outside of a recording of another stream, that one rank alone
//               records, or in another graph than the other; operations of several communicators
//               that nothing orders, unless NCCL does (2.26, NCCL_LAUNCH_ORDER_IMPLICIT);
//               communicators that are closed before graphs with their operations, or aborted while
//               another one is open, for which ncclCommAbort would wait
//   kernels     run under the SIMT shim, which reports races, in global memory too, and accesses
//               out of bounds
//   GEMMs       run as loops, after all checks of the library
//
// Errors are reported on standard error, and the process ends with status 99.
//
// FAKE_CUDA in the environment, words separated by commas: none (no GPU), cc=80 (compute
// capability), alloc=N, launch=N (the N-th allocation or launch fails), fault=N (the N-th kernel
// faults; from then on everything fails), devices=N (the number of GPUs), memory=BYTES (8 GiB by
// default), driver=12040 (the CUDA version of the driver), plain (cuBLASLt has no algorithm for a
// GEMM with an epilogue), refuse (nor for one of bf16), eager (every stream but the first executes
// at once), seed=N (operations of all streams execute at random times, as early as with `eager` or
// later), counts (at the end are printed: the bytes that were copied to the host, the most bytes
// that were allocated, the launches of graphs, the launches of kernels that may begin early, and
// the copies and messages of each stream, with the number of those that are concurrent to kernels),
// blind=N (stream N, by the order in which they were created, waits for no event), unseen=N (no
// stream waits for its events), untiled (cuBLASLt reads scales of blocks row by row, a planted
// fault), old (NVRTC makes no code for sm_100a), serialized (NVRTC reports that it serialized the
// GEMMs of attention)
#ifndef FAKE_H
#define FAKE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default"), used))

// An image that the fake NVRTC makes is this header, then a shared object. It exports for each
// kernel NAME:
//   const fake_param fake_params_NAME[], ended by bytes = 0; const int fake_threads_NAME;
//   void fake_call_NAME(void **params)
typedef struct fake_image {
  char magic[8];
  uint64_t bytes;
} fake_image;
#define FAKE_MAGIC "FAKECUBN"
typedef struct fake_param {
  uint64_t bytes;
  int pointer;
  const char *name;
} fake_param;

// Functions of the fake driver for the other fakes. The host address of bytes on the device.
typedef char *fake_memory_fn(unsigned long long address, size_t bytes, const char *what);
// The running operation is a copy, or one end of a message; NULL: the other end.
typedef void fake_copy_fn(const char *to, const char *from, size_t bytes);
// The running operation touches these bytes, by their host address.
typedef void fake_touch_fn(const char *at, size_t bytes, bool write, const char *name);
// Calls `fn` with a copy of the arguments when the stream reaches it. Returns a CUresult.
typedef int fake_enqueue_fn(void *stream, void (*fn)(void *args), const void *args, size_t bytes);
// The same for an operation that other processes take part in: `fn` returns true when it is
// complete, and is called again until then. hold: called when a graph has recorded the operation,
// and when all handles of the graph are destroyed.
typedef int fake_enqueue_try_fn(void *stream, bool (*fn)(void *args),
                                void (*hold)(void *args, bool holds), const void *args,
                                size_t bytes);
// The number of streams that record a graph.
typedef int fake_recording_fn(void);
// A number of the recording in which the stream is; 0: in none.
typedef long fake_records_fn(void *stream);
// The running operation may be concurrent to those of the same owner alone.
typedef void fake_order_exclusive_fn(uint64_t owner);
#endif
