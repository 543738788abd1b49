// recipe_precision.c - reads the section `precision`.
#include <string.h>

#include "dsl/recipe/recipe_read.h"

static lm_recipe_fp8 read_fp8(const lm_reader *d, const ast_expr *matmul) {
  static const char key[] = "recipe.precision.matmul";
  if (!matmul || matmul->kind != EX_CALL)
    return (lm_recipe_fp8){0};
  const ast_expr *scale = lm_read_arg(d, key, matmul, "scale");
  return (lm_recipe_fp8){
      .on = true,
      .narrow_forward = lm_read_is_word(lm_read_arg(d, key, matmul, "fwd"), "e4m3"),
      .narrow_backward = lm_read_is_word(lm_read_arg(d, key, matmul, "bwd"), "e4m3"),
      .scale = lm_read_is_word(scale, "current") ? LM_RECIPE_SCALE_CURRENT
               : lm_read_is_word(scale, "block") ? LM_RECIPE_SCALE_BLOCK
               : lm_read_is_word(scale, "mx")    ? LM_RECIPE_SCALE_MX
                                                 : LM_RECIPE_SCALE_DELAYED,
      .head = lm_read_is_word(lm_read_arg(d, key, matmul, "head"), "cast"),
      .loc = matmul->loc,
  };
}

static void read_kept(const lm_reader *d, lm_recipe_precision *p) {
  for (uint32_t i = 0; i < d->s->n; i++) {
    const lm_setting *s = d->s->v[i];
    if (strcmp(s->key->path, "recipe.precision.keep") || s->broken)
      continue;
    bool list = s->value->kind == EX_LIST;
    if (!p->fp8.on)
      LM_REPORT(d->R->c, s->loc, E2F0);
    for (uint32_t k = 0; k < (list ? s->value->n_args : 1); k++) {
      const ast_expr *pattern = list ? s->value->args[k].expr : s->value;
      LM_PUSH(d->R->c->arena, p->keep, p->n_keep, p->cap_keep) =
          (lm_recipe_keep){s->sel->text, pattern->text, pattern->loc};
    }
  }
}

// A processor without bf16 instructions computes in bf16 too if the parameters are stored so.
static void read_master(const lm_reader *d) {
  lm_recipe_precision *p = &d->r->precision;
  const ast_expr *e = lm_read_value(d, "recipe.precision.master");
  p->master_bf16 = lm_read_is_word(e, "bf16");
  if (!p->master_bf16)
    return;
  if (p->compute == LM_RECIPE_COMPUTE_AUTO)
    p->compute = LM_RECIPE_COMPUTE_BF16;
  if (p->compute != LM_RECIPE_COMPUTE_BF16)
    LM_REPORT(d->R->c, e->loc, E2F6, p->compute == LM_RECIPE_COMPUTE_F32 ? "f32" : "f16");
}

static void read_moments(const lm_reader *d) {
  static const char key[] = "recipe.precision.moments";
  lm_recipe_precision *p = &d->r->precision;
  const ast_expr *e = lm_read_value(d, key);
  if (e->kind != EX_CALL) {
    p->moments = lm_read_is_word(e, "bf16") ? LM_RECIPE_MOMENTS_BF16 : LM_RECIPE_MOMENTS_F32;
    return;
  }
  p->moments = lm_read_is_word(e->a, "e4m3") ? LM_RECIPE_MOMENTS_E4M3 : LM_RECIPE_MOMENTS_DYN8;
  p->moments_block =
      (int64_t)lm_read_arg_number(d, key, e, "block", lm_read_file(d, lm_read_setting(d, key)));
}

void lm_read_precision(const lm_reader *recipe) {
  lm_settings none = {0};
  lm_reader d = lm_read_inside(recipe, "recipe.precision", &none);
  lm_recipe_precision *p = &d.r->precision;
  const ast_expr *compute = lm_read_value(&d, "recipe.precision.compute");
  p->compute = lm_read_is_word(compute, "f32")    ? LM_RECIPE_COMPUTE_F32
               : lm_read_is_word(compute, "bf16") ? LM_RECIPE_COMPUTE_BF16
               : lm_read_is_word(compute, "f16")  ? LM_RECIPE_COMPUTE_F16
                                                  : LM_RECIPE_COMPUTE_AUTO;
  p->compute_loc = compute->loc;
  const ast_expr *matmul = lm_read_value(&d, "recipe.precision.matmul");
  p->tf32 = lm_read_is_word(matmul, "tf32");
  if (p->tf32 && p->compute != LM_RECIPE_COMPUTE_F32)
    LM_REPORT(d.R->c, matmul->loc, E22F);
  p->fp8 = read_fp8(&d, matmul);
  if (p->fp8.on && p->compute == LM_RECIPE_COMPUTE_F16)
    LM_REPORT(d.R->c, matmul->loc, E2F5);
  const ast_expr *attend = lm_read_value(&d, "recipe.precision.attend");
  p->attend_fp8 = lm_read_is_word(attend, "fp8");
  p->attend_loc = attend->loc;
  if (p->attend_fp8 && p->compute == LM_RECIPE_COMPUTE_F16)
    LM_REPORT(d.R->c, attend->loc, E2FA);
  p->reduce_bf16 = lm_read_is_word(lm_read_value(&d, "recipe.precision.reduce"), "bf16");
  const ast_expr *order = lm_read_value(&d, "recipe.precision.order");
  p->library = lm_read_is_word(order, "library");
  p->order_loc = order->loc;
  read_master(&d);
  read_moments(&d);
  read_kept(&d, p);
}
