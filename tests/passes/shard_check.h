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
  double small; // a hundredth of the norm of all gradients: bounds norms from below, since some
                // gradients, such as of a bias of keys, are zero up to rounding
  const char *what;
} run;

static inline void worse(run *r, double by, const char *what) {
  if (!(by <= r->worst)) {
    r->worst = by;
    r->what = what;
  }
}

static inline void compare_results(run *r, const machine *k, const lm_func *f, const lm_tensor *one,
                                   const lm_tensor *out) {
  int n = lm_mesh_ranks(k->m);
  for (int rank = 0; rank < n; rank++)
    for (uint32_t i = 0; i < f->n_out; i++) {
      double sum = 0;
      for (int other = 0; other < n; other++)
        if (along(k->m, rank, other, f->out_partial ? f->out_partial[i] : 0))
          sum += out[other * (int)f->n_out + (int)i].v[0];
      worse(r, fabs(sum - one[i].v[0]) / (fabs(one[i].v[0]) + 1e-3), f->out_names[i]);
    }
}

static inline void compare_gradient(run *r, const machine *k, lm_eval_mesh *e, const lm_global *g,
                                    const lm_tensor *one) {
  int n = lm_mesh_ranks(k->m);
  double norm = sqrt(square_norm(one)) + r->small;
  for (int rank = 0; rank < n; rank++) {
    lm_tensor want = lm_eval_part(k->m, rank, one, g->type);
    lm_tensor sum = lm_eval_part(k->m, rank, one, g->type);
    memset(sum.v, 0, (size_t)sum.n * sizeof *sum.v);
    for (int other = 0; other < n; other++) {
      const lm_tensor *x = lm_eval_gradient(lm_eval_mesh_rank(e, other), g->name);
      for (int64_t i = 0; along(k->m, rank, other, g->partial) && i < x->n; i++)
        sum.v[i] += x->v[i];
    }
    worse(r, sqrt(square_distance(&want, &sum)) / norm, g->name);
    lm_tensor_free(&want);
    lm_tensor_free(&sum);
  }
}

static inline run compare(const machine *one, const machine *all, int64_t ids) {
  run r = {0};
  lm_eval *e = lm_eval_create(one->m);
  lm_eval_mesh *ranks = lm_eval_mesh_create(all->m);
  int n = lm_mesh_ranks(all->m);
  const lm_func *f = lm_func_find(one->m, "micro");
  const lm_func *g = lm_func_find(all->m, "micro");
  lm_tensor args[8], out[8];
  uint64_t state = 11;
  CHECK(f->body->n_args <= 8 && f->n_out <= 8);
  for (uint32_t i = 0; i < one->m->n_globals; i++) {
    lm_tensor *whole = lm_eval_global(e, one->m->globals[i].name);
    fill_real(whole, -1, 1, &state);
    for (int k = 0; k < n; k++) {
      lm_tensor *own = lm_eval_global(lm_eval_mesh_rank(ranks, k), one->m->globals[i].name);
      lm_type type = own->type;
      lm_tensor_free(own);
      *own = lm_eval_part(all->m, k, whole, type);
    }
  }
  fill_args(one->m, e, f, args, ids);
  lm_tensor *args_all = lm_calloc((size_t)n * g->body->n_args, sizeof *args_all);
  lm_tensor *out_all = lm_calloc((size_t)n * g->n_out, sizeof *out_all);
  for (int k = 0; k < n; k++)
    for (uint32_t i = 0; i < g->body->n_args; i++)
      args_all[k * (int)g->body->n_args + (int)i] =
          lm_eval_part(all->m, k, &args[i], g->body->args[i]->type);
  CHECK_OK(lm_eval_call(e, f, args, out));
  CHECK_OK(lm_eval_mesh_call(ranks, g, args_all, out_all));
  compare_results(&r, all, g, out, out_all);
  for (uint32_t i = 0; i < one->m->n_globals; i++)
    if (one->m->globals[i].kind == LM_GLOBAL_PARAM)
      r.small += square_norm(lm_eval_gradient(e, one->m->globals[i].name));
  r.small = 0.01 * sqrt(r.small);
  for (uint32_t i = 0; i < all->m->n_globals; i++)
    if (all->m->globals[i].kind == LM_GLOBAL_PARAM)
      compare_gradient(&r, all, ranks, &all->m->globals[i],
                       lm_eval_gradient(e, all->m->globals[i].name));
  for (uint32_t i = 0; i < f->body->n_args; i++)
    lm_tensor_free(&args[i]);
  for (uint32_t i = 0; i < f->n_out; i++)
    lm_tensor_free(&out[i]);
  for (uint32_t i = 0; i < (uint32_t)n * g->body->n_args; i++)
    lm_tensor_free(&args_all[i]);
  for (uint32_t i = 0; i < (uint32_t)n * g->n_out; i++)
    lm_tensor_free(&out_all[i]);
  lm_free(args_all);
  lm_free(out_all);
  lm_eval_mesh_destroy(ranks);
  lm_eval_destroy(e);
  return r;
}

// ids: token ids are below it
static inline void text_check(const char *name, const char *text, const char *mesh, int64_t ids) {
  machine one = compile(name, text, NULL, "grad");
  machine all = compile(name, text, mesh, "shard,mesh,grad,mesh");
  run r = compare(&one, &all, ids);
  if (!(r.worst <= 1e-12)) {
    lm_buf b = {0};
    lm_module_print(all.m, &b);
    fprintf(stderr, "%s, mesh %s: %s differs by %.3g\n", name, mesh, r.what, r.worst);
    if (getenv("SHOW"))
      fprintf(stderr, "%s\n%s\n", text, b.p);
    lm_buf_free(&b);
  }
  CHECK(r.worst <= 1e-12);
  lm_ctx_destroy(one.c);
  lm_ctx_destroy(all.c);
}
#endif
