// pretok.c - see pretok.h. Each word is passed to the next step immediately; no list is built.
#include "runtime/tokenizer/pretok.h"

#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/bytechar.h"

enum {
  STEPS_MAX = 16
};
typedef enum {
  STEP_SPLIT,
  STEP_PREFIX,
  STEP_METASPACE,
  STEP_CHARS
} step_kind;
typedef struct {
  step_kind kind;
  lm_regex *regex;
  lm_split_behavior behavior;
  bool invert;
  lm_space_prefix prefix;
} step;

struct lm_pretok {
  step steps[STEPS_MAX];
  int n;
};
struct lm_pretok_room {
  lm_regex_room *regex;
  lm_buf word[STEPS_MAX]; // that a step made
};

typedef struct {
  const lm_pretok *p;
  lm_pretok_room *m;
  const char *text;
  bool follows;
  bool begun;
  lm_word_sink sink;
} pass;

lm_pretok *lm_pretok_create(void) {
  return lm_alloc(sizeof(lm_pretok));
}

void lm_pretok_destroy(lm_pretok *p) {
  if (!p)
    return;
  for (int i = 0; i < p->n; i++)
    lm_regex_destroy(p->steps[i].regex);
  lm_free(p);
}

static lm_status step_add(lm_pretok *p, step s) {
  if (p->n == STEPS_MAX)
    return lm_fail(LM_USER, "a pre-tokenizer of more than %d steps", STEPS_MAX);
  p->steps[p->n++] = s;
  return NULL;
}

lm_status lm_pretok_split_add(lm_pretok *p, const char *pattern, size_t n, bool literal,
                              lm_split_behavior b, bool invert) {
  lm_regex *r;
  LM_TRY(lm_regex_create(pattern, n, literal, &r));
  lm_status s = step_add(p, (step){STEP_SPLIT, r, b, invert, LM_PREFIX_NONE});
  if (s)
    lm_regex_destroy(r);
  return s;
}

static bool has_step(const lm_pretok *p, step_kind kind) {
  for (int i = 0; i < p->n; i++)
    if (p->steps[i].kind == kind)
      return true;
  return false;
}

// Has no effect if such a step exists already.
static lm_status step_add_once(lm_pretok *p, step_kind kind) {
  return has_step(p, kind) ? NULL : step_add(p, (step){.kind = kind});
}

lm_status lm_pretok_prefix_add(lm_pretok *p) {
  return step_add_once(p, STEP_PREFIX);
}

lm_status lm_pretok_metaspace_add(lm_pretok *p, lm_space_prefix prefix, bool split) {
  LM_TRY(step_add(p, (step){.kind = STEP_METASPACE, .prefix = prefix}));
  const char *mark = LM_SPACE_MARK;
  return split ? lm_pretok_split_add(p, mark, strlen(mark), true, LM_SPLIT_NEXT, false) : NULL;
}

lm_status lm_pretok_chars_add(lm_pretok *p) {
  return step_add_once(p, STEP_CHARS);
}
bool lm_pretok_gives_chars(const lm_pretok *p) {
  return has_step(p, STEP_CHARS);
}

lm_pretok_room *lm_pretok_room_create(const lm_pretok *p) {
  lm_pretok_room *m = lm_alloc(sizeof *m);
  m->regex = lm_regex_room_create();
  return m;
}

void lm_pretok_room_destroy(lm_pretok_room *m) {
  if (!m)
    return;
  lm_regex_room_destroy(m->regex);
  for (int i = 0; i < STEPS_MAX; i++)
    lm_buf_free(&m->word[i]);
  lm_free(m);
}

// ---- running

static lm_status piece_cut(const pass *x, int i, const char *p, size_t n);

// The current word, and whether its last span is a match.
typedef struct {
  const char *p;
  size_t n;
  bool any;
  bool match;
} growing;

static bool joins(lm_split_behavior b, bool match, bool previous) {
  return b == LM_SPLIT_CONTIGUOUS ? match == previous
         : b == LM_SPLIT_PREVIOUS ? match && !previous
                                  : b == LM_SPLIT_NEXT && !match && previous;
}

static lm_status span_add(const pass *x, int i, growing *g, const char *p, size_t n, bool match) {
  const step *s = &x->p->steps[i];
  match ^= s->invert;
  if (s->behavior == LM_SPLIT_REMOVED)
    return match ? NULL : piece_cut(x, i + 1, p, n);
  if (s->behavior == LM_SPLIT_ISOLATED)
    return piece_cut(x, i + 1, p, n);
  if (g->any && joins(s->behavior, match, g->match))
    g->n += n;
  else {
    if (g->any)
      LM_TRY(piece_cut(x, i + 1, g->p, g->n));
    g->p = p;
    g->n = n;
    g->any = true;
  }
  g->match = match;
  return NULL;
}

// An empty match splits the text; the search continues one character later.
static lm_status split(const pass *x, int i, const char *p, size_t n) {
  growing g = {0};
  size_t start;
  size_t end;
  size_t cut = 0;
  for (size_t at = 0; at <= n; at = end > start || end >= n ? end : end + lm_utf8_length(p + end)) {
    LM_TRY(lm_regex_find(x->p->steps[i].regex, x->m->regex, p, n, at, &start, &end));
    if (start >= n)
      break;
    if (start > cut)
      LM_TRY(span_add(x, i, &g, p + cut, start - cut, false));
    LM_TRY(span_add(x, i, &g, p + start, end - start, true));
    cut = end;
    if (end >= n)
      break;
  }
  if (cut < n)
    LM_TRY(span_add(x, i, &g, p + cut, n - cut, false));
  return g.any ? piece_cut(x, i + 1, g.p, g.n) : NULL;
}

// Whether an earlier text began the word.
static bool is_continued(const pass *x, const char *p) {
  return x->follows && p == x->text;
}

static lm_status prefix(const pass *x, int i, const char *p, size_t n) {
  if (*p == ' ' || is_continued(x, p))
    return piece_cut(x, i + 1, p, n);
  lm_buf *b = &x->m->word[i];
  b->n = 0;
  lm_buf_puts(b, " ");
  lm_buf_add(b, p, n);
  return piece_cut(x, i + 1, b->p, b->n);
}

static bool wants_mark(const pass *x, int i, const char *p, size_t n) {
  lm_space_prefix rule = x->p->steps[i].prefix;
  bool marked = *p == ' ' || (n >= 3 && !memcmp(p, LM_SPACE_MARK, 3));
  bool first = p == x->text && !x->begun;
  return !marked && !is_continued(x, p) &&
         (rule == LM_PREFIX_ALL || (rule == LM_PREFIX_FIRST && first));
}

static lm_status metaspace(const pass *x, int i, const char *p, size_t n) {
  lm_buf *b = &x->m->word[i];
  b->n = 0;
  if (wants_mark(x, i, p, n))
    lm_buf_puts(b, LM_SPACE_MARK);
  for (const char *end = p + n, *stop; p < end; p = stop + 1) {
    stop = memchr(p, ' ', (size_t)(end - p));
    lm_buf_add(b, p, (size_t)((stop ? stop : end) - p));
    if (!stop)
      break;
    lm_buf_puts(b, LM_SPACE_MARK);
  }
  return piece_cut(x, i + 1, b->p, b->n);
}

static lm_status chars(const pass *x, int i, const char *p, size_t n) {
  lm_buf *b = &x->m->word[i];
  b->n = 0;
  lm_bytes_to_chars(p, n, b);
  return piece_cut(x, i + 1, b->p, b->n);
}

static lm_status piece_cut(const pass *x, int i, const char *p, size_t n) {
  if (!n)
    return NULL;
  if (i == x->p->n)
    return x->sink.word(x->sink.user, p, n);
  switch (x->p->steps[i].kind) {
  case STEP_SPLIT: return split(x, i, p, n);
  case STEP_PREFIX: return prefix(x, i, p, n);
  case STEP_METASPACE: return metaspace(x, i, p, n);
  case STEP_CHARS: return chars(x, i, p, n);
  }
  return NULL;
}

lm_status lm_pretok_run(const lm_pretok *p, lm_pretok_room *m, const char *text, size_t n, int part,
                        bool begun, lm_word_sink sink) {
  pass x = {p, m, text, part & LM_TEXT_FOLLOWS, begun, sink};
  return piece_cut(&x, 0, text, n);
}
