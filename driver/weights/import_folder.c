// import_folder.c - see import_folder.h.
#include "driver/weights/import_folder.h"

#include <string.h>
#include <unistd.h>

#include "runtime/io/json.h"

static const char *hash_of(lm_arena *a, const lm_buf *text) {
  return lm_arena_printf(a, "%016llx", (unsigned long long)lm_hash(text->p, text->n, 0));
}

lm_status lm_import_manifest_write(const char *dir, const lm_buf *text,
                                   const lm_fingerprint *tokenizer) {
  lm_arena *a = lm_arena_create();
  lm_buf b = {0};
  lm_buf_printf(&b,
                "{\n  \"main\": \"../imported.lm\",\n  \"recipe\": \"Tune\",\n  \"set\": [],\n"
                "  \"imported\": \"%s\",\n  \"tokenizer\": {",
                hash_of(a, text));
  for (uint32_t i = 0; i < tokenizer->n; i++)
    lm_buf_printf(&b, "%s\"%s\": \"%s\"", i ? ", " : "", tokenizer->v[i].key,
                  tokenizer->v[i].value);
  lm_buf_puts(&b, "}\n}\n");
  lm_status s = lm_file_write_atomic(lm_path_join(a, dir, "program.json"), b.p, b.n);
  lm_buf_free(&b);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_import_tokenizer_read(lm_arena *a, const char *dir, lm_fingerprint *out) {
  json_t *j, *value;
  const char *part;
  *out = (lm_fingerprint){0};
  LM_TRY(lm_json_read(lm_path_join(a, dir, "program.json"), 1 << 20, &j));
  json_object_foreach(json_object_get(j, "tokenizer"), part, value) {
    if (json_is_string(value))
      lm_fingerprint_add(a, out, lm_arena_printf(a, "%s", part),
                         lm_arena_printf(a, "%s", json_string_value(value)));
  }
  json_decref(j);
  return NULL;
}

lm_status lm_import_refuse(const char *dir, const char *file) {
  return lm_fail(LM_USER,
                 "%s holds %s, which this import did not write and would overwrite; import into "
                 "another folder, or remove that file first",
                 dir, file);
}

// The hash that an earlier import recorded; NULL: there is none.
static const char *recorded_hash(lm_arena *a, const char *manifest) {
  json_t *j = NULL;
  lm_status_free(lm_json_read(manifest, 1 << 20, &j));
  const char *hash = json_string_value(json_object_get(j, "imported"));
  hash = hash ? lm_arena_strndup(a, hash, strlen(hash)) : NULL;
  json_decref(j);
  return hash;
}

static bool is_as_written(lm_arena *a, const char *path, const char *hash) {
  lm_buf text = {0};
  lm_status s = lm_file_read(path, 1 << 20, &text);
  bool same = !s && !strcmp(hash_of(a, &text), hash);
  lm_status_free(s);
  lm_buf_free(&text);
  return same;
}

static lm_status folder_check(lm_arena *a, const char *dir, bool *out_own) {
  static const char *const of_a_run[] = {"run.json", "recipe.txt", "metrics.jsonl"};
  const char *manifest = lm_path_join(a, dir, "program.json");
  for (size_t i = 0; i < LM_COUNT(of_a_run); i++)
    if (!access(lm_path_join(a, dir, of_a_run[i]), F_OK))
      return lm_fail(LM_USER, "%s is the folder of a run; import into another folder", dir);
  if (access(manifest, F_OK))
    return NULL;
  const char *hash = recorded_hash(a, manifest);
  const char *imported = lm_path_join(a, dir, "imported.lm");
  if (!hash)
    return lm_import_refuse(dir, "program.json");
  if (!access(imported, F_OK) && !is_as_written(a, imported, hash))
    return lm_fail(LM_USER,
                   "%s was edited since it was imported and would be overwritten; import into "
                   "another folder, or remove that file first",
                   imported);
  *out_own = true;
  return NULL;
}

lm_status lm_import_folder_check(const char *dir, bool *out_own) {
  lm_arena *a = lm_arena_create();
  *out_own = false;
  lm_status s = folder_check(a, dir, out_own);
  lm_arena_destroy(a);
  return s;
}
