// normal.c - see normal.h.
#include "runtime/tokenizer/normal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/base/utf8.h"

enum {
  STEPS_MAX = 16,
  CLUSTER_BYTES = 6 // longer grapheme clusters are looked up by character
};

typedef struct {
  const char *text;
  size_t n;
  int part;
} text_part;

typedef struct step step;
// Appends the normalized text to `out`.
typedef lm_status step_fn(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out);
struct step {
  step_fn *run;
  utf8proc_option_t form;
  unsigned char first; // the least byte that a normal form may change; 0: any
  bool left, right;    // strip: the ends
  bool spacing;        // marks: spacing ones too
  lm_regex *regex;
  char *content;
  lm_charsmap *map;
  const lm_trie *keep;
};

struct lm_normalizer {
  step steps[STEPS_MAX];
  int n;
};
struct lm_normalizer_room {
  lm_regex_room *regex;
  lm_buf text[2];
};

lm_normalizer *lm_normalizer_create(void) {
  return lm_alloc(sizeof(lm_normalizer));
}

static void step_free(step *s) {
  lm_regex_destroy(s->regex);
  lm_charsmap_destroy(s->map);
  lm_free(s->content);
}

void lm_normalizer_destroy(lm_normalizer *n) {
  if (!n)
    return;
  for (int i = 0; i < n->n; i++)
    step_free(&n->steps[i]);
  lm_free(n);
}

static lm_status step_add(lm_normalizer *n, step s) {
  if (n->n == STEPS_MAX) {
    step_free(&s);
    return lm_fail(LM_USER, "more than %d normalizers", STEPS_MAX);
  }
  n->steps[n->n++] = s;
  return NULL;
}

static char *text_copy(const char *text) {
  size_t n = strlen(text) + 1;
  return memcpy(lm_alloc(n), text, n);
}

// The character at the beginning of text; returns its length.
static size_t point_read(const char *text, size_t n, uint32_t *out) {
  int length = lm_utf8_decode(text, n, out);
  LM_ASSERT(length);
  return (size_t)length;
}

static void point_add(lm_buf *out, uint32_t point) {
  char c[4];
  lm_buf_add(out, c, (size_t)lm_utf8_encode(point, c));
}

// ---- Unicode normal forms

static const struct {
  const char *name;
  utf8proc_option_t options;
  // The first byte of the least code point that the form may change, or combine with the one
  // before: U+0300, U+00C0, U+00A0.
  unsigned char first;
} forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE, 0xcc},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, 0xc3},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, 0xc2},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, 0xc2},
};

static lm_status form_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  utf8proc_uint8_t *made = NULL;
  utf8proc_ssize_t length =
      utf8proc_map((const utf8proc_uint8_t *)in.text, (utf8proc_ssize_t)in.n, &made, s->form);
  if (length < 0)
    return lm_fail(length == UTF8PROC_ERROR_NOMEM ? LM_ENV : LM_BUG_STATUS, "a normalizer: %s",
                   utf8proc_errmsg(length));
  lm_buf_add(out, made, (size_t)length);
  free(made); // allocated by utf8proc with malloc
  return NULL;
}

lm_status lm_normalizer_form_add(lm_normalizer *n, const char *form) {
  for (size_t i = 0; i < LM_COUNT(forms); i++)
    if (!strcmp(form, forms[i].name))
      return step_add(n, (step){form_run, .form = forms[i].options, .first = forms[i].first});
  return lm_fail(LM_USER, "normalizer %s is unsupported", form);
}

// ---- steps that look at one character

// Calls `each` for every character.
typedef void point_fn(const step *s, uint32_t point, lm_buf *out);

static lm_status points_run(const step *s, text_part in, point_fn *each, lm_buf *out) {
  uint32_t point;
  for (size_t at = 0; at < in.n;) {
    at += point_read(in.text + at, in.n - at, &point);
    each(s, point, out);
  }
  return NULL;
}

static void lowercase_point(const step *s, uint32_t point, lm_buf *out) {
  if (point == 0x130) // the only character whose lower case is two characters
    lm_buf_puts(out, "i\xcc\x87");
  else
    point_add(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)point));
}

static lm_status lowercase_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  return points_run(s, in, lowercase_point, out);
}

lm_status lm_normalizer_lowercase_add(lm_normalizer *n) {
  return step_add(n, (step){lowercase_run});
}

static void unmarked_point(const step *s, uint32_t point, lm_buf *out) {
  utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)point);
  bool spacing = c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
  if (c != UTF8PROC_CATEGORY_MN && !(spacing && s->spacing))
    point_add(out, point);
}

static lm_status marks_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  return points_run(s, in, unmarked_point, out);
}

lm_status lm_normalizer_marks_remove_add(lm_normalizer *n, bool spacing) {
  return step_add(n, (step){marks_run, .spacing = spacing, .first = 0xcc});
}

static bool is_control(uint32_t point) {
  utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)point);
  return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CN ||
         c == UTF8PROC_CATEGORY_CO;
}

static void clean_point(const step *s, uint32_t point, lm_buf *out) {
  bool line = point == '\t' || point == '\n' || point == '\r';
  if (line || lm_utf8_is_space(point))
    point_add(out, ' ');
  else if (point != 0xfffd && !is_control(point))
    point_add(out, point);
}

static lm_status clean_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  return points_run(s, in, clean_point, out);
}

lm_status lm_normalizer_clean_add(lm_normalizer *n) {
  return step_add(n, (step){clean_run});
}

static bool is_ideograph(uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static void ideograph_point(const step *s, uint32_t point, lm_buf *out) {
  bool apart = is_ideograph(point);
  lm_buf_puts(out, apart ? " " : "");
  point_add(out, point);
  lm_buf_puts(out, apart ? " " : "");
}

static lm_status ideographs_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  return points_run(s, in, ideograph_point, out);
}

lm_status lm_normalizer_ideographs_add(lm_normalizer *n) {
  return step_add(n, (step){ideographs_run, .first = 0xe3});
}

// ---- the ends of a text

static lm_status strip_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  bool left = s->left && !(in.part & LM_TEXT_FOLLOWS);
  bool right = s->right && !(in.part & LM_TEXT_PRECEDES);
  size_t start = left ? lm_utf8_spaces_end(in.text, in.n) : 0;
  size_t n = in.n - start;
  lm_buf_add(out, in.text + start, right ? lm_utf8_spaces_start(in.text + start, n) : n);
  return NULL;
}

lm_status lm_normalizer_strip_add(lm_normalizer *n, bool left, bool right) {
  return step_add(n, (step){strip_run, .left = left, .right = right});
}

static lm_status prepend_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  if (in.n && !(in.part & LM_TEXT_FOLLOWS))
    lm_buf_puts(out, s->content);
  lm_buf_add(out, in.text, in.n);
  return NULL;
}

lm_status lm_normalizer_prepend_add(lm_normalizer *n, const char *prefix) {
  return step_add(n, (step){prepend_run, .content = text_copy(prefix)});
}

static lm_status squeeze_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  size_t start = 0;
  size_t end = in.n;
  while (start < end && !(in.part & LM_TEXT_FOLLOWS) && in.text[start] == ' ')
    start++;
  while (end > start && !(in.part & LM_TEXT_PRECEDES) && in.text[end - 1] == ' ')
    end--;
  for (size_t i = start; i < end; i++)
    if (in.text[i] != ' ' || i == start || in.text[i - 1] != ' ')
      lm_buf_add(out, in.text + i, 1);
  return NULL;
}

lm_status lm_normalizer_squeeze_add(lm_normalizer *n) {
  return step_add(n, (step){squeeze_run});
}

// ---- replacing strings

static lm_status replace_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  size_t done = 0;
  size_t start;
  size_t end;
  for (size_t at = 0; at<in.n; at = end> at ? end : at + 1) {
    LM_TRY(lm_regex_find(s->regex, m->regex, in.text, in.n, at, &start, &end));
    if (start >= in.n)
      break;
    if (end == start) { // an empty match replaces nothing
      end = at;
      continue;
    }
    lm_buf_add(out, in.text + done, start - done);
    lm_buf_puts(out, s->content);
    done = end;
  }
  lm_buf_add(out, in.text + done, in.n - done);
  return NULL;
}

lm_status lm_normalizer_replace_add(lm_normalizer *n, const char *pattern, bool literal,
                                    const char *content) {
  step s = {replace_run};
  LM_TRY(lm_regex_create(pattern, strlen(pattern), literal, &s.regex));
  s.content = text_copy(content);
  return step_add(n, s);
}

// The length of the grapheme cluster at the beginning of text.
static size_t cluster_length(const char *text, size_t n) {
  uint32_t before;
  uint32_t point;
  utf8proc_int32_t state = 0;
  size_t at = point_read(text, n, &before);
  for (; at < n; before = point) {
    size_t length = point_read(text + at, n - at, &point);
    if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)point, &state))
      break;
    at += length;
  }
  return at;
}

// Adds the replacement of a string, or the string itself. Returns whether there was one.
static bool mapped_add(const lm_charsmap *map, const char *text, size_t n, lm_buf *out) {
  const char *made;
  size_t length;
  bool found = lm_charsmap_find(map, text, n, false, &made, &length) > 0;
  if (found)
    lm_buf_add(out, made, length);
  return found;
}

static lm_status clusters_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  uint32_t point;
  for (size_t at = 0, n; at < in.n; at += n) {
    n = cluster_length(in.text + at, in.n - at);
    if (n < CLUSTER_BYTES && mapped_add(s->map, in.text + at, n, out))
      continue;
    for (size_t i = at, one; i < at + n; i += one) {
      one = point_read(in.text + i, in.n - i, &point);
      if (!mapped_add(s->map, in.text + i, one, out))
        lm_buf_add(out, in.text + i, one);
    }
  }
  return NULL;
}

lm_status lm_normalizer_clusters_add(lm_normalizer *n, const char *map, size_t n_map) {
  step s = {clusters_run};
  LM_TRY(lm_charsmap_create(map, n_map, &s.map));
  return step_add(n, s);
}

static lm_status charsmap_run(const step *s, lm_normalizer_room *m, text_part in, lm_buf *out) {
  const char *made;
  size_t length;
  uint32_t point;
  for (size_t at = 0, n; at < in.n; at += n) {
    if (s->keep && lm_trie_longest(s->keep, LM_TRIE_ROOT, in.text + at, in.n - at, &n) >= 0)
      lm_buf_add(out, in.text + at, n);
    else if (s->map &&
             (n = lm_charsmap_find(s->map, in.text + at, in.n - at, true, &made, &length)))
      lm_buf_add(out, made, length);
    else {
      n = point_read(in.text + at, in.n - at, &point);
      lm_buf_add(out, in.text + at, n);
    }
  }
  return NULL;
}

lm_status lm_normalizer_charsmap_add(lm_normalizer *n, const char *map, size_t n_map,
                                     const lm_trie *keep) {
  step s = {charsmap_run, .keep = keep};
  if (n_map)
    LM_TRY(lm_charsmap_create(map, n_map, &s.map));
  return step_add(n, s);
}

// ---- running

lm_normalizer_room *lm_normalizer_room_create(void) {
  lm_normalizer_room *m = lm_alloc(sizeof *m);
  m->regex = lm_regex_room_create();
  return m;
}

void lm_normalizer_room_destroy(lm_normalizer_room *m) {
  if (!m)
    return;
  lm_regex_room_destroy(m->regex);
  lm_buf_free(&m->text[0]);
  lm_buf_free(&m->text[1]);
  lm_free(m);
}

// Whether no byte is one with which a character begins that the step may change. The bytes behind
// the first of a character are less than all of those.
static bool is_unchanged(const step *s, const char *text, size_t n) {
  if (!s->first)
    return false;
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)text[i] >= s->first)
      return false;
  return true;
}

lm_status lm_normalizer_run(const lm_normalizer *n, lm_normalizer_room *m, const char *text,
                            size_t length, int part, const char **out, size_t *out_n) {
  text_part x = {text, length, part};
  for (int i = 0, made = 0; i < n->n; i++) {
    if (is_unchanged(&n->steps[i], x.text, x.n))
      continue;
    lm_buf *to = &m->text[made++ & 1];
    to->n = 0;
    LM_TRY(n->steps[i].run(&n->steps[i], m, x, to));
    x.text = to->p ? to->p : "";
    x.n = to->n;
  }
  *out = x.text;
  *out_n = x.n;
  return NULL;
}
