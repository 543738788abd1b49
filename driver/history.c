// history.c - changes of the recipe or the program that were accepted when a run was resumed.
#include "driver/history.h"

#include <string.h>
#include <unistd.h>

#include "runtime/io/json.h"

enum {
  BYTES_MOST = 16 << 20
};

static char *path_of(lm_arena *a, const char *dir) {
  return lm_path_join(a, dir, "history.json");
}

// ---- reading

static const char *text_of(lm_arena *a, const json_t *j, const char *key) {
  const char *text = json_string_value(json_object_get(j, key));
  return text ? lm_arena_strndup(a, text, strlen(text)) : NULL;
}

static lm_status history_parse(lm_arena *a, const char *path, const json_t *list, lm_history *out) {
  if (!json_is_array(list))
    return lm_fail(LM_USER, "%s: not the history of a run", path);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *j = json_array_get(list, i);
    lm_history_entry e = {json_integer_value(json_object_get(j, "step")),
                          text_of(a, j, "option"),
                          text_of(a, j, "key"),
                          text_of(a, j, "old"),
                          text_of(a, j, "new"),
                          text_of(a, j, "program"),
                          text_of(a, j, "lines")};
    if (!e.option || !e.key || !e.was || !e.is)
      return lm_fail(LM_USER, "%s: not the history of a run", path);
    LM_PUSH(a, out->v, out->n, out->cap) = e;
  }
  return NULL;
}

lm_status lm_history_read(lm_arena *a, const char *dir, lm_history *out) {
  const char *path = path_of(a, dir);
  json_t *j;
  *out = (lm_history){0};
  LM_TRY(lm_json_read_existing(path, BYTES_MOST, &j));
  if (!j)
    return NULL;
  lm_status s = history_parse(a, path, j, out);
  json_decref(j);
  return s;
}

const char *lm_history_program(lm_arena *a, const lm_history *h, const char *dir, int64_t step) {
  const lm_history_entry *best = NULL;
  for (uint32_t i = 0; i < h->n; i++) {
    const lm_history_entry *e = &h->v[i];
    if (e->program && e->step >= step && (!best || e->step < best->step))
      best = e;
  }
  return best ? lm_path_join(a, dir, best->program) : dir;
}

// ---- writing

static void member(lm_buf *b, const char *name, const char *text) {
  lm_buf_printf(b, ", \"%s\": ", name);
  if (text)
    lm_buf_json(b, text);
  else
    lm_buf_puts(b, "null");
}

void lm_history_json(const lm_history *h, lm_buf *b) {
  lm_buf_puts(b, "[");
  for (uint32_t i = 0; i < h->n; i++) {
    const lm_history_entry *e = &h->v[i];
    lm_buf_printf(b, "%s{\"step\": %lld", i ? ",\n " : "", (long long)e->step);
    member(b, "option", e->option);
    member(b, "key", e->key);
    member(b, "old", e->was);
    member(b, "new", e->is);
    member(b, "program", e->program);
    member(b, "lines", e->lines);
    lm_buf_puts(b, "}");
  }
  lm_buf_puts(b, "]\n");
}

lm_status lm_history_write(const char *dir, const lm_history *h) {
  lm_arena *a = lm_arena_create();
  lm_buf b = {0};
  lm_history_json(h, &b);
  lm_status s = lm_file_write_atomic(path_of(a, dir), b.p, b.n);
  lm_buf_free(&b);
  lm_arena_destroy(a);
  return s;
}
