// json.c - jansson with this project's allocator and statuses.
#include "runtime/io/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// jansson keeps its allocator per process; set before main, so before any thread could use it.
__attribute__((constructor)) static void use_our_allocator(void) { json_set_alloc_funcs(lm_alloc, lm_free); }

lm_status lm_json_parse(const char *text, size_t n, const char *what, json_t **out) {
  json_error_t e;
  *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
  if (*out) return NULL;
  return lm_fail(LM_USER, "%s:%d:%d: not JSON: %s", what, e.line, e.column, e.text);
}

lm_status lm_json_read(const char *path, size_t max_bytes, json_t **out) {
  *out = NULL;
  lm_buf text = {0};
  lm_status s = lm_file_read(path, max_bytes, &text);
  if (!s) s = lm_json_parse(text.p, text.n, path, out);
  lm_buf_free(&text);
  return s;
}

void lm_json_number(lm_buf *b, double x) {
  if (!isfinite(x)) {
    lm_buf_puts(b, "null");
    return;
  }
  char text[40];
  if (x == floor(x) && fabs(x) < 1e15) {
    lm_buf_printf(b, "%.0f", x);
    return;
  }
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, x);
    if (strtod(text, NULL) == x) break;
  }
  lm_buf_puts(b, text);
}
