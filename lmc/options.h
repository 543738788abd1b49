// options.h - one small parser for the arguments of every command, driven by a table.
//
//   --name VALUE, --name=VALUE, -n VALUE, -nVALUE; flags take no value; "--" ends the options.
//   Options and the other arguments may be given in any order.
#ifndef LMC_OPTIONS_H
#define LMC_OPTIONS_H
#include "runtime/base/base.h"

typedef enum {
  LM_OPT_FLAG,
  LM_OPT_MAYBE /* a flag; a text may follow after = */,
  LM_OPT_TEXT,
  LM_OPT_WHOLE,
  LM_OPT_NUMBER,
  LM_OPT_LIST /* may be repeated */
} lm_opt_kind;

typedef struct lm_opt {
  const char *name; // without dashes; NULL ends a table
  char letter;      // 0: none
  lm_opt_kind kind;
  const char *value; // the placeholder of the value in the help
  const char *help;
  double least, most; // of numbers; both 0: any
} lm_opt;

typedef struct lm_opt_value {
  bool given;
  const char *text;
  double number;
  const char **list;
  uint32_t n_list, cap_list;
} lm_opt_value;

typedef struct lm_args {
  lm_arena *arena;
  const lm_opt *table;
  lm_opt_value *values; // by index in the table
  const char **rest;
  uint32_t n_rest, cap_rest; // arguments that are not options
  const char *maybe,
      *after_maybe; // the last option that may take a value after =, and such an argument right
                    // behind it; else NULL
} lm_args;

// The index in a table of the name with n bytes; -1: it has none.
int lm_opt_find(const lm_opt *table, const char *name, size_t n);
// LM_USER on an unknown option, a missing or a malformed value. --help and -h are understood
// everywhere.
lm_status lm_args_parse(lm_arena *arena, const lm_opt *table, int argc, char **argv, lm_args *out,
                        bool *out_help);

// By name, which must be in the table.
bool lm_args_given(const lm_args *a, const char *name);
const char *lm_args_text(const lm_args *a, const char *name, const char *fallback);
int64_t lm_args_whole(const lm_args *a, const char *name, int64_t fallback);
double lm_args_number(const lm_args *a, const char *name, double fallback);
const char *const *lm_args_list(const lm_args *a, const char *name, int *out_n);

#endif
