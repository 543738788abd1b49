// train_bpe.c - trains byte pairs (train.h). Each pair has a count and a list of the words that may
// contain it; a heap orders pairs by count. Counts in the heap may be too high, since a pair that
// only lost occurrences is not updated there: a popped pair whose count is outdated is pushed
// again.
#include <stdlib.h>
#include <string.h>

#include "runtime/tokenizer/bytechar.h"
#include "runtime/tokenizer/train_kinds.h"

enum {
  EOS = 0
};

typedef struct {
  int32_t left;
  int32_t right;
  int64_t count;
  uint32_t *words;
  uint32_t n;
  uint32_t cap;
  bool dirty;
} pair;
typedef struct {
  int64_t count;
  uint32_t pair;
} entry;

// By decreasing count, then increasing left id, then increasing right id.
static bool comes_before(const pair *pairs, const entry *a, const entry *b) {
  const pair *p = &pairs[a->pair];
  const pair *q = &pairs[b->pair];
  return a->count != b->count ? a->count > b->count
         : p->left != q->left ? p->left < q->left
                              : p->right < q->right;
}

#define HEAP_ELEMENT entry
#define HEAP_BEFORE(user, a, b) comes_before(user, a, b)
#include "runtime/tokenizer/heap.h"

typedef struct {
  lm_word *words;
  size_t n_words;
  uint64_t *first; // [n_words]: word w is symbols[first[w]] … + words[w].n - 1; n shrinks
  int32_t *symbols;
  pair *pairs;
  uint32_t n_pairs;
  uint32_t cap_pairs;
  uint32_t *index;
  size_t cap_index; // hash table of pairs: 1 + index; 0: empty
  uint32_t *dirty;
  size_t n_dirty, cap_dirty; // pairs that gained occurrences in this iteration
  heap entries;
  lm_buf text;
  uint64_t *ends;
  int32_t vocab;
  uint32_t cap_ends; // the piece of id is text[ends[id - 1] … ends[id] - 1]
  int32_t *merges;
  size_t n_merges, cap_merges; // left, right
} trainer;

// ---- from counts to symbols

static void piece_add(trainer *t, const char *p, size_t n) {
  if ((uint32_t)t->vocab == t->cap_ends) {
    t->cap_ends = t->cap_ends ? 2 * t->cap_ends : 1024;
    t->ends = lm_realloc(t->ends, t->cap_ends * sizeof *t->ends);
  }
  lm_buf_add(&t->text, p, n);
  t->ends[t->vocab++] = t->text.n;
}

static const char *piece_of(const trainer *t, int32_t id, size_t *out_n) {
  uint64_t start = id ? t->ends[id - 1] : 0;
  *out_n = t->ends[id] - start;
  return t->text.p + start;
}

// Assigns ids to bytes in the order of their characters (bytechar.h); byte_id[byte] is the id.
static void bytes_add(trainer *t, int32_t *byte_id) {
  for (uint32_t c = 0; c < LM_BYTECHAR_END; c++) {
    int byte = lm_char_to_byte(c);
    if (byte < 0)
      continue;
    byte_id[byte] = t->vocab;
    piece_add(t, &(char){(char)byte}, 1);
  }
}

static void symbols_make(trainer *t, const int32_t *byte_id) {
  uint64_t total = 0;
  t->first = lm_calloc(t->n_words, sizeof *t->first);
  for (size_t w = 0; w < t->n_words; total += t->words[w++].n)
    t->first[w] = total;
  t->symbols = lm_calloc(total, sizeof *t->symbols);
  for (size_t w = 0; w < t->n_words; w++)
    for (uint32_t i = 0; i < t->words[w].n; i++)
      t->symbols[t->first[w] + i] = byte_id[(unsigned char)t->words[w].p[i]];
}

// ---- pairs

static size_t pair_hash(int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
  return (size_t)(h ^ h >> 29);
}

static uint32_t *index_at(const trainer *t, int32_t left, int32_t right) {
  size_t at = pair_hash(left, right) & (t->cap_index - 1);
  for (; t->index[at]; at = (at + 1) & (t->cap_index - 1)) {
    const pair *p = &t->pairs[t->index[at] - 1];
    if (p->left == left && p->right == right)
      break;
  }
  return &t->index[at];
}

static void index_grow(trainer *t) {
  lm_free(t->index);
  t->cap_index = t->cap_index ? 2 * t->cap_index : 1 << 16;
  t->index = lm_calloc(t->cap_index, sizeof *t->index);
  for (uint32_t i = 0; i < t->n_pairs; i++)
    *index_at(t, t->pairs[i].left, t->pairs[i].right) = i + 1;
}

static pair *pair_get(trainer *t, int32_t left, int32_t right) {
  if (2 * ((size_t)t->n_pairs + 1) > t->cap_index)
    index_grow(t);
  uint32_t *slot = index_at(t, left, right);
  if (*slot)
    return &t->pairs[*slot - 1];
  if (t->n_pairs == t->cap_pairs) {
    t->cap_pairs = t->cap_pairs ? 2 * t->cap_pairs : 4096;
    t->pairs = lm_realloc(t->pairs, t->cap_pairs * sizeof *t->pairs);
  }
  t->pairs[t->n_pairs] = (pair){
      .left = left,
      .right = right,
  };
  *slot = ++t->n_pairs;
  return &t->pairs[t->n_pairs - 1];
}

static void pair_word_add(pair *p, uint32_t w) {
  if (p->n && p->words[p->n - 1] == w)
    return;
  if (p->n == p->cap) {
    p->cap = p->cap ? 2 * p->cap : 4;
    p->words = lm_realloc(p->words, p->cap * sizeof *p->words);
  }
  p->words[p->n++] = w;
}

static void pair_mark(trainer *t, pair *p) {
  if (p->dirty)
    return;
  p->dirty = true;
  if (t->n_dirty == t->cap_dirty) {
    t->cap_dirty = t->cap_dirty ? 2 * t->cap_dirty : 1024;
    t->dirty = lm_realloc(t->dirty, t->cap_dirty * sizeof *t->dirty);
  }
  t->dirty[t->n_dirty++] = (uint32_t)(p - t->pairs);
}

// Adds `sign` times the pairs of a word. Pairs that contain `made` (-1: all pairs) are new to it.
static void word_pairs_add(trainer *t, uint32_t w, int sign, int32_t made) {
  const int32_t *s = t->symbols + t->first[w];
  for (uint32_t i = 0; i + 1 < t->words[w].n; i++) {
    pair *p = pair_get(t, s[i], s[i + 1]);
    p->count += sign * (int64_t)t->words[w].count;
    if (sign < 0 || (made >= 0 && s[i] != made && s[i + 1] != made))
      continue;
    pair_word_add(p, w);
    pair_mark(t, p);
  }
}

static void dirty_push(trainer *t) {
  for (size_t i = 0; i < t->n_dirty; i++) {
    pair *p = &t->pairs[t->dirty[i]];
    p->dirty = false;
    if (p->count > 0)
      heap_push(&t->entries, t->pairs, (entry){p->count, t->dirty[i]});
  }
  t->n_dirty = 0;
}

// The most frequent pair; NULL if no pair occurs twice.
static pair *pair_best(trainer *t) {
  while (t->entries.n) {
    entry e = heap_pop(&t->entries, t->pairs);
    pair *p = &t->pairs[e.pair];
    if (p->count == e.count)
      return e.count >= 2 ? p : NULL;
    if (p->count > 0)
      heap_push(&t->entries, t->pairs, (entry){p->count, e.pair});
  }
  return NULL;
}

// ---- merging

static bool word_holds(const trainer *t, uint32_t w, int32_t left, int32_t right) {
  const int32_t *s = t->symbols + t->first[w];
  for (uint32_t i = 0; i + 1 < t->words[w].n; i++)
    if (s[i] == left && s[i + 1] == right)
      return true;
  return false;
}

static void word_merge(trainer *t, uint32_t w, int32_t left, int32_t right, int32_t made) {
  int32_t *s = t->symbols + t->first[w];
  uint32_t n = t->words[w].n;
  uint32_t to = 0;
  for (uint32_t i = 0; i < n; to++) {
    bool merges = i + 1 < n && s[i] == left && s[i + 1] == right;
    s[to] = merges ? made : s[i];
    i += merges ? 2 : 1;
  }
  t->words[w].n = to;
}

// The id of left and right concatenated. Different pairs can give the same text, which is one
// token.
static int32_t made_find(trainer *t, lm_word_table *known, int32_t left, int32_t right) {
  size_t n[2];
  const char *p[2] = {piece_of(t, left, &n[0]), piece_of(t, right, &n[1])};
  lm_buf text = {0};
  lm_buf_add(&text, p[0], n[0]);
  lm_buf_add(&text, p[1], n[1]);
  lm_word *w = lm_word_count(known, text.p, text.n, 0);
  if (!w->count) { // ids begin behind those of the bytes
    w->count = (uint64_t)t->vocab;
    piece_add(t, text.p, text.n);
  }
  int32_t id = (int32_t)w->count;
  lm_buf_free(&text);
  return id;
}

static void pair_merge(trainer *t, pair *best, int32_t made) {
  pair p = *best; // copied, since `pairs` may move
  best->words = NULL;
  best->n = best->cap = 0;
  for (uint32_t i = 0; i < p.n; i++) {
    if (!word_holds(t, p.words[i], p.left, p.right))
      continue;
    word_pairs_add(t, p.words[i], -1, made);
    word_merge(t, p.words[i], p.left, p.right, made);
    word_pairs_add(t, p.words[i], 1, made);
  }
  lm_free(p.words);
  dirty_push(t);
}

static void merges_make(trainer *t, int32_t vocab) {
  lm_word_table known = {.arena = lm_arena_create()}; // from the text of a token to its id
  for (size_t w = 0; w < t->n_words; w++)
    word_pairs_add(t, (uint32_t)w, 1, -1);
  dirty_push(t);
  for (pair *p; t->vocab < vocab && (p = pair_best(t));) {
    if (t->n_merges + 2 > t->cap_merges) {
      t->cap_merges = t->cap_merges ? 2 * t->cap_merges : 1024;
      t->merges = lm_realloc(t->merges, t->cap_merges * sizeof *t->merges);
    }
    t->merges[t->n_merges++] = p->left;
    t->merges[t->n_merges++] = p->right;
    pair_merge(t, p, made_find(t, &known, p->left, p->right));
  }
  lm_free(known.at);
  lm_arena_destroy(known.arena);
}

// ---- writing

static void piece_chars(const trainer *t, int32_t id, lm_buf *out) { // appends
  size_t n;
  const char *p = piece_of(t, id, &n);
  if (id == EOS)
    lm_buf_add(out, p, n);
  else
    lm_bytes_to_chars(p, n, out);
}

static void json_write(const trainer *t, lm_buf *out) {
  lm_buf piece = {0};
  lm_buf_puts(out, "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                   "\"trim_offsets\": true, \"use_regex\": true},\n"
                   "  \"post_processor\": null,\n"
                   "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                   "\"trim_offsets\": true, \"use_regex\": true},\n"
                   "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                   "\"continuing_subword_prefix\": null,\n"
                   "    \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": "
                   "false, \"ignore_merges\": false,\n    \"vocab\": {");
  for (int32_t id = 0; id < t->vocab; id++) {
    piece.n = 0;
    piece_chars(t, id, &piece);
    lm_buf_puts(out, id ? ",\n      " : "\n      ");
    lm_buf_json(out, piece.p);
    lm_buf_printf(out, ": %d", id);
  }
  lm_buf_puts(out, "\n    },\n    \"merges\": [");
  for (size_t i = 0; i < t->n_merges; i += 2) {
    piece.n = 0;
    piece_chars(t, t->merges[i], &piece);
    lm_buf_puts(&piece, " ");
    piece_chars(t, t->merges[i + 1], &piece);
    lm_buf_puts(out, i ? ",\n      " : "\n      ");
    lm_buf_json(out, piece.p);
  }
  lm_buf_puts(out, "\n    ]\n  }\n}\n");
  lm_buf_free(&piece);
}

static void trainer_free(trainer *t) {
  for (uint32_t i = 0; i < t->n_pairs; i++)
    lm_free(t->pairs[i].words);
  lm_free(t->first);
  lm_free(t->symbols);
  lm_free(t->pairs);
  lm_free(t->index);
  lm_free(t->dirty);
  lm_free(t->entries.v);
  lm_buf_free(&t->text);
  lm_free(t->ends);
  lm_free(t->merges);
}

// The result does not depend on the order of the words; this one keeps similar words together in
// memory.
static int by_bytes(const void *x, const void *y) {
  const lm_word *a = x, *b = y;
  return lm_bytes_compare(a->p, a->n, b->p, b->n);
}

void lm_train_bpe(lm_word *words, size_t n_words, int32_t vocab, lm_buf *out_json) {
  int32_t byte_id[256];
  trainer t = {
      .words = words,
      .n_words = n_words,
  };
  qsort(words, n_words, sizeof *words, by_bytes);
  piece_add(&t, LM_TRAINED_EOS, strlen(LM_TRAINED_EOS));
  bytes_add(&t, byte_id);
  symbols_make(&t, byte_id);
  merges_make(&t, vocab);
  json_write(&t, out_json);
  trainer_free(&t);
}
