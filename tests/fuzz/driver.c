// driver.c - runs a fuzz target without libFuzzer: every file of the folders given, then changes of
// them.
//
//   NAME_fuzz [-runs=N] [-seed=N] FILE|FOLDER…
//
// Runs depend on seed and files only. The current input is in a memory-mapped file whose name is
// printed at the start, so it survives a crash; the file is removed after the last run.
#include <dirent.h>
#include <sys/mman.h>

#include "runtime/base/philox.h"
#include "tests/fuzz/fuzz.h"

enum {
  MOST = 1 << 16
};

typedef struct {
  uint8_t *p;
  size_t n;
} input;

static struct {
  input *seeds;
  size_t n_seeds, cap_seeds;
  lm_philox_key2 key;
  uint64_t draws;
  uint8_t *work;
  size_t n; // the input being made, [MOST], mapped from the file
} driver;

static uint64_t below(uint64_t n) {
  return n ? lm_philox_u64(driver.key, driver.draws++) % n : 0;
}

// ---- files

static void seed_add(lm_buf text) {
  if (driver.n_seeds == driver.cap_seeds) {
    driver.cap_seeds = driver.cap_seeds ? 2 * driver.cap_seeds : 64;
    driver.seeds = lm_realloc(driver.seeds, driver.cap_seeds * sizeof *driver.seeds);
  }
  driver.seeds[driver.n_seeds++] = (input){(uint8_t *)text.p, text.n < MOST ? text.n : MOST};
}

static void seed_read(const char *path) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 8 << 20, &text);
  if (s) {
    fprintf(stderr, "%s\n", s->text);
    exit(2);
  }
  seed_add(text);
}

static void seeds_read(const char *path) {
  struct dirent **list;
  int n = scandir(path, &list, NULL, alphasort);
  if (n < 0)
    seed_read(path);
  for (int i = 0; i < n; i++) {
    lm_buf file = {0};
    lm_buf_printf(&file, "%s/%s", path, list[i]->d_name);
    if (list[i]->d_name[0] != '.' && list[i]->d_type == DT_REG)
      seed_read(file.p);
    lm_buf_free(&file);
    free(list[i]);
  }
  if (n >= 0)
    free(list);
}

// ---- changes

static void range_replace(size_t at, size_t old, const void *with, size_t n) {
  if (driver.n - old + n > MOST)
    return;
  memmove(driver.work + at + n, driver.work + at + old, driver.n - at - old);
  if (n)
    memmove(driver.work + at, with, n);
  if (n < old)
    memset(driver.work + driver.n + n - old, 0, old - n);
  driver.n += n - old;
}

static size_t length_below(size_t n) {
  return (size_t)below(1 + (below(4) ? below(n < 32 ? n + 1 : 32) : below(n + 1)));
}

static void change(void) {
  static const char *const numbers[] = {"0",
                                        "-1",
                                        "1",
                                        "2147483648",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "18446744073709551616",
                                        "1e999",
                                        "1e-999",
                                        "nan"};
  static const char bytes[] = {0,   (char)0xff, (char)0x80, '\n', '"', '\\', '{', '}', '[',
                               ']', '(',        ')',        ',',  ':', '%',  '@', ' '};
  size_t at = (size_t)below(driver.n + 1);
  size_t left = driver.n - at;
  size_t n = length_below(left);
  uint8_t piece[256];
  const input *other = &driver.seeds[below(driver.n_seeds)];
  size_t from = (size_t)below(other->n + 1);
  size_t some = length_below(other->n - from);
  switch (below(8)) {
  case 0:
    if (left)
      driver.work[at] ^= (uint8_t)(1u << below(8));
    break;
  case 1:
    if (left)
      driver.work[at] = (uint8_t)bytes[below(sizeof bytes)];
    break;
  case 2: range_replace(at, 0, &bytes[below(sizeof bytes)], 1); break;
  case 3: range_replace(at, n, NULL, 0); break;
  case 4: range_replace(at, 0, other->p + from, some); break;
  case 5: range_replace(at, n, other->p + from, some); break;
  case 6: // duplicated
    n = n < sizeof piece ? n : sizeof piece;
    memcpy(piece, driver.work + at, n);
    range_replace(at, 0, piece, n);
    break;
  default: { // a number becomes another one
    size_t end;
    for (; at < driver.n && !memchr("0123456789", driver.work[at], 10); at++) {
    }
    for (end = at; end < driver.n && memchr("0123456789", driver.work[end], 10); end++) {
    }
    const char *number = numbers[below(LM_COUNT(numbers))];
    range_replace(at, end - at, number, strlen(number));
  }
  }
}

// A copy of exactly the size, so that a sanitizer detects reads beyond its end.
static void run(void) {
  uint8_t *exact = malloc(driver.n ? driver.n : 1);
  memcpy(exact, driver.work, driver.n);
  LLVMFuzzerTestOneInput(exact, driver.n);
  free(exact);
}

static void seed_take(const input *s) {
  if (s->n)
    memcpy(driver.work, s->p, s->n);
  driver.n = s->n;
}

// ---- the input in a file

static void work_map(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, MOST))
    abort();
  driver.work = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (driver.work == MAP_FAILED)
    abort();
  close(fd);
}

int main(int argc, char **argv) {
  unsigned long long runs = 0, seed = 1;
  char path[64];
  for (int i = 1; i < argc; i++)
    if (sscanf(argv[i], "-runs=%llu", &runs) != 1 && sscanf(argv[i], "-seed=%llu", &seed) != 1 &&
        argv[i][0] != '-')
      seeds_read(argv[i]);
  if (!driver.n_seeds)
    seed_add((lm_buf){0});
  driver.key = lm_philox_key(seed, 0);
  snprintf(path, sizeof path, "/tmp/lm-fuzz-input-%d", (int)getpid());
  work_map(path);
  fprintf(stderr, "%zu seeds, %llu runs; the input being run is in %s, zeros behind it\n",
          driver.n_seeds, runs, path);
  for (size_t i = 0; i < driver.n_seeds; i++) {
    seed_take(&driver.seeds[i]);
    run();
  }
  for (unsigned long long i = 0; i < runs; i++) {
    seed_take(&driver.seeds[below(driver.n_seeds)]);
    for (uint64_t n = 1 + below(6); n--;)
      change();
    run();
    memset(driver.work, 0, driver.n);
  }
  unlink(path);
  for (size_t i = 0; i < driver.n_seeds; i++)
    lm_free(driver.seeds[i].p);
  lm_free(driver.seeds);
  return 0;
}
