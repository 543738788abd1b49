// set.h - the instructions that tiles are compiled for, and whether a unit calls functions of tiles
// that lmc holds compiled.
//
// LM_AMX, LM_BFMMLA: GEMMs of bf16 use the processor's matrix unit (tile_amx.h, tile_bfmmla.h), or
// its emulation in C. The caller has the operating system's permission to use the tiles of AMX, or
// compiles with LM_AMX_REFUSED. LM_PAIRS: they use dot products of pairs (tile_panel_bf16.h).
#if (((defined(__AMX_BF16__) || defined(__AMXBF16__)) && !defined(LM_AMX_REFUSED)) ||              \
     defined(LM_AMX_EMULATED)) &&                                                                  \
    !defined(LM_BFMMLA_EMULATED)
#define LM_AMX
#define LM_MATRIX_UNIT
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(LM_BFMMLA_EMULATED)
#define LM_BFMMLA
#define LM_MATRIX_UNIT
#endif
#if (defined(__AVX512BF16__) && !defined(LM_MATRIX_UNIT) && !defined(LM_BF16_WIDENED)) ||          \
    defined(LM_PAIRS_EMULATED)
#define LM_PAIRS
#endif

// The number of the set for the instructions that this text is compiled with, 0 if there is none:
// operands are laid out as these instructions need it.
#if defined(LM_AMX_EMULATED) || defined(LM_BFMMLA_EMULATED) || defined(LM_PAIRS_EMULATED) ||       \
    defined(LM_BF16_WIDENED)
#define LM_TILES_SET 0
#elif defined(LM_AMX)
#define LM_TILES_SET 5
#define LM_TILES_OF_PAIRS
#elif defined(__AVX512BF16__)
#define LM_TILES_SET 4
#define LM_TILES_OF_PAIRS
#elif defined(__AVX512F__)
#define LM_TILES_SET 3
#elif defined(__AVX2__) && defined(__FMA__)
#define LM_TILES_SET 2
#elif defined(__x86_64__) && !defined(__AVX__)
#define LM_TILES_SET 1
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define LM_TILES_SET 2
#elif defined(__aarch64__)
#define LM_TILES_SET 1
#else
#define LM_TILES_SET 0
#endif

// A unit gets the number of the set that fits the processor as LM_TILES_GIVEN. If both numbers are
// equal, it calls that set (tiles.h), and does not define the functions of GEMMs.
#if LM_TILES_SET && !defined(LM_TILES_DEFINED) && defined(LM_TILES_GIVEN)
#if LM_TILES_SET == LM_TILES_GIVEN
#define LM_TILES_CALLED
#endif
#endif
