// bundle.c - the program in a run folder.
#include "driver/bundle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/run_record.h"
#include "driver/text.h"
#include "dsl/syntax/imports.h"
#include "runtime/io/json.h"

// ---- the files' common folder

static char *absolute(lm_arena *a, const char *path) {
  char *real = realpath(path, NULL);
  char *copy = real ? lm_arena_strndup(a, real, strlen(real)) : NULL;
  free(real);
  return copy;
}

// Bytes of the longest folder, with its '/', that both paths begin with.
static size_t common_folder(const char *a, const char *b, size_t most) {
  size_t n = 0;
  for (size_t i = 0; i < most && a[i] == b[i] && a[i]; i++)
    if (a[i] == '/')
      n = i + 1;
  return n;
}

static size_t program_root(lm_arena *a, const lm_program *p, const char **paths) {
  size_t root = SIZE_MAX;
  for (uint32_t i = 0; i < p->n_files; i++) {
    paths[i] = p->files[i]->is_std ? NULL : absolute(a, p->files[i]->path);
    if (!paths[i])
      continue;
    root = common_folder(paths[i], root == SIZE_MAX ? paths[i] : paths[0],
                         root == SIZE_MAX ? strlen(paths[i]) : root);
  }
  return root;
}

// ---- writing

static lm_status file_copy(lm_arena *a, const lm_program *p, uint32_t file,
                           const char *const *paths, const char *to) {
  lm_buf text = {0};
  lm_imports_rewrite(p, file, paths, &text);
  lm_status s = lm_dir_make(lm_path_dir(a, to));
  if (!s)
    s = lm_file_write_atomic(to, text.p, text.n);
  lm_buf_free(&text);
  return s;
}

// main: the absolute path of the program's first file, of which `root` bytes are the folder of all.
static lm_status manifest_write(const lm_session *s, const char *path, const char *main,
                                size_t root, const lm_recipe_overrides *o) {
  lm_buf b = {0};
  lm_buf_puts(&b, "{\n  \"main\": ");
  lm_buf_json(&b, main + root);
  lm_buf_puts(&b, ",\n  \"folder\": ");
  lm_buf_json(&b, lm_arena_strndup(s->project.ctx->arena, main, root > 1 ? root - 1 : root));
  lm_buf_puts(&b, ",\n  \"recipe\": ");
  lm_buf_json(&b, s->project.recipe->name);
  lm_buf_puts(&b, ",\n  \"set\": [");
  for (int i = 0; i < o->n_sets; i++) {
    lm_buf_puts(&b, i ? ", " : "");
    lm_buf_json(&b, o->sets[i]);
  }
  lm_buf_puts(&b, "]\n}\n");
  lm_status status = lm_file_write_atomic(path, b.p, b.n);
  lm_buf_free(&b);
  return status;
}

static lm_status recipe_write(const lm_session *s, const char *path) {
  lm_buf b = {0};
  lm_recipe_print(s->project.recipe, true, &b);
  lm_status status = lm_file_write_atomic(path, b.p, b.n);
  lm_buf_free(&b);
  return status;
}

// *out_main: the absolute path of the program's first file, of which *out_root bytes are the folder
// of all.
static lm_status files_copy(lm_arena *a, const lm_program *p, const char *dir,
                            const char **out_main, size_t *out_root) {
  const char **paths = LM_NEW_N(a, const char *, p->n_files + 1);
  *out_root = program_root(a, p, paths);
  *out_main = paths[0];
  if (!paths[0])
    return lm_fail(LM_ENV, "%s is gone", p->files[0]->path);
  const char *folder = lm_path_join(a, dir, "program");
  struct stat st;
  if (!lstat(folder, &st) && !S_ISDIR(st.st_mode))
    return lm_fail(LM_ENV, "%s exists and is not a folder", folder);
  for (uint32_t i = 0; i < p->n_files; i++)
    if (paths[i])
      LM_TRY(file_copy(a, p, i, paths, lm_path_join(a, folder, paths[i] + *out_root)));
  return NULL;
}

lm_status lm_bundle_copy(lm_arena *a, const lm_program *p, const char *dir, const char **out_main) {
  size_t root;
  LM_TRY(files_copy(a, p, dir, out_main, &root));
  *out_main += root;
  return NULL;
}

static const char *manifest_path(lm_arena *a, const char *dir) {
  return lm_path_join(a, dir, "program.json");
}

static lm_status bundle_write(lm_arena *a, const lm_session *s, const char *dir,
                              const lm_recipe_overrides *o) {
  const char *main;
  size_t root;
  LM_TRY(files_copy(a, s->project.program, dir, &main, &root));
  LM_TRY(recipe_write(s, lm_path_join(a, dir, "recipe.txt")));
  return manifest_write(s, manifest_path(a, dir), main, root, o);
}

lm_status lm_bundle_write(const lm_session *s, const char *dir, const lm_recipe_overrides *o) {
  lm_arena *a = lm_arena_create();
  lm_status status = bundle_write(a, s, dir, o);
  lm_arena_destroy(a);
  return status;
}

// ---- reading

static lm_status bundle_parse(lm_arena *a, const char *dir, const json_t *j, lm_bundle *out) {
  const char *main = json_string_value(json_object_get(j, "main"));
  const char *recipe = json_string_value(json_object_get(j, "recipe"));
  const char *folder = json_string_value(json_object_get(j, "folder"));
  const json_t *sets = json_object_get(j, "set");
  if (!main || !recipe || !json_is_array(sets))
    return lm_fail(LM_USER, "%s/program.json: not the program of a run", dir);
  out->root = lm_path_join(a, dir, "program");
  bool beside = !strncmp(main, "../", 3); // imported.lm
  out->path = beside ? lm_path_join(a, dir, main + 3) : lm_path_join(a, out->root, main);
  out->folder =
      folder && !access(folder, R_OK) ? lm_arena_strndup(a, folder, strlen(folder)) : NULL;
  out->recipe = lm_arena_strndup(a, recipe, strlen(recipe));
  int n = (int)json_array_size(sets);
  const char **texts = LM_NEW_N(a, const char *, n + 1);
  out->overrides.sets = texts;
  out->overrides.n_sets = n;
  for (int i = 0; i < n; i++) {
    const char *text = json_string_value(json_array_get(sets, (size_t)i));
    if (!text)
      return lm_fail(LM_USER, "%s/program.json: not the program of a run", dir);
    texts[i] = lm_arena_strndup(a, text, strlen(text));
  }
  return NULL;
}

void lm_bundle_restore(lm_program *p, const lm_bundle *b) {
  size_t n = strlen(b->root);
  for (uint32_t i = 0; b->folder && i < p->n_files; i++) {
    lm_file *f = p->files[i];
    if (f->is_std || strncmp(f->dir, b->root, n))
      continue;
    const char *below = f->dir + n + (f->dir[n] == '/');
    f->dir = *below ? lm_path_join(p->c->arena, b->folder, below) : b->folder;
  }
}

bool lm_bundle_exists(lm_arena *a, const char *dir) {
  return !access(manifest_path(a, dir), F_OK);
}

lm_status lm_bundle_check(lm_arena *a, const char *dir) {
  if (lm_bundle_exists(a, dir))
    return NULL;
  if (!access(lm_path_join(a, dir, "config.json"), F_OK))
    return lm_fail(LM_USER,
                   "%s is not a run folder but, as it has a config.json, a model of Hugging Face: "
                   "lmc import hf %s -o RUN makes a folder that this command takes",
                   dir, lm_show_word(a, dir));
  return lm_fail(LM_USER, "%s is not a run folder: it has no program.json", dir);
}

static lm_status record_read(lm_arena *a, const char *dir, lm_bundle *out) {
  lm_run_record r;
  LM_TRY(lm_run_record_read(a, dir, &r));
  out->overrides.steps = r.steps;
  out->overrides.mode = r.mode;
  out->micro = r.micro;
  return NULL;
}

lm_status lm_bundle_read(lm_arena *a, const char *dir, lm_bundle *out) {
  enum {
    MOST_BYTES = 16 << 20
  };
  json_t *j;
  LM_TRY(lm_bundle_check(a, dir));
  LM_TRY(lm_json_read(manifest_path(a, dir), MOST_BYTES, &j));
  lm_status s = bundle_parse(a, dir, j, out);
  json_decref(j);
  return s ? s : record_read(a, dir, out);
}
