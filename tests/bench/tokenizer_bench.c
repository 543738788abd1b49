// tokenizer_bench.c - encoding speed of one thread: tokenizer_bench TOKENIZER.json FILE
//
// The file is encoded line by line, as documents are. Prints the processor seconds, MB/s, and the
// number and hash of the ids.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/tokenizer/tokenizer.h"

static double processor(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static lm_status lines_encode(const lm_tokenizer *t, const lm_buf *text, uint64_t *out_n,
                              uint64_t *out_hash) {
  lm_tokens ids = {0};
  lm_status s = NULL;
  for (const char *p = text->p, *end = p + text->n, *stop; p < end && !s; p = stop + 1) {
    stop = memchr(p, '\n', (size_t)(end - p));
    if (!stop)
      stop = end;
    ids.n = 0;
    s = lm_tokenizer_encode(t, p, (size_t)(stop - p), &ids);
    for (size_t i = 0; i < ids.n; i++)
      *out_hash = *out_hash * 1000003 + (uint64_t)ids.ids[i];
    *out_n += ids.n;
  }
  lm_tokens_free(&ids);
  return s;
}

int main(int argc, char **argv) {
  lm_tokenizer *t = NULL;
  lm_buf text = {0};
  uint64_t n = 0, hash = 0;
  if (argc != 3) {
    fprintf(stderr, "usage: tokenizer_bench TOKENIZER.json FILE\n");
    return 2;
  }
  lm_status s = lm_tokenizer_open(argv[1], NULL, &t);
  if (!s)
    s = lm_file_read(argv[2], SIZE_MAX, &text);
  double start = processor();
  if (!s)
    s = lines_encode(t, &text, &n, &hash);
  double seconds = processor() - start;
  if (s)
    fprintf(stderr, "tokenizer_bench: %s\n", s->text);
  else
    printf("{\"seconds\": %.3f, \"mb_per_s\": %.2f, \"ids\": %llu, \"hash\": \"%016llx\"}\n",
           seconds, 1e-6 * (double)text.n / seconds, (unsigned long long)n,
           (unsigned long long)hash);
  bool failed = s;
  lm_status_free(s);
  lm_buf_free(&text);
  lm_tokenizer_destroy(t);
  return failed;
}
