// module.c - the fake CUDA driver: modules, and kernels under the SIMT shim; see fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/simt.h"

enum {
  PARAMS = 256,
  SHARED_FREE = 48 << 10
};

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

// ---- modules and kernels

FAKE_API int cuModuleLoadData(void **out, const void *data) {
  const fake_image *image = data;
  if (fake.sticky)
    return fake.sticky;
  if (memcmp(image->magic, FAKE_MAGIC, sizeof image->magic))
    return 200;
  int fd = memfd_create("kernels", 0);
  if (fd < 0 || write(fd, image + 1, image->bytes) != (ssize_t)image->bytes)
    fake_complain("cannot write it", "a module");
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fake_complain(dlerror(), "a module");
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
  bool early;
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
  simt_buffers_set(&(simt_buffers){l->f->name, names, at, n, l->early});
  fake_order_launch();
  simt_run(kernel_call, params, l->blocks, l->threads);
  simt_watch_set(NULL);
  simt_buffers_set(NULL);
}

// a: the parameter, which is shorter than an address if it is no pointer. Kernels access pinned
// memory by the host's address.
static bool is_on_device(const fake_param *p, const void *a) {
  return p->pointer && *(const address *)a &&
         !fake_is_pinned((void *)(uintptr_t) * (const address *)a);
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
    if (is_on_device(&l->f->params[i], a))
      *a = (address)(uintptr_t)fake_memory(*a, 1, l->f->name);
  }
  kernel_watched(l, params);
  for (int i = 0; l->f->params[i].bytes; i++) // a graph runs the launch again
    if (is_on_device(&l->f->params[i], params[i + 1]))
      *(address *)params[i + 1] ^= TAG;
  char *found = simt_report_take();
  if (found)
    fake_complain(found, l->f->name);
}

// The only attribute is the permission to begin early, of which a recording makes an edge of the
// graph; it is between kernels, so that nothing else may be in front.
static bool early_of(const lm_cu_launch *how) {
  bool early = false;
  for (unsigned i = 0; i < how->n_attributes; i++) {
    if (how->attributes[i].id != LM_CU_LAUNCH_EARLY)
      fake_complain("unknown", "a launch attribute");
    early |= how->attributes[i].value != 0;
  }
  if (early && fake.capability < 90)
    fake_complain("needs compute capability 9.0", "a launch attribute");
  if (early && fake_records_behind_other(how->stream, kernel_run))
    fake_complain("may begin early, but no kernel is in front of it", "a recorded launch");
  return early;
}

FAKE_API int cuLaunchKernelEx(const lm_cu_launch *how, void *handle, void **params, void **extra) {
  static launch l;
  size_t used = 0;
  l.f = handle;
  l.blocks = how->blocks[0];
  l.threads = (int)how->threads[0];
  if (fake.sticky)
    return fake.sticky;
  if (fake.launch && !--fake.launch)
    return LAUNCH;
  bool line = how->blocks[1] == 1 && how->blocks[2] == 1;
  line = line && how->threads[1] == 1 && how->threads[2] == 1;
  if (l.blocks < 1 || l.blocks > INT32_MAX || !line || extra)
    return INVALID;
  if (l.threads > l.f->threads || l.threads < 1 || l.threads > 1024 ||
      (how->shared > SHARED_FREE && (int)how->shared > l.f->shared))
    return INVALID;
  l.early = early_of(how);
  fake.launches++;
  fake.early += l.early;
  for (int i = 0; l.f->params[i].bytes; i++) {
    size_t bytes = l.f->params[i].bytes;
    used = (used + 15) / 16 * 16;
    if (i == PARAMS || used + bytes > sizeof l.bytes)
      fake_complain("too many parameters", l.f->name);
    memcpy(l.bytes + used, params[i], bytes);
    l.at[i] = used;
    used += bytes;
  }
  return fake_enqueue(how->stream, kernel_run, &l, offsetof(launch, bytes) + used);
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
