// pack.c - see pack.h. Best-fit decreasing: rows with free positions are in one list per number of
// free positions, and a bit set marks the lists that are not empty, so a scan of the bit set finds
// the fullest row with enough room.
#include "runtime/data/rows/pack.h"

#include <string.h>

enum {
  NONE = UINT32_MAX
};

typedef struct {
  uint32_t seq;
  uint32_t n_rows;
  uint32_t *head; // [seq + 1]: first row with `index` free positions
  uint32_t *next; // [row]: next row in its list
  uint64_t *has;  // bit set of the lists that are not empty
} bins;

static uint32_t unit_pieces(const lm_piece *p) {
  return p->joined ? 2 : 1;
}

static uint32_t unit_len(const lm_piece *p) {
  return p->len + (p->joined ? p[1].len : 0);
}

// Sorts the first pieces of units by decreasing length with a stable counting sort; returns their
// number.
static uint32_t order_by_length(const lm_piece *pieces, uint32_t n, uint32_t seq, uint32_t *order) {
  uint32_t *at = lm_calloc((size_t)seq + 2, sizeof *at);
  uint32_t units = 0;
  for (uint32_t i = 0; i < n; i += unit_pieces(&pieces[i]), units++)
    at[seq - unit_len(&pieces[i]) + 1]++;
  for (uint32_t k = 1; k <= seq; k++)
    at[k] += at[k - 1];
  for (uint32_t i = 0; i < n; i += unit_pieces(&pieces[i]))
    order[at[seq - unit_len(&pieces[i])]++] = i;
  lm_free(at);
  return units;
}

static void bin_push(bins *b, uint32_t room, uint32_t row) {
  if (!room)
    return;
  b->next[row] = b->head[room];
  b->head[room] = row;
  b->has[room / 64] |= UINT64_C(1) << room % 64;
}

// Removes the fullest row with at least `len` free positions from its list and returns it and its
// free positions; opens a new row if there is none.
static uint32_t bin_pop(bins *b, uint32_t len, uint32_t *out_room) {
  uint64_t word = b->has[len / 64] & ~UINT64_C(0) << len % 64;
  uint32_t k = len / 64;
  uint32_t last = b->seq / 64;
  while (!word && k < last)
    word = b->has[++k];
  if (!word) {
    *out_room = b->seq;
    return b->n_rows++;
  }
  uint32_t room = 64 * k + (uint32_t)__builtin_ctzll(word);
  uint32_t row = b->head[room];
  b->head[room] = b->next[row];
  if (b->head[room] == NONE)
    b->has[k] &= ~(UINT64_C(1) << room % 64);
  *out_room = room;
  return row;
}

// Removes the fullest of the first few rows that have room for `len` tokens and for `beside` more;
// used: of each row. Opens a new row if none of them has.
static uint32_t bin_pop_both(bins *b, uint32_t len, uint32_t beside, uint32_t source,
                             const uint32_t *used, uint32_t *out_room) {
  enum {
    TRIED = 16
  };
  uint32_t row[TRIED];
  uint32_t room[TRIED];
  uint32_t n = 0;
  uint32_t first = b->n_rows;
  bool found = false;
  while (n < TRIED && !found) {
    row[n] = bin_pop(b, len, &room[n]);
    found = row[n] == first || used[row[n]] + beside <= source;
    n++;
  }
  uint32_t taken = row[n - 1];
  *out_room = room[n - 1];
  if (!found) {
    bin_push(b, room[n - 1], taken);
    taken = b->n_rows++;
    *out_room = b->seq;
  }
  while (--n > 0)
    bin_push(b, room[n - 1], row[n - 1]);
  return taken;
}

// Fills row_of[piece] with row numbers in the order of opening; returns the number of rows.
static uint32_t rows_assign(const lm_piece *pieces, const uint32_t *beside, uint32_t n,
                            const lm_row_room *limits, uint32_t *row_of) {
  uint32_t seq = limits->seq;
  bins b = {.seq = seq,
            .head = lm_calloc((size_t)seq + 1, 4),
            .next = lm_calloc(n, 4),
            .has = lm_calloc(seq / 64 + 1, 8)};
  memset(b.head, 0xff, 4 * ((size_t)seq + 1));
  uint32_t *order = lm_calloc(n, sizeof *order);
  uint32_t *held = lm_calloc(n, sizeof *held);
  uint32_t *used = lm_calloc(n, sizeof *used);
  uint32_t units = order_by_length(pieces, n, seq, order);
  for (uint32_t i = 0; i < units; i++) {
    const lm_piece *p = &pieces[order[i]];
    uint32_t room, len = unit_len(p), some = unit_pieces(p);
    uint32_t more = beside ? beside[order[i]] : 0;
    uint32_t row = bin_pop_both(&b, len, more, limits->source, used, &room);
    for (uint32_t k = 0; k < some; k++)
      row_of[order[i] + k] = row;
    held[row] += some;
    used[row] += more;
    if (!limits->docs || held[row] < limits->docs)
      bin_push(&b, room - len, row);
  }
  lm_free(order);
  lm_free(held);
  lm_free(used);
  lm_free(b.head);
  lm_free(b.next);
  lm_free(b.has);
  return b.n_rows;
}

// Numbers rows by their first piece.
static void rows_renumber(uint32_t *row_of, uint32_t n, uint32_t n_rows) {
  uint32_t *number = lm_calloc(n_rows, sizeof *number);
  uint32_t known = 0;
  memset(number, 0xff, sizeof *number * n_rows);
  for (uint32_t i = 0; i < n; i++) {
    if (number[row_of[i]] == NONE)
      number[row_of[i]] = known++;
    row_of[i] = number[row_of[i]];
  }
  lm_free(number);
}

static void rows_gather(const lm_piece *pieces, const uint32_t *row_of, uint32_t n, lm_rows *out) {
  out->pieces = lm_calloc(n, sizeof *out->pieces);
  out->first = lm_calloc((size_t)out->n_rows + 2, sizeof *out->first);
  for (uint32_t i = 0; i < n; i++)
    out->first[row_of[i] + 2]++;
  for (uint64_t r = 2; r < (uint64_t)out->n_rows + 2; r++)
    out->first[r] += out->first[r - 1];
  for (uint32_t i = 0; i < n; i++)
    out->pieces[out->first[row_of[i] + 1]++] = pieces[i];
}

void lm_packed_rows_make(const lm_piece *pieces, const uint32_t *beside, uint32_t n,
                         const lm_row_room *room, lm_rows *out) {
  uint32_t *row_of = lm_calloc(n, sizeof *row_of);
  out->n_rows = rows_assign(pieces, beside, n, room, row_of);
  rows_renumber(row_of, n, out->n_rows);
  rows_gather(pieces, row_of, n, out);
  lm_free(row_of);
}

void lm_packed_rows_free(lm_rows *r) {
  lm_free(r->pieces);
  lm_free(r->first);
  *r = (lm_rows){0};
}
