// unusable.c - see unusable.h.
#include "runtime/data/rows/unusable.h"

#include <string.h>

lm_status lm_unusable_check(const lm_unusable *u, double percent, const char *option,
                            const char *scope) {
  if (100.0 * (double)u->unusable <= percent * (double)u->documents)
    return NULL;
  lm_buf rest = {0};
  if (u->unusable > LM_UNUSABLE_LISTED)
    lm_buf_printf(&rest, "… and %llu more\n", (unsigned long long)u->unusable - LM_UNUSABLE_LISTED);
  lm_status s = lm_fail(
      LM_USER, "%llu of %llu documents%s cannot be used, more than the %g%% that %s allows\n%s%s",
      (unsigned long long)u->unusable, (unsigned long long)u->documents, scope, percent, option,
      u->list, rest.p ? rest.p : "");
  lm_buf_free(&rest);
  s->text[strlen(s->text) - 1] = 0; // remove the last line break
  return s;
}
