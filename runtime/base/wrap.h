// wrap.h - text wrapped to a number of columns.
#ifndef LM_WRAP_H
#define LM_WRAP_H
#include "runtime/base/base.h"

// Columns that UTF-8 text takes, one for each code point.
int lm_text_columns(const char *text);

// Appends text, broken at blanks into lines of at most `width` columns; continuation lines begin
// with `indent` blanks, or, with LM_LAST_COLUMN, below the last column of their line, which is
// behind its last two blanks. Words longer than a line are not broken. width 0: no wrapping.
enum {
  LM_LAST_COLUMN = -1
};
void lm_text_wrap(lm_buf *b, const char *text, int width, int indent);
#endif
