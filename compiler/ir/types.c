// types.c - modules, axes, tensor types and globals.
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "compiler/ir/internal.h"

lm_module *lm_module_create(lm_ctx *c) {
  lm_module *m = LM_NEW(c->arena, lm_module);
  m->ctx = c;
  m->arena = c->arena;
  m->real = LM_REAL;
  m->funcs_tail = &m->funcs;
  LM_PUSH(m->arena, m->axes, m->n_axes, m->cap_axes) = (lm_axis_info){0};
  return m;
}

size_t lm_axis_base_length(const char *name) {
  size_t n = strcspn(name, "@");
  size_t digits = n;
  while (digits && isdigit((unsigned char)name[digits - 1]))
    digits--;
  return digits < n && digits > 1 && name[digits - 1] == '.' ? digits - 1 : n;
}

lm_axis lm_axis_find(const lm_module *m, lm_sym name) {
  for (uint32_t i = 1; i < m->n_axes; i++)
    if (m->axes[i].name == name)
      return (lm_axis)i;
  return 0;
}

// The maximum K of axes named NAME.K.
static unsigned long last_variant(const lm_module *m, const char *name) {
  size_t n = strlen(name);
  unsigned long last = 0;
  for (uint32_t i = 1; i < m->n_axes; i++) {
    const char *other = m->axes[i].name;
    unsigned long k =
        !strncmp(other, name, n) && other[n] == '.' ? strtoul(other + n + 1, NULL, 10) : 0;
    if (k > last && k < UINT32_MAX)
      last = k;
  }
  return last;
}

lm_axis lm_axis_add(lm_module *m, lm_sym name, int64_t size, int dyn) {
  if (size < 1)
    LM_BUG("axis %s of size %lld", name, (long long)size);
  if (m->n_axes > UINT16_MAX)
    LM_BUG("more than %d axes", UINT16_MAX);
  if (strchr(name, '@')) // only lm_axis_part divides
    name = lm_intern_n(m->ctx->intern, name, strcspn(name, "@"));
  lm_sym unique = name;
  for (unsigned long k = 0; lm_axis_find(m, unique); k++) {
    if (!k)
      k = 1 + last_variant(m, name);
    unique = LM_SYM(m->ctx, lm_arena_printf(m->arena, "%s.%lu", name, k));
  }
  LM_PUSH(m->arena, m->axes, m->n_axes, m->cap_axes) = (lm_axis_info){
      .name = unique,
      .size = size,
      .dyn = dyn,
  };
  return (lm_axis)(m->n_axes - 1);
}

static bool extent_is_used(const lm_module *m, int k) {
  bool used = false;
  for (uint32_t i = 1; i < m->n_axes; i++)
    used |= m->axes[i].dyn == k;
  return used;
}

// The number of a derived extent, which is added if the module lacks it; -1: there are too many.
static int extent_find(lm_module *m, lm_extent_info x) {
  for (int k = 1; k <= LM_EXTENTS; k++) {
    const lm_extent_info *y = &m->extents[k - 1];
    if (y->of == x.of && y->times == x.times && y->most == x.most)
      return k;
  }
  for (int k = LM_EXTENTS_GIVEN + 1; k <= LM_EXTENTS; k++)
    if (!m->extents[k - 1].of && !extent_is_used(m, k)) {
      m->extents[k - 1] = x;
      return k;
    }
  return -1;
}

int lm_extent_most(lm_module *m, int of, int64_t most) {
  return extent_find(m, (lm_extent_info){of, 1, most});
}

int lm_axes_extent(lm_module *m, const lm_axis *axes, int n) {
  lm_extent_info x = {.times = 1};
  for (int i = 0; i < n; i++) {
    const lm_axis_info *a = &m->axes[axes[i]];
    if (a->dyn && x.of)
      return -1;
    x.of = a->dyn ? a->dyn : x.of;
    x.times *= a->dyn ? 1 : a->size;
  }
  if (!x.of || x.times == 1)
    return x.of;
  const lm_extent_info *of = &m->extents[x.of - 1];
  if (of->most)
    return -1;
  if (of->of) {
    x.times *= of->times;
    x.of = of->of;
  }
  return extent_find(m, x);
}

lm_axis lm_axis_part(lm_module *m, lm_axis whole, int mesh) {
  const lm_axis_info *a = &m->axes[whole];
  const lm_mesh_axis *by = &m->mesh.axis[mesh - 1];
  for (uint32_t i = 1; i < m->n_axes; i++)
    if (m->axes[i].whole == whole && m->axes[i].mesh == mesh)
      return (lm_axis)i;
  if (a->dyn || a->size % by->size)
    LM_BUG("%d ranks do not divide axis %s of size %lld", by->size, a->name, (long long)a->size);
  lm_sym name = LM_SYM(m->ctx, lm_arena_printf(m->arena, "%s@%s", a->name, by->name));
  lm_axis_info part = {
      .name = name,
      .size = a->size / by->size,
      .whole = whole,
      .mesh = mesh,
  };
  if (m->n_axes > UINT16_MAX)
    LM_BUG("more than %d axes", UINT16_MAX);
  LM_PUSH(m->arena, m->axes, m->n_axes, m->cap_axes) = part;
  return (lm_axis)(m->n_axes - 1);
}

lm_mesh_set lm_axis_divided_by(const lm_module *m, lm_axis a) {
  lm_mesh_set set = 0;
  for (; m->axes[a].whole; a = m->axes[a].whole)
    set |= (lm_mesh_set)(1 << (m->axes[a].mesh - 1));
  return set;
}

lm_mesh_set lm_type_divided_by(const lm_module *m, lm_type t) {
  lm_mesh_set set = 0;
  for (int i = 0; i < t.rank; i++)
    set |= lm_axis_divided_by(m, t.axis[i]);
  return set;
}

lm_type lm_type_whole(const lm_module *m, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    while (m->axes[t.axis[i]].whole)
      t.axis[i] = m->axes[t.axis[i]].whole;
  return t;
}

// ---- the mesh

int lm_mesh_find(const lm_module *m, const char *name) {
  for (int i = 0; i < m->mesh.n; i++)
    if (!strcmp(m->mesh.axis[i].name, name))
      return i + 1;
  return 0;
}

int lm_mesh_ranks(const lm_module *m) {
  int n = 1;
  for (int i = 0; i < m->mesh.n; i++)
    n *= m->mesh.axis[i].size;
  return n;
}

int lm_mesh_stride(const lm_module *m, int mesh) {
  int n = 1;
  for (int i = mesh; i < m->mesh.n; i++)
    n *= m->mesh.axis[i].size;
  return n;
}

int lm_mesh_coordinate(const lm_module *m, int rank, int mesh) {
  return rank / lm_mesh_stride(m, mesh) % m->mesh.axis[mesh - 1].size;
}

lm_axis lm_axis_shared(lm_module *m, lm_sym name, int64_t size, lm_type except) {
  size_t n = strlen(name);
  for (uint32_t i = 1; i < m->n_axes; i++) {
    const lm_axis_info *a = &m->axes[i];
    bool named = !strncmp(a->name, name, n) && (!a->name[n] || a->name[n] == '.');
    if (named && a->size == size && !a->dyn && lm_type_find(except, (lm_axis)i) < 0)
      return (lm_axis)i;
  }
  return lm_axis_add(m, name, size, 0);
}

// The module's axis of blocks, which the first call adds.
static lm_axis axis_blocks(lm_module *m) {
  int64_t n = m->blocks ? 0 : lm_module_blocks(m);
  if (!m->blocks)
    m->blocks = lm_axis_add(m, LM_SYM(m->ctx, "blk"), n ? n : 1, 0);
  return m->blocks;
}

lm_type lm_type_without(lm_type t, lm_type axes) {
  lm_type out = {.dtype = t.dtype};
  for (int i = 0; i < t.rank; i++)
    if (lm_type_find(axes, t.axis[i]) < 0)
      out.axis[out.rank++] = t.axis[i];
  return out;
}

lm_type lm_type_make(lm_dtype dtype, const lm_axis *axes, int n) {
  if (n > LM_RANK)
    LM_BUG("a tensor with %d axes", n);
  lm_type t = {
      .dtype = (uint8_t)dtype,
      .rank = (uint8_t)n,
  };
  for (int i = 0; i < n; i++)
    t.axis[i] = axes[i];
  return t;
}

lm_type lm_type_inner(lm_type t, int n) {
  return lm_type_make((lm_dtype)t.dtype, t.axis + n, t.rank - n);
}

lm_type lm_type_stacked(lm_axis front, lm_type t) {
  memmove(t.axis + 1, t.axis, t.rank * sizeof *t.axis);
  t.axis[0] = front;
  t.rank++;
  return t;
}

lm_type lm_type_blocks(lm_module *m, lm_dtype dtype) {
  lm_axis axes[2];
  axes[0] = axis_blocks(m);
  axes[1] = lm_axis_shared(m, LM_SYM(m->ctx, "el"), LM_BLOCK, (lm_type){0});
  return lm_type_make(dtype, axes, LM_COUNT(axes));
}

bool lm_type_is_blocks(const lm_module *m, lm_type t) {
  return t.rank == 2 && t.axis[0] == m->blocks && lm_axis_size(m, t.axis[1]) == LM_BLOCK;
}

bool lm_type_equal(lm_type a, lm_type b) {
  return !memcmp(&a, &b, sizeof a);
}

int lm_type_find(lm_type t, lm_axis a) {
  for (int i = 0; i < t.rank; i++)
    if (t.axis[i] == a)
      return i;
  return -1;
}

bool lm_type_subset(lm_type a, lm_type b) {
  for (int i = 0; i < a.rank; i++)
    if (lm_type_find(b, a.axis[i]) < 0)
      return false;
  return true;
}

bool lm_type_same_axes(lm_type a, lm_type b) {
  return a.rank == b.rank && lm_type_subset(a, b);
}

// Saturates; lm_type_valid rejects such a type.
int64_t lm_type_elements(const lm_module *m, lm_type t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; i++)
    if (__builtin_mul_overflow(n, lm_axis_size(m, t.axis[i]), &n))
      return INT64_MAX;
  return n;
}

bool lm_type_dynamic(const lm_module *m, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (m->axes[t.axis[i]].dyn)
      return true;
  return false;
}

void lm_type_print(const lm_module *m, lm_type t, lm_buf *out) {
  lm_buf_puts(out, lm_dtype_name(t.dtype));
  for (int i = 0; i < t.rank; i++)
    lm_buf_printf(out, "%s%s", i ? ", " : "[", m->axes[t.axis[i]].name);
  if (t.rank)
    lm_buf_puts(out, "]");
}

bool lm_type_wellformed(const lm_module *m, lm_type t, lm_buf *why) {
  for (int i = 0; i < t.rank; i++) {
    if (!t.axis[i] || t.axis[i] >= m->n_axes) {
      lm_buf_puts(why, "an unknown axis");
      return false;
    }
    for (int j = 0; j < i; j++)
      if (t.axis[i] == t.axis[j]) {
        lm_buf_printf(why, "axis %s twice in one tensor", m->axes[t.axis[i]].name);
        return false;
      }
  }
  return true;
}

bool lm_type_valid(const lm_module *m, lm_type t, lm_buf *why) {
  if (!lm_type_wellformed(m, t, why))
    return false;
  if (lm_type_elements(m, t) < LM_ELEMENTS_MAX)
    return true;
  lm_type_print(m, t, why);
  lm_buf_puts(why, " has more than 2^47 elements");
  return false;
}

static int64_t stack_points(const lm_module *m, lm_type t, int n_stack) {
  t.rank = (uint8_t)n_stack;
  return lm_type_elements(m, t);
}

int64_t lm_global_instances(const lm_module *m, const lm_global *g) {
  return stack_points(m, g->type, g->n_stack);
}

// Paths are NULL and initial values zero until the caller sets them; the path of a global without
// stacked axes is its name.
lm_global *lm_global_add(lm_module *m, lm_global_kind kind, lm_sym name, lm_type type,
                         int n_stack) {
  if (n_stack < 0 || n_stack > type.rank)
    LM_BUG("global %s: %d stacked axes of %d", name, n_stack, type.rank);
  lm_global *g = &LM_PUSH(m->arena, m->globals, m->n_globals, m->cap_globals);
  *g = (lm_global){
      .kind = kind,
      .name = name,
      .type = type,
      .n_stack = n_stack,
  };
  g->n_paths = stack_points(m, lm_type_whole(m, type), n_stack);
  g->paths = LM_NEW_N(m->arena, lm_sym, g->n_paths);
  g->init = LM_NEW_N(m->arena, lm_init, g->n_paths);
  if (!n_stack)
    g->paths[0] = name;
  return g;
}

lm_global *lm_global_find(lm_module *m, lm_sym name) {
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (m->globals[i].name == name)
      return &m->globals[i];
  return NULL;
}

static int count_of(const char *s, char c) {
  int n = 0;
  for (; *s; s++)
    n += *s == c;
  return n;
}

lm_sym lm_path_fill(const lm_module *m, const lm_global *g, const char *template, int64_t i) {
  if (count_of(template, '#') != g->n_stack)
    return NULL;
  lm_buf b = {0};
  int64_t below = g->n_paths; // elements per index of this axis
  lm_type whole = lm_type_whole(m, g->type);
  const lm_axis *axis = whole.axis;
  for (const char *s = template; *s; s++) {
    if (*s != '#') {
      lm_buf_add(&b, s, 1);
      continue;
    }
    int64_t size = lm_axis_size(m, *axis++);
    below /= size;
    lm_buf_printf(&b, "%lld", (long long)(i / below % size));
  }
  lm_sym path = lm_intern_n(m->ctx->intern, b.p ? b.p : "", b.n);
  lm_buf_free(&b);
  return path;
}

// ---- memory of parameters

static int along_of(const lm_global *packed) {
  return lm_type_find(packed->type, packed->along);
}

int64_t lm_global_packed_size(const lm_module *m, const lm_global *packed, const lm_global *g) {
  int n = g->type.rank - packed->type.rank + 1;
  int at = along_of(packed);
  int64_t size = 1;
  for (int i = at; i < at + n; i++)
    size *= lm_axis_size(m, g->type.axis[i]);
  return size;
}

const lm_global *lm_global_pack(const lm_module *m, const lm_global *g, int64_t *out_first) {
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *packed = &m->globals[i];
    int64_t first = 0;
    for (uint32_t k = 0; k < packed->n_members; k++) {
      *out_first = first;
      if (packed->members[k] == g->name)
        return packed;
      const lm_global *member = lm_global_find((lm_module *)m, packed->members[k]);
      first += lm_global_packed_size(m, packed, member);
    }
  }
  return NULL;
}

uint32_t lm_global_states(const lm_module *m, const lm_global *g, const lm_attr *indices,
                          const lm_global **out) {
  int64_t first = indices->n_imm ? indices->imm[indices->n_imm - 2] : 0;
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *s = &m->globals[i];
    if (s->kind != LM_GLOBAL_STATE || s->of != g->name)
      continue;
    if (s->n_stack &&
        (first < s->first || first >= s->first + lm_axis_size(m, s->type.axis[s->n_stack - 1])))
      continue;
    if (out)
      out[n] = s;
    n++;
  }
  return n;
}

int64_t lm_global_strides(const lm_module *m, const lm_global *g, int64_t *out) {
  int64_t n = 1, first, inner = 1;
  const lm_global *packed = lm_global_pack(m, g, &first);
  int at = packed ? along_of(packed) : -1;
  for (int i = packed ? at + 1 : 0; packed && i < packed->type.rank; i++)
    inner *= lm_axis_size(m, packed->type.axis[i]);
  for (int i = g->type.rank - 1; i >= g->n_stack; i--) {
    out[i - g->n_stack] = n;
    n *= lm_axis_size(m, g->type.axis[i]);
    if (i == at)
      n = inner * lm_axis_size(m, packed->along);
  }
  return packed ? first * inner : 0;
}

enum {
  ROWS_MULTIPLE = 64,
  ROWS_MIN = 4096 // of a tensor whose rows are padded
};

int64_t lm_global_stored_rows(const lm_module *m, const lm_global *g) {
  int64_t rows = g->type.rank > g->n_stack ? lm_axis_size(m, g->type.axis[g->n_stack]) : 1;
  bool pads = lm_global_is_weight(g) && g->type.rank > g->n_stack + 1 && rows >= ROWS_MIN;
  return pads ? (rows + ROWS_MULTIPLE - 1) / ROWS_MULTIPLE * ROWS_MULTIPLE : rows;
}

int64_t lm_global_stored_elements(const lm_module *m, const lm_global *g) {
  int64_t n = lm_global_stored_rows(m, g);
  for (int i = g->n_stack + 1; i < g->type.rank; i++)
    n *= lm_axis_size(m, g->type.axis[i]);
  return n;
}

int64_t lm_global_blocks(const lm_module *m, const lm_global *g) {
  return (lm_global_stored_elements(m, g) + LM_BLOCK - 1) / LM_BLOCK;
}

int64_t lm_module_blocks(const lm_module *m) {
  int64_t n = 0;
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (m->globals[i].kind == LM_GLOBAL_PARAM)
      n += lm_global_instances(m, &m->globals[i]) * lm_global_blocks(m, &m->globals[i]);
  return n;
}
