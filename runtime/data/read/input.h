// input.h - reads the bytes of one file; a file whose name ends in .zst or .gz is decompressed.
// Memory does not grow with the size of the file.
#ifndef LM_DATA_READ_INPUT_H
#define LM_DATA_READ_INPUT_H
#include <sys/stat.h>

#include "runtime/base/base.h"

typedef struct lm_input lm_input;
// Calls stat. LM_USER: the file does not exist, or is a folder, a FIFO or a device.
lm_status lm_input_look(const char *path, struct stat *out);
// The permission bits of the group and of others, if the file withholds reading from them; see
// lm_data_info.
unsigned lm_input_umask(const struct stat *st);
lm_status lm_input_open(const char *path, lm_input **out); // LM_USER: the file cannot be read
void lm_input_close(lm_input *in);                         // in may be NULL
// Reads up to n bytes; *out_n = 0 only at the end. LM_USER: the file is damaged or truncated, or
// its compression ratio is so high that the file must be malicious.
lm_status lm_input_read(lm_input *in, char *to, size_t n, size_t *out_n);
uint64_t lm_input_consumed(const lm_input *in); // bytes read from the file on disk
#endif
