// mesh.c - pass `mesh`: checks how values are spread over the ranks, and records partial sums.
//
// before: mesh dp = 2
//         param @w : f32[d]
//         func @micro(%x: f32[b@dp, d]) -> (sum: f32, weight: f32) { … }
// after:  param @w : f32[d] partial(dp)
//         func @micro(%x: f32[b@dp, d]) -> (sum: f32 partial(dp), weight: f32 partial(dp)) { … }
//
// Types do not say whether a value is equal on all ranks or a term of a sum; mesh_state.h derives
// it, along one axis of the mesh after the other, and finds collectives that are missing or too
// many. The pass runs behind `shard` and behind `grad`. It records over which axes a function's
// results, and the gradient of a parameter in @micro, are to be added. Where a view has merged a
// divided axis with another (pass tile_rows), it cannot tell, and what `shard` has recorded stands.
// Declines: without a mesh. Cost: a walk for each axis of the mesh.
#include <string.h>
#include "compiler/passes/shard/mesh_state.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"

typedef struct recorder {
  lm_module *m;
  lm_func *f;
  const uint8_t *state;
  lm_mesh_set *gradient; // by global: partial along these axes
  lm_mesh_set *known;    // by global: along the others the record of pass shard stands
  uint8_t *seen;         // by global: bit 1: added, bit 2: partial along the present axis
  lm_mesh_set bit;
  lm_buf *why;
} recorder;

static bool is_sum(const recorder *r, const lm_value *v) {
  uint8_t s = r->state[v->id];
  return s == LM_MESH_PARTIAL || s == LM_MESH_OWN;
}

static void note_accum(lm_op *op, void *user) {
  recorder *r = user;
  if (op->code != LM_OP_ACCUM)
    return;
  const lm_value *v = op->in[op->n_in - 1];
  const lm_global *g = lm_global_find(r->m, op->attr.sym);
  uint32_t k = (uint32_t)(g - r->m->globals);
  lm_type stack = g->type;
  stack.rank = (uint8_t)g->n_stack;
  if (lm_type_divided_by(r->m, stack) & r->bit) // each rank has other instances
    return;
  if (r->state[v->id] == LM_MESH_ZERO || r->state[v->id] == LM_MESH_UNKNOWN)
    return;
  if (r->state[v->id] == LM_MESH_LOCAL)
    lm_buf_printf(r->why, "%s@%s: the gradient of @%s depends on the rank", r->why->n ? "\n" : "",
                  r->f->name, g->name);
  uint8_t now = is_sum(r, v) ? 3 : 1;
  if (r->seen[k] && r->seen[k] != now)
    lm_buf_printf(r->why, "%s@%s: the gradient of @%s is partial in one term and not in another",
                  r->why->n ? "\n" : "", r->f->name, g->name);
  r->seen[k] = now;
  r->known[k] |= r->bit;
  if (now == 3)
    r->gradient[k] |= r->bit;
}

// The results of a function that are sums along the axes of the mesh so far.
static void note_results(recorder *r, lm_mesh_set *partial) {
  const lm_op *end = r->f->body->last;
  for (uint32_t i = 0; i < end->n_in; i++) {
    bool unknown = r->state[end->in[i]->id] == LM_MESH_UNKNOWN && r->f->out_partial;
    if (unknown ? r->f->out_partial[i] & r->bit : is_sum(r, end->in[i]))
      partial[i] |= r->bit;
  }
}

static void complain(const recorder *r, const char *what, const char *name) {
  lm_buf_printf(r->why, "%s@%s: %s %s is not partial over the axes that are stated",
                r->why->n ? "\n" : "", r->f->name, what, name);
}

static void record_results(recorder *r, lm_mesh_set *partial) {
  bool any = false;
  for (uint32_t i = 0; i < r->f->n_out; i++) {
    any |= partial[i];
    lm_mesh_set stated = r->f->out_partial ? r->f->out_partial[i] : 0;
    if (stated && stated != partial[i])
      complain(r, "result", r->f->out_names[i]);
  }
  r->f->out_partial = any ? partial : NULL;
}

static void record_gradients(recorder *r) {
  for (uint32_t k = 0; k < r->m->n_globals; k++) {
    lm_global *g = &r->m->globals[k];
    lm_mesh_set stated = g->partial & r->known[k];
    if (stated && stated != r->gradient[k])
      complain(r, "the gradient of", g->name);
    g->partial = (lm_mesh_set)(r->gradient[k] | (g->partial & ~r->known[k]));
  }
}

static void func_check(lm_module *m, lm_func *f, lm_buf *why) {
  recorder r = {
      .m = m,
      .f = f,
      .why = why,
  };
  lm_mesh_set *partial = LM_NEW_N(m->arena, lm_mesh_set, f->n_out + 1);
  r.gradient = lm_calloc((size_t)m->n_globals + 1, sizeof *r.gradient);
  r.known = lm_calloc((size_t)m->n_globals + 1, sizeof *r.known);
  r.seen = lm_calloc((size_t)m->n_globals + 1, 1);
  for (int k = 1; k <= m->mesh.n; k++) {
    uint8_t *state = lm_mesh_states(f, k, why);
    r.state = state;
    r.bit = (lm_mesh_set)(1 << (k - 1));
    memset(r.seen, 0, m->n_globals);
    lm_region_walk(f->body, note_accum, &r);
    note_results(&r, partial);
    lm_free(state);
  }
  record_results(&r, partial);
  if (f->key.id == LM_FUNC_MICRO)
    record_gradients(&r);
  lm_free(r.gradient);
  lm_free(r.known);
  lm_free(r.seen);
}

bool lm_pass_mesh(lm_module *m, const lm_pass_env *env) {
  lm_buf why = {0};
  for (lm_func *f = m->funcs; f && m->mesh.n; f = f->next)
    func_check(m, f, &why);
  bool ok = !why.n;
  if (!ok)
    LM_REPORT(m->ctx, (lm_loc){0}, E913, why.p);
  lm_buf_free(&why);
  return ok;
}
