// Initialisers; the loop on a hand-made plan: losses fall, resumption is exact to the bit,
// checkpoints survive kills and full disks, interruption saves, changes that are not allowed are
// rejected, bad numbers are never saved.
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/philox.h"
#include "runtime/io/json.h"
#include "runtime/train/init.h"
#include "runtime/train/checkpoint_sum.h"
#include "runtime/train/run.h"
#include "tests/runtime/bigram.h"

static char dir[] = "/tmp/lm-train-XXXXXX";
static lm_arena *arena;
static lm_data *data;
static lm_tokenizer *tokenizer;
static char *in_dir(const char *name) {
  return lm_path_join(arena, dir, name);
}

// ---- a run of the bigram model in a fresh process state

typedef struct {
  lm_exec *exec;
  lm_trainer *trainer;
  lm_run_options o;
  int64_t poison_at, cure_at, signal_at;
  int warnings;
} bench;

static lm_status after_step(void *user, int64_t step, const lm_step_result *r, lm_progress *p) {
  bench *b = user;
  if (step == b->poison_at)
    bigram_of(b->exec)->poison = NAN;
  if (step == b->cure_at)
    bigram_of(b->exec)->poison = 0;
  if (step == b->signal_at)
    raise(SIGINT);
  return NULL;
}

static const float rate[BLOCKS] = {1, 0.5f};
static const lm_train_table tables[] = {{LM_PORT_GROUP, rate, sizeof rate}};
static const lm_train_state states[] = {{"m", false, 0}, {"v", false, 0}};
static const lm_train_key keys[] = {{"model", "Bigram()"}, {"optimizer", "adamw(lr = \"x\")"}};
static lm_run_eval evals[] = {{"dev", 1, 5, {true, true}}};

static bench bench_open(const char *folder, int64_t steps) {
  bench b = {0};
  lm_plan *plan = bigram_plan(arena);
  b.exec = bigram_exec(arena, plan);
  lm_trainer_options o = {.plan = plan,
                          .exec = b.exec,
                          .data = data,
                          .steps = 40,
                          .n_micro = 2,
                          .clip = 1,
                          .tables = tables,
                          .n_tables = 1,
                          .states = states};
  CHECK_OK(lm_trainer_create(&o, &b.trainer));
  CHECK_OK(lm_init_params(b.exec, plan, 7));
  CHECK_OK(lm_trainer_init_states(b.trainer));
  b.o = (lm_run_options){.trainer = b.trainer,
                         .steps = steps,
                         .seed = 7,
                         .dir = folder,
                         .every = 10,
                         .keep = 2,
                         .keys = keys,
                         .n_keys = 2,
                         .evals = evals,
                         .n_evals = 1,
                         .best = {-1},
                         .stop = {-1},
                         .after_step = after_step};
  return b;
}

static lm_run_outcome bench_run(bench *b) {
  lm_run_outcome out;
  b->o.user = b;
  CHECK_OK(lm_run_train(&b->o, &out));
  return out;
}

static bool same_state(const bench *x, const bench *y) {
  const lm_plan *p = bigram_of(x->exec)->plan;
  for (int id = LM_ARENA_PARAM; id <= LM_ARENA_STATE; id++)
    if (id != LM_ARENA_GRAD && memcmp(bigram_of(x->exec)->arena[id], bigram_of(y->exec)->arena[id],
                                      (size_t)p->arena_bytes[id]))
      return false;
  return true;
}

static bool exists(const char *path) {
  return !access(path, F_OK);
}

static char *text_of(const char *path) {
  lm_buf b = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &b));
  char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static void run_remove(const char *folder) {
  if (fork() == 0)
    execlp("rm", "rm", "-rf", folder, (char *)NULL);
  int status;
  wait(&status);
}

// ---- tests

// Computed by the C library in double.
static void normal_pair_expect(lm_philox_key2 key, int64_t i, double std, double out[2]) {
  lm_philox4 x = lm_philox_block(key, (uint64_t)i / 4);
  double r = std * sqrt(-2 * log((double)lm_philox_unit(x.v[i % 4])));
  double angle = 2 * M_PI * (double)lm_philox_unit(x.v[i % 4 + 1]);
  out[0] = r * cos(angle);
  out[1] = r * sin(angle);
}

static void test_init_normal(int64_t first) {
  enum {
    N = 100000
  };
  float *a = lm_alloc(N * sizeof *a);
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "w", first, N, a);
  lm_philox_key2 key = lm_philox_key(3, lm_hash("w", 1, 0));
  for (int64_t i = 0; i < N; i += 2) {
    double expected[2];
    normal_pair_expect(key, first + i, 0.5, expected);
    for (int k = 0; k < 2; k++)
      CHECK(fabs((double)a[i + k] - expected[k]) <= 3e-7 * fabs(expected[k]));
  }
  lm_free(a);
}

static void test_init(void) {
  float a[1001], b[1001];
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "layers.1.w", 0, 1001, a);
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "layers.1.w", 0, 7, b);
  CHECK(!memcmp(a, b, 7 * sizeof *a));                  // element by element, whatever the size
  CHECK(lm_hash(a, sizeof a, 0) == 0xcc309fe75dabafdd); // the same on every processor
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "layers.1.w", 498, 503, b);
  CHECK(!memcmp(a + 498, b, 503 * sizeof *a)); // and whatever the first
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "layers.1.w", 0, 7, b);
  double mean = 0, square = 0;
  for (int i = 0; i < 1001; i++) {
    mean += a[i] / 1001;
    square += a[i] * a[i] / 1001;
  }
  CHECK(fabs(mean) < 0.05 && fabs(sqrt(square) - 0.5) < 0.05);
  lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, "layers.2.w", 0, 7, b);
  CHECK(a[0] != b[0] && a[1] != b[1]);
  lm_init_fill((lm_init){LM_INIT_UNIFORM, -2, 1}, 3, "u", 0, 1001, a);
  for (int i = 0; i < 1001; i++)
    CHECK(a[i] > -2 && a[i] < 1);
  lm_init_fill((lm_init){LM_INIT_CONST, 2.5, 0}, 3, "u", 0, 3, a);
  CHECK(a[2] == 2.5f && a[3] != 2.5f);
}

// Several threads fill parts of parameters, of which two are long.
static void test_init_params(void) {
  enum {
    PARAMS = 60,
    LONG = 300001
  };
  lm_arena *arena = lm_arena_create();
  lm_plan *plan = LM_NEW(arena, lm_plan);
  plan->n_params = PARAMS;
  plan->params = LM_NEW_N(arena, lm_plan_param, PARAMS);
  lm_plan_piece pieces[PARAMS];
  int64_t all = 0;
  for (int i = 0; i < PARAMS; i++) {
    int64_t n = i == 1 || i == 21 ? LONG : 1 + 100 * i;
    pieces[i] = (lm_plan_piece){.offset = all, .size = {n}, .stride = {1}};
    plan->params[i] = (lm_plan_param){.path = lm_arena_printf(arena, "w%d", i),
                                      .elements = n,
                                      .rank = 1,
                                      .shape = {n},
                                      .pieces = &pieces[i],
                                      .n_pieces = 1,
                                      .init = LM_INIT_NORMAL,
                                      .init_a = 0.5};
    all += n;
  }
  plan->arena_bytes[LM_ARENA_PARAM] = all * (int64_t)sizeof(float);
  lm_exec *e = bigram_exec(arena, plan);
  CHECK_OK(lm_init_params(e, plan, 3));
  float *expected = lm_alloc(LONG * sizeof *expected);
  for (int i = 0; i < PARAMS; i++) {
    const lm_plan_param *x = &plan->params[i];
    lm_init_fill((lm_init){LM_INIT_NORMAL, 0.5, 0}, 3, x->path, 0, x->elements, expected);
    const float *found = (const float *)(void *)bigram_of(e)->arena[LM_ARENA_PARAM];
    CHECK(!memcmp(found + pieces[i].offset, expected, (size_t)x->elements * sizeof *expected));
  }
  lm_free(expected);
  lm_arena_destroy(arena);
}

static double dev_loss(bench *b) {
  lm_eval_result x;
  CHECK_OK(lm_eval_run(b->exec, bigram_of(b->exec)->plan, data, 1, NULL, NULL, &x));
  CHECK(fabs(x.value[LM_EVAL_BITS_PER_BYTE] - x.value[LM_EVAL_LOSS] / log(2)) <
        1e-9); // a token is a byte
  CHECK(x.value[LM_EVAL_PERPLEXITY] == exp(x.value[LM_EVAL_LOSS]));
  return x.value[LM_EVAL_LOSS];
}

static void test_resume_exact(void) {
  char *one = in_dir("one");
  char *two = in_dir("two");
  bench whole = bench_open(one, 40);
  bench first = bench_open(two, 23);
  bench second = bench_open(two, 40);
  double before = dev_loss(&whole);
  CHECK(bench_run(&whole).step == 40);
  CHECK(dev_loss(&whole) < before - 0.3);
  bench_run(&first);
  lm_run_outcome out = bench_run(&second);
  CHECK(out.resumed == 23 && out.step == 40 && same_state(&whole, &second));
  for (const char **f =
           (const char *[]){"step-000040/model.safetensors", "step-000040/optimizer.safetensors",
                            "step-000040/state.json", NULL};
       *f; f++) {
    lm_buf x = {0}, y = {0};
    CHECK_OK(lm_file_read(lm_path_join(arena, one, *f), 1 << 20, &x));
    CHECK_OK(lm_file_read(lm_path_join(arena, two, *f), 1 << 20, &y));
    CHECK(x.n == y.n && !memcmp(x.p, y.p, x.n));
    lm_buf_free(&x);
    lm_buf_free(&y);
  }
  CHECK(exists(in_dir("one/step-000030")) && !exists(in_dir("one/step-000020"))); // keep = 2
  CHECK(exists(in_dir("two/step-000030")) && !exists(in_dir("two/step-000023")));
  char *metrics = text_of(in_dir("two/metrics.jsonl"));
  int lines = 0, evals_seen = 0;
  for (char *p = metrics; (p = strchr(p, '\n')); p++)
    lines++;
  for (char *p = metrics; (p = strstr(p, "dev.bits_per_byte")); p++)
    evals_seen++;
  CHECK(evals_seen == 9 && lines == 49); // step 23 is evaluated as the last one of its run
  bench again = bench_open(two, 40);     // a finished run: nothing to do
  out = bench_run(&again);
  CHECK(out.resumed == 40 && out.step == 40 && same_state(&whole, &again));
  bench old =
      bench_open(two, 35); // a checkpoint of another folder: all checkpoints here are moved aside
  old.o.resume = LM_RESUME_PATH;
  old.o.resume_path = in_dir("one/step-000030");
  CHECK(bench_run(&old).resumed == 30 && exists(in_dir("two/step-000035")) &&
        !exists(in_dir("two/step-000040")));
  CHECK(exists(in_dir("two/superseded-1/step-000030/state.json")) &&
        exists(in_dir("two/superseded-1/step-000040/state.json")));
  CHECK(strstr(text_of(in_dir("two/superseded-1/metrics.jsonl")), "\"step\": 40") != NULL);
  bench fresh = bench_open(two, 40);
  fresh.o.resume = LM_RESUME_NEVER;
  CHECK(bench_run(&fresh).resumed == 0 && same_state(&whole, &fresh) &&
        exists(in_dir("two/superseded-2/step-000035")));
  bench own =
      bench_open(two, 35); // an older checkpoint of the same run: the later ones are moved aside
  own.o.resume = LM_RESUME_PATH;
  own.o.resume_path = in_dir("two/step-000030");
  CHECK(bench_run(&own).resumed == 30 && exists(in_dir("two/step-000030")) &&
        exists(in_dir("two/superseded-3/step-000040")));
  for (bench **b = (bench *[]){&whole, &first, &second, &again, &old, &fresh, &own, NULL}; *b; b++)
    lm_trainer_destroy((*b)->trainer);
  run_remove(two);
}

static void test_refusals(void) {
  lm_run_outcome out;
  bench b = bench_open(in_dir("one"), 50);
  b.o.user = &b;
  b.o.resume = LM_RESUME_PATH;
  b.o.resume_path = in_dir("nothing");
  CHECK_FAILS(lm_run_train(&b.o, &out), LM_USER, "has no checkpoint");
  lm_trainer_destroy(b.trainer);
}

// Writes the checksums of the present files.
static void sums_renew(const char *folder, int n) {
  static const char *const files[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
  lm_sum sums[3];
  for (int i = 0; i < n; i++) {
    lm_buf text = {0};
    CHECK_OK(lm_file_read(lm_path_join(arena, folder, files[i]), 1 << 30, &text));
    sums[i] = lm_sum_of(text.p, text.n);
    lm_buf_free(&text);
  }
  CHECK_OK(lm_checkpoint_sums_write(arena, folder, files, sums, n));
}

static void warning_count(void *user, const char *text) {
  ((bench *)user)->warnings += strstr(text, "the data differs from") != NULL;
}

// A run over other data warns; a state without a record of its data gives no warning.
static void test_data_key(void) {
  char *state = in_dir("one/step-000040/state.json");
  char *good = text_of(state);
  char *key = strstr(good, "\"data\": \"");
  const char *behind = strchr(key, '\n') + 1;
  const char *texts[] = {good,
                         lm_arena_printf(arena, "%.*s\"data\": \"0123456789abcdef\",\n%s",
                                         (int)(key - good), good, behind),
                         lm_arena_printf(arena, "%.*s%s", (int)(key - good), good, behind)};
  for (int i = 0; i < 3; i++) {
    CHECK_OK(lm_file_write_atomic(state, texts[i], strlen(texts[i])));
    sums_renew(in_dir("one/step-000040"), 3);
    bench b = bench_open(in_dir("other"), 41);
    b.o.warn = warning_count;
    b.o.resume = LM_RESUME_PATH;
    b.o.resume_path = in_dir("one/step-000040");
    CHECK(bench_run(&b).resumed == 40 && b.warnings == (i == 1));
    lm_trainer_destroy(b.trainer);
  }
  CHECK_OK(lm_file_write_atomic(state, good, strlen(good)));
  sums_renew(in_dir("one/step-000040"), 3);
  run_remove(in_dir("other"));
}

// Checkpoints with invalid content: with old checksums they are damaged (LM_ENV), with matching
// checksums malformed (LM_USER).
#define STATE_WITH(counts) "{\"format\": 1, \"seed\": \"7\", " counts "}"
static void test_foreign_state(void) {
  lm_run_outcome out;
  bench b = bench_open(in_dir("one"), 50);
  b.o.user = &b;
  b.o.resume = LM_RESUME_PATH;
  b.o.resume_path = in_dir("one/step-000040");
  char *state = in_dir("one/step-000040/state.json");
  char *good = text_of(state);
  for (const char **bad =
           (const char *[]){"", "{", "[]", "{\"format\": 1}",
                            "{\"format\": 2, \"step\": 1, \"seed\": \"7\"}",
                            STATE_WITH("\"step\": -1"), STATE_WITH("\"step\": 9223372036854775807"),
                            STATE_WITH("\"step\": 40, \"tokens\": -5"),
                            STATE_WITH("\"step\": 40, \"tokens\": \"9\""),
                            STATE_WITH("\"step\": 40, \"bad_steps\": -1"),
                            STATE_WITH("\"step\": 40, \"bad_evals\": 0.5"), NULL};
       *bad; bad++) {
    CHECK_OK(lm_file_write_atomic(state, *bad, strlen(*bad)));
    CHECK_FAILS(lm_run_train(&b.o, &out), LM_ENV, "state.json");
    sums_renew(b.o.resume_path, 3);
    CHECK_FAILS(lm_run_train(&b.o, &out), LM_USER, "state.json");
  }
  CHECK_OK(lm_file_write_atomic(state, good, strlen(good)));
  sums_renew(b.o.resume_path, 3);
  CHECK(!rename(in_dir("one/step-000040/optimizer.safetensors"),
                in_dir("one/step-000040/model.safetensors")));
  CHECK_FAILS(lm_run_train(&b.o, &out), LM_ENV, "model.safetensors has");
  sums_renew(b.o.resume_path, 2);
  CHECK_FAILS(lm_run_train(&b.o, &out), LM_ENV, "no line for optimizer.safetensors");
  lm_trainer_destroy(b.trainer);
  run_remove(in_dir("one"));
}

static void test_not_finite(void) {
  lm_run_outcome out;
  bench b = bench_open(in_dir("nan"), 40);
  b.poison_at = 12;
  b.o.user = &b;
  CHECK_FAILS(lm_run_train(&b.o, &out), LM_USER, "step 13: the loss is not a number");
  CHECK(exists(in_dir("nan/step-000010")) && !exists(in_dir("nan/step-000013")) &&
        !exists(in_dir("nan/step-000012")));
  lm_trainer_destroy(b.trainer);
  run_remove(in_dir("nan"));
}

static void test_interrupt(void) {
  bench b = bench_open(in_dir("int"), 40);
  b.signal_at = 17;
  lm_run_outcome out = bench_run(&b);
  CHECK(out.interrupted && out.step == 17 && exists(in_dir("int/step-000017")));
  lm_trainer_destroy(b.trainer);
  run_remove(in_dir("int"));
}

static bench early_open(int64_t steps, int patience) {
  bench b = bench_open(in_dir("early"), steps);
  b.o.stop = b.o.best = (lm_run_watch){0, LM_EVAL_LOSS};
  b.o.patience = patience;
  b.o.min_delta = 10; // no gain is that large
  return b;
}

// A run stops early, stays stopped when it is resumed, and continues with other stop conditions.
static void test_early_stop(void) {
  static const struct {
    int64_t steps;
    int patience;
    int64_t resumed, step;
    bool early;
  } runs[] = {
      {40, 2, 0, 15, true}, // the first evaluation at 5, then two without gain
      {40, 2, 15, 15, true}, {40, 3, 15, 30, true}, // counted from 0 again
      {40, 3, 30, 30, true}, {50, 3, 30, 45, true}, {50, 0, 45, 50, false}, {50, 2, 50, 50, false},
  };
  for (size_t i = 0; i < LM_COUNT(runs); i++) {
    bench b = early_open(runs[i].steps, runs[i].patience);
    lm_run_outcome out = bench_run(&b);
    CHECK(out.resumed == runs[i].resumed && out.step == runs[i].step &&
          out.stopped_early == runs[i].early);
    lm_trainer_destroy(b.trainer);
  }
  run_remove(in_dir("early"));
}

// A file size limit simulates a full disk: the run fails as the environment's fault, the old
// checkpoint stays whole.
static void test_full_disk(void) {
  bench b = bench_open(in_dir("full"), 10);
  bench c = bench_open(in_dir("full"), 20);
  bench d = bench_open(in_dir("full"), 10);
  lm_run_outcome out;
  bench_run(&b);
  struct rlimit old, small = {2000, RLIM_INFINITY};
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &old);
  small.rlim_max = old.rlim_max;
  c.o.user = &c;
  c.o.evals = NULL;
  c.o.n_evals = 0;
  setrlimit(RLIMIT_FSIZE, &small);
  lm_status s = lm_run_train(&c.o, &out);
  setrlimit(RLIMIT_FSIZE, &old);
  CHECK_FAILS(s, LM_ENV, "File too large");
  CHECK(bench_run(&d).resumed == 10 && same_state(&b, &d));
  lm_trainer_destroy(b.trainer);
  lm_trainer_destroy(c.trainer);
  lm_trainer_destroy(d.trainer);
  run_remove(in_dir("full"));
}

// Children that save after every step are killed at any moment; the last checkpoint always loads,
// and training from there ends where an undisturbed run does.
static void test_kill(void) {
  bench whole = bench_open(NULL, 40);
  bench_run(&whole);
  for (int round = 0; round < 25; round++) {
    pid_t child = fork();
    if (!child) {
      bench b = bench_open(in_dir("kill"), 39);
      b.o.every = 1;
      bench_run(&b);
      _exit(0);
    }
    usleep(500 + 1700 * (useconds_t)round);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  }
  bench b = bench_open(in_dir("kill"), 40);
  lm_run_outcome out = bench_run(&b);
  CHECK(out.step == 40 && same_state(&whole, &b));
  lm_trainer_destroy(b.trainer);
  lm_trainer_destroy(whole.trainer);
  run_remove(in_dir("kill"));
}

static void data_open(void) {
  lm_buf b = {0};
  for (int i = 0; i < 900; i++) {
    lm_buf_add(&b, &(char){(char)(1 + (i * i / 3) % 14)}, 1);
    lm_buf_add(&b, i % 9 ? "" : "\x0f", i % 9 == 0);
  }
  CHECK_OK(lm_file_write_atomic(in_dir("text"), b.p, b.n));
  lm_buf_free(&b);
  tokenizer = lm_tokenizer_bytes_create();
  lm_data_source s = {LM_SOURCE_TEXT, "text", in_dir("text"), "\x0f"};
  lm_data_holdout h = {"dev", LM_HOLDOUT_TAIL, 0.2, 0};
  lm_data_options o = {&s, 1, &h, 1, tokenizer, SEQ, 7};
  CHECK_OK(lm_data_open(&o, &data));
}

int main(void) {
  CHECK(mkdtemp(dir));
  arena = lm_arena_create();
  data_open();
  test_init();
  test_init_params();
  test_init_normal(0);
  test_init_normal(INT64_C(5) << 33); // blocks of more than 32 bits
  test_init_normal((INT64_C(1) << 34) - 50000);
  test_resume_exact();
  test_refusals();
  test_data_key();
  test_foreign_state();
  test_not_finite();
  test_interrupt();
  test_early_stop();
  test_full_disk();
  test_kill();
  lm_data_close(data);
  lm_tokenizer_destroy(tokenizer);
  run_remove(dir);
  lm_arena_destroy(arena);
  return 0;
}
