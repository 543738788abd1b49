// map_name.c - the numbers in the foreign names of a map, and names of parameters of other
// branches.
//
//   @moe.#.wd = ("model.layers.{#+3}.mlp.down_proj.weight", …)
//
// A `#` is the number that a `#` of the pattern matches, the first unused one. In braces, +, - and
// * compute a number from it.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "dsl/lower/internal.h"

typedef struct reader {
  const char *at;
  const lm_match *match;
  int used;       // captures
  bool missing;   // the pattern has too few of them
  bool malformed; // or too large
} reader;

static int64_t read_number(reader *r, const char *digits) {
  char *end;
  int64_t v = strtoll(digits, &end, 10);
  r->malformed |= !isdigit((unsigned char)*digits) || *end || v > INT32_MAX;
  return v;
}

static int64_t read_capture(reader *r) {
  r->at++;
  if (r->used < r->match->n_cap)
    return read_number(r, r->match->cap[r->used++]);
  r->missing = true;
  return 0;
}

static void skip_spaces(reader *r) {
  r->at += strspn(r->at, " ");
}

static int64_t read_atom(reader *r) {
  skip_spaces(r);
  if (*r->at == '#')
    return read_capture(r);
  size_t n = strspn(r->at, "0123456789");
  char digits[12] = "";
  memcpy(digits, r->at, n < sizeof digits ? n : 0);
  r->at += n;
  skip_spaces(r);
  return read_number(r, digits);
}

static int64_t read_product(reader *r) {
  int64_t v = read_atom(r);
  for (skip_spaces(r); *r->at == '*' && !r->malformed; skip_spaces(r)) {
    r->at++;
    r->malformed |= __builtin_mul_overflow(v, read_atom(r), &v);
  }
  return v;
}

static int64_t read_sum(reader *r) {
  int64_t v = read_product(r);
  for (skip_spaces(r); (*r->at == '+' || *r->at == '-') && !r->malformed; skip_spaces(r)) {
    bool minus = *r->at++ == '-';
    int64_t x = read_product(r);
    r->malformed |= __builtin_add_overflow(v, minus ? -x : x, &v);
  }
  return v;
}

// The text in braces at r->at, with a #, as a number; NULL: reported.
static const char *read_braces(lm_elab *e, const ast_expr *name, reader *r, size_t n) {
  const char *open = r->at++;
  int64_t v = read_sum(r);
  if (!r->missing && (r->malformed || *r->at != '}')) {
    EL_ERR(e, name->loc, E0FB, (int)n, open,
           "no number that +, - and * compute from # and numbers below 2^31");
    return NULL;
  }
  if (!r->missing && v < 0) {
    EL_ERR(e, name->loc, E0FB, (int)n, open, lm_arena_printf(e->a, "%lld", (long long)v));
    return NULL;
  }
  r->at += *r->at == '}';
  return lm_arena_printf(e->a, "%lld", (long long)v);
}

const char *lm_map_number(lm_elab *e, const ast_expr *name, const lm_match *match) {
  reader r = {
      .at = name->text,
      .match = match,
  };
  const char *out = "";
  while (*r.at) {
    size_t plain = strcspn(r.at, "#{");
    size_t braces = strcspn(r.at + plain, "}") + 1;
    out = lm_arena_printf(e->a, "%s%.*s", out, (int)plain, r.at);
    r.at += plain;
    if (*r.at == '#') {
      const char *digits = r.used < match->n_cap ? match->cap[r.used++] : "";
      r.missing |= !*digits;
      r.at++;
      out = lm_arena_printf(e->a, "%s%s", out, digits);
    } else if (*r.at && memchr(r.at, '#', strnlen(r.at, braces))) {
      const char *number = read_braces(e, name, &r, braces);
      if (!number)
        return NULL;
      out = lm_arena_printf(e->a, "%s%s", out, number);
    } else if (*r.at) { // {E}: one tensor for each index of E
      out = lm_arena_printf(e->a, "%s%c", out, *r.at++);
    }
    if (r.missing) {
      EL_ERR(e, name->loc, E0E3, name->text);
      return NULL;
    }
  }
  return out;
}

static bool has_param_named(const ast_decl *d, lm_sym name) {
  for (uint32_t i = 0; i < d->members.n; i++)
    for (uint32_t k = 0; d->members.v[i]->kind == MB_PARAM && k < d->members.v[i]->names.n; k++)
      if (d->members.v[i]->names.v[k].text == name)
        return true;
  return false;
}

// True if a block that is visible in the file declares the parameter. files: also one that is
// visible in the file of such a block.
static bool is_declared(const lm_file *file, lm_sym name, bool files) {
  for (uint32_t i = 0; i < file->n_symbols; i++) {
    lm_decl_ref ref = file->symbols[i].ref;
    if (ref.decl->kind != DC_BLOCK && ref.decl->kind != DC_MODEL)
      continue;
    bool other = files && ref.file != file;
    if (has_param_named(ref.decl, name) || (other && is_declared(ref.file, name, false)))
      return true;
  }
  return false;
}

bool lm_map_names_branch(const lm_elab *e, const lm_file *file, const char *pattern) {
  const char *last = strrchr(pattern, '.');
  return is_declared(file, LM_SYM(e->c, last ? last + 1 : pattern + 1), true);
}
