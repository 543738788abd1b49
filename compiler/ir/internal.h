// internal.h - the parts of the IR library that builder, parser, verifier and cloning share.
#ifndef LM_IR_INTERNAL_H
#define LM_IR_INTERNAL_H
#include "compiler/ir/ir.h"

lm_region *lm_region_new(lm_module *m, lm_func *f, lm_op *owner);
lm_value *lm_value_new(lm_module *m, lm_type type, lm_op *def, lm_region *region, uint32_t index,
                       lm_sym name);
// An unlinked operation; `out` has room for n_out values, which are not made yet.
lm_op *lm_op_new(lm_module *m, lm_opcode code, lm_value *const *in, uint32_t n_in,
                 const lm_attr *attr, lm_loc loc);
// Links op into region, before `before` or at the end.
void lm_op_link(lm_region *r, lm_op *before, lm_op *op);
// Makes op's results with the given types. The op is linked or will be: set_region follows on link.
void lm_op_results_make(lm_module *m, lm_op *op, const lm_type *types, uint32_t n);

// How many results op has by its own account (a loop's yield, a call's function): -1 with a reason
// if that is unknown.
int64_t lm_op_result_count(const lm_module *m, const lm_op *op, lm_buf *why);
// Operands, attributes and shape rule, whatever the sizes. `out` has room for lm_op_result_count;
// out[0] is the type that is given, if one is (its dtype is LM_DTYPES if not): typed operations
// need it, others may be given another than the one they imply.
bool lm_op_infer(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);
// lm_op_infer, and what the stage allows where op stands, and that results have the types that the
// rule gives.
bool lm_op_check(const lm_module *m, const lm_op *op, lm_buf *why);
// Whether v may be used in region r: r or a region around it holds v, and no kernel lies between.
bool lm_value_visible(const lm_value *v, const lm_region *r);
bool lm_type_wellformed(const lm_module *m, lm_type t, lm_buf *why); // known axes, each once
bool lm_type_valid(const lm_module *m, lm_type t,
                   lm_buf *why); // and fewer than LM_ELEMENTS_MAX elements
#endif
