// maps.c - `map hf`: for each parameter, the elements of another project's tensor that it consists
// of.
//
//   @layers.#.attn.{wq,wk,wv} = ("….qkv_proj.weight", [(g, h, e) + (g, e) + (g, e), d])
//
// A layout is a list of dims. A dim is an axis, 1, several axes in parentheses (merged into one),
// or a sum, of which the k-th name in braces takes the k-th term. The offset of an element in the
// tensor is therefore offset + Σ stride · index, so a map consists of strides only.
#include "dsl/elab/edit.h"
#include "dsl/elab/source.h"
#include "dsl/lower/internal.h"
#include <stdlib.h>
#include <string.h>

enum {
  MAX_ENTRIES = 1 << 20
};

typedef struct {
  lm_elab *e;
  lm_lowered *out;
  const ast_item *item;
  el_inst *inst;
  const el_param *param;
  int part, n_parts;
  lm_foreign_map map;
  bool ok;
} mapping;

// Reports the first error of a map only.
#define MAP_FAIL(m, at, code, ...) map_fail(m, at, LM_DIAGNOSTIC(code, ##__VA_ARGS__))
LM_PRINTF(4, 5)
static void map_fail(mapping *m, lm_loc at, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (m->ok)
    el_verr(m->e, at, id, fmt, ap);
  va_end(ap);
  m->ok = false;
}

static el_axis *axis_of(const el_inst *inst, lm_sym name) {
  for (el_axis_bind *b = inst->axes; b; b = b->up)
    if (b->name == name)
      return b->axis;
  return NULL;
}

static int64_t size_of(mapping *m, const ast_expr *x);

static int64_t size_of_axis(mapping *m, const ast_expr *x) {
  int64_t n = 1;
  const el_axis *a = axis_of(m->inst, x->text);
  if (!a || !lm_size_whole(a->size, &n))
    MAP_FAIL(m, x->loc, E0D9, m->inst->decl->name.text, x->text);
  return m->ok ? n : 1;
}

static int64_t size_of_product(mapping *m, const ast_expr *x) {
  int64_t n = 1;
  for (uint32_t i = 0; i < x->n_args && m->ok; i++) {
    if (x->args[i].kind != ARG_POS)
      MAP_FAIL(m, x->args[i].loc, E0C0);
    else if (__builtin_mul_overflow(n, size_of(m, x->args[i].expr), &n))
      MAP_FAIL(m, x->loc, E0D8);
  }
  return m->ok ? n : 1;
}

// The size of a dim; 1 after an error.
static int64_t size_of(mapping *m, const ast_expr *x) {
  if (!m->ok)
    return 1;
  if (x->kind == EX_NAME)
    return size_of_axis(m, x);
  if (x->kind == EX_TUPLE)
    return size_of_product(m, x);
  if (x->kind == EX_BINARY && x->op == OP_ADD)
    return size_of(m, x->a) + size_of(m, x->b);
  if (x->kind != EX_NUMBER || !x->is_int || x->inum != 1)
    MAP_FAIL(m, x->loc, E0C0);
  return 1;
}

static int count_terms(const ast_expr *x) {
  return x->kind == EX_BINARY && x->op == OP_ADD ? count_terms(x->a) + count_terms(x->b) : 1;
}

// Term `k` of a sum. *offset is increased by the sizes of the terms before it.
static const ast_expr *pick_term(mapping *m, const ast_expr *x, int k, int64_t *offset) {
  if (x->kind != EX_BINARY || x->op != OP_ADD)
    return x;
  int left = count_terms(x->a);
  if (k < left)
    return pick_term(m, x->a, k, offset);
  *offset += size_of(m, x->a);
  return pick_term(m, x->b, k - left, offset);
}

static void assign_strides(mapping *m, const ast_expr *x, int64_t stride);

static void assign_axis(mapping *m, const ast_expr *x, int64_t stride) {
  el_axis *a = axis_of(m->inst, x->text);
  int i = a ? el_axes_find(&m->param->axes, a) : -1;
  if (i < 0) {
    MAP_FAIL(m, x->loc, E0DB, m->param->name, x->text);
    return;
  }
  if (m->map.stride_foreign[i])
    MAP_FAIL(m, x->loc, E0DC, x->text, m->param->name);
  m->map.stride_foreign[i] = stride;
}

static void assign_sum(mapping *m, const ast_expr *x, int64_t stride) {
  int64_t offset = 0;
  if (count_terms(x) != m->n_parts) {
    MAP_FAIL(m, x->loc, E0DD);
    return;
  }
  const ast_expr *term = pick_term(m, x, m->part, &offset);
  m->map.offset_foreign += offset * stride;
  assign_strides(m, term, stride);
}

// Sets the strides of the axes of a dim; the innermost one gets `stride`.
static void assign_strides(mapping *m, const ast_expr *x, int64_t stride) {
  if (!m->ok)
    return;
  if (x->kind == EX_NAME)
    assign_axis(m, x, stride);
  else if (x->kind == EX_BINARY)
    assign_sum(m, x, stride);
  for (uint32_t i = x->kind == EX_TUPLE ? x->n_args : 0; i-- > 0;) {
    assign_strides(m, x->args[i].expr, stride);
    stride *= size_of(m, x->args[i].expr);
  }
}

// Removes axis i of the map by fixing its index to j, as `{E}` in a name requires.
static void fix_axis(lm_foreign_map *f, int i, int64_t j) {
  f->offset_native += j * f->stride_native[i];
  for (int k = i; k + 1 < f->n; k++) {
    f->size[k] = f->size[k + 1];
    f->stride_native[k] = f->stride_native[k + 1];
    f->stride_foreign[k] = f->stride_foreign[k + 1];
  }
  f->n--;
}

// The axis of `{E}` in a foreign name, as an index of the parameter's axes. -1: not found.
static int indexed_axis(mapping *m, const char *open, const char *close) {
  lm_sym name = lm_intern_n(m->e->c->intern, open + 1, (size_t)(close - open - 1));
  el_axis *a = axis_of(m->inst, name);
  int i = a ? el_axes_find(&m->param->axes, a) : -1;
  if (i >= 0 && !m->map.stride_foreign[i])
    return i;
  MAP_FAIL(m, m->item->expr->loc, E0DE, (int)(close - open + 1), open, m->param->name);
  return -1;
}

// Every axis of the parameter must be in the layout or in the name, unless its size is 1.
static bool check_axes(mapping *m, int indexed) {
  for (int i = 0; i < m->map.n; i++)
    if (!m->map.stride_foreign[i] && i != indexed && m->map.size[i] != 1) {
      MAP_FAIL(m, m->item->expr->loc, E0DF, m->param->name, m->param->axes.v[i]->name);
      return false;
    }
  return true;
}

// Adds one map, or one for each index of the axis of `{E}` in the name.
static void add_entries(mapping *m, const char *name) {
  const char *open = strchr(name, '{');
  const char *close = open ? strchr(open, '}') : NULL;
  int indexed = close ? indexed_axis(m, open, close) : -1;
  if (!m->ok || !check_axes(m, indexed))
    return;
  int64_t n = indexed < 0 ? 1 : m->map.size[indexed];
  for (int64_t j = 0; j < n; j++) {
    lm_foreign_map f = m->map;
    f.foreign = name;
    if (m->out->n_maps >= MAX_ENTRIES) {
      MAP_FAIL(m, m->item->loc, E0E0, MAX_ENTRIES);
      return;
    }
    if (indexed >= 0) {
      f.foreign =
          lm_arena_printf(m->e->a, "%.*s%lld%s", (int)(open - name), name, (long long)j, close + 1);
      fix_axis(&f, indexed, j);
    }
    LM_PUSH(m->e->a, m->out->maps, m->out->n_maps, m->out->cap_maps) = f;
  }
}

// False: an axis of the parameter has no known size.
static bool native_strides(mapping *m) {
  const el_axes *axes = &m->param->axes;
  int64_t stride = 1;
  m->map.n = (int)axes->n;
  for (uint32_t i = axes->n; i-- > 0; stride *= m->map.size[i]) {
    if (!lm_size_whole(axes->v[i]->size, &m->map.size[i]))
      return false;
    m->map.stride_native[i] = stride;
  }
  return true;
}

static void foreign_strides(mapping *m, const ast_expr *layout) {
  int64_t stride = 1;
  m->map.rank_f = (int)layout->n_args;
  for (uint32_t i = layout->n_args; i-- > 0;) {
    if (layout->args[i].kind != ARG_POS) {
      MAP_FAIL(m, layout->args[i].loc, E0C0);
      return;
    }
    m->map.shape_f[i] = size_of(m, layout->args[i].expr);
    assign_strides(m, layout->args[i].expr, stride);
    if (__builtin_mul_overflow(stride, m->map.shape_f[i], &stride))
      MAP_FAIL(m, layout->loc, E0D8);
  }
}

static bool is_entry(const ast_expr *x) {
  return x->kind == EX_TUPLE && x->n_args == 2 && x->args[0].kind == ARG_POS &&
         x->args[1].kind == ARG_POS && x->args[0].expr->kind == EX_STRING &&
         x->args[1].expr->kind == EX_LIST;
}

// ---- all parameters of an instance, with their logical paths
typedef struct {
  el_inst *inst;
  const el_param *p; // NULL: one that a replaced sub had
  lm_sym path;
  const ast_item *by; // the directive that maps the parameter, or NULL
  bool omitted;       // a state that the foreign format does not have
  lm_match match;
  int part, n_parts;  // the index of the pattern's alternative, and their number
  const char *prefix; // of foreign names
  uint32_t end;       // the number of maps up to this parameter's
} target;

typedef struct {
  target *v;
  uint32_t n, cap;
  const el_inst *whole; // what other projects know: the model, or one of its subs
} targets;

// Sets the strides of m->map. False: reported.
static bool strides_set(mapping *m) {
  const ast_expr *x = m->item->expr;
  const ast_expr *layout = is_entry(x) ? x->args[1].expr : NULL;
  bool known = false;
  if (!layout)
    MAP_FAIL(m, x->loc, E0E1);
  else if (layout->n_args > LM_ST_RANK || m->param->axes.n > LM_FOREIGN_AXES)
    MAP_FAIL(m, layout->loc, E0E2, LM_ST_RANK, LM_FOREIGN_AXES);
  else if ((known = native_strides(m)))
    foreign_strides(m, layout);
  return known && m->ok;
}

static void map_param(lm_elab *e, lm_lowered *out, const target *t) {
  mapping m = {.e = e,
               .out = out,
               .item = t->by,
               .inst = t->inst,
               .param = t->p,
               .part = t->part,
               .n_parts = t->n_parts,
               .map = {.native = t->path},
               .ok = true};
  if (!strides_set(&m))
    return;
  const char *name = lm_map_number(e, t->by->expr->args[0].expr, &t->match);
  if (name)
    add_entries(&m, lm_arena_printf(e->a, "%s%s", t->prefix, name));
}

bool lm_map_of_param(lm_elab *e, el_inst *inst, const el_param *p, const ast_item *item, int part,
                     int n_parts, lm_foreign_map *out) {
  mapping m = {.e = e,
               .item = item,
               .inst = inst,
               .param = p,
               .part = part,
               .n_parts = n_parts,
               .map = {.native = el_inst_path(e, inst, p->name)},
               .ok = true};
  if (!strides_set(&m) || !check_axes(&m, -1))
    return false;
  m.map.foreign = item->expr->args[0].expr->text;
  *out = m.map;
  return true;
}

// A file may have the tensor of a parameter that a replaced sub had.
static void ignore_former(lm_elab *e, lm_lowered *out, const target *t) {
  const ast_expr *x = t->by->expr;
  bool named = x->kind == EX_TUPLE && x->n_args && x->args[0].expr;
  const char *name = named ? lm_map_number(e, x->args[0].expr, &t->match) : NULL;
  if (name)
    LM_PUSH(e->a, out->ignored, out->n_ignored, out->cap_ignored) =
        lm_arena_printf(e->a, "@%s%s", t->prefix, name);
}

static void collect(lm_elab *e, el_inst *inst, targets *t) {
  for (uint32_t i = 0; i < inst->n_params; i++) {
    lm_sym name = inst->params[i].name;
    if (el_edit_of_param(e, inst, name))
      continue; // no file of the model has it
    LM_PUSH(e->a, t->v, t->n, t->cap) = (target){
        .inst = inst,
        .p = &inst->params[i],
        .path = el_inst_path(e, inst, name),
    };
  }
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one)
      collect(e, inst->subs[i].one, t);
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      collect(e, inst->subs[i].many->of[k], t);
  }
}

// Assigns a directive to the parameters below `base` that one alternative of its pattern matches.
// Later directives take precedence.
static uint32_t assign_item(lm_elab *e, targets *t, const ast_item *item, const char *pattern,
                            const char *base, int part, int n_parts) {
  uint32_t hits = 0;
  size_t skip = strlen(base);
  for (uint32_t i = 0; i < t->n; i++) {
    const char *path = t->v[i].path;
    lm_match match;
    if (strncmp(path, base, skip) || !lm_pattern_match(e->c, pattern, path + skip, &match))
      continue;
    t->v[i].by = item;
    t->v[i].match = match;
    t->v[i].part = part;
    t->v[i].n_parts = n_parts;
    t->v[i].prefix = base;
    hits++;
  }
  return hits;
}

static void report_no_match(lm_elab *e, const targets *t, const ast_item *item, const char *pattern,
                            const char *base) {
  el_paths paths = {0};
  for (uint32_t i = 0; i < t->n; i++)
    if (t->v[i].p && !strncmp(t->v[i].path, base, strlen(base)))
      LM_PUSH(e->a, paths.v, paths.n, paths.cap) = t->v[i].path + strlen(base);
  el_help_pattern(e, EL_ERR(e, item->sel->loc, E0B0, pattern), pattern, &paths);
}

static void ignore_list(lm_elab *e, lm_lowered *out, const ast_item *item) {
  bool list = item->expr->kind == EX_LIST;
  for (uint32_t i = 0; list && i < item->expr->n_args; i++) {
    const ast_expr *x = item->expr->args[i].expr;
    if (x && x->kind == EX_PATTERN)
      LM_PUSH(e->a, out->ignored, out->n_ignored, out->cap_ignored) = x->text;
    else
      list = false;
  }
  if (!list)
    EL_ERR(e, item->expr->loc, E0E4);
}

// `omit = [@pattern]`: states below `base` that the foreign format does not have.
static void omit_list(lm_elab *e, targets *t, const ast_item *item, const char *base) {
  bool list = item->expr->kind == EX_LIST;
  size_t skip = strlen(base);
  for (uint32_t i = 0; list && i < item->expr->n_args; i++) {
    const ast_expr *x = item->expr->args[i].expr;
    uint32_t hits = 0;
    list = x && x->kind == EX_PATTERN;
    for (uint32_t k = 0; list && k < t->n; k++) {
      target *one = &t->v[k];
      if (!one->p || strncmp(one->path, base, skip) ||
          !lm_pattern_match(e->c, x->text, one->path + skip, NULL))
        continue;
      hits++;
      list = one->p->is_state && !one->p->made;
      one->omitted = true;
    }
    list &= hits > 0;
  }
  if (!list)
    EL_ERR(e, item->expr->loc, E0FE);
}

static void apply_patterns(lm_elab *e, const el_inst *inst, targets *t, const ast_item *item,
                           const char *base) {
  int n;
  const char **alts = lm_pattern_expand(e->c, item->sel->text, &n);
  for (int a = 0; a < n; a++)
    if (!assign_item(e, t, item, alts[a], base, a, n) &&
        !lm_map_names_branch(e, inst->file, alts[a]))
      report_no_match(e, t, item, alts[a], base);
}

static void apply_item(lm_elab *e, el_inst *inst, targets *t, const ast_item *item,
                       const char *base, lm_lowered *out) {
  if (item->kind == IT_SET && item->path.n == 1 && !strcmp(item->path.v[0].text, "ignore"))
    ignore_list(e, out, item);
  else if (item->kind == IT_SET && item->path.n == 1 && !strcmp(item->path.v[0].text, "omit"))
    omit_list(e, t, item, base);
  else if (lm_item_is_config(item)) {
    if (inst == t->whole) // only the outermost model has a config
      lm_lower_config(e, inst, item, &out->config);
  } else if (item->kind == IT_MAP)
    apply_patterns(e, inst, t, item, base);
  else if (item->kind != IT_ERROR)
    EL_ERR(e, item->loc, E0E5);
}

static bool apply_maps(lm_elab *e, el_inst *inst, targets *t, lm_lowered *out);

static bool apply_maps_of_subs(lm_elab *e, el_inst *inst, targets *t, lm_lowered *out) {
  bool any = false;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    el_insts *many = inst->subs[i].many;
    if (inst->subs[i].one)
      any |= apply_maps(e, inst->subs[i].one, t, out);
    for (int64_t k = 0; many && k < many->n; k++)
      any |= apply_maps(e, many->of[k], t, out);
  }
  return any;
}

// Maps of an instance take precedence over the maps of its subs, which are applied first. Returns
// whether there is any `map hf`.
static bool apply_maps(lm_elab *e, el_inst *inst, targets *t, lm_lowered *out) {
  const char *base = el_inst_path(e, inst, "");
  if (base[0])
    base = lm_arena_printf(e->a, "%s.", base);
  bool any = apply_maps_of_subs(e, inst, t, out);
  for (uint32_t i = 0; i < inst->decl->members.n; i++) {
    const ast_member *m = inst->decl->members.v[i];
    if (m->kind != MB_MAP)
      continue;
    if (strcmp(m->names.v[0].text, "hf")) {
      EL_ERR(e, m->names.v[0].loc, E0C1, m->names.v[0].text);
      continue;
    }
    any = true;
    for (uint32_t k = 0; k < m->items.n; k++)
      apply_item(e, inst, t, m->items.v[k], base, out);
  }
  return any;
}

// ---- coverage: every element of every foreign tensor is mapped once
typedef struct {
  const lm_foreign_map *map;
  const ast_item *by;
} entry;
typedef struct {
  entry *v;
  uint32_t n, cap;
} entries;

static int compare_entries(const void *x, const void *y) {
  return strcmp(((const entry *)x)->map->foreign, ((const entry *)y)->map->foreign);
}

static int64_t sizes_product(const int64_t *n, int rank) {
  int64_t out = 1;
  for (int i = 0; i < rank; i++)
    out *= n[i];
  return out;
}

static bool same_shape(const lm_foreign_map *x, const lm_foreign_map *y) {
  return x->rank_f == y->rank_f &&
         memcmp(x->shape_f, y->shape_f, sizeof *x->shape_f * (size_t)x->rank_f) == 0;
}

// Checks the entries of one foreign tensor by the number of elements. Overlaps are found when
// weights are read.
static void check_tensor(lm_elab *e, const entry *x, uint32_t n) {
  const char *name = x->map->foreign;
  int64_t covered = 0, total = sizes_product(x->map->shape_f, x->map->rank_f);
  const entry *other = &x[n - 1];
  for (uint32_t i = 0; i < n; i++) {
    covered += sizes_product(x[i].map->size, x[i].map->n);
    if (same_shape(x->map, x[i].map))
      continue;
    lm_diag_note(e->c, EL_ERR(e, x[i].by->expr->loc, E0C3, name), x->by->expr->loc,
                 "its shape here differs");
    return;
  }
  if (covered == total)
    return;
  lm_diag *d = covered > total ? EL_ERR(e, other->by->expr->loc, E0E6, name)
                               : EL_ERR(e, other->by->expr->loc, E0E7, name, (long long)total,
                                        (long long)covered);
  if (covered < total)
    return;
  lm_diag_note(e->c, d, (lm_loc){0}, "by %s and %s", x->map->native, other->map->native);
  lm_diag_help(
      e->c, d,
      x->by == other->by
          ? "distinguish the tensors by a number in the name (#), or their parts by a sum (a + b)"
          : "map each tensor once; a later line replaces an earlier one for the same parameter "
            "only");
}

static void check_cover(lm_elab *e, entries *all) {
  if (all->n)
    qsort(all->v, all->n, sizeof *all->v, compare_entries);
  for (uint32_t i = 0, j; i < all->n; i = j) {
    for (j = i + 1; j < all->n && compare_entries(&all->v[i], &all->v[j]) == 0;)
      j++;
    check_tensor(e, &all->v[i], j - i);
  }
}

static lm_loc map_loc(const el_inst *model, lm_loc fallback) {
  for (uint32_t i = 0; i < model->decl->members.n; i++)
    if (model->decl->members.v[i]->kind == MB_MAP)
      return model->decl->members.v[i]->names.v[0].loc;
  return fallback;
}

static void report_missing(lm_elab *e, const el_inst *model, lm_loc at, const char *paths,
                           bool more) {
  lm_diag *d = EL_ERR(e, map_loc(model, at), E0C2, paths, more ? ", …" : "");
  lm_diag_note(e->c, d, at, "the model is used here");
  lm_diag_help(e->c, d, "add a line for each parameter: @%.*s = (\"foreign.name\", [axes])",
               (int)strcspn(paths, ","), paths);
}

// A sub with separate weights that have native names needs no map.
static bool needs_map(const el_inst *inst) {
  const el_source *s = el_source_of(inst);
  return !s || s->from_hf;
}

// Leaves out the frozen subs beside t->whole, such as a teacher, and makes names relative to it.
static void whole_set(lm_elab *e, targets *t) {
  const char *base = lm_arena_printf(e->a, "%s.", el_inst_path(e, t->whole, ""));
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    target *x = &t->v[i];
    const el_source *s = el_source_of(x->inst);
    bool inside = !strncmp(x->path, base, strlen(base));
    if (!inside && s && !s->trained)
      continue;
    if (inside && x->prefix)
      x->prefix += strlen(base);
    t->v[n++] = *x;
  }
  t->n = n;
}

void lm_lower_maps(lm_elab *e, el_inst *model, el_inst *whole, lm_lowered *out, lm_loc at) {
  targets t = {.whole = whole};
  entries all = {0};
  const char *missing = "";
  uint32_t n_missing = 0, before = e->c->n_errors;
  collect(e, model, &t);
  for (uint32_t i = 0; i < out->n_former; i++)
    LM_PUSH(e->a, t.v, t.n, t.cap) = (target){
        .inst = model,
        .path = out->former[i],
    };
  lm_lower_args(e, whole, out);
  if (!apply_maps(e, model, &t, out) || e->c->n_errors > before)
    return;
  if (whole != model)
    whole_set(e, &t);
  for (uint32_t i = 0; i < t.n; i++) {
    target *x = &t.v[i];
    if (x->by && x->p)
      map_param(e, out, x);
    else if (x->by)
      ignore_former(e, out, x);
    else if (x->omitted)
      LM_PUSH(e->a, out->omitted, out->n_omitted, out->cap_omitted) = x->path;
    else if (x->p && needs_map(x->inst) && n_missing++ < 4)
      missing = lm_arena_printf(e->a, "%s%s%s", missing, n_missing > 1 ? ", " : "", x->path);
    x->end = out->n_maps;
  }
  if (n_missing)
    report_missing(e, model, at, missing, n_missing > 4);
  for (uint32_t i = 0, k = 0; i < t.n; i++)
    for (; k < t.v[i].end; k++)
      LM_PUSH(e->a, all.v, all.n, all.cap) = (entry){&out->maps[k], t.v[i].by};
  if (e->c->n_errors == before)
    check_cover(e, &all);
}
