// socket.h - TCP sockets by which the ranks find each other.
#ifndef LM_COMM_SOCKET_H
#define LM_COMM_SOCKET_H
#include "runtime/base/base.h"

enum {
  LM_ADDRESSES = 8
};

// Where a process listens. Plain data, to be copied to the other ranks.
typedef struct lm_address {
  uint8_t cookie[32];          // who sends it belongs to the run
  char host[LM_ADDRESSES][48]; // IPv4 and IPv6 numbers of its machine's interfaces; "": no more
  int port;
} lm_address;

// Listens at a port that the system chooses; *fd does not block.
lm_status lm_socket_listen(lm_address *out, int *fd);
// Listens at the port (0: any), for IPv4 and, where the machine has it, IPv6; -1 and errno.
int lm_socket_listen_at(int port);
// Connects to an IPv4 or IPv6 number in one attempt, of at most two seconds; -1. The socket does
// not block.
int lm_socket_connect(const char *host, int port);
// The name of this machine; "unknown" if it has none.
void lm_socket_host(char *name, size_t n);
#endif
