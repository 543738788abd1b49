// vocab.c - see vocab.h. The trained vocabulary is kept in the cache.
#include "runtime/data/rows/vocab.h"

#include <jansson.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/base/parallel.h"
#include "runtime/base/processors.h"
#include "runtime/data/rows/corpus.h"
#include "runtime/data/rows/unusable.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/train.h"

enum {
  TEXT_MAX = 1 << 30,
  FORMAT = 3
};

typedef struct {
  char *text;
  uint64_t line;
} fault; // text NULL: no fault

typedef struct {
  const lm_file_list *files;
  lm_vocab_trainer *trainer;
  const lm_text_span *spans;
  fault *faults;
  size_t cap_faults;   // faults has one element per span of the round
  lm_status *statuses; // [worker]: its first error
  lm_data_trained_on *on;
  bool is_bad; // the current document already has a fault
} counting;

static void span_count(void *user, int64_t i, int worker) {
  counting *c = user;
  const lm_text_span *s = &c->spans[i];
  json_t *owner;
  char why[300];
  size_t n;
  const lm_data_source *source = &c->files->sources[c->files->files[s->file].source];
  const char *p =
      lm_text_span_read(s, source, true, &n, &owner, why, sizeof why, &c->faults[i].line);
  c->faults[i].text = p ? NULL : lm_strdup(why);
  if (p && !c->statuses[worker])
    c->statuses[worker] = lm_vocab_trainer_add(c->trainer, worker, p, n);
  json_decref(owner);
}

static void fault_add(counting *c, const lm_text_span *s, const fault *f) {
  const char *path = c->files->files[s->file].path;
  if (c->on->unusable++ >= LM_UNUSABLE_LISTED)
    return;
  lm_buf_printf(&c->on->list, "%s:%llu: %s\n", path, (unsigned long long)f->line, f->text);
}

// Counts documents and unusable documents; a document of several spans counts once.
static void faults_count(counting *c, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const lm_text_span *s = &c->spans[i];
    c->on->documents += s->begins;
    c->is_bad &= !s->begins;
    if (c->faults[i].text && !c->is_bad)
      fault_add(c, s, &c->faults[i]);
    c->is_bad |= c->faults[i].text != NULL;
    lm_free(c->faults[i].text);
  }
}

static void faults_reserve(counting *c, size_t n) {
  if (n <= c->cap_faults)
    return;
  c->cap_faults = n;
  c->faults = lm_realloc(c->faults, n * sizeof *c->faults);
}

static lm_status rounds_count(const lm_data_options *o, lm_doc_reader *reader, counting *c,
                              int threads) {
  for (size_t n;;) {
    lm_status s = NULL;
    LM_TRY(lm_doc_reader_next(reader, &c->spans, &n));
    if (!n)
      return NULL;
    faults_reserve(c, n);
    lm_parallel(threads, (int64_t)n, span_count, c);
    faults_count(c, n);
    for (int i = 0; i < threads; i++) {
      if (s)
        lm_status_free(c->statuses[i]);
      else
        s = c->statuses[i];
      c->statuses[i] = NULL;
    }
    if (s)
      return s;
    if (o->progress)
      o->progress(o->user, lm_doc_reader_consumed(reader), c->files->bytes);
  }
}

static lm_status usable_check(const lm_data_trained_on *on) {
  if (!on->documents || on->unusable < on->documents)
    return NULL;
  return lm_fail(LM_USER, "none of %lld documents can be used\n%.*s", (long long)on->documents,
                 (int)on->list.n - 1, on->list.p);
}

static lm_status train(const lm_data_options *o, const lm_file_list *files, lm_tokenizer_kind kind,
                       int64_t vocab, lm_buf *out, lm_data_trained_on *on) {
  int threads = lm_threads(o->threads);
  counting c = {.files = files,
                .trainer = lm_vocab_trainer_create(kind, threads),
                .on = on,
                .statuses = lm_calloc((size_t)threads, sizeof(lm_status))};
  lm_doc_reader *reader = lm_doc_reader_create(files, TEXT_MAX);
  lm_status s = rounds_count(o, reader, &c, threads);
  if (!s)
    s = usable_check(on);
  if (!s)
    s = lm_vocab_trainer_finish(c.trainer, (int32_t)vocab, out);
  lm_doc_reader_destroy(reader);
  lm_vocab_trainer_destroy(c.trainer);
  lm_free(c.statuses);
  lm_free(c.faults);
  return s;
}

// ---- the cache: the tokenizer.json, and in the tail a description of the training documents

typedef struct {
  int64_t documents;
  int64_t unusable;
} counts;

static void tail_write(const lm_data_trained_on *on, lm_buf *out) {
  counts n = {on->documents, on->unusable};
  lm_buf_add(out, &n, sizeof n);
  lm_buf_add(out, on->list.p, on->list.n);
}

// True if the list has a line for each of the first unusable documents. A path may hold line
// breaks, so there may be more lines.
static bool list_is_valid(int64_t unusable, const char *list, size_t n) {
  int64_t lines = 0;
  for (size_t i = 0; i < n; i++)
    lines += list[i] == '\n';
  if (!n || !unusable)
    return !n && !unusable;
  return list[n - 1] == '\n' && !memchr(list, 0, n) &&
         lines >= (unusable < LM_UNUSABLE_LISTED ? unusable : LM_UNUSABLE_LISTED);
}

// The hashes of a file only tell that it is as it was sealed.
static bool counts_are_valid(const counts *n) {
  bool usable = !n->documents || n->unusable < n->documents; // usable_check
  return usable && n->unusable >= 0 && n->unusable <= n->documents;
}

// False: the tail is not one that tail_write made.
static bool tail_read(const lm_store *store, lm_data_trained_on *on) {
  counts n;
  if (store->n_tail < sizeof n)
    return false;
  memcpy(&n, store->tail, sizeof n);
  const char *list = store->tail + sizeof n;
  size_t n_list = store->n_tail - sizeof n;
  if (!counts_are_valid(&n) || !list_is_valid(n.unusable, list, n_list))
    return false;
  on->documents = n.documents;
  on->unusable = n.unusable;
  lm_buf_add(&on->list, list, n_list);
  return true;
}

static bool is_vocabulary(const char *text, size_t n, lm_tokenizer_kind kind, int64_t vocab) {
  lm_tokenizer *t = NULL;
  lm_status s = lm_tokenizer_parse(text, n, "the cache", &t);
  bool fits = !s && t->kind == kind && t->vocab <= vocab;
  if (!s)
    lm_tokenizer_destroy(t);
  lm_status_free(s);
  return fits;
}

// A file that is damaged or does not fit counts as absent.
static lm_status found(const lm_data_options *o, const char *path, lm_tokenizer_kind kind,
                       int64_t vocab, lm_buf *out, lm_data_trained_on *on, bool *out_found) {
  lm_store *store;
  *out_found = false;
  LM_TRY(lm_store_open(path, o->threads, &store));
  if (!store)
    return NULL;
  char *text = lm_alloc(store->n);
  lm_status s = lm_store_read(store, 0, store->n, text);
  *out_found = !s && is_vocabulary(text, store->n, kind, vocab) && tail_read(store, on);
  if (*out_found)
    lm_buf_add(out, text, store->n);
  lm_free(text);
  lm_store_close(store);
  return s;
}

static lm_status train_and_keep(const lm_data_options *o, const lm_file_list *files,
                                lm_tokenizer_kind kind, int64_t vocab, const char *path,
                                lm_buf *out, lm_data_trained_on *on) {
  lm_store_writer *to;
  lm_store *made = NULL;
  lm_buf tail = {0};
  bool there;
  size_t before = out->n;
  lm_temps_clean(o->cache);
  LM_TRY(lm_store_writer_create(path, &to));
  // by another process, while this one waited for the lock
  lm_status s = found(o, path, kind, vocab, out, on, &there);
  if (!s && !there)
    s = train(o, files, kind, vocab, out, on);
  if (!s && !there)
    s = lm_store_add(to, out->p + before, out->n - before);
  if (!s && !there)
    tail_write(on, &tail);
  if (!s && !there)
    s = lm_store_finish(to, tail.p, tail.n, &made);
  else
    lm_store_abort(to);
  lm_store_close(made);
  lm_buf_free(&tail);
  return s;
}

static lm_status vocabulary_get(const lm_data_options *o, const lm_file_list *files,
                                lm_tokenizer_kind kind, int64_t vocab, lm_buf *out,
                                lm_data_trained_on *on) {
  if (!o->cache)
    return train(o, files, kind, vocab, out, on);
  uint64_t parts[] = {FORMAT, files->key[0], files->key[1], (uint64_t)kind, (uint64_t)vocab},
           key[2] = {0};
  lm_hash_key(key, parts, sizeof parts);
  bool there = false;
  lm_arena *a = lm_arena_create();
  const char *path = lm_cache_path(a, o->cache, key, "vocab");
  lm_status s = lm_dir_make_private(o->cache);
  if (!s)
    s = found(o, path, kind, vocab, out, on, &there);
  if (!s && !there)
    s = train_and_keep(o, files, kind, vocab, path, out, on);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_data_tokenizer_train(const lm_data_options *o, lm_tokenizer_kind kind, int64_t vocab,
                                  lm_buf *out_json, lm_data_trained_on *out_on) {
  lm_data_trained_on on = {0};
  lm_file_list files;
  if (vocab < lm_trained_min(kind) || vocab > INT32_MAX)
    return lm_fail(LM_USER, "a vocabulary of %lld tokens cannot be trained; the least is %d",
                   (long long)vocab, lm_trained_min(kind));
  for (int i = 0; i < o->n_sources; i++)
    if (o->sources[i].kind == LM_SOURCE_BATCHES)
      return lm_status_about(
          lm_fail(LM_USER, "source %s: finished batches hold no text to train a vocabulary on",
                  o->sources[i].name),
          &o->sources[i]);
  LM_TRY(lm_file_list_make(o->sources, o->n_sources, &files));
  lm_status s = vocabulary_get(o, &files, kind, vocab, out_json, &on);
  lm_file_list_free(&files);
  if (out_on)
    *out_on = on;
  else
    lm_buf_free(&on.list);
  return s;
}
