// inst.h - functions that the files about instances share.
#ifndef LM_ELAB_INST_H
#define LM_ELAB_INST_H
#include "dsl/elab/elab.h"

// Binds a parameter or dim. A value that is a size also becomes the axis of that name.
void el_inst_bind(lm_elab *e, el_inst *inst, lm_sym name, el_val v);
el_val el_inst_value(const el_inst *inst, lm_sym name); // V_ERROR if there is none
// The instance at its indices in the repetitions around it.
el_ref el_inst_ref(el_inst *inst);
// Makes *out, a frame inside the instance, the current one; returns the previous frame.
el_frame *el_inst_enter(lm_elab *e, el_inst *inst, el_frame *out);
el_val el_inst_eval(lm_elab *e, el_inst *inst, const ast_expr *x); // in the instance's scope

// For an error in the value of x, a size or a count: its location, which is the argument that gives
// the value if x is a parameter alone, and notes that lead from x to the arguments or back.
lm_loc el_inst_cause(const el_inst *inst, const ast_expr *x);
void el_inst_note_cause(lm_elab *e, lm_diag *d, const el_inst *inst, const ast_expr *x);

void el_inst_add_params(lm_elab *e, el_inst *inst, const ast_member *m); // param.c
void el_inst_add_sub(lm_elab *e, el_inst *inst, const ast_member *m);    // sub.c
#endif
