// sub.c - sub-blocks of an instance, single and repeated.
//
// Every element of `sub xs[i < n]` is instantiated with its own arguments, and of the block that
// its conditions select. Elements of one kind have stacked parameters (share.h). A loop over them
// becomes one loop per segment of elements with equal structure (el_insts_segment); an iteration
// may run several elements, as for `i mod 2 == 0`. An argument that takes more than MAX_VARIANTS
// values is computed from the loop index instead, so that it does not split the loop.
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/share.h"
#include "dsl/elab/source.h"
#include <string.h>

enum {
  MAX_REPEATS = 1 << 16,
  MAX_VARIANTS = 4,
  MAX_PERIOD = 16,
  MAX_TAIL = 8
};

typedef struct calls {
  const ast_expr **v;
  uint32_t n, cap;
} calls;

// The block that the conditions select at compile time; while only checking, all for which unknown
// conditions leave a possibility. False: reported.
static bool calls_find(lm_elab *e, const ast_expr *x, calls *out) {
  if (x->kind != EX_IF) {
    LM_PUSH(e->a, out->v, out->n, out->cap) = x;
    return true;
  }
  el_val c = el_eval(e, x->c);
  if (c.k == V_BOOL && c.known)
    return calls_find(e, c.num != 0 ? x->a : x->b, out);
  if (c.k == V_BOOL && !e->m)
    return calls_find(e, x->a, out) && calls_find(e, x->b, out);
  if (c.k != V_ERROR)
    EL_ERR(e, x->c->loc, E043, el_show(e, &c));
  return false;
}

// Element i of n. While only checking, element i is the i-th possible one, and *out_n their number.
static el_inst *make_element(lm_elab *e, el_inst *inst, const ast_member *m, int64_t i, int64_t n,
                             lm_sym path, uint32_t *out_n) {
  el_inst_site where = {
      .owner = inst, .path = path, .n_stack = inst->n_stack, .source = el_source_read(e, inst, m)};
  memcpy(where.stack, inst->stack, sizeof where.stack);
  memcpy(where.index, inst->index, sizeof where.index);
  memcpy(where.stack_name, inst->stack_name, sizeof where.stack_name);
  el_frame frame, *was = el_inst_enter(e, inst, &frame);
  if (m->count) {
    where.stack[where.n_stack] = n;
    where.index[where.n_stack] = i;
    where.stack_name[where.n_stack++] = path;
    el_bind_name(e, m->index.text,
                 e->m ? el_whole(e, i) : el_sized(lm_size_dim(e->a, m->index.text)), false);
  }
  calls all = {0};
  bool found = calls_find(e, m->init, &all);
  const ast_expr *call = found ? all.v[e->m ? 0 : i] : NULL;
  if (call && e->m && e->edits)
    call = el_sub_replaced(e, call, &where);
  el_inst *made = call ? el_inst_make(e, call, inst->file, &where) : NULL;
  e->frame = was;
  *out_n = all.n;
  return made;
}

static bool same_value(const el_val *x, const el_val *y) {
  if (x->k != y->k)
    return false;
  if (x->k == V_INST)
    return el_formats_agree(x, y);
  if (x->k == V_NUM)
    return x->known && y->known ? x->num == y->num : !x->known && !y->known;
  return x->k == V_BOOL ? x->num == y->num : x->k == V_STRING ? x->text == y->text : true;
}

// Sets by_index of the elements of one kind: the arguments that take more than MAX_VARIANTS values.
static void find_by_index(lm_elab *e, const el_insts *xs, const el_inst *kind) {
  const ast_sig *sig = &kind->decl->sig;
  bool *by_index = LM_NEW_N(e->a, bool, sig->n_params + 1);
  for (uint32_t k = 0; k < sig->n_params; k++) {
    el_val seen[MAX_VARIANTS];
    int n = 0;
    for (int64_t i = 0; i < xs->n && !by_index[k]; i++) {
      if (!el_insts_same_kind(xs->of[i], kind))
        continue;
      el_val v = el_inst_value(xs->of[i], sig->params[k].name.text);
      int j = 0;
      while (j < n && !same_value(&seen[j], &v))
        j++;
      if (j < n || v.k != V_NUM)
        continue;
      if (n == MAX_VARIANTS)
        by_index[k] = true;
      else
        seen[n++] = v;
    }
  }
  for (int64_t i = 0; i < xs->n; i++)
    if (el_insts_same_kind(xs->of[i], kind))
      xs->of[i]->by_index = by_index;
}

static void find_kinds(lm_elab *e, el_insts *xs) {
  for (int64_t i = 0; i < xs->n; i++) {
    uint32_t k = 0;
    while (k < xs->n_kinds && !el_insts_same_kind(xs->kinds[k], xs->of[i]))
      k++;
    if (k == xs->n_kinds)
      LM_PUSH(e->a, xs->kinds, xs->n_kinds, xs->cap_kinds) = xs->of[i];
  }
  for (uint32_t k = 0; k < xs->n_kinds; k++)
    find_by_index(e, xs, xs->kinds[k]);
}

static void report_count(lm_elab *e, const el_inst *inst, const ast_member *m, const el_val *n) {
  lm_diag *d = EL_ERR(e, el_inst_cause(inst, m->count), E087, MAX_REPEATS, el_show(e, n));
  el_inst_note_cause(e, d, inst, m->count);
}

// The number of elements; 0: reported. While only checking it may be unknown: 1.
static int64_t read_count(lm_elab *e, el_inst *inst, const ast_member *m, lm_sym path,
                          bool *known) {
  el_val count = el_as_size(e, el_inst_eval(e, inst, m->count));
  int64_t n = 1;
  *known = count.known;
  if (count.k != V_NUM || (count.known && (!count.has_size || !lm_size_whole(count.size, &n) ||
                                           n < 1 || n > MAX_REPEATS))) {
    if (count.k != V_ERROR)
      report_count(e, inst, m, &count);
    return 0;
  }
  int64_t all = n;
  for (int k = 0; k < inst->n_stack && all <= MAX_REPEATS; k++)
    all *= inst->stack[k];
  if (all > MAX_REPEATS) {
    EL_ERR(e, m->loc, E0BE, MAX_REPEATS, path);
    return 0;
  }
  if (inst->n_stack == 4) {
    EL_ERR(e, m->loc, E027, "repetitions", 4);
    return 0;
  }
  return n;
}

// The n elements; while only checking, the possible ones. NULL: reported.
static el_insts *make_list(lm_elab *e, el_inst *inst, const ast_member *m, int64_t n, lm_sym path) {
  el_insts *xs = LM_NEW(e->a, el_insts);
  *xs = (el_insts){
      .index = m->index.text,
      .member = m,
  };
  uint32_t cap = 0, possible = 1;
  while (xs->n < (e->m ? n : possible)) {
    el_inst *made = make_element(e, inst, m, xs->n, n, path, &possible);
    if (!made)
      return NULL;
    LM_PUSH(e->a, xs->of, xs->n, cap) = made;
  }
  find_kinds(e, xs);
  return xs;
}

void el_inst_add_sub(lm_elab *e, el_inst *inst, const ast_member *m) {
  lm_sym name = m->names.v[0].text;
  lm_sym path =
      LM_SYM(e->c, lm_arena_printf(e->a, "%s%s%s", inst->path, inst->path[0] ? "." : "", name));
  struct el_sub sub = {
      .name = name,
      .loc = m->loc,
  };
  bool known = true;
  int64_t n = m->count ? read_count(e, inst, m, path, &known) : 1;
  el_insts *xs = n ? make_list(e, inst, m, e->m ? n : 1, path) : NULL;
  if (xs)
    xs->count = known ? n : INT64_MAX;
  sub.many = m->count ? xs : NULL;
  sub.one = !m->count && xs ? xs->of[0] : NULL; // while only checking, it stands for the others
  LM_PUSH(e->a, inst->subs, inst->n_subs, inst->cap_subs) = sub;
}

// ---- arguments that depend on an index
// True if a dim or a count of the declaration depends on the parameter.
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

// Computes the parameters of ref's instance that depend on the index of its repetition, or of one
// around it, from the indices of the loops, and adds them to ref->indexed.
static void bind_by_index(lm_elab *e, const el_ref *owner, const el_insts *xs, const el_val *index,
                          el_ref *ref) {
  const ast_sig *sig = &ref->inst->decl->sig;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    const ast_expr *x = el_argument(ref->inst->call->args, ref->inst->call->n_args, sig, k);
    bool given = x;
    el_ref self = given ? *owner : *ref;
    if (!given)
      x = sig->params[k].init;
    if (!(xs && ref->inst->by_index[k]) && !el_mentions(x, self.indexed))
      continue;
    el_frame frame =
                 {
                     .up = e->frame,
                     .file = self.inst->file,
                     .self = &self,
                     .real = K_REAL,
                 },
             *was = e->frame;
    e->frame = &frame;
    if (given && xs)
      el_bind_name(e, xs->index, *index, false);
    el_bind *b = LM_NEW(e->a, el_bind);
    *b = (el_bind){
        .name = sig->params[k].name.text,
        .val = el_eval(e, x),
        .up = ref->indexed,
    };
    e->frame = was;
    ref->indexed = b;
    if (shapes_by(ref->inst->decl, b->name))
      el_request_unroll(e, &b->val);
  }
}

el_ref el_ref_sub(lm_elab *e, const el_ref *owner, el_inst *sub) {
  el_ref ref = *owner;
  ref.inst = sub;
  ref.indexed = NULL;
  ref.each = NULL;
  if (owner->indexed)
    bind_by_index(e, owner, NULL, NULL, &ref);
  return ref;
}

// ---- loops over repeated subs
static bool same_structure(lm_elab *e, const el_inst *x, const el_inst *y) {
  const ast_sig *sig = &x->decl->sig;
  if (!el_insts_agree(x, y) || !el_remat_agrees(e, x, y))
    return false;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    el_val a = el_inst_value(x, sig->params[k].name.text);
    el_val b = el_inst_value(y, sig->params[k].name.text);
    if (!x->by_index[k] && !same_value(&a, &b))
      return false;
  }
  return true;
}

int64_t el_insts_segment(lm_elab *e, const el_insts *xs, int64_t first, int *out_period) {
  bool uniform = !e->edits && xs->n_kinds == 1; // else there are runs of equal elements
  bool divided = el_remat_divides(e);           // into such runs only
  int64_t best = 0;
  for (int q = 1; q <= MAX_PERIOD && first + q <= xs->n; q++) {
    int64_t end = first + q;
    while (end < xs->n && same_structure(e, xs->of[end], xs->of[end - q]))
      end++;
    int64_t count = (end - first) / q;
    bool tail = !divided && end == xs->n && q <= MAX_TAIL && (uniform || best <= 1);
    if (count * q > best && (q == 1 || count > 1 || tail)) {
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
  el_val v = {
      .k = V_INST,
      .ref = insts->ref,
  };
  v.ref.inst = xs->of[at->first < xs->n ? at->first : 0];
  v.ref.indexed = NULL;
  v.ref.each = NULL;
  if (v.ref.n < 4)
    v.ref.at[v.ref.n++] = *at;
  if (!e->m || (!at->loop && !insts->ref.indexed))
    return v;
  el_val index = el_index_value(e, at);
  bind_by_index(e, &insts->ref, xs, &index, &v.ref);
  return v;
}
