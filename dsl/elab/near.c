// near.c - the pattern that was probably meant by one that matches no parameter.
#include "dsl/elab/edit.h"
#include <string.h>

enum {
  LISTED = 6 // patterns that a message lists
};

static const char *last_of(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot ? dot + 1 : path;
}

// The pattern of a parameter and of those of other indices: @layers.*.wq of layers.0.wq.
static const char *pattern_of(lm_elab *e, const char *path) {
  lm_buf b = {0};
  lm_buf_puts(&b, "@");
  for (const char *p = path; *p;) {
    size_t n = strcspn(p, ".");
    bool index = strspn(p, "0123456789") == n;
    lm_buf_add(&b, index ? "*" : p, index ? 1 : n);
    p += n;
    if (*p == '.')
      lm_buf_add(&b, p++, 1);
  }
  const char *text = lm_arena_strndup(e->a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// The pattern of the parameters of that name: @**.wq if there are several; NULL if there is none.
static const char *pattern_of_name(lm_elab *e, const el_paths *x, const char *name) {
  const char *found = NULL;
  for (uint32_t i = 0; i < x->n; i++) {
    if (strcmp(last_of(x->v[i]), name))
      continue;
    const char *pattern = pattern_of(e, x->v[i]);
    if (found && strcmp(found, pattern))
      return lm_arena_printf(e->a, "@**.%s", name);
    found = pattern;
  }
  return found;
}

static bool matches(const lm_elab *e, const el_paths *x, const char *pattern) {
  for (uint32_t i = 0; i < x->n; i++)
    if (lm_pattern_match(e->c, pattern, x->v[i], NULL))
      return true;
  return false;
}

static const char *nearest(lm_elab *e, const el_paths *x, const char *name) {
  const char **names = LM_NEW_N(e->a, const char *, x->n + 1);
  for (uint32_t i = 0; i < x->n; i++)
    names[i] = last_of(x->v[i]);
  return lm_nearest(name, names, (int)x->n);
}

// Patterns of the parameters that match `pattern` without its last component, or have more
// components behind it; NULL if there are none.
static const char *pattern_around(lm_elab *e, const el_paths *x, const char *pattern) {
  const char *below = lm_arena_printf(e->a, "%s.**", pattern);
  const char *dot = strrchr(pattern, '.');
  bool named = dot && dot[-1] != '*';
  const char *above = named ? lm_arena_strndup(e->a, pattern, (size_t)(dot - pattern)) : NULL;
  return matches(e, x, below) ? below : above && matches(e, x, above) ? above : NULL;
}

static bool is_listed(const char *const *listed, int n, const char *pattern) {
  for (int i = 0; i < n; i++)
    if (!strcmp(listed[i], pattern))
      return true;
  return false;
}

static void list_patterns(lm_elab *e, lm_diag *d, const el_paths *x) {
  const char *listed[LISTED], *text = "";
  int n = 0;
  bool more = false;
  for (uint32_t i = 0; i < x->n && !more; i++) {
    const char *pattern = pattern_of(e, x->v[i]);
    if (is_listed(listed, n, pattern))
      continue;
    more = n == LISTED;
    text = lm_arena_printf(e->a, "%s%s%s", text, n ? ", " : "", more ? "…" : pattern);
    if (!more)
      listed[n++] = pattern;
  }
  if (n)
    lm_diag_help(e->c, d, "patterns of the parameters: %s", text);
}

void el_help_pattern(lm_elab *e, lm_diag *d, const char *pattern, const el_paths *x) {
  const char *name = strrchr(pattern, '.') ? last_of(pattern) : pattern + 1;
  const char *near = pattern_of_name(e, x, name);
  if (!near)
    near = pattern_around(e, x, pattern);
  if (near) {
    lm_diag_help(e->c, d, "write %s", near);
    return;
  }
  name = nearest(e, x, name);
  if (name)
    lm_diag_help(e->c, d, "did you mean %s?", pattern_of_name(e, x, name));
  else
    list_patterns(e, d, x);
}
