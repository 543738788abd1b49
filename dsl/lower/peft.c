// peft.c - `map peft` of an adapter: its tensors in the files of Hugging Face's PEFT. Those of
// blocks at sites are in peft_block.c.
//
//   @a = ("lora_A.weight", [rank, i]); @b = ("lora_B.weight", [o, rank])
//
// PEFT names a tensor after the module whose weight is adapted, which `map hf` of the model names.
// A dim of a layout is an axis of the block, or a row: `i` and `o` have the axes that the weight's
// matrix has on the side of its inputs and of its outputs, in the order of that matrix. If several
// parameters are parts of one weight, each has its part of the rows, and the axes of the block
// follow each other: A is stacked, and B is block-diagonal.
#include <string.h>

#include "dsl/elab/edit.h"
#include "dsl/lower/internal.h"

// One side of a weight's matrix.
typedef struct side {
  int dim; // of the matrix
  int64_t size, offset;
} side;

// An adapter, and the part of a matrix that its parameter is.
typedef struct part {
  const el_param *param;
  const el_adapter *by;
  const lm_foreign_map *weight;
  const ast_member *map;
  lm_sym path;
  const char *module; // "model.layers.0.self_attn.q_proj"
  side in, out;
} part;

typedef struct parts {
  part *v;
  uint32_t n, cap;
} parts;

static bool refuse(lm_elab *e, const part *x, const char *why) {
  lm_diag *d = EL_ERR(e, x->by->by->at, E311, x->path, why);
  lm_diag_note(e->c, d, x->param->loc, "declared here");
  return false;
}

// ---- the matrix of a weight

static const lm_foreign_map *weight_of(const lm_lowered *l, lm_sym path, int *n) {
  const lm_foreign_map *found = NULL;
  *n = 0;
  for (uint32_t i = 0; i < l->n_maps; i++)
    if (!strcmp(l->maps[i].native, path)) {
      found = &l->maps[i];
      ++*n;
    }
  return found;
}

// The dim of the matrix that has axis k of the parameter; -1: any, since its size is 1.
static int dim_of(const lm_foreign_map *w, int k) {
  return w->size[k] == 1 ? -1 : w->stride_foreign[k] < w->shape_f[1];
}

// The side that has the axes of the row; *dim stays -1 if all have the size 1. False: both have.
static bool row_dim(const part *x, const el_row *row, int *dim) {
  *dim = -1;
  for (uint32_t i = 0; i < row->axes.n; i++) {
    int own = dim_of(x->weight, el_axes_find(&x->param->axes, row->axes.v[i]));
    if (own >= 0 && *dim >= 0 && own != *dim)
      return false;
    *dim = own >= 0 ? own : *dim;
  }
  return true;
}

static const el_row *row_find(const el_inst *adapter, const char *name) {
  const el_row *r = adapter->rows;
  while (r && strcmp(r->name, name))
    r = r->up;
  return r;
}

static side side_of(const lm_foreign_map *w, int dim) {
  int64_t columns = w->shape_f[1];
  return (side){
      .dim = dim,
      .size = w->shape_f[dim],
      .offset = dim ? w->offset_foreign % columns : w->offset_foreign / columns,
  };
}

static bool sides_find(lm_elab *e, part *x) {
  int in, out;
  if (row_find(x->by->inst, EL_BATCH_ROW)->axes.n)
    return refuse(e, x, "it has a matrix for each index of its batch axes");
  bool apart = row_dim(x, row_find(x->by->inst, "i"), &in);
  apart &= row_dim(x, row_find(x->by->inst, "o"), &out);
  if (in < 0)
    in = out < 0 ? 1 : !out;
  if (out < 0)
    out = !in;
  if (!apart || in == out)
    return refuse(e, x, "`map hf` merges axes of its inputs and of its outputs");
  x->in = side_of(x->weight, in);
  x->out = side_of(x->weight, out);
  return true;
}

static bool module_find(lm_elab *e, const lm_lowered *l, part *x) {
  static const char suffix[] = ".weight";
  int n;
  x->weight = weight_of(l, x->path, &n);
  if (n != 1)
    return refuse(e, x, n ? "it is several tensors in `map hf`" : "`map hf` does not name it");
  size_t length = strlen(x->weight->foreign);
  size_t tail = sizeof suffix - 1;
  if (length <= tail || strcmp(x->weight->foreign + length - tail, suffix))
    return refuse(e, x, "its name in `map hf` does not end with .weight");
  if (x->weight->rank_f != 2)
    return refuse(e, x, "its tensor in `map hf` is no matrix");
  x->module = lm_arena_strndup(e->a, x->weight->foreign, length - tail);
  return sides_find(e, x);
}

// ---- adapters

static void part_add(lm_elab *e, const el_inst *inst, const el_param *p, const lm_lowered *l,
                     parts *out) {
  part x = {
      .param = p,
      .by = p->adapters,
      .path = el_inst_path(e, inst, p->name),
  };
  if (p->adapters->next) {
    refuse(e, &x, "PEFT has one adapter for a weight");
    return;
  }
  x.map = lm_peft_map(e, x.by->inst, x.by->by);
  if (x.map && module_find(e, l, &x))
    LM_PUSH(e->a, out->v, out->n, out->cap) = x;
}

static void parts_collect(lm_elab *e, const el_inst *inst, const lm_lowered *l, parts *out) {
  for (uint32_t i = 0; i < inst->n_params; i++)
    if (inst->params[i].adapters)
      part_add(e, inst, &inst->params[i], l, out);
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one)
      parts_collect(e, inst->subs[i].one, l, out);
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      parts_collect(e, inst->subs[i].many->of[k], l, out);
  }
}

// ---- tensors

// The axis of the block that a dim of a layout names; NULL: a row.
static el_axis *own_axis(const el_inst *adapter, const ast_expr *dim) {
  for (el_axis_bind *b = adapter->axes; b; b = b->up)
    if (b->name == dim->text)
      return b->axis;
  return NULL;
}

static int64_t own_size(const el_inst *adapter, const ast_expr *dim) {
  int64_t n = 1;
  el_axis *a = own_axis(adapter, dim);
  return a && lm_size_whole(a->size, &n) ? n : 1;
}

// Dim `x` of a tensor: its size over all parts of the module, and the offset of this part. shared:
// the parts have one axis of the block instead of one behind the other.
static side dim_find(const parts *all, const part *of, const ast_expr *x, bool shared) {
  side s = {0};
  const el_inst *adapter = of->by->inst;
  if (!own_axis(adapter, x))
    return strcmp(x->text, "i") ? of->out : of->in;
  if (shared)
    return (side){.size = own_size(adapter, x)};
  for (uint32_t i = 0; i < all->n; i++) {
    if (strcmp(all->v[i].module, of->module))
      continue;
    s.offset = &all->v[i] == of ? s.size : s.offset;
    s.size += own_size(all->v[i].by->inst, x);
  }
  return s;
}

static bool layout_check(lm_elab *e, const el_inst *adapter, const ast_expr *layout) {
  for (uint32_t i = 0; i < layout->n_args; i++) {
    const ast_arg *a = &layout->args[i];
    if (a->kind != ARG_POS || a->expr->kind != EX_NAME)
      return EL_REJECT(e, a->loc, E0C0);
    if (!own_axis(adapter, a->expr) && !row_find(adapter, a->expr->text))
      return EL_REJECT(e, a->loc, E0D9, adapter->decl->name.text, a->expr->text);
  }
  return layout->n_args <= LM_ST_RANK || EL_REJECT(e, layout->loc, E0E2, LM_ST_RANK, LM_ST_RANK);
}

// Gives axis k of the adapter's parameter its stride: the one of its dim, if the axis is the
// block's, or else that times the stride of the axis in the weight's matrix. False: it has no dim.
static bool axis_place(const part *x, const ast_expr *dim, int64_t stride, el_axis *a,
                       int64_t *out) {
  el_axis *own = own_axis(x->by->inst, dim);
  if (own == a)
    *out = stride;
  if (own)
    return own == a;
  const el_row *row = row_find(x->by->inst, dim->text);
  if (el_axes_find(&row->axes, a) < 0)
    return false;
  const side *s = strcmp(dim->text, "i") ? &x->out : &x->in;
  int64_t within = x->weight->stride_foreign[el_axes_find(&x->param->axes, a)];
  *out = stride * (s->dim ? within : within / x->weight->shape_f[1]);
  return true;
}

static void strides_assign(const parts *all, const part *x, const el_param *p,
                           const ast_expr *layout, bool shared, lm_foreign_map *m) {
  int64_t stride = 1;
  m->rank_f = (int)layout->n_args;
  for (uint32_t d = layout->n_args; d-- > 0;) {
    const ast_expr *dim = layout->args[d].expr;
    side s = dim_find(all, x, dim, shared);
    m->shape_f[d] = s.size;
    m->offset_foreign += s.offset * stride;
    for (uint32_t k = 0; k < p->axes.n; k++)
      axis_place(x, dim, stride, p->axes.v[k], &m->stride_foreign[k]);
    stride *= s.size;
  }
}

// False: reported.
static bool native_strides(lm_elab *e, const part *x, const el_param *p, const ast_expr *layout,
                           lm_foreign_map *m) {
  int64_t stride = 1, unused;
  m->n = (int)p->axes.n;
  for (uint32_t k = p->axes.n; k-- > 0; stride *= m->size[k]) {
    int n = 0;
    for (uint32_t d = 0; d < layout->n_args; d++)
      n += axis_place(x, layout->args[d].expr, 1, p->axes.v[k], &unused);
    if (n != 1)
      return n ? EL_REJECT(e, layout->loc, E0DC, p->axes.v[k]->name, p->name)
               : EL_REJECT(e, layout->loc, E0DF, p->name, p->axes.v[k]->name);
    lm_size_whole(p->axes.v[k]->size, &m->size[k]);
    m->stride_native[k] = stride;
  }
  return true;
}

static bool tensor_add(lm_elab *e, const parts *all, const part *x, const el_param *p,
                       const ast_item *item, lm_lowered *out) {
  const ast_expr *entry = item->expr;
  bool named = entry->kind == EX_TUPLE && entry->n_args == 2 &&
               entry->args[0].expr->kind == EX_STRING && entry->args[1].expr->kind == EX_LIST;
  if (!named)
    return EL_REJECT(e, entry->loc, E0E1);
  const ast_expr *layout = entry->args[1].expr;
  const el_inst *adapter = x->by->inst;
  const char *suffix = entry->args[0].expr->text;
  lm_foreign_map m = {
      .native = el_inst_path(e, adapter, p->name),
      .foreign = lm_arena_printf(e->a, "%s.%s", x->module, suffix),
  };
  if (!layout_check(e, adapter, layout))
    return false;
  if (!native_strides(e, x, p, layout, &m))
    return false;
  lm_lowered_peft both = {
      .stacked = m,
      .shared = m,
  };
  strides_assign(all, x, p, layout, false, &both.stacked);
  strides_assign(all, x, p, layout, true, &both.shared);
  LM_PUSH(e->a, out->peft, out->n_peft, out->cap_peft) = both;
  return true;
}

// The line of the map for a parameter; NULL: there is none.
static const ast_item *item_of(lm_elab *e, const part *x, lm_sym param) {
  const ast_item *found = NULL;
  for (uint32_t i = 0; i < x->map->items.n; i++) {
    const ast_item *item = x->map->items.v[i];
    if (item->kind == IT_MAP && lm_pattern_match(e->c, item->sel->text, param, NULL))
      found = item;
  }
  return found;
}

static bool tensors_add(lm_elab *e, const parts *all, const part *x, lm_lowered *out) {
  const el_inst *adapter = x->by->inst;
  for (uint32_t i = 0; i < adapter->n_params; i++) {
    const ast_item *item = item_of(e, x, adapter->params[i].name);
    if (!item)
      return EL_REJECT(e, x->map->loc, E312, adapter->params[i].name);
    if (!tensor_add(e, all, x, &adapter->params[i], item, out))
      return false;
  }
  return !adapter->n_subs || EL_REJECT(e, x->map->loc, E312, adapter->subs[0].name);
}

// ---- parts of one weight

static int64_t elements_of(const int64_t *sizes, int n) {
  int64_t total = 1;
  for (int k = 0; k < n; k++)
    total *= sizes[k];
  return total;
}

static bool is_whole(const parts *all, const part *x) {
  int64_t covered = 0;
  for (uint32_t i = 0; i < all->n; i++)
    if (!strcmp(all->v[i].module, x->module))
      covered += elements_of(all->v[i].weight->size, all->v[i].weight->n);
  return covered == elements_of(x->weight->shape_f, 2);
}

// A tensor that has an axis of the block is zero where the weight has no adapter.
static bool has_zeros(const part *x, const ast_item *item) {
  const ast_expr *layout = item->expr->args[1].expr;
  for (uint32_t i = 0; i < layout->n_args; i++)
    if (own_axis(x->by->inst, layout->args[i].expr))
      return true;
  return false;
}

static bool part_check(lm_elab *e, const parts *all, const part *x) {
  for (uint32_t i = 0; i < all->n; i++) {
    const part *y = &all->v[i];
    if (strcmp(x->module, y->module) || x->by->inst->decl == y->by->inst->decl)
      continue;
    lm_diag *d = EL_ERR(e, x->by->by->at, E313, x->path, y->path, x->module);
    lm_diag_note(e->c, d, y->by->by->at, "%s has this one", y->path);
    return false;
  }
  for (uint32_t i = 0; i < x->by->inst->n_params; i++)
    if (!is_whole(all, x) && !has_zeros(x, item_of(e, x, x->by->inst->params[i].name)))
      return refuse(e, x, "other parts of its tensor have no adapter");
  return true;
}

static void adapter_add(lm_elab *e, const part *x, lm_lowered *out) {
  lm_lowered_adapter *a = &LM_PUSH(e->a, out->adapters, out->n_adapters, out->cap_adapters);
  *a = (lm_lowered_adapter){
      .param = x->path, .module = x->module, .at = x->by->by->at, .transposed = x->in.dim == 0};
  for (uint32_t i = 0; i < x->map->items.n; i++) {
    const ast_item *item = x->map->items.v[i];
    if (lm_item_is_config(item))
      lm_lower_config(e, x->by->inst, item, &a->config);
    else if (item->kind != IT_MAP && item->kind != IT_ERROR)
      EL_ERR(e, item->loc, E0E5);
  }
}

void lm_lower_peft(lm_elab *e, el_inst *model, lm_lowered *out, lm_loc at) {
  uint32_t before = e->c->n_errors;
  parts all = {0};
  parts_collect(e, model, out, &all);
  lm_lower_peft_blocks(e, model, out);
  if (!all.n && !out->n_adapters && e->c->n_errors == before)
    EL_ERR(e, at, E314, model->decl->name.text);
  for (uint32_t i = 0; i < all.n && e->c->n_errors == before; i++)
    if (tensors_add(e, &all, &all.v[i], out) && part_check(e, &all, &all.v[i]))
      adapter_add(e, &all.v[i], out);
}
