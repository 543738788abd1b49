// driver.h - the state of the fake CUDA driver (fake.h). Private to driver.c, stream.c and
// module.c.
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H
#include <stdbool.h>

#include "runtime/cuda/driver.h"
#include "tests/cuda/fake/fake.h"

typedef unsigned long long address;
enum {
  INVALID = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  NOT_FOUND = 500,
  UNJOINED = 904,
  FAULT = 700,
  LAUNCH = 701,
  NOT_READY = 600,
  BLOCKS = 4096
};
#define TAG 0x7000000000000000ull // of addresses on the device

typedef struct block {
  char *at;
  size_t bytes;
} block;

typedef struct fake_state {
  block device[BLOCKS], pinned[BLOCKS];
  long device_bytes, pinned_bytes, device_peak, pinned_peak;
  int n_device, n_pinned, streams, recording, events, modules, graphs;
  bool started, none, eager, counts;
  int blind, unseen;    // streams; -1: none
  size_t sent;          // bytes copied from the device to the host
  long replays;         // launches of graphs
  long launches, early; // of kernels, without replays; those that may begin early
  int capability, version, devices;
  long alloc, launch, fault; // countdowns, 0: never
  long memory;               // bytes
  unsigned long seed;        // 0: no schedule at random
  int sticky;
} fake_state;
extern fake_state fake;

// ---- order.c

enum {
  FAKE_STREAMS = 16
};
// By stream: the number of its operations that come before.
typedef struct fake_clock {
  uint64_t at[FAKE_STREAMS];
} fake_clock;
void fake_clock_join(fake_clock *a, const fake_clock *b);
// An operation of the stream runs, at this time.
void fake_order_set(int stream, const fake_clock *clock);
// The running operation is a copy between host and device, a launch, or touches bytes of the device
// otherwise. A race with a copy is reported.
FAKE_API void fake_order_copy(const char *to, const char *from, size_t bytes);
void fake_order_launch(void);
FAKE_API void fake_order_touch(const char *at, size_t bytes, bool write, const char *name);
void fake_order_print(void);

// ---- driver.c

void fake_complain(const char *what, const char *name); // ends the process
bool fake_is_pinned(const void *p);
void fake_pinned_check(const void *p, size_t bytes); // the bytes are in one block, if p is pinned
FAKE_API char *fake_memory(address a, size_t bytes, const char *what);
FAKE_API int fake_enqueue(void *handle, void (*fn)(void *args), const void *args, size_t bytes);
// The stream is recorded, and its last operation in the recording, if any, does not call fn.
bool fake_records_behind_other(void *handle, void (*fn)(void *args));
#endif
