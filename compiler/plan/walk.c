// walk.c - the walk over a function: assigns a location to every value and emits the steps of every
// operation.
#include <string.h>

#include "compiler/plan/internal.h"

static location slot_location(const planner *p, storage *at, lm_type t, int64_t offset, int depth,
                              int64_t stride) {
  location out = lm_location_dense(p, at, t);
  out.offset = offset;
  if (depth >= 0)
    out.loop[depth] = stride;
  return out;
}

// ---- uses, before the walk

static bool is_alias(const lm_op *op) {
  return lm_op_info_of(op)->traits & LM_T_VIEW;
}

// Operands that are indices of a location.
static bool is_index(const planner *p, const lm_op *op, uint32_t i) {
  if (op->code == LM_OP_AT)
    return i == 1;
  if (op->code == LM_OP_PARAM || op->code == LM_OP_GRADIENT || op->code == LM_OP_RECALL ||
      op->code == LM_OP_CYCLE)
    return true;
  if (op->code == LM_OP_ASSIGN)
    return i < op->attr.n_imm / 2u;
  if (op->code == LM_OP_ACCUM || op->code == LM_OP_RETAIN)
    return i + 1 < op->n_in;
  return op->code == LM_OP_APPEND && i + 2 < op->n_in;
}

static void use_note(planner *p, const lm_op *op, uint32_t i) {
  uint32_t id = op->in[i]->id;
  uint32_t last = op->mark;
  bool stored = op->code == LM_OP_LOOP || lm_op_ends_region(op);
  bool is_const = op->in[i]->def && op->in[i]->def->code == LM_OP_CONST;
  if (is_alias(op) && i == 0 && p->last_use[op->out[0]->id] > last)
    last = p->last_use[op->out[0]->id];
  if (last > p->last_use[id])
    p->last_use[id] = last;
  p->uses[id]++;
  if (!is_index(p, op, i) && !(stored && is_const) && !lm_kernel_omits(p, op, i))
    p->in_memory[id] = true;
}

static uint32_t region_number(lm_region *r, uint32_t n) {
  for (lm_op *op = r->first; op; op = op->next) {
    op->mark = ++n;
    if (op->code == LM_OP_LOOP)
      n = region_number(op->body, n);
  }
  return n;
}

// Visits operations backwards, so that the uses of a view are known before the value that it views.
static void region_uses(planner *p, lm_region *r) {
  for (lm_op *op = r->last; op; op = op->prev) {
    if (op->code == LM_OP_LOOP)
      region_uses(p, op->body);
    for (uint32_t i = 0; i < op->n_in; i++)
      use_note(p, op, i);
  }
}

// ---- values

static bool is_const(const lm_value *v) {
  return v->def && v->def->code == LM_OP_CONST;
}

static void value_store(planner *p, lm_value *v, const location *to, lm_op *op) {
  if (is_const(v))
    lm_step_fill(p, op, v->type, v->def->attr.num, to);
  else
    lm_step_copy(p, op, v->type, lm_value_location(p, v), to, false);
}

static void view_walk(planner *p, lm_op *op) {
  location in = *lm_value_location(p, op->in[0]), out = in;
  int64_t offset;
  if (!lm_view_strides(p->m, op, in.stride, out.stride, &offset)) {
    in = lm_value_dense(p, op->in[0], op);
    out = in;
    lm_view_strides(p->m, op, in.stride, out.stride, &offset);
  }
  out.offset += offset * lm_dtype_bytes(op->out[0]->type.dtype);
  lm_location_set(p, op->out[0], out);
}

static void at_walk(planner *p, lm_op *op) {
  lm_type x = op->in[0]->type;
  location in = *lm_value_location(p, op->in[0]), out = in;
  memcpy(out.stride, in.stride + 1, (size_t)(x.rank - 1) * sizeof *in.stride);
  lm_location_index(p, op, op->in[1], op->attr.imm, lm_axis_size(p->m, x.axis[0]),
                    in.stride[0] * lm_dtype_bytes(x.dtype), &out);
  lm_location_set(p, op->out[0], out);
}

static const lm_layout_global *layout_of(const planner *p, const lm_op *op) {
  return &p->layout.globals[lm_global_find(p->m, op->attr.sym) - p->m->globals];
}

static void param_walk(planner *p, lm_op *op) {
  lm_type t = op->out[0]->type;
  const lm_layout_global *x = layout_of(p, op);
  const lm_layout_location *from = t.dtype == x->value.dtype ? &x->value : &x->copy;
  if (t.dtype != from->dtype && !lm_dtype_is_half(t.dtype))
    LM_BUG("@%s has no memory of type %s", op->attr.sym, lm_dtype_name(t.dtype));
  lm_location_set(p, op->out[0], lm_location_of_global(p, op, from, t));
}

static void gradient_walk(planner *p, lm_op *op) {
  lm_value *v = op->out[0];
  p->has_gradients = true;
  lm_location_set(p, v, lm_location_of_global(p, op, &layout_of(p, op)->grad, v->type));
}

// Rows of zeros follow the parameter in memory.
static void pad_walk(planner *p, lm_op *op) {
  location at = *lm_value_location(p, op->in[0]);
  if (!lm_plan_pads_in_place(op))
    LM_BUG("a pad outside a kernel");
  lm_location_set(p, op->out[0], at);
}

static void accum_walk(planner *p, lm_op *op) {
  lm_value *v = op->in[op->n_in - 1];
  const lm_layout_location *grad = &layout_of(p, op)->grad;
  location to = lm_location_of_global(p, op, grad, v->type);
  p->has_gradients = true;
  if (lm_step_accumulates(p, op) || lm_step_dot_accumulate(p, op, &to))
    return;
  if (v->type.dtype != grad->dtype) {
    LM_PLAN_ERROR(p, op, E708, lm_dtype_name(v->type.dtype));
    return;
  }
  lm_step_copy(p, op, v->type, lm_value_location(p, v), &to, true);
  p->steps[p->n_steps - 1].accum = op;
}

static void append_walk(planner *p, lm_op *op) {
  lm_value *at = op->in[op->n_in - 2];
  lm_value *x = op->in[op->n_in - 1];
  lm_type t = op->out[0]->type;
  location to = lm_location_of_global(p, op, &layout_of(p, op)->value, t);
  int axis = lm_type_find(x->type, op->attr.axes[0]);
  lm_step_append(p, op, x->type, lm_value_location(p, x), &to, axis,
                 lm_axis_size(p->m, op->attr.to[0]), lm_value_location(p, at));
  lm_location_set(p, op->out[0], to);
}

// A cache that is read is copied, because it may be written before the last use.
static void cache_walk(planner *p, lm_op *op) {
  lm_value *v = op->n_out ? op->out[0] : op->in[op->n_in - 1];
  location cache = lm_location_of_global(p, op, &layout_of(p, op)->value, v->type);
  if (op->n_out)
    lm_location_set(
        p, v,
        lm_location_dense(p, lm_storage_new(p, lm_type_bytes(p, v->type), p->depth, "carry"),
                          v->type));
  const location *at = lm_value_location(p, v);
  lm_step_copy(p, op, v->type, op->n_out ? &cache : at, op->n_out ? at : &cache, false);
}

static void const_walk(planner *p, lm_op *op) {
  lm_value *v = op->out[0];
  if (!p->in_memory[v->id])
    return;
  lm_location_set(p, v,
                  lm_location_dense(
                      p, lm_storage_new(p, lm_type_bytes(p, v->type), p->depth, "const"), v->type));
  lm_step_fill(p, op, v->type, op->attr.num, &p->locations[v->id]);
}

// ---- storing the values that a region yields or returns

typedef struct item {
  lm_value *v;
  location to;
  bool fresh; // no step has read the contents of `to` since the region began
  bool done;
} item;

static bool locations_equal(const planner *p, const location *a, const location *b, lm_type t) {
  ref x = lm_storage_resolve(a->at);
  ref y = lm_storage_resolve(b->at);
  if (x.at != y.at || x.offset + a->offset != y.offset + b->offset)
    return false;
  for (int d = 0; d < LM_PLAN_DEPTH; d++)
    if (x.loop[d] + a->loop[d] != y.loop[d] + b->loop[d])
      return false;
  return lm_strides_are_dense(p->m, t, a->stride) && lm_strides_are_dense(p->m, t, b->stride);
}

// True if another item must still be read from the storage that `items[k]` is written to.
static bool read_by_another(planner *p, const item *items, int n, int k) {
  storage *to = lm_storage_resolve(items[k].to.at).at;
  for (int i = 0; i < n; i++) {
    if (i == k || items[i].done || is_const(items[i].v))
      continue;
    if (lm_storage_resolve(lm_value_location(p, items[i].v)->at).at == to)
      return true;
  }
  return false;
}

static void items_claim(planner *p, lm_op *op, item *items, int n, int since) {
  for (int i = 0; i < n; i++) {
    item *x = &items[i];
    if (is_const(x->v))
      continue;
    x->done = locations_equal(p, lm_value_location(p, x->v), &x->to, x->v->type);
  }
  for (int i = 0; i < n; i++) {
    item *x = &items[i];
    if (x->done || is_const(x->v) || (!x->fresh && read_by_another(p, items, n, i)))
      continue;
    x->done = lm_storage_claim(p, x->v, &x->to, x->fresh ? -1 : since, op);
  }
}

// Stores the items. An item whose storage another item overwrites is first copied to a temporary.
static void items_store(planner *p, lm_op *op, item *items, int n, int since) {
  items_claim(p, op, items, n, since);
  location *from = LM_NEW_N(p->arena, location, n + 1);
  for (int i = 0; i < n; i++) {
    lm_value *v = items[i].v;
    if (items[i].done || is_const(v))
      continue;
    from[i] = *lm_value_location(p, v);
    bool conflicts = false;
    for (int j = 0; j < n; j++)
      conflicts |= j != i && !items[j].fresh && !items[j].done &&
                   lm_storage_resolve(items[j].to.at).at == lm_storage_resolve(from[i].at).at;
    if (!conflicts)
      continue;
    location saved = lm_location_dense(
        p, lm_storage_new(p, lm_type_bytes(p, v->type), p->depth, "carry put conflicts"), v->type);
    lm_step_copy(p, op, v->type, &from[i], &saved, false);
    from[i] = saved;
  }
  for (int i = 0; i < n; i++) {
    if (items[i].done)
      continue;
    if (is_const(items[i].v))
      value_store(p, items[i].v, &items[i].to, op);
    else
      lm_step_copy(p, op, items[i].v->type, &from[i], &items[i].to, false);
  }
}

// No operation after an assign reads the memory that it writes, so its values may be written there
// as soon as no later step reads the old ones.
static void assign_walk(planner *p, lm_op *op) {
  uint32_t first = op->attr.n_imm / 2u, n = op->n_in - first;
  const lm_global *g = lm_global_find(p->m, op->attr.sym);
  const lm_global **states = LM_NEW_N(p->arena, const lm_global *, p->m->n_globals + 1);
  item *items = LM_NEW_N(p->arena, item, n + 1);
  lm_global_states(p->m, g, &op->attr, states);
  for (uint32_t i = 0; i < n; i++) {
    lm_value *v = op->in[first + i];
    location to = i ? lm_location_of_state(p, op, states[i - 1], v->type)
                    : lm_location_of_global(p, op, &layout_of(p, op)->value, v->type);
    items[i] = (item){v, to, false, false};
  }
  if (!p->failed)
    items_store(p, op, items, (int)n, 0);
}

// ---- loops
//
// A carry has one storage for all iterations. If the loop also stacks the carry (its value before
// or after an iteration), the carry runs through the slots of the stack instead: iteration i reads
// slot i and writes slot i + 1; of n iterations of a reversed loop, it reads slot n - i and writes
// slot n - 1 - i. A stack in the host's memory has a copy of the carry.

// A stacked value: not a carry; a carry before or after the iteration, whose slots are those of the
// carry; a carry before the iteration, which is copied at its beginning.
typedef enum {
  STACK_ALONE,
  STACK_BEFORE,
  STACK_AFTER,
  STACK_COPY
} stack_kind;
typedef struct stacking {
  stack_kind kind;
  uint32_t carry;
} stacking;

static const lm_op *yield_of(const lm_op *loop) {
  return loop->body->last;
}

static stacking stacking_find(const lm_op *loop, const frame *f, uint32_t s) {
  const lm_value *v = yield_of(loop)->in[loop->n_in + s];
  if (loop->out[loop->n_in + s]->on_host)
    return (stacking){v->region == loop->body && !v->def ? STACK_COPY : STACK_ALONE, 0};
  for (uint32_t k = 0; k < loop->n_in; k++) {
    if (f->slots[k])
      continue;
    if (v == loop->body->args[k + 1])
      return (stacking){STACK_BEFORE, k};
    if (v == yield_of(loop)->in[k] && v->def && v->def->parent == loop->body)
      return (stacking){STACK_AFTER, k};
  }
  return (stacking){STACK_ALONE, 0};
}

// The label of a stack: trip count and value, which users look for in reports of memory, and its
// type if it holds codes.
static const char *stack_label(planner *p, const lm_op *loop, uint32_t s) {
  const lm_value *v = yield_of(loop)->in[loop->n_in + s];
  const char *name = lm_plan_label(p->arena, p->m, v->def ? v->def : loop);
  lm_dtype t = (lm_dtype)v->type.dtype;
  const char *codes = t == LM_E4M3 || t == LM_E5M2 ? lm_dtype_name(t) : "";
  return lm_arena_printf(p->arena, "%lld x %s%s%s%s", (long long)loop->attr.imm[0], codes,
                         *codes ? " of " : "", v->def ? "" : "carry of ", name);
}

static stacking *loop_storages(planner *p, frame *f, lm_op *op) {
  uint32_t n_carry = op->n_in;
  uint32_t n_stack = op->n_out - n_carry;
  stacking *kinds = LM_NEW_N(p->arena, stacking, n_stack + 1);
  const char *label = lm_plan_label(p->arena, p->m, op);
  f->carry = LM_NEW_N(p->arena, storage *, n_carry + 1);
  f->slots = LM_NEW_N(p->arena, bool, n_carry + 1);
  f->stack = LM_NEW_N(p->arena, storage *, n_stack + 1);
  for (uint32_t s = 0; s < n_stack; s++) {
    kinds[s] = stacking_find(op, f, s);
    bool shared = kinds[s].kind == STACK_BEFORE || kinds[s].kind == STACK_AFTER;
    int64_t slot = lm_type_bytes(p, yield_of(op)->in[n_carry + s]->type);
    const char *name = stack_label(p, op, s);
    f->stack[s] = op->out[n_carry + s]->on_host
                      ? lm_stash_new(p, slot, op->attr.imm[0], name)
                      : lm_storage_new(p, slot * (op->attr.imm[0] + shared), p->depth, name);
    if (!shared)
      continue;
    f->carry[kinds[s].carry] = f->stack[s];
    f->slots[kinds[s].carry] = true;
  }
  for (uint32_t k = 0; k < n_carry; k++)
    if (!f->carry[k])
      f->carry[k] = lm_storage_new(p, lm_type_bytes(p, op->in[k]->type), p->depth, label);
  return kinds;
}

// If the last use of an enclosing loop's carry is as the initial value of an inner carry, both
// share the storage.
static bool carry_inherit(planner *p, lm_op *op, lm_value *init, storage *carry) {
  if (!p->depth)
    return false;
  const frame *enclosing = &p->frames[p->depth - 1];
  for (uint32_t k = 0; k < enclosing->op->n_in; k++) {
    if (init != enclosing->op->body->args[k + 1] || enclosing->slots[k] ||
        enclosing->carry[k]->last_use > op->mark)
      continue;
    for (uint32_t j = 0, taken = 0; j < op->n_in; j++)
      if (op->in[j] == init && taken++)
        return false;
    carry->into = enclosing->carry[k];
    return true;
  }
  return false;
}

// The slot of a carry before iteration 0, and after the last one.
static int64_t slot_before(const lm_op *loop) {
  return lm_loop_is_reversed(loop) ? loop->attr.imm[0] : 0;
}
static int64_t slot_after(const lm_op *loop) {
  return loop->attr.imm[0] - slot_before(loop);
}

static void carry_init(planner *p, frame *f, lm_op *op, uint32_t k) {
  lm_value *init = op->in[k];
  location to = lm_location_dense(p, f->carry[k], init->type);
  to.offset = f->slots[k] ? slot_before(op) * lm_type_bytes(p, init->type) : 0;
  if (!is_const(init)) {
    if (!f->slots[k] && carry_inherit(p, op, init, f->carry[k]))
      return;
    if (lm_storage_claim(p, init, &to, -1, op))
      return;
  }
  value_store(p, init, &to, op);
}

// Copies carries to their stacks before the iteration changes them.
static void carries_stack(planner *p, const frame *f, lm_op *op, const stacking *kinds) {
  for (uint32_t i = op->n_in; i < op->n_out; i++) {
    lm_value *v = yield_of(op)->in[i];
    int64_t slot = lm_type_bytes(p, v->type);
    location to = slot_location(p, f->stack[i - op->n_in], v->type, 0, p->depth - 1, slot);
    if (kinds[i - op->n_in].kind != STACK_COPY)
      continue;
    LM_ASSERT(!lm_loop_is_reversed(op)); // by the verifier
    value_store(p, v, &to, op->body->last);
  }
}

static void loop_begin(planner *p, frame *f, lm_op *op) {
  lm_value *index = op->body->args[0];
  if (p->in_memory[index->id])
    f->index = lm_storage_new(p, sizeof(int32_t), p->depth, "loop index");
  f->step = (int)p->n_steps;
  pstep *s = lm_step_add(p, LM_STEP_LOOP, op, f->index ? 1 : 0);
  s->step.count = op->attr.imm[0];
  s->step.depth = p->depth;
  s->step.n_write = s->step.n_bufs;
  if (f->index)
    s->refs[0] = (ref){
        .at = f->index,
        .bytes = sizeof(int32_t),
    };
  int depth = p->depth++;
  if (f->index)
    lm_location_set(p, index, lm_location_dense(p, f->index, index->type));
  for (uint32_t k = 0; k < op->n_in; k++) {
    lm_value *arg = op->body->args[k + 1];
    int64_t slot = f->slots[k] ? lm_type_bytes(p, arg->type) : 0;
    int64_t stride = lm_loop_is_reversed(op) ? -slot : slot;
    lm_location_set(
        p, arg, slot_location(p, f->carry[k], arg->type, slot_before(op) * slot, depth, stride));
  }
}

static void loop_yield(planner *p, frame *f, lm_op *op, const stacking *kinds) {
  lm_op *yield = op->body->last;
  uint32_t n_carry = op->n_in;
  int n = 0, depth = p->depth - 1;
  item *items = LM_NEW_N(p->arena, item, yield->n_in + 1);
  bool reversed = lm_loop_is_reversed(op);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_value *v = yield->in[i];
    if (i >= n_carry && kinds[i - n_carry].kind != STACK_ALONE)
      continue; // stored with the carry
    bool stacked = i >= n_carry || f->slots[i];
    int64_t slot = stacked ? lm_type_bytes(p, v->type) : 0;
    storage *at = i < n_carry ? f->carry[i] : f->stack[i - n_carry];
    int64_t first = reversed ? op->attr.imm[0] - 1 : i < n_carry;
    location to = slot_location(p, at, v->type, first * slot, depth, reversed ? -slot : slot);
    items[n++] = (item){v, to, stacked, false};
  }
  items_store(p, yield, items, n, f->step);
}

static void loop_end(planner *p, frame *f, lm_op *op, const stacking *kinds) {
  int end = (int)p->n_steps;
  pstep *s = lm_step_add(p, LM_STEP_END, op, 0);
  s->step.match = f->step;
  s->step.depth = --p->depth;
  s->loop = p->steps[f->step].loop;
  p->steps[f->step].step.match = end;
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_value *v = op->out[i];
    int64_t slot = lm_type_bytes(p, yield_of(op)->in[i]->type);
    stack_kind behind = lm_loop_is_reversed(op) ? STACK_BEFORE : STACK_AFTER; // slot 0
    int64_t offset = i < op->n_in ? (f->slots[i] ? slot * slot_after(op) : 0)
                                  : (kinds[i - op->n_in].kind == behind ? slot : 0);
    lm_location_set(p, v,
                    slot_location(p, i < op->n_in ? f->carry[i] : f->stack[i - op->n_in], v->type,
                                  offset, -1, 0));
  }
}

static void region_walk(planner *p, lm_region *r);

static void loop_walk(planner *p, lm_op *op) {
  if (p->depth == LM_PLAN_DEPTH) {
    LM_PLAN_ERROR(p, op, E709, LM_PLAN_DEPTH);
    return;
  }
  frame *f = &p->frames[p->depth];
  *f = (frame){.op = op};
  stacking *kinds = loop_storages(p, f, op);
  for (uint32_t k = 0; k < op->n_in; k++)
    carry_init(p, f, op, k);
  loop_begin(p, f, op);
  carries_stack(p, f, op, kinds);
  region_walk(p, op->body);
  if (!p->failed)
    loop_yield(p, f, op, kinds);
  loop_end(p, f, op, kinds);
}

static void op_walk(planner *p, lm_op *op) {
  switch (op->code) {
  case LM_OP_KERNEL:
  case LM_OP_SCAN:
  case LM_OP_ATTEND:
  case LM_OP_ATTEND_VJP: lm_step_kernel(p, op); break;
  case LM_OP_DOT:
  case LM_OP_DOT_ADD:
  case LM_OP_DOT_GELU:
  case LM_OP_DOT_SCALED: lm_step_dot(p, op); break;
  case LM_OP_VIEW:
  case LM_OP_PERMUTE:
  case LM_OP_RENAME:
  case LM_OP_SLICE: view_walk(p, op); break;
  case LM_OP_AT: at_walk(p, op); break;
  case LM_OP_PAD: pad_walk(p, op); break;
  case LM_OP_CONCAT: lm_concat_check(p, op); break;
  case LM_OP_PARAM: param_walk(p, op); break;
  case LM_OP_GRADIENT: gradient_walk(p, op); break;
  case LM_OP_ASSIGN: assign_walk(p, op); break;
  case LM_OP_ACCUM: accum_walk(p, op); break;
  case LM_OP_APPEND: append_walk(p, op); break;
  case LM_OP_RECALL: (lm_cache_is_written(p, op->attr.sym) ? cache_walk : param_walk)(p, op); break;
  case LM_OP_RETAIN: cache_walk(p, op); break;
  case LM_OP_CONST: const_walk(p, op); break;
  case LM_OP_LOOP: loop_walk(p, op); break;
  case LM_OP_RANK: lm_rank_locate(p, op); break;
  case LM_OP_CYCLE: // an index of locations
  case LM_OP_YIELD:
  case LM_OP_RETURN: break; // handled by the owner of the region
  default: {
    bool communicates = (lm_op_info_of(op)->traits & LM_T_COLLECTIVE) != 0;
    communicates ? lm_step_collective(p, op) : lm_step_grouped(p, op);
  }
  }
}

static void region_walk(planner *p, lm_region *r) {
  for (lm_op *op = r->first; op && !p->failed; op = op->next)
    op_walk(p, op);
}

// ---- the function

// The loop over chunks of blocks, in which the kernels from op on compute the first n results,
// which are stored. Returns the first operation behind it.
static lm_op *chunks_walk(planner *p, lm_op *op, item *items, uint32_t n) {
  lm_region *body = p->f->body;
  location **results = LM_NEW_N(p->arena, location *, n);
  for (uint32_t i = 0; i < n; i++)
    results[i] = &items[i].to;
  lm_chunks_begin(p, results, n);
  for (; !p->failed && lm_chunks_has(p->m, op); op = op->next)
    op_walk(p, op);
  if (!p->failed)
    items_store(p, body->last, items, (int)n, 0);
  lm_chunks_end(p);
  return op;
}

static item *results_locate(planner *p, lm_plan_func *out) {
  const lm_op *ret = p->f->body->last;
  location *to = lm_results_locate(p, out);
  item *items = LM_NEW_N(p->arena, item, ret->n_in + 1);
  for (uint32_t i = 0; i < ret->n_in; i++) {
    bool fresh = to[i].at->arena == LM_ARENA_IO || to[i].at->arena == LM_ARENA_COPY;
    items[i] = (item){ret->in[i], to[i], fresh, false};
  }
  return items;
}

void lm_func_walk(planner *p) {
  lm_plan_func *out = &p->plan->funcs[p->plan->n_funcs++];
  out->name = p->f->name;
  out->key = p->f->key;
  region_number(p->f->body, 0);
  region_uses(p, p->f->body);
  uint32_t chunked = lm_chunks_results(p);
  if (chunked)
    p->m->axes[p->m->blocks].size = p->layout.blocks;
  lm_arguments_locate(p, out);
  item *results = results_locate(p, out);
  uint32_t done = 0;
  for (lm_op *op = p->f->body->first; op && !p->failed;) {
    if (done < chunked && lm_chunks_has(p->m, op)) {
      op = chunks_walk(p, op, results, chunked);
      done = chunked;
    } else {
      op_walk(p, op);
      op = op->next;
    }
  }
  if (!p->failed)
    items_store(p, p->f->body->last, results + done, out->n_out - (int)done, 0);
}
