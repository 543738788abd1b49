// new.c - lmc new: a first recipe for somebody's text, sized for this machine.
//
// The text is judged by a sample, the machine by a few products; lmc/advise.h says what follows.
// Then the recipe is written, compiled, and a step of it is timed: that settles how many there are.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/advise/advise.h"
#include "lmc/open.h"
#include "driver/advise/dataset.h"
#include "runtime/base/terminal.h"
#include "runtime/tokenizer/train.h"

extern const struct lm_embedded { const char *path, *text; } lm_templates[];

enum {
  SAMPLED_LEAST = 100,
  HELD_OUT_LEAST = 5
};                      // documents
#define BAD_USUAL 0.005 // share of unusable files that the default of `bad`, 1 %, allows
enum {
  SECONDS_LEAST = 3,
  SECONDS_MOST = 60000000
};
enum {
  TEXT_LEAST = 2000 /* bytes: rows to train on and some to hold out */,
  SHOWN_LINES = 3,
  SHOWN_BYTES = 96,
  PROMPT_BYTES = 24,
  STEPS_TIMED = 3
};
// Of a run that is not training: reading text, a second; its start; a sample's tokens, each the
// weights once.
#define READ_BYTES_PER_S 1e7
#define START_S 1.5
#define MEMORY_BYTES_PER_S 8e9
#define TIMED_S 1.0      // a micro-batch is timed so long, and the least time counts
#define TIMED_BUSY_S 2.5 // where other processes use the processors
#define TIMED_MOST_S 20  // no step is timed that is expected to take longer
#define KEPT_LEAST                                                                                 \
  0.7 // of the speed that products promise: where a step keeps less, the choice is made again

static const lm_opt options[] = {
    {.name = "data",
     .letter = 'd',
     .kind = LM_OPT_TEXT,
     .value = "PATH",
     .help = "the text: a file, a folder or a 'pattern*'; plain, .jsonl, either as .zst; of a "
             "folder and the folders in it, every kind of file that is UTF-8 text"},
    {.name = "minutes",
     .letter = 'm',
     .kind = LM_OPT_TEXT,
     .value = "M",
     .help = "how long the training may take: minutes, or '90m', '1h', '1h 30m', '45 s' (10)"},
    LM_OPT_JSON,
    {0}};

typedef struct maker {
  lm_cli *cli;
  const char *name, *path, *data; // NAME, NAME.lm, PATH
  double seconds;
  lm_dataset survey;
  lm_text_facts text;
  lm_machine machine;
  lm_advice advice;
  bool timed;
  int64_t vocab_of_text; // tokens that the text would deserve
  const char *prompt;
} maker;

// ---- names

static lm_status name_check(maker *x) {
  const char *name = x->cli->args.rest[0];
  size_t n = strlen(name);
  lm_arena *a = x->cli->ctx->arena;
  if (n > 3 && !strcmp(name + n - 3, ".lm"))
    n -= 3;
  bool good = n && n <= 64 && isalnum((unsigned char)name[0]);
  for (size_t i = 0; i < n; i++)
    good = good && (isalnum((unsigned char)name[i]) || strchr("_-.", name[i]));
  if (!good)
    return lm_fail(LM_USER,
                   "'%s' is no name for a recipe: letters, digits, '-', '_' and '.', at most 64, a "
                   "letter or digit first",
                   name);
  x->name = lm_arena_strndup(a, name, n);
  x->path = lm_arena_printf(a, "%s.lm", x->name);
  struct stat st;
  if (!lstat(x->path, &st))
    return lm_fail(LM_USER, "%s is there already, and is left as it is; choose another name",
                   x->path);
  return NULL;
}

// ---- the time

// The seconds of a unit that a text begins with; *out_n: its length, with all that belongs to the
// word.
static double unit_seconds(const char *text, size_t *out_n) {
  static const struct {
    const char *names[6];
    double seconds;
  } units[] = {{{"s", "sec", "secs", "second", "seconds"}, 1},
               {{"m", "min", "mins", "minute", "minutes"}, 60},
               {{"h", "hr", "hrs", "hour", "hours"}, 3600},
               {{"d", "day", "days"}, 86400}};
  size_t n = 0;
  while (isalpha((unsigned char)text[n]))
    n++;
  *out_n = n;
  for (size_t i = 0; i < LM_COUNT(units); i++)
    for (size_t k = 0; k < LM_COUNT(units[i].names) && units[i].names[k]; k++)
      if (strlen(units[i].names[k]) == n && !strncasecmp(text, units[i].names[k], n))
        return units[i].seconds;
  return 0;
}

// Numbers with units, "1h 30m"; a number alone is minutes. 0: it is not a time.
static double time_parse(const char *text) {
  double total = 0;
  do {
    char *end;
    size_t unit;
    double x = strtod(text, &end);
    bool number =
        end > text && x >= 0 && isfinite(x) && (isdigit((unsigned char)end[-1]) || end[-1] == '.');
    text = end + strspn(end, " ");
    if (number && !*text && total == 0)
      return 60 * x;
    double seconds = unit_seconds(text, &unit);
    if (!number || seconds == 0)
      return 0;
    total += x * seconds;
    text += unit + strspn(text + unit, " ");
  } while (*text);
  return total;
}

static lm_status time_read(maker *x) {
  const char *text = lm_args_text(&x->cli->args, "minutes", "10");
  x->seconds = time_parse(text);
  if (x->seconds >= SECONDS_LEAST && x->seconds <= SECONDS_MOST)
    return NULL;
  return lm_fail(
      LM_USER,
      "--minutes takes a time from 3 s to 1e6 minutes, such as 10, 90m, 1h or '45 min', not '%s'",
      text);
}

// ---- the text

// Bytes for each token of a vocabulary learned from the sample.
static lm_status tokens_measure(maker *x, int64_t vocab) {
  const lm_buf *sample = &x->survey.sample;
  x->text.vocab = vocab;
  x->text.bytes_per_token = 1;
  x->text.tokens = x->survey.bytes;
  if (x->text.vocab == 256)
    return NULL;
  lm_buf json = {0};
  lm_tokens ids = {0};
  lm_tokenizer *t = NULL;
  lm_bpe_trainer *trainer = lm_bpe_trainer_create(1);
  lm_status s = lm_bpe_trainer_add(trainer, 0, sample->p, sample->n);
  if (!s)
    s = lm_bpe_trainer_finish(trainer, (int32_t)x->text.vocab, &json);
  if (!s)
    s = lm_tokenizer_bpe_parse(json.p, json.n, "the sample's tokenizer", &t);
  if (!s)
    s = lm_tokenizer_encode(t, sample->p, sample->n, &ids);
  if (!s)
    x->text.bytes_per_token = (double)sample->n / (double)ids.n;
  x->text.tokens = x->survey.bytes / x->text.bytes_per_token;
  lm_tokenizer_destroy(t);
  lm_bpe_trainer_destroy(trainer);
  lm_tokens_free(&ids);
  lm_buf_free(&json);
  return s;
}

// The first words of the text, as far as a shell and a string can have them without quoting.
static void prompt_find(maker *x) {
  const char *s = x->survey.sample.p;
  size_t n = 0, words = 0;
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
  x->prompt = words ? lm_arena_strndup(x->cli->ctx->arena, s, n) : "The";
}

// ---- the file

typedef struct {
  const char *key;
  lm_buf value;
} slot;
enum {
  SLOTS = 24
};

static void slot_set(slot *slots, int *n, const char *key, const char *fmt, ...) LM_PRINTF(4, 5);
static void slot_set(slot *slots, int *n, const char *key, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  LM_ASSERT(*n < SLOTS);
  slots[*n].key = key;
  lm_buf_vprintf(&slots[(*n)++].value, fmt, ap);
  va_end(ap);
}

// A string of the language.
static void quoted(lm_buf *b, const char *s) {
  lm_buf_puts(b, "\"");
  for (; *s; s++) {
    if (*s == '"' || *s == '\\')
      lm_buf_puts(b, "\\");
    if (*s == '\n' || *s == '\r' || *s == '\t')
      lm_buf_puts(b, *s == '\n' ? "\\n" : *s == '\r' ? "\\r" : "\\t");
    else
      lm_buf_add(b, s, 1);
  }
  lm_buf_puts(b, "\"");
}

static void sources_write(const maker *x, lm_buf *b) {
  for (int i = 0; i < x->survey.n_sources; i++) {
    const lm_data_source *s = &x->survey.sources[i];
    lm_buf_printf(b, "%s  source %s = %s(", i ? "\n" : "", s->name,
                  s->kind == LM_SOURCE_JSONL ? "jsonl" : "text");
    quoted(b, s->path);
    const char *key = s->split ? "split" : s->field && strcmp(s->field, "text") ? "field" : NULL;
    if (key) {
      lm_buf_printf(b, ", %s = ", key);
      quoted(b, s->split ? s->split : s->field);
    }
    lm_buf_puts(b, ")");
  }
  if (x->survey.unusable > BAD_USUAL)
    lm_buf_printf(b, "\n  bad = %.0f%%", ceil(100 * x->survey.unusable) + 1);
}

// A number of tokens as the language likes to have it: 2Ki, 512.
static const char *tokens_text(const maker *x, int64_t n) {
  lm_arena *a = x->cli->ctx->arena;
  if (n % (1 << 20) == 0)
    return lm_arena_printf(a, "%lldMi", (long long)(n >> 20));
  return n % 1024 == 0 ? lm_arena_printf(a, "%lldKi", (long long)(n >> 10))
                       : lm_arena_printf(a, "%lld", (long long)n);
}

// Documents chosen by chance where there are enough of them: the last ones may be of another kind
// than the rest.
static const char *holdout_text(const maker *x) {
  lm_arena *a = x->cli->ctx->arena;
  int64_t docs = (int64_t)ceil(x->advice.holdout * x->survey.docs);
  if (x->survey.docs >= SAMPLED_LEAST)
    return lm_arena_printf(a, "sample(%lld docs)",
                           (long long)(docs < HELD_OUT_LEAST ? HELD_OUT_LEAST : docs));
  return lm_arena_printf(a, "tail(%.3g%%)", 100 * x->advice.holdout);
}

static int slots_fill(const maker *x, slot *slots) {
  const lm_advice *a = &x->advice;
  int n = 0;
  lm_buf time = {0}, sources = {0}, prompt = {0};
  lm_show_seconds(&time, x->seconds);
  sources_write(x, &sources);
  quoted(&prompt, x->prompt);
  const struct {
    const char *key;
    int64_t value;
  } whole[] = {{"DEPTH", a->depth},         {"D", a->d},           {"FF", a->ff},
               {"HEADS", a->heads},         {"VOCAB", a->vocab},   {"SEQ", a->seq},
               {"STEPS", a->steps},         {"WARMUP", a->warmup}, {"EVERY", a->every},
               {"SAMPLE", LM_ADVICE_SAMPLE}};
  for (size_t i = 0; i < LM_COUNT(whole); i++)
    slot_set(slots, &n, whole[i].key, "%lld", (long long)whole[i].value);
  slot_set(slots, &n, "NAME", "%s", x->name);
  slot_set(slots, &n, "PATH", "%.*s", (int)strcspn(x->data, "\r\n"), x->data);
  slot_set(slots, &n, "TIME", "%s", time.p);
  slot_set(slots, &n, "PROMPT", "%s", x->prompt);
  slot_set(slots, &n, "PROMPT_TEXT", "%s", prompt.p);
  slot_set(slots, &n, "SOURCES", "%s", sources.p);
  slot_set(slots, &n, "TOKENIZER", a->vocab == 256 ? "bytes()" : "bpe(train = %lld)",
           (long long)a->vocab);
  slot_set(slots, &n, "BATCH", "%s", tokens_text(x, a->batch));
  slot_set(slots, &n, "MICRO", "%s", tokens_text(x, a->micro));
  slot_set(slots, &n, "LR", "%.2g", a->lr);
  slot_set(slots, &n, "HOLDOUT", "%s", holdout_text(x));
  lm_buf_free(&time);
  lm_buf_free(&sources);
  lm_buf_free(&prompt);
  return n;
}

// The template with every @KEY@ replaced; other uses of @ are the language's own.
static void template_fill(const char *text, const slot *slots, int n, lm_buf *out) {
  for (const char *at; (at = strchr(text, '@'));) {
    size_t key = strspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    lm_buf_add(out, text, (size_t)(at - text));
    text = at + 1;
    if (!key || at[1 + key] != '@') {
      lm_buf_puts(out, "@");
      continue;
    }
    int i = 0;
    while (i < n && (strlen(slots[i].key) != key || memcmp(slots[i].key, at + 1, key)))
      i++;
    if (i == n)
      LM_BUG("the template asks for %.*s", (int)key, at + 1);
    lm_buf_puts(out, slots[i].value.p);
    text += key + 1;
  }
  lm_buf_puts(out, text);
}

static lm_status file_write(const maker *x) {
  slot slots[SLOTS] = {0};
  lm_buf filled = {0}, text = {0};
  int n = slots_fill(x, slots);
  template_fill(lm_templates[0].text, slots, n, &filled);
  lm_fmt(x->cli->ctx, lm_source_add(x->cli->ctx, x->path, filled.p, filled.n), &text);
  lm_status s = lm_file_write_atomic(x->path, text.p, text.n);
  lm_buf_free(&filled);
  for (int i = 0; i < n; i++)
    lm_buf_free(&slots[i].value);
  lm_buf_free(&text);
  return s;
}

// ---- a step of it

static lm_status funcs_time(maker *x, lm_session *s, double *out) {
  LM_TRY(lm_session_open(s, x->cli->ctx, &x->cli->events, &(lm_recipe_choice){.path = x->path}));
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_lower(s, LM_LOWER_TRAIN, 0));
  LM_TRY(lm_session_plan(s));
  LM_TRY(lm_session_start(s, NULL));
  double micro, norm, update;
  double about = lm_machine_is_busy(&x->machine) ? TIMED_BUSY_S : TIMED_S;
  LM_TRY(lm_session_func_time(s, "micro", about, &micro));
  LM_TRY(lm_session_func_time(s, "norm", about / 5, &norm));
  LM_TRY(lm_session_func_time(s, "update", about / 5, &update));
  *out = (double)s->run.n_micro * micro + norm + update;
  return NULL;
}

// Seconds of a step of the recipe that was written.
static lm_status step_time(maker *x, double *out) {
  lm_session s = {0};
  lm_status status = funcs_time(x, &s, out);
  lm_session_close(&s);
  return status;
}

// What is left for training of the time.
static double seconds_left(const maker *x) {
  double sample = LM_ADVICE_SAMPLE * (1e-3 + 4 * x->advice.params / MEMORY_BYTES_PER_S);
  double rest = START_S + x->survey.bytes / READ_BYTES_PER_S + LM_ADVICE_REPORTS * sample;
  return x->seconds > 2 * rest ? 0.97 * (x->seconds - rest)
                               : x->seconds / 2; // 3 %: evaluations, checkpoints
}

// Where the model that the time allows is so small that most of its parameters would be the
// vocabulary's, the vocabulary is halved.
static lm_status model_choose(maker *x, const lm_machine *machine) {
  x->vocab_of_text = lm_advise_vocab(x->survey.bytes);
  for (int64_t vocab = x->vocab_of_text;; vocab /= 2) {
    LM_TRY(tokens_measure(x, vocab));
    lm_advise(machine, &x->text, seconds_left(x), &x->advice);
    if (lm_advice_balanced(&x->advice))
      return NULL;
  }
}

// A model and a batch for a machine of which a step keeps so much of the speed that its products
// promised.
static lm_status choose_again(maker *x, double kept) {
  lm_machine slower = x->machine;
  for (int i = 0; i < LM_MACHINE_WIDTHS; i++)
    slower.flops[i] *= kept;
  LM_TRY(model_choose(x, &slower));
  x->advice.flops /= kept;
  return file_write(x);
}

static lm_status steps_settle(maker *x) {
  double seconds;
  if ((double)x->advice.micro / x->advice.tokens_per_s * STEPS_TIMED > TIMED_MOST_S)
    return NULL;
  LM_TRY(step_time(x, &seconds));
  double kept = (double)x->advice.batch / x->advice.tokens_per_s / seconds;
  if (kept < KEPT_LEAST) {
    LM_TRY(choose_again(x, kept));
    LM_TRY(step_time(x, &seconds));
  }
  x->timed = true;
  lm_advise_steps(&x->advice, &x->text, seconds_left(x), seconds);
  return file_write(x);
}

// ---- what is said

enum {
  INDENT = 10
};

// Without what a terminal would take for more than text.
static void line_print(const char *line, size_t n, bool cut) {
  lm_buf b = {0};
  lm_buf_add(&b, line, n);
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)b.p[i] < 32 || b.p[i] == 127)
      b.p[i] = ' ';
  lm_cli_print("          | %s%s\n", b.p, cut ? "..." : "");
  lm_buf_free(&b);
}

static void text_print(const maker *x) {
  lm_buf bytes = {0}, docs = {0};
  const char *about = x->survey.estimated ? "about " : "";
  const char *line = x->survey.sample.p;
  lm_show_bytes(&bytes, x->survey.bytes);
  lm_show_count(&docs, x->survey.docs);
  lm_cli_print("text      %s: %s%s in %llu file%s, %s%s document%s\n", x->data, about, bytes.p,
               (unsigned long long)x->survey.files, x->survey.files == 1 ? "" : "s", about, docs.p,
               x->survey.docs == 1 ? "" : "s");
  for (int i = 0; i < SHOWN_LINES && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    size_t n = strcspn(line, "\n"), shown = n;
    if (n > SHOWN_BYTES)
      for (shown = SHOWN_BYTES; shown && ((unsigned char)line[shown] & 0xc0) == 0x80; shown--) {
      }
    if (n) {
      line_print(line, shown, shown < n);
      i++;
    }
  }
  lm_buf_free(&bytes);
  lm_buf_free(&docs);
}

static void files_print(const maker *x) {
  lm_buf passed = {0};
  lm_survey_passed_over(&x->survey, &passed);
  if (passed.n)
    lm_print_wrapped(stdout, INDENT, "not read  %s\n", passed.p);
  lm_buf_free(&passed);
}

static void machine_print(const maker *x) {
  const lm_machine *m = &x->machine;
  lm_buf flops = {0}, memory = {0}, rate = {0};
  lm_show_count(&flops, x->advice.flops);
  lm_show_bytes(&memory, m->memory);
  lm_show_count(&rate, x->advice.tokens_per_s);
  lm_print_wrapped(stdout, INDENT,
                   "machine   %d core%s, %s memory; %sFLOP/s in matrix products %lld wide; %s "
                   "tokens a second with this model%s\n",
                   m->cores, m->cores == 1 ? "" : "s", memory.p, flops.p, (long long)x->advice.d,
                   rate.p, x->timed ? ", timed" : " (estimated)");
  if (lm_machine_is_busy(m))
    lm_print_wrapped(stdout, INDENT,
                     "busy      other processes use the processors (load average %.1f on %d "
                     "core%s): the least of several timings counts, and the "
                     "estimate is for a quiet machine; the run takes longer while they go on\n",
                     m->load, m->cores, m->cores == 1 ? "" : "s");
  lm_buf_free(&flops);
  lm_buf_free(&memory);
  lm_buf_free(&rate);
}

static void tokens_print(const maker *x) {
  const lm_advice *a = &x->advice;
  lm_buf text = {0}, more = {0};
  lm_show_count(&text, x->text.tokens);
  if (a->vocab < x->vocab_of_text)
    lm_buf_printf(
        &more,
        "; %lld would suit the text, but most parameters of so small a model would be theirs",
        (long long)x->vocab_of_text);
  if (a->vocab == 256)
    lm_print_wrapped(stdout, INDENT, "tokens    bytes, as the text is small: %s\n", text.p);
  else
    lm_print_wrapped(stdout, INDENT,
                     "tokens    byte pairs, %lld of them, learned from the text: about %s, of %.1f "
                     "bytes each%s\n",
                     (long long)a->vocab, text.p, x->text.bytes_per_token, more.p ? more.p : "");
  lm_buf_free(&text);
  lm_buf_free(&more);
}

static void choice_print(const maker *x) {
  static const char *const why[] = {
      [LM_BOUND_TIME] =
          "a larger one would see too few tokens in this time, a smaller one could not use them",
      [LM_BOUND_TEXT] =
          "the text is the limit, not the time; a smaller one would learn less from it",
      [LM_BOUND_MEMORY] = "a larger one does not fit in memory"};
  const lm_advice *a = &x->advice;
  lm_buf params = {0}, tokens = {0}, time = {0};
  double run = (double)(a->steps * a->batch);
  lm_show_count(&params, a->params);
  lm_show_count(&tokens, run);
  lm_show_seconds(&time, run / a->tokens_per_s);
  lm_print_wrapped(
      stdout, INDENT,
      "model     %s parameters (%.0f%% of them the vocabulary's), %lld layers %lld wide: %s\n",
      params.p, 100 * (double)(a->vocab * a->d) / a->params, (long long)a->depth, (long long)a->d,
      why[a->bound]);
  lm_print_wrapped(stdout, INDENT,
                   "run       %lld steps of %lld tokens, about %s: %s tokens, %.2g for each "
                   "parameter, the text %.2g times\n",
                   (long long)a->steps, (long long)a->batch, time.p, tokens.p, run / a->params,
                   run / x->text.tokens);
  if (x->advice.text_ends)
    lm_print_wrapped(stdout, INDENT,
                     "          shorter than asked: read more often than %d times, text is learned "
                     "by heart; more text would use the time\n",
                     LM_ADVICE_EPOCHS);
  lm_buf_free(&params);
  lm_buf_free(&tokens);
  lm_buf_free(&time);
}

static void facts_print(const maker *x) {
  text_print(x);
  files_print(x);
  machine_print(x);
  tokens_print(x);
  choice_print(x);
}

static void next_print(const maker *x) {
  lm_cli_print("\n%s is written. Next:\n  lmc check %s\n  lmc run %s\n", x->path, x->path, x->path);
  if (!access(lm_arena_printf(x->cli->ctx->arena, "runs/%s", x->name), F_OK))
    lm_cli_print("runs/%s is there already: another recipe's run does not go on in it; remove it, "
                 "or add --out\n",
                 x->name);
}

// Ends the object about the text.
static void passed_json(const maker *x, lm_buf *b) {
  lm_buf passed = {0};
  lm_survey_passed_over(&x->survey, &passed);
  lm_buf_puts(b, ", \"not_read\": ");
  lm_buf_json(b, passed.n ? passed.p : "");
  lm_buf_puts(b, "}");
  lm_buf_free(&passed);
}

static void json_print(const maker *x) {
  static const char *const bounds[] = {
      [LM_BOUND_TIME] = "time", [LM_BOUND_TEXT] = "text", [LM_BOUND_MEMORY] = "memory"};
  const lm_advice *a = &x->advice;
  lm_buf b = {0};
  lm_buf_puts(&b, "{\"file\": ");
  lm_buf_json(&b, x->path);
  lm_buf_printf(&b,
                ", \"text\": {\"files\": %llu, \"bytes\": %.0f, \"documents\": %.0f, \"tokens\": "
                "%.0f, \"estimated\": %s",
                (unsigned long long)x->survey.files, x->survey.bytes, x->survey.docs,
                x->text.tokens, x->survey.estimated ? "true" : "false");
  passed_json(x, &b);
  lm_buf_printf(&b,
                ", \"machine\": {\"cores\": %d, \"memory\": %.0f, \"flops\": %.4g, \"load\": %.2f, "
                "\"busy\": %s}",
                x->machine.cores, x->machine.memory, a->flops, x->machine.load,
                lm_machine_is_busy(&x->machine) ? "true" : "false");
  lm_buf_printf(&b,
                ", \"model\": {\"params\": %.0f, \"depth\": %lld, \"d\": %lld, \"ff\": %lld, "
                "\"heads\": %lld, \"vocab\": %lld, \"bound\": \"%s\"}",
                a->params, (long long)a->depth, (long long)a->d, (long long)a->ff,
                (long long)a->heads, (long long)a->vocab, bounds[a->bound]);
  lm_buf_printf(&b,
                ", \"run\": {\"steps\": %lld, \"batch\": %lld, \"micro\": %lld, \"seq\": %lld, "
                "\"lr\": %g, \"every\": %lld, \"tokens_per_s\": %.1f, "
                "\"seconds\": %.1f, \"timed\": %s, \"text_ends\": %s}}",
                (long long)a->steps, (long long)a->batch, (long long)a->micro, (long long)a->seq,
                a->lr, (long long)a->every, a->tokens_per_s,
                (double)(a->steps * a->batch) / a->tokens_per_s, x->timed ? "true" : "false",
                x->advice.text_ends ? "true" : "false");
  lm_cli_print("%s\n", b.p);
  lm_buf_free(&b);
}

// ---- the command

static lm_status make(maker *x) {
  lm_cli *cli = x->cli;
  x->data = lm_args_text(&cli->args, "data", NULL);
  LM_TRY(time_read(x));
  LM_TRY(name_check(x));
  if (!x->data)
    return lm_fail(LM_USER, "which text? lmc new %s --data PATH: a file, a folder or a pattern",
                   x->name);
  LM_TRY(lm_dataset_inspect(cli->ctx->arena, x->data, &x->survey));
  if (x->survey.bytes < TEXT_LEAST)
    return lm_fail(LM_USER,
                   "%s holds %.0f bytes of text; a model needs at least %d, and learns "
                   "something from a million",
                   x->data, x->survey.bytes, TEXT_LEAST);
  lm_machine_measure(&x->machine);
  LM_TRY(model_choose(x, &x->machine));
  prompt_find(x);
  LM_TRY(file_write(x));
  lm_status status = steps_settle(x);
  if (status)
    unlink(x->path);
  return status;
}

static lm_status run(lm_cli *cli) {
  maker x = {.cli = cli};
  lm_status status = make(&x);
  if (!status && cli->json)
    json_print(&x);
  if (!status && !cli->json) {
    facts_print(&x);
    next_print(&x);
  }
  lm_dataset_free(&x.survey);
  return status;
}

const lm_command lm_cmd_new = {
    .name = "new",
    .usage = "NAME --data PATH [options]",
    .summary = "writes a first recipe for a text, sized for this machine",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "Looks at the text, measures the machine, and writes NAME.lm: a commented model with "
            "its recipe, whose run takes about\n"
            "the minutes asked for. Says what it chose and why. A file of that name is never "
            "overwritten.\n\n"
            "  lmc new bible --data data/bible.txt --minutes 10\n"};
