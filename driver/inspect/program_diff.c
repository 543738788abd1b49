// program_diff.c - the lines in which two versions of a program differ.
#include "driver/inspect/program_diff.h"

#include <ctype.h>
#include <string.h>

#include "dsl/syntax/imports.h"

enum {
  SHOWN = 16,
  TABLE_MOST = 4 << 20
}; // lines; cells of the table of common subsequences

typedef struct text_line {
  const char *text;
  size_t n;
  const char *plain;
  uint32_t number;
} text_line;
typedef struct text_lines {
  text_line *v;
  uint32_t n;
  uint32_t cap;
  const char *path;
} text_lines;
typedef struct differ {
  lm_arena *a;
  lm_buf *out;
  uint32_t differing;
} differ;

// ---- lines

// The text of a line without comments and spaces.
static const char *plain_of(lm_arena *a, const char *text, size_t n) {
  char *plain = lm_arena_strndup(a, text, n);
  char *to = plain;
  bool quoted = false;
  for (const char *at = plain; *at && (quoted || *at != '#'); at++) {
    quoted ^= *at == '"' && (at == plain || at[-1] != '\\');
    if (quoted || !isspace((unsigned char)*at))
      *to++ = *at;
  }
  *to = 0;
  return plain;
}

// A copy of the program imports by another path (imports.h), so that an imported file counts
// by its name, as in `counterpart`.
static const ast_decl *import_on(const lm_file *f, uint32_t line) {
  for (uint32_t i = 0; i < f->tree->n; i++)
    if (f->tree->v[i]->kind == DC_IMPORT && f->tree->v[i]->loc.line == line)
      return f->tree->v[i];
  return NULL;
}

static const char *plain_line(lm_arena *a, const lm_source *s, const lm_file *f,
                              const text_line *l) {
  const ast_decl *d = import_on(f, l->number);
  const char *path = d ? lm_import_path(a, d) : NULL;
  if (!path)
    return plain_of(a, l->text, l->n);
  const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  const char *end = s->text + lm_import_span_of(s, d).end;
  size_t rest = end < l->text + l->n ? (size_t)(l->text + l->n - end) : 0;
  return lm_arena_printf(a, "import\"%s\"%s", name, plain_of(a, end, rest));
}

// The lines that hold more than a comment. NULL: no file, no lines.
static text_lines lines_of(lm_arena *a, const lm_program *p, const lm_file *f) {
  text_lines l = {0};
  if (!f)
    return l;
  const lm_source *source = &p->c->sources[f->tree->source];
  l.path = f->path;
  uint32_t number = 1;
  for (const char *at = source->text, *end = at + source->n; at < end; number++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    size_t n = newline ? (size_t)(newline - at) : (size_t)(end - at);
    text_line line = {at, n, NULL, number};
    line.plain = plain_line(a, source, f, &line);
    if (*line.plain)
      LM_PUSH(a, l.v, l.n, l.cap) = line;
    at += n + 1;
  }
  return l;
}

static bool lines_equal(const text_line *x, const text_line *y) {
  return !strcmp(x->plain, y->plain);
}

// ---- comparing

static void line_print(differ *d, const char *path, const text_line *l, const char *which) {
  if (d->differing++ >= SHOWN)
    return;
  size_t indent = 0;
  while (indent < l->n && isspace((unsigned char)l->text[indent]))
    indent++;
  lm_buf_printf(d->out, "\n  %s:%u: %s %.*s", path, l->number, which, (int)(l->n - indent),
                l->text + indent);
}

// table[i * (m + 1) + j]: the longest common subsequence of the lines from i and from j on.
static uint32_t *table_make(lm_arena *a, const text_lines *x, const text_lines *y) {
  uint32_t m = y->n + 1;
  uint32_t *table = LM_NEW_N(a, uint32_t, (size_t)(x->n + 1) * m);
  for (uint32_t i = x->n; i-- > 0;)
    for (uint32_t j = y->n; j-- > 0;) {
      uint32_t down = table[(i + 1) * m + j];
      uint32_t right = table[i * m + j + 1];
      table[i * m + j] = lines_equal(&x->v[i], &y->v[j]) ? table[(i + 1) * m + j + 1] + 1
                         : down > right                  ? down
                                                         : right;
    }
  return table;
}

static void lines_compare(differ *d, const text_lines *was, const text_lines *is) {
  bool fits = (uint64_t)(was->n + 1) * (is->n + 1) <= TABLE_MOST;
  uint32_t *table = fits ? table_make(d->a, was, is) : NULL;
  uint32_t m = is->n + 1;
  uint32_t i = 0;
  uint32_t j = 0;
  while (i < was->n || j < is->n) {
    bool both = i < was->n && j < is->n;
    if (both && lines_equal(&was->v[i], &is->v[j])) {
      i++;
      j++;
    } else if (i < was->n &&
               (j == is->n || !table || table[(i + 1) * m + j] >= table[i * m + j + 1])) {
      line_print(d, was->path, &was->v[i++], "was");
    } else {
      line_print(d, is->path, &is->v[j++], "is ");
    }
  }
}

static void common_trim(text_lines *x, text_lines *y) {
  uint32_t front = 0;
  while (front < x->n && front < y->n && lines_equal(&x->v[front], &y->v[front]))
    front++;
  x->v += front;
  x->n -= front;
  y->v += front;
  y->n -= front;
  uint32_t back = 0;
  while (back < x->n && back < y->n && lines_equal(&x->v[x->n - 1 - back], &y->v[y->n - 1 - back]))
    back++;
  x->n -= back;
  y->n -= back;
}

// ---- files

static const char *name_of(const lm_file *f) {
  const char *slash = strrchr(f->path, '/');
  return slash ? slash + 1 : f->path;
}

// The main files correspond to each other, the others by name.
static const lm_file *counterpart(const lm_program *p, const lm_program *of, uint32_t i) {
  if (i == 0)
    return p->files[0];
  for (uint32_t k = 1; k < p->n_files; k++)
    if (!p->files[k]->is_std && !strcmp(name_of(p->files[k]), name_of(of->files[i])))
      return p->files[k];
  return NULL;
}

static void file_compare(differ *d, const lm_program *was, const lm_file *old, const lm_program *is,
                         const lm_file *now) {
  text_lines x = lines_of(d->a, was, old);
  text_lines y = lines_of(d->a, is, now);
  if (now)
    x.path = now->path; // the user edits the present file
  common_trim(&x, &y);
  lines_compare(d, &x, &y);
}

uint32_t lm_program_diff(const lm_program *was, const lm_program *is, lm_buf *out,
                         uint32_t *out_more) {
  differ d = {
      .a = lm_arena_create(),
      .out = out,
  };
  for (uint32_t i = 0; i < is->n_files; i++)
    if (!is->files[i]->is_std)
      file_compare(&d, was, counterpart(was, is, i), is, is->files[i]);
  for (uint32_t i = 1; i < was->n_files; i++)
    if (!was->files[i]->is_std && !counterpart(is, was, i))
      file_compare(&d, was, was->files[i], is, NULL);
  lm_arena_destroy(d.a);
  *out_more = d.differing > SHOWN ? d.differing - SHOWN : 0;
  return d.differing;
}
