// driver.c - the fake CUDA driver; see fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/fake.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/simt.h"

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
  BLOCKS = 4096,
  PARAMS = 256,
  SHARED_FREE = 48 << 10,
  GUARD = 4096
};
static const address TAG = 0x7000000000000000ull;

typedef struct block {
  char *at;
  size_t bytes;
} block;
typedef struct event {
  bool done;
  double time;
  struct stream *stream;
  long recorded, ran;
} event; // counts of records
// `number` is the number of the record.
typedef struct op {
  void (*fn)(void *args);
  void *args;
  event *record, *wait;
  long number;
} op;
typedef struct graph {
  op *ops;
  int n, cap, users;
} graph;
typedef struct stream {
  graph queue;
  int done;
  graph *capture;
  bool eager;
} stream;
// The file stays open, since the loader identifies libraries by their paths.
typedef struct module {
  void *library;
  int file;
} module;
typedef struct function {
  const fake_param *params;
  void (*call)(void **params);
  int threads, shared;
  char name[64];
} function;

static struct {
  block device[BLOCKS], pinned[BLOCKS];
  int n_device, n_pinned, streams, recording, events, modules, graphs;
  bool started, none, eager;
  int capability, version;
  long alloc, launch, fault; // countdowns, 0: never
  int sticky;
} fake;

static void complain(const char *what, const char *name) {
  fprintf(stderr, "fake CUDA: %s: %s\n", name, what);
  _exit(99);
}

static long word(const char *text, const char *key) {
  const char *at = text ? strstr(text, key) : NULL;
  return at ? atol(at + strlen(key)) : 0;
}

static void at_end(void) {
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
    complain("an address that is not on the device", what);
  if (at + bytes > b->at + b->bytes)
    complain("goes beyond what was allocated", what);
  return at;
}

FAKE_API int cuMemAlloc_v2(address *out, size_t bytes) {
  if (fake.sticky)
    return fake.sticky;
  if (!bytes)
    return INVALID;
  if (fake.alloc && !--fake.alloc)
    return OUT_OF_MEMORY;
  if (fake.n_device == BLOCKS)
    complain("too many blocks", "cuMemAlloc");
  char *at = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(at, 0xff, bytes);
  fake.device[fake.n_device++] = (block){at, bytes};
  *out = (address)(uintptr_t)at ^ TAG;
  return 0;
}

FAKE_API int cuMemFree_v2(address a) {
  block *b = block_find(fake.device, fake.n_device, (char *)(uintptr_t)(a ^ TAG));
  if (!b || (address)(uintptr_t)b->at != (a ^ TAG))
    complain("no such block", "cuMemFree");
  free(b->at);
  *b = fake.device[--fake.n_device];
  return 0;
}

FAKE_API int cuMemGetInfo_v2(size_t *left, size_t *total) {
  *total = (size_t)8 << 30;
  *left = *total;
  for (int i = 0; i < fake.n_device; i++)
    *left -= fake.device[i].bytes;
  return fake.sticky;
}

FAKE_API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  if (fake.sticky)
    return fake.sticky;
  *out = malloc(bytes);
  memset(*out, 0xff, bytes);
  fake.pinned[fake.n_pinned++] = (block){*out, bytes};
  return 0;
}

FAKE_API int cuMemFreeHost(void *p) {
  block *b = block_find(fake.pinned, fake.n_pinned, p);
  if (!b || b->at != p)
    complain("no such block", "cuMemFreeHost");
  free(p);
  *b = fake.pinned[--fake.n_pinned];
  return 0;
}

// ---- streams

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stream_run(stream *s, int to);

// Runs the operations that must come before: the other stream, up to the record that is waited for.
static void event_reach(event *e, long number) {
  stream *s = e->stream;
  while (e->ran < number && s->done < s->queue.n)
    stream_run(s, s->done + 1);
}

static void op_run(op *o) {
  if (o->wait)
    event_reach(o->wait, o->number);
  if (o->fn && !fake.sticky)
    o->fn(o->args);
  if (o->record) {
    o->record->ran = o->number;
    o->record->time = now();
  }
}

static void stream_run(stream *s, int to) {
  while (s->done < to)
    op_run(&s->queue.ops[s->done++]);
  if (s->done < s->queue.n)
    return;
  for (int i = 0; i < s->queue.n; i++)
    free(s->queue.ops[i].args);
  s->queue.n = s->done = 0;
}

static void op_push(graph *g, op o) {
  if (g->n == g->cap)
    g->ops = realloc(g->ops, (size_t)(g->cap = g->cap * 2 + 64) * sizeof *g->ops);
  g->ops[g->n++] = o;
}

// An eager stream executes an operation at once, after the operations that it must wait for: as
// early as allowed.
static void stream_push(stream *s, op o) {
  op_push(&s->queue, o);
  if (s->eager)
    stream_run(s, s->queue.n);
}

FAKE_API int fake_enqueue(void *handle, void (*fn)(void *args), const void *args, size_t bytes) {
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if (!s)
    complain("the default stream, which nobody waits for", "enqueue");
  op o = {.fn = fn, .args = malloc(bytes + 1)};
  memcpy(o.args, args, bytes);
  if (s->capture)
    op_push(s->capture, o);
  else
    stream_push(s, o);
  return 0;
}

FAKE_API int fake_recording(void) {
  return fake.recording;
}

FAKE_API int cuStreamCreate(void **out, unsigned flags) {
  if (fake.sticky)
    return fake.sticky;
  stream *s = *out = calloc(1, sizeof *s);
  s->eager = fake.eager && fake.streams;
  fake.streams++;
  return 0;
}

FAKE_API int cuStreamDestroy_v2(void *handle) {
  stream *s = handle;
  stream_run(s, s->queue.n);
  free(s->queue.ops);
  free(s);
  fake.streams--;
  return 0;
}

FAKE_API int cuStreamSynchronize(void *handle) {
  stream *s = handle;
  if (s->capture)
    return CAPTURING;
  stream_run(s, s->queue.n);
  return fake.sticky;
}

FAKE_API int cuEventCreate(void **out, unsigned flags) {
  *out = calloc(1, sizeof(event));
  fake.events++;
  return fake.sticky;
}

FAKE_API int cuEventDestroy_v2(void *e) {
  free(e);
  fake.events--;
  return 0;
}

FAKE_API int cuEventRecord(void *handle, void *stream_handle) {
  event *e = handle;
  stream *s = stream_handle;
  if (fake.sticky)
    return fake.sticky;
  if (s->capture)
    return CAPTURING;
  e->stream = s;
  stream_push(s, (op){.record = e, .number = ++e->recorded});
  return 0;
}

FAKE_API int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags) {
  event *e = event_handle;
  if (fake.sticky)
    return fake.sticky;
  if (e->recorded)
    stream_push(handle, (op){.wait = e, .number = e->recorded});
  return 0;
}

FAKE_API int cuEventSynchronize(void *handle) {
  event *e = handle;
  event_reach(e, e->recorded);
  return fake.sticky;
}

FAKE_API int cuEventElapsedTime(float *out, void *from, void *to) {
  event *a = from, *b = to;
  if (fake.sticky)
    return fake.sticky;
  if (a->ran != a->recorded || b->ran != b->recorded)
    return NOT_READY;
  *out = (float)(1e3 * (b->time - a->time));
  return 0;
}

// ---- graphs

FAKE_API int cuStreamBeginCapture_v2(void *handle, int mode) {
  stream *s = handle;
  if (fake.sticky)
    return fake.sticky;
  if (s->capture)
    return CAPTURING;
  s->capture = calloc(1, sizeof *s->capture);
  s->capture->users = 1;
  fake.recording++;
  fake.graphs++;
  return 0;
}

FAKE_API int cuStreamEndCapture(void *handle, void **out) {
  stream *s = handle;
  if (!s->capture)
    return CAPTURING;
  *out = s->capture;
  s->capture = NULL;
  fake.recording--;
  return fake.sticky;
}

FAKE_API int cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags) {
  graph *g = handle;
  if (fake.sticky)
    return fake.sticky;
  g->users++;
  *out = g;
  return 0;
}

FAKE_API int cuGraphDestroy(void *handle) {
  graph *g = handle;
  if (--g->users)
    return 0;
  for (int i = 0; i < g->n; i++)
    free(g->ops[i].args);
  free(g->ops);
  free(g);
  fake.graphs--;
  return 0;
}

FAKE_API int cuGraphExecDestroy(void *handle) {
  return cuGraphDestroy(handle);
}

static void graph_run(void *args) {
  graph *g = *(graph **)args;
  for (int i = 0; i < g->n; i++)
    op_run(&g->ops[i]);
}

FAKE_API int cuGraphLaunch(void *handle, void *s) {
  return fake_enqueue(s, graph_run, &handle, sizeof handle);
}

// ---- copies and fills

typedef struct copy {
  address to_device, from_device;
  char *to;
  const char *from;
  size_t bytes;
} copy;

static void copy_run(void *args) {
  const copy *c = args;
  char *to = c->to ? c->to : fake_memory(c->to_device, c->bytes, "a copy's destination");
  const char *from = c->from          ? c->from
                     : c->from_device ? fake_memory(c->from_device, c->bytes, "a copy's source")
                                      : (const char *)(c + 1);
  memmove(to, from, c->bytes);
}

static bool is_pinned(const void *p) {
  return block_find(fake.pinned, fake.n_pinned, p) != NULL;
}

static void pinned_check(const void *p, size_t bytes) {
  block *b = block_find(fake.pinned, fake.n_pinned, p);
  if (b && (const char *)p + bytes > b->at + b->bytes)
    complain("goes beyond pinned memory", "a copy");
}

// Pageable memory is read at once.
FAKE_API int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *handle) {
  stream *s = handle;
  fake_memory(to, bytes, "a copy to the device");
  pinned_check(from, bytes);
  if (is_pinned(from))
    return fake_enqueue(s, copy_run, &(copy){.to_device = to, .from = from, .bytes = bytes},
                        sizeof(copy));
  if (s->capture)
    complain("pageable memory while recording", "a copy");
  copy *c = malloc(sizeof *c + bytes);
  *c = (copy){.to_device = to, .bytes = bytes};
  memcpy(c + 1, from, bytes);
  int result = fake_enqueue(s, copy_run, c, sizeof *c + bytes);
  free(c);
  return result;
}

// A copy to pageable memory is complete on return.
FAKE_API int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *handle) {
  stream *s = handle;
  fake_memory(from, bytes, "a copy from the device");
  pinned_check(to, bytes);
  int result = fake_enqueue(s, copy_run, &(copy){.to = to, .from_device = from, .bytes = bytes},
                            sizeof(copy));
  if (result || is_pinned(to))
    return result;
  if (s->capture)
    complain("pageable memory while recording", "a copy");
  return cuStreamSynchronize(s);
}

FAKE_API int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *s) {
  const char *a = fake_memory(to, bytes, "a copy to the device");
  const char *b = fake_memory(from, bytes, "a copy from the device");
  if (a < b + bytes && b < a + bytes)
    complain("overlaps", "a copy on the device");
  return fake_enqueue(s, copy_run, &(copy){.to_device = to, .from_device = from, .bytes = bytes},
                      sizeof(copy));
}

typedef struct fill {
  address to;
  unsigned x;
  int bytes;
  size_t n;
} fill;

static void fill_run(void *args) {
  const fill *f = args;
  char *to = fake_memory(f->to, f->n * (size_t)f->bytes, "a fill");
  for (size_t i = 0; i < f->n; i++)
    memcpy(to + i * (size_t)f->bytes, &f->x, (size_t)f->bytes);
}

static int fill_enqueue(address to, unsigned x, int bytes, size_t n, void *s) {
  fake_memory(to, n * (size_t)bytes, "a fill");
  if (to % (address)bytes)
    return INVALID;
  return fake_enqueue(s, fill_run, &(fill){to, x, bytes, n}, sizeof(fill));
}

FAKE_API int cuMemsetD8Async(address to, unsigned char x, size_t n, void *s) {
  return fill_enqueue(to, x, 1, n, s);
}
FAKE_API int cuMemsetD16Async(address to, unsigned short x, size_t n, void *s) {
  return fill_enqueue(to, x, 2, n, s);
}
FAKE_API int cuMemsetD32Async(address to, unsigned x, size_t n, void *s) {
  return fill_enqueue(to, x, 4, n, s);
}

// ---- modules and kernels

FAKE_API int cuModuleLoadData(void **out, const void *data) {
  const fake_image *image = data;
  if (fake.sticky)
    return fake.sticky;
  if (memcmp(image->magic, FAKE_MAGIC, sizeof image->magic))
    return 200;
  int fd = memfd_create("kernels", 0);
  if (fd < 0 || write(fd, image + 1, image->bytes) != (ssize_t)image->bytes)
    complain("cannot write it", "a module");
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    complain(dlerror(), "a module");
  *out = calloc(1, sizeof(module));
  *(module *)*out = (module){library, fd};
  fake.modules++;
  return 0;
}

typedef struct named {
  struct named *next;
  function f;
  module *m;
} named;
static named *functions;

FAKE_API int cuModuleUnload(void *handle) {
  module *m = handle;
  for (named **n = &functions; *n;)
    if ((*n)->m == m) {
      named *dead = *n;
      *n = dead->next;
      free(dead);
    } else {
      n = &(*n)->next;
    }
  dlclose(m->library);
  close(m->file);
  free(m);
  fake.modules--;
  return 0;
}

static void *symbol(module *m, const char *prefix, const char *name) {
  char text[128];
  snprintf(text, sizeof text, "%s%s", prefix, name);
  return dlsym(m->library, text);
}

FAKE_API int cuModuleGetFunction(void **out, void *handle, const char *name) {
  named *n = calloc(1, sizeof *n);
  const int *threads = symbol(handle, "fake_threads_", name);
  n->m = handle;
  n->f.params = symbol(handle, "fake_params_", name);
  *(void **)&n->f.call = symbol(handle, "fake_call_", name);
  snprintf(n->f.name, sizeof n->f.name, "%s", name);
  if (!threads || !n->f.params || !n->f.call) {
    free(n);
    return NOT_FOUND;
  }
  n->f.threads = *threads;
  n->next = functions;
  functions = n;
  *out = &n->f;
  return 0;
}

FAKE_API int cuFuncSetAttribute(void *handle, int attribute, int value) {
  function *f = handle;
  if (attribute != 8)
    return INVALID;
  if (value > 227 << 10)
    return INVALID;
  f->shared = value;
  return 0;
}

typedef struct launch {
  function *f;
  int64_t blocks;
  int threads;
  uint64_t at[PARAMS];
  char bytes[4096];
} launch;

static void kernel_call(void *params) {
  void **p = params;
  ((function *)p[0])->call(p + 1);
}

// Runs the kernel; the shim's reports name its parameters that are addresses.
static void kernel_watched(launch *l, void **params) {
  const char *names[PARAMS];
  char *at[PARAMS];
  int n = 0;
  for (int i = 0; l->f->params[i].bytes; i++)
    if (l->f->params[i].pointer) {
      names[n] = l->f->params[i].name;
      at[n++] = *(char **)params[i + 1];
    }
  simt_buffers_set(&(simt_buffers){l->f->name, names, at, n});
  simt_run(kernel_call, params, l->blocks, l->threads);
  simt_buffers_set(NULL);
}

static void kernel_run(void *args) {
  launch *l = args;
  void *params[PARAMS + 1] = {l->f};
  if (fake.fault && !--fake.fault) {
    fake.sticky = FAULT;
    return;
  }
  for (int i = 0; l->f->params[i].bytes; i++) {
    params[i + 1] = l->bytes + l->at[i];
    address *a = params[i + 1];
    if (l->f->params[i].pointer && *a)
      *a = (address)(uintptr_t)fake_memory(*a, 1, l->f->name);
  }
  kernel_watched(l, params);
  for (int i = 0; l->f->params[i].bytes; i++) // a graph runs the launch again
    if (l->f->params[i].pointer && *(address *)params[i + 1])
      *(address *)params[i + 1] ^= TAG;
  char *found = simt_report_take();
  if (found)
    complain(found, l->f->name);
}

FAKE_API int cuLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            void *s, void **params, void **extra) {
  static launch l;
  size_t used = 0;
  l.f = handle;
  l.blocks = grid_x;
  l.threads = (int)block_x;
  if (fake.sticky)
    return fake.sticky;
  if (fake.launch && !--fake.launch)
    return LAUNCH;
  if (!grid_x || grid_x > INT32_MAX || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 ||
      extra)
    return INVALID;
  if ((int)block_x > l.f->threads || !block_x || block_x > 1024 ||
      (shared > SHARED_FREE && (int)shared > l.f->shared))
    return INVALID;
  for (int i = 0; l.f->params[i].bytes; i++) {
    size_t bytes = l.f->params[i].bytes;
    used = (used + 15) / 16 * 16;
    if (i == PARAMS || used + bytes > sizeof l.bytes)
      complain("too many parameters", l.f->name);
    memcpy(l.bytes + used, params[i], bytes);
    l.at[i] = used;
    used += bytes;
  }
  return fake_enqueue(s, kernel_run, &l, offsetof(launch, bytes) + used);
}

// The bytes that a tensor map may access must be allocated on the device.
FAKE_API int cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *base,
                                    const unsigned long long *size,
                                    const unsigned long long *stride, const unsigned *box,
                                    const unsigned *step, int interleave, int swizzle,
                                    int promotion, int fill) {
  size_t bytes = 2 * size[0];
  if (fake.sticky)
    return fake.sticky;
  if ((uintptr_t)out % 64 || fill || promotion < 0 || promotion > 3)
    return INVALID;
  for (unsigned i = 1; i < rank; i++)
    bytes += (size[i] - 1) * stride[i - 1];
  return simt_map_make(out, type, (int)rank,
                       fake_memory((address)(uintptr_t)base, bytes, "a tensor map"), size, stride,
                       box, step, interleave, swizzle)
             ? INVALID
             : 0;
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
  fake.fault = word(text, "fault=");
  fake.eager = text && strstr(text, "eager");
  fake.version = (int)word(text, "driver=");
  if (!fake.capability)
    fake.capability = 90;
  if (!fake.version)
    fake.version = 13000;
  if (!dladdr((void *)cuInit, &me) || !dlopen(me.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
    complain("cannot be loaded again", "libcuda");
  atexit(at_end);
  return 0;
}

FAKE_API int cuDriverGetVersion(int *version) {
  *version = fake.version;
  return 0;
}
FAKE_API int cuDeviceGetCount(int *n) {
  *n = !fake.none;
  return 0;
}
FAKE_API int cuDeviceGet(int *device, int number) {
  *device = number;
  return number ? NO_DEVICE : 0;
}
FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = (size_t)8 << 30;
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
