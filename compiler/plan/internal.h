// internal.h - what the files of the planner share.
//
// Planning one function is one walk over its operations. Every value has a place: a view of a
// storage. Steps refer to places; addresses are known only at the end, when storages that live at
// different times have been packed. Until then a storage may still be put inside another one (a
// stacked result, a carry, an argument), so that what was planned to be written to it goes to its
// final place.
#ifndef LM_COMPILER_PLAN_INTERNAL_H
#define LM_COMPILER_PLAN_INTERNAL_H
#include "compiler/plan/planner.h"
#include "runtime/base/dtype.h"

// ---- layout.c: where globals lie

typedef struct lm_layout {
  struct {
    int64_t offset, stride[LM_RANK];
  } * globals; // as module.globals; elements (params) or bytes (others); stride:
               // from one place of each stacked axis to the next
  int64_t param_elements, cache_bytes,
      made_bytes; // in the arena of copies what is made comes first
} lm_layout;

void lm_layout_make(const lm_module *m, lm_arena *arena, lm_layout *out);

// ---- view.c: strides of views; all in elements

void lm_strides_dense(const lm_module *m, lm_type t, int64_t *stride);
bool lm_strides_are_dense(const lm_module *m, lm_type t, const int64_t *stride);
// From the strides of the operand of permute, rename, view or slice to those of its result. False
// if they have none.
bool lm_view_strides(const lm_module *m, const lm_op *op, const int64_t *in, int64_t *out,
                     int64_t *out_offset);
// The way back: where the operand must lie for the result to lie there. Not for slices.
bool lm_view_invert(const lm_module *m, const lm_op *op, const int64_t *out, int64_t *in);

// ---- gemm.c: a dot as a GEMM

// Strides of the two operands and the result, in elements. False (with a form for plain loops) if
// no choice of axes gives every operand a unit stride: out_operand, which may be NULL, is then the
// one that stands in the way, 2 the result.
bool lm_dot_gemm(const lm_module *m, const lm_op *dot, const int64_t *x, const int64_t *w,
                 const int64_t *z, lm_plan_gemm *out, int *out_operand);

// Of a product with a dense result: a second operand in panels of the target's and the axes that it
// was split along are one again.
bool lm_gemm_panels(lm_plan_gemm *g, lm_plan_panel p);

// ---- storage.c: stretches of memory

typedef struct storage {
  struct storage *next;
  uint8_t arena;
  int64_t offset, bytes; // offset: given but in the work arena
  int depth; // loops around its home: an iteration of an inner loop finds what the last one left
  uint32_t last_use;    // of the values that lie in it, as a number of an operation
  struct storage *into; // lies inside another: at into_offset + into_loop · loop indices
  int64_t into_offset, into_loop[LM_PLAN_DEPTH];
  const char *label;
  int first, last; // steps between which it is taken
  int live;        // index in the function's table
} storage;

typedef struct place {
  storage *at;
  int64_t offset, loop[LM_PLAN_DEPTH]; // bytes, bytes an iteration
  int64_t stride[LM_RANK];             // elements
} place;

typedef struct ref {
  storage *at;
  int64_t offset, loop[LM_PLAN_DEPTH], bytes;
} ref;
typedef struct pstep {
  lm_plan_step step;
  ref *refs;
  int loop;
  lm_op *op;
} pstep; // loop: innermost LOOP step around it, -1

typedef struct frame { // a loop being walked
  lm_op *op;
  int step;                 // its LOOP
  storage **carry, **stack; // carry: its storage, or that of the stack whose slots it runs through
  bool *slots;              // the carry is slot i of a stack of count + 1
  int64_t *slot_bytes;
  storage *index; // of the index, where that is needed in memory
} frame;

typedef struct planner {
  lm_module *m;
  const lm_plan_target *target;
  lm_arena *arena;
  lm_plan *plan;
  lm_layout layout;
  storage *fixed[LM_ARENAS]; // one for each arena that is laid out beforehand
  int64_t io_bytes;
  bool has_gradients, has_copies;
  lm_sym *states;
  uint32_t n_states, cap_states;
  uint32_t cap_kernels;
  // of the function at hand
  lm_func *f;
  place *places;             // by value id; at is NULL: none
  uint32_t *last_use, *uses; // by value id; last_use counts uses of views as uses of what they view
  bool *in_memory; // some use reads it through its address (constants and indices may do without)
  pstep *steps;
  uint32_t n_steps, cap_steps;
  frame frames[LM_PLAN_DEPTH];
  int depth;
  storage *storages;
  bool failed;
} planner;

storage *lm_storage_new(planner *p, int64_t bytes, int depth, const char *label);
ref lm_storage_resolve(storage *s); // the outermost storage, and where in it
// Lets `v` be written to `to` at once instead of being copied there at the end of the region it is
// made in. False if what `to` held might still be needed after v is first written, or v has no
// storage of its own. `since`: the first step that may read what `to` held; -1: none does.
bool lm_storage_claim(planner *p, lm_value *v, const place *to, int since, lm_op *at);
void lm_storage_pack(planner *p,
                     lm_plan_func *out); // sets first, last, offset of all in the work arena

// ---- steps.c: adding steps

int64_t lm_type_bytes(const planner *p, lm_type t);
place lm_location_dense(const planner *p, storage *at, lm_type t);
pstep *lm_step_add(planner *p, lm_step_kind kind, lm_op *op, int n_bufs);
ref lm_location_ref(const planner *p, const place *at, lm_type t);
void lm_step_copy(planner *p, lm_op *op, lm_type t, const place *from, const place *to, bool add);
void lm_step_append(planner *p, lm_op *op, lm_type t, const place *from, const place *to, int axis,
                    int64_t limit, const place *at);
void lm_step_fill(planner *p, lm_op *op, lm_type t, double value, const place *to);
void lm_step_kernel(planner *p, lm_op *op);
void lm_step_dot(planner *p, lm_op *op);
void lm_steps_code(planner *p); // once nothing changes any more: code of products
bool lm_step_dot_accumulate(planner *p, lm_op *accum,
                            const place *to); // the accumulated value's dot adds to `to` itself

// ---- walk.c

place *lm_value_location(planner *p, lm_value *v); // a bug if it has none
place lm_value_dense(planner *p, lm_value *v,
                     lm_op *op); // copied if it is a view that is not dense
void lm_value_store(planner *p, lm_value *v, const place *to, lm_op *op);
void lm_func_walk(planner *p);
void lm_plan_error(planner *p, const lm_op *op, const char *fmt, ...) LM_PRINTF(3, 4);
#endif
