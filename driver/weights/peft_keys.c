// peft_keys.c - the keys of adapter_config.json.
#include <string.h>

#include "driver/weights/peft.h"

#define PLAIN(NAME) {#NAME, LM_PEFT_PLAIN, NULL, NULL},
#define NUMBERS(NAME, NEUTRAL) {#NAME, LM_PEFT_NUMBERS, NEUTRAL, NULL},
#define BY_MODULE(NAME, NEUTRAL, TABLE) {#NAME, LM_PEFT_NUMBERS, NEUTRAL, TABLE},
static const lm_peft_key KEYS[] = {
#include "driver/weights/peft_keys.def"
};
#undef PLAIN
#undef NUMBERS
#undef BY_MODULE

lm_peft_key lm_peft_key_find(const char *name) {
  for (size_t i = 0; i < LM_COUNT(KEYS); i++)
    if (!strcmp(KEYS[i].name, name))
      return KEYS[i];
  return (lm_peft_key){.name = name};
}

bool lm_peft_same(const json_t *a, const json_t *b) {
  if (json_is_number(a) && json_is_number(b))
    return json_number_value(a) == json_number_value(b);
  return json_equal(a, b);
}

bool lm_peft_is_neutral(const lm_peft_key *k, const json_t *value) {
  json_t *neutral = k->neutral ? json_loads(k->neutral, 0, NULL) : NULL;
  bool same = false;
  for (size_t i = 0; value && i < json_array_size(neutral); i++)
    same |= lm_peft_same(value, json_array_get(neutral, i));
  same |= !value && json_array_size(neutral);
  json_decref(neutral);
  return same;
}

int lm_peft_line(const lm_buf *text, const char *key) {
  size_t n = strlen(key);
  int line = 1;
  for (const char *p = text->p; p && *p; p++) {
    line += *p == '\n';
    if (*p != '"' || strncmp(p + 1, key, n) || p[n + 1] != '"')
      continue;
    if (p[n + 2 + strspn(p + n + 2, " \t\r\n")] == ':')
      return line;
  }
  return 0;
}
