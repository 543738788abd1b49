// epilogue.h - sums that begin with a dot, which the target's GEMM library may compute in its
// epilogue.
#ifndef LM_EPILOGUE_H
#define LM_EPILOGUE_H
#include "compiler/passes/pass.h"

// Pass epilogue is enabled and the target of env supports epilogues.
bool lm_epilogue_is_enabled(const lm_pass_env *env);
// By value id: the sums of f that pass epilogue will fuse into GEMMs. The caller frees the array
// with lm_free. The result of such a dot is not stored, so pass grad stashes the sum instead.
uint8_t *lm_epilogue_sums(lm_func *f);
#endif
