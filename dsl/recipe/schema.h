// schema.h - access to the table of schema.def.
#ifndef LM_SCHEMA_H
#define LM_SCHEMA_H
#include "dsl/syntax/ast.h"

typedef enum {
  LM_FORM_VALUE,
  LM_FORM_NAMED,
  LM_FORM_RULES,
  LM_FORM_CALLED,
  LM_FORM_LISTED,
  LM_FORM_SECTION,
  LM_FORM_SECTIONS,
  LM_FORM_FORM,
  LM_FORM_ARG,
} lm_schema_form;

enum { // types
  T_INT = 1,
  T_NUM = 2,
  T_QTY = 4,
  T_PARAMS = 8, // a quantity that may follow the number of parameters
  T_STR = 16,
  T_PATH = 32,
  T_WORD = 64,   // one of `words`, any if there are none
  T_WORDS = 128, // a list of them
  T_STRS = 256,
  T_PATTERNS = 512,
  T_REF = 1024,       // a name, or names with dots
  T_WEIGHTS = 2048,   // (name = number, …)
  T_ARGS = 4096,      // (name = anything, …)
  T_FORM = 8192,      // one of the key's forms
  T_CALL = 16384,     // of something declared
  T_MODEL = 32768,    // a call or a name
  T_OPTIONAL = 65536, // the name of a section may be left out
};

typedef struct lm_schema_key {
  const char *path;
  lm_schema_form form;
  unsigned types;
  const char *words, *units;
  double least, most;
  const char *otherwise; // "!": must be given, "": none
  bool later;
  const char *help;
} lm_schema_key;

extern const lm_schema_key LM_SCHEMA[];
extern const int LM_SCHEMA_COUNT;

const lm_schema_key *lm_schema_find(const char *path);
// prefix + separator + name, e.g. ("recipe.eval", '.', "every").
const lm_schema_key *lm_schema_child(const char *prefix, char separator, const char *name);
// The key right behind `previous` (NULL: the first) that is a direct child of prefix by that
// separator.
const lm_schema_key *lm_schema_next(const char *prefix, char separator,
                                    const lm_schema_key *previous);
const char *lm_schema_name(const lm_schema_key *k); // the last part: "every"
int lm_schema_names(const char *prefix, char separator, const char **out,
                    int most); // of all children
bool lm_schema_is_required(const lm_schema_key *k);
bool lm_schema_has_default(const lm_schema_key *k);

// Whether `word` is in a list such as "f32 bf16?"; *out_later: it is marked as not there yet.
bool lm_schema_has_word(const char *list, const char *word, bool *out_later);
const char *lm_schema_nearest_word(lm_ctx *c, const char *list, const char *word);
// "steps, tokens or epochs"
const char *lm_schema_list(lm_ctx *c, const char *list);
// What a value of the key may be, for messages: "a number of steps, tokens or epochs"
const char *lm_schema_expectation(lm_ctx *c, const lm_schema_key *k);
// How the key is written, for messages: "eval NAME { … }"
const char *lm_schema_usage(lm_ctx *c, const lm_schema_key *k);
#endif
