// rows.c - rows that passes hold, and sums over points.
//
// A row is the result at one point of a reduction that keeps axes. It is in shared memory, one row
// for each team; with one thread for each point in a local array; in the workspace if it is too
// large for either.
//
// The sums of a chunk are in shared memory, one set for each team, and are added in the order of
// teams at the end of the chunk. Until then a thread has its sums in registers, if they are few and
// it has the same elements of a row at every point. With vectors of w elements, element j is at (j
// mod w) * (n / w) + j / w, so that neighbouring threads access different banks. cuda_shape_choose
// gives a block as many teams as it has room for sets. If that is one, the team is the whole block,
// and sums that are too large for shared memory are accumulated in the result itself: one thread
// adds all terms of an element there. Two teams would race.
#include "codegen/cuda/emit.h"

typedef struct row {
  cuda_row_kind kind;
  int64_t elements, bytes;
} row;

int64_t cuda_points(const cuda_emit *e) {
  int64_t n = 1;
  for (int i = 0; i < e->g.kernel->attr.n_axes; i++)
    n *= lm_axis_size(e->g.m, e->g.kernel->attr.axes[i]);
  return n;
}

static int64_t register_bytes(lm_dtype t) {
  return t == LM_F64 ? 8 : 4;
}

static row row_of(const cuda_emit *e, const lm_node *n) {
  lm_dtype t = n->op->out[0]->type.dtype;
  row r = {.elements = lm_type_elements(e->g.m, lm_kernel_inner(e->g.kernel, n->op->out[0]->type))};
  r.bytes = r.elements * register_bytes(t) * (e->team > 1 ? e->teams : 1);
  if (e->team == 1)
    r.kind = r.elements <= CUDA_MAX_LOCAL ? CUDA_ROW_LOCAL : CUDA_ROW_WORKSPACE;
  else
    r.kind = e->g.kernel->attr.n_to || r.bytes > CUDA_MAX_SHARED / 4 ? CUDA_ROW_WORKSPACE
                                                                     : CUDA_ROW_SHARED;
  return r;
}

static bool is_row(const lm_node *n) {
  return n->held == LM_HELD_ROW;
}

bool cuda_holds_rows(const cuda_emit *e) {
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++)
    if (is_row(&e->g.s->nodes[i]))
      return true;
  return false;
}

static const char *row_location(cuda_emit *e, const lm_node *n, const lm_ix *at) {
  const char *index = lm_gen_index(&e->g, at, false);
  row r = row_of(e, n);
  if (r.kind != CUDA_ROW_SHARED)
    return index;
  return lm_arena_printf(e->g.arena, "team * %lld + %s", (long long)r.elements, index);
}

lm_gen_text cuda_held(lm_gen *g, const lm_value *v, const lm_ix *ix) {
  cuda_emit *e = (cuda_emit *)g;
  const lm_node *n = lm_schedule_node(g->s, v);
  if (n->held == LM_HELD_SCALAR)
    return (lm_gen_text){lm_arena_printf(g->arena, "h%u", n->op->mark), 0};
  lm_ix at = lm_gen_dense_index(g, v->type, ix, lm_kernel_inner(g->kernel, v->type));
  const char *form = row_of(e, n).kind == CUDA_ROW_SHARED ? "lm_get(h%u, %s)" : "h%u[%s]";
  const char *text = lm_arena_printf(g->arena, form, n->op->mark, row_location(e, n, &at));
  return lm_gen_temp(g, v->type.dtype, lm_ix_level(&g->vars, &at), text, NULL, v->type);
}

void cuda_row_put(cuda_emit *e, int level, const lm_value *v, const lm_ix *ix, const char *x) {
  const lm_node *n = lm_schedule_node(e->g.s, v);
  lm_ix at = lm_gen_dense_index(&e->g, v->type, ix, lm_kernel_inner(e->g.kernel, v->type));
  const char *form =
      row_of(e, n).kind == CUDA_ROW_SHARED ? "lm_put(h%u, %s, %s);" : "h%u[%s] = %s;";
  lm_gen_statement(&e->g, level, form, n->op->mark, row_location(e, n, &at), x);
}

// Rows in the workspace are numbered by point, or by team within a chunk.
void cuda_rows_declare(cuda_emit *e, lm_buf *head, lm_buf *in_place) {
  int64_t chunks = e->g.kernel->attr.n_to ? lm_axis_size(e->g.m, e->g.kernel->attr.to[0]) : 0;
  for (uint32_t i = 0; i < e->g.s->n_nodes; i++) {
    const lm_node *n = &e->g.s->nodes[i];
    if (!is_row(n))
      continue;
    lm_dtype t = n->op->out[0]->type.dtype;
    const char *type = lm_gen_held_type(t);
    row r = row_of(e, n);
    lm_type inner = lm_kernel_inner(e->g.kernel, n->op->out[0]->type);
    if (r.kind == CUDA_ROW_LOCAL) {
      lm_buf_printf(head, "%s h%u[%lld]", type, i, (long long)r.elements);
      lm_gen_type_note(&e->g, head, inner);
    } else if (r.kind == CUDA_ROW_SHARED && e->shared + r.bytes <= CUDA_MAX_SHARED) {
      e->shared += r.bytes;
      lm_buf_printf(head, "LM_SHARED(%s, h%u, %lld)", type, i, (long long)(r.elements * e->teams));
      lm_gen_type_note(&e->g, head, inner);
    } else {
      int64_t rows = chunks ? chunks * e->teams : cuda_points(e);
      if (e->n_workspaces == LM_KERNEL_WORKSPACES)
        LM_BUG("a kernel with more than %d large rows", LM_KERNEL_WORKSPACES);
      e->workspace[e->n_workspaces] = rows * r.elements * register_bytes(t);
      const char *number =
          chunks ? lm_arena_printf(e->g.arena, "(block * %d + team)", e->teams) : "point";
      lm_buf_printf(in_place, "%s *h%u = (%s *)w%d + (int64_t)%s * %lld", type, i, type,
                    e->n_workspaces++, number, (long long)r.elements);
      lm_gen_type_note(&e->g, in_place, inner);
    }
  }
}

void cuda_element_put(cuda_emit *e, uint32_t result, const char *index, const char *x, int level) {
  if (e->rows)
    lm_gen_statement(&e->g, level, "lm_put(%s, %s, %s);", e->rows, index, x);
  else if (cuda_carry_is(e, result))
    lm_gen_statement(&e->g, level, "next%u = %s;", result, x);
  else
    lm_gen_statement(&e->g, level, "r%u[%s] = %s;", result, index, x);
}

// ---- sums over points

static int64_t sum_elements(const cuda_emit *e, uint32_t i) {
  lm_type t = e->g.kernel->out[i]->type;
  return lm_type_elements(e->g.m, t) / lm_axis_size(e->g.m, t.axis[0]);
}

// Elements from the sums of one team to the sums of the next. The teams of a warp begin as many
// banks apart as a team has lanes.
static int64_t sum_pitch(const cuda_emit *e, uint32_t i) {
  int64_t n = sum_elements(e, i);
  if (e->team >= CUDA_WARP)
    return n;
  return n + (e->team - n % CUDA_WARP + CUDA_WARP) % CUDA_WARP;
}

// Bytes of a team's sums of the results before that one.
static int64_t sums_bytes(const cuda_emit *e, uint32_t result) {
  int64_t elements = 0;
  for (uint32_t i = 0; i < result; i++)
    if (lm_kernel_result_summed(e->g.kernel, i))
      elements += sum_pitch(e, i);
  return elements * (int64_t)sizeof(float);
}

bool cuda_sums_fit(const cuda_emit *e, int teams) {
  return sums_bytes(e, e->g.kernel->n_out) * teams <= e->max_pool;
}

static bool sum_shared(const cuda_emit *e, uint32_t result) {
  bool fits = sums_bytes(e, result + 1) * e->teams <= e->max_pool;
  LM_ASSERT(fits || e->teams == 1);
  return fits;
}

int64_t cuda_sums_pool(const cuda_emit *e) {
  uint32_t n = e->g.kernel->n_out;
  while (n && !sum_shared(e, n - 1))
    n--;
  int64_t bytes = sums_bytes(e, n) * e->teams;
  return bytes > CUDA_MAX_SHARED ? bytes : 0;
}

static int sum_registers(const cuda_emit *e) {
  int n = 0;
  for (uint32_t i = 0; i < e->n_sum_parts; i++)
    n += e->sum_parts[i].n;
  return n;
}

// True if all of its sums are in registers until the end of the chunk.
static bool in_registers(const cuda_emit *e, uint32_t result) {
  int64_t n = 0;
  for (uint32_t i = 0; i < e->n_sum_parts; i++)
    if (e->sum_parts[i].result == result)
      n += e->sum_parts[i].elements;
  return n == sum_elements(e, result);
}

int cuda_loaded_registers(const cuda_emit *e, int pass) {
  int n = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++)
    n += e->g.accesses[i].memory && e->g.accesses[i].pass == pass ? e->width[pass] : 0;
  return n;
}

// Sums over points have about two blocks for each multiprocessor (choose): their registers shall
// leave room for both, if the sums in shared memory do. Of two large blocks a thread has 64.
bool cuda_is_paired(const cuda_emit *e) {
  enum {
    FEW = 40,
    MOST = 50 // in a shape that search.c asks for
  };
  int threads = e->team * e->teams, loaded = 0;
  int few = e->wish.threads ? MOST : FEW;
  for (uint32_t p = 0; p < e->g.s->n_passes; p++) {
    int n = cuda_loaded_registers(e, (int)p);
    loaded = n > loaded ? n : loaded;
  }
  bool room = threads <= CUDA_THREADS ||
              (threads <= CUDA_ROWS_THREADS && e->kept_registers + loaded <= few);
  return e->g.kernel->attr.n_to && room && 2 * cuda_sums_pool(e) <= e->max_pool;
}

// True if the pass has registers for n more sums beside the vectors that it loads.
static bool has_room(const cuda_emit *e, int n) {
  enum {
    PASS_REGISTERS = 72 // of 128
  };
  int share = e->wish.threads > CUDA_THREADS ? 4 : 1; // of 64 registers few are left for sums
  int sums = share * (sum_registers(e) + n);
  int loaded = cuda_loaded_registers(e, e->g.pass);
  return sums <= CUDA_SUM_REGISTERS && sums + loaded <= PASS_REGISTERS;
}

// Adds x to a sum in a register, if the pass has only a loop over lanes, and maybe one over the
// elements of a vector. location: the arguments of lm_get and lm_put for the sum in shared memory.
static bool register_add(cuda_emit *e, int level, uint32_t result, const char *location,
                         const char *x) {
  int width = e->width[e->g.pass];
  const lm_var *v = &e->g.vars.v[e->vector];
  bool complete = e->vector ? !v->lo && v->hi == width : width == 1;
  const cuda_rounds *r = &e->rounds;
  if (!complete || level != e->n_stages || e->n_stages != 1 + (e->vector != 0) || !r->n ||
      !has_room(e, r->n * width))
    return false;
  cuda_sum_part *p = &LM_PUSH(e->g.arena, e->sum_parts, e->n_sum_parts, e->cap_sum_parts);
  *p = (cuda_sum_part){.result = result,
                       .elements = (int64_t)cuda_trips(e, 0) * width,
                       .name = lm_gen_temp_name(&e->g, "k"),
                       .n = r->n * width};
  const char *round = cuda_round_index(e);
  const char *at =
      e->vector ? lm_arena_printf(e->g.arena, "%s[%s * %d + %s]", p->name, round, width, v->name)
                : lm_arena_printf(e->g.arena, "%s[%s]", p->name, round);
  lm_gen_statement(&e->g, level, "%s += %s;", at, x);
  lm_gen_count_addition(&e->g, x, level);
  const char *loop =
      e->vector ? lm_arena_printf(e->g.arena, "LM_UNROLL\nfor (int32_t %s = 0; %s < %d; %s++) ",
                                  v->name, v->name, width, v->name)
                : "";
  p->store = lm_arena_printf(e->g.arena, "%s%slm_put(%s, %s);\n}\n", r->head, loop, location, at);
  return true;
}

void cuda_sum_add(cuda_emit *e, int level, uint32_t result, lm_type t, const lm_ix *ix,
                  const char *x) {
  lm_ix at = lm_gen_dense_index(&e->g, t, ix, lm_kernel_inner(e->g.kernel, t)), rest = {0};
  int width = e->width[e->g.pass];
  bool shared = sum_shared(e, result);
  bool spread = shared && e->vector && lm_ix_coef(&at, e->vector) == 1 && at.c % width == 0;
  for (int i = 0; spread && i < at.n; i++) {
    if (at.t[i].var == e->vector)
      continue;
    spread = at.t[i].coef % width == 0;
    rest.t[rest.n] = at.t[i];
    rest.t[rest.n++].coef /= width;
  }
  int64_t n = sum_elements(e, result);
  e->sum_width[result] = spread ? width : 1;
  if (spread) {
    rest.c = at.c / width;
    at = lm_ix_add(rest, lm_ix_scale(lm_ix_var(&e->g.vars, e->vector), n / width));
  }
  const char *index = lm_gen_index(&e->g, &at, false);
  if (shared) {
    const char *location = lm_arena_printf(e->g.arena, "c%u, team * %lld + %s", result,
                                           (long long)sum_pitch(e, result), index);
    if (!register_add(e, level, result, location, x))
      lm_gen_statement(&e->g, level, "lm_put(%s, lm_get(%s) + %s);", location, location, x);
  } else {
    lm_gen_statement(&e->g, level, "c%u[%s] += %s;", result, index, x);
  }
}

// Declares the sums of a result; returns their number in a block.
static long long sum_declare(cuda_emit *e, uint32_t i, lm_buf *b) {
  long long n = sum_elements(e, i);
  long long all = sum_pitch(e, i) * e->teams;
  if (!sum_shared(e, i)) {
    lm_buf_printf(b, "float *c%u = r%u + block * %lld;\n", i, i, n);
    return n;
  }
  if (cuda_sums_pool(e)) {
    lm_buf_printf(b, "LM_POOL(float, c%u, %lld, %lld);\n", i,
                  (long long)sums_bytes(e, i) * e->teams, all);
    return all;
  }
  lm_buf_printf(b, "LM_SHARED(float, c%u, %lld);\n", i, all);
  e->shared += all * (int64_t)sizeof(float);
  return all;
}

// Clears the sums that are not in registers.
void cuda_sums_begin(cuda_emit *e, lm_buf *b) {
  int threads = e->team * e->teams;
  bool cleared = false;
  if (cuda_sums_pool(e))
    lm_buf_puts(b, "LM_POOL_DECLARE();\n");
  for (uint32_t i = 0; i < e->g.kernel->n_out; i++) {
    if (!lm_kernel_result_summed(e->g.kernel, i))
      continue;
    long long all = sum_declare(e, i, b);
    const char *clear = sum_shared(e, i) ? "lm_put(c%u, z, 0.0f);\n" : "c%u[z] = 0.0f;\n";
    if (in_registers(e, i))
      continue;
    lm_buf_printf(b, "for (int32_t z = lm_thread(); z < %lld; z += %d) ", all, threads);
    lm_buf_printf(b, clear, i);
    cleared = true;
  }
  for (uint32_t i = 0; i < e->n_sum_parts; i++)
    lm_buf_printf(b, "float %s[%d] = {0};\n", e->sum_parts[i].name, e->sum_parts[i].n);
  if (cleared)
    lm_buf_puts(b, "lm_barrier();\n");
}

void cuda_sums_finish(cuda_emit *e, lm_buf *b) {
  int threads = e->team * e->teams;
  for (uint32_t i = 0; i < e->n_sum_parts; i++)
    lm_buf_puts(b, e->sum_parts[i].store);
  lm_buf_puts(b, "lm_barrier();\n");
  for (uint32_t i = 0; i < e->g.kernel->n_out; i++) {
    if (!lm_kernel_result_summed(e->g.kernel, i) || !sum_shared(e, i))
      continue;
    long long n = sum_elements(e, i);
    int width = e->sum_width[i];
    lm_buf_printf(b, "for (int32_t z = lm_thread(); z < %lld; z += %d) {\nfloat s = 0.0f;\n", n,
                  threads);
    if (width > 1)
      lm_buf_printf(b, "const int32_t at = z %% %d * %lld + z / %d;\n", width, n / width, width);
    lm_buf_printf(b, "for (int32_t j = 0; j < %d; j++) s += lm_get(c%u, j * %lld + %s);\n",
                  e->teams, i, (long long)sum_pitch(e, i), width > 1 ? "at" : "z");
    lm_buf_printf(b, "r%u[block * %lld + z] = s;\n}\n", i, n);
  }
}
