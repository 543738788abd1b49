// base.h - what every folder shares: allocation, arenas, interned strings, text buffers, status
// values, hashing.
//
// Ownership: what comes from an arena lives until the arena is destroyed. `lm_status` values own
// their text; hand them up or free them. Threads: nothing here is shared between threads unless it
// says so.
#ifndef LM_BASE_H
#define LM_BASE_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define LM_COUNT(a) (sizeof(a) / sizeof *(a))

// ---- allocation: the one allocator. Never returns NULL: on failure calls the out-of-memory
// handler, which must not return (the command's prints a message and leaves with exit status 2);
// tests/fault fails each of them in turn.
void *lm_alloc(size_t bytes); // zeroed
void *lm_realloc(void *p, size_t bytes);
void lm_free(void *p);
char *lm_strdup(const char *s);
void lm_oom_handler_set(void (*handler)(size_t bytes));
// n * size with overflow checked (overflow counts as out of memory)
void *lm_calloc(size_t n, size_t size);

typedef struct lm_arena lm_arena;
lm_arena *lm_arena_create(void);
void lm_arena_destroy(lm_arena *a);
void *lm_arena_alloc(lm_arena *a, size_t bytes); // zeroed, 16-byte aligned
char *lm_arena_strndup(lm_arena *a, const char *s, size_t n);
char *lm_arena_printf(lm_arena *a, const char *fmt, ...) LM_PRINTF(2, 3);
#define LM_NEW(arena, T) ((T *)lm_arena_alloc(arena, sizeof(T)))
#define LM_NEW_N(arena, T, n) ((T *)lm_arena_alloc(arena, sizeof(T) * (size_t)(n)))

// Growable array in an arena: `T *items; uint32_t n, cap;` as consecutive fields named x, n_x,
// cap_x.
//   LM_PUSH(arena, s->items, s->n_items, s->cap_items) = value;
void *lm_grow(lm_arena *a, void *items, uint32_t n, uint32_t *cap, size_t size);
#define LM_PUSH(arena, items, n, cap)                                                              \
  (*((items) = lm_grow((arena), (items), (n), &(cap), sizeof *(items)), &(items)[(n)++]))

// ---- interned strings: equal text, equal pointer
typedef const char *lm_sym;
typedef struct lm_intern lm_intern;
lm_intern *
lm_intern_create(lm_arena *a,
                 const lm_intern *base); // texts that are in base (NULL: none) stay there
lm_sym lm_intern_n(lm_intern *t, const char *s, size_t n);
lm_sym lm_intern_s(lm_intern *t, const char *s);

// ---- growable text
typedef struct lm_buf {
  char *p;
  size_t n, cap;
} lm_buf; // p is always NUL-terminated once anything was added
void lm_buf_add(lm_buf *b, const void *s, size_t n);
void lm_buf_puts(lm_buf *b, const char *s);
void lm_buf_printf(lm_buf *b, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_buf_vprintf(lm_buf *b, const char *fmt, va_list ap);
void lm_buf_json(lm_buf *b, const char *s);             // s as a JSON string with quotes
void lm_buf_json_n(lm_buf *b, const char *s, size_t n); // any n bytes
// "from 0 to 1", "more than 0", "at least 1": the bounds that x is outside of. least below 1e-6
// stands for an open 0; a most from 1e9 on is told to those above it.
void lm_buf_bounds(lm_buf *b, double least, double most, double x, const char *unit);
void lm_buf_free(lm_buf *b);

// ---- status: NULL is success. The kind is the exit status of the command.
typedef enum {
  LM_OK = 0,
  LM_USER = 1,
  LM_ENV = 2,
  LM_BUG_STATUS = 3
} lm_kind;
typedef struct lm_status_s {
  lm_kind kind;
  char *text;
  const void *subject; // the part of the caller's input that the error is about; NULL: not known
} * lm_status;
lm_status lm_fail(lm_kind kind, const char *fmt, ...) LM_PRINTF(2, 3);
lm_status lm_fail_errno(const char *fmt, ...)
    LM_PRINTF(1, 2); // LM_ENV, appends ": " strerror(errno); errno is kept
// What to do about some errors of the system, as " (…)"; "" for the others.
const char *lm_errno_hint(int error);
// Sets the subject of an error that has none; returns s. NULL stays NULL.
lm_status lm_status_about(lm_status s, const void *subject);
lm_status lm_annotate(lm_status s, const char *fmt, ...)
    LM_PRINTF(2, 3); // "fmt: old text"; NULL stays NULL
void lm_status_free(lm_status s);
#define LM_TRY(e)                                                                                  \
  do {                                                                                             \
    lm_status s_ = (e);                                                                            \
    if (s_)                                                                                        \
      return s_;                                                                                   \
  } while (0)

// A broken invariant of ours: prints where, calls the dump hook if one is set, leaves with exit
// status 3.
_Noreturn void lm_bug(const char *file, int line, const char *fmt, ...) LM_PRINTF(3, 4);
#define LM_BUG(...) lm_bug(__FILE__, __LINE__, __VA_ARGS__)
#define LM_ASSERT(c)                                                                               \
  do {                                                                                             \
    if (!(c))                                                                                      \
      LM_BUG("assertion failed: %s", #c);                                                          \
  } while (0)
void lm_bug_hook_set(void (*hook)(void *user), void *user);

// ---- hashing, time, files
uint64_t lm_hash(const void *p, size_t n,
                 uint64_t seed); // stable across runs, machines and versions
// The same in pieces, all but the last of them a multiple of 16 bytes long.
typedef struct lm_hasher {
  uint64_t state, seed;
  size_t n;
} lm_hasher;
lm_hasher lm_hash_begin(uint64_t seed);
void lm_hash_add(lm_hasher *h, const void *p, size_t n);
uint64_t lm_hash_end(const lm_hasher *h);
// Adds to a key of 128 bits, whose halves are two hashes of different constants.
void lm_hash_key(uint64_t key[2], const void *p, size_t n);
// The sum of a file that is written or read in pieces: all but the last, which may be empty, are
// whole.
enum {
  LM_SUM_PIECE = 1 << 20
};
typedef struct lm_sum {
  uint64_t bytes, hash;
} lm_sum; // hash = lm_hash(piece, hash of the pieces before)
void lm_sum_add(lm_sum *s, const void *piece, size_t n);
lm_sum lm_sum_of(const void *p, size_t n); // of all of it
int64_t lm_memory_of_machine(void);        // bytes, at most those that its control group allows
double lm_now(void);                       // seconds, monotonic
// A regular file, or /dev/stdin and /dev/fd/N.
lm_status lm_file_read(const char *path, size_t max_bytes, lm_buf *out);
lm_status lm_fd_read(int fd, const char *path, size_t max_bytes,
                     lm_buf *out); // from where it stands; path: for the message
lm_status lm_fd_write(int fd, const char *path, const void *p,
                      size_t n); // all of it; path: for the message
lm_status lm_file_write_atomic(const char *path, const void *p,
                               size_t n); // temp, fsync, rename, fsync folder
lm_status lm_dir_make(const char *path);  // and its parents
void lm_umask_add(unsigned mask);         // permissions that new files do not give
lm_status lm_dir_sync(const char *path);
// a file, a link, or a folder with all in it; what is not there is gone already
lm_status lm_path_remove(const char *path);
// A file, or a folder with all in it, to a path where no file is yet. Other things, such as links,
// are left out.
lm_status lm_path_copy(const char *from, const char *to);
char *lm_path_join(lm_arena *a, const char *dir, const char *path); // path if absolute
char *lm_path_dir(lm_arena *a, const char *path);
#endif
