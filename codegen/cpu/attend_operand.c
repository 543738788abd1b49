// attend_operand.c - operands of attention's products: tiles of them in the forms that the
// prelude's tile_attend.h describes.
//
// Operands of t are filled once for a tile of t. Those of s are needed again by the next tile of t,
// and by the other heads of a group: their tiles are kept in slots, each with the place in memory
// that it was filled from, as far as there is room.
#include "codegen/cpu/attend.h"

enum {
  HALF_TILE = 32,        // sides of tiles that bf16 may be multiplied in
  LANES = 16,            // lines are whole vectors of any kind
  KEPT_BYTES = 128 << 10 // of an operand's slots
};
// Letters are none of those that values are named by (attend_tile.c).
static const struct {
  cpu_attend_form form;
  char letter;
  const char *name;
} FORMS[] = {{CPU_ROWS, 'b', "rows"},
             {CPU_TURNED, 'w', "turned"},
             {CPU_JOINED, 'y', "joined"},
             {CPU_FLIPPED, 'v', "flipped"}};

static int64_t whole(int64_t n, int64_t of) {
  return (n + of - 1) / of * of;
}

// ---- text

const char *cpu_attend_buffer(cpu_attend *e, const char *prefix, int number, int64_t elements) {
  const char *name = number < 0 ? prefix : lm_arena_printf(e->g.arena, "%s%d", prefix, number);
  lm_buf_printf(&e->buffers, "float %s[%lld] __attribute__((aligned(64))) = {0};\n", name,
                (long long)elements);
  return name;
}

const char *cpu_attend_own_loops(cpu_attend *e, lm_buf *b, const lm_attend_axes *own) {
  const char *flat = "0";
  for (int i = 0; i < own->n; i++) {
    long long size = lm_axis_size(e->f.m, own->axis[i]);
    lm_buf_printf(b, "for (int64_t j%d = 0; j%d < %lld; j%d++) {\n", i, i, size, i);
    flat = i ? lm_arena_printf(e->g.arena, "(%s) * %lld + j%d", flat, size, i) : "j0";
  }
  return flat;
}

void cpu_attend_own_offset(cpu_attend *e, lm_buf *b, lm_type t, const lm_attend_axes *own) {
  int64_t stride = lm_type_elements(e->f.m, t);
  for (int i = 0; i < t.rank; i++) {
    stride /= lm_axis_size(e->f.m, t.axis[i]);
    for (int k = 0; k < own->n; k++)
      if (own->axis[k] == t.axis[i])
        lm_buf_printf(b, " + j%d * %lld", k, (long long)stride);
  }
}

int64_t cpu_attend_row_stride(const cpu_attend *e, lm_type t, const lm_attend_axes *own,
                              lm_axis a) {
  if (own->n != 1 || !t.rank || t.axis[t.rank - 1] != own->axis[0])
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

static const char *text_of(cpu_attend *e, lm_buf *b) {
  const char *text = lm_arena_strndup(e->g.arena, b->n ? b->p : "", b->n);
  lm_buf_free(b);
  return text;
}

// ---- which there are

static void need(cpu_attend *e, int k, cpu_attend_form form, const lm_attend_axes *own) {
  e->operand[k].forms |= form;
  e->operand[k].own = *own;
}

static void forms_find(cpu_attend *e) {
  for (int i = 0; i < e->f.n_products; i++) {
    need(e, (int)e->f.products[i].row, CPU_TURNED, &e->f.products[i].over);
    need(e, (int)e->f.products[i].col, CPU_ROWS, &e->f.products[i].over);
  }
  need(e, LM_ATTEND_V, e->f.vjp ? CPU_ROWS : CPU_FLIPPED, &e->f.v_own);
  if (e->f.vjp)
    need(e, LM_ATTEND_DO, CPU_TURNED, &e->f.v_own);
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *s = &e->f.sums[i];
    if (s->other >= 0)
      e->operand[s->other].forms |= s->rows ? CPU_FLIPPED : CPU_JOINED;
  }
}

// Both of a product are bf16, or neither is taken as such.
static bool agree(cpu_attend *e, uint32_t a, uint32_t b) {
  bool both = e->operand[a].half && e->operand[b].half;
  bool same = e->operand[a].half == e->operand[b].half;
  e->operand[a].half = e->operand[b].half = both;
  return same;
}

static void halves_find(cpu_attend *e) {
  bool fits = e->rows == HALF_TILE && e->cols == HALF_TILE, settled = false;
  for (uint32_t k = 0; k < e->f.op->n_in; k++)
    e->operand[k].half = fits && e->operand[k].forms && e->f.op->in[k]->type.dtype == LM_BF16;
  while (!settled) {
    settled = !e->f.vjp || agree(e, LM_ATTEND_V, LM_ATTEND_DO);
    for (int i = 0; i < e->f.n_products; i++)
      settled &= agree(e, e->f.products[i].row, e->f.products[i].col);
  }
}

static int64_t places_of(const cpu_attend *e, const cpu_attend_operand *o) {
  return o->row ? e->rows : e->cols;
}

// Rows of a matrix [own][…]: products write whole squares, or an odd last one and another.
static int64_t own_rows(const cpu_attend_operand *o) {
  return o->half ? o->line : whole(o->own.size, 2);
}

static int64_t form_elements(const cpu_attend *e, const cpu_attend_operand *o,
                             cpu_attend_form form) {
  return places_of(e, o) * (form == CPU_ROWS || form == CPU_JOINED ? o->line : own_rows(o));
}

int64_t cpu_attend_sums_elements(const cpu_attend *e, int operand) {
  return e->rows * own_rows(&e->operand[operand]);
}

static int64_t slots_of(const cpu_attend *e, const cpu_attend_operand *o) {
  int64_t tiles = (lm_axis_size(e->f.m, e->f.s) + e->cols - 1) / e->cols, bytes = 0;
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (o->forms & FORMS[i].form)
      bytes += form_elements(e, o, FORMS[i].form) * (int64_t)sizeof(float);
  int64_t most = KEPT_BYTES / bytes;
  return o->row || most < 1 ? 1 : most < tiles ? most : tiles;
}

// Rows are filled first, whatever form is read. In f32 they are what is called joined.
static void buffers_declare(cpu_attend *e, int k) {
  cpu_attend_operand *o = &e->operand[k];
  const char *type = o->half ? "lm_part" : "float";
  for (size_t i = 0; i < LM_COUNT(FORMS); i++) {
    bool rows = FORMS[i].form == CPU_ROWS;
    bool read = o->forms & FORMS[i].form;
    if (!(rows || read) || (FORMS[i].form == CPU_JOINED && !o->half))
      continue;
    lm_buf_printf(&e->buffers, "%s %s%c%d[%lld] __attribute__((aligned(64))) = {0};\n", type,
                  o->row || !read ? "" : "all_", FORMS[i].letter, k,
                  (long long)(form_elements(e, o, FORMS[i].form) * (read ? o->slots : 1)));
  }
  if (!o->row)
    lm_buf_printf(&e->buffers, "int64_t from%d[%lld] = {0};\n", k, (long long)o->slots);
}

void cpu_attend_operands(cpu_attend *e) {
  forms_find(e);
  halves_find(e);
  for (uint32_t k = 0; k < e->f.op->n_in; k++) {
    cpu_attend_operand *o = &e->operand[k];
    if (!o->forms)
      continue;
    o->row = lm_type_find(e->f.op->in[k]->type, e->f.t) >= 0;
    o->line = whole(o->own.size, o->half ? HALF_TILE : LANES);
    o->slots = slots_of(e, o);
    e->halves |= o->half;
    buffers_declare(e, (int)k);
  }
}

// ---- filling

static const char *element(cpu_attend *e, int k) {
  lm_type t = e->f.op->in[k]->type;
  lm_buf at = {0};
  lm_buf_printf(&at, "a%d[", k);
  cpu_attend_offset(e, &at, t, "t0 + i", "s0 + i");
  cpu_attend_own_offset(e, &at, t, &e->operand[k].own);
  lm_buf_puts(&at, "]");
  const char *text = text_of(e, &at);
  return e->operand[k].half ? lm_arena_printf(e->g.arena, "lm_part_of(%s)", text)
                            : lm_gen_load_text(e->g.arena, (lm_dtype)t.dtype, text);
}

static void rows_copy(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const char *places = o->row ? "rows" : "cols";
  lm_type t = e->f.op->in[k]->type;
  int64_t stride =
      t.dtype == LM_F32 ? cpu_attend_row_stride(e, t, &o->own, o->row ? e->f.t : e->f.s) : 0;
  lm_buf at = {0};
  if (stride) {
    cpu_attend_offset(e, &at, t, "t0", "s0");
    lm_buf_printf(b, "lm_rows_copy(%s, %lld, a%d + %s, %lld, b%d, %lld);\n", places,
                  (long long)o->own.size, k, text_of(e, &at), (long long)stride, k,
                  (long long)o->line);
    return;
  }
  lm_buf_printf(b, "for (int64_t i = 0; i < %s; i++) {\n", places);
  const char *flat = cpu_attend_own_loops(e, b, &o->own);
  const char *from = element(e, k);
  lm_buf_printf(b, "b%d[i * %lld + %s] = %s;\n", k, (long long)o->line, flat, from);
  cpu_attend_close(b, o->own.n + 1);
}

static void rows_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const lm_axis_info *a = &e->f.m->axes[o->row ? e->f.t : e->f.s];
  rows_copy(e, b, k);
  if (o->half && (a->dyn || a->size % HALF_TILE))
    lm_buf_printf(b, "for (int64_t i = %s * %lld; i < %lld; i++) b%d[i] = 0;\n",
                  o->row ? "rows" : "cols", (long long)o->line, (long long)(HALF_TILE * o->line),
                  k);
}

static void forms_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  const char *type = o->half ? "bf16" : "f32";
  const char *places = o->row ? "rows" : "cols";
  long long line = o->line;
  rows_fill(e, b, k);
  for (size_t i = 1; i < LM_COUNT(FORMS); i++) {
    if (!(o->forms & FORMS[i].form))
      continue;
    if (FORMS[i].form != CPU_JOINED)
      lm_buf_printf(b, "lm_form_%s_%s(%s, %lld, b%d, %lld, %c%d, %lld);\n", FORMS[i].name, type,
                    places, (long long)o->own.size, k, line, FORMS[i].letter, k,
                    (long long)places_of(e, o));
    else if (o->half)
      lm_buf_printf(b, "lm_form_joined_bf16(b%d, %lld, y%d);\n", k, line, k);
  }
}

// Of the slots, the one of this tile of s; it is filled unless it holds the tile.
static void kept_fill(cpu_attend *e, lm_buf *b, int k) {
  const cpu_attend_operand *o = &e->operand[k];
  lm_buf from = {0};
  lm_buf_printf(b, "const int64_t slot%d = s0 / %lld %% %lld, first%d = 1 + ", k,
                (long long)e->cols, (long long)o->slots, k);
  cpu_attend_offset(e, &from, e->f.op->in[k]->type, "t0", "s0");
  lm_buf_printf(b, "%s;\n", text_of(e, &from));
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (o->forms & FORMS[i].form)
      lm_buf_printf(b, "%s *%c%d = all_%c%d + slot%d * %lld;\n", o->half ? "lm_part" : "float",
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

// ---- use

void cpu_attend_call(cpu_attend *e, lm_buf *b, const char *name, int operand) {
  lm_buf_printf(b, "%s_%s", name, e->operand[operand].half ? "bf16(&unit, " : "f32(");
}

const char *cpu_attend_form_name(cpu_attend *e, int operand, cpu_attend_form form) {
  char letter = 'b';
  for (size_t i = 0; i < LM_COUNT(FORMS); i++)
    if (FORMS[i].form == form && (form != CPU_JOINED || e->operand[operand].half))
      letter = FORMS[i].letter;
  return lm_arena_printf(e->g.arena, "%c%d", letter, operand);
}

const char *cpu_attend_turned_back(cpu_attend *e, lm_buf *b, const char *sums, int operand) {
  const cpu_attend_operand *o = &e->operand[operand];
  const char *name =
      cpu_attend_buffer(e, lm_arena_printf(e->g.arena, "back_%s", sums), -1, e->rows * o->line);
  lm_buf_printf(b, "lm_form_turned_f32(%lld, %lld, %s, %lld, %s, %lld);\n", (long long)o->own.size,
                (long long)e->rows, sums, (long long)e->rows, name, (long long)o->line);
  return name;
}
