// parse.c - reads a plan from its text, which contains neither the source of kernels nor the shapes
// of parameters.
#include "runtime/base/dtype.h"
#include "runtime/plan/reader.h"

// ---- parts of a line

// i0, (i0 mod 2) or (i0+1 mod 2); returns the depth of the loop.
static int slot(reader *r, int *out_slots, int *out_ahead) {
  bool ring = take(r, "(");
  *out_slots = *out_ahead = 0;
  expect(r, "i");
  int64_t d = number(r), ahead = 0, slots = 0;
  if (ring && r->at < r->end && *r->at == '+')
    ahead = number(r);
  if (ring) {
    expect(r, "mod");
    slots = number(r);
    expect(r, ")");
  }
  if (d < 0 || d >= LM_PLAN_DEPTH || (ring && (slots < 1 || slots > MAX_ITEMS)) ||
      ahead > MAX_ITEMS)
    r->failed = true;
  *out_slots = (int)slots;
  *out_ahead = (int)ahead;
  return r->failed ? 0 : (int)d;
}

static int after(reader *r, const char *before, int64_t least) {
  expect(r, before);
  int64_t n = number(r);
  r->failed |= n < least || n > MAX_ITEMS;
  return r->failed ? 0 : (int)n;
}

// (i0*1+0+r2*3 mod 4 div 2); returns the depth of the loop.
static int cycle(reader *r, lm_plan_ring *out) {
  int depth = after(r, "(i", 0);
  out->by = after(r, "*", 0);
  out->ahead = after(r, "+", 0);
  out->mesh = after(r, "+r", 1);
  out->by_rank = after(r, "*", 0);
  out->slots = after(r, "mod", 1);
  out->per = after(r, "div", 1);
  expect(r, ")");
  r->failed |= depth >= LM_PLAN_DEPTH || out->mesh > r->p->mesh.n || !out->per;
  r->failed |= out->per && out->slots % out->per;
  return r->failed ? 0 : depth;
}

// The text up to the next bracket multiplies the iteration.
static bool is_cycle(const reader *r) {
  const char *s = r->at;
  while (s < r->end && *s != ')' && *s != '*' && *s != ']')
    s++;
  return r->at < r->end && *r->at == '(' && s < r->end && *s == '*';
}

static lm_plan_buf buffer(reader *r) {
  lm_plan_buf b = {
      .arena = (uint8_t)choice(r, lm_arena_names, LM_ARENAS),
      .live = -1,
  };
  expect(r, "[");
  b.offset = number(r);
  while (!r->failed && r->at < r->end && (*r->at == '+' || *r->at == '-')) {
    int64_t stride = number(r);
    lm_plan_ring ring = {0};
    expect(r, "*");
    int d = is_cycle(r) ? cycle(r, &ring) : slot(r, &ring.slots, &ring.ahead);
    if (r->failed)
      break;
    b.stride[d] = stride;
    b.ring[d] = ring;
  }
  expect(r, ":");
  b.bytes = number(r);
  expect(r, "]");
  return b;
}

static lm_plan_extent extent(reader *r) {
  lm_plan_extent e = {.fixed = 1};
  blanks(r);
  bool digit = r->at < r->end && strchr("0123456789", *r->at);
  if (digit)
    e.fixed = number(r);
  while (!r->failed && (!digit || take(r, "*"))) {
    const char *name = word(r, " *(");
    int var = 0;
    while (var < r->p->n_extents && strcmp(r->p->extents[var].name, name))
      var++;
    if (var == r->p->n_extents || e.n_dyn == (int)LM_COUNT(e.dyn)) {
      r->failed = true;
      break;
    }
    e.dyn[e.n_dyn++].var = var;
    digit = true;
  }
  return e;
}

static void triple(reader *r, int64_t *a, int64_t *b, int64_t *c) {
  expect(r, "(");
  *a = number(r);
  expect(r, ",");
  *b = number(r);
  expect(r, ",");
  *c = number(r);
  expect(r, ")");
}

static int kernel_named(reader *r) {
  const char *name = word(r, " ");
  int i = 0;
  while (i < r->p->n_kernels && strcmp(r->p->kernels[i].name, name))
    i++;
  if (i == r->p->n_kernels)
    r->failed = true;
  return i;
}

static lm_scales scales(reader *r) {
  for (int i = 0; i < LM_SCALES_KINDS; i++)
    if (take(r, lm_scales_of((lm_scales)i).name))
      return (lm_scales)i;
  r->failed = true;
  return LM_SCALES_NUMBER;
}

static void gemm(reader *r, lm_plan_step *s) {
  lm_plan_gemm *g = s->gemm = LM_NEW(r->a, lm_plan_gemm);
  int64_t zero;
  expect(r, "m=");
  g->m = extent(r);
  triple(r, &g->a_m, &zero, &g->c_m);
  expect(r, "n=");
  g->n = extent(r);
  triple(r, &zero, &g->b_n, &g->c_n);
  expect(r, "k=");
  g->k = extent(r);
  triple(r, &g->a_k, &g->b_k, &zero);
  for (bool sum; !r->failed && ((sum = take(r, "sum=")) || take(r, "batch="));) {
    if (g->n_batch == LM_PLAN_BATCH) {
      r->failed = true;
      return;
    }
    int i = g->n_batch++;
    g->batch[i].sum = sum;
    g->batch[i].size = extent(r);
    triple(r, &g->batch[i].a, &g->batch[i].b, &g->batch[i].c);
  }
  if (take(r, "groups=")) {
    g->groups.count = (int)number(r);
    g->groups.sums = take(r, "k");
    r->failed |= g->groups.count < 1 || (!g->groups.sums && !take(r, "m"));
    triple(r, &zero, &g->groups.b, &g->groups.c);
  }
  if (take(r, "panels=")) {
    g->b_columns = (int)number(r);
    expect(r, ",");
    g->b_group = (int)number(r);
  }
  g->accumulate = take(r, "accumulate");
  g->residual = take(r, "residual");
  g->bias = take(r, "bias");
  g->gelu = take(r, "gelu");
  g->scaled = take(r, "scaled");
  for (int i = 0; i < 2 && g->scaled; i++)
    g->scales[i] = (uint8_t)scales(r);
  g->fast = take(r, "fast");
  if (take(r, "by"))
    g->code = 1 + kernel_named(r);
}

static bool at_buffer(const reader *r) {
  const char *p = r->at;
  while (p < r->end && *p == ' ')
    p++;
  for (int i = 0; i < LM_ARENAS; i++) {
    size_t n = strlen(lm_arena_names[i]);
    if ((size_t)(r->end - p) > n && !memcmp(p, lm_arena_names[i], n) && p[n] == '[')
      return true;
  }
  return p < r->end && (*p == '-' || *p == '/'); // "->", "// label"
}

static void move(reader *r, lm_plan_step *s) {
  lm_plan_move *m = s->move = LM_NEW(r->a, lm_plan_move);
  m->at_dim = -1;
  for (blanks(r); !r->failed && r->at < r->end && !at_buffer(r); blanks(r)) {
    if (m->rank == (int)LM_COUNT(m->dim)) {
      r->failed = true;
      return;
    }
    int i = m->rank++;
    m->dim[i].size = extent(r);
    expect(r, "(");
    m->dim[i].from = number(r);
    expect(r, ",");
    m->dim[i].to = number(r);
    expect(r, ")");
    if (take(r, "at"))
      m->at_dim = i;
  }
}

// ---- steps

static void loop_begin(reader *r, lm_plan_step *s, int index) {
  expect(r, "i");
  s->depth = (int)number(r);
  expect(r, "<");
  s->count = number(r);
  if (r->depth == LM_PLAN_DEPTH || s->depth != r->depth) {
    r->failed = true;
    return;
  }
  r->open[r->depth++] = index;
}

static void loop_end(reader *r, lm_plan_step *s, int index) {
  if (!r->depth) {
    r->failed = true;
    return;
  }
  s->match = r->open[--r->depth];
  s->depth = r->depth;
  r->f->steps[s->match].match = index;
}

static void kernel(reader *r, lm_plan_step *s) {
  s->kernel = kernel_named(r);
  expect(r, "over");
  s->space = extent(r);
}

// A number from 0 that fits an int.
static int small(reader *r) {
  int64_t n = number(r);
  if (n < 0 || n > MAX_ITEMS)
    r->failed = true;
  return r->failed ? 0 : (int)n;
}

static void handle(reader *r, lm_plan_comm *c) {
  c->handle = small(r);
  if (take(r, "+") && (slot(r, &c->slots, &c->ahead) != r->depth - 1 || !c->slots))
    r->failed = true; // of another loop than the innermost one
}

static void comm(reader *r, lm_plan_step *s) {
  lm_plan_comm *c = s->comm = LM_NEW(r->a, lm_plan_comm);
  bool copy = take(r, "copy ");
  *c = (lm_plan_comm){.kind = copy ? LM_COLL_COPY : LM_COLLS};
  if (s->kind == LM_STEP_START && copy) {
    expect(r, "lane");
    c->lane = small(r);
    expect(r, "as");
  } else if (s->kind == LM_STEP_START) {
    c->kind = (lm_coll_kind)choice(r, lm_coll_names, LM_COLL_COPY);
    if (c->kind == LM_COLL_ALL_REDUCE || c->kind == LM_COLL_REDUCE_SCATTER)
      c->op = (lm_coll_op)choice(r, lm_coll_op_names, LM_COLL_OPS);
    c->dtype = (lm_dtype)choice(r, lm_dtype_names, LM_REAL);
    c->count = number(r);
    expect(r, "over");
    c->group = group_named(r, " ");
    c->tensors = take(r, "of ") ? small(r) : 0;
    r->failed |= c->tensors > LM_COLL_BUCKET;
    if (c->kind >= LM_COLL_RING_SHIFT) {
      expect(r, "peer");
      c->peer = small(r);
    }
    expect(r, "lane");
    c->lane = small(r);
    expect(r, "as");
  }
  handle(r, c);
}

// when 1..22
static void iterations(reader *r, lm_plan_step *s) {
  if (!take(r, "when "))
    return;
  s->from = number(r);
  expect(r, "..");
  if (r->at < r->end && *r->at != ' ')
    s->end = number(r) + 1;
  bool plain = s->kind == LM_STEP_LOOP || s->kind == LM_STEP_END || !r->depth;
  r->failed |= plain || s->from < 0 || (s->end && s->end <= s->from) || (!s->from && !s->end);
}

static void operands(reader *r, lm_plan_step *s) {
  uint32_t cap = 0;
  int part = 0, count[3] = {0}; // read, written, workspaces
  for (blanks(r); !r->failed && r->at < r->end; blanks(r)) {
    if (take(r, "//")) {
      s->label = rest(r);
      break;
    }
    if (take(r, "->")) {
      part = 1;
      continue;
    }
    if (take(r, "workspace")) {
      part = 2;
      continue;
    }
    *ADD(r, s->bufs, s->n_bufs, cap) = buffer(r);
    count[part]++;
  }
  s->n_read = count[0];
  s->n_write = count[1];
  if (!s->label)
    s->label = "";
}

static void step(reader *r) {
  int index = r->f->n_steps;
  if (number(r) != index || index >= MAX_ITEMS) {
    r->failed = true;
    return;
  }
  lm_plan_step *s = ADD(r, r->f->steps, r->f->n_steps, r->cap_steps);
  *s = (lm_plan_step){.kind = (lm_step_kind)choice(r, lm_step_names, LM_STEP_KINDS)};
  s->initializes = take(r, "init");
  iterations(r, s);
  switch (s->kind) {
  case LM_STEP_KERNEL: kernel(r, s); break;
  case LM_STEP_GEMM: gemm(r, s); break;
  case LM_STEP_LOOP: loop_begin(r, s, index); break;
  case LM_STEP_END: loop_end(r, s, index); break;
  case LM_STEP_COPY:
  case LM_STEP_ADD: move(r, s); break;
  case LM_STEP_START:
  case LM_STEP_WAIT: comm(r, s); break;
  case LM_STEP_FILL: s->pattern = strtoull(word(r, " "), NULL, 16); break;
  }
  operands(r, s);
  int tensors = s->comm ? s->comm->tensors : 0;
  r->failed |= tensors > 1 && (s->n_read != tensors || s->n_write != tensors);
}

// A port without a role in the text has the one of the table, if that is not printed.
static void role(reader *r, lm_plan_port *x) {
  x->role = x->id < LM_PORTS ? lm_port_table[x->id].role : LM_ROLE_OTHER;
  if (lm_role_names[x->role])
    x->role = LM_ROLE_OTHER;
  if (!take(r, "as "))
    return;
  int i = LM_ROLE_PARAM;
  while (i < LM_ROLES && !take(r, lm_role_names[i]))
    i++;
  r->failed |= i == LM_ROLES;
  x->role = i < LM_ROLES ? (lm_port_role)i : LM_ROLE_OTHER;
  x->state = x->role == LM_ROLE_STATE ? (int)number(r) : 0;
}

static lm_mesh_set partial(reader *r) {
  lm_mesh_set set = 0;
  if (!take(r, "partial("))
    return 0;
  do
    set |= (lm_mesh_set)(1 << group_named(r, ",)") >> 1);
  while (take(r, ","));
  expect(r, ")");
  return set;
}

static void port(reader *r, bool result) {
  lm_plan_port x = {.name = word(r, ":")};
  x.id = lm_port_find(x.name);
  expect(r, ":");
  x.dtype = (uint8_t)choice(r, lm_dtype_names, LM_REAL);
  expect(r, "[");
  while (!r->failed && !take(r, "]")) {
    if (x.rank == (int)LM_COUNT(x.shape)) {
      r->failed = true;
      return;
    }
    if (x.rank)
      expect(r, ",");
    x.shape[x.rank] = number(r);
    while (take(r, "by "))
      x.by[x.rank] |= (lm_mesh_set)(1 << group_named(r, " ,]") >> 1);
    x.rank++;
  }
  role(r, &x);
  x.partial = partial(r);
  x.buf = buffer(r);
  if (result)
    *ADD(r, r->f->out, r->f->n_out, r->cap_out) = x;
  else
    *ADD(r, r->f->in, r->f->n_in, r->cap_in) = x;
}

static void live(reader *r) {
  if (number(r) != r->f->n_live)
    r->failed = true;
  lm_plan_live *x = ADD(r, r->f->live, r->f->n_live, r->cap_live);
  expect(r, ":");
  expect(r, "work[");
  x->offset = number(r);
  expect(r, ":");
  x->bytes = number(r);
  expect(r, "]");
  expect(r, "steps");
  x->first = (int)number(r);
  expect(r, "..");
  x->last = (int)number(r);
  x->label = rest(r);
}

static void func_line(reader *r) {
  if (take(r, "in "))
    port(r, false);
  else if (take(r, "out "))
    port(r, true);
  else if (take(r, "live "))
    live(r);
  else
    step(r);
}

// ---- the file

// The live range that contains a buffer at a step. Ranges that are live at the same time do not
// overlap.
static int live_range_of(const lm_plan_func *f, int step, const lm_plan_buf *b) {
  for (int i = 0; i < f->n_live; i++) {
    const lm_plan_live *x = &f->live[i];
    if (x->first <= step && step <= x->last && x->offset <= b->offset &&
        b->offset < x->offset + x->bytes)
      return i;
  }
  return -1;
}

static void func_end(reader *r) {
  if (r->depth)
    r->failed = true;
  for (int i = 0; r->f && i < r->f->n_steps; i++)
    for (int k = 0; k < r->f->steps[i].n_bufs; k++) {
      lm_plan_buf *b = &r->f->steps[i].bufs[k];
      if (b->arena == LM_ARENA_WORK)
        b->live = live_range_of(r->f, i, b);
    }
}

static void func(reader *r) {
  func_end(r);
  r->f = ADD(r, r->p->funcs, r->p->n_funcs, r->cap_funcs);
  *r->f = (lm_plan_func){.name = word(r, " ")};
  r->f->key = lm_func_key_parse(r->f->name);
  expect(r, "work");
  r->f->work_bytes = number(r);
  r->f->every = take(r, "every") ? number(r) : 0;
  r->cap_steps = r->cap_in = r->cap_out = r->cap_live = 0;
}

static void mesh(reader *r) {
  lm_plan_mesh *m = &r->p->mesh;
  if (m->n == LM_MESH_AXES) {
    r->failed = true;
    return;
  }
  m->axis[m->n].name = word(r, " ");
  m->axis[m->n].size = small(r);
  m->axis[m->n].rows = take(r, "rows");
  m->axis[m->n].positions = take(r, "positions");
  blanks(r);
  m->axis[m->n].balanced = take(r, "balanced");
  blanks(r);
  m->axis[m->n++].rank = r->at < r->end ? buffer(r).offset : -1;
}

static void top_line(reader *r) {
  lm_plan *p = r->p;
  if (take(r, "mesh ")) {
    mesh(r);
  } else if (take(r, "arena ")) {
    int i = choice(r, lm_arena_names, LM_ARENAS);
    p->arena_bytes[i] = number(r);
    p->on_host[i] = take(r, "on host");
  } else if (take(r, "extent ")) {
    if (p->n_extents == (int)LM_COUNT(p->extents)) {
      r->failed = true;
      return;
    }
    p->extents[p->n_extents].name = word(r, " ");
    expect(r, "<=");
    p->extents[p->n_extents].capacity = number(r);
    p->extents[p->n_extents].capped = take(r, "capped");
    lm_plan_extent x = take(r, "=") ? extent(r) : (lm_plan_extent){.fixed = 0};
    p->extents[p->n_extents].of = x.n_dyn ? x.dyn[0].var + 1 : 0;
    p->extents[p->n_extents++].times = x.fixed;
  } else if (take(r, "param ")) {
    lm_plan_param_read(r, ADD(r, p->params, p->n_params, r->cap_params), LM_ARENA_PARAM);
  } else if (take(r, "frozen ")) {
    lm_plan_param_read(r, ADD(r, p->frozen, p->n_frozen, r->cap_frozen), LM_ARENA_FIXED);
  } else if (take(r, "state ")) {
    lm_plan_param_read(r, ADD(r, p->states, p->n_own_states, r->cap_states), LM_ARENA_STATE);
  } else if (take(r, "small ")) {
    lm_plan_param_read(r, ADD(r, p->states, p->n_own_states, r->cap_states), LM_ARENA_SMALL);
  } else if (take(r, "kernel ")) {
    lm_plan_kernel *x = ADD(r, p->kernels, p->n_kernels, r->cap_kernels);
    *x = (lm_plan_kernel){.name = word(r, " ")};
    x->origin = rest(r);
  } else if (take(r, "func ")) {
    func(r);
  } else {
    r->failed = true;
  }
}

lm_status lm_plan_parse(lm_arena *a, const char *text, size_t n, lm_plan **out) {
  reader r = {
      .a = a,
      .p = LM_NEW(a, lm_plan),
  };
  for (const char *at = text, *end = text + n; at < end; at = r.end + 1) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    r.at = at;
    r.end = stop ? stop : end;
    r.line++;
    if (r.at == r.end)
      continue;
    if (*r.at == ' ' && r.f)
      func_line(&r);
    else if (take(&r, "piece "))
      lm_plan_piece_read(&r);
    else
      top_line(&r);
    if (!r.failed && (blanks(&r), r.at < r.end))
      r.failed = true;
    if (r.failed)
      return lm_fail(LM_USER, "line %d: '%.*s' is not a line of a plan", r.line,
                     (int)(r.end - at < 80 ? r.end - at : 80), at);
  }
  func_end(&r);
  if (r.failed)
    return lm_fail(LM_USER, "line %d: a loop without an end", r.line);
  lm_plan_funcs_bind(r.p);
  *out = r.p;
  return NULL;
}
