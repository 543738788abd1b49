// inline.h - how the small functions of the prelude are declared.
//
// They are always inlined. If the compiler chose, it would count the calls in the whole translation
// unit, and the machine code of a kernel would depend on the kernels that are compiled beside it.
#ifdef __CUDACC__
#define LM_INLINE static __device__ __forceinline__
#else
#define LM_INLINE static inline __attribute__((always_inline))
#endif
