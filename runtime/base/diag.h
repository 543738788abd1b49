// diag.h - source files, locations and diagnostics, and the compilation context that holds them.
//
// A diagnostic has a location and a text, and optionally a label, notes with locations and a hint:
//   llama.lm:10:33: error[E031]: axis mismatch in dot
//   10 |     let k = rope(rmsnorm(dot(x, wk, d), kn), ...
//      |                                 ^^ real[f, g, e] has no axis 'd'
//      = x: real[b, t, d] (line 8); wk declared at line 5
//      = help: declare wk as real[d, g, e]
#ifndef LM_DIAG_H
#define LM_DIAG_H
#include <stdio.h>

#include "runtime/base/base.h"

// The location of a token. file 0: unknown; line and col count from 1; len is in bytes.
typedef struct lm_loc {
  uint16_t file;
  uint16_t len;
  uint32_t line, col;
} lm_loc;

typedef struct lm_source {
  const char *path;
  const char *text;
  size_t n;
} lm_source;

typedef enum {
  LM_SEV_ERROR,
  LM_SEV_WARNING,
  LM_SEV_NOTE
} lm_severity;

typedef struct lm_diag {
  struct lm_diag *next;
  lm_severity severity;
  const char *code; // "E031"; NULL for none
  lm_loc loc;
  const char *text;  // headline
  const char *label; // under the caret; NULL for none
  struct {
    lm_loc loc; // file 0: no location
    const char *text;
  } note[24]; // the lines "= text"
  int n_notes;
  const char *help; // NULL for none
  lm_loc *uses;     // further locations of the mistake, which one note counts
  uint32_t n_uses, cap_uses;
  int uses_note; // index of that note
} lm_diag;

// The compilation context owns everything of one compilation. Used by one thread at a time.
typedef struct lm_ctx {
  lm_arena *arena;
  lm_intern *intern;
  lm_source *sources;
  uint32_t n_sources, cap_sources; // [0] is unused
  lm_diag *diags, **diags_tail;
  uint32_t n_errors, n_warnings;
  uint32_t n_rejects;  // errors, each as often as it was reported
  uint32_t max_errors; // further errors are only counted (default 100)
} lm_ctx;

lm_ctx *lm_ctx_create(void);
// A context that contains the sources and interned texts of `base`. base is not changed and must
// outlive the new context.
lm_ctx *lm_ctx_create_on(const lm_ctx *base);
void lm_ctx_destroy(lm_ctx *c);
// Copies the text. Returns the file's number for lm_loc.
uint16_t lm_source_add(lm_ctx *c, const char *path, const char *text, size_t n);
#define LM_SYM(c, s) lm_intern_s((c)->intern, (s))

// Add a diagnostic and return it, so that a label, notes and help can be added. Never NULL. A code
// is reported at most once per location. Diagnostics with a code are reported by LM_REPORT
// (diag_code.h); lm_report_plain adds an error without one, such as the text of a status.
lm_diag *lm_diag_add(lm_ctx *c, lm_severity severity, lm_loc at, const char *code, const char *fmt,
                     va_list ap);
lm_diag *lm_report_plain(lm_ctx *c, lm_loc at, const char *fmt, ...) LM_PRINTF(3, 4);
// A mark and a rollback to it: lm_diag_return discards the diagnostics that were added after the
// mark, for speculative work whose errors do not concern the user.
typedef struct lm_diag_mark {
  lm_diag **tail;
  uint32_t n_errors, n_warnings, n_rejects;
} lm_diag_mark;
lm_diag_mark lm_diag_mark_of(const lm_ctx *c);
void lm_diag_return(lm_ctx *c, lm_diag_mark to);
// Makes the errors from `first` on (NULL: all errors) notes under the headline "what: …", so
// that they do not fail the compilation.
void lm_diag_soften(lm_ctx *c, lm_diag *first, const char *what);
void lm_diag_label(lm_ctx *c, lm_diag *d, const char *fmt, ...) LM_PRINTF(3, 4);
void lm_diag_note(lm_ctx *c, lm_diag *d, lm_loc at, const char *fmt, ...) LM_PRINTF(4, 5);
void lm_diag_help(lm_ctx *c, lm_diag *d, const char *fmt, ...) LM_PRINTF(3, 4);
// Counts a further use of the name that d reports: "= 3 further uses, the last one here (line 12)".
// A location counts once.
void lm_diag_use(lm_ctx *c, lm_diag *d, lm_loc at);

// Text of foreign origin (a file's name, a key, a tensor) as one line that is safe to print and to
// write into a comment: control characters, newlines and characters that hide or reorder text are
// escaped, and a tab is one blank. Returns the width in cells of a terminal.
int lm_buf_puts_shown(lm_buf *b, const char *s, size_t n);
const char *lm_shown(lm_arena *a, const char *s);
// The same, but with the newlines kept: a message or a report of several lines. Everything that a
// command prints passes through one of them, except the text that a model or a tokenizer makes.
void lm_buf_lines_shown(lm_buf *b, const char *text); // text may be NULL
void lm_puts_shown(FILE *to, const char *text);
void lm_vprint_shown(FILE *to, const char *fmt, va_list ap);

// Render all diagnostics, sorted by location: as text for a terminal, with ANSI colors and with
// lines wrapped to its width, except for those of the source (width 0: neither), or as a JSON array
// of objects with the same data.
void lm_diag_render(const lm_ctx *c, lm_buf *out, int width);
void lm_diag_render_json(const lm_ctx *c, lm_buf *out);

// Appends the line that follows the errors on a terminal: which `lmc explain CODE` tells more about
// them. Nothing if no error has a code.
void lm_diag_hint(const lm_ctx *c, lm_buf *out);
const char *lm_severity_name(lm_severity s); // "error", "warning", "note"

// The name nearest to `word` by edit distance; NULL if none is close enough to suggest.
const char *lm_nearest(const char *word, const char *const *names, int n);
#endif
