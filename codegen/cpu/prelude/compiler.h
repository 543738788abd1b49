// compiler.h - differences between GCC and Clang. The other files of this folder follow, then
// kernels.
#define LM_PRAGMA(...) _Pragma(#__VA_ARGS__)

// LM_FUSED marks kernels of fused operations: a product is rounded before it is added, whatever
// else the kernel computes, so that an operation gives the same bits in every kernel. Functions of
// the prelude name their multiply-adds explicitly. LM_CONTRACTED marks attention and GEMMs, in
// which the compiler may contract multiply and add. GCC contracts by default unless an attribute
// forbids it. Clang ignores that attribute; it contracts only where a pragma allows it, from there
// on.
//
// LM_UNROLL(N): the next loop has at most N iterations, a constant number; it is fully unrolled, so
// that the arrays that it indexes are kept in registers. (Clang unrolls too late for that if N is
// not exact.) GCC unrolls a longer loop N times.
#ifdef __clang__
#define LM_FUSED LM_PRAGMA(clang fp contract(off))
#define LM_CONTRACTED LM_PRAGMA(clang fp contract(fast))
#define LM_UNROLL(N) LM_PRAGMA(clang loop unroll(full))
#define LM_SHUFFLE(ORDER, A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define LM_FUSED __attribute__((optimize("fp-contract=off")))
#define LM_CONTRACTED
#define LM_UNROLL(N) LM_PRAGMA(GCC unroll N)
#define LM_SHUFFLE(ORDER, A, B, ...) __builtin_shuffle(A, B, (ORDER){__VA_ARGS__})
#endif

LM_CONTRACTED
