// safetensors_fuzz.c - safetensors files: a file that opens must be readable to its last element.
#include "runtime/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lm_st *st;
  lm_status s = lm_st_open(fuzz_file("safetensors", data, n), &st);
  for (size_t i = 0; !s && i < lm_st_count(st); i++) {
    const lm_st_tensor *t = lm_st_at(st, i);
    float x;
    for (int64_t k = 0; k < t->elements && lm_st_dtype_is_float(t->dtype); k++)
      lm_status_free(lm_st_read_f32(t, k, 1, &x));
  }
  if (!s)
    lm_st_close(st);
  lm_status_free(s);
  return 0;
}
