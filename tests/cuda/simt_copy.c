// simt_copy.c - the shim's asynchronous copies, by threads and by TMA, and the phases of mbarriers
// that TMA counts bytes in.
#include "tests/cuda/simt_state.h"

#include <string.h>

#define API __attribute__((visibility("default"), used))

// ---- copies of threads (cp.async). The schedule decides when they execute: at issue, or when they
// are waited for.

static void copy_do(const copy *c) {
  if (c->valid)
    memcpy(simt.shared + c->to, c->from, 16);
  else
    memset(simt.shared + c->to, 0, 16);
}

API void lm_simt_copy(void *tile, int64_t byte, const void *from, int valid, int line) {
  fiber *f = &simt.fibers[simt.current];
  copy c = {simt_access_check(tile, byte, 16, 1, line), from, valid != 0, f->group};
  if (valid)
    simt_global_touch(from, 16, false, __builtin_return_address(0));
  if (c.to % 16 || (valid && (uintptr_t)from % 16))
    simt_report_add(line, "a copy between misaligned addresses");
  for (int i = 0; i < 16 / GRAIN; i++)
    simt.shadows[c.to / GRAIN + i].coming = true;
  if (f->n_copies == COPIES)
    LM_BUG("more than %d copies of a thread in flight", COPIES);
  if (simt.schedule == SIMT_FORWARD)
    copy_do(&c);
  f->copies[f->n_copies++] = c;
}

API void lm_simt_copies_commit(void) {
  simt.fibers[simt.current].group++;
}

API void lm_simt_copies_wait(int left) {
  fiber *f = &simt.fibers[simt.current];
  int n = 0;
  for (int i = 0; i < f->n_copies; i++) {
    const copy *c = &f->copies[i];
    if (c->group >= f->group - left) {
      f->copies[n++] = *c;
      continue;
    }
    if (simt.schedule != SIMT_FORWARD)
      copy_do(c);
    for (int g = 0; g < 16 / GRAIN; g++) {
      shadow *s = &simt.shadows[c->to / GRAIN + g];
      s->coming = false;
      s->write = (touch){(int16_t)simt.current, f->clock};
    }
  }
  f->n_copies = n;
}

// ---- mbarriers: a phase is complete when its count of threads has arrived and its bytes have been
// copied. Waiting threads then know what the arriving threads knew, and the copies.

static phase_barrier *barrier_at(const void *base, int i, int line) {
  int64_t offset = (const char *)base - simt.shared + 8 * i;
  for (int k = 0; k < simt.n_barriers; k++)
    if (simt.barriers[k].offset == offset)
      return &simt.barriers[k];
  LM_BUG("line %d: an mbarrier that was never made", line);
}

static phase_barrier *barrier_add(int64_t offset, int count) {
  if (simt.n_barriers == BARRIERS)
    LM_BUG("more than %d mbarriers", BARRIERS);
  memset(simt.gathered[simt.n_barriers], 0, sizeof simt.gathered[0]);
  memset(simt.published[simt.n_barriers], 0, sizeof simt.published[0]);
  phase_barrier *b = &simt.barriers[simt.n_barriers++];
  *b = (phase_barrier){.offset = offset,
                       .count = count,
                       .missing = count,
                       .made = {(int16_t)simt.current, simt.fibers[simt.current].clock}};
  return b;
}

API void lm_simt_phase_make(void *base, int i, int count, int line) {
  barrier_add(simt_access_check(base, 8 * i, 8, 1, line), count);
}

static void phase_end(phase_barrier *b) {
  int k = (int)(b - simt.barriers);
  if (b->missing || b->bytes)
    return;
  memcpy(simt.published[k], simt.gathered[k], sizeof simt.published[k]);
  b->missing = b->count;
  b->phase++;
}

static void arrive(phase_barrier *b, int line) {
  int k = (int)(b - simt.barriers);
  int me = simt.current;
  if (!b->missing) {
    simt_report_add(line, "arrives where all have arrived");
    return;
  }
  simt_clocks_learn(simt.gathered[k], simt.known[me]);
  simt.gathered[k][me] = simt.fibers[me].clock++;
  b->missing--;
  phase_end(b);
}

API void lm_simt_phase_arrive(void *base, int i, int line) {
  simt_access_check(base, 8 * i, 8, 0, line);
  arrive(barrier_at(base, i, line), line);
}

API void lm_simt_phase_expect(void *base, int i, int bytes, int line) {
  simt_access_check(base, 8 * i, 8, 0, line);
  barrier_at(base, i, line)->bytes += bytes;
}

bool simt_phase_passed(const fiber *f) {
  return (simt.barriers[f->phase_barrier].phase & 1) != f->parity;
}

void simt_phase_share_clocks(int thread) {
  simt_clocks_learn(simt.known[thread], simt.published[simt.fibers[thread].phase_barrier]);
  simt.wait[thread] = READY;
}

// Waits until the phase of that parity is complete; before the first phase, parity 1 counts as
// complete.
API void lm_simt_phase_wait(void *base, int i, uint32_t parity, int line) {
  fiber *f = &simt.fibers[simt.current];
  simt_access_check(base, 8 * i, 8, 0, line);
  f->phase_barrier = (int)(barrier_at(base, i, line) - simt.barriers);
  f->parity = parity;
  if (simt_phase_passed(f))
    simt_phase_share_clocks(simt.current);
  else
    simt_wait_for(AT_PHASE, line);
}

// ---- named barriers: phases without a location in memory. Threads arrive, and some wait for the
// end of the phase.

static phase_barrier *named_barrier_at(int i, int count) {
  for (int k = 0; k < simt.n_barriers; k++)
    if (simt.barriers[k].offset == -1 - i)
      return &simt.barriers[k];
  return barrier_add(-1 - i, count);
}

API void lm_simt_pingpong(int i, int count, int wait, int line) {
  phase_barrier *b = named_barrier_at(i, count);
  fiber *f = &simt.fibers[simt.current];
  f->phase_barrier = (int)(b - simt.barriers);
  f->parity = b->phase & 1;
  arrive(b, line);
  if (!wait)
    return;
  if (simt_phase_passed(f))
    simt_phase_share_clocks(simt.current);
  else
    simt_wait_for(AT_PHASE, line);
}

// ---- tensor maps: a private encoding, under the rules of the driver (cuda.h,
// cuTensorMapEncodeTiled)

enum {
  MAP_RANK = 5,
  BF16 = 9,
  SWIZZLES = 4
};
static const char MAP_MAGIC[8] = "SIMTMAP";
typedef struct map {
  char magic[8];
  const char *base;
  // `stride` is in bytes; the stride of dim 0 is the size of an element.
  uint64_t size[MAP_RANK], stride[MAP_RANK];
  uint16_t box[MAP_RANK];
  uint8_t rank, swizzle;
} map;

static const int spans[SWIZZLES] = {16, 32, 64, 128};

const char *simt_map_make(void *out, int type, int rank, const void *base,
                          const unsigned long long *size, const unsigned long long *stride,
                          const unsigned *box, const unsigned *step, int interleave, int swizzle) {
  map m = {.base = base, .rank = (uint8_t)rank, .swizzle = (uint8_t)swizzle};
  if (type != BF16 || interleave || swizzle < 0 || swizzle >= SWIZZLES)
    return "not modelled";
  if (rank < 1 || rank > MAP_RANK)
    return "a rank that is none";
  if ((uintptr_t)base % 16)
    return "a misaligned address";
  for (int i = 0; i < rank; i++) {
    m.size[i] = size[i];
    m.stride[i] = i ? stride[i - 1] : 2;
    m.box[i] = (uint16_t)box[i];
    if (!size[i] || size[i] > 1ull << 32)
      return "a dimension of size zero, or too large";
    if (i && (stride[i - 1] % 16 || stride[i - 1] >= 1ull << 40))
      return "an odd stride";
    if (i > 1 && stride[i - 1] % stride[i - 2])
      return "a stride that is not a multiple of the previous one";
    if (!box[i] || box[i] > 256 || !step[i] || step[i] > 8)
      return "a box of size zero, or too large";
    if (step[i] != 1)
      return "not modelled";
  }
  if (box[0] * 2 % 16 || (swizzle && (int)box[0] * 2 > spans[swizzle]))
    return "a box whose lines are misaligned, or wider than the pattern";
  memcpy(m.magic, MAP_MAGIC, sizeof m.magic);
  _Static_assert(sizeof m <= 128, "");
  memcpy(out, &m, sizeof m);
  return NULL;
}

API void lm_simt_map(void *out, const void *base, const int64_t *size, const int64_t *stride,
                     const int *box) {
  unsigned long long sizes[LM_PLAN_MAP_RANK], strides[LM_PLAN_MAP_RANK];
  unsigned boxes[LM_PLAN_MAP_RANK], steps[LM_PLAN_MAP_RANK];
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    sizes[i] = (unsigned long long)size[i];
    strides[i] = (unsigned long long)stride[i];
    boxes[i] = (unsigned)box[i];
    steps[i] = 1;
  }
  const char *why =
      simt_map_make(out, BF16, LM_PLAN_MAP_RANK, base, sizes, strides + 1, boxes, steps, 0, 3);
  if (why)
    simt_report_add(0, "a tensor map: %s", why);
}

// ---- boxes: requested by one thread; they arrive at the request, or when no thread can continue
// without them

static int64_t box_elements(const map *m) {
  int64_t n = 1;
  for (int i = 0; i < m->rank; i++)
    n *= m->box[i];
  return n;
}

// The coordinates of the n-th element of a box.
static uint16_t box_element(const map *m, const int *at, int64_t n) {
  const char *from = m->base;
  uint16_t x = 0;
  bool inside = true;
  for (int i = 0; i < m->rank; n /= m->box[i++]) {
    int64_t k = at[i] + n % m->box[i];
    inside &= k >= 0 && (uint64_t)k < m->size[i];
    from += inside ? (uint64_t)k * m->stride[i] : 0;
  }
  if (inside)
    memcpy(&x, from, sizeof x);
  return x;
}

// The swizzle: units of 16 bytes are exchanged by the address in shared memory, over 8 units of the
// span.
static int64_t box_offset(const map *m, int64_t offset) {
  return offset ^ (offset >> 7 & (spans[m->swizzle] / 16 - 1)) << 4;
}

static void box_come(box *c) {
  map m;
  phase_barrier *b = &simt.barriers[c->barrier];
  memcpy(&m, c->map, sizeof m);
  int64_t n = box_elements(&m);
  int engine = ENGINE + c->barrier;
  for (int64_t i = 0; i < n; i++) {
    int64_t offset = box_offset(&m, c->to + 2 * i);
    uint16_t x = box_element(&m, c->at, i);
    memcpy(simt.shared + offset, &x, sizeof x);
    simt.shadows[offset / GRAIN].coming = false;
    simt.shadows[offset / GRAIN].write = (touch){(int16_t)engine, b->phase + 1};
  }
  simt.gathered[c->barrier][engine] = b->phase + 1;
  b->bytes -= 2 * n;
  if (b->bytes < 0)
    simt_report_add(c->line, "brings more bytes than the phase expects");
  else
    phase_end(b);
}

bool simt_box_deliver(void) {
  if (!simt.n_boxes)
    return false;
  int k = simt.schedule == SIMT_SHUFFLED ? (int)(simt_random() % (unsigned)simt.n_boxes)
                                         : simt.n_boxes - 1;
  box c = simt.boxes[k];
  simt.boxes[k] = simt.boxes[--simt.n_boxes];
  box_come(&c);
  return true;
}

// The thread that requests a box reads the part of each of its rows that is inside the tensor.
static void box_touch(const map *m, const int *at, const void *code) {
  int64_t n = box_elements(m);
  int first = at[0] < 0 ? 0 : at[0];
  int end = at[0] + m->box[0] < (int64_t)m->size[0] ? at[0] + m->box[0] : (int)m->size[0];
  for (int64_t row = 0; row < n && first < end; row += m->box[0]) {
    const char *from = m->base + 2 * first;
    bool inside = true;
    for (int64_t i = 1, left = row / m->box[0]; i < m->rank; left /= m->box[i++]) {
      int64_t k = at[i] + left % m->box[i];
      inside &= k >= 0 && (uint64_t)k < m->size[i];
      from += inside ? (uint64_t)k * m->stride[i] : 0;
    }
    if (inside)
      simt_global_touch(from, 2 * (size_t)(end - first), false, code);
  }
}

static void box_check(const map *m, const box *c, int line) {
  const array *a = simt_array_at(c->to);
  int64_t bytes = 2 * box_elements(m);
  if (!a)
    LM_BUG("line %d: not an address in shared memory", line);
  if (c->to % (m->swizzle ? 8 * spans[m->swizzle] : 128))
    simt_report_add(line, "a box that begins within a pattern");
  if (c->to - a->offset + bytes > a->bytes)
    simt_report_add(line, "a box that goes beyond %s", a->name);
  for (int64_t at = c->to; at < c->to + bytes; at += GRAIN) {
    shadow *s = &simt.shadows[at / GRAIN];
    if (!s->coming && s->write.thread >= 0 && s->write.thread < ENGINE &&
        s->write.clock > simt.fibers[s->write.thread].fenced)
      simt_report_add(line, "a box over what thread %d wrote with no fence since", s->write.thread);
    simt_grain_check(s, true, a, at - a->offset, line);
    s->coming = true;
  }
}

API void lm_simt_box(void *tile, int64_t byte, const void *of, int k, int inner, int position,
                     int batch, void *base, int i, int line) {
  map m;
  memcpy(&m, of, sizeof m);
  if (memcmp(m.magic, MAP_MAGIC, sizeof m.magic) || m.rank != 4) {
    simt_report_add(line, "no tensor map");
    return;
  }
  phase_barrier *b = barrier_at(base, i, line);
  if (b->made.clock > simt.fibers[b->made.thread].fenced)
    simt_report_add(line, "counts into an mbarrier that thread %d made with no fence since",
                    b->made.thread);
  box c = {.to = (const char *)tile - simt.shared + byte,
           .at = {k, inner, position, batch},
           .barrier = (int)(b - simt.barriers),
           .line = line};
  memcpy(c.map, of, sizeof c.map);
  box_check(&m, &c, line);
  box_touch(&m, c.at, __builtin_return_address(0));
  if (simt.n_boxes == BOXES)
    LM_BUG("more than %d boxes in flight", BOXES);
  if (simt.schedule == SIMT_FORWARD)
    box_come(&c);
  else
    simt.boxes[simt.n_boxes++] = c;
}
