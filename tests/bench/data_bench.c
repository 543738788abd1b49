// data_bench.c - documents from a large file of JSON lines: memory, speed, and whether every one
// comes once.
//
//   data_bench make FILE GB          writes that much text as numbered documents of 40 to 8,000
//                                    bytes
//   data_bench read FILE CACHE SEQ   opens it as a new run does and as a resumed run does, then
//                                    reads an epoch with 1, 2 and 4 processes, each of which reads
//                                    its own micro-batches
//
// A document is its number in 12 digits, '|', and words without digits. Its first window tells
// which it is; of the rest, the sums over an epoch of tokens and of their values must be equal to
// the text's.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/philox.h"
#include "runtime/data/feed/data.h"

enum {
  NUMBER = 12,
  LEAST = 40,
  MOST = 8000,
  ROWS = 8,
  MICRO = 4
};

static void stop(const char *why) {
  fprintf(stderr, "data_bench: %s\n", why);
  exit(1);
}

static void expect(lm_status s) {
  if (s)
    stop(s->text);
}

// ---- text: words drawn from a list, most of them short

static size_t document_make(uint64_t number, char *out) {
  static const char *const words[] = {"the",     "of",    "and",   "to",      "in",    "river",
                                      "stone",   "light", "under", "morning", "would", "because",
                                      "nothing", "a",     "is",    "window",  "far",   "between",
                                      "old",     "house", "water", "hand",    "said",  "people"};
  lm_philox_key2 key = lm_philox_key(1, number);
  uint64_t r = lm_philox_u64(key, 0), at = 1;
  size_t length = LEAST + (r % 97 ? r % 1500 : r % (MOST - LEAST));
  size_t n = (size_t)sprintf(out, "%012llu|", (unsigned long long)number);
  while (n < length) {
    if (!(r >>= 5))
      r = lm_philox_u64(key, at++);
    n += (size_t)sprintf(out + n, "%s ", words[r % LM_COUNT(words)]);
  }
  out[n] = 0;
  return n;
}

static void make(const char *path, double gigabytes) {
  FILE *f = fopen(path, "w");
  char text[MOST + 100];
  if (!f)
    stop("cannot write the file");
  uint64_t number = 0;
  for (double bytes = 0; bytes < gigabytes * 1e9; number++) {
    document_make(number, text);
    int n = fprintf(f, "{\"id\": %llu, \"text\": \"%s\"}\n", (unsigned long long)number, text);
    if (n < 0)
      stop("cannot write the file");
    bytes += n;
  }
  if (fclose(f))
    stop("cannot write the file");
  printf("%llu documents\n", (unsigned long long)number);
}

// ---- memory: what belongs to the process alone, and with it pages of files that the system may
// take back

static void memory_print(const char *when) {
  char line[200];
  long anonymous = 0, all = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f)) {
    sscanf(line, "RssAnon: %ld", &anonymous);
    sscanf(line, "VmHWM: %ld", &all);
  }
  if (f)
    fclose(f);
  printf("  memory %s: %ld MB private; with mapped files at most %ld MB\n", when, anonymous / 1024,
         all / 1024);
}

// ---- processor time since the last call, of this process or of those that it waited for

static void processor_print(int who) {
  static struct rusage before[2];
  struct rusage now, *was = &before[who == RUSAGE_CHILDREN];
  getrusage(who, &now);
  double user = (double)(now.ru_utime.tv_sec - was->ru_utime.tv_sec) +
                1e-6 * (double)(now.ru_utime.tv_usec - was->ru_utime.tv_usec);
  double system = (double)(now.ru_stime.tv_sec - was->ru_stime.tv_sec) +
                  1e-6 * (double)(now.ru_stime.tv_usec - was->ru_stime.tv_usec);
  printf("  processor: %.1f s user, %.1f s system; %ld faults\n", user, system,
         now.ru_minflt + now.ru_majflt - was->ru_minflt - was->ru_majflt);
  *was = now;
}

// ---- an epoch

typedef struct {
  _Atomic uint64_t tokens, values, rows;
  _Atomic unsigned char seen[];
} tally;

static uint64_t number_of(const int32_t *tok, int64_t n) {
  uint64_t number = 0;
  if (n <= NUMBER || tok[NUMBER] != '|')
    return UINT64_MAX;
  for (int i = 0; i < NUMBER; i++) {
    if (tok[i] < '0' || tok[i] > '9')
      return UINT64_MAX;
    number = 10 * number + (uint64_t)(tok[i] - '0');
  }
  return number;
}

static void row_count(const lm_batch *b, int64_t at, int64_t seq, uint64_t docs, tally *t) {
  uint64_t tokens = 0, values = 0;
  for (int64_t i = at, end = at + seq; i < end && b->seg[i] >= 0; i++) {
    tokens++;
    values += (uint64_t)b->tok[i];
    uint64_t number = b->pos[i] ? UINT64_MAX : number_of(b->tok + i, end - i);
    if (number < docs)
      t->seen[number]++;
  }
  t->tokens += tokens;
  t->values += values;
  t->rows++;
}

// Worker `who` of `workers`: every step's micro-batches who, who + workers, …
static void worker_run(const lm_data_options *o, int who, int workers, uint64_t docs, tally *t) {
  lm_data *d;
  expect(lm_data_open(o, &d));
  int64_t rows = lm_data_part(d, 0).rows;
  int64_t tokens = ROWS * o->seq;
  int64_t per_step = MICRO * ROWS;
  lm_batch b = {{lm_calloc((size_t)tokens, 4), lm_calloc((size_t)tokens, 4),
                 lm_calloc((size_t)tokens, 4), lm_calloc((size_t)tokens, 4),
                 lm_calloc((size_t)tokens, 4)}};
  for (int64_t step = 0; step * per_step < rows; step++)
    for (int micro = who; micro < MICRO; micro += workers) {
      expect(lm_data_fill(d, step, micro, MICRO, ROWS, &b));
      for (int64_t r = 0; r < ROWS; r++)
        if (step * per_step + micro * ROWS + r < rows)
          row_count(&b, r * o->seq, o->seq, docs, t); // the last step reaches into the next epoch
    }
  if (!who)
    memory_print("of one of them");
  fflush(stdout);
  _exit(0);
}

static bool epoch_read(const lm_data_options *o, int workers, lm_data_part_info part,
                       uint64_t values) {
  size_t bytes = sizeof(tally) + (size_t)part.docs;
  tally *t = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (t == MAP_FAILED)
    stop("no memory");
  fflush(stdout);
  double start = lm_now();
  for (int i = 0; i < workers; i++)
    if (!fork())
      worker_run(o, i, workers, (uint64_t)part.docs, t);
  bool good = true;
  for (int status, i = 0; i < workers; i++)
    good &= wait(&status) > 0 && status == 0;
  double seconds = lm_now() - start;
  int64_t missing = 0, again = 0;
  for (int64_t i = 0; i < part.docs; i++) {
    missing += !t->seen[i];
    again += t->seen[i] > 1;
  }
  good &= !missing && !again && t->tokens == (uint64_t)part.tokens &&
          t->rows == (uint64_t)part.rows && (!values || t->values == values);
  printf("  %d workers: %.1f s, %.1fM tokens/s; %lld documents missing, %lld twice, %llu of %lld "
         "tokens, sum %llu: %s\n",
         workers, seconds, 1e-6 * (double)t->tokens / seconds, (long long)missing, (long long)again,
         (unsigned long long)t->tokens, (long long)part.tokens, (unsigned long long)t->values,
         good ? "every one once" : "WRONG");
  processor_print(RUSAGE_CHILDREN);
  munmap(t, bytes);
  return good;
}

static uint64_t values_of_text(uint64_t docs) {
  static char text[MOST + 100];
  uint64_t sum = 0;
  for (uint64_t i = 0; i < docs; i++)
    for (size_t k = 0, n = document_make(i, text); k < n; k++)
      sum += (unsigned char)text[k];
  return sum;
}

static lm_data_part_info opened(const lm_data_options *o, const char *what) {
  lm_data *d;
  double start = lm_now();
  expect(lm_data_open(o, &d));
  double open = lm_now() - start;
  lm_data_part_info part = lm_data_part(d, 0);
  int64_t far = part.rows / ROWS / 2;
  int64_t tokens = ROWS * o->seq;
  lm_batch b = {{lm_calloc((size_t)tokens, 4), lm_calloc((size_t)tokens, 4),
                 lm_calloc((size_t)tokens, 4), lm_calloc((size_t)tokens, 4),
                 lm_calloc((size_t)tokens, 4)}};
  start = lm_now();
  expect(lm_data_fill(d, far, 0, 1, ROWS, &b));
  printf("  %s: open %.3f s (%.1fM tokens/s), a batch in the middle %.4f s\n", what, open,
         1e-6 * (double)part.tokens / open, lm_now() - start);
  memory_print("after it");
  processor_print(RUSAGE_SELF);
  for (void **column = (void *[]){b.tok, b.pos, b.seg, b.next, b.w, NULL}; *column; column++)
    lm_free(*column);
  lm_data_close(d);
  return part;
}

static int read_all(const char *path, const char *cache, int64_t seq) {
  lm_tokenizer *bytes = lm_tokenizer_bytes_create();
  lm_data_source s = {LM_SOURCE_JSONL, "docs", path};
  lm_data_options o = {
      .sources = &s, .n_sources = 1, .tokenizer = bytes, .seq = seq, .seed = 1, .cache = cache};
  struct stat st;
  if (stat(path, &st))
    stop("no such file");
  setlinebuf(stdout);
  printf("%.2f GB of JSON lines, rows of %lld\n", 1e-9 * (double)st.st_size, (long long)seq);
  opened(&o, "first time");
  lm_data_part_info part = opened(&o, "again");
  printf("  %lld documents, %lld tokens, %lld rows, %.2f%% padding\n", (long long)part.docs,
         (long long)part.tokens, (long long)part.rows,
         100 - 100 * (double)part.tokens / (double)part.rows / (double)seq);
  uint64_t values = values_of_text((uint64_t)part.docs);
  bool good = true;
  for (int workers = 1; workers <= 4; workers *= 2)
    good &= epoch_read(&o, workers, part, values);
  lm_tokenizer_destroy(bytes);
  return !good;
}

int main(int argc, char **argv) {
  if (argc == 4 && !strcmp(argv[1], "make")) {
    make(argv[2], atof(argv[3]));
    return 0;
  }
  if (argc == 5 && !strcmp(argv[1], "read"))
    return read_all(argv[2], argv[3], atoll(argv[4]));
  fprintf(stderr, "usage: data_bench make FILE GB | read FILE CACHE SEQ\n");
  return 2;
}
