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
  int64_t from = lm_plan_comm_rows(s, 0);
  int64_t to = lm_plan_comm_rows(s, s->n_read);
  return from < to ? from : to;
}

// What a rank sends in one execution, and how long that takes.
typedef struct sent {
  int64_t messages, bytes;
  double seconds;
} sent;

// Adds one phase, whose messages are under way at the same time, in both directions.
static void phase_add(const lm_message *list, int n, const lm_link *link, sent *out) {
  int64_t bytes[2] = {0}; // received, sent
  for (int i = 0; i < n; i++) {
    bytes[list[i].sends] += (int64_t)list[i].bytes;
    out->messages += list[i].sends;
  }
  out->bytes += bytes[1];
  int64_t most = bytes[bytes[1] > bytes[0]];
  if (n && link)
    out->seconds += link->latency + (double)most / link->bandwidth;
}

// Collective i of the step, whose memory is neither read nor written. A library's sum counts as
// one in the order of the ranks: as many bytes as a ring sends.
static lm_coll coll_of(const lm_plan_step *s, int i, const int32_t *rows) {
  static char memory;
  const lm_plan_comm *c = s->comm;
  return (lm_coll){
      .kind = c->kind,
      .op = c->op == LM_COLL_MAX ? LM_COLL_MAX : LM_COLL_SUM,
      .dtype = c->dtype,
      .count = lm_plan_comm_count(s, i),
      .peer = c->peer,
      .from = &memory,
      .to = &memory,
      .send = rows,
      .receive = rows,
  };
}

// Of an exchange of rows: if the rank sends as many rows to each other one.
static sent sent_by(const lm_plan *p, const lm_plan_step *s, const lm_link *link) {
  const lm_plan_comm *c = s->comm;
  int ranks = ranks_of(p, c->group), n = lm_plan_comm_tensors(c);
  sent out = {0};
  lm_coll x[LM_COLL_BUCKET];
  lm_exchanges all;
  lm_message *list = lm_calloc((size_t)ranks * 2 * (size_t)n, sizeof *list);
  int32_t *even = lm_calloc((size_t)ranks, sizeof *even);
  for (int i = 0; c->kind == LM_COLL_EXCHANGE_ROWS && i < ranks; i++)
    even[i] = (int32_t)(rows_sent(s) / ranks);
  for (int i = 0; i < n; i++)
    x[i] = coll_of(s, i, even);
  lm_exchanges_make(&all, x, n, ranks, own_of(p, c->group), LM_EXCHANGE_ROOM);
  do {
    lm_exchanges_place(&all, NULL);
    phase_add(list, lm_exchanges_messages(&all, list), link, &out);
  } while (lm_exchanges_next(&all));
  lm_free(list);
  lm_free(even);
  return out;
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
    sent one = sent_by(rows->plan, &f->steps[i], NULL);
    x->times += times;
    x->messages += times * one.messages;
    x->bytes += times * one.bytes;
    rows->messages += times * one.messages;
    rows->bytes += times * one.bytes;
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

// ---- their time, and what runs beside them

// A lane moves one collective after the other. `now` is the time of the computation alone, `clock`
// that with the waits for collectives.
typedef struct simulation {
  lm_rank_rows *rows;
  const lm_cost_call *call;
  const lm_plan_walk *walk;
  const double *seconds; // of each step; of a START that of its transfer
  double now, clock, lane[LM_PLAN_LANES];
  double begun[LM_PLAN_HANDLES], done[LM_PLAN_HANDLES]; // by handle: when it begins, and ends
  lm_rank_row *row[LM_PLAN_HANDLES];                    // while it is under way
} simulation;

static bool is_collective(const lm_plan_step *s) {
  bool transfers = s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT;
  return transfers && !lm_plan_step_copies(s);
}

static void start_simulate(simulation *x, const lm_plan_step *s, int handle) {
  double seconds = x->seconds[s - x->call->func->steps];
  double *lane = &x->lane[s->comm->lane];
  lm_rank_row *row = row_find(x->rows, s);
  *lane = (*lane > x->clock ? *lane : x->clock) + seconds;
  x->row[handle] = row;
  x->begun[handle] = x->now;
  x->done[handle] = *lane;
  row->transfer += x->call->calls * seconds;
  x->rows->transfer += x->call->calls * seconds;
}

static void wait_simulate(simulation *x, const lm_plan_step *s, int handle) {
  lm_rank_row *row = row_find(x->rows, s);
  double rest = x->done[handle] - x->clock;
  rest = rest > 0 ? rest : 0;
  x->row[handle] = NULL;
  row->beside += x->call->calls * (x->now - x->begun[handle]);
  row->exposed += x->call->calls * rest;
  x->rows->exposed += x->call->calls * rest;
  x->clock += rest;
}

static void compute_simulate(simulation *x, const lm_plan_step *s) {
  double seconds = x->seconds[s - x->call->func->steps];
  x->now += seconds;
  x->clock += seconds;
  for (int i = 0; i < LM_PLAN_HANDLES; i++) {
    lm_rank_row *row = x->row[i];
    if (!row || seconds <= row->hides_seconds)
      continue;
    row->hides = s;
    row->hides_seconds = seconds;
  }
}

static lm_status step_simulate(void *user, const lm_plan_step *s) {
  simulation *x = user;
  if (!is_collective(s)) {
    compute_simulate(x, s);
    return NULL;
  }
  int handle = lm_plan_comm_handle(s->comm, x->walk->iteration);
  if (s->kind == LM_STEP_START)
    start_simulate(x, s, handle);
  else
    wait_simulate(x, s, handle);
  return NULL;
}

static double seconds_of(const lm_rank_rows *rows, const lm_rank_machine *m,
                         const lm_plan_step *s) {
  if (is_collective(s))
    return s->kind == LM_STEP_START ? sent_by(rows->plan, s, m->link).seconds : 0;
  return lm_cost_launches(s) ? lm_cost_of_step(m->target, rows->plan, s).seconds : 0;
}

static void func_simulate(lm_rank_rows *rows, const lm_rank_machine *m, const lm_cost_call *call) {
  const lm_plan_func *f = call->func;
  lm_plan_walk walk;
  double *seconds = lm_calloc((size_t)f->n_steps + 1, sizeof *seconds);
  for (int i = 0; i < f->n_steps; i++)
    seconds[i] = seconds_of(rows, m, &f->steps[i]);
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

void lm_rank_rows_times(lm_rank_rows *rows, const lm_rank_machine *m, int64_t n_micro) {
  lm_cost_call calls[LM_COST_CALLS];
  int n = rows->n ? lm_cost_calls(rows->plan, n_micro, calls) : 0;
  rows->link = m->link;
  rows->gpu = m->target->kind == LM_TARGET_CUDA;
  for (int i = 0; i < n; i++)
    func_simulate(rows, m, &calls[i]);
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

static const char *hides_of(const lm_rank_row *row) {
  return row->hides && row->hides->label ? row->hides->label : "";
}

// The last row is of all collectives; what runs beside several of them is no sum.
static void line_print(const lm_rank_row *row, const char *over, lm_buf *out) {
  lm_buf size = {0};
  lm_show_bytes(&size, (double)row->bytes);
  lm_buf_printf(out, "%6lld %9lld %10s", (long long)row->times, (long long)row->messages, size.p);
  lm_buf_printf(out, " %11.3f", row->transfer * 1e3);
  if (row->comm)
    lm_buf_printf(out, " %10.3f %10.3f  %-5s %4d  %s%s%s\n", row->beside * 1e3, row->exposed * 1e3,
                  over, row->comm->lane, row->label, row->hides ? ", beside " : "", hides_of(row));
  else
    lm_buf_printf(out, " %10s %10.3f %13s%s\n", "", row->exposed * 1e3, "", row->label);
  lm_buf_free(&size);
}

// Of other collectives the sizes are known when they are recorded.
static bool splits_graphs(const lm_rank_rows *rows) {
  bool any = false;
  for (uint32_t i = 0; i < rows->n; i++)
    any |= rows->v[i].comm->kind == LM_COLL_EXCHANGE_ROWS;
  return any && rows->gpu;
}

void lm_rank_rows_print(const lm_rank_rows *rows, lm_buf *out) {
  lm_rank_row *list = sorted(rows);
  lm_rank_row all = {
      .label = "by a rank in a step",
      .messages = rows->messages,
      .bytes = rows->bytes,
      .transfer = rows->transfer,
      .exposed = rows->exposed,
  };
  lm_buf_puts(out, " times  messages       sent transfer ms  beside ms exposed ms  over  lane  "
                   "what\n");
  for (uint32_t i = 0; i < rows->n; i++) {
    const lm_rank_row *x = &list[i];
    all.times += x->times;
    line_print(x, lm_plan_group_name(rows->plan, x->comm->group), out);
  }
  line_print(&all, "", out);
  if (rows->link)
    lm_buf_printf(out, "over %s: %.3g GB/s, %.3g us; without overlap %.3f ms are exposed\n",
                  rows->link->title, rows->link->bandwidth * 1e-9, rows->link->latency * 1e6,
                  rows->transfer * 1e3);
  if (splits_graphs(rows))
    lm_buf_puts(out, "exchanges of rows are between CUDA graphs: the host waits for their sizes\n");
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
                  "\"messages\": %lld, \"bytes\": %lld, \"lane\": %d, \"beside_ms\": %.6f, "
                  "\"transfer_ms\": %.6f, \"exposed_ms\": %.6f",
                  lm_coll_names[x->comm->kind], lm_plan_group_name(rows->plan, x->comm->group),
                  (long long)x->comm->count, (long long)x->times, (long long)x->messages,
                  (long long)x->bytes, x->comm->lane, x->beside * 1e3, x->transfer * 1e3,
                  x->exposed * 1e3);
    lm_buf_puts(out, ", \"beside\": ");
    lm_buf_json(out, hides_of(x));
    lm_buf_puts(out, "}");
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
