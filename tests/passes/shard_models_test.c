// shard_models_test.c - the models of tests/models, sharded: results and gradients on all ranks of
// a mesh, in float64, against one rank. Every axis of a parameter that two ranks can divide is
// divided.
//
// usage: shard_models_test [MODEL…]; in the repository's root
// Build: plain
#include <dirent.h>
#include <unistd.h>
#include "compiler/analysis/row_mix.h"
#include "dsl/lower/lower.h"
#include "tests/models/routed.h"
#include "tests/passes/shard_check.h"

enum {
  ROWS = 4,
  NAMES = 32
};

// The graph of the model's functions and of the optimizer as text, before pass `shard`. A call has
// the rows of so many micro-batches.
static char *graph_text(lm_ctx *c, const char *model, uint32_t what, int64_t rows,
                        int64_t micro_batches, int64_t *ids) {
  lm_program *p =
      lm_program_load(c, lm_arena_printf(c->arena, "tests/models/%s/reference.lm", model));
  lm_recipe *r = p ? lm_recipe_resolve(c, p, "Reference", NULL) : NULL;
  if (!r)
    return NULL;
  lm_lower_options o = {.what = LM_LOWER_TRAIN | LM_LOWER_EVAL | LM_LOWER_APPLY | what,
                        .rows = rows,
                        .micro_batches = micro_batches,
                        .seq = 8,
                        .chunk = 8,
                        .capacity = 8};
  lm_lowered *l = lm_lower(c, p, r, &o);
  bool ok = false;
  if (!l)
    return NULL;
  CHECK_OK(lm_pass_run_list(l->m, "precision,inline,analyze,simplify,cse,licm,dce",
                            &(lm_pass_env){.compute = LM_F32}, &ok));
  CHECK(ok);
  *ids = l->vocab ? l->vocab : 8;
  lm_buf text = {0};
  lm_module_print(l->m, &text);
  char *out = lm_arena_strndup(c->arena, text.p, text.n);
  lm_buf_free(&text);
  return out;
}

static void loop_axis(lm_op *op, void *user) {
  if (op->code == LM_OP_LOOP && op->attr.n_axes)
    ((bool *)user)[op->attr.axes[0]] = true;
}

// True if two ranks divide every axis of this name, and none counts the iterations of a loop.
static bool divides(const lm_module *m, const bool *counts, const char *base, size_t n) {
  for (uint32_t a = 1; a < m->n_axes; a++) {
    const char *name = m->axes[a].name;
    bool same = lm_axis_base_length(name) == n && !memcmp(name, base, n);
    if (same && (counts[a] || m->axes[a].dyn || m->axes[a].size % 2))
      return false;
  }
  return true;
}

// The names of the axes of parameters, in order: "vocab, g, ff".
static const char *axes_of(lm_arena *a, const char *text) {
  machine k = compile("axes", text, NULL, "dce");
  bool *counts = LM_NEW_N(k.c->arena, bool, k.m->n_axes);
  const char *seen[NAMES];
  int n_seen = 0;
  lm_buf list = {0};
  for (lm_func *f = k.m->funcs; f; f = f->next)
    lm_region_walk(f->body, loop_axis, counts);
  for (uint32_t i = 0; i < k.m->n_globals; i++)
    for (int s = 0; s < k.m->globals[i].n_stack; s++)
      counts[k.m->globals[i].type.axis[s]] = true;
  for (uint32_t i = 0; i < k.m->n_globals; i++)
    for (int s = k.m->globals[i].type.rank - 1; s >= k.m->globals[i].n_stack; s--) {
      const char *name = k.m->axes[k.m->globals[i].type.axis[s]].name;
      size_t n = lm_axis_base_length(name);
      const char *base = lm_arena_strndup(a, name, n);
      bool known = !strcmp(base, "d"); // the axis of the residual stream, which is never divided
      for (int q = 0; q < n_seen; q++)
        known |= !strcmp(seen[q], base);
      if (known || n_seen == NAMES || !divides(k.m, counts, base, n))
        continue;
      seen[n_seen++] = base;
      lm_buf_printf(&list, "%s%s", list.n ? ", " : "", base);
    }
  const char *out = lm_arena_printf(a, "%s", list.n ? list.p : "vocab");
  lm_buf_free(&list);
  lm_ctx_destroy(k.c);
  return out;
}

// The passes from `shard` to kernels, on one rank's program.
#define PIPELINE                                                                                   \
  "attend,cse,licm,tile_vocab,pad_gemms,fuse_gemms,dce,tile_rows,cse,grad,mesh,ring,simplify,cse," \
  "licm,dce,"                                                                                      \
  "fuse_loops,cse,dce,accum_f32,expand_attention,attend_delta,decompose,cse,dce,fuse,recompute,"   \
  "dce"

static void exchange_note(lm_op *op, void *user) {
  const lm_op **first = user;
  bool exchanges = lm_op_info_of(op)->traits & LM_T_COLLECTIVE && op->code != LM_OP_FIRST;
  if (!*first && exchanges)
    *first = op;
}

// Ranks that have different rows exchange nothing inside of a micro-batch, unless the loss is no
// sum over rows, or a metric is a mean over them.
static void rows_check(const char *model, const char *text, int64_t ids) {
  const lm_op *found = NULL;
  machine one = compile(model, text, NULL, "dce");
  bool mixed = lm_row_mix_find(one.m).kind == LM_ROW_MIX_MIXED;
  bool measures = lm_func_find(one.m, "loss")->n_out > 2;
  machine k = compile(model, text, "dp = 2 rows", "shard,mesh,grad,mesh");
  lm_region_walk(lm_func_find(k.m, "micro")->body, exchange_note, &found);
  if (found && !mixed && !measures)
    fprintf(stderr, "%s: %s between ranks that have different rows\n", model,
            lm_op_info_of(found)->name);
  CHECK(mixed ? found != NULL : measures || !found);
  lm_ctx_destroy(one.c);
  lm_ctx_destroy(k.c);
  text_check(model, text, "dp = 2 rows", ids);
}

static void attention_note(lm_op *op, void *user) {
  *(bool *)user |= lm_op_attends(op);
}

// Attention is computed in a ring, unless its keys and values are computed behind `history`.
static void ring_check(const char *model, const char *text, int64_t ids) {
  static const char *const computing[] = {"deepseek", "ngpt", "yoco"};
  bool attends = false, computed = false;
  for (size_t i = 0; i < LM_COUNT(computing); i++)
    computed |= !strcmp(model, computing[i]);
  machine k = compile(model, text, "cp = 2 positions", "shard,attend");
  lm_region_walk(lm_func_find(k.m, "loss")->body, attention_note, &attends);
  lm_ctx_destroy(k.c);
  if (attends && !computed)
    passes_check(model, text, "cp = 2 positions balanced ring", "grad", "shard,mesh," PIPELINE,
                 1e-11, ids);
}

// True if two ranks can be the stages of a pipeline, which some models have no blocks for.
static bool is_pipeline(const char *text, const char *mesh) {
  lm_ctx *c = lm_ctx_create();
  lm_buf b = {0};
  size_t head = strcspn(text, "\n") + 1;
  lm_buf_printf(&b, "%.*smesh %s\n%s", (int)head, text, mesh, text + head);
  lm_module *m = must_parse(c, "pipeline", b.p, b.n);
  bool ok = false;
  CHECK_OK(lm_pass_run_list(m, "shard", &(lm_pass_env){0}, &ok));
  lm_buf_free(&b);
  lm_ctx_destroy(c);
  return ok;
}

static void meshes_check(const char *model, const char *text, const char *const *meshes, size_t n,
                         int64_t ids) {
  for (size_t i = 0; i < n; i++)
    text_check(model, text, meshes[i], ids);
}

// Experts on the stages of a pipeline, with the other axes of a mesh.
static void stages_route_check(const char *model, const char *text, int64_t ids) {
  static const char *const meshes[] = {
      "pp = 2 rows pipeline 2, tp = 2 shard(E)",
      "dp = 2 rows zero 3, pp = 2 rows pipeline 2",
      "pp = 2 rows pipeline 2, ep = 2 rows experts",
      "pp = 2 rows pipeline 4, cp = 2 positions",
      "dp = 2 rows, pp = 2 pipeline 1 one_f_one_b",
      "pp = 2 pipeline 2 one_f_one_b, tp = 2 shard(E, t)",
      "pp = 2 pipeline 1 one_f_one_b, ep = 2 rows experts",
      "pp = 2 pipeline 1 one_f_one_b, cp = 2 positions, ep = 2 rows experts, tp = 2 shard(f)",
  };
  meshes_check(model, text, meshes, LM_COUNT(meshes), ids);
}

static const char *all_replaced(lm_arena *a, const char *text, const char *from, const char *to) {
  for (const char *at; (at = strstr(text, from));)
    text = lm_arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return text;
}

// The model with four blocks instead of two.
static const char *deeper(lm_arena *a, const char *text) {
  return all_replaced(a, all_replaced(a, text, " loop 2 ", " loop 4 "), "layers = 2", "layers = 4");
}

// Adds the results of @micro of one rank, for rows of micro-batch k of n, to sums; metrics are
// means.
static void micro_batch_add(const both *b, const lm_tensor *args, int64_t k, int64_t n,
                            lm_tensor *sums) {
  const lm_func *f = lm_func_find(b->one->m, "micro");
  lm_tensor own[16], results[8] = {0};
  CHECK(f->body->n_args <= LM_COUNT(own) && f->n_out <= LM_COUNT(results));
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_type t = f->body->args[i]->type;
    int64_t rows = t.rank ? args[i].n / n : 1;
    own[i] = (lm_tensor){
        .type = t,
        .n = rows,
        .v = args[i].v + (t.rank ? k * rows : 0),
    };
  }
  CHECK_OK(lm_eval_call(b->e, f, own, results));
  for (uint32_t i = 0; i < f->n_out; i++) {
    CHECK(results[i].n == 1);
    results[i].v[0] /= i < 2 ? 1 : (double)n;
    results[i].v[0] += k ? sums[i].v[0] : 0;
    lm_tensor_free(&sums[i]);
    sums[i] = results[i];
  }
}

// Results of @micro of all ranks, for a call of two micro-batches, and of one rank, which computes
// one after the other. whole: the same function of one rank for all rows.
static void micro_batches_compare(run *r, const both *b, const machine *whole, int64_t ids) {
  const lm_func *g = lm_func_find(b->all->m, "micro"), *f = lm_func_find(whole->m, "micro");
  uint32_t n_args = g->body->n_args, n = (uint32_t)b->n;
  lm_eval *e = lm_eval_create(whole->m);
  lm_tensor *args = lm_calloc(n_args + 1, sizeof *args), sums[8] = {0};
  lm_tensor *parts = lm_calloc(n * n_args + 1, sizeof *parts);
  lm_tensor *out = lm_calloc(n * g->n_out + 1, sizeof *out);
  fill_args(whole->m, e, f, args, ids);
  for (uint32_t i = 0; i < n * n_args; i++)
    parts[i] = lm_eval_part(b->all->m, (int)(i / n_args), &args[i % n_args],
                            g->body->args[i % n_args]->type);
  CHECK_OK(lm_eval_mesh_call(b->ranks, g, parts, out));
  for (int64_t k = 0; k < 2; k++)
    micro_batch_add(b, args, k, 2, sums);
  r->small = 1e-3;
  compare_results(r, b->all, g, sums, out);
  tensors_free(args, n_args);
  tensors_free(parts, n * n_args);
  tensors_free(out, n * g->n_out);
  for (uint32_t i = 0; i < g->n_out; i++)
    lm_tensor_free(&sums[i]);
  lm_eval_destroy(e);
}

// A balance loss is a statistic of one micro-batch: of two here, each of half of the rows.
static void micro_batches_check(lm_ctx *c, const char *model) {
  static const char *const meshes[] = {
      "pp = 2 pipeline 2 one_f_one_b, tp = 2 shard(f, vocab)",
      "dp = 2 rows zero 3, pp = 2 pipeline 2 one_f_one_b, cp = 2 positions",
      "pp = 2 pipeline 2 one_f_one_b, ep = 2 rows experts",
      "dp = 2 rows, pp = 2 pipeline 2 one_f_one_b, fsdp = 2 rows zero 1",
  };
  int64_t ids;
  const char *half = graph_text(c, model, 0, 2 * ROWS, 1, &ids);
  const char *text = graph_text(c, model, 0, 4 * ROWS, 2, &ids);
  machine one = compile(model, half, NULL, "grad"), whole = compile(model, text, NULL, "grad");
  for (size_t i = 0; i < LM_COUNT(meshes); i++) {
    run r = {0};
    if (strstr(meshes[i], "experts") && !model_is_routed(model))
      continue;
    machine all = compile(model, text, meshes[i], "shard,mesh,grad,mesh");
    both b = both_open(&one, &all);
    micro_batches_compare(&r, &b, &whole, ids);
    compare_gradients(&r, &b);
    if (!(r.worst <= 1e-12))
      fprintf(stderr, "%s, mesh %s: %s differs by %.3g\n", model, meshes[i], r.what, r.worst);
    CHECK(r.worst <= 1e-12);
    lm_eval_mesh_destroy(b.ranks);
    lm_eval_destroy(b.e);
    lm_ctx_destroy(all.c);
  }
  lm_ctx_destroy(one.c);
  lm_ctx_destroy(whole.c);
}

// The balance losses of all blocks, with the stages of a pipeline.
static void balance_check(lm_ctx *c, const char *model, const char *text, int64_t ids) {
  machine k = compile(model, text, NULL, "dce");
  bool balances = lm_row_mix_find(k.m).by_blocks;
  lm_ctx_destroy(k.c);
  if (!balances)
    return;
  text_check(model, text, "pp = 2 pipeline 1 one_f_one_b, cp = 2 positions", ids);
  passes_check(model, text, "pp = 2 pipeline 1 one_f_one_b", "grad", "shard,mesh," PIPELINE, 1e-11,
               ids);
  micro_batches_check(c, model);
}

// Models with states of their blocks are pipelines, except while a text is continued.
static int pipeline_check(lm_ctx *c, const char *model) {
  static const char mesh[] = "pp = 2 rows pipeline 4";
  int64_t ids;
  const char *text = graph_text(c, model, LM_LOWER_DECODE, ROWS, 0, &ids);
  CHECK(text);
  if (!is_pipeline(text, mesh))
    text = graph_text(c, model, 0, ROWS, 0, &ids);
  else if (getenv("SHOW"))
    fprintf(stderr, "%s: continues texts\n", model);
  if (!is_pipeline(text, mesh))
    return 0;
  if (getenv("SHOW"))
    fprintf(stderr, "%s: pipeline\n", model);
  passes_check(model, text, mesh, "grad", "shard,mesh," PIPELINE, 1e-11, ids);
  passes_check(model, text, "pp = 2 pipeline 2 one_f_one_b", "grad", "shard,mesh," PIPELINE, 1e-11,
               ids);
  if (model_is_routed(model))
    stages_route_check(model, text, ids);
  if (model_is_routed(model) && strstr(text, "layers = 2"))
    text_check(model, deeper(c->arena, text), "pp = 2 pipeline 2 interleaved 2, tp = 2 shard(E, t)",
               ids);
  return 1;
}

// Experts, or the hidden axis of each, among ranks that have the same rows, and among ranks that
// have different ones.
static void routing_check(const char *model, const char *text, int64_t ids) {
  static const char *const meshes[] = {
      "tp = 2 shard(E)",
      "tp = 4 shard(f, t)",
      "dp = 2 rows, fsdp = 2 rows zero 3",
      "dp = 2 rows zero 1, cp = 2 positions",
      "ep = 2 rows experts",
      "ep = 4 rows experts",
      "dp = 2 rows zero 3, ep = 2 rows experts",
      "ep = 2 rows experts, tp = 2 shard(f, t)",
      "ep = 2 rows experts, cp = 2 positions, tp = 2 shard(vocab, f)",
  };
  meshes_check(model, text, meshes, LM_COUNT(meshes), ids);
  passes_check(model, text, "dp = 2 rows, ep = 2 rows experts", "grad", "shard,mesh," PIPELINE,
               1e-11, ids);
}

static int model_check(const char *model) {
  lm_ctx *c = lm_ctx_create();
  int64_t ids;
  char *text = graph_text(c, model, LM_LOWER_DECODE, ROWS, 0, &ids);
  if (!text) {
    lm_buf b = {0};
    lm_diag_render(c, &b, 0);
    fprintf(stderr, "%s: %s\n", model, b.p);
  }
  CHECK(text);
  const char *axes = axes_of(c->arena, text);
  if (getenv("SHOW"))
    fprintf(stderr, "%s: %s\n", model, axes);
  rows_check(model, text, ids);
  text_check(model, text, lm_arena_printf(c->arena, "dp = 2 shard(b), tp = 2 shard(%s)", axes),
             ids);
  text_check(model, text, "dp = 2 rows zero 3", ids);
  text_check(model, text, lm_arena_printf(c->arena, "tp = 2 shard(%s, t)", axes), ids);
  text_check(model, text, "dp = 2 rows, cp = 2 positions balanced", ids);
  text_check(model, text, lm_arena_printf(c->arena, "cp = 2 positions shard(%s)", axes), ids);
  text_check(model, text, lm_arena_printf(c->arena, "tp = 2 shard(%s, t), cp = 2 positions", axes),
             ids);
  passes_check(model, text, lm_arena_printf(c->arena, "dp = 2 shard(b), tp = 2 shard(%s)", axes),
               "grad", "shard,mesh," PIPELINE, 1e-11, ids);
  passes_check(model, text, "cp = 2 positions balanced", "grad", "shard,mesh," PIPELINE, 1e-11,
               ids);
  ring_check(model, text, ids);
  if (model_is_routed(model))
    routing_check(model, text, ids);
  balance_check(c, model, text, ids);
  int pipelines = pipeline_check(c, model);
  lm_ctx_destroy(c);
  return pipelines;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    for (int i = 1; i < argc; i++)
      model_check(argv[i]);
    return 0;
  }
  struct dirent **found;
  int n = scandir("tests/models", &found, NULL, alphasort);
  CHECK(n > 0);
  int pipelines = 0;
  for (int i = 0; i < n; i++) {
    char path[512];
    snprintf(path, sizeof path, "tests/models/%s/reference.lm", found[i]->d_name);
    if (!access(path, R_OK))
      pipelines += model_check(found[i]->d_name);
    free(found[i]);
  }
  free(found);
  CHECK(pipelines > 10);
}
