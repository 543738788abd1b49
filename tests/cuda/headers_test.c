// headers_test.c - the declarations of NVIDIA's libraries in runtime/cuda against their headers
// and, if that needs no GPU, against the libraries. Prints a note for each missing header and skips
// it.
#include "runtime/base/dtype.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/nvtx.h"
#include "runtime/cuda/map.h"
#include "tests/runtime/check.h"

#if __has_include(<cuda.h>) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <cuda.h>
#include <string.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(LM_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(LM_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(LM_CU_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(LM_CU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(LM_CU_MEMORY_CLOCK, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(LM_CU_MEMORY_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(LM_CU_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(LM_CU_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(LM_CU_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(LM_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(LM_CU_EVENT_NO_TIMES, CU_EVENT_DISABLE_TIMING);
SAME(LM_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(LM_CU_MAP_BF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(LM_CU_MAP_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(LM_CU_MAP_PROMOTE_128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME(sizeof(lm_cuda_map), sizeof(CUtensorMap));
SAME(LM_CU_LAUNCH_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(sizeof(lm_cu_attribute), sizeof(CUlaunchAttribute));
SAME(offsetof(lm_cu_attribute, value), offsetof(CUlaunchAttribute, value));
SAME(sizeof(lm_cu_launch), sizeof(CUlaunchConfig));
SAME(offsetof(lm_cu_launch, threads), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(lm_cu_launch, shared), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(lm_cu_launch, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(lm_cu_launch, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(lm_cu_launch, n_attributes), offsetof(CUlaunchConfig, numAttrs));
SAME(LM_CUBLASLT_F32, CUDA_R_32F);
SAME(LM_CUBLASLT_F64, CUDA_R_64F);
SAME(LM_CUBLASLT_BF16, CUDA_R_16BF);
SAME(LM_CUBLASLT_INT, CUDA_R_32I);
SAME(LM_LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LM_LT_COMPUTE_64F, CUBLAS_COMPUTE_64F);
SAME(LM_LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(LM_LT_OP_T, CUBLAS_OP_T);
SAME(LM_LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LM_LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(LM_LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(LM_LT_DESC_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LM_LT_DESC_AUX, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SAME(LM_LT_DESC_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SAME(LM_LT_DESC_SCALE_A, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(LM_LT_DESC_SCALE_B, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(LM_CUBLASLT_E4M3, CUDA_R_8F_E4M3);
SAME(LM_CUBLASLT_E5M2, CUDA_R_8F_E5M2);
SAME(LM_CUBLASLT_E8M0, CUDA_R_8F_UE8M0);
#define SCALES(id, name, elements, cublaslt, since) LT_SCALES_##id = cublaslt,
enum {
#include "contract/scales.def"
};
SAME(LT_SCALES_NUMBER, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
SAME(LT_SCALES_VEC32, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
SAME(LT_SCALES_VEC128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
SAME(LT_SCALES_BLK128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
SAME(LM_LT_DESC_FAST_ACCUM, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
SAME(LM_LT_DESC_SCALE_MODE_A, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(LM_LT_DESC_SCALE_MODE_B, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(LM_LT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT);
SAME(LM_LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(LM_LT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU);
SAME(LM_LT_EPILOGUE_GELU | LM_LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS);
SAME(LM_LT_EPILOGUE_GELU | LM_LT_EPILOGUE_AUX, CUBLASLT_EPILOGUE_GELU_AUX);
SAME(LM_LT_EPILOGUE_GELU | LM_LT_EPILOGUE_AUX | LM_LT_EPILOGUE_BIAS,
     CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SAME(LM_LT_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME(LM_LT_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME(LM_LT_PREF_REDUCTION, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(LM_LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(LM_LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(LM_LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LM_LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(LM_LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(lm_lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(lm_lt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(lm_lt_heuristic, workspace),
     offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(lm_lt_heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(sizeof(lm_cuda_address), sizeof(CUdeviceptr));
SAME(sizeof(int), sizeof(CUdevice));
SAME(sizeof(int), sizeof(CUresult));

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
SAME(LM_NVTX_VERSION, NVTX_VERSION);
SAME(LM_NVTX_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME(LM_NVTX_VERSIONINFO, NVTX_ETID_VERSIONINFO);
SAME(LM_NVTX_CORE, NVTX_CB_MODULE_CORE);
SAME(LM_NVTX_CUDA, NVTX_CB_MODULE_CUDA);
SAME(LM_NVTX_OPENCL, NVTX_CB_MODULE_OPENCL);
SAME(LM_NVTX_CUDART, NVTX_CB_MODULE_CUDART);
SAME(LM_NVTX_CORE2, NVTX_CB_MODULE_CORE2);
SAME(LM_NVTX_SYNC, NVTX_CB_MODULE_SYNC);
SAME(LM_NVTX_MODULES, NVTX_CB_MODULE_SIZE);
SAME(LM_NVTX_PUSH, NVTX_CBID_CORE_RangePushA);
SAME(LM_NVTX_POP, NVTX_CBID_CORE_RangePop);
SAME(NVTX_CBID_CORE_SIZE, 16); // as in nvtx.c
SAME(NVTX_CBID_CUDA_SIZE, 9);
SAME(NVTX_CBID_OPENCL_SIZE, 15);
SAME(NVTX_CBID_CUDART_SIZE, 7);
SAME(NVTX_CBID_CORE2_SIZE, 16);
SAME(NVTX_CBID_SYNC_SIZE, 7);
SAME(sizeof(lm_nvtx_callbacks), sizeof(NvtxExportTableCallbacks));
SAME(sizeof(lm_nvtx_version), sizeof(NvtxExportTableVersionInfo));
#endif

#if __has_include(<nccl.h>)
#include <nccl.h>
SAME(LM_NCCL_IN_PROGRESS, ncclInProgress);
SAME(LM_NCCL_INT8, ncclInt8);
SAME(LM_NCCL_F16, ncclFloat16);
SAME(LM_NCCL_F32, ncclFloat32);
SAME(LM_NCCL_F64, ncclFloat64);
SAME(LM_NCCL_BF16, ncclBfloat16);
SAME(LM_NCCL_SUM, ncclSum);
SAME(LM_NCCL_OLDEST, NCCL_VERSION(2, 18, 0));
SAME(LM_NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(sizeof(lm_nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(lm_nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(lm_nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(lm_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(lm_nccl_config, net_name), offsetof(ncclConfig_t, netName));
SAME(offsetof(lm_nccl_config, split_share), offsetof(ncclConfig_t, splitShare));
#endif

// If the header maps a function to another name in the library, the table has that name. Per-thread
// variants of the default stream are not used.
#define TEXT(x) #x
#define NAME(x) TEXT(x)
static void test_names(void) {
  static const char *const known[] = {NAME(cuMemAlloc),
                                      NAME(cuMemFree),
                                      NAME(cuMemGetInfo),
                                      NAME(cuDeviceTotalMem),
                                      NAME(cuDevicePrimaryCtxRelease),
                                      NAME(cuMemcpyHtoDAsync),
                                      NAME(cuMemcpyDtoHAsync),
                                      NAME(cuMemcpyDtoDAsync),
                                      NAME(cuStreamDestroy),
                                      NAME(cuEventDestroy),
                                      NAME(cuStreamBeginCapture),
                                      NAME(cuGraphInstantiate),
                                      NAME(cuLaunchKernelEx),
                                      NAME(cuTensorMapEncodeTiled),
                                      NAME(cuStreamSynchronize),
                                      NAME(cuStreamEndCapture)};
  static const char *const table[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/driver_syms.def"
#undef SYM
  };
  for (size_t i = 0; i < LM_COUNT(known); i++) {
    bool found = false;
    for (size_t k = 0; k < LM_COUNT(table); k++)
      found |= !strcmp(known[i], table[k]);
    if (!found)
      printf("%s is not in the table\n", known[i]);
    CHECK(found);
  }
}
#else
static void test_names(void) {
  printf("skipped: no headers of CUDA\n");
}
#endif

// The library accepts every attribute, with the size that we pass.
static void test_descriptors(void) {
  static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/cublaslt_syms.def"
#undef SYM
  };
  lm_cublaslt lt;
  lm_status missing = lm_toolkit_open("cuBLASLt", "libcublasLt.so", 0, &lt.library);
  if (missing) {
    printf("skipped: %s\n", missing->text);
    lm_status_free(missing);
    return;
  }
  CHECK_OK(lm_library_resolve(lt.library, "cuBLASLt", names, LM_COUNT(names), lt.functions));
  void *desc, *layout, *preference;
  const int32_t transposed = LM_LT_OP_T, count = 3;
  const int64_t stride = 1024;
  const size_t workspace = LM_CUDA_WORKSPACE;
  const uint32_t reduction = LM_LT_REDUCTION_COMPUTE_TYPE;
  CHECK(!lt.cublasLtMatmulDescCreate(&desc, LM_LT_COMPUTE_32F, LM_CUBLASLT_F32));
  CHECK(
      !lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_TRANSA, &transposed, sizeof transposed));
  CHECK(
      !lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_TRANSB, &transposed, sizeof transposed));
  const uint32_t epilogue = LM_LT_EPILOGUE_GELU | LM_LT_EPILOGUE_AUX | LM_LT_EPILOGUE_BIAS;
  void *address = (void *)(uintptr_t)4096;
  CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_BIAS, &address, sizeof address));
  CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_AUX, &address, sizeof address));
  CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_AUX_LD, &stride, sizeof stride));
  for (int a = LM_LT_DESC_SCALE_A; a <= LM_LT_DESC_SCALE_B; a++)
    CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, a, &address, sizeof address));
  const int8_t fast = 1;
  CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, LM_LT_DESC_FAST_ACCUM, &fast, sizeof fast));
  for (int i = 0; i < LM_SCALES_KINDS; i++)
    for (int a = LM_LT_DESC_SCALE_MODE_A; a <= LM_LT_DESC_SCALE_MODE_B; a++) {
      const int32_t mode = lm_scales_of((lm_scales)i).cublaslt;
      CHECK(!lt.cublasLtMatmulDescSetAttribute(desc, a, &mode, sizeof mode));
    }
  CHECK(!lt.cublasLtMatrixLayoutCreate(&layout, LM_CUBLASLT_BF16, 32, 16, 32));
  CHECK(
      !lt.cublasLtMatrixLayoutSetAttribute(layout, LM_LT_LAYOUT_BATCH_COUNT, &count, sizeof count));
  CHECK(!lt.cublasLtMatrixLayoutSetAttribute(layout, LM_LT_LAYOUT_BATCH_STRIDE, &stride,
                                             sizeof stride));
  CHECK(!lt.cublasLtMatmulPreferenceCreate(&preference));
  CHECK(!lt.cublasLtMatmulPreferenceSetAttribute(preference, LM_LT_PREF_WORKSPACE, &workspace,
                                                 sizeof workspace));
  CHECK(!lt.cublasLtMatmulPreferenceSetAttribute(preference, LM_LT_PREF_REDUCTION, &reduction,
                                                 sizeof reduction));
  for (int a = LM_LT_PREF_ALIGN_A; a <= LM_LT_PREF_ALIGN_D; a++) {
    const uint32_t align = 16;
    CHECK(!lt.cublasLtMatmulPreferenceSetAttribute(preference, a, &align, sizeof align));
  }
  CHECK(!lt.cublasLtMatmulDescDestroy(desc) && !lt.cublasLtMatrixLayoutDestroy(layout) &&
        !lt.cublasLtMatmulPreferenceDestroy(preference));
  printf("cuBLASLt %zu takes our descriptors\n", lt.cublasLtGetVersion());
}

int main(void) {
  test_names();
  test_descriptors();
}
