// shard_repetition.c - the repetition whose instances are the stages of a pipeline.
//
// A repetition is a loop over instances of a block. Values that it reads and that depend on the
// rows alone, as masks and rotations, are computed for each micro-batch: their operations become
// the first ones of the loop's body, from which shard_pipeline.c moves them to the loop over
// micro-batches.
#include <string.h>
#include "compiler/analysis/activity.h"
#include "compiler/analysis/analysis.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

bool lm_shard_runs_pipeline(const lm_func *f) {
  return lm_shard_takes_batch(f) || f->key.id == LM_FUNC_APPLY;
}

static lm_axis rows_of(const lm_func *f) {
  const lm_region *r = f->body;
  return r->n_args && r->args[0]->type.rank ? r->args[0]->type.axis[0] : 0;
}

// ---- loops

int lm_shard_indexed(const lm_op *op, const lm_value *index) {
  bool indexed = lm_op_info_indexed(lm_op_info_of(op));
  for (int i = 0; indexed && i < op->attr.n_imm / 2; i++)
    if (op->in[i] == index)
      return i;
  return -1;
}

static bool repeats(const lm_op *loop, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next)
    if (lm_shard_indexed(op, loop->body->args[0]) >= 0 || (op->body && repeats(loop, op->body)))
      return true;
  return false;
}

// The loops of a function over instances of a block; out: the first two.
static int repetitions_of(const lm_func *f, lm_op **out) {
  int n = 0;
  for (lm_op *op = f->body->first; op; op = op->next)
    if (op->code == LM_OP_LOOP && repeats(op, op->body)) {
      if (n < 2)
        out[n] = op;
      n++;
    }
  return n;
}

static bool refuse(const lm_shard *s, lm_loc at, const char *what) {
  LM_REPORT(s->m->ctx, at.line ? at : s->by->loc, E915, s->by->name, what);
  return false;
}

// One micro-batch is computed after the other: what depends on all rows of a micro-batch is known.
static bool by_ticks(const lm_shard *s) {
  return lm_mesh_axis_ticks(s->by);
}

static bool has_rows(const lm_value *v, lm_axis rows) {
  return lm_type_find(v->type, rows) >= 0;
}

bool lm_shard_carries_statistic(const lm_func *f) {
  lm_op *loop[2];
  lm_axis rows = rows_of(f);
  bool found = false;
  for (uint32_t i = 0; repetitions_of(f, loop) == 1 && i < loop[0]->n_in; i++)
    found |= !has_rows(loop[0]->out[i], rows);
  return found;
}

// Operand i of op, the index of the loop, reaches all instances along the stacked axis.
static bool reaches_all(const lm_shard *s, const lm_op *loop, const lm_op *op, int i) {
  lm_axis stack = lm_global_find(s->m, op->attr.sym)->type.axis[i];
  int64_t first = op->attr.imm[2 * i], step = op->attr.imm[2 * i + 1];
  return step > 0 && first >= 0 && first < step &&
         lm_axis_size(s->m, stack) == step * loop->attr.imm[0];
}

// Notes the stacked axes of which the loop reads all instances.
static bool stacks_note(lm_shard *s, const lm_op *loop, const lm_region *r) {
  bool ok = true;
  for (const lm_op *op = r->first; op && ok; op = op->next) {
    int i = lm_shard_indexed(op, loop->body->args[0]);
    if (op->body)
      ok = stacks_note(s, loop, op->body);
    if (i < 0)
      continue;
    if (!reaches_all(s, loop, op, i))
      ok = refuse(s, op->loc,
                  "a list of blocks that differ, or of which some are frozen or adapted apart,");
    s->stacks[lm_global_find(s->m, op->attr.sym)->type.axis[i]] = 1;
  }
  return ok;
}

// The blocks of one iteration of the loop: more than one where blocks of the list differ.
static int64_t period_of(const lm_op *loop, const lm_region *r) {
  int64_t period = 1;
  for (const lm_op *op = r->first; op; op = op->next) {
    int i = lm_shard_indexed(op, loop->body->args[0]);
    int64_t own = i >= 0 ? op->attr.imm[2 * i + 1] : op->body ? period_of(loop, op->body) : 1;
    period = own > period ? own : period;
  }
  return period;
}

static bool size_check(const lm_shard *s, const lm_op *loop) {
  int64_t n = loop->attr.imm[0], stages = (int64_t)s->by->size * lm_mesh_axis_chunks(s->by);
  int64_t period = period_of(loop, loop->body);
  const char *what = s->by->chunks ? "pp * chunks" : s->by->name;
  const char *unit = period > 1 ? "period" : "block", *end = n == 1 ? "" : "s";
  if (n % stages == 0)
    return true;
  lm_buf legal = {0};
  lm_shard_divisors(n, stages, &legal);
  lm_diag *d =
      LM_REPORT(s->m->ctx, s->by->loc, E916, what, (int)stages, (long long)n, unit, end, legal.p);
  if (period > 1)
    lm_diag_note(s->m->ctx, d, loop->loc,
                 "the blocks of this list differ: a period is %lld consecutive ones, which stay "
                 "on one stage",
                 (long long)period);
  lm_buf_free(&legal);
  return false;
}

bool lm_shard_takes_part(const lm_op *op, lm_axis rows) {
  return op->code == LM_OP_PART && op->attr.to[0] == rows;
}

// Moves op and the operations that it depends on in front of the loop. False if that depends on the
// instance.
static bool hoist(const lm_op *loop, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->region == loop->body && (!op->in[i]->def || !hoist(loop, op->in[i]->def)))
      return false;
  lm_op_remove(op);
  lm_op_insert_before((lm_op *)loop, op);
  return !op->body;
}

// The numbers of rows, as random numbers need them, are the same for all instances.
static bool parts_hoist(const lm_shard *s, lm_op *loop, lm_axis rows) {
  for (lm_op *op = loop->body->first, *next; op; op = next) {
    next = op->next;
    if (lm_shard_takes_part(op, rows) && !hoist(loop, op))
      return refuse(s, op->loc, "blocks that combine rows");
  }
  return true;
}

// Each operation of the body computes each row by itself, adds to a state, or computes a statistic
// of all rows.
static bool body_check(const lm_shard *s, const lm_region *r, lm_axis rows) {
  for (const lm_op *op = r->first; op; op = op->next) {
    bool over = lm_attr_has_axis(&op->attr, rows);
    for (int i = 0; i < op->attr.n_to; i++)
      over |= op->attr.to[i] == rows;
    bool inside = op->parent->owner->parent->owner; // of a loop in the body
    bool statistic = by_ticks(s) && !inside && lm_shard_is_statistic(op, rows);
    if (over && !statistic && !lm_shard_routes_rows(op))
      return refuse(s, op->loc, "blocks that combine rows");
    if (lm_op_has(op, LM_T_EFFECT) && op->code != LM_OP_ACCUM)
      return refuse(s, op->loc, "blocks with states");
    if (op->body && !body_check(s, op->body, rows))
      return false;
  }
  return true;
}

static bool loop_check(lm_shard *s, const lm_func *f, lm_op *loop) {
  lm_axis rows = rows_of(f);
  bool computes_more = loop->n_out > loop->n_in;
  for (uint32_t i = 0; i < loop->n_in; i++)
    computes_more |= !has_rows(loop->out[i], rows) && !by_ticks(s);
  if (computes_more)
    return refuse(s, loop->loc, "blocks that compute more than a value of each row");
  return parts_hoist(s, loop, rows) && body_check(s, loop->body, rows) &&
         stacks_note(s, loop, loop->body) && size_check(s, loop);
}

// ---- the instances of a rank

void lm_shard_index_replace(lm_region *r, const lm_value *index, lm_value *instance) {
  for (lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i] == index && op != instance->def && lm_shard_indexed(op, index) < 0)
        op->in[i] = instance;
    if (op->body)
      lm_shard_index_replace(op->body, index, instance);
  }
}

void lm_shard_loop_shorten(lm_shard *s, lm_op *loop, lm_value *rank) {
  int64_t n = loop->attr.imm[0] / s->by->size;
  lm_builder b = {
      .m = s->m,
      .at = loop->body,
      .before = loop->body->first,
      .loc = loop->loc,
  };
  loop->attr.imm[0] = n;
  if (loop->attr.n_axes)
    loop->attr.axes[0] = lm_axis_add(s->m, s->m->axes[loop->attr.axes[0]].name, n, 0);
  lm_value *size = lm_emit_const(&b, lm_type_make(LM_INT, NULL, 0), (double)n);
  lm_value *first = lm_emit2(&b, LM_OP_MUL, rank, size);
  lm_shard_index_replace(loop->body, loop->body->args[0],
                         lm_emit2(&b, LM_OP_ADD, first, loop->body->args[0]));
}

// ---- what depends on the rows alone

typedef struct sinker {
  lm_shard *s;
  lm_op *loop;
  lm_axis rows;
  uint8_t *active;
  int8_t *by_rows; // by value id: 1: depends on the rows, -1: does not, 0: not known yet
  lm_value **map;  // by value id: the copy in the loop's body
  lm_op *own;      // the body's first own operation
  bool failed;
} sinker;

static bool is_outside(const lm_op *loop, const lm_value *v) {
  const lm_region *r = v->region;
  while (r && r != loop->body)
    r = r->owner ? r->owner->parent : NULL;
  return !r;
}

static bool depends(sinker *x, const lm_value *v) {
  int8_t *known = &x->by_rows[v->id];
  if (*known)
    return *known > 0;
  bool found = lm_type_find(v->type, x->rows) >= 0;
  for (uint32_t i = 0; v->def && i < v->def->n_in; i++)
    found |= depends(x, v->def->in[i]);
  *known = found ? 1 : -1;
  return found;
}

// The value in the loop's body for a value outside of it.
static lm_value *sunk(sinker *x, lm_value *v) {
  lm_op *op = v->def;
  if (x->map[v->id])
    return x->map[v->id];
  if (!op || x->active[v->id] || !depends(x, v) || lm_shard_takes_part(op, x->rows))
    return v;
  bool mixes = op->body || lm_op_has(op, LM_T_EFFECT) || lm_attr_has_axis(&op->attr, x->rows);
  if (mixes && !x->failed)
    x->failed = !refuse(x->s, op->loc, "blocks that read a value of all rows");
  for (uint32_t i = 0; i < op->n_in && !x->failed; i++)
    x->map[op->in[i]->id] = sunk(x, op->in[i]);
  if (x->failed)
    return v;
  lm_op_clone(
      &(lm_builder){
          .m = x->s->m,
          .at = x->loop->body,
          .before = x->own,
      },
      op, x->map);
  return x->map[v->id];
}

static void region_sink(sinker *x, lm_op *first) {
  for (lm_op *op = first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (is_outside(x->loop, op->in[i]))
        op->in[i] = sunk(x, op->in[i]);
    if (op->body)
      region_sink(x, op->body->first);
  }
}

static bool repetition_open(lm_shard *s, lm_func *f, lm_op *loop) {
  uint32_t n = s->m->n_values;
  sinker x = {
      .s = s,
      .loop = loop,
      .rows = rows_of(f),
      .own = loop->body->first,
  };
  x.active = lm_activity_of_func(f);
  x.by_rows = lm_calloc((size_t)n + 1, sizeof *x.by_rows);
  x.map = lm_calloc((size_t)n + 1, sizeof *x.map);
  region_sink(&x, x.own);
  lm_free(x.active);
  lm_free(x.by_rows);
  lm_free(x.map);
  lm_shard_repetition *r = LM_NEW(s->m->arena, lm_shard_repetition);
  *r = (lm_shard_repetition){
      .next = s->repetitions, .f = f, .loop = loop, .rows = x.rows, .own = x.own};
  s->repetitions = r;
  return !x.failed;
}

// The loop of the function over instances of a block; NULL if errors were reported.
static lm_op *repetition_only(const lm_shard *s, const lm_func *f) {
  lm_op *loops[2] = {0};
  int n = repetitions_of(f, loops);
  if (!n)
    refuse(s, s->by->loc, "a model without a list of blocks");
  if (n > 1)
    refuse(s, loops[1]->loc, "a model with several lists of blocks");
  return n == 1 ? loops[0] : NULL;
}

static bool func_find(lm_shard *s, lm_func *f) {
  lm_axis rows = rows_of(f);
  if (!rows || lm_axis_size(s->m, rows) % s->by->size)
    return refuse(s, s->by->loc, "rows that are no multiple of it");
  lm_op *loop = repetition_only(s, f);
  return loop && loop_check(s, f, loop) && repetition_open(s, f, loop);
}

static bool reads_stack(const lm_shard *s, const lm_op *op) {
  bool indexed = lm_op_info_indexed(lm_op_info_of(op));
  const lm_global *g = indexed ? lm_global_find(s->m, op->attr.sym) : NULL;
  for (int i = 0; g && i < g->n_stack; i++)
    if (s->stacks[g->type.axis[i]])
      return true;
  return false;
}

// True if the loop alone accesses the globals that are divided, by its index.
static bool uses_check(const lm_shard *s, const lm_op *loop, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (reads_stack(s, op) && lm_shard_indexed(op, loop->body->args[0]) < 0)
      return refuse(s, op->loc, "the use of one block apart from the others");
    if (op->body && !uses_check(s, loop, op->body))
      return false;
  }
  return true;
}

lm_op *lm_shard_repetition_find(lm_shard *s, const lm_func *f) {
  const lm_shard_repetition *r = lm_shard_repetition_of(s, f);
  if (r)
    return r->loop;
  lm_op *loop = repetition_only(s, f);
  bool ok = loop && stacks_note(s, loop, loop->body) && size_check(s, loop) &&
            uses_check(s, loop, f->body);
  return ok ? loop : NULL;
}

// The loss is a sum over rows, and over micro-batches of what the blocks compute of their rows.
static bool loss_check(const lm_shard *s) {
  const lm_row_mix *mix = s->m->analysis ? &s->m->analysis->row_mix : NULL;
  bool sum = !mix || mix->kind == LM_ROW_MIX_INDEPENDENT;
  if (sum || (mix->by_blocks && by_ticks(s)))
    return true;
  return refuse(s, mix->loc, "a loss that is no sum over rows");
}

bool lm_shard_repetitions_find(lm_shard *s) {
  if (!loss_check(s))
    return false;
  for (lm_func *f = s->m->funcs; f; f = f->next)
    if (lm_shard_runs_pipeline(f) && !func_find(s, f))
      return false;
  for (const lm_shard_repetition *r = s->repetitions; r; r = r->next)
    if (!uses_check(s, r->loop, r->f->body))
      return false;
  return true;
}

lm_shard_repetition *lm_shard_repetition_of(const lm_shard *s, const lm_func *f) {
  lm_shard_repetition *r = s->repetitions;
  while (r && r->f != f)
    r = r->next;
  return r;
}

// ---- further carries

// The values with a gradient that the blocks read beside their carries.
static void captured_find(const lm_shard_repetition *x, const uint8_t *active, const lm_region *r,
                          lm_value **out, uint32_t *n) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->body)
      captured_find(x, active, op->body, out, n);
    for (uint32_t i = 0; i < op->n_in; i++) {
      lm_value *v = op->in[i];
      uint32_t k = 0;
      if (v->region != x->f->body || !active[v->id] || lm_type_find(v->type, x->rows) < 0)
        continue;
      while (k < *n && out[k] != v)
        k++;
      out[k] = v;
      *n += k == *n;
    }
  }
}

static void operands_replace(lm_region *r, lm_value *const *map, uint32_t n_map) {
  for (lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      if (op->in[i]->id < n_map && map[op->in[i]->id])
        op->in[i] = map[op->in[i]->id];
    if (op->body)
      operands_replace(op->body, map, n_map);
  }
}

// They become carries, which every block passes on.
void lm_shard_repetition_carry(lm_shard *s, lm_shard_repetition *r) {
  lm_module *m = s->m;
  lm_op *old = r->loop, *yield = old->body->last;
  uint32_t n = old->n_in, k = 0, n_map = m->n_values;
  uint8_t *active = lm_activity_of_func(r->f);
  lm_value **in = LM_NEW_N(m->arena, lm_value *, n_map + n + 1);
  memcpy(in, old->in, n * sizeof *in);
  captured_find(r, active, old->body, in + n, &k);
  lm_free(active);
  if (!k)
    return;
  lm_value **map = lm_calloc((size_t)n_map + 1, sizeof *map);
  lm_builder b = {
      .m = m,
      .at = old->parent,
      .before = old,
      .loc = old->loc,
  };
  lm_op *loop =
      lm_loop_begin(&b, old->attr.imm[0], old->attr.n_axes ? old->attr.axes[0] : 0, in, n + k);
  for (uint32_t i = 0; i <= n; i++)
    map[old->body->args[i]->id] = loop->body->args[i];
  for (uint32_t i = n; i < n + k; i++)
    map[in[i]->id] = loop->body->args[i + 1];
  lm_value **next = LM_NEW_N(m->arena, lm_value *, n + k);
  for (uint32_t i = 0; i < n + k; i++)
    next[i] = i < n ? yield->in[i] : loop->body->args[i + 1];
  lm_loop_end(&b, loop, next, n + k, NULL, 0);
  for (lm_op *op = old->body->first, *next; op != yield; op = next) {
    next = op->next;
    lm_op_remove(op);
    lm_op_insert_before(loop->body->last, op);
  }
  operands_replace(loop->body, map, n_map);
  memset(map, 0, n_map * sizeof *map);
  for (uint32_t i = 0; i < n; i++)
    map[old->out[i]->id] = loop->out[i];
  lm_op_remove(old);
  lm_func_substitute(r->f, map, n_map);
  lm_free(map);
  r->loop = loop;
}

// ---- functions of parameters

// True if every access of a divided global is by the index of `loop` and reaches all instances.
static bool accesses_check(lm_shard *s, const lm_op *loop, const lm_region *r, bool *reads) {
  bool ok = true;
  for (const lm_op *op = r->first; op && ok; op = op->next) {
    if (op->body)
      ok = accesses_check(s, loop, op->body, reads);
    if (!ok || !reads_stack(s, op))
      continue;
    *reads = true;
    int i = loop ? lm_shard_indexed(op, loop->body->args[0]) : -1;
    ok = i >= 0 && reaches_all(s, loop, op, i);
    if (!ok)
      refuse(s, op->loc, "the use of one block apart from the others");
  }
  return ok;
}

// *out: op accesses a divided global. False if errors were reported.
static bool op_check(lm_shard *s, lm_op *op, bool *out) {
  lm_region one = {
      .first = op,
      .last = op,
  };
  *out = false;
  if (op->code == LM_OP_LOOP)
    return accesses_check(s, op, op->body, out);
  return !reads_stack(s, op) || accesses_check(s, NULL, &one, out);
}

bool lm_shard_instances_check(lm_shard *s, lm_func *f) {
  bool ok = true, reads;
  if (f->key.id == LM_FUNC_REQUEST)
    return refuse(s, s->by->loc, "a program that continues a text from columns of a request");
  for (lm_op *op = f->body->first; op && ok; op = op->next)
    ok = op_check(s, op, &reads);
  return ok;
}

static void loop_shorten(lm_shard *s, lm_op *loop) {
  lm_builder b = {
      .m = s->m,
      .at = loop->parent,
      .before = loop,
      .loc = loop->loc,
  };
  lm_attr over = {.mesh = (uint8_t)s->mesh};
  lm_shard_loop_shorten(s, loop, lm_emit(&b, LM_OP_RANK, NULL, 0, &over, NULL));
}

// A loop over all instances becomes one over those of this rank.
bool lm_shard_instances_divide(lm_shard *s, lm_func *f) {
  bool reads;
  for (lm_shard_repetition *r = s->repetitions; r; r = r->next)
    if (r->f == f)
      loop_shorten(s, r->loop);
  if (s->by->chunks)
    return true;
  if (!lm_shard_instances_check(s, f))
    return false;
  for (lm_op *op = f->body->first; op; op = op->next)
    if (op_check(s, op, &reads) && reads)
      loop_shorten(s, op);
  return true;
}
