// internal.h - declarations that the files of lowering share.
#ifndef LM_LOWER_INTERNAL_H
#define LM_LOWER_INTERNAL_H
#include "dsl/elab/edit.h"
#include "dsl/elab/elab.h"
#include "dsl/lower/lower.h"

static inline lm_sym lm_port_name(const lm_elab *e, lm_port_id id) {
  return LM_SYM(e->c, lm_port_table[id].name);
}

// ---- entry.c
el_frame *lm_entry_frame(lm_elab *e, const lm_file *file); // the current one from now on
// A function over [b, t], with the columns and scalars that it takes.
typedef struct lm_entry {
  lm_func *f;
  el_axis *b, *t;
  el_val cols[LM_COLUMNS];
} lm_entry;
lm_entry lm_entry_begin(lm_elab *e, lm_func_key key, int64_t rows, int64_t seq, int dyn,
                        el_mode mode, const lm_file *file);
void lm_entry_finish(lm_elab *e, lm_func *f, lm_value *const *out, const lm_sym *names, uint32_t n);

// ---- params.c: functions of parameters alone
// @merged, if the model has adapters.
void lm_lower_merged(lm_elab *e, el_inst *model);
// @begin, if initial values are computed.
void lm_lower_begin(lm_elab *e, el_inst *model);

// ---- tokens.c
// The method whose result is the output of the model: `apply`, or else `encode`.
lm_sym lm_lower_output(const lm_elab *e, const el_inst *model);
// The logits of a model that has `apply`, or what its `encode` returns.
el_val lm_lower_logits(lm_elab *e, el_inst *model, const lm_entry *x, const lm_lower_options *o);
// Adds xent.sum and xent.weight to the results of an evaluation, if the model has `apply`.
void lm_lower_tokens(lm_elab *e, el_inst *model, const lm_entry *x, const lm_lower_options *o,
                     lm_value **out, lm_sym *names, uint32_t *n);
// Reports token metrics of the recipe that the model cannot compute.
void lm_lower_tokens_check(lm_elab *e, const lm_recipe *r, const el_inst *model);

// ---- loss.c: a method of the model with the parameters and results of `loss`
// Emits the call. *out: a tuple of two. False: reported.
bool lm_loss_call(lm_elab *e, el_inst *model, const lm_entry *x, const ast_member *loss,
                  const lm_lower_options *o, el_val *out);
// Item i of the result as a scalar of f32. NULL: reported.
lm_value *lm_loss_item(lm_elab *e, const el_val *r, int i, lm_loc where);
// A function of the method. That of an extra gradient gives no metrics.
void lm_loss_make(lm_elab *e, el_inst *model, const ast_member *loss, lm_func_key key, el_mode mode,
                  const lm_lower_options *o);

// ---- maps.c and config.c
// whole: what other projects know, the model or the result of lm_map_whole.
void lm_lower_maps(lm_elab *e, el_inst *model, el_inst *whole, lm_lowered *out, lm_loc at);
// The model; or, if it has no `map hf`, its one sub that is trained and whose map has a `config`,
// such as the policy of a preference loss. out->wholes: two of several such subs.
el_inst *lm_map_whole(lm_elab *e, el_inst *model, lm_lowered *out);
void lm_lower_config(lm_elab *e, el_inst *inst, const ast_item *section, lm_lowered_configs *out);
// The elements of the tensor of a map's item that a parameter is, as the alternative `part` of
// n_parts of the item's pattern. False: reported.
bool lm_map_of_param(lm_elab *e, el_inst *inst, const el_param *p, const ast_item *item, int part,
                     int n_parts, lm_foreign_map *out);
void lm_lower_args(lm_elab *e, el_inst *model, lm_lowered *out); // arguments that are numbers
bool lm_item_is_config(const ast_item *item);                    // config { … }

// ---- map_name.c
// A foreign name with the numbers that the pattern matched for each #, also in {#+3}. NULL:
// reported.
const char *lm_map_number(lm_elab *e, const ast_expr *name, const lm_match *match);
// True if the pattern may name a parameter of a branch of `sub … = if` that was not selected: a
// block that is visible in the file, or beside such a block, declares one. All parameters of the
// model must be mapped in any case (E0C2).
bool lm_map_names_branch(const lm_elab *e, const lm_file *file, const char *pattern);

// ---- peft.c
// The adapters and the blocks at sites by their `map peft`, after lm_lower_maps. at: what needs
// them.
void lm_lower_peft(lm_elab *e, el_inst *model, lm_lowered *out, lm_loc at);

// ---- peft_block.c
// `map peft` of the block of an instance; NULL: it has none, which is reported at the line `by`.
const ast_member *lm_peft_map(lm_elab *e, const el_inst *inst, const el_edit *by);
// The blocks at sites by their `map peft`.
void lm_lower_peft_blocks(lm_elab *e, el_inst *model, lm_lowered *out);

// ---- optim.c
void lm_lower_optimizer(lm_elab *e, const lm_recipe *r, lm_lowered *out);

// ---- schedule.c
// schedule(step, run, …), a factor of the learning rate.
el_val lm_lower_schedule(lm_elab *e, const lm_recipe *r, el_val step, el_val run);
el_val lm_host_scalar(lm_value *v);

// ---- groups.c: the groups of a recipe and the optimizer's parameters that they set
// The combinations of groups that occur: bit g of a set represents group g. sets[0] is the empty
// set.
typedef struct lm_group_sets {
  uint64_t *sets;
  int n;
} lm_group_sets;
// Finds the set of each parameter of the model, and reports patterns that match nothing.
lm_group_sets lm_groups_assign(lm_elab *e, const lm_recipe *r, lm_lowered *out);
// The call of the optimizer of a set of groups: of its last group that has one, *out_group, else
// the recipe's, *out_group = 0.
const lm_recipe_call *lm_groups_optimizer(const lm_recipe *r, uint64_t set, uint32_t *out_group);
// Reports arguments of groups that the optimizers of their parameters do not have.
bool lm_groups_check(lm_elab *e, const lm_recipe *r, const lm_group_sets *c);

// ---- update.c
// What `update` sees: one element of a parameter, a whole parameter, f32[..p], or a matrix, f32[i,
// o].
typedef enum {
  LM_UPDATE_ELEMENT,
  LM_UPDATE_TENSOR,
  LM_UPDATE_MATRIX
} lm_update_form;
typedef struct lm_update_type {
  lm_update_form form;
  lm_sym
      axes[4]; // TENSOR: the row; MATRIX: its axes i, o, then those of `dim q = i, r = o` or NULL
} lm_update_type;
lm_update_type lm_update_type_of(const ast_decl *d, const ast_member *update);

// Reports a parameter of `what` that has the name of an argument which is passed at another index.
bool lm_check_order(lm_elab *e, const ast_sig *sig, const char *const *names, uint32_t n,
                    const char *what);

// ---- after.c
// Emits @after_step, if the model has states that are not frozen. After the losses.
void lm_lower_after(lm_elab *e, el_inst *model);

// ---- tensors.c
// The update of each parameter by itself, for optimizers that see more than an element, and for
// several optimizers. c: from lm_groups_assign.
void lm_lower_tensors(lm_elab *e, const lm_recipe *r, const lm_group_sets *c, lm_lowered *out);

// ---- rates.c
// Moves the operations of @update that depend on no element to @rates. lr: a value of @update to
// return from @rates as `lr`, or NULL.
void lm_lower_rates(lm_elab *e, lm_func *rates, lm_func *update, lm_value *lr);
#endif
