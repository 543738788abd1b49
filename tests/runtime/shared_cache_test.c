// Files that others may have put there: FIFOs, links, files of another user; what killed processes
// leave behind; and the rules of the kernel cache: the folder that is used, the entries that are
// trusted, and the entries that are removed when there are too many.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cache.h"
#include "tests/runtime/check.h"

enum {
  OTHER = 12345,
  THIRD = 54321
}; // users

static lm_arena *arena;
static char root[] = "/tmp/lm-cache-XXXXXX";

static const char *in_root(const char *name) {
  return lm_path_join(arena, root, name);
}

static const char *folder_make(const char *name, mode_t mode, uid_t owner) {
  const char *path = in_root(name);
  CHECK(!mkdir(path, 0700) && !chown(path, owner, owner) && !chmod(path, mode));
  return path;
}

static void file_make(const char *path, const char *text) {
  CHECK_OK(lm_file_write_atomic(path, text, strlen(text)));
}

static bool file_holds(const char *path, const char *text) {
  lm_buf b = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &b));
  bool same = !strcmp(b.p, text);
  lm_buf_free(&b);
  return same;
}

static mode_t mode_of(const char *path) {
  struct stat st;
  CHECK(!stat(path, &st));
  return st.st_mode & 07777;
}

// ---- files

static void test_not_regular(void) {
  static const char *const names[] = {"fifo", "folder", "loop", "device"};
  static const char *const whys[] = {"is a FIFO", "is a folder", "Too many levels", "is a device"};
  CHECK(!mkfifo(in_root("fifo"), 0600) && !mkdir(in_root("folder"), 0700) &&
        !symlink("loop", in_root("loop")));
  CHECK(!symlink("/dev/zero", in_root("device")));
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    int fd;
    lm_buf b = {0};
    CHECK_FAILS(lm_open_regular(in_root(names[i]), &fd), LM_ENV, whys[i]);
    CHECK_FAILS(lm_file_read(in_root(names[i]), 100, &b), LM_ENV, whys[i]);
    CHECK(fd == -1 && !b.n);
    lm_buf_free(&b);
  }
  int ends[2];
  lm_buf b = {0};
  CHECK(!pipe(ends) && write(ends[1], "abc", 3) == 3 && !close(ends[1]));
  CHECK_OK(
      lm_file_read(lm_arena_printf(arena, "/dev/fd/%d", ends[0]), 100, &b)); // it is open already
  CHECK(b.n == 3);
  lm_buf_free(&b);
  close(ends[0]);
}

// A temporary file belongs to this process alone: anything else of its name is removed, and the
// files behind links keep their content.
static void test_temp(void) {
  const char *precious = in_root("precious");
  const char *path = in_root("new");
  const char *temp = in_root("new.tmp");
  file_make(precious, "precious");
  CHECK(!symlink("precious", temp));
  file_make(path, "1");
  CHECK(!link(precious, temp));
  file_make(path, "2");
  CHECK(!mkfifo(temp, 0600));
  file_make(path, "3");
  CHECK(!mknod(temp, S_IFREG | 0666, 0) && !chown(temp, OTHER, OTHER));
  file_make(path, "4");
  CHECK(file_holds(path, "4") && file_holds(precious, "precious"));
  struct stat st;
  CHECK(!stat(path, &st) && st.st_uid == geteuid() && access(temp, F_OK));
}

static void test_temps_clean(void) {
  int held;
  const char *live = in_root("0123456789abcdef.row.tmp");
  const char *dead = in_root("123456789abcdef0.row.tmp");
  CHECK_OK(lm_temp_open(live, &held));
  const char *foreign = in_root("notes.tmp");
  file_make(dead, "left behind");
  file_make(foreign, "of another program");
  lm_temps_clean(root);
  CHECK(!access(live, F_OK) && access(dead, F_OK));
  close(held);
  lm_temps_clean(root);
  CHECK(access(live, F_OK) && !access(foreign, F_OK) && !unlink(foreign));
}

static void test_temp_dirs(void) {
  lm_temp_dir mine;
  CHECK_OK(lm_temp_dir_make(root, "work-", &mine));
  CHECK(mode_of(mine.path) == 0700);
  int ends[2];
  char path[200] = "";
  CHECK(!pipe(ends));
  pid_t child = fork();
  if (!child) {
    lm_temp_dir of_child;
    CHECK_OK(lm_temp_dir_make(root, "work-", &of_child));
    file_make(lm_path_join(arena, of_child.path, "unit.c"), "text");
    CHECK(write(ends[1], of_child.path, strlen(of_child.path)) > 0);
    pause();
  }
  CHECK(read(ends[0], path, sizeof path - 1) > 0);
  lm_temp_dirs_clean(root, "work-");
  CHECK(!access(path, F_OK) && !access(mine.path, F_OK)); // both are in use
  CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
  lm_temp_dirs_clean(root, "work-");
  CHECK(access(path, F_OK) && !access(mine.path, F_OK));
  lm_temp_dir_remove(&mine);
}

// ---- the folder

static lm_cache cache_open(const char *dir) {
  lm_cache c;
  CHECK(!setenv("LMC_CACHE", dir, 1));
  CHECK_OK(lm_cache_open(arena, &c));
  return c;
}

static void dir_is(const char *named, const char *used, const char *shared) {
  lm_cache c = cache_open(named);
  bool temporary = !used;
  if (temporary ? !c.why_temporary : strcmp(c.dir, used))
    fprintf(stderr, "%s: %s is used (%s)\n", named, c.dir, c.why_temporary ? c.why_temporary : "");
  CHECK(temporary ? c.why_temporary != NULL : !c.why_temporary && !strcmp(c.dir, used));
  CHECK(shared ? c.shared && !strcmp(c.shared, shared) : !c.shared);
  CHECK(mode_of(c.dir) == 0700);
  lm_cache_close(&c);
}

static void test_own_folders(void) {
  const char *deep = in_root("own/deep");
  dir_is(deep, deep, NULL);
  CHECK(mode_of(in_root("own")) == 0700);
  const char *shared = folder_make("sticky", 01777, geteuid());
  const char *group = folder_make("group", 0775, geteuid());
  char user[32];
  snprintf(user, sizeof user, "user-%d", (int)geteuid());
  dir_is(shared, lm_path_join(arena, shared, user), NULL);
  dir_is(group, lm_path_join(arena, group, user), NULL);
  dir_is(group, lm_path_join(arena, group, user), NULL); // and again, when it is there
  const char *trap = folder_make("trap", 0777, geteuid());
  CHECK(!symlink(deep, lm_path_join(arena, trap, user)));
  CHECK(!setenv("HOME", in_root("home"), 1) && !unsetenv("XDG_CACHE_HOME"));
  dir_is(trap, in_root("home/.cache/lmc"), NULL);
}

static void as_user(uid_t user, void (*test)(void)) {
  pid_t child = fork();
  int state;
  if (!child) {
    CHECK(!setgid(user) && !setuid(user));
    test();
    exit(0);
  }
  CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && !WEXITSTATUS(state));
}

static void other_opens(void) {
  CHECK(!setenv("HOME", in_root("of-other"), 1));
  const char *mine = in_root("of-other/.cache/lmc");
  dir_is(in_root("sticky"), in_root("sticky/user-12345"), NULL);
  dir_is(in_root("image"), mine, in_root("image"));
  dir_is(in_root("of-third"), mine, NULL);
  dir_is(in_root("taken"), mine, NULL);
  CHECK(!setenv("HOME", "/proc", 1) && !setenv("TMPDIR", in_root("of-other"), 1));
  dir_is(in_root("of-third"), NULL, NULL);
}

// Two users of one folder; a folder that only root writes to; one of a third user; one where a sub
// folder was put in advance.
static void test_other_users(void) {
  CHECK(!chmod(root, 0755));
  folder_make("of-other", 0700, OTHER);
  folder_make("of-third", 0755, THIRD);
  folder_make("image", 0755, 0);
  folder_make("taken", 01777, 0);
  folder_make("taken/user-12345", 0777, THIRD);
  as_user(OTHER, other_opens);
  CHECK(!chmod(root, 0700));
}

static void test_limits(void) {
  static const char *const good[] = {"0", "500M", "4Gi", "4GiB", "1000000B", "2k"};
  static const uint64_t bytes[] = {0,       500000000, UINT64_C(4) << 30, UINT64_C(4) << 30,
                                   1000000, 2000};
  static const char *const bad[] = {"-1", "x", "4Q", "4 G", "99999999999G", "4iB", "1.5G", "500 "};
  lm_cache c;
  for (size_t i = 0; i < LM_COUNT(good); i++) {
    CHECK(!setenv("LMC_CACHE_SIZE", good[i], 1));
    c = cache_open(in_root("own"));
    CHECK(c.limit == bytes[i]);
    lm_cache_close(&c);
  }
  for (size_t i = 0; i < LM_COUNT(bad); i++) {
    CHECK(!setenv("LMC_CACHE_SIZE", bad[i], 1));
    CHECK_FAILS(lm_cache_open(arena, &c), LM_ENV, "LMC_CACHE_SIZE is '");
  }
  CHECK(!unsetenv("LMC_CACHE_SIZE"));
}

// ---- entries

// The name of an entry: its key is the letter, repeated.
static const char *entry_name(char letter, const char *type) {
  char key[33] = "";
  memset(key, letter, 32);
  return lm_arena_printf(arena, "%s%s", key, type);
}

// Adds an entry with two names.
static void entry_add(const lm_cache *c, char letter, size_t bytes) {
  lm_temp_dir temp;
  char *text = lm_alloc(bytes + 1);
  memset(text, letter, bytes);
  const char *names[] = {entry_name(letter, ".so"), entry_name(letter, ".cubin")};
  CHECK_OK(lm_cache_temp_dir(c, &temp));
  CHECK_OK(lm_file_write_atomic(lm_path_join(arena, temp.path, "made"), text, bytes));
  CHECK_OK(lm_cache_add(c, &temp, "made", names, 2));
  lm_temp_dir_remove(&temp);
  lm_free(text);
}

// Keeps the entry open, and so locked, if out_fd is given.
static bool entry_read(const lm_cache *c, const char *name, size_t bytes, int *out_fd) {
  lm_cache_entry e;
  lm_buf text = {0};
  if (!lm_cache_find(c, name, &e))
    return false;
  bool good = lm_cache_read(c, name, &e, &text);
  CHECK(!good || (text.n == bytes && text.p[0] == *name));
  if (out_fd)
    *out_fd = e.fd;
  else
    close(e.fd);
  lm_buf_free(&text);
  return good;
}

static void test_entries(void) {
  lm_cache c = cache_open(in_root("entries"));
  const char *a = entry_name('a', ".so"), *path = lm_path_join(arena, c.dir, a);
  entry_add(&c, 'a', 100);
  CHECK(entry_read(&c, a, 100, NULL) && entry_read(&c, entry_name('a', ".cubin"), 100, NULL) &&
        !entry_read(&c, entry_name('b', ".so"), 100, NULL));
  CHECK(!chmod(path, 0664) && !entry_read(&c, a, 100, NULL) && !chmod(path, 0644));
  CHECK(!chown(path, OTHER, OTHER) && !entry_read(&c, a, 100, NULL) && !chown(path, 0, 0));
  CHECK(!symlink(a, lm_path_join(arena, c.dir, "link")) && !entry_read(&c, "link", 100, NULL));
  CHECK(!mkfifo(lm_path_join(arena, c.dir, "fifo"), 0600) && !entry_read(&c, "fifo", 100, NULL));
  CHECK(entry_read(&c, a, 100, NULL));
  int fd = open(path, O_RDWR);
  CHECK(pwrite(fd, "b", 1, 50) == 1 && !close(fd));
  CHECK(!entry_read(&c, a, 100, NULL) && access(path, F_OK)); // damaged: removed
  lm_cache_close(&c);
}

static void age(const lm_cache *c, const char *name, time_t when) {
  struct timespec times[] = {{when, 0}, {when, 0}};
  CHECK(!utimensat(c->fd, name, times, 0));
}

// The least recently used entry is removed first, but no entry that is open or was just added.
static void test_eviction(void) {
  CHECK(!setenv("LMC_CACHE_SIZE", "2500", 1));
  lm_cache c = cache_open(in_root("evicting"));
  const char *x = entry_name('a', ".so"), *y = entry_name('b', ".so"), *z = entry_name('c', ".so");
  int held;
  entry_add(&c, 'a', 900);
  entry_add(&c, 'b', 900);
  CHECK(entry_read(&c, x, 900, &held));
  age(&c, x, 1000);
  age(&c, y, 2000);
  CHECK(lm_cache_bytes(&c) > 1800 && lm_cache_bytes(&c) < 1900);
  entry_add(&c, 'c', 900);
  CHECK(entry_read(&c, x, 900, NULL) && !entry_read(&c, y, 900, NULL) &&
        entry_read(&c, z, 900, NULL));
  close(held);
  age(&c, x, 1000);
  age(&c, z, 2000);
  entry_add(&c, 'd', 900);
  CHECK(!entry_read(&c, x, 900, NULL) && entry_read(&c, z, 900, NULL) &&
        entry_read(&c, entry_name('d', ".so"), 900, NULL));
  CHECK(access(lm_path_join(arena, c.dir, entry_name('a', ".cubin")), F_OK));
  lm_cache_close(&c);
  CHECK(!unsetenv("LMC_CACHE_SIZE"));
}

// A cache in a folder with other files, of which none may be counted or removed.
static void test_foreign_files(void) {
  static const char *const names[] = {"thesis.tar",
                                      "tuned-notes.json",
                                      "a.so",
                                      ".so",
                                      "0123456789abcdef0123456789abcdef.pdf",
                                      "0123456789abcdef0123456789abcdef0.so"};
  CHECK(!setenv("LMC_CACHE_SIZE", "2000", 1));
  lm_cache c = cache_open(in_root("crowded"));
  lm_temp_dir temp;
  for (size_t i = 0; i < LM_COUNT(names); i++) {
    file_make(lm_path_join(arena, c.dir, names[i]), "of the user");
    CHECK(!truncate(lm_path_join(arena, c.dir, names[i]), 1 << 20));
    age(&c, names[i], 1000);
  }
  CHECK(!mkdirat(c.fd, "tmp-work", 0700) && !lm_cache_bytes(&c));
  entry_add(&c, 'a', 900);
  CHECK_OK(lm_cache_temp_dir(&c, &temp));
  lm_temp_dir_remove(&temp);
  for (size_t i = 0; i < LM_COUNT(names); i++)
    CHECK(!faccessat(c.fd, names[i], F_OK, 0));
  CHECK(!faccessat(c.fd, "tmp-work", F_OK, 0));
  lm_cache_close(&c);
  CHECK(!unsetenv("LMC_CACHE_SIZE"));
}

static void size_set(const lm_cache *c, uint64_t size, size_t bytes) {
  int fd = openat(c->fd, ".lmc-size", O_RDWR);
  CHECK(fd >= 0 && !ftruncate(fd, 0) && pwrite(fd, &size, bytes, 0) == (ssize_t)bytes);
  close(fd);
}

static uint64_t size_get(const lm_cache *c) {
  uint64_t size;
  int fd = openat(c->fd, ".lmc-size", O_RDONLY);
  CHECK(fd >= 0 && pread(fd, &size, sizeof size, 0) == sizeof size);
  close(fd);
  return size;
}

// The folder is listed only if the file with the size has none or the limit may be exceeded.
static void test_size_file(void) {
  CHECK(!setenv("LMC_CACHE_SIZE", "2500", 1));
  lm_cache c = cache_open(in_root("counted"));
  entry_add(&c, 'a', 900);
  CHECK(size_get(&c) == lm_cache_bytes(&c));
  entry_add(&c, 'b', 900);
  CHECK(size_get(&c) == lm_cache_bytes(&c));
  CHECK(!unlinkat(c.fd, entry_name('a', ".so"), 0) &&
        !unlinkat(c.fd, entry_name('a', ".cubin"), 0));
  uint64_t before = size_get(&c);
  CHECK(before > lm_cache_bytes(&c));
  entry_add(&c, 'c', 900); // the file counts the removed entry, the folder has none
  CHECK(entry_read(&c, entry_name('b', ".so"), 900, NULL));
  CHECK(size_get(&c) == lm_cache_bytes(&c));
  size_set(&c, 1, 4); // cut short
  age(&c, entry_name('b', ".so"), 1000);
  entry_add(&c, 'd', 900);
  CHECK(!entry_read(&c, entry_name('b', ".so"), 900, NULL));
  CHECK(size_get(&c) == lm_cache_bytes(&c));
  size_set(&c, 0, sizeof(uint64_t));
  entry_add(&c, 'e', 900); // not listed
  CHECK(size_get(&c) < lm_cache_bytes(&c) && lm_cache_bytes(&c) > c.limit);
  int held = openat(c.fd, ".lmc-size", O_RDWR);
  CHECK(held >= 0 && !flock(held, LOCK_EX));
  alarm(60);
  entry_add(&c, 'f', 900); // does not wait for the lock
  alarm(0);
  CHECK(faccessat(c.fd, ".lmc-size", F_OK, 0) && !close(held));
  entry_add(&c, 'g', 900);
  CHECK(size_get(&c) == lm_cache_bytes(&c));
  lm_cache_close(&c);
  CHECK(!unsetenv("LMC_CACHE_SIZE"));
}

// ---- other files of the cache

static bool is_refused(const char *path, const char *why) {
  lm_buf b = {0};
  lm_status s = lm_cache_file_read(path, 100, &b);
  bool refused = s && s->kind == LM_ENV && strstr(s->text, why) && !b.n;
  lm_status_free(s);
  lm_buf_free(&b);
  return refused;
}

// A file is written such that it can be read with any umask, whatever has its path or that of its
// temporary file.
static void test_other_files(void) {
  static const mode_t masks[] = {0, 002, 022, 077};
  const char *path = in_root("tuned.json");
  lm_buf b = {0};
  for (size_t i = 0; i < LM_COUNT(masks); i++) {
    umask(masks[i]);
    unlink(path);
    CHECK(!mkdir(i % 2 ? path : in_root("tuned.json.tmp"), 0700));
    CHECK_OK(lm_cache_file_write(path, "abc", 3));
    CHECK(mode_of(path) == 0644 && file_holds(path, "abc"));
    b.n = 0;
    CHECK_OK(lm_cache_file_read(path, 100, &b));
    CHECK(b.n == 3);
  }
  umask(022);
  CHECK(!mkdir(in_root("tuned.json.tmp"), 0700));
  file_make(in_root("tuned.json.tmp/contents"), "kept");
  CHECK_OK(lm_cache_file_write(path, "abc", 3));
  CHECK(file_holds(in_root("foreign-tuned.json.tmp/contents"), "kept"));
  lm_buf_free(&b);
  CHECK(!chmod(path, 0664) && is_refused(path, "others may write to it") && !chmod(path, 0646));
  CHECK(is_refused(path, "others may write to it") && !chmod(path, 0644));
  CHECK(!symlink("tuned.json", in_root("alias")) && is_refused(in_root("alias"), "cannot open"));
  CHECK(is_refused(in_root("none"), "No such file"));
  if (!geteuid())
    CHECK(!chown(path, OTHER, 0) && is_refused(path, "belongs to another user"));
}

int main(void) {
  arena = lm_arena_create();
  CHECK(mkdtemp(root));
  umask(022);
  bool is_root = !geteuid();
  test_not_regular();
  test_temps_clean();
  test_temp_dirs();
  test_own_folders();
  test_limits();
  test_eviction();
  test_size_file();
  test_foreign_files();
  test_other_files();
  if (is_root) {
    test_temp();
    test_other_users();
    test_entries();
  }
  CHECK_OK(lm_path_remove(root));
  lm_arena_destroy(arena);
  if (!is_root)
    fprintf(stderr, "cache_test: skipped what needs files of several users: it takes root\n");
  return 0;
}
