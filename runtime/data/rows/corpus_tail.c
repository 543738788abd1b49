// corpus_tail.c - see corpus_tail.h.
#include "runtime/data/rows/corpus_tail.h"

#include <math.h>
#include <string.h>

bool lm_column_is_field(const lm_data_options *o, const lm_data_column *x) {
  const lm_chat *chat = o->n_sources ? o->sources[0].chat : NULL;
  bool pairs = chat && chat->chosen;
  bool prefers = pairs && !strcmp(x->name, "prefer");
  if (chat && chat->has_target && lm_source_column_find(x->name) < LM_SOURCE_COLUMNS)
    return false;
  return !prefers && !lm_column_is_prompt(x->name);
}

bool lm_column_fits(lm_dtype dtype, double x) {
  return dtype == LM_INT ? x >= INT32_MIN && x <= INT32_MAX : isfinite((float)x);
}

static int width_of(int64_t vocab) {
  return vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4;
}

bool lm_corpus_has_marks(const lm_data_options *o) {
  for (int i = 0; i < o->n_sources; i++)
    if (o->sources[i].chat)
      return true;
  return false;
}

int lm_corpus_width(const lm_data_options *o) {
  return width_of(lm_corpus_has_marks(o) ? 2 * (int64_t)o->tokenizer->vocab : o->tokenizer->vocab);
}

static int fields_count(const lm_data_options *o) {
  int n = 0;
  for (int i = 0; i < o->n_columns; i++)
    n += lm_column_is_field(o, &o->columns[i]);
  return n;
}

// The hashes of a file only tell that it is as it was sealed: what depends on the recipe, and each
// size and range, is compared before it is used.
static bool counts_are_valid(const lm_corpus_tail *t, const lm_corpus *c,
                             const lm_data_options *o) {
  uint64_t words = c->docs->n_tail / sizeof(uint64_t);
  if (t->format != LM_CORPUS_FORMAT || t->token_root != c->tokens->root)
    return false;
  if (t->width != (uint64_t)lm_corpus_width(o) || t->marked != lm_corpus_has_marks(o))
    return false;
  if (t->n_sources != (uint64_t)o->n_sources || t->n_columns != (uint64_t)fields_count(o))
    return false;
  if (c->docs->n % sizeof(lm_doc) || t->n_docs != c->docs->n / sizeof(lm_doc))
    return false;
  if (t->n_columns && t->n_docs > words / t->n_columns)
    return false;
  return t->read >= t->n_docs && t->bad == t->read - t->n_docs && t->n_list <= c->docs->n_tail;
}

static bool sources_are_valid(const lm_corpus *c, int n_sources) {
  const uint64_t *first = c->source_first;
  for (int i = 0; i < n_sources; i++)
    if (first[i] > first[i + 1])
      return false;
  return !first[0] && first[n_sources] == c->n_docs;
}

static bool values_are_valid(const lm_corpus *c, const lm_data_options *o) {
  const double *x = c->values;
  for (int i = 0, field = 0; i < o->n_columns; i++) {
    if (!lm_column_is_field(o, &o->columns[i]))
      continue;
    for (uint64_t k = 0; k < c->n_docs; k++)
      if (!lm_column_fits(o->columns[i].dtype, x[k * (uint64_t)c->n_columns + (uint64_t)field]))
        return false;
    field++;
  }
  return true;
}

bool lm_corpus_tail_read(lm_corpus *c, const lm_data_options *o) {
  lm_corpus_tail t;
  if (c->docs->n_tail < sizeof t)
    return false;
  memcpy(&t, c->docs->tail, sizeof t);
  if (!counts_are_valid(&t, c, o))
    return false;
  uint64_t numbers = t.n_docs * t.n_columns;
  uint64_t words = t.n_sources + 1 + numbers;
  if (!t.n_list || c->docs->n_tail != sizeof t + words * sizeof(uint64_t) + t.n_list)
    return false;
  c->n_docs = t.n_docs;
  c->read = t.read;
  c->bad = t.bad;
  c->width = (int)t.width;
  c->marked = t.marked;
  c->source_first = (const uint64_t *)(c->docs->tail + sizeof t);
  c->values = (const double *)(c->source_first + t.n_sources + 1);
  c->n_columns = (int)t.n_columns;
  c->bad_list = (const char *)(c->values + numbers);
  return !c->bad_list[t.n_list - 1] && sources_are_valid(c, o->n_sources) && values_are_valid(c, o);
}
