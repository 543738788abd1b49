// library.c - calls of library functions. The body is emitted once per signature, as a function of
// the module, and called for every further call with the signature.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/source.h"
#include <string.h>

struct el_library_call {
  const char *key;
  lm_func *f;
  el_val result;
  el_axes axes;
  struct el_library_call *next;
};

static void value_key(lm_elab *e, const el_val *v, lm_buf *b) {
  switch (v->k) {
  case V_NUM: lm_buf_printf(b, "n%.17g;", v->num); break;
  case V_BOOL: lm_buf_printf(b, "b%d;", v->num != 0); break;
  case V_TENSOR:
    lm_buf_printf(b, "t%d", v->kind);
    for (uint32_t i = 0; i < v->axes.n; i++)
      lm_buf_printf(b, ",%d", el_axis_ir(e, v->axes.v[i]));
    lm_buf_puts(b, ";");
    break;
  case V_AXES:
    lm_buf_puts(b, "a");
    for (uint32_t i = 0; i < v->axes.n; i++)
      lm_buf_printf(b, ",%d", el_axis_ir(e, v->axes.v[i]));
    lm_buf_puts(b, ";");
    break;
  default: lm_buf_puts(b, "?"); break;
  }
}

bool el_can_be_library(const el_invocation *v, const lm_file *file, lm_elab *e) {
  if (!e->m || !file->is_std || file == e->prog->prelude)
    return false;
  if (e->edits && e->edits->n_replaced)
    return false;
  bool any = false;
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    el_vkind k = v->args[i].k;
    any |= k == V_TENSOR;
    if (el_is_edited(e, &v->args[i]))
      return false;
    if (v->given[i] && k != V_TENSOR && k != V_NUM && k != V_BOOL && k != V_AXES)
      return false;
    if ((k == V_NUM && !v->args[i].known) || (k == V_TENSOR && v->args[i].kind == K_NUM))
      return false;
  }
  return any;
}

static el_library_call *library_make(lm_elab *e, el_invocation *v, const ast_decl *d,
                                     const lm_file *file, const char *key) {
  lm_builder saved = e->b;
  el_library_call *lib = LM_NEW(e->a, el_library_call);
  lm_func *f = lm_func_add(
      e->m,
      LM_SYM(e->c, lm_arena_printf(e->a, "%s.%s.%u",
                                   strncmp(file->path, "std.", 4) ? file->path : file->path + 4,
                                   d->name.text, e->n_library++)));
  bool was = e->in_library;
  bool failed = e->library_failed;
  lm_value *step = e->step;
  el_val *args = LM_NEW_N(e->a, el_val, v->sig->n_params + 1);
  e->in_library = true;
  e->library_failed = false;
  e->step = NULL;
  e->b = (lm_builder){
      .m = e->m,
      .at = f->body,
      .loc = saved.loc,
  };
  for (uint32_t i = 0; i < v->sig->n_params; i++) {
    args[i] = v->args[i];
    args[i].of = NULL;
    el_known_axes(e, &args[i], &lib->axes);
    if (args[i].k == V_TENSOR)
      args[i].v = lm_arg_add(e->m, f->body, args[i].v->type, v->sig->params[i].name.text);
  }
  el_invocation inner = *v;
  inner.args = args;
  lib->key = key;
  lib->f = f;
  lib->result = el_run_invocation(e, &inner, file, NULL, &d->body);
  bool bad = e->library_failed || (lib->result.k != V_TENSOR && lib->result.k != V_TUPLE);
  lm_value *out[16];
  uint32_t n = 0;
  if (lib->result.k == V_TENSOR)
    out[n++] = lib->result.v;
  for (uint32_t i = 0; lib->result.k == V_TUPLE && i < lib->result.n && n < 16; i++) {
    if (lib->result.items[i].k != V_TENSOR)
      bad = true;
    else
      out[n++] = lib->result.items[i].v;
  }
  if (!bad) {
    lm_emit_op(&e->b, LM_OP_RETURN, out, n, NULL, NULL);
    f->out_names = LM_NEW_N(e->a, lm_sym, n);
    f->n_out = n;
    for (uint32_t i = 0; i < n; i++)
      f->out_names[i] =
          n == 1 ? d->name.text : LM_SYM(e->c, lm_arena_printf(e->a, "%s%u", d->name.text, i));
  }
  e->b = saved;
  e->in_library = was;
  e->library_failed = failed || (bad && was);
  e->step = step;
  if (bad) {
    lm_func_remove(e->m, f);
    lib->f = NULL;
  }
  lib->next = e->library;
  e->library = lib;
  return lib;
}

// The result of the first call with the axes and values of this call.
static el_val library_result(lm_elab *e, const el_library_call *lib, el_val r, const el_axes *now,
                             lm_op *call, uint32_t *k) {
  if (r.k == V_TUPLE) {
    el_val out = el_tuple(e, r.items, r.n);
    for (uint32_t i = 0; i < r.n; i++)
      out.items[i] = library_result(e, lib, r.items[i], now, call, k);
    return out;
  }
  el_axes axes = {0};
  for (uint32_t i = 0; i < r.axes.n; i++) {
    int at = el_axes_find(&lib->axes, r.axes.v[i]);
    el_axis *a = at >= 0 ? now->v[at] : el_axis_lookup(e, r.axes.v[i]->name);
    if (!a) {
      a = el_axis_new(e, r.axes.v[i]->name, r.axes.v[i]->size, r.axes.v[i]->dyn);
      a->ir = r.axes.v[i]->ir;
      el_axis_bind_name(e, a->name, a);
    }
    el_axes_push(e, &axes, a);
  }
  return el_tensor(r.kind, &axes, call->out[(*k)++]);
}

bool el_call_library(lm_elab *e, el_invocation *v, const ast_decl *d, const lm_file *file,
                     el_val *out) {
  lm_buf b = {0};
  lm_buf_printf(&b, "%s:%s(%d)", file->path, d->name.text, el_trains(e));
  el_axes now = {0};
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    if (v->given[i]) {
      value_key(e, &v->args[i], &b);
      el_known_axes(e, &v->args[i], &now);
    } else
      lm_buf_puts(&b, "_");
  const char *key = lm_arena_strndup(e->a, b.p, b.n);
  lm_buf_free(&b);
  el_library_call *lib = e->library;
  while (lib && strcmp(lib->key, key))
    lib = lib->next;
  if (!lib)
    lib = library_make(e, v, d, file, key);
  if (!lib->f)
    return false;
  lm_value *in[64];
  uint32_t n = 0, k = 0;
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    if (v->args[i].k == V_TENSOR)
      in[n++] = v->args[i].v;
  lm_attr attr = {.sym = lib->f->name};
  e->b.loc = v->at;
  lm_op *call = lm_emit_op(&e->b, LM_OP_CALL, in, n, &attr, NULL);
  *out = library_result(e, lib, lib->result, &now, call, &k);
  return true;
}
