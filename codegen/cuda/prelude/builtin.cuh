// builtin.cuh - CUDA's names of the builtins and types of C compilers that the shared preludes use.
#define __INT8_TYPE__ signed char
#define __INT32_TYPE__ int
#define __INT64_TYPE__ long long
#define __UINT8_TYPE__ unsigned char
#define __UINT16_TYPE__ unsigned short
#define __UINT32_TYPE__ unsigned int
#define __UINT64_TYPE__ unsigned long long
#define __FMA__ 1
#define __builtin_memcpy memcpy
#define __builtin_fma fma
#define __builtin_fmaf fmaf
#define __builtin_floor floor
#define __builtin_floorf floorf
#define __builtin_rint rint
#define __builtin_rintf rintf
#define __builtin_fabsf fabsf
#define __builtin_sqrt sqrt
#define __builtin_sqrtf sqrtf
#define __builtin_copysignf copysignf
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nan(s) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_nanf(s) __int_as_float(0x7fc00000)
#define __builtin_exp exp
#define __builtin_log log
#define __builtin_log1p log1p
#define __builtin_tanh tanh
#define __builtin_erf erf
#define __builtin_sin sin
#define __builtin_cos cos
#define __builtin_pow pow
