// kinds.c - lists of several blocks: `sub xs[i < n] = if c then A(…) else B(…)`.
//
// A call of an element stands for a call of each, so the blocks must give the method one signature.
// Two signatures are compared as texts, in which each axis is named by its first occurrence:
//   apply(x: real[b, t, d]) -> real[b, t, d]
//   apply(x: real[b, t, e]) -> real[b, t, e]    the same
#include "dsl/elab/call.h"
#include <string.h>

typedef struct writer {
  lm_sym axes[64];
  int n;
  lm_buf out;
} writer;

static int number_of(writer *w, lm_sym axis) {
  int k = 0;
  while (k < w->n && w->axes[k] != axis)
    k++;
  if (k == w->n && k < (int)LM_COUNT(w->axes))
    w->axes[w->n++] = axis;
  return k;
}

static void write_type(writer *w, const ast_type *t) {
  if (!t)
    return;
  for (uint32_t i = 0; i < t->n_tuple; i++) {
    lm_buf_puts(&w->out, i ? ", " : "(");
    write_type(w, t->tuple[i]);
  }
  if (!t->name) {
    lm_buf_puts(&w->out, ")");
    return;
  }
  lm_buf_printf(&w->out, "%s[", t->name);
  for (uint32_t i = 0; i < t->n_dims; i++) {
    const ast_dim *d = &t->dims[i];
    lm_sym name = d->row ? d->row : d->expr->kind == EX_NAME ? d->expr->text : "";
    lm_buf_printf(&w->out, "%s%d ", d->row ? ".." : "", number_of(w, name));
  }
  lm_buf_puts(&w->out, "]");
}

// with_names: including those of the parameters.
static const char *text_of(lm_elab *e, const ast_sig *sig, bool with_names) {
  writer w = {.n = 0};
  for (uint32_t i = 0; i < sig->n_params; i++) {
    lm_buf_printf(&w.out, "%s: ", with_names ? sig->params[i].name.text : "");
    write_type(&w, sig->params[i].type);
  }
  lm_buf_puts(&w.out, " -> ");
  write_type(&w, sig->ret);
  const char *text = lm_arena_strndup(e->a, w.out.p, w.out.n);
  lm_buf_free(&w.out);
  return text;
}

static bool has_named(const ast_expr *call) {
  for (uint32_t i = 0; i < call->n_args; i++)
    if (call->args[i].kind == ARG_NAMED)
      return true;
  return false;
}

static const char *signature_text(lm_elab *e, const ast_member *m) {
  const char *text = "(";
  for (uint32_t i = 0; i < m->sig.n_params; i++)
    text = lm_arena_printf(e->a, "%s%s%s: %s", text, i ? ", " : "", m->sig.params[i].name.text,
                           el_type_text(e, m->sig.params[i].type));
  return lm_arena_printf(e->a, "%s) -> %s", text, m->sig.ret ? el_type_text(e, m->sig.ret) : "()");
}

static void note_method(lm_elab *e, lm_diag *d, const el_inst *kind, const ast_member *m) {
  const char *block = kind->decl->name.text;
  if (!m)
    lm_diag_note(e->c, d, kind->decl->name.loc, "'%s' has no such method", block);
  else
    lm_diag_note(e->c, d, m->loc, "that of '%s' is %s", block, signature_text(e, m));
}

static bool is_same(lm_elab *e, const ast_member *x, const ast_member *y, bool with_names) {
  return x && y && !strcmp(text_of(e, &x->sig, with_names), text_of(e, &y->sig, with_names));
}

bool el_kinds_agree(lm_elab *e, const ast_expr *call, const el_ref *ref, lm_sym name) {
  const el_insts *xs = ref->each;
  const ast_member *method = el_method_find(ref->inst, name);
  for (uint32_t k = 0; xs && k < xs->n_kinds; k++) {
    const el_inst *kind = xs->kinds[k];
    const ast_member *own = el_method_find(kind, name);
    bool incomplete = kind->broken || (!own && el_has_errors(kind->decl));
    if (kind->decl == ref->inst->decl || incomplete || is_same(e, own, method, has_named(call)))
      continue;
    lm_diag *d = EL_ERR(e, call->loc, E0FA, xs->member->names.v[0].text, name);
    note_method(e, d, ref->inst, method);
    note_method(e, d, kind, own);
    return false;
  }
  return true;
}
