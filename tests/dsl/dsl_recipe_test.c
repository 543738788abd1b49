// dsl_recipe_test.c - resolved recipes: layers, units, defaults, origins, unsupported features.
#include "dsl/recipe/recipe.h"
#include "tests/runtime/check.h"
#include <math.h>
#include <unistd.h>

static const char PROGRAM[] =
    "let rate = 2 * 1e-3\n"
    "model M(d = 8, depth = 2) { param w: real[d] = ones }\n"
    "model Start = M(d = 16) from \"hf:weights\"\n"
    "data Mix {\n"
    "  tokenizer = bpe(train = 4096)\n"
    "  source web = text(\"data/*.txt\", split = \"\\n\\n\")\n"
    "  holdout dev = sample(20k docs); holdout end = tail(1%)\n"
    "  pack best_fit(seq = 128 tokens)\n"
    "}\n"
    "data More extends Mix { source books = text(\"/books.txt\"); pack best_fit(seq = 256 tokens) "
    "}\n"
    "recipe Base {\n"
    "  model = Start; data = Mix; seed = 18446744073709551; run = 20 tokens * params\n"
    "  batch = 8 seqs; micro = 256 tokens\n"
    "  optimizer = adamw(lr = rate, betas = (0.9, 0.95))\n"
    "  schedule = warmup_cosine(warmup = 2k steps, floor = 10%)\n"
    "  clip = global_norm(max = 0.5)\n"
    "  group @**.norm = (decay = 0)\n"
    "  precision { compute = bf16; master = bf16 }; parallel { sequence = pp }\n"
    "  memory { budget = 2 GiB; recompute @layers.**; save @layers.*.o }\n"
    "  eval dev { data = Mix.end; every = 2Ki tokens; metrics = [bits_per_byte] }\n"
    "  stop = early(on = dev.loss, patience = 3)\n"
    "  save = checkpoint(\"runs/a\", every = 1 epochs, keep = 3, best = dev.bits_per_byte, resume "
    "= never)\n"
    "}\n"
    "recipe Child extends Base {\n"
    "  data = More; run = 1000 tokens; optimizer.lr = 1e-3; schedule.warmup = 5 steps\n"
    "  precision { compute = f32 }; memory.budget = 1 kB\n"
    "  batch = 1Ki tokens; eval dev { data = More.dev; every = 1 steps }\n"
    "  sample { every = 200 steps; prompt = \"In\" }\n"
    "}\n"
    "model text(d) { param w: real[d] = ones }\n";

static lm_recipe *resolve(lm_ctx *c, const char *name, const char *const *sets, int n_sets) {
  lm_program *p = lm_program_load(c, "program.lm");
  CHECK(p);
  lm_recipe *r =
      lm_recipe_resolve(c, p, name, &(lm_recipe_overrides){.sets = sets, .n_sets = n_sets});
  lm_buf messages = {0};
  lm_diag_render(c, &messages, 0);
  if (c->n_errors)
    fprintf(stderr, "%s", messages.p);
  CHECK(r && !c->n_errors);
  lm_buf_free(&messages);
  return r;
}

static void check_origins(const lm_recipe *r, const char *key, const char *expected) {
  lm_buf b = {0};
  const char *near;
  for (const lm_recipe_origin *o = lm_recipe_origin_find(r, key, &near); o; o = o->before)
    lm_buf_printf(&b, "%s%s %s", b.n ? "; " : "", o->text, o->who);
  if (strcmp(b.p ? b.p : "", expected))
    fprintf(stderr, "%s: %s\n", key, b.p ? b.p : "nothing");
  CHECK(!strcmp(b.p ? b.p : "", expected));
  lm_buf_free(&b);
}

static void test_base(void) {
  lm_ctx *c = lm_ctx_create();
  lm_recipe *r = resolve(c, "Base", NULL, 0);
  CHECK(r->seed == UINT64_C(18446744073709551));
  CHECK(r->model_decl.decl->kind == DC_MODEL_INST && r->model.target.decl->kind == DC_MODEL &&
        r->model.n_args == 1);
  CHECK(r->from_hf && !strcmp(r->from, "weights"));
  CHECK(r->data.seq == 128 && r->data.n_sources == 1 && r->data.n_holdouts == 2 &&
        !r->data.replays);
  CHECK(r->data.tokenizer.kind == LM_TOKENIZER_BPE && r->data.tokenizer.train == 4096);
  CHECK(!strcmp(r->data.sources[0].split, "\n\n") &&
        !strcmp(r->data.sources[0].path, "data/*.txt"));
  CHECK(r->data.holdouts[0].docs == 20000 && r->data.holdouts[1].fraction == 0.01);
  CHECK(r->batch == 1024 && r->micro == 256);
  CHECK(lm_recipe_steps(r, 1e6, 0) == 19532); // 20e6 / 1024, rounded up
  CHECK(!strcmp(r->optimizer.name, "adamw") && r->optimizer.n_args == 2 && r->schedule.n_args == 2);
  CHECK(r->schedule.args[0].expr->kind == EX_NUMBER && r->schedule.args[0].expr->num == 2000);
  CHECK(r->schedule.args[1].expr->kind == EX_NUMBER && r->schedule.args[1].expr->num == 0.1);
  CHECK(r->clip == 0.5 && r->n_groups == 1 && r->groups[0].n_args == 1);
  CHECK(r->precision.compute == LM_RECIPE_COMPUTE_BF16);
  CHECK(r->memory.budget == INT64_C(2) << 30 && r->memory.n_rules == 2 &&
        r->memory.rules[1].kind == LM_RECIPE_MEMORY_SAVE);
  CHECK(r->n_evals == 1 && r->evals[0].holdout == 1 &&
        lm_recipe_every_steps(r, r->evals[0].every, 0) == 2);
  CHECK(r->evals[0].metrics[LM_RECIPE_METRIC_BITS_PER_BYTE] &&
        r->evals[0].metrics[LM_RECIPE_METRIC_LOSS]); // used by `best`
  CHECK(r->stop.on.eval == 0 && r->stop.patience == 3 && r->stop.min_delta == 0);
  CHECK(!strcmp(r->save.dir, "runs/a") && r->save.keep == 3 &&
        r->save.best.metric == LM_RECIPE_METRIC_BITS_PER_BYTE);
  CHECK(r->save.resume == LM_RECIPE_RESUME_NEVER &&
        lm_recipe_every_steps(r, r->save.every, 10240) == 10);
  CHECK(r->precision.master_bf16);
  bool sequence = false;
  for (uint32_t i = 0; i < r->n_unsupported; i++)
    sequence |= strstr(r->unsupported[i].feature, "sequence") != NULL;
  CHECK(sequence);
  lm_recipe_report_unsupported(r);
  CHECK(c->n_errors == r->n_unsupported);
  lm_ctx_destroy(c);
}

static void test_child(void) {
  static const char *const sets[] = {"optimizer.lr=5e-4", "save = checkpoint(\"here\")",
                                     "eval.dev.every = 7 steps", "sample.n = 9 tokens"};
  lm_ctx *c = lm_ctx_create();
  lm_recipe *r = resolve(c, "Child", sets, 4);
  CHECK(r->data.seq == 256 && r->data.n_sources == 2 &&
        !strcmp(r->data.sources[1].path, "/books.txt"));
  CHECK(r->batch == 1024 && r->micro == 256 && lm_recipe_steps(r, 1, 1) == 1);
  CHECK(r->precision.compute ==
        LM_RECIPE_COMPUTE_F32); // the whole section is replaced, with `master`
  CHECK(!r->precision.master_bf16);
  CHECK(r->memory.budget == 1000 && r->memory.n_rules == 2); // only one key is replaced
  CHECK(r->evals[0].holdout == 0 && r->evals[0].every.n == 7 && r->n_samples == 1 &&
        r->samples[0].n == 9);
  CHECK(!strcmp(r->save.dir, "here") && r->save.every.unit == LM_RECIPE_UNIT_NONE &&
        r->save.resume == LM_RECIPE_RESUME_AUTO);
  CHECK(r->schedule.args[0].expr->num == 5);
  check_origins(r, "optimizer.lr", "5e-4 --set; 1e-3 recipe Child; rate recipe Base");
  check_origins(r, "optimizer.betas", "(0.9, 0.95) recipe Base");
  check_origins(r, "optimizer.eps", "1e-8 default of adamw");
  check_origins(r, "precision.compute", "f32 recipe Child; bf16 recipe Base");
  check_origins(r, "precision.master", "f32 default");
  check_origins(r, "memory.budget", "1 kB recipe Child; 2 GiB recipe Base");
  check_origins(r, "eval.dev.every", "7 steps --set; 1 steps recipe Child; 2Ki tokens recipe Base");
  check_origins(r, "data.pack.seq", "256 tokens data More; 128 tokens data Mix");
  check_origins(r, "compile", "mode(\"default\") default");
  const char *near;
  CHECK(!lm_recipe_origin_find(r, "optimiser", &near) && !strcmp(near, "optimizer"));
  lm_ctx_destroy(c);
}

// --set changes keys of the data section.
static void test_set_data(void) {
  static const char *const sets[] = {"data.pack.seq = 64 tokens",
                                     "data.source.web.path = \"other/*.txt\"",
                                     "data.source.books = jsonl(\"/b.jsonl\", field = \"body\")",
                                     "data.holdout.end.share = 2%",
                                     "data.tokenizer = bytes()",
                                     "data.bad = 5%"};
  lm_ctx *c = lm_ctx_create();
  lm_recipe *r = resolve(c, "Child", sets, LM_COUNT(sets));
  CHECK(r->data.seq == 64 && r->data.n_sources == 2 && r->data.bad == 0.05 &&
        r->data.tokenizer.kind == LM_TOKENIZER_BYTES);
  CHECK(!strcmp(r->data.sources[0].path, "other/*.txt") &&
        !strcmp(r->data.sources[0].split, "\n\n"));
  CHECK(r->data.sources[1].kind == LM_RECIPE_SOURCE_JSONL &&
        !strcmp(r->data.sources[1].field, "body"));
  CHECK(r->data.holdouts[1].fraction == 0.02 && r->data.holdouts[0].docs == 20000);
  check_origins(r, "data.pack.seq", "64 tokens --set; 256 tokens data More; 128 tokens data Mix");
  check_origins(r, "data.bad", "5% --set");
  static const char *const whole[] = {"data = Mix", "data.pack = best_fit(seq = 32 tokens)"};
  CHECK(resolve(c, "Base", whole, 2)->data.seq == 32);
  lm_ctx_destroy(c);
}

static void test_print(void) {
  lm_ctx *c = lm_ctx_create();
  lm_buf out = {0};
  lm_recipe_print(resolve(c, "Child", NULL, 0), true, &out);
  CHECK(strstr(
      out.p, "optimizer = adamw(lr = 1e-3, betas = (0.9, 0.95))  # recipe Child, program.lm:25\n"));
  CHECK(strstr(out.p, "precision.master = f32  # default\n"));
  CHECK(strstr(out.p, "group @**.norm = (decay = 0)"));
  lm_buf_free(&out);
  static const char *const sets[] = {"model = M(48, 3)", "optimizer = adamw(1e-3)"};
  lm_recipe_print(resolve(c, "Base", sets, LM_COUNT(sets)), true, &out);
  CHECK(strstr(out.p, "model = M(d = 48, depth = 3)  # --set\n"));
  CHECK(strstr(out.p, "optimizer = adamw(lr = 1e-3)  # --set\n"));
  lm_buf_free(&out);
  static const char *const same_name[] = {"model = text(4)",
                                          "data.source.web = text(\"a\", \"b\")"};
  lm_recipe_print(resolve(c, "Base", same_name, LM_COUNT(same_name)), true, &out);
  CHECK(strstr(out.p, "model = text(d = 4)  # --set\n"));
  CHECK(strstr(out.p, "data.source web = text(\"a\", \"b\")  # --set\n"));
  lm_buf_free(&out);
  lm_schema_write_reference(&out);
  CHECK(strstr(out.p, "| `optimizer` |"));
  lm_buf_free(&out);
  lm_ctx_destroy(c);
}

int main(void) {
  char dir[] = "/tmp/lm-recipe-XXXXXX";
  CHECK(mkdtemp(dir) && !chdir(dir));
  CHECK_OK(lm_file_write_atomic("program.lm", PROGRAM, sizeof PROGRAM - 1));
  test_base();
  test_child();
  test_set_data();
  test_print();
  CHECK(!unlink("program.lm") && !chdir("/") && !rmdir(dir));
}
