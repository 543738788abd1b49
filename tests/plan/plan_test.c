// plan_test.c - plans of hand-written modules: results, memory, and results that are written to
// their final location without a copy.
//
// Functions get random arguments, parameters and caches and run by the interpreter and as a plan,
// with one thread and with three. Every plan is checked on shadow memory.
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "compiler/passes/pass.h"
#include "tests/plan/harness.h"

static lm_module *parse(lm_ctx *c, const char *text, const char *passes) {
  lm_module *m = lm_module_parse(c, lm_source_add(c, "case.lmir", text, strlen(text)));
  bool ok = m != NULL;
  if (m && passes)
    CHECK_OK(lm_pass_run_list(m, passes, &(lm_pass_env){0}, &ok));
  lm_buf b = {0};
  lm_diag_render(c, &b, 0);
  if (!ok)
    fprintf(stderr, "%s", b.p);
  CHECK(ok);
  lm_buf_free(&b);
  return m;
}

typedef struct text {
  const char *text, *passes;
} text;
static lm_module *text_make(lm_ctx *c, void *user) {
  const text *t = user;
  return parse(c, t->text, t->passes);
}

static subject text_subject(const char *s, const char *passes) {
  return subject_make(text_make, &(text){s, passes});
}

// The copies at the end of a loop or of a function: of values that could not be written to their
// final location.
static int copies_of_control(const subject *s, const char *name) {
  const lm_plan_func *f = lm_plan_func_find(s->plan, name);
  int n = 0;
  for (int i = 0; i < f->n_steps; i++)
    n += f->steps[i].kind == LM_STEP_COPY &&
         (!strcmp(f->steps[i].label, "loop") || !strcmp(f->steps[i].label, "yield") ||
          !strcmp(f->steps[i].label, "return"));
  return n;
}

static int adds_of(const subject *s, const char *name) {
  const lm_plan_func *f = lm_plan_func_find(s->plan, name);
  int n = 0;
  for (int i = 0; i < f->n_steps; i++)
    n += f->steps[i].kind == LM_STEP_ADD;
  return n;
}

// ---- cases

static void llama_test(void) {
  lm_buf text = {0};
  CHECK_OK(lm_file_read("tests/ir/llama.lmir", 1 << 20, &text));
  subject s = text_subject(text.p, "inline,simplify,cse,licm,dce,grad,simplify,cse,licm,dce");
  run_compare(&s, "micro");
  run_compare(&s, "loss");
  // The loops carry in place, or in the slots of their stashes; gradients of matrices are
  // added by their GEMMs, so that only norm, n1, n2 and the rows of embed have separate steps that
  // add gradients.
  CHECK(copies_of_control(&s, "loss") == 0 && copies_of_control(&s, "micro") == 0);
  CHECK(adds_of(&s, "micro") == 4);
  subject_free(&s);
  lm_buf_free(&text);
}

// A loop with carries that are swapped, unchanged, used twice, and stacked before and after they
// change.
static const char carries[] = "stage step\n"
                              "axis a = 7, n = 4\n"
                              "func @f(%x: f32[a], %y: f32[a]) -> (p: f32[a], q: f32[a], r: "
                              "f32[a], s: f32[n, a], t: f32[n, a], u: f32[n, a]) {\n"
                              "  %one = const 1 : f32[a]\n"
                              "  %p, %q, %r, %v, %w, %s, %t, %u = loop 4 over(n) %i carry(%c = %x, "
                              "%d = %y, %e = %x, %g = %one, %k = %one) {\n"
                              "    %h = mul %e, %c\n"
                              "    %z = add %h, %d\n"
                              "    %g2 = add %g, %z\n"
                              "    yield %d, %c, %z, %g2, %k, %c, %g2, %h\n"
                              "  }\n"
                              "  %rr = add %r, %v\n"
                              "  %rw = add %rr, %w\n"
                              "  return %p, %q, %rw, %s, %t, %u\n"
                              "}\n";

// Nested loops: the inner carry starts from the outer one; an outer value is read after the inner
// loop; a stack is read in reverse, at the indices of both loops.
static const char nested[] = "stage step\n"
                             "axis a = 5, n = 3, k = 2, b = 5\n"
                             "param @w : f32[n, k, a, b] stacked 2 as @w.#.# = normal(1)\n"
                             "func @f(%x: f32[a]) -> (y: f32[a], s: f32[n, k, a], z: f32[a]) {\n"
                             "  %y, %s, %keep = loop 3 over(n) %i carry(%c = %x) {\n"
                             "    %h = tanh %c\n"
                             "    %d, %t = loop 2 over(k) %j carry(%e = %c) {\n"
                             "      %w = param @w[%i, %j]\n"
                             "      %m = dot %e, %w over(a)\n"
                             "      %r = rename %m (b) -> (a)\n"
                             "      %f = sin %r\n"
                             "      %g = add %f, %h\n"
                             "      accum @w[%i, %j], %w\n"
                             "      yield %g, %e\n"
                             "    }\n"
                             "    yield %d, %t, %h\n"
                             "  }\n"
                             "  %zero = const 0 : f32[a]\n"
                             "  %z = loop 3 %i2 carry(%c2 = %zero) {\n"
                             "    %st = at %s, %i2 [2, -1]\n"
                             "    %kp = at %keep, %i2 [2, -1]\n"
                             "    %cc = mul %c2, %kp\n"
                             "    %d2 = loop 2 %j2 carry(%e2 = %cc) {\n"
                             "      %v = at %st, %j2 [1, -1]\n"
                             "      %f2 = mul %e2, %v\n"
                             "      %g2 = add %f2, %v\n"
                             "      yield %g2\n"
                             "    }\n"
                             "    yield %d2\n"
                             "  }\n"
                             "  return %y, %s, %z\n"
                             "}\n";

// An inner loop writes one part of the carry in each iteration: in place if each iteration reads
// only its own part (READ_AT), before it writes it and not later (READ_LATE).
static const char parts[] = "stage step\n"
                            "axis t = 6, a = 5, part = 3, row = 2\n"
                            "func @f(%%x: f32[t, a]) -> (y: f32[t, a], z: f32[part, row, a]) {\n"
                            "  %%z0 = const 0 : f32[part, row, a]\n"
                            "  %%y, %%z = loop 2 %%i carry(%%c = %%x, %%b = %%z0) {\n"
                            "    %%cs = view %%c (t) -> (part, row)\n"
                            "    %%s, %%q = loop 3 over(part) %%j carry() {\n"
                            "      %%x1 = at %%cs, %%j [%s]\n"
                            "      %%h = tanh %%x1\n"
                            "      %%m = mul %%h, %%h\n"
                            "      %%k = add %%h, %%%s\n"
                            "      yield %%m, %%k\n"
                            "    }\n"
                            "    %%d = view %%s (part, row) -> (t)\n"
                            "    %%o = mul %%q, %%q\n"
                            "    yield %%d, %%o\n"
                            "  }\n"
                            "  return %%y, %%z\n"
                            "}\n";

// Dots through views: heads split off, permuted, sliced; a merge that is not affine; gradients
// written through views.
static const char views[] = "stage step\n"
                            "axis t = 6, d = 8, g = 2, h = 3, e = 4, gh = 6, s = 6, f = 4, he = "
                            "12, u = 3, eg = 8, two = 2\n"
                            "param @w : f32[d, g, h, e] = normal(1)\n"
                            "param @v : f32[g, h, e, d] = normal(1)\n"
                            "func @f(%x: f32[t, d], %y: f32[h, t, e, g]) -> (o: f32[t, g, h, s], "
                            "p: f32[t, d], q: f32[u, g], r: f32[h, e], k: "
                            "f32[e, gh, d], l: f32[e]) {\n"
                            "  %w = param @w\n"
                            "  %q = dot %x, %w over(d)\n"
                            "  %k0 = permute %y : f32[g, h, t, e]\n"
                            "  %k = rename %k0 (t) -> (s)\n"
                            "  %o = dot %q, %k over(e)\n"
                            "  %ky = rename %y (t) -> (s)\n"
                            "  %o2 = dot %o, %ky over(s)\n"
                            "  %qv = view %q (h, e) -> (he)\n"
                            "  %vp = param @v\n"
                            "  %v2 = view %vp (h, e) -> (he)\n"
                            "  %p = dot %qv, %v2 over(g, he)\n"
                            "  %sl = slice %q (t) -> (u) [5, -2]\n"
                            "  %one = slice %sl (e) -> () [2, 1]\n"
                            "  %m = dot %one, %one over(h)\n"
                            "  %yv = view %y (e, g) -> (eg)\n"
                            "  %yp = permute %yv : f32[eg, h, t]\n"
                            "  %yr = rename %yp (eg) -> (d)\n"
                            "  %zz = dot %x, %yr over(d, t)\n"
                            "  %ee = dot %q, %o2 over(t, g)\n"
                            "  %gw0 = dot %x, %q over(t)\n"
                            "  accum @w, %gw0\n"
                            "  %gv0 = dot %q, %x over(t)\n"
                            "  accum @v, %gv0\n"
                            "  %gv1 = dot %x, %q over(t)\n"
                            "  %gv2 = permute %gv1 : f32[g, h, e, d]\n"
                            "  accum @v, %gv2\n"
                            "  %nm = permute %y : f32[t, e, h, g]\n"
                            "  %mm = view %nm (h, g) -> (gh)\n"
                            "  %m2 = dot %mm, %x over(t)\n"
                            "  %rz = dot %zz, %ee over(h)\n"
                            "  %kk = mul %m2, %m2\n"
                            "  return %o, %p, %m, %ee, %kk, %rz\n"
                            "}\n";

// Gradients that a step overwrites: of every element (b), in the first iteration of a loop that
// adds to one element (d, g); and gradients that are cleared: nothing adds to them (a), another
// step of the loop adds to other elements first (c), only one element is written (e).
static const char gradients[] = "stage step\n"
                                "axis x = 5, y = 3, n = 4\n"
                                "param @a : f32[x] = normal(1)\n"
                                "param @b : f32[n, x] stacked 1 as @b.# = normal(1)\n"
                                "param @c : f32[n, x] stacked 1 as @c.# = normal(1)\n"
                                "param @d : f32[x] = normal(1)\n"
                                "param @e : f32[n, x] stacked 1 as @e.# = normal(1)\n"
                                "param @g : f32[y, x] = normal(1)\n"
                                "func @f(%u: f32[x], %v: f32[y, n]) -> (o: f32[x]) {\n"
                                "  %zero = const 0 : int\n"
                                "  %o = loop 4 %i carry(%k = %u) {\n"
                                "    %b = param @b[%i]\n"
                                "    %h = mul %k, %b\n"
                                "    accum @b[%i * -1 + 3], %h\n"
                                "    accum @c[%i], %h\n"
                                "    accum @c[%i * -1 + 3], %k\n"
                                "    accum @d, %h\n"
                                "    %w = dot %v, %h over()\n"
                                "    %s = sum %w over(n)\n"
                                "    %r = dot %s, %h over(x)\n"
                                "    %z = dot %r, %h over()\n"
                                "    accum @g, %z\n"
                                "    accum @b[%i * -1 + 3], %b\n"
                                "    yield %h\n"
                                "  }\n"
                                "  accum @d, %o\n"
                                "  accum @e[%zero], %o\n"
                                "  return %o\n"
                                "}\n";

static void gradients_test(void) {
  subject s = text_subject(gradients, NULL);
  run_compare(&s, "f");
  const lm_plan_func *f = lm_plan_func_find(s.plan, "f");
  int overwrites = 0, clears = 0;
  for (int i = 0; i < f->n_steps; i++) {
    overwrites += f->steps[i].initializes && f->steps[i].kind != LM_STEP_FILL;
    clears += f->steps[i].initializes && f->steps[i].kind == LM_STEP_FILL;
  }
  CHECK(f->initializes && overwrites == 3);
  CHECK(clears == 5); // a, and c and e side by side: four ranges that layers of b separate
  subject_free(&s);
}

// One GEMM for the gradients of all layers, which are apart from each other in memory.
static const char batch[] = "stage step\n"
                            "axis l = 3, t = 4, d = 5, e = 2\n"
                            "param @l.w : f32[l, d, e] stacked 1 as @l.#.w = normal(1)\n"
                            "param @l.v : f32[l, e] stacked 1 as @l.#.v = normal(1)\n"
                            "func @f(%x: f32[l, t, d], %y: f32[l, t, e]) -> (y: f32[l, t, e]) {\n"
                            "  %g = dot %x, %y over(t)\n"
                            "  accum @l.w, %g\n"
                            "  return %y\n"
                            "}\n";

static void batch_test(void) {
  subject s = text_subject(batch, NULL);
  run_compare(&s, "f");
  const lm_plan_func *f = lm_plan_func_find(s.plan, "f");
  int gemms = 0;
  for (int i = 0; i < f->n_steps; i++) {
    if (f->steps[i].kind != LM_STEP_GEMM)
      continue;
    gemms += f->steps[i].gemm->accumulate && f->steps[i].initializes;
    int64_t times;
    CHECK(lm_plan_step_saved(f, i, &times) == 3 * 5 * 2 * (int64_t)sizeof(float) && times == 1);
  }
  CHECK(gemms == 1);
  subject_free(&s);
}

// A table whose memory ends with rows of zeros: a padded GEMM reads them, and the GEMM of its
// gradient writes them. The gradient of v, whose rows are added without padding, has its padding
// cleared.
static const char table[] = "stage step\n"
                            "axis v = 4097, p = 4160, d = 3, b = 5, n = 2\n"
                            "param @w : f32[v, d] = normal(1)\n"
                            "param @v : f32[n, v, d] stacked 1 as @v.# = normal(1)\n"
                            "func @f(%x: f32[b, d], %y: f32[b, p]) -> (z: f32[b, p]) {\n"
                            "  %w = param @w\n"
                            "  %wp = pad %w (v) -> (p) [0, 1]\n"
                            "  %z = dot %x, %wp over(d)\n"
                            "  %i = iota : int[p]\n"
                            "  %n = const 4097 : int\n"
                            "  %m = lt %i, %n\n"
                            "  %zero = const 0 : f32\n"
                            "  %c = select %m, %y, %zero\n"
                            "  %g = dot %c, %x over(b)\n"
                            "  %gw = slice %g (p) -> (v) [0, 1]\n"
                            "  accum @w, %gw\n"
                            "  %s = loop 2 %k carry(%a = %w) {\n"
                            "    %v = param @v[%k]\n"
                            "    %u = mul %v, %a\n"
                            "    accum @v[%k], %u\n"
                            "    yield %u\n"
                            "  }\n"
                            "  accum @w, %s\n"
                            "  return %z\n"
                            "}\n";

static void table_test(void) {
  subject s = text_subject(table, NULL);
  run_compare(&s, "f");
  const lm_plan_func *f = lm_plan_func_find(s.plan, "f");
  int64_t stored = 4160 * 3 * 4, cleared = 0, written = 0;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *x = &f->steps[i];
    CHECK(x->kind != LM_STEP_COPY || x->move->rank != 2);
    if (x->kind == LM_STEP_FILL && x->initializes)
      cleared += x->bytes;
    if (x->kind == LM_STEP_GEMM && x->initializes)
      written = x->bufs[x->n_read].bytes;
  }
  CHECK(written == stored && s.plan->params[0].elements == 4097 * 3);
  int64_t blocks = (stored + 4 * LM_BLOCK - 1) / (4 * LM_BLOCK);
  CHECK(cleared == 2 * (blocks * 4 * LM_BLOCK - 4097 * 3 * 4));
  subject_free(&s);
}

// Weights side by side in memory: GEMMs read both together, and one alone at its strides. Gradients
// are initialized by a step that writes both, if it comes first.
static const char side_by_side[] =
    "stage step\n"
    "axis d = 32, g = 64, h = 4, e = 8, p = 96, b = 5, n = 2\n"
    "param @g : f32[n, d, g] stacked 1 as @g.# = normal(1)\n"
    "param @u : f32[n, d, h, e] stacked 1 as @u.# = normal(1)\n"
    "packed @p : f32[n, d, p] stacked 1 along (p) (@g, @u)\n"
    "func @f(%%x: f32[b, d], %%y: f32[b, p]) -> (z: f32[n, b, p], q: f32[n, b, h, e]) {\n"
    "  %%z, %%q, %%v = loop 2 over(n) %%k carry() {\n"
    "    %%w = param @p[%%k]\n"
    "    %%u = param @u[%%k]\n"
    "    %%z1 = dot %%x, %%w over(d)\n"
    "    %%q1 = dot %%x, %%u over(d)\n"
    "    %%s = mul %%u, %%u\n"
    "    %%t = dot %%x, %%y over(b)\n"
    "    %s\n"
    "    yield %%z1, %%q1, %%s\n"
    "  }\n"
    "  %s\n"
    "  return %%z, %%q\n"
    "}\n";

static void side_by_side_test(void) {
  static const struct {
    const char *inside, *behind;
    bool clears;
  } cases[] = {
      {"accum @p[%k], %t  accum @u[%k], %s", "", false},
      {"accum @p[%k], %t", "accum @u, %v", false},
      {"accum @u[%k], %s  %r = mul %w, %w  accum @p[%k], %r", "", true},
      {"accum @p[%k], %t  accum @u[%k * -1 + 1], %s", "", true},
      {"", "accum @u, %v", true},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    char text[sizeof side_by_side + 128];
    snprintf(text, sizeof text, side_by_side, cases[i].inside, cases[i].behind);
    subject s = text_subject(text, NULL);
    run_compare(&s, "f");
    const lm_plan_func *f = lm_plan_func_find(s.plan, "f");
    int64_t cleared = 0;
    for (int k = 0; k < f->n_steps; k++)
      if (f->steps[k].kind == LM_STEP_FILL && f->steps[k].initializes)
        cleared += f->steps[k].bytes;
    CHECK(cleared == (cases[i].clears ? 2 * 32 * 96 * 4 : 0));
    CHECK(s.plan->params[0].pieces->stride[0] == 96 && s.plan->params[2].pieces->stride[0] == 96);
    subject_free(&s);
  }
}

static void text_test(const char *text, const char *name) {
  subject s = text_subject(text, NULL);
  run_compare(&s, name);
  subject_free(&s);
}

// The same in a reversed loop, whose stacks have the opposite order: in slots, with as many copies.
static void carries_test(void) {
  char reversed[sizeof carries + 16];
  const char *at = strstr(carries, " over(n)");
  snprintf(reversed, sizeof reversed, "%.*s reversed%s", (int)(at - carries), carries, at);
  subject s = text_subject(carries, NULL), r = text_subject(reversed, NULL);
  run_compare(&s, "f");
  run_compare(&r, "f");
  CHECK(copies_of_control(&r, "f") == copies_of_control(&s, "f"));
  subject_free(&s);
  subject_free(&r);
}
static void nested_test(void) {
  text_test(nested, "f");
}
static void parts_test(void) {
  static const struct {
    const char *read_at, *read_late;
    int copies;
  } cases[] = {{"0, 1", "h", 1}, {"2, -1", "h", 2}, {"0, 1", "x1", 2}}; // one copy of the argument
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    char text[sizeof parts + 16];
    snprintf(text, sizeof text, parts, cases[i].read_at, cases[i].read_late);
    subject s = text_subject(text, NULL);
    run_compare(&s, "f");
    int n = copies_of_control(&s, "f");
    if (n != cases[i].copies)
      fprintf(stderr, "case %d: %d copies\n", (int)i, n);
    CHECK(n == cases[i].copies);
    subject_free(&s);
  }
}

static void views_test(void) {
  text_test(views, "f");
}

// The optimizer's function works in place: parameters, gradients and states are its arguments, in
// their arenas.
static const char update[] =
    "stage step\n"
    "axis a = 1500, n = 3, blk = 9 blocks, el = 1024\n"
    "param @v : f32[a] = ones\n"
    "param @w : f32[n, a] stacked 1 as @w.#.w = normal(1)\n"
    "func @update(%p: f32[blk, el], %g: f32[blk, el], %m: f32[blk, el], %scale: f32, %rate: "
    "f32[blk]) -> (p: f32[blk, el], m: f32[blk, el]) {\n"
    "  %m2 = add %m, %g\n"
    "  %s = mul %m2, %scale\n"
    "  %r = mul %s, %rate\n"
    "  %p2 = sub %p, %r\n"
    "  return %p2, %m2\n"
    "}\n";

static void update_test(void) {
  subject s = text_subject(update, NULL);
  const lm_plan_func *f = lm_plan_func_find(s.plan, "update");
  CHECK(s.plan->n_blocks == 8 && s.plan->n_states == 1);
  CHECK(copies_of_control(&s, "update") == 0);
  CHECK(lm_axis_size(s.kernel, s.kernel->blocks) == 8); // the planner settled it
  CHECK(lm_plan_port_find(f, "m", true)->buf.arena == LM_ARENA_STATE);
  CHECK(lm_plan_port_find(f, "m", true)->role == LM_ROLE_STATE);
  CHECK(lm_plan_port_find(f, "p", false)->role == LM_ROLE_PARAM);
  CHECK(lm_plan_port_find(f, "g", false)->role == LM_ROLE_GRAD);
  CHECK(lm_plan_port_find(f, "scale", false)->role == LM_ROLE_OTHER);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(s.plan, NULL, &e));
  float *p = arena_read(e, s.plan, LM_ARENA_PARAM);
  float *g = arena_read(e, s.plan, LM_ARENA_GRAD);
  float *m = arena_read(e, s.plan, LM_ARENA_STATE);
  float *rate = lm_exec_port(e, lm_plan_port_find(f, "rate", false));
  for (int i = 0; i < 8 * LM_BLOCK; i++) {
    p[i] = (float)i;
    g[i] = (float)(i % 7);
    m[i] = 1;
  }
  for (int i = 0; i < 8; i++)
    rate[i] = (float)i;
  *(float *)lm_exec_port(e, lm_plan_port_find(f, "scale", false)) = 0.5f;
  arena_write(e, s.plan, LM_ARENA_PARAM, p);
  arena_write(e, s.plan, LM_ARENA_GRAD, g);
  arena_write(e, s.plan, LM_ARENA_STATE, m);
  CHECK_OK(lm_exec_run(e, f, NULL));
  lm_free(p);
  lm_free(m);
  p = arena_read(e, s.plan, LM_ARENA_PARAM);
  m = arena_read(e, s.plan, LM_ARENA_STATE);
  for (int i = 0; i < 8 * LM_BLOCK; i++) {
    CHECK(m[i] == 1 + (float)(i % 7));
    CHECK(p[i] == (float)i - m[i] * 0.5f * (float)(i / LM_BLOCK));
  }
  lm_free(p);
  lm_free(g);
  lm_free(m);
  lm_exec_destroy(e);
  subject_free(&s);
}

// Appending at a position known at run time, with an extent known at run time; a full cache is an
// error.
static const char decode[] = "stage step\n"
                             "axis b = 2, t = 3 dyn 1, s = 8 dyn 2, e = 4, n = 2\n"
                             "cache @k : f32[n, b, s, e] stacked 1 as @k.#\n"
                             "func @decode(%x: f32[b, t, e], %at: int) -> (y: f32[b, t, s]) {\n"
                             "  %zero = const 0 : f32[b, t, s]\n"
                             "  %y = loop 2 %i carry(%c = %zero) {\n"
                             "    %k = append @k[%i], %at, %x (t) -> (s)\n"
                             "    %z = dot %x, %k over(e)\n"
                             "    %d = add %c, %z\n"
                             "    yield %d\n"
                             "  }\n"
                             "  return %y\n"
                             "}\n";

static void decode_test(void) {
  subject s = text_subject(decode, NULL);
  const lm_plan_func *f = lm_plan_func_find(s.plan, "decode");
  lm_exec *e;
  CHECK(s.plan->n_extents == 2);
  CHECK_OK(lm_cpu_exec_create(s.plan, NULL, &e));
  float *x = lm_exec_port(e, lm_plan_port_find(f, "x", false));
  float *y = lm_exec_port(e, lm_plan_port_find(f, "y", true));
  float all[2][8][4];
  int32_t *at = lm_exec_port(e, lm_plan_port_find(f, "at", false));
  int64_t length = 0;
  static const int64_t more[] = {3, 1, 2, 1};
  for (int step = 0; step < 4; step++) {
    int64_t t = more[step], extents[] = {t, length + t};
    for (int b = 0; b < 2; b++)
      for (int64_t i = 0; i < t * 4; i++)
        x[b * 12 + i] = all[b][length + i / 4][i % 4] = (float)(step + b + i);
    *at = (int32_t)length;
    CHECK_OK(lm_exec_run(e, f, extents));
    length += t;
    for (int b = 0; b < 2; b++)
      for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < length; j++) {
          float want = 0;
          for (int c = 0; c < 4; c++)
            want += 2 * x[b * 12 + i * 4 + c] * all[b][j][c];
          CHECK(y[b * 24 + i * 8 + j] == want);
        }
    float *cache = arena_read(e, s.plan, LM_ARENA_CACHE);
    for (int b = 0; b < 2; b++)
      CHECK(!memcmp(cache + b * 32, all[b], (size_t)length * 16));
    lm_free(cache);
  }
  *at = 6;
  CHECK_FAILS(lm_exec_run(e, f, (int64_t[]){3, 8}), LM_USER, "cache of 8");
  CHECK_FAILS(lm_exec_run(e, f, (int64_t[]){4, 8}), LM_BUG_STATUS, "extent t");
  lm_exec_destroy(e);
  subject_free(&s);
}

// Layer-major: all of one iteration side by side, inner repetitions too, every tensor at a
// multiple of a block.
static const char layout[] = "stage step\n"
                             "axis a = 10, b = 2000, n = 3, k = 2\n"
                             "param @first : f32[a] = ones\n"
                             "param @l.x : f32[n, b] stacked 1 as @l.#.x = ones\n"
                             "param @l.in.y : f32[n, k, a] stacked 2 as @l.#.in.#.y = ones\n"
                             "param @l.z : f32[n, a] stacked 1 as @l.#.z = zeros\n"
                             "param @last : f32[a] = ones\n"
                             "func @f(%x: f32[a]) -> (y: f32[a]) {\n"
                             "  return %x\n"
                             "}\n";

static void layout_test(void) {
  static const struct {
    const char *path;
    int64_t block;
  } want[] = {{"first", 0},       {"l.0.x", 1},       {"l.1.x", 6},      {"l.2.x", 11},
              {"l.0.in.0.y", 3},  {"l.0.in.1.y", 4},  {"l.1.in.0.y", 8}, {"l.1.in.1.y", 9},
              {"l.2.in.0.y", 13}, {"l.2.in.1.y", 14}, {"l.0.z", 5},      {"l.1.z", 10},
              {"l.2.z", 15},      {"last", 16}};
  subject s = text_subject(layout, NULL);
  CHECK(s.plan->n_params == (int)LM_COUNT(want) && s.plan->n_blocks == 17);
  for (size_t i = 0; i < LM_COUNT(want); i++)
    CHECK(!strcmp(s.plan->params[i].path, want[i].path) &&
          s.plan->params[i].pieces->offset == want[i].block * LM_BLOCK);
  run_compare(&s, "f");
  subject_free(&s);
}

// Errors of the planner have locations in the text.
static void refused_test(void) {
  static const struct {
    const char *text, *part;
  } cases[] = {{"stage step\naxis a = 3, n = 2\nfunc @f(%x: f32[n, a], %i: int) -> (y: f32[a]) {\n "
                " %y = at %x, %i [0, "
                "1]\n  return %y\n}\n",
                "the index of 'at' is not the index of an enclosing loop"},
               {"stage step\naxis a = 3, n = 2\nfunc @f(%x: f32[n, a]) -> (y: f32[a]) {\n  %i = "
                "const 2 : int\n  %y = "
                "at %x, %i [0, 1]\n  return %y\n}\n",
                "indices 2 to 2 of an axis of 2"}};
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_ctx *c = lm_ctx_create();
    lm_module *m = parse(c, cases[i].text, NULL);
    naive_kernels_make(m);
    lm_plan_options target = {.codegen = &naive_codegen};
    CHECK(!lm_plan_build(m, &target));
    lm_buf b = {0};
    lm_diag_render(c, &b, 0);
    if (!strstr(b.p, cases[i].part)) {
      fprintf(stderr, "%s", b.p);
      exit(1);
    }
    lm_buf_free(&b);
    lm_ctx_destroy(c);
  }
}

int main(void) {
  cache_begin();
  layout_test();
  carries_test();
  nested_test();
  views_test();
  parts_test();
  gradients_test();
  batch_test();
  table_test();
  side_by_side_test();
  update_test();
  decode_test();
  refused_test();
  llama_test();
}
