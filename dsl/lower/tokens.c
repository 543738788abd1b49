// tokens.c - the logits of a model, and metrics of an evaluation that are independent of the
// model's loss: the cross-entropy of the next token.
//
//   xent.sum = Σ w xent(apply(tok, pos, seg), next)      xent.weight = Σ w
//
// Perplexity and bits per byte are computed from these sums. The loss may contain other terms, such
// as a load-balancing loss, a z-loss, label smoothing or further heads. The logits are those that
// the loss has computed (dsl/elab/memo.c, and pass cse).
#include "dsl/lower/internal.h"

lm_sym lm_lower_output(const lm_elab *e, const el_inst *model) {
  lm_sym encode = LM_SYM(e->c, "encode");
  lm_sym apply = LM_SYM(e->c, "apply");
  return !el_method_find(model, apply) && el_method_find(model, encode) ? encode : apply;
}

// True for logits of each position; the result of `encode` has any axes behind that of rows.
static bool is_output(const lm_entry *x, const el_val *r, bool causal) {
  bool real = r->k == V_TENSOR && (r->kind == K_REAL || r->kind == K_F32);
  if (!real || !r->axes.n || r->axes.v[0] != x->b)
    return false;
  return !causal || (r->axes.n == 3 && r->axes.v[1] == x->t);
}

el_val lm_lower_logits(lm_elab *e, el_inst *model, const lm_entry *x, const lm_lower_options *o) {
  el_ref self = {.inst = model};
  lm_sym name = lm_lower_output(e, model);
  const ast_member *method = el_method_find(model, name);
  bool causal = name == LM_SYM(e->c, "apply");
  lm_column_call call = {x->f, method, x->b, x->t, x->cols, LM_COLUMN_SEG + 1, o->columns};
  el_val *args = LM_NEW_N(e->a, el_val, method->sig.n_params + 1);
  uint32_t n;
  if (!lm_column_args(e, model, &call, args, &n))
    return (el_val){.k = V_ERROR};
  bool few = causal && n < call.n_first; // the call reports that parameters are missing
  el_val r =
      el_invoke_method(e, &self, name, few ? x->cols : args, few ? call.n_first : n, (lm_loc){0});
  if (r.k == V_ERROR || is_output(x, &r, causal))
    return r;
  return EL_FAIL(e, method->loc, E0A2, name,
                 causal ? "the logits, real[b, t, vocab]"
                        : "a real tensor over the rows, real[b, …]",
                 el_show(e, &r));
}

static lm_value *sum_all(lm_elab *e, lm_value *v) {
  return lm_emit_reduce(&e->b, LM_OP_SUM, v, v->type.axis, v->type.rank);
}

void lm_lower_tokens_check(lm_elab *e, const lm_recipe *r, const el_inst *model) {
  if (el_method_find(model, LM_SYM(e->c, "apply")))
    return;
  for (uint32_t i = 0; i < r->n_evals; i++) {
    const lm_recipe_eval *x = &r->evals[i];
    if (!x->metrics[LM_RECIPE_METRIC_BITS_PER_BYTE] && !x->metrics[LM_RECIPE_METRIC_PERPLEXITY])
      continue;
    const char *what = x->metrics[LM_RECIPE_METRIC_PERPLEXITY] ? "perplexity" : "bits_per_byte";
    lm_diag *d = EL_ERR(e, x->loc, E0CE, what, model->decl->name.text);
    lm_diag_note(e->c, d, model->decl->name.loc, "declared here");
    lm_diag_help(e->c, d,
                 "apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] gives "
                 "the logits; metrics = [loss] needs none");
  }
}

void lm_lower_tokens(lm_elab *e, el_inst *model, const lm_entry *x, const lm_lower_options *o,
                     lm_value **out, lm_sym *names, uint32_t *n) {
  const el_val *columns = x->cols;
  lm_decl_ref xent = lm_program_find(e->prog, e->prog->nn, LM_SYM(e->c, "xent"));
  if (!el_method_find(model, LM_SYM(e->c, "apply")))
    return;
  uint32_t emits = e->n_emits;
  el_val logits = lm_lower_logits(e, model, x, o);
  e->n_emits = emits; // metrics are emitted by the loss only
  if (logits.k == V_ERROR)
    return;
  el_val each = el_invoke_fn(e, xent, (el_val[]){logits, columns[LM_COLUMN_NEXT]}, 2, (lm_loc){0});
  if (each.k == V_ERROR)
    return;
  names[*n] = lm_port_name(e, LM_PORT_XENT_SUM);
  out[(*n)++] = sum_all(e, lm_emit2(&e->b, LM_OP_MUL, each.v, columns[LM_COLUMN_W].v));
  names[*n] = lm_port_name(e, LM_PORT_XENT_WEIGHT);
  out[(*n)++] = sum_all(e, columns[LM_COLUMN_W].v);
}
