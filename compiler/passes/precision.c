// precision.c - pass `precision`: chooses the type by which `real` is replaced, and makes it
// explicit.
//
//   %x = cast %w : real[d]                        %x = cast %w : bf16[d]
//   %y = mul %x, %x : real[d]           =>        %y = mul %x, %x : bf16[d]
//   %z = cast %y : f32[d]                         %z = cast %y : f32[d]
//
// Where the type is f32, the casts between both, and `unrounded`, are identities, which are
// removed; so is `edited` for a target without epilogues:
//
//   %y = mul %w, %w : f32[d]
//
// The recipe's precision.compute decides (lm_pass_env.compute); `auto` is bf16 if the target
// multiplies it, else f32. Models are lowered without knowing the machine. The pass never declines;
// the verifier accepts no `real` after it. It costs one walk.
#include "compiler/passes/fuse/epilogue.h"
#include "compiler/passes/pass.h"

lm_dtype lm_precision_of(lm_dtype compute, const lm_target *target) {
  if (compute != LM_REAL)
    return compute;
  return target && target->math[LM_BF16].native ? LM_BF16 : LM_F32;
}

typedef struct resolution {
  lm_dtype real;
  bool edits;     // a later pass reads which values an edit computes
  lm_value **map; // by value id: the operand of an identity, or NULL
} resolution;

static void type_resolve(const resolution *x, lm_type *t) {
  if (t->dtype == LM_REAL)
    t->dtype = (uint8_t)x->real;
}

static void region_resolve(const resolution *x, lm_region *r) {
  for (uint32_t i = 0; i < r->n_args; i++)
    type_resolve(x, &r->args[i]->type);
  for (lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_out; i++)
      type_resolve(x, &op->out[i]->type);
    if (op->body)
      region_resolve(x, op->body);
  }
}

// A chain of identities ends at a value that is none, which inherits the user's choice to keep it.
static void identity_note(lm_op *op, void *user) {
  const resolution *x = user;
  bool converts = op->code == LM_OP_CAST || op->code == LM_OP_UNROUNDED;
  bool same = converts && op->in[0]->type.dtype == op->out[0]->type.dtype;
  if (!same && (op->code != LM_OP_EDITED || x->edits))
    return;
  if (op->remat && op->in[0]->def && !op->in[0]->def->remat)
    op->in[0]->def->remat = op->remat;
  lm_value *from = x->map[op->in[0]->id];
  x->map[op->out[0]->id] = from ? from : op->in[0];
}

static void identity_remove(lm_op *op, void *user) {
  const resolution *x = user;
  if (op->n_out && x->map[op->out[0]->id])
    lm_op_remove(op);
}

bool lm_pass_precision(lm_module *m, const lm_pass_env *env) {
  m->real = lm_precision_of(env->compute, env->target);
  resolution x = {
      .real = m->real,
      .edits = lm_epilogue_is_enabled(env),
      .map = lm_calloc(m->n_values + 1, sizeof *x.map),
  };
  for (uint32_t i = 0; i < m->n_globals; i++)
    type_resolve(&x, &m->globals[i].type);
  for (lm_func *f = m->funcs; f; f = f->next) {
    region_resolve(&x, f->body);
    lm_region_walk(f->body, identity_note, &x);
    lm_func_substitute(f, x.map, m->n_values);
    lm_region_walk(f->body, identity_remove, &x);
  }
  lm_free(x.map);
  return true;
}
