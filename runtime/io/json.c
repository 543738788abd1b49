// json.c - jansson with this project's allocator and statuses.
#include "runtime/io/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// jansson has one allocator per process. It is set before main, before any thread can use it.
__attribute__((constructor)) static void use_our_allocator(void) {
  json_set_alloc_funcs(lm_alloc, lm_free);
}

// ---- integers beyond 64 bits
//
// JSON allows them, and Python's json.dumps(int(1e30)) writes one, but jansson rejects them. They
// are read as reals, as by other readers that have doubles; code that needs an integer reports the
// real.

enum {
  INT64_DIGITS = 19
};

// The end of the string that opens at `at`.
static const char *string_end(const char *at, const char *end) {
  for (at++; at < end && *at != '"'; at++)
    if (*at == '\\' && at + 1 < end)
      at++;
  return at < end ? at + 1 : end;
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static const char *digits_end(const char *at, const char *end) {
  while (at < end && is_digit(*at))
    at++;
  return at;
}

static bool overflows(const char *digits, size_t n, bool negative) {
  if (n != INT64_DIGITS)
    return n > INT64_DIGITS;
  return memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", INT64_DIGITS) > 0;
}

// Copies one number; an integer that does not fit in 64 bits gains an exponent, which makes it a
// real.
static const char *number_copy(const char *at, const char *end, lm_buf *out) {
  bool negative = *at == '-';
  const char *digits = at + negative;
  const char *stop = digits_end(digits, end);
  bool real = stop < end && strchr(".eE", *stop) && *stop;
  lm_buf_add(out, at, (size_t)(stop - at));
  if (!real && overflows(digits, (size_t)(stop - digits), negative))
    lm_buf_puts(out, "e0");
  for (at = stop; real && at < end && (is_digit(*at) || strchr("+-.eE", *at)) && *at; at++)
    lm_buf_add(out, at, 1);
  return at;
}

static void big_integers_to_reals(const char *text, size_t n, lm_buf *out) {
  for (const char *at = text, *end = text + n; at < end;) {
    const char *stop = *at == '"' ? string_end(at, end) : at + 1;
    if (is_digit(*at) || *at == '-') {
      at = number_copy(at, end, out);
      continue;
    }
    lm_buf_add(out, at, (size_t)(stop - at));
    at = stop;
  }
}

static json_t *json_parse(const char *text, size_t n, json_error_t *e) {
  json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, e);
  if (j || json_error_code(e) != json_error_numeric_overflow)
    return j;
  lm_buf reals = {0};
  big_integers_to_reals(text, n, &reals);
  j = json_loadb(reals.p, reals.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, e);
  lm_buf_free(&reals);
  return j;
}

lm_status lm_json_parse(const char *text, size_t n, const char *what, json_t **out) {
  json_error_t e;
  *out = json_parse(text, n, &e);
  if (*out)
    return NULL;
  return lm_fail(LM_USER, "%s:%d:%d: not JSON: %s", what, e.line, e.column, e.text);
}

lm_status lm_json_read(const char *path, size_t max_bytes, json_t **out) {
  *out = NULL;
  lm_buf text = {0};
  lm_status s = lm_file_read(path, max_bytes, &text);
  if (!s)
    s = lm_json_parse(text.p, text.n, path, out);
  lm_buf_free(&text);
  return s;
}

// ---- numbers that are no JSON

// Copies text; NaN and Infinity outside of strings become strings.
static void not_finite_to_strings(const char *text, size_t n, lm_buf *out) {
  static const char *const names[] = {"NaN", "-Infinity", "Infinity"};
  for (const char *at = text, *end = text + n; at < end;) {
    const char *stop = *at == '"' ? string_end(at, end) : at + 1;
    bool named = false;
    for (size_t i = 0; !named && i < LM_COUNT(names); i++) {
      size_t length = strlen(names[i]);
      named = (size_t)(end - at) >= length && !memcmp(at, names[i], length);
      stop = named ? at + length : stop;
    }
    lm_buf_puts(out, named ? "\"" : "");
    lm_buf_add(out, at, (size_t)(stop - at));
    lm_buf_puts(out, named ? "\"" : "");
    at = stop;
  }
}

lm_status lm_json_read_python(const char *path, size_t max_bytes, json_t **out) {
  *out = NULL;
  lm_buf text = {0};
  lm_buf json = {0};
  lm_status s = lm_file_read(path, max_bytes, &text);
  if (!s) {
    not_finite_to_strings(text.p, text.n, &json);
    s = lm_json_parse(json.p ? json.p : "", json.n, path, out);
  }
  lm_buf_free(&json);
  lm_buf_free(&text);
  return s;
}

lm_status lm_json_read_existing(const char *path, size_t max_bytes, json_t **out) {
  *out = NULL;
  return access(path, F_OK) ? NULL : lm_json_read(path, max_bytes, out);
}

void lm_json_number(lm_buf *b, double x) {
  if (!isfinite(x)) {
    lm_buf_puts(b, "null");
    return;
  }
  lm_buf_number(b, x);
}

void lm_json_rename(json_t *object, const char *former, const char *name) {
  json_t *value = json_object_get(object, former);
  if (!value || json_object_get(object, name))
    return;
  json_object_set(object, name, value);
  json_object_del(object, former);
}
