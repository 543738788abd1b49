// diag.h - source files, locations and diagnostics; the compilation context that carries them.
//
// A diagnostic names a place, says what is wrong, may point at a second place and may give a hint:
//   llama.lm:10:33: error[E031]: axis mismatch in dot
//   10 |     let k = rope(rmsnorm(dot(x, wk, d), kn), ...
//      |                                 ^^ real[f, g, e] has no axis 'd'
//      = x: real[b, t, d] (line 8); wk declared at line 5
//      = help: declare wk as real[d, g, e]
#ifndef LM_DIAG_H
#define LM_DIAG_H
#include "runtime/base/base.h"

typedef struct lm_loc {
  uint16_t file;
  uint16_t len;
  uint32_t line, col;
} lm_loc; // file 0: nowhere; line, col from 1; len in bytes

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
    lm_loc loc;
    const char *text;
  } note[24]; // "= text" lines, a second place each; loc.file 0: no place
  int n_notes;
  const char *help; // NULL for none
} lm_diag;

// The compilation context: everything of one invocation hangs here. Not shared between threads.
typedef struct lm_ctx {
  lm_arena *arena;
  lm_intern *intern;
  lm_source *sources;
  uint32_t n_sources, cap_sources; // [0] is unused
  lm_diag *diags, **diags_tail;
  uint32_t n_errors, n_warnings;
  uint32_t max_errors; // further errors are counted, not kept (default 100)
} lm_ctx;

lm_ctx *lm_ctx_create(void);
// sources and texts of base are its own too; base stays as it is, and outlives it
lm_ctx *lm_ctx_create_on(const lm_ctx *base);
void lm_ctx_destroy(lm_ctx *c);
uint16_t lm_source_add(lm_ctx *c, const char *path, const char *text,
                       size_t n); // keeps its own copy
#define LM_SYM(c, s) lm_intern_s((c)->intern, (s))

// Add a diagnostic; returns it so that label, notes and help can follow. Never NULL. The same code
// at the same place is reported once.
lm_diag *lm_error(lm_ctx *c, lm_loc at, const char *code, const char *fmt, ...) LM_PRINTF(4, 5);
lm_diag *lm_warn(lm_ctx *c, lm_loc at, const char *code, const char *fmt, ...) LM_PRINTF(4, 5);
lm_diag *lm_note(lm_ctx *c, lm_loc at, const char *code, const char *fmt, ...) LM_PRINTF(4, 5);
// What was reported since a mark is forgotten: for work whose mistakes are not what was asked
// about.
typedef struct lm_diag_mark {
  lm_diag **tail;
  uint32_t n_errors, n_warnings;
} lm_diag_mark;
lm_diag_mark lm_diag_mark_of(const lm_ctx *c);
void lm_diag_return(lm_ctx *c, lm_diag_mark to);
// Errors from `first` on (NULL: of all) become notes under the headline "what: …", as they are not
// of what was asked for.
void lm_diag_soften(lm_ctx *c, lm_diag *first, const char *what);
void lm_diag_label(lm_ctx *c, lm_diag *d, const char *fmt, ...) LM_PRINTF(3, 4);
void lm_diag_note(lm_ctx *c, lm_diag *d, lm_loc at, const char *fmt, ...) LM_PRINTF(4, 5);
void lm_diag_help(lm_ctx *c, lm_diag *d, const char *fmt, ...) LM_PRINTF(3, 4);

// Render all diagnostics sorted by place. `color`: ANSI colours. JSON: an array of objects, same
// data.
void lm_diag_render(const lm_ctx *c, lm_buf *out, bool color);
void lm_diag_render_json(const lm_ctx *c, lm_buf *out);

// The nearest of `names` to `word` by edit distance, NULL if none is near enough to suggest.
const char *lm_nearest(const char *word, const char *const *names, int n);
#endif
