// lower.c - lowers the model of a recipe to the functions of the module, and checks a file.
#include "dsl/lower/lower.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/lint.h"
#include "dsl/elab/share.h"
#include "dsl/elab/source.h"
#include "dsl/lower/optimizer.h"
#include "runtime/plan/plan.h"
#include <limits.h>
#include <string.h>

static const ast_member *need_method(lm_elab *e, el_inst *model, const char *name, lm_loc at) {
  const ast_member *m = el_method_find(model, LM_SYM(e->c, name));
  if (!m) {
    lm_diag *d = EL_ERR(e, at, E0A0, model->decl->name.text, name);
    lm_diag_note(e->c, d, model->decl->name.loc, "declared here");
    lm_diag_help(e->c, d,
                 strcmp(name, "loss")
                     ? "apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] "
                       "returns the logits"
                     : "loss(bt: Batch[b, t]) -> (f32, f32) returns the sum and the weight");
  }
  return m;
}

// ---- functions are emitted again if loops must be unrolled (dsl/elab/unroll.c)
typedef struct {
  uint32_t n_globals;
  lm_diag_mark diags;
} attempt;

static attempt attempt_begin(lm_elab *e) {
  e->restart = false;
  return (attempt){e->m->n_globals, lm_diag_mark_of(e->c)};
}

// True if the function must be emitted again. If so, this attempt is undone.
static bool attempt_restart(lm_elab *e, const attempt *a, lm_func_key key) {
  lm_func *f = lm_func_get_key(e->m, key);
  if (!e->restart)
    return false;
  if (f)
    lm_func_remove(e->m, f);
  e->m->n_globals = a->n_globals;
  lm_diag_return(e->c, a->diags);
  return true;
}

// Reports columns that decoding has no values for: those with an axis of positions, and without a
// request all but `prompt`.
static bool check_decoded(lm_elab *e, const el_inst *model, const lm_entry *x, bool request) {
  const ast_member *apply = el_method_find(model, LM_SYM(e->c, "apply"));
  bool ok = true;
  for (uint32_t i = 0; i < x->f->body->n_args; i++) {
    const lm_value *v = x->f->body->args[i];
    const char *name = lm_column_name_of(v->name);
    bool of_request = request && lm_type_find(v->type, el_axis_ir(e, x->t)) < 0;
    if (!name || lm_column_is_prompt(name) || of_request)
      continue;
    EL_ERR(e, apply->loc, E0DA, name);
    ok = false;
  }
  return ok;
}

static void make_apply(lm_elab *e, el_inst *model, lm_func_key key, el_mode mode,
                       const lm_lower_options *o, lm_lowered *out, lm_loc at) {
  bool decoding = mode == EL_DECODE;
  bool chunk = key.id == LM_FUNC_PREFILL;
  if (!need_method(e, model, decoding ? "apply" : lm_lower_output(e, model), at))
    return;
  int64_t seq = !decoding                                  ? o->seq
                : !chunk                                   ? 1
                : lm_model_takes_prompt(e->c, model->decl) ? o->capacity
                                                           : o->chunk;
  lm_entry x = lm_entry_begin(e, key, decoding ? 1 : o->rows, seq, chunk ? LM_EXTENT_CHUNK : 0,
                              mode, model->file);
  x.b->micro_batches = decoding ? 0 : o->micro_batches;
  if (decoding) {
    e->capacity = o->capacity;
    e->history_dyn = LM_EXTENT_CONTEXT;
  }
  el_val r = lm_lower_logits(e, model, &x, o);
  if (r.k == V_ERROR || (decoding && !check_decoded(e, model, &x, o->request)))
    return;
  lm_value *v = lm_emit_cast(&e->b, r.v, LM_F32);
  if (el_method_find(model, LM_SYM(e->c, "apply")))
    out->vocab = lm_axis_size(e->m, v->type.axis[2]);
  lm_entry_finish(e, x.f, &v, (lm_sym[]){lm_port_name(e, LM_PORT_LOGITS)}, 1);
}

// The logits of `apply` or the positions of `encode`, and the result of `loss`, if the model has
// them.
static void make_probe(lm_elab *e, el_inst *model, const lm_lower_options *o, lm_lowered *lowered) {
  lm_value *out[3];
  lm_sym names[3];
  uint32_t n = 0;
  lm_entry x = lm_entry_begin(e, (lm_func_key){LM_FUNC_PROBE}, 1, LM_PROBE_POSITIONS, 0, EL_EVAL,
                              model->file);
  bool causal = el_method_find(model, LM_SYM(e->c, "apply"));
  if (el_method_find(model, lm_lower_output(e, model))) {
    el_val r = lm_lower_logits(e, model, &x, o);
    if (r.k == V_ERROR)
      return;
    names[n] = causal ? lm_port_name(e, LM_PORT_LOGITS) : LM_SYM(e->c, LM_PROBE_ENCODED);
    out[n] = lm_emit_cast(&e->b, r.v, LM_F32);
    if (causal)
      lowered->vocab = lm_axis_size(e->m, out[n]->type.axis[2]);
    n += causal || el_axes_has(&r.axes, x.t);
  }
  const ast_member *loss = el_method_find(model, LM_SYM(e->c, "loss"));
  el_val pair;
  e->n_emits = 0;
  if (loss && !lm_loss_call(e, model, &x, loss, o, &pair))
    return;
  for (int i = 0; loss && i < 2; i++) {
    names[n] = lm_port_name(e, i ? LM_PORT_WEIGHT : LM_PORT_SUM);
    if (!(out[n++] = lm_loss_item(e, &pair, i, loss->loc)))
      return;
  }
  if (n)
    lm_entry_finish(e, x.f, out, names, n);
}

static void lower_probe(lm_elab *e, el_inst *model, const lm_lower_options *o, lm_lowered *out) {
  attempt a;
  do {
    a = attempt_begin(e);
    make_probe(e, model, o, out);
  } while (attempt_restart(e, &a, (lm_func_key){LM_FUNC_PROBE}));
}

static void lower_method(lm_elab *e, el_inst *model, const ast_member *loss, lm_func_key key,
                         el_mode mode, const lm_lower_options *o) {
  attempt a;
  do {
    a = attempt_begin(e);
    lm_loss_make(e, model, loss, key, mode, o);
  } while (attempt_restart(e, &a, key));
}

static void lower_loss(lm_elab *e, el_inst *model, lm_func_key key, el_mode mode,
                       const lm_lower_options *o, lm_loc at) {
  const ast_member *loss = need_method(e, model, "loss", at);
  if (loss)
    lower_method(e, model, loss, key, mode, o);
}

static lm_lower_options of_length(const lm_lower_options *o, int64_t seq) {
  lm_lower_options own = *o;
  own.rows = o->rows * o->seq / seq;
  own.seq = seq;
  return own;
}

static void lower_length(lm_elab *e, el_inst *model, const lm_lower_options *o, int64_t seq,
                         lm_loc at) {
  lm_lower_options own = of_length(o, seq);
  lower_loss(e, model, (lm_func_key){LM_FUNC_LOSS, seq}, EL_TRAIN, &own, at);
}

static void lower_apply(lm_elab *e, el_inst *model, lm_func_id id, el_mode mode,
                        const lm_lower_options *o, lm_lowered *out, lm_loc at) {
  lm_func_key key = {id};
  attempt a;
  do {
    a = attempt_begin(e);
    make_apply(e, model, key, mode, o, out, at);
  } while (attempt_restart(e, &a, key));
}

// ---- the model and its parameters
static el_inst *instantiate(lm_elab *e, const lm_recipe *r) {
  lm_entry_frame(e, r->model.file);
  ast_expr *name = LM_NEW(e->a, ast_expr);
  ast_expr *call = LM_NEW(e->a, ast_expr);
  *name = (ast_expr){
      .kind = EX_NAME,
      .loc = r->model.loc,
      .text = r->model.target.decl->name.text,
  };
  *call = (ast_expr){.kind = EX_CALL,
                     .loc = r->model.loc,
                     .a = name,
                     .args = (ast_arg *)r->model.args,
                     .n_args = r->model.n_args};
  el_inst_site where = {.decl = r->model.target, .path = LM_SYM(e->c, "")};
  // a temporary function holds the operations of arguments and dims
  lm_func *temporary = lm_func_add(e->m, LM_SYM(e->c, "instances"));
  e->b = (lm_builder){
      .m = e->m,
      .at = temporary->body,
  };
  el_inst *model = el_inst_make(e, call, r->model.file, &where);
  bool usable = model && !model->broken && !e->exhausted;
  if (usable) {
    el_sites_edit(e, model);
    el_shares_make(e);
  }
  lm_func_remove(e->m, temporary);
  if (!usable)
    return NULL;
  if (!e->m->n_globals && !e->c->n_errors)
    EL_ERR(e, r->model.loc, E0A3);
  return e->m->n_globals ? model : NULL;
}

// Elaborates the model without its edits, to find how it uses each parameter. False: the model has
// errors, which are reported.
static bool roles_find(lm_elab *e, const lm_recipe *r, const lm_lower_options *o) {
  uint32_t before = e->c->n_rejects;
  lm_diag_mark mark = lm_diag_mark_of(e->c);
  lm_elab *plain = lm_elab_create(e->c, e->prog, lm_module_create(e->c));
  lm_lowered unused = {.m = plain->m};
  plain->edits = LM_NEW(e->a, el_edits);
  *plain->edits = (el_edits){
      .records = true,
      .has_adapters = true,
  };
  if (e->edits) {
    plain->edits->replaced = e->edits->replaced;
    plain->edits->n_replaced = e->edits->n_replaced;
    plain->edits->v = e->edits->v;
    plain->edits->n = e->edits->n;
    plain->edits->file = e->edits->file;
  }
  el_inst *model = instantiate(plain, r);
  if (model && e->c->n_rejects == before) // a parameter that is too large has no global
    lower_probe(plain, model, o, &unused);
  if (e->c->n_rejects > before)
    return false;
  lm_diag_return(e->c, mark); // the second elaboration gives the same warnings
  e->roles = plain->roles;
  e->sites = plain->sites;
  return true;
}

static bool is_of_matrices(const lm_recipe_call *call) {
  const ast_decl *d = call->target.decl;
  for (uint32_t i = 0; d && call->inner && i < d->sig.n_params; i++)
    if (is_of_matrices(&call->inner[i]))
      return true;
  for (uint32_t i = 0; d && d->kind == DC_OPTIMIZER && i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (m->kind == MB_METHOD && lm_update_type_of(d, m).form == LM_UPDATE_MATRIX)
      return true;
  }
  return false;
}

// True if an optimizer sees parameters as matrices, whose axes follow from their uses.
static bool needs_roles(const lm_recipe *r) {
  bool any = is_of_matrices(&r->optimizer);
  for (uint32_t i = 0; i < r->n_groups; i++)
    any |= is_of_matrices(&r->groups[i].optimizer);
  return any;
}

static void recipe_apply(lm_elab *e, const lm_recipe *r) {
  e->seed = r->seed;
  e->master = r->precision.master_bf16 ? LM_BF16 : LM_F32;
}

static el_inst *make_model(lm_elab *e, const lm_recipe *r, const lm_lower_options *o) {
  if (!r->model.target.decl)
    return NULL;
  lm_entry_frame(e, r->edits ? r->edits_file : r->model.file);
  if (r->edits && !el_edits_read(e, r->edits))
    return NULL;
  bool adapts = e->edits && (e->edits->has_adapters || e->edits->has_sites);
  if ((adapts || needs_roles(r)) && !roles_find(e, r, o))
    return NULL;
  el_inst *model = instantiate(e, r);
  if (model)
    el_edits_check(e, model);
  return model;
}

static bool trains_any(const lm_module *m) {
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (lm_global_is_updated(&m->globals[i]))
      return true;
  return false;
}

// What each edit matches, for `lmc check`.
static void edits_resolve(lm_elab *e, lm_lowered *out) {
  for (uint32_t k = 0; e->edits && k < e->edits->n; k++) {
    const el_edit *x = &e->edits->v[k];
    uint32_t hits = x->hits;
    for (uint32_t i = 0; i < e->m->n_globals; i++) {
      const lm_global *g = &e->m->globals[i];
      for (int64_t j = 0; el_edit_reaches(x, g) && j < g->n_paths; j++)
        hits += lm_pattern_match(e->c, x->pattern, g->paths[j], NULL);
    }
    (void)LM_PUSH(e->a, out->resolved, out->n_resolved, out->cap_resolved);
    out->resolved[out->n_resolved - 1].pattern = x->pattern;
    out->resolved[out->n_resolved - 1].what = el_edit_names[x->kind];
    out->resolved[out->n_resolved - 1].n = hits;
  }
}

// Marks the parameters that ZeRO does not divide, and counts what each pattern matches.
static void whole_resolve(lm_elab *e, const lm_recipe *r, lm_lowered *out) {
  for (uint32_t k = 0; k < r->parallel.n_whole; k++) {
    const lm_recipe_pattern *x = &r->parallel.whole[k];
    uint32_t all = 0;
    el_pattern_check(e, x->text, x->loc, INT_MAX, NULL);
    for (uint32_t i = 0; i < e->m->n_globals; i++) {
      lm_global *g = &e->m->globals[i];
      uint32_t hits = 0;
      for (int64_t j = 0; lm_global_is_weight(g) && j < g->n_paths; j++)
        hits += lm_pattern_match(e->c, x->text, g->paths[j], NULL);
      if (hits && hits != g->n_paths)
        EL_ERR(e, x->loc, E25C, x->text, (long long)hits, (long long)g->n_paths, g->name);
      g->whole |= hits != 0;
      all += hits;
    }
    (void)LM_PUSH(e->a, out->resolved, out->n_resolved, out->cap_resolved);
    out->resolved[out->n_resolved - 1].pattern = x->text;
    out->resolved[out->n_resolved - 1].what = "whole";
    out->resolved[out->n_resolved - 1].n = all;
  }
}

static void lower_train(lm_elab *e, const lm_recipe *r, el_inst *model, const lm_lower_options *o) {
  uint32_t before = e->c->n_rejects;
  if (!trains_any(e->m)) {
    lm_loc at = e->edits && e->edits->n ? e->edits->v[e->edits->n - 1].at : r->model.loc;
    lm_diag *d = EL_ERR(e, at, E303, r->model.name);
    lm_diag_note(e->c, d, r->loc, "the recipe that trains it");
    return;
  }
  el_remat_begin(e, &r->memory);
  lower_loss(e, model, (lm_func_key){LM_FUNC_LOSS}, EL_TRAIN, o, r->model.loc);
  if (e->c->n_rejects == before)
    el_remat_check(e);
}

static void report_no_extra(lm_elab *e, const el_inst *model, const lm_lowered_extra *x) {
  lm_diag *d = EL_ERR(e, x->at, E332, x->of, x->name, model->decl->name.text);
  lm_diag_note(e->c, d, model->decl->name.loc, "declared here");
  if (!strcmp(x->name, "sampled"))
    lm_diag_help(e->c, d,
                 "import std.nn: sample, xent; sampled(bt: Batch[b, t]) -> (f32, f32) { let z = "
                 "apply(bt.tok, bt.pos, bt.seg); return (sum(xent(z, sample(z)) * bt.w), "
                 "sum(bt.w)) }");
}

// The loss of the extra gradient that optimizers take, if it is not that of the step.
static void lower_extra(lm_elab *e, el_inst *model, const lm_lower_options *o,
                        const lm_lowered_extra *x) {
  uint32_t before = e->c->n_rejects;
  if (!x->name || !strcmp(x->name, "loss"))
    return;
  const ast_member *loss = el_method_find(model, x->name);
  if (!loss) {
    report_no_extra(e, model, x);
    return;
  }
  e->extra_loss = true;
  lower_method(e, model, loss, (lm_func_key){.id = LM_FUNC_LOSS, .extra = true}, EL_TRAIN, o);
  for (int i = 0; i < o->n_lengths && e->c->n_rejects == before; i++) {
    lm_lower_options own = of_length(o, o->lengths[i]);
    lm_func_key key = {LM_FUNC_LOSS, o->lengths[i], true};
    lower_method(e, model, loss, key, EL_TRAIN, &own);
  }
  e->extra_loss = false;
}

// Sources in the order of the instances: an inner one is later than the one around it.
static void sources_list(lm_elab *e, const lm_recipe *r, lm_lowered *out) {
  int n = r->from != NULL;
  for (const el_source *s = e->sources; s; s = s->next)
    n++;
  lm_lowered_source *list = LM_NEW_N(e->a, lm_lowered_source, n + 1);
  out->sources = list;
  out->n_sources = n;
  if (r->from)
    list[--n] = (lm_lowered_source){"", r->from, r->from_hf, r->from_loc, r->model.name};
  for (const el_source *s = e->sources; s; s = s->next)
    list[--n] = (lm_lowered_source){
        lm_arena_printf(e->a, "%s.", el_inst_path(e, s->inst, LM_SYM(e->c, ""))), s->path,
        s->from_hf, s->at, s->inst->decl->name.text};
}

static bool any_from_hf(const lm_lowered *l) {
  for (int i = 0; i < l->n_sources; i++)
    if (l->sources[i].from_hf)
      return true;
  return false;
}

lm_lowered *lm_lower(lm_ctx *c, lm_program *prog, const lm_recipe *r, const lm_lower_options *o) {
  uint32_t before = c->n_rejects;
  lm_lowered *l = LM_NEW(c->arena, lm_lowered);
  l->m = lm_module_create(c);
  lm_elab *e = lm_elab_create(c, prog, l->m);
  recipe_apply(e, r);
  el_inst *model = make_model(e, r, o);
  if (!model || c->n_rejects > before)
    return NULL;
  edits_resolve(e, l);
  l->former = el_subs_former(e, model, &l->n_former);
  whole_resolve(e, r, l);
  sources_list(e, r, l);
  if (o->what & LM_LOWER_TRAIN)
    lower_train(e, r, model, o);
  for (int i = 0; i < o->n_lengths && o->what & LM_LOWER_TRAIN && c->n_rejects == before; i++)
    lower_length(e, model, o, o->lengths[i], r->model.loc);
  if (c->n_rejects > before)
    return NULL;
  if (o->what & LM_LOWER_EVAL)
    lm_lower_tokens_check(e, r, model);
  if (o->what & LM_LOWER_EVAL)
    lower_loss(e, model, (lm_func_key){LM_FUNC_EVAL}, EL_EVAL, o, r->model.loc);
  if (o->what & LM_LOWER_APPLY) {
    lm_lower_options first = of_length(o, o->first ? o->first : o->seq);
    lower_apply(e, model, LM_FUNC_APPLY, EL_EVAL, &first, l, r->model.loc);
  }
  if (o->what & LM_LOWER_PROBE)
    lower_probe(e, model, o, l);
  if (o->what & LM_LOWER_DECODE) {
    if (o->request && lm_model_takes_request(c, model->decl))
      lower_apply(e, model, LM_FUNC_REQUEST, EL_DECODE, o, l, r->model.loc);
    lower_apply(e, model, LM_FUNC_PREFILL, EL_DECODE, o, l, r->model.loc);
    if (c->n_rejects == before)
      lower_apply(e, model, LM_FUNC_DECODE, EL_DECODE, o, l, r->model.loc);
  }
  bool exports = o->what & (LM_LOWER_MERGED | LM_LOWER_PEFT);
  if (o->what & LM_LOWER_MAPS || any_from_hf(l))
    lm_lower_maps(e, model, exports ? lm_map_whole(e, model, l) : model, l,
                  r->from_hf ? r->from_loc : r->model.loc);
  if (o->what & LM_LOWER_PEFT || (o->what & LM_LOWER_MAPS && r->peft))
    lm_lower_peft(e, model, l, r->peft ? r->peft_loc : r->loc);
  if (o->what & LM_LOWER_MERGED)
    lm_lower_merged(e, model);
  lm_lower_begin(e, model);
  l->changed = el_edits_change(e, !(o->what & LM_LOWER_PEFT));
  if (o->what & LM_LOWER_TRAIN)
    lm_lower_after(e, model);
  if (o->what & LM_LOWER_TRAIN)
    lm_lower_optimizer(e, r, l);
  if (c->n_rejects == before)
    lower_extra(e, model, o, &l->extra);
  if (c->n_rejects > before)
    return NULL;
  if (o->what & LM_LOWER_TRAIN)
    el_edits_warn(e);
  return l;
}

// ---- checking a file
static void check_block(lm_elab *e, const lm_file *file, ast_decl *d) {
  el_inst *inst = el_inst_generic(e, d, file);
  if (!inst->broken)
    el_check_members(e, inst);
}

static void check_instance(lm_elab *e, lm_decl_ref ref) {
  lm_recipe r = {
      .loc = ref.decl->loc,
      .model = lm_recipe_model_of(e->c, e->prog, ref),
  };
  if (ref.decl->items.n) {
    r.edits = &ref.decl->items;
    r.edits_file = ref.file;
  }
  if (!r.model.target.decl)
    return;
  lm_elab *own = lm_elab_create(e->c, e->prog, lm_module_create(e->c));
  lm_lowered unused = {.m = own->m};
  lm_lower_options o = {0};
  uint32_t before = e->c->n_rejects;
  el_inst *model = make_model(own, &r, &o);
  const el_edits *edits = own->edits;
  if (model && edits && e->c->n_rejects == before) {
    lower_probe(own, model, &o, &unused); // their methods are only called with the roles of a model
    if (e->c->n_rejects == before)
      el_replacements_check(own);
  }
  if (model)
    lm_lower_begin(own, model);
}

// Parts of recipes. They are checked only if the file has no other errors.
static void check_section(lm_elab *e, const lm_file *file, ast_decl *d) {
  lm_decl_ref ref = {d, file};
  if (d->kind == DC_DATA)
    lm_recipe_check_data(e->c, e->prog, ref);
  if (d->kind == DC_MODEL_INST)
    check_instance(e, ref);
}

static void check_decl(lm_elab *e, const lm_file *file, ast_decl *d, bool sections) {
  lm_entry_frame(e, file);
  switch (d->kind) {
  case DC_FN: el_check_fn(e, file, d); break;
  case DC_BLOCK:
  case DC_MODEL: check_block(e, file, d); break;
  case DC_FORMAT:
    if (el_format_check(e, d))
      check_block(e, file, d);
    break;
  case DC_OPTIMIZER: lm_optimizer_check(e, file, d); break;
  case DC_LET:
    if (d->let_expr->kind != EX_QUANTITY) // recipes may use it
      el_eval(e, d->let_expr);
    break;
  default:
    if (sections)
      check_section(e, file, d);
    break;
  }
}

static void check_unused(lm_elab *e, const lm_file *file, bool sections) {
  for (uint32_t i = 0; i < file->tree->n; i++) {
    ast_decl *d = file->tree->v[i];
    if (!el_is_visited(e, d))
      check_decl(e, file, d, sections);
  }
}

// Lowers the functions of the recipe for their diagnostics; returns the elaborator.
static lm_elab *check_recipe(lm_ctx *c, lm_program *prog, const lm_recipe *r) {
  lm_lower_options o = {
      .what = LM_LOWER_TRAIN | LM_LOWER_MAPS,
      .rows = 2,
      .seq = 16,
  };
  lm_elab *e = lm_elab_create(c, prog, lm_module_create(c));
  lm_lowered l = {.m = e->m};
  uint32_t before = c->n_rejects;
  recipe_apply(e, r);
  el_inst *model = make_model(e, r, &o);
  if (c->n_rejects > before)
    e->n_visited = 0; // the definitions are checked on symbolic arguments instead
  if (!model || c->n_rejects > before)
    return e;
  lower_train(e, r, model, &o);
  lm_lower_begin(e, model);
  lm_lower_tokens_check(e, r, model);
  bool outputs = el_method_find(model, lm_lower_output(e, model));
  if (outputs && c->n_rejects == before)
    lower_apply(e, model, LM_FUNC_APPLY, EL_EVAL, &o, &l, r->model.loc);
  if (c->n_rejects == before)
    el_replacements_check(e);
  lm_lower_maps(e, model, model, &l, r->model.loc);
  if (r->peft && c->n_rejects == before)
    lm_lower_peft(e, model, &l, r->peft_loc);
  if (c->n_rejects == before)
    lm_lower_after(e, model);
  if (c->n_rejects == before)
    lm_lower_optimizer(e, r, &l);
  if (c->n_rejects == before)
    lower_extra(e, model, &o, &l.extra);
  if (c->n_rejects == before && r->run.unit != LM_RECIPE_UNIT_EPOCHS)
    lm_lower_schedule_check(c, prog, r, lm_recipe_steps(r, (double)lm_lowered_params(&l), 0));
  return e;
}

void lm_check(lm_ctx *c, lm_program *prog, const lm_recipe *r) {
  bool sections = !c->n_errors;
  const lm_elab *used = r && r->model.target.decl ? check_recipe(c, prog, r) : NULL;
  lm_elab *e = lm_elab_create(c, prog, NULL);
  e->visited = used ? used->visited : NULL;
  e->n_visited = e->cap_visited = used ? used->n_visited : 0;
  for (uint32_t i = 0; i < prog->n_files; i++)
    if (!prog->files[i]->is_std)
      check_unused(e, prog->files[i], sections);
  if (!c->n_errors) // an unused name may be a consequence of an error
    lm_lint(c, prog);
}
