// text.c - quantities, words and paths as text for messages.
#include "driver/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/diag.h"

enum {
  BEGUN_LEAST = 3 // letters that two names have in common
};

void lm_show_seconds(lm_buf *b, double seconds) {
  if (seconds < 1)
    lm_buf_printf(b, "%.0f ms", seconds * 1e3);
  else if (seconds < 10)
    lm_buf_printf(b, "%.1f s", seconds);
  else if (seconds < 59.5)
    lm_buf_printf(b, "%.0f s", seconds);
  else if (seconds < 3600)
    lm_buf_printf(b, "%d min %02d s", (int)(seconds / 60), (int)fmod(seconds, 60));
  else
    lm_buf_printf(b, "%d h %02d min", (int)(seconds / 3600), (int)fmod(seconds / 60, 60));
}

const char *lm_show_path(lm_arena *a, const char *path) {
  char *here = realpath(".", NULL);
  char *real = realpath(path, NULL);
  size_t n = here ? strlen(here) : 0;
  bool within = here && real && !strncmp(real, here, n) && real[n] == '/';
  const char *shown =
      real ? lm_arena_strndup(a, within ? real + n + 1 : real, strlen(within ? real + n + 1 : real))
           : path;
  free(here);
  free(real);
  return shown;
}

lm_status lm_path_check(lm_arena *a, const char *path) {
  for (const char *p = path; *p; p++)
    if ((unsigned char)*p < ' ' || *p == 0x7f)
      return lm_fail(LM_USER,
                     "'%s' holds the control character \\x%02x, which no path may have here; "
                     "rename that file or folder",
                     lm_shown(a, path), (unsigned char)*p);
  return NULL;
}

const char *lm_show_quoted(lm_arena *a, const char *text) {
  lm_buf b = {0};
  lm_buf_puts(&b, "'");
  for (const char *p = text; *p; p++)
    lm_buf_printf(&b, *p == '\'' ? "'\\''" : "%c", *p);
  lm_buf_puts(&b, "'");
  const char *quoted = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return quoted;
}

const char *lm_show_word(lm_arena *a, const char *text) {
  static const char plain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  return *text && !text[strspn(text, plain)] ? text : lm_show_quoted(a, text);
}

// Seconds of the unit that a text begins with, 0 if it is none; *out_n: the length of that word.
static double unit_seconds(const char *text, size_t *out_n) {
  static const struct {
    const char *names[6];
    double seconds;
  } units[] = {{{"s", "sec", "secs", "second", "seconds"}, 1},
               {{"m", "min", "mins", "minute", "minutes"}, 60},
               {{"h", "hr", "hrs", "hour", "hours"}, 3600},
               {{"d", "day", "days"}, 86400}};
  size_t n = 0;
  while (isalpha((unsigned char)text[n]))
    n++;
  *out_n = n;
  for (size_t i = 0; i < LM_COUNT(units); i++)
    for (size_t k = 0; k < LM_COUNT(units[i].names) && units[i].names[k]; k++)
      if (strlen(units[i].names[k]) == n && !strncasecmp(text, units[i].names[k], n))
        return units[i].seconds;
  return 0;
}

const char *lm_bytes_text(lm_arena *a, int64_t bytes) {
  lm_buf b = {0};
  lm_show_bytes(&b, (double)bytes);
  const char *text = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

double lm_seconds_parse(const char *text) {
  double total = 0;
  do {
    char *end;
    size_t unit;
    double x = strtod(text, &end);
    bool number =
        end > text && x >= 0 && isfinite(x) && (isdigit((unsigned char)end[-1]) || end[-1] == '.');
    text = end + strspn(end, " ");
    if (number && !*text && total == 0)
      return 60 * x;
    double seconds = unit_seconds(text, &unit);
    if (!number || seconds == 0)
      return 0;
    total += x * seconds;
    text += unit + strspn(text + unit, " ");
  } while (*text);
  return total;
}

double lm_count_parse(const char *text) {
  static const char magnitudes[] = "kMBT";
  char *end;
  double x = strtod(text, &end);
  const char *magnitude = *end ? strchr(magnitudes, *end == 'K' ? 'k' : *end) : NULL;
  bool plain = isdigit((unsigned char)text[0]) && text[strspn(text, "0123456789.kKMBT")] == 0;
  if (!plain || (*end && (!magnitude || end[1])))
    return 0;
  for (const char *at = magnitudes; magnitude && at <= magnitude; at++)
    x *= 1000;
  return x;
}

// Bytes up to the end of an argument, with the comma behind it; commas in a string are part of it.
static size_t argument_length(const char *s) {
  bool quoted = false;
  size_t n = 0;
  for (; s[n] && (quoted || s[n] != ','); n++)
    if (s[n] == '\\' && quoted && s[n + 1])
      n++;
    else if (s[n] == '"')
      quoted = !quoted;
  return n + (s[n] == ',');
}

const char *lm_call_wrap(lm_arena *a, size_t column, const char *call, size_t behind) {
  enum {
    COLUMNS = 100
  };
  size_t name = strcspn(call, "(") + 1;
  size_t at = column + name;
  lm_buf b = {0};
  lm_buf_printf(&b, "%.*s", (int)name, call);
  for (const char *s = call + name; *s;) {
    size_t n = argument_length(s);
    bool first = s == call + name;
    s += strspn(s, " ");
    n -= first ? 0 : 1;
    if (at + 1 + n + (s[n] ? 0 : behind) > COLUMNS && !first) {
      lm_buf_printf(&b, "\n%*s", (int)(column + name), "");
      at = column + name;
    } else if (!first) {
      lm_buf_puts(&b, " ");
      at++;
    }
    lm_buf_add(&b, s, n);
    at += n;
    s += n;
  }
  const char *text = lm_arena_strndup(a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// ---- names

// The only name that the word begins or continues; NULL if there is none.
static const char *begun(const char *word, const char *const *names, int n) {
  const char *found = NULL;
  size_t length = strlen(word);
  for (int i = 0; i < n; i++) {
    size_t m = strlen(names[i]);
    size_t common = length < m ? length : m;
    if (common < BEGUN_LEAST || strncmp(word, names[i], common))
      continue;
    if (found)
      return NULL;
    found = names[i];
  }
  return found;
}

const char *lm_meant(const char *word, const char *const *names, int n) {
  const char *found = begun(word, names, n);
  return found ? found : lm_nearest(word, names, n);
}
