// prefetch.c - see prefetch.h. One slot, filled by the thread and emptied by the caller.
#include "runtime/data/feed/prefetch.h"

#include <pthread.h>
#include <string.h>

typedef enum {
  EMPTY,
  REQUESTED,
  READY,
  STOP
} slot_state;

struct lm_prefetch {
  lm_fill_fn *fill;
  void *user;
  pthread_t thread;
  pthread_mutex_t lock; // protects the members below
  pthread_cond_t changed;
  slot_state state;
  lm_batch_id id; // the batch of a slot that is REQUESTED or READY
  lm_batch slot;
  lm_batch_column *more;   // of slot
  int64_t positions, rows; // capacity of slot
  lm_status status;
};

static void slot_free(lm_prefetch *p) {
  for (int c = 0; c < LM_COLUMNS; c++)
    lm_free(p->slot.column[c]);
  for (int i = 0; i < p->slot.n_more; i++)
    lm_free(p->more[i].data);
  lm_free(p->more);
}

// True if the slot has the further columns of b, for at most as many positions and rows as it
// holds.
static bool slot_fits(const lm_prefetch *p, const lm_batch_id *id, const lm_batch *b) {
  bool fits =
      id->own * id->seq <= p->positions && id->own <= p->rows && b->n_more == p->slot.n_more;
  for (int i = 0; fits && i < b->n_more; i++)
    fits = !strcmp(p->more[i].name, b->more[i].name) && p->more[i].row == b->more[i].row;
  return fits;
}

static void slot_resize(lm_prefetch *p, const lm_batch_id *id, const lm_batch *like) {
  if (slot_fits(p, id, like))
    return;
  slot_free(p);
  p->positions = id->own * id->seq;
  p->rows = id->own;
  for (int c = 0; c < LM_COLUMNS; c++)
    p->slot.column[c] = lm_calloc((size_t)p->positions, LM_COLUMN_BYTES);
  p->more = lm_calloc((size_t)like->n_more + 1, sizeof *p->more);
  p->slot.more = p->more;
  p->slot.n_more = like->n_more;
  for (int i = 0; i < like->n_more; i++) {
    p->more[i] = like->more[i];
    p->more[i].data = lm_calloc((size_t)(p->rows * p->more[i].row) + 1, LM_COLUMN_BYTES);
  }
}

static void batch_copy(const lm_batch *to, const lm_batch *from, const lm_batch_id *id) {
  for (int c = 0; c < LM_COLUMNS; c++)
    memcpy(to->column[c], from->column[c], (size_t)(id->own * id->seq) * LM_COLUMN_BYTES);
  for (int i = 0; i < to->n_more; i++)
    memcpy(to->more[i].data, from->more[i].data,
           (size_t)(id->own * to->more[i].row) * LM_COLUMN_BYTES);
}

static void *work(void *user) {
  lm_prefetch *p = user;
  pthread_mutex_lock(&p->lock);
  while (p->state != STOP) {
    if (p->state != REQUESTED) {
      pthread_cond_wait(&p->changed, &p->lock);
      continue;
    }
    pthread_mutex_unlock(&p->lock); // this thread owns the slot while the state is REQUESTED
    lm_status s = p->fill(p->user, &p->id, &p->slot);
    pthread_mutex_lock(&p->lock);
    p->status = s;
    if (p->state == REQUESTED)
      p->state = READY;
    pthread_cond_broadcast(&p->changed);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

// The thread has ended, or never started.
static void prefetch_free(lm_prefetch *p) {
  pthread_cond_destroy(&p->changed);
  pthread_mutex_destroy(&p->lock);
  lm_status_free(p->status);
  slot_free(p);
  lm_free(p);
}

lm_prefetch *lm_prefetch_create(lm_fill_fn *fill, void *user) {
  lm_prefetch *p = lm_alloc(sizeof *p);
  p->fill = fill;
  p->user = user;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->changed, NULL);
  if (!pthread_create(&p->thread, NULL, work, p))
    return p;
  prefetch_free(p);
  return NULL;
}

void lm_prefetch_destroy(lm_prefetch *p) {
  if (!p)
    return;
  pthread_mutex_lock(&p->lock);
  p->state = STOP;
  pthread_cond_broadcast(&p->changed);
  pthread_mutex_unlock(&p->lock);
  pthread_join(p->thread, NULL);
  prefetch_free(p);
}

static bool batches_equal(const lm_batch_id *a, const lm_batch_id *b) {
  return a->step == b->step && a->micro == b->micro && a->n_micro == b->n_micro &&
         a->rows == b->rows && a->seq == b->seq && a->first == b->first && a->own == b->own;
}

lm_status lm_prefetch_take(lm_prefetch *p, const lm_batch_id *id, const lm_batch_id *next,
                           const lm_batch *b) {
  pthread_mutex_lock(&p->lock);
  while (p->state == REQUESTED)
    pthread_cond_wait(&p->changed, &p->lock);
  lm_status s = p->status;
  bool ready = p->state == READY && batches_equal(&p->id, id) && slot_fits(p, id, b);
  p->status = NULL;
  if (!ready) {
    lm_status_free(s); // of a batch that is not needed
    s = p->fill(p->user, id, b);
  } else if (!s) {
    batch_copy(b, &p->slot, id);
  }
  p->state = s ? EMPTY : REQUESTED;
  p->id = *next;
  if (!s)
    slot_resize(p, next, next->seq == id->seq ? b : &(lm_batch){0});
  pthread_cond_broadcast(&p->changed);
  pthread_mutex_unlock(&p->lock);
  return s;
}
