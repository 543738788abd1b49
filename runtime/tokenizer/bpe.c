// bpe.c - encodes words by byte-pair merges. Words repeat often, so each encoder caches the ids of
// recent words. Other words are a linked list of symbols with a heap of candidate merges: O(n log
// n) in the length of the word.
#include "runtime/tokenizer/bpe.h"

#include <string.h>

#include "runtime/tokenizer/bytechar.h"

enum {
  CACHE = 1 << 15,
  CACHE_BYTES = 30,
  CACHE_IDS = 8
};
typedef struct {
  uint8_t n, n_ids;
  char word[CACHE_BYTES];
  int32_t ids[CACHE_IDS];
} cached; // one cache line

typedef struct {
  int32_t id, prev, next;
} symbol; // id -1: merged into the symbol before; next -1: the last symbol
typedef struct {
  uint32_t rank;
  int32_t at, left, right, made;
} candidate;

typedef struct lm_bpe_encoder {
  struct lm_bpe_encoder *next;
  const lm_bpe *b;
  lm_pretok_room *room;
  lm_regex_room *regex;
  cached *cache; // [CACHE]
  symbol *symbols;
  size_t cap_symbols;
  candidate *heap;
  size_t n_heap, cap_heap;
  lm_buf normal[2], spaced, bytes;
  bool begun; // part of the text is encoded
  lm_tokens *out;
} encoder;

// ---- creating

lm_bpe *lm_bpe_create(void) {
  lm_bpe *b = lm_alloc(sizeof *b);
  b->base.ops = &lm_bpe_ops;
  b->arena = lm_arena_create();
  b->pretok = lm_pretok_create();
  b->added = lm_added_create();
  b->added_normal = lm_added_create();
  b->unk = b->base.eos = -1;
  b->base.needs_utf8 = true;
  memset(b->byte_id, 0xff, sizeof b->byte_id);
  pthread_mutex_init(&b->lock, NULL);
  return b;
}

void lm_bpe_piece_set(lm_bpe *b, int32_t id, const char *p, size_t n) {
  if ((uint32_t)id >= b->cap_pieces) {
    uint32_t cap = b->cap_pieces ? b->cap_pieces : 1024;
    while (cap <= (uint32_t)id)
      cap *= 2;
    b->pieces = lm_realloc(b->pieces, cap * sizeof *b->pieces);
    memset(b->pieces + b->cap_pieces, 0, (cap - b->cap_pieces) * sizeof *b->pieces);
    b->cap_pieces = cap;
  }
  b->pieces[id] = (lm_bpe_piece){lm_arena_strndup(b->arena, p, n), (uint32_t)n};
  if (id >= b->base.vocab)
    b->base.vocab = id + 1;
}

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

static int32_t *word_at(const lm_bpe *b, const char *p, size_t n) {
  uint32_t at = (uint32_t)lm_hash(p, n, 0) & (b->cap_words - 1);
  for (; b->words[at] >= 0; at = (at + 1) & (b->cap_words - 1)) {
    const lm_bpe_piece *x = &b->pieces[b->words[at]];
    if (x->n == n && !memcmp(x->p, p, n))
      break;
  }
  return &b->words[at];
}

// The token of a byte that a SentencePiece vocabulary falls back to: no text.
static bool is_fallback(const lm_bpe *b, int32_t id) {
  const lm_bpe_piece *x = &b->pieces[id];
  return b->chars && x->n == 1 && b->byte_id[(unsigned char)*x->p] == id;
}

void lm_bpe_words_index(lm_bpe *b) {
  for (b->cap_words = 1024; b->cap_words < 2 * (uint32_t)b->base.vocab;)
    b->cap_words *= 2;
  b->words = lm_calloc(b->cap_words, sizeof *b->words);
  memset(b->words, 0xff, b->cap_words * sizeof *b->words);
  for (int32_t id = 0; id < b->base.vocab; id++)
    if (b->pieces[id].p && !is_fallback(b, id))
      *word_at(b, b->pieces[id].p, b->pieces[id].n) = id;
}

// ---- merging a word

static bool comes_before(const candidate *a, const candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(encoder *e, candidate c) {
  if (e->n_heap == e->cap_heap) {
    e->cap_heap = e->cap_heap ? 2 * e->cap_heap : 64;
    e->heap = lm_realloc(e->heap, e->cap_heap * sizeof *e->heap);
  }
  size_t i = e->n_heap++;
  for (size_t up; i && comes_before(&c, &e->heap[up = (i - 1) / 2]); i = up)
    e->heap[i] = e->heap[up];
  e->heap[i] = c;
}

static candidate heap_pop(encoder *e) {
  candidate top = e->heap[0];
  candidate c = e->heap[--e->n_heap];
  size_t i = 0, down;
  while ((down = 2 * i + 1) < e->n_heap) {
    if (down + 1 < e->n_heap && comes_before(&e->heap[down + 1], &e->heap[down]))
      down++;
    if (!comes_before(&e->heap[down], &c))
      break;
    e->heap[i] = e->heap[down];
    i = down;
  }
  e->heap[i] = c;
  return top;
}

// The pair that begins at symbol `at`, if it can be merged.
static void pair_offer(encoder *e, int32_t at) {
  const symbol *s = &e->symbols[at];
  if (at < 0 || s->next < 0)
    return;
  const lm_bpe_pair *p = pair_at(e->b, s->id, e->symbols[s->next].id);
  if (p->made >= 0)
    heap_push(e, (candidate){p->rank, at, p->left, p->right, p->made});
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

static void symbol_add(encoder *e, int32_t *n, int32_t id) {
  e->symbols[*n] = (symbol){id, *n - 1, *n + 1};
  ++*n;
}

// Whether all bytes of the unit have tokens.
static bool has_bytes(const lm_bpe *b, const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (b->byte_id[(unsigned char)p[i]] < 0)
      return false;
  return true;
}

// Adds the symbols of a unit (a byte or a character). *unknown: whether the unit before had no
// token.
static void unit_add(encoder *e, int32_t *count, const char *p, size_t n, bool *unknown) {
  const lm_bpe *b = e->b;
  int32_t id = b->chars ? *word_at(b, p, n) : -1;
  bool fallback = id < 0 && has_bytes(b, p, n);
  if (id >= 0)
    symbol_add(e, count, id);
  for (size_t i = 0; fallback && i < n; i++)
    symbol_add(e, count, b->byte_id[(unsigned char)p[i]]);
  bool none = id < 0 && !fallback;
  if (none && b->unk >= 0 && !(*unknown && b->fuse_unk))
    symbol_add(e, count, b->unk);
  *unknown = none;
}

// Splits a word into the symbols of its bytes or characters; returns the number of symbols. Units
// without a token are handled as `unk` and `fuse_unk` specify.
static int32_t symbols_make(encoder *e, const char *p, size_t n) {
  int32_t count = 0;
  bool unknown = false;
  uint32_t point;
  if (n > e->cap_symbols) {
    e->cap_symbols = n > 2 * e->cap_symbols ? n : 2 * e->cap_symbols;
    e->symbols = lm_realloc(e->symbols, e->cap_symbols * sizeof *e->symbols);
  }
  for (size_t i = 0, unit; i < n; i += unit) {
    unit = e->b->chars ? lm_utf8_decode(p + i, n - i, &point) : 1;
    if (!unit)
      unit = 1; // a byte that is not valid UTF-8
    unit_add(e, &count, p + i, unit, &unknown);
  }
  if (count)
    e->symbols[count - 1].next = -1;
  return count;
}

static void word_merge(encoder *e, const char *p, size_t n) {
  int32_t count = symbols_make(e, p, n);
  if (e->b->n_pairs)
    for (int32_t i = 0; i + 1 < count; i++)
      pair_offer(e, i);
  while (e->n_heap) {
    candidate c = heap_pop(e);
    if (still_there(e, &c))
      pair_merge(e, &c);
  }
  for (int32_t i = count ? 0 : -1; i >= 0; i = e->symbols[i].next)
    lm_tokens_add(e->out, e->symbols[i].id);
}

static void word_encode(encoder *e, const char *p, size_t n) {
  int32_t whole = e->b->whole_words ? *word_at(e->b, p, n) : -1;
  if (whole >= 0)
    lm_tokens_add(e->out, whole);
  else
    word_merge(e, p, n);
}

static void word_encode_cached(encoder *e, const char *p, size_t n) {
  cached *c = &e->cache[lm_hash(p, n, 0) & (CACHE - 1)];
  if (c->n == n && !memcmp(c->word, p, n)) {
    lm_tokens_add_n(e->out, c->ids, c->n_ids);
    return;
  }
  size_t before = e->out->n;
  word_encode(e, p, n);
  size_t made = e->out->n - before;
  if (made > CACHE_IDS)
    return;
  c->n = (uint8_t)n;
  c->n_ids = (uint8_t)made;
  memcpy(c->word, p, n);
  if (made)
    memcpy(c->ids, e->out->ids + before, made * sizeof *c->ids);
}

static lm_status on_word(void *user, const char *p, size_t n) {
  encoder *e = user;
  if (n > INT32_MAX / 2)
    return lm_fail(LM_USER, "a word of %zu bytes exceeds the maximum length", n);
  if (n <= CACHE_BYTES)
    word_encode_cached(e, p, n);
  else
    word_encode(e, p, n);
  return NULL;
}

static lm_status on_word_of_chars(void *user, const char *p, size_t n) {
  encoder *e = user;
  e->bytes.n = 0;
  bool known = lm_chars_to_bytes(p, n, &e->bytes);
  LM_ASSERT(known);
  return on_word(e, e->bytes.p, e->bytes.n);
}

// ---- from text to words

typedef lm_status text_fn(encoder *e, const char *text, size_t n, bool continues);

// Adds the ids of added tokens, and calls `between` for the text between them. Only the first part
// can continue earlier text.
static lm_status added_split(encoder *e, const lm_added *a, const char *text, size_t n,
                             bool continues, text_fn *between) {
  if (lm_added_is_empty(a))
    return between(e, text, n, continues);
  const lm_added_token *t;
  size_t done = 0, at = 0, start, end;
  for (;;) {
    LM_TRY(lm_added_find(a, e->regex, text, n, done, &at, &start, &end, &t));
    if (!t)
      break;
    if (start > done)
      LM_TRY(between(e, text + done, start - done, continues && !done));
    lm_tokens_add(e->out, t->id);
    e->begun = true;
    done = end;
  }
  return done < n ? between(e, text + done, n - done, continues && !done) : NULL;
}

// ---- spaces of SentencePiece vocabularies

static bool is_space_mark(const char *p, size_t n) {
  return n >= 3 && !memcmp(p, LM_SPACE_MARK, 3);
}
static bool begins_with_space(const char *p, size_t n) {
  return *p == ' ' || is_space_mark(p, n);
}

static bool wants_prefix(const encoder *e, const char *text, size_t n, bool continues) {
  lm_space_prefix p = e->b->prefix;
  if (p == LM_PREFIX_NONE || continues || !n || (p == LM_PREFIX_FIRST && e->begun))
    return false;
  return p == LM_PREFIX_ALWAYS || !begins_with_space(text, n);
}

// Replaces U+2581 by a space, and prepends a space if the vocabulary requires one.
static void spaces_make(encoder *e, const char **text, size_t *n, bool continues) {
  lm_buf *out = &e->spaced;
  out->n = 0;
  if (wants_prefix(e, *text, *n, continues))
    lm_buf_puts(out, " ");
  for (const char *at = *text, *end = at + *n; at < end;) {
    bool mark = is_space_mark(at, (size_t)(end - at));
    const char *next = mark ? at + 3 : memchr(at + 1, *LM_SPACE_MARK, (size_t)(end - at - 1));
    if (!next)
      next = end;
    if (mark)
      lm_buf_puts(out, " ");
    else
      lm_buf_add(out, at, (size_t)(next - at));
    at = next;
  }
  *text = out->p ? out->p : "";
  *n = out->n;
}

static lm_status words_encode(encoder *e, const char *text, size_t n, bool continues) {
  lm_word_sink sink = {lm_pretok_gives_chars(e->b->pretok) ? on_word_of_chars : on_word, e};
  if (e->b->spaces == LM_SPACES_SPLIT)
    spaces_make(e, &text, &n, continues);
  e->begun = true;
  return lm_pretok_run(e->b->pretok, e->room, text, n, continues, sink);
}

static lm_status normal_encode(encoder *e, const char *text, size_t n, bool continues) {
  for (int i = 0; i < e->b->n_forms; i++)
    LM_TRY(lm_normalize(e->b->forms[i], text, n, &e->normal[i & 1], &text, &n));
  if (e->b->spaces == LM_SPACES_NORMAL)
    spaces_make(e, &text, &n, continues);
  return added_split(e, e->b->added_normal, text, n, continues, words_encode);
}

static lm_status text_encode(encoder *e, const char *text, size_t n, bool continues) {
  for (size_t at = 0; at < n; continues = true) {
    size_t valid = lm_utf8_valid(text + at, n - at);
    size_t end = at + valid;
    if (valid)
      LM_TRY(added_split(e, e->b->added, text + at, valid, continues, normal_encode));
    uint32_t point;
    for (at = end; at < n && !lm_utf8_decode(text + at, n - at, &point);)
      at++;
    if (at > end)
      LM_TRY(on_word(e, text + end, at - end));
  }
  return NULL;
}

// ---- encoders and the tokenizer

static encoder *encoder_create(const lm_bpe *b) {
  encoder *e = lm_alloc(sizeof *e);
  e->b = b;
  e->room = lm_pretok_room_create(b->pretok);
  e->regex = lm_regex_room_create();
  e->cache = lm_calloc(CACHE, sizeof *e->cache);
  return e;
}

static void encoder_destroy(encoder *e) {
  lm_pretok_room_destroy(e->room);
  lm_regex_room_destroy(e->regex);
  lm_free(e->cache);
  lm_free(e->symbols);
  lm_free(e->heap);
  lm_buf_free(&e->normal[0]);
  lm_buf_free(&e->normal[1]);
  lm_buf_free(&e->spaced);
  lm_buf_free(&e->bytes);
  lm_free(e);
}

static encoder *encoder_take(lm_bpe *b) {
  pthread_mutex_lock(&b->lock);
  encoder *e = b->idle;
  if (e)
    b->idle = e->next;
  pthread_mutex_unlock(&b->lock);
  return e ? e : encoder_create(b);
}

static void encoder_give_back(lm_bpe *b, encoder *e) {
  e->n_heap = 0;
  pthread_mutex_lock(&b->lock);
  e->next = b->idle;
  b->idle = e;
  pthread_mutex_unlock(&b->lock);
}

static lm_status bpe_encode(const lm_tokenizer *self, const char *text, size_t n, bool continues,
                            lm_tokens *out) {
  lm_bpe *b = (lm_bpe *)self;
  encoder *e = encoder_take(b);
  e->out = out;
  e->begun = false;
  lm_status s = text_encode(e, text, n, continues);
  encoder_give_back(b, e);
  return s;
}

static const char *bpe_piece(const lm_tokenizer *self, int32_t id, size_t *out_n) {
  const lm_bpe_piece *p = &((const lm_bpe *)self)->pieces[id];
  *out_n = p->n;
  return p->p;
}

static void bpe_destroy(lm_tokenizer *self) {
  lm_bpe *b = (lm_bpe *)self;
  for (encoder *e = b->idle, *next; e; e = next) {
    next = e->next;
    encoder_destroy(e);
  }
  pthread_mutex_destroy(&b->lock);
  lm_pretok_destroy(b->pretok);
  lm_added_destroy(b->added);
  lm_added_destroy(b->added_normal);
  lm_arena_destroy(b->arena);
  lm_free(b->pieces);
  lm_free(b->pairs);
  lm_free(b->words);
  lm_free(b);
}

const lm_tokenizer_ops lm_bpe_ops = {bpe_encode, bpe_piece, bpe_destroy};
