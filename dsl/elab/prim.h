// prim.h - what the primitives' files share. Arguments are syntax, since names may be axes;
// every helper reports what is wrong and returns V_ERROR, NULL or false.
#ifndef LM_ELAB_PRIM_H
#define LM_ELAB_PRIM_H
#include "dsl/elab/elab.h"

typedef struct {
  lm_elab *e;
  const ast_expr *x;
} el_call_site;

const ast_arg *el_positional(el_call_site c, uint32_t i);
const ast_arg *el_named(el_call_site c, const char *name);
el_val el_arg(el_call_site c, uint32_t i);
el_val el_arg_tensor(el_call_site c, uint32_t i);
lm_loc el_arg_loc(el_call_site c, uint32_t i);
const ast_arg *el_arg_arrow(el_call_site c, uint32_t i, const char *form);
bool el_arg_axes(el_call_site c, const ast_expr *x, el_axes *out);
bool el_one_axis(el_call_site c, const ast_expr *x, el_axis **out);
bool el_lacks(el_call_site c, const el_val *x, el_axis *a, lm_loc at);
bool el_floating(el_call_site c, const el_val *x, lm_loc at);
bool el_is_random_allowed(el_call_site c); // false: reported
bool el_over_elements(el_call_site c, const el_axes *axes,
                      lm_loc at); // reported: update sees one of them
bool el_moves_positions(el_call_site c, const el_axis *x,
                        lm_loc at); // reported: while decoding it may not
el_val el_in_order(el_call_site c, el_kind kind, const el_axes *axes, lm_value *v);
el_axis *el_axis_new_or_known(el_call_site c, lm_sym name, lm_size size, lm_loc at);
bool el_distinct(el_call_site c, const el_axes *axes);
el_axes el_spliced(el_call_site c, const el_axes *s, uint32_t at, uint32_t n, const el_axes *now);

el_val p_concat(el_call_site c);
el_val p_dot(el_call_site c);
el_val p_expand(el_call_site c);
el_val p_gather(el_call_site c);
el_val p_history(el_call_site c);
el_val p_max(el_call_site c);
el_val p_mean(el_call_site c);
el_val p_pad(el_call_site c);
el_val p_permute(el_call_site c);
el_val p_rename(el_call_site c);
el_val p_scatter_add(el_call_site c);
el_val p_select(el_call_site c);
el_val p_slice(el_call_site c);
el_val p_split(el_call_site c);
el_val p_stack(el_call_site c);
el_val p_sum(el_call_site c);
el_val p_unstack(el_call_site c);
el_val p_view(el_call_site c);
#endif
