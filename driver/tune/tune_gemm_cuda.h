// tune_gemm_cuda.h - the part of tune.h for GPUs: the algorithm of cuBLASLt for each GEMM. The
// executor measures when it starts.
//
//   {"version": 3, "gpu": "NVIDIA H100 80GB HBM3", "cublaslt": 130100, "gemms": [
//     {"gemm": "f3a0…", "algorithm": "0b00…", "workspace": 33554432, "gain": 1.06}, …
#ifndef LM_DRIVER_TUNE_GEMM_CUDA_H
#define LM_DRIVER_TUNE_GEMM_CUDA_H
#include "driver/session.h"

// Set s->tuning.choices: from the file `path`, which pins them; from the cache, to which
// the executor adds its measurements.
lm_status lm_tune_gpu_recall(lm_session *s, const char *path);
lm_status lm_tune_gpu_find(lm_session *s);
lm_status
lm_tune_gpu_keep(lm_session *s); // after the start: writes the executor's measurements to the cache
lm_status lm_tune_gpu_write(const lm_session *s, const char *path);
#endif
