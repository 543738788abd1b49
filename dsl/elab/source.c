// source.c - see source.h.
#include "dsl/elab/source.h"

#include <string.h>

#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"

el_source *el_source_read(lm_elab *e, const el_inst *owner, const ast_member *m) {
  static const char HF[] = "hf:";
  if (!m->from)
    return NULL;
  if (m->from->kind != EX_STRING) {
    EL_ERR(e, m->from->loc, E22D);
    return NULL;
  }
  if (m->count || owner->n_stack) {
    EL_ERR(e, m->from->loc, E0F5, m->names.v[0].text);
    return NULL;
  }
  el_source *x = LM_NEW(e->a, el_source);
  bool hf = !strncmp(m->from->text, HF, strlen(HF));
  *x = (el_source){.path =
                       lm_path_join(e->a, owner->file->dir, m->from->text + (hf ? strlen(HF) : 0)),
                   .from_hf = hf,
                   .at = m->from->loc};
  el_source **end = &e->sources;
  while (*end)
    end = &(*end)->next;
  *end = x;
  return x;
}

el_source *el_source_of(const el_inst *inst) {
  while (inst && !inst->source)
    inst = inst->owner;
  return inst ? inst->source : NULL;
}

bool el_trains(const lm_elab *e) {
  const el_frame *f = e->frame;
  while (f && !f->self)
    f = f->up;
  const el_source *s = f ? el_source_of(f->self->inst) : NULL;
  return e->mode == EL_TRAIN && !e->bare && (!s || s->trained);
}

bool el_in_method(const lm_elab *e) {
  const el_frame *f = e->frame;
  while (f && !f->self && !f->runs)
    f = f->up;
  return f && f->runs && e->mode != EL_UPDATE;
}

// ---- bare

typedef struct inventory {
  const lm_elab *e;
  bool adapted;
  const el_param *trained;
  const el_inst *of; // the instance of that parameter
} inventory;

static bool count(void *user, const el_inst *inst) {
  inventory *x = user;
  for (uint32_t i = 0; i < inst->n_params; i++) {
    const el_param *p = &inst->params[i];
    const lm_global *g = lm_global_find(x->e->m, p->global);
    x->adapted |= p->adapters != NULL;
    if (!x->trained && g && g->kind == LM_GLOBAL_PARAM) {
      x->trained = p;
      x->of = inst;
    }
  }
  x->adapted |= inst->inserted != NULL;
  return false;
}

// True if the instance without its adapters is the one before training; reports why not.
static bool bare_check(lm_elab *e, const ast_expr *x, const el_inst *inst) {
  inventory all = {.e = e};
  if (!e->m || (e->edits && e->edits->records)) // the edits are not known yet
    return true;
  el_inst_visit(inst, count, &all);
  if (!all.trained && all.adapted)
    return true;
  lm_diag *d = all.trained ? EL_ERR(e, x->loc, E0F7, el_inst_path(e, all.of, all.trained->name))
                           : EL_ERR(e, x->loc, E0F6, inst->decl->name.text);
  if (all.trained)
    lm_diag_note(e->c, d, all.trained->loc, "declared here");
  lm_diag_help(e->c, d,
               "a second copy that is not trained is a second sub: sub reference = %s(…) from "
               "\"PATH\"",
               inst->decl->name.text);
  return false;
}

el_val el_call_bare(lm_elab *e, const ast_expr *x, const el_ref *ref) {
  if (!bare_check(e, x, ref->inst))
    return el_error();
  e->bare++;
  el_val r = el_call_method(e, x, ref, LM_SYM(e->c, "apply"));
  e->bare--;
  return r;
}
