// sealed_fuzz.c - files of the data cache and event files whose checksums are right and whose
// contents are not: the input is edits of the words of a file that was written, which then gets new
// checksums. The first byte chooses the file. Reading it must give a file that is built again, an
// error that names it, or ids of the vocabulary.
#include <dirent.h>
#include <sys/stat.h>

#include "runtime/data/read/store.h"
#include "runtime/data/rows/vocab.h"
#include "runtime/telemetry/tensorboard.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/sealed_data.h"

enum {
  VOCAB = 270,
  FILES = 16
};

// A file of the cache as it was written.
typedef struct {
  const char *path;
  lm_buf bytes;
} file;

static struct {
  lm_arena *a;
  const char *dir;
  lm_tokenizer *bytes;
  file files[FILES];
  int n;
} all;

static const char *in_dir(const char *name) {
  return lm_path_join(all.a, all.dir, name);
}

static void must(lm_status s) {
  if (s)
    fprintf(stderr, "%s\n", s->text);
  LM_ASSERT(!s);
}

// ---- the data

static void lines_write(const char *name, int from) {
  lm_buf b = {0};
  sealed_lines(&b, from);
  lm_buf_puts(&b, "{\"text\": 3}\n"); // a bad document
  must(lm_file_write_atomic(in_dir(name), b.p, b.n));
  lm_buf_free(&b);
}

static lm_status rows_read(const lm_data *d) {
  static values v;
  lm_batch_column more[2];
  lm_batch b = sealed_batch(&v, more);
  for (int part = 0; part < lm_data_info_of(d).n_parts; part++) {
    lm_data_predicted_bytes(d, part);
    for (int64_t row = 0; row < lm_data_part(d, part).rows; row += ROWS) {
      LM_TRY(lm_data_fill_part(d, part, row, ROWS, &b));
      for (int i = 0; i < ROWS * SEQ; i++)
        LM_ASSERT(b.tok[i] >= 0 && b.tok[i] < all.bytes->vocab && b.next[i] >= 0 &&
                  b.next[i] < all.bytes->vocab && b.pos[i] >= 0 && b.pos[i] < SEQ);
    }
  }
  return NULL;
}

static void data_read(const lm_data_options *o) {
  lm_data *d = NULL;
  uint64_t key;
  lm_status s = lm_data_open(o, &d);
  if (!s)
    s = lm_data_key(d, 1, &key);
  if (!s)
    s = rows_read(d);
  LM_ASSERT(!s || s->kind == LM_ENV);
  lm_status_free(s);
  lm_data_close(d);
}

static void vocabulary_read(const lm_data_options *o) {
  lm_buf json = {0};
  lm_data_trained_on on;
  lm_tokenizer *t;
  must(lm_data_tokenizer_train(o, LM_TOKENIZER_BPE, VOCAB, &json, &on));
  must(lm_tokenizer_parse(json.p, json.n, "fuzz", &t));
  LM_ASSERT(on.unusable >= 0 && on.unusable <= on.documents && t->vocab <= VOCAB);
  lm_tokenizer_destroy(t);
  lm_buf_free(&json);
  lm_buf_free(&on.list);
}

static void sources_read(void (*read)(const lm_data_options *o)) {
  const lm_data_source sources[] = {{LM_SOURCE_JSONL, "a", in_dir("a.jsonl")},
                                    {LM_SOURCE_JSONL, "b", in_dir("b.jsonl")}};
  lm_data_options o = sealed_options(sources, all.bytes, in_dir("cache"), 1);
  read(&o);
}

// ---- events: length, its checksum, the event, its checksum

static void events_make(void) {
  lm_events *e;
  must(lm_events_open(in_dir("events"), 0, &e));
  for (int step = 1; step < 5; step++)
    must(lm_events_add(e, step, 1e9 + step, &(lm_metric){"loss", 1.5}, 1));
  lm_events_close(e);
}

static uint32_t checksum(const char *p, size_t n) {
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < 8 * n; i++) {
    uint32_t bit = (crc ^ (uint32_t)((uint8_t)p[i / 8] >> i % 8)) & 1;
    crc = crc >> 1 ^ (bit ? 0x82f63b78 : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void events_seal(lm_buf *b) {
  for (size_t at = 0; b->n - at >= 16;) {
    uint64_t n;
    memcpy(&n, b->p + at, sizeof n);
    uint32_t head = checksum(b->p + at, 8);
    memcpy(b->p + at + 8, &head, sizeof head);
    if (n > b->n - at - 16)
      return;
    uint32_t tail = checksum(b->p + at + 12, n);
    memcpy(b->p + at + 12 + n, &tail, sizeof tail);
    at += 16 + n;
  }
}

static void events_read(void) {
  lm_events *e;
  must(lm_events_open(in_dir("events"), 3, &e));
  must(lm_events_add(e, 4, 1e9, &(lm_metric){"loss", 1.5}, 1));
  lm_events_close(e);
}

// ---- files

static void file_write(const char *path, const lm_buf *b) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  LM_ASSERT(fd >= 0);
  must(lm_fd_write(fd, path, b->p, b->n));
  close(fd);
}

static void folder_remove(void) {
  lm_status_free(lm_path_remove(all.dir));
}

static void file_add(const char *path) {
  LM_ASSERT(all.n < FILES);
  file *f = &all.files[all.n++];
  f->path = path;
  must(lm_file_read(path, 1 << 20, &f->bytes));
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  const char *x = strrchr((*a)->d_name, '.'), *y = strrchr((*b)->d_name, '.');
  return strcmp(x, y) ? strcmp(x, y) : strcmp((*a)->d_name, (*b)->d_name);
}

// In the order of their kinds, which the first byte of an input depends on.
static void files_add(void) {
  struct dirent **list;
  int n = scandir(in_dir("cache"), &list, NULL, by_name);
  for (int i = 0; i < n; i++) {
    if (list[i]->d_name[0] != '.')
      file_add(lm_path_join(all.a, in_dir("cache"), list[i]->d_name));
    free(list[i]);
  }
  free(list);
  file_add(in_dir("events"));
}

static void everything_make(void) {
  static char dir[] = "/dev/shm/lm-fuzz-XXXXXX";
  all.a = lm_arena_create();
  all.dir = mkdtemp(dir);
  LM_ASSERT(all.dir);
  atexit(folder_remove);
  all.bytes = lm_tokenizer_bytes_create();
  lines_write("a.jsonl", 0);
  lines_write("b.jsonl", LINES);
  sources_read(data_read);
  sources_read(vocabulary_read);
  events_make();
  files_add();
}

// The files as they were written, and no others.
static void files_restore(void) {
  must(lm_path_remove(in_dir("cache")));
  LM_ASSERT(!mkdir(in_dir("cache"), 0700));
  for (int i = 0; i < all.n; i++)
    file_write(all.files[i].path, &all.files[i].bytes);
}

// ---- edits of words

typedef struct {
  uint8_t what;
  uint16_t word;
  uint64_t value;
} edit;
enum {
  EDIT_BYTES = 11
};

static edit edit_read(const uint8_t *p) {
  edit e = {.what = p[0]};
  memcpy(&e.word, p + 1, sizeof e.word);
  memcpy(&e.value, p + 3, sizeof e.value);
  return e;
}

static void edit_apply(edit e, lm_buf *b) {
  size_t at = b->n < 8 ? 0 : e.word % (b->n / 8) * 8;
  uint64_t word;
  if (e.what % 4 == 3)
    b->n = e.value % (b->n + 1);
  if (b->n < at + 8 || e.what % 4 == 3)
    return;
  memcpy(&word, b->p + at, sizeof word);
  word = e.what % 4 == 0   ? e.value
         : e.what % 4 == 1 ? word + (uint64_t)(int8_t)e.value
                           : word ^ UINT64_C(1) << e.value % 64;
  memcpy(b->p + at, &word, sizeof word);
}

static void edits_apply(const uint8_t *data, size_t n, lm_buf *payload, lm_buf *tail) {
  for (; n >= EDIT_BYTES; data += EDIT_BYTES, n -= EDIT_BYTES)
    edit_apply(edit_read(data), data[0] & 128 ? tail : payload);
}

static void store_edit(const file *f, const uint8_t *data, size_t n) {
  lm_store *s;
  lm_store_writer *w;
  lm_buf payload = {0}, tail = {0};
  must(lm_store_open(f->path, 1, &s));
  char *p = lm_alloc(s->n);
  must(lm_store_read(s, 0, s->n, p));
  lm_buf_add(&payload, p, s->n);
  lm_buf_add(&tail, s->tail, s->n_tail);
  lm_store_close(s);
  edits_apply(data, n, &payload, &tail);
  must(lm_store_writer_create(f->path, &w));
  must(lm_store_add(w, payload.p, payload.n));
  must(lm_store_finish(w, tail.p, tail.n, &s));
  lm_store_close(s);
  lm_free(p);
  lm_buf_free(&payload);
  lm_buf_free(&tail);
}

static void events_edit(const file *f, const uint8_t *data, size_t n) {
  lm_buf b = {0};
  lm_buf_add(&b, f->bytes.p, f->bytes.n);
  edits_apply(data, n, &b, &b);
  events_seal(&b);
  file_write(f->path, &b);
  lm_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!all.a)
    everything_make();
  if (!n)
    return 0;
  const file *f = &all.files[data[0] % all.n];
  files_restore();
  if (f == &all.files[all.n - 1]) {
    events_edit(f, data + 1, n - 1);
    events_read();
  } else {
    store_edit(f, data + 1, n - 1);
    sources_read(strstr(f->path, ".vocab") ? vocabulary_read : data_read);
  }
  return 0;
}
