// doctor.c - lmc doctor: what this machine has, and what each missing part would give.
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lmc/command.h"
#include "runtime/base/cache.h"
#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/cpu/detect.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/library.h"

static const lm_opt options[] = {LM_OPT_JSON, {0}};

typedef struct finding {
  const char *name;
  bool found;
  const char *what, *gives;
} finding;

typedef struct library {
  const char *name, *files[4], *gives;
  bool toolkit;
} library; // toolkit: in the versions that the driver takes
static const library libraries[] = {
    {"cuda driver", {"libcuda.so.1"}, "running on NVIDIA GPUs", false},
    {"nvrtc", {"libnvrtc.so"}, "compiling kernels for NVIDIA GPUs", true},
    {"cublaslt", {"libcublasLt.so"}, "matrix products on NVIDIA GPUs", true},
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
static finding gpu_find(lm_arena *a, int *out_driver) {
  lm_cuda_driver driver;
  lm_cuda_device x;
  finding f = {"gpu", false, "", "training on an NVIDIA GPU of compute capability 8.0 to 10.0"};
  lm_status s = lm_cuda_device_find(&driver, &x);
  lm_buf memory = {0};
  *out_driver = s ? 0 : x.driver;
  if (!s) {
    lm_show_bytes(&memory, (double)x.memory);
    f.found = x.arch != NULL;
    f.what =
        lm_arena_printf(a, "%s, %s, %s, driver for CUDA %d.%d", x.name, memory.p,
                        x.arch ? x.arch : "no code for it", x.driver / 1000, x.driver % 1000 / 10);
  }
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
  lm_buf kernels = {0}, limit = {0}, data = {0};
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
    return lm_arena_printf(a, "%d; a thread that waits for the others sleeps at once%s", threads,
                           why);
  return lm_arena_printf(
      a, "%d; a thread that waits for the others spins for at most %.0f us, then sleeps%s", threads,
      1e6 * spin, why);
}

static int findings_collect(lm_arena *a, finding *out) {
  lm_cpu_info *cpu = LM_NEW(a, lm_cpu_info);
  lm_cpu_detect(cpu);
  lm_status_free(lm_cpu_compiler_find(cpu)); // the finding says what is missing
  lm_status s;
  const char *cache = cache_text(a, &s);
  int n = 0, driver;
  finding gpu = gpu_find(a, &driver);
  out[n++] = (finding){
      "processor", true,
      lm_arena_printf(a, "%s, %d core%s", cpu->model, cpu->cores, cpu->cores == 1 ? "" : "s"), ""};
  out[n++] = (finding){"threads", true, threads_text(a), ""};
  out[n++] =
      (finding){"instructions", cpu->isa[0], cpu->isa, "fast kernels: at least AVX2 and FMA"};
  out[n++] = (finding){"bf16", lm_cpu_has_bf16(),
                       "products of the processor's own, which compute = auto takes",
                       "faster products on AVX512-BF16 or AMX; compute = auto is f32"};
  out[n++] =
      (finding){"compiler", cpu->compiler[0],
                lm_arena_printf(a, "%s, %s", lm_cpu_compiler_text(cpu, a), cpu->compiler_version),
                "kernels for the CPU: install gcc or clang, or name one in LMC_CC"};
  out[n++] = (finding){"onednn", true, cpu->onednn, ""};
  out[n++] =
      (finding){"kernel cache", !s, cache, "a folder that can be written, named in LMC_CACHE"};
  lm_status_free(s);
  for (size_t i = 0; i < LM_COUNT(libraries); i++) {
    const char *file = library_find(a, &libraries[i], driver);
    out[n++] = (finding){libraries[i].name, file != NULL, file, libraries[i].gives};
  }
  out[n++] = gpu;
  return n;
}

static void finding_text(const finding *f) {
  if (f->found)
    lm_cli_print("  found    %-14s %s\n", f->name, f->what);
  else
    lm_cli_print("  missing  %-14s would give %s\n", f->name, f->gives);
}

static void findings_json(const finding *f, int n) {
  lm_buf b = {0};
  lm_buf_puts(&b, "[");
  for (int i = 0; i < n; i++) {
    lm_buf_puts(&b, i ? ",\n {\"name\": " : "{\"name\": ");
    lm_buf_json(&b, f[i].name);
    lm_buf_printf(&b, ", \"found\": %s, \"what\": ", f[i].found ? "true" : "false");
    lm_buf_json(&b, f[i].found ? f[i].what : f[i].gives);
    lm_buf_puts(&b, "}");
  }
  lm_buf_puts(&b, "]\n");
  lm_cli_print("%s", b.p);
  lm_buf_free(&b);
}

// The CPU needs a compiler and somewhere to keep what it made; all else is a bonus.
static lm_status verdict(const finding *f, int n) {
  for (int i = 0; i < n; i++)
    if (!f[i].found && (!strcmp(f[i].name, "compiler") || !strcmp(f[i].name, "kernel cache")))
      return lm_fail(LM_ENV, "models can be checked here, but not trained: the %s is missing",
                     f[i].name);
  return NULL;
}

static lm_status run(lm_cli *cli) {
  finding list[10 + LM_COUNT(libraries)];
  int n = findings_collect(cli->ctx->arena, list);
  if (cli->json)
    findings_json(list, n);
  else
    lm_cli_print("lmc %s\n", LM_VERSION);
  for (int i = 0; i < n && !cli->json; i++)
    finding_text(&list[i]);
  lm_status s = verdict(list, n);
  const char *gpu = list[n - 1].found ? " and on its GPU" : "";
  if (!s && !cli->json)
    lm_cli_print("models can be trained on this machine's CPU%s\n", gpu);
  return s;
}

const lm_command lm_cmd_doctor = {
    .name = "doctor",
    .usage = "[--json]",
    .summary = "what was found on this machine, and what is missing",
    .options = options,
    .least = 0,
    .most = 0,
    .run = run,
    .help =
        "Exit status 2 if models cannot be trained here. What every command heeds in its "
        "environment:\n\n"
        "  LMC_CC           the C compiler, a program or words such as \"ccache gcc\" (default: "
        "CC, else cc)\n"
        "  LMC_CACHE        folder of compiled kernels and packed data (default: ~/.cache/lmc)\n"
        "  LMC_CACHE_SIZE   bytes of compiled kernels that are kept, as 500M or 4Gi (default: "
        "4Gi)\n"
        "  LMC_CPU          x86-64-v2, x86-64-v3 or x86-64-v4: uses no more of the processor than "
        "that\n"
        "  OMP_NUM_THREADS  the largest number of threads (by default one for each processor of "
        "the affinity mask, but no more\n"
        "                   than the CPU quota of the control group allows)\n"
        "  OMP_WAIT_POLICY  how a thread waits for the others: passive sleeps at once, active "
        "spins for up to a second; by default\n"
        "                   it spins for up to 100 microseconds, less while that fails, and then "
        "sleeps. The results are the same.\n\n"
        "  lmc doctor\n"};
