// activity.h - which values depend on a parameter, and therefore have a gradient.
#ifndef LM_ACTIVITY_H
#define LM_ACTIVITY_H
#include "compiler/ir/ir.h"

// By value id: 1 if the value of f is a floating number that depends on a parameter and has a
// derivative. The caller frees the array with lm_free.
uint8_t *lm_activity_of_func(const lm_func *f);
// The same for the values of `body` that depend on one of the n values `wrt`.
uint8_t *lm_activity_of_region(const lm_module *m, const lm_region *body, lm_value *const *wrt,
                               uint32_t n);
#endif
