// pattern.c - patterns over paths such as layers.17.attn.wq.
//
// A component is a word, `*` (any one component), `#` (a number) or `**` (any number of components;
// a final `**` at least one). Braces hold alternatives and are expanded as text: {wq,wk}, {0,23},
// x{1,2}. lm_pattern_check bounds the length of a pattern, its braces and the number of its
// expansions.
#include "dsl/syntax/ast.h"
#include <string.h>

enum {
  MAX_BYTES = 500,
  MAX_EXPANSIONS = 256
};

typedef struct span {
  const char *s;
  size_t n;
} span;

static bool is_word(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char c = s[i];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
      return false;
  }
  return true;
}

// Removes the part of *rest up to the first `sep` outside of braces, and returns it.
static span take(span *rest, char sep) {
  size_t i = 0;
  for (int depth = 0; i < rest->n && (depth || rest->s[i] != sep); i++)
    depth += (rest->s[i] == '{') - (rest->s[i] == '}');
  span part = {rest->s, i};
  size_t used = i < rest->n ? i + 1 : i;
  *rest = (span){rest->s + used, rest->n - used};
  return part;
}

// ---- syntax

static const char *check_component(span c) {
  if (!c.n)
    return "a component is empty";
  bool special = (c.n == 1 && (*c.s == '*' || *c.s == '#')) || (c.n == 2 && !memcmp(c.s, "**", 2));
  return special || is_word(c.s, c.n) ? NULL : "'*', '**' and '#' must be whole components";
}

static const char *check_path(span path) {
  bool more = true;
  while (more) {
    const char *end = path.s + path.n;
    span c = take(&path, '.');
    more = c.s + c.n < end; // a component must follow a '.'
    const char *wrong = check_component(c);
    if (wrong)
      return wrong;
  }
  return NULL;
}

// Checks the alternatives of one brace. `alone`: the brace is the whole component, so an
// alternative may be a path.
static const char *check_alternatives(span inside, bool alone, int *out_count) {
  const char *end = inside.s + inside.n;
  *out_count = 0;
  for (bool more = true; more; ++*out_count) {
    span a = take(&inside, ',');
    more = a.s + a.n < end;
    if (!a.n)
      return "an alternative is empty";
    const char *wrong = alone               ? check_path(a)
                        : is_word(a.s, a.n) ? NULL
                                            : "braces next to other text may contain only words";
    if (wrong)
      return wrong;
  }
  return NULL;
}

static const char *check_braced(span c, int *expansions, int *braces) {
  for (size_t i = 0; i < c.n;) {
    if (c.s[i] != '{') {
      size_t n = strcspn(c.s + i, "{");
      if (n > c.n - i)
        n = c.n - i;
      if (!is_word(c.s + i, n))
        return "'*', '**' and '#' must be whole components";
      i += n;
      continue;
    }
    const char *close = memchr(c.s + i, '}', c.n - i);
    if (!close)
      return "'{' without a '}'";
    span inside = {c.s + i + 1, (size_t)(close - c.s) - i - 1};
    int count;
    const char *wrong = check_alternatives(inside, inside.n + 2 == c.n, &count);
    if (wrong)
      return wrong;
    *expansions *= count;
    if (*expansions > MAX_EXPANSIONS || ++*braces > LM_PATTERN_CAPTURES)
      return "too many alternatives";
    i = (size_t)(close - c.s) + 1;
  }
  return NULL;
}

const char *lm_pattern_check(const char *pattern) {
  span rest = {pattern + 1, strlen(pattern) - 1};
  if (rest.n > MAX_BYTES)
    return "the pattern is too long";
  int expansions = 1, braces = 0, wildcards = 0;
  for (bool more = true; more;) {
    const char *end = rest.s + rest.n;
    span c = take(&rest, '.');
    more = c.s + c.n < end;
    const char *wrong =
        memchr(c.s, '{', c.n) ? check_braced(c, &expansions, &braces) : check_component(c);
    if (wrong)
      return wrong;
  }
  for (const char *p = pattern; *p; p++)
    wildcards += *p == '#' || (*p == '*' && p[1] != '*' && p[-1] != '*');
  return wildcards > LM_PATTERN_CAPTURES ? "too many wildcards" : NULL;
}

// ---- expansion

typedef struct walk {
  char text[MAX_BYTES + 1]; // one expansion, without the '@'
  int alt[LM_PATTERN_CAPTURES], n_alt;
  bool (*visit)(struct walk *w, size_t n); // true: stop
  lm_ctx *ctx;
  const char *path;
  lm_match *match; // for lm_pattern_match
  const char **list;
  uint32_t n_list, cap_list; // for lm_pattern_expand
} walk;

// Appends every expansion of `rest` to the first n bytes of w->text and visits the result; true if
// a visit returned true.
static bool walk_expansions(walk *w, const char *rest, size_t n) {
  size_t plain = strcspn(rest, "{");
  if (n + plain > MAX_BYTES)
    return false;
  memcpy(w->text + n, rest, plain);
  n += plain;
  const char *close = rest[plain] ? strchr(rest + plain, '}') : NULL;
  if (!close) {
    w->text[n] = 0;
    return w->visit(w, n);
  }
  span inside = {rest + plain + 1, (size_t)(close - rest) - plain - 1};
  int brace = w->n_alt++;
  for (int i = 0; inside.n && brace < LM_PATTERN_CAPTURES; i++) {
    span a = take(&inside, ',');
    if (n + a.n > MAX_BYTES)
      break;
    memcpy(w->text + n, a.s, a.n);
    w->alt[brace] = i;
    if (walk_expansions(w, close + 1, n + a.n))
      return true;
  }
  w->n_alt = brace;
  return false;
}

static const char *without_at(const char *pattern) {
  return pattern + (*pattern == '@');
}

static bool visit_keep(walk *w, size_t n) {
  LM_PUSH(w->ctx->arena, w->list, w->n_list, w->cap_list) =
      lm_arena_printf(w->ctx->arena, "@%.*s", (int)n, w->text);
  return false;
}

const char **lm_pattern_expand(lm_ctx *c, const char *pattern, int *n) {
  walk w = {
      .visit = visit_keep,
      .ctx = c,
  };
  walk_expansions(&w, without_at(pattern), 0);
  *n = (int)w.n_list;
  return w.list;
}

// ---- matching

static bool component_matches(span p, span s) {
  if (p.n == 1 && *p.s == '*')
    return true;
  if (p.n == 1 && *p.s == '#')
    return strspn(s.s, "0123456789") >= s.n;
  return p.n == s.n && !memcmp(p.s, s.s, s.n);
}

// p: a pattern without braces, s: a path; both at the start of a component. n: captures so far.
static bool match_at(walk *w, span p, span s, int n) {
  if (p.n == 2 && !memcmp(p.s, "**", 2)) {
    w->match->n_cap = n;
    return s.n > 0;
  }
  if (p.n > 2 && !memcmp(p.s, "**.", 3)) {
    while (p.n > 2 && !memcmp(p.s, "**.", 3)) {
      p.s += 3;
      p.n -= 3;
    }
    for (; s.n; take(&s, '.'))
      if (match_at(w, p, s, n))
        return true;
    return false;
  }
  if (!p.n || !s.n) {
    w->match->n_cap = n;
    return !p.n && !s.n;
  }
  span pc = take(&p, '.');
  span sc = take(&s, '.');
  if (!component_matches(pc, sc))
    return false;
  bool wildcard = pc.n == 1 && (*pc.s == '*' || *pc.s == '#');
  if (wildcard && n < LM_PATTERN_CAPTURES)
    w->match->cap[n++] = lm_intern_n(w->ctx->intern, sc.s, sc.n);
  return match_at(w, p, s, n);
}

static bool visit_match(walk *w, size_t n) {
  if (!match_at(w, (span){w->text, n}, (span){w->path, strlen(w->path)}, 0))
    return false;
  memcpy(w->match->alt, w->alt, sizeof w->alt);
  w->match->n_alt = w->n_alt;
  return true;
}

bool lm_pattern_match(lm_ctx *c, const char *pattern, const char *path, lm_match *out) {
  lm_match unused;
  walk w = {
      .visit = visit_match,
      .ctx = c,
      .path = path,
      .match = out ? out : &unused,
  };
  *w.match = (lm_match){0};
  return walk_expansions(&w, without_at(pattern), 0);
}
