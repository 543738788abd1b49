// bpe.c - byte-pair encoding. A word is a linked list of symbols, with a heap of candidate merges:
// O(n log n) in the length of the word.
#include "runtime/tokenizer/subword.h"

typedef struct {
  int32_t id;
  int32_t prev;
  int32_t next;
} symbol; // id -1: merged into the symbol before; next -1: the last symbol
typedef struct {
  uint32_t rank;
  int32_t at;
  int32_t left;
  int32_t right;
  int32_t made;
} candidate;

static bool comes_before(const candidate *a, const candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

#define HEAP_ELEMENT candidate
#define HEAP_BEFORE(user, a, b) comes_before(a, b)
#include "runtime/tokenizer/heap.h"

typedef struct {
  const lm_bpe *b;
  symbol *symbols;
  size_t cap_symbols;
  heap candidates;
  lm_tokens ids; // of the units of a word
} encoder;

// ---- the table of merges

static uint32_t pair_hash(int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 15);
}

// The slot of a pair in the hash table, or the empty slot for it.
static lm_bpe_pair *pair_at(const lm_bpe *b, int32_t left, int32_t right) {
  uint32_t at = pair_hash(left, right) & (b->cap_pairs - 1);
  while (b->pairs[at].made >= 0 && (b->pairs[at].left != left || b->pairs[at].right != right))
    at = (at + 1) & (b->cap_pairs - 1);
  return &b->pairs[at];
}

static void pairs_grow(lm_bpe *b) {
  lm_bpe_pair *old = b->pairs;
  uint32_t n = b->cap_pairs;
  b->cap_pairs = n ? 2 * n : 1024;
  b->pairs = lm_calloc(b->cap_pairs, sizeof *b->pairs);
  for (uint32_t i = 0; i < b->cap_pairs; i++)
    b->pairs[i].made = -1;
  for (uint32_t i = 0; i < n; i++)
    if (old[i].made >= 0)
      *pair_at(b, old[i].left, old[i].right) = old[i];
  lm_free(old);
}

void lm_bpe_merge_set(lm_bpe *b, int32_t left, int32_t right, int32_t made, uint32_t rank) {
  if (2 * (b->n_pairs + 1) > b->cap_pairs)
    pairs_grow(b);
  lm_bpe_pair *p = pair_at(b, left, right);
  b->n_pairs += p->made < 0;
  *p = (lm_bpe_pair){left, right, made, rank};
}

// ---- merging a word

// The pair that begins at symbol `at`, if it can be merged.
static void pair_offer(encoder *e, int32_t at) {
  const symbol *s = &e->symbols[at];
  if (at < 0 || s->next < 0)
    return;
  const lm_bpe_pair *p = pair_at(e->b, s->id, e->symbols[s->next].id);
  if (p->made >= 0)
    heap_push(&e->candidates, NULL, (candidate){p->rank, at, p->left, p->right, p->made});
}

static bool still_there(const encoder *e, const candidate *c) {
  const symbol *s = &e->symbols[c->at];
  return s->id == c->left && s->next >= 0 && e->symbols[s->next].id == c->right;
}

static void pair_merge(encoder *e, const candidate *c) {
  symbol *s = &e->symbols[c->at];
  symbol *gone = &e->symbols[s->next];
  s->id = c->made;
  s->next = gone->next;
  gone->id = -1;
  if (s->next >= 0)
    e->symbols[s->next].prev = c->at;
  pair_offer(e, s->prev);
  pair_offer(e, c->at);
}

// Appends the ids of the units of a word: its bytes or characters.
static void units_add(encoder *e, const lm_subword *t, const char *p, size_t n) {
  bool unknown = false;
  for (size_t i = 0, unit; i < n; i += unit) {
    unit = t->chars ? lm_subword_unit(p + i, n - i) : 1;
    int32_t id = t->chars ? lm_trie_find(t->words, p + i, unit) : -1;
    if (id < 0) {
      lm_subword_unknown_add(t, p + i, unit, &unknown, &e->ids);
      continue;
    }
    lm_tokens_add(&e->ids, id);
    unknown = false;
  }
}

// Splits a word into symbols; returns their number.
static int32_t symbols_make(encoder *e, const lm_subword *t, const char *p, size_t n) {
  e->ids.n = 0;
  units_add(e, t, p, n);
  int32_t count = (int32_t)e->ids.n;
  if (e->ids.n > e->cap_symbols) {
    e->cap_symbols = e->ids.n > 2 * e->cap_symbols ? e->ids.n : 2 * e->cap_symbols;
    e->symbols = lm_realloc(e->symbols, e->cap_symbols * sizeof *e->symbols);
  }
  for (int32_t i = 0; i < count; i++)
    e->symbols[i] = (symbol){e->ids.ids[i], i - 1, i + 1 < count ? i + 1 : -1};
  return count;
}

static void word_merge(encoder *e, const lm_subword *t, const char *p, size_t n, lm_tokens *out) {
  int32_t count = symbols_make(e, t, p, n);
  if (e->b->n_pairs)
    for (int32_t i = 0; i + 1 < count; i++)
      pair_offer(e, i);
  while (e->candidates.n) {
    candidate c = heap_pop(&e->candidates, NULL);
    if (still_there(e, &c))
      pair_merge(e, &c);
  }
  for (int32_t i = count ? 0 : -1; i >= 0; i = e->symbols[i].next)
    lm_tokens_add(out, e->symbols[i].id);
}

static void bpe_encode(const lm_subword *t, void *room, const char *p, size_t n, lm_tokens *out) {
  encoder *e = room;
  int32_t whole = t->bpe.whole_words ? lm_trie_find(t->words, p, n) : -1;
  e->b = &t->bpe;
  if (whole >= 0)
    lm_tokens_add(out, whole);
  else
    word_merge(e, t, p, n, out);
}

static void *bpe_room_create(void) {
  return lm_alloc(sizeof(encoder));
}

static void bpe_room_destroy(void *room) {
  encoder *e = room;
  lm_free(e->symbols);
  lm_free(e->candidates.v);
  lm_tokens_free(&e->ids);
  lm_free(e);
}

const lm_word_model LM_BPE = {bpe_room_create, bpe_room_destroy, bpe_encode};
