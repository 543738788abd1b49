// plan_folder.h - a compiled recipe as a folder to read.
//
//   program.ast                        the tree of the program's main file
//   graph.lmir step.lmir kernel.lmir   the IR at the end of each stage
//   plan.txt                           memory, and every step in order
//   FUNCTION.dot                       a graph for Graphviz
//   kernels/                           sources of kernels, and for a GPU their machine code
//   kernels.txt                        registers and memory of each kernel, for a GPU
#ifndef LM_DRIVER_PLAN_FOLDER_H
#define LM_DRIVER_PLAN_FOLDER_H
#include "driver/session.h"
#include "runtime/cuda/compile.h"

enum {
  LM_EMIT_AST = 1,
  LM_EMIT_IR = 2,
  LM_EMIT_C = 4,
  LM_EMIT_DOT = 8
};

// text: names joined by commas, "ir,c". LM_USER for another name.
lm_status lm_emit_parse(const char *text, unsigned *out);

typedef struct lm_plan_folder {
  const char *dir; // NULL: nothing is written
  unsigned emit;   // LM_EMIT_… bits
} lm_plan_folder;

typedef struct lm_plan_figures {
  int kernels, compiled; // compiled: those that were not in the cache
  lm_cost_sum step;
  int64_t peak; // bytes of memory
  double seconds;
  const lm_cuda_code *code; // NULL: the target is the CPU
} lm_plan_figures;

// Makes the folder, and checks that nothing is overwritten that the recipe reads.
lm_status lm_plan_folder_prepare(const lm_session *s, const lm_plan_folder *f);
// Compiles an open session up to its kernels and writes the folder. began: time at the command's
// start. The caller frees *code in any case.
lm_status lm_plan_folder_write(lm_session *s, const lm_plan_folder *f, double began,
                               lm_cuda_code *code, lm_plan_figures *out);
#endif
