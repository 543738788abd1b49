// check.h - assertions of test programs. The first one that fails reports its location and ends the
// program.
#ifndef LM_TESTS_CHECK_H
#define LM_TESTS_CHECK_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/base.h"

#define CHECK(c)                                                                                   \
  do {                                                                                             \
    if (!(c)) {                                                                                    \
      fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #c);                             \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define CHECK_OK(e) check_ok((e), __FILE__, __LINE__)
#define CHECK_FAILS(e, kind, part) check_fails((e), (kind), (part), __FILE__, __LINE__)

static inline void check_ok(lm_status s, const char *file, int line) {
  if (!s)
    return;
  fprintf(stderr, "%s:%d: expected success, got \"%s\"\n", file, line, s->text);
  exit(1);
}

static inline void check_fails(lm_status s, lm_kind kind, const char *part, const char *file,
                               int line) {
  if (s && s->kind == kind && strstr(s->text, part)) {
    lm_status_free(s);
    return;
  }
  fprintf(stderr, "%s:%d: expected a status of kind %d with \"%s\", got %d \"%s\"\n", file, line,
          (int)kind, part, s ? (int)s->kind : 0, s ? s->text : "success");
  exit(1);
}
#endif
