// peft_block.c - `map peft` of a block at a site: its parts of tensors that PEFT has for the whole
// model.
//
//   @{key,value} = ("prompt_embeddings", [n, (g, e) + (g, e)])
//
// Blocks that name the same tensor follow each other along its last dim, in the order of the
// instances of the model.
#include <string.h>

#include "dsl/elab/edit.h"
#include "dsl/lower/internal.h"

const ast_member *lm_peft_map(lm_elab *e, const el_inst *inst, const el_edit *by) {
  const ast_decl *block = inst->decl;
  for (uint32_t i = 0; i < block->members.n; i++) {
    const ast_member *m = block->members.v[i];
    if (m->kind == MB_MAP && !strcmp(m->names.v[0].text, "peft"))
      return m;
  }
  lm_diag *d = EL_ERR(e, by->at, E310, block->name.text);
  lm_diag_note(e->c, d, block->name.loc, "declared here");
  return NULL;
}

typedef struct blocks {
  lm_elab *e;
  const el_inst *model;
  lm_lowered *out;
  const el_inserted **of; // of each tensor from `first` on
  uint32_t first, n, cap;
} blocks;

// The item for a parameter, and the alternative of its pattern; NULL: there is none.
static const ast_item *item_of(const blocks *b, const ast_member *map, lm_sym param, int *part,
                               int *n_parts) {
  for (uint32_t i = map->items.n; i-- > 0;) {
    const ast_item *item = map->items.v[i];
    if (item->kind != IT_MAP)
      continue;
    const char **alts = lm_pattern_expand(b->e->c, item->sel->text, n_parts);
    for (*part = 0; *part < *n_parts; ++*part)
      if (lm_pattern_match(b->e->c, alts[*part], param, NULL))
        return item;
  }
  return NULL;
}

static bool param_add(blocks *b, const el_inserted *x, const ast_member *map, const el_param *p) {
  int part, n_parts;
  lm_lowered_peft tensor = {.of_block = true};
  const ast_item *item = item_of(b, map, p->name, &part, &n_parts);
  if (!item)
    return EL_REJECT(b->e, map->loc, E312, p->name);
  if (!lm_map_of_param(b->e, x->inst, p, item, part, n_parts, &tensor.stacked))
    return false;
  LM_PUSH(b->e->a, b->of, b->n, b->cap) = x;
  LM_PUSH(b->e->a, b->out->peft, b->out->n_peft, b->out->cap_peft) = tensor;
  return true;
}

// The value of an argument of the instance's `apply`; NULL: it has none, or is not called.
static const el_site *argument_of(const blocks *b, const el_inst *inst, uint32_t i) {
  const ast_member *apply = el_method_find(inst, LM_SYM(b->e->c, "apply"));
  lm_sym name = apply && i < apply->sig.n_params ? apply->sig.params[i].name.text : NULL;
  const el_site *s = b->e->sites;
  while (s && (s->path != inst->path || s->name != name))
    s = s->next;
  return name ? s : NULL;
}

static bool is_tokens(const blocks *b, const lm_value *v) {
  const el_site *tokens = argument_of(b, b->model, 0);
  return tokens && v == tokens->args[0].v;
}

// True if the value is rows of a parameter that the tokens select.
static bool is_embeddings(const blocks *b, const el_site *s) {
  const lm_op *op = s->fn ? NULL : s->args[0].v->def;
  const lm_op *table = op && op->code == LM_OP_GATHER ? op->in[0]->def : NULL;
  return table && table->code == LM_OP_PARAM && is_tokens(b, op->in[1]);
}

// True if the value is the second argument of a model, whose first one is the tokens.
static bool is_positions(const blocks *b, const el_inst *inst, const el_site *s) {
  const el_site *first = argument_of(b, inst, 0);
  return s == argument_of(b, inst, 1) && is_tokens(b, first->args[0].v);
}

static bool block_add(blocks *b, const el_inst *at, const el_inserted *x) {
  const ast_member *map = lm_peft_map(b->e, x->inst, x->by);
  if (!map)
    return false;
  for (uint32_t i = 0; i < x->inst->n_params; i++)
    if (!param_add(b, x, map, &x->inst->params[i]))
      return false;
  if (x->inst->n_subs)
    return EL_REJECT(b->e, map->loc, E312, x->inst->subs[0].name);
  lm_lowered_adapter *a =
      &LM_PUSH(b->e->a, b->out->adapters, b->out->n_adapters, b->out->cap_adapters);
  *a = (lm_lowered_adapter){
      .param = el_inst_path(b->e, x->inst, LM_SYM(b->e->c, "")),
      .at = x->by->at,
      .of_embeddings = is_embeddings(b, x->site),
      .of_positions = is_positions(b, at, x->site),
  };
  for (uint32_t i = 0; i < map->items.n; i++)
    if (lm_item_is_config(map->items.v[i]))
      lm_lower_config(b->e, x->inst, map->items.v[i], &a->config);
  return true;
}

static bool collect(blocks *b, const el_inst *inst) {
  for (const el_inserted *x = inst->inserted; x; x = x->next)
    if (!block_add(b, inst, x))
      return false;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one && !collect(b, inst->subs[i].one))
      return false;
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      if (!collect(b, inst->subs[i].many->of[k]))
        return false;
  }
  return true;
}

static lm_foreign_map *tensor_of(const blocks *b, uint32_t i) {
  return &b->out->peft[b->first + i].stacked;
}

static int64_t columns_of(const lm_foreign_map *m) {
  return m->rank_f ? m->shape_f[m->rank_f - 1] : 1;
}

// The columns of the blocks before tensor `end`, without those of the same block, in the tensor of
// this name.
static int64_t columns_before(const blocks *b, uint32_t end, const char *name) {
  const el_inserted *own = end < b->n ? b->of[end] : NULL, *last = NULL;
  int64_t n = 0;
  for (uint32_t i = 0; i < end; i++) {
    if (strcmp(tensor_of(b, i)->foreign, name) || b->of[i] == own || b->of[i] == last)
      continue;
    n += columns_of(tensor_of(b, i));
    last = b->of[i];
  }
  return n;
}

// The offset of an element where each row has `total` columns instead of `own`.
static int64_t with_columns(int64_t offset, int64_t own, int64_t total) {
  return offset / own * total + offset % own;
}

static void stack(const blocks *b) {
  int64_t *total = LM_NEW_N(b->e->a, int64_t, b->n + 1);
  int64_t *before = LM_NEW_N(b->e->a, int64_t, b->n + 1);
  for (uint32_t i = 0; i < b->n; i++) {
    total[i] = columns_before(b, b->n, tensor_of(b, i)->foreign);
    before[i] = columns_before(b, i, tensor_of(b, i)->foreign);
  }
  for (uint32_t i = 0; i < b->n; i++) {
    lm_foreign_map *m = tensor_of(b, i);
    int64_t own = columns_of(m);
    for (int k = 0; k < m->n; k++)
      m->stride_foreign[k] = with_columns(m->stride_foreign[k], own, total[i]);
    m->offset_foreign = with_columns(m->offset_foreign, own, total[i]) + before[i];
    if (m->rank_f)
      m->shape_f[m->rank_f - 1] = total[i];
    b->out->peft[b->first + i].shared = *m;
  }
}

void lm_lower_peft_blocks(lm_elab *e, el_inst *model, lm_lowered *out) {
  blocks b = {
      .e = e,
      .model = model,
      .out = out,
      .first = out->n_peft,
  };
  if (collect(&b, model))
    stack(&b);
}
