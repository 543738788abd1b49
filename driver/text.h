// text.h - quantities, words and paths as text for messages.
#ifndef LM_DRIVER_TEXT_H
#define LM_DRIVER_TEXT_H
#include "runtime/base/base.h"

// Appends a rounded time with its unit: "1 min 20 s". For bytes and counts see base.h.
void lm_show_seconds(lm_buf *b, double seconds);
// Bytes rounded with their unit, "1.5 GB", allocated in `a`.
const char *lm_bytes_text(lm_arena *a, int64_t bytes);
// The reverse of lm_show_seconds: numbers with units, "1h 30m"; a number alone is minutes. 0: not a
// time.
double lm_seconds_parse(const char *text);
// A positive number with a magnitude of the language or without: "50M", "1.5B", "300k" or "300K".
// 0: not one.
double lm_count_parse(const char *text);
// LM_USER if `path` holds a control character, such as a newline: reports have one path in a line.
lm_status lm_path_check(lm_arena *a, const char *path);
// The name that a mistyped word was probably meant to be: the only one that it begins or continues,
// as --temp and --output do, otherwise the most similar one; NULL if there is none.
const char *lm_meant(const char *word, const char *const *names, int n);
// The results are allocated in `a`, or are `text` and `path` themselves.
const char *lm_show_word(lm_arena *a, const char *text); // quoted for a shell if it must be
const char *lm_show_quoted(lm_arena *a, const char *text);
// A call that begins at `column`, in lines of at most 100 columns if its arguments allow it,
// aligned behind the parenthesis as lm_fmt does; `behind` more columns follow it.
const char *lm_call_wrap(lm_arena *a, size_t column, const char *call, size_t behind);
// The shortest form of an existing path: relative if it is below the working directory, otherwise
// absolute; without "..".
const char *lm_show_path(lm_arena *a, const char *path);
#endif
