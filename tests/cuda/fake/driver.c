// driver.c - the fake CUDA driver: the device, its memory, errors; see fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fake_state fake;

void fake_complain(const char *what, const char *name) {
  fprintf(stderr, "fake CUDA: %s: %s\n", name, what);
  _exit(99);
}

static long word(const char *text, const char *key) {
  const char *at = text ? strstr(text, key) : NULL;
  return at ? atol(at + strlen(key)) : 0;
}

static void at_end(void) {
  if (fake.counts) {
    fprintf(stderr, "%zu bytes were copied from the device\n", fake.sent);
    fprintf(stderr, "%ld bytes of the device, %ld of pinned memory\n", fake.device_peak,
            fake.pinned_peak);
    fprintf(stderr, "%ld graphs were launched\n", fake.replays);
    fprintf(stderr, "%ld of %ld kernels may begin early\n", fake.early, fake.launches);
    fake_order_print();
  }
  if (fake.n_device || fake.n_pinned || fake.streams || fake.events || fake.modules || fake.graphs)
    fprintf(stderr,
            "fake CUDA: left behind: %d blocks, %d pinned, %d streams, %d events, %d modules, %d "
            "graphs\n",
            fake.n_device, fake.n_pinned, fake.streams, fake.events, fake.modules, fake.graphs);
}

// ---- memory

static block *block_find(block *blocks, int n, const char *at) {
  for (int i = 0; i < n; i++)
    if (at >= blocks[i].at && at < blocks[i].at + blocks[i].bytes)
      return &blocks[i];
  return NULL;
}

FAKE_API char *fake_memory(address a, size_t bytes, const char *what) {
  char *at = (char *)(uintptr_t)(a ^ TAG);
  block *b = a >> 60 == TAG >> 60 ? block_find(fake.device, fake.n_device, at) : NULL;
  if (!b)
    fake_complain("an address that is not on the device", what);
  if (at + bytes > b->at + b->bytes)
    fake_complain("exceeds the allocation", what);
  return at;
}

static long memory_left(void) {
  return fake.memory - fake.device_bytes;
}

static void bytes_add(long bytes, long *now, long *peak) {
  *now += bytes;
  *peak = *now > *peak ? *now : *peak;
}

FAKE_API int cuMemAlloc_v2(address *out, size_t bytes) {
  if (fake.sticky)
    return fake.sticky;
  if (!bytes)
    return INVALID;
  if ((fake.alloc && !--fake.alloc) || (long)bytes > memory_left())
    return OUT_OF_MEMORY;
  if (fake.n_device == BLOCKS)
    fake_complain("too many blocks", "cuMemAlloc");
  char *at = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(at, 0xff, bytes);
  fake.device[fake.n_device++] = (block){at, bytes};
  bytes_add((long)bytes, &fake.device_bytes, &fake.device_peak);
  *out = (address)(uintptr_t)at ^ TAG;
  return 0;
}

FAKE_API int cuMemFree_v2(address a) {
  block *b = block_find(fake.device, fake.n_device, (char *)(uintptr_t)(a ^ TAG));
  if (!b || (address)(uintptr_t)b->at != (a ^ TAG))
    fake_complain("no such block", "cuMemFree");
  free(b->at);
  fake.device_bytes -= (long)b->bytes;
  *b = fake.device[--fake.n_device];
  return 0;
}

FAKE_API int cuMemGetInfo_v2(size_t *left, size_t *total) {
  *total = (size_t)fake.memory;
  *left = (size_t)memory_left();
  return fake.sticky;
}

FAKE_API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  if (fake.sticky)
    return fake.sticky;
  *out = malloc(bytes);
  memset(*out, 0xff, bytes);
  fake.pinned[fake.n_pinned++] = (block){*out, bytes};
  bytes_add((long)bytes, &fake.pinned_bytes, &fake.pinned_peak);
  return 0;
}

FAKE_API int cuMemFreeHost(void *p) {
  block *b = block_find(fake.pinned, fake.n_pinned, p);
  if (!b || b->at != p)
    fake_complain("no such block", "cuMemFreeHost");
  free(p);
  fake.pinned_bytes -= (long)b->bytes;
  *b = fake.pinned[--fake.n_pinned];
  return 0;
}

bool fake_is_pinned(const void *p) {
  return block_find(fake.pinned, fake.n_pinned, p) != NULL;
}

void fake_pinned_check(const void *p, size_t bytes) {
  block *b = block_find(fake.pinned, fake.n_pinned, p);
  if (b && (const char *)p + bytes > b->at + b->bytes)
    fake_complain("goes beyond pinned memory", "a copy");
}

// ---- the device

// Kernels find the shim's functions in this library, which its user has loaded with local
// visibility.
FAKE_API int cuInit(unsigned flags) {
  Dl_info me;
  const char *text = getenv("FAKE_CUDA");
  if (fake.started)
    return 0;
  fake.started = true;
  fake.none = text && strstr(text, "none");
  fake.capability = (int)word(text, "cc=");
  fake.alloc = word(text, "alloc=");
  fake.launch = word(text, "launch=");
  fake.memory = word(text, "memory=");
  fake.seed = (unsigned long)word(text, "seed=");
  fake.fault = word(text, "fault=");
  fake.eager = text && strstr(text, "eager");
  fake.blind = text && strstr(text, "blind=") ? (int)word(text, "blind=") : -1;
  fake.unseen = text && strstr(text, "unseen=") ? (int)word(text, "unseen=") : -1;
  fake.counts = text && strstr(text, "counts");
  fake.version = (int)word(text, "driver=");
  fake.devices = (int)word(text, "devices=");
  if (!fake.capability)
    fake.capability = 90;
  if (!fake.version)
    fake.version = 13000;
  if (!fake.devices)
    fake.devices = !fake.none;
  if (!fake.memory)
    fake.memory = 8l << 30;
  if (!dladdr((void *)cuInit, &me) || !dlopen(me.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
    fake_complain("cannot be loaded again", "libcuda");
  atexit(at_end);
  return 0;
}

FAKE_API int cuDriverGetVersion(int *version) {
  *version = fake.version;
  return 0;
}
FAKE_API int cuDeviceGetCount(int *n) {
  *n = fake.devices;
  return 0;
}
FAKE_API int cuDeviceGet(int *device, int number) {
  *device = number;
  return number < fake.devices ? 0 : NO_DEVICE;
}
FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = (size_t)fake.memory;
  return 0;
}
FAKE_API int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &fake;
  return 0;
}
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device) {
  return 0;
}
FAKE_API int cuCtxSetCurrent(void *context) {
  return 0;
}

FAKE_API int cuDeviceGetName(char *name, int bytes, int device) {
  snprintf(name, (size_t)bytes, "Fake GPU");
  return 0;
}

FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75   ? fake.capability / 10
           : attribute == 76 ? fake.capability % 10
           : attribute == 16 ? 4
           : attribute == 13 ? 1000000
           : attribute == 36 ? 1000000
           : attribute == 37 ? 512
                             : 0;
  return 0;
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "a recording left out operations of a stream for which nothing waits"},
    {FAULT, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}};

FAKE_API int cuGetErrorName(int code, const char **out) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) {
      *out = errors[i].name;
      return 0;
    }
  return INVALID;
}

FAKE_API int cuGetErrorString(int code, const char **out) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) {
      *out = errors[i].text;
      return 0;
    }
  return INVALID;
}
