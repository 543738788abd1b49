// parse_token.c - the parts of .lmir text that operations and tables share: tokens, numbered
// values, types, locations.
#include <math.h>
#include <string.h>
#include "compiler/ir/parse.h"
#include "runtime/base/diag_code.h"

// ---- tokens

bool lmir_fail(parser *p, lm_loc at, const char *fmt, ...) {
  lm_buf b = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&b, fmt, ap);
  va_end(ap);
  if (!p->failed)
    LM_REPORT(p->c, at, E710, b.p);
  lm_buf_free(&b);
  p->failed = true;
  return false;
}

bool lmir_next(parser *p) {
  p->t = lm_lex(&p->lex);
  return p->t.kind != TK_BAD || lmir_fail(p, p->t.loc, "unexpected token");
}

bool lmir_at(const parser *p, char c) {
  return p->t.kind == TK_PUNCT && p->t.punct == c;
}
bool lmir_at_word(const parser *p, const char *w) {
  return p->t.kind == TK_NAME && !p->t.quoted && !strcmp(p->t.sym, w);
}
bool lmir_opt(parser *p, char c) {
  return lmir_at(p, c) && lmir_next(p);
}
bool lmir_opt_word(parser *p, const char *w) {
  return lmir_at_word(p, w) && lmir_next(p);
}
bool lmir_want(parser *p, char c) {
  return lmir_at(p, c) ? lmir_next(p) : lmir_fail(p, p->t.loc, "expected '%c'", c);
}

bool lmir_want_kind(parser *p, lm_token_kind kind, const char *what, lm_token *out) {
  *out = p->t;
  return p->t.kind == kind ? lmir_next(p) : lmir_fail(p, p->t.loc, "expected %s", what);
}

bool lmir_integer(parser *p, int64_t *out) {
  lm_token t;
  if (!lmir_want_kind(p, TK_NUMBER, "a whole number", &t))
    return false;
  *out = t.inum;
  return t.is_int || lmir_fail(p, t.loc, "expected an integer");
}

bool lmir_real(parser *p, double *out) {
  *out = p->t.num;
  if (p->t.kind == TK_NUMBER)
    return lmir_next(p);
  if (lmir_at_word(p, "inf"))
    *out = INFINITY;
  else if (lmir_at_word(p, "nan"))
    *out = NAN;
  else
    return lmir_fail(p, p->t.loc, "expected a number");
  return lmir_next(p);
}

// ---- values

static named *slot(named *table, uint32_t cap, lm_sym key) {
  uint32_t i = (uint32_t)lm_hash(&key, sizeof key, 0) & (cap - 1);
  while (table[i].key && table[i].key != key)
    i = (i + 1) & (cap - 1);
  return &table[i];
}

static void table_grow(parser *p) {
  uint32_t cap = p->cap_table ? 2 * p->cap_table : 64;
  named *t = lm_calloc(cap, sizeof *t);
  for (uint32_t i = 0; i < p->cap_table; i++)
    if (p->table[i].key)
      *slot(t, cap, p->table[i].key) = p->table[i];
  lm_free(p->table);
  p->table = t;
  p->cap_table = cap;
}

static bool take_id(parser *p, const lm_token *t) {
  if (t->id < 0)
    return true;
  if (t->id >= p->n_ids) {
    uint32_t n = (uint32_t)t->id + 1 > 2 * p->n_ids ? (uint32_t)t->id + 1 : 2 * p->n_ids;
    p->ids = lm_realloc(p->ids, n);
    memset(p->ids + p->n_ids, 0, n - p->n_ids);
    p->n_ids = n;
  }
  if (p->ids[t->id]++)
    return lmir_fail(p, t->loc, "value number %lld is used twice", (long long)t->id);
  return true;
}

bool lmir_define(parser *p, const lm_token *t, lm_value *v) {
  if (2 * p->n_table >= p->cap_table)
    table_grow(p);
  named *s = slot(p->table, p->cap_table, t->sym);
  if (s->key)
    return lmir_fail(p, t->loc, "%%%s is defined twice", t->sym);
  *s = (named){t->sym, v};
  p->n_table++;
  v->name = t->name;
  LM_PUSH(p->m->arena, p->values, p->n_values, p->cap_values) = (made){v, t->id};
  return take_id(p, t);
}

static lm_value *use(parser *p, lm_region *r) {
  lm_token t;
  if (!lmir_want_kind(p, TK_VALUE, "a value such as %x", &t))
    return NULL;
  named *s = p->cap_table ? slot(p->table, p->cap_table, t.sym) : NULL;
  if (!s || !s->key) {
    lmir_fail(p, t.loc, "%%%s is not defined", t.sym);
    return NULL;
  }
  if (!lm_value_visible(s->value, r)) {
    lmir_fail(p, t.loc, "%%%s is not visible here", t.sym);
    return NULL;
  }
  return s->value;
}

bool lmir_use(parser *p, lm_region *r, operands *o) {
  lm_value *v = use(p, r);
  if (v)
    LM_PUSH(p->m->arena, o->v, o->n, o->cap) = v;
  return v != NULL;
}

// Assigns the next free numbers, in order, to values without one.
void lmir_number_values(parser *p) {
  uint32_t next_id = 0;
  for (uint32_t i = 0; i < p->n_values; i++)
    if (p->values[i].id >= next_id)
      next_id = (uint32_t)p->values[i].id + 1;
  for (uint32_t i = 0; i < p->n_values; i++)
    p->values[i].value->id = p->values[i].id >= 0 ? (uint32_t)p->values[i].id : next_id++;
  p->m->n_values = next_id;
}

// ---- types and attributes

static bool axis(parser *p, lm_axis *out) {
  lm_token t;
  if (!lmir_want_kind(p, TK_NAME, "an axis", &t))
    return false;
  *out = lm_axis_find(p->m, t.sym);
  return *out || lmir_fail(p, t.loc, "there is no axis %s", t.sym);
}

bool lmir_axis_list(parser *p, char close, lm_axis *out, uint8_t *n) {
  *n = 0;
  while (!lmir_at(p, close)) {
    if (*n == LM_RANK)
      return lmir_fail(p, p->t.loc, "more than %d axes", LM_RANK);
    if ((*n && !lmir_want(p, ',')) || !axis(p, &out[*n]))
      return false;
    ++*n;
  }
  return lmir_next(p);
}

bool lmir_type(parser *p, lm_type *out) {
  lm_token t;
  lm_axis axes[LM_RANK];
  uint8_t n = 0;
  if (!lmir_want_kind(p, TK_NAME, "a type", &t))
    return false;
  int dtype = 0;
  while (dtype < LM_DTYPES && strcmp(lm_dtype_name(dtype), t.sym))
    dtype++;
  if (dtype == LM_DTYPES)
    return lmir_fail(p, t.loc,
                     "%s is not a type: expected f32, bf16, f16, f64, int, bool, e4m3, e5m2, "
                     "e8m0, i8, u8, dyn8, udyn8 or real",
                     t.sym);
  if (lmir_opt(p, '[') && !lmir_axis_list(p, ']', axes, &n))
    return false;
  if (p->failed)
    return false;
  *out = lm_type_make(dtype, axes, n);
  lm_buf why = {0};
  bool ok = lm_type_valid(p->m, *out, &why) || lmir_fail(p, t.loc, "%s", why.p);
  lm_buf_free(&why);
  return ok;
}

bool lmir_mesh_axis(parser *p, uint8_t *out) {
  lm_token t;
  if (!lmir_want_kind(p, TK_NAME, "an axis of the mesh", &t))
    return false;
  *out = (uint8_t)lm_mesh_find(p->m, t.sym);
  return *out || lmir_fail(p, t.loc, "the mesh has no axis %s", t.sym);
}

bool lmir_partial(parser *p, lm_mesh_set *out) {
  if (!lmir_opt_word(p, "partial"))
    return !p->failed;
  if (!lmir_want(p, '('))
    return false;
  do {
    uint8_t k;
    if (!lmir_mesh_axis(p, &k))
      return false;
    *out |= (lm_mesh_set)(1 << (k - 1));
  } while (lmir_opt(p, ','));
  return lmir_want(p, ')');
}

bool lmir_location(parser *p, lm_loc *out) {
  int64_t v[3];
  lm_loc at = p->t.loc;
  if (!lmir_opt_word(p, "loc"))
    return !p->failed;
  if (!lmir_want(p, '('))
    return false;
  for (int i = 0; i < 3; i++)
    if ((i && !lmir_want(p, ':')) || !lmir_integer(p, &v[i]))
      return false;
  if (v[0] < 1 || v[0] > p->n_files)
    return lmir_fail(p, at, "there is no file %lld", (long long)v[0]);
  if (v[1] < 1 || v[1] > UINT32_MAX || v[2] < 0 || v[2] > UINT32_MAX)
    return lmir_fail(p, at, "the location is out of range");
  *out = (lm_loc){
      .file = p->files[v[0] - 1],
      .line = (uint32_t)v[1],
      .col = (uint32_t)v[2],
  };
  return lmir_want(p, ')');
}
