// tuned_gpu.h - the part of tuned.h for GPUs: which of cuBLASLt's algorithms computes a product.
// The exec measures, as it starts.
//
//   {"version": 2, "gpu": "NVIDIA H100 80GB HBM3", "cublaslt": 130100, "products": [
//     {"product": "f3a0…", "algorithm": "0b00…", "workspace": 33554432, "gain": 1.06}, …
#ifndef LMC_TUNED_GPU_H
#define LMC_TUNED_GPU_H
#include "driver/session.h"

// Sets s->tuned.choices: from `lock`, which then holds; from the cache, to which the exec adds.
lm_status lm_tuned_gpu_recall(lm_session *s, const char *lock);
lm_status lm_tuned_gpu_find(lm_session *s);
lm_status
lm_tuned_gpu_keep(lm_session *s); // once the exec has started: what it measured, for other runs
lm_status lm_tuned_gpu_write(const lm_session *s, const char *path);
#endif
