// bare.h - modules whose numbers are all arguments and results, so that they can be computed twice
// and compared.
#ifndef LM_TESTS_ATTEND_BARE_H
#define LM_TESTS_ATTEND_BARE_H
#include "tests/codegen/run.h"

// Replaces parameters by arguments, and accumulated gradients into results of @micro.
typedef struct bare {
  lm_module *m;
  lm_func *f;
  lm_value **map;
  uint32_t n_map;
  lm_value *back[32];
  lm_sym names[32];
  uint32_t n;
} bare;

static inline void strip(lm_op *op, void *user) {
  bare *b = user;
  if (op->code == LM_OP_PARAM) {
    lm_value *arg = lm_arg_add(b->m, b->f->body, op->out[0]->type, op->attr.sym);
    b->map[op->out[0]->id] = arg;
    lm_op_remove(op);
  } else if (op->code == LM_OP_ACCUM) {
    b->names[b->n] = lm_arena_printf(b->m->arena, "d%s", op->attr.sym);
    b->back[b->n++] = op->in[0];
    lm_op_remove(op);
  }
}

static inline void bare_func(lm_module *m, lm_func *f) {
  bare b = {.m = m, .f = f, .n_map = m->n_values, .map = lm_calloc(m->n_values + 1, sizeof *b.map)};
  lm_region_walk(f->body, strip, &b);
  lm_op *end = f->body->last;
  lm_value **in = LM_NEW_N(m->arena, lm_value *, b.n + 1);
  f->out_names = LM_NEW_N(m->arena, lm_sym, b.n + 1);
  in[0] = end->in[0];
  f->out_names[0] = LM_SYM(m->ctx, "sum");
  for (uint32_t i = 0; i < b.n; i++) {
    in[i + 1] = b.back[i];
    f->out_names[i + 1] = LM_SYM(m->ctx, b.names[i]);
  }
  end->in = in;
  end->n_in = f->n_out = b.n + 1;
  lm_func_substitute(f, b.map, b.n_map);
  lm_free(b.map);
}

// The module as text, without parameters.
static inline char *bare_text(lm_ctx *c, lm_module *m) {
  for (lm_func *f = m->funcs; f; f = f->next)
    bare_func(m, f);
  m->n_globals = 0;
  lm_buf b = {0};
  lm_module_print(m, &b);
  char *text = lm_arena_strndup(c->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}
#endif
