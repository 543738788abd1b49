// cpu.h - C code for the kernels of a module at stage kernel.
//
// A kernel becomes one function with the signature that runtime/plan/plan.h describes. The text
// depends only on what the kernel computes: it contains no value numbers, layer numbers or source
// lines, so equal kernels have equal text and are compiled once.
//
//   for each point of the parallel axes (or each chunk of them)
//     pass 1: loops over inner axes; each expression is computed in the outermost loop that allows
//     it pass 2: ...
//
// The innermost loops are contiguous and vectorise. If a kernel has no inner loops that are
// profitable to vectorise (elementwise kernels, sums over leading axes), the last parallel axes
// become its innermost loops ("lanes"), and a point is a block of lanes.
#ifndef LM_CODEGEN_CPU_H
#define LM_CODEGEN_CPU_H
#include "compiler/plan/planner.h"

extern const lm_codegen lm_cpu_codegen;
// Options for code that runs on any processor, without figures of a machine.
lm_plan_options lm_cpu_options(void);

// Functions of lm_cpu_codegen.
bool lm_cpu_kernel_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                        lm_kernel_code *out);
bool lm_cpu_attend_emit(const lm_plan_options *o, const lm_op *attend, lm_arena *arena,
                        lm_kernel_code *out);
// The operations that sort ids: one thread sorts all of them.
bool lm_cpu_group_emit(const lm_op *op, lm_arena *arena, lm_kernel_code *out);
bool lm_cpu_kernel_in_place(const lm_plan_options *o, const lm_op *kernel, uint32_t operand,
                            uint32_t result);

// lm_cpu_gemm_emit writes code for the tiles of a GEMM, which with any_rows is also fast for few
// rows; it returns false if the GEMM has an unsupported form. lm_cpu_gemm_is_profitable tells
// whether that code is expected to be faster than the library.
bool lm_cpu_gemm_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                      lm_arena *arena, lm_kernel_code *out);
bool lm_cpu_gemm_is_profitable(const lm_target *t, const lm_plan_gemm *g);

// The panel layouts in which that code reads a weight, by type of operands, for vectors of `vector`
// floats (0: none) and a matrix unit for bf16. AMX needs as long to multiply as vector instructions
// need to pack its operands, so prepacking is the default there.
void lm_cpu_panels(int vector, lm_matrix_unit unit, lm_target_panel *out);

// The text that every translation unit of kernels begins with.
const char *lm_cpu_prelude_text(lm_arena *arena);
#endif
