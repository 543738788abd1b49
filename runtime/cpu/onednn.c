// onednn.c - see onednn.h.
#define _GNU_SOURCE
#include "runtime/cpu/onednn.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/base.h"

static pthread_mutex_t first_call = PTHREAD_MUTEX_INITIALIZER;

static void new_failed(void) {
  lm_out_of_memory(LM_ONEDNN_MEMORY);
}

// std::set_new_handler, which the library's C++ runtime has.
static void new_handler_set(void) {
  void *symbol = dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
  void (*(*set)(void (*)(void)))(void);
  memcpy(&set, &symbol, sizeof set);
  if (set)
    set(new_failed);
}

void lm_onednn_begin(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, new_handler_set);
  omp_set_num_threads(1); // a setting of the calling thread
}

bool lm_onednn_first(_Atomic bool *begun) {
  if (atomic_load_explicit(begun, memory_order_acquire))
    return false;
  pthread_mutex_lock(&first_call);
  lm_memory_expect(LM_ONEDNN_MEMORY);
  return true;
}

void lm_onednn_first_end(_Atomic bool *begun) {
  atomic_store_explicit(begun, true, memory_order_release);
  pthread_mutex_unlock(&first_call);
}
