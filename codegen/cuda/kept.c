// kept.c - vectors of operands that a thread keeps in registers from one pass to the next.
//
// The norm of a row reads the row twice: to add its squares, and to scale it. If each lane has the
// same few vectors of a row in every pass, the later pass has them in registers:
//
//   float x2[24];
//   for the 3 vectors of a lane: lm_load8_bf16(x2 + …, a0 + …)   s += x2[…] * x2[…]
//   h = the sum over the team
//   for the 3 vectors of a lane: y = x2[…] * h
//
// The previous attempt records which vectors several loops read. As many of them are kept as there
// are registers for. Only operands are kept, because a pass may write results between two reads.
// If the kernel writes a result to the memory of an operand, the registers still hold the elements
// that the operand had before.
#include <string.h>

#include "codegen/cuda/emit.h"

enum {
  ROW_REGISTERS = 32, // leaves room for 32 warps on a multiprocessor
  SUM_REGISTERS = 72  // with the sums over points: two blocks on a multiprocessor
};

void cuda_kept_begin(cuda_emit *e) {
  e->kept_registers = 0;
  for (uint32_t i = 0; i < e->n_sum_parts; i++)
    e->kept_registers += e->sum_parts[i].n;
  for (uint32_t i = 0; i < e->n_kept; i++) {
    cuda_kept *k = &e->kept[i];
    k->uses_before = k->uses;
    k->uses = 0;
    k->name = NULL;
  }
}

bool cuda_kept_any(const cuda_emit *e) {
  bool any = false;
  for (uint32_t i = 0; i < e->n_kept; i++)
    any |= e->kept[i].uses > 1;
  return any;
}

static bool is_of_point(const cuda_emit *e, lm_type t) {
  return lm_kernel_inner(e->g.kernel, t).rank < t.rank;
}

static cuda_kept *find(cuda_emit *e, const char *base, const char *index, lm_type t) {
  int width = e->width[e->g.pass];
  int64_t all = (int64_t)cuda_trips(e, 0) * width;
  for (uint32_t i = 0; i < e->n_kept; i++) {
    cuda_kept *k = &e->kept[i];
    if (k->all == all && k->width == width && !strcmp(k->base, base) && !strcmp(k->index, index))
      return k;
  }
  cuda_kept *k = &LM_PUSH(e->g.arena, e->kept, e->n_kept, e->cap_kept);
  *k = (cuda_kept){
      .base = base,
      .index = index,
      .all = all,
      .width = width,
      .elements = e->rounds.n * width,
      .of_point = is_of_point(e, t),
  };
  return k;
}

// True if the loop gives each lane the same vectors in every pass that has such a loop.
static bool is_aligned(const cuda_emit *e, int level) {
  int width = e->width[e->g.pass];
  const lm_var *v = &e->g.vars.v[e->vector];
  bool complete = e->vector && !v->lo && v->hi == width;
  return complete && level == 1 && e->n_stages == 2 && e->rounds.n && e->g.s->n_passes > 1;
}

// True if there are registers for it. Vectors that all points read, such as weights, are in a cache
// and leave the room to others.
static bool has_room(const cuda_emit *e, const cuda_kept *x) {
  int most = e->g.kernel->attr.n_to ? SUM_REGISTERS : ROW_REGISTERS;
  int n = e->kept_registers + x->elements;
  for (uint32_t i = 0; i < e->n_kept && !x->of_point; i++) {
    const cuda_kept *k = &e->kept[i];
    n += k->of_point && k->uses_before > 1 && !k->name ? k->elements : 0;
  }
  return n <= most;
}

// The array that keeps the vector base[index], which is read in the loops of a level; NULL: it is
// not kept. out_loaded: whether an earlier loop has loaded it.
static const char *kept_vector(cuda_emit *e, const char *base, const char *index, lm_type t,
                               int level, bool *out_loaded) {
  *out_loaded = false;
  if (*base != 'a' || lm_dtype_bytes(t.dtype) > 4 || !is_aligned(e, level))
    return NULL;
  cuda_kept *k = find(e, base, index, t);
  k->uses++;
  *out_loaded = k->name;
  if (k->uses_before < 2 || (!k->name && !has_room(e, k)))
    return NULL;
  if (!k->name) {
    k->name = lm_gen_temp_name(&e->g, "x");
    e->kept_registers += k->elements;
    lm_gen_statement(&e->g, 0, "%s %s[%d];", lm_gen_register_type(t.dtype), k->name, k->elements);
  }
  if (e->rounds.n == 1)
    return k->name;
  return lm_arena_printf(e->g.arena, "(%s + %s * %d)", k->name, cuda_round_index(e), k->width);
}

// True if an earlier loop over the pairs of a head has loaded the vector, which is a constant.
static bool is_loaded(cuda_emit *e, const char *base, const char *index) {
  const char *from = lm_arena_printf(e->g.arena, "%s + (%s)", base, index);
  for (uint32_t i = 0; i < e->n_loaded; i++)
    if (!strcmp(e->loaded[i].from, from))
      return true;
  LM_PUSH(e->g.arena, e->loaded, e->n_loaded, e->cap_loaded) = (cuda_loaded){.from = from};
  return false;
}

const char *cuda_vector_load(cuda_emit *e, const char *base, const char *index, lm_type t,
                             const lm_ix *at, int level) {
  int width = e->width[e->g.pass];
  bool loaded;
  const char *name = kept_vector(e, base, index, t, level, &loaded);
  if (loaded)
    return name;
  lm_buf note = {0};
  lm_gen_type_print(&e->g, t, &note);
  cuda_count_sectors(e, (lm_dtype)t.dtype, at, lm_ix_level(&e->g.vars, at), false);
  if (!name) {
    name = lm_gen_temp_name(&e->g, "x");
    lm_gen_statement(&e->g, level, "%s %s[%d];", lm_gen_register_type(t.dtype), name, width);
  }
  lm_gen_statement(&e->g, level, "lm_load%d_%s(%s, %s + (%s));  // %s", width,
                   lm_dtype_name(t.dtype), name, base, index, note.p);
  lm_buf_free(&note);
  // The address, and a conversion of each element from bf16. Of the two statements one is a
  // declaration. The loops of a GEMM's epilogue are unrolled: addresses are parts of instructions.
  double address = e->gemm ? -1 : 3;
  double casts = lm_dtype_is_half((lm_dtype)t.dtype) ? width : 0;
  if (e->gemm && is_loaded(e, base, index))
    lm_gen_count(&e->g, level, -2, NULL); // neither statement takes an instruction
  else
    lm_gen_count(&e->g, level, address + casts, NULL);
  return name;
}
