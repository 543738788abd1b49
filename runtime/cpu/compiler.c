// compiler.c - see compiler.h.
#include "runtime/cpu/compiler.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cpu/process.h"

typedef struct word {
  const char *p;
  size_t n; // 0: there is none
} word;

// The next word at *text, which moves behind it. Quotes around it may contain blanks.
static word word_next(const char **text) {
  static const char BLANKS[] = " \t";
  const char *p = *text + strspn(*text, BLANKS);
  bool quoted = *p == '"' || *p == '\'';
  const char quote[] = {*p, 0};
  p += quoted;
  word w = {p, strcspn(p, quoted ? quote : BLANKS)};
  *text = w.p + w.n + (quoted && w.p[w.n]);
  return w;
}

int lm_cpu_compiler_call(const lm_cpu_info *cpu, lm_arena *a, const char *out[LM_COMPILER_WORDS]) {
  int n = 0;
  const char *rest = cpu->compiler_words;
  out[n++] = cpu->compiler;
  for (word w; n < LM_COMPILER_WORDS && (w = word_next(&rest)).n;)
    out[n++] = lm_arena_strndup(a, w.p, w.n);
  return n;
}

const char *lm_cpu_compiler_text(const lm_cpu_info *cpu, lm_arena *a) {
  return lm_arena_printf(a, "%s%s%s", cpu->compiler, cpu->compiler_words[0] ? " " : "",
                         cpu->compiler_words);
}

static lm_status version_ask(const lm_cpu_info *cpu, lm_arena *a, int output, lm_buf *out) {
  const char *argv[LM_COMPILER_WORDS + 2] = {0};
  argv[lm_cpu_compiler_call(cpu, a, argv)] = "--version";
  pid_t pid;
  int exit_status = 0;
  LM_TRY(lm_process_start(argv, -1, output, &pid));
  LM_TRY(lm_process_wait(pid, &exit_status));
  LM_TRY(lm_process_output_read(output, 1 << 20, out));
  if (!exit_status)
    return NULL;
  return lm_fail(LM_ENV, "%s --version exited with status %d%s%.*s", lm_cpu_compiler_text(cpu, a),
                 exit_status, out->n ? ":\n" : "", 1000, out->p);
}

static lm_status version_read(lm_cpu_info *cpu) {
  int output;
  lm_buf text = {0};
  LM_TRY(lm_process_output(&output));
  lm_arena *a = lm_arena_create();
  lm_status s = version_ask(cpu, a, output, &text);
  if (!s)
    snprintf(cpu->compiler_version, sizeof cpu->compiler_version, "%.*s",
             (int)strcspn(text.p, "\n"), text.p);
  close(output);
  lm_arena_destroy(a);
  lm_buf_free(&text);
  return s;
}

// ---- the version in the cache, since a process takes milliseconds

// True if the file at `path` is a compiler itself, whose version changes only with the file.
// Scripts and programs such as ccache start a compiler that they choose at run time.
static bool is_compiler_proper(const char *path, struct stat *out) {
  static const char ELF[4] = "\177ELF";
  char real[PATH_MAX], magic[sizeof ELF];
  if (!realpath(path, real))
    return false;
  const char *name = strrchr(real, '/') + 1;
  if (!strstr(name, "gcc") && !strstr(name, "clang"))
    return false;
  int fd = open(real, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  bool proper = read(fd, magic, sizeof magic) == sizeof magic &&
                !memcmp(magic, ELF, sizeof magic) && !fstat(fd, out);
  close(fd);
  return proper;
}

// The name of the version's entry, which depends on the file and on when it was last written.
static const char *entry_name(const lm_cpu_info *cpu, lm_arena *a) {
  struct stat st;
  if (cpu->compiler_words[0] || !is_compiler_proper(cpu->compiler, &st))
    return NULL;
  const char *identity = lm_arena_printf(
      a, "%llu %llu %lld %lld.%09ld %lld.%09ld", (unsigned long long)st.st_dev,
      (unsigned long long)st.st_ino, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
      st.st_mtim.tv_nsec, (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
  const char *parts[] = {cpu->compiler, identity};
  return lm_arena_printf(a, "version-%s.txt", lm_cache_key_make(parts, LM_COUNT(parts)).text);
}

static bool version_recall(const lm_cache *cache, const char *name, lm_cpu_info *out) {
  lm_cache_entry e;
  lm_buf text = {0};
  if (!lm_cache_find(cache, name, &e))
    return false;
  bool whole = lm_cache_read(cache, name, &e, &text) && text.n < sizeof out->compiler_version;
  if (whole)
    snprintf(out->compiler_version, sizeof out->compiler_version, "%.*s", (int)text.n, text.p);
  close(e.fd);
  lm_buf_free(&text);
  return whole;
}

// Without the entry the next process asks again, so errors do not matter.
static void version_keep(const lm_cache *cache, const char *name, const lm_cpu_info *cpu) {
  lm_temp_dir temp = {0};
  const char *text = cpu->compiler_version;
  lm_status s = lm_cache_temp_dir(cache, &temp);
  if (!s)
    s = lm_cache_temp_write(&temp, "version", text, strlen(text));
  if (!s)
    s = lm_cache_add(cache, &temp, "version", &name, 1);
  lm_status_free(s);
  lm_temp_dir_remove(&temp);
}

static lm_status version_find(const lm_cache *cache, lm_cpu_info *cpu) {
  lm_arena *a = lm_arena_create();
  const char *name = cache ? entry_name(cpu, a) : NULL;
  lm_status s = NULL;
  if (!name || !version_recall(cache, name, cpu)) {
    s = version_read(cpu);
    if (!s && name)
      version_keep(cache, name, cpu);
  }
  lm_arena_destroy(a);
  return s;
}

// ---- the program

// Sets *out to the name and returns the variable that it is from.
static const char *compiler_name(const char **out) {
  static const char *const variables[] = {"LMC_CC", "CC"};
  for (size_t i = 0; i < LM_COUNT(variables); i++) {
    *out = getenv(variables[i]);
    if (*out && **out)
      return variables[i];
  }
  *out = "cc";
  return "PATH";
}

// A name with blanks is one path if a program of that name exists.
static bool compiler_split(const char *name, lm_cpu_info *out) {
  if (lm_executable_find(name, out->compiler, sizeof out->compiler))
    return true;
  char first[sizeof out->compiler];
  word w = word_next(&name);
  name += strspn(name, " \t");
  if (w.n >= sizeof first || strlen(name) >= sizeof out->compiler_words)
    return false;
  snprintf(first, sizeof first, "%.*s", (int)w.n, w.p);
  snprintf(out->compiler_words, sizeof out->compiler_words, "%s", name);
  return lm_executable_find(first, out->compiler, sizeof out->compiler);
}

static bool is_program(word w) {
  char name[PATH_MAX];
  char path[PATH_MAX];
  bool fits = snprintf(name, sizeof name, "%.*s", (int)w.n, w.p) < (int)sizeof name;
  return fits && lm_executable_find(name, path, sizeof path);
}

// The first option behind the last program of the words; none if there is none.
static word option_of_last(const char *words) {
  word option = {NULL, 0};
  for (word w; (w = word_next(&words)).n;)
    if (*w.p != '-' && is_program(w))
      option.n = 0;
    else if (*w.p == '-' && !option.n)
      option = w;
  return option;
}

// Options of the compiler could change the numbers of every kernel. Those of a program before it,
// as in "env -u CPATH gcc", are that program's.
static lm_status options_refuse(const char *variable, const char *name, const lm_cpu_info *cpu) {
  word option = option_of_last(cpu->compiler_words);
  if (!option.n)
    return NULL;
  return lm_fail(LM_ENV,
                 "%s is '%s', which gives the compiler the option %.*s: set LMC_CC to the compiler "
                 "alone, such as gcc, 'ccache gcc' or a path (quoted if it has blanks); lmc gives "
                 "the options itself",
                 variable, name, (int)option.n, option.p);
}

lm_status lm_cpu_compiler_find(const lm_cache *cache, lm_cpu_info *out) {
  const char *name;
  const char *variable = compiler_name(&name);
  out->compiler_words[0] = 0;
  bool found = compiler_split(name, out);
  lm_status s = found ? options_refuse(variable, name, out) : NULL;
  if (found && !s)
    return version_find(cache, out);
  out->compiler[0] = 0;
  if (s)
    return s;
  return lm_fail(LM_ENV, "no C compiler: '%s' is not in PATH; install gcc or clang, or set LMC_CC",
                 name);
}
