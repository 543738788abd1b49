// machine_code.h - machine code of a plan's kernels for a GPU: registers, spills, images.
#ifndef LM_DRIVER_MACHINE_CODE_H
#define LM_DRIVER_MACHINE_CODE_H
#include "runtime/cuda/compile.h"

int64_t lm_machine_code_bytes(const lm_cuda_code *c);
// One line for each kernel: name, registers and spilled bytes of a thread, shared memory and
// threads of a block, source line.
void lm_machine_code_table(const lm_plan *plan, const lm_cuda_code *c, lm_buf *out);
void lm_machine_code_json(const lm_plan *plan, const lm_cuda_code *c,
                          lm_buf *out); // the same as an array of objects
// Writes the table to DIR/kernels.txt and the images to DIR/kernels/N.cubin.
lm_status lm_machine_code_write(const lm_plan *plan, const lm_cuda_code *c, const char *dir);
#endif
