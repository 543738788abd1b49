// rows.c - see rows.h.
#include "runtime/data/rows/rows.h"

#include <string.h>

#include "runtime/data/rows/permute.h"

enum {
  PIECES = 1 << 18,
  DOCS = 1 << 12,
  FORMAT = 3,
  STREAM_SAMPLE = 1
};

typedef struct {
  uint64_t format, docs_root, n_sets, n_blocks;
} index_tail; // followed by sets and blocks

typedef struct {
  const lm_data_options *o;
  const lm_corpus *c;
  const lm_row_plan *plan;
  int groups;
  uint16_t *sample_of; // [document]: 1 + index of its sample, 0: none; NULL: no samples
  lm_store_writer *to;
  lm_doc *docs;
  uint64_t first_doc, n_docs; // range of the corpus in docs[DOCS]
  lm_piece *pieces;
  uint32_t *beside; // [PIECES]: tokens of the source of each piece
  uint32_t n;       // pieces of the current block, at most PIECES
  lm_row_set *sets;
  uint64_t n_sets;
  lm_row_block *blocks;
  size_t n_blocks;
  size_t cap_blocks;
  uint64_t at;              // the document that is being added
  uint64_t n_long, long_at; // with LM_LONG_ERROR: documents that are too long, the first of them
  lm_doc long_doc;
} packing;

// ---- selecting documents

static lm_status samples_draw(packing *p) {
  uint64_t taken = 0, n = p->c->n_docs;
  lm_philox_key2 key = lm_philox_key(0, STREAM_SAMPLE); // the same documents for every seed
  if (p->plan->n_samples)
    p->sample_of = lm_calloc(n, sizeof *p->sample_of);
  for (int k = 0; k < p->plan->n_samples; k++)
    for (int64_t i = 0; i < p->plan->samples[k]; i++)
      p->sample_of[lm_permute(key, n, taken++)] = (uint16_t)(k + 1);
  return NULL;
}

static void group_range(const packing *p, int group, uint64_t *out_first, uint64_t *out_end) {
  *out_first = p->plan->by_source ? p->c->source_first[group] : 0;
  *out_end = p->plan->by_source ? p->c->source_first[group + 1] : p->c->n_docs;
}

// ---- packing a set

static lm_status block_flush(packing *p, lm_row_set *set) {
  static const char zeros[8];
  if (!p->n)
    return NULL;
  lm_rows rows;
  lm_row_room room = {
      .seq = (uint32_t)p->plan->seq,
      .docs = (uint32_t)p->plan->docs,
      .source = (uint32_t)p->plan->source,
  };
  lm_packed_rows_make(p->pieces, p->beside, p->n, &room, &rows);
  if (p->n_blocks == p->cap_blocks) {
    p->cap_blocks = p->cap_blocks ? 2 * p->cap_blocks : 16;
    p->blocks = lm_realloc(p->blocks, p->cap_blocks * sizeof *p->blocks);
  }
  p->blocks[p->n_blocks++] = (lm_row_block){lm_store_size(p->to), set->n_rows, rows.n_rows, p->n};
  set->n_blocks++;
  set->n_rows += rows.n_rows;
  size_t n_first = ((size_t)rows.n_rows + 1) * sizeof *rows.first;
  lm_status s = lm_store_add(p->to, rows.first, n_first);
  if (!s)
    s = lm_store_add(p->to, zeros, -n_first % 8);
  if (!s)
    s = lm_store_add(p->to, rows.pieces, p->n * sizeof *rows.pieces);
  lm_packed_rows_free(&rows);
  p->n = 0;
  return s;
}

// *out: whether any of the second to n-th token of a document has a weight.
static lm_status is_trained(const lm_corpus *c, const lm_doc *d, uint64_t n, bool *out) {
  int32_t ids[256];
  float weights[LM_COUNT(ids)];
  *out = !c->marked;
  for (uint64_t at = 1, some; !*out && at < n; at += some) {
    some = n - at < LM_COUNT(ids) ? n - at : LM_COUNT(ids);
    LM_TRY(lm_corpus_read(c, d->start + at, some, ids, weights));
    for (uint64_t i = 0; i < some; i++)
      *out |= weights[i] != 0;
  }
  return NULL;
}

// Counts a document that is longer than a row where that is an error, and keeps the first one.
static void too_long(packing *p, const lm_doc *d) {
  if (!p->n_long++ || p->at < p->long_at) {
    p->long_at = p->at;
    p->long_doc = *d;
  }
}

static void long_print(const packing *p, lm_buf *out) {
  const lm_doc *d = &p->long_doc;
  long long tokens = (long long)(d->end - d->start);
  long long seq = (long long)p->plan->seq;
  if (p->plan->source)
    lm_buf_printf(
        out, "a source of %lld tokens with a target of %lld is longer than a row of %lld and %lld",
        (long long)(d->second - d->start), (long long)(d->end - d->second),
        (long long)p->plan->source, seq);
  else
    lm_buf_printf(out, "%s of %lld tokens is longer than a row of %lld",
                  d->second ? "a pair" : "a document", tokens, seq);
}

static lm_status long_error(const packing *p) {
  lm_buf text = {0};
  int source = 0;
  while (p->long_at >= p->c->source_first[source + 1])
    source++;
  long_print(p, &text);
  lm_buf_printf(&text,
                ": `long = drop` leaves out such documents, `long = cut` keeps their beginning "
                "(document %llu of source %s%s, ",
                (unsigned long long)(p->long_at - p->c->source_first[source] + 1),
                p->o->sources[source].name, p->c->bad ? ", unusable ones not counted" : "");
  if (p->n_long == 1)
    lm_buf_puts(&text, "the only one)");
  else
    lm_buf_printf(&text, "the first of %llu)", (unsigned long long)p->n_long);
  lm_status s = lm_fail(LM_USER, "%s", text.p);
  lm_buf_free(&text);
  return lm_status_about(s, &p->o->sources[source]);
}

// A document that is longer than a row, where it is not split: left out (*out_kept false) or cut.
static lm_status long_document(packing *p, lm_row_set *set, lm_doc *d, bool *out_kept) {
  bool trained = true;
  if (p->plan->long_documents == LM_LONG_ERROR)
    too_long(p, d);
  if (p->plan->long_documents == LM_LONG_CUT)
    LM_TRY(is_trained(p->c, d, (uint64_t)p->plan->seq, &trained));
  *out_kept = p->plan->long_documents == LM_LONG_CUT && trained;
  d->end = d->start + (uint64_t)p->plan->seq;
  *(*out_kept ? &set->cut : &set->dropped) += 1;
  return NULL;
}

// The tokens that are kept of a text beside another one in a row.
static uint64_t share_of_row(uint64_t own, uint64_t other, uint64_t seq) {
  uint64_t half = seq / 2;
  if (own <= half)
    return own;
  if (other <= half)
    return seq - other;
  return half;
}

// The tokens of the two texts of a pair that are kept: of one that is longer than half a row, those
// that fit. Both 0: the pair is left out.
static lm_status pair_cut(packing *p, lm_row_set *set, const lm_doc *d, uint64_t n[2]) {
  uint64_t seq = (uint64_t)p->plan->seq;
  uint64_t first = share_of_row(n[0], n[1], seq);
  uint64_t second = share_of_row(n[1], n[0], seq);
  lm_doc other = *d;
  bool kept = p->plan->long_documents == LM_LONG_CUT;
  if (p->plan->long_documents == LM_LONG_ERROR)
    too_long(p, d);
  other.start = d->second;
  if (kept)
    LM_TRY(is_trained(p->c, d, first, &kept));
  if (kept)
    LM_TRY(is_trained(p->c, &other, second, &kept));
  n[0] = kept ? first : 0;
  n[1] = kept ? second : 0;
  set->cut += kept;
  set->dropped += !kept;
  return NULL;
}

static lm_status pair_add(packing *p, lm_row_set *set, const lm_doc *d) {
  uint64_t n[2] = {d->second - d->start, d->end - d->second};
  if (n[0] + n[1] > (uint64_t)p->plan->seq)
    LM_TRY(pair_cut(p, set, d, n));
  if (!n[0])
    return NULL;
  if (p->n + 2 > PIECES)
    LM_TRY(block_flush(p, set));
  set->docs++;
  set->tokens += n[0] + n[1];
  p->pieces[p->n++] = (lm_piece){d->start, (uint32_t)n[0], true, true, true, 0};
  p->pieces[p->n++] = (lm_piece){d->second, (uint32_t)n[1], false, true, false, 0};
  return p->n == PIECES ? block_flush(p, set) : NULL;
}

// A target, whose source has its own row beside that of the targets.
static lm_status target_add(packing *p, lm_row_set *set, const lm_doc *d) {
  uint64_t source = d->second - d->start;
  uint64_t target = d->end - d->second;
  bool fits = source <= (uint64_t)p->plan->source && target <= (uint64_t)p->plan->seq;
  bool cut = p->plan->long_documents == LM_LONG_CUT;
  if (!fits && p->plan->long_documents == LM_LONG_ERROR)
    too_long(p, d);
  set->cut += !fits && cut;
  set->dropped += !fits && !cut;
  if (!fits && !cut)
    return NULL;
  if (source > (uint64_t)p->plan->source)
    source = (uint64_t)p->plan->source;
  if (target > (uint64_t)p->plan->seq)
    target = (uint64_t)p->plan->seq;
  set->docs++;
  set->tokens += target;
  p->beside[p->n] = (uint32_t)source;
  p->pieces[p->n++] = (lm_piece){d->second, (uint32_t)target, true, true, false, 0};
  return p->n == PIECES ? block_flush(p, set) : NULL;
}

static lm_status document_add(packing *p, lm_row_set *set, lm_doc *d) {
  uint64_t seq = (uint64_t)p->plan->seq;
  bool kept = true;
  if (p->plan->source)
    return target_add(p, set, d);
  if (d->second)
    return pair_add(p, set, d);
  if (d->end - d->start > seq && p->plan->long_documents != LM_LONG_SPLIT)
    LM_TRY(long_document(p, set, d, &kept));
  if (!kept)
    return NULL;
  set->docs++;
  set->tokens += d->end - d->start;
  for (uint64_t at = d->start, len; at < d->end; at += len) {
    len = d->end - at < seq ? d->end - at : seq;
    p->pieces[p->n++] = (lm_piece){at, (uint32_t)len, at == d->start, at + len == d->end, false, 0};
    if (p->n == PIECES)
      LM_TRY(block_flush(p, set));
  }
  return NULL;
}

// Reads the documents around document i.
static lm_status documents_reach(packing *p, uint64_t i) {
  if (p->n_docs && i >= p->first_doc && i - p->first_doc < p->n_docs)
    return NULL;
  uint64_t left = p->c->n_docs - i;
  p->first_doc = i;
  p->n_docs = left < DOCS ? left : DOCS;
  return lm_corpus_docs(p->c, i, p->n_docs, p->docs);
}

static lm_status set_pack(packing *p, int sample, int group) {
  lm_row_set *set = &p->sets[p->n_sets++];
  uint64_t first, end;
  set->first_block = p->n_blocks;
  group_range(p, group, &first, &end);
  for (uint64_t i = first; i < end; i++) {
    bool here = (p->sample_of ? p->sample_of[i] : 0) == sample &&
                !(p->plan->left_out && p->plan->left_out[i]);
    if (!here)
      continue;
    LM_TRY(documents_reach(p, i));
    lm_doc d = p->docs[i - p->first_doc];
    p->at = i;
    LM_TRY(document_add(p, set, &d));
  }
  return block_flush(p, set);
}

static uint64_t sets_count(const lm_row_plan *plan, int groups) {
  return (uint64_t)(plan->n_samples + 1) * (uint64_t)groups;
}

static lm_status sets_pack(packing *p) {
  LM_TRY(samples_draw(p));
  p->docs = lm_calloc(DOCS, sizeof *p->docs);
  p->pieces = lm_calloc(PIECES, sizeof *p->pieces);
  p->beside = lm_calloc(PIECES, sizeof *p->beside);
  p->sets = lm_calloc(sets_count(p->plan, p->groups), sizeof *p->sets);
  for (int k = 0; k <= p->plan->n_samples; k++)
    for (int g = 0; g < p->groups; g++)
      LM_TRY(set_pack(p, k, g));
  return p->n_long ? long_error(p) : NULL;
}

// ---- the file

// True if a block is in the payload: the hashes of a file only tell that it is as it was sealed.
static bool block_is_valid(const lm_row_index *x, const lm_row_block *b) {
  uint64_t n = x->store->n;
  if (b->offset > n || !b->n_rows || b->n_rows > b->n_pieces || b->n_pieces > PIECES)
    return false;
  uint64_t first = ((b->n_rows + 1) * sizeof(uint32_t) + 7) / 8 * 8;
  return first + b->n_pieces * sizeof(lm_piece) <= n - b->offset;
}

// True if the blocks of a set hold its rows, one after the other.
static bool set_is_valid(const lm_row_index *x, const lm_corpus *c, const lm_row_set *set) {
  uint64_t rows = 0;
  if (set->n_blocks > x->n_blocks || set->first_block > x->n_blocks - set->n_blocks)
    return false;
  for (uint64_t i = 0; i < set->n_blocks; i++) {
    const lm_row_block *b = &x->blocks[set->first_block + i];
    if (b->first_row != rows || !block_is_valid(x, b))
      return false;
    rows += b->n_rows;
  }
  if (set->dropped > c->n_docs || set->cut > c->n_docs || set->docs > c->n_docs)
    return false;
  bool fits = set->tokens / x->seq <= rows && set->tokens <= INT64_MAX / x->n_sets;
  return fits && set->n_rows == rows && !set->docs == !rows;
}

// false: the tail is not one of n_sets sets of this corpus.
static bool tail_read(lm_row_index *x, const lm_corpus *c, uint64_t n_sets) {
  index_tail t;
  uint64_t n = x->store->n_tail;
  if (n < sizeof t)
    return false;
  memcpy(&t, x->store->tail, sizeof t);
  if (t.format != FORMAT || t.docs_root != c->docs->root || t.n_sets != n_sets)
    return false;
  uint64_t blocks = sizeof t + n_sets * sizeof *x->sets;
  if (n < blocks || (n - blocks) % sizeof *x->blocks ||
      t.n_blocks != (n - blocks) / sizeof *x->blocks)
    return false;
  x->sets = (const lm_row_set *)(x->store->tail + sizeof t);
  x->n_sets = n_sets;
  x->blocks = (const lm_row_block *)(x->store->tail + blocks);
  x->n_blocks = t.n_blocks;
  for (uint64_t i = 0; i < n_sets; i++)
    if (!set_is_valid(x, c, &x->sets[i]))
      return false;
  return true;
}

static lm_status found(const char *path, int threads, const lm_corpus *c, uint64_t n_sets,
                       lm_row_index *out) {
  LM_TRY(lm_store_open(path, threads, &out->store));
  if (out->store && !tail_read(out, c, n_sets))
    lm_row_index_close(out);
  return NULL;
}

static lm_status file_finish(packing *p, lm_row_index *out) {
  index_tail t = {FORMAT, p->c->docs->root, p->n_sets, p->n_blocks};
  lm_buf tail = {0};
  lm_buf_add(&tail, &t, sizeof t);
  lm_buf_add(&tail, p->sets, p->n_sets * sizeof *p->sets);
  lm_buf_add(&tail, p->blocks, p->n_blocks * sizeof *p->blocks);
  lm_store_writer *to = p->to;
  p->to = NULL;
  lm_status s = lm_store_finish(to, tail.p, tail.n, &out->store);
  lm_buf_free(&tail);
  if (!s && !tail_read(out, p->c, p->n_sets))
    LM_BUG("a row index that does not read as it was written");
  return s;
}

static lm_status index_build(const char *path, const lm_data_options *o, const lm_corpus *c,
                             const lm_row_plan *plan, int groups, lm_row_index *out) {
  packing p = {
      .o = o,
      .c = c,
      .plan = plan,
      .groups = groups,
  };
  lm_status s = lm_store_writer_create(path, &p.to);
  if (!s && path) // another process may have built it while this one waited for the lock
    s = found(path, o->threads, c, sets_count(plan, groups), out);
  if (!s && !out->store)
    s = sets_pack(&p);
  if (!s && !out->store)
    s = file_finish(&p, out);
  lm_store_abort(p.to);
  lm_free(p.sample_of);
  lm_free(p.docs);
  lm_free(p.pieces);
  lm_free(p.beside);
  lm_free(p.sets);
  lm_free(p.blocks);
  return s;
}

static void index_key(const lm_corpus *c, const lm_row_plan *plan, int groups, uint64_t key[2]) {
  uint64_t parts[] = {FORMAT,
                      c->tokens->root,
                      c->docs->root,
                      (uint64_t)plan->seq,
                      (uint64_t)groups,
                      (uint64_t)plan->by_source,
                      plan->left_out_key,
                      (uint64_t)plan->long_documents,
                      (uint64_t)plan->docs,
                      (uint64_t)plan->source};
  key[0] = key[1] = 0;
  lm_hash_key(key, parts, sizeof parts);
  lm_hash_key(key, plan->samples, (size_t)plan->n_samples * sizeof *plan->samples);
}

lm_status lm_row_index_open(const lm_data_options *o, const lm_corpus *c, const lm_row_plan *plan,
                            lm_row_index *out) {
  *out = (lm_row_index){.seq = (uint64_t)plan->seq};
  if (plan->seq < 1 || plan->seq > INT32_MAX)
    return lm_fail(LM_USER, "rows of %lld tokens are unsupported", (long long)plan->seq);
  int groups = plan->by_source ? o->n_sources : 1;
  uint64_t key[2];
  index_key(c, plan, groups, key);
  lm_arena *a = lm_arena_create();
  const char *path = lm_cache_path(a, o->cache, key, "row");
  lm_status s = path ? found(path, o->threads, c, sets_count(plan, groups), out) : NULL;
  if (!s && !out->store)
    s = index_build(path, o, c, plan, groups, out);
  lm_arena_destroy(a);
  out->n_tokens = c->tokens->n / (uint64_t)c->width;
  return s;
}

void lm_row_index_close(lm_row_index *x) {
  lm_store_close(x->store);
  *x = (lm_row_index){.seq = x->seq};
}

// ---- reading rows

static const lm_row_block *block_find(const lm_row_index *x, uint64_t set, uint64_t row) {
  const lm_row_block *first = x->blocks + x->sets[set].first_block;
  uint64_t low = 0,
           high =
               x->sets[set].n_blocks; // search for the last block that begins at or before the row
  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    if (first[middle].first_row <= row)
      low = middle;
    else
      high = middle;
  }
  return first + low;
}

// Blocks are compared with their hashes only once, so the file may have changed since then.
static lm_status row_changed(const lm_row_index *x, uint64_t set, uint64_t row) {
  return lm_fail(LM_ENV,
                 "%s holds no valid row %llu in set %llu: the file was changed while it was in "
                 "use; delete it, and the next run rebuilds it",
                 lm_store_name(x->store), (unsigned long long)row, (unsigned long long)set);
}

// *room: positions that are left in the row. The flags may have values that a bool must not have.
static bool piece_fits(const lm_row_index *x, const lm_piece *p, uint64_t *room) {
  unsigned char flags[3];
  memcpy(flags, (const char *)p + offsetof(lm_piece, begins), sizeof flags);
  if (flags[0] > 1 || flags[1] > 1 || flags[2] > 1 || !p->len || p->len > *room)
    return false;
  *room -= p->len;
  uint64_t n = p->len + (uint64_t)!flags[1]; // the last token has a next one
  return n <= x->n_tokens && p->start <= x->n_tokens - n;
}

static lm_status row_visit(const lm_row_index *x, uint64_t set, uint64_t row,
                           lm_status (*visit)(void *user, const lm_piece *p), void *user) {
  const lm_row_block *b = block_find(x, set, row);
  uint64_t in_block = row - b->first_row, room = x->seq;
  uint64_t pieces = b->offset + ((b->n_rows + 1) * sizeof(uint32_t) + 7) / 8 * 8;
  uint32_t ends[2];
  LM_TRY(lm_store_read(x->store, b->offset + in_block * sizeof *ends, sizeof ends, ends));
  if (ends[0] > ends[1] || ends[1] > b->n_pieces)
    return row_changed(x, set, row);
  for (uint32_t at = ends[0]; at < ends[1];) {
    lm_piece some[32];
    uint32_t n = ends[1] - at < LM_COUNT(some) ? ends[1] - at : LM_COUNT(some);
    LM_TRY(lm_store_read(x->store, pieces + at * sizeof *some, n * sizeof *some, some));
    for (uint32_t i = 0; i < n; i++) {
      if (!piece_fits(x, &some[i], &room))
        return row_changed(x, set, row);
      LM_TRY(visit(user, &some[i]));
    }
    at += n;
  }
  return NULL;
}

lm_status lm_row_index_visit(const lm_row_index *x, uint64_t set, uint64_t first, uint64_t n,
                             lm_status (*visit)(void *user, const lm_piece *p), void *user) {
  LM_ASSERT(set < x->n_sets && n <= x->sets[set].n_rows && first <= x->sets[set].n_rows - n);
  for (uint64_t row = first; row < first + n; row++)
    LM_TRY(row_visit(x, set, row, visit, user));
  return NULL;
}
