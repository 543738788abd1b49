// route.c - primitives that route rows: the best entries along an axis, rows sorted by group, and a
// dot with weights of each row's group.
#include "dsl/elab/prim.h"

// ---- argmax and top_k

el_val p_argmax(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_axis *axis;
  c.of = (el_operands){{&x}, 1};
  if (x.k == V_ERROR || !el_positional_axis(c, 1, &axis) || el_lacks(c, &x, axis, el_arg_loc(c, 1)))
    return el_error();
  if (x.kind == K_BOOL)
    return EL_FAIL(c.e, el_arg_loc(c, 0), E05E, c.x->a->text, el_show(c.e, &x));
  el_axes one = {0};
  el_axes_push(c.e, &one, axis);
  el_axes left = el_axes_minus(c.e, &x.axes, &one);
  lm_attr attr = {.n_axes = 1};
  if (x.v)
    attr.axes[0] = el_axis_ir(c.e, axis);
  return el_tensor(K_INT, &left, x.v ? lm_emit(&c.e->b, LM_OP_ARGMAX, &x.v, 1, &attr, NULL) : NULL);
}

// The axis c of E -> c, a known one or (c = size).
static el_axis *best_axis(el_call_site c, const ast_arg *a, const el_axis *from) {
  el_axis *to;
  lm_sym name;
  const ast_expr *given;
  int64_t n;
  int64_t size;
  if (!el_target_axis(c, a->to, &name, &given))
    return NULL;
  if (given)
    to = el_sized_axis(c, name, given, a->to->loc);
  else if (!el_one_axis(c, a->to, &to))
    return NULL;
  bool known = to && lm_size_whole(to->size, &n) && lm_size_whole(from->size, &size);
  if (!known || n <= size)
    return to;
  EL_ERR(c.e, a->to->loc, E0AE, (long long)n, from->name, (long long)size);
  return NULL;
}

el_val p_top_k(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> c");
  el_axis *from;
  el_axis *to;
  c.of = (el_operands){{&x}, 1};
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      !(to = best_axis(c, a, from)))
    return el_error();
  if (x.kind == K_NUM)
    x = el_adapt(c.e, &x, K_F32, el_arg_loc(c, 0));
  if (x.kind == K_BOOL)
    return EL_FAIL(c.e, el_arg_loc(c, 0), E05E, c.x->a->text, el_show(c.e, &x));
  el_axes now = {0};
  el_axes_push(c.e, &now, to);
  el_axes axes = el_spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, from), 1, &now);
  if (!el_distinct(c, &axes))
    return el_error();
  el_val pair[] = {
      el_tensor(x.kind, &axes, NULL),
      el_tensor(K_INT, &axes, NULL),
  };
  if (x.v) {
    lm_attr attr = {.axes = {el_axis_ir(c.e, from)}, .n_axes = 1, .n_to = 1};
    attr.to[0] = el_axis_ir(c.e, to);
    lm_value *index = lm_emit(&c.e->b, LM_OP_TOP_K, &x.v, 1, &attr, NULL);
    attr.n_to = 0;
    attr.to[0] = 0;
    lm_value *best = lm_emit(&c.e->b, LM_OP_GATHER, (lm_value *[]){x.v, index}, 2, &attr, NULL);
    pair[0] = el_in_order(c, x.kind, &axes, best);
    pair[1].v = index;
  }
  return el_tuple(c.e, pair, 2);
}

// ---- rows by group

// The two sides of (axes) -> n, and the group of each point.
typedef struct routing {
  el_axes points; // the axes
  el_axis *rows;
  el_axis *groups;
  el_val id;
} routing;

// In decoding one of the axes is the positions, of run-time extent: they must come first, so that
// rows are adjacent in memory for every extent.
static bool rows_adjacent(el_call_site c, const routing *r, lm_loc at) {
  bool ahead = true;
  for (uint32_t i = 0; i < r->points.n; i++) {
    el_axis *a = r->points.v[i];
    int64_t size = 0;
    if (a->dyn && !ahead)
      return !el_moves_positions(c, a, at);
    ahead &= !a->dyn && lm_size_whole(a->size, &size) && size == 1;
  }
  return true;
}

// Sets r->rows: the axis of that name, with one element for each point.
static bool rows_axis(el_call_site c, routing *r, lm_sym name, lm_loc at) {
  lm_size size = lm_size_number(c.e->a, 1);
  lm_axis ir[LM_RANK];
  bool known = el_axis_lookup(c.e, name);
  for (uint32_t i = 0; i < r->points.n; i++)
    if (!lm_size_mul(c.e->a, size, r->points.v[i]->size, &size))
      return el_size_undecided(c, at);
  if (!(r->rows = el_axis_new_or_known(c, name, size, at)) || !c.e->m)
    return r->rows;
  for (uint32_t i = 0; i < r->points.n; i++) {
    ir[i] = el_axis_ir(c.e, r->points.v[i]);
    if (r->points.v[i]->micro_batches)
      r->rows->micro_batches = r->points.v[i]->micro_batches;
  }
  int dyn = lm_axes_extent(c.e->m, ir, (int)r->points.n);
  if (dyn < 0 || (known && r->rows->dyn != dyn)) {
    EL_ERR(c.e, at, E0AF, name);
    return false;
  }
  r->rows->dyn = dyn;
  return rows_adjacent(c, r, at);
}

// The ids in the order of the points, at most those of the last group.
static lm_value *ids_of(el_call_site c, const routing *r) {
  lm_builder *b = &c.e->b;
  lm_type t = el_ir_type(c.e, K_INT, &r->points);
  int64_t groups = lm_axis_size(c.e->m, el_axis_ir(c.e, r->groups));
  lm_value *last = lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)(groups - 1));
  lm_value *id = lm_emit_permute(b, r->id.v, t.axis, t.rank);
  return lm_emit_select(b, lm_emit2(b, LM_OP_GT, id, last), last, id);
}

// True if the rows of s are sorted by these ids, by operations of the region that is being emitted.
static bool is_sorted_by(el_call_site c, const routing *r, const el_sorted *s) {
  lm_type points = el_ir_type(c.e, K_INT, &r->points);
  return s && s->id == r->id.v && s->order->def->parent == c.e->b.at &&
         lm_type_equal(s->inverse->type, points) && s->groups == r->groups;
}

static el_sorted *sort_emit(el_call_site c, const routing *r) {
  lm_builder *b = &c.e->b;
  el_sorted *s = LM_NEW(c.e->a, el_sorted);
  *s = (el_sorted){
      .groups = r->groups,
      .id = r->id.v,
  };
  if (!c.e->m)
    return s;
  lm_value *id = ids_of(c, r);
  lm_attr points = {.n_axes = id->type.rank};
  lm_attr to;
  for (int i = 0; i < id->type.rank; i++)
    points.axes[i] = id->type.axis[i];
  to = points;
  to.n_to = 1;
  to.to[0] = el_axis_ir(c.e, r->groups);
  s->counts = lm_emit(b, LM_OP_GROUP_COUNTS, &id, 1, &to, NULL);
  lm_value *sorted[] = {
      id,
      s->counts,
  };
  to.to[0] = el_axis_ir(c.e, r->rows);
  s->order = lm_emit(b, LM_OP_GROUP_ORDER, sorted, 2, &to, NULL);
  s->inverse = lm_emit(b, LM_OP_GROUP_INVERSE, sorted, 2, &points, NULL);
  return s;
}

// How the rows are sorted; the operations are those of an earlier call if there is one.
static el_sorted *sorted_rows(el_call_site c, const routing *r) {
  c.e->b.loc = c.x->loc;
  bool known = c.e->m && is_sorted_by(c, r, r->rows->sorted);
  return known ? r->rows->sorted : sort_emit(c, r);
}

static lm_attr axes_attr(lm_type points, lm_axis rows, bool group) {
  lm_attr a = {
      .n_axes = group ? points.rank : 1,
      .n_to = group ? 1 : points.rank,
  };
  (group ? a.to : a.axes)[0] = rows;
  for (int i = 0; i < points.rank; i++)
    (group ? a.axes : a.to)[i] = points.axis[i];
  return a;
}

// The operands x and id, whose axes are the points.
static bool routing_read(el_call_site c, const ast_expr *points, el_val *x, routing *r) {
  if (!el_arg_axes(c, points, &r->points))
    return false;
  if (r->id.kind == K_NUM)
    r->id = el_adapt(c.e, &r->id, K_INT, el_arg_loc(c, 1));
  if (x->kind == K_NUM)
    *x = el_adapt(c.e, x, K_F32, el_arg_loc(c, 0));
  bool same = r->points.n == r->id.axes.n && el_axes_subset(&r->points, &r->id.axes);
  if (r->points.n && same && r->id.kind == K_INT && el_distinct(c, &r->points)) {
    c.e->library_failed |= c.e->in_library; // what the caller knows of the rows is not in the IR
    return true;
  }
  EL_ERR(c.e, el_arg_loc(c, 1), E0BF, c.x->a->text, el_show_axes(c.e, &r->points),
         el_show(c.e, &r->id));
  return false;
}

el_val p_group_by(el_call_site c) {
  static const char form[] = "(b, t, c) -> n";
  el_val x = el_arg_tensor(c, 0);
  routing r = {.id = el_arg_tensor(c, 1)};
  const ast_arg *a = el_arg_arrow(c, 2, form);
  c.of = (el_operands){{&x, &r.id}, 2};
  if (x.k == V_ERROR || r.id.k == V_ERROR || !a || !el_arrow_name(c, a) ||
      !routing_read(c, a->expr, &x, &r) || !el_positional_axis(c, 3, &r.groups) ||
      !rows_axis(c, &r, a->to->text, a->to->loc))
    return el_error();
  el_axes axes = {0};
  el_axes one = {0};
  el_axes rest = el_axes_minus(c.e, &x.axes, &r.points);
  el_axes_push(c.e, &axes, r.rows);
  for (uint32_t i = 0; i < rest.n; i++)
    el_axes_push(c.e, &axes, rest.v[i]);
  el_axes_push(c.e, &one, r.groups);
  if (!el_distinct(c, &axes))
    return el_error();
  const el_sorted *s = r.rows->sorted = sorted_rows(c, &r);
  lm_value *rows = NULL;
  if (x.v) {
    lm_attr a = axes_attr(s->inverse->type, s->order->type.axis[0], true);
    rows =
        lm_emit(&c.e->b, LM_OP_GROUP_ROWS, (lm_value *[]){x.v, s->order, s->inverse}, 3, &a, NULL);
  }
  el_val pair[] = {
      el_in_order(c, x.kind, &axes, rows),
      el_tensor(K_INT, &one, s->counts),
  };
  return el_tuple(c.e, pair, 2);
}

el_val p_ungroup(el_call_site c) {
  el_val y = el_arg_tensor(c, 0);
  routing r = {.id = el_arg_tensor(c, 1)};
  const ast_arg *a = el_arg_arrow(c, 2, "n -> (b, t, c)");
  c.of = (el_operands){{&y, &r.id}, 2};
  if (y.k == V_ERROR || r.id.k == V_ERROR || !a || !el_one_axis(c, a->expr, &r.rows) ||
      el_lacks(c, &y, r.rows, a->loc) || !routing_read(c, a->to, &y, &r))
    return el_error();
  if (!r.rows->sorted)
    return EL_FAIL(c.e, a->loc, E0C5, r.rows->name);
  r.groups = r.rows->sorted->groups;
  if (!rows_axis(c, &r, r.rows->name, a->loc))
    return el_error();
  el_axes axes = r.points;
  el_axes one = {0};
  el_axes_push(c.e, &one, r.rows);
  el_axes rest = el_axes_minus(c.e, &y.axes, &one);
  for (uint32_t i = 0; i < rest.n; i++)
    el_axes_push(c.e, &axes, rest.v[i]);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_value *v = NULL;
  if (y.v) {
    const el_sorted *s = sorted_rows(c, &r);
    lm_attr at = axes_attr(s->inverse->type, s->order->type.axis[0], false);
    v = lm_emit(&c.e->b, LM_OP_UNGROUP_ROWS, (lm_value *[]){y.v, s->inverse, s->order}, 3, &at,
                NULL);
  }
  return el_in_order(c, y.kind, &axes, v);
}

// ---- the dot with weights of each row's group

el_val el_grouped_dot(el_call_site c, const el_val *x, const el_val *w, const el_val *counts,
                      const el_axes *over) {
  el_axes axes;
  if (!el_dot_axes(c, &x->axes, &w->axes, over, &counts->axes, &axes))
    return el_error();
  lm_value *v = NULL;
  if (c.e->m) {
    lm_type t = el_ir_type(c.e, x->kind, over);
    lm_attr attr = {.n_axes = t.rank};
    for (int i = 0; i < t.rank; i++)
      attr.axes[i] = t.axis[i];
    v = lm_emit(&c.e->b, LM_OP_GROUPED_DOT, (lm_value *[]){x->v, w->v, counts->v}, 3, &attr, NULL);
  }
  return el_in_order(c, x->kind, &axes, v);
}

// ---- values of groups in adapters

// True if x has the rows of the grouping, and w a value of each group.
static bool rows_meet_groups(const lm_elab *e, const el_val *x, const el_val *w) {
  const el_grouping *g = e->grouping;
  const el_axis *groups = g->counts.axes.v[0];
  return el_axes_has(&x->axes, g->rows) && !el_axes_has(&x->axes, groups) &&
         el_axes_has(&w->axes, groups) && !el_axes_has(&w->axes, g->rows);
}

bool el_dot_of_groups(el_call_site c, const el_val *x, const el_val *w, const el_axes *over,
                      el_val *out) {
  const el_grouping *g = c.e->grouping;
  if (!g || el_axes_has(over, g->rows) || el_axes_has(over, g->counts.axes.v[0]))
    return false;
  bool straight = rows_meet_groups(c.e, x, w);
  if (!straight && !rows_meet_groups(c.e, w, x))
    return false;
  *out = straight ? el_grouped_dot(c, x, w, &g->counts, over)
                  : el_grouped_dot(c, w, x, &g->counts, over);
  return true;
}

// The group of each row, in the order of the rows; NULL: not known here.
static lm_value *groups_of_rows(el_call_site c) {
  const el_grouping *g = c.e->grouping;
  const el_sorted *s = g->rows->sorted;
  if (!s || s->groups != g->counts.axes.v[0])
    return NULL;
  lm_type points = s->inverse->type;
  int64_t n = lm_axis_size(c.e->m, el_axis_ir(c.e, s->groups));
  lm_value *id = lm_emit_permute(&c.e->b, s->id, points.axis, points.rank);
  id = lm_emit_clamp(&c.e->b, id, n);
  lm_attr a = axes_attr(points, s->order->type.axis[0], true);
  return lm_emit(&c.e->b, LM_OP_GROUP_ROWS, (lm_value *[]){id, s->order, s->inverse}, 3, &a, NULL);
}

static el_val of_rows(el_call_site c, const el_val *w) {
  const el_grouping *g = c.e->grouping;
  el_axes axes = {0};
  el_axes_push(c.e, &axes, g->rows);
  el_axes rest = el_axes_minus(c.e, &w->axes, &g->counts.axes);
  for (uint32_t i = 0; i < rest.n; i++)
    el_axes_push(c.e, &axes, rest.v[i]);
  lm_value *of = groups_of_rows(c);
  if (!of)
    return *w;
  lm_attr attr = {.axes = {el_axis_ir(c.e, g->counts.axes.v[0])}, .n_axes = 1};
  return el_in_order(c, w->kind, &axes,
                     lm_emit(&c.e->b, LM_OP_GATHER, (lm_value *[]){w->v, of}, 2, &attr, NULL));
}

void el_rows_of_groups(lm_elab *e, el_val *x, el_val *y, lm_loc at) {
  ast_expr here = {
      .kind = EX_NAME,
      .loc = at,
  };
  el_call_site c = {
      .e = e,
      .x = &here,
  };
  if (!e->grouping || !e->m)
    return;
  if (rows_meet_groups(e, x, y))
    *y = of_rows(c, y);
  else if (rows_meet_groups(e, y, x))
    *x = of_rows(c, x);
}

// ---- the primitive

static bool factors_read(el_call_site c, el_val *x, el_val *w, const el_val *counts,
                         el_axes *over) {
  c.of = (el_operands){{x, w}, 2};
  if (!el_positional_axes(c, 3, over))
    return false;
  for (uint32_t i = 0; i < over->n; i++)
    if (el_lacks(c, x, over->v[i], el_arg_loc(c, 0)) ||
        el_lacks(c, w, over->v[i], el_arg_loc(c, 1)))
      return false;
  if (x->kind != w->kind) {
    lm_diag_help(c.e->c,
                 EL_ERR(c.e, c.x->loc, E036, "grouped_dot", el_show(c.e, x), el_show(c.e, w)),
                 "cast one: f32(…) or real(…)");
    return false;
  }
  el_axes rows = el_axes_minus(c.e, &x->axes, over);
  bool fit = counts->kind == K_INT && counts->axes.n == 1 && rows.n == 1 &&
             el_axes_has(&w->axes, counts->axes.v[0]) && !el_axes_has(&w->axes, rows.v[0]) &&
             rows.v[0] != counts->axes.v[0] && !el_axes_has(over, counts->axes.v[0]);
  return el_floating(c, x, el_arg_loc(c, 0)) &&
         (fit ||
          EL_REJECT(c.e, c.x->loc, E0C6, el_show(c.e, x), el_show(c.e, w), el_show(c.e, counts)));
}

el_val p_grouped_dot(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_val w = el_arg_tensor(c, 1);
  el_val counts = el_arg_tensor(c, 2);
  el_axes over = {0};
  if (x.k == V_ERROR || w.k == V_ERROR || counts.k == V_ERROR ||
      !factors_read(c, &x, &w, &counts, &over))
    return el_error();
  el_val y = el_grouped_dot(c, &x, &w, &counts, &over);
  return el_dot_edited(c, (el_use){&x, &w, &over, &counts}, y);
}
