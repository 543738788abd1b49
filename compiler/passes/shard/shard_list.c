// shard_list.c - which axes of a module an axis of the mesh divides: the rows of a micro-batch,
// their positions, and those that its list names.
#include <string.h>
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

enum {
  RANKS = 4096, // maximum along an axis of a mesh
  LISTED = 10   // divisors in a message
};

static bool named(const lm_module *m, lm_axis a, const char *base) {
  const char *name = m->axes[a].name;
  size_t n = lm_axis_base_length(name);
  return strlen(base) == n && !memcmp(base, name, n);
}

static void loop_axes(lm_op *op, void *user) {
  uint8_t *out = user;
  if (op->code == LM_OP_LOOP && op->attr.n_axes)
    out[op->attr.axes[0]] = 1;
  if (op->code == LM_OP_APPEND)
    out[op->attr.to[0]] = 1;
}

// By axis: it counts the iterations of a loop, the instances of a repetition or the positions of a
// cache.
static uint8_t *repetitions(const lm_module *m) {
  uint8_t *out = lm_calloc(m->n_axes, 1);
  for (const lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, loop_axes, out);
  for (uint32_t i = 0; i < m->n_globals; i++)
    for (int k = 0; k < m->globals[i].n_stack; k++)
      out[m->globals[i].type.axis[k]] = 1;
  return out;
}

static void mark_type(uint8_t *used, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    used[t.axis[i]] = 1;
}

static void mark_region(uint8_t *used, const lm_region *r) {
  for (uint32_t i = 0; i < r->n_args; i++)
    mark_type(used, r->args[i]->type);
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_out; i++)
      mark_type(used, op->out[i]->type);
    if (op->body)
      mark_region(used, op->body);
  }
}

// The functions that train and evaluate, and the parameters, need every listed axis to divide; the
// other functions have other sizes of the batch, and may leave an axis whole.
static uint8_t *must_divide(const lm_module *m) {
  uint8_t *used = lm_calloc(m->n_axes, 1);
  for (const lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS || f->key.id == LM_FUNC_EVAL)
      mark_region(used, f->body);
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (lm_global_is_weight(&m->globals[i]))
      mark_type(used, m->globals[i].type);
  return used;
}

static bool can_divide(const lm_module *m, lm_axis a, int ranks) {
  return !m->axes[a].dyn && m->axes[a].size % ranks == 0;
}

// The divisor of n behind `last` that a mesh may have; 0: none.
static int64_t next_divisor(int64_t n, int64_t last) {
  for (int64_t d = last + 1; d <= n && d <= RANKS; d++)
    if (n % d == 0)
      return d;
  return 0;
}

void lm_shard_divisors(int64_t n, int64_t near, lm_buf *out) {
  int all = 0, below = 0;
  for (int64_t d = 0; (d = next_divisor(n, d)); all++)
    below += d < near;
  int first = below > LISTED / 2 ? below - LISTED / 2 : 0;
  first = first > all - LISTED ? all - LISTED : first;
  first = first < 0 ? 0 : first;
  int end = all < first + LISTED ? all : first + LISTED;
  int64_t d = 0;
  for (int k = 0; k < end; k++) {
    const char *between = all == 1 ? "only " : k == first ? "" : k + 1 < end ? ", " : " and ";
    d = next_divisor(n, d);
    if (k >= first)
      lm_buf_printf(out, "%s%lld", between, (long long)d);
  }
  lm_buf_puts(out, all > 1 ? " do" : " does");
}

// The sizes nearest to that of the whole axis which the ranks divide, also those along axes of the
// mesh that divide it already.
static void sizes_help(const lm_module *m, lm_diag *d, const lm_mesh_axis *by, lm_axis a) {
  const char *ranks = by->name;
  int64_t parts = by->size;
  for (; m->axes[a].whole; a = m->axes[a].whole) {
    const lm_mesh_axis *other = &m->mesh.axis[m->axes[a].mesh - 1];
    ranks = lm_arena_printf(m->arena, "%s * %s", other->name, ranks);
    parts *= other->size;
  }
  int64_t below = m->axes[a].size / parts * parts;
  const char *or_above = lm_arena_printf(m->arena, "%lld", (long long)(below + parts));
  const char *text =
      below ? lm_arena_printf(m->arena, "%lld or %s", (long long)below, or_above) : or_above;
  lm_diag_help(m->ctx, d, "%s = %lld divides %s = %s", ranks, (long long)parts, m->axes[a].name,
               text);
}

static bool report_size(const lm_module *m, const lm_mesh_axis *by, lm_axis a) {
  lm_buf legal = {0};
  lm_shard_divisors(m->axes[a].size, by->size, &legal);
  lm_diag *d = LM_REPORT(m->ctx, by->loc, E910, by->name, by->size, m->axes[a].name,
                         (long long)m->axes[a].size, legal.p);
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (lm_type_find(m->globals[i].type, a) >= 0 && m->globals[i].loc.line) {
      lm_diag_note(m->ctx, d, m->globals[i].loc, "axis %s of @%s", m->axes[a].name,
                   m->globals[i].name);
      break;
    }
  sizes_help(m, d, by, a);
  lm_buf_free(&legal);
  return false;
}

static bool report_name(const lm_module *m, const lm_mesh_axis *by, const uint8_t *counts,
                        uint32_t k) {
  const char *name = by->shard[k].name;
  const char **names = LM_NEW_N(m->arena, const char *, m->n_axes);
  int n = 0;
  for (uint32_t i = 1; i < m->n_axes; i++)
    if (!m->axes[i].mesh && !counts[i])
      names[n++] = m->axes[i].name;
  const char *near = lm_nearest(name, names, n);
  LM_REPORT(m->ctx, by->shard[k].loc, E911, name, near ? "; did you mean " : "", near ? near : "",
            near ? "?" : "");
  return false;
}

// ---- rows

// Axis k of the arguments of a loss: 0 are its rows, 1 the positions. 0: it has none.
static lm_axis batch_axis(const lm_func *f, int k) {
  const lm_region *r = f->body;
  return lm_shard_takes_batch(f) && r->n_args && r->args[0]->type.rank > k
             ? r->args[0]->type.axis[k]
             : 0;
}

static lm_axis rows_of(const lm_func *f) {
  return batch_axis(f, 0);
}

static lm_axis positions_of(const lm_func *f) {
  return batch_axis(f, 1);
}

bool lm_shard_takes_batch(const lm_func *f) {
  return f->key.id == LM_FUNC_LOSS || f->key.id == LM_FUNC_EVAL;
}

bool lm_shard_batch(const lm_module *m, int mesh) {
  const lm_mesh_axis *by = &m->mesh.axis[mesh - 1];
  for (const lm_func *f = m->funcs; f && (by->rows || by->positions); f = f->next) {
    lm_axis first = by->rows ? rows_of(f) : positions_of(f), a = first;
    while (a && m->axes[a].mesh != mesh)
      a = m->axes[a].whole;
    if (first)
      return !a;
  }
  return false;
}

typedef struct follower {
  const lm_module *m;
  int ranks;
  uint32_t *order;
  bool changed;
} follower;

// Another name of the rows is an axis of rows too, as is what a view merges them with behind them.
static void rows_follow(lm_op *op, void *user) {
  follower *x = user;
  if (lm_op_info_of(op)->factor != LM_FACTOR_MOVE)
    return;
  int n = op->code == LM_OP_VIEW ? 1 : op->attr.n_axes;
  for (int i = 0; i < n && i < op->attr.n_to; i++) {
    lm_axis to = op->attr.to[i];
    bool follows = x->order[op->attr.axes[i]] && !x->order[to] && can_divide(x->m, to, x->ranks);
    if (follows)
      x->order[to] = 1;
    x->changed |= follows;
  }
}

static bool rows_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order) {
  follower x = {m, by->size, order, true};
  for (const lm_func *f = m->funcs; f; f = f->next) {
    lm_axis a = rows_of(f);
    if (a && !can_divide(m, a, by->size))
      return report_size(m, by, a);
    order[a] = a != 0;
  }
  while (x.changed) {
    x.changed = false;
    for (lm_func *f = m->funcs; f; f = f->next)
      if (rows_of(f))
        lm_region_walk(f->body, rows_follow, &x);
  }
  return true;
}

// Positions that have another name, as those that attention looks back on, are whole.
static bool positions_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order) {
  for (const lm_func *f = m->funcs; f; f = f->next) {
    lm_axis a = positions_of(f);
    if (a && !can_divide(m, a, by->size))
      return report_size(m, by, a);
    order[a] = a != 0;
  }
  return true;
}

// ---- names

static bool names_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order) {
  uint8_t *counts = repetitions(m);
  uint8_t *must = must_divide(m);
  bool ok = true;
  for (uint32_t k = 0; k < by->n_shard; k++) {
    bool found = false;
    for (lm_axis a = 1; a < m->n_axes && ok; a++) {
      if (!named(m, a, by->shard[k].name))
        continue;
      found = true;
      if (must[a] && counts[a]) {
        LM_REPORT(m->ctx, by->shard[k].loc, E912, m->axes[a].name);
        ok = false;
      } else if (must[a] && !can_divide(m, a, by->size)) {
        ok = report_size(m, by, a);
      } else if (!order[a]) {
        order[a] = counts[a] || !can_divide(m, a, by->size) ? 0 : k + 2;
      }
    }
    if (ok && !found)
      ok = report_name(m, by, counts, k);
  }
  lm_free(counts);
  lm_free(must);
  return ok;
}

// ---- experts

typedef struct experts {
  const lm_module *m;
  uint8_t *found; // by axis
} experts;

static void experts_note(lm_op *op, void *user) {
  const experts *x = user;
  if (op->code == LM_OP_GROUPED_DOT)
    x->found[op->in[2]->type.axis[0]] = 1;
}

static bool experts_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order) {
  experts x = {
      .m = m,
      .found = lm_calloc(m->n_axes, 1),
  };
  bool ok = true;
  bool any = false;
  for (const lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, experts_note, &x);
  for (lm_axis a = 1; a < m->n_axes && ok; a++) {
    if (!x.found[a])
      continue;
    any = true;
    ok = can_divide(m, a, by->size) || report_size(m, by, a);
    order[a] = 2;
  }
  if (ok && !any)
    LM_REPORT(m->ctx, by->loc, E91A, by->name, by->size);
  lm_free(x.found);
  return ok && any;
}

bool lm_shard_list(const lm_module *m, const lm_mesh_axis *by, uint32_t *order) {
  return (!by->rows || rows_list(m, by, order)) &&
         (!by->positions || positions_list(m, by, order)) &&
         (!by->experts || experts_list(m, by, order)) && (!by->n_shard || names_list(m, by, order));
}
