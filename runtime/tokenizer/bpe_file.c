// bpe_file.c - reads tokenizer.json, or encoder.json and vocab.bpe. Each feature that a file uses
// is either implemented or rejected by name. `truncation` and `padding` are ignored, since the data
// section splits and packs documents.
#include "runtime/tokenizer/bpe_file.h"

#include "runtime/tokenizer/bytechar.h"

enum {
  FILE_MAX = 256 << 20
};

// ---- vocabulary and merges

static lm_status id_read(const json_t *x, const char *token, int32_t *out) {
  json_int_t id = json_integer_value(x);
  if (!json_is_integer(x) || id < 0 || id >= LM_BPE_IDS)
    return lm_fail(LM_USER, "token \"%.100s\": its id is not an integer from 0 to less than %d",
                   token, LM_BPE_IDS);
  *out = (int32_t)id;
  return NULL;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The byte of a token <0x00> … <0xFF>; -1: another token.
static int fallback_byte(const char *text, size_t n) {
  if (n != 6 || memcmp(text, "<0x", 3) || text[5] != '>')
    return -1;
  int high = hex_digit(text[3]);
  int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

// Adds a token of a SentencePiece vocabulary, in which U+2581 is a space.
static void chars_piece_add(lm_bpe_reading *r, int32_t id, const char *text, size_t n) {
  int byte = r->fallback ? fallback_byte(text, n) : -1;
  r->bytes.n = 0;
  if (byte >= 0)
    lm_buf_add(&r->bytes, &(char){(char)byte}, 1);
  if (byte >= 0)
    r->b->byte_id[byte] = id;
  for (size_t i = 0; byte < 0 && i < n;) {
    bool mark = n - i >= 3 && !memcmp(text + i, LM_SPACE_MARK, 3);
    lm_buf_add(&r->bytes, mark ? " " : text + i, 1);
    i += mark ? 3 : 1;
  }
  lm_bpe_piece_set(r->b, id, r->bytes.p ? r->bytes.p : "", r->bytes.n);
}

// Adds a token of a byte-level vocabulary, whose characters are bytes (bytechar.h). A token with
// other characters is its own text.
static void piece_add(lm_bpe_reading *r, int32_t id, const char *text, size_t n) {
  if (r->b->chars) {
    chars_piece_add(r, id, text, n);
    return;
  }
  r->bytes.n = 0;
  if (lm_chars_to_bytes(text, n, &r->bytes))
    lm_bpe_piece_set(r->b, id, r->bytes.p ? r->bytes.p : "", r->bytes.n);
  else
    lm_bpe_piece_set(r->b, id, text, n);
}

static int32_t token_find(const lm_bpe_reading *r, const char *text) {
  json_t *id = json_object_get(r->vocab, text);
  return id ? (int32_t)json_integer_value(id) : -1;
}

static lm_status vocab_read(lm_bpe_reading *r) {
  const char *token;
  json_t *x;
  int32_t id = -1;
  if (!json_object_size(r->vocab))
    return lm_fail(LM_USER, "no vocabulary");
  json_object_foreach(r->vocab, token, x) {
    LM_TRY(id_read(x, token, &id));
    if (id < r->b->base.vocab && r->b->pieces[id].p)
      return lm_fail(LM_USER, "two tokens have id %d", id);
    piece_add(r, id, token, strlen(token));
  }
  for (uint32_t byte = 0; byte < 256 && !r->b->chars; byte++) {
    char c[5] = {0};
    lm_utf8_encode(lm_byte_to_char(byte), c);
    r->b->byte_id[byte] = token_find(r, c);
  }
  return NULL;
}

static lm_status merge_add(lm_bpe_reading *r, const char *left, size_t n_left, const char *right,
                           size_t n_right, uint32_t rank) {
  lm_buf made = {0};
  int32_t id[3];
  lm_status s = NULL;
  const char *from[] = {left, right, left};
  size_t n[] = {n_left, n_right, n_left};
  for (int i = 0; i < 3 && !s; i++) {
    made.n = 0;
    lm_buf_add(&made, from[i], n[i]);
    if (i == 2)
      lm_buf_add(&made, right, n_right);
    id[i] = token_find(r, made.p);
    if (id[i] < 0)
      s = lm_fail(LM_USER, "merge %u: \"%.100s\" is not in the vocabulary", rank + 1, made.p);
  }
  lm_buf_free(&made);
  if (!s)
    lm_bpe_merge_set(r->b, id[0], id[1], id[2], rank);
  return s;
}

// "left right"
static lm_status merge_line_add(lm_bpe_reading *r, const char *line, size_t n, uint32_t rank) {
  const char *gap = memchr(line, ' ', n);
  size_t left = gap ? (size_t)(gap - line) : 0;
  size_t right = gap ? n - left - 1 : 0;
  if (!left || !right || memchr(gap + 1, ' ', right))
    return lm_fail(LM_USER, "merge %u: \"%.*s\" is not a pair", rank + 1, n > 100 ? 100 : (int)n,
                   line);
  return merge_add(r, line, left, gap + 1, right, rank);
}

static lm_status merges_read(lm_bpe_reading *r, const json_t *merges) {
  size_t i;
  json_t *m;
  if (!json_is_array(merges))
    return lm_fail(LM_USER, "model.merges is not a list");
  json_array_foreach(merges, i, m) {
    const char *left = json_string_value(json_array_get(m, 0));
    const char *right = json_string_value(json_array_get(m, 1));
    if (json_is_string(m))
      LM_TRY(merge_line_add(r, json_string_value(m), json_string_length(m), (uint32_t)i));
    else if (left && right)
      LM_TRY(merge_add(r, left, strlen(left), right, strlen(right), (uint32_t)i));
    else
      return lm_fail(LM_USER, "merge %zu is neither a string nor a pair of strings", i + 1);
  }
  return NULL;
}

static bool is_text(const json_t *x, const char *key) {
  const char *s = json_string_value(json_object_get(x, key));
  return s && *s;
}

static lm_status model_read(lm_bpe_reading *r, const json_t *model) {
  if (!json_is_object(model))
    return lm_fail(LM_USER, "the file has no member 'model', so it is not a tokenizer.json");
  if (lm_json_type(model) && !lm_json_is_type(model, "BPE"))
    return lm_fail(LM_USER, "a model of type %s is unsupported; the only supported type is BPE",
                   lm_json_type(model));
  if (json_number_value(json_object_get(model, "dropout")) > 0)
    return lm_bpe_refuse("model.dropout");
  if (is_text(model, "continuing_subword_prefix"))
    return lm_bpe_refuse("model.continuing_subword_prefix");
  if (is_text(model, "end_of_word_suffix"))
    return lm_bpe_refuse("model.end_of_word_suffix");
  r->fallback = lm_json_flag(model, "byte_fallback", false);
  if (r->fallback && !r->b->chars)
    return lm_bpe_refuse("model.byte_fallback with a pre-tokenizer ByteLevel");
  r->vocab = json_object_get(model, "vocab");
  LM_TRY(vocab_read(r));
  LM_TRY(merges_read(r, json_object_get(model, "merges")));
  const char *unk = json_string_value(json_object_get(model, "unk_token"));
  if (unk)
    r->b->unk = token_find(r, unk);
  r->b->fuse_unk = lm_json_flag(model, "fuse_unk", false);
  r->b->whole_words = lm_json_flag(model, "ignore_merges", false);
  if (r->b->whole_words || r->b->chars)
    lm_bpe_words_index(r->b);
  return NULL;
}

// ---- added tokens

// Normalizes a token that is matched in normalized text.
static lm_status added_normalize(lm_bpe_reading *r, lm_added_token *t) {
  lm_buf workspace[2] = {0};
  lm_status s = NULL;
  for (int i = 0; i < r->b->n_forms && !s; i++)
    s = lm_normalize(r->b->forms[i], t->text, t->n, &workspace[i & 1], &t->text, &t->n);
  if (!s && r->prepends) {
    t->text = lm_arena_printf(r->b->arena, " %.*s", (int)t->n, t->text);
    t->n++;
  } else if (!s)
    t->text = lm_arena_strndup(r->b->arena, t->text, t->n);
  lm_buf_free(&workspace[0]);
  lm_buf_free(&workspace[1]);
  return s;
}

static lm_status added_read(lm_bpe_reading *r, const json_t *x) {
  const char *text = json_string_value(json_object_get(x, "content"));
  int32_t id = -1;
  if (!text)
    return lm_fail(LM_USER, "an added token has no content");
  LM_TRY(id_read(json_object_get(x, "id"), text, &id));
  int32_t known = token_find(r, text);
  if (known >= 0 && known != id)
    return lm_fail(LM_USER, "added token \"%.100s\" is %d, in the vocabulary %d", text, id, known);
  if (!*text)
    return NULL;
  piece_add(r, id, text, strlen(text));
  lm_added_token t = {lm_arena_strndup(r->b->arena, text, strlen(text)),
                      strlen(text),
                      id,
                      lm_json_flag(x, "single_word", false),
                      lm_json_flag(x, "lstrip", false),
                      lm_json_flag(x, "rstrip", false)};
  if (!lm_json_flag(x, "normalized", !lm_json_flag(x, "special", false))) {
    lm_added_token_add(r->b->added, &t);
    return NULL;
  }
  LM_TRY(added_normalize(r, &t));
  lm_added_token_add(r->b->added_normal, &t);
  return NULL;
}

static lm_status all_added_read(lm_bpe_reading *r, const json_t *list) {
  size_t i;
  json_t *x;
  json_array_foreach(list, i, x) LM_TRY(added_read(r, x));
  return NULL;
}

// ---- tokens around a text

static lm_status frame_add(lm_bpe_reading *r, bool after, int32_t id) {
  lm_tokenizer *t = &r->b->base;
  int *n = after ? &t->n_suffix : &t->n_prefix;
  if (id < 0 || id >= t->vocab || !r->b->pieces[id].p)
    return lm_fail(LM_USER, "the post-processor adds %d, which is not in the vocabulary", id);
  if (*n == LM_TOKENIZER_FRAME)
    return lm_fail(LM_USER, "the post-processor adds more than %d tokens", LM_TOKENIZER_FRAME);
  (after ? t->suffix : t->prefix)[(*n)++] = id;
  return NULL;
}

static lm_status template_read(lm_bpe_reading *r, const json_t *x) {
  size_t i, k;
  json_t *item, *id;
  bool after = false;
  json_array_foreach(json_object_get(x, "single"), i, item) {
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    if (!name) {
      if (after || !json_object_get(item, "Sequence"))
        return lm_fail(LM_USER, "a post-processor's template that is not tokens around one text");
      after = true;
      continue;
    }
    json_t *ids =
        json_object_get(json_object_get(json_object_get(x, "special_tokens"), name), "ids");
    if (!json_array_size(ids))
      return lm_fail(LM_USER, "the post-processor does not define %s", name);
    json_array_foreach(ids, k, id)
        LM_TRY(frame_add(r, after, json_is_integer(id) ? (int32_t)json_integer_value(id) : -1));
  }
  return NULL;
}

static lm_status pair_frame_read(lm_bpe_reading *r, const json_t *x) {
  static const char *const keys[] = {"cls", "sep"};
  for (int after = 0; after < 2; after++) {
    json_t *id = json_array_get(json_object_get(x, keys[after]), 1);
    LM_TRY(frame_add(r, after, json_is_integer(id) ? (int32_t)json_integer_value(id) : -1));
  }
  return NULL;
}

static lm_status post_read(lm_bpe_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  if (!x || json_is_null(x) || lm_json_is_type(x, "ByteLevel"))
    return NULL; // ByteLevel changes only offsets, which are not used
  if (lm_json_is_type(x, "TemplateProcessing"))
    return template_read(r, x);
  if (lm_json_is_type(x, "RobertaProcessing") || lm_json_is_type(x, "BertProcessing"))
    return pair_frame_read(r, x);
  if (!lm_json_is_type(x, "Sequence"))
    return lm_fail(LM_USER, "post-processor %s is unsupported",
                   lm_json_type(x) ? lm_json_type(x) : "without a type");
  json_array_foreach(json_object_get(x, "processors"), i, part) LM_TRY(post_read(r, part));
  return NULL;
}

// ---- decoders

static lm_status decoder_read(lm_bpe_reading *r, const json_t *x) {
  size_t i;
  json_t *part;
  bool chars = r->b->chars;
  if (!lm_json_type(x) || lm_json_is_type(x, chars ? "Fuse" : "ByteLevel") ||
      (chars && lm_json_is_type(x, "ByteFallback")))
    return NULL;
  if (chars && lm_json_is_type(x, "Replace") && lm_json_replaces(x, LM_SPACE_MARK, " "))
    return NULL;
  if (chars && lm_json_is_type(x, "Sequence")) {
    json_array_foreach(json_object_get(x, "decoders"), i, part) LM_TRY(decoder_read(r, part));
    return NULL;
  }
  bool one = lm_json_is_type(x, "Strip") && !strcmp(lm_json_text(x, "content"), " ") &&
             json_integer_value(json_object_get(x, "start")) == 1 &&
             json_integer_value(json_object_get(x, "stop")) == 0;
  if (!chars || (!one && !lm_json_is_type(x, "Metaspace")))
    return lm_fail(LM_USER, "this decoder %s is not supported", lm_json_type(x));
  r->b->base.prefix_space = one || strcmp(lm_json_text(x, "prepend_scheme"), "never");
  return NULL;
}

// ---- end of text

static lm_status config_eos_read(const char *dir, lm_buf *out) {
  lm_arena *a = lm_arena_create();
  const char *path = lm_path_join(a, dir, "tokenizer_config.json");
  lm_buf text = {0};
  json_t *config = NULL;
  lm_status s = lm_file_read(path, FILE_MAX, &text);
  if (s) { // the file is optional
    lm_status_free(s);
    s = NULL;
  } else {
    s = lm_json_parse(text.p, text.n, path, &config);
  }
  json_t *eos = json_object_get(config, "eos_token");
  const char *name = json_string_value(json_is_object(eos) ? json_object_get(eos, "content") : eos);
  if (name)
    lm_buf_puts(out, name);
  json_decref(config);
  lm_buf_free(&text);
  lm_arena_destroy(a);
  return s;
}

static int32_t piece_find(const lm_bpe *b, const char *text) {
  for (int32_t id = b->base.vocab - 1; id >= 0; id--)
    if (b->pieces[id].p && b->pieces[id].n == strlen(text) &&
        !memcmp(b->pieces[id].p, text, b->pieces[id].n))
      return id;
  return -1;
}

static void eos_choose(lm_bpe *b, const char *configured) {
  static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
                                      "</s>",          "<eos>",           "<|eos|>",
                                      "[EOS]"};
  if (configured)
    b->base.eos = piece_find(b, configured);
  for (size_t i = 0; i < LM_COUNT(usual) && b->base.eos < 0; i++)
    b->base.eos = piece_find(b, usual[i]);
}

static void key_add(lm_bpe *b, const char *p, size_t n) {
  lm_hash_key(b->base.key, p, n);
}

// ---- files

static bool has_byte_level(const json_t *x) {
  size_t i;
  json_t *part;
  bool any = lm_json_is_type(x, "ByteLevel");
  json_array_foreach(json_object_get(x, "pretokenizers"), i, part) any |= has_byte_level(part);
  return any;
}

static lm_status tokenizer_read(lm_bpe_reading *r, const json_t *root) {
  r->b->chars = !has_byte_level(json_object_get(root, "pre_tokenizer"));
  LM_TRY(model_read(r, json_object_get(root, "model")));
  LM_TRY(lm_bpe_normalizer_read(r, json_object_get(root, "normalizer")));
  LM_TRY(all_added_read(r, json_object_get(root, "added_tokens")));
  LM_TRY(lm_bpe_pretok_read(r, json_object_get(root, "pre_tokenizer")));
  if (r->b->chars && !r->b->spaces)
    return lm_fail(LM_USER, "no pre-tokenizer ByteLevel and no spaces of SentencePiece (U+2581): "
                            "no other vocabulary is supported");
  LM_TRY(post_read(r, json_object_get(root, "post_processor")));
  return decoder_read(r, json_object_get(root, "decoder"));
}

static lm_status bpe_file_parse(const char *text, size_t n, const char *what, const char *eos,
                                lm_tokenizer **out) {
  lm_bpe_reading r = {.b = lm_bpe_create()};
  json_t *root;
  lm_status s = lm_json_parse(text, n, what, &root);
  if (!s)
    s = lm_annotate(tokenizer_read(&r, root), "%s", what);
  json_decref(root);
  lm_buf_free(&r.bytes);
  if (s)
    lm_tokenizer_destroy(&r.b->base);
  *out = s ? NULL : &r.b->base;
  if (s)
    return s;
  eos_choose(r.b, eos);
  key_add(r.b, text, n);
  key_add(r.b, (const char *)&r.b->base.eos, sizeof r.b->base.eos);
  return NULL;
}

lm_status lm_tokenizer_bpe_parse(const char *json, size_t n, const char *what, lm_tokenizer **out) {
  return bpe_file_parse(json, n, what, NULL, out);
}

// Reads a file that the user named; failure is a user error.
static lm_status named_file_read(const char *path, lm_buf *out) {
  lm_status s = lm_file_read(path, FILE_MAX, out);
  if (s)
    s->kind = LM_USER;
  return s;
}

static lm_status merge_lines_read(lm_bpe_reading *r, const char *text, size_t n) {
  uint32_t rank = 0;
  for (const char *at = text, *end = text + n, *stop; at < end; at = stop + 1) {
    stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop)
      stop = end;
    size_t length = (size_t)(stop - at);
    while (length && (at[length - 1] == '\r'))
      length--;
    if (!length || (at == text && length > 8 && !memcmp(at, "#version", 8)))
      continue;
    LM_TRY(merge_line_add(r, at, length, rank++));
  }
  return NULL;
}

// These files have no special tokens, so "<|endoftext|>" in a text is plain text, as in GPT-2's
// encoder.
static lm_status pair_of_files_read(lm_bpe_reading *r, const char *path, const char *merges,
                                    json_t **root) {
  lm_buf encoder = {0}, lines = {0};
  *root = NULL;
  lm_status s = named_file_read(path, &encoder);
  if (!s)
    s = named_file_read(merges, &lines);
  if (!s)
    s = lm_json_parse(encoder.p, encoder.n, path, root);
  r->vocab = *root;
  if (!s)
    s = lm_annotate(vocab_read(r), "%s", path);
  if (!s)
    s = lm_annotate(merge_lines_read(r, lines.p, lines.n), "%s", merges);
  if (!s)
    s = lm_pretok_split_add(r->b->pretok, LM_PRETOK_GPT2, strlen(LM_PRETOK_GPT2), false,
                            LM_SPLIT_ISOLATED, false);
  if (!s) {
    key_add(r->b, encoder.p, encoder.n);
    key_add(r->b, lines.p, lines.n);
    eos_choose(r->b, NULL);
  }
  lm_buf_free(&encoder);
  lm_buf_free(&lines);
  return s;
}

static lm_status pair_of_files_open(const char *path, const char *merges, lm_tokenizer **out) {
  lm_bpe_reading r = {.b = lm_bpe_create()};
  json_t *root;
  lm_status s = pair_of_files_read(&r, path, merges, &root);
  json_decref(root);
  lm_buf_free(&r.bytes);
  if (s)
    lm_tokenizer_destroy(&r.b->base);
  *out = s ? NULL : &r.b->base;
  return s;
}

lm_status lm_tokenizer_bpe_open(const char *path, const char *merges, lm_tokenizer **out) {
  *out = NULL;
  if (merges)
    return pair_of_files_open(path, merges, out);
  lm_buf text = {0}, eos = {0};
  lm_arena *a = lm_arena_create();
  lm_status s = named_file_read(path, &text);
  if (!s)
    s = config_eos_read(lm_path_dir(a, path), &eos);
  if (!s)
    s = bpe_file_parse(text.p, text.n, path, eos.p, out);
  lm_buf_free(&text);
  lm_buf_free(&eos);
  lm_arena_destroy(a);
  return s;
}
