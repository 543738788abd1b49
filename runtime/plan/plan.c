// plan.c - lookups in a plan, and printing it.
#include "runtime/plan/plan.h"

#include <string.h>

#include "runtime/base/dtype.h"

const lm_plan_func *lm_plan_func_get_key(const lm_plan *p, lm_func_key key) {
  for (int i = 0; i < p->n_funcs; i++)
    if (lm_func_key_equal(p->funcs[i].key, key))
      return &p->funcs[i];
  return NULL;
}

const lm_plan_func *lm_plan_func_get(const lm_plan *p, lm_func_id id, int64_t seq) {
  return lm_plan_func_get_key(p, (lm_func_key){.id = id, .seq = seq});
}

const lm_plan_func *lm_plan_func_extra(const lm_plan *p, lm_func_id id) {
  return lm_plan_func_get_key(p, (lm_func_key){.id = id, .extra = true});
}

const lm_plan_func *lm_plan_func_find(const lm_plan *p, const char *name) {
  for (int i = 0; i < p->n_funcs; i++)
    if (!strcmp(p->funcs[i].name, name))
      return &p->funcs[i];
  return NULL;
}

const lm_plan_param *lm_plan_param_find(const lm_plan *p, const char *path) {
  for (int i = 0; i < p->n_params; i++)
    if (!strcmp(p->params[i].path, path))
      return &p->params[i];
  return NULL;
}

lm_plan_batch lm_plan_batch_at(const lm_plan_batch *axes, int n, int64_t index) {
  lm_plan_batch at = {0};
  for (int i = n - 1; i >= 0; i--) {
    int64_t j = index % axes[i].size;
    index /= axes[i].size;
    at.a += j * axes[i].a;
    at.b += j * axes[i].b;
    at.c += j * axes[i].c;
  }
  return at;
}

void lm_plan_mesh_place(lm_plan *p, int rank) {
  for (int k = p->mesh.n - 1; k >= 0; k--) {
    p->mesh.axis[k].at = rank % p->mesh.axis[k].size;
    rank /= p->mesh.axis[k].size;
  }
}

int lm_plan_mesh_ranks(const lm_plan *p) {
  int n = 1;
  for (int k = 0; k < p->mesh.n; k++)
    n *= p->mesh.axis[k].size;
  return n;
}

const char *lm_plan_mesh_text(lm_arena *a, const lm_plan *p) {
  const char *axes = "";
  for (int k = 0; k < p->mesh.n; k++)
    axes = lm_arena_printf(a, "%s%s%s %d", axes, k ? ", " : "", p->mesh.axis[k].name,
                           p->mesh.axis[k].size);
  return p->mesh.n ? lm_arena_printf(a, "%d ranks (%s)", lm_plan_mesh_ranks(p), axes) : "";
}

bool lm_plan_mesh_counts(const lm_plan *p, int rank, lm_mesh_set set) {
  for (int k = p->mesh.n - 1; k >= 0; k--) {
    if (rank % p->mesh.axis[k].size && !(set >> k & 1))
      return false;
    rank /= p->mesh.axis[k].size;
  }
  return true;
}

int lm_plan_parts_of(const lm_plan *p, lm_mesh_set set, int *out_part) {
  int parts = 1;
  *out_part = 0;
  for (int k = 0; k < p->mesh.n; k++) {
    if (!(set >> k & 1))
      continue;
    *out_part = *out_part * p->mesh.axis[k].size + p->mesh.axis[k].at;
    parts *= p->mesh.axis[k].size;
  }
  return parts;
}

lm_mesh_set lm_plan_rows(const lm_plan *p) {
  lm_mesh_set rows = 0;
  for (int k = 0; k < p->mesh.n; k++)
    rows |= (lm_mesh_set)(p->mesh.axis[k].rows << k);
  return rows;
}

lm_mesh_set lm_plan_positions(const lm_plan *p) {
  lm_mesh_set positions = 0;
  for (int k = 0; k < p->mesh.n; k++)
    positions |= (lm_mesh_set)(p->mesh.axis[k].positions << k);
  return positions;
}

int lm_plan_parts(const lm_plan *p, int *out_part) {
  return lm_plan_parts_of(p, lm_plan_rows(p), out_part);
}

const char *lm_plan_group_name(const lm_plan *p, int group) {
  return group && group <= p->mesh.n ? p->mesh.axis[group - 1].name : "all";
}

static bool touches(const lm_plan_func *f, lm_arena_id arena, bool write) {
  for (int i = 0; i < f->n_steps; i++)
    for (int b = 0; b < f->steps[i].n_bufs; b++)
      if (f->steps[i].bufs[b].arena == arena && (b >= f->steps[i].n_read) == write)
        return true;
  return false;
}

int64_t lm_plan_arenas(const lm_plan *p, bool on_host) {
  int64_t bytes = 0;
  for (int i = 0; i < LM_ARENAS; i++)
    bytes += p->on_host[i] == on_host ? p->arena_bytes[i] : 0;
  return bytes;
}

static bool begins(const lm_plan_func *f, bool copies) {
  for (int k = 0; f && k < f->n_steps; k++)
    if (f->steps[k].kind == LM_STEP_START && lm_plan_step_copies(&f->steps[k]) == copies)
      return true;
  return false;
}

static bool has_collective(const lm_plan_func *f) {
  return begins(f, false);
}

bool lm_plan_copies(const lm_plan_func *f) {
  return begins(f, true);
}

bool lm_plan_exchanges(const lm_plan_func *f) {
  return has_collective(f) || has_collective(f->copies) || has_collective(f->packs);
}

lm_status lm_plan_of_one_process(const lm_plan *p) {
  for (int i = 0; i < p->n_funcs; i++)
    if (lm_plan_exchanges(&p->funcs[i]))
      return lm_fail(LM_BUG_STATUS, "%s has a step of a collective, but there is one process",
                     p->funcs[i].name);
  return NULL;
}

static bool initializes(const lm_plan_func *f) {
  for (int i = 0; i < f->n_steps; i++)
    if (f->steps[i].initializes)
      return true;
  return false;
}

void lm_plan_funcs_bind(lm_plan *p) {
  const lm_plan_func *copies = lm_plan_func_get(p, LM_FUNC_COPIES, 0);
  const lm_plan_func *packs = lm_plan_func_get(p, LM_FUNC_PACKS, 0);
  bool of_params = copies && touches(copies, LM_ARENA_PARAM, false); // else of frozen ones only
  for (int i = 0; i < p->n_funcs; i++) {
    p->funcs[i].copies = touches(&p->funcs[i], LM_ARENA_COPY, false) ? copies : NULL;
    p->funcs[i].packs = p->funcs[i].copies ? packs : NULL;
    p->funcs[i].changes_params = of_params && touches(&p->funcs[i], LM_ARENA_PARAM, true);
    p->funcs[i].makes_copies =
        p->funcs[i].changes_params && touches(&p->funcs[i], LM_ARENA_COPY, true);
    p->funcs[i].initializes = initializes(&p->funcs[i]);
  }
}

int64_t lm_plan_comm_count(const lm_plan_step *s, int i) {
  const lm_plan_comm *c = s->comm;
  bool scatters = c->kind == LM_COLL_REDUCE_SCATTER;
  if (c->tensors <= 1)
    return c->count;
  return s->bufs[scatters ? s->n_read + i : i].bytes / lm_dtype_bytes(c->dtype);
}

int64_t lm_plan_comm_rows(const lm_plan_step *s, int buf) {
  return s->bufs[buf].bytes / (s->comm->count * lm_dtype_bytes(s->comm->dtype));
}

int64_t lm_plan_step_times(const lm_plan_func *f, int i) {
  const lm_plan_step *s = &f->steps[i];
  int64_t times = 1, innermost = 1;
  for (int k = 0; k < i; k++) {
    const lm_plan_step *loop = &f->steps[k];
    if (loop->kind != LM_STEP_LOOP)
      continue;
    if (loop->match > i) {
      times *= innermost;
      innermost = loop->count;
    } else {
      k = loop->match;
    }
  }
  if (s->kind == LM_STEP_LOOP || s->kind == LM_STEP_END || (!s->from && !s->end))
    return times * innermost;
  int64_t end = s->end && s->end < innermost ? s->end : innermost;
  return times * (end > s->from ? end - s->from : 0);
}

// The elements of C of all GEMMs of a step, whose sizes are fixed.
static int64_t gemm_elements(const lm_plan_gemm *g) {
  int64_t n = g->m.fixed * g->n.fixed * (g->groups.sums ? g->groups.count : 1);
  for (int i = 0; i < g->n_batch; i++)
    n *= g->batch[i].sum ? 1 : g->batch[i].size.fixed;
  return n;
}

static int64_t move_bytes(const lm_plan_move *m) {
  int64_t bytes = m->element;
  for (int i = 0; i < m->rank; i++)
    bytes *= m->dim[i].size.fixed;
  return bytes;
}

// The bytes of the gradients that step s adds to. Those of an ADD, or of the batch of a GEMM, may
// be apart from each other.
static int64_t gradient_bytes(const lm_plan_step *s) {
  int64_t all = 0;
  if (s->kind == LM_STEP_ADD)
    return move_bytes(s->move);
  if (s->kind == LM_STEP_GEMM)
    return gemm_elements(s->gemm) * (int64_t)sizeof(float);
  for (int i = s->n_read; i < s->n_read + s->n_write; i++)
    all += s->bufs[i].arena == LM_ARENA_GRAD ? s->bufs[i].bytes : 0;
  return all;
}

int64_t lm_plan_step_saved(const lm_plan_func *f, int i, int64_t *out_times) {
  const lm_plan_step *s = &f->steps[i];
  const lm_plan_buf *to = &s->bufs[s->n_read];
  *out_times = 1;
  if (!s->initializes)
    return 0;
  if (s->kind == LM_STEP_FILL)
    return -s->bytes;
  for (int k = 0; k < i; k++) {
    const lm_plan_step *loop = &f->steps[k];
    int64_t slots = to->ring[loop->depth].slots;
    if (loop->kind == LM_STEP_LOOP && loop->match > i && to->stride[loop->depth])
      *out_times *= slots && slots < loop->count ? slots : loop->count;
  }
  return gradient_bytes(s);
}

const lm_plan_port *lm_plan_port_get(const lm_plan_func *f, lm_port_id id, bool result) {
  const lm_plan_port *ports = result ? f->out : f->in;
  int n = result ? f->n_out : f->n_in;
  for (int i = 0; i < n; i++)
    if (ports[i].id == id)
      return &ports[i];
  return NULL;
}

const lm_plan_port *lm_plan_port_find(const lm_plan_func *f, const char *name, bool result) {
  const lm_plan_port *ports = result ? f->out : f->in;
  int n = result ? f->n_out : f->n_in;
  for (int i = 0; i < n; i++)
    if (!strcmp(ports[i].name, name))
      return &ports[i];
  return NULL;
}

// ---- text

const char *const lm_step_names[LM_STEP_KINDS] = {
    [LM_STEP_KERNEL] = "kernel", [LM_STEP_GEMM] = "gemm",   [LM_STEP_LOOP] = "loop",
    [LM_STEP_END] = "end",       [LM_STEP_COPY] = "copy",   [LM_STEP_FILL] = "fill",
    [LM_STEP_ADD] = "add",       [LM_STEP_START] = "start", [LM_STEP_WAIT] = "wait"};

// (i0*1+0+r2*3 mod 4 div 2): the coordinate along the second axis of the mesh, times 3
static void print_cycle(int depth, const lm_plan_ring *r, lm_buf *out) {
  lm_buf_printf(out, "(i%d*%d+%d+r%d*%d mod %d div %d)", depth, r->by, r->ahead, r->mesh,
                r->by_rank, r->slots, r->per);
}

// i0, or (i0 mod 2), or (i0+1 mod 2)
static void print_slot(int depth, int slots, int ahead, lm_buf *out) {
  if (!slots)
    lm_buf_printf(out, "i%d", depth);
  else if (ahead)
    lm_buf_printf(out, "(i%d%+d mod %d)", depth, ahead, slots);
  else
    lm_buf_printf(out, "(i%d mod %d)", depth, slots);
}

static void print_buf(const lm_plan_buf *b, lm_buf *out) {
  lm_buf_printf(out, " %s[%lld", lm_arena_names[b->arena], (long long)b->offset);
  for (int d = 0; d < LM_PLAN_DEPTH; d++) {
    if (!b->stride[d])
      continue;
    lm_buf_printf(out, "%+lld*", (long long)b->stride[d]);
    if (b->ring[d].per)
      print_cycle(d, &b->ring[d], out);
    else
      print_slot(d, b->ring[d].slots, b->ring[d].ahead, out);
  }
  lm_buf_printf(out, " : %lld]", (long long)b->bytes);
}

// start reduce_scatter sum f32 4096 over dp of 3 lane 1 as 1
// start all_reduce sum f32 4096 over tp lane 2 as 4 + (i0 mod 2)
// start send f32 64 over all peer 3 lane 0 as 0
// start copy lane 1 as 3                              wait copy 3
static void print_comm(const lm_plan *p, const lm_plan_comm *c, int depth, bool start,
                       lm_buf *out) {
  bool reduces = c->kind == LM_COLL_ALL_REDUCE || c->kind == LM_COLL_REDUCE_SCATTER;
  if (c->kind == LM_COLL_COPY) {
    lm_buf_printf(out, " %s", lm_coll_names[c->kind]);
    if (start)
      lm_buf_printf(out, " lane %d as", c->lane);
  } else if (start) {
    lm_buf_printf(out, " %s%s%s %s %lld over %s", lm_coll_names[c->kind], reduces ? " " : "",
                  reduces ? lm_coll_op_names[c->op] : "", lm_dtype_name(c->dtype),
                  (long long)c->count, lm_plan_group_name(p, c->group));
    if (c->tensors > 1)
      lm_buf_printf(out, " of %d", c->tensors);
    if (c->kind >= LM_COLL_RING_SHIFT)
      lm_buf_printf(out, " peer %d", c->peer);
    lm_buf_printf(out, " lane %d as", c->lane);
  }
  lm_buf_printf(out, " %d", c->handle);
  if (c->slots) {
    lm_buf_puts(out, " + ");
    print_slot(depth - 1, c->slots, c->ahead, out);
  }
}

static void print_extent(const lm_plan *p, const lm_plan_extent *e, lm_buf *out) {
  if (e->fixed != 1 || !e->n_dyn)
    lm_buf_printf(out, "%lld", (long long)e->fixed);
  for (int i = 0; i < e->n_dyn; i++)
    lm_buf_printf(out, "%s%s", i || e->fixed != 1 ? "*" : "", p->extents[e->dyn[i].var].name);
}

static void print_gemm(const lm_plan *p, const lm_plan_gemm *g, lm_buf *out) {
  const struct {
    const char *name;
    const lm_plan_extent *size;
    int64_t a, b, c;
  } axes[] = {{"m", &g->m, g->a_m, 0, g->c_m},
              {"n", &g->n, 0, g->b_n, g->c_n},
              {"k", &g->k, g->a_k, g->b_k, 0}};
  for (size_t i = 0; i < LM_COUNT(axes); i++) {
    lm_buf_printf(out, " %s=", axes[i].name);
    print_extent(p, axes[i].size, out);
    lm_buf_printf(out, "(%lld,%lld,%lld)", (long long)axes[i].a, (long long)axes[i].b,
                  (long long)axes[i].c);
  }
  for (int i = 0; i < g->n_batch; i++) {
    lm_buf_puts(out, g->batch[i].sum ? " sum=" : " batch=");
    print_extent(p, &g->batch[i].size, out);
    lm_buf_printf(out, "(%lld,%lld,%lld)", (long long)g->batch[i].a, (long long)g->batch[i].b,
                  (long long)g->batch[i].c);
  }
  if (g->groups.count)
    lm_buf_printf(out, " groups=%d%s(0,%lld,%lld)", g->groups.count, g->groups.sums ? "k" : "m",
                  (long long)g->groups.b, (long long)g->groups.c);
  if (g->b_columns)
    lm_buf_printf(out, " panels=%d,%d", g->b_columns, g->b_group);
  if (g->accumulate)
    lm_buf_puts(out, " accumulate");
  if (g->residual)
    lm_buf_puts(out, " residual");
  if (g->bias)
    lm_buf_puts(out, " bias");
  if (g->gelu)
    lm_buf_puts(out, " gelu");
  if (g->scaled)
    lm_buf_printf(out, " scaled %s %s", lm_scales_of(g->scales[0]).name,
                  lm_scales_of(g->scales[1]).name);
  if (g->fast)
    lm_buf_puts(out, " fast");
  if (g->code)
    lm_buf_printf(out, " by %s", p->kernels[g->code - 1].name);
}

static void print_move(const lm_plan *p, const lm_plan_move *m, lm_buf *out) {
  for (int i = 0; i < m->rank; i++) {
    lm_buf_puts(out, " ");
    print_extent(p, &m->dim[i].size, out);
    lm_buf_printf(out, "(%lld,%lld)%s", (long long)m->dim[i].from, (long long)m->dim[i].to,
                  i == m->at_dim ? "at" : "");
  }
}

static void print_step(const lm_plan *p, const lm_plan_step *s, int number, int *depth,
                       lm_buf *out) {
  if (s->kind == LM_STEP_END)
    --*depth;
  lm_buf_printf(out, "  %4d %*s%s%s", number, 2 * *depth, "", lm_step_names[s->kind],
                s->initializes ? " init" : "");
  if (s->kind != LM_STEP_LOOP && (s->from || s->end))
    lm_buf_printf(out, " when %lld..", (long long)s->from);
  if (s->kind != LM_STEP_LOOP && s->end)
    lm_buf_printf(out, "%lld", (long long)s->end - 1);
  switch (s->kind) {
  case LM_STEP_KERNEL:
    lm_buf_printf(out, " %s over ", p->kernels[s->kernel].name);
    print_extent(p, &s->space, out);
    break;
  case LM_STEP_GEMM: print_gemm(p, s->gemm, out); break;
  case LM_STEP_LOOP:
    lm_buf_printf(out, " i%d < %lld", s->depth, (long long)s->count);
    ++*depth;
    break;
  case LM_STEP_COPY:
  case LM_STEP_ADD: print_move(p, s->move, out); break;
  case LM_STEP_FILL: lm_buf_printf(out, " %#llx", (unsigned long long)s->pattern); break;
  case LM_STEP_START:
  case LM_STEP_WAIT: print_comm(p, s->comm, *depth, s->kind == LM_STEP_START, out); break;
  case LM_STEP_END: break;
  }
  for (int i = 0; i < s->n_bufs; i++) {
    if (i == s->n_read && s->n_write)
      lm_buf_puts(out, " ->");
    if (i == s->n_read + s->n_write)
      lm_buf_puts(out, " workspace");
    print_buf(&s->bufs[i], out);
  }
  lm_buf_printf(out, "%s%s\n", s->label && *s->label ? "  // " : "", s->label ? s->label : "");
}

// partial(dp, tp)
static void print_partial(const lm_plan *p, lm_mesh_set set, lm_buf *out) {
  int n = 0;
  for (int k = 0; k < p->mesh.n; k++)
    if (set >> k & 1)
      lm_buf_printf(out, "%s%s", n++ ? ", " : " partial(", p->mesh.axis[k].name);
  lm_buf_puts(out, n ? ")" : "");
}

//   in tok: int[2 by dp, 32 by cp] io[0 : 256]
static void print_ports(const lm_plan *p, const char *what, const lm_plan_port *ports, int n,
                        lm_buf *out) {
  for (int i = 0; i < n; i++) {
    lm_buf_printf(out, "  %s %s: %s[", what, ports[i].name,
                  lm_dtype_name((lm_dtype)ports[i].dtype));
    for (int d = 0; d < ports[i].rank; d++) {
      lm_buf_printf(out, "%s%lld", d ? ", " : "", (long long)ports[i].shape[d]);
      for (int k = 0; k < p->mesh.n; k++)
        if (ports[i].by[d] >> k & 1)
          lm_buf_printf(out, " by %s", p->mesh.axis[k].name);
    }
    lm_buf_puts(out, "]");
    if (lm_role_names[ports[i].role])
      lm_buf_printf(out, " as %s", lm_role_names[ports[i].role]);
    if (ports[i].role == LM_ROLE_STATE)
      lm_buf_printf(out, " %d", ports[i].state);
    print_partial(p, ports[i].partial, out);
    print_buf(&ports[i].buf, out);
    lm_buf_puts(out, "\n");
  }
}

static void print_numbers(const int64_t *v, int n, lm_buf *out) {
  for (int i = 0; i < n; i++)
    lm_buf_printf(out, "%s%lld", i ? ", " : "[", (long long)v[i]);
  lm_buf_puts(out, n ? "]" : "[]");
}

static bool is_dense(const lm_plan_param *x) {
  int64_t n = 1;
  for (int d = x->rank - 1; x->n_pieces == 1 && d >= 0; d--) {
    if (x->pieces->size[d] != x->shape[d] || x->pieces->stride[d] != n)
      return false;
    n *= x->shape[d];
  }
  return x->n_pieces == 1;
}

// [64, 32 by tp]
static void print_shape(const lm_plan *p, const lm_plan_param *x, lm_buf *out) {
  for (int d = 0; d < x->rank; d++) {
    lm_buf_printf(out, "%s%lld", d ? ", " : "[", (long long)x->shape[d]);
    if (x->by[d])
      lm_buf_printf(out, " by %s", p->mesh.axis[x->by[d] - 1].name);
  }
  lm_buf_puts(out, x->rank ? "]" : "[]");
}

static void print_stage(const lm_plan *p, const lm_plan_param *x, lm_buf *out) {
  if (x->stages)
    lm_buf_printf(out, " at %s %d", p->mesh.axis[x->stages - 1].name, x->stage);
  lm_buf_puts(out, "\n");
}

// param layers.3.wo 8192 : 4096 at pp 1         on the ranks of this coordinate alone
// param layers.0.wo 8192 : 4096                 one dense piece: its offset and elements
// param layers.0.wo bf16 8192 : 4096            stored in another type than f32
// param layers.0.wq [64, 32] : 2048             others: the shape, then the pieces
// param layers.0.wu [64, 32 by tp] : 2048       divided: pieces of this rank's part
//   piece 0 [0, 0] [64, 16] by [96, 1]          offset, first indices, sizes and strides
static void print_param(const lm_plan *p, const lm_plan_param *x, lm_buf *out) {
  bool frozen = x->arena == LM_ARENA_FIXED;
  bool state = x->arena == LM_ARENA_STATE || x->arena == LM_ARENA_SMALL;
  lm_buf_printf(out, "%s %s ", frozen ? "frozen" : lm_arena_names[x->arena], x->path);
  if (frozen || (!state && x->dtype != LM_F32))
    lm_buf_printf(out, "%s ", lm_dtype_name((lm_dtype)x->dtype));
  if (is_dense(x)) {
    lm_buf_printf(out, "%lld : %lld", (long long)x->pieces->offset, (long long)x->elements);
    print_stage(p, x, out);
    return;
  }
  print_shape(p, x, out);
  lm_buf_printf(out, " : %lld", (long long)x->elements);
  print_stage(p, x, out);
  for (int i = 0; i < x->n_pieces; i++) {
    lm_buf_printf(out, "  piece %lld ", (long long)x->pieces[i].offset);
    print_numbers(x->pieces[i].first, x->rank, out);
    lm_buf_puts(out, " ");
    print_numbers(x->pieces[i].size, x->rank, out);
    lm_buf_puts(out, " by ");
    print_numbers(x->pieces[i].stride, x->rank, out);
    lm_buf_puts(out, "\n");
  }
}

static void print_func(const lm_plan *p, const lm_plan_func *f, lm_buf *out) {
  lm_buf_printf(out, "func %s work %lld", f->name, (long long)f->work_bytes);
  if (f->every)
    lm_buf_printf(out, " every %lld", (long long)f->every);
  lm_buf_puts(out, "\n");
  print_ports(p, "in", f->in, f->n_in, out);
  print_ports(p, "out", f->out, f->n_out, out);
  int depth = 0;
  for (int i = 0; i < f->n_steps; i++)
    print_step(p, &f->steps[i], i, &depth, out);
  for (int i = 0; i < f->n_live; i++)
    lm_buf_printf(out, "  live %d: work[%lld : %lld] steps %d..%d %s\n", i,
                  (long long)f->live[i].offset, (long long)f->live[i].bytes, f->live[i].first,
                  f->live[i].last, f->live[i].label);
}

// mesh tp 2 io[128 : 4]        its coordinate, where a step reads it
static void print_mesh(const lm_plan_mesh *m, lm_buf *out) {
  for (int k = 0; k < m->n; k++) {
    lm_buf_printf(out, "mesh %s %d%s%s%s", m->axis[k].name, m->axis[k].size,
                  m->axis[k].rows ? " rows" : "", m->axis[k].positions ? " positions" : "",
                  m->axis[k].balanced ? " balanced" : "");
    if (m->axis[k].rank >= 0)
      print_buf(&(lm_plan_buf){.arena = LM_ARENA_IO,
                               .offset = m->axis[k].rank,
                               .bytes = (int64_t)sizeof(int32_t)},
                out);
    lm_buf_puts(out, "\n");
  }
}

void lm_plan_print(const lm_plan *p, lm_buf *out) {
  print_mesh(&p->mesh, out);
  for (int i = 0; i < LM_ARENAS; i++)
    lm_buf_printf(out, "arena %s %lld%s\n", lm_arena_names[i], (long long)p->arena_bytes[i],
                  p->on_host[i] ? " on host" : "");
  for (int i = 0; i < p->n_extents; i++) {
    lm_buf_printf(out, "extent %s <= %lld", p->extents[i].name, (long long)p->extents[i].capacity);
    const char *of = p->extents[i].of ? p->extents[p->extents[i].of - 1].name : NULL;
    if (p->extents[i].capped)
      lm_buf_printf(out, " capped = %s", of);
    else if (of)
      lm_buf_printf(out, " = %lld*%s", (long long)p->extents[i].times, of);
    lm_buf_puts(out, "\n");
  }
  for (int i = 0; i < p->n_params; i++)
    print_param(p, &p->params[i], out);
  for (int i = 0; i < p->n_frozen; i++)
    print_param(p, &p->frozen[i], out);
  for (int i = 0; i < p->n_own_states; i++)
    print_param(p, &p->states[i], out);
  for (int i = 0; i < p->n_kernels; i++)
    lm_buf_printf(out, "kernel %s %s\n", p->kernels[i].name,
                  p->kernels[i].origin ? p->kernels[i].origin : "");
  for (int i = 0; i < p->n_funcs; i++)
    print_func(p, &p->funcs[i], out);
}
