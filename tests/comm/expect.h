// expect.h - checks of the programs that start ranks: a failed one is printed with the output.
#ifndef LM_TESTS_COMM_EXPECT_H
#define LM_TESTS_COMM_EXPECT_H
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int errors;

static void expect(bool good, const char *what, const char *output) {
  if (good)
    return;
  errors++;
  fprintf(stderr, "%s: %s\n%s\n", program_invocation_short_name, what, output);
}

static inline int count_of(const char *text, const char *word) {
  int n = 0;
  for (const char *p = text; (p = strstr(p, word)); p++)
    n++;
  return n;
}
#endif
