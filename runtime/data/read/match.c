// match.c - see match.h.
#define _GNU_SOURCE
#include "runtime/data/read/match.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void lm_match_escape(const char *path, lm_buf *out) {
  for (const char *p = path; *p; p++)
    lm_buf_printf(out, strchr("*?[\\", *p) ? "\\%c" : "%c", *p);
}

typedef struct {
  glob_t *found;
  lm_buf *unreadable; // the folder below which a folder cannot be read
} matcher;

static int matches_add(const char *pattern, matcher *m);

static const char *any_folders(const char *pattern) {
  const char *p = pattern;
  while ((p = strstr(p, "**/")) && p > pattern && p[-1] != '/')
    p++;
  return p;
}

static int is_no_match(int rc) {
  return rc == GLOB_NOMATCH || (rc == GLOB_ABORTED && (errno == ENOENT || errno == ENOTDIR));
}

static int is_visible(const struct dirent *e) {
  return *e->d_name != '.';
}

static bool is_folder(const char *path) {
  struct stat st;
  return !lstat(path, &st) && S_ISDIR(st.st_mode);
}

// folder: "" or a path with a final '/', as text; rest: a pattern.
static int folder_match(const char *folder, const char *rest, matcher *m) {
  lm_buf pattern = {0};
  lm_match_escape(folder, &pattern);
  lm_buf_puts(&pattern, rest);
  int rc = matches_add(pattern.p, m);
  lm_buf_free(&pattern);
  return is_no_match(rc) ? 0 : rc;
}

// Matches `rest` in the folder and in all folders below.
static int folders_match(const char *folder, const char *rest, matcher *m) {
  struct dirent **all;
  int rc = folder_match(folder, rest, m);
  int n = rc ? 0 : scandir(*folder ? folder : ".", &all, is_visible, alphasort);
  if (n < 0)
    rc = GLOB_ABORTED;
  if (rc && !m->unreadable->n)
    lm_buf_puts(m->unreadable, *folder ? folder : "./");
  if (rc)
    return rc;
  for (int i = 0; i < n; i++) {
    lm_buf below = {0};
    lm_buf_printf(&below, "%s%s", folder, all[i]->d_name);
    bool enter = !rc && is_folder(below.p);
    lm_buf_puts(&below, "/");
    if (enter)
      rc = folders_match(below.p, rest, m);
    lm_buf_free(&below);
    free(all[i]);
  }
  free(all);
  return rc;
}

// any: the `**` in the pattern.
static int any_folders_match(const char *pattern, const char *any, matcher *m) {
  if (any == pattern)
    return folders_match("", any + strlen("**/"), m);
  lm_buf above = {0};
  glob_t folders;
  lm_buf_add(&above, pattern, (size_t)(any - pattern));
  int rc = glob(above.p, GLOB_ERR | GLOB_ONLYDIR | GLOB_MARK, NULL, &folders);
  lm_buf_free(&above);
  if (rc)
    return rc;
  for (size_t i = 0; i < folders.gl_pathc && !rc; i++) {
    char *folder = folders.gl_pathv[i];
    size_t n = strlen(folder);
    if (n > 1 && folder[n - 2] == '/')
      folder[n - 1] = 0; // the mark of a pattern that ends with '/' itself
    rc = folders_match(folder, any + strlen("**/"), m);
  }
  globfree(&folders);
  return rc;
}

static int matches_add(const char *pattern, matcher *m) {
  const char *any = any_folders(pattern);
  return any ? any_folders_match(pattern, any, m)
             : glob(pattern, GLOB_ERR | GLOB_APPEND, NULL, m->found);
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool ends_with_any(const char *pattern) {
  const char *slash = strrchr(pattern, '/');
  return !strcmp(slash ? slash + 1 : pattern, "**");
}

// rc: a value of glob() other than 0, of which errno says why.
static lm_status failure(const char *pattern, int rc, const lm_buf *unreadable) {
  bool missing = rc == GLOB_ABORTED && (errno == ENOENT || errno == ENOTDIR);
  if (rc == GLOB_NOMATCH || missing)
    return lm_fail(LM_USER, "no file matches %s", pattern);
  if (!unreadable->n)
    return lm_fail_errno("cannot search for %s", pattern);
  return lm_fail_errno("cannot search for %s: in %s", pattern, unreadable->p);
}

lm_status lm_match(const char *pattern, glob_t *found) {
  *found = (glob_t){0};
  lm_buf unreadable = {0};
  matcher m = {found, &unreadable};
  lm_buf whole = {0};
  lm_buf_printf(&whole, "%s%s", pattern, ends_with_any(pattern) ? "/*" : "");
  int rc = matches_add(whole.p, &m);
  if (!rc && !found->gl_pathc)
    rc = GLOB_NOMATCH;
  if (!rc && any_folders(whole.p))
    qsort(found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, by_text);
  lm_status s = rc ? failure(pattern, rc, &unreadable) : NULL;
  if (rc)
    globfree(found);
  lm_buf_free(&unreadable);
  lm_buf_free(&whole);
  return s;
}
