// epilogue.h - sums that begin with a product, which a target's library may add up as it stores the
// product.
#ifndef LM_EPILOGUE_H
#define LM_EPILOGUE_H
#include "compiler/passes/pass.h"

// Whether the pass will run for the target of env, and there is anything that it can do.
bool lm_epilogue_is_enabled(const lm_pass_env *env);
// By value id, which the caller frees: the sums of f that products will give in place of
// themselves. What such a product alone would give is then in no memory, so the backward pass is to
// find the sum there instead.
uint8_t *lm_epilogue_sums(lm_func *f);
#endif
