// dataset_lines.c - JSON lines that hold something else than texts.
#include "driver/advise/dataset_lines.h"

#include <jansson.h>

// The source of a recipe that reads a line, if it is a conversation, an answer to a prompt or a
// pair of answers; NULL if a text is to be read.
static const char *line_source(lm_arena *a, const json_t *line, const char *path) {
  static const struct {
    const char *one, *other, *source;
  } forms[] = {{"messages", "messages", "chat(\"%s\", template = \"plain\")"},
               {"conversations", "conversations", "chat(\"%s\", template = \"plain\")"},
               {"chosen", "rejected", "pairs(\"%s\")"},
               {"prompt", "completion", "prompt(\"%s\")"},
               {"source", "target", "seq2seq(\"%s\", start = \"<|endoftext|>\")"}};
  for (size_t i = 0; i < LM_COUNT(forms); i++) {
    bool has = json_object_get(line, forms[i].one) && json_object_get(line, forms[i].other);
    if (has && !json_object_get(line, "text"))
      return lm_arena_printf(a, forms[i].source, path);
  }
  return NULL;
}

static const char *other_source(lm_arena *a, const lm_text_span *spans, size_t n,
                                const char *path) {
  const char *source = NULL;
  for (size_t i = 0; i < n && !source; i++) {
    json_t *line =
        json_loadb(spans[i].p, spans[i].n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    source = line_source(a, line, path);
    json_decref(line);
    if (line)
      break;
  }
  return source;
}

lm_status lm_lines_check(lm_arena *a, const lm_text_span *spans, size_t n, const char *path) {
  const char *source = other_source(a, spans, n, path);
  if (!source)
    return NULL;
  return lm_fail(LM_USER,
                 "%s holds no plain text; a recipe reads it by `source talk = %s` (docs/chat.md, "
                 "docs/tokenizers.md)",
                 path, source);
}
