// attend_vjp.c - the backward pass of attention as C.
//
// A point is one point of the parallel axes that all results have. It loops over all tiles, tiles
// of s inside tiles of t:
//
//   p = e^(x - lse)   dp = do v   g = p (factor dp - sum do o)
//   dv += p do; with the region's derivative ds of g: dq += ds k, dk += ds q
//
// Results over t are accumulated in buffers over all of s, and stored if no other point of the
// parallel axes has a part of them. Other results are added to memory that belongs to the point
// alone, tile by tile in order, so the bits do not depend on threads. Those in bf16 are summed in
// f32 in the workspace and rounded when the point is done.
#include <string.h>
#include "codegen/cpu/attend.h"

static lm_type result_type(const cpu_attend *e, int i) {
  return e->f.op->out[e->f.sums[i].result]->type;
}
static int64_t row_stride_of(const cpu_attend *e, const lm_attend_sum *s) {
  return s->other < 0 ? 1 : e->operand[s->other].row_stride;
}

// ---- results in memory

// True if result i has a row for each t at each point of the parallel axes: a tile of t is the only
// one that has a part of these rows, and stores them.
static bool is_stored(const cpu_attend *e, int i) {
  const lm_attend_sum *s = &e->f.sums[i];
  lm_type t = result_type(e, i);
  bool all = s->rows && s->other >= 0;
  for (int k = 0; k < e->f.parallel.n; k++)
    all &= lm_type_find(t, e->f.parallel.axis[k]) >= 0;
  return all;
}

static bool rounded(const cpu_attend *e, int i) {
  return lm_dtype_is_half(result_type(e, i).dtype);
}

bool cpu_attend_sums_apart(const cpu_attend *e, uint32_t result) {
  for (int i = 0; e->f.vjp && i < e->f.n_sums; i++)
    if (e->f.sums[i].result == result)
      return rounded(e, i) && !is_stored(e, i);
  return false;
}

// The memory in which result i is summed.
static const char *memory(cpu_attend *e, int i) {
  return lm_arena_printf(e->g.arena, "%c%u", rounded(e, i) ? 'f' : 'r', e->f.sums[i].result);
}

static bool is_shared(const cpu_attend *e, lm_axis a) {
  for (int i = 0; i < e->f.shared.n; i++)
    if (e->f.shared.axis[i] == a)
      return true;
  return false;
}

// The elements of a result at this point: `count` rows of `width` elements, which are `stride`
// apart, the first one at `offset`, for each iteration of `loops`.
typedef struct point_rows {
  const char *loops, *offset, *count;
  long long width, stride;
} point_rows;

// Rows are as long as inner axes, whose extents are constants, belong to the point as a whole. The
// next axis out counts them.
static point_rows point_rows_of(cpu_attend *e, int i) {
  lm_type t = result_type(e, i);
  point_rows p = {
      .count = "1",
      .width = 1,
      .stride = 1,
  };
  lm_buf loops = {0}, at = {0};
  long long stride = 1;
  bool inside = true, counted = false;
  for (int k = t.rank - 1; k >= 0; k--) {
    const lm_axis_info *a = &e->f.m->axes[t.axis[k]];
    const char *coordinate = NULL, *size = lm_gen_extent(&e->g, a->size, a->dyn, 1);
    if (is_shared(e, t.axis[k])) {
      coordinate = lm_attend_coordinate(&e->values, t.axis[k]);
    } else if (inside && !a->dyn) {
      p.width *= a->size;
    } else if (!counted) {
      p.count = size;
      p.stride = stride;
      counted = true;
    } else {
      coordinate = lm_arena_printf(e->g.arena, "z%d", k);
      lm_buf_printf(&loops, "for (int64_t %s = 0; %s < %s; %s++)\n", coordinate, coordinate, size,
                    coordinate);
    }
    if (coordinate)
      lm_buf_printf(&at, "%s * %lld + ", coordinate, stride);
    inside &= !is_shared(e, t.axis[k]) && !a->dyn;
    stride *= a->size;
  }
  lm_buf_puts(&at, "0");
  p.loops = lm_gen_take(&e->g, &loops);
  p.offset = lm_gen_take(&e->g, &at);
  return p;
}

static void zero(cpu_attend *e, lm_buf *b, int i) {
  point_rows p = point_rows_of(e, i);
  lm_buf_printf(b, "%slm_rows_clear(%s, %lld, %s + %s, %lld);\n", p.loops, p.count, p.width,
                memory(e, i), p.offset, p.stride);
}

// Rounds the sums of result i at this point.
static void store(cpu_attend *e, lm_buf *b, int i) {
  point_rows p = point_rows_of(e, i);
  lm_dtype t = (lm_dtype)result_type(e, i).dtype;
  const char *sums = memory(e, i);
  unsigned result = e->f.sums[i].result;
  if (t == LM_BF16) {
    lm_buf_printf(b, "%slm_rows_round(%s, %lld, %s + %s, %lld, r%u + %s, %lld);\n", p.loops,
                  p.count, p.width, sums, p.offset, p.stride, result, p.offset, p.stride);
    return;
  }
  const char *at = lm_arena_printf(e->g.arena, "%s + i * %lld + j", p.offset, p.stride);
  const char *value = lm_arena_printf(e->g.arena, "%s[%s]", sums, at);
  lm_buf_printf(b, "%sfor (int64_t i = 0; i < %s; i++)\n", p.loops, p.count);
  lm_buf_printf(b, "for (int64_t j = 0; j < %lld; j++)\n", p.width);
  lm_buf_printf(b, "r%u[%s] = %s;\n", result, at, lm_gen_store_text(e->g.arena, t, value));
}

// The distance of the rows of result i that lm_rows_add accepts; 0: it does not.
static int64_t rows_apart(const cpu_attend *e, int i) {
  const lm_attend_sum *s = &e->f.sums[i];
  lm_axis a = s->rows ? e->f.t : e->f.s;
  return s->other < 0 ? 0 : cpu_attend_row_stride(e, result_type(e, i), &s->channels, a);
}

// "f0 + ..., 128": the rows of result i that this tile adds to; "0, 0" if rows_apart is 0.
static const char *rows_of_tile(cpu_attend *e, int i) {
  lm_buf at = {0};
  if (!rows_apart(e, i))
    return "0, 0";
  cpu_attend_offset(e, &at, result_type(e, i), "t0", "s0");
  return lm_arena_printf(e->g.arena, "%s + %s, %lld", memory(e, i), lm_gen_take(&e->g, &at),
                         (long long)rows_apart(e, i));
}

// Adds `from`, the part of result i from one tile, to memory.
static void add(cpu_attend *e, lm_buf *b, int i, const char *from) {
  const lm_attend_sum *s = &e->f.sums[i];
  lm_type t = result_type(e, i);
  const char *positions = s->rows ? "rows" : "cols";
  lm_buf at = {0};
  if (rows_apart(e, i)) {
    lm_buf_printf(b, "lm_rows_add(%s, %lld, %s, %lld, %s);\n", positions,
                  (long long)s->channels.size, from, (long long)row_stride_of(e, s),
                  rows_of_tile(e, i));
    return;
  }
  lm_buf_printf(b, "for (int64_t i = 0; i < %s; i++) {\n", positions);
  const char *flat = cpu_attend_channel_loops(e, b, &s->channels);
  cpu_attend_offset(e, &at, t, "t0 + i", "s0 + i");
  cpu_attend_channel_offset(e, &at, t, &s->channels);
  lm_buf_printf(b, "%s[%s] += %s[i * %lld + %s];\n", memory(e, i), lm_gen_take(&e->g, &at), from,
                (long long)row_stride_of(e, s), flat);
  cpu_attend_close(b, s->channels.n + 1);
}

// ---- a tile

// The number of the tile that sum i reads: sums of the same value share a tile.
static int tile_of(const cpu_attend *e, int i) {
  int k = 0;
  while (e->f.sums[k].tile != e->f.sums[i].tile)
    k++;
  return k;
}

// Computes p and g, and from them the tiles of all sums.
static void element_loops(cpu_attend *e, lm_buf *b, bool masked) {
  long long rows = e->rows;
  const char *score = lm_attend_value(&e->values, e->f.score);
  const char *mask = masked ? lm_attend_value(&e->values, e->f.mask) : NULL;
  const char *factor = e->f.factor ? lm_attend_value(&e->values, e->f.factor) : "1.0f";
  lm_buf *t = &e->tile;
  if (mask)
    lm_buf_printf(t, "const float y = %s ? %s : -1e30f;\n", mask, score);
  else
    lm_buf_printf(t, "const float y = %s;\n", score);
  lm_buf_puts(t, "const float p = lm_exp_low(y - lse[m]) * part[m];\n");
  if (e->f.factor)
    lm_buf_printf(t, "const float w = p * %s, dp = d[n * %lld + m] * %s;\n", factor, rows, factor);
  else
    lm_buf_printf(t, "const float w = p, dp = d[n * %lld + m];\n", rows);
  if (mask)
    lm_buf_printf(t, "const float g = %s ? p * (dp - delta[m]) : 0.0f;\n", mask);
  else
    lm_buf_puts(t, "const float g = p * (dp - delta[m]);\n");
  lm_buf_printf(t, "z0[n * %lld + m] = w;\n", rows);
  e->values.text[e->f.op->body->args[0]->id] = "g";
  for (int i = 1; i < e->f.n_sums; i++) {
    if (tile_of(e, i) != i)
      continue;
    const char *text = lm_attend_value(&e->values, e->f.sums[i].tile);
    lm_buf_printf(t, "z%d[n * %lld + m] = %s;\n", i, rows, text);
  }
  cpu_attend_loops(e, b, "");
}

static void elements(cpu_attend *e, lm_buf *b) {
  bool both = e->f.mask && e->f.tile_t;
  if (both)
    lm_buf_puts(b, "if (seen == rows * cols) {\n");
  if (both)
    element_loops(e, b, false);
  if (both)
    lm_buf_puts(b, "} else {\n");
  element_loops(e, b, e->f.mask);
  if (both)
    lm_buf_puts(b, "}\n");
}

// Sums of a tile's elements alone.
static void plain_sum(cpu_attend *e, lm_buf *b, const lm_attend_sum *s, const char *z,
                      const char *c) {
  long long rows = e->rows;
  lm_buf_puts(b, "for (int64_t n = 0; n < cols; n++) {\n");
  if (s->rows) {
    lm_buf_printf(b, "for (int64_t m = 0; m < %lld; m++) %s[m] += %s[n * %lld + m];\n", rows, c, z,
                  rows);
  } else {
    lm_buf_printf(b, "%s[n] = 0;\n", c);
    lm_buf_printf(b, "for (int64_t m = 0; m < rows; m++) %s[n] += %s[n * %lld + m];\n", c, z, rows);
  }
  cpu_attend_close(b, 1);
}

// Adds this tile to result i. A result over t accumulates in c<i> and is stored after all tiles of
// s.
static void sum(cpu_attend *e, lm_buf *b, int i) {
  const lm_attend_sum *s = &e->f.sums[i];
  const char *z = lm_arena_printf(e->g.arena, "z%d", tile_of(e, i));
  const char *c = lm_arena_printf(e->g.arena, "c%d", i);
  if (s->other < 0) {
    plain_sum(e, b, s, z, c);
  } else if (s->rows) {
    const char *type = e->operand[s->other].bf16 ? "lm_operand" : "float";
    const char *form = cpu_attend_form_name(e, s->other, CPU_LHS_TRANSPOSED);
    const char *list = lm_arena_printf(e->g.arena, "(const %s *const[]){%s}", type, form);
    cpu_attend_sum_s(e, b, s->other, list, "cols", z, c);
  } else {
    cpu_attend_call(e, b, "lm_sum_t", s->other);
    lm_buf_printf(b, "cols, rows, %lld, %lld, %s, ", (long long)e->rows,
                  (long long)s->channels.size, z);
    lm_buf_printf(b, "%s, %lld, %s, %s);\n", cpu_attend_form_name(e, s->other, CPU_INTERLEAVED),
                  (long long)row_stride_of(e, s), c, rows_of_tile(e, i));
  }
  if (!s->rows && !rows_apart(e, i))
    add(e, b, i, c);
}

static void tile_backward(cpu_attend *e, lm_buf *b) {
  cpu_attend_map_check(e, b);
  cpu_attend_fills(e, b, false);
  cpu_attend_dots(e, b);
  cpu_attend_dot(e, b, LM_ATTEND_V, LM_ATTEND_DO, "d");
  elements(e, b);
  for (int i = 0; i < e->f.n_sums; i++)
    sum(e, b, i);
}

// ---- a tile of t

// The sum of do * o, unless it is an operand.
static void delta_load(cpu_attend *e, lm_buf *b) {
  lm_type o = e->f.op->in[LM_ATTEND_O]->type;
  lm_dtype t = (lm_dtype)o.dtype;
  lm_buf at = {0};
  if (lm_attend_has_delta(e->f.op)) {
    cpu_attend_offset(e, &at, o, "t0 + i", "");
    lm_buf_printf(b, "delta[i] = a%d[%s];\n", LM_ATTEND_O, lm_gen_take(&e->g, &at));
    return;
  }
  cpu_attend_offset(e, &at, o, "t0 + i", "");
  cpu_attend_channel_offset(e, &at, o, &e->f.v_channels);
  const char *offset = lm_gen_take(&e->g, &at);
  const char *x =
      lm_gen_load_text(e->g.arena, t, lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_O, offset));
  const char *y =
      lm_gen_load_text(e->g.arena, t, lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_DO, offset));
  lm_buf_puts(b, "LM_PARTIALS_OF(float, sum, 0.0f)\n");
  cpu_attend_channel_sum(e, b, &e->f.v_channels,
                         lm_arena_printf(e->g.arena, "sum[lane] += %s * %s;\n", x, y));
  lm_buf_puts(b, "delta[i] = lm_sum_float(sum);\n");
}

static void row_scalars_load(cpu_attend *e, lm_buf *b) {
  lm_type lse = e->f.op->in[LM_ATTEND_LSE]->type;
  const lm_axis_info *s = &e->f.m->axes[e->f.s];
  lm_buf at = {0};
  cpu_attend_offset(e, &at, lse, "t0 + i", "");
  lm_buf_printf(b, "for (int64_t i = 0; i < rows; i++) {\nlse[i] = a%d[%s];\n", LM_ATTEND_LSE,
                lm_gen_take(&e->g, &at));
  lm_buf_printf(b, "part[i] = lse[i] < -1e29f ? 1.0f / (float)%s : 1.0f;\n",
                lm_gen_extent(&e->g, s->size, s->dyn, 1));
  delta_load(e, b);
  lm_buf_puts(b, "}\n");
}

static int64_t row_sums(const cpu_attend *e, const lm_attend_sum *s) {
  return s->other < 0 ? e->rows : cpu_attend_sums_elements(e, s->other);
}

static void row_loads(cpu_attend *e, lm_buf *b) {
  row_scalars_load(e, b);
  cpu_attend_rows(e, b);
  cpu_attend_fills(e, b, true);
  for (int i = 0; i < e->f.n_sums; i++)
    if (e->f.sums[i].rows)
      lm_buf_printf(b, "for (int64_t j = 0; j < %lld; j++) c%d[j] = 0;\n",
                    (long long)row_sums(e, &e->f.sums[i]), i);
}

static void row_results(cpu_attend *e, lm_buf *b) {
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *s = &e->f.sums[i];
    const char *c = lm_arena_printf(e->g.arena, "c%d", i);
    if (is_stored(e, i))
      cpu_attend_sums_store(e, b, c, s->other, s->result);
    else if (s->rows)
      add(e, b, i, s->other < 0 ? c : cpu_attend_untranspose(e, b, c, s->other));
  }
}

static void buffers(cpu_attend *e) {
  static const char *const names[] = {"lse", "part", "delta"};
  int64_t elements = e->rows * e->cols;
  for (size_t i = 0; i < LM_COUNT(names); i++)
    cpu_attend_buffer(e, names[i], -1, e->rows);
  cpu_attend_buffer(e, "d", -1, elements);
  for (int i = 0; i < e->f.n_dots; i++)
    cpu_attend_buffer(e, "p", i, elements);
  for (int i = 0; i < e->f.n_sums; i++) {
    if (tile_of(e, i) == i)
      cpu_attend_buffer(e, "z", i, elements);
    const lm_attend_sum *s = &e->f.sums[i];
    cpu_attend_buffer(e, "c", i, s->rows ? row_sums(e, s) : e->cols * row_stride_of(e, s));
  }
}

static int inner_loops(cpu_attend *e, lm_buf *b) {
  int n = 0;
  for (int i = 0; i < e->f.parallel.n; i++) {
    bool fixed = false;
    for (int k = 0; k < e->f.shared.n; k++)
      fixed |= e->f.shared.axis[k] == e->f.parallel.axis[i];
    if (fixed)
      continue;
    const lm_axis_info *a = &e->f.m->axes[e->f.parallel.axis[i]];
    const char *name = lm_attend_coordinate(&e->values, e->f.parallel.axis[i]);
    lm_buf_printf(b, "for (int64_t %s = 0; %s < %s; %s++) {\n", name, name,
                  lm_gen_extent(&e->g, a->size, a->dyn, 1), name);
    n++;
  }
  return n;
}

void cpu_attend_backward(cpu_attend *e, lm_buf *b) {
  const lm_axis_info *at = &e->f.m->axes[e->f.t];
  const lm_axis_info *as = &e->f.m->axes[e->f.s];
  const char *t = lm_gen_extent(&e->g, at->size, at->dyn, 1);
  const char *s = lm_gen_extent(&e->g, as->size, as->dyn, 1);
  long long rows = e->rows;
  long long cols = e->cols;
  lm_buf tile = {0};
  buffers(e);
  tile_backward(e, &tile);
  for (int i = 0; i < e->f.n_sums; i++)
    if (!is_stored(e, i))
      zero(e, b, i);
  int loops = inner_loops(e, b);
  lm_buf_add(b, e->point.p, e->point.n);
  lm_buf_printf(b, "for (int64_t t0 = 0; t0 < %s; t0 += %lld) {\nconst int64_t rows = %s;\n", t,
                rows, cpu_attend_tile_extent(e, true));
  row_loads(e, b);
  lm_buf_printf(b, "for (int64_t s0 = 0; s0 < %s; s0 += %lld) {\nconst int64_t cols = %s;\n", s,
                cols, cpu_attend_tile_extent(e, false));
  lm_buf_add(b, tile.p, tile.n);
  lm_buf_puts(b, "}\n");
  row_results(e, b);
  cpu_attend_close(b, loops + 1);
  for (int i = 0; i < e->f.n_sums; i++)
    if (rounded(e, i) && !is_stored(e, i))
      store(e, b, i);
  lm_buf_free(&tile);
}
