// train_unigram.c - trains a unigram model (Kudo 2018, arXiv:1804.10959).
//
// The first pieces are the characters and the frequent substrings of words. Expectation
// maximization estimates their probabilities: the expected number of occurrences of a piece, over
// all segmentations of all words weighted by their probability, becomes its new weight. Then the
// pieces are removed whose loss lowers the likelihood of the text least, a quarter at a time, until
// the vocabulary has its size. Characters are not removed. All sums are computed in one order.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/train_kinds.h"
#include "runtime/tokenizer/trie.h"

enum {
  SPECIAL = 2,              // <|endoftext|>, <unk>
  BYTES = 256,              // <0x00> … <0xFF>
  PIECE_CHARACTERS = 16,    // of the longest piece
  SEEDS_PER_TOKEN = 10,     // first pieces, by the size of the vocabulary
  SUBSTRINGS_MAX = 8 << 20, // occurrences in distinct words that are counted
  ESTIMATES = 2,            // iterations of expectation maximization between two removals
  UNKNOWN_PENALTY = 10
};
static const double KEPT = 0.75;        // share of the pieces that a removal keeps
static const double COVERAGE = 0.9995;  // share of the text whose characters are pieces
static const double LEAST_COUNT = 0.5;  // pieces with fewer expected occurrences are removed
static const double SPARE = 1.1;        // size, relative to the vocabulary's, that removals end at
static const double BYTE_SCORE = -1000; // no text is segmented into the names of bytes

typedef struct {
  const char *p;
  uint32_t n;
  double score; // natural logarithm of the probability
  double count; // expected, or of the best segmentations
  double loss;  // of the likelihood, if it is removed
  bool required;
} piece;

// An occurrence of a piece in a word; id -1: an unknown character.
typedef struct {
  uint32_t start;
  uint32_t end;
  int32_t id;
  double score;
} arc;

typedef struct {
  lm_word *words;
  size_t n_words;
  piece *pieces;
  size_t n_pieces;
  lm_trie *trie; // from the bytes of the pieces to their indices
  double unknown;
  arc *arcs; // of a word, by increasing start
  size_t n_arcs;
  size_t cap_arcs;
  double *forward, *backward; // [word length + 1]
  int32_t *best;              // [word length + 1]: the last arc of the best segmentation
  size_t cap_ends;
} trainer;

// ---- the first pieces

static int by_count(const void *x, const void *y) {
  const lm_word *a = x, *b = y;
  if (a->count != b->count)
    return a->count < b->count ? 1 : -1;
  return lm_bytes_compare(a->p, a->n, b->p, b->n);
}

// Counts the substrings of two and more characters of a word.
static size_t substrings_count(lm_word_table *t, const lm_word *w) {
  size_t counted = 0;
  for (uint32_t start = 0; start < w->n; start += (uint32_t)lm_utf8_length(w->p + start)) {
    uint32_t end = start + (uint32_t)lm_utf8_length(w->p + start);
    for (int i = 1; i < PIECE_CHARACTERS && end < w->n; i++, counted++) {
      end += (uint32_t)lm_utf8_length(w->p + end);
      lm_word_count(t, w->p + start, end - start, w->count);
    }
  }
  return counted;
}

static void characters_count(lm_word_table *t, const lm_word *w) {
  for (uint32_t i = 0; i < w->n; i += (uint32_t)lm_utf8_length(w->p + i))
    lm_word_count(t, w->p + i, lm_utf8_length(w->p + i), w->count);
}

static void piece_add(trainer *t, const lm_word *w, bool required) {
  t->pieces[t->n_pieces++] = (piece){
      .p = w->p,
      .n = w->n,
      .count = (double)w->count,
      .required = required,
  };
}

// The most frequent characters, as many as the vocabulary has room for.
static void characters_add(trainer *t, const lm_word *list, size_t n, size_t most) {
  double sum = 0;
  double covered = 0;
  for (size_t i = 0; i < n; i++)
    sum += (double)list[i].count;
  for (size_t i = 0; i < n && i < most && covered < COVERAGE * sum; i++) {
    covered += (double)list[i].count;
    piece_add(t, &list[i], true);
  }
}

// A substring's value is its count times its length in characters.
static void substrings_add(trainer *t, lm_word *list, size_t n, size_t most) {
  for (size_t i = 0; i < n; i++)
    list[i].count = list[i].count < 2 ? 0 : list[i].count * lm_utf8_count(list[i].p, list[i].n);
  qsort(list, n, sizeof *list, by_count);
  for (size_t i = 0; i < n && i < most && list[i].count; i++)
    piece_add(t, &list[i], false);
}

static void scores_from_counts(trainer *t) {
  double sum = 0;
  for (size_t i = 0; i < t->n_pieces; i++)
    sum += t->pieces[i].count;
  for (size_t i = 0; i < t->n_pieces; i++)
    t->pieces[i].score = log(t->pieces[i].count) - log(sum);
}

static void seeds_make(trainer *t, lm_word_table *singles, lm_word_table *longer, size_t vocab) {
  size_t n_single;
  size_t n_longer;
  size_t room = vocab - SPECIAL - BYTES;
  qsort(t->words, t->n_words, sizeof *t->words, by_count);
  for (size_t w = 0; w < t->n_words; w++)
    characters_count(singles, &t->words[w]);
  for (size_t w = 0, n = 0; w < t->n_words && n < SUBSTRINGS_MAX; w++)
    n += substrings_count(longer, &t->words[w]);
  lm_word *single = lm_words_list(singles, &n_single);
  lm_word *other = lm_words_list(longer, &n_longer);
  t->pieces = lm_calloc(room + SEEDS_PER_TOKEN * vocab, sizeof *t->pieces);
  qsort(single, n_single, sizeof *single, by_count);
  characters_add(t, single, n_single, room);
  substrings_add(t, other, n_longer, SEEDS_PER_TOKEN * vocab);
  scores_from_counts(t);
  lm_free(single);
  lm_free(other);
}

// ---- the lattice of a word

static void trie_make(trainer *t) {
  double least = 0;
  lm_trie_destroy(t->trie);
  t->trie = lm_trie_create();
  for (size_t i = 0; i < t->n_pieces; i++) {
    lm_trie_set(t->trie, t->pieces[i].p, t->pieces[i].n, (int32_t)i);
    least = fmin(least, t->pieces[i].score);
  }
  t->unknown = least - UNKNOWN_PENALTY;
}

static void arc_add(trainer *t, size_t start, size_t end, int32_t id, double score) {
  if (t->n_arcs == t->cap_arcs) {
    t->cap_arcs = t->cap_arcs ? 2 * t->cap_arcs : 256;
    t->arcs = lm_realloc(t->arcs, t->cap_arcs * sizeof *t->arcs);
  }
  t->arcs[t->n_arcs++] = (arc){(uint32_t)start, (uint32_t)end, id, score};
}

// except: a piece that is left out; -1: none.
static void arcs_make(trainer *t, const char *p, size_t n, int32_t except) {
  t->n_arcs = 0;
  for (size_t start = 0, one; start < n; start += one) {
    uint32_t at = LM_TRIE_ROOT;
    bool single = false;
    one = lm_utf8_length(p + start);
    for (size_t end = start; end < n;) {
      at = lm_trie_step(t->trie, at, (unsigned char)p[end++]);
      if (at == LM_TRIE_ROOT)
        break;
      int32_t id = lm_trie_value(t->trie, at);
      if (id < 0 || id == except)
        continue;
      arc_add(t, start, end, id, t->pieces[id].score);
      single |= end == start + one;
    }
    if (!single)
      arc_add(t, start, start + one, -1, t->unknown);
  }
  if (n >= t->cap_ends) {
    t->cap_ends = 2 * n + 1;
    t->forward = lm_realloc(t->forward, t->cap_ends * sizeof *t->forward);
    t->backward = lm_realloc(t->backward, t->cap_ends * sizeof *t->backward);
    t->best = lm_realloc(t->best, t->cap_ends * sizeof *t->best);
  }
}

static double log_add(double a, double b) {
  double most = fmax(a, b);
  return most == -HUGE_VAL ? most : most + log1p(exp(fmin(a, b) - most));
}

// Adds the expected number of occurrences of each piece in a word that occurs `times` times.
static void word_expect(trainer *t, const lm_word *w, double times) {
  arcs_make(t, w->p, w->n, -1);
  for (size_t i = 0; i <= w->n; i++)
    t->forward[i] = t->backward[i] = -HUGE_VAL;
  t->forward[0] = t->backward[w->n] = 0;
  for (size_t i = 0; i < t->n_arcs; i++) {
    const arc *a = &t->arcs[i];
    t->forward[a->end] = log_add(t->forward[a->end], t->forward[a->start] + a->score);
  }
  for (size_t i = t->n_arcs; i-- > 0;) {
    const arc *a = &t->arcs[i];
    t->backward[a->start] = log_add(t->backward[a->start], t->backward[a->end] + a->score);
  }
  for (size_t i = 0; i < t->n_arcs; i++) {
    const arc *a = &t->arcs[i];
    double share = t->forward[a->start] + a->score + t->backward[a->end] - t->forward[w->n];
    if (a->id >= 0)
      t->pieces[a->id].count += times * exp(share);
  }
}

// The last arc of the best segmentation, for each index at which a character ends.
static void best_find(trainer *t, size_t n) {
  for (size_t i = 0; i <= n; i++)
    t->forward[i] = -HUGE_VAL;
  t->forward[0] = 0;
  for (size_t i = 0; i < t->n_arcs; i++) {
    const arc *a = &t->arcs[i];
    double sum = t->forward[a->start] + a->score;
    if (sum <= t->forward[a->end])
      continue;
    t->forward[a->end] = sum;
    t->best[a->end] = (int32_t)i;
  }
}

// ---- expectation maximization

// The derivative of the logarithm of the gamma function, for x > 0 (Abramowitz and Stegun 6.3.5
// and 6.3.18).
static double digamma(double x) {
  double sum = 0;
  for (; x < 7; x++)
    sum -= 1 / x;
  double y = 1 / (x * x);
  return sum + log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y / 240)));
}

// Scores are those of the Bayesian M step, under which rare pieces lose more than their share.
static void scores_estimate(trainer *t) {
  double sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < t->n_pieces; i++)
    t->pieces[i].count = 0;
  for (size_t w = 0; w < t->n_words; w++)
    word_expect(t, &t->words[w], (double)t->words[w].count);
  for (size_t i = 0; i < t->n_pieces; i++) {
    piece x = t->pieces[i];
    if (x.count < LEAST_COUNT && !x.required)
      continue;
    x.count = fmax(x.count, LEAST_COUNT);
    sum += x.count;
    t->pieces[n++] = x;
  }
  t->n_pieces = n;
  for (size_t i = 0; i < n; i++)
    t->pieces[i].score = digamma(t->pieces[i].count) - digamma(sum);
}

// ---- removing pieces

static int by_loss(const void *x, const void *y) {
  const piece *a = x, *b = y;
  if (a->required != b->required)
    return a->required ? -1 : 1;
  if (a->loss != b->loss)
    return a->loss < b->loss ? 1 : -1;
  return lm_bytes_compare(a->p, a->n, b->p, b->n);
}

// How often each piece occurs in the best segmentations of the words.
static double best_count(trainer *t) {
  double sum = 0;
  for (size_t i = 0; i < t->n_pieces; i++)
    t->pieces[i].count = 0;
  for (size_t w = 0; w < t->n_words; w++) {
    const lm_word *x = &t->words[w];
    arcs_make(t, x->p, x->n, -1);
    best_find(t, x->n);
    for (uint32_t at = x->n; at; at = t->arcs[t->best[at]].start) {
      int32_t id = t->arcs[t->best[at]].id;
      sum += (double)x->count;
      if (id >= 0)
        t->pieces[id].count += (double)x->count;
    }
  }
  return sum;
}

// What the log likelihood of the text loses if the occurrences of a piece become those of the best
// other segmentation of it: the piece's own probability mass is distributed to their pieces.
static double loss_of(trainer *t, int32_t id, double sum) {
  const piece *x = &t->pieces[id];
  double count = x->count;
  double others = 0;
  int n = 0;
  arcs_make(t, x->p, x->n, id);
  best_find(t, x->n);
  for (uint32_t at = x->n; at; at = t->arcs[t->best[at]].start)
    n++;
  double total = log(sum + count * (n - 1));
  for (uint32_t at = x->n; at; at = t->arcs[t->best[at]].start) {
    int32_t other = t->arcs[t->best[at]].id;
    others += (other >= 0 ? log(t->pieces[other].count + count) : t->unknown) - total;
  }
  return count * (log(count) - log(sum) - others);
}

static void pieces_remove(trainer *t, size_t least) {
  double sum = best_count(t);
  size_t keep = (size_t)(KEPT * (double)t->n_pieces);
  for (size_t i = 0; i < t->n_pieces; i++)
    t->pieces[i].loss =
        t->pieces[i].count > 0 && !t->pieces[i].required ? loss_of(t, (int32_t)i, sum) : -HUGE_VAL;
  qsort(t->pieces, t->n_pieces, sizeof *t->pieces, by_loss);
  keep = keep > least ? keep : least;
  while (keep < t->n_pieces && t->pieces[keep].required)
    keep++;
  t->n_pieces = keep < t->n_pieces ? keep : t->n_pieces;
}

static void pieces_choose(trainer *t, size_t room) {
  size_t spare = (size_t)(SPARE * (double)room);
  for (;;) {
    for (int i = 0; i < ESTIMATES; i++) {
      trie_make(t);
      scores_estimate(t);
    }
    trie_make(t);
    if (t->n_pieces <= spare)
      return;
    pieces_remove(t, spare);
  }
}

static int by_score(const void *x, const void *y) {
  const piece *a = x, *b = y;
  if (a->score != b->score)
    return a->score < b->score ? 1 : -1;
  return lm_bytes_compare(a->p, a->n, b->p, b->n);
}

// Required pieces, and the most probable others.
static void pieces_finish(trainer *t, size_t room) {
  size_t others = 0;
  size_t n = 0;
  size_t required = 0;
  qsort(t->pieces, t->n_pieces, sizeof *t->pieces, by_score);
  for (size_t i = 0; i < t->n_pieces; i++)
    required += t->pieces[i].required;
  for (size_t i = 0; i < t->n_pieces; i++)
    if (t->pieces[i].required || others++ < room - required)
      t->pieces[n++] = t->pieces[i];
  t->n_pieces = n;
}

// ---- writing

static void json_write(const trainer *t, lm_buf *out) {
  lm_buf_puts(out, "  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
                   "    {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[\\\\r\\\\n]+\"}, "
                   "\"behavior\": \"Isolated\", \"invert\": false},\n"
                   "    {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
                   "\"prepend_scheme\": \"first\", \"split\": true}]},\n"
                   "  \"post_processor\": null,\n"
                   "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [\n"
                   "    {\"type\": \"Replace\", \"pattern\": {\"String\": \"\u2581\"}, "
                   "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},\n"
                   "    {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},\n"
                   "  \"model\": {\n    \"type\": \"Unigram\", \"unk_id\": 1, "
                   "\"byte_fallback\": true,\n    \"vocab\": [\n"
                   "      [\"" LM_TRAINED_EOS "\", 0.0],\n      [\"<unk>\", 0.0]");
  for (int i = 0; i < BYTES; i++)
    lm_buf_printf(out, ",\n      [\"<0x%02X>\", %.1f]", i, BYTE_SCORE);
  for (size_t i = 0; i < t->n_pieces; i++) {
    lm_buf_puts(out, ",\n      [");
    lm_buf_json_n(out, t->pieces[i].p, t->pieces[i].n);
    lm_buf_printf(out, ", %.17g]", t->pieces[i].score);
  }
  lm_buf_puts(out, "\n    ]\n  }\n}\n");
}

void lm_train_unigram(lm_word *words, size_t n_words, int32_t vocab, lm_buf *out_json) {
  trainer t = {
      .words = words,
      .n_words = n_words,
  };
  lm_word_table singles = {.arena = lm_arena_create()};
  lm_word_table longer = {.arena = singles.arena};
  size_t room = (size_t)vocab - SPECIAL - BYTES;
  seeds_make(&t, &singles, &longer, (size_t)vocab);
  pieces_choose(&t, room);
  pieces_finish(&t, room);
  json_write(&t, out_json);
  lm_trie_destroy(t.trie);
  lm_free(t.pieces);
  lm_free(t.arcs);
  lm_free(t.forward);
  lm_free(t.backward);
  lm_free(t.best);
  lm_free(singles.at);
  lm_free(longer.at);
  lm_arena_destroy(singles.arena);
}
