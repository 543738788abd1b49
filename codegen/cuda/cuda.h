// cuda.h - CUDA C for the kernels of a module at stage kernel.
//
// A kernel becomes one __global__ function. Its text stands on the prelude alone (no toolkit
// headers), is C as much as C++, and depends on nothing but what it computes, so equal kernels are
// equal text. Three forms:
//
//   flat     no reductions: every element by itself; all axes are one long loop over the grid
//   team     reductions: the threads of a team (part of a warp, a warp, or a block) share a place
//   of the outer axes; loops
//            over inner axes are strided over them, sums end in a tree of shuffles. Sums over
//            places: a block does a chunk, its teams every n-th place, and adds the teams' sums in
//            order
//   scatter  rows of the table are dealt out to blocks, each of which looks for the updates of its
//   rows in order
//
// and for attention, forward and backward, tiles of scores in registers: products on tensor cores
// where everything is bf16, by warps anywhere, by warpgroups on sm_90a; also of f32 in TF32, if so
// asked.
//
// Innermost loops run in vectors of up to 16 bytes where memory is contiguous and every index a
// multiple. With LM_NARROW defined in front of the prelude, the same text reads and writes element
// by element: for buffers that lie at odd places.
//
// No sum depends on the order in which threads run.
#ifndef LM_CODEGEN_CUDA_H
#define LM_CODEGEN_CUDA_H
#include "compiler/plan/planner.h"

// The text in front of every kernel: on a device, or to run under the SIMT shim, which brings what
// the hardware does.
const char *lm_cuda_prelude_text(lm_arena *arena);
const char *lm_cuda_prelude_simt_text(lm_arena *arena);
// arch: "sm_90a", …; NULL: kernels that run on all. tf32: products in kernels may round operands of
// f32 to 10 bits of mantissa.
lm_plan_target lm_cuda_target(lm_module *m, const char *arch, bool tf32);
#endif
