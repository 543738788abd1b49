// shard_check.h - a sharded module on all ranks of a mesh, in float64 and in lockstep, against one
// rank.
#ifndef LM_TESTS_SHARD_CHECK_H
#define LM_TESTS_SHARD_CHECK_H
#include "tests/numeric/grad_check.h"

// ---- one rank and all ranks

typedef struct machine {
  lm_ctx *c;
  lm_module *m;
} machine;

static inline machine compile(const char *name, const char *text, const char *mesh,
                              const char *passes) {
  machine k = {.c = lm_ctx_create()};
  lm_buf b = {0};
  size_t head = strcspn(text, "\n") + 1; // "stage graph"
  lm_buf_add(&b, text, head);
  if (mesh)
    lm_buf_printf(&b, "mesh %s\n", mesh);
  lm_buf_puts(&b, text + head);
  k.m = must_parse(k.c, name, b.p, b.n);
  lm_buf_free(&b);
  bool ok = false;
  CHECK_OK(lm_pass_run_list(k.m, passes, &(lm_pass_env){0}, &ok));
  if (!ok) {
    lm_buf d = {0};
    lm_diag_render(k.c, &d, false);
    fprintf(stderr, "%s: mesh %s\n%s%s\n", name, mesh ? mesh : "", text, d.p);
  }
  CHECK(ok);
  return k;
}

static inline void fill_args(const lm_module *m, lm_eval *e, const lm_func *f, lm_tensor *args,
                             int64_t ids) {
  uint64_t state = 5;
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    args[i] = lm_eval_tensor(e, f->body->args[i]->type);
    const char *name = f->body->args[i]->name;
    if (args[i].type.dtype != LM_INT)
      fill_real(&args[i], 0.1, 1, &state);
    else if (args[i].type.rank && !strcmp(name, "pos"))
      for (int64_t k = 0; k < args[i].n; k++)
        args[i].v[k] = (double)(k % 3);
    else if (args[i].type.rank && strcmp(name, "seg"))
      fill_int(&args[i], ids, &state);
    else if (!args[i].type.rank)
      args[i].v[0] = 3;
  }
}

// True if ranks a and b differ along axes of `set` only.
static inline bool along(const lm_module *m, int a, int b, lm_mesh_set set) {
  for (int k = 1; k <= m->mesh.n; k++)
    if (!(set >> (k - 1) & 1) && lm_mesh_coordinate(m, a, k) != lm_mesh_coordinate(m, b, k))
      return false;
  return true;
}

typedef struct run {
  double worst; // difference, relative to the norm
  double small; // added to norms; for gradients, some of which are zero up to rounding, a hundredth
                // of the norm of all
  const char *what;
} run;

static inline void worse(run *r, double by, const char *what) {
  if (!(by <= r->worst)) {
    r->worst = by;
    r->what = what;
  }
}

// The rank's part of a tensor of one rank. A list of instances may be several there, one behind the
// other.
static inline lm_tensor part_of(const lm_module *m, int rank, const lm_tensor *one, lm_type type) {
  lm_tensor whole = *one;
  if (type.rank != one->type.rank)
    whole.type = lm_type_whole(m, type);
  return lm_eval_part(m, rank, &whole, type);
}

// The sum over the ranks that differ from `rank` along `set` only.
static inline lm_tensor sum_along(const lm_module *m, int rank, lm_mesh_set set,
                                  const lm_tensor *const *of) {
  lm_tensor sum = *of[rank];
  sum.v = lm_calloc((size_t)sum.n, sizeof *sum.v);
  for (int other = 0; other < lm_mesh_ranks(m); other++)
    for (int64_t i = 0; along(m, rank, other, set) && i < sum.n; i++)
      sum.v[i] += of[other]->v[i];
  return sum;
}

// Compares the sum along `set` with the rank's part of `one`.
static inline void compare_tensor(run *r, const lm_module *m, const char *name, lm_mesh_set set,
                                  const lm_tensor *one, const lm_tensor *const *of) {
  double norm = sqrt(square_norm(one)) + r->small;
  for (int rank = 0; rank < lm_mesh_ranks(m); rank++) {
    lm_tensor want = part_of(m, rank, one, of[rank]->type);
    lm_tensor sum = sum_along(m, rank, set, of);
    worse(r, sqrt(square_distance(&want, &sum)) / norm, name);
    lm_tensor_free(&want);
    lm_tensor_free(&sum);
  }
}

static inline void compare_results(run *r, const machine *k, const lm_func *f, const lm_tensor *one,
                                   const lm_tensor *out) {
  int n = lm_mesh_ranks(k->m);
  const lm_tensor **of = lm_calloc((size_t)n, sizeof *of);
  for (uint32_t i = 0; i < f->n_out; i++) {
    for (int rank = 0; rank < n; rank++)
      of[rank] = &out[rank * (int)f->n_out + (int)i];
    compare_tensor(r, k->m, f->out_names[i], f->out_partial ? f->out_partial[i] : 0, &one[i], of);
  }
  lm_free(of);
}

static inline void compare_gradient(run *r, const machine *k, lm_eval_mesh *e, const lm_global *g,
                                    const lm_tensor *one) {
  int n = lm_mesh_ranks(k->m);
  const lm_tensor **of = lm_calloc((size_t)n, sizeof *of);
  for (int rank = 0; rank < n; rank++)
    of[rank] = lm_eval_gradient(lm_eval_mesh_rank(e, rank), g->name);
  compare_tensor(r, k->m, g->name, g->partial, one, of);
  lm_free(of);
}

// ---- a function on one rank and on all

typedef struct both {
  const machine *one, *all;
  lm_eval *e;
  lm_eval_mesh *ranks;
  int n;
} both;

static inline both both_open(const machine *one, const machine *all) {
  both b = {one, all, lm_eval_create(one->m), lm_eval_mesh_create(all->m), lm_mesh_ranks(all->m)};
  uint64_t state = 11;
  for (uint32_t i = 0; i < one->m->n_globals; i++) {
    lm_tensor *whole = lm_eval_global(b.e, one->m->globals[i].name);
    fill_real(whole, -1, 1, &state);
    for (int k = 0; k < b.n; k++) {
      lm_tensor *own = lm_eval_global(lm_eval_mesh_rank(b.ranks, k), one->m->globals[i].name);
      lm_tensor part = part_of(all->m, k, whole, own->type);
      lm_tensor_free(own);
      *own = part;
    }
  }
  return b;
}

static inline void tensors_free(lm_tensor *t, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    lm_tensor_free(&t[i]);
  lm_free(t);
}

// The element that a `balanced` axis of the mesh puts at e, of n: each rank has an early and a late
// chunk.
static inline int64_t balanced_element(int64_t e, int64_t n, int ranks) {
  int64_t chunk = n / (2 * ranks);
  int64_t rank = e / (2 * chunk);
  int64_t from = e / chunk % 2 ? 2 * ranks - 1 - rank : rank;
  return from * chunk + e % chunk;
}

// Puts the elements of an argument in the order in which a `balanced` axis divides them.
static inline void balance(const lm_module *m, lm_tensor *x, lm_type part) {
  int64_t inner = 1;
  for (int d = part.rank - 1; d >= 0; d--) {
    int64_t n = lm_axis_size(m, lm_type_whole(m, part).axis[d]);
    for (int k = 0; k < m->mesh.n; k++) {
      const lm_mesh_axis *by = &m->mesh.axis[k];
      if (!by->balanced || !(lm_axis_divided_by(m, part.axis[d]) >> k & 1))
        continue;
      double *v = lm_calloc((size_t)x->n, sizeof *v);
      for (int64_t i = 0; i < x->n; i++) {
        int64_t e = i / inner % n;
        v[i] = x->v[i + (balanced_element(e, n, by->size) - e) * inner];
      }
      memcpy(x->v, v, (size_t)x->n * sizeof *v);
      lm_free(v);
    }
    inner *= n;
  }
}

static inline void compare_calls(run *r, const both *b, const char *func, int64_t ids) {
  const lm_func *f = lm_func_find(b->one->m, func);
  const lm_func *g = lm_func_find(b->all->m, func);
  uint32_t n_args = f->body->n_args;
  uint32_t n = (uint32_t)b->n;
  CHECK(g && n_args == g->body->n_args && f->n_out == g->n_out);
  lm_tensor *args = lm_calloc(n_args + 1, sizeof *args);
  lm_tensor *out = lm_calloc(f->n_out + 1, sizeof *out);
  lm_tensor *args_all = lm_calloc(n * n_args + 1, sizeof *args_all);
  lm_tensor *out_all = lm_calloc(n * f->n_out + 1, sizeof *out_all);
  fill_args(b->one->m, b->e, f, args, ids);
  CHECK_OK(lm_eval_call(b->e, f, args, out));
  for (uint32_t i = 0; i < n_args; i++)
    balance(b->all->m, &args[i], g->body->args[i]->type);
  for (uint32_t k = 0; k < n; k++)
    for (uint32_t i = 0; i < n_args; i++)
      args_all[k * n_args + i] = lm_eval_part(b->all->m, (int)k, &args[i], g->body->args[i]->type);
  CHECK_OK(lm_eval_mesh_call(b->ranks, g, args_all, out_all));
  r->small = 1e-3;
  compare_results(r, b->all, g, out, out_all);
  tensors_free(args, n_args);
  tensors_free(out, f->n_out);
  tensors_free(args_all, n * n_args);
  tensors_free(out_all, n * f->n_out);
}

static inline void compare_gradients(run *r, const both *b) {
  double all = 0;
  for (uint32_t i = 0; i < b->one->m->n_globals; i++)
    if (b->one->m->globals[i].kind == LM_GLOBAL_PARAM)
      all += square_norm(lm_eval_gradient(b->e, b->one->m->globals[i].name));
  r->small = 0.01 * sqrt(all);
  for (uint32_t i = 0; i < b->all->m->n_globals; i++) {
    const lm_global *g = &b->all->m->globals[i];
    if (g->kind == LM_GLOBAL_PARAM)
      compare_gradient(r, b->all, b->ranks, g, lm_eval_gradient(b->e, g->name));
  }
}

// Compares the results of @micro and of the other functions of the text that compute the model, and
// the gradients, after `passes`; ids: token ids are below it.
static inline void passes_check(const char *name, const char *text, const char *mesh,
                                const char *passes, const char *shard, double bound, int64_t ids) {
  static const char *const others[] = {"eval", "apply", "decode"};
  machine one = compile(name, text, NULL, passes);
  machine all = compile(name, text, mesh, shard);
  run r = {0};
  both b = both_open(&one, &all);
  compare_calls(&r, &b, "micro", ids);
  compare_gradients(&r, &b);
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (lm_func_find(one.m, others[i]))
      compare_calls(&r, &b, others[i], ids);
  if (!(r.worst <= bound)) {
    lm_buf printed = {0};
    lm_module_print(all.m, &printed);
    fprintf(stderr, "%s, mesh %s: %s differs by %.3g after %s\n", name, mesh, r.what, r.worst,
            shard);
    if (getenv("SHOW"))
      fprintf(stderr, "%s\n%s\n", text, printed.p);
    lm_buf_free(&printed);
  }
  CHECK(r.worst <= bound);
  lm_eval_mesh_destroy(b.ranks);
  lm_eval_destroy(b.e);
  lm_ctx_destroy(one.c);
  lm_ctx_destroy(all.c);
}

static inline void text_check(const char *name, const char *text, const char *mesh, int64_t ids) {
  passes_check(name, text, mesh, "grad", "shard,mesh,grad,mesh", 1e-12, ids);
}
#endif
