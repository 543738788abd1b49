// onednn.h - what each use of oneDNN needs: one OpenMP thread, and memory.
//
// The library crashes where it fails to allocate code that it generates, which it does when a
// primitive is created and in the first call of a function. Before these the memory is asked for;
// then lmc ends with a message and status 2. Other failed allocations give dnnl_out_of_memory or,
// in C++, call the handler of `new`.
#ifndef LM_CPU_ONEDNN_H
#define LM_CPU_ONEDNN_H
#include <stdbool.h>
#include <stddef.h>

// More than one call allocates, for code or for panels.
#define LM_ONEDNN_MEMORY ((size_t)16 << 20)

// Makes the library single-threaded in the calling thread, for creating and for running
// primitives, and directs failures of `new` to the out-of-memory handler.
void lm_onednn_begin(void);
// True if the call that follows may be the first of its function. Then the memory is there, first
// calls of other threads wait, and lm_onednn_first_end must follow the call.
bool lm_onednn_first(_Atomic bool *begun);
void lm_onednn_first_end(_Atomic bool *begun);
#endif
