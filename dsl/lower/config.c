// config.c - `config { … }` of a model's `map hf`: the entries of the other project's config.json.
//
//   config { model_type = "llama"; hidden_size = d; rope_scaling.factor = factor
//            sliding_window = if w == 0 then null else w }
// A key may be inside of a table of the file (`rope_scaling.factor`). A value is a string, true,
// false, null, a list of values, a sum of lists, a number computed from the model's parameters and
// dims, or an `if` over them. Export writes the keys with these values. Import sets a parameter of
// the model from two forms: `key = NAME`, and `key = if NAME == VALUE then null else NAME`, where
// null sets VALUE.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsl/elab/source.h"
#include "dsl/lower/internal.h"

enum {
  MAX_DEPTH = 16
};

static void number_print(lm_buf *b, double x) {
  if (x == floor(x) && fabs(x) < 0x1p53) { // readers expect a size without a decimal point
    lm_buf_printf(b, "%lld", (long long)x);
    return;
  }
  lm_buf_number(b, x);
}

static bool value_print(lm_elab *e, const ast_expr *x, int depth, lm_buf *b);

// The branch of an `if` that its condition selects. NULL: reported. The branches may be null or
// lists, which are not expressions.
static const ast_expr *selected(lm_elab *e, const ast_expr *x) {
  el_val c = el_eval(e, x->c);
  if (c.k == V_BOOL && c.known)
    return c.num != 0 ? x->a : x->b;
  if (c.k != V_ERROR)
    EL_ERR(e, x->loc, E043, el_show(e, &c));
  return NULL;
}

static bool is_list(const ast_expr *x, int depth) {
  bool sum = x->kind == EX_BINARY && x->op == OP_ADD;
  return x->kind == EX_LIST || ((sum || x->kind == EX_IF) && depth < MAX_DEPTH &&
                                is_list(x->a, depth + 1) && is_list(x->b, depth + 1));
}

// The elements of a list, which a `+` joins to those before it. *n: their number.
static bool elements_print(lm_elab *e, const ast_expr *x, int depth, uint32_t *n, lm_buf *b) {
  if (x->kind == EX_BINARY)
    return elements_print(e, x->a, depth, n, b) && elements_print(e, x->b, depth, n, b);
  if (x->kind == EX_IF) {
    const ast_expr *branch = selected(e, x);
    return branch && elements_print(e, branch, depth, n, b);
  }
  for (uint32_t i = 0; i < x->n_args; i++) {
    lm_buf_puts(b, (*n)++ ? ", " : "");
    if (x->args[i].kind != ARG_POS || depth == MAX_DEPTH)
      return EL_REJECT(e, x->args[i].loc, E0C4);
    if (!value_print(e, x->args[i].expr, depth + 1, b))
      return false;
  }
  return true;
}

static bool list_print(lm_elab *e, const ast_expr *x, int depth, lm_buf *b) {
  uint32_t n = 0;
  lm_buf_puts(b, "[");
  bool ok = elements_print(e, x, depth, &n, b);
  lm_buf_puts(b, "]");
  return ok;
}

static bool if_print(lm_elab *e, const ast_expr *x, int depth, lm_buf *b) {
  const ast_expr *branch = selected(e, x);
  return branch && value_print(e, branch, depth + 1, b);
}

static bool value_print(lm_elab *e, const ast_expr *x, int depth, lm_buf *b) {
  double number;
  if (is_list(x, depth))
    return list_print(e, x, depth, b);
  if (x->kind == EX_IF && depth < MAX_DEPTH)
    return if_print(e, x, depth, b);
  if (x->kind == EX_NAME && x->text == LM_SYM(e->c, "null")) {
    lm_buf_puts(b, "null");
    return true;
  }
  if (x->kind == EX_NAME && x->text == LM_SYM(e->c, "true")) {
    lm_buf_puts(b, "true");
    return true;
  }
  if (x->kind == EX_NAME && x->text == LM_SYM(e->c, "false")) {
    lm_buf_puts(b, "false");
    return true;
  }
  el_val v = el_eval(e, x);
  if (v.k == V_STRING)
    lm_buf_json(b, v.text);
  else if (v.k == V_BOOL && v.known)
    lm_buf_puts(b, v.num != 0 ? "true" : "false");
  else if (v.k == V_NUM && el_number_value(&v, &number) && isfinite(number))
    number_print(b, number);
  else if (v.k != V_ERROR)
    EL_ERR(e, x->loc, E0CB, el_show(e, &v));
  return v.k != V_ERROR && b->n;
}

static lm_sym config_key(lm_ctx *c, const ast_item *item) {
  const char *first = item->path.v[0].text;
  return item->path.n == 1
             ? first
             : LM_SYM(c, lm_arena_printf(c->arena, "%s.%s", first, item->path.v[1].text));
}

static void entry_add(lm_elab *e, const ast_item *item, lm_lowered_configs *out) {
  lm_sym key = config_key(e->c, item);
  lm_buf text = {0};
  for (uint32_t i = 0; i < out->n; i++)
    if (out->v[i].key == key) {
      EL_ERR(e, item->loc, E0CC, key);
      return;
    }
  if (value_print(e, item->expr, 0, &text))
    LM_PUSH(e->a, out->v, out->n, out->cap) =
        (lm_lowered_config){key, lm_arena_strndup(e->a, text.p, text.n)};
  lm_buf_free(&text);
}

// Enters the scope of the instance's methods.
static void scope_enter(lm_elab *e, el_inst *inst, el_ref *self, el_frame *frame) {
  *self = (el_ref){.inst = inst};
  *frame = (el_frame){
      .up = e->frame, .what = "config", .file = inst->file, .self = self, .real = K_REAL};
  e->frame = frame;
}

void lm_lower_config(lm_elab *e, el_inst *inst, const ast_item *section, lm_lowered_configs *out) {
  el_ref self;
  el_frame frame;
  scope_enter(e, inst, &self, &frame);
  for (uint32_t i = 0; i < section->items.n; i++) {
    const ast_item *item = section->items.v[i];
    if (item->kind == IT_SET && item->path.n <= 2)
      entry_add(e, item, out);
    else if (item->kind != IT_ERROR)
      EL_ERR(e, item->loc, E0CD);
  }
  e->frame = frame.up;
}

static const ast_member *map_find(const el_inst *inst) {
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    if (m->kind == MB_MAP && !strcmp(m->names.v[0].text, "hf"))
      return m;
  }
  return NULL;
}

static bool has_config(const el_inst *inst) {
  const ast_member *m = map_find(inst);
  for (uint32_t i = 0; m && i < m->items.n; i++)
    if (lm_item_is_config(m->items.v[i]))
      return true;
  return false;
}

el_inst *lm_map_whole(lm_elab *e, el_inst *model, lm_lowered *out) {
  el_inst *found = NULL;
  lm_sym name = NULL;
  if (map_find(model))
    return model;
  for (uint32_t i = 0; i < model->n_subs; i++) {
    el_inst *sub = model->subs[i].one;
    const el_source *s = sub ? el_source_of(sub) : NULL;
    if (!sub || !has_config(sub) || (s && !s->trained))
      continue;
    if (found) {
      out->wholes = lm_arena_printf(e->a, "%s and %s", name, model->subs[i].name);
      return model;
    }
    found = sub;
    name = model->subs[i].name;
  }
  return found ? found : model;
}

void lm_lower_args(lm_elab *e, el_inst *model, lm_lowered *out) {
  const ast_sig *sig = &model->decl->sig;
  for (uint32_t i = 0; i < sig->n_params; i++)
    for (const el_bind *b = el_names_find(&model->vals, sig->params[i].name.text); b;
         b = b->hides) {
      double number;
      if (!el_number_value(&b->val, &number))
        continue;
      LM_PUSH(e->a, out->args, out->n_args, out->cap_args) = (lm_lowered_arg){b->name, number};
      break;
    }
}

// ---- inversion, without lowering

static bool has_param(const ast_decl *d, lm_sym name) {
  for (uint32_t i = 0; i < d->sig.n_params; i++)
    if (d->sig.params[i].name.text == name)
      return true;
  return false;
}

static bool is_name(const ast_expr *x, lm_sym name) {
  return x->kind == EX_NAME && x->text == name;
}

static const char *written(lm_ctx *c, const ast_expr *x) {
  lm_buf b = {0};
  lm_expr_write(x, &b);
  const char *text = lm_arena_strndup(c->arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// The name of `NAME` or of `if NAME == VALUE then null else NAME`; NULL for other forms.
// *out_absent: the text of VALUE, or NULL.
static lm_sym inverted(lm_ctx *c, const ast_expr *x, const char **out_absent) {
  *out_absent = NULL;
  if (x->kind == EX_NAME)
    return x->text;
  if (x->kind != EX_IF || !is_name(x->a, LM_SYM(c, "null")) || x->b->kind != EX_NAME)
    return NULL;
  const ast_expr *test = x->c;
  if (test->kind != EX_BINARY || test->op != OP_EQ || !is_name(test->a, x->b->text))
    return NULL;
  *out_absent = written(c, test->b);
  return x->b->text;
}

static void params_add(lm_ctx *c, const ast_decl *model, const ast_item *section,
                       lm_config_params *out) {
  for (uint32_t i = 0; i < section->items.n; i++) {
    const ast_item *item = section->items.v[i];
    const char *absent;
    lm_sym param =
        item->kind == IT_SET && item->path.n <= 2 ? inverted(c, item->expr, &absent) : NULL;
    if (!param || !has_param(model, param))
      continue;
    LM_PUSH(c->arena, out->v, out->n, out->cap) =
        (lm_config_param){config_key(c, item), param, absent};
  }
}

static bool is_hf_map(lm_ctx *c, const ast_member *m) {
  return m->kind == MB_MAP && m->names.v[0].text == LM_SYM(c, "hf");
}

bool lm_model_has_map(lm_ctx *c, const ast_decl *model) {
  for (uint32_t i = 0; i < model->members.n; i++)
    if (is_hf_map(c, model->members.v[i]))
      return true;
  return false;
}

lm_config_params lm_config_params_of(lm_ctx *c, const ast_decl *model) {
  lm_config_params out = {0};
  for (uint32_t i = 0; i < model->members.n; i++) {
    const ast_member *m = model->members.v[i];
    if (!is_hf_map(c, m))
      continue;
    for (uint32_t k = 0; k < m->items.n; k++)
      if (lm_item_is_config(m->items.v[k]))
        params_add(c, model, m->items.v[k], &out);
  }
  return out;
}

bool lm_item_is_config(const ast_item *item) {
  return item->kind == IT_SECTION && item->path.n == 1 && !strcmp(item->path.v[0].text, "config");
}
