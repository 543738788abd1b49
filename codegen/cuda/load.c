// load.c - loads of vectors.
#include <string.h>
#include "codegen/cuda/emit.h"

bool cuda_in_vectors(const cuda_emit *e, const lm_ix *at, lm_ix *out_rest) {
  int width = e->width[e->g.pass];
  if (!e->vector || lm_ix_coef(at, e->vector) != 1 || at->c % width)
    return false;
  *out_rest = (lm_ix){.c = at->c};
  for (int i = 0; i < at->n; i++) {
    if (at->t[i].var == e->vector)
      continue;
    if (at->t[i].coef % width)
      return false;
    out_rest->t[out_rest->n++] = at->t[i];
  }
  return true;
}

const char *cuda_printed(const cuda_emit *e, const lm_ix *ix) {
  lm_buf b = {0};
  lm_ix_print(&e->g.vars, ix, &b);
  const char *text = lm_arena_strndup(e->g.arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// The number of elements between those of a vector, 2 to 8, if a thread may load all that are
// between them too, as whole sectors: the weights [channel, tap] of a convolution. at = rest +
// stride * the vector's variable + *out_tap. 0: not so.
static int stride_of(const cuda_emit *e, const lm_ix *at, lm_type t, lm_ix *out_rest,
                     int *out_tap) {
  int64_t stride = e->vector ? lm_ix_coef(at, e->vector) : 0;
  int64_t block = stride * e->width[e->g.pass];
  int64_t bytes = block * lm_dtype_bytes((lm_dtype)t.dtype);
  bool few = stride == 2 || stride == 4 || stride == 8;
  if (!few || at->c < 0)
    return 0;
  if (bytes % CUDA_SECTOR || lm_type_elements(e->g.m, t) % block)
    return 0;
  *out_tap = (int)(at->c % block);
  *out_rest = (lm_ix){.c = at->c - *out_tap};
  for (int i = 0; i < at->n; i++) {
    if (at->t[i].var == e->vector)
      continue;
    if (at->t[i].coef % block)
      return 0;
    out_rest->t[out_rest->n++] = at->t[i];
  }
  return *out_tap < stride ? (int)stride : 0;
}

static const char *type_note(cuda_emit *e, lm_type t) {
  lm_buf note = {0};
  lm_gen_type_print(&e->g, t, &note);
  const char *text = lm_arena_strndup(e->g.arena, note.p, note.n);
  lm_buf_free(&note);
  return text;
}

// Loads n vectors of neighbouring elements from base[rest], once in a body; returns the array.
static const char *vectors_load(cuda_emit *e, const char *base, lm_type t, const lm_ix *rest,
                                int n) {
  const char *from = lm_arena_printf(e->g.arena, "%s + (%s)", base, cuda_printed(e, rest));
  int width = e->width[e->g.pass];
  int level = lm_ix_level(&e->g.vars, rest);
  for (uint32_t i = 0; i < e->n_loaded; i++) {
    const cuda_loaded *l = &e->loaded[i];
    if (l->n == n && !strcmp(l->from, from))
      return l->name;
  }
  const char *name = lm_gen_temp_name(&e->g, "x");
  lm_gen_statement(&e->g, level, "%s %s[%d];", lm_gen_register_type(t.dtype), name, n * width);
  for (int i = 0; i < n * width; i += width) {
    lm_gen_statement(&e->g, level, "lm_load%d_%s(%s + %d, %s + %d);  // %s", width,
                     lm_dtype_name(t.dtype), name, i, from, i, type_note(e, t));
    // The address, and a conversion of each element from bf16.
    lm_gen_count(&e->g, level, lm_dtype_is_half((lm_dtype)t.dtype) ? 3 + width : 3, NULL);
  }
  cuda_loaded *l = &LM_PUSH(e->g.arena, e->loaded, e->n_loaded, e->cap_loaded);
  *l = (cuda_loaded){
      .from = from,
      .name = name,
      .n = n,
  };
  return name;
}

static const char *element_text(cuda_emit *e, const char *base, lm_type t, const lm_ix *at) {
  if (!e->vector)
    return NULL;
  const char *index = e->g.vars.v[e->vector].name;
  lm_ix rest;
  int tap;
  int stride = stride_of(e, at, t, &rest, &tap);
  if (stride) {
    const char *name = vectors_load(e, base, t, &rest, stride);
    return lm_arena_printf(e->g.arena, "%s[%s * %d + %d]", name, index, stride, tap);
  }
  if (!cuda_in_vectors(e, at, &rest))
    return NULL;
  int level = lm_ix_level(&e->g.vars, &rest);
  const char *name = cuda_vector_load(e, base, cuda_printed(e, &rest), t, at, level);
  return lm_arena_printf(e->g.arena, "%s[%s]", name, index);
}

bool cuda_load(lm_gen *g, const char *base, lm_type t, const lm_ix *at, lm_gen_text *out) {
  cuda_emit *e = (cuda_emit *)g;
  if (cuda_carry_load(e, base, t, at, out))
    return true;
  const char *text = element_text(e, base, t, at);
  if (text) {
    *out = (lm_gen_text){text, g->vars.v[e->vector].level};
    return true;
  }
  cuda_count_sectors(e, (lm_dtype)t.dtype, at, lm_ix_level(&g->vars, at), false);
  return false;
}
