// foreign.c - weights under another project's names and layouts, both ways.
#include "runtime/weights/foreign.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/diag.h"
#include "runtime/base/dtype.h"

typedef struct {
  const lm_foreign_map *map;
  const lm_foreign_native *native;
} part;
typedef struct {
  uint32_t from;
  uint32_t to;
  int64_t elements;
} group; // parts of one foreign tensor

struct lm_foreign {
  lm_arena *arena;
  lm_foreign_cover cover;
  part *parts;
  size_t n_parts; // sorted by foreign name
  group *groups;
  size_t n_groups;
};

// ---- coverage

static int64_t sizes_product(const int64_t *size, int n) {
  int64_t total = 1;
  for (int i = 0; i < n; i++)
    total *= size[i];
  return total;
}

// True if the part's axes, smallest stride first, are the digits of a mixed-radix number. The part
// then covers elements 0 to elements - 1 exactly once, and they need not be enumerated.
static bool is_dense(const int64_t *size, const int64_t *stride, int n, int64_t elements) {
  int64_t radix = 1;
  uint32_t used = 0;
  for (int done = 0; done < n; done++) {
    int next = -1;
    for (int k = 0; k < n; k++)
      if (!(used >> k & 1) && (stride[k] == radix || size[k] == 1))
        next = k;
    if (next < 0)
      return false;
    used |= 1u << next;
    radix *= size[next];
  }
  return radix == elements;
}

// The elements of a tensor that one side of a mapping accesses.
typedef struct {
  const int64_t *size;
  const int64_t *stride;
  int n;
  int64_t offset;
} footprint;

static footprint native_side(const lm_foreign_map *m) {
  return (footprint){m->size, m->stride_native, m->n, m->offset_native};
}
static footprint foreign_side(const lm_foreign_map *m) {
  return (footprint){m->size, m->stride_foreign, m->n, m->offset_foreign};
}

static bool is_inside(footprint p, int64_t elements) {
  __int128 last = p.offset;
  for (int k = 0; k < p.n; k++) {
    if (p.size[k] < 1 || p.stride[k] < 0)
      return false;
    last += (__int128)(p.size[k] - 1) * p.stride[k];
  }
  return p.offset >= 0 && last < elements;
}

// Advances an index vector over all axes but the last; false after the last index.
static bool advance(int64_t *index, const int64_t *size, int n) {
  for (int k = n - 2; k >= 0; k--) {
    if (++index[k] < size[k])
      return true;
    index[k] = 0;
  }
  return false;
}

static int64_t offset_of(int64_t offset, const int64_t *index, const int64_t *stride, int n) {
  for (int k = 0; k < n - 1; k++)
    offset += index[k] * stride[k];
  return offset;
}

// Sets a bit for each element; false if one was already set.
static bool mark(uint64_t *bits, footprint p) {
  bool fresh = true;
  int64_t index[LM_FOREIGN_AXES] = {0};
  int64_t inner = p.n ? p.size[p.n - 1] : 1;
  int64_t step = p.n ? p.stride[p.n - 1] : 0;
  do {
    int64_t at = offset_of(p.offset, index, p.stride, p.n);
    for (int64_t i = 0; i < inner; i++, at += step) {
      uint64_t bit = UINT64_C(1) << (at & 63);
      fresh &= !(bits[at >> 6] & bit);
      bits[at >> 6] |= bit;
    }
  } while (advance(index, p.size, p.n));
  return fresh;
}

static bool is_full(const uint64_t *bits, int64_t elements) {
  for (int64_t i = 0; i < elements; i++)
    if (!(bits[i >> 6] >> (i & 63) & 1))
      return false;
  return true;
}

static const char UNMAPPED[] = "has elements that are not mapped";
static const char TWICE[] = "has elements that are mapped twice";

static const char *marks_fault(const footprint *parts, size_t n, int64_t elements,
                               lm_foreign_cover cover) {
  uint64_t *bits = lm_calloc((size_t)elements / 64 + 1, sizeof *bits);
  const char *fault = NULL;
  for (size_t i = 0; i < n && !fault; i++)
    if (!mark(bits, parts[i]) && cover != LM_FOREIGN_SHARED)
      fault = TWICE;
  if (!fault && cover == LM_FOREIGN_SHARED && !is_full(bits, elements))
    fault = UNMAPPED;
  lm_free(bits);
  return fault;
}

// The reason why the footprints do not cover the elements as they should; NULL if they do.
static const char *cover_fault(const footprint *parts, size_t n, int64_t elements,
                               lm_foreign_cover cover) {
  int64_t total = 0;
  for (size_t i = 0; i < n; i++) {
    if (!is_inside(parts[i], elements))
      return "is mapped outside its shape";
    total += sizes_product(parts[i].size, parts[i].n);
    if (total > elements && cover != LM_FOREIGN_SHARED)
      return TWICE;
  }
  if (total < elements && cover != LM_FOREIGN_PART)
    return UNMAPPED;
  if (n == 1 && parts[0].offset == 0 &&
      is_dense(parts[0].size, parts[0].stride, parts[0].n, elements))
    return NULL;
  return marks_fault(parts, n, elements, cover);
}

// ---- building

static int by_foreign(const void *a, const void *b) {
  const part *x = a;
  const part *y = b;
  int c = strcmp(x->map->foreign, y->map->foreign);
  return c ? c : x->map < y->map ? -1 : x->map > y->map;
}

static int by_native(const void *a, const void *b) {
  const part *x = a;
  const part *y = b;
  int c = strcmp(x->map->native, y->map->native);
  return c ? c : x->map < y->map ? -1 : x->map > y->map;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const lm_foreign_native *)a)->name, ((const lm_foreign_native *)b)->name);
}

static bool same_shape(const lm_foreign_map *a, const lm_foreign_map *b) {
  return a->rank_f == b->rank_f &&
         !memcmp(a->shape_f, b->shape_f, sizeof *a->shape_f * (size_t)a->rank_f);
}

static void fault_add(lm_buf *faults, const char *side, const char *name, const char *what) {
  lm_buf_printf(faults, "\n  %s tensor %s %s", side, name, what);
}

// Finds the native tensor of each mapping. A mapping without one is a fault.
static void natives_find(lm_foreign *f, lm_foreign_native *natives, size_t n, lm_buf *faults) {
  for (size_t i = 0; i < f->n_parts; i++) {
    lm_foreign_native key = {.name = f->parts[i].map->native};
    f->parts[i].native = n ? bsearch(&key, natives, n, sizeof key, by_name) : NULL;
    if (!f->parts[i].native)
      fault_add(faults, "native", key.name, "is mapped but does not exist");
  }
}

static void natives_check(lm_foreign *f, const lm_foreign_native *natives, size_t n,
                          lm_buf *faults) {
  lm_foreign_native *sorted = LM_NEW_N(f->arena, lm_foreign_native, n);
  if (n)
    memcpy(sorted, natives, n * sizeof *sorted);
  if (n)
    qsort(sorted, n, sizeof *sorted, by_name);
  if (f->n_parts)
    qsort(f->parts, f->n_parts, sizeof *f->parts, by_native);
  natives_find(f, sorted, n, faults);
  footprint *sides = LM_NEW_N(f->arena, footprint, f->n_parts);
  for (size_t i = 0; i < f->n_parts; i++)
    sides[i] = native_side(f->parts[i].map);
  for (size_t i = 0, from = 0; i < n; i++) { // both are sorted by name
    while (from < f->n_parts && strcmp(f->parts[from].map->native, sorted[i].name) < 0)
      from++;
    size_t to = from;
    while (to < f->n_parts && f->parts[to].native == &sorted[i])
      to++;
    const char *fault =
        to == from ? "has no mapping"
                   : cover_fault(sides + from, to - from, sorted[i].elements, LM_FOREIGN_ONCE);
    if (fault)
      fault_add(faults, "native", sorted[i].name, fault);
  }
}

static void group_check(lm_foreign *f, group *g, lm_buf *faults) {
  const lm_foreign_map *first = f->parts[g->from].map;
  footprint *sides = lm_calloc(g->to - g->from, sizeof *sides);
  const char *fault = NULL;
  for (uint32_t i = g->from; i < g->to; i++) {
    if (!same_shape(first, f->parts[i].map))
      fault = "is given two shapes";
    sides[i - g->from] = foreign_side(f->parts[i].map);
  }
  g->elements = sizes_product(first->shape_f, first->rank_f);
  if (!fault)
    fault = cover_fault(sides, g->to - g->from, g->elements, f->cover);
  if (fault)
    fault_add(faults, "foreign", first->foreign, fault);
  lm_free(sides);
}

static void foreigns_check(lm_foreign *f, lm_buf *faults) {
  if (f->n_parts)
    qsort(f->parts, f->n_parts, sizeof *f->parts, by_foreign);
  f->groups = LM_NEW_N(f->arena, group, f->n_parts);
  for (uint32_t i = 0; i < f->n_parts;) {
    group *g = &f->groups[f->n_groups++];
    g->from = i;
    while (i < f->n_parts && !strcmp(f->parts[i].map->foreign, f->parts[g->from].map->foreign))
      i++;
    g->to = i;
    group_check(f, g, faults);
  }
}

lm_status lm_foreign_create(const lm_foreign_map *maps, size_t n_maps,
                            const lm_foreign_native *natives, size_t n_natives,
                            lm_foreign_cover cover, lm_foreign **out) {
  lm_arena *arena = lm_arena_create();
  lm_foreign *f = LM_NEW(arena, lm_foreign);
  *f = (lm_foreign){
      .arena = arena, .cover = cover, .parts = LM_NEW_N(arena, part, n_maps), .n_parts = n_maps};
  for (size_t i = 0; i < n_maps; i++)
    f->parts[i].map = &maps[i];
  lm_buf faults = {0};
  natives_check(f, natives, n_natives, &faults);
  foreigns_check(f, &faults);
  lm_status s =
      faults.n ? lm_fail(LM_USER, "the map of foreign names is not one to one:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  if (s)
    lm_foreign_destroy(f);
  *out = s ? NULL : f;
  return s;
}

void lm_foreign_destroy(lm_foreign *f) {
  if (f)
    lm_arena_destroy(f->arena);
}

// ---- import

static bool shape_fits(const lm_st_tensor *t, const lm_foreign_map *m) {
  return t->rank == m->rank_f && !memcmp(t->shape, m->shape_f, sizeof *t->shape * (size_t)t->rank);
}

static void tensor_check(const lm_st *st, const lm_foreign_map *m, lm_buf *faults) {
  const lm_st_tensor *t = lm_st_find(st, m->foreign);
  if (!t) {
    lm_buf_printf(faults, "\n  missing: %s ", m->foreign);
    lm_st_shape_print(faults, m->shape_f, m->rank_f);
  } else if (!shape_fits(t, m)) {
    lm_buf_printf(faults, "\n  shape: %s is ", m->foreign);
    lm_st_shape_print(faults, t->shape, t->rank);
    lm_buf_puts(faults, ", should be ");
    lm_st_shape_print(faults, m->shape_f, m->rank_f);
  } else if (!lm_st_dtype_is_float(t->dtype)) {
    lm_buf_printf(faults, "\n  type: %s is %s, should be a float", m->foreign,
                  lm_st_dtype_name(t->dtype));
  }
}

static bool is_mapped(const lm_foreign *f, const char *name) {
  size_t low = 0;
  size_t high = f->n_groups;
  while (low < high) {
    size_t mid = (low + high) / 2;
    int c = strcmp(name, f->parts[f->groups[mid].from].map->foreign);
    if (!c)
      return true;
    if (c < 0)
      high = mid;
    else
      low = mid + 1;
  }
  return false;
}

static lm_status import_check(const lm_foreign *f, const lm_st *st,
                              bool (*ignored)(void *, const char *), void *user) {
  lm_buf faults = {0};
  for (size_t i = 0; i < f->n_groups; i++)
    tensor_check(st, f->parts[f->groups[i].from].map, &faults);
  for (size_t i = 0; i < lm_st_count(st); i++) {
    const char *name = lm_st_at(st, i)->name;
    if (is_mapped(f, name) || (ignored && ignored(user, name)))
      continue;
    lm_buf_puts(&faults, "\n  extra: ");
    lm_buf_puts_shown(&faults, name, strlen(name));
  }
  lm_status s =
      faults.n ? lm_fail(LM_USER, "the tensors do not match the model:%s", faults.p) : NULL;
  lm_buf_free(&faults);
  return s;
}

// The elements of a tensor in memory; exactly one of f32 and bf16 is set.
typedef struct {
  float *f32;
  uint16_t *bf16;
} elements;

static elements elements_of(const lm_foreign_native *n) {
  return n->dtype == LM_ST_BF16 ? (elements){.bf16 = n->data} : (elements){.f32 = n->data};
}

static void element_copy(elements to, int64_t i, elements from, int64_t k) {
  float x = from.bf16 ? lm_bf16_to_f32(from.bf16[k]) : from.f32[k];
  if (to.bf16)
    to.bf16[i] = lm_bf16_from_f32(x);
  else
    to.f32[i] = x;
}

static void copy(elements to, footprint p, elements from, footprint q) {
  int64_t index[LM_FOREIGN_AXES] = {0};
  int64_t inner = p.n ? p.size[p.n - 1] : 1;
  int64_t to_step = p.n ? p.stride[p.n - 1] : 0;
  int64_t from_step = p.n ? q.stride[p.n - 1] : 0;
  do {
    int64_t out = offset_of(p.offset, index, p.stride, p.n);
    int64_t in = offset_of(q.offset, index, q.stride, q.n);
    for (int64_t i = 0; i < inner; i++)
      element_copy(to, out + i * to_step, from, in + i * from_step);
  } while (advance(index, p.size, p.n));
}

// Sets the elements that mappings cover to 0; LM_USER if another one is not.
static lm_status rest_check(const lm_foreign *f, const group *g, float *values) {
  const lm_foreign_map *first = f->parts[g->from].map;
  float *zeros = lm_calloc((size_t)g->elements, sizeof *zeros);
  bool rest = false;
  for (uint32_t k = g->from; k < g->to; k++)
    copy((elements){.f32 = values}, foreign_side(f->parts[k].map), (elements){.f32 = zeros},
         foreign_side(f->parts[k].map));
  for (int64_t i = 0; i < g->elements && !rest; i++)
    rest = values[i] != 0;
  lm_free(zeros);
  return rest ? lm_fail(LM_USER, "%s has values that no parameter of the model takes",
                        first->foreign)
              : NULL;
}

static lm_status group_import(const lm_foreign *f, const group *g, const lm_st_tensor *t) {
  float *values = lm_calloc((size_t)g->elements, sizeof *values);
  lm_status s = lm_st_read_f32(t, 0, g->elements, values);
  for (uint32_t k = g->from; k < g->to && !s; k++)
    copy(elements_of(f->parts[k].native), native_side(f->parts[k].map), (elements){.f32 = values},
         foreign_side(f->parts[k].map));
  if (!s && f->cover == LM_FOREIGN_PART)
    s = rest_check(f, g, values);
  lm_free(values);
  return s;
}

lm_status lm_foreign_import(const lm_foreign *f, const lm_st *st,
                            bool (*ignored)(void *user, const char *name), void *user) {
  LM_TRY(import_check(f, st, ignored, user));
  for (size_t i = 0; i < f->n_groups; i++) {
    const group *g = &f->groups[i];
    LM_TRY(group_import(f, g, lm_st_find(st, f->parts[g->from].map->foreign)));
  }
  return NULL;
}

// ---- export

size_t lm_foreign_count(const lm_foreign *f) {
  return f->n_groups;
}

void lm_foreign_describe(const lm_foreign *f, size_t i, lm_st_tensor *t) {
  const lm_foreign_map *m = f->parts[f->groups[i].from].map;
  *t = (lm_st_tensor){
      .name = m->foreign, .dtype = LM_ST_F32, .rank = m->rank_f, .elements = f->groups[i].elements};
  memcpy(t->shape, m->shape_f, sizeof t->shape);
}

void lm_foreign_gather(const lm_foreign *f, size_t i, float *out) {
  for (uint32_t k = f->groups[i].from; k < f->groups[i].to; k++)
    copy((elements){.f32 = out}, foreign_side(f->parts[k].map), elements_of(f->parts[k].native),
         native_side(f->parts[k].map));
}

static lm_status export_data(const lm_foreign *f, lm_st_writer *w, const lm_st_tensor *tensors) {
  lm_status s = NULL;
  for (size_t i = 0; i < f->n_groups && !s; i++) {
    size_t n = (size_t)tensors[i].elements;
    size_t bytes = n * (size_t)lm_st_dtype_bytes(tensors[i].dtype);
    float *values = lm_calloc(n, sizeof *values);
    void *rounded = lm_alloc(bytes);
    lm_foreign_gather(f, i, values);
    lm_st_from_f32(tensors[i].dtype, values, (int64_t)n, rounded);
    s = lm_st_writer_append(w, rounded, bytes);
    lm_free(values);
    lm_free(rounded);
  }
  return s;
}

lm_status lm_foreign_export(const lm_foreign *f, const char *path, lm_st_dtype dtype) {
  lm_st_tensor *tensors = lm_calloc(f->n_groups, sizeof *tensors);
  for (size_t i = 0; i < f->n_groups; i++) {
    lm_foreign_describe(f, i, &tensors[i]);
    tensors[i].dtype = dtype;
  }
  lm_st_writer *w = NULL;
  lm_status s = lm_st_writer_create(path, tensors, f->n_groups, &w);
  if (!s)
    s = export_data(f, w, tensors);
  if (!s)
    s = lm_st_writer_finish(w, &(lm_sum){0});
  else
    lm_st_writer_abort(w);
  lm_free(tensors);
  return s;
}
