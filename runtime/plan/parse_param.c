// parse_param.c - the lines of a plan's text that state the memory of parameters.
#include "runtime/base/dtype.h"
#include "runtime/plan/reader.h"

static int numbers(reader *r, int64_t *out) {
  int n = 0;
  expect(r, "[");
  while (!r->failed && !take(r, "]")) {
    if (n == LM_PLAN_RANK) {
      r->failed = true;
      return n;
    }
    if (n)
      expect(r, ",");
    out[n++] = number(r);
  }
  return n;
}

// [64, 32 by tp]
static void shape(reader *r, lm_plan_param *x) {
  expect(r, "[");
  while (!r->failed && !take(r, "]")) {
    if (x->rank == LM_PLAN_RANK || (x->rank && !take(r, ","))) {
      r->failed = true;
      return;
    }
    x->shape[x->rank] = number(r);
    if (take(r, "by "))
      x->by[x->rank] = (uint8_t)group_named(r, ",]");
    x->rank++;
  }
}

// at pp 1
static void stage(reader *r, lm_plan_param *x) {
  if (!take(r, "at "))
    return;
  x->stages = (uint8_t)group_named(r, " ");
  int64_t at = number(r);
  r->failed |= !x->stages || at < 0;
  r->failed |= !r->failed && at >= r->p->mesh.axis[x->stages - 1].size;
  x->stage = r->failed ? 0 : (int)at;
}

static bool at_numbers(reader *r) {
  blanks(r);
  return r->at < r->end && *r->at == '[';
}

static bool at_name(reader *r) {
  blanks(r);
  return r->at < r->end && *r->at >= 'a' && *r->at <= 'z';
}

// A parameter of one dense piece has no shape in the text: it is read as one axis.
void lm_plan_param_read(reader *r, lm_plan_param *x, lm_arena_id arena) {
  *x = (lm_plan_param){.path = word(r, " "), .arena = (uint8_t)arena};
  if (arena == LM_ARENA_FIXED || (arena == LM_ARENA_PARAM && at_name(r)))
    x->dtype = (uint8_t)choice(r, lm_dtype_names, LM_REAL);
  r->param = x;
  r->cap_pieces = 0;
  r->pieces = NULL;
  bool dense = !at_numbers(r);
  int64_t offset = dense ? number(r) : 0;
  if (!dense)
    shape(r, x);
  expect(r, ":");
  x->elements = number(r);
  stage(r, x);
  if (!dense)
    return;
  lm_plan_piece *piece = LM_NEW(r->a, lm_plan_piece);
  *piece = (lm_plan_piece){.offset = offset, .size = {x->elements}, .stride = {1}};
  x->rank = 1;
  x->shape[0] = x->elements;
  x->pieces = piece;
  x->n_pieces = 1;
}

void lm_plan_piece_read(reader *r) {
  lm_plan_param *x = r->param;
  if (!x || (x->n_pieces && !r->pieces)) {
    r->failed = true;
    return;
  }
  lm_plan_piece *to = ADD(r, r->pieces, x->n_pieces, r->cap_pieces);
  *to = (lm_plan_piece){.offset = number(r)};
  x->pieces = r->pieces;
  r->failed |= numbers(r, to->first) != x->rank;
  r->failed |= numbers(r, to->size) != x->rank;
  expect(r, "by");
  r->failed |= numbers(r, to->stride) != x->rank;
  for (int d = 0; d < x->rank; d++)
    r->failed |= to->first[d] < 0 || to->size[d] < 1 || to->size[d] > x->shape[d] - to->first[d];
}
