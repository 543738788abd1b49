// library.h - shared libraries of NVIDIA's, found at run time: nothing here is linked.
//
// A library has one table, NAME_syms.def, of rows SYM(result, name, (parameters)); the struct of
// its functions, the list of names and the look-up all come from that. Handles are opaque pointers,
// results ints.
#ifndef LM_CUDA_LIBRARY_H
#define LM_CUDA_LIBRARY_H
#include "runtime/base/base.h"

// Opens the first of `names` (NULL at the end) that the loader finds, or that lies in a toolkit's
// folder: CUDA_HOME, CUDA_PATH, /usr/local/cuda. LM_ENV, saying what was tried, if there is none.
lm_status lm_library_open(const char *what, const char *const *names, void **out);
// One of the toolkit's, by its name without a version: "libnvrtc.so". driver: the CUDA that the
// driver knows (13000), which runs what toolkits of its own major version and older ones make, and
// refuses what newer ones do; 0: nothing is to be run.
lm_status lm_toolkit_open(const char *what, const char *stem, int driver, void **out);
// functions[i] becomes the address of names[i]. LM_ENV naming the first that is missing.
lm_status lm_library_resolve(void *library, const char *what, const char *const *names, int n,
                             void **functions);
const char *lm_library_path(lm_arena *a, void *library); // of its file
void lm_library_close(void *library);
#endif
