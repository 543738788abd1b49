// wgmma.cuh - sm_90a: GEMMs that a warpgroup of 128 threads issues and tensor cores execute
// asynchronously. Accumulators are laid out as in mma.cuh, 16 rows for each of four warps.
//
// Two warpgroups alternate: lm_pingpong_wait(i) waits until the other group has called
// lm_pingpong_arrive(i).
#define lm_pingpong_wait(i) asm volatile("bar.sync %0, 256;" ::"r"((i) + 1) : "memory")
#define lm_pingpong_arrive(i) asm volatile("bar.arrive %0, 256;" ::"r"((i) + 1) : "memory")
#define lm_group_barrier() asm volatile("bar.sync 3, 256;" ::: "memory") // of both groups
// Of both groups and the producer's warp.
#define lm_roles_barrier() asm volatile("bar.sync 4, 288;" ::: "memory")
#define lm_registers_fewer(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define lm_registers_more(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))

// x, which is the same in all lanes of the warp. It comes from a lane, so that the compiler knows
// that, and computes descriptors and addresses from it in uniform registers.
LM_INLINE int32_t lm_warp_uniform(int32_t x) {
  return __shfl_sync(~0u, x, 0);
}
LM_INLINE void lm_wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
LM_INLINE void lm_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `left` groups are in flight.
#define lm_wgmma_wait(left) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory")
// Keeps the following instructions after the computation of x, which is never negative: the
// assembler moves waits up past arithmetic, but not past this instruction, which is never executed.
// (Of a trap NVRTC 12.3 would serialize the GEMMs that are in flight, C7516.)
LM_INLINE void lm_order_after(float x) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 0;\n}" ::"f"(x)
               : "memory");
}
// Prevents accesses to the registers d from moving across this point.
#define lm_wgmma_settle(d, n)                                                                      \
  LM_UNROLL for (int32_t i_ = 0; i_ < (n); i_++) asm volatile(                                     \
      "" : "+f"(d[i_][0]), "+f"(d[i_][1]), "+f"(d[i_][2]), "+f"(d[i_][3])::"memory")

#define LM_F4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define LM_F32(d, i)                                                                               \
  LM_F4(d, i), LM_F4(d, i + 1), LM_F4(d, i + 2), LM_F4(d, i + 3), LM_F4(d, i + 4),                 \
      LM_F4(d, i + 5), LM_F4(d, i + 6), LM_F4(d, i + 7)
#define LM_REGISTERS_32                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define LM_REGISTERS_64                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define LM_REGISTERS_96                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}"
#define LM_REGISTERS_128                                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "               \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "     \
  "%127}"

// shared: d = a b, or d += a b; matrices by their descriptors (group.cuh), both with k along rows.
//  shared_transposed: the same, but the rows of b are k, N elements long.
//  both_transposed: the rows of a are k, too.
//  held, held_transposed: the same, but a is in registers as in mma.cuh, 16 rows for each warp.
#define LM_WGMMA_SHARED(N, FORM, A_TRANSPOSED, TRANSPOSED, R, A, B, C, ...)                        \
  LM_INLINE void lm_wgmma_##N##_##FORM(float(*d)[4], uint64_t a, uint64_t b, int32_t add) {        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C                                           \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                                      \
                 "k16.f32.bf16.bf16 " LM_REGISTERS_##R                                             \
                 ", %" #A ", %" #B ", p, 1, 1, " #A_TRANSPOSED ", " #TRANSPOSED ";\n}"             \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(add)                                                        \
                 : "memory");                                                                      \
  }
#define LM_WGMMA_HELD(N, FORM, TRANSPOSED, R, A, B, C, D, E, F, ...)                               \
  LM_INLINE void lm_wgmma_##N##_##FORM(float(*d)[4], const uint32_t *a, uint64_t b, int32_t add) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F                                           \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                                      \
                 "k16.f32.bf16.bf16 " LM_REGISTERS_##R ", {%" #A ", %" #B ", %" #C ", %" #D        \
                                                       "}, %" #E ", p, 1, 1, " #TRANSPOSED ";\n}"  \
                 : __VA_ARGS__                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)                    \
                 : "memory");                                                                      \
  }
#define LM_WGMMA(N, R, A, B, C, D, E, F, ...)                                                      \
  LM_WGMMA_SHARED(N, shared, 0, 0, R, A, B, C, __VA_ARGS__)                                        \
  LM_WGMMA_SHARED(N, shared_transposed, 0, 1, R, A, B, C, __VA_ARGS__)                             \
  LM_WGMMA_SHARED(N, both_transposed, 1, 1, R, A, B, C, __VA_ARGS__)                               \
  LM_WGMMA_HELD(N, held, 0, R, A, B, C, D, E, F, __VA_ARGS__)                                      \
  LM_WGMMA_HELD(N, held_transposed, 1, R, A, B, C, D, E, F, __VA_ARGS__)
LM_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, LM_F32(d, 0))
LM_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, LM_F32(d, 0), LM_F32(d, 8))
LM_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, LM_F32(d, 0), LM_F32(d, 8), LM_F32(d, 16))
LM_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, LM_F32(d, 0), LM_F32(d, 8), LM_F32(d, 16),
         LM_F32(d, 24))
