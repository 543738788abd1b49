// chosen.h - the cases of a test that its first argument selects: all without one; those whose
// names contain it; with --list none, and their names are printed.
#ifndef LM_TESTS_CUDA_CHOSEN_H
#define LM_TESTS_CUDA_CHOSEN_H
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// True if the case is to run. argument: NULL: there is none.
static inline bool case_is_chosen(const char *name, const char *argument) {
  bool lists = argument && !strcmp(argument, "--list");
  if (lists)
    printf("%s\n", name);
  return !argument || (!lists && strstr(name, argument));
}
#endif
