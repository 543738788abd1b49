// prefetch_test.c - without another thread there is no prefetching, and no memory is leaked.
// These definitions stand in for the C library's.
#include <errno.h>
#include <pthread.h>

#include "runtime/data/feed/prefetch.h"
#include "tests/runtime/check.h"

static int created, destroyed;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
  return EAGAIN;
}
int pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attributes) {
  created++;
  return 0;
}
int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) {
  created++;
  return 0;
}
int pthread_mutex_destroy(pthread_mutex_t *lock) {
  destroyed++;
  return 0;
}
int pthread_cond_destroy(pthread_cond_t *condition) {
  destroyed++;
  return 0;
}

int main(void) {
  int before = created - destroyed;
  CHECK(!lm_prefetch_create(NULL, NULL));
  CHECK(created - destroyed == before && created >= 2);
  return 0;
}
