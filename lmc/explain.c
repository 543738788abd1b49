// explain.c - lmc explain: where a value of the recipe came from.
#include "lmc/session.h"

static const lm_opt options[] = {
  {.name = "reference", .kind = LM_OPT_FLAG, .help = "every key of recipes and data there is, as Markdown (no file is needed)"},
  LM_OPT_RECIPE, {0}};

static void origin_print(const lm_ctx *c, const lm_recipe_origin *o) {
  lm_cli_print("  %-24s %s", o->text, o->who);
  if (o->loc.file && o->loc.line) lm_cli_print(", %s:%u:%u", c->sources[o->loc.file].path, o->loc.line, o->loc.col);
  lm_cli_print("\n");
}

static lm_status key_explain(const lm_session *s, const char *key) {
  const char *near;
  const lm_recipe_origin *o = lm_recipe_origin_find(s->recipe, key, &near);
  if (!o && near) return lm_fail(LM_USER, "the recipe has no value '%s'; did you mean '%s'?", key, near);
  if (!o) return lm_fail(LM_USER, "the recipe has no value '%s'; `lmc check` lists them", key);
  lm_cli_print("%s\n", key);
  for (; o; o = o->before) origin_print(s->ctx, o);
  return NULL;
}

static void reference_print(void) {
  lm_buf b = {0};
  lm_schema_write_reference(&b);
  lm_cli_print("%s", b.p);
  lm_buf_free(&b);
}

static lm_status run(lm_cli *cli) {
  if (lm_args_given(&cli->args, "reference")) return reference_print(), NULL;
  if (cli->args.n_rest < 2) return lm_fail(LM_USER, "lmc explain FILE KEY: an argument is missing");
  lm_session s = {.cli = cli, .ctx = cli->ctx};
  int n;
  const char *const *sets = lm_args_list(&cli->args, "set", &n);
  s.program = lm_program_load(s.ctx, cli->args.rest[0]);
  LM_TRY(lm_cli_verdict(cli));
  s.recipe = lm_recipe_resolve(s.ctx, s.program, lm_args_text(&cli->args, "recipe", NULL), sets, n);
  LM_TRY(lm_cli_verdict(cli));
  return key_explain(&s, cli->args.rest[1]);
}

const lm_command lm_cmd_explain = {
  .name = "explain", .usage = "FILE KEY [options]", .summary = "where a value of the recipe came from", .options = options,
  .least = 0, .most = 2, .run = run,
  .help = "Prints the value, who gave it and where, and below it what it replaced.\n\n"
          "  lmc explain examples/quickstart.lm optimizer.lr\n"};
