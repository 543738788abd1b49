// fmt.c - lmc fmt: canonical layout of .lm files.
#include <string.h>

#include "dsl/syntax/ast.h"
#include "lmc/command.h"

static const lm_opt options[] = {
    {.name = "check",
     .kind = LM_OPT_FLAG,
     .help = "changes nothing; exit status 1 if a file's layout is not canonical"},
    LM_OPT_JSON,
    {0}};

static lm_status file_format(lm_cli *cli, const char *path, bool *out_changes) {
  *out_changes = false;
  ast_file *tree = lm_parse_path(cli->ctx, path, (lm_loc){0});
  if (!tree || cli->ctx->n_errors)
    return NULL;
  const lm_source *source = &cli->ctx->sources[tree->source];
  lm_buf text = {0};
  lm_fmt(cli->ctx, tree->source, &text);
  *out_changes = text.n != source->n || (text.n && memcmp(text.p, source->text, text.n));
  bool write = *out_changes && !lm_args_given(&cli->args, "check");
  lm_status s = write ? lm_file_write_atomic(path, text.p ? text.p : "", text.n) : NULL;
  lm_buf_free(&text);
  return s;
}

static void names_json(const char *const *names, uint32_t n, uint32_t of) {
  lm_buf b = {0};
  for (uint32_t i = 0; i < n; i++) {
    lm_buf_puts(&b, i ? ", " : "");
    lm_buf_json(&b, names[i]);
  }
  lm_cli_print("{\"files\": %u, \"changed\": [%s]}\n", of, b.p ? b.p : "");
  lm_buf_free(&b);
}

static lm_status fmt_run(lm_cli *cli) {
  bool check = lm_args_given(&cli->args, "check");
  const char **names = LM_NEW_N(cli->ctx->arena, const char *, cli->args.n_rest);
  uint32_t changed = 0;
  for (uint32_t i = 0; i < cli->args.n_rest; i++) {
    bool changes;
    LM_TRY(file_format(cli, cli->args.rest[i], &changes));
    if (!changes)
      continue;
    names[changed++] = cli->args.rest[i];
    if (!cli->json)
      lm_cli_print("%s\n", cli->args.rest[i]);
  }
  if (cli->json)
    names_json(names, changed, cli->args.n_rest);
  return check && changed
             ? lm_fail(LM_USER, "%u of %u files would change", changed, cli->args.n_rest)
             : NULL;
}

const lm_command lm_cmd_fmt = {.name = "fmt",
                               .usage = "[--check] FILE…",
                               .summary = "canonical layout",
                               .options = options,
                               .least = 1,
                               .most = UINT32_MAX,
                               .run = fmt_run,
                               .help = "Rewrites each file in canonical layout and names those "
                                       "that changed. Comments and the author's line breaks stay.\n"
                                       "A file with syntax errors is left alone.\n"
                                       "\n"
                                       "  lmc fmt --check examples/*.lm\n"};
