// cmd_tokenizer.c - lmc tokenizer: trains a vocabulary; text to token ids and back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/tokenize.h"
#include "lmc/command.h"

enum {
  VOCAB = 4096 // default size of a trained vocabulary
};

static const lm_opt options[] = {
    {.name = "lines", .kind = LM_OPT_FLAG, .help = "each line of standard input by itself"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help = "train: the file to write (tokenizer.json); an existing file is replaced"},
    {.name = "kind", .kind = LM_OPT_TEXT, .value = "KIND", .help = "train: bpe or unigram (bpe)"},
    {"vocab", 0, LM_OPT_WHOLE, "N", "train: size of the vocabulary (4096)", 257, 1e7},
    {.name = "field",
     .kind = LM_OPT_TEXT,
     .value = "NAME",
     .help = "train: the field of .jsonl files that holds the text (text)"},
    {"bad", 0, LM_OPT_NUMBER, "PERCENT", "train: documents that may be unusable (1)", 0, 100},
    LM_OPT_JSON,
    {0}};

// ---- encode, decode

typedef lm_status converter(const lm_tokenizer *t, const char *text, size_t n, bool json,
                            lm_buf *out);

static lm_status converted_print(const lm_cli *cli, const lm_tokenizer *t, converter *one,
                                 const char *text, size_t n) {
  lm_buf out = {0};
  lm_status s = one(t, text, n, cli->json, &out);
  if (!s && out.n)
    fwrite(out.p, 1, out.n, stdout);
  lm_buf_free(&out);
  return s;
}

static lm_status each_line(const lm_cli *cli, const lm_tokenizer *t, converter *one) {
  char *line = NULL;
  size_t cap = 0, number = 0;
  lm_status s = NULL;
  for (ssize_t n; !s && (n = getline(&line, &cap, stdin)) >= 0;) {
    size_t length = (size_t)(n && line[n - 1] == '\n' ? n - 1 : n);
    s = lm_annotate(converted_print(cli, t, one, line, length), "line %zu", ++number);
  }
  free(line);
  return s;
}

static lm_status whole_input(const lm_cli *cli, const lm_tokenizer *t, converter *one) {
  lm_buf text = {0};
  char piece[65536];
  for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0;)
    lm_buf_add(&text, piece, n);
  lm_status s = converted_print(cli, t, one, text.p ? text.p : "", text.n);
  lm_buf_free(&text);
  return s;
}

static lm_status convert(lm_cli *cli, converter *one) {
  lm_tokenizer *t = NULL;
  if (cli->args.n_rest != 2)
    return lm_fail(LM_USER, "expected one SPEC: bpe(\"tokenizer.json\")");
  LM_TRY(lm_tokenizer_spec_open(cli->ctx, cli->args.rest[1], &t));
  lm_status s = (lm_args_given(&cli->args, "lines") ? each_line : whole_input)(cli, t, one);
  lm_tokenizer_destroy(t);
  return s;
}

// ---- train

static void trained_print(const lm_cli *cli, const lm_vocabulary_options *o,
                          const lm_vocabulary *v) {
  lm_buf b = {0};
  if (v->on.unusable)
    lm_cli_note("warning: %lld of %lld documents cannot be used and were left out\n%s",
                (long long)v->on.unusable, (long long)v->on.documents, v->on.list.p);
  if (cli->json) {
    lm_buf_puts(&b, "{\"file\": ");
    lm_buf_json(&b, o->path);
    lm_buf_printf(&b,
                  ", \"vocab\": %d, \"vocab_most\": %lld, \"documents\": %lld, "
                  "\"unusable\": %lld}\n",
                  v->vocab, (long long)o->vocab, (long long)v->on.documents,
                  (long long)v->on.unusable);
  } else {
    lm_buf_printf(&b, "%s: %d tokens; in a recipe: tokenizer = %s(\"%s\")\n", o->path, v->vocab,
                  o->kind, o->path);
  }
  lm_cli_put(&b);
}

static lm_status train(lm_cli *cli) {
  const lm_args *a = &cli->args;
  lm_vocabulary_options o = {.path = lm_args_text(a, "out", "tokenizer.json"),
                             .kind = lm_args_text(a, "kind", "bpe"),
                             .vocab = lm_args_whole(a, "vocab", VOCAB),
                             .field = lm_args_text(a, "field", NULL),
                             .bad = lm_args_number(a, "bad", 1),
                             .files = a->rest + 1,
                             .n_files = a->n_rest - 1};
  lm_vocabulary v;
  lm_status s = lm_vocabulary_train(cli->ctx->arena, &cli->events, &o, &v);
  if (!s)
    trained_print(cli, &o, &v);
  lm_vocabulary_free(&v);
  return s;
}

static lm_status tokenizer_run(lm_cli *cli) {
  const char *verb = cli->args.rest[0];
  if (!strcmp(verb, "train"))
    return train(cli);
  bool encode = !strcmp(verb, "encode");
  if (encode || !strcmp(verb, "decode"))
    return convert(cli, encode ? lm_tokenize_text : lm_tokenize_ids);
  return lm_fail(LM_USER, "'%s' is not train, encode or decode", verb);
}

const lm_command lm_cmd_tokenizer = {
    .name = "tokenizer",
    .usage = "train|encode|decode …",
    .summary = "trains a vocabulary; text to token ids and back",
    .options = options,
    .least = 1,
    .most = UINT32_MAX,
    .run = tokenizer_run,
    .help =
        "  lmc tokenizer train -o tokenizer.json --vocab 4096 FILE…\n"
        "  lmc tokenizer encode SPEC < text\n"
        "  lmc tokenizer decode SPEC < ids\n"
        "\n"
        "train reads .jsonl files by their field \"text\" or the field of --field, .zst and .gz "
        "unpacked. encode prints the ids.\n"
        "SPEC as in a recipe: bytes(), bpe(FILE), unigram(FILE) or wordpiece(FILE), where FILE is "
        "a tokenizer.json or a tokenizer.model; or bpe(ENCODER, MERGES) for GPT-2's two files\n"
        "\n"
        "  echo 'Hello, world!' | lmc tokenizer encode 'bpe(\"encoder.json\", "
        "\"vocab.bpe\")'\n"};
