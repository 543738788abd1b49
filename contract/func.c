// func.c - see func.h.
#include "contract/func.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define P(ID) LM_PORT_BIT(LM_PORT_##ID)
#define BY_LENGTH LM_FUNC_BY_LENGTH
#define OPEN LM_FUNC_OPEN
const lm_func_info lm_func_table[LM_FUNCS] = {
#define FUNC(ID, NAME, TAKES, GIVES, FORM) {NAME, TAKES, GIVES, FORM},
#include "contract/functions.def"
};

// The number after "micro." as it is printed; 0: none.
static int64_t length_of(const char *text) {
  char *end;
  if (*text < '1' || *text > '9')
    return 0;
  long long n = strtoll(text, &end, 10);
  return *end ? 0 : n;
}

lm_func_key lm_func_key_parse(const char *name) {
  for (int i = 0; i < LM_FUNCS; i++) {
    size_t n = strlen(lm_func_table[i].name);
    if (strncmp(name, lm_func_table[i].name, n))
      continue;
    if (!name[n])
      return (lm_func_key){(lm_func_id)i, 0};
    int64_t seq = name[n] == '.' ? length_of(name + n + 1) : 0;
    if (seq && lm_func_table[i].form & LM_FUNC_BY_LENGTH)
      return (lm_func_key){(lm_func_id)i, seq};
  }
  return (lm_func_key){LM_FUNCS, 0};
}

const char *lm_func_key_print(lm_func_key k, char out[LM_FUNC_NAME]) {
  if (k.seq)
    snprintf(out, LM_FUNC_NAME, "%s.%lld", lm_func_table[k.id].name, (long long)k.seq);
  else
    snprintf(out, LM_FUNC_NAME, "%s", lm_func_table[k.id].name);
  return out;
}
