// dataset.c - the text at a path, judged by a sample of it.
#define _GNU_SOURCE
#include "driver/advise/dataset.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/advise/dataset_folder.h"
#include "driver/advise/dataset_lines.h"
#include "runtime/data/read/input.h"
#include "runtime/data/read/match.h"
#include "runtime/data/read/reader.h"

enum {
  SAMPLE = 2 << 20,
  SAMPLE_FILES = 4,
  LINES_ASKED = 64,
  FIELDS = 64,
  KINDS_LISTED = 8
};

typedef struct {
  lm_arena *a;
  lm_dataset *out;
  uint32_t cap;
  const char *unreadable; // the first folder that cannot be read, and why; NULL: none
  bool pattern;           // the path is one, which names files of any kind
  lm_folder_walk walk;
} inspector;

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s);
  size_t m = strlen(end);
  return n > m && !strcasecmp(s + n - m, end);
}

static bool is_packed(const char *path) {
  return ends_with(path, ".zst") || ends_with(path, ".gz");
}

// ---- sources

static void source_add(inspector *x, const char *path) {
  lm_dataset *s = x->out;
  uint32_t n = (uint32_t)s->n_sources;
  const char *name = n ? lm_arena_printf(x->a, "more%u", n) : "files";
  LM_PUSH(x->a, s->sources, n, x->cap) = (lm_data_source){
      .kind = lm_is_jsonl(path) ? LM_SOURCE_JSONL : LM_SOURCE_TEXT, .name = name, .path = path};
  s->n_sources = (int)n;
}

static lm_status pattern_check(const char *pattern) {
  glob_t found;
  LM_TRY(lm_match(pattern, &found));
  globfree(&found);
  return NULL;
}

// Escapes a name, so that as a pattern it matches only itself.
static const char *escaped(inspector *x, const char *name) {
  lm_buf b = {0};
  lm_match_escape(name, &b);
  const char *text = lm_arena_strndup(x->a, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static void kind_remember(inspector *x, const lm_file_kind *k) {
  lm_dataset *s = x->out;
  for (uint32_t i = 0; i < s->n_kinds; i++) {
    lm_file_kind *have = &s->kinds[i];
    if (strcmp(have->extension, k->extension) || have->why != k->why)
      continue;
    have->files += k->files;
    have->unusable += k->unusable;
    return;
  }
  LM_PUSH(x->a, s->kinds, s->n_kinds, s->cap_kinds) = *k;
}

// Adds a source for each kind of text. pattern: the folders, with a final '/'.
static void texts_add(inspector *x, const char *pattern, lm_file_kinds *kinds) {
  lm_file_kinds_judge(x->a, kinds);
  for (uint32_t i = 0; i < kinds->n; i++) {
    const lm_file_kind *k = &kinds->v[i];
    kind_remember(x, k);
    if (!k->why)
      source_add(x, lm_arena_printf(x->a, "%s*%s", pattern, escaped(x, k->extension)));
  }
}

typedef struct {
  const char *name;
  struct stat st;
  bool linked;
} subfolder;
typedef struct {
  subfolder *v;
  uint32_t n;
  uint32_t cap;
  bool linked; // some are symbolic links
  uint32_t runs;
} subfolders;

// What run, import and export write into their folders is no text to train on.
static bool is_run(inspector *x, const char *folder) {
  return !access(lm_path_join(x->a, folder, "program.json"), F_OK);
}

// Sorts real folders before symbolic links, then by name: if several names refer to one folder, the
// first is used.
static int by_kind_and_name(const void *a, const void *b) {
  const subfolder *x = a, *y = b;
  return x->linked != y->linked ? x->linked - y->linked : strcmp(x->name, y->name);
}

// Adds the files of a folder, or remembers why the first such folder cannot be read. One that was
// removed meanwhile is none.
static void kinds_add(inspector *x, const char *folder, lm_file_kinds *out) {
  bool gone = !lm_file_kinds_add(x->a, folder, &x->walk, out) && errno != ENOENT;
  if (gone && !x->unreadable)
    x->unreadable = lm_arena_printf(x->a, "%s: %s", folder, strerror(errno));
}

static void subfolders_list(inspector *x, const char *path, subfolders *out) {
  DIR *d = opendir(path);
  *out = (subfolders){0};
  for (struct dirent *e; d && lm_folder_walk_on(&x->walk) && (e = readdir(d));) {
    subfolder s = {.name = lm_arena_strndup(x->a, e->d_name, strlen(e->d_name))};
    const char *full = lm_path_join(x->a, path, s.name);
    if (*s.name == '.' || stat(full, &s.st) || !S_ISDIR(s.st.st_mode))
      continue;
    x->walk.folders++;
    if (is_run(x, full)) {
      out->runs++;
      continue;
    }
    struct stat own;
    s.linked = !lstat(full, &own) && S_ISLNK(own.st_mode);
    out->linked |= s.linked;
    LM_PUSH(x->a, out->v, out->n, out->cap) = s;
  }
  if (d)
    closedir(d);
  if (out->n)
    qsort(out->v, out->n, sizeof *out->v, by_kind_and_name);
}

static bool same_folder(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static void folders_count(inspector *x, const char *path) {
  subfolders below;
  subfolders_list(x, path, &below);
  x->out->folders_below += below.n;
  x->out->runs += below.runs;
}

// Adds each folder separately. A pattern would also match runs, and follow symbolic links that
// form a cycle.
static lm_status subfolders_add(inspector *x, const char *path, const char *folder,
                                const subfolders *all) {
  enum {
    MOST = 32
  };
  struct stat root;
  if (stat(path, &root))
    return lm_fail_errno("cannot open folder %s", path);
  for (uint32_t i = 0; i < all->n; i++) {
    bool seen = same_folder(&root, &all->v[i].st);
    lm_file_kinds kinds = {0};
    for (uint32_t k = 0; k < i; k++)
      seen |= same_folder(&all->v[k].st, &all->v[i].st);
    if (seen)
      continue;
    kinds_add(x, lm_path_join(x->a, path, all->v[i].name), &kinds);
    texts_add(x, lm_arena_printf(x->a, "%s%s/", folder, escaped(x, all->v[i].name)), &kinds);
    if (x->out->n_sources > MOST)
      return lm_fail(
          LM_USER,
          "%s has links to folders or runs, and more than %d folders of text; name them by a "
          "pattern: --data '%s*/*.txt'",
          path, MOST, folder);
  }
  return NULL;
}

// True if the folder and all folders below hold neither runs nor links to folders, so that a
// pattern reads what a user expects.
static bool is_plain(inspector *x, const char *path) {
  subfolders below;
  subfolders_list(x, path, &below);
  bool plain = !below.linked && !below.runs;
  for (uint32_t i = 0; i < below.n && plain && lm_folder_walk_on(&x->walk); i++)
    plain = is_plain(x, lm_path_join(x->a, path, below.v[i].name));
  return plain;
}

static void kinds_below_add(inspector *x, const char *path, lm_file_kinds *kinds) {
  subfolders below;
  kinds_add(x, path, kinds);
  subfolders_list(x, path, &below);
  for (uint32_t i = 0; i < below.n && lm_folder_walk_on(&x->walk); i++)
    kinds_below_add(x, lm_path_join(x->a, path, below.v[i].name), kinds);
}

static void tree_add(inspector *x, const char *path, const char *folder) {
  lm_file_kinds kinds = {0};
  kinds_below_add(x, path, &kinds);
  texts_add(x, lm_arena_printf(x->a, "%s**/", folder), &kinds);
}

static void subfolders_add_by_pattern(inspector *x, const char *path, const char *folder,
                                      const subfolders *all) {
  lm_file_kinds kinds = {0};
  for (uint32_t i = 0; i < all->n; i++) {
    const char *below = lm_path_join(x->a, path, all->v[i].name);
    kinds_add(x, below, &kinds);
    folders_count(x, below);
  }
  texts_add(x, lm_arena_printf(x->a, "%s*/", folder), &kinds);
}

static uint64_t kind_left_out(const lm_file_kind *k) {
  return k->why ? k->files : k->unusable;
}

static int by_files_left_out(const void *a, const void *b) {
  uint64_t n = kind_left_out(a);
  uint64_t m = kind_left_out(b);
  return n > m ? -1 : n < m;
}

// Of many kinds, those of which most files are left out come first.
static void kinds_order(lm_dataset *s) {
  if (s->n_kinds > KINDS_LISTED)
    qsort(s->kinds, s->n_kinds, sizeof *s->kinds, by_files_left_out);
}

// "3 .xz (packed; only .zst and .gz are unpacked), 240 .pyc (not UTF-8 text)"
void lm_dataset_skipped(const lm_dataset *s, lm_buf *b) {
  uint32_t listed = 0;
  for (uint32_t i = 0; i < s->n_kinds; i++) {
    const lm_file_kind *k = &s->kinds[i];
    if (!kind_left_out(k) || ++listed > KINDS_LISTED)
      continue;
    lm_buf_printf(b, "%s%llu%s%s (%s)", b->n ? ", " : "", (unsigned long long)kind_left_out(k),
                  *k->extension ? " " : "", k->extension, k->why ? k->why : "not UTF-8 text");
  }
  if (listed > KINDS_LISTED)
    lm_buf_printf(b, ", files of %u other kinds", listed - KINDS_LISTED);
  if (s->left_out.n)
    lm_buf_printf(b, "%s%s", b->n ? ", " : "", s->left_out.p);
  if (s->irregular)
    lm_buf_printf(b, "%s%llu not regular files (such as links that lead nowhere)", b->n ? ", " : "",
                  (unsigned long long)s->irregular);
  if (s->runs)
    lm_buf_printf(b, "%s%llu folder%s of runs", b->n ? ", " : "", (unsigned long long)s->runs,
                  s->runs == 1 ? "" : "s");
  if (!s->folders_below)
    return;
  lm_buf_printf(b, "%s%llu folder%s deeper down, which a pattern with ** reads", b->n ? ", " : "",
                (unsigned long long)s->folders_below, s->folders_below == 1 ? "" : "s");
}

static void unusable_find(lm_dataset *s) {
  double files = 0;
  double unusable = 0;
  for (uint32_t i = 0; i < s->n_kinds; i++) {
    if (s->kinds[i].why)
      continue;
    files += (double)s->kinds[i].files;
    unusable += (double)s->kinds[i].unusable;
  }
  s->unusable = files > 0 ? unusable / files : 0;
  s->unusable_files = (uint64_t)unusable;
}

static lm_status no_text_found(inspector *x, const char *path) {
  lm_buf found = {0};
  lm_dataset_skipped(x->out, &found);
  lm_status s =
      lm_fail(LM_USER, "%s holds no text that can be read, nor do the folders below; found: %s",
              path, found.n ? found.p : "nothing");
  lm_buf_free(&found);
  return s;
}

// Of a folder with runs or links to folders, and of each folder in it, the files but not the
// folders further below.
static lm_status levels_add(inspector *x, const char *path, const char *folder,
                            const subfolders *below) {
  lm_file_kinds kinds = {0};
  kinds_add(x, path, &kinds);
  texts_add(x, folder, &kinds);
  x->out->runs += below->runs;
  if (below->linked || below->runs)
    return subfolders_add(x, path, folder, below);
  subfolders_add_by_pattern(x, path, folder, below);
  return NULL;
}

static lm_status folder_add(inspector *x, const char *path) {
  const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
  const char *folder = lm_arena_printf(x->a, "%s%s", escaped(x, path), slash);
  subfolders below;
  subfolders_list(x, path, &below);
  bool plain = below.n && is_plain(x, path);
  if (lm_folder_walk_on(&x->walk))
    x->walk.folders = 0;
  if (plain)
    tree_add(x, path, folder);
  else
    LM_TRY(levels_add(x, path, folder, &below));
  if (!lm_folder_walk_on(&x->walk))
    return lm_fail(
        LM_USER,
        "%s holds more than %d %s, which lmc new does not look through; name a folder in "
        "it, or the files by a pattern: --data '%s**/*.txt'",
        path, LM_WALK_MOST, x->walk.files > LM_WALK_MOST ? "files" : "folders", folder);
  unusable_find(x->out);
  if (x->unreadable)
    return lm_fail(LM_USER,
                   "cannot open folder %s; make it readable, or name the files by a pattern",
                   x->unreadable);
  return x->out->n_sources ? NULL : no_text_found(x, path);
}

static lm_status sources_find(inspector *x, const char *path) {
  static const char *const no_text[] = {".tar.gz", ".tgz",     ".bz2",   ".xz",  ".zip",  ".tar",
                                        ".7z",     ".parquet", ".arrow", ".pdf", ".docx", ".epub"};
  struct stat st;
  for (size_t i = 0; i < LM_COUNT(no_text); i++)
    if (ends_with(path, no_text[i]))
      return lm_fail(LM_USER,
                     "%s: a %s file is not read; text and .jsonl are, plain, as .zst or as .gz",
                     path, no_text[i]);
  bool there = !stat(path, &st);
  if (there && S_ISDIR(st.st_mode))
    return folder_add(x, path);
  if (there && !S_ISREG(st.st_mode))
    return lm_fail(LM_USER, "%s is neither a file nor a folder", path);
  if (!there && !strpbrk(path, "*?["))
    return lm_fail(LM_USER, "--data: there is no file or folder %s", path);
  if (!there)
    LM_TRY(pattern_check(path));
  x->pattern = !there;
  source_add(x, there ? escaped(x, path) : path);
  return NULL;
}

// ---- fields of JSON lines

typedef struct {
  const char *name;
  double bytes;
} field;

// The strings of one line, by the names of their fields.
static void fields_count(inspector *x, const lm_text_span *s, field *fields, int *n) {
  json_t *line = json_loadb(s->p, s->n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL), *value;
  const char *key;
  json_object_foreach(line, key, value) {
    int i = 0;
    if (!json_is_string(value))
      continue;
    while (i < *n && strcmp(fields[i].name, key))
      i++;
    if (i == FIELDS)
      continue;
    if (i == *n)
      fields[(*n)++] = (field){lm_arena_strndup(x->a, key, strlen(key)), 0};
    fields[i].bytes += (double)json_string_length(value);
  }
  json_decref(line);
}

// "text" or "content" if lines have it, else the field that holds the most.
static lm_status field_find(inspector *x, const lm_text_span *spans, size_t n,
                            lm_data_source *source) {
  field fields[FIELDS];
  int n_fields = 0;
  int best = 0;
  for (size_t i = 0; i < n && i < LINES_ASKED; i++)
    fields_count(x, &spans[i], fields, &n_fields);
  LM_TRY(lm_lines_check(x->a, spans, n, source->path));
  if (!n_fields)
    return lm_fail(LM_USER, "%s: no line is a JSON object with a text in it: {\"text\": \"...\"}",
                   source->path);
  for (int i = 0; i < n_fields; i++) {
    if (!strcmp(fields[i].name, "text") || !strcmp(fields[i].name, "content"))
      fields[i].bytes *= 1e6;
    if (fields[i].bytes > fields[best].bytes)
      best = i;
  }
  source->field = fields[best].name;
  return NULL;
}

// ---- the sample

typedef struct {
  double raw;
  double text;
  uint64_t docs, bad;
  char fault[300];
} tally;

static void span_count(inspector *x, const lm_text_span *s, const lm_data_source *source,
                       tally *t) {
  lm_buf *sample = &x->out->sample;
  json_t *owner = NULL;
  char fault[200];
  uint64_t line;
  size_t n = 0;
  const char *p = lm_text_span_read(s, source, true, &n, &owner, fault, sizeof fault, &line);
  t->raw += (double)s->n + (source->kind == LM_SOURCE_JSONL);
  if (!p && !t->bad++)
    snprintf(t->fault, sizeof t->fault, "line %llu: %s", (unsigned long long)line, fault);
  if (p) {
    t->docs += s->begins;
    t->text += (double)n;
    if (sample->n + n <= (size_t)2 * SAMPLE) {
      lm_buf_add(sample, p, n);
      lm_buf_puts(sample, s->ends ? "\n" : "");
    }
  }
  json_decref(owner);
}

// Bytes of text for each byte of a packed file.
static lm_status packing_measure(const char *path, double *out) {
  lm_input *in;
  char *to = lm_alloc(SAMPLE);
  size_t n = 0;
  size_t got = 0;
  lm_status s = lm_input_open(path, &in);
  if (!s) {
    do {
      s = lm_input_read(in, to, SAMPLE, &got);
      n += s ? 0 : got;
    } while (!s && got && n < 4 * (size_t)SAMPLE);
    *out = (double)n / (double)(lm_input_consumed(in) + 1);
    lm_input_close(in);
  }
  lm_free(to);
  return s;
}

static lm_status tally_check(const lm_data_source *source, const tally *t, const char *sample,
                             size_t n) {
  bool blank = n || t->text == 0; // nothing is added to a sample that is full
  for (size_t i = 0; blank && i < n; i++)
    blank = isspace((unsigned char)sample[i]);
  if (t->bad && (double)t->bad > 0.5 * (double)(t->bad + t->docs))
    return lm_fail(LM_USER, "%s is not text to train on: %s", source->path, t->fault);
  return blank ? lm_fail(LM_USER, "%s holds no text", source->path) : NULL;
}

// A few of the files, spread over all: a small share of each of many would hold no whole line.
static lm_file_list some_files(inspector *x, const lm_file_list *all) {
  lm_file_list some = {
      .sources = all->sources,
      .n_sources = all->n_sources,
  };
  uint32_t n = all->n < SAMPLE_FILES ? all->n : SAMPLE_FILES;
  some.files = LM_NEW_N(x->a, lm_file_entry, n);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = (uint32_t)((uint64_t)i * all->n / n);
    uint32_t end = (uint32_t)((uint64_t)(i + 1) * all->n / n);
    while (at < end && !lm_file_is_text(all->files[at].path))
      at++;
    if (at == end)
      continue;
    some.files[some.n++] = all->files[at];
    some.bytes += all->files[at].size;
  }
  return some.n ? some : *all;
}

static lm_status sample_take(inspector *x, const lm_file_list *files, lm_data_source *source,
                             tally *t) {
  size_t before = x->out->sample.n;
  size_t n;
  const lm_text_span *spans;
  lm_doc_reader *reader = lm_doc_reader_create(files, SAMPLE);
  lm_status s = lm_doc_reader_next(reader, &spans, &n);
  if (!s && source->kind == LM_SOURCE_JSONL)
    s = field_find(x, spans, n, source);
  for (size_t i = 0; !s && i < n; i++)
    span_count(x, &spans[i], source, t);
  lm_doc_reader_destroy(reader);
  LM_TRY(s);
  const char *text = x->out->sample.p ? x->out->sample.p + before : "";
  LM_TRY(tally_check(source, t, text, x->out->sample.n - before));
  if (source->kind == LM_SOURCE_TEXT && strstr(text, "<|endoftext|>"))
    source->split = "<|endoftext|>";
  return NULL;
}

static lm_status files_inspect(inspector *x, const lm_file_list *files, lm_data_source *source) {
  lm_dataset *out = x->out;
  double packing = 1;
  tally t = {0};
  if (!files->bytes)
    return lm_fail(LM_USER, "%s is empty", source->path);
  if (is_packed(files->files[0].path))
    LM_TRY(packing_measure(files->files[0].path, &packing));
  lm_file_list some = some_files(x, files);
  LM_TRY(sample_take(x, &some, source, &t));
  double raw = (double)files->bytes * packing;
  bool whole = packing == 1 && some.n == files->n && files->bytes <= SAMPLE;
  double times = whole ? 1 : raw / t.raw;
  out->files += files->n;
  out->bytes += t.text * times;
  out->docs += source->kind == LM_SOURCE_JSONL ? (double)t.docs * times : (double)files->n;
  out->estimated = out->estimated || (!whole && (source->kind == LM_SOURCE_JSONL || packing != 1));
  return NULL;
}

// The files that a pattern matches and that are text. The others are remembered by their kinds, as
// those of a folder are.
static lm_file_list texts_of_pattern(inspector *x, const lm_file_list *all) {
  lm_file_list texts = {.sources = all->sources, .n_sources = all->n_sources};
  lm_file_kinds kinds = {0};
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_file_entry *file = &all->files[i];
    x->walk.files++;
    if (lm_folder_walk_on(&x->walk) && !lm_file_kinds_look(x->a, file->path, file->size, &kinds))
      continue;
    LM_PUSH(x->a, texts.files, texts.n, texts.cap) = *file;
    texts.bytes += file->size;
  }
  for (uint32_t i = 0; i < kinds.n; i++)
    kind_remember(x, &kinds.v[i]);
  unusable_find(x->out);
  return texts.n ? texts : *all;
}

static lm_status source_inspect(inspector *x, lm_data_source *source) {
  lm_file_list files;
  LM_TRY(lm_file_list_make(source, 1, &files));
  // each folder in a folder is a separate source
  bool in_folder = x->out->n_kinds > 0;
  bool judged = x->pattern && source->kind == LM_SOURCE_TEXT;
  lm_file_list texts = judged ? texts_of_pattern(x, &files) : files;
  x->out->irregular += files.skipped - (in_folder ? files.skipped_folders : 0);
  lm_status s = files_inspect(x, &texts, source);
  lm_file_list_free(&files);
  return s;
}

// Leaves out a source of a folder that cannot be used, and notes why. If it is the only one, its
// error is the command's.
static lm_status source_drop(inspector *x, int i, lm_status why) {
  lm_dataset *s = x->out;
  if (!why || why->kind != LM_USER || !s->n_kinds || s->n_sources == 1)
    return why;
  lm_buf_printf(&s->left_out, "%s%s", s->left_out.n ? ", " : "", why->text);
  s->n_sources--;
  memmove(s->sources + i, s->sources + i + 1, (size_t)(s->n_sources - i) * sizeof *s->sources);
  lm_status_free(why);
  return NULL;
}

// The names of the sources that are left.
static void sources_name(inspector *x) {
  for (int i = 0; i < x->out->n_sources; i++)
    x->out->sources[i].name = i ? lm_arena_printf(x->a, "more%d", i) : "files";
}

lm_status lm_dataset_inspect(lm_arena *a, lm_walk_progress progress, const char *path,
                             lm_dataset *out) {
  inspector x = {.a = a, .out = out, .walk = {.progress = progress}};
  *out = (lm_dataset){0};
  LM_TRY(sources_find(&x, path));
  for (int i = 0; i < out->n_sources;) {
    int n = out->n_sources;
    LM_TRY(source_drop(&x, i, source_inspect(&x, &out->sources[i])));
    i += out->n_sources == n;
  }
  sources_name(&x);
  kinds_order(out);
  if (!x.pattern)
    out->files -= out->unusable_files < out->files ? out->unusable_files : 0;
  return NULL;
}

void lm_dataset_free(lm_dataset *s) {
  lm_buf_free(&s->sample);
  lm_buf_free(&s->left_out);
}
