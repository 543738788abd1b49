// corpus.c - see corpus.h. Rounds of documents are split into chunks of similar size. Threads
// tokenize chunks in any order, and chunks are written in order, so the files do not depend on the
// number of threads.
#include "runtime/data/rows/corpus.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/base/parallel.h"
#include "runtime/data/rows/corpus_tail.h"
#include "runtime/data/rows/unusable.h"

enum {
  CHUNK = 128 << 10,
  HOPELESS_MIN = 10000
};

typedef struct {
  uint32_t n, second; // second: tokens before the second text of a pair; 0: no pair
  uint64_t line;
  char *fault;
} result; // of a span: the number of its tokens, or a fault
typedef struct {
  size_t first;
  size_t n;
  lm_tokens ids;
  lm_status status;
} chunk; // a range of spans

typedef struct {
  const lm_data_options *o;
  const lm_file_list *files;
  lm_doc_reader *reader;
  const lm_text_span *spans;
  size_t n_spans; // of this round
  result *results;
  size_t cap_results;
  chunk *chunks;
  size_t n_chunks;
  size_t cap_chunks;
  lm_store_writer *tokens, *docs;
  uint64_t n_tokens, n_docs;
  uint64_t *source_first;
  lm_doc doc;
  bool doc_bad; // the current document has a fault
  uint64_t read, bad;
  lm_buf list;
  void *narrow;
  size_t cap_narrow; // the ids of a chunk, in the width in which they are stored
  int width;
  bool marked;
  const lm_data_column **fields; // the columns that are fields of JSON
  int n_fields;
  double *found; // [n_spans][n_fields], of this round
  lm_buf values; // of all documents
} build;

// ---- tokenizing

static lm_status text_encode(const lm_tokenizer *t, const lm_text_span *s, const char *p, size_t n,
                             lm_tokens *out) {
  size_t before = out->n;
  if (s->begins)
    lm_tokens_add_n(out, t->prefix, (size_t)t->n_prefix);
  size_t framed = out->n;
  int part = (s->begins ? 0 : LM_TEXT_FOLLOWS) | (s->ends ? 0 : LM_TEXT_PRECEDES);
  LM_TRY(lm_tokenizer_encode_part(t, p, n, part, out));
  if (s->begins && s->ends && out->n == framed) { // an empty text is not a document
    out->n = before;
    return NULL;
  }
  if (!s->ends)
    return NULL;
  lm_tokens_add_n(out, t->suffix, (size_t)t->n_suffix);
  if (t->eos >= 0 && (!out->n || out->ids[out->n - 1] != t->eos))
    lm_tokens_add(out, t->eos);
  return NULL;
}

// ---- columns

static void fields_list(build *b) {
  const lm_data_options *o = b->o;
  b->fields = lm_calloc((size_t)o->n_columns + 1, sizeof *b->fields);
  for (int i = 0; i < o->n_columns; i++)
    if (lm_column_is_field(o, &o->columns[i]))
      b->fields[b->n_fields++] = &o->columns[i];
}

// A number, or true and false as 1 and 0.
static lm_status number_read(const json_t *x, const lm_data_column *to, double *out) {
  bool is_int = to->dtype == LM_INT;
  if (json_is_boolean(x))
    *out = json_is_true(x);
  else if (json_is_number(x))
    *out = json_number_value(x);
  else
    return lm_fail(LM_USER, "no %s in the field \"%.100s\"", is_int ? "whole number" : "number",
                   to->name);
  const char *why = !lm_column_fits(to->dtype, *out) ? "too large for 32 bits"
                    : is_int && *out != rint(*out)   ? "not a whole number"
                                                     : NULL;
  return why ? lm_fail(LM_USER, "the number %.10g in the field \"%.100s\" is %s", *out, to->name,
                       why)
             : NULL;
}

// Reads the numbers of span i from its line of JSON.
static lm_status fields_read(const build *b, size_t i, const json_t *line) {
  double *out = b->found + i * (size_t)b->n_fields;
  for (int k = 0; k < b->n_fields; k++)
    LM_TRY(number_read(json_object_get(line, b->fields[k]->name), b->fields[k], &out[k]));
  return NULL;
}

static lm_status line_encode(const build *b, const lm_chat *chat, size_t i, lm_tokens *out,
                             uint32_t *out_second) {
  const lm_text_span *s = &b->spans[i];
  lm_conversation c[2] = {0};
  size_t before = out->n;
  lm_status fault =
      chat->chosen ? lm_pair_read(chat, s->p, s->n, c) : lm_conversation_read(chat, s->p, s->n, c);
  if (!fault)
    fault = fields_read(b, i, c->root);
  *out_second = 0;
  if (!fault)
    fault = chat->has_target ? lm_chat_encode_target(chat, c, out, out_second)
                             : lm_chat_encode(chat, c, false, out);
  if (chat->chosen)
    *out_second = (uint32_t)(out->n - before);
  if (!fault && chat->chosen)
    fault = lm_chat_encode(chat, c + 1, false, out);
  lm_conversation_free(c);
  lm_conversation_free(c + 1);
  return fault;
}

// A conversation that has an error, or nothing to train on, is a bad document.
static void chat_encode(const build *b, const lm_chat *chat, size_t i, lm_tokens *out) {
  const lm_text_span *s = &b->spans[i];
  result *r = &b->results[i];
  size_t before = out->n;
  lm_status fault = s->fault ? lm_fail(LM_USER, "%s", s->fault) : NULL;
  if (!fault)
    fault = line_encode(b, chat, i, out, &r->second);
  r->line = s->line;
  r->fault = fault ? lm_strdup(fault->text) : NULL;
  out->n = fault ? before : out->n;
  r->n = (uint32_t)(out->n - before);
  lm_status_free(fault);
}

static lm_status span_encode(const build *b, size_t i, lm_tokens *out) {
  const lm_text_span *s = &b->spans[i];
  result *r = &b->results[i];
  json_t *owner;
  char fault[300];
  size_t n;
  size_t before = out->n;
  const lm_data_source *source = &b->files->sources[b->files->files[s->file].source];
  if (source->chat) {
    chat_encode(b, source->chat, i, out);
    return NULL;
  }
  const char *p = lm_text_span_read(s, source, b->o->tokenizer->needs_utf8, &n, &owner, fault,
                                    sizeof fault, &r->line);
  lm_status wrong = p && owner ? fields_read(b, i, owner) : NULL;
  bool good = p && !wrong;
  lm_status status = good ? text_encode(b->o->tokenizer, s, p, n, out) : NULL;
  r->fault = good ? NULL : lm_strdup(wrong ? wrong->text : fault);
  lm_status_free(wrong);
  r->n = (uint32_t)(out->n - before);
  json_decref(owner);
  return lm_annotate(status, "%s:%llu", b->files->files[s->file].path, (unsigned long long)s->line);
}

static void chunk_encode(void *user, int64_t i, int worker) {
  build *b = user;
  chunk *c = &b->chunks[i];
  c->ids.n = 0;
  c->status = NULL;
  for (size_t k = 0; k < c->n && !c->status; k++)
    c->status = span_encode(b, c->first + k, &c->ids);
}

static chunk *chunk_add(build *b, size_t first) {
  if (b->n_chunks == b->cap_chunks) {
    size_t cap = b->cap_chunks ? 2 * b->cap_chunks : 64;
    b->chunks = lm_realloc(b->chunks, cap * sizeof *b->chunks);
    memset(b->chunks + b->cap_chunks, 0, (cap - b->cap_chunks) * sizeof *b->chunks);
    b->cap_chunks = cap;
  }
  chunk *c = &b->chunks[b->n_chunks++];
  c->first = first;
  c->n = 0;
  return c;
}

static void round_split(build *b) {
  b->n_chunks = 0;
  size_t bytes = CHUNK;
  for (size_t i = 0; i < b->n_spans; bytes += b->spans[i++].n) {
    if (bytes >= CHUNK) {
      chunk_add(b, i);
      bytes = 0;
    }
    b->chunks[b->n_chunks - 1].n++;
  }
  if (b->n_spans > b->cap_results) {
    b->cap_results = b->n_spans;
    b->results = lm_realloc(b->results, b->cap_results * sizeof *b->results);
  }
  size_t numbers = b->n_spans * (size_t)b->n_fields;
  b->found = lm_realloc(b->found, (numbers + 1) * sizeof *b->found);
  if (b->n_spans)
    memset(b->results, 0, b->n_spans * sizeof *b->results);
}

// ---- writing

// The mark of an untrained token becomes the highest bit of the width.
static int32_t stored(const build *b, int32_t id) {
  bool marked = id & LM_TOKEN_UNTRAINED;
  uint32_t mark = marked ? 1u << (8 * b->width - 1) : 0;
  return (int32_t)((uint32_t)(id & ~LM_TOKEN_UNTRAINED) | mark);
}

static lm_status ids_write(build *b, const lm_tokens *t) {
  for (size_t i = 0; b->marked && i < t->n; i++)
    t->ids[i] = stored(b, t->ids[i]);
  if (b->width == 4)
    return lm_store_add(b->tokens, t->ids, t->n * 4);
  if (t->n > b->cap_narrow) {
    b->cap_narrow = t->n;
    b->narrow = lm_realloc(b->narrow, t->n * 2);
  }
  uint8_t *bytes = b->narrow;
  uint16_t *pairs = b->narrow;
  for (size_t i = 0; i < t->n && b->width == 1; i++)
    bytes[i] = (uint8_t)t->ids[i];
  for (size_t i = 0; i < t->n && b->width == 2; i++)
    pairs[i] = (uint16_t)t->ids[i];
  return lm_store_add(b->tokens, b->narrow, t->n * (size_t)b->width);
}

static void fault_note(build *b, const lm_text_span *s, const result *r) {
  if (b->doc_bad)
    return; // report one fault per document
  b->doc_bad = true;
  if (b->bad++ < LM_UNUSABLE_LISTED)
    lm_buf_printf(&b->list, "%s:%llu: %s\n", b->files->files[s->file].path,
                  (unsigned long long)r->line, r->fault);
}

static lm_status span_note(build *b, size_t i) {
  const lm_text_span *s = &b->spans[i];
  const result *r = &b->results[i];
  if (s->begins) {
    b->doc = (lm_doc){b->n_tokens, 0, r->second ? b->n_tokens + r->second : 0};
    b->doc_bad = false;
  }
  b->n_tokens += r->n;
  if (r->fault)
    fault_note(b, s, r);
  if (!s->ends)
    return NULL;
  b->doc.end = b->n_tokens;
  bool some = b->doc.end > b->doc.start;
  b->read += some || b->doc_bad;
  if (!some || b->doc_bad)
    return NULL;
  b->n_docs++;
  size_t fields = (size_t)b->n_fields;
  lm_buf_add(&b->values, b->found + i * fields, fields * sizeof *b->found);
  b->source_first[b->files->files[s->file].source + 1] = b->n_docs;
  return lm_store_add(b->docs, &b->doc, sizeof b->doc);
}

static lm_status round_write(build *b) {
  for (size_t i = 0; i < b->n_chunks; i++)
    LM_TRY(ids_write(b, &b->chunks[i].ids));
  for (size_t i = 0; i < b->n_spans; i++)
    LM_TRY(span_note(b, i));
  return NULL;
}

static lm_status round_run(build *b) {
  round_split(b);
  lm_parallel(b->o->threads, (int64_t)b->n_chunks, chunk_encode, b);
  lm_status s = NULL;
  for (size_t i = 0; i < b->n_chunks; i++)
    if (s)
      lm_status_free(b->chunks[i].status); // report the first error in the order of the text
    else
      s = b->chunks[i].status;
  if (!s)
    s = round_write(b);
  for (size_t i = 0; i < b->n_spans; i++)
    lm_free(b->results[i].fault);
  return s;
}

// ---- bad documents

static lm_status bad_check(const lm_data_options *o, uint64_t read, uint64_t bad, const char *list,
                           const char *scope) {
  lm_unusable u = {read, bad, list};
  return lm_unusable_check(&u, 100 * o->bad, "`bad`", scope);
}

static lm_status rounds_run(build *b) {
  for (;;) {
    LM_TRY(lm_doc_reader_next(b->reader, &b->spans, &b->n_spans));
    if (!b->n_spans)
      return NULL;
    LM_TRY(round_run(b));
    if (b->o->progress)
      b->o->progress(b->o->user, lm_doc_reader_consumed(b->reader), b->files->bytes);
    // stop early if most documents are bad
    if (b->read >= HOPELESS_MIN && b->bad > b->read / 2)
      LM_TRY(bad_check(b->o, b->read, b->bad, b->list.p, " so far"));
  }
}

// ---- files

const char *lm_cache_path(lm_arena *a, const char *dir, const uint64_t key[2], const char *ending) {
  if (!dir)
    return NULL;
  return lm_arena_printf(a, "%s/%016llx%016llx.%s", dir, (unsigned long long)key[0],
                         (unsigned long long)key[1], ending);
}

static lm_status found(const lm_data_options *o, const char *tokens, const char *docs,
                       lm_corpus *out, bool *out_found) {
  *out_found = false;
  LM_TRY(lm_store_open(tokens, o->threads, &out->tokens));
  if (out->tokens)
    LM_TRY(lm_store_open(docs, o->threads, &out->docs));
  if (out->docs && lm_corpus_tail_read(out, o)) {
    *out_found = true;
    return NULL;
  }
  lm_corpus_close(out);
  return NULL;
}

static lm_status files_finish(build *b, lm_corpus *out) {
  // a source without documents is empty: it ends where it begins
  for (int i = 1; i <= b->files->n_sources; i++)
    if (b->source_first[i] < b->source_first[i - 1])
      b->source_first[i] = b->source_first[i - 1];
  lm_store_writer *tokens = b->tokens;
  lm_store_writer *docs = b->docs;
  b->tokens = NULL;
  LM_TRY(lm_store_finish(tokens, NULL, 0, &out->tokens));
  lm_corpus_tail t = {
      LM_CORPUS_FORMAT, out->tokens->root,    b->n_docs, b->read,
      b->bad,           (uint64_t)b->width,   b->marked, (uint64_t)b->files->n_sources,
      b->list.n + 1,    (uint64_t)b->n_fields};
  lm_buf tail = {0};
  lm_buf_add(&tail, &t, sizeof t);
  lm_buf_add(&tail, b->source_first, ((size_t)b->files->n_sources + 1) * sizeof *b->source_first);
  lm_buf_add(&tail, b->values.p, b->values.n);
  lm_buf_add(&tail, b->list.p ? b->list.p : "", b->list.n + 1);
  b->docs = NULL;
  lm_status s = lm_store_finish(docs, tail.p, tail.n, &out->docs);
  lm_buf_free(&tail);
  if (!s && !lm_corpus_tail_read(out, b->o))
    LM_BUG("the corpus differs from the written one");
  return s;
}

static void build_free(build *b) {
  lm_doc_reader_destroy(b->reader);
  lm_store_abort(b->tokens);
  lm_store_abort(b->docs);
  for (size_t i = 0; i < b->cap_chunks; i++)
    lm_tokens_free(&b->chunks[i].ids);
  lm_free(b->chunks);
  lm_free(b->results);
  lm_free(b->source_first);
  lm_free(b->narrow);
  lm_free(b->fields);
  lm_free(b->found);
  lm_buf_free(&b->values);
  lm_buf_free(&b->list);
}

static lm_status corpus_build(const lm_data_options *o, const lm_file_list *files,
                              const char *tokens, const char *docs, lm_corpus *out) {
  build b = {.o = o,
             .files = files,
             .reader = lm_doc_reader_create(files, UINT64_MAX),
             .width = lm_corpus_width(o),
             .marked = lm_corpus_has_marks(o)};
  fields_list(&b);
  b.source_first = lm_calloc((size_t)files->n_sources + 1, sizeof *b.source_first);
  bool ready = false;
  if (o->cache)
    lm_temps_clean(o->cache);
  lm_status s = lm_store_writer_create(tokens, &b.tokens);
  if (!s && tokens)
    s = found(o, tokens, docs, out,
              &ready); // another process built it while this one waited for the lock
  if (!s && !ready)
    s = lm_store_writer_create(docs, &b.docs);
  if (!s && !ready)
    s = rounds_run(&b);
  if (!s && !ready)
    s = files_finish(&b, out);
  build_free(&b);
  return s;
}

static void corpus_key(const lm_data_options *o, const lm_file_list *files, uint64_t key[2]) {
  uint64_t parts[] = {LM_CORPUS_FORMAT,     files->key[0],        files->key[1],
                      o->tokenizer->key[0], o->tokenizer->key[1], (uint64_t)o->tokenizer->vocab};
  key[0] = key[1] = 0;
  lm_hash_key(key, parts, sizeof parts);
  for (int i = 0; i < o->n_columns; i++) {
    const lm_data_column *x = &o->columns[i];
    uint64_t type = x->dtype;
    if (!lm_column_is_field(o, x))
      continue;
    lm_hash_key(key, x->name, strlen(x->name) + 1);
    lm_hash_key(key, &type, sizeof type);
  }
}

lm_status lm_corpus_open(const lm_data_options *o, const lm_file_list *files, lm_corpus *out) {
  uint64_t key[2];
  lm_arena *a = lm_arena_create();
  *out = (lm_corpus){.vocab = o->tokenizer->vocab};
  corpus_key(o, files, key);
  const char *tokens = lm_cache_path(a, o->cache, key, "tok");
  const char *docs = lm_cache_path(a, o->cache, key, "doc");
  lm_status s = o->cache ? lm_dir_make_private(o->cache) : NULL;
  if (!s && o->cache)
    s = found(o, tokens, docs, out, &out->from_cache);
  if (!s && !out->from_cache)
    s = corpus_build(o, files, tokens, docs, out);
  if (!s)
    s = bad_check(o, out->read, out->bad, out->bad_list,
                  ""); // the corpus is kept anyway: the next run may allow more bad documents
  if (s)
    lm_corpus_close(out);
  lm_arena_destroy(a);
  return s;
}

static bool doc_is_valid(const lm_corpus *c, const lm_doc *d) {
  uint64_t n_tokens = c->tokens->n / (uint64_t)c->width;
  bool has_place = d->start < d->end && d->end <= n_tokens;
  return has_place && (!d->second || (d->second >= d->start && d->second <= d->end));
}

lm_status lm_corpus_docs(const lm_corpus *c, uint64_t first, uint64_t n, lm_doc *out) {
  LM_TRY(lm_store_read(c->docs, first * sizeof *out, n * sizeof *out, out));
  for (uint64_t i = 0; i < n; i++)
    if (!doc_is_valid(c, &out[i]))
      return lm_fail(LM_ENV,
                     "%s holds no valid range of document %llu: delete it, and the next run "
                     "rebuilds it",
                     lm_store_name(c->docs), (unsigned long long)(first + i));
  return NULL;
}

lm_status lm_corpus_doc_of(const lm_corpus *c, uint64_t at, uint64_t *out) {
  uint64_t low = 0, high = c->n_docs; // search for the last document that begins at or before it
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    lm_doc d;
    LM_TRY(lm_corpus_docs(c, middle, 1, &d));
    if (d.start <= at)
      low = middle;
    else
      high = middle;
  }
  *out = low;
  return NULL;
}

lm_status lm_corpus_unchanged(const lm_corpus *c) {
  LM_TRY(lm_store_unchanged(c->tokens));
  return lm_store_unchanged(c->docs);
}

// Blocks are compared with their hashes only once, so the file may have changed since then.
static lm_status ids_check(const lm_corpus *c, uint64_t first, uint64_t n, const int32_t *ids) {
  uint32_t max = 0;
  for (uint64_t i = 0; i < n; i++)
    max = (uint32_t)ids[i] > max ? (uint32_t)ids[i] : max;
  if (max < (uint64_t)c->vocab)
    return NULL;
  return lm_fail(LM_ENV,
                 "%s holds token id %u near token %llu, and the vocabulary has %lld: the file was "
                 "changed while it was in use",
                 lm_store_name(c->tokens), max, (unsigned long long)first, (long long)c->vocab);
}

// Takes the highest bits of ids as their weights.
static void marks_take(const lm_corpus *c, uint64_t n, int32_t *ids, float *weights) {
  uint32_t mark = c->marked ? 1u << (8 * c->width - 1) : 0;
  for (uint64_t i = 0; i < n; i++) {
    bool untrained = (uint32_t)ids[i] & mark;
    if (weights)
      weights[i] = untrained ? 0 : 1;
    ids[i] = (int32_t)((uint32_t)ids[i] & ~mark);
  }
}

// Reads narrow ids into the end of the buffer; widening them from the front then never overwrites
// an id that is not widened yet.
lm_status lm_corpus_read(const lm_corpus *c, uint64_t first, uint64_t n, int32_t *out,
                         float *weights) {
  uint64_t width = (uint64_t)c->width;
  unsigned char *ids = (unsigned char *)(out + n) - n * width;
  LM_TRY(lm_store_read(c->tokens, first * width, n * width, ids));
  for (uint64_t i = 0; i < n && width == 1; i++)
    out[i] = ids[i];
  for (uint64_t i = 0; i < n && width == 2; i++) {
    uint16_t id;
    memcpy(&id, ids + 2 * i, sizeof id);
    out[i] = id;
  }
  if (c->marked || weights)
    marks_take(c, n, out, weights);
  return ids_check(c, first, n, out);
}

void lm_corpus_close(lm_corpus *c) {
  lm_store_close(c->tokens);
  lm_store_close(c->docs);
  *c = (lm_corpus){.vocab = c->vocab};
}
