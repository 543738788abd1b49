// input.h - the bytes of one file, as they stand or, where its name ends in .zst, unpacked. Memory
// does not grow with the file.
#ifndef LM_DATA_INPUT_H
#define LM_DATA_INPUT_H
#include <sys/stat.h>

#include "runtime/base/base.h"

typedef struct lm_input lm_input;
// What stat says. LM_USER: there is no such file, or it is a folder, a FIFO or a device.
lm_status lm_input_look(const char *path, struct stat *out);
unsigned lm_input_unshared(const struct stat *st); // as lm_data_info
lm_status lm_input_open(const char *path,
                        lm_input **out); // LM_USER: the file is none that can be read
void lm_input_close(lm_input *in);       // NULL is fine
// Up to n bytes; *out_n = 0 only at the end. LM_USER: the file is damaged or ends too early, or
// unpacks to so much that it must be made to fill the disk.
lm_status lm_input_read(lm_input *in, char *to, size_t n, size_t *out_n);
uint64_t lm_input_consumed(const lm_input *in); // bytes of the file that were read
#endif
