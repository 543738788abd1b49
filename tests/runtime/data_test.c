// Permutations, packing, the order of rows, holdouts, replayed batches.
#include <unistd.h>

#include "runtime/data/feed/data.h"
#include "runtime/data/feed/order.h"
#include "runtime/weights/safetensors.h"
#include "tests/runtime/check.h"

static char dir[] = "/tmp/lm-data-XXXXXX";
static lm_arena *arena;
static lm_tokenizer *bytes;
static char *in_dir(const char *name) {
  return lm_path_join(arena, dir, name);
}

static void test_permute(void) {
  for (uint64_t n = 1; n < 300; n += 13) {
    char seen[300] = {0};
    for (uint64_t i = 0; i < n; i++) {
      uint64_t j = lm_permute(lm_philox_key(3, n), n, i);
      CHECK(j < n && !seen[j]);
      seen[j] = 1;
    }
  }
  uint64_t big = UINT64_C(1) << 63;
  CHECK(lm_permute(lm_philox_key(0, 0), big, big - 1) < big);
}

// Each row occurs once; only a window of them is in use at a time; another epoch has another order.
static void test_order(void) {
  enum {
    N = 1003,
    WINDOW = 100
  };
  char seen[N] = {0};
  int same = 0;
  for (uint64_t i = 0; i < N; i++) {
    uint64_t row = lm_row_order(5, 1, N, WINDOW, i);
    uint64_t from = lm_row_order(5, 1, N, WINDOW, i - i % WINDOW);
    CHECK(row < N && !seen[row]);
    seen[row] = 1;
    uint64_t apart = (row + N - from) % N;
    CHECK(i >= 9 * WINDOW || apart < WINDOW ||
          apart > N - WINDOW); // of the rows that begin the window; the last window is longer
    same += row == lm_row_order(5, 2, N, WINDOW, i);
    CHECK(lm_row_order(5, 1, N, N, i) == lm_permute(lm_philox_key(5, 1), N, i));
    CHECK(lm_row_order(5, 1, N, 0, i) == lm_permute(lm_philox_key(5, 1), N, i));
  }
  CHECK(same < N / 20);
}

enum {
  SEQ = 16,
  DOCS = 200
};
static int doc_len[DOCS];

// Document i is the two base-100 digits of i, each plus 128, then bytes 16, 17, 18, …, so that a
// token identifies its position, and the first two tokens its document.
static void docs_write(void) {
  lm_buf b = {0};
  for (int i = 0; i < DOCS; i++) {
    doc_len[i] = 2 + (i * 7919) % 61;
    for (int k = 0; k < doc_len[i]; k++)
      lm_buf_add(&b, &(char){(char)(k < 2 ? 128 + (k ? i % 100 : i / 100) : 16 + k - 2)}, 1);
    lm_buf_puts(&b, "\n\n");
  }
  CHECK_OK(lm_file_write_atomic(in_dir("docs.txt"), b.p, b.n));
  lm_buf_free(&b);
}

typedef struct {
  int32_t tok[SEQ], pos[SEQ], seg[SEQ], next[SEQ];
  float w[SEQ];
} row;
static lm_batch batch_of(row *r) {
  return (lm_batch){{r->tok, r->pos, r->seg, r->next, r->w}};
}

// Checks the consistency of a row; counts its tokens and the ends of documents.
static void row_check(const row *r, int *tokens, int *ends) {
  for (int i = 0; i < SEQ; i++) {
    if (r->seg[i] < 0) {
      CHECK(r->tok[i] == 0 && r->pos[i] == 0 && r->next[i] == 0 && r->w[i] == 0 && r->seg[i] == -1);
      CHECK(i + 1 == SEQ || r->seg[i + 1] == -1);
      continue;
    }
    ++*tokens;
    bool same = i && r->seg[i] == r->seg[i - 1];
    CHECK(r->pos[i] == (same ? r->pos[i - 1] + 1 : 0));
    CHECK(same || r->seg[i] == (i ? r->seg[i - 1] + 1 : 0));
    CHECK(r->w[i] == 1 || (r->w[i] == 0 && r->next[i] == 0));
    if (r->w[i] == 0)
      ++*ends;
    bool more = i + 1 < SEQ && r->seg[i + 1] == r->seg[i];
    if (more)
      CHECK(r->w[i] == 1 && r->next[i] == r->tok[i + 1]);
  }
}

static lm_data *open_shuffled(const lm_data_holdout *h, int n, uint64_t seed, int64_t shuffle) {
  lm_data_source s = {LM_SOURCE_TEXT, "docs", in_dir("d*.txt"), "\n\n"};
  lm_data_options o = {&s, 1, h, n, bytes, SEQ, seed, shuffle};
  lm_data *d;
  CHECK_OK(lm_data_open(&o, &d));
  return d;
}

static lm_data *open_docs(const lm_data_holdout *h, int n, uint64_t seed) {
  return open_shuffled(h, n, seed, 0);
}

static void test_rows(int64_t shuffle) {
  lm_data *d = open_shuffled(NULL, 0, 5, shuffle);
  lm_data_part_info info = lm_data_part(d, 0);
  int all = 0, tokens = 0, ends = 0;
  for (int i = 0; i < DOCS; i++)
    all += doc_len[i];
  CHECK(info.docs == DOCS && info.tokens == all);
  CHECK(info.rows * SEQ < all + all / 20); // little is padding
  CHECK(lm_data_predicted_bytes(d, 0) == all - DOCS);
  row r, again;
  lm_batch b = batch_of(&r);
  lm_batch c = batch_of(&again);
  int count[256] = {0}, want[256] = {0};
  for (int64_t q = 0; q < info.rows; q++) { // one epoch, a row a step
    CHECK_OK(lm_data_fill(d, q, 0, 1, 1, &b));
    row_check(&r, &tokens, &ends);
    for (int i = 0; i < SEQ; i++)
      count[r.tok[i]] += r.seg[i] >= 0;
    CHECK_OK(lm_data_fill(d, q / 3, q % 3, 3, 1, &c)); // the same sequence cut into steps of three
    CHECK(!memcmp(&r, &again, sizeof r));
  }
  CHECK(tokens == all && ends == DOCS); // every token exactly once, every document ends once
  for (int i = 0; i < DOCS; i++)
    for (int k = 0; k < doc_len[i]; k++)
      want[k < 2 ? 128 + (k ? i % 100 : i / 100) : 16 + k - 2]++;
  CHECK(!memcmp(count, want, sizeof count));
  int same = 0;
  for (int64_t q = 0; q < info.rows; q++) { // the next epoch has another order
    CHECK_OK(lm_data_fill(d, q, 0, 1, 1, &b));
    CHECK_OK(lm_data_fill(d, q + info.rows, 0, 1, 1, &c));
    same += !memcmp(&r, &again, sizeof r);
  }
  CHECK(same < info.rows / 4);
  lm_data_close(d);
}

static void test_windows(void) { // one long document: windows in order, the next token across cuts
  lm_buf text = {0};
  for (int i = 0; i < 3 * SEQ + 5; i++)
    lm_buf_printf(&text, "%c", 'A' + i % 50);
  CHECK_OK(lm_file_write_atomic(in_dir("long.txt"), text.p, text.n));
  lm_data_source s = {LM_SOURCE_TEXT, "long", in_dir("long.txt"), NULL};
  lm_data_options o = {&s, 1, NULL, 0, bytes, SEQ, 0};
  lm_data *d;
  CHECK_OK(lm_data_open(&o, &d));
  CHECK(lm_data_part(d, 0).rows == 4);
  row r;
  lm_batch b = batch_of(&r);
  for (int q = 0; q < 4; q++) {
    CHECK_OK(lm_data_fill_part(d, 0, q, 1, &b));
    for (int i = 0; i < SEQ && q * SEQ + i < (int)text.n; i++) {
      bool last = q * SEQ + i + 1 == (int)text.n;
      CHECK(r.tok[i] == text.p[q * SEQ + i] && r.pos[i] == i && r.w[i] == !last);
      CHECK(r.next[i] == (last ? 0 : text.p[q * SEQ + i + 1]));
    }
  }
  CHECK_OK(lm_data_fill_part(d, 0, 4, 1, &b));
  for (int i = 0; i < SEQ; i++)
    CHECK(r.seg[i] == -1);
  lm_buf_free(&text);
  lm_data_close(d);
}

static void test_holdout(void) {
  lm_data_holdout h[] = {{"dev", LM_HOLDOUT_SAMPLE, 0, 20}, {"end", LM_HOLDOUT_TAIL, 0.1, 0}};
  lm_data *whole = open_docs(NULL, 0, 1);
  lm_data *d = open_docs(h, 2, 1);
  lm_data *other = open_docs(h, 2, 2);
  lm_data_part_info all = lm_data_part(whole, 0);
  lm_data_part_info train = lm_data_part(d, 0);
  lm_data_part_info dev = lm_data_part(d, 1);
  lm_data_part_info end = lm_data_part(d, 2);
  CHECK(dev.docs == 20 && train.tokens + dev.tokens + end.tokens == all.tokens &&
        train.docs + dev.docs + end.docs == DOCS);
  CHECK(end.rows >= (end.rows + train.rows) / 10 && lm_data_part_find(d, "end") == 2 &&
        lm_data_part_find(d, "x") == -1);
  row r, s;
  lm_batch b = batch_of(&r);
  lm_batch c = batch_of(&s);
  for (int64_t q = 0; q < dev.rows; q++) { // the held-out rows do not depend on the seed
    CHECK_OK(lm_data_fill_part(d, 1, q, 1, &b));
    CHECK_OK(lm_data_fill_part(other, 1, q, 1, &c));
    CHECK(!memcmp(&r, &s, sizeof r));
  }
  lm_data_close(whole);
  lm_data_close(d);
  lm_data_close(other);
  lm_data_source source = {LM_SOURCE_TEXT, "docs", in_dir("d*.txt"), "\n\n"};
  h[0].docs = DOCS;
  lm_data_options o = {&source, 1, h, 1, bytes, SEQ, 0};
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "leaves none of the 200");
  source.path = in_dir("none*");
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "source docs: no file matches");
}

static void test_replay(void) {
  int32_t x[24];
  float w[24];
  for (int i = 0; i < 24; i++) {
    x[i] = i;
    w[i] = (float)i;
  }
  lm_st_tensor t[5];
  const char *names[] = {"tok", "pos", "seg", "next", "w"};
  for (int c = 0; c < 5; c++)
    t[c] = (lm_st_tensor){.name = names[c],
                          .dtype = c < 4 ? LM_ST_I32 : LM_ST_F32,
                          .rank = 3,
                          .shape = {2, 4, 3},
                          .data = c < 4 ? (void *)x : w};
  char *path = in_dir("b.safetensors");
  lm_data_source s = {LM_SOURCE_BATCHES, "b", path, NULL};
  lm_data_options o = {&s, 1, NULL, 0, NULL, 0, 0};
  lm_data *d;
  CHECK_OK(lm_st_write(path, t, 5));
  CHECK_OK(lm_data_open(&o, &d));
  lm_data_info info = lm_data_info_of(d);
  CHECK(info.seq == 3 && info.batch_rows == 4 && info.steps == 2 && info.max_id == 23 &&
        info.max_pos == 23);
  row r;
  lm_batch b = batch_of(&r);
  CHECK_OK(lm_data_fill(d, 1, 1, 2, 2, &b));
  for (int i = 0; i < 6; i++)
    CHECK(r.tok[i] == 18 + i && r.w[i] == (float)(18 + i));
  CHECK_FAILS(lm_data_fill(d, 2, 0, 2, 2, &b), LM_USER, "step 3: there are only 2");
  CHECK_FAILS(lm_data_fill(d, 0, 0, 1, 2, &b), LM_USER, "rows");
  lm_data_close(d);
  x[7] = -1;
  CHECK_OK(lm_st_write(path, t, 5));
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "tok holds -1");
  t[3].shape[0] = 1;
  CHECK_OK(lm_st_write(path, t, 5));
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "differ in shape");
  CHECK_OK(lm_st_write(path, t, 4));
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "differ in shape");
}

int main(void) {
  CHECK(mkdtemp(dir));
  arena = lm_arena_create();
  bytes = lm_tokenizer_bytes_create();
  docs_write();
  test_permute();
  test_order();
  test_rows(0);
  test_rows(20);
  test_windows();
  test_holdout();
  test_replay();
  unlink(in_dir("docs.txt"));
  unlink(in_dir("long.txt"));
  unlink(in_dir("b.safetensors"));
  CHECK(!rmdir(dir));
  lm_tokenizer_destroy(bytes);
  lm_arena_destroy(arena);
  return 0;
}
