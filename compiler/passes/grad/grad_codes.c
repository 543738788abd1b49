// grad_codes.c - stashes of codes instead of the numbers that are rounded to them.
//
// before: %y, %hs = loop 24 over(l) %i carry(…) {
//           … %p = mul %h, %s   %q = cast %p : e4m3[b, f]   …   yield %y2, %h }
//         loop 24 %j … { %h1 = at %hs, %j [23, -1]
//           %p1 = mul %h1, %s1   %q1 = cast %p1 : e4m3[b, f]   … }
// after:  %y, %qs = loop 24 over(l) %i carry(…) { …   yield %y2, %q }
//         loop 24 %j … { %q1 = at %qs, %j [23, -1]   … }
//
// Numbers that the backward loop reads only to round them (passes fp8, fp8_attention) need no
// stash. The codes are those of the forward loop, so that no result changes. Mostly the forward
// loop has them for a GEMM; it computes those in blocks along the rows for the stash alone.
//
// Declines: stashes with other readers in the backward loop, and stashes whose codes take no less
// memory, as several GEMMs round them by different scales. Cost: none; pass dce removes the stash
// of the numbers.
#include "compiler/ops/interface.h"
#include "compiler/passes/grad/grad.h"
#include "runtime/base/dtype.h"

// A code of the backward loop, and the stash of numbers from which alone it is computed.
typedef struct code {
  lm_value *forward; // the same code in the forward loop
  lm_value *here;
  lm_value *number; // an element of the stash
} code;

typedef struct coder {
  gradient *g;
  frame *f;
  code *v;
  uint32_t n, cap;
  lm_idmap number; // by value between a number and its codes: the number
  lm_idmap others; // by number: not NULL if another operation reads it
} coder;

static bool is_code(const lm_value *v) {
  return v->type.dtype == LM_E4M3 || v->type.dtype == LM_E5M2;
}

// True if op widens, moves or scales its first operand.
static bool leads_to_code(const lm_op *op) {
  if (op->code == LM_OP_AT || op->code == LM_OP_SLICE)
    return false;
  return op->code == LM_OP_CAST || op->code == LM_OP_MUL || op->code == LM_OP_REDUCE_PRECISION ||
         lm_op_has(op, LM_T_VIEW);
}

// The element of a stash that v is computed from; NULL if v is computed otherwise.
static lm_value *number_of(const frame *f, lm_value *v) {
  while (!lm_idmap_get(&f->stashes, v)) {
    bool inside = v->def && v->region == f->reversed->body;
    if (!inside || !leads_to_code(v->def))
      return NULL;
    v = v->def->in[0];
  }
  return v;
}

static void code_add(coder *c, lm_value *forward) {
  lm_value *here = lm_idmap_get(&c->f->memo, forward);
  lm_value *number = here && here != forward ? number_of(c->f, here->def->in[0]) : NULL;
  if (!number)
    return;
  LM_PUSH(c->g->m->arena, c->v, c->n, c->cap) = (code){forward, here, number};
  for (lm_value *v = here; v != number; v = v->def->in[0])
    lm_idmap_set(&c->number, v, number);
}

static void codes_find(coder *c) {
  for (lm_op *op = c->f->forward->first; op; op = op->next)
    if (op->code == LM_OP_CAST && is_code(op->out[0]) && !is_code(op->in[0]))
      code_add(c, op->out[0]);
}

// A reader of a number, or of a value between it and its codes, must be such a value too.
static void reader_check(lm_op *op, void *user) {
  coder *c = user;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *v = op->in[i];
    lm_value *between = is_code(v) ? NULL : lm_idmap_get(&c->number, v);
    lm_value *number = lm_idmap_get(&c->f->stashes, v) ? v : between;
    bool leads = i == 0 && op->n_out == 1 && lm_idmap_get(&c->number, op->out[0]) == number;
    if (number && !leads)
      lm_idmap_set(&c->others, number, number);
  }
}

static bool codes_take_less(const coder *c, const lm_value *number) {
  const lm_module *m = c->g->m;
  double bytes = 0;
  for (uint32_t i = 0; i < c->n; i++)
    if (c->v[i].number == number)
      bytes += lm_type_traffic(m, c->v[i].here->type);
  return bytes < lm_type_traffic(m, number->type);
}

// The marks of a number of the recipe hold for its codes.
static void marks_copy(const frame *f, const lm_value *number, lm_value *to) {
  const lm_value *v = lm_idmap_get(&f->stashes, number);
  to->def->remat = v->def ? v->def->remat : LM_REMAT_AUTO;
}

typedef struct replacement {
  const lm_value *from;
  lm_value *to;
} replacement;

static void replace(lm_op *op, void *user) {
  const replacement *r = user;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i] == r->from)
      op->in[i] = r->to;
}

void lm_gradient_stash_codes(gradient *g, frame *f) {
  coder c = {
      .g = g,
      .f = f,
  };
  codes_find(&c);
  lm_region_walk(f->reversed->body, reader_check, &c);
  f->b.at = f->reversed->body;
  f->b.before = f->reversed->body->first;
  for (uint32_t i = 0; i < c.n; i++) {
    const code *k = &c.v[i];
    if (lm_idmap_get(&c.others, k->number) || !codes_take_less(&c, k->number))
      continue;
    marks_copy(f, k->number, k->forward);
    replacement r = {k->here, lm_gradient_stash(g, f, k->forward)};
    lm_region_walk(f->reversed->body, replace, &r);
  }
  lm_idmap_free(&c.number);
  lm_idmap_free(&c.others);
}
