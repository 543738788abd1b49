// terminal.h - standard input and output, and the width of a terminal.
#ifndef LM_TERMINAL_H
#define LM_TERMINAL_H
#include <stdio.h>

#include "runtime/base/base.h"
#include "runtime/base/wrap.h"

// Opens what the caller has closed of standard input, output and error; otherwise the next file
// would be one of them. Nothing can be read there, and writing fails. Writing beyond the limit of
// the size of a file is an error of that write, no signal. The heap is prepared (pages.h), and the
// stack of the calling thread grows to a usual size. LM_ENV: the limit of the stack is too small.
lm_status lm_process_prepare(void);

// Current number of columns of the terminal that a stream writes to; 0 if the stream is not a
// terminal, 80 if the terminal does not report its width.
int lm_terminal_width(FILE *f);

// Writes and flushes bytes that a model generated, as they are; to a terminal, control characters
// that could move its cursor or rename it as escapes.
void lm_terminal_write(FILE *to, const char *p, size_t n);

// Prints text, escaped as by lm_buf_lines_shown, wrapped to the width of the stream's terminal,
// unwrapped if it is not a terminal.
void lm_print_wrapped(FILE *to, int indent, const char *fmt, ...) LM_PRINTF(3, 4);
void lm_vprint_wrapped(FILE *to, int indent, const char *fmt, va_list ap);

// Prints and frees the report of a command, wrapped in its last column; JSON is not wrapped.
void lm_print_report(FILE *to, bool json, lm_buf *text);
#endif
