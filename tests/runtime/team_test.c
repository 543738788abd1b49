// team_test.c - teams of threads: barriers order memory, nothing is lost when threads sleep or are
// interrupted, every piece of work is done once. team_tsan_test is the same program under the
// thread sanitizer, which checks the order of memory.
// Build: both
#define _GNU_SOURCE
#include "runtime/base/team.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/processors.h"
#include "runtime/cpu/share.h"
#include "tests/runtime/check.h"
#include "tests/sanitizer.h"

enum {
  WORKS = 200,
  PIECES = 37,
  RANGE = 100000,
  MEMBERS = 8,
  ROUNDS = 2000
};
extern char **environ;

// ---- pieces

typedef struct taking {
  lm_team *team;
  lm_tickets tickets[MEMBERS];
  atomic_int done[WORKS][PIECES];
} taking;

static void pieces_take(void *user, int me) {
  taking *t = user;
  lm_share share = {.tickets = t->tickets, .me = me, .all = lm_team_size(t->team)};
  lm_share alone = lm_share_alone();
  for (int w = 0; w < WORKS; w++) {
    int pieces = w % (PIECES + 1); // none, too
    for (int64_t i; (i = lm_share_take(&share, pieces)) >= 0;)
      atomic_fetch_add(&t->done[w][i], 1);
    int own = 0;
    for (int64_t i; (i = lm_share_take(&alone, pieces)) >= 0;)
      own += i == own;
    CHECK(own == pieces && !alone.at);
    lm_team_barrier(t->team, me);
  }
}

// All threads take pieces of one range at the same time.
typedef struct range {
  lm_tickets tickets;
  atomic_int done[RANGE];
} range;

static void range_take(void *user, int me) {
  range *r = user;
  for (int64_t i; (i = lm_tickets_take(&r->tickets, 1, RANGE)) >= 0;)
    atomic_fetch_add(&r->done[i], 1);
}

static void range_check(lm_team *team) {
  static range r;
  memset(&r, 0, sizeof r);
  lm_team_run(team, range_take, &r);
  for (int i = 0; i < RANGE; i++)
    CHECK(r.done[i] == 1);
}

static void pieces_check(lm_team *team) {
  taking t = {.team = team};
  lm_team_run(team, pieces_take, &t);
  for (int w = 0; w < WORKS; w++)
    for (int i = 0; i < PIECES; i++)
      CHECK(t.done[w][i] == (i < w % (PIECES + 1)));
}

// A thread takes its own range in order, then all of the next ones.
static void own_range_first(void) {
  enum {
    ME = 2
  };
  lm_tickets tickets[MEMBERS] = {0};
  lm_share share = {.tickets = tickets, .me = ME, .all = MEMBERS};
  for (int w = 0; w < WORKS; w++) {
    int64_t pieces = w % (PIECES + 1), at = lm_share_first(&share, pieces);
    for (int64_t n = 0; n < pieces; n++)
      CHECK(lm_share_take(&share, pieces) == (at + n) % pieces);
    CHECK(lm_share_take(&share, pieces) == -1);
  }
}

static void shares_cut(int all) {
  for (int64_t size = 0; size < 50; size++)
    for (int me = 0; me < all; me++) {
      lm_share s = {.me = me, .all = all}, next = {.me = me + 1, .all = all};
      CHECK(lm_share_first(&s, size) <= lm_share_last(&s, size));
      CHECK(me + 1 == all ? lm_share_last(&s, size) == size
                          : lm_share_last(&s, size) == lm_share_first(&next, size));
      CHECK(me || !lm_share_first(&s, size));
    }
}

// ---- barriers

typedef struct exchange {
  lm_team *team;
  int slot[MEMBERS]; // not atomic: ordered by the barriers alone
  int rounds;
  bool naps; // some threads are late, so that the others fall asleep
} exchange;

static void slots_exchange(void *user, int me) {
  exchange *x = user;
  int n = lm_team_size(x->team);
  for (int r = 0; r < x->rounds; r++) {
    if (x->naps && r % n == me)
      usleep(r % 7 * 50);
    x->slot[me] = r + me;
    lm_team_barrier(x->team, me);
    for (int i = 0; i < n; i++)
      CHECK(x->slot[i] == r + i);
    lm_team_barrier(x->team, me);
  }
}

static void slots_check(lm_team *team, int rounds, bool naps) {
  exchange x = {.team = team, .rounds = rounds, .naps = naps};
  lm_team_run(team, slots_exchange, &x);
  for (int i = 0; i < lm_team_size(team); i++)
    CHECK(x.slot[i] == rounds - 1 + i);
}

static void count(void *user, int me) {
  ((int *)user)[me]++;
}

static void runs_check(lm_team *team) {
  int counts[MEMBERS] = {0};
  for (int i = 0; i < ROUNDS; i++) {
    lm_team_run(team, count, counts);
    for (int m = 0; m < lm_team_size(team); m++)
      CHECK(counts[m] == i + 1);
    if (i % 500 == 0)
      usleep(500); // the threads sleep between runs
  }
}

// ---- signals, which end sleeps in the kernel early

static atomic_bool storm_over;
static void nothing(int signal) {}

static void *storm(void *user) {
  while (!atomic_load(&storm_over)) {
    kill(getpid(), SIGUSR1);
    usleep(20);
  }
  return NULL;
}

static void interrupted_check(lm_team *team) {
  struct sigaction action = {.sa_handler = nothing}; // without SA_RESTART
  pthread_t thread;
  sigaction(SIGUSR1, &action, NULL);
  atomic_store(&storm_over, false);
  CHECK(!pthread_create(&thread, NULL, storm, NULL));
  slots_check(team, 300, true);
  atomic_store(&storm_over, true);
  pthread_join(thread, NULL);
}

// ---- other threads and processes

static void nested(void *user, int me) {
  lm_team *inner = lm_team_create(1 + me % 3);
  slots_check(inner, 20, false);
  runs_check(inner);
  lm_team_destroy(inner);
}

static void program_run(void) {
  char *argv[] = {"true", NULL};
  pid_t pid;
  int state;
  CHECK(!posix_spawnp(&pid, "true", NULL, NULL, argv, environ));
  CHECK(waitpid(pid, &state, 0) == pid && !state);
}

static void programs(void *user, int me) {
  program_run();
}

// Before this process has threads: a process that ends while the threads of its team sleep, and one
// that is forked beside them.
static void exit_check(void) {
  int state;
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (!pid) {
    lm_team *team = lm_team_create(4);
    slots_check(team, 10, true);
    usleep(2000);
    exit(0);
  }
  CHECK(waitpid(pid, &state, 0) == pid && !state);
}

#if !LM_THREAD_SANITIZER && !LM_ADDRESS_SANITIZER
static int refused_after = -1; // threads that may still be created; -1: any number

int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *user) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
      dlsym(RTLD_NEXT, "pthread_create");
  if (refused_after == 0)
    return EAGAIN;
  if (refused_after > 0)
    refused_after--;
  return real(out, attr, run, user);
}

static void refused_check(void) {
  for (int made = 0; made < 3; made++) {
    refused_after = made;
    lm_team *team = lm_team_create(4);
    CHECK(lm_team_size(team) == made + 1);
    slots_check(team, 100, true);
    lm_team_destroy(team);
  }
  refused_after = -1;
}
#else
static void refused_check(void) {}
#endif

// ---- waiting

static void policy_check(void) {
  int most = lm_processors();
  setenv("OMP_WAIT_POLICY", "passive", 1);
  CHECK(lm_team_spin_max(1) == 0);
  setenv("OMP_WAIT_POLICY", "ACTIVE", 1);
  CHECK(lm_team_spin_max(most) >= 1 && lm_team_spin_max(most + 1) == 0);
  unsetenv("OMP_WAIT_POLICY");
  CHECK(lm_team_spin_max(most) > 1e-6 && lm_team_spin_max(most) < 1e-3 &&
        lm_team_spin_max(most + 1) == 0);
}

static void team_check(int threads) {
  lm_team *team = lm_team_create(threads);
  CHECK(lm_team_size(team) == threads);
  pieces_check(team);
  range_check(team);
  slots_check(team, ROUNDS, false);
  slots_check(team, 200, true);
  runs_check(team);
  interrupted_check(team);
  lm_team_run(team, nested, NULL);
  lm_team_run(team, programs, NULL);
  program_run();
  slots_check(team, 10, false);
  lm_team_destroy(team);
  shares_cut(threads);
}

// ---- processors of control groups

static void file_make(const char *path, const char *text) {
  CHECK_OK(lm_file_write_atomic(path, text, strlen(text)));
}

static void quota_check(void) {
  char root[] = "/tmp/lmc-groups-XXXXXX", path[256];
  CHECK(mkdtemp(root) && !chdir(root));
  snprintf(path, sizeof path, "%s/list", root);
  CHECK(lm_processors_quota(root, path) == 0);
  CHECK(!mkdir("a", 0777) && !mkdir("a/b", 0777) && !mkdir("cpu,cpuacct", 0777) &&
        !mkdir("cpu,cpuacct/x", 0777));
  file_make("list", "0::/a/b\n");
  CHECK(lm_processors_quota(root, path) == 0);
  file_make("a/b/cpu.max", "max 100000\n");
  CHECK(lm_processors_quota(root, path) == 0);
  file_make("a/cpu.max", "150000 100000\n"); // of a group above
  CHECK(lm_processors_quota(root, path) == 1.5);
  file_make("cpu.max", "400000 100000\n");
  CHECK(lm_processors_quota(root, path) == 1.5);
  file_make("list", "0::/elsewhere/c\n"); // seen from inside a container
  CHECK(lm_processors_quota(root, path) == 4);
  file_make("cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
  file_make("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  file_make("list", "5:memory:/m\n4:cpu,cpuacct:/x\n");
  CHECK(lm_processors_quota(root, path) == 0);
  file_make("cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n");
  CHECK(lm_processors_quota(root, path) == 0.5);
  CHECK(!chdir("/"));
  snprintf(path, sizeof path, "rm -r %s", root);
  CHECK(!system(path));
}

// GCC knows the levels by name.
static void level_check(void) {
#if defined(__x86_64__) && !defined(__clang__)
  int want = __builtin_cpu_supports("x86-64-v4")   ? 4
             : __builtin_cpu_supports("x86-64-v3") ? 3
             : __builtin_cpu_supports("x86-64-v2") ? 2
                                                   : 1;
  CHECK(lm_x86_64_level() == want);
  CHECK(!lm_x86_64_has_f16c() == !__builtin_cpu_supports("f16c"));
#endif
}

int main(void) {
  static const char *const policies[] = {NULL, "passive"};
  exit_check();
  policy_check();
  quota_check();
  level_check();
  own_range_first();
  for (size_t p = 0; p < LM_COUNT(policies); p++) {
    if (policies[p])
      setenv("OMP_WAIT_POLICY", policies[p], 1);
    for (int threads = 1; threads <= 5; threads++)
      team_check(threads);
  }
  refused_check();
  return 0;
}
