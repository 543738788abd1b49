// rank_rows.c - see rank_rows.h.
#include "driver/rank_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/plan/cost.h"
#include "driver/text.h"
#include "runtime/comm/exchange.h"
#include "runtime/plan/walk.h"

// ---- the messages of a collective

static int ranks_of(const lm_plan *p, int group) {
  return group ? p->mesh.axis[group - 1].size : lm_plan_mesh_ranks(p);
}

static int own_of(const lm_plan *p, int group) {
  int rank = 0;
  for (int k = 0; k < p->mesh.n && !group; k++)
    rank = rank * p->mesh.axis[k].size + p->mesh.axis[k].at;
  return group ? p->mesh.axis[group - 1].at : rank;
}

// The rows that a rank has before or after an exchange, when none has more than its points.
static int64_t rows_sent(const lm_plan_step *s) {
  int64_t from = s->bufs[0].bytes;
  int64_t to = s->bufs[s->n_read].bytes;
  return (from < to ? from : to) / (s->comm->count * lm_dtype_bytes(s->comm->dtype));
}

// Adds the messages that the rank sends in one execution: of an exchange of rows, if it sends as
// many rows to each rank. Of collective number `tensor` of the bucket.
static void messages_count(const lm_plan *p, const lm_plan_step *s, int tensor, int64_t *messages,
                           int64_t *bytes) {
  static char memory; // is neither read nor written
  const lm_plan_comm *c = s->comm;
  int ranks = ranks_of(p, c->group);
  lm_exchange x = {.coll = {.kind = c->kind,
                            .op = c->op,
                            .dtype = c->dtype,
                            .count = lm_plan_comm_count(s, tensor),
                            .peer = c->peer,
                            .from = &memory,
                            .to = &memory},
                   .ranks = ranks,
                   .me = own_of(p, c->group),
                   .room = LM_EXCHANGE_ROOM,
                   .workspace = (uint8_t *)&memory};
  lm_message *list = lm_calloc((size_t)ranks * 2, sizeof *list);
  int32_t *even = lm_calloc((size_t)ranks, sizeof *even);
  x.coll.send = x.coll.receive = even;
  for (int i = 0; c->kind == LM_COLL_EXCHANGE_ROWS && i < ranks; i++)
    even[i] = (int32_t)(rows_sent(s) / ranks);
  lm_exchange_round(&x);
  do {
    int n = lm_exchange_messages(&x, list);
    for (int i = 0; i < n; i++) {
      *messages += list[i].sends;
      *bytes += list[i].sends ? (int64_t)list[i].bytes : 0;
    }
  } while (lm_exchange_next(&x));
  lm_free(list);
  lm_free(even);
}

// ---- rows

static bool same_row(const lm_rank_row *x, const lm_plan_step *s) {
  const lm_plan_comm *a = x->comm, *b = s->comm;
  return a->kind == b->kind && a->op == b->op && a->dtype == b->dtype && a->count == b->count &&
         a->group == b->group && !strcmp(x->label, s->label ? s->label : "");
}

static lm_rank_row *row_find(const lm_rank_rows *rows, const lm_plan_step *s) {
  for (uint32_t i = 0; i < rows->n; i++)
    if (same_row(&rows->v[i], s))
      return &rows->v[i];
  return NULL;
}

static lm_rank_row *row_of(lm_arena *a, lm_rank_rows *rows, const lm_plan_step *s) {
  lm_rank_row *found = row_find(rows, s);
  if (found)
    return found;
  LM_PUSH(a, rows->v, rows->n, rows->cap) =
      (lm_rank_row){.comm = s->comm, .label = s->label ? s->label : ""};
  return &rows->v[rows->n - 1];
}

static void func_add(lm_arena *a, lm_rank_rows *rows, const lm_cost_call *call) {
  const lm_plan_func *f = call->func;
  for (int i = 0; i < f->n_steps; i++) {
    if (f->steps[i].kind != LM_STEP_START || lm_plan_step_copies(&f->steps[i]))
      continue;
    lm_rank_row *x = row_of(a, rows, &f->steps[i]);
    int64_t times = (int64_t)ceil(call->calls * (double)lm_plan_step_times(f, i));
    int64_t messages = 0, bytes = 0;
    for (int k = 0; k < lm_plan_comm_tensors(f->steps[i].comm); k++)
      messages_count(rows->plan, &f->steps[i], k, &messages, &bytes);
    x->times += times;
    x->messages += times * messages;
    x->bytes += times * bytes;
    rows->messages += times * messages;
    rows->bytes += times * bytes;
  }
}

lm_rank_rows lm_rank_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro) {
  lm_rank_rows rows = {.plan = plan};
  lm_cost_call calls[LM_COST_CALLS];
  int n = lm_cost_calls(plan, n_micro, calls);
  for (int i = 0; i < n; i++)
    func_add(a, &rows, &calls[i]);
  return rows;
}

// ---- what runs beside them

typedef struct simulation {
  lm_rank_rows *rows;
  const lm_cost_call *call;
  const lm_plan_walk *walk;
  const double *seconds; // of each step
  double now, begun[LM_PLAN_HANDLES];
} simulation;

static bool is_collective(const lm_plan_step *s) {
  bool transfers = s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT;
  return transfers && !lm_plan_step_copies(s);
}

static lm_status step_simulate(void *user, const lm_plan_step *s) {
  simulation *x = user;
  if (!is_collective(s)) {
    x->now += x->seconds[s - x->call->func->steps];
    return NULL;
  }
  double *begun = &x->begun[lm_plan_comm_handle(s->comm, x->walk->iteration)];
  if (s->kind == LM_STEP_START) {
    *begun = x->now;
    return NULL;
  }
  row_find(x->rows, s)->beside += x->call->calls * (x->now - *begun);
  return NULL;
}

static void func_simulate(lm_rank_rows *rows, const lm_target *t, const lm_cost_call *call) {
  const lm_plan_func *f = call->func;
  lm_plan_walk walk;
  double *seconds = lm_calloc((size_t)f->n_steps + 1, sizeof *seconds);
  for (int i = 0; i < f->n_steps; i++)
    if (lm_cost_launches(&f->steps[i]))
      seconds[i] = lm_cost_of_step(t, rows->plan, &f->steps[i]).seconds;
  lm_plan_walk_open(rows->plan, &walk);
  simulation x = {
      .rows = rows,
      .call = call,
      .walk = &walk,
      .seconds = seconds,
  };
  lm_status_free(lm_plan_walk_run(&walk, f, NULL, step_simulate, &x));
  lm_plan_walk_close(&walk);
  lm_free(seconds);
}

void lm_rank_rows_beside(lm_rank_rows *rows, const lm_target *t, int64_t n_micro) {
  lm_cost_call calls[LM_COST_CALLS];
  int n = rows->n ? lm_cost_calls(rows->plan, n_micro, calls) : 0;
  for (int i = 0; i < n; i++)
    func_simulate(rows, t, &calls[i]);
}

// ---- printing

static int by_bytes(const void *a, const void *b) {
  const lm_rank_row *x = a, *y = b;
  return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                              : strcmp(x->label, y->label);
}

static lm_rank_row *sorted(const lm_rank_rows *rows) {
  lm_rank_row *list = lm_calloc((size_t)rows->n + 1, sizeof *list);
  if (rows->n)
    memcpy(list, rows->v, rows->n * sizeof *list);
  qsort(list, rows->n, sizeof *list, by_bytes);
  return list;
}

// The last row is of all collectives; what runs beside several of them is no sum.
static void line_print(const lm_rank_row *row, const char *over, lm_buf *out) {
  lm_buf size = {0};
  lm_show_bytes(&size, (double)row->bytes);
  lm_buf_printf(out, "%6lld %9lld %10s", (long long)row->times, (long long)row->messages, size.p);
  if (row->comm)
    lm_buf_printf(out, " %10.3f  %-5s %4d  %s\n", row->beside * 1e3, over, row->comm->lane,
                  row->label);
  else
    lm_buf_printf(out, " %24s%s\n", "", row->label);
  lm_buf_free(&size);
}

void lm_rank_rows_print(const lm_rank_rows *rows, lm_buf *out) {
  lm_rank_row *list = sorted(rows);
  lm_rank_row all = {
      .label = "by a rank in a step",
      .messages = rows->messages,
      .bytes = rows->bytes,
  };
  lm_buf_puts(out, " times  messages       sent  beside ms  over  lane  what\n");
  for (uint32_t i = 0; i < rows->n; i++) {
    const lm_rank_row *x = &list[i];
    all.times += x->times;
    line_print(x, lm_plan_group_name(rows->plan, x->comm->group), out);
  }
  line_print(&all, "", out);
  lm_free(list);
}

void lm_rank_rows_json(const lm_rank_rows *rows, lm_buf *out) {
  lm_rank_row *list = sorted(rows);
  lm_buf_puts(out, "[");
  for (uint32_t i = 0; i < rows->n; i++) {
    const lm_rank_row *x = &list[i];
    lm_buf_puts(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
    lm_buf_json(out, x->label);
    lm_buf_printf(out,
                  ", \"kind\": \"%s\", \"over\": \"%s\", \"elements\": %lld, \"times\": %lld, "
                  "\"messages\": %lld, \"bytes\": %lld, \"lane\": %d, \"beside_ms\": %.6f}",
                  lm_coll_names[x->comm->kind], lm_plan_group_name(rows->plan, x->comm->group),
                  (long long)x->comm->count, (long long)x->times, (long long)x->messages,
                  (long long)x->bytes, x->comm->lane, x->beside * 1e3);
  }
  lm_buf_puts(out, "]");
  lm_free(list);
}

void lm_rank_memory_print(const lm_plan *p, lm_buf *out) {
  for (int i = 0, n = 0; i < LM_ARENAS; i++) {
    if (!p->arena_bytes[i])
      continue;
    lm_buf_printf(out, "%s%s ", n++ ? ", " : "", lm_arena_names[i]);
    lm_show_bytes(out, (double)p->arena_bytes[i]);
  }
}
