// unigram.c - the unigram language model of SentencePiece (Kudo 2018, arXiv:1804.10959): the
// segmentation of a word into tokens whose scores, log probabilities, have the greatest sum, by
// Viterbi's algorithm.
#include "runtime/tokenizer/subword.h"

// The best segmentation of the word up to an index.
typedef struct {
  double score;
  int32_t id;
  int32_t start; // of its last token; -1: no segmentation was found yet
} best;

typedef struct {
  best *ends; // [n + 1]
  size_t cap;
  int32_t *cuts; // the indices between tokens, last one first
} lattice;

static void lattice_reset(lattice *x, size_t n) {
  if (n >= x->cap) {
    x->cap = n + 1 > 2 * x->cap ? n + 1 : 2 * x->cap;
    x->ends = lm_realloc(x->ends, x->cap * sizeof *x->ends);
    x->cuts = lm_realloc(x->cuts, x->cap * sizeof *x->cuts);
  }
  x->ends[0] = (best){.start = 0};
  for (size_t i = 1; i <= n; i++)
    x->ends[i].start = -1;
}

static void token_offer(const lm_subword *t, lattice *x, size_t start, size_t end, int32_t id,
                        double score) {
  double sum = score + x->ends[start].score;
  if (t->unigram.single)
    sum = (double)((float)score + (float)x->ends[start].score);
  best *b = &x->ends[end];
  if (b->start < 0 || sum > b->score)
    *b = (best){sum, id, (int32_t)start};
}

// Offers all tokens that begin at `start`, and `unk` if none of them is a character.
static size_t tokens_offer(const lm_subword *t, lattice *x, const char *p, size_t n, size_t start) {
  uint32_t at = LM_TRIE_ROOT;
  size_t one = lm_subword_unit(p + start, n - start);
  bool single = false;
  for (size_t end = start; end < n;) {
    at = lm_trie_step(t->words, at, (unsigned char)p[end++]);
    if (at == LM_TRIE_ROOT)
      break;
    int32_t id = lm_trie_value(t->words, at);
    if (id < 0)
      continue;
    token_offer(t, x, start, end, id, t->unigram.scores[id]);
    single |= end == start + one;
  }
  if (!single)
    token_offer(t, x, start, start + one, t->unk, t->unigram.unknown);
  return start + one;
}

static void unigram_encode(const lm_subword *t, void *room, const char *p, size_t n,
                           lm_tokens *out) {
  lattice *x = room;
  lattice_reset(x, n);
  for (size_t at = 0; at < n;)
    at = tokens_offer(t, x, p, n, at);
  size_t count = 0;
  bool unknown = false;
  for (int32_t at = (int32_t)n; at > 0; at = x->ends[at].start)
    x->cuts[count++] = at;
  for (size_t start = 0; count; start = (size_t)x->cuts[count]) {
    const best *b = &x->ends[x->cuts[--count]];
    if (b->id == t->unk)
      lm_subword_unknown_add(t, p + start, (size_t)x->cuts[count] - start, &unknown, out);
    else
      lm_tokens_add(out, b->id);
    unknown &= b->id == t->unk;
  }
}

static void *unigram_room_create(void) {
  return lm_alloc(sizeof(lattice));
}

static void unigram_room_destroy(void *room) {
  lattice *x = room;
  lm_free(x->ends);
  lm_free(x->cuts);
  lm_free(x);
}

const lm_word_model LM_UNIGRAM = {unigram_room_create, unigram_room_destroy, unigram_encode};
