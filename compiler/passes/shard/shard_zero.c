// shard_zero.c - parameters divided among ranks that compute other rows (ZeRO).
//
// before: mesh dp = 2 rows zero 3
//         param @w : f32[layers, d, f] stacked 1 partial(dp)
//         func @loss(%x: f32[b@dp, d]) -> … { …
//             %w = param @w[%i] : f32[d, f]
//             %y = dot %x, %w over(d) : f32[b@dp, f] … }
// after:  param @w : f32[layers, d@dp, f] stacked 1
//         func @loss(%x: f32[b@dp, d]) -> … { …
//             %w = param @w[%i] : f32[d@dp, f]
//             %g = all_gather %w over(dp) (d@dp) -> (d) : f32[d, f]
//             %y = dot %x, %g over(d) : f32[b@dp, f] … }
//
// The ranks along an axis of the mesh that divides rows need whole parameters, but each keeps a
// part: of the parameter, its gradient and its optimizer states. The part is along the first axis
// whose size the ranks divide. A function gathers a parameter in front of its first user, in the
// same region, so that in a loop over layers one layer is whole at a time; the derivative of
// all_gather, a reduce_scatter, gives each rank its part of the gradient. An optimizer that reads a
// whole gradient or state gathers it, computes on every rank, and stores the part. In stages 1 and
// 2 later passes gather once per update, and in stage 1 scatter gradients once per step
// (hoist_params.c, reduce_once.c).
//
// Declines: without `zero`; parameters that are marked `whole`, states of blocks, and parameters of
// whose sizes the ranks divide none; frozen parameters below stage 3, of which a whole copy would
// be kept. Cost: each rank receives each parameter each time it is gathered.
#include "compiler/passes/shard/shard.h"

typedef struct zero {
  lm_module *m;
  int mesh; // from 1
  // By global.
  lm_axis *along;  // the whole axis that is divided; 0: none
  lm_opcode *code; // what gathers it
} zero;

static bool is_divided(const zero *z, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (z->m->axes[t.axis[i]].mesh == z->mesh)
      return true;
  return false;
}

// The axis of a parameter that is divided; 0: the parameter stays whole.
static lm_axis axis_of(const zero *z, const lm_global *g) {
  const lm_mesh_axis *by = &z->m->mesh.axis[z->mesh - 1];
  bool kept = g->kind == LM_GLOBAL_PARAM || (g->kind == LM_GLOBAL_FIXED && by->zero == 3);
  bool whole = g->whole || g->untrained || is_divided(z, g->type);
  if (!kept || whole)
    return 0;
  for (int i = g->n_stack; i < g->type.rank; i++) {
    const lm_axis_info *a = &z->m->axes[g->type.axis[i]];
    if (!a->whole && !a->dyn && a->size % by->size == 0)
      return g->type.axis[i];
  }
  return 0;
}

static uint32_t index_of(const zero *z, lm_sym name) {
  return (uint32_t)(lm_global_find(z->m, name) - z->m->globals);
}

// A state is divided along the axis of its parameter, if it has it.
static lm_axis axis_of_state(const zero *z, const lm_global *g) {
  lm_axis along = g->of ? z->along[index_of(z, g->of)] : 0;
  return along && lm_type_find(g->type, along) >= g->n_stack ? along : 0;
}

// True if a parameter of which there are gradients is divided.
static bool globals_choose(zero *z) {
  bool any = false;
  for (uint32_t i = 0; i < z->m->n_globals; i++) {
    const lm_global *g = &z->m->globals[i];
    bool terms = g->partial >> (z->mesh - 1) & 1;
    z->along[i] = axis_of(z, g);
    z->code[i] = terms ? LM_OP_ALL_GATHER : LM_OP_COLLECT;
    any |= z->along[i] && g->kind == LM_GLOBAL_PARAM;
  }
  for (uint32_t i = 0; i < z->m->n_globals; i++)
    if (z->m->globals[i].kind == LM_GLOBAL_STATE) {
      z->along[i] = axis_of_state(z, &z->m->globals[i]);
      z->code[i] = LM_OP_COLLECT;
    }
  return any;
}

static lm_type divided(const zero *z, lm_type t, lm_axis along) {
  t.axis[lm_type_find(t, along)] = lm_axis_part(z->m, along, z->mesh);
  return t;
}

static lm_value *collective(zero *z, lm_builder *b, lm_opcode code, lm_value *x, lm_axis from,
                            lm_axis to) {
  lm_attr a = {
      .mesh = (uint8_t)z->mesh,
      .axes = {from},
      .to = {to},
      .n_axes = 1,
      .n_to = 1,
  };
  lm_value *v = lm_emit(b, code, &x, 1, &a, NULL);
  v->name = x->name;
  return v;
}

static lm_builder before(const zero *z, lm_op *op, lm_loc at) {
  return (lm_builder){
      .m = z->m,
      .at = op->parent,
      .before = op,
      .loc = at,
  };
}

// ---- values that are read

static bool reads(const lm_op *op, const lm_value *v) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i] == v)
      return true;
  for (const lm_op *o = op->body ? op->body->first : NULL; o; o = o->next)
    if (reads(o, v))
      return true;
  return false;
}

static void use_replace(lm_op *op, const lm_value *old, lm_value *now) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i] == old)
      op->in[i] = now;
  for (lm_op *o = op->body ? op->body->first : NULL; o; o = o->next)
    use_replace(o, old, now);
}

static void gather(zero *z, lm_op *op, uint32_t global) {
  lm_value *v = op->out[0];
  lm_axis along = z->along[global];
  lm_op *user = op->next;
  v->type = divided(z, v->type, along);
  while (user && !reads(user, v))
    user = user->next;
  if (!user)
    return;
  lm_builder b = before(z, user, op->loc);
  lm_axis part = lm_axis_part(z->m, along, z->mesh);
  lm_value *whole = collective(z, &b, z->code[global], v, part, along);
  for (lm_op *o = user; o; o = o->next)
    use_replace(o, v, whole);
}

// ---- values that are written

static void store_part(zero *z, lm_op *op, uint32_t operand, uint32_t global) {
  lm_axis along = z->along[global];
  lm_builder b = {z->m, op->parent, op, op->loc, 0};
  if (along)
    op->in[operand] =
        collective(z, &b, LM_OP_PART, op->in[operand], along, lm_axis_part(z->m, along, z->mesh));
}

static void store(zero *z, lm_op *op, uint32_t global) {
  uint32_t first = op->attr.n_imm / 2u;
  const lm_global **states = LM_NEW_N(z->m->arena, const lm_global *, z->m->n_globals + 1);
  uint32_t n = lm_global_states(z->m, &z->m->globals[global], &op->attr, states);
  store_part(z, op, first, global);
  for (uint32_t i = 0; i < n; i++)
    store_part(z, op, first + 1 + i, (uint32_t)(states[i] - z->m->globals));
}

static void region_divide(zero *z, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->body)
      region_divide(z, op->body);
    bool read = op->code == LM_OP_PARAM || op->code == LM_OP_GRADIENT;
    if (!read && op->code != LM_OP_ASSIGN)
      continue;
    uint32_t global = index_of(z, op->attr.sym);
    if (!read)
      store(z, op, global);
    else if (z->along[global])
      gather(z, op, global);
  }
}

void lm_shard_zero(lm_module *m, int mesh) {
  zero z = {
      .m = m,
      .mesh = mesh,
  };
  z.along = lm_calloc((size_t)m->n_globals + 1, sizeof *z.along);
  z.code = lm_calloc((size_t)m->n_globals + 1, sizeof *z.code);
  bool gradients = globals_choose(&z);
  for (lm_func *f = m->funcs; f; f = f->next)
    region_divide(&z, f->body);
  for (uint32_t i = 0; i < m->n_globals; i++) {
    lm_global *g = &m->globals[i];
    if (!z.along[i])
      continue;
    g->type = divided(&z, g->type, z.along[i]);
    g->partial &= (lm_mesh_set) ~(1 << (mesh - 1));
  }
  if (gradients)
    lm_shard_norm(m, mesh);
  lm_free(z.along);
  lm_free(z.code);
}
