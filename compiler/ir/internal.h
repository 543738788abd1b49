// internal.h - functions shared by builder, parser, verifier and cloning.
#ifndef LM_IR_INTERNAL_H
#define LM_IR_INTERNAL_H
#include "compiler/ir/ir.h"

// ---- region.c
lm_region *lm_region_new(lm_module *m, lm_func *f, lm_op *owner);
lm_value *lm_value_new(lm_module *m, lm_type type, lm_op *def, lm_region *region, uint32_t index,
                       lm_sym name);
// An unlinked operation. `out` has room for n_out values, which are not created yet.
lm_op *lm_op_new(lm_module *m, lm_opcode code, lm_value *const *in, uint32_t n_in,
                 const lm_attr *attr, lm_loc loc);
// Links op into region, before `before` or at the end.
void lm_op_link(lm_region *r, lm_op *before, lm_op *op);
// Creates op's results with the given types. op is linked already or will be: linking sets their
// region.
void lm_op_results_make(lm_module *m, lm_op *op, const lm_type *types, uint32_t n);

// ---- build.c
// Creates an operation with a region, whose arguments are the operands, after one of type *first
// unless it is NULL. Moves the builder inside.
lm_op *lm_isolated_begin(lm_builder *b, lm_opcode code, const lm_attr *attr, lm_value *const *in,
                         uint32_t n_in, const lm_type *first);
// Ends the region of op with a yield; the results of op follow from it. Moves the builder after op.
void lm_region_end(lm_builder *b, lm_op *op, lm_value *const *yields, uint32_t n);

// ---- infer.c
// The number of results of op (from a loop's yield, or a call's function); -1 with a reason if it
// is unknown.
int64_t lm_op_result_count(const lm_module *m, const lm_op *op, lm_buf *why);
// Checks operands, attributes and the shape rule, except sizes. `out` has room for
// lm_op_result_count types; out[0] is the given type (its dtype is LM_DTYPES if there is none),
// which typed operations need.
bool lm_op_infer(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);

// ---- verify.c
// lm_op_infer, and checks that the stage allows op in its region, and that its results have the
// inferred types.
bool lm_op_check(const lm_module *m, const lm_op *op, lm_buf *why);
// True if v may be used in region r: v is defined in r or in an outer region, without an isolated
// operation in between.
bool lm_value_visible(const lm_value *v, const lm_region *r);

// ---- types.c
bool lm_type_wellformed(const lm_module *m, lm_type t,
                        lm_buf *why); // axes exist, without duplicates
// The same, and the type has fewer than LM_ELEMENTS_MAX elements.
bool lm_type_valid(const lm_module *m, lm_type t, lm_buf *why);
#endif
