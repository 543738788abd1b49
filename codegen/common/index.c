// index.c - arithmetic, ranges, division and printing of affine index expressions.
#include "codegen/common/index.h"

uint16_t lm_var_add(lm_vars *s, lm_var v) {
  if (!s->n)
    LM_PUSH(s->arena, s->v, s->n, s->cap) = (lm_var){.name = ""};
  if (s->n > UINT16_MAX)
    LM_BUG("more than %d index variables in a kernel", UINT16_MAX);
  LM_PUSH(s->arena, s->v, s->n, s->cap) = v;
  return (uint16_t)(s->n - 1);
}

lm_ix lm_ix_const(int64_t c) {
  return (lm_ix){.c = c};
}

lm_ix lm_ix_var(const lm_vars *s, uint16_t var) {
  const lm_var *v = &s->v[var];
  if (v->hi - v->lo == 1 && !v->dyn)
    return lm_ix_const(v->lo);
  lm_ix a = {.n = 1};
  a.t[0].var = var;
  a.t[0].coef = 1;
  return a;
}

lm_ix lm_ix_scale(lm_ix a, int64_t k) {
  if (!k)
    return lm_ix_const(0);
  a.c *= k;
  for (int i = 0; i < a.n; i++)
    a.t[i].coef *= k;
  return a;
}

lm_ix lm_ix_add(lm_ix a, lm_ix b) {
  lm_ix r = {.c = a.c + b.c};
  for (int i = 0, j = 0; i < a.n || j < b.n;) {
    bool both = i < a.n && j < b.n && a.t[i].var == b.t[j].var;
    bool left = j == b.n || (i < a.n && a.t[i].var <= b.t[j].var);
    uint16_t var = left ? a.t[i].var : b.t[j].var;
    int64_t coef = (left ? a.t[i].coef : 0) + (both || !left ? b.t[j].coef : 0);
    i += left;
    j += both || !left;
    if (!coef)
      continue;
    if (r.n == LM_IX_TERMS)
      LM_BUG("an index expression of more than %d terms", LM_IX_TERMS);
    r.t[r.n].var = var;
    r.t[r.n++].coef = coef;
  }
  return r;
}

bool lm_ix_equal(const lm_ix *a, const lm_ix *b) {
  if (a->c != b->c || a->n != b->n)
    return false;
  for (int i = 0; i < a->n; i++)
    if (a->t[i].var != b->t[i].var || a->t[i].coef != b->t[i].coef)
      return false;
  return true;
}

int64_t lm_ix_coef(const lm_ix *a, uint16_t var) {
  for (int i = 0; i < a->n; i++)
    if (a->t[i].var == var)
      return a->t[i].coef;
  return 0;
}

void lm_ix_range(const lm_vars *s, const lm_ix *a, int64_t *out_min, int64_t *out_max) {
  int64_t min = a->c;
  int64_t max = a->c;
  for (int i = 0; i < a->n; i++) {
    const lm_var *v = &s->v[a->t[i].var];
    int64_t k = a->t[i].coef;
    int64_t first = k * v->lo;
    int64_t last = k * (v->hi - 1);
    min += first < last ? first : last;
    max += first < last ? last : first;
  }
  *out_min = min;
  *out_max = max;
}

int lm_ix_level(const lm_vars *s, const lm_ix *a) {
  int level = 0;
  for (int i = 0; i < a->n; i++)
    if (s->v[a->t[i].var].level > level)
      level = s->v[a->t[i].var].level;
  return level;
}

bool lm_ix_divide(const lm_vars *s, const lm_ix *a, int64_t n, lm_ix *out_quotient,
                  lm_ix *out_rest) {
  lm_ix q = {.c = a->c / n};
  lm_ix r = {.c = a->c % n};
  if (a->c < 0)
    return false;
  for (int i = 0; i < a->n; i++) {
    lm_ix *to = a->t[i].coef % n ? &r : &q;
    to->t[to->n] = a->t[i];
    to->t[to->n++].coef /= to == &q ? n : 1;
  }
  int64_t min;
  int64_t max;
  lm_ix_range(s, &r, &min, &max);
  if (min < 0 || max >= n)
    return false;
  *out_quotient = q;
  *out_rest = r;
  return true;
}

uint16_t lm_ix_split_find(const lm_vars *s, const lm_ix *a, int64_t n, int64_t *out_by) {
  for (int i = 0; i < a->n; i++) {
    const lm_var *v = &s->v[a->t[i].var];
    int64_t k = a->t[i].coef;
    if (v->kind != LM_VAR_LOOP || v->dyn || k <= 0 || k >= n || n % k)
      continue;
    int64_t by = n / k;
    if (v->size <= by || v->size % by)
      continue;
    *out_by = by;
    return a->t[i].var;
  }
  return 0;
}

uint16_t lm_ix_partition_find(const lm_vars *s, const lm_ix *a, int64_t bound, int64_t *out_at) {
  for (int i = 0; i < a->n; i++) {
    const lm_var *v = &s->v[a->t[i].var];
    int64_t k = a->t[i].coef;
    int64_t min;
    int64_t max;
    if (v->kind != LM_VAR_LOOP || v->dyn || k <= 0)
      continue;
    lm_ix rest = *a;
    rest.t[i].coef = 0;
    lm_ix_range(s, &rest, &min, &max);
    if (bound < min)
      continue;
    // Below `at` even the largest rest stays under the bound; from `at` on even the smallest
    // reaches it.
    int64_t at = (bound - min + k - 1) / k;
    if (at <= v->lo || at >= v->hi || k * at + min < bound || k * (at - 1) + max >= bound)
      continue;
    *out_at = at;
    return a->t[i].var;
  }
  return 0;
}

void lm_ix_print(const lm_vars *s, const lm_ix *a, lm_buf *out) {
  bool any = false;
  for (int i = 0; i < a->n; i++) {
    const lm_var *v = &s->v[a->t[i].var];
    int64_t k = a->t[i].coef;
    int64_t size = k < 0 ? -k : k;
    if (v->into)
      continue;
    lm_buf_puts(out, any ? (k < 0 ? " - " : " + ") : (k < 0 ? "-" : ""));
    lm_buf_puts(out, v->name);
    if (size != 1)
      lm_buf_printf(out, " * %lld", (long long)size);
    any = true;
  }
  if (!any)
    lm_buf_printf(out, "%lld", (long long)a->c);
  else if (a->c)
    lm_buf_printf(out, " %c %lld", a->c < 0 ? '-' : '+', (long long)(a->c < 0 ? -a->c : a->c));
}
