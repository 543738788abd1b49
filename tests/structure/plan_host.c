// plan_host.c - makes one machine plan for another, without its processor and without compilers;
// see plan_dump.
//
// Preloaded into lmc it stands in for the processor that LMC_PLAN_HOST names (avx2, avx512 or amx):
// it replaces /proc/cpuinfo, the instruction set that oneDNN reports, and the kernel's answer to a
// request for tiles. As libnvrtc.so.13 it is an NVRTC that accepts every target and compiles
// nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct host {
  const char *name, *flags;
  unsigned isa; // dnnl_cpu_isa_t
} host;

static const host hosts[] = {
    {"avx2", "avx2 fma", 0x7},
    {"avx512", "avx2 fma avx512f avx512_vnni", 0x67},
    {"amx", "avx2 fma avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16", 0xfef},
};

static const host *host_of(void) {
  const char *name = getenv("LMC_PLAN_HOST");
  for (size_t i = 0; name && i < sizeof hosts / sizeof *hosts; i++)
    if (!strcmp(hosts[i].name, name))
      return &hosts[i];
  return NULL;
}

static int cpuinfo_open(const host *h) {
  char text[256];
  int n = snprintf(text, sizeof text, "model name\t: %s\nflags\t\t: %s\n", h->name, h->flags);
  int fd = memfd_create("cpuinfo", MFD_CLOEXEC);
  if (fd < 0 || write(fd, text, (size_t)n) != n || lseek(fd, 0, SEEK_SET))
    return -1;
  return fd;
}

int open(const char *path, int flags, ...) {
  const host *h = host_of();
  if (h && !strcmp(path, "/proc/cpuinfo"))
    return cpuinfo_open(h);
  va_list ap;
  va_start(ap, flags);
  int mode = va_arg(ap, int);
  va_end(ap);
  return openat(AT_FDCWD, path, flags, mode);
}

unsigned dnnl_get_effective_cpu_isa(void) {
  const host *h = host_of();
  return h ? h->isa : 0;
}

long syscall(long number, ...) {
  enum {
    REQUEST = 0x1023
  }; // ARCH_REQ_XCOMP_PERM
  static long (*original)(long, ...);
  long a[6];
  va_list ap;
  va_start(ap, number);
  for (int i = 0; i < 6; i++)
    a[i] = va_arg(ap, long);
  va_end(ap);
#ifdef SYS_arch_prctl
  if (number == SYS_arch_prctl && a[0] == REQUEST)
    return 0;
#endif
  if (!original)
    original = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return original(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// ---- NVRTC

int nvrtcVersion(int *major, int *minor) {
  *major = 99;
  *minor = 0;
  return 0;
}

const char *nvrtcGetErrorString(int result) {
  return result ? "not compiled" : "success";
}

int nvrtcGetNumSupportedArchs(int *n) {
  *n = 4;
  return 0;
}

int nvrtcGetSupportedArchs(int *archs) {
  static const int known[] = {80, 89, 90, 100};
  memcpy(archs, known, sizeof known);
  return 0;
}

int nvrtcCreateProgram(void **program, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names) {
  *program = NULL;
  return 1;
}

int nvrtcDestroyProgram(void **program) {
  return 0;
}
int nvrtcCompileProgram(void *program, int n, const char *const *options) {
  return 1;
}
int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
  return 1;
}
int nvrtcGetProgramLog(void *program, char *log) {
  return 1;
}
int nvrtcGetCUBINSize(void *program, size_t *bytes) {
  return 1;
}
int nvrtcGetCUBIN(void *program, char *image) {
  return 1;
}
