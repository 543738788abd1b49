// planner.h - lowers a module at stage kernel to a plan: the layout of parameters, the locations of
// values, the order of steps.
//
// Values are dense and row-major unless they are views. A view costs nothing if its consumer
// supports strides (dot, loop, return, accum, append); kernels require dense operands. A value that
// is written once and then yielded, stacked, returned or accumulated is written to its final
// location directly if that is safe, else copied. The parts of a concatenation outside a kernel are
// written to its result.
//
// A kernel result may share the address of an operand only if lm_codegen.in_place allows it.
#ifndef LM_COMPILER_PLANNER_H
#define LM_COMPILER_PLANNER_H
#include "compiler/ir/ir.h"
#include "runtime/plan/plan.h"
#include "target/target.h"

enum {
  LM_KERNEL_WORKSPACES = 8,
  // The last elements of a stash in the host's memory stay in the device's between the loops.
  LM_STASH_RESIDENT = 2
};
typedef struct lm_kernel_code {
  const char *name, *source; // equal sources have equal names
  lm_plan_extent space;
  int64_t workspace[LM_KERNEL_WORKSPACES]; // bytes of each workspace, at capacity
  int n_workspaces;
  lm_plan_launch launch;
  double instructions; // at capacity, counted for each lane; 0: not counted
  double partial;      // bytes at capacity of sectors that its accesses move and do not use
  // Optional: a second kernel, whose operands are the workspaces, computes the results; the first
  // one writes the workspaces alone.
  const struct lm_kernel_code *combine;
  const struct lm_kernel_body
      *body; // the generator's own form of the text, for `merge`; NULL: none
} lm_kernel_code;

// A part of a launch that computes several steps: a kernel, or a copy.
enum {
  LM_MERGE_PARTS = 16
};
typedef struct lm_merge_part {
  const lm_kernel_code *kernel; // NULL: a copy
  int64_t points;               // of the kernel's parallel space
  // What a copy moves. For a kernel: NULL, or the append to a KV cache that the kernel's buffer
  // `appended` is the destination of. Buffer `at` then has the position. It is an additional
  // buffer: without the append the kernel reads no position.
  lm_plan_move *move;
  int appended, at; // appended -1: none
  int n_bufs, *buf; // the number of each buffer in the launch
} lm_merge_part;

enum {
  LM_JOINED = LM_PLAN_MAPS / 2 // GEMMs of a launch, each of which has two tensor maps
};

typedef struct lm_codegen lm_codegen;
typedef struct lm_plan_options {
  lm_target target;          // a copy, whose choices the caller may vary
  const lm_codegen *codegen; // writes the kernels
  bool tf32;                 // GEMMs in kernels may round f32 operands to 10 bits of mantissa
  bool states_on_host;       // optimizer states are in the host's memory
  bool params_on_host;       // parameters are; their 16-bit copies are in the device's
  bool less_memory;          // GEMMs do not wait for others that could share their launch
  int64_t extra_every;       // steps between two of the extra gradient (lm_plan_func.every)
} lm_plan_options;

// A code generator. A function that is NULL is not supported by the target, unless its comment says
// otherwise.
struct lm_codegen {
  void (*choose)(lm_target *t); // fills in t->choices for its kernels
  const char *(*prelude)(lm_arena *arena);
  // Generates the code of a kernel, attend or attend_vjp in `arena`; false after a diagnostic.
  bool (*kernel)(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                 lm_kernel_code *out);
  // True if result r may have the address of operand i, because the kernel reads each element of i
  // before it writes the same element of r and never reads it afterwards; NULL: lm_plan_in_place
  // decides.
  bool (*in_place)(const lm_plan_options *o, const lm_op *kernel, uint32_t i, uint32_t r);
  // gemm_is_profitable: true if a generated kernel is expected to be faster than the target's
  // library for this GEMM (see plan.h). gemm: generates it; false if the form is unsupported;
  // any_rows: the plan has GEMMs with a run-time number of rows, which can share their code with
  // the others. batches_apart: any_rows is false in functions of a whole batch. library_groups: the
  // library computes grouped GEMMs too.
  bool (*gemm_is_profitable)(const lm_target *t, const lm_plan_gemm *g);
  bool (*gemm)(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows, lm_arena *arena,
               lm_kernel_code *out);
  // As gemm, of an operand A that the kernel computes, or the second kernel of an attention that
  // has two (lm_kernel_code.combine): the operands of the kernel replace A; false if the form is
  // unsupported, NULL: all are.
  bool (*gemm_of)(const lm_plan_options *o, const lm_plan_gemm *g, const lm_op *kernel,
                  lm_arena *arena, lm_kernel_code *out);
  bool library_groups, batches_apart;
  // True if the kernel has no parameter for a buffer, of the operands and then the results: a
  // constant, or a result without users. NULL: it has one for each.
  bool (*omits)(const lm_op *kernel, uint32_t buffer);
  // True if the kernel reads operand i at the strides of lm_plan_strides; NULL: all operands are
  // dense.
  bool (*reads_strided)(const lm_op *kernel, uint32_t i);
  // True if the kernel writes result r at the strides of lm_plan_part_of, if it is such a part;
  // NULL: all results are dense.
  bool (*writes_strided)(const lm_op *kernel, uint32_t r);
  // True if the kernel adds result r, for which lm_plan_accum_of is not NULL, to the gradient:
  // lm_plan_launch.adds is set. NULL: no kernel does.
  bool (*adds)(const lm_op *kernel, uint32_t r);
  // True if `kernel` supports this attend or attend_vjp; NULL: it supports all.
  bool (*attends)(const lm_module *m, const lm_op *op);
  // True if kernels of attend_vjp read delta instead of o (see compiler/ir/attend.h).
  bool attend_delta;
  // The chunks in which a kernel of attend_vjp's region sums over its points; 0: the target does
  // not generate attention with this epilogue. NULL: it has no epilogues.
  int64_t (*attend_chunks)(const lm_target *t, const lm_op *vjp, const lm_op *kernel);
  // True if it generates this kernel, which begins with a dot (lm_kernel_dot); NULL: none.
  bool (*multiplies)(const lm_target *t, const lm_op *kernel);
  // True if it generates this kernel, which computes a factor of its dot (lm_kernel_mix); NULL:
  // none.
  bool (*mixes)(const lm_target *t, const lm_op *kernel);
  // True if it generates such kernels of so many rows and columns, and of so many channels.
  bool (*mixes_sizes)(int64_t rows, int64_t channels);
  // True if it generates this scan, whose region reads and updates the carry by GEMMs
  // (lm_op_chains); NULL: none.
  bool (*chains)(const lm_target *t, const lm_op *scan);
  // The same of a scan whose region adds a GEMM to the carry, and reads it by another one.
  bool (*scan_multiplies)(const lm_target *t, const lm_op *scan);
  // True if the target's library supports this GEMM with its residual, bias or gelu; NULL: none.
  bool (*epilogue)(const lm_plan_gemm *g);
  // True if the target's library multiplies the codes of this GEMM with scales; NULL: none.
  bool (*scales)(const lm_target *t, const lm_plan_gemm *g);
  // may_merge: true if the kernel can be a part of a launch. merge: generates the kernel of such a
  // launch, whose buffers are those of all parts; its space are the blocks. NULL: no kernel can.
  bool (*may_merge)(const lm_kernel_code *k);
  void (*merge)(const lm_merge_part *parts, int n, lm_arena *arena, lm_kernel_code *out);
  // joins: true if one launch can compute this GEMM and others of the same k. join: generates the
  // kernel of such a launch of n GEMMs, at most LM_JOINED; its operands are A and B of each, its
  // results C of each; its space are the blocks. NULL: no kernel can.
  bool (*joins)(const lm_target *t, const lm_plan_gemm *g);
  void (*join)(const lm_plan_options *o, const lm_plan_gemm *g, int n, lm_arena *arena,
               lm_kernel_code *out);
};

static inline const lm_module *lm_op_module(const lm_op *op) {
  return op->parent->func->module;
}

// Builds the plan in the module's arena. NULL after diagnostics in the module's context.
lm_plan *lm_plan_build(lm_module *kernel_stage, const lm_plan_options *o);

// True if every operation of the kernel is elementwise and operand o has the type of result r.
bool lm_plan_in_place(const lm_op *kernel, uint32_t o, uint32_t r);

// The operation pads a parameter by rows that its memory has, so that its result is that memory.
bool lm_plan_pads_in_place(const lm_op *op);

// lm_plan_origin: the source lines of an operation, such as "llama.lm:10,12", or "". lm_plan_label:
// its name and lines, such as "kernel exp+sum llama.lm:10,12".
const char *lm_plan_origin(lm_arena *a, const lm_module *m, const lm_op *op);
const char *lm_plan_label(lm_arena *a, const lm_module *m, const lm_op *op);

lm_plan_attend lm_plan_attend_sizes(const lm_module *m, const lm_op *attend);

// True if the dot can read its operands in GEMM calls through the views that define them (permute,
// rename, view, slice, at, down to a dense value). If not, the caller makes the operand
// `out_operand` dense in a kernel and calls again.
bool lm_plan_dot_strides_ok(const lm_module *m, const lm_op *dot, int *out_operand);

// The strides of v, in elements, through the views that define it, down to a dense value. *offsets:
// the bitwise or of the views' offsets. False if v has no strides.
bool lm_plan_strides(const lm_module *m, const lm_value *v, int64_t *out, int64_t *offsets);

// A value that is an operand of a concatenation outside a kernel, through views: its offset and
// strides in the concatenation's result, in elements.
typedef struct lm_plan_part {
  const lm_op *concat;
  int64_t offset, stride[LM_RANK];
} lm_plan_part;
// False if v is not such a value. The concatenation is then its only use.
bool lm_plan_part_of(const lm_module *m, const lm_value *v, lm_plan_part *out);

// The accum that is the only use of v, into the gradient of a parameter that is dense in memory and
// not stacked; NULL if there is none.
const lm_op *lm_plan_accum_of(lm_module *m, const lm_value *v);

// Describes a dot whose operands are read through views. False if an operand must be copied first.
bool lm_plan_gemm_from_dot(const lm_module *m, const lm_op *dot, lm_plan_gemm *out);
// Describes the dot that a kernel begins with, of dense operands. False if there is none, or if it
// takes several GEMM calls.
bool lm_plan_gemm_of_kernel(const lm_module *m, const lm_op *kernel, lm_plan_gemm *out);
// Describes a dot with an epilogue. False if it takes several GEMM calls, an operand must be copied
// first, or the bias has another length than the rows of the result.
bool lm_plan_gemm_from_epilogue(const lm_module *m, const lm_op *dot, lm_plan_gemm *out);
#endif
