// row.c - rows: the values that a point holds outside of the results, in the order of their axes
// inside of the kernel and then of the lanes.
#include "codegen/cpu/emit.h"

enum {
  WIDE_SUM = 64 // elements of a sum in a row, from which on it is added in double
};

uint16_t cpu_group_var(const cpu_emit *e, int group) {
  return e->g.parallel[e->groups[group].last];
}

// Number of lanes in a point; 1 if there are no lanes.
static int64_t lanes_of(const cpu_emit *e) {
  int64_t n = 1;
  for (int g = e->n_groups - e->n_lane_groups; g < e->n_groups; g++) {
    bool blocked = e->block && g == e->n_groups - e->n_lane_groups;
    n *= blocked ? e->block : e->groups[g].size;
  }
  return n;
}

bool cpu_held_in_row(const cpu_emit *e, const lm_node *n) {
  return n->held == LM_HELD_ROW || (n->held == LM_HELD_SCALAR && e->n_lane_groups);
}

int64_t cpu_row_elements(const cpu_emit *e, const lm_node *n) {
  return lm_type_elements(e->g.m, lm_kernel_inner(e->g.kernel, n->op->out[0]->type)) * lanes_of(e);
}

bool cpu_row_is_wide(const cpu_emit *e, const lm_node *n) {
  const lm_op *op = n->op;
  int64_t elements = 1;
  for (int i = 0; i < op->attr.n_axes; i++)
    elements *= lm_axis_size(e->g.m, op->attr.axes[i]);
  return op->code == LM_OP_SUM && op->out[0]->type.dtype == LM_F32 && elements >= WIDE_SUM;
}

// ---- rows

// Lanes are innermost in a row; the first lane group is indexed from the beginning of the block.
static lm_ix row_index(const cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  lm_type inner = lm_kernel_inner(e->g.kernel, v->type);
  lm_ix at = lm_ix_scale(lm_gen_dense_index(&e->g, v->type, ix, inner), lanes_of(e));
  int64_t stride = lanes_of(e);
  for (int g = e->n_groups - e->n_lane_groups; g < e->n_groups; g++) {
    bool blocked = e->block && g == e->n_groups - e->n_lane_groups;
    uint16_t var = e->g.parallel[e->groups[g].last];
    stride /= blocked ? e->block : e->groups[g].size;
    lm_ix lane = {.n = 1, .t = {{var, 1}}};
    at = lm_ix_add(at, lm_ix_scale(lane, stride));
  }
  return at;
}

const char *cpu_row_offset(cpu_emit *e, const lm_value *v, const lm_ix *ix) {
  lm_ix at = row_index(e, v, ix);
  const char *text = lm_gen_index(&e->g, &at, true);
  if (!e->n_lane_groups || !e->block)
    return text;
  int64_t stride = lanes_of(e) / e->block;
  return lm_arena_printf(e->g.arena, stride == 1 ? "%s - first" : "%s - first * %lld", text,
                         (long long)stride);
}

// Reads a value that is held outside of the results: in a variable or in a row.
lm_gen_text cpu_held(lm_gen *g, const lm_value *v, const lm_ix *ix) {
  cpu_emit *e = (cpu_emit *)g;
  const lm_node *n = lm_schedule_node(g->s, v);
  if (n->held == LM_HELD_SCALAR && !e->n_lane_groups)
    return (lm_gen_text){lm_arena_printf(g->arena, "h%d", n->op->mark), 0};
  lm_ix at = row_index(e, v, ix);
  const char *location =
      lm_arena_printf(g->arena, "h%d[%s]", n->op->mark, cpu_row_offset(e, v, ix));
  return lm_gen_temp(g, v->type.dtype, lm_ix_level(&g->vars, &at), location, NULL, v->type);
}
