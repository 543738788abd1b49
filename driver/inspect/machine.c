// machine.c - the parts of a machine that training needs.
#include "driver/inspect/machine.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "driver/text.h"
#include "runtime/base/cache.h"
#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/cpu/compiler.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"

typedef struct library {
  const char *name;
  const char *files[4];
  const char *gives;
  bool toolkit;
} library; // toolkit: of a version that the driver supports
static const library libraries[] = {
    {"cuda driver", {"libcuda.so.1"}, "running on NVIDIA GPUs", false},
    {"nvrtc", {"libnvrtc.so"}, "compiling kernels for NVIDIA GPUs", true},
    {"cublaslt", {"libcublasLt.so"}, "GEMMs on NVIDIA GPUs", true},
    {"nccl", {"libnccl.so.2"}, "runs on several NVIDIA GPUs", false},
};

static const char *library_find(lm_arena *a, const library *l, int driver) {
  void *handle;
  lm_status missing = l->toolkit ? lm_toolkit_open(l->name, l->files[0], driver, &handle)
                                 : lm_library_open(l->name, l->files, &handle);
  lm_status_free(missing);
  if (missing)
    return NULL;
  const char *file = lm_library_path(a, handle);
  lm_library_close(handle);
  return file;
}

// "NVIDIA H100 80GB HBM3, 85.0 GB, sm_90a, driver for CUDA 13.0"
static lm_finding gpu_find(lm_arena *a, int *out_driver) {
  lm_cuda_driver driver;
  lm_cuda_device x;
  lm_finding f = {.name = "gpu",
                  .what = "",
                  .gives = "training on an NVIDIA GPU of compute capability 8.0 to 12.1"};
  lm_status s = lm_cuda_device_find(0, &driver, &x);
  lm_buf memory = {0};
  *out_driver = s ? 0 : x.driver;
  if (!s) {
    lm_show_bytes(&memory, (double)x.target.memory);
    f.found = *x.target.arch != 0;
    f.what = lm_arena_printf(a, "%s, %s, %s, driver for CUDA %d.%d", x.name, memory.p,
                             x.target.arch, x.driver / 1000, x.driver % 1000 / 10);
  }
  if (!s && !f.found)
    f.gives = lm_arena_printf(a, "%s; %s has %d.%d", f.gives, x.name, x.major, x.minor);
  lm_buf_free(&memory);
  lm_status_free(s);
  return f;
}

static uint64_t folder_bytes(lm_arena *a, const char *dir) {
  uint64_t bytes = 0;
  struct stat st;
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));)
    if (!lstat(lm_path_join(a, dir, e->d_name), &st) && S_ISREG(st.st_mode))
      bytes += (uint64_t)st.st_size;
  if (d)
    closedir(d);
  return bytes;
}

// "/root/.cache/lmc, kernels 12.3 MB of at most 4.29 GB (the least recently used go first),
// data 5.0 MB"
static const char *cache_text(lm_arena *a, lm_status *out_status) {
  lm_cache c;
  *out_status = lm_cache_open(a, &c);
  if (*out_status)
    return lm_arena_printf(a, "%s", (*out_status)->text);
  lm_buf kernels = {0};
  lm_buf limit = {0};
  lm_buf data = {0};
  lm_show_bytes(&kernels, (double)lm_cache_bytes(&c));
  lm_show_bytes(&limit, (double)c.limit);
  lm_show_bytes(&data, (double)folder_bytes(a, lm_path_join(a, c.dir, "data")));
  const char *text = lm_arena_printf(
      a, "%s%s, kernels %s of at most %s (the least recently used go first), data %s%s%s", c.dir,
      c.why_temporary ? " (until lmc ends)" : "", kernels.p, limit.p, data.p,
      c.shared ? "; read besides: " : "", c.shared ? c.shared : "");
  lm_cache_close(&c);
  lm_buf_free(&kernels);
  lm_buf_free(&limit);
  lm_buf_free(&data);
  return text;
}

// "2; one that waits for the others spins for at most 100 us, then sleeps"
static const char *threads_text(lm_arena *a) {
  int threads = lm_threads(0);
  double spin = lm_team_spin_max(threads);
  if (threads == 1)
    return "1";
  const char *why = getenv("OMP_WAIT_POLICY") ? ", by OMP_WAIT_POLICY" : "";
  if (spin == 0)
    return lm_arena_printf(a, "%d; a thread that waits for others sleeps at once%s", threads, why);
  return lm_arena_printf(
      a, "%d; a thread that waits for the others spins for at most %.0f us, then sleeps%s", threads,
      1e6 * spin, why);
}

static void finding_add(lm_machine_findings *x, lm_finding f) {
  LM_ASSERT(x->n < LM_FINDINGS);
  x->v[x->n++] = f;
}

static void processor_inspect(lm_arena *a, const lm_cpu_info *cpu, lm_machine_findings *out) {
  const char *cores =
      lm_arena_printf(a, "%s, %d core%s", cpu->model, cpu->cores, cpu->cores == 1 ? "" : "s");
  finding_add(out, (lm_finding){
                       .name = "processor",
                       .found = true,
                       .what = cores,
                   });
  finding_add(out, (lm_finding){
                       .name = "threads",
                       .found = true,
                       .what = threads_text(a),
                   });
  finding_add(out, (lm_finding){.name = "instructions",
                                .found = cpu->isa[0],
                                .what = lm_arena_printf(a, "%s%s", cpu->isa, lm_cpu_remark()),
                                .gives = "fast kernels: at least AVX2 and FMA, or NEON"});
  finding_add(out,
              (lm_finding){.name = "bf16",
                           .found = lm_cpu_has_bf16(),
                           .what = "GEMMs by the processor's own instructions, which compute = "
                                   "auto uses",
                           .gives = "faster GEMMs on AVX512-BF16, AMX or aarch64 with bf16; "
                                    "compute = auto is f32"});
}

static void libraries_inspect(lm_arena *a, lm_machine_findings *out) {
  int driver;
  lm_finding gpu = gpu_find(a, &driver);
  for (size_t i = 0; i < LM_COUNT(libraries); i++) {
    const char *file = library_find(a, &libraries[i], driver);
    finding_add(out, (lm_finding){.name = libraries[i].name,
                                  .found = file != NULL,
                                  .what = file,
                                  .gives = libraries[i].gives});
  }
  finding_add(out, gpu);
  out->gpu = gpu.found;
}

void lm_machine_inspect(lm_arena *a, lm_machine_findings *out) {
  lm_cpu_info *cpu = LM_NEW(a, lm_cpu_info);
  lm_status no_cache;
  *out = (lm_machine_findings){0};
  lm_cpu_detect(cpu);
  lm_status_free(lm_cpu_compiler_find(NULL, cpu)); // the finding reports that it is missing
  processor_inspect(a, cpu, out);
  finding_add(out,
              (lm_finding){.name = "compiler",
                           .found = cpu->compiler[0],
                           .required = true,
                           .what = lm_arena_printf(a, "%s, %s", lm_cpu_compiler_text(cpu, a),
                                                   cpu->compiler_version),
                           .gives = "kernels for the CPU: install gcc or clang, or name one in "
                                    "LMC_CC, without options"});
  finding_add(out, (lm_finding){
                       .name = "onednn",
                       .found = true,
                       .what = cpu->onednn,
                   });
  const char *cache = cache_text(a, &no_cache);
  finding_add(out, (lm_finding){.name = "kernel cache",
                                .found = !no_cache,
                                .required = true,
                                .what = cache,
                                .gives = "a folder that can be written, named in LMC_CACHE"});
  lm_status_free(no_cache);
  libraries_inspect(a, out);
}

lm_status lm_machine_verdict(const lm_machine_findings *x) {
  for (int i = 0; i < x->n; i++)
    if (x->v[i].required && !x->v[i].found)
      return lm_fail(LM_ENV, "models can be checked here, but not trained: the %s is missing",
                     x->v[i].name);
  return NULL;
}
