// wire.h - frames over a TCP connection that never blocks: what cannot be sent yet is kept.
#ifndef LM_COMM_WIRE_H
#define LM_COMM_WIRE_H
#include "runtime/base/base.h"

typedef enum {
  LM_FRAME_HELLO,   // to rank 0: lm_hello
  LM_FRAME_WELCOME, // from rank 0: lm_control_member of every rank
  LM_FRAME_BEAT,    // both ways: lm_beat
  LM_FRAME_GATHER,  // to rank 0: a label, then a value
  LM_FRAME_RESULT,  // from rank 0: a label, then the values of all ranks, or rank 0's alone
  LM_FRAME_FAIL,    // both ways: lm_kind, then a text
  LM_FRAMES
} lm_frame_type;

typedef struct lm_frame_head {
  uint32_t type, bytes; // bytes behind the head
  uint64_t seq;         // number of the call of comm.h that it belongs to
} lm_frame_head;
typedef struct lm_frame {
  lm_frame_head head;
  const uint8_t *data; // valid until the next lm_wire_receive
} lm_frame;

typedef struct lm_wire {
  int fd;           // -1: closed
  lm_buf in, out;   // bytes that are not used yet, not sent yet
  size_t used;      // of `in`
  size_t bytes_max; // a frame with more is an error of the other end
} lm_wire;

void lm_wire_open(lm_wire *w, int fd, size_t bytes_max); // takes fd
void lm_wire_close(lm_wire *w);
// Adds a frame of two parts, and sends what the connection takes.
void lm_wire_send(lm_wire *w, lm_frame_type type, uint64_t seq, const void *a, size_t n_a,
                  const void *b, size_t n_b);
// Sends as many of the kept bytes as the connection takes. False if the connection is broken.
bool lm_wire_flush(lm_wire *w);
// Reads the bytes that have arrived. False if the other end has closed the connection, or it is
// broken.
bool lm_wire_receive(lm_wire *w);
// The next frame that has arrived as a whole. *bad: the bytes are no frame.
bool lm_wire_next(lm_wire *w, lm_frame *out, bool *bad);
#endif
