// machine_code.h - what the compiler of a GPU made of a plan's kernels, to read.
#ifndef LMC_MACHINE_CODE_H
#define LMC_MACHINE_CODE_H
#include "runtime/cuda/compile.h"

int64_t lm_machine_code_bytes(const lm_cuda_code *c);
// A line a kernel: name, registers and bytes spilled of a thread, bytes of shared memory and
// threads of a block, source line.
void lm_machine_code_table(const lm_plan *plan, const lm_cuda_code *c, lm_buf *out);
void lm_machine_code_json(const lm_plan *plan, const lm_cuda_code *c,
                          lm_buf *out); // the same as an array of objects
// DIR/kernels.txt, the table, and DIR/kernels/N.cubin, the images.
lm_status lm_machine_code_write(const lm_plan *plan, const lm_cuda_code *c, const char *dir);
#endif
