// columns.c - the further columns of texts.
#include <math.h>
#include <string.h>

#include "runtime/data/feed/state.h"

// The smallest and the largest number of a field, for int columns.
static void range_find(const lm_corpus *c, int field, lm_data_column_info *x) {
  x->min = INT32_MAX;
  x->max = INT32_MIN;
  for (uint64_t i = 0; i < c->n_docs; i++) {
    double v = c->values[i * (uint64_t)c->n_columns + (uint64_t)field];
    int32_t n = fabs(v) < INT32_MAX ? (int32_t)v : 0;
    x->min = n < x->min ? n : x->min;
    x->max = n > x->max ? n : x->max;
  }
}

// The tokens of sources, their positions or their documents.
static void source_describe(const lm_data *d, const lm_data_options *o, lm_data_column_info *x) {
  lm_source_column k = lm_source_column_find(x->name);
  x->extent[0] = o->source;
  x->min = k == LM_SOURCE_COLUMN_SEG ? -1 : 0;
  x->max = k == LM_SOURCE_COLUMN_IDS ? (int32_t)d->corpus.vocab - 1 : (int32_t)o->source - 1;
}

void lm_data_columns_begin(lm_data *d, const lm_data_options *o) {
  int fields = 0;
  d->column_options = o->columns;
  d->source = o->source;
  d->fields = lm_calloc((size_t)d->n_columns + 1, sizeof *d->fields);
  for (int i = 0; i < d->n_columns; i++) {
    const lm_data_column *from = &o->columns[i];
    lm_data_column_info *x = &d->columns[i];
    x->name = from->name;
    x->rank = 1;
    x->min = -1;
    x->max = 1;
    if (from->of == LM_COLUMN_OF_DOCUMENTS)
      x->extent[0] = o->docs;
    if (o->source && lm_source_column_find(x->name) < LM_SOURCE_COLUMNS)
      source_describe(d, o, x);
    d->fields[i] = lm_column_is_field(o, from) ? fields++ : -1;
    if (d->fields[i] >= 0)
      range_find(&d->corpus, d->fields[i], x);
  }
}

void lm_data_columns_clear(const lm_batch *b, int64_t row) {
  for (int i = 0; i < b->n_more; i++) {
    const lm_batch_column *x = &b->more[i];
    int32_t *first = x->data;
    first += row * x->row;
    memset(first, 0, (size_t)x->row * LM_COLUMN_BYTES);
    bool is_seg = lm_source_column_find(x->name) == LM_SOURCE_COLUMN_SEG;
    for (int64_t k = 0; is_seg && k < x->row; k++)
      first[k] = -1;
  }
}

static const lm_data_column *column_find(const lm_data *d, const char *name) {
  int i = 0;
  while (i < d->n_columns && strcmp(d->columns[i].name, name))
    i++;
  if (i == d->n_columns)
    LM_BUG("the data was opened without column %s", name);
  return &d->column_options[i];
}

static void value_put(const lm_batch_column *to, lm_dtype dtype, int64_t at, double value) {
  int32_t *ints = to->data;
  float *floats = to->data;
  if (dtype == LM_INT)
    ints[at] = (int32_t)value;
  else
    floats[at] = (float)value;
}

// The value of column c for a document.
static lm_status value_of(const lm_data *d, const lm_data_column *c, const lm_data_document *x,
                          double *out) {
  int field = d->fields[c - d->column_options];
  uint64_t doc;
  if (field < 0) {
    *out = x->doc % 2 ? -1 : 1; // `prefer`
    return NULL;
  }
  LM_TRY(lm_corpus_doc_of(&d->corpus, x->start, &doc));
  *out = d->corpus.values[doc * (uint64_t)d->corpus.n_columns + (uint64_t)field];
  return NULL;
}

lm_status lm_data_columns_fill(const lm_data *d, const lm_batch *b, const lm_data_document *x) {
  for (int i = 0; i < b->n_more; i++) {
    const lm_batch_column *to = &b->more[i];
    const lm_data_column *c = column_find(d, to->name);
    bool of_documents = c->of == LM_COLUMN_OF_DOCUMENTS;
    int64_t first = of_documents ? x->doc : x->at;
    int64_t values = of_documents ? 1 : x->n;
    double value;
    bool of_source = d->source && lm_source_column_find(to->name) < LM_SOURCE_COLUMNS;
    if (lm_column_is_prompt(to->name) || of_source)
      continue;
    LM_TRY(value_of(d, c, x, &value));
    LM_ASSERT(first + values <= to->row);
    first += x->row * to->row;
    for (int64_t k = 0; k < values; k++)
      value_put(to, c->dtype, first + k, value);
  }
  return NULL;
}

// ---- sources

static lm_status source_put(const lm_data *d, const lm_batch_column *to, const lm_doc *doc,
                            const lm_data_document *x, int64_t at, int64_t n) {
  int32_t *out = to->data;
  out += x->row * to->row + at;
  switch (lm_source_column_find(to->name)) {
  case LM_SOURCE_COLUMN_IDS: return lm_corpus_read(&d->corpus, doc->start, (uint64_t)n, out, NULL);
  case LM_SOURCE_COLUMN_POS:
    for (int64_t i = 0; i < n; i++)
      out[i] = (int32_t)i;
    break;
  case LM_SOURCE_COLUMN_SEG:
    for (int64_t i = 0; i < n; i++)
      out[i] = (int32_t)x->doc;
    break;
  default: break;
  }
  return NULL;
}

lm_status lm_data_source_fill(const lm_data *d, const lm_batch *b, const lm_data_document *x,
                              int64_t *at) {
  uint64_t index;
  lm_doc doc;
  if (!d->source)
    return NULL;
  LM_TRY(lm_corpus_doc_of(&d->corpus, x->start, &index));
  LM_TRY(lm_corpus_docs(&d->corpus, index, 1, &doc));
  int64_t n = (int64_t)(doc.second - doc.start);
  n = n < d->source ? n : d->source;
  if (n < 1 || n > d->source - *at)
    return lm_fail(LM_ENV, "the cache of the data holds rows of other documents");
  for (int i = 0; i < b->n_more; i++)
    LM_TRY(source_put(d, &b->more[i], &doc, x, *at, n));
  *at += n;
  return NULL;
}

static int32_t *prompt_find(const lm_batch *b, int64_t first) {
  for (int i = 0; i < b->n_more; i++)
    if (lm_column_is_prompt(b->more[i].name))
      return (int32_t *)b->more[i].data + first;
  return NULL;
}

void lm_data_prompt_fill(const lm_batch *b, int64_t first, int64_t n) {
  int32_t *prompt = prompt_find(b, first);
  bool inside = true;
  for (int64_t i = 0; prompt && i < n; i++) {
    prompt[i] = inside;
    inside &= b->w[first + i] == 0;
  }
}

int64_t lm_data_prompt_check(const lm_batch *b, int64_t positions) {
  const int32_t *prompt = prompt_find(b, 0);
  int64_t at = 0;
  for (; prompt && at < positions; at++) {
    bool begins = at == 0 || b->pos[at] == 0 || b->seg[at] != b->seg[at - 1];
    bool inside =
        at + 1 < positions && b->pos[at + 1] && b->seg[at + 1] == b->seg[at] && prompt[at + 1] == 1;
    bool ok = prompt[at] == 0 || prompt[at] == 1;
    ok &= begins || prompt[at] <= prompt[at - 1];
    if (!ok || (prompt[at] == 1 && inside && b->w[at] != 0))
      return at;
  }
  return -1;
}
