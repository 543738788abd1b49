// ports.c - the memory of the arguments and results of a function.
#include "compiler/plan/internal.h"

static int state_index(planner *p, lm_sym name) {
  for (uint32_t i = 0; i < p->n_states; i++)
    if (p->states[i] == name)
      return (int)i;
  LM_PUSH(p->arena, p->states, p->n_states, p->cap_states) = name;
  return (int)p->n_states - 1;
}

// The role of a port in a function (contract/ports.def).
static lm_port_role role_of(const planner *p, lm_sym name, lm_type t) {
  lm_port_id id = lm_port_find(name);
  const lm_global *g = lm_global_find(p->m, name);
  lm_port_role role = id < LM_PORTS ? lm_port_table[id].role : LM_ROLE_OTHER;
  bool is_memory = lm_role_arena(role) != LM_ARENA_IO;
  if (g && g->kind == LM_GLOBAL_DERIVED)
    return LM_ROLE_COPY;
  if (lm_type_is_blocks(p->m, t))
    return is_memory ? role : LM_ROLE_STATE;
  return is_memory ? LM_ROLE_OTHER : role;
}

// Of a port whose memory is not an argument's or a result's own.
static location blocks_location(planner *p, lm_sym name, lm_type t, lm_port_role role) {
  const lm_global *g = lm_global_find(p->m, name);
  location out = lm_location_dense(p, p->fixed[lm_role_arena(role)], t);
  if (role == LM_ROLE_STATE)
    out.offset = state_index(p, name) * lm_type_bytes(p, t);
  if (role != LM_ROLE_COPY)
    return out;
  bool derived = g && g->kind == LM_GLOBAL_DERIVED;
  out.offset =
      derived ? p->layout.globals[g - p->m->globals].value.offset : p->layout.derived_bytes;
  p->has_copies |= !derived;
  return out;
}

static location port_location(planner *p, lm_sym name, lm_type t, lm_port_role role) {
  p->has_gradients |= role == LM_ROLE_GRAD;
  if (lm_role_arena(role) != LM_ARENA_IO)
    return blocks_location(p, name, t, role);
  location out = lm_location_dense(p, p->fixed[LM_ARENA_IO], t);
  out.offset = p->io_bytes;
  p->io_bytes += lm_plan_aligned(lm_type_bytes(p, t));
  return out;
}

static lm_plan_port port_make(planner *p, lm_sym name, lm_type t, lm_port_role role,
                              const location *at) {
  lm_plan_port port = {
      .name = name,
      .id = lm_port_find(name),
      .role = role,
      .state = role == LM_ROLE_STATE ? state_index(p, name) : 0,
      .dtype = t.dtype,
      .rank = t.rank,
      .buf =
          {
              .arena = at->at->arena,
              .live = -1,
              .offset = at->offset,
              .bytes = lm_type_bytes(p, t),
          },
  };
  for (int i = 0; i < t.rank; i++) {
    port.shape[i] = lm_axis_size(p->m, t.axis[i]);
    port.by[i] = lm_axis_divided_by(p->m, t.axis[i]);
  }
  return port;
}

void lm_arguments_locate(planner *p, lm_plan_func *out) {
  lm_region *body = p->f->body;
  out->in = LM_NEW_N(p->arena, lm_plan_port, body->n_args);
  out->n_in = (int)body->n_args;
  for (uint32_t i = 0; i < body->n_args; i++) {
    lm_value *v = body->args[i];
    lm_port_role role = role_of(p, v->name, v->type);
    location at = port_location(p, v->name, v->type, role);
    lm_location_set(p, v, at);
    out->in[i] = port_make(p, v->name, v->type, role, &at);
  }
}

location *lm_results_locate(planner *p, lm_plan_func *out) {
  const lm_op *ret = p->f->body->last;
  location *to = LM_NEW_N(p->arena, location, ret->n_in + 1);
  out->out = LM_NEW_N(p->arena, lm_plan_port, ret->n_in);
  out->n_out = (int)ret->n_in;
  for (uint32_t i = 0; i < ret->n_in; i++) {
    lm_type t = ret->in[i]->type;
    lm_sym name = p->f->out_names[i];
    lm_port_role role = role_of(p, name, t);
    to[i] = port_location(p, name, t, role);
    out->out[i] = port_make(p, name, t, role, &to[i]);
    out->out[i].partial = p->f->out_partial ? p->f->out_partial[i] : 0;
  }
  return to;
}
