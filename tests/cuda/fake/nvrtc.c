// nvrtc.c - the fake NVRTC: compiles kernels for the SIMT shim with the host's C compiler; see
// fake.h.
#define _GNU_SOURCE
#include "tests/cuda/fake/fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/cuda/cuda.h"
#include "tests/cuda/simt.h"

typedef struct program {
  char *text;
  lm_buf image, log;
} program;

// A version that does not exist, so that caches distinguish this code from the real NVRTC's.
FAKE_API int nvrtcVersion(int *major, int *minor) {
  *major = 99;
  *minor = 0;
  return 0;
}
FAKE_API const char *nvrtcGetErrorString(int result) {
  return result ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}
// The last three are of CUDA 12.8 and 12.9 on.
enum {
  NEW = 3
};
static const int archs[] = {80, 89, 90, 100, 103, 120};
FAKE_API int nvrtcGetNumSupportedArchs(int *n) {
  const char *how = getenv("FAKE_CUDA");
  *n = (int)LM_COUNT(archs) - (how && strstr(how, "old") ? NEW : 0);
  return 0;
}
FAKE_API int nvrtcGetSupportedArchs(int *out) {
  int n;
  nvrtcGetNumSupportedArchs(&n);
  memcpy(out, archs, (size_t)n * sizeof *archs);
  return 0;
}

FAKE_API int nvrtcCreateProgram(void **out, const char *text, const char *name, int n,
                                const char *const *headers, const char *const *names) {
  program *p = lm_alloc(sizeof *p);
  p->text = lm_strdup(text);
  *out = p;
  return 0;
}

FAKE_API int nvrtcDestroyProgram(void **handle) {
  program *p = *handle;
  lm_free(p->text);
  lm_buf_free(&p->image);
  lm_buf_free(&p->log);
  lm_free(p);
  *handle = NULL;
  return 0;
}

// The text after the device's prelude, where the first file NAME.cu begins.
static const char *kernels_of(const char *text) {
  const char *at = strstr(text, ".cu\"\n");
  while (at && at > text && at[-1] != '\n')
    at--;
  return at ? at : text + strlen(text);
}

// ---- exports for the fake driver

// The type in "const float *LM_RESTRICT a0": all but the name, which is returned.
static const char *type_put(const char *param, size_t n, lm_buf *out) {
  while (n && isspace((unsigned char)param[n - 1]))
    n--;
  while (n && (isalnum((unsigned char)param[n - 1]) || param[n - 1] == '_'))
    n--;
  lm_buf_add(out, param, n);
  return param + n;
}

static void kernel_describe(const char *name, int n_name, const char *params, int threads,
                            lm_buf *types, lm_buf *out) {
  lm_buf call = {0};
  lm_buf_printf(
      out, "const struct { uint64_t bytes; int pointer; const char *name; } fake_params_%.*s[] = {",
      n_name, name);
  lm_buf_printf(&call,
                "const int fake_threads_%.*s = %d;\n__attribute__((no_sanitize_thread)) void "
                "fake_call_%.*s(void **p) { %.*s(",
                n_name, name, threads, n_name, name, n_name, name);
  for (int i = 0; *params != ')'; i++) {
    size_t n = strcspn(params, ",)");
    types->n = 0;
    const char *own = type_put(params, n, types);
    lm_buf_printf(out, "{sizeof(%s), %d, \"%.*s\"}, ", types->p, memchr(params, '*', n) != NULL,
                  (int)strcspn(own, " ,)"), own);
    lm_buf_printf(&call, "%s*(%s *)p[%d]", i ? ", " : "", types->p, i);
    params += n + (params[n] == ',');
  }
  lm_buf_printf(out, "{0, 0, 0}};\n%s); }\n", call.p);
  lm_buf_free(&call);
}

// The report of ptxas of NVRTC 12.8 about a kernel of attention: warnings, each of them twice, in
// front of the reports of all kernels.
static void serialization_report(const char *name, int n, lm_buf *warnings, lm_buf *log) {
  const char *how = getenv("FAKE_CUDA");
  if (!how || !strstr(how, "serialized") || name[0] != 'a')
    return;
  for (int i = 0; i < 2; i++)
    lm_buf_printf(warnings,
                  "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async "
                  "instructions are serialized due to non wgmma instructions defining accumulator "
                  "registers of a wgmma in the function '%.*s'\n",
                  n, name);
  lm_buf_printf(log,
                "ptxas info    : Compiling entry function '%.*s' for 'sm_90a'\n"
                "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                "ptxas info    : Used 168 registers, 16 bytes smem\n",
                n, name);
}

static void kernels_describe(const char *text, lm_buf *out, lm_buf *log) {
  lm_buf types = {0}, entries = {0};
  for (const char *at = text; (at = strstr(at, "LM_KERNEL"));) {
    const char *open = strchr(at, '(');
    const char *name = strchr(at, ')') + 1;
    name += strspn(name, " \n");
    size_t n = strcspn(name, "(");
    at = name;
    if (n && name[n] == '(' && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") >= n) {
      kernel_describe(name, (int)n, name + n + 1, atoi(open + 1), &types, out);
      serialization_report(name, (int)n, log, &entries);
    }
  }
  lm_buf_add(log, entries.p, entries.n);
  lm_buf_free(&entries);
  lm_buf_free(&types);
}

// Macros that define kernels are recognized by their uses: LM_MOVE(NAME, ...), LM_GEMM(NAME,
// ...).
static void preprocess_note(const char *text, lm_buf *out) {
  static const struct {
    const char *macro, *params;
  } known[] = {
      {"\nLM_MOVE(", "const void *x, void *y, const int32_t *at, int32_t *fault, lm_move_args m)"},
      {"\nLM_GEMM(", "const void *a, const void *b, void *c, lm_gemm_args p)"},
      {"\nLM_FINISH(", "void *y, const void *bias, void *before, lm_finish_args f)"},
      {"\nLM_ROUND(", "const void *x, void *y, lm_rounding r)"},
      {"\nLM_ORDERED(", "const void *own, const char *received, void *to, lm_ordered_args a)"}};
  lm_buf types = {0};
  for (size_t k = 0; k < LM_COUNT(known); k++)
    for (const char *at = text; (at = strstr(at, known[k].macro));) {
      at += strlen(known[k].macro);
      kernel_describe(at, (int)strcspn(at, ","), known[k].params, 256, &types, out);
    }
  lm_buf_free(&types);
}

// ---- compiling

static int fail(program *p, const char *what) {
  lm_buf_puts(&p->log, what);
  return 6;
}

// GCC's -Og takes two thirds of the time of -O1, and the kernels are hardly slower under the shim,
// which checks each access.
static int object_make(program *p, const lm_buf *source) {
  char c[] = "/tmp/fake-nvrtc-XXXXXX.c", object[] = "/tmp/fake-nvrtc-XXXXXX.so", command[256];
  int fd = mkstemps(c, 2);
  int so = mkstemps(object, 3);
  int result = 0;
  lm_buf bytes = {0};
  if (fd < 0 || so < 0 || write(fd, source->p, source->n) != (ssize_t)source->n)
    result = fail(p, "cannot write a file");
  if (fd >= 0)
    close(fd);
  if (so >= 0)
    close(so);
  snprintf(command, sizeof command,
           "cc -std=gnu11 -Og -w -fPIC -shared -ffp-contract=off -fno-math-errno %s -o %s %s 2>&1",
           SIMT_COMPILER_FLAGS, object, c);
  FILE *pipe = result ? NULL : popen(command, "r");
  char line[512];
  while (pipe && fgets(line, sizeof line, pipe))
    lm_buf_puts(&p->log, line);
  if (!result && (!pipe || pclose(pipe)))
    result = 6;
  lm_status s = result ? NULL : lm_file_read(object, 64 << 20, &bytes);
  fake_image head = {FAKE_MAGIC, bytes.n};
  lm_buf_add(&p->image, &head, sizeof head);
  if (bytes.n)
    lm_buf_add(&p->image, bytes.p, bytes.n);
  lm_status_free(s);
  lm_buf_free(&bytes);
  if (!getenv("FAKE_NVRTC_KEEP"))
    unlink(c);
  unlink(object);
  return result;
}

FAKE_API int nvrtcCompileProgram(void *handle, int n, const char *const *options) {
  program *p = handle;
  lm_arena *a = lm_arena_create();
  lm_buf source = {0};
  const char *kernels = kernels_of(p->text);
  if (!strncmp(p->text, "#define LM_NARROW", 17))
    lm_buf_puts(&source, "#define LM_NARROW\n");
  lm_buf_puts(&source, lm_cuda_prelude_simt_text(a));
  lm_buf_printf(&source, "\n%s\n", kernels);
  kernels_describe(kernels, &source, &p->log);
  preprocess_note(kernels, &source);
  int result = object_make(p, &source);
  lm_buf_free(&source);
  lm_arena_destroy(a);
  return result;
}

FAKE_API int nvrtcGetProgramLogSize(void *handle, size_t *bytes) {
  *bytes = ((program *)handle)->log.n + 1;
  return 0;
}
FAKE_API int nvrtcGetCUBINSize(void *handle, size_t *bytes) {
  *bytes = ((program *)handle)->image.n;
  return 0;
}

FAKE_API int nvrtcGetProgramLog(void *handle, char *out) {
  program *p = handle;
  memcpy(out, p->log.n ? p->log.p : "", p->log.n + 1);
  return 0;
}

FAKE_API int nvrtcGetCUBIN(void *handle, char *out) {
  program *p = handle;
  memcpy(out, p->image.p, p->image.n);
  return 0;
}
