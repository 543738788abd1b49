// fake_rules_test.c - the fakes of the CUDA driver and of NCCL (fake/fake.h) report operations that
// these libraries forbid where graphs have collectives. Each case breaks one rule, in a separate
// process, which has both ranks of two communicators and two streams for each rank.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/nccl.h"

enum {
  BYTES = 64,
  REPORTED = 99,
  RELAXED = LM_CU_CAPTURE_RELAXED
};

static lm_cuda_driver d;
static struct {
#define SYM(result, name, parameters) result(*name) parameters;
#include "runtime/cuda/nccl_syms.def"
#undef SYM
} n;
static int errors;

// ---- two ranks

typedef struct rank {
  void *main, *lane, *comm[2], *event, *graph, *exec;
  lm_cuda_address at;
} rank;
static rank ranks[2];

static void *library_open(const char *folder, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return dlopen(path, RTLD_NOW);
}

static bool libraries_open(const char *folder) {
  void *cuda = library_open(folder, "libcuda.so.1"), *nccl = library_open(folder, "libnccl.so.2");
  if (!cuda || !nccl)
    return false;
#define SYM(result, name, parameters) *(void **)&d.name = dlsym(cuda, #name);
#include "runtime/cuda/driver_syms.def"
#undef SYM
#define SYM(result, name, parameters) *(void **)&n.name = dlsym(nccl, #name);
#include "runtime/cuda/nccl_syms.def"
#undef SYM
  return true;
}

static void settle(void *comm) {
  int result = LM_NCCL_IN_PROGRESS;
  while (result == LM_NCCL_IN_PROGRESS)
    n.ncclCommGetAsyncError(comm, &result);
}

static void ranks_open(void) {
  lm_nccl_config config = {
      .size = sizeof config,
      .magic = LM_NCCL_MAGIC,
  };
  d.cuInit(0);
  for (int k = 0; k < 2; k++) {
    lm_nccl_id id;
    n.ncclGetUniqueId(&id);
    for (int r = 0; r < 2; r++)
      n.ncclCommInitRankConfig(&ranks[r].comm[k], 2, id, r, &config);
  }
  for (int r = 0; r < 2; r++) {
    rank *x = &ranks[r];
    d.cuStreamCreate(&x->main, LM_CU_STREAM_NON_BLOCKING);
    d.cuStreamCreate(&x->lane, LM_CU_STREAM_NON_BLOCKING);
    d.cuEventCreate(&x->event, LM_CU_EVENT_NO_TIMES);
    d.cuMemAlloc_v2(&x->at, 2 * BYTES);
    settle(x->comm[0]);
    settle(x->comm[1]);
  }
}

// Rank 0 sends to rank 1.
static void message(int r, int comm, void *stream) {
  rank *x = &ranks[r];
  void *at = (void *)(uintptr_t)(x->at + (lm_cuda_address)comm * BYTES);
  n.ncclGroupStart();
  if (r)
    n.ncclRecv(at, BYTES, LM_NCCL_INT8, 0, x->comm[comm], stream);
  else
    n.ncclSend(at, BYTES, LM_NCCL_INT8, 1, x->comm[comm], stream);
  n.ncclGroupEnd();
  settle(x->comm[comm]);
}

static void fork_lane(rank *x, void *from, void *to) {
  d.cuEventRecord(x->event, from);
  d.cuStreamWaitEvent(to, x->event, 0);
}

static void record_begin(int r) {
  d.cuStreamBeginCapture_v2(ranks[r].main, RELAXED);
}

static int record_end(int r) {
  rank *x = &ranks[r];
  int result = d.cuStreamEndCapture(x->main, &x->graph);
  return result ? result : d.cuGraphInstantiateWithFlags(&x->exec, x->graph, 0);
}

static void record_message(int r) {
  record_begin(r);
  message(r, 0, ranks[r].main);
  record_end(r);
}

static void launch(int r) {
  d.cuGraphLaunch(ranks[r].exec, ranks[r].main);
}

// Runs all streams until they are empty, or a rule is found broken.
static void finish(void) {
  bool left = true;
  for (int i = 0; left && i < 1000; i++) {
    left = false;
    for (int r = 0; r < 2; r++) {
      left |= d.cuStreamQuery(ranks[r].main) == LM_CU_NOT_READY;
      left |= d.cuStreamQuery(ranks[r].lane) == LM_CU_NOT_READY;
    }
  }
}

static void graphs_destroy(void) {
  for (int r = 0; r < 2; r++) {
    d.cuGraphExecDestroy(ranks[r].exec);
    d.cuGraphDestroy(ranks[r].graph);
  }
}

// ---- cases: the first three follow all rules, each other one breaks one

static void follow_all(void) {
  for (int r = 0; r < 2; r++) {
    rank *x = &ranks[r];
    record_begin(r);
    fork_lane(x, x->main, x->lane);
    message(r, 0, x->lane);
    fork_lane(x, x->lane, x->main);
    message(r, 1, x->main);
    if (record_end(r))
      exit(1);
  }
  launch(0); // both ranks are in this process, but only the operations of one are ordered
  fork_lane(&ranks[0], ranks[0].main, ranks[1].main);
  launch(1);
  finish();
  graphs_destroy();
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 2; k++) {
      n.ncclCommFinalize(ranks[r].comm[k]);
      settle(ranks[r].comm[k]);
    }
}

static void follow_mixed(void) { // recorded and other operations of a communicator
  record_message(0);
  record_message(1);
  for (int r = 0; r < 2; r++) {
    launch(r);
    message(r, 0, ranks[r].main);
  }
  finish();
}

static void leave_the_recording(void) {
  record_begin(0);
  message(0, 0, ranks[0].lane);
}

static void record_on_one_rank(void) {
  record_message(0);
  launch(0);
  message(1, 0, ranks[1].main);
  finish();
}

static void record_other_graphs(void) {
  record_message(0);
  record_message(0);
  record_message(1);
  launch(0);
  launch(1);
  finish();
}

static void leave_unordered(void) {
  for (int r = 0; r < 2; r++) {
    message(r, 0, ranks[r].lane);
    message(r, 1, ranks[r].main);
  }
  finish();
}

static void leave_unordered_in_a_graph(void) {
  for (int r = 0; r < 2; r++) {
    rank *x = &ranks[r];
    record_begin(r);
    fork_lane(x, x->main, x->lane);
    message(r, 0, x->lane);
    message(r, 1, x->main);
    fork_lane(x, x->lane, x->main);
    record_end(r);
    launch(r);
  }
  finish();
}

static void leave_unjoined(void) {
  record_begin(0);
  fork_lane(&ranks[0], ranks[0].main, ranks[0].lane);
  message(0, 0, ranks[0].lane);
  if (record_end(0))
    exit(REPORTED);
}

static void finalize_before_graphs(void) {
  record_message(0);
  n.ncclCommFinalize(ranks[0].comm[0]);
}

static void abort_before_graphs(void) {
  record_message(0);
  n.ncclCommAbort(ranks[0].comm[0]);
}

static void abort_alone(void) {
  message(0, 0, ranks[0].main);
  n.ncclCommAbort(ranks[0].comm[0]);
}

static void query_a_recorded_event(void) {
  rank *x = &ranks[0];
  record_begin(0);
  fork_lane(x, x->main, x->lane);
  fork_lane(x, x->lane, x->main);
  record_end(0);
  d.cuEventQuery(x->event);
}

static void wait_for_a_recorded_event(void) {
  rank *x = &ranks[0];
  record_begin(0);
  d.cuEventRecord(x->event, x->main);
  record_end(0);
  d.cuStreamWaitEvent(x->lane, x->event, 0);
}

static const struct {
  const char *name;
  void (*run)(void);
  bool serial; // an NCCL that does not order communicators
  const char *said;
} cases[] = {
    {"all rules are followed", follow_all, true, ""},
    {"recorded and other operations", follow_mixed, true, ""},
    {"operations that NCCL orders", leave_unordered, false, ""},
    {"a group outside of the recording", leave_the_recording, false,
     "a group on a stream outside of the recording"},
    {"one rank records", record_on_one_rank, false, "that one rank alone has recorded"},
    {"other graphs", record_other_graphs, false, "or in another graph"},
    {"unordered communicators", leave_unordered, true, "is not ordered before or after"},
    {"unordered in a graph", leave_unordered_in_a_graph, true, "is not ordered before or after"},
    {"a lane that nothing joins", leave_unjoined, false, ""},
    {"a communicator is closed first", finalize_before_graphs, false,
     "before the graphs with its operations"},
    {"a communicator is aborted first", abort_before_graphs, false,
     "before the graphs with its operations"},
    {"one communicator is aborted", abort_alone, false, "of a communicator that is not aborted"},
    {"a query of an event", query_a_recorded_event, false, "of an event that a recording has"},
    {"a wait for an event", wait_for_a_recorded_event, false, "an event that a recording has"},
};

// ---- processes

static int case_run(int i, lm_buf *out) {
  int ends[2], status = 0;
  char piece[1024];
  if (pipe(ends))
    return -1;
  pid_t child = fork();
  if (!child) {
    dup2(ends[1], STDERR_FILENO);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", cases[i].serial ? "0" : "1", 1);
    ranks_open();
    cases[i].run();
    _exit(0);
  }
  close(ends[1]);
  for (ssize_t k; (k = read(ends[0], piece, sizeof piece)) > 0;)
    lm_buf_add(out, piece, (size_t)k);
  close(ends[0]);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv) {
  lm_buf folder = {0};
  char *slash = strrchr(argv[0], '/');
  lm_buf_printf(&folder, "%.*s/fake", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
  // The fake NCCL finds the driver by its name, as lmc's own search does.
  if (!getenv("FAKE_RULES")) {
    setenv("FAKE_RULES", "1", 1);
    setenv("LD_LIBRARY_PATH", folder.p, 1);
    execv("/proc/self/exe", argv);
  }
  if (!libraries_open(folder.p)) {
    puts("fake_rules_test: no fake libraries beside it");
    return 0;
  }
  for (int i = 0; i < (int)LM_COUNT(cases); i++) {
    lm_buf out = {0};
    bool follows = i < 3;
    fflush(stdout);
    int status = case_run(i, &out);
    bool good = status == (follows ? 0 : REPORTED) && (!out.n || strstr(out.p, cases[i].said));
    good = good && (follows || !*cases[i].said || out.n);
    if (!good)
      printf("%s: status %d: %s\n", cases[i].name, status, out.n ? out.p : "");
    errors += !good;
    lm_buf_free(&out);
  }
  printf("fake_rules_test: %d cases, %d errors\n", (int)LM_COUNT(cases), errors);
  lm_buf_free(&folder);
  return errors != 0;
}
