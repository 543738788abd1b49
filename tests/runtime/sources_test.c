// Sources of text and JSON lines, plain and packed; bad rows; long documents; the cache and its
// repair; mixes and stages; prefetching; vocabularies trained on sources.
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "runtime/data/feed/data.h"
#include "runtime/data/feed/mix.h"
#include "runtime/data/read/reader.h"
#include "runtime/data/rows/pack.h"
#include "runtime/data/rows/vocab.h"
#include "tests/runtime/check.h"
#include "tests/runtime/files.h"

enum {
  SEQ = 16
};
static char dir[] = "/tmp/lm-sources-XXXXXX";
static lm_arena *arena;
static lm_tokenizer *bytes, *bpe; // bpe: 256 bytes and the end of text
static char *in_dir(const char *name) {
  return lm_path_join(arena, dir, name);
}

static char *write_file(const char *name, const void *p, size_t n) {
  char *path = in_dir(name);
  CHECK_OK(lm_file_write_atomic(path, p, n));
  return path;
}
static char *write_text(const char *name, const char *text) {
  return write_file(name, text, strlen(text));
}

static char *write_packed(const char *name, const char *text, size_t n) {
  size_t cap = ZSTD_compressBound(n);
  char *packed = lm_alloc(cap);
  char *path = write_file(name, packed, ZSTD_compress(packed, cap, text, n, 1));
  lm_free(packed);
  return path;
}

static lm_data_options options(const lm_data_source *s, int n, const lm_tokenizer *t) {
  return (lm_data_options){.sources = s, .n_sources = n, .tokenizer = t, .seq = SEQ, .threads = 3};
}

typedef struct {
  int32_t tok[SEQ], pos[SEQ], seg[SEQ], next[SEQ];
  float w[SEQ];
} row;
static lm_batch batch_of(row *r) {
  return (lm_batch){{r->tok, r->pos, r->seg, r->next, r->w}};
}

// Compares all documents of part 0, in the order of the index, each in brackets; every document
// must fit in a row.
static void documents_are(const lm_data *d, const char *want) {
  lm_buf got = {0};
  row r;
  lm_batch b = batch_of(&r);
  for (int64_t q = 0; q < lm_data_part(d, 0).rows; q++) {
    CHECK_OK(lm_data_fill_part(d, 0, q, 1, &b));
    for (int i = 0; i < SEQ && r.seg[i] >= 0; i++) {
      if (r.pos[i] == 0)
        lm_buf_puts(&got, "[");
      lm_buf_add(&got, &(char){(char)r.tok[i]}, 1);
      if (r.w[i] == 0)
        lm_buf_puts(&got, "]");
    }
  }
  if (strcmp(got.p, want)) {
    fprintf(stderr, "documents %s, not %s\n", got.p, want);
    exit(1);
  }
  lm_buf_free(&got);
}

static lm_data *open_data(const lm_data_options *o) {
  lm_data *d;
  CHECK_OK(lm_data_open(o, &d));
  return d;
}

// ---- reading

static void test_jsonl(void) {
  const char text[] = "\xef\xbb\xbf{\"text\": \"one\", \"n\": "
                      "12345678901234567890}\n\n{\"text\":\"\"}\r\n{\"a\":[{}],\"text\":"
                      "\"\\u00e9\\n\"}\n  {\"text\": \"last\"}";
  lm_data_source s = {LM_SOURCE_JSONL, "j", write_text("a.jsonl", text)};
  lm_data_options o = options(&s, 1, bytes);
  lm_data *d = open_data(&o);
  lm_data_info info = lm_data_info_of(d);
  CHECK(info.read == 3 && info.bad == 0 && !*info.bad_list);
  documents_are(d, "[one][\xc3\xa9\n][last]");
  lm_data_close(d);
  s.path = write_packed("a.jsonl.zst", text, strlen(text));
  documents_are(d = open_data(&o), "[one][\xc3\xa9\n][last]");
  lm_data_close(d);
  s.path = write_text("f.jsonl", "{\"body\": \"x\"}");
  s.field = "body";
  documents_are(d = open_data(&o), "[x]");
  lm_data_close(d);
}

static void test_bad_rows(void) {
  lm_buf text = {0};
  static const struct {
    const char *line, *why;
  } bad[] = {
      {"{\"text\": ", "bad.jsonl:2: not JSON: "},
      {"{\"other\": 1}", "bad.jsonl:4: no field \"text\""},
      {"{\"text\": 3}", "bad.jsonl:6: field \"text\" is not a string"},
      {"{\"text\": \"a\xff\"}", "bad.jsonl:8: not UTF-8 (byte 0xff)"},
      {"{\"text\": \"a\\u0000\"}", "bad.jsonl:10: contains the character NUL (U+0000)"},
      {"[1]", "bad.jsonl:12: not a JSON object"},
      {"{\"text\": \"\\ud800\"}", "bad.jsonl:14: not JSON: "},
      {"{\"text\": null}", "bad.jsonl:16: field \"text\" is not a string"},
      {"{\"text\": \"one\", \"text\": \"two\"}", "bad.jsonl:18: not JSON: duplicate object key"},
      {"{\"text\": \"one\"}\r{\"text\": \"two\"}", "bad.jsonl:20: not JSON: end of file expected"}};
  for (size_t i = 0; i < LM_COUNT(bad); i++)
    lm_buf_printf(&text, "{\"text\": \"good\"}\n%s\n", bad[i].line);
  lm_data_source s = {LM_SOURCE_JSONL, "j", write_file("bad.jsonl", text.p, text.n)};
  lm_data_options o = options(&s, 1, bytes);
  lm_data *d;
  o.bad = 0.4;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER,
              "10 of 20 documents cannot be used, more than the 40% that `bad` allows\n");
  for (size_t i = 0; i < LM_COUNT(bad); i++)
    CHECK_FAILS(lm_data_open(&o, &d), LM_USER, bad[i].why);
  o.bad = 0.5;
  d = open_data(&o);
  lm_data_info info = lm_data_info_of(d);
  CHECK(info.read == 20 && info.bad == 10 &&
        strstr(info.bad_list, "bad.jsonl:10: contains the character NUL (U+0000)"));
  documents_are(d, "[good][good][good][good][good][good][good][good][good][good]");
  lm_data_close(d);
  lm_buf_free(&text);
}

static void test_long_line(void) { // 100 MB, between two good ones
  size_t n = 100 << 20;
  char *text = lm_alloc(n + 100);
  char *p = text + sprintf(text, "{\"text\": \"one\"}\n{\"text\": \"");
  memset(p, 'x', n);
  sprintf(p + n, "\"}\n{\"text\": \"two\"}\n");
  lm_data_source s = {LM_SOURCE_JSONL, "j", write_packed("long.jsonl.zst", text, strlen(text))};
  lm_data_options o = options(&s, 1, bytes);
  o.bad = 0.5;
  lm_data *d = open_data(&o);
  CHECK(!strcmp(strrchr(lm_data_info_of(d).bad_list, '/'),
                "/long.jsonl.zst:2: a line of more than 32 MiB\n"));
  documents_are(d, "[one][two]");
  lm_data_close(d);
  lm_free(text);
}

static void test_text(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "t",
                      write_text("a.txt", "one\n--\n\n--\n--\ntwo--\nthree\n--\n"), "\n--\n"};
  lm_data_options o = options(&s, 1, bytes);
  lm_data *d = open_data(&o);
  documents_are(d, "[one][--\ntwo--\nthree]");
  lm_data_close(d);
  write_text("c.t", "c");
  write_text("b.t", "\xff");
  s = (lm_data_source){LM_SOURCE_TEXT, "t", in_dir("?.t")};
  documents_are(d = open_data(&o), "[\xff][c]"); // bytes are taken unchanged
  lm_data_close(d);
  const char *marked = write_text("mark.m", "\xef\xbb\xbfone \xef\xbb\xbf|two");
  s = (lm_data_source){LM_SOURCE_TEXT, "t", marked, "|"};
  documents_are(d = open_data(&o),
                "[one \xef\xbb\xbf][two]"); // a mark alone at the start is no text
  lm_data_close(d);
  s.path = write_text("utf16.m", "\xff\xfeo\x01");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "utf16.m is UTF-16 text, expected UTF-8");
  s = (lm_data_source){LM_SOURCE_TEXT, "t", in_dir("?.t")};
  o.tokenizer = bpe;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "b.t:1: not UTF-8 (byte 0xff)");
  s.split = "\n\n";
  s.path = write_text("lines.txt", "good\n\ngood\nso f\xc3\xa9r\nbad: \xc3\n\ngood");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "1 of 3 documents cannot be used");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "lines.txt:5: not UTF-8 (byte 0xc3)");
}

// A packed file of several frames is read through; bytes behind them that are not a frame are
// reported.
static void test_frames(void) {
  lm_buf file = {0};
  CHECK_OK(lm_file_read(write_packed("1.zst", "{\"text\": \"one\"}\n{\"te", 20), 1000, &file));
  CHECK_OK(lm_file_read(write_packed("2.zst", "xt\": \"two\"}\n", 12), 1000, &file));
  lm_data_source s = {LM_SOURCE_JSONL, "j", write_file("frames.zst", file.p, file.n)};
  lm_data_options o = options(&s, 1, bytes);
  lm_data *d = open_data(&o);
  documents_are(d, "[one][two]");
  lm_data_close(d);
  static const char *const behind[] = {"garbage", "e"}; // also less than the head of a frame
  for (size_t i = 0; i < LM_COUNT(behind); i++) {
    size_t whole = file.n;
    lm_buf_puts(&file, behind[i]);
    s.path = write_file("rest.zst", file.p, file.n);
    file.n = whole;
    CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "rest.zst: ");
  }
  lm_buf_free(&file);
}

// A few hundred bytes that decompress to 3 MB are read only up to the requested size.
static void test_most(void) {
  const lm_text_span *spans;
  lm_file_list files;
  size_t n, all = 3000000, got = 0;
  char *text = memset(lm_alloc(all), 'a', all);
  lm_data_source s = {LM_SOURCE_TEXT, "t", write_packed("most.zst", text, all)};
  CHECK_OK(lm_file_list_make(&s, 1, &files));
  lm_doc_reader *r = lm_doc_reader_create(&files, 100000);
  CHECK(files.bytes < 10000);
  do {
    CHECK_OK(lm_doc_reader_next(r, &spans, &n));
    for (size_t i = 0; i < n; i++)
      got += spans[i].n;
  } while (n);
  CHECK(got >= 100000 && got <= 100001);
  lm_doc_reader_destroy(r);
  lm_file_list_free(&files);
  lm_free(text);
}

static void file_shorten(void *path, uint64_t done, uint64_t total) {
  CHECK(!truncate(path, (off_t)(total / 2)) || done > total / 2);
}

// A file that shrinks while it is read is an error and leaves no cache file.
static void test_changed_while_read(void) {
  size_t n = 20 << 20;
  char *text = lm_alloc(n);
  memset(text, 'x', n);
  for (size_t i = 99; i < n; i += 100)
    text[i] = '\n';
  lm_data_source s = {LM_SOURCE_TEXT, "t", write_file("shrinks.txt", text, n), "\n"};
  lm_data_options o = options(&s, 1, bytes);
  o.progress = file_shorten;
  o.user = (void *)s.path;
  o.cache = in_dir("cache");
  lm_data *d;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "source t: ");
  glob_t found;
  CHECK(glob(in_dir("cache/*"), 0, NULL, &found) == GLOB_NOMATCH);
  CHECK(!rmdir(in_dir("cache")));
  lm_free(text);
}

static void test_wrong_files(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "s", dir};
  lm_data_options o = options(&s, 1, bytes);
  lm_data *d;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "is a folder: name its files");
  s.path = write_text("x.gz", "x");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "the compressed file is truncated");
  s.path = write_text("x.zst", "no zstd");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "x.zst: cannot be decompressed");
  lm_buf file = {0};
  char *whole = write_packed("y.zst", "some text that is packed, and then cut short", 44);
  CHECK_OK(lm_file_read(whole, 1000, &file));
  s.path = write_file("y.zst", file.p, file.n - 5);
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "is truncated");
  lm_buf_free(&file);
  s.path = write_text("none.txt", "");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "contain no text");
}

// One document of 3 MB, read in spans by several threads: its tokens equal the tokens of the whole
// text.
static void test_long_document(void) {
  lm_buf text = {0};
  for (int i = 0; text.n < 3 << 20; i++)
    lm_buf_printf(&text, "%s%d word's %x-\xe6\x97\xa5 ", i % 11 ? "" : "line.\n", i * 7919 % 1000,
                  i);
  lm_data_source s = {LM_SOURCE_TEXT, "t", write_file("whole.txt", text.p, text.n)};
  lm_data_options o = options(&s, 1, bpe);
  o.seq = 8192;
  lm_data *d = open_data(&o);
  lm_tokens want = {0};
  CHECK_OK(lm_tokenizer_encode(bpe, text.p, text.n, &want));
  lm_tokens_add(&want, bpe->eos);
  CHECK(lm_data_part(d, 0).docs == 1 && lm_data_part(d, 0).tokens == (int64_t)want.n);
  CHECK(lm_data_predicted_bytes(d, 0) ==
        (int64_t)text.n - 1); // all but the first byte; the end of text is none
  int32_t *all = lm_calloc(4 * 8192, 4);
  float *w = lm_calloc(8192, 4);
  lm_batch b = {{all, all + 8192, all + 2 * 8192, all + 3 * 8192, w}};
  for (int64_t at = 0, q = 0; q < lm_data_part(d, 0).rows; q++) {
    CHECK_OK(lm_data_fill_part(d, 0, q, 1, &b));
    for (int i = 0; i < 8192 && b.seg[i] >= 0; i++)
      CHECK(b.tok[i] == want.ids[at++]);
  }
  lm_free(all);
  lm_free(w);
  lm_tokens_free(&want);
  lm_buf_free(&text);
  lm_data_close(d);
}

// ---- the cache

static uint64_t data_hash(const lm_data *d) { // of an epoch
  uint64_t h = 0;
  row r;
  lm_batch b = batch_of(&r);
  for (int64_t q = 0; q < lm_data_part(d, 0).rows; q++) {
    CHECK_OK(lm_data_fill(d, q, 0, 1, 1, &b));
    h = lm_hash(&r, sizeof r, h);
  }
  return h;
}

static uint64_t cached_hash(const lm_data_options *o, bool from_cache) {
  lm_data *d = open_data(o);
  CHECK(lm_data_info_of(d).from_cache == from_cache);
  uint64_t h = data_hash(d);
  lm_data_close(d);
  return h;
}

static void file_damage(const char *path, bool truncate_it) {
  int fd = open(path, O_RDWR);
  off_t n = lseek(fd, 0, SEEK_END);
  char c;
  CHECK(fd >= 0 && pread(fd, &c, 1, n / 3) == 1);
  c ^= 1;
  CHECK(truncate_it ? !ftruncate(fd, n / 2) : pwrite(fd, &c, 1, n / 3) == 1);
  close(fd);
}

// Overwrites the ends of rows and the pieces of a row index while it is open: hashes were compared
// already, so that the values themselves must be checked.
static void test_rows_changed_in_use(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "t", in_dir("changing.txt"), "\n"};
  write_file("changing.txt", "abc\nde\nf\n", 9);
  for (int fill = 0; fill < 256; fill += 51) {
    glob_t found;
    lm_data_options o = options(&s, 1, bytes);
    row r;
    lm_batch b = batch_of(&r);
    o.cache = in_dir("changing");
    lm_data *d = open_data(&o);
    CHECK(!glob(lm_path_join(arena, o.cache, "*.row"), 0, NULL, &found) && found.gl_pathc == 1);
    int fd = open(*found.gl_pathv, O_WRONLY);
    char wrong[8];
    memset(wrong, fill, sizeof wrong);
    for (int at = fill ? 0 : 8; at < 8 + (int)sizeof(lm_piece); at += 8)
      CHECK(pwrite(fd, wrong, sizeof wrong, at) == sizeof wrong);
    CHECK_FAILS(lm_data_fill(d, 0, 0, 1, 1, &b), LM_ENV, "changed while it was in use");
    close(fd);
    globfree(&found);
    lm_data_close(d);
    files_remove(in_dir("changing/*"));
  }
  CHECK(!rmdir(in_dir("changing")));
}

static off_t tokens_size(lm_tokenizer *t, int32_t vocab) {
  glob_t found;
  struct stat st;
  lm_data_source s = {LM_SOURCE_TEXT, "t", in_dir("wide.txt"), "\n"};
  lm_data_options o = options(&s, 1, t);
  int32_t was = t->vocab;
  t->vocab = vocab;
  o.cache = in_dir("cache");
  for (int again = 0; again < 2; again++) {
    lm_data *d = open_data(&o);
    documents_are(d, "[abcdefg][h]");
    lm_data_close(d);
  }
  t->vocab = was;
  CHECK(!glob(lm_path_join(arena, o.cache, "*.tok"), 0, NULL, &found) && found.gl_pathc == 1 &&
        !stat(*found.gl_pathv, &st));
  globfree(&found);
  files_remove(in_dir("cache/*"));
  rmdir(o.cache);
  return st.st_size;
}

// An id takes the bytes that the vocabulary needs: one, two or four.
static void test_widths(void) {
  write_text("wide.txt", "abcdefg\nh\n");
  off_t one = tokens_size(bytes, 256);
  off_t two = tokens_size(bytes, 257);
  off_t most = tokens_size(bytes, 65536);
  off_t four = tokens_size(bytes, 65537);
  CHECK(two - one == 8 && most == two && four - two == 16);
}

static void test_cache(void) {
  lm_buf text = {0};
  for (int i = 0; i < 3000; i++)
    lm_buf_printf(&text, "document %d%.*s\n\n", i, i % 50,
                  "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
  lm_data_source s = {LM_SOURCE_TEXT, "t", write_file("docs.txt", text.p, text.n), "\n\n"};
  lm_data_holdout h[] = {{"dev", LM_HOLDOUT_SAMPLE, 0, 20}, {"end", LM_HOLDOUT_TAIL, 0.1, 0}};
  lm_data_options o = options(&s, 1, bpe);
  o.holdouts = h;
  o.n_holdouts = 2;
  uint64_t want = cached_hash(&o, false);
  o.cache = in_dir("cache/deep");
  CHECK(cached_hash(&o, false) == want && cached_hash(&o, true) == want);
  static const char *const endings[] = {"cache/deep/*.tok", "cache/deep/*.doc", "cache/deep/*.row"};
  for (int i = 0; i < 6; i++) {
    glob_t found;
    CHECK(!glob(in_dir(endings[i / 2]), 0, NULL, &found) && found.gl_pathc == 1);
    file_damage(found.gl_pathv[0], i % 2);
    globfree(&found);
    CHECK(cached_hash(&o, i / 2 == 2) == want && cached_hash(&o, true) == want);
  }
  o.threads = 1; // the files do not depend on it
  uint64_t old[3], made[3];
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < 3; i++) {
      glob_t found;
      lm_buf file = {0};
      if (round && !i) {
        files_remove(in_dir("cache/deep/*"));
        CHECK(cached_hash(&o, false) == want);
      }
      CHECK(!glob(in_dir(endings[i]), 0, NULL, &found));
      CHECK_OK(lm_file_read(found.gl_pathv[0], SIZE_MAX, &file));
      (round ? made : old)[i] = lm_hash(file.p, file.n, 0);
      lm_buf_free(&file);
      globfree(&found);
    }
  CHECK(!memcmp(old, made, sizeof old));
  o.tokenizer = bytes; // another tokenizer, another corpus
  CHECK(cached_hash(&o, false) != want);
  o.tokenizer = bpe;
  lm_buf_puts(&text, "more");
  write_file("docs.txt", text.p, text.n);
  CHECK(cached_hash(&o, false) != want);
  o.cache = "/proc/nowhere";
  lm_data *d;
  CHECK_FAILS(lm_data_open(&o, &d), LM_ENV, "/proc/nowhere");
  lm_buf_free(&text);
  files_remove(in_dir("cache/deep/*"));
  rmdir(in_dir("cache/deep"));
  rmdir(in_dir("cache"));
}

// ---- mixes

// Source s has documents of one row, all of the letter 'a' + s, after a number.
static void mix_sources(lm_data_source *s, char names[][16], int n, const int *rows) {
  for (int i = 0; i < n; i++) {
    lm_buf text = {0};
    for (int k = 0; k < rows[i]; k++)
      lm_buf_printf(&text, "%04d%.*s|", k, SEQ - 4,
                    i == 0   ? "aaaaaaaaaaaaaaaa"
                    : i == 1 ? "bbbbbbbbbbbbbbbb"
                             : "cccccccccccccccc");
    snprintf(names[i], 16, "mix%d", i);
    s[i] = (lm_data_source){LM_SOURCE_TEXT, names[i], write_file(names[i], text.p, text.n), "|"};
    lm_buf_free(&text);
  }
}

static void test_mix(void) {
  enum {
    ROWS_A = 100,
    ROWS_B = 400,
    ROWS_C = 7,
    STEP = 8,
    CHANGE = 1000
  };
  int counts[] = {ROWS_A, ROWS_B, ROWS_C};
  char names[3][16];
  lm_data_source s[3];
  mix_sources(s, names, 3, counts);
  lm_data_stage stages[] = {{0, (double[]){0.7, 0.3, 0}}, {CHANGE, (double[]){1, 1, 2}}};
  lm_data_options o = options(s, 3, bytes);
  o.stages = stages;
  o.n_stages = 2;
  o.seed = 3;
  lm_data *d = open_data(&o);
  o.prefetch = true;
  lm_data *ahead = open_data(&o);
  lm_data *parts = open_data(&o);
  row r[STEP], r2[STEP];
  int seen[3] = {0}, at_change[3] = {0}, used[3][ROWS_B] = {0};
  for (int step = 0; step < 2 * CHANGE; step++) {
    if (step == CHANGE)
      memcpy(at_change, seen, sizeof seen);
    for (int q = 0; q < STEP; q++) {
      lm_batch b = batch_of(&r[q]);
      lm_batch c = batch_of(&r2[q]);
      CHECK_OK(lm_data_fill(d, step, q, STEP, 1, &b));
      CHECK_OK(lm_data_fill(ahead, step, q, STEP, 1, &c));
      CHECK(!memcmp(&r[q], &r2[q], sizeof r[q]));
      CHECK_OK(lm_data_fill_rows(parts, step, 0, 1, STEP, q, 1, &c)); // of one micro-batch
      CHECK(!memcmp(&r[q], &r2[q], sizeof r[q]));
      int source = r[q].tok[SEQ - 1] - 'a', number = 0;
      for (int i = 0; i < 4; i++)
        number = 10 * number + r[q].tok[i] - '0';
      CHECK(source >= 0 && source < 3 && number < counts[source]);
      // epoch after epoch of each source, whatever comes between and across stages
      CHECK(used[source][number]++ == seen[source]++ / counts[source]);
    }
  }
  // within a row or two of the shares, at the end of each run of whole blocks
  CHECK(abs(at_change[0] - (int)(0.7 * CHANGE * STEP)) <= 40 && at_change[2] == 0);
  CHECK(abs(seen[2] - CHANGE * STEP / 2) <= 60 &&
        abs(seen[1] - at_change[1] - CHANGE * STEP / 4) <= 60);
  row again; // any step alone, in any order
  lm_batch b = batch_of(&again);
  lm_data *fresh = open_data(&o);
  CHECK_OK(lm_data_fill(fresh, 2 * CHANGE - 1, STEP - 1, STEP, 1, &b));
  CHECK(!memcmp(&again, &r[STEP - 1], sizeof again));
  CHECK_OK(lm_data_fill(d, 5, 0, STEP, 1, &b));
  row first = again;
  CHECK_OK(lm_data_fill(fresh, 5, 0, STEP, 1, &b));
  CHECK(!memcmp(&again, &first, sizeof first));
  lm_data_close(fresh);
  lm_data_close(ahead);
  lm_data_close(parts);
  lm_data_close(d);
}

static void test_mix_shares(void) { // exact in whole blocks
  lm_data_source s[3] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
  lm_data_stage stage = {0, (double[]){0.001, 0.799, 0.2}};
  lm_data_options o = {.sources = s, .n_sources = 3, .stages = &stage, .n_stages = 1};
  lm_mix m;
  static lm_mix_cursor cursor;
  CHECK_OK(lm_mix_create(&o, &m));
  uint64_t count[3] = {0}, index;
  for (uint64_t q = 0; q < 100 * LM_MIX_BLOCK; q++) {
    int source;
    lm_mix_find(&m, 0, q, 8, &cursor, &source, &index);
    CHECK(index == count[source]++);
  }
  CHECK(count[0] == 102 && count[2] == 20480 && count[1] == 81818);
  lm_mix_free(&m);
  lm_data_stage bad[] = {{0, (double[]){0, 0, 0}}, {1, (double[]){1, -1, 1}}};
  o.stages = &bad[0];
  CHECK_FAILS(lm_mix_create(&o, &m), LM_USER, "weights sum to 0");
  bad[1].first_step = 0;
  o.stages = &bad[1];
  CHECK_FAILS(lm_mix_create(&o, &m), LM_USER, "-1 is not a valid weight of source b");
}

static void test_mix_holdout(void) {
  int counts[] = {100, 50};
  char names[2][16];
  lm_data_source s[2];
  mix_sources(s, names, 2, counts);
  lm_data_holdout h[] = {{"end", LM_HOLDOUT_TAIL, 0.1, 0}, {"dev", LM_HOLDOUT_SAMPLE, 0, 10}};
  lm_data_stage stage = {0, (double[]){1, 1}};
  lm_data_options o = options(s, 2, bytes);
  o.holdouts = h;
  o.n_holdouts = 2;
  o.stages = &stage;
  o.n_stages = 1;
  lm_data *d = open_data(&o);
  lm_data_part_info train = lm_data_part(d, 0);
  lm_data_part_info end = lm_data_part(d, 1);
  lm_data_part_info dev = lm_data_part(d, 2);
  CHECK(dev.docs == 10 && train.docs + end.docs + dev.docs == 150 && end.rows >= 13 &&
        end.rows <= 15);
  row r;
  lm_batch b = batch_of(&r);
  int letters[2] = {0};
  for (int64_t q = 0; q < end.rows; q++) { // the ends of both
    CHECK_OK(lm_data_fill_part(d, 1, q, 1, &b));
    letters[r.tok[SEQ - 1] - 'a']++;
  }
  CHECK(letters[0] > letters[1] && letters[1] >= 4);
  lm_data_close(d);
  s[1].path = write_text("empty", "");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "source mix1 has a weight in the mix but no row");
}

// ---- a vocabulary of the sources

static void test_vocabulary(void) {
  lm_buf text = {0}, first = {0}, second = {0}, third = {0};
  for (int i = 0; i < 2000; i++)
    lm_buf_printf(&text, "{\"text\": \"the word number %d and the end\"}\n", i % 100);
  lm_data_source s[] = {{LM_SOURCE_JSONL, "j", write_file("v.jsonl", text.p, text.n)},
                        {LM_SOURCE_TEXT, "t", write_text("v.txt", "the the the \xff text")}};
  lm_data_options o = options(s, 2, NULL);
  CHECK_OK(lm_data_tokenizer_train(&o, LM_TOKENIZER_BPE, 300, &first, NULL));
  o.threads = 1;
  o.cache = in_dir("cache");
  CHECK_OK(lm_data_tokenizer_train(&o, LM_TOKENIZER_BPE, 300, &second, NULL));
  CHECK_OK(lm_data_tokenizer_train(&o, LM_TOKENIZER_BPE, 300, &third, NULL));
  CHECK(first.n == second.n && !memcmp(first.p, second.p, first.n) && third.n == first.n &&
        !memcmp(first.p, third.p, first.n));
  lm_tokenizer *t;
  CHECK_OK(lm_tokenizer_parse(first.p, first.n, "trained", &t));
  lm_tokens ids = {0};
  CHECK_OK(lm_tokenizer_encode(t, " the", 4, &ids));
  CHECK(t->vocab == 300 && t->eos == 0 && ids.n == 1);
  o.tokenizer = t;
  lm_data *d =
      open_data(&(lm_data_options){.sources = s, .n_sources = 1, .tokenizer = t, .seq = SEQ});
  CHECK(lm_data_part(d, 0).docs == 2000);
  lm_data_close(d);
  CHECK_FAILS(lm_data_tokenizer_train(&o, LM_TOKENIZER_BPE, 256, &first, NULL), LM_USER,
              "the least is 257");
  lm_tokens_free(&ids);
  lm_tokenizer_destroy(t);
  lm_buf_free(&text);
  lm_buf_free(&first);
  lm_buf_free(&second);
  lm_buf_free(&third);
  files_remove(in_dir("cache/*"));
  rmdir(in_dir("cache"));
}

static lm_tokenizer *bpe_create(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "none", write_text("none.txt", "")};
  lm_data_options o = options(&s, 1, bytes);
  lm_buf json = {0};
  lm_tokenizer *t;
  CHECK_OK(lm_data_tokenizer_train(&o, LM_TOKENIZER_BPE, 257, &json, NULL));
  CHECK_OK(lm_tokenizer_parse(json.p, json.n, "trained", &t));
  lm_buf_free(&json);
  return t;
}

// `**` is any number of folders, none of them hidden.
static void test_any_folders(void) {
  static const char *const folders[] = {"a", "a/b", ".c"};
  for (size_t i = 0; i < LM_COUNT(folders); i++)
    CHECK(!mkdir(in_dir(folders[i]), 0700));
  char *paths[] = {write_text("a/b/deep.txt", "x"), write_text("deep.txt", "x"),
                   write_text(".c/deep.txt", "x")};
  static const struct {
    const char *pattern;
    uint32_t n;
  } tries[] = {{"**/deep.txt", 2}, {"a/**", 1}, {"**/b/**/deep.txt", 1}, {"a/**/**/*.txt", 1}};
  for (size_t i = 0; i < LM_COUNT(tries); i++) {
    lm_data_source s = {LM_SOURCE_TEXT, "t", in_dir(tries[i].pattern), "\n"};
    lm_file_list l;
    CHECK_OK(lm_file_list_make(&s, 1, &l));
    CHECK(l.n == tries[i].n && !strcmp(l.files[0].path, paths[0]));
    CHECK(l.n < 2 || !strcmp(l.files[1].path, paths[1]));
    lm_file_list_free(&l);
  }
  for (size_t i = 0; i < LM_COUNT(paths); i++)
    CHECK(!unlink(paths[i]));
  for (size_t i = LM_COUNT(folders); i-- > 0;)
    CHECK(!rmdir(in_dir(folders[i])));
}

int main(void) {
  CHECK(mkdtemp(dir));
  arena = lm_arena_create();
  bytes = lm_tokenizer_bytes_create();
  bpe = bpe_create();
  test_jsonl();
  test_bad_rows();
  test_long_line();
  test_text();
  test_frames();
  test_any_folders();
  test_most();
  test_changed_while_read();
  test_rows_changed_in_use();
  test_wrong_files();
  test_long_document();
  test_widths();
  test_cache();
  test_mix();
  test_mix_shares();
  test_mix_holdout();
  test_vocabulary();
  files_remove(in_dir("*"));
  CHECK(!rmdir(dir));
  lm_tokenizer_destroy(bytes);
  lm_tokenizer_destroy(bpe);
  lm_arena_destroy(arena);
  return 0;
}
