// steps.c - adds steps: kernels, GEMMs, copies.
#include <limits.h>
#include <string.h>

#include "compiler/analysis/flops.h"
#include "compiler/ir/attend.h"
#include "compiler/ir/dot.h"
#include "compiler/plan/internal.h"

pstep *lm_step_add(planner *p, lm_step_kind kind, lm_op *op, int n_bufs) {
  pstep *s = &LM_PUSH(p->arena, p->steps, p->n_steps, p->cap_steps);
  *s = (pstep){.step =
                   {
                       .kind = kind,
                       .n_bufs = n_bufs,
                       .label = lm_plan_label(p->arena, p->m, op),
                   },
               .op = op,
               .refs = LM_NEW_N(p->arena, ref, n_bufs + 1),
               .loop = p->depth ? p->frames[p->depth - 1].step : -1};
  return s;
}

void lm_step_loop_begin(planner *p, lm_op *op, int64_t count) {
  p->frames[0] = (frame){.step = (int)p->n_steps};
  pstep *loop = lm_step_add(p, LM_STEP_LOOP, op, 0);
  loop->step.count = count;
  p->depth = 1;
}

void lm_step_loop_end(planner *p, lm_op *op) {
  int loop = p->frames[0].step;
  int end = (int)p->n_steps;
  p->depth = 0;
  pstep *s = lm_step_add(p, LM_STEP_END, op, 0);
  s->step.match = loop;
  p->steps[loop].step.match = end;
}

// ---- moves

static void move_dim_add(lm_plan_move *m, const lm_axis_info *axis, int64_t from, int64_t to,
                         bool merge) {
  lm_plan_extent size = {
      .fixed = axis->dyn ? 1 : axis->size,
      .n_dyn = axis->dyn ? 1 : 0,
  };
  if (axis->dyn)
    size.dyn[0].var = axis->dyn - 1;
  if (merge && m->rank && !axis->dyn && m->dim[m->rank - 1].from == from * axis->size &&
      m->dim[m->rank - 1].to == to * axis->size) {
    m->dim[m->rank - 1].size.fixed *= axis->size;
    m->dim[m->rank - 1].from = from;
    m->dim[m->rank - 1].to = to;
    return;
  }
  m->dim[m->rank].size = size;
  m->dim[m->rank].from = from;
  m->dim[m->rank++].to = to;
}

// keep: an axis that is not merged, or -1; at_dim is set to its index.
static lm_plan_move *move_make(planner *p, lm_type t, const location *from, const location *to,
                               int keep) {
  lm_plan_move *m = LM_NEW(p->arena, lm_plan_move);
  int element = lm_dtype_bytes(t.dtype);
  bool merge = false;
  *m = (lm_plan_move){
      .element = element,
      .at_dim = -1,
  };
  for (int i = 0; i < t.rank; i++) {
    const lm_axis_info *axis = &p->m->axes[t.axis[i]];
    if (axis->size == 1 && !axis->dyn && i != keep)
      continue;
    move_dim_add(m, axis, from->stride[i] * element, to->stride[i] * element, merge && i != keep);
    merge = i != keep;
    if (i == keep)
      m->at_dim = m->rank - 1;
  }
  return m;
}

void lm_step_copy(planner *p, lm_op *op, lm_type t, const location *from, const location *to,
                  bool add) {
  pstep *s = lm_step_add(p, add ? LM_STEP_ADD : LM_STEP_COPY, op, 2);
  s->refs[0] = lm_location_ref(p, from, t);
  s->refs[1] = lm_location_ref(p, to, t);
  s->step.move = move_make(p, t, from, to, -1);
  s->step.n_read = s->step.n_write = 1;
  s->step.moved = lm_type_bytes(p, t) * (add ? 3 : 2);
  s->step.flops = add ? lm_type_elements(p->m, t) : 0;
}

void lm_step_append(planner *p, lm_op *op, lm_type t, const location *from, const location *to,
                    int axis, int64_t limit, const location *at) {
  lm_type whole = op->out[0]->type;
  lm_type scalar = {.dtype = LM_INT};
  pstep *s = lm_step_add(p, LM_STEP_COPY, op, 3);
  s->refs[0] = lm_location_ref(p, from, t);
  s->refs[1] = lm_location_ref(p, at, scalar);
  s->refs[2] = lm_location_ref(p, to, whole);
  s->step.move = move_make(p, t, from, to, axis);
  s->step.move->at_limit = limit;
  s->step.n_read = 2;
  s->step.n_write = 1;
  s->step.moved = lm_type_bytes(p, t) * 2;
}

static uint64_t pattern_of(lm_dtype t, double v) {
  uint64_t bits;
  if (t != LM_F64)
    return lm_dtype_bits(t, v);
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

void lm_step_fill(planner *p, lm_op *op, lm_type t, double value, const location *to) {
  LM_ASSERT(lm_strides_are_dense(p->m, t, to->stride));
  pstep *s = lm_step_add(p, LM_STEP_FILL, op, 1);
  s->refs[0] = lm_location_ref(p, to, t);
  s->step.n_write = 1;
  s->step.bytes = s->step.moved = lm_type_bytes(p, t);
  s->step.element = lm_dtype_bytes(t.dtype);
  s->step.pattern = pattern_of(t.dtype, value);
}

location lm_value_dense(planner *p, lm_value *v, lm_op *op) {
  location from = *lm_value_location(p, v);
  if (lm_strides_are_dense(p->m, v->type, from.stride))
    return from;
  location to = lm_location_dense(
      p, lm_storage_new(p, lm_type_bytes(p, v->type), p->depth, lm_plan_label(p->arena, p->m, op)),
      v->type);
  lm_step_copy(p, op, v->type, &from, &to, false);
  return to;
}

// ---- kernels

int lm_kernel_find(planner *p, const lm_op *op, const lm_kernel_code *code) {
  lm_plan *plan = p->plan;
  for (int i = 0; i < plan->n_kernels; i++)
    if (!strcmp(plan->kernels[i].name, code->name))
      return i;
  uint32_t n = (uint32_t)plan->n_kernels;
  LM_PUSH(p->arena, plan->kernels, n, p->cap_kernels) =
      (lm_plan_kernel){code->name, code->source, lm_plan_origin(p->arena, p->m, op), code->launch};
  plan->n_kernels = (int)n;
  lm_kernel_code *copy = LM_NEW(p->arena, lm_kernel_code);
  *copy = *code;
  LM_PUSH(p->arena, p->codes, p->n_codes, p->cap_codes) = copy;
  return plan->n_kernels - 1;
}

static int64_t value_bytes(const lm_module *m, const lm_value *v) {
  return (int64_t)lm_type_traffic(m, v->type);
}

// Bytes of v that a kernel's region reads: all, or the slices or rows that it takes.
static int64_t bytes_read(const lm_module *m, const lm_region *r, const lm_value *v) {
  int64_t all = value_bytes(m, v), sum = 0;
  for (const lm_op *op = r->first; op && sum < all; op = op->next)
    for (uint32_t i = 0; i < op->n_in; i++) {
      if (op->in[i] != v)
        continue;
      if (op->code == LM_OP_SLICE || (op->code == LM_OP_GATHER && !i))
        sum += value_bytes(m, op->out[0]);
      else if (op->code == LM_OP_KERNEL)
        sum += bytes_read(m, op->body, op->body->args[i]);
      else
        sum += lm_op_info_of(op)->traits & LM_T_ORDERED ? bytes_read(m, r, op->out[0]) : all;
    }
  return sum < all ? sum : all;
}

// The bytes that kernels in the region read, except for sums.
static int64_t epilogue_bytes(const lm_module *m, const lm_op *attend) {
  int64_t bytes = 0;
  for (const lm_op *op = attend->body->first; op; op = op->next) {
    if (op->code != LM_OP_KERNEL)
      continue;
    for (uint32_t i = 1; i < op->n_in; i++)
      bytes += bytes_read(m, op->body, op->body->args[i]);
  }
  return bytes;
}

// The widths of a tile's GEMMs: of the scores, over axes that neither t nor s is; of v, over the
// axes that the scores lack.
lm_plan_attend lm_plan_attend_sizes(const lm_module *m, const lm_op *op) {
  lm_type space = lm_attend_space(op);
  lm_type v = op->in[LM_ATTEND_V]->type;
  lm_plan_attend a = {.t = lm_axis_size(m, lm_attend_t(op)),
                      .s = lm_axis_size(m, lm_attend_s(op)),
                      .v = 1,
                      .causal = lm_attend_is_causal(op),
                      .backward = op->code == LM_OP_ATTEND_VJP,
                      .epilogue = epilogue_bytes(m, op),
                      .dtype = (lm_dtype)v.dtype};
  a.points = lm_type_elements(m, space) / (a.t * a.s);
  for (int i = 0; i < v.rank; i++)
    if (lm_type_find(space, v.axis[i]) < 0)
      a.v *= lm_axis_size(m, v.axis[i]);
  a.key_points = lm_type_elements(m, v) / (a.s * a.v);
  for (const lm_op *o = op->body->first; o; o = o->next) {
    bool sum =
        lm_attr_has_axis(&o->attr, lm_attend_t(op)) || lm_attr_has_axis(&o->attr, lm_attend_s(op));
    int64_t width = 1;
    for (int i = 0; i < o->attr.n_axes; i++)
      width *= lm_axis_size(m, o->attr.axes[i]);
    a.qk += o->code == LM_OP_DOT && !sum ? width : 0;
  }
  return a;
}

bool lm_kernel_omits(const planner *p, const lm_op *op, uint32_t buffer) {
  return p->codegen->omits && p->codegen->omits(op, buffer);
}

static int64_t operand_bytes(const lm_module *m, const lm_op *op, uint32_t i) {
  if (op->code == LM_OP_KERNEL)
    return bytes_read(m, op->body, op->body->args[i]);
  if (op->code == LM_OP_ATTEND_VJP && i >= lm_attend_rest(op))
    return bytes_read(m, op->body, lm_attend_arg(op, i));
  return value_bytes(m, op->in[i]);
}

static double multiplied(const lm_module *m, const lm_op *op) {
  bool chains = lm_op_chains(op);
  double n = 0;
  for (const lm_op *o = chains || lm_kernel_mix(op) ? op->body->first : NULL; o; o = o->next)
    n += o->code == LM_OP_DOT ? lm_flops_of(m, o) : 0;
  return chains ? n * (double)lm_axis_size(m, op->attr.axes[0]) : n;
}

static void kernel_cost(planner *p, const lm_op *op, lm_plan_step *s) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_kernel_omits(p, op, i))
      s->moved += operand_bytes(p->m, op, i);
  for (uint32_t i = 0; i < op->n_out; i++)
    if (!lm_kernel_omits(p, op, op->n_in + i))
      s->moved += lm_type_bytes(p, op->out[i]->type);
  s->flops = (int64_t)lm_flops_of(p->m, op);
  s->multiplied = multiplied(p->m, op);
  lm_plan_gemm gemm;
  if (lm_plan_gemm_of_kernel(p->m, op, &gemm)) {
    s->gemm = LM_NEW(p->arena, lm_plan_gemm);
    *s->gemm = gemm;
  }
  if (!lm_op_attends(op))
    return;
  lm_plan_attend *a = LM_NEW(p->arena, lm_plan_attend);
  *a = lm_plan_attend_sizes(p->m, op);
  s->attend = a;
}

// The location of a part of a concatenation, of which the first part that is located locates all.
static location part_locate(planner *p, lm_value *v, const lm_plan_part *part) {
  lm_value *whole = part->concat->out[0];
  if (!p->locations[whole->id].at)
    lm_result_locate(p, whole, whole->def);
  location out = *lm_value_location(p, whole);
  out.offset += part->offset * lm_dtype_bytes(v->type.dtype);
  memcpy(out.stride, part->stride, sizeof out.stride);
  return p->locations[v->id] = out;
}

location lm_result_locate(planner *p, lm_value *v, lm_op *op) {
  lm_plan_part part;
  if (p->codegen->writes_strided && lm_plan_part_of(p->m, v, &part))
    return part_locate(p, v, &part);
  location out = lm_location_dense(
      p, lm_storage_new(p, lm_type_bytes(p, v->type), p->depth, lm_plan_label(p->arena, p->m, op)),
      v->type);
  out.at->last_use = p->last_use[v->id];
  return p->locations[v->id] = out;
}

// Where the kernel reads operand i: in place if it takes the strides, else from a dense copy.
static location operand_location(planner *p, lm_op *op, uint32_t i) {
  bool strided = p->codegen->reads_strided && p->codegen->reads_strided(op, i);
  return strided ? *lm_value_location(p, op->in[i]) : lm_value_dense(p, op->in[i], op);
}

// Makes the step add result r to a gradient, if the kernel does.
static bool result_accumulate(planner *p, lm_op *op, uint32_t r, pstep *s) {
  const lm_op *accum =
      p->codegen->adds && p->codegen->adds(op, r) ? lm_plan_accum_of(p->m, op->out[r]) : NULL;
  if (!accum)
    return false;
  const lm_global *g = lm_global_find(p->m, accum->attr.sym);
  const lm_layout_location *grad = &p->layout.globals[g - p->m->globals].grad;
  lm_value *v = op->out[r];
  lm_location_set(p, v, lm_location_of_global(p, (lm_op *)accum, grad, v->type));
  s->accum = accum;
  s->step.label = lm_arena_printf(p->arena, "%s, accumulated", s->step.label);
  s->step.moved += lm_type_bytes(p, v->type);
  return true;
}

bool lm_step_accumulates(const planner *p, const lm_op *accum) {
  for (uint32_t i = 0; i < p->n_steps; i++)
    if (p->steps[i].accum == accum)
      return true;
  return false;
}

static void part_refs_set(ref *to, const ref *parts, int n) {
  for (int i = 0; i < n; i++)
    to[i] = parts[i];
}

// Two steps: the parts of the results, then the results.
static void step_split(planner *p, lm_op *op, const lm_kernel_code *code, const location *in) {
  int n_in = (int)op->n_in;
  int n_out = (int)op->n_out;
  int n_parts = code->n_workspaces;
  ref parts[LM_KERNEL_WORKSPACES];
  pstep *s = lm_step_add(p, LM_STEP_KERNEL, op, n_in + n_parts);
  kernel_cost(p, op, &s->step);
  s->step.attend = NULL; // not in tiles
  s->step.kernel = lm_kernel_find(p, op, code);
  s->step.space = code->space;
  s->step.instructions = code->instructions;
  s->step.n_read = n_in;
  s->step.n_write = n_parts;
  int64_t bytes = 0;
  for (int i = 0; i < n_parts; bytes += code->workspace[i++])
    parts[i] = (ref){.at = lm_storage_new(p, code->workspace[i], p->depth, s->step.label),
                     .bytes = code->workspace[i]};
  for (int i = 0; i < n_in; i++)
    s->refs[i] = lm_location_ref(p, &in[i], op->in[i]->type);
  part_refs_set(s->refs + n_in, parts, n_parts);
  s = lm_step_add(p, LM_STEP_KERNEL, op, n_parts + n_out);
  s->step.kernel = lm_kernel_find(p, op, code->combine);
  s->step.space = code->combine->space;
  s->step.instructions = code->combine->instructions;
  s->step.n_read = n_parts;
  s->step.n_write = n_out;
  s->step.moved = bytes;
  part_refs_set(s->refs, parts, n_parts);
  for (int i = 0; i < n_out; i++) {
    location out = lm_result_locate(p, op->out[i], op);
    s->refs[n_parts + i] = lm_location_ref(p, &out, op->out[i]->type);
  }
}

void lm_step_kernel(planner *p, lm_op *op) {
  lm_kernel_code code = {0};
  if (!p->codegen->kernel(p->o, op, p->arena, &code)) {
    p->failed = true;
    return;
  }
  location *in = LM_NEW_N(p->arena, location, op->n_in + 1);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_kernel_omits(p, op, i))
      in[i] = operand_location(p, op, i);
  if (code.combine) {
    step_split(p, op, &code, in);
    return;
  }
  int index = lm_kernel_find(p, op, &code);
  pstep *s = lm_step_add(p, LM_STEP_KERNEL, op, (int)(op->n_in + op->n_out) + code.n_workspaces);
  s->step.kernel = index;
  s->step.space = code.space;
  kernel_cost(p, op, &s->step);
  s->step.instructions = code.instructions;
  s->step.again = code.partial;
  ref *r = s->refs;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_kernel_omits(p, op, i))
      *r++ = lm_location_ref(p, &in[i], op->in[i]->type);
  s->step.n_read = (int)(r - s->refs);
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (lm_kernel_omits(p, op, op->n_in + i))
      continue;
    if (!result_accumulate(p, op, i, s))
      lm_result_locate(p, op->out[i], op);
    *r++ = lm_location_ref(p, lm_value_location(p, op->out[i]), op->out[i]->type);
  }
  s->step.n_write = (int)(r - s->refs) - s->step.n_read;
  for (int i = 0; i < code.n_workspaces; i++)
    *r++ = (ref){.at = lm_storage_new(p, code.workspace[i], p->depth, s->step.label),
                 .bytes = code.workspace[i]};
  s->step.n_bufs = (int)(r - s->refs);
}

// ---- dots

static int64_t gemm_flops(const lm_plan_gemm *g, const int64_t *capacity) {
  int64_t n = 2 * lm_plan_extent_value(&g->m, capacity) * lm_plan_extent_value(&g->n, capacity) *
              lm_plan_extent_value(&g->k, capacity);
  for (int i = 0; i < g->n_batch; i++)
    n *= lm_plan_extent_value(&g->batch[i].size, capacity);
  return n;
}

static bool library_supports(const planner *p, const lm_op *op, const lm_plan_gemm *g) {
  if (lm_op_is_grouped(op))
    return g->code || p->codegen->library_groups;
  if (g->scaled)
    return p->codegen->scales && p->codegen->scales(&p->o->target, g);
  return op->code == LM_OP_DOT || (p->codegen->epilogue && !g->n_batch && p->codegen->epilogue(g));
}

// Uses panels only if a kernel for them exists: the batch of another dot may have the same strides.
static void panels_find(const planner *p, lm_plan_gemm *g) {
  lm_plan_gemm panels = *g;
  if (!p->codegen->gemm_is_profitable ||
      !lm_gemm_panels(&panels, p->o->target.choices.panel[g->dtype_ab]))
    return;
  if (p->codegen->gemm_is_profitable(&p->o->target, &panels))
    *g = panels;
}

// The factors are read through views, the addends must be dense. A second result is written only if
// it is used.
void lm_step_dot(planner *p, lm_op *op) {
  location in[LM_DOT_ADDENDS + 2], out[LM_GELU_OF + 1]; // counts are where addends are
  uint32_t n_out = op->n_out > 1 && p->uses[op->out[LM_GELU_OF]->id] ? 2 : 1;
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] =
        i < LM_DOT_ADDENDS ? *lm_value_location(p, op->in[i]) : lm_value_dense(p, op->in[i], op);
  for (uint32_t i = 0; i < n_out; i++)
    out[i] = lm_result_locate(p, op->out[i], op);
  int64_t capacity[LM_COUNT(p->plan->extents)];
  for (int i = 0; i < p->plan->n_extents; i++)
    capacity[i] = p->plan->extents[i].capacity;
  pstep *s = lm_step_add(p, LM_STEP_GEMM, op, (int)(op->n_in + n_out));
  s->step.gemm = LM_NEW(p->arena, lm_plan_gemm);
  lm_dot_gemm(p->m, op, in[LM_DOT_X].stride, in[LM_DOT_W].stride, out[0].stride, s->step.gemm,
              NULL);
  s->step.gemm->stored = n_out > 1;
  panels_find(p, s->step.gemm);
  for (uint32_t i = 0; i < op->n_in; i++)
    s->refs[i] = lm_location_ref(p, &in[i], op->in[i]->type);
  for (uint32_t i = 0; i < n_out; i++)
    s->refs[op->n_in + i] = lm_location_ref(p, &out[i], op->out[i]->type);
  s->step.n_read = (int)op->n_in;
  s->step.n_write = (int)n_out;
  s->step.flops = gemm_flops(s->step.gemm, capacity);
  for (uint32_t i = 0; i < op->n_in; i++)
    s->step.moved += lm_type_bytes(p, op->in[i]->type);
  for (uint32_t i = 0; i < n_out; i++)
    s->step.moved += lm_type_bytes(p, op->out[i]->type);
}

void lm_step_grouped(planner *p, lm_op *op) {
  if (!(lm_op_info_of(op)->traits & LM_T_GROUPED))
    LM_BUG("'%s' outside a kernel", lm_op_info_of(op)->name);
  if (lm_op_is_grouped(op))
    lm_step_dot(p, op);
  else
    lm_step_kernel(p, op);
}

// True if the buffer begins at a multiple of 16 bytes in all iterations.
static bool is_aligned(const ref *r) {
  int64_t all = r->offset;
  for (int i = 0; i < LM_PLAN_DEPTH; i++)
    all |= r->loop[i];
  return all % 16 == 0;
}

void lm_steps_code(planner *p) {
  bool apart = p->codegen->batches_apart && lm_func_is_of_batch(p->f->key);
  bool any_rows = p->plan->n_extents > 0 && !apart;
  for (uint32_t i = 0; i < p->n_steps; i++) {
    pstep *s = &p->steps[i];
    lm_plan_gemm *g = s->step.gemm;
    lm_kernel_code code = {0};
    if (s->step.kind != LM_STEP_GEMM)
      continue;
    g->aligned = is_aligned(&s->refs[LM_DOT_X]) && is_aligned(&s->refs[LM_DOT_W]);
    if (p->codegen->gemm && p->codegen->gemm_is_profitable(&p->o->target, g) &&
        p->codegen->gemm(p->o, g, any_rows, p->arena, &code)) {
      g->code = 1 + lm_kernel_find(p, s->op, &code);
      s->step.instructions = code.instructions;
    }
    if (!library_supports(p, s->op, g))
      LM_PLAN_ERROR(p, s->op, E705, lm_op_info_of(s->op)->name);
  }
}

// The step of the dot if the dot is in the region that is being walked, else NULL.
static pstep *dot_step(planner *p, const lm_op *dot, const lm_op *at) {
  if (dot->parent != at->parent)
    return NULL;
  for (int i = (int)p->n_steps - 1; i >= 0; i--)
    if (p->steps[i].op == dot)
      return &p->steps[i];
  return NULL;
}

// The slice takes all but the rows of padding that follow the gradient in memory, so a GEMM may
// write the whole tensor.
static bool slice_is_padded(const planner *p, const lm_op *accum, const lm_op *slice,
                            const int64_t *stride) {
  const lm_attr *a = &slice->attr;
  const lm_global *g = lm_global_find(p->m, accum->attr.sym);
  lm_type t = slice->out[0]->type;
  if (slice->code != LM_OP_SLICE || !a->n_to || a->imm[0] || a->imm[1] != 1)
    return false;
  int64_t rows = lm_axis_size(p->m, a->to[0]);
  return rows == lm_axis_size(p->m, g->type.axis[g->n_stack]) &&
         lm_axis_size(p->m, a->axes[0]) == lm_global_stored_rows(p->m, g) &&
         stride[lm_type_find(t, a->to[0])] * rows == lm_type_elements(p->m, t);
}

// True for operations whose GEMM can add to its result.
static bool accumulates(const lm_op *op) {
  return op->code == LM_OP_DOT || op->code == LM_OP_DOT_SCALED || op->code == LM_OP_GROUPED_OUTER;
}

bool lm_step_dot_accumulate(planner *p, lm_op *accum, const location *to) {
  lm_value *v = accum->in[accum->n_in - 1];
  int64_t stride[LM_RANK], in[LM_RANK];
  memcpy(stride, to->stride, sizeof stride);
  for (; v->def && p->uses[v->id] == 1 && !accumulates(v->def); v = v->def->in[0]) {
    if (slice_is_padded(p, accum, v->def, stride))
      continue; // the strides are the same
    if (!(lm_op_info_of(v->def)->traits & LM_T_VIEW) || !lm_view_invert(p->m, v->def, stride, in))
      return false;
    memcpy(stride, in, sizeof stride);
  }
  bool fits = v->def && accumulates(v->def) && p->uses[v->id] == 1;
  pstep *s = fits ? dot_step(p, v->def, accum) : NULL;
  lm_plan_gemm g;
  if (!s || s->step.kind != LM_STEP_GEMM || s->refs[s->step.n_read].at->into)
    return false;
  const location *x = lm_value_location(p, v->def->in[0]);
  const location *w = lm_value_location(p, v->def->in[1]);
  if (!lm_dot_gemm(p->m, v->def, x->stride, w->stride, stride, &g, NULL))
    return false;
  g.accumulate = true;
  g.dtype_c = LM_F32;
  *s->step.gemm = g;
  location target = *to;
  memcpy(target.stride, stride, sizeof stride);
  s->refs[s->step.n_read] = lm_location_ref(p, &target, v->type);
  s->step.label = lm_arena_printf(p->arena, "%s, accumulated", s->step.label);
  s->step.moved += lm_type_bytes(p, v->type);
  s->accum = accum;
  return true;
}
