// attend.c - attention as C: the function around the tiles, and the forward pass.
//
// A point is one tile of t at one point of the parallel axes. It walks over the tiles of s that are
// not fully masked, and computes up to four of them together by an online softmax (Milakov &
// Gimelshein 2018, Dao et al. 2022):
//
//   x = score (-1e30 where masked)
//   m' = max(m, max x)
//   l = l e^(m - m') + sum e^(x - m')
//   o = o e^(m - m') + v e^(x - m')
//
// and at the end o / l and m + log l. o is accumulated as [channels][t], the layout of e^(x - m').
#include "codegen/cpu/attend.h"
#include "runtime/base/diag_code.h"
#include <string.h>

enum {
  // Sides of tiles if there is no block map.
  TILE = 32
};

// ---- forward

static const lm_value *without_casts(const lm_value *v) {
  while (v->def && (v->def->code == LM_OP_CAST || v->def->code == LM_OP_EXPAND))
    v = v->def->in[0];
  return v;
}

// The dot if the score is a dot, or a dot times a positive constant, else NULL.
static const lm_attend_dot *scaled_dot(const cpu_attend *e, double *out_times) {
  const lm_value *v = without_casts(e->f.score);
  const lm_value *times = NULL;
  for (int i = 0; !times && v->def && v->def->code == LM_OP_MUL && i < 2; i++) {
    const lm_value *one = without_casts(v->def->in[i]);
    const lm_value *other = without_casts(v->def->in[1 - i]);
    if (one->def && one->def->code == LM_OP_CONST) {
      v = other;
      times = one;
    }
  }
  *out_times = times ? times->def->attr.num : 1;
  return *out_times > 0 ? lm_attend_dot_of(&e->f, v) : NULL;
}

static bool reads_dot(const lm_value *v) {
  const lm_op *op = v->def;
  bool found = op && op->code == LM_OP_DOT;
  for (uint32_t i = 0; op && !found && i < op->n_in; i++)
    found = reads_dot(op->in[i]);
  return found;
}

static bool factor_reads_dot(const cpu_attend *e) {
  return e->f.factor && reads_dot(e->f.factor);
}

// Whether the scores are a dot times a positive number: softmax multiplies, and the dot is written
// to where the scores belong.
typedef struct score_form {
  const lm_attend_dot *dot; // NULL: another expression
  const char *times;
  bool both; // some tiles need no mask
} score_form;

static score_form score_form_of(const cpu_attend *e) {
  double times = 1;
  score_form x = {.dot = scaled_dot(e, &times), .both = e->f.mask && e->f.tile_t};
  if ((e->f.mask && !x.both) || factor_reads_dot(e))
    x.dot = NULL;
  x.times = lm_gen_const_text(e->g.arena, LM_F32, x.dot ? times : 1);
  return x;
}

static void score_loops(cpu_attend *e, lm_buf *b, bool masked) {
  const char *score = lm_attend_value(&e->values, e->f.score);
  const char *mask = masked ? lm_attend_value(&e->values, e->f.mask) : NULL;
  const char *y = mask ? lm_arena_printf(e->g.arena, "%s ? %s : -1e30f", mask, score) : score;
  long long rows = e->rows;
  cpu_attend_loops(e, b, lm_arena_printf(e->g.arena, "z[n * %lld + m] = %s;\n", rows, y));
}

// z = the scores of this tile; those of a tile without mask may be left as a dot, which is noted in
// `plain`.
static void scores(cpu_attend *e, lm_buf *b, const score_form *form) {
  if (form->both)
    lm_buf_puts(b, "if (seen == rows * cols) {\n");
  if (form->both && form->dot)
    lm_buf_puts(b, "plain |= 1 << tiles;\n");
  else if (!form->dot && (form->both || !e->f.mask))
    score_loops(e, b, false);
  if (form->both)
    lm_buf_puts(b, "} else {\n");
  if (e->f.mask)
    score_loops(e, b, true);
  if (form->both)
    lm_buf_puts(b, "}\n");
}

// x = the weights of these tiles.
static void weights(cpu_attend *e, lm_buf *b, const score_form *form) {
  long long rows = e->rows;
  long long size = e->rows * e->cols;
  const char *times = form->times;
  if (form->both && form->dot) {
    lm_buf_puts(b, "const int scaled = plain + 1 != 1 << tiles;\n");
    lm_buf_puts(b, "for (int64_t i = 0; scaled && i < tiles; i++)\nif (plain >> i & 1)\n");
    lm_buf_printf(b, "for (int64_t j = 0; j < %lld; j++) x[i * %lld + j] *= %s;\n", size, size,
                  times);
    times = lm_arena_printf(e->g.arena, "scaled ? 1.0f : %s", times);
  }
  lm_buf_printf(b, "if (lm_softmax%s(keys, %lld, x, %s, x, top, sum, scale))\n",
                lm_attend_rounds(e->f.op) ? "_e4m3" : "", rows, times);
  lm_buf_printf(b, "lm_rescale(%lld, %lld, scale, o);\n", (long long)e->f.v_channels.size, rows);
  if (!e->f.factor)
    return;
  lm_buf_printf(b, "for (int64_t i = 0; i < tiles; i++) {\nfloat *const z = x + i * %lld;\n", size);
  lm_buf_printf(b, "const int64_t s0 = at_s[i], cols = %s;\n", cpu_attend_tile_extent(e, false));
  const char *factor = lm_attend_value(&e->values, e->f.factor);
  cpu_attend_loops(e, b, lm_arena_printf(e->g.arena, "z[n * %lld + m] *= %s;\n", rows, factor));
  lm_buf_puts(b, "}\n");
}

// There is no map if an extent is known only at run time, as in a prompt. Then the mask of a tile
// is evaluated before its scores. A tile without visible pairs is skipped once all queries have
// seen a key: it would add zeros.
static void mask_check(cpu_attend *e, lm_buf *b) {
  const lm_value *mask = e->f.mask;
  bool several = lm_axis_size(e->f.m, e->f.t) > e->rows;
  if (e->f.tile_t || !mask || !several || !lm_attend_tiled(e->f.op, mask->type) || reads_dot(mask))
    return;
  lm_buf_printf(&e->buffers, "int32_t shown[%lld] __attribute__((aligned(64)));\n",
                (long long)e->rows);
  lm_buf_printf(&e->buffers, "int32_t before[%lld] __attribute__((aligned(64)));\n",
                (long long)e->rows);
  lm_buf_puts(&e->point, "__builtin_memset(before, 0, sizeof before);\n");
  lm_buf_puts(b, "__builtin_memset(shown, 0, sizeof shown);\n");
  const char *visible = lm_attend_value(&e->values, mask);
  cpu_attend_loops(e, b, lm_arena_printf(e->g.arena, "shown[m] |= %s;\n", visible));
  lm_buf_puts(b, "if (lm_tile_is_hidden(rows, shown, before)) continue;\n");
}

// The dot that is replaced by the scores of the same elements; -1: none.
static int dot_in_place(const cpu_attend *e, const score_form *form) {
  if (!e->f.n_dots || factor_reads_dot(e))
    return -1;
  return form->dot ? (int)(form->dot - e->f.dots) : 0;
}

static void tile_forward(cpu_attend *e, lm_buf *b, const score_form *form) {
  cpu_attend_map_check(e, b);
  mask_check(e, b);
  cpu_attend_fills(e, b, false);
  lm_buf_printf(b, "float *const z = x + keys * %lld;\n", (long long)e->rows);
  if (dot_in_place(e, form) >= 0)
    lm_buf_printf(b, "float *const p%d = z;\n", dot_in_place(e, form));
  cpu_attend_dots(e, b);
  scores(e, b, form);
  if (e->f.factor)
    lm_buf_puts(b, "at_s[tiles] = s0;\n");
  lm_buf_printf(b, "list[tiles++] = %s;\nkeys += cols;\n",
                cpu_attend_form_name(e, LM_ATTEND_V, CPU_LHS_TRANSPOSED));
}

// The tiles of s from `block` on whose weights are computed at once.
static void block_forward(cpu_attend *e, lm_buf *b, const score_form *form, const char *s) {
  const char *type = e->operand[LM_ATTEND_V].bf16 ? "lm_operand" : "float";
  long long cols = e->cols;
  long long block = e->tiles * e->cols;
  lm_buf_printf(b, "for (int64_t block = 0; block < %s; block += %lld) {\n", s, block);
  lm_buf_printf(b, "const %s *list[%lld];\nint64_t tiles = 0, keys = 0;\n", type,
                (long long)e->tiles);
  if (form->both && form->dot)
    lm_buf_puts(b, "int plain = 0;\n");
  if (e->f.factor)
    lm_buf_printf(b, "int64_t at_s[%lld];\n", (long long)e->tiles);
  lm_buf_printf(b, "for (int64_t s0 = block; s0 < block + %lld && s0 < %s; s0 += %lld) {\n", block,
                s, cols);
  lm_buf_printf(b, "const int64_t cols = %s;\n", cpu_attend_tile_extent(e, false));
  tile_forward(e, b, form);
  lm_buf_puts(b, "}\nif (!tiles) continue;\n");
  weights(e, b, form);
  const char *list = lm_arena_printf(e->g.arena, "(const %s *const *)list", type);
  cpu_attend_sum_s(e, b, LM_ATTEND_V, list, "keys", "x", "o");
  lm_buf_puts(b, "}\n");
}

static void results(cpu_attend *e, lm_buf *b) {
  lm_type lse = e->f.op->out[1]->type;
  lm_buf at = {0};
  const char *zero = lm_attend_rounds(e->f.op) ? "lm_binade_of(top[m])" : "top[m]";
  lm_buf_printf(b, "for (int64_t m = 0; m < %lld; m++) {\nscale[m] = 1.0f / sum[m];\n",
                (long long)e->rows);
  lm_buf_printf(b, "sum[m] = %s + lm_log(sum[m]);\n}\n", zero);
  lm_buf_printf(b, "lm_rescale(%lld, %lld, scale, o);\n", (long long)e->f.v_channels.size,
                (long long)e->rows);
  cpu_attend_sums_store(e, b, "o", LM_ATTEND_V, 0);
  cpu_attend_offset(e, &at, lse, "t0 + i", "");
  lm_buf_printf(b, "for (int64_t i = 0; i < rows; i++) r1[%s] = sum[i];\n",
                lm_gen_take(&e->g, &at));
}

static void forward(cpu_attend *e, lm_buf *b) {
  static const char *const names[] = {"top", "sum", "scale"};
  const char *t = lm_gen_extent(&e->g, lm_axis_size(e->f.m, e->f.t), e->f.m->axes[e->f.t].dyn, 1);
  const char *s = lm_gen_extent(&e->g, lm_axis_size(e->f.m, e->f.s), e->f.m->axes[e->f.s].dyn, 1);
  long long rows = e->rows;
  long long sums = cpu_attend_sums_elements(e, LM_ATTEND_V);
  lm_buf blocks = {0};
  for (size_t i = 0; i < LM_COUNT(names); i++)
    cpu_attend_buffer(e, names[i], -1, rows);
  cpu_attend_buffer(e, "x", -1, e->tiles * rows * e->cols);
  cpu_attend_buffer(e, "o", -1, sums);
  score_form form = score_form_of(e);
  for (int i = 0; i < e->f.n_dots; i++)
    if (i != dot_in_place(e, &form))
      cpu_attend_buffer(e, "p", i, rows * e->cols);
  block_forward(e, &blocks, &form, s);
  lm_buf_printf(b, "if (t0 >= %s) continue;\nconst int64_t rows = %s;\n", t,
                cpu_attend_tile_extent(e, true));
  lm_buf_add(b, e->point.p, e->point.n);
  cpu_attend_rows(e, b);
  cpu_attend_fills(e, b, true);
  lm_buf_printf(b, "for (int64_t m = 0; m < %lld; m++) top[m] = -__builtin_inff(), sum[m] = 0;\n",
                rows);
  lm_buf_printf(b, "for (int64_t j = 0; j < %lld; j++) o[j] = 0;\n", sums);
  lm_buf_add(b, blocks.p, blocks.n);
  results(e, b);
  lm_buf_free(&blocks);
}

// ---- the function

// Tiles of v that are read at once are in different slots.
static int64_t tiles_at_once(const cpu_attend *e) {
  int64_t slots = e->operand[LM_ATTEND_V].slots;
  return slots < CPU_ATTEND_TILES ? slots : CPU_ATTEND_TILES;
}

static void put_operands(cpu_attend *e, lm_buf *b) {
  const lm_op *op = e->f.op;
  for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
    bool in = i < op->n_in;
    lm_type t = in ? op->in[i]->type : op->out[i - op->n_in]->type;
    const char *type = lm_gen_memory_type((lm_dtype)t.dtype);
    const char *constant = in ? "const " : "";
    lm_buf_printf(b, "%s%s *%c%u = (%s%s *)buf[%u]", constant, type, in ? 'a' : 'r',
                  in ? i : i - op->n_in, constant, type, i);
    lm_gen_type_note(&e->g, b, t);
  }
  int64_t sums = 0;
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (!cpu_attend_sums_apart(e, i))
      continue;
    lm_buf_printf(b, "float *f%u = (float *)buf[%u] + %lld;\n", i, op->n_in + op->n_out,
                  (long long)sums);
    sums += lm_type_elements(e->f.m, op->out[i]->type);
  }
  for (int i = 0; i < 32; i++)
    if (e->g.extents >> i & 1)
      lm_buf_printf(b, "const int64_t n%d = var[%d];\n", i, i);
}

static int64_t tiles_of_t(const cpu_attend *e) {
  return (lm_axis_size(e->f.m, e->f.t) + e->rows - 1) / e->rows;
}
static const lm_attend_axes *point_axes(const cpu_attend *e) {
  return e->f.vjp ? &e->f.shared : &e->f.parallel;
}

// The tile of t varies fastest, then the last axis.
static void put_coordinates(cpu_attend *e, lm_buf *b) {
  const lm_attend_axes *axes = point_axes(e);
  long long tiles = tiles_of_t(e);
  lm_buf_puts(b, "int64_t at = point;\n");
  if (!e->f.vjp)
    lm_buf_printf(b, "const int64_t t0 = at %% %lld * %lld;\nat /= %lld;\n", tiles,
                  (long long)e->rows, tiles);
  for (int i = axes->n - 1; i >= 0; i--) {
    const lm_axis_info *a = &e->f.m->axes[axes->axis[i]];
    const char *n = lm_gen_extent(&e->g, a->size, a->dyn, 1);
    lm_buf_printf(b, "const int64_t %s = at %% %s;\nat /= %s;\n",
                  lm_attend_coordinate(&e->values, axes->axis[i]), n, n);
  }
}

static lm_plan_extent space_of(const cpu_attend *e) {
  const lm_attend_axes *axes = point_axes(e);
  lm_plan_extent x = {.fixed = e->f.vjp ? 1 : tiles_of_t(e)};
  for (int i = 0; i < axes->n; i++) {
    const lm_axis_info *a = &e->f.m->axes[axes->axis[i]];
    if (a->dyn)
      x.dyn[x.n_dyn++].var = a->dyn - 1;
    else
      x.fixed *= a->size;
  }
  return x;
}

static void put_function(cpu_attend *e, lm_buf *out) {
  lm_buf positions = {0};
  lm_buf text = {0};
  put_coordinates(e, &positions);
  if (e->f.vjp)
    cpu_attend_backward(e, &positions);
  else
    forward(e, &positions);
  lm_buf_puts(&text, "(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n");
  put_operands(e, &text);
  lm_buf_add(&text, e->buffers.p, e->buffers.n);
  if (e->any_bf16)
    lm_buf_puts(&text, "lm_unit unit;\nlm_unit_begin(&unit);\n");
  lm_buf_puts(&text, "for (int64_t point = lo; point < hi; point++) {\n");
  lm_buf_add(&text, positions.p, positions.n);
  lm_buf_puts(&text, e->any_bf16 ? "}\nlm_unit_end(&unit);\n}\n" : "}\n}\n");
  lm_gen_indent(text.p, out);
  lm_buf_free(&positions);
  lm_buf_free(&text);
}

// Workspace for the f32 sums of 16-bit results, one result after the other.
static void workspace_add(const cpu_attend *e, lm_kernel_code *out) {
  int64_t sums = 0;
  for (uint32_t i = 0; i < e->f.op->n_out; i++)
    if (cpu_attend_sums_apart(e, i))
      sums += lm_type_elements(e->f.m, e->f.op->out[i]->type);
  if (sums)
    out->workspace[out->n_workspaces++] = sums * (int64_t)sizeof(float);
}

bool lm_cpu_attend_emit(const lm_plan_options *o, const lm_op *op, lm_arena *arena,
                        lm_kernel_code *out) {
  const lm_module *m = lm_op_module(op);
  lm_arena *temporary = lm_arena_create();
  cpu_attend e = {
      .g = {.arena = temporary, .m = m},
  };
  lm_buf why = {0};
  lm_buf text = {0};
  bool ok = lm_attend_spec_make(m, op, &e.f, &why);
  if (!ok)
    LM_REPORT(m->ctx, op->loc, E702, why.p);
  e.rows = e.f.tile_t ? e.f.tile_t : TILE;
  e.cols = e.f.tile_s ? e.f.tile_s : TILE;
  cpu_attend_values(&e);
  e.operand = LM_NEW_N(temporary, cpu_attend_operand, op->n_in + 1);
  if (ok)
    cpu_attend_operands(&e);
  e.tiles = ok && !factor_reads_dot(&e) ? tiles_at_once(&e) : 1;
  if (ok)
    put_function(&e, &text);
  *out = (lm_kernel_code){.space = space_of(&e)};
  if (ok)
    workspace_add(&e, out);
  out->name = lm_arena_printf(arena, "a%016llx", (unsigned long long)lm_hash(text.p, text.n, 0));
  out->source = lm_arena_printf(arena, "void %s%s", out->name, text.p);
  lm_buf *used[] = {&why, &text, &e.buffers, &e.point, &e.row, &e.col, &e.tile};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
  lm_arena_destroy(temporary);
  return ok;
}
