// cache_test.c - cached kernels on disk: reused, rebuilt when damaged, shared between processes;
// errors without a compiler or when a kernel does not compile.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cpu/compiler.h"
#include "runtime/cpu/exec.h"
#include "tests/runtime/check.h"

enum {
  KERNELS = 5
};

static lm_plan_kernel kernels[KERNELS];
static char sources[KERNELS][200], names[KERNELS][16], dir[] = "/tmp/lmc-cache-test-XXXXXX";
static lm_plan plan = {
    .kernels = kernels, .n_kernels = KERNELS, .prelude = "#define ADD(x, y) ((x) + (y))\n"};

// Kernel i adds i to the int at buf[0].
static void plan_make(int salt) {
  for (int i = 0; i < KERNELS; i++) {
    snprintf(names[i], sizeof names[i], "k%d_%d", salt, i);
    snprintf(sources[i], sizeof sources[i],
             "void %s(char *const *buf, const long *var, long lo, long hi) { *(int *)buf[0] = "
             "ADD(*(int *)buf[0], %d); }\n",
             names[i], i);
    kernels[i] = (lm_plan_kernel){names[i], sources[i], "here.lm:1"};
  }
}

static lm_plan_func func_make(lm_plan_step *steps, lm_plan_buf *buf) {
  *buf = (lm_plan_buf){.arena = LM_ARENA_IO, .live = -1, .bytes = 4};
  plan.arena_bytes[LM_ARENA_IO] = 64;
  for (int i = 0; i < KERNELS; i++)
    steps[i] = (lm_plan_step){.kind = LM_STEP_KERNEL,
                              .kernel = i,
                              .space = {.fixed = 1},
                              .bufs = buf,
                              .n_bufs = 1,
                              .n_write = 1,
                              .label = "add"};
  return (lm_plan_func){.name = "f", .steps = steps, .n_steps = KERNELS};
}

// Runs all kernels once; returns the number of kernels that were compiled.
static int run(const lm_exec_options *o) {
  lm_plan_step steps[KERNELS];
  lm_plan_buf buf;
  lm_plan_func f = func_make(steps, &buf);
  plan.funcs = &f;
  plan.n_funcs = 1;
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(&plan, o, &e));
  CHECK_OK(lm_exec_run(e, &f, NULL));
  int sum;
  CHECK_OK(lm_exec_read(e, LM_ARENA_IO, 0, sizeof sum, &sum));
  CHECK(sum == 0 + 1 + 2 + 3 + 4);
  int compiled = lm_exec_kernels_compiled(e);
  lm_exec_destroy(e);
  plan.n_funcs = 0;
  return compiled;
}

// Calls fn on the path of each file of the cache with that suffix; returns their number.
static int files_each(const char *ending, void (*fn)(const char *path)) {
  DIR *d = opendir(dir);
  int n = 0;
  CHECK(d);
  for (struct dirent *entry; (entry = readdir(d));) {
    char path[400];
    size_t length = strlen(entry->d_name);
    size_t end = strlen(ending);
    if (length < end || strcmp(entry->d_name + length - end, ending) || entry->d_name[0] == '.')
      continue;
    snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
    n++;
    if (fn)
      fn(path);
  }
  closedir(d);
  return n;
}

static void file_remove(const char *path) {
  CHECK(!unlink(path));
}

static void file_damage(const char *path) { // its own copy, since one file has many names
  lm_buf b = {0};
  CHECK_OK(lm_file_read(path, 1 << 24, &b));
  b.p[b.n / 2] ^= 1;
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  lm_buf_free(&b);
}

static void file_truncate(const char *path) {
  CHECK(!truncate(path, 100));
}

static void use_test(void) {
  plan_make(1);
  CHECK(run(NULL) == KERNELS);
  CHECK(run(NULL) == 0);
  CHECK(files_each(".so", NULL) == KERNELS &&
        files_each("", NULL) == KERNELS + 1); // and the compiler's version; no other files remain
  plan.prelude = "#define ADD(x, y) ((y) + (x))\n";
  CHECK(run(NULL) == KERNELS);
  CHECK(run(NULL) == 0);
}

// Replaces the file at `path` with a copy of `program`, which prints its version.
static void program_copy(const char *program, const char *path) {
  lm_buf b = {0};
  CHECK_OK(lm_file_read(program, 1 << 24, &b));
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  CHECK(!chmod(path, 0700));
  lm_buf_free(&b);
}

// The version of `path`, as the kernels' keys have it. asks: whether that starts the program.
static void version_check(const char *path, bool asks, const char *expected) {
  lm_arena *a = lm_arena_create();
  lm_cache cache;
  lm_cpu_info cpu = {0};
  struct rusage before, after;
  setenv("LMC_CC", path, 1);
  CHECK_OK(lm_cache_open(a, &cache));
  CHECK(!getrusage(RUSAGE_CHILDREN, &before));
  CHECK_OK(lm_cpu_compiler_find(&cache, &cpu));
  CHECK(!getrusage(RUSAGE_CHILDREN, &after));
  CHECK(strstr(cpu.compiler_version, expected));
  CHECK(asks == (before.ru_minflt != after.ru_minflt));
  unsetenv("LMC_CC");
  lm_cache_close(&cache);
  lm_arena_destroy(a);
}

// A compiler proper is asked once for each version of its file; other programs each time.
static void version_test(void) {
  char gcc[500], wrapper[500];
  snprintf(gcc, sizeof gcc, "%s/my-gcc", dir);
  snprintf(wrapper, sizeof wrapper, "%s/wrapper", dir);
  program_copy("/bin/true", gcc);
  version_check(gcc, true, "true (GNU coreutils)");
  version_check(gcc, false, "true (GNU coreutils)");
  program_copy("/bin/echo", gcc);
  version_check(gcc, true, "echo (GNU coreutils)");
  version_check(gcc, false, "echo (GNU coreutils)");
  files_each(".txt", file_damage);
  version_check(gcc, true, "echo (GNU coreutils)");
  program_copy("/bin/true", wrapper);
  for (int i = 0; i < 2; i++)
    version_check(wrapper, true, "true (GNU coreutils)");
  CHECK_OK(lm_file_write_atomic(gcc, "#!/bin/sh\necho 9\n", 17));
  CHECK(!chmod(gcc, 0700));
  for (int i = 0; i < 2; i++)
    version_check(gcc, true, "9");
  CHECK(!unlink(gcc) && !unlink(wrapper));
}

// A compiler with arguments, such as CC="ccache gcc". The path of a program may contain blanks.
static void words_test(void) {
  char path[500];
  snprintf(path, sizeof path, "%s/c c", dir);
  CHECK(!symlink("/usr/bin/cc", path));
  plan_make(5);
  setenv("LMC_CC", " env  -u\tNOTHING cc ", 1);
  CHECK(run(NULL) == KERNELS && run(NULL) == 0);
  setenv("LMC_CC", path, 1);
  CHECK(run(NULL) == KERNELS && run(NULL) == 0);
  char quoted[600];
  snprintf(quoted, sizeof quoted, "env '%s'", path);
  setenv("LMC_CC", quoted, 1);
  CHECK(run(NULL) == KERNELS && run(NULL) == 0);
  snprintf(quoted, sizeof quoted, "\"%s\"", path);
  setenv("LMC_CC", quoted, 1);
  CHECK(run(NULL) == 0); // the same compiler
  unsetenv("LMC_CC");
  CHECK(!unlink(path));
}

// A name that looks like an option is not taken for one; several executors load and unload the same
// kernels in any order.
static void loading_test(void) {
  char here[400];
  CHECK(getcwd(here, sizeof here) && !chdir(dir));
  setenv("LMC_CACHE", "-o", 1);
  plan_make(6);
  CHECK(run(NULL) == KERNELS && run(NULL) == 0);
  CHECK_OK(lm_path_remove("-o"));
  setenv("LMC_CACHE", dir, 1);
  CHECK(!chdir(here));
  lm_exec *e[3];
  for (int i = 0; i < 12; i++) {
    plan_make(7 + i % 4);
    if (i >= 3)
      lm_exec_destroy(e[i % 3]);
    CHECK_OK(lm_cpu_exec_create(&plan, NULL, &e[i % 3]));
    CHECK(run(NULL) == 0);
  }
  for (int i = 0; i < 3; i++)
    lm_exec_destroy(e[i]);
}

static void damage_test(void) {
  files_each(".so", file_remove);
  CHECK(run(NULL) == KERNELS);
  files_each(".so", file_damage);
  CHECK(run(NULL) == KERNELS);
  CHECK(run(NULL) == 0);
  files_each(".so", file_truncate);
  CHECK(run(NULL) == KERNELS);
  CHECK(run(NULL) == 0);
}

static void processes_test(void) {
  plan_make(2);
  pid_t pids[6];
  for (size_t i = 0; i < LM_COUNT(pids); i++) {
    pids[i] = fork();
    if (!pids[i]) {
      run(&(lm_exec_options){.threads = 1});
      _exit(0);
    }
  }
  for (size_t i = 0; i < LM_COUNT(pids); i++) {
    int state;
    CHECK(waitpid(pids[i], &state, 0) == pids[i] && WIFEXITED(state) && !WEXITSTATUS(state));
  }
  CHECK(run(NULL) == 0);
}

// LMC_CC: a script that runs `on_source` if it is given a source, else the compiler.
static void compiler_make(const char *on_source) {
  char path[500];
  snprintf(path, sizeof path, "%s/cc.sh", dir);
  FILE *f = fopen(path, "w");
  CHECK(f &&
        fprintf(f, "#!/bin/sh\nfor a in \"$@\"; do case $a in %s;; esac; done\nexec cc \"$@\"\n",
                on_source) > 0);
  CHECK(!fclose(f) && !chmod(path, 0700));
  setenv("LMC_CC", path, 1);
}

static void error_test(void) {
  lm_exec *e;
  plan_make(3);
  snprintf(sources[2], sizeof sources[2], "void broken(( {\n");
  lm_status s = lm_cpu_exec_create(&plan, NULL, &e);
  CHECK(s && s->kind == LM_BUG_STATUS && strstr(s->text, "error:") && strstr(s->text, dir));
  lm_status_free(s);
  CHECK(files_each(".c", file_remove) == 1);
  setenv("LMC_CC", "no-such-compiler", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "no-such-compiler");
  setenv("LMC_CC", "false", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "--version");
  setenv("LMC_CC", "cc -frobnicate cc", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "leave the options out of LMC_CC");
  setenv("LMC_CC", "cc -Wl,-z,defs", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "the option -Wl,-z,defs");
  setenv("LMC_CC", "env -u CPATH cc -ffast-math -I /usr/include", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "the option -ffast-math");
  CHECK(files_each(".c", file_remove) == 0);
  compiler_make("*unit-*.c) kill -9 $$");
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "signal 9");
  CHECK(files_each(".c", file_remove) == 0); // kept only if the compiler rejected it
  compiler_make("*unit-*.c) echo 'cc: fatal error: Killed signal terminated program cc1'; exit 1");
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "terminated program");
  compiler_make("*unit-*.c) echo 'ld: cannot open output file: Too many open files'; exit 1");
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "ulimit -n");
  compiler_make("*unit-*.c) exit 0");
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV,
              "exited with status 0 but wrote no file");
  compiler_make("*unit-*.c) echo 'clang: error: unable to execute command: Killed'; exit 1");
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "unable to execute");
  CHECK(files_each(".c", file_remove) == 0 && files_each(".sh", file_remove) == 1);
  unsetenv("LMC_CC");
  setenv("LMC_CACHE", "/proc/no/such", 1);
  CHECK_FAILS(lm_cpu_exec_create(&plan, NULL, &e), LM_ENV, "LMC_CACHE");
  setenv("LMC_CACHE", dir, 1);
}

// A dumped source that was edited replaces the generated one.
static void replace_test(void) {
  char dump[420], path[520];
  plan_make(4);
  snprintf(dump, sizeof dump, "%s/dump", dir);
  CHECK(run(&(lm_exec_options){.dump_dir = dump}) == KERNELS);
  snprintf(path, sizeof path, "%s/%s.c", dump, names[0]);
  CHECK_OK(lm_file_write_atomic(path, "void broken(( {\n", 16));
  lm_exec *e;
  CHECK_FAILS(lm_cpu_exec_create(&plan, &(lm_exec_options){.load_dir = dump}, &e), LM_USER,
              "error:");
  files_each(".c", file_remove);
  CHECK_OK(lm_file_write_atomic(path, sources[0], strlen(sources[0])));
  CHECK(run(&(lm_exec_options){.load_dir = dump}) == 0);
  for (int i = 0; i < KERNELS; i++) {
    snprintf(path, sizeof path, "%s/%s.c", dump, names[i]);
    CHECK(!unlink(path));
  }
  CHECK(!rmdir(dump));
}

int main(void) {
  CHECK(mkdtemp(dir));
  setenv("LMC_CACHE", dir, 1);
  setenv("PATH", "/usr/bin:/bin", 1); // without ccache
  processes_test();                   // first, since it forks and must run before any thread starts
  files_each(".so", file_remove);
  use_test();
  words_test();
  version_test();
  loading_test();
  files_each(".so", file_remove);
  plan_make(1);
  run(NULL);
  damage_test();
  error_test();
  replace_test();
  files_each(".so", file_remove);
  files_each(".txt", file_remove);
  char size[400];
  snprintf(size, sizeof size, "%s/.lmc-size", dir);
  CHECK(!unlink(size) || errno == ENOENT);
  CHECK(!rmdir(dir));
}
