// processors.c - see processors.h.
#define _GNU_SOURCE
#include "runtime/base/processors.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/base.h"

enum {
  THREADS_MAX = 256
};

// Reads FOLDER/NAME as up to two numbers; returns how many there are, 0 if there is no such file.
static int numbers_read(const char *folder, const char *name, double out[2]) {
  lm_buf path = {0};
  lm_buf text = {0};
  lm_buf_printf(&path, "%s/%s", folder, name);
  lm_status s = lm_file_read(path.p, 4096, &text);
  int n = s ? 0 : sscanf(text.p, "%lf %lf", &out[0], &out[1]);
  lm_status_free(s);
  lm_buf_free(&path);
  lm_buf_free(&text);
  return n < 0 ? 0 : n;
}

static double ratio(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : 0;
}

// Version 2: "QUOTA PERIOD" in microseconds, or "max PERIOD". 0: no limit, or no such file.
static double quota_2(const char *folder) {
  double x[2];
  return numbers_read(folder, "cpu.max", x) == 2 ? ratio(x[0], x[1]) : 0;
}

// Version 1: a quota of -1 is no limit.
static double quota_1(const char *folder) {
  double quota[2];
  double period[2];
  if (!numbers_read(folder, "cpu.cfs_quota_us", quota))
    return 0;
  if (!numbers_read(folder, "cpu.cfs_period_us", period))
    return 0;
  return ratio(quota[0], period[0]);
}

// 0 denotes no limit.
static double lower(double a, double b) {
  return a == 0 || (b > 0 && b < a) ? b : a;
}

// The lowest quota of a group and of all groups above it, up to the root.
typedef double (*quota_reader)(const char *folder);

static double lowest_upward(const char *root, const char *group, quota_reader quota_of) {
  lm_buf path = {0};
  lm_buf_printf(&path, "%s%s", root, group);
  double lowest = quota_of(path.p);
  for (char *slash; strlen(path.p) > strlen(root) && (slash = strrchr(path.p, '/'));) {
    *slash = 0;
    lowest = lower(lowest, quota_of(path.p));
  }
  lm_buf_free(&path);
  return lowest;
}

// A line is "ID:CONTROLLERS:GROUP"; version 2 names no controllers.
static double quota_of_line(const char *root, char *line) {
  char *controllers = strchr(line, ':');
  char *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group)
    return 0;
  *group++ = 0;
  if (!controllers[1])
    return lowest_upward(root, group, quota_2);
  if (strcmp(controllers + 1, "cpu,cpuacct") && strcmp(controllers + 1, "cpu"))
    return 0;
  lm_buf folder = {0};
  lm_buf_printf(&folder, "%s/%s", root, controllers + 1);
  double quota = lowest_upward(folder.p, group, quota_1);
  lm_buf_free(&folder);
  return quota;
}

double lm_processors_quota(const char *root, const char *list) {
  lm_buf text = {0};
  double lowest = 0;
  lm_status s = lm_file_read(list, 1 << 16, &text);
  char *rest = text.p;
  for (char *line; !s && (line = strsep(&rest, "\n"));)
    lowest = lower(lowest, quota_of_line(root, line));
  lm_status_free(s);
  lm_buf_free(&text);
  return lowest;
}

// *known, which is what `ask` returns, or -1 before the first call. To ask takes tens of
// microseconds: system calls, or on a virtual machine `cpuid`. Callers start teams, convert short
// rows and fill small tensors.
static int asked_once(atomic_int *known, int (*ask)(void)) {
  int value = atomic_load_explicit(known, memory_order_relaxed);
  if (value < 0) {
    value = ask();
    atomic_store_explicit(known, value, memory_order_relaxed);
  }
  return value;
}

static int ask_quota(void) {
  double quota = lm_processors_quota("/sys/fs/cgroup", "/proc/self/cgroup");
  return quota < INT_MAX ? (int)ceil(quota) : 0;
}

int lm_processors(void) {
  static atomic_int known = -1;
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
  int quota = asked_once(&known, ask_quota);
  return quota > 0 && quota < n ? quota : n;
}

// OMP_NUM_THREADS is one number, or a list of one number for each level of nesting, of which the
// first counts.
static long limit_of_environment(void) {
  const char *text = getenv("OMP_NUM_THREADS");
  long n = text ? strtol(text, NULL, 10) : 0;
  return n > 0 ? n : THREADS_MAX;
}

static long default_threads(void) {
  long n = lm_processors();
  long limit = limit_of_environment();
  return n < limit ? n : limit;
}

int lm_threads(int wanted) {
  long n = wanted > 0 ? wanted : default_threads();
  return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (int)n;
}

#ifdef __x86_64__
#include <cpuid.h>

// Bits of ECX that `cpuid` returns for leaf 1 and for leaf 0x80000001. Clang before 19 has no names
// of levels for __builtin_cpu_supports, and none for some of these instructions.
enum {
  CX16 = 1 << 13,
  MOVBE = 1 << 22,
  F16C = 1 << 29,
  LAHF = 1 << 0,
  LZCNT = 1 << 5
};

static bool cpuid_has(unsigned leaf, unsigned bits) {
  unsigned a, b, c, d;
  return __get_cpuid(leaf, &a, &b, &c, &d) && (c & bits) == bits;
}

static bool has_v2(void) {
  return cpuid_has(1, CX16) && cpuid_has(0x80000001, LAHF) && __builtin_cpu_supports("popcnt") &&
         __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.2");
}

static bool has_v3(void) {
  return cpuid_has(1, MOVBE) && cpuid_has(0x80000001, LZCNT) && lm_x86_64_has_f16c() &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

static int ask_level(void) {
  return !has_v2() ? 1 : !has_v3() ? 2 : !has_v4() ? 3 : 4;
}

static int ask_f16c(void) {
  return __builtin_cpu_supports("avx") && cpuid_has(1, F16C);
}

int lm_x86_64_level(void) {
  static atomic_int known = -1;
  return asked_once(&known, ask_level);
}

bool lm_x86_64_has_f16c(void) {
  static atomic_int known = -1;
  return asked_once(&known, ask_f16c) != 0;
}
#else
int lm_x86_64_level(void) {
  return 0;
}

bool lm_x86_64_has_f16c(void) {
  return false;
}
#endif
