// starter_report.c - the findings and choices of a first recipe, as text and as JSON.
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "driver/starter/starter.h"
#include "driver/text.h"
#include "runtime/base/diag.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"

enum {
  INDENT = 10,
  SHOWN_LINES = 3,
  SHOWN_BYTES = 96
};

static void print(FILE *to, const char *fmt, ...) LM_PRINTF(2, 3);
static void print(FILE *to, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_vprint_shown(to, fmt, ap);
  va_end(ap);
}

static void line_print(const char *line, size_t n, bool cut, FILE *to) {
  print(to, "          | %.*s%s\n", (int)n, line, cut ? "..." : "");
}

// Of a line of the text: as many as fit one line of the terminal.
static size_t shown_bytes(FILE *to) {
  int width = lm_terminal_width(to);
  int frame = INDENT + (int)strlen("| ...");
  if (!width || width - frame > SHOWN_BYTES)
    return SHOWN_BYTES;
  return width > frame ? (size_t)(width - frame) : 1;
}

static void text_print(const lm_starter *x, FILE *to) {
  lm_buf bytes = {0};
  lm_buf docs = {0};
  const char *about = x->dataset.estimated ? "about " : "";
  const char *line = x->dataset.sample.p;
  size_t most = shown_bytes(to);
  lm_show_bytes(&bytes, x->dataset.bytes);
  lm_show_count(&docs, x->dataset.docs);
  print(to, "text      %s: %s%s in %llu file%s, %s%s document%s\n", x->data, about, bytes.p,
        (unsigned long long)x->dataset.files, x->dataset.files == 1 ? "" : "s", about, docs.p,
        x->dataset.docs == 1 ? "" : "s");
  for (int i = 0; i < SHOWN_LINES && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    size_t n = strcspn(line, "\n");
    size_t shown = n;
    if (n > most)
      shown = most;
    while (shown && shown < n && lm_utf8_continues(line[shown]))
      shown--;
    if (n) {
      line_print(line, shown, shown < n, to);
      i++;
    }
  }
  lm_buf_free(&bytes);
  lm_buf_free(&docs);
}

static void files_print(const lm_starter *x, FILE *to) {
  lm_buf passed = {0};
  lm_dataset_skipped(&x->dataset, &passed);
  if (passed.n)
    lm_print_wrapped(to, INDENT, "not read  %s\n", passed.p);
  lm_buf_free(&passed);
}

static bool is_table(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot && (!strcasecmp(dot, ".csv") || !strcasecmp(dot, ".tsv"));
}

// A table is text like any other, which is rarely meant.
static void tables_print(const lm_starter *x, FILE *to) {
  for (int i = 0; i < x->dataset.n_sources; i++)
    if (is_table(x->dataset.sources[i].path))
      lm_print_wrapped(to, INDENT,
                       "table     %s is read as plain text, with the names of its columns and its "
                       "separators; in a .jsonl file one field is the text\n",
                       x->dataset.sources[i].path);
}

// Which fields of JSON lines are read, if that is not the usual one.
static void fields_print(const lm_starter *x, FILE *to) {
  for (int i = 0; i < x->dataset.n_sources; i++) {
    const lm_data_source *s = &x->dataset.sources[i];
    if (s->field && strcmp(s->field, "text"))
      lm_print_wrapped(to, INDENT, "field     '%s' of each line of %s is the text\n", s->field,
                       s->path);
  }
}

static void machine_print(const lm_starter *x, FILE *to) {
  const lm_machine *m = &x->machine;
  lm_buf memory = {0};
  lm_buf rate = {0};
  lm_buf load = {0};
  lm_show_bytes(&memory, m->memory);
  lm_load_text(&m->load, &load);
  lm_show_count(&rate, x->advice.tokens_per_s);
  lm_print_wrapped(to, INDENT,
                   "machine   %d core%s, %s memory; %.4g GFLOP/s in GEMMs %lld wide; %s "
                   "tokens a second with this model%s\n",
                   m->load.cores, m->load.cores == 1 ? "" : "s", memory.p, x->advice.flops / 1e9,
                   (long long)x->advice.d, rate.p, x->timed ? ", timed" : " (estimated)");
  if (lm_load_is_busy(&m->load))
    lm_print_wrapped(to, INDENT,
                     "busy      %s, and the estimate is for a quiet machine; the run takes longer "
                     "while other processes use the processors\n",
                     load.p);
  lm_buf_free(&load);
  lm_buf_free(&memory);
  lm_buf_free(&rate);
}

static void tokens_print(const lm_starter *x, FILE *to) {
  const lm_advice *a = &x->advice;
  lm_buf text = {0};
  lm_buf more = {0};
  lm_show_count(&text, x->text.tokens);
  if (a->vocab < x->vocab_of_text)
    lm_buf_printf(
        &more,
        "; %lld would suit the text, but most parameters of so small a model would be theirs",
        (long long)x->vocab_of_text);
  if (a->vocab == 256)
    lm_print_wrapped(to, INDENT, "tokens    bytes, as the text is small: %s\n", text.p);
  else
    lm_print_wrapped(to, INDENT,
                     "tokens    byte pairs, %lld of them, learned from the text: about %s, of %.1f "
                     "bytes each%s\n",
                     (long long)a->vocab, text.p, x->text.bytes_per_token, more.p ? more.p : "");
  lm_buf_free(&text);
  lm_buf_free(&more);
}

static void choice_print(const lm_starter *x, FILE *to) {
  static const char *const why[] = {
      [LM_BOUND_TIME] =
          "a larger one would see too few tokens in this time, a smaller one could not use them",
      [LM_BOUND_TEXT] =
          "the text is the limit, not the time; a smaller one would learn less from it",
      [LM_BOUND_MEMORY] = "a larger one does not fit in memory"};
  const lm_advice *a = &x->advice;
  lm_buf params = {0};
  lm_buf asked = {0};
  lm_buf tokens = {0};
  lm_buf time = {0};
  double run = (double)(a->steps * a->batch);
  lm_show_count(&params, a->params);
  lm_buf_puts(&asked, "near the ");
  lm_show_count(&asked, x->params);
  lm_buf_puts(&asked, " that were asked for");
  lm_show_count(&tokens, run);
  lm_show_seconds(&time, run / a->tokens_per_s);
  lm_print_wrapped(
      to, INDENT,
      "model     %s, %s parameters (%.0f%% of them the vocabulary's), %lld layers %lld wide: %s\n",
      x->arch ? x->arch->model : "Llama", params.p, 100 * (double)(a->vocab * a->d) / a->params,
      (long long)a->depth, (long long)a->d, a->bound == LM_BOUND_ASKED ? asked.p : why[a->bound]);
  lm_print_wrapped(to, INDENT,
                   "run       %lld steps of %lld tokens, about %s: %s tokens, %.2g for each "
                   "parameter, the text %.2g times\n",
                   (long long)a->steps, (long long)a->batch, time.p, tokens.p, run / a->params,
                   run / x->text.tokens);
  if (x->advice.text_ends)
    lm_print_wrapped(to, INDENT,
                     "          shorter than asked: a model memorizes text that it reads more than "
                     "%d times; more text would use the time\n",
                     LM_ADVICE_EPOCHS);
  lm_buf_free(&params);
  lm_buf_free(&asked);
  lm_buf_free(&tokens);
  lm_buf_free(&time);
}

static void next_print(const lm_starter *x, FILE *to) {
  print(to, "\n%s is written. Next:\n  lmc check %s\n  lmc run %s\n", x->path, x->path, x->path);
  if (!access(lm_arena_printf(x->ctx->arena, "runs/%s", x->name), F_OK))
    lm_print_wrapped(
        to, 2,
        "runs/%s exists already, and the run of another recipe is not resumed in it: remove it, or "
        "add --out\n",
        x->name);
}

void lm_starter_print(const lm_starter *x, FILE *to) {
  text_print(x, to);
  tables_print(x, to);
  fields_print(x, to);
  files_print(x, to);
  machine_print(x, to);
  tokens_print(x, to);
  choice_print(x, to);
  next_print(x, to);
}

// ---- as JSON

// The end of the object "text".
static void skipped_json(const lm_starter *x, lm_buf *b) {
  lm_buf passed = {0};
  lm_dataset_skipped(&x->dataset, &passed);
  lm_buf_puts(b, ", \"not_read\": ");
  lm_buf_json(b, passed.n ? passed.p : "");
  lm_buf_puts(b, "}");
  lm_buf_free(&passed);
}

void lm_starter_json(const lm_starter *x, lm_buf *out) {
  static const char *const bounds[] = {[LM_BOUND_TIME] = "time",
                                       [LM_BOUND_TEXT] = "text",
                                       [LM_BOUND_MEMORY] = "memory",
                                       [LM_BOUND_ASKED] = "asked"};
  const lm_advice *a = &x->advice;
  lm_buf_puts(out, "{\"file\": ");
  lm_buf_json(out, x->path);
  lm_buf_printf(out,
                ", \"text\": {\"files\": %llu, \"bytes\": %.0f, \"documents\": %.0f, \"tokens\": "
                "%.0f, \"estimated\": %s",
                (unsigned long long)x->dataset.files, x->dataset.bytes, x->dataset.docs,
                x->text.tokens, x->dataset.estimated ? "true" : "false");
  skipped_json(x, out);
  lm_buf_printf(out, ", \"machine\": {\"memory\": %.0f, \"flops\": %.4g, ", x->machine.memory,
                a->flops);
  lm_load_json(&x->machine.load, out);
  lm_buf_puts(out, "}");
  lm_buf_printf(out,
                ", \"model\": {\"name\": \"%s\", \"params\": %.0f, \"depth\": %lld, \"d\": %lld, "
                "\"ff\": %lld, "
                "\"heads\": %lld, \"vocab\": %lld, \"bound\": \"%s\"}",
                x->arch ? x->arch->model : "Llama", a->params, (long long)a->depth, (long long)a->d,
                (long long)a->ff, (long long)a->heads, (long long)a->vocab, bounds[a->bound]);
  lm_buf_printf(out,
                ", \"run\": {\"steps\": %lld, \"batch\": %lld, \"micro\": %lld, \"seq\": %lld, "
                "\"lr\": %g, \"every\": %lld, \"tokens_per_s\": %.1f, "
                "\"seconds\": %.1f, \"timed\": %s, \"text_ends\": %s}}\n",
                (long long)a->steps, (long long)a->batch, (long long)a->micro, (long long)a->seq,
                a->lr, (long long)a->every, a->tokens_per_s,
                (double)(a->steps * a->batch) / a->tokens_per_s, x->timed ? "true" : "false",
                x->advice.text_ends ? "true" : "false");
}
