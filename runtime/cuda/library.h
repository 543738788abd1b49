// library.h - NVIDIA's shared libraries, loaded at run time; lmc is not linked to them.
//
// The functions of a library are listed in a table NAME_syms.def of rows SYM(result, name,
// (parameters)), from which the struct of function pointers and the list of names are generated.
// Handles are opaque pointers, results are ints.
#ifndef LM_CUDA_LIBRARY_H
#define LM_CUDA_LIBRARY_H
#include "runtime/base/base.h"

// Opens the first of `names` (NULL-terminated) that the loader finds or that is in a toolkit folder
// ($CUDA_HOME, $CUDA_PATH, /usr/local/cuda). LM_ENV with the names that were tried if there is
// none.
lm_status lm_library_open(const char *what, const char *const *names, void **out);
// Opens a library of the CUDA toolkit. stem: its name without a version, "libnvrtc.so". driver: the
// CUDA version that the driver supports (13000); it runs code of toolkits with its major version or
// older ones, so newer ones are not tried. 0: no code will run.
lm_status lm_toolkit_open(const char *what, const char *stem, int driver, void **out);
// Sets functions[i] to the address of names[i]. LM_ENV with the first name that is missing.
lm_status lm_library_resolve(void *library, const char *what, const char *const *names, int n,
                             void **functions);
// Loads the file of that name in the folder of `library`, if there is one, so that the library
// finds it by its name later, wherever the loader searches.
void lm_library_preload(void *library, const char *name);
const char *lm_library_path(lm_arena *a, void *library); // path of its file
void lm_library_close(void *library);
#endif
