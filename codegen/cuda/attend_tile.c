// attend_tile.c - the elements of an attend's region as CUDA C, each operation at the level of the
// axes that it depends on; and tiles of operands in shared memory.
#include <string.h>
#include "codegen/cuda/attend.h"

bool cuda_attend_has(lm_type t, lm_axis a) {
  return lm_type_find(t, a) >= 0;
}

const char *cuda_attend_extent(cuda_attend *e, lm_axis a) {
  return lm_gen_extent(&e->g, lm_axis_size(e->f.m, a), e->f.m->axes[a].dyn, 1);
}

int64_t cuda_attend_widest(const lm_attend_spec *f) {
  int64_t n = f->v_channels.size;
  for (int i = 0; i < f->n_dots; i++)
    if (f->dots[i].over.size > n)
      n = f->dots[i].over.size;
  return n;
}

// ---- offsets in memory

static const int64_t *strides_of(cuda_attend *e, lm_type t, const int64_t *stride) {
  int64_t *dense = LM_NEW_N(e->g.arena, int64_t, LM_RANK);
  int64_t n = 1;
  if (stride)
    return stride;
  for (int i = t.rank - 1; i >= 0; i--) {
    dense[i] = n;
    n *= lm_axis_size(e->f.m, t.axis[i]);
  }
  return dense;
}

void cuda_attend_offset(cuda_attend *e, lm_buf *b, lm_type t, const int64_t *stride,
                        const char *at_row, const char *at_col) {
  stride = strides_of(e, t, stride);
  lm_buf_puts(b, "0");
  for (int i = 0; i < t.rank; i++) {
    lm_axis a = t.axis[i];
    if (!cuda_attend_has(e->f.space, a))
      continue;
    const char *at = a == e->values.row   ? at_row
                     : a == e->values.col ? at_col
                                          : lm_attend_coordinate(&e->values, a);
    lm_buf_printf(b, " + %s * %lld", at, (long long)stride[i]);
  }
}

void cuda_attend_channel_offset(cuda_attend *e, lm_buf *b, lm_type t, const int64_t *stride,
                                const lm_attend_axes *channels, const char *flat) {
  int64_t below = 1;
  stride = strides_of(e, t, stride);
  for (int k = channels->n - 1; k >= 0; k--) {
    int64_t size = lm_axis_size(e->f.m, channels->axis[k]);
    int64_t apart = stride[lm_type_find(t, channels->axis[k])];
    if (channels->n == 1)
      lm_buf_printf(b, " + %s * %lld", flat, (long long)apart);
    else
      lm_buf_printf(b, " + %s / %lld %% %lld * %lld", flat, (long long)below, (long long)size,
                    (long long)apart);
    below *= size;
  }
}

// ---- statements

static const char *statement(void *user, lm_attend_level at, lm_dtype t, const char *text) {
  cuda_attend *e = user;
  const char *type = lm_gen_register_type(t);
  const char *name = lm_arena_printf(e->g.arena, "%c%d", "uhkv"[at], e -> values.n_names++);
  if (at == LM_ATTEND_ROW) {
    lm_buf_printf(&e->declare, "%s %s[2];\n", type, name);
    lm_buf_printf(&e->by_row, "%s[r] = %s;\n", name, text);
    return lm_arena_printf(e->g.arena, "%s[r]", name);
  }
  lm_buf_printf(at == LM_ATTEND_ONCE  ? &e->point
                : at == LM_ATTEND_COL ? &e->by_col
                                      : &e->by_element,
                "const %s %s = %s;\n", type, name, text);
  return name;
}

// True if tiles of `positions` positions divide the axis.
static bool filled(const cuda_attend *e, lm_axis a, int positions) {
  return !e->f.m->axes[a].dyn && lm_axis_size(e->f.m, a) % positions == 0;
}

// Declare the row and the column of an element; an element beyond the axis gets the axis's last
// index.
static void row_declare(cuda_attend *e, lm_buf *b) {
  lm_buf_printf(b,
                filled(e, e->values.row, e->rows)
                    ? "const lm_at row = row0 + lm_frag_row(r);\n(void)row;\n"
                    : "const lm_at row = lm_min_index(row0 + lm_frag_row(r), %s);\n(void)row;\n",
                cuda_attend_extent(e, e->values.row));
}
static void col_declare(cuda_attend *e, lm_buf *b) {
  lm_buf_printf(b,
                filled(e, e->values.col, e->cols)
                    ? "const lm_at col = col0 + lm_frag_col(n, c);\n(void)col;\n"
                    : "const lm_at col = lm_min_index(col0 + lm_frag_col(n, c), %s);\n(void)col;\n",
                cuda_attend_extent(e, e->values.col));
}

void cuda_attend_rows(cuda_attend *e, lm_buf *b) {
  if (!e->by_row.n)
    return;
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n");
  row_declare(e, b);
  lm_buf_add(b, e->by_row.p, e->by_row.n);
  lm_buf_puts(b, "}\n");
  e->by_row.n = 0;
}

void cuda_attend_loops(cuda_attend *e, lm_buf *b, const char *body) {
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t n = 0; n < %d; n++) {\n", e->cols / 8);
  if (e->by_pair.n)
    lm_buf_add(b, e->by_pair.p, e->by_pair.n);
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\n");
  col_declare(e, b);
  if (e->by_col.n)
    lm_buf_add(b, e->by_col.p, e->by_col.n);
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n");
  row_declare(e, b);
  if (e->by_element.n)
    lm_buf_add(b, e->by_element.p, e->by_element.n);
  lm_buf_puts(b, body);
  lm_buf_puts(b, "}\n}\n}\n");
  lm_attend_values_end(&e->values);
  e->by_pair.n = e->by_col.n = e->by_element.n = 0;
}

// ---- values

// True if two neighbouring columns are neighbours in memory, the first at an even index, and no
// column is beyond the axis.
static bool in_pairs(const cuda_attend *e, lm_type t) {
  return filled(e, e->values.col, e->cols) && (t.dtype == LM_F32 || t.dtype == LM_INT) && t.rank &&
         t.axis[t.rank - 1] == e->values.col;
}

static const char *load_pair(cuda_attend *e, const lm_value *arg) {
  const char *name = lm_arena_printf(e->g.arena, "k%d", e->values.n_names++);
  const char *kind = lm_dtype_name(arg->type.dtype);
  lm_buf b = {0};
  cuda_attend_offset(e, &b, arg->type, NULL, "row", "(col0 + lm_frag_col(n, 0))");
  lm_buf_printf(&e->by_pair, "%s %s[2];\nlm_load2_%s(%s, a%d + (%s));\n",
                lm_gen_register_type((lm_dtype)arg->type.dtype), name, kind, name,
                lm_attend_operand(&e->f, arg), lm_gen_take(&e->g, &b));
  return lm_arena_printf(e->g.arena, "%s[c]", name);
}

static const char *operand_load(void *user, const lm_value *arg, lm_attend_level at) {
  cuda_attend *e = user;
  lm_buf b = {0};
  if (at == LM_ATTEND_COL && in_pairs(e, arg->type))
    return load_pair(e, arg);
  lm_buf_printf(&b, "a%d[", lm_attend_operand(&e->f, arg));
  cuda_attend_offset(e, &b, arg->type, e->stride[lm_attend_operand(&e->f, arg)], "row", "col");
  lm_buf_puts(&b, "]");
  return statement(e, at, (lm_dtype)arg->type.dtype,
                   lm_gen_load_text(e->g.arena, (lm_dtype)arg->type.dtype, lm_gen_take(&e->g, &b)));
}

static const char *dot_element(void *user, int k) {
  const cuda_attend *e = user;
  return lm_arena_printf(e->g.arena, "p%d[n][2 * r + c]", k);
}

void cuda_attend_values(cuda_attend *e) {
  e->values = (lm_attend_values){
      .g = &e->g,
      .f = &e->f,
      .at_row = "row",
      .at_col = "col",
      .text = LM_NEW_N(e->g.arena, const char *, e->g.m->n_values + 1),
      .user = e,
      .statement = statement,
      .dot = dot_element,
      .operand = operand_load,
  };
}

static bool constant(const lm_value *v, double *out) {
  while (v->def && v->def->code == LM_OP_EXPAND)
    v = v->def->in[0];
  if (v->def && v->def->code == LM_OP_CONST)
    *out = v->def->attr.num;
  return v->def && v->def->code == LM_OP_CONST;
}

// Only if -1e30 / c stays far from the limits of f32.
const lm_value *cuda_attend_unscaled(const lm_value *v, double *out_c) {
  *out_c = 1;
  if (!v->def || v->def->code != LM_OP_MUL || v->type.dtype != LM_F32)
    return v;
  for (int i = 0; i < 2; i++)
    if (constant(v->def->in[i], out_c) && *out_c > 1e-4 && *out_c < 1e4)
      return v->def->in[1 - i];
  *out_c = 1;
  return v;
}

const char *cuda_attend_inside(cuda_attend *e) {
  if (filled(e, e->values.col, e->cols))
    return NULL;
  return lm_arena_printf(e->g.arena, "col0 + lm_frag_col(n, c) < %s",
                         cuda_attend_extent(e, e->values.col));
}

// ---- tiles

int64_t cuda_attend_width(int64_t n) {
  return (n + 15) / 16 * 16;
}

// Row pitch that makes rows begin in different banks.
int64_t cuda_attend_pitch(const cuda_attend *e, int64_t n) {
  return cuda_attend_width(n) + (e->half ? 8 : 4);
}

const char *cuda_attend_pool(cuda_attend *e, const char *type, int bytes, const char *prefix,
                             int number, int64_t n) {
  const char *name = number < 0 ? prefix : lm_arena_printf(e->g.arena, "%s%d", prefix, number);
  lm_buf_printf(&e->declare, "LM_POOL(%s, %s, %lld, %lld);\n", type, name, (long long)e->pool,
                (long long)n);
  e->pool += (n * bytes + 127) / 128 * 128;
  if (e->pool > e->max_pool)
    e->max_pool = e->pool;
  return name;
}

bool cuda_attend_in_runs(lm_type t, const lm_attend_axes *channels, int n) {
  if (channels->n > t.rank || channels->size % n)
    return false;
  for (int i = 0; i < channels->n; i++)
    if (t.axis[t.rank - channels->n + i] != channels->axis[i])
      return false;
  return true;
}

static void fill_rows(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *channels,
                      const char *origin, const char *extent, int positions) {
  long long width = cuda_attend_width(channels->size);
  long long pitch = cuda_attend_pitch(e, channels->size);
  lm_type t = e->f.op->in[k]->type;
  lm_buf at = {0};
  cuda_attend_offset(e, &at, t, e->stride[k], "at", "at");
  lm_buf_printf(b, "for (int32_t i = lm_thread(); i < %lld; i += %d) {\n", positions * width / 8,
                2 * e->rows);
  lm_buf_printf(b,
                "const int32_t j = i / %lld, k = i %% %lld * 8;\nconst lm_at at = lm_min_index(%s "
                "+ j, %s);\n",
                width / 8, width / 8, origin, extent);
  const char *pad = width > channels->size
                        ? lm_arena_printf(e->g.arena, " && k < %lld", (long long)channels->size)
                        : "";
  const char *column = width > channels->size ? lm_arena_printf(e->g.arena, "(k < %lld ? k : 0)",
                                                                (long long)channels->size)
                                              : "k";
  lm_buf_printf(b, "lm_copy_async(b%u, j * %lld + k, a%u + (%s + %s), %s + j < %s%s);\n}\n", k,
                pitch, k, lm_gen_take(&e->g, &at), column, origin, extent, pad);
}

static void fill_elements(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *channels,
                          const char *origin, const char *extent, int positions) {
  long long width = cuda_attend_width(channels->size);
  long long pitch = cuda_attend_pitch(e, channels->size);
  lm_type t = e->f.op->in[k]->type;
  lm_buf at = {0};
  cuda_attend_offset(e, &at, t, e->stride[k], "at", "at");
  cuda_attend_channel_offset(e, &at, t, e->stride[k], channels, "k");
  const char *from = lm_arena_printf(e->g.arena, "a%u[%s]", k, lm_gen_take(&e->g, &at));
  lm_buf_printf(b, "for (int32_t i = lm_thread(); i < %lld; i += %d) {\n", positions * width,
                2 * e->rows);
  lm_buf_printf(b, "const int32_t j = i / %lld, k = i %% %lld;\nconst lm_at at = %s + j;\n", width,
                width, origin);
  lm_buf_printf(b, "lm_put(b%u, j * %lld + k, at < %s && k < %lld ? %s : 0);\n}\n", k, pitch,
                extent, (long long)channels->size,
                e->half ? from : lm_gen_load_text(e->g.arena, (lm_dtype)t.dtype, from));
}

void cuda_attend_fill(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *channels) {
  lm_type t = e->f.op->in[k]->type;
  bool row = cuda_attend_has(t, e->values.row);
  int positions = row ? e->rows : e->cols;
  const char *origin = row ? "row0" : "col0";
  const char *extent = cuda_attend_extent(e, row ? e->values.row : e->values.col);
  if (e->has_tile[k])
    return;
  e->has_tile[k] = true;
  cuda_attend_pool(e, e->half ? "uint16_t" : "float", e->half ? 2 : 4, "b", (int)k,
                   positions * cuda_attend_pitch(e, channels->size));
  if (e->half && cuda_attend_in_runs(t, channels, 8))
    fill_rows(e, b, k, channels, origin, extent, positions);
  else
    fill_elements(e, b, k, channels, origin, extent, positions);
}

void cuda_attend_fills_wait(cuda_attend *e, lm_buf *b) {
  if (e->half)
    lm_buf_puts(b, "lm_copies_commit();\nlm_copies_wait(0);\n");
  lm_buf_puts(b, "lm_barrier();\n");
}

const char *cuda_attend_rows_at(cuda_attend *e, uint32_t k, int64_t width) {
  return e->slots > 1
             ? lm_arena_printf(e->g.arena, "b%u + slot * %lld", k, (long long)(e->rows * width))
             : lm_arena_printf(e->g.arena, "b%u", k);
}

void cuda_attend_dot(cuda_attend *e, lm_buf *b, const char *to, uint32_t x, uint32_t y,
                     int64_t width) {
  if (e->warpgroups && e->held[x]) {
    lm_buf_printf(b, "float %s[%d][4];\nLM_GROUP_DOT_HELD(%s, %d, f%u, b%u + stage * %lld, %lld)\n",
                  to, e->cols / 8, to, e->cols, x, y, e->cols * (long long)width, (long long)width);
    return;
  }
  if (e->warpgroups) {
    lm_buf_printf(b,
                  "float %s[%d][4];\nLM_GROUP_DOT(%s, %d, %s, group * 64, %d, b%u + stage * %lld, "
                  "%lld)\n",
                  to, e->cols / 8, to, e->cols, cuda_attend_rows_at(e, x, width),
                  CUDA_WARPGROUP_ROWS, y, e->cols * (long long)width, (long long)width);
    return;
  }
  lm_buf_printf(b, "float %s[%d][4] = {{0}};\n", to, e->cols / 8);
  lm_buf_printf(b, "LM_TILE_DOT_%s(%s, %d, b%u, lm_thread() / 32 * 16, b%u, %lld, %lld)\n",
                e->gemm_kind, to, e->cols / 8, x, y, (long long)cuda_attend_width(width),
                (long long)cuda_attend_pitch(e, width));
}

void cuda_attend_gemms_wait(cuda_attend *e, lm_buf *b, int left, int n, const char *const *to,
                            const int64_t *width) {
  if (!e->warpgroups || !n)
    return;
  lm_buf_printf(b, "lm_wgmma_wait(%d);\n", left);
  for (int i = 0; i < n; i++)
    lm_buf_printf(b, "lm_wgmma_settle(%s, %lld);\n", to[i], (long long)width[i] / 8);
}

void cuda_attend_pack(cuda_attend *e, lm_buf *b, const char *z) {
  if (e->warpgroups)
    lm_buf_printf(b, "uint32_t %s_bf16[%d][4];\nLM_GROUP_PACK(%s_bf16, %s, %d)\n", z, e->cols / 16,
                  z, z, e->cols);
}

void cuda_attend_weighted(cuda_attend *e, lm_buf *b, const char *to, const char *z, uint32_t k,
                          int64_t width) {
  if (e->warpgroups) {
    lm_buf_printf(b, "LM_GROUP_WEIGHTED(%s, %lld, %s_bf16, %d, b%u + stage * %lld)\n", to,
                  (long long)width, z, e->cols, k, e->cols * (long long)width);
    return;
  }
  lm_buf_printf(b, "LM_TILE_WEIGHTED_%s(%s, %lld, %s, %d, b%u, %lld)\n", e->gemm_kind, to,
                (long long)cuda_attend_width(width) / 8, z, e->cols / 8, k,
                (long long)cuda_attend_pitch(e, width));
}

// ---- results

// Stores two neighbouring columns at a time if they are neighbours in memory.
void cuda_attend_row_store(cuda_attend *e, lm_buf *b, uint32_t i, const lm_attend_axes *channels,
                           const char *x, const char *scale, const char *inside) {
  lm_type t = e->f.op->out[i]->type;
  bool pairs =
      cuda_attend_in_runs(t, channels, 2) && (lm_dtype_is_half(t.dtype) || t.dtype == LM_F32);
  lm_buf at = {0};
  cuda_attend_offset(e, &at, t, e->result_stride[i], "row", "row");
  if (pairs)
    lm_buf_puts(&at, " + j");
  else
    cuda_attend_channel_offset(e, &at, t, e->result_stride[i], channels, "j");
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++) {\n",
                (long long)cuda_attend_width(channels->size) / 8);
  if (pairs) {
    lm_buf_printf(b,
                  "const int32_t j = lm_frag_col(i, 0);\nconst float y[2] = {%s[i][2 * r]%s, "
                  "%s[i][2 * r + 1]%s};\n",
                  x, scale, x, scale);
    lm_buf_printf(b, "if (%s && j < %lld) lm_store2_%s(r%u + (%s), y);\n}\n", inside,
                  (long long)channels->size, lm_dtype_name(t.dtype), i, lm_gen_take(&e->g, &at));
    return;
  }
  const char *value = lm_gen_store_text(
      e->g.arena, (lm_dtype)t.dtype, lm_arena_printf(e->g.arena, "%s[i][2 * r + c]%s", x, scale));
  lm_buf_puts(
      b, "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\nconst int32_t j = lm_frag_col(i, c);\n");
  lm_buf_printf(b, "if (%s && j < %lld) r%u[%s] = %s;\n}\n}\n", inside, (long long)channels->size,
                i, lm_gen_take(&e->g, &at), value);
}

// ---- the block map

// True if the kernel's tiles are multiples of the map's tiles, or the reverse.
static bool tiles_nest(int64_t map, int ours) {
  return map < ours ? ours % map == 0 : map % ours == 0;
}

// some: a score is not masked; full: no score is masked. Each lane of a warp reads one entry of the
// map.
void cuda_attend_map_check(cuda_attend *e, lm_buf *b) {
  int64_t tile_row = e->values.row == e->f.t ? e->f.tile_t : e->f.tile_s;
  int64_t tile_col = e->values.row == e->f.t ? e->f.tile_s : e->f.tile_t;
  if (!e->f.tile_t || !tiles_nest(tile_row, e->rows) || !tiles_nest(tile_col, e->cols)) {
    lm_buf_puts(b, "const bool full = false;\n(void)full;\n");
    return;
  }
  lm_attend_map_layout map = lm_attend_map_layout_of(&e->f);
  int64_t n_row = tile_row < e->rows ? e->rows / tile_row : 1;
  int64_t n_col = tile_col < e->cols ? e->cols / tile_col : 1;
  const char *row = cuda_attend_extent(e, e->values.row);
  const char *col = cuda_attend_extent(e, e->values.col);
  bool flip = e->values.row != e->f.t;
  lm_buf_printf(b,
                "bool some = false, part = false;\nfor (int32_t i = lm_thread() %% 32; i < %lld; i "
                "+= 32) {\n",
                (long long)(n_row * n_col));
  lm_buf_printf(b, "const lm_at r = row0 + i / %lld * %lld, c = col0 + i %% %lld * %lld;\n",
                (long long)n_col, (long long)tile_row, (long long)n_col, (long long)tile_col);
  lm_buf_printf(b, "if (r >= %s || c >= %s) continue;\nconst int32_t seen = a%u[0", row, col,
                map.operand);
  for (int i = 0; i < map.n; i++)
    lm_buf_printf(b, " + %s * %lld", lm_attend_coordinate(&e->values, map.axis[i]),
                  (long long)map.stride[i]);
  lm_buf_printf(b, " + %s / %lld * %lld + %s / %lld];\n", flip ? "c" : "r", (long long)e->f.tile_t,
                (long long)map.row, flip ? "r" : "c", (long long)e->f.tile_s);
  lm_buf_printf(b,
                "some |= seen != 0;\npart |= seen != lm_min_index(%lld, %s - r / %lld * %lld + 1) "
                "* lm_min_index(%lld, %s - c / %lld * %lld + 1);\n}\n",
                (long long)tile_row, row, (long long)tile_row, (long long)tile_row,
                (long long)tile_col, col, (long long)tile_col, (long long)tile_col);
  lm_buf_puts(
      b, "if (!lm_ballot(some)) continue;\nconst bool full = !lm_ballot(part);\n(void)full;\n");
}
