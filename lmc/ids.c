// ids.c - token numbers as text.
#include "lmc/ids.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *blanks_skip(const char *p, const char *end) {
  while (p < end && is_blank(*p))
    p++;
  return p;
}

// p: where a number has to stand; the text ends with a NUL.
static lm_status id_read(const char *text, const char *p, const char *end, char **out_end,
                         lm_tokens *out) {
  int shown = end - p < 20 ? (int)(end - p) : 20;
  errno = 0;
  long id = strtol(p, out_end, 10);
  bool ends = *out_end == end || is_blank(**out_end) || **out_end == ',';
  if (p == end)
    return lm_fail(LM_USER, "a token number is missing behind the last comma");
  if (*p == ',')
    return lm_fail(LM_USER, "a token number is missing %s",
                   p == text ? "in front of the first comma" : "between two commas");
  if (*out_end == p || !ends)
    return lm_fail(LM_USER, "'%.*s' is no token number", shown, p);
  if (errno || id < 0 || id > INT32_MAX)
    return lm_fail(LM_USER, "%.*s is no token number: they are from 0 to %d", (int)(*out_end - p),
                   p, INT32_MAX);
  lm_tokens_add(out, (int32_t)id);
  return NULL;
}

lm_status lm_ids_parse(const char *text, size_t n, lm_tokens *out) {
  const char *end = text + n;
  const char *p = blanks_skip(text, end);
  while (p < end) {
    char *stop;
    LM_TRY(id_read(text, p, end, &stop, out));
    p = blanks_skip(stop, end);
    bool comma = p < end && *p == ',';
    if (comma)
      p = blanks_skip(p + 1, end);
    if (comma && p == end)
      return id_read(text, p, end, &stop, out);
  }
  return NULL;
}
