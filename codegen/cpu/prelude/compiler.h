// compiler.h - differences between GCC and Clang. The other files of this folder follow, then
// kernels.
#define LM_PRAGMA(...) _Pragma(#__VA_ARGS__)

// LM_UNROLL(N): the next loop has at most N iterations, a constant number; it is fully unrolled, so
// that the arrays that it indexes are kept in registers. (Clang unrolls too late for that if N is
// not exact.) GCC unrolls a longer loop N times.
// LM_UNROLL_BY(N): the number of iterations may be known at run time only; N are done at a time.
#ifdef __clang__
#define LM_UNROLL(N) LM_PRAGMA(clang loop unroll(full))
#define LM_UNROLL_BY(N) LM_PRAGMA(clang loop unroll_count(N))
#define LM_SHUFFLE(ORDER, A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define LM_UNROLL(N) LM_PRAGMA(GCC unroll N)
#define LM_UNROLL_BY(N) LM_UNROLL(N)
#define LM_SHUFFLE(ORDER, A, B, ...) __builtin_shuffle(A, B, (ORDER){__VA_ARGS__})
#endif
