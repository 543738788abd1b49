// driver.h - the state of the fake CUDA driver (fake.h). Private to driver.c, stream.c and
// module.c.
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H
#include <stdbool.h>

#include "tests/cuda/fake/fake.h"

typedef unsigned long long address;
enum {
  INVALID = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  NOT_FOUND = 500,
  FAULT = 700,
  LAUNCH = 701,
  NOT_READY = 600,
  CAPTURING = 900,
  BLOCKS = 4096
};
#define TAG 0x7000000000000000ull // of addresses on the device

typedef struct block {
  char *at;
  size_t bytes;
} block;

typedef struct fake_state {
  block device[BLOCKS], pinned[BLOCKS];
  int n_device, n_pinned, streams, recording, events, modules, graphs;
  bool started, none, eager, counts;
  size_t sent; // bytes copied from the device to the host
  int capability, version, devices;
  long alloc, launch, fault; // countdowns, 0: never
  long memory;               // bytes
  int sticky;
} fake_state;
extern fake_state fake;

void fake_complain(const char *what, const char *name); // ends the process
bool fake_is_pinned(const void *p);
void fake_pinned_check(const void *p, size_t bytes); // the bytes are in one block, if p is pinned
FAKE_API char *fake_memory(address a, size_t bytes, const char *what);
FAKE_API int fake_enqueue(void *handle, void (*fn)(void *args), const void *args, size_t bytes);
#endif
