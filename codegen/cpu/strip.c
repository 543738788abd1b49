// strip.c - see strip.h.
#include "codegen/cpu/strip.h"

enum {
  STRIP = 32 // LM_PARTIALS of prelude/partial.h
};

// `lanes` iterations from variable `strip` on.
static void strip_put(lm_buf *out, const cpu_strip_loop *l, const char *lanes, const char *body) {
  for (int i = 0; i < l->n_stores; i++)
    lm_buf_printf(out, "LM_BF16_STRIP(%s)\n", l->stores[i].name);
  lm_buf_puts(out, l->ordered ? "" : "#pragma omp simd\n");
  lm_buf_printf(out, "for (int64_t lane = 0; lane < %s; lane++) {\n", lanes);
  lm_buf_printf(out, "const int64_t %s = %s + lane;\n%s}\n", l->name, l->strip, body);
  if (l->n_stores)
    lm_buf_printf(out, "const int64_t %s = %s;\n", l->name, l->strip);
  for (int i = 0; i < l->n_stores; i++)
    lm_buf_printf(out, "LM_BF16_STRIP_ROUND(%s, %s, %s)\n", l->stores[i].name,
                  l->stores[i].location, lanes);
}

// Strips of STRIP iterations, then the rest.
void cpu_strip_loop_put(lm_arena *a, lm_buf *out, const cpu_strip_loop *l, const char *body) {
  bool known = l->count >= 0;
  lm_buf_printf(out, "{\nint64_t %s = %s;\n", l->strip, l->from);
  if (!known || l->count >= STRIP) {
    lm_buf_printf(out, "for (; %s <= %s - %d; %s += %d) {\n", l->strip, l->to, STRIP, l->strip,
                  STRIP);
    strip_put(out, l, lm_arena_printf(a, "%d", STRIP), body);
    lm_buf_puts(out, "}\n");
  }
  if (!known)
    strip_put(out, l, lm_arena_printf(a, "%s - %s", l->to, l->strip), body);
  else if (l->count % STRIP)
    strip_put(out, l, lm_arena_printf(a, "%lld", (long long)(l->count % STRIP)), body);
  lm_buf_puts(out, "}\n");
}
