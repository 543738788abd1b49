// tokenize.c - tokenizers apart from any recipe.
#include "driver/tokenize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/outputs.h"
#include "dsl/syntax/ast.h"
#include "runtime/data/feed/data.h"
#include "runtime/data/rows/unusable.h"

// ---- SPEC

static const char *string_arg(const ast_expr *x, uint32_t i) {
  bool is_string =
      i < x->n_args && x->args[i].kind == ARG_POS && x->args[i].expr->kind == EX_STRING;
  return is_string ? x->args[i].expr->text : NULL;
}

lm_status lm_tokenizer_spec_open(lm_ctx *ctx, const char *spec, lm_tokenizer **out) {
  ast_item *item = lm_parse_item(ctx, "SPEC", lm_arena_printf(ctx->arena, "tokenizer = %s", spec));
  LM_TRY(lm_verdict(ctx));
  const ast_expr *x = item->expr;
  const char *name = x && x->kind == EX_CALL && x->a->kind == EX_NAME ? x->a->text : "";
  bool pair = !strcmp(name, lm_tokenizer_names[LM_TOKENIZER_BPE]) && x->n_args == 2 &&
              string_arg(x, 0) && string_arg(x, 1);
  bool bytes = !strcmp(name, lm_tokenizer_names[LM_TOKENIZER_BYTES]) && !x->n_args;
  lm_tokenizer_kind kind = lm_tokenizer_kind_find(name);
  if (bytes) {
    *out = lm_tokenizer_bytes_create();
    return NULL;
  }
  if (kind == LM_TOKENIZERS || !(pair || (x->n_args == 1 && string_arg(x, 0))))
    return lm_fail(LM_USER,
                   "'%s' is not a tokenizer: expected bytes(), bpe(\"tokenizer.json\"), "
                   "unigram(\"tokenizer.json\"), wordpiece(\"tokenizer.json\") or "
                   "bpe(\"encoder.json\", \"vocab.bpe\")",
                   spec);
  LM_TRY(lm_tokenizer_open(string_arg(x, 0), pair ? string_arg(x, 1) : NULL, out));
  lm_status s = lm_tokenizer_kind_check(*out, kind, string_arg(x, 0));
  if (s)
    lm_tokenizer_destroy(*out);
  return s;
}

// ---- token ids as text

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *blanks_skip(const char *p, const char *end) {
  while (p < end && is_blank(*p))
    p++;
  return p;
}

// Reads the token id at p; the text ends with a NUL.
static lm_status id_read(const char *text, const char *p, const char *end, char **out_end,
                         lm_tokens *out) {
  int shown = end - p < 20 ? (int)(end - p) : 20;
  errno = 0;
  long id = strtol(p, out_end, 10);
  bool ends = *out_end == end || is_blank(**out_end) || **out_end == ',';
  if (p == end)
    return lm_fail(LM_USER, "a token id is missing after the last comma");
  if (*p == ',')
    return lm_fail(LM_USER, "a token id is missing %s",
                   p == text ? "before the first comma" : "between two commas");
  if (*out_end == p || !ends)
    return lm_fail(LM_USER, "'%.*s' is not a token id", shown, p);
  if (errno || id < 0 || id > INT32_MAX)
    return lm_fail(LM_USER, "%.*s is not a token id: expected 0 to %d", (int)(*out_end - p), p,
                   INT32_MAX);
  lm_tokens_add(out, (int32_t)id);
  return NULL;
}

lm_status lm_ids_parse(const char *text, size_t n, lm_tokens *out) {
  const char *end = text + n;
  const char *p = blanks_skip(text, end);
  while (p < end) {
    char *stop;
    LM_TRY(id_read(text, p, end, &stop, out));
    p = blanks_skip(stop, end);
    bool comma = p < end && *p == ',';
    if (comma)
      p = blanks_skip(p + 1, end);
    if (comma && p == end)
      return id_read(text, p, end, &stop, out);
  }
  return NULL;
}

lm_status lm_tokenize_text(const lm_tokenizer *t, const char *text, size_t n, bool json,
                           lm_buf *out) {
  lm_tokens ids = {0};
  lm_status s = lm_tokenizer_encode(t, text, n, &ids);
  if (!s && json)
    lm_buf_puts(out, "{\"ids\": [");
  for (size_t i = 0; !s && i < ids.n; i++)
    lm_buf_printf(out, "%s%d", !i ? "" : json ? ", " : " ", ids.ids[i]);
  if (!s)
    lm_buf_puts(out, json ? "]}\n" : "\n");
  lm_tokens_free(&ids);
  return s;
}

lm_status lm_tokenize_ids(const lm_tokenizer *t, const char *text, size_t n, bool json,
                          lm_buf *out) {
  lm_tokens ids = {0};
  lm_buf decoded = {0};
  lm_status s = lm_ids_parse(text, n, &ids);
  if (!s)
    s = lm_tokenizer_decode(t, ids.ids, ids.n, &decoded);
  if (!s && json) {
    lm_buf_puts(out, "{\"text\": ");
    lm_buf_json_n(out, decoded.p, decoded.n);
    lm_buf_puts(out, "}\n");
  } else if (!s) {
    lm_buf_add(out, decoded.p ? decoded.p : "", decoded.n);
    lm_buf_puts(out, "\n");
  }
  lm_tokens_free(&ids);
  lm_buf_free(&decoded);
  return s;
}

// ---- training

static lm_data_source *sources_make(lm_arena *a, const lm_vocabulary_options *o) {
  lm_data_source *sources = LM_NEW_N(a, lm_data_source, o->n_files + 1);
  for (uint32_t i = 0; i < o->n_files; i++) {
    const char *path = o->files[i];
    lm_source_kind kind = strstr(path, ".jsonl") ? LM_SOURCE_JSONL : LM_SOURCE_TEXT;
    sources[i] = (lm_data_source){
        .kind = kind,
        .name = path,
        .path = path,
        .field = o->field,
    };
  }
  return sources;
}

static lm_status vocabulary_write(const char *path, const lm_buf *json, lm_vocabulary *out) {
  lm_tokenizer *made = NULL;
  LM_TRY(lm_tokenizer_parse(json->p, json->n, path, &made));
  out->vocab = made->vocab;
  lm_tokenizer_destroy(made);
  return lm_file_write_atomic(path, json->p, json->n);
}

void lm_vocabulary_note(const lm_events *e, int64_t vocab, int64_t most, const char *option) {
  if (vocab < most)
    lm_event_note(e, "the vocabulary has %lld tokens, fewer than the %lld that %s asks for",
                  (long long)vocab, (long long)most, option);
}

lm_status lm_vocabulary_train(lm_arena *a, const lm_events *e, const lm_vocabulary_options *o,
                              lm_vocabulary *out) {
  *out = (lm_vocabulary){0};
  LM_TRY(lm_output_check(o->path, o->files, o->n_files));
  LM_TRY(lm_output_file_check(o->path));
  if (!o->n_files)
    return lm_fail(LM_USER,
                   "train needs text: lmc tokenizer train -o tokenizer.json --vocab 4096 FILE…");
  lm_tokenizer_kind kind = lm_tokenizer_kind_find(o->kind);
  if (kind != LM_TOKENIZER_BPE && kind != LM_TOKENIZER_UNIGRAM)
    return lm_fail(LM_USER, "'%s' cannot be trained; expected bpe or unigram", o->kind);
  lm_data_options data = {
      .sources = sources_make(a, o),
      .n_sources = (int)o->n_files,
  };
  lm_buf json = {0};
  LM_TRY(lm_data_cache_dir(a, &data.cache));
  lm_status s = lm_data_tokenizer_train(&data, kind, o->vocab, &json, &out->on);
  lm_unusable u = {(uint64_t)out->on.documents, (uint64_t)out->on.unusable, out->on.list.p};
  if (!s)
    s = lm_unusable_check(&u, o->bad, "--bad", "");
  if (!s)
    s = vocabulary_write(o->path, &json, out);
  if (!s)
    lm_vocabulary_note(e, out->vocab, o->vocab, "--vocab");
  lm_buf_free(&json);
  return s;
}

void lm_vocabulary_free(lm_vocabulary *v) {
  lm_buf_free(&v->on.list);
}
