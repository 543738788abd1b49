// open.c - opens tokenizer files of all kinds.
#include "runtime/tokenizer/file.h"

enum {
  FILE_MAX = 256 << 20
};

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

static int32_t piece_find(const lm_subword *t, const char *text) {
  bool spaced = t->base.kind == LM_TOKENIZER_WORDPIECE; // a space begins the text of its tokens
  for (int32_t id = t->base.vocab - 1; id >= 0; id--) {
    lm_subword_piece p = t->pieces[id];
    size_t skip = spaced && p.n && *p.p == ' ';
    if (p.p && p.n - skip == strlen(text) && !memcmp(p.p + skip, text, p.n - skip))
      return id;
  }
  return -1;
}

static lm_status eos_choose(lm_subword *t, const char *configured, const char *what) {
  static const char *const usual[] = {"<|endoftext|>",
                                      "<|end_of_text|>",
                                      "<｜end▁of▁sentence｜>",
                                      "</s>",
                                      "<eos>",
                                      "<|eos|>",
                                      "[EOS]",
                                      "[SEP]"};
  int32_t found = configured ? piece_find(t, configured) : -1;
  if (configured && found < 0)
    return lm_fail(LM_USER,
                   "%s has no token \"%.100s\", which eos_token of tokenizer_config.json names",
                   what, configured);
  if (found >= 0)
    t->base.eos = found;
  for (size_t i = 0; i < LM_COUNT(usual) && t->base.eos < 0; i++)
    t->base.eos = piece_find(t, usual[i]);
  return NULL;
}

static void key_add(lm_subword *t, const char *p, size_t n) {
  lm_hash_key(t->base.key, p, n);
}

// ---- files

static lm_tokenizer_reading reading_begin(void) {
  return (lm_tokenizer_reading){.t = lm_subword_create()};
}

// Frees the parts that were read; *out is the tokenizer unless s is an error.
static lm_status reading_end(lm_tokenizer_reading *r, lm_status s, lm_tokenizer **out) {
  json_decref(r->vocab);
  lm_buf_free(&r->bytes);
  if (s)
    lm_tokenizer_destroy(&r->t->base);
  *out = s ? NULL : &r->t->base;
  return s;
}

static lm_status json_read(lm_tokenizer_reading *r, const char *text, size_t n, const char *what) {
  json_t *root;
  LM_TRY(lm_json_parse(text, n, what, &root));
  lm_status s = lm_annotate(lm_json_tokenizer_read(r, root), "%s", what);
  json_decref(root);
  return s;
}

// A message ModelProto begins with the number 10 of its first field, which is a line feed too: JSON
// that begins with white space has a brace behind it.
bool lm_tokenizer_is_sentencepiece(const char *text, size_t n) {
  size_t blank = 0;
  while (blank < n && strchr(" \t\r\n", text[blank]) && text[blank])
    blank++;
  return n && *text == '\n' && (blank == n || text[blank] != '{');
}

static lm_status file_parse(const char *text, size_t n, const char *what, const char *eos,
                            lm_tokenizer **out) {
  lm_tokenizer_reading r = reading_begin();
  lm_status s = lm_tokenizer_is_sentencepiece(text, n)
                    ? lm_annotate(lm_sentencepiece_read(&r, text, n), "%s", what)
                    : json_read(&r, text, n, what);
  if (!s)
    s = eos_choose(r.t, eos, what);
  if (!s) {
    key_add(r.t, text, n);
    key_add(r.t, (const char *)&r.t->base.eos, sizeof r.t->base.eos);
  }
  return reading_end(&r, s, out);
}

lm_status lm_tokenizer_parse(const char *text, size_t n, const char *what, lm_tokenizer **out) {
  return file_parse(text, n, what, NULL, out);
}

// Reads a file that the user named; failure is a user error.
static lm_status named_file_read(const char *path, lm_buf *out) {
  lm_status s = lm_file_read(path, FILE_MAX, out);
  if (s)
    s->kind = LM_USER;
  return s;
}

// These files have no special tokens, so "<|endoftext|>" in a text is plain text, as in GPT-2's
// encoder.
static lm_status pair_of_files_read(lm_tokenizer_reading *r, const char *path, const char *merges,
                                    lm_buf *encoder, lm_buf *lines) {
  LM_TRY(named_file_read(path, encoder));
  LM_TRY(named_file_read(merges, lines));
  LM_TRY(lm_json_parse(encoder->p, encoder->n, path, &r->vocab));
  r->t->base.kind = LM_TOKENIZER_BPE;
  r->t->model = &LM_BPE;
  LM_TRY(lm_annotate(lm_json_vocab_read(r, lm_token_text_set), "%s", path));
  LM_TRY(lm_annotate(lm_merge_lines_read(r, lines->p, lines->n), "%s", merges));
  LM_TRY(lm_pretok_split_add(r->t->pretok, LM_PRETOK_GPT2, strlen(LM_PRETOK_GPT2), false,
                             LM_SPLIT_ISOLATED, false));
  key_add(r->t, encoder->p, encoder->n);
  key_add(r->t, lines->p, lines->n);
  return eos_choose(r->t, NULL, path);
}

static lm_status pair_of_files_open(const char *path, const char *merges, lm_tokenizer **out) {
  lm_tokenizer_reading r = reading_begin();
  lm_buf encoder = {0};
  lm_buf lines = {0};
  lm_status s = pair_of_files_read(&r, path, merges, &encoder, &lines);
  lm_buf_free(&encoder);
  lm_buf_free(&lines);
  return reading_end(&r, s, out);
}

lm_status lm_tokenizer_open(const char *path, const char *merges, lm_tokenizer **out) {
  *out = NULL;
  if (merges)
    return pair_of_files_open(path, merges, out);
  lm_buf text = {0};
  lm_buf eos = {0};
  lm_arena *a = lm_arena_create();
  lm_status s = named_file_read(path, &text);
  if (!s)
    s = config_eos_read(lm_path_dir(a, path), &eos);
  if (!s)
    s = file_parse(text.p, text.n, path, eos.p, out);
  lm_buf_free(&text);
  lm_buf_free(&eos);
  lm_arena_destroy(a);
  return s;
}
