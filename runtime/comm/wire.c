// wire.c - see wire.h.
#include "runtime/comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void lm_wire_open(lm_wire *w, int fd, size_t bytes_max) {
  int on = 1;
  *w = (lm_wire){
      .fd = fd,
      .bytes_max = bytes_max,
  };
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void lm_wire_close(lm_wire *w) {
  if (w->fd >= 0)
    close(w->fd);
  lm_buf_free(&w->in);
  lm_buf_free(&w->out);
  *w = (lm_wire){.fd = -1};
}

void lm_wire_send(lm_wire *w, lm_frame_type type, uint64_t seq, const void *a, size_t n_a,
                  const void *b, size_t n_b) {
  lm_frame_head head = {type, (uint32_t)(n_a + n_b), seq};
  if (w->fd < 0)
    return;
  lm_buf_add(&w->out, &head, sizeof head);
  if (n_a)
    lm_buf_add(&w->out, a, n_a);
  if (n_b)
    lm_buf_add(&w->out, b, n_b);
  lm_wire_flush(w);
}

static bool is_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

bool lm_wire_flush(lm_wire *w) {
  while (w->fd >= 0 && w->out.n) {
    ssize_t n = send(w->fd, w->out.p, w->out.n, MSG_NOSIGNAL);
    if (n < 0)
      return is_later(errno);
    memmove(w->out.p, w->out.p + n, w->out.n - (size_t)n);
    w->out.n -= (size_t)n;
  }
  return true;
}

bool lm_wire_receive(lm_wire *w) {
  uint8_t piece[1 << 14];
  if (w->used) {
    memmove(w->in.p, w->in.p + w->used, w->in.n - w->used);
    w->in.n -= w->used;
    w->used = 0;
  }
  while (w->in.n < w->bytes_max) {
    ssize_t n = recv(w->fd, piece, sizeof piece, 0);
    if (n < 0)
      return is_later(errno);
    if (!n)
      return false;
    lm_buf_add(&w->in, piece, (size_t)n);
  }
  return true;
}

bool lm_wire_next(lm_wire *w, lm_frame *out, bool *bad) {
  size_t n = w->in.n - w->used;
  *bad = false;
  if (n < sizeof out->head)
    return false;
  memcpy(&out->head, w->in.p + w->used, sizeof out->head);
  *bad = out->head.type >= LM_FRAMES || out->head.bytes > w->bytes_max;
  if (*bad || n < sizeof out->head + out->head.bytes)
    return false;
  out->data = (const uint8_t *)w->in.p + w->used + sizeof out->head;
  w->used += sizeof out->head + out->head.bytes;
  return true;
}
