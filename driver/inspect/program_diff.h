// program_diff.h - the lines in which two versions of a program differ.
#ifndef LM_DRIVER_PROGRAM_DIFF_H
#define LM_DRIVER_PROGRAM_DIFF_H
#include "dsl/syntax/program.h"

// Appends "FILE:LINE: was …" and "FILE:LINE: is …" lines; lines that differ only in spaces or
// comments are left out. *out_more: lines left out of a long list. Returns the number of lines that
// differ. Both programs belong to one context.
uint32_t lm_program_diff(const lm_program *was, const lm_program *is, lm_buf *out,
                         uint32_t *out_more);
#endif
