// Stages that change the sequence length and the mix: every document occurs once per epoch of each
// length, a length that is used again continues its epoch, any step can be read without the earlier
// ones, and held-out documents are trained on at no length.
#include <unistd.h>

#include "runtime/data/feed/data.h"
#include "tests/runtime/check.h"

enum {
  DOCS = 300,
  SHORT = 16,
  LONG = 64,
  TOKENS = 4 * LONG,
  MICRO = 2
};

static char dir[] = "/tmp/lm-stages-XXXXXX";
static lm_arena *arena;
static lm_tokenizer *bytes;
static int doc_len[DOCS];

// Document i repeats "%03d" of i and the letter of its source, so that any four consecutive
// bytes identify it.
static const char *docs_write(const char *name, char letter) {
  lm_buf b = {0};
  for (int i = 0; i < DOCS; i++) {
    doc_len[i] = 4 * (1 + (i * 7919) % 30);
    for (int k = 0; k < doc_len[i]; k += 4)
      lm_buf_printf(&b, "%03d%c", i, letter);
    lm_buf_puts(&b, "\n");
  }
  const char *path = lm_path_join(arena, dir, name);
  CHECK_OK(lm_file_write_atomic(path, b.p, b.n));
  lm_buf_free(&b);
  return path;
}

typedef struct {
  int32_t tok[TOKENS], pos[TOKENS], seg[TOKENS], next[TOKENS];
  float w[TOKENS];
} batch;
static lm_batch batch_of(batch *x) {
  return (lm_batch){{x->tok, x->pos, x->seg, x->next, x->w}};
}

typedef struct {
  int tokens[2][DOCS];
} tally; // by source

static void batch_count(const batch *x, int64_t seq, tally *t) {
  for (int i = 0; i < TOKENS; i += 4) {
    if (x->seg[i] < 0)
      continue;
    int doc = 100 * (x->tok[i] - '0') + 10 * (x->tok[i + 1] - '0') + x->tok[i + 2] - '0';
    CHECK(doc >= 0 && doc < DOCS && x->pos[i] < seq && x->pos[i] % 4 == 0);
    t->tokens[x->tok[i + 3] - 'a'][doc] += 4;
  }
}

// Counts one step of MICRO micro-batches of TOKENS tokens.
static void step_count(const lm_data *d, int64_t step, tally *t) {
  batch x;
  lm_batch b = batch_of(&x);
  int64_t seq = lm_data_seq(d, step);
  for (int micro = 0; micro < MICRO; micro++) {
    CHECK_OK(lm_data_fill(d, step, micro, MICRO, TOKENS / seq, &b));
    batch_count(&x, seq, t);
  }
}

static lm_data *open_stages(const lm_data_source *s, int n, const lm_data_stage *stages,
                            int n_stages, const lm_data_holdout *h, int n_holdouts) {
  lm_data_options o = {.sources = s,
                       .n_sources = n,
                       .holdouts = h,
                       .n_holdouts = n_holdouts,
                       .tokenizer = bytes,
                       .seq = LONG,
                       .seed = 3,
                       .stages = stages,
                       .n_stages = n_stages,
                       .prefetch = true,
                       .threads = 1};
  lm_data *d;
  CHECK_OK(lm_data_open(&o, &d));
  return d;
}

// Steps of an epoch at a length, if its rows fill them to the last one; the last step is completed
// from the next epoch.
static int64_t rows_at(const lm_data_source *s, int64_t seq) {
  lm_data_stage stage = {0, NULL, seq};
  lm_data *d = open_stages(s, 1, &stage, 1, NULL, 0);
  int64_t rows = lm_data_part(d, 0).rows;
  CHECK(lm_data_info_of(d).seq == seq);
  lm_data_close(d);
  return rows;
}

static void check_once(const tally *least, const tally *most, int source) {
  for (int i = 0; i < DOCS; i++)
    CHECK(least->tokens[source][i] <= doc_len[i] && doc_len[i] <= most->tokens[source][i]);
}

// Long, short, long again, short again: the two parts of a length are one sequence.
static void test_every_one_once(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "a", docs_write("a", 'a'), "\n"};
  int64_t short_steps = rows_at(&s, SHORT) / (MICRO * TOKENS / SHORT);
  int64_t long_steps = rows_at(&s, LONG) / (MICRO * TOKENS / LONG);
  CHECK(short_steps > 10 && long_steps > 10);
  lm_data_stage stages[] = {{0, NULL, LONG},
                            {long_steps / 2, NULL, SHORT},
                            {long_steps / 2 + short_steps / 3, NULL, LONG},
                            {long_steps + short_steps / 3 + 1, NULL, SHORT}};
  lm_data *d = open_stages(&s, 1, stages, 4, NULL, 0);
  CHECK(lm_data_info_of(d).seq == SHORT && lm_data_info_of(d).max_pos == LONG - 1);
  tally least[2] = {0},
        most[2] = {0}; // of whole steps of an epoch, and with the one that reaches beyond
  int64_t done[2] = {0};
  for (int64_t step = 0; step < long_steps + short_steps + 2; step++) {
    int is_long = lm_data_seq(d, step) == LONG;
    int64_t of = is_long ? long_steps : short_steps;
    if (done[is_long] < of)
      step_count(d, step, &least[is_long]);
    if (done[is_long]++ <= of)
      step_count(d, step, &most[is_long]);
  }
  CHECK(done[0] > short_steps && done[1] > long_steps);
  check_once(&least[0], &most[0], 0);
  check_once(&least[1], &most[1], 0);
  lm_data_close(d);
}

// A step that is read first is equal to the same step read in sequence, also after a stage
// boundary; prefetched batches belong to the next step.
static void test_position(void) {
  lm_data_source s[] = {{LM_SOURCE_TEXT, "a", docs_write("a", 'a'), "\n"},
                        {LM_SOURCE_TEXT, "b", docs_write("b", 'b'), "\n"}};
  lm_data_stage stages[] = {
      {0, (double[]){1, 1}, SHORT}, {7, (double[]){1, 3}, LONG}, {12, (double[]){1, 0}, SHORT}};
  lm_data *in_turn = open_stages(s, 2, stages, 3, NULL, 0);
  for (int64_t step = 0; step < 20; step++) {
    lm_data *fresh = open_stages(s, 2, stages, 3, NULL, 0);
    int64_t rows = TOKENS / lm_data_seq(fresh, step);
    CHECK(lm_data_seq(fresh, step) == (step < 7 || step >= 12 ? SHORT : LONG));
    for (int micro = 0; micro < MICRO; micro++) {
      batch x = {0}, y = {0};
      lm_batch b = batch_of(&x);
      lm_batch c = batch_of(&y);
      CHECK_OK(lm_data_fill(in_turn, step, micro, MICRO, rows, &b));
      CHECK_OK(lm_data_fill(fresh, step, micro, MICRO, rows, &c));
      CHECK(!memcmp(&x, &y, sizeof x));
      for (int i = 0; step >= 12 && i < TOKENS; i += 4)
        CHECK(x.seg[i] < 0 || x.tok[i + 3] == 'a');
    }
    lm_data_close(fresh);
  }
  lm_data_close(in_turn);
}

static void part_count(const lm_data *d, int part, tally *t) {
  batch x;
  lm_batch b = batch_of(&x);
  int64_t seq = lm_data_info_of(d).seq;
  int64_t rows = TOKENS / seq;
  for (int64_t first = 0; first < lm_data_part(d, part).rows; first += rows) {
    CHECK_OK(lm_data_fill_part(d, part, first, rows, &b));
    batch_count(&x, seq, t);
  }
}

static void test_held_out(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "a", docs_write("a", 'a'), "\n"};
  lm_data_holdout h[] = {{"end", LM_HOLDOUT_TAIL, 0.1, 0}, {"dev", LM_HOLDOUT_SAMPLE, 0, 20}};
  lm_data_stage stages[] = {{0, NULL, SHORT}, {500, NULL, LONG}};
  lm_data *d = open_stages(&s, 1, stages, 2, h, 2);
  tally end = {0}, dev = {0}, train = {0};
  part_count(d, 1, &end);
  part_count(d, 2, &dev);
  for (int64_t step = 0; step < 500; step++)
    step_count(d, step, &train);
  int held = 0, apart = 0;
  for (int i = 0; i < DOCS; i++) {
    bool out = end.tokens[0][i] || dev.tokens[0][i];
    held += out;
    apart += dev.tokens[0][i] == doc_len[i];
    CHECK(out == !train.tokens[0][i]); // 500 steps are several epochs
  }
  CHECK(held > 30 && held < 150 && apart == 20);
  lm_data_close(d);
}

static void test_refusals(void) {
  lm_data_source s = {LM_SOURCE_TEXT, "a", docs_write("a", 'a'), "\n"};
  lm_data_stage late[] = {{2, NULL, LONG}}, half[] = {{0, (double[]){1}, LONG}, {3, NULL, LONG}};
  lm_data_options o = {.sources = &s,
                       .n_sources = 1,
                       .tokenizer = bytes,
                       .seq = LONG,
                       .stages = late,
                       .n_stages = 1};
  lm_data *d;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "the first stage must begin at 0");
  o.stages = half;
  o.n_stages = 2;
  CHECK_FAILS(lm_data_open(&o, &d), LM_USER, "stage 2 has no mix");
}

// A step that reads a source several times, by its share of the mix in some stage.
static void test_rereads(void) {
  lm_data_source s[] = {{LM_SOURCE_TEXT, "a", docs_write("a", 'a'), "\n"},
                        {LM_SOURCE_TEXT, "b", docs_write("b", 'b'), "\n"}};
  lm_data_stage mixed[] = {{0, (double[]){1, 1}, LONG}, {3, (double[]){1, 3}, LONG}};
  int64_t epoch = rows_at(s, LONG) * LONG; // of each source
  lm_data_reread x;
  lm_data *d = open_stages(s, 2, mixed, 1, NULL, 0);
  CHECK(!lm_data_rereads(d, 2 * epoch, &x));
  CHECK(lm_data_rereads(d, 2 * epoch + 2, &x) && x.source == 0);
  lm_data_close(d);
  d = open_stages(s, 2, mixed, 2, NULL, 0);
  CHECK(!lm_data_rereads(d, epoch * 4 / 3, &x));
  CHECK(lm_data_rereads(d, 2 * epoch, &x));
  CHECK(x.source == 1 && x.step == epoch * 3 / 2 && x.epoch == epoch);
  lm_data_close(d);
  d = open_stages(s, 2, NULL, 0, NULL, 0);
  epoch = lm_data_part(d, 0).rows * LONG;
  CHECK(!lm_data_rereads(d, epoch, &x));
  CHECK(lm_data_rereads(d, epoch + 1, &x) && x.source < 0 && x.epoch == epoch);
  lm_data_close(d);
}

int main(void) {
  CHECK(mkdtemp(dir));
  arena = lm_arena_create();
  bytes = lm_tokenizer_bytes_create();
  test_every_one_once();
  test_position();
  test_held_out();
  test_refusals();
  test_rereads();
  lm_tokenizer_destroy(bytes);
  unlink(docs_write("a", 'a'));
  unlink(docs_write("b", 'b'));
  rmdir(dir);
  lm_arena_destroy(arena);
  return 0;
}
