// starter.c - chooses a model for a text, writes its recipe and times a step of it.
#include "driver/starter/starter.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/session.h"
#include "driver/text.h"
#include "runtime/tokenizer/train.h"

enum {
  MIN_SECONDS = 3,
  MAX_SECONDS = 60000000,
  MIN_BYTES = 2000, // of text: rows to train on and some to hold out
  NAME_BYTES = 64,
  PROMPT_BYTES = 24,
  STEPS_TIMED = 3
};
static const double MAX_PARAMS = 1e13;
// Time of a run beside training: reading the text, starting, and making samples, of which each
// token reads all weights once.
static const double READ_BYTES_PER_S = 1e7;
static const double START_SECONDS = 1.5;
static const double MEMORY_BYTES_PER_S = 8e9;
static const double OVERHEAD = 0.03; // share of the time for evaluations and checkpoints

static const double TIMED_SECONDS = 1;        // minimum time for measuring a micro-batch
static const double TIMED_SECONDS_BUSY = 2.5; // if other processes use the processors
static const double MAX_TIMED_SECONDS = 20;   // a step that is expected to take longer is not timed
// Where a step reaches a smaller share of the speed that the GEMMs promise, the model is chosen
// again.
static const double MIN_SPEED = 0.7;

// ---- names

static bool is_name(const char *name, size_t n) {
  bool good = n && n <= NAME_BYTES && isalnum((unsigned char)name[0]);
  for (size_t i = 0; i < n; i++)
    good = good && (isalnum((unsigned char)name[i]) || strchr("_-.", name[i]));
  return good;
}

static lm_status name_read(lm_starter *x, const char *name) {
  size_t n = strlen(name);
  struct stat st;
  if (n > 3 && !strcmp(name + n - 3, ".lm"))
    n -= 3;
  if (!is_name(name, n))
    return lm_fail(LM_USER,
                   "'%s' is not a name for a recipe: expected letters, digits, '-', '_' and '.', "
                   "at most 64, a "
                   "letter or digit first",
                   name);
  x->name = lm_arena_strndup(x->ctx->arena, name, n);
  x->path = lm_arena_printf(x->ctx->arena, "%s.lm", x->name);
  if (lstat(x->path, &st))
    return NULL;
  return lm_fail(LM_USER, "%s exists already and is not overwritten; choose another name", x->path);
}

static lm_status time_read(lm_starter *x, const char *text) {
  x->seconds = lm_seconds_parse(text);
  if (x->seconds >= MIN_SECONDS && x->seconds <= MAX_SECONDS)
    return NULL;
  return lm_fail(
      LM_USER,
      "--minutes takes a time from 3 s to 1e6 minutes, such as 10, 90m, 1h or '45 min', not '%s'",
      text);
}

// Models of examples/zoo that are trained on other data than text.
static const struct {
  const char *type, *data, *call; // call: NULL unless the data are pairs of texts
} OTHERS[] = {
    {"t5", "pairs of texts", "T5(depth = 4, d = 256, ff = 1024, heads = 8, e = 32, vocab = 4096)"},
    {"bart", "pairs of texts", "Bart(depth = 4, d = 256, ff = 1024, heads = 8, vocab = 4096)"},
    {"bert", "text with hidden tokens: docs/language.md, Encoders", NULL},
    {"vit", "batches of images with labels: docs/language.md, Encoders", NULL},
    {"mobilenet_v2", "batches of images with labels: docs/language.md, Encoders", NULL},
    {"efficientnet", "batches of images with labels: docs/language.md, Encoders", NULL},
    {"whisper", "batches of frames: docs/language.md, Encoder-decoder models", NULL}};

static const char PAIRS[] =
    "--arch: %s is trained on %s, for which lmc new writes no recipe. With pairs.jsonl, lines of "
    "{\"source\": \"…\", \"target\": \"…\"}, and examples/zoo/%s beside it, a recipe is:\n\n"
    "# lmc tokenizer train -o tokenizer.json --vocab 4096 --field source pairs.jsonl\n"
    "import \"%s\": %s\n"
    "data Pairs {\n"
    "  tokenizer = bpe(\"tokenizer.json\")\n"
    "  source pairs = seq2seq(\"pairs.jsonl\", start = \"<|endoftext|>\")\n"
    "  long = drop; pack best_fit(seq = 128 tokens)\n"
    "}\n"
    "recipe Train {\n"
    "  model = %s; data = Pairs\n"
    "  run = 10 epochs; batch = 4Ki tokens; optimizer = adamw(lr = 1e-3)\n"
    "  save = checkpoint(\"runs/pairs\")\n"
    "}";

// There is no such language model.
static lm_status arch_refuse(const lm_starter *x, const char *name) {
  const lm_zoo_model *m = lm_zoo_find(name);
  for (size_t i = 0; m && i < LM_COUNT(OTHERS); i++) {
    if (strcmp(OTHERS[i].type, name) != 0)
      continue;
    if (OTHERS[i].call)
      return lm_fail(LM_USER, PAIRS, m->model, OTHERS[i].data, m->file, m->file, m->model,
                     OTHERS[i].call);
    return lm_fail(LM_USER,
                   "--arch: %s is trained on %s; lmc new writes no recipe for it, and "
                   "examples/zoo/%s is the model",
                   m->model, OTHERS[i].data, m->file);
  }
  const char *near = lm_zoo_nearest(x->ctx->arena, name);
  return lm_fail(LM_USER, "--arch: '%s' is none of the language models of examples/zoo%s%s%s: %s",
                 lm_shown(x->ctx->arena, name), near ? " (did you mean " : "", near ? near : "",
                 near ? "?)" : "", lm_zoo_names(x->ctx->arena));
}

static lm_status model_read(lm_starter *x, const lm_starter_options *o) {
  x->arch = o->arch ? lm_zoo_named(o->arch) : NULL;
  x->params = o->params ? lm_count_parse(o->params) : 0;
  if (o->arch && !x->arch)
    return arch_refuse(x, o->arch);
  if (o->params && !(x->params > 0 && x->params <= MAX_PARAMS))
    return lm_fail(LM_USER, "--params takes a number such as 300k, 50M or 1.5B, not '%s'",
                   lm_shown(x->ctx->arena, o->params));
  return NULL;
}

// ---- the text

// Bytes for each token of a vocabulary learned from the sample.
static lm_status tokens_measure(lm_starter *x, int64_t vocab) {
  const lm_buf *sample = &x->dataset.sample;
  x->text = (lm_text_facts){
      .tokens = x->dataset.bytes,
      .bytes_per_token = 1,
      .vocab = vocab,
  };
  if (vocab == 256)
    return NULL;
  lm_buf json = {0};
  lm_tokens ids = {0};
  lm_tokenizer *t = NULL;
  lm_vocab_trainer *trainer = lm_vocab_trainer_create(LM_TOKENIZER_BPE, 1);
  lm_status s = lm_vocab_trainer_add(trainer, 0, sample->p, sample->n);
  if (!s)
    s = lm_vocab_trainer_finish(trainer, (int32_t)x->text.vocab, &json);
  if (!s)
    s = lm_tokenizer_parse(json.p, json.n, "the sample's tokenizer", &t);
  if (!s)
    s = lm_tokenizer_encode(t, sample->p, sample->n, &ids);
  if (!s)
    x->text.bytes_per_token = (double)sample->n / (double)ids.n;
  x->text.tokens = x->dataset.bytes / x->text.bytes_per_token;
  lm_tokenizer_destroy(t);
  lm_vocab_trainer_destroy(trainer);
  lm_tokens_free(&ids);
  lm_buf_free(&json);
  return s;
}

// The first words of the text, up to the first character that a shell or a string would have to
// quote.
static void prompt_find(lm_starter *x) {
  const char *s = x->dataset.sample.p;
  size_t n = 0;
  size_t words = 0;
  while (isspace((unsigned char)*s))
    s++;
  for (size_t i = 0; i <= PROMPT_BYTES && s[i] != '\n'; i++) {
    unsigned char c = (unsigned char)s[i];
    if ((c == ' ' || !c) && i > n) {
      n = i;
      words++;
    }
    if (!c || (!isalnum(c) && c < 0x80 && !strchr(" .,:;-_", c)))
      break;
  }
  x->prompt = words ? lm_arena_strndup(x->ctx->arena, s, n) : "The";
}

// ---- a step of the recipe

static lm_status funcs_time(const lm_starter *x, lm_session *s, double *out) {
  double micro;
  double norm;
  double update;
  double about = lm_load_is_busy(&x->machine.load) ? TIMED_SECONDS_BUSY : TIMED_SECONDS;
  LM_TRY(lm_session_open(s, x->ctx, x->events, &(lm_recipe_choice){.path = x->path}));
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_compile(s, LM_LOWER_TRAIN, 0));
  LM_TRY(lm_session_start(s, NULL));
  LM_TRY(lm_execution_func_time(&s->execution, LM_FUNC_MICRO, 0, about, &micro));
  LM_TRY(lm_execution_func_time(&s->execution, LM_FUNC_NORM, 0, about / 5, &norm));
  LM_TRY(lm_execution_func_time(&s->execution, LM_FUNC_UPDATE, 0, about / 5, &update));
  *out = (double)s->run.n_micro * micro + norm + update;
  return NULL;
}

// Seconds of a step of the recipe that was written.
static lm_status step_time(const lm_starter *x, double *out) {
  lm_session s = {0};
  lm_status status = funcs_time(x, &s, out);
  lm_session_close(&s);
  return status;
}

// ---- choosing

// Seconds of the requested time that remain for training.
static double seconds_left(const lm_starter *x) {
  double sample = LM_ADVICE_SAMPLE * (1e-3 + 4 * x->advice.params / MEMORY_BYTES_PER_S);
  double rest = START_SECONDS + x->dataset.bytes / READ_BYTES_PER_S + LM_ADVICE_REPORTS * sample;
  return x->seconds > 2 * rest ? (1 - OVERHEAD) * (x->seconds - rest) : x->seconds / 2;
}

// Halves the vocabulary as long as most parameters of the model that the time allows would be the
// vocabulary's.
static lm_status model_choose(lm_starter *x, const lm_machine *machine) {
  x->vocab_of_text = lm_advise_vocab(x->dataset.bytes, x->dataset.unusable_files > 0);
  for (int64_t vocab = x->vocab_of_text;; vocab /= 2) {
    LM_TRY(tokens_measure(x, vocab));
    if (x->params > 0)
      LM_TRY(lm_starter_size(x, seconds_left(x)));
    else
      lm_advise(machine, &x->text, seconds_left(x), lm_starter_depth_least(x), &x->advice);
    if (lm_advice_balanced(&x->advice))
      break;
  }
  if (x->arch && !(x->params > 0))
    LM_TRY(lm_starter_count(x, &x->advice.params));
  return NULL;
}

// A step is timed, which takes the memory of the training.
static lm_status memory_check(const lm_starter *x) {
  double needed = lm_advice_memory(&x->advice);
  if (needed <= x->machine.memory)
    return NULL;
  return lm_fail(LM_USER,
                 "--params: training a model of %.4g parameters takes about %s, and this machine "
                 "has %s",
                 x->advice.params, lm_bytes_text(x->ctx->arena, (int64_t)needed),
                 lm_bytes_text(x->ctx->arena, (int64_t)x->machine.memory));
}

// Chooses again for a machine of which a step reaches the share `reached` of the measured speed.
static lm_status choose_again(lm_starter *x, double reached) {
  lm_machine slower = x->machine;
  for (int i = 0; i < LM_MACHINE_WIDTHS; i++)
    slower.flops[i] *= reached;
  LM_TRY(model_choose(x, &slower));
  x->advice.flops /= reached;
  return lm_starter_write(x);
}

static lm_status steps_settle(lm_starter *x) {
  double seconds;
  if ((double)x->advice.micro / x->advice.tokens_per_s * STEPS_TIMED > MAX_TIMED_SECONDS)
    return NULL;
  LM_TRY(step_time(x, &seconds));
  double reached = (double)x->advice.batch / x->advice.tokens_per_s / seconds;
  if (reached < MIN_SPEED && !(x->params > 0)) {
    LM_TRY(choose_again(x, reached));
    LM_TRY(step_time(x, &seconds));
  }
  x->timed = true;
  lm_advise_steps(&x->advice, &x->text, seconds_left(x), seconds);
  return lm_starter_write(x);
}

static void walk_show(void *user, uint64_t files) {
  const lm_starter *x = user;
  lm_event_progress(x->events, "looking through %s: %llu files", x->data,
                    (unsigned long long)files);
}

static lm_status recipe_settle(lm_starter *x) {
  lm_event_progress(x->events, "choosing a model");
  LM_TRY(model_choose(x, &x->machine));
  LM_TRY(memory_check(x));
  LM_TRY(lm_starter_write(x));
  lm_event_progress(x->events, "compiling %s and timing a step of it", x->path);
  return steps_settle(x);
}

lm_status lm_starter_make(lm_ctx *ctx, const lm_events *events, const lm_starter_options *o,
                          lm_starter *x) {
  *x = (lm_starter){
      .ctx = ctx,
      .events = events,
      .data = o->data,
  };
  LM_TRY(time_read(x, o->time));
  LM_TRY(model_read(x, o));
  LM_TRY(name_read(x, o->name));
  if (!x->data)
    return lm_fail(LM_USER, "which text? lmc new %s --data PATH: a file, a folder or a pattern",
                   x->name);
  LM_TRY(lm_dataset_inspect(ctx->arena, (lm_walk_progress){walk_show, x}, x->data, &x->dataset));
  if (x->dataset.bytes < MIN_BYTES)
    return lm_fail(LM_USER,
                   "%s holds %.0f bytes of text; a model needs at least %d, and learns "
                   "something from a million",
                   x->data, x->dataset.bytes, MIN_BYTES);
  lm_event_progress(events, "measuring the machine");
  lm_machine_measure(&x->machine);
  prompt_find(x);
  lm_status status = recipe_settle(x);
  lm_event_progress_end(events);
  if (status)
    unlink(x->path);
  return status;
}

void lm_starter_free(lm_starter *x) {
  lm_dataset_free(&x->dataset);
}
