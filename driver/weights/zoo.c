// zoo.c - the models of examples/zoo in the binary.
#include "driver/weights/zoo.h"

#include <string.h>
#include "runtime/base/diag.h"

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_zoo[];

static const lm_zoo_model MODELS[] = {
#define ZOO(...) {__VA_ARGS__},
#include "driver/weights/zoo.def"
#undef ZOO
};

const lm_zoo_model *lm_zoo_find(const char *type) {
  for (size_t i = 0; i < LM_COUNT(MODELS); i++)
    if (!strcmp(MODELS[i].type, type))
      return &MODELS[i];
  return NULL;
}

const lm_zoo_model *lm_zoo_named(const char *name) {
  size_t n = strlen(name);
  for (size_t i = 0; i < LM_COUNT(MODELS); i++)
    if (MODELS[i].args && (!strcmp(MODELS[i].type, name) || (!strncmp(MODELS[i].file, name, n) &&
                                                             !strcmp(MODELS[i].file + n, ".lm"))))
      return &MODELS[i];
  return NULL;
}

const char *lm_zoo_names(lm_arena *a) {
  const char *list = "";
  for (size_t i = 0; i < LM_COUNT(MODELS); i++)
    if (MODELS[i].args)
      list = lm_arena_printf(a, "%s%s%.*s", list, *list ? ", " : "",
                             (int)strcspn(MODELS[i].file, "."), MODELS[i].file);
  return list;
}

const char *lm_zoo_nearest(lm_arena *a, const char *name) {
  const char *names[LM_COUNT(MODELS)];
  int n = 0;
  for (size_t i = 0; i < LM_COUNT(MODELS); i++)
    if (MODELS[i].args)
      names[n++] = lm_arena_strndup(a, MODELS[i].file, strcspn(MODELS[i].file, "."));
  return lm_nearest(name, names, n);
}

const char *lm_zoo_text(const lm_zoo_model *m) {
  for (const struct lm_embedded *e = lm_zoo; e->path; e++) {
    const char *name = strrchr(e->path, '/');
    if (!strcmp(name ? name + 1 : e->path, m->file))
      return e->text;
  }
  LM_BUG("no %s in the binary", m->file);
}

const char *lm_zoo_types(lm_arena *a) {
  const char *list = MODELS[0].type;
  for (size_t i = 1; i < LM_COUNT(MODELS); i++)
    list = lm_arena_printf(a, "%s, %s", list, MODELS[i].type);
  return list;
}
