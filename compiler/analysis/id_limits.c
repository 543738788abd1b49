// id_limits.c - see id_limits.h.
#include "compiler/analysis/id_limits.h"

#include <string.h>

#include "compiler/ops/interface.h"

typedef struct {
  const lm_func *func;
  lm_limits *out;
} finder;

static bool is_number(const lm_value *v) {
  return v->def && v->def->code == LM_OP_CONST;
}

static const lm_value *unmoved(const lm_value *v) {
  while (v->def && lm_op_has(v->def, LM_T_MOVE))
    v = v->def->in[0];
  return v;
}

// The region argument that v is, through data movement and sums with numbers, which *more is
// increased by; NULL if v is computed otherwise.
static const lm_value *source_of(const lm_value *v, int64_t *more) {
  for (v = unmoved(v); v->def; v = unmoved(v)) {
    const lm_op *add = v->def;
    bool behind = add->code == LM_OP_ADD && is_number(unmoved(add->in[1]));
    bool before = add->code == LM_OP_ADD && is_number(unmoved(add->in[0]));
    if (!behind && !before)
      return NULL;
    *more += (int64_t)unmoved(add->in[behind])->def->attr.num;
    v = add->in[!behind];
  }
  return v;
}

static int64_t *further_limit(const finder *f, const char *name) {
  lm_limits *x = f->out;
  for (uint32_t i = 0; i < x->n_more; i++)
    if (!strcmp(x->more[i].name, name))
      return &x->more[i].limit;
  LM_PUSH(f->func->module->arena, x->more, x->n_more, x->cap_more) =
      (lm_column_limit){name, INT64_MAX};
  return &x->more[x->n_more - 1].limit;
}

static int64_t *limit_of(const finder *f, const lm_value *v, int64_t *more) {
  const lm_value *arg = source_of(v, more);
  if (!arg || arg->region != f->func->body || !arg->name)
    return NULL;
  if (lm_column_name_of(arg->name))
    return further_limit(f, lm_column_name_of(arg->name));
  switch (lm_column_find(arg->name)) {
  case LM_COLUMN_TOK: return &f->out->tok;
  case LM_COLUMN_POS: return &f->out->pos;
  case LM_COLUMN_NEXT: return &f->out->next;
  default: return NULL;
  }
}

static void id_axis_add(const finder *f, lm_axis axis) {
  lm_limits *x = f->out;
  lm_module *m = f->func->module;
  if (!lm_limits_index(x, m, axis))
    LM_PUSH(m->arena, x->ids, x->n_ids, x->cap_ids) = axis;
}

static void id_limits_visit(lm_op *op, void *user) {
  finder *f = user;
  if (op->code != LM_OP_GATHER)
    return;
  int64_t more = 0;
  int64_t *limit = limit_of(f, op->in[1], &more);
  int64_t size = 1;
  for (int i = 0; i < op->attr.n_axes; i++)
    size *= lm_axis_size(f->func->module, op->attr.axes[i]);
  if (limit && size - more < *limit)
    *limit = size - more;
  bool of_tokens = limit && (limit == &f->out->tok || limit == &f->out->next);
  for (int i = 0; of_tokens && i < op->attr.n_axes; i++)
    id_axis_add(f, op->attr.axes[i]);
}

bool lm_limits_index(const lm_limits *x, const lm_module *m, lm_axis axis) {
  for (; axis; axis = m->axes[axis].whole)
    for (uint32_t i = 0; i < x->n_ids; i++)
      if (x->ids[i] == axis)
        return true;
  return false;
}

lm_limits lm_limits_find(const lm_module *m) {
  lm_limits out = {
      .tok = INT64_MAX,
      .pos = INT64_MAX,
      .next = INT64_MAX,
  };
  for (lm_func *func = m->funcs; func; func = func->next)
    lm_region_walk(func->body, id_limits_visit, &(finder){func, &out});
  return out;
}
