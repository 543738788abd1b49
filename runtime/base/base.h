// base.h - foundations that every folder uses: allocation, arenas, interned strings, text buffers,
// statuses, hashing, files.
//
// Ownership: memory from an arena lives until the arena is destroyed. An `lm_status` owns its text:
// return it to the caller or free it. Threads: an object must not be used by two threads at the
// same time unless its description says otherwise.
#ifndef LM_BASE_H
#define LM_BASE_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define LM_COUNT(a) (sizeof(a) / sizeof *(a))

// ---- allocation: all memory comes from these functions. They never return NULL: if memory is
// exhausted they print a message and end the process with status 2. tests/fault makes every single
// allocation fail.
void *lm_alloc(size_t bytes); // zeroed
void *lm_realloc(void *p, size_t bytes);
void lm_free(void *p);
char *lm_strdup(const char *s);
_Noreturn void lm_out_of_memory(size_t bytes); // prints the message and ends the process
// The same unless so many bytes can be allocated now: before calls of libraries that crash where an
// allocation of theirs fails.
void lm_memory_expect(size_t bytes);
// n * size, checked for overflow, which is treated as out of memory.
void *lm_calloc(size_t n, size_t size);

typedef struct lm_arena lm_arena;
lm_arena *lm_arena_create(void);
void lm_arena_destroy(lm_arena *a);
void *lm_arena_alloc(lm_arena *a, size_t bytes); // zeroed, 16-byte aligned
char *lm_arena_strndup(lm_arena *a, const char *s, size_t n);
char *lm_arena_printf(lm_arena *a, const char *fmt, ...) LM_PRINTF(2, 3);
#define LM_NEW(arena, T) ((T *)lm_arena_alloc(arena, sizeof(T)))
#define LM_NEW_N(arena, T, n) ((T *)lm_arena_alloc(arena, sizeof(T) * (size_t)(n)))

// Appends to a growable array in an arena. An array is three consecutive struct members: `T *x;
// uint32_t n_x, cap_x;`.
//   LM_PUSH(arena, s->items, s->n_items, s->cap_items) = value;
void *lm_grow(lm_arena *a, void *items, uint32_t n, uint32_t *cap, size_t size);
#define LM_PUSH(arena, items, n, cap)                                                              \
  (*((items) = lm_grow((arena), (items), (n), &(cap), sizeof *(items)), &(items)[(n)++]))

// ---- interned strings: equal texts have equal pointers
typedef const char *lm_sym;
typedef struct lm_intern lm_intern;
// base: optional; a text that `base` contains keeps its pointer. `base` must outlive the table.
lm_intern *lm_intern_create(lm_arena *a, const lm_intern *base);
lm_sym lm_intern_n(lm_intern *t, const char *s, size_t n);
lm_sym lm_intern_s(lm_intern *t, const char *s);

// ---- growable text. `p` is NUL-terminated after the first addition, NULL before.
typedef struct lm_buf {
  char *p;
  size_t n, cap;
} lm_buf;
void lm_buf_add(lm_buf *b, const void *s, size_t n);
void lm_buf_puts(lm_buf *b, const char *s);
void lm_buf_printf(lm_buf *b, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_buf_vprintf(lm_buf *b, const char *fmt, va_list ap);
void lm_buf_json(lm_buf *b, const char *s);             // s as a JSON string with quotes; what
                                                        // output escapes is escaped in it
void lm_buf_json_n(lm_buf *b, const char *s, size_t n); // the same for n bytes, which may hold NULs
// Appends the bound that x violates: "from 0 to 1", "more than 0", "at least 1". A `min` in
// (0, 1e-6) denotes the exclusive bound 0; a `max` of 1e9 or more is mentioned only if x exceeds
// it.
void lm_buf_bounds(lm_buf *b, double min, double max, double x, const char *unit);
// The fewest digits, from 15 on, that read back as x, without zeros at the end: "3", "0.1",
// "1e+20".
void lm_buf_number(lm_buf *b, double x);
// Append a rounded quantity with its unit: "12.3 MB", "4.2M".
void lm_show_bytes(lm_buf *b, double bytes);
void lm_show_count(lm_buf *b, double n);
void lm_buf_free(lm_buf *b);

// ---- status: NULL is success. The kind is the exit status of lmc.
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
// LM_ENV; appends ": " and strerror(errno). Preserves errno.
lm_status lm_fail_errno(const char *fmt, ...) LM_PRINTF(1, 2);
// Advice for some errno values, as " (…)"; "" for the others.
const char *lm_errno_hint(int error);
// Sets the subject of an error that has none; returns s. NULL stays NULL.
lm_status lm_status_about(lm_status s, const void *subject);
// Prefixes the text of s: "fmt: old text". NULL stays NULL.
lm_status lm_annotate(lm_status s, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_status_free(lm_status s);
#define LM_TRY(e)                                                                                  \
  do {                                                                                             \
    lm_status s_ = (e);                                                                            \
    if (s_)                                                                                        \
      return s_;                                                                                   \
  } while (0)

// Reports a violated invariant with its location, calls the dump hook if one is set and exits with
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
// Stable across runs, machines and versions.
uint64_t lm_hash(const void *p, size_t n, uint64_t seed);
// The same hash, computed incrementally. The size of every piece but the last must be a multiple of
// 16 bytes.
typedef struct lm_hasher {
  uint64_t state, seed;
  size_t n;
} lm_hasher;
lm_hasher lm_hash_begin(uint64_t seed);
void lm_hash_add(lm_hasher *h, const void *p, size_t n);
uint64_t lm_hash_end(const lm_hasher *h);
// Adds to a 128-bit key, whose halves are two hashes with different constants.
void lm_hash_key(uint64_t key[2], const void *p, size_t n);
// Checksum of a file that is written or read in pieces. Every piece but the last must have
// LM_SUM_PIECE bytes; the last may be empty. hash = lm_hash(piece, hash of the previous pieces).
enum {
  LM_SUM_PIECE = 1 << 20
};
typedef struct lm_sum {
  uint64_t bytes, hash;
} lm_sum;
void lm_sum_add(lm_sum *s, const void *piece, size_t n);
lm_sum lm_sum_of(const void *p, size_t n); // splits p into pieces
int64_t lm_memory_of_machine(void);        // bytes, limited by the control group
double lm_now(void);                       // seconds, monotonic
// Between two looks at something that others change: gives the processor away, and sleeps for 50
// microseconds from the 256th of `times` on.
void lm_pause(int times);
double lm_thread_seconds(void);  // of processor time of the calling thread
double lm_process_seconds(void); // of processor time of all threads
// The shortest of several runs of the same work. A disturbance only makes a run longer, so a few
// runs that take nearly as little time as the shortest confirm it.
typedef struct lm_shortest {
  double seconds; // 0: no run yet
  int near;       // runs that took nearly as little
} lm_shortest;
void lm_shortest_add(lm_shortest *s, double seconds);
bool lm_shortest_is_confirmed(const lm_shortest *s);
// Reads a regular file, /dev/stdin or /dev/fd/N. LM_ENV or LM_USER if that fails or the file has
// more than max_bytes.
lm_status lm_file_read(const char *path, size_t max_bytes, lm_buf *out);
// Reads from the current offset to the end. `path` appears in messages only.
lm_status lm_fd_read(int fd, const char *path, size_t max_bytes, lm_buf *out);
// Reads exactly n bytes at offset `at`; LM_ENV if the file ends before. Files that another process
// may truncate are read with this, never mapped.
lm_status lm_fd_read_at(int fd, const char *path, int64_t at, void *to, size_t n);
// Writes all n bytes. `path` appears in messages only.
lm_status lm_fd_write(int fd, const char *path, const void *p, size_t n);
// Writes a temporary file, syncs it, renames it to `path` and syncs the folder.
lm_status lm_file_write_atomic(const char *path, const void *p, size_t n);
// The same; the file gets these permissions, whatever the umask.
lm_status lm_file_write_as(const char *path, unsigned mode, const void *p, size_t n);
lm_status lm_dir_make(const char *path); // creates missing parents too
void lm_umask_add(unsigned mask);        // permission bits that new files lack from now on
lm_status lm_dir_sync(const char *path);
// Removes a file, a link, or a folder with its contents. A missing path is success.
lm_status lm_path_remove(const char *path);
// Copies a file, or a folder with its contents, to a path that does not exist yet. Skips everything
// but regular files and folders, such as links.
lm_status lm_path_copy(const char *from, const char *to);
char *lm_path_join(lm_arena *a, const char *dir, const char *path); // `path` itself if absolute
char *lm_path_dir(lm_arena *a, const char *path);
#endif
