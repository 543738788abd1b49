// schema.h - access to the keys of schema.def.
//
// Strings that are returned live in the arena of the context, or are part of the table.
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

// Types of a value, joined by |.
enum {
  T_INT = 1,
  T_NUM = 2,
  T_QTY = 4,
  T_PARAMS = 8, // a quantity that may be a multiple of `params`, the number of parameters
  T_STR = 16,
  T_PATH = 32,
  T_WORD = 64,   // one of `words`; any name if the list is empty
  T_WORDS = 128, // a list of them
  T_STRS = 256,
  T_PATTERNS = 512,
  T_REF = 1024,       // a name, or names joined by dots
  T_WEIGHTS = 2048,   // (name = number, …)
  T_ARGS = 4096,      // (name = anything, …)
  T_FORM = 8192,      // one of the key's forms
  T_CALL = 16384,     // a call of a declared function or optimizer
  T_MODEL = 32768,    // a call of a model, or the name of an instance
  T_OPTIONAL = 65536, // the name of a section is optional
};

typedef struct lm_schema_key {
  const char *path;
  lm_schema_form form;
  unsigned types;
  const char *words, *units;
  double min, max;          // both 0: no bounds
  const char *default_text; // "!": the key is required; "": no default
  bool planned;             // checked, but not available yet
  bool resumable;           // a run may be resumed with another value
  const char *help;
} lm_schema_key;

extern const lm_schema_key LM_SCHEMA[];
extern const int LM_SCHEMA_COUNT;

const lm_schema_key *lm_schema_find(const char *path);
// The key `prefix` `separator` `name`, such as ("recipe.eval", '.', "every"); NULL if there is
// none.
const lm_schema_key *lm_schema_child(const char *prefix, char separator, const char *name);
// The next direct child of `prefix` after `previous` (NULL: the first child), NULL after the last.
const lm_schema_key *lm_schema_next(const char *prefix, char separator,
                                    const lm_schema_key *previous);
const char *lm_schema_name(const lm_schema_key *k); // the last part: "every"
// Stores the names of at most `max` direct children in `out` and returns their number.
int lm_schema_names(const char *prefix, char separator, const char **out, int max);
bool lm_schema_is_required(const lm_schema_key *k);
bool lm_schema_has_default(const lm_schema_key *k);

// True if `word` is in a list such as "f32 bf16?". *out_planned: a "?" marks it as not available
// yet.
bool lm_schema_has_word(const char *list, const char *word, bool *out_planned);
enum {
  LM_SCHEMA_WORDS = 16 // the words of a list at most
};
int lm_schema_words(lm_ctx *c, const char *list, const char *out[LM_SCHEMA_WORDS]);
const char *lm_schema_nearest_word(lm_ctx *c, const char *list, const char *word);
// A list for messages: "steps, tokens or epochs".
const char *lm_schema_list(lm_ctx *c, const char *list);
// The accepted values of a key for messages: "a number of steps, tokens or epochs".
const char *lm_schema_expectation(lm_ctx *c, const lm_schema_key *k);
// The syntax of a key for messages: "eval NAME { ... }".
const char *lm_schema_usage(lm_ctx *c, const lm_schema_key *k);
#endif
