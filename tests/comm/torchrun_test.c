// torchrun_test.c - ranks that find each other by torchrun's variables (runtime/comm/rendezvous.h):
// every collective over TCP, and what can go wrong at the start. Runs comm_test, its neighbor, as
// the ranks; no launcher is needed.
#define _GNU_SOURCE // program_invocation_short_name
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/comm/tcp.h"
#include "tests/comm/expect.h"

enum {
  MOST = 8
};

static void pause_for(double seconds) {
  struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
  nanosleep(&t, NULL);
}

static bool has_ipv6(void) {
  struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool has = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a);
  if (fd >= 0)
    close(fd);
  return has;
}

// ---- the processes of a run

typedef struct run {
  int port, n, output;
  const char *address; // of rank 0
  pid_t pids[MOST];
  char path[64];
} run;

// A port that was free a moment ago, and the socket that has it; close it to release the port.
static int port_take(int *fd) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
  socklen_t n = sizeof a;
  *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(*fd, (struct sockaddr *)&a, sizeof a) || listen(*fd, 8) ||
      getsockname(*fd, (struct sockaddr *)&a, &n))
    exit(3);
  return ntohs(a.sin_port);
}

static run run_open(void) {
  int fd;
  run r = {
      .port = port_take(&fd),
      .address = "localhost",
      .path = "/tmp/torchrun_test.XXXXXX",
  };
  close(fd);
  r.output = mkstemp(r.path);
  unlink(r.path);
  return r;
}

static void number_set(const char *name, int x) {
  char text[16];
  snprintf(text, sizeof text, "%d", x);
  setenv(name, text, 1);
}

static void rank_start(run *r, int rank, int size, const char *what) {
  char self[4096] = {0};
  pid_t pid = fork();
  r->pids[r->n++] = pid;
  if (pid)
    return;
  if (readlink("/proc/self/exe", self, sizeof self - 16) < 1)
    _exit(3);
  strcpy(strrchr(self, '/'), "/comm_test");
  number_set("RANK", rank);
  number_set("WORLD_SIZE", size);
  number_set("MASTER_PORT", r->port);
  setenv("MASTER_ADDR", r->address, 1);
  dup2(r->output, STDOUT_FILENO);
  dup2(r->output, STDERR_FILENO);
  execl(self, self, what, (char *)NULL);
  _exit(127);
}

// Waits for all processes. Returns how many ended with that status; out: their output.
static int run_wait(run *r, int status, lm_buf *out) {
  char piece[4096];
  int n = 0;
  for (int i = 0; i < r->n; i++) {
    int is = 0;
    waitpid(r->pids[i], &is, 0);
    n += WIFEXITED(is) && WEXITSTATUS(is) == status;
  }
  lseek(r->output, 0, SEEK_SET);
  lm_buf_puts(out, "ranks: ");
  for (ssize_t got; (got = read(r->output, piece, sizeof piece)) > 0;)
    lm_buf_add(out, piece, (size_t)got);
  close(r->output);
  return n;
}

// All processes that are left end with the status, and one of them says why.
static void ends_check(run *r, int left, int status, const char *word) {
  lm_buf out = {0};
  int n = run_wait(r, status, &out);
  expect(n == left && count_of(out.p, "message: ") == 1 && strstr(out.p, word), word, out.p);
  lm_buf_free(&out);
}

// ---- runs

// Connects to rank 0 once it listens, and sends bytes that are no frame; or no byte.
static int stranger_start(const run *r, size_t bytes) {
  static const char noise[2000] = {1, 2, 3};
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_port = htons((uint16_t)r->port),
                          .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (int i = 0; i < 1000 && connect(fd, (struct sockaddr *)&a, sizeof a); i++)
    pause_for(0.01);
  expect(send(fd, noise, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "a stranger connects", "");
  return fd;
}

static void collectives_test(int ranks, bool is_served) {
  run r = run_open();
  lm_buf out = {0};
  int fd = -1, strangers[2] = {-1, -1};
  if (is_served) { // by torchrun's agent: the ranks meet at a port behind it
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    r.port = port_take(&fd);
  } else if (has_ipv6()) {
    r.address = "::1";
  }
  for (int i = 0; i < ranks; i++) {
    rank_start(&r, i, ranks, "all");
    for (int k = 0; k < 2 && !i && !is_served; k++)
      strangers[k] = stranger_start(&r, k ? 2000 : 0);
  }
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  int good = run_wait(&r, 0, &out);
  expect(good == ranks, "collectives", out.p);
  close(fd);
  close(strangers[0]);
  close(strangers[1]);
  lm_buf_free(&out);
}

static void fault_test(const char *fault, int left, int status, const char *word) {
  run r = run_open();
  for (int i = 0; i < 3; i++)
    rank_start(&r, i, 3, fault);
  ends_check(&r, left, status, word);
}

static void stopped_test(void) {
  run r = run_open();
  lm_buf out = {0};
  for (int i = 0; i < 3; i++)
    rank_start(&r, i, 3, "stop");
  waitpid(r.pids[0], NULL, 0);
  kill(r.pids[2], SIGKILL);
  run_wait(&r, 2, &out);
  expect(count_of(out.p, "message: ") == 1 && strstr(out.p, "is stopped"), "stop", out.p);
  lm_buf_free(&out);
}

// ---- messages that arrive before a receive of them is started

enum {
  MESSAGES = 3,
  LARGE = 32 << 20
};
static const int TAGS[MESSAGES] = {1, 2, 1};

typedef struct end {
  const lm_engine_ops *o;
  void *engine;
  char error[LM_ENGINE_TEXT];
  char *data[MESSAGES];
  size_t bytes[MESSAGES];
  bool good;
} end;

static int message_start(end *e, int rank, int i) {
  int request = 0;
  lm_message m = {1 - rank, rank == 0, e->data[i], e->bytes[i]};
  e->good &= e->o->start(e->engine, 0, TAGS[i], &m, 1, &request, e->error);
  return request;
}

static void message_wait(end *e, int request) {
  for (int left = 1; left && e->good;)
    e->good = e->o->test(e->engine, request, &left, e->error);
}

static void all_send(end *e) {
  int requests[MESSAGES];
  for (int i = 0; i < MESSAGES; i++)
    requests[i] = message_start(e, 0, i);
  for (int i = 0; i < MESSAGES; i++)
    message_wait(e, requests[i]);
}

// The test of the second message reads a part of the first one, or all of it.
static void all_receive(end *e) {
  int left = 1, second = message_start(e, 1, 1);
  pause_for(0.2);
  e->good &= e->o->test(e->engine, second, &left, e->error);
  message_wait(e, message_start(e, 1, 0));
  message_wait(e, message_start(e, 1, 2));
  if (left)
    message_wait(e, second);
  for (int i = 0; i < MESSAGES; i++)
    e->good &= e->data[i][0] == 'a' + i && !memcmp(e->data[i], e->data[i] + 1, e->bytes[i] - 1);
}

static _Noreturn void early_rank(int rank, int port, size_t bytes) {
  lm_launch l = {.rank = rank, .size = 2, .address = "localhost", .port = port, .ports = 1};
  end e = {.o = lm_tcp_engine(), .bytes = {bytes, 8, bytes}, .good = true};
  bool reported;
  if (lm_tcp_open(&l, 10, &e.engine, &reported))
    _exit(1);
  for (int i = 0; i < MESSAGES; i++) {
    e.data[i] = lm_alloc(e.bytes[i]);
    memset(e.data[i], rank ? 0 : 'a' + i, e.bytes[i]);
  }
  if (rank)
    all_receive(&e);
  else
    all_send(&e);
  e.o->close(e.engine);
  _exit(!e.good);
}

static void early_test(size_t bytes) {
  run r = run_open();
  lm_buf out = {0};
  for (int rank = 0; rank < 2; rank++) {
    pid_t pid = fork();
    if (!pid)
      early_rank(rank, r.port, bytes);
    r.pids[r.n++] = pid;
  }
  int good = run_wait(&r, 0, &out);
  expect(good == 2, "messages that arrive early", out.p);
  lm_buf_free(&out);
}

// ---- starts

static void missing_test(void) {
  run r = run_open();
  for (int i = 0; i < 5; i += 2)
    rank_start(&r, i, 5, "all");
  ends_check(&r, 3, 2, "of 5 ranks, 1, 3 did not join within 1 s");
  r = run_open();
  rank_start(&r, 1, 2, "all");
  ends_check(&r, 1, 2, "rank 1 did not find rank 0 at localhost, port ");
}

static void contradiction_test(void) {
  run r = run_open();
  rank_start(&r, 0, 3, "all");
  rank_start(&r, 2, 4, "all");
  lm_buf out = {0};
  int n = run_wait(&r, 1, &out);
  expect(n >= 1 && strstr(out.p, "as one of 4 ranks, rank 0 as one of 3"), "WORLD_SIZE", out.p);
  lm_buf_free(&out);
  r = run_open();
  rank_start(&r, 0, 3, "all");
  rank_start(&r, 1, 3, "all");
  rank_start(&r, 1, 3, "all");
  n = run_wait(&r, 1, &out);
  expect(n >= 1 && strstr(out.p, "two processes are rank 1: process "), "two of a rank", out.p);
  lm_buf_free(&out);
}

static void port_test(void) {
  run r = run_open();
  int fd;
  r.port = port_take(&fd);
  rank_start(&r, 0, 2, "all");
  ends_check(&r, 1, 2, "cannot listen at port ");
  close(fd);
}

// Rank 1 is killed when it has found rank 0, which waits for rank 2.
static void killed_test(void) {
  run r = run_open();
  for (int i = 0; i < 2; i++)
    rank_start(&r, i, 3, "all");
  pause_for(0.5);
  kill(r.pids[1], SIGKILL);
  ends_check(&r, 1, 2, "has ended before all ranks had joined");
}

// Two runs with one port, as torchrun's runs of other names: one of them starts.
static void two_runs_test(void) {
  run a = run_open(), b = a;
  b.output = dup(a.output);
  setenv("TORCHELASTIC_RUN_ID", "a", 1);
  rank_start(&a, 0, 2, "all");
  pause_for(0.2);
  setenv("TORCHELASTIC_RUN_ID", "b", 1);
  rank_start(&b, 1, 2, "all");
  setenv("TORCHELASTIC_RUN_ID", "a", 1);
  rank_start(&a, 1, 2, "all");
  unsetenv("TORCHELASTIC_RUN_ID");
  lm_buf out = {0};
  int good = run_wait(&a, 0, &out);
  expect(good == 2, "the run with rank 0", out.p);
  lm_buf_free(&out);
  int bad = run_wait(&b, 2, &out);
  expect(bad == 1 && strstr(out.p, "did not find rank 0"), "the other run", out.p);
  lm_buf_free(&out);
}

int main(void) {
  collectives_test(2, false);
  collectives_test(5, true);
  early_test(8000);
  early_test(LARGE);
  setenv("LMC_COMM_SILENCE", "1", 1);
  setenv("LMC_COMM_STUCK", "2", 1);
  fault_test("kill", 2, 2, "its process has ended");
  fault_test("first", 2, 2, "rank 0 (host ");
  fault_test("cut", 3, 2, "closed its connection");
  fault_test("fail", 3, 1, "there is no such file");
  stopped_test();
  setenv("LMC_COMM_START", "1", 1);
  missing_test();
  contradiction_test();
  port_test();
  two_runs_test();
  setenv("LMC_COMM_START", "30", 1);
  killed_test();
  printf("torchrun_test: %d errors\n", errors);
  return errors != 0;
}
