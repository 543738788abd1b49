// children.c - see children.h.
#include "runtime/comm/children.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"

#define GAP_S 3.0              // between two looks, behind which nothing is known
#define ENVIRONMENT (4u << 20) // bytes of a process's variables that are read at most

// The state of a process, as in "R", if its parent is `parent`, else 0. The name, in parentheses,
// may contain any character.
static char state_of(const char *process, pid_t parent) {
  char path[300], text[512] = {0};
  int ppid = 0;
  char state = 0;
  snprintf(path, sizeof path, "/proc/%s/stat", process);
  FILE *f = fopen(path, "r");
  if (!f)
    return 0;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  while (n > 0 && text[n - 1] != ')')
    n--;
  return sscanf(text + n, " %c %d", &state, &ppid) == 2 && ppid == parent ? state : 0;
}

typedef void child_fn(void *user, pid_t pid, char state);

// Calls f for each child that has not ended. False if /proc cannot be read.
static bool children_visit(pid_t parent, child_fn *f, void *user) {
  DIR *d = opendir("/proc");
  if (!d)
    return false;
  for (struct dirent *e; (e = readdir(d));) {
    bool numbered = *e->d_name >= '0' && *e->d_name <= '9';
    char state = numbered ? state_of(e->d_name, parent) : 0;
    if (state && state != 'Z')
      f(user, (pid_t)atoi(e->d_name), state);
  }
  closedir(d);
  return true;
}

typedef struct view {
  lm_children *c;
  const char *variable;
  pid_t before; // that was stopped at the last look
} view;

static void child_note(void *user, pid_t pid, char state) {
  const view *v = user;
  lm_children *c = v->c;
  c->any = true;
  if (lm_process_number(pid, v->variable) < 0)
    return;
  if (state != 'T')
    c->first = !c->first || pid < c->first ? pid : c->first;
  else if (!c->stopped || pid == v->before)
    c->stopped = pid;
}

void lm_children_look(lm_children *c, pid_t parent, const char *variable) {
  double now = lm_now();
  view v = {
      .c = c,
      .variable = variable,
      .before = now - c->looked < GAP_S ? c->stopped : 0,
  };
  pid_t first = c->first;
  c->first = c->stopped = 0;
  c->any = false;
  c->any |= !children_visit(parent, child_note, &v);
  c->looked = now;
  if (!c->stopped || c->stopped != v.before)
    c->since = now;
  else
    c->first = first;
}

double lm_children_stopped(const lm_children *c) {
  return c->stopped ? c->looked - c->since : 0;
}

static void child_kill(void *user, pid_t pid, char state) {
  (void)user;
  (void)state;
  kill(pid, SIGKILL);
}

void lm_children_kill(pid_t parent) {
  children_visit(parent, child_kill, NULL);
}

int lm_process_number(pid_t pid, const char *variable) {
  char path[64];
  lm_buf all = {0};
  size_t n = strlen(variable);
  int number = -1;
  snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
  lm_status_free(lm_file_read(path, ENVIRONMENT, &all));
  for (size_t at = 0; at + n < all.n && number < 0; at += strlen(all.p + at) + 1)
    if (!strncmp(all.p + at, variable, n) && all.p[at + n] == '=')
      number = atoi(all.p + at + n + 1);
  lm_buf_free(&all);
  return number;
}
