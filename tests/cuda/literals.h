// literals.h - a check of the text of kernels: two literals that are multiplied are ints in C, also
// where a wider number is added, so their result must be one.
#ifndef LM_TESTS_CUDA_LITERALS_H
#define LM_TESTS_CUDA_LITERALS_H
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "tests/runtime/check.h"

static inline bool in_word(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

// The literal that ends in front of `end`; NULL if that is none, or one that is cast.
static inline const char *literal_before(const char *text, const char *end) {
  const char *begin = end;
  while (begin > text && isdigit((unsigned char)begin[-1]))
    begin--;
  bool alone = begin == text || !(in_word(begin[-1]) || begin[-1] == ')');
  return begin < end && alone ? begin : NULL;
}

static inline void literals_check(const char *text) {
  for (const char *at = text; (at = strstr(at, " * ")); at += 3) {
    const char *first = literal_before(text, at);
    if (first && isdigit((unsigned char)at[3]))
      CHECK(atof(first) * atof(at + 3) <= INT32_MAX);
  }
}
#endif
