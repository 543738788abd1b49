// prim.h - helpers that the files of the primitives share.
//
// The arguments of a primitive are syntax, since a name may denote an axis. A helper that fails
// reports the error and returns V_ERROR, NULL or false, unless its comment says otherwise.
#ifndef LM_ELAB_PRIM_H
#define LM_ELAB_PRIM_H
#include "dsl/elab/elab.h"

typedef struct {
  lm_elab *e;
  const ast_expr *x;
  el_operands of; // the operands whose axes the call names
} el_call_site;

const ast_arg *el_positional(el_call_site c, uint32_t i);  // NULL if there is none; not reported
const ast_arg *el_named(el_call_site c, const char *name); // NULL if there is none; not reported
el_val el_arg(el_call_site c, uint32_t i);
el_val el_arg_tensor(el_call_site c, uint32_t i);
lm_loc el_arg_loc(el_call_site c, uint32_t i);
const ast_arg *el_arg_arrow(el_call_site c, uint32_t i, const char *form); // `src -> dst`
bool el_arg_axes(el_call_site c, const ast_expr *x, el_axes *out);
// The axes of positional argument i.
bool el_positional_axes(el_call_site c, uint32_t i, el_axes *out);
bool el_one_axis(el_call_site c, const ast_expr *x, el_axis **out);
bool el_positional_axis(el_call_site c, uint32_t i, el_axis **out);
bool el_arrow_name(el_call_site c, const ast_arg *a); // whether the right side is a single name
// Reports a size beyond 64 bits, in an instance; false.
bool el_size_undecided(el_call_site c, lm_loc at);
bool el_lacks(el_call_site c, const el_val *x, el_axis *a, lm_loc at); // true: reported
bool el_floating(el_call_site c, const el_val *x, lm_loc at);
bool el_is_random_allowed(el_call_site c);
// Reports a use of axes of all elements in an optimizer's update, which is evaluated for one
// element of a parameter; true if it was reported.
bool el_over_elements(el_call_site c, const el_axes *axes, lm_loc at);
// The same for a reduction over no axes of a value with elements: a row of axes is empty in an
// update.
bool el_over_nothing(el_call_site c, const el_axes *x, const el_axes *axes, lm_loc at);
// Reports a movement of positions that decoding cannot compute, since it does not have all
// positions of x; true if it was reported.
bool el_moves_positions(el_call_site c, const el_axis *x, lm_loc at);
// A tensor whose axes are in the order of `axes`; v may have another order.
el_val el_in_order(el_call_site c, el_kind kind, const el_axes *axes, lm_value *v);
// The axis of a name on the right of an arrow: a new one, or a known one of the same size.
el_axis *el_axis_new_or_known(el_call_site c, lm_sym name, lm_size size, lm_loc at);
// A new axis of that name, which is bound; NULL: reported, or the size is not known yet.
el_axis *el_sized_axis(el_call_site c, lm_sym name, const ast_expr *size, lm_loc at);
// The right side of slice, pad and top_k: a name, or (name = size).
bool el_target_axis(el_call_site c, const ast_expr *x, lm_sym *name, const ast_expr **size);
bool el_distinct(el_call_site c, const el_axes *axes); // whether a tensor may have these axes
// The axes of s with the n axes at index `at` replaced by `now`.
el_axes el_spliced(el_call_site c, const el_axes *s, uint32_t at, uint32_t n, const el_axes *now);

// The dot of x and w, and the same edited if one of them is an adapted parameter (adapt.c); y: the
// result without edits.
typedef struct el_use {
  const el_val *x, *w;
  const el_axes *over;
  const el_val *counts; // of a `grouped_dot`, of which w has the groups; NULL: a `dot`
} el_use;
el_val el_dot(el_call_site c, const el_val *x, const el_val *w, const el_axes *over);
// The axes of the dot of x and w over `over`: those of x, then those of w that are not in `shared`.
// False, with a diagnostic, if an axis is there twice.
bool el_dot_axes(el_call_site c, const el_axes *x, const el_axes *w, const el_axes *over,
                 const el_axes *shared, el_axes *out);
el_val el_grouped_dot(el_call_site c, const el_val *x, const el_val *w, const el_val *counts,
                      const el_axes *over);
el_val el_dot_edited(el_call_site c, el_use u, el_val y);
// True if x and w are rows and a value of each group (el_grouping); *out is their grouped_dot.
bool el_dot_of_groups(el_call_site c, const el_val *x, const el_val *w, const el_axes *over,
                      el_val *out);

el_val p_argmax(el_call_site c);
el_val p_concat(el_call_site c);
el_val p_dot(el_call_site c);
el_val p_expand(el_call_site c);
el_val p_gather(el_call_site c);
el_val p_group_by(el_call_site c);
el_val p_grouped_dot(el_call_site c);
el_val p_history(el_call_site c);
el_val p_max(el_call_site c);
el_val p_mean(el_call_site c);
el_val p_nearest(el_call_site c);
el_val p_pad(el_call_site c);
el_val p_permute(el_call_site c);
el_val p_qcast(el_call_site c);
el_val p_rename(el_call_site c);
el_val p_scatter_add(el_call_site c);
el_val p_select(el_call_site c);
el_val p_slice(el_call_site c);
el_val p_split(el_call_site c);
el_val p_stack(el_call_site c);
el_val p_sum(el_call_site c);
el_val p_table(el_call_site c);
el_val p_top_k(el_call_site c);
el_val p_ungroup(el_call_site c);
el_val p_unstack(el_call_site c);
el_val p_view(el_call_site c);
el_val p_window(el_call_site c);
#endif
