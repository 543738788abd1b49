// parse.c - parses .lmir text into a module (print.c shows the format): the tables of the module
// here, functions in parse_op.c. It stops at the first error; diagnostics have locations in the
// text.
//
// Names are looked up as spelled, so a hand-written file may omit the numbers of values; explicit
// numbers are kept. Each operation is checked as it is read (lm_op_check). Memory is proportional
// to the text: sizes that the text gives are bounded.
#include <string.h>
#include "compiler/ir/parse.h"

enum {
  MAX_AXES = 8192,
  MAX_RANKS = 1 << 20,
  MAX_STACKED = 1 << 16 // elements of the stacked axes of a global
};

// ---- the module's tables

// The planner settles the size of the axis of blocks.
static bool blocks_axis(parser *p, lm_loc at, lm_axis a) {
  if (p->m->blocks || p->m->axes[a].dyn)
    return lmir_fail(p, at,
                     p->m->blocks ? "a second axis of blocks"
                                  : "an axis of blocks has no dynamic extent");
  p->m->blocks = a;
  return true;
}

// axis g@tp = 2: a part of axis g, which is defined before it
static bool divided_axis(parser *p, const lm_token *t, int64_t size) {
  const char *at = strrchr(t->sym, '@');
  lm_sym name = lm_intern_n(p->c->intern, t->sym, (size_t)(at - t->sym));
  lm_axis whole = lm_axis_find(p->m, name);
  int mesh = lm_mesh_find(p->m, at + 1);
  if (!whole)
    return lmir_fail(p, t->loc, "there is no axis %s", name);
  if (!mesh)
    return lmir_fail(p, t->loc, "the mesh has no axis %s", at + 1);
  const lm_axis_info *a = &p->m->axes[whole];
  int ranks = p->m->mesh.axis[mesh - 1].size;
  if (a->dyn || a->size % ranks || size != a->size / ranks)
    return lmir_fail(p, t->loc, "%lld is not the size of one of %d parts of axis %s",
                     (long long)size, ranks, a->name);
  lm_axis_part(p->m, whole, mesh);
  return true;
}

// shard(g, ff)
static bool mesh_shard(parser *p, lm_mesh_axis *a) {
  lm_token t;
  uint32_t cap = 0;
  if (!lmir_opt_word(p, "shard"))
    return true;
  if (!lmir_want(p, '('))
    return false;
  do {
    if (!lmir_want_kind(p, TK_NAME, "an axis", &t))
      return false;
    LM_PUSH(p->m->arena, a->shard, a->n_shard, cap) = (struct lm_mesh_shard){t.sym, t.loc};
  } while (lmir_opt(p, ','));
  return lmir_want(p, ')');
}

// zero 3
static bool mesh_zero(parser *p, lm_mesh_axis *a) {
  int64_t stage;
  lm_loc at = p->t.loc;
  if (!lmir_opt_word(p, "zero"))
    return true;
  if (!lmir_integer(p, &stage))
    return false;
  if (stage < 1 || stage > 3)
    return lmir_fail(p, at, "zero is 1, 2 or 3");
  a->zero = (int)stage;
  return true;
}

// reduce bf16
static bool mesh_reduce(parser *p, lm_mesh_axis *a) {
  lm_loc at = p->t.loc;
  if (!lmir_opt_word(p, "reduce"))
    return true;
  a->reduce_bf16 = lmir_opt_word(p, "bf16");
  return a->reduce_bf16 || lmir_fail(p, at, "reduce is bf16, or left out");
}

// order library
static bool mesh_order(parser *p, lm_mesh_axis *a) {
  lm_loc at = p->t.loc;
  if (!lmir_opt_word(p, "order"))
    return true;
  a->library = lmir_opt_word(p, "library");
  return a->library || lmir_fail(p, at, "order is library, or left out");
}

// bucket overlap
static bool mesh_overlap(parser *p, lm_mesh_axis *a) {
  a->bucket = lmir_opt_word(p, "bucket");
  a->overlap = lmir_opt_word(p, "overlap");
  return true;
}

// The stages of each rank: interleaved 2
static bool mesh_chunks(parser *p, lm_mesh_axis *a) {
  int64_t n;
  lm_loc at = p->t.loc;
  if (a->schedule != LM_SCHEDULE_INTERLEAVED)
    return true;
  if (!lmir_integer(p, &n))
    return false;
  if (n < 2 || n > MAX_RANKS || a->pipeline % a->size)
    return lmir_fail(p, at, "needs at least 2 stages on a rank, and a multiple of %d micro-batches",
                     a->size);
  a->chunks = (int)n;
  return true;
}

// rows pipeline 4, pipeline 4, pipeline 4 one_f_one_b, or pipeline 4 interleaved 2
static bool mesh_pipeline(parser *p, lm_mesh_axis *a) {
  int64_t n;
  lm_loc at = p->t.loc;
  if (!lmir_opt_word(p, "pipeline"))
    return true;
  if (!lmir_integer(p, &n))
    return false;
  for (int i = 1; i < LM_SCHEDULES && !a->schedule; i++)
    a->schedule =
        lmir_opt_word(p, lm_pipe_schedule_names[i]) ? (lm_pipe_schedule)i : LM_SCHEDULE_GPIPE;
  if (n < 1 || n > INT32_MAX || (a->schedule && a->rows))
    return lmir_fail(p, at, "a pipeline of this schedule divides no rows of a call");
  if (a->rows && n % a->size)
    return lmir_fail(p, at, "a pipeline divides rows, into a multiple of %d micro-batches",
                     a->size);
  a->pipeline = (int)n;
  return mesh_chunks(p, a);
}

// mesh dp = 2 rows zero 1 reduce bf16, cp = 2 positions ring, ep = 4 rows experts, tp = 4 shard(g,
// ff)
static bool mesh(parser *p) {
  int64_t ranks = 1;
  if (p->m->mesh.n || p->m->n_axes > 1)
    return lmir_fail(p, p->t.loc, "the mesh is given once, before the axes");
  do {
    lm_token t;
    int64_t size;
    if (!lmir_want_kind(p, TK_NAME, "an axis of the mesh", &t) || !lmir_want(p, '='))
      return false;
    if (p->m->mesh.n == LM_MESH_AXES || lm_mesh_find(p->m, t.sym) || strchr(t.sym, '@'))
      return lmir_fail(p, t.loc, "a mesh has at most %d axes, each once", LM_MESH_AXES);
    if (!lmir_integer(p, &size))
      return false;
    if (size < 1 || size > MAX_RANKS || (ranks *= size) > MAX_RANKS)
      return lmir_fail(p, t.loc, "a mesh has at most %d ranks", MAX_RANKS);
    lm_mesh_axis *a = &p->m->mesh.axis[p->m->mesh.n++];
    *a = (lm_mesh_axis){
        .name = t.sym,
        .size = (int)size,
        .loc = t.loc,
    };
    a->rows = lmir_opt_word(p, "rows");
    a->positions = lmir_opt_word(p, "positions");
    a->balanced = a->positions && lmir_opt_word(p, "balanced");
    a->ring = a->positions && lmir_opt_word(p, "ring");
    a->experts = lmir_opt_word(p, "experts");
    if (!mesh_pipeline(p, a) || !mesh_shard(p, a) || !mesh_zero(p, a) || !mesh_reduce(p, a) ||
        !mesh_order(p, a) || !mesh_overlap(p, a))
      return false;
  } while (lmir_opt(p, ','));
  return !p->failed;
}

// dyn 3 (1 * 2): extent 3 is twice extent 1, which is given; dyn 3 (1 most 64): extent 1, but at
// most 64
static bool derived_extent(parser *p, lm_loc at, int k) {
  int64_t of, n;
  bool most;
  if (!lmir_integer(p, &of) || (!(most = lmir_opt_word(p, "most")) && !lmir_want(p, '*')) ||
      !lmir_integer(p, &n) || !lmir_want(p, ')'))
    return false;
  lm_extent_info *x = &p->m->extents[k - 1];
  lm_extent_info now = {(int)of, most ? 1 : n, most ? n : 0};
  bool fits = of > 0 && of <= LM_EXTENTS && of != k && n > !most && n < LM_ELEMENTS_MAX &&
              !p->m->extents[of - 1].of;
  if (!fits || (x->of && (x->of != of || x->times != now.times || x->most != now.most)))
    return lmir_fail(p, at,
                     most ? "extent %d is not at most %lld of extent %lld"
                          : "extent %d is not %lld times extent %lld",
                     k, (long long)n, (long long)of);
  *x = now;
  return true;
}

static bool axis_table(parser *p) {
  do {
    lm_token t;
    int64_t size, dyn = 0;
    if (!lmir_want_kind(p, TK_NAME, "an axis", &t) || !lmir_want(p, '='))
      return false;
    lm_loc at = p->t.loc;
    if (!lmir_integer(p, &size) || (lmir_opt_word(p, "dyn") && !lmir_integer(p, &dyn)))
      return false;
    if (lm_axis_find(p->m, t.sym))
      return lmir_fail(p, t.loc, "axis %s is defined twice", t.sym);
    if (size < 1 || size >= LM_ELEMENTS_MAX)
      return lmir_fail(p, at, "the size of an axis is from 1 to 2^47");
    if (dyn < 0 || dyn > LM_EXTENTS)
      return lmir_fail(p, at, "the number of a dynamic extent is from 1 to %d", LM_EXTENTS);
    if (dyn && lmir_opt(p, '(') && !derived_extent(p, at, (int)dyn))
      return false;
    if (p->m->n_axes == MAX_AXES)
      return lmir_fail(p, t.loc, "more than %d axes", MAX_AXES);
    bool part = strchr(t.sym, '@');
    lm_axis made = part ? 0 : lm_axis_add(p->m, t.sym, size, (int)dyn);
    if (part && dyn)
      return lmir_fail(p, at, "a divided axis is not dynamic");
    if (part && !divided_axis(p, &t, size))
      return false;
    if (!part && lmir_opt_word(p, "blocks") && !blocks_axis(p, t.loc, made))
      return false;
  } while (lmir_opt(p, ','));
  return !p->failed;
}

static bool init(parser *p, lm_init *out) {
  static const char *const names[] = {"zeros", "ones", "const", "normal", "uniform"};
  int kind = 0;
  while (kind < 5 && !lmir_at_word(p, names[kind]))
    kind++;
  if (kind == 5)
    return lmir_fail(p, p->t.loc, "expected zeros, ones, const, normal or uniform");
  *out = (lm_init){.kind = (lm_init_kind)kind};
  if (!lmir_next(p) || kind < LM_INIT_CONST)
    return !p->failed;
  if (!lmir_want(p, '(') || !lmir_real(p, &out->a))
    return false;
  if (kind == LM_INIT_UNIFORM && !(lmir_want(p, ',') && lmir_real(p, &out->b)))
    return false;
  return lmir_want(p, ')');
}

static bool inits(parser *p, lm_global *g) {
  int64_t at = 0;
  lm_loc loc = p->t.loc;
  do {
    lm_init v;
    int64_t n = 1;
    if (!init(p, &v) || (lmir_opt(p, '*') && !lmir_integer(p, &n)))
      return false;
    if (!at && !lmir_at(p, ',') && n == 1)
      n = g->n_paths;
    if (n < 1 || n > g->n_paths - at)
      return lmir_fail(p, loc, "@%s has %lld elements along its stacked axes", g->name,
                       (long long)g->n_paths);
    while (n--)
      g->init[at++] = v;
  } while (lmir_opt(p, ','));
  return at == g->n_paths || lmir_fail(p, loc, "@%s has %lld elements along its stacked axes",
                                       g->name, (long long)g->n_paths);
}

static bool path_list(parser *p, lm_global *g) {
  for (int64_t i = 0; i < g->n_paths; i++) {
    lm_token t;
    if ((i && !lmir_want(p, ',')) || !lmir_want_kind(p, TK_SYM, "a @path", &t))
      return false;
    g->paths[i] = t.sym;
  }
  return lmir_want(p, ')');
}

static bool paths(parser *p, lm_global *g) {
  lm_token t;
  if (lmir_opt(p, '('))
    return path_list(p, g);
  if (!lmir_want_kind(p, TK_SYM, "a @path", &t))
    return false;
  for (int64_t i = 0; i < g->n_paths; i++)
    if (!(g->paths[i] = lm_path_fill(p->m, g, t.sym, i)))
      return lmir_fail(p, t.loc, "needs a # for each stacked axis");
  return true;
}

// A member has the axes of the packed global, and other adjacent ones instead of `along`. Its
// memory has no rows of padding.
static bool member_fits(const lm_module *m, const lm_global *packed, const lm_global *g) {
  int more = g->type.rank - packed->type.rank;
  int at = lm_type_find(packed->type, packed->along);
  if (g->kind != LM_GLOBAL_PARAM || g->n_stack != packed->n_stack || more < 0)
    return false;
  for (int i = 0; i < packed->type.rank; i++)
    if (i != at && g->type.axis[i + (i > at ? more : 0)] != packed->type.axis[i])
      return false;
  return g->type.dtype == packed->type.dtype &&
         lm_global_stored_elements(m, g) * lm_global_instances(m, g) ==
             lm_type_elements(m, g->type);
}

// along (axis) (@member, @member)
static bool members(parser *p, lm_global *g) {
  lm_token t;
  uint32_t cap = 0;
  int64_t size = 0, first;
  lm_axis axes[LM_RANK];
  uint8_t n = 0;
  if (!lmir_opt_word(p, "along") || !lmir_want(p, '(') || !lmir_axis_list(p, ')', axes, &n) ||
      n != 1 || !lmir_want(p, '('))
    return lmir_fail(p, p->t.loc, "a packed global needs 'along (axis) (@param, …)'");
  g->along = axes[0];
  if (lm_type_find(g->type, g->along) < g->n_stack)
    return lmir_fail(p, p->t.loc, "@%s has no such axis that is not stacked", g->name);
  do {
    if (!lmir_want_kind(p, TK_SYM, "a @param", &t))
      return false;
    const lm_global *member = lm_global_find(p->m, t.sym);
    if (!member || !member_fits(p->m, g, member) || lm_global_pack(p->m, member, &first))
      return lmir_fail(p, t.loc, "@%s does not fit as a member of @%s", t.sym, g->name);
    size += lm_global_packed_size(p->m, g, member);
    LM_PUSH(p->m->arena, g->members, g->n_members, cap) = t.sym;
  } while (lmir_opt(p, ','));
  if (size != lm_axis_size(p->m, g->along))
    return lmir_fail(p, t.loc, "the members of @%s have %lld elements", g->name, (long long)size);
  return lmir_want(p, ')');
}

// of @param, and the first index of its innermost stacked axis; nothing for a state of no parameter
static bool state_of(parser *p, lm_global *g) {
  lm_token t;
  if (!lmir_opt_word(p, "of"))
    return !p->failed;
  if (!lmir_want_kind(p, TK_SYM, "a @param", &t))
    return false;
  g->of = t.sym;
  return !lmir_opt_word(p, "from") || lmir_integer(p, &g->first);
}

static bool global(parser *p, lm_global_kind kind) {
  lm_token t;
  lm_type ty;
  int64_t n_stack = 0;
  if (!lmir_want_kind(p, TK_SYM, "a @name", &t) || !lmir_want(p, ':') || !lmir_type(p, &ty))
    return false;
  if (lmir_opt_word(p, "stacked") && !lmir_integer(p, &n_stack))
    return false;
  if (lm_global_find(p->m, t.sym))
    return lmir_fail(p, t.loc, "@%s is defined twice", t.sym);
  if (n_stack < 0 || n_stack > 4 || n_stack > ty.rank)
    return lmir_fail(p, t.loc, "@%s has no %lld axes to stack", t.sym, (long long)n_stack);
  lm_type stack = lm_type_make(LM_F32, ty.axis, (int)n_stack);
  if (lm_type_elements(p->m, stack) > MAX_STACKED)
    return lmir_fail(p, t.loc, "@%s is stacked more than %d times", t.sym, MAX_STACKED);
  lm_global *g = lm_global_add(p->m, kind, t.sym, ty, (int)n_stack);
  if (!lmir_partial(p, &g->partial))
    return false;
  g->untrained = kind == LM_GLOBAL_PARAM && lmir_opt_word(p, "untrained");
  g->whole = lm_global_is_weight(g) && lmir_opt_word(p, "whole");
  if (lmir_opt_word(p, "as") && !paths(p, g))
    return false;
  if (kind == LM_GLOBAL_STATE && !state_of(p, g))
    return false;
  if (lmir_opt(p, '=')) {
    g->is_param = kind == LM_GLOBAL_STATE && g->of && lmir_opt_word(p, "param");
    if (!g->is_param && !inits(p, g))
      return false;
  }
  if (kind == LM_GLOBAL_PACKED && !members(p, g))
    return false;
  return !p->failed && lmir_location(p, &g->loc);
}

static bool stage(parser *p) {
  if (!lmir_opt_word(p, "stage"))
    return lmir_fail(p, p->t.loc, "expected 'stage graph', 'stage step' or 'stage kernel'");
  for (int i = 0; i < LM_STAGES; i++)
    if (lmir_opt_word(p, lm_stage_names[i])) {
      p->m->stage = (lm_stage)i;
      return !p->failed;
    }
  return lmir_fail(p, p->t.loc, "expected graph, step or kernel");
}

static bool file(parser *p) {
  lm_token t;
  if (!lmir_want_kind(p, TK_NAME, "a path", &t))
    return false;
  if (p->c->n_sources >= UINT16_MAX - 1)
    return lmir_fail(p, t.loc, "too many files");
  LM_PUSH(p->m->arena, p->files, p->n_files, p->cap_files) = lm_source_add(p->c, t.sym, "", 0);
  return true;
}

static bool section(parser *p) {
  if (lmir_opt_word(p, "file"))
    return file(p);
  if (lmir_opt_word(p, "mesh"))
    return mesh(p);
  if (lmir_opt_word(p, "axis"))
    return axis_table(p);
  for (int kind = 0; kind < LM_GLOBAL_KINDS; kind++)
    if (lmir_opt_word(p, lm_global_names[kind]))
      return global(p, (lm_global_kind)kind);
  if (lmir_opt_word(p, "func"))
    return lmir_function(p);
  return lmir_fail(
      p, p->t.loc,
      "expected file, mesh, axis, param, cache, derived, fixed, packed, state or func");
}

static bool verified(parser *p) {
  lm_buf why = {0};
  bool ok = lm_module_verify(p->m, &why);
  if (!ok)
    lmir_fail(p,
              (lm_loc){
                  .file = p->lex.source,
                  .line = 1,
                  .col = 1,
              },
              "%s", why.p);
  lm_buf_free(&why);
  return ok;
}

lm_module *lm_module_parse(lm_ctx *c, uint16_t source) {
  parser p = {
      .c = c,
      .m = lm_module_create(c),
  };
  lm_lexer_init(&p.lex, c, source);
  bool ok = lmir_next(&p) && stage(&p);
  while (ok && p.t.kind != TK_END)
    ok = section(&p);
  lmir_number_values(&p);
  ok = ok && verified(&p);
  lm_free(p.table);
  lm_free(p.ids);
  return ok ? p.m : NULL;
}
