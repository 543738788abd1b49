// subword.c - see subword.h. Words repeat often, so each encoder caches the ids of recent words.
#include "runtime/tokenizer/subword.h"

#include <string.h>

#include "runtime/tokenizer/bytechar.h"

enum {
  CACHE = 1 << 15,
  CACHE_BYTES = 30,
  CACHE_IDS = 8
};
typedef struct {
  uint8_t n;
  uint8_t n_ids;
  char word[CACHE_BYTES];
  int32_t ids[CACHE_IDS];
} cached; // one cache line

typedef struct lm_subword_encoder {
  struct lm_subword_encoder *next;
  const lm_subword *t;
  lm_normalizer_room *normal;
  lm_pretok_room *room;
  lm_regex_room *regex;
  void *model;   // its workspace
  cached *cache; // [CACHE]
  lm_buf bytes;
  bool begun; // part of the text is encoded
  bool plain; // special tokens are found by encode_own only
  lm_tokens *out;
} encoder;

static const lm_tokenizer_ops ops;

lm_subword *lm_subword_create(void) {
  lm_subword *t = lm_alloc(sizeof *t);
  t->base.ops = &ops;
  t->arena = lm_arena_create();
  t->words = lm_trie_create();
  t->normal = lm_normalizer_create();
  t->pretok = lm_pretok_create();
  t->added = lm_added_create();
  t->added_normal = lm_added_create();
  t->special = lm_added_create();
  t->unk = t->base.eos = t->base.spaced = -1;
  t->base.needs_utf8 = true;
  memset(t->byte_id, 0xff, sizeof t->byte_id);
  pthread_mutex_init(&t->lock, NULL);
  return t;
}

void lm_subword_piece_set(lm_subword *t, int32_t id, const char *p, size_t n) {
  if ((uint32_t)id >= t->cap_pieces) {
    uint32_t cap = t->cap_pieces ? t->cap_pieces : 1024;
    while (cap <= (uint32_t)id)
      cap *= 2;
    t->pieces = lm_realloc(t->pieces, cap * sizeof *t->pieces);
    memset(t->pieces + t->cap_pieces, 0, (cap - t->cap_pieces) * sizeof *t->pieces);
    t->cap_pieces = cap;
  }
  t->pieces[id] = (lm_subword_piece){lm_arena_strndup(t->arena, p, n), (uint32_t)n};
  if (id >= t->base.vocab)
    t->base.vocab = id + 1;
}

void lm_subword_special_add(lm_subword *t, const lm_added_token *x) {
  if ((uint32_t)x->id >= t->cap_special) {
    uint32_t cap = (uint32_t)x->id + 1024;
    t->is_special = lm_realloc(t->is_special, cap);
    memset(t->is_special + t->cap_special, 0, cap - t->cap_special);
    t->cap_special = cap;
  }
  t->is_special[x->id] = 1;
  lm_added_token_add(t->special, x);
}

// ---- from words to ids

// Whether all bytes of the unit have tokens.
static bool has_bytes(const lm_subword *t, const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (t->byte_id[(unsigned char)p[i]] < 0)
      return false;
  return true;
}

void lm_subword_unknown_add(const lm_subword *t, const char *p, size_t n, bool *unknown,
                            lm_tokens *out) {
  bool bytes = has_bytes(t, p, n);
  for (size_t i = 0; bytes && i < n; i++)
    lm_tokens_add(out, t->byte_id[(unsigned char)p[i]]);
  if (!bytes && t->unk >= 0 && !(*unknown && t->fuse_unk))
    lm_tokens_add(out, t->unk);
  *unknown = !bytes;
}

static void word_encode_cached(encoder *e, const char *p, size_t n) {
  cached *c = &e->cache[lm_hash(p, n, 0) & (CACHE - 1)];
  if (c->n == n && !memcmp(c->word, p, n)) {
    lm_tokens_add_n(e->out, c->ids, c->n_ids);
    return;
  }
  size_t before = e->out->n;
  e->t->model->encode(e->t, e->model, p, n, e->out);
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
    e->t->model->encode(e->t, e->model, p, n, e->out);
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

typedef lm_status text_fn(encoder *e, const char *text, size_t n, int part);

// What text from `start` to `end` of n bytes is a part of.
static int part_of(int part, size_t start, size_t end, size_t n) {
  int keep = (start ? 0 : LM_TEXT_FOLLOWS) | (end < n ? 0 : LM_TEXT_PRECEDES);
  return part & keep;
}

// Adds the ids of added tokens, and calls `between` for the text between them. own: see
// lm_added_allowed.
static lm_status added_split(encoder *e, const lm_added *a, const unsigned char *own,
                             const char *text, size_t n, int part, text_fn *between) {
  lm_added_allowed allowed = {own, e->plain && !own};
  if (lm_added_is_empty(a))
    return between(e, text, n, part);
  const lm_added_token *t;
  size_t done = 0;
  size_t at = 0;
  size_t start;
  size_t end;
  for (;;) {
    LM_TRY(lm_added_find(a, e->regex, allowed, text, n, done, &at, &start, &end, &t));
    if (!t)
      break;
    if (start > done)
      LM_TRY(between(e, text + done, start - done, part_of(part, done, start, n)));
    lm_tokens_add(e->out, t->id);
    e->begun = true;
    done = end;
  }
  return done < n ? between(e, text + done, n - done, part_of(part, done, n, n)) : NULL;
}

static lm_status words_encode(encoder *e, const char *text, size_t n, int part) {
  lm_word_sink sink = {lm_pretok_gives_chars(e->t->pretok) ? on_word_of_chars : on_word, e};
  bool begun = e->begun || part & LM_TEXT_FOLLOWS;
  e->begun = true;
  return lm_pretok_run(e->t->pretok, e->room, text, n, part, begun, sink);
}

static lm_status normal_encode(encoder *e, const char *text, size_t n, int part) {
  LM_TRY(lm_normalizer_run(e->t->normal, e->normal, text, n, part, &text, &n));
  return added_split(e, e->t->added_normal, NULL, text, n, part, words_encode);
}

// Text behind bytes that are not valid UTF-8 follows them.
static lm_status text_encode(encoder *e, const char *text, size_t n, int part) {
  for (size_t at = 0; at < n; part |= LM_TEXT_FOLLOWS) {
    size_t valid = lm_utf8_valid(text + at, n - at);
    size_t end = at + valid;
    int more = end < n ? LM_TEXT_PRECEDES : 0;
    if (valid)
      LM_TRY(added_split(e, e->t->added, NULL, text + at, valid, part | more, normal_encode));
    uint32_t point;
    for (at = end; at < n && !lm_utf8_decode(text + at, n - at, &point);)
      at++;
    if (at > end)
      LM_TRY(on_word(e, text + end, at - end));
  }
  return NULL;
}

// ---- text of which some bytes may be special tokens

// The index behind the first character of the next special token's text in plain text; n: there is
// none.
static lm_status special_break(encoder *e, const char *text, size_t n, size_t *out) {
  const lm_added_token *x;
  size_t at = 0;
  size_t start;
  size_t end;
  LM_TRY(lm_added_find(e->t->special, e->regex, (lm_added_allowed){0}, text, n, 0, &at, &start,
                       &end, &x));
  *out = x ? at - x->n + lm_subword_unit(x->text, x->n) : n;
  return NULL;
}

static bool subword_is_special(const lm_tokenizer *self, int32_t id) {
  const lm_subword *t = (const lm_subword *)self;
  return (uint32_t)id < t->cap_special && t->is_special[id];
}

static bool has_special(const lm_subword *t, const lm_tokens *ids, size_t from) {
  for (size_t i = from; i < ids->n; i++)
    if (subword_is_special(&t->base, ids->ids[i]))
      return true;
  return false;
}

// A vocabulary may hold the text of a special token as an ordinary word. Where one appears, the
// text is cut behind its first character.
static lm_status plain_encode(encoder *e, const char *text, size_t n, int part) {
  size_t before = e->out->n;
  size_t cut;
  bool begun = e->begun;
  LM_TRY(text_encode(e, text, n, part));
  if (!has_special(e->t, e->out, before))
    return NULL;
  e->out->n = before;
  e->begun = begun;
  for (size_t at = 0; at < n; at += cut) {
    LM_TRY(special_break(e, text + at, n - at, &cut));
    int to = (at ? LM_TEXT_FOLLOWS : 0) | (at + cut < n ? LM_TEXT_PRECEDES : 0);
    LM_TRY(text_encode(e, text + at, cut, part | to));
  }
  return has_special(e->t, e->out, before)
             ? lm_fail(LM_USER, "text that is no special token becomes one")
             : NULL;
}

static lm_status own_encode(encoder *e, const char *text, size_t n, const unsigned char *own,
                            int part) {
  e->plain = true;
  return lm_added_is_empty(e->t->special)
             ? text_encode(e, text, n, part)
             : added_split(e, e->t->special, own, text, n, part, plain_encode);
}

static lm_status subword_special_find(const lm_tokenizer *self, const char *text, size_t n,
                                      const unsigned char *own, size_t *out_end, bool *out_found) {
  const lm_subword *t = (const lm_subword *)self;
  const lm_added_token *x = NULL;
  lm_regex_room *m = lm_regex_room_create();
  size_t at = 0;
  size_t start;
  lm_status s =
      lm_added_find(t->special, m, (lm_added_allowed){own}, text, n, 0, &at, &start, out_end, &x);
  lm_regex_room_destroy(m);
  *out_end = at; // without white space that the token strips
  *out_found = x != NULL;
  return s;
}

// ---- encoders and the tokenizer

static encoder *encoder_create(const lm_subword *t) {
  encoder *e = lm_alloc(sizeof *e);
  e->t = t;
  e->normal = lm_normalizer_room_create();
  e->room = lm_pretok_room_create(t->pretok);
  e->regex = lm_regex_room_create();
  e->model = t->model->room_create();
  e->cache = lm_calloc(CACHE, sizeof *e->cache);
  return e;
}

static void encoder_destroy(encoder *e) {
  lm_normalizer_room_destroy(e->normal);
  lm_pretok_room_destroy(e->room);
  lm_regex_room_destroy(e->regex);
  e->t->model->room_destroy(e->model);
  lm_free(e->cache);
  lm_buf_free(&e->bytes);
  lm_free(e);
}

static encoder *encoder_take(lm_subword *t) {
  pthread_mutex_lock(&t->lock);
  encoder *e = t->idle;
  if (e)
    t->idle = e->next;
  pthread_mutex_unlock(&t->lock);
  return e ? e : encoder_create(t);
}

static void encoder_give_back(lm_subword *t, encoder *e) {
  pthread_mutex_lock(&t->lock);
  e->next = t->idle;
  t->idle = e;
  pthread_mutex_unlock(&t->lock);
}

static lm_status subword_encode(const lm_tokenizer *self, const char *text, size_t n,
                                const unsigned char *own, int part, lm_tokens *out) {
  lm_subword *t = (lm_subword *)self;
  encoder *e = encoder_take(t);
  e->out = out;
  e->begun = part & LM_TEXT_BEGUN;
  e->plain = false;
  lm_status s = own ? own_encode(e, text, n, own, part) : text_encode(e, text, n, part);
  encoder_give_back(t, e);
  return s;
}

static const char *subword_piece(const lm_tokenizer *self, int32_t id, size_t *out_n) {
  const lm_subword_piece *p = &((const lm_subword *)self)->pieces[id];
  *out_n = p->n;
  return p->p;
}

static void subword_destroy(lm_tokenizer *self) {
  lm_subword *t = (lm_subword *)self;
  for (encoder *e = t->idle, *next; e; e = next) {
    next = e->next;
    encoder_destroy(e);
  }
  pthread_mutex_destroy(&t->lock);
  lm_normalizer_destroy(t->normal);
  lm_pretok_destroy(t->pretok);
  lm_added_destroy(t->added);
  lm_added_destroy(t->added_normal);
  lm_added_destroy(t->special);
  lm_trie_destroy(t->words);
  lm_trie_destroy(t->verbatim);
  lm_arena_destroy(t->arena);
  lm_free(t->pieces);
  lm_free(t->is_special);
  lm_free(t->bpe.pairs);
  lm_free(t->unigram.scores);
  lm_free(t);
}

static const lm_tokenizer_ops ops = {subword_encode, subword_special_find, subword_is_special,
                                     subword_piece, subword_destroy};
