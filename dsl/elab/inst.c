// inst.c - instances of blocks and models: their numbers, axes, parameters and subs; repeated
// subs as loops.
//
// Every element of `sub xs[i < n]` is instantiated with its own numbers; all share one set of
// stacked parameters. A loop over them becomes loops over runs of elements of equal structure
// (`el_insts_segment`), possibly several per iteration
// (`i mod 2 == 0`); arguments with many different values are computed from the loop's index
// instead.
#include "dsl/elab/elab.h"
#include <math.h>
#include <string.h>

enum {
  MOST_DEPTH = 32,
  MOST_REPEATS = 1 << 16,
  FEW_VALUES = 4,
  MOST_PERIOD = 8
};

static void bind(lm_elab *e, el_inst *inst, lm_sym name, el_val v) {
  el_names_add(e, &inst->vals, name, v, false);
  if (v.k != V_NUM || !v.has_size || (v.known && v.num < 1))
    return;
  int64_t whole;
  if (v.known && !lm_size_whole(v.size, &whole))
    return;
  el_axis_bind *x = LM_NEW(e->a, el_axis_bind);
  el_axis *axis = LM_NEW(e->a, el_axis);
  *axis = (el_axis){.name = name, .size = v.size};
  *x = (el_axis_bind){name, axis, inst->axes};
  inst->axes = x;
}

static el_val lookup(const el_inst *inst, lm_sym name) {
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

static bool check_arguments(lm_elab *e, const ast_expr *call, const ast_decl *d) {
  uint32_t at = 0, n = d->sig.n_params;
  bool ok = true;
  for (uint32_t i = 0; i < call->n_args; i++) {
    const ast_arg *a = &call->args[i];
    const char *names[64];
    uint32_t k = a->kind == ARG_NAMED ? 0 : at++, m = 0;
    if (a->kind == ARG_NAMED)
      while (k < n && d->sig.params[k].name.text != a->name)
        k++;
    if (k < n && (a->kind == ARG_POS || a->kind == ARG_NAMED))
      continue;
    for (; m < n && m < 64; m++)
      names[m] = d->sig.params[m].name.text;
    lm_diag *g = a->kind == ARG_NAMED
                     ? el_err(e, a->loc, "E078", "%s has no parameter '%s'", d->name.text, a->name)
                     : el_err(e, a->loc, "E078", "%s takes %u arguments", d->name.text, n);
    const char *near = a->kind == ARG_NAMED ? lm_nearest(a->name, names, (int)m) : NULL;
    if (near)
      lm_diag_help(e->c, g, "did you mean '%s'?", near);
    else if (a->kind == ARG_NAMED)
      lm_diag_help(e->c, g, "it takes %s", lm_sig_names(e->c, &d->sig, 0));
    ok = false;
  }
  for (uint32_t k = 0; k < n; k++) {
    if (!ok || d->sig.params[k].init || el_argument(call->args, call->n_args, &d->sig, k))
      continue;
    lm_diag *g = el_err(e, call->loc, "E079", "%s: missing argument '%s'", d->name.text,
                        d->sig.params[k].name.text);
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

lm_loc el_inst_origin(const el_inst *inst, uint32_t k) {
  const ast_sig *sig = &inst->decl->sig;
  const ast_expr *x = inst->call ? el_argument(inst->call->args, inst->call->n_args, sig, k) : NULL;
  if (!x)
    return sig->params[k].init ? sig->params[k].init->loc : sig->params[k].name.loc;
  int above = x->kind == EX_NAME && inst->owner ? param_find(&inst->owner->decl->sig, x->text) : -1;
  return above < 0 ? x->loc : el_inst_origin(inst->owner, (uint32_t)above);
}

// ---- evaluating inside an instance
static el_ref ref_of(el_inst *inst) {
  el_ref ref = {.inst = inst, .n = inst->n_stack};
  for (int k = 0; k < ref.n; k++)
    ref.at[k] = (el_index){NULL, inst->place[k], 1};
  return ref;
}

static el_frame *frame_enter(lm_elab *e, el_inst *inst, el_frame *out) {
  el_frame *was = e->frame;
  el_ref *self = LM_NEW(e->a, el_ref);
  *self = ref_of(inst);
  *out = (el_frame){.up = was,
                    .what = inst->decl->name.text,
                    .called_at = inst->at,
                    .file = inst->file,
                    .self = self,
                    .real = K_REAL};
  e->frame = out;
  return was;
}

static el_val eval_in(lm_elab *e, el_inst *inst, const ast_expr *x) {
  el_frame frame, *was = frame_enter(e, inst, &frame);
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
    el_frame frame, *was = frame_enter(e, inst, &frame);
    lm_diag *d = el_where_check(e, &site, w);
    e->frame = was;
    inst->broken |= d != NULL;
    for (el_inst *o = inst->owner; d && o && d->n_notes < 4; o = o->owner)
      if (o->at.file)
        lm_diag_note(e->c, d, o->at, "in %s", o->decl->name.text);
  }
}

// ---- parameters
lm_sym el_inst_path(lm_elab *e, const el_inst *inst, lm_sym name) {
  const char *out = "";
  size_t done = 0;
  for (int k = 0; k < inst->n_stack; k++) {
    size_t n = strlen(inst->stack_name[k]);
    out = lm_arena_printf(e->a, "%s%.*s.%lld", out, (int)(n - done), inst->path + done,
                          (long long)inst->place[k]);
    done = n;
  }
  return LM_SYM(e->c, lm_arena_printf(e->a, "%s%s%s%s", out, inst->path + done,
                                      inst->path[0] && name[0] ? "." : "", name));
}

static lm_init initialiser(lm_elab *e, el_inst *inst, const ast_expr *x) {
  static const struct {
    const char *name;
    lm_init_kind kind;
    uint32_t n;
  } table[] = {{"zeros", LM_INIT_ZEROS, 0},
               {"ones", LM_INIT_ONES, 0},
               {"const", LM_INIT_CONST, 1},
               {"normal", LM_INIT_NORMAL, 1},
               {"uniform", LM_INIT_UNIFORM, 2}};
  const char *names[LM_COUNT(table)];
  bool call = x->kind == EX_CALL && x->a->kind == EX_NAME;
  lm_sym name = call ? x->a->text : x->kind == EX_NAME ? x->text : NULL;
  for (size_t i = 0; i < LM_COUNT(table); i++) {
    names[i] = table[i].name;
    if (!name || strcmp(name, table[i].name))
      continue;
    uint32_t n = call ? x->n_args : 0;
    if (n != table[i].n) {
      el_err(e, x->loc, "E084", "%s takes %u argument%s", name, table[i].n,
             table[i].n == 1 ? "" : "s");
      return (lm_init){0};
    }
    double v[2] = {0};
    for (uint32_t k = 0; k < n; k++) {
      el_val a = x->args[k].expr ? eval_in(e, inst, x->args[k].expr) : el_error();
      if (!el_number_value(&a, &v[k]) && a.k != V_ERROR && (a.k != V_NUM || e->m))
        el_err(e, x->args[k].loc, "E084", "%s takes numbers, got %s", name, el_show(e, &a));
    }
    if (table[i].kind == LM_INIT_NORMAL && v[0] < 0)
      el_err(e, x->loc, "E084", "normal takes a standard deviation of 0 or more, got %g", v[0]);
    return (lm_init){table[i].kind, v[0], v[1]};
  }
  lm_diag *d = el_err(e, x->loc, "E084",
                      name ? "unknown initialiser '%s'" : "expected an initialiser", name);
  const char *near = name ? lm_nearest(name, names, (int)LM_COUNT(table)) : NULL;
  lm_diag_help(e->c, d,
               near ? "did you mean '%s'?" : "normal(std), uniform(a, b), zeros, ones or const(c)",
               near);
  return (lm_init){0};
}

static void register_param(lm_elab *e, el_inst *inst, el_param *p, lm_init init) {
  lm_axis axes[LM_RANK];
  int rank = 0;
  int64_t n_paths = 1, index = 0;
  if (inst->n_stack + p->axes.n > LM_RANK) {
    el_err(e, p->loc, "E057", "more than %d axes with its repetitions", LM_RANK);
    return;
  }
  for (int k = 0; k < inst->n_stack; k++) {
    lm_sym name = LM_SYM(e->c, lm_arena_printf(e->a, "stack.%s", inst->stack_name[k]));
    axes[rank] = lm_axis_find(e->m, name);
    if (!axes[rank])
      axes[rank] = lm_axis_add(e->m, name, inst->stack[k], 0);
    rank++;
    n_paths *= inst->stack[k];
    index = index * inst->stack[k] + inst->place[k];
  }
  el_frame frame = {.up = e->frame}, *was = e->frame;
  e->frame = &frame; // names of the axes avoid each other alone
  for (el_axis_bind *b = inst->axes; b; b = b->up)
    el_axes_push(e, &frame.live, b->axis);
  for (uint32_t k = 0; k < p->axes.n; k++)
    axes[rank++] = el_axis_ir(e, p->axes.v[k]);
  e->frame = was;
  lm_type type = lm_type_make(LM_F32, axes, rank);
  if (!el_size_check(e, type, p->loc))
    return;
  lm_global *g = lm_global_find(e->m, p->global);
  if (!g) {
    el_count_check(e, e->m->n_globals, "parameters", p->loc);
    g = lm_global_add(e->m, LM_GLOBAL_PARAM, p->global, type, inst->n_stack);
    g->n_paths = n_paths;
    g->paths = LM_NEW_N(e->a, lm_sym, n_paths);
    g->init = LM_NEW_N(e->a, lm_init, n_paths);
    g->loc = p->loc;
  } else if (!lm_type_equal(g->type, type)) {
    lm_diag *d = el_err(e, inst->at, "E085",
                        "parameter '%s' would change its shape along the repetition", p->global);
    lm_diag_note(e->c, d, p->loc, "declared here");
    return;
  }
  g->paths[index] = el_inst_path(e, inst, p->name);
  g->init[index] = init;
}

static void make_params(lm_elab *e, el_inst *inst, const ast_member *m) {
  el_ref self = ref_of(inst);
  el_frame frame = {.up = e->frame,
                    .what = inst->decl->name.text,
                    .called_at = inst->at,
                    .file = inst->file,
                    .self = &self,
                    .real = K_REAL},
           *was = e->frame;
  e->frame = &frame;
  el_axes axes = {0};
  bool ok;
  el_kind kind = el_kind_of_type(e, m->type, &ok);
  if (ok && kind != K_REAL && kind != K_F32) {
    el_err(e, m->type->loc, "E086", "a param is real or f32, not %s", el_kind_name(kind));
    ok = false;
  }
  for (uint32_t i = 0; i < m->type->n_dims; i++) {
    const ast_dim *d = &m->type->dims[i];
    if (d->row || d->expr->kind != EX_NAME) {
      lm_diag *g = el_err(e, d->loc, "E071", "an axis needs a name here");
      lm_diag_help(e->c, g, "declare it first: dim three = 3");
      ok = false;
      continue;
    }
    if (!el_axis_list(e, d->expr, &axes))
      ok = false;
  }
  for (uint32_t i = 0; i < axes.n; i++)
    if (el_axes_find(&axes, axes.v[i]) < (int)i) {
      el_err(e, ok ? m->type->dims[i].loc : m->type->loc, "E056", "axis '%s' twice in one tensor",
             axes.v[i]->name);
      ok = false;
    }
  e->frame = was;
  lm_init init = initialiser(e, inst, m->init);
  for (uint32_t i = 0; i < m->names.n; i++) {
    const ast_name *n = &m->names.v[i];
    el_param p = {.name = n->text, .axes = axes, .kind = kind, .loc = n->loc};
    p.global = LM_SYM(
        e->c, lm_arena_printf(e->a, "%s%s%s", inst->path, inst->path[0] ? "." : "", n->text));
    if (!ok) {
      bind(e, inst, n->text, el_error());
      continue;
    }
    LM_PUSH(e->a, inst->params, inst->n_params, inst->cap_params) = p;
    if (e->m)
      register_param(e, inst, &inst->params[inst->n_params - 1], init);
  }
}

el_val el_param_value(lm_elab *e, const el_ref *ref, el_param *p) {
  el_val v = el_tensor(p->kind, &p->axes, NULL);
  v.name = p->name;
  v.loc = p->loc;
  el_live(e, &v);
  if (!e->m)
    return v;
  if (!lm_global_find(e->m, p->global))
    return el_error(); // refused where it was declared
  if (e->in_library)
    e->library_failed = true;
  lm_attr attr = {.sym = p->global};
  lm_value *in[4];
  for (int k = 0; k < ref->n; k++) {
    in[k] =
        ref->at[k].loop ? ref->at[k].loop : lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
    attr.imm[attr.n_imm++] = ref->at[k].first;
    attr.imm[attr.n_imm++] = ref->at[k].step;
  }
  v.v = lm_emit_cast(&e->b, lm_emit(&e->b, LM_OP_PARAM, in, (uint32_t)ref->n, &attr, NULL),
                     el_dtype(e, p->kind));
  return v;
}

// ---- subs
// `if c then A(…) else B(…)`: the branch that the condition takes, which must be known here.
static const ast_expr *chosen_call(lm_elab *e, const ast_expr *x) {
  while (x->kind == EX_IF) {
    el_val c = el_eval(e, x->c);
    if (c.k != V_BOOL || !c.known) {
      if (c.k != V_ERROR)
        el_err(e, x->c->loc, "E08B", "the condition of a sub is decided at compile time, got %s",
               el_show(e, &c));
      return NULL;
    }
    x = c.num != 0 ? x->a : x->b;
  }
  return x;
}

static el_inst *make_element(lm_elab *e, el_inst *inst, const ast_member *m, int64_t i, int64_t n,
                             lm_sym path) {
  el_inst_site where = {.owner = inst, .path = path, .n_stack = inst->n_stack};
  memcpy(where.stack, inst->stack, sizeof where.stack);
  memcpy(where.place, inst->place, sizeof where.place);
  memcpy(where.stack_name, inst->stack_name, sizeof where.stack_name);
  el_ref self = ref_of(inst);
  el_frame frame = {.up = e->frame,
                    .what = inst->decl->name.text,
                    .called_at = inst->at,
                    .file = inst->file,
                    .self = &self,
                    .real = K_REAL},
           *was = e->frame;
  e->frame = &frame;
  if (m->count) {
    where.stack[where.n_stack] = n;
    where.place[where.n_stack] = i;
    where.stack_name[where.n_stack++] = path;
    el_bind_name(e, m->index.text,
                 e->m ? el_whole(e, i) : el_sized(lm_size_dim(e->a, m->index.text)), false);
  }
  const ast_expr *call = m->count ? m->init : chosen_call(e, m->init);
  el_inst *made = call ? el_inst_make(e, call, inst->file, &where) : NULL;
  e->frame = was;
  return made;
}

static bool same_value(const el_val *x, const el_val *y) {
  if (x->k != y->k)
    return false;
  if (x->k == V_NUM)
    return x->known && y->known ? x->num == y->num : !x->known && !y->known;
  return x->k == V_BOOL ? x->num == y->num : x->k == V_STRING ? x->text == y->text : true;
}

// Which arguments take too many values to make loops of their own.
static void find_following(lm_elab *e, el_insts *xs) {
  const ast_sig *sig = &xs->of[0]->decl->sig;
  xs->follows = LM_NEW_N(e->a, bool, sig->n_params + 1);
  for (uint32_t k = 0; k < sig->n_params; k++) {
    el_val seen[FEW_VALUES];
    int n = 0;
    for (int64_t i = 0; i < xs->n && !xs->follows[k]; i++) {
      el_val v = lookup(xs->of[i], sig->params[k].name.text);
      int j = 0;
      while (j < n && !same_value(&seen[j], &v))
        j++;
      if (j < n || v.k != V_NUM)
        continue;
      if (n == FEW_VALUES)
        xs->follows[k] = true;
      else
        seen[n++] = v;
    }
  }
}

static void make_sub(lm_elab *e, el_inst *inst, const ast_member *m) {
  lm_sym name = m->names.v[0].text;
  lm_sym path =
      LM_SYM(e->c, lm_arena_printf(e->a, "%s%s%s", inst->path, inst->path[0] ? "." : "", name));
  struct el_sub sub = {.name = name, .loc = m->loc};
  if (m->from)
    el_err(e, m->from->loc, "E900", "`sub … from` is not available yet");
  if (!m->count) {
    sub.one = make_element(e, inst, m, 0, 0, path);
  } else {
    el_val count = eval_in(e, inst, m->count);
    int64_t n = 1;
    if (count.k != V_NUM || (count.known && (!count.has_size || !lm_size_whole(count.size, &n) ||
                                             n < 1 || n > MOST_REPEATS))) {
      if (count.k != V_ERROR)
        el_err(e, m->count->loc, "E087", "a repetition takes a whole number from 1 to %d, got %s",
               MOST_REPEATS, el_show(e, &count));
      n = 0;
    }
    int64_t all = n;
    for (int k = 0; k < inst->n_stack && all <= MOST_REPEATS; k++)
      all *= inst->stack[k];
    if (all > MOST_REPEATS) {
      el_err(e, m->loc, "E087", "repetitions make more than %d places of '%s'", MOST_REPEATS, path);
      n = 0;
    }
    if (inst->n_stack == 4) {
      el_err(e, m->loc, "E027", "repetitions nest more than 4 deep");
      n = 0;
    }
    if (!e->m && n > 1)
      n = 1;
    el_insts *xs = n ? LM_NEW(e->a, el_insts) : NULL;
    if (xs)
      *xs = (el_insts){
          .n = n, .of = LM_NEW_N(e->a, el_inst *, n), .index = m->index.text, .member = m};
    for (int64_t i = 0; xs && i < n; i++)
      if (!(xs->of[i] = make_element(e, inst, m, i, n, path)))
        xs = NULL;
    if (xs)
      find_following(e, xs);
    sub.many = xs;
  }
  LM_PUSH(e->a, inst->subs, inst->n_subs, inst->cap_subs) = sub;
}

// ---- arguments that follow an index
// Whether a size of the declaration depends on its parameter: a dim or a count.
static bool shapes_by(const ast_decl *d, lm_sym name) {
  el_bind one = {.name = name};
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (m->count && el_mentions(m->count, &one))
      return true;
    for (uint32_t k = 0; m->kind == MB_DIM && k < m->exprs.n; k++)
      if (el_mentions(m->exprs.v[k], &one))
        return true;
  }
  return false;
}

// Parameters of ref's instance whose arguments (or defaults) follow the index of its own repetition
// or of one around it are computed from the loops' indices: they go to ref->over.
static void bind_following(lm_elab *e, const el_ref *owner, const el_insts *xs, const el_val *index,
                           el_ref *ref) {
  const ast_sig *sig = &ref->inst->decl->sig;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    const ast_expr *x = el_argument(ref->inst->call->args, ref->inst->call->n_args, sig, k);
    bool given = x;
    el_ref self = given ? *owner : *ref;
    if (!given)
      x = sig->params[k].init;
    if (!(xs && xs->follows[k]) && !el_mentions(x, self.over))
      continue;
    el_frame frame = {.up = e->frame, .file = self.inst->file, .self = &self, .real = K_REAL},
             *was = e->frame;
    e->frame = &frame;
    if (given && xs)
      el_bind_name(e, xs->index, *index, false);
    el_bind *b = LM_NEW(e->a, el_bind);
    *b = (el_bind){.name = sig->params[k].name.text, .val = el_eval(e, x), .up = ref->over};
    e->frame = was;
    ref->over = b;
    if (shapes_by(ref->inst->decl, b->name))
      el_decide(e, &b->val);
  }
}

el_ref el_ref_sub(lm_elab *e, const el_ref *owner, el_inst *sub) {
  el_ref ref = *owner;
  ref.inst = sub;
  ref.over = NULL;
  if (owner->over)
    bind_following(e, owner, NULL, NULL, &ref);
  return ref;
}

// ---- loops over repeated subs
static bool same_structure(const el_insts *xs, int64_t i, int64_t j) {
  const ast_sig *sig = &xs->of[0]->decl->sig;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    el_val x = lookup(xs->of[i], sig->params[k].name.text);
    el_val y = lookup(xs->of[j], sig->params[k].name.text);
    if (!xs->follows[k] && !same_value(&x, &y))
      return false;
  }
  return true;
}

int64_t el_insts_segment(lm_elab *e, const el_insts *xs, int64_t first, int *out_period) {
  int64_t best = 0;
  for (int q = 1; q <= MOST_PERIOD && first + q <= xs->n; q++) {
    int64_t end = first + q;
    while (end < xs->n && same_structure(xs, end, end - q))
      end++;
    int64_t count = (end - first) / q;
    if (count * q > best && (q == 1 || count > 1 || end == xs->n)) {
      best = count * q;
      *out_period = q;
    }
  }
  return best / *out_period;
}

el_val el_index_value(lm_elab *e, const el_index *at) {
  el_axes none = {0};
  if (!e->m)
    return el_unknown_number();
  if (!at->loop)
    return el_whole(e, at->first);
  lm_builder *b = &e->b;
  lm_type f64 = lm_type_make(LM_F64, NULL, 0);
  lm_value *v = lm_emit_cast(b, at->loop, LM_F64);
  if (at->step != 1)
    v = lm_emit2(b, LM_OP_MUL, v, lm_emit_const(b, f64, (double)at->step));
  if (at->first != 0)
    v = lm_emit2(b, LM_OP_ADD, v, lm_emit_const(b, f64, (double)at->first));
  return el_tensor(K_NUM, &none, v);
}

el_val el_insts_at(lm_elab *e, const el_val *insts, const el_index *at) {
  const el_insts *xs = insts->insts;
  el_val v = {.k = V_INST, .ref = insts->ref};
  v.ref.inst = xs->of[at->first < xs->n ? at->first : 0];
  v.ref.over = NULL;
  if (v.ref.n < 4)
    v.ref.at[v.ref.n++] = *at;
  if (!e->m || (!at->loop && !insts->ref.over))
    return v;
  el_val index = el_index_value(e, at);
  bind_following(e, &insts->ref, xs, &index, &v.ref);
  return v;
}

// ---- making an instance
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
          lm_diag *g = el_err(e, m->names.v[k].loc, "E088", "'%s' is declared twice in %s", seen[j],
                              d->name.text);
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

// A known whole number is a size however it was computed: 64 * 0.25.
static el_val as_size(lm_elab *e, el_val v) {
  bool whole =
      v.k == V_NUM && v.known && !v.has_size && v.num == floor(v.num) && fabs(v.num) < 0x1p53;
  return whole ? el_whole(e, (int64_t)v.num) : v;
}

static void make_dims(lm_elab *e, el_inst *inst, const ast_member *m) {
  for (uint32_t k = 0; k < m->names.n; k++) {
    el_val v = as_size(e, eval_in(e, inst, m->exprs.v[k]));
    if (v.k == V_NUM && !v.known && !v.has_size)
      v = el_sized(lm_size_dim(e->a, m->names.v[k].text)); // whatever it comes to
    int64_t whole;
    bool bad =
        v.k != V_NUM || (v.known && (!v.has_size || !lm_size_whole(v.size, &whole) || whole < 1));
    if (bad && v.k != V_ERROR) {
      lm_diag *d = el_err(e, m->exprs.v[k]->loc, "E089",
                          "dim %s should be a whole number of 1 or more, got %s",
                          m->names.v[k].text, el_show(e, &v));
      if (inst->at.file)
        lm_diag_note(e->c, d, inst->at, "instantiated here");
      inst->broken = true;
    }
    bind(e, inst, m->names.v[k].text, bad ? el_error() : v);
  }
}

static el_inst *make(lm_elab *e, el_inst *inst) {
  if (!member_names(e, inst->decl))
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
    if (m->kind == MB_PARAM)
      make_params(e, inst, m);
    if (m->kind == MB_SUB)
      make_sub(e, inst, m);
    if (m->kind == MB_STATE)
      el_err(e, m->loc, "E08A", "state belongs to optimizers");
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

// Whether the declaration has tensors with an axis of that name.
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

// A parameter that is the size of an axis is a whole number of 1 or more; what it is elsewhere
// would be told many times.
static void check_sizes(lm_elab *e, el_inst *inst) {
  for (uint32_t k = 0; k < inst->decl->sig.n_params; k++) {
    const ast_param *p = &inst->decl->sig.params[k];
    el_val v = lookup(inst, p->name.text);
    int64_t whole;
    bool number = v.k == V_NUM && v.known;
    bool fits = number && v.has_size && lm_size_whole(v.size, &whole) && whole >= 1;
    if (!number || fits || !names_axis(inst->decl, p->name.text))
      continue;
    lm_diag *d = el_err(e, el_inst_origin(inst, k), "E089",
                        "%s is the size of an axis of %s: a whole number of 1 or more, not %s",
                        p->name.text, inst->decl->name.text, el_show(e, &v));
    lm_diag_note(e->c, d, p->name.loc, "declared here");
    inst->broken = true;
  }
}

static lm_decl_ref block_of(lm_elab *e, const ast_expr *call, const lm_file *file) {
  if (call->kind == EX_ERROR)
    return (lm_decl_ref){0};
  if (call->kind != EX_CALL || call->a->kind != EX_NAME) {
    el_err(e, call->loc, "E08B", "expected an instance: NAME(arguments)");
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
  lm_diag *d = el_err(e, call->loc, "E08C",
                      ref.decl ? "'%s' is no block or model" : "unknown block '%s'", call->a->text);
  const char *near = lm_nearest(call->a->text, all, n + m);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return (lm_decl_ref){0};
}

static void report_nesting(lm_elab *e, lm_loc at, const ast_decl *d, const el_inst *owner) {
  const char *cycle = d->name.text;
  for (; owner && owner->decl != d; owner = owner->owner)
    cycle = lm_arena_printf(e->a, "%s -> %s", owner->decl->name.text, cycle);
  if (owner)
    el_err(e, at, "E076", "'%s' contains itself: %s -> %s", d->name.text, d->name.text, cycle);
  else
    el_err(e, at, "E076", "instances nest more than %d deep", MOST_DEPTH);
}

el_inst *el_inst_make(lm_elab *e, const ast_expr *call, const lm_file *file,
                      const el_inst_site *where) {
  lm_decl_ref ref = where->decl.decl ? where->decl : block_of(e, call, file);
  if (!ref.decl || !el_budget(e, call->loc) || !check_arguments(e, call, ref.decl))
    return NULL;
  if (e->depth >= MOST_DEPTH) {
    report_nesting(e, call->loc, ref.decl, where->owner);
    return NULL;
  }
  e->depth++;
  bool seen = false;
  for (uint32_t i = 0; i < e->n_visited; i++)
    seen |= e->visited[i] == ref.decl;
  if (!seen)
    LM_PUSH(e->a, e->visited, e->n_visited, e->cap_visited) = ref.decl;
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){.decl = ref.decl,
                    .file = ref.file,
                    .path = where->path,
                    .owner = where->owner,
                    .at = call->loc,
                    .call = call,
                    .n_stack = where->n_stack};
  memcpy(inst->stack, where->stack, sizeof inst->stack);
  memcpy(inst->place, where->place, sizeof inst->place);
  memcpy(inst->stack_name, where->stack_name, sizeof inst->stack_name);
  for (uint32_t k = 0; k < ref.decl->sig.n_params; k++) {
    const ast_expr *x = el_argument(call->args, call->n_args, &ref.decl->sig, k);
    el_val v = x ? el_eval(e, x) : eval_in(e, inst, ref.decl->sig.params[k].init);
    if (v.k == V_TENSOR || v.k == V_INST || v.k == V_INSTS || v.k == V_TUPLE) {
      el_err(e, x ? x->loc : call->loc, "E08D", "%s takes numbers, conditions and text, got %s",
             ref.decl->name.text, el_show(e, &v));
      v = el_error();
    }
    if (v.k == V_ERROR)
      inst->broken = true;
    bind(e, inst, ref.decl->sig.params[k].name.text, v);
  }
  check_sizes(e, inst);
  if (!inst->broken)
    make(e, inst);
  e->depth--;
  return inst;
}

el_inst *el_inst_generic(lm_elab *e, ast_decl *d, const lm_file *file) {
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){.decl = d, .file = file, .path = ""};
  for (uint32_t k = 0; k < d->sig.n_params; k++) {
    lm_sym name = d->sig.params[k].name.text;
    el_val v = d->sig.params[k].init ? eval_in(e, inst, d->sig.params[k].init)
                                     : el_sized(lm_size_dim(e->a, name));
    if (v.k == V_NUM && v.has_size)
      v = el_sized(lm_size_dim(e->a, name));
    bind(e, inst, name, v);
  }
  return make(e, inst);
}
