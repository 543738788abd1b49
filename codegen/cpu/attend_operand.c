// attend_operand.c - operands of attention's GEMMs: their tiles in the forms that tile_attend.h of
// the prelude describes.
//
// Operands with axis t are filled once for a tile of t. Operands with axis s are needed again by
// the next tile of t and by the other heads of a group: as many of their tiles as fit are kept in
// slots, each with the location in memory that it was filled from. If there are more tiles, the
// first ones keep their slots and the others share the last few: if all shared all of them, a pass
// over the tiles in order would find none again.
#include "codegen/cpu/attend.h"
#include "codegen/cpu/strip.h"

enum {
  BF16_TILE = 32,        // sides of the tiles that the matrix unit multiplies
  LANES = 16,            // row strides are multiples of every vector width
  KEPT_BYTES = 384 << 10 // limit for the slots of an operand, on a thread's stack
};
// The letters differ from those that name values (attend_tile.c).
static const struct {
  cpu_attend_form form;
  char letter;
  const char *name;
} FORMS[] = {{CPU_ROWS, 'b', "rows"},
             {CPU_TRANSPOSED, 'w', "transposed"},
             {CPU_INTERLEAVED, 'y', "interleaved"},
             {CPU_LHS_TRANSPOSED, 'v', "lhs_transposed"}};

static int64_t round_up(int64_t n, int64_t of) {
  return (n + of - 1) / of * of;
}

// ---- text

const char *cpu_attend_buffer(cpu_attend *e, const char *prefix, int number, int64_t elements) {
  const char *name = number < 0 ? prefix : lm_arena_printf(e->g.arena, "%s%d", prefix, number);
  lm_buf_printf(&e->buffers, "float %s[%lld] __attribute__((aligned(64))) = {0};\n", name,
                (long long)elements);
  return name;
}

static long long channel_loop(cpu_attend *e, lm_buf *b, const lm_attend_axes *channels, int i) {
  long long size = lm_axis_size(e->f.m, channels->axis[i]);
  lm_buf_printf(b, "for (int64_t j%d = 0; j%d < %lld; j%d++) {\n", i, i, size, i);
  return size;
}

const char *cpu_attend_channel_loops(cpu_attend *e, lm_buf *b, const lm_attend_axes *channels) {
  const char *flat = "0";
  for (int i = 0; i < channels->n; i++) {
    long long size = channel_loop(e, b, channels, i);
    flat = i ? lm_arena_printf(e->g.arena, "(%s) * %lld + j%d", flat, size, i) : "j0";
  }
  return flat;
}

void cpu_attend_channel_sum(cpu_attend *e, lm_buf *b, const lm_attend_axes *channels,
                            const char *body) {
  int last = channels->n - 1;
  if (last < 0) {
    lm_buf_printf(b, "{\nconst int64_t lane = 0;\n%s}\n", body);
    return;
  }
  for (int i = 0; i < last; i++)
    channel_loop(e, b, channels, i);
  int64_t size = lm_axis_size(e->f.m, channels->axis[last]);
  cpu_strip_loop l = {.name = lm_arena_printf(e->g.arena, "j%d", last),
                      .from = "0",
                      .to = lm_arena_printf(e->g.arena, "%lld", (long long)size),
                      .count = size,
                      .strip = "strip"};
  cpu_strip_loop_put(e->g.arena, b, &l, body);
  cpu_attend_close(b, last);
}

void cpu_attend_channel_offset(cpu_attend *e, lm_buf *b, lm_type t,
                               const lm_attend_axes *channels) {
  int64_t stride = lm_type_elements(e->f.m, t);
  for (int i = 0; i < t.rank; i++) {
    stride /= lm_axis_size(e->f.m, t.axis[i]);
    for (int k = 0; k < channels->n; k++)
      if (channels->axis[k] == t.axis[i])
        lm_buf_printf(b, " + j%d * %lld", k, (long long)stride);
  }
}

int64_t cpu_attend_row_stride(const cpu_attend *e, lm_type t, const lm_attend_axes *channels,
                              lm_axis a) {
  if (channels->n != 1 || !t.rank || t.axis[t.rank - 1] != channels->axis[0])
    return 0;
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; stride *= lm_axis_size(e->f.m, t.axis[i--]))
    if (t.axis[i] == a)
      return stride;
  return 0;
}

void cpu_attend_close(lm_buf *b, int braces) {
  while (braces--)
    lm_buf_puts(b, "}\n");
}

// ---- operands and their forms

static void need(cpu_attend *e, int k, cpu_attend_form form, const lm_attend_axes *channels) {
  e->operand[k].forms |= form;
  e->operand[k].channels = *channels;
}

static void forms_find(cpu_attend *e) {
  for (int i = 0; i < e->f.n_dots; i++) {
    need(e, (int)e->f.dots[i].row, CPU_TRANSPOSED, &e->f.dots[i].over);
    need(e, (int)e->f.dots[i].col, CPU_ROWS, &e->f.dots[i].over);
  }
  need(e, LM_ATTEND_V, e->f.vjp ? CPU_ROWS : CPU_LHS_TRANSPOSED, &e->f.v_channels);
  if (e->f.vjp)
    need(e, LM_ATTEND_DO, CPU_TRANSPOSED, &e->f.v_channels);
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *s = &e->f.sums[i];
    if (s->other >= 0)
      e->operand[s->other].forms |= s->rows ? CPU_LHS_TRANSPOSED : CPU_INTERLEAVED;
  }
}

// Operands of one dot are multiplied as bf16 only if both are bf16. Returns false if that changed
// one of them.
static bool agree(cpu_attend *e, uint32_t a, uint32_t b) {
  bool both = e->operand[a].bf16 && e->operand[b].bf16;
  bool same = e->operand[a].bf16 == e->operand[b].bf16;
  e->operand[a].bf16 = e->operand[b].bf16 = both;
  return same;
}

static void bf16_find(cpu_attend *e) {
  bool fits = e->rows == BF16_TILE && e->cols == BF16_TILE;
  bool settled = false;
  for (uint32_t k = 0; k < e->f.op->n_in; k++)
    e->operand[k].bf16 = fits && e->operand[k].forms && e->f.op->in[k]->type.dtype == LM_BF16;
  while (!settled) {
    settled = !e->f.vjp || agree(e, LM_ATTEND_V, LM_ATTEND_DO);
    for (int i = 0; i < e->f.n_dots; i++)
      settled &= agree(e, e->f.dots[i].row, e->f.dots[i].col);
  }
}

static int64_t tile_positions(const cpu_attend *e, const cpu_attend_operand *o) {
  return o->row ? e->rows : e->cols;
}

// Rows of a matrix [channels][...]: the GEMM writes whole squares, or pairs of rows.
static int64_t own_rows(const cpu_attend_operand *o) {
  return o->bf16 ? o->row_stride : round_up(o->channels.size, 2);
}

static int64_t form_elements(const cpu_attend *e, const cpu_attend_operand *o,
                             cpu_attend_form form) {
  return tile_positions(e, o) *
         (form == CPU_ROWS || form == CPU_INTERLEAVED ? o->row_stride : own_rows(o));
}

int64_t cpu_attend_sums_elements(const cpu_attend *e, int operand) {
  return e->rows * own_rows(&e->operand[operand]);
}

static int64_t slots_of(const cpu_attend *e, const cpu_attend_operand *o) {
  int64_t tiles = (lm_axis_size(e->f.m, e->f.s) + e->cols - 1) / e->cols;
  int64_t bytes = 0;
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (o->forms & FORMS[i].form)
      bytes += form_elements(e, o, FORMS[i].form) * (int64_t)sizeof(float);
  int64_t max_slots = KEPT_BYTES / bytes;
  return o->row || max_slots < 1 ? 1 : max_slots < tiles ? max_slots : tiles;
}

// The slot of the tile at s0.
static const char *slot_of(const cpu_attend *e, const cpu_attend_operand *o) {
  int64_t tiles = (lm_axis_size(e->f.m, e->f.s) + e->cols - 1) / e->cols;
  int64_t shared = o->slots < CPU_ATTEND_TILES ? o->slots : CPU_ATTEND_TILES;
  int64_t own = o->slots - shared;
  const char *tile = lm_arena_printf(e->g.arena, "s0 / %lld", (long long)e->cols);
  if (tiles <= o->slots)
    return tile;
  return lm_arena_printf(e->g.arena, "%s < %lld ? %s : %lld + %s %% %lld", tile, (long long)own,
                         tile, (long long)own, tile, (long long)shared);
}

// Rows are always filled first. In f32 the rows are also the interleaved form. Zeros follow rows
// that are shorter than their stride.
static void buffers_declare(cpu_attend *e, int k) {
  cpu_attend_operand *o = &e->operand[k];
  const char *type = o->bf16 ? "lm_operand" : "float";
  for (size_t i = 0; i < LM_COUNT(FORMS); i++) {
    bool rows = FORMS[i].form == CPU_ROWS;
    bool read = o->forms & FORMS[i].form;
    if (!(rows || read) || (FORMS[i].form == CPU_INTERLEAVED && !o->bf16))
      continue;
    bool kept = !o->row && read;
    lm_buf_printf(&e->buffers, "%s %s%c%d[%lld] __attribute__((aligned(64)))%s;\n", type,
                  kept ? "all_" : "", FORMS[i].letter, k,
                  (long long)(form_elements(e, o, FORMS[i].form) * (read ? o->slots : 1)),
                  kept && o->channels.size == o->row_stride ? "" : " = {0}");
  }
  if (!o->row)
    lm_buf_printf(&e->buffers, "int64_t from%d[%lld] = {0};\n", k, (long long)o->slots);
}

void cpu_attend_operands(cpu_attend *e) {
  forms_find(e);
  bf16_find(e);
  for (uint32_t k = 0; k < e->f.op->n_in; k++) {
    cpu_attend_operand *o = &e->operand[k];
    if (!o->forms)
      continue;
    o->row = lm_type_find(e->f.op->in[k]->type, e->f.t) >= 0;
    o->row_stride = round_up(o->channels.size, o->bf16 ? BF16_TILE : LANES);
    o->slots = slots_of(e, o);
    e->any_bf16 |= o->bf16;
    buffers_declare(e, (int)k);
  }
}

// ---- filling

static const char *element(cpu_attend *e, int k) {
  lm_type t = e->f.op->in[k]->type;
  lm_buf at = {0};
  lm_buf_printf(&at, "a%d[", k);
  cpu_attend_offset(e, &at, t, "t0 + i", "s0 + i");
  cpu_attend_channel_offset(e, &at, t, &e->operand[k].channels);
  lm_buf_puts(&at, "]");
  const char *text = lm_gen_take(&e->g, &at);
  return e->operand[k].bf16 ? lm_arena_printf(e->g.arena, "lm_operand_of(%s)", text)
                            : lm_gen_load_text(e->g.arena, (lm_dtype)t.dtype, text);
}

static void rows_copy(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const char *positions = o->row ? "rows" : "cols";
  lm_type t = e->f.op->in[k]->type;
  int64_t stride = cpu_attend_row_stride(e, t, &o->channels, o->row ? e->f.t : e->f.s);
  lm_buf at = {0};
  if (stride && (o->bf16 || t.dtype == LM_F32)) {
    cpu_attend_offset(e, &at, t, "t0", "s0");
    lm_buf_printf(b, "lm_rows_copy%s(%s, %lld, a%d + %s, %lld, b%d, %lld);\n",
                  o->bf16 ? "_bf16" : "", positions, (long long)o->channels.size, k,
                  lm_gen_take(&e->g, &at), (long long)stride, k, (long long)o->row_stride);
    return;
  }
  lm_buf_printf(b, "for (int64_t i = 0; i < %s; i++) {\n", positions);
  const char *flat = cpu_attend_channel_loops(e, b, &o->channels);
  const char *from = element(e, k);
  lm_buf_printf(b, "b%d[i * %lld + %s] = %s;\n", k, (long long)o->row_stride, flat, from);
  cpu_attend_close(b, o->channels.n + 1);
}

static void rows_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const lm_axis_info *a = &e->f.m->axes[o->row ? e->f.t : e->f.s];
  rows_copy(e, b, k);
  if (o->bf16 && (a->dyn || a->size % BF16_TILE))
    lm_buf_printf(b, "for (int64_t i = %s * %lld; i < %lld; i++) b%d[i] = 0;\n",
                  o->row ? "rows" : "cols", (long long)o->row_stride,
                  (long long)(BF16_TILE * o->row_stride), k);
}

static void forms_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const char *type = o->bf16 ? "bf16" : "f32";
  const char *positions = o->row ? "rows" : "cols";
  long long row_stride = o->row_stride;
  rows_fill(e, b, k);
  for (size_t i = 1; i < LM_COUNT(FORMS); i++) {
    if (!(o->forms & FORMS[i].form))
      continue;
    if (FORMS[i].form != CPU_INTERLEAVED)
      lm_buf_printf(b, "lm_form_%s_%s(%s, %lld, b%d, %lld, %c%d, %lld);\n", FORMS[i].name, type,
                    positions, (long long)o->channels.size, k, row_stride, FORMS[i].letter, k,
                    (long long)tile_positions(e, o));
    else if (o->bf16)
      lm_buf_printf(b, "lm_form_interleaved_bf16(b%d, %lld, y%d);\n", k, row_stride, k);
  }
}

// Selects the slot of this tile of s and fills it unless it already holds the tile.
static void kept_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  lm_buf from = {0};
  lm_buf_printf(b, "const int64_t slot%d = %s, first%d = 1 + ", k, slot_of(e, o), k);
  cpu_attend_offset(e, &from, e->f.op->in[k]->type, "t0", "s0");
  lm_buf_printf(b, "%s;\n", lm_gen_take(&e->g, &from));
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (o->forms & FORMS[i].form)
      lm_buf_printf(b, "%s *%c%d = all_%c%d + slot%d * %lld;\n", o->bf16 ? "lm_operand" : "float",
                    FORMS[i].letter, k, FORMS[i].letter, k, k,
                    (long long)form_elements(e, o, FORMS[i].form));
  lm_buf_printf(b, "if (from%d[slot%d] != first%d) {\nfrom%d[slot%d] = first%d;\n", k, k, k, k, k,
                k);
  forms_fill(e, b, k);
  lm_buf_puts(b, "}\n");
}

void cpu_attend_fills(cpu_attend *e, lm_buf *b, bool rows) {
  for (int k = 0; k < (int)e->f.op->n_in; k++) {
    if (!e->operand[k].forms || e->operand[k].row != rows)
      continue;
    if (rows)
      forms_fill(e, b, k);
    else
      kept_fill(e, b, k);
  }
}

// ---- use in calls

void cpu_attend_call(cpu_attend *e, lm_buf *b, const char *name, int operand) {
  lm_buf_printf(b, "%s_%s", name, e->operand[operand].bf16 ? "bf16(&unit, " : "f32(");
}

const char *cpu_attend_form_name(cpu_attend *e, int operand, cpu_attend_form form) {
  char letter = 'b';
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (FORMS[i].form == form && (form != CPU_INTERLEAVED || e->operand[operand].bf16))
      letter = FORMS[i].letter;
  return lm_arena_printf(e->g.arena, "%c%d", letter, operand);
}

const char *cpu_attend_untranspose(cpu_attend *e, lm_buf *b, const char *sums, int operand) {
  const cpu_attend_operand *o = &e->operand[operand];
  const char *name = cpu_attend_buffer(e, lm_arena_printf(e->g.arena, "back_%s", sums), -1,
                                       e->rows * o->row_stride);
  lm_buf_printf(b, "lm_form_transposed_f32(%lld, %lld, %s, %lld, %s, %lld);\n",
                (long long)o->channels.size, (long long)e->rows, sums, (long long)e->rows, name,
                (long long)o->row_stride);
  return name;
}

static void flat_store(cpu_attend *e, lm_buf *b, const char *rows, int operand, uint32_t result) {
  const cpu_attend_operand *o = &e->operand[operand];
  lm_type t = e->f.op->out[result]->type;
  lm_buf at = {0};
  lm_buf_puts(b, "for (int64_t i = 0; i < rows; i++) {\n");
  const char *flat = cpu_attend_channel_loops(e, b, &o->channels);
  cpu_attend_offset(e, &at, t, "t0 + i", "");
  cpu_attend_channel_offset(e, &at, t, &o->channels);
  const char *value =
      lm_arena_printf(e->g.arena, "%s[i * %lld + %s]", rows, (long long)o->row_stride, flat);
  lm_buf_printf(b, "r%u[%s] = %s;\n", result, lm_gen_take(&e->g, &at),
                lm_gen_store_text(e->g.arena, (lm_dtype)t.dtype, value));
  cpu_attend_close(b, o->channels.n + 1);
}

void cpu_attend_sums_store(cpu_attend *e, lm_buf *b, const char *sums, int operand,
                           uint32_t result) {
  const cpu_attend_operand *o = &e->operand[operand];
  lm_type t = e->f.op->out[result]->type;
  int64_t stride = cpu_attend_row_stride(e, t, &o->channels, e->f.t);
  lm_buf at = {0};
  cpu_attend_offset(e, &at, t, "t0", "");
  const char *offset = lm_gen_take(&e->g, &at);
  if (stride && t.dtype == LM_F32) {
    lm_buf_printf(b, "lm_form_transposed_f32(%lld, rows, %s, %lld, r%u + %s, %lld);\n",
                  (long long)o->channels.size, sums, (long long)e->rows, result, offset,
                  (long long)stride);
    return;
  }
  const char *rows = cpu_attend_untranspose(e, b, sums, operand);
  if (stride && t.dtype == LM_BF16)
    lm_buf_printf(b, "lm_rows_round(rows, %lld, %s, %lld, r%u + %s, %lld);\n",
                  (long long)o->channels.size, rows, (long long)o->row_stride, result, offset,
                  (long long)stride);
  else
    flat_store(e, b, rows, operand, result);
}
