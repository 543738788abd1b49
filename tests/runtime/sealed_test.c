// Files of the data cache whose hashes are right and whose contents are not: a wrong count or range
// in a tail makes the file be built again, one in a payload is an error that names the file. A
// vocabulary is built again in either case.
#include <glob.h>
#include <unistd.h>

#include "runtime/data/read/store.h"
#include "runtime/data/rows/vocab.h"
#include "tests/runtime/check.h"
#include "tests/runtime/files.h"
#include "tests/runtime/sealed_data.h"

enum {
  ALL = 2 * LINES,
  BAD = 2,
  VOCAB = 270,
  MORE_VOCAB = 300
};

static char in_memory[] = "/dev/shm/lm-sealed-XXXXXX"; // files of the cache are synced
static char on_disk[] = "/tmp/lm-sealed-XXXXXX";
static const char *dir;
static lm_arena *arena;
static lm_tokenizer *bytes;

static char *in_dir(const char *name) {
  return lm_path_join(arena, dir, name);
}

static void lines_write(const char *name, int from) {
  lm_buf b = {0};
  sealed_lines(&b, from);
  lm_buf_puts(&b, "{\"text\": 3, \"score\": 1, \"rank\": 1}\n"); // a bad document
  CHECK_OK(lm_file_write_atomic(in_dir(name), b.p, b.n));
  lm_buf_free(&b);
}

static lm_status data_open(lm_data **out) {
  const lm_data_source sources[] = {{LM_SOURCE_JSONL, "a", in_dir("a.jsonl")},
                                    {LM_SOURCE_JSONL, "b", in_dir("b.jsonl")}};
  lm_data_options o = sealed_options(sources, bytes, in_dir("cache"), 0.1);
  return lm_data_open(&o, out);
}

// A hash of all rows of all parts.
static lm_status rows_hash(const lm_data *d, uint64_t *out) {
  static values v;
  lm_batch_column more[2];
  lm_batch b = sealed_batch(&v, more);
  int n = lm_data_info_of(d).n_parts;
  *out = 0;
  for (int part = 0; part < n; part++)
    for (int64_t row = 0; row < lm_data_part(d, part).rows; row += ROWS) {
      LM_TRY(lm_data_fill_part(d, part, row, ROWS, &b));
      *out = lm_hash(&v, sizeof v, *out);
    }
  return NULL;
}

// What a run does: opens the data, counts its bytes, reads all rows.
static lm_status data_use(uint64_t *out) {
  lm_data *d;
  LM_TRY(data_open(&d));
  for (int i = 0; i < lm_data_info_of(d).n_parts; i++)
    lm_data_predicted_bytes(d, i);
  lm_status s = rows_hash(d, out);
  lm_data_close(d);
  return s;
}

// ---- files with other contents

typedef struct {
  char *path;
  uint64_t *payload, *tail;
  size_t n_payload, n_tail; // bytes
} contents;

static char *file_find(const char *ending) {
  glob_t found;
  CHECK(!glob(in_dir(lm_arena_printf(arena, "cache/*.%s", ending)), 0, NULL, &found));
  CHECK(found.gl_pathc == 1);
  char *path = lm_arena_strndup(arena, found.gl_pathv[0], strlen(found.gl_pathv[0]));
  globfree(&found);
  return path;
}

static contents contents_read(const char *ending) {
  contents c = {.path = file_find(ending)};
  lm_store *s;
  CHECK_OK(lm_store_open(c.path, 1, &s));
  c.n_payload = s->n;
  c.n_tail = s->n_tail;
  c.payload = lm_arena_alloc(arena, s->n + 8);
  c.tail = lm_arena_alloc(arena, s->n_tail + 8);
  CHECK_OK(lm_store_read(s, 0, s->n, c.payload));
  memcpy(c.tail, s->tail, s->n_tail);
  lm_store_close(s);
  return c;
}

static void contents_seal(const contents *c) {
  lm_store_writer *w;
  lm_store *s;
  CHECK_OK(lm_store_writer_create(c->path, &w));
  CHECK_OK(lm_store_add(w, c->payload, c->n_payload));
  CHECK_OK(lm_store_finish(w, c->tail, c->n_tail, &s));
  lm_store_close(s);
}

// ---- the cases

static uint64_t whole; // the hash of the data as it was written

static void rebuilt(contents *c, size_t word, uint64_t value) {
  uint64_t before = c->tail[word], hash;
  c->tail[word] = value;
  contents_seal(c);
  c->tail[word] = before;
  lm_status s = data_use(&hash);
  if (s || hash != whole) {
    fprintf(stderr, "%s, word %zu of the tail %llx: %s\n", c->path, word, (unsigned long long)value,
            s ? s->text : "other rows");
    exit(1);
  }
}

// Counts that wrap in 64 bits, that exceed the file, that are not those of the recipe.
static void test_tails(void) {
  enum { // words of the tails of corpus.c and rows.c
    DOCS = 2,
    READ,
    SKIPPED,
    WIDTH,
    MARKED,
    SOURCES,
    LIST,
    COLUMNS,
    FIRST_SOURCE,
    VALUES = FIRST_SOURCE + 3,
    SETS = 2,
    BLOCKS,
    FIRST_SET
  };
  static const struct {
    const char *ending;
    size_t word;
    uint64_t values[5];
  } cases[] = {
      {"doc", DOCS, {0, 1, ALL - 1, ALL + 1, UINT64_MAX / 24 + ALL + 1}},
      {"doc", READ, {0, ALL - 1, ALL + 1, UINT64_MAX, 1000}},
      {"doc", SKIPPED, {0, 1, ALL + 1, UINT64_MAX, 1000}},
      {"doc", WIDTH, {0, 2, 3, 4, UINT64_C(1) << 32}},
      {"doc", MARKED, {1, 2, UINT64_MAX, 1, 1}},
      {"doc", SOURCES, {0, 1, 3, UINT64_MAX, UINT64_MAX - 2}},
      {"doc", LIST, {0, 1, UINT64_MAX, UINT64_MAX - 1000, 1 << 20}},
      {"doc", COLUMNS, {0, 1, 3, UINT64_MAX, UINT64_C(1) << 61}},
      {"doc", FIRST_SOURCE, {1, ALL + 1, UINT64_MAX, UINT64_C(1) << 63, 1 << 20}},
      {"doc", FIRST_SOURCE + 1, {ALL + 1, 100, UINT64_MAX, UINT64_C(1) << 63, 1 << 20}},
      {"doc", FIRST_SOURCE + 2, {0, ALL - 1, ALL + 1, UINT64_MAX, UINT64_C(1) << 63}},
      {"doc",
       VALUES,
       {0x7ff8000000000000, 0x7ff0000000000000, UINT64_MAX, 0x7fe0000000000000,
        0x7ff0000000000000}},
      {"doc",
       VALUES + 1,
       {0x7ff8000000000000, 0x7ff0000000000000, 0x43f0000000000000, 0xc3f0000000000000,
        UINT64_MAX}},
      {"row", SETS, {0, 1, 3, 5, UINT64_MAX}},
      {"row", BLOCKS, {0, 3, 5, UINT64_MAX, (UINT64_C(1) << 59) + 4}},
      {"row", FIRST_SET, {1, 4, 5, UINT64_MAX, UINT64_C(1) << 63}},
      {"row", FIRST_SET + 1, {0, 2, 4, 5, UINT64_MAX}},
      {"row", FIRST_SET + 2, {0, 1, UINT64_MAX, UINT64_C(1) << 63, 1 << 20}},
      {"row", FIRST_SET + 3, {0, ALL + 1, UINT64_MAX, UINT64_C(1) << 63, 1 << 20}},
      {"row", FIRST_SET + 4, {UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 62, 1 << 20, 1 << 21}},
      {"row", FIRST_SET + 5, {ALL + 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 62, 1 << 20}},
      {"row", FIRST_SET + 6, {ALL + 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 62, 1 << 20}},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    contents c = contents_read(cases[i].ending);
    for (size_t k = 0; k < LM_COUNT(cases[i].values); k++)
      rebuilt(&c, cases[i].word, cases[i].values[k]);
  }
  contents c = contents_read("row");
  for (size_t block = FIRST_SET + 4 * 7; block < c.n_tail / 8; block += 4)
    for (size_t word = 0; word < 4; word++) {
      rebuilt(&c, block + word, UINT64_MAX);
      rebuilt(&c, block + word, UINT64_C(1) << 63);
      rebuilt(&c, block + word, 1 << 19);
      rebuilt(&c, block + word, UINT64_MAX - c.tail[block + word]);
    }
  contents docs = contents_read("doc"); // a list of bad documents that does not end
  ((char *)docs.tail)[docs.n_tail - 1] = 'x';
  rebuilt(&docs, 0, docs.tail[0]);
}

// Every word of the file: whatever it holds, no read leaves the file.
static void test_every_word(const char *ending) {
  static const uint64_t others[] = {0, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 40, 7};
  contents c = contents_read(ending);
  size_t words = (c.n_payload + c.n_tail) / 8;
  for (size_t i = 0; i < words; i++) {
    bool in_tail = i >= c.n_payload / 8;
    uint64_t *word = in_tail ? &c.tail[i - c.n_payload / 8] : &c.payload[i];
    uint64_t before = *word, hash;
    *word = others[i % LM_COUNT(others)];
    contents_seal(&c);
    *word = before;
    lm_status s = data_use(&hash);
    bool named = s && s->kind == LM_ENV && strstr(s->text, c.path) && strstr(s->text, "delete it");
    if (s && !in_tail && !named) {
      fprintf(stderr, "word %zu of the payload of %s: %s\n", i, c.path, s->text);
      exit(1);
    }
    lm_status_free(s);
  }
  uint64_t hash;
  contents_seal(&c);
  CHECK_OK(data_use(&hash));
  CHECK(hash == whole);
}

// ---- vocabularies

typedef struct {
  int64_t asked;
  lm_buf json;
  lm_data_trained_on on;
} trained;

static trained vocabulary_train(lm_tokenizer_kind kind, int64_t vocab) {
  const lm_data_source sources[] = {{LM_SOURCE_JSONL, "a", in_dir("a.jsonl")},
                                    {LM_SOURCE_JSONL, "b", in_dir("b.jsonl")}};
  lm_data_options o = {.sources = sources, .n_sources = 2, .cache = in_dir("cache"), .threads = 1};
  trained x = {.asked = vocab};
  CHECK_OK(lm_data_tokenizer_train(&o, kind, vocab, &x.json, &x.on));
  return x;
}

static void trained_free(trained *x) {
  lm_buf_free(&x->json);
  lm_buf_free(&x->on.list);
}

static bool buf_is_same(const lm_buf *a, const lm_buf *b) {
  return a->n == b->n && !memcmp(a->p, b->p, a->n);
}

// The file of the cache is now another one: training gives the same vocabulary as at first.
static void vocabulary_holds(const trained *first, const char *what, size_t at) {
  trained x = vocabulary_train(LM_TOKENIZER_BPE, first->asked);
  if (!buf_is_same(&x.json, &first->json) || !buf_is_same(&x.on.list, &first->on.list) ||
      x.on.documents != first->on.documents || x.on.unusable != first->on.unusable) {
    fprintf(stderr, "%s, %zu: %lld of %lld documents, %zu bytes\n%.*s", what, at,
            (long long)x.on.unusable, (long long)x.on.documents, x.json.n, (int)x.on.list.n,
            x.on.list.p);
    exit(1);
  }
  trained_free(&x);
}

// Right hashes, other counts, lists and vocabularies.
static void test_vocabulary_contents(const trained *first) {
  static const int64_t right[] = {ALL + BAD, BAD};
  static const int64_t counts[][2] = {{-1, BAD},
                                      {0, BAD},
                                      {1, BAD},
                                      {BAD, BAD},
                                      {INT64_MIN, BAD},
                                      {ALL + BAD, -1},
                                      {ALL + BAD, 0},
                                      {ALL + BAD, 3},
                                      {ALL + BAD, ALL + BAD},
                                      {ALL + BAD, 100},
                                      {ALL + BAD, INT64_MIN}};
  contents c = contents_read("vocab");
  char *list = (char *)(c.tail + 2), last = list[c.n_tail - 17];
  size_t whole_tail = c.n_tail;
  for (size_t i = 0; i < LM_COUNT(counts); i++) {
    memcpy(c.tail, counts[i], sizeof counts[i]);
    contents_seal(&c);
    vocabulary_holds(first, "counts", i);
  }
  memcpy(c.tail, right, sizeof right);
  for (c.n_tail = 0; c.n_tail < whole_tail - 1; c.n_tail += c.n_tail < 16 ? 1 : 7) {
    contents_seal(&c);
    vocabulary_holds(first, "bytes of the tail", c.n_tail);
  }
  c.n_tail = whole_tail;
  list[c.n_tail - 17] = 0;
  contents_seal(&c);
  list[c.n_tail - 17] = last;
  vocabulary_holds(first, "a list without an end", 0);
  c.n_payload -= 10;
  contents_seal(&c);
  vocabulary_holds(first, "half a vocabulary", 0);
}

// The file of another kind, or of more tokens, under the name of the one that was asked for.
static void test_other_vocabulary(lm_tokenizer_kind kind, int64_t vocab, int64_t asked) {
  files_remove(in_dir("cache/*.vocab"));
  trained first = vocabulary_train(LM_TOKENIZER_BPE, asked);
  char *path = file_find("vocab");
  CHECK(!unlink(path));
  trained other = vocabulary_train(kind, vocab);
  CHECK(!buf_is_same(&other.json, &first.json));
  CHECK(!rename(file_find("vocab"), path));
  trained_free(&other);
  vocabulary_holds(&first, "another vocabulary of", (size_t)vocab);
  trained_free(&first);
}

// Truncates the vocabulary file, or flips one of its bits without updating its hash: training must
// give the first vocabulary again.
static void test_vocabulary_damage(const trained *first) {
  char *path = file_find("vocab");
  lm_buf file = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &file));
  for (size_t at = 0; at < file.n; at += at + 300 < file.n ? 211 : 5) {
    char before = file.p[at];
    CHECK_OK(lm_file_write_atomic(path, file.p, at));
    vocabulary_holds(first, "bytes of the file", at);
    file.p[at] ^= 4;
    CHECK_OK(lm_file_write_atomic(path, file.p, file.n));
    file.p[at] = before;
    vocabulary_holds(first, "a changed byte", at);
  }
  lm_buf_free(&file);
}

static void test_vocabulary(void) {
  trained first = vocabulary_train(LM_TOKENIZER_BPE, VOCAB);
  CHECK(first.on.documents == ALL + BAD && first.on.unusable == BAD);
  test_vocabulary_contents(&first);
  test_vocabulary_damage(&first);
  trained_free(&first);
  test_other_vocabulary(LM_TOKENIZER_BPE, MORE_VOCAB, VOCAB);
  test_other_vocabulary(LM_TOKENIZER_UNIGRAM, MORE_VOCAB, MORE_VOCAB);
}

int main(void) {
  dir = mkdtemp(in_memory);
  dir = dir ? dir : mkdtemp(on_disk);
  CHECK(dir);
  arena = lm_arena_create();
  bytes = lm_tokenizer_bytes_create();
  lines_write("a.jsonl", 0);
  lines_write("b.jsonl", LINES);
  CHECK_OK(data_use(&whole));
  test_tails();
  test_every_word("row");
  test_every_word("doc");
  test_vocabulary();
  files_remove(in_dir("cache/*"));
  CHECK(!rmdir(in_dir("cache")));
  files_remove(in_dir("*"));
  CHECK(!rmdir(dir));
  lm_tokenizer_destroy(bytes);
  lm_arena_destroy(arena);
  return 0;
}
