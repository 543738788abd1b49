// terminal.h - text for people whose terminal has a width.
#ifndef LM_TERMINAL_H
#define LM_TERMINAL_H
#include <stdio.h>

#include "runtime/base/base.h"

// Columns of the terminal that a stream writes to, as of now; 0 if it is no terminal, 80 if the
// terminal does not say.
int lm_terminal_width(FILE *f);

// Columns that UTF-8 text takes, one for each code point.
int lm_text_columns(const char *text);

// Appends text, broken at blanks into lines of at most `width` columns, whose continuations begin
// with `indent` blanks. Words that are longer stay whole. width 0: as it is.
void lm_text_wrap(lm_buf *b, const char *text, int width, int indent);

// Prints wrapped to the stream's terminal; as it is if that is none.
void lm_print_wrapped(FILE *to, int indent, const char *fmt, ...) LM_PRINTF(3, 4);
void lm_vprint_wrapped(FILE *to, int indent, const char *fmt, va_list ap);
#endif
