// outputs.c - files that a command writes must not be files that it reads.
#include "driver/outputs.h"

#include <dirent.h>
#include <fnmatch.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/weights/safetensors.h"

static lm_status refuse(const char *path, const char *input) {
  return lm_fail(LM_USER,
                 "%s is read by this command (as %s) and would be overwritten; choose another name",
                 path, input);
}

static bool is_same(const struct stat *st, const char *path) {
  struct stat x;
  return path && !stat(path, &x) && x.st_dev == st->st_dev && x.st_ino == st->st_ino;
}

lm_status lm_output_check(const char *path, const char *const *inputs, size_t n) {
  struct stat st;
  if (!path || stat(path, &st))
    return NULL; // no file would be overwritten
  for (size_t i = 0; i < n; i++)
    if (is_same(&st, inputs[i]))
      return refuse(path, inputs[i]);
  return NULL;
}

static lm_status source_check(const char *path, const struct stat *st, const char *pattern) {
  glob_t found;
  lm_status s = NULL;
  if (glob(pattern, GLOB_NOSORT, NULL, &found))
    return NULL;
  for (size_t i = 0; i < found.gl_pathc && !s; i++)
    if (is_same(st, found.gl_pathv[i]))
      s = refuse(path, found.gl_pathv[i]);
  globfree(&found);
  return s;
}

lm_status lm_output_check_recipe(const lm_recipe *r, const char *path) {
  struct stat st;
  if (!path || stat(path, &st))
    return NULL;
  const char *named[] = {r->data.tokenizer.file, r->data.tokenizer.merges, r->from, r->peft};
  LM_TRY(lm_output_check(path, named, LM_COUNT(named)));
  for (uint32_t i = 0; i < r->program->n_files; i++)
    if (!r->program->files[i]->is_std)
      LM_TRY(lm_output_check(path, &r->program->files[i]->path, 1));
  for (uint32_t i = 0; i < r->data.n_sources; i++)
    LM_TRY(source_check(path, &st, r->data.sources[i].path));
  return NULL;
}

lm_status lm_output_file_check(const char *path) {
  struct stat st;
  lm_arena *a = lm_arena_create();
  const char *dir = lm_path_dir(a, path);
  lm_status s = NULL;
  if (!stat(path, &st) && S_ISDIR(st.st_mode))
    s = lm_fail(LM_USER, "%s is a folder, but the output is a file", path);
  else if (stat(dir, &st) || !S_ISDIR(st.st_mode))
    s = lm_fail(LM_USER, "there is no folder %s for %s", dir, path);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_output_folder_check(const lm_recipe *r, const char *dir, const char *const *patterns) {
  lm_arena *a = lm_arena_create();
  DIR *d = opendir(dir);
  lm_status status = NULL;
  for (struct dirent *file; d && !status && (file = readdir(d));)
    for (const char *const *p = patterns; *p && !status; p++)
      if (!fnmatch(*p, file->d_name, 0))
        status = lm_output_check_recipe(r, lm_path_join(a, dir, file->d_name));
  if (d)
    closedir(d);
  lm_arena_destroy(a);
  return status;
}

// ---- folders that an earlier command of the same kind wrote

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

const lm_output_kind LM_OUTPUT_RUN = {
    "the folder of a run", "program.json",
    NAMES("program", "program-*", "recipe.txt", "run.json", "history.json", "tokenizer.json",
          "tokenizer_config.json", "generation_config.json", "token_ids.json", "encoder.json",
          "vocab.bpe", "tokenizer.model", "tuned*.json", "metrics.jsonl", "loss.svg",
          "events.out.tfevents.lmc", "profile.json", "step-*", "superseded-*")};
const lm_output_kind LM_OUTPUT_PLAN = {
    "a plan that lmc compile wrote", "plan.txt",
    NAMES("*.lmir", "*.dot", "plan.txt", "program.ast", "kernels.txt", "kernels")};
const lm_output_kind LM_OUTPUT_EXPORT = {
    "an earlier export", "model.safetensors",
    NAMES("config.json", "model.safetensors", "generation_config.json", "tokenizer.json",
          "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt",
          "special_tokens_map.json")};
const lm_output_kind LM_OUTPUT_PEFT = {
    "an earlier export",
    "adapter_model.safetensors",
    NAMES("adapter_config.json", "adapter_model.safetensors"),
};

// True if a file of this name is of the kind. A process that is killed while it replaces a file
// leaves NAME.tmp (lm_file_write_atomic), which the next process overwrites.
static bool is_own(lm_arena *a, const lm_output_kind *kind, const char *name) {
  static const char temporary[] = ".tmp";
  size_t n = strlen(name), end = strlen(temporary);
  if (n > end && !strcmp(name + n - end, temporary))
    name = lm_arena_printf(a, "%.*s", (int)(n - end), name);
  for (const char *const *p = kind->own; *p; p++)
    if (!fnmatch(*p, name, 0))
      return true;
  return *name == '.';
}

static bool is_foreign(const char *path) {
  return !fnmatch("*.safetensors", path, 0) && !lm_st_is_own(path);
}

static lm_status folder_refuse(const char *dir, const char *name, const lm_output_kind *kind) {
  return lm_fail(LM_USER, "%s holds %s and is not %s; choose a new or an empty folder", dir, name,
                 kind->what);
}

lm_status lm_output_kind_check(const char *dir, const lm_output_kind *kind) {
  lm_arena *a = lm_arena_create();
  struct stat st;
  const char *mark = lm_path_join(a, dir, kind->mark);
  bool marked = !stat(mark, &st);
  DIR *d = marked ? NULL : opendir(dir);
  lm_status s = marked && is_foreign(mark) ? folder_refuse(dir, kind->mark, kind) : NULL;
  for (struct dirent *file; d && !s && (file = readdir(d));)
    if (!is_own(a, kind, file->d_name))
      s = folder_refuse(dir, file->d_name, kind);
  if (d)
    closedir(d);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_output_weights_check(const char *dir) {
  static const char *const others[] = {"*.safetensors", "*.safetensors.index.json",
                                       "*.bin",         "*.bin.index.json",
                                       "step-*",        "program.json"};
  DIR *d = opendir(dir);
  lm_status s = NULL;
  for (struct dirent *file; d && !s && (file = readdir(d));)
    for (size_t i = 0; i < LM_COUNT(others) && !s; i++)
      if (strcmp(file->d_name, "model.safetensors") && !fnmatch(others[i], file->d_name, 0))
        s = lm_fail(LM_USER,
                    "%s holds %s: files of another model or a run; export into an empty folder, or "
                    "into the folder of an earlier export",
                    dir, file->d_name);
  if (d)
    closedir(d);
  return s;
}
