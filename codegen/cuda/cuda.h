// cuda.h - CUDA C for the kernels of a module at stage kernel.
//
// A kernel becomes one __global__ function. Its text needs only the prelude (no toolkit headers),
// is valid C as well as C++, and depends only on what the kernel computes, so equal kernels have
// equal text. There are four forms:
//
//   flat     no reductions: all axes are one grid-stride loop over independent elements
//   team     reductions: the threads of a team (part of a warp, a warp, or a block) share a point
//            of the parallel axes; loops over inner axes are strided over the threads, sums end in
//            a tree of shuffles. For sums over points a block computes a chunk, each of its teams
//            every n-th point, and adds the sums of the teams in order
//   scan     each thread has a point of the axes along which the scan's positions are independent,
//            and loops over the positions (codegen/common/scan.h)
//   scatter  rows of the table are distributed over blocks, each of which lists the updates of its
//            rows and adds them in order
//
// for routing, blocks that sort the rows of one group each, and grouped GEMMs by tiles; and for
// attention, forward and backward, tiles of scores in registers: GEMMs on tensor cores if
// everything is bf16, by warps on any architecture, by warpgroups on sm_90a; f32 operands use TF32
// if that is enabled.
//
// Innermost loops use vectors of up to 16 bytes if memory is contiguous and every index is a
// multiple of the vector. With LM_NARROW defined before the prelude, the same text reads and writes
// single elements, for buffers that are not aligned.
//
// No sum depends on the order in which threads run.
#ifndef LM_CODEGEN_CUDA_H
#define LM_CODEGEN_CUDA_H
#include "compiler/plan/planner.h"

// The prelude of every kernel: for a device, and for the SIMT shim, which emulates the hardware.
const char *lm_cuda_prelude_text(lm_arena *arena);
const char *lm_cuda_prelude_simt_text(lm_arena *arena);
extern const lm_codegen lm_cuda_codegen;
// Options for this code. arch: the name of a machine or an architecture of target/known.def, or
// NULL for kernels that run on all.
lm_plan_options lm_cuda_options(const char *arch, bool tf32);
#endif
