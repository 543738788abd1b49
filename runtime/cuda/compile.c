// compile.c - see compile.h.
//
// A cache entry consists of the size of the image (8 bytes), the image, and the compiler's log,
// which contains each kernel's registers and memory. All kernels of a program share one entry.
#include "runtime/cuda/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/cache.h"
#include "runtime/base/parallel.h"
#include "runtime/base/processors.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/sass.h"
#include "runtime/plan/walk.h"

enum {
  VECTOR = 16, // bytes of the widest memory access
  MESSAGE_MAX = 2000,
  PROGRAMS_MAX = 64
};
// --fmad contracts multiplications and additions. Which ones depends on the text of the program,
// the options and NVRTC's version; all are part of the key, so the same text computes the same
// bits.
static const char *const OPTIONS[] = {"-default-device", "-w", "--ptxas-options=-v", "--std=c++17",
                                      "--fmad=true"};

const char *const lm_cuda_archs[] = {"sm_80",  "sm_89",  "sm_90a", "sm_100a",
                                     "sm_103", "sm_120", NULL};

static bool arch_is_supported(const char *name) {
  for (int i = 0; lm_cuda_archs[i]; i++)
    if (!strcmp(lm_cuda_archs[i], name))
      return true;
  return false;
}

// ---- NVRTC

typedef struct nvrtc {
  void *library;
  union {
    struct {
#define SYM(result, name, parameters) result(*name) parameters;
#include "runtime/cuda/nvrtc_syms.def"
#undef SYM
    };
    void *functions[1];
  };
} nvrtc;

static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/nvrtc_syms.def"
#undef SYM
};

// NVRTC loads this library by its name when it first compiles. It is beside NVRTC, in a folder that
// the loader need not know.
static const char *builtins_name(const nvrtc *n, lm_arena *a) {
  int major = 0, minor = 0;
  n->nvrtcVersion(&major, &minor);
  return lm_arena_printf(a, "libnvrtc-builtins.so.%d.%d", major, minor);
}

// The library is never closed: NVRTC keeps threads and tables.
static lm_status nvrtc_open(int driver, nvrtc *out) {
  LM_TRY(lm_toolkit_open("NVRTC, the run-time compiler of CUDA,", "libnvrtc.so", driver,
                         &out->library));
  LM_TRY(lm_library_resolve(out->library, "NVRTC", names, LM_COUNT(names), out->functions));
  lm_arena *a = lm_arena_create();
  lm_library_preload(out->library, builtins_name(out, a));
  lm_arena_destroy(a);
  return NULL;
}

static void version_print(const nvrtc *n, lm_buf *out) {
  int major = 0, minor = 0;
  n->nvrtcVersion(&major, &minor);
  lm_buf_printf(out, "NVRTC %d.%d", major, minor);
}

lm_status lm_cuda_nvrtc_version(lm_buf *out) {
  nvrtc n;
  LM_TRY(nvrtc_open(0, &n));
  version_print(&n, out);
  return NULL;
}

// NVRTC accepts any suffix of the architectures that it lists: 90 includes sm_90a.
static lm_status arch_known(const nvrtc *n, const char *arch) {
  int count = 0, known[64];
  if (n->nvrtcGetNumSupportedArchs(&count) || count > (int)LM_COUNT(known) ||
      n->nvrtcGetSupportedArchs(known))
    return NULL;
  for (int i = 0; i < count; i++)
    if (known[i] == atoi(arch + strlen("sm_")))
      return NULL;
  lm_buf version = {0};
  version_print(n, &version);
  lm_status s = lm_fail(LM_ENV, "%s makes no code for %s: install a newer one", version.p, arch);
  lm_buf_free(&version);
  return s;
}

// ---- programs

// One translation unit.
typedef struct program {
  int *kernels;
  int n;
  size_t bytes;
  bool narrow;
  lm_buf text, log, image;
  int result;
  lm_status failed;
} program;

typedef struct compiler {
  const lm_plan *plan;
  const lm_cuda_compile_options *o;
  lm_cuda_code *out;
  nvrtc nvrtc;
  lm_cache cache;
  const char **source, **name; // by kernel; name: of its entry in the cache
  bool replaced;
  const bool *narrow, *early; // by kernel
  program *programs;
  int n_programs;
} compiler;

static bool is_unaligned(const lm_plan_buf *b) {
  int64_t all = b->offset;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    all |= b->stride[d];
  return all % VECTOR != 0;
}

// By kernel, in `a`: true if a step passes it a buffer that is not aligned to 16 bytes.
static bool *narrow_find(const lm_plan *plan, lm_arena *a) {
  bool *narrow = LM_NEW_N(a, bool, plan->n_kernels + 1);
  for (int f = 0; f < plan->n_funcs; f++)
    for (int i = 0; i < plan->funcs[f].n_steps; i++) {
      const lm_plan_step *s = &plan->funcs[f].steps[i];
      int kernel = lm_plan_step_kernel(s);
      for (int j = 0; kernel >= 0 && j < s->n_bufs; j++)
        narrow[kernel] |= is_unaligned(&s->bufs[j]);
    }
  return narrow;
}

typedef struct launches {
  const lm_plan *plan;
  bool *early;
  bool behind_kernel;
} launches;

static lm_status launch_see(void *user, const lm_plan_step *s) {
  launches *l = user;
  int kernel = lm_plan_step_kernel(s);
  if (kernel >= 0)
    l->early[kernel] |= l->behind_kernel && l->plan->kernels[kernel].launch.early;
  l->behind_kernel = kernel >= 0;
  return NULL;
}

bool *lm_cuda_early_find(const lm_plan *plan, const char *arch, lm_arena *a) {
  enum {
    FIRST = 90 // compute capability
  };
  launches l = {plan, LM_NEW_N(a, bool, plan->n_kernels + 1), false};
  lm_plan_walk walk;
  lm_plan_walk_open(plan, &walk);
  for (int f = 0; f < plan->n_funcs && atoi(arch + strlen("sm_")) >= FIRST; f++) {
    l.behind_kernel = false;
    lm_status_free(lm_plan_walk_run(&walk, &plan->funcs[f], NULL, launch_see, &l));
  }
  lm_plan_walk_close(&walk);
  return l.early;
}

static bool narrow(const compiler *c, int kernel) {
  return c->narrow[kernel];
}

static const char *prelude(const compiler *c) {
  return c->plan->prelude ? c->plan->prelude : "";
}

static lm_status source_replace(compiler *c, int i, const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 64 << 20, &text);
  if (!s)
    c->source[i] = lm_arena_strndup(c->out->arena, text.p, text.n);
  c->replaced |= !s;
  lm_buf_free(&text);
  return s;
}

static lm_status sources_collect(compiler *c) {
  lm_arena *a = c->out->arena;
  if (c->o->dump_dir)
    LM_TRY(lm_dir_make(c->o->dump_dir));
  for (int i = 0; i < c->plan->n_kernels; i++) {
    const lm_plan_kernel *k = &c->plan->kernels[i];
    const char *file = lm_arena_printf(a, "%s.cu", k->name);
    const char *text = k->source;
    c->source[i] = text;
    if (c->o->dump_dir)
      LM_TRY(lm_file_write_atomic(lm_path_join(a, c->o->dump_dir, file), text, strlen(text)));
    const char *replacement = c->o->load_dir ? lm_path_join(a, c->o->load_dir, file) : NULL;
    if (replacement && !access(replacement, R_OK))
      LM_TRY(source_replace(c, i, replacement));
  }
  return NULL;
}

static void names_make(compiler *c) {
  lm_buf version = {0};
  version_print(&c->nvrtc, &version);
  for (int i = 0; i < (int)LM_COUNT(OPTIONS); i++)
    lm_buf_printf(&version, " %s", OPTIONS[i]);
  for (int i = 0; i < c->plan->n_kernels; i++) {
    const char *parts[] = {c->plan->kernels[i].name,
                           c->source[i],
                           prelude(c),
                           c->o->arch,
                           version.p,
                           narrow(c, i) ? "narrow" : "",
                           c->early[i] ? "early" : "",
                           c->o->check_waits ? "check waits" : ""};
    c->name[i] =
        lm_arena_printf(c->out->arena, "%s.cubin", lm_cache_key_make(parts, LM_COUNT(parts)).text);
  }
  lm_buf_free(&version);
}

// ---- reading the cache

static int image_find(compiler *c, const char *bytes, size_t n) {
  lm_cuda_code *out = c->out;
  for (uint32_t i = 0; i < out->n_images; i++)
    if (out->images[i].n == n && !memcmp(out->images[i].bytes, bytes, n))
      return (int)i;
  lm_cuda_image image = {lm_arena_strndup(out->arena, bytes, n), n};
  LM_PUSH(out->arena, out->images, out->n_images, out->cap_images) = image;
  return (int)out->n_images - 1;
}

// The number that precedes `what` in the log; 0 if there is none.
static int number_before(const char *from, const char *end, const char *what) {
  const char *at = strstr(from, what);
  if (!at || at > end)
    return 0;
  while (at > from && (at[-1] < '0' || at[-1] > '9'))
    at--;
  while (at > from && at[-1] >= '0' && at[-1] <= '9')
    at--;
  return atoi(at);
}

// True if a line of the log contains `what` and, after it, the quoted name of the function.
static bool warned(const char *log, const char *what, const char *quoted) {
  for (const char *at = log; (at = strstr(at, what)); at++) {
    const char *named = strstr(at, quoted);
    if (named && named < at + strcspn(at, "\n"))
      return true;
  }
  return false;
}

static void log_read(const char *log, const char *name, lm_cuda_kernel *k) {
  static const char ENTRY[] = "Compiling entry function";
  char quoted[64], entry[sizeof quoted + sizeof ENTRY];
  snprintf(quoted, sizeof quoted, "'%s'", name);
  snprintf(entry, sizeof entry, "%s %s", ENTRY, quoted);
  k->hindered = warned(log, "serialized", quoted) || warned(log, "setmaxnreg ignored", quoted);
  const char *from = strstr(log, entry); // behind warnings that name it too
  if (!from)
    return;
  const char *end = strstr(from + 1, ENTRY);
  if (!end)
    end = from + strlen(from);
  k->registers = number_before(from, end, " registers");
  k->shared = number_before(from, end, " bytes smem");
  k->spilled = number_before(from, end, " bytes spill stores");
}

bool lm_cuda_kernel_flaw(const lm_cuda_kernel *k, lm_buf *out) {
  enum {
    FEW = 32 // bytes that a call or a prologue may spill, outside of loops
  };
  if (k->hindered)
    lm_buf_puts(out, "NVRTC serialized its warpgroup GEMMs or ignored its register counts");
  else if (k->spilled > FEW)
    lm_buf_printf(out, "each thread spills %d bytes of registers to memory", k->spilled);
  return k->hindered || k->spilled > FEW;
}

// Other images are those of tests, whose kernels are checked when they run.
static bool begins_first(const compiler *c, int i) {
  const lm_cuda_image *image = &c->out->images[c->out->kernels[i].image];
  return strstr(c->source[i], "lm_grid_begin();") &&
         (!lm_sass_is(image->bytes, image->n) ||
          lm_sass_begins_first(image->bytes, image->n, c->plan->kernels[i].name));
}

static bool kernel_open(compiler *c, int i) {
  lm_buf file = {0};
  uint64_t n = 0;
  lm_cache_entry entry;
  if (!lm_cache_find(&c->cache, c->name[i], &entry))
    return false;
  bool good = lm_cache_read(&c->cache, c->name[i], &entry, &file) && file.n > sizeof n;
  close(entry.fd);
  if (good)
    memcpy(&n, file.p, sizeof n);
  good = good && n <= file.n - sizeof n;
  if (good) {
    c->out->kernels[i].image = image_find(c, file.p + sizeof n, n);
    lm_buf_add(&file, "", 0); // terminates the log, which the hash followed
    log_read(file.p + sizeof n + n, c->plan->kernels[i].name, &c->out->kernels[i]);
    c->out->kernels[i].begins_first = begins_first(c, i);
  }
  lm_buf_free(&file);
  return good;
}

// ---- compiling

// Adds each kernel to the smallest program of its kind. Half of the programs are for narrow
// kernels.
static void distribute(compiler *c, const int *missing, int n, int cores) {
  int per_kind = n < cores ? n : cores;
  if (per_kind > PROGRAMS_MAX)
    per_kind = PROGRAMS_MAX;
  c->n_programs = 2 * per_kind;
  c->programs = LM_NEW_N(c->out->arena, program, c->n_programs + 1);
  for (int i = 0; i < c->n_programs; i++) {
    c->programs[i].kernels = LM_NEW_N(c->out->arena, int, n);
    c->programs[i].narrow = i >= per_kind;
  }
  for (int i = 0; i < n; i++) {
    program *kind = c->programs + (narrow(c, missing[i]) ? per_kind : 0), *p = kind;
    for (int j = 1; j < per_kind; j++)
      if (kind[j].bytes < p->bytes)
        p = &kind[j];
    p->kernels[p->n++] = missing[i];
    p->bytes += strlen(c->source[missing[i]]);
  }
}

static void program_write(const compiler *c, program *p) {
  if (p->narrow)
    lm_buf_puts(&p->text, "#define LM_NARROW\n");
  if (c->o->check_waits)
    lm_buf_puts(&p->text, "#define LM_CHECK_WAITS\n");
  lm_buf_puts(&p->text, prelude(c));
  for (int i = 0; i < p->n; i++) {
    const lm_plan_kernel *k = &c->plan->kernels[p->kernels[i]];
    lm_buf_printf(&p->text, "#undef LM_RESTRICT\n#define LM_RESTRICT%s\n",
                  c->early[p->kernels[i]] ? "" : " LM_READ_ONLY");
    lm_buf_printf(&p->text, "\n// %s\n#line 1 \"%s.cu\"\n%s\n", k->origin ? k->origin : "", k->name,
                  c->source[p->kernels[i]]);
  }
}

static void program_results(const nvrtc *n, void *handle, program *p) {
  size_t bytes = 0;
  if (!n->nvrtcGetProgramLogSize(handle, &bytes) && bytes) {
    p->log.p = lm_alloc(bytes + 1);
    p->log.n = strlen(n->nvrtcGetProgramLog(handle, p->log.p) ? "" : p->log.p);
  }
  if (p->result)
    return;
  p->result = n->nvrtcGetCUBINSize(handle, &bytes);
  p->image.p = lm_alloc(bytes + 1);
  p->image.n = bytes;
  if (!p->result)
    p->result = n->nvrtcGetCUBIN(handle, p->image.p);
}

static void program_compile(void *user, int64_t i, int worker) {
  compiler *c = user;
  program *p = &c->programs[i];
  void *handle = NULL;
  if (!p->n)
    return;
  program_write(c, p);
  p->result = c->nvrtc.nvrtcCreateProgram(&handle, p->text.p, "kernels.cu", 0, NULL, NULL);
  if (p->result)
    return;
  lm_buf arch = {0};
  lm_buf_printf(&arch, "--gpu-architecture=%s", c->o->arch);
  const char *options[LM_COUNT(OPTIONS) + 1] = {arch.p};
  memcpy(options + 1, OPTIONS, sizeof OPTIONS);
  p->result = c->nvrtc.nvrtcCompileProgram(handle, LM_COUNT(options), options);
  program_results(&c->nvrtc, handle, p);
  c->nvrtc.nvrtcDestroyProgram(&handle);
  lm_buf_free(&arch);
}

// The installation is incomplete, whatever the kernel.
static lm_status builtins_error(const compiler *c) {
  lm_arena *a = c->out->arena;
  return lm_fail(LM_ENV,
                 "%s cannot load %s: install both in one folder, or add the folder of the second "
                 "to LD_LIBRARY_PATH",
                 lm_library_path(a, c->nvrtc.library), builtins_name(&c->nvrtc, a));
}

static lm_status compile_error(const compiler *c, const program *p) {
  enum {
    BUILTIN_OPERATION_FAILURE = 7 // of NVRTC
  };
  if (p->result == BUILTIN_OPERATION_FAILURE)
    return builtins_error(c);
  return lm_fail(c->replaced ? LM_USER : LM_BUG_STATUS,
                 "NVRTC cannot compile a generated kernel for %s (%s):\n%.*s", c->o->arch,
                 c->nvrtc.nvrtcGetErrorString(p->result), MESSAGE_MAX, p->log.p ? p->log.p : "");
}

static lm_status program_file(compiler *c, const program *p, const lm_temp_dir *temp) {
  static const char MADE[] = "image";
  lm_arena *a = c->out->arena;
  uint64_t n = p->image.n;
  lm_buf file = {0};
  lm_buf_add(&file, &n, sizeof n);
  lm_buf_add(&file, p->image.p, p->image.n);
  lm_buf_puts(&file, p->log.p ? p->log.p : "");
  lm_status s = lm_file_write_atomic(lm_path_join(a, temp->path, MADE), file.p, file.n);
  lm_buf_free(&file);
  const char **names = LM_NEW_N(a, const char *, p->n);
  for (int i = 0; i < p->n; i++)
    names[i] = c->name[p->kernels[i]];
  return s ? s : lm_cache_add(&c->cache, temp, MADE, names, p->n);
}

static lm_status program_finish(compiler *c, program *p, const lm_temp_dir *temp) {
  if (p->result)
    return compile_error(c, p);
  LM_TRY(program_file(c, p, temp));
  for (int i = 0; i < p->n; i++)
    if (!kernel_open(c, p->kernels[i]))
      return lm_fail(LM_ENV, "%s/%s was just written but cannot be read", c->cache.dir,
                     c->name[p->kernels[i]]);
  return NULL;
}

static void program_free(program *p) {
  lm_buf_free(&p->text);
  lm_buf_free(&p->log);
  lm_buf_free(&p->image);
}

static lm_status missing_compile(compiler *c, const int *missing, int n) {
  if (!n)
    return NULL;
  distribute(c, missing, n, lm_threads(c->o->threads));
  c->out->compiled = n;
  lm_parallel(c->o->threads, c->n_programs, program_compile, c);
  lm_temp_dir temp;
  lm_status s = lm_cache_temp_dir(&c->cache, &temp);
  for (int i = 0; i < c->n_programs; i++) {
    if (!s && c->programs[i].n)
      s = program_finish(c, &c->programs[i], &temp);
    program_free(&c->programs[i]);
  }
  lm_temp_dir_remove(&temp);
  return s;
}

static lm_status compile(compiler *c) {
  if (!arch_is_supported(c->o->arch))
    return lm_fail(LM_USER, "unknown target %s", c->o->arch);
  LM_TRY(nvrtc_open(c->o->driver, &c->nvrtc));
  LM_TRY(arch_known(&c->nvrtc, c->o->arch));
  LM_TRY(lm_cache_open(c->out->arena, &c->cache));
  LM_TRY(sources_collect(c));
  names_make(c);
  int n = 0;
  int *missing = LM_NEW_N(c->out->arena, int, c->plan->n_kernels + 1);
  for (int i = 0; i < c->plan->n_kernels; i++)
    if (!kernel_open(c, i))
      missing[n++] = i;
  return missing_compile(c, missing, n);
}

lm_status lm_cuda_compile(const lm_plan *plan, const lm_cuda_compile_options *o,
                          lm_cuda_code *out) {
  double start = lm_now();
  *out = (lm_cuda_code){
      .arena = lm_arena_create(),
      .n_kernels = plan->n_kernels,
  };
  out->kernels = LM_NEW_N(out->arena, lm_cuda_kernel, plan->n_kernels + 1);
  compiler c = {.plan = plan,
                .o = o,
                .out = out,
                .source = LM_NEW_N(out->arena, const char *, plan->n_kernels + 1),
                .name = LM_NEW_N(out->arena, const char *, plan->n_kernels + 1),
                .cache = {
                    .fd = -1,
                    .shared_fd = -1,
                }};
  c.narrow = o->narrow ? o->narrow : narrow_find(plan, out->arena);
  c.early = lm_cuda_early_find(plan, o->arch, out->arena);
  lm_status s = compile(&c);
  lm_cache_close(&c.cache);
  out->seconds = lm_now() - start;
  if (s)
    lm_cuda_code_free(out);
  return s;
}

void lm_cuda_code_free(lm_cuda_code *c) {
  if (c->arena)
    lm_arena_destroy(c->arena);
  *c = (lm_cuda_code){0};
}
