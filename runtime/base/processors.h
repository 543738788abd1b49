// processors.h - how many processors and threads to use, and what an x86-64 processor executes.
#ifndef LM_PROCESSORS_H
#define LM_PROCESSORS_H
#include <stdbool.h>

// Processors that this process may use: the size of its affinity mask, limited by the CPU quota of
// its control groups (rounded up), which is read once. At least 1.
int lm_processors(void);

// The CPU quota in processors; 0 if there is none. root: the mount point of the control groups,
// /sys/fs/cgroup; list: the file with the control groups of the process, /proc/self/cgroup.
double lm_processors_quota(const char *root, const char *list);

// The number of threads to use: `wanted`, or if that is 0 one per processor, at most
// OMP_NUM_THREADS. The result is in 1 … 256.
int lm_threads(int wanted);

// The highest level of the x86-64 psABI, 1 to 4, whose instructions the processor executes and
// whose registers the system saves; 0 on another architecture.
int lm_x86_64_level(void);
bool lm_x86_64_has_f16c(void); // conversions between f16 and f32
#endif
