// chunk_match.c - see chunk_match.h.
//
// Each value of the region is independent of the carry, linear in it and in one of its reads, or
// computed from reads alone in another way. A linear value is
//   of_h * h + of_read * read + plus
// where h is the carry or its next value. A tensor that lacks an axis is often expanded along it
// before the scan; `without` undoes that.
#include "compiler/passes/chunk/chunk_match.h"
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/ops/widen.h"
#include "compiler/passes/rewrite.h"

typedef enum {
  FREE,   // independent of the carry
  LINEAR, // of_h * h + of_read * read + plus
  AFTER,  // of reads
  OTHER,
} form_kind;
typedef enum {
  OF_H,
  OF_READ,
  PLUS,
  TERMS,
} form_term;
typedef struct form {
  uint8_t kind;
  bool next;             // h is the next value of the carry
  bool rounded;          // h itself, rounded
  bool is_read;          // a read of it
  int read;              // index of the read
  lm_value *term[TERMS]; // lifted; NULL: 0
} form;
typedef struct match {
  lm_chunk *to;
  lm_builder *b; // of the lift
  form *of;      // by id of the region's values
  form next;     // of the next value
  bool summed;   // to->n is set
} match;

// ---- values without some axes

enum {
  DEPTH = 64
};
typedef struct without {
  lm_builder *b;
  lm_type axes;
  lm_idmap done;
} without;

static bool has_any(lm_type t, lm_type axes) {
  for (int i = 0; i < axes.rank; i++)
    if (lm_type_find(t, axes.axis[i]) >= 0)
      return true;
  return false;
}

// v without the axes, of which its elements are equal; NULL if they may differ.
static lm_value *value_without(without *w, lm_value *v, int depth) {
  if (!has_any(v->type, w->axes))
    return v;
  const lm_op *op = v->def;
  lm_value *x = lm_idmap_get(&w->done, v);
  bool moves = op && op->code == LM_OP_PERMUTE;
  if (x || !op || !depth || !(moves || lm_op_has(op, LM_T_ELEMENTWISE)) || op->code == LM_OP_IOTA)
    return x;
  lm_value *in[LM_RANK];
  lm_type t = lm_type_without(v->type, w->axes);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!(in[i] = value_without(w, op->in[i], depth - 1)))
      return NULL;
  w->b->loc = op->loc;
  if (op->code == LM_OP_EXPAND)
    x = lm_emit_expand(w->b, in[0], t);
  else if (moves)
    x = lm_emit_permute(w->b, in[0], t.axis, t.rank);
  else if (!op->n_in)
    x = lm_emit(w->b, op->code, NULL, 0, &op->attr, &t);
  else
    x = lm_widen(w->b, op, in);
  lm_idmap_set(&w->done, v, x);
  return x;
}

static lm_value *drop(match *s, lm_value *v, lm_type axes) {
  without w = {
      .b = s->b,
      .axes = axes,
  };
  lm_value *x = value_without(&w, v, DEPTH);
  lm_idmap_free(&w.done);
  return x;
}

// v without the axes along which it is equal, except t, n and p.
static lm_value *least(match *s, lm_value *v) {
  lm_type t = v->type;
  for (int i = 0; i < t.rank; i++) {
    lm_type axis = lm_type_make(LM_F32, &t.axis[i], 1);
    bool kept = t.axis[i] == lm_scan_axis(s->to->lift.scan) || has_any(s->to->n, axis) ||
                has_any(s->to->p, axis);
    lm_value *x = kept ? NULL : drop(s, v, axis);
    v = x ? x : v;
  }
  return v;
}

// ---- factors

static lm_value *emit2(match *s, lm_opcode code, lm_value *x, lm_value *y) {
  lm_op op = {
      .code = code,
      .n_in = 2,
  };
  lm_value *out = LM_NEW(s->b->m->arena, lm_value);
  op.out = &out;
  return lm_widen(s->b, &op, (lm_value *[]){x, y});
}

static bool is_one(const lm_value *v) {
  double x;
  return lm_const_of(v, &x) && x == 1 && !v->type.rank;
}

static lm_value *times(match *s, lm_value *x, lm_value *y) {
  if (!x || !y)
    return x ? x : y;
  return is_one(x) ? y : is_one(y) ? x : emit2(s, LM_OP_MUL, x, y);
}

// Multiplies *u and *k by the factors of v that lack n and p.
static bool factor(match *s, lm_value *v, int depth, lm_value **u, lm_value **k) {
  const lm_op *op = v->def;
  lm_value *x = drop(s, v, s->to->n);
  lm_value **side = x ? u : k;
  x = x ? x : drop(s, v, s->to->p);
  if (x)
    *side = times(s, *side, x);
  if (x)
    return true;
  if (!op || !depth)
    return false;
  if (op->code == LM_OP_MUL || (op->code == LM_OP_DOT && !op->attr.n_axes))
    return factor(s, op->in[0], depth - 1, u, k) && factor(s, op->in[1], depth - 1, u, k);
  return (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE) &&
         factor(s, op->in[0], depth - 1, u, k);
}

static lm_value *number(match *s, double x) {
  return lm_emit_const(s->b, lm_type_make(LM_F32, NULL, 0), x);
}

// ---- linear values

static lm_value *lifted(match *s, lm_value *v) {
  return lm_scan_lift_of(&s->to->lift, v);
}

static const form *form_of(match *s, const lm_value *v) {
  return &s->of[v->id];
}

// A term of an operand of a sum.
static lm_value *term(match *s, lm_value *v, form_term which) {
  const form *f = form_of(s, v);
  double x;
  if (f->kind == FREE)
    return which == PLUS && !(lm_const_of(v, &x) && x == 0) ? lifted(s, v) : NULL;
  return f->term[which];
}

static lm_value *sum_of(match *s, const lm_op *op, lm_value *x, lm_value *y) {
  if (x && y)
    return lm_widen(s->b, op, (lm_value *[]){x, y});
  return x || !y || op->code == LM_OP_ADD ? (x ? x : y) : lm_emit1(s->b, LM_OP_NEG, y);
}

static lm_value *chosen(match *s, const lm_op *op, lm_value *x, lm_value *y) {
  if (!x && !y)
    return NULL;
  lm_value *in[3];
  in[0] = lifted(s, op->in[0]);
  in[1] = x ? x : number(s, 0);
  in[2] = y ? y : number(s, 0);
  return lm_widen(s->b, op, in);
}

// Combines the forms of the operands from `first` on; operand `at` is linear in the state. Returns
// false if two operands depend on the state at different times, or on different reads of it.
static bool forms_combine(match *s, const lm_op *op, uint32_t first, uint32_t at, form *out) {
  *out = *form_of(s, op->in[at]);
  for (uint32_t i = 0; i < op->n_in; i++) {
    const form *f = form_of(s, op->in[i]);
    if (f->kind == FREE)
      continue;
    if (i < first || f->kind != LINEAR)
      return false;
    if (f->term[OF_H] && out->term[OF_H] && f->next != out->next)
      return false;
    if (f->term[OF_READ] && out->term[OF_READ] && f->read != out->read)
      return false;
    out->next = f->term[OF_H] ? f->next : out->next;
    out->read = f->term[OF_READ] ? f->read : out->read;
    for (int k = 0; k < TERMS; k++)
      out->term[k] = out->term[k] ? out->term[k] : f->term[k];
  }
  return true;
}

// One term of the result of a linear operation, of which operand `at` is linear.
static lm_value *term_of(match *s, const lm_op *op, uint32_t at, form_term which) {
  uint32_t first = op->code == LM_OP_SELECT;
  lm_value *x = term(s, op->in[op->n_in == 1 ? 0 : first], which);
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB: return sum_of(s, op, x, term(s, op->in[1], which));
  case LM_OP_SELECT: return chosen(s, op, x, term(s, op->in[2], which));
  case LM_OP_NEG: return x ? lm_emit1(s->b, LM_OP_NEG, x) : NULL;
  case LM_OP_DIV: return x ? emit2(s, LM_OP_DIV, x, lifted(s, op->in[1])) : NULL;
  case LM_OP_MUL:
  case LM_OP_DOT:
    x = form_of(s, op->in[at])->term[which];
    return x ? times(s, x, lifted(s, op->in[1 - at])) : NULL;
  default: return x;
  }
}

// The form of a cast of a linear value: of h itself.
static form rounding_of(const form *of, const lm_op *cast) {
  bool state = of->term[OF_H] && is_one(of->term[OF_H]) && !of->term[OF_READ] && !of->term[PLUS];
  form f = *of;
  if (!state || f.rounded || !lm_dtype_is_half(cast->out[0]->type.dtype))
    return (form){.kind = OTHER};
  f.rounded = true;
  return f;
}

// The form of an operation of which operand `at` is linear.
static form linear_of(match *s, const lm_op *op, uint32_t at) {
  form f;
  form other = {.kind = OTHER};
  if (op->code == LM_OP_CAST)
    return rounding_of(form_of(s, op->in[0]), op);
  if (!forms_combine(s, op, op->code == LM_OP_SELECT, at, &f))
    return other;
  if (f.rounded && op->code != LM_OP_PERMUTE)
    return other;
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB:
  case LM_OP_SELECT:
  case LM_OP_NEG:
  case LM_OP_PERMUTE: break;
  case LM_OP_MUL:
  case LM_OP_DOT:
    if (form_of(s, op->in[1 - at])->kind != FREE)
      return other;
    break;
  case LM_OP_DIV:
    if (at)
      return other;
    break;
  case LM_OP_EXPAND: // of reads: along n
    if (f.term[OF_H])
      return other;
    break;
  default: return other;
  }
  for (int k = 0; k < TERMS; k++)
    f.term[k] = term_of(s, op, at, (form_term)k);
  return f;
}

// ---- reads

// The axes of a read must be those of the others; sets them at the first one.
static bool axes_fit(match *s, const lm_op *op) {
  lm_type n = lm_type_make(LM_F32, op->attr.axes, op->attr.n_axes);
  const lm_value *h = s->to->lift.scan->body->args[0];
  if (!s->summed && n.rank && lm_type_subset(n, h->type)) {
    s->to->n = n;
    s->summed = true;
  }
  return s->summed && lm_type_same_axes(n, s->to->n);
}

static form read_of(match *s, int index) {
  return (form){
      .kind = LINEAR,
      .read = index,
      .term = {[OF_READ] = number(s, 1)},
  };
}

static form read_add(match *s, const lm_op *op, uint32_t at) {
  const form *f = form_of(s, op->in[at]);
  lm_value *w = op->code == LM_OP_DOT ? op->in[1 - at] : NULL;
  if (s->to->n_reads == LM_CHUNK_READS || !axes_fit(s, op) || f->term[OF_READ] ||
      (w && form_of(s, w)->kind != FREE))
    return (form){.kind = OTHER};
  lm_value *c = w ? lifted(s, w) : NULL;
  int index = s->to->n_reads++;
  lm_chunk_read *read = &s->to->read[index];
  *read = (lm_chunk_read){
      .of = op->out[0],
      .inclusive = f->next,
      .rounded = f->rounded,
  };
  read->c = times(s, f->term[OF_H], c);
  read->plus = f->term[PLUS] ? times(s, f->term[PLUS], c) : NULL;
  if (f->rounded)
    return (form){
        .kind = AFTER,
        .is_read = true,
        .read = index,
    };
  return read_of(s, index);
}

static bool sums(const lm_op *op) {
  return op->code == LM_OP_SUM || (op->code == LM_OP_DOT && op->attr.n_axes);
}

static form form_make(match *s, const lm_op *op) {
  bool of_h = false;
  bool of_reads = false;
  uint32_t linear = UINT32_MAX;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const form *f = form_of(s, op->in[i]);
    if (f->kind == OTHER)
      return (form){.kind = OTHER};
    of_reads |= f->kind != FREE;
    of_h |= f->kind == LINEAR && f->term[OF_H];
    if (f->kind == LINEAR && (linear == UINT32_MAX || f->term[OF_H]))
      linear = i;
  }
  if (op->n_out != 1 || !lm_widens(op))
    return (form){.kind = OTHER};
  if (of_h && sums(op))
    return read_add(s, op, linear);
  if (op->code == LM_OP_CAST && op->out[0]->type.dtype == LM_F32 && form_of(s, op->in[0])->is_read)
    return read_of(s, form_of(s, op->in[0])->read);
  form f = {.kind = of_reads ? OTHER : FREE};
  if (linear != UINT32_MAX && !sums(op))
    f = linear_of(s, op, linear);
  return f.kind == OTHER && !of_h ? (form){.kind = AFTER} : f;
}

static bool is_of_h(const form *f) {
  return f->kind == LINEAR && f->term[OF_H];
}

static bool forms_make(match *s) {
  const lm_op *scan = s->to->lift.scan;
  const lm_op *yield = scan->body->last;
  form h = {.kind = LINEAR, .term = {[OF_H] = number(s, 1)}};
  s->of[scan->body->args[0]->id] = h;
  for (const lm_op *op = scan->body->first; op != yield; op = op->next) {
    form f = form_make(s, op);
    if (op->n_out != 1)
      return false;
    if (op->out[0] == yield->in[0]) {
      if (!is_of_h(&f) || f.next)
        return false;
      s->next = f;
      f = h;
      f.next = true;
    }
    s->of[op->out[0]->id] = f;
  }
  for (uint32_t i = 1; i < yield->n_in; i++)
    if (form_of(s, yield->in[i])->kind == OTHER || is_of_h(form_of(s, yield->in[i])))
      return false;
  return s->to->n_reads && is_of_h(&s->next) && s->next.term[PLUS];
}

// ---- the recurrence

// The axes of the carry that neither the reads sum over nor a has.
static lm_type free_axes(match *s, lm_value *a) {
  lm_type h = s->to->lift.scan->body->args[0]->type;
  lm_type p = {.dtype = LM_F32};
  for (int i = 0; i < h.rank; i++) {
    lm_type axis = lm_type_make(LM_F32, &h.axis[i], 1);
    if (lm_type_find(s->to->n, h.axis[i]) < 0 && drop(s, a, axis))
      p.axis[p.rank++] = h.axis[i];
  }
  return p;
}

// Axes that k or a read needs belong to the batch.
static void axes_restrict(match *s, lm_value *x) {
  lm_type p = {.dtype = LM_F32};
  for (int i = 0; x && i < s->to->p.rank; i++) {
    lm_type axis = lm_type_make(LM_F32, &s->to->p.axis[i], 1);
    if (drop(s, x, axis))
      p.axis[p.rank++] = s->to->p.axis[i];
  }
  if (x)
    s->to->p = p;
}

// The type of the factors of GEMMs.
static lm_dtype dtype_of(const lm_chunk *c) {
  lm_dtype t = (lm_dtype)c->read[0].c->type.dtype;
  for (int i = 0; i < c->n_reads; i++)
    if (!c->read[i].rounded || c->read[i].c->type.dtype != t)
      return LM_F32;
  return t;
}

// v with n as its innermost axis, as GEMMs read it, if v is a multiplication.
static lm_value *n_last(match *s, lm_value *v) {
  lm_type n = s->to->n;
  lm_type to = lm_type_without(v->type, n);
  if (!lm_op_is(v, LM_OP_MUL) || to.rank + n.rank != v->type.rank)
    return v;
  for (int i = 0; i < n.rank; i++)
    to.axis[to.rank++] = n.axis[i];
  lm_value *x = lm_widen_to(s->b, v->def->in[0], to);
  lm_value *y = lm_widen_to(s->b, v->def->in[1], to);
  return lm_type_equal(to, v->type) ? v : lm_emit2(s->b, LM_OP_MUL, x, y);
}

static bool reads_finish(match *s) {
  s->to->dtype = dtype_of(s->to);
  for (int i = 0; i < s->to->n_reads; i++) {
    lm_chunk_read *r = &s->to->read[i];
    lm_value *u = NULL;
    lm_value *k = NULL;
    r->c = drop(s, r->c, s->to->p);
    if (!r->c || !lm_type_subset(s->to->n, r->c->type) ||
        (r->plus && !factor(s, r->plus, DEPTH, &u, &k)))
      return false;
    r->c = lm_emit_cast(s->b, n_last(s, least(s, r->c)), s->to->dtype);
    if (!r->plus)
      continue;
    lm_axis n[LM_RANK];
    int count = 0;
    for (int j = 0; k && j < s->to->n.rank; j++)
      if (lm_type_find(k->type, s->to->n.axis[j]) >= 0)
        n[count++] = s->to->n.axis[j];
    if (count != s->to->n.rank)
      return false;
    r->plus = times(s, u, lm_emit_reduce(s->b, LM_OP_SUM, k, n, count));
  }
  return true;
}

// ---- the delta rule

static bool same_attr(const lm_op *x, const lm_op *y) {
  return !memcmp(&x->attr, &y->attr, sizeof x->attr);
}

// True if x and y are computed in the same way from the same values.
static bool same_value(const lm_value *x, const lm_value *y, int depth) {
  if (x == y)
    return true;
  const lm_op *a = x->def;
  const lm_op *b = y->def;
  if (!a || !b || !depth || !lm_op_pure(a) || a->code != b->code || a->n_in != b->n_in ||
      !lm_type_equal(x->type, y->type) || !same_attr(a, b))
    return false;
  for (uint32_t i = 0; i < a->n_in; i++)
    if (!same_value(a->in[i], b->in[i], depth - 1))
      return false;
  return true;
}

// True if v is k times factors that lack n. Multiplies *scale by them. *found: k is one of the
// factors.
static bool scale_of_k(match *s, lm_value *v, int depth, lm_value **scale, bool *found) {
  lm_value *x = drop(s, v, s->to->n);
  if (x)
    *scale = times(s, *scale, x);
  if (x)
    return true;
  lm_value *k = *found ? NULL : least(s, s->to->k);
  v = *found ? v : least(s, v);
  if (k && same_value(v, k, DEPTH))
    return *found = true;
  const lm_op *op = v->def;
  if (!op || !depth)
    return false;
  if (op->code == LM_OP_EXPAND || op->code == LM_OP_PERMUTE)
    return scale_of_k(s, op->in[0], depth - 1, scale, found);
  return op->code == LM_OP_MUL && scale_of_k(s, op->in[0], depth - 1, scale, found) &&
         scale_of_k(s, op->in[1], depth - 1, scale, found);
}

// The update's dependence on a read: w, or a multiple of k.
static bool delta_make(match *s) {
  lm_value *v = s->next.term[OF_READ];
  lm_value *scale = NULL;
  bool found = false;
  s->to->delta = v ? s->next.read : -1;
  if (!v)
    return true;
  const lm_chunk_read *r = &s->to->read[s->next.read];
  if (r->inclusive || r->plus || !(v = drop(s, v, s->to->p)))
    return false;
  if (scale_of_k(s, v, DEPTH, &scale, &found) && found && scale) {
    s->to->scale = least(s, scale);
    return true;
  }
  s->to->w = n_last(s, least(s, v));
  return lm_type_subset(s->to->n, s->to->w->type);
}

static bool recurrence_make(match *s) {
  lm_value *a = s->next.term[OF_H];
  s->to->p = free_axes(s, a);
  for (int i = 0; i < s->to->n_reads; i++)
    axes_restrict(s, s->to->read[i].c);
  axes_restrict(s, s->next.term[OF_READ]);
  if (!s->to->p.rank || !(a = drop(s, a, s->to->p)))
    return false;
  if (!factor(s, s->next.term[PLUS], DEPTH, &s->to->u, &s->to->k) || !s->to->u || !s->to->k ||
      !delta_make(s))
    return false;
  lm_value *scalar = drop(s, a, s->to->n);
  s->to->keyed = !scalar;
  s->to->a = least(s, scalar ? scalar : a);
  s->to->u = least(s, s->to->u);
  s->to->k = least(s, s->to->k);
  return lm_type_subset(s->to->n, s->to->k->type) && lm_type_subset(s->to->p, s->to->u->type) &&
         reads_finish(s);
}

bool lm_chunk_match(lm_op *scan, lm_chunk *out) {
  *out = (lm_chunk){.delta = -1};
  lm_scan_lift_begin(&out->lift, scan);
  if (lm_scan_carries(scan) != 1 || scan->in[0]->type.dtype != LM_F32)
    return false;
  match s = {
      .to = out,
      .b = &out->lift.b,
      .of = lm_calloc((size_t)out->lift.n + 1, sizeof *s.of),
  };
  bool ok = forms_make(&s) && recurrence_make(&s);
  lm_free(s.of);
  return ok;
}
