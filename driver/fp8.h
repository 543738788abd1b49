// fp8.h - matmul = fp8(...) of a recipe, for the compiler.
#ifndef LM_DRIVER_FP8_H
#define LM_DRIVER_FP8_H
#include "driver/compile.h"

// Sets c->fp8 from the recipe and the parameters of the lowered module; NULL if the recipe does not
// cast GEMMs, or nothing is trained. Mistakes are diagnostics.
lm_status lm_fp8_make(lm_compiled *c);
#endif
