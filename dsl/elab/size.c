// size.c - arithmetic of symbolic sizes. Terms are sorted by their dims, terms with equal dims are
// added, and zero terms are removed, so equal sizes have equal representations.
#include "dsl/elab/size.h"
#include <stdlib.h>
#include <string.h>

enum {
  MAX_TERMS = 64
};

static bool reduce(lm_size_term *t, __int128 num, __int128 den) {
  if (den < 0) {
    num = -num;
    den = -den;
  }
  __int128 a = num < 0 ? -num : num, b = den;
  while (b) {
    __int128 r = a % b;
    a = b;
    b = r;
  }
  if (a > 1) {
    num /= a;
    den /= a;
  }
  const __int128 max = (__int128)1 << 62;
  if (num > max || num < -max || den > max)
    return false;
  t->num = (int64_t)num;
  t->den = (int64_t)den;
  return true;
}

static int compare_dims(const lm_size_term *x, const lm_size_term *y) {
  for (int i = 0; i < x->n || i < y->n; i++) {
    if (i >= x->n)
      return -1;
    if (i >= y->n)
      return 1;
    int c = strcmp(x->f[i].dim, y->f[i].dim);
    if (c)
      return c;
    if (x->f[i].power != y->f[i].power)
      return x->f[i].power - y->f[i].power;
  }
  return 0;
}

static int compare_terms(const void *x, const void *y) {
  return compare_dims(x, y);
}

// Sorts the `n` terms, adds those with equal dims, and copies the rest to *out. False: overflow.
static bool normal(lm_arena *a, lm_size_term *t, int n, lm_size *out) {
  qsort(t, (size_t)n, sizeof *t, compare_terms);
  int k = 0;
  for (int i = 0; i < n; i++) {
    if (k && compare_dims(&t[k - 1], &t[i]) == 0) {
      lm_size_term *l = &t[k - 1];
      if (!reduce(l, (__int128)l->num * t[i].den + (__int128)t[i].num * l->den,
                  (__int128)l->den * t[i].den))
        return false;
      if (l->num == 0)
        k--;
    } else if (t[i].num) {
      t[k++] = t[i];
    }
  }
  lm_size_term *copy = LM_NEW_N(a, lm_size_term, k ? k : 1);
  memcpy(copy, t, sizeof *t * (size_t)k);
  *out = (lm_size){k, copy};
  return true;
}

lm_size lm_size_number(lm_arena *a, int64_t v) {
  lm_size_term *t = LM_NEW(a, lm_size_term);
  *t = (lm_size_term){
      .num = v,
      .den = 1,
  };
  return (lm_size){v != 0, t};
}

lm_size lm_size_dim(lm_arena *a, lm_sym dim) {
  lm_size_term *t = LM_NEW(a, lm_size_term);
  *t = (lm_size_term){.num = 1, .den = 1, .n = 1, .f = {{dim, 1}}};
  return (lm_size){1, t};
}

bool lm_size_add(lm_arena *a, lm_size x, lm_size y, int sign, lm_size *out) {
  lm_size_term t[2 * MAX_TERMS];
  if (x.n > MAX_TERMS || y.n > MAX_TERMS)
    return false;
  for (int i = 0; i < x.n; i++)
    t[i] = x.t[i];
  for (int i = 0; i < y.n; i++) {
    t[x.n + i] = y.t[i];
    t[x.n + i].num *= sign;
  }
  return normal(a, t, x.n + y.n, out) && out->n <= MAX_TERMS;
}

// Multiplies two terms, or with sign = -1 divides them. False: overflow or too many dims.
static bool times(const lm_size_term *x, const lm_size_term *y, int sign, lm_size_term *out) {
  *out = *x;
  for (int j = 0; j < y->n; j++) {
    int i = 0;
    while (i < out->n && strcmp(out->f[i].dim, y->f[j].dim) < 0)
      i++;
    if (i < out->n && out->f[i].dim == y->f[j].dim) {
      out->f[i].power += sign * y->f[j].power;
      if (out->f[i].power == 0)
        memmove(&out->f[i], &out->f[i + 1], sizeof out->f[0] * (size_t)(--out->n - i));
      continue;
    }
    if (out->n == (int)LM_COUNT(out->f))
      return false;
    memmove(&out->f[i + 1], &out->f[i], sizeof out->f[0] * (size_t)(out->n++ - i));
    out->f[i].dim = y->f[j].dim;
    out->f[i].power = sign * y->f[j].power;
  }
  return sign > 0 ? reduce(out, (__int128)x->num * y->num, (__int128)x->den * y->den)
                  : reduce(out, (__int128)x->num * y->den, (__int128)x->den * y->num);
}

bool lm_size_mul(lm_arena *a, lm_size x, lm_size y, lm_size *out) {
  lm_size_term t[MAX_TERMS];
  if (x.n * y.n > MAX_TERMS)
    return false;
  for (int i = 0; i < x.n; i++)
    for (int j = 0; j < y.n; j++)
      if (!times(&x.t[i], &y.t[j], 1, &t[i * y.n + j]))
        return false;
  return normal(a, t, x.n * y.n, out);
}

bool lm_size_div(lm_arena *a, lm_size x, lm_size y, lm_size *out) {
  lm_size_term t[MAX_TERMS];
  if (y.n != 1 || x.n > MAX_TERMS)
    return y.n > 1 && lm_size_equal(x, y) ? (*out = lm_size_number(a, 1), true) : false;
  for (int i = 0; i < x.n; i++)
    if (!times(&x.t[i], &y.t[0], -1, &t[i]))
      return false;
  return normal(a, t, x.n, out);
}

bool lm_size_equal(lm_size x, lm_size y) {
  if (x.n != y.n)
    return false;
  for (int i = 0; i < x.n; i++)
    if (compare_dims(&x.t[i], &y.t[i]) || x.t[i].num != y.t[i].num || x.t[i].den != y.t[i].den)
      return false;
  return true;
}

bool lm_size_is_const(lm_size x) {
  return x.n == 0 || (x.n == 1 && x.t[0].n == 0);
}

bool lm_size_whole(lm_size x, int64_t *out) {
  if (x.n == 0) {
    *out = 0;
    return true;
  }
  if (x.n != 1 || x.t[0].n || x.t[0].den != 1)
    return false;
  *out = x.t[0].num;
  return true;
}

static void print_dims(const lm_size_term *t, int sign, bool first, lm_buf *out) {
  for (int i = 0; i < t->n; i++) {
    int p = t->f[i].power * sign;
    if (p <= 0)
      continue;
    lm_buf_printf(out, first ? "%s" : "*%s", t->f[i].dim);
    first = false;
    if (p > 1)
      lm_buf_printf(out, "^%d", p);
  }
}

void lm_size_print(lm_size x, lm_buf *out) {
  if (x.n == 0)
    lm_buf_puts(out, "0");
  for (int i = 0; i < x.n; i++) {
    const lm_size_term *t = &x.t[i];
    bool up = false, down = t->den != 1;
    for (int k = 0; k < t->n; k++)
      *(t->f[k].power > 0 ? &up : &down) = true;
    if (i)
      lm_buf_puts(out, t->num < 0 ? " - " : " + ");
    else if (t->num < 0)
      lm_buf_puts(out, "-");
    int64_t n = t->num < 0 ? -t->num : t->num;
    if (n != 1 || !up)
      lm_buf_printf(out, "%lld", (long long)n);
    print_dims(t, 1, n == 1, out);
    if (!down)
      continue;
    lm_buf_puts(out, "/");
    if (t->den != 1)
      lm_buf_printf(out, "%lld", (long long)t->den);
    print_dims(t, -1, t->den == 1, out);
  }
}
