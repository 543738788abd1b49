// ports.c - see ports.h.
#include "runtime/train/ports.h"

#include <string.h>

static void *spare(lm_batch_ports *b, int64_t elements) {
  return b->spare[b->n_spare++] = lm_calloc((size_t)elements, LM_COLUMN_BYTES);
}

// The parts of dim d.
static int parts_of(const lm_plan *p, const lm_plan_port *port, int d, int *own) {
  return lm_plan_parts_of(p, port->by[d] & lm_plan_positions(p), own);
}

static bool is_balanced(const lm_plan *p, lm_mesh_set set) {
  for (int k = 0; k < p->mesh.n; k++)
    if (set >> k & 1 && p->mesh.axis[k].balanced)
      return true;
  return false;
}

static int64_t elements(const lm_plan_port *p, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; d++)
    n *= p->shape[d];
  return n;
}

// The memory of an argument's column, and the elements of a row.
static void *column(lm_exec *e, const lm_plan *p, const lm_plan_port *port, lm_batch_ports *out,
                    int64_t *row) {
  int own, parts = 1, d = 1;
  while (d < port->rank && (parts = parts_of(p, port, d, &own)) == 1)
    d++;
  *row = elements(port, 1, port->rank) * parts;
  if (parts == 1)
    return lm_exec_port(e, port);
  lm_batch_cut *x = &out->cuts[out->n_cuts++];
  *x = (lm_batch_cut){.whole = spare(out, port->shape[0] * *row),
                      .part = lm_exec_port(e, port),
                      .runs = elements(port, 0, d),
                      .bytes = elements(port, d, port->rank) * LM_COLUMN_BYTES,
                      .parts = parts,
                      .own = own,
                      .balanced = is_balanced(p, port->by[d])};
  return (void *)x->whole;
}

static void more_open(lm_exec *e, const lm_plan *p, const lm_plan_func *f, lm_batch_ports *out) {
  out->batch.more = out->more = lm_calloc((size_t)f->n_in + 1, sizeof *out->more);
  for (int i = 0; i < f->n_in; i++) {
    const char *name = lm_column_name_of(f->in[i].name);
    if (!name)
      continue;
    lm_batch_column *x = &out->more[out->batch.n_more++];
    x->name = name;
    x->data = column(e, p, &f->in[i], out, &x->row);
  }
}

lm_status lm_batch_ports_open(lm_exec *e, const lm_plan *p, const lm_plan_func *f,
                              lm_batch_ports *out) {
  size_t most = (size_t)f->n_in + LM_COLUMNS;
  *out = (lm_batch_ports){.spare = lm_calloc(most, sizeof *out->spare),
                          .cuts = lm_calloc(most, sizeof *out->cuts)};
  for (int c = 0; c < LM_COLUMNS; c++) {
    const lm_plan_port *port = lm_plan_port_get(f, (lm_port_id)c, false);
    int64_t row = 0;
    out->batch.column[c] = port ? column(e, p, port, out, &row) : NULL;
    if (!port || port->rank != 2)
      continue;
    out->rows = port->shape[0];
    out->seq = row;
  }
  if (!out->rows) {
    lm_batch_ports_close(out);
    return lm_fail(LM_BUG_STATUS, "%s takes no batch", f->name);
  }
  for (int c = 0; c < LM_COLUMNS; c++)
    if (!out->batch.column[c])
      out->batch.column[c] = spare(out, out->rows * out->seq);
  more_open(e, p, f, out);
  return NULL;
}

static void run_cut(const lm_batch_cut *x, const char *run, char *part) {
  int64_t half = x->bytes / 2;
  if (!x->balanced) {
    memcpy(part, run + x->own * x->bytes, (size_t)x->bytes);
    return;
  }
  memcpy(part, run + x->own * half, (size_t)half);
  memcpy(part + half, run + (2 * x->parts - 1 - x->own) * half, (size_t)half);
}

void lm_batch_ports_cut(const lm_batch_ports *b) {
  for (int i = 0; i < b->n_cuts; i++) {
    const lm_batch_cut *x = &b->cuts[i];
    for (int64_t k = 0; k < x->runs; k++)
      run_cut(x, x->whole + k * x->parts * x->bytes, x->part + k * x->bytes);
  }
}

void lm_batch_ports_close(lm_batch_ports *b) {
  for (int i = 0; i < b->n_spare; i++)
    lm_free(b->spare[i]);
  lm_free(b->spare);
  lm_free(b->cuts);
  lm_free(b->more);
  *b = (lm_batch_ports){0};
}
