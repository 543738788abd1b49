// shard_chunks.c - the instances of a repetition as several lists, of each of which a rank has a
// part: the stages of an interleaved pipeline.
//
// before: mesh pp = 2 pipeline 4 interleaved 2                         layers = 8
//         param @w : f32[layers, d, e] stacked 1
//         func @update(…) -> … { loop 8 %i { %w = param @w[%i] … } }
// after:  param @w : f32[chunk, layers.1, d, e] stacked 2              chunk = 2, layers.1 = 4
//         func @update(…) -> … { loop 2 %c { loop 4 %j { %w = param @w[%c, %j] … } } }
//
// Instance i of 8 is instance i mod 4 of list i / 4, so paths and initial values stay. Then the
// lists are divided as the one list is otherwise (shard_repetition.c): rank r has instances 2 r and
// 2 r + 1 of both lists, which are stages r and 2 + r of four. In the functions of a batch the
// repetition becomes that of one list, whose number the loop over ticks gives (shard_ticks.c).
#include <string.h>
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

typedef struct splitter {
  lm_shard *s;
  lm_axis chunk;
  lm_axis *now;    // by axis: that of the instances of one list; 0: the axis counts none
  uint32_t n_axes; // that it has
} splitter;

static bool refuse(const lm_shard *s, lm_loc at, const char *what) {
  LM_REPORT(s->m->ctx, at.line ? at : s->by->loc, E915, s->by->name, what);
  return false;
}

static lm_value *number(lm_builder *b, int64_t n) {
  return lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n);
}

// ---- axes and globals

static void axes_make(splitter *x) {
  lm_shard *s = x->s;
  lm_module *m = s->m;
  x->n_axes = m->n_axes;
  x->now = LM_NEW_N(m->arena, lm_axis, m->n_axes);
  x->chunk = lm_axis_add(m, LM_SYM(m->ctx, "chunk"), s->by->chunks, 0);
  for (lm_axis a = 1; a < x->n_axes; a++) {
    if (!s->stacks[a])
      continue;
    x->now[a] = lm_axis_add(m, m->axes[a].name, m->axes[a].size / s->by->chunks, 0);
    s->stacks[a] = 0;
    s->stacks[x->now[a]] = 1;
  }
}

static lm_axis list_of(const splitter *x, lm_axis a) {
  return a < x->n_axes ? x->now[a] : 0;
}

// The number among the stacked axes of g of the one that counts instances; -1: none.
static int split_at(const splitter *x, const lm_global *g) {
  for (int k = 0; g && k < g->n_stack; k++)
    if (list_of(x, g->type.axis[k]))
      return k;
  return -1;
}

// True if the global can have one more stacked axis, or needs none.
static bool global_check(const splitter *x, const lm_global *g) {
  if (split_at(x, g) < 0)
    return true;
  if (g->first)
    return refuse(x->s, g->loc, "a list of which some blocks are updated apart");
  if (g->n_stack == LM_INDICES)
    return refuse(x->s, g->loc, "lists that nest 4 deep, with several stages on each rank,");
  return g->type.rank < LM_RANK ||
         refuse(x->s, g->loc, "a tensor of 12 axes, with several stages on each rank,");
}

static bool globals_check(const splitter *x) {
  for (uint32_t i = 0; i < x->s->m->n_globals; i++)
    if (!global_check(x, &x->s->m->globals[i]))
      return false;
  return true;
}

static void global_split(const splitter *x, lm_global *g) {
  int k = split_at(x, g);
  if (k < 0)
    return;
  lm_axis *axis = g->type.axis;
  memmove(axis + k + 1, axis + k, (size_t)(g->type.rank - k) * sizeof *axis);
  axis[k + 1] = list_of(x, axis[k]);
  axis[k] = x->chunk;
  g->type.rank++;
  g->n_stack++;
}

// ---- accesses

// Which index of op counts instances; -1: none.
static int index_of(const splitter *x, const lm_op *op) {
  bool indexed = lm_op_info_indexed(lm_op_info_of(op));
  int k = indexed ? split_at(x, lm_global_find(x->s->m, op->attr.sym)) : -1;
  return k < op->attr.n_imm / 2 ? k : -1;
}

// Inserts the index `chunk` in front of index k.
static void index_insert(const splitter *x, lm_op *op, int k, lm_value *chunk) {
  lm_value **in = LM_NEW_N(x->s->m->arena, lm_value *, op->n_in + 1);
  int64_t *imm = op->attr.imm;
  memcpy(in, op->in, (size_t)k * sizeof *in);
  memcpy(in + k + 1, op->in + k, (op->n_in - (size_t)k) * sizeof *in);
  memmove(imm + 2 * k + 2, imm + 2 * k, (size_t)(op->attr.n_imm - 2 * k) * sizeof *imm);
  in[k] = chunk;
  imm[2 * k] = 0;
  imm[2 * k + 1] = 1;
  op->attr.n_imm += 2;
  op->in = in;
  op->n_in++;
}

static void accesses_split(const splitter *x, lm_region *r, lm_value *chunk) {
  for (lm_op *op = r->first; op; op = op->next) {
    int k = index_of(x, op);
    if (k >= 0)
      index_insert(x, op, k, chunk);
    if (op->body)
      accesses_split(x, op->body, chunk);
  }
}

// An access to one instance, whose number is known (shard_begin.c).
static bool access_split(const splitter *x, lm_op *op, int k) {
  const lm_op *index = op->in[k]->def;
  int64_t *imm = &op->attr.imm[2 * k];
  const lm_global *g = lm_global_find(x->s->m, op->attr.sym);
  int64_t n = lm_axis_size(x->s->m, list_of(x, g->type.axis[k]));
  if (!index || index->code != LM_OP_CONST)
    return refuse(x->s, op->loc, "initial values that depend on another block");
  int64_t at = (int64_t)index->attr.num, i = imm[0] + imm[1] * at;
  index_insert(x, op, k, op->in[k]);
  imm[0] = i / n - at;
  imm[2] = i % n - at;
  imm[3] = 1;
  return true;
}

static bool begin_split(const splitter *x, lm_region *r) {
  bool ok = true;
  for (lm_op *op = r->first; op && ok; op = op->next) {
    int k = index_of(x, op);
    ok = k < 0 || access_split(x, op, k);
    if (ok && op->body)
      ok = begin_split(x, op->body);
  }
  return ok;
}

// ---- the list of a tick

static void operands_replace(lm_region *r, const lm_value *of, lm_value *by) {
  for (lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      op->in[i] = op->in[i] == of ? by : op->in[i];
    if (op->body)
      operands_replace(op->body, of, by);
  }
}

void lm_shard_chunk_set(lm_shard *s, const lm_shard_order *o, lm_builder *b, lm_op *loop,
                        lm_value *tick, lm_value *pass) {
  const lm_shard_repetition *r = lm_shard_repetition_of(s, s->f);
  int64_t period = o->ranks * o->chunks;
  lm_attr at = {
      .mesh = (uint8_t)s->mesh,
      .imm = {0, 1, period - 1, period, o->ranks},
      .n_imm = 5,
  };
  if (o->chunks == 1)
    return;
  lm_value *chunk = lm_emit(b, LM_OP_CYCLE, &tick, 1, &at, NULL);
  operands_replace(loop->body, r->list, lm_shard_order_chunk(o, b, pass));
  operands_replace(loop->body, r->chunk, chunk);
}

// ---- loops

// The loop over instances becomes one over those of a list, whose number is `chunk`: an index of
// accesses; `list` is the same, elsewhere. The numbers of instances are computed in front of
// `before`; returns the first operation that does.
static lm_op *loop_split(const splitter *x, lm_op *loop, lm_op *before, lm_value *chunk,
                         lm_value *list) {
  lm_module *m = x->s->m;
  lm_builder b = {
      .m = m,
      .at = loop->body,
      .before = before,
      .loc = loop->loc,
  };
  int64_t n = loop->attr.imm[0] / x->s->by->chunks;
  loop->attr.imm[0] = n;
  if (loop->attr.n_axes)
    loop->attr.axes[0] = lm_axis_add(m, m->axes[loop->attr.axes[0]].name, n, 0);
  lm_value *size = number(&b, n), *first = lm_emit2(&b, LM_OP_MUL, list, size);
  lm_shard_index_replace(loop->body, loop->body->args[0],
                         lm_emit2(&b, LM_OP_ADD, first, loop->body->args[0]));
  accesses_split(x, loop->body, chunk);
  return size->def;
}

// A loop over the lists around that over instances. Returns the inner one.
static lm_op *loop_nest(const splitter *x, lm_func *f, lm_op *old) {
  lm_module *m = x->s->m;
  uint32_t n_map = m->n_values;
  lm_value **map = lm_calloc((size_t)n_map + 1, sizeof *map);
  lm_value **of = lm_calloc((size_t)n_map + 1, sizeof *of);
  lm_builder b = {
      .m = m,
      .at = old->parent,
      .before = old,
      .loc = old->loc,
  };
  lm_op *outer = lm_loop_begin(&b, x->s->by->chunks, 0, old->in, old->n_in);
  lm_op *inner = lm_op_clone(&b, old, map);
  for (uint32_t i = 0; i < old->n_in; i++)
    inner->in[i] = outer->body->args[i + 1];
  lm_loop_end(&b, outer, inner->out, old->n_in, NULL, 0);
  loop_split(x, inner, inner->body->first, outer->body->args[0], outer->body->args[0]);
  for (uint32_t i = 0; i < old->n_in; i++)
    of[old->out[i]->id] = outer->out[i];
  lm_op_remove(old);
  lm_func_substitute(f, of, n_map);
  lm_free(map);
  lm_free(of);
  return inner;
}

static void repetition_note(lm_shard *s, lm_func *f, lm_op *loop) {
  lm_shard_repetition *r = LM_NEW(s->m->arena, lm_shard_repetition);
  *r = (lm_shard_repetition){
      .next = s->repetitions,
      .f = f,
      .loop = loop,
  };
  s->repetitions = r;
}

static void pipeline_split(const splitter *x, lm_shard_repetition *r) {
  lm_builder b = {
      .m = x->s->m,
      .at = r->f->body,
      .before = r->f->body->first,
      .loc = r->loop->loc,
  };
  r->chunk = number(&b, 0);
  r->list = number(&b, 0);
  r->own = loop_split(x, r->loop, r->own, r->chunk, r->list);
}

static bool visits(const splitter *x, const lm_op *op) {
  if (index_of(x, op) >= 0)
    return true;
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    if (visits(x, in))
      return true;
  return false;
}

// The loops over instances of a function of parameters alone.
static bool loops_split(const splitter *x, lm_func *f) {
  for (lm_op *op = f->body->first, *next; op; op = next) {
    next = op->next;
    if (!visits(x, op))
      continue;
    if (op->code != LM_OP_LOOP || op->n_out != op->n_in)
      return refuse(x->s, op->loc, "the use of one block apart from the others");
    repetition_note(x->s, f, loop_nest(x, f, op));
  }
  return true;
}

static bool continues_text(const lm_func *f) {
  return f->key.id == LM_FUNC_PREFILL || f->key.id == LM_FUNC_DECODE;
}

// Finds the loops before anything changes. False if errors were reported.
static bool loops_check(lm_shard *s) {
  for (lm_func *f = s->m->funcs; f; f = f->next) {
    if (lm_shard_runs_pipeline(f) || f->key.id == LM_FUNC_BEGIN)
      continue;
    bool ok =
        continues_text(f) ? lm_shard_repetition_find(s, f) != NULL : lm_shard_instances_check(s, f);
    if (!ok)
      return false;
  }
  return true;
}

static bool func_split(const splitter *x, lm_func *f) {
  lm_shard_repetition *r = lm_shard_repetition_of(x->s, f);
  if (r)
    pipeline_split(x, r);
  else if (f->key.id == LM_FUNC_BEGIN)
    return begin_split(x, f->body);
  else
    return loops_split(x, f);
  return true;
}

bool lm_shard_chunks(lm_shard *s) {
  splitter x = {.s = s};
  bool ok = s->by->chunks < 2 || loops_check(s);
  if (!ok || s->by->chunks < 2)
    return ok;
  axes_make(&x);
  ok = globals_check(&x);
  for (lm_func *f = s->m->funcs; f && ok; f = f->next)
    ok = func_split(&x, f);
  for (uint32_t i = 0; i < s->m->n_globals && ok; i++)
    global_split(&x, &s->m->globals[i]);
  return ok;
}
