// chunk_match.c - see chunk_match.h.
//
// Each value of the region is independent of the carry, linear in it, or computed from reads alone.
// A linear value is coef * h + plus, where h is the carry or its next value. A tensor that lacks an
// axis is often expanded along it before the scan; `without` undoes that.
#include "compiler/passes/chunk_match.h"
#include "compiler/ops/interface.h"
#include "compiler/ops/widen.h"
#include "compiler/passes/rewrite.h"

typedef enum {
  FREE,   // independent of the carry
  LINEAR, // coef * h + plus
  AFTER,  // of reads
  OTHER,
} form_kind;
typedef struct form {
  uint8_t kind;
  bool next;      // h is the next value of the carry
  lm_value *coef; // NULL: 1
  lm_value *plus; // NULL: 0
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

static lm_type type_without(lm_type t, lm_type axes) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++)
    if (lm_type_find(axes, t.axis[i]) < 0)
      out.axis[out.rank++] = t.axis[i];
  return out;
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
  lm_type t = type_without(v->type, w->axes);
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
  without w = {.b = s->b, .axes = axes};
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
  lm_op op = {.code = code, .n_in = 2};
  lm_value *out = LM_NEW(s->b->m->arena, lm_value);
  op.out = &out;
  return lm_widen(s->b, &op, (lm_value *[]){x, y});
}

static lm_value *times(match *s, lm_value *x, lm_value *y) {
  return !x ? y : !y ? x : emit2(s, LM_OP_MUL, x, y);
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

static lm_value *one(match *s) {
  return lm_emit_const(s->b, lm_type_make(LM_F32, NULL, 0), 1);
}

// ---- linear values

static lm_value *number(match *s, double x) {
  return lm_emit_const(s->b, lm_type_make(LM_F32, NULL, 0), x);
}

static lm_value *lifted(match *s, lm_value *v) {
  return lm_scan_lift_of(&s->to->lift, v);
}

static const form *form_of(match *s, const lm_value *v) {
  return &s->of[v->id];
}

// The coefficient of an operand of a sum, or its other term, if `plus`.
static lm_value *term(match *s, lm_value *v, bool plus) {
  const form *f = form_of(s, v);
  double x;
  if (f->kind == FREE)
    return plus && !(lm_const_of(v, &x) && x == 0) ? lifted(s, v) : NULL;
  return plus ? f->plus : f->coef ? f->coef : one(s);
}

static lm_value *sum_of(match *s, const lm_op *op, lm_value *x, lm_value *y) {
  if (x && y)
    return lm_widen(s->b, op, (lm_value *[]){x, y});
  return x || !y || op->code == LM_OP_ADD ? (x ? x : y) : lm_emit1(s->b, LM_OP_NEG, y);
}

static lm_value *chosen(match *s, const lm_op *op, lm_value *x, lm_value *y) {
  if (!x && !y)
    return NULL;
  return lm_widen(s->b, op,
                  (lm_value *[]){lifted(s, op->in[0]), x ? x : number(s, 0), y ? y : number(s, 0)});
}

// The form of an elementwise operation of which operand `at` is linear.
static form linear_of(match *s, const lm_op *op, uint32_t at) {
  form f = *form_of(s, op->in[at]);
  uint32_t first = op->code == LM_OP_SELECT;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const form *g = form_of(s, op->in[i]);
    if (g->kind != FREE && (i < first || g->kind != LINEAR || g->next != f.next))
      return (form){.kind = OTHER};
  }
  lm_value *x = op->in[first];
  lm_value *y = op->n_in > first + 1 ? op->in[first + 1] : NULL;
  bool both = y && form_of(s, x)->kind == LINEAR && form_of(s, y)->kind == LINEAR;
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB:
    f.coef = sum_of(s, op, term(s, x, false), term(s, y, false));
    f.plus = sum_of(s, op, term(s, x, true), term(s, y, true));
    return f;
  case LM_OP_SELECT:
    f.coef = chosen(s, op, term(s, x, false), term(s, y, false));
    f.plus = chosen(s, op, term(s, x, true), term(s, y, true));
    return f;
  case LM_OP_NEG:
    f.coef = lm_emit1(s->b, LM_OP_NEG, term(s, x, false));
    f.plus = f.plus ? lm_emit1(s->b, LM_OP_NEG, f.plus) : NULL;
    return f;
  case LM_OP_MUL:
    if (both)
      break;
    f.coef = times(s, f.coef, lifted(s, op->in[1 - at]));
    f.plus = f.plus ? times(s, f.plus, lifted(s, op->in[1 - at])) : NULL;
    return f;
  case LM_OP_PERMUTE: return f;
  default: break;
  }
  return (form){.kind = OTHER};
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

static bool read_add(match *s, const lm_op *op, uint32_t at) {
  const form *f = form_of(s, op->in[at]);
  lm_value *w = op->code == LM_OP_DOT ? op->in[1 - at] : NULL;
  if (s->to->n_reads == LM_CHUNK_READS || !axes_fit(s, op) || (w && form_of(s, w)->kind != FREE))
    return false;
  lm_value *c = w ? lifted(s, w) : NULL;
  s->to->read[s->to->n_reads++] = (lm_chunk_read){.of = op->out[0],
                                                  .inclusive = f->next,
                                                  .c = c ? times(s, f->coef, c) : f->coef,
                                                  .plus = f->plus ? times(s, f->plus, c) : NULL};
  return true;
}

static form form_make(match *s, const lm_op *op) {
  bool after = false;
  uint32_t linear = UINT32_MAX;
  for (uint32_t i = 0; i < op->n_in; i++) {
    uint8_t kind = form_of(s, op->in[i])->kind;
    if (kind == OTHER)
      return (form){.kind = OTHER};
    after |= kind == AFTER;
    if (kind == LINEAR && linear == UINT32_MAX)
      linear = i;
  }
  if (op->n_out != 1 || !lm_widens(op) || (after && linear != UINT32_MAX))
    return (form){.kind = OTHER};
  if (linear == UINT32_MAX)
    return (form){.kind = after ? AFTER : FREE};
  if (op->code == LM_OP_SUM || (op->code == LM_OP_DOT && op->attr.n_axes))
    return (form){.kind = read_add(s, op, linear) ? AFTER : OTHER};
  return linear_of(s, op, linear);
}

static bool forms_make(match *s) {
  const lm_op *scan = s->to->lift.scan;
  const lm_op *yield = scan->body->last;
  s->of[scan->body->args[0]->id].kind = LINEAR;
  for (const lm_op *op = scan->body->first; op != yield; op = op->next) {
    form f = form_make(s, op);
    if (op->n_out != 1)
      return false;
    if (op->out[0] == yield->in[0]) {
      if (f.kind != LINEAR || f.next)
        return false;
      s->next = f;
      f = (form){.kind = LINEAR, .next = true};
    }
    s->of[op->out[0]->id] = f;
  }
  for (uint32_t i = 1; i < yield->n_in; i++)
    if (form_of(s, yield->in[i])->kind > AFTER || form_of(s, yield->in[i])->kind == LINEAR)
      return false;
  return s->to->n_reads && s->next.kind == LINEAR && s->next.plus;
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

static bool reads_finish(match *s) {
  for (int i = 0; i < s->to->n_reads; i++) {
    lm_chunk_read *r = &s->to->read[i];
    lm_value *u = NULL;
    lm_value *k = NULL;
    r->c = drop(s, r->c ? r->c : one(s), s->to->p);
    if (!r->c || !lm_type_subset(s->to->n, r->c->type) ||
        (r->plus && !factor(s, r->plus, DEPTH, &u, &k)))
      return false;
    r->c = least(s, r->c);
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

static bool recurrence_make(match *s) {
  lm_value *a = s->next.coef ? s->next.coef : one(s);
  s->to->p = free_axes(s, a);
  for (int i = 0; i < s->to->n_reads; i++)
    axes_restrict(s, s->to->read[i].c);
  if (!s->to->p.rank || !(a = drop(s, a, s->to->n)) || !(a = drop(s, a, s->to->p)))
    return false;
  if (!factor(s, s->next.plus, DEPTH, &s->to->u, &s->to->k) || !s->to->u || !s->to->k)
    return false;
  s->to->a = least(s, a);
  s->to->u = least(s, s->to->u);
  s->to->k = least(s, s->to->k);
  return lm_type_subset(s->to->n, s->to->k->type) && lm_type_subset(s->to->p, s->to->u->type) &&
         reads_finish(s);
}

bool lm_chunk_match(lm_op *scan, lm_chunk *out) {
  *out = (lm_chunk){.n_reads = 0};
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
