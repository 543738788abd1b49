// shard_test.c - a sharded module on all ranks of a mesh, in float64 and in lockstep, against one
// rank: results and gradients, up to rounding.
//
// usage: shard_test [FIRST COUNT]: only these random programs
#include "compiler/ops/interface.h"
#include "tests/passes/shard_check.h"
#include "tests/passes/shard_mistakes.h"
#include "tests/passes/shard_random.h"

// ---- random programs and meshes

static const char *random_mesh(lm_arena *a, uint64_t seed) {
  static const char *const by_two[] = {"g", "ff", "v", "d", "e", "h", "t", "gh", "g2", "s", "v2"};
  static const char *const by_four[] = {"g", "ff", "v", "t", "gh", "g2", "s", "v2"};
  static const char *const contexts[] = {"cp = 2 positions, ", "cp = 2 positions shard(g, h), ",
                                         "cp = 2 positions shard(d, v, e), "};
  static const int dp[] = {1, 2, 2, 4}, tp[] = {1, 2, 2, 4, 2};
  program p = {.state = seed * 7919 + 3};
  int rows = dp[draw(&p, 4)], parts = tp[draw(&p, 5)];
  bool two = rows == 2 && draw(&p, 2);
  bool positions = parts < 4 && draw(&p, 3) == 0;
  lm_buf list = {0};
  for (int i = 0; i < 12; i++) {
    const char *name = parts == 4 ? by_four[draw(&p, 8)] : by_two[draw(&p, 11)];
    if (draw(&p, 2))
      lm_buf_printf(&list, "%s%s", list.n ? ", " : "", name);
  }
  if (!list.n)
    lm_buf_puts(&list, "ff, v, g");
  const char *out = lm_arena_printf(a, "dp = %d shard(b), %s%stp = %d shard(%s)", rows,
                                    two ? "fsdp = 2 shard(b), " : "",
                                    positions ? contexts[draw(&p, 3)] : "", parts, list.p);
  lm_buf_free(&list);
  return out;
}

static void random_check(uint64_t seed) {
  lm_arena *a = lm_arena_create();
  const char *text = program_text(a, seed);
  char name[40];
  snprintf(name, sizeof name, "random program %llu", (unsigned long long)seed);
  text_check(name, text, random_mesh(a, seed), 8);
  lm_arena_destroy(a);
}

// ---- collectives against finite differences

typedef struct test {
  const char *op, *body;
} test;

static const char head[] =
    "stage graph\n"
    "param @x : f32[a@m, c] = ones  param @y : f32[c@m, a] = ones  param @r : f32[a, c] = ones\n"
    "param @k : f32[a@m, e] = ones  param @k2 : f32[c, e] = ones\n"
    "func @loss() -> (sum: f32, weight: f32) {\n"
    "%x = param @x  %y = param @y  %r = param @r  %k = param @k  %k2 = param @k2  %one = const 1 : "
    "f32\n"
    "%weight = first %one over(m)\n";

// %t is partial.
static const test collectives[] = {
    {"fan", "%s = sin %r  %f = fan %s over(m)  %v = dot %f, %x over(c)  %u = sin %v\n"
            "%t = sum %u over(a, a@m)"},
    {"all_reduce", "%p = dot %x, %k over(a@m)  %w = all_reduce %p over(m)  %s = sin %w\n"
                   "%f = fan %s over(m)  %h = first %f over(m)  %t = sum %h over(c, e)"},
    {"first",
     "%s = sin %r  %f = fan %s over(m)  %h = first %f over(m)  %g = all_reduce %h over(m)\n"
     "%g2 = mul %g, %g  %p = part %g2 over(m) (a) -> (a@m)  %t = sum %p over(a@m, c)"},
    {"all_gather", "%s = sin %x  %v = all_gather %s over(m) (a@m) -> (a)  %w = mul %v, %v\n"
                   "%d = dot %w, %y over(a)  %u = sin %d  %t = sum %u over(c, c@m)"},
    {"reduce_scatter", "%p = dot %x, %k over(a@m)  %w = reduce_scatter %p over(m) (c) -> (c@m)\n"
                       "%s = sin %w  %t = sum %s over(c@m, e)"},
    {"collect", "%s = sin %x  %v = collect %s over(m) (a@m) -> (a)  %w = mul %v, %r  %u = sin %w\n"
                "%p = part %u over(m) (a) -> (a@m)  %q = mul %p, %x  %t = sum %q over(a@m, c)"},
    {"part", "%s = sin %r  %p = part %s over(m) (c) -> (c@m)  %q = mul %p, %y\n"
             "%t = sum %q over(a, c@m)"},
    {"all_to_all", "%s = sin %x  %v = all_to_all %s over(m) (a@m, c) -> (a, c@m)\n"
                   "%w = mul %v, %y  %u = sin %w  %t = sum %u over(a, c@m)"},
    {"ring_shift", "%s = sin %x  %v = ring_shift %s over(m) [1]  %w = mul %v, %x\n"
                   "%v2 = ring_shift %w over(m) [-2]  %u = mul %v2, %s  %t = sum %u over(a@m, c)"},
    {"exchange_rows",
     "%i = iota : int[a]  %n = const 2 : int  %two = mod %i, %n  %ia = part %two over(m) (a) -> "
     "(a@m)\n"
     "%send = group_counts %ia (a@m) -> (p)  %receive = exchange_counts %send over(m)\n"
     "%s = sin %x  %v = exchange_rows %s, %send, %receive over(m) (a@m) -> (w@m)\n"
     "%w = mul %v, %v  %g = sin %w  %u = dot %g, %k2 over(c)  %t = sum %u over(w@m, e)"},
    {"all_max", "%s = sin %x  %l = max %s over(a@m)  %v = all_max %l over(m)  %w = mul %v, %v\n"
                "%f = fan %w over(m)  %u = mul %x, %f  %t = sum %u over(a@m, c)"},
};

static lm_type whole_type(const lm_module *m, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    while (m->axes[t.axis[i]].whole)
      t.axis[i] = m->axes[t.axis[i]].whole;
  return t;
}

static void set_parts(const lm_module *m, lm_eval_mesh *e, const char *name,
                      const lm_tensor *whole) {
  for (int r = 0; r < lm_mesh_ranks(m); r++) {
    lm_tensor *own = lm_eval_global(lm_eval_mesh_rank(e, r), name);
    lm_tensor part = lm_eval_part(m, r, whole, own->type);
    lm_tensor_free(own);
    *own = part;
  }
}

// The sum of a partial result.
static double total(lm_eval_mesh *e, const lm_module *m, const char *func) {
  const lm_func *f = lm_func_find(m, func);
  lm_tensor out[16];
  double sum = 0;
  CHECK(lm_mesh_ranks(m) * (int)f->n_out <= (int)LM_COUNT(out) && f->n_out == 2);
  CHECK_OK(lm_eval_mesh_call(e, f, NULL, out));
  for (int r = 0; r < lm_mesh_ranks(m); r++) {
    sum += out[2 * r].v[0];
    lm_tensor_free(&out[2 * r]);
    lm_tensor_free(&out[2 * r + 1]);
  }
  return sum;
}

static double difference_of(const lm_module *m, lm_eval_mesh *e, const char *name, lm_tensor *whole,
                            int64_t i) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double was = whole->v[i], sum = 0, h = 1e-3;
  for (int k = 0; k < 4; k++) {
    whole->v[i] = was + at[k] * h;
    set_parts(m, e, name, whole);
    sum += weight[k] * total(e, m, "loss");
  }
  whole->v[i] = was;
  set_parts(m, e, name, whole);
  return sum / (12 * h);
}

static int difference_check(const machine *k) {
  run r = {0};
  int seen = 0;
  uint64_t state = 3;
  lm_eval_mesh *e = lm_eval_mesh_create(k->m);
  lm_tensor whole[8];
  for (uint32_t i = 0; i < k->m->n_globals; i++) {
    whole[i] = lm_eval_tensor(lm_eval_mesh_rank(e, 0), whole_type(k->m, k->m->globals[i].type));
    fill_real(&whole[i], -1, 1, &state);
    set_parts(k->m, e, k->m->globals[i].name, &whole[i]);
  }
  total(e, k->m, "micro");
  r.small = 0.01;
  for (uint32_t i = 0; i < k->m->n_globals; i++) {
    const lm_global *g = &k->m->globals[i];
    lm_tensor want = lm_eval_tensor(lm_eval_mesh_rank(e, 0), whole[i].type);
    for (int64_t at = 0; at < want.n; at++) {
      want.v[at] = difference_of(k->m, e, g->name, &whole[i], at);
      seen += fabs(want.v[at]) > 1e-3;
    }
    compare_gradient(&r, k, e, g, &want);
    lm_tensor_free(&want);
  }
  for (uint32_t i = 0; i < k->m->n_globals; i++)
    lm_tensor_free(&whole[i]);
  lm_eval_mesh_destroy(e);
  if (!(r.worst <= 1e-8))
    fprintf(stderr, "the gradient of @%s differs by %.3g\n", r.what, r.worst);
  CHECK(r.worst <= 1e-8);
  return seen;
}

static void collectives_check(const test *t, int ranks) {
  char mesh[16], axes[160];
  lm_buf text = {0};
  snprintf(mesh, sizeof mesh, "m = %d", ranks);
  snprintf(axes, sizeof axes,
           "axis a = 6, c = 6, e = 2, a@m = %d, c@m = %d, p = %d, w = %d, w@m = 6\n", 6 / ranks,
           6 / ranks, ranks, 6 * ranks);
  size_t n = strcspn(head, "\n") + 1;
  lm_buf_add(&text, head, n);
  lm_buf_printf(&text, "%s%s%s\nreturn %%t, %%weight\n}\n", axes, head + n, t->body);
  machine k = compile(t->op, text.p, mesh, "mesh,grad,mesh");
  CHECK(difference_check(&k) > 10);
  lm_ctx_destroy(k.c);
  lm_buf_free(&text);
}

static void every_collective_has_a_case(void) {
  for (int code = 0; code < LM_OPS; code++) {
    bool found = !(lm_op_table[code].attrs & LM_A_MESH) ||
                 lm_op_derivative((lm_opcode)code) == LM_DERIVATIVE_ZERO;
    for (size_t i = 0; i < LM_COUNT(collectives); i++)
      found |= !strcmp(collectives[i].op, lm_op_table[code].name);
    if (!found)
      fprintf(stderr, "expected a case for %s\n", lm_op_table[code].name);
    CHECK(found);
  }
}

// ---- a Llama: textbook counts

static char *llama_text(lm_arena *a) {
  static const char *const changes[][2] = {{"axis b = 2, t = 5", "axis b = 4, t = 8"},
                                           {"ff = 7", "ff = 8"},
                                           {"v = 11, s = 5", "v = 8, s = 8"}};
  lm_buf text = {0}, out = {0};
  CHECK_OK(lm_file_read("tests/ir/llama.lmir", 1 << 20, &text));
  for (size_t i = 0; i < LM_COUNT(changes); i++) {
    char *at = strstr(text.p, changes[i][0]);
    CHECK(at);
    char *whole = lm_arena_printf(a, "%.*s%s%s", (int)(at - text.p), text.p, changes[i][1],
                                  at + strlen(changes[i][0]));
    text.n = 0;
    lm_buf_puts(&text, whole);
  }
  const char *body = strstr(text.p, "stage graph");
  machine k = compile("llama", body, NULL, "inline,simplify,cse,licm,dce");
  lm_module_print(k.m, &out);
  char *printed = lm_arena_printf(a, "%s", out.p);
  lm_ctx_destroy(k.c);
  lm_buf_free(&text);
  lm_buf_free(&out);
  return printed;
}

typedef struct counts {
  int of[LM_OPS], inside[LM_OPS];
} counts;

static void count_op(lm_op *op, void *user) {
  counts *n = user;
  n->of[op->code]++;
  n->inside[op->code] += op->parent->owner != NULL;
}

static counts count(const lm_module *m, const char *func) {
  counts n = {0};
  lm_region_walk(lm_func_find(m, func)->body, count_op, &n);
  return n;
}

// Korthikanti et al. 2022: with tensor parallelism two all-reduces a layer forwards and two
// backwards; with sequence parallelism an all-gather and a reduce-scatter instead of each. The
// vocabulary adds one for the embedding, a maximum and two sums of cross-entropy, and one
// backwards.
static void llama_check(void) {
  lm_arena *a = lm_arena_create();
  const char *text = llama_text(a);
  const char *clean = "shard,mesh,grad,mesh,simplify,cse,licm,dce";
  machine tp = compile("llama", text, "tp = 2 shard(g, ff, v)", clean);
  counts loss = count(tp.m, "loss"), micro = count(tp.m, "micro");
  CHECK(loss.of[LM_OP_ALL_REDUCE] == 2 + 3 && loss.inside[LM_OP_ALL_REDUCE] == 2);
  CHECK(loss.of[LM_OP_ALL_MAX] == 1 && loss.of[LM_OP_ALL_GATHER] == 0);
  CHECK(micro.of[LM_OP_ALL_REDUCE] == 2 + 3 + 2 + 1 && micro.inside[LM_OP_ALL_REDUCE] == 2 + 2);
  CHECK(micro.of[LM_OP_ALL_MAX] == 1 && micro.of[LM_OP_COLLECT] == 0);
  machine sp = compile("llama", text, "tp = 2 shard(g, ff, v, t)", clean);
  loss = count(sp.m, "loss"), micro = count(sp.m, "micro");
  CHECK(loss.inside[LM_OP_ALL_GATHER] == 2 && loss.inside[LM_OP_REDUCE_SCATTER] == 2);
  CHECK(loss.inside[LM_OP_ALL_REDUCE] == 0);
  CHECK(micro.inside[LM_OP_REDUCE_SCATTER] == 4);
  CHECK(micro.inside[LM_OP_ALL_GATHER] == 2 + 2 + 2); // and what the weights' gradients read again
  static const char *const meshes[] = {
      "dp = 2 shard(b)",
      "dp = 4 shard(b)",
      "tp = 2 shard(g, ff, v)",
      "tp = 2 shard(g, ff, v, t)",
      "dp = 2 shard(b), tp = 2 shard(g, ff, v)",
      "dp = 2 shard(b), tp = 2 shard(g, ff, v, t)",
      "tp = 2 shard(v), dp = 2 shard(b), fsdp = 2 shard(b)",
      "dp = 2 shard(b), cp = 2 shard(t), tp = 2 shard(g, ff)",
      "cp = 4 positions",
      "cp = 4 positions balanced",
      "tp = 2 shard(g, ff, v, t), dp = 2 rows, cp = 2 positions balanced",
      "dp = 2 rows zero 3",
      "dp = 4 rows zero 3",
      "dp = 2 rows, fsdp = 2 rows zero 3",
      "dp = 2 rows zero 3, tp = 2 shard(g, ff, v)",
      "dp = 2 rows zero 3, tp = 2 shard(g, ff, v, t)",
      "dp = 2 rows zero 3, cp = 2 positions",
      "pp = 2 pipeline 2 one_f_one_b",
      "dp = 2 rows, pp = 2 pipeline 1 one_f_one_b",
      "pp = 2 pipeline 2 one_f_one_b, tp = 2 shard(g, ff, v)",
      "pp = 2 pipeline 2 one_f_one_b, tp = 2 shard(g, ff, v, t)",
      "pp = 2 pipeline 2 one_f_one_b, cp = 2 positions",
      "pp = 2 pipeline 2 one_f_one_b, cp = 2 positions shard(g)",
      "pp = 2 pipeline 2 one_f_one_b, cp = 2 positions balanced ring",
      "dp = 2 rows zero 3, pp = 2 pipeline 1 one_f_one_b",
      "pp = 2 rows pipeline 4",
      "pp = 2 rows pipeline 2",
      "dp = 2 rows, pp = 2 rows pipeline 2",
      "pp = 2 rows pipeline 4, tp = 2 shard(g, ff, v)",
      "pp = 2 rows pipeline 2, tp = 2 shard(g, ff, v, t)",
      "pp = 2 rows pipeline 4, cp = 2 positions balanced",
      "pp = 2 rows pipeline 4, cp = 2 positions shard(g)",
      "pp = 2 rows pipeline 4, cp = 2 positions ring",
      "dp = 2 rows zero 3, pp = 2 rows pipeline 2",
      "tp = 1 shard(g)"};
  for (size_t i = 0; i < LM_COUNT(meshes); i++)
    text_check("llama", text, meshes[i], 8);
  lm_ctx_destroy(tp.c);
  lm_ctx_destroy(sp.c);
  lm_arena_destroy(a);
}

// Positions divided: the keys and values of a layer are gathered, and their cotangents reduced and
// scattered; the positions and the segments of the batch are gathered once.
static void positions_check(void) {
  lm_arena *a = lm_arena_create();
  machine cp = compile("llama", llama_text(a), "cp = 2 positions",
                       "shard,mesh,grad,mesh,simplify,cse,licm,dce");
  counts loss = count(cp.m, "loss"), micro = count(cp.m, "micro");
  CHECK(loss.inside[LM_OP_ALL_GATHER] == 2 && loss.of[LM_OP_ALL_GATHER] == 2);
  CHECK(loss.of[LM_OP_COLLECT] == 2 && loss.inside[LM_OP_COLLECT] == 0);
  CHECK(micro.inside[LM_OP_REDUCE_SCATTER] == 2 && micro.of[LM_OP_REDUCE_SCATTER] == 2);
  CHECK(micro.of[LM_OP_ALL_REDUCE] == 0 && micro.of[LM_OP_ALL_TO_ALL] == 0);
  for (uint32_t i = 0; i < cp.m->n_globals; i++)
    CHECK(cp.m->globals[i].partial == 1);
  lm_ctx_destroy(cp.c);
  lm_arena_destroy(a);
}

// An early and a late part of the positions for each rank. The index of a position, also in the
// numbers of rows of random numbers, is that of one rank; models that depend on the order of the
// elements have consecutive parts.
static void balance_check(void) {
  static const char text[] =
      "stage graph\naxis b = 2, t = 8, s = 8, d = 3, v = 8, a = 4, n = 16\n"
      "param @table : f32[v, d] = ones  param @spots : f32[s, d] = ones\n"
      "func @loss(%tok: int[b, t], %w: f32[b, t], %step: int, %row: int) -> "
      "(sum: f32, weight: f32) {\n"
      "%table = param @table  %spots = param @spots  %x = gather %table, %tok over(v)\n"
      "%i = iota : int[t]  %p = gather %spots, %i over(s)  %pb = expand %p : f32[b, t, d]\n"
      "%ib = iota : int[b]  %eight = const 8 : int  %ib8 = mul %ib, %eight\n"
      "%ibt = expand %ib8 : int[b, t]  %it = expand %i : int[b, t]  %rows = add %ibt, %it\n"
      "%zero = const 0 : int  %u = rng %step, %rows, %zero, %zero [1, 2, 3] : f32[b, t, d]\n"
      "%y = add %x, %pb  %z = mul %y, %u  %q = sin %z  EXTRA\n"
      "%wd = expand %w : f32[b, t, d]  %m = mul %r, %wd  %sum = sum %m over(b, t, d)\n"
      "%weight = sum %w over(b, t)  return %sum, %weight\n}\n";
  static const mistake cases[] = {
      {"EXTRA", "%r = neg %q", "balanced"},
      {"EXTRA", "%r0 = view %q (b, t) -> (n)  %r1 = neg %r0  %r = view %r1 (n) -> (b, t)",
       "balanced"},
      {"EXTRA",
       "%r1 = max %q over(t)  %r2 = stop_grad %r1  %r3 = expand %r2 : f32[b, t, d]\n"
       "%r = sub %q, %r3",
       "balanced"},
      {"EXTRA", "%r1 = max %q over(t)  %r2 = expand %r1 : f32[b, t, d]  %r = sub %q, %r2", NULL},
      {"EXTRA",
       "%r1 = slice %q (t) -> (a) [0, 2]  %r2 = sum %r1 over(a)\n"
       "%r3 = expand %r2 : f32[b, t, d]  %r = add %q, %r3",
       NULL},
      {"%u = rng %step, %rows, %zero, %zero [1, 2, 3] : f32[b, t, d]",
       "%r0 = rng %step, %ib, %zero, %zero [1, 2, 8] : f32[b, t]  %u = expand %r0 : f32[b, t, d]",
       NULL},
  };
  lm_arena *a = lm_arena_create();
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    const char *one = replaced(a, text, cases[i].from, cases[i].to);
    one = strstr(one, "EXTRA") ? replaced(a, one, "EXTRA", "%r = neg %q") : one;
    machine k = compile("positions", one, "cp = 2 positions balanced", "shard");
    CHECK(k.m->mesh.axis[0].balanced == (cases[i].message != NULL));
    lm_ctx_destroy(k.c);
    text_check("positions", one, "cp = 2 positions balanced", 8);
    text_check("positions", one, "cp = 4 positions balanced, dp = 2 rows", 8);
  }
  lm_arena_destroy(a);
}

// Attention divided by heads: the parts of q, k and v along the positions become parts along the
// heads, and those of the result become parts along the positions again. The mask is computed from
// gathered positions and segments.
static void heads_check(void) {
  lm_arena *a = lm_arena_create();
  const char *text = llama_text(a);
  machine cp = compile("llama", text, "cp = 2 positions shard(g)",
                       "shard,mesh,grad,mesh,simplify,cse,licm,dce");
  counts loss = count(cp.m, "loss"), micro = count(cp.m, "micro");
  CHECK(loss.inside[LM_OP_ALL_TO_ALL] == 4 && loss.of[LM_OP_ALL_TO_ALL] == 4);
  CHECK(loss.of[LM_OP_ALL_GATHER] == 0 && loss.of[LM_OP_COLLECT] == 2);
  CHECK(micro.of[LM_OP_REDUCE_SCATTER] == 0 && micro.of[LM_OP_ALL_REDUCE] == 0);
  for (uint32_t i = 0; i < cp.m->n_globals; i++)
    CHECK(cp.m->globals[i].partial == 1);
  text_check("llama", text, "cp = 2 positions shard(g)", 8);
  text_check("llama", text, "dp = 2 rows, cp = 2 positions shard(g)", 8);
  lm_ctx_destroy(cp.c);
  lm_arena_destroy(a);
}

// ---- mistakes

// A program in which a collective is missing, too many or of the wrong kind.
static const char sharded[] =
    "stage graph\nmesh dp = 2, tp = 2\naxis b = 4, d = 3, ff = 4, b@dp = 2, ff@tp = 2\n"
    "param @u : f32[d, ff@tp] = ones\nparam @n : f32[d] = ones\nparam @v : f32[ff@tp, d] = ones\n"
    "func @loss(%x: f32[b@dp, d]) -> (sum: f32, weight: f32) {\n"
    "%n = param @n\n%xn = mul %x, %n\n%q = mul %xn, %xn\n%f = fan %q over(tp)\n"
    "%u = param @u\n%y = dot %f, %u over(d)\n%a = tanh %y\n%v = param @v\n"
    "%z = dot %a, %v over(ff@tp)\n%r = all_reduce %z over(tp)\n%e = add %r, %xn\n%o = mul %e, %e\n"
    "%s = sum %o over(b@dp, d)\n%w = const 4 : f32\n%g = first %w over(dp)\nreturn %s, %g\n}\n";

static const mistake mistakes[] = {
    {"mesh dp", "mesh dp", NULL},
    {"%f = fan %q over(tp)\n", "%f = neg %q\n", "adds a partial sum to a value that is none"},
    {"%o = mul %e, %e",
     "%y2 = dot %e, %u over(d)\n%z2 = dot %y2, %v over(ff@tp)\n%r2 = all_reduce "
     "%z2 over(tp)\n%o = mul %e, %r2",
     "`fan` is missing"},
    {"%r = all_reduce %z over(tp)\n", "%r = neg %z\n",
     "adds a partial sum to a value that is none"},
    {"%r = all_reduce %z over(tp)\n",
     "%r2 = all_reduce %z over(tp)\n%r = all_reduce %r2 over(tp)\n", "a reduction too many"},
    {"%a = tanh %y", "%y2 = all_reduce %y over(tp)\n%a = tanh %y2", "a reduction too many"},
    {"%r = all_reduce %z over(tp)\n", "%t = tanh %z\n%r = all_reduce %t over(tp)\n",
     "uses a partial sum before it is reduced"},
    {"param @n : f32[d] =", "param @n : f32[d] partial(dp, tp) =",
     "the gradient of n is not partial over the axes that are stated"},
    {"param @u : f32[d, ff@tp] =", "param @u : f32[d, ff@tp] partial(tp) =",
     "the gradient of u is not partial over the axes that are stated"},
    {"(sum: f32,", "(sum: f32 partial(tp),", "result sum is not partial over the axes"},
    {"%s = sum %o over(b@dp, d)", "%s0 = sum %o over(b@dp, d)\n%s = all_reduce %s0 over(tp)",
     "a reduction too many"},
};

static void mistakes_check(void) {
  for (size_t i = 0; i < LM_COUNT(mistakes); i++) {
    lm_arena *a = lm_arena_create();
    const char *text = replaced(a, sharded, mistakes[i].from, mistakes[i].to);
    expect(text, "mesh,grad,mesh", mistakes[i].message);
    lm_arena_destroy(a);
  }
}

// Meshes that do not fit a model.
static void meshes_check(void) {
  static const mistake meshes[] = {
      {"", "tp = 8 shard(g)", "tp = 8 does not divide g = 2: 1 and 2 do"},
      {"", "tp = 3 shard(d, ff)", "tp = 3 does not divide ff = 8: 1, 2, 4 and 8 do"},
      {"", "dp = 8 shard(b)", "dp = 8 does not divide b = 4: 1, 2 and 4 do"},
      {"", "cp = 3 positions", "cp = 3 does not divide t = 8: 1, 2, 4 and 8 do"},
      {"", "tp = 2 shard(gg)", "the model has no axis 'gg' to divide; did you mean g?"},
      {"", "tp = 2 shard(layers)", "axis 'layers' counts the instances of a repetition"},
      {"", "dp = 2 shard(b), tp = 4 shard(ff, h)", "tp = 4 does not divide h = 2: 1 and 2 do"},
      {"", "pp = 4 rows pipeline 4", "pp = 4 does not divide the 2 blocks of the list: 1 and 2 do"},
      {"", "tp = 2 shard(g, zzzzzz)", "the model has no axis 'zzzzzz' to divide\n"},
  };
  lm_arena *a = lm_arena_create();
  const char *text = llama_text(a);
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    const char *mesh = lm_arena_printf(a, "stage graph\nmesh %s\n", meshes[i].to);
    expect(replaced(a, text, "stage graph\n", mesh), "shard", meshes[i].message);
  }
  expect("stage graph\nmesh tp = 2 shard(x)\naxis x = 2\n"
         "func @g(%x: f32[x]) -> (y: f32[x]) { return %x }\n"
         "func @f(%x: f32[x]) -> (y: f32[x]) { %y = call @g(%x) : f32[x]  return %y }\n",
         "shard", "pass shard divides no operation `call`");
  lm_arena_destroy(a);
}

// 1F1B with more stages than micro-batches, and with a number of them that is no multiple.
static void ticks_check(void) {
  lm_arena *a = lm_arena_create();
  const char *rows = replaced(a, llama_text(a), "b = 4", "b = 12");
  const char *text = replaced(a, replaced(a, rows, "layers = 2", "layers = 4"), "loop 2", "loop 4");
  text_check("4 blocks", text, "pp = 4 pipeline 3 one_f_one_b", 8);
  text_check("4 blocks", text, "pp = 2 pipeline 3 one_f_one_b", 8);
  text_check("4 blocks", text, "pp = 2 pipeline 2 interleaved 2", 8);
  text_check("4 blocks", text, "pp = 2 pipeline 6 interleaved 2", 8);
  text_check("4 blocks", text, "dp = 2 rows zero 3, pp = 2 pipeline 2 interleaved 2", 8);
  text_check("4 blocks", text, "pp = 2 pipeline 2 interleaved 2, tp = 2 shard(g, ff, v, t)", 8);
  text_check("4 blocks", text, "pp = 2 pipeline 6 interleaved 2, cp = 2 positions balanced ring",
             8);
  rows = replaced(a, llama_text(a), "b = 4", "b = 16");
  text = replaced(a, replaced(a, rows, "layers = 2", "layers = 8"), "loop 2", "loop 8");
  text_check("8 blocks", text, "pp = 4 pipeline 4 interleaved 2", 8);
  text_check("8 blocks", text, "pp = 2 pipeline 4 interleaved 4", 8);
  text_check("8 blocks", text, "pp = 2 pipeline 8 interleaved 2", 8);
  lm_arena_destroy(a);
}

// Functions beside the losses that the stages of a pipeline cannot compute.
static void stages_check(void) {
  static const char text[] =
      "stage graph\nmesh pp = 2 rows pipeline 2\naxis b = 4, d = 3, layers = 4\n"
      "param @w : f32[layers, d] stacked 1 as @layers.#.w = ones\n"
      "param @m : f32[layers, d] stacked 1 as @layers.#.m = ones\n"
      "cache @h : f32[layers, b, d] stacked 1\n"
      "func @loss(%x: f32[b, d]) -> (sum: f32, weight: f32) {\n"
      "%y = loop 4 %i carry(%c = %x) { %w = param @w[%i] %m = param @m[%i]\n"
      "%p = mul %c, %w %n = mul %p, %m yield %n }\n"
      "%s = sum %y over(b, d) %o = const 1 : f32[b] %k = sum %o over(b) return %s, %k }\n";
  lm_arena *a = lm_arena_create();
  const char *begin = "func @begin() -> (begin.layers.3.m: f32[d]) {\n%z = const 0 : int\n"
                      "%w = param @w[%z * 1 + 1] %m = mul %w, %w return %m }\n";
  const char *decode = "func @decode(%x: f32[b, d]) -> (logits: f32[b, d]) {\n"
                       "%y = loop 4 %i carry(%c = %x) { %w = param @w[%i] %h = recall @h[%i]\n"
                       "%p = mul %c, %w %n = add %p, %h retain @h[%i], %n yield %n }\n"
                       "return %y }\n";
  expect(lm_arena_printf(a, "%s%s", text, begin), "shard",
         "pp cannot divide initial values that depend on another block into the stages");
  expect(lm_arena_printf(a, "%s%s", text, decode), "shard",
         "pp cannot divide blocks that keep states while a text is continued into the stages");
  lm_arena_destroy(a);
}

// What blocks compute of all rows of a micro-batch and add to the loss, which is no function of one
// row; and what cannot be computed in this way.
static void statistics_check(void) {
  static const char text[] =
      "stage graph\naxis b = 4, d = 3, layers = 4\n"
      "param @w : f32[layers, d] stacked 1 as @layers.#.w = ones\nparam @e : f32[d] = ones\n"
      "func @loss(%x: f32[b, d]) -> (sum: f32, weight: f32) {\n"
      "%e = param @e %x0 = mul %x, %e %none = const 0 : f32\n"
      "%y, %z = loop 4 %i carry(%c = %x0, %k = %none) { %w = param @w[%i]\n"
      "%u = mul %c, %w %n = tanh %u %m = sum %n over(b) %q = dot %n, %u over(b, d)\n"
      "%t = max %n over(b, d) %mm = mul %m, %w %s = sum %mm over(d) %v = mul %q, %t\n"
      "%p = add %v, %s %o = add %k, %p yield %n, %o }\n"
      "%yy = mul %y, %e %a = sum %yy over(b, d) %l = add %a, %z\n"
      "%ee = mul %e, %e %r = sum %ee over(d) %ll = sub %l, %r\n"
      "%xx = mul %x, %x %k2 = sum %xx over(b, d) return %ll, %k2 }\n";
  static const char ticks[] = "mesh pp = 2 pipeline 2 one_f_one_b";
  static const char *const cases[][4] = {
      {ticks, "%n = tanh %u", "%un = max %u over(b, d) %n = mul %u, %un",
       "blocks that combine rows"},
      {ticks, "%none = const 0 : f32", "%none = sum %x over(b, d)",
       "a value of all rows in front of"},
      {ticks, "%l = add %a, %z", "%l = mul %a, %a", "a loss that is no sum over rows"},
      {ticks, "%l = add %a, %z", "%az = exp %a %l = add %az, %z",
       "a loss that is no sum over rows"},
  };
  lm_arena *a = lm_arena_create();
  text_check("statistics", text, "pp = 2 pipeline 1 one_f_one_b", 8);
  text_check("statistics", text, "pp = 4 pipeline 1 one_f_one_b", 8);
  text_check("statistics", text, "pp = 2 pipeline 1", 8); // gpipe
  const char *sums = replaced(a, text, "%v = mul %q, %t", "%v = add %q, %q");
  text_check("sums of rows", replaced(a, sums, "return %ll", "return %l"), "pp = 2 rows pipeline 2",
             8);
  text_check("statistics", replaced(a, text, "b = 4", "b = 2"), "pp = 2 pipeline 2 interleaved 2",
             8);
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    const char *mesh = lm_arena_printf(a, "stage graph\n%s", cases[i][0]);
    const char *one = replaced(a, text, cases[i][1], cases[i][2]);
    expect(replaced(a, one, "stage graph", mesh), "shard", cases[i][3]);
  }
  lm_arena_destroy(a);
}

// Attention in a ring, after one step and a loop over the blocks of the other ranks: a message for
// k and for v forwards; backwards these again, one for each cotangent, and one to its owner. `gt`
// leaves the first query of a document without keys.
static void ring_check(void) {
#define RING "attend,grad,mesh,ring,simplify,cse,licm,dce"
  lm_arena *a = lm_arena_create();
  static const char *const meshes[] = {"cp = 2 positions ring", "cp = 4 positions ring",
                                       "dp = 2 rows zero 3, cp = 4 positions balanced ring",
                                       "tp = 2 shard(g, ff, v, t), cp = 2 positions ring"};
  const char *text = llama_text(a);
  const char *blank = replaced(a, text, "= ge %pos", "= gt %pos");
  machine cp = compile("llama", text, "cp = 4 positions ring", "shard,mesh," RING);
  counts micro = count(cp.m, "micro");
  CHECK(micro.of[LM_OP_RING_SHIFT] == 2 + 4 + 2);
  CHECK(micro.of[LM_OP_ATTEND] == 2 && micro.of[LM_OP_ATTEND_VJP] == 2);
  CHECK(micro.of[LM_OP_ALL_GATHER] == 0 && micro.of[LM_OP_REDUCE_SCATTER] == 0);
  CHECK(micro.of[LM_OP_COLLECT] == 2); // positions and segments
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    passes_check("llama", text, meshes[i], "grad", "shard,mesh," RING, 1e-12, 8);
    passes_check("blank", blank, meshes[i], "grad", "shard,mesh," RING, 1e-12, 8);
  }
  const char *mesh = "stage graph\nmesh cp = 2 positions ring\n";
  const char *ring = replaced(a, text, "stage graph\n", mesh);
  expect(ring, "shard,grad,ring",
         "the loss has no softmax attention to compute in a ring along cp");
  const char *keys = strstr(ring, "%ks.");
  int n = (int)strcspn(keys, " ");
  const char *more = lm_arena_printf(a, "%%kk = tanh %.*s\n%%sc.", n, keys);
  const char *used = lm_arena_printf(a, ", %.*s over", n, keys);
  const char *after = replaced(a, replaced(a, ring, "%sc.", more), used, ", %kk over");
  expect(after, "shard,attend,grad,ring", "the keys and values are computed after `history`");
  lm_ctx_destroy(cp.c);
  lm_arena_destroy(a);
}

int main(int argc, char **argv) {
  uint64_t first = argc > 2 ? strtoull(argv[1], NULL, 10) : 0;
  uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 300;
  for (uint64_t i = 0; i < count; i++)
    random_check(first + i);
  if (argc > 2)
    return 0;
  every_collective_has_a_case();
  for (size_t i = 0; i < LM_COUNT(collectives); i++)
    for (int ranks = 1; ranks <= 3; ranks++)
      collectives_check(&collectives[i], ranks);
  mistakes_check();
  meshes_check();
  ticks_check();
  stages_check();
  statistics_check();
  llama_check();
  positions_check();
  balance_check();
  heads_check();
  ring_check();
}
