// regex.c - see regex.h.
#include "runtime/tokenizer/regex.h"

#include <string.h>

struct lm_regex {
  pcre2_general_context *general;
  pcre2_compile_context *compile;
  pcre2_code *code;
};
struct lm_regex_room {
  pcre2_general_context *general;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
  pcre2_match_data *data;
};

static void *room_alloc(size_t n, void *user) {
  return lm_alloc(n);
}
static void room_free(void *p, void *user) {
  lm_free(p);
}

static pcre2_general_context *general_create(void) {
  pcre2_general_context *g = pcre2_general_context_create(room_alloc, room_free, NULL);
  LM_ASSERT(g);
  return g;
}

// ---- Oniguruma to PCRE2

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

typedef struct {
  const char *p;
  const char *end;
  bool in_class;
  lm_buf out;
} rewriting;

// \p{Han} means Script in Oniguruma but Script_Extensions in PCRE2, so it becomes \p{sc:Han}.
static bool is_script(const char *name, size_t n) {
  lm_buf text = {0};
  int error;
  size_t at;
  lm_buf_printf(&text, "\\p{sc:%.*s}", (int)n, name);
  pcre2_code *code = pcre2_compile((PCRE2_SPTR)text.p, text.n, PCRE2_UTF, &error, &at, NULL);
  lm_buf_free(&text);
  pcre2_code_free(code);
  return code != NULL;
}

// Copies a property; p points after \p or \P.
static void property_copy(rewriting *w, char letter) {
  const char *close =
      w->p < w->end && *w->p == '{' ? memchr(w->p, '}', (size_t)(w->end - w->p)) : NULL;
  lm_buf_printf(&w->out, "\\%c", letter);
  if (!close)
    return;
  const char *name = w->p + 1;
  bool negated = name < close && *name == '^';
  name += negated;
  bool script = close - name > 2 && is_script(name, (size_t)(close - name));
  lm_buf_printf(&w->out, "{%s%s%.*s}", negated ? "^" : "", script ? "sc:" : "", (int)(close - name),
                name);
  w->p = close + 1;
}

static lm_status escape_rewrite(rewriting *w) {
  if (++w->p == w->end)
    return lm_fail(LM_USER, "ends in a backslash");
  char c = *w->p++;
  switch (c) {
  case 's': lm_buf_puts(&w->out, "\\p{White_Space}"); return NULL;
  case 'S': lm_buf_puts(&w->out, "\\P{White_Space}"); return NULL;
  case 'w': lm_buf_puts(&w->out, w->in_class ? WORD : "[" WORD "]"); return NULL;
  case 'W':
    if (w->in_class)
      return lm_fail(LM_USER, "\\W in a class is unsupported");
    lm_buf_puts(&w->out, "[^" WORD "]");
    return NULL;
  case 'p':
  case 'P': property_copy(w, c); return NULL;
  case 'x':
  case 'u': {
    const char *close =
        w->p < w->end && *w->p == '{' ? memchr(w->p, '}', (size_t)(w->end - w->p)) : NULL;
    size_t n = close ? (size_t)(close + 1 - w->p) : 0;
    if (c == 'u' && w->end - w->p >= 4 && !close) {
      lm_buf_printf(&w->out, "\\x{%.4s}", w->p);
      n = 4;
    } else
      lm_buf_printf(&w->out, "\\x%.*s", (int)n, w->p);
    w->p += n;
    return NULL;
  }
  }
  if (strchr("hHbBRXGKyY", c))
    return lm_fail(LM_USER, "\\%c is unsupported", c);
  lm_buf_printf(&w->out, "\\%c", c);
  return NULL;
}

static lm_status class_rewrite(rewriting *w) {
  if (*w->p == '[' && w->end - w->p > 1 && w->p[1] == ':')
    return lm_fail(LM_USER, "[:…:] is unsupported");
  if (*w->p == '[')
    return lm_fail(LM_USER, "a nested class is unsupported");
  if (*w->p == '&' && w->end - w->p > 1 && w->p[1] == '&')
    return lm_fail(LM_USER, "&& in a class is unsupported");
  if (*w->p == ']')
    w->in_class = false;
  lm_buf_add(&w->out, w->p++, 1);
  return NULL;
}

static lm_status plain_rewrite(rewriting *w) {
  if (*w->p == '}' && w->end - w->p > 1 && w->p[1] == '+')
    return lm_fail(LM_USER, "{…}+ is unsupported");
  w->in_class = *w->p == '[';
  lm_buf_add(&w->out, w->p++, 1);
  if (!w->in_class)
    return NULL;
  if (w->p < w->end && *w->p == '^')
    lm_buf_add(&w->out, w->p++, 1);
  return NULL;
}

static lm_status pattern_rewrite(rewriting *w) {
  while (w->p < w->end)
    if (*w->p == '\\')
      LM_TRY(escape_rewrite(w));
    else
      LM_TRY(w->in_class ? class_rewrite(w) : plain_rewrite(w));
  return NULL;
}

// ---- creating

static lm_status compile(lm_regex *r, const char *pattern, size_t n, uint32_t options) {
  int error;
  size_t at;
  pcre2_set_newline(r->compile, PCRE2_NEWLINE_LF);
  pcre2_set_bsr(r->compile, PCRE2_BSR_UNICODE);
  r->code = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &error, &at, r->compile);
  if (!r->code) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(error, why, sizeof why);
    return lm_fail(LM_USER, "%s", (char *)why);
  }
  pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); // without a JIT, pcre2_match interprets
  return NULL;
}

static lm_status regex_compile(lm_regex *r, const char *pattern, size_t n, bool literal) {
  if (literal)
    return compile(r, pattern, n, PCRE2_LITERAL);
  rewriting w = {pattern, pattern + n};
  lm_buf_puts(&w.out, "");
  lm_status s = pattern_rewrite(&w);
  if (!s)
    s = compile(r, w.out.p, w.out.n, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  lm_buf_free(&w.out);
  return s;
}

lm_status lm_regex_create(const char *pattern, size_t n, bool literal, lm_regex **out) {
  lm_regex *r = lm_alloc(sizeof *r);
  r->general = general_create();
  r->compile = pcre2_compile_context_create(r->general);
  lm_status s = regex_compile(r, pattern, n, literal);
  if (s)
    lm_regex_destroy(r);
  *out = s ? NULL : r;
  return lm_annotate(s, "regular expression %.*s", n > 200 ? 200 : (int)n, pattern);
}

void lm_regex_destroy(lm_regex *r) {
  if (!r)
    return;
  pcre2_code_free(r->code);
  pcre2_compile_context_free(r->compile);
  pcre2_general_context_free(r->general);
  lm_free(r);
}

// ---- matching

lm_regex_room *lm_regex_room_create(void) {
  lm_regex_room *m = lm_alloc(sizeof *m);
  m->general = general_create();
  m->context = pcre2_match_context_create(m->general);
  m->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, m->general);
  m->data = pcre2_match_data_create(1, m->general);
  if (m->stack)
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
  return m;
}

void lm_regex_room_destroy(lm_regex_room *m) {
  if (!m)
    return;
  pcre2_match_data_free(m->data);
  pcre2_jit_stack_free(m->stack);
  pcre2_match_context_free(m->context);
  pcre2_general_context_free(m->general);
  lm_free(m);
}

lm_status lm_regex_find(const lm_regex *r, lm_regex_room *m, const char *text, size_t n, size_t at,
                        size_t *out_start, size_t *out_end) {
  int rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                     m->context);
  *out_start = *out_end = n;
  if (rc == PCRE2_ERROR_NOMATCH)
    return NULL;
  if (rc < 0) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(rc, why, sizeof why);
    return lm_fail(LM_USER, "the tokenizer's regular expression fails on this text: %s",
                   (char *)why);
  }
  const size_t *found = pcre2_get_ovector_pointer(m->data);
  *out_start = found[0];
  *out_end = found[1];
  return NULL;
}
