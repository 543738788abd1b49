// random_test.c - plans of random programs: nested loops whose carries are swapped, unchanged, used
// twice, stacked before and after they change; values that are read through views, accumulated,
// returned twice. Results are compared with the interpreter, memory is checked on shadow memory.
//   random_test [FIRST COUNT]
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "tests/plan/harness.h"

enum {
  POOL = 64,
  SHAPES = 3
};

typedef struct maker {
  uint64_t state;
  lm_builder b;
  lm_axis a, c, n[LM_PLAN_DEPTH + 1][4]; // n[depth][count - 1]: axes for stacking
  lm_type shape[SHAPES];
  lm_value *pool[POOL];
  int n_pool; // of the types above, visible at the insertion point
  lm_value *stack[POOL];
  int n_stack; // stacked results
  lm_value *index[LM_PLAN_DEPTH];
  int depth;
} maker;

static int pick(maker *m, int n) {
  m->state = m->state * 6364136223846793005u + 1442695040888963407u;
  return (int)((m->state >> 33) % (uint64_t)n);
}

// Any value in the pool of that shape; there is always one.
static lm_value *pool_any(maker *m, int shape) {
  for (;;) {
    int i = pick(m, 3) ? m->n_pool - 1 - pick(m, m->n_pool < 6 ? m->n_pool : 6)
                       : pick(m, m->n_pool); // mostly recent ones
    if (lm_type_equal(m->pool[i]->type, m->shape[shape]))
      return m->pool[i];
    if (!pick(m, 8))
      for (int j = m->n_pool - 1; j >= 0; j--)
        if (lm_type_equal(m->pool[j]->type, m->shape[shape]))
          return m->pool[j];
  }
}

static void pool_add(maker *m, lm_value *v) {
  if (m->n_pool < POOL)
    m->pool[m->n_pool++] = v;
}

static lm_value *bounded(maker *m, lm_value *v) {
  return lm_emit1(&m->b, LM_OP_TANH, v);
}

static void emit_binary(maker *m) {
  int shape = pick(m, SHAPES);
  lm_value *x = pool_any(m, shape);
  lm_value *y = pool_any(m, shape);
  pool_add(m, bounded(m, lm_emit2(&m->b, pick(m, 2) ? LM_OP_ADD : LM_OP_MUL, x, y)));
}

static void emit_dot(maker *m) { // [c, a] · [a] -> [c], or [c, a] · [c] -> [a]
  lm_value *x = pool_any(m, 2);
  bool over_a = pick(m, 2);
  lm_axis over = over_a ? m->a : m->c;
  pool_add(m, bounded(m, lm_emit_dot(&m->b, x, pool_any(m, over_a ? 0 : 1), &over, 1)));
}

static void emit_outer(maker *m) { // [c], [a] -> [c, a]: an outer product
  pool_add(m, bounded(m, lm_emit_dot(&m->b, pool_any(m, 1), pool_any(m, 0), NULL, 0)));
}

static void emit_param(maker *m) {
  int shape = pick(m, 3);
  lm_attr at = {.sym = LM_SYM(m->b.m->ctx, shape == 0 ? "pa" : shape == 1 ? "pc" : "pca")};
  if (pick(m, 2))
    pool_add(m, lm_emit(&m->b, LM_OP_PARAM, NULL, 0, &at, NULL));
  else
    lm_emit_op(&m->b, LM_OP_ACCUM, (lm_value *[]){pool_any(m, shape)}, 1, &at, NULL);
}

static void emit_view(maker *m) { // permuted, and summed to a vector in the original order
  lm_value *p = lm_emit_permute(&m->b, pool_any(m, 2), (lm_axis[]){m->a, m->c}, 2);
  pool_add(m, bounded(m, lm_emit_dot(&m->b, p, pool_any(m, 1), &m->c, 1)));
}

static void emit_index(maker *m) { // the index of an iteration as a value
  if (!m->depth)
    return;
  lm_value *i = lm_emit_cast(&m->b, m->index[pick(m, m->depth)], LM_F32);
  pool_add(m, bounded(m, lm_emit2(&m->b, LM_OP_MUL, pool_any(m, 0), i)));
}

// An element of a stacked value, at the index of a loop of the same trip count or at a constant.
static void emit_at(maker *m) {
  if (!m->n_stack)
    return;
  lm_value *s = m->stack[pick(m, m->n_stack)], *i = NULL;
  int64_t size = lm_axis_size(m->b.m, s->type.axis[0]);
  for (int d = 0; d < m->depth; d++)
    if (m->index[d]->region->owner->attr.imm[0] == size)
      i = m->index[d];
  bool back = pick(m, 2);
  lm_attr at = {.n_imm = 2, .imm = {back ? size - 1 : 0, back ? -1 : 1}};
  if (!i)
    i = lm_emit_const(&m->b, lm_type_make(LM_INT, NULL, 0), pick(m, (int)size));
  pool_add(m, lm_emit(&m->b, LM_OP_AT, (lm_value *[]){s, i}, 2, &at, NULL));
}

static void region_fill(maker *m, int ops);

static void emit_loop(maker *m) {
  if (m->depth >= 3)
    return;
  lm_value *init[5] = {0}, *next[5] = {0}, *stacked[4] = {0};
  int n = pick(m, 5);
  int n_stacked = pick(m, 4);
  int count = 1 + pick(m, 4);
  int pool = m->n_pool;
  int stack = m->n_stack;
  int shape[5];
  for (int i = 0; i < n; i++) {
    shape[i] = pick(m, SHAPES);
    init[i] = pick(m, 5) ? pool_any(m, shape[i])
                         : lm_emit_const(&m->b, m->shape[shape[i]], 0.25 * pick(m, 3));
  }
  lm_op *loop =
      lm_loop_begin(&m->b, count, n_stacked ? m->n[m->depth][count - 1] : 0, init, (uint32_t)n);
  m->index[m->depth++] = loop->body->args[0];
  for (int i = 0; i < n; i++)
    pool_add(m, loop->body->args[i + 1]);
  region_fill(m, 2 + pick(m, 6));
  for (int i = 0; i < n; i++)
    next[i] = pool_any(m, shape[i]);
  for (int i = 0; i < n_stacked; i++) {
    int k = pick(m, 6);
    stacked[i] =
        k < n ? (pick(m, 2) ? next[k] : loop->body->args[k + 1]) : pool_any(m, pick(m, SHAPES));
  }
  lm_loop_end(&m->b, loop, next, (uint32_t)n, stacked, (uint32_t)n_stacked);
  m->depth--;
  m->n_pool = pool;
  m->n_stack = stack;
  for (int i = 0; i < n; i++)
    pool_add(m, loop->out[i]);
  for (int i = 0; i < n_stacked && m->n_stack < POOL; i++)
    m->stack[m->n_stack++] = loop->out[n + i];
}

static void region_fill(maker *m, int ops) {
  static void (*const emit[])(maker *) = {emit_binary, emit_binary, emit_dot,   emit_outer,
                                          emit_param,  emit_view,   emit_index, emit_at,
                                          emit_loop,   emit_loop};
  for (int i = 0; i < ops; i++)
    emit[pick(m, (int)LM_COUNT(emit))](m);
}

static lm_module *random_make(lm_ctx *ctx, void *user) {
  maker m = {.state = *(uint64_t *)user * 0x9e3779b97f4a7c15u + 1};
  lm_module *mod = lm_module_create(ctx);
  mod->stage = LM_STAGE_STEP;
  m.a = lm_axis_add(mod, LM_SYM(ctx, "a"), 1 + pick(&m, 40), 0);
  m.c = lm_axis_add(mod, LM_SYM(ctx, "c"), 1 + pick(&m, 40), 0);
  for (int d = 0; d <= LM_PLAN_DEPTH; d++)
    for (int i = 0; i < 4; i++)
      m.n[d][i] = lm_axis_add(mod, LM_SYM(ctx, "n"), i + 1, 0);
  m.shape[0] = lm_type_make(LM_F32, (lm_axis[]){m.a}, 1);
  m.shape[1] = lm_type_make(LM_F32, (lm_axis[]){m.c}, 1);
  m.shape[2] = lm_type_make(LM_F32, (lm_axis[]){m.c, m.a}, 2);
  static const char *const params[] = {"pa", "pc", "pca"}, *const args[] = {"x0", "x1", "x2"};
  lm_func *f = lm_func_add(mod, LM_SYM(ctx, "f"));
  for (int i = 0; i < SHAPES; i++) {
    lm_global_add(mod, LM_GLOBAL_PARAM, LM_SYM(ctx, params[i]), m.shape[i], 0);
    pool_add(&m, lm_arg_add(mod, f->body, m.shape[i], LM_SYM(ctx, args[i])));
  }
  m.b = (lm_builder){mod, f->body, NULL, {0}};
  region_fill(&m, 12);
  lm_value *results[6];
  static const char *const names[] = {"r0", "r1", "r2", "r3", "r4", "r5"};
  f->n_out = LM_COUNT(results);
  f->out_names = LM_NEW_N(mod->arena, lm_sym, f->n_out);
  for (int i = 0; i < 6; i++) {
    f->out_names[i] = LM_SYM(ctx, names[i]);
    results[i] =
        m.n_stack && !pick(&m, 3) ? m.stack[pick(&m, m.n_stack)] : pool_any(&m, pick(&m, SHAPES));
  }
  lm_emit_op(&m.b, LM_OP_RETURN, results, f->n_out, NULL, NULL);
  return mod;
}

int main(int argc, char **argv) {
  uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 60;
  cache_begin();
  for (uint64_t seed = first; seed < first + count; seed++) {
    if (argc > 1)
      fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    subject s = subject_make(random_make, &seed);
    run_compare(&s, "f");
    subject_free(&s);
  }
}
