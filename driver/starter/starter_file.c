// starter_file.c - the text of a first recipe: a template with every @KEY@ replaced.
#include <math.h>
#include <string.h>

#include "driver/starter/starter.h"
#include "driver/text.h"
#include "dsl/syntax/ast.h"

struct lm_embedded {
  const char *path;
  const char *text;
};
extern const struct lm_embedded lm_templates[];

enum {
  SLOTS = 32,
  SAMPLED_MIN = 100, // documents of a text from which some are sampled as the holdout
  HELD_OUT_MIN = 5   // of those
};
static const double USUAL_BAD = 0.005; // share of unusable files that the default of `bad` allows

typedef struct slot {
  const char *key;
  lm_buf value;
} slot;
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

static void sources_write(const lm_starter *x, lm_buf *b) {
  for (int i = 0; i < x->dataset.n_sources; i++) {
    const lm_data_source *s = &x->dataset.sources[i];
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
  if (x->dataset.unusable > USUAL_BAD)
    lm_buf_printf(b, "\n  bad = %.0f%%", fmin(100, ceil(100 * x->dataset.unusable) + 1));
}

// A number of tokens as it is written in a recipe: 2Ki, 512.
static const char *tokens_text(const lm_starter *x, int64_t n) {
  lm_arena *a = x->ctx->arena;
  if (n % (1 << 20) == 0)
    return lm_arena_printf(a, "%lldMi", (long long)(n >> 20));
  if (n % 1024 == 0)
    return lm_arena_printf(a, "%lldKi", (long long)(n >> 10));
  return lm_arena_printf(a, "%lld", (long long)n);
}

// A random sample if there are enough documents, because the last ones may differ in kind from the
// rest.
static const char *holdout_text(const lm_starter *x) {
  lm_arena *a = x->ctx->arena;
  int64_t docs = (int64_t)ceil(x->advice.holdout * x->dataset.docs);
  if (x->dataset.docs >= SAMPLED_MIN)
    return lm_arena_printf(a, "sample(%lld docs)",
                           (long long)(docs < HELD_OUT_MIN ? HELD_OUT_MIN : docs));
  return lm_arena_printf(a, "tail(%.3g%%)", 100 * x->advice.holdout);
}

// The tokens of a sample: with its prompt, each byte of which may be a token, no more than a row
// has, as the model may have no further positions.
static int64_t sample_tokens(const lm_starter *x) {
  int64_t room = x->advice.seq - (int64_t)strlen(x->prompt);
  return room < LM_ADVICE_SAMPLE ? room : LM_ADVICE_SAMPLE;
}

static int slots_fill(const lm_starter *x, slot *slots) {
  const lm_advice *a = &x->advice;
  int n = 0;
  lm_buf time = {0};
  lm_buf sources = {0};
  lm_buf prompt = {0};
  lm_show_seconds(&time, x->seconds);
  sources_write(x, &sources);
  quoted(&prompt, x->prompt);
  const struct {
    const char *key;
    int64_t value;
  } whole[] = {{"DEPTH", a->depth},
               {"D", a->d},
               {"FF", a->ff},
               {"NARROW", a->ff / 3},
               {"HEADS", a->heads},
               {"KV", a->heads % 2 ? a->heads : a->heads / 2},
               {"E", a->d / a->heads},
               {"VOCAB", a->vocab},
               {"SEQ", a->seq},
               {"STEPS", a->steps},
               {"WARMUP", a->warmup},
               {"EVERY", a->every},
               {"SAMPLE", sample_tokens(x)}};
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
      LM_BUG("the template has an unknown slot %.*s", (int)key, at + 1);
    lm_buf_puts(out, slots[i].value.p);
    text += key + 1;
  }
  lm_buf_puts(out, text);
}

static const char *template_find(const char *name) {
  for (const struct lm_embedded *e = lm_templates; e->path; e++) {
    const char *slash = strrchr(e->path, '/');
    if (!strcmp(slash ? slash + 1 : e->path, name))
      return e->text;
  }
  LM_BUG("no template %s in the binary", name);
}

// The model's name, the call that sets its sizes, and the parameters without weight decay.
static int model_slots_fill(const lm_starter *x, slot *slots, int n) {
  lm_buf args = {0};
  template_fill(x->arch ? x->arch->args : "", slots, n, &args);
  const char *model = x->arch ? x->arch->model : "Llama";
  const char *call = lm_arena_printf(x->ctx->arena, "%s(%s)", model, args.p ? args.p : "");
  slot_set(slots, &n, "MODEL_CALL", "%s",
           lm_call_wrap(x->ctx->arena, strlen("  model = "), call, 0));
  slot_set(slots, &n, "MODEL", "%s", model);
  slot_set(slots, &n, "FILE", "%s", x->arch ? x->arch->file : "");
  slot_set(slots, &n, "ZOO", "%s", x->arch ? lm_zoo_text(x->arch) : "");
  slot_set(slots, &n, "UNDECAYED", "%s", x->arch ? x->arch->undecayed : "n1,n2,norm");
  lm_buf_free(&args);
  return n;
}

lm_status lm_starter_write(const lm_starter *x) {
  slot slots[SLOTS] = {0};
  lm_buf filled = {0};
  lm_buf text = {0};
  int n = model_slots_fill(x, slots, slots_fill(x, slots));
  template_fill(template_find(x->arch ? "zoo.lm" : "llama.lm"), slots, n, &filled);
  template_fill(template_find("recipe.lm"), slots, n, &filled);
  lm_fmt(x->ctx, lm_source_add(x->ctx, x->path, filled.p, filled.n), &text);
  lm_status s = lm_file_write_atomic(x->path, text.p, text.n);
  lm_buf_free(&filled);
  for (int i = 0; i < n; i++)
    lm_buf_free(&slots[i].value);
  lm_buf_free(&text);
  return s;
}
