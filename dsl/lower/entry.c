// entry.c - the beginning and the end of a function of the module.
#include "dsl/lower/internal.h"

el_frame *lm_entry_frame(lm_elab *e, const lm_file *file) {
  el_frame *f = LM_NEW(e->a, el_frame);
  *f = (el_frame){
      .file = file,
      .real = K_REAL,
  };
  e->frame = f;
  return f;
}

static lm_value *scalar_arg(lm_elab *e, lm_func *f, lm_port_id id) {
  return lm_arg_add(e->m, f->body, lm_type_make(lm_port_table[id].dtype, NULL, 0),
                    lm_port_name(e, id));
}

static el_val column_arg(lm_elab *e, lm_func *f, lm_column_id c, const el_axes *axes) {
  el_kind k = el_kind_of_column(c);
  lm_sym name = lm_port_name(e, (lm_port_id)c);
  el_val v = el_tensor(k, axes, lm_arg_add(e->m, f->body, el_ir_type(e, k, axes), name));
  v.name = name;
  return v;
}

lm_entry lm_entry_begin(lm_elab *e, lm_func_key key, int64_t rows, int64_t seq, int dyn,
                        el_mode mode, const lm_file *file) {
  uint32_t takes = lm_func_table[key.id].takes;
  lm_entry x = {.f = lm_func_add_key(e->m, key)};
  lm_entry_frame(e, file);
  x.b = el_axis_new(e, LM_SYM(e->c, "b"), lm_size_number(e->a, rows), 0);
  x.t = el_axis_new(e, LM_SYM(e->c, "t"), lm_size_number(e->a, seq), dyn);
  el_axis_bind_name(e, x.b->name, x.b);
  el_axis_bind_name(e, x.t->name, x.t);
  el_axes axes = {0};
  el_axes_push(e, &axes, x.b);
  el_axes_push(e, &axes, x.t);
  e->b = (lm_builder){
      .m = e->m,
      .at = x.f->body,
  };
  e->mode = mode;
  e->memo = NULL;
  e->draws = NULL;
  e->n_caches = 0;
  e->n_emits = 0;
  e->n_loops = 0;
  e->step = e->row = e->layer = e->at = NULL;
  e->position = el_axis_ir(e, x.t);
  for (int c = 0; c < LM_COLUMNS; c++)
    if (takes & LM_PORT_BIT(c))
      x.cols[c] = column_arg(e, x.f, (lm_column_id)c, &axes);
  if (takes & LM_PORT_BIT(LM_PORT_STEP))
    e->step = scalar_arg(e, x.f, LM_PORT_STEP);
  if (takes & LM_PORT_BIT(LM_PORT_ROW))
    e->row = scalar_arg(e, x.f, LM_PORT_ROW);
  if (takes & LM_PORT_BIT(LM_PORT_AT))
    e->at = scalar_arg(e, x.f, LM_PORT_AT);
  return x;
}

void lm_entry_finish(lm_elab *e, lm_func *f, lm_value *const *out, const lm_sym *names,
                     uint32_t n) {
  lm_emit_op(&e->b, LM_OP_RETURN, out, n, NULL, NULL);
  f->out_names = LM_NEW_N(e->a, lm_sym, n + 1);
  f->n_out = n;
  for (uint32_t i = 0; i < n; i++)
    f->out_names[i] = names[i];
}
