// diag_code.h - the catalogue of diagnostics (diag.def), and reports of its entries by code.
//
// LM_DIAG_E031 is the number of a diagnostic and LM_TEXT_E031 its format, a constant, so that the
// compiler checks the arguments of each report against it.
#ifndef LM_DIAG_CODE_H
#define LM_DIAG_CODE_H
#include "runtime/base/diag.h"

typedef enum {
#define DIAG(code, severity, text, explanation, example, corrected) LM_DIAG_##code,
#include "runtime/base/diag.def"
#undef DIAG
  LM_DIAGS
} lm_diag_id;

#define DIAG(code, severity, text, explanation, example, corrected)                                \
  static const char LM_TEXT_##code[] __attribute__((unused)) = text;
#include "runtime/base/diag.def"
#undef DIAG

typedef struct lm_diag_info {
  const char *code;
  lm_severity severity;
  const char *text;        // printf format of the headline
  const char *explanation; // Markdown
  const char *example;     // a program that causes it; "" for none
  const char *corrected;   // the example without the mistake; "" for none
} lm_diag_info;

extern const lm_diag_info lm_diag_table[LM_DIAGS];
// Whether the word has the form of a code, such as E031 or w001.
bool lm_diag_is_code(const char *word);
const lm_diag_info *lm_diag_find(const char *code); // in either case; NULL if there is none

// The headline for readers: the format with "…" for its arguments.
void lm_diag_title(lm_buf *out, const lm_diag_info *d);
// One entry as `lmc explain CODE` prints it, its text in lines of at most `width` columns; 0: 80.
void lm_diag_write_entry(lm_buf *out, const lm_diag_info *d, int width);
void lm_diag_write_entry_json(lm_buf *out, const lm_diag_info *d);
// All entries as Markdown: docs/errors.md.
void lm_diag_write_reference(lm_buf *out);

// LM_REPORT(c, at, E031, "dot") adds a diagnostic of the catalogue and returns it, never NULL.
#define LM_DIAGNOSTIC(code, ...) LM_DIAG_##code, LM_TEXT_##code, ##__VA_ARGS__
#define LM_REPORT(c, at, code, ...) lm_report(c, at, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
lm_diag *lm_report(lm_ctx *c, lm_loc at, lm_diag_id id, const char *fmt, ...) LM_PRINTF(4, 5);
lm_diag *lm_vreport(lm_ctx *c, lm_loc at, lm_diag_id id, const char *fmt, va_list ap);
#endif
