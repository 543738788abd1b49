// kernels.c - see kernels.h.
//
// Kernels that are not in the cache are distributed over at most one translation unit per core,
// compiled in parallel. Each unit becomes one shared object that is cached under the keys of all
// its kernels. GEMMs and attention call functions that lmc contains (lm_cpu_tiles).
#define _GNU_SOURCE
#include "runtime/cpu/kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/cache.h"
#include "runtime/cpu/compiler.h"
#include "runtime/cpu/process.h"

// Generated loops are already unrolled where that is profitable: the passes that -O3 adds take time
// and gain nothing.
static const char *const FLAGS[] = {
    "-std=gnu11", "-ftree-vectorize",   "-fopenmp-simd", "-fno-math-errno", "-ffp-contract=off",
    "-w",         "-fno-trapping-math", "-shared",       "-fPIC",           "-x",
    "c"};
// By default GCC's -O2 vectorizes only if that is free, so it needs a cost model; Clang does not
// know the option and needs none. GCC links units in half of the time without start files and the
// C library: the loader finds memcpy and memset, which GCC calls by itself, in the one of lmc.
static const char *const GCC_FLAGS[] = {"-fvect-cost-model=dynamic", "-nostdlib",
                                        "-fno-use-linker-plugin"};
// The passes of GCC's -O2 that make loops faster, and complete unrolling of loops of at most 4
// vectors, which keeps the partial results of a sum in registers. GCC combines at most two
// instructions: the search for three takes half of the time in loops of thousands of instructions
// and finds next to nothing. If units contain the functions of tiles, they need all of -O2.
static const char *const GCC_LOOPS[] = {"-O1",
                                        "-fschedule-insns2",
                                        "-fgcse",
                                        "-frerun-cse-after-loop",
                                        "-fpeel-loops",
                                        "--param=max-completely-peel-times=4",
                                        "--param=max-peel-times=0",
                                        "--param=max-combine-insns=2",
                                        NULL},
                         *const ALL[] = {"-O2", NULL};
enum {
  BATCHES_MAX = 64,
  MESSAGE_MAX = 2000
};

typedef struct loader {
  const lm_plan *plan;
  const lm_exec_options *options;
  lm_kernels *out;
  lm_cpu_info cpu;
  const void *tiles;                  // of lm_cpu_tiles
  const char *flags[LM_KERNEL_FLAGS]; // of the compiler, NULL-terminated
  const char *const *level;           // optimization flags, NULL-terminated
  lm_cache cache;
  lm_temp_dir temp;    // where units are compiled
  const char **source; // indexed as plan->kernels; sources from load_dir replace the plan's
  const char **name;   // of the kernels' cache entries
  bool replaced;       // some source is from load_dir
} loader;

// One translation unit.
typedef struct batch {
  int *kernels;
  int n;
  int cost;
  const char *c, *so; // file names in the temporary folder
  int output;         // descriptor of the compiler's output; -1: none
  pid_t pid;          // 0: not started
} batch;

static lm_status source_replace(loader *l, int i, const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 64 << 20, &text);
  if (!s)
    l->source[i] = lm_arena_strndup(l->out->arena, text.p, text.n);
  l->replaced |= !s;
  lm_buf_free(&text);
  return s;
}

static lm_status sources_collect(loader *l) {
  const lm_exec_options *o = l->options;
  if (o->dump_dir)
    LM_TRY(lm_dir_make(o->dump_dir));
  for (int i = 0; i < l->plan->n_kernels; i++) {
    const lm_plan_kernel *k = &l->plan->kernels[i];
    const char *file = lm_arena_printf(l->out->arena, "%s.c", k->name);
    l->source[i] = k->source;
    if (o->dump_dir)
      LM_TRY(lm_file_write_atomic(lm_path_join(l->out->arena, o->dump_dir, file), k->source,
                                  strlen(k->source)));
    const char *replacement = o->load_dir ? lm_path_join(l->out->arena, o->load_dir, file) : NULL;
    if (replacement && !access(replacement, R_OK))
      LM_TRY(source_replace(l, i, replacement));
  }
  if (o->load_dir && !l->replaced)
    return lm_fail(LM_USER, "%s holds no source of these kernels; expected files NAME.c as dumped",
                   o->load_dir);
  return NULL;
}

static bool is_clang(const lm_cpu_info *cpu) {
  return strstr(cpu->compiler_version, "clang");
}

const char **lm_kernels_flags(const lm_cpu_info *cpu, const char **out) {
  bool clang = is_clang(cpu);
  for (size_t i = 0; i < LM_COUNT(FLAGS); i++)
    *out++ = FLAGS[i];
  for (size_t i = 0; i < LM_COUNT(GCC_FLAGS) && !clang; i++)
    *out++ = GCC_FLAGS[i];
  return out;
}

// Adds the flags that depend on the machine. Compilers prefer 256-bit vectors, since older cores
// lower their frequency for AVX-512; cores with AVX512-BF16 do not. The system may deny the use of
// AMX even if the processor has it.
static void flags_make(loader *l) {
  const lm_cpu_info *cpu = &l->cpu;
  const char **out = lm_kernels_flags(cpu, l->flags);
  int set = lm_cpu_tiles(cpu, &l->tiles);
  l->level = set && !is_clang(cpu) ? GCC_LOOPS : ALL;
  if (lm_cpu_vector(cpu) == 16 && strstr(cpu->isa, "bf16"))
    *out++ = "-mprefer-vector-width=512";
  if (strstr(cpu->isa, "amx") && !lm_cpu_tiles_ask())
    *out++ = "-DLM_AMX_REFUSED";
  if (set)
    *out++ = lm_arena_printf(l->out->arena, "-DLM_TILES_GIVEN=%d", set);
  *out = NULL;
}

// All flags that kernels are compiled with, for the key.
static const char *flags_text(const loader *l) {
  lm_buf text = {0};
  for (const char *const *flag = l->flags; *flag; flag++)
    lm_buf_printf(&text, "%s ", *flag);
  for (const char *const *flag = l->level; *flag; flag++)
    lm_buf_printf(&text, "%s ", *flag);
  lm_buf_printf(&text, "%s %016llx", l->cpu.march, (unsigned long long)l->cpu.features);
  const char *kept = lm_arena_strndup(l->out->arena, text.p, text.n);
  lm_buf_free(&text);
  return kept;
}

static void names_make(loader *l) {
  const char *common[] = {l->plan->prelude ? l->plan->prelude : "", flags_text(l), l->cpu.compiler,
                          l->cpu.compiler_words, l->cpu.compiler_version};
  lm_cache_key key = lm_cache_key_make(common, LM_COUNT(common));
  for (int i = 0; i < l->plan->n_kernels; i++) {
    const char *parts[] = {l->plan->kernels[i].name, l->source[i], key.text};
    l->name[i] =
        lm_arena_printf(l->out->arena, "%s.so", lm_cache_key_make(parts, LM_COUNT(parts)).text);
  }
}

// ---- loading

// An open file in the cache, verified, and its dlopen handle.
struct lm_kernel_unit {
  lm_cache_entry file;
  void *handle;
};
typedef struct lm_kernel_unit unit;

// Loads the file that was verified, through its descriptor, whatever its name refers to by now.
// dlopen identifies objects by the text of their path, and descriptor numbers are reused, so each
// path is spelled uniquely: a serial number in binary, written with "./" and "//".
static void *descriptor_load(int fd) {
  static _Atomic uint32_t serial;
  lm_buf path = {0};
  lm_buf_puts(&path, "/proc/self/fd/");
  for (uint32_t n = ++serial; n; n /= 2)
    lm_buf_puts(&path, n % 2 ? "./" : "//");
  lm_buf_printf(&path, "%d", fd);
  void *handle = dlopen(path.p, RTLD_NOW | RTLD_LOCAL);
  lm_buf_free(&path);
  return handle;
}

// Takes ownership of the file. NULL if it is damaged or cannot be loaded.
static const unit *unit_load(loader *l, const char *name, const lm_cache_entry *file) {
  lm_buf content = {0};
  bool whole = lm_cache_read(&l->cache, name, file, &content);
  lm_buf_free(&content);
  unit u = {*file, whole ? descriptor_load(file->fd) : NULL};
  if (!u.handle) {
    close(file->fd);
    return NULL;
  }
  const void **tiles = dlsym(u.handle, "lm_tiles_given");
  if (tiles)
    *tiles = l->tiles;
  unit *kept = &LM_PUSH(l->out->arena, l->out->units, l->out->n_units, l->out->cap_units);
  *kept = u;
  return kept;
}

// Kernels that were compiled together are one file under several names.
static const unit *unit_find(loader *l, const char *name) {
  lm_cache_entry file;
  if (!lm_cache_find(&l->cache, name, &file))
    return NULL;
  for (uint32_t i = 0; i < l->out->n_units; i++) {
    const unit *u = &l->out->units[i];
    if (memcmp(u->file.id, file.id, sizeof file.id))
      continue;
    close(file.fd);
    return u;
  }
  return unit_load(l, name, &file);
}

static bool kernel_open(loader *l, int i) {
  const unit *u = unit_find(l, l->name[i]);
  void *symbol = u ? dlsym(u->handle, l->plan->kernels[i].name) : NULL;
  if (symbol)
    memcpy(&l->out->fn[i], &symbol, sizeof symbol); // ISO C has no cast from object to function
  return symbol;
}

static int missing_find(loader *l, int *missing) {
  int n = 0;
  for (int i = 0; i < l->plan->n_kernels; i++)
    if (!kernel_open(l, i))
      missing[n++] = i;
  return n;
}

// ---- compiling

// Estimated milliseconds of GCC per kernel, per loop, and per kilobyte of text, which is more in
// attention. A unit without kernels takes 20 to 30 ms, so UNIT_COST is the least that one is made
// for.
enum {
  KERNEL_COST = 3,
  LOOP_COST = 2,
  TEXT_COST = 2,
  ATTEND_COST = 9,
  UNIT_COST = 60
};

typedef struct part {
  int kernel;
  int cost;
} part;

static part part_of(const loader *l, int kernel) {
  const char *source = l->source[kernel];
  bool attends = strstr(source, "lm_dot_");
  part x = {kernel, KERNEL_COST};
  x.cost += (int)strlen(source) * (attends ? ATTEND_COST : TEXT_COST) / 1000;
  for (const char *at = source; (at = strstr(at, "for (")); at++)
    x.cost += LOOP_COST;
  return x;
}

// Most expensive first; equal ones in the plan's order.
static part *parts_in_order(const loader *l, const int *missing, int n) {
  part *parts = LM_NEW_N(l->out->arena, part, n);
  for (int i = 0; i < n; i++) {
    part x = part_of(l, missing[i]);
    int j = i;
    for (; j && parts[j - 1].cost < x.cost; j--)
      parts[j] = parts[j - 1];
    parts[j] = x;
  }
  return parts;
}

static int batches_count(const part *parts, int n, int cores) {
  int cost = 0;
  for (int i = 0; i < n; i++)
    cost += parts[i].cost;
  int most = cores < BATCHES_MAX ? cores : BATCHES_MAX;
  int count = cost / UNIT_COST < n ? cost / UNIT_COST : n;
  count = count < most ? count : most;
  return count > 1 ? count : 1;
}

// Adds each kernel to the cheapest batch.
static void distribute(const part *parts, int n, batch *batches, int n_batches) {
  for (int i = 0; i < n; i++) {
    batch *to = batches;
    for (int j = 1; j < n_batches; j++)
      if (batches[j].cost < to->cost)
        to = &batches[j];
    to->kernels[to->n++] = parts[i].kernel;
    to->cost += parts[i].cost;
  }
}

static lm_status batch_write(loader *l, batch *b) {
  lm_buf text = {0};
  if (l->plan->prelude)
    lm_buf_puts(&text, l->plan->prelude);
  for (int i = 0; i < b->n; i++) {
    const char *origin = l->plan->kernels[b->kernels[i]].origin;
    lm_buf_printf(&text, "\n// %s\n%s\n", origin ? origin : "", l->source[b->kernels[i]]);
  }
  lm_status s = lm_cache_temp_write(&l->temp, b->c, text.p, text.n);
  lm_buf_free(&text);
  return s;
}

// The compiler runs in the temporary folder and gets bare file names, so no path of the user can be
// taken for an option.
static lm_status batch_start(loader *l, batch *b, int index) {
  lm_arena *a = l->out->arena;
  b->c = lm_arena_printf(a, "unit-%d.c", index);
  b->so = lm_arena_printf(a, "unit-%d.so", index);
  LM_TRY(batch_write(l, b));
  LM_TRY(lm_process_output(&b->output));
  const char *argv[LM_COMPILER_WORDS + LM_KERNEL_FLAGS + LM_COUNT(GCC_LOOPS) + 8];
  const char **at = argv + lm_cpu_compiler_call(&l->cpu, a, argv);
  for (const char **flag = l->flags; *flag; flag++)
    *at++ = *flag;
  for (const char *const *flag = l->level; *flag; flag++)
    *at++ = *flag;
  const char *helpers = is_clang(&l->cpu) ? NULL : "-lgcc"; // Clang adds its own
  const char *tail[] = {
      lm_arena_printf(a, "-march=%s", l->cpu.march), b->c, "-o", b->so, "-lm", helpers, NULL};
  memcpy(at, tail, sizeof tail);
  return lm_process_start(argv, l->temp.fd, b->output, &b->pid);
}

// Errors that are due to the machine, not to the source: no disk space, no memory, too many files.
static const int MACHINE_ERRORS[] = {ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE, EAGAIN, EROFS, EIO};

// The errno whose text appears in the compiler's output; 0 if there is none.
static int error_named(const char *messages) {
  for (size_t i = 0; i < LM_COUNT(MACHINE_ERRORS); i++)
    if (strstr(messages, strerror(MACHINE_ERRORS[i])))
      return MACHINE_ERRORS[i];
  return 0;
}

static bool is_machine_error(int exit_status, const char *messages) {
  static const char *const patterns[] = {"signal terminated program", "unable to execute command",
                                         "memory exhausted", "out of memory", "cannot execute"};
  bool found = exit_status > LM_PROCESS_SIGNAL || error_named(messages);
  for (size_t i = 0; i < LM_COUNT(patterns); i++)
    found = found || strstr(messages, patterns[i]);
  return found;
}

// Keeps the failed source in the cache folder and returns a note with its path; "" if that fails.
static const char *source_keep(loader *l, const batch *b) {
  lm_arena *a = l->out->arena;
  const char *entry = l->name[b->kernels[0]];
  const char *name = lm_arena_printf(a, "failed-%.*s.c", (int)strcspn(entry, "."), entry);
  if (l->cache.why_temporary || renameat(l->temp.fd, b->c, l->cache.fd, name))
    return "";
  return lm_arena_printf(a, "; its source is kept in %s/%s", l->cache.dir, name);
}

// True if LMC_CC gives the compiler options, which may be unknown to it, or such as -Wl,-z,defs
// forbid what units need.
static bool has_options(const lm_cpu_info *cpu) {
  const char *words = cpu->compiler_words;
  return *words == '-' || strstr(words, " -") || strstr(words, "\t-");
}

// What to do about a failure that is due to the machine or to LMC_CC.
static const char *environment_hint(const loader *l, bool machine_error, const char *messages) {
  if (machine_error)
    return lm_errno_hint(error_named(messages));
  if (!has_options(&l->cpu))
    return "";
  return "; leave the options out of LMC_CC: units are compiled with those of lmc alone, and "
         "linked "
         "without the C library";
}

static lm_status compile_error(loader *l, const batch *b, int exit_status) {
  lm_buf messages = {0};
  lm_status_free(lm_process_output_read(b->output, 16 << 20, &messages));
  lm_buf_puts(&messages, "");
  bool killed = exit_status > LM_PROCESS_SIGNAL;
  if (killed)
    lm_buf_printf(&messages, "killed by signal %d: %s\n", exit_status - LM_PROCESS_SIGNAL,
                  strsignal(exit_status - LM_PROCESS_SIGNAL));
  bool machine_error = is_machine_error(exit_status, messages.p);
  bool environment = machine_error || (has_options(&l->cpu) && !l->replaced);
  lm_status s = lm_fail(environment   ? LM_ENV
                        : l->replaced ? LM_USER
                                      : LM_BUG_STATUS,
                        "%s cannot compile a generated kernel (status %d)%s%s:\n%.*s",
                        lm_cpu_compiler_text(&l->cpu, l->out->arena), exit_status,
                        environment ? environment_hint(l, machine_error, messages.p) : "",
                        environment ? "" : source_keep(l, b), MESSAGE_MAX, messages.p);
  lm_buf_free(&messages);
  return s;
}

static lm_status output_check(const loader *l, const batch *b) {
  if (!faccessat(l->temp.fd, b->so, F_OK, 0))
    return NULL;
  return lm_fail(LM_ENV,
                 "%s exited with status 0 but wrote no file: it is not a C compiler that accepts "
                 "GCC's options; set LMC_CC to another one",
                 lm_cpu_compiler_text(&l->cpu, l->out->arena));
}

// `name`: the file of the kernel in the cache.
static lm_status load_error(const loader *l, const char *name) {
  const char *why = dlerror();
  struct statvfs system;
  bool noexec = !fstatvfs(l->cache.fd, &system) && system.f_flag & ST_NOEXEC;
  return lm_fail(LM_ENV, "cannot load compiled kernel %s/%s: %s%s", l->cache.dir, name,
                 why ? why : "its symbol is missing",
                 noexec ? "; its file system is mounted with noexec: set LMC_CACHE to a folder of "
                          "another one"
                        : "");
}

static lm_status batch_finish(loader *l, batch *b) {
  int exit_status;
  pid_t pid = b->pid;
  b->pid = 0;
  LM_TRY(lm_process_wait(pid, &exit_status));
  if (exit_status)
    return compile_error(l, b, exit_status);
  LM_TRY(output_check(l, b));
  const char **names = LM_NEW_N(l->out->arena, const char *, b->n);
  for (int i = 0; i < b->n; i++)
    names[i] = l->name[b->kernels[i]];
  LM_TRY(lm_cache_add(&l->cache, &l->temp, b->so, names, b->n));
  for (int i = 0; i < b->n; i++)
    if (!kernel_open(l, b->kernels[i]))
      return load_error(l, names[i]);
  return NULL;
}

static lm_status batches_run(loader *l, batch *batches, int n) {
  lm_status s = lm_cache_temp_dir(&l->cache, &l->temp);
  for (int i = 0; i < n && !s; i++)
    s = batch_start(l, &batches[i], i);
  for (int i = 0; i < n; i++) {
    int ignored;
    if (!s)
      s = batch_finish(l, &batches[i]);
    if (batches[i].pid)
      lm_status_free(lm_process_wait(batches[i].pid, &ignored));
    if (batches[i].output >= 0)
      close(batches[i].output);
  }
  return s;
}

static lm_status missing_compile(loader *l, int *missing, int n, int cores) {
  if (!n)
    return NULL;
  const part *parts = parts_in_order(l, missing, n);
  int count = batches_count(parts, n, cores);
  batch *batches = LM_NEW_N(l->out->arena, batch, count);
  for (int i = 0; i < count; i++)
    batches[i] = (batch){
        .kernels = LM_NEW_N(l->out->arena, int, n),
        .output = -1,
    };
  distribute(parts, n, batches, count);
  l->out->compiled = n;
  return batches_run(l, batches, count);
}

static lm_status library_load(loader *l, int cores) {
  LM_TRY(lm_cpu_march_check(&l->cpu));
  LM_TRY(lm_cache_open(l->out->arena, &l->cache));
  LM_TRY(lm_cpu_compiler_find(&l->cache, &l->cpu));
  flags_make(l);
  LM_TRY(sources_collect(l));
  names_make(l);
  int *missing = LM_NEW_N(l->out->arena, int, l->plan->n_kernels + 1);
  return missing_compile(l, missing, missing_find(l, missing), cores);
}

lm_status lm_kernels_load(const lm_plan *plan, const lm_exec_options *options, int cores,
                          lm_kernels *out) {
  *out = (lm_kernels){.arena = lm_arena_create()};
  if (!plan->n_kernels)
    return NULL;
  out->fn = LM_NEW_N(out->arena, lm_kernel_fn *, plan->n_kernels);
  loader l = {
      .plan = plan,
      .options = options,
      .out = out,
      .source = LM_NEW_N(out->arena, const char *, plan->n_kernels),
      .name = LM_NEW_N(out->arena, const char *, plan->n_kernels),
      .cache = {.fd = -1, .shared_fd = -1},
  };
  lm_cpu_detect(&l.cpu);
  lm_status s = library_load(&l, cores);
  lm_temp_dir_remove(&l.temp);
  lm_cache_close(&l.cache);
  return s;
}

void lm_kernels_unload(lm_kernels *k) {
  for (uint32_t i = 0; i < k->n_units; i++) {
    dlclose(k->units[i].handle);
    close(k->units[i].file.fd);
  }
  lm_arena_destroy(k->arena);
  *k = (lm_kernels){0};
}
