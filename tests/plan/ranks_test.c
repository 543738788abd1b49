// ranks_test.c - plans with collectives, run by the ranks of a mesh, against the reference
// interpreter, which runs all ranks in lockstep.
//
// Started alone, the program starts itself under mpirun, once for each number of ranks. Each rank
// gives its own random numbers to both and compares its results and gradients. Skipped where lmc
// was built without MPI.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include <math.h>

#include "compiler/passes/pass.h"
#include "driver/target.h"
#include "runtime/base/dtype.h"
#include "runtime/comm/comm.h"
#include "runtime/hal/tensor.h"
#include "tests/comm/mpirun.h"
#include "tests/passes/shard_mistakes.h"

// ---- modules

// Every collective, of tensors that are divided along the first axis, along others and along two;
// x@a is a part of x.
static const char step[] =
    "stage step\n"
    "mesh a = %d\n"
    "axis x = 8, y = 3, z = 12, one = 1, x@a = %d, z@a = %d, n = 2, peer = %d, "
    "w = %d, w@a = 8\n"
    "param @w : f32[x@a, z]\n"
    "func @f(%%p: f32[x@a, y, z], %%q: f32[y, x@a, z], %%r: f32[one, x, y, z], %%i: int[x, y], "
    "%%k: int[y, x@a]) -> (g: f32[x, y, z], h: f32[y, x, z], s: f32[one, x@a, y, z], t: f32[one, "
    "x, y, z@a], u: f32[y, x, z@a], v: f32[x, y, z@a], m: int[x, y], c: int[y, x], e: f32[x@a, "
    "y, z], d: f32[x, y, z@a], l: f32[y, x@a, z], b: bf16[y, x, z], f: f32[x@a, y, z], o: int, "
    "n1: f32[x@a, y, z], n2: f32[y, x@a, z], n3: f32[w@a, y, z], n4: f32[x@a, y, z]) {\n"
    "  %%n1 = ring_shift %%p over(a) [1]\n"
    "  %%n2 = ring_shift %%q over(a) [-1]\n"
    "  %%g = all_gather %%p over(a) (x@a) -> (x)\n"
    "  %%h = collect %%q over(a) (x@a) -> (x)\n"
    "  %%s = reduce_scatter %%r over(a) (x) -> (x@a)\n"
    "  %%t = reduce_scatter %%r over(a) (z) -> (z@a)\n"
    "  %%u = all_to_all %%q over(a) (x@a, z) -> (x, z@a)\n"
    "  %%v = all_to_all %%p over(a) (x@a, z) -> (x, z@a)\n"
    "  %%m = all_max %%i over(a)\n"
    "  %%c = all_gather %%k over(a) (x@a) -> (x)\n"
    "  %%sq = mul %%p, %%p\n"
    "  %%e = all_reduce %%sq over(a)\n"
    "  %%pd = part %%g over(a) (z) -> (z@a)\n"
    "  %%d = neg %%pd\n"
    "  %%l = loop 2 over(n) %%j carry(%%a = %%q) {\n"
    "    %%ar = all_reduce %%a over(a)\n"
    "    %%as = all_gather %%a over(a) (x@a) -> (x)\n"
    "    %%am = part %%as over(a) (x) -> (x@a)\n"
    "    %%an = sub %%ar, %%am\n"
    "    yield %%an\n"
    "  }\n"
    "  %%hb = cast %%q : bf16[y, x@a, z]\n"
    "  %%b = all_gather %%hb over(a) (x@a) -> (x)\n"
    "  %%fr = first %%p over(a)\n"
    "  %%fe = all_reduce %%fr over(a)\n"
    "  %%f = add %%fe, %%p\n"
    "  %%rk = rank over(a)\n"
    "  %%two = const 2 : int\n"
    "  %%i0 = iota : int[x]\n"
    "  %%i1 = part %%i0 over(a) (x) -> (x@a)\n"
    "  %%j0 = mul %%i1, %%two\n"
    "  %%o = mul %%rk, %%two\n"
    "  %%ps = sum %%p over(y)\n"
    "  %%pr = all_reduce %%ps over(a)\n"
    "  accum @w, %%pr\n"
    "  %%to0 = add %%j0, %%rk\n"
    "  %%size = const %d : int\n"
    "  %%to = mod %%to0, %%size\n"
    "  %%send = group_counts %%to (x@a) -> (peer)\n"
    "  %%receive = exchange_counts %%send over(a)\n"
    "  %%n3 = exchange_rows %%p, %%send, %%receive over(a) (x@a) -> (w@a)\n"
    "  %%w2 = mul %%n3, %%n3\n"
    "  %%n4 = exchange_rows %%w2, %%receive, %%send over(a) (w@a) -> (x@a)\n"
    "  return %%g, %%h, %%s, %%t, %%u, %%v, %%m, %%c, %%e, %%d, %%l, %%b, %%f, %%o, %%n1, %%n2, "
    "%%n3, %%n4\n"
    "}\n";

static const char *const passes = "decompose,cse,dce,fuse,dce";

// The Llama of a golden case, for another mesh.
static const char *llama(lm_arena *a, const char *mesh) {
  lm_buf text = {0};
  CHECK_OK(lm_file_read("tests/passes/shard_llama.lmir", 1 << 20, &text));
  char *from = strstr(text.p, "axis b"), *to = strstr(text.p, "// gives:");
  CHECK(from && to);
  const char *out = lm_arena_printf(a, "stage graph\nmesh %s\n%.*s", mesh, (int)(to - from), from);
  lm_buf_free(&text);
  if (strstr(mesh, "interleaved"))
    out = replaced(a, replaced(a, out, "layers = 2", "layers = 4"), "loop 2 ", "loop 4 ");
  return out;
}

static lm_module *module_make(lm_ctx *c, const char *text, const char *names) {
  lm_module *m = must_parse(c, "case", text, strlen(text));
  must_run(m, names);
  return m;
}

// ---- one rank

typedef struct rank {
  lm_comm *comm;
  int number, size;
  lm_target target;
} rank;

static double from_memory(const void *p, lm_dtype t, int64_t i) {
  return t == LM_INT    ? ((const int32_t *)p)[i]
         : t == LM_BF16 ? (double)lm_bf16_to_f32(((const uint16_t *)p)[i])
                        : (double)((const float *)p)[i];
}

static void to_memory(const lm_tensor *t, void *p) {
  for (int64_t i = 0; i < t->n; i++)
    if (t->type.dtype == LM_INT)
      ((int32_t *)p)[i] = (int32_t)t->v[i];
    else
      ((float *)p)[i] = (float)t->v[i];
}

static void compare(const rank *r, const char *what, const double *v, const void *got, lm_dtype t,
                    int64_t n) {
  double bound = t == LM_BF16 ? 5e-3 : 2e-5;
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(from_memory(got, t, i) - v[i]) <= bound * (1 + fabs(v[i])))) {
      fprintf(stderr, "rank %d: %s[%lld] is %.9g, not %.9g\n", r->number, what, (long long)i,
              from_memory(got, t, i), v[i]);
      exit(1);
    }
}

// The same numbers on every rank for arguments that have no divided axis.
static void fill(const rank *r, const lm_module *m, lm_tensor *t, uint64_t seed) {
  bool divided = false;
  for (int i = 0; i < t->type.rank; i++)
    divided |= m->axes[t->type.axis[i]].whole != 0;
  uint64_t state = seed * 64 + (divided ? (uint64_t)r->number + 1 : 0);
  if (t->type.dtype == LM_INT)
    fill_int(t, 6, &state);
  else
    fill_real(t, -1, 1, &state);
}

// The tensor of all ranks with this rank's part, and zeros for those of the others.
static lm_tensor whole_of(const rank *r, const lm_module *m, lm_eval_mesh *all,
                          const lm_tensor *part) {
  lm_eval *e = lm_eval_mesh_rank(all, r->number);
  lm_tensor whole = lm_eval_tensor(e, lm_type_whole(m, part->type));
  lm_eval_whole_set(m, r->number, part, &whole);
  return whole;
}

static void param_set(lm_exec *e, const lm_plan *plan, const lm_plan_param *p, const double *from) {
  float *v = lm_alloc((size_t)p->elements * sizeof *v);
  for (int64_t i = 0; i < p->elements; i++)
    v[i] = (float)from[i];
  CHECK_OK(lm_tensor_set(e, plan, (lm_plan_tensor){p, LM_ROLE_PARAM}, 0, p->elements, v));
  lm_free(v);
}

static void params_set(const rank *r, const lm_module *m, lm_eval_mesh *all, lm_exec *e,
                       const lm_plan *plan) {
  for (uint32_t i = 0; i < m->n_globals; i++)
    for (int k = 0; k < r->size; k++)
      fill(&(rank){.number = k}, m, lm_eval_global(lm_eval_mesh_rank(all, k), m->globals[i].name),
           i + 1);
  for (int i = 0, of = 0; i < plan->n_params; of++) {
    const lm_global *g = &m->globals[of];
    lm_tensor whole =
        whole_of(r, m, all, lm_eval_global(lm_eval_mesh_rank(all, r->number), g->name));
    for (int64_t k = 0; k < g->n_paths; k++, i++)
      param_set(e, plan, &plan->params[i], whole.v + k * plan->params[i].elements);
    lm_tensor_free(&whole);
  }
}

static void gradients_compare(const rank *r, const lm_module *m, lm_eval_mesh *all, lm_exec *e,
                              const lm_plan *plan) {
  for (int i = 0, of = 0; i < plan->n_params; of++) {
    const lm_global *g = &m->globals[of];
    lm_tensor whole =
        whole_of(r, m, all, lm_eval_gradient(lm_eval_mesh_rank(all, r->number), g->name));
    for (int64_t k = 0; k < g->n_paths; k++, i++) {
      const lm_plan_param *p = &plan->params[i];
      float *v = lm_calloc((size_t)p->elements, sizeof *v);
      CHECK_OK(lm_tensor_get(e, plan, (lm_plan_tensor){p, LM_ROLE_GRAD}, 0, p->elements, v));
      compare(r, p->path, whole.v + k * p->elements, v, LM_F32, p->elements);
      lm_free(v);
    }
    lm_tensor_free(&whole);
  }
}

static void results_compare(const rank *r, const lm_func *f, lm_exec *e, const lm_plan_func *pf,
                            const lm_tensor *out) {
  for (uint32_t i = 0; i < f->n_out; i++) {
    const lm_plan_port *port = lm_plan_port_find(pf, f->out_names[i], true);
    const lm_tensor *t = &out[(uint32_t)r->number * f->n_out + i];
    compare(r, f->out_names[i], t->v, lm_exec_port(e, port), (lm_dtype)port->dtype, t->n);
  }
}

// All functions of the plans of all ranks together.
static bool mesh_check(const rank *r, const lm_plan *p, lm_buf *why) {
  lm_plan *all = lm_calloc((size_t)r->size, sizeof *all);
  const lm_plan **plans = lm_calloc((size_t)r->size, sizeof *plans);
  bool ok = true;
  for (int k = 0; k < r->size; k++) {
    all[k] = *p;
    lm_plan_mesh_place(&all[k], k);
    plans[k] = &all[k];
  }
  for (int i = 0; i < p->n_funcs; i++)
    ok &= lm_plan_check_mesh(plans, p->funcs[i].name, why);
  lm_free(plans);
  lm_free(all);
  return ok;
}

// A plan that is read from its text has the same text.
static void text_repeats(const lm_plan *p) {
  lm_arena *a = lm_arena_create();
  lm_buf text = {0}, again = {0};
  lm_plan *read;
  lm_plan_print(p, &text);
  CHECK_OK(lm_plan_parse(a, text.p, text.n, &read));
  lm_plan_print(read, &again);
  CHECK(!strcmp(text.p, again.p));
  lm_buf_free(&text);
  lm_buf_free(&again);
  lm_arena_destroy(a);
}

// disabled: passes, or NULL.
static lm_plan *plan_make(const rank *r, lm_module *m, const char *disabled) {
  lm_plan_options o = lm_target_options(&r->target, false);
  lm_pass_env env = {.target = &o.target, .codegen = o.codegen, .compute = LM_F32};
  bool ok = true;
  if (disabled)
    CHECK_OK(lm_pass_disable(m->arena, disabled, &env));
  if (m->stage == LM_STAGE_GRAPH)
    ok = lm_pipeline_run(m, LM_STAGE_KERNEL, &env);
  else
    CHECK_OK(lm_pass_run_list(m, passes, &env, &ok));
  lm_plan *p = ok ? lm_plan_build(m, &o) : NULL;
  lm_buf why = {0};
  lm_diag_render(m->ctx, &why, 0);
  if (getenv("SHOW") && p && !r->number)
    lm_plan_print(p, &why);
  for (int i = 0; p && i < p->n_funcs; i++)
    ok &= lm_plan_check(p, &p->funcs[i], &why);
  if (why.n)
    fprintf(stderr, "%s", why.p);
  CHECK(p && ok);
  lm_plan_mesh_place(p, r->number);
  ok = mesh_check(r, p, &why);
  if (!ok)
    fprintf(stderr, "%s", why.p);
  CHECK(ok);
  lm_buf_free(&why);
  if (!r->number)
    text_repeats(p);
  return p;
}

static void groups_make(const rank *r, const lm_module *m) {
  lm_comm_mesh mesh = {.n = m->mesh.n};
  for (int k = 0; k < m->mesh.n; k++)
    mesh.size[k] = m->mesh.axis[k].size;
  CHECK_OK(lm_comm_groups(r->comm, &mesh));
}

// names: passes that make the function from the text, before it is interpreted.
static void module_try(const rank *r, const char *text, const char *names, const char *func) {
  lm_ctx *c[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_module *m = module_make(c[0], text, names);
  lm_plan *plan = plan_make(r, module_make(c[1], text, ""), NULL);
  const lm_func *f = lm_func_find(m, func);
  const lm_plan_func *pf = lm_plan_func_find(plan, func);
  lm_eval_mesh *all = lm_eval_mesh_create(m);
  uint32_t n = f->body->n_args, ranks = (uint32_t)r->size;
  lm_tensor *args = lm_calloc(ranks * n, sizeof *args);
  lm_tensor *out = lm_calloc(ranks * f->n_out, sizeof *out);
  lm_exec *e;
  groups_make(r, m);
  CHECK_OK(lm_target_runtime(&r->target)
               ->create(plan, &r->target, &(lm_exec_options){.threads = 2, .comm = r->comm}, &e));
  params_set(r, m, all, e, plan);
  for (uint32_t k = 0; k < ranks; k++)
    for (uint32_t i = 0; i < n; i++) {
      lm_tensor *x = &args[k * n + i];
      *x = lm_eval_tensor(lm_eval_mesh_rank(all, 0), f->body->args[i]->type);
      fill(&(rank){.number = (int)k}, m, x, 100 + i);
      const lm_plan_port *port = lm_plan_port_find(pf, f->body->args[i]->name, false);
      if ((int)k == r->number && port)
        to_memory(x, lm_exec_port(e, port));
    }
  CHECK_OK(lm_eval_mesh_call(all, f, args, out));
  for (int times = 0; times < 2; times++)
    CHECK_OK(lm_exec_run_first(e, pf, NULL));
  results_compare(r, f, e, pf, out);
  const lm_plan_func *last = lm_plan_func_get(plan, LM_FUNC_MICRO_LAST, 0);
  if (last) // gradients are complete after it
    CHECK_OK(lm_exec_run_first(e, last, NULL));
  gradients_compare(r, m, all, e, plan);
  for (uint32_t i = 0; i < ranks * n; i++)
    lm_tensor_free(&args[i]);
  for (uint32_t i = 0; i < ranks * f->n_out; i++)
    lm_tensor_free(&out[i]);
  lm_free(args);
  lm_free(out);
  lm_eval_mesh_destroy(all);
  lm_exec_destroy(e);
  lm_ctx_destroy(c[0]);
  lm_ctx_destroy(c[1]);
}

// ---- gradients that are added in the last micro-batch

// The gradients of two micro-batches, of this rank, in *out. Returns their number.
static int64_t gradients_after(const rank *r, const char *text, const char *names,
                               const char *disabled, float **out) {
  lm_ctx *c[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_module *m = module_make(c[0], text, names);
  lm_plan *plan = plan_make(r, module_make(c[1], text, ""), disabled);
  const lm_plan_func *last = lm_plan_func_get(plan, LM_FUNC_MICRO_LAST, 0);
  const lm_plan_func *reduce = lm_plan_func_get(plan, LM_FUNC_REDUCE, 0);
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_MICRO, 0);
  lm_eval_mesh *all = lm_eval_mesh_create(m);
  lm_exec *e;
  CHECK(!last == !!strstr(disabled, "overlap") && !reduce == !!last);
  CHECK_OK(lm_target_runtime(&r->target)
               ->create(plan, &r->target, &(lm_exec_options){.threads = 2, .comm = r->comm}, &e));
  params_set(r, m, all, e, plan);
  for (int i = 0; i < f->n_in; i++) {
    const lm_func *micro = lm_func_find(m, f->name);
    lm_tensor x = lm_eval_tensor(lm_eval_mesh_rank(all, 0), micro->body->args[i]->type);
    fill(r, m, &x, 100 + (uint64_t)i);
    to_memory(&x, lm_exec_port(e, &f->in[i]));
    lm_tensor_free(&x);
  }
  CHECK_OK(lm_exec_run_first(e, f, NULL));
  CHECK_OK(lm_exec_run(e, last ? last : f, NULL));
  if (reduce)
    CHECK_OK(lm_exec_run(e, reduce, NULL));
  int64_t bytes = plan->arena_bytes[LM_ARENA_GRAD];
  *out = lm_alloc((size_t)bytes);
  CHECK_OK(lm_exec_read(e, LM_ARENA_GRAD, 0, bytes, *out));
  lm_eval_mesh_destroy(all);
  lm_exec_destroy(e);
  lm_ctx_destroy(c[0]);
  lm_ctx_destroy(c[1]);
  return bytes / (int64_t)sizeof **out;
}

// The bits are those of sums behind the last micro-batch.
static void last_try(const rank *r, const char *text, const char *names) {
  float *with, *without;
  double sum = 0;
  int64_t n = gradients_after(r, text, names, "bucket", &with);
  CHECK(n == gradients_after(r, text, names, "overlap,bucket", &without));
  CHECK(!memcmp(with, without, (size_t)n * sizeof *with));
  for (int64_t i = 0; i < n; i++)
    sum += fabs((double)with[i]);
  CHECK(sum > 1);
  lm_free(with);
  lm_free(without);
}

static const struct {
  int ranks;
  const char *mesh;
  bool once; // gradients are added once a step, beside the last micro-batch
  bool bits; // only their bits are compared
} meshes[] = {{2, "tp = 2 shard(g, ff, v)"},
              {2, "tp = 2 shard(g, ff, v, t)"},
              {2, "dp = 2 shard(b)", true},
              {2, "cp = 2 positions"},
              {2, "cp = 2 positions shard(g)"},
              {2, "cp = 2 positions ring"},
              {4, "dp = 2 rows, cp = 2 positions ring"},
              {4, "dp = 2 rows order library, cp = 2 positions", true},
              {4, "dp = 2 rows reduce bf16, cp = 2 positions reduce bf16", true, true},
              {4, "dp = 2 rows zero 1, cp = 2 positions", true, true},
              {4, "dp = 2 rows zero 1 reduce bf16, cp = 2 positions reduce bf16", true, true},
              {4, "dp = 2 shard(b), tp = 2 shard(g, ff, v)"},
              {4, "dp = 2 shard(b), tp = 2 shard(g, ff, v, t)"},
              {2, "dp = 2 rows zero 1", true},
              {2, "dp = 2 rows zero 2"},
              {2, "dp = 2 rows zero 3"},
              {4, "dp = 4 rows zero 2"},
              {4, "dp = 2 rows, fsdp = 2 rows zero 3"},
              {2, "pp = 2 rows pipeline 4"},
              {2, "pp = 2 pipeline 2 interleaved 2"},
              {4, "dp = 2 rows zero 3, tp = 2 shard(g, ff, v, t)"}};

static void rank_main(void) {
  rank r = {0};
  lm_arena *a = lm_arena_create();
  CHECK_OK(lm_comm_open(&(lm_comm_options){0}, &r.comm));
  CHECK(r.comm);
  r.number = lm_comm_self_of(r.comm).rank;
  r.size = lm_comm_self_of(r.comm).size;
  lm_target_find_cpu(&r.target);
  module_try(&r,
             lm_arena_printf(a, step, r.size, 8 / r.size, 12 / r.size, r.size, 8 * r.size, r.size),
             "", "f");
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    static const char names[] = "inline,simplify,cse,licm,dce,shard,mesh,attend,grad,mesh,ring";
    if (meshes[i].ranks != r.size)
      continue;
    if (!meshes[i].bits)
      module_try(&r, llama(a, meshes[i].mesh), names, "micro");
    if (meshes[i].once)
      last_try(&r, llama(a, meshes[i].mesh), names);
  }
  lm_arena_destroy(a);
  lm_comm_close(r.comm, NULL);
}

int main(int argc, char **argv) {
  int failed = 0;
  if (argc > 1) {
    rank_main();
    return 0;
  }
  if (!ranks_can_run()) {
    puts("skipped: built without MPI, or there is no mpirun");
    return 0;
  }
  cache_begin();
  for (int n = 2; n <= 4; n *= 2) {
    lm_buf out = {0};
    int status = ranks_run(n, "rank", &out);
    if (status)
      fprintf(stderr, "%d ranks: exit status %d\n%s\n", n, status, out.p);
    failed |= status;
    lm_buf_free(&out);
  }
  return failed != 0;
}
