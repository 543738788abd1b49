// tokenizer.c - lmc tokenizer: trains a vocabulary; text to token numbers and back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsl/syntax/ast.h"
#include "lmc/command.h"
#include "lmc/ids.h"
#include "driver/outputs.h"
#include "runtime/data/feed/data.h"
#include "runtime/data/rows/vocab.h"

static const lm_opt options[] = {
    {.name = "lines", .kind = LM_OPT_FLAG, .help = "each line of standard input by itself"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help = "train: where the tokenizer goes (tokenizer.json)"},
    {.name = "vocab",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "train: size of the vocabulary (4096)",
     .least = 257,
     .most = 1e7},
    {.name = "field",
     .kind = LM_OPT_TEXT,
     .value = "NAME",
     .help = "train: the field of .jsonl files that holds the text (text)"},
    LM_OPT_JSON,
    {0}};

// ---- SPEC, as in a recipe: bytes(), bpe("tokenizer.json"), bpe("encoder.json", "vocab.bpe")

static const char *string_arg(const ast_expr *x, uint32_t i) {
  return i < x->n_args && x->args[i].kind == ARG_POS && x->args[i].expr->kind == EX_STRING
             ? x->args[i].expr->text
             : NULL;
}

static lm_status spec_open(lm_cli *cli, const char *spec, lm_tokenizer **out) {
  ast_item *item =
      lm_parse_item(cli->ctx, "SPEC", lm_arena_printf(cli->ctx->arena, "tokenizer = %s", spec));
  LM_TRY(lm_verdict(cli->ctx));
  const ast_expr *x = item->expr;
  const char *name = x && x->kind == EX_CALL && x->a->kind == EX_NAME ? x->a->text : "";
  if (!strcmp(name, "bytes") && !x->n_args) {
    *out = lm_tokenizer_bytes_create();
    return NULL;
  }
  if (!strcmp(name, "bpe") && (x->n_args == 1 || x->n_args == 2) && string_arg(x, 0) &&
      (x->n_args == 1 || string_arg(x, 1)))
    return lm_tokenizer_bpe_open(string_arg(x, 0), string_arg(x, 1), out);
  return lm_fail(LM_USER,
                 "'%s' is no tokenizer: bytes(), bpe(\"tokenizer.json\") or bpe(\"encoder.json\", "
                 "\"vocab.bpe\")",
                 spec);
}

// ---- encode, decode

typedef lm_status converter(const lm_tokenizer *t, const char *text, size_t n, bool json);

static lm_status encode(const lm_tokenizer *t, const char *text, size_t n, bool json) {
  lm_tokens ids = {0};
  lm_status s = lm_tokenizer_encode(t, text, n, &ids);
  if (!s && json)
    lm_cli_print("{\"ids\": [");
  for (size_t i = 0; !s && i < ids.n; i++)
    lm_cli_print("%s%d", !i ? "" : json ? ", " : " ", ids.ids[i]);
  if (!s)
    lm_cli_print(json ? "]}\n" : "\n");
  lm_tokens_free(&ids);
  return s;
}

static void text_json(const lm_buf *text) {
  lm_buf b = {0};
  lm_buf_json_n(&b, text->p, text->n);
  lm_cli_print("{\"text\": %s}", b.p);
  lm_buf_free(&b);
}

static lm_status decode(const lm_tokenizer *t, const char *text, size_t n, bool json) {
  lm_tokens ids = {0};
  lm_buf out = {0};
  lm_status s = lm_ids_parse(text, n, &ids);
  if (!s)
    s = lm_tokenizer_decode(t, ids.ids, ids.n, &out);
  if (!s && json)
    text_json(&out);
  else if (!s && out.n)
    fwrite(out.p, 1, out.n, stdout);
  if (!s)
    lm_cli_print("\n");
  lm_tokens_free(&ids);
  lm_buf_free(&out);
  return s;
}

static lm_status each_line(const lm_tokenizer *t, converter *one, bool json) {
  char *line = NULL;
  size_t cap = 0, number = 0;
  lm_status s = NULL;
  for (ssize_t n; !s && (n = getline(&line, &cap, stdin)) >= 0;) {
    number++;
    s = lm_annotate(one(t, line, (size_t)(n && line[n - 1] == '\n' ? n - 1 : n), json), "line %zu",
                    number);
  }
  free(line);
  return s;
}

static lm_status whole_input(const lm_tokenizer *t, converter *one, bool json) {
  lm_buf text = {0};
  char piece[65536];
  for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0;)
    lm_buf_add(&text, piece, n);
  lm_status s = one(t, text.p ? text.p : "", text.n, json);
  lm_buf_free(&text);
  return s;
}

static lm_status convert(lm_cli *cli, converter *one) {
  lm_tokenizer *t = NULL;
  if (cli->args.n_rest != 2)
    return lm_fail(LM_USER, "expected one SPEC: bpe(\"tokenizer.json\")");
  LM_TRY(spec_open(cli, cli->args.rest[1], &t));
  lm_status s = lm_args_given(&cli->args, "lines") ? each_line(t, one, cli->json)
                                                   : whole_input(t, one, cli->json);
  lm_tokenizer_destroy(t);
  return s;
}

// ---- train

typedef struct trained {
  const char *path;
  lm_buf json;
  lm_data_trained_on on;
  int32_t vocab;
} trained;

static void trained_json(const trained *t, int64_t most) {
  lm_buf b = {0};
  lm_buf_json(&b, t->path);
  lm_cli_print("{\"file\": %s, \"vocab\": %d, \"vocab_most\": %lld, \"documents\": %lld, "
               "\"unusable\": %lld}\n",
               b.p, t->vocab, (long long)most, (long long)t->on.documents,
               (long long)t->on.unusable);
  lm_buf_free(&b);
}

static void trained_print(lm_cli *cli, const trained *t) {
  int64_t most = lm_args_whole(&cli->args, "vocab", 4096);
  if (t->on.unusable)
    lm_cli_note("warning: %lld of %lld documents cannot be used and were left out\n%s",
                (long long)t->on.unusable, (long long)t->on.documents, t->on.list.p);
  if (cli->json)
    trained_json(t, most);
  else
    lm_cli_print("%s: %d tokens; in a recipe: tokenizer = bpe(\"%s\")\n", t->path, t->vocab,
                 t->path);
}

static void sources_make(lm_cli *cli, lm_data_source *out, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const char *path = cli->args.rest[1 + i];
    lm_source_kind kind = strstr(path, ".jsonl") ? LM_SOURCE_JSONL : LM_SOURCE_TEXT;
    out[i] = (lm_data_source){
        .kind = kind, .name = path, .path = path, .field = lm_args_text(&cli->args, "field", NULL)};
  }
}

static lm_status trained_write(trained *t) {
  lm_tokenizer *made = NULL;
  LM_TRY(lm_tokenizer_bpe_parse(t->json.p, t->json.n, t->path, &made));
  t->vocab = made->vocab;
  lm_tokenizer_destroy(made);
  return lm_file_write_atomic(t->path, t->json.p, t->json.n);
}

static lm_status train(lm_cli *cli) {
  uint32_t n = cli->args.n_rest - 1;
  lm_arena *a = cli->ctx->arena;
  lm_data_source *sources = LM_NEW_N(a, lm_data_source, n + 1);
  trained t = {.path = lm_args_text(&cli->args, "out", "tokenizer.json")};
  LM_TRY(lm_output_check(t.path, cli->args.rest + 1, n));
  LM_TRY(lm_output_file_check(t.path));
  if (!n)
    return lm_fail(LM_USER,
                   "train needs text: lmc tokenizer train -o tokenizer.json --vocab 4096 FILE…");
  sources_make(cli, sources, n);
  lm_data_options o = {.sources = sources, .n_sources = (int)n, .bad = 1};
  LM_TRY(lm_data_cache_dir(a, &o.cache));
  lm_status s =
      lm_data_tokenizer_train(&o, lm_args_whole(&cli->args, "vocab", 4096), &t.json, &t.on);
  if (!s)
    s = trained_write(&t);
  if (!s)
    trained_print(cli, &t);
  lm_buf_free(&t.json);
  lm_buf_free(&t.on.list);
  return s;
}

static lm_status run(lm_cli *cli) {
  const char *verb = cli->args.rest[0];
  if (!strcmp(verb, "train"))
    return train(cli);
  if (!strcmp(verb, "encode"))
    return convert(cli, encode);
  if (!strcmp(verb, "decode"))
    return convert(cli, decode);
  return lm_fail(LM_USER, "'%s' is not train, encode or decode", verb);
}

const lm_command lm_cmd_tokenizer = {
    .name = "tokenizer",
    .usage = "train|encode|decode …",
    .summary = "trains a vocabulary; text to token numbers and back",
    .options = options,
    .least = 1,
    .most = UINT32_MAX,
    .run = run,
    .help = "  lmc tokenizer train -o tokenizer.json --vocab 4096 FILE…     .jsonl files by their "
            "field \"text\" or that of --field, .zst unpacked\n"
            "  lmc tokenizer encode SPEC < text                             SPEC as in a recipe; "
            "prints the numbers\n"
            "  lmc tokenizer decode SPEC < numbers\n\n"
            "  echo 'Hello, world!' | lmc tokenizer encode --lines 'bpe(\"encoder.json\", "
            "\"vocab.bpe\")'\n"};
