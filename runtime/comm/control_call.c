// control_call.c - the calls of a rank on its control channel.
#include <string.h>

#include "runtime/comm/control_state.h"

#define REPORT_S 0.02 // between two reports of what a rank waits in
#define SLOWEST 50e6  // bytes per second of a link that works: less than half of gigabit Ethernet

static lm_status failure_of(const lm_control *c) {
  return lm_fail(c->kind, "%s", c->why);
}

lm_status lm_control_check(lm_control *c) {
  return atomic_load(&c->failed) ? failure_of(c) : NULL;
}

// With the lock held.
static void waits_set(lm_control *c, bool waits) {
  double now = lm_now();
  if (c->own.waits && !waits)
    c->waited += now - c->waits_since;
  if (!c->own.waits)
    c->waits_since = now;
  c->own.waits = waits;
}

double lm_control_waited(lm_control *c) {
  pthread_mutex_lock(&c->lock);
  double seconds = c->waited;
  pthread_mutex_unlock(&c->lock);
  return seconds;
}

static void waits(lm_control *c, const char *label, double limit) {
  pthread_mutex_lock(&c->lock);
  waits_set(c, label != NULL);
  c->own.limit = limit;
  if (label)
    lm_label_copy(c->own.label, label);
  if (label && !lm_control_is_first(c) && lm_now() - c->reported > REPORT_S) {
    c->reported = lm_now();
    lm_wire_send(&c->peers[0].wire, LM_FRAME_BEAT, c->seq, &c->own, sizeof c->own, NULL, 0);
  }
  pthread_mutex_unlock(&c->lock);
}

void lm_control_waits(lm_control *c, const char *label, int64_t bytes) {
  waits(c, label, bytes ? c->limits.stuck + (double)bytes / SLOWEST : 0);
}

void lm_control_connects(lm_control *c, const char *label) {
  waits(c, label, c->limits.connect);
}

void lm_control_progress(lm_control *c) {
  pthread_mutex_lock(&c->lock);
  c->own.progress++;
  pthread_mutex_unlock(&c->lock);
}

lm_status lm_control_fail(lm_control *c, lm_status own) {
  pthread_mutex_lock(&c->lock);
  lm_buf text = {0};
  lm_buf_printf(&text, "%s%s%s", own->text, *c->own.label ? ", in " : "", c->own.label);
  bool earlier = c->failed;
  lm_control_failed(c, own->kind, text.p);
  lm_status s = earlier ? failure_of(c) : lm_fail(own->kind, "%s", text.p);
  pthread_mutex_unlock(&c->lock);
  lm_buf_free(&text);
  lm_status_free(own);
  return s;
}

// Waits for the next result, which must be that of call c->seq. With the lock held.
static lm_status result_take(lm_control *c, const char *what, size_t bytes, void *out) {
  while (!c->results && !c->failed)
    pthread_cond_wait(&c->changed, &c->lock);
  if (c->failed)
    return failure_of(c);
  lm_result *r = c->results;
  c->results = r->next;
  lm_status s = NULL;
  if (r->seq != c->seq || strcmp(r->label, what) || r->values.n != bytes)
    s = lm_fail(LM_BUG_STATUS, "rank %d is in '%s' while rank 0 was in '%s'", c->rank, what,
                r->label);
  else if (bytes)
    memcpy(out, r->values.p, bytes);
  lm_buf_free(&r->values);
  lm_free(r);
  return s;
}

// With the lock held.
static void call_begin(lm_control *c, const char *what, char *label) {
  c->seq++;
  lm_label_copy(label, what);
  lm_label_copy(c->own.label, what);
  waits_set(c, true);
  c->own.limit = 0;
}

lm_status lm_control_agree(lm_control *c, const char *what, const void *own, size_t bytes,
                           void *all) {
  char label[LM_CONTROL_LABEL] = {0};
  pthread_mutex_lock(&c->lock);
  call_begin(c, what, label);
  if (lm_control_is_first(c)) {
    lm_control_give(c, label, own, bytes);
  } else {
    lm_wire_send(&c->peers[0].wire, LM_FRAME_GATHER, c->seq, label, sizeof label, own, bytes);
  }
  lm_control_wake(c);
  lm_status s = result_take(c, label, bytes * (size_t)c->size, all);
  waits_set(c, false);
  pthread_mutex_unlock(&c->lock);
  return s;
}

lm_status lm_control_decide(lm_control *c, const char *what, void *value, size_t bytes) {
  char label[LM_CONTROL_LABEL] = {0};
  lm_status s = NULL;
  pthread_mutex_lock(&c->lock);
  call_begin(c, what, label);
  if (c->failed)
    s = failure_of(c);
  else if (!lm_control_is_first(c))
    s = result_take(c, label, bytes, value);
  else {
    lm_buf own = {0};
    lm_buf_add(&own, value, bytes);
    lm_control_result_send(c, c->seq, label, &own);
    lm_buf_free(&own);
    lm_control_wake(c);
  }
  waits_set(c, false);
  pthread_mutex_unlock(&c->lock);
  return s;
}

lm_status lm_control_end(lm_control *c) {
  uint8_t own = 0;
  uint8_t *all = lm_alloc((size_t)c->size);
  lm_status s = lm_control_agree(c, LM_CONTROL_END, &own, sizeof own, all);
  lm_free(all);
  return s;
}
