// compiler.h - what GCC and Clang say differently. The rest of this folder follows, then kernels.
#define LM_PRAGMA(...) _Pragma(#__VA_ARGS__)

// Of kernels of fused operations, LM_FUSED: a product is rounded before it is added, whatever else
// a kernel computes, so that an operation gives the same bits in every kernel. Functions of the
// prelude name their multiply-adds. Attention and products of matrices, LM_CONTRACTED: the compiler
// makes multiply-adds. GCC makes them but where an attribute forbids it. Clang ignores that
// attribute and makes none but where a pragma says so, from there on.
//
// LM_UNROLL: the next loop has at most N turns, a constant number: they are written out, and what
// they index lies in registers. (Told a number that is not exact, Clang does so too late for that.)
// Of another loop GCC writes N turns out.
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
