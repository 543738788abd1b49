// memory.c - see memory.h.
#include "runtime/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
  SMALL = 64 << 10,  // results of at most this many bytes are copied back after each run
  FEW = 512,         // arguments of at most this many bytes are not worth a separate stream
  TRANSFER = 4 << 20 // bytes of the pinned buffer of slices
};

// ---- the device's memory

static lm_status out_of_memory(const lm_cuda_memory *m, int result, int64_t bytes,
                               const char *what) {
  size_t left = 0, total = 0;
  m->driver->cuMemGetInfo_v2(&left, &total);
  lm_status s = lm_cuda_check(
      m->driver, result, "%s cannot allocate %.1f MB for %s (%.1f of its %.1f MB are free)",
      m->device->name, (double)bytes * 1e-6, what, (double)left * 1e-6, (double)total * 1e-6);
  lm_buf sizes = {0};
  for (int i = 0; i < LM_ARENAS; i++)
    if (!m->plan->on_host[i])
      lm_buf_printf(&sizes, "%s%s %.1f MB", sizes.n ? ", " : "", lm_arena_titles[i],
                    (double)m->plan->arena_bytes[i] * 1e-6);
  s = lm_annotate(s, "the plan needs %s, workspace %.1f MB", sizes.p,
                  (double)m->workspace_bytes * 1e-6);
  lm_buf_free(&sizes);
  return lm_status_about(s, m->plan);
}

static lm_status pinned_make(const lm_cuda_memory *m, int64_t bytes, char **out) {
  void *p = NULL;
  if (!bytes)
    return NULL;
  LM_TRY(lm_cuda_check(m->driver, m->driver->cuMemHostAlloc(&p, (size_t)bytes, 0),
                       "%.1f MB of pinned host memory", (double)bytes * 1e-6));
  memset(p, 0, (size_t)bytes);
  *out = p;
  return NULL;
}

static char *host_arena(const lm_cuda_memory *m, int i) {
  return (char *)(uintptr_t)m->at[i];
}

static lm_status host_arena_make(lm_cuda_memory *m, int i) {
  char *p = NULL;
  lm_status s = pinned_make(m, m->plan->arena_bytes[i], &p);
  m->at[i] = (lm_cuda_address)(uintptr_t)p;
  return lm_annotate(s, "%s in the host's memory", lm_arena_titles[i]);
}

static lm_status arena_make(lm_cuda_memory *m, int i) {
  const lm_cuda_driver *d = m->driver;
  size_t bytes = (size_t)m->plan->arena_bytes[i];
  if (!bytes)
    return NULL;
  if (m->plan->on_host[i])
    return host_arena_make(m, i);
  int result = d->cuMemAlloc_v2(&m->at[i], bytes);
  if (result)
    return out_of_memory(m, result, (int64_t)bytes, lm_arena_titles[i]);
  return lm_cuda_check(d, d->cuMemsetD8Async(m->at[i], 0, bytes, m->stream), "memory for %s",
                       lm_arena_titles[i]);
}

// ---- arguments and results

static int by_offset(const void *a, const void *b) {
  const lm_cuda_range *x = a, *y = b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

// Merges ports that are adjacent up to alignment into one range.
static int ranges_merge(lm_cuda_range *r, int n) {
  int kept = 0;
  qsort(r, (size_t)n, sizeof *r, by_offset);
  for (int i = 0; i < n; i++) {
    lm_cuda_range *last = kept ? &r[kept - 1] : NULL;
    if (last && r[i].offset <= lm_plan_aligned(last->offset + last->bytes)) {
      int64_t end = r[i].offset + r[i].bytes;
      if (end > last->offset + last->bytes)
        last->bytes = end - last->offset;
    } else {
      r[kept++] = r[i];
    }
  }
  return kept;
}

static void io_make(lm_cuda_memory *m, const lm_plan_func *f, lm_cuda_io *io) {
  *io = (lm_cuda_io){.in = LM_NEW_N(m->arena, lm_cuda_range, f->n_in + 1),
                     .out = LM_NEW_N(m->arena, lm_cuda_range, f->n_out + 1),
                     .behind = LM_NEW_N(m->arena, bool, f->n_out + 1)};
  for (int i = 0; i < f->n_in; i++)
    if (f->in[i].buf.arena == LM_ARENA_IO)
      io->in[io->n_in++] = (lm_cuda_range){f->in[i].buf.offset, f->in[i].buf.bytes};
  for (int i = 0; i < f->n_out; i++)
    if (f->out[i].buf.arena == LM_ARENA_IO && f->out[i].buf.bytes <= SMALL)
      io->out[io->n_out++] = (lm_cuda_range){f->out[i].buf.offset, f->out[i].buf.bytes};
  io->n_in = ranges_merge(io->in, io->n_in);
  io->n_out = ranges_merge(io->out, io->n_out);
  for (int i = 0; i < io->n_in; i++)
    io->in_bytes += io->in[i].bytes;
}

static lm_status few_make(lm_cuda_memory *m) {
  const lm_cuda_driver *d = m->driver;
  for (int i = 0; i < LM_CUDA_FEW; i++) {
    LM_TRY(pinned_make(m, FEW, &m->few[i].host));
    LM_TRY(lm_cuda_check(d, d->cuEventCreate(&m->few[i].sent, LM_CU_EVENT_NO_TIMES), "an event"));
  }
  return NULL;
}

static lm_status staging_make(lm_cuda_memory *m) {
  const lm_cuda_driver *d = m->driver;
  int64_t max = 0;
  m->io = LM_NEW_N(m->arena, lm_cuda_io, m->plan->n_funcs + 1);
  for (int i = 0; i < m->plan->n_funcs; i++) {
    io_make(m, &m->plan->funcs[i], &m->io[i]);
    if (m->io[i].in_bytes > max)
      max = m->io[i].in_bytes;
  }
  LM_TRY(lm_cuda_check(d, d->cuStreamCreate(&m->copies, LM_CU_STREAM_NON_BLOCKING), "a stream"));
  for (int i = 0; i < 2; i++) {
    LM_TRY(pinned_make(m, max > FEW ? max : 0, &m->staging[i].host));
    int result = max > FEW ? d->cuMemAlloc_v2(&m->staging[i].device, (size_t)max) : 0;
    if (result)
      return out_of_memory(m, result, max, "staging of arguments");
    LM_TRY(
        lm_cuda_check(d, d->cuEventCreate(&m->staging[i].sent, LM_CU_EVENT_NO_TIMES), "an event"));
    LM_TRY(
        lm_cuda_check(d, d->cuEventCreate(&m->staging[i].taken, LM_CU_EVENT_NO_TIMES), "an event"));
  }
  return few_make(m);
}

// ---- creation and destruction

lm_status lm_cuda_memory_make(lm_cuda_memory *m, const lm_plan *plan, const lm_cuda_driver *d,
                              const lm_cuda_device *device, void *stream, int64_t workspace) {
  *m = (lm_cuda_memory){.plan = plan,
                        .driver = d,
                        .device = device,
                        .stream = stream,
                        .arena = lm_arena_create(),
                        .workspace_bytes = workspace};
  for (int i = 0; i < LM_ARENAS; i++)
    LM_TRY(arena_make(m, i));
  int result = workspace ? d->cuMemAlloc_v2(&m->workspace, (size_t)workspace) : 0;
  if (result)
    return out_of_memory(m, result, workspace, "the workspace of GEMMs");
  LM_TRY(pinned_make(m, plan->arena_bytes[LM_ARENA_IO], &m->io_host));
  return staging_make(m);
}

void lm_cuda_memory_free(lm_cuda_memory *m) {
  const lm_cuda_driver *d = m->driver;
  if (!m->arena)
    return;
  for (int i = 0; i < LM_ARENAS; i++) {
    if (m->at[i] && m->plan->on_host[i])
      d->cuMemFreeHost(host_arena(m, i));
    else if (m->at[i])
      d->cuMemFree_v2(m->at[i]);
  }
  if (m->workspace)
    d->cuMemFree_v2(m->workspace);
  if (m->io_host)
    d->cuMemFreeHost(m->io_host);
  if (m->transfer)
    d->cuMemFreeHost(m->transfer);
  for (int i = 0; i < 2; i++) {
    if (m->staging[i].host)
      d->cuMemFreeHost(m->staging[i].host);
    if (m->staging[i].device)
      d->cuMemFree_v2(m->staging[i].device);
    if (m->staging[i].sent)
      d->cuEventDestroy_v2(m->staging[i].sent);
    if (m->staging[i].taken)
      d->cuEventDestroy_v2(m->staging[i].taken);
  }
  for (int i = 0; i < LM_CUDA_FEW; i++) {
    if (m->few[i].host)
      d->cuMemFreeHost(m->few[i].host);
    if (m->few[i].sent)
      d->cuEventDestroy_v2(m->few[i].sent);
  }
  if (m->copies)
    d->cuStreamDestroy_v2(m->copies);
  lm_arena_destroy(m->arena);
}

// ---- copies before and after a run

static void arguments_pack(const lm_cuda_memory *m, const lm_cuda_io *io, char *to) {
  for (int i = 0; i < io->n_in; to += io->in[i++].bytes)
    memcpy(to, m->io_host + io->in[i].offset, (size_t)io->in[i].bytes);
}

// Copies few arguments directly to their addresses.
static lm_status arguments_send(const lm_cuda_memory *m, const lm_cuda_io *io, const char *from,
                                void *sent) {
  const lm_cuda_driver *d = m->driver;
  for (int i = 0; i < io->n_in; from += io->in[i++].bytes)
    LM_TRY(lm_cuda_check(d,
                         d->cuMemcpyHtoDAsync_v2(m->at[LM_ARENA_IO] + (uint64_t)io->in[i].offset,
                                                 from, (size_t)io->in[i].bytes, m->stream),
                         "arguments"));
  return lm_cuda_check(d, d->cuEventRecord(sent, m->stream), "arguments");
}

static lm_status arguments_send_ahead(const lm_cuda_memory *m, const lm_cuda_io *io, int slot) {
  const lm_cuda_driver *d = m->driver;
  lm_cuda_address from = m->staging[slot].device;
  void *sent = m->staging[slot].sent;
  void *taken = m->staging[slot].taken;
  LM_TRY(lm_cuda_check(d, d->cuStreamWaitEvent(m->copies, taken, 0), "arguments"));
  LM_TRY(lm_cuda_check(
      d, d->cuMemcpyHtoDAsync_v2(from, m->staging[slot].host, (size_t)io->in_bytes, m->copies),
      "arguments"));
  LM_TRY(lm_cuda_check(d, d->cuEventRecord(sent, m->copies), "arguments"));
  LM_TRY(lm_cuda_check(d, d->cuStreamWaitEvent(m->stream, sent, 0), "arguments"));
  for (int i = 0; i < io->n_in; from += (uint64_t)io->in[i++].bytes)
    LM_TRY(lm_cuda_check(d,
                         d->cuMemcpyDtoDAsync_v2(m->at[LM_ARENA_IO] + (uint64_t)io->in[i].offset,
                                                 from, (size_t)io->in[i].bytes, m->stream),
                         "arguments"));
  return lm_cuda_check(d, d->cuEventRecord(taken, m->stream), "arguments");
}

// An event that was never recorded counts as complete.
void *lm_cuda_memory_sent(const lm_cuda_memory *m, const lm_plan_func *f) {
  const lm_cuda_io *io = &m->io[f - m->plan->funcs];
  if (!io->n_in)
    return NULL;
  return io->in_bytes > FEW ? m->staging[!m->slot].sent
                            : m->few[(m->few_slot + 1) % LM_CUDA_FEW].sent;
}

static lm_status arguments_enqueue(lm_cuda_memory *m, const lm_cuda_io *io) {
  if (io->in_bytes > FEW) {
    m->slot = !m->slot;
    arguments_pack(m, io, m->staging[m->slot].host);
    return arguments_send_ahead(m, io, m->slot);
  }
  m->few_slot = (m->few_slot + 1) % LM_CUDA_FEW;
  char *host = m->few[m->few_slot].host;
  arguments_pack(m, io, host);
  return arguments_send(m, io, host, m->few[m->few_slot].sent);
}

lm_status lm_cuda_memory_begin(lm_cuda_memory *m, const lm_plan_func *f) {
  const lm_cuda_io *io = &m->io[f - m->plan->funcs];
  for (int i = 0; i < f->n_out; i++)
    io->behind[i] = f->out[i].buf.bytes > SMALL;
  return io->n_in ? lm_annotate(arguments_enqueue(m, io), "%s", f->name) : NULL;
}

static lm_status io_fetch(lm_cuda_memory *m, int64_t offset, int64_t bytes) {
  return lm_cuda_check(m->driver,
                       m->driver->cuMemcpyDtoHAsync_v2(m->io_host + offset,
                                                       m->at[LM_ARENA_IO] + (uint64_t)offset,
                                                       (size_t)bytes, m->stream),
                       "results from the GPU");
}

lm_status lm_cuda_memory_end(lm_cuda_memory *m, const lm_plan_func *f) {
  const lm_cuda_io *io = &m->io[f - m->plan->funcs];
  for (int i = 0; i < io->n_out; i++)
    LM_TRY(io_fetch(m, io->out[i].offset, io->out[i].bytes));
  return NULL;
}

// ---- access by the host

// The address of a slice; makes the pinned buffer.
static lm_status slice_begin(lm_cuda_memory *m, lm_arena_id id, int64_t offset, int64_t bytes,
                             lm_cuda_address *out) {
  LM_ASSERT(offset >= 0 && bytes >= 0 && offset + bytes <= m->plan->arena_bytes[id]);
  *out = m->at[id] + (uint64_t)offset;
  return m->transfer ? NULL : pinned_make(m, TRANSFER, &m->transfer);
}

static lm_status transferred(const lm_cuda_memory *m, int result, lm_arena_id id,
                             const char *where) {
  if (!result)
    result = m->driver->cuStreamSynchronize(m->stream);
  return lm_cuda_check(m->driver, result, "%s %s the GPU", lm_arena_titles[id], where);
}

lm_status lm_cuda_memory_read(lm_cuda_memory *m, lm_arena_id id, int64_t offset, int64_t bytes,
                              void *to) {
  lm_cuda_address at;
  LM_TRY(slice_begin(m, id, offset, bytes, &at));
  if (m->plan->on_host[id])
    return memcpy(to, host_arena(m, id) + offset, (size_t)bytes), NULL;
  for (int64_t done = 0; done < bytes; done += TRANSFER) {
    size_t n = (size_t)(bytes - done < TRANSFER ? bytes - done : TRANSFER);
    int result = m->driver->cuMemcpyDtoHAsync_v2(m->transfer, at + (uint64_t)done, n, m->stream);
    LM_TRY(transferred(m, result, id, "from"));
    memcpy((char *)to + done, m->transfer, n);
  }
  return NULL;
}

lm_status lm_cuda_memory_write(lm_cuda_memory *m, lm_arena_id id, int64_t offset, int64_t bytes,
                               const void *from) {
  lm_cuda_address at;
  LM_TRY(slice_begin(m, id, offset, bytes, &at));
  if (m->plan->on_host[id])
    return memcpy(host_arena(m, id) + offset, from, (size_t)bytes), NULL;
  for (int64_t done = 0; done < bytes; done += TRANSFER) {
    size_t n = (size_t)(bytes - done < TRANSFER ? bytes - done : TRANSFER);
    memcpy(m->transfer, (const char *)from + done, n);
    int result = m->driver->cuMemcpyHtoDAsync_v2(at + (uint64_t)done, m->transfer, n, m->stream);
    LM_TRY(transferred(m, result, id, "to"));
  }
  return NULL;
}

bool lm_cuda_memory_is_argument(const lm_cuda_memory *m, const lm_plan_port *p) {
  for (int i = 0; i < m->plan->n_funcs; i++)
    if (p >= m->plan->funcs[i].in && p < m->plan->funcs[i].in + m->plan->funcs[i].n_in)
      return true;
  return false;
}

lm_status lm_cuda_memory_result(lm_cuda_memory *m, const lm_plan_port *p) {
  for (int i = 0; i < m->plan->n_funcs; i++) {
    const lm_plan_func *f = &m->plan->funcs[i];
    if (p < f->out || p >= f->out + f->n_out || !m->io[i].behind[p - f->out])
      continue;
    m->io[i].behind[p - f->out] = false;
    LM_TRY(io_fetch(m, p->buf.offset, p->buf.bytes));
    return lm_cuda_check(m->driver, m->driver->cuStreamSynchronize(m->stream), "results of %s",
                         f->name);
  }
  return NULL;
}

lm_status lm_cuda_memory_clear(lm_cuda_memory *m, lm_arena_id id) {
  size_t bytes = (size_t)m->plan->arena_bytes[id];
  if (!bytes)
    return NULL;
  if (m->plan->on_host[id]) {
    int result = m->driver->cuStreamSynchronize(m->stream);
    memset(host_arena(m, id), 0, bytes);
    return lm_cuda_check(m->driver, result, "zeros for %s", lm_arena_titles[id]);
  }
  return lm_cuda_check(m->driver, m->driver->cuMemsetD8Async(m->at[id], 0, bytes, m->stream),
                       "zeros for %s", lm_arena_titles[id]);
}
