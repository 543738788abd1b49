// shard_begin.c - initial values that depend on other parameters, on the stages of a pipeline.
//
// before: mesh pp = 2 rows pipeline 4                                  layers = 6
//         func @begin() -> (begin.layers.0.m: f32[e], …, begin.layers.5.m: f32[e]) {
//           …
//           %w = param @layers.w[%zero * 1 + 5] : f32[d, e]   %m = norm %w … }
// after:  %w = param @layers.w[%zero * 1 + 2] : f32[d, e]              layers@pp = 3
//
// All ranks run the same function, and each has the parameters of some instances: the result of
// instance 5 is computed from the third instance that a rank has, which is instance 5 on the second
// stage. The runtime stores a result in the memory of the instance that the rank has, so the
// results of the others are not used. Declines: a value that depends on an instance of another
// stage is an error. Cost: none; results of other stages are computed from parameters of this one.
#include <string.h>
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

enum {
  NONE = -1 // depends on no instance
};

typedef struct beginning {
  lm_shard *s;
  int *stage; // by value id: the one whose instances the value depends on
  bool ok;
} beginning;

static void refuse(beginning *b, lm_loc at) {
  const lm_mesh_axis *by = b->s->by;
  if (b->ok)
    LM_REPORT(b->s->m->ctx, at.line ? at : by->loc, E915, by->name,
              "initial values that depend on another block");
  b->ok = false;
}

static int joined(beginning *b, const lm_op *op, int x, int y) {
  if (x != NONE && y != NONE && x != y)
    refuse(b, op->loc);
  return x == NONE ? y : x;
}

// The number among the stacked axes of g of the one that the stages divide; NONE: none.
static int divided(const lm_shard *s, const lm_global *g) {
  for (int i = 0; i < g->n_stack; i++)
    if (s->stacks[g->type.axis[i]])
      return i;
  return NONE;
}

static int64_t instances(const lm_shard *s, const lm_global *g, int i) {
  return lm_axis_size(s->m, g->type.axis[i]) / s->by->size;
}

// A read of one instance becomes one of the instance that this rank has instead.
static int read_move(beginning *b, lm_op *op) {
  const lm_global *g = lm_global_find(b->s->m, op->attr.sym);
  int i = g ? divided(b->s, g) : NONE;
  if (i == NONE)
    return NONE;
  const lm_op *index = i < op->attr.n_imm / 2 ? op->in[i]->def : NULL;
  if (!index || index->code != LM_OP_CONST) {
    refuse(b, op->loc);
    return NONE;
  }
  int64_t own = instances(b->s, g, i), *imm = &op->attr.imm[2 * i];
  int64_t instance = imm[0] + imm[1] * (int64_t)index->attr.num;
  imm[0] += instance % own - instance;
  return (int)(instance / own);
}

static int region_move(beginning *b, lm_region *r) {
  int all = NONE;
  for (lm_op *op = r->first; op && op->code != LM_OP_RETURN; op = op->next) {
    bool reads = lm_op_info_indexed(lm_op_info_of(op));
    int stage = reads ? read_move(b, op) : NONE;
    for (uint32_t i = 0; i < op->n_in; i++)
      stage = joined(b, op, stage, b->stage[op->in[i]->id]);
    if (op->body)
      stage = joined(b, op, stage, region_move(b, op->body));
    for (uint32_t i = 0; i < op->n_out; i++)
      b->stage[op->out[i]->id] = stage;
    all = r->owner ? joined(b, op, all, stage) : NONE;
  }
  return all;
}

// The stage that has the parameter of a path; NONE: all have it.
static int stage_of(const lm_shard *s, lm_sym path) {
  for (uint32_t k = 0; k < s->m->n_globals; k++) {
    const lm_global *g = &s->m->globals[k];
    int i = divided(s, g);
    int64_t inner = 1;
    for (int j = i + 1; i != NONE && j < g->n_stack; j++)
      inner *= lm_axis_size(s->m, g->type.axis[j]);
    for (int64_t n = 0; i != NONE && n < g->n_paths; n++)
      if (g->paths[n] == path) {
        int64_t instance = n / inner % lm_axis_size(s->m, g->type.axis[i]);
        return (int)(instance / instances(s, g, i));
      }
  }
  return NONE;
}

bool lm_shard_begin(lm_shard *s, lm_func *f) {
  static const char prefix[] = "begin.";
  beginning b = {
      .s = s,
      .stage = lm_calloc((size_t)s->m->n_values + 1, sizeof(int)),
      .ok = true,
  };
  for (uint32_t i = 0; i < s->m->n_values; i++)
    b.stage[i] = NONE;
  region_move(&b, f->body);
  const lm_op *end = f->body->last;
  for (uint32_t i = 0; i < end->n_in; i++) {
    int stage = b.stage[end->in[i]->id];
    lm_sym path = LM_SYM(s->m->ctx, f->out_names[i] + strlen(prefix));
    if (stage != NONE && stage != stage_of(s, path))
      refuse(&b, end->in[i]->def ? end->in[i]->def->loc : end->loc);
  }
  lm_free(b.stage);
  return b.ok;
}
