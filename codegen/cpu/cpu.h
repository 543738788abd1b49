// cpu.h - C for the kernels of a module at stage kernel.
//
// A kernel becomes one function with the signature that runtime/plan/plan.h describes. Its text
// depends on nothing but what it computes: no value numbers, layers or source lines, so that equal
// kernels are equal text and are compiled once.
//
//   for each place of the outer axes (or each chunk of them)
//     pass 1: loops over inner axes; expressions that lie further out are computed there
//     pass 2: …
//
// The innermost loops are contiguous and vectorise. Where a kernel has no inner loops worth that
// (elementwise kernels, sums over leading axes), the last outer axes become its innermost loops
// ("lanes"), a block of them a place.
#ifndef LM_CODEGEN_CPU_H
#define LM_CODEGEN_CPU_H
#include "compiler/plan/planner.h"

// For lm_plan_target: user is the module.
bool lm_cpu_kernel_emit(void *module, const lm_op *kernel, lm_arena *arena, lm_kernel_code *out);
bool lm_cpu_attend_emit(void *module, const lm_op *attend, lm_arena *arena, lm_kernel_code *out);
bool lm_cpu_kernel_in_place(void *module, const lm_op *kernel, uint32_t operand, uint32_t result);

// Code for tiles of a product; false if it has a form for which there is none. Whether it is
// expected to beat the library.
bool lm_cpu_gemm_emit(const lm_plan_gemm *g, lm_arena *arena, lm_kernel_code *out);
bool lm_cpu_gemm_is_profitable(const lm_plan_gemm *g);

// How that code reads a weight on a processor with vectors of so many floats and, if so, a matrix
// unit for bf16; by type of operands. A matrix unit takes as long to multiply as vectors to lay out
// what it reads, so there it is usual.
void lm_cpu_panels(int vector, bool tiles, lm_plan_panel *out);

// The text that every translation unit of kernels begins with.
const char *lm_cpu_prelude_text(lm_arena *arena);
lm_plan_target lm_cpu_target(lm_module *m);
#endif
