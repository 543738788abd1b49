// tiles.h - the functions of tiles, which lmc holds compiled for common processors, so that no unit
// of kernels compiles them again: they take half of the compiler's time.
//
// A unit that calls them (set.h) does so by lm_tiles_given, which is set when the unit is loaded.
// Otherwise it contains the functions itself.
#if LM_TILES_SET
typedef struct lm_tile_functions {
  lm_gemm_function *gemm_f32, *gemm_any_f32, *gemm_bf16, *gemm_any_bf16;
  __typeof__(lm_softmax) *softmax, *softmax_e4m3;
  __typeof__(lm_rescale) *rescale;
  __typeof__(lm_rows_copy) *rows_copy;
  __typeof__(lm_rows_copy_bf16) *rows_copy_bf16;
  __typeof__(lm_rows_add) *rows_add;
  __typeof__(lm_rows_clear) *rows_clear;
  __typeof__(lm_rows_round) *rows_round;
  __typeof__(lm_form_transposed_f32) *form_transposed_f32;
  __typeof__(lm_dot_f32) *dot_f32;
  __typeof__(lm_sum_s_f32) *sum_s_f32;
  __typeof__(lm_sum_t_f32) *sum_t_f32;
#ifdef LM_TILES_OF_PAIRS // attention multiplies pairs of bf16
  __typeof__(lm_form_transposed_bf16) *form_transposed_bf16, *form_lhs_transposed_bf16;
  __typeof__(lm_form_interleaved_bf16) *form_interleaved_bf16;
  __typeof__(lm_dot_bf16) *dot_bf16;
  __typeof__(lm_sum_s_bf16) *sum_s_bf16;
  __typeof__(lm_sum_t_bf16) *sum_t_bf16;
#endif
} lm_tile_functions;

#ifdef LM_TILES_DEFINED
// CMakeLists.txt compiles this text with the options of set number LM_TILES_DEFINED.
_Static_assert(LM_TILES_SET == LM_TILES_DEFINED, "options of another set");
#define LM_TILES_NAME_(N) lm_tiles_##N
#define LM_TILES_NAME(N) LM_TILES_NAME_(N)
extern const lm_tile_functions LM_TILES_NAME(LM_TILES_DEFINED);
const lm_tile_functions LM_TILES_NAME(LM_TILES_DEFINED) = {
    .gemm_f32 = lm_gemm_f32,
    .gemm_any_f32 = lm_gemm_any_f32,
    .gemm_bf16 = lm_gemm_bf16,
    .gemm_any_bf16 = lm_gemm_any_bf16,
    .softmax = lm_softmax,
    .softmax_e4m3 = lm_softmax_e4m3,
    .rescale = lm_rescale,
    .rows_copy = lm_rows_copy,
    .rows_copy_bf16 = lm_rows_copy_bf16,
    .rows_add = lm_rows_add,
    .rows_clear = lm_rows_clear,
    .rows_round = lm_rows_round,
    .form_transposed_f32 = lm_form_transposed_f32,
    .dot_f32 = lm_dot_f32,
    .sum_s_f32 = lm_sum_s_f32,
    .sum_t_f32 = lm_sum_t_f32,
#ifdef LM_TILES_OF_PAIRS
    .form_transposed_bf16 = lm_form_transposed_bf16,
    .form_lhs_transposed_bf16 = lm_form_lhs_transposed_bf16,
    .form_interleaved_bf16 = lm_form_interleaved_bf16,
    .dot_bf16 = lm_dot_bf16,
    .sum_s_bf16 = lm_sum_s_bf16,
    .sum_t_bf16 = lm_sum_t_bf16,
#endif
};
#elif defined(LM_TILES_CALLED)
const lm_tile_functions *lm_tiles_given;
#define lm_gemm_f32 lm_tiles_given->gemm_f32
#define lm_gemm_any_f32 lm_tiles_given->gemm_any_f32
#define lm_gemm_bf16 lm_tiles_given->gemm_bf16
#define lm_gemm_any_bf16 lm_tiles_given->gemm_any_bf16
#define lm_softmax lm_tiles_given->softmax
#define lm_softmax_e4m3 lm_tiles_given->softmax_e4m3
#define lm_rescale lm_tiles_given->rescale
#define lm_rows_copy lm_tiles_given->rows_copy
#define lm_rows_copy_bf16 lm_tiles_given->rows_copy_bf16
#define lm_rows_add lm_tiles_given->rows_add
#define lm_rows_clear lm_tiles_given->rows_clear
#define lm_rows_round lm_tiles_given->rows_round
#define lm_form_transposed_f32 lm_tiles_given->form_transposed_f32
#define lm_dot_f32 lm_tiles_given->dot_f32
#define lm_sum_s_f32 lm_tiles_given->sum_s_f32
#define lm_sum_t_f32 lm_tiles_given->sum_t_f32
#ifdef LM_TILES_OF_PAIRS
#define lm_form_transposed_bf16 lm_tiles_given->form_transposed_bf16
#define lm_form_interleaved_bf16 lm_tiles_given->form_interleaved_bf16
#define lm_form_lhs_transposed_bf16 lm_tiles_given->form_lhs_transposed_bf16
#define lm_dot_bf16 lm_tiles_given->dot_bf16
#define lm_sum_s_bf16 lm_tiles_given->sum_s_bf16
#define lm_sum_t_bf16 lm_tiles_given->sum_t_bf16
#endif
#endif
#endif
