// kernels.c - see kernels.h.
//
// Kernels that the cache lacks are dealt into one translation unit a core, compiled side by side. Each unit becomes one
// shared object that is filed under the keys of all its kernels. A unit is of loops or of tiles, which want more of a compiler.
#define _GNU_SOURCE
#include "runtime/cpu/kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/cache.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/process.h"

// Loops are written as they are to run, unrolled where that pays: what -O3 adds to vectors takes time and gains nothing.
static const char *const FLAGS[] = {"-std=gnu11", "-ftree-vectorize", "-fopenmp-simd", "-fno-math-errno", "-w",
                                    "-fno-trapping-math", "-shared", "-fPIC", "-x", "c"};
// GCC makes vectors only where they cost nothing, if it is not told to weigh them; Clang knows no such option, and weighs them at -O2.
// Multiply-adds are contracted in attention and products of matrices (prelude/compiler.h): which, depends on the text and the
// compiler alone, and both are part of the key.
static const char *const GCC_FLAGS[] = {"-ffp-contract=fast", "-fvect-cost-model=dynamic"}, *const CLANG_FLAGS[] = {"-ffp-contract=off"};
// Of all that GCC's -O2 adds, loops are faster by these; tiles take it all.
static const char *const GCC_LOOPS[] = {"-O1", "-fschedule-insns2", "-fgcse", "-frerun-cse-after-loop", NULL}, *const TILES[] = {"-O2", NULL};
enum { BATCHES_LEAST = 2, BATCHES_MAX = 64, MESSAGE_MAX = 2000 };

typedef struct loader {
  const lm_plan *plan;
  const lm_exec_options *options;
  lm_kernels *out;
  lm_cpu_info cpu;
  const char *flags[LM_KERNEL_FLAGS];  // of the compiler, a NULL behind them
  const char *dir;
  const char **source;                 // as plan->kernels, replaced by load_dir's
  const char **path;                   // in the cache
  bool replaced;                       // some source is the user's
} loader;

typedef struct batch {                 // one translation unit
  int *kernels; int n;
  int cost;
  const char *const *level;            // more flags, a NULL behind them
  const char *c, *so, *log;            // paths
  pid_t pid;                           // 0: not started
} batch;

static lm_status source_replace(loader *l, int i, const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 64 << 20, &text);
  if (!s) l->source[i] = lm_arena_strndup(l->out->arena, text.p, text.n);
  l->replaced |= !s;
  lm_buf_free(&text);
  return s;
}

static lm_status sources_collect(loader *l) {
  const lm_exec_options *o = l->options;
  if (o->dump_dir) LM_TRY(lm_dir_make(o->dump_dir));
  for (int i = 0; i < l->plan->n_kernels; i++) {
    const lm_plan_kernel *k = &l->plan->kernels[i];
    const char *file = lm_arena_printf(l->out->arena, "%s.c", k->name);
    l->source[i] = k->source;
    if (o->dump_dir)
      LM_TRY(lm_file_write_atomic(lm_path_join(l->out->arena, o->dump_dir, file), k->source, strlen(k->source)));
    const char *own = o->load_dir ? lm_path_join(l->out->arena, o->load_dir, file) : NULL;
    if (own && !access(own, R_OK)) LM_TRY(source_replace(l, i, own));
  }
  if (o->load_dir && !l->replaced) return lm_fail(LM_USER, "%s holds no source of these kernels: files NAME.c, as they are dumped", o->load_dir);
  return NULL;
}

static bool is_clang(const lm_cpu_info *cpu) { return strstr(cpu->compiler_version, "clang"); }

const char **lm_kernels_flags(const lm_cpu_info *cpu, const char **out) {
  bool clang = is_clang(cpu);
  for (size_t i = 0; i < LM_COUNT(FLAGS); i++) *out++ = FLAGS[i];
  for (size_t i = 0; i < LM_COUNT(GCC_FLAGS) && !clang; i++) *out++ = GCC_FLAGS[i];
  for (size_t i = 0; i < LM_COUNT(CLANG_FLAGS) && clang; i++) *out++ = CLANG_FLAGS[i];
  return out;
}

// What is told of this machine besides. Whole vectors of AVX-512 slow a core down where it is old, so compilers take halves; a
// core that multiplies bf16 is not. The system may refuse tiles that the processor has.
static void flags_make(const lm_cpu_info *cpu, const char **out) {
  out = lm_kernels_flags(cpu, out);
  if (strstr(cpu->isa, "bf16")) *out++ = "-mprefer-vector-width=512";
  if (strstr(cpu->isa, "amx") && !lm_cpu_tiles_ask()) *out++ = "-DLM_AMX_REFUSED";
  *out = NULL;
}

// ---- what they are

// Functions of the prelude that compute tiles; compiled again in each unit with a kernel that calls them, so kernels that share one
// go together. cost: of the function, as below.
static const struct { const char *name; int cost; } SHARED[] = {{"lm_product_", 210}, {"lm_dot_", 100}};
enum { LOOPS = LM_COUNT(SHARED) };     // fused operations, which share nothing

static int kind_of(const char *source) {
  int kind = 0;
  while (kind < LOOPS && !strstr(source, SHARED[kind].name)) kind++;
  return kind;
}

static const char *const *level_of(const loader *l, int kind) { return kind == LOOPS && !is_clang(&l->cpu) ? GCC_LOOPS : TILES; }

// All that a kernel is compiled with.
static const char *flags_text(const loader *l, int kind) {
  lm_buf text = {0};
  for (const char *const *flag = l->flags; *flag; flag++) lm_buf_printf(&text, "%s ", *flag);
  for (const char *const *flag = level_of(l, kind); *flag; flag++) lm_buf_printf(&text, "%s ", *flag);
  lm_buf_printf(&text, "%s %016llx", l->cpu.march, (unsigned long long)l->cpu.features);
  const char *kept = lm_arena_strndup(l->out->arena, text.p, text.n);
  lm_buf_free(&text);
  return kept;
}

static void paths_make(loader *l) {
  for (int i = 0; i < l->plan->n_kernels; i++) {
    const char *parts[] = {l->plan->kernels[i].name, l->source[i], l->plan->prelude ? l->plan->prelude : "",
                           flags_text(l, kind_of(l->source[i])), l->cpu.compiler, l->cpu.compiler_version};
    l->path[i] = lm_arena_printf(l->out->arena, "%s/%s.so", l->dir, lm_cache_key_make(parts, LM_COUNT(parts)).text);
  }
}

// ---- loading

static bool kernel_open(loader *l, int i) {
  void *handle = dlopen(l->path[i], RTLD_NOW | RTLD_LOCAL);
  if (!handle) return false;
  void *symbol = dlsym(handle, l->plan->kernels[i].name);
  if (!symbol) return dlclose(handle), false;
  LM_PUSH(l->out->arena, l->out->handles, l->out->n_handles, l->out->cap_handles) = handle;
  memcpy(&l->out->fn[i], &symbol, sizeof symbol);   // ISO C has no cast from object to function
  return true;
}

static int missing_find(loader *l, int *missing) {
  int n = 0;
  for (int i = 0; i < l->plan->n_kernels; i++)
    if (!lm_cache_has(l->path[i]) || !kernel_open(l, i)) missing[n++] = i;
  return n;
}

// ---- compiling

// About the milliseconds that GCC takes for a kernel, for each loop, which becomes some, and for each kilobyte of text: most for
// tiles, where it is calls that are inlined.
enum { KERNEL_COST = 3, LOOP_COST = 2, TEXT_COST = 2, TILES_COST = 16 };

typedef struct part { int kernel, kind, cost; } part;

static part part_of(const loader *l, int kernel) {
  const char *source = l->source[kernel];
  part x = {kernel, kind_of(source), 0};
  x.cost = KERNEL_COST + (int)(strlen(source) * (x.kind == LOOPS ? TEXT_COST : TILES_COST) / 1000);
  for (const char *at = source; (at = strstr(at, "for (")); at++) x.cost += LOOP_COST;
  return x;
}

// The dearest first; of equal ones, in the plan's order.
static part *parts_in_order(const loader *l, const int *missing, int n) {
  part *parts = LM_NEW_N(l->out->arena, part, n);
  for (int i = 0; i < n; i++) {
    part x = part_of(l, missing[i]);
    int j = i;
    for (; j && parts[j - 1].cost < x.cost; j--) parts[j] = parts[j - 1];
    parts[j] = x;
  }
  return parts;
}

typedef struct units { int loops, tiles; } units;

// As many of loops as they are of the cost, the rest of tiles; none that would be empty, and at least one of what there is.
static units units_count(const part *parts, int n, int most) {
  int cost[LOOPS + 1] = {0}, tiles = 0, kinds = 0, loops = 0;
  for (int i = 0; i < n; i++) cost[parts[i].kind] += parts[i].cost, loops += parts[i].kind == LOOPS;
  for (int i = 0; i < LOOPS; i++) tiles += cost[i] ? cost[i] + SHARED[i].cost : 0, kinds += cost[i] > 0;
  units u = {(int)((double)most * cost[LOOPS] / (tiles + cost[LOOPS]) + 0.5), 0};
  if (u.loops >= most && kinds) u.loops = most - 1;
  if (u.loops < 1) u.loops = 1;
  if (u.loops > loops) u.loops = loops;
  u.tiles = most - u.loops < kinds ? most - u.loops : kinds;
  return u;
}

static batch *lightest(batch *batches, int n) {
  batch *best = batches;
  for (int i = 1; i < n; i++)
    if (batches[i].cost < best->cost) best = &batches[i];
  return best;
}

// Each to the lightest batch of its sort, those for loops first, or to that of those with which it shares.
static void deal(const loader *l, const part *parts, int n, batch *batches, units u) {
  batch *home[LOOPS + 1] = {0};
  for (int i = 0; i < n; i++) {
    const part *x = &parts[i];
    bool tiles = x->kind < LOOPS, first = tiles && !home[x->kind];
    batch *to = !tiles ? lightest(batches, u.loops) : first ? lightest(batches + u.loops, u.tiles) : home[x->kind];
    to->level = level_of(l, x->kind);
    to->kernels[to->n++] = x->kernel;
    to->cost += x->cost + (first ? SHARED[x->kind].cost : 0);
    home[x->kind] = to;
  }
}

static lm_status batch_write(loader *l, batch *b) {
  lm_buf text = {0};
  if (l->plan->prelude) lm_buf_puts(&text, l->plan->prelude);
  for (int i = 0; i < b->n; i++) {
    const char *origin = l->plan->kernels[b->kernels[i]].origin;
    lm_buf_printf(&text, "\n// %s\n%s\n", origin ? origin : "", l->source[b->kernels[i]]);
  }
  FILE *f = fopen(b->c, "wb");
  bool written = f && fwrite(text.p, 1, text.n, f) == text.n;
  lm_buf_free(&text);
  if ((f && fclose(f)) || !written) return lm_fail_errno("cannot write %s", b->c);
  return NULL;
}

static lm_status batch_start(loader *l, batch *b, int index) {
  lm_arena *a = l->out->arena;
  const char *stem = lm_arena_printf(a, "%s/unit-%ld-%d-%llx", l->dir, (long)getpid(), index,
                                     (unsigned long long)(lm_now() * 1e9));
  b->c = lm_arena_printf(a, "%s.c", stem);
  b->so = lm_arena_printf(a, "%s.so.tmp", stem);
  b->log = lm_arena_printf(a, "%s.log", stem);
  LM_TRY(batch_write(l, b));
  const char *argv[LM_KERNEL_FLAGS + LM_COUNT(GCC_LOOPS) + 8] = {l->cpu.compiler}, **at = argv + 1;
  for (const char **flag = l->flags; *flag; flag++) *at++ = *flag;
  for (const char *const *flag = b->level; *flag; flag++) *at++ = *flag;
  const char *rest[] = {lm_arena_printf(a, "-march=%s", l->cpu.march), b->c, "-o", b->so, "-lm", NULL};
  memcpy(at, rest, sizeof rest);
  return lm_process_start(argv, b->log, &b->pid);
}

// What the machine did to the compiler, or to a program that it started: no room, no memory, a signal.
static bool is_surroundings(int exit_status, const char *words) {
  const char *signs[] = {strerror(ENOSPC), strerror(ENOMEM), "signal terminated program", "unable to execute command",
                         "memory exhausted", "out of memory"};
  bool found = exit_status > LM_PROCESS_SIGNAL;
  for (size_t i = 0; i < LM_COUNT(signs) && words; i++) found = found || strstr(words, signs[i]);
  return found;
}

static lm_status compile_error(loader *l, const batch *b, int exit_status) {
  lm_buf words = {0};
  lm_status_free(lm_file_read(b->log, 16 << 20, &words));
  if (exit_status > LM_PROCESS_SIGNAL) lm_buf_printf(&words, "it was ended by signal %d: %s\n", exit_status - LM_PROCESS_SIGNAL, strsignal(exit_status - LM_PROCESS_SIGNAL));
  lm_status s = lm_fail(is_surroundings(exit_status, words.p) ? LM_ENV : l->replaced ? LM_USER : LM_BUG_STATUS,
                        "%s cannot compile a generated kernel (status %d); its source is kept in %s:\n%.*s",
                        l->cpu.compiler, exit_status, b->c, MESSAGE_MAX, words.p ? words.p : "");
  lm_buf_free(&words);
  return s;
}

static lm_status batch_finish(loader *l, batch *b) {
  int exit_status;
  pid_t pid = b->pid;
  b->pid = 0;
  LM_TRY(lm_process_wait(pid, &exit_status));
  if (exit_status) return compile_error(l, b, exit_status);
  const char **paths = LM_NEW_N(l->out->arena, const char *, b->n);
  for (int i = 0; i < b->n; i++) paths[i] = l->path[b->kernels[i]];
  LM_TRY(lm_cache_add(b->so, paths, b->n));
  unlink(b->c);
  for (int i = 0; i < b->n; i++)
    if (!kernel_open(l, b->kernels[i])) {
      const char *why = dlerror();
      return lm_fail(LM_ENV, "cannot load compiled kernel %s: %s", paths[i], why ? why : "its symbol is missing");
    }
  return NULL;
}

static lm_status batches_run(loader *l, batch *batches, int n) {
  lm_status s = NULL;
  for (int i = 0; i < n && !s; i++) s = batch_start(l, &batches[i], i);
  for (int i = 0; i < n; i++) {
    if (!s) {
      s = batch_finish(l, &batches[i]);
    } else {
      int ignored;
      if (batches[i].pid) lm_status_free(lm_process_wait(batches[i].pid, &ignored));
      if (batches[i].c) unlink(batches[i].c);
    }
    if (batches[i].log) unlink(batches[i].log);
    if (batches[i].so) unlink(batches[i].so);
  }
  return s;
}

static lm_status missing_compile(loader *l, int *missing, int n, int cores) {
  if (!n) return NULL;
  const part *parts = parts_in_order(l, missing, n);
  units u = units_count(parts, n, cores < BATCHES_LEAST ? BATCHES_LEAST : cores < BATCHES_MAX ? cores : BATCHES_MAX);
  batch *batches = LM_NEW_N(l->out->arena, batch, u.loops + u.tiles);
  for (int i = 0; i < u.loops + u.tiles; i++) batches[i].kernels = LM_NEW_N(l->out->arena, int, n);
  deal(l, parts, n, batches, u);
  l->out->compiled = n;
  return batches_run(l, batches, u.loops + u.tiles);
}

static lm_status load(loader *l, int cores) {
  LM_TRY(lm_cpu_compiler_find(&l->cpu));
  LM_TRY(lm_cpu_march_check(&l->cpu));
  flags_make(&l->cpu, l->flags);
  LM_TRY(lm_cache_open(l->out->arena, &l->dir));
  LM_TRY(sources_collect(l));
  paths_make(l);
  int *missing = LM_NEW_N(l->out->arena, int, l->plan->n_kernels + 1);
  return missing_compile(l, missing, missing_find(l, missing), cores);
}

lm_status lm_kernels_load(const lm_plan *plan, const lm_exec_options *options, int cores, lm_kernels *out) {
  *out = (lm_kernels){.arena = lm_arena_create()};
  if (!plan->n_kernels) return NULL;
  out->fn = LM_NEW_N(out->arena, lm_kernel_fn *, plan->n_kernels);
  loader l = {.plan = plan,
              .options = options,
              .out = out,
              .source = LM_NEW_N(out->arena, const char *, plan->n_kernels),
              .path = LM_NEW_N(out->arena, const char *, plan->n_kernels)};
  lm_cpu_detect(&l.cpu);
  return load(&l, cores);
}

void lm_kernels_unload(lm_kernels *k) {
  for (uint32_t i = 0; i < k->n_handles; i++) dlclose(k->handles[i]);
  lm_arena_destroy(k->arena);
  *k = (lm_kernels){0};
}
