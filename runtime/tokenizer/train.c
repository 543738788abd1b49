// train.c - see train.h. Words are counted first, so the cost of training depends on the number of
// distinct words.
#include "runtime/tokenizer/train.h"

#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/pretok.h"
#include "runtime/tokenizer/train_kinds.h"

enum {
  WORD_MAX = 1024
};

typedef struct {
  lm_word_table words;
  lm_pretok_room *room;
} counter;

struct lm_vocab_trainer {
  lm_tokenizer_kind kind;
  lm_pretok *pretok;
  counter *counters;
  int n_counters;
};

int32_t lm_trained_min(lm_tokenizer_kind kind) {
  return kind == LM_TOKENIZER_UNIGRAM ? LM_TRAINED_UNIGRAM_MIN : LM_TRAINED_BPE_MIN;
}

static lm_status on_word(void *user, const char *p, size_t n) {
  counter *c = user;
  if (n <= WORD_MAX)
    lm_word_count(&c->words, p, n, 1);
  return NULL;
}

static lm_status pretok_make(lm_vocab_trainer *t) {
  if (t->kind == LM_TOKENIZER_BPE)
    return lm_pretok_split_add(t->pretok, LM_PRETOK_GPT2, strlen(LM_PRETOK_GPT2), false,
                               LM_SPLIT_ISOLATED, false);
  LM_TRY(lm_pretok_split_add(t->pretok, LM_PRETOK_LINES, strlen(LM_PRETOK_LINES), false,
                             LM_SPLIT_ISOLATED, false));
  return lm_pretok_metaspace_add(t->pretok, LM_PREFIX_FIRST, true);
}

lm_vocab_trainer *lm_vocab_trainer_create(lm_tokenizer_kind kind, int workers) {
  lm_vocab_trainer *t = lm_alloc(sizeof *t);
  LM_ASSERT(kind == LM_TOKENIZER_BPE || kind == LM_TOKENIZER_UNIGRAM);
  t->kind = kind;
  t->pretok = lm_pretok_create();
  lm_status s = pretok_make(t);
  LM_ASSERT(!s);
  t->n_counters = workers;
  t->counters = lm_calloc((size_t)workers, sizeof *t->counters);
  for (int i = 0; i < workers; i++) {
    t->counters[i].words.arena = lm_arena_create();
    t->counters[i].room = lm_pretok_room_create(t->pretok);
  }
  return t;
}

void lm_vocab_trainer_destroy(lm_vocab_trainer *t) {
  if (!t)
    return;
  for (int i = 0; i < t->n_counters; i++) {
    lm_arena_destroy(t->counters[i].words.arena);
    lm_free(t->counters[i].words.at);
    lm_pretok_room_destroy(t->counters[i].room);
  }
  lm_pretok_destroy(t->pretok);
  lm_free(t->counters);
  lm_free(t);
}

// The words of a unigram model begin with a space; a text that is cut begins with one too.
lm_status lm_vocab_trainer_add(lm_vocab_trainer *t, int worker, const char *text, size_t n) {
  counter *c = &t->counters[worker];
  for (size_t at = 0, valid; at < n; at += valid + 1) {
    valid = lm_utf8_valid(text + at, n - at);
    LM_TRY(lm_pretok_run(t->pretok, c->room, text + at, valid, LM_TEXT_WHOLE, at > 0,
                         (lm_word_sink){on_word, c}));
  }
  return NULL;
}

// The beginning of a tokenizer.json: the added tokens.
static void head_print(lm_buf *out) {
  lm_buf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                   "  \"added_tokens\": [{\"id\": 0, \"content\": \"" LM_TRAINED_EOS
                   "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                   "\"normalized\": false, \"special\": true}],\n  \"normalizer\": null,\n");
}

static lm_status words_train(const lm_vocab_trainer *t, lm_word *words, size_t n, int32_t vocab,
                             lm_buf *out) {
  if (n > UINT32_MAX)
    return lm_fail(LM_USER, "the text has %zu distinct words, which exceeds the maximum", n);
  head_print(out);
  if (t->kind == LM_TOKENIZER_BPE)
    lm_train_bpe(words, n, vocab, out);
  else
    lm_train_unigram(words, n, vocab, out);
  return NULL;
}

lm_status lm_vocab_trainer_finish(lm_vocab_trainer *t, int32_t vocab, lm_buf *out_json) {
  if (vocab < lm_trained_min(t->kind))
    return lm_fail(LM_USER, "a vocabulary of %d tokens is too small; the least is %d", vocab,
                   lm_trained_min(t->kind));
  lm_word_table *all = &t->counters[0].words;
  size_t n;
  for (int i = 1; i < t->n_counters; i++)
    lm_words_add(all, &t->counters[i].words);
  lm_word *words = lm_words_list(all, &n);
  lm_status s = words_train(t, words, n, vocab, out_json);
  lm_free(words);
  return s;
}
