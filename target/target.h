// target.h - a machine as plain data: its speed by operation and dtype, its memories, and tile
// sizes for it. The compiler reads it, the runtime fills it in for the machine that it finds, and
// known.def lists machines that need not be there.
#ifndef LM_TARGET_H
#define LM_TARGET_H
#include <stdbool.h>
#include <stdint.h>

#include "contract/dtype.h"

typedef enum {
  LM_TARGET_CPU,
  LM_TARGET_CUDA,
  LM_TARGET_KINDS
} lm_target_kind;

// Sizes of GEMMs of e4m3 and e5m2 are multiples of it on a GPU.
enum {
  LM_CODES_MULTIPLE = 16
};

// Working-set sizes for which a bandwidth is given: 128 KiB to 128 MiB, by factors of four.
enum {
  LM_TARGET_SIZES = 6,
  LM_TARGET_MIN_BYTES = 128 << 10,
  LM_TARGET_NAME = 64
};

// GEMMs on operands of a dtype.
typedef struct lm_target_math {
  bool native;         // the machine has instructions for it; others are emulated
  lm_dtype accumulate; // the dtype of the sums
  double peak;         // FLOP/s of dense GEMMs; 0: unknown
} lm_target_math;

// Instructions of a CPU for matrices of bf16: tiles of 16 rows, or blocks of two rows and two
// columns.
typedef enum {
  LM_MATRIX_NONE,
  LM_MATRIX_AMX,
  LM_MATRIX_BFMMLA
} lm_matrix_unit;

// Where packed weights are known to be profitable despite the memory of another copy: nowhere; in
// decoding, which is limited by reading the weights, in a program that does not train; everywhere.
typedef enum {
  LM_PANEL_NOWHERE,
  LM_PANEL_IN_DECODING,
  LM_PANEL_ALWAYS
} lm_panel_use;

// The packed layout in which a target's GEMM kernel reads a weight: panels of `columns` columns, in
// which `group` elements along k are adjacent; N and K must be multiples of n and k. columns 0: not
// packed.
typedef struct lm_target_panel {
  int columns, group, n, k;
  lm_panel_use use;
} lm_target_panel;

// Sizes that the compiler chooses by the machine. 0: the default of the pass that reads it.
typedef struct lm_target_choices {
  int points;     // points of a kernel that occupy the machine
  int chunks;     // chunks of a column sum
  int rows;       // rows per tile of a large GEMM (pass tile_vocab)
  int64_t logits; // bytes of such a tile and its cotangent, if the plan may take them; 0: by rows
  int64_t launch; // cost of a kernel launch, in bytes moved; 0: free
  // Bytes that stay in the cores' caches between two kernels, if memory bandwidth limits bf16
  // GEMMs; else 0 (pass tile_rows).
  int64_t cached_bytes;
  bool codes_gemms; // generated GEMMs are faster than the library in every form that they support
  bool pads_gemms;  // GEMMs are slow unless rows are multiples of 16 bytes apart (pass pad_gemms)
  int attend_tile;  // side of the tiles of attention's map; 0: attention is unsupported
  bool attends_one; // attention of one query, too
  lm_target_panel panel[LM_DTYPES]; // by dtype of the operands
} lm_target_choices;

// What the cost model (compiler/plan/cost.h) needs besides peaks and bandwidths: fixed costs, and
// the achievable fraction (efficiency) of published figures, which rates.def gives for GPUs.
typedef struct lm_target_rates {
  double launch;   // seconds that the shortest kernel takes
  double gap;      // seconds between the end of a kernel and the start of the next
  double call;     // seconds between the end of a graph and the start of the next one
  double memory;   // achievable fraction of the bandwidth, by a long kernel
  double math;     // achievable fraction of a GEMM's peak, by its main loop
  double mma_sync; // of a GPU: achievable fraction of the peak with mma.sync
  double host;     // achievable fraction of target.host, by a long copy
  double cache;    // bytes per second of the last cache; 0: `bandwidth` gives them by size
  double lanes;    // instructions per second, counted for each element of a vector or thread
} lm_target_rates;

typedef struct lm_target {
  char name[LM_TARGET_NAME];      // of --target: "h100", "sm_90a", "cpu"
  char title[2 * LM_TARGET_NAME]; // "NVIDIA H100 SXM"
  lm_target_kind kind;
  char arch[16]; // that code is generated for: "sm_90a"; "" on a CPU, or for any
  bool is_here;  // this process can use it
  int device;    // of a GPU that is here: its number among those that this process sees, from 0
  lm_target_math math[LM_DTYPES];
  double peak_tf32;                  // FLOP/s of GEMMs that round f32 operands to 10 bits; 0: none
  int units;                         // cores, or multiprocessors
  int64_t memory;                    // bytes
  int64_t cache;                     // bytes of the last level
  int64_t shared;                    // bytes of shared memory that a block can have; 0: none
  bool warpgroups;                   // of a GPU: warpgroups multiply (wgmma)
  bool codes_by_k;                   // its GEMMs of e4m3 and e5m2 read both operands along k
  bool codes_fast;                   // their sums may be narrower than f32, where that is faster
  bool codes_mx;                     // these GEMMs have a scale for each 32 elements along k, too
  bool codes_blocks;                 // and in f32 for 128 of a row, or of 128 rows (scales.def)
  int vector;                        // of a CPU: floats of a vector; 0: unknown
  lm_matrix_unit matrix;             // of a CPU
  double bandwidth[LM_TARGET_SIZES]; // bytes read and written per second, by working set
  // Of a GPU: bytes per second between its memory and the host's, in each direction; 0: unknown.
  double host;
  lm_target_rates rates;
  lm_target_choices choices;
} lm_target;

// Finds a machine of known.def by its name, or by an architecture: the first machine of known.def
// that has it. False if there is none.
bool lm_target_known(const char *name, lm_target *out);
// Finds the machine of known.def by the name that its driver reports: "NVIDIA H100 80GB HBM3".
bool lm_target_known_device(const char *device, lm_target *out);
// The names of all machines of known.def: name i, or NULL.
const char *lm_target_name(int i);

// Returns a machine of this kind without figures, for code that runs on all of them.
lm_target lm_target_any(lm_target_kind kind);
// Sets the bandwidth of every working set.
void lm_target_set_bandwidth(lm_target *t, double bytes_per_second);
static inline double lm_target_bandwidth(const lm_target *t) {
  return t->bandwidth[LM_TARGET_SIZES - 1]; // from memory
}
// The rates of a GPU by its architecture. lanes: instructions per second at the maximum clock, of
// all lanes; cache: bytes per second of the last cache.
void lm_target_set_rates(lm_target *t, double lanes, double cache);
// Sets the GEMMs of e4m3 and e5m2 of a GPU by its architecture and its peak in bf16: from sm_89 on
// the tensor cores multiply them at twice the rate; before, there are none.
void lm_target_set_codes(lm_target *t);
// The bandwidth of the largest size that is not larger than the working set.
double lm_target_bandwidth_of(const lm_target *t, double bytes);
// Returns a lower bound of the seconds that work on operands of a dtype takes: the larger of flops
// / peak and bytes / bandwidth. *out_memory (optional): true if bandwidth is the limit.
double lm_target_seconds(const lm_target *t, lm_dtype dtype, double flops, double bytes,
                         bool *out_memory);
#endif
