// nvtx.c - see nvtx.h. A profiler names its library in NVTX_INJECTION64_PATH. The library's
// initialization receives a callback that returns tables of pointers to the functions that an
// application calls, and stores its own functions there. The callback has no user argument, so the
// tables are global.
#include "runtime/cuda/nvtx.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

enum {
  FUNCTIONS = 16
}; // slots of the largest module; slot 0 is unused

static const unsigned SIZES[LM_NVTX_MODULES] = {0, 16, 9, 15, 7, 16, 7};
static struct {
  lm_nvtx_function slot[LM_NVTX_MODULES][FUNCTIONS],
      *table[LM_NVTX_MODULES][FUNCTIONS + 1]; // NULL before the first function and after the last
  bool opened;
} process;

static int functions(int module, lm_nvtx_function ***out_table, unsigned *out_n) {
  if (module <= 0 || module >= LM_NVTX_MODULES)
    return 0;
  for (unsigned i = 1; i < SIZES[module]; i++)
    process.table[module][i] = &process.slot[module][i];
  if (out_table)
    *out_table = process.table[module];
  if (out_n)
    *out_n = SIZES[module];
  return 1;
}

static void version_take(uint32_t version) {}

static const void *tables(uint32_t id) {
  static const lm_nvtx_callbacks callbacks = {sizeof callbacks, functions};
  static const lm_nvtx_version version = {sizeof version, LM_NVTX_VERSION, 0, version_take};
  return id == LM_NVTX_CALLBACKS     ? (const void *)&callbacks
         : id == LM_NVTX_VERSIONINFO ? &version
                                     : NULL;
}

void lm_nvtx_open(void) {
  const char *path = getenv("NVTX_INJECTION64_PATH");
  void *library = path && !process.opened ? dlopen(path, RTLD_LAZY) : NULL;
  lm_nvtx_initialize initialize = NULL;
  process.opened = true;
  if (library)
    *(void **)&initialize = dlsym(library, "InitializeInjectionNvtx2");
  if (!library || (initialize && initialize(tables)))
    return;
  for (int i = 0; i < FUNCTIONS; i++)
    process.slot[LM_NVTX_CORE][i] = NULL;
  dlclose(library);
}

void lm_nvtx_push(const char *name) {
  lm_nvtx_function f = process.slot[LM_NVTX_CORE][LM_NVTX_PUSH];
  if (f)
    ((int (*)(const char *))f)(name);
}

void lm_nvtx_pop(void) {
  lm_nvtx_function f = process.slot[LM_NVTX_CORE][LM_NVTX_POP];
  if (f)
    ((int (*)(void))f)();
}
