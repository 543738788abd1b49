// Tokenizers: bytes; byte pairs against Hugging Face's tokenizers (tokenizer_cases.json, written by
// make_tokenizer_cases.py); files that are refused; training.
#include <unistd.h>

#include "runtime/base/parallel.h"
#include "runtime/io/json.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/train.h"
#include "tests/runtime/check.h"

static json_t *cases; // the file

static lm_tokenizer *parse(json_t *root) {
  lm_tokenizer *t;
  char *text = json_dumps(root, 0);
  CHECK_OK(lm_tokenizer_parse(text, strlen(text), "case", &t));
  lm_free(text);
  return t;
}

// ---- bytes

static void test_bytes(void) {
  lm_tokenizer *t = lm_tokenizer_bytes_create();
  lm_tokens ids = {0};
  lm_buf b = {0};
  CHECK_OK(lm_tokenizer_encode(t, "a\0\xff", 3, &ids));
  CHECK(ids.n == 3 && ids.ids[0] == 'a' && ids.ids[1] == 0 && ids.ids[2] == 255);
  CHECK_OK(lm_tokenizer_decode(t, ids.ids, ids.n, &b));
  CHECK(b.n == 3 && !memcmp(b.p, "a\0\xff", 3));
  ids.ids[0] = 256;
  CHECK_FAILS(lm_tokenizer_decode(t, ids.ids, 1, &b), LM_USER, "256 is not a token id");
  lm_tokens_free(&ids);
  lm_buf_free(&b);
  lm_tokenizer_destroy(t);
}

// ---- against another implementation

static void ids_compare(const char *name, const json_t *text, const json_t *want,
                        const lm_tokens *got) {
  bool same = json_array_size(want) == got->n;
  for (size_t i = 0; i < got->n && same; i++)
    same = json_integer_value(json_array_get(want, i)) == got->ids[i];
  if (same)
    return;
  fprintf(stderr, "%s: \"%s\":", name, json_string_value(text));
  for (size_t i = 0; i < got->n; i++)
    fprintf(stderr, " %d", got->ids[i]);
  fprintf(stderr, ", not %s\n", json_dumps(want, 0));
  exit(1);
}

static void case_run(const char *name, const lm_tokenizer *t, const json_t *lists, bool framed) {
  lm_tokens got = {0};
  json_t *text, *texts = json_object_get(cases, "texts");
  size_t i;
  json_array_foreach(texts, i, text) {
    got.n = 0;
    if (framed)
      CHECK_OK(
          lm_tokenizer_encode_framed(t, json_string_value(text), json_string_length(text), &got));
    else
      CHECK_OK(lm_tokenizer_encode(t, json_string_value(text), json_string_length(text), &got));
    ids_compare(name, text, json_array_get(lists, i), &got);
  }
  lm_tokens_free(&got);
}

static json_t *case_file(const json_t *c) {
  json_t *root = json_copy(json_object_get(cases, "base"));
  json_object_update(root, json_object_get(c, "patch"));
  return root;
}

static void test_cases(void) {
  json_t *c;
  size_t i;
  json_array_foreach(json_object_get(cases, "cases"), i, c) {
    json_t *root = case_file(c);
    char *text = json_dumps(root, 0);
    const char *name = json_string_value(json_object_get(c, "name"));
    lm_tokenizer *t;
    CHECK_OK(lm_tokenizer_parse(text, strlen(text), name, &t));
    CHECK(t->eos == 0);
    case_run(name, t, json_object_get(c, "ids"), false);
    if (json_is_array(json_object_get(c, "framed")))
      case_run(name, t, json_object_get(c, "framed"), true);
    lm_tokenizer_destroy(t);
    lm_free(text);
    json_decref(root);
  }
}

// ---- properties of byte-level tokenizers

static void test_round_trip(void) {
  lm_tokenizer *t = parse(json_object_get(cases, "base"));
  lm_tokens ids = {0};
  lm_buf back = {0};
  unsigned state = 1;
  for (int n = 0; n < 400; n++) {
    char text[400];
    for (int i = 0; i < n; i++)
      text[i] =
          (char)((state = state * 1664525 + 1013904223) >> (n % 2 ? 24 : 26)); // any bytes; ASCII
    ids.n = back.n = 0;
    CHECK_OK(lm_tokenizer_encode(t, text, (size_t)n, &ids));
    CHECK_OK(lm_tokenizer_decode(t, ids.ids, ids.n, &back));
    CHECK(back.n == (size_t)n && (!n || !memcmp(back.p, text, back.n)));
  }
  ids.n = 0; // bytes that are no UTF-8 stand alone
  CHECK_OK(lm_tokenizer_encode(t, "the", 3, &ids));
  size_t word = ids.n;
  CHECK_OK(lm_tokenizer_encode(t, "the\xff\xfethe", 8, &ids));
  CHECK(ids.n == 3 * word + 2 && !memcmp(ids.ids, ids.ids + 2 * word + 2, word * sizeof *ids.ids));
  lm_tokens_free(&ids);
  lm_buf_free(&back);
  lm_tokenizer_destroy(t);
}

// Long text in parts: the same ids with the pre-tokenizers that are in use.
static void test_cut(void) {
  static const char *const usual[] = {"gpt2",    "prefix",   "llama3",    "qwen2", "o200k",
                                      "removed", "deepseek", "starcoder", "falcon"};
  lm_buf text = {0};
  const char *some = json_string_value(json_object_get(cases, "text"));
  for (int i = 0; i < 40; i++) {
    lm_buf_puts(&text, some);
    const json_t *x = json_array_get(json_object_get(cases, "texts"),
                                     (size_t)i % json_array_size(json_object_get(cases, "texts")));
    lm_buf_add(&text, json_string_value(x), json_string_length(x));
  }
  json_t *c;
  size_t i;
  json_array_foreach(json_object_get(cases, "cases"), i, c) {
    bool is_usual = false;
    for (size_t k = 0; k < LM_COUNT(usual); k++)
      is_usual |= !strcmp(usual[k], json_string_value(json_object_get(c, "name")));
    if (!is_usual)
      continue;
    json_t *root = case_file(c);
    lm_tokenizer *t = parse(root);
    lm_tokens whole = {0}, parts = {0};
    CHECK_OK(lm_tokenizer_encode(t, text.p, text.n, &whole));
    for (size_t at = 0, n; at < text.n; at += n) {
      n = text.n - at < 500 ? text.n - at : lm_tokenizer_cut(text.p + at, 500);
      int part = (at ? LM_TEXT_FOLLOWS : 0) | (at + n < text.n ? LM_TEXT_PRECEDES : 0);
      CHECK_OK(lm_tokenizer_encode_part(t, text.p + at, n, part, &parts));
    }
    CHECK(whole.n == parts.n && !memcmp(whole.ids, parts.ids, whole.n * sizeof *whole.ids));
    lm_tokens_free(&whole);
    lm_tokens_free(&parts);
    lm_tokenizer_destroy(t);
    json_decref(root);
  }
  lm_buf_free(&text);
  CHECK(lm_tokenizer_cut("\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe6\x97\xa5", 12) % 3 ==
        0); // never inside a character
}

typedef struct {
  const lm_tokenizer *t;
  const char *text;
  lm_tokens out[8];
} shared_use;
static void shared_encode(void *user, int64_t i, int worker) {
  shared_use *u = user;
  CHECK_OK(lm_tokenizer_encode(u->t, u->text, strlen(u->text), &u->out[i]));
}

static void test_threads(void) {
  lm_tokenizer *t = parse(json_object_get(cases, "base"));
  shared_use u = {t, json_string_value(json_object_get(cases, "text"))};
  lm_parallel(4, 8, shared_encode, &u);
  for (int i = 0; i < 8; i++) {
    CHECK(u.out[i].n == u.out[0].n &&
          !memcmp(u.out[i].ids, u.out[0].ids, u.out[0].n * sizeof(int32_t)));
    if (i)
      lm_tokens_free(&u.out[i]);
  }
  lm_tokens_free(&u.out[0]);
  lm_tokenizer_destroy(t);
}

// ---- GPT-2's two files

static void test_two_files(void) {
  char dir[] = "/tmp/lm-tokenizer-XXXXXX";
  CHECK(mkdtemp(dir));
  lm_arena *a = lm_arena_create();
  json_t *model = json_object_get(json_object_get(cases, "base"), "model"), *m;
  lm_buf merges = {0};
  size_t i;
  lm_buf_puts(&merges, "#version: 0.2\n");
  json_array_foreach(json_object_get(model, "merges"), i, m)
      lm_buf_printf(&merges, "%s %s\n", json_string_value(json_array_get(m, 0)),
                    json_string_value(json_array_get(m, 1)));
  char *vocab = json_dumps(json_object_get(model, "vocab"), 0);
  char *encoder = lm_path_join(a, dir, "encoder.json");
  char *lines = lm_path_join(a, dir, "vocab.bpe");
  CHECK_OK(lm_file_write_atomic(encoder, vocab, strlen(vocab)));
  CHECK_OK(lm_file_write_atomic(lines, merges.p, merges.n));
  lm_tokenizer *t, *other = parse(json_object_get(cases, "base"));
  CHECK_OK(lm_tokenizer_open(encoder, lines, &t));
  lm_tokens x = {0}, y = {0};
  const char *text = json_string_value(json_object_get(cases, "text"));
  CHECK_OK(lm_tokenizer_encode(t, text, strlen(text), &x));
  CHECK_OK(lm_tokenizer_encode(other, text, strlen(text), &y));
  CHECK(x.n == y.n && !memcmp(x.ids, y.ids, x.n * sizeof *x.ids) && t->eos == 0);
  x.n = 0; // no special tokens here: text is text
  CHECK_OK(lm_tokenizer_encode(t, "<|endoftext|>", 13, &x));
  CHECK(x.n > 1);
  lm_tokenizer_destroy(t);
  CHECK_OK(lm_file_write_atomic(lines, "a b c\n", 6));
  CHECK_FAILS(lm_tokenizer_open(encoder, lines, &t), LM_USER, "merge 1: \"a b c\" is not a pair");
  CHECK_FAILS(lm_tokenizer_open(encoder, "/nowhere", &t), LM_USER, "/nowhere");
  CHECK_FAILS(lm_tokenizer_open("/nowhere", NULL, &t), LM_USER, "/nowhere");
  lm_tokens_free(&x);
  lm_tokens_free(&y);
  lm_tokenizer_destroy(other);
  lm_buf_free(&merges);
  lm_free(vocab);
  unlink(encoder);
  unlink(lines);
  rmdir(dir);
  lm_arena_destroy(a);
}

// ---- rejected files

static void refused(const char *key, const char *value, const char *why) {
  json_error_t e;
  json_t *root = json_copy(json_object_get(cases, "base"));
  json_t *model = json_copy(json_object_get(root, "model"));
  json_t *v = json_loads(value, JSON_DECODE_ANY, &e);
  CHECK(v);
  json_object_set_new(root, "model", model);
  if (!strncmp(key, "model.", 6))
    json_object_set_new(model, key + 6, v);
  else
    json_object_set_new(root, key, v);
  char *text = json_dumps(root, 0);
  lm_tokenizer *t;
  CHECK_FAILS(lm_tokenizer_parse(text, strlen(text), "f.json", &t), LM_USER, why);
  lm_free(text);
  json_decref(root);
}

static void test_refused(void) {
  lm_tokenizer *t;
  CHECK_FAILS(lm_tokenizer_parse("{", 1, "f.json", &t), LM_USER, "f.json:1:1: not JSON");
  CHECK_FAILS(lm_tokenizer_parse("{}", 2, "f.json", &t), LM_USER,
              "f.json: the file has no member 'model'");
  CHECK_FAILS(lm_tokenizer_parse("[]", 2, "f.json", &t), LM_USER,
              "f.json: the file has no member 'model'");
  refused("model", "{\"type\": \"WordLevel\"}", "a model of type WordLevel is unsupported");
  refused("model", "{\"type\": \"WordPiece\"}", "WordPiece with a pre-tokenizer ByteLevel");
  refused("model.byte_fallback", "true", "byte_fallback");
  refused("model.dropout", "0.1", "model.dropout");
  refused("model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix");
  refused("model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix");
  refused("model.vocab", "{\"a\": -1}", "\"a\": its id");
  refused("model.vocab", "{\"a\": 99999999}", "\"a\": its id");
  refused("model.vocab", "{\"a\": \"b\"}", "\"a\": its id");
  refused("model.vocab", "{\"a\": 1, \"b\": 1}", "two tokens have id 1");
  refused("model.vocab", "{}", "no vocabulary");
  refused("model", "{\"type\": \"Unigram\"}", "Unigram with a pre-tokenizer ByteLevel");
  refused("model.merges", "[[\"a\", \"b\", \"c\"]]", "merge 1 is neither a string nor a pair");
  refused("model.merges", "[\"zzz q\"]", "merge 1: \"zzz\" is not in the vocabulary");
  refused("model.merges", "[\"ab\"]", "merge 1: \"ab\" is not a pair");
  refused("model.merges", "[3]", "merge 1");
  refused("model.merges", "3", "merges is not a list");
  refused("normalizer", "{\"type\": \"Nmt\"}", "normalizer Nmt is unsupported");
  refused("normalizer", "{}", "no type");
  refused("pre_tokenizer", "null", "no pre-tokenizer ByteLevel");
  refused("pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre-tokenizer Metaspace");
  refused("pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}}",
          "regular expression (");
  refused("pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}}",
          "&& in a class");
  refused("pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\h\"}}",
          "\\h is unsupported");
  refused("pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a{1,2}+\"}}", "{…}+");
  refused("pre_tokenizer", "{\"type\": \"Split\"}", "no pattern");
  refused("pre_tokenizer",
          "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Odd\"}",
          "behavior Odd");
  lm_buf many = {0};
  for (int i = 0; i < 17; i++)
    lm_buf_printf(&many, "%s{\"type\": \"Digits\"}",
                  i ? ", " : "{\"type\": \"Sequence\", \"pretokenizers\": [");
  lm_buf_puts(&many, "]}");
  refused("pre_tokenizer", many.p, "more than 16 steps");
  lm_buf_free(&many);
  refused("post_processor", "{\"type\": \"Other\"}", "post-processor Other");
  refused("post_processor",
          "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}",
          "does not define x");
  refused("post_processor",
          "{\"type\": \"RobertaProcessing\", \"cls\": [\"x\", 5000], \"sep\": [\"y\", 1]}", "5000");
  refused("decoder", "{\"type\": \"WordPiece\"}", "decoder WordPiece");
  refused("added_tokens", "[{\"id\": 1}]", "no content");
  refused("added_tokens", "[{\"id\": 7, \"content\": \"!\"}]", "in the vocabulary");
}

static void test_unigram_refused(void) {
  static const char *const files[][2] = {
      {"3", "model.vocab must be a list of 1 to 4194304 tokens"},
      {"[]", "model.vocab must be a list of 1 to 4194304 tokens"},
      {"[[\"a\", 0], [\"b\"]]", "model.vocab: item 1 must be a pair of a token and its score"},
      {"[[\"a\", 0]]", "model.unk_id is not the id of a token"},
  };
  lm_tokenizer *t;
  for (size_t i = 0; i < LM_COUNT(files); i++) {
    lm_buf b = {0};
    lm_buf_printf(&b, "{\"model\": {\"type\": \"Unigram\", \"vocab\": %s}}", files[i][0]);
    CHECK_FAILS(lm_tokenizer_parse(b.p, b.n, "f.json", &t), LM_USER, files[i][1]);
    lm_buf_free(&b);
  }
}

// SentencePiece files: messages about fields, and files that end too early.
static void test_sentencepiece_refused(void) {
  static const struct {
    const char *file;
    size_t n;
    const char *why;
  } files[] = {
      {"\n", 1, "neither JSON nor a SentencePiece model"},
      {"\n\x05\n\x03<u", 6, "neither JSON nor a SentencePiece model"},
      {"\n\x05\n\x03<u>", 7, "the model has no unknown piece"},
      {"\n\x02\n\x00", 4, "piece 0 is malformed"},
      {"\n\x03\n\x01\xff", 5, "piece 0 is malformed"},
      {"\n\x05\n\x01u\x18\x02\x12\x02\x18\x03", 11, "a SentencePiece model of words"},
      {"\n\x05\n\x01u\x18\x02\x12\x03\xc0\x01\x01", 12, "treat_whitespace_as_suffix"},
      {"\n\x05\n\x01u\x18\x06", 7, "piece 0, \"u\", has the type BYTE but not the form"},
      {"\n\x05\n\x01u\x18\x02\x1a\x05\x12\x03xyz", 14, "the character map of 3 bytes"},
  };
  lm_tokenizer *t;
  for (size_t i = 0; i < LM_COUNT(files); i++)
    CHECK_FAILS(lm_tokenizer_parse(files[i].file, files[i].n, "f.model", &t), LM_USER,
                files[i].why);
}

// A text that is encoded in parts: no space is inserted before a part that follows another, and its
// own one is kept.
static void test_parts(void) {
  const char *text = "the cat sat on the mat ";
  lm_tokenizer *t;
  lm_tokens whole = {0}, parts = {0};
  CHECK_OK(lm_tokenizer_open("tests/fuzz/seeds/tokenizer/unigram.model", NULL, &t));
  CHECK_OK(lm_tokenizer_encode(t, text, strlen(text), &whole));
  CHECK_OK(lm_tokenizer_encode_part(t, text, 3, LM_TEXT_PRECEDES, &parts));
  CHECK_OK(lm_tokenizer_encode_part(t, text + 3, strlen(text) - 3, LM_TEXT_FOLLOWS, &parts));
  CHECK(whole.n == parts.n && !memcmp(whole.ids, parts.ids, whole.n * sizeof *whole.ids));
  lm_tokens_free(&whole);
  lm_tokens_free(&parts);
  lm_tokenizer_destroy(t);
}

// ---- training

// Vocabulary and merges equal Hugging Face's trainer.
static void test_train(void) {
  const char *text = json_string_value(json_object_get(cases, "text"));
  json_t *made, *want = json_object_get(json_object_get(cases, "base"), "model"), *m;
  lm_buf json = {0}, again = {0};
  lm_vocab_trainer *t = lm_vocab_trainer_create(LM_TOKENIZER_BPE, 1);
  lm_vocab_trainer *u = lm_vocab_trainer_create(LM_TOKENIZER_BPE, 3);
  CHECK_OK(lm_vocab_trainer_add(t, 0, text, strlen(text)));
  CHECK_OK(lm_vocab_trainer_finish(t, 400, &json));
  CHECK_OK(lm_json_parse(json.p, json.n, "trained", &made));
  CHECK(json_equal(json_object_get(json_object_get(made, "model"), "vocab"),
                   json_object_get(want, "vocab")));
  size_t i;
  json_array_foreach(json_object_get(json_object_get(made, "model"), "merges"), i, m) {
    const json_t *pair = json_array_get(json_object_get(want, "merges"), i);
    size_t left = json_string_length(json_array_get(pair, 0));
    CHECK(!strncmp(json_string_value(m), json_string_value(json_array_get(pair, 0)), left));
    CHECK(!strcmp(json_string_value(m) + left + 1, json_string_value(json_array_get(pair, 1))));
  }
  CHECK(i == json_array_size(json_object_get(want, "merges")));
  size_t cut = lm_tokenizer_cut(text, 700); // in parts, by several, in another order
  CHECK_OK(lm_vocab_trainer_add(u, 2, text + cut, strlen(text) - cut));
  CHECK_OK(lm_vocab_trainer_add(u, 1, text, cut));
  CHECK_OK(lm_vocab_trainer_finish(u, 400, &again));
  CHECK(json.n == again.n && !memcmp(json.p, again.p, json.n));
  lm_vocab_trainer_destroy(t);
  lm_vocab_trainer_destroy(u);
  lm_buf_free(&json);
  lm_buf_free(&again);
  json_decref(made);
}

// Little text gives a small vocabulary, none the bytes; a text made by different pairs is one
// token.
static void test_train_little(void) {
  static const char *const texts[] = {"", "aaaa aaaa", "abc abc ab bc abc abcabc", "\xff\xff", "x"};
  for (size_t i = 0; i < LM_COUNT(texts); i++) {
    lm_vocab_trainer *t = lm_vocab_trainer_create(LM_TOKENIZER_BPE, 1);
    lm_buf json = {0};
    lm_tokenizer *made;
    CHECK_OK(lm_vocab_trainer_add(t, 0, texts[i], strlen(texts[i])));
    CHECK_OK(lm_vocab_trainer_finish(t, 300, &json));
    CHECK_OK(lm_tokenizer_parse(json.p, json.n, "trained", &made));
    CHECK(made->vocab >= LM_TRAINED_BPE_MIN && made->vocab < 300 && made->eos == 0);
    lm_tokenizer_destroy(made);
    lm_vocab_trainer_destroy(t);
    lm_buf_free(&json);
  }
  lm_vocab_trainer *t = lm_vocab_trainer_create(LM_TOKENIZER_BPE, 1);
  lm_buf json = {0};
  CHECK_FAILS(lm_vocab_trainer_finish(t, 256, &json), LM_USER, "257");
  lm_vocab_trainer_destroy(t);
}

// A unigram vocabulary does not depend on threads or order, has the requested size, and gives the
// text back, with characters that it lacks and with line breaks.
static void test_train_unigram(void) {
  const char *text = json_string_value(json_object_get(cases, "text"));
  const char *other = "the earth\r\n\n\tz\xc3\xa9\xe2\x82\xac  the";
  lm_vocab_trainer *t = lm_vocab_trainer_create(LM_TOKENIZER_UNIGRAM, 1);
  lm_vocab_trainer *u = lm_vocab_trainer_create(LM_TOKENIZER_UNIGRAM, 2);
  lm_buf json = {0}, again = {0}, back = {0};
  lm_tokenizer *made;
  lm_tokens ids = {0};
  CHECK_OK(lm_vocab_trainer_add(t, 0, text, strlen(text)));
  CHECK_OK(lm_vocab_trainer_add(t, 0, other, strlen(other)));
  CHECK_OK(lm_vocab_trainer_finish(t, 350, &json));
  CHECK_OK(lm_vocab_trainer_add(u, 1, other, strlen(other)));
  CHECK_OK(lm_vocab_trainer_add(u, 0, text, strlen(text)));
  CHECK_OK(lm_vocab_trainer_finish(u, 350, &again));
  CHECK(json.n == again.n && !memcmp(json.p, again.p, json.n));
  CHECK_OK(lm_tokenizer_parse(json.p, json.n, "trained", &made));
  CHECK(made->kind == LM_TOKENIZER_UNIGRAM && made->vocab == 350 && made->eos == 0);
  CHECK_OK(lm_tokenizer_encode(made, other, strlen(other), &ids));
  CHECK_OK(lm_tokenizer_decode(made, ids.ids, ids.n, &back));
  CHECK(back.n == strlen(other) && !memcmp(back.p, other, back.n));
  lm_vocab_trainer_destroy(t);
  lm_vocab_trainer_destroy(u);
  lm_tokenizer_destroy(made);
  lm_tokens_free(&ids);
  lm_buf_free(&json);
  lm_buf_free(&again);
  lm_buf_free(&back);
  t = lm_vocab_trainer_create(LM_TOKENIZER_UNIGRAM, 1); // no text at all
  CHECK_OK(lm_vocab_trainer_finish(t, 300, &json));
  lm_vocab_trainer_destroy(t);
  lm_buf_free(&json);
}

int main(void) {
  CHECK_OK(lm_json_read("tests/runtime/tokenizer_cases.json", 64 << 20, &cases));
  test_bytes();
  test_cases();
  test_round_trip();
  test_cut();
  test_threads();
  test_two_files();
  test_refused();
  test_unigram_refused();
  test_sentencepiece_refused();
  test_parts();
  test_train();
  test_train_little();
  test_train_unigram();
  json_decref(cases);
  return 0;
}
