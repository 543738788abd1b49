// program_diff.h - the lines in which two versions of a program differ.
#ifndef LMC_PROGRAM_DIFF_H
#define LMC_PROGRAM_DIFF_H
#include "dsl/syntax/program.h"

// Appends "FILE:LINE: was …" and "FILE:LINE: is …" lines, without those that differ in spaces or
// comments alone. *out_more: lines that were left out of a long list. Returns how many lines
// differ. Both programs are of one context.
uint32_t lm_program_diff(const lm_program *was, const lm_program *is, lm_buf *out,
                         uint32_t *out_more);
#endif
