// spm_file.c - reads SentencePiece's tokenizer.model, a message ModelProto in the wire format of
// protocol buffers (sentencepiece_model.proto of github.com/google/sentencepiece).
#define _GNU_SOURCE
#include <stdlib.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/file.h"

// ---- the wire format

typedef struct {
  const unsigned char *p, *end;
} wire;
typedef struct {
  uint32_t field;
  uint64_t number; // of a varint, or the bits of a fixed-size number
  wire bytes;      // of a string or a message
} wire_field;

static lm_status malformed(void) {
  return lm_fail(LM_USER, "the file is neither JSON nor a SentencePiece model");
}

static bool varint_read(wire *w, uint64_t *out) {
  *out = 0;
  for (int shift = 0; w->p < w->end && shift < 64; shift += 7) {
    *out |= (uint64_t)(*w->p & 0x7f) << shift;
    if (!(*w->p++ & 0x80))
      return true;
  }
  return false;
}

static bool bytes_read(wire *w, uint64_t n, wire *out) {
  if (n > (uint64_t)(w->end - w->p))
    return false;
  *out = (wire){w->p, w->p + n};
  w->p += n;
  return true;
}

static bool fixed_read(wire *w, int n, uint64_t *out) {
  wire x;
  if (!bytes_read(w, (uint64_t)n, &x))
    return false;
  *out = 0;
  for (int i = 0; i < n; i++)
    *out |= (uint64_t)x.p[i] << 8 * i;
  return true;
}

static lm_status field_read(wire *w, wire_field *out) {
  enum {
    VARINT = 0,
    FIXED64 = 1,
    BYTES = 2,
    FIXED32 = 5
  };
  uint64_t key;
  *out = (wire_field){0};
  if (!varint_read(w, &key) || key >> 3 > UINT32_MAX)
    return malformed();
  out->field = (uint32_t)(key >> 3);
  bool read = false;
  switch (key & 7) {
  case VARINT: read = varint_read(w, &out->number); break;
  case FIXED64: read = fixed_read(w, 8, &out->number); break;
  case FIXED32: read = fixed_read(w, 4, &out->number); break;
  case BYTES: read = varint_read(w, &out->number) && bytes_read(w, out->number, &out->bytes); break;
  }
  return read ? NULL : malformed();
}

static double float_of(uint64_t bits) {
  union {
    uint32_t bits;
    float value;
  } x = {.bits = (uint32_t)bits};
  return (double)x.value;
}

// ---- the model

typedef enum {
  PIECE_NORMAL = 1,
  PIECE_UNKNOWN,
  PIECE_CONTROL,
  PIECE_USER_DEFINED,
  PIECE_UNUSED,
  PIECE_BYTE
} piece_kind;
enum {
  MODEL_UNIGRAM = 1,
  MODEL_BPE = 2
};

typedef struct {
  const char *text;
  size_t n;
  double score;
  piece_kind kind;
} piece;

typedef struct {
  piece *pieces;
  size_t n;
  size_t cap;
  uint64_t model;
  bool byte_fallback, suffix; // suffix: a space belongs to the word before it
  int64_t eos;
  wire unknown_text;
  wire charsmap;
  bool dummy_prefix;
  bool remove_extra;
  bool escape;
} proto;

static lm_status piece_read(proto *m, wire w) {
  piece x = {.text = "", .kind = PIECE_NORMAL};
  wire_field f;
  while (w.p < w.end) {
    LM_TRY(field_read(&w, &f));
    if (f.field == 1) {
      x.text = (const char *)f.bytes.p;
      x.n = (size_t)(f.bytes.end - f.bytes.p);
    } else if (f.field == 2) {
      x.score = float_of(f.number);
    } else if (f.field == 3) {
      x.kind = (piece_kind)f.number;
    }
  }
  if (!x.n || x.kind < PIECE_NORMAL || x.kind > PIECE_BYTE || m->n == LM_SUBWORD_IDS ||
      lm_utf8_valid(x.text, x.n) != x.n || x.score != x.score)
    return lm_fail(LM_USER, "piece %zu is malformed", m->n);
  if (m->n == m->cap) {
    m->cap = m->cap ? 2 * m->cap : 1024;
    m->pieces = lm_realloc(m->pieces, m->cap * sizeof *m->pieces);
  }
  m->pieces[m->n++] = x;
  return NULL;
}

static lm_status trainer_read(proto *m, wire w) {
  wire_field f;
  while (w.p < w.end) {
    LM_TRY(field_read(&w, &f));
    switch (f.field) {
    case 3: m->model = f.number; break;
    case 24: m->suffix = f.number; break;
    case 35: m->byte_fallback = f.number; break;
    case 42: m->eos = (int64_t)(int32_t)f.number; break;
    case 44: m->unknown_text = f.bytes; break;
    }
  }
  return NULL;
}

static lm_status normalizer_read(proto *m, wire w) {
  wire_field f;
  while (w.p < w.end) {
    LM_TRY(field_read(&w, &f));
    switch (f.field) {
    case 2: m->charsmap = f.bytes; break;
    case 3: m->dummy_prefix = f.number; break;
    case 4: m->remove_extra = f.number; break;
    case 5: m->escape = f.number; break;
    }
  }
  return NULL;
}

static lm_status proto_read(proto *m, wire w) {
  enum {
    PIECES = 1,
    TRAINER = 2,
    NORMALIZER = 3
  };
  wire_field f;
  while (w.p < w.end) {
    LM_TRY(field_read(&w, &f));
    if (f.field == PIECES)
      LM_TRY(piece_read(m, f.bytes));
    if (f.field == TRAINER)
      LM_TRY(trainer_read(m, f.bytes));
    if (f.field == NORMALIZER)
      LM_TRY(normalizer_read(m, f.bytes));
  }
  return m->n ? NULL : malformed();
}

static lm_status features_check(const proto *m) {
  if (m->model != MODEL_UNIGRAM && m->model != MODEL_BPE)
    return lm_unsupported("a SentencePiece model of words or characters");
  if (m->suffix)
    return lm_unsupported("treat_whitespace_as_suffix");
  if (!m->escape)
    return lm_unsupported("escape_whitespaces = false");
  for (size_t i = 0; i < m->n && m->model == MODEL_BPE; i++)
    if (m->pieces[i].kind == PIECE_UNUSED)
      return lm_unsupported("an unused piece in a BPE model");
  return NULL;
}

// ---- the tokenizer

static bool is_word(const piece *x) {
  return x->kind == PIECE_NORMAL || x->kind == PIECE_USER_DEFINED;
}

static lm_status pieces_set(lm_tokenizer_reading *r, const proto *m) {
  lm_subword *t = r->t;
  r->fallback = m->byte_fallback;
  for (size_t i = 0; i < m->n; i++) {
    const piece *x = &m->pieces[i];
    if (x->kind == PIECE_BYTE && lm_fallback_byte(x->text, x->n) < 0)
      return lm_fail(LM_USER, "piece %zu, \"%.*s\", has the type BYTE but not the form <0x41>", i,
                     (int)(x->n < 100 ? x->n : 100), x->text);
    lm_token_text_set(r, (int32_t)i, x->text, x->n);
    if (x->kind == PIECE_UNKNOWN)
      t->unk = (int32_t)i;
    if (is_word(x))
      lm_trie_set(t->words, x->text, x->n, (int32_t)i);
    if (x->kind == PIECE_CONTROL)
      lm_subword_special_add(t, &(lm_added_token){.text = lm_arena_strndup(t->arena, x->text, x->n),
                                                  .n = x->n,
                                                  .id = (int32_t)i,
                                                  .special = true});
    if (x->kind != PIECE_USER_DEFINED)
      continue;
    lm_trie_set(t->verbatim, x->text, x->n, (int32_t)i);
    lm_added_token token = {lm_arena_strndup(t->arena, x->text, x->n), x->n, (int32_t)i};
    lm_added_token_add(t->added_normal, &token);
  }
  if (t->unk < 0)
    return lm_fail(LM_USER, "the model has no unknown piece");
  t->base.spaced = t->unk;
  size_t n = (size_t)(m->unknown_text.end - m->unknown_text.p);
  const char *text = n ? (const char *)m->unknown_text.p : " \xe2\x81\x87 ";
  lm_subword_piece_set(t, t->unk, text, n ? n : strlen(text));
  return NULL;
}

// The greatest score comes first.
static int score_compare(const void *a, const void *b) {
  const piece *const *x = a, *const *y = b;
  return ((*x)->score < (*y)->score) - ((*x)->score > (*y)->score);
}

// Each pair of pieces whose concatenation is a piece merges; pieces of greater scores first.
static void merges_set(lm_subword *t, const proto *m) {
  const piece **by_score = lm_calloc(m->n, sizeof *by_score);
  for (size_t i = 0; i < m->n; i++)
    by_score[i] = &m->pieces[i];
  qsort(by_score, m->n, sizeof *by_score, score_compare);
  uint32_t rank = 0;
  for (size_t i = 0; i < m->n; i++) {
    const piece *x = by_score[i];
    rank += i && x->score != by_score[i - 1]->score;
    for (size_t cut = 1; cut < x->n && is_word(x); cut++) {
      int32_t left = lm_trie_find(t->words, x->text, cut);
      int32_t right = lm_trie_find(t->words, x->text + cut, x->n - cut);
      if (left >= 0 && right >= 0)
        lm_bpe_merge_set(&t->bpe, left, right, (int32_t)(x - m->pieces), rank);
    }
  }
  lm_free(by_score);
}

// As SentencePiece scores: user-defined pieces are preferred to all others; an unknown character
// scores 10 less than the worst piece. Both extremes are taken over normal pieces.
static void scores_set(lm_subword *t, const proto *m) {
  double most = -HUGE_VAL;
  double least = HUGE_VAL;
  t->unigram.scores = lm_calloc(m->n, sizeof(double));
  t->unigram.single = true;
  for (size_t i = 0; i < m->n; i++)
    if (m->pieces[i].kind == PIECE_NORMAL) {
      most = fmax(most, m->pieces[i].score);
      least = fmin(least, m->pieces[i].score);
    }
  for (size_t i = 0; i < m->n; i++) {
    const piece *x = &m->pieces[i];
    bool chosen = x->kind == PIECE_USER_DEFINED;
    t->unigram.scores[i] = chosen ? (double)(float)((double)x->n * most - 0.1) : x->score;
  }
  t->unigram.unknown = (double)((float)least - 10.0f);
}

// Whether U+2581 is a piece, and only begins pieces: then no merge, nor a run of unknown
// characters, crosses the beginning of a word, so words can be encoded by themselves, and cached.
// Unigram models do not have this property: rounding of the sum over a whole text decides between
// equal scores.
static bool words_are_apart(const lm_subword *t, const proto *m) {
  size_t n = strlen(LM_SPACE_MARK);
  if (m->model != MODEL_BPE)
    return false;
  for (size_t i = 0; i < m->n; i++) {
    const piece *x = &m->pieces[i];
    if (is_word(x) && x->n > n && memmem(x->text + 1, x->n - 1, LM_SPACE_MARK, n))
      return false;
  }
  return lm_trie_find(t->words, LM_SPACE_MARK, n) >= 0;
}

static lm_status steps_add(lm_subword *t, const proto *m) {
  size_t n = (size_t)(m->charsmap.end - m->charsmap.p);
  LM_TRY(lm_normalizer_charsmap_add(t->normal, (const char *)m->charsmap.p, n, t->verbatim));
  if (m->remove_extra)
    LM_TRY(lm_normalizer_squeeze_add(t->normal));
  if (m->dummy_prefix)
    LM_TRY(lm_normalizer_prepend_add(t->normal, LM_SPACE_MARK));
  LM_TRY(lm_normalizer_replace_add(t->normal, " ", true, LM_SPACE_MARK));
  if (!words_are_apart(t, m))
    return NULL;
  return lm_pretok_split_add(t->pretok, LM_SPACE_MARK, strlen(LM_SPACE_MARK), true, LM_SPLIT_NEXT,
                             false);
}

static lm_status tokenizer_make(lm_tokenizer_reading *r, const proto *m) {
  lm_subword *t = r->t;
  LM_TRY(features_check(m));
  t->chars = true;
  t->fuse_unk = true;
  t->verbatim = lm_trie_create();
  LM_TRY(pieces_set(r, m));
  t->base.kind = m->model == MODEL_BPE ? LM_TOKENIZER_BPE : LM_TOKENIZER_UNIGRAM;
  t->model = m->model == MODEL_BPE ? &LM_BPE : &LM_UNIGRAM;
  if (m->model == MODEL_BPE)
    merges_set(t, m);
  else
    scores_set(t, m);
  t->base.prefix_space = m->dummy_prefix || m->remove_extra;
  if (m->eos >= 0 && (size_t)m->eos < m->n && m->pieces[m->eos].kind == PIECE_CONTROL)
    t->base.eos = (int32_t)m->eos;
  return steps_add(t, m);
}

lm_status lm_sentencepiece_read(lm_tokenizer_reading *r, const char *file, size_t n) {
  proto m = {
      .model = MODEL_UNIGRAM, .eos = 2, .dummy_prefix = true, .remove_extra = true, .escape = true};
  const unsigned char *p = (const unsigned char *)file;
  lm_status s = proto_read(&m, (wire){p, p + n});
  if (!s)
    s = tokenizer_make(r, &m);
  lm_free(m.pieces);
  return s;
}
