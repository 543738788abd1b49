// json_model.c - reads the vocabulary of a tokenizer.json: byte pairs, unigram or WordPiece.
#include "runtime/tokenizer/bytechar.h"
#include "runtime/tokenizer/file.h"

// ---- tokens

lm_status lm_json_id_read(const json_t *x, const char *token, int32_t *out) {
  json_int_t id = json_integer_value(x);
  if (!json_is_integer(x) || id < 0 || id >= LM_SUBWORD_IDS)
    return lm_fail(LM_USER, "token \"%.100s\": its id is not an integer from 0 to less than %d",
                   token, LM_SUBWORD_IDS);
  *out = (int32_t)id;
  return NULL;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int lm_fallback_byte(const char *token, size_t n) {
  if (n != 6 || memcmp(token, "<0x", 3) || token[5] != '>')
    return -1;
  int high = hex_digit(token[3]);
  int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

// Appends a token in which U+2581 is a space.
static void spaced_add(lm_buf *out, const char *token, size_t n) {
  for (size_t i = 0; i < n;) {
    bool mark = n - i >= 3 && !memcmp(token + i, LM_SPACE_MARK, 3);
    lm_buf_add(out, mark ? " " : token + i, 1);
    i += mark ? 3 : 1;
  }
}

// Sets the text of a token to r->bytes.
static void piece_set(lm_tokenizer_reading *r, int32_t id) {
  lm_subword_piece_set(r->t, id, r->bytes.p ? r->bytes.p : "", r->bytes.n);
}

// The characters of a byte-level vocabulary are bytes (bytechar.h); a token with other characters
// is its own text.
void lm_token_text_set(lm_tokenizer_reading *r, int32_t id, const char *token, size_t n) {
  int byte = r->fallback ? lm_fallback_byte(token, n) : -1;
  r->bytes.n = 0;
  if (byte >= 0) {
    lm_buf_add(&r->bytes, &(char){(char)byte}, 1);
    r->t->byte_id[byte] = id;
  } else if (r->t->chars) {
    spaced_add(&r->bytes, token, n);
  } else if (!lm_chars_to_bytes(token, n, &r->bytes)) {
    r->bytes.n = 0;
    lm_buf_add(&r->bytes, token, n);
  }
  piece_set(r, id);
}

int32_t lm_json_token_find(const lm_tokenizer_reading *r, const char *token) {
  json_t *id = json_object_get(r->vocab, token);
  return id ? (int32_t)json_integer_value(id) : -1;
}

lm_status lm_json_vocab_read(lm_tokenizer_reading *r, lm_token_text_fn *text_set) {
  const char *token;
  json_t *x;
  int32_t id = -1;
  if (!json_object_size(r->vocab))
    return lm_fail(LM_USER, "no vocabulary");
  json_object_foreach(r->vocab, token, x) {
    LM_TRY(lm_json_id_read(x, token, &id));
    if (id < r->t->base.vocab && r->t->pieces[id].p)
      return lm_fail(LM_USER, "two tokens have id %d", id);
    text_set(r, id, token, strlen(token));
  }
  for (uint32_t byte = 0; byte < 256 && !r->t->chars; byte++) {
    char c[5] = {0};
    lm_utf8_encode(lm_byte_to_char(byte), c);
    r->t->byte_id[byte] = lm_json_token_find(r, c);
  }
  return NULL;
}

// Indexes the tokens by the strings that words are compared with: the text of a byte-level token,
// else the token as it is in the file. bytes: also tokens <0x00> … <0xFF>.
static void words_index(lm_tokenizer_reading *r, bool bytes) {
  const char *token;
  json_t *x;
  json_object_foreach(r->vocab, token, x) {
    int32_t id = (int32_t)json_integer_value(x);
    const lm_subword_piece *p = &r->t->pieces[id];
    size_t n = strlen(token);
    if (!r->t->chars && p->n)
      lm_trie_set(r->t->words, p->p, p->n, id);
    else if (r->t->chars && n && (bytes || lm_fallback_byte(token, n) < 0))
      lm_trie_set(r->t->words, token, n, id);
  }
}

static bool is_text(const json_t *x, const char *key) {
  return *lm_json_text(x, key);
}

// ---- byte pairs

static lm_status merge_add(lm_tokenizer_reading *r, const char *left, size_t n_left,
                           const char *right, size_t n_right, uint32_t rank) {
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
    id[i] = lm_json_token_find(r, made.p);
    if (id[i] < 0)
      s = lm_fail(LM_USER, "merge %u: \"%.100s\" is not in the vocabulary", rank + 1, made.p);
  }
  lm_buf_free(&made);
  if (!s)
    lm_bpe_merge_set(&r->t->bpe, id[0], id[1], id[2], rank);
  return s;
}

// "left right"
static lm_status merge_line_add(lm_tokenizer_reading *r, const char *line, size_t n,
                                uint32_t rank) {
  const char *gap = memchr(line, ' ', n);
  size_t left = gap ? (size_t)(gap - line) : 0;
  size_t right = gap ? n - left - 1 : 0;
  if (!left || !right || memchr(gap + 1, ' ', right))
    return lm_fail(LM_USER, "merge %u: \"%.*s\" is not a pair", rank + 1, n > 100 ? 100 : (int)n,
                   line);
  return merge_add(r, line, left, gap + 1, right, rank);
}

lm_status lm_merge_lines_read(lm_tokenizer_reading *r, const char *text, size_t n) {
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

static lm_status merges_read(lm_tokenizer_reading *r, const json_t *merges) {
  size_t i;
  json_t *m;
  if (!json_is_array(merges))
    return lm_fail(LM_USER, "model.merges is not a list");
  json_array_foreach(merges, i, m) {
    const char *left = json_string_value(json_array_get(m, 0));
    const char *right = json_string_value(json_array_get(m, 1));
    if (json_is_string(m))
      LM_TRY(merge_line_add(r, json_string_value(m), json_string_length(m), (uint32_t)i));
    else if (left && right && json_array_size(m) == 2)
      LM_TRY(merge_add(r, left, strlen(left), right, strlen(right), (uint32_t)i));
    else
      return lm_fail(LM_USER, "merge %zu is neither a string nor a pair of strings", i + 1);
  }
  return NULL;
}

static lm_status bpe_read(lm_tokenizer_reading *r, const json_t *model) {
  lm_subword *t = r->t;
  if (json_number_value(json_object_get(model, "dropout")) > 0)
    return lm_unsupported("model.dropout");
  if (is_text(model, "continuing_subword_prefix"))
    return lm_unsupported("model.continuing_subword_prefix of byte pairs");
  if (is_text(model, "end_of_word_suffix"))
    return lm_unsupported("model.end_of_word_suffix");
  r->fallback = lm_json_flag(model, "byte_fallback", false);
  if (r->fallback && !t->chars)
    return lm_unsupported("model.byte_fallback with a pre-tokenizer ByteLevel");
  r->vocab = json_incref(json_object_get(model, "vocab"));
  LM_TRY(lm_json_vocab_read(r, lm_token_text_set));
  LM_TRY(merges_read(r, json_object_get(model, "merges")));
  t->unk =
      is_text(model, "unk_token") ? lm_json_token_find(r, lm_json_text(model, "unk_token")) : -1;
  t->fuse_unk = lm_json_flag(model, "fuse_unk", false);
  t->bpe.whole_words = lm_json_flag(model, "ignore_merges", false);
  if (t->bpe.whole_words || t->chars)
    words_index(r, !r->fallback);
  return NULL;
}

// ---- unigram

enum {
  UNKNOWN_PENALTY = 10 // an unknown character subtracted from the score of the worst token
};

static lm_status scores_read(lm_tokenizer_reading *r, const json_t *list) {
  size_t i;
  json_t *x;
  double least = 0;
  size_t n = json_array_size(list);
  if (!n || n > LM_SUBWORD_IDS)
    return lm_fail(LM_USER, "model.vocab must be a list of 1 to %d tokens", LM_SUBWORD_IDS);
  r->vocab = json_object();
  r->t->unigram.scores = lm_calloc(n, sizeof(double));
  json_array_foreach(list, i, x) {
    const char *token = json_string_value(json_array_get(x, 0));
    json_t *score = json_array_get(x, 1);
    if (!token || !json_is_number(score))
      return lm_fail(LM_USER, "model.vocab: item %zu must be a pair of a token and its score", i);
    json_object_set_new(r->vocab, token, json_integer((json_int_t)i));
    lm_token_text_set(r, (int32_t)i, token, strlen(token));
    r->t->unigram.scores[i] = json_number_value(score);
    least = i ? fmin(least, json_number_value(score)) : json_number_value(score);
  }
  r->t->unigram.unknown = least - UNKNOWN_PENALTY;
  return NULL;
}

static lm_status unigram_read(lm_tokenizer_reading *r, const json_t *model) {
  lm_subword *t = r->t;
  const json_t *unk = json_object_get(model, "unk_id");
  r->fallback = lm_json_flag(model, "byte_fallback", false);
  if (!t->chars)
    return lm_unsupported("a model Unigram with a pre-tokenizer ByteLevel");
  LM_TRY(scores_read(r, json_object_get(model, "vocab")));
  words_index(r, true);
  if (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
      json_integer_value(unk) >= t->base.vocab)
    return lm_fail(LM_USER, "model.unk_id is not the id of a token");
  t->unk = (int32_t)json_integer_value(unk);
  t->fuse_unk = true;
  return NULL;
}

// ---- WordPiece

// Whether WordPiece's decoder with `cleanup` joins a token to the word before it.
static bool is_joined(const char *token) {
  static const char *const joined[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
  for (size_t i = 0; i < LM_COUNT(joined); i++)
    if (!strcmp(token, joined[i]))
      return true;
  return false;
}

// A token continues a word, or is decoded to a space and its text.
static void wordpiece_text_set(lm_tokenizer_reading *r, int32_t id, const char *token, size_t n) {
  size_t prefix = strlen(r->prefix);
  bool continues = prefix && !strncmp(token, r->prefix, prefix);
  bool joined = continues || (lm_json_flag(r->decoder, "cleanup", true) && is_joined(token));
  size_t start = continues ? prefix : 0;
  r->bytes.n = 0;
  lm_buf_puts(&r->bytes, joined ? "" : " ");
  lm_buf_add(&r->bytes, token + start, n - start);
  piece_set(r, id);
}

static lm_status wordpiece_read(lm_tokenizer_reading *r, const json_t *model) {
  lm_subword *t = r->t;
  json_t *most = json_object_get(model, "max_input_chars_per_word");
  const char *unk = lm_json_text(model, "unk_token");
  r->prefix = lm_json_text(model, "continuing_subword_prefix");
  if (!t->chars)
    return lm_unsupported("a model WordPiece with a pre-tokenizer ByteLevel");
  r->vocab = json_incref(json_object_get(model, "vocab"));
  LM_TRY(lm_json_vocab_read(r, wordpiece_text_set));
  words_index(r, true);
  t->unk = lm_json_token_find(r, unk);
  if (t->unk < 0)
    return lm_fail(LM_USER, "model.unk_token \"%.100s\" is not in the vocabulary", unk);
  t->wordpiece.longest = json_is_integer(most) && json_integer_value(most) > 0
                             ? (size_t)json_integer_value(most)
                             : 100;
  t->wordpiece.has_inner = true;
  for (const char *p = r->prefix; *p && t->wordpiece.has_inner; p++) {
    t->wordpiece.inner = lm_trie_step(t->words, t->wordpiece.inner, (unsigned char)*p);
    t->wordpiece.has_inner = t->wordpiece.inner != LM_TRIE_ROOT;
  }
  t->base.prefix_space = true;
  return NULL;
}

// ---- the model

static const struct {
  const char *type;
  lm_tokenizer_kind kind;
  const lm_word_model *model;
  lm_status (*read)(lm_tokenizer_reading *r, const json_t *model);
} types[] = {
    {"BPE", LM_TOKENIZER_BPE, &LM_BPE, bpe_read},
    {"Unigram", LM_TOKENIZER_UNIGRAM, &LM_UNIGRAM, unigram_read},
    {"WordPiece", LM_TOKENIZER_WORDPIECE, &LM_WORDPIECE, wordpiece_read},
};

lm_status lm_json_model_read(lm_tokenizer_reading *r, const json_t *model) {
  if (!json_is_object(model))
    return lm_fail(LM_USER, "the file has no member 'model', so it is not a tokenizer.json");
  const char *type = lm_json_type(model) ? lm_json_type(model) : types[0].type; // old files
  for (size_t i = 0; i < LM_COUNT(types); i++)
    if (!strcmp(type, types[i].type)) {
      r->t->base.kind = types[i].kind;
      r->t->model = types[i].model;
      return types[i].read(r, model);
    }
  return lm_fail(LM_USER,
                 "a model of type %s is unsupported; the supported types are BPE, Unigram and "
                 "WordPiece",
                 type);
}
