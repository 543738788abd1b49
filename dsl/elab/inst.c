// inst.c - instances of blocks and models: arguments, dims and constraints.
#include "dsl/elab/call.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/share.h"
#include "dsl/elab/source.h"
#include <math.h>
#include <string.h>

enum {
  MAX_DEPTH = 32
};

void el_inst_bind(lm_elab *e, el_inst *inst, lm_sym name, el_val v) {
  v = el_as_size(e, v);
  el_names_add(e, &inst->vals, name, v, false);
  if (v.k != V_NUM || !v.has_size || (v.known && v.num < 1))
    return;
  int64_t whole;
  if (v.known && !lm_size_whole(v.size, &whole))
    return;
  el_axis_bind *x = LM_NEW(e->a, el_axis_bind);
  el_axis *axis = LM_NEW(e->a, el_axis);
  *axis = (el_axis){
      .name = name,
      .size = v.size,
  };
  *x = (el_axis_bind){name, axis, inst->axes};
  inst->axes = x;
}

el_val el_inst_value(const el_inst *inst, lm_sym name) {
  const el_bind *b = el_names_find(&inst->vals, name);
  return b ? b->val : el_error();
}

bool el_mentions(const ast_expr *x, const el_bind *names) {
  if (!x)
    return false;
  if (x->kind == EX_NAME)
    for (; names; names = names->up)
      if (names->name == x->text)
        return true;
  bool found = el_mentions(x->a, names) || el_mentions(x->b, names) || el_mentions(x->c, names);
  for (uint32_t i = 0; i < x->n_args && !found; i++)
    found = el_mentions(x->args[i].expr, names);
  return found;
}

const ast_expr *el_argument(const ast_arg *args, uint32_t n, const ast_sig *sig, uint32_t k) {
  uint32_t at = 0;
  for (uint32_t i = 0; i < n; i++)
    if (args[i].kind == ARG_NAMED ? args[i].name == sig->params[k].name.text : at++ == k)
      return args[i].expr;
  return NULL;
}

static uint32_t parameter_named(const ast_sig *sig, lm_sym name) {
  uint32_t k = 0;
  while (k < sig->n_params && sig->params[k].name.text != name)
    k++;
  return k;
}

// Reports an argument that the declaration has no parameter for.
static void report_argument(lm_elab *e, const ast_arg *a, const ast_decl *d) {
  const char *names[64];
  uint32_t n = d->sig.n_params, m = 0;
  for (; m < n && m < 64; m++)
    names[m] = d->sig.params[m].name.text;
  lm_diag *g = a->kind == ARG_NAMED ? EL_ERR(e, a->loc, E078, d->name.text, a->name)
                                    : EL_ERR(e, a->loc, E084, d->name.text, n, n == 1 ? "" : "s");
  lm_diag_note(e->c, g, d->name.loc, "%s is declared here", d->name.text);
  const char *near = a->kind == ARG_NAMED ? lm_nearest(a->name, names, (int)m) : NULL;
  if (near)
    lm_diag_help(e->c, g, "did you mean '%s'?", near);
  else if (a->kind == ARG_NAMED)
    lm_diag_help(e->c, g, "it takes %s", lm_sig_names(e->c, &d->sig, 0));
}

static bool check_arguments(lm_elab *e, const ast_expr *call, const ast_decl *d) {
  uint32_t at = 0, n = d->sig.n_params;
  bool ok = true;
  bool *given = LM_NEW_N(e->a, bool, n + 1);
  for (uint32_t i = 0; i < call->n_args; i++) {
    const ast_arg *a = &call->args[i];
    uint32_t k = a->kind == ARG_NAMED ? parameter_named(&d->sig, a->name) : at++;
    bool matches = k < n && (a->kind == ARG_POS || a->kind == ARG_NAMED);
    if (matches && given[k])
      EL_ERR(e, a->loc, E095, d->name.text, d->sig.params[k].name.text);
    else if (!matches)
      report_argument(e, a, d);
    ok &= matches && !given[k];
    if (matches)
      given[k] = true;
  }
  for (uint32_t k = 0; k < n; k++) {
    if (!ok || d->sig.params[k].init || given[k])
      continue;
    lm_diag *g = EL_ERR(e, call->loc, E079, d->name.text, d->sig.params[k].name.text);
    lm_diag_note(e->c, g, d->sig.params[k].name.loc, "declared here");
    ok = false;
  }
  return ok;
}

static int param_find(const ast_sig *sig, lm_sym name) {
  for (uint32_t k = 0; k < sig->n_params; k++)
    if (sig->params[k].name.text == name)
      return (int)k;
  return -1;
}

bool el_inst_visit(const el_inst *inst, el_inst_visitor *visit, void *user) {
  if (visit(user, inst))
    return true;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    const struct el_sub *sub = &inst->subs[i];
    if (sub->one && el_inst_visit(sub->one, visit, user))
      return true;
    for (int64_t k = 0; sub->many && k < sub->many->n; k++)
      if (el_inst_visit(sub->many->of[k], visit, user))
        return true;
  }
  return false;
}

lm_loc el_inst_origin(const el_inst *inst, uint32_t k) {
  const ast_sig *sig = &inst->decl->sig;
  const ast_expr *x = inst->call ? el_argument(inst->call->args, inst->call->n_args, sig, k) : NULL;
  if (!x)
    return sig->params[k].init ? sig->params[k].init->loc : sig->params[k].name.loc;
  int above = x->kind == EX_NAME && inst->owner ? param_find(&inst->owner->decl->sig, x->text) : -1;
  return above < 0 ? x->loc : el_inst_origin(inst->owner, (uint32_t)above);
}

lm_loc el_inst_cause(const el_inst *inst, const ast_expr *x) {
  int k = x->kind == EX_NAME ? param_find(&inst->decl->sig, x->text) : -1;
  return k < 0 ? x->loc : el_inst_origin(inst, (uint32_t)k);
}

void el_inst_note_cause(lm_elab *e, lm_diag *d, const el_inst *inst, const ast_expr *x) {
  const ast_sig *sig = &inst->decl->sig;
  bool is_param = x->kind == EX_NAME && param_find(sig, x->text) >= 0;
  int n_notes = d->n_notes;
  if (is_param)
    lm_diag_note(e->c, d, x->loc, "used here");
  for (uint32_t k = 0; k < sig->n_params && !is_param; k++) {
    lm_sym name = sig->params[k].name.text;
    el_val v = el_inst_value(inst, name);
    if (el_mentions(x, &(el_bind){.name = name}))
      lm_diag_note(e->c, d, el_inst_origin(inst, k), "%s is %s", name, el_show(e, &v));
  }
  if (d->n_notes == n_notes && x->kind != EX_NUMBER && inst->at.file)
    lm_diag_note(e->c, d, inst->at, "instantiated here");
}

// ---- evaluation inside an instance
el_ref el_inst_ref(el_inst *inst) {
  el_ref ref = {
      .inst = inst,
      .n = inst->n_stack,
  };
  for (int k = 0; k < ref.n; k++)
    ref.at[k] = (el_index){NULL, inst->index[k], 1};
  return ref;
}

el_frame *el_inst_enter(lm_elab *e, el_inst *inst, el_frame *out) {
  el_frame *was = e->frame;
  el_ref *self = LM_NEW(e->a, el_ref);
  *self = el_inst_ref(inst);
  *out = (el_frame){.up = was,
                    .what = inst->decl->name.text,
                    .called_at = inst->at,
                    .file = inst->file,
                    .self = self,
                    .rows = el_rows_copy(e, inst->rows),
                    .real = K_REAL};
  e->frame = out;
  return was;
}

el_val el_inst_eval(lm_elab *e, el_inst *inst, const ast_expr *x) {
  el_frame frame, *was = el_inst_enter(e, inst, &frame);
  el_val v = el_eval(e, x);
  e->frame = was;
  return v;
}

static bool mentions_dim(const el_inst *inst, const ast_expr *x) {
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    for (uint32_t k = 0; m->kind == MB_DIM && k < m->names.n; k++)
      if (el_mentions(x, &(el_bind){.name = m->names.v[k].text}))
        return true;
  }
  return false;
}

static void check_constraints(lm_elab *e, el_inst *inst, bool with_dims) {
  el_where site = {
      .sig = &inst->decl->sig, .what = inst->decl->name.text, .at = inst->at, .inst = inst};
  for (uint32_t i = 0; i < inst->decl->sig.where.n; i++) {
    const ast_expr *w = inst->decl->sig.where.v[i];
    if (mentions_dim(inst, w) != with_dims)
      continue;
    el_frame frame, *was = el_inst_enter(e, inst, &frame);
    lm_diag *d = el_where_check(e, &site, w);
    e->frame = was;
    inst->broken |= d != NULL;
    for (el_inst *o = inst->owner; d && o && d->n_notes < 4; o = o->owner)
      if (o->at.file)
        lm_diag_note(e->c, d, o->at, "in %s", o->decl->name.text);
  }
}

// ---- instantiation
static bool member_names(lm_elab *e, const ast_decl *d) {
  bool unique = true;
  lm_sym seen[256];
  lm_loc at[256];
  int n = 0;
  for (uint32_t i = 0; i < d->sig.n_params && n < 256; i++) {
    seen[n] = d->sig.params[i].name.text;
    at[n++] = d->sig.params[i].name.loc;
  }
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    for (uint32_t k = 0; k < m->names.n && m->kind != MB_MAP; k++) {
      for (int j = 0; j < n; j++)
        if (seen[j] == m->names.v[k].text) {
          lm_diag *g = EL_ERR(e, m->names.v[k].loc, E088, seen[j], d->name.text);
          lm_diag_note(e->c, g, at[j], "first here");
          unique = false;
          break;
        }
      if (n < 256) {
        seen[n] = m->names.v[k].text;
        at[n++] = m->names.v[k].loc;
      }
    }
  }
  return unique;
}

// A size whose value is not known while only checking.
static el_val symbolic(lm_elab *e, lm_sym name) {
  return el_sized(lm_size_dim(e->a, name));
}

static void make_dims(lm_elab *e, el_inst *inst, const ast_member *m) {
  for (uint32_t k = 0; k < m->names.n; k++) {
    el_val v = el_as_size(e, el_inst_eval(e, inst, m->exprs.v[k]));
    if (v.k == V_NUM && !v.known && !v.has_size)
      v = symbolic(e, m->names.v[k].text);
    int64_t whole;
    bool bad =
        v.k != V_NUM || (v.known && (!v.has_size || !lm_size_whole(v.size, &whole) || whole < 1));
    if (bad && v.k != V_ERROR) {
      const ast_expr *x = m->exprs.v[k];
      lm_diag *d = EL_ERR(e, el_inst_cause(inst, x), E089, m->names.v[k].text, el_show(e, &v));
      el_inst_note_cause(e, d, inst, x);
      if (v.k == V_NUM && v.num >= 0x1p53)
        lm_diag_help(e->c, d, "sizes are less than 2^53");
      inst->broken = true;
    }
    el_inst_bind(e, inst, m->names.v[k].text, bad ? el_error() : v);
  }
}

// The values of the parameters determine the structure; a type would not be checked.
static bool check_untyped(lm_elab *e, const ast_decl *d) {
  uint32_t before = e->c->n_rejects;
  for (uint32_t k = 0; k < d->sig.n_params; k++) {
    const ast_param *p = &d->sig.params[k];
    if (p->type)
      EL_ERR(e, p->type->loc, E09A, p->name.text, d->name.text);
  }
  return e->c->n_rejects == before;
}

static el_inst *make(lm_elab *e, el_inst *inst) {
  if (!member_names(e, inst->decl) || !check_untyped(e, inst->decl))
    inst->broken = true;
  else
    check_constraints(e, inst, false);
  for (uint32_t i = 0; i < inst->decl->members.n && !inst->broken; i++)
    if (inst->decl->members.v[i]->kind == MB_DIM)
      make_dims(e, inst, inst->decl->members.v[i]);
  if (inst->broken)
    return inst;
  check_constraints(e, inst, true);
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    if (m->kind == MB_PARAM || m->kind == MB_STATE)
      el_inst_add_params(e, inst, m);
    if (m->kind == MB_SUB)
      el_inst_add_sub(e, inst, m);
    if (m->kind == MB_EXTRA)
      EL_ERR(e, m->loc, E330);
  }
  return inst;
}

// ---- sizes
static bool is_axis_of(const ast_type *t, lm_sym name) {
  for (uint32_t i = 0; t && i < t->n_dims; i++)
    if (!t->dims[i].row && t->dims[i].expr->kind == EX_NAME && t->dims[i].expr->text == name)
      return true;
  for (uint32_t i = 0; t && i < t->n_tuple; i++)
    if (is_axis_of(t->tuple[i], name))
      return true;
  return false;
}

// True if the declaration has tensors with an axis of that name.
static bool names_axis(const ast_decl *d, lm_sym name) {
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (is_axis_of(m->type, name) || is_axis_of(m->sig.ret, name))
      return true;
    for (uint32_t k = 0; k < m->sig.n_params; k++)
      if (is_axis_of(m->sig.params[k].type, name))
        return true;
  }
  return false;
}

// Checks that a parameter that is the size of an axis is a whole number of 1 or more that an axis
// can have. One error here replaces one for each tensor with that axis.
static void check_sizes(lm_elab *e, el_inst *inst) {
  for (uint32_t k = 0; k < inst->decl->sig.n_params; k++) {
    const ast_param *p = &inst->decl->sig.params[k];
    el_val v = el_inst_value(inst, p->name.text);
    int64_t whole;
    bool known = v.k == V_NUM ? v.known : v.k == V_STRING || v.k == V_BOOL;
    bool fits = v.k == V_NUM && v.has_size && lm_size_whole(v.size, &whole) && whole >= 1 &&
                whole <= INT32_MAX;
    if (!known || fits || !names_axis(inst->decl, p->name.text))
      continue;
    lm_diag *d = EL_ERR(e, el_inst_origin(inst, k), E09D, p->name.text, inst->decl->name.text,
                        el_show(e, &v));
    lm_diag_note(e->c, d, p->name.loc, "declared here");
    inst->broken = true;
  }
}

static lm_decl_ref block_of(lm_elab *e, const ast_expr *call, const lm_file *file) {
  if (call->kind == EX_ERROR)
    return (lm_decl_ref){0};
  if (call->kind != EX_CALL || call->a->kind != EX_NAME) {
    EL_ERR(e, call->loc, E08B);
    return (lm_decl_ref){0};
  }
  lm_decl_ref ref = lm_program_find(e->prog, file, call->a->text);
  if (ref.decl && (ref.decl->kind == DC_BLOCK || ref.decl->kind == DC_MODEL))
    return ref;
  if (!ref.decl && file->incomplete)
    return ref;
  int n, m;
  const char *const *blocks = lm_program_names(e->prog, file, DC_BLOCK, &n);
  const char *const *models = lm_program_names(e->prog, file, DC_MODEL, &m);
  const char **all = LM_NEW_N(e->a, const char *, n + m + 1);
  if (n)
    memcpy(all, blocks, sizeof *all * (size_t)n);
  if (m)
    memcpy(all + n, models, sizeof *all * (size_t)m);
  lm_diag *d = ref.decl ? EL_ERR(e, call->loc, E08C, call->a->text)
                        : EL_ERR(e, call->loc, E09F, call->a->text);
  const char *near = lm_nearest(call->a->text, all, n + m);
  const char *module = ref.decl ? NULL : el_library_module(e, call->a->text, 1u << DC_BLOCK);
  if (module)
    lm_diag_help(e->c, d, "import %s: %s", module, call->a->text);
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return (lm_decl_ref){0};
}

static void report_nesting(lm_elab *e, lm_loc at, const ast_decl *d, const el_inst *owner) {
  const char *cycle = d->name.text;
  for (; owner && owner->decl != d; owner = owner->owner)
    cycle = lm_arena_printf(e->a, "%s -> %s", owner->decl->name.text, cycle);
  if (owner)
    EL_ERR(e, at, E076, d->name.text, d->name.text, cycle);
  else
    EL_ERR(e, at, E027, "instances", MAX_DEPTH);
}

el_inst *el_inst_make(lm_elab *e, const ast_expr *call, const lm_file *file,
                      const el_inst_site *where) {
  lm_decl_ref ref = where->decl.decl ? where->decl : block_of(e, call, file);
  if (!ref.decl || !el_budget(e, call->loc) || !check_arguments(e, call, ref.decl))
    return NULL;
  if (e->depth >= MAX_DEPTH) {
    report_nesting(e, call->loc, ref.decl, where->owner);
    return NULL;
  }
  e->depth++;
  el_visit(e, ref.decl);
  el_inst *inst = LM_NEW(e->a, el_inst);
  el_form *owner = where->owner ? where->owner->form : NULL;
  *inst = (el_inst){.decl = ref.decl,
                    .file = ref.file,
                    .path = where->path,
                    .owner = where->owner,
                    .at = call->loc,
                    .call = call,
                    .form = el_form_of(e, owner, call, where->path),
                    .rows = where->rows,
                    .added_by = where->added_by,
                    .host = where->host,
                    .replaced_by = where->replaced_by,
                    .replaces = where->replaces,
                    .source = where->source,
                    .n_stack = where->n_stack};
  if (where->source)
    where->source->inst = inst;
  memcpy(inst->stack, where->stack, sizeof inst->stack);
  memcpy(inst->index, where->index, sizeof inst->index);
  memcpy(inst->stack_name, where->stack_name, sizeof inst->stack_name);
  for (uint32_t k = 0; k < ref.decl->sig.n_params; k++) {
    const ast_expr *x = el_argument(call->args, call->n_args, &ref.decl->sig, k);
    el_val v = x ? el_eval(e, x) : el_inst_eval(e, inst, ref.decl->sig.params[k].init);
    bool is_block = v.k == V_INST && !el_is_format(&v);
    if (v.k == V_TENSOR || is_block || v.k == V_INSTS || v.k == V_TUPLE) {
      EL_ERR(e, x ? x->loc : call->loc, E08D, ref.decl->name.text, el_show(e, &v));
      v = el_error();
    }
    if (v.k == V_ERROR)
      inst->broken = true;
    lm_sym name = ref.decl->sig.params[k].name.text;
    bool open = v.k == V_NUM && !v.known && !v.has_size;
    el_inst_bind(e, inst, name, open && names_axis(ref.decl, name) ? symbolic(e, name) : v);
  }
  check_sizes(e, inst);
  if (!inst->broken) {
    el_warn_order(e, &ref.decl->sig, ref.decl->name.text, call);
    make(e, inst);
  }
  e->depth--;
  return inst;
}

bool el_is_adapter(const lm_elab *e, const el_inst *inst) {
  return el_method_find(inst, LM_SYM(e->c, "use")) || el_method_find(inst, LM_SYM(e->c, "merge"));
}

// Binds the rows of an adapter, each to one axis that represents unknown ones.
static void bind_symbolic_rows(lm_elab *e, el_inst *inst) {
  static const char *const names[] = {"i", "o"};
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    lm_sym name = LM_SYM(e->c, names[i]);
    el_row *r = LM_NEW(e->a, el_row);
    el_axis *axis = LM_NEW(e->a, el_axis);
    *axis = (el_axis){
        .name = name,
        .size = lm_size_dim(e->a, name),
        .opaque = true,
    };
    *r = (el_row){
        .name = name,
        .up = inst->rows,
    };
    el_axes_push(e, &r->axes, axis);
    inst->rows = r;
  }
}

el_inst *el_inst_generic(lm_elab *e, ast_decl *d, const lm_file *file) {
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){
      .decl = d,
      .file = file,
      .path = "",
      .form = LM_NEW(e->a, el_form),
  };
  if (el_is_adapter(e, inst))
    bind_symbolic_rows(e, inst);
  for (uint32_t k = 0; k < d->sig.n_params; k++) {
    lm_sym name = d->sig.params[k].name.text;
    el_val v =
        d->sig.params[k].init ? el_inst_eval(e, inst, d->sig.params[k].init) : symbolic(e, name);
    if (v.k == V_NUM && (v.has_size || names_axis(d, name)))
      v = symbolic(e, name);
    el_inst_bind(e, inst, name, v);
  }
  return make(e, inst);
}
