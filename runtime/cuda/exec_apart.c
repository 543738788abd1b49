// exec_apart.c - which steps of a function cannot be recorded in a graph.
//
// An all-to-all of routed rows has message sizes that the host reads from the device. It can
// therefore not be part of a graph, and is enqueued between two graphs. CUDA requires that a stream
// which takes part in a capture waits only for events of this capture, and is joined before its
// end. So a transfer that is in flight across such an exchange is not captured either.
#include "runtime/cuda/exec_state.h"

typedef struct transfers {
  const cuda_exec *e;
  const lm_plan_func *f;
  bool *apart;
  int *started; // by handle: the step that began the transfer under way; -1: none
  int n;        // handles
  bool changed;
} transfers;

static int handles_of(const lm_plan_func *f) {
  int n = 0;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_comm *c = f->steps[i].comm;
    int end = c ? c->handle + (c->slots ? c->slots : 1) : 0;
    n = end > n ? end : n;
  }
  return n;
}

static void apart_set(transfers *t, int step) {
  t->changed |= !t->apart[step];
  t->apart[step] = true;
}

// The WAIT of a transfer is apart if its START is; at other steps that are, those under way become
// apart.
static lm_status step_visit(void *user, const lm_plan_step *s) {
  transfers *t = user;
  if (s->kind == LM_STEP_LOOP)
    return NULL;
  int at = (int)(s - t->f->steps);
  int handle = s->comm ? lm_plan_comm_handle(s->comm, t->e->walk.iteration) : -1;
  if (s->kind == LM_STEP_WAIT) {
    int start = t->started[handle];
    LM_ASSERT(start >= 0);
    if (t->apart[start] || t->apart[at]) {
      apart_set(t, start);
      apart_set(t, at);
    }
    t->started[handle] = -1;
  }
  for (int i = 0; t->apart[at] && i < t->n; i++)
    if (t->started[i] >= 0)
      apart_set(t, t->started[i]);
  if (s->kind == LM_STEP_START)
    t->started[handle] = at;
  return NULL;
}

static bool exchanges_rows(const lm_plan_step *s) {
  bool collective = s->kind == LM_STEP_START || s->kind == LM_STEP_WAIT;
  return collective && s->comm->kind == LM_COLL_EXCHANGE_ROWS;
}

void cuda_exec_apart_find(cuda_exec *e, const lm_plan_func *f, func_state *x) {
  transfers t = {
      .e = e,
      .f = f,
      .n = handles_of(f),
  };
  bool any = false;
  t.apart = LM_NEW_N(e->arena, bool, f->n_steps + 1);
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    t.apart[i] = exchanges_rows(s);
    any |= t.apart[i];
    x->exchanges |= s->kind == LM_STEP_START && !lm_plan_step_copies(s);
  }
  if (!any)
    return;
  x->apart = t.apart;
  t.started = LM_NEW_N(e->arena, int, t.n + 1);
  do {
    t.changed = false;
    for (int i = 0; i < t.n; i++)
      t.started[i] = -1;
    lm_status_free(lm_plan_walk_run(&e->walk, f, NULL, step_visit, &t));
  } while (t.changed);
}
