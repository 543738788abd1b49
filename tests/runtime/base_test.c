// Allocation, arenas, interning, text, statuses, hashing, files; Philox against Random123's known
// answers (kat_vectors).
// Build: both
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/base/pages.h"
#include "runtime/base/philox.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"
#include "tests/runtime/check.h"
#include "tests/sanitizer.h"

static void test_arena(void) {
  lm_arena *a = lm_arena_create();
  for (size_t n = 0; n < 3000; n += 7) {
    char *p = lm_arena_alloc(a, n);
    CHECK((uintptr_t)p % 16 == 0);
    for (size_t i = 0; i < n; i++)
      CHECK(p[i] == 0);
    memset(p, 1, n);
  }
  memset(lm_arena_alloc(a, 5 << 20), 1, 5 << 20);
  struct {
    int *items;
    uint32_t n, cap;
  } list = {0};
  for (int i = 0; i < 1000; i++)
    LM_PUSH(a, list.items, list.n, list.cap) = i;
  for (int i = 0; i < 1000; i++)
    CHECK(list.items[i] == i);
  CHECK(!strcmp(lm_arena_printf(a, "%d-%s", 7, "x"), "7-x"));
  lm_arena_destroy(a);
}

static void test_intern(void) {
  lm_arena *a = lm_arena_create();
  lm_intern *t = lm_intern_create(a, NULL);
  const char *seen[2000];
  for (int i = 0; i < 2000; i++)
    seen[i] = lm_intern_s(t, lm_arena_printf(a, "name%d", i));
  for (int i = 0; i < 2000; i++)
    CHECK(lm_intern_s(t, lm_arena_printf(a, "name%d", i)) == seen[i]);
  CHECK(lm_intern_n(t, "name12345", 5) == seen[1]);
  CHECK(lm_intern_n(t, "", 0) == lm_intern_s(t, ""));
  lm_arena_destroy(a);
}

// Sequences of the Unicode Standard 15.0, tables 3-8 to 3-11, and the U+FFFD that stand for each.
static void test_malformed_text(void) {
  static const struct {
    const char *bytes;
    int replaced;
  } cases[] = {{"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82", 8},
               {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf", 8},
               {"\xf4\x91\x92\x93\xff", 5},
               {"\x80\xbf", 2},
               {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf", 4}};
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_buf text = {0};
    lm_buf got = {0};
    lm_buf want = {0};
    lm_buf_printf(&text, "%sA", cases[i].bytes);
    lm_buf_json(&got, text.p);
    lm_buf_puts(&want, "\"");
    for (int k = 0; k < cases[i].replaced; k++)
      lm_buf_puts(&want, "\\ufffd");
    lm_buf_puts(&want, "A\"");
    CHECK(!strcmp(got.p, want.p));
    lm_buf_free(&text);
    lm_buf_free(&got);
    lm_buf_free(&want);
  }
}

static void test_text(void) {
  lm_buf b = {0};
  lm_buf_json(&b, "a\"\\\n\x01\xc3\xa9\xff\xed\xa0\x80");
  CHECK(!strcmp(b.p, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\\ufffd\\ufffd\\ufffd\\ufffd\""));
  lm_buf_free(&b);
  lm_status s = lm_annotate(lm_fail(LM_USER, "no %d", 3), "in %s", "x");
  CHECK(s->kind == LM_USER && !strcmp(s->text, "in x: no 3"));
  lm_status_free(s);
  CHECK(lm_annotate(NULL, "x") == NULL);
}

static void test_utf8(void) {
  const char *text = "\xc2\xa0 a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\t\xe3\x80\x80";
  static const size_t starts[] = {0, 2, 3, 4, 6, 9, 13, 14};
  size_t n = strlen(text), end = n;
  CHECK(lm_utf8_count(text, n) == LM_COUNT(starts));
  for (size_t i = LM_COUNT(starts); i-- > 0; end = starts[i]) {
    CHECK(lm_utf8_before(text, end) == starts[i] && !lm_utf8_continues(text[starts[i]]));
    CHECK(lm_utf8_length(text + starts[i]) == end - starts[i]);
  }
  CHECK(lm_utf8_spaces_end(text, n) == 3 && lm_utf8_spaces_start(text, n) == 13);
  CHECK(lm_utf8_spaces_end(text, 3) == 3 && lm_utf8_spaces_start(text, 3) == 0);
  CHECK(!lm_utf8_spaces_end(text, 0) && !lm_utf8_spaces_start(text, 0));
  CHECK(lm_utf8_spaces_end("\xff ", 2) == 0 && lm_utf8_spaces_start(" \x80", 2) == 2);
}

static void test_hash(void) {
  CHECK(lm_hash("", 0, 0) != lm_hash("", 0, 1));
  CHECK(lm_hash("\0", 1, 0) != lm_hash("\0\0", 2, 0));
  uint64_t all = 0;
  for (size_t n = 0; n < 40; n++)
    all = lm_hash("the quick brown fox jumps over the lazy dog", n, all);
  CHECK(all == UINT64_C(0xf52621d028d99756)); // stored files depend on it
}

// Bytes that make a factor of the hash 0 or 2^64 - 1 do not make it forget the bytes before them.
static void test_hash_forgets_nothing(void) {
  static const uint64_t constants[] = {0xe7037ed1a0b428dbull, 0x1d8e4e27c47d124full};
  for (int i = 0; i < 4; i++) {
    uint64_t word = i % 2 ? ~constants[i / 2] : constants[i / 2], one[2] = {0}, other[2] = {0};
    unsigned char a[64], b[64];
    memset(a, 1, sizeof a);
    memset(b, 2, sizeof b);
    memcpy(a + 32, &word, sizeof word);
    memcpy(b + 32, &word, sizeof word);
    memset(a + 40, 7, 24);
    memset(b + 40, 7, 24);
    CHECK(lm_hash(a, sizeof a, 0) != lm_hash(b, sizeof b, 0));
    lm_hash_key(one, a, sizeof a);
    lm_hash_key(other, b, sizeof b);
    CHECK(one[0] != other[0] && one[1] != other[1] && one[0] != one[1]);
    CHECK((one[0] ^ other[0]) != (one[1] ^ other[1])); // the halves do not collide together
  }
}

static void test_hash_in_pieces(void) {
  char text[1000];
  for (size_t i = 0; i < sizeof text; i++)
    text[i] = (char)(i * 7);
  for (size_t first = 0; first <= 992; first += 16) {
    lm_hasher h = lm_hash_begin(5);
    lm_hash_add(&h, text, first);
    lm_hash_add(&h, text + first, sizeof text - first);
    CHECK(lm_hash_end(&h) == lm_hash(text, sizeof text, 5));
  }
}

static void test_files(void) {
  char dir[] = "/tmp/lm-base-XXXXXX";
  CHECK(mkdtemp(dir));
  lm_arena *a = lm_arena_create();
  char *deep = lm_path_join(a, dir, "a/b/c");
  CHECK_OK(lm_dir_make(deep));
  CHECK_OK(lm_dir_make(deep));
  char *file = lm_path_join(a, deep, "f");
  CHECK_OK(lm_file_write_atomic(file, "hello", 5));
  CHECK_FAILS(lm_dir_make(lm_path_join(a, file, "x")), LM_USER, "is in the way");
  lm_buf b = {0};
  CHECK_OK(lm_file_read(file, 5, &b));
  CHECK(b.n == 5 && !strcmp(b.p, "hello"));
  CHECK_FAILS(lm_file_read(file, 4, &b), LM_ENV, "larger than 4 bytes");
  CHECK_FAILS(lm_file_read(lm_path_join(a, dir, "none"), 4, &b), LM_ENV, "No such file");
  lm_buf_free(&b);
  CHECK(!strcmp(lm_path_join(a, "x", "/y"), "/y") && !strcmp(lm_path_join(a, "x/", "y"), "x/y"));
  CHECK(!strcmp(lm_path_dir(a, "/y"), "/") && !strcmp(lm_path_dir(a, "y"), ".") &&
        !strcmp(lm_path_dir(a, "a/b/c"), "a/b"));
  unlink(file);
  rmdir(deep);
  rmdir(lm_path_join(a, dir, "a/b"));
  rmdir(lm_path_join(a, dir, "a"));
  CHECK(!rmdir(dir));
  lm_arena_destroy(a);
}

static void test_philox(void) {
  static const struct {
    lm_philox4 counter;
    lm_philox_key2 key;
    lm_philox4 want;
  } known[] = {
      {{{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{~0u, ~0u, ~0u, ~0u}}, {{~0u, ~0u}}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {{0xa4093822, 0x299f31d0}},
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (size_t i = 0; i < LM_COUNT(known); i++) {
    lm_philox4 got = lm_philox(known[i].counter, known[i].key);
    CHECK(!memcmp(&got, &known[i].want, sizeof got));
  }
  CHECK(lm_philox_unit(0) > 0 && lm_philox_unit(~0u) < 1);
}

static void test_pages(void) {
  static const size_t sizes[] = {1, 5000, 2 << 20, (2 << 20) + 5000, (2 << 20) - 1 + (3 << 20)};
  lm_pages p;
  for (size_t k = 0; k < LM_COUNT(sizes); k++) {
    CHECK(lm_pages_make(sizes[k], &p));
    CHECK((uintptr_t)p.start % (sizes[k] < 2 << 20 ? 4096 : 2 << 20) == 0);
    for (size_t i = 0; i < sizes[k]; i++)
      CHECK(!p.start[i]);
    memset(p.start, 1, sizes[k]);
    lm_pages_free(&p);
  }
  CHECK(lm_pages_make(0, &p) && !p.start);
  lm_pages_free(&p);
  CHECK(!lm_pages_make(SIZE_MAX - 5, &p) && !lm_pages_make(SIZE_MAX / 2, &p));
  lm_pages_free(&p);
}

// Five runs that take nearly as little as the shortest confirm it; a clearly shorter one starts a
// new series.
static void test_shortest(void) {
  static const struct {
    double seconds[8];
    int n;
    bool confirmed;
    double shortest;
  } cases[] = {{{1, 1, 1.01, 1.02, 1, 1.01}, 6, true, 1},
               {{1, 1, 1, 1, 1}, 5, false, 1},
               {{1, 2, 3, 1.5, 2, 2, 1.2, 1.1}, 8, false, 1},
               {{2, 2, 2, 2, 2, 1, 1, 1}, 8, false, 1},
               {{2, 1, 3, 1, 1, 1, 1, 0.99}, 8, true, 0.99}};
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_shortest s = {0};
    for (int k = 0; k < cases[i].n; k++)
      lm_shortest_add(&s, cases[i].seconds[k]);
    CHECK(lm_shortest_is_confirmed(&s) == cases[i].confirmed && s.seconds == cases[i].shortest);
  }
}

__attribute__((noinline)) static void stack_use(void) {
  volatile char deep[240 << 10];
  for (size_t i = sizeof deep; i-- > 0;)
    deep[i] = 0;
}

// Without address space left the stack has its usual size, else the child ends with a signal.
static void test_stack(void) {
  int status;
  pid_t child = fork();
  if (!child) {
    lm_status s = lm_process_prepare();
    struct rlimit none = {1 << 20, 1 << 20};
    if (s || setrlimit(RLIMIT_AS, &none))
      _exit(1);
    stack_use();
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

static size_t address_space(void) {
  size_t pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  CHECK(f && fscanf(f, "%zu", &pages) == 1);
  fclose(f);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

// Small allocations get nearly all of a limited address space.
static void test_limited_heap(void) {
  enum {
    SPACE = 24 << 20,
    BLOCK = 1000
  };
  int status;
  pid_t child = fork();
  if (!child) {
    size_t given = 0, most = address_space() + SPACE;
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit))
      _exit(1);
    lm_heap_prepare();
    for (char *volatile p; (p = malloc(BLOCK));)
      given += BLOCK;
    _exit(given < SPACE / 10 * 9);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(void) {
  test_stack(); // before others use the stack
  if (!LM_ADDRESS_SANITIZER)
    test_limited_heap();
  test_arena();
  test_pages();
  test_shortest();
  test_intern();
  test_text();
  test_malformed_text();
  test_utf8();
  test_hash();
  test_hash_forgets_nothing();
  test_hash_in_pieces();
  test_files();
  test_philox();
  return 0;
}
