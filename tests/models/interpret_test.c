// interpret_test.c - every case here, from its .lm text to trained weights and decoded tokens, on
// the interpreter in float64.
//
// Each is run twice: compiled without a target, and with passes fuse_gemms, chunk_scan and
// tile_rows, the last to tiles of a few rows.
//
// Language, maps, derivative, optimizer and cached decoding are compared with PyTorch's results
// (generate.py) up to rounding: 1e-9 for losses and gradient norms, which are kept in float64; 1e-6
// for tensors, which are kept in float32.
//
// usage: interpret_test [CASE…]; in the repository's root
// Build: plain
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "compiler/plan/planner.h"
#include "dsl/lower/lower.h"
#include "runtime/plan/plan.h"
#include "tests/runtime/check.h"

typedef struct {
  lm_ctx *c;
  lm_recipe *r;
  lm_lowered *l;
  lm_st *batches, *expected;
  json_t *numbers;
  int64_t rows, seq, vocab, micro_rows, steps;
  lm_eval *e;
  int tiled; // loops over tiles of rows: they carry nothing
  int64_t n_blocks;
  double *arena[2 + 8]; // p, g, then the optimizer's states: [n_blocks, LM_BLOCK]
  const char *why;      // the first difference that is too large
  double worst;
} model_case;

enum {
  TILE_ROWS = 4
};
static const char *const columns[] = {"tok", "pos", "seg", "next", "w"};

static const char *in_folder(model_case *k, const char *name, const char *file) {
  return lm_arena_printf(k->c->arena, "tests/models/%s/%s", name, file);
}

static bool diagnosed(lm_ctx *c) {
  lm_buf b = {0};
  lm_diag_render(c, &b, 0);
  if (b.n)
    fputs(b.p, stdout);
  lm_buf_free(&b);
  return c->n_errors > 0;
}

static void differ(model_case *k, const char *what, double by, double most) {
  if (by > k->worst)
    k->worst = by;
  if (!k->why && !(by <= most))
    k->why = lm_arena_printf(k->c->arena, "%s is off by %.3g", what, by);
}

// ---- set up
static void count_tiled(lm_op *op, void *user) {
  model_case *k = user;
  k->tiled += op->code == LM_OP_LOOP && !op->n_in;
}

// rows: rows of a tile; 0: not tiled.
static bool compile(model_case *k, const char *name, int rows) {
  lm_program *p = lm_program_load(k->c, in_folder(k, name, "reference.lm"));
  k->r = p ? lm_recipe_resolve(k->c, p, "Reference", NULL) : NULL;
  if (!k->r || diagnosed(k->c))
    return false;
  const lm_st_tensor *tok = lm_st_find(k->batches, "tok");
  k->steps = tok->shape[0];
  k->rows = tok->shape[1];
  k->seq = tok->shape[2];
  k->micro_rows = k->r->micro ? k->r->micro / k->seq : k->rows;
  lm_lower_options o = {
      .what = 31, .rows = k->micro_rows, .seq = k->seq, .capacity = k->seq, .chunk = k->seq};
  k->l = lm_lower(k->c, (lm_program *)k->r->program, k->r, &o);
  if (diagnosed(k->c) || !k->l)
    return false;
  lm_check(k->c, (lm_program *)k->r->program, k->r);
  lm_target target = {.choices.rows = rows};
  lm_pass_env env = {.target = rows ? &target : NULL};
  if (rows)
    CHECK_OK(lm_pass_force(k->c->arena, "fuse_gemms,tile_rows,chunk_scan", &env));
  if (diagnosed(k->c) || !lm_pipeline_run(k->l->m, LM_STAGE_STEP, &env) || diagnosed(k->c))
    return false;
  lm_region_walk(lm_func_find(k->l->m, "micro")->body, count_tiled, k);
  return true;
}

// The elements of parameter `path` begin at *out_first of its stacked global.
static lm_global *global_of(model_case *k, const char *path, int64_t *out_first, int64_t *out_n) {
  for (uint32_t i = 0; i < k->l->m->n_globals; i++) {
    lm_global *g = &k->l->m->globals[i];
    for (int64_t j = 0; g->kind == LM_GLOBAL_PARAM && j < g->n_paths; j++)
      if (!strcmp(g->paths[j], path)) {
        *out_n = lm_type_elements(k->l->m, g->type) / g->n_paths;
        *out_first = j * *out_n;
        return g;
      }
  }
  LM_BUG("no parameter %s", path);
}

static void import_weights(model_case *k, const char *name) {
  lm_st *st;
  CHECK_OK(lm_st_open(in_folder(k, name, "weights.safetensors"), &st));
  uint32_t n = k->l->n_paths;
  lm_foreign_native *natives = lm_calloc(n, sizeof *natives);
  for (uint32_t i = 0; i < n; i++) {
    int64_t first;
    natives[i].name = k->l->paths[i].path;
    global_of(k, natives[i].name, &first, &natives[i].elements);
    natives[i].data = lm_calloc((size_t)natives[i].elements, sizeof(float));
  }
  lm_foreign *f;
  CHECK_OK(lm_foreign_create(k->l->maps, k->l->n_maps, natives, n, LM_FOREIGN_ONCE, &f));
  CHECK_OK(lm_foreign_import(f, st, NULL, NULL));
  for (uint32_t i = 0; i < n; i++) {
    int64_t first, m;
    double *v = lm_eval_global(k->e, global_of(k, natives[i].name, &first, &m)->name)->v + first;
    for (int64_t j = 0; j < m; j++)
      v[j] = ((float *)natives[i].data)[j];
    lm_free(natives[i].data);
  }
  lm_foreign_destroy(f);
  lm_free(natives);
  lm_st_close(st);
}

// ---- the arena: parameters one after the other, each at the beginning of a block
static void walk_arena(model_case *k, double *arena, bool gradients, bool in) {
  int64_t block = 0;
  for (uint32_t i = 0; i < k->l->n_paths; i++) {
    int64_t first, n;
    lm_sym name = global_of(k, k->l->paths[i].path, &first, &n)->name;
    double *v = (gradients ? lm_eval_gradient(k->e, name) : lm_eval_global(k->e, name))->v + first;
    double *a = arena + block * LM_BLOCK;
    memcpy(in ? a : v, in ? v : a, (size_t)n * sizeof *v);
    block += (n + LM_BLOCK - 1) / LM_BLOCK;
  }
  CHECK(block == k->n_blocks);
}

static void fill_groups(model_case *k, double *group) {
  int64_t block = 0;
  for (uint32_t i = 0; i < k->l->n_paths; i++) {
    int64_t first, n;
    global_of(k, k->l->paths[i].path, &first, &n);
    for (int64_t end = block + (n + LM_BLOCK - 1) / LM_BLOCK; block < end; block++)
      group[block] = k->l->paths[i].group;
  }
}

// ---- comparison with the tensors of expected.safetensors, under their foreign names
// All elements of a tensor.
static float *values_read(model_case *k, const lm_st_tensor *t) {
  float *out = LM_NEW_N(k->c->arena, float, t->elements + 1);
  CHECK_OK(lm_st_read_f32(t, 0, t->elements, out));
  return out;
}

static double distance(model_case *k, const char *prefix, bool gradients, double scale,
                       const char **out_name) {
  double worst = 0;
  for (uint32_t i = 0; i < k->l->n_maps; i++) {
    const lm_foreign_map *m = &k->l->maps[i];
    if (gradients && lm_lowered_is_state(k->l, m->native))
      continue;
    const lm_st_tensor *t =
        lm_st_find(k->expected, lm_arena_printf(k->c->arena, "%s.%s", prefix, m->foreign));
    CHECK(t && t->dtype == LM_ST_F32);
    const float *values = values_read(k, t);
    int64_t first, n = 1, own;
    lm_sym name = global_of(k, m->native, &first, &own)->name;
    const double *v =
        (gradients ? lm_eval_gradient(k->e, name) : lm_eval_global(k->e, name))->v + first;
    double off = 0, norm = 0;
    for (int a = 0; a < m->n; a++)
      n *= m->size[a];
    for (int64_t x = 0; x < n; x++) {
      int64_t at = m->offset_native;
      int64_t from = m->offset_foreign;
      for (int64_t a = m->n, y = x; a-- > 0; y /= m->size[a]) {
        at += y % m->size[a] * m->stride_native[a];
        from += y % m->size[a] * m->stride_foreign[a];
      }
      float want = values[from];
      off += pow(v[at] * scale - want, 2);
      norm += (double)want * want;
    }
    double d = sqrt(norm) > 1e-12 ? sqrt(off / norm) : sqrt(off);
    if (!(d <= worst)) {
      worst = d;
      *out_name = m->foreign;
    }
  }
  return worst;
}

// ---- a step
static void column(model_case *k, const char *name, int64_t step, int64_t row, lm_tensor *out) {
  const lm_st_tensor *t = lm_st_find(k->batches, name);
  int64_t from = (step * k->rows + row) * k->seq;
  for (int64_t i = 0; i < k->micro_rows * k->seq; i++) {
    union {
      float f;
      int32_t i;
    } x;
    CHECK_OK(lm_st_read(t, from + i, 1, &x));
    out->v[i] = t->dtype == LM_ST_F32 ? x.f : x.i;
  }
}

static void clear_gradients(model_case *k) {
  for (uint32_t i = 0; i < k->l->m->n_globals; i++) {
    lm_global *g = &k->l->m->globals[i];
    if (g->kind == LM_GLOBAL_PARAM) {
      lm_tensor *t = lm_eval_gradient(k->e, g->name);
      memset(t->v, 0, (size_t)t->n * sizeof *t->v);
    }
  }
}

static void call(model_case *k, const lm_func *f, const lm_tensor *args, lm_tensor *out) {
  CHECK_OK(lm_eval_call(k->e, f, args, out));
}

static void call_free(const lm_func *f, lm_tensor *args, lm_tensor *out) {
  for (uint32_t i = 0; i < f->body->n_args; i++)
    lm_tensor_free(&args[i]);
  for (uint32_t i = 0; i < f->n_out; i++)
    lm_tensor_free(&out[i]);
}

static const lm_func *prepare(model_case *k, const char *name, lm_tensor *args) {
  const lm_func *f = lm_func_find(k->l->m, name);
  CHECK(f && f->body->n_args <= 64 && f->n_out <= 64);
  for (uint32_t i = 0; i < f->body->n_args; i++)
    args[i] = lm_eval_tensor(k->e, f->body->args[i]->type);
  return f;
}

static void forward_backward(model_case *k, int64_t step, double *out_loss, double *out_weight) {
  double total = 0, weight = 0;
  for (int64_t row = 0; row < k->rows; row += k->micro_rows) {
    lm_tensor args[64], out[64];
    const lm_func *f = prepare(k, "micro", args);
    for (int i = 0; i < 5; i++)
      column(k, columns[i], step, row, &args[i]);
    args[5].v[0] = (double)step + 1;
    args[6].v[0] = (double)row;
    call(k, f, args, out);
    total += out[0].v[0];
    weight += out[1].v[0];
    call_free(f, args, out);
  }
  *out_loss = total / weight;
  *out_weight = weight;
}

static double gradient_norm(model_case *k, double weight) {
  lm_tensor args[64], out[64];
  walk_arena(k, k->arena[1], true, true);
  for (int64_t i = 0; i < k->n_blocks * LM_BLOCK; i++)
    k->arena[1][i] /= weight;
  const lm_func *f = prepare(k, "norm", args);
  memcpy(args[0].v, k->arena[1], (size_t)args[0].n * sizeof(double));
  if (f->body->n_args > 1) { // own: not the states of blocks
    fill_groups(k, args[1].v);
    for (int64_t b = 0; b < args[1].n; b++)
      args[1].v[b] = args[1].v[b] >= 0;
  }
  call(k, f, args, out);
  double norm = out[0].v[0];
  call_free(f, args, out);
  return norm;
}

static void update(model_case *k, int64_t step, double norm) {
  lm_tensor rate_args[64], rates[64], args[64], out[64];
  const lm_func *r = prepare(k, "rates", rate_args);
  rate_args[0].v[0] = (double)step + 1;
  rate_args[1].v[0] = (double)k->steps;
  call(k, r, rate_args, rates);
  const lm_func *f = prepare(k, "update", args);
  walk_arena(k, k->arena[0], false, true);
  int n = 2 + k->l->n_states;
  for (int i = 0; i < n; i++)
    memcpy(args[i].v, k->arena[i], (size_t)args[i].n * sizeof(double));
  args[n].v[0] = k->r->clip > 0 ? fmin(1, k->r->clip / (norm + 1e-6)) : 1;
  for (uint32_t i = (uint32_t)n + 1; i < f->body->n_args; i++) {
    const char *name = f->body->args[i]->name;
    if (!strcmp(name, "group"))
      fill_groups(k, args[i].v);
    for (uint32_t j = 0; j < r->n_out; j++)
      if (!strcmp(r->out_names[j], name))
        args[i].v[0] = rates[j].v[0];
  }
  call(k, f, args, out);
  memcpy(k->arena[0], out[0].v, (size_t)out[0].n * sizeof(double));
  for (int i = 0; i < k->l->n_states; i++)
    memcpy(k->arena[2 + i], out[1 + i].v, (size_t)out[1 + i].n * sizeof(double));
  walk_arena(k, k->arena[0], false, false);
  call_free(r, rate_args, rates);
  call_free(f, args, out);
}

static void states_update(model_case *k) {
  lm_tensor args[64], out[64];
  if (!lm_func_find(k->l->m, "after_step"))
    return;
  const lm_func *f = prepare(k, "after_step", args);
  args[0].v[0] = 1;
  call(k, f, args, out);
  call_free(f, args, out);
}

static void train(model_case *k) {
  const char *name = "";
  for (int64_t s = 0; s < k->steps; s++) {
    double loss, weight, want, norm;
    clear_gradients(k);
    forward_backward(k, s, &loss, &weight);
    norm = gradient_norm(k, weight);
    want = json_number_value(json_array_get(json_object_get(k->numbers, "loss"), (size_t)s));
    differ(k, lm_arena_printf(k->c->arena, "loss of step %d", (int)s + 1), fabs(loss / want - 1),
           1e-9);
    want = json_number_value(json_array_get(json_object_get(k->numbers, "grad_norm"), (size_t)s));
    differ(k, lm_arena_printf(k->c->arena, "gradient norm of step %d", (int)s + 1),
           fabs(norm / want - 1), 1e-9);
    if (s == 0) {
      double off = distance(k, "grad", true, 1 / weight, &name);
      differ(k, lm_arena_printf(k->c->arena, "gradient of %s", name), off, 1e-6);
    }
    update(k, s, norm);
    states_update(k);
  }
  double off = distance(k, "final", false, 1, &name);
  differ(k, lm_arena_printf(k->c->arena, "final %s", name), off, 1e-6);
}

static void compare_logits(model_case *k) {
  const lm_st_tensor *t = lm_st_find(k->expected, "logits");
  const float *logits = values_read(k, t);
  double off = 0, norm = 0;
  int64_t at = 0;
  for (int64_t row = 0; row < k->rows; row += k->micro_rows) {
    lm_tensor args[64], out[64];
    const lm_func *f = prepare(k, "apply", args);
    for (int i = 0; i < 3; i++)
      column(k, columns[i], 0, row, &args[i]);
    call(k, f, args, out);
    for (int64_t i = 0; i < out[0].n; i++) {
      float want = logits[at++];
      off += pow(out[0].v[i] - want, 2);
      norm += (double)want * want;
    }
    call_free(f, args, out);
  }
  CHECK(at == t->elements);
  differ(k, "logits", sqrt(off / norm), 1e-6);
}

// ---- decoding through the caches, after training
static int next_token(model_case *k, const char *name, const int *ids, int at, int n) {
  lm_tensor args[64], out[64];
  lm_eval_extent_set(k->e, 1, at + n);
  lm_eval_extent_set(k->e, 2, n);
  const lm_func *f = prepare(k, name, args);
  for (int i = 0; i < n; i++) {
    args[0].v[i] = ids[at + i];
    args[1].v[i] = at + i;
  }
  args[3].v[0] = at;
  call(k, f, args, out);
  int64_t vocab = k->l->vocab;
  int64_t row = out[0].n == vocab ? 0 : n - 1; // pass narrow: the last position alone
  const double *z = out[0].v + row * vocab;
  int best = 0;
  for (int i = 1; i < vocab; i++)
    if (z[i] > z[best])
      best = i;
  call_free(f, args, out);
  return best;
}

static void decode(model_case *k) {
  json_t *g = json_object_get(k->numbers, "greedy");
  json_t *prompt = json_object_get(g, "prompt");
  json_t *want = json_object_get(g, "continuation");
  int ids[256];
  int n = (int)json_array_size(prompt);
  int more = (int)json_array_size(want);
  int wrong = 0;
  if (!g)
    return;
  CHECK(n + more <= 256 && n + more <= k->seq);
  for (int i = 0; i < n; i++)
    ids[i] = (int)json_integer_value(json_array_get(prompt, (size_t)i));
  for (int i = 0; i < more; i++) {
    ids[n + i] =
        i ? next_token(k, "decode", ids, n + i - 1, 1) : next_token(k, "prefill", ids, 0, n);
    wrong += ids[n + i] != json_integer_value(json_array_get(want, (size_t)i));
  }
  if (wrong)
    k->why = lm_arena_printf(k->c->arena, "%d of %d decoded tokens differ", wrong, more);
}

// ---- a case
static bool run_case(const char *name, int rows, int *out_tiled) {
  model_case k = {.c = lm_ctx_create()};
  CHECK_OK(lm_st_open(in_folder(&k, name, "batches.safetensors"), &k.batches));
  CHECK_OK(lm_st_open(in_folder(&k, name, "expected.safetensors"), &k.expected));
  CHECK((k.numbers = json_load_file(in_folder(&k, name, "expected.json"), 0, NULL)));
  bool ok = compile(&k, name, rows);
  if (ok) {
    k.e = lm_eval_create(k.l->m);
    k.n_blocks = lm_module_blocks(k.l->m);
    for (int i = 0; i < 2 + k.l->n_states; i++)
      k.arena[i] = lm_calloc((size_t)k.n_blocks * LM_BLOCK, sizeof(double));
    import_weights(&k, name);
    compare_logits(&k);
    train(&k);
    decode(&k);
    for (int i = 0; i < 2 + k.l->n_states; i++)
      lm_free(k.arena[i]);
    lm_eval_destroy(k.e);
  }
  *out_tiled += k.tiled;
  printf("%-12s %3d tiled loops: %s%s (worst %.1e)\n", name, k.tiled,
         ok && !k.why ? "ok" : "FAILED: ", k.why ? k.why : "", k.worst);
  ok = ok && !k.why;
  json_decref(k.numbers);
  lm_st_close(k.batches);
  lm_st_close(k.expected);
  lm_ctx_destroy(k.c);
  return ok;
}

static int is_case(const struct dirent *d) {
  char path[512];
  snprintf(path, sizeof path, "tests/models/%s/expected.safetensors", d->d_name);
  FILE *f = d->d_name[0] == '.' ? NULL : fopen(path, "rb");
  return f && !fclose(f);
}

static bool run_twice(const char *name, int *out_tiled) {
  int none = 0;
  bool ok = run_case(name, 0, &none);
  CHECK(!none);
  return run_case(name, TILE_ROWS, out_tiled) && ok;
}

int main(int argc, char **argv) {
  bool ok = true;
  int tiled = 0;
  for (int i = 1; i < argc; i++)
    ok = run_twice(argv[i], &tiled) && ok;
  if (argc > 1)
    return !ok;
  struct dirent **found;
  int n = scandir("tests/models", &found, is_case, alphasort);
  CHECK(n > 0);
  for (int i = 0; i < n; i++) {
    ok = run_twice(found[i]->d_name, &tiled) && ok;
    free(found[i]);
  }
  free(found);
  CHECK(tiled > 3 * n); // forward and backward, half a layer each
  return !ok;
}
