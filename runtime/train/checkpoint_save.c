// checkpoint_save.c - writes a checkpoint; see checkpoint.h.
//
// The ranks go through the tensors in chunks, in rounds: in each, every rank that still writes
// collects its next chunk from the others, and then appends it to its file or to a copy of the
// file in memory, which its thread writes. Ranks agree on the outcome before rank 0 adds the other
// files and renames the folder.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/train/checkpoint.h"
#include "runtime/train/checkpoint_files.h"
#include "runtime/train/checkpoint_folder.h"
#include "runtime/train/checkpoint_state.h"
#include "runtime/train/checkpoint_sum.h"
#include "runtime/train/rank_tensors.h"

static const char STATE[] = "state.json";

struct lm_checkpoint_saving {
  lm_arena *arena;
  lm_checkpoint_options o;
  lm_rank_tensors ranks;
  int rank, size; // this rank among all
  int64_t step;
  lm_checkpoint_files files;
  const char *folder; // where the files are until they are complete
  lm_buf state;       // text of state.json
  lm_sum *sums;       // [files.n], of this rank's files
  char **copies;      // [files.n], of this rank's files; NULL: not in the background
  lm_st_writer *file; // that is being written
  char *chunk;
  lm_status failed; // why this rank's files are not complete; NULL: they are
  pthread_t thread;
  bool has_thread;
  _Atomic bool written;
};

// ---- chunks

// The next elements that a rank writes: of tensor `tensor` of file `file`, from element `at` on.
typedef struct cursor {
  uint32_t file;
  size_t tensor;
  int64_t at;
  int64_t done; // bytes of the file before them
} cursor;

typedef struct chunk {
  const lm_checkpoint_file *file;
  lm_plan_tensor planned;
  uint32_t number; // of the file
  int64_t first, n;
  int64_t offset, bytes; // in the file's data
} chunk;

// Sets *out to the next chunk of a rank; false: it has none.
static bool chunk_next(const lm_checkpoint_saving *x, int rank, cursor *c, chunk *out) {
  const lm_checkpoint_files *f = &x->files;
  while (c->file < f->n && (f->v[c->file].writer != rank || c->tensor == f->v[c->file].tensors.n))
    *c = (cursor){.file = c->file + 1};
  if (c->file == f->n)
    return false;
  const lm_checkpoint_file *file = &f->v[c->file];
  const lm_st_tensor *t = &file->tensors.of[c->tensor];
  int64_t unit = lm_st_dtype_bytes(t->dtype);
  int64_t most = LM_ST_CHUNK / unit;
  int64_t left = t->elements - c->at;
  *out = (chunk){
      .file = file,
      .planned = file->tensors.planned[c->tensor],
      .number = c->file,
      .first = c->at,
      .n = left < most ? left : most,
      .offset = c->done,
  };
  out->bytes = out->n * unit;
  c->at += out->n;
  c->done += out->bytes;
  if (c->at < t->elements)
    return true;
  c->tensor++;
  c->at = 0;
  return true;
}

static lm_status file_create(lm_checkpoint_saving *x, uint32_t i) {
  const lm_checkpoint_file *f = &x->files.v[i];
  return lm_st_writer_create(lm_path_join(x->arena, x->folder, f->name), f->tensors.of,
                             f->tensors.n, &x->file);
}

static lm_status file_append(lm_checkpoint_saving *x, uint32_t i, const void *v, int64_t bytes,
                             bool last) {
  LM_TRY(lm_st_writer_append(x->file, v, (size_t)bytes));
  if (!last)
    return NULL;
  lm_st_writer *w = x->file;
  x->file = NULL;
  return lm_st_writer_finish(w, &x->sums[i]);
}

// A rank that cannot write goes through the rest without writing, since it has parts of others.
static void chunk_write(lm_checkpoint_saving *x, const chunk *c) {
  bool last = c->offset + c->bytes == c->file->bytes;
  if (!x->failed && !c->offset)
    x->failed = file_create(x, c->number);
  if (!x->failed)
    x->failed = file_append(x, c->number, x->chunk, c->bytes, last);
}

static lm_status round_run(lm_checkpoint_saving *x, cursor *at, bool *out_more) {
  chunk own = {0};
  *out_more = false;
  for (int r = 0; r < x->size; r++) {
    chunk c;
    if (!chunk_next(x, r, &at[r], &c))
      continue;
    char *to = x->copies && r == x->rank ? x->copies[c.number] + c.offset : x->chunk;
    LM_TRY(lm_rank_tensor_collect(&x->ranks, c.planned, c.first, c.n, r, to));
    own = r == x->rank ? c : own;
    *out_more = true;
  }
  if (own.file && !x->copies)
    chunk_write(x, &own);
  return NULL;
}

// Bytes of the largest chunk of any rank.
static int64_t chunk_room(const lm_checkpoint_files *f) {
  int64_t most = 0;
  for (uint32_t i = 0; i < f->n; i++)
    for (size_t k = 0; k < f->v[i].tensors.n; k++) {
      const lm_st_tensor *t = &f->v[i].tensors.of[k];
      int64_t bytes = t->elements * lm_st_dtype_bytes(t->dtype);
      most = bytes > most ? bytes : most;
    }
  return most < LM_ST_CHUNK ? most : LM_ST_CHUNK;
}

static lm_status tensors_collect(lm_checkpoint_saving *x) {
  cursor *at = lm_calloc((size_t)x->size, sizeof *at);
  lm_status s = NULL;
  x->chunk = x->copies ? NULL : lm_alloc((size_t)chunk_room(&x->files));
  for (bool more = true; more && !s;)
    s = round_run(x, at, &more);
  lm_free(x->chunk);
  x->chunk = NULL;
  lm_free(at);
  return s;
}

// ---- files

static bool is_own(const lm_checkpoint_saving *x, uint32_t i) {
  return x->files.v[i].writer == x->rank;
}

static lm_status file_write(lm_checkpoint_saving *x, uint32_t i) {
  LM_TRY(file_create(x, i));
  return file_append(x, i, x->copies ? x->copies[i] : "", x->files.v[i].bytes, true);
}

// Writes the files that have not been written chunk by chunk.
static void files_write(lm_checkpoint_saving *x) {
  for (uint32_t i = 0; i < x->files.n && !x->failed; i++) {
    if (!is_own(x, i) || (!x->copies && x->files.v[i].bytes))
      continue;
    x->failed = file_write(x, i);
    if (!x->copies)
      continue;
    lm_free(x->copies[i]);
    x->copies[i] = NULL;
  }
  atomic_store(&x->written, true);
}

static void *files_work(void *user) {
  files_write(user);
  return NULL;
}

// Signals are for the thread that trains.
static void files_start(lm_checkpoint_saving *x) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  x->has_thread = x->copies && !pthread_create(&x->thread, NULL, files_work, x);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (!x->has_thread)
    files_write(x);
}

static void files_join(lm_checkpoint_saving *x) {
  if (x->has_thread)
    pthread_join(x->thread, NULL);
  x->has_thread = false;
}

// ---- begin

static void saving_free(lm_checkpoint_saving *x) {
  files_join(x);
  lm_st_writer_abort(x->file);
  for (uint32_t i = 0; x->copies && i < x->files.n; i++)
    lm_free(x->copies[i]);
  lm_status_free(x->failed);
  lm_buf_free(&x->state);
  lm_arena_destroy(x->arena);
  lm_free(x);
}

static lm_checkpoint_saving *saving_create(const lm_trainer *t, const lm_checkpoint *c,
                                           const lm_checkpoint_options *o) {
  const lm_trainer_options *of = lm_trainer_options_of(t);
  lm_comm_self self = lm_comm_self_of(of->comm);
  lm_checkpoint_saving *x = lm_alloc(sizeof *x);
  *x = (lm_checkpoint_saving){
      .arena = lm_arena_create(),
      .o = *o,
      .ranks = {of->comm, of->exec, of->plan},
      .rank = self.rank,
      .size = self.size,
      .step = c->step,
  };
  x->o.dir = lm_arena_printf(x->arena, "%s", o->dir);
  x->folder = lm_path_join(x->arena, o->dir, ".writing");
  lm_checkpoint_state_print(&x->state, c);
  return x;
}

static void copies_create(lm_checkpoint_saving *x) {
  x->copies = LM_NEW_N(x->arena, char *, x->files.n);
  for (uint32_t i = 0; i < x->files.n; i++)
    if (is_own(x, i))
      x->copies[i] = lm_alloc((size_t)x->files.v[i].bytes + 1);
}

static lm_status folder_make(const lm_checkpoint_saving *x) {
  if (x->rank)
    return NULL;
  LM_TRY(lm_dir_make(x->o.dir));
  LM_TRY(lm_path_remove(x->folder));
  return lm_dir_make(x->folder);
}

static lm_status saving_start(lm_checkpoint_saving *x, const lm_trainer *t) {
  const lm_trainer_options *of = lm_trainer_options_of(t);
  LM_TRY(lm_checkpoint_files_list(x->arena, of->plan, of->states, x->o.max_file, &x->files));
  x->sums = LM_NEW_N(x->arena, lm_sum, x->files.n);
  LM_TRY(lm_comm_settle(of->comm, "the folder of a checkpoint", folder_make(x)));
  if (x->o.background)
    copies_create(x);
  LM_TRY(lm_trainer_eval_begin(t));
  lm_status s = tensors_collect(x);
  LM_TRY(s ? s : lm_trainer_eval_end(t));
  files_start(x);
  return NULL;
}

static lm_status step_annotate(lm_status s, int64_t step) {
  return lm_annotate(s, "checkpoint of step %lld", (long long)step);
}

lm_status lm_checkpoint_save_begin(const lm_trainer *t, const lm_checkpoint *c,
                                   const lm_checkpoint_options *o, lm_checkpoint_saving **out) {
  const char *bad;
  *out = NULL;
  LM_TRY(lm_trainer_not_finite(t, &bad));
  if (bad)
    return lm_fail(LM_USER, "step %lld: parameter %s is no longer finite; this state is not saved",
                   (long long)c->step, bad);
  *out = saving_create(t, c, o);
  lm_status s = saving_start(*out, t);
  if (!s)
    return NULL;
  saving_free(*out);
  *out = NULL;
  return step_annotate(s, c->step);
}

bool lm_checkpoint_save_written(const lm_checkpoint_saving *x) {
  return atomic_load(&x->written);
}

// ---- end

// The files of the checkpoint with their checksums, in the order of checksums.txt.
typedef struct sums {
  const char **files;
  lm_sum *v;
  int n;
} sums;

static void sums_add(sums *s, const char *file, lm_sum sum) {
  s->files[s->n] = file;
  s->v[s->n++] = sum;
}

static lm_status text_write(lm_checkpoint_saving *x, const char *name, const lm_buf *text,
                            sums *s) {
  sums_add(s, name, lm_sum_of(text->p, text->n));
  return lm_file_write_atomic(lm_path_join(x->arena, x->folder, name), text->p, text->n);
}

static lm_status index_write(lm_checkpoint_saving *x, lm_checkpoint_set set, sums *s) {
  const char *name = lm_checkpoint_index_name(x->arena, &x->files, set);
  lm_buf text = {0};
  if (!name)
    return NULL;
  lm_checkpoint_index_print(&text, &x->files, set);
  lm_status written = text_write(x, name, &text, s);
  lm_buf_free(&text);
  return written;
}

// Rank 0 adds the files that are of no rank, and gives the folder its name.
static lm_status publish(lm_checkpoint_saving *x) {
  lm_arena *a = x->arena;
  int most = (int)x->files.n + LM_CHECKPOINT_SETS + 1;
  sums s = {LM_NEW_N(a, const char *, most), LM_NEW_N(a, lm_sum, most), 0};
  LM_TRY(text_write(x, STATE, &x->state, &s));
  for (uint32_t i = 0; i < x->files.n; i++)
    sums_add(&s, x->files.v[i].name, x->sums[i]);
  for (lm_checkpoint_set set = 0; set < LM_CHECKPOINT_SETS; set++)
    LM_TRY(index_write(x, set, &s));
  LM_TRY(lm_checkpoint_sums_write(a, x->folder, s.files, s.v, s.n));
  LM_TRY(lm_checkpoint_folder_publish(a, x->folder, lm_checkpoint_path(a, x->o.dir, x->step)));
  LM_TRY(lm_dir_sync(x->o.dir));
  return lm_checkpoint_steps_prune(a, x->o.dir, x->step, x->o.keep, x->o.also);
}

// Gives all ranks the checksums of all files: of each those that its writer has.
static lm_status sums_gather(lm_checkpoint_saving *x) {
  size_t n = x->files.n;
  lm_sum *all = lm_calloc(n * (size_t)x->size, sizeof *all);
  lm_status s =
      lm_comm_agree(x->ranks.comm, "the checksums of a checkpoint", x->sums, n * sizeof *all, all);
  for (size_t i = 0; i < n && !s; i++)
    x->sums[i] = all[(size_t)x->files.v[i].writer * n + i];
  lm_free(all);
  return s;
}

static lm_status saving_end(lm_checkpoint_saving *x) {
  lm_comm *comm = x->ranks.comm;
  lm_status own = x->failed;
  x->failed = NULL;
  LM_TRY(lm_comm_settle(comm, "the files of a checkpoint", own));
  LM_TRY(sums_gather(x));
  return lm_comm_settle(comm, "a checkpoint", x->rank ? NULL : publish(x));
}

lm_status lm_checkpoint_save_end(lm_checkpoint_saving *x) {
  files_join(x);
  lm_status s = step_annotate(saving_end(x), x->step);
  if (s && !x->rank)
    lm_status_free(lm_path_remove(x->folder)); // report only the first failure
  saving_free(x);
  return s;
}

void lm_checkpoint_save_abandon(lm_checkpoint_saving *x) {
  if (!x)
    return;
  files_join(x);
  if (!x->rank)
    lm_status_free(lm_path_remove(x->folder));
  saving_free(x);
}
