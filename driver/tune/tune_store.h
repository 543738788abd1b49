// tune_store.h - the file format that tuned GEMMs share in a run folder and in the cache:
//   {"version": 3, HEAD, "gemms": [
//     GEMM,
//     …
//   ]}
// Earlier versions called the list `products`; that name is read too.
// The callers define HEAD and GEMM: tune.c, tune_gemm_cuda.c.
#ifndef LM_DRIVER_TUNE_STORE_H
#define LM_DRIVER_TUNE_STORE_H
#include <jansson.h>

#include "driver/session.h"

// head: "\"gpu\": …". print appends GEMM i; false: it is left out. pinned_by: as of lm_tune_reader.
lm_status lm_tune_list_write(const char *path, const lm_session *pinned_by, const char *head,
                             uint32_t n, bool (*print)(const void *user, uint32_t i, lm_buf *b),
                             const void *user);

// head reads the members before the list, then gemm reads each element; false: it is malformed.
// what: such lists, for a message.
typedef struct lm_tune_reader {
  const char *what; // "tilings of GEMMs"
  bool (*head)(void *user, json_t *list);
  lm_status (*fits)(void *user,
                    const char *path); // after head: whether it is of this machine; optional
  bool (*gemm)(void *user, json_t *gemm);
  void *user;
  // the session whose tuned.json this is, which also holds the variant of its steps
  // (tune_variant.h); NULL: a file of the cache, which must be one that can be trusted
  lm_session *pinned_by;
} lm_tune_reader;
lm_status lm_tune_list_read(const char *path, const lm_tune_reader *r);
#endif
