// func.h - the functions that the compiler defines and the runtime calls (functions.def).
#ifndef LM_CONTRACT_FUNC_H
#define LM_CONTRACT_FUNC_H
#include "contract/port.h"

typedef enum {
#define FUNC(ID, ...) LM_FUNC_##ID,
#include "contract/functions.def"
  LM_FUNCS // a function that the table does not list
} lm_func_id;

// The forms of a function.
enum {
  LM_FUNC_BY_LENGTH = 1, // there is one for each sequence length of the run
  LM_FUNC_OPEN = 2,      // it also has ports that the program names
  LM_FUNC_EXTRA = 4      // there is another one for the optimizer's extra gradient
};
typedef struct lm_func_info {
  const char *name;
  uint32_t takes, gives; // LM_PORT_BIT of each port
  uint32_t form;
} lm_func_info;
extern const lm_func_info lm_func_table[LM_FUNCS];
#define LM_PORT_BIT(id) (1u << (id))

// A function by its id and, for a function that exists once per sequence length, that length; 0:
// the length of the last stage. extra: the function of the optimizer's extra gradient. The text of
// a key is "micro", "micro.64", "micro.extra" or "micro.extra.64".
typedef struct lm_func_key {
  lm_func_id id;
  int64_t seq;
  bool extra;
} lm_func_key;
enum {
  LM_FUNC_NAME = 40 // bytes of the longest text of a key
};
static inline bool lm_func_key_equal(lm_func_key a, lm_func_key b) {
  return a.id == b.id && a.seq == b.seq && a.extra == b.extra;
}
// True for functions of a whole batch, in training and evaluation.
static inline bool lm_func_is_of_batch(lm_func_key k) {
  return k.id == LM_FUNC_LOSS || k.id == LM_FUNC_MICRO || k.id == LM_FUNC_MICRO_LAST ||
         k.id == LM_FUNC_EVAL;
}
lm_func_key lm_func_key_parse(const char *name); // id LM_FUNCS: not in the table
const char *lm_func_key_print(lm_func_key k, char out[LM_FUNC_NAME]); // returns `out`
#endif
