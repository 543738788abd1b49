// shard_route_test.c - rows that are sorted by expert, on all ranks of a mesh, in float64 and in
// lockstep, against one rank: results, gradients and sums of states; and mistakes that must be
// rejected.
#include "tests/passes/shard_check.h"
#include "tests/passes/shard_mistakes.h"

// Experts with biases, whose rows are never zero; the sum over rows of their squares; scores
// without a gradient beside those that have one; a statistic of all rows; a state.
static const char routed[] =
    "stage graph\n"
    "axis b = 4, t = 4, d = 6, E = 8, k = 2, n = 32, f = 4, v = 8\n"
    "param @table : f32[v, d] = ones  param @r : f32[d, E] = ones\n"
    "param @w1 : f32[E, d, f] = ones  param @b1 : f32[E, f] = ones\n"
    "param @w2 : f32[E, f, d] = ones  param @b2 : f32[E, d] = ones\n"
    "param @load : f32[E] untrained = zeros\n"
    "func @loss(%tok: int[b, t], %w: f32[b, t], %step: int, %row: int) -> "
    "(sum: f32, weight: f32) {\n"
    "%table = param @table  %x = gather %table, %tok over(v)\n"
    "%r = param @r  %logits = dot %x, %r over(d)  %p = logistic %logits\n"
    "%id = top_k %p (E) -> (k)\n"
    "%counts = group_counts %id (b, t, k) -> (E)\n"
    "%order = group_order %id, %counts (b, t, k) -> (n)\n"
    "%inverse = group_inverse %id, %counts over(b, t, k)\n"
    "%rows = group_rows %x, %order, %inverse (b, t, k) -> (n)\n"
    "%ids = group_rows %id, %order, %inverse (b, t, k) -> (n)\n"
    "%w1 = param @w1  %b1 = param @b1  %w2 = param @w2  %b2 = param @b2\n"
    "%c1 = gather %b1, %ids over(E)  %c2 = gather %b2, %ids over(E)\n"
    "%h0 = grouped_dot %rows, %w1, %counts over(d)  %h1 = add %h0, %c1  %h = tanh %h1\n"
    "%y0 = grouped_dot %h, %w2, %counts over(f)  %y1 = add %y0, %c2\n"
    "%y = ungroup_rows %y1, %inverse, %order (n) -> (b, t, k)\n"
    "%g = gather %p, %id over(E)  %z = mul %y, %g  %s = sum %z over(k)\n"
    "%u = add %x, %s  %q = sin %u  %e = mul %q, %u  %one = sum %e over(b, t, d)\n"
    "%cf = cast %counts : f32[E]  %add = cast %counts : f32[E]  accum @load, %add\n"
    "%pm = sum %p over(b, t)  %both = mul %pm, %cf  %two = sum %both over(E)\n"
    "%hundredth = const 0.01 : f32  %three = mul %two, %hundredth\n"
    "ROWS"
    "%sum = add %one, %three  %weight = sum %w over(b, t)  return %sum, %weight\n}\n";

// The first of the choices of each row for an expert, in the order of k, then t; others have none.
static const char limited[] =
    "%all = top_k %p (E) -> (k)\n"
    "%byk = permute %all : int[b, k, t]  %mine = view %byk (k, t) -> (m)\n"
    "%other = rename %mine (m) -> (o)  %its = expand %other : int[b, m, o]\n"
    "%same = eq %mine, %its  %at = iota : int[m]  %here = expand %at : int[m, o]\n"
    "%there = rename %at (m) -> (o)  %earlier = gt %here, %there  %tied = and %same, %earlier\n"
    "%tie = cast %tied : int[b, m, o]  %before = sum %tie over(o)  %limit = const 1 : int\n"
    "%fits = lt %before, %limit  %none = const -1 : int  %kept = select %fits, %mine, %none\n"
    "%back = view %kept (m) -> (k, t)  %id = permute %back : int[b, t, k]\n";

static const char *const meshes[] = {
    "dp = 2 rows",
    "dp = 4 rows zero 3",
    "dp = 2 rows, fsdp = 2 rows zero 2",
    "cp = 2 positions",
    "dp = 2 rows, cp = 4 positions",
    "tp = 2 shard(E)",
    "tp = 8 shard(E)",
    "tp = 2 shard(f)",
    "tp = 2 shard(d)",
    "tp = 2 shard(E, f, d)",
    "tp = 2 shard(f, E, t)",
    "dp = 2 rows, tp = 2 shard(f, t)",
    "dp = 2 rows zero 3, tp = 4 shard(E, t)",
    "ep = 2 rows experts",
    "ep = 4 rows experts",
    "ep = 2 rows shard(E), dp = 2 rows zero 3, cp = 2 positions",
    "dp = 2 rows, ep = 2 rows experts, tp = 2 shard(f, v, t)",
};

static void meshes_check(lm_arena *a) {
  const char *plain = replaced(a, routed, "ROWS", "");
  const char *sums = replaced(a, routed, "ROWS",
                              "%square = mul %y1, %y1  %rowsum = sum %square over(n, d)\n"
                              "%four = mul %rowsum, %hundredth  %five = add %one, %four\n");
  sums = replaced(a, sums, "%sum = add %one, %three", "%sum = add %five, %three");
  const char *some = replaced(a, plain, "v = 8", "v = 8, m = 8, o = 8");
  some = replaced(a, some, "%id = top_k %p (E) -> (k)\n", limited);
  some = replaced(a, some, "gather %p, %id", "gather %p, %all");
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    text_check("routed", plain, meshes[i], 8);
    text_check("within a capacity", some, meshes[i], 8);
    if (!strstr(meshes[i], "shard(E") && !strstr(meshes[i], "(f, E") &&
        !strstr(meshes[i], "experts"))
      text_check("sums of rows", sums, meshes[i], 8);
  }
}

// ---- counts

typedef struct counts {
  int of[LM_OPS];
} counts;

static void count_op(lm_op *op, void *user) {
  ((counts *)user)->of[op->code]++;
}

static counts count(const char *text, const char *mesh) {
  counts n = {{0}};
  machine k = compile("routed", text, mesh, "shard,mesh,grad,mesh,simplify,cse,dce");
  lm_region_walk(lm_func_find(k.m, "micro")->body, count_op, &n);
  lm_ctx_destroy(k.c);
  return n;
}

// Ranks with other rows exchange the counts of the statistic alone. Those with the same rows reduce
// the sum over k forwards, and backwards the cotangents of the rows and of the scores.
static void counts_check(lm_arena *a) {
  const char *text = replaced(a, routed, "ROWS", "");
  counts dp = count(text, "dp = 2 rows");
  CHECK(dp.of[LM_OP_ALL_REDUCE] == 1 && dp.of[LM_OP_COLLECT] == 0);
  static const char *const experts[] = {"tp = 2 shard(E)", "tp = 2 shard(f)"};
  const char *unbiased = replaced(a, text, "%y1 = add %y0, %c2", "%y1 = neg %y0");
  for (int i = 0; i < 2; i++) {
    counts tp = count(unbiased, experts[i]);
    CHECK(tp.of[LM_OP_ALL_REDUCE] == 3);
    CHECK(tp.of[LM_OP_ALL_GATHER] == 0 && tp.of[LM_OP_COLLECT] == 0);
  }
}

// ---- mistakes

// Points along dp, the hidden axis of the experts along tp.
static const char sharded[] =
    "stage graph\nmesh dp = 2, tp = 2\n"
    "axis b = 4, k = 2, n = 8, d = 3, f = 4, E = 4, b@dp = 2, n@dp = 4, f@tp = 2\n"
    "param @w1 : f32[E, d, f@tp] = ones  param @w2 : f32[E, f@tp, d] = ones\n"
    "param @u : f32[d, f@tp] = ones  param @v : f32[f@tp, d] = ones\n"
    "func @loss(%x0: f32[b@dp, d], %id: int[b@dp, k]) -> (sum: f32, weight: f32) {\n"
    "%u = param @u  %x1 = dot %x0, %u over(d)  %v = param @v  %x2 = dot %x1, %v over(f@tp)\n"
    "%x = all_reduce %x2 over(tp)\n"
    "%counts = group_counts %id (b@dp, k) -> (E)\n"
    "%order = group_order %id, %counts (b@dp, k) -> (n@dp)\n"
    "%inverse = group_inverse %id, %counts over(b@dp, k)\n"
    "%xf = fan %x over(tp)\n"
    "%rows = group_rows %xf, %order, %inverse (b@dp, k) -> (n@dp)\n"
    "%w1 = param @w1  %w2 = param @w2\n"
    "%h0 = grouped_dot %rows, %w1, %counts over(d)  %h = tanh %h0\n"
    "%y = grouped_dot %h, %w2, %counts over(f@tp)\n"
    "%z = ungroup_rows %y, %inverse, %order (n@dp) -> (b@dp, k)\n"
    "%q = all_reduce %z over(tp)\n%e = mul %q, %q  %sum = sum %e over(b@dp, k, d)\n"
    "%one = const 1 : f32  %weight = first %one over(dp)  return %sum, %weight\n}\n";

static const mistake mistakes[] = {
    {"mesh dp", "mesh dp", NULL},
    {"%order = group_order %id, %counts",
     "%all = all_reduce %counts over(dp)\n%order = group_order "
     "%id, %all",
     "sorts the rows of a rank by the counts of all ranks"},
    {"%h0 = grouped_dot %rows, %w1, %counts",
     "%all = all_reduce %counts over(dp)\n%h0 = grouped_dot %rows, %w1, %all",
     "multiplies the rows of a rank by the counts of all ranks"},
    {"%xf = fan %x over(tp)", "%xf = neg %x", "`fan` is missing"},
    {"%q = all_reduce %z over(tp)", "%q = neg %z", "uses a partial sum before it is reduced"},
    {"%q = all_reduce %z over(tp)", "%q0 = all_reduce %z over(tp)\n%q = all_reduce %q0 over(tp)",
     "a reduction too many"},
    {"%h = tanh %h0", "%h1 = all_reduce %h0 over(tp)\n%h = tanh %h1", "a reduction too many"},
    {"%z = ungroup_rows %y,", "%y2 = tanh %y\n%z = ungroup_rows %y2,",
     "uses a partial sum before it is reduced"},
};

// A routed program and a mesh that has no form for it.
static const mistake refused[] = {
    {"ROWS",
     "%p0 = slice %rows (n) -> (k) [0, 1]  %p1 = sum %p0 over(k, d)  %five = add %p1, %one\n",
     "the rows that `group_by` sorts are divided along dp, which has no form for slice"},
    {"ROWS",
     "%p0 = iota : int[n]  %p1 = cast %p0 : f32[n]  %p2 = mul %rows, %p1\n"
     "%p3 = sum %p2 over(n, d)  %five = add %p3, %one\n",
     "which has no form for mul"},
    {"ROWS",
     "%id2 = sub %id, %row  %c3 = group_counts %id2 (b, t, k) -> (E)\n"
     "%o3 = group_order %id2, %c3 (b, t, k) -> (n)\n"
     "%i3 = group_inverse %id2, %c3 over(b, t, k)\n"
     "%r3 = group_rows %x, %o3, %i3 (b, t, k) -> (n)  %p2 = mul %rows, %r3\n"
     "%p3 = sum %p2 over(n, d)  %five = add %p3, %one\n",
     "rows that are sorted in two ways"},
};

static void mistakes_check(lm_arena *a) {
  static const char *const bad[][2] = {
      {"dp = 3 rows", "dp = 3 does not divide b = 4: 1, 2 and 4 do"},
      {"ep = 2 rows experts, tp = 2 shard(E)", "ep and tp both divide the experts E@ep"},
      {"tp = 3 shard(E)", "tp = 3 does not divide E = 8: 1, 2, 4 and 8 do"},
  };
  for (size_t i = 0; i < LM_COUNT(mistakes); i++)
    expect(replaced(a, sharded, mistakes[i].from, mistakes[i].to), "mesh,grad,mesh",
           mistakes[i].message);
  for (size_t i = 0; i < LM_COUNT(refused); i++) {
    const char *text = replaced(a, routed, refused[i].from, refused[i].to);
    text = replaced(a, text, "%sum = add %one,", "%sum = add %five,");
    expect(replaced(a, text, "stage graph\n", "stage graph\nmesh dp = 2 rows\n"), "shard",
           refused[i].message);
    expect(replaced(a, text, "stage graph\n", "stage graph\nmesh tp = 2 shard(E)\n"), "shard",
           "E919");
    expect(replaced(a, text, "stage graph\n", "stage graph\nmesh tp = 2 shard(f)\n"), "shard,mesh",
           NULL);
  }
  for (size_t i = 0; i < LM_COUNT(bad); i++) {
    const char *mesh = lm_arena_printf(a, "stage graph\nmesh %s\n", bad[i][0]);
    const char *text = replaced(a, routed, "ROWS", "");
    expect(replaced(a, text, "stage graph\n", mesh), "shard", bad[i][1]);
  }
}

int main(void) {
  lm_arena *a = lm_arena_create();
  meshes_check(a);
  counts_check(a);
  mistakes_check(a);
  lm_arena_destroy(a);
}
