// partials.c - see partials.h.
#include "codegen/cpu/partials.h"

#include <stdlib.h>

enum {
  PARTIALS = 32 // LM_PARTIALS of prelude/partial.h
};

static bool is_number(const char *text, int64_t *out) {
  char *end;
  *out = strtoll(text, &end, 10);
  return end != text && !*end;
}

// The iterations from `block` on, as many as `lanes` says, each with partial results of its own.
static void lanes_put(lm_buf *out, const cpu_partials_loop *l, const char *lanes,
                      const char *body) {
  lm_buf_puts(out, l->ordered ? "" : "#pragma omp simd\n");
  lm_buf_printf(out, "for (int64_t lane = 0; lane < %s; lane++) {\n", lanes);
  lm_buf_printf(out, "const int64_t %s = %s + lane;\n%s}\n", l->name, l->block, body);
}

// Blocks of PARTIALS iterations, then the rest.
void cpu_partials_loop_put(lm_arena *a, lm_buf *out, const cpu_partials_loop *l, const char *body) {
  int64_t first = 0;
  int64_t last = 0;
  bool known = is_number(l->from, &first) && is_number(l->to, &last);
  int64_t rest = (last - first) % PARTIALS;
  lm_buf_printf(out, "int64_t %s = %s;\n", l->block, l->from);
  if (!known || last - first >= PARTIALS) {
    lm_buf_printf(out, "for (; %s <= %s - %d; %s += %d) {\n", l->block, l->to, PARTIALS, l->block,
                  PARTIALS);
    lanes_put(out, l, lm_arena_printf(a, "%d", PARTIALS), body);
    lm_buf_puts(out, "}\n");
  }
  if (!known)
    lanes_put(out, l, lm_arena_printf(a, "%s - %s", l->to, l->block), body);
  else if (rest)
    lanes_put(out, l, lm_arena_printf(a, "%lld", (long long)rest), body);
}
