// attend_loops.c - the work on one tile of scores, as C: its extents, its dots, and the loops over
// its elements.
#include "codegen/cpu/attend.h"

// The extent is a constant if tiles divide the axis, so that loops over it have no remainder.
const char *cpu_attend_tile_extent(cpu_attend *e, bool row) {
  const lm_axis_info *a = &e->f.m->axes[row ? e->f.t : e->f.s];
  long long tile = row ? e->rows : e->cols;
  if (!a->dyn && a->size % tile == 0)
    return lm_arena_printf(e->g.arena, "%lld", tile);
  return lm_arena_printf(e->g.arena, "lm_min64(%lld, %s - %s)", tile,
                         lm_gen_extent(&e->g, a->size, a->dyn, 1), row ? "t0" : "s0");
}

// Skips the pair of tiles if the block map says that it is entirely masked.
void cpu_attend_map_check(cpu_attend *e, lm_buf *b) {
  if (!e->f.tile_t)
    return;
  lm_attend_map_layout map = lm_attend_map_layout_of(&e->f);
  lm_buf_printf(b, "const int32_t seen = a%u[0", map.operand);
  for (int i = 0; i < map.n; i++)
    lm_buf_printf(b, " + %s * %lld", lm_attend_coordinate(&e->values, map.axis[i]),
                  (long long)map.stride[i]);
  lm_buf_printf(b, " + t0 / %lld * %lld + s0 / %lld];\nif (!seen) continue;\n", (long long)e->rows,
                (long long)map.row, (long long)e->cols);
}

void cpu_attend_dots(cpu_attend *e, lm_buf *b) {
  for (int i = 0; i < e->f.n_dots; i++) {
    const lm_attend_dot *p = &e->f.dots[i];
    cpu_attend_dot(e, b, (int)p->col, (int)p->row, lm_arena_printf(e->g.arena, "p%d", i));
  }
}

void cpu_attend_dot(cpu_attend *e, lm_buf *b, int col, int row, const char *to) {
  cpu_attend_call(e, b, "lm_dot", col);
  lm_buf_printf(b, "cols, %lld, %lld, %s, %lld, %s, %s);\n", (long long)e->rows,
                (long long)e->operand[col].channels.size, cpu_attend_form_name(e, col, CPU_ROWS),
                (long long)e->operand[col].row_stride, cpu_attend_form_name(e, row, CPU_TRANSPOSED),
                to);
}

void cpu_attend_sum_s(cpu_attend *e, lm_buf *b, int operand, const char *list, const char *cols,
                      const char *z, const char *to) {
  cpu_attend_call(e, b, "lm_sum_s", operand);
  lm_buf_printf(b, "%s, %lld, %lld, %s, %lld, %s, %s);\n", cols, (long long)e->rows,
                (long long)e->operand[operand].channels.size, list, (long long)e->cols, z, to);
}

void cpu_attend_loops(cpu_attend *e, lm_buf *b, const char *body) {
  lm_buf_puts(b, "for (int64_t n = 0; n < cols; n++) {\n");
  lm_buf_add(b, e->col.p, e->col.n);
  lm_buf_printf(b, "for (int64_t m = 0; m < %lld; m++) {\n", (long long)e->rows);
  lm_buf_add(b, e->tile.p, e->tile.n);
  lm_buf_puts(b, body);
  cpu_attend_close(b, 2);
  cpu_attend_loops_end(e);
}

void cpu_attend_rows(cpu_attend *e, lm_buf *b) {
  if (!e->row.n)
    return;
  lm_buf_puts(b, "for (int64_t m = 0; m < rows; m++) {\n");
  lm_buf_add(b, e->row.p, e->row.n);
  cpu_attend_close(b, 1);
}
