// comm.c - see comm.h: the engine's plugin, this process's rank, and values of the host.
#include "runtime/comm/comm_state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/comm/launch.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/tcp.h"

// ---- the plugin, which is beside the command or in the library folder of its installation

static const char *const PLUGIN = "liblm_mpi.so";

static lm_status plugin_open(lm_comm *c, const char *folder, bool *found) {
  lm_arena *a = lm_arena_create();
  const char *path = lm_arena_printf(a, "%s/%s", folder, PLUGIN);
  lm_status s = NULL;
  *found = !access(path, F_OK);
  // RTLD_GLOBAL: libraries that Open MPI loads later look for its symbols.
  void *library = *found ? dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) : NULL;
  lm_engine_table_fn *table = NULL;
  if (library)
    *(void **)&table = dlsym(library, LM_ENGINE_SYMBOL);
  if (*found && !library)
    s = lm_fail(LM_ENV, "%s cannot be loaded: %s", path, dlerror());
  else if (*found && (!table || table()->version != LM_ENGINE_VERSION))
    s = lm_fail(LM_ENV, "%s belongs to another version of lmc", path);
  else if (*found)
    c->engine = table();
  lm_arena_destroy(a);
  return s;
}

static lm_status engine_find(lm_comm *c) {
  static const char *const beside[] = {"", "/../lib/lmc", "/../lib"};
  char self[4096] = {0};
  bool found = false;
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  char *slash = n > 0 ? strrchr(self, '/') : NULL;
  if (slash)
    *slash = 0;
  for (size_t i = 0; slash && i < LM_COUNT(beside) && !found; i++) {
    lm_buf folder = {0};
    lm_buf_printf(&folder, "%s%s", self, beside[i]);
    lm_status s = plugin_open(c, folder.p, &found);
    lm_buf_free(&folder);
    LM_TRY(s);
  }
  if (found)
    return NULL;
  return lm_fail(LM_ENV,
                 "several ranks need %s, which is not in %s: this lmc was built without MPI (on "
                 "Debian: apt-get install libopenmpi-dev openmpi-bin, then build it again)",
                 PLUGIN, slash ? self : "the folder of lmc");
}

// ---- opening

#define TCP_START_S 30.0

static lm_status mpi_open(lm_comm *c, const lm_launch *launch) {
  char error[LM_ENGINE_TEXT] = "";
  LM_TRY(engine_find(c));
  if (!c->engine->open(&c->state, &c->rank, &c->size, error))
    return lm_comm_engine_failed("the ranks cannot find each other", error);
  if (c->size == launch->size)
    return NULL;
  return lm_fail(LM_ENV,
                 "%s has started %d processes, but this lmc's MPI library sees %d: it is of "
                 "another kind than that %s",
                 launch->name, launch->size, c->size, launch->name);
}

// If another rank reports the failure, this one ends here.
static lm_status tcp_open(lm_comm *c, const lm_launch *launch, const lm_comm_options *o,
                          double seconds) {
  bool reported;
  c->engine = lm_tcp_engine();
  c->size = launch->size;
  lm_status s = lm_tcp_open(launch, seconds, &c->state, &reported);
  if (reported && o->end)
    o->end(o->user, s->kind, s->text, false);
  return s;
}

static lm_status ranks_join(lm_comm *c) {
  char error[LM_ENGINE_TEXT] = "";
  lm_address address = {0};
  lm_status s = NULL;
  if (!c->rank)
    s = lm_control_listen(c->control, &address);
  if (!c->engine->share(c->state, &address, sizeof address, error))
    return s ? s : lm_comm_engine_failed("the ranks cannot find each other", error);
  LM_TRY(s);
  LM_TRY(lm_control_join(c->control, c->rank, c->size, &address));
  c->joined = true;
  return lm_comm_groups(c, &(lm_comm_mesh){0});
}

static void comm_free(lm_comm *c) {
  for (int i = 0; i < LM_COMM_HANDLES; i++) {
    lm_status_free(c->colls[i].failed);
    lm_free(c->colls[i].workspace);
  }
  lm_free(c);
}

lm_status lm_comm_open(const lm_comm_options *o, lm_comm **out) {
  lm_launch launch;
  *out = NULL;
  LM_TRY(lm_launch_find(&launch));
  if (launch.size == 1)
    return NULL;
  lm_comm *c = lm_alloc(sizeof *c);
  c->rank = launch.rank;
  lm_control_limits limits =
      lm_control_limits_of_environment(launch.by_mpi ? LM_MPI_START_S : TCP_START_S);
  c->control = lm_control_create(o, limits, c->rank, launch.by_mpi ? launch.rank_variable : NULL);
  lm_status s = launch.by_mpi ? mpi_open(c, &launch) : tcp_open(c, &launch, o, limits.start);
  if (!s)
    s = ranks_join(c);
  if (s) {
    lm_comm_close(c, s);
    return s;
  }
  *out = c;
  return NULL;
}

// A process that fails leaves the engine as it is: its other ranks do not answer any more.
static void failed_close(lm_comm *c, lm_status failed) {
  lm_control_close(c->control, failed);
  if (c->state && c->engine->drop)
    c->engine->drop(c->state);
}

// In the engine, ranks wait for each other again.
static void ended_close(lm_comm *c) {
  lm_control_leave(c->control);
  c->engine->close(c->state);
  lm_control_close(c->control, NULL);
}

void lm_comm_close(lm_comm *c, lm_status failed) {
  if (!c)
    return;
  lm_comm_progress_end(c);
  lm_status s = !failed && c->joined ? lm_control_end(c->control) : NULL;
  if (!failed && !s && c->joined)
    ended_close(c);
  else
    failed_close(c, failed ? failed : s);
  lm_status_free(s);
  comm_free(c);
}

bool lm_comm_speaks(const lm_comm *c) {
  return !c || !c->joined || lm_control_speaks(c->control);
}

const char *lm_comm_engine(const lm_comm *c) {
  return c->engine->name;
}

bool lm_comm_sums(const lm_comm *c) {
  return c->engine->sum != NULL;
}

lm_comm_self lm_comm_self_of(const lm_comm *c) {
  if (!c)
    return (lm_comm_self){
        .size = 1,
        .local_size = 1,
        .sharing = 1,
        .host = "this machine",
    };
  const lm_control_member *m = &lm_control_members(c->control)[c->rank];
  return (lm_comm_self){.rank = c->rank,
                        .size = c->size,
                        .local_rank = m->local_rank,
                        .local_size = m->local_size,
                        .sharing = m->sharing,
                        .host = m->host};
}

// ---- decisions of the host

lm_status lm_comm_agree(lm_comm *c, const char *what, const void *own, size_t bytes, void *all) {
  if (c)
    return lm_control_agree(c->control, what, own, bytes, all);
  memcpy(all, own, bytes);
  return NULL;
}

lm_status lm_comm_decide(lm_comm *c, const char *what, void *value, size_t bytes) {
  return c ? lm_control_decide(c->control, what, value, bytes) : NULL;
}

lm_status lm_comm_any(lm_comm *c, const char *what, int *value) {
  if (!c)
    return NULL;
  int *all = lm_calloc((size_t)c->size, sizeof *all);
  lm_status s = lm_control_agree(c->control, what, value, sizeof *value, all);
  *value = 0;
  for (int r = 0; r < c->size && !s && !*value; r++)
    *value = all[r];
  lm_free(all);
  return s;
}

lm_status lm_comm_check(lm_comm *c) {
  return c ? lm_control_check(c->control) : NULL;
}

void lm_comm_waits(lm_comm *c, const char *label, int64_t bytes) {
  if (c)
    lm_control_waits(c->control, label, bytes);
}

double lm_comm_waited(const lm_comm *c) {
  return c ? lm_control_waited(c->control) : 0;
}

void lm_comm_connects(lm_comm *c, const char *label) {
  if (c)
    lm_control_connects(c->control, label);
}

void lm_comm_moved(lm_comm *c) {
  if (c)
    lm_control_progress(c->control);
}

lm_status lm_comm_fail(lm_comm *c, lm_status own) {
  return c ? lm_control_fail(c->control, own) : own;
}

typedef struct outcome {
  int32_t kind;
  char text[1020];
} outcome;

lm_status lm_comm_settle(lm_comm *c, const char *what, lm_status own) {
  if (!c)
    return own;
  outcome mine = {own ? (int32_t)own->kind : LM_OK};
  outcome *all = lm_calloc((size_t)c->size, sizeof *all);
  snprintf(mine.text, sizeof mine.text, "%s", own ? own->text : "");
  lm_status s = lm_control_agree(c->control, what, &mine, sizeof mine, all);
  for (int r = 0; r < c->size && !s && !own; r++)
    if (all[r].kind)
      s = lm_fail((lm_kind)all[r].kind, "rank %d (host %s): %s", r,
                  lm_control_members(c->control)[r].host, all[r].text);
  lm_free(all);
  if (own)
    lm_status_free(s);
  return own ? own : s;
}

typedef struct colored {
  uint64_t color, hash;
} colored;

lm_status lm_comm_equal_of_color(lm_comm *c, const char *what, int color, uint64_t hash) {
  if (!c)
    return NULL;
  const lm_control_member *m = lm_control_members(c->control);
  colored own = {(uint64_t)color, hash}, *all = lm_calloc((size_t)c->size, sizeof *all);
  lm_status s = lm_control_agree(c->control, what, &own, sizeof own, all);
  for (int r = 1; r < c->size && !s; r++) {
    int first = 0;
    while (all[first].color != all[r].color)
      first++;
    if (all[r].hash != all[first].hash)
      s = lm_fail(LM_ENV, "%s of rank %d (host %s) differs from that of rank %d (host %s)", what, r,
                  m[r].host, first, m[first].host);
  }
  lm_free(all);
  return s;
}

lm_status lm_comm_equal(lm_comm *c, const char *what, uint64_t hash) {
  return lm_comm_equal_of_color(c, what, 0, hash);
}
